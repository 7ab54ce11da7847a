"""Powers of two as units of arrays, in which squares neither overflow nor vanish.

A multiplication by a power of two changes no digit, so a result does not depend on the unit unless an intermediate
value leaves the range of the dtype: the square of a float32 above 1.8e19 overflows, and that of one below 1e-19 loses
digits.
"""

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

__all__ = ["divided", "unit_of"]


def unit_of(size: Float[Array, "*shape"], *, of_zero: float = 1.0) -> Float[Array, "*shape"]:
    """The largest power of two that is at most each entry of ``size``; 1 for infinity and for NaN.

    It is a constant for derivatives of all orders. Powers of two near the ends of the range are clipped, so that the
    reciprocal of the unit is an ordinary number too; the unit of 0 is that of ``of_zero``.

    >>> unit_of(jnp.array([0.0, 0.3, 1.0, 5.0, 1e30])).tolist()
    [1.0, 0.25, 1.0, 4.0, 6.338253001141147e+29]
    """
    size = lax.stop_gradient(size)
    size = jnp.where(size == 0, jnp.full_like(size, of_zero), size)
    info = jnp.finfo(size.dtype)
    integers = _integers(size.dtype)
    # The bits of infinity are those of the exponent; the others hold the sign and the digits.
    exponent = np.array(np.inf, size.dtype).view(integers)
    power = lax.bitcast_convert_type(lax.bitcast_convert_type(size, integers) & exponent, size.dtype)
    low, high = (np.asarray(2.0**end, size.dtype) for end in (info.minexp + 2, -info.minexp - 2))
    return jnp.where(size < jnp.inf, jnp.clip(power, low, high), jnp.ones_like(size))


def divided(x: Array, unit: Array) -> Array:
    """The array divided by a unit that broadcasts to it, as an operation that a compiler does not move.

    XLA joins quotients, x / a / b = x / (a b), and moves constant factors outward, (c x / a)^2 = c^2 (x / a)^2. Both
    leave the range of the dtype. So the reciprocal comes from the bits of the power of two, and the product with it is
    selected, by a condition that always holds.

    >>> divided(jnp.array([1.0, 6.0]), jnp.array([0.25, 4.0])).tolist()
    [4.0, 1.5]
    """
    integers = _integers(unit.dtype)
    one = np.array(1, unit.dtype).view(integers)
    reciprocal = lax.bitcast_convert_type(2 * one - lax.bitcast_convert_type(unit, integers), unit.dtype)
    return jnp.where(reciprocal > 0, x * reciprocal, jnp.zeros((), x.dtype))


def _integers(dtype) -> np.dtype:
    return np.dtype(f"uint{8 * dtype.itemsize}")
