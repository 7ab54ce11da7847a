r"""What training error does not tell: experiments small enough to end in a number, and to be drawn.

Each function runs one and returns a record that prints its numbers and plots itself:

- how complex a model may be: `degree_sweep`, `width_sweep`, `depth_sweep`, `capacity`;
- which of all that fit the descent prefers: `min_norm_bias`, `max_margin_bias`, `matrix_completion`;
- what it leaves as it was: `conservation_drift`;
- what nets can learn by heart: `random_labels`;
- what batches do: `batch_noise`, `stationary_variance`;
- what no test set and no learner can give: `selection_optimism`, `no_free_lunch`.

Small linear algebra is done in NumPy, in float64, whatever JAX is set to. The pictures that the lecture showed of all
this are lost; these experiments are our choice.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from jaxblocks.activations import relu
from jaxblocks.ad.infinite_width import kernel_of_angles
from jaxblocks.ad.noise import gradient_noise
from jaxblocks.ad.per_example import per_example_gradients
from jaxblocks.axes import GRAY, PALETTE, axes_or_new
from jaxblocks.checks import describe, require_key, require_whole
from jaxblocks.core import as_layer
from jaxblocks.layers.combinators import Serial
from jaxblocks.layers.dense import Dense
from jaxblocks.losses import softmax_cross_entropy
from jaxblocks.theory.convergence import descend

__all__ = [
    "BatchNoise",
    "Capacity",
    "Completion",
    "Drift",
    "MaxMargin",
    "MaxMarginBias",
    "MinNormBias",
    "NoFreeLunch",
    "RandomLabels",
    "Selection",
    "Sweep",
    "batch_noise",
    "capacity",
    "conservation_drift",
    "conserved",
    "degree_sweep",
    "depth_sweep",
    "linear_dichotomies",
    "matrix_completion",
    "max_margin",
    "max_margin_bias",
    "min_norm_bias",
    "no_free_lunch",
    "polynomial_fit",
    "random_labels",
    "relu_covariance",
    "selection_optimism",
    "stationary_variance",
    "width_sweep",
]

Numbers = Array | np.ndarray
BLUE, VERMILION, GREEN = PALETTE[:3]


# ---- how complex a model may be -----------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Sweep:
    """Errors of models of growing complexity: the record of `degree_sweep`, `width_sweep` and `depth_sweep`.

    Attributes:
        name: of the complexity, as in ``"degree"``.
        complexity: ``(models,)``.
        train, test: mean squared errors, ``(models,)``.
    """

    name: str
    complexity: np.ndarray
    train: np.ndarray
    test: np.ndarray

    @property
    def best(self) -> int:
        """The complexity with the least test error, the first of equals."""
        return int(self.complexity[np.nanargmin(self.test)])

    def plot(self, ax=None):
        """Both errors over the complexity, errors logarithmic, the best one marked; returns the axes.

        >>> import pytest
        >>> matplotlib = pytest.importorskip("matplotlib")
        >>> matplotlib.use("agg")
        >>> sweep = Sweep("degree", np.array([0, 1]), np.array([2.0, 1.0]), np.array([3.0, 4.0]))
        >>> sweep.plot().get_xlabel()
        'degree'
        """
        ax = axes_or_new(ax)
        visible = lambda errors: np.where(errors > 1e-14, errors, np.nan)
        ax.semilogy(self.complexity, visible(self.train), "o-", color=BLUE, markersize=4, label="training error")
        ax.semilogy(self.complexity, visible(self.test), "^--", color=VERMILION, markersize=4, label="test error")
        ax.axvline(self.best, color=GRAY, linestyle=":", label=f"best: {self.best}")
        ax.locator_params(axis="x", integer=True)
        ax.set(xlabel=self.name, ylabel="mean squared error")
        ax.legend()
        return ax

    def __repr__(self):
        return (
            f"Sweep({self.name} {self.complexity[0]} to {self.complexity[-1]}, training error {self.train[0]:.3g} to "
            f"{self.train[-1]:.3g}, test error least at {self.best}: {np.nanmin(self.test):.3g})"
        )


def polynomial_fit(x: Numbers, y: Numbers, degree: int) -> np.polynomial.Legendre:
    """The polynomial of a degree with the least squared error; of several the one with least Legendre coefficients.

    Args:
        x, y: ``(n,)``, inputs and targets.
        degree: from 0; from n - 1 on it runs through all points.

    >>> polynomial_fit(np.array([0.0, 1.0, 2.0]), np.array([0.0, 1.0, 4.0]), 2)(np.array([3.0])).round(6)
    array([9.])
    """
    x, y = _line("polynomial_fit", x, y)
    degree = require_whole("polynomial_fit", "degree", degree, 0)
    domain = [x.min(), x.max()] if x.max() > x.min() else [x[0] - 1, x[0] + 1]
    scaled = np.polynomial.polyutils.mapdomain(x, domain, [-1, 1])
    features = np.polynomial.legendre.legvander(scaled, degree)
    return np.polynomial.Legendre(np.linalg.lstsq(features, y, rcond=None)[0], domain)


def degree_sweep(x: Numbers, y: Numbers, test_x: Numbers, test_y: Numbers, degrees: Iterable[int] = range(13)) -> Sweep:
    r"""Underfitting and overfitting: polynomials of each degree, fitted to ``x``, ``y`` and tested elsewhere.

    The classical view of generalization: with the degree the training error can only fall, while the test error falls
    as long as the target is missed and rises once noise is followed.

    Args:
        x, y, test_x, test_y: ``(n,)`` and ``(m,)``; test inputs outside of the range of ``x`` are extrapolated.
        degrees: increasing.

    >>> x, test_x = np.linspace(-1, 1, 12), np.linspace(-0.9, 0.9, 50)
    >>> sweep = degree_sweep(x, x**3 + 0.1 * (-1.0) ** np.arange(12), test_x, test_x**3, range(1, 12, 2))
    >>> sweep.best, bool(np.all(np.diff(sweep.train) <= 0))
    (3, True)

    Source: Huszar, DeepNN lecture 3 ("the classical view"); Diehl 2023, Remark 1.8.
    """
    where = "degree_sweep"
    x, y = _line(where, x, y)
    test_x, test_y = _line(where, test_x, test_y)
    fits = [polynomial_fit(x, y, degree) for degree in degrees]
    if not fits:
        raise ValueError(f"{where} expects at least one degree, but none came.")
    errors = lambda x, y: np.array([np.mean((fit(x) - y) ** 2) for fit in fits])
    return Sweep("degree", np.array([fit.degree() for fit in fits]), errors(x, y), errors(test_x, test_y))


def width_sweep(
    x: Numbers, y: Numbers, test_x: Numbers, test_y: Numbers, widths: Iterable[int], *, key, draws: int = 20
) -> Sweep:
    r"""Double descent: random rectifiers, of which only the output layer is fitted, with least norm.

    :math:`f(x) = \sum_{k=1}^m v_k \max(0, w_k \cdot (x, 1))` with Gaussian :math:`w_k` and v of least norm among those
    with the least squared error. Where m comes to the number of examples it fits exactly and badly; beyond, the norm of
    v falls again, and the test error with it.

    Args:
        x, test_x: ``(n, features)`` and ``(m, features)``.
        y, test_y: ``(n,)`` and ``(m,)``.
        widths: increasing.
        draws: of the rectifiers; the median error is returned.

    >>> x = np.linspace(-1, 1, 10)[:, None]
    >>> sweep = width_sweep(x, x[:, 0] ** 2, x, x[:, 0] ** 2, [1, 500], key=jax.random.key(0))
    >>> (sweep.train < 1e-12).tolist()
    [False, True]

    Source: Belkin et al. 2019, Reconciling modern machine-learning practice and the bias-variance trade-off;
    Huszar, DeepNN lecture 3 ("complex models don't generalize", which this disproves).
    """
    where = "width_sweep"
    require_key(where, key)
    x, y = _rows(where, x, y)
    test_x, test_y = _rows(where, test_x, test_y)
    widths = [require_whole(where, "widths", width) for width in widths]
    if not widths:
        raise ValueError(f"{where} expects at least one width, but none came.")
    draws = require_whole(where, "draws", draws)
    weights = np.asarray(jax.random.normal(key, (draws, x.shape[1] + 1, max(widths))), np.float64)
    features = lambda x, w: np.maximum(0, np.append(x, np.ones((len(x), 1)), 1) @ w) / math.sqrt(w.shape[1])
    train, test = np.zeros((2, len(widths), draws))
    for i, width in enumerate(widths):
        for j, w in enumerate(weights[:, :, :width]):
            v = np.linalg.lstsq(features(x, w), y, rcond=None)[0]
            train[i, j] = np.mean((features(x, w) @ v - y) ** 2)
            test[i, j] = np.mean((features(test_x, w) @ v - test_y) ** 2)
    return Sweep("width", np.array(widths), np.median(train, 1), np.median(test, 1))


def depth_sweep(
    x: Float[Array, "n in"],
    y: Float[Array, " n"],
    test_x: Float[Array, "m in"],
    test_y: Float[Array, " m"],
    depths: Iterable[int] = (0, 1, 2, 4),
    *,
    key,
    width: int = 16,
    optimizer: Any = 0.05,
    steps: int = 1000,
) -> Sweep:
    """Rectifier nets with a growing number of hidden layers of one width, each trained on the mean squared error.

    Arbitrarily many layers are allowed; in practice there is a sweet spot, and where it is depends on the task, the
    optimizer and the number of steps. A report, no theorem.

    Args:
        x, y, test_x, test_y: examples in rows, and a number for each.
        depths: hidden layers.
        width: units of each.
        optimizer, steps: as for ``descend``.

    >>> x = jnp.linspace(-1, 1, 32)[:, None]
    >>> sweep = depth_sweep(x, jnp.abs(x[:, 0]), x, jnp.abs(x[:, 0]), (0, 1), key=jax.random.key(0), steps=300)
    >>> bool(sweep.train[0] > 0.08 > 0.01 > sweep.train[1])
    True

    Source: Krapac & Segvic, Deep feed-forward models (how deep should a model be?); Diehl 2023, section 1.1.
    """
    where = "depth_sweep"
    require_key(where, key)
    depths = [require_whole(where, "depths", depth, 0) for depth in depths]
    if not depths:
        raise ValueError(f"{where} expects at least one depth, but none came.")
    width = require_whole(where, "width", width)
    train, test = [], []
    for depth in depths:
        net = Serial(*(layer for _ in range(depth) for layer in (Dense(width), relu)), Dense(1))
        error = lambda params, x, y, net=net: jnp.mean((net.apply(params, x)[:, 0] - y) ** 2)
        start = net.init(jax.random.fold_in(key, depth), x)
        params = _trained(lambda params, error=error: error(params, x, y), start, optimizer, steps)[0]
        train.append(float(error(params, x, y)))
        test.append(float(error(params, test_x, test_y)))
    return Sweep("hidden layers", np.array(depths), np.array(train), np.array(test))


def _trained(loss, start, optimizer, steps):
    """The last params and the losses; what `descend` records beside them is not kept."""

    def run(start):
        seen = descend(loss, start, optimizer, steps)
        return seen.last, seen.values

    return jax.jit(run)(start)


def linear_dichotomies(examples: int, features: int) -> int:
    r"""In how many ways a hyperplane through the origin can split points in general position.

    .. math:: C(n, d) = 2 \sum_{k=0}^{d-1} \binom{n - 1}{k}

    of the :math:`2^n` labelings of n points in d dimensions; a hyperplane with an offset counts as one feature more.

    >>> linear_dichotomies(4, 3), linear_dichotomies(3, 3)  # in the plane, with an offset: all but the two of XOR
    (14, 8)

    Source: Cover 1965, Geometrical and statistical properties of systems of linear inequalities.
    """
    n = require_whole("linear_dichotomies", "examples", examples)
    d = require_whole("linear_dichotomies", "features", features)
    return 2 * sum(math.comb(n - 1, k) for k in range(d))


@dataclass(frozen=True, repr=False)
class Capacity:
    """The record of `capacity`.

    Attributes:
        features: d.
        examples: n, ``(counts,)``.
        fraction: of all labelings of n points that a hyperplane can realize, ``(counts,)``.
    """

    features: int
    examples: np.ndarray
    fraction: np.ndarray

    def plot(self, ax=None):
        """The fraction over n / d, whose half is at 2; returns the axes.

        >>> import pytest
        >>> matplotlib = pytest.importorskip("matplotlib")
        >>> matplotlib.use("agg")
        >>> capacity(5).plot().get_ylabel()
        'labelings that a hyperplane realizes'
        """
        ax = axes_or_new(ax)
        ax.plot(self.examples / self.features, self.fraction, "o-", markersize=3, label=f"{self.features} features")
        ax.axvline(2, color=GRAY, linestyle=":")
        ax.axhline(0.5, color=GRAY, linestyle=":")
        ax.set(xlabel="examples / features", ylabel="labelings that a hyperplane realizes")
        ax.legend()
        return ax

    def __repr__(self):
        d = self.features
        return f"Capacity({d} features: all labelings up to {d} examples, half of them at twice that)"


def capacity(features: int) -> Capacity:
    r"""How likely random labels can be separated: surely up to d examples, by half at 2 d, hardly beyond.

    Pascal's rule gives :math:`C(n + 1, d) = 2\, C(n, d) - 2 \binom{n - 1}{d - 1}`, in whole numbers; only the fractions
    are rounded (a little beyond d they may round to 1).

    >>> capacity(20)
    Capacity(20 features: all labelings up to 20 examples, half of them at twice that)

    Source: Cover 1965.
    """
    d = require_whole("capacity", "features", features)
    ways, lost, fraction = 2, int(d == 1), []  # for one example: C(1, d), and the binomial of 0 over d - 1
    for n in range(1, 4 * d + 1):
        fraction.append(ways / 2**n)
        ways = 2 * ways - 2 * lost
        lost = lost * n // (n - d + 1) if n >= d else int(n == d - 1)
    return Capacity(d, np.arange(1, 4 * d + 1), np.array(fraction))


# ---- whom the descent prefers -------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class MinNormBias:
    """The record of `min_norm_bias`.

    Attributes:
        start: where the descent began, ``(features,)``.
        weights: where it ended.
        closed_form: where theory says that it ends.
        least_norm: the solution of least norm, pinv(X) y.
        deviation: the largest difference of ``weights`` from ``closed_form``.
        error: the mean squared error of ``weights``.
        steps: taken.
    """

    start: np.ndarray
    weights: np.ndarray
    closed_form: np.ndarray
    least_norm: np.ndarray
    deviation: float
    error: float
    steps: int

    def plot(self, ax=None):
        """The weights by descent and the closed form, entry by entry, the solution of least norm beside; the axes.

        >>> import pytest
        >>> matplotlib = pytest.importorskip("matplotlib")
        >>> matplotlib.use("agg")
        >>> axes = min_norm_bias(np.array([[1.0, 2.0]]), np.array([5.0])).plot()
        >>> axes.get_xlabel()
        'feature'
        """
        ax = axes_or_new(ax)
        place = np.arange(len(self.weights))
        ax.plot(place, self.least_norm, "_", color=GRAY, markersize=14, label="least norm")
        ax.plot(place, self.closed_form, "s", color=VERMILION, markersize=7, fillstyle="none", label="closed form")
        ax.plot(place, self.weights, ".", color=BLUE, label="gradient descent")
        ax.set(xlabel="feature", ylabel="weight")
        ax.legend()
        return ax

    def __repr__(self):
        norm, least = (float(np.linalg.norm(w)) for w in (self.weights, self.least_norm))
        return (
            f"MinNormBias(norm {norm:.6g}, least possible {least:.6g}, "
            f"{self.deviation:.2g} from the closed form, error {self.error:.2g}, {self.steps} steps)"
        )


def min_norm_bias(x: Numbers, y: Numbers, start: Numbers | None = None, *, steps: int = 100_000) -> MinNormBias:
    r"""Of all weights that fit, gradient descent finds those nearest to its start.

    Gradients of the squared error are combinations of the rows of X, so what the start has outside of their span stays:

    .. math:: w_\infty = X^+ y + (I - X^+ X)\, w_0.

    From zero it is the solution of least norm. The loss does not tell these interpolants apart; the algorithm does.

    Args:
        x: ``(n, features)``; more features than examples is the case of interest.
        y: ``(n,)``.
        start: w_0, zero by default.
        steps: at most; it stops where the gradient is rounding.

    >>> min_norm_bias(np.array([[1.0, 2.0]]), np.array([5.0])).weights.round(6)
    array([1., 2.])
    >>> min_norm_bias(np.array([[1.0, 2.0]]), np.array([5.0]), np.array([2.0, -1.0])).weights.round(6)
    array([3., 1.])

    Source: Huszar, DeepNN lecture 3 (generalization is a property of the algorithm too); Zhang et al. 2017,
    Understanding deep learning requires rethinking generalization, section 5.
    """
    where = "min_norm_bias"
    x, y = _rows(where, x, y)
    w = np.zeros(x.shape[1]) if start is None else np.array(start, np.float64)
    if w.shape != x.shape[1:]:
        raise ValueError(f"{where} expects a start of shape ({x.shape[1]},), one weight a feature, but {w.shape} came.")
    if not np.isfinite(w).all():
        raise ValueError(f"{where} expects a finite start, but {w} came; begin for instance at zero.")
    steps = require_whole(where, "steps", steps)
    begin, inverse, values = w, np.linalg.pinv(x), np.linalg.svd(x, compute_uv=False)
    real = values[values > values[0] * max(x.shape) * np.finfo(float).eps]
    if not len(real):
        raise ValueError(f"{where} expects x other than 0, with which every w fits alike.")
    eta = 2 / (real[0] ** 2 + real[-1] ** 2)
    least, taken = np.inf, 0
    while taken < steps:
        gradient = x.T @ (x @ w - y)
        size = np.abs(gradient).max()
        if size == 0 or (size >= least and size < 1e-12 * np.abs(x).max() * max(1.0, np.abs(y).max())):
            break
        least, w, taken = min(size, least), w - eta * gradient, taken + 1
    closed = begin + inverse @ (y - x @ begin)
    error = float(np.mean((x @ w - y) ** 2))
    return MinNormBias(begin, w, closed, inverse @ y, float(np.abs(w - closed).max()), error, taken)


class MaxMargin(NamedTuple):
    """What `max_margin` returns.

    Attributes:
        direction: of norm 1, ``(features,)``.
        margin: the least distance of an example from the hyperplane.
        support: which examples are at that distance, ``(n,)``.
    """

    direction: np.ndarray
    margin: float
    support: np.ndarray


def max_margin(x: Numbers, labels: Numbers) -> MaxMargin:
    r"""The hyperplane through the origin that separates two classes with the widest margin: the hard support vectors.

    :math:`\max_{\|w\| = 1} \min_i s_i\, x_i \cdot w`, s_i = 1 for label 1 and -1 for label 0: w points to the point
    of least norm in the convex hull of the :math:`s_i x_i`, which is found exactly, by non-negative least squares. For
    a hyperplane with an offset give x a column of ones (whose weight then counts in the norm).

    Raises:
        ValueError: for labels that no such hyperplane separates.

    >>> max_margin(np.array([[2.0, 0.0], [0.0, 2.0], [-3.0, -3.0]]), np.array([1, 1, 0])).margin.__round__(6)
    1.414214

    Source: Vapnik 1998, Statistical learning theory; Lawson & Hanson 1974, Solving least squares problems, chapter 23.
    """
    z = _signed("max_margin", x, labels)
    scale = np.linalg.norm(z, axis=1).max()
    weights = _nonnegative_least_squares(np.vstack([z.T / (scale or 1), np.ones(len(z))]), np.eye(z.shape[1] + 1)[-1])
    nearest = weights @ z
    norm = np.linalg.norm(nearest)
    margins = z @ nearest / (norm or 1)
    if norm <= 1e-9 * scale or margins.min() <= 0:
        raise ValueError(
            "max_margin expects labels that a hyperplane through the origin separates, but no such hyperplane exists; "
            "take more features, or a column of ones for an offset."
        )
    return MaxMargin(nearest / norm, float(margins.min()), weights > 1e-9 * weights.max())


def _nonnegative_least_squares(a, b):
    """The x >= 0 with the least |a x - b|, by Lawson and Hanson's active sets."""
    x, free = np.zeros(a.shape[1]), np.zeros(a.shape[1], bool)
    for _ in range(10 * a.shape[1]):
        push = np.where(free, -np.inf, a.T @ (b - a @ x))
        if push.max() <= 1e-13 * np.abs(a).max() * np.abs(b).max():
            break
        free[np.argmax(push)] = True
        while True:
            best = np.zeros_like(x)
            best[free] = np.linalg.lstsq(a[:, free], b, rcond=None)[0]
            bad = free & (best <= 0)
            if not bad.any():
                break
            x = x + np.min(x[bad] / (x[bad] - best[bad])) * (best - x)
            free &= ~(bad & (x <= 1e-15))
        x = best
    return x


