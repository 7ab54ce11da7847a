"""Derivatives of solutions: a layer, a hyperparameter, an optimization problem and an
ODE.

    1. a layer            z = tanh(W z + U x + b), a deep-equilibrium layer, trained on
                          two rings; the memory of its gradient against that of the
                          unrolled iteration
    2. a hyperparameter   the penalty of ridge regression, by gradient descent on the
                          validation loss, through the fit
    3. a quadratic        with bounds: the derivative of its solution against the closed
       program            form
    4. an ODE             the gradient through a solver of L steps: all steps stored, or
                          recomputed in blocks, or (where diffrax is installed) the
                          adjoint equation solved backward

Results: the gradient through the unrolled iteration stores every step, that of the
fixed point none (temporary bytes grow as depth^0.9 and depth^0). The hypergradient
equals the closed form to 1e-14, the sensitivity of the quadratic program to 1e-8.

Source: Bai, Kolter & Koltun 2019, Deep equilibrium models, arXiv:1909.01377; Blondel et
al. 2022, Efficient and modular implicit differentiation, arXiv:2105.15183.

    python examples/implicit.py --out out/implicit
"""

import argparse
import importlib.util
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxblocks as jb
from jaxblocks.ad import (
    MemoryCurve,
    argmin,
    cost_table,
    fixed_point,
    scan,
    temporary_bytes,
)
from jaxblocks.checks import PositiveInt
from jaxblocks.core import ArrayOrShape, Layer, builder


def main(argv=None):
    parser = argparse.ArgumentParser(
        description="Derivatives of solutions of equations."
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("out/implicit"),
        help="output folder for the figures",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="random seed of weights and data"
    )
    parser.add_argument(
        "--steps", type=int, default=200, help="training steps of the layer"
    )
    parser.add_argument(
        "--depths",
        type=int,
        nargs=2,
        default=[64, 256],
        help="numbers of steps that are compared",
    )
    args = parser.parse_args(argv)
    if min(args.steps, *args.depths) < 1:
        parser.error("expected --steps and --depths to be integers >= 1")
    args.out.mkdir(parents=True, exist_ok=True)
    key = jax.random.key(args.seed)
    curves = {
        "equilibrium": equilibrium_memory(args.depths),
        "ode": ode_memory(args.depths),
    }
    numbers = {
        "accuracy": train_equilibrium(key, args.steps),
        **ridge(np.random.default_rng(args.seed)),
        **quadratic_program(np.random.default_rng(args.seed)),
    }
    for name, curve in curves.items():
        print(f"{name}:", curve, sep="\n")
        curve.plot().figure.savefig(args.out / f"{name}.png", dpi=150)
    print(f"figures: {args.out}/equilibrium.png, ode.png")
    return {**numbers, **curves}


# 1. A deep-equilibrium layer


@builder
def Equilibrium(features: PositiveInt) -> Layer:
    """The layer that returns the fixed point of z = tanh(W z + U x + b), one for each
    example.

    W is divided by twice its largest singular value, so that the map is a contraction.
    """
    inner = jb.Dense(features)

    def init(key, x: ArrayOrShape):
        keys = jax.random.split(key)
        z = jax.ShapeDtypeStruct((features,), x.dtype)
        return {
            "state": jb.Dense(features, use_bias=False).init(keys[0], z),
            "input": inner.init(keys[1], x),
        }

    def apply(params, x):
        drive = inner.apply(params["input"], x)
        kernel = params["state"]["kernel"]
        kernel = kernel / (2 * jnp.linalg.norm(kernel, 2))
        step = lambda z, drive: jnp.tanh(z @ kernel + drive)
        # each step halves the error
        iterate = lambda g, z: jax.lax.fori_loop(0, 30, lambda _, z: g(z), z)
        solve = lambda drive: fixed_point(
            step, jnp.zeros(features, x.dtype), drive, solver=iterate
        )
        return jnp.vectorize(solve, signature="(n)->(n)")(drive)

    return Layer(init, apply)


