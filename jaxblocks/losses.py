"""Losses: one number per example. The caller takes the mean over examples.

Every loss reduces the last axis (the classes, or the features of one example) and keeps all others: (*batch, n)
becomes (*batch,). Distances between distributions and likelihoods *sum* over classes or features, as their formulas
do; ``mse``, ``mae`` and ``huber_loss`` take the *mean* over features. So ``mse`` of two arrays of shape (n,) is one
number, the ordinary mean squared error; for one loss per example, give scalar predictions the shape (*batch, 1).
Three losses of scalars (``sigmoid_cross_entropy``, ``hinge_loss``, ``zero_one_loss``) reduce nothing.

    loss = softmax_cross_entropy(logits, labels).mean()

Nothing is broadcast: predictions and targets of unequal shapes raise a ``ValueError``. Logarithms are natural, so
values are in nats; the divergences take ``base=2`` for bits.

Concrete values are checked: a distribution that does not sum to 1, or a label out of range, raises ``ValueError`` in
an eager call. Inside ``jit`` and ``vmap`` values are not available: a label out of range gives NaN (value and
gradient), and other invalid values are not detected. With ``check=True`` and
``jax.experimental.checkify`` they raise an error (see ``jaxblocks.checks``).

Half precision is computed in float32 and returned in its own dtype.
"""

import math
from collections.abc import Callable
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Integer, PyTree

from jaxblocks.checks import Range, check_values, checkable, checked, describe, public_name, require
from jaxblocks.precision import widen
from jaxblocks.probabilities import check_distribution, check_labels, is_distribution

__all__ = [
    "cross_entropy",
    "distillation_loss",
    "entropy",
    "gaussian_nll",
    "hinge_loss",
    "huber_loss",
    "jensen_gap",
    "jensen_shannon",
    "kl_divergence",
    "l1_penalty",
    "l2_penalty",
    "lp_distance",
    "mae",
    "mse",
    "nll",
    "sigmoid_cross_entropy",
    "soft_threshold",
    "softmax_cross_entropy",
    "total_variation",
    "zero_one_loss",
]


Base = Annotated[float | int, Range(1, open_below=True)]
"""The base of a logarithm: 2 for bits, e for nats."""


def _widen(a, b):
    """Two arrays in the dtype to compute in, and the dtype of the result."""
    return widen(a), widen(b), jnp.promote_types(a.dtype, b.dtype)


def _size(x):
    """|x| with derivative 0 at 0 (``jnp.abs`` has 1), so that the gradient at a perfect fit is 0."""
    return x * jnp.sign(x)


def _check_last_axis(x):
    require(x.shape[-1] > 0, "at least one entry on the last axis", x)


def _check_positive(name, value):
    if not isinstance(value, Tracer):
        require(value > 0, f"{name} > 0", f"{value}", "1.0 is a common first choice")


# Between distributions -----------------------------------------------------------------------------------------------


def _match_distributions(p, q, *, check):
    """Two distributions in the dtype to compute in, and the dtype of the result."""
    _check_last_axis(p)
    check_distribution(check=check, p=p, q=q)
    return _widen(p, q)


def _in_base(nats, base, dtype):
    return (nats / math.log(base)).astype(dtype)


def _relative_entropy(p, q):
    """sum_i p_i log(p_i / q_i) with 0 log 0 = 0 log(0/q) = 0, finite in its gradients wherever p_i = 0."""
    log_p = jnp.log(jnp.where(p == 0, 1.0, p))
    log_q = jnp.log(jnp.where((p == 0) & (q == 0), 1.0, q))
    return jnp.sum(p * (log_p - log_q), -1)


@checked
def entropy(p: Float[Array, "*batch classes"], *, base: Base = math.e, check: bool = False) -> Float[Array, "*batch"]:
    """Entropy of a distribution: the expected length of an optimal code for it.

    H(P) = -sum_i P_i log P_i with 0 log 0 = 0, in nats, or in bits with ``base=2``. Between 0 (a point mass) and
    log n (uniform).

    The derivative with respect to a probability that is exactly 0 is infinite; 0 is returned there, so that gradients
    with respect to scores stay finite when a softmax probability has been rounded to 0.

    Raises ``ValueError`` unless ``p`` sums to 1 (known values, or ``check=True``).

    >>> print(f"{entropy(jnp.array([0.5, 0.25, 0.25]), base=2):.4f} bits")
    1.5000 bits

    Source: Diehl 2023, section 1.4.
    """
    _check_last_axis(p)
    check_distribution(check=check, p=p)
    wide = widen(p)
    return _in_base(jnp.sum(wide * -jnp.log(jnp.where(wide == 0, 1.0, wide)), -1), base, p.dtype)


