r"""GPT-2: a decoder that reads text from left to right and says what comes next.

Axis letters: ``...`` batch; ``time``.
"""

import functools

from jax.nn.initializers import normal

from jaxblocks.activations import gelu
from jaxblocks.checks import require_whole
from jaxblocks.core import Layer, StatefulLayer, builder
from jaxblocks.layers.attention import Attention
from jaxblocks.layers.combinators import Repeat, Residual, Serial, Wire
from jaxblocks.layers.dense import Dense
from jaxblocks.layers.dropout import Dropout
from jaxblocks.layers.embedding import Embedding
from jaxblocks.layers.norm import LayerNorm
from jaxblocks.layers.positions import LearnedPositions

__all__ = ["GPT2"]


@builder
def GPT2(
    *,
    vocabulary: int = 50_257,
    context: int = 1024,
    layers: int = 12,
    heads: int = 12,
    features: int = 768,
    dropout: float | int = 0.1,
    epsilon: float | int = 1e-5,
    cache: int | None = None,
) -> Layer | StatefulLayer:
    r"""A transformer decoder with norms before each half of a block; the defaults are the smallest GPT-2.

    It has 124,439,808 params. Each block is :math:`x + a(N(x))`, then :math:`x + m(N(x))`, with attention :math:`a` to
    what came before and an MLP :math:`m` four times as wide. The table of symbols is read out as well (tied weights),
    GELU is the tanh approximation, and the maps that end a residual branch begin smaller by
    :math:`1 / \sqrt{2 \cdot \text{layers}}`, so that the variance of their sum does not grow with depth.

    Args:
        vocabulary: how many symbols there are.
        context: the longest text, the rows of the table of positions.
        layers, heads, features: blocks, heads of each, features of each position; 24, 16, 1024 is "medium", 36, 20,
            1280 "large", 48, 25, 1600 "XL".
        dropout: of embeddings, attention weights and branches, while training.
        epsilon: of the layer norms.
        cache: with a length, a ``StatefulLayer`` with the same params for text that comes in pieces: its state is the
            keys and values of so many positions, at most ``context``, and how many there are. See `Attention`.

    Shapes: tokens ``(..., time)``, whole numbers, to logits ``(..., time, vocabulary)``.

    Side inputs: ``mask``, ``False`` at padding (padding on the right needs none: nobody looks there), and
    ``segment_ids`` (without cache), as in `Attention`; ``train`` and ``key`` for the dropout.

    Raises:
        ValueError: for a text, or a cache, of more than ``context`` positions; where only values tell (pieces under
            ``jit``) the logits are NaN from there on.

    >>> net = GPT2(vocabulary=5, context=8, layers=2, heads=2, features=4)
    >>> tokens = jnp.array([0, 3, 1])
    >>> params = net.init(jax.random.key(0), tokens)
    >>> net.apply(params, tokens).shape
    (3, 5)

    Source: Radford et al. 2019, Language models are unsupervised multitask learners, and its published code.
    """
    layers, context = require_whole("GPT2", "layers", layers), require_whole("GPT2", "context", context)
    if cache is not None and require_whole("GPT2", "cache", cache) > context:
        raise ValueError(
            f"GPT2 knows {context} positions, but cache={cache} came; make the cache at most as long as the context."
        )
    weights = dict(kernel_init=normal(0.02))
    last = normal(0.02 / (2 * layers) ** 0.5)  # of each residual branch
    attend = Attention(heads, causal=True, dropout=dropout, cache=cache, out_kernel_init=last, **weights)
    block = Serial(
        attend=Residual(norm=LayerNorm(epsilon=epsilon), attention=attend, dropout=Dropout(dropout)),
        think=Residual(
            norm=LayerNorm(epsilon=epsilon),
            up=Dense(4 * features, **weights),
            gelu=functools.partial(gelu, approximate=True),
            down=Dense(features, kernel_init=last),
            dropout=Dropout(dropout),
        ),
    )
    return Wire(
        lambda f, tokens: f.tokens(f.norm(f.blocks(f.dropout(f.positions(f.tokens(tokens)))))),
        tokens=Embedding(vocabulary, features, tied=True, embedding_init=normal(0.02)),
        positions=LearnedPositions(context, embedding_init=normal(0.01), stateful=cache is not None),
        dropout=Dropout(dropout),
        blocks=Repeat(block, layers),
        norm=LayerNorm(epsilon=epsilon),
    )
