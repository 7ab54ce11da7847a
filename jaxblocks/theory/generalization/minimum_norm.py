"""The implicit bias of gradient descent on least squares: the solution nearest to its start."""

from dataclasses import dataclass

import numpy as np

from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import PositiveInt, checked
from jaxblocks.theory.arrays import real_array
from jaxblocks.theory.generalization.data import Numbers, rows

__all__ = ["MinNormBias", "min_norm_bias"]


@dataclass(frozen=True, repr=False)
class MinNormBias:
    """The record of `min_norm_bias`.

    Attributes:
        start: the initial weights, ``(features,)``.
        weights: the final weights.
        closed_form: the limit by the formula.
        least_norm: the solution of minimum norm, pinv(X) y.
        deviation: the largest difference of ``weights`` from ``closed_form``.
        error: the mean squared error of ``weights``.
        steps: the number of steps.
    """

    start: np.ndarray
    weights: np.ndarray
    closed_form: np.ndarray
    least_norm: np.ndarray
    deviation: float
    error: float
    steps: int

    def __repr__(self):
        norm, least = (float(np.linalg.norm(w)) for w in (self.weights, self.least_norm))
        return (
            f"MinNormBias(norm {norm:.6g}, least possible {least:.6g}, "
            f"{self.deviation:.2g} from the closed form, error {self.error:.2g}, {self.steps} steps)"
        )


@checked
def min_norm_bias(x: Numbers, y: Numbers, start: Numbers | None = None, *, steps: PositiveInt = 100_000) -> MinNormBias:
    r"""Gradient descent on least squares, which converges to the exact fit nearest to its start.

    Gradients of the squared error are in the span of the rows of X, so the component of the start orthogonal to this
    span does not change:

    .. math::

        w_∞ = X^+ y + (I - X^+ X) w_0.

    From zero the limit is the solution of minimum norm. All interpolants have the same loss; the algorithm selects one.

    Args:
        x: ``(n, features)``, usually with more features than examples.
        y: ``(n,)``.
        start: w_0, zero by default.
        steps: the maximal number of steps; the run stops when the gradient is zero up to rounding.

    >>> x, y = np.array([[1.0, 2.0]]), np.array([5.0])
    >>> min_norm_bias(x, y).weights.round(6)
    array([1., 2.])
    >>> min_norm_bias(x, y, np.array([2.0, -1.0])).weights.round(6)
    array([3., 1.])

    Source: Zhang et al. 2017, Understanding deep learning requires rethinking generalization, section 5,
    arXiv:1611.03530; Huszar, DeepNN lecture 3 (generalization is also a property of the algorithm).
    """
    x, y = rows(x, y)
    w = np.zeros(x.shape[1]) if start is None else real_array("start", start)
    expected = f"a start of shape ({x.shape[1]},), one weight for each feature"
    require(w.shape == x.shape[1:], expected, w, f"start for instance at np.zeros({x.shape[1]})")
    require(bool(np.isfinite(w).all()), "a finite start", str(w), "start for instance from zero")
    begin, inverse, values = w, np.linalg.pinv(x), np.linalg.svd(x, compute_uv=False)
    # Singular values above rounding: directions without data do not move, and must not slow the step size down.
    nonzero = values[values > values[0] * max(x.shape) * np.finfo(float).eps]
    require(len(nonzero) > 0, "x other than 0", "zeros", "for x = 0 every w has the same error")
    # The step size with the best rate on the spectrum of x'x, 2 / (L + mu).
    eta = 2 / (nonzero[0] ** 2 + nonzero[-1] ** 2)
    least, taken = np.inf, 0
    while taken < steps:
        gradient = x.T @ (x @ w - y)
        size = np.abs(gradient).max()
        # Ends where the gradient no longer decreases and is as small as rounding.
        if size == 0 or (size >= least and size < 1e-12 * np.abs(x).max() * max(1.0, np.abs(y).max())):
            break
        least, w, taken = min(size, least), w - eta * gradient, taken + 1
    # The start plus the least change that fits: pinv(x) (y - x w_0).
    closed = begin + inverse @ (y - x @ begin)
    error = float(np.mean((x @ w - y) ** 2))
    return MinNormBias(begin, w, closed, inverse @ y, float(np.abs(w - closed).max()), error, taken)
