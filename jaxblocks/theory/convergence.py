r"""Does it converge, how fast, and up to which step size: gradient descent and both momenta, with their bounds.

`descend` follows any optimizer (a step size is plain gradient descent; optax's are taken as they are) and records
values, gradients and distances. Handed an `Objective`, a function together with what is known of it, it puts the bounds
of the theorems beside every step. On quadratics momentum is a linear recursion, whose largest eigenvalue says
everything: `spectral_radius`, `stable_step_size`, `tuned_momentum`, `stability_map`.

    L    smoothness: the gradient is Lipschitz with this constant; for a quadratic the largest eigenvalue of its Hessian
    mu   convexity: the smallest one
    eta  step size
    m    momentum
    R    distance of the start from the minimizer
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Num, PyTree

from jaxblocks.ad.arguments import as_point, scalar_valued
from jaxblocks.axes import PALETTE, axes_or_new
from jaxblocks.checks import check_values, describe, describe_any, require_floating, require_whole
from jaxblocks.layers.linear_models import linear_regression, logistic_regression

__all__ = [
    "Descent",
    "Objective",
    "StabilityMap",
    "TunedMomentum",
    "convex_bound",
    "descend",
    "huber_objective",
    "iteration_matrix",
    "least_squares_objective",
    "linear_bound",
    "logistic_objective",
    "quadratic_objective",
    "smoothness",
    "spectral_radius",
    "stability_map",
    "stable_step_size",
    "tuned_momentum",
]

Scalar = int | float | Num[Array, "..."] | np.ndarray | np.number
Method = Literal["heavy ball", "nesterov", "average"]
_METHODS = ("heavy ball", "nesterov", "average")


# ---- functions that are known -------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class Objective:
    r"""A convex function together with what is known of it: ``objective(x)`` is its value.

    Whoever makes one promises what it says; `descend` draws its bounds from that.

    Args:
        f: the function, of one pytree to a scalar.
        smoothness: L, with :math:`\|\nabla f(x) - \nabla f(y)\| \le L \|x - y\|`.
        convexity: mu >= 0, with :math:`f(x) - \frac{\mu}{2}\|x\|^2` convex; 0 promises convexity alone.
        minimizer: a point where f is least, like x; without it there are no bounds. There may be many, argmin f is a
            set: any will do, and the bounds hold with the distance from each, best from the nearest.

    Raises:
        ValueError: unless 0 <= convexity <= smoothness and smoothness > 0.

    >>> objective = Objective(lambda x: (x - 1) ** 2, smoothness=2.0, convexity=2.0, minimizer=1.0)
    >>> objective(jnp.ones(())), objective.minimum
    (Array(0., dtype=float32), Array(0., dtype=float32))
    >>> objective
    Objective(smoothness 2, convexity 2, minimum 0)
    """

    f: Callable[[Any], Any]
    smoothness: int | float | None = None
    convexity: int | float = 0.0
    minimizer: PyTree | None = None

    def __post_init__(self):
        most = math.inf if self.smoothness is None else self.smoothness
        if not (most > 0 and 0 <= self.convexity <= most):
            raise ValueError(
                "Objective expects smoothness > 0 and 0 <= convexity <= smoothness, but "
                f"smoothness={self.smoothness} and convexity={self.convexity} came."
            )

    def __call__(self, x: PyTree) -> Any:
        """The value of f."""
        return self.f(x)

    @property
    def minimum(self) -> Any:
        """The value at the minimizer, ``None`` where that is not known."""
        return None if self.minimizer is None else self.f(jax.tree.map(_floating, self.minimizer))

    def __repr__(self):
        known = [] if self.smoothness is None else [f"smoothness {self.smoothness:.6g}"]
        known += [f"convexity {self.convexity:.6g}"]
        known += [] if self.minimizer is None else [f"minimum {float(self.minimum):.6g}"]
        return f"Objective({', '.join(known)})"


def quadratic_objective(
    hessian: Float[Array, "n n"] | Float[Array, " n"], linear: Float[Array, " n"] | None = None
) -> Objective:
    r""":math:`f(x) = \frac12 x^\top A x - b^\top x` for x of shape (n,), with L and mu the extreme eigenvalues of A.

    Args:
        hessian: A, symmetric and positive semidefinite, or only its diagonal.
        linear: b, zero by default.

    Raises:
        ValueError: for A that is not symmetric, has a negative eigenvalue, or leaves f unbounded below along b.

    >>> quadratic_objective(jnp.array([1.0, 10.0]))
    Objective(smoothness 10, convexity 1, minimum 0)
    """
    where = "quadratic_objective"
    require_floating(where, hessian=hessian)
    square = jnp.diag(hessian) if hessian.ndim == 1 else hessian
    if square.ndim != 2 or square.shape[0] != square.shape[1] or not square.size:
        raise ValueError(f"{where} expects a matrix (n, n) or its diagonal (n,), but {describe(hessian)} came.")
    linear = jnp.zeros(len(square), square.dtype) if linear is None else linear
    require_floating(where, linear=linear)
    if linear.shape != square.shape[:1]:
        raise ValueError(
            f"{where} expects linear of shape ({len(square)},), one entry for each row, but {describe(linear)} came."
        )
    exact, b = np.asarray(square, np.float64), np.asarray(linear, np.float64)
    if not np.array_equal(exact, exact.T):
        raise ValueError(
            f"{where} expects a symmetric matrix, but another came; pass (A + A.T) / 2, its same function."
        )
    values, vectors = np.linalg.eigh(exact)
    zero = len(exact) * float(jnp.finfo(square.dtype).eps) * np.abs(values).max()
    if values[0] < -zero or values[-1] <= 0:
        raise ValueError(
            f"{where} expects a positive semidefinite matrix other than 0, but one with eigenvalues from "
            f"{values[0]:.6g} to {values[-1]:.6g} came; its function has no minimum."
        )
    flat = values <= zero
    along = vectors.T @ b
    if np.abs(along[flat]).max(initial=0) > 1e3 * float(jnp.finfo(square.dtype).eps) * np.abs(b).max():
        raise ValueError(
            f"{where} expects b in the range of A, but one with a part along its null space came; f falls forever."
        )
    best = vectors @ np.where(flat, 0, along / np.where(flat, 1, values))
    return Objective(
        lambda x: jnp.vdot(x, square @ x / 2 - linear),
        float(values[-1]),
        max(0.0, float(values[0])) if not flat[0] else 0.0,
        jnp.asarray(best, square.dtype),
    )


def least_squares_objective(x: Float[Array, "n in"], y: Float[Array, "_n out"]) -> Objective:
    r"""The mean squared error of ``Dense`` on data, with :math:`L = 2\,\lambda_{\max}(\tilde X^\top \tilde X) / n`.

    :math:`f(W, b) = \frac1n \sum_i \|x_i W + b - y_i\|^2` of params ``{"kernel": (in, out), "bias": (out,)}``;
    :math:`\tilde X` has a column of ones beside X, and :math:`\mu` is twice its smallest eigenvalue.

    >>> x = jnp.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])  # exclusive or
    >>> least_squares_objective(x, jnp.array([[0.0], [1.0], [1.0], [0.0]]))
    Objective(smoothness 3.18614, convexity 0.313859, minimum 0.25)
    """
    best = linear_regression(x, y)
    gram = _gram_eigenvalues(x)
    f = lambda params: jnp.mean(jnp.sum((_affine(params, x) - y) ** 2, axis=-1))
    return Objective(f, 2 * gram[-1], 2 * gram[0], best)


def logistic_objective(
    x: Float[Array, "n in"], labels: Num[Array, " _n"] | Bool[Array, " _n"], ridge: int | float = 0.0
) -> Objective:
    r"""The logistic loss of ``Dense(1)`` on data, with :math:`L = \lambda_{\max}(\tilde X^\top \tilde X) / (4 n)`.

    :math:`f(w, b) = \frac1n \sum_i \log(1 + e^{-s_i (x_i w + b)}) + \lambda\|w\|^2`, s_i = 1 for label 1 and -1 for
    label 0, of params ``{"kernel": (in, 1), "bias": (1,)}``; :math:`\tilde X` has a column of ones beside X. The
    logistic function has slopes of at most 1/4, hence L (and :math:`2\lambda` more with ``ridge``). It is strictly
    convex, but its curvature fades far out, so mu = 0.

    Raises:
        ValueError: for labels that a hyperplane separates, where no minimizer exists, as ``logistic_regression`` does.

    >>> x = jnp.array([[0.0], [0.0], [0.0], [0.0], [1.0], [1.0]])
    >>> logistic_objective(x, jnp.array([0, 0, 0, 1, 0, 1]))
    Objective(smoothness 0.284518, convexity 0, minimum 0.605939)
    """
    best = logistic_regression(x, labels, ridge=ridge)
    sign = jnp.where(labels == 1, 1, -1).astype(x.dtype)

    def f(params):
        fit = jnp.mean(jax.nn.softplus(-sign * _affine(params, x)[:, 0]))
        return fit + ridge * jnp.sum(params["kernel"] ** 2)

    return Objective(f, _gram_eigenvalues(x)[-1] / 4 + 2 * ridge, 0.0, best)


def huber_objective(knee: int | float = 1.0) -> Objective:
    r"""Huber's function of a vector or number, :math:`\frac12\|x\|^2`, linear beyond ``knee``; L = 1.

    Gradient descent has no worse function: from distance R it attains ``convex_bound`` exactly, at the one step t for
    which the knee is :math:`R / (2 \eta t + 1)`.

    >>> huber_objective(0.5)(jnp.array([3.0, 4.0]))
    Array(2.375, dtype=float32)

    Source: Huber 1964; Drori & Teboulle 2014, Performance of first-order methods, theorem 3.2.
    """
    if not knee > 0:
        raise ValueError(f"huber_objective expects knee > 0, but {knee} came.")

    def f(x):
        square = jnp.sum(x**2)
        outside = square > knee**2
        norm = jnp.sqrt(jnp.where(outside, square, 1))
        return jnp.where(outside, knee * norm - knee**2 / 2, square / 2)

    return Objective(f, 1.0, 0.0, 0.0)


def smoothness(f: Callable[[Any], Any], x: PyTree) -> Float[Array, ""]:
    r"""The largest eigenvalue of the Hessian at x, in size: L for a quadratic, elsewhere how smooth f is at this point.

    It builds the Hessian, n by n numbers for n parameters; for more than some hundreds take
    ``largest_eigenvalues(hessian_operator(f, x), ...)``.

    Raises:
        TypeError, ValueError: unless f returns a real scalar and x is floating-point.

    >>> smoothness(lambda x: 0.5 * (x[0] ** 2 + 10 * x[1] ** 2), jnp.ones(2))
    Array(10., dtype=float32)
    """
    x = as_point(x)
    flat, unravel = ravel_pytree(x)
    f = scalar_valued(f)
    largest = lambda flat: jnp.max(jnp.abs(jnp.linalg.eigvalsh(jax.hessian(lambda v: f(unravel(v)))(flat))))
    return jax.jit(largest)(flat)


def _floating(leaf):
    """As an array; Python's and whole numbers in the default floating dtype."""
    if hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating):
        return jnp.asarray(leaf)
    return jnp.asarray(leaf, jnp.result_type(float))


