"""Convex functions with their constants: smoothness, strong convexity and a minimizer."""

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Num, PyTree

from jaxblocks.ad.programs.arguments import as_point, scalar_valued
from jaxblocks.ad.vectors.raveled import as_vector
from jaxblocks.backend.precision import full_precision
from jaxblocks.backend.quotients import norm
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import PositiveFloat, checked
from jaxblocks.layers.linear_models import linear_regression, logistic_regression

__all__ = [
    "Objective",
    "huber_objective",
    "least_squares_objective",
    "logistic_objective",
    "quadratic_objective",
    "smoothness",
]


@dataclass(frozen=True, eq=False, repr=False)
class Objective:
    r"""A convex function with its known constants: ``objective(x)`` is its value.

    The constants are not verified; `descend` computes its bounds from them.

    Args:
        f: the function, from one pytree to a scalar.
        smoothness: L, with $‖∇ f(x) - ∇ f(y)‖ ≤ L ‖x - y‖$.
        convexity: mu >= 0, with $f(x) - (μ/2) ‖x‖^2$ convex; 0 means that f is convex.
        minimizer: a point where f is minimal, of the structure of x; without it there are no bounds. If there are
            several, the bounds hold for each, with the distance from it; the nearest gives the sharpest bounds.

    Raises:
        ValueError: unless 0 <= convexity <= smoothness and smoothness > 0.

    >>> objective = Objective(
    ...     lambda x: (x - 1) ** 2, smoothness=2.0, convexity=2.0, minimizer=1.0
    ... )
    >>> objective(jnp.ones(())), objective.minimum
    (Array(0., dtype=float32), Array(0., dtype=float32))
    >>> objective
    Objective(smoothness 2, convexity 2, minimum 0)
    """

    f: Callable[[Any], Any]
    _: KW_ONLY
    smoothness: int | float | None = None
    convexity: int | float = 0.0
    minimizer: PyTree | None = None

    def __post_init__(self):
        most = math.inf if self.smoothness is None else self.smoothness
        got = f"smoothness={self.smoothness} and convexity={self.convexity}"
        exchanged = f"exchange them: smoothness={self.convexity}, convexity={self.smoothness}"
        repair = exchanged if 0 <= most < self.convexity else "pass for instance smoothness=1.0 and convexity=0.0"
        fits = most > 0 and 0 <= self.convexity <= most
        require(fits, "smoothness > 0 and 0 <= convexity <= smoothness", got, repair)

    def __call__(self, x: PyTree) -> Any:
        """The value of f."""
        return self.f(x)

    @property
    def minimum(self) -> Any:
        """The value at the minimizer; ``None`` if the minimizer is unknown."""
        return None if self.minimizer is None else self.f(jax.tree.map(_floating, self.minimizer))

    def __repr__(self):
        known = [] if self.smoothness is None else [f"smoothness {self.smoothness:.6g}"]
        known += [f"convexity {self.convexity:.6g}"]
        known += [] if self.minimizer is None else [f"minimum {float(self.minimum):.6g}"]
        return f"Objective({', '.join(known)})"


