"""Tensors of files as params: rows are read, cast, and written to their places by several threads.

Kernels are ``(in, out)`` here and ``(out, in)`` in PyTorch, and `Repeat` stacks layers, so that few params have the
order of the file. Where a layout only moves axes, a thread reads a band of rows that fits its cache, and writes it from
there into the param, of which no other copy exists: between reading and writing, values stay in the cache.
"""

import itertools
import math
import os
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, wait
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxblocks.errors import require
from jaxblocks.interop.files import Tensor
from jaxblocks.interop.layouts import Layout

__all__ = ["WORKERS", "aligned", "read_copies"]

WORKERS = min(os.cpu_count() or 1, 4)
_BAND = 2**19  # bytes of a file that a thread reads at a time, at least
_ROWS, _COLUMNS = 128, 512  # of a tile that is transposed at a time
_LINE = 64  # bytes of a line of the cache


def read_copies(
    names: Sequence[str], tensors: Mapping[str, Tensor], layout: Layout, parts: Sequence[np.ndarray], workers: Executor
) -> None:
    """Read the tensors of all copies into params ``(copies, ...)``.

    Args:
        names: of the tensors, one for each copy.
        tensors: by name.
        layout: from a tensor to the param.
        parts: the arrays to write. There are several where a tensor holds them side by side, along the last axis of its
            param.
        workers: `WORKERS` threads.

    >>> from concurrent.futures import ThreadPoolExecutor
    >>> tensors = {
    ...     name: Tensor((2, 3), np.dtype(int), lambda: np.arange(6).reshape(2, 3))
    ...     for name in "ab"
    ... }
    >>> param = aligned((2, 3, 2), np.dtype(float))
    >>> with ThreadPoolExecutor(WORKERS) as workers:
    ...     read_copies(
    ...         "ab",
    ...         tensors,
    ...         Layout("transpose", np.transpose, np.transpose),
    ...         [param],
    ...         workers,
    ...     )
    >>> param[1].tolist()
    [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
    """
    bands: deque[_Band] = deque()
    for k, name in enumerate(names):
        tensor, own = tensors[name], [part[k, ...] for part in parts]
        if (places := _places(layout, tensor, own)) is not None:
            bands += _bands(tensor, places)
            continue
        values = layout.load(_cast(tensor.read(), own[0].dtype, name))
        ends = np.cumsum([part.shape[-1] for part in own[:-1]], dtype=int)
        for part, its in zip(own, np.split(values, ends, -1) if len(own) > 1 else [values], strict=True):
            part[...] = its
    try:
        if len(bands) > 1:
            wait([workers.submit(_work, bands) for _ in range(WORKERS)])
        _work(bands)  # what a thread could not read, too: only here does an error have the name of the caller
    finally:
        bands.clear()  # threads that still work after an interrupt have nothing left


def aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An empty array at a multiple of 64 bytes, which JAX takes on CPU without a copy.

    >>> aligned((3,), np.dtype("float32")).ctypes.data % 64
    0
    """
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + 64, np.uint8)
    begin = -memory.ctypes.data % 64
    return memory[begin : begin + size].view(dtype).reshape(shape)


class _Place(NamedTuple):
    """The place of a tensor in a param, or that of a part, which begins at ``begin`` along an axis of the tensor."""

    view: np.ndarray  # with the axes of the tensor
    axis: int = 0
    begin: int = 0

    @property
    def end(self) -> int:
        return self.begin + self.view.shape[self.axis]


class _Band(NamedTuple):
    """Consecutive rows of a tensor, and the params that the tensor is written to."""

    tensor: Tensor
    values: np.ndarray | None  # of a tensor in memory
    places: Sequence[_Place]
    begin: int
    end: int


def _places(layout: Layout, tensor: Tensor, parts: Sequence[np.ndarray]) -> list[_Place] | None:
    """The places of a tensor in its param or parts.

    ``None`` where the layout does more than move axes, where the param has no floating-point numbers (whose cast is
    checked as a whole), and for tensors without rows.
    """
    if not tensor.shape or 0 in tensor.shape or not jnp.issubdtype(parts[0].dtype, jnp.floating):
        return None
    shape = (*parts[0].shape[:-1], sum(part.shape[-1] for part in parts))
    larger = np.empty([n + 1 for n in shape], parts[0].dtype)  # never written: it takes no memory
    probe = larger[tuple(map(slice, shape))]  # with other strides along each axis
    saved = layout.save(probe)
    where = lambda x: isinstance(x, np.ndarray) and (x.ctypes.data, x.shape, x.strides)
    if where(layout.load(saved)) != where(probe) or saved.shape != tensor.shape or saved.size != probe.size:
        return None
    axis = saved.strides.index(probe.strides[-1]) if probe.strides[-1] in saved.strides else 0
    if len(parts) > 1 and (saved.strides[axis], saved.shape[axis]) != (probe.strides[-1], shape[-1]):
        return None
    ends = np.cumsum([part.shape[-1] for part in parts])
    return [_Place(layout.save(part), axis, int(end) - part.shape[-1]) for part, end in zip(parts, ends, strict=True)]


def _bands(tensor: Tensor, places: Sequence[_Place]) -> list[_Band]:
    rows, values = tensor.shape[0], tensor.read() if tensor.read_rows is None else None
    height = max(_BAND // (math.prod(tensor.shape[1:]) * tensor.dtype.itemsize), _ROWS)
    return [_Band(tensor, values, places, begin, min(begin + height, rows)) for begin in range(0, rows, height)]


def _work(bands: "deque[_Band]") -> None:
    """Read bands until none is left; one that cannot be read is put back."""
    buffers = _Buffer(), _Buffer()
    while (band := _next(bands)) is not None:
        try:
            _read_band(band, *buffers)
        except BaseException:
            bands.appendleft(band)  # the other threads fail with it, too, and end
            raise


def _next(bands: "deque[_Band]") -> _Band | None:
    try:
        return bands.popleft()
    except IndexError:  # another thread has taken the last one
        return None


class _Buffer:
    """Memory that a thread uses again and again: new memory costs a page fault for each 4 kB."""

    def __init__(self):
        self._memory = np.empty(0, np.uint8)

    def array(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """An array with any values; it is valid until the next one."""
        size = math.prod(shape) * dtype.itemsize
        if self._memory.size < size:
            self._memory = aligned((size,), np.dtype(np.uint8))
        return self._memory[:size].view(dtype).reshape(shape)


def _read_band(band: _Band, of_file: _Buffer, of_rows: _Buffer) -> None:
    tensor, values, places, begin, end = band
    first = places[0].view[begin:end]
    if tensor.read_rows is None:
        block = values[begin:end]  # type: ignore[index]
    elif len(places) == 1 and first.flags.c_contiguous and first.dtype == tensor.dtype:
        tensor.read_rows(begin, first)
        return
    else:
        block = tensor.read_rows(begin, of_file.array((end - begin, *tensor.shape[1:]), tensor.dtype))
    for place in places:
        if place.axis:
            before = (slice(None),) * place.axis
            _write(block[(*before, slice(place.begin, place.end))], place.view[begin:end], of_rows)
        else:  # those of the rows that belong to the part
            low, high = max(begin, place.begin), min(end, place.end)
            if low < high:
                target = place.view[low - place.begin : high - place.begin]
                _write(block[low - begin : high - begin], target, of_rows)


def _write(block: np.ndarray, target: np.ndarray, buffer: _Buffer) -> None:
    """Write rows into an array of the same shape, whose fastest axis may be that of the rows.

    Rows are transposed from a copy in which they are an odd number of cache lines apart. At a distance that is a power
    of two, all entries of a column have the same place in the cache, and transposing takes four times as long.
    """
    if target.strides[0] >= target.strides[-1]:
        return _cast_into(target, block)
    width = max(_COLUMNS // math.prod(block.shape[2:]), 1)
    for begin, first in itertools.product(range(0, len(block), _ROWS), range(0, block.shape[1], width)):
        tile = slice(begin, begin + _ROWS), slice(first, first + width)
        apart = _apart(block[tile].shape, target.dtype, buffer)
        _cast_into(apart, block[tile])
        _cast_into(target[tile], apart)


def _apart(shape: tuple[int, ...], dtype: np.dtype, buffer: _Buffer) -> np.ndarray:
    """An array whose rows are an odd number of cache lines apart."""
    width, line = math.prod(shape[1:]), _LINE // dtype.itemsize
    return buffer.array((shape[0], (-(-width // line) | 1) * line), dtype)[:, :width].reshape(shape)


def _cast_into(target: np.ndarray, values: np.ndarray) -> None:
    if values.dtype == target.dtype:
        bits = np.dtype(f"u{target.itemsize}")  # NumPy copies a bfloat16 much more slowly than its bits
        target.view(bits)[...] = values.view(bits)
    elif (values.dtype, target.dtype) == (jnp.bfloat16, np.float32):  # by its bits, which is ten times as fast
        bits = target.view(np.uint32)
        bits[...] = values.view(np.uint16)
        np.left_shift(bits, np.uint32(16), out=bits)
    else:
        target[...] = values.astype(target.dtype)


def _cast(values: np.ndarray, dtype: np.dtype, name: str) -> np.ndarray:
    if values.dtype == dtype:
        return values
    cast = np.empty(values.shape, dtype)
    _cast_into(cast, values)
    kept = jnp.issubdtype(dtype, jnp.inexact) or np.array_equal(cast, values)
    require(kept, f"integers of {dtype} in {name}", f"larger ones of {values.dtype}")
    return cast
