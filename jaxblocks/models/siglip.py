r"""SigLIP: images and texts as vectors in one space, trained with a sigmoid for each pair.

Axis letters: ``...`` batch, h and w height and width, c channels; ``time`` of a text; ``d`` of the common space.
"""

import functools
from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array

from jaxblocks import initializers
from jaxblocks.activations import gelu
from jaxblocks.backend.linear_maps import along_batch
from jaxblocks.backend.quotients import unit_vector
from jaxblocks.checks.expectations import Epsilon, PositiveInt, Rate, check_params
from jaxblocks.core.pairs import Layer, builder
from jaxblocks.layers.combinators import Repeat, Serial, Wire
from jaxblocks.layers.conv import Conv
from jaxblocks.layers.dense import Dense
from jaxblocks.layers.embedding import Embedding
from jaxblocks.layers.norm import LayerNorm
from jaxblocks.layers.positions import LearnedPositions
from jaxblocks.models.class_heads import check_texts
from jaxblocks.models.image_tokens import ClassToken, SelfAttention, TokenPositions, as_tokens
from jaxblocks.models.transformer_block import TransformerBlock, TransformerMLP

__all__ = ["SigLIP"]


@builder
def SigLIP(
    *,
    vocab_size: PositiveInt = 32_000,
    max_length: PositiveInt = 64,
    text_layers: PositiveInt = 12,
    text_heads: PositiveInt = 12,
    text_features: PositiveInt = 768,
    text_hidden: PositiveInt = 3072,
    patch_size: PositiveInt = 16,
    image_layers: PositiveInt = 12,
    image_heads: PositiveInt = 12,
    image_features: PositiveInt = 768,
    image_hidden: PositiveInt = 3072,
    activation: Callable = functools.partial(gelu, approximate=True),
    epsilon: Epsilon = 1e-6,
    text_dropout: Rate = 0.0,
    image_dropout: Rate = 0.0,
) -> Layer[tuple[Array, Array, Array, Array]]:
    r"""A pair of transformers for images and texts; with the defaults, SigLIP-base with 203,155,970 params at 224x224.

    Both consist of blocks $x + a(N(x))$, then $x + m(N(x))$, with attention in both directions. An image is the result
    of attention from one learned query to all patches, and of an MLP. A text is the last position, mapped by a dense
    layer. Both are divided by their lengths. The logits of all pairs in a batch are ``scale[:, None] * images @
    texts.T + bias[:, None]``, and each pair has a `sigmoid` of its own.

    Args:
        vocab_size, max_length: the number of tokens, and the maximal length of a text.
        text_layers, text_heads, text_features, text_hidden: blocks, heads, features of a token and inside the MLP.
        patch_size: height and width of a patch; the remainder at the right and at the bottom is cut off, since a
            published model has patches of 14 in images of 384.
        image_layers, image_heads, image_features, image_hidden: the same for images; d is ``image_features``.
        activation: of the MLPs.
        epsilon: of the layer norms.
        text_dropout, image_dropout: the rates for the weights of attention, in training.

    Shapes: images ``(..., h, w, c)``, of the size at ``init``, and tokens ``(..., time)`` to vectors of length 1
    ``(..., d)``, ``(..., d)``, and scale and bias of the logits, ``(...)`` each, which are the same for all images.
    Padding of texts counts like other tokens: pad them to ``max_length``, as in the published training.

    >>> sizes = dict(text_layers=1, text_heads=2, text_features=4, text_hidden=8)
    >>> sizes |= dict(image_layers=1, image_heads=2, image_features=4, image_hidden=8)
    >>> net = SigLIP(vocab_size=5, max_length=3, patch_size=2, **sizes)
    >>> images, tokens = jnp.ones((2, 4, 4, 3)), jnp.array([[1, 2, 4], [3, 4, 0]])
    >>> # jax.jit(net.init) makes arrays
    >>> params = jax.eval_shape(net.init, jax.random.key(0), images, tokens)
    >>> image, text, scale, bias = jax.eval_shape(net.apply, params, images, tokens)
    >>> image.shape, text.shape, scale.shape, bias.shape
    ((2, 4), (2, 4), (2,), (2,))

    Source: Zhai et al. 2023, Sigmoid loss for language image pre-training, arXiv:2303.15343, and its published code.
    """
    norm = functools.partial(LayerNorm, epsilon=epsilon)

    def blocks(layers, heads, width, hidden, dropout) -> Layer:
        mlp = TransformerMLP(hidden, width, activation=activation)
        return Repeat(TransformerBlock(attention=SelfAttention(heads, dropout=dropout), mlp=mlp, norm=norm), layers)

    def summarize(f, x):
        y = f.attention(f.query(x)[..., :1, :], x)  # the learned query attends to all patches: (..., 1, features)
        return (y + f.mlp(f.norm(y)))[..., 0, :]

    head = dict(query=ClassToken(), attention=SelfAttention(image_heads), norm=norm())
    head["mlp"] = TransformerMLP(image_hidden, image_features, activation=activation)
    image = Serial(
        patches=Conv(image_features, (patch_size, patch_size), stride=patch_size),
        flatten=as_tokens,
        positions=TokenPositions(),
        blocks=blocks(image_layers, image_heads, image_features, image_hidden, image_dropout),
        norm=norm(),
        head=Wire(summarize, **head),
    )
    text = Serial(
        tokens=Embedding(vocab_size, text_features, embedding_init=initializers.normal(0.02)),
        positions=LearnedPositions(max_length, embedding_init=initializers.normal(0.01)),
        blocks=blocks(text_layers, text_heads, text_features, text_hidden, text_dropout),
        norm=norm(),
        last=lambda x: x[..., -1, :],
        out=Dense(image_features),
    )

    def forward(f, images, tokens):
        check_texts(tokens)
        image, (scale, bias) = unit_vector(f.image(images)), f.logits()
        # One number for all images, repeated along the batch axes, so that outputs can be split like the images.
        repeated = (along_batch(number, image[..., 0]) for number in (scale, bias))
        return image, unit_vector(f.text(tokens)), *repeated

    return Wire(forward, image=image, text=text, logits=_Logits())  # type: ignore[return-value]


def _Logits() -> Layer[tuple[Array, Array]]:
    """The exponential of a learned number, at first 10, and a learned number, at first -10."""

    def init(key):
        return {"log_scale": jnp.log(jnp.float32(10)), "bias": jnp.float32(-10)}

    def apply(params):
        check_params(params, log_scale=(), bias=())
        return jnp.exp(params["log_scale"]), params["bias"]

    return Layer(init, apply)
