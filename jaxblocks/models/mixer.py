r"""The MLP-Mixer: MLPs over the tokens of an image alternate with MLPs over its channels.

Axis letters: ``...`` batch, h and w height and width, c channels, n tokens.
"""

import functools

import jax
import jax.numpy as jnp

from jaxblocks import initializers
from jaxblocks.activations import gelu
from jaxblocks.checks.expectations import PositiveInt
from jaxblocks.core.pairs import Layer, builder
from jaxblocks.layers.combinators import Repeat, Serial, Wire
from jaxblocks.layers.dense import Dense
from jaxblocks.layers.norm import LayerNorm
from jaxblocks.models.image_tokens import Patches, as_tokens, mean_of_tokens
from jaxblocks.models.transformer_block import TransformerMLP

__all__ = ["MLPMixer"]


@builder
def MLPMixer(
    *,
    classes: PositiveInt = 1000,
    patch_size: PositiveInt = 16,
    features: PositiveInt = 768,
    layers: PositiveInt = 12,
    token_hidden: PositiveInt = 384,
    hidden: PositiveInt = 3072,
) -> Layer:
    r"""An MLP-Mixer; with the defaults, Mixer-B/16 with 59,880,472 params for 224x224 images.

    A linear map turns each patch into a token. It is followed by ``layers`` blocks, stacked by `Repeat`: $x +
    MLP(N(x)ᵀ)ᵀ$ mixes tokens in the same way for every channel, and $x + MLP(N(x))$
    mixes channels in the same way for every token. The last layers are a norm $N$, the mean of all tokens and a
    dense layer.

    Args:
        classes: the number of logits.
        patch_size: height and width of a patch, divisors of those of the images.
        features: the number of features of a token.
        layers: the number of blocks.
        token_hidden, hidden: features inside the MLPs over tokens and over channels.

    Shapes: images ``(..., h, w, c)`` to logits ``(..., classes)``; h and w must be those at ``init``.

    Raises:
        ValueError: for images of another size than at ``init``, or of one that is no multiple of ``patch_size``.

    >>> x = jax.ShapeDtypeStruct((224, 224, 3), jnp.float32)
    >>> count_params(jax.eval_shape(MLPMixer().init, jax.random.key(0), x))
    59880472

    Source: Tolstikhin et al. 2021, MLP-Mixer: an all-MLP architecture for vision, table 1, arXiv:2105.01601.
    """
    norm = functools.partial(LayerNorm, epsilon=1e-6)

    def mix(f, x):
        x = x + f.token_mlp(f.token_mlp_norm(x))
        return x + f.mlp(f.mlp_norm(x))

    block = Wire(
        mix, token_mlp_norm=norm(), token_mlp=_TokenMLP(token_hidden), mlp_norm=norm(), mlp=_MLP(hidden, features)
    )
    return Serial(  # type: ignore[return-value]
        patches=Patches(features, patch_size),  # (..., h / patch, w / patch, features)
        flatten=as_tokens,  # (..., n, features)
        blocks=Repeat(block, layers),
        norm=norm(),
        pool=mean_of_tokens,  # (..., features)
        out=Dense(classes),
    )


def _MLP(hidden, features):
    # Two variances, since the gelu follows only the first of both maps.
    kernel_init = initializers.for_activation(gelu)
    return TransformerMLP(hidden, features, kernel_init=kernel_init, down_kernel_init=initializers.lecun_normal())


def _TokenMLP(hidden):
    """An MLP on the transposed tokens (..., features, n), which keeps their number."""

    def init(key, x):
        return _MLP(hidden, x.shape[-2]).init(key, jax.eval_shape(jnp.matrix_transpose, x))

    def apply(params, x):
        return _MLP(hidden, x.shape[-2]).apply(params, x.mT).mT

    return Layer(init, apply)
