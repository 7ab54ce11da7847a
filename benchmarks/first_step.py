"""The time before the first step: trace, lowering and compilation, against plain JAX and linen.

    python benchmarks/first_step.py [--rounds N] [part of a name ...]

The nets and the peers are those of ``steps.py``, the transformer with 12 layers. In each round the gradient of the loss
is traced and compiled anew, with empty caches. Processor times relative to the code by hand, medians (quartiles).
"""

import argparse
import time

import jax
import numpy as np
import steps
from timing import chosen, processor, ratio

import jaxblocks as jb

PHASES = ("trace", "lower", "compile", "in all")
SIZES = steps.Sizes(layers=12)


def phases(loss, params, x, y):
    """Processor seconds of tracing, lowering and compiling the gradient of a loss."""
    jax.clear_caches()
    times = [time.process_time()]
    traced = jax.jit(jax.value_and_grad(loss)).trace(params, x, y)
    times.append(time.process_time())
    lowered = traced.lower()
    times.append(time.process_time())
    lowered.compile()
    times.append(time.process_time())
    return np.array([*np.diff(times), times[-1] - times[0]])


def variants(name):
    """The loss and the params of each variant of a row."""
    row = steps.rows(SIZES)[name]
    x, y = steps.data(name, row)

    def loss(params, x, y):
        out = row.net.apply(params, x) if isinstance(row.net, jb.Layer) else row.net.apply(*params, x)[0]
        return jb.softmax_cross_entropy(out, y).mean()

    def by_hand(params, x, y):
        return steps.cross_entropy(row.by_hand(params, x), y)

    made = row.net.init(steps.KEY, x)
    found = {"by hand": (by_hand, row.convert(made)), "jaxblocks": (loss, made)}
    try:
        found["linen"] = steps.linen_loss(name, SIZES, x, y, row.classes)[::-1]
    except ImportError:
        print("flax is not installed")
    return found, (x, y)


def main():
    parser = argparse.ArgumentParser(description="Time before the first step against plain JAX and linen.")
    parser.add_argument("parts", nargs="*", metavar="PART", help="of the names of rows; all rows without one")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    print(f"jax {jax.__version__}, {processor()}, processor time, ratios to the code by hand")
    for name in chosen(steps.rows(SIZES), options.parts):
        if "batch norm" in name:
            continue  # by hand it has no state
        found, data = variants(name)
        seconds = {variant: [] for variant in found}
        for turn in range(options.rounds + 1):
            for variant in list(found)[:: 1 if turn % 2 else -1]:
                seconds[variant].append(phases(*found[variant], *data))
        seconds = {variant: np.array(rounds[1:]) for variant, rounds in seconds.items()}
        for i, phase in enumerate(PHASES):
            of_phase = {variant: rounds[:, i] for variant, rounds in seconds.items()}
            ratios = {variant: ratio(of_phase, variant, "by hand") for variant in found if variant != "by hand"}
            shown = "   ".join(
                f"{variant} {m:.2f} ({low:.2f} to {high:.2f})" for variant, (m, low, high) in ratios.items()
            )
            print(f"{name:16} {phase:8} {1e3 * np.median(of_phase['by hand']):7.1f} ms by hand   {shown}", flush=True)


if __name__ == "__main__":
    main()
