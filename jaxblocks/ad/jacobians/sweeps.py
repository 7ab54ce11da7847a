"""Sweeps: several rows or columns of a Jacobian at once, by forward or reverse mode through some stages.

The implementation follows measurements: seeds are on the leading axis, a constant matrix is applied by one product, and
the equations between two matrices are batched together by `jax.vmap`.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Literal

from jaxblocks.ad.jacobians.blocks import Held, split_by, typed_as, value_of, zeros_as
from jaxblocks.ad.planning import Link, Route, width_of
from jaxblocks.ad.programs.jaxprs import dtype_of, inputs_of, piece, shape_of, size_of
from jaxblocks.backend.varying import as_structs

__all__ = ["BLOCK", "diagonal_of", "sides_of", "sweep"]


# On CPU the compiler copies a large result that is reshaped to a shape with axes of length 1 after longer ones. A loop
# writes blocks of at most this many entries to their place instead.
BLOCK = 2**14


def sweep(linear, values, route: Route, start, stop, seeds, how, top=False, factor=None) -> Held:
    """Push (forward) or pull (reverse) seeds through some stages.

    Args:
        linear: the linear program.
        values: of its constants.
        route: the plan.
        start: the first stage.
        stop: the stage after the last one.
        seeds: arrays (s, *shape), one for each variable; ``None`` for the rows of the identity.
        how: ``"forward"`` or ``"reverse"``.
        top: whether the result is the whole Jacobian.
        factor: a factor of the seeds that is not multiplied in yet.
    """
    chain = route.links[start:stop]
    inputs, outputs = chain[0].inputs, chain[-1].outputs
    through = _push if how == "forward" else _pull
    entry = inputs if how == "forward" else outputs
    n_seeds = width_of(entry) if seeds is None else seeds[0].shape[0]
    chunk = route.chunk(n_seeds, [equation for link in chain for equation in link.equations])
    steps = _steps(linear, values, chain, outputs)
    if factor is not None:
        [v] = entry
        step = _Step("diagonal", [v], [v], None, factor.reshape(shape_of(v)))
        steps = [step, *steps] if how == "forward" else [*steps, step]
    by = "columns" if how == "forward" else "rows"
    if chunk is None:
        if seeds is None:
            seeds = split_by(typed_as(jnp.eye(n_seeds, dtype=dtype_of(entry[0])), entry[0]), entry)
        return Held(by, through(linear, steps, inputs, outputs, seeds))

    def batch(first):
        if seeds is not None:
            taken = [lax.dynamic_slice_in_dim(seed, first, chunk) for seed in seeds]
        else:
            hot = jax.nn.one_hot(first + jnp.arange(chunk, dtype=jnp.int32), n_seeds, dtype=dtype_of(entry[0]))
            taken = split_by(typed_as(hot, entry[0]), entry)
        return through(linear, steps, inputs, outputs, taken)

    turned = top and how == "forward"
    wanted = outputs if how == "forward" else inputs
    return Held("blocks" if turned else by, _in_batches(batch, n_seeds, chunk, wanted, turned, route.unroll))


def _in_batches(batch, n_seeds, chunk, wanted, turned, unroll) -> list[jax.Array]:
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

    if not unroll:
        return lax.scan(lambda whole, first: (step(whole, first), None), whole, jnp.array(starts, jnp.int32))[0]
    for first in starts:
        whole = step(whole, jnp.int32(first) + _zero_after(whole))
    return whole


def _zero_after(arrays) -> jax.Array:
    """The integer zero, computed from the arrays, so that each batch starts after the last one and reuses memory."""
    first = next((array for array in arrays if array.size), None)
    if first is None:
        return jnp.int32(0)
    bits = lax.bitcast_convert_type(first.reshape(-1)[0].astype(jnp.float32), jnp.int32)
    return jnp.minimum(lax.population_count(bits), jnp.int32(0))


class _Step(NamedTuple):
    """One part of a sweep.

    Attributes:
        kind: ``"dot"``, ``"diagonal"`` or ``"free"``.
        ins, outs: its variables.
        equation: of a ``"dot"``, the product.
        data: the constant matrix of a ``"dot"``, the entries of a ``"diagonal"``, the function of a ``"free"`` step.
    """

    kind: str
    ins: list
    outs: list
    equation: Any
    data: Any


def _steps(linear, values, chain: Sequence[Link], outputs) -> list[_Step]:
    """The equations of some stages as steps."""
    # From the end, so that each step returns only the variables that a later one reads.
    steps, needed = [], {v for v in outputs if not isinstance(v, Literal)}
    for kind, equations in reversed(_kinds(linear, chain)):
        computed = {v for equation in equations for v in equation.outvars}
        read = inputs_of(equations)
        ins = [v for v in read if v in linear.tangents]
        outs = [v for equation in equations for v in equation.outvars if v in needed]
        needed = (needed - computed) | set(ins)
        if kind == "dot":
            [equation] = equations
            weight = value_of(sides_of(equation, linear.tangents)[1], values)
            steps.append(_Step(kind, ins, outs, equation, weight))
        elif kind == "diagonal":
            steps.append(_Step(kind, ins, outs, None, diagonal_of(linear, values, equations)))
        else:
            constants = [v for v in read if v not in linear.tangents]
            run = piece(linear.jaxpr, equations, [*constants, *ins], outs)
            known = [values[v] for v in constants]
            steps.append(_Step(kind, ins, outs, None, lambda *t, run=run, known=known: run(*known, *t)))
    return steps[::-1]


def _kinds(linear, chain: Sequence[Link]) -> list[tuple[str, list]]:
    """The equations of some stages, divided into steps: (kind, equations)."""
    parts: list[tuple[str, list]] = []
    for link in chain:
        if link.kind == "dense":
            parts += [("diagonal", link.before)] * bool(link.before) + [("dot", [link.equations[link.dense]])]
            parts += [("diagonal", link.after)] * bool(link.after)
        elif link.kind == "diagonal":
            parts.append(("diagonal", link.equations))
        else:
            for equation in link.equations:
                if _is_plain_dot(equation, linear.tangents):
                    parts.append(("dot", [equation]))
                # Adjacent equations without a known form are one function: one vmap and one transposition for all.
                elif parts and parts[-1][0] == "free":
                    parts[-1][1].append(equation)
                else:
                    parts.append(("free", [equation]))
    return parts


def _push(linear, steps: list[_Step], inputs, outputs, seeds) -> list[jax.Array]:
    """Seeds at the inputs, pushed to the outputs."""
    held = dict(zip(inputs, seeds, strict=True))
    n_seeds = seeds[0].shape[0]
    for kind, ins, outs, equation, data in steps:
        if kind == "dot":
            tangent = sides_of(equation, linear.tangents)[0]
            seed = held[ins[0]].reshape(n_seeds, *shape_of(tangent)).astype(dtype_of(tangent))
            product = _dot_forward(equation, data, linear.tangents, seed).astype(dtype_of(outs[0]))
            pushed = [product.reshape(n_seeds, *shape_of(outs[0]))]
        elif kind == "diagonal":
            pushed = [held[ins[0]].reshape(n_seeds, *data.shape).astype(data.dtype) * data[None]]
        else:
            pushed = jax.vmap(data)(*(held[v] for v in ins))
        held.update(zip(outs, pushed, strict=True))
    return [
        # An output that no seed reaches is zero.
        held[v] if not isinstance(v, Literal) and v in held else zeros_as((n_seeds, *shape_of(v)), v)
        for v in outputs
    ]


def _pull(linear, steps: list[_Step], inputs, outputs, seeds) -> list[jax.Array]:
    """Seeds at the outputs, pulled back to the inputs."""
    n_seeds = seeds[0].shape[0]
    held: dict[Any, jax.Array] = {}

    def add(v, seed):
        # A variable that several steps read has the sum of their cotangents.
        held[v] = held[v] + seed if v in held else seed

    def take(v):
        # Popped: a cotangent is complete when the equation of its variable is reached, and its memory can be reused.
        return held.pop(v) if v in held else zeros_as((n_seeds, *shape_of(v)), v)

    for v, seed in zip(outputs, seeds, strict=True):
        if not isinstance(v, Literal) and v in linear.tangents:
            add(v, seed)
    for kind, ins, outs, equation, data in reversed(steps):
        cotangents = [take(v) for v in outs]
        if kind == "dot":
            product = equation.outvars[0].aval
            seed = cotangents[0].reshape(n_seeds, *product.shape).astype(product.dtype)
            pulled = _dot_reverse(equation, data, linear.tangents, seed).astype(dtype_of(ins[0]))
            pulled = [pulled.reshape(n_seeds, *shape_of(ins[0]))]
        elif kind == "diagonal":
            aval = ins[0].aval
            pulled = [(cotangents[0] * data[None]).reshape(n_seeds, *aval.shape).astype(aval.dtype)]
        else:
            pulled = jax.vmap(jax.linear_transpose(data, *as_structs([v.aval for v in ins])))(cotangents)
        for v, seed in zip(ins, pulled, strict=True):
            add(v, seed)
    return [take(v) for v in inputs]


def diagonal_of(linear, values, equations) -> jax.Array:
    """The diagonal of elementwise linear equations: their output for ones."""
    read = inputs_of(equations)
    [tangent] = [v for v in read if v in linear.tangents]
    run = piece(linear.jaxpr, equations, read, equations[-1].outvars)
    # The equations act on each element alone, so one evaluation on ones gives all factors.
    ones = typed_as(jnp.ones(shape_of(tangent), dtype_of(tangent)), tangent)
    return run(*(ones if v is tangent else values[v] for v in read))[0]


def _is_plain_dot(equation, tangents) -> bool:
    if equation.primitive.name != "dot_general" or equation.params["dimension_numbers"][1] != ((), ()):
        return False
    return sum(not isinstance(v, Literal) and v in tangents for v in equation.invars) == 1


def sides_of(equation, tangents):
    """The tangent and the constant of a product, and the contracted axes of each."""
    (left, right), _ = equation.params["dimension_numbers"]
    lhs, rhs = equation.invars
    if not isinstance(lhs, Literal) and lhs in tangents:
        return lhs, rhs, left, right
    return rhs, lhs, right, left


def _dot_forward(equation, weight, tangents, seeds):
    """Seeds (s, *shape) times a constant, seeds leading."""
    tangent, _, axes, weight_axes = sides_of(equation, tangents)
    product = equation.outvars[0].aval
    out = _product_with(seeds, weight, [axis + 1 for axis in axes], weight_axes, equation, product.dtype)
    if tangent is not equation.invars[0]:  # the axes of the constant are first
        n_free = tangent.aval.ndim - len(axes)
        out = lax.transpose(out, [0, *range(1 + n_free, out.ndim), *range(1, 1 + n_free)])
    return out.reshape(seeds.shape[0], *product.shape)


def _dot_reverse(equation, weight, tangents, seeds):
    """Seeds (s, *shape of the product) times the transposed constant, seeds leading."""
    tangent, _, axes, weight_axes = sides_of(equation, tangents)
    free = [axis for axis in range(tangent.aval.ndim) if axis not in axes]
    weight_free = [axis for axis in range(weight.ndim) if axis not in weight_axes]
    first = 1 if tangent is not equation.invars[0] else 1 + len(free)
    product_axes = list(range(first, first + len(weight_free)))
    out = _product_with(seeds, weight, product_axes, weight_free, equation, dtype_of(tangent))
    # Now (s, free axes of the tangent, contracted axes in the order of the constant's).
    order = [*free, *(axis for _, axis in sorted(zip(weight_axes, axes, strict=True)))]
    return lax.transpose(out, [0, *(1 + order.index(axis) for axis in range(tangent.aval.ndim))])


def _product_with(seeds, weight, axes, weight_axes, equation, dtype):
    """Seeds times a constant over some axes of each; for few seeds and a large transposed matrix in the other order."""
    options = {"precision": equation.params["precision"], "preferred_element_type": dtype}
    few = seeds.ndim == weight.ndim == 2 and 1 < seeds.shape[0] <= _FEW and weight.size >= _LARGE
    if few and list(weight_axes) == [1]:
        out = lax.dot_general(weight, seeds, ((weight_axes, axes), ((), ())), **options)
        # Without the barrier XLA would merge the transposition into the product and choose the slow order again.
        return lax.optimization_barrier(out).T
    return lax.dot_general(seeds, weight, ((axes, weight_axes), ((), ())), **options)


# With so few seeds and so large a matrix the product is up to three times faster with the constant first (8 by 1024
# by 1024, CPU).
_FEW, _LARGE = 32, 2**16