@checked
def cross_entropy(
    p: Float[Array, "*batch classes"],
    q: Float[Array, "*batch classes"],
    *,
    base: Base = math.e,
    check: bool = False,
) -> Float[Array, "*batch"]:
    """Cross-entropy: expected length of a code for ``q`` when the true distribution is ``p``.

    CE(P, Q) = -sum_i P_i log Q_i = D_KL(P || Q) + H(P), in nats, or in bits with ``base=2``. Conventions:
    0 log 0 = 0, and p log 0 = -infinity for p > 0, so the result is +infinity if Q_i = 0 for some i with P_i > 0.
    Not symmetric, and not 0 at P = Q: there it takes its minimum over Q, H(P).

    A one-hot label is the *first* argument: then CE = -log Q_label. As the second argument it gives infinity unless
    P equals it. For scores use ``softmax_cross_entropy``, which cannot overflow.

    Both arguments are probabilities that sum to 1. (Cevher asks only for entries in [0, 1]. PyTorch's
    ``CrossEntropyLoss`` takes scores and labels: that is ``softmax_cross_entropy``.) Gradients are finite wherever
    Q_i > 0, and 0 is returned for an infinite derivative where P_i = Q_i = 0.

    Raises ``ValueError`` for unequal shapes, or if ``p`` or ``q`` does not sum to 1 (known values, or ``check=True``).

    >>> truth = jnp.array([0.5, 0.5])
    >>> print(f"{cross_entropy(truth, jnp.array([0.9, 0.1])):.4f}")
    1.2040

    Sources: Diehl 2023, section 1.4 (Remark 1.10 for the slots); Krapac & Segvic, Deep feed-forward models; Cevher,
    Mathematics of Data.
    """
    p, q, dtype = _match_distributions(p, q, check=check)
    log_q = jnp.log(jnp.where((p == 0) & (q == 0), 1.0, q))
    return _in_base(jnp.sum(p * -log_q, -1), base, dtype)


@checked
def kl_divergence(
    p: Float[Array, "*batch classes"],
    q: Float[Array, "*batch classes"],
    *,
    base: Base = math.e,
    check: bool = False,
) -> Float[Array, "*batch"]:
    """Kullback-Leibler divergence: the expected extra length of a code for ``q`` when the true distribution is ``p``.

    D_KL(P || Q) = sum_i P_i log(P_i / Q_i) = CE(P, Q) - H(P), in nats, or in bits with ``base=2``. (The lecture takes
    natural logarithms and speaks of bits.) Conventions: 0 log(0/q) = 0 also for q = 0, and p log(p/0) = +infinity for
    p > 0. Never negative (up to rounding), 0 only for P = Q, jointly convex:

        D(a P + (1-a) P' || a Q + (1-a) Q') <= a D(P || Q) + (1-a) D(P' || Q')    for 0 <= a <= 1

    (printed in the lecture without the prime of the last Q'). Not a metric: neither symmetric nor subject to the
    triangle inequality.

    Gradients are finite wherever Q_i > 0. At P_i = 0 the derivative of P_i log P_i with respect to P_i is infinite;
    0 is used for it, so that gradients with respect to scores stay finite.

    Raises ``ValueError`` for unequal shapes, or if ``p`` or ``q`` does not sum to 1 (known values, or ``check=True``).

    >>> p, q = jnp.array([0.5, 0.5]), jnp.array([0.9, 0.1])
    >>> print(f"{kl_divergence(p, q):.4f} nats = {kl_divergence(p, q, base=2):.4f} bits")
    0.5108 nats = 0.7370 bits

    Source: Diehl 2023, section 1.4.
    """
    p, q, dtype = _match_distributions(p, q, check=check)
    return _in_base(_relative_entropy(p, q), base, dtype)


