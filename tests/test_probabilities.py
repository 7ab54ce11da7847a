"""Softmax and related functions, labels as distributions, and checks of distributions."""

import itertools
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import normal
from compiled import compiled
from hypothesis import given
from hypothesis import strategies as st
from jax.experimental import checkify
from jax.test_util import check_grads
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


def test_softmax_of_1_2_3():
    np.testing.assert_allclose(softmax(jnp.array([1.0, 2, 3])), [0.0900306, 0.2447285, 0.6652410], atol=1e-7)


def test_softmax_jacobian_is_diag_p_minus_p_pt():
    with jax.enable_x64(True):
        x = jnp.array([1.0, 2, 3])
        p = special.softmax([1.0, 2, 3])
        for jacobian in (jax.jit(jax.jacfwd(softmax))(x), jax.jit(jax.jacrev(softmax))(x)):
            np.testing.assert_allclose(jacobian, np.diag(p) - np.outer(p, p), atol=1e-15)
            np.testing.assert_allclose(jacobian[0], [0.0819251, -0.0220330, -0.0598920], atol=1e-7)
            assert np.linalg.matrix_rank(np.asarray(jacobian)) == 2


@pytest.mark.parametrize(
    ("ours", "reference"),
    [(softmax, special.softmax), (log_softmax, special.log_softmax), (logsumexp, special.logsumexp)],
    ids=["softmax", "log_softmax", "logsumexp"],
)
@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_agrees_with_scipy_along_any_axis(ours, reference, axis):
    x = 5 * normal(0, 3, 4, 5)
    ours = jax.jit(partial(ours, axis=axis))
    with jax.enable_x64(True):
        np.testing.assert_allclose(ours(jnp.asarray(x)), reference(x, axis=axis), rtol=1e-14, atol=1e-15)
    x = x.astype(np.float32)
    result = ours(jnp.asarray(x))
    assert result.dtype == jnp.float32
    np.testing.assert_allclose(result, reference(x.astype(np.float64), axis=axis), rtol=2e-6, atol=1e-6)


def test_softmax_acts_on_each_slice_independently():
    """softmax_{axis=-1} of T in R^{b x n x c} is softmax of each T[b, n]."""
    t = normal(1, 2, 3, 4)
    with jax.enable_x64(True):
        result = np.asarray(softmax(jnp.asarray(t)))
    for b, n in itertools.product(range(2), range(3)):
        e = np.exp(t[b, n])
        np.testing.assert_allclose(result[b, n], e / e.sum(), rtol=1e-14)
    np.testing.assert_array_equal(softmax(jnp.zeros((2, 3, 4))), np.full((2, 3, 4), 0.25))


def test_softmax_is_not_an_activation():
    """Softmax commutes with permutations of its axis, but each value depends on all entries."""
    x = jnp.asarray(normal(2, 6).astype(np.float32))
    order = np.array([3, 1, 0, 5, 2, 4])
    np.testing.assert_allclose(softmax(x[order]), softmax(x)[order], rtol=1e-6)
    assert np.abs(softmax(x.reshape(2, 3)).reshape(6) - softmax(x)).max() > 0.1


_softmax = jax.jit(softmax)


@given(st.lists(st.floats(-30, 30, width=32), min_size=4, max_size=4), st.floats(-1000, 1000, width=32))
def test_softmax_is_a_positive_distribution_and_ignores_a_shift(scores, shift):
    """Diehl, Lemma 2.1 (1)-(3)."""
    x = jnp.array(scores, jnp.float32)
    p = np.asarray(_softmax(x))
    assert (p > 0).all()
    assert (p <= 1).all()
    assert abs(p.sum() - 1) < 5e-7
    # the sum x + shift is rounded before the softmax, by at most half a unit in the last place of 1030
    np.testing.assert_allclose(_softmax(x + jnp.float32(shift)), p, rtol=3e-4)


def test_softmax_of_one_score_is_exactly_one():
    np.testing.assert_array_equal(softmax(jnp.array([[-7.0], [1e4]])), [[1.0], [1.0]])


