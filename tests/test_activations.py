"""Activations: values, kinks, identities, inverses, moments, derivatives in every mode, extreme inputs, dtypes."""

import math
import pickle
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import drawn
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

from jaxblocks import GLU, MLP, Dense, Serial
from jaxblocks.activations import (
    RECTIFIERS,
    activation_by_name,
    activation_moments,
    cosine,
    elu,
    gelu,
    glu,
    hard_shrink,
    hard_sigmoid,
    hard_tanh,
    identity,
    leaky_relu,
    leaky_relu_inverse,
    maxout,
    relu,
    selu,
    sigmoid,
    silu,
    softplus,
    softplus_inverse,
    tanh,
    threshold,
)
from jaxblocks.models import TransformerMLP

LAMBDA, ALPHA = 1.0507009873554805, 1.6732632423543772

# name: (function, the formula in numpy, float64)
ENTRYWISE = {
    "identity": (identity, lambda x: x),
    "relu": (relu, lambda x: np.maximum(x, 0)),
    "relu right": (partial(relu, at_zero=1.0), lambda x: np.maximum(x, 0)),
    "leaky_relu": (leaky_relu, lambda x: np.maximum(x, 0) + 0.01 * np.minimum(x, 0)),
    "leaky_relu 0.3": (partial(leaky_relu, negative_slope=0.3), lambda x: np.maximum(x, 0) + 0.3 * np.minimum(x, 0)),
    "elu": (elu, lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0)))),
    "elu 0.4": (partial(elu, alpha=0.4), lambda x: np.where(x > 0, x, 0.4 * np.expm1(np.minimum(x, 0)))),
    "selu": (selu, lambda x: LAMBDA * np.where(x > 0, x, ALPHA * np.expm1(np.minimum(x, 0)))),
    "gelu": (gelu, lambda x: x * special.ndtr(x)),
    "gelu approximate": (
        partial(gelu, approximate=True),
        lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    ),
    "sigmoid": (sigmoid, special.expit),
    "tanh": (tanh, np.tanh),
    "silu": (silu, lambda x: x * special.expit(x)),
    "softplus": (softplus, lambda x: np.logaddexp(0, x)),
    "cosine": (cosine, np.cos),
    "hard_tanh": (hard_tanh, lambda x: np.clip(x, -1, 1)),
    "hard_tanh 0 to 6": (partial(hard_tanh, low=0.0, high=6.0), lambda x: np.clip(x, 0, 6)),
    "hard_sigmoid": (hard_sigmoid, lambda x: np.clip(x / 6 + 0.5, 0, 1)),
    "hard_sigmoid 0.2": (partial(hard_sigmoid, slope=0.2), lambda x: np.clip(0.2 * x + 0.5, 0, 1)),
    "hard_shrink": (hard_shrink, lambda x: x * (np.abs(x) > 0.5)),
    "threshold": (partial(threshold, threshold=0.5, value=-2.0), lambda x: np.where(x > 0.5, x, -2)),
}
FUNCTIONS = {name: function for name, (function, _) in ENTRYWISE.items()}
SMOOTH = ("identity", "gelu", "gelu approximate", "sigmoid", "tanh", "silu", "softplus", "cosine")
KINKS = {
    "hard_tanh": (-1, 1),
    "hard_tanh 0 to 6": (0, 6),
    "hard_sigmoid": (-3, 3),
    "hard_sigmoid 0.2": (-2.5, 2.5),
    "hard_shrink": (-0.5, 0.5),
    "threshold": (0.5,),
}
"""The kinks of functions whose kink is not at 0 alone."""
GRID = np.linspace(-20, 20, 801)  # GRID[400] is 0
EXTREME = np.array([-1e30, -1e4, -100, -50, 50, 100, 1e4, 1e30])


def entrywise(*names):
    return pytest.mark.parametrize("name", names or ENTRYWISE)


def at_kinks(name):
    return np.isclose(GRID[:, None], KINKS.get(name, (0,))).any(1)


@jax.jit
def tabulate(x):
    """Return each function's value, first derivatives in both modes and second derivatives in all orders of modes."""
    ones = jnp.ones_like(x)
    table = {}
    for name, function in FUNCTIONS.items():

        def reverse(x, function=function):
            return jax.vjp(function, x)[1](ones)[0]

        def forward(x, function=function):
            return jax.jvp(function, (x,), (ones,))[1]

        second = [jax.vjp(f, x)[1](ones)[0] for f in (reverse, forward)]
        second += [jax.jvp(f, (x,), (ones,))[1] for f in (reverse, forward)]
        table[name] = function(x), (reverse(x), forward(x)), second
    return table


@cache
def whole_table(dtype):
    """The table over GRID and EXTREME in one dtype, compiled and run once for all tests."""
    with jax.enable_x64(dtype == "float64"), jax.debug_nans(False), np.errstate(over="ignore"):  # 1e30 in float16
        leaves, structure = jax.tree.flatten(tabulate(jnp.asarray(np.append(GRID, EXTREME), dtype)))
        assert all(leaf.dtype == dtype and not leaf.weak_type for leaf in leaves)
        return jax.tree.unflatten(structure, map(np.asarray, leaves))


def table(dtype, points="grid"):
    part = {"grid": slice(len(GRID)), "extreme": slice(len(GRID), None)}[points]
    return jax.tree.map(lambda y: y[part], whole_table(dtype))


@partial(jax.jit, static_argnums=0)
def by_both_modes(function, x):
    ones = jnp.ones_like(x)
    return jax.vjp(function, x)[1](ones)[0], jax.jvp(function, (x,), (ones,))[1]


def slope_at(function, x):
    """The derivative of an entrywise function in reverse mode, checked against forward mode."""
    reverse, forward = map(np.asarray, by_both_modes(function, jnp.asarray(x)))
    np.testing.assert_allclose(reverse, forward, rtol=1e-6)
    return reverse


# Values ------------------------------------------------------------------------------------------------------------


