r"""The Jacobian of any function, by the cheapest bracketing of its chain rule.

    x     the point, any pytree of floating-point arrays with n numbers in all
    y     the value f(x), any pytree of floating-point arrays with m numbers in all
    J     the Jacobian dy/dx, m by n; J = J_L ... J_2 J_1 where f is a chain of L stages

Forward mode multiplies from the right and pushes n seeds through f, reverse mode multiplies from
the left and pulls m seeds; where f is narrow somewhere inside, neither is the best that can be done.
`jaxblocks.ad.planning` finds what is; this file runs it.

How it is run was measured: seeds stand on the leading axis, constant matrices are applied by one
product, what stands between them is batched by `jax.vmap` in one piece, and the product with the
identity is left out where the matrix of the first stage is known.
"""

import collections
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Literal
from jaxtyping import PyTree

from jaxblocks.ad.jaxlib_check import warn_if_jaxlib_is_wrong
from jaxblocks.ad.jaxprs import inputs_of, piece
from jaxblocks.ad.planning import JacobianPlan, Linear, Link, Part, Route, known_matrix, linearized, make_plan
from jaxblocks.checks import describe_any, require_whole

__all__ = ["jacobian", "jacobian_plan"]


def jacobian(
    f: Callable,
    mode: str = "auto",
    chunk_size: int | str | None = "auto",
    *,
    memory: int | float | None = None,
) -> Callable:
    r"""A function that returns the Jacobian :math:`J = \partial f / \partial x` with respect to the first argument.

    :math:`f = f_L \circ \dots \circ f_1` has :math:`J = J_L \cdots J_2 J_1`, and the product may be bracketed in any
    order. ``f`` is linearized once, cut where few numbers are alive, and the cheapest bracketing is run; where it
    would gain less than 15 %, it is ``jax.jacfwd`` or ``jax.jacrev`` that runs. Every value is exact to rounding.

    Args:
        f: takes a pytree x (and any other arguments, which are passed on) and returns a pytree.
        mode: ``"auto"``, ``"forward"`` (as ``jax.jacfwd``) or ``"reverse"`` (as ``jax.jacrev``).
        chunk_size: how many seeds are swept at once: a number, ``None`` for all, or ``"auto"`` for as many as
            keep the temporaries below 256 MiB, or below twice the size of the Jacobian where that is more.
        memory: a bound on the temporaries in bytes, such as ``1e9``, estimated with a margin, beside what ``f``
            itself needs.

    Returns:
        ``derivative(x, *rest, **kwargs)``: as ``jax.jacfwd`` returns it, the structure of ``f(x)`` with that of
        ``x`` in each leaf, and arrays of shape ``(*leaf of f(x), *leaf of x)``. It works under ``jit``, ``vmap``
        and ``grad``. `jacobian_plan` tells what it does.

    Batches run in a loop; on CPU, where the gradient of a convolution is slow in loops, they are unrolled if ``f``
    convolves. A while loop has forward mode alone, a custom vjp rule reverse mode alone: the plan knows it, and where
    one holds the other there is none.

    Raises:
        TypeError: where ``f`` is no function, or x or f(x) holds a leaf that is not floating-point (it is named), or
            where neither mode can differentiate ``f``.
        ValueError: where an option is none of the above, or ``memory`` is too small (the least that works is named).

    >>> J = jacobian(lambda x: jnp.stack([x[0] * x[1], x[0] + x[2]]))
    >>> J(jnp.array([2.0, 3.0, 5.0]))
    Array([[3., 2., 0.],
           [1., 0., 1.]], dtype=float32)

    Source: Naumann, Matrix-free Jacobian chaining (arXiv 2406.11862); Krapac & Segvic, Deep feed-forward models
    (the order of the factors).
    """
    warn_if_jaxlib_is_wrong()
    _require_options(f, mode, chunk_size, memory)
    stock = {"forward": jax.jacfwd, "reverse": jax.jacrev}

    def derivative(x, *rest, **kwargs):
        x = _point(x)
        leaves, structure = jax.tree.flatten(x)
        value = _FlatValue(f, structure, rest, kwargs)
        if mode != "auto" and chunk_size is None and memory is None:
            return stock[mode](lambda x: value.checked(x))(x)
        _, linear = linearized(value, leaves)
        route = make_plan(linear, mode=mode, chunk_size=chunk_size, memory=memory)
        if route.plan.mode in stock and route.plan.chunk_size is None:
            return stock[route.plan.mode](lambda x: f(x, *rest, **kwargs))(x)
        return _assembled(_run(linear, route), leaves, structure, value)

    return derivative


