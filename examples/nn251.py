"""Ten random ReLU networks with two inputs, five hidden units and one output.

The example draws the diagram of the 2-5-1 network from its params (15 edges), the
surfaces of ten random networks on [-2, 2]^2, and ten random 1-5-1 networks on [-10,
10]. The functions are piecewise linear with at most five kinks along a line. If all
biases are zero, they are positively homogeneous, f(2 x) = 2 f(x). The example checks
both properties numerically and prints the results.

Source: Diehl 2023, Example 1.2, Figures 1 and 2. The example runs for about five
seconds on one CPU core:

    python examples/nn251.py --out out/nn251
"""

import argparse
from pathlib import Path

import jax
import numpy as np
from jax.nn import initializers
from matplotlib.figure import Figure

from jaxblocks import Dense, Serial, relu
from jaxblocks.plotting import GRAY, PALETTE

BLUE, VERMILION = PALETTE[:2]


def random_network(bias_init=initializers.zeros):
    """A d-5-1 network with Glorot normal kernels and a linear output."""
    init = {"kernel_init": initializers.glorot_normal(), "bias_init": bias_init}
    return Serial(Dense(5, **init), relu, Dense(1, **init))


def main(argv=None):
    parser = argparse.ArgumentParser(description="Draw ten random 2-5-1 networks.")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("out/nn251"),
        help="output folder for the figures",
    )
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    parser.add_argument(
        "--points", type=int, default=81, help="grid points along each axis"
    )
    args = parser.parse_args(argv)
    if args.points < 3:
        parser.error(f"argument --points: expected an integer >= 3, got {args.points}")
    args.out.mkdir(parents=True, exist_ok=True)
    plane_key, line_key = jax.random.split(jax.random.key(args.seed))

    # Ten networks: vmap over ten keys.
    net = random_network()
    of_ten = lambda f: jax.jit(jax.vmap(f, in_axes=(0, None)))
    params = of_ten(net.init)(jax.random.split(plane_key, 10), np.zeros(2, np.float32))
    apply = of_ten(net.apply)
    axis = np.linspace(-2, 2, args.points, dtype=np.float32)
    grid = np.stack(np.meshgrid(axis, axis), axis=-1)  # (points, points, 2)
    surfaces = np.asarray(apply(params, grid))[..., 0]  # (10, points, points)

    companion = random_network(initializers.normal(1.0))
    line_params = of_ten(companion.init)(
        jax.random.split(line_key, 10), np.zeros(1, np.float32)
    )
    line = np.linspace(-10, 10, 2001, dtype=np.float32)[:, None]
    # (10, 2001)
    curves = np.asarray(of_ten(companion.apply)(line_params, line))[..., 0]

    first = jax.tree.map(lambda leaf: np.asarray(leaf)[0], params)
    edges = draw_diagram(first, args.out / "diagram.png")
    draw_surfaces(axis, surfaces, args.out / "surfaces.png")
    draw_curves(line[:, 0], curves, args.out / "curves.png")

    # At most five kinks along any line; between kinks second differences vanish up to
    # rounding.
    direction, offset = (
        np.array([1.0, 0.3], np.float32),
        np.array([0.1, -0.5], np.float32),
    )
    through = np.linspace(-2, 2, 2001, dtype=np.float32)[:, None] * direction + offset
    along = np.asarray(apply(params, through))[..., 0]
    doubled = np.asarray(apply(params, 2 * grid))[..., 0]
    numbers = {
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(first)),
        "edges": edges,
        "kinks_2d": kinks(along),
        "kinks_1d": kinks(curves),
        "homogeneity": float(np.abs(doubled - 2 * surfaces).max()),
    }
    print(f"2-5-1: {numbers['parameters']} parameters, {edges} edges in the diagram")
    print(
        f"kinks along a line through the ten 2-5-1 networks: {numbers['kinks_2d']} "
        f"(at most 5 each)"
    )
    print(
        f"kinks of the ten 1-5-1 networks on [-10, 10]:      {numbers['kinks_1d']} "
        f"(at most 5 each)"
    )
    print(
        f"zero bias: maximum of |f(2 x) - 2 f(x)| on the grid "
        f"{numbers['homogeneity']:.1e}"
    )
    print(f"figures: {args.out}/diagram.png, surfaces.png, curves.png")
    return numbers


