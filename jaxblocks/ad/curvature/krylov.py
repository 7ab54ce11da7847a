r"""Krylov subspaces: the Lanczos recurrence of a symmetric operator.

    A       a symmetric operator v -> Av on pytrees like ``like``, with n numbers in all
    steps   k, the number of steps of the recurrence, one product each
    Q, T    its basis (k rows of n) and its tridiagonal matrix: Q A Q' = T

Vectors have float32 precision at least.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import Tracer
from jaxtyping import Array, Float, Key, PyTree

from jaxblocks.ad.vectors.chunks import map_in_chunks, order_convolutions
from jaxblocks.ad.vectors.raveled import RaveledOperator, dot, raveled
from jaxblocks.backend.quotients import norm
from jaxblocks.backend.varying import varying_like
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import PositiveInt, checked
from jaxblocks.checks.values import check_values

__all__ = ["Lanczos", "if_symmetric", "lanczos", "quadratures", "ritz_pairs", "steps_for", "tridiagonalize"]


class Lanczos(NamedTuple):
    """The operator in a basis of k orthonormal vectors, as a tridiagonal matrix; returned by `lanczos`.

    Attributes:
        diagonal, off_diagonal: of T: k and k - 1 numbers.
        residual: the remainder of the last step: ``A Q' = Q' T + residual`` times a unit vector in the last column;
            NaN if A is not symmetric, under ``jit``.
        basis: Q, one basis vector in each of k rows, raveled in the order of ``jax.tree.leaves``.
    """

    diagonal: Float[Array, " k"]
    off_diagonal: Float[Array, " k-1"]
    residual: Float[Array, ""]
    basis: Float[Array, "k n"]


@checked
def lanczos(
    key: Key[Array, ""],
    operator: Callable[[PyTree], PyTree],
    like: PyTree,
    *,
    steps: PositiveInt | None = None,
) -> Lanczos:
    r"""The Lanczos recurrence with full reorthogonalization from a random vector: $Q A Qᵀ = T$.

    Each step computes one product and makes it orthogonal to all previous vectors, twice. Where the previous
    vectors span an invariant subspace (as they do after r + 1 steps for an operator of rank r), it continues with a
    new random vector, so that multiple eigenvalues are found too. Memory: ``steps`` vectors like ``like``.

    Args:
        key: the key of the first vector.
        operator: symmetric, takes and returns a pytree like ``like``. Symmetry is checked from the second step on:
            $q_iᵀ A q_j$ and $q_jᵀ A q_i$ are compared, to the cube root of the precision
            (matrix products may have less precision than their dtype).
        like: a pytree of floating-point arrays (or ``jax.ShapeDtypeStruct``); only shapes and dtypes are read.
        steps: k, at most n. By default 30, or n if that is less.

    Raises:
        TypeError: without a key.
        ValueError: for ``steps`` < 1 or above n, and an operator that is not symmetric. Under ``jit`` ``residual``
            is NaN instead.

    >>> A = jnp.diag(jnp.array([1.0, 2.0, 4.0]))
    >>> tridiagonal = lanczos(jax.random.key(0), lambda v: A @ v, jnp.zeros(3), steps=3)
    >>> bool(jnp.allclose(tridiagonal.diagonal.sum(), 7.0))
    True

    Source: Golub & Van Loan 2013, Matrix Computations, chapter 10.
    """
    space = raveled(operator, like)
    steps = steps_for(space.n, steps)
    found, asymmetry, scale = tridiagonalize(key, space, steps)
    return found._replace(residual=if_symmetric(space, asymmetry, scale, found.residual))


def steps_for(n: int, steps: int | None, default: int = 30) -> int:
    """The number of steps for an operator of size n: ``steps``, at most n, or else the smaller of ``default`` and n.

    >>> steps_for(100, None), steps_for(3, None), steps_for(3, 2)
    (30, 3, 2)
    """
    require(n, "an operator on at least one number", "empty arrays", "pass arrays with entries")
    if steps is None:
        return min(default, n)
    require(steps <= n, f"steps to be at most {n}, the size of the operator", steps, f"pass steps={n}")
    return steps


def if_symmetric(
    operator: RaveledOperator, asymmetry: Float[Array, ""], scale: Float[Array, ""], value: Float[Array, "..."]
) -> Float[Array, "..."]:
    """Return ``value`` if the operator is symmetric; otherwise raise an error, or return NaN under ``jit``.

    Products may have less precision than their dtype (bfloat16 in a network). The tolerance, the cube
    root of the precision of the dtype, allows for that, and is far below the asymmetry of a nonsymmetric operator.
    """
    precision = max(float(jnp.finfo(leaf.dtype).eps) for leaf in jax.tree.leaves(operator.like))
    ok = ~(asymmetry > precision ** (1 / 3) * scale)  # NaN passes
    check_values(
        ok,
        "a symmetric operator, got a difference of {asymmetry} between v'Aw and w'Av for two vectors of length 1 (the "
        "largest norm of Av is {scale}); pass a linear symmetric operator, such as lambda v: (A @ v + A.T @ v) / 2, "
        "that is the same in each product (with a fixed key)",
        asymmetry=asymmetry,
        scale=scale,
    )
    return jnp.where(ok, value, jnp.nan) if isinstance(ok, Tracer) else value


def tridiagonalize(
    key: Key[Array, ""], operator: RaveledOperator, steps: int
) -> tuple[Lanczos, Float[Array, ""], Float[Array, ""]]:
    """The recurrence, the largest difference between q_i'Aq_j and q_j'Aq_i, and the largest norm of Aq_j."""
    start = jax.random.normal(jax.random.fold_in(key, steps), (operator.n,), operator.dtype)
    tiny = jnp.finfo(operator.dtype).tiny

    def step(i, carry):
        basis, diagonal, off_diagonal, asymmetry, scale = carry
        y = operator.apply(basis[i])
        inside = dot(basis, y)
        alpha = inside[i]
        # q_j'Aq_i of previous vectors is the last beta for j = i - 1, else zero. (In step 0, row -1 is the last row,
        # which is still zero, as is its beta.)
        away = inside.at[i].set(0).at[i - 1].add(-off_diagonal[i - 1])
        asymmetry = jnp.maximum(asymmetry, jnp.max(jnp.abs(away)))
        scale = jnp.maximum(scale, norm(y))
        y = _outside(y, basis, inside)
        beta = norm(y)
        stuck = beta <= 10 * jnp.finfo(operator.dtype).eps * scale  # the subspace is invariant up to rounding
        beta = jnp.where(stuck, 0, beta)
        fresh = varying_like(jax.random.normal(jax.random.fold_in(key, i), y.shape, y.dtype), y)
        # In an invariant subspace the recurrence ends; a new random direction continues it in the rest of the space,
        # with beta 0.
        y = lax.cond(stuck, lambda: _outside(fresh, basis, dot(basis, fresh)), lambda: y)
        # Outside of a full basis is rounding only. No step reads this vector, but 0 times its derivative may be NaN.
        y = jnp.where(i + 1 < operator.n, y, fresh)
        y = y / jnp.maximum(norm(y), tiny)
        return basis.at[i + 1].set(y), diagonal.at[i].set(alpha), off_diagonal.at[i].set(beta), asymmetry, scale

    basis = jnp.zeros((steps + 1, operator.n), operator.dtype).at[0].set(start / norm(start))
    numbers = jnp.zeros(steps, operator.dtype)
    carry = basis, numbers, numbers, jnp.zeros((), operator.dtype), jnp.zeros((), operator.dtype)
    carry = varying_like(carry, operator.like)
    basis, diagonal, off_diagonal, asymmetry, scale = lax.fori_loop(0, steps, order_convolutions(step), carry)
    found = Lanczos(diagonal, off_diagonal[:-1], off_diagonal[-1], basis[:-1])
    return found, lax.stop_gradient(asymmetry), lax.stop_gradient(scale)


def _outside(y, basis, inside):
    """The part of y that is orthogonal to all rows of the basis; rows that are not computed yet are zero.

    ``inside`` are the products of y with these rows.
    """
    # Twice: one projection leaves a part of the size of its rounding errors, which is large where y is almost in the
    # span.
    y = y - dot(inside, basis)
    return y - dot(dot(basis, y), basis)


def ritz_pairs(lanczos: Lanczos) -> tuple[Float[Array, " k"], Float[Array, "k k"]]:
    """The eigenvalues of T in increasing order, and its eigenvectors as columns."""
    off = lanczos.off_diagonal
    return jnp.linalg.eigh(jnp.diag(lanczos.diagonal) + jnp.diag(off, 1) + jnp.diag(off, -1))


def quadratures(
    key: Key[Array, ""], operator: RaveledOperator, steps: int, samples: int, chunk_size: int
) -> tuple[Float[Array, "samples k"], Float[Array, "samples k"], Float[Array, "samples n"]]:
    """The Gauss quadratures of the spectral measures of random vectors of length 1: nodes, weights and the vectors."""

    def of_one(key):
        found, asymmetry, scale = tridiagonalize(key, operator, steps)
        nodes, vectors = ritz_pairs(found)
        return nodes, vectors[0] ** 2, found.basis[0], asymmetry, scale

    keys = jax.random.split(key, samples)
    nodes, weights, starts, asymmetry, scale = map_in_chunks(of_one, keys, min(chunk_size, samples))
    return if_symmetric(operator, jnp.max(asymmetry), jnp.max(scale), nodes), weights, starts
