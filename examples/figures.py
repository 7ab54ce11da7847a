"""The figures of the lectures, F01 to F36, computed and drawn by the library, and a
contact sheet of all of them.

Activations, networks drawn from their params, exact kinks and regions, divergences,
attention, losses, gradient descent, computational graphs, matrices of layers. Where a
lecture only mentions a figure, or its content is not known, the caption states that the
choice is ours; likewise where other data are used.

Takes about four minutes on two CPU cores; F08 needs scikit-learn.

    python examples/figures.py --out out/figures
    python examples/figures.py --only F05 F12 --out out/figures
"""

import argparse
import re
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jax.nn import initializers
from matplotlib.figure import Figure
from tqdm import tqdm

import jaxblocks as jb
from backprop_by_hand import backprop, classifier, forward, listing, survey
from jaxblocks import plotting
from jaxblocks.ad import optimal_order, trace_table
from jaxblocks.theory.approximation import approximate, modulus_of_continuity
from jaxblocks.theory.boolean import (
    bit_rows,
    minterm_network,
    parity_chain,
    parity_shallow,
)
from jaxblocks.theory.convergence import descend
from jaxblocks.theory.depth import sawtooth_network
from jaxblocks.theory.explicit_weights import one_hidden_layer
from jaxblocks.theory.generalization import degree_sweep, polynomial_fit, width_sweep
from jaxblocks.theory.linear_regions import (
    folding_network,
    region_lower_bound,
    region_upper_bound,
    regions,
    regions_along,
)
from jaxblocks.theory.piecewise_linear import (
    PiecewiseLinear,
    count_kinks,
    from_piecewise_linear,
    to_piecewise_linear,
    two_level_model,
)
from minimize import quadratic, quartic
from nn251 import random_network

DIEHL, HUSZAR = "Diehl 2023", "Huszar, DeepNN lecture 3"
KRAPAC, CEVHER = (
    "Krapac & Segvic, Deep feed-forward models",
    "Cevher, Mathematics of Data",
)
BLUE, VERMILION, GREEN, PURPLE = plotting.PALETTE[:4]
GRAY = plotting.GRAY
WIDTH = 7.5
"""Of a figure, in inches: text of 7 points has 6 on a page that is 6.5 inches wide."""


class Picture(NamedTuple):
    """A figure: ``draw(quick)`` returns it and the numbers that it shows."""

    name: str
    draw: Callable
    source: str
    note: str


FIGURES: dict[str, Picture] = {}


def picture(number, source, note=""):
    """Register the decorated function under this number."""

    def register(draw):
        FIGURES[number] = Picture(f"{number}_{draw.__name__}", draw, source, note)
        return draw

    return register


def main(argv=None):
    parser = argparse.ArgumentParser(description="The figures of the lectures.")
    parser.add_argument(
        "--out", type=Path, default=Path("out/figures"), help="folder of the pictures"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="F01",
        choices=FIGURES,
        default=list(FIGURES),
        help="which",
    )
    parser.add_argument(
        "--quick", action="store_true", help="less training, coarser grids"
    )
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    numbers, seconds, files = {}, {}, {}
    with plotting.style():
        bar = tqdm(sorted(set(args.only)), unit="figure")
        for number in bar:
            bar.set_description(FIGURES[number].name)
            start = time.perf_counter()
            figure, numbers[number] = FIGURES[number].draw(args.quick)
            files[FIGURES[number].name] = args.out / f"{FIGURES[number].name}.png"
            save(figure, number, files[FIGURES[number].name])
            seconds[number] = time.perf_counter() - start
        sheet = plotting.contact_sheet(files)[0].figure
        sheet.savefig(args.out / "contact_sheet.png", dpi=150)
    slowest = sorted(seconds, key=lambda number: seconds[number], reverse=True)[:8]
    print(
        f"slowest: "
        f"{', '.join(f'{number} {seconds[number]:.1f} s' for number in slowest)}"
    )
    print(
        f"figures: {len(files)} in {args.out}, all of them in "
        f"{args.out}/contact_sheet.png"
    )
    return numbers


def save(figure, number, path):
    """Save a figure with its number and title above it, its source and a note on our
    choices below it.
    """
    made = FIGURES[number]
    wide = figure.get_figwidth()
    figure.suptitle(title(number, int(12.5 * wide)), fontsize=11)
    below = f"After {made.source}. {made.note}".strip()
    figure.supxlabel(textwrap.fill(below, int(19 * wide)), fontsize=7, color=GRAY)
    figure.savefig(path)


def title(number, columns):
    """The number and the docstring of a figure, in lines that break no formula."""
    words = " ".join((FIGURES[number].draw.__doc__ or "").split()).rstrip(".")
    whole = re.sub(r"\$[^$]*\$", lambda formula: formula[0].replace(" ", "~"), words)
    options = {"break_long_words": False, "break_on_hyphens": False}
    return textwrap.fill(f"{number}  {whole}", columns, **options).replace("~", " ")


