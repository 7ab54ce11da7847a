"""Tensors of files as params: read one at a time, cast, moved into the layout of the param, stacked for `Repeat`."""

import contextlib
import math
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxblocks.checks.errors import require
from jaxblocks.interop.files import Tensor
from jaxblocks.interop.layouts import Layout

__all__ = ["cast_tensor", "has_nan", "read_copies"]


def read_copies(
    names: Sequence[str],
    tensors: Mapping[str, Tensor],
    layout: Layout,
    shapes: Sequence[tuple[int, ...]],
    dtype: np.dtype,
) -> list[np.ndarray]:
    """The tensors of all copies as params ``(copies, ...)``.

    There is one name for each copy, and several shapes where a tensor holds params side by side, along the last axis.

    >>> values = np.arange(6).reshape(2, 3)
    >>> tensors = {name: Tensor((2, 3), values.dtype, lambda: values) for name in "ab"}
    >>> transposed = Layout("transpose", np.transpose, np.transpose)
    >>> (param,) = read_copies("ab", tensors, transposed, [(2, 3, 2)], np.dtype("float32"))
    >>> param[1].tolist()
    [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
    """
    params = [_aligned(shape, dtype) for shape in shapes]
    ends = np.cumsum([shape[-1] for shape in shapes[:-1]], dtype=int)
    for k, name in enumerate(names):
        values = _in_order(np.asarray(layout.load(cast_tensor(tensors[name].read(), dtype, name))))  # may be a number
        for param, its in zip(params, np.split(values, ends, -1) if len(params) > 1 else [values], strict=True):
            param[k, ...] = its
    return params


def has_nan(values: np.ndarray) -> bool:
    """Whether an array in row-major order has NaN, found in pieces that fit into a cache.

    >>> has_nan(np.array([1.0, np.inf])), has_nan(np.array([np.nan, 1.0]))
    (False, True)
    """
    flat = values.reshape(-1)
    if flat.dtype.name == "bfloat16":  # by bits, since NumPy converts its numbers one by one
        is_nan = lambda x: (x.view(np.uint16) & 0x7FFF) > 0x7F80
    elif flat.dtype.kind in "fc":
        is_nan = np.isnan
    else:
        return False
    return any(is_nan(flat[begin : begin + _PIECE]).any() for begin in range(0, flat.size, _PIECE))


_PIECE = 2**16


def _aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An empty array at a multiple of 64 bytes, which JAX takes on CPU without a copy."""
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + 64, np.uint8)
    begin = -memory.ctypes.data % 64
    return memory[begin : begin + size].view(dtype).reshape(shape)


def _in_order(values: np.ndarray) -> np.ndarray:
    """The values in row-major order; a transfer of JAX moves axes several times as fast as NumPy."""
    if values.flags.c_contiguous:
        return values
    cpu = None
    with contextlib.suppress(RuntimeError):  # JAX_PLATFORMS may leave it out
        cpu = jax.local_devices(backend="cpu")[0]
    return np.asarray(jax.device_put(values, cpu))


def cast_tensor(values: np.ndarray, dtype: np.dtype, name: str, repair: str | None = None) -> np.ndarray:
    """The values in this dtype; a ``ValueError`` where integers would change, or large numbers become infinite.

    From float32 to bfloat16, which has the same exponents, numbers are not searched: those above 3.39e38 round to it.

    >>> cast_tensor(np.array([1.5]), np.dtype("float16"), "bias").dtype
    dtype('float16')
    """
    if values.dtype == dtype:
        return values
    with np.errstate(over="ignore", invalid="ignore"):
        cast = values.astype(dtype)
    if jnp.issubdtype(dtype, jnp.inexact):
        is_integer = not jnp.issubdtype(values.dtype, jnp.inexact)
        narrower = is_integer or jnp.finfo(dtype).nexp < jnp.finfo(values.dtype).nexp
        kind, kept = "numbers", not narrower or np.array_equal(np.isinf(cast), np.isinf(values))
    else:
        kind, kept = "integers", np.array_equal(cast, values)
    if repair is None:
        repair = f"load it into a param of {values.dtype}{', with jax_enable_x64' * (values.dtype.itemsize == 8)}"
    require(kept, f"{kind} of {dtype} in {name}", f"larger ones of {values.dtype}", repair)
    return cast
