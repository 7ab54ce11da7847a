"""Errors over the complexity of a model: polynomials by degree, random features by width, nets by depth."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key
from numpy.polynomial import Legendre, legendre, polyutils

from jaxblocks.activations import relu
from jaxblocks.checks.expectations import NonNegativeInt, PositiveInt, checked
from jaxblocks.layers.combinators import Serial
from jaxblocks.layers.dense import Dense
from jaxblocks.plotting.axes import GRAY, PALETTE, axes_or_new
from jaxblocks.theory.convergence import descend
from jaxblocks.theory.generalization.data import Numbers, integers, rows, vectors

__all__ = ["Sweep", "degree_sweep", "depth_sweep", "polynomial_fit", "width_sweep"]


@dataclass(frozen=True, repr=False)
class Sweep:
    """Errors of models of increasing complexity: the record of `degree_sweep`, `width_sweep` and `depth_sweep`.

    Attributes:
        name: the name of the complexity, as in ``"degree"``.
        complexity: the complexity of each model, ``(models,)``.
        train, test: mean squared errors, ``(models,)``.
    """

    name: str
    complexity: np.ndarray
    train: np.ndarray
    test: np.ndarray

    @property
    def best(self) -> int:
        """The complexity with the smallest test error; the first of equal ones."""
        return int(self.complexity[np.nanargmin(self.test)])

    def plot(self, ax=None):
        """Plot both errors, on a logarithmic axis, over the complexity, and mark the best one; returns the axes.

        >>> sweep = Sweep(
        ...     "degree", np.array([0, 1]), np.array([2.0, 1.0]), np.array([3.0, 4.0])
        ... )
        >>> sweep.plot().get_xlabel()
        'degree'
        """
        ax = axes_or_new(ax)
        # On a logarithmic axis an exact fit would be at minus infinity.
        visible = lambda errors: np.where(errors > 1e-14, errors, np.nan)
        ax.semilogy(self.complexity, visible(self.train), "o-", color=PALETTE[0], markersize=4, label="training error")
        ax.semilogy(self.complexity, visible(self.test), "^--", color=PALETTE[1], markersize=4, label="test error")
        ax.axvline(self.best, color=GRAY, linestyle=":", label=f"best: {self.best}")
        ax.locator_params(axis="x", integer=True)
        ax.set(xlabel=self.name, ylabel="mean squared error")
        ax.legend()
        return ax

    def __repr__(self):
        return (
            f"Sweep({self.name} {self.complexity[0]} to {self.complexity[-1]}, training error {self.train[0]:.3g} to "
            f"{self.train[-1]:.3g}, test error smallest at {self.best}: {np.nanmin(self.test):.3g})"
        )


@checked
def polynomial_fit(x: Numbers, y: Numbers, degree: NonNegativeInt) -> Legendre:
    """The least squares polynomial of a degree; if there are several, the one with the smallest Legendre coefficients.

    Args:
        x, y: ``(n,)``, inputs and targets.
        degree: an integer >= 0; from n - 1 on the polynomial interpolates all points.

    >>> square = polynomial_fit(np.arange(3.0), np.array([0.0, 1.0, 4.0]), 2)
    >>> square(np.array([3.0])).round(6)
    array([9.])
    """
    x, y = vectors(x, y)
    # A single point has no interval; any one around it does.
    domain = [x.min(), x.max()] if x.max() > x.min() else [x[0] - 1, x[0] + 1]
    # Legendre polynomials are orthogonal on [-1, 1]; powers of x would make the least squares problem ill-conditioned
    # from degree 10 on.
    scaled = polyutils.mapdomain(x, domain, [-1, 1])
    features = legendre.legvander(scaled, degree)
    return Legendre(np.linalg.lstsq(features, y, rcond=None)[0], domain)


def degree_sweep(
    x: Numbers, y: Numbers, test_x: Numbers, test_y: Numbers, *, degrees: Iterable[int] = range(13)
) -> Sweep:
    r"""Underfitting and overfitting: training and test errors of polynomials of each degree.

    The classical view of generalization: as the degree increases, the training error decreases, while the test error
    decreases until the polynomial approximates the target, and increases when it fits the noise.

    Args:
        x, y: training inputs and targets, ``(n,)``.
        test_x, test_y: ``(m,)``; test inputs outside of the range of ``x`` are extrapolated.
        degrees: increasing.

    >>> x, test_x = np.linspace(-1, 1, 12), np.linspace(-0.9, 0.9, 50)
    >>> y = x**3 + 0.1 * (-1.0) ** np.arange(12)
    >>> sweep = degree_sweep(x, y, test_x, test_x**3, degrees=range(1, 12, 2))
    >>> sweep.best, bool(np.all(np.diff(sweep.train) <= 0))
    (3, True)

    Source: Bishop 2006, Pattern recognition and machine learning, section 1.1; Huszar, DeepNN lecture 3 ("the classical
    view"); Diehl 2023, Remark 1.8.
    """
    x, y = vectors(x, y)
    test_x, test_y = vectors(test_x, test_y)
    fits = [polynomial_fit(x, y, degree) for degree in integers("degrees", degrees, least=0)]
    errors = lambda x, y: np.array([np.mean((fit(x) - y) ** 2) for fit in fits])
    return Sweep("degree", np.array([fit.degree() for fit in fits]), errors(x, y), errors(test_x, test_y))


@checked
def width_sweep(
    x: Numbers,
    y: Numbers,
    test_x: Numbers,
    test_y: Numbers,
    *,
    widths: Iterable[int],
    key: Key[Array, ""],
    samples: PositiveInt = 20,
) -> Sweep:
    r"""Double descent: errors of random rectifier nets of which only the output layer is fitted, with minimum norm.

    $f(x) = ∑_{k=1}^m v_k max(0, w_k · (x, 1))$ with Gaussian $w_k$, where v has the minimum norm
    among the minimizers of the squared error. When m equals the number of examples, the fit is exact and the test error
    is largest; for larger m the norm of v and the test error decrease again.

    Args:
        x, y: training inputs ``(n, features)`` and targets ``(n,)``.
        test_x, test_y: ``(m, features)`` and ``(m,)``.
        widths: increasing.
        key: the random key of the rectifiers.
        samples: the number of draws of the rectifiers; the median error is returned.

    >>> x = np.linspace(-1, 1, 10)[:, None]
    >>> sweep = width_sweep(
    ...     x, x[:, 0] ** 2, x, x[:, 0] ** 2, widths=[1, 500], key=jax.random.key(0)
    ... )
    >>> (sweep.train < 1e-12).tolist()
    [False, True]

    Source: Belkin et al. 2019, Reconciling modern machine-learning practice and the bias-variance trade-off,
    arXiv:1812.11118; Huszar, DeepNN lecture 3 ("complex models don't generalize", which this disproves).
    """
    x, y = rows(x, y)
    test_x, test_y = rows(test_x, test_y)
    widths = integers("widths", widths)
    # The narrow nets are parts of the wide ones, so that the curve does not vary with new draws at each width.
    weights = np.asarray(jax.random.normal(key, (samples, x.shape[1] + 1, max(widths))), np.float64)
    # Division by sqrt(width) keeps the norm of a row of features at every width.
    features = lambda x, w: np.maximum(0, np.append(x, np.ones((len(x), 1)), 1) @ w) / math.sqrt(w.shape[1])
    train, test = np.zeros((2, len(widths), samples))
    for i, width in enumerate(widths):
        for j, w in enumerate(weights[:, :, :width]):
            v = np.linalg.lstsq(features(x, w), y, rcond=None)[0]
            train[i, j] = np.mean((features(x, w) @ v - y) ** 2)
            test[i, j] = np.mean((features(test_x, w) @ v - test_y) ** 2)
    # The median: at the interpolation threshold single draws have errors larger by orders of magnitude.
    return Sweep("width", np.array(widths), np.median(train, 1), np.median(test, 1))


@checked
def depth_sweep(
    x: Float[Array, "n in"],
    y: Float[Array, "n"],
    test_x: Float[Array, "m in"],
    test_y: Float[Array, "m"],
    *,
    depths: Iterable[int] = (0, 1, 2, 4),
    key: Key[Array, ""],
    width: PositiveInt = 16,
    optimizer: Any = 0.05,
    steps: PositiveInt = 1000,
) -> Sweep:
    """Errors of rectifier nets with an increasing number of hidden layers, trained on the mean squared error.

    The best depth depends on the task, the optimizer and the number of steps: this is an experiment, not a theorem.

    Args:
        x, y: training inputs, in rows, and a target for each.
        test_x, test_y: test inputs and targets.
        depths: numbers of hidden layers.
        key: the random key of the initial params.
        width: units of each hidden layer.
        optimizer, steps: as for ``descend``.

    >>> x = jnp.linspace(-1, 1, 32)[:, None]
    >>> y, options = jnp.abs(x[:, 0]), dict(depths=(0, 1), steps=300)
    >>> sweep = depth_sweep(x, y, x, y, key=jax.random.key(0), **options)
    >>> bool(sweep.train[0] > 0.08 > 0.01 > sweep.train[1])
    True

    Source: Goodfellow, Bengio & Courville 2016, Deep learning, section 6.4.1; Krapac & Segvic, Deep feed-forward models
    (how deep should a model be?); Diehl 2023, section 1.1.
    """
    depths = integers("depths", depths, least=0)
    errors, test_errors = [], []
    for depth in depths:
        # Depth 0 is the linear model.
        net = Serial(*(layer for _ in range(depth) for layer in (Dense(width), relu)), Dense(1))

        @jax.jit
        def train(key, net=net):
            error = lambda params, x, y: jnp.mean((net.apply(params, x)[:, 0] - y) ** 2)
            params = descend(lambda params: error(params, x, y), net.init(key, x), optimizer, steps=steps).last
            return error(params, x, y), error(params, test_x, test_y)

        for found, value in zip((errors, test_errors), train(jax.random.fold_in(key, depth)), strict=True):
            found.append(float(value))
    return Sweep("hidden layers", np.array(depths), np.array(errors), np.array(test_errors))
