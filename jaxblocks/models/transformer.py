r"""The transformer: an encoder of a source sequence, and a decoder of a target sequence that attends to it.

Axis letters: ``...`` batch; ``time_s`` positions of the source; ``time_t`` of the target.
"""

import functools
from collections.abc import Callable
from typing import TypedDict, Unpack, overload

from jaxblocks import initializers
from jaxblocks.activations import identity, relu
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import Epsilon, PositiveInt, Rate
from jaxblocks.core.pairs import Layer, StatefulLayer, builder
from jaxblocks.layers.attention import Attention, CachedAttention
from jaxblocks.layers.attention.multi_head import UseBias
from jaxblocks.layers.combinators import Repeat, Wire
from jaxblocks.layers.dense import Bias, Dense
from jaxblocks.layers.dropout import Dropout
from jaxblocks.layers.embedding import Embedding
from jaxblocks.layers.norm import LayerNorm
from jaxblocks.layers.positions import SinusoidalPositions
from jaxblocks.models.context import KeptContext, source_and_target
from jaxblocks.models.side_inputs import rename_side_inputs
from jaxblocks.models.transformer_block import TransformerBlock, TransformerMLP

__all__ = ["Transformer"]


class _Options(TypedDict, total=False):
    """The options of `Transformer` without ``cache``, which decides on the type of the layer."""

    vocab_size: int
    source_vocab_size: int | None
    layers: int
    heads: int
    features: int
    hidden: int
    head_dim: int | None
    value_dim: int | None
    activation: Callable
    use_bias: UseBias
    tied: bool
    out_bias: bool
    norm_first: bool
    final_norm: bool
    dropout: float
    epsilon: float


