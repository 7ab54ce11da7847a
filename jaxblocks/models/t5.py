r"""T5: an encoder and a decoder whose positions are learned biases of the attention scores.

Axis letters: ``...`` batch; ``time_s`` positions of the source; ``time_t`` of the target.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxblocks import initializers
from jaxblocks.activations import relu
from jaxblocks.checks import Epsilon, PositiveInt, Rate
from jaxblocks.core import ArrayOrShape, Layer, LayerLike, builder
from jaxblocks.layers.attention import Attention, attention
from jaxblocks.layers.combinators import Repeat, Wire
from jaxblocks.layers.dense import Dense
from jaxblocks.layers.dropout import Dropout
from jaxblocks.layers.embedding import Embedding
from jaxblocks.layers.norm import RMSNorm
from jaxblocks.layers.positions import RelativePositionBias
from jaxblocks.models.side_inputs import rename_side_inputs
from jaxblocks.models.transformer_block import TransformerMLP

__all__ = ["T5"]


@builder
def T5(
    *,
    vocab_size: PositiveInt = 32_128,
    layers: PositiveInt = 6,
    decoder_layers: PositiveInt | None = None,
    heads: PositiveInt = 8,
    head_dim: PositiveInt = 64,
    features: PositiveInt = 512,
    hidden: PositiveInt = 2048,
    gated: bool = False,
    activation: Callable = relu,
    tied: bool = True,
    scale_outputs: bool = True,
    buckets: PositiveInt = 32,
    max_distance: PositiveInt = 128,
    dropout: Rate = 0.1,
    epsilon: Epsilon = 1e-6,
) -> Layer:
    r"""An encoder-decoder of the T5 family; the defaults are T5-small with 60,506,624 params.

    Each block is :math:`x + a(N(x))`, then :math:`x + m(N(x))`, with RMS norms and without biases; between the two, a
    block of the decoder has :math:`x + c(N(x), y)` with cross-attention :math:`c` to the encoder's output y. Scores are
    not scaled. `RelativePositionBias` is added to those of self-attention; its table, one for the encoder and one for
    the decoder, is the same in all blocks.

    Args:
        vocab_size: the number of tokens that source and target share.
        layers, decoder_layers: blocks of the encoder and of the decoder, by default as many.
        heads, head_dim, features: heads per block, features of a head, features per position.
        hidden: features inside the MLP.
        gated, activation: of the MLP; ``gated=True`` with the tanh approximation of GELU is version 1.1.
        tied: whether the token embedding also computes the logits; ``False`` in version 1.1.
        scale_outputs: whether features are divided by :math:`\sqrt{\text{features}}` before the logits; ``False`` in
            version 1.1.
        buckets, max_distance: as in `RelativePositionBias`.
        dropout: the rate for embeddings, MLPs, branches and outputs, in training.
        epsilon: of the norms.

    Shapes: source ``(..., time_s)`` and target ``(..., time_t)``, integers, to logits ``(..., time_t, vocab_size)``.

    Side inputs: ``mask``, boolean ``(..., time_s)``, ``False`` at padding of the source; ``train`` and ``key`` for the
    dropout.

    >>> net = T5(vocab_size=5, layers=2, heads=2, head_dim=3, features=4, hidden=8)
    >>> source, target = jnp.array([0, 3, 1, 2]), jnp.array([0, 2, 1])
    >>> params = jax.jit(net.init)(jax.random.key(0), source, target)
    >>> jax.jit(net.apply)(params, source, target).shape
    (3, 5)

    Source: Raffel et al. 2020, T5, section 2.1, arXiv:1910.10683; Shazeer 2020, GLU variants (``gated``),
    arXiv:2002.05202. Initial kernels have variance 1 / inputs; the published code also divides those of queries by
    :math:`\sqrt{\text{head\_dim}}`.
    """
    initial = initializers.variance_scaling(1.0, "fan_in", "normal")
    norm = functools.partial(RMSNorm, epsilon=epsilon)
    options: dict[str, Any] = dict(
        head_dim=head_dim,
        use_bias=False,
        attention_fn=functools.partial(attention, scale=1.0),
        kernel_init=initial,
    )
    mlp = TransformerMLP(
        hidden, features, gated=gated, activation=activation, use_bias=False, dropout=dropout, kernel_init=initial
    )
    cross_attention = rename_side_inputs(Attention(heads, **options), mask="context_mask", segment_ids=None)

    def block(causal: bool) -> LayerLike:
        parts: dict[str, LayerLike] = dict(
            attention_norm=norm(), attention=_BiasedAttention(heads, causal, options), mlp_norm=norm(), mlp=mlp
        )
        if causal:
            parts |= dict(cross_attention_norm=norm(), cross_attention=cross_attention)

        def forward(f, x, bias, *context):
            x = x + f.dropout(f.attention(f.attention_norm(x), bias))
            if context:
                x = x + f.dropout(f.cross_attention(f.cross_attention_norm(x), *context))
            return x + f.dropout(f.mlp(f.mlp_norm(x))), bias, *context

        return Wire(forward, **parts, dropout=Dropout(dropout))

    def forward(f, source, target):
        def bias(layer, tokens):
            places = jnp.arange(tokens.shape[-1], dtype=jnp.int32)
            return layer(places, places)  # (heads, time, time)

        y, _ = f.encoder(f.dropout(f.tokens(source)), bias(f.encoder_bias, source))
        y = f.dropout(f.encoder_norm(y))
        x, *_ = f.decoder(f.dropout(f.tokens(target)), bias(f.decoder_bias, target), y)
        x = f.dropout(f.norm(x))
        x = x * features**-0.5 if scale_outputs else x
        return f.tokens(x) if tied else f.out(x)

    biases = functools.partial(RelativePositionBias, heads, buckets=buckets, max_distance=max_distance)
    decoder = Repeat(block(causal=True), decoder_layers or layers)
    return Wire(  # type: ignore[return-value]
        forward,
        tokens=Embedding(vocab_size, features, tied=tied, embedding_init=initializers.normal(1.0)),
        dropout=Dropout(dropout),
        encoder_bias=biases(),
        encoder=Repeat(block(causal=False), layers),
        encoder_norm=norm(),
        decoder_bias=biases(bidirectional=False),
        decoder=rename_side_inputs(decoder, mask=None, context_mask="mask"),
        norm=norm(),
        **({} if tied else {"out": Dense(vocab_size, use_bias=False, kernel_init=initial)}),
    )


def _BiasedAttention(heads: int, causal: bool, options: dict[str, Any]) -> Layer:
    """Self-attention of ``x, bias``, whose biases of scores all blocks share."""

    def layer(bias=None):
        score_bias = None if bias is None else lambda heads, n_q, n_k, offset: bias
        return Attention(heads, causal=causal, score_bias=score_bias, **options)

    def init(key, x: Float[ArrayOrShape, "*batch time features"], bias: Float[ArrayOrShape, "heads time time"]):
        return layer().init(key, x)

    def apply(
        params,
        x: Float[Array, "*batch time features"],
        bias: Float[Array, "heads time time"],
        *,
        mask: Bool[Array, "..."] | None = None,
    ):
        return layer(bias).apply(params, x, mask=mask)

    return Layer(init, apply)