def _affine(params, x):
    bias = params["bias"]
    return x @ params["kernel"] + jnp.broadcast_to(bias[None], (len(x), len(bias)))


def _gram_eigenvalues(x):
    """Of X'X / n with a column of ones in X, ascending."""
    ones = np.append(np.asarray(x, np.float64), np.ones((len(x), 1)), axis=1)
    return [max(0.0, float(v)) for v in np.linalg.eigvalsh(ones.T @ ones / len(x))]


# ---- what the theorems say ----------------------------------------------------------------


def convex_bound(
    step: Scalar, distance: Scalar, step_size: Scalar, smoothness: int | float | None = None
) -> Float[Array, "..."]:
    r"""How far gradient descent on a convex function can be above the minimum after t steps.

    .. math:: f(x_t) - f^* \le \frac{R^2}{2 \eta t} \qquad \text{for } \eta \le 1/L.

    The proof. Smoothness gives the descent lemma, :math:`f(x_{t+1}) \le f(x_t) - \frac{\eta}{2}\|\nabla f(x_t)\|^2`.
    With convexity, :math:`f(x_t) \le f^* + \langle \nabla f(x_t), x_t - x^*\rangle`, and the square completed,

    .. math:: f(x_{t+1}) - f^* \le \frac{1}{2\eta} \left( \|x_t - x^*\|^2 - \|x_{t+1} - x^*\|^2 \right).

    Summed over t steps the right side telescopes to at most :math:`R^2 / 2\eta`; the values fall, so the last is at
    most their mean.

    With ``smoothness`` L it is the best possible bound, :math:`R^2 / (4 \eta t + 2 / L)`, which `huber_objective`
    attains; for :math:`1/L < \eta < 2/L` a weaker one, :math:`2 L R^2 / (4 + t\,\eta L (2 - \eta L))`; beyond, none
    (infinite).

    Args:
        step: t = 0, 1, ..., a number or several.
        distance: R, of the start from the minimizer.
        step_size: eta.
        smoothness: L.

    >>> convex_bound(jnp.array([1, 10]), 2**0.5, 0.099).round(4)
    Array([10.101 ,  1.0101], dtype=float32)

    Source: Diehl 2023, Theorem 1.11 (which asks for eta < 1/L; eta = 1/L is allowed); Drori & Teboulle 2014, theorem
    3.1; Nesterov 2004, Introductory lectures on convex optimization, theorem 2.1.14.
    """
    t, r, eta = _numbers(step, distance, step_size)
    if smoothness is None:
        return jnp.where(t > 0, r**2 / (2 * eta * jnp.where(t > 0, t, 1)), jnp.inf)
    h = eta * smoothness
    sharp = r**2 / (4 * eta * t + 2 / smoothness)
    long = 2 * smoothness * r**2 / (4 + t * h * jnp.maximum(2 - h, 0))
    return jnp.where(_at_most(h, 1), sharp, jnp.where(h < 2, long, jnp.inf))