@overload
def Transformer(*, cache: None = None, **options: Unpack[_Options]) -> Layer: ...
@overload
def Transformer(*, cache: int, **options: Unpack[_Options]) -> StatefulLayer: ...
@builder
def Transformer(
    *,
    vocab_size: PositiveInt = 37_000,
    source_vocab_size: PositiveInt | None = None,
    layers: PositiveInt = 6,
    heads: PositiveInt = 8,
    features: PositiveInt = 512,
    hidden: PositiveInt = 2048,
    head_dim: PositiveInt | None = None,
    value_dim: PositiveInt | None = None,
    activation: Callable = relu,
    use_bias: UseBias = False,
    tied: bool = True,
    out_bias: bool = False,
    norm_first: bool = False,
    final_norm: bool = False,
    dropout: Rate = 0.1,
    epsilon: Epsilon = 1e-6,
    cache: PositiveInt | None = None,
) -> Layer | StatefulLayer:
    r"""The encoder-decoder of "Attention is all you need"; the defaults are its base model.

    A block of the encoder is $N(x + a(x))$, then $N(x + m(x))$ with attention $a$ and an MLP
    $m$. In the decoder $a$ is causal, and between the two branches there is $N(x + c(x, y))$ with
    cross-attention $c$ to the encoder's output y. Source, target and logits share one token embedding. Embedded
    tokens are multiplied by $√(features)$, and sinusoidal positional encodings are added.

    Args:
        vocab_size: the number of tokens in the vocabulary that source and target share.
        source_vocab_size: that of the source, which then has an embedding of its own.
        layers: the number of blocks of the encoder, and of the decoder.
        heads, features, hidden: heads of each attention layer, features per position, features inside the MLP; 16, 1024
            and 4096 is the "big" model.
        head_dim, value_dim: features of a key and of a value, by default ``features / heads``.
        activation: of the MLPs.
        use_bias: which maps of the attention have a bias, as in `Attention`.
        tied: whether the token embedding of the target also computes the logits; otherwise a dense layer does.
        out_bias: whether a bias is added to the logits.
        norm_first: ``True`` for pre-norm blocks, $x + f(N(x))$.
        final_norm: whether the encoder and the decoder end with a norm, as pre-norm blocks need, and as in
            ``torch.nn.Transformer``.
        dropout: the rate for embeddings and branches, in training; 0.3 in the big model.
        epsilon: of the layer norms; the paper does not state it, its code has 1e-6.
        cache: a number of positions; the result is then a ``StatefulLayer`` with the same params for targets that
            arrive in pieces. Its state holds the keys and values of the encoder's output and those of up to ``cache``
            positions of the target. The first call is ``apply(params, state, source, target)``, each further call
            ``apply(params, state, target)``.

    Shapes: source ``(..., time_s)`` and target ``(..., time_t)``, integers, to logits ``(..., time_t, vocab_size)``.
    Logits at t predict the token after target t, so in training the target begins with a start token.

    Side inputs: ``mask``, boolean ``(..., time_s)``, ``False`` at padding of the source (padding of the target is on
    its right and needs no mask: it is never attended to); ``train`` and ``key`` for the dropout.

    Raises:
        ValueError: for a target that is longer than its cache, as in `CachedAttention`. With a cache, the logits are
            NaN until a source is given.

    >>> net = Transformer(vocab_size=5, layers=2, heads=2, features=4, hidden=8)
    >>> source, target = jnp.array([0, 3, 1, 2]), jnp.array([0, 2, 1])
    >>> # jax.jit(net.init) makes arrays
    >>> params = jax.eval_shape(net.init, jax.random.key(0), source, target)
    >>> jax.eval_shape(net.apply, params, source, target).shape
    (3, 5)

    Source: Vaswani et al. 2017, Attention is all you need, arXiv:1706.03762; biases and initial weights as in its code,
    tensor2tensor.
    """
    if features % heads and None in (head_dim, value_dim):
        got = f"heads={heads} and features={features}"
        require(False, "heads to divide features", got, "choose a divisor, or pass head_dim= and value_dim=")
    attention = functools.partial(
        Attention,
        heads,
        head_dim=head_dim or features // heads,
        value_dim=value_dim or features // heads,
        use_bias=use_bias,
        kernel_init=initializers.glorot_uniform(),
    )
    norm = functools.partial(LayerNorm, epsilon=epsilon)
    block = functools.partial(
        TransformerBlock,
        mlp=TransformerMLP(hidden, features, activation=activation, kernel_init=initializers.glorot_uniform()),
        norm=norm,
        norm_first=norm_first,
        dropout=dropout,
    )
    encoder = block(attention=attention())
    decoder = block(
        attention=attention(causal=True) if cache is None else CachedAttention(attention(causal=True), cache),
        cross_attention=attention() if cache is None else KeptContext(attention()),
    )

    def forward(f, *inputs, mask=None):
        source, target = source_and_target(inputs, cache is not None, mask)
        # The table has variance 1 / features, as logits of tied embeddings need it; the factor gives the tokens
        # variance 1, the scale of the positions (section 3.4).
        source = [getattr(f, source_table)(x) * features**0.5 for x in source]
        context = [f.encoder_norm(f.encoder(f.dropout(f.source_positions(x)))) for x in source]
        x = f.decoder(f.dropout(f.target_positions(f.tokens(target) * features**0.5)), *context)
        # With a context the decoder returns a pair, since its blocks pass the context on.
        x = f.norm(x[0] if context else x)
        return f.out(f.tokens(x) if tied else x)  # (..., time_t, vocab_size)

    table = functools.partial(
        Embedding, features=features, embedding_init=initializers.variance_scaling(1.0, "fan_out", "normal")
    )
    source_table = "source_tokens" if source_vocab_size else "tokens"
    own_table = {"source_tokens": table(source_vocab_size)} if source_vocab_size else {}
    to_logits = Dense(vocab_size, use_bias=out_bias, kernel_init=initializers.glorot_uniform())
    bias = Bias() if out_bias else identity
    # The only mask is that of the source; the encoder reads it, and the decoder for its context.
    return Wire(
        forward,
        tokens=table(vocab_size, tied=tied),
        **own_table,
        source_positions=SinusoidalPositions(),
        target_positions=SinusoidalPositions(stateful=cache is not None),
        dropout=Dropout(dropout),
        encoder=rename_side_inputs(Repeat(encoder, layers), segment_ids=None),
        decoder=rename_side_inputs(Repeat(decoder, layers), mask=None, segment_ids=None, context_mask="mask"),
        encoder_norm=norm() if final_norm else identity,  # pre-norm blocks leave the last sum without a norm
        norm=norm() if final_norm else identity,
        out=bias if tied else to_logits,
    )
