"""Backpropagation by hand: the trace of a small function, the backward pass of a net, a
tape, and their cost.

The example computes the forward and reverse evaluation trace of y = ln x1 + x1 x2 - sin
x2 at (2, 5). It then computes the gradient of a net in three ways: by the closed form
for two layers, which repeats terms; by the backward pass

    dL/du_l = dL/da_l * act'(u_l)     dL/dX_l = dL/du_l a_{l-1}^T
    dL/dmu_l = dL/du_l                dL/da_{l-1} = X_l^T dL/du_l

for l = k, ..., 1, which shares them; and by a tape of forty lines that records any
expression. Each result is compared with ``jax.grad``. The last part counts operations:
separate derivatives for each layer cost O(k^2 m^2) for k layers of width m, the
backward pass O(k m^2), as much as the forward pass up to a constant. (One slide states
O(k m). This is impossible, because the gradient itself has k m^2 entries.)

The differences are below 1e-12 in float64. For k = 2, 4, 8, 16, 32 layers of width 64
the ratio of the two costs grows as k / 2. The example runs for about fifteen seconds on
one CPU core.

Source: Cevher, Mathematics of Data (automatic differentiation); Krapac & Segvic, Deep
feed-forward models (graph of the classifier); Baydin et al., Automatic differentiation
in machine learning: a survey (trace), arXiv:1502.05767.

    python examples/backprop_by_hand.py --out out/backprop_by_hand
"""

import argparse
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from jaxblocks import sigmoid_cross_entropy
from jaxblocks.ad import count_flops
from jaxblocks.ad.traces import trace_table
from jaxblocks.plotting import GRAY, PALETTE

BLUE, VERMILION = PALETTE[:2]


def main(argv=None):
    parser = argparse.ArgumentParser(
        description="Backpropagation by hand and its cost."
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("out/backprop_by_hand"),
        help="output folder for the figures",
    )
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    parser.add_argument(
        "--widths",
        type=int,
        nargs="+",
        default=[5, 7, 3, 2],
        help="widths of the net, input first",
    )
    parser.add_argument(
        "--expressions",
        type=int,
        default=20,
        help="number of random expressions for the tape",
    )
    parser.add_argument(
        "--depths",
        type=int,
        nargs="+",
        default=[2, 4, 8, 16, 32],
        help="numbers of layers in the cost table",
    )
    parser.add_argument(
        "--width", type=int, default=64, help="layer width in the cost table"
    )
    args = parser.parse_args(argv)
    if (
        min(args.width, args.expressions, *args.widths, *args.depths) < 1
        or len(args.widths) < 2
    ):
        parser.error(
            "expected all sizes to be integers >= 1 and --widths to have at least two "
            "entries"
        )
    args.out.mkdir(parents=True, exist_ok=True)

    with jax.enable_x64(True):
        # 1. The trace of a function of two variables, and the graph of a classifier.
        table = trace_table(survey, 2.0, 5.0)
        print(table, end="\n\n")
        graph = trace_table(classifier, *listing(), open_calls=False)
        print(
            f"classifier: J = {graph.value:.7f}, dJ/dW2 = "
            f"{printed(graph.gradient[0]['W2'])}"
        )

        # 2. The gradient of a net: closed form, backward pass, jax.grad.
        closed, by_hand = (
            closed_form_gap(args.seed),
            backprop_gap(args.seed, args.widths),
        )
        print(f"closed form for two layers: difference from jax.grad {closed:.1e}")
        print(
            f"backward pass of {'-'.join(map(str, args.widths))}: difference from "
            f"jax.grad {by_hand:.1e}"
        )

        # 3. The tape.
        x1, x2 = Var(2.0), Var(5.0)
        backward(survey(x1, x2))
        tape = max(
            tape_gap(random_expression(args.seed + i)) for i in range(args.expressions)
        )
        print(f"tape: gradient ({x1.adjoint:.4f}, {x2.adjoint:.4f});", end=" ")
        print(
            f"{args.expressions} random expressions: relative difference from "
            f"jax.grad {tape:.1e}"
        )

    # 4. The cost.
    steps = step_costs(args.width)
    print(
        f"operations of one layer of width {args.width}:",
        ", ".join(f"{name} {n:,}" for name, n in steps.items()),
    )
    rows = [layer_costs(k, args.width) for k in args.depths]
    print(
        f"operations / {args.width}^2:\n{'layers':>8}{'forward':>10}"
        f"{'backprop':>10}{'naive':>10}{'naive/backprop':>16}"
    )
    for row in rows:
        forward_pass, shared, separate = (
            row[name] / args.width**2 for name in ("forward", "backprop", "naive")
        )
        print(
            f"{row['layers']:8}{forward_pass:10.2f}{shared:10.2f}{separate:10.2f}"
            f"{separate / shared:16.2f}"
        )
    draw_passes(table, args.out / "passes.png")
    draw_graph(graph, args.out / "classifier.png")
    draw_costs(rows, args.out / "costs.png")
    print(f"figures: {args.out}/passes.png, classifier.png, costs.png")
    return {
        "table": table,
        "graph": graph,
        "closed_form": closed,
        "backprop": by_hand,
        "tape": tape,
        "tape_gradient": (x1.adjoint, x2.adjoint),
        "steps": steps,
        "costs": rows,
    }