@dataclass(frozen=True, repr=False)
class MaxMarginBias:
    """The record of `max_margin_bias`, at steps that grow geometrically.

    Attributes:
        steps: t, ``(times,)``.
        norms: of the weights.
        angles: between the weights and the direction of the widest margin, in radians.
        margins: that the weights have, divided by their norm.
        weights: the last.
        best: the widest margin, a `MaxMargin`.
    """

    steps: np.ndarray
    norms: np.ndarray
    angles: np.ndarray
    margins: np.ndarray
    weights: np.ndarray
    best: MaxMargin

    def plot(self, ax=None):
        """The margin over time, on its slow way to the widest; returns the axes.

        >>> import pytest
        >>> matplotlib = pytest.importorskip("matplotlib")
        >>> matplotlib.use("agg")
        >>> max_margin_bias(np.array([[2.0, 1.0], [-1.0, 1.0]]), np.array([1, 0]), steps=50).plot().get_xlabel()
        'step'
        """
        ax = axes_or_new(ax)
        ax.semilogx(self.steps, self.margins, ".-", color=BLUE, label="gradient descent")
        ax.axhline(self.best.margin, color=VERMILION, linestyle="--", label="widest margin")
        ax.set(xlabel="step", ylabel="margin / norm of the weights")
        ax.legend()
        return ax

    def __repr__(self):
        return (
            f"MaxMarginBias(margin {self.margins[0]:.4g} to {self.margins[-1]:.4g} of at most {self.best.margin:.4g}, "
            f"angle {self.angles[0]:.3g} to {self.angles[-1]:.3g} in {self.steps[-1]} steps)"
        )


