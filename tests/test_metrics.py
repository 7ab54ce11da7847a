"""Metrics against scikit-learn and closed forms; ties, weights, labels out of range, empty data."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify

from jaxblocks.metrics import (
    accuracy,
    confusion_matrix,
    perplexity,
    precision_recall_f1,
    predict_class,
    r_squared,
    top_k_accuracy,
)

N, CLASSES = 200, 7
RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, CLASSES, N).astype(np.int32)
SCORES = (RNG.standard_normal((N, CLASSES)) + 1.5 * np.eye(CLASSES)[LABELS]).astype(np.float32)
PREDICTED = SCORES.argmax(-1).astype(np.int32)
WEIGHTS = RNG.integers(0, 4, N).astype(np.float32)

OF_SCORES = {
    "accuracy": accuracy,
    "top_k_accuracy": partial(top_k_accuracy, k=3),
    "perplexity": perplexity,
}


def of_scores(function=None):
    return pytest.mark.parametrize("name", OF_SCORES)(function)


@pytest.fixture(scope="module")
def sklearn_metrics():
    return pytest.importorskip("sklearn.metrics", reason="scikit-learn is the reference here")


def on(function, *args, **options):
    """Call the function under jit: one compilation instead of one per operation."""
    return jax.jit(partial(function, **options))(*map(jnp.asarray, args))


# Classification ----------------------------------------------------------------------------------------------------


def test_predict_class_of_the_lecture():
    """(.1, -.8, 1.4, 1.1) -> 3 for classes counted from 1: index 2."""
    assert on(predict_class, [0.1, -0.8, 1.4, 1.1]) == 2


def test_predict_class():
    predicted = on(predict_class, SCORES.reshape(4, 50, CLASSES))
    assert predicted.dtype == jnp.int32
    np.testing.assert_array_equal(predicted, PREDICTED.reshape(4, 50))
    np.testing.assert_array_equal(on(predict_class, np.exp(SCORES)), PREDICTED)  # only the order matters
    np.testing.assert_array_equal(on(predict_class, np.eye(3, dtype=np.int32)), [0, 1, 2])  # one-hot to labels
    with jax.enable_x64(True):
        assert on(predict_class, SCORES.astype(np.float64)).dtype == jnp.int32


def test_first_of_tied_classes_is_predicted():
    np.testing.assert_array_equal(on(predict_class, [[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]]), [1, 0])
    assert on(accuracy, [[1.0, 3.0, 3.0]], [1]) == 1
    assert on(accuracy, [[1.0, 3.0, 3.0]], [2]) == 0
    assert on(top_k_accuracy, [[1.0, 3.0, 3.0]], [2], k=1) == 0
    assert on(top_k_accuracy, [[1.0, 3.0, 3.0]], [2], k=2) == 1
    # A constant classifier is correct for its first k classes, not for all of them.
    constant = on(top_k_accuracy, np.zeros((CLASSES, CLASSES), np.float32), np.arange(CLASSES), k=3)
    assert constant == pytest.approx(3 / CLASSES, rel=1e-6)


@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_accuracy_matches_sklearn(sklearn_metrics, weights):
    options = {} if weights is None else {"weights": jnp.asarray(weights)}
    value = on(accuracy, SCORES, LABELS, **options)
    assert value.dtype == jnp.float32
    assert value.shape == ()
    expected = sklearn_metrics.accuracy_score(LABELS, PREDICTED, sample_weight=weights)
    assert 0.3 < expected < 0.9
    assert value == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("k", [1, 2, 5, CLASSES])
@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_top_k_accuracy_matches_sklearn(sklearn_metrics, k, weights):
    arrays = (SCORES, LABELS) if weights is None else (SCORES, LABELS, weights)
    value = on(lambda scores, labels, *w: top_k_accuracy(scores, labels, k=k, weights=w[0] if w else None), *arrays)
    if k == CLASSES:
        assert value == 1  # scikit-learn warns here
        return
    classes = range(CLASSES)
    expected = sklearn_metrics.top_k_accuracy_score(LABELS, SCORES, k=k, sample_weight=weights, labels=classes)
    assert value == pytest.approx(expected, rel=1e-6)
    if k == 1:
        assert value == on(accuracy, *arrays[:2], **({} if weights is None else {"weights": weights}))


def test_confusion_matrix_matches_sklearn(sklearn_metrics):
    counts = on(confusion_matrix, PREDICTED, LABELS, classes=CLASSES + 1)
    expected = sklearn_metrics.confusion_matrix(LABELS, PREDICTED, labels=range(CLASSES + 1))
    assert counts.dtype == jnp.int32
    np.testing.assert_array_equal(counts, expected)
    assert np.any(expected != expected.T)  # a transposed matrix fails the comparison
    assert np.trace(counts) / N == pytest.approx(float(on(accuracy, SCORES, LABELS)), rel=1e-6)
    halves = [
        on(confusion_matrix, p, y, classes=CLASSES + 1)
        for p, y in zip(np.split(PREDICTED, 2), np.split(LABELS, 2), strict=True)
    ]
    np.testing.assert_array_equal(sum(halves), counts)
    shaped = on(confusion_matrix, PREDICTED.reshape(4, 50), LABELS.reshape(4, 50).astype(np.uint8), classes=CLASSES + 1)
    np.testing.assert_array_equal(shaped, counts)


@pytest.mark.parametrize("undefined", [0.0, 1.0, np.nan])
def test_precision_recall_and_f1_match_sklearn(sklearn_metrics, undefined):
    """Includes a class that is never predicted, one that is never a label, and one that is neither."""
    predicted, labels = PREDICTED % 5, np.where(LABELS == 0, 5, LABELS)
    classes = 9
    expected = sklearn_metrics.precision_recall_fscore_support(
        labels, predicted, labels=range(classes), zero_division=undefined
    )
    with jax.debug_nans(False):
        counts = on(confusion_matrix, predicted, labels, classes=classes)
        ours = on(precision_recall_f1, counts, undefined=undefined)
    for one, other in zip(ours, expected[:3], strict=True):
        assert one.dtype == jnp.float32
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_precision_recall_and_f1_by_hand():
    precision, recall, f1 = on(precision_recall_f1, [[3, 1], [0, 4]])
    np.testing.assert_allclose(precision, [1, 4 / 5], rtol=1e-6)
    np.testing.assert_allclose(recall, [3 / 4, 1], rtol=1e-6)
    np.testing.assert_allclose(f1, [6 / 7, 8 / 9], rtol=1e-6)
    np.testing.assert_allclose(f1, 2 / (1 / precision + 1 / recall), rtol=1e-6)


def test_perplexity_against_the_formula():
    wide = SCORES.astype(np.float64)
    log_p = wide - np.log(np.exp(wide).sum(-1, keepdims=True))
    nll = -log_p[np.arange(N), LABELS]
    assert on(perplexity, SCORES, LABELS) == pytest.approx(np.exp(nll.mean()), rel=1e-6)
    weighted = np.exp(np.average(nll, weights=WEIGHTS))
    assert on(perplexity, SCORES, LABELS, weights=WEIGHTS) == pytest.approx(weighted, rel=1e-6)
    with jax.enable_x64(True):
        assert on(perplexity, wide, LABELS) == pytest.approx(np.exp(nll.mean()), rel=1e-14)
        assert on(perplexity, wide, LABELS, weights=WEIGHTS) == pytest.approx(weighted, rel=1e-14)


def test_perplexity_of_simple_models():
    labels = jnp.arange(4)
    assert on(perplexity, jnp.zeros((4, 10)), labels) == pytest.approx(10, rel=1e-6)  # uniform prediction
    assert on(perplexity, 1e4 * jnp.eye(4), labels) == 1  # confident and correct
    assert on(perplexity, [[0.0, -np.inf]], [1]) == np.inf  # label of probability 0
    assert on(perplexity, [[0.0, -1e4]], [1]) == np.inf  # exp(1e4) in float32
    log_p = jax.nn.log_softmax(jnp.asarray(SCORES))
    expected = float(on(perplexity, SCORES, LABELS))
    assert on(perplexity, log_p, LABELS) == pytest.approx(expected, rel=1e-6)
    assert abs(on(perplexity, jnp.exp(log_p), LABELS) - expected) > 0.1  # probabilities are not logits


def test_gradient_of_perplexity_is_zero_at_padding():
    scores, labels = SCORES[:3].copy(), np.array([1, -100, 2])
    weights = jnp.asarray(labels >= 0)
    value = lambda x: perplexity(x, jnp.asarray(labels), weights=weights)
    with jax.debug_nans(False):
        slope = jax.jit(jax.grad(value))(jnp.asarray(scores).at[1].set(jnp.nan))
    np.testing.assert_array_equal(np.asarray(slope) != 0, np.asarray(weights)[:, None] & np.ones((3, CLASSES), bool))
    assert np.isfinite(slope).all()


def test_perplexity_of_half_precision_is_summed_in_float32():
    scores = jnp.asarray(SCORES, jnp.bfloat16)
    expected = perplexity(scores.astype(jnp.float32), jnp.asarray(LABELS))
    value = perplexity(scores, jnp.asarray(LABELS))
    assert value.dtype == jnp.float32
    assert value == pytest.approx(float(expected), rel=1e-6)


@of_scores
def test_leading_axes_are_batch(name):
    function = OF_SCORES[name]
    value = on(function, SCORES, LABELS)
    shaped = on(function, SCORES.reshape(2, 5, 20, CLASSES), LABELS.reshape(2, 5, 20))
    assert shaped == pytest.approx(float(value), rel=1e-6)
    one_by_one = jax.vmap(function)(jnp.asarray(SCORES), jnp.asarray(LABELS))  # without leading axes
    reduced = np.exp(np.log(one_by_one).mean()) if name == "perplexity" else one_by_one.mean()
    assert reduced == pytest.approx(float(value), rel=1e-5)
    assert function(jnp.asarray(SCORES), jnp.asarray(LABELS)) == pytest.approx(float(value), rel=1e-6)  # eagerly


@of_scores
def test_repeated_data_give_the_same_value_and_weights_are_repetitions(name):
    function = OF_SCORES[name]
    value = on(function, SCORES, LABELS)
    assert on(function, np.tile(SCORES, (3, 1)), np.tile(LABELS, 3)) == pytest.approx(float(value), rel=1e-6)
    times = WEIGHTS.astype(int)
    repeated = on(function, np.repeat(SCORES, times, 0), np.repeat(LABELS, times))
    for weights in (WEIGHTS, WEIGHTS.astype(np.int32), 0.1 * WEIGHTS):
        assert on(function, SCORES, LABELS, weights=jnp.asarray(weights)) == pytest.approx(float(repeated), rel=2e-6)


@of_scores
def test_padding_with_weight_zero_may_have_any_value(name):
    function = OF_SCORES[name]
    labels, scores = LABELS.copy(), SCORES.copy()
    labels[150:], scores[150:] = -1, np.nan
    with jax.debug_nans(False):
        value = on(function, scores, labels, weights=jnp.arange(N) < 150)
    assert value == pytest.approx(float(on(function, SCORES[:150], LABELS[:150])), rel=1e-6)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int64])
def test_labels_of_any_integer_dtype(dtype):
    """300 does not fit in uint8; the comparison with the number of classes neither overflows nor raises."""
    with jax.enable_x64(dtype == np.int64):
        for function in (accuracy, partial(top_k_accuracy, k=1)):
            assert on(function, np.eye(300, dtype=np.float32)[:100], np.arange(100, dtype=dtype)) == 1


# Errors ------------------------------------------------------------------------------------------------------------


@of_scores
@pytest.mark.parametrize("wrong", [-1, CLASSES])
def test_labels_out_of_range(name, wrong):
    """A ValueError eagerly; NaN under jit, never a clipped value; an error of checkify with check=True."""
    function = OF_SCORES[name]
    labels = LABELS.copy()
    labels[3] = wrong
    scores, labels = jnp.asarray(SCORES), jnp.asarray(labels)
    with pytest.raises(ValueError, match=rf"targets from 0 to 6, got targets from {labels.min()} to {labels.max()}; "):
        function(scores, labels)
    with jax.debug_nans(False):
        assert np.isnan(jax.jit(function)(scores, labels))
        error, _ = checkify.checkify(jax.jit(partial(function, check=True)))(scores, labels)
    with pytest.raises(checkify.JaxRuntimeError, match="expected targets from 0 to 6"):
        error.throw()
    error, value = checkify.checkify(jax.jit(partial(function, check=True)))(scores, jnp.asarray(LABELS))
    error.throw()
    assert value == pytest.approx(float(on(function, SCORES, LABELS)), rel=1e-6)


@of_scores
def test_nan_scores_give_nan(name):
    scores = SCORES.copy()
    scores[5, 2] = np.nan
    with jax.debug_nans(False):
        assert np.isnan(on(OF_SCORES[name], scores, LABELS))


@pytest.mark.parametrize("wrong", [-1, CLASSES])
@pytest.mark.parametrize("which", ["predictions", "targets"])
def test_confusion_matrix_out_of_range(which, wrong):
    arrays = {"predictions": PREDICTED.copy(), "targets": LABELS.copy()}
    arrays[which][3] = wrong
    arrays = jax.tree.map(jnp.asarray, arrays)
    with pytest.raises(ValueError, match=rf"confusion_matrix expected {which} from 0 to 6"):
        confusion_matrix(**arrays, classes=CLASSES)
    counts = jax.jit(partial(confusion_matrix, classes=CLASSES))(**arrays)
    np.testing.assert_array_equal(counts, np.full((CLASSES, CLASSES), -1))
    with pytest.raises(ValueError, match="counts >= 0, got a minimum of -1; check for targets out of range"):
        precision_recall_f1(counts)
    with jax.debug_nans(False):
        assert np.isnan(jax.jit(precision_recall_f1)(counts)).all()
    error, _ = checkify.checkify(partial(confusion_matrix, classes=CLASSES, check=True))(**arrays)
    with pytest.raises((ValueError, checkify.JaxRuntimeError), match="from 0 to 6"):
        error.throw()


def test_weights_without_a_mean_are_rejected():
    scores, labels = jnp.eye(3), jnp.arange(3)
    for weights in ([0.0, 0.0, 0.0], [1.0, -1.0, 1.0]):
        with pytest.raises(ValueError, match=r"weights >= 0 that are not all 0, got values from"):
            accuracy(scores, labels, weights=jnp.asarray(weights))
    with jax.debug_nans(False):
        assert np.isnan(jax.jit(accuracy)(scores, labels, weights=jnp.zeros(3)))


@of_scores
def test_mismatched_shapes_are_rejected(name):
    function = OF_SCORES[name]
    scores, labels = jnp.asarray(SCORES), jnp.asarray(LABELS)
    with pytest.raises(ValueError, match=r"same size of \*batch, got float32 \(200, 7\) and int32 \(100,\); reshape"):
        function(scores, labels[:100])
    with pytest.raises(
        ValueError, match=r"same size of \*batch, got float32 \(200, 7\) and int32 \(200, 1\)"
    ):  # would broadcast to (200, 200)
        function(scores, labels[:, None])
    with pytest.raises(TypeError, match=r"or with targets.argmax\(-1\) where it has one number per class"):
        function(scores, jnp.eye(CLASSES)[labels])
    assert np.isfinite(function(scores, predict_class(jnp.eye(CLASSES)[labels])))  # the suggested repair
    with pytest.raises(ValueError, match=r"weights .* with the same size of \*batch, got .* float32 \(\); reshape"):
        function(scores, labels, weights=jnp.float32(1))
    assert np.isfinite(function(scores, labels, weights=jnp.broadcast_to(jnp.float32(1), (200,))))
    with pytest.raises(TypeError, match=r"targets to be an integer array, got float32 \(200,\); convert it with"):
        function(scores, labels.astype(jnp.float32))
    for bad in (jnp.float32(1), jnp.zeros((200, 0))):
        with pytest.raises(ValueError, match="one score per class on the last axis|at least 1 axis"):
            function(bad, labels)


@of_scores
def test_empty_data_are_rejected(name):
    function = OF_SCORES[name]
    with pytest.raises(ValueError, match=r"data, since an empty mean has no value, got int32 \(0,\)"):
        jax.eval_shape(function, jnp.zeros((0, 5)), jnp.zeros((0,), jnp.int32))  # at trace time
    with pytest.raises(ValueError, match="data, since an empty mean has no value"):
        confusion_matrix(jnp.zeros((0,), jnp.int32), jnp.zeros((0,), jnp.int32), 3)
    with pytest.raises(ValueError, match="data, since an empty mean has no value"):
        r_squared(jnp.zeros((0,)), jnp.zeros((0,)))
    assert predict_class(jnp.zeros((0, 5))).shape == (0,)  # no mean is taken


@pytest.mark.parametrize("k", [0, CLASSES + 1])
def test_k_out_of_range_is_rejected(k):
    with pytest.raises(ValueError, match=rf"k (from 1 to the number of classes, 7|to be an integer >= 1), got {k}"):
        on(top_k_accuracy, SCORES, LABELS, k=k)


def test_other_wrong_shapes_and_dtypes_are_rejected():
    with pytest.raises(ValueError, match=r"at least 1 axis, .* got float32 \(\)"):
        predict_class(jnp.float32(1))
    plain = confusion_matrix
    with pytest.raises(TypeError, match=r"integer array, got float32 \(200, 7\).*predictions.argmax\(-1\)"):
        plain(jnp.asarray(SCORES), jnp.asarray(LABELS), CLASSES)
    with pytest.raises(TypeError, match=r"predictions to be an integer array, got float32 \(200,\)"):
        plain(jnp.asarray(PREDICTED, jnp.float32), jnp.asarray(LABELS), CLASSES)
    with pytest.raises(ValueError, match=r"confusion with 2 axes, \(classes, classes\), got int32 \(200,\)"):
        precision_recall_f1(jnp.asarray(LABELS))
    with pytest.raises(TypeError, match="logits to be a floating-point array"):
        perplexity(jnp.eye(3, dtype=jnp.int32), jnp.arange(3))
    with pytest.raises(ValueError, match=r"same size of \*outputs, got float32 \(8, 1\) and float32 \(8,\)"):
        r_squared(jnp.ones((8, 1)), jnp.ones(8))  # would broadcast to (8, 8)
    with pytest.raises(TypeError, match="predictions to be a floating-point array"):
        r_squared(jnp.arange(3), jnp.arange(3))


# Regression --------------------------------------------------------------------------------------------------------


def test_r_squared_matches_sklearn(sklearn_metrics):
    rng = np.random.default_rng(1)
    targets = rng.standard_normal((50, 3)) + 100
    predicted = targets + rng.standard_normal((50, 3)) * [0.1, 1, 3]
    expected = sklearn_metrics.r2_score(targets, predicted, multioutput="raw_values")
    assert expected.min() < 0 < expected.max()
    with jax.enable_x64(True):
        np.testing.assert_allclose(on(r_squared, predicted, targets), expected, rtol=1e-12)
        one = on(r_squared, predicted[:, 0], targets[:, 0])
        assert one == pytest.approx(expected[0], rel=1e-12)
    value = on(r_squared, predicted.astype(np.float32), targets.astype(np.float32))
    assert value.dtype == jnp.float32
    np.testing.assert_allclose(value, expected, rtol=1e-4)  # targets around 100: rounding of the data
    assert on(r_squared, targets.astype(np.float32), targets.astype(np.float32)).tolist() == [1, 1, 1]


def test_r_squared_of_half_precision():
    targets = jnp.asarray(np.random.default_rng(2).standard_normal(5000), jnp.bfloat16)
    predicted = (targets.astype(jnp.float32) + 0.5).astype(jnp.bfloat16)
    wide = r_squared(predicted.astype(jnp.float32), targets.astype(jnp.float32))
    value = r_squared(predicted, targets)
    assert value.dtype == jnp.bfloat16
    assert value == wide.astype(jnp.bfloat16)


def test_r_squared_of_constant_targets():
    """There is no variance to explain, even if the mean of equal numbers is rounded, as for 0.1."""
    targets = jnp.full((7, 1), 0.1)
    with pytest.raises(ValueError, match="targets that vary"):
        r_squared(targets + 1, targets)
    with jax.debug_nans(False):
        assert jax.jit(r_squared)(targets + 1, targets) == -np.inf
        assert np.isnan(jax.jit(r_squared)(targets, targets))
        error, _ = checkify.checkify(jax.jit(partial(r_squared, check=True)))(targets, targets)
    with pytest.raises(checkify.JaxRuntimeError, match="targets that vary"):
        error.throw()
