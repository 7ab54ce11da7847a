"""Functions to explore the cost of derivatives with, each with its arguments.

A function and a tuple with the name of the function and ``_args`` is all that the
command reads:

    python -m jaxblocks.ad examples/ad_functions.py:survey --argnums 0,1 --html f.html
    python -m jaxblocks.ad examples/ad_functions.py:autoencoder --html g.html

`main` writes one page with all of them, the page of the documentation.

    python examples/ad_functions.py --out out/ad_cost.html
"""

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp

import jaxblocks as jb
from jaxblocks.ad import Exploration, explore


def survey(x1, x2):
    """The function of the survey of Baydin et al.: ln x1 + x1 x2 - sin x2."""
    return jnp.log(x1) + x1 * x2 - jnp.sin(x2)


survey_args = (2.0, 5.0)


def net_of(*widths, activation=jnp.tanh):
    """A multilayer perceptron with an activation after each layer but the last, and its
    params.
    """
    layers = [layer for width in widths[1:] for layer in (jb.Dense(width), activation)]
    net = jb.Serial(*layers[:-1])
    return net, net.init(jax.random.key(0), jnp.zeros(widths[0]))


DIGITS, DIGITS_PARAMS = net_of(784, 128, 64, 10, activation=jb.relu)


def classifier_loss(params, images, labels):
    """The cross entropy of a classifier of digits; training needs its derivative with
    respect to the params.
    """
    return jnp.mean(jb.softmax_cross_entropy(DIGITS.apply(params, images), labels))


classifier_loss_args = (
    DIGITS_PARAMS,
    jax.random.normal(jax.random.key(1), (32, 784)),
    jnp.arange(32) % 10,
)


def logits(image):
    """The logits of the classifier: the Jacobian with respect to the image is 10 by
    784.
    """
    return DIGITS.apply(DIGITS_PARAMS, image)


logits_args = (jax.random.normal(jax.random.key(2), (784,)),)

CODER, CODER_PARAMS = net_of(784, 128, 8, 128, 784)


def autoencoder(image):
    """An autoencoder with a bottleneck of 8 numbers: the best bracketing of its
    Jacobian begins there.
    """
    return CODER.apply(CODER_PARAMS, image)


autoencoder_args = logits_args


def residual_loss(params, x):
    """The mean square of a deep residual net of 24 equal blocks, a chain for
    checkpoints.
    """
    return jnp.mean(jnp.square(RESIDUAL.apply(params, x)))


RESIDUAL = jb.Repeat(jb.Residual(jb.Dense(32), jnp.tanh), 24, checkpoint=None)
residual_loss_args = (
    RESIDUAL.init(jax.random.key(3), jnp.zeros((8, 32))),
    jax.random.normal(jax.random.key(4), (8, 32)),
)

TITLES = {
    "survey": "ln x1 + x1 x2 - sin x2",
    "logits": "logits of a classifier of digits as a function of the image",
    "classifier_loss": "loss of the classifier as a function of its params",
    "autoencoder": "autoencoder with a bottleneck of 8",
    "residual_loss": "loss of a residual net of 24 blocks as a function of its params",
}


def explorations(measure: bool = True, names=tuple(TITLES)) -> list[Exploration]:
    """What the page shows of each function."""
    found = []
    for name in names:
        argnums = (0, 1) if name == "survey" else 0
        args = globals()[f"{name}_args"]
        found.append(
            explore(
                globals()[name],
                *args,
                argnums=argnums,
                name=TITLES[name],
                measure=measure,
            )
        )
    return found


def main(argv=None):
    """Write the page."""
    parser = argparse.ArgumentParser(
        description="Functions to explore the cost of derivatives with."
    )
    parser.add_argument("--out", default="out/ad_cost.html", help="output file")
    parser.add_argument(
        "--count-only", action="store_true", help="count operations, and time nothing"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=TITLES,
        default=tuple(TITLES),
        help="functions on the page",
    )
    given = parser.parse_args(argv)
    path = Path(given.out)
    path.parent.mkdir(parents=True, exist_ok=True)
    first, *others = explorations(not given.count_only, tuple(given.only))
    first.save(path, *others)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