@checked
def jensen_shannon(
    p: Float[Array, "*batch classes"],
    q: Float[Array, "*batch classes"],
    *,
    base: Base = math.e,
    check: bool = False,
) -> Float[Array, "*batch"]:
    """Jensen-Shannon divergence: the mean KL divergence to the midpoint, symmetric and always finite.

    JS(P, Q) = (D_KL(P || M) + D_KL(Q || M)) / 2 with M = (P + Q) / 2, in nats, or in bits with ``base=2``. Between 0
    and log 2. Its square root is a metric.

    Raises ``ValueError`` for unequal shapes, or if ``p`` or ``q`` does not sum to 1 (known values, or ``check=True``).

    >>> print(f"{jensen_shannon(jnp.array([1.0, 0.0]), jnp.array([0.0, 1.0]), base=2):.4f} bit")
    1.0000 bit

    Source: Lin 1991, Divergence measures based on the Shannon entropy (not in the lectures).
    """
    p, q, dtype = _match_distributions(p, q, check=check)
    m = 0.5 * (p + q)
    return _in_base(0.5 * (_relative_entropy(p, m) + _relative_entropy(q, m)), base, dtype)


@checked
def total_variation(
    p: Float[Array, "*batch classes"], q: Float[Array, "*batch classes"], *, check: bool = False
) -> Float[Array, "*batch"]:
    """The largest difference of the probabilities that two distributions give to one event.

    d(P, Q) = sup_A |P(A) - Q(A)| over all sets A of classes = 1/2 sum_i |P_i - Q_i|; A = {i : P_i >= Q_i} attains it.
    A metric with values in [0, 1].

    Raises ``ValueError`` for unequal shapes, or if ``p`` or ``q`` does not sum to 1 (known values, or ``check=True``).

    >>> print(total_variation(jnp.array([0.5, 0.5]), jnp.array([0.75, 0.25])))
    0.25

    Source: Diehl 2023, section 1.4.
    """
    p, q, dtype = _match_distributions(p, q, check=check)
    return (0.5 * jnp.sum(_size(p - q), -1)).astype(dtype)


@checked
def lp_distance(
    p: Float[Array, "*batch classes"],
    q: Float[Array, "*batch classes"],
    order: float | int,
    *,
    check: bool = False,
) -> Float[Array, "*batch"]:
    """L^p distance of two distributions.

    d(P, Q) = (sum_i |P_i - Q_i|^r)^(1/r) with r = ``order``, a Python number >= 1; ``math.inf`` gives max_i
    |P_i - Q_i|. A metric for r >= 1 only: below 1 the triangle inequality fails. The subgradient at P = Q is 0.

    Raises ``ValueError`` for ``order`` < 1, for unequal shapes, or if ``p`` or ``q`` does not sum to 1 (known values,
    or ``check=True``).

    >>> p, q = jnp.array([0.5, 0.5]), jnp.array([0.9, 0.1])
    >>> print(f"{lp_distance(p, q, 1):.4f} {lp_distance(p, q, 2):.4f}")
    0.8000 0.5657

    Source: Diehl 2023, section 1.4.
    """
    p, q, dtype = _match_distributions(p, q, check=check)
    require(order >= 1, "order >= 1, since below 1 it is not a metric", order, "use 1 or 2")
    gap = _size(p - q)
    largest = jnp.max(gap, -1, keepdims=True)
    if math.isinf(order):
        return largest[..., 0].astype(dtype)
    # Scaled by its largest entry (constant for derivatives), so that no power underflows; at P = Q by 1.
    equal = largest == 0
    scale = jax.lax.stop_gradient(jnp.where(equal, 1.0, largest))
    total = jnp.sum(jnp.where(equal, 0.0, gap / scale) ** order, -1)
    root = jnp.where(equal[..., 0], 0.0, jnp.where(equal[..., 0], 1.0, total) ** (1 / order))
    return (scale[..., 0] * root).astype(dtype)


