"""Tangent kernels by three methods, and per-example gradient norms without the gradients: time and memory.

    python benchmarks/tangent_kernels.py [ntk] [norms]

The reference for kernels is "flat": the Jacobian by ``vmap(jacrev)`` as one matrix, times its transpose. The reference
for norms is ``vmap(grad)`` and a sum of squares. Memory is the temporary memory that the compiler reports. Times are
medians (quartiles) of ratios of alternating runs; the machine may be busy, so no absolute times are given. Run it on
one core: ``taskset -c 1``.
"""

import functools
import sys

import jax
import jax.numpy as jnp
from timing import in_turns, ratio, temporary_bytes

import jaxblocks as jb
from jaxblocks.ad import count_flops, ntk, ntk_plan, per_example_norms


def draw(*shape):
    return jax.random.normal(jax.random.key(1), shape)


def mean_over_space(x):
    return jnp.mean(x, axis=(0, 1))


def compare(name, programs, args, rounds, note=""):
    """Print operations, temporary memory and time of each program relative to the first."""
    compiled = {which: jax.jit(f).lower(*args).compile() for which, f in programs.items()}
    base = next(iter(programs))
    seconds = in_turns({which: functools.partial(f, *args) for which, f in compiled.items()}, rounds=rounds)
    print(f"\n{name} {note}")
    memory = {which: temporary_bytes(f) for which, f in compiled.items()}
    flops = {which: count_flops(f, *args).flops for which, f in programs.items()}
    for which in programs:
        middle, low, high = ratio(seconds, base, which)
        cells = [
            f"operations 1/{flops[base] / flops[which]:.2f}",
            f"memory 1/{memory[base] / memory[which]:.1f} ({memory[which] / 2**20:.2f} MiB)",
            f"time 1/{middle:.2f} ({low:.2f} to {high:.2f})",
        ]
        print(f"  {which:12s} " + "   ".join(cells), flush=True)


# Tangent kernels


def flat_kernel(f, params, x):
    outputs = f(params, x[0]).size
    leaves = jax.tree.leaves(jax.vmap(lambda x: jax.jacrev(f)(params, x))(x))
    jacobian = jnp.concatenate([leaf.reshape(len(x) * outputs, -1) for leaf in leaves], axis=1)
    return jacobian @ jacobian.T


def kernels():
    tanh = functools.partial(jb.MLP, activation=jb.tanh)
    conv = jb.Serial(jb.Conv(8, (3, 3)), jb.relu, jb.Conv(16, (3, 3), stride=2), jb.relu, mean_over_space, jb.Dense(5))
    scanned = jb.Serial(jb.Dense(128), jb.Repeat(jb.Residual(jb.Dense(128), jb.tanh), 8), jb.Dense(1))
    cases = {
        "64-256-256-1, N=32": (tanh(256, 256, 1), draw(32, 64), 41),
        "64-256-256-10, N=32": (tanh(256, 256, 10), draw(32, 64), 7),
        "256-512-512-10, N=64": (tanh(512, 512, 10), draw(64, 256), 3),
        "64-256-256-100, N=16": (tanh(256, 256, 100), draw(16, 64), 3),
        "scanned, 8 x 128, N=32": (scanned, draw(32, 64), 21),
        "CNN 1.5k parameters, N=16, O=5": (conv, draw(16, 12, 12, 3), 21),
    }
    for name, (net, x, rounds) in cases.items():
        params = net.init(jax.random.key(0), x[0])
        programs = {"flat": functools.partial(flat_kernel, net.apply)}
        for method in ("contraction", "products", "structured"):
            programs[method] = functools.partial(ntk, net.apply, method=method)
        compare(name, programs, (params, x), rounds, f"(auto takes {ntk_plan(net.apply, params, x).method})")


# Norms


def formed_norms(loss, params, *batch):
    gradients = jax.vmap(jax.grad(loss), in_axes=(None, *[0] * len(batch)))(params, *batch)
    return jnp.sqrt(sum(jnp.sum(jnp.square(leaf), axis=range(1, leaf.ndim)) for leaf in jax.tree.leaves(gradients)))


def norms():
    conv = jb.Serial(
        jb.Conv(32, (3, 3)), jb.relu, jb.Conv(64, (3, 3), stride=2), jb.relu, mean_over_space, jb.Dense(10)
    )
    text = jb.Serial(jb.Embedding(5000, 64), jb.Residual(jb.LayerNorm(), jb.Attention(4)), jb.Dense(10))
    cases = {
        "MLP 64-512-512-10, N=64": (jb.MLP(512, 512, 10), draw(64, 64), 41),
        "CNN 3-32-64, 16x16, N=32": (conv, draw(32, 16, 16, 3), 21),
        "text 5000 x 64, 32 tokens, N=32": (text, jax.random.randint(jax.random.key(2), (32, 32), 0, 5000), 21),
        "LSTM 64, 8 steps, N=32": (jb.LSTM(64), draw(32, 8, 64), 21),
    }
    for name, (net, x, rounds) in cases.items():
        params = net.init(jax.random.key(0), x[0])

        def loss(params, x, net=net):
            return jnp.mean(jnp.square(net.apply(params, x)))

        def gradient(params, x, loss=loss):
            return jax.grad(lambda p: jnp.mean(jax.vmap(lambda x: loss(p, x))(x)))(params)

        programs = {
            "vmap(grad)": functools.partial(formed_norms, loss),
            "norms": functools.partial(per_example_norms, loss),
            "one gradient": gradient,
        }
        compare(name, programs, (params, x), rounds)


if __name__ == "__main__":
    print(f"jax {jax.__version__}, {jax.devices()[0].platform}, float32")
    parts = {"ntk": kernels, "norms": norms}
    for name in sys.argv[1:] or parts:
        parts[name]()
