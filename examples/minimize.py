"""Gradient descent, momentum and Adam on functions with known minima.

    1. a quartic      minimize x^4 - x^3 - 2 x^2 + 3 from x = 2
    2. a root         solve x^5 - x^4 - x = -1 by gradient descent
    3. a quadratic    gradient descent, momentum (in two equivalent parametrizations)
                      and Adam
    4. a bound        ||theta_0 - theta*||^2 / (2 eta t) for convex functions, checked
                      at every step
    5. slices         through a convex and a non-convex loss

Results: (3 + sqrt 73) / 8 = 1.4430004682 to 1e-6 in 21 steps; the simple root -1 to
1e-15; the double root 1 with an error of order 1/sqrt(t) where the square is minimized.
The bound holds at all steps, and the Huber function attains L ||theta_0 - theta*||^2 /
(4 t + 2). The example runs for about ten seconds on one CPU core.

Source: Krapac & Segvic, Deep feed-forward models ("Hello world" and homework); Diehl
2023, section 1.5 (Theorem 1.11).

    python examples/minimize.py --out out/minimize
"""

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from matplotlib.figure import Figure

from jaxblocks import MLP, Dense, tanh
from jaxblocks.layers import logistic_regression
from jaxblocks.plotting import GRAY, PALETTE

BLUE, VERMILION, GREEN, PURPLE = PALETTE[:4]
STYLES = [
    (BLUE, "-"),
    (VERMILION, "--"),
    (GREEN, "-."),
    (PURPLE, ":"),
    (GRAY, (0, (5, 1, 1, 1, 1, 1))),
]


def main(argv=None):
    parser = argparse.ArgumentParser(
        description=(
            "Gradient descent, momentum and Adam on functions with known minima."
        )
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("out/minimize"),
        help="output folder for the figures",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="random seed of the data and of the slices"
    )
    parser.add_argument(
        "--steps", type=int, default=100, help="steps for which the bound is checked"
    )
    parser.add_argument(
        "--homework-steps",
        type=int,
        default=100_000,
        help="steps toward the double root",
    )
    args = parser.parse_args(argv)
    if min(args.steps, args.homework_steps) < 10:
        parser.error("expected --steps and --homework-steps to be integers >= 10")
    args.out.mkdir(parents=True, exist_ok=True)
    with jax.enable_x64(True):
        numbers = {
            **hello_world(args.out / "hello.png"),
            **homework(args.homework_steps, args.out / "homework.png"),
            **trajectories(args.out / "trajectories.png"),
            **bounds(args.seed, args.steps, args.out / "bound.png"),
            **slices(args.seed, args.out / "slices.png"),
        }
    print(
        f"figures: {args.out}/hello.png, homework.png, trajectories.png, bound.png, "
        f"slices.png"
    )
    return numbers


def minimize(function, start, optimizer, steps):
    """All iterates of an optax optimizer, including the start: (steps + 1, ...)."""
    start = jnp.asarray(start)

    def step(carry, _):
        x, state = carry
        updates, state = optimizer.update(jax.grad(function)(x), state, x)
        x = optax.apply_updates(x, updates)
        return (x, state), x

    _, path = jax.jit(
        lambda x: jax.lax.scan(step, (x, optimizer.init(x)), length=steps)
    )(start)
    return np.concatenate([start[None], path])


def visible(error):
    """The absolute error, with NaN for rounding errors, which the figures omit."""
    return np.where(np.abs(error) > 1e-15, np.abs(error), np.nan)


# 1. A quartic


def quartic(x):
    return x**4 - x**3 - 2 * x**2 + 3


