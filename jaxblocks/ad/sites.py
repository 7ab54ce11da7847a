r"""Where a function uses its parameters: the products whose gradients are outer products.

Most parameters enter a function by one product each: a dense layer's kernel meets an activation, a
convolution's kernel the patches of an image, an embedding's table the one-hot vectors of its rows.
There the gradient of one example is a sum of outer products over the positions p at which the
parameter is used (time steps, pixels),

    G_b = sum_p u_bp v_bp^T                    for each of the matrices b that the parameter holds,

of the other operand u and the cotangent v of the product, which is the derivative with respect to a
zero that is added there. Norms and inner products of gradients follow from the factors, and the
gradients themselves need not be formed. `read` finds these places in a jaxpr, loops included,
`pullback_at` takes their factors for one example.

    b    matrices in one parameter: groups, steps of a scan with its own weights each
    p    positions that share the matrix
    c    entries of u,  n    entries of v
    e    outputs over which an inner product sums
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal
from jaxtyping import PyTree

from jaxblocks.ad.jaxprs import body_of_call, inputs_of, piece, scan_parts
from jaxblocks.checks import describe, describe_any

__all__ = [
    "Factors",
    "Reading",
    "Site",
    "factors",
    "fit",
    "floating_params",
    "inner",
    "of_one_example",
    "product",
    "pullback_at",
    "read",
    "same_lengths",
]


@dataclasses.dataclass(frozen=True)
class Site:
    """One product in which a parameter is used.

    Attributes:
        kind: ``"dense"``, ``"convolution"`` or ``"rows"`` (of a table).
        path: where it stands: the places of its equation and of those around it, outermost first.
        equation: the product.
        operand: which operand of it is the parameter.
        lengths, stacked: of the scans around it, how long each is, and whether each step has its own weights.
        axes: the parameter's axes that lie in b, in u and in v, by which two sites of one parameter
            are told to fit together; ``None`` where a reshape hides them.
        parts: what is used of the parameter: its axes with their limits, where it was sliced.
        window: where in the operand it lies, a start and a length for each axis: it may be joined with others.
        orders: those of the operand's axes, as `factors` lays them out.
        scales: paths of the scalars that multiply (``True``) or divide the parameter before the product.
    """

    kind: str
    path: tuple[int, ...]
    equation: JaxprEqn
    operand: int
    lengths: tuple[int, ...]
    stacked: tuple[bool, ...]
    axes: tuple[tuple, tuple, tuple] | None
    parts: dict[int, tuple[int, int]]
    window: tuple[tuple[int, int], ...]
    orders: tuple[tuple[int, ...], ...]
    scales: tuple[tuple[tuple[int, ...], bool], ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the parameter in the operand."""
        return tuple(length for _, length in self.window)

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """The lengths of b, p, c and n for one example."""
        b = math.prod(n for n, own in zip(self.lengths, self.stacked, strict=True) if own)
        p = math.prod(n for n, own in zip(self.lengths, self.stacked, strict=True) if not own)
        shape, out = self.shape, self.equation.outvars[0].aval.shape
        if self.kind == "dense":
            batch, left, right = (math.prod(shape[axis] for axis in order) for order in self.orders)
            whole = self.equation.invars[self.operand].aval.shape
            out = (math.prod(out) // max(1, math.prod(whole[axis] for axis in self.orders[0] + self.orders[2])),)
            return b * batch, p * out[0], left, right
        elif self.kind == "convolution":
            batch = self.equation.params["feature_group_count"]
            right = shape[self.equation.params["dimension_numbers"].rhs_spec[0]] // batch
            left = math.prod(shape) // max(1, batch * right)
        else:
            [axis] = self.equation.params["dimension_numbers"].start_index_map
            batch, left, right = 1, shape[axis], math.prod(shape) // max(1, shape[axis])
        return b * batch, p * (math.prod(out) // max(1, batch * right)), left, right


class Reading(NamedTuple):
    """A function's jaxpr for one example, and where it uses its parameters.

    Attributes:
        closed_jaxpr: the jaxpr; its first arguments are the leaves of the parameters.
        sites: of each leaf, all the places where it is used; none where one of them is no product.
        reasons: of each leaf without sites, why.
        names: of the leaves, as in ``"['kernel']"``.
    """

    closed_jaxpr: ClosedJaxpr
    sites: tuple[tuple[Site, ...], ...]
    reasons: tuple[str, ...]
    names: tuple[str, ...]


class Factors(NamedTuple):
    """The factors of a gradient at one site: u, (b, p, c) or the rows' numbers (b, p), and v, (e, b, p, n)."""

    u: Any
    v: Any


# ---- checks -------------------------------------------------------------------------------


def floating_params(where: str, params: PyTree) -> PyTree:
    """The parameters as arrays; an error that names the leaf which cannot be differentiated.

    >>> floating_params("ntk", {"kernel": jnp.arange(3)})
    Traceback (most recent call last):
    ...
    TypeError: ntk differentiates with respect to floating-point arrays, but params['kernel'] is int32 (3,); \
convert it with .astype(jnp.float32), or close over it as a constant of the function.
    """
    params = jax.tree.map(
        lambda leaf: jnp.asarray(leaf) if isinstance(leaf, int | float | np.ndarray) else leaf, params
    )
    leaves = jax.tree_util.tree_leaves_with_path(params)
    if not leaves:
        raise ValueError(f"{where} expects params to hold at least one array, but {params!r} came.")
    for path, leaf in leaves:
        name = f"params{jax.tree_util.keystr(path)}"
        if not hasattr(leaf, "dtype"):
            raise TypeError(f"{where} expects params to be a pytree of arrays, but {name} is {describe_any(leaf)}.")
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise TypeError(
                f"{where} differentiates with respect to floating-point arrays, but {name} is {describe(leaf)}; "
                "convert it with .astype(jnp.float32), or close over it as a constant of the function."
            )
    return params


def same_lengths(where: str, names: Sequence[str], batches: Sequence[PyTree]) -> int:
    """How many examples the batch arguments hold on their leading axes; an error where they do not agree.

    >>> same_lengths("ntk", ["x1"], [jnp.ones((3, 2))])
    3
    """
    found = {}
    for name, batch in zip(names, batches, strict=True):
        for path, leaf in jax.tree_util.tree_leaves_with_path(batch):
            label = f"{name}{jax.tree_util.keystr(path)}"
            if not hasattr(leaf, "dtype") or not hasattr(leaf, "shape") or not leaf.shape:
                came = describe_any(leaf)
                raise ValueError(
                    f"{where} expects one example for each entry of a leading axis, but {label} is {came}, which has "
                    "none; close over it as a constant of the function, or give it that axis."
                )
            found[label] = leaf
    if not found:
        raise ValueError(f"{where} expects at least one array of examples after params, but none came.")
    first = next(iter(found))
    for label, leaf in found.items():
        if leaf.shape[0] != found[first].shape[0]:
            raise ValueError(
                f"{where} expects batch arguments of one length, but {first} is {describe(found[first])} and "
                f"{label} is {describe(leaf)}; the first axis of each counts the examples."
            )
    return found[first].shape[0]


def of_one_example(batch: PyTree) -> PyTree:
    """Shapes and dtypes of one example out of a batch.

    >>> of_one_example(jnp.ones((3, 2)))
    ShapeDtypeStruct(shape=(2,), dtype=float32)
    """
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), batch)


