r"""The logarithm of a determinant by stochastic Lanczos quadrature, with derivatives.

A       a symmetric positive definite operator v -> Av on pytrees like ``like``, with n numbers in all
u       a random vector of length 1, so that log det A = n E[u' log(A) u]
dA      the derivative of the operator; that of log det A is tr(A^-1 dA) = n E[(A^-1 u)' dA u]
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Key, PyTree

from jaxblocks.ad.curvature.krylov import quadratures, steps_for
from jaxblocks.ad.curvature.linear_solves import solve
from jaxblocks.ad.curvature.trace_estimation import TraceEstimate, mean_and_error
from jaxblocks.ad.vectors.raveled import dot, raveled
from jaxblocks.backend.varying import as_structs, inside_shard_map, varying_like
from jaxblocks.checks.expectations import PositiveInt, checked
from jaxblocks.checks.values import check_values

__all__ = ["log_determinant"]


@checked
def log_determinant(
    key: Key[Array, ""],
    operator: Callable[[PyTree], PyTree],
    like: PyTree,
    *,
    steps: PositiveInt | None = None,
    samples: PositiveInt = 8,
    chunk_size: PositiveInt = 1,
) -> TraceEstimate:
    r"""The logarithm of the determinant, $log det A = tr log A$, differentiable in the operator.

    Each random vector $u$ gives the sample $n uᵀ log(A) u$ by Gauss quadrature from the Lanczos
    recurrence (`spectral_density`). Its derivative is not that of the recurrence: it is
    $n (A^{-1} u)ᵀ dA u$ with $A^{-1} u$ by conjugate gradients, an unbiased estimate of
    $tr(A^{-1} dA)$ up to the error of the solution. Both modes and higher orders work. Second
    derivatives are taken inside of loops and branches (``lax.scan``, ``lax.cond``) around this function, not outside of
    them: there JAX differentiates the value of a ``jax.custom_jvp`` twice and not its rule, and the result is wrong.

    Args:
        key, like: as for `lanczos`.
        operator: symmetric positive definite; the value is differentiable with respect to the arrays that it holds.
        steps: k, at most n, products for each vector; the derivative takes at most 2 k more. By default 30, or n if
            that is less.
        samples: the number of random vectors, on which the standard error depends.
        chunk_size: the number of vectors processed at once.

    Returns:
        A `TraceEstimate`, whose ``value`` is the estimate.

    Raises:
        ValueError: for ``steps`` above n, and an operator that is not symmetric positive definite. Under ``jit`` the
            value is NaN instead.

    >>> log_det = lambda a: (
    ...     log_determinant(jax.random.key(0), lambda v: a * v, jnp.zeros(5), steps=1).value
    ... )
    >>> value, slope = jax.jit(jax.value_and_grad(log_det))(np.exp(2.0))  # 5 log a, 5 / a
    >>> print(f"{value:.3f} {slope * np.exp(2.0):.3f}")
    10.000 5.000

    Source: Ubaru, Chen & Saad 2017, Fast estimation of tr f(A) via stochastic Lanczos quadrature; Gardner et al. 2018,
    GPyTorch (the derivative; arXiv:1809.11165).
    """
    space = raveled(operator, like)
    steps = steps_for(space.n, steps)
    like_v = jnp.zeros(space.n, space.dtype)
    if inside_shard_map():  # a jaxpr takes vectors of one type: those vary over the devices over which a product does
        like_v = varying_like(like_v, jax.eval_shape(space.apply, like_v))
    converted, arrays = jax.closure_convert(space.apply, like_v)
    of_v = as_structs(like_v)  # the rule of the derivative keeps no array
    apply = lambda v, *arrays: converted(varying_like(v, of_v), *arrays)
    fixed = lax.stop_gradient(arrays)
    at_point = space._replace(operator=lambda v: space.to_tree(apply(space.to_vector(v), *fixed)))
    nodes, weights, starts = quadratures(key, at_point, steps, samples, chunk_size)
    smallest = jnp.min(nodes)
    check_values(
        ~(smallest <= 0), "a positive definite operator, got the curvature v'Av = {v}; add a damping", v=smallest
    )
    values = space.n * jnp.sum(weights * jnp.log(jnp.where(nodes > 0, nodes, jnp.nan)), axis=1)
    values = jax.vmap(functools.partial(_with_derivative, apply, 2 * steps), (0, 0, None))(values, starts, arrays)
    return TraceEstimate(*mean_and_error(values), "lanczos quadrature", samples * steps)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _with_derivative(apply, max_steps, sample, u, arrays):
    """The sample n u' log(A) u, with the derivative n (A^-1 u)' dA u where ``apply(v, *arrays)`` is Av."""
    return sample


@_with_derivative.defjvp
def _derivative(apply, max_steps, primals, tangents):
    (sample, u, arrays), (_, _, changes) = primals, tangents
    tolerance = 10 * float(jnp.finfo(u.dtype).eps)
    w = solve(lambda v: apply(v, *arrays), u, tolerance=tolerance, max_steps=max_steps).x
    change = jax.jvp(lambda *arrays: apply(u, *arrays), tuple(arrays), tuple(changes))[1]
    return _with_derivative(apply, max_steps, sample, u, arrays), u.size * dot(w, change)
