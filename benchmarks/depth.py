"""Depth: the time to trace and compile `Repeat`, relative to the same layers in a `Serial`.

    python benchmarks/depth.py

Prints ratios of the times of ``jit(grad(...)).lower(...).compile()``, medians over alternating new compilations.
"""

import time

import jax
import jax.numpy as jnp
import numpy as np

import jaxblocks as jb

WIDTH = 64


def block():
    return jb.Residual(jb.LayerNorm(), jb.Dense(4 * WIDTH), jb.gelu, jb.Dense(WIDTH))


def compile_seconds(net, x):
    params = jax.eval_shape(lambda: net.init(jax.random.key(0), x))
    gradient = jax.jit(jax.grad(lambda params, x: (net.apply(params, x) ** 2).sum()))
    start = time.perf_counter()
    gradient.lower(params, x).compile()
    return time.perf_counter() - start


if __name__ == "__main__":
    print(f"jax {jax.__version__}, {jax.devices()[0].platform}")
    x = jnp.ones((8, WIDTH))
    nets = {
        "Repeat of 8": jb.Repeat(block(), 8),
        "Repeat of 64": jb.Repeat(block(), 64),
        "Serial of 64": jb.Serial(*[block()] * 64),
    }
    seconds = {name: [] for name in nets}
    for _ in range(3):
        for name, net in nets.items():
            jax.clear_caches()
            seconds[name].append(compile_seconds(net, x))
    middle = {name: np.median(values) for name, values in seconds.items()}
    print(f"trace and compile, Repeat of 64 / Repeat of 8:  {middle['Repeat of 64'] / middle['Repeat of 8']:.2f}")
    print(f"trace and compile, Repeat of 64 / Serial of 64: {middle['Repeat of 64'] / middle['Serial of 64']:.3f}")