def test_softmax_is_in_the_open_interval_until_floats_round():
    """With n >= 2 scores, 1 is attained by rounding only."""
    with jax.enable_x64(True):
        p = np.asarray(softmax(100 * jnp.eye(5)[2]))
    assert p[2] == 1.0
    np.testing.assert_allclose(p[[0, 1, 3, 4]], math.exp(-100), rtol=1e-13)
    np.testing.assert_allclose(p[0], 3.7e-44, rtol=0.01)
    p = np.asarray(softmax(jnp.array([0.0, 5.0])))
    assert 0 < p.min()
    assert p.max() < 1


def test_softmax_of_large_scores():
    expected = [0.0900306, 0.2447285, 0.6652410]
    x = np.array([1000.0, 1001.0, 1002.0], np.float32)
    np.testing.assert_allclose(softmax(jnp.asarray(x)), expected, atol=1e-7)
    np.testing.assert_allclose(softmax(jnp.asarray(x - 1002)), expected, atol=1e-7)
    with np.errstate(over="ignore", invalid="ignore"):  # negative control: the formula as written
        assert np.isnan(np.exp(x) / np.exp(x).sum()).all()
    extreme = jnp.array([1e4, -1e4, 0.0])
    np.testing.assert_array_equal(softmax(extreme), [1, 0, 0])
    np.testing.assert_array_equal(log_softmax(extreme), [0, -2e4, -1e4])
    assert logsumexp(extreme) == 1e4
    for function in (softmax, log_softmax, logsumexp):
        assert np.isfinite(jax.jit(jax.jacrev(function))(extreme)).all()


def test_softmax_of_scaled_scores_converges_to_the_one_hot_of_argmax():
    """Diehl, Lemma 2.1 (4), with the bound softmax(lambda x)_i <= exp(lambda (x_i - max x))."""
    x = np.array([0.3, 1.0, 0.9, -2.0])
    with jax.enable_x64(True):
        scaled = np.arange(1, 101)[:, None] * x
        p = np.asarray(softmax(jnp.asarray(scaled)))
        others = np.arange(4) != 1
        assert (p <= np.exp(scaled - scaled[:, 1:2]))[:, others].all()
        np.testing.assert_allclose(p[-1], [0, 1, 0, 0], atol=5e-5)
        assert abs(p[-1, 1] - 1) > 1e-5  # a gap of 0.1 times 100 gives exp(-10)
        ties = softmax(1000 * jnp.array([1.0, 0.5, 1.0, 1.0]))
        np.testing.assert_allclose(ties, [1 / 3, 0, 1 / 3, 1 / 3], atol=1e-15)
        np.testing.assert_array_equal(softmax(0 * jnp.asarray(x)), [0.25] * 4)


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


def test_minus_infinity_excludes_a_class():
    x = jnp.array([1.0, -jnp.inf, 2.0])
    np.testing.assert_allclose(softmax(x), special.softmax([1.0, -np.inf, 2.0]), rtol=1e-6)
    assert log_softmax(x)[1] == -np.inf
    np.testing.assert_allclose(logsumexp(x), special.logsumexp([1.0, 2.0]), rtol=1e-6)
    for function in (softmax, log_softmax, logsumexp):
        gradient = jax.jit(jax.grad(lambda x, f=function: jnp.where(jnp.isfinite(f(x)), f(x), 0.0).sum() ** 2))(x)
        assert np.isfinite(gradient).all()
        assert gradient[1] == 0


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


def test_several_axes_and_all_axes():
    x = normal(92, 2, 3, 4)
    for axis in ((0, 2), (-1, 1), None):
        for ours, theirs in ((softmax, special.softmax), (log_softmax, special.log_softmax)):
            np.testing.assert_allclose(ours(jnp.asarray(x, jnp.float32), axis), theirs(x, axis), rtol=1e-5)
        total = logsumexp(jnp.asarray(x, jnp.float32), axis)
        np.testing.assert_allclose(total, special.logsumexp(x, axis), rtol=1e-6)
    assert is_distribution(softmax(jnp.ones((2, 3)), None), None)
    assert softmax_mean(jnp.ones((2, 3)), jnp.full((2, 3), 2.0), (0, 1)) == 2


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
    with jax.debug_nans(False):
        for row in ([-jnp.inf, -jnp.inf], [0.0, jnp.inf]):
            assert np.isnan(softmax(jnp.array(row))).all()
            assert np.isnan(log_softmax(jnp.array(row))).all()
        assert logsumexp(jnp.full(3, -jnp.inf)) == -np.inf
        assert logsumexp(jnp.array([0.0, jnp.inf])) == np.inf


