"""Entropy, and distances between distributions on the classes of the last axis.

That rows are distributions is checked in eager calls, and with ``check=True``. Under ``jax.jit`` the formulas are
computed for any numbers, and of what is no distribution may be negative.

Their second derivatives with respect to probabilities contain 1 / q^2, which float32 holds for q above 1e-19. Those
with respect to the scores of a softmax are finite.
"""

import math
from collections.abc import Callable
from typing import Annotated

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Integer

from jaxblocks.backend.precision import wide_dtype, widen
from jaxblocks.backend.quotients import divide, log, vanishes
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import Range, checked
from jaxblocks.losses.arrays import check_last_axis, magnitude, widen_both
from jaxblocks.losses.masks import fill, zero
from jaxblocks.probabilities import check_distribution

__all__ = [
    "cross_entropy",
    "entropy",
    "jensen_gap",
    "jensen_shannon",
    "kl_divergence",
    "total_variation",
]


Base = Annotated[float | int, Range(1, open_below=True)]
"""The base of a logarithm: 2 for bits, e for nats."""


def _match_distributions(p, q, where, *, check):
    """Two distributions in the dtype to compute in, uniform where masked, and the dtype of the result."""
    check_last_axis(p)
    p, q = fill(where, p, 1 / p.shape[-1]), fill(where, q, 1 / q.shape[-1])
    check_distribution(check=check, p=p, q=q)
    return widen_both(p, q)


def _in_base(nats, base, where, dtype):
    return zero(where, nats / math.log(base)).astype(dtype)


def _relative_entropy(p, q, gap):
    """sum_i (p_i log(p_i / q_i) - p_i + q_i), all terms >= 0, with ``gap`` = q - p; 0 log 0 = 0 log(0/q) = 0.

    For distributions the added terms sum to 0; without them the sum has terms of both signs, and for close
    distributions its rounding error exceeds its value. With u = (q - p) / (q + p) is log(q / p) = 2 atanh(u). So a term
    is q - p - 2 p atanh(u) = u (q - p - 2 p u^2 (1/3 + u^2/5 + u^4/7 + ...)), where nothing cancels for small u.
    """
    both = vanishes(p + q)
    u = divide(gap, jnp.where(both, 1, p + q))
    # |u| < 0.2: q / p from 2/3 to 3/2.
    near = (jnp.square(u) < 0.04) & ~both
    v = jnp.where(near, u, 0)
    series = jnp.zeros_like(v)
    # Horner's scheme for 1/3 + u^2/5 + u^4/7 + ..., from the last term on.
    for k in range(25 if p.dtype == jnp.float64 else 11, 1, -2):  # until 0.2^(k - 1) is below the machine epsilon
        series = 1 / k + jnp.square(v) * series
    close = v * (gap - 2 * p * jnp.square(v) * series)
    # The inner where keeps log(0) and 0 / 0 out of the derivative.
    log_p, log_q = log(jnp.where(near | vanishes(p), 1, p)), log(jnp.where(near | both, 1, q))
    return jnp.sum(jnp.where(near, close, gap + p * (log_p - log_q)), -1)


def _without_noise(surplus, *dtypes):
    """sum p - sum q for distributions of these dtypes: 0 where it is a rounding error, with its own derivative."""
    eps = [float(jnp.finfo(dtype).eps) for dtype in dtypes]
    noise = 2 * max(eps) + 128 * float(jnp.finfo(surplus.dtype).eps)  # of rounding p and q, and of a softmax
    rounding = (surplus <= noise) & (surplus >= -noise)
    return surplus - jax.lax.stop_gradient(jnp.where(rounding, surplus, 0))


@checked
def entropy(
    p: Float[Array, "*batch classes"],
    *,
    base: Base = math.e,
    where: Bool[Array, "*batch"] | None = None,
    check: bool = False,
) -> Float[Array, "*batch"]:
    """Entropy of a distribution: the expected length of an optimal code for it.

    H(P) = -sum_i P_i log P_i with 0 log 0 = 0, in nats, or in bits with ``base=2``. Between 0 (a point mass) and
    log n (uniform) for distributions.

    The derivative with respect to a probability that is exactly 0 is infinite; 0 is returned there, so that gradients
    with respect to scores stay finite when a softmax probability has been rounded to 0. Elsewhere derivatives of every
    order are exact; but in float32 not the second derivatives with respect to probabilities below 1e-19, which are
    computed from 1 / P_i^2.

    Raises:
        ValueError: unless ``p`` sums to 1 (known values, or ``check=True``).

    >>> print(f"{entropy(jnp.array([0.5, 0.25, 0.25]), base=2):.4f} bits")
    1.5000 bits

    Source: Cover & Thomas 2006, Elements of information theory, chapter 2; Diehl 2023, section 1.4.
    """
    check_last_axis(p)
    # A masked row may be anything; the uniform distribution passes the check and has finite derivatives.
    p = fill(where, p, 1 / p.shape[-1])
    check_distribution(check=check, p=p)
    wide = widen(p)
    # The inner `where` keeps log(0) out of the derivative, where 0 times infinity would be NaN.
    return _in_base(jnp.sum(wide * -log(jnp.where(vanishes(wide), 1.0, wide)), -1), base, where, p.dtype)


