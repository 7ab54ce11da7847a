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


def test_predict_class():
    predicted, one_hot = on(
        lambda x, y: (predict_class(x), predict_class(y)), SCORES.reshape(4, 50, CLASSES), np.eye(3)
    )
    assert predicted.dtype == one_hot.dtype == jnp.int32
    np.testing.assert_array_equal(predicted, PREDICTED.reshape(4, 50))
    np.testing.assert_array_equal(one_hot, [0, 1, 2])  # one-hot to labels


def test_first_of_tied_classes_is_predicted():
    def values(tied, constant, labels):
        tops = [top_k_accuracy(tied, jnp.array([label]), k=k) for label, k in ((2, 1), (2, 2))]
        accuracies = [accuracy(tied, jnp.array([label])) for label in (1, 2)]
        return predict_class(constant), accuracies, tops, top_k_accuracy(constant, labels, k=3)

    constant = np.zeros((CLASSES, CLASSES), np.float32)
    predicted, accuracies, tops, share = on(values, [[1.0, 3.0, 3.0]], constant, np.arange(CLASSES))
    np.testing.assert_array_equal(predicted, 0)
    assert accuracies == [1, 0] and tops == [0, 1]
    # A constant classifier is correct for its first k classes, not for all of them.
    assert share == pytest.approx(3 / CLASSES, rel=1e-6)


def test_accuracy_matches_sklearn(sklearn_metrics):
    value = on(accuracy, SCORES, LABELS, weights=jnp.asarray(WEIGHTS))
    assert value.dtype == jnp.float32
    assert value.shape == ()
    expected = sklearn_metrics.accuracy_score(LABELS, PREDICTED, sample_weight=WEIGHTS)
    assert 0.3 < expected < 0.9
    assert value == pytest.approx(expected, rel=1e-6)


def test_top_k_accuracy_matches_sklearn(sklearn_metrics):
    ks, weights = (1, 3, CLASSES), jnp.asarray(WEIGHTS)
    *values, all_classes = on(lambda x, y: [top_k_accuracy(x, y, k=k, weights=weights) for k in ks], SCORES, LABELS)
    assert all_classes == 1  # scikit-learn warns here
    for k, value in zip(ks, values, strict=False):
        expected = sklearn_metrics.top_k_accuracy_score(
            LABELS, SCORES, k=k, sample_weight=WEIGHTS, labels=range(CLASSES)
        )
        assert value == pytest.approx(expected, rel=1e-6)


def test_confusion_matrix_takes_all_integers():
    """Of more classes than an int8 can count."""
    labels = np.array([0, 100, 100], np.int8)
    found = np.asarray(confusion_matrix(labels, labels[::-1], 200))
    expected = np.zeros((200, 200), int)
    np.add.at(expected, ([0, 100, 100], [100, 100, 0]), 1)
    np.testing.assert_array_equal(found, expected)


def test_confusion_matrix_matches_sklearn(sklearn_metrics):
    counts = on(confusion_matrix, PREDICTED, LABELS, classes=CLASSES + 1)
    expected = sklearn_metrics.confusion_matrix(LABELS, PREDICTED, labels=range(CLASSES + 1))
    assert counts.dtype == jnp.int32
    np.testing.assert_array_equal(counts, expected)
    assert np.any(expected != expected.T)  # a transposed matrix fails the comparison
    shaped = on(confusion_matrix, PREDICTED.reshape(4, 50), LABELS.reshape(4, 50).astype(np.uint8), classes=CLASSES + 1)
    np.testing.assert_array_equal(shaped, counts)


def test_precision_recall_and_f1_match_sklearn(sklearn_metrics):
    """Includes a class that is never predicted, one that is never a label, and one that is neither."""
    predicted, labels, classes = PREDICTED % 5, np.where(LABELS == 0, 5, LABELS), 9
    ratios = lambda counts: [precision_recall_f1(counts, undefined=undefined) for undefined in (0.0, 1.0, np.nan)]
    with jax.debug_nans(False):
        found = on(ratios, sklearn_metrics.confusion_matrix(labels, predicted, labels=range(classes)))
    for undefined, ours in zip((0.0, 1.0, np.nan), found, strict=True):
        expected = sklearn_metrics.precision_recall_fscore_support(
            labels, predicted, labels=range(classes), zero_division=undefined
        )
        assert {one.dtype for one in ours} == {jnp.dtype(jnp.float32)}
        np.testing.assert_allclose(ours, expected[:3], rtol=1e-6)


