"""Handwritten digits from beginning to end: build a net from blocks, train it, look inside, price its derivatives.

Reaches 98 % test accuracy on the 1797 digits that ship with scikit-learn (8x8 pixels, real data, no download), in
about 20 seconds on two CPU cores, start to finish. Then it shows the two other things the library is for: an attention
read-out that tells which parts of an image a decision came from, and a table of what derivatives of this very net cost.

    python examples/quickstart.py --steps 3000 --seed 0 --out out/quickstart
"""

import argparse
import itertools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure
from sklearn.datasets import load_digits

import jaxblocks as jb

BLUE, VERMILION, GRAY = "#0072B2", "#D55E00", "#666666"
HEADS = 4


# ---- the net ---------------------------------------------------------------------------------


def patches(x):
    """The 3x3 neighbors of inner pixels, (..., h, w, c) to (..., h - 2, w - 2, 9 c): Dense on it is convolution."""
    h, w = x.shape[-3] - 2, x.shape[-2] - 2
    return jnp.concatenate([x[..., i : i + h, j : j + w, :] for i in range(3) for j in range(3)], -1)


def as_tokens(x):
    """The places of an image in a row: (..., h, w, c) to (..., h w, c)."""
    return x.reshape(*x.shape[:-3], -1, x.shape[-1])


def split_heads(x):
    return x.reshape(*x.shape[:-1], HEADS, -1)


def Place():
    """Adds to each token what is learned about its place. A layer of your own is two functions."""

    def init(key, x):
        return {"place": 0.1 * jax.random.normal(key, x.shape[-2:])}

    def apply(params, x):
        return x + jnp.broadcast_to(params["place"], x.shape).astype(x.dtype)

    return jb.Layer(init, apply)


def ReadOut():
    """A learned query looks at all tokens, with several heads: (..., tokens, features) to (..., features)."""

    def init(key, x):
        return {"query": jax.random.normal(key, (1, HEADS, x.shape[-1] // HEADS))}

    def apply(params, x):
        return jb.attention(query_for(params, x), split_heads(x), split_heads(x)).reshape(*x.shape[:-2], -1)

    return jb.Layer(init, apply)


def query_for(params, x):
    return jnp.broadcast_to(params["query"], (*x.shape[:-2], *params["query"].shape)).astype(x.dtype)


def build():
    return jb.Serial(
        edges=jb.Serial(patches, jb.Dense(16), jb.gelu),  # (6, 6, 16)
        strokes=jb.Serial(patches, jb.Dense(64), jb.gelu),  # (4, 4, 64)
        tokens=as_tokens,  # (16, 64)
        place=Place(),
        read=ReadOut(),  # (64,)
        classify=jb.MLP(64, 10, activation=jb.gelu),
    )


# ---- regularization: smooth labels, and pictures that are never twice the same ----------------


def smoothed_cross_entropy(scores, labels):
    return jb.softmax_cross_entropy(scores, jb.smooth_labels(jb.one_hot(labels, 10), 0.1))


def move_and_blur(key, x):
    shift_key, noise_key = jax.random.split(key)
    return jb.gaussian_noise(noise_key, jb.random_shift(shift_key, x, 1), 0.1)


# ---- the job ---------------------------------------------------------------------------------


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], usage=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, default=3000, help="training steps")
    parser.add_argument("--seed", type=int, default=0, help="decides everything that is random")
    parser.add_argument("--out", type=Path, default=Path("out/quickstart"), help="folder of the pictures")
    args = parser.parse_args(argv)
    if args.steps < 1:
        parser.error(f"argument --steps: at least 1 was expected, but {args.steps} came")
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"argument --out: {args.out} cannot be made a folder ({error.strerror})")

    # Data: rows are shuffled by the key, and the test part is looked at once.
    digits = load_digits()
    key = jax.random.key(args.seed)
    data = digits.images[..., None].astype(np.float32) / 16, digits.target  # (1797, 8, 8, 1), (1797,)
    training, validation, test = jb.train_val_test_split(key, data)

    # The net, and its table.
    net = build()
    print(jb.summary(net, jax.ShapeDtypeStruct((64, 8, 8, 1), jnp.float32)), end="\n\n")

    schedule = optax.cosine_decay_schedule(5e-3, args.steps)
    fitted = jb.fit(
        net,
        smoothed_cross_entropy,
        optax.adamw(schedule, weight_decay=1e-2),
        training,
        key=key,
        steps=args.steps,
        validation=validation,
        metrics={"accuracy": jb.accuracy},
        augment=move_and_blur,
    )
    params = fitted.params
    images, labels = map(jnp.asarray, test)
    scores = jax.jit(net.apply)(params, images)
    accuracy = float(jb.accuracy(scores, labels))

    # Where the read-out looks: its weights over the 4x4 places, mean over heads.
    seen = jb.layer_outputs(net, params, images)["place"]
    weights = jb.attention_weights(query_for(params["read"], seen), split_heads(seen))  # (batch, heads, 1, 16)
    looks = weights.mean((1, 2)).reshape(-1, 4, 4)
    spread = float(-(looks * jnp.log(looks + 1e-30)).sum((1, 2)).mean())
    print(f"attention: of 16 places the read-out uses about {np.exp(spread):.1f} per digit (exp of the mean entropy)\n")

    # What derivatives of this net cost.
    x, y = images[:64], labels[:64]
    loss = lambda params: jb.softmax_cross_entropy(net.apply(params, x), y).mean()
    table = jb.cost_table(loss, params, rows=("gradient", "jvp", "hvp"))
    print("derivatives of the loss with respect to all params:")
    print(table, end="\n\n")

    draw_learning(fitted.history, args.out / "learning.png")
    predicted = jb.predict_class(scores)
    draw_confusion(jb.confusion_matrix(predicted, labels, 10), args.out / "confusion.png")
    draw_misread(images, labels, predicted, args.out / "misread.png")
    draw_attention(images, labels, looks, args.out / "attention.png")
    print(f"pictures: {args.out}/learning.png, confusion.png, misread.png, attention.png")
    print(f"test accuracy: {accuracy:.4f}")
    return {"accuracy": accuracy, "cost": table, "looks": looks}


