"""Attention with a key-value cache, for sequences in pieces, such as one token at a time."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from jaxblocks.backend.symbolic_sizes import at_most, missing_constraints
from jaxblocks.checks.errors import describe, require
from jaxblocks.checks.expectations import PositiveInt
from jaxblocks.checks.values import check_values, checkable
from jaxblocks.core.pairs import ArrayOrShape, Layer, StatefulLayer, builder
from jaxblocks.layers.attention.multi_head import steps_of
from jaxblocks.layers.attention.padding import zero_padding

__all__ = ["CachedAttention"]


@builder
def CachedAttention(layer: Layer, length: PositiveInt, *, check: bool = False) -> StatefulLayer:
    """An `Attention` with a key-value cache, for a sequence in pieces of any size, such as one token at a time.

    The outputs for the pieces equal those of ``layer`` for the whole sequence, with the same params (but training drops
    other weights). The state, ``{"key", "value", "mask", "position"}``, stores keys and values, ``(*batch, heads,
    length, features)``, and their mask for ``length`` positions, and the number of positions so far.

    Args:
        layer: an `Attention` with ``causal=True``.
        length: the number of positions in the cache.
        check: under ``jit``, report a sequence that is longer than the cache to ``jax.experimental.checkify``.

    Shapes: ``x`` ``(*batch, time, features)`` to the same; it is the only input.

    Side inputs of ``apply``: those of ``layer`` without ``segment_ids``. A mask of keys is that of the piece,
    ``(*batch, time)``, and is stored; in a mask of scores ``time_k`` is ``length``.

    Raises:
        ValueError: for a sequence that is longer than the cache, if the position is concrete. Under ``jit`` the outputs
            beyond are NaN.

    >>> layer = Attention(2, causal=True)
    >>> decoder = CachedAttention(layer, 16)
    >>> x = jax.random.normal(jax.random.key(0), (5, 8))
    >>> params, state = jax.jit(decoder.init)(jax.random.key(1), x)
    >>> step = jax.jit(decoder.apply)
    >>> first, state = step(params, state, x[:3])
    >>> rest, state = step(params, state, x[3:])
    >>> together = jax.jit(layer.apply)(params, x)
    >>> (
    ...     bool(jnp.allclose(jnp.concatenate([first, rest]), together, atol=1e-5)),
    ...     int(state["position"]),
    ... )
    (True, 5)

    Source: Shazeer 2019, Fast transformer decoding, arXiv:1911.02150.
    """
    steps = steps_of(layer)
    repair = "pass causal=True to Attention, since later positions would change earlier outputs"
    # In a causal layer, an output depends on earlier positions only, so later pieces leave it unchanged.
    require(steps.causal, "an Attention with causal=True", repr(layer), repair)
    kv_heads = steps.kv_heads or steps.heads

    def init(key, *inputs: Float[ArrayOrShape, "*batch time _in"]):
        x = _only(inputs)
        d, shape = steps.width(x), (*x.shape[:-2], kv_heads, length)
        state = {
            "key": jnp.zeros((*shape, d), steps.dtype or x.dtype),
            "value": jnp.zeros((*shape, steps.value_dim or d), steps.dtype or x.dtype),
            "mask": jnp.zeros((*x.shape[:-2], length), bool),
            "position": jnp.zeros((), jnp.int32),
        }
        return steps.init(key, x, x, x), state

    def apply(
        params,
        state,
        *inputs: Float[Array, "*batch time features"],
        mask: Bool[Array, "..."] | None = None,
        train=False,
        key=None,
    ):
        # Checked first: a state of another layer would give a KeyError without the name of the layer.
        complete = isinstance(state, Mapping) and set(state) == {"key", "value", "mask", "position"}
        require(complete, "its state, a dict of key, value, mask and position", state, "pass the state that init made")
        position = state["position"]  # of the first query, which is the number of keys in the cache
        inputs, of_keys, mask = zero_padding((_only(inputs),), mask, steps.heads, length)
        # Positions count from the start of the sequence; rotations are stored with the keys.
        q, k, v = steps.project(params, *inputs * 3, position=position)
        # The cache stores which of its keys are padding, since later queries must not attend to them either.
        of_keys = jnp.ones_like(k[..., 0, 0], bool) if of_keys is None else of_keys  # (*batch, time)
        k, v = jnp.swapaxes(k, -3, -2), jnp.swapaxes(v, -3, -2)  # (*batch, kv_heads, time, features)
        room = _has_room(state, k, position, check)
        # dynamic_update_slice moves a start that is too large backwards, over valid keys; `room` detects this.
        kept = {
            name: lax.dynamic_update_slice_in_dim(
                _sharded_like(state[name], x), x.astype(state[name].dtype), position, axis
            )
            for name, x, axis in (("key", k, -2), ("value", v, -2), ("mask", of_keys, -1))
        }
        k, v = (jnp.swapaxes(kept[name], -3, -2).astype(q.dtype) for name in ("key", "value"))
        # (*batch, 1, 1, length): False at positions not written yet and at padding
        valid = kept["mask"][..., None, None, :]
        mask = valid if mask is None else mask & valid
        out = steps.join(params, steps.attend(params, q, k, v, offset=position, mask=mask, train=train, key=key))
        # Under jit the overflow cannot raise an error, so the outputs become NaN.
        out = jax.tree.map(lambda y: jnp.where(room, y, jnp.nan), out)
        return out, {**kept, "position": position + q.shape[-3]}

    def apply_without_key(
        params, state, *inputs: Float[Array, "*batch time features"], mask: Bool[Array, "..."] | None = None
    ):
        return apply(params, state, *inputs, mask=mask)

    return StatefulLayer(init, apply if steps.dropout else apply_without_key)


def _only(inputs):
    expected = "x alone, since it has a cache"
    repair = "use Attention, which has no cache, for a context"
    require(len(inputs) == 1, expected, f"{len(inputs)} inputs", repair, error=TypeError)
    return inputs[0]


def _sharded_like(x, like):
    """``x`` with the sharding of ``like``, if sharding is part of the type (explicit meshes)."""
    wanted = jax.typeof(like).sharding
    return x if wanted.spec == jax.typeof(x).sharding.spec else jax.sharding.reshard(x, wanted)


def _has_room(state, k, position, check):
    """Whether the new keys fit into the cache; an error where the values are concrete."""
    cache = state["key"]
    same = cache.shape[:-2] == k.shape[:-2] and cache.shape[-1:] == k.shape[-1:]
    expected = f"a state for keys (*batch, heads, time, features), {describe(k)}"
    repair = "make the state by init from inputs with the same batch"
    require(same, expected, f"a cache {describe(cache)}", repair)
    room, more = cache.shape[-2], k.shape[-2]
    message = f"at most {room} positions in its cache"
    repair = missing_constraints((more, room)) or "build it with a larger cache"
    require(at_most(more, room), message, f"{more} at once", repair)
    known = checkable(position, check)
    if known is not None:
        message += ", got {more} after {before}; build it with a larger cache, or begin with a new state"
        check_values(known + more <= room, message, check=check, before=known, more=more)
    return position + more <= room