# ---- reading ------------------------------------------------------------------------------


class _View(NamedTuple):
    """A parameter, or a part of it, as a variable of the program holds it: moved, cast, scaled, joined with others."""

    leaf: int
    axes: tuple | None
    window: tuple  # of the variable, in which it lies
    parts: dict
    taken: tuple = ()
    lengths: tuple[int, ...] = ()
    stacked: tuple[bool, ...] = ()
    scales: tuple = ()


def read(f: Callable, params: PyTree, *example: PyTree) -> Reading:
    """Find where ``f(params, *example)`` uses each leaf of ``params``; the example may be of shapes alone.

    >>> reading = read(lambda w, x: jnp.tanh(x @ w["kernel"]), {"kernel": jnp.ones((3, 2))}, jnp.ones(3))
    >>> [[site]] = reading.sites
    >>> site.kind, site.sizes
    ('dense', (1, 1, 3, 2))
    """
    closed_jaxpr = jax.make_jaxpr(f)(params, *example)
    named = jax.tree_util.tree_leaves_with_path(params)
    sites: list[list[Site]] = [[] for _ in named]
    reasons: dict[int, str] = {}
    views = {}
    for i, (variable, (_, leaf)) in enumerate(zip(closed_jaxpr.jaxpr.invars, named, strict=False)):
        views[variable] = (_View(i, tuple(range(leaf.ndim)), _whole(leaf.shape), {}),)
    _read(closed_jaxpr.jaxpr, views, set(views), (), sites, reasons)
    _blame(closed_jaxpr.jaxpr.outvars, views, "it is an output", reasons)
    for i, own in enumerate(sites):
        if not own:
            reasons.setdefault(i, "it is not used")
        elif len(own) > 1 and not all(fit(one, other) for one in own for other in own):
            reasons.setdefault(i, "its products do not fit together")
    return Reading(
        closed_jaxpr,
        tuple(() if i in reasons else tuple(own) for i, own in enumerate(sites)),
        tuple(reasons.get(i, "") for i in range(len(sites))),
        tuple(jax.tree_util.keystr(path) for path, _ in named),
    )


