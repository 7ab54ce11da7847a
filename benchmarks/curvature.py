"""The cost of curvature relative to one gradient: Hessian and Gauss-Newton products, v'Hv, whole Hessians.

    python benchmarks/curvature.py [products] [hessian]

All programs are compiled first and run alternately. Times are medians (quartiles) of ratios of processor time, which
depend little on other work on the machine. Run it on one core:

    XLA_FLAGS=--xla_cpu_multi_thread_eigen=false taskset -c 1 python benchmarks/curvature.py

Memory is the temporary memory that the compiler reports; operations are counted by ``count_flops``.
"""

import functools
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from timing import in_turns, temporary_bytes

import jaxblocks as jb
from jaxblocks.ad import (
    as_function,
    count_flops,
    directional_curvature,
    empirical_risk,
    gauss_newton_operator,
    gauss_newton_product,
    hessian,
    hessian_diagonal,
    hessian_operator,
    hvp,
    largest_eigenvalues,
)


def block(width, heads):
    return jb.Serial(
        jb.Residual(jb.LayerNorm(), jb.Attention(heads)),
        jb.Residual(jb.LayerNorm(), jb.Dense(4 * width), jb.gelu, jb.Dense(width)),
    )


def convolutional(*channels):
    layers = [layer for c in channels for layer in (jb.Conv(c, (3, 3), stride=2, padding="same"), jnp.tanh)]
    return jb.Serial(*layers, jb.GlobalAvgPool(2), jb.Dense(10))


NETS = {
    "mlp": (lambda: jb.MLP(512, 512, 10, activation=jnp.tanh), (128, 784)),
    "small mlp": (lambda: jb.MLP(64, 64, 10, activation=jnp.tanh), (64, 20)),
    "cnn": (lambda: convolutional(16, 32, 32), (32, 28, 28, 1)),
    "transformer": (lambda: jb.Serial(block(128, 4), block(128, 4), jb.Dense(64)), (8, 64, 128)),
}


def problem(name, nets=NETS):
    net, shape = nets[name][0](), nets[name][1]
    for_x, for_y, for_params = jax.random.split(jax.random.key(0), 3)
    x = jax.random.normal(for_x, shape)
    y = jax.random.randint(for_y, shape[:-1] if name == "transformer" else shape[:1], 0, 5)
    params = net.init(for_params, x)
    risk = empirical_risk(net, jb.softmax_cross_entropy)
    loss = lambda outputs: jb.softmax_cross_entropy(outputs, y).mean()
    return params, lambda p: risk(p, (x, y)), (lambda p: as_function(net)(p, x)), loss


def compiled(f, *args):
    return jax.jit(f).lower(*args).compile()


def functions_of(name):
    """Each function with its first argument: the params, or the operator at the params."""
    params, f, model, loss = problem(name)
    operator = jax.jit(lambda p: hessian_operator(f, p))(params)
    gauss_newton = jax.jit(lambda p: gauss_newton_operator(model, loss, p))(params)
    return params, {
        "gradient": (lambda p, v: jax.grad(f)(p), params),
        "hvp": (lambda p, v: hvp(f, p, v), params),
        "hvp, operator": (lambda operator, v: operator(v), operator),
        "curvature v'Hv": (lambda p, v: directional_curvature(f, p, v), params),
        "Gauss-Newton": (lambda p, v: gauss_newton_product(model, loss, p, v), params),
        "Gauss-Newton, operator": (lambda operator, v: operator(v), gauss_newton),
    }


def products(rounds=31):
    for name in NETS:
        params, functions = functions_of(name)
        v = jax.tree.map(lambda p: jnp.cos(jnp.arange(p.size, dtype=p.dtype)).reshape(p.shape), params)
        programs = {k: (compiled(function, at, v), at) for k, (function, at) in functions.items()}
        seconds = in_turns(
            {k: lambda p=p, at=at, v=v: p(at, v) for k, (p, at) in programs.items()},
            rounds=rounds,
            clock=time.process_time,
        )
        size = sum(p.size for p in jax.tree.leaves(params))
        print(f"\n{name}, {size:,} params: in gradients   time (quartiles)   operations   temporaries")
        memory = {k: temporary_bytes(p) for k, (p, _) in programs.items()}
        flops = {k: count_flops(function, at, v).flops for k, (function, at) in functions.items()}
        for k in list(functions)[1:]:
            low, middle, high = np.percentile(seconds[k] / seconds["gradient"], [25, 50, 75])
            print(
                f"  {k:22s} {middle:6.2f} ({low:.2f} to {high:.2f})   {flops[k] / flops['gradient']:6.2f}   "
                f"{memory[k] / memory['gradient']:6.2f}",
                flush=True,
            )


SMALL = {
    "mlp, batch 64": (lambda: jb.MLP(24, 24, 5, activation=jnp.tanh), (64, 16)),
    "mlp, batch 256": (lambda: jb.MLP(24, 24, 5, activation=jnp.tanh), (256, 16)),
    "cnn": (lambda: convolutional(6, 10, 4), (32, 16, 16, 1)),
}


def matrices_of(name):
    params, f, _, _ = problem(name, SMALL)
    functions = {"jax.hessian": jax.hessian(f)}
    functions["chunk auto"] = lambda p: hessian(f, p)
    functions |= {f"chunk {c}": functools.partial(hessian, f, chunk_size=c) for c in (8, 32, 128)}
    functions["diagonal"] = lambda p: hessian_diagonal(f, p)
    operator = lambda p: hessian_operator(f, p)
    functions["largest, 30 steps"] = lambda p: largest_eigenvalues(jax.random.key(0), operator(p), p, steps=30)
    return params, functions


def hessians(rounds=7):
    for name in SMALL:
        params, functions = matrices_of(name)
        programs = {k: compiled(function, params) for k, function in functions.items()}
        seconds = in_turns(
            {k: lambda p=p, at=params: p(at) for k, p in programs.items()}, rounds=rounds, clock=time.process_time
        )
        memory = {k: temporary_bytes(p) for k, p in programs.items()}
        size = sum(p.size for p in jax.tree.leaves(params))
        print(f"\n{name}, {size:,} params: jax.hessian needs {memory['jax.hessian'] / 2**20:.1f} MiB of temporaries")
        for k in list(functions)[1:]:
            low, middle, high = np.percentile(seconds["jax.hessian"] / seconds[k], [25, 50, 75])
            print(
                f"  {k:18s} {middle:6.2f} times faster ({low:.2f} to {high:.2f})   "
                f"{memory['jax.hessian'] / memory[k]:6.1f} times less memory",
                flush=True,
            )


if __name__ == "__main__":
    print(f"jax {jax.__version__}, {jax.devices()[0].platform}, float32")
    parts = {"products": products, "hessian": hessians}
    for part in sys.argv[1:] or parts:
        parts[part]()
