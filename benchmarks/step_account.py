"""Where the time of a compiled training step goes: by kind of operation, with the rate of its products.

    taskset -c 0 python benchmarks/step_account.py [--seed N] [part of a name ...]

Runs the steps of `steps.py` under the profiler of JAX, and reads the operations of the compiled program: a product of
matrices (its floating-point operations from its shapes), or the name of the operation in the source. Each row has the
share of the step and, for products, GFLOP/s; the last lines have the rate of one large product in JAX and, where it is
installed, in torch. Names such as ``wrapped_reduce-window`` are those of XLA, for operations without one in the source.

Milliseconds are sums of the operations as the profiler sees them: on several cores operations overlap, and the profiler
itself takes time for each of many small operations, as those of loops. Ratios of whole steps are those of `steps.py`.
"""

import argparse
import collections
import math
import os
import re
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import steps
from jax.profiler import ProfileData
from timing import chosen

import jaxblocks as jb

CALLS = 4


def operations(text):
    """(flops, source name) of each operation of a compiled program that runs by itself, by its name."""
    shapes = dict(re.findall(r"%([\w.\-]+) = \w+\[([\d,]*)\]", text))
    flops, computation, calls, sources = collections.Counter(), None, {}, {}
    for line in text.splitlines():
        if header := re.match(r"(?:ENTRY )?%([\w.\-]+) \(.*\{$", line):
            computation = header[1]
        if not (found := re.match(r"\s+(?:ROOT )?%([\w.\-]+) = ", line)):
            continue
        name = found[1]
        if product := re.search(r" dot\(%([\w.\-]+),.*lhs_contracting_dims=\{([\d,]*)\}", line):
            size = [int(n) for n in shapes[product[1]].split(",")]
            summed = math.prod(size[int(axis)] for axis in product[2].split(",") if axis)
            out = math.prod(int(n) for n in shapes[name].split(",") if n)
            flops[name] += 2 * summed * out
            flops[computation] += 2 * summed * out
        if called := re.search(r"calls=%([\w.\-]+)", line):
            calls[name] = called[1]
        if source := re.search(r'op_name="([^"]*)"', line):
            sources[name] = source[1]
    return {name: (flops[calls.get(name, name)], sources.get(name, "")) for name in {*flops, *calls, *sources}}


def programs(name, sizes):
    """The step of the library and the step by hand: compiled, and a function that calls it once."""
    row = steps.rows(sizes)[name]
    x, y = steps.data(name, row)
    ts = jb.init_train_state(steps.KEY, row.net, steps.OPTIMIZER, x)
    params = row.convert(ts.params)
    loss = lambda params, x, y: steps.cross_entropy(row.by_hand(params, x), y)

    def plain(params, opt_state, x, y):
        value, grads = jax.value_and_grad(loss)(params, x, y)
        updates, opt_state = steps.OPTIMIZER.update(grads, opt_state)
        return optax.apply_updates(params, updates), opt_state, value

    ours = jb.train_step(row.net, jb.softmax_cross_entropy, steps.OPTIMIZER).lower(ts, x, y).compile()
    of_hand = params, steps.OPTIMIZER.init(params), x, y
    hand = jax.jit(plain).lower(*of_hand).compile()
    return {"jaxblocks": (ours, lambda: ours(ts, x, y)), "by hand": (hand, lambda: hand(*of_hand))}


def kind_of(name, count, source):
    """The row of an operation."""
    last = source.rsplit("/", 1)[-1]
    part = "attention" if "attention" in source or "bhqk" in source else ""
    if count:
        return f"products of {part}" if part else "products"
    if name.startswith(("copy", "transpose", "bitcast")):
        return "copies and transposes"
    return f"{part + ': ' if part else ''}{last or name.rstrip('.0123456789')}"


def account(compiled, call):
    """Seconds and floating-point operations of one call by kind."""
    known = operations(compiled.as_text())
    jax.block_until_ready(call())
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            for _ in range(CALLS):
                jax.block_until_ready(call())
        data = ProfileData.from_file(str(next(Path(folder).rglob("*.xplane.pb"))))
        seconds, flops = collections.Counter(), collections.Counter()
        for plane in data.planes:
            for line in plane.lines:
                for event in line.events:
                    if "hlo_op" in dict(event.stats) and event.name in known and not event.name.startswith("while"):
                        kind = kind_of(event.name, *known[event.name])
                        seconds[kind] += event.duration_ns / 1e9 / CALLS
                        flops[kind] += known[event.name][0] / CALLS
    return seconds, flops


def peak():
    """GFLOP/s of one product of two matrices of size 2048."""
    rates, n = {}, 2048
    a = np.random.default_rng(0).normal(size=(n, n)).astype(np.float32)
    calls = {"JAX": (jax.jit(jnp.matmul), jnp.asarray(a), jax.block_until_ready)}
    try:
        import torch

        torch.set_num_threads(len(os.sched_getaffinity(0)))
        calls["torch"] = torch.matmul, torch.tensor(a), lambda y: y
    except ImportError:
        pass
    for name, (product, x, wait) in calls.items():
        wait(product(x, x))
        times = []
        for _ in range(8):
            start = time.perf_counter()
            wait(product(x, x))
            times.append(time.perf_counter() - start)
        rates[name] = 2 * n**3 / np.median(times) / 1e9
    return rates


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, help="draw the sizes from this seed, as steps.py does")
    parser.add_argument("parts", nargs="*", metavar="PART", help="of the names of rows")
    args = parser.parse_args()
    sizes = steps.Sizes() if args.seed is None else steps.drawn(args.seed)
    for name in chosen(steps.rows(sizes), args.parts or ["LM"]):
        of_both = programs(name, sizes)
        for who, (compiled, call) in of_both.items():
            seconds, flops = account(compiled, call)
            total = sum(seconds.values())
            print(f"\n{name}, {who}: {total * 1e3:.3g} ms, {sum(flops.values()) / total / 1e9:.0f} GFLOP/s")
            for kind, spent in [one for one in seconds.most_common(14) if one[1] >= total / 1000]:
                rate = f", {flops[kind] / spent / 1e9:.0f} GFLOP/s" if flops[kind] else ""
                print(f"{spent / total:7.1%}  {kind}{rate}")
    print("\none product of two matrices:", ", ".join(f"{n} {rate:.0f} GFLOP/s" for n, rate in peak().items()))
