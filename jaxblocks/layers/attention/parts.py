"""The parts in which scores are computed: tiles of examples and heads, blocks and chunks of queries.

Scores that do not fit into the caches of the cores cost more time to write and read than to compute. On CPU, a loop
over tiles of examples and heads keeps them there, and the backward pass computes them again.
"""

import functools
import math
import os
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxblocks.ad.checkpointing import STORED

__all__ = ["LONG", "Parts", "by_blocks", "by_chunks", "by_tiles", "choose_parts", "parts_of_chunks"]

# Measured, see "Attention" in benchmarks/RESULTS.md: scores from which there are tiles; scores of a tile per core
# (half a MB); scores of one head in a block, from which it is split into chunks.
_TILED, _TILE, _CHUNKED = 2**22, 2**17, 2**19
# Scores of one head from which there are chunks of queries where there are no tiles.
LONG = 2**20
# Queries of a chunk, and the fewest of a block. More blocks skip more of the masked keys, and take longer to compile.
_CHUNK, _QUERIES, _BLOCKS, _WINDOW_BLOCKS = 128, 64, 4, 8

_STORED = jax.checkpoint_policies.save_only_these_names(STORED)


class Parts(NamedTuple):
    """The sizes of the parts of scores ``(*lead, time_q, time_k)``."""

    tile: tuple[int, ...] | None  # examples and heads at a time, along the axes of `lead`; None for all
    block: int | None  # queries that have their own keys, without those that are masked for all of them
    chunk: int | None  # queries at a time, in a loop; None for all of a block


