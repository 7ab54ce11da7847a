"""The Jacobian of a linear program in the order of a plan: sweeps, known matrices, and their products.

There is no product with the identity where the matrix of the first stage is known.
"""

import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Literal

from jaxblocks.ad.jacobians.blocks import Held, dot, joined, split_by, turned_to, zeros_as
from jaxblocks.ad.jacobians.sweeps import BLOCK, diagonal_of, sides_of, sweep
from jaxblocks.ad.planning import Linear, Link, Part, Route, width_of
from jaxblocks.ad.programs.jaxprs import dtype_of, shape_of, size_of
from jaxblocks.backend.platforms import platform
from jaxblocks.backend.varying import as_structs, varying_like

__all__ = ["execute", "in_one_batch"]


def execute(linear: Linear, route: Route) -> Held:
    """The Jacobian of a linear program, in the order of the plan."""
    values = linear.values()
    if route.plan.mode in ("mixed", "known"):
        return _part(linear, values, route, route.part, top=True)
    return sweep(linear, values, route, 0, len(route.links), None, route.plan.mode, top=True)


def in_one_batch(linear: Linear, mode: str) -> Held:
    """The Jacobian by forward or reverse mode, all seeds at once: the program of ``jax.jacfwd`` or ``jax.jacrev``."""
    entry = linear.inputs if mode == "forward" else linear.outputs
    n_seeds = width_of(entry)
    seeds = split_by(varying_like(jnp.eye(n_seeds, dtype=dtype_of(entry[0])), entry[0].aval), entry)
    if mode == "reverse":
        pull = jax.linear_transpose(linear.push, *as_structs([v.aval for v in linear.inputs]))
        return Held("rows", list(jax.vmap(pull)(seeds)))
    # Seeds on the last axis, as in jax.jacfwd: the results are then columns of the Jacobian without a transposition.
    columns = jax.vmap(linear.push, out_axes=-1)(*seeds)
    return Held("blocks", [column.reshape(math.prod(column.shape[:-1]), n_seeds) for column in columns])


def _part(linear, values, route, part: Part, top: bool = False) -> Held:
    chain = route.links
    if part.how == "own":
        how = route.directions[part.first]
        if how == "known":
            return _known(linear, values, chain[part.first])
        return sweep(linear, values, route, part.first, part.last, None, how, top)
    if part.how == "product":
        left_factor, right_factor = part.factors
        right, left = _part(linear, values, route, right_factor), _part(linear, values, route, left_factor)
        final = (linear.outputs[0], linear.inputs[0]) if top and _is_copied(linear) else None
        return _product(left, right, chain[part.last - 1], chain[left_factor.first], chain[part.first], top, final)
    child, start, stop = part, part.first, part.last
    while child.how == part.how:  # sweeps of one direction run as one
        child = child.child
    if child.how == "own" and route.directions[child.first] == part.how:
        return sweep(linear, values, route, start, stop, None, part.how, top)
    held = _part(linear, values, route, child)
    if part.how == "forward":
        start = child.last
        seeds = turned_to(held, "columns", chain[start].inputs)
    else:
        stop = child.first
        seeds = turned_to(held, "rows", chain[stop - 1].outputs)
    return sweep(linear, values, route, start, stop, seeds.arrays, part.how, top)


def _known(linear, values, link: Link) -> Held:
    """The Jacobian of a dense stage (its matrix, with scaled rows and columns) or of a diagonal stage."""
    if link.kind == "diagonal":
        diagonal = diagonal_of(linear, values, link.equations).reshape(-1)
        return Held("rows", split_by(jnp.diag(diagonal), link.inputs))
    equation = link.equations[link.dense]
    tangent, weight, axes, weight_axes = sides_of(equation, linear.tangents)
    order = [w for _, w in sorted(zip(axes, weight_axes, strict=True))]
    matrix = weight.val if isinstance(weight, Literal) else values[weight]
    matrix = jnp.asarray(matrix, dtype_of(equation.outvars[0]))
    free = [axis for axis in range(matrix.ndim) if axis not in order]
    n, m = size_of(tangent), size_of(equation.outvars[0])
    by_rows = bool(free) and [*free, *order] == list(range(matrix.ndim))
    matrix = matrix.reshape(m, n) if by_rows else lax.transpose(matrix, [*order, *free]).reshape(n, m)
    for equations, scales_rows in ((link.before, not by_rows), (link.after, by_rows)):
        if equations:
            factor = diagonal_of(linear, values, equations).astype(matrix.dtype)
            matrix = matrix * factor.reshape(*((-1, 1) if scales_rows else (1, -1)))
    return Held("rows", split_by(matrix, link.inputs)) if by_rows else Held("columns", split_by(matrix, link.outputs))


def _product(left: Held, right: Held, later: Link, middle: Link, earlier: Link, top: bool, final=None) -> Held:
    """The dense product of two Jacobians, in the layout that needs no product of two transposed matrices.

    ``final`` are the output and the input of the function if the product, where it is by rows, is computed in blocks of
    its final shape.
    """
    if top and left.by == right.by == "columns":  # the result is needed by rows
        left = turned_to(left, "rows", middle.inputs)
    a, b = joined(left.arrays), joined(right.arrays)
    a_axis, b_axis = (1 if left.by == "rows" else 0), (0 if right.by == "rows" else 1)
    if left.by == right.by == "columns":
        return Held("columns", split_by(dot(b, a, b_axis, a_axis), later.outputs))
    if final is not None:
        return Held("whole", [_product_in_blocks(a, b, a_axis, b_axis, *final)])
    return Held("rows", split_by(dot(a, b, a_axis, b_axis), earlier.inputs))


def _is_copied(linear) -> bool:
    """Whether the compiler would copy a product of matrices to reshape it to the Jacobian."""
    if platform() != "cpu" or not len(linear.inputs) == len(linear.outputs) == 1:
        return False
    shape = (*shape_of(linear.outputs[0]), *shape_of(linear.inputs[0]))
    longer = [size for size in shape if size != 1]
    return math.prod(shape) > BLOCK and shape[len(shape) - len(longer) :] != tuple(longer)


def _product_in_blocks(a, b, a_axis, b_axis, output, variable):
    """The product of two matrices in the shape of the Jacobian of ``output`` with respect to ``variable``."""
    outs, ins = shape_of(output), shape_of(variable)
    axis = next((axis for axis, size in enumerate(outs) if size > 1), 0)
    sizes = [outs[axis] // k for k in range(1, outs[axis] + 1) if outs[axis] % k == 0]
    rows = math.prod(outs[axis + 1 :])
    size = next((size for size in sizes if size * rows * math.prod(ins) <= BLOCK), 1)

    def step(result, first):
        part = dot(lax.dynamic_slice_in_dim(a, first * rows, size * rows, 1 - a_axis), b, a_axis, b_axis)
        part = part.reshape(*outs[:axis], size, *outs[axis + 1 :], *ins).astype(result.dtype)
        return lax.dynamic_update_slice_in_dim(result, part, first, axis), None

    return lax.scan(step, zeros_as((*outs, *ins), variable), jnp.arange(0, outs[axis], size, dtype=jnp.int32))[0]
