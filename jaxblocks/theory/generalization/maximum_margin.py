"""The implicit bias of gradient descent on the logistic loss: convergence to the direction of the largest margin."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import PositiveInt, checked
from jaxblocks.plotting.axes import PALETTE, axes_or_new
from jaxblocks.theory.generalization.data import Numbers, rows

__all__ = ["MaxMargin", "MaxMarginBias", "max_margin", "max_margin_bias"]


class MaxMargin(NamedTuple):
    """The result of `max_margin`.

    Attributes:
        direction: the normal of the hyperplane, of norm 1, ``(features,)``.
        margin: the smallest distance of an example from the hyperplane.
        support: whether an example is at that distance, ``(n,)``.
    """

    direction: np.ndarray
    margin: float
    support: np.ndarray


def max_margin(x: Numbers, labels: Numbers) -> MaxMargin:
    r"""The hyperplane through the origin that separates two classes with the largest margin, and its support vectors.

    $max_{‖w‖ = 1} min_i s_i x_i · w$, s_i = 1 for label 1 and -1 for label 0: w has the direction of
    the point of minimum norm in the convex hull of the $s_i x_i$, which non-negative least squares computes
    exactly. For a hyperplane with an offset add a column of ones to x (its weight is then part of the norm).

    Args:
        x: ``(n, features)``.
        labels: 0 and 1, ``(n,)``.

    Raises:
        ValueError: for labels that no such hyperplane separates.

    >>> x = np.array([[2.0, 0.0], [0.0, 2.0], [-3.0, -3.0]])
    >>> round(max_margin(x, np.array([1, 1, 0])).margin, 6)
    1.414214

    Source: Vapnik 1998, Statistical learning theory; Lawson & Hanson 1974, Solving least squares problems, chapter 23.
    """
    from scipy.optimize import nnls  # late: the import takes time

    z = _signed(x, labels)
    unit = np.abs(z).max() or 1.0  # squares of the quotients are in the range of float64
    z = z / unit
    scale = np.linalg.norm(z, axis=1).max()
    # The point of the convex hull of the rows nearest to 0, by weights >= 0 whose sum is about 1 (the last row); only
    # its direction counts.
    rows = np.vstack([z.T / (scale or 1), np.ones(len(z))])
    weights, _ = nnls(rows, np.eye(len(rows))[-1], maxiter=10 * len(z))
    nearest = weights @ z
    norm = np.linalg.norm(nearest)
    margins = z @ nearest / (norm or 1)
    # Nearest point 0: the hull contains 0, and no hyperplane separates.
    separable = bool(norm > 1e-9 * scale and margins.min() > 0)
    repair = "take more features, or a column of ones for an offset"
    require(separable, "labels that a hyperplane through the origin separates", "other labels", repair)
    # Where several sets of weights give the nearest point, examples of weight 0 may be at that distance too.
    support = (margins <= margins.min() * (1 + 1e-9)) | (weights > 1e-9 * weights.max())
    return MaxMargin(nearest / norm, float(margins.min() * unit), support)


@dataclass(frozen=True, repr=False)
class MaxMarginBias:
    """The record of `max_margin_bias`, at steps in geometric progression.

    Attributes:
        steps: t, ``(times,)``.
        norms: the norms of the weights.
        angles: the angles between the weights and the direction of the largest margin, in radians.
        margins: the margins of the weights, divided by their norms.
        weights: the final weights.
        best: the largest margin, a `MaxMargin`.
    """

    steps: np.ndarray
    norms: np.ndarray
    angles: np.ndarray
    margins: np.ndarray
    weights: np.ndarray
    best: MaxMargin

    def plot(self, ax=None):
        """Plot the margin at each step and the largest possible margin; returns the axes.

        >>> x, labels = np.array([[2.0, 1.0], [-1.0, 1.0]]), np.array([1, 0])
        >>> max_margin_bias(x, labels, steps=50).plot().get_xlabel()
        'step'
        """
        ax = axes_or_new(ax)
        ax.semilogx(self.steps, self.margins, ".-", color=PALETTE[0], label="gradient descent")
        ax.axhline(self.best.margin, color=PALETTE[1], linestyle="--", label="largest margin")
        ax.set(xlabel="step", ylabel="margin / norm of the weights")
        ax.legend()
        return ax

    def __repr__(self):
        return (
            f"MaxMarginBias(margin {self.margins[0]:.4g} to {self.margins[-1]:.4g} of at most {self.best.margin:.4g}, "
            f"angle {self.angles[0]:.3g} to {self.angles[-1]:.3g} in {self.steps[-1]} steps)"
        )


@checked
def max_margin_bias(
    x: Numbers, labels: Numbers, *, steps: PositiveInt = 20_000, step_size: float | None = None
) -> MaxMarginBias:
    r"""Logistic regression on separable classes: the norm diverges, the direction tends to that of the largest margin.

    For gradient descent from zero on $(1/n) ∑_i log(1 + e^{-s_i x_i · w})$, the norm grows like $log(t) / γ$, with $γ$
    the largest margin. The direction converges to that of `max_margin` at the slow rate $1 / log t$.

    Args:
        x: ``(n, features)``; add a column of ones for an offset.
        labels: 0 and 1, ``(n,)``.
        steps: the number of steps of gradient descent.
        step_size: 1 / L by default, L the smoothness.

    Returns:
        A `MaxMarginBias`.

    Raises:
        ValueError: for labels that no hyperplane through the origin separates.

    >>> max_margin_bias(np.array([[2.0, 1.0], [-1.0, 1.0]]), np.array([1, 0]), steps=1000)
    MaxMarginBias(margin 1 to 1.286 of at most 1.342, angle 0.464 to 0.107 in 1000 steps)

    Source: Soudry et al. 2018, The implicit bias of gradient descent on separable data, arXiv:1710.10345.
    """
    best = max_margin(x, labels)
    z = _signed(x, labels)
    # 1 / L: the second derivative of the logistic loss is at most 1 / 4.
    eta = 4 * len(z) / np.linalg.norm(z, 2) ** 2 if step_size is None else float(step_size)
    require(eta > 0, "a step size > 0", step_size, "leave it out for the largest stable one")
    shown = {int(t) for t in np.geomspace(1, steps, 60).round()}
    w, recorded = np.zeros(z.shape[1]), []
    for t in range(1, steps + 1):
        # exp overflows in float64 above 709.
        w = w + eta / len(z) * (1 / (1 + np.exp(np.minimum(z @ w, 700)))) @ z
        if t in shown:
            recorded.append((t, w))
    weights = np.array([w for _, w in recorded])
    norms = np.linalg.norm(weights, axis=1)
    along = weights @ best.direction
    across = np.linalg.norm(weights - along[:, None] * best.direction, axis=1)
    margins = (weights @ z.T).min(1) / norms
    # The angle by arctan2, since arccos of a cosine near 1 loses half of the digits.
    return MaxMarginBias(np.array([t for t, _ in recorded]), norms, np.arctan2(across, along), margins, w, best)


def _signed(x, labels):
    """The products s_i x_i."""
    x, labels = rows(x, labels)
    binary = bool(np.isin(labels, (0, 1)).all())
    require(
        binary, "labels 0 and 1", f"labels from {labels.min():g} to {labels.max():g}", "for -1 and 1 pass labels > 0"
    )
    return np.where(labels == 1, 1.0, -1.0)[:, None] * x
