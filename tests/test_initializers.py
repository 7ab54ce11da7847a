"""Initializers and their effect on deep nets: variances of params, variances of layers, symmetry."""

import inspect
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zoo import Center, Noise

from jaxblocks import (
    Attention,
    BatchNorm,
    Conv,
    ConvTranspose,
    Dense,
    DepthwiseConv,
    Embedding,
    Parallel,
    Repeat,
    Residual,
    Serial,
    Wire,
    gelu,
    initializers,
    layers,
    leaky_relu,
    relu,
    selu,
    tanh,
    variance_report,
)
from jaxblocks.layers.graph import GAT, GCN, complete_graph

# ---- draws


@pytest.mark.parametrize(
    ("name", "variance"),
    [
        ("lecun_normal", 1 / 300),
        ("lecun_uniform", 1 / 300),
        ("he_normal", 2 / 300),
        ("he_uniform", 2 / 300),
        ("glorot_normal", 2 / 800),
        ("glorot_uniform", 2 / 800),
    ],
)
def test_variances_equal_the_table(name, variance):
    """1 / n, 2 / n, 2 / (n + m) for n = 300 inputs and m = 500 outputs; mean zero; truncated as in the table."""
    w = np.asarray(getattr(initializers, name)()(jax.random.key(0), (300, 500), jnp.float32), np.float64)
    assert w.var() == pytest.approx(variance, rel=0.02)
    assert abs(w.mean()) < 4 * np.sqrt(variance / w.size)
    widest = np.sqrt(3) if name.endswith("uniform") else 2 / 0.87962566103423978
    assert abs(w).max() <= widest * np.sqrt(variance) * (1 + 1e-6)
    alias = name.replace("he", "kaiming").replace("glorot", "xavier")
    assert alias == name or repr(getattr(initializers, alias)()) == repr(getattr(initializers, name)())


def test_fan_in_of_a_convolution():
    w = initializers.lecun_normal()(jax.random.key(0), (3, 3, 20, 300), jnp.float32)
    assert float(w.var()) == pytest.approx(1 / 180, rel=0.02)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.complex64])
def test_kernels_with_a_window_are_drawn_as_matrices_and_have_the_numbers_of_jax(dtype):
    """Half of the time of the first `init` would be the compilation of positions along four axes."""
    shape, ways = (3, 2, 4, 5), [("lecun_normal", ()), ("he_uniform", ())]
    ways += [("variance_scaling", (2.0, mode, "normal")) for mode in ("fan_in", "fan_out")]
    ways += [(name, ()) for name in ("normal", "truncated_normal", "uniform") if dtype != jnp.complex64]
    for name, args in ways:
        ours, theirs = (getattr(module, name)(*args) for module in (initializers, jax.nn.initializers))
        draw = lambda key, ours=ours: ours(key, shape, dtype)
        np.testing.assert_array_equal(draw(jax.random.key(3)), theirs(jax.random.key(3), shape, dtype))
        *_, last = jax.make_jaxpr(draw)(jax.random.key(3)).eqns
        assert last.primitive.name == "reshape" and last.invars[0].aval.shape in ((24, 5), (4, 30))
    np.testing.assert_array_equal(*(one.normal()(jax.random.key(3), 5) for one in (initializers, jax.nn.initializers)))
    half = initializers.normal(1.0, jnp.bfloat16)  # the dtype of a maker is that of calls without one
    assert half(jax.random.key(3), shape).dtype == half(jax.random.key(3), (4, 5)).dtype == jnp.bfloat16
    for name, args, options in (
        ("glorot_normal", (), {}),
        ("variance_scaling", (2.0, "fan_avg", "uniform"), {}),
        ("lecun_normal", (), dict(in_axis=(0, 1))),
    ):
        both = [getattr(module, name)(*args, **options) for module in (initializers, jax.nn.initializers)]
        np.testing.assert_array_equal(*(one(jax.random.key(3), shape, dtype) for one in both))


def test_a_sharding_of_a_kernel_with_a_window_is_kept():
    """By position and by name, as those of JAX take it."""
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Explicit,))
    spec = jax.P(None, None, None, "d")
    with jax.set_mesh(mesh):
        for options, named in (((jnp.float32, spec), {}), ((), {"out_sharding": spec})):
            kernel = initializers.normal()(jax.random.key(0), (3, 3, 4, 6), *options, **named)
            assert jax.typeof(kernel).sharding.spec == spec


