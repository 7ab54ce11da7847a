"""The hashes of an array by its shards, so that each process hashes what it holds and needs no other part.

A shard is named by its place in the array, such as ``0:4,8:16`` for rows 0 to 3 and columns 8 to 15.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from jaxblocks.training.processes import is_first

__all__ = ["equals_hashes", "hash_of", "hashes_of_shards", "is_sharded"]

Place = tuple[tuple[int, int], ...]  # begin and end along each axis


def is_sharded(leaf: Any) -> bool:
    """Whether an array is on several devices and, in a run of several processes, on those of several processes."""
    if not isinstance(leaf, jax.Array) or len(leaf.sharding.device_set) == 1:
        return False
    # With several processes, an array that each one holds whole is not sharded: the first process hashes it.
    return jax.process_count() == 1 or not leaf.is_fully_addressable


def hashes_of_shards(a: Any) -> dict[str, str]:
    """The SHA-256 of each shard that this process has to hash, by its place.

    One device hashes a shard that several hold. The first process hashes arrays of the host, which all have.

    >>> list(hashes_of_shards(np.zeros((2, 3))))
    ['0:2,0:3']
    """
    if is_sharded(a):
        # replica_id 0: of equal shards on several devices one is hashed.
        shards = [shard for shard in a.addressable_shards if shard.replica_id == 0]
        return {_name(_place(shard.index, a.shape)): hash_of(shard.data) for shard in shards}
    return {_name(_whole(a)): hash_of(a)} if is_first() else {}


def equals_hashes(a: Any, hashes: Mapping[str, str]) -> bool:
    """Whether those shards that this process holds have the hashes of a list; the other processes check the others.

    The shards of the list may be those of other devices. Where no device holds one of them whole, the array is gathered
    on each host. All processes call this.
    """
    if is_sharded(a):
        # The places of the shards on all devices, also on those of other processes.
        places = {_place(index, a.shape) for index in a.sharding.devices_indices_map(a.shape).values()}
        parts = {_place(shard.index, a.shape): shard.data for shard in a.addressable_shards}
    else:
        places, parts = {_whole(a)}, {_whole(a): a}
    wanted = {_parsed(name): found for name, found in hashes.items()}
    # A damaged list may name places outside of the array.
    if not all(_is_inside(place, _whole(a)) for place in wanted):
        return False
    # Shards may have been saved under another sharding; where no shard here contains one of those, the array is
    # gathered.
    if not all(any(_is_inside(place, other) for other in places) for place in wanted):
        parts[_whole(a)] = multihost_utils.process_allgather(a, tiled=True)
    for place, found in wanted.items():
        for other, part in parts.items():
            if _is_inside(place, other):
                inner = zip(place, other, strict=True)
                # The place relative to the part that holds it.
                if hash_of(np.asarray(part)[tuple(slice(i - k, j - k) for (i, j), (k, _) in inner)]) != found:
                    return False
                break
    return True


def hash_of(data: Any) -> str:
    """The SHA-256 of bytes, or of those of an array in C order."""
    if not isinstance(data, bytes):
        data = np.ascontiguousarray(np.asarray(data)).reshape(-1).view(np.uint8)
    return hashlib.sha256(data).hexdigest()


def _place(index, shape) -> Place:
    return tuple(each.indices(size)[:2] for each, size in zip(index, shape, strict=True))


def _whole(a) -> Place:
    return tuple((0, size) for size in a.shape)


def _is_inside(place: Place, other: Place) -> bool:
    return all(k <= i and j <= end for (i, j), (k, end) in zip(place, other, strict=True))


def _name(place: Place) -> str:
    return ",".join(f"{begin}:{end}" for begin, end in place)


def _parsed(name: str) -> Place:
    pairs = [part.split(":") for part in name.split(",") if part]
    return tuple((int(begin), int(end)) for begin, end in pairs)