def max_margin_bias(x: Numbers, labels: Numbers, *, steps: int = 20_000, step_size: float | None = None):
    r"""On separable classes logistic regression never ends, but its direction does: at the widest margin.

    Gradient descent from zero on :math:`\frac1n \sum_i \log(1 + e^{-s_i x_i \cdot w})`: the norm grows like
    :math:`\log(t) / \gamma`, with :math:`\gamma` the widest margin, and the direction tends to that of `max_margin`, as
    slowly as :math:`1 / \log t`.

    Args:
        x: ``(n, features)``; give it a column of ones for an offset.
        labels: 0 and 1, ``(n,)``.
        steps: of the descent.
        step_size: 1 / L by default, L the smoothness.

    Returns:
        A `MaxMarginBias`.

    Raises:
        ValueError: for labels that no hyperplane through the origin separates.

    >>> max_margin_bias(np.array([[2.0, 1.0], [-1.0, 1.0]]), np.array([1, 0]), steps=1000)
    MaxMarginBias(margin 1 to 1.286 of at most 1.342, angle 0.464 to 0.107 in 1000 steps)

    Source: Soudry et al. 2018, The implicit bias of gradient descent on separable data.
    """
    best = max_margin(x, labels)
    z = _signed("max_margin_bias", x, labels)
    eta = 4 * len(z) / np.linalg.norm(z, 2) ** 2 if step_size is None else float(step_size)
    if not eta > 0:
        raise ValueError(f"max_margin_bias expects a step size > 0, but {step_size} came.")
    shown = {int(t) for t in np.geomspace(1, require_whole("max_margin_bias", "steps", steps), 60).round()}
    w, seen = np.zeros(z.shape[1]), []
    for t in range(1, steps + 1):
        w = w + eta / len(z) * (1 / (1 + np.exp(np.minimum(z @ w, 700)))) @ z
        if t in shown:
            seen.append((t, w))
    ways = np.array([w for _, w in seen])
    norms = np.linalg.norm(ways, axis=1)
    along = ways @ best.direction
    across = np.linalg.norm(ways - along[:, None] * best.direction, axis=1)
    margins = (ways @ z.T).min(1) / norms
    return MaxMarginBias(np.array([t for t, _ in seen]), norms, np.arctan2(across, along), margins, w, best)