def test_softargmax_is_an_alias():
    assert softargmax is softmax.__wrapped__


@pytest.mark.parametrize("dtype", HALF, ids=["bfloat16", "float16"])
def test_half_precision_is_computed_in_float32(dtype):
    x = jnp.asarray(4 * normal(3, 8, 300), dtype)
    exact = np.asarray(x, np.float64)
    unit = float(jnp.finfo(dtype).eps) / 2
    smallest = float(jnp.finfo(dtype).smallest_subnormal)
    for ours, reference in ((softmax, special.softmax), (log_softmax, special.log_softmax)):
        result = jax.jit(ours)(x)
        assert result.dtype == dtype
        expected = reference(exact, axis=-1)
        np.testing.assert_allclose(np.asarray(result, np.float64), expected, rtol=1.01 * unit, atol=smallest)
    expected = special.logsumexp(exact, axis=-1)
    np.testing.assert_allclose(np.asarray(jax.jit(logsumexp)(x), np.float64), expected, rtol=1.01 * unit)
    e = jnp.exp(x - x.max(-1, keepdims=True))  # negative control: all in half precision
    naive = np.asarray(e / e.sum(-1, keepdims=True), np.float64)
    assert np.abs(naive / special.softmax(exact, axis=-1) - 1).max() > 2 * unit


