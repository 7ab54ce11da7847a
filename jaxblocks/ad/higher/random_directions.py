r"""Derivatives estimated from few random directions: gradients, Laplacians and biharmonic operators in many dimensions.

    n    the number of entries of the point
    m    the number of directions, drawn anew for every key
    H    the matrix of second derivatives of one output

Each estimate is unbiased, its variance falls as 1/m, and it takes m passes of forward mode whatever n is.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from jaxblocks.ad.higher.taylor import directional_derivatives
from jaxblocks.ad.programs.arguments import Tree, array_valued, as_point, scalar_valued
from jaxblocks.ad.programs.linearization import with_forward_mode
from jaxblocks.ad.vectors.raveled import as_vector, dot
from jaxblocks.backend.precision import widen
from jaxblocks.backend.varying import varying_like
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import PositiveInt, checked

__all__ = ["estimate_biharmonic", "estimate_laplacian", "forward_gradient"]


@checked
def forward_gradient(
    key: Key[Array, ""], f: Callable[[Tree], Float[Array, ""]], x: Tree, *, samples: PositiveInt = 1
) -> Tree:
    r"""An estimate of the gradient in forward mode: $(1/m) ∑_j (∇ f(x)ᵀ v_j) v_j$.

    The $v_j$ are vectors of random signs. The estimate is unbiased, and its squared error is large,

    .. math::

        E |ĝ - g|^2 = ((n - 1) / m) |g|^2,

    so it serves where reverse mode cannot be used or its memory is too large. A ``jax.custom_vjp`` has no rule for
    forward mode; it is differentiated by the pullback of its pullback.

    Args:
        key: the key of the directions.
        f: takes a pytree, returns a scalar.
        x: the point, a pytree of floating-point arrays.
        samples: $m$.

    Returns:
        The estimate, like ``x``.

    Raises:
        TypeError: if a leaf of ``x`` is not floating-point, or ``f`` does not return a floating-point array.
        ValueError: if ``f`` is not scalar-valued.

    >>> float(forward_gradient(jax.random.key(0), lambda x: x**2, 3.0))  # exact for n = 1
    6.0

    Source: Baydin, Pearlmutter, Syme, Wood & Torr 2022, Gradients without backpropagation (arXiv:2202.08587).
    """
    flat, unravel = as_vector(as_point(x))
    f = scalar_valued(f)
    of_vector = with_forward_mode(lambda vector: f(unravel(vector)), flat)
    signs = varying_like(jax.random.rademacher(key, (samples, flat.size), flat.dtype), flat)
    slopes = jax.vmap(lambda v: jax.jvp(of_vector, (flat,), (v,))[1])(signs)
    return unravel((dot(widen(slopes), widen(signs)) / samples).astype(flat.dtype))


@checked
def estimate_laplacian(
    key: Key[Array, ""],
    f: Callable[[Any], Float[Array, "..."]],
    x: PyTree,
    *,
    samples: PositiveInt | None = None,
) -> Float[Array, "..."]:
    r"""An estimate of the Laplacian of each output from m directional second derivatives, unbiased.

    It is $(n/m) ∑_{i ∈ S} H_{ii}$ over m of the n coordinates, drawn without replacement. The variance is
    $(n^2 / m) (1 - m/n) s^2$ with $s^2 = (1 / (n-1)) ∑_i (H_{ii} - H̄)^2$: zero where all second derivatives are
    equal, and for m = n. For a scalar f, `estimate_trace` of ``lambda v: directional_curvature(f, x, v)`` takes random
    signs, with the variance $(2/m) ∑_{i ≠ j} H_{ij}^2$.

    Args:
        key: the key of the directions.
        f: takes a pytree, returns one floating-point array, of any shape.
        x: the point, a pytree of floating-point arrays, n numbers in all.
        samples: $m$, at most n. By default 16, or n if that is less.

    Returns:
        The estimate, of the shape of ``f(x)``. For a loss that squares it, draw two estimates and multiply them: the
        square of one is biased by its variance.

    Raises:
        ValueError: for more coordinates than n, and for an empty ``x``.
        TypeError: if a leaf of ``x`` is not floating-point, or ``f`` does not return one floating-point array.

    >>> float(
    ...     estimate_laplacian(
    ...         jax.random.key(0), lambda x: jnp.sum(x**3), jnp.array([1.0, 2.0]), samples=2
    ...     )
    ... )
    18.0

    Source: Hu, Shukla, Karniadakis & Kawaguchi 2024, Tackling the curse of dimensionality with physics-informed neural
    networks (arXiv:2307.12306); Shi, Hu, Lin & Kawaguchi 2024, Stochastic Taylor derivative estimator
    (arXiv:2412.00088).
    """
    flat, unravel = as_vector(as_point(x))
    require(flat.size, "x to hold at least one number", "empty arrays", "pass the point of the derivative")
    samples = min(16, flat.size) if samples is None else samples
    repair = f"pass samples={flat.size}, or compute laplacian(f, x)"
    require(samples <= flat.size, f"at most {flat.size} coordinates, those of x", samples, repair)
    chosen = jax.random.choice(key, flat.size, (samples,), replace=False)
    return flat.size * _mean(f, flat, unravel, jax.nn.one_hot(chosen, flat.size, dtype=flat.dtype), 2)


@checked
def estimate_biharmonic(
    key: Key[Array, ""], f: Callable[[Any], Float[Array, "..."]], x: PyTree, *, samples: PositiveInt = 16
) -> Float[Array, "..."]:
    r"""An estimate of the biharmonic operator of each output from m directional fourth derivatives, unbiased.

    .. math::

        Δ^2 f(x) = E (1/3) (d^4 / (dt^4)) f(x + tv)
        for standard normal v

    The variance is that of one sample over m. Where the fourth derivative has no preferred direction, as that of
    $|x|^4$, it is $((8n + 24) / (n (n + 2) m)) (Δ^2 f)^2$.

    Args:
        key: the key of the directions.
        f: takes a pytree, returns one floating-point array, of any shape.
        x: the point, a pytree of floating-point arrays.
        samples: $m$.

    Returns:
        The estimate, of the shape of ``f(x)``. Errors are those of `directional_derivatives`.

    >>> estimate = estimate_biharmonic(jax.random.key(0), lambda x: x**4, 1.0, samples=4096)
    >>> bool(jnp.abs(estimate - 24) < 4)
    True

    Source: Shi, Hu, Lin & Kawaguchi 2024, Stochastic Taylor derivative estimator (arXiv:2412.00088).
    """
    flat, unravel = as_vector(as_point(x))
    return _mean(f, flat, unravel, jax.random.normal(key, (samples, flat.size), flat.dtype), 4) / 3


def _mean(f, flat, unravel, vectors, order):
    """The mean derivative of an order along some directions."""
    f = array_valued(f)
    along = lambda v: directional_derivatives(lambda x: f(unravel(x)), flat, v, order=order)[-1]
    return jnp.mean(jax.vmap(along)(vectors), axis=0)