def linear_bound(
    step: Scalar, gap: Scalar, step_size: Scalar, smoothness: int | float, convexity: int | float
) -> Float[Array, "..."]:
    r"""The linear rate of gradient descent on a strongly convex function.

    .. math:: f(x_t) - f^* \le \rho^{2t} \left( f(x_0) - f^* \right),
        \qquad \rho = \max\left( |1 - \eta\mu|, |1 - \eta L| \right).

    A quadratic attains it along its flattest or its steepest direction. The step 2 / (L + mu) makes rho least,
    :math:`(\kappa - 1) / (\kappa + 1)` with :math:`\kappa = L / \mu`; for :math:`\eta \ge 2 / L` nothing shrinks.

    Args:
        step: t = 0, 1, ..., a number or several.
        gap: :math:`f(x_0) - f^*`.
        step_size, smoothness, convexity: eta, L and mu.

    >>> linear_bound(jnp.array([0, 1, 2]), 1.0, 0.5, smoothness=1.0, convexity=1.0)
    Array([1.    , 0.25  , 0.0625], dtype=float32)

    Source: Taylor, Hendrickx & Glineur 2018, Exact worst-case convergence rates of the proximal gradient method.
    """
    t, gap, eta = _numbers(step, gap, step_size)
    return gap * jnp.maximum(jnp.abs(1 - eta * convexity), jnp.abs(1 - eta * smoothness)) ** (2 * t)


