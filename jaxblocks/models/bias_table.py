"""Biases of attention scores by distance, from one table that all blocks of a stack share.

Axis letters: ``*batch``; ``time`` positions.
"""

import functools
from typing import Unpack, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxblocks.checks.expectations import PositiveInt, check_params
from jaxblocks.core.pairs import ArrayOrShape, Layer
from jaxblocks.layers.attention import Attention
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


def AttentionOfTable(heads: PositiveInt, **options: Unpack[AttentionOptions]) -> Layer:
    """Self-attention in both directions, whose scores have the biases of a table that is a side input.

    Args:
        heads, options: as in `Attention`.

    >>> layer, x = AttentionOfTable(2), jnp.ones((3, 4))
    >>> params = layer.init(jax.random.key(0), x)
    >>> jax.jit(layer.apply)(params, x, table=jnp.zeros((4, 2))).shape
    (3, 4)
    """
    own = Attention(heads, **options)  # whose params do not depend on biases

    def init(key, x: Float[ArrayOrShape, "*batch time features"]):
        return own.init(key, x)

    # The layer is made again in each call, around the traced table.
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
        layer = Attention(heads, **{**options, "score_bias": functools.partial(_biases, table)})
        given = {"train": train, "key": key} if options.get("dropout") else {}
        return layer.apply(params, x, mask=mask, segment_ids=segment_ids, **given)

    layer = Layer(init, apply)
    return layer if options.get("dropout") else cast(Layer, rename_side_inputs(layer, train=None, key=None))


def _biases(table, heads, n_q, n_k, offset):
    places = jnp.arange(n_q, dtype=jnp.int32) + offset, jnp.arange(n_k, dtype=jnp.int32)
    return relative_position_bias(table, *places)
