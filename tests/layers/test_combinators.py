"""Combinators: equivalent nets agree, and errors name the layers that do not fit together."""

import functools
import re

import arrays
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import compiled, drawn
from zoo import Center, Noise, TanhCell

from jaxblocks import (
    GCN,
    Conv,
    Dense,
    Dropout,
    Frozen,
    Graph,
    Layer,
    Parallel,
    Recurrent,
    Repeat,
    Residual,
    Serial,
    StatefulLayer,
    Wire,
    as_layer,
    relu,
    side_inputs,
)
from jaxblocks.core.children import named_outputs
from jaxblocks.core.shapes import as_shapes
from jaxblocks.layers import BatchNorm, unstack_repeats

close = functools.partial(arrays.close, tolerance=1e-6)

DRAWN = np.random.default_rng(1)
X, TIMED, SHORT = (DRAWN.normal(size=size).astype(np.float32) for size in ((4, 5), (3, 6, 5), (2, 6, 4)))


def notes(error):
    return getattr(error.value, "__notes__", [])


# ---- Serial


def test_an_empty_serial_is_the_identity():
    net = Serial()
    assert net.init(jax.random.key(0), X) == ()
    assert net.apply((), X) is X
    assert net.apply((), X, X) == (X, X)


def test_serial_is_associative():
    """Serial(a, Serial(b, c)) = Serial(Serial(a, b), c) = Serial(a, b, c), given the same params."""
    a, b, c = Dense(3), Dense(4), Dense(2)
    p, q, r = drawn(Serial(a, b, c), X)
    flat = compiled(Serial(a, b, c).apply)((p, q, r), X)
    np.testing.assert_array_equal(compiled(Serial(a, Serial(b, c)).apply)((p, (q, r)), X), flat)
    np.testing.assert_array_equal(compiled(Serial(Serial(a, b), c).apply)(((p, q), r), X), flat)


def test_serial_applies_the_first_layer_first():
    net = Serial(lambda x: x + 1, lambda x: x * 2)
    np.testing.assert_array_equal(net.apply(((), ()), jnp.ones(3)), jnp.full(3, 4.0))


def test_mixing_layers_by_position_and_by_name_is_rejected():
    with pytest.raises(TypeError, match="got 1 by position and out by name; name all of them or none"):
        Serial(Dense(3), out=Dense(2))


@pytest.mark.parametrize(
    ("params", "words"),
    [(({}, {}), "a tuple of 2"), ({"kernel": 1}, "a dict of kernel"), (jnp.ones(3), "a tuple of 3, one for each")],
)
def test_params_of_another_net_are_rejected_by_the_combinator(params, words):
    with pytest.raises(ValueError, match=words):
        Serial(Dense(3), relu, Dense(2)).apply(params, X)


def test_params_of_other_names_are_rejected_by_the_combinator():
    with pytest.raises(
        ValueError, match="a dict of hidden, out, one for each layer, got a dict of hidden, head; pass those"
    ):
        Serial(hidden=Dense(3), out=Dense(2)).apply({"hidden": {}, "head": {}}, X)


def test_what_init_of_a_net_with_state_returns_is_no_params():
    net = Serial(Dense(3), BatchNorm(), Dense(2))
    variables = drawn(net, X)
    sentence = (
        r"got a tuple of 2; unpack what init returns, params, state = init\(key, x\), and write apply\(params, state"
    )
    with pytest.raises(ValueError, match=sentence):
        net.apply(variables, (), X)
    params, state = variables
    compiled(net.apply)(params, state, X, train=True)


def test_params_may_be_lists():
    net = Serial(Dense(3), relu)
    params, apply = drawn(net, X), compiled(net.apply)
    np.testing.assert_array_equal(apply(list(params), X), apply(params, X))


def test_errors_of_params_name_the_inner_layer():
    with pytest.raises(ValueError, match="Dense expected params named bias, kernel, got scale; pass those") as error:
        Serial(Dense(3)).apply(({"scale": jnp.ones(3)},), X)
    assert notes(error) == ["in layer 0 (Dense)"]


# ---- state


def test_every_combinator_passes_on_state():
    """The running mean after one training step is the mean of the layer's inputs."""
    mean = 0.1 * X.mean(0)
    nets = {
        "Serial": (Serial(relu, Center()), lambda s: s[1], 0.1 * np.maximum(X, 0).mean(0)),
        "Parallel": (Parallel(relu, Center()), lambda s: s[1], mean),
        "Residual": (Residual(Center()), lambda s: s[0], mean),
        "Wire": (Wire(lambda f, x: f.center(x), center=Center()), lambda s: s["center"], mean),
    }
    for name, (net, find, expected) in nets.items():
        assert isinstance(net, StatefulLayer), name
        params, state = drawn(net, X)
        trained = functools.partial(net.apply, train=True)
        (_, after), (_, same) = compiled(lambda *args, f=trained, g=net.apply: (f(*args), g(*args)))(params, state, X)
        np.testing.assert_allclose(find(after)["mean"], expected, rtol=1e-5, atol=1e-7)
        jax.tree.map(np.testing.assert_array_equal, same, state)