def fit(one: Site, other: Site) -> str | None:
    """How the gradients of two sites of a parameter meet: ``"alike"``, ``"swapped"`` (transposed) or ``"apart"``."""
    if one is other:
        return "alike"
    for axis, (start, stop) in one.parts.items():
        if axis in other.parts and (other.parts[axis][0] >= stop or start >= other.parts[axis][1]):
            return "apart"
    if one.axes is None or other.axes is None or one.parts != other.parts or one.axes[0] != other.axes[0]:
        return None
    if one.axes[1:] == other.axes[1:]:
        return "alike"
    return "swapped" if one.axes[1:] == other.axes[:0:-1] else None


def _whole(shape) -> tuple:
    return tuple((0, length) for length in shape)


def _blame(variables, views, reason, reasons) -> None:
    for variable in variables:
        for view in () if isinstance(variable, Literal) else views.get(variable, ()):
            reasons.setdefault(view.leaf, reason)


def _read(jaxpr: Jaxpr, views: dict, active: set, path: tuple, sites: list, reasons: dict) -> None:
    """Follow the views through the equations: ``views`` and ``active`` (what depends on a parameter) grow."""
    for index, equation in enumerate(jaxpr.eqns):
        here = (*path, index)
        own = [() if isinstance(v, Literal) else views.get(v, ()) for v in equation.invars]
        if any(not isinstance(v, Literal) and v in active for v in equation.invars):
            active |= set(equation.outvars)
        if not any(own):
            continue
        name = equation.primitive.name
        body = body_of_call(equation)
        moves = _MOVES.get(name)
        if moves is not None:
            for operand, these in enumerate(own):
                for view in these:
                    moved = moves(equation, operand, view)
                    if moved is None:
                        reasons.setdefault(view.leaf, f"a {name} of an unknown form uses it")
                        continue
                    for variable, after in zip(equation.outvars, moved, strict=True):
                        views[variable] = (*views.get(variable, ()), after)
        elif _scales(equation, own, active):
            scale = (here, name == "mul")
            views[equation.outvars[0]] = tuple(v._replace(scales=(*v.scales, scale)) for v in own[0] or own[1])
        elif name in _PRODUCTS:
            for operand, these in enumerate(own):
                for view in these:
                    site = _PRODUCTS[name](equation, operand, view, here)
                    if site is None:
                        reasons.setdefault(view.leaf, f"a {name} of an unknown form uses it")
                    else:
                        sites[view.leaf].append(site)
        elif body is not None and not name.startswith("custom_"):
            inner_views = {v: these for v, these in zip(body.jaxpr.invars, own, strict=True) if these}
            inner_active = {
                v
                for v, outer in zip(body.jaxpr.invars, equation.invars, strict=True)
                if not isinstance(outer, Literal) and outer in active
            }
            _read(body.jaxpr, inner_views, inner_active, here, sites, reasons)
            for outer, v in zip(equation.outvars, body.jaxpr.outvars, strict=True):
                if not isinstance(v, Literal) and v in inner_views:
                    views[outer] = inner_views[v]
        elif name == "scan":
            _read_scan(equation, own, active, here, sites, reasons)
        else:
            reason = f"its entries are used one by one ({name})" if name in _BY_ENTRY else f"{name} uses it"
            _blame(equation.invars, views, reason, reasons)


