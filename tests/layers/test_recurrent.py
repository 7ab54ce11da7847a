"""Recurrent layers: values of PyTorch and of the lecture, loops, streams, both directions, long sequences."""

import functools

import arrays
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import compiled, drawn
from derivatives import check_second_order, drawn_like

from jaxblocks import (
    GRU,
    LSTM,
    RNN,
    BatchNorm,
    Bidirectional,
    Dense,
    GRUCell,
    LSTMCell,
    Recurrent,
    RNNCell,
    Serial,
    StatefulLayer,
    Wire,
)
from jaxblocks.backend.derivative_rules import visible_products
from jaxblocks.layers import gru_step, lstm_step, rnn_step

close = functools.partial(arrays.close, tolerance=4e-6)

X = np.random.default_rng(1).normal(size=(3, 6, 2)).astype(np.float32)
MASK = np.array([[1, 1, 1, 1, 1, 1], [0, 1, 0, 0, 1, 1], [1, 1, 1, 0, 0, 0]], bool)


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch", reason="requires PyTorch; run make parity")


# ---- PyTorch


def test_a_reversed_gru_and_its_gradients_match_pytorch(torch):
    """The params are those of torch.nn.GRU, transposed, with the order of gates of PyTorch."""
    with jax.enable_x64(True):
        x = np.random.default_rng(0).normal(size=(3, 5, 2))
        module = torch.nn.GRU(2, 4, batch_first=True, dtype=torch.float64)
        names = ("kernel", "recurrent_kernel", "bias", "recurrent_bias")
        params = {name: p.detach().numpy().T for name, p in zip(names, module.parameters(), strict=True)}
        net = Recurrent(GRUCell(4), reverse=True)
        weights = np.broadcast_to(np.cos(np.arange(4)), (3, 5, 4))

        def total(params, x):
            y = net.apply(params, x)
            return (y * weights).sum(), y

        (_, y), (by_params, by_x) = jax.jit(jax.value_and_grad(total, argnums=(0, 1), has_aux=True))(params, x)
        given = torch.tensor(x, requires_grad=True)
        outputs = module(given.flip(1))[0].flip(1)
        (outputs * torch.cos(torch.arange(4, dtype=outputs.dtype))).sum().backward()
        close(y, outputs.detach().numpy(), tolerance=1e-10)
        close(by_x, given.grad.numpy(), tolerance=1e-10)
        for mine, theirs in zip(names, module.parameters(), strict=True):
            close(by_params[mine], theirs.grad.numpy().T, tolerance=1e-9)


def test_gru_with_reset_before_the_product_is_the_published_one():
    """n = tanh(x W + (r h) U + b) in NumPy; the form with reset after the product differs (negative control)."""
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        x, h = rng.normal(size=(3, 2)), rng.normal(size=(3, 4))
        w, u, b, c = (rng.normal(size=s) for s in ((2, 12), (4, 12), (12,), (12,)))

        def sigma(z):
            return 1 / (1 + np.exp(-z))

        r, z = np.split(sigma((x @ w + h @ u + b + c)[:, :8]), 2, -1)
        n = np.tanh((x @ w)[:, 8:] + (r * h) @ u[:, 8:] + (b + c)[8:])
        step = compiled(gru_step)
        close(step(x, h, w, u, b, c, reset="before"), (1 - z) * n + z * h, tolerance=1e-12)
        after = step(x, h, w, u, b, c, reset="after")
        assert np.abs(after - ((1 - z) * n + z * h)).max() > 1e-2


# ---- values of the lecture


def test_published_sizes():
    """n = 2, H = 3: GRU 63 and LSTM 84 parameters (both biases), 54 and 72 with one; the same for any length."""
    for length in (1, 6):
        size = lambda layer, x=jnp.zeros((length, 2)): sum(
            p.size for p in jax.tree.leaves(jax.eval_shape(layer.init, jax.random.key(0), x))
        )
        count = {
            kind: [size(layer(3, recurrent_bias=both)) for both in (True, False)]
            for kind, layer in (("RNN", RNN), ("GRU", GRU), ("LSTM", LSTM))
        }
        assert count == {"RNN": [21, 18], "GRU": [63, 54], "LSTM": [84, 72]}