def test_a_net_without_state_is_a_layer():
    for net in (Serial(Dense(3)), Parallel(relu), Residual(relu), Repeat(relu, 2), Wire(lambda f, x: f.a(x), a=relu)):
        assert isinstance(net, Layer)


def test_the_state_of_a_repeat_is_stacked():
    net = Repeat(Serial(Center(), jnp.tanh), 3)
    params, state = drawn(net, X)
    _, after = compiled(net.apply)(params, state, X, train=True)
    x, expected = X, []
    for _ in range(3):
        expected.append(0.1 * x.mean(0))
        x = np.tanh(x - x.mean(0))
    np.testing.assert_allclose(after[0]["mean"], expected, rtol=1e-4, atol=1e-6)


# ---- Residual


def test_residual_rejects_a_change_of_shape_and_the_repair_works():
    with pytest.raises(ValueError, match=r"\(4, 5\) in and float32 \(4, 3\) out; give the last layer 5"):
        Residual(Dense(3)).init(jax.random.key(0), X)
    jax.eval_shape(Residual(Dense(3), Dense(5)).init, jax.random.key(0), X)


def test_residual_rejects_several_arrays():
    with pytest.raises(ValueError, match="one array in and one array out, got float32 .*, float32 .* in and"):
        Residual(jnp.add).init(jax.random.key(0), X, X)


# ---- Repeat


REPEATED = Residual(Dense(5), jnp.tanh, Noise())


def value_and_gradient(net, params, **side):
    """Of the sum of squares of the outputs, in NumPy."""
    run = jax.jit(jax.value_and_grad(lambda p: (net.apply(p, X, **side) ** 2).sum()))
    return jax.tree.map(np.asarray, run(params))


@functools.cache
def of_copies(n):
    """Params, value and gradient of ``n`` copies in a row, stacked as those of a repeat."""
    net = Serial(*[REPEATED] * n)
    params = compiled(net.init)(jax.random.key(0), X)
    value, gradient = value_and_gradient(net, params, **({"train": True, "key": jax.random.key(2)} if n else {}))
    return value, *(jax.tree.map(lambda *leaves: np.stack(leaves), *tree) if n else () for tree in (params, gradient))


@pytest.mark.parametrize(
    ("n", "checkpoint"),
    [
        (0, None),
        (1, jax.checkpoint_policies.everything_saveable),
        (3, None),
        (3, "sqrt"),
    ],
)
def test_repeat_equals_serial_of_copies(n, checkpoint):
    """The same key gives the same params (stacked), values, gradients and random draws."""
    net, (expected, stacked, expected_gradient) = Repeat(REPEATED, n, checkpoint=checkpoint), of_copies(n)
    params = compiled(net.init)(jax.random.key(0), X)
    if n:
        close(params, stacked, tolerance=1e-6)  # a GPU draws in other fused programs
    value, gradient = value_and_gradient(net, params, **({"train": True, "key": jax.random.key(2)} if n else {}))
    close(value, expected)
    if n:
        close(gradient, expected_gradient, tolerance=1e-5)


def test_repeat_traces_its_layer_a_fixed_number_of_times():
    def traced(n):
        calls = []

        def count(x):
            calls.append(None)
            return jnp.tanh(x)

        net = Repeat(Serial(Dense(5), count), n)
        jax.eval_shape(net.apply, drawn(net, X), X)
        return len(calls)

    assert traced(2) == traced(64)


@pytest.mark.cpu
def test_repeat_unrolls_convolutions_on_cpu():
    """By the layers inside of the body; without a loop the compiler gives each convolution its fast layout."""
    conv, x = Conv(2, (3,), padding="same"), jnp.zeros((1, 4, 2))
    bodies = [Residual(Frozen(conv)), Wire(lambda f, x: f.conv(x), conv=conv), Residual(Dense(2))]

    def unrolled(body, **options):
        net = Repeat(body, 3, **options)
        params = jax.eval_shape(net.init, jax.random.key(0), x)
        return [eqn.params["unroll"] for eqn in jax.make_jaxpr(net.apply)(params, x).eqns if "unroll" in eqn.params]

    assert [unrolled(body) for body in bodies] == [[3], [3], [1]]
    assert unrolled(bodies[0], unroll=1) == [1]
    hidden = Layer(conv.init, lambda params, x: conv.apply(params, x))  # no call of Conv is seen
    assert unrolled((Residual(hidden), Residual(conv)), which=(0, 1, 0)) == [3]

    class Identity:  # such as a module of another library
        def call(self, x):
            return x

        __call__ = call

    assert unrolled(Serial(Identity(), Dense(2))) == [1]


