"""Convolutional recurrent cells: loops in NumPy, kernels of one entry, derivatives, masks, both directions, errors."""

import functools

import arrays
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import compiled, drawn
from derivatives import check_second_order, drawn_like
from zoo_conv import convolution
from zoo_recurrent import sigma

from jaxblocks import Bidirectional, GRUCell, LSTMCell, Recurrent, Residual, Serial
from jaxblocks.backend.derivative_rules import visible_products
from jaxblocks.core.lifting import spatial_axes_of
from jaxblocks.layers import ConvGRUCell, ConvLSTMCell, RecurrentDropout, conv_gru_step, conv_lstm_step

close = functools.partial(arrays.close, tolerance=4e-6)
KEY = jax.random.key(3)


def test_steps_equal_loops():
    """Three axes; stride, dilation and padding of the input; a carry whose kernel has another size."""
    draw = lambda seed, *shape: arrays.normal(seed, *shape) / 2
    x, h, c = draw(0, 2, 4, 3, 5, 2), draw(1, 2, 2, 3, 3, 2), draw(2, 2, 2, 3, 3, 2)
    w, u, b = draw(3, 2, 1, 3, 2, 8), draw(4, 1, 3, 2, 2, 8), draw(5, 8)
    of_x = convolution(x, w, b, stride=(2, 1, 1), dilation=(2, 1, 1), pads=((1, 0), 0, 0))
    of = lambda h, u: convolution(h, u, pads=(0, 1, (0, 1)))
    i, f, g, o = np.split(of_x + of(h, u), 4, -1)
    cell = sigma(f) * c + sigma(i) * np.tanh(g)
    expected = sigma(o) * np.tanh(cell), cell
    options = {"stride": (2, 1, 1), "dilation": (2, 1, 1), "padding": ((1, 0), "valid", "valid")}
    with jax.enable_x64(True):
        close(compiled(conv_lstm_step)(x, h, c, w, u, b, **options), expected, tolerance=1e-12)
        r, z = np.split(sigma((of_x + of(h, u))[..., :4]), 2, -1)
        n = np.tanh(of_x[..., 4:6] + of(r * h, u[..., 4:6]))
        found = compiled(conv_gru_step)(x, h, w[..., :6], u[..., :6], b[:6], **options)
        close(found, (1 - z) * n + z * h, tolerance=1e-12)


PAIRS = {
    "LSTM": (ConvLSTMCell(4, (1, 1)), LSTMCell(4, recurrent_bias=False)),
    "GRU": (ConvGRUCell(4, (1, 1)), GRUCell(4, reset="before", recurrent_bias=False)),
}


@pytest.mark.parametrize("kind", PAIRS)
def test_kernels_of_one_entry_are_the_dense_cells_at_each_position(kind):
    """Over time with a mask, and with dropout of the carry from one key."""
    conv, dense = PAIRS[kind]
    x = np.float32(arrays.normal(0, 2, 5, 3, 2, 2))  # (batch, time, height, width, features)
    params = drawn(Recurrent(conv, spatial=2), x)
    flat = {name: leaf.reshape(leaf.shape[-2:] if "kernel" in name else leaf.shape) for name, leaf in params.items()}
    lengths = np.array([5, 3])
    each = np.broadcast_to(lengths[:, None, None], (2, 3, 2))

    @jax.jit
    def both(params, flat):
        found = []
        for wrap in (lambda c: c, lambda c: RecurrentDropout(c, 0.5)):
            side = {} if wrap(conv) is conv else {"train": True, "key": KEY}
            at_once = Recurrent(wrap(conv)).apply(params, x, lengths=lengths, **side)
            by_position = Recurrent(wrap(dense)).apply(flat, jnp.moveaxis(x, 1, -2), lengths=each, **side)
            found.append((at_once, jnp.moveaxis(by_position, -2, 1)))
        return found

    for at_once, by_position in both(params, flat):
        close(at_once, by_position)
        assert not at_once[1, 3:].any()