@checked
def jensen_gap(
    function: Callable, points: Float[Array, "n *features"], weights: Float[Array, "n"], *, check: bool = False
) -> Float[Array, ""]:
    """Jensen gap: the mean of a function minus the function of the mean.

    sum_i p_i phi(x_i) - phi(sum_i p_i x_i), with phi = ``function`` from one point to one number, x_i = ``points[i]``
    and p_i = ``weights[i]``. Never negative for convex phi (Jensen's inequality), never positive for concave phi.
    D_KL(P || Q) is the gap of phi(x) = x log x at the points P_i / Q_i with weights Q_i.

    Raises ``ValueError`` unless there is one weight per point and the weights sum to 1 (known values, or
    ``check=True``).

    >>> print(jensen_gap(jnp.square, jnp.array([-1.0, 1.0]), jnp.array([0.5, 0.5])))
    1.0

    Source: Diehl 2023, section 1.4 (Lemma 1.9; its induction step divides by 1 - p_{n+1}, not 1 - p_n).
    """
    check_distribution(check=check, weights=weights)
    values = jax.vmap(function)(points)
    repair = "sum or index its result"
    require(values.shape == weights.shape, "a function from one point to one number", values[0], repair)
    column = weights.reshape(weights.shape + (1,) * (points.ndim - 1))
    return jnp.sum(weights * values) - function(jnp.sum(column * points, 0))


# From scores ---------------------------------------------------------------------------------------------------------


def _at_label(x, labels, inside):
    """x[..., label] per example; NaN, gradient included, where the label is not a class."""
    index = jnp.where(inside, labels, 0).astype(jnp.int32)[..., None]
    picked = jnp.take_along_axis(x, index, -1, mode="clip")[..., 0]
    return picked * jnp.where(inside, 1.0, jnp.nan).astype(x.dtype)


def _soft_cross_entropy(logits, targets):
    log_q = jax.nn.log_softmax(logits)
    # A class masked by a score of -inf contributes 0 if its target is 0.
    return -jnp.sum(targets * jnp.where((targets == 0) & (log_q == -jnp.inf), 0.0, log_q), -1)


@checked
def softmax_cross_entropy(
    logits: Float[Array, "*batch classes"],
    targets: Integer[Array, "..."] | Float[Array, "..."],
    *,
    check: bool = False,
) -> Float[Array, "*batch"]:
    """Cross-entropy of the softmax of scores, from labels or from target distributions.

    With z = ``logits``, in nats, summed over classes:

    - integer labels y of shape (*batch,): -log softmax(z)_y = log sum_j exp(z_j) - z_y, the negative log-likelihood of
      a categorical model. Gradient: softmax(z)_i - 1[i = y].
    - floating-point distributions t of shape (*batch, classes): -sum_i t_i log softmax(z)_i. Gradient: softmax(z) - t.

    The two are distinguished by dtype and shape; other targets raise a ``ValueError``. Labels count from 0. Finite for
    all finite scores. A score of -inf excludes its class: the loss is infinite if that class is the label, and
    otherwise the class is ignored.

    If the score of the correct class exceeds all others by a margin d, the loss is at most log(1 + (C - 1) exp(-d));
    for a correct prediction it is at most log C, for a wrong one at least log 2. So the loss in bits, loss / log 2,
    bounds ``zero_one_loss`` from above (the loss in nats does not).

    Raises ``ValueError`` for a label out of range or a target that does not sum to 1 (known values, or
    ``check=True``). Under ``jit`` a label out of range gives NaN.

    >>> h = jnp.array([0.1, -0.8, 1.4, 1.1])
    >>> print([f"{loss:.4f}" for loss in softmax_cross_entropy(jnp.stack([h, h]), jnp.array([1, 2]))])
    ['2.9534', '0.7534']
    >>> print(f"{softmax_cross_entropy(h, jnp.array([0.0, 0.5, 0.5, 0.0])):.4f}")
    1.8534

    Sources: Krapac & Segvic, Deep feed-forward models; Cevher, Mathematics of Data (labels there count from 1).
    """
    _check_last_axis(logits)
    z = widen(logits)
    if jnp.issubdtype(targets.dtype, jnp.integer) and targets.shape == z.shape[:-1]:
        inside = check_labels(targets, z.shape[-1], check=check)
        # Shifted by the largest score, which derivatives treat as a constant. Indexing the scores rather than
        # log_softmax stores no residual of shape (*batch, classes) for the gradient except the scores.
        largest = jax.lax.stop_gradient(jnp.max(z, -1))
        log_sum = jnp.log(jnp.sum(jnp.exp(z - largest[..., None]), -1))
        return (log_sum - (_at_label(z, targets, inside) - largest)).astype(logits.dtype)
    if jnp.issubdtype(targets.dtype, jnp.floating) and targets.shape == z.shape:
        dtype = jnp.promote_types(logits.dtype, targets.dtype)
        check_distribution(check=check, targets=targets)
        return _soft_cross_entropy(z, widen(targets)).astype(dtype)
    labels = f"integer labels {logits.shape[:-1]} or floating-point distributions {logits.shape} as targets"
    repair = "reshape the labels, or convert them with one_hot"
    if jnp.issubdtype(targets.dtype, jnp.floating) and targets.shape == logits.shape[:-1]:
        repair = "class labels are integers; write targets.astype(jnp.int32)"
    require(False, f"{labels} of logits {describe(logits)}", targets, repair)
    raise AssertionError


