"""Exact counts of matrix products and convolutions of every layer of the zoo, against counts by hand.

A product of matrices (m, k) and (k, n) takes m k n multiplications and m k n additions. So does a convolution with m
output positions, n output channels, and k the number of taps times input channels. The counts by hand below are these
m k n, from the shapes of each entry. Each entry of the zoo must have a count.
"""

import functools

import jax
import jax.numpy as jnp
import pytest
from zoo import DISTINCT, ZOO

from jaxblocks import LSTM, Dense, DepthwiseConv, Serial, relu, stateful
from jaxblocks.ad import count_flops
from jaxblocks.core.lifting import declared_by


def attention_by_hand(queries, keys, batch=1, heads=1, width=1, value_width=None, seen=None):
    """Scores q k and sums over values: per head and query, the number of attended keys times the widths of both."""
    pairs = batch * heads * queries * (keys if seen is None else seen)
    return pairs * width + pairs * (value_width or width)


def valid_taps(inputs, taps, stride=1, padding=(0, 0), dilation=1):
    """On one axis of a convolution: the number of pairs of a position and a tap that read an input, not padding."""
    positions = (inputs + sum(padding) - dilation * (taps - 1) - 1) // stride + 1
    places = (i * stride + j * dilation - padding[0] for i in range(positions) for j in range(taps))
    return sum(0 <= place < inputs for place in places)