REJECTED = [
    (-1, "dots", "n to be an integer >= 0, got -1"),
    (2, "some", "'dots' or 'body' .* got 'some'"),
    (2, 0, "an integer >= 1 .* got 0"),
]


@pytest.mark.parametrize(("n", "checkpoint", "words"), REJECTED)
def test_repeat_rejects_invalid_arguments(n, checkpoint, words):
    with pytest.raises(ValueError, match=words):
        Repeat(Dense(5), n, checkpoint=checkpoint)


def test_copies_that_are_not_stacked(sentences):
    """With params and states of unstack_repeats, a net computes the same outputs and states."""
    net = Serial(first=Dense(5), body=Repeat(Serial(Center(), Dense(5)), 3))
    params, state = drawn(net, X)
    copies = unstack_repeats(net, params), unstack_repeats(net, state)
    assert jax.tree.map(jnp.shape, copies[0]["body"][1]) == jax.tree.map(lambda x: x.shape[1:], params["body"])
    expected, after = compiled(net.apply)(params, state, X, train=True)
    found, after_copies = compiled(net.apply)(*copies, X, train=True)
    close(found, expected)
    close(after_copies, unstack_repeats(net, after))
    plain = Repeat(Dense(4), 2)
    params = drawn(plain, jnp.zeros(4))
    with pytest.raises(
        ValueError, match="params and state of 3 copies, got those of 2 and 3; make both by unstack_rep"
    ):
        Repeat(Dense(4), 3).apply(unstack_repeats(plain, params), jnp.zeros(4))


def test_layers_of_a_repeat_have_the_same_side_inputs(sentences):
    """Else a layer would run without its key, and never drop anything."""
    got = "got Serial with none and Serial with key, train; build them with the same options"
    with pytest.raises(ValueError, match=f"Repeat expected layers with the same side inputs, {got}"):
        Repeat((Serial(Dense(5), relu), Serial(Dense(5), Dropout(0.5))), 2, which=(0, 1))


def test_repeat_needs_a_layer_that_keeps_the_shape():
    with pytest.raises(ValueError, match=r"float32 \(4, 5\) in and float32 \(4, 3\) out"):
        Repeat(Dense(3), 2).init(jax.random.key(0), X)


def test_repeat_rejects_params_stacked_otherwise():
    params = drawn(Repeat(Dense(5), 3), X)
    with pytest.raises(ValueError, match="stacked 2 times"):
        Repeat(Dense(5), 2).apply(params, X)


def test_repeat_passes_on_several_inputs():
    net = Repeat(lambda a, b: (b, a + b), 10)  # Fibonacci
    assert net.apply((), jnp.int32(0), jnp.int32(1)) == (55, 89)


# ---- Recurrent


def test_a_sequence_in_pieces_equals_the_whole():
    """With the state of the first half as input, the second half continues the whole sequence."""
    x = SHORT
    whole, stream = Recurrent(TanhCell(3)), Recurrent(TanhCell(3), stateful=True)

    @compiled
    def run(params, carry):
        first, carry = stream.apply(params, carry, x[:, :2])
        second, _ = stream.apply(params, carry, x[:, 2:])
        return jnp.concatenate([first, second], 1), whole.apply(params, x)

    close(*run(*drawn(stream, x)))


def test_recurrent_starts_from_the_initial_state_of_the_cell():
    """h_t = h_{t-1} / 2 + x_t from h_0 = 8, x = 1: 5, 3.5, 2.75; the initial state need not be zero."""

    def init(key, x):
        return (), jnp.full(x.shape, 8.0, x.dtype)

    def apply(params, h, x):
        return h / 2 + x, h / 2 + x

    y = Recurrent(StatefulLayer(init, apply)).apply((), jnp.ones((3, 1)))
    np.testing.assert_array_equal(y[:, 0], [5.0, 3.5, 2.75])


def test_recurrent_draws_new_random_numbers_at_each_step():
    y = compiled(Recurrent(Noise()).apply)((), np.ones((64, 1), np.float32), train=True, key=jax.random.key(0))
    assert 10 < (y > 0).sum() < 54


def test_recurrent_needs_a_time_axis():
    with pytest.raises(ValueError, match=r"expected inputs \(..., time, features\), got float32 \(5,\); use"):
        Recurrent(TanhCell(3)).init(jax.random.key(0), X[0])
    with pytest.raises(ValueError, match="one length in time"):
        Recurrent(jnp.add).init(jax.random.key(0), X, X[:2])


