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
from jax.core import Tracer

from jaxblocks.ad.checkpointing.scans import is_stored
from jaxblocks.backend.linear_maps import unsharded
from jaxblocks.backend.platforms import platform
from jaxblocks.backend.sliding_windows import in_chunks

__all__ = ["Parts", "by_blocks", "by_chunks", "by_tiles", "choose_parts"]

# The numbers are measured, see "Attention" and "On a GPU" in benchmarks/RESULTS.md.
# Scores of one head above which queries are split into chunks, where there are no tiles.
_LONG = 2**20
# On CPU: scores from which there are tiles (twice as many with neither causal order nor a window); per core, the scores
# of a tile (half a MB in float32), and those of a block of a tile above which its queries are split into chunks.
_TILED, _TILE, _CHUNKED = 2**22, 2**17, 2**18
# On CPU: the fewest queries that are split into tiles or blocks.
_SPLIT = 128
# The fewest queries of a block, and the number of blocks with causal order and with a window. More blocks skip more of
# the masked keys, and take longer to compile.
_BLOCK, _BLOCKS, _WINDOW_BLOCKS = 64, 4, 8
# On other devices: scores of all heads that are computed at once (128 MiB in float32). Fewer leave a GPU idle.
_AT_ONCE = 2**25


class Parts(NamedTuple):
    """The sizes of the parts of scores ``(*batch, heads, time_q, time_k)``."""

    tile: tuple[int, ...] | None = None  # examples and heads at a time, along these axes; None for all
    block: int | None = None  # queries that have their own keys, without those that are masked for all of them
    chunk: int | None = None  # queries at a time, in a loop; None for all of a block