def page(height, rows=1, columns=1, *, width=WIDTH, **options) -> tuple[Figure, Any]:
    """An empty figure and its axes, one or an array of them."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, **options)


def above(ax, columns) -> None:
    """Draw the legend above the axes, where it covers nothing."""
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=columns, frameon=False)


def column(f):
    """A net of one input as a function of (n,)."""
    return lambda x: f(x[:, None])[:, 0]


def trained(net, loss, x, y, key, *, steps, rate, starts=1):
    """The best params of several initializations, trained by Adam on all the data, and
    their loss.
    """
    every, risks = trainings(
        net, loss, x, y, key, steps=steps, rate=rate, starts=starts
    )
    best = int(jnp.argmin(jnp.where(jnp.isnan(risks), jnp.inf, risks)))
    return jax.tree.map(lambda leaf: leaf[best], every), float(risks[best])


def trainings(net, loss, x, y, key, *, steps, rate, starts):
    """The params of several initializations, stacked, trained by Adam on all the data,
    and their losses.
    """
    optimizer = optax.adam(optax.cosine_decay_schedule(rate, steps))
    risk = lambda params: jnp.mean(loss(net.apply(params, x), y))

    def run(key):
        def step(carry, _):
            params, state = carry
            updates, state = optimizer.update(jax.grad(risk)(params), state)
            return (optax.apply_updates(params, updates), state), None

        params = net.init(key, x)
        params = jax.lax.scan(step, (params, optimizer.init(params)), length=steps)[0][
            0
        ]
        return params, risk(params)

    return jax.jit(jax.vmap(run))(jax.random.split(key, starts))


# ---- networks and their expressivity -------------------------------------------------


@picture("F01", f"{DIEHL}, section 1; {HUSZAR}; Krapac & Segvic; Cevher")
def activations(quick):
    """Activations (solid) and their derivatives (dashed)."""
    shown = {
        "ReLU": jb.relu,
        "leaky ReLU, slope 0.1": lambda x: jb.leaky_relu(x, 0.1),
        "ELU": jb.elu,
        "SELU": jb.selu,
        "GELU": jb.gelu,
        "softplus": jb.softplus,
        "sigmoid": jb.sigmoid,
        "tanh": jb.tanh,
        "cosine": jb.activations.cosine,
        "maxout of x and -x/2": lambda x: jb.activations.maxout(
            jnp.stack([x, -x / 2], -1)
        )[..., 0],
    }
    # without 0, where some have no derivative
    x = np.linspace(-4, 4, 400, dtype=np.float32)
    of_all = lambda t: {name: f(t) for name, f in shown.items()}
    each = jax.jit(lambda x: (of_all(x), jax.vmap(jax.jacfwd(of_all))(x)))
    values, slopes = each(x)
    figure, axes = page(6, 3, 4)
    figure.supylabel("function and derivative", fontsize=9)
    for ax in axes.flat[len(shown) :]:
        ax.set_axis_off()
    for ax, name in zip(axes.flat, shown, strict=False):
        plotting.curves(x, {"_f": values[name], "_f'": slopes[name]}, ax)
        ax.axhline(0, color="0.8", linewidth=0.7, zorder=0)
        ax.axvline(0, color="0.8", linewidth=0.7, zorder=0)
        ax.set(title=name, xlabel="x", xticks=[-4, -2, 0, 2, 4])
    at = np.array([-2.0, -1.0, 0.0, 0.5, 1.0, 2.0], np.float32)
    return figure, {
        name: dict(zip(at.tolist(), y.tolist(), strict=True))
        for name, y in each(at)[0].items()
    }


@picture("F02", f"{DIEHL}, Figure 1")
def network_251(quick):
    """A 2-5-1 network, drawn from its params: 15 edges, 21 parameters."""
    net = random_network()
    params = net.init(jax.random.key(0), jnp.zeros(2))
    figure, ax = page(3.8, width=6.4)
    plotting.network(params, ax, names=["2 inputs", "5 rectifiers", "1 output"])
    ax.legend(loc="upper right")
    edges = sum(len(part.get_segments()) for part in ax.collections[:2])
    return figure, {"edges": edges, "parameters": jb.count_params(params)}


@picture("F03", f"{DIEHL}, Example 1.2, Figure 2")
def random_networks(quick):
    """Ten random 2-5-1 networks without bias on $[-2, 2]^2$; ten 1-5-1 networks with
    random bias on $[-10, 10]$.
    """
    plane_key, line_key = jax.random.split(jax.random.key(0))
    net, companion = random_network(), random_network(initializers.normal(1.0))
    params = jax.jit(jax.vmap(net.init, (0, None)))(
        jax.random.split(plane_key, 10), np.zeros(2, np.float32)
    )
    line_params = jax.jit(jax.vmap(companion.init, (0, None)))(
        jax.random.split(line_key, 10), np.zeros(1, np.float32)
    )
    each = lambda tree: [
        jax.tree.map(lambda leaf, i=i: leaf[i], tree) for i in range(10)
    ]

    figure = Figure(figsize=(WIDTH, 6), layout="constrained")
    parts: Any = figure.subfigures(2, 1, height_ratios=[2.6, 1])
    upper, lower = parts
    for i, p in enumerate(each(params)):
        ax = upper.add_subplot(2, 5, i + 1, projection="3d")
        f = jax.jit(lambda x, p=p: net.apply(p, x))
        plotting.surface(f, ((-2, 2), (-2, 2)), ax, samples=21 if quick else 41)
        ax.set_xlabel("$x_1$", labelpad=-8)
        ax.set_ylabel("$x_2$", labelpad=-8)
    x = np.linspace(-10, 10, 401)
    for ax, pair in zip(
        lower.subplots(1, 5),
        zip(*[iter(each(line_params))] * 2, strict=True),
        strict=True,
    ):
        plotting.curves(
            x,
            {
                f"_{i}": column(lambda x, p=p: companion.apply(p, x))
                for i, p in enumerate(pair)
            },
            ax,
        )
        ax.set_xlabel("x")
    lower.supylabel("net(x)", fontsize=9)

    grid = jax.random.uniform(jax.random.key(1), (50, 2), minval=-2, maxval=2)
    apply = jax.jit(jax.vmap(net.apply, (0, None)))
    twice = apply(params, 2 * grid) - 2 * apply(params, grid)
    along = [
        regions_along(net, p, [-2.0, -0.9], [2.0, 0.3]).linear_count - 1
        for p in each(params)
    ]
    numbers = {
        "kinks_2d": along,
        "kinks_1d": [count_kinks(companion, p) for p in each(line_params)],
    }
    return figure, {**numbers, "homogeneity": float(abs(twice).max())}


@picture(
    "F04", f"{DIEHL}, Figure 3", "The P of the lecture is not known; 0.3 is our choice."
)
def divergences(quick):
    """Six divergences and distances between Q = (q, 1 - q) and P = (0.3, 0.7)."""
    two = lambda q: jnp.stack([q, 1 - q], -1)
    distances = {
        "total variation": jb.losses.total_variation,
        "$L^1$": lambda p, q: jb.losses.lp_distance(p, q, 1),
        "$L^2$": lambda p, q: jb.losses.lp_distance(p, q, 2),
    }
    in_nats = {
        "KL(P, Q)": jb.kl_divergence,
        "KL(Q, P)": lambda p, q: jb.kl_divergence(q, p),
        "cross-entropy(P, Q)": jb.cross_entropy,
    }
    measures = distances | in_nats
    p = lambda q: jnp.broadcast_to(two(jnp.array([0.3])), (len(q), 2))
    at = jax.jit(lambda q: {name: f(p(q), two(q)) for name, f in measures.items()})
    q = np.linspace(0.005, 0.995, 199, dtype=np.float32)
    figure, ax = page(4.4, width=6.4)
    found = at(q)  # with sorted keys, as JAX returns every dict
    curves = {name: found[name] for name in distances}
    curves |= {f"{name}, nats": found[name] for name in in_nats}
    plotting.curves(q, curves, ax)
    ax.axvline(0.3, color=GRAY, linewidth=0.8)
    ax.annotate(
        "q = p", (0.3, 2.35), (4, 0), textcoords="offset points", color=GRAY, fontsize=8
    )
    ax.set(xlabel="q", ylabel="distance or divergence", ylim=(0, 2.5), xlim=(0, 1))
    above(ax, 2)
    some = at(np.array([0.1, 0.5, 0.9], np.float32))
    return figure, {name: np.asarray(values) for name, values in some.items()}


@picture(
    "F05",
    f"{DIEHL}, Lemma 1.3",
    "The lecture leaves a space for a figure; the function is our choice.",
)
def piecewise_linear(quick):
    """A piecewise linear function of p + 1 breakpoints as a sum of p + 2 rectifiers."""
    breakpoints, slopes = (
        np.array([-1.0, 0.5, 2.0, 3.0]),
        np.array([0.7, -1.0, 2.0, 0.3, -0.4]),
    )
    f = PiecewiseLinear(breakpoints, slopes, 0.6)
    with jax.enable_x64(True):
        net, (hidden, _, out) = from_piecewise_linear(*f)
        x = np.linspace(-2.5, 4.5, 701)
        terms = (
            jb.relu(
                jb.affine(jnp.asarray(x)[:, None], hidden["kernel"], hidden["bias"])
            )
            * out["kernel"].T
        )
        total = np.asarray(terms.sum(1) + out["bias"][0])
        applied = np.asarray(
            column(lambda x: net.apply((hidden, (), out), x))(jnp.asarray(x))
        )
    figure, (left, right) = page(3.6, 1, 2, sharex=True)
    f.plot(left)
    left.legend()
    left.set_title("$f$")
    signs = np.sign(np.asarray(hidden["kernel"])[0])
    weights, kinks = (
        np.asarray(out["kernel"])[:, 0],
        -np.asarray(hidden["bias"]) * signs,
    )
    shifted = lambda t: f"x {'-' if t > 0 else '+'} {abs(t):g}"
    inner = [
        shifted(t) if s > 0 else f"{t:g} - x" for t, s in zip(kinks, signs, strict=True)
    ]
    names = [
        f"${a:+.2g}\\,({words})_+$" for a, words in zip(weights, inner, strict=True)
    ]
    active = np.where(np.asarray(terms) == 0, np.nan, np.asarray(terms))
    plotting.curves(x, dict(zip(names, active.T, strict=True)), right)
    right.set(
        xlabel="x",
        ylabel="rectifier",
        title=f"its {len(hidden['bias'])} rectifiers, with the sum $f - f(t_0)$",
    )
    error = max(abs(total - f(x)).max(), abs(applied - f(x)).max())
    return figure, {"units": len(hidden["bias"]), "error": float(error)}


@picture("F06", f"{DIEHL}, Theorem 1.5 (its proof)", "The function is our choice.")
def approximation(quick):
    """Universal approximation: interpolants with N pieces, and the error bound by the
    modulus of continuity.
    """
    g = lambda x: np.sin(6 * x) + 0.5 * np.cos(17 * x)
    x = np.linspace(0, 1, 10_001)
    figure, axes = page(4.8, 2, 3, sharex=True, sharey="row", height_ratios=[3, 2])
    errors, bounds = {}, {}
    for (ax, below), pieces in zip(axes.T, (4, 8, 16), strict=True):
        with jax.enable_x64(True):
            f = to_piecewise_linear(*approximate(g, pieces))
        errors[pieces], bounds[pieces] = (
            abs(g(x) - f(x)).max(),
            modulus_of_continuity(g, 1 / pieces),
        )
        plotting.curves(x, {"g": g(x), f"{pieces} pieces": f(x)}, ax)
        ax.plot(f.breakpoints, f.values, "o", color=VERMILION, markersize=4)
        ax.set(
            title=f"error {errors[pieces]:.3f}, bound {bounds[pieces]:.3f}",
            ylim=(-1.6, 2.6),
        )
        plotting.curves(
            x,
            {"|g - f|": abs(g(x) - f(x)), "bound": np.full_like(x, bounds[pieces])},
            below,
        )
        below.set(xlabel="x", yscale="log", ylim=(3e-3, 100))
        below.legend(loc="upper center", ncols=2)
    axes[0, 0].set_ylabel("value")
    axes[1, 0].set_ylabel("error")
    return figure, {"errors": errors, "bounds": bounds}


@picture("F07", f"{DIEHL}, section 1.1")
def toeplitz(quick):
    """A convolution as a dense layer: its matrix is banded, with constant diagonals
    (three shared weights).
    """
    kernel = jnp.array([1.0, 2.0, -1.0])[:, None, None]
    A = np.asarray(jb.inspection.as_dense(lambda x: jb.conv(x, kernel), (10, 1)))
    figure, ax = page(4.6, width=6.4)
    plotting.matrix(A, ax)
    ax.set(xlabel="input position", ylabel="output position")
    entries = A[A != 0]
    return figure, {
        "distinct": len(np.unique(entries)),
        "entries": entries.size,
        "shape": A.shape,
    }


@picture(
    "F08",
    f"{DIEHL}, section 1.1",
    "The lecture links to a viewer; nets, digit and maps are our choice.",
)
def feature_maps(quick):
    """Activations of a convolutional net and of a dense net: the feature maps of a
    shifted digit are shifted.
    """
    from sklearn.datasets import load_digits

    digits: Any = load_digits()
    x, y = digits.images[..., None].astype(np.float32) / 16, digits.target
    first, second = (
        jb.Serial(jb.Conv(8, (3, 3)), jb.relu),
        jb.Serial(jb.Conv(8, (3, 3)), jb.relu),
    )
    flat = lambda x: x.reshape(*x.shape[:-3], 64)
    hidden = jb.Serial(jb.Dense(64), jb.relu)
    nets = {
        "cnn": jb.Serial(
            first=first, second=second, pool=jb.GlobalAvgPool(2), out=jb.Dense(10)
        ),
        "ffn": jb.Serial(flat=flat, hidden=hidden, out=jb.Dense(10)),
    }
    options = {
        "key": jax.random.key(0),
        "steps": 60 if quick else 800,
        "progress": False,
    }
    fitted = lambda net: (
        jb.fit(
            net, jb.softmax_cross_entropy, optax.adam(5e-3), (x, y), **options
        ).params
    )
    params = {name: fitted(net) for name, net in nets.items()}
    digit = np.roll(x[np.flatnonzero(y == 2)[1]], -1, 1)  # a 2, one column to the left
    pair = np.stack([digit, np.roll(digit, 1, 1)])
    maps = jax.jit(first.apply)(params["cnn"]["first"], pair)
    deeper = jax.jit(second.apply)(params["cnn"]["second"], maps)
    units = jax.jit(hidden.apply)(params["ffn"]["hidden"], flat(pair)).reshape(2, 8, 8)

    figure, axes = page(3.6, 2, 4, width_ratios=[1, 2, 2, 1])
    for row, (word, ax) in enumerate(
        zip(("digit", "shifted by one"), axes, strict=True)
    ):
        plotting.tiles(pair[row, ..., 0][None], ax[0], columns=1)
        plotting.tiles(jnp.moveaxis(maps[row], -1, 0), ax[1])
        plotting.tiles(jnp.moveaxis(deeper[row], -1, 0), ax[2])
        plotting.tiles(units[row][None], ax[3], columns=1)
        ax[0].set_title(word)
    for ax, words in zip(
        axes[0, 1:],
        ("8 maps of layer 1", "8 maps of layer 2", "64 dense units"),
        strict=True,
    ):
        ax.set_title(words)
    moved = lambda f: float(
        abs(np.asarray(f)[1, :, 1:] - np.asarray(f)[0, :, :-1]).max()
    )
    return figure, {
        "first": moved(maps),
        "second": moved(deeper),
        "dense": moved(units),
    }


@picture("F09", f"{DIEHL}, Example 2.3", "The lecture notes only mention a picture.")
def lookup(quick):
    """Lookup in a table with five keys: the match of each key with the query, and its
    attention weight.
    """
    keys, e = jnp.eye(5), np.eye(5, dtype=np.float32)
    queries = {
        "$q = e_3$": e[2],
        "$q = e_3 + 2 e_5$": e[2] + 2 * e[4],
        "$q = 10 e_3$": 10 * e[2],
    }
    figure, axes = page(7, 3, 1)
    numbers = {}
    for ax, (name, q) in zip(axes, queries.items(), strict=True):
        weights = jb.attention_weights(
            jnp.asarray(q)[None, None], keys[:, None], scale=None
        )[0, 0]
        numbers[name] = np.asarray(weights)
        series = {r"$\langle q, e_i\rangle$": q, r"softmax$_i$": weights}
        plotting.bars(series, [f"$e_{i}$" for i in range(1, 6)], ax, numbers="{:.2f}")
        ax.set(title=name, xlabel="key", ylabel="value")
        ax.legend(loc="upper left")
        ax.margins(y=0.28)
    return figure, numbers


@picture("F10", HUSZAR)
def rectifier(quick):
    """The rectified linear unit."""
    figure, ax = page(3.4, width=6.4)
    plotting.curves(np.linspace(-3, 3, 601), {"_ReLU": jb.relu}, ax)
    ax.axvline(0, color="0.8", linewidth=0.7, zorder=0)
    ax.set(xlabel="x", ylabel="max(0, x)", aspect="equal")
    return figure, {"values": np.asarray(jb.relu(jnp.array([-2.0, 0.0, 0.5])))}


@picture("F11", HUSZAR)
def rectifiers(quick):
    """Eight rectifiers $(w_i x - b_i)_+$ with kinks at $b_i / w_i$, and a weighted sum
    of them.
    """
    rng = np.random.default_rng(4)
    w = rng.uniform(0.4, 2, 8) * rng.permutation([1, -1] * 4)
    kinks = np.linspace(-3.3, 3.3, 8) + rng.uniform(-0.4, 0.4, 8)
    b, out = w * kinks, (-1.0) ** np.arange(8) * rng.uniform(0.5, 2, 8) / abs(w)
    with jax.enable_x64(True):
        f = to_piecewise_linear(*one_hidden_layer(w[None], -b, out, 0.0))
    x = np.linspace(-4, 4, 801)
    figure, (left, right) = page(3.4, 1, 2)
    plotting.curves(
        x, {f"_{i}": np.maximum(w[i] * x - b[i], 0) for i in range(8)}, left
    )
    left.plot(b / w, np.zeros(8), "ko", markersize=4)
    left.set(xlabel="x", ylabel="unit", title="the units", xlim=(-4, 4), ylim=(-0.3, 6))
    plotting.curves(x, {"_f": f(x)}, right)
    right.plot(f.breakpoints, f.values, "ko", markersize=4)
    right.set(
        xlabel="x",
        ylabel="sum",
        title=f"their weighted sum: {len(f.breakpoints)} kinks",
        xlim=(-4, 4),
    )
    inside = f(x)
    right.set_ylim(inside.min() - 0.5, inside.max() + 0.5)
    return figure, {"kinks": f.breakpoints, "expected": np.sort(b / w)}


@picture("F12", HUSZAR)
def sawtooth(quick):
    """The sawtooth $f_l = 2 |f_{l-1}| - 2$ by l layers of two rectifiers: $2^l - 1$
    kinks.
    """
    figure, axes = page(4.4, 2, 3, sharex=True, sharey=True)
    numbers = {"kinks": [], "ends": []}
    for levels, ax in enumerate(axes.flat):
        f = to_piecewise_linear(*sawtooth_network(levels))
        x = np.unique([-2.0, *f.breakpoints, 2.0])
        plotting.curves(x, {"_f": f(x)}, ax)
        ax.plot(f.breakpoints, f.values, "o", color=VERMILION, markersize=3)
        kinks = len(f.breakpoints)
        ax.set_title(
            f"{levels} layer{'s' * (levels != 1)}: {kinks} kink{'s' * (kinks != 1)}"
        )
        numbers["kinks"].append(kinks)
        numbers["ends"].append(f([-2.0, 2.0]).tolist())
    for ax in axes[1]:
        ax.set_xlabel("x")
    for ax in axes[:, 0]:
        ax.set_ylabel("$f_l$")
    return figure, numbers


@picture(
    "F13", HUSZAR, "The contents of its two pictures are not known: the choice is ours."
)
def higher_dimensions(quick):
    """Linear regions in the plane of nets with 12 rectifiers: three random ones, and
    one that folds its input.
    """
    nets = {}
    for i, widths in enumerate([(12,), (6, 6), (4, 4, 4)]):
        hidden = [
            layer
            for n in widths
            for layer in (jb.Dense(n, bias_init=initializers.normal(0.4)), jb.relu)
        ]
        net = jb.Serial(*hidden, jb.Dense(1))
        nets["random " + " + ".join(map(str, widths))] = (
            net,
            net.init(jax.random.key(i), jnp.zeros(2)),
            widths,
        )
    nets["folding 6 + 6"] = *folding_network((6, 6)), (6, 6)
    figure, axes = page(6.6, 2, 2)
    numbers = {}
    for ax, (name, (net, params, widths)) in zip(axes.flat, nets.items(), strict=True):
        box = ((0, 1), (0, 1)) if name.startswith("folding") else ((-2, 2), (-2, 2))
        found = regions(net, params, box=box)
        found.plot(ax)
        ax.set_title(f"{name}: {found.linear_count} regions")
        numbers[name] = (
            found.linear_count,
            region_lower_bound(widths, 2),
            region_upper_bound(widths, 2),
        )
        ax.set(xlabel="$x_1$", ylabel="$x_2$")
    return figure, numbers


@picture(
    "F14", HUSZAR, "The contents of its pictures are not known: the choice is ours."
)
def generalization(quick):
    """Underfitting, overfitting and double descent; a wide net on noisy data."""
    rng = np.random.default_rng(1)
    target = lambda x: np.sin(3 * x)
    draw = lambda x: (x, target(x) + 0.25 * rng.normal(size=len(x)))
    x, y = draw(np.linspace(-1, 1, 16))
    test_x, test_y = draw(np.linspace(-1, 1, 401))
    degrees = degree_sweep(x, y, test_x, test_y, degrees=range(16))
    many, weights = rng.normal(size=(1040, 20)), rng.normal(size=20) / 4
    numbers = np.tanh(many @ weights) + 0.3 * rng.normal(size=1040)
    widths = [5, 10, 20, 30, 36, 40, 44, 50, 80, 160, 400] + [1000] * (not quick)
    sampled = {"key": jax.random.key(0), "samples": 5 if quick else 20}
    double = width_sweep(
        many[:40], numbers[:40], many[40:], numbers[40:], widths=widths, **sampled
    )
    units = 200 if quick else 1000
    net, data = (
        jb.MLP(units, 1, activation=jb.tanh),
        [jnp.asarray(v, jnp.float32)[:, None] for v in (x, y)],
    )
    params, _ = trained(
        net,
        jb.mse,
        data[0],
        data[1],
        jax.random.key(0),
        steps=500 if quick else 5000,
        rate=5e-3,
    )
    fitted = column(lambda x: net.apply(params, x))
    wide = fitted(jnp.asarray(test_x, jnp.float32))
    missed = float(abs(fitted(data[0][:, 0]) - data[1][:, 0]).max())

    figure, axes = page(6.4, 2, 2)
    axes = axes.ravel()
    fits = {
        f"degree {d}": polynomial_fit(x, y, d)(test_x) for d in (1, degrees.best, 14)
    }
    plotting.curves(test_x, fits, axes[0])
    plotting.curves(test_x, {"net": wide, "target": target(test_x)}, axes[3])
    for ax, title in (
        (axes[0], "three polynomials"),
        (axes[3], f"{units} units: misses data by up to {missed:.2f}"),
    ):
        ax.plot(x, y, "ko", markersize=4)
        ax.set(xlabel="x", ylabel="y", title=title, ylim=(-2, 2.8))
    for ax, sweep, title in (
        (axes[1], degrees, "the classical view"),
        (axes[2], double, "double descent"),
    ):
        sweep.plot(ax)
        ax.set(title=title, ylim=(1e-4, 1e3))
    axes[2].set(xscale="log", xlabel="random rectifiers (40 other examples)")
    return figure, {"degrees": degrees, "widths": double, "missed": missed}


# ---- learning: exclusive or, losses, decision boundaries -----------------------------


@picture("F15", f"{KRAPAC}, XOR")
def exclusive_or(quick):
    """Exclusive or: the four points after each step of the hidden layer; in the last a
    line separates the classes.
    """
    x, labels = jnp.asarray(bit_rows(2), jnp.float32), np.array([0, 1, 1, 0])
    _, (hidden, _, out) = parity_shallow(2)
    kernel, bias = hidden["kernel"], jnp.broadcast_to(hidden["bias"], (4, 2))
    panels = {
        "inputs $X$": x,
        "$X W_1$": x @ kernel,
        "$X W_1 + b_1$": x @ kernel + bias,
    }
    panels["$H = ReLU(X W_1 + b_1)$"] = jb.relu(x @ kernel + bias)
    figure, axes = page(6.6, 2, 2)
    axes = axes.ravel()
    for ax, (name, places) in zip(axes, panels.items(), strict=True):
        ax.axhline(0, color="0.8", linewidth=0.7, zorder=0)
        ax.axvline(0, color="0.8", linewidth=0.7, zorder=0)
        plotting.points(places, labels, ax, names=["class 0", "class 1"])
        for place in np.unique(places, axis=0):
            names = ", ".join(f"{a:.0f}{b:.0f}" for a, b in x[(places == place).all(1)])
            offset = (5, -11) if "01" in names or "10" in names else (5, 5)
            ax.annotate(names, place, offset, textcoords="offset points", fontsize=8)
        ax.set(
            title=name,
            xlabel="first coordinate",
            ylabel="second coordinate",
            xlim=(-0.6, 2.8),
            ylim=(-1.5, 2.6),
            xticks=[0, 1, 2],
            yticks=[-1, 0, 1, 2],
            aspect="equal",
        )
        if ax is not axes[-1]:
            ax.get_legend().remove()
    line = np.array([-0.6, 2.8])
    axes[-1].plot(line, (line - 0.5) / 2, "--", color=GRAY, label="$h_1 - 2 h_2 = 1/2$")
    axes[-1].legend(loc="upper left")
    return figure, {
        "places": [np.asarray(p) for p in panels.values()],
        "output": np.asarray(jb.affine(places, **out)),
    }


@picture("F16", f"{KRAPAC}, sigmoid-like activations; softmax")
def saturation(quick):
    """Saturation of sigmoids, and smooth approximations of the maximum of (z, 0)."""
    z = jnp.linspace(-6, 6, 481)
    grad = lambda f: jax.jit(jax.vmap(jax.grad(f)))
    figure, (left, right) = page(3.8, 1, 2)
    both = {
        "sigmoid": jb.sigmoid,
        "tanh": jb.tanh,
        "sigmoid'": grad(jb.sigmoid),
        "tanh'": grad(jb.tanh),
    }
    plotting.curves(z, both, left)
    left.axvspan(-6, -3, color="0.93", zorder=0)
    left.axvspan(3, 6, color="0.93", zorder=0)
    left.set(
        xlabel="z",
        ylabel="value",
        title="gray: saturated, gradients vanish",
        ylim=(-1.1, 1.5),
    )
    left.legend(loc="upper left", ncols=2)
    pair = jnp.stack([z, jnp.zeros_like(z)], -1)
    functions = {
        "LSE(z, 0)": jb.logsumexp(pair),
        "max(z, 0)": pair.max(-1),
        "softmax-mean": jb.probabilities.softmax_mean(pair, pair),
    }
    functions["softmax$_1$(z, 0)"] = jb.softmax(pair)[:, 0]
    plotting.curves(z, functions, right)
    right.set(
        xlabel="z",
        ylabel="value",
        title="LSE $\\geq$ max $\\geq$ softmax-mean",
        xlim=(-4, 4),
        ylim=(-0.4, 4.1),
    )
    return figure, {name: np.asarray(values) for name, values in functions.items()}


@picture("F17", f"{KRAPAC}, negative log-likelihood")
def loss_gradients(quick):
    """The gradient of the squared error of a sigmoid vanishes for confident errors;
    that of cross-entropy does not.
    """
    z = jnp.linspace(-8, 8, 801)
    losses = {
        "cross-entropy": lambda z: jb.sigmoid_cross_entropy(z, jnp.ones_like(z)),
        "squared error": lambda z: (1 - jb.sigmoid(z)) ** 2,
    }
    figure, (left, right) = page(3.4, 1, 2)
    plotting.curves(z, losses, left)
    derivatives = {name: jax.jit(jax.vmap(jax.grad(f))) for name, f in losses.items()}
    gradients = {name: np.asarray(f(z)) for name, f in derivatives.items()}
    plotting.curves(z, gradients, right)
    largest = float(abs(gradients["squared error"]).max())
    right.plot(-np.log(2), -8 / 27, "ko", markersize=4)
    right.annotate(
        "8/27 at $-\\ln 2$",
        (-np.log(2), -8 / 27),
        (-6, -10),
        textcoords="offset points",
        ha="right",
        fontsize=8,
    )
    left.set(xlabel="logit z", ylabel="loss for label 1")
    right.set(xlabel="logit z", ylabel="derivative by z")
    at = jnp.array([-10.0, -5.0, 0.0, 5.0])
    return figure, {
        "largest": largest,
        **{name: np.asarray(f(at)) for name, f in derivatives.items()},
    }


@picture("F18", f"{KRAPAC} (three slides)", "The colors are our choice.")
def colors(quick):
    """Regression from a point to a color: a sum of functions of x and of y extrapolates
    to an unseen corner.
    """

    @jax.jit
    def target(x):
        red = 0.5 + 0.5 * jnp.sin(4 * x[:, :1]) * jnp.array([[1.0, 0.3, 0.1]])
        blue = 0.5 + 0.5 * jnp.cos(5 * x[:, 1:]) * jnp.array([[0.1, 0.4, 1.0]])
        return (red + blue) / 2

    line = lambda n: np.linspace(-1, 1, n, dtype=np.float32)
    grid = lambda n: np.stack(np.meshgrid(line(n), line(n)), -1).reshape(-1, 2)
    hidden = lambda x: (x[:, 0] > 0.1) & (x[:, 1] > 0.1)
    x = grid(16)
    x = x[~hidden(x)]
    of_one = lambda: jb.MLP(32, 3, activation=jb.tanh)
    nets = {
        "a generic net": jb.MLP(32, 32, 3, activation=jb.tanh),
        "$(f_R(x) + f_B(y)) / 2$": jb.Wire(
            lambda f, x: (f.red(x[..., :1]) + f.blue(x[..., 1:])) / 2,
            red=of_one(),
            blue=of_one(),
        ),
    }
    fine = grid(81)
    shown, errors = {"target": np.asarray(target(fine))}, {}
    for name, net in nets.items():
        params, _ = trained(
            net,
            jb.mse,
            x,
            target(x),
            jax.random.key(0),
            steps=200 if quick else 3000,
            rate=1e-2,
        )
        shown[name] = np.asarray(jax.jit(net.apply)(params, fine))
        errors[name] = float(
            np.sqrt(np.mean((shown[name] - shown["target"])[hidden(fine)] ** 2))
        )
    figure, axes = page(7, 2, 2)
    axes = axes.ravel()
    for ax, (name, rgb) in zip(axes[[0, 2, 3]], shown.items(), strict=True):
        ax.imshow(
            np.clip(np.asarray(rgb).reshape(81, 81, 3), 0, 1),
            origin="lower",
            extent=(-1, 1, -1, 1),
        )
        ax.set_title(
            name
            + (f"\nerror in the corner {errors[name]:.3f}" if name in errors else "\n")
        )
    axes[1].scatter(
        *x.T, c=np.clip(target(x), 0, 1), s=16, edgecolors="0.5", linewidths=0.3
    )
    axes[1].set(title=f"{len(x)} training points\n", aspect="equal")
    for ax in axes:
        ax.plot(
            [0.1, 0.1, 1],
            [1, 0.1, 0.1],
            "-",
            color="white" if ax is not axes[1] else "black",
            linewidth=1.2,
        )
        ax.set(
            xlabel="x", xlim=(-1, 1), ylim=(-1, 1), xticks=[-1, 0, 1], yticks=[-1, 0, 1]
        )
        ax.set_ylabel("y")
    return figure, errors


@picture(
    "F19",
    f"{KRAPAC}, Figure 1 (after Montufar et al. 2014)",
    "The classes are our choice.",
)
def shallow_and_deep(quick):
    """Decision boundaries of 20 rectifiers in one layer and of 10 + 10 in two, and the
    errors of the shallow net.
    """
    inside = lambda x: (
        jnp.hypot(*x.T) < 0.62 + 0.2 * jnp.cos(5 * jnp.arctan2(x[:, 1], x[:, 0]))
    ).astype(x.dtype)
    x = jax.random.uniform(jax.random.key(0), (800, 2), minval=-1, maxval=1)
    y = jax.jit(inside)(x)
    box = ((-1, 1), (-1, 1))
    loss = lambda outputs, y: jb.sigmoid_cross_entropy(outputs[..., 0], y)
    figure, axes = page(7.4, 2, 2)
    axes = axes.ravel()
    numbers, boundaries, wrong = {}, {}, {}
    looks = {
        "20 units": dict(linestyle="-", color="black", linewidth=1.8),
        "10 + 10 units": dict(linestyle=(0, (4, 1.5)), color=VERMILION, linewidth=1.8),
    }
    for ax, name, widths in zip(axes, looks, ((20,), (10, 10)), strict=False):
        net = jb.MLP(*widths, 1)
        steps, starts = (150, 1) if quick else (3000, 8)
        params, _ = trained(
            net, loss, x, y, jax.random.key(1), steps=steps, rate=2e-2, starts=starts
        )
        found = regions(net, params, box=box)
        found.plot(ax)
        wrong[name] = np.asarray((jax.jit(net.apply)(params, x)[:, 0] > 0) != (y > 0.5))
        boundaries[name] = found.level_set(0.0)
        draw_boundary(ax, boundaries[name], looks[name])
        count = jb.count_params(params)
        ax.plot(
            *np.asarray(x)[wrong[name]].T,
            "x",
            color="white",
            markersize=6,
            markeredgewidth=2.5,
        )
        ax.plot(*np.asarray(x)[wrong[name]].T, "x", color="black", markersize=5)
        errors = int(wrong[name].sum())
        words = f"{found.linear_count} regions, {errors} error{'s' * (errors != 1)}"
        ax.set_title(f"{name}, {count} parameters:\n{words}")
        ax.set(xlabel="$x_1$", ylabel="$x_2$")
        numbers[name] = {
            "parameters": count,
            "regions": found.linear_count,
            "bound": region_upper_bound(widths, 2),
        }
        numbers[name]["errors"] = errors
    close = axes[2]
    for name, segments in boundaries.items():
        draw_boundary(close, segments, looks[name])
    for k, marker in enumerate("o^"):
        for errors, fill in ((False, "white"), (True, "black")):
            chosen = np.asarray(x)[(np.asarray(y) == k) & (wrong["20 units"] == errors)]
            close.scatter(
                *chosen.T,
                s=34,
                marker=marker,
                label=f"class {k}" + ", error of 20 units" * errors,
                facecolors=fill,
                edgecolors="black",
                linewidths=0.8,
            )
    missed = np.asarray(x)[wrong["20 units"]]
    middle = densest(missed) if len(missed) else np.zeros(2)
    middle = np.clip(middle, -0.6, 0.6)
    close.set(
        xlim=(middle[0] - 0.4, middle[0] + 0.4),
        ylim=(middle[1] - 0.4, middle[1] + 0.4),
        aspect="equal",
    )
    close.set(title="close-up", xlabel="$x_1$", ylabel="$x_2$")
    axes[3].set_axis_off()
    lines = [
        axes[3].plot([], [], label=name, **look)[0] for name, look in looks.items()
    ]
    axes[3].legend(handles=[*lines, *close.collections], loc="center", frameon=False)
    return figure, numbers


def draw_boundary(ax, segments, look):
    """Draw the boundary of a net, in its look."""
    for segment in segments:
        ax.plot(*segment.T, **look)


def densest(places):
    """The point with the most other points near it."""
    near = np.linalg.norm(places[:, None] - places[None], axis=-1) < 0.35
    return places[near.sum(1).argmax()]


@picture(
    "F20",
    f"{KRAPAC} (after Goodfellow et al. 2014)",
    "Synthetic data replace street numbers. Bars: quartiles.",
)
def depth_and_width(quick):
    """Accuracy over depth and over the number of parameters, on a checkerboard: more
    layers are better than one wider layer.
    """
    starts, steps = (3, 400) if quick else (5, 1200)
    draw = lambda key, n: jax.random.uniform(key, (n, 2), minval=-1, maxval=1)
    label = jax.jit(
        lambda x: (jnp.prod(jnp.sin(2 * jnp.pi * x), -1) > 0).astype(x.dtype)
    )
    x, test = draw(jax.random.key(0), 500), draw(jax.random.key(1), 4000)
    loss = lambda outputs, y: jb.sigmoid_cross_entropy(outputs[..., 0], y)

    def accuracy(widths):
        net = jb.MLP(*widths, 1)
        every, _ = trainings(
            net,
            loss,
            x,
            label(x),
            jax.random.key(2),
            steps=steps,
            rate=1e-2,
            starts=starts,
        )
        right = lambda params: (
            (net.apply(params, test)[:, 0] > 0) == (label(test) > 0.5)
        ).mean()
        low, median, high = np.quantile(
            jax.jit(jax.vmap(right))(every), (0.25, 0.5, 0.75)
        )
        return (
            jb.count_params(every) // starts,
            float(median),
            (float(median - low), float(high - median)),
        )

    depths = (1, 2) if quick else (1, 2, 3, 4)
    widths = (12, 48) if quick else (12, 48, 96, 192)
    deep = [accuracy((12,) * depth) for depth in depths]
    shallow = [deep[0]] + [accuracy((width,)) for width in widths[1:]]
    sweeps = {"deep": deep, "shallow": shallow}
    figure, (left, right) = page(3.8, 1, 2, sharey=True)

    def draw_sweep(ax, x, sweep, look, color, name=None):
        medians, spreads = [row[1] for row in sweep], [row[2] for row in sweep]
        ax.plot(x, medians, look, color=color, label=name)
        ax.errorbar(
            x, medians, np.transpose(spreads), fmt="none", ecolor=color, capsize=3
        )

    sizes = lambda sweep: [size for size, *_ in sweep]
    draw_sweep(left, depths, deep, "o-", BLUE)
    left.set(
        xlabel="hidden layers of 12 rectifiers",
        ylabel=f"accuracy on new points, median of {starts} runs",
        xticks=depths,
    )
    draw_sweep(right, sizes(deep), deep, "o-", BLUE, "deeper")
    draw_sweep(right, sizes(shallow), shallow, "^--", VERMILION, "wider, one layer")
    right.set(xlabel="parameters", xscale="log")
    right.set_xticks([50, 100, 200, 400, 800], ["50", "100", "200", "400", "800"])
    right.minorticks_off()
    right.legend()
    return figure, {
        name: [(size, median) for size, median, _ in sweep]
        for name, sweep in sweeps.items()
    }


# ---- tensors, computational graphs, derivatives --------------------------------------


@picture("F21", f"{CEVHER}, tensors; {DIEHL}, section 1.2")
def tensors(quick):
    """Tensors of order 0, 1, 2 and 3."""
    shapes = [(), (3,), (3, 4), (2, 3, 4)]
    figure, axes = page(2.6, 1, 4, width_ratios=[1.9, 3, 4, 4.6])
    for ax, shape in zip(axes, shapes, strict=True):
        plotting.cells(np.arange(np.prod(shape, dtype=int)).reshape(shape), ax)
        ax.set_title(f"order {len(shape)}\nshape {shape}")
    return figure, {"cells": [len(ax.patches) for ax in axes]}


@picture("F22", f"{KRAPAC}, computational graph (three slides)")
def computational_graph(quick):
    """The computational graph of a classifier with two layers and an L2 penalty, from
    its program.
    """
    table = trace_table(classifier, *listing(), open_calls=False)
    figure, ax = page(5.6)
    table.plot(ax)
    ax.set_title("value below, adjoint above each node")
    params, x, y, lam = table.gradient
    numbers = {
        "loss": float(table.value),
        "nodes": [node.name for node in table.nodes],
        "lambda": float(lam),
    }
    roots = [node.operation for node in table.nodes if node.kind == "input"]
    numbers |= {"roots": roots, "x": np.asarray(x), "y": float(y)}
    return figure, {
        **numbers,
        "W1": np.asarray(params["W1"]),
        "W2": np.asarray(params["W2"]),
    }


@picture("F23", f"{KRAPAC} (a problem)")
def two_levels(quick):
    """A function designed from five rectifiers: $h_{21} = h_{10} - h_{11} + 2 h_{12} -
    3 h_{13} + h_{14}$.
    """
    net, params = two_level_model()
    f = to_piecewise_linear(net, params)
    x = np.linspace(-1, 8, 901)
    figure, (left, right) = page(3.4, 1, 2, sharex=True)
    hinges = {
        f"$h_{{1{i}}} = (x - {s})_+$": np.maximum(x - s, 0)
        for i, s in enumerate(f.breakpoints.astype(int))
    }
    plotting.curves(x, hinges, left)
    left.set(xlabel="x", ylabel="unit", ylim=(-0.2, 9), title="first level")
    left.legend(loc="upper left")
    f.plot(right)
    right.set(title="second level, $h_{21}$", xlim=(-1, 8))
    return figure, {
        "breakpoints": f.breakpoints,
        "slopes": f.slopes,
        "integral": f.integral(0, 6),
    }


@picture(
    "F24", f"{KRAPAC}, n-way exclusive or", "Solid: weight > 0, dashed: weight < 0."
)
def parity(quick):
    """Parity of four bits: one unit for each true row, one for each sum, or a chain of
    exclusive ors.
    """
    rows = bit_rows(4)
    odd = rows.sum(1) % 2
    nets = {
        "table": minterm_network(odd),
        "sums": parity_shallow(4),
        "chain": parity_chain(4),
    }
    figure, axes = page(7.5, 2, 2)
    axes = axes.ravel()
    axes[3].set_axis_off()
    plotting.network(
        nets["table"][1], axes[0], names=["4 bits", "8 true rows", "parity"]
    )
    plotting.network(
        nets["sums"][1], axes[1], names=["4 bits", "4 rectifiers", "parity"]
    )
    places = {"x1": (-1.0, 0.0), "x2": (0.0, 1.0), "x3": (1.0, 1.0), "x4": (2.0, 1.0)}
    places |= {f"z{i}": (i - 2.0, 0.0) for i in (2, 3, 4)}
    arrows = [
        ("x1", "z2"),
        ("z2", "z3"),
        ("z3", "z4"),
        ("x2", "z2"),
        ("x3", "z3"),
        ("x4", "z4"),
    ]
    texts = {
        name: f"${name[0]}_{name[1]}$" + ("\n2 rectifiers" if name[0] == "z" else "")
        for name in places
    }
    plotting.diagram(
        places, arrows, axes[2], texts=texts, shade={f"z{i}": 1 for i in (2, 3, 4)}
    )
    axes[2].set_ylim(-1.2, 2)
    units, wrong = {}, {}
    words = {
        "table": "table, $2^{n-1}$",
        "sums": "one layer, $n$",
        "chain": "chain, $2 (n - 1)$",
    }
    for ax, (name, (net, params)) in zip(axes, nets.items(), strict=False):
        wrong[name] = float(
            abs(net.apply(params, jnp.asarray(rows, jnp.float32))[:, 0] - odd).max()
        )
        units[name] = (
            3 * params["xor"][0]["bias"].size
            if name == "chain"
            else params[0]["bias"].size
        )
        ax.set_title(f"{words[name]}: {units[name]} units")
    return figure, {"units": units, "wrong": wrong}


@picture(
    "F25",
    f"{KRAPAC}, generic and hand-crafted features",
    "The contents are our choice.",
)
def local_smoothness(quick):
    """Local smoothness: kernels interpolate nearby points; in high dimensions all
    points are far; a descriptor.
    """
    centers = jnp.array([-2.0, -1.2, 0.1, 0.8, 2.0])[:, None]
    y = jnp.array([0.6, 1.0, -0.4, 0.2, 0.9])
    x = jnp.linspace(-5, 5, 401)
    weights = jnp.linalg.solve(jb.layers.rbf_kernel(centers, centers, gamma=2.0), y)
    bumps = jb.layers.rbf_kernel(x[:, None], centers, gamma=2.0) * weights[None]
    figure, axes = page(6.4, 2, 2)
    left, middle, right, rest = axes.ravel()
    plotting.curves(x, {"sum of bumps": bumps.sum(1)}, left)
    left.plot(x, bumps, color=GRAY, linewidth=0.7)
    left.plot(centers[:, 0], y, "ko", markersize=4, label="data")
    left.set(xlabel="x", ylabel="y", title="far from the data it is 0")
    left.legend(loc="upper left")
    left.set_ylim(-0.7, 1.5)
    sizes = [1, 3, 10, 30, 100]
    keys = jax.random.split(jax.random.key(0), len(sizes))
    clouds = [
        jax.random.uniform(key, (200, d)) for key, d in zip(keys, sizes, strict=True)
    ]
    off = ~np.eye(200, dtype=bool)
    typical = [
        float(np.median(np.asarray(jax.jit(jb.layers.rbf_kernel)(c, c))[off]))
        for c in clouds
    ]
    middle.loglog(sizes, typical, "o-", color=BLUE, label="median over pairs")
    middle.loglog(
        sizes,
        np.exp(-np.array(sizes) / 6),
        "--",
        color=VERMILION,
        label="$\\exp(-d / 6)$",
    )
    middle.set(
        xlabel="dimension d of the cube",
        ylabel="kernel",
        title="$\\exp(-\\|x - y\\|^2)$ of random points",
    )
    middle.legend()
    # a ramp: all gradients are parallel
    image = np.add.outer(np.arange(16.0), 2 * np.arange(16.0))
    image = np.where(image > 24, 1.0, 0.0)
    down, across = np.gradient(image)
    angles = np.degrees(np.arctan2(down, across)) % 180
    counts, edges = np.histogram(
        angles, bins=6, range=(0, 180), weights=np.hypot(down, across)
    )
    names = [f"{edge:.0f}" for edge in edges[:-1]]
    plotting.bars(counts / counts.sum(), names, right, numbers="{:.2f}")
    right.set(
        xlabel="angle of the gradient, degrees, from",
        ylabel="share",
        title="hand-crafted: orientations",
        ylim=(0, 1.1),
    )
    plotting.tiles(image[None], rest, columns=1)
    rest.set_title("the image of these gradients")
    at_data = np.asarray(
        (jb.layers.rbf_kernel(centers, centers, gamma=2.0) * weights[None]).sum(1)
    )
    numbers = {
        "at_data": abs(at_data - np.asarray(y)).max(),
        "far": float(abs(bumps[0].sum())),
    }
    return figure, {**numbers, "typical": typical}


@picture("F26", f"{KRAPAC} (two slides)", "Solid: weight > 0, dashed: weight < 0.")
def fully_connected(quick):
    """Fully connected layers on two inputs: widths 5, 10, 5, 2 have 142 parameters."""
    net = jb.MLP(5, 10, 5, 2)
    params = net.init(jax.random.key(0), jnp.zeros(2))
    figure, (left, right) = page(4, 1, 2, width_ratios=[1, 2])
    plotting.network(params[:1], left, names=["$x$", "$h = \\sigma(W x + b)$"])
    left.set_title("one layer")
    sizes = [jb.count_params(p) for p in params if p]
    names = [
        f"{p['bias'].size} units\n{size} params"
        for p, size in zip(params[::2], sizes, strict=True)
    ]
    names = ["2 inputs", *names]
    plotting.network(params, right, names=names)
    right.set_title("2-5-10-5-2")
    return figure, {"layers": sizes, "parameters": jb.count_params(params)}


@picture("F27", f"{KRAPAC} (nine slides)", "The net is our choice.")
def passes(quick):
    """The forward pass, then the backward pass, as dynamic programming: each value is
    computed once.
    """
    net = lambda w1, w2: (w2 * jnp.tanh(w1 * 0.5) - 1) ** 2
    table = trace_table(net, 1.2, 0.7)
    rows, backs = len(table.primal), len(table.adjoint)
    steps = [
        *np.linspace(2, rows, 4).astype(int),
        *(rows + np.linspace(1, backs, 5).astype(int)),
    ]
    figure, axes = page(13.5, 5, 2)
    for ax, step in zip([*axes[:4, 0], *axes[:, 1]], steps, strict=True):
        table.plot(ax, step=int(step))
    axes[4, 0].set_axis_off()
    words = (
        "left: forward pass, right: backward pass\nbelow each node its value, "
        "above it its adjoint"
    )
    words += "\nring: the node of the step"
    axes[4, 0].text(
        0.5, 0.5, words, ha="center", va="center", transform=axes[4, 0].transAxes
    )
    return figure, {
        "steps": [int(step) for step in steps],
        "gradient": [float(g) for g in table.gradient],
    }


@picture("F28", f"{CEVHER}, forward and backward pass")
def forward_and_backward(quick):
    """The forward pass stores all u and a; the backward pass uses them in reverse
    order.
    """
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
    params, a0 = [(draw(3, 2), draw(3)), (draw(1, 3), draw(1))], draw(2)
    loss = lambda params: jnp.sum(forward(params, a0)[-1].a ** 2) / 2
    trace = forward(params, a0)
    gradients, _ = backprop(params, trace, trace[-1].a)
    gap = ravel_pytree(gradients)[0] - ravel_pytree(jax.grad(loss)(params))[0]

    names = ["a0", "u1", "a1", "u2", "a2", "L"]
    values = dict(
        zip(
            names,
            [a0, trace[0].u, trace[0].a, trace[1].u, trace[1].a, loss(params)],
            strict=True,
        )
    )
    words = lambda v: "".join(f"\n{entry:.2f}" for entry in np.ravel(v))
    symbol = {
        name: f"${name[0]}^{{({name[1:]})}}$" if name != "L" else "$L$"
        for name in names
    }
    places = {name: (1.5 * i, 1.2) for i, name in enumerate(names)}
    steps = [
        "$X^{(1)} a + \\mu^{(1)}$",
        "$\\sigma$",
        "$X^{(2)} a + \\mu^{(2)}$",
        "identity",
        "loss",
    ]
    down = {
        f"d{name}": (1.5 * i, 0.0)
        for i, name in enumerate(names)
        if name not in ("a0", "L")
    }
    down |= {"dp1": (1.5, -0.9), "dp2": (4.5, -0.9)}
    places |= down
    arrows = [
        (a, b, word) for a, b, word in zip(names[:-1], names[1:], steps, strict=True)
    ]
    arrows += [("L", "da2", "")]
    arrows += [
        ("da2", "du2", "$\\odot$ 1"),
        ("du2", "da1", "$X^{(2)\\top} \\cdot$"),
        ("da1", "du1", "$\\odot\\,\\sigma'$"),
    ]
    arrows += [
        ("du1", "dp1", "$\\cdot\\, a^{(0)\\top}$"),
        ("du2", "dp2", "$\\cdot\\, a^{(1)\\top}$"),
    ]
    back = lambda name: f"$\\partial L / \\partial {symbol[name][1:-1]}$"
    texts = {name: symbol[name] + words(values[name]) for name in names}
    texts |= {f"d{name}": back(name) for name in names[1:-1]}
    of_params = "$\\partial L / \\partial X^{(i)},\\ \\partial L / \\partial\\mu^{(i)}$"
    texts |= {f"dp{i}": of_params.replace("(i)", f"({i})") for i in (1, 2)}
    shade = dict.fromkeys(down, 1) | {"dp1": 2, "dp2": 2}
    figure, ax = page(4)
    plotting.diagram(places, arrows, ax, texts=texts, shade=shade)
    return figure, {"gap": float(abs(gap).max())}


@picture("F29", f"{CEVHER}, automatic differentiation (after Baydin et al. 2018)")
def trace(quick):
    """Automatic differentiation by hand: $y = \\ln x_1 + x_1 x_2 - \\sin x_2$ at (2,
    5).
    """
    table = trace_table(survey, 2.0, 5.0)
    figure, (left, right) = page(8, 2, 1)
    left.text(
        0,
        1,
        repr(table),
        family="monospace",
        fontsize=9,
        va="top",
        transform=left.transAxes,
    )
    left.set_axis_off()
    table.plot(right)
    value, gradient = float(table.value), [float(g) for g in table.gradient]
    return figure, {"value": value, "gradient": gradient}


# ---- optimization --------------------------------------------------------------------


@picture("F30", f'{KRAPAC}, "Hello world"')
def hello_world(quick):
    """Gradient descent on $x^4 - x^3 - 2 x^2 + 3$, step size 0.13: the limit depends on
    the start.
    """
    starts = {"from 2": 2.0, "from -1": -1.0}
    with jax.enable_x64(True):
        paths = {
            name: np.asarray(descend(quartic, start, 0.13, steps=100).points)
            for name, start in starts.items()
        }
    figure, (left, right) = page(3.4, 1, 2)
    plotting.trajectories(quartic, paths, left, box=(-1.6, 2.15))
    left.set(xlabel="x", ylabel="f(x)")
    limits = {"from 2": (3 + np.sqrt(73)) / 8, "from -1": (3 - np.sqrt(73)) / 8}
    gaps = {name: abs(path - limits[name]) for name, path in paths.items()}
    t = np.arange(101)
    plotting.curves(
        t,
        {name: np.where(gap > 1e-15, gap, np.nan) for name, gap in gaps.items()},
        right,
    )
    right.set(xlabel="step", ylabel="distance to the limit", yscale="log")
    return figure, paths


@picture("F31", f"{HUSZAR} (as formulas)", "The dimensions are our choice.")
def chain_costs(quick):
    """The cost of a chain of Jacobians, multiplied forward or in reverse, over the
    output dimension.
    """
    orders = [
        optimal_order(dims) for dims in ((784, 128, 64, 10), (100, 50, 200, 50, 1))
    ]
    figure, axes = page(3.8, 1, 2)
    for ax, order in zip(axes, orders, strict=True):
        order.plot(ax)
        ax.set_title(" - ".join(map(str, order.dims)))
    return figure, {
        order.dims: (order.forward, order.reverse, order.cost, order.crossover)
        for order in orders
    }


@picture(
    "F32",
    f"{CEVHER}, building blocks (seven drawings)",
    "Drawn here as Jacobians.",
)
def building_blocks(quick):
    """The sparsity of layers: entries of their Jacobians, white where one is zero."""
    steps, features = 6, 2
    x = jax.random.normal(jax.random.key(0), (steps, features))
    flat = lambda x: x.reshape(-1)
    here, there = jnp.arange(steps), (jnp.arange(steps) + 1) % steps
    senders, receivers = jnp.append(here, there), jnp.append(there, here)
    nodes = lambda graph: graph.nodes
    layers = {
        "linear": jb.Serial(flat, jb.Dense(12)),
        "multilayer\nperceptron": jb.Serial(flat, jb.MLP(16, 12, activation=jb.tanh)),
        "convolution,\nkernel size 3": jb.Conv(features, 3),
        "transposed\nconvolution": jb.ConvTranspose(features, 3),
        "recurrent": jb.RNN(features),
        "graph: a ring of six": jb.Serial(
            lambda x: jb.Graph(x, senders, receivers), jb.GCN(features), nodes
        ),
        "attention": jb.Attention(1),
    }
    figure, axes = page(5, 2, 4)
    numbers = {}
    for ax, (name, layer) in zip(axes.flat, layers.items(), strict=False):
        params = jax.jit(layer.init)(jax.random.key(1), x)
        jacobian = jax.jit(
            jax.jacobian(
                lambda x, layer=layer, params=params: flat(layer.apply(params, x))
            )
        )(x)
        numbers[name] = np.asarray(jacobian).reshape(len(jacobian), -1)
        plotting.matrix(np.sqrt(abs(numbers[name])), ax, numbers="")
        ax.set(title=name, xticks=[], yticks=[], xlabel="inputs", ylabel="outputs")
    q = jax.random.normal(jax.random.key(2), (steps, 1, 4))
    numbers["weights"] = np.asarray(jb.attention_weights(q, q)[0])
    plotting.matrix(numbers["weights"], axes.flat[-1], numbers="{:.1f}")
    axes.flat[-1].set(
        title="attention weights:\nrows sum to 1", xlabel="keys", ylabel="queries"
    )
    return figure, numbers


@picture("F33", CEVHER, "The data are our choice.")
def two_tasks(quick):
    """Regression predicts a number, classification a class."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, (40, 1)).astype(np.float32)
    y = (0.8 * x[:, 0] + 0.3 + 0.4 * rng.normal(size=40)).astype(np.float32)
    line = jb.layers.linear_regression(jnp.asarray(x), jnp.asarray(y)[:, None])
    clouds = rng.normal(size=(80, 2)).astype(np.float32) + np.repeat(
        [[-1, -0.6], [1, 0.6]], 40, 0
    ).astype(np.float32)
    labels = np.repeat([0, 1], 40)
    plane = jb.layers.logistic_regression(jnp.asarray(clouds), jnp.asarray(labels))
    figure, (left, right) = page(3.6, 1, 2)
    places = np.linspace(-2.2, 2.2, 2)
    fit = column(lambda x: jb.affine(x, **line))(jnp.asarray(places, jnp.float32))
    plotting.curves(places, {"fit": fit}, left)
    left.plot(x[:, 0], y, "ko", markersize=3, label="data")
    left.legend()
    left.set(xlabel="x", ylabel="y", title="regression")
    box = tuple((edge.min() - 0.3, edge.max() + 0.3) for edge in clouds.T)
    score = lambda x: jb.affine(x.astype(jnp.float32), **plane)
    plotting.boundary(score, box, right)
    plotting.points(clouds, labels, right, names=["class 0", "class 1"])
    right.set(xlabel="$x_1$", ylabel="$x_2$", title="classification")
    accuracy = float(
        np.mean((np.asarray(score(jnp.asarray(clouds)))[:, 0] > 0) == labels)
    )
    return figure, {"slope": float(line["kernel"][0, 0]), "accuracy": accuracy}


