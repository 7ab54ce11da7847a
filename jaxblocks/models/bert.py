r"""BERT: an encoder that reads text in both directions at once.

Axis letters: ``...`` batch; ``time``.
"""

import jax.numpy as jnp
from jax.nn.initializers import truncated_normal

from jaxblocks.activations import gelu, tanh
from jaxblocks.checks import require_whole
from jaxblocks.core import Layer, builder
from jaxblocks.layers.attention import Attention
from jaxblocks.layers.combinators import Repeat, Residual, Serial, Wire
from jaxblocks.layers.dense import Dense
from jaxblocks.layers.dropout import Dropout
from jaxblocks.layers.embedding import Embedding
from jaxblocks.layers.norm import LayerNorm
from jaxblocks.layers.positions import LearnedPositions

__all__ = ["BERT"]


@builder
def BERT(
    *,
    vocabulary: int = 30_522,
    context: int = 512,
    segments: int = 2,
    layers: int = 12,
    heads: int = 12,
    features: int = 768,
    hidden: int = 3072,
    dropout: float | int = 0.1,
    epsilon: float | int = 1e-12,
    pooler: bool = True,
) -> Layer:
    r"""A transformer encoder with norms after each half of a block; the defaults are BERT-base (uncased).

    It has 109,482,240 params with the pooler. Each block is :math:`N(x + a(x))`, then :math:`N(x + m(x))`, with
    attention :math:`a` of all to all and an MLP :math:`m` with the exact GELU. The input is the sum of three
    embeddings: of the symbol, of its position, and of its segment (of two sentences, which one).

    Args:
        vocabulary: how many symbols there are.
        context: the longest text, the rows of the table of positions.
        segments: how many there are.
        layers, heads, features, hidden: blocks, heads of each, features of each position, features inside the MLP; 24,
            16, 1024, 4096 is BERT-large.
        dropout: of embeddings, attention weights and branches, while training.
        epsilon: of the layer norms.
        pooler: ``True`` returns a summary of the text beside the features, :math:`\tanh(x_0 W + b)` of the first
            position; ``False`` the features alone.

    Shapes: tokens ``(..., time)``, and, if wanted, the segment of each, ``(..., time)``, by default 0, to features
    ``(..., time, features)``, with ``pooler`` a tuple of these and ``(..., features)``. A classifier of texts is
    ``Serial(BERT(), lambda features, pooled: pooled, Dropout(0.1), Dense(2))``.

    Side inputs: ``mask``, boolean ``(..., time)``, ``False`` at padding, which then has no effect elsewhere (what
    comes out there means nothing); ``segment_ids``, of texts packed into one, as in `Attention`; ``train`` and ``key``
    for the dropout.

    Raises:
        ValueError: for more than ``context`` positions.

    >>> net = BERT(vocabulary=5, context=8, layers=2, heads=2, features=4, hidden=8)
    >>> tokens = jnp.array([[0, 3, 1], [2, 4, 4]])
    >>> params = net.init(jax.random.key(0), tokens)
    >>> features, pooled = net.apply(params, tokens, mask=jnp.array([[True, True, True], [True, False, False]]))
    >>> features.shape, pooled.shape
    ((2, 3, 4), (2, 4))

    Source: Devlin et al. 2018, BERT: Pre-training of deep bidirectional transformers.
    """
    layers = require_whole("BERT", "layers", layers)
    initial = truncated_normal(0.02)
    weights = dict(kernel_init=initial)
    block = Serial(
        attend=Residual(attention=Attention(heads, dropout=dropout, **weights), dropout=Dropout(dropout)),
        attend_norm=LayerNorm(epsilon=epsilon),
        think=Residual(
            up=Dense(hidden, **weights), gelu=gelu, down=Dense(features, **weights), dropout=Dropout(dropout)
        ),
        think_norm=LayerNorm(epsilon=epsilon),
    )

    def encode(f, tokens, segments=None):
        segments = jnp.zeros_like(tokens) if segments is None else segments
        x = f.positions(f.tokens(tokens) + f.segments(segments))
        return f.blocks(f.dropout(f.norm(x)))

    encoder = dict(
        tokens=Embedding(vocabulary, features, embedding_init=initial),
        segments=Embedding(segments, features, embedding_init=initial),
        positions=LearnedPositions(context, embedding_init=initial),
        norm=LayerNorm(epsilon=epsilon),
        dropout=Dropout(dropout),
        blocks=Repeat(block, layers),
    )
    if not pooler:
        return Wire(encode, **encoder)

    def forward(f, *inputs):
        x = encode(f, *inputs)
        return x, tanh(f.pooler(x[..., 0, :]))

    return Wire(forward, **encoder, pooler=Dense(features, **weights))
