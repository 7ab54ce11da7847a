"""Train a denoiser on a mixture of Gaussians and compare its score with the exact one.

After 4000 steps the relative error of the learned score is 5 % at t = 0.2 and 18 % at t
= 0.05, where the score is large and the noise is small. The shares of the six
components among 2000 samples differ from their weights by at most 0.019 (with the exact
score 0.015; the standard error of a share is up to 0.010). The example takes 16 to 23
seconds of CPU time.

    python examples/diffusion_2d.py --steps 4000 --seed 0 --out out/diffusion_2d
"""

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure

import jaxblocks as jb
from jaxblocks.diffusion import (
    DenoisingLoss,
    convert,
    dpm_solver_pp_2m,
    gaussian_mixture,
    initial_noise,
    times,
    variance_preserving_schedule,
)
from jaxblocks.plotting import GRAY, PALETTE

BLUE, VERMILION = PALETTE[:2]
SCHEDULE = variance_preserving_schedule()
TIMES = (0.05, 0.2, 0.5)  # of the comparison
BOX = 2.5


# ---- the data and the denoiser -------------------------------------------------------


def ring(components=6):
    """A mixture of Gaussians on a circle, elongated along it."""
    angle = np.linspace(0, 2 * np.pi, components, endpoint=False)
    across, along = (
        np.stack([np.cos(angle), np.sin(angle)], -1),
        np.stack([-np.sin(angle), np.cos(angle)], -1),
    )
    covariances = (
        0.01 * across[:, :, None] * across[:, None]
        + 0.1 * along[:, :, None] * along[:, None]
    )
    weights = np.arange(1, components + 1) / (components * (components + 1) / 2)
    return gaussian_mixture(
        *(
            jax.device_put(a.astype(np.float32))
            for a in (1.5 * across, covariances, weights)
        )
    )


def denoiser(width):
    """An MLP of a point and sinusoidal features of the time."""

    def forward(f, x, *, time):
        time = jnp.broadcast_to(time, x.shape[:-1])[..., None]
        features = [
            wave(rate * jnp.pi * time)
            for rate in (0.5, 1, 2, 4)
            for wave in (jnp.sin, jnp.cos)
        ]
        return f.net(jnp.concatenate([x, *features], -1))

    return jb.Wire(forward, net=jb.MLP(width, width, width, 2, activation=jb.silu))


# ---- main ----------------------------------------------------------------------------


def main(argv=None):
    parser = argparse.ArgumentParser(
        description=str(__doc__).splitlines()[0], usage=argparse.SUPPRESS
    )
    parser.add_argument("--steps", type=int, default=4000, help="training steps")
    parser.add_argument("--samples", type=int, default=2000, help="number of samples")
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("out/diffusion_2d"),
        help="output folder for the figure",
    )
    args = parser.parse_args(argv)
    for name in ("steps", "samples"):
        if getattr(args, name) < 1:
            parser.error(
                f"argument --{name}: expected an integer >= 1, got "
                f"{getattr(args, name)}"
            )
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(
            f"argument --out: expected a folder that can be created, got {args.out} "
            f"({error.strerror})"
        )
    keys = iter(jax.random.split(jax.random.key(args.seed), 4))

    # DenoisingLoss makes a layer that maps data to losses; `fit` trains it like any
    # other layer.
    data = ring()
    x = jax.jit(lambda key: data.sample(key, 20_000))(next(keys))
    net = denoiser(128)
    fitted = jb.fit(
        DenoisingLoss(net, SCHEDULE, "eps"),
        lambda losses, y: losses,
        optax.adam(optax.cosine_decay_schedule(2e-3, args.steps)),
        (x, x),
        key=next(keys),
        batch_size=512,
        steps=args.steps,
    )
    params = fitted.params["net"]
    predict = lambda x, t: net.apply(params, x, time=t)
    optimal = data.predictor(SCHEDULE, "eps")

    # The error of the score relative to its norm, on samples of the forward process at
    # each time.
    @jax.jit
    def compare(key, t):
        x = data.at(t, SCHEDULE).sample(key, 5000)
        learned = convert(predict(x, t), x, t, SCHEDULE, "eps", "score")
        exact = data.at(t, SCHEDULE).score(x)
        return jnp.mean((learned - exact) ** 2) / jnp.mean(exact**2)

    new = next(keys)
    errors = {
        t: float(jnp.sqrt(compare(jax.random.fold_in(new, i), t)))
        for i, t in enumerate(TIMES)
    }
    for t, error in errors.items():
        print(f"t = {t}: relative error of the learned score {error:.3f}")

    # Samples by the learned and by the optimal denoiser from the same noise.
    noise, grid = (
        initial_noise(next(keys), (args.samples, 2), SCHEDULE),
        times(SCHEDULE, 40),
    )
    sample = lambda predict: jax.jit(
        lambda noise: dpm_solver_pp_2m(predict, noise, grid, SCHEDULE, "eps")
    )(noise)
    drawn = {"learned": sample(predict), "exact": sample(optimal)}
    component = jax.jit(lambda points: data.responsibilities(points).mean(0))
    share = {name: np.asarray(component(points)) for name, points in drawn.items()}
    print("share of samples in each component (true, exact score, learned score):")
    print(np.stack([data.weights, share["exact"], share["learned"]]).round(3))

    draw(data, predict, drawn, args.out / "scores.png")
    print(f"figure: {args.out}/scores.png")
    print(f"relative error of the score at t = {TIMES[1]}: {errors[TIMES[1]]:.4f}")
    return {
        "errors": errors,
        "shares": share,
        "weights": np.asarray(data.weights),
        "drawn": drawn,
    }