# 1. A function of two variables; a classifier with two layers, cross entropy and L2
# penalty


def survey(x1, x2):
    return ln(x1) + x1 * x2 - sin(x2)


# jitted, so that each is one node of a graph that does not open calls
@jax.jit
def loss(score, y):
    return sigmoid_cross_entropy(score, y)


@jax.jit
def penalty(W1, W2):
    return jnp.sum(W1**2) + jnp.sum(W2**2)


def classifier(params, x, y, lam):
    h = jax.nn.relu(params["W1"] @ x)
    return loss(params["W2"] @ h, y) + lam * penalty(params["W1"], params["W2"])


def listing():
    """The arguments in the listing of the lecture: params, x, y, lambda."""
    params = {"W1": jnp.array([[0.5, 0.0], [0.0, 1.0]]), "W2": jnp.array([1.0, 0.0])}
    return params, jnp.ones(2), jnp.array(0.0), jnp.array(0.01)


# 2. The gradient of a net


class Activation(NamedTuple):
    """An activation and its derivative."""

    value: Callable
    slope: Callable


TANH = Activation(jnp.tanh, lambda u: 1 - jnp.tanh(u) ** 2)
IDENTITY = Activation(lambda u: u, jnp.ones_like)


class Layer(NamedTuple):
    """The values of one layer that the forward pass stores: a_{l-1}, u_l, a_l, and the
    derivative of the activation.
    """

    before: jax.Array
    u: jax.Array
    a: jax.Array
    slope: Callable


def forward(params, a, activation=TANH, last=IDENTITY):
    """u_l = X_l a_{l-1} + mu_l, a_l = act(u_l); ``params`` are pairs (X_l, mu_l). The
    last layer uses ``last``.
    """
    trace = []
    for i, (X, mu) in enumerate(params, 1):
        act = last if i == len(params) else activation
        u = X @ a + mu
        trace.append(Layer(a, u, act.value(u), act.slope))
        a = trace[-1].a
    return trace


def backprop(params, trace, dL_da):
    """The gradients with respect to all X_l and mu_l and to the input, given that with
    respect to the output.
    """
    gradients = []
    for (X, _), layer in zip(reversed(params), reversed(trace), strict=True):
        dL_du = dL_da * layer.slope(layer.u)
        gradients.append((jnp.outer(dL_du, layer.before), dL_du))  # (dL/dX_l, dL/dmu_l)
        dL_da = X.T @ dL_du
    return gradients[::-1], dL_da


def closed_form(X1, X2, a, b, activation=TANH):
    """L = (b - X2^T act(X1 a))^2 and its derivatives, without shared terms; X2 is a
    vector.
    """
    loss = (b - X2 @ activation.value(X1 @ a)) ** 2
    dX2 = -2 * (b - X2 @ activation.value(X1 @ a)) * activation.value(X1 @ a)
    dX1 = (
        -2
        * (b - X2 @ activation.value(X1 @ a))
        * jnp.outer(X2 * activation.slope(X1 @ a), a)
    )
    return loss, dX1, dX2


def random_net(seed, widths):
    """Pairs (X_l, mu_l), an input and a target with normally distributed entries."""
    draw = np.random.default_rng(seed).normal
    shapes = zip(widths[1:], widths[:-1], strict=True)
    params = [(draw(size=(n, m)) / math.sqrt(m), draw(size=n)) for n, m in shapes]
    return jax.device_put((params, draw(size=widths[0]), draw(size=widths[-1])))


