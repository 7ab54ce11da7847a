r"""The Hessian as a matrix: all of it, its diagonal, its blocks, in chunks of bounded memory.

    x    the point, any pytree of floating-point arrays with n numbers in all
    H    the Hessian of f at x, n by n

One column costs about two gradients (`jaxblocks.ad.hessian_operator`), so all of them take n times that. They are
made in chunks: a chunk goes through ``vmap`` at once, the chunks one after the other in a loop, so
that the memory for temporaries is that of one chunk. The unit vectors of a chunk are made inside it.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, PyTree

from jaxblocks.ad.jaxlib_check import warn_if_jaxlib_is_wrong
from jaxblocks.ad.loops import chunk_size_for, order_convolutions
from jaxblocks.ad.operators import hessian_operator
from jaxblocks.ad.products import as_point, floating_like, scalar_valued
from jaxblocks.checks import check_values, describe_any

__all__ = ["as_matrix", "hessian", "hessian_blocks", "hessian_diagonal"]


def as_matrix(
    operator: Callable[[PyTree], PyTree], like: PyTree, chunk_size: int | str = "auto"
) -> Float[Array, "n n"]:
    """The matrix of an operator ``v -> Av``, its columns in the order of ``jax.tree.leaves``, each leaf raveled.

    Args:
        operator: linear, takes and returns a pytree like ``like``. Of what is not linear only a value at zero that
            is not zero is seen, and not under ``jit``; else what comes out are its values at the unit vectors.
        like: a pytree of floating-point arrays (or ``jax.ShapeDtypeStruct``); only shapes and dtypes are read.
        chunk_size: how many columns at once; ``"auto"`` looks at the sizes of arrays in the operator.

    Raises:
        ValueError: for ``chunk_size`` < 1, or an operator that does not return a pytree like ``like``, or zero at zero.
        TypeError: where a leaf of ``like`` is not floating-point.

    >>> as_matrix(lambda v: {"a": v["a"] + 2 * v["b"], "b": v["b"]}, {"a": jnp.zeros(()), "b": jnp.zeros(())})
    Array([[1., 2.],
           [0., 1.]], dtype=float32)
    """
    like = floating_like("as_matrix", like)
    matrix = _matrix("as_matrix", operator, like, chunk_size)
    at_zero = jax.tree.leaves(operator(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)))
    for y in at_zero:
        check_values(
            ~(jnp.abs(y) > 0),  # NaN is let through
            "as_matrix expects a linear operator, but it returns {most} at zero; for the Jacobian of a function f at x "
            "pass lambda v: jax.jvp(f, (x,), (v,))[1].",
            most=jnp.max(jnp.abs(y), initial=0),
        )
    return matrix


def hessian(f: Callable[[Any], Float[Array, ""]], x: PyTree, chunk_size: int | str = "auto") -> PyTree:
    r"""The Hessian :math:`H_{ij} = \frac{\partial^2 f}{\partial x_i \partial x_j}`, just as ``jax.hessian(f)(x)``.

    The gradient is linearized once and its columns are made in chunks: less time and far less memory than
    ``jax.hessian``, which makes all at once.

    Args:
        f: takes a pytree, returns a scalar.
        x: the point, a pytree of floating-point arrays.
        chunk_size: how many columns at once; ``"auto"`` is usually 32 or more. Memory grows with it.

    Returns:
        A tree like ``x`` of trees like ``x``: block ``[a][b]`` has the shape of leaf a followed by that of
        leaf b. The n by n matrix of a tree is ``as_matrix(hessian_operator(f, x), x)``.

    Raises:
        TypeError: where a leaf of ``x`` is not floating-point, or ``f`` does not return a floating-point array.
        ValueError: where ``f`` is not scalar-valued, or ``chunk_size`` < 1.

    >>> hessian(lambda x: x["a"] * jnp.sum(x["b"] ** 2), {"a": jnp.float32(3.0), "b": jnp.array([1.0, 2.0])})["b"]["a"]
    Array([2., 4.], dtype=float32)

    Source: Huszar, DeepNN lecture 3 (the Hessian).
    """
    warn_if_jaxlib_is_wrong()
    f = scalar_valued("hessian", f)
    x = as_point("hessian", x)
    matrix = _matrix("hessian", hessian_operator(f, x), x, chunk_size)
    leaves, structure = jax.tree.flatten(x)

    def block(i, a, j, b):
        return matrix[i : i + a.size, j : j + b.size].reshape(a.shape + b.shape).astype(a.dtype)

    rows = [structure.unflatten([block(i, a, j, b) for j, b in _places(leaves)]) for i, a in _places(leaves)]
    return structure.unflatten(rows)


def hessian_blocks(f: Callable[[Any], Float[Array, ""]], x: PyTree, chunk_size: int | str = "auto") -> PyTree:
    """The blocks of the Hessian on its diagonal: of each leaf of ``x`` with itself, the others held fixed.

    Returns:
        A tree like ``x``: the block of a leaf has its shape twice.

    Other arguments and errors are those of `hessian`.

    >>> hessian_blocks(lambda x: x["a"] * jnp.sum(x["b"] ** 2), {"a": jnp.float32(3.0), "b": jnp.array([1.0, 2.0])})
    {'a': Array(0., dtype=float32), 'b': Array([[6., 0.],
           [0., 6.]], dtype=float32)}

    Source: Huszar, DeepNN lecture 3 (the Hessian).
    """
    warn_if_jaxlib_is_wrong()
    f = scalar_valued("hessian_blocks", f)
    x = as_point("hessian_blocks", x)
    leaves, structure = jax.tree.flatten(x)
    blocks = []
    for place, leaf in enumerate(leaves):

        def of_leaf(leaf, place=place):
            return f(structure.unflatten([*leaves[:place], leaf, *leaves[place + 1 :]]))

        matrix = _matrix("hessian_blocks", hessian_operator(of_leaf, leaf), leaf, chunk_size)
        blocks.append(matrix.reshape(leaf.shape + leaf.shape))
    return structure.unflatten(blocks)


def hessian_diagonal(f: Callable[[Any], Float[Array, ""]], x: PyTree, chunk_size: int | str = "auto") -> PyTree:
    r"""The diagonal :math:`H_{ii}` of the Hessian, exactly, like ``x``.

    It takes n products, as the whole Hessian does, but holds n numbers of them. `estimate_trace` has
    the sum of the diagonal for a few products, with an error.

    Arguments and errors are those of `hessian`.

    >>> hessian_diagonal(lambda x: jnp.sum(x**3) + x[0] * x[1], jnp.array([1.0, 2.0]))
    Array([ 6., 12.], dtype=float32)

    Source: Huszar, DeepNN lecture 3 (the Hessian).
    """
    warn_if_jaxlib_is_wrong()
    f = scalar_valued("hessian_diagonal", f)
    x = as_point("hessian_diagonal", x)
    operator = hessian_operator(f, x)
    leaves, structure = jax.tree.flatten(x)
    n = sum(leaf.size for leaf in leaves)
    size = chunk_size_for("hessian_diagonal", chunk_size, n, operator, x)

    def entries(start):
        def entry(i):
            e = _unit(i, leaves)
            product = jax.tree.leaves(operator(structure.unflatten(e)))
            return sum(jnp.sum(a * b, dtype=_wide(leaves)) for a, b in zip(e, product, strict=True))

        return jax.vmap(entry)(start + jnp.arange(size, dtype=start.dtype))

    def write(chunk, diagonal):
        start = jnp.minimum(chunk * size, n - size)  # the last chunk overlaps the one before it
        return lax.dynamic_update_slice_in_dim(diagonal, entries(start), start, 0)

    diagonal = _in_loop(write, jnp.zeros(n, _wide(leaves)), n, size)
    parts = [diagonal[i : i + leaf.size].reshape(leaf.shape).astype(leaf.dtype) for i, leaf in _places(leaves)]
    return structure.unflatten(parts)


def _matrix(where, operator, like, chunk_size):
    leaves, structure = jax.tree.flatten(like)
    n = sum(leaf.size for leaf in leaves)
    shapes = jax.eval_shape(operator, like) if callable(operator) else None
    if jax.tree.structure(shapes) != structure or any(
        y.shape != x.shape for y, x in zip(jax.tree.leaves(shapes), leaves, strict=True)
    ):
        wanted = ", ".join(map(describe_any, leaves))
        came = "no function" if shapes is None else ", ".join(map(describe_any, jax.tree.leaves(shapes)))
        raise ValueError(
            f"{where} expects an operator that returns a pytree like its argument, {wanted}, but {came} came; pass a "
            "function v -> A v."
        )
    size = chunk_size_for(where, chunk_size, n, operator, like)

    def columns(start):
        units = jax.vmap(lambda i: structure.unflatten(_unit(i, leaves)))(start + jnp.arange(size, dtype=start.dtype))
        products = jax.tree.leaves(jax.vmap(operator)(units))
        return jnp.concatenate([y.reshape(size, -1).astype(_wide(leaves)) for y in products], axis=1).T

    def write(chunk, matrix):
        start = jnp.minimum(chunk * size, n - size)  # the last chunk overlaps the one before it
        return lax.dynamic_update_slice_in_dim(matrix, columns(start), start, 1)

    return _in_loop(write, jnp.zeros((n, n), _wide(leaves)), n, size)


def _in_loop(write, start, n, size):
    if size >= n:
        return write(jnp.int32(0), start)
    return lax.fori_loop(0, -(-n // size), order_convolutions(write), start)


def _unit(i, leaves):
    """The i-th unit vector, as leaves."""
    return [
        jax.nn.one_hot(i - first, leaf.size, dtype=leaf.dtype).reshape(leaf.shape) for first, leaf in _places(leaves)
    ]


def _places(leaves):
    """Each leaf with the number of its first entry."""
    first = 0
    for leaf in leaves:
        yield first, leaf
        first += leaf.size


def _wide(leaves):
    return max((leaf.dtype for leaf in leaves), key=lambda dtype: dtype.itemsize)
