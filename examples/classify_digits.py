"""Classify handwritten digits with two published architectures: a residual network and
a vision transformer.

The data are the 1797 digits of scikit-learn (8x8 pixels): 70 % for training, 10 % for
the choice of the epoch and 20 % for a single test. With seed 0 the residual network
classifies all 359 test digits correctly (validation: 179 of 180) and the vision
transformer 355 of them, 98.9 % (178 of 180). One digit is 0.3 %, and each seed has its
own split: expect 99 % and 98 %. On two CPU cores the first takes about a minute and the
second about a minute and a half.

    python examples/classify_digits.py --net both --seed 0
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.scipy.ndimage import map_coordinates

import jaxblocks as jb
from jaxblocks.datasets import digits
from jaxblocks.models import ResNet, ViT

NETS = {
    "cnn": lambda: ResNet(
        (1, 1, 1), classes=10, width=32, bottleneck=False, stem="3x3"
    ),
    "vit": lambda: ViT(
        classes=10,
        patch_size=2,
        features=64,
        layers=4,
        heads=4,
        hidden=128,
        pool="mean",
    ),
}
EPOCHS = {"cnn": 40, "vit": 160}
PEAK = {"cnn": 3e-3, "vit": 2e-3}  # of the learning rate


# ---- augmentation and loss -----------------------------------------------------------


def distort(key, images):
    """Random affine maps (rotation, shear, scale, shift) of images, with Gaussian
    noise.
    """
    shape_key, place_key, noise_key = jax.random.split(key, 3)
    batch, height, width, _ = images.shape
    matrices = jnp.eye(2)[None] + 0.12 * jax.random.normal(shape_key, (batch, 2, 2))
    center = np.array([[height - 1, width - 1]]) / 2
    moves = center[None] + 0.5 * jax.random.normal(place_key, (batch, 1, 2))
    # (h w, 2), relative to the center
    grid = np.indices((height, width)).reshape(2, -1).T - center

    def one(image, matrix, move):
        points = grid @ matrix + move  # coordinates in the input image
        return map_coordinates(image, list(points.T), order=1).reshape(image.shape)

    moved = jax.vmap(one)(images[..., 0], matrices, moves)[..., None]
    return jb.training.gaussian_noise(noise_key, moved, scale=0.05)


def smoothed_cross_entropy(logits, labels):
    return jb.softmax_cross_entropy(
        logits, jb.smooth_labels(jb.one_hot(labels, 10), 0.1)
    )


# ---- training ------------------------------------------------------------------------


def train(name, training, validation, *, epochs, seed):
    """The net and the result of `fit`: params and state of the epoch with the lowest
    validation loss.
    """
    net, steps = NETS[name](), epochs * -(-len(training[1]) // 64)
    schedule = optax.warmup_cosine_decay_schedule(0.0, PEAK[name], steps // 10, steps)
    fitted = jb.fit(
        net,
        smoothed_cross_entropy,
        optax.adamw(schedule, weight_decay=1e-2),
        training,
        key=jax.random.key(seed),
        epochs=epochs,
        validation=validation,
        metrics={"accuracy": jb.accuracy},
        augment=distort,
    )
    return net, fitted


def predict(net, fitted, images):
    logits, _ = jax.jit(jb.stateful(net).apply)(fitted.params, fitted.state, images)
    return np.asarray(jb.predict_class(logits))


def main(argv=None):
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n\n")[0], usage=argparse.SUPPRESS
    )
    parser.add_argument(
        "--net", choices=["both", *NETS], default="both", help="architecture"
    )
    parser.add_argument(
        "--epochs", type=int, help="training epochs; by default 40 (cnn), 160 (vit)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="random seed, also of the split"
    )
    args = parser.parse_args(argv)
    if args.epochs is not None and args.epochs < 1:
        parser.error(f"argument --epochs: expected an integer >= 1, got {args.epochs}")

    parts = jb.train_val_test_split(
        jax.random.key(args.seed), digits(), fractions=(0.7, 0.1, 0.2)
    )
    (training, validation, (images, labels)), accuracies = parts, {}
    for name in NETS if args.net == "both" else [args.net]:
        begin = time.perf_counter()
        net, fitted = train(
            name,
            training,
            validation,
            epochs=args.epochs or EPOCHS[name],
            seed=args.seed,
        )
        # the only use of the test part
        predicted = predict(net, fitted, jnp.asarray(images))
        accuracies[name] = float(np.mean(predicted == labels))
        wrong = ", ".join(
            f"{y} as {p}" for y, p in zip(labels, predicted, strict=True) if y != p
        )
        print(
            f"{name}: {jb.count_params(fitted.params):,} params, "
            f"{time.perf_counter() - begin:.0f} s"
        )
        best = fitted.history.validation["accuracy"][
            int(np.argmin(fitted.history.validation["loss"]))
        ]
        print(f"  validation accuracy {best:.4f}, of {len(validation[1])}")
        print(
            f"  test accuracy {accuracies[name]:.4f}, of {len(labels)}; errors: "
            f"{wrong or 'none'}"
        )
    return accuracies


if __name__ == "__main__":
    main()
