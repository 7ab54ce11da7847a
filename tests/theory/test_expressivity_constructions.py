"""Constructions with their bounds: approximation, depth, parity, maxima, homogeneity."""

import itertools
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import for_each
from compiled import compiled

from jaxblocks import MLP, Conv, Dense, Maxout, Serial, relu, tanh
from jaxblocks.activations import maxout
from jaxblocks.inspection.structure import as_dense
from jaxblocks.theory.approximation import (
    approximate,
    approximate_by_ridges,
    interpolate,
    modulus_of_continuity,
    pieces_for,
)
from jaxblocks.theory.boolean import bit_rows, minterm_network, parity_chain, parity_cosine, parity_shallow
from jaxblocks.theory.depth import (
    pieces_bound,
    sawtooth,
    sawtooth_network,
    separation,
    separation_bound,
    triangle_network,
    triangle_wave,
)
from jaxblocks.theory.homogeneity import (
    balance,
    euler_terms,
    norm_differences,
    normalized_margin,
    rescale,
    unit_kernels,
)
from jaxblocks.theory.maxima import max_min_string, max_zero_x_y
from jaxblocks.theory.piecewise_linear import PiecewiseLinear, count_kinks, from_piecewise_linear, to_piecewise_linear


@pytest.fixture(autouse=True)
def _wide():
    with jax.enable_x64(True):
        yield


def forward(params, x, activation=lambda z: np.maximum(z, 0)):
    """Dense layers in series, in NumPy; params () are those of an activation."""
    for p in params:
        x = x @ np.asarray(p["kernel"]) + np.asarray(p["bias"]) if p else activation(x)
    return x


@compiled
def outputs(net, params, x):
    return net.apply(params, x)


def wiggle(x):
    return np.sin(6 * x) + 0.5 * np.cos(17 * x)


# ---- universal approximation ------------------------------------------------------------------------

GRID = np.linspace(0, 1, 20_001)


@pytest.mark.parametrize(
    ("g", "errors"),
    [
        (wiggle, {4: 0.970592, 8: 0.293063, 16: 0.0789440, 32: 0.0209319, 64: 0.00528566, 128: 0.00132097}),
        (np.sqrt, {4: 0.125, 16: 0.0625, 64: 0.03125}),
    ],
)
def test_approximation_error_is_within_the_modulus(g, errors):
    """The table of errors is below omega_g(1/N); for the square root, 1 / (4 sqrt N) against 1 / sqrt N."""
    for pieces, error in errors.items():
        _, params = approximate(g, pieces)
        assert params[0]["kernel"].shape == (1, pieces + 2)
        measured = abs(forward(params, GRID[:, None])[:, 0] - g(GRID)).max()
        np.testing.assert_allclose(measured, error, rtol=1e-4)
        assert measured <= modulus_of_continuity(g, 1 / pieces) + 1e-12


def test_approximating_layer_on_another_interval():
    """JAX gives the same values on another interval; beyond it the approximation is constant."""
    net, params = approximate(lambda x: jnp.sin(x), 64, interval=(-2, 3))
    x = np.linspace(-2, 3, 501)
    y = outputs(net, params, x[:, None])[:, 0]
    np.testing.assert_allclose(y, np.sin(x), rtol=0, atol=(5 / 64) ** 2 / 8)
    np.testing.assert_allclose(forward(params, np.array([[-9.0], [9.0]]))[:, 0], np.sin([-2, 3]), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("error", "pieces", "measured"), [(0.1, 2, 0.0666167), (0.01, 6, 0.00869052), (0.001, 19, 0.000916858)]
)
def test_pieces_for_a_bound_on_the_curvature(error, pieces, measured):  # fmt: skip
    """For exp, N = ceil(sqrt(e / (8 epsilon)))."""
    assert pieces_for(np.exp, error, curvature=math.e) == pieces
    _, params = approximate(np.exp, pieces)
    np.testing.assert_allclose(abs(forward(params, GRID[:, None])[:, 0] - np.exp(GRID)).max(), measured, rtol=1e-5)


def test_pieces_for_the_modulus_of_continuity():
    """Without a bound on the curvature the pieces suffice too; for sqrt their number is 1 / error^2."""
    assert pieces_for(np.sqrt, 0.1) == 100
    # For x it is 1 / error, which the grid contains.
    assert [pieces_for(lambda x: x, error) for error in (0.1, 0.2, 0.25, 0.5, 0.05, 0.01)] == [10, 5, 4, 2, 20, 100]
    pieces = pieces_for(wiggle, 0.2)
    _, params = approximate(wiggle, pieces)
    assert abs(forward(params, GRID[:, None])[:, 0] - wiggle(GRID)).max() <= 0.2