def _numbers(*xs):
    """Arrays of one floating dtype and one shape, as plain NumPy broadcasting has it."""
    floats = [x for x in xs if hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.floating)]
    with jax.numpy_dtype_promotion("standard"):
        dtype = jnp.result_type(*floats) if floats else jnp.result_type(float)
    xs = [jnp.asarray(x, dtype) for x in xs]
    shape = jnp.broadcast_shapes(*(x.shape for x in xs))
    return [jnp.broadcast_to(x.reshape((1,) * (len(shape) - x.ndim) + x.shape), shape) for x in xs]


def _at_most(h, limit):
    """``h <= limit``, where rounding may have moved the product of the step size and L up a little."""
    return h <= limit * (1 + 4 * float(jnp.finfo(h.dtype).eps))


# ---- the descent and its record -----------------------------------------------------------


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["points", "values", "gradient_norms", "distances", "minimum", "bounds"],
    meta_fields=[],
)
@dataclass(frozen=True, repr=False)
class Descent:
    """What `descend` saw, at each step t = 0 ... steps, the start included.

    Attributes:
        points: like the start, with an axis of ``steps + 1`` in front.
        values: of f there, ``(steps + 1,)``.
        gradient_norms: ``(steps + 1,)``.
        distances: from the minimizer, ``(steps + 1,)``; ``None`` where that is not known.
        minimum: of f; ``None`` where the minimizer is not known.
        bounds: by name, the most that ``values - minimum`` can be, ``(steps + 1,)`` each. ``"convex"`` is the
            lecture's (infinite where it claims nothing), ``"sharp"`` the best possible, ``"strongly convex"`` the
            linear rate.

    Several runs of ``jax.vmap`` have their axis in front of all.
    """

    points: PyTree
    values: Any  # a pytree passes through transformations with more axes, and with leaves that are no arrays
    gradient_norms: Any
    distances: Any
    minimum: Any
    bounds: dict[str, Any]

    @property
    def last(self) -> PyTree:
        """The point after the last step."""
        return jax.tree.map(lambda leaf: leaf[-1], self.points)

    @property
    def gaps(self) -> Float[Array, "*runs t"]:
        """How far the values are above the minimum; above the lowest of them where the minimum is not known."""
        least = jnp.min(self.values, -1) if self.minimum is None else self.minimum
        return self.values - jnp.broadcast_to(least[..., None], self.values.shape)

    @property
    def holds(self) -> Bool[Array, "*runs"]:
        """Whether every bound holds at every step, up to the rounding of the values."""
        return _kept(self)

    def plot(self, ax=None):
        """The gap at each step with the bounds above it, both axes logarithmic; returns the axes.

        Without a known minimum it draws the values.

        >>> import pytest
        >>> matplotlib = pytest.importorskip("matplotlib")
        >>> matplotlib.use("agg")
        >>> axes = descend(quadratic_objective(jnp.array([1.0, 10.0])), jnp.ones(2), 0.1, 20).plot()
        >>> [line.get_label() for line in axes.lines]
        ['f - min f', 'bound, convex', 'bound, sharp', 'bound, strongly convex']
        """
        ax = axes_or_new(ax)
        if self.minimum is None:
            ax.plot(np.asarray(self.values))
            ax.set(xlabel="step", ylabel="f")
            return ax
        t = np.arange(1, len(self.values))
        visible = lambda y: np.where((y > float(_rounding(self.values, self.minimum))) & np.isfinite(y), y, np.nan)
        ax.loglog(t, visible(np.asarray(self.gaps)[1:]), color=PALETTE[0], label="f - min f")
        for (name, bound), (color, style) in zip(self.bounds.items(), _BOUND_STYLES, strict=False):
            if np.isfinite(np.asarray(bound)[1:]).any():
                ax.loglog(t, visible(np.asarray(bound)[1:]), style, color=color, label=f"bound, {name}")
        ax.set(xlabel="step", ylabel="above the minimum")
        ax.legend()
        return ax

    def plot_path(self, f: Callable, ax=None, *, label: str | None = None):
        """The way over the graph of f (points that are numbers) or its contours (two numbers); returns the axes.

        >>> import pytest
        >>> matplotlib = pytest.importorskip("matplotlib")
        >>> matplotlib.use("agg")
        >>> f = lambda x: x**4 - x**3 - 2 * x**2 + 3
        >>> axes = descend(f, 2.0, 0.13, 20).plot_path(f)
        >>> len(axes.lines)
        2
        """
        points = self.points
        if not hasattr(points, "shape") or points.shape[1:] not in ((), (1,), (2,)):
            raise ValueError("plot_path expects points that are one number or two; draw a deeper descent with plot.")
        fresh = ax is None
        ax = axes_or_new(ax)
        way = np.asarray(points)
        low, high = way.min(0), way.max(0)
        margin = np.where(high > low, (high - low) / 5, 1.0)
        low, high = low - margin, high + margin
        if way.shape[1:] == (2,):
            if fresh:
                grids = np.meshgrid(*(np.linspace(a, b, 80) for a, b in zip(low, high, strict=True)))
                flat = jnp.asarray(np.stack([g.ravel() for g in grids], -1), points.dtype)
                heights = np.asarray(jax.vmap(f)(flat)).reshape(80, 80)
                levels = heights.min() + (heights.max() - heights.min()) * np.linspace(0.02, 1, 12) ** 2
                ax.contour(*grids, heights, levels=levels, colors="0.8", linewidths=0.8)
            ax.plot(*way.T, ".-", markersize=4, linewidth=1, label=label)
            ax.set(xlabel="$x_1$", ylabel="$x_2$")
            return ax
        if fresh:
            line = jnp.linspace(*(jnp.asarray(v, points.dtype).reshape(points.shape[1:]) for v in (low, high)), 300)
            ax.plot(np.ravel(line), np.asarray(jax.vmap(f)(line)), color="0.4")
            ax.set(xlabel="x", ylabel="f(x)")
        ax.plot(np.ravel(way), np.asarray(self.values), "o-", markersize=4, linewidth=0.8, label=label)
        return ax

    def __repr__(self):
        if getattr(self.values, "ndim", 1) != 1 or isinstance(self.values, jax.core.Tracer):
            return f"Descent({describe(self.values)})"
        words = f"{len(self.values) - 1} steps, f from {float(self.values[0]):.6g} to {float(self.values[-1]):.6g}"
        if self.minimum is not None:
            words += f", minimum {float(self.minimum):.6g}"
        if claimed := {name: bound for name, bound in self.bounds.items() if _claims(bound)}:
            hold = bool(replace(self, bounds=claimed).holds)
            words += f", bounds {'hold' if hold else 'FAIL'}: {', '.join(claimed)}"
        elif self.bounds:
            words += ", no bound for this step size"
        return f"Descent({words})"