@entrywise()
def test_values_equal_the_formula(name):
    formula = ENTRYWISE[name][1]
    np.testing.assert_allclose(table("float64")[name][0], formula(GRID), rtol=1e-13, atol=4e-15)
    expected = formula(GRID.astype(np.float32).astype(np.float64))
    atol = {"gelu": 1e-6, "gelu approximate": 2e-6, "cosine": 2e-7}.get(name, 1e-12)
    np.testing.assert_allclose(table("float32")[name][0], expected, rtol=6e-7, atol=atol)


@pytest.mark.parametrize(
    ("function", "x", "y"),
    [
        (relu, [-2.0, 0.5], [0.0, 0.5]),
        (leaky_relu, [-2.0, 3.0], [-0.02, 3.0]),
        (sigmoid, [1.0, 2.0, -2.0], [0.7310586, 0.8807971, 0.1192029]),
        (tanh, [1.0, 0.5], [0.7615942, 0.4621172]),
        (gelu, [1.0, -1.0, 2.0, -0.5, -1.0492931], [0.8413447, -0.1586553, 1.9544997, -0.1542688, -0.1542688]),
        (elu, [-1.0, -2.0], [-0.6321206, -0.8646647]),
        (selu, [1.0, -1.0], [1.0507010, -1.1113307]),
        (softplus, [0.0, 1.0, -2.0], [0.6931472, 1.3132617, 0.1269280]),
    ],
)
def test_values_of_the_lectures(function, x, y):
    with jax.enable_x64(True):
        np.testing.assert_allclose(function(jnp.asarray(x)), y, atol=5.1e-8)


def test_entrywise():
    """sigma(s)_i = sigma(s_i): permuting and reshaping the input, vmap and jit commute with sigma."""
    x = jnp.asarray(np.random.default_rng(0).standard_normal((4, 6)), jnp.float32)
    order = np.random.default_rng(1).permutation(24)

    @jax.jit
    def both_ways(x):
        pairs = []
        for function in FUNCTIONS.values():
            y = function(x)
            pairs.append((function(x.ravel()[order]), y.ravel()[order]))
            pairs.append((function(x.reshape(2, 3, 4)), y.reshape(2, 3, 4)))
            pairs.append((jax.vmap(jax.vmap(function))(x), y))
            pairs.append((function(x[0, 0]), y[0, 0]))
            pairs.append((function(x[:0]), y[:0]))
        return pairs

    for one, other in both_ways(x):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=6e-7, atol=2e-7)
    grid = jnp.asarray(GRID, jnp.float32)
    for name, function in FUNCTIONS.items():
        np.testing.assert_allclose(function(grid), table("float32")[name][0], rtol=6e-7, atol=1e-6)


def test_softmax_is_not_entrywise():
    x = jnp.arange(24.0).reshape(4, 6)
    assert not np.allclose(jax.nn.softmax(x.ravel()).reshape(4, 6), jax.nn.softmax(x))


def test_relu_of_special_values():
    x = np.array([-np.inf, -1.0, -0.0, 0.0, 1.0, np.inf], np.float32)
    for at_zero in (0.0, 1.0):
        np.testing.assert_array_equal(relu(jnp.asarray(x), at_zero), np.maximum(x, 0))


def test_nan_stays_nan():
    with jax.debug_nans(False):
        values = jax.jit(lambda x: {name: function(x) for name, function in FUNCTIONS.items()})(jnp.array(jnp.nan))
    for name, value in values.items():
        assert np.isnan(value), name


def test_gelu_is_the_exact_form_by_default():
    """The tanh form differs by up to 4.73e-4, so that the tolerance tells the two forms apart."""
    with jax.enable_x64(True):
        x = np.linspace(-5, 5, 100001)
        exact = x * stats.norm.cdf(x)
        assert np.abs(gelu(jnp.asarray(x)) - exact).max() < 1e-14
        difference = np.abs(gelu(jnp.asarray(x), approximate=True) - exact).max()
        assert difference == pytest.approx(4.73e-4, abs=5e-7)
    assert gelu(jnp.float32(1)) == pytest.approx(0.8413447461, abs=1e-7)
    assert gelu(jnp.float32(1), approximate=True) == pytest.approx(0.8411919906, abs=1e-7)
    assert jax.nn.gelu(jnp.float32(1)) == pytest.approx(0.8411919906, abs=1e-7)  # jax.nn uses the tanh form by default


def test_gelu_is_x_times_the_normal_distribution_function():
    samples = np.random.default_rng(0).standard_normal(400_000)
    for x in (-1.0, 0.3, 2.0):
        standard_error = abs(x) * 0.5 / math.sqrt(len(samples))
        assert gelu(jnp.float32(x)) == pytest.approx(x * (samples <= x).mean(), abs=4 * standard_error)


def test_gelu_float32_error_in_the_left_tail():
    """The errors are within the documented bounds."""
    x = np.linspace(-30, 0, 300_001)[:-1].astype(np.float32)
    wide = x.astype(np.float64)
    exact = wide * special.ndtr(wide)
    error = np.abs(np.asarray(gelu(jnp.asarray(x)), np.float64) - exact)
    assert error.max() < 1e-6
    near = x > -1
    assert (error[near] / np.abs(exact[near])).max() < 6e-7
    np.testing.assert_array_equal(gelu(jnp.array([-5.61, -7.0, -1e2, -1e4, -1e30])), np.zeros(5))
    np.testing.assert_allclose(slope_at(gelu, x), special.ndtr(wide) + wide * stats.norm.pdf(wide), atol=5e-7)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@entrywise("gelu", "silu", "softplus")
def test_half_precision_results_are_rounded_once(name, dtype):
    """Values and derivatives are rounded float32 results. In bfloat16 arithmetic, 1 + erf has an error of 0.003."""
    value, (first, _), _ = table(dtype)[name]
    x = np.asarray(jnp.asarray(GRID, dtype), np.float64)
    slope = {
        "gelu": special.ndtr(x) + x * stats.norm.pdf(x),
        "silu": special.expit(x) * (1 + x * special.expit(-x)),
        "softplus": special.expit(x),
    }[name]
    half_unit = float(jnp.finfo(dtype).eps) / 2
    np.testing.assert_allclose(value.astype(np.float64), ENTRYWISE[name][1](x), rtol=1.01 * half_unit, atol=1e-6)
    np.testing.assert_allclose(first.astype(np.float64), slope, rtol=1.01 * half_unit, atol=1e-6)


