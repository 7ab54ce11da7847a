r"""T5: an encoder and a decoder whose positions are learned biases of the attention scores.

Axis letters: ``...`` batch; ``time_s`` positions of the source; ``time_t`` of the target.
"""

import functools
from collections.abc import Callable
from typing import Any, TypedDict, Unpack, overload

from jaxblocks import initializers
from jaxblocks.activations import relu
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import Epsilon, NonNegativeInt, PositiveInt, Rate
from jaxblocks.core.pairs import Layer, LayerLike, StatefulLayer, builder
from jaxblocks.layers.attention import Attention, attention
from jaxblocks.layers.combinators import Repeat, Wire
from jaxblocks.layers.dense import Dense
from jaxblocks.layers.dropout import Dropout
from jaxblocks.layers.embedding import Embedding
from jaxblocks.layers.norm import RMSNorm
from jaxblocks.models.bias_table import AttentionOfTable, BiasTable
from jaxblocks.models.context import KeptContext, source_and_target
from jaxblocks.models.side_inputs import rename_side_inputs
from jaxblocks.models.transformer_block import TransformerBlock, TransformerMLP

__all__ = ["T5"]


class _Options(TypedDict, total=False):
    """The options of `T5` without ``cache``, which decides on the type of the layer."""

    vocab_size: int
    layers: int
    decoder_layers: int | None
    heads: int
    head_dim: int
    features: int
    hidden: int
    gated: bool
    activation: Callable
    tied: bool
    scale_outputs: bool
    buckets: int
    max_distance: int
    dropout: float
    attention_dropout: float | None
    epsilon: float


