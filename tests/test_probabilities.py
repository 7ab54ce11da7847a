"""Softmax and related functions, labels as distributions, and checks of distributions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import normal
from compiled import compiled
from jax.experimental import checkify
from scipy import special

from jaxblocks.ad import laplacian
from jaxblocks.probabilities import (
    check_distribution,
    check_labels,
    is_distribution,
    log_softmax,
    logsumexp,
    one_hot,
    smooth_labels,
    softargmax,
    softmax,
    softmax_fixed,
    softmax_mean,
)

# One program for each call, where its values are not checked.
log_softmax = compiled(log_softmax)
logsumexp = compiled(logsumexp)
softmax = compiled(softmax)
softmax_fixed = compiled(softmax_fixed)
softmax_mean = compiled(softmax_mean)
is_distribution = compiled(is_distribution)

HALF = (jnp.bfloat16, jnp.float16)


# Softmax -------------------------------------------------------------------------------------------------------------


def test_agrees_with_scipy_along_any_axis():
    x, axes = 5 * normal(0, 3, 4, 5), (-1, 0, 1, (0, 2), (-1, 1), None)
    pairs = (softmax, special.softmax), (log_softmax, special.log_softmax), (logsumexp, special.logsumexp)
    every = jax.jit(lambda x: [[ours(x, axis) for ours, _ in pairs] for axis in axes])
    for dtype, tolerance in ((np.float64, {"rtol": 1e-14, "atol": 1e-15}), (np.float32, {"rtol": 2e-6, "atol": 1e-6})):
        with jax.enable_x64(dtype == np.float64):
            found = every(x.astype(dtype))
        rounded = x.astype(dtype).astype(np.float64)
        for axis, values in zip(axes, found, strict=True):
            for value, (_, reference) in zip(values, pairs, strict=True):
                assert value.dtype == dtype
                np.testing.assert_allclose(value, reference(rounded, axis), **tolerance)


def test_softmax_of_large_scores():
    x, extreme = np.array([1000.0, 1001.0, 1002.0], np.float32), np.float32([1e4, -1e4, 0])
    every = compiled(lambda x, y: (softmax(x), softmax(y), log_softmax(y), logsumexp(y)))
    p, *of_extreme = every(x, extreme)
    np.testing.assert_allclose(p, [0.0900306, 0.2447285, 0.6652410], atol=1e-7)
    for found, expected in zip(of_extreme, ([1, 0, 0], [0, -2e4, -1e4], 1e4), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_laplacians_of_softmax_at_any_scale():
    """Scores s x: the Laplacian is s^2 times that at s x, by a formula in NumPy; 0 where the softmax is one-hot."""
    x, scales = np.float64([1, 0.5, -2]), np.float64([0.25, 2, 1e10, 1e20, 1e30])
    scaled = lambda x, s: softmax(s * x)[0]
    found = compiled(jax.vmap(lambda s: laplacian(lambda x: scaled(x, s), jnp.asarray(x, jnp.float32))))(
        scales.astype(np.float32)
    )
    p = special.softmax(scales[:, None] * x, -1)
    along = np.eye(3)[0] - p  # (scale, class)
    expected = scales**2 * p[:, 0] * (along**2 - p * (1 - p)).sum(-1)
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_masked_scores_have_probability_zero_whatever_they_are():
    """`where` of the softmax family: NaN at masked scores, a row without others, values and gradients."""
    scores, keep = normal(90, 3, 4), np.array([[True, False, True, True], [False] * 4, [True] * 4])
    kept = special.softmax(scores[0, [0, 2, 3]])
    weights = jnp.asarray(normal(91, 3, 4), jnp.float32)

    def family(x, where):
        p, log_p, total = softmax(x, -1, where), log_softmax(x, -1, where), logsumexp(x, -1, where)
        finite = jnp.where(where, log_p, 0) + jnp.where(where, total[:, None], 0)
        return (weights * (p + finite)).sum(), (p, log_p, total)

    with jax.debug_nans(False):
        x = jnp.where(keep, scores, jnp.nan).astype(jnp.float32)
        (_, (p, log_p, total)), slope = jax.jit(jax.value_and_grad(family, has_aux=True))(x, jnp.asarray(keep))
    np.testing.assert_allclose(p[0], np.insert(kept, 1, 0), rtol=1e-6)
    np.testing.assert_array_equal(p[1], 0)
    np.testing.assert_allclose(p[2], special.softmax(scores[2]), rtol=1e-6)
    np.testing.assert_allclose(np.exp(log_p), p, rtol=1e-6)
    lse = [special.logsumexp(scores[0, [0, 2, 3]]), -np.inf, special.logsumexp(scores[2])]
    np.testing.assert_allclose(total, lse, rtol=1e-6)
    assert np.isfinite(slope).all()
    np.testing.assert_array_equal(slope == 0, ~keep)
    for function in (softmax, log_softmax):  # NaN is an error here: nor does it occur inside
        function(jnp.zeros(2), -1, jnp.zeros(2, bool))


def test_distributions_over_several_axes():
    assert is_distribution(softmax(np.ones((2, 3), np.float32), None), None)
    assert softmax_mean(np.ones((2, 3), np.float32), np.full((2, 3), 2, np.float32), (0, 1)) == 2


def test_wrong_axes_are_rejected(sentences):
    x = jnp.ones((2, 3))
    for axis, words in ((2, "an axis 2"), ((0, 2), r"axes \(0, 2\)"), ((0, 0), r"axes \(0, 0\)")):
        with pytest.raises(
            ValueError, match=rf"^softmax expected an array with {words} of classes, got float32 \(2, 3\)"
        ):
            softmax(x, axis)
    with pytest.raises(
        ValueError, match="^logsumexp expected axis to be an integer or a tuple of integers or None, got 1.0"
    ):
        logsumexp(x, 1.0)
    with pytest.raises(ValueError, match="^one_hot expected classes to be an integer >= 1, got 2.5"):
        one_hot(jnp.array([0]), 2.5)


def test_rows_without_a_distribution_are_nan():
    rows = np.array([[-np.inf, -np.inf], [0.0, np.inf]], np.float32)
    with jax.debug_nans(False):
        p, log_p, total = compiled(lambda x: (softmax(x), log_softmax(x), logsumexp(x)))(rows)
    assert np.isnan(p).all() and np.isnan(log_p).all()
    np.testing.assert_array_equal(total, [-np.inf, np.inf])


def test_softargmax_is_an_alias():
    assert softargmax is softmax.__wrapped__


def test_half_precision_is_computed_in_float32():
    x = (4 * normal(3, 8, 300)).astype(jnp.bfloat16)
    exact, unit = x.astype(np.float64), float(jnp.finfo(x.dtype).eps) / 2
    found = compiled(lambda x: (softmax(x), log_softmax(x), logsumexp(x)))(x)
    expected = special.softmax(exact, axis=-1), special.log_softmax(exact, axis=-1), special.logsumexp(exact, axis=-1)
    for value, wanted in zip(found, expected, strict=True):
        assert value.dtype == x.dtype
        np.testing.assert_allclose(value.astype(np.float64), wanted, rtol=1.01 * unit, atol=1e-40)


# Log-sum-exp, softmax mean, fixed logit ------------------------------------------------------------------------------


def test_softmax_mean_of_1_2_3():
    """The averaged quantities are the second argument; for q = z the result is neither log-sum-exp nor max."""
    z = jnp.array([1.0, 2, 3])
    np.testing.assert_allclose(softmax_mean(z, z), 2.5752104, atol=3e-7)
    q = jnp.array([10.0, -1.0, 0.5])
    np.testing.assert_allclose(softmax_mean(z, q), special.softmax([1.0, 2, 3]) @ [10, -1, 0.5], rtol=1e-6)
    assert abs(softmax_mean(z, q) - softmax_mean(q, z)) > 1e-2  # the order of the arguments matters


def test_softmax_mean_lies_between_min_and_max_and_converges_to_the_max():
    z, q = normal(8, 20, 5), normal(9, 20, 5)
    with jax.enable_x64(True):
        mean = np.asarray(softmax_mean(jnp.asarray(z), jnp.asarray(q)))
        assert (q.min(-1) < mean).all()
        assert (mean < q.max(-1)).all()
        sharp = softmax_mean(1e6 * jnp.asarray(z), jnp.asarray(z))
        np.testing.assert_allclose(sharp, z.max(-1), rtol=1e-12)
        over_first = softmax_mean(jnp.asarray(z), jnp.asarray(q), axis=0)
        np.testing.assert_allclose(over_first, (special.softmax(z, axis=0) * q).sum(0), rtol=1e-12, atol=1e-14)


def test_softmax_fixed_is_softmax_with_a_prepended_zero():
    z = normal(10, 4, 3)
    with jax.enable_x64(True):
        full = special.softmax(np.concatenate([np.zeros((4, 1)), z], -1), axis=-1)
        np.testing.assert_allclose(softmax_fixed(jnp.asarray(z)), full, rtol=1e-14)
        jacobian = np.asarray(jax.jit(jax.jacfwd(softmax_fixed))(jnp.asarray(z[0])))
    assert jacobian.shape == (4, 3)
    assert np.linalg.matrix_rank(jacobian) == 3
    assert softmax_fixed(jnp.zeros(0)) == 1.0  # one class


# Labels --------------------------------------------------------------------------------------------------------------


def test_one_hot_rows_are_unit_vectors():
    labels = np.array([[2, 0], [1, 1]])
    rows, single, half = compiled(lambda y: (one_hot(y, 3), one_hot(y[0, 1], 3), one_hot(y, 3, dtype=jnp.bfloat16)))(
        labels
    )
    np.testing.assert_array_equal(rows, np.eye(3)[labels])
    np.testing.assert_array_equal(single, [1, 0, 0])
    assert rows.dtype == jnp.float32 and half.dtype == jnp.bfloat16
    np.testing.assert_array_equal(half.astype(np.float32), rows)


def test_one_hot_of_narrow_labels_with_many_classes():
    """250 as uint8 is a label among 1000 classes; 1000 itself does not fit the dtype."""
    labels = [np.array([100, 3], dtype) for dtype in (np.int8, np.int16, np.uint32)] + [np.array([250, 3], np.uint8)]
    for rows, y in zip(compiled(lambda labels: [one_hot(each, 1000) for each in labels])(labels), labels, strict=True):
        np.testing.assert_array_equal(rows, np.eye(1000)[y])
    np.testing.assert_array_equal(one_hot(labels[-1], 300), np.eye(300)[[250, 3]])


@pytest.mark.parametrize("labels", [[0, 3], [-1, 2]])
def test_one_hot_rejects_labels_out_of_range(labels):
    labels = jnp.array(labels)
    with pytest.raises(ValueError, match=r"one_hot expected labels from 0 to 2, got labels from -?\d"):
        one_hot(labels, 3)
    np.testing.assert_array_equal(one_hot(jnp.array([1, 2, 3]) - 1, 3), np.eye(3))  # the suggested repair


def test_one_hot_is_nan_for_labels_out_of_range_under_jit():
    labels = jnp.array([1, -1, 3])
    with jax.debug_nans(False):
        rows = np.asarray(jax.jit(lambda y: one_hot(y, 3))(labels))
    np.testing.assert_array_equal(rows, [[0, 1, 0], [np.nan] * 3, [np.nan] * 3])
    np.testing.assert_array_equal(jax.nn.one_hot(labels, 3)[1:], np.zeros((2, 3)))  # jax.nn.one_hot gives no error


def test_labels_are_checked_under_jit_with_check():
    checked = checkify.checkify(jax.jit(lambda y: one_hot(y, 3, check=True)))
    error, rows = checked(jnp.array([0, 2]))
    error.throw()
    np.testing.assert_array_equal(rows, np.eye(3)[[0, 2]])
    with jax.debug_nans(False):
        error, _ = checked(jnp.array([1, 3]))
    with pytest.raises(ValueError, match=r"one_hot expected labels from 0 to 2, got labels from 1 to 3"):
        error.throw()


def test_one_hot_rejects_wrong_arguments(sentences):
    with pytest.raises(TypeError, match=r"labels to be an integer array, got float32 \(2,\); .*astype\(jnp.int32\)"):
        one_hot(jnp.array([0.0, 1.0]), 3)
    with pytest.raises(TypeError, match="floating-point dtype of the probabilities, got int32"):
        one_hot(jnp.array([0, 1]), 3, dtype=jnp.int32)
    with pytest.raises(ValueError, match="classes to be an integer >= 1, got 0"):
        one_hot(jnp.array([0, 1]), 0)
    np.testing.assert_array_equal(one_hot(jnp.zeros((0,), jnp.int32), 3), np.zeros((0, 3)))


def test_check_labels_gives_a_mask_of_valid_labels():
    np.testing.assert_array_equal(check_labels(jnp.array([0, 2]), 3), [True, True])
    with pytest.raises(ValueError, match="check_labels expected labels from 0 to 2"):
        check_labels(jnp.array([3]), 3)
    inside = jax.jit(lambda y: check_labels(y, 3))(jnp.array([-1, 0, 2, 3]))
    np.testing.assert_array_equal(inside, [False, True, True, False])


def test_smooth_labels():
    """(1 - eps) P + eps / C."""
    p = np.random.default_rng(11).dirichlet(np.ones(5), size=3).astype(np.float32)
    p[0] = np.eye(5)[2]
    none, some, whole = compiled(lambda p: [smooth_labels(p, s) for s in (0, 0.3, 1)])(p)
    np.testing.assert_array_equal(none, p)
    np.testing.assert_allclose(some, 0.7 * p + 0.06, rtol=1e-6)
    np.testing.assert_allclose(whole, np.full((3, 5), 0.2), rtol=1e-6)
    assert jax.eval_shape(lambda p: smooth_labels(p, 0.3), p.astype(jnp.bfloat16)).dtype == jnp.bfloat16


def test_smoothing_may_be_traced_and_mapped():
    rows = one_hot(jnp.array([2, 0]), 3)
    sweep = jax.jit(jax.vmap(lambda s: smooth_labels(rows, s)))(jnp.array([0.0, 0.3]))
    np.testing.assert_allclose(sweep[1], 0.7 * np.asarray(rows) + 0.1, rtol=1e-6)
    np.testing.assert_array_equal(sweep[0], rows)
    with pytest.raises(
        ValueError, match="smooth_labels expected smoothing to be a number >= 0 and <= 1 or an array, got 1.5"
    ):
        smooth_labels(rows, jnp.array(1.5))


def test_smooth_labels_rejects_wrong_arguments(sentences):
    with pytest.raises(ValueError, match=r"smoothing to be a number >= 0 and <= 1 or an array, got 1.1"):
        smooth_labels(one_hot(jnp.array([2]), 4), 1.1)
    with pytest.raises(ValueError, match="smooth_labels expected probability distributions in targets"):
        smooth_labels(jnp.array([0.0, 2.0]), 0.1)
    with pytest.raises(TypeError, match="smooth_labels expected targets to be a floating-point array"):
        smooth_labels(jnp.array([1, 0]), 0.1)


# Checks --------------------------------------------------------------------------------------------------------------


def test_is_distribution():
    rows = np.float32([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.5, 0.4, 0.0], [1.2, -0.2, 0.0], [0.0, 0.0, 0.0]])
    close, invalid = np.float32([0.5, 0.499]), np.float32([[np.nan, 1], [np.inf, 0]])

    def judged(rows, close, invalid):
        of_rows = is_distribution(rows), is_distribution(rows.T, axis=0), is_distribution(rows, atol=0.2)
        return of_rows, is_distribution(close), is_distribution(close, atol=0.01), is_distribution(invalid)

    with jax.debug_nans(False):
        of_rows, strictly, loosely, of_invalid = compiled(judged)(rows, close, invalid)
    few = [True, True, False, False, False]
    np.testing.assert_array_equal(of_rows, [few, few, [True, True, True, False, False]])
    assert not strictly and loosely
    assert not of_invalid.any()


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_every_softmax_is_a_distribution_in_its_own_dtype(dtype):
    """The tolerance depends on the dtype."""

    @jax.jit
    def judge(x):
        p = softmax(x)
        return is_distribution(p), is_distribution((p.astype(jnp.float32) * 0.85).astype(dtype))

    good, off = judge((3 * normal(13, 4, 30000)).astype(dtype))
    np.testing.assert_array_equal(good, [True] * 4)
    np.testing.assert_array_equal(off, [False] * 4)


def test_float64_distributions_may_have_the_precision_of_float32():
    with jax.enable_x64(True):
        p = softmax(jnp.asarray(normal(14, 4, 100), jnp.float32)).astype(jnp.float64)
        np.testing.assert_array_equal(is_distribution(p), [True] * 4)
        np.testing.assert_array_equal(is_distribution(p * (1 + 3e-6)), [False] * 4)


def test_check_distribution_in_eager_code():
    good = jnp.array([[0.5, 0.5], [0.25, 0.75]])
    check_distribution(p=good, q=good)
    check_distribution(p=jnp.zeros((0, 3)))
    expected = r"check_distribution expected probability distributions in q .*minimum of 0.5 and sums from 1.0 to 1.5"
    bad = jnp.array([[0.5, 0.5], [0.5, 1.0]])
    with pytest.raises(ValueError, match=expected):
        check_distribution(p=good, q=bad)
    check_distribution(q=bad / bad.sum(-1, keepdims=True))  # the suggested repairs
    check_distribution(q=jnp.asarray(softmax(bad)))
    with pytest.raises(ValueError, match=r"minimum of -0.5"):
        check_distribution(p=jnp.array([1.5, -0.5]))


def test_concrete_values_are_checked_without_jax():
    """The check of a constant adds no operation to a program, and raises its error while JAX traces."""
    good, bad = jnp.array([[0.5, 0.5], [0.25, 0.75]]), jnp.ones(2)
    assert not jax.make_jaxpr(lambda: check_distribution(p=good))().eqns
    with pytest.raises(ValueError, match=r"minimum of 1.0 and sums from 2.0 to 2.0"):
        jax.make_jaxpr(lambda: check_distribution(p=bad))()
    for dtype in (jnp.float32, *HALF):  # NumPy warns of invalid sums, which the tests make an error
        with jax.debug_nans(False), pytest.raises(ValueError, match="a minimum of (-inf|nan) and sums from nan to nan"):
            check_distribution(p=jnp.array([jnp.inf, -jnp.inf], dtype))
        check_distribution(p=jnp.array([0.5, 0.5], dtype))


def test_check_distribution_under_jit():
    def mass(p, check):
        check_distribution(check=check, p=p)
        return p.sum(-1)

    bad = jnp.array([0.5, 1.0])
    assert jax.jit(lambda p: mass(p, False))(bad) == 1.5  # unknown values raise no error
    checked = checkify.checkify(jax.jit(lambda p: mass(p, True)))
    error, _ = checked(jnp.array([0.5, 0.5]))
    assert error.get() is None
    error, _ = checked(bad)
    with pytest.raises(
        ValueError, match=r"check_distribution expected probability distributions in p .*sums from 1.5 to 1.5"
    ):
        error.throw()
    error, _ = checkify.checkify(jax.vmap(lambda p: mass(p, True)))(jnp.stack([bad, bad / 1.5]))
    assert "check_distribution expected" in error.get()


# Contracts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [softmax, log_softmax, logsumexp, is_distribution])
def test_integers_and_missing_axes_are_rejected(function, sentences):
    name = function.__name__
    with pytest.raises(TypeError, match=rf"{name} expected [xp] to be a floating-point array, got int32 \(3,\)"):
        function(jnp.arange(3))
    with pytest.raises(ValueError, match=rf"{name} expected an array with an axis -1 of classes, got float32 \(\)"):
        function(jnp.float32(1))
    with pytest.raises(ValueError, match=rf"{name} expected an array with an axis 2 "):
        function(jnp.zeros((2, 3)), 2)


def test_softmax_mean_rejects_broadcasting(sentences):
    for z, q in (((4, 3), (3,)), ((4, 3), (4, 1)), ((3,), (4, 3))):
        with pytest.raises(ValueError, match="softmax_mean expected z .* and q .* with the same size of"):
            softmax_mean(jnp.zeros(z), jnp.zeros(q))


def test_results_are_not_weakly_typed():
    weak = jnp.broadcast_to(jnp.asarray(1.0), (3,))
    assert weak.weak_type
    found = jax.eval_shape(lambda x: [f(x) for f in (softmax, log_softmax, logsumexp)], weak)
    assert not any(each.weak_type for each in found)
