"""Sweeps and products that compute a Jacobian in the order of a plan.

The implementation follows measurements: seeds are on the leading axis, a constant matrix is applied by one product,
the equations between two matrices are batched together by `jax.vmap`, and there is no product with the identity
where the matrix of the first stage is known.
"""

import collections
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Literal

from jaxblocks.ad.jaxprs import dtype_of, inputs_of, piece, shape_of
from jaxblocks.ad.low_rank import LowRank, chained, dense, dot, multiply
from jaxblocks.ad.planning import Block, Linear, Link, Part, Route, known_matrix
from jaxblocks.ad.transposition import transpose
from jaxblocks.platforms import platform
from jaxblocks.varying import as_structs, varying_like

__all__ = ["Held", "execute", "in_one_batch", "transposed"]


# ---- parts of a bracketing -------------------------------------------------------------------


class Held(NamedTuple):
    """A Jacobian between two cuts: diag(left) M diag(right).

    M is stored by ``"rows"``, (n_out, *shape) for each variable of the earlier cut, by ``"columns"``,
    (n_in, *shape) for each variable of the later one, or, for the result, by ``"blocks"``, (numbers, n_in)
    for each output, or by ``"whole"``, in the shape of the Jacobian. The factors are stored separately, because it is
    slow to scale and transpose at once.
    """

    by: str
    arrays: list[jax.Array]
    left: jax.Array | None = None
    right: jax.Array | None = None


def execute(linear: Linear, route: Route) -> Held:
    """The Jacobian of a linear program, in the order of the plan."""
    values = linear.values()
    if route.plan.mode in ("mixed", "known"):
        return _settled(_part(linear, values, route, route.part, top=True))
    return _sweep(linear, values, route, 0, len(route.links), None, route.plan.mode, top=True)


def in_one_batch(linear: Linear, mode: str) -> Held:
    """The Jacobian by forward or reverse mode, all seeds at once: the program of ``jax.jacfwd`` or ``jax.jacrev``."""
    entry = linear.inputs if mode == "forward" else linear.outputs
    n_seeds = sum(_sizes(entry))
    seeds = _split(_typed(jnp.eye(n_seeds, dtype=dtype_of(entry[0])), entry[0]), entry)
    if mode == "reverse":
        return Held("rows", list(jax.vmap(transpose(linear.program))(seeds)))
    # Seeds on the last axis, as in jax.jacfwd: the results are then columns of the Jacobian without a transposition.
    columns = jax.vmap(linear.push, out_axes=-1)(*seeds)
    return Held("blocks", [column.reshape(math.prod(column.shape[:-1]), n_seeds) for column in columns])


def _part(linear, values, route, part: Part, top: bool = False) -> Held:
    chain = route.links
    if part.how == "own":
        how = route.directions[part.first]
        if how == "known":
            return _known(linear, values, chain[part.first])
        if how == "low-rank":
            return Held("rows", _split(dense(_factors(linear, values, route, part)), chain[part.first].inputs))
        return _sweep(linear, values, route, part.first, part.last, None, how, top)
    if part.how == "product":
        left_factor, right_factor = part.factors
        for factor in (left_factor, right_factor):
            if factor.how == "own" and route.directions[factor.first] == "low-rank":
                return _product_by_factors(linear, values, route, part, factor)
        right, left = _part(linear, values, route, right_factor), _part(linear, values, route, left_factor)
        final = (linear.outputs[0], linear.inputs[0]) if top and _is_copied(linear) else None
        return _product(left, right, chain[part.last - 1], chain[left_factor.first], chain[part.first], top, final)
    child, start, stop = part, part.first, part.last
    while child.how == part.how:  # sweeps of one direction run as one
        child = child.child
    if child.how == "own" and route.directions[child.first] == part.how:
        return _sweep(linear, values, route, start, stop, None, part.how, top)
    held = _part(linear, values, route, child)
    if part.how == "forward":
        start, late = child.last, None
        seeds = _turned(held, "columns", chain[start].inputs)
        seeds, along = _scaled(seeds, held.right), held.left
    else:
        stop, late = child.first, held.left
        seeds, along = _turned(held, "rows", chain[stop - 1].outputs), held.right
        if held.by == "rows":  # it was not transposed, so it may be scaled
            seeds, late = _scaled(seeds, late), None
    return _sweep(linear, values, route, start, stop, seeds.arrays, part.how, top, along)._replace(left=late)


