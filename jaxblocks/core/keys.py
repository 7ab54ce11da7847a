"""The keys of layers: each child of a combinator has one that depends on its position or name alone."""

import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import jax

__all__ = ["KEYS", "child_key", "fold_keys", "keys_for"]


def child_key(key: Any, label: int | str | jax.Array | None) -> Any:
    """The key of the child at ``label``: ``fold_in`` of its position or (hashed) name.

    Adding or editing one layer does not change the keys of the others.
    """
    if label is None or key is None:
        return key
    # crc32, since hash() of a string differs from process to process.
    return jax.random.fold_in(key, zlib.crc32(label.encode()) if isinstance(label, str) else label)


def fold_keys(side: Mapping, label: int | str | jax.Array | None) -> dict[str, Any]:
    """The side inputs with `child_key` of each key among them.

    A layer inside a loop over time may read two keys: ``key`` is another one at each step, ``sequence_key`` the same at
    all steps.
    """
    return {name: child_key(value, label) if name in KEYS else value for name, value in side.items()}


KEYS = ("key", "sequence_key")
"""The side inputs that are keys."""


def keys_for(reads: Iterable[str], key: Any) -> dict[str, Any]:
    """A key for each of the side inputs that are keys, made from one key; for a call of a layer outside of any loop."""
    return {name: child_key(key, None if name == "key" else name) for name in KEYS if name in reads}
