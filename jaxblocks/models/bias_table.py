"""Biases of attention scores by distance, from one table that all blocks of a stack share.

Axis letters: ``*batch``; ``time`` positions.
"""

from typing import Any, Unpack

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxblocks.checks.expectations import PositiveInt, check_params
from jaxblocks.core.pairs import ArrayOrShape, Layer, LayerLike, StatefulLayer
from jaxblocks.layers.attention import Attention, CachedAttention
from jaxblocks.layers.attention.dot_product import SegmentIds
from jaxblocks.layers.attention.multi_head import AttentionOptions
from jaxblocks.layers.positions import RelativePositionBias, relative_position_bias
from jaxblocks.models.side_inputs import rename_side_inputs

__all__ = ["AttentionOfTable", "BiasTable"]


def BiasTable(heads: PositiveInt, buckets: PositiveInt) -> Layer:
    """The table of a `RelativePositionBias`, which all blocks of a stack share.

    >>> layer = BiasTable(2, 4)
    >>> tokens = jnp.zeros(3, jnp.int32)
    >>> layer.apply(layer.init(jax.random.key(0), tokens), tokens).shape
    (4, 2)
    """
    layer, place = RelativePositionBias(heads, buckets=buckets), jax.ShapeDtypeStruct((1,), jnp.int32)

    def init(key, tokens: Int[ArrayOrShape, "*batch time"]):
        return layer.init(key, place, place)

    def apply(params, tokens: Int[Array, "*batch time"]):
        check_params(params, embedding=(buckets, heads))
        return params["embedding"]

    return Layer(init, apply)


def AttentionOfTable(
    heads: PositiveInt,
    *,
    max_distance: PositiveInt = 128,
    cache: PositiveInt | None = None,
    **options: Unpack[AttentionOptions],
) -> LayerLike:
    """Self-attention whose scores have the biases of a table that is a side input.

    Args:
        heads, options: as in `Attention`; with ``causal`` all buckets are for earlier keys.
        max_distance: as in `RelativePositionBias`.
        cache: as the length of `CachedAttention`, for attention without dropout and mask.

    >>> layer, x = AttentionOfTable(2), jnp.ones((3, 4))
    >>> params = layer.init(jax.random.key(0), x)
    >>> jax.jit(layer.apply)(params, x, table=jnp.zeros((4, 2))).shape
    (3, 4)
    """

    # The layer is made again in each call, around the traced table; its params do not depend on the biases.
    def layer_of(table: Any = None) -> Any:
        def biases(heads, n_q, n_k, offset):
            places = jnp.arange(n_q, dtype=jnp.int32) + offset, jnp.arange(n_k, dtype=jnp.int32)
            one_way = options.get("causal", False)
            return relative_position_bias(table, *places, max_distance=max_distance, bidirectional=not one_way)

        layer = Attention(heads, **{**options, "score_bias": biases})
        return layer if cache is None else CachedAttention(layer, cache)

    def init(key, x: Float[ArrayOrShape, "*batch time features"]):
        return layer_of().init(key, x)

    def apply(
        params,
        x: Float[Array, "*batch time features"],
        *,
        table: Float[Array, "buckets heads"],
        mask: Bool[Array, "..."] | None = None,
        segment_ids: SegmentIds = None,
        train=False,
        key=None,
    ):
        given = {"train": train, "key": key} if options.get("dropout") else {}
        return layer_of(table).apply(params, x, mask=mask, segment_ids=segment_ids, **given)

    def apply_with_cache(
        params, state, x: Float[Array, "*batch time features"], *, table: Float[Array, "buckets heads"]
    ):
        return layer_of(table).apply(params, state, x)

    if cache is not None:
        return StatefulLayer(init, apply_with_cache)
    layer = Layer(init, apply)
    return layer if options.get("dropout") else rename_side_inputs(layer, train=None, key=None)