def test_orthogonal_and_identity():
    q = initializers.orthogonal(2.0)(jax.random.key(0), (5, 5), jnp.float32)
    np.testing.assert_allclose(q @ q.T, 4 * np.eye(5), atol=1e-5)
    net = Dense(3, kernel_init=initializers.identity())
    x = jnp.array([[1.0, -2.0, 3.0]])
    np.testing.assert_array_equal(net.apply(net.init(jax.random.key(0), x), x), x)
    np.testing.assert_array_equal(initializers.identity(3)(jax.random.key(0), (2, 3), jnp.bfloat16), 3 * np.eye(2, 3))
    with pytest.raises(ValueError, match=r"a matrix, \(in, out\), got \(3, 2, 2\); .* use delta_orthogonal\(\)"):
        initializers.identity()(jax.random.key(0), (3, 2, 2))
    assert initializers.delta_orthogonal()(jax.random.key(0), (3, 2, 2)).shape == (3, 2, 2)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_orthogonal_kernels_in_half_precision(dtype):
    """No library decomposes a matrix in half precision: they are drawn in float32 and rounded."""
    draws = (initializers.orthogonal(), (4, 6)), (initializers.delta_orthogonal(), (3, 4, 6))
    for draw, shape in draws:
        np.testing.assert_array_equal(
            draw(jax.random.key(0), shape, dtype), draw(jax.random.key(0), shape, jnp.float32).astype(dtype)
        )
    assert initializers.orthogonal(dtype=dtype)(jax.random.key(0), (4, 6)).dtype == dtype
    params = layers.LSTM(3, param_dtype=dtype).init(jax.random.key(0), jnp.zeros((2, 4), dtype))
    assert params["recurrent_kernel"].dtype == dtype
    u = np.asarray(params["recurrent_kernel"], np.float32)[:, :3]
    np.testing.assert_allclose(u @ u.T, np.eye(3), atol=0.02)


@pytest.mark.parametrize(
    ("activation", "gain"),
    [
        (relu, 2),
        (partial(leaky_relu, negative_slope=0.2), 2),
        (partial(partial(gelu), approximate=True), 2),
        (jnp.sin, 1),
    ],
)
def test_he_for_rectifiers_and_lecun_otherwise(activation, gain):
    key = jax.random.key(0)
    got = initializers.for_activation(activation)(key, (4, 5), jnp.float32)
    expected = initializers.he_normal() if gain == 2 else initializers.lecun_normal()
    np.testing.assert_array_equal(got, expected(jax.random.clone(key), (4, 5), jnp.float32))


def test_the_exact_gain_is_one_over_the_second_moment():
    """He's for ReLU and LeCun's for SELU, also under jit; the dtype is kept."""
    draw = lambda initialize, dtype=jnp.float32: initialize(jax.random.key(0), (4, 5), dtype)
    exact = [initializers.for_activation(activation, exact=True) for activation in (relu, gelu, selu)]
    lecun, *found, half = jax.jit(
        lambda: [draw(each) for each in (initializers.lecun_normal(), *exact)] + [draw(exact[0], jnp.bfloat16)]
    )()
    mean, variance = 0.5 / np.sqrt(np.pi), 0.345644  # of GELU
    for w, gain in zip(found, (np.sqrt(2), 1 / np.sqrt(variance + mean**2), 1), strict=True):
        np.testing.assert_allclose(w / lecun, np.full((4, 5), gain), rtol=1e-5)
    assert half.dtype == jnp.bfloat16
    np.testing.assert_allclose(draw(exact[0]), found[0], rtol=1e-5)


@pytest.mark.usefixtures("sentences")
@pytest.mark.parametrize("activation", [jnp.zeros_like, lambda x: jnp.exp(x**2)])
def test_activations_without_a_second_moment_have_no_exact_gain(activation):
    draw = initializers.for_activation(activation, exact=True)
    with pytest.raises(ValueError, match=r"finite and not all 0, got the mean square (0.0|inf|nan); leave exact out"):
        draw(jax.random.key(0), (2, 2), jnp.float32)
    assert initializers.for_activation(activation)(jax.random.key(0), (2, 2), jnp.float32).shape == (2, 2)