def test_softmax_family_against_torch():
    torch = pytest.importorskip("torch", reason="PyTorch is a reference for values and gradients")
    x, weights = normal(4, 5, 7) * 3, normal(5, 5, 7)
    pairs = [
        (softmax, lambda x: torch.softmax(x, -1)),
        (log_softmax, lambda x: torch.log_softmax(x, -1)),
        (lambda x: logsumexp(x)[..., None], lambda x: torch.logsumexp(x, -1, keepdim=True)),
    ]
    with jax.enable_x64(True):
        for ours, theirs in pairs:
            t = torch.tensor(x, requires_grad=True)
            value = theirs(t)
            (value * torch.tensor(weights)).sum().backward()
            np.testing.assert_allclose(jax.jit(ours)(jnp.asarray(x)), value.detach().numpy(), rtol=1e-13)
            gradient = jax.jit(jax.grad(lambda x, f=ours: jnp.sum(f(x) * jnp.asarray(weights))))(jnp.asarray(x))
            np.testing.assert_allclose(gradient, t.grad.numpy(), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("function", [softmax, log_softmax, logsumexp, softmax_fixed, lambda z: softmax_mean(z, z)])
def test_derivatives_up_to_second_order(function):
    with jax.enable_x64(True):
        check_grads(jax.jit(function), (jnp.asarray(normal(6, 2, 4)),), order=2, modes=("fwd",), atol=1e-6, rtol=1e-6)


# Log-sum-exp, softmax mean, fixed logit ------------------------------------------------------------------------------


def test_logsumexp_of_1_2_3_and_its_bounds():
    value = logsumexp(jnp.array([1.0, 2, 3]))
    np.testing.assert_allclose(value, 3.4076060, atol=3e-7)
    assert 3 <= value <= 4.0986123
    np.testing.assert_allclose(3 + math.log(3), 4.0986123, atol=1e-7)


_logsumexp_and_softmax = jax.jit(lambda x: (logsumexp(x), jax.grad(logsumexp)(x), softmax(x)))


@given(*[st.lists(st.floats(-50, 50, width=32), min_size=5, max_size=5)] * 2, st.floats(0, 1, width=32))
def test_logsumexp_lies_above_max_has_gradient_softmax_and_is_convex(first, second, a):
    """0 <= LSE - max <= log C."""
    x, y = np.array(first, np.float32), np.array(second, np.float32)
    value, gradient, p = _logsumexp_and_softmax(jnp.asarray(x))
    rounding = 1e-5
    assert -rounding <= value - x.max() <= math.log(5) + rounding
    np.testing.assert_allclose(gradient, p, atol=1e-5)
    a = np.float32(a)
    between = _logsumexp_and_softmax(jnp.asarray(a * x + (1 - a) * y))[0]
    assert between <= a * value + (1 - a) * _logsumexp_and_softmax(jnp.asarray(y))[0] + 2e-5


@pytest.mark.parametrize("where", [None, False])
def test_logsumexp_of_nothing_has_derivatives_of_zero(where):
    """All entries -inf, or none counts: the value is -inf, and no softmax exists."""
    x = jnp.array([[-jnp.inf, -jnp.inf], [0.0, -jnp.inf]]) if where is None else jnp.zeros((2, 2))
    mask = None if where is None else jnp.array([[False, False], [True, False]])
    value = lambda x: logsumexp(x, where=mask)
    derived = lambda x: (value(x), jax.grad(lambda x: value(x).sum())(x), jax.hessian(value)(x))
    with jax.debug_infs(False):
        found, gradient, hessian = compiled(derived)(x)
    np.testing.assert_array_equal(found, [-np.inf, 0])
    np.testing.assert_array_equal(gradient, [[0, 0], [1, 0]])
    np.testing.assert_array_equal(hessian, 0)


def test_logits_are_log_probabilities_up_to_a_constant():
    """z_i = log const + log p_i with const = sum_j exp(z_j)."""
    z = jnp.asarray(normal(7, 4, 6).astype(np.float32))
    np.testing.assert_allclose(z - log_softmax(z), logsumexp(z)[:, None].repeat(6, 1), atol=1e-6)
    np.testing.assert_allclose(np.log(softmax(z)) + logsumexp(z)[:, None], z, atol=2e-6)


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


def test_two_classes_are_the_sigmoid():
    """softmax(z_0, z_1)_1 = 1 / (1 + exp(z_0 - z_1)); with z_0 = 0 it is sigma(z_1)."""
    np.testing.assert_allclose(softmax(jnp.array([0.0, 1.5]))[1], 0.8175745, atol=1e-7)
    np.testing.assert_allclose(softmax(jnp.array([0.4, 1.9]))[1], 0.8175745, atol=1e-7)
    z = np.linspace(-9, 9, 37)
    with jax.enable_x64(True):
        np.testing.assert_allclose(softmax_fixed(jnp.asarray(z)[:, None])[:, 1], special.expit(z), rtol=1e-13)


# Labels --------------------------------------------------------------------------------------------------------------


def test_one_hot_rows_are_unit_vectors():
    labels = np.array([[2, 0], [1, 1]])
    rows = one_hot(jnp.asarray(labels), 3)
    np.testing.assert_array_equal(rows, np.eye(3)[labels])
    assert rows.dtype == jnp.float32
    np.testing.assert_array_equal(is_distribution(rows), np.ones((2, 2), bool))
    np.testing.assert_array_equal(one_hot(jnp.array(1), 2), [0, 1])
    np.testing.assert_array_equal(one_hot(jnp.array([0, 1]), 2, dtype=jnp.bfloat16).astype(jnp.float32), np.eye(2))
    assert one_hot(jnp.array([0]), 2, dtype=jnp.bfloat16).dtype == jnp.bfloat16


@pytest.mark.parametrize("dtype", [jnp.uint8, jnp.int8, jnp.int16, jnp.uint32, jnp.int32])
def test_one_hot_of_narrow_labels_with_many_classes(dtype):
    """250 as uint8 is a label among 1000 classes; 1000 itself does not fit the dtype."""
    labels = jnp.array([100, 3], dtype)
    np.testing.assert_array_equal(one_hot(labels, 1000), np.eye(1000)[[100, 3]])
    np.testing.assert_array_equal(one_hot(jnp.array([250], jnp.uint8), 300), np.eye(300)[[250]])


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
    targets = smooth_labels(one_hot(jnp.array([2]), 4), 0.1)
    np.testing.assert_allclose(targets, [[0.025, 0.025, 0.925, 0.025]], rtol=1e-6)
    p = jnp.asarray(np.random.default_rng(11).dirichlet(np.ones(5), size=3).astype(np.float32))
    np.testing.assert_array_equal(smooth_labels(p, 0), p)
    np.testing.assert_allclose(smooth_labels(p, 1), np.full((3, 5), 0.2), rtol=1e-6)
    np.testing.assert_allclose(smooth_labels(p, 0.3), 0.7 * np.asarray(p) + 0.06, rtol=1e-6)
    assert smooth_labels(p.astype(jnp.bfloat16), 0.3).dtype == jnp.bfloat16


def test_smooth_labels_matches_optax():
    optax = pytest.importorskip("optax")
    p = jnp.asarray(np.random.default_rng(12).dirichlet(np.ones(4), size=5).astype(np.float32))
    np.testing.assert_allclose(smooth_labels(p, 0.2), optax.smooth_labels(p, 0.2), rtol=1e-6)


def test_best_logits_for_smoothed_labels_have_a_finite_gap():
    """The minimizer over logits has softmax = target, so the gap is log((1 - eps + eps/C) / (eps/C))."""
    target = np.asarray(smooth_labels(one_hot(jnp.array(2), 4), 0.1), np.float64)
    logits = np.log(target)
    np.testing.assert_allclose(special.softmax(logits), target, rtol=1e-6)
    np.testing.assert_allclose(logits[2] - logits[0], 3.6109179, atol=1e-6)


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
    rows = jnp.array([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.5, 0.4, 0.0], [1.2, -0.2, 0.0], [0.0, 0.0, 0.0]])
    np.testing.assert_array_equal(is_distribution(rows), [True, True, False, False, False])
    np.testing.assert_array_equal(is_distribution(rows.T, axis=0), [True, True, False, False, False])
    np.testing.assert_array_equal(is_distribution(rows, atol=0.2), [True, True, True, False, False])
    assert is_distribution(jnp.array([0.5, 0.499])) == False  # noqa: E712
    assert is_distribution(jnp.array([0.5, 0.499]), atol=0.01) == True  # noqa: E712
    with jax.debug_nans(False):
        assert not is_distribution(jnp.array([jnp.nan, 1.0]))
        assert not is_distribution(jnp.array([jnp.inf, 0.0]))