def _read_scan(equation, own, active, here, sites, reasons) -> None:
    body = equation.params["jaxpr"].jaxpr
    n_consts, n_carry = scan_parts(equation)
    views = {}
    for i, (variable, these) in enumerate(zip(body.invars, own, strict=True)):
        sliced = i >= n_consts + n_carry
        for view in these:
            if view.scales:
                reasons.setdefault(view.leaf, "it is scaled outside of a scan")
            elif n_consts <= i < n_consts + n_carry:
                reasons.setdefault(view.leaf, "a scan carries it")
            elif sliced and (view.axes is None or view.window[0] != (0, equation.params["length"])):
                reasons.setdefault(view.leaf, "a scan slices it after it was reshaped")
            else:
                taken = (*view.taken, view.axes[0]) if sliced else view.taken
                after = view._replace(
                    axes=view.axes[1:] if sliced else view.axes,
                    window=view.window[1:] if sliced else view.window,
                    taken=taken,
                    lengths=(*view.lengths, equation.params["length"]),
                    stacked=(*view.stacked, sliced),
                )
                views[variable] = (*views.get(variable, ()), after)
    moved = {
        variable
        for i, (variable, outer) in enumerate(zip(body.invars, equation.invars, strict=True))
        if n_consts <= i < n_consts + n_carry or (not isinstance(outer, Literal) and outer in active)
    }
    _read(body, views, moved, here, sites, reasons)
    _blame(body.outvars, views, "a scan returns it", reasons)


# As small as its uses: nothing is saved by taking its gradient apart.
_BY_ENTRY = frozenset({"add", "add_any", "broadcast_in_dim", "div", "mul", "sub"})

# What moves a parameter's entries without mixing them: each tells how the results hold it, or None.


def _as_it_is(equation, operand, view):
    return [view]


def _transposed(equation, operand, view):
    order = equation.params["permutation"]
    axes = None if view.axes is None else tuple(view.axes[axis] for axis in order)
    return [view._replace(axes=axes, window=tuple(view.window[axis] for axis in order))]


def _reshaped(equation, operand, view):
    """Axes of length one may come and go; all else hides where the axes are."""
    before, after = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
    reordered = equation.primitive.name == "reshape" and equation.params.get("dimensions") is not None
    if view.window != _whole(before) or reordered:
        return None
    axes = None
    if view.axes is not None and [n for n in before if n != 1] == [n for n in after if n != 1]:
        left = iter([axis for axis, n in zip(view.axes, before, strict=True) if n != 1])
        axes = tuple(-1 if n == 1 else next(left) for n in after)
    return [view._replace(axes=axes, window=_whole(after))]


def _reversed(equation, operand, view):
    whole = view.window == _whole(equation.invars[0].aval.shape)
    return [view._replace(axes=None)] if whole else None


def _sliced(equation, operand, view):
    params = equation.params
    if params["strides"] is not None and any(step != 1 for step in params["strides"]):
        return None
    limits = tuple(zip(params["start_indices"], params["limit_indices"], strict=True))
    return _cut(view, equation.invars[0].aval.shape, [limits])


def _split(equation, operand, view):
    shape, axis = equation.invars[0].aval.shape, equation.params["axis"]
    whole, pieces, start = _whole(shape), [], 0
    for size in map(int, equation.params["sizes"]):
        pieces.append((*whole[:axis], (start, start + size), *whole[axis + 1 :]))
        start += size
    return _cut(view, shape, pieces)


def _cut(view, shape, pieces):
    """Parts of a parameter that fills its variable, each given by the limits of every axis."""
    if view.axes is None or view.window != _whole(shape):
        return None
    found = []
    for limits in pieces:
        parts = dict(view.parts)
        for axis, length, (start, stop) in zip(view.axes, shape, limits, strict=True):
            if (start, stop) != (0, length):
                first = parts.get(axis, (0, 0))[0]
                parts[axis] = (first + start, first + stop)
        window = tuple((0, stop - start) for start, stop in limits)
        found.append(view._replace(parts=parts, window=window))
    return found


