"""What half-precision input is computed in: float32, cast back at the end."""

import jax.numpy as jnp

__all__ = ["wide_dtype", "widen"]


def wide_dtype(dtype):
    """The dtype to compute in: float32 for bfloat16 and float16, any other as it is.

    >>> wide_dtype(jnp.bfloat16).name, wide_dtype(jnp.float32).name
    ('float32', 'float32')
    """
    dtype = jnp.dtype(dtype)
    half = jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < 4
    return jnp.dtype(jnp.float32) if half else dtype


def widen(x):
    """An array in the dtype to compute in.

    >>> widen(jnp.ones(2, jnp.float16)).dtype.name
    'float32'
    """
    return x.astype(wide_dtype(x.dtype))
