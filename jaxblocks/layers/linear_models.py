r"""Linear models fitted to the optimum: least squares in closed form, logistic regression by Newton's method.

Both return params of ``Dense``, so a fitted model can be applied, composed and trained further like any other layer.
Their losses are convex, so every local minimum is global. To fit a model $Φ(x) W + b$ with nonlinear
features, pass ``Phi(x)``; to apply it, write ``Serial(Phi, Dense(out))``.

All products are computed in full precision, on GPUs and TPUs too, where the default precision is less.

Both are differentiable in all their real arguments, to any order: the derivative is that of the optimum (implicit
function theorem), not that of the solver's iterations.

Axis letters: ``n`` examples, ``in`` and ``out`` features.
"""

import math

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Integer

from jaxblocks.backend.powers_of_two import divided, unit_of
from jaxblocks.backend.precision import full_precision, widen
from jaxblocks.backend.varying import varying_like
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import NonNegativeFloat, checked
from jaxblocks.checks.values import check_values, concrete

__all__ = ["linear_regression", "logistic_regression"]


@checked
def linear_regression(
    x: Float[Array, "n in"],
    y: Float[Array, "n out"],
    *,
    ridge: NonNegativeFloat | Float[Array, ""] = 0.0,
    check: bool = False,
) -> dict[str, Array]:
    r"""Params of the ``Dense`` layer with the least mean squared error on ``x``, ``y``.

    Minimizes

    .. math::

        (1/N) ∑_{n=1}^N ‖ x_n W + b - y_n ‖^2 + λ ‖ W ‖^2

    with $λ$ = ``ridge``. The bias is not penalized, which is equivalent to centering the data first:
    $W = (X_cᵀ X_c + N λ I)^{-1} X_cᵀ y_c$ with $X_c = X - x̄$, $y_c = y - ȳ$, and $b = ȳ - x̄ W$. (For the formula
    without a bias, pass data of mean zero.) It is computed from the singular value decomposition of $X_c$, without
    squaring its condition number. Where $λ = 0$ and the columns of $X_c$ are linearly dependent, many kernels fit
    equally well, and the one of least norm is returned.

    Derivatives contain up to the fourth power of the data: in float32, second derivatives are exact for centered inputs
    and targets from 1e-6 to 1e6. Standardize other data.

    Args:
        x: the inputs, one example per row.
        y: the targets; a single target is a column, ``y[:, None]``.
        ridge: $λ ≥ 0$; ``sklearn.linear_model.Ridge`` calls $N λ$ its ``alpha``.
        check: check the sign of ``ridge`` under ``jit`` too, through checkify.

    Returns:
        ``{"kernel": (in, out), "bias": (out,)}``.

    Raises:
        ValueError: where ``x`` and ``y`` are not matrices with the same number (one or more) of rows, and for a
            negative ``ridge`` (under ``jit`` without ``check``, the params are NaN).
        TypeError: for ``x`` or ``y`` that are not floating-point.

    XOR has no linear trend; its best linear model is the constant one half:

    >>> x = jnp.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    >>> params = linear_regression(x, jnp.array([[0.0], [1.0], [1.0], [0.0]]))
    >>> bool(jnp.allclose(params["kernel"], 0.0, atol=1e-6)), params["bias"].round(6)
    (True, Array([0.5], dtype=float32))

    Source: Hastie, Tibshirani & Friedman 2009, The elements of statistical learning, section 3.4; Diehl 2023, section
    1.3; Krapac & Segvic, Deep feed-forward models (XOR).
    """
    _check_not_empty(x)
    dtype = x.dtype
    x, y = widen(x), widen(y).astype(widen(x).dtype)
    ridge = _check_ridge(ridge, x.dtype, check)
    kernel, bias = _least_squares(x, y, ridge)
    return {"kernel": kernel.astype(dtype), "bias": bias.astype(dtype)}