@picture("F34", f"{KRAPAC}, empirical risk", "The slices are our choice.")
def landscapes(quick):
    """The loss along random lines: convex for a linear model, not for a net with two
    hidden layers.
    """
    x, y = (
        jnp.asarray(bit_rows(2), jnp.float32),
        jnp.array([[0.0], [1.0], [1.0], [0.0]]),
    )
    nets = {
        "linear model: convex": jb.Dense(1),
        "two hidden layers: not convex": jb.MLP(8, 8, 1, activation=jb.tanh),
    }
    amounts = jnp.linspace(-6, 6, 401)
    figure, axes = page(3.4, 1, 2, sharey=True)
    bends = {}
    for ax, (name, net) in zip(axes, nets.items(), strict=True):
        init_key, *keys = jax.random.split(jax.random.key(0), 5)
        center, unravel = ravel_pytree(net.init(init_key, x))
        slices = {}
        for i, key in enumerate(keys):
            direction = jax.random.normal(key, center.shape)
            direction = direction / jnp.linalg.norm(direction)
            risk = lambda w, net=net, unravel=unravel: jb.mse(
                net.apply(unravel(w), x), y
            ).mean()
            slices[f"_{i}"] = jax.jit(jax.vmap(risk))(
                center[None] + amounts[:, None] * direction[None]
            )
        plotting.curves(amounts, slices, ax)
        bends[name] = min(
            float(np.diff(np.asarray(values, np.float64), 2).min())
            for values in slices.values()
        )
        ax.set(title=name, xlabel="distance along the line", ylim=(0, 3))
    axes[0].set_ylabel("mean squared error")
    return figure, bends