def descend(f: Callable[[Any], Any], start: PyTree, optimizer: Any, steps: int = 100) -> Descent:
    r"""Follow an optimizer from a start, and record the way; beside an `Objective` with the bounds that hold there.

    :math:`x_{t+1} = x_t - \eta \nabla f(x_t)` for a step size, else whatever the optimizer's ``update`` says.
    The dtype of ``start`` is that of the arithmetic; the bounds are worth checking in float64.

    Args:
        f: of a pytree to a scalar; an `Objective` where something is known of it.
        start: a pytree of floating-point arrays or numbers.
        optimizer: a step size, or anything with ``init(params)`` and ``update(gradient, state, params)``, as optax has
            them (momentum is ``optax.sgd(0.1, momentum=0.9)``; optax computes in standard dtype promotion).
        steps: how many.

    Returns:
        a `Descent`, a pytree: ``jax.vmap`` over starts or step sizes works.

    Warns:
        UserWarning: for a step size beyond 2 / L, from which gradient descent leaves the minimum.

    Raises:
        TypeError, ValueError: for what is no function to a real scalar, no floating-point start, no optimizer, a step
            size that is not positive (under ``jit`` nothing is raised, and it climbs), a minimizer unlike the start, or
            a value below the minimum, which shows that the promised minimizer is none.

    >>> descend(quadratic_objective(jnp.array([1.0, 10.0])), jnp.ones(2), 0.1, 50)
    Descent(50 steps, f from 5.5 to 1.32807e-05, minimum 0, bounds hold: convex, sharp, strongly convex)
    >>> descend(lambda x: x**4 - x**3 - 2 * x**2 + 3, 2.0, 0.13, 100).last
    Array(1.4430004, dtype=float32)

    Source: Diehl 2023, section 1.5; Krapac & Segvic, Deep feed-forward models, "Hello world".
    """
    if callable(start) and not callable(f):
        raise TypeError("descend expects the function and then the start, but the start came first; swap them.")
    known = f if isinstance(f, Objective) else None
    start = as_point(start)
    f = scalar_valued(f, point="start")
    steps = require_whole("descend", "steps", steps)
    step_size = None
    if not (callable(getattr(optimizer, "init", None)) and callable(getattr(optimizer, "update", None))):
        step_size = _step_size(optimizer, known)
        optimizer = _gradient_descent(step_size)

    best = None if known is None or known.minimizer is None else _minimizer(known, start)

    @jax.jit
    def follow(x, best):
        def step(carry, _):
            x, state = carry
            value, gradient = jax.value_and_grad(f)(x)
            updates, state = optimizer.update(gradient, state, x)
            after = jax.tree.map(lambda leaf, u: leaf + jnp.asarray(u, leaf.dtype), x, updates)
            return (after, state), (x, value, _norm(gradient))

        (x, _), seen = jax.lax.scan(step, (x, optimizer.init(x)), length=steps)
        value, gradient = jax.value_and_grad(f)(x)
        join = lambda before, last: jnp.concatenate([before, last[None]])
        points, values, norms = jax.tree.map(join, seen, (x, value, _norm(gradient)))
        if best is None:
            return Descent(points, values, norms, None, None, {}), None
        minimum = jnp.asarray(f(best), values.dtype)
        distances = jax.vmap(lambda x: _norm(jax.tree.map(jnp.subtract, x, best)))(points)
        bounds = {} if step_size is None else _bounds(known, step_size, steps, distances[0], values[0] - minimum)
        lowest = jnp.min(jnp.where(jnp.isnan(values), jnp.inf, values))
        least = lowest, ~(lowest < minimum - _rounding(values, minimum))  # not so where all is NaN
        return Descent(points, values, norms, distances, minimum, bounds), least

    seen, least = follow(start, best)
    if least is not None:
        lowest, as_promised = least
        check_values(
            as_promised,
            "descend expects a minimizer of f, but found the value {lowest}, below {minimum}, that of the minimizer; "
            "correct Objective(minimizer=...).",
            lowest=lowest,
            minimum=seen.minimum,
        )
    return seen