def jacobian_plan(
    f: Callable,
    x: PyTree,
    *rest: Any,
    mode: str = "auto",
    chunk_size: int | str | None = "auto",
    memory: int | float | None = None,
    **kwargs: Any,
) -> JacobianPlan:
    r"""What `jacobian` does with these arguments, and why; nothing is computed.

    Args:
        f: as for `jacobian`, and so are ``mode``, ``chunk_size`` and ``memory``.
        x: the point: arrays, or ``jax.ShapeDtypeStruct`` where only shapes are known.
        rest: further arguments of ``f``, and ``kwargs`` as well.

    Returns:
        A `JacobianPlan`; it prints as its `explain`.

    Raises:
        TypeError: as `jacobian` does.
        ValueError: as `jacobian` does.

    >>> w, v = jnp.ones((512, 4)), jnp.ones((4, 512))
    >>> plan = jacobian_plan(lambda x: jnp.tanh(jnp.tanh(x @ w @ v) @ w) @ v, jnp.ones(512))
    >>> plan.mode, plan.gain > 1
    ('mixed', True)

    Source: Naumann, Matrix-free Jacobian chaining (arXiv 2406.11862).
    """
    warn_if_jaxlib_is_wrong()
    _require_options(f, mode, chunk_size, memory)
    x = _point(x)
    # What holds arrays is traced, so that shapes suffice; all else (flags, sizes) is passed as it is.
    arguments = (x, rest, kwargs)
    leaves, structure = jax.tree.flatten(arguments)
    traced = [i for i, leaf in enumerate(leaves) if hasattr(leaf, "shape") and hasattr(leaf, "dtype")]
    plans = []

    def planned(arrays):
        filled = list(leaves)
        for i, array in zip(traced, arrays, strict=True):
            filled[i] = array
        x, rest, kwargs = structure.unflatten(filled)
        flat, inner = jax.tree.flatten(x)
        _, linear = linearized(_FlatValue(f, inner, rest, kwargs), flat)
        plans.append(make_plan(linear, mode=mode, chunk_size=chunk_size, memory=memory).plan)
        return arrays

    jax.eval_shape(planned, [leaves[i] for i in traced])
    return plans[0]


# ---- running a bracketing -------------------------------------------------------------------


class Held(NamedTuple):
    """A Jacobian between two cuts: diag(left) M diag(right).

    M is held by ``"rows"``, (n_out, *shape) for each variable of the earlier cut, by ``"columns"``,
    (n_in, *shape) for each variable of the later one, or, at the very end, by ``"blocks"``, (numbers, n_in)
    for each output. The factors wait, for it is slow to scale and to turn at once.
    """

    by: str
    arrays: list[jax.Array]
    left: jax.Array | None = None
    right: jax.Array | None = None


def _run(linear: Linear, route: Route) -> Held:
    values = linear.values()
    if route.plan.mode in ("mixed", "known"):
        return _settled(_part(linear, values, route, route.part, top=True))
    return _sweep(linear, values, route, 0, len(route.links), None, route.plan.mode, top=True)


def _part(linear, values, route, part: Part, top: bool = False) -> Held:
    chain = route.links
    if part.how == "own":
        how = route.directions[part.first]
        if how == "known":
            return _known(linear, values, chain[part.first])
        return _sweep(linear, values, route, part.first, part.last, None, how, top)
    if part.how == "product":
        right, left = _part(linear, values, route, part.right), _part(linear, values, route, part.left)
        return _product(left, right, chain[part.last - 1], chain[part.left.first], chain[part.first], top)
    child, start, stop = part, part.first, part.last
    while child.how == part.how:  # sweeps of one direction run as one
        child = child.right if part.how == "forward" else child.left
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
        if held.by == "rows":  # it was not turned, so that it may be scaled
            seeds, late = _scaled(seeds, late), None
    return _sweep(linear, values, route, start, stop, seeds.arrays, part.how, top, along)._replace(left=late)