def test_relative_accuracy_in_the_left_tail():
    x = np.linspace(-80, 20, 1001).astype(np.float32)
    wide = x.astype(np.float64)
    np.testing.assert_allclose(sigmoid(jnp.asarray(x)), special.expit(wide), rtol=3e-7)
    np.testing.assert_allclose(softplus(jnp.asarray(x)), np.log1p(np.exp(wide)), rtol=5e-7)
    by_tanh = 0.5 * (1 + jnp.tanh(0.5 * jnp.float32(-20)))  # this form has no correct digit here
    assert abs(by_tanh / special.expit(-20) - 1) > 0.9


# Kinks -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_zero", [0.0, 0.5, 1.0])
def test_relu_uses_the_given_subgradient_at_zero(at_zero):
    x = jnp.array([-3.0, -1e-30, -0.0, 0.0, 1e-30, 2.0])

    @jax.jit
    def derivatives(x):
        f = partial(relu, at_zero=at_zero)
        first = [jax.vmap(d(f))(x) for d in (jax.grad, jax.jacfwd)]
        return first, [jax.vmap(d(e(f)))(x) for d in (jax.grad, jax.jacfwd) for e in (jax.grad, jax.jacfwd)]

    first, second = derivatives(x)
    for way in first:
        np.testing.assert_array_equal(way, [0, 0, at_zero, at_zero, 1, 1])
    np.testing.assert_array_equal(second, np.zeros((4, 6)))


def test_relu_equals_jax_nn_relu_by_default():
    """The programs are equal; any other subgradient changes the derivative at zero only."""
    x = jax.ShapeDtypeStruct((3,), jnp.float32)
    assert str(jax.make_jaxpr(relu)(x)) == str(jax.make_jaxpr(jax.nn.relu)(x))
    away = GRID != 0
    for name in ("relu", "relu right"):
        expected = slope_at(jax.nn.relu, jnp.asarray(GRID, jnp.float32))
        np.testing.assert_array_equal(table("float32")[name][1][0][away], expected[away])


@pytest.mark.parametrize("at_zero", [-0.1, 1.5, math.nan])
def test_relu_rejects_invalid_subgradients(at_zero):
    with pytest.raises(ValueError, match=rf"relu expected at_zero to be a number >= 0 and <= 1, got {at_zero}"):
        relu(jnp.ones(3), at_zero)


def test_equivalent_forms_of_relu_differ_in_the_derivative_at_zero():
    """The reason for a custom derivative rule: equivalent forms of relu have three different derivatives at 0."""

    @jax.jit
    def slopes(x):
        spellings = [
            lambda x: jnp.maximum(x, 0),
            lambda x: jnp.where(x >= 0, x, 0),
            relu,
            jnp.abs,
            lambda x: relu(x) + relu(-x),
            lambda x: jnp.maximum(x, 0) + 0.01 * jnp.minimum(x, 0),
        ]
        return [jax.grad(f)(x) for f in spellings]

    np.testing.assert_allclose(slopes(jnp.array(0.0)), [0.5, 1, 0, 1, 0, 0.505], rtol=1e-6)


def test_abs_is_a_sum_of_two_relus():
    """abs(x) = ReLU(x) + ReLU(-x)."""
    x = jnp.asarray(GRID, jnp.float32)
    np.testing.assert_array_equal(relu(x) + relu(-x), jnp.abs(x))


@pytest.mark.parametrize(
    ("name", "at_zero"),
    [
        ("identity", 1.0),
        ("relu", 0.0),
        ("relu right", 1.0),
        ("leaky_relu", 0.01),
        ("leaky_relu 0.3", 0.3),
        ("elu", 1.0),
        ("elu 0.4", 0.4),
        ("selu", LAMBDA * ALPHA),
        ("gelu", 0.5),
        ("gelu approximate", 0.5),
        ("sigmoid", 0.25),
        ("tanh", 1.0),
        ("silu", 0.5),
        ("softplus", 0.5),
        ("cosine", 0.0),
    ],
)
def test_derivative_at_zero(name, at_zero):
    """At a kink it is the left derivative by default."""
    assert GRID[400] == 0
    for way in table("float64")[name][1]:
        assert way[400] == pytest.approx(at_zero, rel=1e-15)


def test_elu_is_smooth_at_zero_for_alpha_one():
    with jax.enable_x64(True):
        np.testing.assert_allclose(slope_at(elu, [-1e-12, 0.0, 1e-12]), 1, atol=2e-12)


def test_special_slopes():
    x = jnp.asarray(GRID, jnp.float32)
    np.testing.assert_array_equal(leaky_relu(x, 1.0), x)
    np.testing.assert_array_equal(leaky_relu(x, 0.0), relu(x))
    np.testing.assert_array_equal(slope_at(partial(leaky_relu, negative_slope=0.0), x), slope_at(relu, x))
    np.testing.assert_allclose(selu(x), LAMBDA * elu(x, ALPHA), rtol=3e-7)


def test_learned_slope_and_alpha():
    """The derivative with respect to slope is min(0, x), and to alpha expm1(min(0, x))."""
    x = np.array([-2.0, -0.5, 0.0, 3.0], np.float32)

    @jax.jit
    def by_option(x, option):
        return jax.jacfwd(lambda o: leaky_relu(x, o))(option), jax.jacfwd(lambda o: elu(x, o))(option)

    by_slope, by_alpha = by_option(x, jnp.float32(0.2))
    np.testing.assert_array_equal(by_slope, np.minimum(x, 0))
    np.testing.assert_allclose(by_alpha, np.expm1(np.minimum(x, 0)), rtol=3e-7)


# Identities --------------------------------------------------------------------------------------------------------


def net(function, weights, x):
    """A net without biases, written out."""
    *hidden, last = weights
    for weight in hidden:
        x = function(weight @ x)
    return (last @ x).sum()


