"""Loops over vectors and batches: chunk sizes, and fast convolutions inside loops.

Many products with one operator are computed in chunks, by a loop over chunks with a ``vmap`` in each: one vector at a
time is slow for small nets, and all vectors at once need unbounded memory.

On CPU the derivatives of convolutions run an order of magnitude slower inside a loop (``scan``, ``map``,
``fori_loop``) than outside: the XLA pass that permutes the axes of a convolution to the layout of its fast
kernels visits only the outermost computation. `order_convolutions` permutes them to that layout.
"""

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, PyTree

from jaxblocks.ad.counting.counts import equations
from jaxblocks.ad.programs.jaxprs import bytes_of, dtype_of, evaluate
from jaxblocks.backend.platforms import platform
from jaxblocks.checks.expectations import PositiveInt

__all__ = ["ChunkSize", "chunk_size_for", "map_batches", "map_in_chunks", "order_convolutions", "rows_in_chunks"]


def order_convolutions(f: Callable) -> Callable:
    """The same function with its convolutions in the axis order of XLA's fast CPU kernels, for the body of a loop.

    Inputs and outputs of each convolution become ``(batch, *spatial, channels)`` and its kernel
    ``(*spatial, in, out)``, by transpositions, which do not change values. Calls that contain a convolution are
    opened; a convolution in a loop of ``f`` is not changed. Without convolutions, and on other backends than the
    CPU, the function is returned unchanged.
    """
    if platform() != "cpu":
        return f

    def ordered(*args):
        jaxpr, shapes = jax.make_jaxpr(f, return_shape=True)(*args)
        # The function itself rather than its jaxpr, so that its calls stay closed and keep their names.
        if not _holds_convolution(jaxpr):
            return f(*args)
        rules = {"conv_general_dilated": _ordered_convolution}
        outs = evaluate(jaxpr, *jax.tree.leaves(args), opens=_holds_convolution, rules=rules)
        return jax.tree.unflatten(jax.tree.structure(shapes), outs)

    return ordered


def _holds_convolution(jaxpr) -> bool:
    return any(equation.primitive.name == "conv_general_dilated" for equation, _, _ in equations(jaxpr))


def _ordered_convolution(
    x, kernel, *, dimension_numbers, window_strides, padding, lhs_dilation, rhs_dilation, **params
):
    """A convolution with its operands transposed before it and its result transposed after it."""
    batch_first = [(spec[0], *spec[2:], spec[1]) for spec in (dimension_numbers.lhs_spec, dimension_numbers.out_spec)]
    out, into, *spatial = dimension_numbers.rhs_spec
    letters = "".join(map(str, range(len(spatial))))
    y = lax.conv_general_dilated(
        x.transpose(batch_first[0]),
        kernel.transpose(*spatial, into, out),
        window_strides,
        padding,
        lhs_dilation,
        rhs_dilation,
        dimension_numbers=(f"N{letters}C", f"{letters}IO", f"N{letters}C"),
        **params,
    )
    return y.transpose(np.argsort(batch_first[1]))


ChunkSize: TypeAlias = PositiveInt | Literal["auto"]
"""The number of vectors or examples computed at once."""


def chunk_size_for(chunk_size: int | Literal["auto"], number: int, f: Callable, *args: Any) -> int:
    """The number of calls of ``f`` computed at once: the requested number, or one that fits its largest array.

    ``"auto"`` is at least 32, and larger if the largest array of all calls is within 128 KiB, because batches of
    small functions are faster; this array never exceeds 16 MiB.

    ``number`` is that of all calls, and ``args`` are the arguments of one.

    >>> chunk_size_for("auto", 1000, jnp.sin, jnp.zeros(10))
    1000
    """
    if chunk_size != "auto":
        return min(chunk_size, number)
    largest = 1
    for equation, _, _ in equations(jax.make_jaxpr(f)(*args)):
        for out in equation.outvars:
            if hasattr(out.aval, "shape") and jnp.issubdtype(dtype_of(out), jnp.inexact):
                largest = max(largest, bytes_of(out))
    return max(1, min(max(32, 2**17 // largest), 2**24 // largest, number))


def map_in_chunks(f: Callable, xs: PyTree, chunk_size: int) -> PyTree[Array]:
    """``f`` at each row of ``xs``, stacked: a loop over chunks of ``chunk_size`` rows, each by ``vmap``."""
    return map_batches(jax.vmap(f), xs, chunk_size)


def map_batches(f: Callable, xs: PyTree, chunk_size: int) -> PyTree[Array]:
    """The values of ``f``, which takes a batch of rows of ``xs``, joined: a loop over chunks of ``chunk_size`` rows."""
    together = order_convolutions(f)
    rows = jax.tree.leaves(xs)[0].shape[0]
    # One chunk needs no loop, and outside of loops XLA orders the convolutions itself.
    if rows <= chunk_size:
        return f(xs)
    chunks, rest = rows_in_chunks(xs, chunk_size)
    done = jax.tree.map(lambda y: y.reshape(y.shape[0] * chunk_size, *y.shape[2:]), lax.map(together, chunks))
    if rows % chunk_size == 0:
        return done
    # The remaining rows are a batch of another length, which the loop cannot take.
    return jax.tree.map(lambda first, last: jnp.concatenate([first, last]), done, f(rest))


def rows_in_chunks(xs: PyTree, chunk_size: int) -> tuple[PyTree, PyTree]:
    """The rows of ``xs`` as ``(chunks, chunk_size, ...)``, and those at the end that do not fill a chunk."""
    count = jax.tree.leaves(xs)[0].shape[0] // chunk_size
    full = count * chunk_size
    chunks = jax.tree.map(lambda x: x[:full].reshape(count, chunk_size, *x.shape[1:]), xs)
    return chunks, jax.tree.map(lambda x: x[full:], xs)