def backprop_gap(seed, widths):
    """The largest difference between the backward pass and ``jax.grad`` of L = |a_k -
    b|^2.
    """
    params, a, b = random_net(seed, widths)
    loss = lambda params, a: jnp.sum((forward(params, a)[-1].a - b) ** 2)

    @jax.jit
    def both(params, a):
        trace = forward(params, a)
        return backprop(params, trace, 2 * (trace[-1].a - b)), jax.grad(loss, (0, 1))(
            params, a
        )

    return largest_gap(*both(params, a))


def closed_form_gap(seed, features=4, width=6):
    draw = np.random.default_rng(seed).normal
    X1, X2, a, b = (
        jax.device_put(draw(size=shape))
        for shape in ((width, features), width, features, ())
    )
    loss = lambda X1, X2: closed_form(X1, X2, a, b)[0]
    both = jax.jit(
        lambda X1, X2: (closed_form(X1, X2, a, b)[1:], jax.grad(loss, (0, 1))(X1, X2))
    )
    return largest_gap(*both(X1, X2))


def largest_gap(ours, theirs):
    pairs = zip(*map(jax.tree.leaves, (ours, theirs)), strict=True)
    return max(float(np.abs(np.asarray(x) - np.asarray(y)).max()) for x, y in pairs)


# 3. A tape: each operation records its operands and the derivative with respect to each


class Var:
    """A number with the operation that computed it."""

    def __init__(self, value, *parents):
        self.value = value
        self.parents = (
            parents  # pairs (operand, derivative with respect to the operand)
        )
        self.adjoint = 0.0

    def __add__(self, other):
        other = lifted(other)
        return Var(self.value + other.value, (self, 1.0), (other, 1.0))

    def __mul__(self, other):
        other = lifted(other)
        return Var(self.value * other.value, (self, other.value), (other, self.value))

    def __truediv__(self, other):
        other = lifted(other)
        value = self.value / other.value
        return Var(value, (self, 1 / other.value), (other, -value / other.value))

    def __pow__(self, power):
        return Var(self.value**power, (self, power * self.value ** (power - 1)))

    def __neg__(self):
        return self * -1.0

    def __sub__(self, other):
        return self + -lifted(other)

    def __rsub__(self, other):
        return lifted(other) - self

    def __rtruediv__(self, other):
        return lifted(other) / self

    __radd__, __rmul__ = __add__, __mul__


def lifted(x):
    return x if isinstance(x, Var) else Var(x)


def recorded(value, slope, plain):
    """A function that is recorded for a Var and is ``plain`` for any other argument."""
    return lambda x: (
        Var(value(x.value), (x, slope(x.value))) if isinstance(x, Var) else plain(x)
    )


ln = recorded(math.log, lambda x: 1 / x, jnp.log)
exp = recorded(math.exp, math.exp, jnp.exp)
sin = recorded(math.sin, math.cos, jnp.sin)
tanh = recorded(math.tanh, lambda x: 1 - math.tanh(x) ** 2, jnp.tanh)


def backward(y):
    """Add dy/dv to the adjoint of each v that y depends on, in reverse topological
    order.
    """
    order, seen = [], set()

    def visit(v):  # operands before results
        if id(v) not in seen:
            seen.add(id(v))
            for parent, _ in v.parents:
                visit(parent)
            order.append(v)

    visit(y)
    y.adjoint = 1.0
    for v in reversed(order):
        for parent, derivative in v.parents:
            parent.adjoint += v.adjoint * derivative


def random_expression(seed, operations=12):
    """A function of three variables with shared terms, for numbers, arrays and Vars."""

    def f(*xs):
        chance, terms = random.Random(seed), list(xs)
        for _ in range(operations):
            a, b = chance.choice(terms), chance.choice(terms)
            terms.append(
                chance.choice(
                    [
                        lambda a, b: a + 0.5 * b,
                        lambda a, b: a * b / (1.0 + b**2),
                        lambda a, b: 1.5 - tanh(a) / (2.0 + sin(b)),
                        lambda a, b: ln(1.0 + a**2) - b,
                        lambda a, b: -exp(sin(a)) * b / 2.0,
                    ]
                )(a, b)
            )
        return sum(terms[1:], terms[0])

    return f