# ---- deep linear nets ---------------------------------------------------------------------


def conserved(kernels: Sequence[Numbers]) -> list[np.ndarray]:
    r"""What gradient flow conserves in a deep linear net: :math:`W_{l+1}^\top W_{l+1} - W_l W_l^\top` for each l.

    The function is :math:`x \mapsto W_L \cdots W_1 x`, whatever the loss. Kernels are (in, out), :math:`W_l` is the
    transpose of the l-th. The traces are conserved in nets with rectifiers too (``norm_differences``).

    >>> conserved([np.array([[2.0]]), np.array([[3.0]])])
    [array([[5.]])]

    Source: Arora, Cohen, Golowich & Hu 2019, A convergence analysis of gradient descent for deep linear neural
    networks (balancedness); Huszar, DeepNN lecture 3.
    """
    kernels = _chain("conserved", kernels)
    return [after @ after.T - before.T @ before for before, after in itertools.pairwise(kernels)]


@dataclass(frozen=True, repr=False)
class Drift:
    """The record of `conservation_drift`.

    Attributes:
        step_sizes: eta, ``(sizes,)``.
        drifts: the largest change of an entry of what is conserved, ``(sizes,)``.
        losses: at the end, ``(sizes,)``.
        time: for which the descent ran, steps times eta.
    """

    step_sizes: np.ndarray
    drifts: np.ndarray
    losses: np.ndarray
    time: float

    @property
    def order(self) -> float:
        """The power of eta with which the drift shrinks, from the smallest two step sizes."""
        (d1, d2), (e1, e2) = (v[np.argsort(self.step_sizes)[:2]] for v in (self.drifts, self.step_sizes))
        return float(np.log(d2 / d1) / np.log(e2 / e1))

    def plot(self, ax=None):
        """The drift over the step size, both logarithmic; returns the axes.

        >>> import pytest
        >>> matplotlib = pytest.importorskip("matplotlib")
        >>> matplotlib.use("agg")
        >>> Drift(np.array([0.1, 0.01]), np.array([0.2, 0.02]), np.zeros(2), 1.0).plot().get_xlabel()
        'step size'
        """
        ax = axes_or_new(ax)
        ax.loglog(self.step_sizes, self.drifts, "o", color=BLUE, label="drift of what flow conserves")
        line = self.drifts[0] * self.step_sizes / self.step_sizes[0]
        ax.loglog(self.step_sizes, line, ":", color=GRAY, label="proportional to the step size")
        ax.set(xlabel="step size", ylabel=f"drift in time {self.time:g}")
        ax.legend()
        return ax

    def __repr__(self):
        pairs = ", ".join(f"{d:.2g} at {e:g}" for d, e in zip(self.drifts, self.step_sizes, strict=True))
        return f"Drift({pairs})"