@pytest.mark.usefixtures("sentences")
def test_an_activation_must_be_a_function():
    with pytest.raises(TypeError, match=r"expected activation to be a function, got .*; pass the function itself"):
        initializers.for_activation("relu")


# ---- params of layers


def test_default_kernels_of_layers():
    """LeCun for kernels, orthogonal for recurrent ones; rows of an embedding have norm one."""
    default = lambda build, option: repr(inspect.signature(build).parameters[option].default)
    cells = layers.RNNCell, layers.GRUCell, layers.LSTMCell
    for build in (Dense, Conv, DepthwiseConv, ConvTranspose, Attention, GCN, GAT, layers.Maxout, *cells):
        assert default(build, "kernel_init") == "lecun_normal()", build
    for build in cells:
        assert default(build, "recurrent_kernel_init") == "orthogonal()", build
    assert default(Embedding, "embedding_init") == "variance_scaling(1.0, 'fan_out', 'normal')"
    assert default(layers.LearnedPositions, "embedding_init") == "normal(0.02)"


ROWS = jnp.ones((3, 6))
GRAPH = complete_graph(ROWS)


@pytest.mark.parametrize(
    ("build", "x"),
    [
        (Dense, ROWS),
        (partial(Conv, kernel_size=2), ROWS),
        (layers.Maxout, ROWS),
        (layers.GRUCell, ROWS),
        (Attention, ROWS),
        (GCN, GRAPH),
        (partial(GAT, heads=2), GRAPH),
    ],
    ids=["Dense", "Conv", "Maxout", "GRUCell", "Attention", "GCN", "GAT"],
)
def test_params_are_drawn_with_their_own_keys(build, x):
    keys = []

    def record(key, shape, dtype):
        keys.append(tuple(np.asarray(jax.random.key_data(key)).tolist()))
        return jnp.zeros(shape, dtype)

    options = [name for name in inspect.signature(build).parameters if name.endswith("_init")]
    build(3, **dict.fromkeys(options, record)).init(jax.random.key(0), x)
    assert len(set(keys)) == len(keys) > 1


# ---- variances of layers

DATA = np.random.default_rng(1).normal(size=(128, 128)).astype(np.float32)


def tower(activation, kernel_init, depth):
    """The report of ``depth`` layers, whose weights are drawn by one program."""
    keys = jax.random.split(jax.random.key(0), depth)
    kernels = np.asarray(jax.vmap(lambda key: kernel_init(key, (128, 128), jnp.float32))(keys))
    params = jax.device_put(tuple(p for kernel in kernels for p in ({"kernel": kernel}, ())))
    return variance_report(Serial(*[Dense(128, use_bias=False), activation] * depth), DATA, params=params)


def behind(report, kind):
    return [row for row in report.rows if row.kind == kind]


def test_he_keeps_the_second_moment_through_ten_relus_and_lecun_halves_it():
    """He keeps it up to random fluctuations; with LeCun and the same key it is 2^-k times that at depth k."""
    he, lecun = (tower(relu, scheme(), 10) for scheme in (initializers.he_normal, initializers.lecun_normal))
    kept, halved = (np.array([row.second_moment for row in behind(report, "relu")]) for report in (he, lecun))
    assert len(kept) == 10
    assert 0.3 < kept.min()
    assert kept.max() < 3
    np.testing.assert_allclose(halved / kept, 0.5 ** np.arange(1, 11), rtol=1e-3)


def test_the_exact_gain_keeps_tanh_near_one():
    """The variance of pre-activations tends to 1; with LeCun's it decreases at each layer."""
    exact = tower(tanh, initializers.for_activation(tanh, exact=True), 10)
    np.testing.assert_allclose([row.variance for row in behind(exact, "Dense")[5:]], 1, rtol=0.05)


def test_active_units_after_a_normalized_input():
    """One half is active only for median 0; for a standardized exponential variable it is a fraction exp(-1)."""
    x = np.random.default_rng(2).exponential(size=(400, 400)).astype(np.float32) - 1
    report = variance_report(Serial(lambda x: x, relu), x)
    assert report.rows[0].variance == pytest.approx(1, abs=0.02)
    assert report["1"].positive == pytest.approx(np.exp(-1), abs=0.01)
    assert variance_report(Serial(relu), DATA)["0"].positive == pytest.approx(0.5, abs=0.01)


