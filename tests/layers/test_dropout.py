"""Dropout of values, feature maps and examples: expectation, variance, keys, and errors of invalid input."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxblocks import Dense, Dropout, FeatureDropout, Repeat, Residual, Serial, StochasticDepth, dropout, relu
from jaxblocks.layers import AlphaDropout, alpha_dropout

X = jnp.asarray(np.random.default_rng(0).normal(2.0, 1.0, (8, 5, 6, 4)), jnp.float32)
ONES = jnp.ones(200_000)


def train(layer, x, seed=0):
    return layer.apply((), x, train=True, key=jax.random.key(seed))


def test_expectation_and_variance():
    """The expectation is x; the variance of x m / (1 - p) at x = 1, p = 0.3 is p / (1 - p) = 0.4285714."""
    y = np.asarray(dropout(jax.random.key(0), ONES, 0.3), np.float64)
    four_errors = 4 / np.sqrt(y.size)
    assert y.mean() == pytest.approx(1, abs=four_errors * np.sqrt(0.4285714))
    assert y.var() == pytest.approx(0.4285714, abs=four_errors * np.std((y - 1) ** 2))
    assert (y == 0).mean() == pytest.approx(0.3, abs=four_errors * np.sqrt(0.21))
    plain = np.where(y == 0, 0.0, 1.0)  # without the scaling: the expectation is 0.7 and the variance 0.21
    assert abs(plain.mean() - 1) > 0.2 and abs(plain.var() - 0.4285714) > 0.2


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
@pytest.mark.parametrize("rate", [0.1, 0.7])
def test_kept_values_are_scaled_and_rounded_once(dtype, rate):
    """Kept values are x / (1 - p), rounded once, in half precision too."""
    x = X.astype(dtype)
    y = dropout(jax.random.key(0), x, rate)
    assert y.dtype == dtype
    kept = np.asarray(y != 0)
    expected = np.asarray(x.astype(jnp.float32), np.float64) / (1 - rate)
    half_a_digit = 0.51 * float(jnp.finfo(dtype).eps) + 2e-7
    np.testing.assert_allclose(np.asarray(y.astype(jnp.float32))[kept], expected[kept], rtol=half_a_digit)
    assert 0 < kept.mean() < 1


def test_the_gradient_is_the_mask():
    f = lambda x: dropout(jax.random.key(3), x, 0.4)
    grad = jax.jit(jax.grad(lambda x: f(x).sum()))(X)
    np.testing.assert_allclose(grad, np.where(f(X) == 0, 0, 1 / 0.6), rtol=1e-6)


def test_dropped_infinities_become_zero():
    """A dropped infinity gives 0 rather than 0 times infinity."""
    y = dropout(jax.random.key(0), jnp.full(100, jnp.inf), 0.5)
    assert set(np.unique(y)) == {0, np.inf}


def test_rate_zero_is_the_identity():
    """With p = 0 dropout returns its input and needs no key."""
    np.testing.assert_array_equal(dropout(jax.random.key(0), X, 0), X)
    np.testing.assert_array_equal(Dropout(0.0).apply((), X, train=True), X)


def test_rate_one_gives_zeros():
    """And finite derivatives, also with respect to a rate that is traced."""
    total = lambda x, rate: dropout(jax.random.key(0), x, rate).sum()
    for rate in (1, jnp.float32(1)):
        value, slope = jax.value_and_grad(total)(X, rate)
        assert value == 0
        np.testing.assert_array_equal(slope, 0)
    assert jax.jit(jax.grad(total, 1))(X, jnp.float32(1)) == 0
    np.testing.assert_array_equal(train(StochasticDepth(1, spatial=2), X), 0)


@pytest.mark.parametrize(
    "layer",
    [Dropout(0.5), FeatureDropout(0.5, spatial=2), StochasticDepth(0.5, spatial=2), AlphaDropout(0.5)],
)
def test_evaluation_is_the_identity_and_the_key_determines_training(layer):
    assert layer.init(jax.random.key(0), X) == ()
    np.testing.assert_array_equal(layer.apply((), X), X)
    np.testing.assert_array_equal(layer.apply((), X, train=False, key=jax.random.key(0)), X)
    np.testing.assert_array_equal(train(layer, X), train(layer, X))
    assert (train(layer, X) != train(layer, X, seed=1)).any()
    jitted = jax.jit(functools.partial(layer.apply, train=True))((), X, key=jax.random.key(0))
    np.testing.assert_allclose(jitted, train(layer, X), rtol=1e-6)


@pytest.mark.parametrize(
    ("layer", "shared"),
    [
        (Dropout(0.5), ()),
        (Dropout(0.5, axes=-2), (2,)),
        (Dropout(0.5, axes=(0, -1)), (0, 3)),
        (FeatureDropout(0.5, spatial=2), (1, 2)),
        (FeatureDropout(0.5, spatial=1), (2,)),
        (StochasticDepth(0.5, spatial=0), (3,)),
        (StochasticDepth(0.5, spatial=2), (1, 2, 3)),
    ],
)
def test_which_axes_share_a_draw(layer, shared):
    """Along the shared axes all entries are kept or all dropped; along each of the other axes both occur."""
    kept = np.asarray(train(layer, X)) != 0
    for axis in range(4):
        alike = (kept == kept.take([0], axis)).all()
        assert alike == (axis in shared), axis


def test_stochastic_depth_skips_a_residual_example_by_example():
    """The result is x for a skipped example, x + f(x) / (1 - p) otherwise, and x + f(x) in evaluation."""
    net = Residual(Dense(4), relu, Dense(4), StochasticDepth(0.25, spatial=0))
    x = X[:, 0, 0]
    params = net.init(jax.random.key(0), x)
    branch = Serial(Dense(4), relu, Dense(4)).apply(params[:3], x)
    y = net.apply(params, x, train=True, key=jax.random.key(2))
    skips = np.asarray((y == x).all(-1))
    assert 0 < skips.sum() < 8
    np.testing.assert_allclose(y, np.where(skips[:, None], x, x + branch / 0.75), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(net.apply(params, x), x + branch, rtol=1e-5, atol=1e-6)


def test_stochastic_depth_keeps_whole_sequences():
    """All steps of a sequence are kept or dropped together; the option spatial is required."""
    kept = np.asarray(train(StochasticDepth(0.5, spatial=1), jnp.ones((64, 5, 3)))) != 0
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
    params = net.init(jax.random.key(0), ONES)
    y = net.apply(params, ONES, train=True, key=jax.random.key(1))
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
    "negative rate": (
        lambda: StochasticDepth(-0.1, spatial=0),
        "StochasticDepth expected rate",
        lambda: StochasticDepth(0.1, spatial=0),
    ),
    "too many spatial axes": (
        lambda: StochasticDepth(0.1, spatial=2).init(jax.random.key(0), X[0, 0]),
        "StochasticDepth expected axes",
        lambda: StochasticDepth(0.1, spatial=1).init(jax.random.key(0), X[0, 0]),
    ),
    "axes that are not integers": (
        lambda: Dropout(0.1, axes=1.5),
        "axes to be an integer",
        lambda: Dropout(0.1, axes=-2),
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
    "zero spatial axes": (
        lambda: FeatureDropout(0.1, spatial=0),
        "spatial to be an integer >= 1, got 0",
        lambda: Dropout(0.1),
    ),
    "integers": (
        lambda: Dropout(0.1).apply((), jnp.arange(3)),
        r"x to be a floating-point or complex array, got int32 \(3,\)",
        lambda: Dropout(0.1).apply((), jnp.arange(3).astype(jnp.float32)),
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_errors_state_the_repair_and_the_repair_works(what, sentences):
    bad, words, repaired = BAD[what]
    with pytest.raises((ValueError, TypeError), match=words):
        bad()
    repaired()


# ---- alpha dropout


def test_alpha_dropout_keeps_mean_and_variance():
    """Mean 0 and variance 1 within four standard errors; dropout has variance 1 / (1 - p)."""
    x = jax.random.normal(jax.random.key(0), (200_000,))
    y = np.asarray(alpha_dropout(jax.random.key(1), x, 0.3), np.float64)
    assert y.mean() == pytest.approx(0, abs=4 / np.sqrt(y.size))
    assert y.var() == pytest.approx(1, abs=4 * np.std(y**2) / np.sqrt(y.size))
    assert np.var(dropout(jax.random.key(1), x, 0.3)) == pytest.approx(1 / 0.7, rel=0.02)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_alpha_dropout_by_the_formula(dtype):
    """y = a (x m + alpha' (1 - m)) + b with the mask of dropout for the same key."""
    x = X.astype(dtype)
    mask = np.asarray(dropout(jax.random.key(3), jnp.ones(X.shape), 0.4, axes=(1, 2))) != 0
    limit = -1.0507009873554805 * 1.6732632423543772  # selu(-inf)
    a = (0.6 + limit**2 * 0.6 * 0.4) ** -0.5
    expected = a * np.where(mask, np.asarray(x.astype(jnp.float32), np.float64), limit) - a * 0.4 * limit
    y = alpha_dropout(jax.random.key(3), x, 0.4, axes=(1, 2))
    assert y.dtype == dtype
    np.testing.assert_allclose(y.astype(jnp.float32), expected, rtol=float(jnp.finfo(dtype).eps), atol=1e-6)
    np.testing.assert_array_equal(train(AlphaDropout(0.4, axes=(1, 2)), x, seed=3), y)
    assert alpha_dropout(jax.random.key(3), x, 0.0) is x