def conservation_drift(
    kernels: Sequence[Numbers],
    x: Numbers,
    y: Numbers,
    *,
    step_sizes: Sequence[float] = (1e-2, 1e-3, 1e-4),
    time: float = 1.0,
) -> Drift:
    r"""How far gradient descent drifts from what gradient flow conserves, in equal time: in proportion to its step.

    On :math:`\frac{1}{2n}\|X W - Y\|^2`, W the product of the kernels; see `conserved`. A step changes it by
    :math:`\eta^2` times the gradients' products, and there are time / eta of them.

    Args:
        kernels: (in, out) each.
        x, y: ``(n, in)`` and ``(n, out)``.
        step_sizes: each takes round(time / eta) steps.
        time: for how long.

    >>> drift = conservation_drift([np.eye(2), np.eye(2)], np.eye(2), 2 * np.eye(2), step_sizes=(1e-1, 1e-2))
    >>> bool(drift.drifts[0] < 1e-12)  # balanced and symmetric: nothing can drift
    True

    Source: Arora, Cohen, Golowich & Hu 2019; Huszar, DeepNN lecture 3.
    """
    where = "conservation_drift"
    kernels = _chain(where, kernels)
    x, y = (np.asarray(v, np.float64) for v in (x, y))
    if x.shape[1:] != kernels[0].shape[:1] or y.shape != (len(x), kernels[-1].shape[1]):
        raise ValueError(
            f"{where} expects x (n, {kernels[0].shape[0]}) and y (n, {kernels[-1].shape[1]}), as the kernels are, but "
            f"{x.shape} and {y.shape} came."
        )
    if not (len(step_sizes) and min(step_sizes) > 0 and time > 0):
        raise ValueError(f"{where} expects step sizes > 0 and a time > 0, but {step_sizes} and {time} came.")
    gram, cross = x.T @ x / len(x), x.T @ y / len(x)
    drifts, losses = [], []
    for eta in step_sizes:
        moved = list(kernels)
        for _ in range(max(1, round(time / eta))):
            gradients = _factor_gradients(moved, gram @ _product(moved) - cross)
            moved = [w - eta * g for w, g in zip(moved, gradients, strict=True)]
        pairs = zip(conserved(moved), conserved(kernels), strict=True)
        drifts.append(max((float(np.abs(a - b).max()) for a, b in pairs), default=0.0))
        losses.append(float(np.sum((x @ _product(moved) - y) ** 2) / (2 * len(x))))
    return Drift(np.array(step_sizes, float), np.array(drifts), np.array(losses), time)


@dataclass(frozen=True, repr=False)
class Completion:
    """The record of `matrix_completion`.

    Attributes:
        depths: factors of the product, ``(depths,)``.
        singular_values: of the completed matrix over the target's largest, ``(depths, n)``.
        target_values: of the target, likewise, ``(n,)``.
        effective_rank: the exponential of the entropy of the singular values' shares, ``(depths,)``.
        observed_error, unobserved_error: root mean square over that of the target's entries, ``(depths,)``.
        matrices: completed, ``(depths, rows, columns)``.
    """

    depths: np.ndarray
    singular_values: np.ndarray
    target_values: np.ndarray
    effective_rank: np.ndarray
    observed_error: np.ndarray
    unobserved_error: np.ndarray
    matrices: np.ndarray

    def plot(self, ax=None):
        """The singular values for each depth; returns the axes.

        >>> import pytest
        >>> matplotlib = pytest.importorskip("matplotlib")
        >>> matplotlib.use("agg")
        >>> found = matrix_completion(np.ones((2, 2)), np.eye(2) > 0, (1,), key=jax.random.key(0), steps=10)
        >>> found.plot().get_ylabel()
        'singular value'
        """
        ax = axes_or_new(ax)
        place = np.arange(1, len(self.target_values) + 1)
        ax.plot(place, self.target_values, "k*", markersize=10, label="target")
        looks = itertools.cycle(zip((BLUE, VERMILION, GREEN, GRAY), "o^sD", ("-", "--", "-.", ":"), strict=True))
        for depth, values in zip(self.depths, self.singular_values, strict=True):
            color, marker, style = next(looks)
            look = dict(color=color, marker=marker, linestyle=style, markersize=4, linewidth=1)
            ax.plot(place, values, label=_factors(depth), **look)
        ax.set(xlabel="place", ylabel="singular value")
        ax.legend()
        return ax

    def __repr__(self):
        each = zip(self.depths, self.effective_rank, self.unobserved_error, strict=True)
        return "Completion(" + "; ".join(f"{_factors(d)}: rank {r:.3g}, unobserved {e:.2g}" for d, r, e in each) + ")"


def _factors(depth):
    return "1 factor" if depth == 1 else f"{depth} factors"


def matrix_completion(
    target: Numbers,
    observed: Numbers,
    depths: Sequence[int] = (1, 2, 3),
    *,
    key,
    scale: float = 1e-3,
    steps: int = 4000,
) -> Completion:
    r"""Fill in a matrix by gradient descent on a product of square matrices, begun small: depth prefers low rank.

    Minimizes half the squared error on the observed entries of :math:`W_1 \cdots W_L`. With one factor the unobserved
    entries never move. With more, a singular value grows the faster the larger it is, the more so the deeper the
    product, so few of them get the chance: nothing in the loss asks for that.

    Args:
        target: ``(n, n)``.
        observed: true where the entry is known, ``(n, n)``.
        depths: numbers of factors.
        scale: of the product at the start, where the largest singular value of the target is one.
        steps: at most, of size 1 / (2 depth) in that unit; it stops where the observed entries fit.

    >>> target = np.outer([1.0, 2.0, 3.0], [1.0, 1.0, 2.0])
    >>> found = matrix_completion(target, target != 1, key=jax.random.key(0))
    >>> (found.unobserved_error < 0.05).tolist()
    [False, True, True]

    Source: Arora, Cohen, Hu & Luo 2019, Implicit regularization in deep matrix factorization; Huszar, DeepNN lecture 3.
    """
    where = "matrix_completion"
    require_key(where, key)
    target, observed = np.asarray(target, np.float64), np.asarray(observed, bool)
    if target.ndim != 2 or target.shape[0] != target.shape[1] or observed.shape != target.shape or not target.any():
        raise ValueError(
            f"{where} expects a square matrix other than 0 and a mask of its shape, but {target.shape} and "
            f"{observed.shape} came."
        )
    if not scale > 0:
        raise ValueError(f"{where} expects scale > 0, but {scale} came; from 0 a product never moves.")
    n, unit = len(target), np.linalg.norm(target, 2)
    goal, found = target / unit, []
    for depth in depths:
        depth = require_whole(where, "depths", depth)
        draws = np.asarray(jax.random.normal(jax.random.fold_in(key, depth), (depth, n, n)), np.float64)
        factors = list(draws * scale ** (1 / depth) / math.sqrt(n))
        for _ in range(require_whole(where, "steps", steps)):
            error = np.where(observed, _product(factors) - goal, 0)
            if np.abs(error).max() < 1e-6:
                break
            gradients = _factor_gradients(factors, error)
            factors = [w - g / (2 * depth) for w, g in zip(factors, gradients, strict=True)]
        found.append(_product(factors))
    values = np.array([np.linalg.svd(w, compute_uv=False) for w in found])
    shares = values / values.sum(1, keepdims=True)
    rank = np.exp(-np.sum(np.where(shares > 0, shares * np.log(np.where(shares > 0, shares, 1)), 0), 1))
    size = lambda mask: np.array(
        [np.sqrt(np.mean((w - goal)[mask] ** 2) / np.mean(goal**2)) if mask.any() else 0.0 for w in found]
    )
    own = np.linalg.svd(goal, compute_uv=False)
    return Completion(np.array(depths), values, own, rank, size(observed), size(~observed), unit * np.array(found))