def _bounds(known, step_size, steps, distance, gap):
    if known.smoothness is None:
        return {}
    t = jnp.arange(steps + 1)
    lecture = convex_bound(t, distance, step_size)
    allowed = _at_most(jnp.asarray(step_size, lecture.dtype) * known.smoothness, 1)
    bounds = {
        "convex": jnp.where(allowed, lecture, jnp.inf),
        "sharp": convex_bound(t, distance, step_size, known.smoothness),
    }
    if known.convexity > 0:
        bounds["strongly convex"] = linear_bound(t, gap, step_size, known.smoothness, known.convexity)
    return bounds


class _Optimizer(NamedTuple):
    init: Callable
    update: Callable


def _gradient_descent(step_size):
    move = lambda g: -jnp.asarray(step_size, g.dtype) * g
    return _Optimizer(lambda params: (), lambda gradient, state, params=None: (jax.tree.map(move, gradient), state))


def _step_size(step_size, known):
    """The number, checked; a warning where it is beyond the stability limit."""
    number = isinstance(step_size, int | float | np.number) and not isinstance(step_size, bool)
    if not number and not (hasattr(step_size, "dtype") and jnp.issubdtype(step_size.dtype, jnp.floating)):
        repair = "call it" if callable(step_size) else "pass for instance 0.1 or optax.adam(0.1)"
        raise TypeError(
            f"descend expects a step size or an optimizer with init and update, but {describe_any(step_size)} came; "
            f"{repair}."
        )
    if jnp.ndim(step_size):
        raise ValueError(f"descend expects one step size, but {describe(step_size)} came; use jax.vmap for several.")
    check_values(
        step_size > 0, "descend expects a step size > 0, but {step_size} came.", step_size=jnp.asarray(step_size)
    )
    if known is not None and known.smoothness is not None and not isinstance(step_size, jax.core.Tracer):
        limit = stable_step_size(float(known.smoothness))
        if float(step_size) > 2 / known.smoothness * (1 + 1e-6):
            warnings.warn(
                f"descend takes the step size {float(step_size):.6g}, but beyond 2 / L = {float(limit):.6g} gradient "
                f"descent leaves the minimum where the curvature is L = {known.smoothness:.6g}; take at most "
                f"1 / L = {1 / known.smoothness:.6g} for the bounds to hold.",
                UserWarning,
                stacklevel=3,
            )
    return step_size


def _minimizer(known, start):
    """Like the start; one number stands for all entries of an array."""
    best = known.minimizer
    if jax.tree.structure(best) != jax.tree.structure(start):
        raise ValueError(
            f"descend expects a start like the minimizer, {jax.tree.structure(best)}, but "
            f"{jax.tree.structure(start)} came."
        )

    def like(b, leaf):
        b = jnp.asarray(b, leaf.dtype)
        if b.shape not in ((), leaf.shape):
            raise ValueError(f"descend expects a start like the minimizer, {b.shape}, but {describe(leaf)} came.")
        return jnp.broadcast_to(b, leaf.shape)

    return jax.tree.map(like, best, start)


def _norm(tree):
    """Of all leaves together, in the widest dtype among them."""
    flat = ravel_pytree(tree)[0]
    largest = jnp.max(jnp.abs(flat))
    scale = jnp.where((largest > 0) & jnp.isfinite(largest), largest, 1)
    return scale * jnp.sqrt(jnp.sum((flat / scale) ** 2))


def _claims(bound):
    """Whether a bound says anything of this run: it is finite somewhere, and does not grow."""
    bound = np.asarray(bound)
    return bool(np.isfinite(bound[1:]).any() and bound[-1] <= bound[0])


@jax.jit
def _kept(seen):
    if not seen.bounds:
        return jnp.ones(seen.values.shape[:-1], bool)
    slack = jnp.broadcast_to(_rounding(seen.values, seen.minimum)[..., None], seen.values.shape)
    return jnp.all(jnp.stack([jnp.all(seen.gaps <= bound + slack, axis=-1) for bound in seen.bounds.values()]), axis=0)


