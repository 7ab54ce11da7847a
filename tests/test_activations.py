"""Activations: values, kinks, identities, inverses, moments, first derivatives in both modes, dtypes."""

import math
import pickle
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import for_each
from compiled import drawn
from scipy import special, stats

from jaxblocks import GLU, MLP, Dense, Serial
from jaxblocks.activations import (
    RECTIFIERS,
    activation_moments,
    cosine,
    elu,
    gelu,
    glu,
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
}
FUNCTIONS = {name: function for name, (function, _) in ENTRYWISE.items()}
GRID = np.linspace(-20, 20, 801)  # GRID[400] is 0


@partial(jax.jit, static_argnums=1)
def tabulate(x, names):
    """Return each function's value, and its derivative in both modes."""
    ones = jnp.ones_like(x)
    table = {}
    for name in names:
        value, pull = jax.vjp(FUNCTIONS[name], x)
        table[name] = value, (pull(ones)[0], jax.jvp(FUNCTIONS[name], (x,), (ones,))[1])
    return table


@cache
def table(dtype):
    """The table over GRID in one dtype, compiled and run once for all tests."""
    names = ("gelu", "silu", "softplus") if dtype == "bfloat16" else tuple(FUNCTIONS)
    with jax.enable_x64(dtype == "float64"):
        leaves, structure = jax.tree.flatten(tabulate(jnp.asarray(GRID, dtype), names))
        assert all(leaf.dtype == dtype and not leaf.weak_type for leaf in leaves)
        return jax.tree.unflatten(structure, map(np.asarray, leaves))


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


@for_each({name: (name, formula) for name, (_, formula) in ENTRYWISE.items()})
def test_values_equal_the_formula(case):
    name, formula = case
    np.testing.assert_allclose(table("float64")[name][0], formula(GRID), rtol=1e-13, atol=4e-15)
    expected = formula(GRID.astype(np.float32).astype(np.float64))
    atol = {"gelu": 1e-6, "gelu approximate": 1e-7, "cosine": 2e-7}.get(name, 1e-12)
    np.testing.assert_allclose(table("float32")[name][0], expected, rtol=6e-7, atol=atol)


def test_relu_of_special_values():
    x = np.array([-np.inf, -1.0, -0.0, 0.0, 1.0, np.inf], np.float32)
    for value in jax.jit(lambda x: [relu(x, at_zero) for at_zero in (0.0, 1.0)])(x):
        np.testing.assert_array_equal(value, np.maximum(x, 0))


def test_nan_of_a_scalar_and_no_entries():
    with jax.debug_nans(False):
        every = jax.jit(lambda x: {name: (function(x), function(x[None][:0])) for name, function in FUNCTIONS.items()})
        values = every(jnp.array(jnp.nan))
    for name, (value, empty) in values.items():
        assert np.isnan(value), name
        assert value.shape == () and empty.shape == (0,)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_approximate_gelu_keeps_its_digits_in_the_left_tail(dtype):
    x = np.linspace(-5, 5, 101).astype(dtype)
    wide = x.astype(np.float64)
    u = math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)
    found = np.asarray(jax.jit(partial(gelu, approximate=True))(x))
    assert found.dtype == dtype
    # The exponential turns the error of its argument, 2 u, to a relative one; half precision is computed in float32.
    rtol = 2e-7 * (4 + 2 * abs(u)) + (0 if dtype == "float32" else float(jnp.finfo(dtype).eps) / 2)
    expected = wide * special.expit(2 * u)
    tiny = float(jnp.finfo(dtype).smallest_subnormal)
    assert (abs(found.astype(np.float64) - expected) <= rtol * abs(expected) + tiny).all()


def test_approximate_gelu_far_from_zero():
    x = np.float32([-1e30, -30, 30, 1e30])
    value, slopes = jax.jit(lambda x: (gelu(x, approximate=True), by_both_modes(partial(gelu, approximate=True), x)))(x)
    np.testing.assert_array_equal(value, np.maximum(x, 0))
    for slope in slopes:
        np.testing.assert_array_equal(slope, x > 0)


def test_gelu_float32_error_in_the_left_tail():
    """The errors are within the documented bounds."""
    x, far = np.linspace(-30, 0, 300_001)[:-1].astype(np.float32), np.float32([-5.61, -7.0, -1e2, -1e4, -1e30])
    value, of_far, (slope, _) = jax.jit(lambda x, far: (gelu(x), gelu(far), by_both_modes(gelu, x)))(x, far)
    wide = x.astype(np.float64)
    exact = wide * special.ndtr(wide)
    error = np.abs(np.asarray(value, np.float64) - exact)
    assert error.max() < 1e-6
    near = x > -1
    assert (error[near] / np.abs(exact[near])).max() < 6e-7
    np.testing.assert_array_equal(of_far, np.zeros(5))
    np.testing.assert_allclose(slope, special.ndtr(wide) + wide * stats.norm.pdf(wide), atol=5e-7)


