"""The probability simplex: functions that map to it, and checks that an array lies in it.

A distribution P on n classes is an array of n probabilities along one axis (``axis``, by default the last): entries
at least 0 that sum to 1. Scores, or logits, are arrays of any real numbers; ``softmax`` maps them to a distribution.
Classes and labels count from 0. (Diehl and Cevher count from 1.)

Half precision is computed in float32 and returned in its own dtype. Logarithms are natural.
"""

import functools
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Integer
from numpy.lib.array_utils import normalize_axis_tuple

from jaxblocks.backend.precision import widen
from jaxblocks.backend.symbolic_sizes import Size, at_most
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import NonNegativeFloat, PositiveInt, Range, checked
from jaxblocks.checks.values import check_range, check_values, checkable
from jaxblocks.core.lazy import explain_missing_names

__all__ = [
    "Share",
    "check_distribution",
    "check_labels",
    "is_distribution",
    "log_softmax",
    "logsumexp",
    "one_hot",
    "smooth_labels",
    "softargmax",
    "softmax",
    "softmax_fixed",
    "softmax_mean",
]
explain_missing_names(__name__)


Axis = int | tuple[int, ...] | None
"""One axis, several, or ``None`` for all, as in the reductions of ``jax.numpy``."""

Share = Annotated[float | int, Range(0, most=1)] | Float[Array, ""]
"""A number from 0 to 1, which may be traced."""


# Scores to probabilities ---------------------------------------------------------------------------------------------


@checked
def softmax(
    x: Float[Array, "*shape"], axis: Axis = -1, where: Bool[Array, "*shape"] | None = None
) -> Float[Array, "*shape"]:
    """Softmax: map scores to probabilities along one axis.

    softmax(x)_i = exp(x_i) / sum_j exp(x_j), the sum over ``axis`` (several axes form one, ``None`` stands for all),
    and over the scores where ``where`` is True; the others get probability 0, whatever they are, also in a slice where
    ``where`` is False everywhere. Adding the same number to all scores changes nothing, so the largest is subtracted
    first, and ``exp`` does not overflow. (Except under ``jit``, as in ``jax.nn.softmax``: where a product gives the
    scores, the compiler may round it once for the largest and not at all for the difference, and scores beyond about
    1e9 may give NaN.) A single score gives exactly 1; with two or more, each probability is strictly between
    0 and 1, but floats round to 0 and 1 when scores are far apart.

    A score of -inf gets probability 0. A slice where all scores are -inf, or one is +inf, gives NaN: no distribution
    has those scores. Derivatives of every order are 0 with respect to scores that are -inf or do not count.

    >>> print([f"{p:.4f}" for p in softmax(jnp.array([1.0, 2.0, 3.0]))])
    ['0.0900', '0.2447', '0.6652']

    Sources: Bridle 1990, Probabilistic interpretation of feedforward classification network outputs; Diehl 2023,
    section 2.1 (Lemma 2.1, for the open interval (0, 1) and n >= 2); Krapac & Segvic, Deep feed-forward models.
    """
    axis = _checked_axis(x, axis)
    if where is None:
        return _softmax(widen(x), axis).astype(x.dtype)
    scores = _exclude(widen(x), axis, where)
    # A slice where nothing counts has a uniform softmax (see `_exclude`); where makes it 0.
    return jnp.where(where, _softmax(scores, axis), 0).astype(x.dtype)


def _softmax(x, axis):
    return _of_shifted(shift(x, axis), axis)


def shift(x, axis):
    """The scores minus the largest one, which derivatives treat as a constant."""
    return x - jax.lax.stop_gradient(jnp.max(x, axis, keepdims=True, initial=-jnp.inf))


# With these two rules derivatives of every order multiply by differences of probabilities, and not by exponentials: at
# steep scores Laplacians are 0 and not NaN, and derivatives of higher order take less time.


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _of_shifted(x, axis):
    weights = jnp.exp(x)
    return weights / jnp.sum(weights, axis, keepdims=True)


@_of_shifted.defjvp
def _push_softmax(axis, primals, tangents):
    [x], [d_x] = primals, tangents
    y = _of_shifted(x, axis)
    return y, y * (d_x - jnp.sum(y * d_x, axis, keepdims=True))


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def log_sum(x, axis):
    """log sum_j exp(x_j) of scores that `shift` returns; the axis keeps its place."""
    return jnp.log(jnp.sum(jnp.exp(x), axis, keepdims=True))