@checked
def distillation_loss(
    student_logits: Float[Array, "*batch classes"],
    teacher_logits: Float[Array, "*batch classes"],
    *,
    temperature: float | int | Float[Array, ""] = 1.0,
) -> Float[Array, "*batch"]:
    """Cross-entropy of a student to the softened predictions of a teacher.

    -sum_i softmax(z_t / T)_i log softmax(z_s / T)_i, in nats, summed over classes, with z_s = ``student_logits``,
    z_t = ``teacher_logits`` and T = ``temperature``. Its gradient with respect to z_s is
    (softmax(z_s / T) - softmax(z_t / T)) / T: there is no factor T^2. (Hinton et al. multiply by T^2 so that the
    gradient keeps its size when T changes; do so outside if it is mixed with another loss.)

    The gradient flows to the teacher as well: freeze it with ``jax.lax.stop_gradient``.

    Raises ``ValueError`` for unequal shapes or a temperature that is not positive.

    >>> print(f"{distillation_loss(jnp.array([2.0, 0.0]), jnp.array([0.0, 0.0]), temperature=2.0):.4f}")
    0.8133

    Sources: Krapac & Segvic, Deep feed-forward models (names it); Hinton et al. 2015, Distilling the knowledge in a
    neural network.
    """
    student, teacher, dtype = _widen(student_logits, teacher_logits)
    _check_last_axis(student)
    _check_positive("temperature", temperature)
    temperature = jnp.asarray(temperature, student.dtype)
    return _soft_cross_entropy(student / temperature, jax.nn.softmax(teacher / temperature)).astype(dtype)


@checked
def sigmoid_cross_entropy(
    logits: Float[Array, "*shape"], targets: Float[Array, "*shape"], *, check: bool = False
) -> Float[Array, "*shape"]:
    """Binary cross-entropy of the sigmoid of scores, entry by entry (nothing is reduced).

    -y log sigma(z) - (1 - y) log(1 - sigma(z)) = max(z, 0) - z y + log(1 + exp(-|z|)), in nats, with z = ``logits``
    and y = ``targets``, probabilities of the positive class, of the same shape. Gradient: sigma(z) - y. It does not
    vanish where the sigmoid saturates on the wrong side, as that of the squared error does.

    Raises ``ValueError`` for unequal shapes, or for targets outside [0, 1] (known values, or ``check=True``).

    >>> print([f"{loss:.4f}" for loss in sigmoid_cross_entropy(jnp.array([0.5, 1e4]), jnp.zeros(2))])
    ['0.9741', '10000.0000']

    Source: Krapac & Segvic, Deep feed-forward models.
    """
    z, y, dtype = _widen(logits, targets)
    known = checkable(y, check)
    if known is not None:
        check_values(
            (known >= 0) & (known <= 1),
            "targets between 0 and 1, got values from {low} to {high}; map -1 and 1 to 0 and 1 with (1 + targets) / 2",
            check=check,
            low=jnp.min(known, initial=jnp.inf),
            high=jnp.max(known, initial=-jnp.inf),
        )
    # One branch per sign instead of max and abs: derivatives of every order are exact at z = 0 too.
    right = z >= 0
    return (jnp.where(right, z, 0.0) - z * y + jnp.log1p(jnp.exp(jnp.where(right, -z, z)))).astype(dtype)


