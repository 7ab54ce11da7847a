"""Rows of the zoo: normalization and dropout."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from specimen import Specimen

from jaxblocks import (
    AlphaDropout,
    BatchNorm,
    Dense,
    Dropout,
    FeatureDropout,
    GroupNorm,
    InstanceNorm,
    LayerNorm,
    Residual,
    RMSNorm,
    SpectralNorm,
    StatefulLayer,
    StochasticDepth,
    WeightNorm,
)
from jaxblocks.core import builder
from jaxblocks.layers import LocalResponseNorm, UnitNorm

VALID = np.array([[True, True], [False, True], [True, False]])


@builder
def settled(layer, settle):
    """The layer with the state ``settle(state)`` of a trained layer in place of the state of ``init``."""

    def init(key, x):
        params, state = layer.init(key, x)
        return params, settle(state)

    return StatefulLayer(init, layer.apply)


def measured(state):
    """Running statistics of mean 0.5 and variance 2 after one update."""
    filled = jax.tree.map(jnp.full_like, state, {"mean": 0.5, "variance": 2.0, "updates": 1})
    return {name: filled[name] for name in state}


@builder
def as_wide_as_x(layer):
    """The layer with float64 params for float64 inputs, so that normalized kernels are not rounded to float32."""

    @functools.wraps(layer.apply)
    def apply(params, *rest, **side):
        wide = rest[-1].dtype == jnp.float64
        return layer.apply(jax.tree.map(lambda p: p.astype(jnp.float64) if wide else p, params), *rest, **side)

    return layer._replace(apply=apply)


def at_the_corner(state):
    """Singular vectors that select the first entry of the kernel."""
    return {**state, "vectors": jax.tree.map(lambda v: jnp.zeros_like(v).at[0].set(1), state["vectors"])}


def normalized(x, axes, epsilon, mean=None, variance=None):
    mean = x.mean(axes, keepdims=True) if mean is None else mean
    variance = ((x - mean) ** 2).mean(axes, keepdims=True) if variance is None else variance
    return (x - mean) / np.sqrt(variance + epsilon)


def affine(p, y):
    return p.get("scale", 1) * y + p.get("bias", 0)


def masked(p, x):
    valid = x[VALID]  # (n, features)
    return affine(p, normalized(np.where(VALID[..., None], x, 0), None, 1e-3, valid.mean(0), valid.var(0)))


def grouped(p, x, groups):
    g = x.reshape(*x.shape[:-1], groups, -1)
    return affine(p, normalized(g, (1, 2, 4), 1e-5).reshape(x.shape))


def weight_normed(p, x):
    v = p["layer"]["kernel"]
    return x @ (p["scale"]["kernel"]["length"] * v / np.sqrt((v**2).sum(0))) + p["layer"]["bias"]


ROWS = {
    "BatchNorm": Specimen(
        "BatchNorm",
        settled(BatchNorm(), measured),
        ((3, 4),),
        lambda p, x: affine(p, normalized(x, 0, 1e-3, 0.5, 2.0)),
        {"train": False},
    ),
    "BatchNorm in training": Specimen(
        "BatchNorm",
        settled(BatchNorm(momentum=0.9), measured),
        ((3, 2, 4),),
        lambda p, x: affine(p, normalized(x, (0, 1), 1e-3)),
        {"train": True},
        mixes_batch=True,
    ),
    "BatchNorm with padding": Specimen(
        "BatchNorm",
        settled(BatchNorm(), measured),
        ((3, 2, 4),),
        masked,
        {"train": True, "mask": VALID},
        mixes_batch=True,
    ),
    "LayerNorm": Specimen("LayerNorm", LayerNorm(), ((3, 2, 4),), lambda p, x: affine(p, normalized(x, -1, 1e-5))),
    "LayerNorm as in the lecture": Specimen(
        "LayerNorm",
        LayerNorm(axes=(-2, -1), use_bias=False),
        ((3, 2, 4),),
        lambda p, x: affine(p, normalized(x, (-2, -1), 1e-5)),
    ),
    "RMSNorm": Specimen(
        "RMSNorm", RMSNorm(), ((3, 4),), lambda p, x: affine(p, x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6))
    ),
    "GroupNorm": Specimen("GroupNorm", GroupNorm(groups=2, spatial=2), ((3, 2, 2, 4),), lambda p, x: grouped(p, x, 2)),
    "InstanceNorm": Specimen(
        "InstanceNorm", InstanceNorm(spatial=1), ((3, 5, 4),), lambda p, x: affine(p, normalized(x, 1, 1e-5))
    ),
    "UnitNorm": Specimen(
        "UnitNorm", UnitNorm(order=3), ((3, 4),), lambda p, x: x / (np.abs(x) ** 3).sum(-1, keepdims=True) ** (1 / 3)
    ),
    "LocalResponseNorm": Specimen(
        "LocalResponseNorm",
        LocalResponseNorm(3, alpha=0.5, k=2.0),
        ((3, 2, 4),),
        lambda p, x: (
            x / (2 + 0.5 / 3 * sum(np.pad(x**2, [(0, 0)] * 2 + [(1, 1)])[..., i : i + 4] for i in range(3))) ** 0.75
        ),
    ),
    "WeightNorm": Specimen("WeightNorm", as_wide_as_x(WeightNorm(Dense(3))), ((3, 4),), weight_normed),
    "SpectralNorm": Specimen(
        "SpectralNorm",
        settled(as_wide_as_x(SpectralNorm(Dense(3))), at_the_corner),
        ((3, 4),),
        lambda p, x: x @ (p["kernel"] / p["kernel"][0, 0]) + p["bias"],
        {"train": False},  # in training, the derivative treats the vectors as constants, unlike finite differences
    ),
    "Dropout": Specimen("Dropout", Dropout(0.4), ((3, 4),), lambda p, x: x),
    "AlphaDropout": Specimen("AlphaDropout", AlphaDropout(0.4), ((3, 4),), lambda p, x: x),
    "FeatureDropout": Specimen("FeatureDropout", FeatureDropout(0.4, spatial=1), ((3, 2, 4),), lambda p, x: x),
    "StochasticDepth": Specimen(
        "StochasticDepth", Residual(jnp.sin, StochasticDepth(0.4, spatial=0)), ((3, 4),), lambda p, x: x + np.sin(x)
    ),
}
