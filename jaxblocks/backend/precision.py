"""The precision of intermediate results: float32 for half-precision inputs; results are cast back to their dtype."""

from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

__all__ = ["wide_dtype", "widen"]

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
    """An array cast to the dtype of intermediate results.

    >>> widen(jnp.ones(2, jnp.float16)).dtype.name
    'float32'
    """
    return x.astype(wide_dtype(x.dtype))