def _product(kernels):
    return np.linalg.multi_dot(kernels) if len(kernels) > 1 else kernels[0]


def _factor_gradients(kernels, to_product):
    """Of each factor, from the gradient with respect to their product."""
    before = list(itertools.accumulate(kernels[:-1], np.matmul, initial=np.eye(kernels[0].shape[0])))
    after = list(itertools.accumulate(kernels[:0:-1], lambda a, w: w @ a, initial=np.eye(kernels[-1].shape[1])))[::-1]
    return [b.T @ to_product @ a.T for b, a in zip(before, after, strict=True)]


# ---- learning by heart --------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class RandomLabels:
    """The record of `random_labels`: of the net trained on true labels first, on shuffled ones second.

    Attributes:
        train, test: accuracies, ``(2,)``, those on training data for the labels that the net was shown.
        losses: on the training data at each step, ``(2, steps + 1)``.
    """

    train: np.ndarray
    test: np.ndarray
    losses: np.ndarray

    def plot(self, ax=None):
        """Both training losses over the steps, accuracies in the legend; returns the axes.

        >>> import pytest
        >>> matplotlib = pytest.importorskip("matplotlib")
        >>> matplotlib.use("agg")
        >>> RandomLabels(np.ones(2), np.ones(2), np.ones((2, 5))).plot().get_xlabel()
        'step'
        """
        ax = axes_or_new(ax)
        styles = ((BLUE, "-", "true labels"), (VERMILION, "--", "random labels"))
        for (color, style, name), loss, train, test in zip(styles, self.losses, self.train, self.test, strict=True):
            label = f"{name}: {train:.0%} of training, {test:.0%} of test data right"
            ax.semilogy(loss, style, color=color, label=label)
        ax.set(xlabel="step", ylabel="training loss")
        ax.legend()
        return ax

    def __repr__(self):
        words = [
            f"{name} labels: training {train:.0%}, test {test:.0%}"
            for name, train, test in zip(("true", "random"), self.train, self.test, strict=True)
        ]
        return f"RandomLabels({'; '.join(words)})"


def random_labels(
    net, x: Float[Array, "n ..."], y: Any, test_x: Float[Array, "m ..."], test_y: Any, *, key, optimizer, steps: int
) -> RandomLabels:
    """Train a classifier on true labels, and from the same start on the same labels shuffled.

    A net with enough parameters fits both. What it can fit therefore does not explain that it generalizes on the true
    ones: no argument that knows only the model class can.

    Args:
        net: a layer from ``x`` to scores ``(n, classes)``.
        x, test_x: inputs in rows.
        y, test_y: labels from 0, whole numbers.
        key: of the initial params and of the shuffle.
        optimizer, steps: as for ``descend``, on the mean cross-entropy of all training data.

    >>> from jaxblocks import MLP
    >>> x = jax.random.normal(jax.random.key(0), (24, 8))
    >>> y = (x[:, 0] > 0).astype(jnp.int32)
    >>> found = random_labels(MLP(64, 2), x, y, x, y, key=jax.random.key(1), optimizer=0.3, steps=400)
    >>> found.train.tolist(), bool(found.test[1] < 1)
    ([1.0, 1.0], True)

    Source: Zhang et al. 2017, Understanding deep learning requires rethinking generalization; Huszar, DeepNN lecture 3.
    """
    where = "random_labels"
    require_key(where, key)
    layer = as_layer(net)
    x, y, test_x, test_y = (jnp.asarray(v) for v in (x, y, test_x, test_y))
    for name, rows, labels in (("y", x, y), ("test_y", test_x, test_y)):
        if labels.shape != rows.shape[:1] or not jnp.issubdtype(labels.dtype, jnp.integer):
            raise ValueError(
                f"{where} expects {name} to be whole numbers ({len(rows)},), a label for each row, but "
                f"{describe(labels)} came."
            )
    init_key, shuffle_key = jax.random.split(key)
    start = layer.init(init_key, x)
    shown = jnp.stack([y, jax.random.permutation(shuffle_key, y)])

    @jax.jit
    @jax.vmap
    def train(labels):
        loss = lambda params: jnp.mean(softmax_cross_entropy(layer.apply(params, x), labels))
        params, losses = _trained(loss, start, optimizer, steps)
        right = lambda x, y: jnp.mean((jnp.argmax(layer.apply(params, x), -1) == y).astype(losses.dtype))
        return right(x, labels), right(test_x, test_y), losses

    return RandomLabels(*(np.asarray(v) for v in train(shown)))


def relu_covariance(
    x1: Float[Array, "n1 features"], x2: Float[Array, "n2 features"] | None = None
) -> Float[Array, "n1 n2"]:
    r"""The covariance of the outputs of a random net with one infinitely wide hidden layer of rectifiers.

    For :math:`f(x) = \sqrt{2/m} \sum_k v_k \max(0, w_k \cdot x)` with all weights standard normal,
    :math:`E f(x) f(x') = \|x\| \|x'\| \kappa_1(u)`, :math:`\kappa_1(u) = (u (\pi - \arccos u) + \sqrt{1 - u^2}) / \pi`,
    u the cosine of the angle: the Gaussian process that the net is before training. ``ntk_relu`` is the kernel by
    which it then learns.

    >>> f"{relu_covariance(jnp.array([[1.0, 0.0]]), jnp.array([[0.6, 0.8]])).item():.6f}"
    '0.677548'

    Source: Cho & Saul 2009, Kernel methods for deep learning; Huszar, DeepNN lecture 3 (infinite-width networks).
    """
    kappa_1 = lambda angle: (jnp.cos(angle) * (jnp.pi - angle) + jnp.sin(angle)) / jnp.pi
    return kernel_of_angles(x1, x2, kappa_1)