def _joined(equation, operand, view):
    axis = equation.params["dimension"]
    before = sum(v.aval.shape[axis] for v in equation.invars[:operand])
    start, length = view.window[axis]
    return [view._replace(window=(*view.window[:axis], (before + start, length), *view.window[axis + 1 :]))]


_MOVES: dict[str, Callable] = {
    "concatenate": _joined,
    "convert_element_type": _as_it_is,
    "copy": _as_it_is,
    "expand_dims": _reshaped,
    "name": _as_it_is,
    "reshape": _reshaped,
    "rev": _reversed,
    "slice": _sliced,
    "split": _split,
    "squeeze": _reshaped,
    "transpose": _transposed,
}


def _scales(equation, own, active) -> bool:
    """Whether an equation multiplies or divides a parameter by a scalar that no parameter moves."""
    name = equation.primitive.name
    if name not in ("mul", "div") or (name == "div" and not own[0]) or all(own):
        return False
    other = equation.invars[0 if own[1] else 1]
    return not other.aval.shape and (isinstance(other, Literal) or other not in active)


def _dense(equation, operand, view, path) -> Site | None:
    contracted, batch = equation.params["dimension_numbers"]
    shape = equation.invars[operand].aval.shape
    orders = [tuple(batch[operand]), tuple(contracted[operand])]
    orders.append(tuple(axis for axis in range(len(shape)) if axis not in orders[0] + orders[1]))
    axes = None
    if view.axes is not None:  # in the order of the parameter's axes, so that two sites compare
        orders = [tuple(sorted(order, key=view.axes.__getitem__)) for order in orders]
        first, *rest = (tuple(view.axes[axis] for axis in order) for order in orders)
        axes = ((*view.taken, *first), *rest)
    return _site("dense", path, equation, operand, view, axes, tuple(orders))


def _site(kind, path, equation, operand, view, axes, orders=()) -> Site:
    return Site(
        kind,
        path,
        equation,
        operand,
        view.lengths,
        view.stacked,
        axes,
        view.parts,
        view.window,
        orders,
        view.scales,
    )


def _convolution(equation, operand, view, path) -> Site | None:
    whole = view.window == _whole(equation.invars[operand].aval.shape)
    if operand != 1 or equation.params["batch_group_count"] != 1 or not whole:
        return None
    spec = equation.params["dimension_numbers"].rhs_spec
    axes = None
    if view.axes is not None:
        groups = ("groups", equation.params["feature_group_count"])
        axes = ((*view.taken, groups), tuple(view.axes[a] for a in spec[1:]), (view.axes[spec[0]],))
    return _site("convolution", path, equation, operand, view, axes)


def _rows(equation, operand, view, path) -> Site | None:
    numbers, shape = equation.params["dimension_numbers"], equation.invars[0].aval.shape
    if operand != 0 or len(numbers.start_index_map) != 1 or numbers.operand_batching_dims:
        return None
    if view.window != _whole(shape):
        return None
    [axis] = numbers.start_index_map
    whole = tuple(1 if a == axis else length for a, length in enumerate(shape))
    known = (*_OUTSIDE_DROPPED, *_OUTSIDE_CLIPPED)
    if numbers.collapsed_slice_dims != (axis,) or tuple(equation.params["slice_sizes"]) != whole:
        return None
    if equation.params["mode"] not in known:
        return None
    axes = None
    if view.axes is not None:
        rest = tuple(view.axes[a] for a in range(len(shape)) if a != axis)
        axes = (view.taken, (view.axes[axis],), rest) if rest == tuple(sorted(rest)) else None
    return _site("rows", path, equation, operand, view, axes)


_PRODUCTS = {"dot_general": _dense, "conv_general_dilated": _convolution, "gather": _rows}
_OUTSIDE_DROPPED = (jax.lax.GatherScatterMode.FILL_OR_DROP, jax.lax.GatherScatterMode.PROMISE_IN_BOUNDS)
_OUTSIDE_CLIPPED = (jax.lax.GatherScatterMode.CLIP,)


