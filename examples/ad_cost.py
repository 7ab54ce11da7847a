r"""The cost of derivatives: the orders of the chain rule, in operations, time and
memory, on nets of jaxblocks.

    1. bracketings   all orders of multiplying a chain of Jacobians; forward, reverse
                     and optimal; a counterexample
    2. table         function, jvp, vjp, gradient, jacfwd, jacrev, hessian, hvp of an
                     MLP, a conv net, a transformer
    3. modes         forward against reverse mode for numbers of inputs and outputs from
                     4 to 256
    4. memory        forward mode, reverse mode and checkpointing for increasing depth;
                     time against memory
    5. plan          the Jacobian of an autoencoder by the optimal bracketing, against
                     jax.jacfwd and jax.jacrev
    6. sharing       one derivative per layer, O(k^2 m^2), against backpropagation, O(k
                     m^2)

Results, in counted operations: for these nets a gradient costs two to three function
evaluations and a Hessian-vector product 3.6 to 7.8; forward mode costs about n / m
times as much as reverse mode for n inputs and m outputs; the Jacobian of the
autoencoder takes 1/40 of the operations of jacfwd and jacrev. Nets and batches are so
large that times agree with operations within a factor of 2.5. The example runs for
about two minutes on two CPU cores.

Source: Huszar, DeepNN lecture 3 (order of the chain rule). Its statement that reverse
mode is optimal for a scalar output requires that no other dimension is 1. Cevher,
Mathematics of Data (separate derivatives and backpropagation).

    python examples/ad_cost.py --out out/ad_cost
"""

import argparse
import itertools
import math
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import jaxblocks as jb
from jaxblocks.ad import (
    bracketings,
    chain_cost,
    checkpoint_table,
    cost_table,
    count_flops,
    jacobian,
    jacobian_chain,
    jacobian_plan,
    memory_curve,
    mode_grid,
    multiply_chain,
    optimal_order,
)
from jaxblocks.ad.costs.timing import quartiles, time_in_turns
from jaxblocks.plotting import GRAY, PALETTE

BLUE, VERMILION, GREEN = PALETTE[:3]
ROWS = ("jvp", "vjp", "gradient", "jacfwd", "jacrev", "hessian", "hvp")


class Sizes(NamedTuple):
    """Sizes of the nets and of the experiments; `QUICK` is for a fast run."""

    chain: tuple[int, ...] = (50, 1, 50, 50, 50)
    directions: int = 16  # along which part 2 shifts the inputs
    batch: int = 256  # examples in its loss
    perceptron: tuple[int, ...] = (784, 1024, 1024, 10)
    side: int = 16  # of the images of the conv net
    channels: int = 16
    tokens: int = 8
    features: int = 128
    # numbers of inputs and of outputs of part 3
    entries: tuple[int, ...] = (4, 16, 64, 256)
    points: int = 32  # that part 3 averages over
    width: int = 256  # of the layers of parts 3 and 4
    depths: tuple[int, ...] = (16, 64, 256)
    depth: int = 64  # of the frontier
    checkpoints: tuple = ("body", "sqrt", 2, 4, 8, 16)
    autoencoder: tuple[int, ...] = (784, 256, 64, 8, 64, 256, 784)
    layers: tuple[int, ...] = (2, 4, 8, 16, 32)


QUICK = Sizes(
    chain=(5, 1, 5, 5, 5),
    directions=12,
    batch=3,
    perceptron=(12, 8, 6, 3),
    side=6,
    channels=2,
    tokens=3,
    features=4,
    entries=(2, 16),
    points=2,
    width=8,
    depths=(4, 16),
    depth=8,
    checkpoints=(2,),
    autoencoder=(96, 32, 2, 32, 96),
    layers=(2, 4, 8),
)