@checked
def nll(
    log_probs: Float[Array, "*batch classes"], targets: Integer[Array, "*batch"], *, check: bool = False
) -> Float[Array, "*batch"]:
    """Negative log-likelihood of class labels, from log-probabilities.

    -log P(Y = y | x): minus the entry of ``log_probs`` at the label y = ``targets``, counted from 0, in nats. A special
    case of cross-entropy, with the one-hot label as the first argument. For a prediction that is a point mass it is 0
    or +infinity (not 0 or 1, as the lecture states: that is ``zero_one_loss``).

    ``log_probs`` are the output of ``log_softmax``. For scores use ``softmax_cross_entropy``.

    Raises ``ValueError`` for shapes that do not fit, for a label out of range, or if the probabilities do not sum to
    1 (known values, or ``check=True``). Under ``jit`` a label out of range gives NaN.

    >>> print(f"{nll(jnp.log(jnp.array([0.25, 0.75])), jnp.array(0)):.4f}")
    1.3863

    Source: Krapac & Segvic, Deep feed-forward models.
    """
    _check_last_axis(log_probs)
    inside = check_labels(targets, log_probs.shape[-1], check=check)
    known = checkable(log_probs, check)
    if known is not None:
        probabilities = jnp.exp(known)
        sums = jnp.sum(widen(probabilities), -1)
        check_values(
            is_distribution(probabilities),
            "log-probabilities, whose exponentials sum to 1, got sums from {low} to {high}; pass log_softmax(logits), "
            "or use softmax_cross_entropy",
            check=check,
            low=jnp.min(sums, initial=jnp.inf),
            high=jnp.max(sums, initial=-jnp.inf),
        )
    return -_at_label(log_probs, targets, inside)


@checked
def zero_one_loss(
    predictions: Integer[Array, "*batch"] | Bool[Array, "*batch"],
    targets: Integer[Array, "*batch"] | Bool[Array, "*batch"],
) -> Float[Array, "*batch"]:
    """Zero-one loss: 1.0 for each wrong prediction, 0.0 for each correct one (float32; nothing is reduced).

    l(y', y) = 0 if y' = y else 1, with y' = ``predictions`` and y = ``targets``: classes, as integers (the ``argmax``
    of scores) or booleans. Its mean is the error rate. As a function of the scores it is constant almost everywhere,
    so its gradient is 0 and training needs another loss. It is not the negative log-likelihood of a
    point-mass prediction, which is 0 or infinite; its expectation over Y' is 1 - P(Y' = y). ``nll`` in bits bounds it
    from above, ``nll`` in nats does not: a wrong class costs at least log 2 = 0.69 nats.

    Raises ``TypeError`` unless both are integers (or booleans), ``ValueError`` for unequal shapes.

    >>> print(zero_one_loss(jnp.array([0, 1, 2]), jnp.array([0, 2, 1])))
    [0. 1. 1.]

    Source: Krapac & Segvic, Deep feed-forward models.
    """
    wide = jnp.result_type(int)
    return (predictions.astype(wide) != targets.astype(wide)).astype(jnp.float32)


@checked
def hinge_loss(
    predictions: Float[Array, "*shape"], targets: Float[Array, "*shape"], *, check: bool = False
) -> Float[Array, "*shape"]:
    """Hinge loss of a two-class score, entry by entry (nothing is reduced).

    max(0, 1 - y z) with scores z = ``predictions`` and y = ``targets``, -1 or 1, of the same shape: 0 once
    the margin y z is 1. (The lecture's "hinge function" is ``relu``.) The subgradient at the corner is 0.

    Raises ``ValueError`` for unequal shapes, or targets other than -1 and 1 (known values, or ``check=True``).

    >>> print(hinge_loss(jnp.array([2.0, 0.5, 0.5]), jnp.array([1.0, 1.0, -1.0])))
    [0.  0.5 1.5]

    Source: Cortes & Vapnik 1995, Support-vector networks (not in the lectures).
    """
    z, y, dtype = _widen(predictions, targets)
    known = checkable(y, check)
    if known is not None:
        check_values(
            jnp.abs(known) == 1,
            "targets that are -1 or 1, got values from {low} to {high}; map 0 and 1 to -1 and 1 with 2 * targets - 1",
            check=check,
            low=jnp.min(known, initial=jnp.inf),
            high=jnp.max(known, initial=-jnp.inf),
        )
    return jax.nn.relu(1 - y * z).astype(dtype)


# Regression ----------------------------------------------------------------------------------------------------------