# ---- running ------------------------------------------------------------------------------


def pullback_at(reading: Reading, by_sites: Sequence[int], leaves: Sequence, inputs: Sequence):
    """One example through the function: its outputs, its pullback, and what the sites of some leaves met.

    Args:
        reading: of the function.
        by_sites: the leaves (by number) whose sites are wanted; the others are differentiated themselves.
        leaves, inputs: of the parameters and of the example, flat.

    Returns:
        ``(outputs, pullback, records)``. The pullback gives the cotangents at the sites, by path, and the
        gradients of the other leaves, by number; the records are what `factors` needs besides.
    """
    sites = [site for leaf in by_sites for site in reading.sites[leaf]]
    wanted: dict[tuple, list[Site]] = {}
    for site in sites:
        wanted.setdefault(site.path, []).append(site)
    scalars = {path for site in sites for path, _ in site.scales}
    inside = {path[:depth] for path in [*wanted, *scalars] for depth in range(1, len(path))}
    zeros = {}
    for path, [site, *_] in wanted.items():
        out = site.equation.outvars[0].aval
        zeros[path] = jnp.zeros((*site.lengths, *out.shape), out.dtype)
    others = {i: leaf for i, leaf in enumerate(leaves) if i not in by_sites}

    def run(zeros, others):
        values = [others.get(i, leaf) for i, leaf in enumerate(leaves)]
        records: dict = {}
        plan = _Plan(wanted, inside, scalars)
        outputs = _run(
            reading.closed_jaxpr.jaxpr, reading.closed_jaxpr.consts, [*values, *inputs], (), plan, zeros, records, {}
        )
        return outputs, records

    return jax.vjp(run, zeros, others, has_aux=True)


class _Plan(NamedTuple):
    wanted: dict
    inside: set
    scalars: set


def _run(jaxpr, consts, args, path, plan, zeros, records, scalars) -> list:
    """A jaxpr on values, with a zero added at each wanted product and its other operand recorded."""
    values = dict(zip(jaxpr.constvars, consts, strict=True)) | dict(zip(jaxpr.invars, args, strict=True))

    def get(variable):
        return variable.val if isinstance(variable, Literal) else values[variable]

    for index, equation in enumerate(jaxpr.eqns):
        here = (*path, index)
        inputs = [get(variable) for variable in equation.invars]
        if here in plan.scalars:
            scalars[here] = next(value for v, value in zip(equation.invars, inputs, strict=True) if not v.aval.shape)
        if here in plan.inside and equation.primitive.name == "scan":
            results = _run_scan(equation, inputs, here, plan, zeros, records)
        elif here in plan.inside:
            body = body_of_call(equation)
            results = _run(body.jaxpr, body.consts, inputs, here, plan, zeros, records, scalars)
        else:
            needed = inputs_of([equation])
            results = piece(jaxpr, [equation], needed, equation.outvars)(*map(get, needed))
        if here in plan.wanted:
            results = [results[0] + zeros[here]]
            records[here] = {(site.operand, site.scales): _record(site, inputs, scalars) for site in plan.wanted[here]}
        values.update(zip(equation.outvars, results, strict=True))
    return [get(variable) for variable in jaxpr.outvars]


def _record(site, inputs, scalars):
    scale = jnp.ones((), site.equation.outvars[0].aval.dtype)
    for path, multiplies in site.scales:
        value = jnp.asarray(scalars[path]).astype(scale.dtype)
        scale = scale * value if multiplies else scale / value
    return (inputs[1 - site.operand], scale) if site.scales else (inputs[1 - site.operand],)


def _run_scan(equation, inputs, here, plan, zeros, records) -> list:
    body, params = equation.params["jaxpr"], equation.params
    n_consts, n_carry = scan_parts(equation)
    consts, carry, slices = inputs[:n_consts], inputs[n_consts : n_consts + n_carry], inputs[n_consts + n_carry :]
    own = {path: zero for path, zero in zeros.items() if path[: len(here)] == here}

    def step(carry, taken):
        slices, own = taken
        found: dict = {}
        outputs = _run(body.jaxpr, body.consts, [*consts, *carry, *slices], here, plan, own, found, {})
        return outputs[:n_carry], (outputs[n_carry:], found)

    carry, (stacked, found) = jax.lax.scan(
        step, carry, (slices, own), length=params["length"], reverse=params["reverse"], unroll=params["unroll"]
    )
    records.update(found)
    return [*carry, *stacked]


