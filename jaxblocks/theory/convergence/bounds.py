"""Bounds on the distance of gradient descent from the minimum, at every step."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxblocks.checks.expectations import NonNegativeFloat, PositiveFloat, checked
from jaxblocks.theory.convergence.scalars import Scalar, at_most, broadcast_scalars

__all__ = ["convex_bound", "linear_bound"]


@checked
def convex_bound(
    step: Scalar, distance: Scalar, step_size: Scalar, *, smoothness: PositiveFloat | None = None
) -> Float[Array, "..."]:
    r"""An upper bound on $f(x_t) - f^*$ for gradient descent on a convex function.

    .. math::

        f(x_t) - f^* ≤ R^2 / (2 η t)
        for η ≤ 1/L.

    Proof: Smoothness gives the descent lemma, $f(x_{t+1}) ≤ f(x_t) - (η/2) ‖∇ f(x_t)‖^2$.
    With convexity, $f(x_t) ≤ f^* + ⟨∇ f(x_t), x_t - x^*⟩$, completing the square gives

    .. math::

        f(x_{t+1}) - f^* ≤ (1 / (2η)) ( ‖x_t - x^*‖^2 - ‖x_{t+1} - x^*‖^2 ).

    Summed over t steps, the right side telescopes to at most $R^2 / 2η$. The values decrease, so the last
    value is at most their mean.

    With ``smoothness`` L the function returns the best possible bound, for $η < 2/L$ the larger one of
    $R^2 / (4 η t + 2 / L)$, which `huber_objective` attains, and of $(L/2) R^2 (1 - η L)^{2t}$, which a quadratic
    attains. For $η ≤ 1/L$ the first is the larger one. From $2/L$ on the bound is infinite.

    Args:
        step: t = 0, 1, ..., one number or several.
        distance: R, the distance of the start from the minimizer.
        step_size: eta.
        smoothness: L.

    >>> convex_bound(jnp.array([1, 10]), 2**0.5, 0.099).round(4)
    Array([10.101 ,  1.0101], dtype=float32)

    Source: Drori & Teboulle 2014, theorem 3.1 for eta <= 1/L and conjecture 3.1 for eta < 2/L, arXiv:1206.3209; Kim
    2024, A proof of the exact convergence rate of gradient descent, which proves the conjecture, arXiv:2412.04427;
    Diehl 2023, Theorem 1.11 (which requires eta < 1/L; it also holds for eta = 1/L).
    """
    t, r, eta = broadcast_scalars(step, distance, step_size)
    if smoothness is None:
        # At step 0 the bound is infinite; the inner where keeps the division by 0 out of its derivative.
        return jnp.where(t > 0, r**2 / (2 * eta * jnp.where(t > 0, t, 1)), jnp.inf)
    h = eta * smoothness
    # At t = 0 both are L r^2 / 2, the bound of smoothness alone.
    sharp = r**2 / (4 * eta * t + 2 / smoothness)
    # Short steps do not overshoot; the power of 0, which has no derivative at t = 0, is kept out of theirs.
    short = at_most(h, 1)
    overshot = smoothness / 2 * r**2 * jnp.where(short, 1, h - 1) ** (2 * t)
    return jnp.where(short, sharp, jnp.where(h < 2, jnp.maximum(sharp, overshot), jnp.inf))


@checked
def linear_bound(
    step: Scalar, gap: Scalar, step_size: Scalar, *, smoothness: PositiveFloat, convexity: NonNegativeFloat
) -> Float[Array, "..."]:
    r"""An upper bound on $f(x_t) - f^*$ for gradient descent on a strongly convex function: a linear rate.

    .. math::

        f(x_t) - f^* ≤ ρ^{2t} ( f(x_0) - f^* ),
        ρ = max( |1 - ημ|, |1 - η L| ).

    A quadratic attains it along the direction of its smallest or its largest curvature. The step size 2 / (L + mu)
    minimizes rho; the minimum is $(κ - 1) / (κ + 1)$ with $κ = L / μ$. For $η ≥ 2 / L$ rho is at least 1.

    Args:
        step: t = 0, 1, ..., one number or several.
        gap: $f(x_0) - f^*$.
        step_size, smoothness, convexity: eta, L and mu.

    >>> linear_bound(jnp.array([0, 1, 2]), 1.0, 0.5, smoothness=1.0, convexity=1.0)
    Array([1.    , 0.25  , 0.0625], dtype=float32)

    Source: Taylor, Hendrickx & Glineur 2018, Exact worst-case convergence rates of the proximal gradient method,
    arXiv:1705.04398.
    """
    t, gap, eta = broadcast_scalars(step, gap, step_size)
    # The factor of the error along each eigenvector is |1 - eta lambda|, largest at one of the ends; the gap is
    # quadratic.
    rho = jnp.maximum(jnp.abs(1 - eta * convexity), jnp.abs(1 - eta * smoothness))
    # At step 0 the bound does not depend on rho; the power 0 of 0 has no derivative.
    return gap * jnp.where((t == 0) & (rho == 0), 1, rho) ** (2 * t)
