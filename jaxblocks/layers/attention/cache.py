"""Attention with a key-value cache, for sequences in pieces, such as one token at a time."""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from jaxblocks.checks import check_values, checkable, describe, require
from jaxblocks.core import ArrayOrShape, StatefulLayer
from jaxblocks.layers.attention.masks import zero_padding
from jaxblocks.layers.attention.projections import Projections

__all__ = ["cached_attention"]


def cached_attention(
    maps: Projections, attend: Callable, length: int, *, reads_key: bool, check_traced: bool
) -> StatefulLayer:
    """The stateful pair of `Attention`: its state holds the keys and values of up to ``length`` positions.

    ``attend(q, k, v, *, offset, mask)`` is causal attention, and takes ``train`` and ``key`` if it ``reads_key``.
    """

    def init(key, *inputs: Float[ArrayOrShape, "*batch time features"]):
        x = _only(inputs)
        d, shape = maps.width(x), (*x.shape[:-2], length, maps.kv_heads)
        state = {
            "key": jnp.zeros((*shape, d), maps.dtype or x.dtype),
            "value": jnp.zeros((*shape, maps.value_dim or d), maps.dtype or x.dtype),
            "mask": jnp.zeros(shape[:-1], bool),
            "position": jnp.zeros((), jnp.int32),
        }
        return maps.init(key, x, x, x), state

    def run(params, state, inputs, mask, **training):
        complete = isinstance(state, Mapping) and set(state) == {"key", "value", "mask", "position"}
        require(complete, "its state, a dict of key, value, mask and position", state, "pass the state that init made")
        position = state["position"]  # of the first query, which is the number of keys in the cache
        inputs, of_keys, mask = zero_padding((_only(inputs),), mask, maps.heads, length)
        q, k, v = maps.split(params, *inputs * 3, position=position)
        room = _has_room(state, k, position, check_traced)
        of_keys = jnp.ones_like(k[..., 0, 0], bool) if of_keys is None else of_keys  # (*batch, time)
        kept = {
            name: lax.dynamic_update_slice_in_dim(
                _sharded_like(state[name], x), x.astype(state[name].dtype), position, axis
            )
            for name, x, axis in (("key", k, -3), ("value", v, -3), ("mask", of_keys, -1))
        }
        k, v = kept["key"].astype(q.dtype), kept["value"].astype(q.dtype)
        valid = kept["mask"][..., None, None, :]
        mask = valid if mask is None else mask & valid
        out = maps.join(params, attend(q, k, v, offset=position, mask=mask, **training))
        return jnp.where(room, out, jnp.nan), {**kept, "position": position + q.shape[-3]}

    if not reads_key:

        def apply(params, state, *inputs: Float[Array, "*batch time features"], mask: Bool[Array, "..."] | None = None):
            return run(params, state, inputs, mask)

        return StatefulLayer(init, apply)

    def apply_with_key(
        params,
        state,
        *inputs: Float[Array, "*batch time features"],
        mask: Bool[Array, "..."] | None = None,
        train=False,
        key=None,
    ):
        return run(params, state, inputs, mask, train=train, key=key)

    return StatefulLayer(init, apply_with_key)


def _only(inputs):
    expected = "x alone, since it has a cache"
    require(len(inputs) == 1, expected, f"{len(inputs)} inputs", error=TypeError)
    return inputs[0]


def _sharded_like(x, like):
    """``x`` with the sharding of ``like``, if sharding is part of the type (explicit meshes)."""
    wanted = jax.typeof(like).sharding
    return x if wanted.spec == jax.typeof(x).sharding.spec else jax.sharding.reshard(x, wanted)


def _has_room(state, k, position, check_traced):
    """Whether the new keys fit into the cache; an error where the values are concrete."""
    cache = state["key"]
    same = cache.shape[:-3] == k.shape[:-3] and cache.shape[-2:] == k.shape[-2:]
    expected = f"a state for keys (*batch, time, heads, features), {describe(k)}"
    repair = "make the state by init from inputs with the same batch"
    require(same, expected, f"a cache {describe(cache)}", repair)
    room, more = cache.shape[-3], k.shape[-3]
    message = f"at most {room} positions in its cache"
    require(more <= room, message, f"{more} at once", "build it with a larger cache=")
    known = checkable(position, check_traced)
    if known is not None:
        message += ", got {more} after {before}; build it with a larger cache=, or begin with a new state"
        check_values(known + more <= room, message, check=check_traced, before=known, more=more)
    return position + more <= room