def hello_world(picture):
    path = minimize(quartic, 2.0, optax.sgd(0.13), 100)
    other = minimize(quartic, -1.0, optax.sgd(0.13), 100)
    limit = (3 + np.sqrt(73)) / 8
    within = int(np.argmax(np.abs(path - limit) < 1e-6))
    print(
        "quartic:",
        ", ".join(f"{x:.8g}" for x in path[:5]),
        f"..., {path[-1]:.15g} (limit {limit:.15g})",
    )
    print(
        f"  error below 1e-6 at step {within}; from -1 it converges to the other "
        f"minimum, {other[-1]:.10f}"
    )

    figure = Figure(figsize=(7.5, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    x = np.linspace(-1.6, 2.15, 300)
    left.plot(x, quartic(x), color=GRAY)
    left.plot(
        path,
        quartic(path),
        "o-",
        color=BLUE,
        markersize=4,
        linewidth=0.8,
        label="from 2",
    )
    left.plot(
        other,
        quartic(other),
        "^--",
        color=VERMILION,
        markersize=4,
        linewidth=0.8,
        label="from -1",
    )
    left.set(xlabel="$x$", ylabel="$x^4 - x^3 - 2 x^2 + 3$")
    left.legend()
    error, other_error = visible(path - limit), visible(other - (3 - np.sqrt(73)) / 8)
    right.semilogy(error, "o-", color=BLUE, markersize=3, linewidth=0.8, label="from 2")
    right.semilogy(
        other_error,
        "^--",
        color=VERMILION,
        markersize=3,
        linewidth=0.8,
        label="from -1",
    )
    right.set(xlabel="step", ylabel="distance to the limit")
    right.legend()
    figure.savefig(picture, dpi=150)
    return {"hello": path, "hello_other": other, "hello_within": within}


# 2. A root: x^5 - x^4 - x + 1 = (x - 1)^2 (x + 1) (x^2 + 1)


def quintic(x):
    return x**5 - x**4 - x + 1


def homework(steps, picture):
    def square(x):
        return quintic(x) ** 2

    plain = minimize(quintic, 0.0, optax.sgd(0.05), 200)
    lost = minimize(quintic, -0.6, optax.sgd(0.05), 40)
    simple = minimize(square, -0.6, optax.sgd(0.01), 200)
    double = minimize(square, 0.0, optax.sgd(0.05), steps)
    print(
        f"root, minimizing r:   from 0 to {plain[-1]:.15g}; from -0.6 it diverges "
        f"({lost[-1]:.0e})"
    )
    print(
        f"root, minimizing r^2: from -0.6 to {simple[-1]:.15g} (after 10 steps "
        f"{simple[10]:.7f})"
    )
    shown = [10**k for k in range(1, 10) if 10**k <= steps]
    print(
        "  from 0, toward the fourfold root of r^2:",
        ", ".join(f"{double[t]:.5f} ({t})" for t in shown),
    )

    figure = Figure(figsize=(7.5, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    x = np.linspace(-1.25, 1.6, 300)
    left.plot(x, quintic(x), color=BLUE, label="$r(x)$")
    left.plot(x, quintic(x) ** 2, "--", color=VERMILION, label="$r(x)^2$")
    left.axhline(0, color=GRAY, linewidth=0.6)
    left.axvline(-0.5315644566, color=GRAY, linestyle=":", label="basin boundary")
    left.plot([-1, 1], [0, 0], "ko", markersize=5)
    left.set(xlabel="$x$", ylim=(-1, 3), title="$r(x) = x^5 - x^4 - x + 1$")
    left.legend(loc="lower right", fontsize=8)
    t = np.arange(1, len(double))
    right.loglog(
        t, visible(double[1:] - 1), color=VERMILION, label="$r^2$ to 1 (fourfold root)"
    )
    right.loglog(t, t**-0.5 / 2.5, ":", color=GRAY, label=r"slope $-1/2$")
    for path, root, style, color, label in (
        (plain, 1, "-", BLUE, "$r$ to 1"),
        (simple, -1, "-.", GREEN, "$r^2$ to $-1$"),
    ):
        right.loglog(
            np.arange(1, len(path)),
            visible(path[1:] - root),
            linestyle=style,
            color=color,
            label=label,
        )
    right.set(xlabel="step", ylabel="distance to the root")
    right.legend(fontsize=8)
    figure.savefig(picture, dpi=150)
    return {"plain": plain, "lost": lost, "simple": simple, "double": double}


# 3. Trajectories on a quadratic


def quadratic(theta):
    return (theta[0] ** 2 + 10 * theta[1] ** 2) / 2


def trajectories(picture):
    """Both forms of momentum have the same iterates if gamma = eta (1 - beta) and m =
    beta.
    """
    optimizers = {
        "gradient descent": optax.sgd(0.05),
        "momentum": optax.sgd(0.05, momentum=0.7),
        "momentum as a moving average": optax.chain(
            optax.ema(0.7, debias=False), optax.scale(-0.05 / (1 - 0.7))
        ),
        "Adam": optax.adam(0.1, b1=0.9, b2=0.999, eps=1e-8),
    }
    paths = {
        name: minimize(quadratic, [1.0, 1.0], optimizer, 60)
        for name, optimizer in optimizers.items()
    }

    figure = Figure(figsize=(7.5, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    x, y = np.meshgrid(np.linspace(-0.5, 1.1, 120), np.linspace(-0.8, 1.1, 120))
    left.contour(
        x,
        y,
        quadratic((x, y)),
        levels=0.04 * 2.0 ** np.arange(8),
        colors="0.8",
        linewidths=0.8,
    )
    for (name, path), (color, style) in zip(paths.items(), STYLES, strict=False):
        wide = (
            {"linewidth": 4, "alpha": 0.5} if name == "momentum" else {"linewidth": 1.4}
        )
        left.plot(*path.T, linestyle=style, color=color, label=name, **wide)
        right.semilogy(
            quadratic(path.T), linestyle=style, color=color, label=name, **wide
        )
        print(f"quadratic, {name}: loss {quadratic(path[-1]):.3e} after 60 steps")
    left.plot(0, 0, "k*", markersize=9)
    left.set(
        xlabel=r"$\theta_1$",
        ylabel=r"$\theta_2$",
        title=r"$\frac{1}{2} (\theta_1^2 + 10\, \theta_2^2)$",
    )
    right.set(xlabel="step", ylabel="loss")
    right.legend(fontsize=8)
    figure.savefig(picture, dpi=150)
    return {"paths": paths}


# 4. The bound C(theta_t) - min C <= ||theta_0 - theta*||^2 / (2 eta t), for eta <= 1 /
# L


def bounds(seed, steps, picture):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(80, 2))
    labels = x[:, 0] + rng.normal(size=80) > 0
    fitted = jax.jit(logistic_regression)(x, labels)
    ones = np.append(x, np.ones((80, 1)), axis=1)

    def log_loss(theta):
        return jnp.mean(jax.nn.softplus(jnp.where(labels, -1.0, 1.0) * (ones @ theta)))

    def huber_loss(theta):  # the worst case for this number of steps, L = 1
        knee = 1 / (2 * steps + 1)
        return jnp.where(
            jnp.abs(theta) < knee, theta**2 / 2, knee * jnp.abs(theta) - knee**2 / 2
        )

    smoothness = np.linalg.eigvalsh(ones.T @ ones)[-1] / (4 * len(x))
    cases = {  # name: function, start, minimizer, step size
        "quadratic": (quadratic, np.ones(2), np.zeros(2), 0.099),
        "logistic regression": (
            log_loss,
            np.zeros(3),
            np.append(fitted["kernel"], fitted["bias"]),
            1 / smoothness,
        ),
        "Huber, worst case": (huber_loss, np.ones(()), np.zeros(()), 1.0),
    }
    figure = Figure(figsize=(7.5, 3), layout="constrained")
    gaps, limits, t = {}, {}, np.arange(1, steps + 1)
    for axes, (name, (function, start, best, size)) in zip(
        figure.subplots(1, 3), cases.items(), strict=True
    ):
        path = minimize(function, start, optax.sgd(size), steps)
        *along, least = np.asarray(
            jax.jit(jax.vmap(function))(np.stack([*path[1:], best]))
        )
        gaps[name] = np.array(along) - least
        limits[name] = np.sum((start - best) ** 2) / (2 * size * t)
        held = np.all(gaps[name] <= limits[name])
        print(
            f"bound, {name}: {'holds' if held else 'FAILS'} at all {steps} steps; at "
            f"the last {gaps[name][-1]:.6g}"
        )
        axes.loglog(
            t,
            limits[name],
            "--",
            color=VERMILION,
            label=r"$\|\theta_0-\theta^*\|^2 / (2 \eta t)$",
        )
        axes.loglog(t, visible(gaps[name]), color=BLUE, label=r"$C(\theta_t) - \min C$")
        axes.set(xlabel="step $t$", title=name)
        axes.legend(fontsize=8)
    axes.plot(
        steps,
        1 / (4 * steps + 2),
        "k*",
        markersize=9,
        label=r"$L \|\theta_0-\theta^*\|^2 / (4 t + 2)$",
    )
    axes.legend(fontsize=8)
    figure.savefig(picture, dpi=150)
    return {"gaps": gaps, "limits": limits}


# 5. Slices through a convex and a non-convex loss


def slices(seed, picture):
    """The loss along five random lines through random params, for a linear model and a
    deep net on XOR.
    """
    x, y = (
        np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]),
        np.array([[0.0], [1.0], [1.0], [0.0]]),
    )
    nets = {
        "linear model: convex": Dense(1),
        "two hidden layers: not convex": MLP(8, 8, 1, activation=tanh),
    }
    amounts = np.linspace(-6, 6, 401)
    figure = Figure(figsize=(7.5, 3.4), layout="constrained")
    curvature = {}
    for axes, (name, net) in zip(figure.subplots(1, 2), nets.items(), strict=True):

        @jax.jit
        def along_lines(keys, net=net):
            center, unravel = ravel_pytree(net.init(keys[0], x))
            loss = lambda w: jnp.mean((net.apply(unravel(w), x) - y) ** 2)

            def along(key):
                direction = jax.random.normal(key, center.shape, center.dtype)
                direction = direction / jnp.linalg.norm(direction)
                return jax.vmap(
                    lambda amount: loss(
                        center + amount.astype(center.dtype) * direction
                    )
                )(amounts)

            return jax.vmap(along)(keys[1:])  # (lines, amounts)

        losses = np.asarray(along_lines(jax.random.split(jax.random.key(seed), 6)))
        curvature[name] = float(
            np.diff(losses, 2).min() / (amounts[1] - amounts[0]) ** 2
        )
        for line, (color, style) in zip(losses, STYLES, strict=True):
            axes.plot(amounts, line, linestyle=style, color=color)
        axes.set(
            title=name,
            xlabel="distance along a random line",
            ylabel="mean squared error",
            ylim=(0, 3),
        )
        print(f"slices, {name}; minimal second derivative {curvature[name]:.3g}")
    figure.savefig(picture, dpi=150)
    return {"curvature": list(curvature.values())}


if __name__ == "__main__":
    main()
