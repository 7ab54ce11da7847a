r"""The transformer: an encoder reads a source, and a decoder writes a target while it looks at what the encoder made.

Axis letters: ``...`` batch; ``time_s`` positions of the source; ``time_t`` of the target.
"""

import jax.numpy as jnp
from jax.nn.initializers import glorot_uniform, variance_scaling

from jaxblocks.activations import relu
from jaxblocks.checks import require_whole
from jaxblocks.core import Layer, StatefulLayer, builder
from jaxblocks.layers.attention import Attention
from jaxblocks.layers.combinators import Repeat, Residual, Serial, Wire
from jaxblocks.layers.dense import Dense
from jaxblocks.layers.dropout import Dropout
from jaxblocks.layers.embedding import Embedding
from jaxblocks.layers.norm import LayerNorm
from jaxblocks.layers.positions import SinusoidalPositions

__all__ = ["Transformer"]


@builder
def Transformer(
    *,
    vocabulary: int = 37_000,
    layers: int = 6,
    heads: int = 8,
    features: int = 512,
    hidden: int = 2048,
    head_dim: int | None = None,
    value_dim: int | None = None,
    dropout: float | int = 0.1,
    epsilon: float | int = 1e-6,
    cache: int | None = None,
) -> Layer | StatefulLayer:
    r"""The encoder-decoder of "Attention is all you need"; the defaults are its base model.

    A block of the encoder is :math:`N(x + a(x))`, then :math:`N(x + m(x))` with attention :math:`a` and an MLP
    :math:`m`. In the decoder :math:`a` sees only what came before, and between the two halves stands :math:`N(x + c(x,
    y))` with attention :math:`c` to the encoder's output y. One table of symbols serves source, target and read-out;
    where it is looked up, its rows are multiplied by :math:`\sqrt{\text{features}}`, and waves of the positions are
    added.

    Args:
        vocabulary: how many symbols source and target have together.
        layers: blocks of the encoder, and of the decoder.
        heads, features, hidden: heads of each attention, features of each position, features inside the MLP; 16, 1024
            and 4096 is the "big" model.
        head_dim, value_dim: features of a key and of a value, by default ``features / heads``.
        dropout: of embeddings and branches, while training; 0.3 in the big model.
        epsilon: of the layer norms; the paper does not state it, its code has 1e-6.
        cache: with a length, a ``StatefulLayer`` with the same params for targets that come in pieces. Its state is the
            encoder's output and the decoder's keys and values of so many positions. ``apply(params, state, source,
            target)`` reads the source and begins; what follows is ``apply(params, state, target)`` alone.

    Shapes: source ``(..., time_s)`` and target ``(..., time_t)``, whole numbers, to logits ``(..., time_t,
    vocabulary)``: those at t are of the symbol after target t, so in training a symbol that begins it is put first.

    Side inputs: ``mask``, boolean ``(..., time_s)``, ``False`` at padding of the source (padding of the target stands
    on its right and needs none: nobody looks there); ``train`` and ``key`` for the dropout.

    Raises:
        ValueError: for a target that is longer than its cache, as `Attention` does. With a cache and no source so far,
            the logits are NaN.

    >>> net = Transformer(vocabulary=5, layers=2, heads=2, features=4, hidden=8)
    >>> source, target = jnp.array([0, 3, 1, 2]), jnp.array([0, 2, 1])
    >>> params = net.init(jax.random.key(0), source, target)
    >>> net.apply(params, source, target).shape
    (3, 5)

    Source: Vaswani et al. 2017, Attention is all you need; biases and initial weights as in its code, tensor2tensor.
    """
    sizes = {"layers": layers, "heads": heads, "features": features}
    layers, heads, features = (require_whole("Transformer", *size) for size in sizes.items())
    if features % heads and None in (head_dim, value_dim):
        raise ValueError(
            f"Transformer expects heads to divide features, but heads={heads} and features={features} came; choose a "
            "divisor, or pass head_dim= and value_dim=."
        )

    def attention(**options):
        sizes = dict(head_dim=head_dim or features // heads, value_dim=value_dim or features // heads)
        layer = Attention(heads, use_bias=False, kernel_init=glorot_uniform(), **sizes, **options)
        return layer if isinstance(layer, StatefulLayer) else _with_mask(layer)

    def norm():
        return LayerNorm(epsilon=epsilon)

    def mlp():
        up, down = (Dense(n, kernel_init=glorot_uniform()) for n in (hidden, features))
        return Residual(up=up, relu=relu, down=down, dropout=Dropout(dropout))

    encoder = Serial(
        attend=Residual(attention=attention(), dropout=Dropout(dropout)),
        attend_norm=norm(),
        think=mlp(),
        think_norm=norm(),
    )

    def decode(f, x, *memory, mask=None):  # the mask is that of the memory
        x = f.attend_norm(x + f.dropout(f.attend(x, mask=None)))
        x = f.look_norm(x + f.dropout(f.look(x, *memory, mask=mask)))
        return f.think_norm(f.think(x)), *memory

    decoder = Wire(
        decode,
        attend=attention(causal=True, cache=cache),
        attend_norm=norm(),
        look=attention() if cache is None else _Remembering(attention()),
        look_norm=norm(),
        think=mlp(),
        think_norm=norm(),
        dropout=Dropout(dropout),
    )

    def forward(f, *inputs):
        if len(inputs) != 2 and (cache is None or len(inputs) != 1):
            or_one = "" if cache is None else ", or a further piece of the target alone"
            raise TypeError(f"Transformer expects source and target{or_one}, but {len(inputs)} inputs came.")
        *source, target = (f.tokens(x) * features**0.5 for x in inputs)
        memory = [f.encoder(f.dropout(f.source_positions(x))) for x in source]
        x = f.decoder(f.dropout(f.target_positions(target)), *memory)
        return f.tokens(x[0] if memory else x)  # (..., time_t, vocabulary)

    return Wire(
        forward,
        tokens=Embedding(vocabulary, features, tied=True, embedding_init=variance_scaling(1.0, "fan_out", "normal")),
        source_positions=SinusoidalPositions(),
        target_positions=SinusoidalPositions(stateful=cache is not None),
        dropout=Dropout(dropout),
        encoder=Repeat(encoder, layers),
        decoder=Repeat(decoder, layers),
    )


def _with_mask(attention: Layer) -> Layer:
    """The layer without its other side inputs, which would be one thing for the source and another for the target."""

    def apply(params, *inputs, mask=None):
        return attention.apply(params, *inputs, mask=mask)

    return Layer(attention.init, apply)


def _Remembering(attention: Layer) -> StatefulLayer:
    """Attention to a context that is given once and kept: ``x, context`` at first, then ``x`` alone."""

    def init(key, x, context):
        state = {
            "context": jnp.zeros(context.shape, context.dtype),
            "mask": jnp.zeros(context.shape[:-1], bool),
            "read": jnp.zeros((), bool),
        }
        return attention.init(key, x, context), state

    def apply(params, state, x, *context, mask=None):
        if context:
            mask = jnp.ones(context[0].shape[:-1], bool) if mask is None else mask
            state = {"context": context[0], "mask": mask, "read": jnp.ones((), bool)}
        elif mask is not None:
            raise ValueError(
                "Transformer keeps the mask of its source, but another one came with a further piece of the target; "
                "pass mask with the source only."
            )
        out = attention.apply(params, x, state["context"], mask=state["mask"])
        return jnp.where(state["read"], out, jnp.nan), state

    return StatefulLayer(init, apply)
