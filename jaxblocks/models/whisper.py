r"""Whisper: an encoder of speech, and a decoder of its text.

Axis letters: ``...`` batch; ``frames`` of the spectrogram, ``mel`` its bands; ``time`` of the text.
"""

import functools
import math
from collections.abc import Callable
from typing import TypedDict, Unpack, overload

import jax.numpy as jnp

from jaxblocks import initializers
from jaxblocks.activations import gelu
from jaxblocks.checks.expectations import Epsilon, PositiveInt, Rate
from jaxblocks.core.pairs import Layer, StatefulLayer, builder
from jaxblocks.layers.attention import Attention, CachedAttention
from jaxblocks.layers.combinators import Frozen, Repeat, Wire
from jaxblocks.layers.conv import Conv
from jaxblocks.layers.dropout import Dropout
from jaxblocks.layers.embedding import Embedding
from jaxblocks.layers.norm import LayerNorm
from jaxblocks.layers.positions import LearnedPositions
from jaxblocks.models.context import KeptContext, source_and_target
from jaxblocks.models.side_inputs import rename_side_inputs
from jaxblocks.models.transformer_block import TransformerBlock, TransformerMLP

__all__ = ["Whisper"]


class _Options(TypedDict, total=False):
    """The options of `Whisper` without ``cache``, which decides on the type of the layer."""

    vocab_size: int
    max_frames: int
    max_length: int
    encoder_layers: int
    decoder_layers: int
    heads: int
    features: int
    hidden: int | None
    activation: Callable
    dropout: float
    attention_dropout: float
    mlp_dropout: float
    epsilon: float


@overload
def Whisper(*, cache: None = None, **options: Unpack[_Options]) -> Layer: ...
@overload
def Whisper(*, cache: int, **options: Unpack[_Options]) -> StatefulLayer: ...
@builder
def Whisper(
    *,
    vocab_size: PositiveInt = 51_865,
    max_frames: PositiveInt = 3000,
    max_length: PositiveInt = 448,
    encoder_layers: PositiveInt = 4,
    decoder_layers: PositiveInt = 4,
    heads: PositiveInt = 6,
    features: PositiveInt = 384,
    hidden: PositiveInt | None = None,
    activation: Callable = gelu,
    dropout: Rate = 0.0,
    attention_dropout: Rate = 0.0,
    mlp_dropout: Rate = 0.0,
    epsilon: Epsilon = 1e-5,
    cache: PositiveInt | None = None,
) -> Layer | StatefulLayer:
    r"""A transformer from spectrograms to text; the defaults are the "tiny" model.

    With 80 mel bands it has 37,760,640 params. Two convolutions over time with GELU, the second of stride 2, map the
    spectrogram to features, to which positions are added. The encoder's blocks are $x + a(N(x))$, then
    $x + m(N(x))$; those of the decoder are causal and also have $x + c(N(x), y)$ with cross-attention
    $c$ to the encoder's output y. The maps of keys have no bias. The token embedding also computes the logits.

    Args:
        vocab_size: the number of tokens.
        max_frames: the maximal number of frames; 3000 are 30 seconds.
        max_length: the maximal length of a text.
        encoder_layers, decoder_layers: blocks of the encoder and of the decoder.
        heads, features: heads per block, features per position; 8 and 512 with 6 layers is "base".
        hidden: features inside the MLPs, by default ``4 * features``.
        activation: of the MLPs.
        dropout: the rate for embeddings and branches, in training.
        attention_dropout, mlp_dropout: for the weights of attention (without ``cache`` also those of cross-attention),
            and inside the MLPs.
        epsilon: of the layer norms.
        cache: a number of positions; the result is then a ``StatefulLayer`` with the same params for texts that arrive
            in pieces, as in `Transformer`: spectrogram and tokens in the first call, and then tokens alone.

    Shapes: a log-mel spectrogram ``(..., frames, mel)`` and tokens ``(..., time)`` to logits ``(..., time,
    vocab_size)``.

    Side inputs: ``train`` and ``key`` for the dropout.

    Raises:
        ValueError: for more frames or tokens than the maximum.

    >>> net = Whisper(vocab_size=5, max_frames=8, max_length=6, heads=2, features=4)
    >>> spectrogram, tokens = jnp.zeros((8, 3)), jnp.array([0, 3, 1])
    >>> # jax.jit(net.init) makes arrays
    >>> params = jax.eval_shape(net.init, jax.random.key(0), spectrogram, tokens)
    >>> jax.eval_shape(net.apply, params, spectrogram, tokens).shape
    (3, 5)

    Source: Radford et al. 2022, Robust speech recognition via large-scale weak supervision, arXiv:2212.04356, and its
    published code. The positions of the encoder are sinusoids, params without a gradient (see `Frozen`).
    """
    initial = initializers.normal(0.02)
    norm = functools.partial(LayerNorm, epsilon=epsilon)
    # A bias of the keys adds one number to all scores of a query, which the softmax removes.
    without_dropout = functools.partial(Attention, heads, use_bias=("query", "value", "out"), kernel_init=initial)
    attention = functools.partial(without_dropout, dropout=attention_dropout)
    mlp = TransformerMLP(
        hidden or 4 * features, features, activation=activation, dropout=mlp_dropout, kernel_init=initial
    )
    block = functools.partial(TransformerBlock, mlp=mlp, norm=norm, dropout=dropout)

    def forward(f, *inputs):
        spectrograms, tokens = source_and_target(inputs, cache is not None)
        # The encoder runs in the first call only; with a cache, further pieces of text come without a spectrogram.
        context = []
        for spectrogram in spectrograms:
            y = gelu(f.conv_2(gelu(f.conv_1(spectrogram))))  # (..., frames / 2, features)
            context = [f.encoder_norm(f.encoder(f.dropout(f.source_positions(y))))]
        x = f.decoder(f.dropout(f.positions(f.tokens(tokens))), *context)
        return f.tokens(f.norm(x[0] if context else x))  # (..., time, vocab_size)

    encoder = Repeat(block(attention=attention()), encoder_layers)
    decoder_block = block(
        attention=attention(causal=True) if cache is None else CachedAttention(attention(causal=True), cache),
        cross_attention=attention() if cache is None else KeptContext(without_dropout()),
    )
    decoder = Repeat(decoder_block, decoder_layers)
    return Wire(
        forward,
        conv_1=Conv(features, 3, padding=1, kernel_init=initial),
        conv_2=Conv(features, 3, stride=2, padding=1, kernel_init=initial),
        # The second convolution has stride 2 and padding 1, so that an odd number of frames is rounded up.
        source_positions=Frozen(LearnedPositions((max_frames + 1) // 2, embedding_init=_sinusoids)),
        tokens=Embedding(vocab_size, features, tied=True, embedding_init=initial),
        positions=LearnedPositions(max_length, embedding_init=initial, stateful=cache is not None),
        dropout=Dropout(dropout),
        # Whisper attends to all frames, also to those of padding, so there is no mask.
        encoder=rename_side_inputs(encoder, mask=None, segment_ids=None),
        encoder_norm=norm(),
        decoder=rename_side_inputs(decoder, mask=None, segment_ids=None, context_mask=None),
        norm=norm(),
    )


def _sinusoids(key, shape, dtype):
    """Sines and then cosines of positions, at frequencies from 1 to 1e-4."""
    length, features = shape
    rates = jnp.exp(-math.log(10_000) / max(features // 2 - 1, 1) * jnp.arange((features + 1) // 2, dtype=jnp.float32))
    angles = jnp.arange(length, dtype=jnp.float32)[:, None] * rates[None]
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1)[:, :features].astype(dtype)
