r"""Universal approximation as constructions: a net for every continuous function, with the bound that the proof gives.

g      the continuous function
N      pieces, equally wide
omega  the modulus of continuity of g: the most that g varies over a distance
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxblocks.checks import require_whole
from jaxblocks.core import Layer
from jaxblocks.theory.constructions import one_hidden_layer
from jaxblocks.theory.piecewise_linear import PiecewiseLinear, from_piecewise_linear

__all__ = [
    "RidgeApproximation",
    "approximate",
    "approximate_by_ridges",
    "interpolate",
    "modulus_of_continuity",
    "pieces_for",
]


def interpolate(points, values) -> PiecewiseLinear:
    """The piecewise linear function through points of the plane, constant before the first and after the last.

    With `from_piecewise_linear` a net that fits any n labels exactly with n + 1 units: capacity says nothing about
    what happens elsewhere.

    Raises:
        ValueError: where points do not increase, or there is not one value for each.

    >>> f = interpolate([0.0, 1.0, 3.0], [0.0, 2.0, 2.0])
    >>> f.slopes, f(np.array([0.5, 9.0]))
    (array([0., 2., 0., 0.]), array([1., 2.]))

    Source: Diehl 2023, Theorem 1.5 (the proof in one dimension); Krapac & Segvic (a model can overfit).
    """
    x, y = np.asarray(points, np.float64), np.asarray(values, np.float64)
    if x.ndim != 1 or x.shape != y.shape or not len(x):
        raise ValueError(f"interpolate expects a value for each point, but shapes {x.shape} and {y.shape} came.")
    for name, numbers in (("points", x), ("values", y)):
        if not np.isfinite(numbers).all():
            bad = np.flatnonzero(~np.isfinite(numbers))[0]
            raise ValueError(f"interpolate expects finite {name}, but {numbers[bad]} came at {bad}; leave that out.")
    if not (np.diff(x) > 0).all():
        raise ValueError("interpolate expects increasing points, but they are not; sort them and name each once.")
    return PiecewiseLinear(x, np.concatenate([[0.0], np.diff(y) / np.diff(x), [0.0]]), float(y[0]))


def approximate(
    g: Callable, pieces: int, *, interval: tuple[int | float, int | float] = (0.0, 1.0), param_dtype=None
) -> tuple[Layer, tuple]:
    r"""A net with one hidden layer of N + 2 units that approximates a continuous function uniformly on [a, b].

    It interpolates g at N + 1 equally spaced points, N = ``pieces``. On each piece the line is a convex combination of
    the values of g at both ends, so that

    .. math:: \sup_{[a,b]} |g - f| \le \omega_g\big((b - a) / N\big),

    and :math:`\le (b-a)^2 \max|g''| / (8 N^2)` where g has a second derivative. `pieces_for` finds N for an error.

    Args:
        g: takes an array, returns one of the same shape.
        pieces: N.
        interval: (a, b).
        param_dtype: float64 where JAX has it switched on, else float32.

    Returns:
        A pair ``(..., 1)`` to ``(..., 1)``, and its params; beyond the interval it is constant.

    >>> net, params = approximate(np.sqrt, 4)
    >>> net.apply(params, jnp.array([[0.0], [0.0625], [0.25]]))[:, 0]  # the worst is 1/8, at 1/16
    Array([0.   , 0.125, 0.5  ], dtype=float32)

    Source: Diehl 2023, Theorem 1.5 (arbitrary width), whose proof ends at :math:`2\varepsilon`; the convex combination
    makes it :math:`\varepsilon`.
    """
    pieces = require_whole("approximate", "pieces", pieces)
    points = np.linspace(*_interval("approximate", interval), pieces + 1)
    return from_piecewise_linear(*interpolate(points, _at("approximate", g, points)), param_dtype=param_dtype)


def modulus_of_continuity(
    g: Callable, delta: int | float, *, interval: tuple[int | float, int | float] = (0.0, 1.0), samples: int = 10_000
) -> float:
    r"""The modulus of continuity :math:`\omega_g(\delta) = \sup_{|x - y| \le \delta} |g(x) - g(y)|`, on a grid.

    It tends to 0 with :math:`\delta` for every continuous g on [a, b] (Heine-Cantor). The supremum is taken over
    a grid of ``samples`` equal steps, so it is one from below, off by at most twice the modulus of a step.

    Raises:
        ValueError: for a ``delta`` smaller than a step of the grid.

    >>> round(modulus_of_continuity(np.sqrt, 0.25), 6)
    0.5

    Source: Diehl 2023, proof of Theorem 1.5.
    """
    a, b = _interval("modulus_of_continuity", interval)
    if not delta > 0:
        raise ValueError(f"modulus_of_continuity expects a distance delta > 0, but {delta} came.")
    steps = math.floor(delta / (b - a) * samples * (1 + 1e-12))
    if steps < 1:
        raise ValueError(
            f"modulus_of_continuity expects delta of at least a step of its grid, {(b - a) / samples:.3g}, but {delta} "
            "came; pass more samples."
        )
    return _modulus(_at("modulus_of_continuity", g, np.linspace(a, b, samples + 1)), steps)


def pieces_for(
    g: Callable,
    error: int | float,
    *,
    interval: tuple[int | float, int | float] = (0.0, 1.0),
    curvature: int | float | None = None,
    samples: int = 10_000,
) -> int:
    r"""How many pieces make `approximate` stay within ``error``: the smallest N whose bound is below it.

    N is the smallest number with :math:`\omega_g((b-a)/N) \le \varepsilon`, :math:`\varepsilon` = ``error``.

    With ``directional_curvature``, a bound on :math:`|g''|`, it is :math:`N = \lceil (b-a) \sqrt{\max|g''| / (8\,\varepsilon)}
    \rceil`, far fewer for a smooth function. The modulus is taken on the grid of `modulus_of_continuity`,
    distances rounded up to its steps.

    Raises:
        ValueError: where g varies by more than ``error`` in one step of the grid.

    >>> pieces_for(np.exp, 0.01, curvature=np.e), pieces_for(np.exp, 0.01)
    (6, 278)

    Source: Diehl 2023, proof of Theorem 1.5.
    """
    a, b = _interval("pieces_for", interval)
    if not error > 0:
        raise ValueError(f"pieces_for expects error > 0, but {error} came.")
    if curvature is not None:
        if not 0 <= curvature < math.inf:
            raise ValueError(
                f"pieces_for expects a finite curvature >= 0, but {curvature} came; pass a bound on the size of g''."
            )
        return max(1, math.ceil((b - a) * math.sqrt(curvature / (8 * error)) * (1 - 1e-12)))
    values = _at("pieces_for", g, np.linspace(a, b, samples + 1))
    enough = lambda pieces: _modulus(values, -(-samples // pieces)) <= error
    if not enough(samples):
        raise ValueError(
            f"pieces_for expects a continuous function, but g varies by {_modulus(values, 1):.3g} in a step of its "
            f"grid, more than the error of {error}; pass more samples, or a larger error."
        )
    low, high = 0, samples  # enough(high) holds, enough(low) does not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


class RidgeApproximation(NamedTuple):
    r"""What `approximate_by_ridges` returns.

    Attributes:
        layer, params: the net.
        weights: :math:`\gamma`, one for each direction.
        fit_error: :math:`\max_x |g(x) - \sum_i \gamma_i e^{\langle\nu_i, x\rangle}|` over the points.
        bound: of the error at the points: the fit error plus what the pieces may add.
    """

    layer: Layer
    params: Any
    weights: np.ndarray
    fit_error: int | float
    bound: float


def approximate_by_ridges(
    g: Callable, directions, points, error: int | float, *, rcond: int | float = 1e-10, param_dtype=None
) -> RidgeApproximation:
    r"""A net with one hidden layer for a continuous function of several variables, built as the theorem is proved.

    Sums of exponentials :math:`\sum_i \gamma_i e^{\langle \nu_i, x\rangle}` contain the constants, separate points and
    are closed under products, :math:`e^{\langle\nu, x\rangle} e^{\langle\mu, x\rangle} = e^{\langle\nu + \mu,
    x\rangle}`, so they are dense (Stone-Weierstrass). First the weights are fitted by least squares; then each
    of the k exponentials, a function of the single number :math:`\langle\nu_i, x\rangle`, is replaced by its
    piecewise linear interpolant, fine enough for :math:`|\gamma_i| \sup|e^t - f_i(t)| \le \varepsilon / k`:

    .. math:: |g(x) - f(x)| \le \text{fit error at } x + \varepsilon,
        \qquad f(x) = \sum_i \Big[\sum_\ell c_{i\ell}\, (\langle\nu_i, x\rangle - t_{i\ell})_+ + d_i\Big].

    Args:
        g: takes ``(points, inputs)``, returns ``(points,)``.
        directions: :math:`\nu`, ``(k, inputs)``; include 0 for the constant.
        points: of the compact set, ``(points, inputs)``; the second part of the bound holds on their convex hull.
        error: :math:`\varepsilon`, what the pieces may add.
        rcond: of the least squares; a larger one gives smaller weights, hence fewer units.
        param_dtype: float64 where JAX has it switched on, else float32.

    >>> grid = np.stack(np.meshgrid(*2 * [np.linspace(-1, 1, 9)]), -1).reshape(-1, 2)
    >>> directions = [[i, j] for i in (-1, 0, 1) for j in (-1, 0, 1)]
    >>> found = approximate_by_ridges(lambda x: x[:, 0] * x[:, 1], directions, grid, 0.1)
    >>> round(found.fit_error, 3), round(found.bound, 3), found.params[0]["kernel"].shape
    (0.08, 0.18, (2, 72))

    Source: Diehl 2023, Theorem 1.5, several variables; the display of the proof writes a plain t where
    :math:`\langle\nu_i, x\rangle` is meant.
    """
    where = "approximate_by_ridges"
    nu, x = np.asarray(directions, np.float64), np.asarray(points, np.float64)
    if nu.ndim != 2 or x.ndim != 2 or nu.shape[1] != x.shape[1]:
        raise ValueError(
            f"{where} expects directions (k, inputs) and points (n, inputs), but shapes {nu.shape} and {x.shape} came."
        )
    if not error > 0:
        raise ValueError(f"{where} expects error > 0, but {error} came.")
    t = x @ nu.T  # (points, k)
    target = _at(where, g, x, x.shape[:1])
    weights = np.linalg.lstsq(np.exp(t), target, rcond=rcond)[0]
    fit_error = float(np.max(abs(np.exp(t) @ weights - target)))
    kernel, bias, out, constant = [], [], [], 0.0
    for direction, weight, low, high in zip(nu, weights, t.min(0), t.max(0), strict=True):
        pieces = (
            pieces_for(np.exp, error / len(nu), interval=(0, high - low), curvature=abs(weight) * np.exp(high))
            if (high > low)
            else 0
        )
        knots = np.linspace(low, high, pieces + 1)
        constant += weight * np.exp(low)
        if pieces:
            slopes = np.diff(np.exp(knots)) / np.diff(knots)
            kernel += [direction] * pieces
            bias += [*-knots[:-1]]
            out += [*weight * np.diff(slopes, prepend=0.0)]
    if not kernel:
        raise ValueError(f"{where} expects a direction other than 0, but there is none; add some.")
    net, params = one_hidden_layer(np.transpose(kernel), bias, out, constant, param_dtype=param_dtype)
    return RidgeApproximation(net, params, weights, fit_error, fit_error + error)


def _interval(where, interval):
    try:
        a, b = interval
    except (TypeError, ValueError):
        raise ValueError(f"{where} expects an interval (a, b), two numbers, but {interval!r} came.") from None
    if not (a < b and np.isfinite([a, b]).all()):
        raise ValueError(f"{where} expects an interval (a, b) with finite a < b, but {interval} came.")
    return float(a), float(b)


def _at(where, g, x, shape=None):
    """The values of g in float64, whether it is written in NumPy or in JAX."""
    with jax.enable_x64(True), np.errstate(all="ignore"):  # what is not finite is told below
        y = np.asarray(g(x), np.float64)
    shape = x.shape if shape is None else shape
    if y.shape != shape:
        raise ValueError(
            f"{where} expects g to return an array of shape {shape} here, but one of shape {y.shape} came; write g for "
            "arrays."
        )
    if not np.isfinite(y).all():
        i = np.flatnonzero(~np.isfinite(y))[0]
        raise ValueError(
            f"{where} expects a g that is finite throughout, but it is {y[i]} at {x[i]}; stay away from there."
        )
    return y


def _modulus(values, steps):
    """The largest difference of entries that are at most so many steps apart: of maximum and minimum of a window."""
    high = low = values
    span = 1  # entries that each maximum looks at; windows double
    while span < min(steps + 1, len(values)):
        further = min(span, min(steps + 1, len(values)) - span)
        high, low = np.maximum(high[:-further], high[further:]), np.minimum(low[:-further], low[further:])
        span += further
    return float(np.max(high - low))