# ---- Parallel and Wire


def test_parallel_by_name_returns_a_dict():
    y = compiled(Parallel(a=jnp.sin, b=jnp.cos).apply)({"a": (), "b": ()}, X)
    close(y, {"a": np.sin(X), "b": np.cos(X)})


def test_wire_shares_params():
    """A child that is called twice uses the same params, and its gradient is the sum over both calls."""
    net = Wire(lambda f, x: f.a(f.a(x)), a=Dense(5))
    params = drawn(net, X)
    chain = Serial(Dense(5), Dense(5))
    both = lambda net: compiled(jax.value_and_grad(lambda p: jnp.sum(net.apply(p, X) ** 2)))
    value, shared = both(net)(params)
    expected, (one, two) = both(chain)((params["a"], params["a"]))
    close(value, expected, tolerance=1e-5)
    close(shared["a"], jax.tree.map(np.add, one, two), tolerance=1e-5)


def test_wire_connects_layers_across_levels():
    def forward(f, x):
        down = f.down(x)
        return f.up(jnp.concatenate([down, f.mid(down)], -1))

    net = Wire(forward, down=Dense(3), mid=Dense(2), up=Dense(5))
    params = drawn(net, X)
    down, mid, up = (lambda x, p=params[name]: x @ p["kernel"] + p["bias"] for name in ("down", "mid", "up"))
    d = down(X)
    close(compiled(net.apply)(params, X), up(np.concatenate([d, mid(d)], -1)), tolerance=1e-5)


def test_wire_passes_state_from_call_to_call():
    def Count():
        return StatefulLayer(lambda key, x: ((), jnp.int32(0)), lambda params, calls, x: (x, calls + 1))

    net = Wire(lambda f, x: f.count(f.count(x)), count=Count())
    params, state = net.init(jax.random.key(0), X)
    assert state == {"count": 0}
    assert net.apply(params, state, X)[1] == {"count": 2}


def test_forward_of_a_wire_has_a_key_of_its_own():
    """Its draws are independent of those of every child, whatever the child is called."""
    shown = Layer(lambda key, x: (), lambda params, x, *, key: jax.random.key_data(key))
    net = Wire(lambda f, x, *, key: (f.forward(x), f.other(x), jax.random.key_data(key)), forward=shown, other=shown)
    keys = net.apply({"forward": (), "other": ()}, X, key=jax.random.key(0))
    assert len({tuple(map(int, key)) for key in [*keys, jax.random.key_data(jax.random.key(0))]}) == 4


def test_each_call_in_a_wire_has_its_own_key():
    net = Wire(lambda f, x: (f.noise(x), f.noise(x)), noise=Noise())
    a, b = net.apply({"noise": ()}, jnp.ones(64), train=True, key=jax.random.key(0))
    assert (a != b).any()


def test_wire_passes_side_inputs_explicitly_or_automatically():
    def scaled(x, *, factor):
        return x * factor

    by_itself = Wire(lambda f, x: f.scaled(x), scaled=scaled)
    close(by_itself.apply({"scaled": ()}, X, factor=jnp.float32(3)), 3 * X)
    by_hand = Wire(lambda f, x, *, time: f.scaled(x, factor=2 * time), scaled=scaled)
    close(by_hand.apply({"scaled": ()}, X, time=jnp.float32(3)), 6 * X)
    with pytest.raises(TypeError, match=r"reads \(factor\), got 'fctor'"):
        Wire(lambda f, x: f.scaled(x, fctor=1), scaled=scaled).apply({"scaled": ()}, X)


def test_wire_traces_each_child_once():
    calls = []

    def count(x):
        calls.append(None)
        return x

    net = Wire(lambda f, x: f.a(f.count(x)), a=Dense(5), count=count)
    params = jax.eval_shape(net.init, jax.random.key(0), X)
    assert len(calls) == 1
    jax.eval_shape(net.apply, params, X)
    assert len(calls) == 2


def test_nested_wires_are_initialized_without_leaks():
    inner = Wire(lambda f, x: f.a(x) + x, a=Dense(5))
    net = Wire(lambda f, x: f.b(f.inner(x)), inner=inner, b=Residual(inner))
    params = jax.jit(lambda key: net.init(key, jax.ShapeDtypeStruct(X.shape, X.dtype)))(jax.random.key(0))
    expected = compiled(net.init)(jax.random.key(0), X)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), params, expected)


def test_wire_names_missing_and_unused_children():
    with pytest.raises(ValueError, match="every child, b too, got no call of it; call f.b"):
        Wire(lambda f, x: f.a(x), a=relu, b=relu).init(jax.random.key(0), X)
    with pytest.raises(AttributeError, match="the name of a child, a, .*got 'c'"):
        Wire(lambda f, x: f.c(x), a=relu).apply({"a": ()}, X)