@checked
def logistic_regression(
    x: Float[Array, "n in"],
    labels: Integer[Array, "n"] | Bool[Array, "n"],
    *,
    ridge: NonNegativeFloat | Float[Array, ""] = 0.0,
    check: bool = False,
) -> dict[str, Array]:
    r"""Params of the ``Dense(1)`` layer whose logit best separates label 1 from label 0.

    With $p(1 ∣ x) = σ(x w + b)$, minimizes the mean negative log-likelihood (in nats)

    .. math::

        (1/N) ∑_{n=1}^N log(1 + e^{-s_n (x_n w + b)}) + λ ‖ w ‖^2,
        s_n = 2 · labels_n - 1,

    with $λ$ = ``ridge``, by Newton's method (iteratively reweighted least squares) with backtracking, to
    rounding. The bias is not penalized; where features are linearly dependent, ``w`` is the one of least norm.

    **There may be no optimum.** Where a hyperplane separates the labels (even with points on it), or for a single
    class, the loss decreases without bound as ``w`` grows. Then this function raises an error, and under
    ``jit`` (``vmap``, ``grad``), where it cannot raise, its params are NaN. Any ``ridge > 0`` makes the optimum finite
    if both labels occur.

    Args:
        x: the inputs, one example per row.
        labels: 0 or 1 (or booleans), one per row.
        ridge: $λ ≥ 0$; ``sklearn.linear_model.LogisticRegression`` calls $1 / (2 N λ)$ its ``C``.
        check: check values under ``jit`` too, through checkify.

    Returns:
        ``{"kernel": (in, 1), "bias": (1,)}``.

    Raises:
        ValueError: where ``x`` is not a matrix with one row (or more) per label, for labels other than 0 and 1, for a
            negative ``ridge``, and where there is no finite optimum (under ``jit`` without ``check``: NaN).
        TypeError: for integer ``x`` or floating-point ``labels``.

    With one feature that is 0 or 1, the logits are the log odds in the two groups:

    >>> x = jnp.array([[0.0], [0.0], [0.0], [0.0], [1.0], [1.0]])
    >>> params = logistic_regression(x, jnp.array([0, 0, 0, 1, 0, 1]))
    >>> print(jnp.exp(params["bias"]).round(5), jnp.exp(params["kernel"]).round(5))
    [0.33333] [[3.]]

    Source: Hastie, Tibshirani & Friedman 2009, The elements of statistical learning, section 4.4; Krapac & Segvic, Deep
    feed-forward models ("Linear and nonlinear models").
    """
    _check_not_empty(x)
    dtype = x.dtype
    x = widen(x)
    labels = labels.astype(jnp.int32) if labels.dtype == bool else labels
    known = labels if check else concrete(labels)
    binary = ((known == 0) | (known == 1)).all()
    message = "labels 0 and 1, got {labels}; for labels -1 and 1 pass labels > 0"
    check_values(binary, message, check=check, labels=labels)
    ridge = _check_ridge(ridge, x.dtype, check)
    sign = jnp.where(labels == 1, 1, -1).astype(x.dtype)
    kernel, bias, found = _logistic(x, sign, ridge)
    check_values(
        found,
        "a loss with a finite optimum, got labels that a hyperplane separates (or only one label), so that the loss "
        "decreases without bound as the weights grow: no finite optimum; pass ridge > 0, and examples of both labels",
        check=check,
    )
    # Where no error can be raised (under jit), NaN instead of weights that depend on the number of steps.
    kernel, bias = (jnp.where(found & binary, leaf, jnp.nan) for leaf in (kernel, bias))
    return {"kernel": kernel.astype(dtype), "bias": bias.astype(dtype)}


# Both solvers are jitted here, so that an eager call compiles once per shape and not at every call.


@jax.jit
@full_precision()
def _least_squares(x, y, ridge):
    n = x.shape[0]
    centered, x_mean = _center(x)
    y_centered, y_mean = _center(y)
    centered, ridge, unit = _in_own_unit(centered, ridge)

    def fit(target):  # (n,) -> (in,)
        def gradient(weights):
            return centered.T @ (centered @ weights - target) / n + ridge * weights

        def solve(_, start):
            left, s, right, kept = _svd(centered)
            # Directions without data have gain 0: the solution of minimum norm, which is the limit for ridge to 0.
            gain = jnp.where(kept, s / jnp.where(kept, s * s + n * ridge, 1), 0)
            return right.T @ (gain * (left.T @ target)), ()

        start = varying_like(jnp.zeros(centered.shape[1], centered.dtype), centered, target, ridge)
        return _root(gradient, start, solve)[0]

    # One right-hand side at a time, so that `_root` sees a vector of unknowns.
    kernel = divided(jax.vmap(fit, in_axes=1, out_axes=1)(y_centered), unit)  # (in, out)
    return kernel, y_mean - x_mean @ kernel


@jax.jit
@full_precision()
def _logistic(x, sign, ridge):
    centered, mean = _center(x)
    centered, ridge, unit = _in_own_unit(centered, ridge)

    def gradient(weights):  # of the loss, in (w, b + mean w)
        residual = -sign * jax.nn.sigmoid(-sign * (centered @ weights[:-1] + weights[-1])) / len(x)
        return jnp.append(centered.T @ residual + 2 * ridge * weights[:-1], residual.sum())

    def solve(_, start):
        return _newton(centered, sign, ridge)

    # The bias is b + mean w in centered coordinates.
    start = varying_like(jnp.zeros(x.shape[1] + 1, x.dtype), x, sign, ridge)
    weights, found = _root(gradient, start, solve)
    kernel = divided(weights[:-1, None], unit)
    return kernel, weights[-1:] - mean @ kernel, found == 1


