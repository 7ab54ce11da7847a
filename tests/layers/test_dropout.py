"""Dropout of values, feature maps and examples: expectation, variance, keys, and errors of invalid input."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import for_each
from compiled import compiled, drawn

from jaxblocks import Dense, Dropout, FeatureDropout, Repeat, Residual, Serial, StochasticDepth, dropout, relu
from jaxblocks.layers import AlphaDropout, alpha_dropout

# One program for each call, where its values are not checked.
dropout = compiled(dropout)
alpha_dropout = compiled(alpha_dropout)

X = np.random.default_rng(0).normal(2.0, 1.0, (8, 5, 6, 4)).astype(np.float32)
ONES = np.ones(200_000, np.float32)


def train(layer, x, seed=0):
    return compiled(layer.apply)((), x, train=True, key=jax.random.key(seed))


def test_expectation_and_variance():
    """The expectation is x; the variance of x m / (1 - p) at x = 1, p = 0.3 is p / (1 - p) = 0.4285714."""
    y = np.asarray(dropout(jax.random.key(0), ONES, 0.3), np.float64)
    four_errors = 4 / np.sqrt(y.size)
    assert y.mean() == pytest.approx(1, abs=four_errors * np.sqrt(0.4285714))
    assert y.var() == pytest.approx(0.4285714, abs=four_errors * np.std((y - 1) ** 2))
    assert (y == 0).mean() == pytest.approx(0.3, abs=four_errors * np.sqrt(0.21))
    plain = np.where(y == 0, 0.0, 1.0)  # without the scaling: the expectation is 0.7 and the variance 0.21
    assert abs(plain.mean() - 1) > 0.2 and abs(plain.var() - 0.4285714) > 0.2


@pytest.mark.parametrize(("rate", "dtype"), [(0.1, jnp.float16), (0.7, jnp.bfloat16)])
def test_kept_values_are_scaled_and_rounded_once(rate, dtype):
    """Kept values are x / (1 - p), rounded once, in half precision too."""
    x = X.astype(dtype)
    y = dropout(jax.random.key(0), x, rate)
    assert y.dtype == dtype
    kept = y != 0
    expected = x.astype(np.float64) / (1 - rate)
    half_a_digit = 0.51 * float(jnp.finfo(dtype).eps) + 2e-7
    np.testing.assert_allclose(y.astype(np.float32)[kept], expected[kept], rtol=half_a_digit)
    assert 0 < kept.mean() < 1


def test_the_gradient_is_the_mask():
    f = lambda x: dropout(jax.random.key(3), x, 0.4)
    grad = jax.jit(jax.grad(lambda x: f(x).sum()))(X)
    np.testing.assert_allclose(grad, np.where(f(X) == 0, 0, 1 / 0.6), rtol=1e-6)


def test_dropped_infinities_become_zero():
    """A dropped infinity gives 0 rather than 0 times infinity."""
    y = dropout(jax.random.key(0), np.full(100, np.inf, np.float32), 0.5)
    assert set(np.unique(y)) == {0, np.inf}


def test_rate_zero_is_the_identity():
    """With p = 0 dropout returns its input and needs no key."""
    np.testing.assert_array_equal(dropout(jax.random.key(0), X, 0), X)
    np.testing.assert_array_equal(compiled(Dropout(0.0).apply)((), X, train=True), X)


def test_rate_one_gives_zeros():
    """And finite derivatives, also with respect to a rate that is traced."""
    total = lambda x, rate: dropout(jax.random.key(0), x, rate).sum()
    of_number = compiled(jax.value_and_grad(lambda x: total(x, 1)))(X)
    value, slopes = compiled(jax.value_and_grad(total, (0, 1)))(X, np.ones((), np.float32))
    for found in (*of_number, value, *slopes, train(StochasticDepth(1, spatial=2), X)):
        np.testing.assert_array_equal(found, 0)


SHARED = [
    (Dropout(0.5), ()),
    (Dropout(0.5, axes=-2), (2,)),
    (Dropout(0.5, axes=(0, -1)), (0, 3)),
    (FeatureDropout(0.5, spatial=2), (1, 2)),
    (FeatureDropout(0.5, spatial=1), (2,)),
    (StochasticDepth(0.5, spatial=0), (3,)),
    (StochasticDepth(0.5, spatial=2), (1, 2, 3)),
]


def test_which_axes_share_a_draw():
    """Along the shared axes all entries are kept or all dropped; along each of the other axes both occur."""
    keys = jax.random.split(jax.random.key(0), len(SHARED))
    each = lambda x, keys: [SHARED[i][0].apply((), x, train=True, key=key) for i, key in enumerate(keys)]
    for y, (layer, shared) in zip(compiled(each)(X, keys), SHARED, strict=True):
        kept = y != 0
        alike = [axis for axis in range(4) if (kept == kept.take([0], axis)).all()]
        assert alike == list(shared), layer


def test_stochastic_depth_skips_a_residual_example_by_example():
    """The result is x for a skipped example, x + f(x) / (1 - p) otherwise, and x + f(x) in evaluation."""
    net = Residual(Dense(4), relu, Dense(4), StochasticDepth(0.25, spatial=0))
    x = X[:, 0, 0]
    params, apply = drawn(net, x), compiled(net.apply)
    branch = compiled(Serial(Dense(4), relu, Dense(4)).apply)(params[:3], x)
    y = apply(params, x, train=True, key=jax.random.key(2))
    skips = (y == x).all(-1)
    assert 0 < skips.sum() < 8
    np.testing.assert_allclose(y, np.where(skips[:, None], x, x + branch / 0.75), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(apply(params, x), x + branch, rtol=1e-5, atol=1e-6)


def test_stochastic_depth_keeps_whole_sequences():
    """All steps of a sequence are kept or dropped together; the option spatial is required."""
    kept = train(StochasticDepth(0.5, spatial=1), np.ones((64, 5, 3), np.float32)) != 0
    assert (kept == kept[:, :1, :1]).all() and 0 < kept[:, 0, 0].sum() < 64
    with pytest.raises(TypeError, match="spatial"):
        StochasticDepth(0.5)


@pytest.mark.usefixtures("sentences")
def test_numpy_numbers_are_accepted_as_options():
    x = X[0]
    np.testing.assert_array_equal(
        train(Dropout(np.float32(0.5), axes=np.int64(-2)), x), train(Dropout(0.5, axes=-2), x)
    )
    np.testing.assert_array_equal(
        train(FeatureDropout(0.5, spatial=np.int32(1)), x), train(FeatureDropout(0.5, spatial=1), x)
    )


def test_the_copies_of_a_repeat_draw_independently():
    net = Repeat(Dropout(0.5), 4)
    y = compiled(net.apply)(drawn(net, ONES), ONES, train=True, key=jax.random.key(1))
    assert float((y != 0).mean()) == pytest.approx(0.5**4, abs=0.01)


BAD = {
    "missing key": (
        lambda: Dropout(0.1).apply((), X, train=True),
        "a key in training, got none; .*key=",
        lambda: train(Dropout(0.1), X),
    ),
    "integer key": (lambda: dropout(3, X, 0.1), r"to be a key, got 3", lambda: dropout(jax.random.key(0), X, 0.1)),
    "integer train": (
        lambda: Dropout(0.1).apply((), X, train=1),
        "train to be True",
        lambda: train(Dropout(0.1), X),
    ),
    "rate above one": (
        lambda: Dropout(1.5),
        "rate to be a number >= 0 and <= 1 or an array, got 1.5",
        lambda: Dropout(1),
    ),
    "alpha dropout of all values": (
        lambda: AlphaDropout(1),
        "rate to be a number >= 0 and < 1 or an array, got 1",
        lambda: AlphaDropout(0.1),
    ),
    "too many spatial axes": (
        lambda: StochasticDepth(0.1, spatial=2).init(jax.random.key(0), X[0, 0]),
        "StochasticDepth expected axes",
        lambda: StochasticDepth(0.1, spatial=1).init(jax.random.key(0), X[0, 0]),
    ),
    "boolean rate": (
        lambda: dropout(jax.random.key(0), X, True),
        "got True",
        lambda: dropout(jax.random.key(0), X, 0.1),
    ),
    "axis out of range": (
        lambda: Dropout(0.1, axes=4).init(jax.random.key(0), X),
        "from -4 to 3.*axes=4",
        lambda: Dropout(0.1, axes=3).init(jax.random.key(0), X),
    ),
    "too few axes": (
        lambda: FeatureDropout(0.1, spatial=2).init(jax.random.key(0), X[0, 0]),
        "FeatureDropout expected axes",
        lambda: FeatureDropout(0.1, spatial=1).init(jax.random.key(0), X[0, 0]),
    ),
    "integers": (
        lambda: Dropout(0.1).apply((), jnp.arange(3)),
        r"x to be a floating-point or complex array, got int32 \(3,\)",
        lambda: Dropout(0.1).apply((), jnp.arange(3).astype(jnp.float32)),
    ),
}


@pytest.mark.usefixtures("sentences")
@for_each(BAD)
def test_errors_state_the_repair_and_the_repair_works(case):
    bad, words, repaired = case
    with pytest.raises((ValueError, TypeError), match=words):
        bad()
    repaired()


# ---- alpha dropout


def test_alpha_dropout_keeps_mean_and_variance():
    """Mean 0 and variance 1 within four standard errors; dropout has variance 1 / (1 - p)."""
    x = np.random.default_rng(0).normal(size=200_000).astype(np.float32)
    y = np.asarray(alpha_dropout(jax.random.key(1), x, 0.3), np.float64)
    assert y.mean() == pytest.approx(0, abs=4 / np.sqrt(y.size))
    assert y.var() == pytest.approx(1, abs=4 * np.std(y**2) / np.sqrt(y.size))
    assert np.var(dropout(jax.random.key(1), x, 0.3)) == pytest.approx(1 / 0.7, rel=0.02)


def test_alpha_dropout_by_the_formula():
    """y = a (x m + alpha' (1 - m)) + b with the mask of dropout for the same key, rounded once."""
    x = X.astype(jnp.bfloat16)
    mask = dropout(jax.random.key(3), np.ones(X.shape, np.float32), 0.4, axes=(1, 2)) != 0
    limit = -1.0507009873554805 * 1.6732632423543772  # selu(-inf)
    a = (0.6 + limit**2 * 0.6 * 0.4) ** -0.5
    expected = a * np.where(mask, x.astype(np.float64), limit) - a * 0.4 * limit
    y = alpha_dropout(jax.random.key(3), x, 0.4, axes=(1, 2))
    assert y.dtype == jnp.bfloat16
    np.testing.assert_allclose(y.astype(np.float32), expected, rtol=float(jnp.finfo(jnp.bfloat16).eps), atol=1e-6)
    np.testing.assert_array_equal(train(AlphaDropout(0.4, axes=(1, 2)), x, seed=3), y)
    given = jnp.asarray(x)
    assert alpha_dropout.__wrapped__(jax.random.key(3), given, 0.0) is given
