"""Depth: the time to trace and compile `Repeat`, relative to the same layers in a `Serial` and to flax.

    python benchmarks/compile_time_of_depth.py [--cpu-time] [serial] [linen]

Prints ratios of the times of ``jit(grad(...)).lower(...).compile()``, and of ``init`` with what it compiles, medians
over alternating new compilations. flax (linen) is left out where it cannot be imported; its layers are those of
``nn.scan``, and for ``init`` also layers one after the other.
"""

import functools
import importlib.util
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

import jaxblocks as jb

WIDTH, HEADS = 64, 4
CLOCK = time.process_time if "--cpu-time" in sys.argv else time.perf_counter


def block():
    return jb.Residual(jb.LayerNorm(), jb.Dense(4 * WIDTH), jb.gelu, jb.Dense(WIDTH))


def transformer_block():
    return jb.Serial(jb.Residual(jb.LayerNorm(), jb.Attention(HEADS, causal=True)), block())


def linen_transformer(n, scanned=True):
    import flax.linen as nn

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x, _=None):
            mask = nn.make_causal_mask(x[..., 0])
            x = x + nn.MultiHeadDotProductAttention(HEADS)(nn.LayerNorm()(x), mask=mask)
            x = x + nn.Dense(WIDTH)(nn.gelu(nn.Dense(4 * WIDTH)(nn.LayerNorm()(x))))
            return x, None

    class Transformer(nn.Module):
        @nn.compact
        def __call__(self, x):
            if scanned:
                blocks = nn.scan(Block, variable_axes={"params": 0}, split_rngs={"params": True}, length=n)
                return blocks()(x, None)[0]
            for _ in range(n):
                x = Block()(x)[0]
            return x

    return Transformer()


def compile_seconds(net, x):
    params = jax.eval_shape(lambda: net.init(jax.random.key(0), x))
    gradient = jax.jit(jax.grad(lambda params, x: (net.apply(params, x) ** 2).sum()))
    start = CLOCK()
    gradient.lower(params, x).compile()
    return CLOCK() - start


def init_seconds(net, x, jit=False):
    init = jax.jit(net.init) if jit else net.init
    start = CLOCK()
    jax.block_until_ready(init(jax.random.key(0), x))
    return CLOCK() - start


def medians(calls, rounds=3):
    """Median seconds of each call, in turns, each with empty caches."""
    seconds = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            jax.clear_caches()
            seconds[name].append(call())
    return {name: np.median(values) for name, values in seconds.items()}


def against_serial():
    x = jnp.ones((8, WIDTH))
    nets = {
        "Repeat of 8": jb.Repeat(block(), 8),
        "Repeat of 64": jb.Repeat(block(), 64),
        "Serial of 64": jb.Serial(*[block()] * 64),
    }
    middle = medians({name: functools.partial(compile_seconds, net, x) for name, net in nets.items()})
    print(f"trace and compile, Repeat of 64 / Repeat of 8:  {middle['Repeat of 64'] / middle['Repeat of 8']:.2f}")
    print(f"trace and compile, Repeat of 64 / Serial of 64: {middle['Repeat of 64'] / middle['Serial of 64']:.3f}")


def against_linen():
    x = jnp.ones((2, 16, WIDTH))
    ours, theirs = jb.Repeat(transformer_block(), 64), linen_transformer(64)
    middle = medians({"ours": lambda: compile_seconds(ours, x), "linen": lambda: compile_seconds(theirs, x)})
    print(
        f"trace and compile, 64 transformer blocks, ours / linen with nn.scan: {middle['ours'] / middle['linen']:.2f}"
    )
    nets = {
        "ours": jb.Repeat(transformer_block(), 12),
        "linen, nn.scan": linen_transformer(12),
        "linen, a loop": linen_transformer(12, scanned=False),
    }
    for jit in (False, True):
        middle = medians({name: functools.partial(init_seconds, net, x, jit) for name, net in nets.items()})
        best = min(seconds for name, seconds in middle.items() if name != "ours")
        print(
            f"init of 12 transformer blocks{', jitted' * jit}, ours / the better of linen: {middle['ours'] / best:.2f}"
        )


def main():
    print(f"jax {jax.__version__}, {jax.devices()[0].platform}")
    parts = {"serial": against_serial, "linen": against_linen}
    if importlib.util.find_spec("flax") is None:
        del parts["linen"]
    names = [name for name in sys.argv[1:] if not name.startswith("-")]
    for name in names or parts:
        parts[name]()


if __name__ == "__main__":
    main()
