"""Images as rows of tokens: what models that look at places have in common.

Axis letters: ``...`` batch; h and w places, n = h w tokens, c channels.
"""

from jaxtyping import Array, Float

from jaxblocks.core import Layer, builder
from jaxblocks.layers.attention import Attention

__all__ = ["SelfAttention", "as_tokens", "mean_of_tokens"]


def as_tokens(x: Float[Array, "*batch h w c"]) -> Float[Array, "*batch n c"]:
    """A token for each place of an image, row by row.

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
def SelfAttention(heads: int, **options) -> Layer:
    """`Attention` of tokens to tokens; none of them is padding, so there is no mask.

    >>> net = SelfAttention(2)
    >>> side_inputs(net)
    ()
    """
    attention = Attention(heads, **options)

    def init(key, x):
        return attention.init(key, x)

    def apply(params, x):
        return attention.apply(params, x)

    return Layer(init, apply)
