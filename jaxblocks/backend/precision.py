"""The precision of intermediate results: float32 for half-precision inputs, and products of float32 in float32.

Results are cast back to their dtype. GPUs multiply float32 in TF32 (10 bits of mantissa) and TPUs in bfloat16 (7 bits)
unless a product asks for more. A forward pass of a net does not; solvers, decompositions, closed forms, kernel matrices
and distances do, by `full_precision`.
"""

import contextlib
from collections.abc import Iterator
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

__all__ = ["full_precision", "wide_dtype", "widen"]


@contextlib.contextmanager
def full_precision() -> Iterator[None]:
    """Products that are traced in this block are computed in the full precision of their dtype on every device.

    It is a decorator too: ``@full_precision()``. Derivatives of products keep their precision. The rules of a
    ``jax.custom_jvp`` or ``jax.custom_vjp`` are traced where the function is differentiated, so they need a block of
    their own.

    >>> dot = full_precision()(lambda a, b: a @ b)
    >>> jax.make_jaxpr(dot)(jnp.ones(2), jnp.ones(2)).eqns[0].params["precision"][0]
    Precision.HIGHEST
    """
    with jax.default_matmul_precision("highest"):
        yield


AnyArray = TypeVar("AnyArray", jax.Array, np.ndarray)


def wide_dtype(dtype: DTypeLike) -> np.dtype:
    """The dtype of intermediate results: float32 for bfloat16 and float16; other dtypes are unchanged.

    >>> wide_dtype(jnp.bfloat16).name, wide_dtype(jnp.float32).name
    ('float32', 'float32')
    """
    dtype = jnp.dtype(dtype)
    half = jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < 4
    return jnp.dtype(jnp.float32) if half else dtype


def widen(x: AnyArray) -> AnyArray:
    """An array cast to the dtype of intermediate results."""
    return x.astype(wide_dtype(x.dtype))