def test_modulus_of_continuity_by_all_pairs():
    """The modulus equals the maximum over all pairs of points of the grid."""
    x = np.linspace(0, 1, 201)
    for steps in (1, 7, 64, 200):
        near = abs(x[:, None] - x) <= steps / 200 + 1e-9
        pairs = abs(wiggle(x)[:, None] - wiggle(x))[near].max()
        assert modulus_of_continuity(wiggle, steps / 200, samples=200) == pairs


def test_modulus_falls_to_zero_for_continuous_functions():
    """This is the Heine-Cantor theorem; the modulus of a step function does not fall."""
    falling = [modulus_of_continuity(wiggle, delta) for delta in (0.1, 0.01, 0.001)]
    assert falling[0] > falling[1] > falling[2] and falling[2] < 0.02
    assert modulus_of_continuity(np.sqrt, np.inf) == 1.0
    with pytest.raises(ValueError, match="varies by 1 in a step of its grid"):
        pieces_for(lambda x: (x > 0.5) * 1.0, 0.1)


def test_polynomial_activations_do_not_approximate():
    """With x^2 every net is a quadratic; the best for abs is x^2 + 1/8, with error 1/8 and five alternations."""
    rng = np.random.default_rng(0)
    x = np.linspace(-1, 1, 201)
    params = ({"kernel": rng.normal(size=(1, 50)), "bias": rng.normal(size=50)}, (), {
        "kernel": rng.normal(size=(50, 1)), "bias": rng.normal(size=1)})  # fmt: skip
    y = forward(params, x[:, None], np.square)[:, 0]
    assert abs(np.diff(y, 3)).max() < 1e-12  # a quadratic
    at = np.array([-1, -0.5, 0, 0.5, 1])
    np.testing.assert_array_equal(abs(at) - at**2 - 1 / 8, [-1 / 8, 1 / 8, -1 / 8, 1 / 8, -1 / 8])
    for c in rng.normal(scale=0.1, size=(100, 3)):
        assert abs(abs(at) - (c + np.array([1 / 8, 0, 1])) @ [at**0, at, at**2]).max() >= 1 / 8
    _, params = approximate(abs, 64, interval=(-1, 1))
    assert abs(forward(params, x[:, None])[:, 0] - abs(x)).max() < 1e-3


def test_step_function_is_approximated_in_the_mean_only():
    """With steep ramps the L1 error falls, and the largest error remains 1/2."""
    x = np.linspace(-1, 1, 200_001)
    for steep in (10, 100, 1000):
        f = to_piecewise_linear(*from_piecewise_linear([-1 / steep, 1 / steep], [0, steep / 2, 0], 0.0))
        error = abs(f(x) - (x > 0))
        np.testing.assert_allclose(error.mean() * 2, 1 / (2 * steep), rtol=0.01)
        assert error.max() >= 0.5 - 1e-2


def test_any_labels_are_interpolated():
    """n + 1 units interpolate n random labels exactly."""
    rng = np.random.default_rng(0)
    x, y = np.sort(rng.uniform(size=40)), rng.integers(0, 2, 40)
    _, params = from_piecewise_linear(*interpolate(x, y))
    np.testing.assert_allclose(forward(params, x[:, None])[:, 0], y, rtol=0, atol=1e-12)
    assert params[0]["bias"].size == 41


def test_ridge_approximation():
    """In several variables, the error is at most that of the fit plus epsilon, at the points and between them."""
    g = lambda x: np.sin(x[:, 0]) * np.cos(x[:, 1])
    grid = np.stack(np.meshgrid(*2 * [np.linspace(-1, 1, 9)]), -1).reshape(-1, 2)
    directions = [[i, j] for i in (-1, 0, 1) for j in (-1, 0, 1)]
    for error in (0.1, 0.01):
        found = approximate_by_ridges(g, directions, grid, error)
        assert found.bound == found.fit_error + error
        assert abs(forward(found.params, grid)[:, 0] - g(grid)).max() <= found.bound
        x = np.random.default_rng(0).uniform(-1, 1, (500, 2))
        sums = np.exp(x @ np.transpose(directions)) @ found.weights
        assert 0.001 * error < abs(forward(found.params, x)[:, 0] - sums).max() <= error
        y = outputs(found.layer, found.params, x)[:, 0]
        np.testing.assert_allclose(y, forward(found.params, x)[:, 0], rtol=0, atol=1e-11)
    assert found.fit_error < 0.08


# ---- depth ---------------------------------------------------------------------------------------------