@log_sum.defjvp
def _push_log_sum(axis, primals, tangents):
    [x], [d_x] = primals, tangents
    return log_sum(x, axis), jnp.sum(_of_shifted(x, axis) * d_x, axis, keepdims=True)


def log_probabilities(x, axis: Axis = -1):
    """`log_softmax` without its checks."""
    x = shift(x, axis)
    return x - log_sum(x, axis)


# softmax approximates the one-hot vector of argmax, not max, hence this name (Diehl 2023, Remark 2.2).
softargmax = softmax


@checked
def log_softmax(
    x: Float[Array, "*shape"], axis: Axis = -1, where: Bool[Array, "*shape"] | None = None
) -> Float[Array, "*shape"]:
    """Logarithms of the softmax probabilities, without computing the probabilities.

    log softmax(x)_i = x_i - log sum_j exp(x_j), in nats, the sum over ``axis``. Stays finite where a probability
    rounds to 0. ``axis`` and ``where`` are those of ``softmax``; what is excluded gets -inf. A score of -inf gives
    -inf; a slice where all scores are -inf, or one is +inf, gives NaN. Derivatives of every order are exact: the first
    is the identity minus ``softmax``.

    >>> print(log_softmax(jnp.array([0.0, 1000.0])))
    [-1000.     0.]

    Source: Goodfellow, Bengio & Courville 2016, Deep learning, section 6.2.2; Krapac & Segvic, Deep feed-forward models
    (logits).
    """
    axis = _checked_axis(x, axis)
    if where is None:
        return log_probabilities(widen(x), axis).astype(x.dtype)
    scores = _exclude(widen(x), axis, where)
    return jnp.where(where, log_probabilities(scores, axis), -jnp.inf).astype(x.dtype)


@checked
def logsumexp(
    x: Float[Array, "*shape"], axis: Axis = -1, where: Bool[Array, "*shape"] | None = None
) -> Float[Array, "..."]:
    """Log-sum-exp, a smooth maximum of the entries along one axis.

    LSE(x) = log sum_i exp(x_i) = m + log sum_i exp(x_i - m) with m = max_i x_i, in nats. The result lacks ``axis``, one
    axis, several, or all for ``None``; the sum is over the entries where ``where`` is True. With C entries, 0 <= LSE(x)
    - max(x) <= log C. Its gradient is ``softmax``. If all entries are -inf, or none counts, it is -inf; no softmax
    exists there, and derivatives of every order are 0 by choice. An entry of +inf gives +inf, with a gradient of NaN.

    >>> print(f"{logsumexp(jnp.array([1.0, 2.0, 3.0])):.4f}")
    3.4076

    Source: Boyd & Vandenberghe 2004, Convex optimization, section 3.1.5; Krapac & Segvic, Deep feed-forward models (the
    real softmax).
    """
    axis = _checked_axis(x, axis)
    scores = widen(x) if where is None else jnp.where(where, widen(x), -jnp.inf)
    largest = jax.lax.stop_gradient(jnp.max(scores, axis, keepdims=True, initial=-jnp.inf))
    origin = jnp.where(jnp.isfinite(largest), largest, 0)
    # The logarithm of an empty sum, whose derivative is 0 / 0, is left out of the derivative.
    none = largest == -jnp.inf
    total = origin + log_sum(jnp.where(none, 0, scores) - origin, axis)
    return jnp.squeeze(jnp.where(none, -jnp.inf, total), axis).astype(x.dtype)


@checked
def softmax_mean(z: Float[Array, "*shape"], q: Float[Array, "*shape"], axis: Axis = -1) -> Float[Array, "..."]:
    """Mean of quantities weighted by the softmax of their scores.

    softmax-mean(z, q) = softmax(z)^T q: scores ``z``, quantities ``q`` of the same shape, summed over ``axis``.
    With q = z it is a smooth maximum that, unlike ``logsumexp``, never exceeds the largest entry. It is attention
    with one query. The lecture calls the second argument x in the formula and q in the text.

    Raises:
        ValueError: if the shapes differ.

    >>> z = jnp.array([1.0, 2.0, 3.0])
    >>> print(f"{softmax_mean(z, z):.4f}")
    2.5752

    Source: Krapac & Segvic, Deep feed-forward models (softmax mean).
    """
    axis = _checked_axis(z, axis)
    dtype = jnp.promote_types(z.dtype, q.dtype)
    return jnp.sum(_softmax(widen(z), axis) * widen(q), axis).astype(dtype)