def test_relu_is_homogeneous_for_positive_factors():
    """f(a x) = a f(x), f(a theta) = a^L f(theta), <x, grad f> = f and <W_l, grad f> = f for every layer."""
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        weights = [rng.standard_normal(shape) for shape in ((7, 5), (6, 7), (8, 6), (3, 8))]
        x = rng.standard_normal(5)
        of_relu, of_tanh = (jax.jit(jax.value_and_grad(partial(net, f), argnums=(0, 1))) for f in (relu, tanh))

        def f(weights, x):
            return float(of_relu(weights, x)[0])

        value, (by_weights, by_x) = of_relu(weights, x)
        assert abs(value) > 0.1
        assert f(weights, 4 * x) == 4 * value  # a power of two: exact
        assert f([4 * w for w in weights], x) == 4**4 * value
        assert f([4 * weights[0], weights[1] / 4, *weights[2:]], x) == value
        assert np.vdot(x, by_x) == pytest.approx(float(value), rel=1e-12)
        for w, g in zip(weights, by_weights, strict=True):
            assert np.vdot(w, g) == pytest.approx(float(value), rel=1e-12)
        # Controls: a negative factor, and an activation that is not homogeneous.
        assert abs(f(weights, -x) + value) > 0.1
        value, (_, by_x) = of_tanh(weights, x)
        assert abs(of_tanh(weights, 4 * x)[0] - 4 * value) > 0.1
        assert abs(np.vdot(x, by_x) - value) > 0.01


def test_active_relus_pass_the_gradient_unchanged():
    def stack(x):
        for _ in range(20):
            x = relu(x)
        return x

    np.testing.assert_array_equal(slope_at(stack, [2.0, -2.0]), [1, 0])


def test_stacked_sigmoids_shrink_the_gradient():
    """Each sigmoid multiplies the gradient by at most 1/4; ten of them by at most 9.53674e-7."""
    with jax.enable_x64(True):
        expected = [0.25, 0.104994, 0.00664806, 4.53958e-5]
        np.testing.assert_allclose(slope_at(sigmoid, [0.0, 2.0, 5.0, 10.0]), expected, rtol=5e-6)
        np.testing.assert_allclose(slope_at(tanh, [2.0, 5.0, 10.0]), [0.0706508, 1.81583e-4, 8.24461e-9], rtol=3e-6)
        assert table("float64")["sigmoid"][1][0].max() == 0.25

        def deep(x, center):
            for _ in range(10):
                x = sigmoid(x) - center
            return x

        assert 0 < slope_at(partial(deep, center=0.0), 0.3) < 0.25**10
        # With centered inputs, each sigmoid has its largest slope, and the bound is attained.
        assert slope_at(partial(deep, center=0.5), 0.0) == pytest.approx(9.53674e-7, rel=1e-6)


def test_dead_relu_units_have_no_gradient_and_leaky_ones_do():
    rng = np.random.default_rng(0)
    x, weight = (jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in ((32, 4), (4,)))

    @jax.jit
    def gradients(weight):
        def loss(weight, function):
            return jnp.mean((function(x @ weight - 1e3) - 1) ** 2)

        return [jax.grad(loss)(weight, function) for function in (relu, leaky_relu)]

    dead, revived = gradients(weight)
    np.testing.assert_array_equal(dead, np.zeros(4))
    assert np.abs(revived).min() > 0


def test_only_relu_has_exact_zeros():
    x = jnp.asarray(np.random.default_rng(3).standard_normal(10_000), jnp.float32)
    assert np.mean(relu(x) == 0) == pytest.approx(0.5, abs=3 * 0.5 / 100)
    for function in (gelu, softplus, leaky_relu, elu, silu):
        assert np.mean(function(x) == 0) == 0


def test_tanh_is_a_scaled_sigmoid():
    """tanh(x) = 2 sigma(2x) - 1. The erroneous form 2 sigma(x) - 1 is tanh(x/2)."""
    with jax.enable_x64(True):
        np.testing.assert_allclose(tanh(jnp.asarray(GRID)), 2 * sigmoid(2 * jnp.asarray(GRID)) - 1, atol=1e-15)
        assert 2 * sigmoid(jnp.asarray(1.0)) - 1 == pytest.approx(0.4621172, abs=5e-8)
        assert np.all(np.abs(tanh(jnp.asarray(GRID)) - GRID) <= np.abs(GRID) ** 3 / 3)
        rng = np.random.default_rng(0)
        W, b, V, c, a = (rng.standard_normal(shape) for shape in ((6, 3), (6,), (2, 6), (2,), (3,)))
        by_tanh = V @ tanh(jnp.asarray(W @ a + b)) + c
        by_sigmoid = 2 * V @ sigmoid(jnp.asarray(2 * W @ a + 2 * b)) + (c - V.sum(1))
        np.testing.assert_allclose(by_tanh, by_sigmoid, atol=1e-13)


def test_tanh_is_finite_where_the_quotient_of_exponentials_overflows():
    x = jnp.float32(45)
    assert tanh(x) == 1
    with jax.debug_nans(False):
        assert np.isnan((jnp.exp(2 * x) - 1) / (jnp.exp(2 * x) + 1))


def test_tanh_keeps_zero_mean_only_for_symmetric_inputs():
    x, p = np.array([2.0, -1.0]), np.array([1 / 3, 2 / 3])
    with jax.enable_x64(True):
        assert p @ x == 0
        assert p @ tanh(jnp.asarray(x)) == pytest.approx(-0.186387, abs=5e-7)


def test_softplus_identities():
    """g(x) - g(-x) = x, g' = sigma, g'' = sigma (1 - sigma), and the values are positive."""
    value, (first, _), second = table("float64")["softplus"]
    np.testing.assert_allclose(value - value[::-1], GRID, atol=1e-14)
    np.testing.assert_allclose(first, special.expit(GRID), rtol=1e-14)
    np.testing.assert_allclose(second[0], special.expit(GRID) * special.expit(-GRID), rtol=1e-14, atol=2e-16)
    assert value.min() > 0
    with jax.debug_nans(False):
        assert jnp.isinf(jnp.log(1 + jnp.exp(jnp.float32(100))))  # the formula as printed


