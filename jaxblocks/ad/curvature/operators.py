r"""Curvature matrices as linear operators: functions $v ↦ Av$ on pytrees; the matrices are never formed.

    x        the point (the params of a network), any pytree of floating-point arrays with n numbers in all
    v        a direction, a pytree like x
    J        the Jacobian of a model at x
    N        the number of examples

An operator is made once at a point and applied to many directions. It is itself a pytree, whose leaves are the
residuals that its products need, so that one jitted function can return it and another can take it::

    operator_at = jax.jit(lambda params: hessian_operator(f, params))
    product = jax.jit(lambda operator, v: operator(v))
    product(operator_at(params), v)                # compiled once, for all params and all v

The function and its derivatives are evaluated in full precision on every device (GPUs and TPUs multiply with less by
default), because linear systems and eigenvalues need it.

`jaxblocks.ad.as_function` and `jaxblocks.ad.empirical_risk` convert networks and losses to the functions that these
operators take; `jaxblocks.ad.over_minibatches` computes means over a whole data set.
"""

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jax.tree_util import Partial
from jaxtyping import Array, Float, Key

from jaxblocks.ad.curvature.hessian_products import linearize_gradient
from jaxblocks.ad.programs.arguments import Tree, as_point, at_point, explained, explained_call, scalar_valued
from jaxblocks.ad.programs.jaxprs import has_forward_only_loop
from jaxblocks.ad.programs.linearization import linearize
from jaxblocks.backend.precision import full_precision, widen
from jaxblocks.backend.varying import as_structs
from jaxblocks.checks.errors import describe, require
from jaxblocks.checks.expectations import PositiveInt, checked
from jaxblocks.checks.names import nearest

__all__ = [
    "Likelihood",
    "explained_sample",
    "fisher_operator",
    "gauss_newton_operator",
    "gauss_newton_product",
    "hessian_operator",
    "likelihood_functions",
]


Likelihood: TypeAlias = Literal["categorical", "gaussian"] | tuple[Callable, Callable]


@checked
@full_precision()
def hessian_operator(f: Callable[[Tree], Float[Array, ""]], x: Tree) -> Callable[[Tree], Tree]:
    r"""The Hessian at ``x`` as a function $v ↦ Hv$: the gradient, linearized once.

    A product costs about two gradients, a fifth less than `jaxblocks.ad.hvp`, which evaluates ``f`` again each
    time; the operator stores the residuals of a backward pass. A while loop has no reverse mode: for a function that
    contains one, a product takes n passes of forward over forward mode, and only ``x`` is stored.

    Args:
        f: takes a pytree, returns a scalar.
        x: the point, a pytree of floating-point arrays.

    Returns:
        A function of ``v``, which is like ``x``. The function is itself a pytree, so that one jitted function can
        return it and another can take it (see `jaxblocks.ad.curvature.operators`).

    Raises:
        TypeError: if a leaf of ``x`` is not floating-point, or ``f`` does not return a floating-point array.
        ValueError: if ``f`` is not scalar-valued, or ``v`` is not like ``x``.

    >>> H = hessian_operator(jnp.prod, jnp.array([2.0, 5.0]))
    >>> H(jnp.array([1.0, -2.0])), H(jnp.array([0.0, 1.0]))
    (Array([-2.,  1.], dtype=float32), Array([1., 0.], dtype=float32))

    Source: Pearlmutter 1994, Fast exact multiplication by the Hessian (doi:10.1162/neco.1994.6.1.147).
    """
    f, x = scalar_valued(f), as_point(x)
    like = as_structs(x)
    # This lambda stays in the public function: errors about v begin with its name.
    return Partial(lambda linear, v: linear(at_point(like, v)[1]), linearize_gradient(f, x))