# ---- the figure ----------------------------------------------------------------------


def draw(data, predict, drawn, path):
    """Draw the exact score (top) and the learned score (bottom) with the density at
    each time, and samples of each. An arrow has the logarithm of the score's length.
    """
    side = np.linspace(-BOX, BOX, 13, dtype=np.float32)
    points = np.stack(np.meshgrid(side, side), -1).reshape(-1, 2)
    fine = np.linspace(-BOX, BOX, 120, dtype=np.float32)
    plane = np.stack(np.meshgrid(fine, fine), -1)

    @jax.jit
    def at_time(t, points, plane):
        at = data.at(t, SCHEDULE)
        learned = convert(predict(points, t), points, t, SCHEDULE, "eps", "score")
        return jnp.exp(at.log_density(plane)), at.score(points), learned

    figure = Figure(figsize=(6.5, 3.8), layout="constrained")
    grid = figure.subplots(2, len(TIMES) + 1, sharex=True, sharey=True)
    for column, t in zip(grid.T, TIMES, strict=False):
        density, *scores = map(np.asarray, at_time(t, points, plane))
        column[0].set_title(f"score, t = {t}", fontsize=9)
        for axes, score in zip(column, scores, strict=True):
            axes.imshow(
                density,
                extent=(-BOX, BOX, -BOX, BOX),
                origin="lower",
                cmap="Grays",
                alpha=0.6,
            )
            # the logarithm of the length keeps directions visible where the score is
            # large
            size = np.linalg.norm(score, axis=-1, keepdims=True)
            arrows = score * np.log1p(size) / size
            axes.quiver(*points.T, *arrows.T, color=BLUE, angles="xy", width=0.008)
    for axes, (name, color) in zip(
        grid[:, -1], (("exact", GRAY), ("learned", VERMILION)), strict=True
    ):
        axes.scatter(*np.asarray(drawn[name]).T, s=1, linewidths=0, color=color)
    grid[0, -1].set_title("samples", fontsize=9)
    for axes in grid.flat:
        axes.set(xlim=(-BOX, BOX), ylim=(-BOX, BOX), aspect="equal")
        axes.tick_params(labelsize=7)
    grid[0, 0].set_ylabel("exact", fontsize=9)
    grid[1, 0].set_ylabel("learned", fontsize=9)
    figure.supxlabel("$x_1$", fontsize=9)
    figure.supylabel("$x_2$", fontsize=9)
    figure.savefig(path, dpi=200)


if __name__ == "__main__":
    main()
