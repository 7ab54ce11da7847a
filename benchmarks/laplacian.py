"""The Laplacian in one forward pass against the trace of the Hessian: operations, memory and time.

    python benchmarks/laplacian.py [operations] [memory] [time]

"trace" is the trace of jax.hessian; "second jvps" is the sum of v'Hv over the unit vectors, jvp of jvp under vmap;
"hutchinson" is v'Hv for 8 random vectors, an estimate with a standard error of tens of percent. Operations are counted
in the jaxpr. Memory is the temporary memory that the compiler reports. Times are medians (quartiles) of ratios of
alternating runs.
"""

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
from timing import in_turns, ratio, temporary_bytes

from jaxblocks import Dense, Serial
from jaxblocks.ad import count_flops, laplacian


def mlp(n, widths):
    layers = [layer for width in widths for layer in (Dense(width), jnp.tanh)]
    net = Serial(*layers, Dense(1))
    params = net.init(jax.random.key(0), jnp.zeros(n))
    return lambda x: net.apply(params, x)[0]


def particles(width=64):
    """Self-attention between particles, and a sum over them: the logarithm of a wave function."""
    keys = jax.random.split(jax.random.key(1), 6)
    first, query, key, value, out, last = (
        jax.random.normal(k, shape) * shape[0] ** -0.5
        for k, shape in zip(keys, [(3, width)] + [(width, width)] * 4 + [(width, 1)], strict=True)
    )

    def f(x):
        h = jnp.tanh(x @ first)
        weights = jax.nn.softmax((h @ query) @ (h @ key).T / width**0.5, axis=-1)
        h = h + weights @ (h @ value)
        return jnp.sum(jnp.tanh(h @ out) @ last)

    return f


def separate(width=64):
    """A sum over particles of a net of each: they share directions."""
    net = Serial(Dense(width), jnp.tanh, Dense(width), jnp.tanh, Dense(width), jnp.tanh, Dense(1))
    params = net.init(jax.random.key(0), jnp.zeros(3))
    return lambda x: jnp.sum(net.apply(params, x))


def pairs(particles=16, width=32):
    """A sum over pairs of particles of a net of their distance: each element depends on two particles."""
    net = Serial(Dense(width), jnp.tanh, Dense(width), jnp.tanh, Dense(1))
    params = net.init(jax.random.key(0), jnp.zeros(1))
    i, j = np.triu_indices(particles, 1)

    def f(x):
        distances = jnp.sqrt(jnp.sum((x[i] - x[j]) ** 2, axis=-1, keepdims=True) + 0.01)
        return jnp.sum(net.apply(params, distances))

    return f


def trace(f, x):
    n = x.size
    return jnp.trace(jax.hessian(f)(x).reshape(n, n))


def second_jvps(f, x, directions):
    def along(v):
        return jax.jvp(lambda x: jax.jvp(f, (x,), (v,))[1], (x,), (v,))[1]

    return jax.vmap(along)(directions(x)).sum(axis=0)


def unit_vectors(x):
    return jnp.eye(x.size).reshape(-1, *x.shape)


def random_vectors(x, probes=8):
    return jax.random.rademacher(jax.random.key(2), (probes, *x.shape), x.dtype) * probes**-0.5


CASES = {  # a function of one point, the shape of the point, and the batch size, if any
    "MLP n=64": (mlp(64, (256, 256, 256)), (64,), None),
    "MLP n=16, 64 points": (mlp(16, (256, 256, 256)), (16,), 64),
    "MLP n=128, 16 points": (mlp(128, (256, 256, 256)), (128,), 16),
    "attention of 8 particles": (particles(), (8, 3), None),
    "attention, 16 points": (particles(), (8, 3), 16),
    "32 separate particles": (separate(), (32, 3), None),
    "pairs of 16 particles": (pairs(), (16, 3), None),
    "PINN d=2, 256 points": (mlp(2, (64, 64, 64)), (2,), 256),
}
FORMS = {
    "trace": trace,
    "ours": laplacian,
    "ours, chunks of 8": functools.partial(laplacian, chunk_size=8),
    "second jvps": functools.partial(second_jvps, directions=unit_vectors),
    "hutchinson": functools.partial(second_jvps, directions=random_vectors),
}


def programs(case):
    f, shape, batch = CASES[case]
    x = jax.random.normal(jax.random.key(3), shape if batch is None else (batch, *shape))
    lift = (lambda g: g) if batch is None else jax.vmap
    return {name: jax.jit(lift(functools.partial(form, f))) for name, form in FORMS.items()}, x


def operations():
    print("\noperations counted, trace / each")
    for case in CASES:
        forms, x = programs(case)
        flops = {name: count_flops(form, x).flops for name, form in forms.items()}
        print(f"{case:26s}" + "   ".join(f"{name} {flops['trace'] / flops[name]:.2f}" for name in forms))


def memory():
    print("\ntemporary bytes, each / trace")
    for case in CASES:
        forms, x = programs(case)
        sizes = {name: temporary_bytes(form.lower(x).compile()) or 1 for name, form in forms.items()}
        print(f"{case:26s}" + "   ".join(f"{name} {sizes[name] / sizes['trace']:.2f}" for name in forms))


def times(rounds=41):
    print("\ntime, trace / each, median (quartiles)")
    for case in CASES:
        forms, x = programs(case)
        exact = [np.asarray(forms[name](x)) for name in ("trace", "ours", "ours, chunks of 8", "second jvps")]
        for other in exact[1:]:
            np.testing.assert_allclose(other, exact[0], rtol=1e-3, atol=1e-4 * np.abs(exact[0]).max())
        seconds = in_turns({name: functools.partial(form, x) for name, form in forms.items()}, rounds=rounds, repeats=5)
        cells = ["{} {:.2f} ({:.2f} to {:.2f})".format(name, *ratio(seconds, "trace", name)) for name in forms]
        print(f"{case:26s}" + "   ".join(cells[1:]), flush=True)


if __name__ == "__main__":
    print(f"jax {jax.__version__}, {jax.devices()[0].platform}, float32")
    parts = {"operations": operations, "memory": memory, "time": times}
    for name in sys.argv[1:] or parts:
        parts[name]()