# ---- pictures --------------------------------------------------------------------------------


def draw_learning(history, path):
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.subplots()
    axes.plot(history.step_epoch, history.step_loss, color=GRAY, linewidth=0.6, label="training loss, each step")
    axes.plot(history.epoch, history.validation["loss"], color=BLUE, label="validation loss")
    axes.set(xlabel="epoch", ylabel="cross-entropy of smoothed labels (nats)")
    right = axes.twinx()
    right.plot(history.epoch, history.validation["accuracy"], "--", color=VERMILION, label="validation accuracy")
    right.set(ylabel="accuracy", ylim=(0, 1.02))
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    figure.savefig(path, dpi=150)


def draw_confusion(matrix, path):
    figure = Figure(figsize=(4.6, 4.2), layout="constrained")
    axes = figure.subplots()
    axes.imshow(np.sqrt(matrix), cmap="Blues")
    for (row, column), n in np.ndenumerate(np.asarray(matrix)):
        if n:
            axes.text(column, row, int(n), ha="center", va="center", color="white" if row == column else "black")
    axes.set(xlabel="read as", ylabel="written", xticks=range(10), yticks=range(10))
    figure.savefig(path, dpi=150)


def draw_misread(images, labels, predicted, path, most=12):
    wrong = np.flatnonzero(np.asarray(predicted != labels))
    shown = wrong[:most]
    rows = 1 if len(shown) <= most // 2 else 2
    columns = max(-(-len(shown) // rows), 1)
    figure = Figure(figsize=(max(1.2 * columns, 3.6), 0.4 + 1.2 * rows), layout="constrained")
    figure.suptitle(f"misread test digits ({len(wrong)} of {len(labels)})", fontsize=10)
    for axes, i in itertools.zip_longest(figure.subplots(rows, columns, squeeze=False).flat, shown):
        axes.axis("off")
        if i is not None:
            axes.imshow(images[i, ..., 0], cmap="gray_r")
            axes.set_title(f"{labels[i]} read as {predicted[i]}", fontsize=8)
    figure.savefig(path, dpi=150)


def draw_attention(images, labels, looks, path):
    figure = Figure(figsize=(9, 2.6), layout="constrained")
    figure.suptitle("where the attention read-out looks: weight of each of the 16 places, mean over heads", fontsize=10)
    panels, drawn = figure.subplots(2, 10), None
    for digit, (top, bottom) in enumerate(panels.T):
        i = int(np.flatnonzero(np.asarray(labels) == digit)[0]) if (np.asarray(labels) == digit).any() else None
        for axes in (top, bottom):
            axes.axis("off")
        if i is not None:
            top.imshow(images[i, ..., 0], cmap="gray_r")
            drawn = bottom.imshow(looks[i], cmap="Blues", vmin=0, vmax=float(looks.max()), extent=(1.5, 5.5, 5.5, 1.5))
            bottom.contour(images[i, ..., 0], levels=[0.4], colors=VERMILION, linewidths=1)  # the outline of the digit
            bottom.set(xlim=(-0.5, 7.5), ylim=(7.5, -0.5))
    if drawn is not None:
        figure.colorbar(drawn, ax=panels, label="weight")
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