def train_equilibrium(key, steps):
    """Two rings, separated by an equilibrium layer of 8 features and a readout."""
    key, for_angle = jax.random.split(key)
    angle = jax.random.uniform(for_angle, (64,), maxval=2 * jnp.pi)
    labels = jnp.arange(64) % 2
    x = jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=1) * (1 + labels)[:, None]
    net = jb.Serial(Equilibrium(8), jb.Dense(2))
    loss = lambda params: jb.softmax_cross_entropy(net.apply(params, x), labels).mean()
    optimizer = optax.adam(0.05)

    def step(carry, _):
        params, state = carry
        value, gradient = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradient, state)
        return (optax.apply_updates(params, updates), state), value

    params = net.init(key, x)
    (params, _), losses = jax.jit(
        lambda carry: jax.lax.scan(step, carry, length=steps)
    )((params, optimizer.init(params)))
    accuracy = float(jnp.mean(jnp.argmax(jax.jit(net.apply)(params, x), -1) == labels))
    print(
        f"equilibrium layer: loss {losses[0]:.3f} to {losses[-1]:.3f}, accuracy "
        f"{accuracy:.2f}"
    )
    return accuracy


def equilibrium_memory(depths, features=16):
    """Temporary bytes of gradients: through all iterations, and of the fixed point that
    they find.
    """
    kernel = 0.3 * jnp.eye(features)
    iterate = lambda g, z, steps: jax.lax.scan(
        lambda z, _: (g(z), None), z, length=steps
    )[0]

    def make(steps, implicit):
        def f(kernel):
            g = lambda z: jnp.tanh(z @ kernel + 1)
            start = jnp.zeros(features)
            if implicit:
                return jnp.sum(
                    fixed_point(g, start, solver=lambda g, z: iterate(g, z, steps))
                )
            return jnp.sum(iterate(g, start, steps))

        return f, kernel

    found = {}
    for implicit in (False, True):
        name = "implicit" if implicit else "unrolled"
        print(
            name,
            cost_table(
                *make(depths[0], implicit), rows=["jvp", "gradient"], measure=False
            ),
            sep="\n",
        )
        found[name] = tuple(gradient_bytes(*make(depth, implicit)) for depth in depths)
    return MemoryCurve(tuple(depths), found)


def gradient_bytes(f, x):
    return temporary_bytes(jax.grad(f), x)


# 2. A hyperparameter


def ridge(rng, steps=30):
    """The penalty of ridge regression that minimizes the loss on other data, by its
    gradient through the fit.
    """
    x, other, w = (
        rng.normal(size=(20, 10)),
        rng.normal(size=(50, 10)),
        rng.normal(size=10),
    )
    y, other_y = x @ w + 2 * rng.normal(size=20), other @ w + 2 * rng.normal(size=50)
    with jax.enable_x64(True):

        def train_loss(w, log_penalty):
            return jnp.sum((x @ w - y) ** 2) + jnp.exp(log_penalty) * jnp.sum(w**2)

        def validation_loss(log_penalty):
            return jnp.mean(
                (other @ argmin(train_loss, jnp.zeros(10), log_penalty) - other_y) ** 2
            )

        step = jax.jit(jax.value_and_grad(validation_loss))
        log_penalty = jnp.zeros(())
        errors, losses = [], []
        for _ in range(steps):
            loss, gradient = step(log_penalty)
            errors.append(
                abs(
                    float(gradient)
                    - _ridge_gradient(float(log_penalty), x, y, other, other_y)
                )
            )
            losses.append(float(loss))
            log_penalty = log_penalty - gradient
    penalty = float(np.exp(log_penalty))
    print(
        f"ridge: penalty 1 to {penalty:.3f}, validation loss {losses[0]:.4f} to "
        f"{losses[-1]:.4f}"
    )
    print(f"  largest difference to the closed form of the gradient: {max(errors):.1e}")
    return {
        "penalty": penalty,
        "validation": losses,
        "hypergradient_error": max(errors),
    }


def _ridge_gradient(log_penalty, x, y, other, other_y):
    """With w = (X'X + p I)^-1 X'y: dw/dlog p = -p (X'X + p I)^-1 w."""
    penalty = np.exp(log_penalty)
    matrix = x.T @ x + penalty * np.eye(x.shape[1])
    w = np.linalg.solve(matrix, x.T @ y)
    return 2 * np.mean(
        (other @ w - other_y) * (other @ (-penalty * np.linalg.solve(matrix, w)))
    )


