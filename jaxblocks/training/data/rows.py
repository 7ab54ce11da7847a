"""Trees of arrays with one row per example on their first axis: counting, selecting and checking the rows."""

import math
from collections.abc import Callable, Iterable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import AbstractMesh, NamedSharding

from jaxblocks.checks.errors import describe, require
from jaxblocks.checks.foreign_arrays import check_byte_order, has_numbers, reject_foreign
from jaxblocks.checks.values import reject_traced
from jaxblocks.sharding import with_automatic_axes, without_explicit_axes

__all__ = [
    "check_batch_size",
    "check_devices",
    "check_divides",
    "check_finite_pair",
    "check_numbers",
    "check_pair",
    "count_rows",
    "is_on_one_device",
    "name_arrays",
    "row_taker",
    "take_rows",
]


def count_rows(arrays, what: str = "data", *, least: int = 1) -> int:
    """The number of rows of all arrays of a tree; raises if the numbers differ, or for none where ``least`` is 1."""
    repair = "pass arrays with all rows, such as np.stack([*rows])"
    require(not hasattr(arrays, "__next__"), what, arrays, repair, error=TypeError)
    named = name_arrays(arrays)
    require(named, "arrays", f"an empty {type(arrays).__name__}", "pass for instance (x, y)")
    # Frames of pandas index rows by labels rather than by position; tensors of PyTorch have dtypes of their own.
    reject_foreign(what, arrays)
    for name, a in named.items():
        if not hasattr(a, "shape") or not a.shape:
            expected = f"{what}{name} to have one row per example"
            repair = "pass a[:1] for one example" if hasattr(a, "shape") else "convert lists with np.asarray"
            require(False, expected, a, repair, error=TypeError)
    lengths = {a.shape[0] for a in named.values()}
    if len(lengths) > 1:
        first = {a.shape[0]: f"{what}{name} {describe(a)}" for name, a in reversed(named.items())}
        got = ", ".join([*reversed(first.values())][:4]) + ", and others" * (len(named) > min(4, len(first)))
        repair = "make the sizes of axis 0 equal, and stack a list of examples, padded to one length, to one array"
        require(False, "the same number of rows in all arrays", got, repair)
    (rows,) = lengths
    require(rows >= least, f"at least one row in {what}", "none", "pass arrays with one row for each example")
    return rows


def check_numbers(arrays, what: str = "data") -> None:
    """Raise for an array of a tree that a net cannot take: of strings, of Python objects, or in another byte order."""
    leaves = [leaf for leaf in jax.tree.leaves(arrays) if isinstance(leaf, np.ndarray)]
    if all(has_numbers(leaf) and leaf.dtype.isnative for leaf in leaves):
        return  # without names, which take longer than a small program
    for name, a in name_arrays(arrays).items():
        if isinstance(a, np.ndarray) and not has_numbers(a):
            repair = "number the strings, as in np.unique(a, return_inverse=True)[1]"
            if a.dtype.kind == "O":
                repair = "convert it with astype(np.float32), rows of several lengths padded"
            require(False, f"numbers in {what}{name}", a, repair, error=TypeError)
        if isinstance(a, np.ndarray):
            check_byte_order(f"{what}{name}", a)


def check_batch_size(batch_size: int, rows: int) -> None:
    """Raise unless the rows fill a batch."""
    if batch_size > rows:
        require(False, f"batch_size to be at most {rows}, the number of rows", batch_size, f"pass batch_size={rows}")


def check_devices(mesh) -> None:
    """Raise a ``TypeError`` for a mesh without devices, on which nothing can be computed."""
    if isinstance(mesh, AbstractMesh):
        repair = 'pass jax.make_mesh((jax.device_count(),), ("data",)); an AbstractMesh serves for shapes only'
        require(False, "a mesh of devices", "an AbstractMesh", repair, error=TypeError)


def check_divides(sharding, batch_size: int) -> None:
    """Raise unless it is a sharding of batches, and the devices that share a batch divide its size."""
    repair = "pass jaxblocks.sharding.batch_sharding(mesh)"
    require(isinstance(sharding, NamedSharding), "a sharding of batches", sharding, repair, error=TypeError)
    check_devices(sharding.mesh)
    try:
        sharding.shard_shape((batch_size,))
    except ValueError:
        expected = (
            f"a batch_size that is a multiple of the devices along {sharding.spec} of {dict(sharding.mesh.shape)}"
        )
        require(False, expected, batch_size, "change the batch size or the mesh")


def take_rows(arrays, rows, sharding: NamedSharding | None = None):
    """Rows of every array of a tree (indices or a slice): on the host for NumPy, on the device for JAX arrays.

    With a ``sharding`` over several devices, each device gets its own rows, read in the process that owns it.
    """
    if sharding is not None:
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(len(jax.tree.leaves(arrays)[0])))
        return jax.tree.map(lambda a: _take_sharded(a, rows, sharding), arrays)
    # A slice of a NumPy array is a view, in memory maps too; indices copy.
    return jax.tree.map(lambda a: _take_on_device(a, rows) if isinstance(a, jax.Array) else a[rows], arrays)


