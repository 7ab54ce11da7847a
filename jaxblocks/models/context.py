"""Decoders of a context that is given once: cross-attention in pieces, and the inputs of an encoder-decoder.

Axis letters: ``*batch``; ``time`` of the piece; ``time_c`` of the context.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxblocks.checks.errors import require
from jaxblocks.core.pairs import ArrayOrShape, Layer, StatefulLayer
from jaxblocks.layers.attention.multi_head import steps_of

__all__ = ["KeptContext", "source_and_target"]


def KeptContext(layer: Layer) -> StatefulLayer:
    """Cross-attention for a sequence in pieces: ``x, context`` in the first call, and in further calls ``x`` alone.

    Its state stores the keys and values of the context, so that these are computed once. Outputs are NaN until a
    context is given.

    Args:
        layer: an `Attention` without dropout and rules of positions: ``causal``, windows, biases.

    >>> attend = KeptContext(Attention(2))
    >>> x, context = jnp.ones((3, 4)), jnp.ones((5, 4))
    >>> params, state = attend.init(jax.random.key(0), x, context)
    >>> apply = jax.jit(attend.apply)
    >>> first, state = apply(params, state, x, context)
    >>> again, state = apply(params, state, x)
    >>> bool((first == again).all())
    True
    """
    steps = steps_of(layer)
    # Rules of positions depend on the places of the queries, which pieces do not state.
    given = getattr(steps.attention_fn, "keywords", {})  # those of functools.partial
    rules = steps.causal or any(given.get(name) not in (None, False) for name in ("causal", "sliding_window", "bias"))
    plain = not (steps.dropout or rules) and steps.positions is None and steps.score_bias is None
    expected = "an Attention without dropout, positions, a bias, a window and causal=True"
    require(plain, expected, repr(layer), f"pass for instance Attention({steps.heads})")

    def init(key, x: Float[ArrayOrShape, "*batch time features"], context: Float[ArrayOrShape, "*batch time_c in"]):
        d, shape = steps.width(x), (*context.shape[:-1], steps.kv_heads or steps.heads)
        dtype = steps.dtype or context.dtype
        state = {
            "key": jnp.zeros((*shape, d), dtype),
            "value": jnp.zeros((*shape, steps.value_dim or d), dtype),
            "mask": jnp.zeros(context.shape[:-1], bool),
            # Zeros are valid keys and values; without this flag, outputs before the first context would be plausible
            # and wrong.
            "is_set": jnp.zeros((), bool),
        }
        return steps.init(key, x, context, context), state

    def apply(
        params,
        state,
        x: Float[Array, "*batch time features"],
        *context: Float[Array, "*batch time_c in"],
        mask: Bool[Array, "*batch time_c"] | None = None,
    ):
        if context:
            # The context is the input of the keys and of the values.
            q, k, v = steps.project(params, x, *context * 2)
            mask = jnp.ones(context[0].shape[:-1], bool) if mask is None else mask
            state = {"key": k, "value": v, "mask": mask, "is_set": jnp.ones((), bool)}
        else:
            q = steps.project_one(params, "query", x)
        # The mask gets axes for heads and queries.
        out = steps.attend(params, q, state["key"], state["value"], mask=state["mask"][..., None, None, :])
        out = jax.tree.map(lambda y: jnp.where(state["is_set"], y, jnp.nan), steps.join(params, out))
        return out, state

    return StatefulLayer(init, apply)


def source_and_target(inputs: tuple, cached: bool, mask=None) -> tuple[tuple, Array]:
    """The inputs of an encoder-decoder: the source, none in a further piece of a cached target, and the target."""
    or_one = ", or a further piece of the target alone" if cached else ""
    fits = len(inputs) == 2 or (cached and len(inputs) == 1)
    repair = f"write apply(params, {'state, ' * cached}source, target)"
    require(fits, f"source and target{or_one}", f"{len(inputs)} inputs", repair, error=TypeError)
    expected, got = "mask with the source only", "one with a further piece of the target"
    require(mask is None or len(inputs) == 2, expected, got, "leave it out, the mask of the source is kept")
    return inputs[:-1], inputs[-1]