def main(argv=None):
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n\n")[0], usage=argparse.SUPPRESS
    )
    parser.add_argument(
        "--repeats", type=int, default=5, help="rounds in which programs are timed"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="random seed of params and inputs"
    )
    parser.add_argument("--quick", action="store_true", help="use small nets")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("out/ad_cost"),
        help="output folder for the figures",
    )
    args = parser.parse_args(argv)
    if args.repeats < 1:
        parser.error(
            f"argument --repeats: expected an integer >= 1, got {args.repeats}"
        )
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(
            f"argument --out: expected a folder that can be created, got {args.out} "
            f"({error.strerror})"
        )
    sizes, rng = QUICK if args.quick else Sizes(), np.random.default_rng(args.seed)

    found = {
        **orders(sizes, rng, args.out / "bracketings.png"),
        **tables(sizes, rng, args.repeats, args.out / "table.png"),
        **modes(sizes, args.repeats, args.out / "modes.png"),
        **memory(sizes, args.repeats, args.out / "memory.png"),
        **plans(sizes, rng, args.repeats, args.out / "jacobian.png"),
        **sharing(sizes, args.out / "sharing.png"),
    }
    print(
        f"figures: {args.out}/bracketings.png, table.png, modes.png, memory.png, "
        f"jacobian.png, sharing.png"
    )
    return found


def title(text):
    print(f"\n---- {text} " + "-" * (100 - len(text)), end="\n\n")


# 1. Bracketings


