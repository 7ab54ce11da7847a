"""The neural tangent kernel: convergence with the width, and equivalence of training
and kernel regression.

The net has one hidden layer of m ReLUs, f(x) = sqrt(2/m) sum_k v_k max(0, w_k . x),
with standard normal initial weights. For several widths the example measures: the
distance of the tangent kernel at initialization from the closed form of the
infinite-width limit (of order 1/sqrt(m)); the change of the kernel during gradient
descent; and the distance, at each step, between the predictions of the net and of
kernel regression with the initial kernel.

With seed 0 the slope of log error against log width is -0.52 for the kernel (20 nets
of each width), -0.62 for its change and -0.54 for the predictions (5 nets); with 4096
units the kernel changes by 0.6 percent. The example takes about twenty seconds of CPU
time.

Source: Jacot, Gabriel & Hongler 2018, Neural tangent kernel, arXiv:1806.07572; Lee et
al. 2019, Wide neural networks of any depth evolve as linear models under gradient
descent, arXiv:1902.06720.

    python examples/ntk.py --out out/ntk
"""

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from jaxblocks.ad import kernel_regression, ntk, ntk_plan, ntk_relu
from jaxblocks.plotting import GRAY, PALETTE

BLUE, VERMILION, GREEN, PURPLE = PALETTE[:4]


def main(argv=None):
    parser = argparse.ArgumentParser(
        description="Tangent kernels and training dynamics of wide nets."
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("out/ntk"),
        help="output folder for the figures",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="random seed of the weights"
    )
    parser.add_argument(
        "--widths",
        type=int,
        nargs="+",
        default=[16, 64, 256, 1024, 4096],
        help="hidden widths",
    )
    parser.add_argument("--draws", type=int, default=20, help="random nets per width")
    parser.add_argument(
        "--steps", type=int, default=300, help="steps of gradient descent"
    )
    args = parser.parse_args(argv)
    if len(args.widths) < 2 or min(args.widths) < 1 or min(args.draws, args.steps) < 1:
        parser.error(
            "expected --widths to have at least two entries and all numbers to be "
            "integers >= 1"
        )
    args.out.mkdir(parents=True, exist_ok=True)
    key = jax.random.key(args.seed)
    x, y, x_test = circle(8)
    numbers = {
        **width_sweep(key, args.widths, args.draws, x, args.out / "kernel.png"),
        **dynamics(
            key,
            args.widths,
            min(5, args.draws),
            args.steps,
            x,
            y,
            x_test,
            args.out / "learning.png",
        ),
    }
    print(f"figures: {args.out}/kernel.png, learning.png")
    return numbers


def circle(count):
    """Inputs on the unit circle, targets with two frequencies, and test inputs."""
    angle = np.linspace(0, 2 * np.pi, count, endpoint=False, dtype=np.float32)
    between = np.linspace(0, 2 * np.pi, 100, dtype=np.float32)
    points = [np.stack([np.cos(a), np.sin(a)], axis=1) for a in (angle, between)]
    return points[0], np.sin(angle) + 0.5 * np.cos(2 * angle), points[1]


# The net, for one example


def init(key, width, features=2):
    first, second = jax.random.split(key)
    return {
        "w": jax.random.normal(first, (features, width)),
        "v": jax.random.normal(second, (width,)),
    }


def net(params, x):
    hidden = jax.nn.relu(x @ params["w"])
    return jnp.sqrt(2 / params["v"].size) * hidden @ params["v"]


# 1. The kernel at initialization


def width_sweep(key, widths, draws, x, picture):
    """The root mean square error of the empirical kernel over its entries and over
    random weights.
    """
    limit = np.asarray(jax.jit(ntk_relu)(x))
    errors = []
    for i, width in enumerate(widths):
        keys = jax.random.split(jax.random.fold_in(key, i), draws)
        kernels = jax.jit(jax.vmap(lambda k, width=width: ntk(net, init(k, width), x)))(
            keys
        )
        errors.append(float(np.sqrt(np.mean(np.square(np.asarray(kernels) - limit)))))
    slope = float(np.polyfit(np.log(widths), np.log(errors), 1)[0])
    print(ntk_plan(net, init(jax.random.clone(key), widths[-1]), x))
    for width, error in zip(widths, errors, strict=True):
        print(
            f"width {width:6d}: error of the kernel {error:.4f}, times sqrt(width) "
            f"{error * width**0.5:.3f}"
        )
    print(f"slope of log error against log width: {slope:.3f}")

    figure = Figure(figsize=(5, 3.6), layout="constrained")
    axes = figure.subplots()
    axes.loglog(widths, errors, "o-", color=BLUE, label="error of the kernel")
    axes.loglog(
        widths,
        errors[0] * np.sqrt(widths[0] / np.array(widths)),
        ":",
        color=GRAY,
        label="slope $-1/2$",
    )
    axes.set(xlabel="width", ylabel="root mean square error")
    axes.legend()
    figure.savefig(picture, dpi=150)
    return {"errors": errors, "slope": slope}


