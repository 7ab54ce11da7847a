"""Momentum on a quadratic: the linear recursion, its spectral radius, and the limits of stability."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import Range, checked
from jaxblocks.checks.values import check_values
from jaxblocks.plotting.axes import PALETTE, axes_or_new
from jaxblocks.theory.convergence.scalars import Scalar, broadcast_scalars

__all__ = [
    "Method",
    "StabilityMap",
    "TunedMomentum",
    "iteration_matrix",
    "spectral_radius",
    "stability_map",
    "stable_step_size",
    "tuned_momentum",
]

Method = Literal["heavy ball", "nesterov", "average"]
"""The form of momentum: see `iteration_matrix`."""


@checked
def iteration_matrix(
    step_size: Scalar, curvature: Scalar, *, momentum: Scalar = 0.0, method: Method = "heavy ball"
) -> Float[Array, "... 2 2"]:
    r"""The matrix that maps $(x_t, x_{t-1})$ to $(x_{t+1}, x_t)$ on $(λ/2) x^2$.

    With $a = ηλ$ all three methods have the form $x_{t+1} = T x_t - D x_{t-1}$:

    - ``"heavy ball"``, $v' = m v - η g(x), x' = x + v'$: $T = 1 + m - a, D = m$;
    - ``"nesterov"``, the gradient taken at $x + m v$: $T = (1 + m)(1 - a), D = m (1 - a)$;
    - ``"average"``, $v' = m v + (1 - m) g(x), x' = x - η v'$: the heavy ball with $η (1 - m)$.

    In optax they are ``sgd(eta, momentum=m)``, ``sgd(eta, momentum=m, nesterov=True)`` and
    ``chain(ema(m, debias=False), scale(-eta))``. Arguments broadcast.

    >>> iteration_matrix(0.1, 1.0, momentum=0.5)
    Array([[ 1.4, -0.5],
           [ 1. ,  0. ]], dtype=float32)

    Source: Polyak 1964, Some methods of speeding up the convergence of iteration methods; Diehl 2023, section 1.5,
    which prints v_t in place of v_{t+1}: with the older velocity the recursion is stable only for eta lambda < 1 - m.
    """
    trace, determinant = _recursion(step_size, curvature, momentum, method)
    # The companion matrix of the recursion x_(t+1) = T x_t - D x_(t-1).
    rows = [[trace, -determinant], [jnp.ones_like(trace), jnp.zeros_like(trace)]]
    return jnp.stack([jnp.stack(row, axis=-1) for row in rows], axis=-2)


@checked
def spectral_radius(
    step_size: Scalar, curvature: Scalar, *, momentum: Scalar = 0.0, method: Method = "heavy ball"
) -> Float[Array, "..."]:
    r"""The asymptotic factor of the error per step on a quadratic: the method converges if it is below one.

    It is the largest $|z|$ with $z^2 - T z + D = 0$, over the eigenvalues z of `iteration_matrix`:
    $√D$ if they are complex, else $(|T| + √(T^2 - 4 D)) / 2$. Without momentum it is
    $|1 - ηλ|$. For several curvatures, the eigenvalues of a Hessian, the rate is the largest radius.

    Args:
        step_size, curvature, momentum: eta, lambda, m; numbers or arrays, which broadcast.
        method: ``"heavy ball"``, ``"nesterov"`` or ``"average"``.

    >>> spectral_radius(jnp.array([0.11, 3.7, 3.9]), 1.0, momentum=0.9).round(6)
    Array([0.948683, 0.948683, 1.316228], dtype=float32)

    Source: Polyak 1964; Diehl 2023, section 1.5.
    """
    trace, determinant = _recursion(step_size, curvature, momentum, method)
    # The discriminant of z^2 - T z + D; negative: a pair of complex roots of absolute value sqrt(D).
    inside = trace**2 - 4 * determinant
    real = inside >= 0
    # The inner `where` keeps the derivative finite: that of sqrt is infinite at 0, and infinity times 0 is NaN.
    root = jnp.sqrt(jnp.where(real & (inside > 0), inside, 1))
    # The root of larger absolute value has the sign of T.
    length = jnp.where(inside > 0, (jnp.abs(trace) + root) / 2, jnp.abs(trace) / 2)
    return jnp.where(real, length, jnp.sqrt(jnp.where(real, 1, determinant)))


@checked
def stable_step_size(
    curvature: Scalar, *, momentum: Scalar = 0.0, method: Method = "heavy ball"
) -> Float[Array, "..."]:
    r"""The step size below which `spectral_radius` is below one.

    .. math::

        heavy ball ((2 (1 + m)) / λ),
        nesterov ((2 (1 + m)) / ((1 + 2 m) λ)),
        average ((2 (1 + m)) / ((1 - m) λ))

    At the limit, -1 is an eigenvalue. Without momentum all limits are 2 / lambda. For several curvatures, the limit is
    that of the largest one.

    Raises:
        ValueError: unless 0 <= momentum < 1 and curvature > 0 (under ``jit`` nothing is raised).

    >>> methods = ("heavy ball", "nesterov", "average")
    >>> limit = lambda method: stable_step_size(1.0, momentum=0.9, method=method)
    >>> [round(float(limit(method)), 4) for method in methods]
    [3.8, 1.3571, 38.0]

    Source: Goh 2017, Why momentum really works, doi:10.23915/distill.00006; Diehl 2023, section 1.5.
    """
    curvature, m = broadcast_scalars(curvature, momentum)
    repair = "pass the largest eigenvalue of a Hessian, such as 1.0"
    check_values(curvature > 0, f"curvature > 0, got {{curvature}}; {repair}", curvature=curvature)
    repair = "pass for instance 0.9, as with momentum 1 no step size converges"
    check_values((m >= 0) & (m < 1), f"0 <= momentum < 1, got {{m}}; {repair}", m=m)
    # The limit is where z = -1 becomes a root, 1 + T + D = 0.
    share = {"heavy ball": 1.0, "nesterov": 1 + 2 * m, "average": 1 - m}[method]
    return 2 * (1 + m) / (share * curvature)


class TunedMomentum(NamedTuple):
    """The result of `tuned_momentum`.

    Attributes:
        step_size, momentum: the settings of the optimizer.
        rate: the spectral radius, the same at both ends of the spectrum.
    """

    step_size: float
    momentum: float
    rate: float


@checked
def tuned_momentum(
    smoothness: int | float, convexity: int | float, *, method: Method | Literal["gradient descent"] = "heavy ball"
) -> TunedMomentum:
    r"""The step size and momentum with the smallest spectral radius over all quadratics with eigenvalues in [mu, L].

    With $κ = L / μ$ the rate is $(κ - 1) / (κ + 1)$ for gradient descent, $(√κ - 1) / (√κ + 1)$ for the heavy ball (and
    its average form), and $1 - 2 / √(3 κ + 1)$ for Nesterov's method.

    >>> methods = ("gradient descent", "heavy ball", "nesterov")
    >>> [round(tuned_momentum(100.0, 1.0, method=method).rate, 4) for method in methods]
    [0.9802, 0.8182, 0.8847]

    Source: Lessard, Recht & Packard 2016, Analysis and design of optimization algorithms, proposition 1,
    arXiv:1408.3595.
    """
    got = f"convexity={convexity} and smoothness={smoothness}"
    repair = "pass a convexity > 0, as without strong convexity there is no linear rate"
    if 0 < convexity:
        exchanged = f"exchange them: tuned_momentum({convexity}, {smoothness})"
        repair = exchanged if smoothness > 0 else "pass a smoothness of at least the convexity"
        repair = repair if smoothness < math.inf else "pass the largest eigenvalue of a Hessian"
    require(0 < convexity <= smoothness < math.inf, "0 < convexity <= smoothness, a finite number", got, repair)
    kappa = smoothness / convexity  # the condition number
    if method == "gradient descent":
        return TunedMomentum(2 / (smoothness + convexity), 0.0, (kappa - 1) / (kappa + 1))
    if method == "nesterov":
        root = math.sqrt(3 * kappa + 1)
        return TunedMomentum(4 / (3 * smoothness + convexity), (root - 2) / (root + 2), 1 - 2 / root)
    # At both ends of the spectrum the discriminant is 0: all roots have the absolute value sqrt(m).
    rate = (math.sqrt(kappa) - 1) / (math.sqrt(kappa) + 1)
    step_size = (2 / (math.sqrt(smoothness) + math.sqrt(convexity))) ** 2
    # The average form with step eta / (1 - m) is the heavy ball with step eta.
    return TunedMomentum(step_size / (1 - rate**2) if method == "average" else step_size, rate**2, rate)


@dataclass(frozen=True, repr=False)
class StabilityMap:
    """The record of `stability_map`.

    Attributes:
        step_sizes: eta times lambda, ``(columns,)``.
        momenta: ``(rows,)``.
        radius: the spectral radius, ``(rows, columns)``.
        limit: the largest stable step at each momentum, ``(rows,)``.
        method: "heavy ball", "nesterov" or "average".
    """

    step_sizes: np.ndarray
    momenta: np.ndarray
    radius: np.ndarray
    limit: np.ndarray
    method: str

    def plot(self, ax=None):
        """Plot the radius in shades, white above one, and the limit of stability as a line; returns the axes.

        >>> stability_map().plot().get_xlabel()
        'step size times curvature'
        """
        ax = axes_or_new(ax)
        shown = np.where(self.radius < 1, self.radius, np.nan)
        image = ax.pcolormesh(self.step_sizes, self.momenta, shown, cmap="cividis", vmin=0, vmax=1, shading="nearest")
        ax.plot(self.limit, self.momenta, color=PALETTE[1], label="limit of stability")
        ax.set(xlabel="step size times curvature", ylabel="momentum", title=self.method)
        ax.set_xlim(self.step_sizes[0], self.step_sizes[-1])
        ax.figure.colorbar(image, ax=ax, label="spectral radius")
        ax.legend()
        return ax

    def __repr__(self):
        return (
            f"StabilityMap({self.method}, stable up to {self.limit[0]:.4g} without momentum and "
            f"{self.limit[-1]:.4g} with {self.momenta[-1]:.4g})"
        )


@checked
def stability_map(*, method: Method = "heavy ball", points: Annotated[int, Range(2)] = 120) -> StabilityMap:
    """The spectral radius over step sizes and momenta.

    Args:
        method: "heavy ball", "nesterov" or "average".
        points: the number of grid points along each axis.

    >>> stability_map()
    StabilityMap(heavy ball, stable up to 2 without momentum and 3.98 with 0.99)

    Source: Goh 2017, Why momentum really works, doi:10.23915/distill.00006 (the picture); Diehl 2023, section 1.5.
    """
    momenta = np.linspace(0, 0.99, points)
    limit = np.asarray(stable_step_size(1.0, momentum=momenta, method=method))
    # Averaged momentum has limits up to 2 (1 + m) / (1 - m), 398 at m = 0.99, on which the other rows would not be
    # visible.
    step_sizes = np.linspace(0, min(1.05 * float(limit.max()), 8.0), points)
    of_all = jax.jit(lambda eta, m: spectral_radius(eta, 1.0, momentum=m, method=method))
    radius = np.asarray(of_all(step_sizes[None], momenta[:, None]))
    return StabilityMap(step_sizes, momenta, radius, limit, method)


def _recursion(step_size, curvature, momentum, method):
    """T and D of x_{t+1} = T x_t - D x_{t-1}."""
    eta, curvature, m = broadcast_scalars(step_size, curvature, momentum)
    a = eta * curvature
    if method == "nesterov":
        # The gradient at the point x_t + m (x_t - x_(t-1)): both terms are multiplied by 1 - a.
        return (1 + m) * (1 - a), m * (1 - a)
    return 1 + m - (a * (1 - m) if method == "average" else a), m
