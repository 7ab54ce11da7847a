"""Loops over vectors and batches: how many at once, and convolutions that stay fast inside.

Many products with one operator are made in chunks, a loop over chunks around a ``vmap`` within each: one vector
at a time leaves small nets waiting, all at once take memory without bound.

On CPU the derivatives of convolutions run an order of magnitude slower inside a loop (``scan``, ``map``,
``fori_loop``) than outside: the pass of XLA that brings the axes of a convolution into the order of its fast
kernels visits the outermost computation alone. The tools that loop bring them into that order themselves.
"""

import math
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, PyTree

from jaxblocks.ad.counting import equations
from jaxblocks.ad.jaxprs import dtype_of, evaluate, shape_of
from jaxblocks.checks import PositiveInt

__all__ = ["ChunkSize", "chunk_size_for", "map_in_chunks", "order_convolutions"]


def order_convolutions(f: Callable) -> Callable:
    """The same function with its convolutions in the order of axes that XLA's CPU kernels take, as the body of a loop.

    Inputs and outputs of each convolution become ``(batch, *spatial, channels)`` and its kernel
    ``(*spatial, in, out)``, by transposing them: values stay the same. Calls that hold a convolution are
    opened; one that lies in a loop of ``f`` stays as it is. Without convolutions, and on other
    backends than the CPU, nothing is done.

    >>> image, kernel = jnp.ones((1, 1, 4)), jnp.ones((1, 1, 2))  # channels before positions
    >>> convolve = lambda x: jax.lax.conv(x, kernel, (1,), "VALID")
    >>> jax.lax.map(order_convolutions(convolve), image[None]).shape
    (1, 1, 1, 3)
    """
    if jax.default_backend() != "cpu":
        return f

    def ordered(*args):
        jaxpr, shapes = jax.make_jaxpr(f, return_shape=True)(*args)
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
    """A convolution with its operands transposed before it and its result after it."""
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
"""How many vectors or examples are computed at once."""


def chunk_size_for(chunk_size: int | Literal["auto"], number: int, f: Callable, *args: Any) -> int:
    """How many calls of ``f`` go together: as many as were asked for, or what its largest array suggests.

    ``"auto"`` takes at least 32, and more while the largest array of all of them stays within 128 KiB, for small
    functions are faster together; but no more than keep it within 16 MiB. ``args`` are those of one call.

    >>> chunk_size_for("auto", 1000, jnp.sin, jnp.zeros(10)), chunk_size_for(7, 5, jnp.sin, 0.0)
    (1000, 5)
    """
    if chunk_size != "auto":
        return min(chunk_size, number)
    largest = 1
    for equation, _, _ in equations(jax.make_jaxpr(f)(*args)):
        for out in equation.outvars:
            if hasattr(out.aval, "shape") and jnp.issubdtype(dtype_of(out), jnp.inexact):
                largest = max(largest, math.prod(shape_of(out)) * dtype_of(out).itemsize)
    return max(1, min(max(32, 2**17 // largest), 2**24 // largest, number))


def map_in_chunks(f: Callable, xs: PyTree, chunk_size: int) -> PyTree[Array]:
    """``f`` of each row of ``xs``, ``chunk_size`` rows by ``vmap``, one chunk after the other; the results stacked.

    >>> map_in_chunks(lambda x: 2 * x, jnp.arange(5), 2)
    Array([0, 2, 4, 6, 8], dtype=int32)
    """
    together = order_convolutions(jax.vmap(f))
    rows = jax.tree.leaves(xs)[0].shape[0]
    full = rows // chunk_size * chunk_size
    if rows <= chunk_size:
        return jax.vmap(f)(xs)
    chunks = jax.tree.map(lambda x: x[:full].reshape(-1, chunk_size, *x.shape[1:]), xs)
    done = jax.tree.map(lambda y: y.reshape(full, *y.shape[2:]), lax.map(together, chunks))
    if full == rows:
        return done
    rest = jax.vmap(f)(jax.tree.map(lambda x: x[full:], xs))
    return jax.tree.map(lambda first, last: jnp.concatenate([first, last]), done, rest)