def kinks(values):
    """The number of kinks of each row: runs of adjacent second differences that exceed
    rounding errors.
    """
    values = np.asarray(values, np.float64)
    bent = np.abs(np.diff(values, 2)) > 4e-6 * np.abs(values).max(axis=1, keepdims=True)
    starts = bent & ~np.pad(bent, ((0, 0), (1, 0)))[:, :-1]
    return starts.sum(axis=1).tolist()


def draw_diagram(params, path):
    """Draw the nodes and edges of the network; return the number of edges."""
    kernels = [np.asarray(p["kernel"]) for p in params if p]
    sizes = [kernels[0].shape[0], *(kernel.shape[1] for kernel in kernels)]
    places = [
        [(x, y - (size - 1) / 2) for y in reversed(range(size))]
        for x, size in enumerate(sizes)
    ]
    figure = Figure(figsize=(5, 3.4), layout="constrained")
    axes = figure.subplots()
    edges = 0
    for kernel, left, right in zip(kernels, places[:-1], places[1:], strict=True):
        for (i, j), weight in np.ndenumerate(kernel):
            (x0, y0), (x1, y1) = left[i], right[j]
            color, style = (BLUE, "-") if weight >= 0 else (VERMILION, "--")
            axes.plot(
                [x0, x1],
                [y0, y1],
                style,
                color=color,
                linewidth=0.5 + 2 * abs(weight),
                zorder=1,
            )
            edges += 1
    symbols = [("x", "in"), ("h", "hidden, relu"), ("y", "out")]
    for nodes, (symbol, label) in zip(places, symbols, strict=True):
        for number, (x, y) in enumerate(nodes, 1):
            axes.scatter(x, y, s=520, color="white", edgecolors="black", zorder=2)
            axes.text(
                x,
                y,
                f"${symbol}_{number}$" if len(nodes) > 1 else f"${symbol}$",
                ha="center",
                va="center",
            )
        axes.text(nodes[0][0], -2.75, f"{len(nodes)} {label}", ha="center", va="center")
    axes.plot([], [], "-", color=BLUE, label="positive weight")
    axes.plot([], [], "--", color=VERMILION, label="negative weight")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.12), ncols=2, frameon=False)
    axes.set(xlim=(-0.3, 2.3), ylim=(-3, 2.5))
    axes.axis("off")
    figure.savefig(path, dpi=150)
    return edges


def draw_surfaces(axis, surfaces, path):
    figure = Figure(figsize=(7.5, 4), layout="constrained")
    x, y = np.meshgrid(axis, axis)
    for number, surface in enumerate(np.asarray(surfaces), 1):
        axes = figure.add_subplot(2, 5, number, projection="3d")
        axes.plot_surface(
            x, y, surface, cmap="cividis", rcount=40, ccount=40, linewidth=0
        )
        axes.contour(
            x,
            y,
            surface,
            levels=8,
            offset=surface.min() - 0.35 * np.ptp(surface),
            cmap="cividis",
        )
        axes.set_zlim(surface.min() - 0.35 * np.ptp(surface), surface.max())
        axes.tick_params(labelsize=7, pad=-3)
        axes.set(xticks=[-2, 0, 2], yticks=[-2, 0, 2])
        axes.locator_params(axis="z", nbins=4)  # pyright: ignore[reportArgumentType]
    figure.suptitle(
        "Ten random 2-5-1 networks with zero bias: surfaces and contour lines on "
        "$[-2, 2]^2$"
    )
    figure.savefig(path, dpi=150)


def draw_curves(line, curves, path):
    figure = Figure(figsize=(7.5, 4), layout="constrained")
    for axes, curve in zip(
        figure.subplots(2, 5, sharex=True).flat, np.asarray(curves), strict=True
    ):
        axes.plot(line, curve, color=BLUE)
        axes.axhline(0, color=GRAY, linewidth=0.6)
        axes.set_xticks([-10, 0, 10])
    figure.suptitle(
        "Ten random 1-5-1 networks with random bias on $[-10, 10]$: at most five kinks"
    )
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