def test_sawtooth_and_its_network():
    """Values of the lecture; both forms are bitwise equal at dyadic points; 31 params and 10 rectifiers."""
    x = np.arange(-768, 769) / 256
    for levels in (0, 1, 5):
        net, params = sawtooth_network(levels)
        np.testing.assert_array_equal(forward(params, x[:, None])[:, 0], sawtooth(x, levels))
    np.testing.assert_array_equal(outputs(net, params, x[:, None])[:, 0], sawtooth(x, 5))
    assert sum(p.size for p in jax.tree.leaves(params)) == 31
    np.testing.assert_allclose(sawtooth(jnp.array([0.3, 2.0, -2.0, 3.0]), 5), [0.4, 2, 2, 34], rtol=0, atol=1e-12)
    np.testing.assert_allclose(sawtooth(jnp.array([0.3, -3.0]), 3), [-0.4, 8 * 3 - 14], rtol=0, atol=1e-12)


@pytest.mark.parametrize("levels", [0, 1, 5, 12])
def test_kinks_of_the_sawtooth(levels):
    """The 2^l - 1 kinks are the multiples of 2^(2 - l) in (-2, 2), zeros of earlier levels; the areas are 4 and 0."""
    f = to_piecewise_linear(*sawtooth_network(levels))
    expected = np.arange(-(2**levels) // 2 + 1, 2**levels // 2) * 2.0 ** (2 - levels) if levels else []
    np.testing.assert_array_equal(f.breakpoints, expected)
    assert len(f.breakpoints) == 2**levels - 1
    if levels:
        np.testing.assert_array_equal(abs(f.slopes), 2.0**levels)
        assert f.integral(-2, 2) == 0
        assert f.l1_distance(PiecewiseLinear(np.array([]), np.zeros(1), 0.0), -2, 2) == 4
        before = np.concatenate([[0.0], *(sawtooth(jnp.asarray(f.breakpoints), i) for i in range(levels))])
        assert (before.reshape(-1)[1:].reshape(levels, -1) == 0).any(0).all()


def test_random_nets_have_about_as_many_kinks_as_units():
    """A number of kinks exponential in the depth is attainable, not typical: 8 units per layer, 4 layers."""
    made = []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        weights = lambda size, units, rng=rng: rng.normal(size=(size, units)) * (2 / size) ** 0.5
        he = lambda size, units, rng=rng, w=weights: {"kernel": w(size, units), "bias": 0.3 * rng.normal(size=units)}
        params = (he(1, 8), (), he(8, 8), (), he(8, 8), (), he(8, 8), (), he(8, 1))
        made.append(count_kinks(MLP(8, 8, 8, 8, 1), params))
    assert 10 < np.mean(made) < 64 and max(made) < 100


def test_triangle_network():
    """2 L^2 + 4 layers and 3 L^2 + 6 nodes for L = 2; the net equals the wave."""
    net, params = triangle_network(2**2 + 2)
    assert len([p for p in params if p]) == 2 * 2**2 + 4
    assert sum(p["bias"].size for p in params if p) == 3 * 2**2 + 6
    x = np.arange(-64, 321) / 256
    wave = triangle_wave(6)
    np.testing.assert_array_equal(forward(params, x[:, None])[:, 0], wave(x))
    np.testing.assert_array_equal(wave(x), np.where((x > 0) & (x < 1), 1 - abs((x * 64) % 2 - 1), 0))
    f = to_piecewise_linear(net, params)
    np.testing.assert_array_equal(f.breakpoints, wave.breakpoints)
    np.testing.assert_array_equal(f.slopes, wave.slopes)


def test_bound_on_the_number_of_pieces():
    """The bounds are 151.70 < 2048 and 4096 < 262144 pieces; random nets satisfy them."""
    np.testing.assert_allclose(pieces_bound(3, 8), 151.70, rtol=0, atol=5e-3)
    assert pieces_bound(4, 16) == 4096 < 2 ** (4**2 + 2)
    assert pieces_bound(1000, 10**6) == np.inf  # 10^3301, above the range of float64
    for seed in range(3):
        size = lambda *shape, rng=np.random.default_rng(seed): rng.normal(size=shape)
        params = [{"kernel": size(i, o), "bias": size(o)} for i, o in ((1, 4), (4, 4), (4, 1))]
        net = MLP(4, 4, 1)
        assert count_kinks(net, (params[0], (), params[1], (), params[2])) + 1 <= pieces_bound(3, 9)


@pytest.mark.parametrize("levels", [3, 4])
def test_the_separation_bound_is_what_its_proof_gives(levels):
    """P crossings are removed from 2^k - 1 intervals so that as few as possible are every second one of a run."""
    n = 2**levels - 1
    for pieces in range(1, 6):
        runs = lambda removed: np.diff([-1, *removed, n]) - 1
        fewest = min(int((runs(removed) // 2).sum()) for removed in itertools.combinations(range(n), pieces))
        assert separation_bound(levels, pieces) == separation_bound(levels, float(pieces)) == fewest / 2**levels / 4
    assert separation_bound(levels, np.inf) == 0
    with pytest.raises(ValueError, match="expected pieces to be a number >= 0, got -1; "):
        separation_bound(levels, -1)


def test_distance_of_shallow_nets_from_the_triangle_wave():
    """The integral is at least the bound, which exceeds 1/32 for every L >= 2; for the constant 1/2 it is 1/4."""
    for layers in (2, 3, 4, 32):
        assert separation_bound(layers**2 + 2, pieces_bound(layers, 2**layers)) > 1 / 32
    assert separation(11, lambda x: 0 * x + 0.5) == 0.25
    rng = np.random.default_rng(0)
    for pieces in (1, 4, 16, 31):
        for _ in range(5):
            t = np.sort(rng.uniform(0, 1, pieces - 1))
            g = PiecewiseLinear(t, rng.normal(scale=20, size=pieces), rng.uniform())
            net = from_piecewise_linear(*g)
            assert separation(6, *net) >= separation_bound(6, pieces)
        # the best approximation: the first teeth of the wave, then 1/2
        teeth = triangle_wave(6)
        x = np.append(np.arange(pieces) / 64, (pieces - 0.5) / 64)
        g = interpolate(x, teeth(x))
        assert separation_bound(6, pieces) <= g.l1_distance(teeth, 0, 1) <= 0.25
    x = np.linspace(0, 1, 64 * 500 + 1)
    np.testing.assert_allclose(g.l1_distance(teeth, 0, 1), np.trapezoid(abs(g(x) - teeth(x)), x), rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match="levels to be an integer >= 1 and <= 20, got 21"):
        separation(21, lambda x: x)


# ---- Boolean functions -----------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 5, 12])
def test_shallow_parity_on_all_inputs(n):
    """n rectifiers, or one cosine unit, on all 2^n inputs; the rectifiers are bitwise exact."""
    rows = bit_rows(n)
    parity = rows.sum(1) % 2
    _, params = parity_shallow(n)
    assert params[0]["kernel"].shape == (n, n)
    np.testing.assert_array_equal(forward(params, rows)[:, 0], parity)
    _, params = parity_cosine(n)
    assert params[0]["kernel"].shape == (n, 1)
    np.testing.assert_allclose(forward(params, rows, np.cos)[:, 0], parity, rtol=0, atol=1e-14)


@pytest.mark.parametrize("n", [2, 8])
def test_parity_by_a_chain(n):
    """A chain with nine shared weights is exact on all inputs; its cell is the shallow net for n = 2."""
    net, params = parity_chain(n)
    np.testing.assert_array_equal(outputs(net, params, bit_rows(n))[:, 0], bit_rows(n).sum(1) % 2)
    assert sum(p.size for p in jax.tree.leaves(params)) == 9
    _, shallow = parity_shallow(2)
    chex.assert_trees_all_equal(params["xor"], shallow)


def test_minterm_networks():
    """All truth tables, with one unit per true row; parity has 2^(n - 1) of them."""
    assert list(itertools.product((0.0, 1.0), repeat=3)) == list(map(tuple, bit_rows(3)))
    for table in itertools.product((0, 1), repeat=4):
        _, params = minterm_network(table)
        np.testing.assert_array_equal(forward(params, bit_rows(2))[:, 0], table)
        assert params[0]["bias"].size == max(1, sum(table))
    table = np.random.default_rng(0).integers(0, 2, 2**9) > 0
    np.testing.assert_array_equal(forward(minterm_network(table)[1], bit_rows(9))[:, 0], table)
    assert minterm_network(bit_rows(8).sum(1) % 2)[1][0]["bias"].size == 2**7
    net, params = minterm_network([0, 1, 1, 0])
    np.testing.assert_array_equal(outputs(net, params, bit_rows(2))[:, 0], [0, 1, 1, 0])


def test_invalid_tables_are_rejected():
    with pytest.raises(ValueError, match="2\\^n entries, n >= 1, got shape \\(3,\\)"):
        minterm_network([0, 1, 1])
    with pytest.raises(ValueError, match="0 or 1, got other values"):
        minterm_network([0.2, 1])
    minterm_network(np.array([0.2, 1]) > 0.5)
    with pytest.raises(ValueError, match="n to be an integer >= 2, got 1"):
        parity_chain(1)


# ---- maxima ------------------------------------------------------------------------------------------------


def test_max_of_zero_x_and_y():
    """Two hidden layers compute it up to rounding; on the line x = 0 there is a kink at y = -1 and none at y = 1."""
    x = np.random.default_rng(0).normal(size=(1000, 2))
    net, params = max_zero_x_y()
    np.testing.assert_allclose(outputs(net, params, x)[:, 0], np.maximum(0, x.max(1)), rtol=0, atol=1e-15)
    slope = jax.jit(jax.grad(lambda p: net.apply(params, p)[0]))
    jumps = {y: np.subtract(slope(np.array([1e-3, y])), slope(np.array([-1e-3, y]))) for y in (-1.0, 1.0)}
    np.testing.assert_array_equal(jumps[-1.0], [1, 0])
    np.testing.assert_array_equal(jumps[1.0], [0, 0])


def test_max_min_strings():
    """A net of width d + 1 computes random strings within the radius, but not beyond."""
    rng = np.random.default_rng(0)
    for d, n in ((1, 1), (2, 6), (4, 9)):
        w, b = rng.normal(size=(d, n + 1)), rng.normal(size=n + 1)
        words = rng.choice(["max", "min"], n)
        net, params = max_min_string(w, b, words, radius=3)
        x = rng.uniform(-3, 3, (500, d))
        y = x @ w[:, 0] + b[0]
        for i, word in enumerate(words, 1):
            y = (np.maximum if word == "max" else np.minimum)(y, x @ w[:, i] + b[i])
        np.testing.assert_allclose(forward(params, x)[:, 0], y, rtol=0, atol=1e-12)
        assert {p["bias"].size for p in params[:-1] if p} == {d + 1}
    np.testing.assert_allclose(outputs(net, params, x)[:, 0], y, rtol=0, atol=1e-12)


def test_invalid_strings_are_rejected():
    with pytest.raises(ValueError, match="n >= 1 operations, got shapes \\(1, 2\\), \\(2,\\) and 2 operations"):
        max_min_string([[1, 2]], [0, 0], ["max", "min"], radius=1)
    with pytest.raises(ValueError, match='"max" and "min"'):
        max_min_string([[1, 2]], [0, 0], ["sum"], radius=1)
    for radius in (-1, np.inf):
        with pytest.raises(ValueError, match=f"a finite radius >= 0, got {radius}"):
            max_min_string([[1, 2]], [0, 0], ["max"], radius=radius)
    with pytest.raises(TypeError, match="kernel to be an array of real numbers, got a list"):
        max_min_string([[1], [2, 3]], [0, 0], ["max"], radius=1)


# ---- homogeneity ---------------------------------------------------------------------------------------------


def net_and_params(bias=True):
    rng = np.random.default_rng(0)
    widths = (3, 5, 4, 2)
    params = []
    for size, units in itertools.pairwise(widths):
        params += [{"kernel": rng.normal(size=(size, units))}, ()]
        if bias:
            params[-2]["bias"] = rng.normal(size=units)
    dense = [Dense(units, use_bias=bias) for units in widths[1:]]
    return Serial(dense[0], relu, dense[1], relu, dense[2]), tuple(params[:-1]), rng.normal(size=(20, 3))


def test_rescaling_keeps_the_function():
    """Bitwise for powers of two, up to rounding for any positive factor per unit; not for tanh."""
    _, params, x = net_and_params()
    y = forward(params, x)
    np.testing.assert_array_equal(forward(rescale(params, [4.0, 0.5]), x), y)
    factors = [np.array([0.3, 1.7, 5.0, 0.1, 2.0]), 3.3]
    np.testing.assert_allclose(forward(jax.jit(rescale)(params, factors), x), y, rtol=1e-11)
    leaky = lambda z: np.where(z > 0, z, 0.1 * z)
    np.testing.assert_allclose(forward(rescale(params, factors), x, leaky), forward(params, x, leaky), rtol=1e-11)
    assert abs(forward(rescale(params, factors), x, np.tanh) - forward(params, x, np.tanh)).max() > 0.1
    named = dict(zip("abcde", params, strict=True))
    assert list(rescale(named, [1.0, 1.0])) == list("abcde")


def test_invalid_factors_are_rejected(sentences):
    """Negative factors, too few, a wrong shape, other layers; a factor -1 changes the function."""
    _, params, x = net_and_params()
    with pytest.raises(ValueError, match="a smallest one of -1.0 for hidden layer 1; rectifiers are homogeneous for"):
        rescale(params, [1.0, -1.0])
    with jax.debug_nans(False):
        changed = jax.jit(rescale)(params, [1.0, -1.0])
    assert abs(forward(changed, x) - forward(params, x)).max() > 0.1
    with pytest.raises(ValueError, match="each of the 2 hidden layers, got 2.0; pass"):
        rescale(params, 2.0)
    with pytest.raises(ValueError, match=r"each of the 2 hidden layers, got float.. \(\); pass"):
        rescale(params, jnp.array(2.0))
    with pytest.raises(ValueError, match="each of the 2 hidden layers, got 1"):
        rescale(params, [1.0])
    with pytest.raises(ValueError, match="5 for the units of hidden layer 0, got factors of shape \\(2,\\)"):
        rescale(params, [np.ones(2), 1.0])
    for other in ((params[0], {"scale": jnp.ones(2)}), params[0], jnp.ones(2), ((params[0],), params[2])):
        with pytest.raises(ValueError, match="params of dense layers in series, as MLP"):
            rescale(other, [1.0])


def test_params_of_integers_are_rejected(sentences):
    """In place of factors that are cut to integers, and of an error of JAX."""
    params = ({"kernel": np.array([[2, -3]])}, (), {"kernel": np.array([[1], [1]])})
    for call in (unit_kernels, balance, norm_differences, lambda params: rescale(params, [1.5])):
        with pytest.raises(TypeError, match=r"params to hold floating-point arrays, got int32 \(1, 2\); convert"):
            call(jax.tree.map(lambda leaf: leaf.astype(np.int32), params))
        call(jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), params))


def test_layers_that_do_not_fit_are_rejected(sentences):
    """They would broadcast, or give the numbers of no net."""
    dense = lambda *shape, **bias: {"kernel": jnp.ones(shape), **bias}
    calls = unit_kernels, balance, norm_differences, lambda params: rescale(params, jnp.array([1.5]))
    for call in (*calls, lambda params: normalized_margin(jnp.ones(3), params)):
        with pytest.raises(ValueError, match=r"or with maxout a divisor, got \(2, 3\) after \(2, 3\); pass the params"):
            call((dense(2, 3), dense(2, 3)))
        with pytest.raises(ValueError, match=r"a bias of shape \(3,\) beside a kernel \(2, 3\), got float.. \(4,\);"):
            call((dense(2, 3, bias=jnp.ones(4)), dense(3, 1)))
        with pytest.raises(ValueError, match=r"kernels of shape \(in, out\), got float.. \(1, 2, 3\); pass"):
            call((dense(1, 2, 3), dense(3, 1)))
        call((dense(2, 3), dense(3, 1)))


def test_maxout_is_homogeneous():
    """Its nets have fewer inputs of a layer than units before it."""
    net = Serial(Dense(6), lambda x: maxout(x, 3), Maxout(2, pieces=2), Dense(1))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(5, 3)), jnp.float32)
    params = net.init(jax.random.key(0), x)
    terms = euler_terms(net, params, x)
    np.testing.assert_allclose([terms.inputs, *terms.kernels], [terms.output] * 4, rtol=1e-5)
    kernels = [np.asarray(each["kernel"], np.float64) for each in params if each]
    squares = [np.sum(kernel**2) for kernel in kernels]
    np.testing.assert_allclose(norm_differences(params), [squares[0] - squares[1], squares[1] - squares[2]], rtol=1e-5)
    np.testing.assert_array_equal(net.apply(rescale(params, [4.0, 0.5]), x), net.apply(params, x))
    balanced = balance(params)
    np.testing.assert_allclose(net.apply(balanced, x), net.apply(params, x), rtol=1e-5)
    norms = [float(jnp.linalg.norm(each["kernel"])) for each in balanced if each]
    np.testing.assert_allclose(norms, np.prod(squares) ** (1 / 6), rtol=1e-5)
    with pytest.raises(ValueError, match="one factor for all units of hidden layer 0, which maxout joins, got"):
        rescale(params, [np.ones(6), 1.0])
    with pytest.raises(
        ValueError, match="unit_kernels expected a net whose units have factors of their own, got one with"
    ):
        unit_kernels(params)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_norm_differences_of_half_precision(dtype):
    """The squares may leave the range of the dtype, the differences do not."""
    params = (
        {"kernel": jnp.full((2, 2), 200.0, dtype)},
        (),
        {"kernel": jnp.full((2, 2), 200.0, dtype).at[0, 0].set(208)},
    )
    found = norm_differences(params)
    assert found.dtype == dtype
    np.testing.assert_array_equal(np.float64(found), [np.float64(jnp.asarray(200.0**2 - 208.0**2, dtype))])
    mixed = params[0] | {"kernel": params[0]["kernel"].astype(jnp.float32)}, *params[1:]
    with jax.numpy_dtype_promotion("strict"):
        np.testing.assert_array_equal(norm_differences(mixed), [200.0**2 - 208.0**2])
    without_hidden = norm_differences(params[:1])
    assert (without_hidden.shape, without_hidden.dtype) == ((0,), dtype)