def spread(inputs, taps, stride, padding, more):
    """For y_i = sum_j x_{(i + p - j) / s} w_j on one axis: the number of pairs (i, j) that read an input."""
    outputs = (inputs - 1) * stride + taps - 2 * padding + more
    places = (i + padding - j for i in range(outputs) for j in range(taps))
    return sum(place % stride == 0 and 0 <= place // stride < inputs for place in places)


GATES = 3 * (5 + 3)  # one gate of a recurrent cell: 3 features from 5 inputs and 3 previous features
GRAPH_BLOCK = 7 * (1 + 5 + 5) * 2 + 4 * (2 + 5) * 3 + 1 * (2 + 3) * 3  # edges, nodes, the graph; padded edges too
GAT = 4 * 5 * 2 * 3 + 2 * 4 * 2 * 3  # the projection, and two scores for each node and head

BY_HAND = {
    "Dense": 4 * 5 * 3,
    "Dense without bias": 8 * 5 * 3,
    "Bias": 0,
    "MLP": 4 * (5 * 6 + 6 * 3),
    "GLU": 2 * 4 * 5 * 3,
    "Serial": 4 * 5 * 3,
    "Serial by name": 8 * (5 * 3 + 3 * 2),
    "Serial with state": 4 * 5 * 3,
    "Serial in training": 4 * 5 * 3,
    "Parallel": 4 * 5 * 3,
    "Parallel by name": 4 * 5 * 3,
    "Residual": 4 * (5 * 7 + 7 * 5),
    "Frozen": 4 * (5 * 3 + 2 * 3 * 3),
    "LoRA": 4 * 5 * 3 + 5 * 2 * 3,
    "Repeat": 3 * 4 * 5 * 5,
    "Repeat of two layers": 3 * 4 * 5 * 5,
    "Repeat with state": 3 * 4 * 5 * 5,
    "Recurrent": 6 * 4 * GATES,
    "Recurrent in reverse": 6 * 4 * GATES,
    "Recurrent stateful": 6 * 4 * GATES,
    "Wire": 4 * (2 * 5 * 5 + 10 * 2),  # a is called twice
    "Wire with state": 4 * 5 * 5,
    "Center": 0,
    "Noise": 0,
    # Attention: four projections of 6 features, and all pairs of queries and keys.
    "Attention": 4 * 12 * 6 * 6 + attention_by_hand(4, 4, batch=3, heads=2, width=3),
    # Queries have 4 heads, keys and values 2. Chunks have 3 queries, and the 5 queries are padded to 6; each query is
    # multiplied with the 4 keys in the windows of its chunk.
    "Attention, causal, grouped heads, window, rotary, chunks": (
        15 * 6 * (8 + 4 + 4) + attention_by_hand(6, 5, batch=3, heads=4, width=2, seen=3 + 2 - 1) + 15 * 8 * 6
    ),
    "Attention with norms of queries and keys": 4 * 12 * 8 * 8 + attention_by_hand(4, 4, batch=3, heads=2, width=4),
    "Attention to a context, single, without scale": (
        6 * 6 * 4 + 12 * 5 * 4 + 12 * 5 * 3 + attention_by_hand(2, 4, batch=3, width=4, value_width=3) + 6 * 3 * 6
    ),
    "Attention with a mask of keys": 4 * 12 * 6 * 6 + attention_by_hand(4, 4, batch=3, heads=2, width=3),
    "Attention with a learned bias": 4 * 12 * 6 * 6 + attention_by_hand(4, 4, batch=3, heads=2, width=3),
    "Attention with sinks": 4 * 12 * 6 * 6 + attention_by_hand(4, 4, batch=3, heads=2, width=3),
    "RelativePositionBias": 0,
    "Attention with a cache": 4 * 12 * 6 * 8 + attention_by_hand(4, 12, batch=3, heads=2, width=4),  # 12 positions
    "SinusoidalPositions": 0,
    "SinusoidalPositions stateful": 0,
    "LearnedPositions": 0,
    "LearnedPositions stateful": 0,
    # Convolutions: batch, pairs of a position and a tap, channels per group, outputs.
    "Conv over time": 2 * valid_taps(7, 3, padding=(4, 0), dilation=2) * 2 * 3,
    "Conv of images": 2 * valid_taps(5, 3, 2, (1, 1)) * valid_taps(6, 2, 2, (1, 1)) * 2 * 3,
    "Conv of volumes on a torus": 2 * (3 * 2 * 4) * (3 * 1 * 2) * 2 * 2,
    "Conv in groups": 2 * (5 * 4) * (2 * 2) * (4 // 2) * 6,
    "DepthwiseConv": 2 * valid_taps(4, 3, 1, (1, 1)) * valid_taps(5, 3, 2, (1, 1)) * 3 * 2,
    "ConvTranspose": 2 * spread(3, 3, 2, 1, 1) * spread(4, 2, 2, 1, 1) * (6 // 2) * 4,
    "MaxPool": 0,
    "GlobalMaxPool": 0,
    "GlobalAvgPool": 0,
    "GlobalMaxPool with a mask": 0,
    "GlobalAvgPool with a mask": 0,
    "AvgPool": 0,
    "LpPool": 0,
    "Flatten": 0,
    "Pad": 0,
    "Resize": 0,  # two entries, gathered
    "UpSample": 0,
    "PixelShuffle": 0,
    "PixelUnshuffle": 0,
    "Embedding": 0,  # a lookup
    "Embedding with padding": 0,
    "Embedding, tied, on ids": 0,
    "Embedding, tied, on features": 3 * 4 * 6,
    "RandomFourierFeatures": 3 * 5 * 4,
    "RBF": 3 * 5 * 4,  # |x|^2 - 2 x c + |c|^2
    "RBF of two features": 0,  # differences, squared
    "Swish": 0,
    "ModReLU": 0,
    "PReLU": 0,
    "PReLU per feature": 0,
    "Maxout": 3 * 4 * 3 * 2,
    "Maxout of three": 3 * 4 * 2 * 3,
    "AffineCoupling": 3 * (2 * 3 + 3 * 6),
    "Flow": 3 * (2 * 3 + 3 * 6 + 2 * 4 + 4 * 6),
    "GraphBlock by softmax": GRAPH_BLOCK,
    "GraphBlock by mean, sent edges too": GRAPH_BLOCK + 4 * 2 * 3,
    "GraphMapFeatures": 4 * 5 * 3,
    "GCN": 4 * 5 * 3,  # neighbors are gathered and scattered without products
    "GAT": GAT,
    "GAT by mean without self-loops": GAT,
    "GIN": 4 * 5 * 3,
    "BatchNorm": 0,
    "BatchNorm in training": 0,
    "BatchNorm with padding": 0,
    "LayerNorm": 0,
    "LayerNorm as in the lecture": 0,
    "RMSNorm": 0,
    "UnitNorm": 0,
    "LocalResponseNorm": 0,
    "GroupNorm": 0,
    "InstanceNorm": 0,
    "WeightNorm": 3 * 4 * 3,
    "SpectralNorm": 3 * 4 * 3 + 4 * 3 + 4,  # and sigma = u (W w)
    "Dropout": 0,
    "AlphaDropout": 0,
    "FeatureDropout": 0,
    "StochasticDepth": 0,
    "RNNCell": 4 * GATES,
    "GRUCell": 4 * 3 * GATES,
    "LSTMCell": 4 * 4 * GATES,
    # Inside of the padding: 7 of 9 entries along 3 positions, 10 of 12 along 4.
    "ConvLSTMCell": 2 * 3 * 10 * (2 + 3) * 4 * 3,
    "ConvGRUCell": 2 * 3 * (2 * 3) * (2 + 3) * 3 * 3,  # padded around the circle
    "RecurrentDropout": 4 * 4 * GATES,
    "RNN": 4 * 4 * GATES,
    "GRU": 4 * 4 * 3 * GATES,
    "LSTM": 4 * 4 * 4 * GATES,
    "Bidirectional": 2 * 4 * 4 * GATES,
    # Router and its loss; each expert for all tokens, one for each of 15 blocks of 2 tokens, each for 6 tokens.
    "MixtureOfExperts": 12 * (5 + 1) * 3 + 3 * 12 * 5 * 4,
    "MixtureOfExperts in blocks": 12 * (5 + 1) * 3 + 15 * 2 * 5 * 4,
    "MixtureOfExperts with capacity": 12 * (5 + 1) * 3 + 3 * 6 * 5 * 4,
    # Two projections, to and from the two parts of 2 complex numbers.
    "LRU": 3 * 5 * 2 * 4 * 4,
    "LRU with carry": 3 * 5 * 2 * 4 * 4,
    "SelectiveSSM": 3 * 5 * 4 * (1 + 2 * 2 + 1),
    "SelectiveSSM with carry": 3 * 3 * 4 * (2 + 2 * 2 + 2),
}


def called(layer, inputs, side=None):
    """A layer's ``apply`` without its state, and the shapes of its params."""
    layer, side = stateful(layer), side or {}
    for_init = {name: value for name, value in side.items() if name in declared_by(layer.init)}
    params, state = jax.eval_shape(lambda *inputs: layer.init(jax.random.key(0), *inputs, **for_init), *inputs)

    def f(params, *inputs):
        held = jax.tree.map(lambda leaf: jnp.ones(leaf.shape, leaf.dtype), state)
        return layer.apply(params, held, *inputs, **side)[0]

    return f, params


@functools.cache
def row_called(name):
    """`called` of a row of the zoo, and its inputs."""
    row = ZOO[name]
    inputs = row.inputs()
    return *called(row.layer, inputs, row.side), inputs


def test_every_entry_of_the_zoo_has_a_count():
    missing, unknown = sorted(set(ZOO) - set(BY_HAND)), sorted(set(BY_HAND) - set(ZOO))
    assert not missing, f"add the number of multiplications in products to BY_HAND for {missing}"
    assert not unknown, f"BY_HAND has entries that are not in the zoo: {unknown}"


@pytest.mark.parametrize("name", ZOO)
def test_products_are_counted_exactly(name):
    f, params, inputs = row_called(name)
    counted = count_flops(f, params, *inputs)
    assert counted.dots == 2 * BY_HAND[name]
    assert counted.uncounted == {}
    assert counted.loops == ()
    assert counted.flops >= counted.dots


# The gradient with respect to params and inputs has three products for each product of the function: the product itself
# and one for each factor. The exceptions are:
GRADIENT_BY_HAND = {
    "Repeat with state": 4 * BY_HAND["Repeat with state"],  # rematerialized: computed twice
    "Attention, causal, grouped heads, window, rotary, chunks": (  # scores of chunks are computed twice
        3 * BY_HAND["Attention, causal, grouped heads, window, rotary, chunks"]
        + attention_by_hand(6, 5, batch=3, heads=4, width=2, seen=4) // 2
    ),
    "SpectralNorm": 3 * (3 * 4 * 3) + 2 * (4 * 3 + 4),  # the singular vectors are held constant
    # Frozen kernels have no gradient.
    "Frozen": 2 * BY_HAND["Frozen"],
    # Of cells the initial carry is not an argument.
    "RNNCell": 3 * BY_HAND["RNNCell"] - 4 * (3 * 3),
    "LSTMCell": 3 * BY_HAND["LSTMCell"] - 4 * 4 * (3 * 3),
    "GRUCell": 3 * BY_HAND["GRUCell"] - 4 * 3 * (3 * 3),
    # The fractions of choices in the loss of the router have no gradient.
    "MixtureOfExperts": 3 * (12 * 5 * 3 + 3 * 12 * 5 * 4) + 2 * 12 * 3,
    "MixtureOfExperts in blocks": 3 * (12 * 5 * 3 + 15 * 2 * 5 * 4) + 2 * 12 * 3,
    "MixtureOfExperts with capacity": 3 * (12 * 5 * 3 + 3 * 6 * 5 * 4) + 2 * 12 * 3,
}


@pytest.mark.parametrize("name", DISTINCT)
def test_products_of_gradients_are_counted_exactly(name):
    f, params, inputs = row_called(name)

    def loss(params, inputs):
        return sum(jnp.sum(y.astype(jnp.float32) ** 2) for y in jax.tree.leaves(f(params, *inputs)))

    counted = count_flops(jax.grad(loss, (0, 1), allow_int=True), params, inputs)
    assert counted.uncounted == {}
    assert counted.dots == 2 * GRADIENT_BY_HAND.get(name, 3 * BY_HAND[name])


# ---- single layers -----------------------------------------------------------------------------


def products(f, *args):
    return count_flops(f, *args).dots // 2


def shape(*sizes):
    return jax.ShapeDtypeStruct(sizes, jnp.float32)


def test_shifted_products_count_like_a_depthwise_convolution(monkeypatch):
    """Batch x positions x window x channels x outputs per channel products, on CPU as on other backends."""
    x = shape(2, 4, 5, 3)
    f, params = called(DepthwiseConv((3, 3), multiplier=2, stride=(1, 2), padding="same", use_bias=False), (x,))
    forward, backward = f, jax.grad(lambda params, x: f(params, x).sum())
    here = [count_flops(g, params, x) for g in (forward, backward)]
    assert here[0].multiplications == BY_HAND["DepthwiseConv"]
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    there = [count_flops(g, params, x) for g in (forward, backward)]
    for one, other in zip(here, there, strict=True):
        assert one.dots > 0 and (one.flops, one.dots) == (other.flops, other.dots)


def test_twenty_steps_of_an_lstm():
    """1,966,080 operations of matrix products: 20 steps x 2 x 8 examples x (16 + 32) x 4 gates x 32."""
    x = shape(8, 20, 16)
    f, params = called(LSTM(32), (x,))
    assert count_flops(f, params, x).dots == 1_966_080


def test_the_first_layer_needs_no_gradient_of_its_input():
    """The gradient with respect to params only has one product fewer than that with respect to params and input."""
    x = shape(8, 5)
    f, params = called(Serial(Dense(7), relu, Dense(6), relu, Dense(2)), (x,))
    value = lambda params, x: jnp.sum(f(params, x) ** 2)
    layers = [8 * 5 * 7, 8 * 7 * 6, 8 * 6 * 2]
    assert products(jax.grad(value, 0), params, x) == 3 * sum(layers) - layers[0]
    assert products(jax.grad(value, (0, 1)), params, x) == 3 * sum(layers)
