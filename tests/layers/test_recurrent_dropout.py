"""Dropout of the carry by one mask for all steps: loops in NumPy, frequencies, nestings, errors."""

import functools

import arrays
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import compiled, drawn
from zoo_recurrent import gates, lstm, sigma

from jaxblocks import (
    LSTM,
    Dense,
    Dropout,
    GRUCell,
    Layer,
    LSTMCell,
    Recurrent,
    Repeat,
    Residual,
    Serial,
    Wire,
    identity,
)
from jaxblocks.core import StatefulLayer
from jaxblocks.core.keys import child_key
from jaxblocks.layers import RecurrentDropout, WeightNorm

close = functools.partial(arrays.close, tolerance=4e-6)
X = arrays.normal(1, 3, 6, 2).astype(np.float32)
KEY = jax.random.key(7)


def Probe(like):
    """A cell whose outputs are the carry that it reads."""
    return StatefulLayer(lambda key, x: ((), like), lambda params, carry, x: (carry, jax.tree.map(jnp.ones_like, like)))


def gru_step(p, x, read, h):
    n = h.shape[-1]
    r, z = np.split(sigma(gates(p, x, read)[..., : 2 * n]), 2, -1)
    of_h = read @ p["recurrent_kernel"][:, 2 * n :] + p["recurrent_bias"][2 * n :]
    new = np.tanh(x @ p["kernel"][:, 2 * n :] + p["bias"][2 * n :] + r * of_h)
    return (1 - z) * new + z * h


def gru_before_step(p, x, read, h):
    n = h.shape[-1]
    r, z = np.split(sigma(gates(p, x, read)[..., : 2 * n]), 2, -1)
    of_h = (r * read) @ p["recurrent_kernel"][:, 2 * n :] + p["recurrent_bias"][2 * n :]
    return (1 - z) * np.tanh(x @ p["kernel"][:, 2 * n :] + p["bias"][2 * n :] + of_h) + z * h


def of_lstm(step):
    def run(p, x, read, carry):
        h, (_, c) = step(p, x, (read["hidden"], carry["cell"]))
        return {"hidden": h, "cell": c}

    return run


CELLS = {
    "GRU": (GRUCell(4), gru_step),
    "GRU, reset before": (GRUCell(4, reset="before"), gru_before_step),
    "LSTM": (LSTMCell(4), of_lstm(lstm)),
}


def hidden(carry):
    return carry["hidden"] if isinstance(carry, dict) else carry


@pytest.mark.parametrize("kind", CELLS)
def test_one_mask_for_all_steps_before_the_recurrent_kernels(kind):
    """In training against a loop with the mask that a probe reads; in evaluation the cell itself."""
    cell, formula = CELLS[kind]
    params, carry = drawn(cell, X[:, 0])
    net, own = Recurrent(RecurrentDropout(cell, 0.5)), RecurrentDropout(cell, 0.5)

    def steps(params, carry):
        for t in range(6):
            y, carry = own.apply(params, carry, X[:, t], train=True, sequence_key=child_key(KEY, "sequence_key"))
        return y

    @jax.jit
    def run(params):
        probe = RecurrentDropout(Probe(jax.tree.map(jnp.ones_like, carry)), 0.5)
        masks = Recurrent(probe).apply((), X, train=True, key=KEY)
        mask = jax.tree.map(lambda m: m[:, 1], masks)
        in_training = net.apply(params, X, train=True, key=KEY)
        return mask, in_training, steps(params, carry), net.apply(params, X), Recurrent(cell).apply(params, X)

    mask, in_training, last, in_evaluation, plain = jax.tree.map(np.asarray, run(params))
    assert set(np.unique(hidden(mask))) == {0, 2}
    found, state = [], jax.tree.map(np.asarray, carry)
    for t in range(6):
        state = formula(params, X[:, t], jax.tree.map(np.multiply, mask, state), state)
        found.append(hidden(state))
    close(in_training, np.stack(found, 1))
    close(last, found[-1])
    close(in_evaluation, plain)


def test_every_sequence_and_every_cell_has_its_own_mask():
    """Two cells in one scan, and copies in a `Repeat`; each mask is the same at all steps."""
    ones = jnp.ones((3, 32))
    probe = RecurrentDropout(Probe(ones), 0.5)
    x = jnp.zeros((3, 4, 32))
    minus = RecurrentDropout(StatefulLayer(lambda key, x: ((), ones), lambda p, h, x: (h - x, ones)), 0.5)
    apply = lambda net: Recurrent(net).apply(net.init(KEY, x[:, 0])[0], x, train=True, key=KEY)
    one, *several = jax.jit(lambda: (apply(probe), apply(Serial(probe, minus)), apply(Repeat(minus, 2))))()
    assert (one == one[:, :1]).all() and not (one[0] == one[1]).all()
    for difference in several:
        assert (difference == difference[:, :1]).all() and set(np.unique(difference)) == {-2, 0, 2}