def test_minima():
    with jax.enable_x64(True):
        assert gelu(jnp.asarray(-0.7517915)) == pytest.approx(-0.1699712, abs=5e-8)
        assert slope_at(gelu, -0.7517915) == pytest.approx(0, abs=1e-7)
        assert silu(jnp.asarray(-1.27846)) == pytest.approx(-0.27846, abs=5e-6)
        assert slope_at(silu, -1.27846) == pytest.approx(0, abs=2e-6)


@entrywise()
def test_which_activations_are_injective(name):
    """Continuous and injective on an interval means strictly monotonic."""
    steps = np.diff(table("float64")[name][0][np.abs(GRID) <= 5])
    injective = np.all(steps > 0) or np.all(steps < 0)
    others = ("relu", "relu right", "gelu", "gelu approximate", "silu", "cosine", "threshold")
    assert injective == (name not in others and not name.startswith("hard"))


def test_one_cosine_unit_solves_parity():
    """1/2 - cos(pi s) / 2, with s the sum of the bits, equals the parity of all 2^n inputs."""
    for bits in (2, 3, 8, 12):
        s = ((np.arange(2**bits)[:, None] >> np.arange(bits)) & 1).sum(1)
        parity = 0.5 - 0.5 * cosine(jnp.pi * jnp.asarray(s, jnp.float32))
        np.testing.assert_allclose(parity, s % 2, atol=1e-10)


# Inverses ----------------------------------------------------------------------------------------------------------

leaky_there_and_back = jax.jit(lambda x: leaky_relu_inverse(leaky_relu(x, 0.125), 0.125))
softplus_there_and_back = jax.jit(lambda y: softplus(softplus_inverse(y)))


@given(st.lists(st.floats(-50, 50, width=32), min_size=8, max_size=8))
def test_leaky_relu_round_trip(x):
    x = np.asarray(x, np.float32)
    np.testing.assert_allclose(leaky_there_and_back(x), x, rtol=0, atol=1e-37)  # exact except for underflow


@given(st.lists(st.floats(2.0**-60, 2.0**60, width=32), min_size=8, max_size=8))
def test_softplus_round_trip(y):
    y = np.asarray(y, np.float32)
    np.testing.assert_allclose(softplus_there_and_back(y), y, rtol=1e-5)


def test_softplus_inverse():
    with jax.enable_x64(True):
        x = softplus_inverse(softplus(jnp.asarray(GRID)))
        np.testing.assert_allclose(x, GRID, rtol=1e-13, atol=1e-13)
        y = np.array([1e-9, 0.1, math.log(2), 3.0, 30.0])
        np.testing.assert_allclose(softplus_inverse(jnp.asarray(y)), np.log(np.expm1(y)), rtol=1e-13, atol=1e-15)
        np.testing.assert_allclose(slope_at(softplus_inverse, y), -1 / np.expm1(-y), rtol=1e-13)
    np.testing.assert_array_equal(softplus_inverse(jnp.array([0.0, 1e4])), [-np.inf, 1e4])
    assert softplus_inverse(jnp.zeros((0,))).shape == (0,)
    assert softplus_inverse(jnp.ones(2, jnp.bfloat16)).dtype == jnp.bfloat16


def test_softplus_inverse_outside_its_domain():
    y = jnp.array([1.0, -0.5])
    with pytest.raises(ValueError, match=r"expected positive y.* a minimum of -0.5; pass values of softplus"):
        softplus_inverse(y)
    with jax.debug_nans(False):
        np.testing.assert_array_equal(np.isnan(jax.jit(softplus_inverse)(y)), [False, True])


def test_leaky_relu_inverse():
    y = jnp.array([-1.0, 0.0, 3.0])
    np.testing.assert_array_equal(leaky_relu_inverse(y, jnp.float32(0.5)), [-2, 0, 3])
    np.testing.assert_array_equal(slope_at(partial(leaky_relu_inverse, negative_slope=0.125), y), [8, 8, 1])
    for slope in (0.0, -0.5, jnp.float32(0)):
        with pytest.raises(ValueError, match=r"slope (to be a number > 0 or an array, got|> 0, got .* has no inverse)"):
            leaky_relu_inverse(y, slope)
    with pytest.raises(ValueError, match=r"negative_slope to be a number > 0 or an array, got 0.0"):
        jax.jit(lambda y: leaky_relu_inverse(y, 0.0))(y)  # a Python number has its value at trace time


# Maxout ------------------------------------------------------------------------------------------------------------