@checked
def mse(
    predictions: Float[Array, "*batch features"], targets: Float[Array, "*batch features"]
) -> Float[Array, "*batch"]:
    """Mean squared error: the mean over the last axis.

    (1/d) sum_j (v_j - w_j)^2 with v = ``predictions``, w = ``targets`` and d features. The constant that minimizes it
    over a data set is the mean. (Krapac & Segvic print sums over features under this name: 1.28 for an error of
    (0.8, 0, -0.8), where the mean is 0.427.) For two arrays of shape (n,), the mean over all n.

    Raises ``ValueError`` for unequal shapes.

    >>> print(mse(jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array([[1.0, 0.0], [3.0, 3.0]])))
    [2.  0.5]

    Sources: Diehl 2023, section 1.3; Cevher, Mathematics of Data.
    """
    predictions, targets, dtype = _widen(predictions, targets)
    _check_last_axis(predictions)
    return jnp.mean(jnp.square(predictions - targets), -1).astype(dtype)


@checked
def mae(
    predictions: Float[Array, "*batch features"], targets: Float[Array, "*batch features"]
) -> Float[Array, "*batch"]:
    """Mean absolute error: the mean over the last axis.

    (1/d) sum_j |v_j - w_j| with v = ``predictions``, w = ``targets`` and d features. The constant that minimizes it
    over a data set is the median.

    Raises ``ValueError`` for unequal shapes.

    >>> print(mae(jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array([[1.0, 0.0], [3.0, 3.0]])))
    [1.  0.5]

    Source: Diehl 2023, section 1.3.
    """
    predictions, targets, dtype = _widen(predictions, targets)
    _check_last_axis(predictions)
    return jnp.mean(_size(predictions - targets), -1).astype(dtype)


@checked
def huber_loss(
    predictions: Float[Array, "*batch features"],
    targets: Float[Array, "*batch features"],
    *,
    delta: float | int | Float[Array, ""] = 1.0,
) -> Float[Array, "*batch"]:
    """Huber loss: quadratic for small errors, linear for large ones; the mean over the last axis.

    (1/d) sum_j h(v_j - w_j) with h(e) = e^2 / 2 for |e| <= delta and delta (|e| - delta / 2) beyond: v =
    ``predictions``, w = ``targets``. Value and slope agree at |e| = delta.

    Raises ``ValueError`` for unequal shapes or a ``delta`` that is not positive.

    >>> print(huber_loss(jnp.array([[0.5], [3.0]]), jnp.zeros((2, 1))))
    [0.125 2.5  ]

    Source: Huber 1964, Robust estimation of a location parameter.
    """
    predictions, targets, dtype = _widen(predictions, targets)
    _check_last_axis(predictions)
    _check_positive("delta", delta)
    error = predictions - targets
    delta = jnp.asarray(delta, error.dtype)
    inner = jnp.clip(error, -delta, delta)  # h(e) = inner (e - inner / 2): no large number is squared
    return jnp.mean(inner * (error - 0.5 * inner), -1).astype(dtype)


@checked
def gaussian_nll(
    predictions: Float[Array, "*batch features"], targets: Float[Array, "*batch features"]
) -> Float[Array, "*batch"]:
    """Negative log-likelihood of the targets under a Gaussian with unit covariance; the sum over the last axis.

    -log N(y; f, I) = 1/2 ||y - f||^2 + (D/2) log 2 pi with f = ``predictions``, y = ``targets`` and D features, in
    nats. It equals the squared error only up to the factor 1/2 and the constant, and so has the same minimizers.

    Raises ``ValueError`` for unequal shapes.

    >>> print(f"{gaussian_nll(jnp.array([0.5, 1.0]), jnp.array([1.0, 2.0])):.4f}")
    2.4629

    Source: Krapac & Segvic, Deep feed-forward models (without the factor and the constant).
    """
    mean, y, dtype = _widen(predictions, targets)
    _check_last_axis(mean)
    constant = 0.5 * mean.shape[-1] * math.log(2 * math.pi)
    return (0.5 * jnp.sum(jnp.square(y - mean), -1) + constant).astype(dtype)


# Penalties -----------------------------------------------------------------------------------------------------------