def _known(linear, values, link: Link) -> Held:
    """The Jacobian of a dense stage: its matrix, with the factors of its rows and columns; or of a diagonal one."""
    if link.kind == "diagonal":
        diagonal = _diagonal(linear, values, link.equations).reshape(-1)
        return Held("rows", _split(jnp.diag(diagonal), link.inputs))
    equation = link.equations[link.dense]
    tangent, weight, axes, weight_axes = _sides(equation, linear.tangents)
    order = [w for _, w in sorted(zip(axes, weight_axes, strict=True))]
    matrix = _read(weight, values).astype(equation.outvars[0].aval.dtype)
    free = [axis for axis in range(matrix.ndim) if axis not in order]
    n, m = math.prod(tangent.aval.shape), math.prod(equation.outvars[0].aval.shape)
    before, after = link.equations[: link.dense], link.equations[link.dense + 1 :]
    right = _diagonal(linear, values, before).reshape(n).astype(matrix.dtype) if before else None
    left = _diagonal(linear, values, after).reshape(m).astype(matrix.dtype) if after else None
    if free and [*free, *order] == list(range(matrix.ndim)):
        return Held("rows", _split(matrix.reshape(m, n), link.inputs), left, right)
    return Held("columns", _split(lax.transpose(matrix, [*order, *free]).reshape(n, m), link.outputs), left, right)


def _product(left: Held, right: Held, later: Link, middle: Link, earlier: Link, top: bool) -> Held:
    """The dense product of two Jacobians, in the layout that needs no product of two transposed matrices."""
    turned = top and left.by == right.by == "columns"
    if turned:  # the result is wanted by rows
        left = _turned(left, "rows", middle.inputs)
    a, b = _joined(left.arrays), _joined(right.arrays)
    a_axis, b_axis = (1 if left.by == "rows" else 0), (0 if right.by == "rows" else 1)
    m, k, n = a.shape[1 - a_axis], a.shape[a_axis], b.shape[1 - b_axis]
    factor = _times(left.right, right.left)
    if factor is not None:
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
        return Held("columns", _split(_dot(b, a, b_axis, a_axis), later.outputs), e, f)
    return Held("rows", _split(_dot(a, b, a_axis, b_axis), earlier.inputs), e, f)


def _dot(left, right, left_axis, right_axis):
    made = max(left.dtype, right.dtype, key=lambda dtype: dtype.itemsize)
    axes = (((left_axis,), (right_axis,)), ((), ()))
    return lax.dot_general(left.astype(made), right.astype(made), axes, precision=lax.Precision.HIGHEST)


def _times(left, right):
    return right if left is None else left if right is None else left * right.astype(left.dtype)


def _scale(matrix, factor, axis):
    return matrix * lax.expand_dims(factor, [1 - axis]).astype(matrix.dtype)


def _scaled(held: Held, factor) -> Held:
    """The same with a factor of its leading axis worked in."""
    if factor is None:
        return held
    return held._replace(arrays=[a * factor.reshape(-1, *[1] * (a.ndim - 1)).astype(a.dtype) for a in held.arrays])


def _settled(held: Held) -> Held:
    """The same without factors that wait."""
    along, across = (held.right, held.left) if held.by == "columns" else (held.left, held.right)
    held = _scaled(held, along)
    if across is not None:  # there is one variable where a factor waits
        [array] = held.arrays
        held = held._replace(arrays=[array * across.reshape(1, *array.shape[1:])])
    return held._replace(left=None, right=None)


def _turned(held: Held, by: str, cut) -> Held:
    """A Jacobian by rows as one by columns, or the other way; ``cut`` are the variables that are then named."""
    return held if held.by == by else held._replace(by=by, arrays=_split(_transposed(_joined(held.arrays)), cut))


def _transposed(matrix):
    """A transposed copy: the compiler may not fold it into a product, which would be slow where one side is narrow."""
    return lax.optimization_barrier(lax.optimization_barrier(matrix).T)


def _joined(arrays) -> jax.Array:
    """Arrays (s, *shape) as one matrix (s, numbers)."""
    flat = [array.reshape(array.shape[0], math.prod(array.shape[1:])) for array in arrays]
    return flat[0] if len(flat) == 1 else jnp.concatenate(flat, axis=1)


def _split(matrix, variables) -> list[jax.Array]:
    """A matrix (s, numbers) as arrays (s, *shape), one for each variable."""
    seeds, arrays, start = matrix.shape[0], [], 0
    for v, size in zip(variables, _sizes(variables), strict=True):
        arrays.append(lax.slice_in_dim(matrix, start, start + size, axis=1).reshape(seeds, *v.aval.shape))
        start += size
    return [a.astype(v.aval.dtype) for a, v in zip(arrays, variables, strict=True)]