# 3. A quadratic program


def quadratic_program(rng, n=6):
    """min x'Px/2 + q'x with 0 <= x <= 1, the fixed point of a projected gradient step,
    and dx/dq.
    """
    factor, q = rng.normal(size=(n, n)), -rng.uniform(0, 2, size=n)
    p = factor @ factor.T / n + np.eye(n)
    rate = 1 / np.linalg.norm(p, 2)
    with jax.enable_x64(True):
        solve = lambda q: fixed_point(
            lambda x: jnp.clip(x - rate * (p @ x + q), 0, 1), jnp.full(n, 0.5)
        )
        x, derivative = map(
            np.asarray,
            jax.jit(lambda q: (solve(q), jax.jacrev(solve)(q)))(jnp.asarray(q)),
        )
    free = (x > 1e-8) & (x < 1 - 1e-8)  # the others stay at their bounds
    expected = np.zeros((n, n))
    expected[np.ix_(free, free)] = -np.linalg.inv(p[np.ix_(free, free)])
    error = float(np.abs(derivative - expected).max())
    # the multipliers of the bounds: zero inside, inward at the bounds
    slope = p @ x + q
    optimal = bool(
        np.all(
            np.where(
                free, np.abs(slope) < 1e-7, np.where(x < 0.5, slope > 0, slope < 0)
            )
        )
    )
    print(
        f"quadratic program: {free.sum()} of {n} entries between the bounds, "
        f"optimality conditions hold: {optimal}"
    )
    print(f"  largest difference to the closed form of dx/dq: {error:.1e}")
    return {"sensitivity_error": error, "optimal": optimal}


# 4. An ODE


def ode_memory(depths, features=8):
    """Temporary bytes of the gradient of |y(1)|^2 for y' = tanh(W y), through a solver
    of a given number of steps.
    """
    field = lambda y, w: jnp.tanh(w @ y)
    w, start = jnp.eye(features), jnp.ones(features)

    def make(steps, checkpoint=None):
        def f(w):
            def step(y, _):  # Runge and Kutta, order 4
                h = 1 / steps
                a = field(y, w)
                b = field(y + h / 2 * a, w)
                c = field(y + h / 2 * b, w)
                d = field(y + h * c, w)
                return y + h / 6 * (a + 2 * b + 2 * c + d), None

            return jnp.sum(
                scan(step, start, length=steps, checkpoint=checkpoint)[0] ** 2
            )

        return f, w

    kinds = {"all steps": None, "blocks of sqrt(steps)": "sqrt", "8 snapshots": 8}
    rows = {
        name: tuple(gradient_bytes(*make(depth, kind)) for depth in depths)
        for name, kind in kinds.items()
    }
    if importlib.util.find_spec("diffrax"):
        for name, adjoint in _adjoints().items():
            rows[name] = tuple(
                gradient_bytes(adjoint(field, start, depth), w) for depth in depths
            )
    return MemoryCurve(tuple(depths), rows)


def _adjoints():
    """The same gradient by diffrax: recursive checkpoints, and the adjoint equation
    solved backward.
    """
    import diffrax  # pyright: ignore[reportMissingImports]

    def solve(adjoint):
        def of_steps(field, start, steps):
            def f(w):
                term = diffrax.ODETerm(lambda t, y, w: field(y, w))
                options = dict(
                    dt0=1 / steps,
                    y0=start,
                    args=w,
                    adjoint=adjoint,
                    max_steps=steps + 1,
                )
                found = diffrax.diffeqsolve(term, diffrax.Bosh3(), 0.0, 1.0, **options)
                assert found.ys is not None
                return jnp.sum(found.ys**2)

            return f

        return of_steps

    return {
        "diffrax, checkpoints": solve(diffrax.RecursiveCheckpointAdjoint()),
        "diffrax, adjoint equation": solve(diffrax.BacksolveAdjoint()),
    }


if __name__ == "__main__":
    main()