def test_perplexity_against_the_formula():
    wide = SCORES.astype(np.float64)
    log_p = wide - np.log(np.exp(wide).sum(-1, keepdims=True))
    nll = -log_p[np.arange(N), LABELS]
    expected = np.exp([nll.mean(), np.average(nll, weights=WEIGHTS)])
    both = lambda x, y, w: (perplexity(x, y), perplexity(x, y, weights=w))
    np.testing.assert_allclose(on(both, SCORES, LABELS, WEIGHTS), expected, rtol=1e-6)
    with jax.enable_x64(True):
        np.testing.assert_allclose(on(both, wide, LABELS, WEIGHTS), expected, rtol=1e-14)
        for weights in (np.sqrt(WEIGHTS.astype(np.float64)), 2**40 + WEIGHTS.astype(np.int64)):  # not of float32
            expected = np.exp(np.average(nll, weights=weights))
            np.testing.assert_allclose(on(perplexity, wide, LABELS, weights=weights), expected, rtol=1e-14)
    half = SCORES.astype(jnp.bfloat16)  # summed in float32
    value, rounded = on(lambda *x: [perplexity(z, x[-1]) for z in x[:-1]], half, half.astype(np.float32), LABELS)
    assert value.dtype == jnp.float32 and value == pytest.approx(float(rounded), rel=1e-6)


def test_perplexity_of_simple_models():
    """Uniform prediction; confident and correct; a label of probability 0, exactly and after rounding."""
    models = (
        (np.zeros((4, 10)), range(4)),
        (1e4 * np.eye(4), range(4)),
        ([[0.0, -np.inf]], [1]),
        ([[0.0, -1e4]], [1]),
    )
    found = jax.jit(lambda: [perplexity(jnp.asarray(x, jnp.float32), jnp.asarray([*y])) for x, y in models])()
    np.testing.assert_allclose(found, [10, 1, np.inf, np.inf], rtol=1e-6)


def test_gradient_of_perplexity_is_zero_at_padding():
    scores, labels = SCORES[:3].copy(), np.array([1, -100, 2])
    weights = jnp.asarray(labels >= 0)
    value = lambda x: perplexity(x, jnp.asarray(labels), weights=weights)
    with jax.debug_nans(False):
        slope = jax.jit(jax.grad(value))(jnp.asarray(scores).at[1].set(jnp.nan))
    np.testing.assert_array_equal(np.asarray(slope) != 0, np.asarray(weights)[:, None] & np.ones((3, CLASSES), bool))
    assert np.isfinite(slope).all()


@of_scores
def test_leading_axes_are_batch(name):
    function = OF_SCORES[name]
    values = lambda x, y: (
        function(x, y),
        function(x.reshape(2, 5, 20, CLASSES), y.reshape(2, 5, 20)),
        function(x[0], y[0]),
    )
    value, shaped, single = on(values, SCORES, LABELS)
    assert shaped == pytest.approx(float(value), rel=1e-6)
    p = np.exp(SCORES[0]) / np.exp(SCORES[0]).sum()
    assert single == pytest.approx({"perplexity": 1 / p[LABELS[0]]}.get(name, float(p.argmax() == LABELS[0])), rel=1e-5)


@of_scores
def test_weights_are_repetitions(name):
    function, times = OF_SCORES[name], WEIGHTS.astype(int)
    repeated = on(function, np.repeat(SCORES, times, 0), np.repeat(LABELS, times))
    each = lambda x, y, *weights: [function(x, y, weights=w) for w in weights]
    for found in on(each, SCORES, LABELS, WEIGHTS, WEIGHTS.astype(np.int32), np.float32(0.1) * WEIGHTS):
        assert found == pytest.approx(float(repeated), rel=2e-6)


@of_scores
def test_weights_of_every_scale(name):
    """Only their ratios count: those of float64 may leave float32, and the sum of those of float32 too."""
    function = OF_SCORES[name]
    value = on(function, SCORES, LABELS, weights=WEIGHTS)
    with jax.enable_x64(True):
        weights = [jnp.asarray(size * np.float64(WEIGHTS)) for size in (1e-300, 1.1e38, 5e299)]
        weights.append(jnp.asarray(np.float32(1.7e37) * WEIGHTS))
        found = on(lambda x, y: [function(x, y, weights=each) for each in weights], SCORES, LABELS)
    assert found == pytest.approx([float(value)] * 4, rel=2e-6)


@of_scores
def test_padding_with_weight_zero_may_have_any_value(name):
    function = OF_SCORES[name]
    labels, scores = LABELS.copy(), SCORES.copy()
    labels[150:], scores[150:] = -1, np.nan
    with jax.debug_nans(False):
        value = on(function, scores, labels, weights=jnp.arange(N) < 150)
    assert value == pytest.approx(float(on(function, SCORES[:150], LABELS[:150])), rel=1e-6)