# ---- transformations


def test_a_net_runs_under_shard_map_and_vmap_of_params():
    """An ensemble by vmap over keys and params; a batch that is sharded over devices gives the same values."""
    net = Serial(Dense(3), relu, Dense(2))
    ensemble = jax.jit(jax.vmap(lambda key: net.init(key, X)))(jax.random.split(jax.random.key(0), 2))
    outputs = jax.jit(jax.vmap(net.apply, in_axes=(0, None)))(ensemble, X)
    one = jax.tree.map(lambda p: np.asarray(p)[0], ensemble)
    expected = jax.jit(net.apply)(one, X)
    close(np.asarray(outputs)[0], expected)
    mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    sharded = jax.shard_map(net.apply, mesh=mesh, in_specs=(jax.P(), jax.P("data")), out_specs=jax.P("data"))
    close(jax.jit(sharded)(one, X), expected)


# ---- special cases -------------------------------------------------------------------------


def test_a_tuple_of_one_output_is_that_output():
    """Serial(Serial(a), Serial()) = Serial(a), also if a returns a tuple of one array."""
    flat = Serial(Parallel(jnp.sin)).apply((((),),), X)
    np.testing.assert_array_equal(flat, jnp.sin(X))
    np.testing.assert_array_equal(Serial(Serial(Parallel(jnp.sin)), Serial()).apply(((((),),), ()), X), flat)


def test_keyword_options_of_partials_are_not_side_inputs():
    net = Serial(Dense(3), functools.partial(lambda x, a=1, b=2: x, a=2))
    assert side_inputs(net) == ()
    assert side_inputs(functools.partial(functools.partial(lambda x, y=1, *, mask: x, y=2), y=3)) == ("mask",)


def test_a_builtin_method_is_a_layer():
    assert as_layer("{}".format).apply((), 1) == "1"


@pytest.mark.parametrize("inside", [jax.checkpoint, lambda f: lambda x: jax.lax.map(f, x)], ids=["checkpoint", "map"])
def test_wire_calls_children_inside_transformations(inside):
    """Params are drawn once, outside the transformation; a child with state raises an error."""
    net = Wire(lambda f, x: inside(f.a)(x) + f.a(x), a=Dense(5))
    with jax.checking_leaks():
        params = drawn(net, X)
        y = jax.jit(net.apply)(params, X)
    np.testing.assert_allclose(y, 2 * (X @ params["a"]["kernel"] + params["a"]["bias"]), rtol=1e-5, atol=1e-5)
    stateful_net = Wire(lambda f, x: inside(f.a)(x), a=Serial(Center()))
    for function in (lambda: stateful_net.init(jax.random.key(0), X), lambda: applied_in(stateful_net)):
        with pytest.raises(ValueError, match="which drops its next state"):
            function()


def applied_in(net):
    return net.apply({"a": ((),)}, {"a": ({"mean": jnp.zeros(5)},)}, X, train=True)


def test_wire_without_children():
    net = Wire(lambda f, x: 2 * x)
    assert net.init(jax.random.key(0), X) == ()
    np.testing.assert_array_equal(net.apply((), X), 2 * X)


def test_side_inputs_that_forward_passes_are_not_required_of_the_caller():
    def Times():
        return Layer(lambda key, x: (), lambda params, x, *, time: x * jnp.broadcast_to(time, x.shape))

    by_hand = Serial(Wire(lambda f, x: f.times(x, time=jnp.float32(3)), times=Times()))
    np.testing.assert_array_equal(by_hand.apply(by_hand.init(jax.random.key(0), X), X), 3 * X)
    left_out = Wire(lambda f, x: f.times(x), times=Times())
    with pytest.raises(TypeError, match="the side input time, got none"):
        left_out.apply({"times": ()}, X)
    np.testing.assert_array_equal(left_out.apply({"times": ()}, X, time=jnp.float32(2)), 2 * X)


MASK = np.array([[1, 1, 1, 1, 1, 1], [0, 1, 0, 0, 1, 1], [0, 0, 0, 0, 0, 0]], bool)