def _known(linear, values, link: Link) -> Held:
    """The Jacobian of a dense stage (its matrix, with factors of rows and columns) or of a diagonal stage."""
    if link.kind == "diagonal":
        diagonal = _diagonal(linear, values, link.equations).reshape(-1)
        return Held("rows", _split(jnp.diag(diagonal), link.inputs))
    equation = link.equations[link.dense]
    tangent, weight, axes, weight_axes = _sides(equation, linear.tangents)
    order = [w for _, w in sorted(zip(axes, weight_axes, strict=True))]
    matrix = _read(weight, values).astype(dtype_of(equation.outvars[0]))
    free = [axis for axis in range(matrix.ndim) if axis not in order]
    n, m = math.prod(shape_of(tangent)), math.prod(shape_of(equation.outvars[0]))
    right = _diagonal(linear, values, link.before).reshape(n).astype(matrix.dtype) if link.before else None
    left = _diagonal(linear, values, link.after).reshape(m).astype(matrix.dtype) if link.after else None
    if free and [*free, *order] == list(range(matrix.ndim)):
        return Held("rows", _split(matrix.reshape(m, n), link.inputs), left, right)
    return Held("columns", _split(lax.transpose(matrix, [*order, *free]).reshape(n, m), link.outputs), left, right)


def _product(left: Held, right: Held, later: Link, middle: Link, earlier: Link, top: bool, final=None) -> Held:
    """The dense product of two Jacobians, in the layout that needs no product of two transposed matrices.

    ``final`` are the output and the input of the function if the product, where it has no factors and is by rows, is
    computed in blocks of its final shape.
    """
    turned = top and left.by == right.by == "columns"
    if turned:  # the result is needed by rows
        left = _turned(left, "rows", middle.inputs)
    a, b = _joined(left.arrays), _joined(right.arrays)
    a_axis, b_axis = (1 if left.by == "rows" else 0), (0 if right.by == "rows" else 1)
    m, k, n = a.shape[1 - a_axis], a.shape[a_axis], b.shape[1 - b_axis]
    factor = _times(left.right, right.left)
    if factor is not None:
        # The factor between both scales the smaller matrix, but not one that is transposed as well.
        if turned or b.size <= a.size:
            b = _scale(b, factor, b_axis)
        else:
            a = _scale(a, factor, a_axis)
    e, f = left.left, right.right
    if e is not None and (not turned or 16 * k < n):
        a, e = _scale(a, e, 1 - a_axis), None
    if f is not None:
        b, f = _scale(b, f, 1 - b_axis), None
    if left.by == "columns" and (right.by == "columns" or n < m):
        return Held("columns", _split(dot(b, a, b_axis, a_axis), later.outputs), e, f)
    if final is not None and e is None and f is None:
        return Held("whole", [_product_in_blocks(a, b, a_axis, b_axis, *final)])
    return Held("rows", _split(dot(a, b, a_axis, b_axis), earlier.inputs), e, f)


# On CPU the compiler copies a large result that is reshaped to a shape with axes of length 1 after longer ones. A loop
# writes blocks of at most this many entries to their place instead.
_BLOCK = 2**14


def _is_copied(linear) -> bool:
    """Whether the compiler would copy a product of matrices to reshape it to the Jacobian."""
    if platform() != "cpu" or not len(linear.inputs) == len(linear.outputs) == 1:
        return False
    shape = (*shape_of(linear.outputs[0]), *shape_of(linear.inputs[0]))
    longer = [size for size in shape if size != 1]
    return math.prod(shape) > _BLOCK and shape[len(shape) - len(longer) :] != tuple(longer)


