r"""A diagonal plus a product of narrow matrices: its products with matrices and with others of its kind.

    diag(d) + U V^T     n by n, of rank r besides its diagonal

`jaxblocks.ad.planning.bottlenecks` finds where a Jacobian has this form.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

__all__ = ["LowRank", "chained", "compose", "dense", "dot", "multiply"]


class LowRank(NamedTuple):
    """The matrix diag(diagonal) + columns^T rows.

    Attributes:
        diagonal: d, (n,).
        columns: U^T, (r, n).
        rows: V^T, (r, n).
    """

    diagonal: jax.Array
    columns: jax.Array
    rows: jax.Array


def compose(later: LowRank, earlier: LowRank) -> LowRank:
    """The product of two, whose rank is the sum of their ranks.

    >>> one = LowRank(jnp.ones(2), jnp.array([[0.0, 1.0]]), jnp.array([[2.0, 3.0]]))
    >>> (
    ...     compose(one, one).columns.shape,
    ...     bool(jnp.array_equal(dense(compose(one, one)), dense(one) @ dense(one))),
    ... )
    ((2, 2), True)
    """
    d, u, v, e, p, q = _in_one_dtype(*later, *earlier)
    rows = v * e[None] + dot(dot(v, p, 1, 1), q, 1, 0)
    return LowRank(d * e, jnp.concatenate([u, p * d[None]]), jnp.concatenate([rows, q]))


def chained(chain: Sequence[LowRank]) -> LowRank:
    """The product of a chain, beginning with the factor that is applied first, in balanced pairs.

    >>> one = LowRank(jnp.ones(2), jnp.array([[0.0, 1.0]]), jnp.array([[2.0, 3.0]]))
    >>> chained([one, one, one]).rows.shape
    (3, 2)
    """
    half = len(chain) // 2
    return compose(chained(chain[half:]), chained(chain[:half])) if half else chain[0]


def dense(factors: LowRank) -> jax.Array:
    """The matrix itself, (n, n).

    >>> dense(LowRank(jnp.ones(2), jnp.array([[0.0, 1.0]]), jnp.array([[2.0, 3.0]])))
    Array([[1., 0.],
           [2., 4.]], dtype=float32)
    """
    diagonal, columns, rows = _in_one_dtype(*factors)
    return jnp.diag(diagonal) + dot(columns, rows, 0, 0)


def multiply(factors: LowRank, matrix: jax.Array, axis: int, *, left: bool) -> jax.Array:
    """The product with a matrix whose ``axis`` has n entries, in the layout of the matrix.

    Args:
        factors: the factor of low rank.
        matrix: the other factor, (n, s) or (s, n).
        axis: its axis that is contracted.
        left: whether the factor of low rank stands on the left.

    >>> one = LowRank(jnp.ones(2), jnp.array([[0.0, 1.0]]), jnp.array([[2.0, 3.0]]))
    >>> multiply(one, jnp.array([[1.0, 1.0]]), 1, left=True)
    Array([[1., 6.]], dtype=float32)
    """
    diagonal, columns, rows, matrix = _in_one_dtype(*factors, matrix)
    inner, outer = (rows, columns) if left else (columns, rows)
    scaled = matrix * lax.expand_dims(diagonal, [1 - axis])
    if axis == 0:
        return scaled + dot(outer, dot(inner, matrix, 1, 0), 0, 0)
    return scaled + dot(dot(matrix, inner, 1, 1), outer, 1, 0)


def dot(left: jax.Array, right: jax.Array, left_axis: int, right_axis: int) -> jax.Array:
    """The product of two matrices over one axis of each, in the wider of their dtypes and at full precision.

    >>> dot(jnp.ones((2, 3)), jnp.ones((2, 3)), 1, 1).shape
    (2, 2)
    """
    left, right = _in_one_dtype(left, right)
    axes = (((left_axis,), (right_axis,)), ((), ()))
    return lax.dot_general(left, right, axes, precision=lax.Precision.HIGHEST)


def _in_one_dtype(*arrays: jax.Array) -> list[jax.Array]:
    """The arrays in the widest of their dtypes: the stages of a function may differ in precision."""
    dtype = max((array.dtype for array in arrays), key=lambda dtype: dtype.itemsize)
    return [array.astype(dtype) for array in arrays]