@pytest.mark.parametrize("reverse", [False, True])
def test_padding_anywhere_has_no_effect(reverse):
    """Outputs, last carry and gradients of a masked sequence equal those of its valid steps, for any padding."""
    net = Recurrent(TanhCell(4), reverse=reverse, stateful=True)
    params, carry = drawn(net, TIMED)
    carry = carry + np.float32(0.5)

    def total(params, x, carry, **side):
        y, last = net.apply(params, carry, x, **side)
        return (y**2).sum() + jnp.sin(last).sum(), (y, last)

    run = jax.jit(jax.value_and_grad(total, argnums=(0, 1, 2), has_aux=True))
    grads = lambda *args, **side: jax.tree.map(np.asarray, run(*args, **side))
    alone = [grads(params, TIMED[i][MASK[i]], carry[i]) for i in range(3)]
    expected_by_params = jax.tree.map(lambda *leaves: sum(leaves), *(by_params for _, (by_params, *_) in alone))
    for filling in (7.0, np.inf, np.nan):
        padded = np.where(MASK[..., None], TIMED, np.float32(filling))
        (_, (y, last)), (by_params, by_x, by_carry) = grads(params, padded, carry, mask=MASK)
        for i, ((_, (y1, last1)), (_, x1, c1)) in enumerate(alone):
            close((y[i][MASK[i]], last[i], by_x[i][MASK[i]], by_carry[i]), (y1, last1, x1, c1))
            assert not y[i][~MASK[i]].any() and not by_x[i][~MASK[i]].any()
        close(by_params, expected_by_params, tolerance=1e-5)


def test_invalid_masks_are_rejected_and_the_repair_works():
    net = Serial(Recurrent(TanhCell(4)))
    params = drawn(net, TIMED)
    for wrong in (MASK[:, :5], MASK[0]):
        with pytest.raises(ValueError, match=r"a mask of shape \(3, 6\)"):
            net.apply(params, TIMED, mask=wrong)
    for wrong in (MASK.astype(np.float32), MASK.tolist()):
        with pytest.raises(TypeError, match="a boolean mask"):
            net.apply(params, TIMED, mask=wrong)
    jax.eval_shape(functools.partial(net.apply, mask=MASK), params, TIMED)
    with pytest.raises(TypeError, match="expected a cell.* got Recurrent"):
        Recurrent(Recurrent(TanhCell(4)))


def test_recurrent_passes_side_inputs_to_the_init_of_its_cell():
    """The carry may depend on the shape of a side input and on a flag."""

    def Cell():
        def init(key, x, *, context, wide=False):
            return (), jnp.ones(context.shape[-1] * (1 + wide), x.dtype)

        def apply(params, carry, x, *, context, wide=False):
            return x + carry.sum(), carry + context.sum()

        return StatefulLayer(init, apply)

    x, context = jnp.zeros((2, 1)), jnp.ones(3)
    y = jax.jit(lambda context: Recurrent(Cell()).apply((), x, context=context, wide=True))(context)
    np.testing.assert_array_equal(y.ravel(), [6, 24])


def test_recurrent_rejects_running_statistics():
    cell = Serial(TanhCell(4), Center())
    with pytest.raises(TypeError, match="running statistics") as error:
        Recurrent(cell).init(jax.random.key(0), TIMED)
    assert "stateful=True" in str(error.value)
    net = Recurrent(cell, stateful=True)
    params, state = drawn(net, TIMED)
    _, after = compiled(net.apply)(params, state, TIMED, train=True)
    assert (after[1]["mean"] != state[1]["mean"]).any()
    jax.eval_shape(Recurrent(Serial(TanhCell(4), Noise())).init, jax.random.key(0), TIMED)


def test_recurrent_runs_under_shard_map():
    """For a batch that is sharded over devices, values and gradients equal those on one device."""
    net, x = Recurrent(TanhCell(4)), np.random.default_rng(2).normal(size=(16, *TIMED.shape[1:])).astype(np.float32)
    params = drawn(net, x)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec
    spread = jax.shard_map(net.apply, mesh=mesh, in_specs=(spec(), spec("data")), out_specs=spec("data"))

    def total(apply):
        return jax.jit(jax.value_and_grad(lambda params: (apply(params, x) ** 2).sum()))

    close(total(spread)(params), total(net.apply)(params), tolerance=1e-5)


def test_residual_errors_name_the_changed_shape_or_dtype(sentences):
    with pytest.raises(ValueError, match=r"y.astype\(float32\)"):
        Residual(lambda x: x.astype(jnp.bfloat16)).apply(((),), X)
    with pytest.raises(TypeError, match="got a dict in and a dict out"):
        Residual(lambda d: d).apply(((),), {"a": X})


def test_errors_of_stateful_nets_give_the_correct_call(sentences):
    net = Serial(Dense(3), Center(), relu)
    params, state = drawn(net, X)
    for wrong in ((params, X), ((params, state), state, X), (X, params, X)):
        with pytest.raises(ValueError, match=r"apply\(params, state, x\)"):
            net.apply(*wrong)
    with pytest.raises(ValueError, match=r"got float32 \(4, 5\); .*apply\(params, x\)"):
        Serial(Dense(3), relu).apply(X, params)