def test_values_in_bfloat16():
    x = np.asarray(jnp.asarray(GRID, jnp.bfloat16))
    values = jax.jit(lambda x: {name: function(x) for name, function in FUNCTIONS.items()})(x)
    for name, value in values.items():
        assert value.dtype == jnp.bfloat16, name
        expected = ENTRYWISE[name][1](x.astype(np.float64))
        # Functions of jax.nn round more than once.
        np.testing.assert_allclose(np.asarray(value, np.float64), expected, rtol=2**-7, atol=2**-7, err_msg=name)


def test_half_precision_results_are_rounded_once():
    """Values and derivatives are rounded float32 results. In bfloat16 arithmetic, 1 + erf has an error of 0.003."""
    x = np.asarray(jnp.asarray(GRID, jnp.bfloat16), np.float64)
    slopes = {
        "gelu": special.ndtr(x) + x * stats.norm.pdf(x),
        "silu": special.expit(x) * (1 + x * special.expit(-x)),
        "softplus": special.expit(x),
    }
    rtol = 1.01 * float(jnp.finfo(jnp.bfloat16).eps) / 2
    for name, (value, (first, _)) in table("bfloat16").items():
        np.testing.assert_allclose(value.astype(np.float64), ENTRYWISE[name][1](x), rtol=rtol, atol=1e-6)
        np.testing.assert_allclose(first.astype(np.float64), slopes[name], rtol=rtol, atol=1e-6)


def test_relative_accuracy_in_the_left_tail():
    x = np.linspace(-80, 20, 1001).astype(np.float32)
    wide = x.astype(np.float64)
    by_sigmoid, by_softplus = jax.jit(lambda x: (sigmoid(x), softplus(x)))(x)
    np.testing.assert_allclose(by_sigmoid, special.expit(wide), rtol=3e-7)
    np.testing.assert_allclose(by_softplus, np.log1p(np.exp(wide)), rtol=5e-7)
    by_tanh = 0.5 * (1 + np.tanh(np.float32(-10)))  # this form has no correct digit here
    assert abs(by_tanh / special.expit(-20) - 1) > 0.9


# Kinks -------------------------------------------------------------------------------------------------------------


def test_relu_uses_the_given_subgradient_at_zero():
    x = np.float32([-3.0, -1e-30, -0.0, 0.0, 1e-30, 2.0])

    @partial(jax.vmap, in_axes=(0, None))
    def derivatives(x, at_zero):
        slope = jax.grad(lambda x: relu(x, at_zero))
        return slope(x), jax.jacfwd(lambda x: relu(x, at_zero))(x), jax.grad(slope)(x)

    of_all = jax.jit(lambda x: [derivatives(x, at_zero) for at_zero in (0.0, 0.5, 1.0)])
    for at_zero, (reverse, forward, second) in zip((0.0, 0.5, 1.0), of_all(x), strict=True):
        np.testing.assert_array_equal(reverse, [0, 0, at_zero, at_zero, 1, 1])
        np.testing.assert_array_equal(forward, reverse)
        np.testing.assert_array_equal(second, 0)


def test_relu_equals_jax_nn_relu_by_default():
    """The programs are equal; any other subgradient changes the derivative at zero only."""
    x = jax.ShapeDtypeStruct((3,), jnp.float32)
    assert str(jax.make_jaxpr(relu)(x)) == str(jax.make_jaxpr(jax.nn.relu)(x))
    away, expected = GRID != 0, slope_at(jax.nn.relu, jnp.asarray(GRID, jnp.float32))
    for name in ("relu", "relu right"):
        np.testing.assert_array_equal(table("float32")[name][1][0][away], expected[away])


def test_relu_rejects_invalid_subgradients():
    for at_zero in (-0.1, 1.5, math.nan):
        with pytest.raises(ValueError, match=rf"relu expected at_zero to be a number >= 0 and <= 1, got {at_zero}"):
            relu(jnp.ones(3), at_zero)


def test_derivative_at_zero():
    """At a kink it is the left derivative by default."""
    assert GRID[400] == 0
    slopes = {"leaky_relu": 0.01, "leaky_relu 0.3": 0.3, "elu": 1.0, "elu 0.4": 0.4, "selu": LAMBDA * ALPHA}
    for name, at_zero in slopes.items():
        for way in table("float64")[name][1]:
            assert way[400] == pytest.approx(at_zero, rel=1e-15)


