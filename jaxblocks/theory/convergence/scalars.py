"""Conversion of numbers and arrays to arrays of one dtype and one shape."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Num

__all__ = ["Scalar", "at_most", "broadcast_scalars"]

Scalar = int | float | Num[Array, "..."] | np.ndarray | np.number
"""A number, or an array of numbers."""


def broadcast_scalars(*xs: Scalar) -> list[jax.Array]:
    """Arrays of one floating dtype and one shape, by the rules of NumPy."""
    floats = [x for x in xs if not isinstance(x, int | float) and jnp.issubdtype(x.dtype, jnp.floating)]
    with jax.numpy_dtype_promotion("standard"):
        dtype = jnp.result_type(*floats) if floats else jnp.result_type(float)
    arrays = [jnp.asarray(x, dtype) for x in xs]
    shape = jnp.broadcast_shapes(*(x.shape for x in arrays))
    return [jnp.broadcast_to(x.reshape((1,) * (len(shape) - x.ndim) + x.shape), shape) for x in arrays]


def at_most(h: jax.Array, limit: int | float) -> jax.Array:
    """Whether ``h <= limit``, up to the rounding of a product of two numbers."""
    return h <= limit * (1 + 4 * float(jnp.finfo(h.dtype).eps))
