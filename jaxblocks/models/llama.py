r"""Llama: a decoder with root mean square norms, rotary positions, grouped heads and gated MLPs, and no biases.

Axis letters: ``...`` batch; ``time``.
"""

import functools

from jax.nn.initializers import normal

from jaxblocks.activations import silu
from jaxblocks.checks import require_whole
from jaxblocks.core import Layer, StatefulLayer, builder
from jaxblocks.layers.attention import Attention
from jaxblocks.layers.combinators import Repeat, Residual, Serial, Wire
from jaxblocks.layers.dense import Dense
from jaxblocks.layers.dropout import Dropout
from jaxblocks.layers.embedding import Embedding
from jaxblocks.layers.norm import RMSNorm
from jaxblocks.layers.positions import rotary

__all__ = ["Llama"]


@builder
def Llama(
    *,
    vocabulary: int = 32_000,
    layers: int = 32,
    heads: int = 32,
    kv_heads: int | None = None,
    features: int = 4096,
    hidden: int = 11_008,
    base: float | int = 10_000,
    epsilon: float | int = 1e-6,
    dropout: float | int = 0.0,
    cache: int | None = None,
) -> Layer | StatefulLayer:
    r"""A transformer decoder in the manner of Llama; the defaults are the 7B model of the paper.

    It has 6,738,415,616 params. Each block is :math:`x + a(N(x))`, then :math:`x + m(N(x))`, with attention :math:`a`
    whose queries and keys are turned by their positions, and :math:`m(x) = (\mathrm{silu}(x W_g) \odot x W_u) W_d`.
    Positions are relative, so the length of a text is bounded by its cache only.

    Args:
        vocabulary: how many symbols there are.
        layers, heads, features: blocks, heads of the queries, features of each position.
        kv_heads: heads of keys and values, by default as many; 8 of 64 in Llama 2 70B, 8 of 32 in Llama 3 8B.
        hidden: features inside the MLP; about 8/3 of ``features`` has as many params as an MLP of two maps.
        base: of the rotary angles; 500,000 in Llama 3.
        epsilon: of the norms; 1e-5 in Llama 2 and 3.
        dropout: of branches, while training; the paper has none.
        cache: with a length, a ``StatefulLayer`` with the same params for text that comes in pieces: its state is the
            keys and values of so many positions. See `Attention`.

    Shapes: tokens ``(..., time)``, whole numbers, to logits ``(..., time, vocabulary)``.

    Side inputs: ``mask``, ``False`` at padding (padding on the right needs none: nobody looks there), and
    ``segment_ids`` (without cache), as in `Attention`; ``train`` and ``key`` for the dropout.

    >>> net = Llama(vocabulary=5, layers=2, heads=2, kv_heads=1, features=4, hidden=12)
    >>> tokens = jnp.array([0, 3, 1])
    >>> params = net.init(jax.random.key(0), tokens)
    >>> net.apply(params, tokens).shape
    (3, 5)

    Source: Touvron et al. 2023, LLaMA: Open and efficient foundation language models, section 2.2. The gated MLP:
    Shazeer 2020, GLU variants improve transformer. Initial weights are normal with deviation 0.02, as in the published
    training codes; the paper does not state them.
    """
    layers = require_whole("Llama", "layers", layers)
    linear = dict(use_bias=False, kernel_init=normal(0.02))
    turn = functools.partial(rotary, base=base)
    attend = Attention(heads, kv_heads=kv_heads, causal=True, positions=turn, cache=cache, **linear)
    mlp = Wire(
        lambda f, x: f.down(silu(f.gate(x)) * f.up(x)),
        gate=Dense(hidden, **linear),
        up=Dense(hidden, **linear),
        down=Dense(features, **linear),
    )
    block = Serial(
        attend=Residual(norm=RMSNorm(epsilon=epsilon), attention=attend, dropout=Dropout(dropout)),
        think=Residual(norm=RMSNorm(epsilon=epsilon), mlp=mlp, dropout=Dropout(dropout)),
    )
    return Serial(
        tokens=Embedding(vocabulary, features, embedding_init=normal(0.02)),
        blocks=Repeat(block, layers),
        norm=RMSNorm(epsilon=epsilon),
        out=Dense(vocabulary, **linear),
    )
