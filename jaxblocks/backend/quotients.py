r"""Quotients, logarithms, roots and norms whose derivatives of every order divide by x, never by $x^2$.

JAX computes the derivative of $a / x$ as $-a x^{-2} dx$. In float32 the square underflows for x below
1e-19 and overflows above 1e19, although $(a / x) (dx / x)$ is representable: the result is NaN, infinite, or 0.
The second derivatives of ``jnp.log`` and ``lax.rsqrt`` contain the same square. The rules here multiply by reciprocals
one at a time, so that they are right where x and 1 / x are normal numbers: in float32 for |x| from 1.2e-38 to 8.5e37.
"""

import functools
import math
from typing import Annotated, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jax.typing import ArrayLike
from jaxtyping import Array

from jaxblocks.backend.powers_of_two import divided, unit_of
from jaxblocks.backend.precision import widen
from jaxblocks.checks.expectations import Range

__all__ = ["Order", "divide", "log", "norm", "reciprocal", "rsqrt", "sqrt", "unit_vector", "vanishes"]

Order: TypeAlias = Annotated[float | int, Range(1)]
"""The order of a norm; ``math.inf`` is one."""


@jax.custom_jvp
def reciprocal(x: Array) -> Array:
    """1 / x.

    >>> f = lambda t: 1e-30 * reciprocal(jnp.exp(t))
    >>> # with 1 / x the derivative is -inf
    >>> print(f"{f(-69.0):.3f} {jax.grad(f)(-69.0):.3f}")
    0.925 -0.925
    """
    return 1 / x


@reciprocal.defjvp
def _push_reciprocal(primals, tangents):
    y = reciprocal(*primals)
    # The tangent first, which has the size of x: y^2 alone may overflow.
    return y, -y * (y * tangents[0])


@jax.custom_jvp
def divide(a: Array, x: Array) -> Array:
    """a / x, of arrays that broadcast.

    Derivatives multiply by 1 / x. In float32 this is flushed to 0 for |x| above 8.5e37, and derivatives with it.

    >>> # t, by way of exp(-80)
    >>> f = lambda t: divide(jnp.exp(t), jnp.exp(2 * t)) * jnp.exp(t) * t
    >>> print(f"{jax.grad(f)(-40.0):.3f}")
    1.000
    """
    return a / x


@functools.partial(divide.defjvp, symbolic_zeros=True)
def _push_divide(primals, tangents):
    (_, x), (d_a, d_x) = primals, tangents
    y = divide(*primals)
    # Of a constant there is no term: 0 times an infinite quotient would be NaN.
    change = 0.0 if isinstance(d_a, SymbolicZero) else d_a
    change = change if isinstance(d_x, SymbolicZero) else change - y * d_x
    # A product with the reciprocal, not a quotient: JAX differentiates a quotient of tangents by its own rule.
    return y, jnp.broadcast_to(change * reciprocal(x), y.shape)


@jax.custom_jvp
def log(x: Array) -> Array:
    """The natural logarithm.

    >>> print(abs(jax.hessian(lambda t: log(jnp.exp(t)))(-60.0)) < 1e-6)
    True
    """
    return jnp.log(x)


@log.defjvp
def _push_log(primals, tangents):
    return log(*primals), tangents[0] * reciprocal(*primals)


@jax.custom_jvp
def rsqrt(x: Array) -> Array:
    """The reciprocal of the square root.

    >>> print(f"{jax.grad(lambda t: jnp.log(rsqrt(jnp.exp(t))))(jnp.array(80.0)):.3f}")
    -0.500
    """
    return lax.rsqrt(x)


@rsqrt.defjvp
def _push_rsqrt(primals, tangents):
    y = rsqrt(*primals)
    return y, -0.5 * y * (tangents[0] * reciprocal(*primals))