def _newton(x, sign, ridge):
    """The minimizer (w, b) for centered ``x``, and whether it exists (1.0 or 0.0: `lax.custom_root` takes floats).

    Works in coordinates in which the features are orthonormal, where steps are measured in logits and only the labels
    can make the Hessian ill-conditioned.
    """
    n = x.shape[0]
    eps = float(jnp.finfo(x.dtype).eps)
    left, s, right, kept = _svd(x)
    safe = jnp.where(kept, s, 1)
    # In the basis of the singular vectors, scaled so that features^T features / n is the identity; the last column is
    # for the bias.
    features = jnp.append(jnp.where(kept, left, 0) * math.sqrt(n), jnp.ones((n, 1), x.dtype), axis=1)  # (n, k + 1)
    # ridge |weights|^2, since the weights are right^T (w sqrt(n) / s).
    penalty = ridge * jnp.append(jnp.where(kept, n / safe**2, 0), jnp.zeros(1, x.dtype))  # (k + 1,)
    # 1 on the diagonal of the Hessian for directions without data, which keeps it invertible.
    unused = jnp.append(~kept, False).astype(x.dtype)
    one_class = jnp.all(sign == sign[0])

    def loss(w):
        return jnp.mean(jax.nn.softplus(-sign * (features @ w))) + jnp.sum(penalty * w**2)

    def hessian(w):
        z = features @ w
        curvature = jax.nn.sigmoid(z) * jax.nn.sigmoid(-z)
        return features.T @ (features * curvature[:, None]) / n + jnp.diag(2 * penalty + unused)

    def unbounded(w):  # all signs are correct and w is not penalized: 2 w has a smaller loss
        return jnp.all(sign * (features @ w) > 0) & ((ridge == 0) | one_class)

    def unfinished(carry):
        w, size, count = carry
        return (size > math.sqrt(eps)) & (count < 100) & ~unbounded(w)

    def step(carry):
        w, _, count = carry
        residual = -sign * jax.nn.sigmoid(-sign * (features @ w)) / n
        gradient = features.T @ residual + 2 * penalty * w
        direction = -jnp.linalg.solve(hessian(w), gradient)
        # All step lengths at once, by vmap: a loop that halves would be sequential.
        lengths = 0.5 ** jnp.arange(20, dtype=x.dtype)
        here, slope = loss(w), gradient @ direction
        there = jax.vmap(lambda length: loss(w + length * direction))(lengths)
        # Armijo's condition; the last term allows for the rounding of the loss.
        enough = there <= here + 1e-4 * lengths * slope + 4 * eps * here
        length = jnp.where(jnp.any(enough), lengths[jnp.argmax(enough)], lengths[-1])
        size = jnp.max(jnp.abs(features @ direction)) / (1 + jnp.max(jnp.abs(features @ w)))
        return w + length * direction, size, count + 1

    start = jnp.zeros(features.shape[1], x.dtype), jnp.full((), jnp.inf, x.dtype)
    w, size, _ = lax.while_loop(unfinished, step, (*varying_like(start, x, sign, ridge), 0))
    # With points on the hyperplane w diverges too, one logit per step, and the Hessian tends to zero.
    curved = jnp.linalg.eigvalsh(hessian(w))[0] > 4 * features.shape[1] * eps
    found = (size <= math.sqrt(eps)) & ~unbounded(w) & curved
    # Back from the basis of singular vectors to that of the features.
    return jnp.append(right.T @ jnp.where(kept, w[:-1] * math.sqrt(n) / safe, 0), w[-1:]), found.astype(x.dtype)


def _root(gradient, start, solve):
    """The root of ``gradient`` that ``solve`` finds, with the derivatives of the implicit function."""

    def tangent_solve(linear, rhs):
        return jnp.linalg.pinv(jax.jacobian(linear)(jnp.zeros_like(rhs)), hermitian=True) @ rhs

    # Derivatives by the implicit function theorem: those of an SVD are infinite where singular values are equal.
    return lax.custom_root(gradient, start, solve, tangent_solve, has_aux=True)


def _svd(x):
    """Singular vectors (n, k), values (k,) and vectors (k, in), and which values exceed rounding errors."""
    left, s, right = jnp.linalg.svd(x, full_matrices=False)
    return left, s, right, s > max(x.shape) * float(jnp.finfo(x.dtype).eps) * s[:1]


def _in_own_unit(centered, ridge):
    """The data and the penalty in a unit, a power of two, and the unit, by which weights are divided afterwards.

    The Hessian has squares of the data, which in float32 leave the range for data above 1e19 or below 1e-19.
    """
    largest = jnp.max(jnp.abs(centered), initial=0)
    unit = unit_of(jnp.maximum(largest, jnp.sqrt(lax.stop_gradient(ridge))))
    return divided(centered, unit), divided(divided(ridge, unit), unit), unit


def _center(x):
    """The centered data and the mean; a constant column becomes exactly zero."""
    # Shifted by the first row: the mean of a constant column would differ from its value by rounding.
    shifted = x - x[:1]
    center = shifted.mean(axis=0, keepdims=True)
    return shifted - center, (x[:1] + center)[0]


def _check_not_empty(x) -> None:
    require(x.shape[0] > 0, "at least one example", x, "pass x and y with at least one row")


def _check_ridge(ridge, dtype, check):
    """The penalty as an array, NaN if it is negative."""
    ridge = jnp.asarray(ridge, dtype)
    check_values(ridge >= 0, "ridge >= 0, got {ridge}; pass for instance ridge=0.01", check=check, ridge=ridge)
    return jnp.where(ridge >= 0, ridge, jnp.nan)