def _take_on_device(a, rows):
    a = with_automatic_axes(a)  # which may have any number of rows
    with without_explicit_axes():
        return a[rows] if isinstance(rows, slice) else _take(a, rows)


def _take_sharded(a, rows, sharding):
    if isinstance(a, Tracer):  # as in predict inside of jit, with params on a mesh
        return jax.lax.with_sharding_constraint(a[rows], sharding)
    if isinstance(a, jax.Array) and not a.is_fully_addressable:
        require(False, "data that this process can read", a, "pass NumPy arrays or memory maps", error=TypeError)
    shape, parts = (len(rows), *a.shape[1:]), {}

    def part(index):
        # (start, stop, step) of the rows of one device
        place = index[0].indices(len(rows))
        if place not in parts:  # several devices may hold the same rows
            parts[place] = np.asarray(a)[rows[index[0]]]
        return parts[place]

    return jax.make_array_from_callback(shape, sharding, part)  # pyright: ignore[reportArgumentType]


@jax.jit
def _take(arrays, rows):
    return jax.tree.map(lambda a: a[rows], arrays)


def is_on_one_device(arrays) -> bool:
    """Whether all arrays of a tree are JAX arrays on one device."""
    leaves = jax.tree.leaves(arrays)
    if not all(isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer) for leaf in leaves):
        return False
    # All on the same one: arrays on different devices cannot be arguments of one program.
    return len(set().union(*(leaf.devices() for leaf in leaves))) == 1


def row_taker(arrays, sharding: NamedSharding | None = None) -> Callable:
    """A function that selects the rows with given indices as `take_rows` does, in one call where it is possible."""
    if sharding is None and is_on_one_device(arrays):
        # int32, the integers of jax.numpy without x64.
        return lambda rows: _take(arrays, rows.astype(np.int32))
    return lambda rows: take_rows(arrays, rows, sharding)


def name_arrays(arrays) -> dict:
    """Every array of a tree by its path, such as ``[0]`` or ``['image']``."""
    return {jax.tree_util.keystr(path): a for path, a in jax.tree_util.tree_leaves_with_path(arrays)}


def check_pair(name: str, data) -> None:
    """Raise a ``TypeError`` unless ``data`` is a pair ``(x, y)``."""
    if not isinstance(data, (tuple, list)) or len(data) != 2:
        got = f"a {type(data).__name__} of {len(data)}" if isinstance(data, (tuple, list)) else data
        repair = "pass two arrays with all rows, such as (np.stack(xs), np.stack(ys))"
        if isinstance(data, tuple):
            repair = "put several inputs in a tuple x: ((x1, x2), y)"
        elif isinstance(data, Mapping):
            repair = "write (data['x'], data['y'])"
        elif hasattr(data, "shape"):
            repair = f"write ({name}, y) with the targets y"
        elif isinstance(data, Iterable) and not isinstance(data, (list, str)):
            repair += "; batches are for the step of train_step: for x, y in batches: ts, loss = step(ts, x, y)"
        require(False, f"{name} to be a pair (x, y)", got, repair, error=TypeError)


def check_finite_pair(name: str, data) -> int:
    """The number of rows of a pair ``(x, y)``; raises unless both have the same number of rows and finite values."""
    check_pair(name, data)
    rows = count_rows(data, name)
    reject_traced(data)
    check_numbers(data, name)
    for place, a in name_arrays(data).items():
        if jnp.issubdtype(a.dtype, jnp.inexact):
            number, index, value = _not_finite(a)
            if number:
                several = f"{number} of its {math.prod(a.shape)} values are not finite"
                got = f"{value} at {index} of {name}{place}, {describe(a)} ({several})"
                require(False, "finite data", got, "remove or impute these rows")
    return rows


_VALUES_AT_ONCE = 2**20  # of a memory map, which is checked in parts


def _not_finite(a):
    """The number of values that are not finite, and the index and the value of the first one."""
    # One copy to the host instead of one for each part.
    a = np.asarray(a) if isinstance(a, jax.Array) else a
    number, first = 0, (None, None)
    # At least one row at a time, however large it is.
    rows = max(_VALUES_AT_ONCE // max(math.prod(a.shape[1:]), 1), 1)
    for start in range(0, a.shape[0], rows):
        part = np.asarray(a[start : start + rows])
        bad = ~np.isfinite(part)
        if number == 0 and bad.any():
            # argmax of booleans is the first True.
            row, *rest = (int(i) for i in np.unravel_index(bad.argmax(), bad.shape))
            first = (start + row, *rest), part[(row, *rest)]
        number += int(bad.sum())
    return number, *first
