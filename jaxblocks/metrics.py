"""Metrics: how good predictions are, in plain arrays. They judge a model; to train it, use a loss.

Scores are what a classifier puts out, one number per class on the last axis: logits, log-probabilities or
probabilities, of which only the order counts. Labels are integers from 0 to classes - 1. Scores have the shape
(..., classes) and labels the shape (...), with any number of leading axes, none included. Scores that are NaN
make the result NaN.

A label out of range raises a ``ValueError`` where its value is known. Under ``jit`` it is not known: then the result
is NaN (and in the integer ``confusion_matrix`` -1), or with ``check=True``, if the caller is wrapped in
``jax.experimental.checkify.checkify``, an error. Empty data raise a ``ValueError``, since they have no mean.

``weights`` (where there are any) say how much every label counts, as numbers or booleans; a label of weight 0, such as
padding, may have any value.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Integer, Real

from jaxblocks.checks import check_values, describe, require_floating

__all__ = [
    "accuracy",
    "confusion_matrix",
    "perplexity",
    "precision_recall_f1",
    "predict_class",
    "r_squared",
    "top_k_accuracy",
]


def _require_scores(where, scores):
    if scores.ndim == 0 or scores.shape[-1] == 0:
        raise ValueError(f"{where} expects one score per class on the last axis, but {describe(scores)} came.")


def _require_integers(where, **labels):
    for name, x in labels.items():
        if not jnp.issubdtype(x.dtype, jnp.integer):
            raise TypeError(
                f"{where} expects integer {name}, but {describe(x)} came; use {name}.astype(jnp.int32), "
                f"or predict_class({name}) if there is one number per class."
            )


def _require_data(where, **arrays):
    for name, x in arrays.items():
        if x.size == 0:
            raise ValueError(f"{where} has no value for empty data, but {name} is {describe(x)}; leave it out.")


def _in_range(where, labels, classes, weights=None, *, check, name="labels"):
    """Where 0 <= labels < classes, after check_values has seen it."""
    valid = (labels >= 0) & (labels < classes)
    check_values(
        valid if weights is None else valid | (weights == 0),
        f"{where} expects {name} from 0 to {classes - 1}, but they go from {{low}} to {{high}}; "
        "count from 0, and give padding the weight 0 where weights are taken.",
        check=check,
        low=jnp.min(labels),
        high=jnp.max(labels),
    )
    return valid


def _prepare(where, scores, labels, weights, check):
    """int32 labels, where they are in range, float32 weights (or None); every complaint about shapes."""
    _require_scores(where, scores)
    if labels.shape != scores.shape[:-1]:
        advice = (
            "use predict_class(labels) for one-hot labels" if labels.shape == scores.shape else "reshape one of them"
        )
        raise ValueError(
            f"{where} expects one label per row of scores, but scores are {describe(scores)} and labels "
            f"{describe(labels)}; {advice}."
        )
    _require_integers(where, labels=labels)
    _require_data(where, labels=labels)
    if weights is not None:
        if weights.shape != labels.shape:
            raise ValueError(
                f"{where} expects one weight per label, but labels are {describe(labels)} and weights "
                f"{describe(weights)}; broadcast weights to {labels.shape}."
            )
        weights = weights.astype(jnp.float32)
        check_values(
            jnp.all(weights >= 0) & jnp.any(weights > 0),
            f"{where} expects weights >= 0 that are not all 0, but they go from {{low}} to {{high}}.",
            check=check,
            low=jnp.min(weights),
            high=jnp.max(weights),
        )
    labels = labels.astype(jnp.int32)
    return labels, _in_range(where, labels, scores.shape[-1], weights, check=check), weights


def _mean(x, valid, weights):
    """The (weighted) mean of x, NaN where not valid."""
    x = jnp.where(valid, x, jnp.nan)
    if weights is None:
        return jnp.mean(x)
    return jnp.sum(jnp.where(weights == 0, 0, weights.astype(x.dtype) * x)) / jnp.sum(weights).astype(x.dtype)


def _no_nan(scores):
    return jnp.all(scores == scores, axis=-1)  # (...)


def predict_class(scores: Real[Array, "*batch classes"]) -> Int[Array, "*batch"]:
    """The class of the highest score, counted from 0; the first one on ties.

    i_h(a) = argmax_i [h(a)]_i, h(a) the ``scores`` of one example. The result is int32. NaN counts as the highest
    score, so look for it before.

    Shapes: (..., classes) to (...). Raises a ``ValueError`` without a class axis.

    >>> print(predict_class(jnp.array([[0.1, -0.8, 1.4, 1.1], [2.0, 2.0, 0.0, 0.0]])))
    [2 0]

    Source: Cevher, Mathematics of Data (score-based classifiers; classes counted from 1 there).
    """
    _require_scores("predict_class", scores)
    return jnp.argmax(scores, axis=-1).astype(jnp.int32)


def accuracy(
    scores: Real[Array, "*batch classes"],
    labels: Integer[Array, "*batch"],
    weights: Real[Array, "*batch"] | Bool[Array, "*batch"] | None = None,
    *,
    check: bool = False,
) -> Float[Array, ""]:
    """The share of examples whose class is predicted right, one minus the mean 0-1 loss; a float32.

    (sum_n w_n [predict_class(scores_n) = labels_n]) / sum_n w_n, with weights w_n = 1 unless given.

    Shapes: scores (..., classes), labels and weights (...). Shapes that do not match, empty data, labels out of
    range and NaN: see the top of this module.

    >>> scores = jnp.array([[2.0, 1.0], [0.0, 3.0], [5.0, 4.0]])
    >>> print(f"{accuracy(scores, jnp.array([0, 1, 1])):.4f}")
    0.6667

    Source: Cevher, Mathematics of Data (score-based classifiers).
    """
    labels, valid, weights = _prepare("accuracy", scores, labels, weights, check)
    hits = (predict_class(scores) == labels).astype(jnp.float32)
    return _mean(hits, valid & _no_nan(scores), weights)


def top_k_accuracy(
    scores: Real[Array, "*batch classes"],
    labels: Integer[Array, "*batch"],
    k: int = 5,
    weights: Real[Array, "*batch"] | Bool[Array, "*batch"] | None = None,
    *,
    check: bool = False,
) -> Float[Array, ""]:
    """The share of examples whose class is among the k predicted first; a float32.

    (sum_n w_n [fewer than k classes are ranked before labels_n]) / sum_n w_n, with weights w_n = 1 unless given. A
    class is ranked before another if its score is higher, or equal and the class number lower. So k = 1 is
    ``accuracy``.

    Shapes: scores (..., classes), labels and weights (...). Raises a ``ValueError`` unless 1 <= k <= classes; the
    rest as at the top of this module.

    >>> scores = jnp.array([[3.0, 2.0, 1.0], [1.0, 2.0, 3.0]])
    >>> print(top_k_accuracy(scores, jnp.array([1, 0]), 2))
    0.5

    Source: the ImageNet challenge, Russakovsky et al. 2015.
    """
    labels, valid, weights = _prepare("top_k_accuracy", scores, labels, weights, check)
    classes = scores.shape[-1]
    if not 1 <= k <= classes:
        raise ValueError(f"top_k_accuracy expects k from 1 to the number of classes, {classes}, but {k} came.")
    index = jnp.where(valid, labels, 0)[..., None]  # (..., 1)
    score = jnp.take_along_axis(scores, index, axis=-1)  # (..., 1)
    lower = jax.lax.broadcasted_iota(jnp.int32, scores.shape, scores.ndim - 1) < index
    before = jnp.sum((scores > score) | ((scores == score) & lower), axis=-1)
    return _mean((before < k).astype(jnp.float32), valid & _no_nan(scores), weights)


def perplexity(
    logits: Float[Array, "*batch classes"],
    labels: Integer[Array, "*batch"],
    weights: Real[Array, "*batch"] | Bool[Array, "*batch"] | None = None,
    *,
    check: bool = False,
) -> Float[Array, ""]:
    """The exponential of the mean negative log-likelihood: among how many equally likely classes the model wavers.

    exp(-(sum_n w_n log softmax(logits_n)_{labels_n}) / sum_n w_n), natural logarithm, weights w_n = 1 unless given.
    1 is perfect, the number of classes is a uniform guess, inf a label that was held impossible. Log-probabilities
    may stand for logits, being their own log-softmax; probabilities may not. Computed in float32 at least.

    Shapes: logits (..., classes), labels and weights (...). Shapes that do not match, empty data, labels out of
    range and NaN: see the top of this module.

    >>> print(f"{perplexity(jnp.zeros((3, 10)), jnp.array([0, 7, 2])):.3f}")
    10.000

    Source: Jelinek, Mercer, Bahl, Baker 1977.
    """
    require_floating("perplexity", logits=logits)
    labels, valid, weights = _prepare("perplexity", logits, labels, weights, check)
    logits = logits.astype(jnp.float32) if jnp.finfo(logits.dtype).bits < 32 else logits
    index = jnp.where(valid, labels, 0)[..., None]  # (..., 1)
    log_likelihood = jnp.take_along_axis(jax.nn.log_softmax(logits), index, axis=-1)[..., 0]  # (...)
    return jnp.exp(-_mean(log_likelihood, valid, weights))


def confusion_matrix(
    predicted: Integer[Array, "*batch"], labels: Integer[Array, "*batch"], classes: int, *, check: bool = False
) -> Int[Array, "{classes} {classes}"]:
    """How often examples of every class were predicted to be of every class, in int32.

    C_ij = number of examples n with labels_n = i and predicted_n = j: rows are the truth, columns the prediction, and
    the trace over the sum is the accuracy. Matrices of several batches may be added.

    Shapes: predicted and labels (...), the result (classes, classes). If a label or prediction is out of range under
    ``jit`` without ``check``, every entry is -1.

    >>> print(confusion_matrix(jnp.array([0, 1, 1]), jnp.array([0, 1, 0]), 2))
    [[1 1]
     [0 1]]

    Source: as in scikit-learn, whose arguments come in the other order.
    """
    if predicted.shape != labels.shape:
        raise ValueError(
            f"confusion_matrix expects as many predictions as labels, but predicted is {describe(predicted)} and "
            f"labels {describe(labels)}; use predict_class(scores) for scores."
        )
    _require_integers("confusion_matrix", predicted=predicted, labels=labels)
    _require_data("confusion_matrix", labels=labels)
    predicted, labels = predicted.astype(jnp.int32), labels.astype(jnp.int32)
    valid = _in_range("confusion_matrix", labels, classes, check=check)
    valid &= _in_range("confusion_matrix", predicted, classes, check=check, name="predicted")
    counts = jnp.zeros((classes, classes), jnp.int32)
    counts = counts.at[jnp.where(valid, labels, 0), jnp.where(valid, predicted, 0)].add(1)
    return jnp.where(jnp.all(valid), counts, -1)


def precision_recall_f1(
    confusion: Real[Array, "classes classes"], undefined: float = 0.0, *, check: bool = False
) -> tuple[Float[Array, " classes"], Float[Array, " classes"], Float[Array, " classes"]]:
    """Precision, recall and F1 score of every class, from a ``confusion_matrix`` C; float32.

    precision_i = C_ii / sum_j C_ji (of the examples predicted i, how many are), recall_i = C_ii / sum_j C_ij (of the
    examples that are i, how many were predicted), F1_i = 2 C_ii / (sum_j C_ji + sum_j C_ij), their harmonic mean.
    A quotient 0 / 0, for a class that was never predicted or never there, is ``undefined``. The mean over classes is
    the macro average.

    Shapes: (classes, classes) to three times (classes,). Raises a ``ValueError`` for a matrix that is not square, or
    where an entry is negative (as ``confusion_matrix`` says that a label was out of range); under ``jit`` without
    ``check`` all results are NaN then.

    >>> precision, recall, f1 = precision_recall_f1(jnp.array([[3, 0], [2, 3]]))
    >>> print(precision, recall, f1)
    [0.6 1. ] [1.  0.6] [0.75 0.75]

    Source: van Rijsbergen, Information Retrieval, 1979.
    """
    if confusion.ndim != 2 or confusion.shape[0] != confusion.shape[1]:
        raise ValueError(
            f"precision_recall_f1 expects a square matrix, but {describe(confusion)} came; "
            "use confusion_matrix(predicted, labels, classes)."
        )
    counts = confusion.astype(jnp.float32)
    negative = jnp.any(counts < 0)
    check_values(
        ~negative,
        "precision_recall_f1 expects counts, but the smallest entry is {smallest}; were there labels out of range?",
        check=check,
        smallest=jnp.min(confusion),
    )
    right, predicted, actual = jnp.diagonal(counts), counts.sum(axis=0), counts.sum(axis=1)

    def quotient(part, whole):
        value = jnp.where(whole > 0, part / jnp.where(whole > 0, whole, 1), undefined)
        return jnp.where(negative, jnp.nan, value)

    return quotient(right, predicted), quotient(right, actual), quotient(2 * right, predicted + actual)


def r_squared(
    predicted: Float[Array, "examples *outputs"], targets: Float[Array, "examples *outputs"], *, check: bool = False
) -> Float[Array, "*outputs"]:
    """Coefficient of determination R^2: the share of the variance of the targets that the prediction explains.

    R^2 = 1 - (sum_n (y_n - f_n)^2) / (sum_n (y_n - mean y)^2), y = ``targets``, f = ``predicted``, for every output
    separately. 1 is perfect, 0 as good as the mean of the targets, below 0 worse than that. Half precision is summed
    in float32.

    Shapes: predicted and targets (examples, ...), which must be equal, to (...). Raises a ``ValueError`` for shapes
    that differ, for empty data, and where the targets of an output are all equal, since there is nothing to explain;
    under ``jit`` without ``check`` that output is -inf, or NaN if it was predicted exactly.

    >>> print(r_squared(jnp.array([1.0, 2.0, 4.0]), jnp.array([1.0, 2.0, 3.0])))
    0.5

    Source: any book on linear regression, e.g. Draper & Smith, Applied Regression Analysis.
    """
    if predicted.shape != targets.shape or predicted.ndim == 0:
        raise ValueError(
            "r_squared expects predicted and targets of one shape (examples, ...), but "
            f"{describe(predicted)} and {describe(targets)} came; reshape one of them."
        )
    require_floating("r_squared", predicted=predicted, targets=targets)
    _require_data("r_squared", targets=targets)
    dtype = targets.dtype
    if jnp.finfo(dtype).bits < 32:
        predicted, targets = predicted.astype(jnp.float32), targets.astype(jnp.float32)
    constant = jnp.all(targets == targets[:1], axis=0)  # exact, which the sum of squares below is not
    check_values(
        ~constant,
        "r_squared expects targets that vary, but those of an output are all equal; R^2 is not defined for it.",
        check=check,
    )
    total = jnp.where(constant, 0, jnp.sum((targets - targets.mean(axis=0, keepdims=True)) ** 2, axis=0))
    return (1 - jnp.sum((targets - predicted) ** 2, axis=0) / total).astype(dtype)
