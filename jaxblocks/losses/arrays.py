"""What losses do with their arrays: the dtype to compute in, absolute values, products with infinite factors."""

import jax.numpy as jnp

from jaxblocks.backend.precision import widen
from jaxblocks.backend.quotients import norm
from jaxblocks.checks.errors import require

__all__ = ["check_last_axis", "magnitude", "product", "squared_magnitude", "widen_both"]


def widen_both(a, b):
    """Two arrays in the dtype to compute in, and the dtype of the result."""
    return widen(a), widen(b), jnp.promote_types(a.dtype, b.dtype)


def magnitude(x):
    """|x| with derivative 0 at 0 (``jnp.abs`` has 1), so that the gradient at a perfect fit is 0."""
    return norm(jnp.stack([x.real, x.imag], -1), (-1,)) if jnp.iscomplexobj(x) else x * jnp.sign(x)


def squared_magnitude(x):
    """|x|^2, a real number for complex x too.

    >>> print(squared_magnitude(jnp.array([3 + 4j])))
    [25.]
    """
    return jnp.square(x.real) + jnp.square(x.imag) if jnp.iscomplexobj(x) else jnp.square(x)


def product(weight, x):
    """weight * x with 0 times infinity = 0, in the value and in the derivative of the weight."""
    # Where the weight is 0, x is replaced by 0 before the product, so that no 0 * inf is in the derivative.
    return weight * jnp.where((weight == 0) & jnp.isinf(x), 0, x)


def check_last_axis(x):
    """Raise a ``ValueError`` for an axis of classes or features without entries."""
    require(x.shape[-1] > 0, "at least one entry on the last axis", x, "pass classes or features there")