@checked
def cross_entropy(
    p: Float[Array, "*batch classes"] | Integer[Array, "..."],
    q: Float[Array, "*batch classes"] | Integer[Array, "..."],
    *,
    base: Base = math.e,
    where: Bool[Array, "*batch"] | None = None,
    check: bool = False,
) -> Float[Array, "*batch"]:
    """Cross-entropy: expected length of a code for ``q`` when the true distribution is ``p``.

    CE(P, Q) = -sum_i P_i log Q_i = D_KL(P || Q) + H(P), in nats, or in bits with ``base=2``. Conventions:
    0 log 0 = 0, and p log 0 = -infinity for p > 0, so the result is +infinity if Q_i = 0 for some i with P_i > 0.
    Not symmetric, and not 0 at P = Q: there it takes its minimum over Q, H(P).

    A one-hot label is the *first* argument: then CE = -log Q_label. As the second argument it gives infinity unless
    P equals it. For scores use ``softmax_cross_entropy``, which cannot overflow.

    Both arguments are probabilities that sum to 1. (Cevher requires only entries in [0, 1]. PyTorch's
    ``CrossEntropyLoss`` takes scores and labels: that is ``softmax_cross_entropy``.) Derivatives of every
    order are exact wherever Q_i > 0, and 0 is returned for an infinite derivative where P_i = Q_i = 0. The second
    derivative P_i / Q_i^2 is beyond the range of float32 for Q_i below 1e-19.

    Raises:
        TypeError: for integer labels.
        ValueError: for unequal shapes, or if ``p`` or ``q`` does not sum to 1 (known values, or ``check=True``).

    >>> truth = jnp.array([0.5, 0.5])
    >>> print(f"{cross_entropy(truth, jnp.array([0.9, 0.1])):.4f}")
    1.2040

    Sources: Goodfellow, Bengio & Courville 2016, Deep learning, section 3.13; Diehl 2023, section 1.4 (Remark 1.10 for
    the slots); Krapac & Segvic, Deep feed-forward models; Cevher, Mathematics of Data.
    """
    for name, x in (("p", p), ("q", q)):
        repair = (
            "for scores and class labels call softmax_cross_entropy(logits, labels), for labels alone one_hot first"
        )
        floating = jnp.issubdtype(x.dtype, jnp.floating)
        require(floating, f"{name} to be an array of probabilities", x, repair, error=TypeError)
    p, q, dtype = _match_distributions(p, q, where, check=check)
    # Only where both are 0: p log 0 must remain infinite for p > 0.
    log_q = log(jnp.where((p == 0) & vanishes(q), 1.0, q))
    return _in_base(jnp.sum(p * -log_q, -1), base, where, dtype)


@checked
def kl_divergence(
    p: Float[Array, "*batch classes"],
    q: Float[Array, "*batch classes"],
    *,
    base: Base = math.e,
    where: Bool[Array, "*batch"] | None = None,
    check: bool = False,
) -> Float[Array, "*batch"]:
    """Kullback-Leibler divergence: the expected extra length of a code for ``q`` when the true distribution is ``p``.

    D_KL(P || Q) = sum_i P_i log(P_i / Q_i) = CE(P, Q) - H(P), in nats, or in bits with ``base=2``. (The lecture takes
    natural logarithms and calls the unit a bit.) Conventions: 0 log(0/q) = 0 also for q = 0, and p log(p/0) =
    +infinity for p > 0. For distributions it is never negative, 0 only for P = Q, and jointly convex:

        D(a P + (1-a) P' || a Q + (1-a) Q') <= a D(P || Q) + (1-a) D(P' || Q')    for 0 <= a <= 1

    (printed in the lecture without the prime of the last Q'). Not a metric: neither symmetric nor subject to the
    triangle inequality.

    The sum is over P_i log(P_i / Q_i) - P_i + Q_i, terms that are never negative: exact to rounding for close
    distributions too. What is added, sum Q - sum P, is 0 for distributions; beyond rounding errors it is subtracted.
    Under ``jit``, where values are not checked, the result for other arguments is the first sum, and may be negative.

    Derivatives of every order are exact wherever Q_i > 0. At P_i = 0 the derivatives of P_i log P_i with respect to P_i
    are infinite; 0 is used for them, so that derivatives with respect to scores stay finite. Where Q_i = 0 < P_i, the
    derivative with respect to Q_i is infinite too. The second derivative P_i / Q_i^2 is beyond the range of float32 for
    Q_i below 1e-19.

    Raises:
        ValueError: for unequal shapes, or if ``p`` or ``q`` does not sum to 1 (known values, or ``check=True``).

    >>> p, q = jnp.array([0.5, 0.5]), jnp.array([0.9, 0.1])
    >>> print(f"{kl_divergence(p, q):.4f} nats = {kl_divergence(p, q, base=2):.4f} bits")
    0.5108 nats = 0.7370 bits

    Source: Cover & Thomas 2006, Elements of information theory, chapter 2; Diehl 2023, section 1.4.
    """
    dtypes = p.dtype, q.dtype
    p, q, dtype = _match_distributions(p, q, where, check=check)
    nats = _relative_entropy(p, q, q - p) + _without_noise(jnp.sum(p - q, -1), *dtypes)
    return _in_base(nats, base, where, dtype)