def test_unit_kernels():
    """The weights of each unit get norm 1, those of a dead unit remain 0; for one input the weights are signs."""
    _, params, x = net_and_params()
    same = unit_kernels(params)
    np.testing.assert_allclose(forward(same, x), forward(params, x), rtol=1e-11)
    for p in (same[0], same[2]):
        np.testing.assert_allclose(np.linalg.norm(p["kernel"], axis=0), 1)
    dead = (
        {"kernel": jnp.array([[0.0, -3.0]]), "bias": jnp.ones(2)},
        (),
        {"kernel": jnp.ones((2, 1)), "bias": jnp.ones(1)},
    )
    same = unit_kernels(dead)
    np.testing.assert_array_equal(same[0]["kernel"], [[0, -1]])
    np.testing.assert_allclose(forward(same, x[:, :1]), forward(dead, x[:, :1]), rtol=1e-12)  # fmt: skip


def test_balance_equalizes_norms():
    """All kernels get the geometric mean of the norms, and the sum of squares decreases."""
    _, params, x = net_and_params()
    params = rescale(params, [10.0, 0.2])
    same = balance(params)
    np.testing.assert_allclose(forward(same, x), forward(params, x), rtol=1e-11)
    norms = lambda params: [np.linalg.norm(p["kernel"]) for p in params if p]
    np.testing.assert_allclose(norms(same), np.prod(norms(params)) ** (1 / 3))
    assert np.square(norms(same)).sum() < np.square(norms(params)).sum()
    with pytest.raises(ValueError, match="kernels that are not zero"):
        balance(({"kernel": jnp.zeros((1, 1))}, (), {"kernel": jnp.ones((1, 1))}))


