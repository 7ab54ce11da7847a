"""Images as sequences of tokens, for the models of images that use attention.

Axis letters: ``...`` batch; h and w height and width, n = h w tokens, c channels.
"""

from typing import Any

from jaxtyping import Array, Float

from jaxblocks.core import Layer, builder
from jaxblocks.layers.attention import Attention
from jaxblocks.models.side_inputs import RenameSideInputs

__all__ = ["SelfAttention", "as_tokens", "mean_of_tokens"]


def as_tokens(x: Float[Array, "*batch h w c"]) -> Float[Array, "*batch n c"]:
    """A token for each pixel of an image (or of a grid of patches), row by row.

    >>> as_tokens(jnp.zeros((5, 4, 3, 2))).shape
    (5, 12, 2)
    """
    return x.reshape(*x.shape[:-3], -1, x.shape[-1])


def mean_of_tokens(x: Float[Array, "*batch n c"]) -> Float[Array, "*batch c"]:
    """One vector for all tokens.

    >>> print(mean_of_tokens(jnp.array([[1.0, 2.0], [3.0, 4.0]])))
    [2. 3.]
    """
    return x.mean(-2)


@builder
def SelfAttention(heads: int, **options: Any) -> Layer:
    """`Attention` of tokens to tokens, without a mask, since no token is padding; ``options`` are those of `Attention`.

    >>> net = SelfAttention(2)
    >>> side_inputs(net)
    ()
    """
    return RenameSideInputs(Attention(heads, **options), mask=None, segment_ids=None)
