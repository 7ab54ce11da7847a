r"""The Hessian as a matrix, and its diagonal, in chunks of bounded memory.

    x    the point, any pytree of floating-point arrays with n numbers in all
    H    the Hessian of f at x, n by n

One column costs about two gradients (`jaxblocks.ad.hessian_operator`), all columns cost n times that. They are
computed in chunks: ``vmap`` computes one chunk, a loop iterates over the chunks, so the temporary memory is that
of one chunk. The unit vectors of a chunk are created inside the loop. Functions and operators are evaluated in full
precision on every device.
"""

from collections.abc import Callable
from typing import Any, TypeVar, overload

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, PyTree

from jaxblocks.ad.curvature.operators import hessian_operator
from jaxblocks.ad.programs.arguments import Tree, as_point, floating_like
from jaxblocks.ad.vectors.chunks import ChunkSize, chunk_size_for, order_convolutions
from jaxblocks.ad.vectors.raveled import offsets, raveled
from jaxblocks.backend.varying import inside_shard_map, sharded_like, varying_like
from jaxblocks.checks.expectations import checked
from jaxblocks.checks.values import check_values, checkable

__all__ = ["as_matrix", "hessian", "hessian_diagonal"]

Leaf = TypeVar("Leaf", bound=Array)


@checked
def as_matrix(
    operator: Callable[[PyTree], PyTree], like: PyTree, *, chunk_size: ChunkSize = "auto"
) -> Float[Array, "n n"]:
    """The matrix of a linear operator ``v -> Av``: column j is the value at the j-th unit vector.

    Rows and columns follow the order of ``jax.tree.leaves``, each leaf raveled.

    Args:
        operator: linear, takes and returns a pytree like ``like``. Linearity is checked only by its value at zero,
            and not under ``jit``.
        like: a pytree of floating-point arrays (or ``jax.ShapeDtypeStruct``); only shapes and dtypes are read.
        chunk_size: the number of columns computed at once; ``"auto"`` chooses by the array sizes in the operator.

    Returns:
        The matrix, (n, n) for n numbers in ``like``.

    Raises:
        ValueError: for ``chunk_size`` < 1, or an operator that does not return a pytree like ``like``, or zero at zero.
        TypeError: if a leaf of ``like`` is not floating-point.

    >>> f = lambda v: {"a": v["a"] + 2 * v["b"], "b": v["b"]}
    >>> jax.jit(lambda like: as_matrix(f, like))({"a": jnp.zeros(()), "b": jnp.zeros(())})
    Array([[1., 2.],
           [0., 1.]], dtype=float32)
    """
    like = floating_like(like)
    widest = max((leaf.dtype for leaf in jax.tree.leaves(like)), key=lambda dtype: dtype.itemsize)
    matrix = _matrix(operator, like, chunk_size).astype(widest)
    # An affine operator A v + b would give the columns A e_j + b without an error.
    at_zero = jax.tree.leaves(operator(jax.tree.map(jnp.zeros_like, like)))
    for y in at_zero:
        if (known := checkable(y, False)) is not None:
            check_values(
                ~(abs(known) > 0),  # NaN passes
                "a linear operator, got one with the value {most} at zero; for the Jacobian of a function f at x pass "
                "lambda v: jax.jvp(f, (x,), (v,))[1]",
                most=abs(known).max(initial=0),
            )
    return matrix