# ---- gradient noise -----------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class BatchNoise:
    """The record of `batch_noise`.

    Attributes:
        batch_sizes: B, ``(sizes,)``.
        predicted: the mean squared distance of a batch's gradient from that of all data, by the formula.
        measured: the same over batches that were drawn.
        squared_norm: of the gradient of all data.
    """

    batch_sizes: np.ndarray
    predicted: np.ndarray
    measured: np.ndarray
    squared_norm: float

    def plot(self, ax=None):
        """The noise over the batch size, both logarithmic, and the gradient's own size; returns the axes.

        >>> import pytest
        >>> matplotlib = pytest.importorskip("matplotlib")
        >>> matplotlib.use("agg")
        >>> BatchNoise(np.array([1, 2]), np.array([2.0, 1.0]), np.array([2.1, 0.9]), 1.0).plot().get_xlabel()
        'batch size'
        """
        ax = axes_or_new(ax)
        ax.loglog(self.batch_sizes, self.predicted, "-", color=VERMILION, label="formula")
        ax.loglog(self.batch_sizes, self.measured, "o", color=BLUE, markersize=4, label="batches drawn")
        ax.axhline(self.squared_norm, color=GRAY, linestyle=":", label="squared norm of the gradient")
        ax.set(xlabel="batch size", ylabel="variance of the gradient")
        ax.legend()
        return ax

    def __repr__(self):
        return (
            f"BatchNoise(variance {self.predicted[0]:.4g} at batch size {self.batch_sizes[0]} to "
            f"{self.predicted[-1]:.4g} at {self.batch_sizes[-1]}, squared gradient {self.squared_norm:.4g})"
        )


def batch_noise(
    loss: Callable[..., Any],
    params: PyTree,
    *data: PyTree,
    key,
    batch_sizes: Sequence[int] | None = None,
    draws: int = 500,
) -> BatchNoise:
    r"""How the noise of a minibatch's gradient falls with its size, by formula and by drawing batches.

    Without replacement :math:`E \|g_B - g\|^2 = \frac{\operatorname{tr}\Sigma}{B} \frac{N - B}{N - 1}`; see
    ``gradient_noise``.

    Args:
        loss, params, data: as for ``gradient_noise``: the loss of one example.
        key: of the draws.
        batch_sizes: powers of two below N by default.
        draws: batches of each size.

    >>> noise = batch_noise(lambda w, x: w * x, 1.0, jnp.arange(4.0), key=jax.random.key(0), batch_sizes=[1, 2])
    >>> noise.predicted.round(6).tolist()
    [1.25, 0.416667]

    Source: Huszar, DeepNN lecture 3 (the effect of gradient noise).
    """
    where = "batch_noise"
    require_key(where, key)
    whole = gradient_noise(loss, params, *data, batch_size=1)
    count = whole.examples
    sizes = [2**k for k in range(count.bit_length()) if 2**k < count] if batch_sizes is None else batch_sizes
    sizes = np.array([require_whole(where, "batch_sizes", size) for size in sizes])
    if not len(sizes) or sizes.max() > count:
        raise ValueError(f"{where} expects batch sizes from 1 to {count}, the number of examples, but {sizes} came.")
    shares = (count - sizes) / (sizes * max(1, count - 1))
    leaves = jax.tree.leaves(per_example_gradients(loss, params, *data))
    gradients = np.concatenate([np.asarray(leaf, np.float64).reshape(count, -1) for leaf in leaves], 1)
    gradients = gradients - gradients.mean(0)
    draws = require_whole(where, "draws", draws)
    orders = np.argsort(np.asarray(jax.random.uniform(key, (draws, count))), 1)
    measured = [np.mean(np.sum(gradients[orders[:, :size]].mean(1) ** 2, -1)) for size in sizes]
    return BatchNoise(sizes, shares * float(whole.trace), np.array(measured), float(whole.squared_norm))


def stationary_variance(step_size: float, curvature: float, noise: float) -> float:
    r"""How far stochastic gradient descent keeps moving around the minimum of :math:`\frac{\lambda}{2} x^2`.

    .. math:: x_{t+1} = x_t - \eta (\lambda x_t + \xi_t) \quad\Rightarrow\quad
        \operatorname{Var} x_\infty = \frac{\eta \sigma^2}{\lambda (2 - \eta \lambda)}

    with noise of variance :math:`\sigma^2`: about in proportion to the step size, so that it must fall, or the batch
    must grow, for the iterates to converge.

    Args:
        step_size, curvature, noise: eta, lambda and sigma^2.

    Raises:
        ValueError: unless 0 < step_size < 2 / curvature, where there is no such variance.

    >>> stationary_variance(0.5, 2.0, 4.0)
    1.0

    Source: Mandt, Hoffman & Blei 2017, Stochastic gradient descent as approximate Bayesian inference.
    """
    if not (curvature > 0 and 0 < step_size < 2 / curvature and noise >= 0):
        raise ValueError(
            f"stationary_variance expects 0 < step_size < 2 / curvature, curvature > 0 and noise >= 0, but "
            f"{step_size}, {curvature} and {noise} came; beyond the limit the variance grows for ever."
        )
    return step_size * noise / (curvature * (2 - step_size * curvature))


# ---- what no test set and no learner can give ---------------------------------------------


@dataclass(frozen=True, repr=False)
class Selection:
    """The record of `selection_optimism`.

    Attributes:
        classifiers: K, ``(counts,)``.
        expected: of the best of K on the test set, exactly, ``(counts,)``.
        simulated: the same by drawing.
        fresh: what those that were chosen get right on a fresh test set, by drawing.
        bound: chance plus sqrt(log K / 2n), which ``expected`` never exceeds.
        chance: what each of them gets right.
        examples: n, in the test set.
    """

    classifiers: np.ndarray
    expected: np.ndarray
    simulated: np.ndarray
    fresh: np.ndarray
    bound: np.ndarray
    chance: float
    examples: int

    def plot(self, ax=None):
        """The accuracy of the chosen over the number of candidates, on both test sets; returns the axes.

        >>> import pytest
        >>> matplotlib = pytest.importorskip("matplotlib")
        >>> matplotlib.use("agg")
        >>> selection_optimism(key=jax.random.key(0), trials=10).plot().get_xlabel()
        'classifiers to choose from'
        """
        ax = axes_or_new(ax)
        ax.semilogx(self.classifiers, self.bound, ":", color=GRAY, label="bound")
        ax.semilogx(self.classifiers, self.expected, "-", color=VERMILION, label="on the test set, expected")
        ax.semilogx(self.classifiers, self.simulated, "^", color=VERMILION, label="on the test set, drawn")
        ax.semilogx(self.classifiers, self.fresh, "o", color=BLUE, label="on a fresh test set, drawn")
        ax.set(xlabel="classifiers to choose from", ylabel="accuracy of the best")
        ax.legend()
        return ax

    def __repr__(self):
        pairs = ", ".join(f"{e:.3f} of {k}" for e, k in zip(self.expected, self.classifiers, strict=True))
        return f"Selection(best {pairs}; fresh {self.fresh[-1]:.3f}; {self.examples} examples)"


