r"""The transformer: an encoder of a source sequence, and a decoder of a target sequence that attends to it.

Axis letters: ``...`` batch; ``time_s`` positions of the source; ``time_t`` of the target.
"""

import functools
from typing import TypedDict, Unpack, overload

import jax.numpy as jnp

from jaxblocks import initializers
from jaxblocks.activations import relu
from jaxblocks.checks import Epsilon, PositiveInt, Rate, require
from jaxblocks.core import Layer, LayerLike, StatefulLayer, as_layer, builder
from jaxblocks.layers.attention import Attention, CachedAttention
from jaxblocks.layers.combinators import Repeat, Wire
from jaxblocks.layers.dropout import Dropout
from jaxblocks.layers.embedding import Embedding
from jaxblocks.layers.norm import LayerNorm
from jaxblocks.layers.positions import SinusoidalPositions
from jaxblocks.models.side_inputs import rename_side_inputs
from jaxblocks.models.transformer_block import TransformerBlock, TransformerMLP

__all__ = ["Transformer"]


class _Options(TypedDict, total=False):
    """The options of `Transformer` without ``cache``, which decides on the type of the layer."""

    vocab_size: int
    layers: int
    heads: int
    features: int
    hidden: int
    head_dim: int | None
    value_dim: int | None
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
    layers: PositiveInt = 6,
    heads: PositiveInt = 8,
    features: PositiveInt = 512,
    hidden: PositiveInt = 2048,
    head_dim: PositiveInt | None = None,
    value_dim: PositiveInt | None = None,
    dropout: Rate = 0.1,
    epsilon: Epsilon = 1e-6,
    cache: PositiveInt | None = None,
) -> Layer | StatefulLayer:
    r"""The encoder-decoder of "Attention is all you need"; the defaults are its base model.

    A block of the encoder is :math:`N(x + a(x))`, then :math:`N(x + m(x))` with attention :math:`a` and an MLP
    :math:`m`. In the decoder :math:`a` is causal, and between the two branches there is :math:`N(x + c(x, y))` with
    cross-attention :math:`c` to the encoder's output y. Source, target and logits share one token embedding. Embedded
    tokens are multiplied by :math:`\sqrt{\text{features}}`, and sinusoidal positional encodings are added.

    Args:
        vocab_size: the number of tokens in the vocabulary that source and target share.
        layers: the number of blocks of the encoder, and of the decoder.
        heads, features, hidden: heads of each attention layer, features per position, features inside the MLP; 16, 1024
            and 4096 is the "big" model.
        head_dim, value_dim: features of a key and of a value, by default ``features / heads``.
        dropout: the rate for embeddings and branches, in training; 0.3 in the big model.
        epsilon: of the layer norms; the paper does not state it, its code has 1e-6.
        cache: a number of positions; the result is then a ``StatefulLayer`` with the same params for targets that
            arrive in pieces. Its state holds the encoder's output and the decoder's keys and values of up to ``cache``
            positions. The first call is ``apply(params, state, source, target)``, each further call
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
    >>> params = jax.jit(net.init)(jax.random.key(0), source, target)
    >>> jax.jit(net.apply)(params, source, target).shape
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
        use_bias=False,
        kernel_init=initializers.glorot_uniform(),
    )
    block = functools.partial(
        TransformerBlock,
        mlp=TransformerMLP(hidden, features, activation=relu, kernel_init=initializers.glorot_uniform()),
        norm=functools.partial(LayerNorm, epsilon=epsilon),
        norm_first=False,
        dropout=dropout,
    )
    encoder = block(attention=attention())
    decoder = block(
        attention=attention(causal=True) if cache is None else CachedAttention(attention(causal=True), cache),
        cross_attention=attention() if cache is None else _KeepContext(attention()),
    )

    def forward(f, *inputs, mask=None):
        or_one = "" if cache is None else ", or a further piece of the target alone"
        fits = len(inputs) == 2 or (cache is not None and len(inputs) == 1)
        require(fits, f"source and target{or_one}", f"{len(inputs)} inputs", error=TypeError)
        expected, got = "mask with the source only", "one with a further piece of the target"
        require(mask is None or len(inputs) == 2, expected, got, "leave it out, the mask of the source is kept")
        *source, target = (f.tokens(x) * features**0.5 for x in inputs)
        context = [f.encoder(f.dropout(f.source_positions(x))) for x in source]
        x = f.decoder(f.dropout(f.target_positions(target)), *context)
        return f.tokens(x[0] if context else x)  # (..., time_t, vocab_size)

    # The only mask is that of the source; the encoder reads it, and the decoder for its context.
    return Wire(
        forward,
        tokens=Embedding(
            vocab_size, features, tied=True, embedding_init=initializers.variance_scaling(1.0, "fan_out", "normal")
        ),
        source_positions=SinusoidalPositions(),
        target_positions=SinusoidalPositions(stateful=cache is not None),
        dropout=Dropout(dropout),
        encoder=rename_side_inputs(Repeat(encoder, layers), segment_ids=None),
        decoder=rename_side_inputs(Repeat(decoder, layers), mask=None, segment_ids=None, context_mask="mask"),
    )


def _KeepContext(attention: LayerLike) -> StatefulLayer:
    """Attention to a context that is given once and stored: ``x, context`` in the first call, then only ``x``."""
    attention = as_layer(attention)

    def init(key, x, context):
        state = {
            "context": jnp.zeros(context.shape, context.dtype),
            "mask": jnp.zeros(context.shape[:-1], bool),
            "is_set": jnp.zeros((), bool),
        }
        return attention.init(key, x, context), state

    def apply(params, state, x, *context, mask=None):
        if context:
            mask = jnp.ones(context[0].shape[:-1], bool) if mask is None else mask
            state = {"context": context[0], "mask": mask, "is_set": jnp.ones((), bool)}
        out = attention.apply(params, x, state["context"], mask=state["mask"])
        return jnp.where(state["is_set"], out, jnp.nan), state

    return StatefulLayer(init, apply)
