r"""Llama: a transformer decoder with RMS norms, rotary positions, grouped heads and gated MLPs, without biases.

Axis letters: ``...`` batch; ``time``.
"""

import functools
from typing import Any, TypedDict, Unpack, overload

from jaxblocks import initializers
from jaxblocks.activations import silu
from jaxblocks.checks import Epsilon, PositiveFloat, PositiveInt, Rate
from jaxblocks.core import Layer, StatefulLayer, builder
from jaxblocks.layers.attention import Attention, CachedAttention
from jaxblocks.layers.combinators import Repeat, Serial
from jaxblocks.layers.dense import Dense
from jaxblocks.layers.embedding import Embedding
from jaxblocks.layers.norm import RMSNorm
from jaxblocks.layers.positions import rotary
from jaxblocks.models.transformer_block import TransformerBlock, TransformerMLP

__all__ = ["Llama"]


class _Options(TypedDict, total=False):
    """The options of `Llama` without ``cache``, which decides on the type of the layer."""

    vocab_size: int
    layers: int
    heads: int
    kv_heads: int | None
    features: int
    hidden: int
    base: float
    epsilon: float
    dropout: float


@overload
def Llama(*, cache: None = None, **options: Unpack[_Options]) -> Layer: ...
@overload
def Llama(*, cache: int, **options: Unpack[_Options]) -> StatefulLayer: ...
@builder
def Llama(
    *,
    vocab_size: PositiveInt = 32_000,
    layers: PositiveInt = 32,
    heads: PositiveInt = 32,
    kv_heads: PositiveInt | None = None,
    features: PositiveInt = 4096,
    hidden: PositiveInt = 11_008,
    base: PositiveFloat = 10_000,
    epsilon: Epsilon = 1e-6,
    dropout: Rate = 0.0,
    cache: PositiveInt | None = None,
) -> Layer | StatefulLayer:
    r"""A transformer decoder of the Llama family; the defaults are the 7B model of the paper.

    It has 6,738,415,616 params. Each block is :math:`x + a(N(x))`, then :math:`x + m(N(x))`, with causal attention
    :math:`a` with rotary positions, and :math:`m(x) = (\mathrm{silu}(x W_g) \odot x W_u) W_d`. Positions are relative,
    so only the cache limits the length of a sequence.

    Args:
        vocab_size: the number of tokens.
        layers, heads, features: blocks, heads of the queries, features per position.
        kv_heads: heads of keys and values, by default ``heads``; 8 of 64 in Llama 2 70B, 8 of 32 in Llama 3 8B.
        hidden: features inside the MLP; about 8/3 of ``features`` has as many params as an MLP without gate.
        base: the base of the rotary angles; 500,000 in Llama 3.
        epsilon: of the norms; 1e-5 in Llama 2 and 3.
        dropout: the rate for branches, in training; the paper has none.
        cache: a number of positions; the result is then a ``StatefulLayer`` with the same params for sequences that
            arrive in pieces. Its state holds the keys and values of up to ``cache`` positions. See `CachedAttention`.

    Shapes: tokens ``(..., time)``, integers, to logits ``(..., time, vocab_size)``.

    Side inputs: ``mask``, ``False`` at padding (padding on the right needs none: it is never attended to), and
    ``segment_ids`` (without cache), as in `Attention`; ``train`` and ``key`` with ``dropout`` above 0.

    >>> net = Llama(vocab_size=5, layers=2, heads=2, kv_heads=1, features=4, hidden=12)
    >>> tokens = jnp.array([0, 3, 1])
    >>> params = net.init(jax.random.key(0), tokens)
    >>> net.apply(params, tokens).shape
    (3, 5)

    Source: Touvron et al. 2023, LLaMA: Open and efficient foundation language models, section 2.2, arXiv:2302.13971.
    Initial weights are normal with standard deviation 0.02, as in the published training code; the paper does not
    state them.
    """
    linear: dict[str, Any] = dict(use_bias=False, kernel_init=initializers.normal(0.02))
    norm = functools.partial(RMSNorm, epsilon=epsilon)
    positions = functools.partial(rotary, base=base)
    attention = Attention(heads, kv_heads=kv_heads, causal=True, positions=positions, **linear)
    block = TransformerBlock(
        attention=attention if cache is None else CachedAttention(attention, cache),
        mlp=TransformerMLP(hidden, features, gated=True, activation=silu, **linear),
        norm=norm,
        dropout=dropout,
    )
    return Serial(
        tokens=Embedding(vocab_size, features, embedding_init=initializers.normal(0.02)),
        blocks=Repeat(block, layers),
        norm=norm(),
        out=Dense(vocab_size, **linear),
    )