def test_maxout():
    x = np.random.default_rng(0).standard_normal((2, 3, 12)).astype(np.float32)
    for pieces in (1, 3, 12):
        expected = x.reshape(2, 3, 12 // pieces, pieces).max(-1)
        np.testing.assert_array_equal(maxout(jnp.asarray(x), pieces), expected)
    np.testing.assert_array_equal(maxout(jnp.array([1.0, 5.0, 3.0, 4.0, 2.0, 0.0]), 3), [5, 4])
    np.testing.assert_array_equal(maxout(jnp.array([1.0, 5.0, 3.0, 4.0, 2.0, 0.0])), [5, 4, 2])


def test_maxout_reproduces_relu_and_abs():
    x = jnp.asarray(GRID, jnp.float32)
    np.testing.assert_array_equal(maxout(jnp.stack([x, 0 * x], -1))[:, 0], relu(x))
    np.testing.assert_array_equal(maxout(jnp.stack([x, -x], -1))[:, 0], jnp.abs(x))
    # Equal maxima share the gradient.
    assert slope_at(lambda x: maxout(jnp.stack([x, jnp.zeros_like(x)], -1))[..., 0], 0.0) == 0.5


def test_maxout_of_affine_is_convex_and_differences_are_not():
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        W, b, (u, v) = rng.standard_normal((5, 12)), rng.standard_normal((1, 12)), rng.standard_normal((2, 200, 5))

        def h(a):
            return maxout(jnp.asarray(a @ W + b), 4)

        gap = (h(u) + h(v)) / 2 - h((u + v) / 2)
        assert gap.min() >= -1e-14
        assert gap.max() > 0.1
        # A hat over [0, 2], neither convex nor concave: max(0, x, 2x - 2) - max(0, 2x - 2).
        pieces = np.stack([0 * GRID, 2 * GRID - 2, GRID], -1)
        hat = maxout(jnp.asarray(pieces), 3) - maxout(jnp.asarray(pieces[:, :2]), 2)
        np.testing.assert_allclose(hat[:, 0], np.maximum(0, 1 - np.abs(GRID - 1)), atol=1e-14)


def test_maxout_rejects_pieces_that_do_not_divide_the_features():
    with pytest.raises(ValueError, match=r"multiple of pieces = 3, got float32 \(4, 8\)"):
        maxout(jnp.ones((4, 8)), 3)
    assert maxout(jnp.ones((4, 8 * 3)), 3).shape == (4, 8)  # as the error advises
    for x, pieces in ((jnp.ones(4), 0), (jnp.ones(()), 1)):
        with pytest.raises(ValueError, match="maxout expected (pieces to be an integer >= 1|x with at least 1 axis)"):
            maxout(x, pieces)


# Moments -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "mean", "variance"),
    [
        (relu, 0.398942, 0.340845),
        (gelu, 0.282095, 0.345644),
        (elu, 0.160521, 0.619179),
        (selu, 0.0, 1.0),
        (softplus, 0.806059, 0.271515),
        (tanh, 0.0, 0.394294),
        (sigmoid, 0.5, 0.043379),
        (cosine, 0.606531, 0.199788),
    ],
)
def test_moments_of_the_table(function, mean, variance):
    np.testing.assert_allclose(activation_moments(function), (mean, variance), atol=1e-6)
    with jax.enable_x64(True):
        np.testing.assert_allclose(activation_moments(function), (mean, variance), atol=5.01e-7)


def test_moments_are_exact():
    with jax.enable_x64(True):
        for function, mean, variance in [
            (relu, 1 / math.sqrt(2 * math.pi), 0.5 - 1 / (2 * math.pi)),
            (leaky_relu, 0.99 / math.sqrt(2 * math.pi), (1 + 1e-4) / 2 - 0.99**2 / (2 * math.pi)),
            (jnp.abs, math.sqrt(2 / math.pi), 1 - 2 / math.pi),
            (cosine, math.exp(-0.5), (1 + math.exp(-2)) / 2 - math.exp(-1)),
            (selu, 0.0, 1.0),
        ]:
            np.testing.assert_allclose(activation_moments(function), (mean, variance), atol=1e-14)
        assert activation_moments(gelu)[0] == pytest.approx(0.5 / math.sqrt(math.pi), abs=1e-14)


def test_moments_can_be_differentiated_and_traced():
    """d/ds E leaky_relu(Z, s) = E min(0, Z) = -1 / sqrt(2 pi)."""
    by_slope = jax.jit(jax.grad(lambda s: activation_moments(partial(leaky_relu, negative_slope=s))[0]))
    assert by_slope(jnp.float32(0.1)) == pytest.approx(-1 / math.sqrt(2 * math.pi), rel=1e-6)


def test_selu_keeps_mean_and_variance_through_fifty_layers():
    """With weights of variance 1 / fan_in. ReLU and GELU do not."""
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((50, 256, 256)).astype(np.float32) / 16
    x = rng.standard_normal((128, 256)).astype(np.float32)

    @jax.jit
    def deep(weights, x):
        def layer(xs, weight):
            return [f(x @ weight) for f, x in zip((selu, relu, gelu), xs, strict=True)], None

        return jax.lax.scan(layer, [x, x, x], weights)[0]

    by_selu, by_relu, by_gelu = map(np.asarray, deep(weights, x))
    assert abs(by_selu.mean()) < 0.1
    assert abs(by_selu.var() - 1) < 0.2
    assert by_relu.var() < 1e-3
    assert by_gelu.var() < 1e-3


def test_which_activations_are_rectifiers():
    """Rectifiers get He initialization by default; SELU requires LeCun initialization."""
    assert {relu, leaky_relu, elu, gelu, silu, jax.nn.relu, jax.nn.swish, jax.nn.mish, jax.nn.relu6} <= RECTIFIERS
    assert not {selu, tanh, sigmoid, softplus, identity, cosine, jnp.tanh, jax.nn.selu} & RECTIFIERS


# The functions of jax.nn, and names --------------------------------------------------------------------------------

OF_JAX = {
    "log_sigmoid": lambda x: -np.logaddexp(0, -x),
    "mish": lambda x: x * np.tanh(np.logaddexp(0, x)),
    "hard_silu": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "hard_swish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "relu6": lambda x: np.clip(x, 0, 6),
    "squareplus": lambda x: (x + np.sqrt(x**2 + 4)) / 2,
    "celu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "soft_sign": lambda x: x / (1 + np.abs(x)),
}


def test_the_activations_of_jax_nn_are_layers():
    """By name or as they are: they compute the formula, print, and are pickled."""
    x = jnp.linspace(-8, 8, 17)
    net = Serial(*(activation_by_name(name) for name in OF_JAX))
    names = [f"jax.nn.{name}".replace("hard_swish", "hard_silu") for name in OF_JAX]
    assert "".join(repr(net).split()) == f"Serial({','.join(names)},)"
    assert repr(pickle.loads(pickle.dumps(net))) == repr(net)
    values = jax.jit(lambda x: [activation_by_name(name)(x) for name in OF_JAX])(x)
    for name, y in zip(OF_JAX, values, strict=True):
        np.testing.assert_allclose(y, OF_JAX[name](np.asarray(x, np.float64)), rtol=2e-6, atol=2e-7, err_msg=name)
    assert net.apply(net.init(jax.random.key(0), x), x).shape == x.shape