@checked
def jensen_shannon(
    p: Float[Array, "*batch classes"],
    q: Float[Array, "*batch classes"],
    *,
    base: Base = math.e,
    where: Bool[Array, "*batch"] | None = None,
    check: bool = False,
) -> Float[Array, "*batch"]:
    """Jensen-Shannon divergence: the mean KL divergence to the midpoint, symmetric and always finite.

    JS(P, Q) = (D_KL(P || M) + D_KL(Q || M)) / 2 with M = (P + Q) / 2, in nats, or in bits with ``base=2``. For
    distributions between 0 and log 2. Its square root is a metric, which has no derivative at P = Q.

    Derivatives of every order are exact where P_i and Q_i are positive. Where one of them is 0 and the other is not,
    the derivative of P_i log P_i at 0 is infinite; 0 is used for it. Where both are 0, the derivatives are 0. In
    float32, second derivatives with respect to probabilities below 1e-19 are not exact: they are computed from the
    square of 1 / (P_i + Q_i).

    Raises:
        ValueError: for unequal shapes, or if ``p`` or ``q`` does not sum to 1 (known values, or ``check=True``).

    >>> p, q = jnp.array([1.0, 0.0]), jnp.array([0.0, 1.0])
    >>> print(f"{jensen_shannon(p, q, base=2):.4f} bit")
    1.0000 bit

    Source: Lin 1991, Divergence measures based on the Shannon entropy (not in the lectures).
    """
    p, q, dtype = _match_distributions(p, q, where, check=check)
    # m - p is computed as (q - p) / 2, which is exact for close p and q; m - p itself would cancel.
    m, half = 0.5 * (p + q), 0.5 * (q - p)
    return _in_base(0.5 * (_relative_entropy(p, m, half) + _relative_entropy(q, m, -half)), base, where, dtype)


@checked
def total_variation(
    p: Float[Array, "*batch classes"],
    q: Float[Array, "*batch classes"],
    *,
    where: Bool[Array, "*batch"] | None = None,
    check: bool = False,
) -> Float[Array, "*batch"]:
    """The largest difference of the probabilities that two distributions give to one event.

    d(P, Q) = sup_A |P(A) - Q(A)| over all sets A of classes = 1/2 sum_i |P_i - Q_i|; A = {i : P_i >= Q_i} attains it.
    A metric with values in [0, 1]. The subgradient where P_i = Q_i is 0.

    Raises:
        ValueError: for unequal shapes, or if ``p`` or ``q`` does not sum to 1 (known values, or ``check=True``).

    >>> print(total_variation(jnp.array([0.5, 0.5]), jnp.array([0.75, 0.25])))
    0.25

    Source: Levin & Peres 2017, Markov chains and mixing times, section 4.1; Diehl 2023, section 1.4.
    """
    p, q, dtype = _match_distributions(p, q, where, check=check)
    return zero(where, 0.5 * jnp.sum(magnitude(p - q), -1)).astype(dtype)


@checked
def jensen_gap(
    function: Callable, points: Float[Array, "n *features"], weights: Float[Array, "n"], *, check: bool = False
) -> Float[Array, ""]:
    """Jensen gap: the mean of a function minus the function of the mean.

    sum_i p_i phi(x_i) - phi(sum_i p_i x_i), with phi = ``function`` from one point to one number, x_i = ``points[i]``
    and p_i = ``weights[i]``. Never negative for convex phi (Jensen's inequality), never positive for concave phi.
    D_KL(P || Q) is the gap of phi(x) = x log x at the points P_i / Q_i with weights Q_i.

    Raises:
        ValueError: unless there is one weight per point and the weights sum to 1 (known values, or ``check=True``).

    >>> print(jensen_gap(jnp.square, jnp.array([-1.0, 1.0]), jnp.array([0.5, 0.5])))
    1.0

    Source: Cover & Thomas 2006, Elements of information theory, chapter 2; Diehl 2023, section 1.4 (Lemma 1.9; its
    induction step divides by 1 - p_{n+1}, not 1 - p_n).
    """
    check_distribution(check=check, weights=weights)
    dtype = jnp.promote_types(points.dtype, weights.dtype)
    points, weights = (x.astype(wide_dtype(dtype)) for x in (points, weights))
    values = jax.vmap(function)(points)
    repair = "sum or index its result"
    require(values.shape == weights.shape, "a function from one point to one number", values[0], repair)
    # (n, 1, ...), to weight points of any shape.
    column = weights.reshape(weights.shape + (1,) * (points.ndim - 1))
    return (jnp.sum(weights * values) - function(jnp.sum(column * points, 0))).astype(dtype)