def test_labels_of_any_integer_dtype():
    """300 does not fit in uint8; the comparison with the number of classes neither overflows nor raises."""
    values = lambda x, *labels: [f(x, y) for y in labels for f in (accuracy, partial(top_k_accuracy, k=1))]
    labels = [np.arange(100, dtype=dtype) for dtype in (np.uint8, np.int8, np.int64)]
    with jax.enable_x64(True):
        assert on(values, np.eye(300, dtype=np.float32)[:100], *labels) == [1] * 6


# Errors ------------------------------------------------------------------------------------------------------------


@of_scores
def test_labels_out_of_range(name):
    """A ValueError eagerly; NaN under jit, never a clipped value; an error of checkify with check=True."""
    function, good, scores = OF_SCORES[name], jnp.asarray(LABELS), jnp.asarray(SCORES)
    program = jax.jit(function)
    for wrong in (-1, CLASSES):
        labels = jnp.asarray(np.where(np.arange(N) == 3, np.int32(wrong), LABELS))
        with pytest.raises(
            ValueError, match=rf"targets from 0 to 6, got targets from {labels.min()} to {labels.max()}; "
        ):
            function(scores, labels)
        with jax.debug_nans(False):
            assert np.isnan(program(scores, labels))
    checked = checkify.checkify(jax.jit(partial(function, check=True)))
    with jax.debug_nans(False):
        error, _ = checked(scores, labels)
    with pytest.raises(checkify.JaxRuntimeError, match="expected targets from 0 to 6"):
        error.throw()
    error, value = checked(scores, good)
    error.throw()
    assert value == pytest.approx(float(program(scores, good)), rel=1e-6)


@pytest.mark.parametrize("wide", [False, True])
def test_labels_of_64_bits_are_not_cut(wide, sentences):
    """2**32 + k is not the label k, also where JAX has 32 bits only; under jit it gives NaN or -1."""
    labels, scores = np.array([2**32, 1, 2]), np.eye(3, dtype=np.float32)
    expected = "expected .* from (0 to 2|-2147483648 to 2147483647), got .* to 4294967296; "
    matrix = partial(confusion_matrix, classes=3)
    with jax.enable_x64(wide):
        for function in OF_SCORES.values():
            with pytest.raises(ValueError, match=expected):
                function(jnp.asarray(scores), labels)
        for order in (lambda f, x, y: f(x, y), lambda f, x, y: f(y, x)):
            with pytest.raises(ValueError, match=expected):
                order(matrix, np.arange(3), labels)
        if wide:
            with jax.debug_nans(False):
                assert all(np.isnan(jax.jit(function)(scores, labels)) for function in OF_SCORES.values())
            assert (jax.jit(matrix)(labels, labels) == -1).all()


@of_scores
def test_nan_scores_give_nan(name):
    scores = SCORES.copy()
    scores[5, 2] = np.nan
    with jax.debug_nans(False):
        assert np.isnan(on(OF_SCORES[name], scores, LABELS))


@pytest.mark.parametrize(("which", "wrong"), [("predictions", -1), ("targets", CLASSES)])
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


def test_precision_and_recall_of_nan_are_nan():
    # Rows that were divided by their sums: class 0 has no examples, so only its row and the sums over columns have NaN.
    with jax.debug_nans(False):
        precision, recall, f1 = precision_recall_f1(jnp.array([[np.nan, np.nan], [0.25, 0.75]]))
        np.testing.assert_array_equal(np.isnan([precision, recall, f1]), [[True, True], [True, False], [True, True]])
        assert recall[1] == 0.75


def test_a_confusion_matrix_of_no_classes_is_rejected(sentences):
    message = r"a confusion matrix of at least one class, got float32 \(0, 0\); make it with confusion_matrix"
    with pytest.raises(ValueError, match=message):
        precision_recall_f1(jnp.zeros((0, 0)))


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


def test_r_squared_of_every_scale():
    """Up to entries whose reciprocals are no normal numbers."""
    targets = jnp.array([-1.0, 1.0, 1.0, -1.0])
    predictions = 0.9 * targets
    for scale in (1e-36, 1.0, 3e38):
        assert on(r_squared, scale * predictions, scale * targets) == pytest.approx(0.99, rel=1e-5)


def test_r_squared_of_half_precision():
    targets = np.random.default_rng(2).standard_normal(5000).astype(jnp.bfloat16)
    predicted = (targets.astype(np.float32) + np.float32(0.5)).astype(jnp.bfloat16)
    wide = lambda p, t: r_squared(p.astype(jnp.float32), t.astype(jnp.float32)).astype(jnp.bfloat16)
    value, expected = on(lambda p, t: (r_squared(p, t), wide(p, t)), predicted, targets)
    assert value.dtype == jnp.bfloat16
    assert value == expected


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
