r"""Functions of a symmetric matrix, with derivatives where eigenvalues are equal and eigenvectors have none.

    K = V diag(λ) V^T, V orthogonal        g(K) = V diag(g(λ)) V^T

Along a symmetric K' it changes by V (F ∘ V^T K' V) V^T with the quotients F_ij = (g(λ_i) - g(λ_j)) / (λ_i - λ_j), whose
limit for equal eigenvalues is the slope of g.

Source: Daleckii & Krein 1965; Higham 2008, Functions of matrices, theorem 3.11.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Float

from jaxblocks.backend.precision import full_precision

__all__ = ["apply_matrix_function", "eigenvectors"]


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
@full_precision()
def apply_matrix_function(
    function: Callable[..., Array], matrix: Float[Array, "n n"], x: Float[Array, "n m"], argument: Any = None
) -> Float[Array, "n m"]:
    """The product g(K) x.

    First derivatives are right for equal eigenvalues; second ones are those of `eigenvectors`.

    Args:
        function: ``function(values, rounding, argument)`` is g of each value; eigenvalues of a size up to ``rounding``
            may be those of a singular matrix.
        matrix: K, which is taken as symmetric.
        x: the columns.
        argument: a number on which g depends, or ``None``.

    >>> square = lambda values, rounding, argument: values**2
    >>> f = lambda t: apply_matrix_function(square, t * jnp.eye(2), jnp.ones((2, 1)))
    >>> jax.jacobian(f)(3.0).round(4).ravel()
    Array([6., 6.], dtype=float32)
    """
    values, vectors = eigenvectors(matrix)
    return vectors @ (function(values, _rounding(values), argument)[:, None] * (vectors.T @ x))


@functools.partial(apply_matrix_function.defjvp, symbolic_zeros=True)
@full_precision()
def _push(function, primals, tangents):
    [matrix, x, argument], [d_matrix, d_x, d_argument] = primals, tangents
    applied = functools.partial(apply_matrix_function, function, matrix, argument=argument)
    values, vectors = eigenvectors(matrix)
    rounding = _rounding(values)
    columns, terms = vectors.T @ x, []
    if not isinstance(d_x, SymbolicZero):
        terms.append(applied(d_x))
    if not (d_argument is None or isinstance(d_argument, SymbolicZero)):
        change = jax.jvp(lambda argument: function(values, rounding, argument), [argument], [d_argument])[1]
        terms.append(vectors @ (change[:, None] * columns))
    if not isinstance(d_matrix, SymbolicZero):
        images = function(values, rounding, argument)
        one, other = values[:, None], values[None]
        middle, gap = (one + other) / 2, one - other
        slope = jax.jvp(lambda v: function(v, rounding, argument), [middle], [jnp.ones_like(middle)])[1]
        # The slope in the middle has an error of the square of the gap, the quotient one of its inverse.
        near = jnp.abs(gap) <= jnp.finfo(values.dtype).eps ** (1 / 3) * jnp.maximum(jnp.abs(one), jnp.abs(other))
        quotients = jnp.where(near, slope, (images[:, None] - images[None]) / jnp.where(near, 1, gap))
        turned = vectors.T @ ((d_matrix + d_matrix.T) / 2) @ vectors
        terms.append(vectors @ ((quotients * turned) @ columns))
    return applied(x), functools.reduce(jnp.add, terms)


@jax.custom_jvp
def eigenvectors(matrix: Float[Array, "*batch n n"]) -> tuple[Float[Array, "*batch n"], Float[Array, "*batch n n"]]:
    """The eigenvalues and eigenvectors of symmetric matrices.

    Where two eigenvalues are equal up to 100 roundings, the derivatives of the vectors are NaN: they would depend on
    rounding errors. Of those that are zero up to rounding, no eigenvector moves toward another.

    >>> values, vectors = eigenvectors(jnp.array([[2.0, 1.0], [1.0, 2.0]]))
    >>> values.round(5), jnp.abs(vectors[:, 0]).round(3)
    (Array([1., 3.], dtype=float32), Array([0.707, 0.707], dtype=float32))
    """
    return tuple(jnp.linalg.eigh(matrix))  # type: ignore[return-value]


@eigenvectors.defjvp
@full_precision()
def _push_eigenvectors(primals, tangents):
    values, vectors = eigenvectors(*primals)
    turned = vectors.mT @ tangents[0] @ vectors
    turned = (turned + turned.mT) / 2  # so that the vectors stay orthogonal
    one, other = values[..., :, None], values[..., None, :]
    gap, size = other - one, jnp.maximum(jnp.abs(one), jnp.abs(other))
    itself = jnp.broadcast_to(jnp.eye(values.shape[-1], dtype=bool), gap.shape)
    free = itself | (size <= _rounding(values)[..., None, None])
    # The quotients of a function near equal values lose their digits relative to these, not to the largest one.
    equal = jnp.abs(gap) <= 100 * jnp.finfo(values.dtype).eps * size
    quotients = jnp.where(free, 0, jnp.where(equal, jnp.nan, 1) / jnp.where(free, 1, gap))
    return (values, vectors), (jnp.diagonal(turned, axis1=-2, axis2=-1), vectors @ (quotients * turned))


def _rounding(values):
    """The size up to which an eigenvalue may be a rounding error of zero; a constant for derivatives."""
    largest = jnp.max(jnp.abs(values), axis=-1, initial=0)
    return jax.lax.stop_gradient(values.shape[-1] * jnp.finfo(values.dtype).eps * largest)
