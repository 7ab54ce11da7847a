"""The copy task: a recurrent net and attention reproduce symbols after a delay.

The input is ten symbols, a number of blanks (the delay), and ten marks; at each mark
the net outputs the next symbol. A recurrent net must store the symbols in its state
during the delay; attention can access them directly. Both nets have about the same
number of params and train for the same number of steps on the same data.

With seed 0, after 400 steps attention copies all symbols of 256 test examples at every
delay (0, 20, 80 blanks). The LSTM copies 68 %, 41 % and 12 % of them; the last is
chance level. The example takes 80 to 105 seconds of CPU time.

    python examples/copy_task.py --out out/copy_task

Source: Hochreiter & Schmidhuber 1997, Long short-term memory; Arjovsky, Shah & Bengio
2016, Unitary evolution recurrent neural networks, section 4.1, arXiv:1511.06464."""

import argparse
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure

import jaxblocks as jb
from jaxblocks.core.keys import child_key
from jaxblocks.models import Llama, RecurrentLM
from jaxblocks.plotting import GRAY, PALETTE

BLUE, VERMILION = PALETTE[:2]
SYMBOLS = 8
BLANK, MARK = SYMBOLS, SYMBOLS + 1
VOCABULARY = SYMBOLS + 2


def main(argv=None):
    parser = argparse.ArgumentParser(
        description="Compare a recurrent net and attention on the copy task."
    )
    add = parser.add_argument
    add(
        "--delays",
        type=int,
        nargs="+",
        default=[0, 20, 80],
        help="numbers of blanks between input and output",
    )
    add("--length", type=int, default=10, help="number of symbols")
    add("--steps", type=int, default=400, help="training steps for each net and delay")
    add("--batch", type=int, default=32, help="batch size")
    add("--features", type=int, default=64, help="width of both nets, a multiple of 8")
    add("--layers", type=int, default=2, help="layers of both nets")
    add("--seed", type=int, default=0, help="random seed")
    add(
        "--out",
        type=Path,
        default=Path("out/copy_task"),
        help="output folder for the figure",
    )
    args = parser.parse_args(argv)
    if (
        min(args.delays) < 0
        or min(args.length, args.steps, args.batch, args.layers) < 1
        or args.features % 8
    ):
        parser.error(
            "expected --delays >= 0, all other numbers >= 1, and --features a "
            "multiple of 8"
        )

    nets = {
        "LSTM": RecurrentLM(
            vocab_size=VOCABULARY,
            features=args.features,
            layers=args.layers,
            dropout=0.0,
        ),
        "attention": Llama(
            vocab_size=VOCABULARY,
            layers=args.layers,
            heads=4,
            features=args.features,
            hidden=2 * args.features,
        ),
    }
    found = {}
    print(
        f"accuracy of the copied symbols after {args.steps} steps; chance level "
        f"{1 / SYMBOLS:.3f}"
    )
    for delay in args.delays:
        for name, net in nets.items():
            begin = time.monotonic()
            curve, right = learn(net, delay, args)
            found[name, delay] = right
            seconds = time.monotonic() - begin
            print(
                f"{name:>9}, delay {delay:4d}: {right:.3f}   "
                f"({jb.count_params(curve.params)} params, {seconds:.0f} s)"
            )
            found[name, delay, "curve"] = curve.history.step_loss
    draw(nets, found, args)
    return {place: value for place, value in found.items() if len(place) == 2}


def copies(key, rows, length, delay):
    """Inputs (rows, 2 length + delay) of symbols, blanks and marks, and targets (rows,
    length).
    """
    symbols = np.asarray(jax.random.randint(key, (rows, length), 0, SYMBOLS, jnp.int32))
    wait, marks = (
        np.full((rows, n), symbol, np.int32)
        for n, symbol in ((delay, BLANK), (length, MARK))
    )
    return np.concatenate([symbols, wait, marks], -1), symbols


def learn(net, delay, args):
    """The result of `fit`, and the accuracy on test data."""
    key = jax.random.key(args.seed)
    data = copies(child_key(key, "train"), args.batch * args.steps, args.length, delay)
    x, y = copies(child_key(key, "test"), 256, args.length, delay)
    last = slice(-args.length, None)

    def loss(logits, y):
        return jb.softmax_cross_entropy(logits[:, last], y)

    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(3e-3))
    fitted = jb.fit(
        net,
        loss,
        optimizer,
        data,
        key=key,
        batch_size=args.batch,
        steps=args.steps,
        progress=False,
    )
    logits = np.asarray(jax.jit(net.apply)(fitted.params, x))
    return fitted, float((logits[:, last].argmax(-1) == y).mean())


def draw(nets, found, args):
    """Draw the loss of each net during training, and the final accuracy of both."""
    args.out.mkdir(parents=True, exist_ok=True)
    figure = Figure(figsize=(6.5, 5), layout="constrained")
    panels = figure.subplot_mosaic([[*nets], ["accuracy"] * len(nets)])
    below = panels["accuracy"]
    looks = zip(nets, (VERMILION, BLUE), ("o-", "^--"), strict=True)
    for name, color, style in looks:
        above = panels[name]
        for delay, dashes in zip(args.delays, ("-", "--", ":", "-."), strict=False):
            curve = found[name, delay, "curve"]
            above.plot(
                curve, dashes, color=color, linewidth=1.2, label=f"delay {delay}"
            )
        above.axhline(np.log(SYMBOLS), color=GRAY, linewidth=1)
        above.set(xlabel="step", ylabel="loss (gray: chance level)")
        above.legend(
            title=name, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, fontsize=8
        )
        accuracy = [found[name, delay] for delay in args.delays]
        below.plot(args.delays, accuracy, style, color=color, label=name)
    below.axhline(1 / SYMBOLS, color=GRAY, linewidth=1)
    below.set(xlabel="delay", ylabel="accuracy (gray: chance level)", ylim=(0, 1.05))
    below.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(args.out / "copy_task.png", dpi=200)
    print(f"figure: {args.out}/copy_task.png")


if __name__ == "__main__":
    main()
