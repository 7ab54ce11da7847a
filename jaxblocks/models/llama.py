r"""Llama and its relatives: a transformer decoder with RMS norms, rotary positions, grouped heads and gated MLPs.

Axis letters: ``...`` batch; ``time``.
"""

import functools
from collections.abc import Mapping
from typing import Any, TypedDict, Unpack, overload

from jaxblocks import initializers
from jaxblocks.activations import silu
from jaxblocks.checks import Epsilon, PositiveFloat, PositiveInt, Rate
from jaxblocks.core import Layer, StatefulLayer, builder
from jaxblocks.layers.attention import Attention, CachedAttention, attention
from jaxblocks.layers.attention.multi_head import UseBias
from jaxblocks.layers.combinators import Repeat, Serial, Wire
from jaxblocks.layers.dense import Dense
from jaxblocks.layers.embedding import Embedding
from jaxblocks.layers.norm import RMSNorm
from jaxblocks.layers.positions import rotary, rotary_frequencies
from jaxblocks.models.transformer_block import TransformerBlock, TransformerMLP

__all__ = ["Llama"]


class _Options(TypedDict, total=False):
    """The options of `Llama` without ``cache``, which decides on the type of the layer."""

    vocab_size: int
    layers: int
    heads: int
    kv_heads: int | None
    head_dim: int | None
    features: int
    hidden: int
    base: float
    rope_scaling: Mapping | None
    sliding_window: int | None
    use_bias: UseBias
    tied: bool
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
    head_dim: PositiveInt | None = None,
    features: PositiveInt = 4096,
    hidden: PositiveInt = 11_008,
    base: PositiveFloat = 10_000,
    rope_scaling: Mapping | None = None,
    sliding_window: PositiveInt | None = None,
    use_bias: UseBias = False,
    tied: bool = False,
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
        head_dim: features of a head, by default ``features / heads``; 128 in Mistral Nemo, whose features are 5120.
        hidden: features inside the MLP; about 8/3 of ``features`` has as many params as an MLP without gate.
        base: the base of the rotary angles; 500,000 in Llama 3.
        rope_scaling: options of `rotary_frequencies` for sequences that are longer than those of training, such as
            ``dict(scaling="llama3", factor=8.0)`` in Llama 3.1.
        sliding_window: the number of positions, the own one included, that a position attends to, by default all; 4096
            in Mistral 7B.
        use_bias: which maps of the attention have a bias, as in `Attention`; ``("query", "key", "value")`` in Qwen2.
        tied: whether the token embedding also computes the logits, as in the small models of Llama 3.2 and Qwen2.
        epsilon: of the norms; 1e-5 in Llama 2 and 3.
        dropout: the rate for branches, in training; the paper has none.
        cache: a number of positions; the result is then a ``StatefulLayer`` with the same params for sequences that
            arrive in pieces. Its state holds the keys and values of up to ``cache`` positions. See `CachedAttention`.

    Shapes: tokens ``(..., time)``, integers, to logits ``(..., time, vocab_size)``.

    Side inputs: ``mask``, ``False`` at padding (padding on the right needs none: it is never attended to), and
    ``segment_ids`` (without cache), as in `Attention`; ``train`` and ``key`` with ``dropout`` above 0.

    >>> net = Llama(vocab_size=5, layers=2, heads=2, kv_heads=1, features=4, hidden=12)
    >>> tokens = jnp.array([0, 3, 1])
    >>> params = jax.jit(net.init)(jax.random.key(0), tokens)
    >>> jax.jit(net.apply)(params, tokens).shape
    (3, 5)

    Source: Touvron et al. 2023, LLaMA: Open and efficient foundation language models, section 2.2, arXiv:2302.13971.
    Initial weights are normal with standard deviation 0.02, as in the published training code; the paper does not
    state them. Jiang et al. 2023, Mistral 7B (``sliding_window``), arXiv:2310.06825; Yang et al. 2024, Qwen2 technical
    report (``use_bias``), arXiv:2407.10671; Dubey et al. 2024, The Llama 3 herd of models (``base``), arXiv:2407.21783.
    """
    linear: dict[str, Any] = dict(use_bias=False, kernel_init=initializers.normal(0.02))
    norm = functools.partial(RMSNorm, epsilon=epsilon)
    if rope_scaling is None:
        positions = functools.partial(rotary, base=base)
    else:
        frequencies = rotary_frequencies(head_dim or features // heads, base=base, **rope_scaling)
        positions = functools.partial(rotary, frequencies=frequencies)
    self_attention = Attention(
        heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        causal=True,
        positions=positions,
        attention_fn=functools.partial(attention, sliding_window=sliding_window) if sliding_window else attention,
        **{**linear, "use_bias": use_bias},  # type: ignore[arg-type]
    )
    block = TransformerBlock(
        attention=self_attention if cache is None else CachedAttention(self_attention, cache),
        mlp=TransformerMLP(hidden, features, gated=True, activation=silu, **linear),
        norm=norm,
        dropout=dropout,
    )
    tokens = Embedding(vocab_size, features, tied=tied, embedding_init=initializers.normal(0.02))
    blocks = Repeat(block, layers)
    if tied:
        forward = lambda f, ids: f.tokens(f.norm(f.blocks(f.tokens(ids))))
        return Wire(forward, tokens=tokens, blocks=blocks, norm=norm())
    return Serial(tokens=tokens, blocks=blocks, norm=norm(), out=Dense(vocab_size, **linear))
