"""Jacobians between two cuts of a program, by rows or by columns, and operations on them."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxblocks.ad.programs.jaxprs import dtype_of, shape_of, size_of
from jaxblocks.backend.varying import varying_like

__all__ = [
    "Held",
    "dot",
    "joined",
    "split_by",
    "transposed",
    "turned_to",
    "zeros_as",
]


class Held(NamedTuple):
    """A Jacobian between two cuts.

    It is stored by ``"rows"``, (n_out, *shape) for each variable of the earlier cut, by ``"columns"``, (n_in, *shape)
    for each variable of the later one, or, for the result, by ``"blocks"``, (numbers, n_in) for each output, or by
    ``"whole"``, in the shape of the Jacobian.
    """

    by: str
    arrays: list[jax.Array]


def turned_to(held: Held, by: str, cut) -> Held:
    """A Jacobian in the layout ``by``; ``cut`` are the variables of its arrays in that layout."""
    return held if held.by == by else held._replace(by=by, arrays=split_by(transposed(joined(held.arrays)), cut))


def transposed(matrix):
    """A transposed copy of a matrix.

    The barriers prevent the compiler from folding it into a product, which is slow if one side is narrow.
    """
    return lax.optimization_barrier(lax.optimization_barrier(matrix).T)


def joined(arrays) -> jax.Array:
    """Arrays (s, *shape) as one matrix (s, numbers)."""
    flat = [array.reshape(array.shape[0], math.prod(array.shape[1:])) for array in arrays]
    return flat[0] if len(flat) == 1 else jnp.concatenate(flat, axis=1)


def split_by(matrix, variables) -> list[jax.Array]:
    """A matrix (s, numbers) as arrays (s, *shape), one for each variable."""
    seeds, arrays, start = matrix.shape[0], [], 0
    for v, size in zip(variables, map(size_of, variables), strict=True):
        arrays.append(lax.slice_in_dim(matrix, start, start + size, axis=1).reshape(seeds, *shape_of(v)))
        start += size
    return [a.astype(dtype_of(v)) for a, v in zip(arrays, variables, strict=True)]


def zeros_as(shape, v) -> jax.Array:
    """Zeros with the dtype of a variable, varying over the same mesh axes."""
    return varying_like(jnp.zeros(shape, dtype_of(v)), v.aval)


def dot(left: jax.Array, right: jax.Array, left_axis: int, right_axis: int) -> jax.Array:
    """The product of two matrices over one axis of each, in the wider of their dtypes and at full precision."""
    dtype = max(left.dtype, right.dtype, key=lambda dtype: dtype.itemsize)  # stages may differ in precision
    axes = (((left_axis,), (right_axis,)), ((), ()))
    return lax.dot_general(left.astype(dtype), right.astype(dtype), axes, precision=lax.Precision.HIGHEST)