def _product_in_blocks(a, b, a_axis, b_axis, output, variable):
    """The product of two matrices in the shape of the Jacobian of ``output`` with respect to ``variable``."""
    outs, ins = shape_of(output), shape_of(variable)
    axis = next((axis for axis, size in enumerate(outs) if size > 1), 0)
    sizes = [outs[axis] // k for k in range(1, outs[axis] + 1) if outs[axis] % k == 0]
    rows = math.prod(outs[axis + 1 :])
    size = next((size for size in sizes if size * rows * math.prod(ins) <= _BLOCK), 1)

    def step(result, first):
        part = dot(lax.dynamic_slice_in_dim(a, first * rows, size * rows, 1 - a_axis), b, a_axis, b_axis)
        part = part.reshape(*outs[:axis], size, *outs[axis + 1 :], *ins).astype(result.dtype)
        return lax.dynamic_update_slice_in_dim(result, part, first, axis), None

    return lax.scan(step, _zeros((*outs, *ins), variable), jnp.arange(0, outs[axis], size, dtype=jnp.int32))[0]


def _factors(linear, values, route, part: Part) -> LowRank:
    """The factors of a low-rank stage, composed over its blocks."""
    return chained([_block_factors(linear, values, route, block) for block in route.links[part.first].blocks])


def _block_factors(linear, values, route, block: Block) -> LowRank:
    """The factors of one block: U from seeds at its bottlenecks, V from seeds pulled to them."""
    [x], above = block.inputs, [*block.inputs, *block.bottlenecks]
    rank, n = block.rank, math.prod(shape_of(x))

    def through(how, equations, inputs, outputs, seeds=None):
        alone = route._replace(links=[Link("matrix-free", equations, inputs, outputs)])
        return _joined(_sweep(linear, values, alone, 0, 1, seeds, how).arrays)

    # Seeds of the bottlenecks give U; a further one, whose entries at x are one, gives the diagonal.
    identity = jnp.eye(rank + 1, n + rank, n, dtype=dtype_of(x)).at[rank, :n].set(1)
    columns = through("forward", block.above, above, block.outputs, _split(_typed(identity, x), above))
    rows = through("reverse", block.below, block.inputs, block.bottlenecks)
    return LowRank(columns[rank], columns[:rank], rows)


def _product_by_factors(linear, values, route, part: Part, factor: Part) -> Held:
    """The product of a stage of low rank, by its factors, and another Jacobian."""
    chain, (left, right) = route.links, part.factors
    other = right if factor is left else left
    held = _settled(_part(linear, values, route, other))
    matrix = _joined(held.arrays)
    axis = 1 if (held.by == "columns") == (factor is left) else 0
    whole = multiply(_factors(linear, values, route, factor), matrix, axis, left=factor is left)
    cut = chain[part.last - 1].outputs if held.by == "columns" else chain[part.first].inputs
    return Held(held.by, _split(whole, cut))


def _times(left, right):
    return right if left is None else left if right is None else left * right.astype(left.dtype)


def _scale(matrix, factor, axis):
    return matrix * lax.expand_dims(factor, [1 - axis]).astype(matrix.dtype)


def _scaled(held: Held, factor) -> Held:
    """The Jacobian multiplied by a factor of its leading axis."""
    if factor is None:
        return held
    return held._replace(arrays=[a * factor.reshape(-1, *[1] * (a.ndim - 1)).astype(a.dtype) for a in held.arrays])


def _settled(held: Held) -> Held:
    """The Jacobian with all factors multiplied in."""
    along, across = (held.right, held.left) if held.by == "columns" else (held.left, held.right)
    held = _scaled(held, along)
    if across is not None:  # a factor belongs to a single variable
        [array] = held.arrays
        held = held._replace(arrays=[array * across.reshape(1, *array.shape[1:]).astype(array.dtype)])
    return held._replace(left=None, right=None)


def _turned(held: Held, by: str, cut) -> Held:
    """A Jacobian in the layout ``by``; ``cut`` are the variables of its arrays in that layout."""
    return held if held.by == by else held._replace(by=by, arrays=_split(transposed(_joined(held.arrays)), cut))


def transposed(matrix):
    """A transposed copy of a matrix.

    The barriers prevent the compiler from folding it into a product, which is slow if one side is narrow.
    """
    return lax.optimization_barrier(lax.optimization_barrier(matrix).T)


def _joined(arrays) -> jax.Array:
    """Arrays (s, *shape) as one matrix (s, numbers)."""
    flat = [array.reshape(array.shape[0], math.prod(array.shape[1:])) for array in arrays]
    return flat[0] if len(flat) == 1 else jnp.concatenate(flat, axis=1)


def _split(matrix, variables) -> list[jax.Array]:
    """A matrix (s, numbers) as arrays (s, *shape), one for each variable."""
    seeds, arrays, start = matrix.shape[0], [], 0
    for v, size in zip(variables, _sizes(variables), strict=True):
        arrays.append(lax.slice_in_dim(matrix, start, start + size, axis=1).reshape(seeds, *shape_of(v)))
        start += size
    return [a.astype(dtype_of(v)) for a, v in zip(arrays, variables, strict=True)]


def _sizes(variables) -> list[int]:
    return [math.prod(shape_of(v)) for v in variables]


def _typed(array, v) -> jax.Array:
    """The array, varying over the same mesh axes as a variable."""
    return varying_like(array, v.aval)


def _zeros(shape, v) -> jax.Array:
    return _typed(jnp.zeros(shape, dtype_of(v)), v)


def _read(v, values):
    return jnp.asarray(v.val, dtype_of(v)) if isinstance(v, Literal) else values[v]


# ---- sweeps ---------------------------------------------------------------------------------


def _sweep(linear, values, route: Route, start, stop, seeds, how, top=False, factor=None) -> Held:
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
    n_seeds = sum(_sizes(entry)) if seeds is None else seeds[0].shape[0]
    chunk = route.chunk(n_seeds, [equation for link in chain for equation in link.equations])
    steps = _steps(linear, values, chain, outputs)
    if factor is not None:
        [v] = entry
        step = _Step("diagonal", [v], [v], None, factor.reshape(shape_of(v)))
        steps = [step, *steps] if how == "forward" else [*steps, step]
    by = "columns" if how == "forward" else "rows"
    if chunk is None:  # only then, since in batches the scaled matrices could need more memory than they save
        steps = _folded(linear, steps, n_seeds, top and how == "forward")
        if seeds is None:
            seeds = _split(_typed(jnp.eye(n_seeds, dtype=dtype_of(entry[0])), entry[0]), entry)
        return Held(by, through(linear, steps, inputs, outputs, seeds))

    def batch(first):
        if seeds is not None:
            taken = [lax.dynamic_slice_in_dim(seed, first, chunk) for seed in seeds]
        else:
            hot = jax.nn.one_hot(first + jnp.arange(chunk, dtype=jnp.int32), n_seeds, dtype=dtype_of(entry[0]))
            taken = _split(_typed(hot, entry[0]), entry)
        return through(linear, steps, inputs, outputs, taken)

    turned = top and how == "forward"
    wanted = outputs if how == "forward" else inputs
    return Held("blocks" if turned else by, _in_batches(batch, n_seeds, chunk, wanted, turned, route.unroll))


def _in_batches(batch, n_seeds, chunk, wanted, turned, unroll) -> list[jax.Array]:
    """The results of all batches; by blocks (numbers, seeds) where ``turned``, else (seeds, *shape)."""
    # The last batch begins early enough to be full: some seeds may be computed twice, and nothing is concatenated.
    starts = [min(first, n_seeds - chunk) for first in range(0, n_seeds, chunk)]
    shapes = [(n_seeds, *shape_of(v)) if not turned else (math.prod(shape_of(v)), n_seeds) for v in wanted]
    whole = [_zeros(shape, v) for shape, v in zip(shapes, wanted, strict=True)]

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
            weight = _read(_sides(equation, linear.tangents)[1], values)
            steps.append(_Step(kind, ins, outs, equation, weight))
        elif kind == "diagonal":
            steps.append(_Step(kind, ins, outs, None, _diagonal(linear, values, equations)))
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


def _folded(linear, steps, n_seeds, turned) -> list[_Step]:
    """The same steps, with each diagonal multiplied into an adjacent matrix if that takes no more operations.

    ``turned``: whether the result is transposed afterwards; then scaling just before it is slower.
    """
    readers = collections.Counter(v for step in steps for v in step.ins)
    folded: list[_Step] = []
    for at, step in enumerate(steps):
        if folded and folded[-1].outs == step.ins and {step.kind, folded[-1].kind} == {"dot", "diagonal"}:
            before = folded[-1]
            # A factor of the seeds is read and written in place, so it is also a reader of its variable.
            others = readers[step.ins[0]] - (1 + (before.ins == before.outs == step.ins))
            late = 16 if turned and at == len(steps) - 1 else 1
            weight = None if others else _scaled_weight(linear, before, step, n_seeds * late)
            if weight is not None:
                equation = before.equation if step.kind == "diagonal" else step.equation
                folded[-1] = _Step("dot", before.ins, step.outs, equation, weight)
                continue
        folded.append(step)
    return folded


def _scaled_weight(linear, before: _Step, after: _Step, most: int):
    """The matrix of one step times the diagonal of the other; ``None`` if that costs more than ``most`` per factor."""
    scales_rows = after.kind == "diagonal"
    dot, diagonal = (before, after) if scales_rows else (after, before)
    if not known_matrix(dot.equation, linear.tangents):
        return None
    weight = dot.data
    _, _, axes, weight_axes = _sides(dot.equation, linear.tangents)
    free = [axis for axis in range(weight.ndim) if axis not in weight_axes]
    order = [w for _, w in sorted(zip(axes, weight_axes, strict=True))]
    of, last = (free, order) if scales_rows else (order, free)
    # Scaling the matrix takes this many products per factor, scaling the seeds as many as there are seeds.
    if math.prod(weight.shape[axis] for axis in last) > most:
        return None
    factor = diagonal.data.reshape([weight.shape[axis] for axis in of])
    if of != sorted(of):
        factor = lax.transpose(factor, [sorted(of).index(axis) for axis in of])
    return weight * lax.expand_dims(factor, last).astype(weight.dtype)


def _push(linear, steps: list[_Step], inputs, outputs, seeds) -> list[jax.Array]:
    """Seeds at the inputs, pushed to the outputs."""
    held = dict(zip(inputs, seeds, strict=True))
    n_seeds = seeds[0].shape[0]
    for kind, ins, outs, equation, data in steps:
        if kind == "dot":
            tangent = _sides(equation, linear.tangents)[0]
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
        held[v] if not isinstance(v, Literal) and v in held else _zeros((n_seeds, *shape_of(v)), v)
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
        return held.pop(v) if v in held else _zeros((n_seeds, *shape_of(v)), v)

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


def _diagonal(linear, values, equations) -> jax.Array:
    """The diagonal of elementwise linear equations: their output for ones."""
    read = inputs_of(equations)
    [tangent] = [v for v in read if v in linear.tangents]
    run = piece(linear.jaxpr, equations, read, equations[-1].outvars)
    # The equations act on each element alone, so one evaluation on ones gives all factors.
    ones = _typed(jnp.ones(shape_of(tangent), dtype_of(tangent)), tangent)
    return run(*(ones if v is tangent else values[v] for v in read))[0]


def _is_plain_dot(equation, tangents) -> bool:
    if equation.primitive.name != "dot_general" or equation.params["dimension_numbers"][1] != ((), ()):
        return False
    return sum(not isinstance(v, Literal) and v in tangents for v in equation.invars) == 1


def _sides(equation, tangents):
    """The tangent and the constant of a product, and the contracted axes of each."""
    (left, right), _ = equation.params["dimension_numbers"]
    lhs, rhs = equation.invars
    if not isinstance(lhs, Literal) and lhs in tangents:
        return lhs, rhs, left, right
    return rhs, lhs, right, left


def _dot_forward(equation, weight, tangents, seeds):
    """Seeds (s, *shape) times a constant, seeds leading."""
    tangent, _, axes, weight_axes = _sides(equation, tangents)
    product = equation.outvars[0].aval
    out = _product_with(seeds, weight, [axis + 1 for axis in axes], weight_axes, equation, product.dtype)
    if tangent is not equation.invars[0]:  # the axes of the constant are first
        n_free = tangent.aval.ndim - len(axes)
        out = lax.transpose(out, [0, *range(1 + n_free, out.ndim), *range(1, 1 + n_free)])
    return out.reshape(seeds.shape[0], *product.shape)


def _dot_reverse(equation, weight, tangents, seeds):
    """Seeds (s, *shape of the product) times the transposed constant, seeds leading."""
    tangent, _, axes, weight_axes = _sides(equation, tangents)
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