def test_an_activation_by_name(sentences):
    """Ours come first; there is no layer that takes the name."""
    assert [activation_by_name(name) for name in ("gelu", "relu", "swish")] == [gelu, relu, jax.nn.swish]
    with pytest.raises(
        ValueError, match=r"activation_by_name expected the name of .*, got 'geluu'; did you mean gelu\?"
    ):
        activation_by_name("geluu")
    with pytest.raises(ValueError, match=r"got 'activation_moments'"):
        activation_by_name("activation_moments")
    with pytest.raises(TypeError, match=r"got 'mish'; pass the function itself, activation=jax\.nn\.mish\."):
        MLP(3, activation="mish")
    assert repr(MLP(3, activation=jax.nn.mish)) == "MLP(3, activation=jax.nn.mish)"
    with pytest.raises(TypeError, match=r"a function of arrays, got 'relu'; pass the function of that name\."):
        Serial("relu")


# Gated linear units ------------------------------------------------------------------------------------------------


def test_gated_linear_units_by_the_formula():
    """GLU(a, b) = a sigma(b): the sigmoid gives that of jax.nn, another activation another member of the family."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 6)), jnp.float32)
    a, b = np.split(np.asarray(x, np.float64), 2, -1)
    for activation, formula in (
        (sigmoid, special.expit),
        (silu, lambda b: b * special.expit(b)),
        (identity, lambda b: b),
    ):
        np.testing.assert_allclose(glu(x, activation), a * formula(b), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(glu(x), jax.nn.glu(x), rtol=1e-6)
    with pytest.raises(ValueError, match=r"glu expected x with an even last axis, got float32 \(2, 3, 5\); give the"):
        glu(x[..., :5])


def test_the_gated_layer_is_that_of_a_transformer():
    """GLU and then Dense are TransformerMLP(gated=True), and glu of both maps at once."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3)), jnp.float32)
    net = Serial(GLU(4, activation=silu), Dense(3))
    mlp, layer = TransformerMLP(4, 3, gated=True, activation=silu), GLU(4, activation=silu)

    @jax.jit
    def both(params):
        first, down = params
        maps = jnp.concatenate([x @ p["kernel"] + p["bias"][None] for p in (first["up"], first["gate"])], -1)
        of_mlp = mlp.apply({**first, "down": down, "dropout": ()}, x)
        return (net.apply(params, x), layer.apply(first, x)), (of_mlp, glu(maps, silu))

    for got, expected in zip(*both(drawn(net, x)), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6)


# Derivatives, extremes, dtypes -------------------------------------------------------------------------------------


@entrywise()
def test_derivatives_against_finite_differences(name):
    """Both derivatives, in every mode and order of modes, away from the kink (at 0 too where there is none)."""
    formula, h = ENTRYWISE[name][1], 1e-3
    up, down = formula(GRID + h) - formula(GRID - h), formula(GRID + 2 * h) - formula(GRID - 2 * h)
    central, bend = (8 * up - down) / (12 * h), (formula(GRID + h) - 2 * formula(GRID) + formula(GRID - h)) / h**2
    away = (name in SMOOTH) | ~at_kinks(name)
    _, first, second = table("float64")[name]
    for way in first:
        np.testing.assert_allclose(way, first[0], rtol=1e-13, atol=1e-14)
        np.testing.assert_allclose(way[away], central[away], atol=1e-10)
    for way in second:
        np.testing.assert_allclose(way, second[0], rtol=1e-13, atol=1e-13)
        np.testing.assert_allclose(way[away], bend[away], atol=2e-6)
    _, first32, second32 = table("float32")[name]
    # Rounded to float32, a point of the grid may be on the other side of a kink that is not at 0.
    same = away | (name not in KINKS)
    for way in first32:
        np.testing.assert_allclose(way[same], first[0][same], atol=2e-5 if name == "gelu approximate" else 4e-6)
    for way in second32:
        np.testing.assert_allclose(way[same], second[0][same], atol=2e-4 if name == "gelu approximate" else 2e-5)


def test_kinks_of_the_hard_functions():
    """The derivatives that the docstrings state, and NaN stays NaN."""
    one, half = jnp.float32([-1, 1]), jnp.float32([-0.5, 0.5])
    np.testing.assert_array_equal(slope_at(hard_tanh, one), 1)
    np.testing.assert_array_equal(slope_at(jax.nn.hard_tanh, one), 1)
    np.testing.assert_array_equal(slope_at(partial(hard_sigmoid, slope=0.5), one), 0)
    np.testing.assert_array_equal(slope_at(hard_shrink, half), 0)
    np.testing.assert_array_equal(slope_at(threshold, jnp.float32([1])), 0)
    for function in (hard_tanh, hard_sigmoid, hard_shrink, threshold):
        with jax.debug_nans(False):
            assert np.isnan(function(jnp.float32(np.nan)))
    slopes = jax.jit(jax.grad(lambda limits: hard_tanh(jnp.float32([-3, 0, 4, 5]), *limits).sum()))
    np.testing.assert_array_equal(slopes((jnp.float32(-1), jnp.float32(1))), [1, 2])


def test_gelu_first_and_second_derivative_in_closed_form():
    """GELU' = Phi + x phi, GELU'' = (2 - x^2) phi."""
    _, (first, _), (second, *_) = table("float64")["gelu"]
    np.testing.assert_allclose(first, special.ndtr(GRID) + GRID * stats.norm.pdf(GRID), rtol=1e-13, atol=2e-16)
    np.testing.assert_allclose(second, (2 - GRID**2) * stats.norm.pdf(GRID), rtol=1e-12, atol=1e-16)