# ---- the report


def test_rows_are_the_moments_of_each_layer():
    net = Serial(block=Residual(Dense(6), relu), out=Dense(2))
    x = np.random.default_rng(0).normal(size=(10, 6)).astype(np.float32)
    params = net.init(jax.random.key(5), x)
    report = variance_report(net, jnp.asarray(x), key=jax.random.key(5))
    hidden = x @ np.asarray(params["block"][0]["kernel"])
    block = x + np.maximum(hidden, 0)
    out = block @ np.asarray(params["out"]["kernel"])
    expected = {"": x, "block/0": hidden, "block/1": np.maximum(hidden, 0), "block": block, "out": out}
    assert [row.kind for row in report.rows] == ["input", "Dense", "relu", "Residual", "Dense"]
    for row, (path, y) in zip(report.rows, expected.items(), strict=True):
        assert report[path] is row
        np.testing.assert_allclose(
            (row.mean, row.variance, row.positive, row.second_moment),
            (y.mean(), y.var(), (y > 0).mean(), (y**2).mean()),
            rtol=1e-5,
            atol=1e-6,
        )
    again = variance_report(net, jnp.asarray(x), params=jax.tree.map(lambda p: 2 * p, params))
    assert again["block/0"].variance == pytest.approx(4 * report["block/0"].variance, rel=1e-5)
    with pytest.raises(
        KeyError, match=r"VarianceReport expected the path of a layer, got 'tail'; the paths are: block/0, "
    ):
        report["tail"]


def test_the_report_prints_in_a_terminal_and_in_a_notebook():
    report = variance_report(Serial(block=Residual(Dense(128))), DATA)
    lines = str(report).splitlines()
    assert lines[0].split() == ["layer", "mean", "variance", "positive"]
    assert lines[2].startswith("input ")
    assert lines[3].startswith("  0 Dense ")  # inner layers are indented
    assert lines[4].startswith("block Residual ")
    assert all(line.endswith("%") for line in lines[2:])
    assert report._repr_html_().startswith("<table>")


def test_every_net_has_a_report():
    """With state, randomness and side inputs; shared layers have a row per call, layers inside a scan have none."""
    report = variance_report(Serial(Dense(128), Center(), Noise()), DATA, train=True)
    assert [row.kind for row in report.rows] == ["input", "Dense", "Center", "Noise"]
    assert report["2"].variance == pytest.approx(report["1"].variance, rel=0.1)
    shared = variance_report(Wire(lambda f, x: f.a(f.a(x)), a=Dense(128)), DATA)
    assert [row.kind for row in shared.rows] == ["input", "Dense", "Dense"]
    assert shared["a"] is shared.rows[1]
    scanned = variance_report(Serial(Repeat(Residual(Dense(128), jnp.tanh), 3)), DATA)
    assert [row.kind for row in scanned.rows] == ["input", "Repeat"]
    two = variance_report(Parallel(jnp.multiply, jnp.greater), DATA, DATA)
    assert [row.kind for row in two.rows] == ["input", "input", "multiply"]  # a boolean output has no row
    with jax.debug_nans(False):
        alone = variance_report(relu, jnp.full((2, 2), jnp.inf))
    assert len(alone.rows) == 2 and np.isnan(alone.rows[-1].variance)


def test_the_report_requires_a_key():
    with pytest.raises(TypeError, match=r"variance_report expected .*a key, got .*; pass jax.random.key\(0\)"):
        variance_report(Dense(3), DATA, key=0)


def test_the_report_of_nets_with_batch_norm_is_of_a_training_call():
    """There are no running statistics at init, so that the report uses a training call and has no NaN."""
    net = Serial(Dense(50), BatchNorm(), relu)
    report = variance_report(net, 3 * np.random.default_rng(1).normal(size=(200, 20)).astype(np.float32))
    rows = {row.kind: row for row in report.rows}
    assert abs(rows["BatchNorm"].mean) < 1e-5 and rows["BatchNorm"].variance == pytest.approx(1, abs=2e-3)
    assert rows["relu"].positive == pytest.approx(0.5, abs=0.05)