# ---- factors ------------------------------------------------------------------------------


def factors(site: Site, records: dict, cotangents: dict, dtype) -> Factors:
    """The factors, in one dtype, of one example's gradient at a site, from its record and the cotangent there."""
    other, *scale = records[site.path][site.operand, site.scales]
    v = cotangents[site.path]
    layout = {"dense": _dense_factors, "convolution": _convolution_factors, "rows": _rows_factors}[site.kind]

    def one(other, scale, v):
        u, v = layout(site, other, v)
        for factor in scale:
            v = v * factor
        return u if site.kind == "rows" else u.astype(dtype), v.astype(dtype)

    for _ in site.lengths:
        one = jax.vmap(one)
    u, v = one(other, scale, v)  # (*loops, b, p, c), (*loops, b, p, n)
    return Factors(_gather_loops(site, u), _gather_loops(site, v)[None])


def _gather_loops(site, x):
    """Loops with their own weights to b, loops that share them to p."""
    depth, shape = len(site.lengths), x.shape
    own = [i for i, stacked in enumerate(site.stacked) if stacked]
    shared = [i for i, stacked in enumerate(site.stacked) if not stacked]
    x = x.transpose(*own, depth, *shared, *range(depth + 1, x.ndim))
    b, p = math.prod(shape[i] for i in [*own, depth]), math.prod(shape[i] for i in [*shared, depth + 1])
    return x.reshape(b, p, *shape[depth + 2 :])


def _dense_factors(site, other, v):
    contracted, batch = site.equation.params["dimension_numbers"]
    here, there = site.operand, 1 - site.operand
    b, c, n = site.orders
    shape = site.shape
    batch_there = [batch[there][batch[here].index(axis)] for axis in b]
    contracted_there = [contracted[there][contracted[here].index(axis)] for axis in c]
    free = [axis for axis in range(other.ndim) if axis not in batch_there + contracted_there]
    own_free = [axis for axis in range(len(shape)) if axis not in b + c]
    sizes = [math.prod(shape[axis] for axis in axes) for axes in (b, c, n)]
    # Out of an operand that was joined from several, the window in which the parameter lies.
    for axis, (start, length) in enumerate(site.window):
        whole = site.equation.invars[here].aval.shape[axis]
        if length == whole:
            continue
        if axis in c:
            other = jax.lax.slice_in_dim(other, start, start + length, axis=contracted_there[c.index(axis)])
        else:
            if axis in b:
                other = jax.lax.slice_in_dim(other, start, start + length, axis=batch_there[b.index(axis)])
                place = batch[here].index(axis)
            else:
                place = len(b) + (0 if here == 0 else len(free)) + own_free.index(axis)
            v = jax.lax.slice_in_dim(v, start, start + length, axis=place)
    u = other.transpose(*batch_there, *free, *contracted_there).reshape(sizes[0], -1, sizes[1])
    # The product's axes: batch, the left operand's free ones, the right one's.
    first = len(b) + (0 if here == 0 else len(free))
    places = [first + own_free.index(axis) for axis in n]
    others = [axis for axis in range(len(b), v.ndim) if axis not in places]
    v = v.transpose(*(batch[here].index(axis) for axis in b), *others, *places).reshape(sizes[0], -1, sizes[2])
    return u, v


