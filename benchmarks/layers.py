"""Each layer against the simplest correct JAX code for the same function: forward pass and gradient.

    python benchmarks/layers.py [part of a name ...]

For each layer the values are compared first; then the median ratio (ours / by hand) over alternating calls is printed
with its quartiles. A ratio of 1 means that the layer has no overhead.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from timing import chosen, in_turns, ratio

import jaxblocks as jb

KEY = jax.random.key(0)


def draw(*shape):
    return jax.random.normal(jax.random.fold_in(KEY, sum(shape)), shape)


def dense(p, x):
    return x @ p["kernel"] + p["bias"]


def mlp(p, x):
    return dense(p[4], jax.nn.relu(dense(p[2], jax.nn.relu(dense(p[0], x)))))


def conv2d(p, x):
    y = lax.conv_general_dilated(x, p["kernel"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return y + p["bias"]


def conv1d(p, x):
    return lax.conv_general_dilated(x, p["kernel"], (2,), "VALID", dimension_numbers=("NWC", "WIO", "NWC")) + p["bias"]


def conv_up(p, x):
    layout = ("NHWC", "HWIO", "NHWC")
    return (
        lax.conv_transpose(x, p["kernel"], (2, 2), "VALID", dimension_numbers=layout, transpose_kernel=True) + p["bias"]
    )


def max_pool(p, x):
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def avg_pool(p, x):
    return lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4


def layer_norm(p, x):
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / jnp.sqrt(variance + 1e-5) * p["scale"] + p["bias"]


def rms_norm(p, x):
    return x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * p["scale"]


def batch_norm(p, x):
    mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
    return (x - mean) / jnp.sqrt(variance + 1e-3) * p["scale"] + p["bias"]


def group_norm(p, x):
    g = x.reshape(*x.shape[:-1], 8, -1)
    mean, variance = g.mean((1, 2, 4), keepdims=True), g.var((1, 2, 4), keepdims=True)
    return ((g - mean) / jnp.sqrt(variance + 1e-5)).reshape(x.shape) * p["scale"] + p["bias"]


def over_time(step, carry, x):
    _, y = lax.scan(lambda c, now: (lambda after: (after, after[0]))(step(c, now)), carry, jnp.moveaxis(x, 1, 0))
    return jnp.moveaxis(y, 0, 1)


def rnn(p, x):
    def step(carry, x):
        return (jnp.tanh(x @ p["kernel"] + p["bias"] + carry[0] @ p["recurrent_kernel"] + p["recurrent_bias"]),)

    return over_time(step, (jnp.zeros((len(x), 128)),), x)


def lstm(p, x):
    def step(carry, x):
        h, c = carry
        z = x @ p["kernel"] + p["bias"] + h @ p["recurrent_kernel"] + p["recurrent_bias"]
        i, f, g, o = jnp.split(z, 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        return jax.nn.sigmoid(o) * jnp.tanh(c), c

    return over_time(step, (jnp.zeros((len(x), 128)), jnp.zeros((len(x), 128))), x)


def gru(p, x):
    def step(carry, x):
        (h,) = carry
        xr, xz, xn = jnp.split(x @ p["kernel"] + p["bias"], 3, -1)
        hr, hz, hn = jnp.split(h @ p["recurrent_kernel"] + p["recurrent_bias"], 3, -1)
        r, z = jax.nn.sigmoid(xr + hr), jax.nn.sigmoid(xz + hz)
        n = jnp.tanh(xn + r * hn)
        return ((1 - z) * n + z * h,)

    return over_time(step, (jnp.zeros((len(x), 128)),), x)


def self_attention(p, x):
    q, k, v = (dense(p[name], x).reshape(*x.shape[:-1], 8, -1) for name in ("query", "key", "value"))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(q.shape[-1])
    y = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), v)
    return dense(p["out"], y.reshape(x.shape))


def gelu(p, x):
    return jax.nn.gelu(x, approximate=False)


def softmax(p, x):
    e = jnp.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


ROWS = {
    "Dense": (jb.Dense(256), dense, (128, 256), {}),
    "MLP": (jb.MLP(256, 256, 10), mlp, (128, 256), {}),
    "Conv, two axes": (jb.Conv(64, (3, 3), padding="same"), conv2d, (16, 16, 16, 32), {}),
    "Conv, one axis, stride 2": (jb.Conv(64, 5, stride=2), conv1d, (16, 256, 32), {}),
    "ConvTranspose": (jb.ConvTranspose(16, (3, 3), stride=2), conv_up, (16, 8, 8, 32), {}),
    "MaxPool": (jb.MaxPool((2, 2)), max_pool, (16, 32, 32, 32), {}),
    "AvgPool": (jb.AvgPool((2, 2)), avg_pool, (16, 32, 32, 32), {}),
    "LayerNorm": (jb.LayerNorm(), layer_norm, (64, 64, 256), {}),
    "RMSNorm": (jb.RMSNorm(), rms_norm, (64, 64, 256), {}),
    "BatchNorm, training": (jb.BatchNorm(), batch_norm, (32, 16, 16, 64), {"train": True}),
    "GroupNorm": (jb.GroupNorm(groups=8, spatial=2), group_norm, (32, 16, 16, 64), {}),
    "RNN": (jb.RNN(128), rnn, (32, 64, 64), {}),
    "GRU": (jb.GRU(128), gru, (32, 64, 64), {}),
    "LSTM": (jb.LSTM(128), lstm, (32, 64, 64), {}),
    "Attention": (jb.Attention(8), self_attention, (4, 256, 256), {}),
    "gelu": (jb.gelu, gelu, (64, 64, 256), {}),
    "softmax": (jb.softmax, softmax, (64, 64, 256), {}),
}


def compare(layer, by_hand, shape, side):
    x = draw(*shape)
    layer = jb.stateful(layer)
    params, state = layer.init(jax.random.key(1), x)

    def ours(params, x):
        return layer.apply(params, state, x, **side)[0]

    # Random weights of the outputs, so that no gradient vanishes by symmetry; as an argument, since the compiler would
    # compute the gradient of a linear layer from constants.
    weights = jax.random.normal(jax.random.key(2), jax.eval_shape(by_hand, params, x).shape)

    def gradient(f):
        return jax.grad(lambda p, x, weights: (f(p, x) * weights).sum(), argnums=(0, 1))

    for of in (lambda f: lambda p, x, _: f(p, x), gradient):
        mine, theirs = jax.jit(of(ours)), jax.jit(of(by_hand))
        a, b = mine(params, x, weights), theirs(params, x, weights)
        size = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(b))
        jax.tree.map(lambda a, b, size=size: np.testing.assert_allclose(a, b, atol=1e-4 * size), a, b)
        calls = {"ours": lambda f=mine: f(params, x, weights), "by hand": lambda f=theirs: f(params, x, weights)}
        once = min(in_turns(calls, rounds=2)["by hand"])
        yield ratio(in_turns(calls, rounds=31, repeats=max(1, int(5e-3 / once))), "ours", "by hand")


if __name__ == "__main__":
    print(f"jax {jax.__version__}, {jax.devices()[0].platform}; ours / by hand, median (quartiles)")
    for name in chosen(ROWS, sys.argv[1:]):
        cells = [f"{middle:.2f} ({low:.2f} to {high:.2f})" for middle, low, high in compare(*ROWS[name])]
        print(f"{name:26s} forward {cells[0]}   gradient {cells[1]}", flush=True)