def _total(term, params, mask):
    """Sum of ``term`` over the entries of the leaves that ``mask`` selects, in float32 or wider."""
    try:
        mask = jax.tree.broadcast(mask, params)
    except ValueError as error:
        repair = "one boolean covers the subtree below it, as in {'kernel': True, 'bias': False} for a dense layer"
        error.add_note(f"{public_name()} expected a mask with the structure of params or of its upper part; {repair}.")
        raise
    total = jnp.zeros((), jnp.float32)
    for leaf, selected in zip(jax.tree.leaves(params), jax.tree.leaves(mask), strict=True):
        repair = "a mask selects whole arrays while JAX traces, so close over it instead of passing it through jit"
        require(isinstance(selected, bool | np.bool_), "a mask of True and False", selected, repair, error=TypeError)
        if selected:
            floating = hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating)
            repair = "convert it, or leave it out with mask"
            require(floating, "params of real floating-point arrays", leaf, repair, error=TypeError)
            part = jnp.sum(term(widen(leaf)))
            dtype = jnp.float64 if jnp.float64 in (total.dtype, part.dtype) else jnp.float32
            total = total.astype(dtype) + part.astype(dtype)
    return total


@checked
def l1_penalty(params: PyTree, mask: PyTree = True) -> Float[Array, ""]:
    """L1 penalty of a tree of parameters: the sum of the absolute values of all entries.

    Omega(Theta) = sum |W|, to be added to a loss as lambda * l1_penalty(params). The subgradient at 0 is 0; for exact
    zeros use steps with ``soft_threshold``.

    ``mask`` selects the arrays to include: a boolean, or a tree of booleans with the structure of ``params`` or of its
    upper part. The lectures exclude biases; see ``l2_penalty`` for such a mask. Computed and returned in float32
    (float64 if an array is), also for half precision, where a sum over a whole net would lose most of its digits.

    Raises ``TypeError`` for arrays that are not of real floating-point numbers, unless they are masked out.

    >>> print(l1_penalty({"kernel": jnp.array([[1.0, -2.0]]), "bias": jnp.array([0.5])}))
    3.5

    Sources: Diehl 2023, section 1.6; Krapac & Segvic, Deep feed-forward models.
    """
    return _total(_size, params, mask)


@checked
def l2_penalty(params: PyTree, mask: PyTree = True) -> Float[Array, ""]:
    """L2 penalty of a tree of parameters: the sum of the squares of all entries (no factor 1/2, no root).

    Omega(Theta) = sum W^2, to be added to a loss as lambda * l2_penalty(params). Under plain gradient descent
    (lambda / 2) * l2 is weight decay lambda; it is the negative log of a Gaussian prior, up to a constant.

    ``mask`` selects the arrays to include: a boolean, or a tree of booleans with the structure of ``params`` or of its
    upper part. Computed and returned in float32 (float64 if an array is), also for half precision.

    Raises ``TypeError`` for arrays that are not of real floating-point numbers, unless they are masked out.

    >>> params = ({"kernel": jnp.array([[1.0, -2.0]]), "bias": jnp.array([0.5])}, ())
    >>> print(l2_penalty(params))
    5.25
    >>> no_biases = jax.tree.map_with_path(lambda path, _: path[-1].key != "bias", params)
    >>> print(l2_penalty(params, no_biases))
    5.0

    Sources: Diehl 2023, section 1.6; Krapac & Segvic, Deep feed-forward models.
    """
    return _total(jnp.square, params, mask)


@checked
def soft_threshold(x: Float[Array, "*shape"], threshold: float | int | Float[Array, ""]) -> Float[Array, "*shape"]:
    """Shrink every entry towards 0 by ``threshold``; smaller entries become exactly 0.

    S(x) = sign(x) max(|x| - t, 0) with t = ``threshold``: the proximal step of the L1 penalty, the u that minimizes
    1/2 (u - x)^2 + t |u|. A gradient step on a loss with learning rate eta, followed by soft_threshold(., eta lambda),
    minimizes loss + lambda * l1 with exact zeros.

    Raises ``ValueError`` for a negative threshold.

    >>> print(soft_threshold(jnp.array([-1.25, 0.125, 0.75]), 0.25))
    [-1.   0.   0.5]

    Source: Diehl 2023, section 1.6 (names L1 regularization).
    """
    if not isinstance(threshold, Tracer):
        require(threshold >= 0, "a threshold >= 0", f"{threshold}", "pass its absolute value")
    threshold = jnp.asarray(threshold, x.dtype)
    return x - jnp.clip(x, -threshold, threshold)