@checked
@full_precision()
def gauss_newton_operator(
    model: Callable[[Tree], Any], loss: Callable[[Any], Float[Array, ""]], x: Tree
) -> Callable[[Tree], Tree]:
    r"""The Gauss-Newton matrix at ``x`` as a function $v ↦ Jᵀ H_ℓ J v$.

    It is the Hessian of $ℓ(m(x))$ without its second term $∑_k ∂_k ℓ ∇^2 m_k$. It is
    positive semidefinite if the loss $ℓ$ is convex in the outputs, and equals the Fisher matrix for cross
    entropy and squared error. A product costs less than one with the Hessian.

    The mean of the outer products of the gradients of N losses (the empirical Fisher matrix) is the Gauss-Newton
    matrix of the N losses as outputs, under ``lambda losses: jnp.mean(losses**2) / 2``.

    Args:
        model: $m$, takes ``x``, returns outputs: an array, or a pytree of them.
        loss: $ℓ$, takes the outputs, returns a scalar; $H_ℓ$ is its Hessian.
        x: the point, a pytree of floating-point arrays.

    Raises:
        TypeError, ValueError: as for `hessian_operator`; a TypeError too if ``model`` contains a while loop, which has
            no reverse mode.

    >>> G = gauss_newton_operator(
    ...     lambda x: x**2, lambda y: jnp.sum(y**2) / 2, jnp.array([1.0, 3.0])
    ... )
    >>> G(jnp.ones(2))  # J = diag(2, 6)
    Array([ 4., 36.], dtype=float32)

    Source: Schraudolph 2002, Fast curvature matrix-vector products for second-order gradient descent
    (doi:10.1162/08997660260028683); Kunstner, Balles & Hennig 2019, Limitations of the empirical Fisher
    approximation for natural gradient descent (arXiv:1905.12558).
    """
    loss, x = scalar_valued(loss, name="loss", point="outputs"), as_point(x)
    outputs, push = _linearized(model, x)
    like, product = as_structs(x), _sandwich(push, linearize(jax.grad(loss), outputs)[1], x)
    return Partial(lambda linear, v: linear(at_point(like, v)[1]), product)


@checked
@full_precision()
def gauss_newton_product(
    model: Callable[[Tree], Any], loss: Callable[[Any], Float[Array, ""]], x: Tree, v: Tree
) -> Tree:
    r"""The product $Jᵀ H_ℓ J v$ with the Gauss-Newton matrix of `gauss_newton_operator`.

    >>> # a linear loss has no curvature
    >>> gauss_newton_product(jnp.sin, jnp.sum, jnp.zeros(2), jnp.ones(2))
    Array([0., 0.], dtype=float32)

    Source: Schraudolph 2002, Fast curvature matrix-vector products for second-order gradient descent
    (doi:10.1162/08997660260028683).
    """
    return gauss_newton_operator(model, loss, x)(v)


@checked
@full_precision()
def fisher_operator(
    key: Key[Array, ""],
    model: Callable[[Tree], Any],
    x: Tree,
    *,
    likelihood: Likelihood = "categorical",
    samples: PositiveInt = 1,
) -> Callable[[Tree], Tree]:
    r"""The Fisher matrix at ``x`` by Monte Carlo, as a function of $v$, with targets drawn from the model.

    .. math::

        F = (1/N) ∑_{i=1}^N E_{y ∼ p(· ∣ m_i(x))} [ ∇ log p(y ∣ m_i) ∇ log p(y ∣ m_i)ᵀ ]

    with the expectation replaced by the mean over ``samples`` draws of $y$ for each example. They are drawn once, when
    the operator is made: all its products are with the same symmetric matrix, whose expectation over ``key`` is $F$.

    Args:
        key: the key of the targets.
        model: $m$, takes ``x``, returns outputs of N examples.
        x: the point, a pytree of floating-point arrays.
        likelihood: ``"categorical"``: outputs ``(..., classes)`` are logits; ``"gaussian"``: outputs
            ``(..., features)`` are means, of variance 1; or a pair ``(sample, log_likelihood)`` of functions
            ``sample(key, outputs) -> y`` and ``log_likelihood(outputs, y)``, one number per example.
        samples: draws per example.

    Raises:
        TypeError: without a key; if ``x`` or the outputs are not floating-point.
        ValueError: for an unknown likelihood, ``samples`` < 1, or outputs without an axis of classes (or features).

    >>> # of two classes, for a pytree x of one array
    >>> logits = lambda x: jnp.stack([x, -x], -1)
    >>> F = fisher_operator(jax.random.key(0), logits, jnp.zeros(3))
    >>> # (2 p - 1 ± 1)^2 = 1 for each class that may be drawn; the mean over 3 examples
    >>> F(jnp.ones(3))
    Array([0.33333334, 0.33333334, 0.33333334], dtype=float32)

    Source: Martens 2020, New insights and perspectives on the natural gradient method (arXiv:1412.1193).
    """
    axis = _LAST_AXES.get(likelihood) if isinstance(likelihood, str) else None
    sample, log_likelihood = likelihood_functions(likelihood)
    x = as_point(x)
    outputs, push = _linearized(model, x)
    if axis is not None and not getattr(outputs, "shape", ()):
        repair = "omit the sum (or mean) over them, or pass likelihood as a pair (sample, log_likelihood)"
        require(False, f"model to return one array of outputs (..., {axis}), one row per example", outputs, repair)
    # Targets are data for the derivative: the gradient of the log-likelihood is taken at fixed y.
    y = lax.stop_gradient(jax.vmap(lambda key: sample(key, outputs))(jax.random.split(key, samples)))
    values, onward = linearize(lambda outputs: jax.vmap(lambda y: log_likelihood(outputs, y))(y), outputs)
    floating = hasattr(values, "dtype") and jnp.issubdtype(values.dtype, jnp.floating)
    expected = "the log-likelihood to return one floating-point array"
    require(floating, expected, values, "return one number per example", error=TypeError)
    number = values.size
    require(number > 0, "outputs of at least one example", values, "pass outputs with rows")
    # With J the Jacobian of the N values, whose rows are the gradients, the mean of outer products is J^T J / N.
    push = Partial(lambda push, onward, v: onward(push(v)), push, onward)
    like, product = as_structs(x), _sandwich(push, Partial(lambda y: y / number), x)
    return Partial(lambda linear, v: linear(at_point(like, v)[1]), product)