def _sizes(variables) -> list[int]:
    return [math.prod(v.aval.shape) for v in variables]


def _read(v, values):
    return jnp.asarray(v.val, v.aval.dtype) if isinstance(v, Literal) else values[v]


# ---- sweeps ---------------------------------------------------------------------------------


def _sweep(linear, values, route: Route, start, stop, seeds, how, top=False, factor=None) -> Held:
    """Push (forward) or pull (reverse) seeds through some stages; ``None`` stands for the rows of the identity.

    ``factor`` is one that the seeds still want; ``top`` says that the result is the whole Jacobian.
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
        step = ("diagonal", [v], [v], [], factor.reshape(v.aval.shape))
        steps = [step, *steps] if how == "forward" else [*steps, step]
    if chunk is None:  # in batches the scaled matrices could be larger than what they spare
        steps = _folded(linear, steps, n_seeds, top and how == "forward")

    def batch(first, size):
        if seeds is not None:
            taken = [lax.dynamic_slice_in_dim(seed, first, size) for seed in seeds]
        else:
            hot = jax.nn.one_hot(first + jnp.arange(size, dtype=jnp.int32), n_seeds, dtype=entry[0].aval.dtype)
            taken = _split(hot, entry)
        return through(linear, steps, inputs, outputs, taken)

    by = "columns" if how == "forward" else "rows"
    if chunk is None:
        if seeds is None:
            seeds = _split(jnp.eye(n_seeds, dtype=entry[0].aval.dtype), entry)
        return Held(by, through(linear, steps, inputs, outputs, seeds))
    # The last batch begins early enough to be whole: some seeds may be done twice, and nothing is joined.
    starts = [min(first, n_seeds - chunk) for first in range(0, n_seeds, chunk)]
    wanted = outputs if how == "forward" else inputs
    turned = top and how == "forward"
    shapes = [(n_seeds, *v.aval.shape) if not turned else (math.prod(v.aval.shape), n_seeds) for v in wanted]
    whole = [jnp.zeros(shape, v.aval.dtype) for shape, v in zip(shapes, wanted, strict=True)]

    def step(whole, first):
        made = batch(first, chunk)
        if turned:
            made = [part.reshape(chunk, math.prod(part.shape[1:])).T for part in made]
        axis = 1 if turned else 0
        return [lax.dynamic_update_slice_in_dim(w, part, first, axis) for w, part in zip(whole, made, strict=True)]

    if not route.unroll:
        whole, _ = lax.scan(lambda whole, first: (step(whole, first), None), whole, jnp.array(starts, jnp.int32))
    else:
        for first in starts:
            whole = step(whole, jnp.int32(first) + _zero_after(whole))
    return Held("blocks" if turned else by, whole)


def _zero_after(arrays) -> jax.Array:
    """The whole number zero, but not before the arrays are there: batches then share the place of their temporaries."""
    first = next((array for array in arrays if array.size), None)
    if first is None:
        return jnp.int32(0)
    bits = lax.bitcast_convert_type(first.reshape(-1)[0].astype(jnp.float32), jnp.int32)
    return jnp.minimum(lax.population_count(bits), jnp.int32(0))


def _steps(linear, values, chain: Sequence[Link], outputs) -> list[tuple]:
    """The equations of some stages as steps: ``("dot", ...)``, ``("diagonal", ...)`` or ``("free", ...)``."""
    parts: list[tuple[str, list]] = []
    for link in chain:
        if link.kind == "dense":
            before, after = link.equations[: link.dense], link.equations[link.dense + 1 :]
            parts += [("diagonal", before)] * bool(before) + [("dot", [link.equations[link.dense]])]
            parts += [("diagonal", after)] * bool(after)
        elif link.kind == "diagonal":
            parts.append(("diagonal", link.equations))
        else:
            for equation in link.equations:
                if _is_plain_dot(equation, linear.tangents):
                    parts.append(("dot", [equation]))
                elif parts and parts[-1][0] == "free":
                    parts[-1][1].append(equation)
                else:
                    parts.append(("free", [equation]))
    steps, needed = [], {v for v in outputs if not isinstance(v, Literal)}
    for kind, equations in reversed(parts):
        made = {v for equation in equations for v in equation.outvars}
        read = inputs_of(equations)
        ins = [v for v in read if v in linear.tangents]
        outs = [v for equation in equations for v in equation.outvars if v in needed]
        needed = (needed - made) | set(ins)
        if kind == "dot":
            steps.append((kind, ins, outs, equations[0], _read(_sides(equations[0], linear.tangents)[1], values)))
        elif kind == "diagonal":
            steps.append((kind, ins, outs, equations, _diagonal(linear, values, equations)))
        else:
            constants = [v for v in read if v not in linear.tangents]
            run = piece(linear.jaxpr, equations, [*constants, *ins], outs)
            known = [values[v] for v in constants]
            steps.append((kind, ins, outs, equations, lambda *t, run=run, known=known: run(*known, *t)))
    return steps[::-1]


def _folded(linear, steps, n_seeds, turned) -> list[tuple]:
    """The same steps, a diagonal next to a matrix being multiplied into it where that is no more work.

    ``turned`` says that what they make will be turned: then it is not to be scaled just before.
    """
    readers = collections.Counter(v for _, ins, _, _, _ in steps for v in ins)
    folded: list[tuple] = []
    for at, step in enumerate(steps):
        kind, ins, outs, _, data = step
        # A factor that the seeds still want is read and made in place: its variable has it as a reader too.
        others = readers[ins[0]] - (1 + (folded[-1][1] == folded[-1][2] == ins)) if folded else 0
        if folded and not others and folded[-1][2] == ins and {kind, folded[-1][0]} == {"dot", "diagonal"}:
            before = folded[-1]
            equation, weight = (before if kind == "diagonal" else step)[3:]
            if known_matrix(equation, linear.tangents):
                _, _, axes, weight_axes = _sides(equation, linear.tangents)
                free = [axis for axis in range(weight.ndim) if axis not in weight_axes]
                order = [w for _, w in sorted(zip(axes, weight_axes, strict=True))]
                of, last = (free, order) if kind == "diagonal" else (order, free)
                factor = (data if kind == "diagonal" else before[4]).reshape([weight.shape[axis] for axis in of])
                if math.prod(weight.shape[axis] for axis in last) <= n_seeds * (
                    16 if turned and at == len(steps) - 1 else 1
                ):
                    factor = (
                        lax.transpose(factor, [sorted(of).index(axis) for axis in of]) if of != sorted(of) else factor
                    )
                    weight = weight * lax.expand_dims(factor, last).astype(weight.dtype)
                    folded[-1] = ("dot", before[1], outs, equation, weight)
                    continue
        folded.append(step)
    return folded


def _push(linear, steps, inputs, outputs, seeds) -> list[jax.Array]:
    env = dict(zip(inputs, seeds, strict=True))
    n_seeds = seeds[0].shape[0]
    for kind, ins, outs, what, data in steps:
        if kind == "dot":
            tangent = _sides(what, linear.tangents)[0]
            seed = env[ins[0]].reshape(n_seeds, *tangent.aval.shape).astype(tangent.aval.dtype)
            made = _dot_forward(what, data, linear.tangents, seed).astype(outs[0].aval.dtype)
            made = [made.reshape(n_seeds, *outs[0].aval.shape)]
        elif kind == "diagonal":
            made = [env[ins[0]].reshape(n_seeds, *data.shape).astype(data.dtype) * data[None]]
        else:
            made = jax.vmap(data)(*(env[v] for v in ins))
        env.update(zip(outs, made, strict=True))
    return [
        env[v] if not isinstance(v, Literal) and v in env else jnp.zeros((n_seeds, *v.aval.shape), v.aval.dtype)
        for v in outputs
    ]


def _pull(linear, steps, inputs, outputs, seeds) -> list[jax.Array]:
    n_seeds = seeds[0].shape[0]
    env: dict[Any, jax.Array] = {}

    def add(v, seed):
        env[v] = env[v] + seed if v in env else seed

    def take(v):
        return env.pop(v) if v in env else jnp.zeros((n_seeds, *v.aval.shape), v.aval.dtype)

    for v, seed in zip(outputs, seeds, strict=True):
        if not isinstance(v, Literal) and v in linear.tangents:
            add(v, seed)
    for kind, ins, outs, what, data in reversed(steps):
        cotangents = [take(v) for v in outs]
        if kind == "dot":
            product = what.outvars[0].aval
            seed = cotangents[0].reshape(n_seeds, *product.shape).astype(product.dtype)
            made = _dot_reverse(what, data, linear.tangents, seed).astype(ins[0].aval.dtype)
            made = [made.reshape(n_seeds, *ins[0].aval.shape)]
        elif kind == "diagonal":
            aval = ins[0].aval
            made = [(cotangents[0] * data[None]).reshape(n_seeds, *aval.shape).astype(aval.dtype)]
        else:
            shapes = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in ins]
            made = jax.vmap(jax.linear_transpose(data, *shapes))(cotangents)
        for v, seed in zip(ins, made, strict=True):
            add(v, seed)
    return [take(v) for v in inputs]


def _diagonal(linear, values, equations) -> jax.Array:
    """The diagonal of equations that work element by element: what they make of ones."""
    read = inputs_of(equations)
    [tangent] = [v for v in read if v in linear.tangents]
    run = piece(linear.jaxpr, equations, read, equations[-1].outvars)
    ones = jnp.ones(tangent.aval.shape, tangent.aval.dtype)
    return run(*(ones if v is tangent else values[v] for v in read))[0]


def _is_plain_dot(equation, tangents) -> bool:
    if equation.primitive.name != "dot_general" or equation.params["dimension_numbers"][1] != ((), ()):
        return False
    return sum(not isinstance(v, Literal) and v in tangents for v in equation.invars) == 1


def _sides(equation, tangents):
    """Of a product with a constant: the tangent, the constant, and the axes of each that are contracted."""
    (left, right), _ = equation.params["dimension_numbers"]
    lhs, rhs = equation.invars
    if not isinstance(lhs, Literal) and lhs in tangents:
        return lhs, rhs, left, right
    return rhs, lhs, right, left


def _dot_forward(equation, weight, tangents, seeds):
    """Seeds (s, *shape) times a constant, seeds leading."""
    tangent, _, axes, weight_axes = _sides(equation, tangents)
    made = equation.outvars[0].aval
    out = _product_with(seeds, weight, [axis + 1 for axis in axes], weight_axes, equation, made.dtype)
    if tangent is not equation.invars[0]:  # the constant's axes come first
        n_free = tangent.aval.ndim - len(axes)
        out = lax.transpose(out, [0, *range(1 + n_free, out.ndim), *range(1, 1 + n_free)])
    return out.reshape(seeds.shape[0], *made.shape)


def _dot_reverse(equation, weight, tangents, seeds):
    """Seeds (s, *shape of the product) times the transposed constant, seeds leading."""
    tangent, _, axes, weight_axes = _sides(equation, tangents)
    free = [axis for axis in range(tangent.aval.ndim) if axis not in axes]
    weight_free = [axis for axis in range(weight.ndim) if axis not in weight_axes]
    first = 1 if tangent is not equation.invars[0] else 1 + len(free)
    axes_made = list(range(first, first + len(weight_free)))
    out = _product_with(seeds, weight, axes_made, weight_free, equation, tangent.aval.dtype)
    # Now (s, free axes of the tangent, contracted axes in the order of the constant's).
    order = [*free, *(axis for _, axis in sorted(zip(weight_axes, axes, strict=True)))]
    return lax.transpose(out, [0, *(1 + order.index(axis) for axis in range(tangent.aval.ndim))])


def _product_with(seeds, weight, axes, weight_axes, equation, dtype):
    """Seeds times a constant over some axes of each; few seeds times a large transposed matrix the other way round."""
    options = {"precision": equation.params["precision"], "preferred_element_type": dtype}
    few = seeds.ndim == weight.ndim == 2 and 1 < seeds.shape[0] <= _FEW and weight.size >= _LARGE
    if few and list(weight_axes) == [1]:
        out = lax.dot_general(weight, seeds, ((weight_axes, axes), ((), ())), **options)
        return lax.optimization_barrier(out).T
    return lax.dot_general(seeds, weight, ((axes, weight_axes), ((), ())), **options)


# Below and above these a product runs up to three times faster with the constant first (8 by 1024 by 1024, CPU).
_FEW, _LARGE = 32, 2**16


# ---- from f to arrays and back --------------------------------------------------------------


class _FlatValue:
    """f as a function of the leaves of x that returns the leaves of y; both structures are remembered."""

    def __init__(self, f, structure, rest, kwargs):
        self.f, self.structure, self.rest, self.kwargs = f, structure, rest, kwargs

    def checked(self, x):
        y = self.f(x, *self.rest, **self.kwargs)
        leaves = jax.tree_util.tree_leaves_with_path(y)
        if not leaves:
            raise TypeError(
                f"jacobian expects f to return at least one array, but {y!r} came; let f return what is to be "
                "differentiated."
            )
        for path, leaf in leaves:
            if not _is_floating(leaf):
                raise TypeError(
                    f"jacobian differentiates floating-point values, but f(x){jax.tree_util.keystr(path)} is "
                    f"{describe_any(leaf)}; {_conversion(leaf)}leave it out of what f returns."
                )
        return jax.tree.map(lambda leaf: leaf if hasattr(leaf, "dtype") else jnp.asarray(leaf), y)

    def __call__(self, *leaves):
        y, self.made = jax.tree.flatten(self.checked(self.structure.unflatten(leaves)))
        self.shapes = [leaf.shape for leaf in y]
        return y


def _assembled(held: Held, leaves, structure, value: _FlatValue) -> PyTree:
    """The Jacobian as `jax.jacfwd` returns it: the structure of y, and in each leaf that of x."""
    by, arrays = held.by, held.arrays
    ins, outs = [leaf.shape for leaf in leaves], value.shapes
    axis, lengths = (1, ins) if by == "blocks" else (0, outs if by == "rows" else ins)
    blocks, start = [], 0
    for shape in lengths:
        stop = start + math.prod(shape)
        blocks.append([lax.slice_in_dim(array, start, stop, axis=axis) for array in arrays])
        start = stop
    if by == "columns":  # blocks[input][output] is (inputs, *shape of the output)
        blocks = [
            [_transposed(block.reshape(block.shape[0], math.prod(block.shape[1:]))) for block in column]
            for column in blocks
        ]
    if by != "rows":
        blocks = [list(row) for row in zip(*blocks, strict=True)]
    rows = [
        structure.unflatten([block.reshape(*outs[o], *ins[i]) for i, block in enumerate(blocks[o])])
        for o in range(len(outs))
    ]
    return value.made.unflatten(rows)


def _point(x) -> PyTree:
    leaves = jax.tree_util.tree_leaves_with_path(x)
    if not leaves:
        raise ValueError(f"jacobian expects x to hold at least one array, but {x!r} came.")
    for path, leaf in leaves:
        if not _is_floating(leaf):
            raise TypeError(
                f"jacobian differentiates with respect to floating-point arrays, but x{jax.tree_util.keystr(path)} is "
                f"{describe_any(leaf)}; {_conversion(leaf)}pass it after x."
            )
    return jax.tree.map(_strong, x)


def _is_floating(leaf) -> bool:
    if not hasattr(leaf, "dtype") or not hasattr(leaf, "shape"):
        return isinstance(leaf, float)
    return jnp.issubdtype(leaf.dtype, jnp.floating)


def _conversion(leaf) -> str:
    """How a leaf becomes floating-point, where it can."""
    if hasattr(leaf, "dtype") and hasattr(leaf, "shape"):
        return "convert it with .astype(jnp.float32), or "
    return f"write {float(leaf)!r}, or " if isinstance(leaf, int) and abs(leaf) < 1e6 else "give an array, or "


def _strong(leaf):
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    return lax.convert_element_type(leaf, jnp.result_type(leaf))


def _require_options(f, mode, chunk_size, memory):
    if not callable(f):
        raise TypeError(f"jacobian expects a function f, but {describe_any(f)} came; write jacobian(f)(x).")
    if mode not in ("auto", "forward", "reverse"):
        raise ValueError(f"jacobian expects mode to be 'auto', 'forward' or 'reverse', but {mode!r} came.")
    if chunk_size is not None and chunk_size != "auto":
        try:
            require_whole("jacobian", "chunk_size", chunk_size)
        except ValueError:
            raise ValueError(
                "jacobian expects chunk_size to be 'auto', None for all seeds at once, or a whole number >= 1, but "
                f"{chunk_size!r} came."
            ) from None
    if memory is not None:
        whole = isinstance(memory, float) and memory.is_integer()
        require_whole("jacobian", "memory", int(memory) if whole else memory)
