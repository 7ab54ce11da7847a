"""Piecewise linear functions as nets, and nets as piecewise linear functions."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import for_each
from compiled import drawn

from jaxblocks import (
    MLP,
    BatchNorm,
    Conv,
    Dense,
    GlobalMaxPool,
    LayerNorm,
    Maxout,
    MaxPool,
    Repeat,
    Residual,
    Serial,
    gelu,
    leaky_relu,
    relu,
    softmax,
    tanh,
)
from jaxblocks.theory.piecewise_affine import line
from jaxblocks.theory.piecewise_linear import (
    PiecewiseLinear,
    count_kinks,
    from_piecewise_linear,
    to_piecewise_linear,
    two_level_model,
)

T, SLOPES, C0 = np.array([-1, 0.5, 2, 3]), np.array([0.7, -1, 2, 0.3, -0.4]), 1.3  # the example from the errata


@pytest.fixture(autouse=True)
def _wide():
    with jax.enable_x64(True):
        yield


def by_pieces(t, slopes, value, x):
    """The function as integrals of its slope, without code of the library."""
    lengths = np.clip(x[:, None], t[:-1], t[1:]) - t[:-1]
    return value + slopes[0] * np.minimum(x - t[0], 0) + lengths @ slopes[1:-1] + slopes[-1] * np.maximum(x - t[-1], 0)


def random_function(rng, pieces):
    t = np.sort(rng.uniform(-1, 1, pieces - 1))
    return t, rng.normal(size=pieces), rng.normal()


def values(net, params, x):
    return np.asarray(jax.jit(net.apply)(params, jnp.asarray(x)[:, None]))[:, 0]


# ---- functions to nets -----------------------------------------------------------------------------


@pytest.mark.parametrize(("form", "units"), [("short", 5), ("lecture", 6), ("absorbed", 6)])
def test_nets_from_piecewise_linear_functions_are_exact(form, units):
    """The three forms are exact on and beyond the knots, with p + 2 or p + 3 units; absorbed has no output bias.

    The function is recovered from its net.
    """
    x = np.linspace(-6, 8, 1001)
    value = SLOPES[0] * T[0] + C0
    net, params = from_piecewise_linear(T, SLOPES, value, form=form)
    np.testing.assert_allclose(values(net, params, x), by_pieces(T, SLOPES, value, x), rtol=0, atol=1e-14)
    assert params[0]["kernel"].shape == (1, units)
    assert (params[2]["bias"] == 0).all() == (form == "absorbed")
    f = to_piecewise_linear(net, params)
    np.testing.assert_array_equal(f.breakpoints, T)
    np.testing.assert_allclose(f.slopes, SLOPES, rtol=0, atol=1e-13)
    np.testing.assert_allclose(f.value, value, rtol=0, atol=1e-13)


def test_a_clipped_ramp_is_a_difference_of_two_rectifiers():
    """max(0, x - a), clipped at b - a, is ReLU(x - a) - ReLU(x - b), which has two breakpoints."""
    found = to_piecewise_linear(lambda x: jnp.minimum(jnp.maximum(x - 1, 0), 2.0))
    again = to_piecewise_linear(lambda x: relu(x - 1) - relu(x - 3))
    for f in (found, again):
        assert (f.breakpoints.tolist(), f.slopes.tolist(), f.value) == ([1.0, 3.0], [0.0, 1.0, 0.0], 0.0)


def test_piecewise_linear_values_integrals_and_distances(sentences):
    """Values, integrals and distances of the record against np.interp and sums over a fine grid."""
    f = PiecewiseLinear(T, SLOPES, 0.6)
    x = np.linspace(-1, 3, 400_001)
    np.testing.assert_allclose(f(x), np.interp(x, T, f.values), rtol=0, atol=1e-14)
    np.testing.assert_allclose(f([-5.0, 7.0]), [0.6 - 4 * 0.7, f.values[-1] - 4 * 0.4])
    np.testing.assert_allclose(f.integral(-1, 3), np.trapezoid(f(x), x), rtol=0, atol=1e-9)
    g = PiecewiseLinear(np.array([1.0]), np.array([1.0, -1.0]), 0.2)
    np.testing.assert_allclose(f.l1_distance(g, -1, 3), np.trapezoid(abs(f(x) - g(x)), x), rtol=0, atol=1e-8)
    np.testing.assert_allclose(f.sup_distance(g, -1, 3), abs(f(x) - g(x)).max(), rtol=0, atol=1e-5)
    line = PiecewiseLinear(np.array([]), np.array([2.0]), 1.0)
    np.testing.assert_allclose(line([0.0, 3.0]), [1.0, 7.0])
    assert line.values.shape == (0,) and line.integral(0, 1) == 2
    assert (f.integral(1, 1), f.l1_distance(g, 1, 1), line.sup_distance(g, 1, 1)) == (0, 0, 2.8)
    with pytest.raises(ValueError, match="expected lower <= upper, got 1 and 0; swap them"):
        line.integral(1, 0)
    with pytest.raises(ValueError, match="expected finite bounds, got -inf and 1; "):
        f.integral(-np.inf, 1)
    with pytest.raises(TypeError, match="l1_distance expected a PiecewiseLinear, got "):
        f.l1_distance(np.sin, 0, 1)
    with pytest.raises(TypeError, match="real numbers for breakpoints"):
        PiecewiseLinear(np.array([1j]), [0.0, 1.0], 0.0)
    for x in (np.array([1j]), "1", None, np.array(["2000"], "M8[Y]"), 10**400):  # of which NumPy makes numbers
        with pytest.raises(TypeError, match="expected x to be an array of real numbers, got "):
            f(x)
    with pytest.raises(TypeError, match="expected arrays with values, got a traced array; call it outside of jax.jit"):
        jax.jit(lambda x: f([x, 0.0]))(1.0)


def test_two_level_model_has_the_designed_values():
    """h_21 has the values of the drawing and the coefficients of the lemma, and its area is 8."""
    net, params = two_level_model()
    at = np.array([-1, 0, 0.5, 1, 1.5, 2, 2.5, 3, 4, 4.5, 5, 6, 9])
    drawn = [0, 0, 0.5, 1, 1, 1, 2, 3, 2, 1.5, 1, 0, 0]
    np.testing.assert_array_equal(values(net, params, at), drawn)
    _, general = from_piecewise_linear([0, 1, 2, 3, 6], [0, 1, 0, 2, -1, 0], 0.0)
    np.testing.assert_array_equal(general[2]["kernel"][1:, 0], params[2]["kernel"][:, 0])
    np.testing.assert_array_equal(params[2]["kernel"][:, 0], [1, -1, 2, -3, 1])
    f = to_piecewise_linear(net, params)
    assert f.integral(0, 6) == 8 and f.breakpoints.tolist() == [0, 1, 2, 3, 6]


# ---- round trips --------------------------------------------------------------------------------


def test_round_trip_of_ten_thousand_pieces():
    """The net agrees with the function, and the function recovered from the net, to 1e-12."""
    t, slopes, value = random_function(np.random.default_rng(0), 10_000)
    net, params = from_piecewise_linear(t, slopes, value)
    x = np.concatenate([t[::505], np.linspace(-2, 2, 31)])
    exact = PiecewiseLinear(t, slopes, value)
    np.testing.assert_allclose(exact(x), by_pieces(t, slopes, value, x), rtol=0, atol=1e-12)
    np.testing.assert_allclose(values(net, params, x), exact(x), rtol=0, atol=3e-13)
    # sums in parallel lanes, as vector units compute them; a sequential sum would have an error of 1e-12
    hidden, out = ({name: np.asarray(p) for name, p in layer.items()} for layer in (params[0], params[2]))
    terms = np.maximum(x[:, None] * hidden["kernel"] + hidden["bias"], 0) * out["kernel"][:, 0]
    for lanes in (4, 8, 16):
        sums = [np.cumsum(terms[:, lane::lanes], 1)[:, -1] for lane in range(lanes)]
        np.testing.assert_allclose(sum(sums) + out["bias"], exact(x), rtol=0, atol=3e-13)
    f = to_piecewise_linear(net, params)
    np.testing.assert_array_equal(f.breakpoints, t)
    np.testing.assert_allclose(f.slopes, slopes, rtol=0, atol=1e-12)
    assert f.sup_distance(exact, -2, 2) < 1e-12


def test_float32_nets_are_analyzed_in_float64():
    """Without x64 the net has float32 params; the piecewise linear function is exact for them."""
    with jax.enable_x64(False):
        net, params = from_piecewise_linear([0.1, 0.2], [0.0, 1.0, 0.3], 1.0)
        assert params[0]["kernel"].dtype == jnp.float32
        f = to_piecewise_linear(net, params)
    np.testing.assert_array_equal(f.breakpoints, np.float32([0.1, 0.2]).astype(float))
    assert f.slopes.dtype == np.float64


NETS = {
    "columns first": Serial(Dense(6), lambda x: relu(x.reshape(2, 3).reshape(6, order="F")), Dense(1)),
    "deep": MLP(16, 16, 16, 1),
    "mixed": Serial(
        *(Dense(5), Residual(Dense(5), relu), leaky_relu, Residual(relu, Dense(5)), Maxout(5, pieces=3), jnp.abs),
        Maxout(1, pieces=5),
    ),
    "repeat": Serial(Dense(4), Repeat(Serial(Dense(4), leaky_relu), 4), Dense(1)),
    "scan": lambda x: jax.lax.scan(lambda h, w: (jnp.abs(w * h - 1), relu(h) * w), x, jnp.array([2, 1.5, 3]))[1].sum(0),
    "backwards": lambda x: jax.lax.scan(
        lambda h, y: (relu(h - y), h), x * 0, jnp.stack([x, -x, 2 * x - 1]), reverse=True
    )[1][:2].sum(0),
    "clipped": Serial(Dense(6), jax.nn.hard_tanh, Dense(5), jax.nn.relu6, lambda x: jnp.clip(x, -1, 1), Dense(1)),
    "convolution": Serial(
        Dense(16),
        lambda x: x.reshape(*x.shape[:-1], 8, 2),
        *(Conv(3, 3), relu, MaxPool(2), Conv(2, 3, padding="same"), GlobalMaxPool(1), Dense(1)),
    ),
    "mask": lambda x: (x > 0).astype(x.dtype) * x + jnp.sign(x) * x + jnp.where((x < 1) | ~(x <= 3), 2.0, 2 * x) * 0,
    "scatter": lambda x: jnp.concatenate([x, jnp.abs(x - 2), -x]).at[jnp.array([0, 2])].set(
        jnp.concatenate([relu(x - 1), jnp.abs(x)])
    ) @ jnp.array([1.0, 2.0, 4.0]) + jnp.zeros(3).at[1].set(relu(x + 1)[0]).sum(),
    "many cases": lambda x: jax.vmap(
        lambda i: jax.lax.switch(i, [lambda x, k=k: jnp.abs(x - k / 10) for k in range(70)], x)
    )(jnp.arange(70)).sum(0),
    "branches": lambda x: jnp.concatenate([relu(x), leaky_relu(-x - 1)], -1)[..., ::-1].max(-1),
}  # fmt: skip


def random_net(name):
    net = NETS[name]
    if callable(net) and not hasattr(net, "init"):
        return (lambda params, x: net(x)), net, ()
    rng, shapes = np.random.default_rng(3), jax.eval_shape(net.init, jax.random.key(0), jnp.zeros(1))
    fill = lambda p: jnp.asarray(rng.normal(size=p.shape) / (p.shape[-2] if len(p.shape) > 1 else 4) ** 0.5)
    return net.apply, net, jax.tree.map(fill, shapes)


@pytest.mark.parametrize("name", NETS)
def test_piecewise_linear_function_of_any_net(name):
    """It equals the net at 4001 points; second differences vanish between breakpoints but not at them."""
    apply, net, params = random_net(name)
    f = to_piecewise_linear(net, params)
    x = np.linspace(-7, 7.1, 4001)
    y = np.asarray(jax.jit(jax.vmap(lambda x: apply(params, x[None]).sum()))(jnp.asarray(x)))
    size = max(1, abs(y).max())
    np.testing.assert_allclose(f(x), y, rtol=0, atol=1e-12 * size)
    between = lambda k: ((x[:-k] < (t := f.breakpoints[:, None])) & (t < x[k:])).any(0)
    bends = abs(np.diff(y, 2)) > 1e-11 * size
    assert not bends[~between(2)].any()
    assert bends[between(2)].mean() > 0.9  # except at kinks too small for these samples
    assert len(f.breakpoints) >= {"mask": 1, "branches": 2, "backwards": 1, "scan": 4, "scatter": 4}.get(name, 5)


def test_dividing_the_line_into_parts_changes_nothing(monkeypatch):
    """The line is divided into parts to bound the size of arrays."""
    _, net, params = random_net("deep")
    whole = to_piecewise_linear(net, params)
    monkeypatch.setattr(line, "_BUDGET", 200)
    parts = to_piecewise_linear(net, params)
    np.testing.assert_allclose(parts.breakpoints, whole.breakpoints, rtol=1e-12)
    np.testing.assert_allclose(parts.slopes, whole.slopes, rtol=1e-11)
    np.testing.assert_allclose(parts.value, whole.value, rtol=1e-12)


def test_a_spike_of_width_1e_9_is_found():
    """All three breakpoints of the spike are found."""
    f = to_piecewise_linear(*from_piecewise_linear([0.3, 0.3 + 1e-9, 0.3 + 2e-9], [0, 1, -1, 0], 0.0))
    assert f.breakpoints.tolist() == [0.3, 0.3 + 1e-9, 0.3 + 2e-9]


def test_kinks_of_one_hidden_layer():
    """Kinks are the distinct -b/w at which the changes of slope do not cancel."""
    rng = np.random.default_rng(1)
    w, b, a = rng.normal(size=(3, 20))
    net = MLP(20, 1)
    params = ({"kernel": w[None], "bias": b}, (), {"kernel": a[:, None], "bias": np.zeros(1)})
    f = to_piecewise_linear(net, params)
    np.testing.assert_array_equal(f.breakpoints, np.sort(-b / w))
    again = np.tile(w, 2) * np.repeat([1.0, 3.7], 20), np.tile(b, 2) * np.repeat([1.0, 3.7], 20)
    doubled = (
        {"kernel": again[0][None], "bias": again[1]},
        (),
        {"kernel": np.tile(a, 2)[:, None], "bias": np.zeros(1)},
    )
    assert count_kinks(MLP(40, 1), doubled) == 20
    # ReLU(z) - ReLU(-z) = z: the kinks of the two units cancel
    mirrored = ({"kernel": np.array([[0.7, -0.7]]), "bias": np.array([0.3, -0.3])}, (), {
        "kernel": np.array([[1.3], [-1.3]]), "bias": np.zeros(1)})  # fmt: skip
    assert count_kinks(MLP(2, 1), mirrored) == 0


def test_kinks_of_deep_wide_nets_are_separated_from_rounding_errors():
    """20 layers of 100 units: all kinks are found; slopes equal those from activation masks computed in NumPy."""
    rng = np.random.default_rng(0)
    sizes = [1, *(100,) * 20, 1]
    kernels = [rng.normal(size=(m, n)) * (2 / m) ** 0.5 for m, n in itertools.pairwise(sizes)]
    biases = [0.1 * rng.normal(size=n) for n in sizes[1:]]
    layers = [{"kernel": w, "bias": b} for w, b in zip(kernels, biases, strict=True)]
    f = to_piecewise_linear(MLP(*sizes[1:]), tuple(p for layer in layers for p in (layer, ()))[:-1])
    x = np.linspace(-3, 3, 3001)
    h, slope, masks = x[:, None], np.ones((len(x), 1)), []
    for w, b in zip(kernels, biases, strict=True):
        on = np.ones_like(h) if not masks else h > 0
        masks.append(on)
        h, slope = (h * on) @ w + b, (slope * on) @ w
    np.testing.assert_allclose(f(x), h[:, 0], rtol=0, atol=1e-12 * abs(h).max())
    found = f.slopes[np.searchsorted(f.breakpoints, x)]
    np.testing.assert_allclose(found, slope[:, 0], rtol=0, atol=1e-12 * abs(slope).max())
    changes = np.any(np.diff(np.concatenate(masks, 1), axis=0), 1).sum()
    inside = ((f.breakpoints > -3) & (f.breakpoints < 3)).sum()
    assert inside >= changes > 500


def test_canceling_kinks_of_deep_nets_are_removed():
    """With z = relu(z) - relu(-z) in every layer a deep net is linear; its units are copies of a few."""
    rng, copies = np.random.default_rng(0), 8
    n = 8 * copies
    layers = [np.tile(rng.normal(size=(8, 8)) / 8**0.5, (copies, copies)) / copies for _ in range(20)]
    biases = np.tile(rng.normal(size=(20, 8)), copies)

    def net(x):
        h = jnp.broadcast_to(x, (n,)) * np.tile(np.linspace(0.3, 1.7, 8), copies)
        for w, b in zip(layers, biases, strict=True):
            z = h + b
            h = relu(jnp.concatenate([z, -z])) @ np.concatenate([w, -w])
        return h.sum(keepdims=True)

    assert len(line.affine_pieces(net).points) > 100
    assert count_kinks(net) == 0
    assert count_kinks(lambda x: relu(net(x))) == 1


def test_net_along_a_segment():
    """A net with several inputs, restricted to a segment, is a net with one input."""
    net = MLP(8, 3)
    params = jax.jit(net.init)(jax.random.key(0), np.zeros(4, np.float32))
    start, way = np.arange(4.0), np.array([1.0, -2.0, 0.5, 1.5])
    along = lambda s: net.apply(params, start + s * way)
    f = to_piecewise_linear(along, output=2)
    s = np.linspace(-3, 3, 50)
    kernel, bias = (np.asarray(params[0][name], np.float64) for name in ("kernel", "bias"))
    hidden = np.maximum((start + s[:, None] * way) @ kernel + bias, 0)
    np.testing.assert_allclose(f(s), hidden @ np.asarray(params[2]["kernel"], np.float64)[:, 2], rtol=0, atol=1e-6)
    assert 1 <= len(f.breakpoints) <= 8


def test_side_inputs_and_constant_nets():
    """Side inputs are passed to the net; constant and linear functions have no breakpoints."""
    net = lambda x, *, sign: sign * jnp.abs(x)
    assert to_piecewise_linear(net, sign=-1.0).slopes.tolist() == [1, -1]
    f = to_piecewise_linear(lambda x: 0 * x + 3)
    assert (f.breakpoints.tolist(), f.slopes.tolist(), f.value) == ([], [0.0], 3.0)
    for net in (lambda x: jnp.full(1, 3.0), lambda x: 3.0, lambda x: (relu(x) + relu(x - 1), jnp.full(1, 3))[1]):
        f = to_piecewise_linear(net)
        assert (f.breakpoints.tolist(), f.slopes.tolist(), f.value) == ([], [0.0], 3.0)
    f = to_piecewise_linear(*from_piecewise_linear([], [2.5], -1.0))
    assert (f.breakpoints.tolist(), f.slopes.tolist(), f.value) == ([], [2.5], -1.0)


# ---- errors ------------------------------------------------------------------------------


@for_each(
    {
        words: (arguments, words)
        for arguments, words in [
            (([0, 1], [0, 1], 0.0), "expected n breakpoints, n \\+ 1 slopes.*shape \\(2,\\), slopes of shape \\(2,\\)"),
            (([1, 0], [0, 1, 0], 0.0), "increasing breakpoints, got 0.0 after 1.0; sort them"),
            (([0, 1, 1], [0, 1, 0, 2], 0.0), "increasing breakpoints, got 1.0 twice; list it once"),
            (([0, np.inf], [0, 1, 0], 0.0), "finite breakpoints, got inf among them"),
            (([0], [0, np.nan], 0.0), "finite slopes, got nan"),
            (([0], [0, 1], np.nan), "a finite value, got nan"),
        ]
    }
)
def test_invalid_functions_are_rejected(case):
    arguments, words = case
    with pytest.raises(ValueError, match=words):
        from_piecewise_linear(*arguments)
    with pytest.raises(ValueError, match=words):
        PiecewiseLinear(*arguments)


def test_piecewise_linear_functions_at_infinity():
    ends = np.array([-np.inf, np.inf])
    hat = PiecewiseLinear([-1.0, 0.0, 1.0], [0.0, 1.0, -1.0, 0.0], 3.0)
    np.testing.assert_array_equal(hat(ends), [3.0, 3.0])
    np.testing.assert_array_equal(PiecewiseLinear([1.0], [-1.0, 0.0], 2.0)(ends), [np.inf, 2.0])
    np.testing.assert_array_equal(PiecewiseLinear([], [0.0], 2.0)(ends), [2.0, 2.0])
    np.testing.assert_array_equal(PiecewiseLinear([], [-2.0], 1.0)([*ends, 3.0]), [np.inf, -np.inf, -5.0])
    assert np.isnan(hat([np.nan])).all()


def test_piecewise_linear_functions_are_pytrees():
    """Instances made by transformations, and tracers, are not checked."""
    f = PiecewiseLinear(np.array([0.0, 1.0]), np.array([0.0, 1.0, 0.0]), 0.0)
    shapes = jax.tree.map(np.shape, f)
    assert isinstance(shapes, PiecewiseLinear) and shapes.slopes == (3,)
    assert jax.tree.map(np.negative, f).breakpoints.tolist() == [0, -1]
    assert next(jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(f)) == ".breakpoints"
    widths = jax.jit(lambda f: jnp.diff(PiecewiseLinear(f.breakpoints, f.slopes, f.value).breakpoints))
    assert widths(f).tolist() == [1]
    assert f._replace(value=2.0)(np.array([0.5])).tolist() == [2.5]


def test_numbers_are_required():
    with pytest.raises(
        TypeError, match="expected real numbers for breakpoints, slopes and value, got 't', a list, 0.0"
    ):
        from_piecewise_linear("t", [0, 1], 0.0)


def test_unknown_form_is_rejected():
    with pytest.raises(ValueError, match="expected form to be 'short' or 'lecture' or 'absorbed', got 'long'"):
        from_piecewise_linear([0], [0, 1], 0.0, form="long")


@pytest.mark.parametrize(
    ("net", "words"),
    [
        (Serial(Dense(3), tanh, Dense(1)), "got the layer 1 that takes tanh of a value"),
        (Serial(a=Serial(Dense(3), relu, softmax), b=Dense(1)), "got the layer a/2 that takes exp"),
        (Serial(Dense(2), gelu, Dense(1)), "got the layer 1 that"),
        (Serial(Dense(4), LayerNorm(), Dense(1)), "got the layer 1 that takes square"),
        (Repeat(Serial(Dense(1), tanh), 2), "the layer 1 that takes tanh"),
        (lambda x: x * x, "a function that multiplies two arrays that depend on the input"),
        (lambda x: x**2, "a function that takes integer_pow of"),
        (lambda x: 1 / x, "a function that divides by a value that depends on the input"),
        (lambda x: jnp.round(x), "takes round of"),
        (lambda x: jnp.sort(jnp.concatenate([x, -x]))[:1], "a function that uses sort, which is not supported; use"),
        (lambda x: jax.lax.top_k(jnp.concatenate([x, -x]), 1)[0], "uses top_k, which is not supported"),
        (lambda x: jax.lax.cond(x[0] > 0, lambda: x, lambda: -x), "uses cond, which .* use jnp.where"),
        (lambda x: (x > 0.5).astype(x.dtype), "expected a continuous net, got an output that jumps by 1 at 0.5"),
        (lambda x: jnp.concatenate([x, x]), "expected one output, got outputs of shape \\(2,\\); .* output=0 to 1"),
        (lambda x: x * jnp.inf, "not finite"),
    ],
)
def test_nets_that_are_not_piecewise_linear_are_rejected(net, words):
    """The error names the layer and the operation."""
    params = drawn(net, jnp.zeros(1)) if hasattr(net, "init") else ()
    with jax.debug_nans(False), pytest.raises(ValueError, match=words):
        to_piecewise_linear(net, params)


def test_following_the_errors_advice_works():
    """Piecewise linear activations, one output, and a function of a layer with state."""
    net = Serial(Dense(3), jax.nn.hard_tanh, Dense(1))
    to_piecewise_linear(net, net.init(jax.random.key(0), jnp.zeros(1)))
    f = to_piecewise_linear(lambda x: jnp.concatenate([x, jnp.abs(x)]), output=1)
    assert f.slopes.tolist() == [-1, 1]
    f = to_piecewise_linear(lambda x: jnp.where(x > 0, x, -x))
    assert f.slopes.tolist() == [-1, 1]
    with pytest.raises(TypeError, match="takes nets of one input; for others use regions_along"):
        to_piecewise_linear(lambda x: jnp.ones((1, 3)) @ x)
    net = BatchNorm()
    params, state = net.init(jax.random.key(0), jnp.zeros((1, 1)))
    state = {**state, "updates": state["updates"] + 1}
    with pytest.raises(TypeError, match="expected a layer without state, got BatchNorm"):
        to_piecewise_linear(net, params)
    f = to_piecewise_linear(lambda x: net.apply(params, state, x[None], train=False)[0])
    np.testing.assert_allclose(f.slopes, 1, rtol=0, atol=1e-3)