def tape_gap(f, point=(0.3, -0.8, 1.1)):
    """The largest relative difference between the tape and ``jax.grad``."""
    variables = [Var(x) for x in point]
    backward(f(*variables))
    theirs = jax.grad(f, argnums=range(len(point)))(*(jnp.asarray(x) for x in point))
    return max(
        abs(v.adjoint - float(g)) / (1 + abs(float(g)))
        for v, g in zip(variables, theirs, strict=True)
    )


# 4. The cost


def loss_of(kernels):
    """L = |a_k|^2 of k layers a_l = tanh(X_l a_{l-1}) from a_0 = (1, ..., 1)."""
    a = jnp.ones(kernels[0].shape[1], kernels[0].dtype)
    for X in kernels:
        a = jnp.tanh(X @ a)
    return jnp.sum(a**2)


def naive_gradient(loss, kernels):
    """Separate derivatives with respect to each kernel; they share nothing."""
    return [
        jax.grad(lambda X, i=i: loss([*kernels[:i], X, *kernels[i + 1 :]]))(kernels[i])
        for i in range(len(kernels))
    ]


def layer_costs(k, m):
    """Operations of the forward pass, of backpropagation, and of k separate
    derivatives, for k layers of width m.
    """
    kernels = [jax.ShapeDtypeStruct((m, m), jnp.float32)] * k
    return {
        "layers": k,
        "forward": count_flops(loss_of, kernels).flops,
        "backprop": count_flops(jax.grad(loss_of), kernels).flops,
        "naive": count_flops(
            lambda kernels: naive_gradient(loss_of, kernels), kernels
        ).flops,
    }


def step_costs(m):
    """Operations of each forward and backward step of one layer of width m; dL/dmu =
    dL/du takes none.
    """
    X, v = (
        jax.ShapeDtypeStruct((m, m), jnp.float32),
        jax.ShapeDtypeStruct((m,), jnp.float32),
    )
    return {
        "u": count_flops(lambda X, a, mu: X @ a + mu, X, v, v).flops,
        "a": count_flops(TANH.value, v).flops,
        "dL/du": count_flops(lambda dL_da, u: dL_da * TANH.slope(u), v, v).flops,
        "dL/dX": count_flops(jnp.outer, v, v).flops,
        "dL/dmu": count_flops(lambda dL_du: dL_du, v).flops,
        "dL/da": count_flops(lambda X, dL_du: X.T @ dL_du, X, v).flops,
    }


# Figures


def draw_passes(table, path):
    """Draw the graph after some steps of the forward pass (left) and of the reverse
    pass (right).
    """
    figure = Figure(figsize=(7.5, 14), layout="constrained")
    forward_steps, steps = len(table.primal), len(table.primal) + len(table.adjoint)
    shown = [forward_steps * i // 4 for i in (1, 2, 3, 4)]
    shown += [forward_steps + (steps - forward_steps) * i // 4 for i in (1, 2, 3, 4)]
    for axes, step in zip(figure.subplots(4, 2).T.flat, shown, strict=True):
        table.plot(axes, step=step)
    figure.savefig(path, dpi=150)


def draw_graph(graph, path):
    figure = Figure(figsize=(7.5, 6), layout="constrained")
    graph.plot(figure.subplots())
    figure.savefig(path, dpi=100)


def draw_costs(rows, path):
    figure = Figure(figsize=(5, 4), layout="constrained")
    axes = figure.subplots()
    styles = {
        "naive": (VERMILION, "o-"),
        "backprop": (BLUE, "s--"),
        "forward": (GRAY, "^:"),
    }
    for name, (color, style) in styles.items():
        axes.loglog(
            [row["layers"] for row in rows],
            [row[name] for row in rows],
            style,
            color=color,
            label=name,
        )
    layers = [row["layers"] for row in rows]
    axes.set_xticks(layers, list(map(str, layers)))
    axes.xaxis.minorticks_off()
    axes.set(xlabel="layers $k$", ylabel="counted operations")
    axes.legend()
    figure.savefig(path, dpi=150)


def printed(vector):
    return "(" + ", ".join(f"{float(v):.7f}" for v in vector) + ")"


if __name__ == "__main__":
    main()