@overload
def T5(*, cache: None = None, **options: Unpack[_Options]) -> Layer: ...
@overload
def T5(*, cache: int, **options: Unpack[_Options]) -> StatefulLayer: ...
@builder
def T5(
    *,
    vocab_size: PositiveInt = 32_128,
    layers: PositiveInt = 6,
    decoder_layers: NonNegativeInt | None = None,
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
    attention_dropout: Rate | None = None,
    epsilon: Epsilon = 1e-6,
    cache: PositiveInt | None = None,
) -> Layer | StatefulLayer:
    r"""An encoder-decoder of the T5 family; the defaults are T5-small with 60,506,624 params.

    Each block is $x + a(N(x))$, then $x + m(N(x))$, with RMS norms and without biases; between the two, a
    block of the decoder has $x + c(N(x), y)$ with cross-attention $c$ to the encoder's output y. Scores are
    not scaled. `RelativePositionBias` is added to those of self-attention; its table, one for the encoder and one for
    the decoder, is the same in all blocks.

    Args:
        vocab_size: the number of tokens that source and target share.
        layers, decoder_layers: blocks of the encoder and of the decoder, by default as many; 0 for the encoder alone,
            which returns its features.
        heads, head_dim, features: heads per block, features of a head, features per position.
        hidden: features inside the MLP.
        gated, activation: of the MLP; ``gated=True`` with the tanh approximation of GELU is version 1.1.
        tied: whether the token embedding also computes the logits; ``False`` in version 1.1.
        scale_outputs: whether features are divided by $√(features)$ before the logits; ``False`` in
            version 1.1.
        buckets, max_distance: as in `RelativePositionBias`.
        dropout: the rate for embeddings, MLPs, branches and outputs, in training.
        attention_dropout: for the weights of attention, by default ``dropout``; 0 with ``cache``.
        epsilon: of the norms.
        cache: a number of positions; the result is then a ``StatefulLayer`` with the same params for targets that
            arrive in pieces, as in `Transformer`.

    Shapes: source ``(..., time_s)`` and target ``(..., time_t)``, integers, to logits ``(..., time_t, vocab_size)``;
    for the encoder alone source to ``(..., time_s, features)``.

    Side inputs: ``mask``, boolean ``(..., time_s)``, ``False`` at padding of the source; ``train`` and ``key`` for the
    dropout.

    >>> net = T5(vocab_size=5, layers=2, heads=2, head_dim=3, features=4, hidden=8)
    >>> source, target = jnp.array([0, 3, 1, 2]), jnp.array([0, 2, 1])
    >>> # jax.jit(net.init) makes arrays
    >>> params = jax.eval_shape(net.init, jax.random.key(0), source, target)
    >>> jax.eval_shape(net.apply, params, source, target).shape
    (3, 5)

    Source: Raffel et al. 2020, T5, section 2.1, arXiv:1910.10683; Shazeer 2020, GLU variants (``gated``),
    arXiv:2002.05202. Initial kernels have variance 1 / inputs, those of queries 1 / (inputs head_dim), since scores are
    not scaled, as in the published code.
    """
    initial = initializers.variance_scaling(1.0, "fan_in", "normal")
    norm = functools.partial(RMSNorm, epsilon=epsilon)
    options: dict[str, Any] = dict(
        head_dim=head_dim,
        use_bias=False,
        dropout=0.0 if cache else dropout if attention_dropout is None else attention_dropout,
        attention_fn=functools.partial(attention, scale=1.0),
        kernel_init=initial,
        query_kernel_init=initializers.variance_scaling(1 / head_dim, "fan_in", "normal"),
    )
    mlp = TransformerMLP(
        hidden, features, gated=gated, activation=activation, use_bias=False, dropout=dropout, kernel_init=initial
    )
    block = functools.partial(TransformerBlock, mlp=mlp, norm=norm, dropout=dropout)
    self_attention = functools.partial(AttentionOfTable, heads, max_distance=max_distance, **options)
    cross_attention = Attention(heads, **options)

    def encode(f, source):
        # (*batch, time_s, features); the table (buckets, heads) is a side input of all blocks
        y = f.encoder(f.dropout(f.tokens(source)), table=f.encoder_bias(source))
        return f.dropout(f.encoder_norm(y))

    def forward(f, *inputs, mask=None):
        # With a cache, later calls have the target alone, and `sources` is empty.
        sources, target = source_and_target(inputs, cache is not None, mask)
        context = [encode(f, source) for source in sources]
        x = f.decoder(f.dropout(f.tokens(target)), *context, table=f.decoder_bias(target))
        x = f.dropout(f.norm(x[0] if context else x))  # (*batch, time_t, features)
        # With tied embeddings of standard deviation 1, this factor gives the scores of the vocabulary unit variance.
        x = x * features**-0.5 if scale_outputs else x
        return f.tokens(x) if tied else f.out(x)

    is_encoder = decoder_layers == 0
    encoder: dict[str, LayerLike] = dict(
        tokens=Embedding(vocab_size, features, tied=tied and not is_encoder, embedding_init=initializers.normal(1.0)),
        dropout=Dropout(dropout),
        encoder_bias=BiasTable(heads, buckets),
        encoder=Repeat(rename_side_inputs(block(attention=self_attention()), segment_ids=None), layers),
        encoder_norm=norm(),
    )
    if is_encoder:
        require(cache is None, "no cache for an encoder", f"cache={cache}", "leave it out, or pass decoder_layers")
        return rename_side_inputs(Wire(encode, **encoder), table=None)  # the table is passed inside
    decoder = Repeat(
        block(
            # The keys of the decoder grow with each token, and those of the encoder's output are kept after one call.
            attention=self_attention(causal=True, cache=cache),
            cross_attention=cross_attention if cache is None else KeptContext(cross_attention),
        ),
        decoder_layers or layers,
    )
    net = Wire(
        forward,
        **encoder,
        decoder_bias=BiasTable(heads, buckets),
        # Outside, `mask` means the padding of the source: in the decoder it is the mask of cross-attention only.
        decoder=rename_side_inputs(decoder, mask=None, segment_ids=None, context_mask="mask"),
        norm=norm(),
        **({} if tied else {"out": Dense(vocab_size, use_bias=False, kernel_init=initial)}),
    )
    return rename_side_inputs(net, table=None)