def vanishes(x: Array) -> Array:
    """Where x is 0 or so small that its reciprocal overflows: below the smallest normal number.

    >>> print(vanishes(jnp.array([0.0, 1e-30])))
    [ True False]
    """
    tiny = float(jnp.finfo(x.dtype).tiny)
    return (x < tiny) & (x > -tiny)


def sqrt(x: Array) -> Array:
    """The square root of numbers >= 0, with the derivative 0 at 0: a choice, where that of the root is infinite.

    >>> print(sqrt(jnp.array([4.0, 0.0])))
    [2. 0.]
    """
    zero = x == 0
    return jnp.where(zero, 0, jnp.sqrt(jnp.where(zero, 1, x)))


def norm(x: Array, axes: int | tuple[int, ...] | None = None, order: Order = 2, *, keepdims: bool = False) -> Array:
    r"""(sum_i \|x_i\|^order)^(1 / order) over ``axes``, by default all, for an order >= 1; the largest \|x_i\| for inf.

    The derivative where x = 0 is 0, and for an order other than 2 also that with respect to an entry that is 0. No
    derivative has the square of a scale, so that those of every order are right where they are representable.

    >>> x = jnp.array([3e-30, 4e-30])
    >>> print(norm(x), jax.grad(norm)(x))
    5e-30 [0.6 0.8]
    """
    axes = tuple(range(x.ndim)) if axes is None else axes
    if math.isinf(order):
        length = jnp.max(x * jnp.sign(x), axes, keepdims=True, initial=0)
    else:
        length = _norm(widen(x), axes, order).astype(x.dtype)  # a sum of few thousand powers overflows in float16
    return length if keepdims else jnp.squeeze(length, axes)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def _norm(x, axes, order):
    size = jnp.abs(x)
    largest = jnp.max(size, axes, keepdims=True, initial=0)
    unit = unit_of(largest)
    # Powers of numbers up to 16 = 2^4, in a unit that is clipped, overflow for large orders; those of 1 do not.
    safe = order <= jnp.finfo(x.dtype).maxexp / 4
    top = 1 if safe else jnp.clip(lax.stop_gradient(divided(largest, unit)), 1, 16)
    total = jnp.sum((divided(size, unit) / top) ** order, axes, keepdims=True)
    # JAX differentiates this, and not the rule, for second derivatives outside of a scan: the power has none at 0.
    zero = total == 0
    return jnp.where(zero, 0, unit * top * jnp.where(zero, 1, total) ** (1 / order))


@_norm.defjvp
def _push_norm(axes, order, primals, tangents):
    [x], [d_x] = primals, tangents
    y = _norm(x, axes, order)
    zero = vanishes(y)
    length = jnp.where(zero, 1, y)
    unit = unit_of(length)  # in which the length has a reciprocal, also above 8.5e37
    slope = divide(divided(jnp.where(zero, 0, x), unit), divided(length, unit))
    if order != 2:
        zero = vanishes(x)
        slope = jnp.where(zero, 0, jnp.sign(x) * jnp.where(zero, 1, jnp.abs(slope)) ** (order - 1))
    return y, jnp.sum(slope * d_x, axes, keepdims=True)


def unit_vector(x: ArrayLike, axes: int | tuple[int, ...] = -1) -> Array:
    """x / |x| with the Euclidean norm over ``axes``; 0 for x = 0, with the identity as its derivative.

    Half precision is computed in float32.

    >>> print(unit_vector(jnp.array([[3e-30, 4e-30], [0.0, 0.0]])))
    [[0.6 0.8]
     [0.  0. ]]
    """
    x = jnp.asarray(x)
    wide = widen(x)
    largest = jnp.max(jnp.abs(wide), axes, keepdims=True, initial=0)
    wide = divided(wide, unit_of(largest))
    squared = jnp.where(vanishes(largest), 1, jnp.sum(jnp.square(wide), axes, keepdims=True))
    return (wide * lax.rsqrt(squared)).astype(x.dtype)