def test_special_slopes():
    x = GRID.astype(np.float32)

    @jax.jit
    def every(x):
        slopes = [by_both_modes(f, x) for f in (partial(leaky_relu, negative_slope=0.0), relu)]
        return leaky_relu(x, 1.0), leaky_relu(x, 0.0), relu(x), selu(x), elu(x, ALPHA), slopes

    same, flat, of_relu, of_selu, of_elu, (flat_slopes, slopes) = every(x)
    np.testing.assert_array_equal(same, x)
    np.testing.assert_array_equal(flat, of_relu)
    np.testing.assert_array_equal(flat_slopes, slopes)
    np.testing.assert_allclose(of_selu, LAMBDA * of_elu, rtol=3e-7)


def test_learned_slope_and_alpha():
    """The derivative with respect to slope is min(0, x), and to alpha expm1(min(0, x))."""
    x = np.array([-2.0, -0.5, 0.0, 3.0], np.float32)

    @jax.jit
    def by_option(x, option):
        return jax.jacfwd(lambda o: leaky_relu(x, o))(option), jax.jacfwd(lambda o: elu(x, o))(option)

    by_slope, by_alpha = by_option(x, jnp.float32(0.2))
    np.testing.assert_array_equal(by_slope, np.minimum(x, 0))
    np.testing.assert_allclose(by_alpha, np.expm1(np.minimum(x, 0)), rtol=3e-7)


# Inverses ----------------------------------------------------------------------------------------------------------


def test_learned_options_keep_the_dtype():
    """A param is float32 where the arithmetic is in bfloat16."""
    x, a = jnp.array([-2.0, -0.25, 0.5, 3.0], jnp.bfloat16), np.float32(0.5)
    functions = leaky_relu, leaky_relu_inverse, elu

    @jax.jit
    def both(x, a):
        a_half = a.astype(x.dtype)
        return [(f(x, a), f(x, a_half)) for f in functions]

    for found, expected in both(x, a):
        assert found.dtype == x.dtype and (found == expected).all()


