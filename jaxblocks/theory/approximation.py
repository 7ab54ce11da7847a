r"""Universal approximation by constructions: a net for every continuous function, with the bound of the proof.

g      the continuous function
N      pieces, equally wide
omega  the modulus of continuity of g: the largest change of g over a distance
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.typing import DTypeLike

from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import PositiveInt, checked
from jaxblocks.core.pairs import Layer
from jaxblocks.theory.arrays import ArrayLike, real_array
from jaxblocks.theory.explicit_weights import one_hidden_layer
from jaxblocks.theory.piecewise_linear import PiecewiseLinear, from_piecewise_linear

__all__ = [
    "RidgeApproximation",
    "approximate",
    "approximate_by_ridges",
    "interpolate",
    "modulus_of_continuity",
    "pieces_for",
]


def interpolate(points: ArrayLike, values: ArrayLike) -> PiecewiseLinear:
    """The piecewise linear function through points of the plane, constant before the first and after the last.

    With `from_piecewise_linear` it gives a net of n + 1 units that fits any n labels exactly, which implies nothing
    about its values elsewhere.

    Args:
        points: inputs, increasing, (n,).
        values: outputs, (n,).

    Raises:
        ValueError: if the points are not increasing, or the numbers of points and values differ.

    >>> f = interpolate([0.0, 1.0, 3.0], [0.0, 2.0, 2.0])
    >>> f.slopes, f(np.array([0.5, 9.0]))
    (array([0., 2., 0., 0.]), array([1., 2.]))

    Source: DeVore & Lorentz 1993, Constructive approximation; Diehl 2023, Theorem 1.5 (the proof in one dimension);
    Krapac & Segvic (a model can overfit).
    """
    x, y = real_array("points", points), real_array("values", values)
    fits = x.ndim == 1 and x.shape == y.shape and len(x) > 0
    repair = f"pass one value for each of the {max(x.size, 1)} points"
    require(fits, "a value for each point", f"shapes {x.shape} and {y.shape}", repair)
    for name, numbers in (("points", x), ("values", y)):
        if not np.isfinite(numbers).all():
            bad = np.flatnonzero(~np.isfinite(numbers))[0]
            require(False, f"finite {name}", f"{numbers[bad]} at index {bad}", "leave that point out")
    increasing = bool((np.diff(x) > 0).all())
    require(increasing, "increasing points", "points in another order", "sort them and list each once")
    # Slope 0 before the first and after the last point.
    return PiecewiseLinear(x, np.concatenate([[0.0], np.diff(y) / np.diff(x), [0.0]]), float(y[0]))


@checked
def approximate(
    g: Callable,
    pieces: PositiveInt,
    *,
    interval: tuple[int | float, int | float] = (0.0, 1.0),
    param_dtype: DTypeLike | None = None,
) -> tuple[Layer, tuple]:
    r"""A net with one hidden layer of N + 2 units that approximates a continuous function uniformly on [a, b].

    The net interpolates g at N + 1 equally spaced points, N = ``pieces``. On each piece it is a convex combination of
    the values of g at both ends, so that

    .. math::

        sup_{[a,b]} |g - f| ≤ ω_g((b - a) / N),

    and $≤ (b-a)^2 max |g''| / (8 N^2)$ where g has a second derivative. `pieces_for` computes N for an error.

    Args:
        g: a function of an array that returns an array of the same shape.
        pieces: N.
        interval: (a, b).
        param_dtype: by default float64 where JAX has it enabled, else float32.

    Returns:
        A pair ``(..., 1)`` to ``(..., 1)``, constant outside of the interval, and its params.

    >>> net, params = approximate(np.sqrt, 4)
    >>> x = jnp.array([[0.0], [0.0625], [0.25]])
    >>> net.apply(params, x)[:, 0]  # the largest error is 1/8, at 1/16
    Array([0.   , 0.125, 0.5  ], dtype=float32)

    Source: Diehl 2023, Theorem 1.5 (arbitrary width), whose proof gives $2ε$; the convex combination gives $ε$.
    """
    points = np.linspace(*_interval(interval), pieces + 1)
    return from_piecewise_linear(*interpolate(points, _values_of(g, points)), param_dtype=param_dtype)


@checked
def modulus_of_continuity(
    g: Callable,
    delta: int | float,
    *,
    interval: tuple[int | float, int | float] = (0.0, 1.0),
    samples: PositiveInt = 10_000,
) -> float:
    r"""The modulus of continuity $ω_g(δ) = sup_{|x - y| ≤ δ} |g(x) - g(y)|$, on a grid.

    It tends to 0 with $δ$ for every continuous g on [a, b] (Heine-Cantor). The supremum is taken over
    a grid of ``samples`` equal steps; it is smaller than the exact supremum by at most twice the modulus of a step.

    Args:
        g: a function of an array that returns an array of the same shape.
        delta: $δ$.
        interval: (a, b).
        samples: the number of steps of the grid.

    Raises:
        ValueError: for a ``delta`` smaller than a step of the grid.

    >>> round(modulus_of_continuity(np.sqrt, 0.25), 6)
    0.5

    Source: DeVore & Lorentz 1993, Constructive approximation; Diehl 2023, proof of Theorem 1.5.
    """
    a, b = _interval(interval)
    require(delta > 0, "a distance delta > 0", delta, f"pass for instance delta={(b - a) / 10:g}")
    # 1e-12: a quotient that is an integer up to rounding counts as one.
    steps = math.floor(min(delta / (b - a), 1) * samples * (1 + 1e-12))
    step = f"{(b - a) / samples:.3g}"
    require(steps >= 1, f"delta of at least a step of its grid, {step}", delta, "pass more samples")
    return _modulus(_values_of(g, np.linspace(a, b, samples + 1)), steps)


@checked
def pieces_for(
    g: Callable,
    error: int | float,
    *,
    interval: tuple[int | float, int | float] = (0.0, 1.0),
    curvature: int | float | None = None,
    samples: PositiveInt = 10_000,
) -> int:
    r"""The smallest number of pieces for which the error bound of `approximate` is at most ``error``.

    N is the smallest number with $ω_g((b-a)/N) ≤ ε$, $ε$ = ``error``.

    With ``curvature``, a bound on $|g''|$, it is $N = ⌈(b-a) √(max |g''| / (8 ε))⌉$, far smaller for a smooth
    function. The modulus is computed on the grid of `modulus_of_continuity`, with distances rounded up to its steps.

    Args:
        g: a function of an array that returns an array of the same shape.
        error: $ε$.
        interval: (a, b).
        curvature: a bound on $|g''|$, if known.
        samples: the number of steps of the grid.

    Raises:
        ValueError: if g varies by more than ``error`` in one step of the grid.

    >>> pieces_for(np.exp, 0.01, curvature=np.e), pieces_for(np.exp, 0.01)
    (6, 278)

    Source: DeVore & Lorentz 1993, Constructive approximation; Diehl 2023, proof of Theorem 1.5.
    """
    a, b = _interval(interval)
    require(error > 0, "error > 0", error, "pass for instance error=0.1")
    if curvature is not None:
        require(0 <= curvature < math.inf, "a finite curvature >= 0", curvature, "pass a bound on the size of g''")
        # The error of interpolation on a piece of width h is at most h^2 / 8 times the curvature.
        return max(1, math.ceil((b - a) * math.sqrt(curvature / (8 * error)) * (1 - 1e-12)))
    values = _values_of(g, np.linspace(a, b, samples + 1))
    # 1e-12: a bound that is met up to rounding is met.
    enough = lambda pieces: _modulus(values, -(-samples // pieces)) <= error * (1 + 1e-12)
    if not enough(samples):
        got = f"g that varies by {_modulus(values, 1):.3g} in a step of its grid, more than the error of {error}"
        require(False, "a continuous function", got, "pass more samples, or a larger error")
    # Bisection, since the bound does not increase with the number of pieces.
    low, high = 0, samples  # enough(high) holds, enough(low) does not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


class RidgeApproximation(NamedTuple):
    r"""The result of `approximate_by_ridges`.

    Attributes:
        layer, params: the net.
        weights: $γ$, one for each direction.
        fit_error: $max_x |g(x) - ∑_i γ_i e^{⟨ν_i, x⟩}|$ over the points.
        bound: a bound on the error at the points: the fit error plus the error of the pieces.
    """

    layer: Layer
    params: Any
    weights: np.ndarray
    fit_error: int | float
    bound: float


@checked
def approximate_by_ridges(
    g: Callable,
    directions: ArrayLike,
    points: ArrayLike,
    error: int | float,
    *,
    rcond: int | float = 1e-10,
    param_dtype: DTypeLike | None = None,
) -> RidgeApproximation:
    r"""A net with one hidden layer that approximates a continuous function of several variables, as in the proof.

    Sums of exponentials $∑_i γ_i e^{⟨ν_i, x⟩}$ contain the constants, separate points and are closed under products,
    $e^{⟨ν, x⟩} e^{⟨μ, x⟩} = e^{⟨ν + μ, x⟩}$, so they are dense (Stone-Weierstrass). First the weights are fitted by
    least squares; then each of the k exponentials, a function of the scalar $⟨ν_i, x⟩$, is replaced by its piecewise
    linear interpolant, with enough pieces for $|γ_i| sup |e^t - f_i(t)| ≤ ε / k$:

    .. math::

        |g(x) - f(x)| ≤ fit error at x + ε,
        f(x) = ∑_i [∑_ℓ c_{iℓ} (⟨ν_i, x⟩ - t_{iℓ})_+ + d_i].

    Args:
        g: a function from ``(points, inputs)`` to ``(points,)``.
        directions: $ν$, ``(k, inputs)``; include 0 for the constant.
        points: points of the compact set, ``(points, inputs)``; the second part of the bound holds on their convex
            hull.
        error: $ε$, the error of the pieces.
        rcond: the cutoff of the least squares; a larger one gives smaller weights, hence fewer units.
        param_dtype: by default float64 where JAX has it enabled, else float32.

    >>> grid = np.stack(np.meshgrid(*2 * [np.linspace(-1, 1, 9)]), -1).reshape(-1, 2)
    >>> directions = [[i, j] for i in (-1, 0, 1) for j in (-1, 0, 1)]
    >>> found = approximate_by_ridges(lambda x: x[:, 0] * x[:, 1], directions, grid, 0.1)
    >>> round(found.fit_error, 3), round(found.bound, 3), found.params[0]["kernel"].shape
    (0.08, 0.18, (2, 72))

    Source: Diehl 2023, Theorem 1.5, several variables; the printed proof has t in place of $⟨ν_i, x⟩$.
    """
    nu, x = real_array("directions", directions), real_array("points", points)
    fits = nu.ndim == 2 and x.ndim == 2 and nu.shape[1] == x.shape[1] and x.size > 0
    repair = "for one input write np.reshape(directions, (-1, 1)) and np.reshape(points, (-1, 1))"
    if nu.ndim == x.ndim == 2:
        repair = f"pass directions of {x.shape[1]} entries, such as np.eye({x.shape[1]})"
    require(fits, "directions (k, inputs) and points (n, inputs)", f"shapes {nu.shape} and {x.shape}", repair)
    require(error > 0, "error > 0", error, "pass for instance error=0.1")
    t = x @ nu.T  # (points, k)
    with np.errstate(over="ignore"):
        finite = bool(np.isfinite(np.exp(t)).all())
    got = f"products from {t.min(initial=0.0):.3g} to {t.max(initial=0.0):.3g}"
    require(finite, "products of directions and points with finite exponentials", got, "divide the directions")
    target = _values_of(g, x, x.shape[:1])
    # Step 1: sums of exponentials of <nu, x> are dense (Stone-Weierstrass); the best one on the points.
    weights = np.linalg.lstsq(np.exp(t), target, rcond=rcond)[0]
    fit_error = float(np.max(abs(np.exp(t) @ weights - target)))
    kernel, bias, out, constant = [], [], [], 0.0
    # Step 2: each exponential, a function of one variable, by a piecewise linear one with error / k.
    for direction, weight, low, high in zip(nu, weights, t.min(0), t.max(0), strict=True):
        constant += weight * np.exp(low)
        if high > low:
            curvature = float(abs(weight) * np.exp(high))
            pieces = pieces_for(np.exp, error / len(nu), interval=(0.0, float(high - low)), curvature=curvature)
            knots = np.linspace(low, high, pieces + 1)
            slopes = np.diff(np.exp(knots)) / np.diff(knots)
            # The unit relu(<nu, x> - t_i) begins at t_i and changes the slope there.
            kernel += [direction] * pieces
            bias += [*-knots[:-1]]
            out += [*weight * np.diff(slopes, prepend=0.0)]
    require(len(kernel) > 0, "a direction other than 0", "none", "add some")
    net, params = one_hidden_layer(np.transpose(kernel), bias, out, constant, param_dtype=param_dtype)
    return RidgeApproximation(net, params, weights, fit_error, fit_error + error)


def _interval(interval):
    require(np.shape(interval) == (2,), "an interval (a, b), two numbers", interval, "pass for instance (0.0, 1.0)")
    (a, b), finite = interval, bool(np.isfinite(interval).all())
    repair = f"pass {(b, a)}" if finite and a > b else "pass for instance (0.0, 1.0)"
    require(finite and a < b, "an interval (a, b) with finite a < b", interval, repair)
    return float(a), float(b)


def _values_of(g, x, shape=None):
    """The values of g in float64, whether it is written in NumPy or in JAX."""
    with jax.enable_x64(True), np.errstate(all="ignore"):  # values that are not finite are rejected below
        y = np.asarray(g(x), np.float64)
    shape = x.shape if shape is None else shape
    require(y.shape == shape, f"g to return an array of shape {shape} here", y, "write g for arrays")
    if not np.isfinite(y).all():
        i = np.flatnonzero(~np.isfinite(y))[0]
        require(
            False, "g to be finite on the whole interval", f"{y[i]} at {x[i]}", "take an interval where g is finite"
        )
    return y


def _modulus(values, steps):
    """The largest difference of entries at most ``steps`` apart: maximum minus minimum over each window."""
    high = low = values
    span = 1  # the length of the windows, which doubles
    # The maximum of a window twice as long is that of two windows of half its length, which may overlap.
    while span < min(steps + 1, len(values)):
        further = min(span, min(steps + 1, len(values)) - span)
        high, low = np.maximum(high[:-further], high[further:]), np.minimum(low[:-further], low[further:])
        span += further
    return float(np.max(high - low))