@overload
def hessian(f: Callable[[Leaf], Float[Array, ""]], x: Leaf, *, chunk_size: ChunkSize = "auto") -> Leaf: ...
@overload
def hessian(f: Callable[[Any], Float[Array, ""]], x: PyTree, *, chunk_size: ChunkSize = "auto") -> PyTree: ...
@checked
def hessian(f: Callable[[Any], Float[Array, ""]], x: PyTree, *, chunk_size: ChunkSize = "auto") -> PyTree:
    r"""The Hessian $H_{ij} = (∂^2 f) / (∂ x_i ∂ x_j)$, equal to ``jax.hessian(f)(x)``.

    The gradient is linearized once and the columns are computed in chunks. This takes less time and much less memory
    than ``jax.hessian``, which computes all columns at once. A function with a while loop, which has no reverse mode,
    is differentiated by forward over forward mode, n passes for each column.

    Args:
        f: takes a pytree, returns a scalar.
        x: the point, a pytree of floating-point arrays.
        chunk_size: the number of columns computed at once; ``"auto"`` is usually 32 or more. Memory grows with it.

    Returns:
        A tree like ``x`` of trees like ``x``: block ``[a][b]`` has the shape of leaf a followed by that of
        leaf b. For the n by n matrix of all leaves use ``as_matrix(hessian_operator(f, x), x)``.

    Raises:
        TypeError: if a leaf of ``x`` is not floating-point, or ``f`` does not return a floating-point array.
        ValueError: if ``f`` is not scalar-valued, or ``chunk_size`` < 1.

    >>> f = lambda x: x["a"] * jnp.sum(x["b"] ** 2)
    >>> jax.jit(lambda x: hessian(f, x))(
    ...     {"a": jnp.float32(3.0), "b": jnp.array([1.0, 2.0])}
    ... )["b"]["a"]
    Array([2., 4.], dtype=float32)

    Source: Griewank & Walther 2008, Evaluating derivatives (doi:10.1137/1.9780898717761); Huszar, DeepNN lecture 3 (the
    Hessian).
    """
    x = as_point(x)
    matrix = _matrix(hessian_operator(f, x), x, chunk_size)
    leaves, structure = jax.tree.flatten(x)

    def block(i, a, j, b):
        return matrix[i : i + a.size, j : j + b.size].reshape(a.shape + b.shape).astype(a.dtype)

    rows = [structure.unflatten([block(i, a, j, b) for j, b in offsets(leaves)]) for i, a in offsets(leaves)]
    return structure.unflatten(rows)


@checked
def hessian_diagonal(f: Callable[[Tree], Float[Array, ""]], x: Tree, *, chunk_size: ChunkSize = "auto") -> Tree:
    r"""The exact diagonal $H_{ii}$ of the Hessian, like ``x``.

    It takes n products, as the whole Hessian does, but stores n numbers only. `estimate_trace` estimates
    the sum of the diagonal from a few products.

    Arguments and errors are those of `hessian`.

    >>> f = lambda x: jnp.sum(x**3) + x[0] * x[1]
    >>> jax.jit(lambda x: hessian_diagonal(f, x))(jnp.array([1.0, 2.0]))
    Array([ 6., 12.], dtype=float32)

    Source: Griewank & Walther 2008, Evaluating derivatives (doi:10.1137/1.9780898717761); Huszar, DeepNN lecture 3 (the
    Hessian).
    """
    x = as_point(x)
    space = raveled(hessian_operator(f, x), x)

    def entry(e, product):
        pairs = zip(jax.tree.leaves(e), jax.tree.leaves(product), strict=True)
        return sum(jnp.sum(a * b, dtype=space.dtype) for a, b in pairs)

    return space.to_tree(_by_columns(space, chunk_size, entry, jnp.zeros(space.n, space.dtype)))


def _matrix(operator, like, chunk_size):
    space = raveled(operator, like)
    start = jnp.zeros((space.n, space.n), space.dtype)
    return _by_columns(space, chunk_size, lambda e, product: space.to_vector(product), start)


def _by_columns(space, chunk_size, part_of, whole):
    """For each unit vector e and its product, ``part_of(e, product)``, on the last axis of ``whole``."""
    if not space.n:
        return whole
    size = chunk_size_for(chunk_size, space.n, space.operator, space.like)

    leaves, structure = jax.tree.flatten(space.like)

    def part(i):
        # one_hot is zero for an index out of range, so only the leaf that holds entry i differs from zero.
        units = [jax.nn.one_hot(i - first, x.size, dtype=x.dtype).reshape(x.shape) for first, x in offsets(leaves)]
        e = structure.unflatten(sharded_like(varying_like(u, x), x) for u, x in zip(units, leaves, strict=True))
        return part_of(e, space.operator(e))

    def write(chunk, whole):
        start = jnp.minimum(chunk * size, space.n - size)  # the last chunk overlaps the previous one
        parts = jax.vmap(part, out_axes=-1)(start + jnp.arange(size, dtype=start.dtype))
        return lax.dynamic_update_slice_in_dim(whole, parts, start, whole.ndim - 1)

    if inside_shard_map():
        whole = varying_like(whole, jax.eval_shape(part, jnp.int32(0)))
    if size == space.n:
        return write(jnp.int32(0), whole)
    return lax.fori_loop(0, -(-space.n // size), order_convolutions(write), whole)
