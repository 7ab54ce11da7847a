r"""T5: an encoder and a decoder whose positions are learned biases of the attention scores.

Axis letters: ``...`` batch; ``time_s`` positions of the source; ``time_t`` of the target.
"""

import functools
from collections.abc import Callable
from typing import Any, TypedDict, Unpack, cast, overload

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxblocks import initializers
from jaxblocks.activations import relu
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import Epsilon, NonNegativeInt, PositiveInt, Rate
from jaxblocks.core.pairs import ArrayOrShape, Layer, LayerLike, StatefulLayer, builder
from jaxblocks.layers.attention import Attention, CachedAttention, attention
from jaxblocks.layers.combinators import Repeat, Wire
from jaxblocks.layers.dense import Dense
from jaxblocks.layers.dropout import Dropout
from jaxblocks.layers.embedding import Embedding
from jaxblocks.layers.norm import RMSNorm
from jaxblocks.layers.positions import relative_position_bias
from jaxblocks.models.bias_table import BiasTable
from jaxblocks.models.context import KeptContext, source_and_target
from jaxblocks.models.side_inputs import rename_side_inputs
from jaxblocks.models.transformer_block import TransformerMLP

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
    # The standard deviations of the paper's code: 1/sqrt(fan_in) for each kernel, and 1/sqrt(fan_in head_dim) for
    # that of the queries, which replaces the factor 1/sqrt(head_dim) of the scores.
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
    # The encoder's output is the same for all target tokens: with a cache, KeptContext keeps it after the first call.
    # Its padding mask is a side input of its own, since `mask` is that of self-attention.
    cross_attention = Attention(heads, **options)
    cross_attention = rename_side_inputs(
        cross_attention if cache is None else KeptContext(cross_attention), mask="context_mask", segment_ids=None
    )

    def block(causal: bool) -> LayerLike:
        # The encoder distinguishes keys before and after a query; a causal decoder has all buckets for earlier keys.
        biases = functools.partial(relative_position_bias, max_distance=max_distance, bidirectional=not causal)
        # In the decoder's self-attention the keys grow with each token, so only it needs a key-value cache.
        attention = _BiasedAttention(heads, causal, biases, options, cache if causal else None)
        parts: dict[str, LayerLike] = dict(attention_norm=norm(), attention=attention, mlp_norm=norm(), mlp=mlp)
        if causal:
            parts |= dict(cross_attention_norm=norm(), cross_attention=cross_attention)

        # Repeat passes the outputs of a block to the next one, so the table and the encoder's output are returned
        # unchanged.
        def forward(f, x, table, *context):
            x = x + f.dropout(f.attention(f.attention_norm(x), table))
            if causal:
                x = x + f.dropout(f.cross_attention(f.cross_attention_norm(x), *context))
            return x + f.dropout(f.mlp(f.mlp_norm(x))), table, *context

        return Wire(forward, **parts, dropout=Dropout(dropout))

    def encode(f, source):
        # (*batch, time_s, features); the table (buckets, heads) is an input of all blocks
        y, _ = f.encoder(f.dropout(f.tokens(source)), f.encoder_bias(source))
        return f.dropout(f.encoder_norm(y))

    def forward(f, *inputs, mask=None):
        # With a cache, later calls have the target alone, and `sources` is empty.
        sources, target = source_and_target(inputs, cache is not None, mask)
        context = [encode(f, source) for source in sources]
        # (*batch, time_t, features)
        x, *_ = f.decoder(f.dropout(f.tokens(target)), f.decoder_bias(target), *context)
        x = f.dropout(f.norm(x))
        # With tied embeddings of standard deviation 1, this factor gives the scores of the vocabulary unit variance.
        x = x * features**-0.5 if scale_outputs else x
        return f.tokens(x) if tied else f.out(x)

    is_encoder = decoder_layers == 0
    encoder: dict[str, LayerLike] = dict(
        tokens=Embedding(vocab_size, features, tied=tied and not is_encoder, embedding_init=initializers.normal(1.0)),
        dropout=Dropout(dropout),
        encoder_bias=BiasTable(heads, buckets),
        encoder=Repeat(block(causal=False), layers),
        encoder_norm=norm(),
    )
    if is_encoder:
        require(cache is None, "no cache for an encoder", f"cache={cache}", "leave it out, or pass decoder_layers")
        return Wire(encode, **encoder)  # type: ignore[return-value]
    decoder = Repeat(block(causal=True), decoder_layers or layers)
    return Wire(
        forward,
        **encoder,
        decoder_bias=BiasTable(heads, buckets),
        # Outside, `mask` means the padding of the source: in the decoder it is the mask of cross-attention only.
        decoder=rename_side_inputs(decoder, mask=None, context_mask="mask"),
        norm=norm(),
        **({} if tied else {"out": Dense(vocab_size, use_bias=False, kernel_init=initial)}),
    )


def _BiasedAttention(
    heads: int, causal: bool, biases: Callable, options: dict[str, Any], cache: int | None
) -> Layer | StatefulLayer:
    """Self-attention of ``x, table``, whose scores have the biases of a table that is an input."""

    # The table is an input instead of a param, so the layer is made again in each call, around the traced table.
    def layer(table=None):
        def score_bias(heads, n_q, n_k, offset):
            return biases(table, jnp.arange(n_q, dtype=jnp.int32) + offset, jnp.arange(n_k, dtype=jnp.int32))

        layer = Attention(heads, causal=causal, score_bias=score_bias, **options)
        return layer if cache is None else CachedAttention(layer, cache)

    # Params of attention do not depend on the biases, so none are needed here.
    def init(key, x: Float[ArrayOrShape, "*batch time features"], table: Float[ArrayOrShape, "buckets heads"]):
        return layer().init(key, x)

    def apply(
        params,
        x: Float[Array, "*batch time features"],
        table: Float[Array, "buckets heads"],
        *,
        mask: Bool[Array, "..."] | None = None,
        train=False,
        key=None,
    ):
        return cast(Layer, layer(table)).apply(params, x, mask=mask, train=train, key=key)

    def apply_without_key(
        params,
        x: Float[Array, "*batch time features"],
        table: Float[Array, "buckets heads"],
        *,
        mask: Bool[Array, "..."] | None = None,
    ):
        return cast(Layer, layer(table)).apply(params, x, mask=mask)

    def apply_with_cache(params, state, x: Float[Array, "*batch time features"], table: Float[Array, "buckets heads"]):
        return cast(StatefulLayer, layer(table)).apply(params, state, x)

    if cache is not None:
        return StatefulLayer(init, apply_with_cache)
    return Layer(init, apply if options["dropout"] else apply_without_key)