def orders(sizes, rng, picture):
    title("1. orders of the product of Jacobians")
    best = optimal_order(sizes.chain)
    costs = {
        paper(order): chain_cost(sizes.chain, order=order)
        for order in bracketings(len(sizes.chain) - 1)
    }
    print(
        f"chain {'-'.join(map(str, sizes.chain))}, multiplications of each bracketing:"
    )
    for name, multiplications in sorted(costs.items(), key=lambda item: item[1]):
        print(f"{multiplications:12,}  {name}")
    print(f"\n{best}\n")

    fs, x = chain_of_layers(sizes.chain, rng)

    @jax.jit
    def jacobians(x):
        factors = jacobian_chain(fs, x)
        products = [
            multiply_chain(factors, order=order) for order in bracketings(len(factors))
        ]
        return jax.jacrev(lambda x: through(fs, x))(x), products

    whole, *products = jax.tree.map(np.asarray, jax.tree.leaves(jacobians(x)))
    gap = max(
        float(np.abs(product - whole).max() / np.abs(whole).max())
        for product in products
    )
    print(
        f"all {len(products)} products equal the Jacobian by jax.jacrev up to a "
        f"relative difference of {gap:.0e}"
    )

    exception = optimal_order((1, 100, 2, 1))
    print(
        f"scalar output, 1-100-2-1: forward {exception.forward}, reverse "
        f"{exception.reverse}, because d_0 = 1"
    )
    exceptions, chains = exceptions_to_reverse((2, 3, 4, 7), longest=5)
    print(
        f"scalar output, all other dimensions > 1: reverse mode is not optimal in "
        f"{exceptions} of {chains} chains"
    )

    figure = Figure(figsize=(7.5, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    names = sorted(costs, key=lambda name: costs[name], reverse=True)
    left.bar_label(
        left.barh(names, [costs[name] for name in names], color=BLUE),
        fmt="{:,.0f}",
        padding=3,
    )
    left.margins(x=0.25)
    left.set(
        xlabel="multiplications", title=f"dimensions {', '.join(map(str, sizes.chain))}"
    )
    optimal_order((sizes.width,) * 4).plot(right)
    right.set_title(f"dimensions {', '.join([str(sizes.width)] * 3)}, $d_L$")
    figure.savefig(picture, dpi=120)
    return {
        "orders": costs,
        "best": best,
        "gap": gap,
        "exception": exception,
        "exceptions": (exceptions, chains),
    }


def paper(order):
    """A bracketing in mathematical notation.

    >>> paper(((4, (3, 2)), 1))
    '(J4 (J3 J2)) J1'
    """
    if isinstance(order, int):
        return f"J{order}"
    return " ".join(
        f"({paper(part)})" if isinstance(part, tuple) else paper(part) for part in order
    )


def chain_of_layers(dims, rng):
    """Functions x -> tanh(W x + b) with these dimensions, and an input."""
    layers = [jb.Serial(jb.Dense(d), jb.tanh) for d in dims[1:]]
    params, x = drawn(jb.Serial(*layers), rng, dims[:1])
    fs = [
        lambda x, f=layer.apply, p=p: f(p, x)
        for layer, p in zip(layers, params, strict=True)
    ]
    return fs, x


def drawn(net, rng, shape):
    """Normally distributed params of variance 1 / (number of inputs), and an input of
    this shape.
    """
    x = normal(rng, shape)
    shapes = jax.eval_shape(net.init, jax.random.key(0), x)
    return jax.tree.map(
        lambda leaf: normal(rng, leaf.shape, leaf.shape[0] ** -0.5), shapes
    ), x


def normal(rng, shape, deviation=1.0):
    return jax.device_put((deviation * rng.normal(size=shape)).astype(np.float32))


def through(fs, x):
    for f in fs:
        x = f(x)
    return x


def exceptions_to_reverse(dims, longest):
    """The number of chains of 2 to ``longest`` Jacobians with a scalar output where
    reverse mode is not optimal.
    """
    chains = [
        (*inner, 1)
        for n in range(2, longest + 1)
        for inner in itertools.product(dims, repeat=n)
    ]
    best = map(optimal_order, chains)
    return sum(order.cost < order.reverse for order in best), len(chains)


# 2. The table


def tables(sizes, rng, repeats, picture, dpi=120):
    title("2. cost of derivatives")
    found = {}
    print(
        f"the mean loss of {sizes.batch} examples, differentiated with respect to a "
        f"shift of all inputs, along"
    )
    print(f"{sizes.directions} random directions, and with respect to the params\n")
    for name, (net, shape) in nets(sizes).items():
        of_input, of_params = found[name] = tables_of(net, shape, sizes, rng, repeats)
        print(f"{name}, shift:\n{of_input}\n\n{name}, params:\n{of_params}\n")
    figure = Figure(figsize=(7.5, 3.6), layout="constrained")
    places = figure.subplots(1, len(found))
    for axes, (name, (of_input, _)) in zip(places, found.items(), strict=True):
        of_input.plot(axes)
        axes.set_title(name)
        axes.get_legend().remove()
    handles, labels = places[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2)
    figure.savefig(picture, dpi=dpi)
    return {"tables": found}


def tables_of(net, shape, sizes, rng, repeats):
    """Cost tables of the mean loss of a classifier, with respect to a shift of all
    inputs and to the params.

    The shift has few coordinates, so that whole Jacobians and Hessians are feasible.
    """
    params, _ = drawn(net, rng, shape)
    inputs, directions = (
        normal(rng, (n, *shape)) for n in (sizes.batch, sizes.directions)
    )
    labels = jnp.ones(sizes.batch, jnp.int32)

    def loss(shift, params):
        shifted = inputs + jnp.tensordot(shift, directions, 1)[None]
        return jb.softmax_cross_entropy(net.apply(params, shifted), labels).mean()

    shift = jnp.zeros(sizes.directions)
    of_input = cost_table(loss, shift, params, rows=ROWS, repeats=repeats)
    of_params = lambda params, shift: loss(shift, params)
    return of_input, cost_table(
        of_params, params, shift, rows=("gradient", "hvp"), measure=False
    )


def nets(sizes):
    """Classifiers and the shapes of their inputs."""
    classes = sizes.perceptron[-1]
    perceptron = jb.MLP(*sizes.perceptron[1:], activation=jb.tanh)
    conv_net = jb.Serial(
        jb.Conv(sizes.channels, (3, 3)),
        jb.gelu,
        jb.Conv(2 * sizes.channels, (3, 3)),
        jb.gelu,
        jb.GlobalAvgPool(2),
        jb.Dense(classes),
    )
    transformer = jb.Serial(
        jb.Residual(jb.LayerNorm(), jb.Attention(heads=2)),
        jb.Residual(
            jb.LayerNorm(),
            jb.Dense(4 * sizes.features),
            jb.gelu,
            jb.Dense(sizes.features),
        ),
        jb.GlobalAvgPool(1),
        jb.Dense(classes),
    )
    return {
        "perceptron": (perceptron, sizes.perceptron[:1]),
        "conv net": (conv_net, (sizes.side, sizes.side, 1)),
        "transformer block": (transformer, (sizes.tokens, sizes.features)),
    }


# 3. The modes


def modes(sizes, repeats, picture, dpi=120):
    title("3. forward against reverse mode, for each number of inputs and outputs")

    def make(n, m):
        net, points = (
            jb.MLP(sizes.width, sizes.width, m, activation=jb.tanh),
            jnp.ones((sizes.points, n)),
        )
        params = constants(jax.eval_shape(net.init, jax.random.key(0), points))
        return lambda x: net.apply(params, points + x[None]).mean(0), jnp.zeros(n)

    grid = mode_grid(make, sizes.entries, sizes.entries, repeats=repeats)
    print(grid)
    figure = Figure(figsize=(7.5, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    grid.plot(left)
    grid.plot(right, what="time")
    figure.savefig(picture, dpi=dpi)
    return {"modes": grid}


def constants(shapes):
    """Params for measurements: their values do not change the time."""
    return jax.tree.map(
        lambda shape: jax.device_put(np.full(shape.shape, 0.01, shape.dtype)), shapes
    )


# 4. The memory


def memory(sizes, repeats, picture, dpi=120):
    title("4. memory against depth, and time against memory")
    h = jnp.ones((128, sizes.width))

    def make(depth, checkpoint=None):
        net = jb.Repeat(
            jb.Residual(jb.Dense(sizes.width), jb.tanh), depth, checkpoint=checkpoint
        )
        params = jax.eval_shape(net.init, jax.random.key(0), h)
        return lambda params: jnp.sum(net.apply(params, h) ** 2), params

    def make_arrays(depth, checkpoint=None):
        f, shapes = make(depth, checkpoint)
        return f, constants(shapes)

    # programs are compiled, not run
    curve = memory_curve(make, sizes.depths, checkpoints=("body", "sqrt", 8))
    table = checkpoint_table(
        make_arrays, sizes.depth, checkpoints=sizes.checkpoints, repeats=repeats
    )
    print(f"{curve}\n\n{sizes.depth} layers:\n{table}")
    figure = Figure(figsize=(7.5, 6.5), layout="constrained")
    upper, lower = figure.subplots(2, 1)
    curve.plot(upper)
    table.plot_frontier(lower)
    lower.set_title(f"{sizes.depth} layers")
    figure.savefig(picture, dpi=dpi)
    return {"memory": curve, "checkpoints": table}


# 5. The plan


def plans(sizes, rng, repeats, picture):
    title("5. Jacobian of an autoencoder by the optimal bracketing")
    net = jb.MLP(*sizes.autoencoder[1:], activation=jb.tanh)
    params, x = drawn(net, rng, sizes.autoencoder[:1])
    f = lambda x: net.apply(params, x)
    plan = jacobian_plan(f, x)
    print(plan.explain(), end="\n\n")

    ways = {"jacfwd": jax.jacfwd(f), "jacrev": jax.jacrev(f), "jacobian": jacobian(f)}
    compiled = {name: jax.jit(way).lower(x).compile() for name, way in ways.items()}
    made = {name: np.asarray(program(x)) for name, program in compiled.items()}
    gap = max(
        float(np.abs(made["jacobian"] - made[name]).max() / np.abs(made[name]).max())
        for name in made
    )
    times = time_in_turns(compiled, x, repeats=repeats)
    milliseconds = {name: 1e3 * quartiles(values)[1] for name, values in times.items()}
    operations = {name: count_flops(way, x).flops for name, way in ways.items()}
    print(f"{'':10}{'operations':>14}{'time':>13}{'temporary bytes':>18}")
    for name, program in compiled.items():
        memory = program.memory_analysis()
        # not every backend reports it
        bytes_ = memory.temp_size_in_bytes if memory else math.nan
        print(
            f"{name:10}{operations[name]:14,}{milliseconds[name]:10.2f} ms{bytes_:18,}"
        )
    print(f"the three Jacobians agree up to a relative difference of {gap:.0e}")

    classifier = jb.MLP(128, 64, 10, activation=jb.tanh)
    its_params = constants(jax.eval_shape(classifier.init, jax.random.key(0), x))
    stock = jacobian_plan(lambda x: classifier.apply(its_params, x), x)
    print(f"\nplan for a classifier with 10 outputs:\n{stock.explain()}")

    figure = Figure(figsize=(7.5, 6.5), layout="constrained")
    places = figure.subplot_mosaic(
        [["plan", "plan"], ["counted", "measured"]], height_ratios=(2.2, 1)
    )
    plan.plot(places["plan"])
    costs = {
        "operations counted, in millions": {
            name: n / 1e6 for name, n in operations.items()
        }
    }
    costs["time measured (ms)"] = milliseconds
    for axes, (what, bars) in zip(
        (places["counted"], places["measured"]), costs.items(), strict=True
    ):
        lengths = axes.barh(
            list(bars), list(bars.values()), color=[BLUE, VERMILION, GREEN]
        )
        axes.bar_label(lengths, fmt="%.3g", padding=3)
        axes.invert_yaxis()
        axes.margins(x=0.35)
        axes.set(xlabel=what)
    figure.savefig(picture, dpi=120)
    found = {"plan": plan, "operations": operations, "milliseconds": milliseconds}
    return found | {"jacobian_gap": gap, "stock_plan": stock}


# 6. Sharing


def sharing(sizes, picture):
    title("6. separate derivatives per layer and backpropagation")
    m = 64
    print(f"operations / {m}^2 for layers of width {m}:")
    print(
        f"{'layers':>6}{'forward':>12}{'backprop':>12}{'one by one':>12}{'ratio':>10}"
    )
    rows = []
    for k in sizes.layers:
        row = {"layers": k, **costs_of_depth(k, m)}
        rows.append(row)
        forward, shared, naive = (
            row[name] / m**2 for name in ("forward", "backprop", "one by one")
        )
        print(f"{k:6}{forward:12.2f}{shared:12.2f}{naive:12.2f}{naive / shared:10.2f}")
    twice = costs_of_depth(sizes.layers[-1], 2 * m)["backprop"] / rows[-1]["backprop"]
    print(
        f"twice the width: backprop takes {twice:.2f} times the operations, as O(k "
        f"m^2) predicts, not O(k m)"
    )

    figure = Figure(figsize=(5, 4), layout="constrained")
    axes = figure.subplots()
    for name, color, style in (
        ("one by one", VERMILION, "s--"),
        ("backprop", BLUE, "o-"),
        ("forward", GRAY, "^:"),
    ):
        axes.loglog(
            sizes.layers, [row[name] for row in rows], style, color=color, label=name
        )
    axes.set_xscale("log", base=2)
    axes.set(xlabel="layers $k$", ylabel="counted operations")
    axes.legend()
    figure.savefig(picture, dpi=120)
    return {"sharing": rows, "twice_the_width": twice}


def costs_of_depth(k, m):
    """Operations of a net of k layers of width m, of its gradient, and of separate
    derivatives for each layer.
    """
    net = jb.MLP(*[m] * k, activation=jb.tanh, last_activation=jb.tanh)
    x = jnp.ones(m)
    params = jax.eval_shape(net.init, jax.random.key(0), x)
    loss = lambda params: jnp.sum(net.apply(params, x) ** 2)
    programs = {
        "forward": loss,
        "backprop": jax.grad(loss),
        "one by one": lambda params: one_by_one(loss, params),
    }
    return {
        name: count_flops(program, params).flops for name, program in programs.items()
    }


def one_by_one(loss, params):
    """Separate derivatives with respect to the params of each layer; nothing is shared
    between them.
    """

    def by(i):
        return jax.grad(lambda own: loss((*params[:i], own, *params[i + 1 :])))(
            params[i]
        )

    # Dense layers alternate with activations
    return [by(i) for i in range(0, len(params), 2)]


if __name__ == "__main__":
    main()
