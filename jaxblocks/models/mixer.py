r"""The MLP-Mixer: MLPs along channels take turns with MLPs along places.

Axis letters: ``...`` batch, h and w height and width, c channels, n tokens.
"""

import jax
import jax.numpy as jnp

from jaxblocks.activations import gelu
from jaxblocks.core import Layer, builder
from jaxblocks.layers.combinators import Repeat, Residual, Serial
from jaxblocks.layers.conv import Conv
from jaxblocks.layers.dense import Dense
from jaxblocks.layers.mlp import MLP
from jaxblocks.layers.norm import LayerNorm
from jaxblocks.models.tokens import as_tokens, mean_of_tokens

__all__ = ["MLPMixer"]


@builder
def MLPMixer(
    *,
    classes: int = 1000,
    patch: int = 16,
    features: int = 768,
    layers: int = 12,
    token_hidden: int = 384,
    channel_hidden: int = 3072,
) -> Layer:
    r"""An MLP-Mixer; with the defaults, Mixer-B/16 with 59,880,472 params for 224x224 images.

    Patches become tokens by one linear map. Then come ``layers`` times :math:`x + \mathrm{MLP}(N(x)^\top)^\top`, which
    mixes places, the same for every channel, and :math:`x + \mathrm{MLP}(N(x))`, which mixes channels, the same at
    every place; they are stacked by `Repeat`. A last norm :math:`N`, the mean of all tokens and a dense layer follow.

    Args:
        classes: how many logits.
        patch: a patch has ``patch`` times ``patch`` pixels; what is left over at the right and below is cut off.
        features: of a token.
        layers: how many pairs of MLPs.
        token_hidden, channel_hidden: features between the two layers of the MLPs (GELU) along places and channels.

    Shapes: images ``(..., h, w, c)`` to logits ``(..., classes)``; h and w must stay what they were at ``init``.

    Raises:
        ValueError: for images of another size than at ``init``, or smaller than a patch.

    >>> params = jax.eval_shape(MLPMixer().init, jax.random.key(0), jax.ShapeDtypeStruct((224, 224, 3), jnp.float32))
    >>> count_params(params)
    59880472

    Source: Tolstikhin et al. 2021, MLP-Mixer: an all-MLP architecture for vision, table 1.
    """
    block = Serial(
        places=Residual(norm=_norm(), mlp=_AlongPlaces(token_hidden)),
        channels=Residual(norm=_norm(), mlp=MLP(channel_hidden, features, activation=gelu)),
    )
    return Serial(
        patches=Conv(features, (patch, patch), stride=patch),  # (..., h / patch, w / patch, features)
        tokens=as_tokens,  # (..., n, features)
        blocks=Repeat(block, layers),
        norm=_norm(),
        mean=mean_of_tokens,  # (..., features)
        out=Dense(classes),
    )


def _AlongPlaces(hidden):
    """An MLP that keeps the number of places, on the transposed tokens (..., features, n)."""

    def mlp(x):
        return MLP(hidden, x.shape[-2], activation=gelu)

    def init(key, x):
        return mlp(x).init(key, jax.eval_shape(jnp.matrix_transpose, x))

    def apply(params, x):
        return mlp(x).apply(params, x.mT).mT

    return Layer(init, apply)


def _norm():
    return LayerNorm(epsilon=1e-6)