@checked
def quadratic_objective(hessian: Float[Array, "..."], linear: Float[Array, "n"] | None = None) -> Objective:
    r"""$f(x) = (1/2) xᵀ A x - bᵀ x$ for x of shape (n,), with L and mu the extreme eigenvalues of A.

    Args:
        hessian: A, symmetric and positive semidefinite, or only its diagonal.
        linear: b, zero by default.

    Raises:
        ValueError: if A is not symmetric or has a negative eigenvalue, or if f is unbounded below along b.

    >>> quadratic_objective(jnp.array([1.0, 10.0]))
    Objective(smoothness 10, convexity 1, minimum 0)
    """
    square = jnp.diag(hessian) if hessian.ndim == 1 else hessian
    is_square = square.ndim == 2 and square.shape[0] == square.shape[1] and square.size > 0
    of_data = hessian.ndim == 2 and hessian.size > 0
    repair = "pass X.T @ X for a matrix X of data" if of_data else "pass for instance jnp.ones(3)"
    require(is_square, "hessian to be a matrix (n, n) or its diagonal (n,)", hessian, repair)
    linear = jnp.zeros(len(square), square.dtype) if linear is None else linear
    repair = f"pass for instance jnp.zeros({len(square)})"
    require(
        linear.shape == square.shape[:1], f"linear of shape ({len(square)},), one entry for each row", linear, repair
    )
    # In float64, whatever the dtype, so that the constants of the bounds are not rounded.
    exact, b = np.asarray(square, np.float64), np.asarray(linear, np.float64)
    finite = bool(np.isfinite(exact).all() and np.isfinite(b).all())
    require(finite, "finite numbers in A and b", "others", "replace NaN and infinity")
    repair = "pass (A + A.T) / 2, which has the same quadratic form"
    require(np.array_equal(exact, exact.T), "a symmetric hessian", "another matrix", repair)
    values, vectors = np.linalg.eigh(exact)
    # Eigenvalues have errors of about n times the machine epsilon of the dtype in which the matrix was given.
    zero = len(exact) * float(jnp.finfo(square.dtype).eps) * np.abs(values).max()
    got = f"one with eigenvalues from {values[0]:.6g} to {values[-1]:.6g}"
    definite = bool(values[0] >= -zero and values[-1] > 0)
    require(definite, "a positive semidefinite hessian other than 0", got, "without it f has no minimum")
    flat = values <= zero
    along = vectors.T @ b  # b in the basis of eigenvectors
    in_null_space = np.abs(along[flat]).max(initial=0)
    in_range = bool(in_null_space <= 1e3 * float(jnp.finfo(square.dtype).eps) * np.abs(b).max())
    got = "b with a component in its null space"
    require(in_range, "b in the range of A", got, "remove that component, along which f is unbounded below")
    # The minimizer of least norm: 0 along directions in which f does not change.
    best = vectors @ np.where(flat, 0, along / np.where(flat, 1, values))
    return Objective(
        full_precision()(lambda x: jnp.vdot(x, square @ x / 2 - linear)),
        smoothness=float(values[-1]),
        # An eigenvalue within rounding of 0 counts as 0.
        convexity=max(0.0, float(values[0])) if not flat[0] else 0.0,
        minimizer=jnp.asarray(best, square.dtype),
    )


@checked
def least_squares_objective(x: Float[Array, "n in"], y: Float[Array, "n out"]) -> Objective:
    r"""The mean squared error of ``Dense`` on data, with $L = 2 λ_{max}(X̃ᵀ X̃) / n$.

    $f(W, b) = (1/n) ∑_i ‖x_i W + b - y_i‖^2$ of params ``{"kernel": (in, out), "bias": (out,)}``; $X̃$ is X with an
    additional column of ones, and $μ$ is twice the smallest eigenvalue of $X̃ᵀ X̃ / n$.

    >>> x = jnp.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])  # exclusive or
    >>> least_squares_objective(x, jnp.array([[0.0], [1.0], [1.0], [0.0]]))
    Objective(smoothness 3.18614, convexity 0.313859, minimum 0.25)
    """
    gram, best = _gram_eigenvalues(x), linear_regression(x, y)
    f = lambda params: jnp.mean(jnp.sum((_affine(params, x) - y) ** 2, axis=-1))
    # The Hessian of the mean squared error is 2 X'X / n for each output.
    return Objective(f, smoothness=2 * gram[-1], convexity=2 * gram[0], minimizer=best)