def test_softplus_inverse():
    y = np.array([1e-9, 0.1, math.log(2), 3.0, 30.0])
    with jax.enable_x64(True):
        x, inverse, slopes = jax.jit(
            lambda x, y: (softplus_inverse(softplus(x)), softplus_inverse(y), by_both_modes(softplus_inverse, y))
        )(GRID, y)
    np.testing.assert_allclose(x, GRID, rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(inverse, np.log(np.expm1(y)), rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(slopes, [-1 / np.expm1(-y)] * 2, rtol=1e-13)
    np.testing.assert_array_equal(softplus_inverse(jnp.array([0.0, 1e4])), [-np.inf, 1e4])
    empty, half = jax.eval_shape(
        lambda x, y: (softplus_inverse(x), softplus_inverse(y)), jnp.zeros((0,)), jnp.ones(2, jnp.bfloat16)
    )
    assert empty.shape == (0,) and half.dtype == jnp.bfloat16


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
    six = np.float32([1, 5, 3, 4, 2, 0])
    *found, threes, twos = jax.jit(lambda x, y: [*(maxout(x, n) for n in (1, 3, 12)), maxout(y, 3), maxout(y)])(x, six)
    for pieces, value in zip((1, 3, 12), found, strict=True):
        np.testing.assert_array_equal(value, x.reshape(2, 3, 12 // pieces, pieces).max(-1))
    np.testing.assert_array_equal(threes, [5, 4])
    np.testing.assert_array_equal(twos, [5, 4, 2])


def test_maxout_rejects_pieces_that_do_not_divide_the_features():
    with pytest.raises(ValueError, match=r"multiple of pieces = 3, got float32 \(4, 8\)"):
        maxout(jnp.ones((4, 8)), 3)
    assert maxout(jnp.ones((4, 8 * 3)), 3).shape == (4, 8)  # as the error advises
    for x, pieces in ((jnp.ones(4), 0), (jnp.ones(()), 1)):
        with pytest.raises(ValueError, match="maxout expected (pieces to be an integer >= 1|x with at least 1 axis)"):
            maxout(x, pieces)


# Moments -----------------------------------------------------------------------------------------------------------


def test_moments_are_exact():
    exact = [
        (relu, 1 / math.sqrt(2 * math.pi), 0.5 - 1 / (2 * math.pi)),
        (leaky_relu, 0.99 / math.sqrt(2 * math.pi), (1 + 1e-4) / 2 - 0.99**2 / (2 * math.pi)),
        (jnp.abs, math.sqrt(2 / math.pi), 1 - 2 / math.pi),
        (cosine, math.exp(-0.5), (1 + math.exp(-2)) / 2 - math.exp(-1)),
        (selu, 0.0, 1.0),
    ]
    rounded = [
        (gelu, 0.5 / math.sqrt(math.pi), 0.345644),
        (elu, 0.160521, 0.619179),
        (softplus, 0.806059, 0.271515),
        (tanh, 0.0, 0.394294),
        (sigmoid, 0.5, 0.043379),
    ]
    with jax.enable_x64(True):
        found = jax.jit(lambda: [activation_moments(function) for function, *_ in exact + rounded])()
    np.testing.assert_allclose(found[: len(exact)], [moments for _, *moments in exact], atol=1e-14)
    np.testing.assert_allclose(found[len(exact) :], [moments for _, *moments in rounded], atol=5.01e-7)


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
    """They compute the formula, print, and are pickled."""
    x = jnp.linspace(-8, 8, 17)
    net = Serial(*(getattr(jax.nn, name) for name in OF_JAX))
    names = [f"jax.nn.{name}".replace("hard_swish", "hard_silu") for name in OF_JAX]
    assert "".join(repr(net).split()) == f"Serial({','.join(names)},)"
    assert repr(pickle.loads(pickle.dumps(net))) == repr(net)
    values = jax.jit(lambda x: [getattr(jax.nn, name)(x) for name in OF_JAX])(x)
    for name, y in zip(OF_JAX, values, strict=True):
        np.testing.assert_allclose(y, OF_JAX[name](np.asarray(x, np.float64)), rtol=2e-6, atol=2e-7, err_msg=name)
    assert net.apply(net.init(jax.random.key(0), x), x).shape == x.shape


def test_no_layer_takes_the_name_of_an_activation(sentences):
    with pytest.raises(TypeError, match=r"got 'mish'; pass the function itself, activation=jax.nn.mish\."):
        MLP(3, activation="mish")
    assert repr(MLP(3, activation=jax.nn.mish)) == "MLP(3, activation=jax.nn.mish)"
    with pytest.raises(TypeError, match=r"a function of arrays, got 'relu'; pass the function of that name\."):
        Serial("relu")


# Gated linear units ------------------------------------------------------------------------------------------------


def test_gated_linear_units_by_the_formula():
    """GLU(a, b) = a sigma(b): the sigmoid gives that of jax.nn, another activation another member of the family."""
    x = np.random.default_rng(0).normal(size=(2, 3, 6)).astype(np.float32)
    a, b = np.split(x.astype(np.float64), 2, -1)
    members = {sigmoid: special.expit, silu: lambda b: b * special.expit(b), identity: lambda b: b}
    default, of_jax, *found = jax.jit(lambda x: [glu(x), jax.nn.glu(x), *(glu(x, f) for f in members)])(x)
    for value, formula in zip(found, members.values(), strict=True):
        np.testing.assert_allclose(value, a * formula(b), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(default, of_jax, rtol=1e-6)
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


# Derivatives, infinite inputs, rejected ones ------------------------------------------------------------------------


def test_infinite_inputs():
    limits = {
        relu: [0, np.inf],
        leaky_relu: [-np.inf, np.inf],
        elu: [-1, np.inf],
        sigmoid: [0, 1],
        tanh: [-1, 1],
        softplus: [0, np.inf],
        gelu: [np.nan, np.inf],  # inf * 0, as documented
        silu: [np.nan, np.inf],
    }
    with jax.debug_nans(False):
        values, slopes = jax.jit(lambda x: ([f(x) for f in limits], by_both_modes(softplus, x)))(
            np.float32([-np.inf, np.inf])
        )
    np.testing.assert_array_equal(values, list(limits.values()))
    np.testing.assert_array_equal(slopes, [[0, 1]] * 2)


def test_integers_are_rejected():
    for name in ("relu", "leaky_relu", "elu", "selu", "gelu", "sigmoid", "tanh", "silu", "softplus", "cosine"):
        with pytest.raises(
            TypeError, match=rf"{name} expected x to be a floating-point array, got int32 \(3,\); .*astype"
        ):
            FUNCTIONS[name](np.arange(3, dtype=np.int32))


def test_rules_of_derivatives():
    """They store one array, and get Python numbers where the user passes them."""
    slopes = {relu: 1, gelu: special.ndtr(1.5) + 1.5 * stats.norm.pdf(1.5)}
    sigma = special.expit(1.5)
    for function, slope in {**slopes, silu: sigma * (1 + 1.5 * (1 - sigma)), softplus: sigma}.items():
        if function is not relu:
            kept = jax.eval_shape(lambda x, f=function: jax.vjp(f, x)[1], jax.ShapeDtypeStruct((3,), jnp.float32))
            assert sum(leaf.ndim > 0 for leaf in jax.tree.leaves(kept)) == 1
        np.testing.assert_allclose(jax.grad(function)(1.5), slope, rtol=1e-6)