def test_a_stateful_layer_without_returned_state_is_rejected():
    with pytest.raises(TypeError, match=r"to return \(outputs, state\), got float32 \(4, 5\)"):
        Serial(StatefulLayer(lambda key, x: ((), ()), lambda params, state, x: x)).apply(((),), ((),), X)
    with pytest.raises(TypeError, match=r"to return \(params, state\), got \(\); return both"):
        Serial(StatefulLayer(lambda key, x: (), lambda params, state, x: (x, state))).init(jax.random.key(0), X)


def test_names_that_are_not_identifiers_are_rejected():
    for name in ("a.b", "a/b", "0"):
        with pytest.raises(ValueError, match="rename it"):
            Serial(**{name: relu})


def test_repeat_errors_for_several_arrays_give_the_repair(sentences):
    graph = Graph(jnp.ones((3, 4)), jnp.array([0]), jnp.array([1]))
    with pytest.raises(ValueError, match="give the last layer 4 features"):
        Repeat(GCN(7), 2).init(jax.random.key(0), graph)
    jax.eval_shape(Repeat(GCN(4), 2).init, jax.random.key(0), graph)
    with pytest.raises(ValueError, match="return one array for each input"):
        Repeat(lambda x: (x, x), 2).init(jax.random.key(0), X)


def test_repeat_and_stateful_recurrent_layers_run_inside_shard_map():
    """An ensemble with one net per device on the same input, and a stream that starts inside shard_map."""
    mesh = jax.make_mesh((8,), ("nets",), axis_types=(jax.sharding.AxisType.Auto,))
    net = Repeat(Dense(5), 2)
    keys = jax.random.split(jax.random.key(0), 8)
    ensemble = jax.jit(jax.vmap(lambda key: net.init(key, X)))(keys)

    def one(params, x):
        return net.apply(jax.tree.map(lambda p: p[0], params), x)[None]

    spread = jax.shard_map(one, mesh=mesh, in_specs=(jax.P("nets"), jax.P()), out_specs=jax.P("nets"))
    close(jax.jit(spread)(ensemble, X), jax.jit(jax.vmap(net.apply, in_axes=(0, None)))(ensemble, X))

    stream = Recurrent(TanhCell(4), stateful=True)
    params, _ = drawn(stream, TIMED)
    many = np.tile(TIMED, (8, 1, 1))

    def begin(params, x):
        return stream.apply(params, stream.init(jax.random.key(0), x)[1], x)[0]

    spread = jax.shard_map(begin, mesh=mesh, in_specs=(jax.P(), jax.P("nets")), out_specs=jax.P("nets"))
    close(jax.jit(spread)(params, many), jax.jit(begin)(params, many))


def test_shapes_are_inferred_in_evaluation_mode():
    """A layer that needs a device axis or a key for training needs neither for the inference of its shapes."""

    def Centered():
        def init(key, x):
            return ()

        def apply(params, x, *, train=False, key=None):
            return x - jax.lax.pmean(x, "devices") * jax.random.uniform(key, x.shape) if train else x

        return Layer(init, apply)

    net = Serial(Dense(3), Centered(), Dense(2))
    params = jax.eval_shape(functools.partial(net.init, train=True), jax.random.key(0), X)
    assert params[2]["kernel"].shape == (3, 2)


def test_the_net_rejects_an_invalid_key(sentences):
    net = Serial(Noise())
    with pytest.raises(TypeError, match="Serial expected key to be a key, got 0"):
        net.apply(((),), X, train=True, key=0)


@pytest.mark.parametrize("build", [Serial, Parallel, Residual, Frozen, Recurrent])
@pytest.mark.parametrize("value", [5, 2.5, True, None, (Dense(3),)], ids=repr)
def test_what_is_no_layer_has_a_repair(build, value, sentences):
    """A sentence that names the builder, and ends with what to do."""
    into = "Parallel" if build is Parallel else "Serial"
    repair = f"write {into}(*layers)." if isinstance(value, tuple) else "pass a layer, such as Dense(3), or a function"
    said = f"{build.__name__} expected a layer or a function of arrays, got "
    with pytest.raises(TypeError, match=rf"^{said}.*; {re.escape(repair)}"):
        build(value)


def test_nested_wires_infer_shapes_once():
    """Each level calls the next one twice, for shapes and for params: without a cache 2 ** depth times."""
    traced = []

    def counting(f, x):
        traced.append(None)
        return f.inner(x)

    net = Dense(3)
    for _ in range(6):
        net = Wire(counting, inner=net)
    jax.eval_shape(net.init, jax.random.key(0), jnp.zeros(2))
    assert len(traced) < 60  # a few at each level