@pytest.mark.parametrize("dtype", [jnp.float32, *HALF])
@pytest.mark.parametrize("classes", [3, 1000, 30000])
def test_every_softmax_is_a_distribution_in_its_own_dtype(dtype, classes):
    """The tolerance depends on the dtype."""

    @jax.jit
    def judge(x):
        p = softmax(x)
        return is_distribution(p), is_distribution((p.astype(jnp.float32) * 0.85).astype(dtype))

    good, off = judge(jnp.asarray((3 * normal(13, 4, classes)).astype(dtype)))
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


@pytest.mark.parametrize("function", [softmax, log_softmax, logsumexp, softmax_fixed, lambda z: softmax_mean(z, z)])
def test_jit_vmap_and_leading_axes_agree(function):
    x = jnp.asarray(normal(15, 2, 3, 4).astype(np.float32))
    expected = np.asarray(jax.jit(function)(x))
    np.testing.assert_allclose(jax.jit(jax.vmap(jax.vmap(function)))(x), expected, rtol=1e-6)
    np.testing.assert_allclose(function(jnp.asarray(np.asarray(x)[1, 2])), expected[1, 2], rtol=1e-6)


@pytest.mark.parametrize("function", [softmax, log_softmax, logsumexp])
def test_results_are_not_weakly_typed(function):
    weak = jnp.broadcast_to(jnp.asarray(1.0), (3,))
    assert weak.weak_type
    assert not jax.jit(function)(weak).weak_type
