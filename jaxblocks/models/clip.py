r"""CLIP: images and texts as vectors in one space.

Axis letters: ``...`` batch, h and w height and width, c channels; ``time`` of a text; ``d`` of the common space.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxblocks import initializers
from jaxblocks.activations import sigmoid
from jaxblocks.backend.linear_maps import along_batch
from jaxblocks.backend.quotients import unit_vector
from jaxblocks.checks.expectations import Epsilon, NonNegativeInt, PositiveInt, Rate, check_params, checked
from jaxblocks.core.pairs import Layer, LayerLike, builder
from jaxblocks.layers.combinators import Repeat, Wire
from jaxblocks.layers.dense import Dense
from jaxblocks.layers.embedding import Embedding
from jaxblocks.layers.norm import LayerNorm
from jaxblocks.layers.positions import LearnedPositions
from jaxblocks.models.class_heads import check_texts
from jaxblocks.models.image_tokens import ClassToken, Patches, SelfAttention, TokenPositions, as_tokens
from jaxblocks.models.transformer_block import TransformerBlock, TransformerMLP

__all__ = ["CLIP", "CLIPImage", "CLIPText", "quick_gelu"]


@checked
def quick_gelu(x: Float[Array, "..."]) -> Float[Array, "..."]:
    r"""The approximation $x σ(1.702 x)$ of GELU in CLIP, entry by entry.

    >>> print(quick_gelu(jnp.array([0.0, 10.0])))
    [ 0. 10.]

    Source: Hendrycks and Gimpel 2016, Gaussian error linear units, section 2, arXiv:1606.08415.
    """
    return x * sigmoid(1.702 * x)


@builder
def CLIP(
    *,
    features: PositiveInt = 512,
    vocab_size: PositiveInt = 49_408,
    max_length: PositiveInt = 77,
    end_token: NonNegativeInt | None = None,
    text_layers: PositiveInt = 12,
    text_heads: PositiveInt = 8,
    text_features: PositiveInt = 512,
    text_hidden: PositiveInt = 2048,
    patch_size: PositiveInt = 32,
    image_layers: PositiveInt = 12,
    image_heads: PositiveInt = 12,
    image_features: PositiveInt = 768,
    image_hidden: PositiveInt = 3072,
    activation: Callable = quick_gelu,
    epsilon: Epsilon = 1e-5,
    text_dropout: Rate = 0.0,
    image_dropout: Rate = 0.0,
) -> Layer[tuple[Array, Array, Array]]:
    r"""A pair of transformers for images and texts; with the defaults, CLIP ViT-B/32 with 151,277,313 params.

    They are `CLIPImage` and `CLIPText` with ``projection=features``, whose params are ``params["image"]`` and
    ``params["text"]``; here their vectors are divided by their lengths. The logits of all pairs in a batch are
    ``scale[:, None] * images @ texts.T``.

    Args:
        features: d, of the common space.
        vocab_size, max_length: the number of tokens, and the maximal length of a text.
        end_token: the token at whose first place a text is read; by default the largest token of each text,
            since end-of-text is the last id of CLIP's vocabulary.
        text_layers, text_heads, text_features, text_hidden: blocks, heads, features of a token and inside the MLP.
        patch_size: height and width of a patch, divisors of those of the images.
        image_layers, image_heads, image_features, image_hidden: the same for images.
        activation: of the MLPs.
        epsilon: of the layer norms.
        text_dropout, image_dropout: the rates for the weights of attention, in training.

    Shapes: images ``(..., h, w, c)``, of the size at ``init``, and tokens ``(..., time)`` to vectors of length 1
    ``(..., d)``, ``(..., d)`` and the scale of the logits ``(...)``, which is the same for all images.

    >>> sizes = dict(text_layers=1, text_heads=2, text_features=4, text_hidden=8)
    >>> sizes |= dict(image_layers=1, image_heads=2, image_features=4, image_hidden=8)
    >>> net = CLIP(features=3, vocab_size=5, patch_size=2, **sizes)
    >>> images, tokens = jnp.ones((2, 4, 4, 3)), jnp.array([[1, 2, 4], [3, 4, 0]])
    >>> # jax.jit(net.init) makes arrays
    >>> params = jax.eval_shape(net.init, jax.random.key(0), images, tokens)
    >>> # scale[:, None] * image @ text.T
    >>> image, text, scale = jax.eval_shape(net.apply, params, images, tokens)
    >>> image.shape, text.shape, scale.shape
    ((2, 3), (2, 3), (2,))

    Source: Radford et al. 2021, Learning transferable visual models from natural language supervision, section 2.3 to
    2.5, arXiv:2103.00020, and its published code.
    """
    shared: dict[str, Any] = dict(activation=activation, epsilon=epsilon, projection=features)
    text = CLIPText(
        vocab_size=vocab_size, max_length=max_length, end_token=end_token, layers=text_layers, heads=text_heads,
        features=text_features, hidden=text_hidden, dropout=text_dropout, **shared,
    )  # fmt: skip
    image = CLIPImage(
        patch_size=patch_size, layers=image_layers, heads=image_heads, features=image_features, hidden=image_hidden,
        dropout=image_dropout, **shared,
    )  # fmt: skip

    def forward(f, images, tokens):
        image = unit_vector(f.image(images))
        # One number for all images, repeated along the batch axes, so that outputs can be split like the images.
        return image, unit_vector(f.text(tokens)), along_batch(f.scale(), image[..., 0])

    return Wire(forward, image=image, text=text, scale=_Scale())  # type: ignore[return-value]


@builder
def CLIPText(
    *,
    vocab_size: PositiveInt = 49_408,
    max_length: PositiveInt = 77,
    end_token: NonNegativeInt | None = None,
    layers: PositiveInt = 12,
    heads: PositiveInt = 8,
    features: PositiveInt = 512,
    hidden: PositiveInt = 2048,
    projection: PositiveInt | None = None,
    activation: Callable = quick_gelu,
    epsilon: Epsilon = 1e-5,
    dropout: Rate = 0.0,
) -> Layer[Any]:
    r"""The transformer for texts of `CLIP`; with the defaults, 63,165,952 params.

    It consists of causal blocks $x + a(N(x))$, then $x + m(N(x))$, and a norm. The features at the end token
    summarize the text.

    Args:
        vocab_size, max_length, end_token, activation, epsilon: as in `CLIP`.
        layers, heads, features, hidden: blocks, heads, features of a token and inside the MLP.
        projection: the features of the vector of the text, a map without bias of its summary; ``None`` returns the
            features of all tokens and the summary.
        dropout: the rate for the weights of attention, in training.

    Shapes: tokens ``(..., time)`` to ``(..., projection)``; without a projection to ``(..., time, features)`` and
    ``(..., features)``.

    >>> net = CLIPText(vocab_size=5, layers=1, heads=2, features=4, hidden=8)
    >>> tokens = jnp.array([[1, 2, 4], [3, 4, 0]])
    >>> params = jax.eval_shape(net.init, jax.random.key(0), tokens)
    >>> features, summary = jax.eval_shape(net.apply, params, tokens)
    >>> features.shape, summary.shape
    ((2, 3, 4), (2, 4))

    Source: Radford et al. 2021, section 2.4, arXiv:2103.00020.
    """

    def encode(f, tokens):
        check_texts(tokens)
        x = f.norm(f.blocks(f.positions(f.tokens(tokens))))  # (..., time, features)
        end = jnp.argmax(tokens if end_token is None else tokens == end_token, -1)
        # The features at the end token summarize the text, since causal attention shows it all tokens before.
        summary = jnp.take_along_axis(x, end[..., None, None], -2)[..., 0, :]
        return f.out(summary) if projection else (x, summary)

    norm = functools.partial(LayerNorm, epsilon=epsilon)
    return Wire(
        encode,
        tokens=Embedding(vocab_size, features, embedding_init=initializers.normal(0.02)),
        positions=LearnedPositions(max_length, embedding_init=initializers.normal(0.01)),
        blocks=_blocks(layers, heads, features, hidden, True, dropout, activation, norm),
        norm=norm(),
        **({"out": Dense(projection, use_bias=False)} if projection else {}),
    )  # type: ignore[return-value]


@builder
def CLIPImage(
    *,
    patch_size: PositiveInt = 32,
    layers: PositiveInt = 12,
    heads: PositiveInt = 12,
    features: PositiveInt = 768,
    hidden: PositiveInt = 3072,
    projection: PositiveInt | None = None,
    activation: Callable = quick_gelu,
    epsilon: Epsilon = 1e-5,
    dropout: Rate = 0.0,
) -> Layer[Any]:
    r"""The transformer for images of `CLIP`; with the defaults, 87,456,000 params for images of 224 x 224.

    As in `ViT`, patches are tokens after a class token; there is a norm before the blocks, too. The class token after
    the blocks and a norm summarizes the image.

    Args:
        patch_size: height and width of a patch, divisors of those of the images.
        layers, heads, features, hidden: blocks, heads, features of a token and inside the MLP.
        projection: the features of the vector of the image, a map without bias of its summary; ``None`` returns the
            features of all tokens, without the last norm, and the summary.
        activation, epsilon: as in `CLIP`.
        dropout: the rate for the weights of attention, in training.

    Shapes: images ``(..., h, w, c)``, of the size at ``init``, to ``(..., projection)``; without a projection to
    ``(..., 1 + patches, features)`` and ``(..., features)``.

    >>> net = CLIPImage(patch_size=2, layers=1, heads=2, features=4, hidden=8)
    >>> images = jnp.ones((2, 4, 4, 3))
    >>> params = jax.eval_shape(net.init, jax.random.key(0), images)
    >>> features, summary = jax.eval_shape(net.apply, params, images)
    >>> features.shape, summary.shape
    ((2, 5, 4), (2, 4))

    Source: Radford et al. 2021, section 2.4, arXiv:2103.00020.
    """

    def encode(f, images):
        tokens = f.class_token(as_tokens(f.patches(images)))
        x = f.blocks(f.embedding_norm(f.positions(tokens)))
        summary = f.norm(x[..., 0, :])
        return f.out(summary) if projection else (x, summary)

    norm = functools.partial(LayerNorm, epsilon=epsilon)
    return Wire(
        encode,
        patches=Patches(features, patch_size, use_bias=False),
        class_token=ClassToken(),
        positions=TokenPositions(),
        embedding_norm=norm(),  # before the blocks too, unlike in ViT
        blocks=_blocks(layers, heads, features, hidden, False, dropout, activation, norm),
        norm=norm(),
        **({"out": Dense(projection, use_bias=False)} if projection else {}),
    )  # type: ignore[return-value]


def _blocks(layers, heads, features, hidden, causal, dropout, activation, norm) -> LayerLike:
    # Without a mask: images have no padding, and in a causal text the padding follows the end token.
    attention = SelfAttention(heads, causal=causal, dropout=dropout)
    mlp = TransformerMLP(hidden, features, activation=activation)
    return Repeat(TransformerBlock(attention=attention, mlp=mlp, norm=norm), layers)


def _Scale() -> Layer:
    """The exponential of a learned number, at first 1 / 0.07."""

    def init(key):
        # The scale of the logits is learned by its logarithm, so that it stays positive.
        return {"log_scale": jnp.log(jnp.float32(1 / 0.07))}

    def apply(params):
        check_params(params, log_scale=())
        return jnp.exp(params["log_scale"])

    return Layer(init, apply)