# 2. Training dynamics


def dynamics(key, widths, nets, steps, x, y, x_test, picture):
    """Compare gradient descent on half the squared error with regression with the
    initial kernel, for a few nets.
    """
    rate = 0.5 / float(np.linalg.eigvalsh(jax.jit(ntk_relu)(x))[-1])
    both = np.concatenate([x, x_test])

    def run(params):
        learned, last = train(params, x, y, both, rate, steps)
        across, start = ntk(net, params, both, x), predict(params, both)
        kernel = across[: len(x)]
        regression = kernel_regression(
            kernel,
            y,
            across,
            time=jnp.arange(steps + 1),
            rate=rate,
            start=start[: len(x)],
            test_start=start,
            discrete=True,
        )
        change = jnp.sum(jnp.square(ntk(net, last, x) - kernel)) / jnp.sum(
            jnp.square(kernel)
        )
        return (
            change,
            jnp.mean(jnp.square(learned - regression)),
            learned[-1],
            regression[-1],
        )

    moved, apart, curves = [], [], {}
    for width in widths:
        keys = jax.random.split(jax.random.fold_in(key, width), nets)
        found = jax.jit(jax.vmap(lambda k, width=width: run(init(k, width))))(keys)
        changes, distances, learned, regression = map(np.asarray, found)
        moved.append(float(np.sqrt(np.mean(changes))))
        apart.append(float(np.sqrt(np.mean(distances))))
        curves[width] = (learned[0, len(x) :], regression[0, len(x) :])
        print(
            f"width {width:6d}: change of the kernel {moved[-1]:.4f}, distance of net "
            f"and regression {apart[-1]:.4f}"
        )

    figure = Figure(figsize=(6.5, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.loglog(widths, moved, "o-", color=VERMILION, label="kernel (relative change)")
    left.loglog(widths, apart, "^--", color=BLUE, label="predictions (all steps)")
    left.loglog(
        widths,
        apart[0] * np.sqrt(widths[0] / np.array(widths)),
        ":",
        color=GRAY,
        label="slope $-1/2$",
    )
    left.set(xlabel="width", ylabel="distance of net and linearization")
    place = np.linspace(0, 2 * np.pi, len(x_test))
    ends = (widths[0], VERMILION, "-", ":"), (widths[-1], BLUE, "--", "-.")
    for width, color, *dashes in ends:
        names = f"net, width {width}", f"its kernel regression, {width}"
        for name, curve, dash in zip(names, curves[width], dashes, strict=True):
            right.plot(place, curve, dash, color=color, label=name)
    right.plot(np.linspace(0, 2 * np.pi, len(x), endpoint=False), y, "ko", label="data")
    right.set(xlabel="angle", ylabel=f"prediction after {steps} steps")
    for ax in (left, right):
        ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1), fontsize=8)
    figure.savefig(picture, dpi=200)
    return {"moved": moved, "apart": apart}


def predict(params, x):
    return jax.vmap(lambda x: net(params, x))(x)


def train(params, x, y, watched, rate, steps):
    """Predictions on the watched inputs before each step and after the last, and the
    final params.
    """

    def loss(params):
        return jnp.sum(jnp.square(predict(params, x) - y)) / 2

    def step(params, _):
        gradient = jax.grad(loss)(params)
        return jax.tree.map(lambda p, g: p - rate * g, params, gradient), predict(
            params, watched
        )

    last, path = jax.jit(lambda params: jax.lax.scan(step, params, length=steps))(
        params
    )
    return jnp.concatenate([path, predict(last, watched)[None]]), last


if __name__ == "__main__":
    main()