def choose_parts(lead: tuple[int, ...], n_q: int, n_k: int, options, group: int, tiled: bool) -> Parts:
    """The fastest parts for the default backend.

    Args:
        lead: the sizes of batch and heads.
        n_q, n_k: the numbers of queries and keys.
        options: the options of the scores.
        group: heads that stay together.
        tiled: whether a loop over tiles can slice all arrays.
    """
    long, window = n_q * n_k >= LONG, options.window
    if jax.default_backend() != "cpu" or not math.prod(lead) * n_q * n_k:
        return parts_of_chunks(n_q, options, _CHUNK) if long else Parts(None, None, None)
    if window and n_q * n_k > LONG:  # each chunk slices the keys of its window, so that it is small
        return Parts(None, None, _CHUNK)
    rows, keys = n_q, n_k  # the queries and the keys of one block
    if window and n_q >= _CHUNK:
        rows = max(_QUERIES if n_q <= 256 else _CHUNK, -(-n_q // _WINDOW_BLOCKS))
        keys = min(n_k, rows + sum(window))
    elif options.causal and n_q >= _CHUNK:
        rows = max(_QUERIES, -(-n_q // _BLOCKS))
    block = rows if rows < n_q else None
    if tiled and math.prod(lead) * n_q * keys >= _TILED:
        # At least 2: XLA removes an axis of size one, and then computes the gradient with transpositions.
        tile = _tile(lead, group, max(2, _cores() * max(1, _TILE // (rows * keys))))
        if tile != lead:
            return Parts(tile, block, max(_CHUNK, _CHUNKED // keys) if rows * keys > _CHUNKED else None)
    if block and n_q * n_k <= LONG:
        return Parts(None, block, None)
    return parts_of_chunks(n_q, options, _CHUNK) if long else Parts(None, None, None)


def parts_of_chunks(n_q: int, options, chunk: int) -> Parts:
    """Chunks of this size, with causal order in a few blocks, each with its own keys."""
    skips = options.causal and not options.window and chunk < n_q
    return Parts(None, -(-n_q // (_BLOCKS * chunk)) * chunk if skips else None, chunk)


def _tile(lead: tuple[int, ...], group: int, most: int) -> tuple[int, ...]:
    """The largest sizes with a product of at most ``most``: the last axes whole, and a divisor of the one before."""
    tile: list[int] = []
    for n, least in zip(reversed(lead), (group, *[1] * (len(lead) - 1)), strict=True):
        sizes = [size for size in range(least, n + 1, least) if n % size == 0 and size <= max(most, least)]
        tile.append(sizes[-1])
        most = most // sizes[-1] if sizes[-1] == n else 0
    return tuple(reversed(tile))


def _cores() -> int:
    """The cores on which XLA computes."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def by_tiles(attend: Callable, arrays: dict, lead: tuple[int, ...], tile: tuple[int, ...]):
    """``attend(arrays, first)`` for tiles of the axes of batch and heads, which the backward pass recomputes.

    Args:
        attend: its results ``(*axes of the tile, ., .)`` are stored where they have the name ``STORED``; ``first`` is
            the number of the first head of the tile among all.
        arrays: arrays ``(*lead, ., .)``, whose leading axes may have size one or a divisor (groups of heads).
        lead: the sizes of batch and heads.
        tile: their sizes in a tile; the axes after the first one that is split are whole.
    """
    counts = [n // size for n, size in zip(lead, tile, strict=True)]
    kept = next((axis for axis, size in enumerate(tile) if size > 1), len(tile) - 1)  # from here, axes of a tile

    def sizes(x):
        """The sizes of the leading axes of x in one tile."""
        return [-(-n // count) for n, count in zip(x.shape[:-2], counts, strict=True)]

    def split(x):
        return x.reshape(math.prod(counts), *sizes(x)[kept:], *x.shape[-2:])

    def slice_of(x, position):
        """The part of an array with axes of size one, such as a mask for all heads."""
        own = sizes(x)
        for axis, (n, size, i) in enumerate(zip(x.shape[:-2], own, position, strict=True)):
            x = x if n == size else lax.dynamic_slice_in_dim(x, size * i, size, axis)
        return x.reshape(*own[kept:], *x.shape[-2:])

    is_split = lambda x: all(n % count == 0 for n, count in zip(x.shape[:-2], counts, strict=True))
    mapped = {name: split(x) for name, x in arrays.items() if is_split(x)}
    shared = {name: x for name, x in arrays.items() if name not in mapped}

    # A loop needs no barrier against the elimination of common subexpressions.
    @functools.partial(jax.checkpoint, prevent_cse=False, policy=_STORED)
    def one(number, own):
        position = jnp.unravel_index(number, counts)
        own |= {name: slice_of(x, position) for name, x in shared.items()}
        return attend(own, number * math.prod(tile))

    numbers = jnp.arange(math.prod(counts), dtype=jnp.int32)
    results = lax.map(lambda now: one(*now), (numbers, mapped))
    return jax.tree.map(lambda y: y.reshape(*lead, *y.shape[-2:]), results)


def by_blocks(attend, rows, n_k: int, options, block: int):
    """``attend(start, rows, keys)`` for blocks of the query axis (-2), with the keys that they attend to."""
    n_q, offset = rows["q"].shape[-2], options.offset
    # Without a window, all keys before a query are in reach: a number larger than any distance.
    before, after = options.window or (n_q + n_k + abs(offset),) * 2
    after, parts = 0 if options.causal else after, []
    for start in range(0, n_q, block):
        end = min(start + block, n_q)
        keys = tuple(min(max(key, 0), n_k) for key in (offset + start - before, offset + end + after))
        own = jax.tree.map(lambda x, span=(start, end): lax.slice_in_dim(x, *span, axis=-2), rows)
        parts.append(attend(start, own, keys))
    return jax.tree.map(lambda *parts: jnp.concatenate(parts, -2), *parts)


def by_chunks(attend, start: int, rows, keys=None, *, chunk: int):
    """``attend`` for chunks of the query axis (-2), which are recomputed in the backward pass."""
    own_keys = {} if keys is None else {"keys": keys}
    attend = functools.partial(attend, stored=True, **own_keys)
    n_q = rows["q"].shape[-2]
    count, size = -(-n_q // chunk), chunk
    if isinstance(n_q, int):  # and not one of the symbolic sizes of jax.export
        size = -(-n_q // max(count, 1))  # equal chunks, so that few queries are padding
        if count <= 1:
            # A single chunk is recomputed too, so that the memory of the weights is free in the forward pass.
            return jax.checkpoint(functools.partial(attend, start), policy=_STORED)(rows)

    def split(x):  # (..., n_q, m) to (count, ..., size, m)
        # The last chunk is padded with rows of zeros, which `join` cuts off.
        x = jnp.pad(x, [(0, 0)] * (x.ndim - 2) + [(0, count * size - n_q), (0, 0)])
        return jnp.moveaxis(x.reshape(*x.shape[:-2], count, size, x.shape[-1]), -3, 0)

    def join(y):
        y = jnp.moveaxis(y, 0, -3)
        return y.reshape(*y.shape[:-3], count * size, y.shape[-1])[..., :n_q, :]

    starts = jnp.arange(count, dtype=jnp.int32) * size + start
    # A loop needs no barrier against the elimination of common subexpressions.
    one = jax.checkpoint(lambda chunk: attend(*chunk), prevent_cse=False, policy=_STORED)
    return jax.tree.map(join, lax.map(one, (starts, jax.tree.map(split, rows))))