@checked
def softmax_fixed(z: Float[Array, "*batch free"]) -> Float[Array, "*batch classes"]:
    """Softmax without the redundant score: the first of C classes has score 0, the other C - 1 are free.

    softmax_fixed(z) = softmax((0, z_1, ..., z_{C-1})). Softmax of C scores ignores a common shift, so only C - 1
    of them matter. For C = 2 the second probability is the sigmoid of z_1: softmax generalizes it.

    Shapes: (*batch, C - 1) to (*batch, C).

    >>> print([f"{p:.4f}" for p in softmax_fixed(jnp.array([1.5]))])
    ['0.1824', '0.8176']

    Source: Goodfellow, Bengio & Courville 2016, Deep learning, section 6.2.2; Krapac & Segvic, Deep feed-forward models
    (degrees of freedom of the softmax).
    """
    # By a column of zeros in front: the softmax does not change when a constant is added to all scores.
    return softmax(jnp.concatenate([jnp.zeros_like(z, shape=(*z.shape[:-1], 1)), z], axis=-1))


# Labels to probabilities ---------------------------------------------------------------------------------------------


@checked
def check_labels(
    labels: Integer[Array, "*batch"],
    classes: Size,
    *,
    name: str = "labels",
    repair: str = "subtract 1 from labels that count from 1, or provide more classes",
    check: bool = False,
) -> Bool[Array, "*batch"]:
    """Mask of valid labels, 0 <= label < classes; raises an error for concrete labels out of range.

    Raises:
        TypeError: if ``labels`` are not integers.
        ValueError: if concrete labels are out of range. Traced labels are checked only with ``check=True``, through
            ``checkify``. The error calls them ``name`` and advises ``repair``.

    >>> print(check_labels(jnp.array([0, 2]), 3))
    [ True  True]
    >>> check_labels(jnp.array([1, 3]), 3)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    ValueError: check_labels expected labels from 0 to 2, got labels from 1 to 3; ...
    """
    check_range(name, labels, 0, classes - 1, repair, check=check)
    most = jnp.iinfo(labels.dtype).max
    largest = most if at_most(most, classes - 1) else classes - 1  # 1000 classes are more than uint8 can count
    return (labels >= 0) & (labels <= largest)


@checked
def one_hot(
    labels: Integer[Array, "*batch"], classes: PositiveInt, *, dtype: DTypeLike = jnp.float32, check: bool = False
) -> Float[Array, "*batch {classes}"]:
    """One-hot vectors: for each label the distribution with probability 1 on that class.

    onehot(i) = e_i, the i-th unit vector of R^n, with n = ``classes`` and i counted from 0. As a distribution of
    labels it is the first argument of ``cross_entropy(p, q)``.

    Raises:
        ValueError: for a label outside 0, ..., n - 1. Under ``jit`` such a label gives a row of NaN (``jax.nn.one_hot``
            gives zeros, which is not a distribution), or an error through ``checkify`` with ``check=True``.

    >>> print(one_hot(jnp.array([2, 0]), 3))
    [[0. 0. 1.]
     [1. 0. 0.]]

    Source: Bishop 2006, Pattern recognition and machine learning, section 2.2; Diehl 2023, section 1.4.
    """
    repair = "leave dtype out, or convert the result with .astype"
    floating = jnp.issubdtype(dtype, jnp.floating)
    require(floating, "a floating-point dtype of the probabilities", str(jnp.dtype(dtype)), repair, error=TypeError)
    inside = check_labels(labels, classes, check=check)
    # As int32, since uint8 labels cannot be compared with 256 or more classes.
    rows = jax.nn.one_hot(jnp.where(inside, labels, 0).astype(jnp.int32), classes, dtype=dtype)
    # Where an error cannot be raised (under jit), NaN instead of a row of zeros, which is what jax.nn gives.
    return jnp.where(inside[..., None], rows, jnp.nan)


@checked
def smooth_labels(
    targets: Float[Array, "*batch classes"], smoothing: Share, *, check: bool = False
) -> Float[Array, "*batch classes"]:
    """Mix target distributions with the uniform one, which regularizes a classifier (label smoothing).

    (1 - epsilon) P + epsilon / C, with P = ``targets`` (for example one-hot rows), epsilon = ``smoothing`` between 0
    and 1, which may be traced, and C classes. From labels, ``softmax_cross_entropy`` does it with its option
    ``label_smoothing``. The optimal logits for a smoothed one-hot target have a finite gap,
    log((1 - epsilon + epsilon / C) / (epsilon / C)); for an unsmoothed target the gap is infinite.

    Raises:
        ValueError: for ``smoothing`` out of range, or if ``targets`` do not sum to 1 (known values, or ``check=True``).

    >>> print(smooth_labels(one_hot(jnp.array(2), 4), 0.5))
    [0.125 0.125 0.625 0.125]

    Source: Krapac & Segvic, Deep feed-forward models (names it); the formula is that of Szegedy et al. 2016,
    Rethinking the Inception architecture, section 7 (arXiv:1512.00567).
    """
    check_distribution(check=check, targets=targets)
    wide = widen(targets)
    smoothing = jnp.asarray(smoothing, wide.dtype)
    return ((1 - smoothing) * wide + smoothing / targets.shape[-1]).astype(targets.dtype)