@picture(
    "F35",
    f"{DIEHL}, footnote 9",
    "The lecture links to a page; the quadratic and the settings are our choice.",
)
def descents(quick):
    """Gradient descent, two equivalent forms of momentum, and Adam on $(\\theta_1^2 +
    10\\,\\theta_2^2) / 2$.
    """
    optimizers = {
        "gradient descent": 0.05,
        "momentum": optax.sgd(0.05, momentum=0.7),
        "momentum as moving average": optax.chain(
            optax.ema(0.7, debias=False), optax.scale(-0.05 / 0.3)
        ),
        "Adam": optax.adam(0.1, b1=0.9, b2=0.999, eps=1e-8),
    }
    with jax.enable_x64(True):
        paths = {
            name: np.asarray(descend(quadratic, jnp.ones(2), o, steps=60).points)
            for name, o in optimizers.items()
        }
    figure, (left, right) = page(3.8, 1, 2)
    f = lambda x: quadratic(x.T)
    plotting.trajectories(f, paths, left, box=((-0.5, 1.1), (-0.8, 1.1)))
    left.get_legend().remove()
    left.set(xlabel="$\\theta_1$", ylabel="$\\theta_2$")
    plotting.curves(
        np.arange(61), {name: f(path) for name, path in paths.items()}, right
    )
    right.set(xlabel="step", ylabel="loss", yscale="log")
    above(right, 1)
    return figure, paths