def test_all_derivatives_are_those_of_the_plain_scan():
    with jax.enable_x64(True):
        cell = ConvLSTMCell(2, 3, padding_mode="circular")
        net = Recurrent(cell, spatial=1, stateful=True)
        x = jnp.ones((2, 18, 4, 2))
        shapes = *jax.eval_shape(net.init, jax.random.key(0), x), x
        arguments, along = jax.tree.map(lambda a: a / 2, (drawn_like(shapes, 0), drawn_like(shapes, 1)))

        def loss(params, carry, x):
            outputs, carry = net.apply(params, carry, x, lengths=jnp.array([18, 9]))
            return sum(jnp.sum(jnp.sin(leaf + 1)) for leaf in jax.tree.leaves((outputs, carry)))

        def plain(*arguments):
            with visible_products():
                return loss(*arguments)

        check_second_order(loss, plain, arguments, along)


def test_videos_in_both_directions_and_in_pieces():
    x = np.float32(arrays.normal(0, 2, 4, 6, 5, 2))
    net = Bidirectional(ConvLSTMCell(3, (3, 3), stride=2), ConvGRUCell(2, (3, 2), stride=2))
    params = drawn(net, x)
    one = Recurrent(ConvLSTMCell(3, (3, 3), stride=2), spatial=2, stateful=True)
    zeros = drawn(one, x)[1]

    @jax.jit
    def run(params):
        first, carry = one.apply(params["forward"], zeros, x[:, :1])
        rest, _ = one.apply(params["forward"], carry, x[:, 1:])
        backward = Recurrent(ConvGRUCell(2, (3, 2), stride=2), spatial=2).apply(params["backward"], x[:, ::-1])
        return net.apply(params, x), jnp.concatenate([first, rest], 1), backward[:, ::-1]

    both, forward, backward = run(params)
    assert both.shape == (2, 4, 3, 3, 5)
    close(both, np.concatenate([forward, backward], -1))


def test_a_combinator_of_cells_has_their_axes():
    """And a layer over time has none: it is no cell."""
    x = np.float32(arrays.normal(0, 2, 3, 4, 3, 1))
    cell = Serial(ConvLSTMCell(2, (3, 3)), Residual(ConvGRUCell(2, (3, 3))))
    params = drawn(Recurrent(cell), x)
    close(*jax.jit(lambda p: [Recurrent(cell, spatial=axes).apply(p, x) for axes in (None, 2)])(params), tolerance=0)
    assert spatial_axes_of(cell.apply) == 2 and spatial_axes_of(Recurrent(cell, stateful=True).apply) == 0


def test_wrong_arguments_are_rejected(sentences):
    x = np.ones((2, 4, 6, 5, 2), np.float32)
    net = Recurrent(ConvLSTMCell(3, (3, 3)))
    with pytest.raises(ValueError, match=r"inputs \(..., time, \*spatial, features\)"):
        net.init(KEY, x[0, 0])
    with pytest.raises(ValueError, match="spatial=2, the axes of the kernel of ConvLSTMCell, got spatial=1"):
        Recurrent(ConvLSTMCell(3, (3, 3)), spatial=1)
    params = drawn(net, x[0])
    with pytest.raises(ValueError, match=r"kernel_size with one integer for each spatial axis .*; write \(3, 3\)"):
        ConvLSTMCell(3, 3).init(KEY, x[:, 0])
    with pytest.raises(ValueError, match="a bias for forget_bias to be added to"):
        ConvLSTMCell(3, (3, 3), use_bias=False, forget_bias=2.0)
    with pytest.raises(ValueError, match=r"for each of the 2 axes of kernel_size, got \(3,\); pass as many"):
        ConvGRUCell(3, (3, 3), recurrent_kernel_size=(3,))
    compiled(ConvGRUCell(3, (3, 3), recurrent_kernel_size=(3, 1)).init)(KEY, x[:, 0])
    cell = ConvLSTMCell(3, (3, 3))
    carry = drawn(cell, x[:, 0])[1]
    with pytest.raises(ValueError, match=r"ConvLSTMCell expected its carry, .*pass the carry that init made"):
        cell.apply(params, carry, x[:, 0, 1:])
    with pytest.raises(ValueError, match=r"a carry with the positions \(2, 5, 5\) of x ⋆ W.*; make the carry by init"):
        conv_lstm_step(x[:, 0, 1:], carry["hidden"], carry["cell"], **params)
    with pytest.raises(ValueError, match="of one shape"):
        conv_lstm_step(x[:, 0], carry["hidden"][:1], carry["cell"], params["kernel"], params["recurrent_kernel"])