@entrywise()
def test_values_and_derivatives_equal_those_of_torch(name):
    torch = pytest.importorskip("torch", reason="PyTorch is the reference; install the parity extra")
    F = torch.nn.functional
    reference = {
        "identity": lambda x: x * 1,
        "relu": torch.relu,
        "relu right": lambda x: torch.clamp(x, min=0),
        "leaky_relu": F.leaky_relu,
        "leaky_relu 0.3": partial(F.leaky_relu, negative_slope=0.3),
        "elu": F.elu,
        "elu 0.4": partial(F.elu, alpha=0.4),
        "selu": F.selu,
        "gelu": F.gelu,
        "gelu approximate": partial(F.gelu, approximate="tanh"),
        "sigmoid": torch.sigmoid,
        "tanh": torch.tanh,
        "silu": F.silu,
        "softplus": partial(F.softplus, threshold=100),
        "cosine": torch.cos,
        "hard_tanh": F.hardtanh,
        "hard_tanh 0 to 6": partial(F.hardtanh, min_val=0.0, max_val=6.0),
        "hard_sigmoid": lambda x: F.relu6(x + 3) / 6,  # F.hardsigmoid has no second derivative
        "hard_sigmoid 0.2": lambda x: torch.clamp(0.2 * x + 0.5, 0, 1),
        "hard_shrink": F.hardshrink,
        "threshold": partial(F.threshold, threshold=0.5, value=-2.0),
    }[name]
    x = torch.tensor(GRID, requires_grad=True)  # 0 included
    value = reference(x)
    (first,) = torch.autograd.grad(value.sum(), x, create_graph=True)
    second = torch.autograd.grad(first.sum(), x)[0] if first.requires_grad else torch.zeros_like(x)
    ours = table("float64")[name]
    np.testing.assert_allclose(ours[0], value.detach(), rtol=1e-13, atol=4e-15)
    # The derivatives of hardtanh and clamp at their ends are 0 and 1 there, 1 and 0 here.
    limits = at_kinks(name) & name.startswith(("hard_tanh", "hard_sigmoid 0.2"))
    np.testing.assert_allclose(ours[1][0][~limits], first.detach()[~limits], rtol=1e-12, atol=5e-14)
    bends = (name in SMOOTH) | ~at_kinks(name)
    np.testing.assert_allclose(ours[2][0][bends], second.detach().numpy()[bends], rtol=1e-11, atol=1e-12)


@entrywise()
def test_extreme_inputs(name):
    """In float32 values and derivatives are finite, and values equal the formula."""
    # 1e30 has no cosine in float32, and the tanh form cubes it.
    inside = slice(1, -1) if name in ("cosine", "gelu approximate") else slice(None)
    value, first, second = jax.tree.map(lambda y: y[inside], table("float32", "extreme")[name])
    np.testing.assert_allclose(value, ENTRYWISE[name][1](EXTREME[inside]), rtol=3e-7, atol=1e-6)
    assert np.isfinite(first).all()
    assert np.isfinite(second).all()


def test_the_naive_sigmoid_has_nan_gradients_at_extreme_inputs():
    with jax.debug_nans(False):
        assert np.isnan(jax.grad(lambda x: 1 / (1 + jnp.exp(-x)))(jnp.float32(-100)))


def test_infinite_inputs():
    infinite = jnp.array([-jnp.inf, jnp.inf])
    for function, limits in {
        relu: [0, np.inf],
        leaky_relu: [-np.inf, np.inf],
        elu: [-1, np.inf],
        sigmoid: [0, 1],
        tanh: [-1, 1],
        softplus: [0, np.inf],
    }.items():
        np.testing.assert_array_equal(function(infinite), limits)
    np.testing.assert_array_equal(slope_at(softplus, infinite), [0, 1])
    with jax.debug_nans(False):  # inf * 0, as documented
        for function in (gelu, silu):
            np.testing.assert_array_equal(function(infinite), [np.nan, np.inf])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_dtype_is_kept(dtype):
    """Values and derivatives keep it, without weak types (``whole_table`` asserts it), up to a few roundings."""
    with jax.enable_x64(dtype == "float64"):
        x = np.asarray(jnp.asarray(GRID, dtype), np.float64)
    near, unit = np.abs(GRID) <= 4, float(jnp.finfo(dtype).eps)
    for name, (value, *_) in table(dtype).items():
        exact = ENTRYWISE[name][1](x)
        np.testing.assert_allclose(value[near].astype(np.float64), exact[near], rtol=4 * unit, atol=4 * unit)


@entrywise("relu", "leaky_relu", "elu", "selu", "gelu", "sigmoid", "tanh", "silu", "softplus", "cosine")
def test_integers_are_rejected(name):
    with pytest.raises(TypeError, match=rf"{name} expected x to be a floating-point array, got int32 \(3,\); .*astype"):
        FUNCTIONS[name](jnp.arange(3))


@entrywise("gelu", "silu", "softplus")
def test_reverse_mode_stores_one_array(name):
    plain = {
        "gelu": lambda x: 0.5 * x * (1 + jax.scipy.special.erf(x * math.sqrt(0.5))),
        "silu": jax.nn.silu,
        "softplus": jax.nn.softplus,
    }

    def kept(function):
        return sum(leaf.ndim > 0 for leaf in jax.tree.leaves(jax.vjp(function, jnp.ones(3))[1]))

    assert kept(FUNCTIONS[name]) == 1
    assert kept(plain[name]) > 1  # control: without the rule


@pytest.mark.parametrize("function", [relu, gelu, silu, softplus])
def test_derivatives_at_a_python_number(function):
    """The rules of custom derivatives get Python numbers where the user passes them."""
    expected = jax.grad(function)(jnp.float32(1.5))
    np.testing.assert_allclose(jax.grad(function)(1.5), expected, rtol=1e-6)
    np.testing.assert_allclose(jax.jacfwd(function)(1.5), expected, rtol=1e-6)


def test_derivatives_of_activations_whose_powers_overflow():
    """The cube of the tanh form of GELU, in float16 from 256 on; the square of a small y in the inverse of softplus."""
    slope = jax.grad(lambda x: gelu(x, True))
    for dtype, x in ((jnp.float32, 1e30), (jnp.float16, 3e4)):
        ends = jnp.array([-x, x], dtype)
        first, second = jax.jit(jax.vmap(lambda x: (slope(x), jax.grad(slope)(x))))(ends)
        np.testing.assert_array_equal(first, [0, 1])
        np.testing.assert_array_equal(second, 0)
    inverse = lambda t: softplus_inverse(jnp.exp(t))  # t for small exp(t)
    first, second = jax.jit(lambda t: (jax.grad(inverse)(t), jax.grad(jax.grad(inverse))(t)))(jnp.float32(-60))
    np.testing.assert_allclose([first, second], [1, 0], atol=1e-6)