@picture("F36", f"{DIEHL}, Lemma 2.1")
def sharpening(quick):
    """Softmax of $\\lambda x$ for x = (1, 2, 3): from uniform weights to the maximum as
    $\\lambda$ grows.
    """
    x, scales = jnp.array([1.0, 2.0, 3.0]), jnp.linspace(0, 20, 401)
    p = np.asarray(jb.softmax(scales[:, None] * x[None]))
    figure, (left, right) = page(3.4, 1, 2)
    plotting.curves(scales, {f"$x_{i + 1} = {i + 1}$": p[:, i] for i in range(3)}, left)
    left.set(xlabel="$\\lambda$", ylabel="softmax($\\lambda x$)", xlim=(0, 8))
    bounds = np.exp(np.asarray(scales)[:, None] * (np.asarray(x) - 3.0))
    rest = {"$1 - p_3$": 1 - p[:, 2].astype(np.float64)}
    plotting.curves(scales, {"$p_1$": p[:, 0], "$p_2$": p[:, 1]}, right)
    right.plot(
        scales,
        bounds[:, 0],
        ":k",
        linewidth=1,
        label="$\\exp(\\lambda (x_i - 3))$, the bound",
    )
    right.plot(scales, bounds[:, 1], ":k", linewidth=1)
    right.set(xlabel="$\\lambda$", ylabel="probability", yscale="log", ylim=(1e-18, 2))
    right.legend()
    return figure, {"p": p, "bounds": bounds, **rest}


if __name__ == "__main__":
    main()
