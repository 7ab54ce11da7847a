"""Rows of the zoo: embeddings, feature maps and learned activations, against their formulas in NumPy."""

import numpy as np
from specimen import Specimen

from jaxblocks import Dense, Embedding, Maxout, PReLU, Swish, initializers
from jaxblocks.layers import RBF, AffineCoupling, Flow, ModReLU, RandomFourierFeatures

IDS = np.array([[0, 5, 2], [1, 1, 4], [3, 0, 0]], np.int32)


def looked_up(p, ids):
    table, ids = p["embedding"], ids.astype(int)
    return np.stack([np.stack([table[i] for i in row]) for row in ids])


def fourier(p, x):
    return np.sqrt(2 / len(p["phases"])) * np.cos(x @ p["frequencies"] + p["phases"])


def radial(p, x):
    return np.stack([np.exp(-np.exp(p["log_gamma"]) * ((x - c) ** 2).sum(-1)) for c in p["centers"]], -1)


def largest(p, x, pieces):
    y = x @ p["kernel"] + p["bias"]
    return np.stack([y[..., i : i + pieces].max(-1) for i in range(0, y.shape[-1], pieces)], -1)


def parametric(p, x):
    return np.maximum(x, 0) + p["negative_slope"] * np.minimum(x, 0)


def thresholded(p, x):
    size = np.abs(x)
    return np.maximum(size + p["bias"], 0) * x / np.where(size == 0, 1, size)


def coupled(p, x):
    """The second half of five features, scaled and shifted by functions of the first two."""
    hidden = x[:, :2] @ p["conditioner"]["kernel"] + p["conditioner"]["bias"]
    scale, shift = np.split(hidden @ p["affine"]["kernel"] + p["affine"]["bias"], 2, -1)
    scale = 2 * np.tanh(scale / 2)
    return np.concatenate([x[:, :2], x[:, 2:] * np.exp(scale) + shift], -1), scale.sum(-1)


def flowing(p, x):
    y, first = coupled(p["layer_0"], x)
    y, second = coupled(p["layer_1"], y)
    return y, first + second


ROWS = {
    "Embedding": Specimen("Embedding", Embedding(6, 4), (IDS,), looked_up),
    "Embedding with padding": Specimen("Embedding", Embedding(6, 4, padding_idx=1), (IDS,), looked_up),
    "Embedding, tied, on ids": Specimen("Embedding", Embedding(6, 4, tied=True), (IDS,), looked_up),
    "Embedding, tied, on features": Specimen(
        "Embedding", Embedding(6, 4, tied=True), ((3, 4),), lambda p, x: x @ p["embedding"].T
    ),
    "RandomFourierFeatures": Specimen("RandomFourierFeatures", RandomFourierFeatures(4, gamma=0.5), ((3, 5),), fourier),
    "RBF": Specimen("RBF", RBF(4, gamma_init=0.3), ((3, 5),), radial),
    "RBF of two features": Specimen("RBF", RBF(4), ((3, 2),), radial),
    "Swish": Specimen("Swish", Swish(beta_init=1.5), ((3, 4),), lambda p, x: x / (1 + np.exp(-p["beta"] * x))),
    "PReLU": Specimen("PReLU", PReLU(), ((3, 4),), parametric),
    "PReLU per feature": Specimen("PReLU", PReLU(per_feature=True), ((3, 4),), parametric),
    "ModReLU": Specimen("ModReLU", ModReLU(bias_init=initializers.constant(-0.3)), ((3, 4),), thresholded),
    "Maxout": Specimen("Maxout", Maxout(3), ((3, 4),), lambda p, x: largest(p, x, 2)),
    "Maxout of three": Specimen("Maxout", Maxout(2, pieces=3), ((3, 4),), lambda p, x: largest(p, x, 3)),
    "AffineCoupling": Specimen("AffineCoupling", AffineCoupling(Dense(3)), ((3, 5),), coupled),
    "Flow": Specimen("Flow", Flow(AffineCoupling(Dense(3)), AffineCoupling(Dense(4))), ((3, 5),), flowing),
}