def test_the_key_of_the_sequence_is_that_of_no_step():
    """Of two cells at different depths, each of which draws from its key itself; the cells require their keys."""

    def noise(params, x, *, sequence_key):
        return jax.random.uniform(sequence_key, (3,))

    def another(params, x, *, key):
        return jnp.stack([x, jax.random.uniform(key, (3,))])

    cells = [Layer(lambda key, x: (), apply) for apply in (noise, another)]
    wire = Wire(lambda f, x: f.one(x), one=Repeat(cells[0], 1))
    for first in (wire, Serial(identity, cells[0])):
        net = Recurrent(Serial(first, cells[1]))
        found = compiled(lambda x, net=net: net.apply(net.init(KEY, x), x, key=KEY))(np.ones((4, 3), np.float32))
        of_sequence, of_step = found[:, 0], found[:, 1]
        assert (of_sequence == of_sequence[:1]).all() and len(np.unique(of_step)) == 12
        assert not np.isin(of_step, of_sequence).any()


def test_a_cell_that_draws_too_has_another_key():
    """Its own ``sequence_key`` is not the one of which the mask is drawn."""
    read = lambda params, carry, x, *, sequence_key=None: (jax.random.key_data(sequence_key), carry)
    cell = RecurrentDropout(StatefulLayer(lambda key, x: ((), jnp.ones(4)), read), 0.5)
    found, _ = cell.apply((), jnp.ones(4), X, train=True, sequence_key=KEY)
    np.testing.assert_array_equal(found, jax.random.key_data(child_key(KEY, "cell")))


def test_a_complex_carry_is_kept_or_dropped_whole():
    old = np.full(200, 1 + 2j, np.complex64)
    cell = RecurrentDropout(StatefulLayer(lambda key, x: ((), old), lambda params, carry, x: (carry, 1j * carry)), 0.5)
    read, _ = compiled(cell.apply)((), old, X, train=True, sequence_key=KEY)
    assert set(np.unique(read)) == {0, 2 + 4j}
    assert abs(np.mean(read == 0) - 0.5) < 0.15


def test_cells_with_residuals_in_one_scan():
    """``Recurrent`` of several cells equals several layers."""
    cells = Recurrent(Serial(LSTMCell(4), Residual(RecurrentDropout(LSTMCell(4), 0.5), Dropout(0.5))))
    layers = Serial(LSTM(4), Residual(Recurrent(RecurrentDropout(LSTMCell(4), 0.5)), Dropout(0.5)))
    params = drawn(cells, X)
    found, expected = jax.jit(lambda p: (cells.apply(p, X), layers.apply(p, X)))(params)
    close(found, expected)


def test_wrong_wrappers_are_rejected(sentences):
    with pytest.raises(TypeError, match=r"RecurrentDropout expected a recurrent cell, got LSTM.*; pass the cell"):
        RecurrentDropout(LSTM(3), 0.1)
    around = (
        Serial(GRUCell(3), Dense(2)),
        Residual(GRUCell(2)),
        Repeat(GRUCell(2), 2),
        Wire(lambda f, x: f.cell(x), cell=GRUCell(3)),
        WeightNorm(GRUCell(3)),
        LSTM(3, stateful=True),
        RecurrentDropout(GRUCell(3), 0.5),
    )
    for layer in around:
        with pytest.raises(TypeError, match=r"RecurrentDropout .* single .*, got .*Serial\(RecurrentDropout\(LSTMCell"):
            RecurrentDropout(layer, 0.1)
    Serial(RecurrentDropout(LSTMCell(8), 0.1), Dense(2))
    own = StatefulLayer(GRUCell(3).init, lambda params, h, x, *, mask=None: (x, h))
    RecurrentDropout(own, 0.1)  # a cell of one's own may read a mask
    jax.eval_shape(Recurrent(RecurrentDropout(LSTMCell(8), 0.1)).init, KEY, X)  # as the error advises
    params, _ = drawn(LSTMCell(3), X[:, 0])
    with pytest.raises(ValueError, match=r"a key in training, got none"):
        Recurrent(RecurrentDropout(LSTMCell(3), 0.5)).apply(params, X, train=True)
    with pytest.raises(ValueError, match=r"LSTMCell expected .*kernel \(in, 4\*hidden\)"):
        Recurrent(RecurrentDropout(LSTMCell(3), 0.5)).apply(params, X[..., :1], train=True, key=KEY)
