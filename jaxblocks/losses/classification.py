"""Losses of classifiers: of scores, log-probabilities or classes, against labels or target distributions."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Integer

from jaxblocks.backend.precision import full_precision, widen
from jaxblocks.backend.quotients import divide, unit_vector
from jaxblocks.backend.symbolic_sizes import at_most
from jaxblocks.checks.errors import describe, require
from jaxblocks.checks.expectations import checked
from jaxblocks.checks.values import check_entries, check_values, checkable, warn_of_probabilities
from jaxblocks.losses.arrays import check_last_axis, product, widen_both
from jaxblocks.losses.masks import as_entries, fill, zero
from jaxblocks.probabilities import (
    Share,
    check_distribution,
    check_labels,
    log_probabilities,
    log_sum,
    on_simplex,
    smooth_labels,
    softmax,
)

__all__ = [
    "distillation_loss",
    "hinge_loss",
    "info_nce_loss",
    "nll",
    "sigmoid_cross_entropy",
    "softmax_cross_entropy",
    "zero_one_loss",
]


_ONE_LOGIT = "for one logit of two classes use sigmoid_cross_entropy, with logits and targets of one shape"


def _check_labels(targets, classes, check):
    """Where the targets are classes."""
    repair = "subtract 1 from labels that count from 1, provide more classes, or exclude padding: where=targets >= 0"
    repair = _ONE_LOGIT if at_most(classes, 1) else repair
    return check_labels(targets, classes, name="targets", repair=repair, check=check)


def _at_label(x, labels, inside):
    """x[..., label] per example. Where the label is not a class it is NaN, with an infinite derivative."""
    index = jnp.where(inside, labels, 0).astype(jnp.int32)[..., None]
    picked = jnp.take_along_axis(x, index, -1, mode="clip")[..., 0]
    # Multiplied twice by the largest number, a cotangent overflows; that of an example that the caller masks is 0 and
    # stays 0, where a factor of NaN would give NaN.
    factor = jnp.where(inside, 1.0, jnp.finfo(x.dtype).max).astype(x.dtype)
    return picked * factor * factor + jnp.where(inside, 0.0, jnp.nan).astype(x.dtype)


def _weights_of(labels, inside, class_weights, dtype):
    # In range, as in _at_label: the loss of a label out of range is NaN with any weight.
    return jnp.take(class_weights.astype(dtype), jnp.where(inside, labels, 0).astype(jnp.int32), mode="clip")


def _soft_cross_entropy(logits, targets, class_weights=None):
    terms = product(targets, -log_probabilities(logits))  # a class masked by a score of -inf may have target 0
    return jnp.sum(terms if class_weights is None else product(class_weights, terms), -1)


@checked
def softmax_cross_entropy(
    logits: Float[Array, "*batch classes"],
    targets: Integer[Array, "..."] | Float[Array, "..."],
    *,
    label_smoothing: Share = 0.0,
    class_weights: Float[Array, "classes"] | None = None,
    where: Bool[Array, "*batch"] | None = None,
    check: bool = False,
) -> Float[Array, "*batch"]:
    """Cross-entropy of the softmax of scores, from labels or from target distributions.

    With z = ``logits``, in nats, summed over classes:

    - integer labels y of shape (*batch,): -log softmax(z)_y = log sum_j exp(z_j) - z_y, the negative log-likelihood
      (log loss) of a categorical model. Gradient: softmax(z)_i - 1[i = y].
    - floating-point distributions t of shape (*batch, classes): -sum_i t_i log softmax(z)_i. Gradient: softmax(z) - t.

    The two are distinguished by dtype and shape; other targets raise a ``ValueError``. Labels count from 0. Finite for
    all finite scores, with exact derivatives of every order. A score of -inf excludes its class: the loss is infinite
    if that class is the label (with the same gradient), and otherwise the class is ignored. Scores that are all -inf,
    or one of +inf, give NaN.

    If the score of the correct class exceeds all others by a margin d, the loss is at most log(1 + (C - 1) exp(-d));
    for a correct prediction it is at most log C, for a wrong one at least log 2. So the loss in bits, loss / log 2,
    bounds ``zero_one_loss`` from above (the loss in nats does not).

    With ``label_smoothing`` epsilon the targets are those of ``smooth_labels``: (1 - epsilon) t + epsilon / C. It may
    be traced, and mapped by ``vmap``. With ``class_weights`` w the loss is -sum_i w_i t_i log softmax(z)_i, for a label
    w_y times the loss. For the mean that PyTorch takes with weights, divide by their sum:
    ``weighted_mean(loss, class_weights[labels])`` of the loss without them.

    Where ``where`` is False, loss and gradient are 0 and labels and scores may have any value: ``where=targets >= 0``
    for padding by -100, with ``weighted_mean`` for the mean over the rest.

    Known scores that are probabilities (rows >= 0 with sum 1) are warned of, once.

    Raises:
        ValueError: for a label out of range, a target that does not sum to 1 (known values, or ``check=True``), and
            negative ``class_weights``. Under ``jit`` a label out of range gives NaN.

    >>> h = jnp.array([0.1, -0.8, 1.4, 1.1])
    >>> print(
    ...     [
    ...         f"{loss:.4f}"
    ...         for loss in softmax_cross_entropy(jnp.stack([h, h]), jnp.array([1, 2]))
    ...     ]
    ... )
    ['2.9534', '0.7534']
    >>> print(f"{softmax_cross_entropy(h, jnp.array([0.0, 0.5, 0.5, 0.0])):.4f}")
    1.8534
    >>> print(f"{softmax_cross_entropy(h, jnp.array(2), label_smoothing=0.1):.4f}")
    0.8484

    Sources: Szegedy et al. 2016, Rethinking the Inception architecture (arXiv:1512.00567), for label smoothing; Krapac
    & Segvic, Deep feed-forward models; Cevher, Mathematics of Data (labels there count from 1).
    """
    check_last_axis(logits)
    warn_of_probabilities(logits)
    dtype, classes = logits.dtype, logits.shape[-1]
    z = fill(where, widen(logits), 0)  # masked scores 0: finite derivatives
    of_labels = jnp.issubdtype(targets.dtype, jnp.integer)
    if targets.shape != (z.shape[:-1] if of_labels else z.shape):
        labels = f"integer labels {logits.shape[:-1]} or floating-point distributions {logits.shape} as targets"
        repair = "pass one label for each row of logits"
        if logits.ndim > targets.ndim + 1:
            repair = "the outputs have an axis too many; reduce it in the net, as jb.Flatten does for images"
        if classes == 1 or targets.shape == logits.shape == logits.shape[-1:]:
            repair = _ONE_LOGIT + "; write targets.argmax(-1) for one one-hot row" * (classes > 1)
        elif not of_labels and targets.shape == logits.shape[:-1]:
            repair = "class labels are integers; write targets.astype(jnp.int32)"
        elif of_labels and targets.shape == logits.shape:
            repair = "write targets.argmax(-1) for one-hot rows, or targets.astype(jnp.float32)"
        elif of_labels and targets.shape == (*logits.shape[:-1], 1):
            repair = "write targets.squeeze(-1)"
        require(False, f"{labels} of logits {describe(logits)}", targets, repair)
    smooth = isinstance(label_smoothing, jax.Array) or label_smoothing != 0
    weights = None if class_weights is None else as_entries("class_weights", class_weights, z, least=0)
    if not of_labels:
        dtype = jnp.promote_types(dtype, targets.dtype)
        # The uniform distribution passes the check of the sum.
        targets = fill(where, targets, 1 / classes)
        check_distribution(check=check, targets=targets)
        targets = widen(targets)
        if smooth:
            targets = smooth_labels(targets, jnp.asarray(label_smoothing, z.dtype))
        return zero(where, _soft_cross_entropy(z, targets, weights)).astype(dtype)
    targets = fill(where, targets, 0)
    inside = _check_labels(targets, classes, check)
    # Shifted by the largest score, which derivatives treat as a constant. Indexing the scores rather than
    # log_softmax stores no residual of shape (*batch, classes) for the gradient except the scores.
    largest = jax.lax.stop_gradient(jnp.max(z, -1))
    loss = log_sum(z - largest[..., None], -1)[..., 0] - (_at_label(z, targets, inside) - largest)
    if class_weights is not None:
        loss = product(_weights_of(targets, inside, class_weights, z.dtype), loss)
    if smooth:
        share = jnp.asarray(label_smoothing, z.dtype)
        # The smoothed target is a mixture of the label and the uniform distribution, and so is the loss; a one-hot
        # array is not made.
        of_all = _soft_cross_entropy(z, jnp.full_like(z, 1 / classes), weights)
        loss = product(1 - share, loss) + product(share, of_all)
    return zero(where, loss).astype(dtype)


@checked
def distillation_loss(
    student_logits: Float[Array, "*batch classes"],
    teacher_logits: Float[Array, "*batch classes"],
    *,
    temperature: float | int | Float[Array, ""] = 1.0,
    where: Bool[Array, "*batch"] | None = None,
) -> Float[Array, "*batch"]:
    """Cross-entropy of a student to the softened predictions of a teacher.

    -sum_i softmax(z_t / T)_i log softmax(z_s / T)_i, in nats, summed over classes, with z_s = ``student_logits``,
    z_t = ``teacher_logits`` and T = ``temperature``. Its gradient with respect to z_s is
    (softmax(z_s / T) - softmax(z_t / T)) / T: there is no factor T^2. (Hinton et al. multiply by T^2 so that the
    gradient keeps its size when T changes; do so outside if it is mixed with another loss.)

    The gradient flows to the teacher as well: freeze it with ``jax.lax.stop_gradient``. Derivatives of every order are
    exact; those with respect to T have the squares of scores, which must be numbers of the dtype.

    Raises:
        ValueError: for unequal shapes or a temperature that is not positive.

    >>> student, teacher = jnp.array([2.0, 0.0]), jnp.array([0.0, 0.0])
    >>> print(f"{distillation_loss(student, teacher, temperature=2.0):.4f}")
    0.8133

    Sources: Hinton et al. 2015, Distilling the knowledge in a neural network; Krapac & Segvic, Deep feed-forward models
    (names it).
    """
    for logits in (student_logits, teacher_logits):
        warn_of_probabilities(logits)
    student, teacher, dtype = widen_both(student_logits, teacher_logits)
    check_last_axis(student)
    # Masked examples have scores 0, whose loss and gradient are finite before they are set to 0.
    student, teacher = fill(where, student, 0), fill(where, teacher, 0)
    temperature = as_entries("temperature", temperature, student)
    # The entropy of the teacher, a constant for the student, is not subtracted.
    loss = _soft_cross_entropy(divide(student, temperature), softmax(divide(teacher, temperature)))
    return zero(where, loss).astype(dtype)


@checked
def sigmoid_cross_entropy(
    logits: Float[Array, "*shape"],
    targets: Float[Array, "*shape"],
    *,
    pos_weight: float | int | Float[Array, "..."] = 1.0,
    where: Bool[Array, "*shape"] | None = None,
    check: bool = False,
) -> Float[Array, "*shape"]:
    """Binary cross-entropy of the sigmoid of scores, entry by entry (nothing is reduced).

    -y log sigma(z) - (1 - y) log(1 - sigma(z)) = max(z, 0) - z y + log(1 + exp(-|z|)), in nats, with z = ``logits``
    and y = ``targets``, probabilities of the positive class, of the same shape. Gradient: sigma(z) - y. It does not
    vanish where the sigmoid saturates on the wrong side, as that of the squared error does. A score of infinity or
    -infinity costs 0 where it is right, and else infinity. Derivatives of every order are exact, at z = 0 too.

    ``pos_weight`` multiplies the first term, the cost of the positive class: a number, or one number per class of the
    last axis. The ratio of negative to positive examples balances the two. Where ``where`` is False, loss and gradient
    are 0.

    Raises:
        ValueError: for unequal shapes, a ``pos_weight`` that is not positive, or for targets outside [0, 1] (known
            values, or ``check=True``).

    >>> print(
    ...     [
    ...         f"{loss:.4f}"
    ...         for loss in sigmoid_cross_entropy(jnp.array([0.5, 1e4]), jnp.zeros(2))
    ...     ]
    ... )
    ['0.9741', '10000.0000']

    Source: Goodfellow, Bengio & Courville 2016, Deep learning, section 6.2.2; Krapac & Segvic, Deep feed-forward
    models.
    """
    z, y, dtype = widen_both(fill(where, logits, 0), fill(where, targets, 0))
    message = "targets between 0 and 1, got values from {low} to {high}; map -1 and 1 to 0 and 1 with (1 + targets) / 2"
    check_entries(y, lambda known: (known >= 0) & (known <= 1), message, check=check)
    weight = as_entries("pos_weight", pos_weight, z)
    # One branch per sign instead of max and abs: derivatives of every order are exact at z = 0 too.
    right = z >= 0
    distance = jnp.where(right, z, -z)
    # (1 - y) softplus(z) + weight y softplus(-z), with softplus(z) = max(z, 0) + log1p(exp(-|z|)).
    linear = product(jnp.where(right, 1 - y, weight * y), distance)
    return zero(where, linear + (1 + (weight - 1) * y) * jnp.log1p(jnp.exp(-distance))).astype(dtype)


@checked
def nll(
    log_probs: Float[Array, "*batch classes"],
    targets: Integer[Array, "*batch"],
    *,
    class_weights: Float[Array, "classes"] | None = None,
    where: Bool[Array, "*batch"] | None = None,
    check: bool = False,
) -> Float[Array, "*batch"]:
    """Negative log-likelihood of class labels, from log-probabilities.

    -log P(Y = y | x): minus the entry of ``log_probs`` at the label y = ``targets``, counted from 0, in nats. A special
    case of cross-entropy, with the one-hot label as the first argument. For a prediction that is a point mass it is 0
    or +infinity (not 0 or 1, as the lecture states: that is ``zero_one_loss``).

    ``log_probs`` are the output of ``log_softmax``. For scores use ``softmax_cross_entropy``, which explains
    ``class_weights`` and ``where``.

    Raises:
        ValueError: for shapes that do not fit, for a label out of range, for negative ``class_weights``, or if the
            probabilities do not sum to 1 (known values, or ``check=True``). Under ``jit`` a label out of range gives
            NaN.

    >>> print(f"{nll(jnp.log(jnp.array([0.25, 0.75])), jnp.array(0)):.4f}")
    1.3863

    Source: Goodfellow, Bengio & Courville 2016, Deep learning, section 5.5; Krapac & Segvic, Deep feed-forward models.
    """
    check_last_axis(log_probs)
    # Masked rows get the uniform distribution, which passes the check of the sum.
    log_probs, targets = fill(where, log_probs, -math.log(log_probs.shape[-1])), fill(where, targets, 0)
    inside = _check_labels(targets, log_probs.shape[-1], check)
    known = checkable(log_probs, check)
    if known is not None:
        with np.errstate(over="ignore"):
            # exp of NumPy or of JAX, whichever array it is.
            probabilities = known.__array_namespace__().exp(known)
            sums = widen(probabilities).sum(-1)
        check_values(
            on_simplex(probabilities),
            "log-probabilities, whose exponentials sum to 1, got sums from {low} to {high}; pass log_softmax(logits), "
            "or use softmax_cross_entropy",
            check=check,
            low=sums.min(initial=jnp.inf),
            high=sums.max(initial=-jnp.inf),
        )
    loss = -_at_label(widen(log_probs), targets, inside)
    if class_weights is not None:
        as_entries("class_weights", class_weights, log_probs, least=0)  # raises for negative ones and other shapes
        loss = product(_weights_of(targets, inside, class_weights, loss.dtype), loss)
    return zero(where, loss).astype(log_probs.dtype)


@checked
def zero_one_loss(
    predictions: Integer[Array, "*batch"] | Bool[Array, "*batch"],
    targets: Integer[Array, "*batch"] | Bool[Array, "*batch"],
    *,
    where: Bool[Array, "*batch"] | None = None,
) -> Float[Array, "*batch"]:
    """Zero-one loss: 1.0 for each wrong prediction, 0.0 for each correct one (float32; nothing is reduced).

    l(y', y) = 0 if y' = y else 1, with y' = ``predictions`` and y = ``targets``: classes, as integers (the ``argmax``
    of scores) or booleans. Its mean is the error rate. As a function of the scores it is constant almost everywhere,
    so its gradient is 0 and training needs another loss. It is not the negative log-likelihood of a
    point-mass prediction, which is 0 or infinite; its expectation over Y' is 1 - P(Y' = y). ``nll`` in bits bounds it
    from above, ``nll`` in nats does not: a wrong class costs at least log 2 = 0.69 nats.

    Raises:
        TypeError: unless both are integers (or booleans).
        ValueError: for unequal shapes.

    >>> print(zero_one_loss(jnp.array([0, 1, 2]), jnp.array([0, 2, 1])))
    [0. 1. 1.]

    Source: Goodfellow, Bengio & Courville 2016, Deep learning, section 8.1.2; Krapac & Segvic, Deep feed-forward
    models.
    """
    # uint8 and int32 are compared as integers of one type; a boolean is 0 or 1.
    wide = jnp.result_type(int)
    return zero(where, (predictions.astype(wide) != targets.astype(wide)).astype(jnp.float32))


@checked
def hinge_loss(
    predictions: Float[Array, "*shape"],
    targets: Float[Array, "*shape"],
    *,
    margin: float | int | Float[Array, ""] = 1.0,
    where: Bool[Array, "*shape"] | None = None,
    check: bool = False,
) -> Float[Array, "*shape"]:
    """Hinge loss of a two-class score, entry by entry (nothing is reduced).

    max(0, m - y z) with scores z = ``predictions``, y = ``targets``, -1 or 1, of the same shape, and m = ``margin``: 0
    once the margin y z is m. (The lecture's "hinge function" is ``relu``.) The subgradient at the corner is 0. With
    z = a - b, the difference of two scores, it is the margin ranking loss.

    Raises:
        ValueError: for unequal shapes, or targets other than -1 and 1 (known values, or ``check=True``).

    >>> print(hinge_loss(jnp.array([2.0, 0.5, 0.5]), jnp.array([1.0, 1.0, -1.0])))
    [0.  0.5 1.5]

    Source: Cortes & Vapnik 1995, Support-vector networks (not in the lectures).
    """
    z, y, dtype = widen_both(fill(where, predictions, 0), fill(where, targets, 1))
    message = "targets that are -1 or 1, got values from {low} to {high}; map 0 and 1 to -1 and 1 with 2 * targets - 1"
    check_entries(y, lambda known: abs(known) == 1, message, check=check)
    return zero(where, jax.nn.relu(jnp.asarray(margin, z.dtype) - y * z)).astype(dtype)


@checked
def info_nce_loss(
    predictions: Float[Array, "*batch examples features"],
    targets: Float[Array, "*batch examples features"],
    *,
    temperature: float | int | Float[Array, ""] = 0.07,
    where: Bool[Array, "*batch examples"] | None = None,
) -> Float[Array, "*batch examples"]:
    """Contrastive loss (InfoNCE) of two views of the same examples: find the target that belongs to a prediction.

    -log (exp(s_ii) / sum_j exp(s_ij)) with the cosine similarities over the temperature, s_ij = cos(a_i, b_j) / tau:
    a_i = ``predictions``, b_j = ``targets``, tau = ``temperature``. Row i of both is the same example; the targets of
    the others are its negatives. CLIP takes the mean of both directions: exchange the arguments and add.

    Where ``where`` is False, loss and gradient are 0, and the example is not a negative of the others. A row of zeros
    has similarity 0 to all; the cosine has no derivative there, and that of <a_i, b_j> / |b_j| is used. The
    similarities are computed in full precision on every device.

    Raises:
        ValueError: for unequal shapes or a temperature that is not positive.

    >>> print(
    ...     [
    ...         f"{loss:.4f}"
    ...         for loss in info_nce_loss(jnp.eye(3), 2 * jnp.eye(3), temperature=1.0)
    ...     ]
    ... )
    ['0.5514', '0.5514', '0.5514']

    Sources: van den Oord, Li & Vinyals 2018, Representation learning with contrastive predictive coding
    (arXiv:1807.03748); Radford et al. 2021, Learning transferable visual models from natural language supervision
    (arXiv:2103.00020).
    """
    check_last_axis(predictions)
    # A masked vector becomes 0, which `unit_vector` keeps, so that its gradient is finite.
    a, b, dtype = widen_both(fill(where, predictions, 0), fill(where, targets, 0))
    # Cosine similarities, (..., i, j): of prediction i and target j.
    with full_precision():  # the temperature multiplies their errors
        scores = jnp.einsum("...if,...jf->...ij", unit_vector(a), unit_vector(b))
    scores = divide(scores, as_entries("temperature", temperature, scores))
    if where is not None:
        # A masked example is no negative: exp(-inf) adds nothing to the sum.
        scores = jnp.where(where[..., None, :], scores, -jnp.inf)
    if not scores.shape[-1]:  # an empty batch
        return jnp.sum(scores, -1).astype(dtype)
    # The right target of prediction i is target i.
    labels = jnp.broadcast_to(jnp.arange(scores.shape[-1]), scores.shape[:-1])
    return softmax_cross_entropy(scores, labels, where=where).astype(dtype)
