"""Which keys a query may attend to: by a mask, by segments, by causal order and by a window."""

import functools
import operator

import jax
import jax.numpy as jnp

from jaxblocks.backend.symbolic_sizes import Size
from jaxblocks.checks.errors import describe, require

__all__ = ["allowed_keys", "broadcasts_to", "segments"]


def allowed_keys(own, shape, ahead, causal, window) -> jax.Array | None:
    """The keys that count, which broadcast to scores (..., queries, keys); ``None`` where all do.

    ``own`` are the mask and the segments of these queries and keys; the first query is ``ahead`` of the first key.
    """
    allowed = [own["mask"]] if "mask" in own else []
    allowed += [own["q_segments"] == own["k_segments"]] if "q_segments" in own else []
    if causal or window:
        *front, size, n_keys = shape
        positions = jnp.arange(size, dtype=jnp.int32)[:, None] + ahead
        # Leading axes of size 1, since rank promotion may be an error.
        distance = (positions - jnp.arange(n_keys, dtype=jnp.int32)[None]).reshape(*[1] * len(front), size, n_keys)
        if causal:
            allowed.append(distance >= 0)
        if window:
            allowed.append(distance <= window[0])
        if window and not causal:
            allowed.append(distance >= -window[1])
    return functools.reduce(operator.and_, allowed) if allowed else None


def segments(q, k, segment_ids) -> dict:
    """Segment ids of queries as a column, of keys as a row."""
    if segment_ids is None:
        return {}
    two = segment_ids if isinstance(segment_ids, (tuple, list)) else (segment_ids, segment_ids)
    expected = [(*x.shape[:-3], x.shape[-3]) for x in (q, k)]
    integers = all(jnp.issubdtype(one.dtype, jnp.integer) for one in two)
    fits = integers and [one.shape for one in two] == expected
    words = f"segment_ids, integers of shape {expected[0]} for the queries and {expected[1]} for the keys"
    repair = "pass one array where the two are the same, else a pair (of_queries, of_keys)"
    if integers and all(one.shape == shape[-1:] for one, shape in zip(two, expected, strict=True)):
        repair = f"write jnp.broadcast_to(segment_ids, {expected[0]})"
    require(fits, words, " and ".join(map(describe, two)), repair)
    return {"q_segments": two[0][..., None, :, None], "k_segments": two[1][..., None, None, :]}


def broadcasts_to(shape: tuple[Size, ...], full: tuple[Size, ...]) -> bool:
    """Whether a mask of this shape fits scores of shape ``full``: any axis but the last has size one or is equal."""
    same_rank = len(shape) == len(full) and shape[-1] == full[-1]
    return same_rank and all(m in (1, n) for m, n in zip(shape, full, strict=True))