def selection_optimism(
    classifiers: Sequence[int] = (1, 10, 100, 1000),
    examples: int = 100,
    *,
    key,
    chance: float = 0.5,
    trials: int = 400,
) -> Selection:
    r"""Choosing the best of K classifiers on the test set: how much better it looks than it is.

    All guess, each right with probability ``chance``. The best of K independent ones has
    :math:`E \max = \frac1n \sum_{j=1}^{n} \left( 1 - F(j - 1)^K \right)`, F the binomial distribution function, on
    the set that it was chosen on, and ``chance`` on any other. So with hyperparameters: a third set is needed.

    Args:
        classifiers: the numbers K.
        examples: n, of the test set.
        key: of the draws.
        trials: how often the choice is drawn.

    >>> selection_optimism(key=jax.random.key(0)).expected.round(3)
    array([0.5  , 0.577, 0.625, 0.661])

    Source: Diehl 2023 (April), section 1.3, "implicit hyperparameter optimization".
    """
    where = "selection_optimism"
    require_key(where, key)
    n, trials = require_whole(where, "examples", examples), require_whole(where, "trials", trials)
    counts = np.array([require_whole(where, "classifiers", k) for k in classifiers])
    if not len(counts) or not 0 <= chance <= 1:
        raise ValueError(f"{where} expects numbers of classifiers and 0 <= chance <= 1, but {chance} came.")
    terms = [math.comb(n, j) * chance**j * (1 - chance) ** (n - j) for j in range(n + 1)]
    below = np.minimum(np.cumsum(terms), 1)  # F(0), ..., F(n)
    expected = np.array([np.sum(1 - below[:-1] ** int(k)) / n for k in counts])
    simulated, fresh = [], []
    for i, k in enumerate(counts):
        chosen, again = jax.random.split(jax.random.fold_in(key, i))
        draw = lambda key, shape: np.searchsorted(below, np.asarray(jax.random.uniform(key, shape), np.float64)) / n
        simulated.append(draw(chosen, (trials, int(k))).max(1).mean())
        fresh.append(draw(again, (trials,)).mean())
    bound = chance + np.sqrt(np.log(counts) / (2 * n))
    return Selection(counts, expected, np.array(simulated), np.array(fresh), bound, chance, n)


@dataclass(frozen=True, repr=False)
class NoFreeLunch:
    """The record of `no_free_lunch`.

    Attributes:
        predictions: of the learner on the unseen points, 0 or 1, ``(m,)``.
        accuracies: for each of the 2^m ways in which these can be labeled, ``(2**m,)``.
    """

    predictions: np.ndarray
    accuracies: np.ndarray

    @property
    def mean(self) -> float:
        """Over all labelings: one half."""
        return float(np.mean(self.accuracies))

    def plot(self, ax=None):
        """How many labelings give which accuracy; returns the axes.

        >>> import pytest
        >>> matplotlib = pytest.importorskip("matplotlib")
        >>> matplotlib.use("agg")
        >>> no_free_lunch(np.array([0, 1, 1])).plot().get_xlabel()
        'accuracy on unseen points'
        """
        ax = axes_or_new(ax)
        values, counts = np.unique(self.accuracies, return_counts=True)
        ax.bar(values, counts, width=0.6 / max(1, len(self.predictions)), color=BLUE)
        ax.axvline(self.mean, color=VERMILION, linestyle="--", label=f"mean {self.mean:g}")
        ax.set(xlabel="accuracy on unseen points", ylabel="labelings of them")
        ax.legend()
        return ax

    def __repr__(self):
        return f"NoFreeLunch(mean accuracy {self.mean:g} over {len(self.accuracies)} labelings)"


def no_free_lunch(predictions: Numbers) -> NoFreeLunch:
    """Whatever a learner predicts on points that it has not seen: averaged over all their labelings it is half right.

    The training data say nothing about them unless something is assumed; what makes learning possible is a bias that
    fits the world.

    Args:
        predictions: of any learner, on m <= 20 unseen points: 0 or 1 each.

    >>> no_free_lunch(np.array([1, 1, 0, 1]))
    NoFreeLunch(mean accuracy 0.5 over 16 labelings)

    Source: Wolpert 1996, The lack of a priori distinctions between learning algorithms; Krapac & Segvic, Deep
    feed-forward models (a function known only on a finite set).
    """
    predictions = np.asarray(predictions)
    if predictions.ndim != 1 or not 1 <= len(predictions) <= 20 or not np.isin(predictions, (0, 1)).all():
        raise ValueError(
            "no_free_lunch expects predictions 0 or 1 on 1 to 20 unseen points, but an array of shape "
            f"{predictions.shape} with values from {predictions.min(initial=0)} to {predictions.max(initial=0)} came."
        )
    m = len(predictions)
    labelings = np.arange(2**m)[:, None] >> np.arange(m) & 1  # (2**m, m)
    return NoFreeLunch(predictions, np.mean(labelings == predictions.astype(int), axis=1))


# ---- inputs -------------------------------------------------------------------------------


def _line(where, x, y):
    x, y = (np.asarray(v, np.float64) for v in (x, y))
    if x.ndim != 1 or x.shape != y.shape or not len(x):
        raise ValueError(f"{where} expects inputs and targets of one shape (n,), but {x.shape} and {y.shape} came.")
    _require_finite(where, x, y)
    return x, y


def _rows(where, x, y):
    x, y = (np.asarray(v, np.float64) for v in (x, y))
    if x.ndim != 2 or y.shape != x.shape[:1] or not x.size:
        raise ValueError(f"{where} expects x (n, features) and y (n,), but {x.shape} and {y.shape} came.")
    _require_finite(where, x, y)
    return x, y


def _require_finite(where, x, y):
    for name, values in (("inputs", x), ("targets", y)):
        if not np.isfinite(values).all():
            i = np.argwhere(~np.isfinite(values))[0]
            raise ValueError(
                f"{where} expects finite {name}, but {values[tuple(i)]} came in example {i[0]}; leave it out."
            )


def _signed(where, x, labels):
    """The s_i x_i."""
    x, labels = _rows(where, x, labels)
    if not np.isin(labels, (0, 1)).all():
        raise ValueError(
            f"{where} expects labels 0 and 1, but others came, from {labels.min():g} to {labels.max():g}; for -1 and 1 "
            "write labels > 0."
        )
    return np.where(labels == 1, 1.0, -1.0)[:, None] * x


def _chain(where, kernels):
    kernels = [np.asarray(kernel, np.float64) for kernel in kernels]
    fits = all(a.shape[1] == b.shape[0] for a, b in itertools.pairwise(kernels)) if _matrices(kernels) else False
    if not fits:
        raise ValueError(
            f"{where} expects kernels (in, out) that follow each other, but shapes {[k.shape for k in kernels]} came."
        )
    return kernels


def _matrices(kernels):
    return bool(kernels) and all(kernel.ndim == 2 for kernel in kernels)
