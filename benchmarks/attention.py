"""Attention in parts against attention with all scores at once: memory and time of the gradient.

    python benchmarks/attention.py [memory] [time] [lengths]

"by hand" is two einsums and a softmax; "einsum" and "chunked" are the implementations of the library, "default" is
what it chooses. Memory is the temporary memory that the compiler reports, without a run. Times are medians of ratios of
alternating runs; the machine may be busy, so no absolute times are given.
"""

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
from timing import in_turns, temporary_bytes

import jaxblocks as jb

HEADS, HEAD_DIM = 8, 64


def by_hand(q, k, v, causal=False):
    scores = jnp.einsum("...qhd,...khd->...hqk", q, k) / jnp.sqrt(q.shape[-1])
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -jnp.inf)
    return jnp.einsum("...hqk,...khd->...qhd", jax.nn.softmax(scores, axis=-1), v)


FORMS = {
    "by hand": by_hand,
    "einsum": functools.partial(jb.attention, implementation="einsum"),
    "chunked": functools.partial(jb.attention, implementation="chunked"),
    "default": jb.attention,
}


def gradient(form):
    """The gradient of a loss with respect to queries, keys and values."""
    return jax.jit(jax.grad(lambda *qkv: jnp.sum(form(*qkv) ** 2), argnums=(0, 1, 2)))


def shape(n, batch=1):
    return jax.ShapeDtypeStruct((batch, n, HEADS, HEAD_DIM), jnp.float32)


def memory(n=8192):
    """The temporary memory of the compiled gradient in MiB."""
    print(f"\nmemory of the gradient, length {n}, {HEADS} heads of {HEAD_DIM} (not run)")
    mib = {}
    forms = FORMS | {"default, causal": functools.partial(jb.attention, causal=True)}
    forms["default, causal, window 256"] = functools.partial(jb.attention, causal=True, sliding_window=256)
    for name, form in forms.items():
        compiled = gradient(form).lower(*[shape(n)] * 3).compile()
        mib[name] = temporary_bytes(compiled) / 2**20
        words = f"{name:28s} {mib[name]:8.0f} MiB"
        print(words if name == "by hand" else f"{words}   1/{mib['by hand'] / mib[name]:.0f} of by hand")


def compare(n, batch, rounds, of=gradient, forms=FORMS):
    """Median ratios (quartiles) to the first of ``forms``."""
    draw = jax.random.split(jax.random.key(0), 3)
    qkv = [jax.random.normal(key, s.shape) for key, s in zip(draw, [shape(n, batch)] * 3, strict=True)]
    functions = {name: of(form) for name, form in forms.items()}
    seconds = in_turns({name: functools.partial(f, *qkv) for name, f in functions.items()}, rounds=rounds)
    first = next(iter(forms))
    return {name: np.percentile(seconds[name] / seconds[first], [25, 50, 75]) for name in forms if name != first}


def print_row(n, batch, ratios):
    cells = [f"{name} {middle:.2f} ({low:.2f} to {high:.2f})" for name, (low, middle, high) in ratios.items()]
    print(f"length {n:5d}  batch {batch}   " + "   ".join(cells), flush=True)


ORDERS = {"": {}, ", causal": {"causal": True}}


def times():
    """Print times relative to the code by hand, without and with causal order."""
    for what, of in {"gradient": gradient, "forward pass": jax.jit}.items():
        for order, options in ORDERS.items():
            print(f"\ntime of the {what}{order}, ratio to by hand, median (quartiles)")
            forms = {name: functools.partial(form, **options) for name, form in FORMS.items()}
            for n, rounds in [(1024, 21), (2048, 9), (4096, 5)]:
                print_row(n, 1, compare(n, 1, rounds, of, forms))


def lengths():
    """Print times of the default relative to einsum, for other batches and shorter sequences."""
    for what, of in {"gradient": gradient, "forward pass": jax.jit}.items():
        for order, options in ORDERS.items():
            print(f"\ndefault / einsum, time of the {what}{order}, median (quartiles)")
            forms = {name: functools.partial(FORMS[name], **options) for name in ("einsum", "default")}
            for n, batch in [(128, 8), (256, 1), (256, 8), (512, 1), (512, 8), (1024, 4), (2048, 2)]:
                print_row(n, batch, compare(n, batch, max(7, min(51, 2**23 // (n * n * batch))), of, forms))


if __name__ == "__main__":
    print(f"jax {jax.__version__}, {jax.devices()[0].platform}, float32")
    parts = {"memory": memory, "time": times, "lengths": lengths}
    for name in sys.argv[1:] or parts:
        parts[name]()