def test_a_linear_recurrence():
    """h_t = h_{t-1} / 2 + x_t with x = 1 gives 1, 1.5, 1.75, 1.875; h_0 is zero, and can be set."""
    cell = RNNCell(1, activation=lambda z: z, use_bias=False, recurrent_bias=False)
    params = {"kernel": np.eye(1, dtype=np.float32), "recurrent_kernel": np.full((1, 1), 0.5, np.float32)}
    x = np.ones((4, 1), np.float32)
    np.testing.assert_array_equal(compiled(Recurrent(cell).apply)(params, x).ravel(), [1, 1.5, 1.75, 1.875])
    y, last = compiled(Recurrent(cell, stateful=True).apply)(params, np.array([2], np.float32), x)
    np.testing.assert_array_equal(y.ravel(), [2, 2, 2, 2])
    assert last.item() == 2


def biases_at_init(cell):
    """Without the kernels, whose draws XLA removes."""
    init = lambda key, x: {name: p for name, p in cell.init(key, x)[0].items() if "bias" in name}
    return jax.jit(init)(jax.random.key(0), X[:, 0])


def test_forget_bias_is_added_to_the_existing_bias():
    biases = biases_at_init(LSTMCell(2, forget_bias=3.0, use_bias=False))
    np.testing.assert_array_equal(biases["recurrent_bias"], [0, 0, 3, 3, 0, 0, 0, 0])
    assert biases_at_init(LSTMCell(2, use_bias=False, recurrent_bias=False)) == {}
    biases = biases_at_init(LSTMCell(2, bias_init=jax.nn.initializers.ones))
    np.testing.assert_array_equal(biases["bias"], [1, 1, 2, 2, 1, 1, 1, 1])  # by default 1 is added


def test_forget_bias_is_that_of_the_forget_gate():
    biases = biases_at_init(LSTMCell(2, forget_bias=3.0))
    np.testing.assert_array_equal(biases["bias"], [0, 0, 3, 3, 0, 0, 0, 0])
    np.testing.assert_array_equal(biases["recurrent_bias"], np.zeros(8))


def test_each_gate_is_initialized_orthogonal():
    params, _ = GRUCell(4).init(jax.random.key(0), X[:, 0])
    for gate in np.split(np.asarray(params["recurrent_kernel"]), 3, axis=1):
        np.testing.assert_allclose(gate @ gate.T, np.eye(4), atol=1e-5)


# ---- time


def test_padding_has_no_effect():
    """Outputs, last carry and gradients of a masked batch are those of each sequence alone."""
    net = Recurrent(LSTMCell(4), stateful=True)
    params, carry = drawn(net, X)

    @jax.jit
    def grads(params, x, carry, mask):
        def total(params, x):
            y, last = net.apply(params, carry, x, mask=mask)
            return (y**2).sum() + sum(jnp.sin(leaf).sum() for leaf in jax.tree.leaves(last)), (y, last)

        return jax.grad(total, argnums=(0, 1), has_aux=True)(params, x)

    with jax.debug_nans(False):
        padded = np.where(MASK[..., None], X, np.float32(np.nan))
        (by_params, by_x), (y, last) = jax.tree.map(np.asarray, grads(params, padded, carry, MASK))
    summed = jax.tree.map(np.zeros_like, params)
    for i in range(3):
        rows = np.flatnonzero(MASK[i])
        own = jax.tree.map(lambda c, i=i: c[i], carry)
        (p1, x1), (y1, last1) = grads(params, X[i, rows], own, np.ones(len(rows), bool))
        close((y[i, rows], by_x[i, rows], jax.tree.map(lambda c, i=i: c[i], last)), (y1, x1, last1))
        summed = jax.tree.map(np.add, summed, p1)
    close(by_params, summed, tolerance=1e-5)


def test_scan_and_unrolled_scan_equal_a_loop():
    cell, x = GRUCell(4), X[:, :3]
    params, carry = drawn(cell, X[:, 0])

    def loop(params, x):
        h, outputs = carry, []
        for t in range(x.shape[1]):
            y, h = cell.apply(params, h, x[:, t])
            outputs.append(y)
        return jnp.stack(outputs, 1)

    ways = [loop, *(Recurrent(cell, unroll=unroll).apply for unroll in (1, 2, True))]
    of = lambda way: jax.value_and_grad(lambda p, x: (way(p, x) ** 2).sum(), argnums=(0, 1))
    expected, *found = jax.jit(lambda p, x: [of(way)(p, x) for way in ways])(params, x)
    for one in found:
        close(one, expected)
    with pytest.raises(ValueError, match="Recurrent expected unroll to be an integer >= 0 or True or False, got -1; "):
        Recurrent(cell, unroll=-1)