@checked
def logistic_objective(
    x: Float[Array, "n in"], labels: Num[Array, "n"] | Bool[Array, "n"], *, ridge: int | float = 0.0
) -> Objective:
    r"""The logistic loss of ``Dense(1)`` on data, with $L = λ_{max}(X̃ᵀ X̃) / (4 n)$.

    $f(w, b) = (1/n) ∑_i log(1 + e^{-s_i (x_i w + b)}) + λ‖w‖^2$, s_i = 1 for label 1 and -1 for
    label 0, of params ``{"kernel": (in, 1), "bias": (1,)}``; $X̃$ is X with an additional column of ones.
    The slope of the logistic function is at most 1/4, hence L (plus $2λ$ with ``ridge``). The loss is
    strictly convex, but its curvature tends to 0 far from the minimum, so mu = 0.

    Raises:
        ValueError: for labels that a hyperplane separates, where no minimizer exists (see ``logistic_regression``).

    >>> x = jnp.array([[0.0], [0.0], [0.0], [0.0], [1.0], [1.0]])
    >>> logistic_objective(x, jnp.array([0, 0, 0, 1, 0, 1]))
    Objective(smoothness 0.284518, convexity 0, minimum 0.605939)
    """
    best = logistic_regression(x, labels, ridge=ridge)
    sign = jnp.where(labels == 1, 1, -1).astype(x.dtype)

    def f(params):
        fit = jnp.mean(jax.nn.softplus(-sign * _affine(params, x)[:, 0]))
        return fit + ridge * jnp.sum(params["kernel"] ** 2)

    # The second derivative of softplus is at most 1 / 4; the ridge adds 2 ridge. Strongly convex only in the kernel,
    # not in the bias, so that convexity stays 0.
    return Objective(f, smoothness=_gram_eigenvalues(x)[-1] / 4 + 2 * ridge, minimizer=best)


@checked
def huber_objective(*, knee: PositiveFloat = 1.0) -> Objective:
    r"""Huber's function of a vector or number, $(1/2) ‖x‖^2$, linear beyond ``knee``; L = 1.

    It is a worst case of gradient descent: from distance R it attains ``convex_bound`` exactly at the step t for which
    the knee is $R / (2 η t + 1)$, for $η ≤ 1$, and for $η < 2$ as long as the first
    term of ``convex_bound`` is the larger one.

    >>> huber_objective(knee=0.5)(jnp.array([3.0, 4.0]))
    Array(2.375, dtype=float32)

    Source: Huber 1964; Drori & Teboulle 2014, Performance of first-order methods, theorem 3.2, arXiv:1206.3209.
    """

    def f(x):
        x = _floating(x)
        outside = norm(x) > knee
        # Each branch gets harmless numbers where the other one holds, so that no large number is squared.
        length, square = norm(jnp.where(outside, x, 1)), jnp.sum(jnp.where(outside, 0, x) ** 2)
        return jnp.where(outside, knee * (length - knee / 2), square / 2)

    return Objective(f, smoothness=1.0, minimizer=0.0)


def smoothness(f: Callable[[Any], Any], x: PyTree) -> Float[Array, ""]:
    r"""The largest absolute eigenvalue of the Hessian at x: L for a quadratic, a local constant elsewhere.

    It builds the Hessian, n by n numbers for n parameters. For more than a few hundred parameters use
    ``largest_eigenvalues(hessian_operator(f, x), ...)``.

    Raises:
        TypeError, ValueError: unless f returns a real scalar and x is floating-point.

    >>> smoothness(lambda x: 0.5 * (x[0] ** 2 + 10 * x[1] ** 2), jnp.ones(2))
    Array(10., dtype=float32)
    """
    x = as_point(x)
    flat, unravel = as_vector(x)
    f = scalar_valued(f)
    hessian = jax.hessian(lambda v: f(unravel(v)))
    largest = lambda flat: jnp.max(jnp.abs(jnp.linalg.eigvalsh(hessian(flat))), initial=0)  # of no entries, 0
    return jax.jit(largest)(flat)


def _floating(leaf):
    """A leaf as an array; Python numbers and integers are converted to the default floating dtype."""
    if hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating):
        return jnp.asarray(leaf)
    return jnp.asarray(leaf, jnp.result_type(float))


@full_precision()
def _affine(params, x):
    bias = params["bias"]
    return x @ params["kernel"] + jnp.broadcast_to(bias[None], (len(x), len(bias)))


def _gram_eigenvalues(x):
    """The eigenvalues of X'X / n in ascending order, with an additional column of ones in X."""
    ones = np.append(np.asarray(x, np.float64), np.ones((len(x), 1)), axis=1)
    require(bool(np.isfinite(ones).all()), "finite numbers in x", "others", "remove or impute these rows")
    return [max(0.0, float(v)) for v in np.linalg.eigvalsh(ones.T @ ones / len(x))]
