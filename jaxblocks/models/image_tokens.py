"""Images as sequences of tokens, for image models that use attention.

Axis letters: ``...`` batch; h and w height and width, n = h w tokens, c channels.
"""

import math
from typing import Unpack, cast

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxblocks import initializers
from jaxblocks.backend.linear_maps import along_batch
from jaxblocks.checks.errors import describe, require
from jaxblocks.checks.expectations import PositiveInt, check_params, checked
from jaxblocks.core.pairs import ArrayOrShape, Layer, builder
from jaxblocks.layers.attention import Attention
from jaxblocks.layers.attention.multi_head import AttentionOptions
from jaxblocks.layers.conv import Conv
from jaxblocks.layers.reshaping import resize
from jaxblocks.models.side_inputs import rename_side_inputs

__all__ = [
    "ClassToken",
    "InterpolatedPositions",
    "Patches",
    "SelfAttention",
    "TokenPositions",
    "as_tokens",
    "mean_of_tokens",
]


_init = initializers.normal(0.02)  # of positions


@builder
def Patches(features: PositiveInt, patch_size: PositiveInt, *, use_bias: bool = True) -> Layer:
    """A linear map of each patch, ``(..., h, w, c)`` to ``(..., h / patch_size, w / patch_size, features)``.

    Params are those of `Conv`.

    Args:
        features: of a patch.
        patch_size: height and width of a patch.
        use_bias: as in `Conv`.

    Raises:
        ValueError: for an image whose height or width is no multiple of ``patch_size``.

    >>> layer = Patches(2, 4)
    >>> layer.init(jax.random.key(0), jnp.zeros((9, 8, 1)))
    Traceback (most recent call last):
    ...
    ValueError: Patches expected images whose height and width are multiples of 4, got float32 (9, 8, 1); crop or \
resize them, for example to (8, 8).

    Source: Dosovitskiy et al. 2021, An image is worth 16x16 words, section 3.1, arXiv:2010.11929.
    """
    conv = Conv(features, (patch_size, patch_size), stride=patch_size, use_bias=use_bias)

    def check_size(x):
        sizes = x.shape[-3:-1]
        size = tuple(max(n // patch_size, 1) * patch_size for n in sizes)
        expected = f"images whose height and width are multiples of {patch_size}"
        require(sizes == size, expected, x, f"crop or resize them, for example to {size}")

    def init(key, x: Float[ArrayOrShape, "*batch h w c"]):
        check_size(x)
        return conv.init(key, x)

    def apply(params, x: Float[Array, "*batch h w c"]):
        check_size(x)
        return conv.apply(params, x)

    return Layer(init, apply)


@checked
def as_tokens(x: Float[Array, "*batch h w c"]) -> Float[Array, "*batch n c"]:
    """The pixels of an image (or of a grid of patches) as tokens, row by row.

    >>> as_tokens(jnp.zeros((5, 4, 3, 2))).shape
    (5, 12, 2)
    """
    return x.reshape(*x.shape[:-3], x.shape[-3] * x.shape[-2], x.shape[-1])


@checked
def mean_of_tokens(x: Float[Array, "*batch n c"]) -> Float[Array, "*batch c"]:
    """The mean of all tokens.

    >>> print(mean_of_tokens(jnp.array([[1.0, 2.0], [3.0, 4.0]])))
    [2. 3.]
    """
    return x.mean(-2)


@builder
def SelfAttention(heads: PositiveInt, **options: Unpack[AttentionOptions]) -> Layer:
    """Self-attention of tokens without a mask, since no token is padding.

    Args:
        heads, options: as in `Attention`.

    >>> net = SelfAttention(2)
    >>> side_inputs(net)
    ()
    """
    # Taken away, not only left out: combinators then report a mask as a side input that the net does not read.
    return cast(Layer, rename_side_inputs(Attention(heads, **options), mask=None, segment_ids=None))


@builder
def ClassToken() -> Layer:
    """A learned token before the others, ``(..., n, c)`` to ``(..., n + 1, c)``.

    Params are ``{"embedding": (1, c)}``, zeros at ``init``.

    >>> layer = ClassToken()
    >>> layer.apply({"embedding": jnp.ones((1, 2))}, jnp.zeros((3, 2))).shape
    (4, 2)

    Source: Dosovitskiy et al. 2021, An image is worth 16x16 words, equation (1), arXiv:2010.11929.
    """

    def init(key, x: Float[ArrayOrShape, "*batch n c"]):
        return {"embedding": jnp.zeros((1, x.shape[-1]), jnp.float32)}

    def apply(params, x: Float[Array, "*batch n c"]):
        check_params(params, embedding=(1, x.shape[-1]))
        token = along_batch(params["embedding"], x[..., :1, :])
        return jnp.concatenate([token, x], -2)

    return Layer(init, apply)


@builder
def TokenPositions() -> Layer:
    """A learned row for each position, added to the token there; the number of tokens is that at ``init``.

    Params are ``{"embedding": (n, c)}``. Unlike `LearnedPositions` it rejects shorter sequences, since the positions of
    a smaller image are not the first positions of a larger one.

    Raises:
        ValueError: for another number of tokens than at ``init``.

    >>> layer = TokenPositions()
    >>> layer.apply({"embedding": jnp.ones((3, 2))}, jnp.zeros((5, 3, 2))).shape
    (5, 3, 2)

    Source: Dosovitskiy et al. 2021, equation (1), arXiv:2010.11929.
    """

    def init(key, x: Float[ArrayOrShape, "*batch n c"]):
        return {"embedding": _init(key, x.shape[-2:], jnp.float32)}

    def apply(params, x: Float[Array, "*batch n c"]):
        # Any shape is accepted here; the next check names the number of tokens.
        check_params(params, embedding=(None, None))
        embedding = params["embedding"]
        expected = f"as many tokens as at init, {describe(embedding)}"
        require(embedding.shape == x.shape[-2:], expected, x, "resize the images, or call init for this size")
        return x + along_batch(embedding, x)

    return Layer(init, apply)


@builder
def InterpolatedPositions() -> Layer:
    """`TokenPositions` for images of any size: the table of the grid at ``init`` is resized to that of the image.

    Rows of tokens before those of the grid, such as a class token, are kept. The grid at ``init`` is a square. Resizing
    is that of `resize` with ``method="cubic"`` and without antialiasing, as in PyTorch.

    Shapes: tokens ``(..., n, c)``, and the patches of the image ``(..., h, w, c)``, whose shape is read, to ``(..., n,
    c)``.

    Raises:
        ValueError: where the grid at ``init`` is not a square, or for other tokens before the grid than there.

    >>> layer = InterpolatedPositions()
    >>> tokens, grid = jnp.zeros((7, 2)), jnp.zeros((2, 3, 2))
    >>> layer.apply({"embedding": jnp.ones((17, 2))}, tokens, grid).shape
    (7, 2)

    Source: Oquab et al. 2023, DINOv2, arXiv:2304.07193, and its published code.
    """

    def init(key, x: Float[ArrayOrShape, "*batch n c"], grid: Float[ArrayOrShape, "*batch h w c"]):
        repair = "call init with a square image"
        require(grid.shape[-3] == grid.shape[-2], "a square grid of patches at init", grid, repair)
        return {"embedding": _init(key, x.shape[-2:], jnp.float32)}

    def apply(params, x: Float[Array, "*batch n c"], grid: Float[Array, "*batch h w c"]):
        check_params(params, embedding=(None, x.shape[-1]))
        embedding, (h, w) = params["embedding"], grid.shape[-3:-1]
        others = x.shape[-2] - h * w
        side = math.isqrt(max(embedding.shape[0] - others, 0))
        expected = f"as many tokens before the grid {(h, w)} as rows before a square in {describe(embedding)}"
        fits = others >= 0 and 0 < side**2 == embedding.shape[0] - others
        require(fits, expected, x, "pass the params that init made for these tokens")
        table = embedding[others:].reshape(side, side, embedding.shape[-1])
        table = resize(table, (h, w), method="cubic", antialias=False)
        embedding = jnp.concatenate([embedding[:others], table.reshape(h * w, table.shape[-1])])
        return x + along_batch(embedding, x)

    return Layer(init, apply)