def _rounding(values, minimum):
    """Of values near the minimum: they are sums of terms as large as the first, the lowest or the least value."""
    lowest = jnp.min(jnp.where(jnp.isnan(values), jnp.inf, values), -1)
    sizes = jnp.abs(jnp.stack([values[..., 0], lowest, jnp.broadcast_to(minimum, lowest.shape)]))
    return 64 * jnp.finfo(values.dtype).eps * jnp.max(jnp.where(jnp.isfinite(sizes), sizes, 0), 0)


# ---- momentum on a quadratic --------------------------------------------------------------


def iteration_matrix(
    step_size: Scalar, curvature: Scalar, momentum: Scalar = 0.0, method: Method = "heavy ball"
) -> Float[Array, "... 2 2"]:
    r"""The matrix that takes :math:`(x_t, x_{t-1})` to :math:`(x_{t+1}, x_t)` on :math:`\frac{\lambda}{2} x^2`.

    With :math:`a = \eta\lambda` all three methods are :math:`x_{t+1} = T x_t - D x_{t-1}`:

    - ``"heavy ball"``, :math:`v' = m v - \eta g(x),\ x' = x + v'`: :math:`T = 1 + m - a,\ D = m`;
    - ``"nesterov"``, the gradient taken at :math:`x + m v`: :math:`T = (1 + m)(1 - a),\ D = m (1 - a)`;
    - ``"average"``, :math:`v' = m v + (1 - m) g(x),\ x' = x - \eta v'`: the heavy ball with :math:`\eta (1 - m)`.

    In optax they are ``sgd(eta, momentum=m)``, ``sgd(eta, momentum=m, nesterov=True)`` and
    ``chain(ema(m, debias=False), scale(-eta))``. Arguments broadcast.

    >>> iteration_matrix(0.1, 1.0, momentum=0.5)
    Array([[ 1.4, -0.5],
           [ 1. ,  0. ]], dtype=float32)

    Source: Diehl 2023, section 1.5, which takes v_t where v_{t+1} is meant: one step stale, it is stable only up to
    eta lambda < 1 - m.
    """
    trace, determinant = _recursion("iteration_matrix", step_size, curvature, momentum, method)
    rows = [[trace, -determinant], [jnp.ones_like(trace), jnp.zeros_like(trace)]]
    return jnp.stack([jnp.stack(row, axis=-1) for row in rows], axis=-2)


def spectral_radius(
    step_size: Scalar, curvature: Scalar, momentum: Scalar = 0.0, method: Method = "heavy ball"
) -> Float[Array, "..."]:
    r"""By how much a step shrinks the error in the long run, on a quadratic: stable where it is below one.

    The largest :math:`|z|` with :math:`z^2 - T z + D = 0`, the eigenvalues of `iteration_matrix`:
    :math:`\sqrt{D}` where they are complex, else :math:`(|T| + \sqrt{T^2 - 4 D}) / 2`. Without momentum it is
    :math:`|1 - \eta\lambda|`. With several curvatures, the eigenvalues of a Hessian, the largest counts.

    Args:
        step_size, curvature, momentum: eta, lambda, m; numbers or arrays, which broadcast.
        method: ``"heavy ball"``, ``"nesterov"`` or ``"average"``.

    >>> spectral_radius(jnp.array([0.11, 3.7, 3.9]), 1.0, momentum=0.9).round(6)
    Array([0.948683, 0.948683, 1.316228], dtype=float32)

    Source: Diehl 2023, section 1.5; Polyak 1964.
    """
    trace, determinant = _recursion("spectral_radius", step_size, curvature, momentum, method)
    inside = trace**2 - 4 * determinant
    real = inside >= 0
    root = jnp.sqrt(jnp.where(real & (inside > 0), inside, 1))
    length = jnp.where(inside > 0, (jnp.abs(trace) + root) / 2, jnp.abs(trace) / 2)
    return jnp.where(real, length, jnp.sqrt(jnp.where(real, 1, determinant)))


def stable_step_size(curvature: Scalar, momentum: Scalar = 0.0, method: Method = "heavy ball") -> Float[Array, "..."]:
    r"""The step size below which `spectral_radius` is below one.

    .. math:: \text{heavy ball } \frac{2 (1 + m)}{\lambda},\qquad
        \text{nesterov } \frac{2 (1 + m)}{(1 + 2 m)\,\lambda},\qquad
        \text{average } \frac{2 (1 + m)}{(1 - m)\,\lambda}:

    at the limit the eigenvalue -1 appears. Without momentum all are 2 / lambda. The largest curvature decides.

    Raises:
        ValueError: unless 0 <= momentum < 1 and curvature > 0 (under ``jit`` nothing is raised).

    >>> [round(float(stable_step_size(1.0, 0.9, method)), 4) for method in ("heavy ball", "nesterov", "average")]
    [3.8, 1.3571, 38.0]

    Source: Diehl 2023, section 1.5; Goh 2017, Why momentum really works.
    """
    _require_method("stable_step_size", method)
    curvature, m = _numbers(curvature, momentum)
    check_values(
        (m >= 0) & (m < 1) & (curvature > 0),
        "stable_step_size expects 0 <= momentum < 1 and curvature > 0, but momentum {m} and curvature {curvature} "
        "came; with momentum 1 no step size converges.",
        m=m,
        curvature=curvature,
    )
    share = {"heavy ball": 1.0, "nesterov": 1 + 2 * m, "average": 1 - m}[method]
    return 2 * (1 + m) / (share * curvature)