def choose_parts(arrays: dict, options, implementation: str | None, chunk: int) -> Parts:
    """The parts of an implementation of `attention`; for ``None`` the fastest on the default backend."""
    q, k = arrays["q"], arrays["k"]
    n_q, n_k, window = q.shape[-2], k.shape[-2], options.window
    known = isinstance(n_q, int) and isinstance(n_k, int)  # jax.export also has symbolic sizes
    if implementation == "einsum" or (implementation is None and not known):
        return Parts()
    if implementation is None and not window and platform() != "cpu" and all(isinstance(n, int) for n in q.shape):
        chunk = max(chunk, _AT_ONCE // max(1, math.prod(q.shape[:-2]) * n_k))
    # Blocks slice the keys at fixed places: only with a static offset, and where time is not sharded.
    fixed = known and isinstance(options.offset, int) and unsharded(q, -2) and unsharded(k, -2)
    skips = fixed and options.causal and not window and chunk < n_q
    chunks = Parts(None, -(-n_q // (_BLOCKS * chunk)) * chunk if skips else None, chunk)
    if implementation == "chunked":
        return chunks
    long = n_q * n_k > _LONG and n_q > chunk
    # With a window, each chunk slices the keys of its window, so that its scores are few.
    if not fixed or platform() != "cpu" or n_q < _SPLIT or (window and long):
        return chunks if long else Parts()
    block = n_q
    if options.window or options.causal:
        block = min(n_q, max(_BLOCK, -(-n_q // (_WINDOW_BLOCKS if options.window else _BLOCKS))))
    keys = min(n_k, block + sum(window)) if window else n_k
    tile = _tile(arrays, options, n_q * keys, block * keys)
    own = block if block < n_q else None
    if tile:
        most = _cores() * _CHUNKED // (math.prod(tile) * keys)
        return Parts(tile, own, max(chunk, most) if block > most else None)
    return chunks if long else Parts(None, own)


def _tile(arrays, options, scores: int, in_block: int) -> tuple[int, ...] | None:
    """Batch and heads of a tile, ``None`` where tiles do not help, from the scores of a head and of a block of it."""
    *batch, heads = arrays["q"].shape[:-2]
    known = all(isinstance(n, int) for n in (*batch, heads))
    fewest_scores = _TILED if options.causal or options.window else 2 * _TILED
    if not known or math.prod(batch) * heads * scores < fewest_scores:
        return None
    # A function of biases or scores would be called for each tile, with all heads. An eager call would compile its loop
    # each time. A loop over a sharded axis would gather it.
    whole = all(unsharded(x, *range(x.ndim)) for x in arrays.values())
    if options.bias or options.score_fn or not whole or not isinstance(arrays["q"], Tracer):
        return None
    # Heads with the same keys stay together. So do all heads with the same biases: each tile would add its gradient to
    # that of the whole array.
    sharing = heads // arrays["k"].shape[-3]
    bias = arrays.get("bias")
    together = sharing if bias is None or bias.shape[:-2] == (*batch, heads) else heads
    sizes = (*batch, heads // together)
    # XLA removes a batch axis of size one from products, and then computes their gradients with transpositions.
    least = 2 if together == sharing else 1
    tile = _tile_sizes(sizes, least, max(least, _cores() * max(1, _TILE // (in_block * together))))
    return None if tile == sizes else (*tile[:-1], tile[-1] * together)


def _tile_sizes(sizes, least: int, most: int) -> tuple[int, ...]:
    """Sizes of tiles along these axes, whose product is at least ``least`` and, where they fit so, at most ``most``.

    Divisors up to twice as large come before other sizes, with which the last tile contains zeros. After the first axis
    that is split, the axes are whole.

    >>> _tile_sizes((6, 8), 2, 4), _tile_sizes((6, 8), 2, 16), _tile_sizes((6, 9), 2, 2)
    ((1, 4), (2, 8), (1, 3))
    >>> _tile_sizes((6, 7), 2, 2)  # three tiles and one with a head of zeros
    (1, 2)
    """
    tile = [1] * len(sizes)
    for i, n in reversed(list(enumerate(sizes))):
        others = math.prod(tile)
        large = [size for size in range(1, n + 1) if size * others >= least] or [n]
        fitting = [size for size in large if size * others <= 2 * most] or large[:1]
        tile[i] = min(fitting, key=lambda size: (-n % size, size * others > most, abs(size * others - most)))
        if tile[i] < n:
            break
    return tuple(tile)


def _cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def by_tiles(attend: Callable, arrays: dict, tile: tuple[int, ...]):
    """``attend(arrays, first)`` for tiles of the axes of batch and heads, which the backward pass recomputes.

    Args:
        attend: its results ``(*axes of the tile, ., .)`` are stored where they are marked by `stored`; ``first`` is
            the number of the first head of the tile among all.
        arrays: arrays ``(*batch, heads, ., .)``, whose leading axes may have size one or a divisor (groups of heads).
        tile: the sizes of batch and heads in a tile; the axes after the first one that is split are whole. Where a size
            does not divide its axis, the last tile contains zeros, whose results are cut off.
    """
    lead = arrays["q"].shape[:-2]
    counts = [-(-n // size) for n, size in zip(lead, tile, strict=True)]
    kept = next((axis for axis, size in enumerate(tile) if size > 1), len(tile) - 1)  # from here, axes of a tile
    whole = [count * size for count, size in zip(counts, tile, strict=True)]

    def padded(x):
        # An axis of groups of heads grows as that of the heads; one of size one stays, since none is doubled.
        added = [(0, n * large // own - n) for n, large, own in zip(x.shape[:-2], whole, lead, strict=True)]
        return jnp.pad(x, [*added, (0, 0), (0, 0)]) if whole != list(lead) else x

    def sizes(x):
        """The sizes of the leading axes of a padded x in one tile."""
        return [-(-n // count) for n, count in zip(x.shape[:-2], counts, strict=True)]

    def split(x):
        return x.reshape(math.prod(counts), *sizes(x)[kept:], *x.shape[-2:])

    def slice_of(x, position):
        """The part of an array with axes of size one, such as a mask for all heads."""
        own = sizes(x)
        for axis, (n, size, i) in enumerate(zip(x.shape[:-2], own, position, strict=True)):
            x = x if n == size else lax.dynamic_slice_in_dim(x, size * i, size, axis)
        return x.reshape(*own[kept:], *x.shape[-2:])

    arrays = {name: padded(x) for name, x in arrays.items()}
    is_split = lambda x: all(n % count == 0 for n, count in zip(x.shape[:-2], counts, strict=True))
    mapped = {name: split(x) for name, x in arrays.items() if is_split(x)}
    shared = {name: x for name, x in arrays.items() if name not in mapped}

    # A loop needs no barrier against the elimination of common subexpressions (prevent_cse).
    @functools.partial(jax.checkpoint, prevent_cse=False, policy=is_stored)
    def one(number, own):
        position = jnp.unravel_index(number, counts)
        own |= {name: slice_of(x, position) for name, x in shared.items()}
        starts = (
            i * size * math.prod(lead[axis + 1 :]) for axis, (i, size) in enumerate(zip(position, tile, strict=True))
        )
        return attend(own, sum(starts))

    numbers = jnp.arange(math.prod(counts), dtype=jnp.int32)
    results = lax.map(lambda now: one(*now), (numbers, mapped))
    own = tuple(slice(n) for n in lead)
    return jax.tree.map(lambda y: y.reshape(*whole, *y.shape[-2:])[own], results)


def by_blocks(attend, rows, n_k: int, options, block: int):
    """``attend(start, rows, keys)`` for blocks of the query axis (-2), with the keys that they attend to."""
    n_q, offset = rows["q"].shape[-2], options.offset
    # Without a window, a number larger than any distance of a query and a key.
    before, after = options.window or (n_q + n_k + abs(offset),) * 2
    after = 0 if options.causal else after
    results = []
    for start in range(0, n_q, block):
        end = min(start + block, n_q)
        keys = tuple(min(max(key, 0), n_k) for key in (offset + start - before, offset + end + after))
        own = jax.tree.map(lambda x, span=(start, end): lax.slice_in_dim(x, *span, axis=-2), rows)
        results.append(attend(start, own, keys))
    return jax.tree.map(lambda *of_blocks: jnp.concatenate(of_blocks, -2), *results)


def by_chunks(attend, start: int, rows, keys=None, *, chunk: int):
    """``attend`` for chunks of the query axis (-2), which are recomputed in the backward pass."""
    if keys is not None:
        attend = functools.partial(attend, keys=keys)
    n_q = rows["q"].shape[-2]
    count, size = -(-n_q // chunk), chunk
    if isinstance(n_q, int):  # and not one of the symbolic sizes of jax.export
        size = -(-n_q // max(count, 1))  # equal chunks, so that few queries are padding
        if count <= 1:
            # A single chunk is recomputed too, so that the memory of the weights is free in the forward pass.
            return jax.checkpoint(functools.partial(attend, start), policy=is_stored)(rows)

    def split(x):  # (..., n_q, m) to (count, ..., size, m)
        return jnp.moveaxis(in_chunks(x, size), -3, 0)  # the last one with rows of zeros, which `join` cuts off

    def join(y):
        y = jnp.moveaxis(y, 0, -3)
        return y.reshape(*y.shape[:-3], count * size, y.shape[-1])[..., :n_q, :]

    starts = jnp.arange(count, dtype=jnp.int32) * size + start
    one = jax.checkpoint(lambda chunk: attend(*chunk), prevent_cse=False, policy=is_stored)
    return jax.tree.map(join, lax.map(one, (starts, jax.tree.map(split, rows))))