@pytest.mark.parametrize("bias", [False, True])
def test_eulers_identities(bias):
    """The terms for the inputs and for each kernel equal the output to 1e-12; not for tanh."""
    net, params, x = net_and_params(bias)
    terms_of = lambda net, params, x: jax.jit(lambda p, x: euler_terms(net, p, x))(params, x)
    terms = terms_of(net, params, x)
    np.testing.assert_allclose([terms.inputs, *terms.kernels], terms.output, rtol=1e-12)
    if not bias:
        np.testing.assert_allclose(outputs(net, params, 4 * x), 4 * outputs(net, params, x))
        dense = [Dense(units, use_bias=False) for units in (5, 4, 2)]
        terms = terms_of(Serial(dense[0], tanh, dense[1], tanh, dense[2]), params, x)
        assert abs(terms.inputs - terms.output) > 1e-2


def test_gradient_flow_conserves_differences_of_norms():
    """Their drift under gradient descent over equal time is proportional to the step size, also with biases."""
    net, params, x = net_and_params()
    x = jnp.asarray(x)
    loss = lambda params: jnp.mean((net.apply(params, x) - jnp.sin(x[:, :2])) ** 2)

    @jax.jit
    def drift(size, steps):
        step = lambda _, p: jax.tree.map(lambda p, g: p - size * g, p, jax.grad(loss)(p))
        return norm_differences(jax.lax.fori_loop(0, steps, step, params)) - norm_differences(params)

    slow, fast = (float(abs(drift(size, round(0.1 / size))).max()) for size in (1e-4, 1e-3))
    assert 7 < fast / slow < 14 and fast < 0.1


