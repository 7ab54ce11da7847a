"""Memory against time: gradients of a deep network and of a transformer with each choice of checkpoints.

    python benchmarks/rematerialization.py [curve] [scan] [transformer] [equinox]

Memory is the temporary memory that the compiler reports. Times are relative to the plain scan, medians over alternating
calls; the machine may be busy, so no absolute times are given. To run on one thread, start with
``XLA_FLAGS=--xla_cpu_multi_thread_eigen=false taskset -c 1 python benchmarks/rematerialization.py``. The part "equinox"
is skipped if that library is not installed.
"""

import functools
import importlib.util
import sys

import jax
import jax.numpy as jnp
from timing import in_turns, ratio, temporary_bytes

import jaxblocks as jb
from jaxblocks.ad import binomial_steps, memory_curve, scan

LENGTH, WIDTH, BATCH = 1024, 64, 64


def residual_tanh(length, checkpoint=None, loop=None):
    """A stack of residual tanh layers, and its initial weights."""

    own = functools.partial(scan, checkpoint=checkpoint)

    def loss(w):
        h = jnp.full((BATCH, WIDTH), 0.5)
        return jnp.sum((loop or own)(lambda h, w: (h + jnp.tanh(h @ w), None), h, w)[0] ** 2)

    return loss, 0.01 * jax.random.normal(jax.random.key(0), (length, WIDTH, WIDTH))


def compare(functions, args, *, rounds=15):
    """Print the time and the temporary bytes of each function, as ratios to the first."""
    compiled = {name: jax.jit(f).lower(*args).compile() for name, f in functions.items()}
    temporaries = {name: temporary_bytes(f) for name, f in compiled.items()}
    seconds = in_turns({name: functools.partial(f, *args) for name, f in compiled.items()}, rounds=rounds)
    first = next(iter(functions))
    for name in functions:
        middle, low, high = ratio(seconds, name, first)
        less = temporaries[first] / temporaries[name]
        print(
            f"{name:34s} {temporaries[name] / 2**20:9.3f} MiB  {1 / less:6.3f} of the first "
            f"(1/{less:.1f})   time {middle:.2f} ({low:.2f} to {high:.2f})",
            flush=True,
        )


def curve():
    """Print how the memory grows with depth."""
    print(f"\n{WIDTH} wide, batch {BATCH}, temporary bytes by depth (not run)")
    print(memory_curve(residual_tanh, (16, 64, 256, 1024), checkpoints=["dots", "body", "sqrt", 16]))


def scans():
    """Compare gradients of all weights of a deep stack."""
    print(f"\ngradient of {LENGTH} residual tanh layers, {WIDTH} wide, batch {BATCH}")
    functions = {}
    for checkpoint in (None, "dots", "body", "sqrt", 4, 8, 16, 32):
        name = f"checkpoint={checkpoint!r}"
        if isinstance(checkpoint, int):
            name += f", {binomial_steps(LENGTH, checkpoint)} steps"
        functions[name] = jax.grad(residual_tanh(LENGTH, checkpoint)[0])
    compare(functions, residual_tanh(LENGTH)[1:])


def equinox():
    """Compare snapshots with those of equinox, which computes its schedule at run time."""
    if importlib.util.find_spec("equinox") is None:
        print("\nequinox is not installed: no comparison")
        return
    from equinox.internal import scan as theirs  # pyright: ignore[reportMissingImports]

    print(f"\nequinox.internal.scan(kind='checkpointed') against ours, {LENGTH} layers")
    for snapshots in (4, 8, 16, 32):
        other = functools.partial(theirs, kind="checkpointed", checkpoints=snapshots)
        functions = {
            f"equinox, {snapshots} snapshots": jax.grad(residual_tanh(LENGTH, loop=other)[0]),
            f"ours, {snapshots} snapshots": jax.grad(residual_tanh(LENGTH, snapshots)[0]),
        }
        compare(functions, residual_tanh(LENGTH)[1:], rounds=9)


def transformer(layers=8, width=128, heads=4, time=64, batch=8):
    """Compare the gradient and the Hessian-vector product of a scanned transformer by the checkpoints of `Repeat`."""
    print(f"\n{layers} transformer blocks by Repeat, width {width}, {time} tokens, batch {batch}")
    x = jax.random.normal(jax.random.key(1), (batch, time, width))
    block = jb.Serial(
        jb.Residual(jb.LayerNorm(), jb.Attention(heads)),
        jb.Residual(jb.LayerNorm(), jb.Dense(4 * width), jax.nn.gelu, jb.Dense(width)),
    )
    gradients, products = {}, {}
    params = jb.Repeat(block, layers).init(jax.random.key(0), x)
    for checkpoint in (None, "dots", "body", "sqrt", 3):
        net = jb.Repeat(block, layers, checkpoint=checkpoint)
        gradient = jax.grad(lambda params, net=net: jnp.mean(net.apply(params, x) ** 2))
        name = f"checkpoint={checkpoint!r}"
        gradients[f"gradient, {name}"] = gradient
        products[f"hvp, {name}"] = lambda params, gradient=gradient: jax.jvp(gradient, (params,), (params,))[1]
    compare(gradients, (params,))
    compare(products, (params,))


if __name__ == "__main__":
    print(f"jax {jax.__version__}, {jax.devices()[0].platform}, float32")
    parts = {"curve": curve, "scan": scans, "transformer": transformer, "equinox": equinox}
    for name in sys.argv[1:] or parts:
        parts[name]()