def test_shapes_have_the_dtypes_of_jax():
    """NumPy's defaults have 64 bits: JAX 0.11 warns of a ``ShapeDtypeStruct`` with these, where 32 are enabled."""
    arrays_of_numpy = np.zeros(2), np.zeros(3, np.int64), jnp.zeros(1, jnp.bfloat16), jax.random.key(0)
    shapes = as_shapes((*arrays_of_numpy, "mean"))
    assert [x.dtype for x in shapes[:3]] == [np.float32, np.int32, jnp.bfloat16] and shapes[4] == "mean"
    assert jnp.issubdtype(shapes[3].dtype, jax.dtypes.prng_key)
    with jax.enable_x64(True):
        assert [x.dtype for x in as_shapes(arrays_of_numpy[:2])] == [np.float64, np.int64]


def test_shapes_may_depend_on_whether_there_is_a_key():
    """One layer at two places, with and without a key, is not taken for one question."""

    def init(key, x, *, sequence_key=None):
        return ()

    def apply(params, x, *, sequence_key=None):
        return x if sequence_key is None else jnp.concatenate([x, x], -1)

    layer = Layer(init, apply)
    forward = lambda f, x: f.dense(f.wide(f.narrow(x, sequence_key=None), sequence_key=jax.random.key(1)))
    net = Wire(forward, narrow=layer, wide=layer, dense=Dense(2))
    params = drawn(net, jnp.ones(3))
    assert params["dense"]["kernel"].shape == (6, 2)
    assert jax.eval_shape(net.apply, params, jnp.ones(3)).shape == (2,)


def test_init_traces_each_layer_once_whatever_is_around_it():
    """Its output shapes are those of its last layers, so only the layers that others follow run."""
    calls, made = [], {}

    def counted(name):
        made[name] = 0

        def init(key, x):
            made[name] += 1
            return ()

        # Half of them read a key, whose values have no influence on shapes.
        doubled = lambda params, x: calls.append(name) or x * 2
        return Layer(init, doubled if "0" in name else lambda params, x, *, key=None: doubled(params, x))

    pair = lambda name: Serial(Serial(counted(f"{name}0")), Frozen(Residual(counted(f"{name}1"))))
    both = lambda name: Serial(Parallel(pair(f"{name}a"), pair(f"{name}b")), jnp.add)
    inner = Wire(lambda f, x: f.block(x), block=Serial(Repeat(both("r"), 3), both("s")))
    net = Serial(Wire(lambda f, x: f.inner(f.inner(x)), inner=inner), both("t"), Dense(2))
    params = drawn(net, X)
    names = sorted(f"{block}{branch}{i}" for block in "rst" for branch in "ab" for i in "01")
    assert sorted(calls) == names
    # Outside of any Wire once, inside of two of them and a Repeat for the shapes of each, and for the params.
    assert {made[name] for name in names} == {1, 3, 4}, made
    x = X
    for _ in range(2):  # each branch doubles, then triples
        for _ in range(4):
            x = 2 * 6 * x
    expected = 2 * 6 * x @ params[2]["kernel"] + params[2]["bias"]
    np.testing.assert_allclose(compiled(net.apply)(params, X), expected, rtol=1e-5)


def test_the_cache_of_shapes_ends_with_init():
    """Under another number of devices the same input shapes are inferred again."""
    wide = Wire(lambda f, x: f.a(jax.lax.all_gather(x, "i", tiled=True, axis=-1)), a=Dense(3))
    for devices in (2, 4):
        init = jax.vmap(lambda x: wide.init(jax.random.key(0), x), axis_name="i")
        params = jax.eval_shape(init, jnp.zeros((devices, 5)))
        assert params["a"]["kernel"].shape == (devices, 5 * devices, 3)


def test_outputs_have_names_only_on_request_also_in_jitted_functions():
    """JAX traces a jitted function again where names are requested, so that none remain in its cache."""
    net = Serial(relu, relu)
    jitted = jax.jit(lambda x: net.apply(((), ()), x))
    program = lambda: str(jax.make_jaxpr(lambda x: jitted(x))(X))
    before = program()
    with named_outputs():
        named = program()
    assert "0.relu" in named and "1.relu" in named and "0.relu" not in before and program() == before


def test_a_wrapped_apply_has_its_own_output_shape():
    """``functools.wraps`` refers to the apply inside, which has other outputs."""
    inner = Serial(Dense(3))

    @functools.wraps(inner.apply)
    def twice(params, x):
        return jnp.concatenate([inner.apply(params, x)] * 2, -1)

    net = Serial(Layer(inner.init, twice), Dense(2))
    params = jax.eval_shape(net.init, jax.random.key(0), jnp.ones((4, 3)))
    assert params[1]["kernel"].shape == (6, 2)