def test_normalized_margin():
    """Scaling all weights scales margins but not the quotient; moving norms between layers changes neither."""
    net, params, x = net_and_params(bias=False)
    margin = lambda p: outputs(net, p, x) @ np.array([1.0, -1.0])
    larger = jax.tree.map(lambda p: 3.0 * p, params)
    np.testing.assert_allclose(margin(larger), 27 * margin(params), rtol=1e-12)
    np.testing.assert_allclose(normalized_margin(margin(larger), larger), normalized_margin(margin(params), params))
    with pytest.raises(ValueError, match="without biases"):
        normalized_margin(margin(params), net_and_params()[1])


# ---- convolution as a dense layer ------------------------------------------------------------------------------


def test_convolution_as_a_dense_layer():
    """A Dense with its matrix is equal; the matrix is banded with constant diagonals: 3 weights for 24 entries."""
    layer = Conv(1, 3)
    params = jax.tree.map(lambda p: p.astype(jnp.float64), layer.init(jax.random.key(0), jnp.zeros((10, 1))))
    matrix = np.asarray(as_dense(layer, (10, 1), params))
    x = np.random.default_rng(0).normal(size=(10, 1))
    dense = {"kernel": jnp.asarray(matrix.T), "bias": jnp.tile(params["bias"], 8)}
    y = Dense(8).apply(dense, jnp.asarray(x[:, 0]))
    np.testing.assert_allclose(y, layer.apply(params, jnp.asarray(x))[:, 0], rtol=0, atol=1e-12)
    weights = np.asarray(params["kernel"]).ravel()
    toeplitz = [[weights[j - i] if 0 <= j - i < 3 else 0 for j in range(10)] for i in range(8)]
    np.testing.assert_allclose(matrix, toeplitz, rtol=0, atol=1e-15)
    # equivariant, not invariant as the lecture states: shifting the input shifts the output
    shifted = layer.apply(params, jnp.roll(jnp.asarray(x), 1, axis=0))
    np.testing.assert_array_equal(shifted[1:], layer.apply(params, jnp.asarray(x))[:-1])