CELLS_OF_PARTS = {
    "LSTM, reversed": (LSTMCell(5), {"reverse": True}, 33),
    "GRU": (GRUCell(5), {}, 32),
    "GRU without biases, in a program without loop": (
        GRUCell(3, use_bias=False, recurrent_bias=False),
        {"unroll": True},
        3,
    ),
    "GRU of no step": (GRUCell(5), {"reverse": True}, 0),
}


@pytest.mark.parametrize("name", CELLS_OF_PARTS)
def test_all_derivatives_are_those_of_the_plain_scan(name):
    cell, options, time = CELLS_OF_PARTS[name]
    with jax.enable_x64(True):
        net = Recurrent(cell, stateful=True, **options)
        x = jnp.ones((2, time, 3))
        lengths = jnp.array([time, time // 2])
        shapes = *jax.eval_shape(net.init, jax.random.key(0), x), x
        arguments, along = jax.tree.map(lambda a: a / 2, (drawn_like(shapes, 0), drawn_like(shapes, 1)))

        def loss(params, carry, x):
            outputs, carry = net.apply(params, carry, x, lengths=lengths)
            return sum(jnp.sum(jnp.sin(leaf + 1)) for leaf in jax.tree.leaves((outputs, carry)))

        def plain(*arguments):
            with visible_products():
                return loss(*arguments)

        check_second_order(loss, plain, arguments, along)


def test_streams_and_truncated_backpropagation():
    """Pieces with the carry of the previous piece equal the whole; a stopped carry truncates the gradient."""
    net = LSTM(4, stateful=True)
    params, carry = drawn(net, X)

    def loss(x, cut):
        first, middle = net.apply(params, carry, x[:, :4])
        middle = jax.lax.stop_gradient(middle) if cut else middle
        second, end = net.apply(params, middle, x[:, 4:])
        return second.sum(), (jnp.concatenate([first, second], 1), end)

    (full, pieces), (truncated, _) = (compiled(jax.grad(loss, has_aux=True))(X, cut) for cut in (False, True))
    close(pieces, compiled(net.apply)(params, carry, X))
    close(truncated[:, 4:], full[:, 4:])
    assert not truncated[:, :4].any() and full[:, :4].all()


def test_both_directions_with_carries():
    """The carry of each direction enters where it begins and is returned where it ends."""
    net = Bidirectional(GRUCell(3), LSTMCell(4), stateful=True)
    params, state = drawn(net, X)
    state = jax.tree.map(lambda leaf: leaf + np.float32(0.5), state)
    y, last = compiled(net.apply)(params, state, X, mask=MASK)
    forward, backward = (compiled(layer(n, stateful=True).apply) for layer, n in ((GRU, 3), (LSTM, 4)))
    ahead, end = forward(params["forward"], state["forward"], X, mask=MASK)
    back, start = backward(params["backward"], state["backward"], X[:, ::-1], mask=MASK[:, ::-1])
    close((y, last), (np.concatenate([ahead, back[:, ::-1]], -1), {"forward": end, "backward": start}))


# ---- errors


def test_wrong_arguments_are_rejected(sentences):
    net = LSTM(4, stateful=True)
    params, carry = drawn(net, X)
    with pytest.raises(
        ValueError,
        match=r"LSTMCell expected .*kernel \(in, 4\*hidden\) with the same size of in, got .* and float32 \(2, 16\)",
    ):
        net.apply(params, carry, np.ones((3, 6, 3), np.float32))
    with pytest.raises(
        ValueError,
        match=r"its carry, {'cell': 'float32 \(2, 4\)'.*got {'cell': 'float32 \(3, 4\)'.*pass the carry that init made",
    ):
        net.apply(params, carry, X[:2])
    compiled(net.apply)(params, drawn(net, X[:2])[1], X[:2])
    for wrong in ((), {"hidden": X}):
        with pytest.raises(
            TypeError, match=r"LSTMCell expected its carry, {'cell': 'float32 .* pass the carry that init made"
        ):
            net.apply(params, wrong, X)
    for build in (GRU, RNN):
        with pytest.raises(TypeError, match=r"Cell expected its carry, float32 .*got \(\); pass the carry that"):
            build(4, stateful=True).apply(drawn(build(4), X), (), X)
    with pytest.raises(TypeError, match=r"pass cells: Bidirectional\(LSTMCell\(3\), LSTMCell\(3\)\)"):
        Bidirectional(LSTM(3), LSTM(3))
    jax.eval_shape(Bidirectional(LSTMCell(3), LSTMCell(3)).init, jax.random.key(0), X)
    with pytest.raises(ValueError, match="a bias for forget_bias to be added to"):
        LSTMCell(2, forget_bias=3.0, use_bias=False, recurrent_bias=False)
    with pytest.raises(TypeError, match="convert it with"):
        LSTM(4).init(jax.random.key(0), X.astype(np.int32))
    with pytest.raises(ValueError, match="'after' or 'before', got 'during'"):
        GRUCell(4, reset="during")
    with pytest.raises(ValueError, match="an integer >= 1, got 0"):
        LSTM(0)
    with pytest.raises(ValueError, match=r"inputs \(..., time, features\)"):
        LSTM(4).init(jax.random.key(0), np.ones(3, np.float32))


@pytest.mark.parametrize(
    ("after", "message"),
    [
        (lambda h: h.astype(jnp.bfloat16), r"init, float32 \(3, 2\), got bfloat16 \(3, 2\); end apply with"),
        (lambda h: h[:, :1], r"init, float32 \(3, 2\), got float32 \(3, 1\); end apply with return outputs, carry"),
        (lambda h: (h, h), r"init, PyTreeDef\(\*\), got PyTreeDef\(\(\*, \*\)\); end apply with return"),
    ],
)
def test_cells_return_a_carry_like_the_one_before(after, message, sentences):
    cell = StatefulLayer(lambda key, x: ((), jnp.zeros(x.shape)), lambda params, h, x: (x, after(h + x)))
    with pytest.raises(TypeError, match=f"^Recurrent expected the carry that .* returns to be like that of {message}"):
        Recurrent(cell).apply((), X)


def test_steps_are_functions_on_arrays():
    """Without a bias, and with one of the two biases."""
    ones = lambda *shape: np.ones(shape, np.float32)
    x, h = ones(1), ones(1)
    assert compiled(rnn_step)(x, h, ones(1, 1), ones(1, 1), recurrent_bias=-2 * ones(1)).item() == 0
    hidden, cell = compiled(lstm_step)(x, h, h, ones(1, 4), ones(1, 4), -2 * ones(4))
    assert (hidden.item(), cell.item()) == (pytest.approx(0.5 * np.tanh(0.5)), 0.5)


@pytest.mark.parametrize("steps", [5, 20])
def test_gradients_on_an_explicit_mesh_and_without_examples(steps):
    """For one part of the steps, and for chunks and the rest; the latter also without examples."""
    net, x = LSTM(4), np.random.default_rng(0).normal(size=(8, steps, 3)).astype(np.float32)
    params = drawn(net, x)
    loss = lambda params, x: jnp.sum(jnp.sin(net.apply(params, x)))
    expected = jax.jit(jax.grad(loss))(params, x)
    mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(mesh):
        found = jax.jit(jax.grad(loss))(params, jax.device_put(x, jax.P("data")))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5), found, expected)
    if steps == 20:
        nothing = jax.jit(jax.grad(loss))(params, x[:0])
        jax.tree.map(np.testing.assert_array_equal, nothing, jax.tree.map(np.zeros_like, params))


def test_lengths_are_not_of_a_head_behind_the_sequence():
    """Its batch norm reads a mask, and has inputs ``(batch, features)``, without an axis of time."""
    x, lengths = np.random.default_rng(0).normal(size=(4, 5, 3)).astype(np.float32), np.array([3, 5, 2, 4])
    net, head = GRU(2), Serial(BatchNorm(), Dense(1))
    both = Wire(lambda f, x: f.head(f.rnn(x)[:, 0]), rnn=net, head=head)
    jax.eval_shape(functools.partial(both.init, lengths=lengths), jax.random.key(0), x)
    params, state = drawn(both, x)
    outputs, _ = compiled(both.apply)(params, state, x, lengths=lengths, train=True)
    first = compiled(net.apply)(params["rnn"], x, lengths=lengths)[:, 0]
    close(outputs, compiled(head.apply)(params["head"], state["head"], first, train=True)[0])