def likelihood_functions(likelihood: Any, *others: str) -> tuple[Callable, Callable]:
    """The functions ``sample(key, outputs)`` and ``log_likelihood(outputs, y)`` of a likelihood.

    ``others`` are further forms that the caller accepts, for the error.
    """
    if isinstance(likelihood, str) and likelihood in _LIKELIHOODS:
        return _LIKELIHOODS[likelihood]
    functions: Any = likelihood
    is_pair = isinstance(likelihood, tuple) and len(likelihood) == 2 and all(map(callable, likelihood))
    names = ", ".join([*map(repr, _LIKELIHOODS), *others])
    expected = f"likelihood to be {names} or a pair of functions (sample, log_likelihood)"
    near = nearest(str(likelihood), _LIKELIHOODS) or next(iter(_LIKELIHOODS))
    repair = f"write {near!r}, or define sample(key, outputs) and log_likelihood(outputs, y)"
    error = ValueError if isinstance(likelihood, str) else TypeError
    require(is_pair, expected, describe(likelihood), repair, error=error)
    repair = "write for instance lambda outputs, y: -jnp.sum((outputs - y) ** 2, -1) / 2"
    return explained_sample(functions[0]), explained(functions[1], 2, "a function log_likelihood(outputs, y)", repair)


def explained_sample(sample: Callable) -> Callable:
    """The function that draws targets, with a sentence where it does not take a key and outputs."""
    repair = "write for instance lambda key, outputs: jax.random.categorical(key, outputs)"
    return explained(sample, 2, "a function sample(key, outputs), which draws targets", repair)


def _categorical(logits, y):
    return jnp.take_along_axis(jax.nn.log_softmax(widen(logits), axis=-1), y[..., None], axis=-1)[..., 0]


def _gaussian(means, y):
    return -jnp.sum((widen(y) - widen(means)) ** 2, axis=-1) / 2


_LIKELIHOODS = {
    "categorical": (lambda key, logits: jax.random.categorical(key, widen(logits), axis=-1), _categorical),
    "gaussian": (lambda key, means: means + jax.random.normal(key, means.shape, means.dtype), _gaussian),
}
_LAST_AXES = {"categorical": "classes", "gaussian": "features"}


def _sandwich(push, middle, x) -> Callable:
    """The function J^T M J of a pushforward J at ``x`` and a function M of its values."""

    def product(push, middle, zeros, v):
        # J^T is the transpose of the same linear program: f is linearized once, and one set of residuals is stored.
        return jax.linear_transpose(push, zeros)(middle(push(v)))[0]

    # Zeros like x, so that the operator does not store x itself.
    return Partial(product, push, middle, jax.tree.map(jnp.zeros_like, x))


def _linearized(model, x):
    """The outputs of the model, and its pushforward, which must have a transpose."""
    repair = "close over other arguments, as in lambda x: model(x, ...)"
    with explained_call(model, 1, "model to be a function of x alone", repair):
        outputs, push = linearize(model, x)
    loops = has_forward_only_loop(jax.make_jaxpr(push)(as_structs(x)).eqns)
    expected = "model to be differentiable in reverse mode"
    repair = "use jax.lax.scan, or jax.lax.fori_loop with a fixed number of steps"
    require(not loops, expected, "a while loop, which has forward mode only", repair, error=TypeError)
    for leaf in jax.tree.leaves(outputs):
        floating = jnp.issubdtype(leaf.dtype, jnp.floating)
        require(floating, "model to return floating-point outputs", leaf, "return logits or means", error=TypeError)
    return outputs, push