# ---- errors ---------------------------------------------------------------------------------------------------


ERRORS = [
    (lambda: approximate(np.sin, 3, interval=(1, 0)), "finite a < b, got \\(1, 0\\)"),
    (lambda: approximate(lambda x: 1.0, 3), "shape \\(4,\\) here, got float64 \\(\\)"),
    (lambda: modulus_of_continuity(np.sin, 1e-9), "at least a step of its grid, 0.0001, got 1e-09"),
    (lambda: modulus_of_continuity(np.sin, 0), "a distance delta > 0, got 0"),
    (lambda: approximate(np.log, 4), "g to be finite on the whole interval, got -inf at 0.0; take an interval"),
    (lambda: approximate(np.sin, 4, interval=3), "an interval \\(a, b\\), two numbers, got 3"),
    (lambda: pieces_for(np.sin, 0.1, curvature=-1), "finite curvature >= 0, got -1"),
    (lambda: interpolate([0, np.nan], [1, 2]), "finite points, got nan at index 1"),
    (lambda: interpolate([0, 1], [np.nan, 2]), "finite values, got nan at index 0"),
    (lambda: pieces_for(np.sin, 0), "error > 0, got 0"),
    (lambda: interpolate([0, 0], [1, 2]), "increasing points"),
    (lambda: interpolate([0, 1], [1]), "a value for each point"),
    (lambda: approximate_by_ridges(np.sum, [[1]], [[1, 2]], 0.1), "got shapes \\(1, 1\\) and \\(1, 2\\)"),
    (lambda: approximate_by_ridges(lambda x: x[:, 0], [[1]], [[1], [2]], 0), "error > 0"),
    (lambda: approximate_by_ridges(lambda x: x[:, 0], [[1]], np.ones((0, 1)), 1), "got shapes .* and \\(0, 1\\)"),
    (lambda: approximate_by_ridges(lambda x: x[:, 0], [[999]], [[1], [2]], 1), "exponentials, got .* to 2e\\+03"),
    (lambda: approximate(np.sin, 3, param_dtype=jnp.int32), "a floating-point dtype, got int32; pass one such"),
    (lambda: approximate_by_ridges(lambda x: x[:, 0], [[0]], [[1], [2]], 1), "a direction other than 0"),
]


@pytest.mark.usefixtures("sentences")
@for_each({str(i): case for i, case in enumerate(ERRORS)})
def test_errors(case):
    call, words = case
    with pytest.raises(ValueError, match=words):
        call()


def test_exponentials_form_an_algebra_that_separates_points():
    """Products are exponentials, and exponentials of distinct directions are linearly independent."""
    rng = np.random.default_rng(0)
    x, nu = rng.normal(size=(50, 2)), rng.normal(size=(6, 2))
    np.testing.assert_allclose(np.exp(x @ nu[0]) * np.exp(x @ nu[1]), np.exp(x @ (nu[0] + nu[1])))
    assert np.linalg.matrix_rank(np.exp(x @ nu.T)) == 6
    even = np.linspace(-1, 1, 99)[:, None] ** (2 * np.arange(6))  # does not separate x and -x: cannot fit x
    fitted = even @ np.linalg.lstsq(even, np.linspace(-1, 1, 99), rcond=None)[0]
    assert abs(fitted - np.linspace(-1, 1, 99)).max() >= 1 - 1e-12