class TunedMomentum(NamedTuple):
    """What `tuned_momentum` returns.

    Attributes:
        step_size, momentum: to hand to the optimizer.
        rate: the spectral radius, the same at both ends of the spectrum.
    """

    step_size: float
    momentum: float
    rate: float


def tuned_momentum(
    smoothness: int | float, convexity: int | float, method: Method | Literal["gradient descent"] = "heavy ball"
) -> TunedMomentum:
    r"""Step size and momentum with the least spectral radius over all quadratics with eigenvalues from mu to L.

    With :math:`\kappa = L / \mu` the rate is :math:`\frac{\kappa - 1}{\kappa + 1}` for gradient descent,
    :math:`\frac{\sqrt\kappa - 1}{\sqrt\kappa + 1}` for the heavy ball (and its average form), and
    :math:`1 - \frac{2}{\sqrt{3 \kappa + 1}}` for Nesterov's method.

    >>> [round(tuned_momentum(100.0, 1.0, m).rate, 4) for m in ("gradient descent", "heavy ball", "nesterov")]
    [0.9802, 0.8182, 0.8847]

    Source: Lessard, Recht & Packard 2016, Analysis and design of optimization algorithms, proposition 1.
    """
    if method != "gradient descent":
        _require_method("tuned_momentum", method)
    if not 0 < convexity <= smoothness:
        raise ValueError(
            f"tuned_momentum expects 0 < convexity <= smoothness, but convexity={convexity} and "
            f"smoothness={smoothness} came; without strong convexity there is no linear rate."
        )
    kappa = smoothness / convexity
    if method == "gradient descent":
        return TunedMomentum(2 / (smoothness + convexity), 0.0, (kappa - 1) / (kappa + 1))
    if method == "nesterov":
        root = math.sqrt(3 * kappa + 1)
        return TunedMomentum(4 / (3 * smoothness + convexity), (root - 2) / (root + 2), 1 - 2 / root)
    rate = (math.sqrt(kappa) - 1) / (math.sqrt(kappa) + 1)
    step_size = (2 / (math.sqrt(smoothness) + math.sqrt(convexity))) ** 2
    return TunedMomentum(step_size / (1 - rate**2) if method == "average" else step_size, rate**2, rate)


@dataclass(frozen=True, repr=False)
class StabilityMap:
    """The record of `stability_map`.

    Attributes:
        step_sizes: eta times lambda, ``(columns,)``.
        momenta: ``(rows,)``.
        radius: the spectral radius, ``(rows, columns)``.
        limit: the largest stable step at each momentum, ``(rows,)``.
        method: whose.
    """

    step_sizes: np.ndarray
    momenta: np.ndarray
    radius: np.ndarray
    limit: np.ndarray
    method: str

    def plot(self, ax=None):
        """The radius in shades, unstable white, the limit as a line; returns the axes.

        >>> import pytest
        >>> matplotlib = pytest.importorskip("matplotlib")
        >>> matplotlib.use("agg")
        >>> stability_map("nesterov").plot().get_xlabel()
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


def stability_map(method: Method = "heavy ball", points: int = 120) -> StabilityMap:
    """The spectral radius over step sizes and momenta, to be drawn.

    >>> stability_map("heavy ball")
    StabilityMap(heavy ball, stable up to 2 without momentum and 3.98 with 0.99)

    Source: Diehl 2023, section 1.5, and Goh 2017, Why momentum really works (the picture).
    """
    momenta = np.linspace(0, 0.99, require_whole("stability_map", "points", points, 2))
    limit = np.asarray(stable_step_size(1.0, momenta, method))
    step_sizes = np.linspace(0, min(1.05 * float(limit.max()), 8.0), points)
    radius = np.asarray(spectral_radius(step_sizes[None], 1.0, momenta[:, None], method))
    return StabilityMap(step_sizes, momenta, radius, limit, method)


def _require_method(where, method):
    if method not in _METHODS:
        raise ValueError(f"{where} knows the methods {', '.join(map(repr, _METHODS))}, but {method!r} came.")


def _recursion(where, step_size, curvature, momentum, method):
    """T and D of x_{t+1} = T x_t - D x_{t-1}."""
    _require_method(where, method)
    eta, curvature, m = _numbers(step_size, curvature, momentum)
    a = eta * curvature
    if method == "nesterov":
        return (1 + m) * (1 - a), m * (1 - a)
    return 1 + m - (a * (1 - m) if method == "average" else a), m


# ---- pictures -----------------------------------------------------------------------------

_BOUND_STYLES = ((PALETTE[1], "--"), (PALETTE[3], ":"), (PALETTE[2], "-."))