# Checks --------------------------------------------------------------------------------------------------------------


@checked
def is_distribution(
    p: Float[Array, "*shape"], axis: Axis = -1, *, atol: NonNegativeFloat | None = None
) -> Bool[Array, "..."]:
    """Whether each slice of ``p`` along ``axis`` is a probability distribution.

    P_i >= 0 for all i, and sum_i P_i = 1 up to ``atol``. By default ``atol`` is the square root of the machine
    epsilon of the dtype, and at least 1e-6: 1e-6 for float64, 3.5e-4 for float32, 0.03 for float16 and 0.09 for
    bfloat16. Distributions pass in spite of rounding, and scores almost never do. NaN is not a probability.

    >>> print(is_distribution(jnp.array([[0.5, 0.5], [0.5, 0.4], [1.5, -0.5]])))
    [ True False False]

    Source: Boyd & Vandenberghe 2004, Convex optimization, section 2.2.4; Diehl 2023, section 1.4 (the set P_n).
    """
    return on_simplex(p, _checked_axis(p, axis), atol)


def on_simplex(p, axis: Axis = -1, atol: float | None = None):
    """`is_distribution` of an array of JAX or of NumPy."""
    if atol is None:
        atol = max(1e-6, float(jnp.finfo(p.dtype).eps) ** 0.5)
    # NumPy warns where a sum overflows, which here is only a value that is not near 1.
    with np.errstate(over="ignore", invalid="ignore"):
        return (p >= 0).all(axis) & (abs(widen(p).sum(axis) - 1) <= atol)


@checked
def check_distribution(*, check: bool = False, **named: Float[Array, "..."]) -> None:
    """Raise ``ValueError`` unless each named array holds distributions on its last axis.

    Concrete arrays are checked at once, traced ones only with ``check=True``, through ``checkify``. The tolerance
    is that of ``is_distribution``.

    >>> check_distribution(p=jnp.array([0.5, 0.5]))
    >>> check_distribution(p=jnp.array([0.5, 0.25]))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    ValueError: check_distribution expected probability distributions in p (no entry below 0, ...
    """
    for name, p in named.items():
        floating = hasattr(p, "dtype") and jnp.issubdtype(p.dtype, jnp.floating)
        repair = f"convert it with jnp.asarray({name}, jnp.float32)"
        require(floating, f"{name} to be a floating-point array", p, repair, error=TypeError)
        p = checkable(p, check)
        if p is None:
            continue
        with np.errstate(over="ignore", invalid="ignore"):
            sums = widen(p).sum(-1)
        repair = "pass softmax(scores), or divide by the sum"
        repair = repair if p.shape[-1] > 1 else "for one score of two classes use sigmoid_cross_entropy"
        check_values(
            on_simplex(p),
            f"probability distributions in {name} (no entry below 0, sum 1 over the last axis), got a minimum "
            "of {smallest} and sums from {low} to {high}; " + repair,
            check=check,
            smallest=p.min(initial=jnp.inf),
            low=sums.min(initial=jnp.inf),
            high=sums.max(initial=-jnp.inf),
        )


def _checked_axis(x, axis: Axis) -> Axis:
    """The axis, or the axes as a tuple of different ones that ``x`` has."""
    try:
        return axis if axis is None else normalize_axis_tuple(axis, x.ndim)
    except ValueError:  # AxisError is one
        names = f"axes {axis}" if isinstance(axis, tuple) else f"an axis {axis}"
        require(False, f"an array with {names} of classes", x, "pass such an array, or another axis")
        raise


def _exclude(scores, axis: Axis, where):
    """The scores with -inf where they do not count, and 0 in slices where none does."""
    some = jnp.any(where, axis, keepdims=True)
    # All scores of -inf would give 0 / 0.
    return jnp.where(where, scores, jnp.where(some, -jnp.inf, 0).astype(scores.dtype))
