r"""BERT: a transformer encoder with bidirectional attention.

Axis letters: ``...`` batch; ``time``.
"""

import functools

import jax.numpy as jnp

from jaxblocks import initializers
from jaxblocks.activations import gelu, tanh
from jaxblocks.checks import Epsilon, PositiveInt, Rate
from jaxblocks.core import Layer, LayerLike, builder
from jaxblocks.layers.attention import Attention
from jaxblocks.layers.combinators import Repeat, Wire
from jaxblocks.layers.dense import Dense
from jaxblocks.layers.dropout import Dropout
from jaxblocks.layers.embedding import Embedding
from jaxblocks.layers.norm import LayerNorm
from jaxblocks.layers.positions import LearnedPositions
from jaxblocks.models.transformer_block import TransformerBlock, TransformerMLP

__all__ = ["BERT"]


@builder
def BERT(
    *,
    vocab_size: PositiveInt = 30_522,
    max_length: PositiveInt = 512,
    segments: PositiveInt = 2,
    layers: PositiveInt = 12,
    heads: PositiveInt = 12,
    features: PositiveInt = 768,
    hidden: PositiveInt = 3072,
    dropout: Rate = 0.1,
    epsilon: Epsilon = 1e-12,
    pooler: bool = True,
) -> Layer:
    r"""A transformer encoder with post-norm blocks; the defaults are BERT-base (uncased).

    It has 109,482,240 params with the pooler. Each block is :math:`N(x + a(x))`, then :math:`N(x + m(x))`, with
    bidirectional attention :math:`a` and an MLP :math:`m` with the exact GELU. The input is the sum of three
    embeddings: of the token, of its position, and of its segment (the first or second sentence).

    Args:
        vocab_size: the number of tokens.
        max_length: the maximal length of a sequence, the number of position embeddings.
        segments: the number of segments.
        layers, heads, features, hidden: blocks, heads per block, features per position, features inside the MLP; 24,
            16, 1024, 4096 is BERT-large.
        dropout: the rate for embeddings, attention weights and branches, in training.
        epsilon: of the layer norms.
        pooler: ``True`` also returns a summary of the sequence, :math:`\tanh(x_0 W + b)` of the first position;
            ``False`` returns the features only.

    Shapes: tokens ``(..., time)``, and optionally the segment of each, ``(..., time)``, by default 0, to features
    ``(..., time, features)``; with ``pooler``, to a tuple of these and ``(..., features)``. A classifier of sequences
    is ``Serial(BERT(), lambda features, pooled: pooled, Dropout(0.1), Dense(2))``.

    Side inputs: ``mask``, boolean ``(..., time)``, ``False`` at padding, which then does not affect other positions
    (outputs at padding are meaningless); ``segment_ids`` for several sequences packed into one, as in `Attention`;
    ``train`` and ``key`` for the dropout.

    Raises:
        ValueError: for more than ``max_length`` positions.

    >>> net = BERT(vocab_size=5, max_length=8, layers=2, heads=2, features=4, hidden=8)
    >>> tokens = jnp.array([[0, 3, 1], [2, 4, 4]])
    >>> params = net.init(jax.random.key(0), tokens)
    >>> features, pooled = net.apply(params, tokens, mask=jnp.array([[True, True, True], [True, False, False]]))
    >>> features.shape, pooled.shape
    ((2, 3, 4), (2, 4))

    A symbolic time axis of ``jax.export`` needs the constraint that it is at most ``max_length``:

    >>> from jax import export
    >>> shape = export.symbolic_shape("b, t", constraints=["t <= 8"])
    >>> program = export.export(jax.jit(net.apply))(params, jax.ShapeDtypeStruct(shape, tokens.dtype))
    >>> [x.shape for x in program.out_avals]
    [(b, t, 4), (b, 4)]

    Source: Devlin et al. 2018, BERT: Pre-training of deep bidirectional transformers, arXiv:1810.04805.
    """
    initial = initializers.truncated_normal(0.02)
    norm = functools.partial(LayerNorm, epsilon=epsilon)
    block = TransformerBlock(
        attention=Attention(heads, dropout=dropout, kernel_init=initial),
        mlp=TransformerMLP(hidden, features, activation=gelu, kernel_init=initial),
        norm=norm,
        norm_first=False,
        dropout=dropout,
    )

    def encode(f, tokens, segments=None):
        segments = jnp.zeros_like(tokens) if segments is None else segments
        x = f.positions(f.tokens(tokens) + f.segments(segments))
        return f.blocks(f.dropout(f.embedding_norm(x)))

    encoder: dict[str, LayerLike] = dict(
        tokens=Embedding(vocab_size, features, embedding_init=initial),
        segments=Embedding(segments, features, embedding_init=initial),
        positions=LearnedPositions(max_length, embedding_init=initial),
        embedding_norm=norm(),
        dropout=Dropout(dropout),
        blocks=Repeat(block, layers),
    )
    if not pooler:
        return Wire(encode, **encoder)  # type: ignore[return-value]

    def forward(f, *inputs):
        x = encode(f, *inputs)
        return x, tanh(f.pooler(x[..., 0, :]))

    encoder["pooler"] = Dense(features, kernel_init=initial)
    return Wire(forward, **encoder)  # type: ignore[return-value]
