r"""The vision transformer: an image as a sequence of patches.

Axis letters: ``...`` batch, h and w height and width, c channels, n tokens.
"""

from typing import Literal

import jax.numpy as jnp

from jaxblocks import initializers
from jaxblocks.activations import gelu
from jaxblocks.checks import describe, require_key
from jaxblocks.core import Layer, builder, require_params
from jaxblocks.layers.combinators import Repeat, Residual, Serial
from jaxblocks.layers.conv import Conv
from jaxblocks.layers.dense import Dense
from jaxblocks.layers.dropout import Dropout
from jaxblocks.layers.norm import LayerNorm
from jaxblocks.models.tokens import SelfAttention, as_tokens, mean_of_tokens

__all__ = ["ViT"]


@builder
def ViT(
    *,
    classes: int = 1000,
    patch: int = 16,
    features: int = 768,
    layers: int = 12,
    heads: int = 12,
    hidden: int = 3072,
    pool: Literal["token", "mean"] = "token",
    dropout: float | int = 0.0,
) -> Layer:
    r"""A vision transformer; with the defaults, ViT-B/16 with 86,567,656 params for 224x224 images.

    Patches become tokens by one linear map; a class token may stand before them, and a learned place is added to each.
    Then come ``layers`` times :math:`x + \mathrm{Attention}(N(x))` and :math:`x + \mathrm{MLP}(N(x))`, stacked by
    `Repeat`, a last norm :math:`N`, and a dense layer on the class token or on the mean of all tokens.

    Args:
        classes: how many logits.
        patch: a patch has ``patch`` times ``patch`` pixels; what is left over at the right and below is cut off.
        features: of a token.
        layers: how many blocks.
        heads: of attention; they divide ``features``.
        hidden: features between the two layers of a block's MLP (GELU).
        pool: ``"token"`` reads the class token; ``"mean"`` does without one.
        dropout: of tokens' values after places are added, and after every dense layer but the queries', keys' and values'.

    The paper's other sizes are ``features, layers, heads, hidden`` = 1024, 24, 16, 4096 (L) and 1280, 32, 16, 5120 (H).
    Side inputs: ``train`` and ``key`` with ``dropout`` above 0.

    Shapes: images ``(..., h, w, c)`` to logits ``(..., classes)``; h and w must stay what they were at ``init``, since
    there is a learned place for each patch.

    Raises:
        ValueError: for images of another size than at ``init``, or smaller than a patch.

    >>> params = jax.eval_shape(ViT().init, jax.random.key(0), jax.ShapeDtypeStruct((224, 224, 3), jnp.float32))
    >>> count_params(params)
    86567656

    Source: Dosovitskiy et al. 2021, An image is worth 16x16 words, section 3.1 and appendix B.1.
    """
    if pool not in ("token", "mean"):
        raise ValueError(f"ViT expects pool to be 'token' or 'mean', but {pool!r} came.")
    dropped = {"dropout": Dropout(dropout)} if dropout else {}
    dropped_twice = {"drop_1": Dropout(dropout)} if dropout else {}
    block = Serial(
        look=Residual(norm=_norm(), attention=SelfAttention(heads), **dropped),
        think=Residual(
            norm=_norm(), dense_1=Dense(hidden), activation=gelu, **dropped_twice, dense_2=Dense(features), **dropped
        ),
    )
    return Serial(
        patches=Conv(features, (patch, patch), stride=patch),  # (..., h / patch, w / patch, features)
        tokens=as_tokens,  # (..., n, features)
        **({"token": _ClassToken()} if pool == "token" else {}),  # one more in front
        places=_Places(),
        **dropped,
        blocks=Repeat(block, layers),
        norm=_norm(),
        pool=_first if pool == "token" else mean_of_tokens,  # (..., features)
        out=Dense(classes),
    )


def _norm():
    return LayerNorm(epsilon=1e-6)


def _first(x):
    return x[..., 0, :]


def _ClassToken():
    """A learned token in front of the others: (..., n, features) to (..., n + 1, features)."""

    def init(key, x):
        return {"token": jnp.zeros((1, x.shape[-1]), jnp.float32)}

    def apply(params, x):
        require_params("ViT's class token", params, "token")
        token = jnp.broadcast_to(params["token"].astype(x.dtype), (*x.shape[:-2], 1, x.shape[-1]))
        return jnp.concatenate([token, x], -2)

    return Layer(init, apply)


def _Places():
    """A learned row for each place, added to the token there."""

    def init(key, x):
        require_key("ViT.init", key)
        return {"place": initializers.normal(0.02)(key, x.shape[-2:], jnp.float32)}

    def apply(params, x):
        require_params("ViT's places", params, "place")
        place = params["place"]
        if place.shape != x.shape[-2:]:
            raise ValueError(
                f"ViT expects images of the size that it was initialized with, whose tokens are {describe(place)}, but "
                f"tokens {describe(x)} came; resize the images, or call init for this size."
            )
        return x + jnp.broadcast_to(place.astype(x.dtype), x.shape)

    return Layer(init, apply)
