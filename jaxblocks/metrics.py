"""Metrics: measures of the quality of predictions. To train a model, use a loss.

Scores are the outputs of a classifier, one number per class on the last axis: logits, log-probabilities or
probabilities; only their order matters. Labels are integers from 0 to classes - 1. Scores have the shape
(..., classes) and labels the shape (...), with zero or more leading axes. NaN scores make the result NaN. Metrics that
count (all but ``perplexity`` and ``r_squared``) are constant almost everywhere: their derivatives are 0.

A label out of range raises a ``ValueError`` where its value is concrete. Under ``jit`` the result is NaN (in the
integer ``confusion_matrix`` -1). With ``check=True``, if the caller is wrapped in
``jax.experimental.checkify.checkify``, it is an error. Empty data raise a ``ValueError``, since they have no mean.

``weights``, where a function takes them, are the weights of the labels, as numbers or booleans; a label of weight 0,
such as padding, may have any value.

Distances of generated images (FID) need the weights of an Inception net and are not here.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Integer, Real

from jaxblocks.backend.powers_of_two import divided, unit_of
from jaxblocks.backend.precision import widen
from jaxblocks.backend.symbolic_sizes import at_most
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import PositiveInt, checked
from jaxblocks.checks.values import check_entries, check_values, concrete, warn_of_probabilities
from jaxblocks.core.lazy import explain_missing_names
from jaxblocks.probabilities import check_labels, log_probabilities

__all__ = [
    "accuracy",
    "confusion_matrix",
    "perplexity",
    "precision_recall_f1",
    "predict_class",
    "r_squared",
    "top_k_accuracy",
]
explain_missing_names(__name__)


_REPAIR = "count from 0, and give padding the weight 0: weights=targets >= 0, or in evaluate return values and weights"


def _check_classes(predictions):
    repair = "end the model with a layer of as many features as classes, such as Dense(10)"
    require(predictions.shape[-1] > 0, "one score per class on the last axis", predictions, repair)


def _check_data(x):
    require(x.size > 0, "data, since an empty mean has no value", x, "omit the empty array")


def _prepare(predictions, targets, weights, check):
    """int32 targets, where they are in range, weights of the default dtype (or None)."""
    _check_classes(predictions)
    _check_data(targets)
    if weights is not None:
        weights = weights.astype(float)
        holds = lambda known: ((known >= 0) & (known < jnp.inf)).all() & (known > 0).any()
        expected = "finite weights >= 0 that are not all 0, got values from {low} to {high}"
        check_entries(weights, holds, f"{expected}; pass jnp.ones(weights.shape)", check=check)
    # A label of weight 0 may be out of range.
    counted = targets if weights is None else jnp.where(weights == 0, 0, targets)
    # A net with one output for two classes, as in other libraries, has no score of the other class.
    classes, of_one = predictions.shape[-1], "for one logit write (logits[..., 0] > 0) == (targets == 1)"
    repair = of_one if at_most(classes, 1) else _REPAIR
    valid = check_labels(counted, classes, name="targets", repair=repair, check=check)
    if weights is not None:  # in units of the largest one, so that neither they nor their sum overflow
        weights = divided(weights, unit_of(jnp.max(weights)))
    return counted.astype(jnp.int32), valid, weights  # after the check, since labels of 64 bits may be larger


def _mean(x, valid, weights):
    """The (weighted) mean of x, NaN where not valid."""
    x = jnp.where(valid, x, jnp.nan)
    if weights is None:
        return jnp.mean(x)
    # The value at weight 0 may be NaN, and 0 * NaN is NaN.
    return jnp.sum(jnp.where(weights == 0, 0, weights.astype(x.dtype) * x)) / jnp.sum(weights).astype(x.dtype)


def _no_nan(scores):
    # x == x is False for NaN only.
    return jnp.all(scores == scores, axis=-1)  # (...)


@checked
def predict_class(predictions: Real[Array, "*batch classes"]) -> Int[Array, "*batch"]:
    """The class of the highest score, counted from 0; the first one on ties.

    i_h(a) = argmax_i [h(a)]_i, h(a) the ``predictions`` of one example. The result is int32. NaN counts as the highest
    score, so test for NaN first.

    Shapes: (..., classes) to (...).

    Raises:
        ValueError: without a class axis.

    >>> print(predict_class(jnp.array([[0.1, -0.8, 1.4, 1.1], [2.0, 2.0, 0.0, 0.0]])))
    [2 0]

    Source: Goodfellow, Bengio & Courville 2016, Deep learning, section 6.2.2; Cevher, Mathematics of Data (score-based
    classifiers; classes counted from 1 there).
    """
    _check_classes(predictions)
    return jnp.argmax(predictions, axis=-1).astype(jnp.int32)


@checked
def accuracy(
    predictions: Real[Array, "*batch classes"],
    targets: Integer[Array, "*batch"],
    *,
    weights: Real[Array, "*batch"] | Bool[Array, "*batch"] | None = None,
    check: bool = False,
) -> Float[Array, ""]:
    """The share of examples whose class is predicted correctly, one minus the mean 0-1 loss; a float32.

    (sum_n w_n [predict_class(predictions_n) = targets_n]) / sum_n w_n, with weights w_n = 1 unless given.

    Shapes: predictions (..., classes), targets and weights (...). Shapes that do not match, empty data, targets out of
    range and NaN: see `jaxblocks.metrics`.

    >>> predictions = jnp.array([[2.0, 1.0], [0.0, 3.0], [5.0, 4.0]])
    >>> print(f"{accuracy(predictions, jnp.array([0, 1, 1])):.4f}")
    0.6667

    Source: Goodfellow, Bengio & Courville 2016, Deep learning, section 5.1.2; Cevher, Mathematics of Data (score-based
    classifiers).
    """
    targets, valid, weights = _prepare(predictions, targets, weights, check)
    hits = (predict_class(predictions) == targets).astype(jnp.float32)
    return _mean(hits, valid & _no_nan(predictions), weights)


@checked
def top_k_accuracy(
    predictions: Real[Array, "*batch classes"],
    targets: Integer[Array, "*batch"],
    *,
    k: PositiveInt = 5,
    weights: Real[Array, "*batch"] | Bool[Array, "*batch"] | None = None,
    check: bool = False,
) -> Float[Array, ""]:
    """The share of examples whose class is among the k classes of the highest scores; a float32.

    (sum_n w_n [fewer than k classes are ranked before targets_n]) / sum_n w_n, with weights w_n = 1 unless given. A
    class is ranked before another if its score is higher, or equal and the class number lower. So k = 1 is
    ``accuracy``.

    Shapes: predictions (..., classes), targets and weights (...).

    Raises:
        ValueError: unless 1 <= k <= classes; the rest as in `jaxblocks.metrics`.

    >>> predictions = jnp.array([[3.0, 2.0, 1.0], [1.0, 2.0, 3.0]])
    >>> print(top_k_accuracy(predictions, jnp.array([1, 0]), k=2))
    0.5

    Source: the ImageNet challenge, Russakovsky et al. 2015.
    """
    targets, valid, weights = _prepare(predictions, targets, weights, check)
    classes = predictions.shape[-1]
    require(k <= classes, f"k from 1 to the number of classes, {classes}", k, f"pass k={classes}")
    index = jnp.where(valid, targets, 0)[..., None]  # (..., 1)
    score = jnp.take_along_axis(predictions, index, axis=-1)  # (..., 1)
    lower = jax.lax.broadcasted_iota(jnp.int32, predictions.shape, predictions.ndim - 1) < index
    # Ties are decided by the lower index, as `argmax` does, so that constant predictions are not all correct.
    before = jnp.sum((predictions > score) | ((predictions == score) & lower), axis=-1)
    return _mean((before < k).astype(jnp.float32), valid & _no_nan(predictions), weights)


@checked
def perplexity(
    logits: Float[Array, "*batch classes"],
    targets: Integer[Array, "*batch"],
    *,
    weights: Real[Array, "*batch"] | Bool[Array, "*batch"] | None = None,
    check: bool = False,
) -> Float[Array, ""]:
    """Perplexity: the exponential of the mean negative log-likelihood.

    exp(-(sum_n w_n log softmax(logits_n)_{targets_n}) / sum_n w_n), natural logarithm, weights w_n = 1 unless given.
    A uniform distribution over k classes has perplexity k. 1 is a perfect prediction, the number of classes a uniform
    one, inf a target of probability 0. Log-probabilities may replace logits, since they are their own log-softmax;
    probabilities may not. Computed in float32 at least. It is not the mean of the perplexities of batches: `evaluate`
    the loss, and take its exponential.

    Shapes: logits (..., classes), targets and weights (...). Shapes that do not match, empty data, targets out of
    range and NaN: see `jaxblocks.metrics`.

    >>> print(f"{perplexity(jnp.zeros((3, 10)), jnp.array([0, 7, 2])):.3f}")
    10.000

    Source: Jelinek, Mercer, Bahl, Baker 1977.
    """
    targets, valid, weights = _prepare(logits, targets, weights, check)
    warn_of_probabilities(logits)
    logits = widen(logits)
    if weights is not None:  # so that the gradient is finite there too
        logits = jnp.where((weights == 0)[..., None], 0, logits)
    index = jnp.where(valid, targets, 0)[..., None]  # (..., 1)
    log_likelihood = jnp.take_along_axis(log_probabilities(logits), index, axis=-1)[..., 0]  # (...)
    return jnp.exp(-_mean(log_likelihood, valid, weights))


@checked
def confusion_matrix(
    predictions: Integer[Array, "*batch"],
    targets: Integer[Array, "*batch"],
    classes: PositiveInt,
    *,
    check: bool = False,
) -> Int[Array, "{classes} {classes}"]:
    """Confusion matrix: the number of examples for each pair of true and predicted class, in int32.

    C_ij = number of examples n with targets_n = i and predictions_n = j: rows are the truth, columns the prediction,
    and the trace over the sum is the accuracy. Matrices of several batches may be added.

    Shapes: predictions and targets (...), the result (classes, classes). If a label or prediction is out of range under
    ``jit`` without ``check``, every entry is -1.

    >>> print(confusion_matrix(jnp.array([0, 1, 1]), jnp.array([0, 1, 0]), 2))
    [[1 1]
     [0 1]]

    Source: as in scikit-learn, which takes the arguments in the other order.
    """
    _check_data(targets)
    valid = check_labels(targets, classes, name="targets", repair="count from 0", check=check)
    valid &= check_labels(predictions, classes, name="predictions", repair="count from 0", check=check)
    counts = jnp.zeros((classes, classes), jnp.int32)
    # JAX drops or wraps indices out of range silently; all entries become -1 below instead. An int8 is no index into
    # 200 classes.
    rows, columns = (jnp.where(valid, labels, 0).astype(jnp.int32) for labels in (targets, predictions))
    counts = counts.at[rows, columns].add(1)
    return jnp.where(jnp.all(valid), counts, -1)


@checked
def precision_recall_f1(
    confusion: Real[Array, "classes classes"], *, undefined: Any = 0.0, check: bool = False
) -> tuple[Float[Array, " classes"], Float[Array, " classes"], Float[Array, " classes"]]:
    """Precision, recall and F1 score of every class, from a ``confusion_matrix`` C; float32.

    precision_i = C_ii / sum_j C_ji (the share of class i among the examples predicted as i), recall_i = C_ii / sum_j
    C_ij (the share predicted as i among the examples of class i), F1_i = 2 C_ii / (sum_j C_ji + sum_j C_ij), their
    harmonic mean. A quotient 0 / 0, for a class without predictions or without examples, is ``undefined``; a sum that
    contains NaN gives NaN. The mean over classes is the macro average.

    Shapes: (classes, classes) to three times (classes,).

    Raises:
        ValueError: for a matrix that is empty or not square, or where an entry is negative (``confusion_matrix``
            returns -1 for labels out of range); under ``jit`` without ``check`` all results are NaN then.

    >>> precision, recall, f1 = precision_recall_f1(jnp.array([[3, 0], [2, 3]]))
    >>> print(precision, recall, f1)
    [0.6 1. ] [1.  0.6] [0.75 0.75]

    Source: van Rijsbergen, Information Retrieval, 1979.
    """
    repair = "make it with confusion_matrix(predictions, targets, classes)"
    require(confusion.size > 0, "a confusion matrix of at least one class", confusion, repair)
    counts = confusion.astype(jnp.float32)
    # -1 is the mark of `confusion_matrix` for labels out of range.
    negative = jnp.any(counts < 0)
    check_values(
        ~negative,
        "counts >= 0, got a minimum of {smallest}; check for targets out of range",
        check=check,
        smallest=jnp.min(confusion),
    )
    # Rows are true classes, columns predicted ones.
    right, predicted, actual = jnp.diagonal(counts), counts.sum(axis=0), counts.sum(axis=1)

    def quotient(part, whole):
        # The inner `where` keeps 0 / 0 out, which strict modes report and which has a NaN gradient. A sum of NaN, which
        # is not 0, gives NaN.
        value = jnp.where(whole != 0, part / jnp.where(whole != 0, whole, 1), undefined)
        return jnp.where(negative, jnp.nan, value)

    # F1, the harmonic mean of both: 2 TP / (predicted + actual).
    return quotient(right, predicted), quotient(right, actual), quotient(2 * right, predicted + actual)


@checked
def r_squared(
    predictions: Float[Array, "examples *outputs"], targets: Float[Array, "examples *outputs"], *, check: bool = False
) -> Float[Array, "*outputs"]:
    """Coefficient of determination R^2: the share of the variance of the targets that the prediction explains.

    R^2 = 1 - (sum_n (y_n - f_n)^2) / (sum_n (y_n - mean y)^2), y = ``targets``, f = ``predictions``, for every output
    separately. 1 is perfect, 0 is as good as the mean of the targets, below 0 is worse. Half precision is summed
    in float32. It is not the mean of the values of batches: compute it from the outputs of `predict`.

    Shapes: predictions and targets (examples, ...), which must be equal, to (...).

    Raises:
        ValueError: for shapes that differ, for empty data, and where the targets of an output are all equal, since
            their variance is 0; under ``jit`` without ``check`` that output is -inf, or NaN if it was predicted
            exactly.

    >>> print(r_squared(jnp.array([1.0, 2.0, 4.0]), jnp.array([1.0, 2.0, 3.0])))
    0.5

    Source: any book on linear regression, e.g. Draper & Smith, Applied Regression Analysis.
    """
    _check_data(targets)
    dtype = targets.dtype
    predictions, targets = widen(predictions), widen(targets)
    known = targets if check else concrete(targets)
    constant = (known == known[:1]).all(axis=0)  # exact, which the sum of squares below is not
    check_values(
        ~constant,
        "targets that vary, got an output whose targets are all equal; R^2 is not defined for it",
        check=check,
    )
    deviations, errors = targets - targets.mean(axis=0, keepdims=True), targets - predictions
    # In units of the largest deviation: a quotient of squares has fourth powers in its derivative, which underflow.
    unit = unit_of(jnp.max(jnp.abs(deviations), axis=0, keepdims=True))
    total = jnp.where(constant, 0, jnp.sum(divided(deviations, unit) ** 2, axis=0))
    return (1 - jnp.sum(divided(errors, unit) ** 2, axis=0) / total).astype(dtype)