def _convolution_factors(site, image, v):
    params, kernel = site.equation.params, site.equation.invars[1].aval.shape
    numbers, groups = params["dimension_numbers"], params["feature_group_count"]
    image = image.transpose(numbers.lhs_spec)  # (batch, channels, *space)
    v = v.transpose(numbers.out_spec)
    taps = [kernel[axis] for axis in numbers.rhs_spec[2:]]
    holes = [
        (before, after, dilation - 1)
        for (before, after), dilation in zip(params["padding"], params["lhs_dilation"], strict=True)
    ]
    image = jax.lax.pad(image, jnp.zeros((), image.dtype), [(0, 0, 0), (0, 0, 0), *holes])
    strides, spread, space = params["window_strides"], params["rhs_dilation"], v.shape[2:]
    patches = []
    for tap in np.ndindex(*taps):
        start = [t * s for t, s in zip(tap, spread, strict=True)]
        stop = [a + (n - 1) * s + 1 for a, n, s in zip(start, space, strides, strict=True)]
        patches.append(jax.lax.slice(image, (0, 0, *start), (*image.shape[:2], *stop), (1, 1, *strides)))
    u = jnp.stack(patches, axis=2)  # (batch, channels, taps, *space)
    batch, channels, size = u.shape[0], u.shape[1], math.prod(space)
    u = u.reshape(batch, groups, channels // groups, len(patches), size).transpose(1, 0, 4, 2, 3)
    v = v.reshape(batch, groups, -1, size).transpose(1, 0, 3, 2)
    return (
        u.reshape(groups, batch * size, (channels // groups) * len(patches)),
        v.reshape(groups, batch * size, -1),
    )


def _rows_factors(site, indices, v):
    numbers, shape = site.equation.params["dimension_numbers"], site.equation.invars[0].aval.shape
    [axis] = numbers.start_index_map
    offset = numbers.offset_dims
    v = v.transpose(*(a for a in range(v.ndim) if a not in offset), *offset)
    indices = indices.reshape(1, -1)
    v = v.reshape(1, indices.size, -1)
    clipped = jnp.clip(indices, 0, shape[axis] - 1)
    if site.equation.params["mode"] not in _OUTSIDE_CLIPPED:  # a row that is not there has no gradient
        v = jnp.where((indices == clipped)[..., None], v, 0)
    return clipped, v


# ---- inner products -----------------------------------------------------------------------


def product(site: Site, own: Factors):
    """The gradient itself out of its factors: (e, b, c, n)."""
    if own.u.ndim == 3:
        return jnp.einsum("bpc,ebpn->ebcn", own.u, own.v)
    rows = jnp.zeros((*own.v.shape[:2], site.sizes[2], own.v.shape[3]), own.v.dtype)
    add = jax.vmap(lambda rows, u, v: rows.at[u].add(v))  # over b
    return jax.vmap(add, in_axes=(0, None, 0))(rows, own.u, own.v)


def inner(one: Site, left: Factors, other: Site, right: Factors, *, through: bool = False):
    """The inner product of two gradients of one leaf out of their factors, summed over e.

    With ``through`` the sums over the positions are taken one after the other: cheaper where v is short.
    """
    how = fit(one, other)
    if how == "apart":
        return jnp.zeros((), left.v.dtype)
    if how == "swapped":
        return jnp.sum(_dots(left.u, right.v) * _swap(_dots(right.u, left.v)))
    weights = _dots(left.u, right.u).astype(left.v.dtype)  # (b, p, q)
    if through:
        return jnp.sum(left.v * jnp.einsum("bpq,ebqn->ebpn", weights, right.v))
    return jnp.sum(weights * jnp.einsum("ebpn,ebqn->bpq", left.v, right.v))


def _swap(x):
    return jnp.swapaxes(x, -1, -2)


def _dots(left, right):
    """Products of u (b, p, c) or (b, p) with u (b, q, c) or (b, q), or with v (e, b, q, n)."""
    if right.ndim == 4:
        if left.ndim == 3:
            return jnp.einsum("bpk,ebqk->ebpq", left, right)
        chosen = jax.vmap(lambda u, v: v[..., u], in_axes=(0, 1), out_axes=1)(left, right)  # (e, b, q, p)
        return _swap(chosen)
    if left.ndim == right.ndim == 3:
        return jnp.einsum("bpk,bqk->bpq", left, right)
    if left.ndim == right.ndim == 2:
        return left[:, :, None] == right[:, None, :]
    rows, dense = (left, right) if left.ndim == 2 else (right, left)
    chosen = jax.vmap(lambda u, v: v[:, u])(rows, dense)  # (b, dense, rows)
    return _swap(chosen) if left.ndim == 2 else chosen
