"""Sweeps: several rows or columns of a Jacobian at once, by forward or reverse mode through some stages."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Literal

from jaxblocks.ad.jacobians.blocks import Held, split_by, zeros_as
from jaxblocks.ad.planning import Route, width_of
from jaxblocks.ad.programs.jaxprs import dtype_of, inputs_of, piece, shape_of, size_of
from jaxblocks.ad.vectors.chunks import order_convolutions
from jaxblocks.backend.varying import as_structs, varying_like

__all__ = ["BLOCK", "diagonal_of", "sides_of", "sweep"]


# On CPU the compiler copies a large result that is reshaped to a shape with axes of length 1 after longer ones. A loop
# writes blocks of at most this many entries to their place instead.
BLOCK = 2**14


def sweep(linear, values, route: Route, start, stop, seeds, how, top=False) -> Held:
    """Push (``how="forward"``) or pull (``"reverse"``) seeds through the stages from ``start`` to ``stop - 1``.

    Seeds are arrays (s, *shape), one for each variable, or ``None`` for the rows of the identity; ``values`` are those
    of the constants. ``top`` is whether the result is the whole Jacobian.
    """
    chain = route.links[start:stop]
    inputs, outputs = chain[0].inputs, chain[-1].outputs
    equations = [equation for link in chain for equation in link.equations]
    entry = inputs if how == "forward" else outputs
    n_seeds = width_of(entry) if seeds is None else seeds[0].shape[0]
    chunk = route.chunk(n_seeds, equations)
    through = _through(linear, values, equations, inputs, outputs, how)
    by = "columns" if how == "forward" else "rows"
    if chunk is None:
        if seeds is None:
            seeds = split_by(varying_like(jnp.eye(n_seeds, dtype=dtype_of(entry[0])), entry[0].aval), entry)
        return Held(by, through(seeds))

    def batch(first):
        if seeds is not None:
            taken = [lax.dynamic_slice_in_dim(seed, first, chunk) for seed in seeds]
        else:
            hot = jax.nn.one_hot(first + jnp.arange(chunk, dtype=jnp.int32), n_seeds, dtype=dtype_of(entry[0]))
            taken = split_by(varying_like(hot, entry[0].aval), entry)
        return through(taken)

    turned = top and how == "forward"
    wanted = outputs if how == "forward" else inputs
    return Held("blocks" if turned else by, _in_batches(batch, n_seeds, chunk, wanted, turned))


def _through(linear, values, equations, inputs, outputs, how) -> Callable[[list[jax.Array]], list[jax.Array]]:
    """The function from seeds (s, *shape) on one side of some equations to their results on the other side."""
    constants = [v for v in inputs_of(equations) if v not in linear.tangents]
    # An output that no input reaches is zero.
    reached = [v for v in outputs if not isinstance(v, Literal) and v in linear.tangents]
    run = piece(linear.jaxpr, equations, [*constants, *inputs], reached)
    known = [values[v] for v in constants]

    def push(*tangents):
        return run(*known, *tangents)

    def pushed(seeds):
        found = iter(jax.vmap(push)(*seeds))
        zeros = lambda v: zeros_as((len(seeds[0]), *shape_of(v)), v)
        return [next(found) if v in reached else zeros(v) for v in outputs]

    if how == "forward":
        return pushed
    pull = jax.linear_transpose(push, *as_structs([v.aval for v in inputs]))

    def pulled(seeds):
        own = [seed for v, seed in zip(outputs, seeds, strict=True) if v in reached]
        return list(jax.vmap(pull, axis_size=len(seeds[0]))(own))

    return pulled


def _in_batches(batch, n_seeds, chunk, wanted, turned) -> list[jax.Array]:
    """The results of all batches; by blocks (numbers, seeds) where ``turned``, else (seeds, *shape)."""
    # The last batch begins early enough to be full: some seeds may be computed twice, and nothing is concatenated.
    starts = [min(first, n_seeds - chunk) for first in range(0, n_seeds, chunk)]
    shapes = [(n_seeds, *shape_of(v)) if not turned else (size_of(v), n_seeds) for v in wanted]
    whole = [zeros_as(shape, v) for shape, v in zip(shapes, wanted, strict=True)]

    def step(whole, first):
        parts = batch(first)
        if turned:
            parts = [part.reshape(chunk, math.prod(part.shape[1:])).T for part in parts]
        axis = 1 if turned else 0
        return [lax.dynamic_update_slice_in_dim(w, part, first, axis) for w, part in zip(whole, parts, strict=True)]

    step = order_convolutions(step)
    return lax.scan(lambda whole, first: (step(whole, first), None), whole, jnp.array(starts, jnp.int32))[0]


def diagonal_of(linear, values, equations) -> jax.Array:
    """The diagonal of elementwise linear equations: their output for ones."""
    read = inputs_of(equations)
    [tangent] = [v for v in read if v in linear.tangents]
    run = piece(linear.jaxpr, equations, read, equations[-1].outvars)
    # The equations act on each element alone, so one evaluation on ones gives all factors.
    ones = varying_like(jnp.ones(shape_of(tangent), dtype_of(tangent)), tangent.aval)
    return run(*(ones if v is tangent else values[v] for v in read))[0]


def sides_of(equation, tangents):
    """The tangent and the constant of a product, and the contracted axes of each."""
    (left, right), _ = equation.params["dimension_numbers"]
    lhs, rhs = equation.invars
    if not isinstance(lhs, Literal) and lhs in tangents:
        return lhs, rhs, left, right
    return rhs, lhs, right, left
