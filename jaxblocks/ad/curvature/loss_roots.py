r"""Square roots of the curvature of a loss in the outputs of one example.

    f      the outputs of the model for one example, y its targets
    s_e    columns like f, with sum_e s_e s_e^T = H

With the Jacobian J of the outputs, the matrix J^T H J is the sum of the outer products of the pullbacks J^T s_e. Three
matrices H differ in their columns only: the Hessian of the loss (Gauss-Newton), a Monte Carlo estimate of it with
targets drawn from the model (Fisher), and the outer product of the gradient (empirical Fisher).
"""

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxblocks.ad.curvature.operators import Likelihood, explained_sample, likelihood_functions
from jaxblocks.ad.programs.arguments import explained, scalar_valued
from jaxblocks.backend.matrix_functions import apply_matrix_function
from jaxblocks.backend.precision import widen
from jaxblocks.checks.errors import require

__all__ = ["CurvatureMatrix", "TargetLikelihood", "loss_root"]

CurvatureMatrix: TypeAlias = Literal["gauss_newton", "fisher", "empirical_fisher"]
TargetLikelihood: TypeAlias = Likelihood | Callable | None
"""A likelihood of `fisher_operator`, or only the function that draws its targets."""


def loss_root(
    matrix: CurvatureMatrix, loss: Callable, likelihood: TargetLikelihood, samples: int
) -> Callable[..., Array]:
    r"""A function ``root(key, outputs, y) -> (e, *outputs)`` of one example, whose rows are the columns $s_e$."""
    repair = "write for instance loss=lambda outputs, y: jnp.sum((outputs - y) ** 2) / 2"
    loss = explained(loss, 2, "a loss (outputs, y) of one example", repair)
    loss = scalar_valued(loss, name="loss", point="outputs")
    if matrix == "gauss_newton":
        return lambda key, outputs, y: _hessian_root(lambda f: loss(f, y), widen(outputs))
    if matrix == "empirical_fisher":
        return lambda key, outputs, y: jax.grad(loss)(widen(outputs), y)[None]
    repair = 'pass likelihood="categorical", "gaussian" or a function sample(key, outputs)'
    expected = "a likelihood, from which targets are drawn, for the Fisher matrix"
    require(likelihood is not None, expected, "None", repair)
    if callable(likelihood):
        draw = explained_sample(likelihood)
    else:
        draw, _ = likelihood_functions(likelihood, "a function sample(key, outputs)")

    def fisher(key, outputs, y):
        outputs = widen(outputs)
        gradient = lambda key: jax.grad(loss)(outputs, draw(key, outputs))
        return jax.vmap(gradient)(jax.random.split(key, samples)) / samples**0.5

    return fisher


def _hessian_root(loss: Callable, outputs: Any) -> Array:
    """The root of the Hessian; a negative eigenvalue counts as 0, so the matrix is semidefinite."""
    hessian = jax.hessian(loss)(outputs).reshape(outputs.size, outputs.size)
    if outputs.size == 1:  # a number, whose root has derivatives of every order where it is positive
        root = _positive_root(hessian)
    else:
        root = apply_matrix_function(_positive_root, hessian, jnp.eye(outputs.size, dtype=hessian.dtype))
    return root.reshape(outputs.size, *outputs.shape)


def _positive_root(values, *_):
    """The square root, or 0 with derivatives of 0: an eigenvalue that stays 0, as of softmax, may be negative."""
    positive = values > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, values, 1)), 0)
