"""The loop of training around a tiny step: what `fit` and `minibatches` cost beyond a bare loop over device batches.

    python benchmarks/loop.py [--rounds 9] [--cpu-time] [part of a name ...]

The net is 4-8-8-2 with Adam, on 4,096 rows in batches of 64. Printed are microseconds a step, and those beyond the
bare loop ``for x, y in batches: ts, value = step(ts, x, y)`` over batches that are on the device already: medians over
rounds with their quartiles. A time is the difference of two calls, of 6,400 and of 1,600 steps, since `fit` compiles
its step in each call, which the last column states. The last lines are the iterators alone.
"""

import argparse
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from timing import chosen, in_turns

import jaxblocks as jb
from jaxblocks.training import csv_log, minibatches
from jaxblocks.training.checkpoint.resume import checkpoints

ROWS, BATCH = 4096, 64
SHORT, LONG = 1600, 6400  # steps
KEY = jax.random.key(0)
X = np.asarray(jax.random.normal(KEY, (ROWS, 4)))
Y = (X.sum(-1) > 0).astype(np.int32)


def calls(folder: Path, steps: int):
    """The loops by name, each of so many steps."""
    epochs = steps * BATCH // ROWS
    net, optimizer = jb.MLP(8, 8, 2), optax.adam(1e-3)
    step = jb.train_step(net, jb.softmax_cross_entropy, optimizer)
    begin = lambda: jb.init_train_state(KEY, net, optimizer, X[:BATCH])
    first = begin()
    on_host, on_device = (X, Y), (jnp.asarray(X), jnp.asarray(Y))
    made = [jax.device_put(batch) for batch in minibatches(KEY, on_host, BATCH, epochs=epochs)]
    order = np.concatenate([np.random.default_rng(i).permutation(ROWS) for i in range(epochs)])

    def loop(batches):
        ts = jax.tree.map(jnp.copy, first)
        for x, y in batches:
            ts, value = step(ts, x, y)
        return ts, value

    def fit(data, progress=False, callbacks=()):
        options = dict(key=KEY, steps=steps, batch_size=BATCH, ts=first, progress=progress)
        return jb.fit(net, jb.softmax_cross_entropy, optimizer, data, callbacks=callbacks, **options).ts

    number = iter(range(10**9))
    everything = lambda: [csv_log(folder / f"{next(number)}.csv"), checkpoints(folder / f"run{next(number)}")]
    return {
        "bare loop": lambda: loop(made),
        "x[permutation[i:j]]": lambda: loop(
            (X[order[i : i + BATCH]], Y[order[i : i + BATCH]]) for i in range(0, len(order), BATCH)
        ),
        "minibatches, NumPy": lambda: loop(minibatches(KEY, on_host, BATCH, epochs=epochs)),
        "minibatches, JAX": lambda: loop(minibatches(KEY, on_device, BATCH, epochs=epochs)),
        "fit, NumPy": lambda: fit(on_host),
        "fit, JAX": lambda: fit(on_device),
        "fit, JAX, bar, log and checkpoints": lambda: fit(on_device, True, everything()),
    }


def only_batches():
    """The iterators alone, without a step."""
    order = np.random.default_rng(0).permutation(ROWS)
    count = lambda batches: sum(len(y) for _, y in batches)
    return {
        "x[permutation[i:j]]": lambda: count(
            (X[order[i : i + BATCH]], Y[order[i : i + BATCH]]) for _ in range(10) for i in range(0, ROWS, BATCH)
        ),
        "minibatches, NumPy": lambda: count(minibatches(KEY, (X, Y), BATCH, epochs=10)),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--cpu-time", action="store_true", help="compare processor time, for a machine that is busy")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    clock = time.process_time if options.cpu_time else time.perf_counter
    with tempfile.TemporaryDirectory() as folder:
        made = {
            (name, steps): call
            for steps in (SHORT, LONG)
            for of_steps in [calls(Path(folder) / str(steps), steps)]
            for name, call in of_steps.items()
            if name in ("bare loop", *chosen(of_steps, options.names))
        }
        seconds = in_turns(made, rounds=options.rounds, clock=clock)
    a_step = {name: (seconds[name, LONG] - seconds[name, SHORT]) / (LONG - SHORT) for name, _ in made}
    for name, values in a_step.items():
        low, middle, high = 1e6 * np.percentile(values - a_step["bare loop"], [25, 50, 75])
        before = np.median(seconds[name, SHORT] - SHORT * values)
        print(
            f"{name:36s} {1e6 * np.median(values):6.1f} microseconds a step, "
            f"{middle:6.1f} ({low:.1f} to {high:.1f}) beyond the bare loop, {before:.2f} s a call",
            flush=True,
        )
    seconds = in_turns(only_batches(), rounds=options.rounds, clock=clock)
    for name, values in seconds.items():
        print(
            f"{name:36s} {1e6 * np.median(values) / (10 * ROWS // BATCH):6.1f} microseconds a batch, alone", flush=True
        )


if __name__ == "__main__":
    main()
