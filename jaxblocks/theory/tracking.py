r"""A net of one input, followed exactly: every array that it computes, as a piecewise affine function of the input.

The jaxpr of a net is walked once. The value of a variable is no number but a partition of the line into pieces and, for
each piece, an affine function: its value at a point of the piece and its slope. Affine primitives act on values and
slopes alike. A primitive with kinks (``max``, ``abs``, a comparison) first cuts the pieces where its argument changes
sign, at :math:`r = c - a / s`, and then chooses one branch on each. Nothing is sampled, so no kink can hide between
samples. All arithmetic is float64, whatever the dtype of the net.

Where kinks cancel, the slopes on both sides agree up to rounding; so its size is followed too. Errors are taken as
independent: they add up as the root of the sum of their squares, and a sum of n terms makes one of :math:`\sqrt n`
times the sum of their sizes. So :math:`y = W x` has :math:`e_y = \sqrt{W^2 e_x^2} + \sqrt n\,|W|\,|s_x|`, what it
inherits and what it adds; squares are those of entries. Where a unit is off it hands nothing on, so that with depth
errors grow as slopes do. The bound for errors of any sign, a product of all :math:`|W|`, would be beyond every slope
after twenty wide layers.

Source of the estimate: Higham & Mary 2019, A new approach to probabilistic rounding error analysis.

    p    pieces
    a    values at the points c, (p, *shape)
    s    slopes, (p, *shape)
    e    rounding errors of the slopes, over the machine's precision, (p, *shape)
"""

import itertools
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal

from jaxblocks.ad.jaxprs import as_closed, body_of_call, inputs_of, piece, scan_parts
from jaxblocks.core import StatefulLayer, as_layer, layer_name

__all__ = ["Pieces", "in_float64", "name_of", "not_affine", "traced", "track"]

_BUDGET = 2**19  # numbers in one array; beyond, the line is cut into parts that are walked one after the other


@dataclass(frozen=True)
class Pieces:
    """What `track` returns: on piece i, from ``edges[i]`` to ``edges[i + 1]``, the function
    ``values[i] + slopes[i] * (x - points[i])``.

    Attributes:
        edges: of the pieces, increasing, the first -inf, the last inf.
        points: one in each piece.
        values, slopes: ``(pieces, *shape)`` for a net with outputs of this shape.
        noise: ``eps * noise`` is the size of the slopes' rounding errors where it is largest; in shape as the output.

    Edges are the kinks of all units of the net; some cancel at the output.
    """

    edges: np.ndarray
    points: np.ndarray
    values: np.ndarray
    slopes: np.ndarray
    noise: np.ndarray | np.float64


def track(where: str, net, params=(), *, shape: tuple[int, ...] = (1,), called: str = "", **side) -> Pieces:
    """The pieces of a net, or function, of one input: an array of this ``shape`` with a single entry.

    Where the net is a function made of a layer, ``called`` is the layer's name, for errors.

    Raises:
        TypeError: for a layer with state.
        ValueError: for a net that is not piecewise affine; the sentence names the layer and the operation.

    >>> found = track("track", lambda x: jnp.abs(jnp.abs(x) - 1))
    >>> found.edges, found.slopes[:, 0]
    (array([-inf,  -1.,   0.,   1.,  inf]), array([-1.,  1., -1.,  1.]))
    """
    closed = traced(where, in_float64(where, net, params, side), shape)
    with jax.enable_x64(True), np.errstate(all="ignore"):  # what is not finite shows in the result
        done: list[tuple] = []
        todo = [np.array([-np.inf, np.inf])]
        while todo:
            walk = _Walk(where, called or name_of(net), todo.pop())
            try:
                [y] = walk.run(closed, [_input(shape)], "")
                done.append((walk.grid, walk.refined(walk.number(y))))
            except _TooManyError as too_many:
                todo += too_many.parts[::-1]
    grids, values = zip(*done, strict=True)
    return Pieces(
        np.concatenate([grids[0].edges[:1], *(grid.edges[1:] for grid in grids)]),
        np.concatenate([grid.points for grid in grids]),
        np.concatenate([y.a for y in values]),
        np.concatenate([y.s for y in values]),
        np.max([y.e.max(0) for y in values], 0),
    )


def in_float64(where: str, net, params, side) -> Callable:
    """The net as a function of its input alone, its params in float64; call it where JAX has float64 switched on.

    Raises:
        TypeError: for a layer with state.
    """
    layer = as_layer(net)
    if isinstance(layer, StatefulLayer):
        raise TypeError(
            f"{where} expects a layer without state, but {layer_name(layer)} has one; fix it: "
            "lambda x: layer.apply(params, state, x)[0]."
        )
    floating = lambda leaf: jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
    with jax.enable_x64(True):
        params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64) if floating(leaf) else leaf, params)
    return lambda x: layer.apply(params, x, **side)


def traced(where: str, function: Callable, shape: tuple[int, ...]) -> ClosedJaxpr:
    """The jaxpr of a function of one float64 array of this ``shape``, with one output."""
    try:
        with jax.enable_x64(True):
            closed = jax.make_jaxpr(function)(jax.ShapeDtypeStruct(shape, jnp.float64))
    except Exception as error:
        if hint := _OTHER_INPUTS.get(where):
            error.add_note(f"{where} handed the net an input of shape {shape}. {hint}")
        raise
    if len(closed.out_avals) != 1:
        raise ValueError(f"{where} expects a net with one output, but {len(closed.out_avals)} came; choose one.")
    return closed


_OTHER_INPUTS = {
    "regions": "For a net of other inputs pass origin and directions, two arrays like its input, or through.",
    "to_piecewise_linear": "It follows nets of one input; for others take regions_along, from one input to another.",
}


def name_of(net) -> str:
    """What a layer is called; nothing for a function."""
    return "" if callable(net) else layer_name(net)


def not_affine(where: str, scope: str, name: str) -> str:
    """The sentence about a primitive ``name`` that is not piecewise affine, in the layer that ``scope`` names."""
    layer = scope.rpartition("/")[2]
    layer = f"the layer {scope.replace('/', ', ')}" if layer else "this function"
    if name in _NOT_FOLLOWED:
        return (
            f"{where} expects a piecewise linear net that it can follow, but {layer} uses {name}, which is not "
            f"followed here; {_NOT_FOLLOWED[name]}."
        )
    what = f"takes {name} of"
    if name in {"mul", *_BILINEAR}:
        what = "multiplies two arrays that depend on its input"
    elif name == "div":
        what = "divides by"
    what += "" if what.endswith("input") else " what depends on its input"
    return (
        f"{where} expects a piecewise linear net, but {layer} is not: it {what}; use relu, leaky_relu, abs, maxout or "
        "another activation made of straight pieces."
    )


_NOT_FOLLOWED = {
    "cond": "choose by jnp.where",
    "sort": "write it with jnp.maximum and jnp.minimum",
    "top_k": "write it with jnp.maximum and jnp.minimum",
    "while": "use jax.lax.scan",
}


# ---- pieces of the line, and functions on them -----------------------------------------------


class _Grid:
    """A partition of (a part of) the line, with a point in each piece."""

    def __init__(self, edges):
        self.edges = edges
        low, high = edges[:-1], edges[1:]
        finite = edges[np.isfinite(edges)]
        reach = 1.0
        if len(finite):
            reach = (finite[-1] - finite[0]) or abs(finite[0]) or 1.0
        points = low + (high - low) / 2
        points = np.where(np.isfinite(low), points, high - reach)
        points = np.where(np.isfinite(high), points, low + reach)
        self.points = np.where(np.isfinite(low) | np.isfinite(high), points, 0.0)

    def __len__(self):
        return len(self.points)


@dataclass(frozen=True)
class _Affine:
    """An array as a function of the input: ``a + s (x - points)`` on each piece; ``eps * e`` is the error of ``s``."""

    grid: _Grid | None  # None for what does not move, where it meets what does
    a: np.ndarray
    s: np.ndarray
    e: np.ndarray


@dataclass(frozen=True)
class _Constant:
    """An array that is constant on each piece: what comparisons return."""

    grid: _Grid | None  # None for what does not move, where it meets what does
    a: np.ndarray


class _TooManyError(Exception):
    """The pieces times the units are too many for one array: walk these parts of the line one after the other."""

    def __init__(self, edges, size):
        pieces, each = len(edges) - 1, _most(size)
        cuts = [*range(0, pieces, each), pieces]
        self.parts = [edges[i : j + 1] for i, j in itertools.pairwise(cuts)]


def _most(size):
    """How many pieces a part begins with, where an array has ``size`` entries."""
    return max(_BUDGET // (2 * max(size, 1)), 1)


def _input(shape):
    """The input itself; on one piece, whose point is 0, so that the first roots are -b / w to the last bit."""
    zeros = np.zeros((1, *shape))
    return _Affine(_Grid(np.array([-np.inf, np.inf])), zeros, np.ones_like(zeros), zeros)


# ---- the walk ----------------------------------------------------------------------------------


class _Walk:
    """One pass through the net on one part of the line; the grid only ever gets finer."""

    def __init__(self, where, called, edges):
        self.where, self.called = where, called
        self.grid = _Grid(edges)

    def run(self, closed: ClosedJaxpr, args, scope) -> list:
        jaxpr = closed.jaxpr
        values = dict(zip(jaxpr.constvars, closed.consts, strict=True))
        values |= dict(zip(jaxpr.invars, args, strict=True))
        read = lambda v: v.val if isinstance(v, Literal) else values[v]
        last = {v: i for i, equation in enumerate(jaxpr.eqns) for v in equation.invars if not isinstance(v, Literal)}
        last |= {v: len(jaxpr.eqns) for v in jaxpr.outvars if not isinstance(v, Literal)}
        for i, equation in enumerate(jaxpr.eqns):
            results = self.step(jaxpr, equation, [read(v) for v in equation.invars], scope)
            values.update(zip(equation.outvars, results, strict=True))
            for v in {v for v in equation.invars if not isinstance(v, Literal)}:  # arrays are large
                if last[v] == i:
                    del values[v]
        return [read(v) for v in jaxpr.outvars]

    def step(self, jaxpr, equation, args, scope) -> list:
        name = equation.primitive.name
        scope = "/".join(filter(None, (scope, str(equation.source_info.name_stack))))
        body = body_of_call(equation)
        if body is not None:
            return self.run(body, args, scope)
        if name == "scan":
            return self.scan(equation, args, scope)
        if not any(map(_moves, args)):
            reads = inputs_of([equation])
            return piece(jaxpr, [equation], reads, equation.outvars)(*(args[equation.invars.index(v)] for v in reads))
        self.require_room(self.grid.edges, max(math.prod(v.aval.shape) for v in equation.outvars))
        results = NotImplemented
        if name in _RULES:
            result = _RULES[name](self, equation.params, *args)
            results = result if result is None or result is NotImplemented else [result]
        if results is NotImplemented and name in _AFFINE:
            results = self.by_derivative(jaxpr, equation, args)
        if results is None or results is NotImplemented:
            raise ValueError(not_affine(self.where, scope or self.called, name))
        return results

    def scan(self, equation, args, scope):
        p = equation.params
        body = as_closed(p["jaxpr"])
        first, carried = scan_parts(equation)
        consts, carry, xs = args[:first], args[first : first + carried], args[first + carried :]
        made: list[list] = []
        for i in reversed(range(p["length"])) if p["reverse"] else range(p["length"]):
            entries = [_each(lambda v, i=i: v[:, i], x) if _moves(x) else x[i] for x in xs]
            results = self.run(body, [*consts, *carry, *entries], scope)
            carry = results[:carried]
            made.append(results[carried:])
        stacked = zip(*(made[::-1] if p["reverse"] else made), strict=True)
        return [*carry, *(self.joined(parts, lambda arrays: np.stack(arrays, 1)) for parts in stacked)]

    # -- the grid

    def require_room(self, edges, size):
        pieces = len(edges) - 1
        if pieces * size > _BUDGET and pieces > _most(size):
            raise _TooManyError(edges, size)

    def cut(self, x) -> None:
        """Add to the grid the points where some entry of ``x`` changes its sign."""
        points, low, high = x.grid.points, x.grid.edges[:-1], x.grid.edges[1:]
        ulps = 4 * np.finfo(np.float64).eps
        roots = _of_rank(x.a.ndim, points) - x.a / x.s
        roots = np.unique(roots[(roots > _of_rank(x.a.ndim, low)) & (roots < _of_rank(x.a.ndim, high))])
        edges = self.grid.edges
        roots = roots[(roots > edges[0]) & (roots < edges[-1])]
        if len(roots):  # some may be known, to rounding
            roots = roots[np.append(True, np.diff(roots) > ulps * np.maximum(abs(roots[1:]), abs(roots[:-1])))]
            after = np.searchsorted(edges, roots)
            gap = np.minimum(roots - edges[after - 1], edges[after] - roots)
            roots = roots[gap > ulps * np.maximum(abs(roots), self.size(after - 1))]
        if len(roots):
            edges = np.sort(np.concatenate([edges, roots]))
            self.require_room(edges, math.prod(x.a.shape[1:]))
            self.grid = _Grid(edges)

    def size(self, pieces):
        """How large the numbers are between which these pieces lie."""
        finite = np.where(np.isfinite(self.grid.edges), abs(self.grid.edges), 0.0)
        return np.maximum(finite[pieces], finite[pieces + 1])

    # -- arrays on a grid: an array stays on the one that it was made on until it meets one on another

    def refined(self, x):
        """The same function on the present grid."""
        if x.grid is self.grid:
            return x
        if x.grid is None:
            return _each(lambda v: np.broadcast_to(v, (len(self.grid), *v.shape[1:])), replace(x, grid=self.grid))
        old = np.searchsorted(x.grid.edges, self.grid.points) - 1
        if isinstance(x, _Constant):
            return _Constant(self.grid, x.a[old])
        moved = (self.grid.points - x.grid.points[old]).reshape(-1, *(1,) * (x.a.ndim - 1))
        s = x.s[old]
        return _Affine(self.grid, x.a[old] + s * moved, s, x.e[old])

    def number(self, x):
        """The same as a number: true is 1. What does not move gets a single piece, which broadcasts."""
        if isinstance(x, _Affine):
            return x
        a, grid = (x.a, x.grid) if _moves(x) else (np.asarray(x)[None], None)
        a = a.astype(np.float64)
        return _Affine(grid, a, np.zeros_like(a), np.zeros_like(a))

    def alike(self, *xs, finest=False):
        """Arrays on one grid (the ``finest`` or the one that they share) and of one rank."""
        grids = {id(x.grid) for x in xs if _moves(x) and x.grid is not None}
        if finest or len(grids) > 1:
            xs = tuple(self.refined(x) if _moves(x) and x.grid is not None else x for x in xs)
        xs = [x if _moves(x) else _Constant(None, np.asarray(x)[None]) for x in xs]
        if not all(isinstance(x, _Constant) for x in xs):
            xs = [self.number(x) for x in xs]
        rank = max(x.a.ndim for x in xs)
        return [_each(partial(_of_rank, rank), x) if x.a.ndim < rank else x for x in xs]

    def joined(self, parts, f):
        """Several arrays as one: ``f`` takes them with an axis of pieces in front."""
        if not any(map(_moves, parts)):
            return jnp.asarray(f([np.asarray(x)[None] for x in parts])[0])
        parts = self.alike(*parts)
        grid = _grid_of(parts)
        full = [_each(lambda v: np.broadcast_to(v, (len(grid), *v.shape[1:])), x) for x in parts]
        if isinstance(full[0], _Constant):
            return _Constant(grid, f([x.a for x in full]))
        return _Affine(grid, *(f(arrays) for arrays in zip(*((x.a, x.s, x.e) for x in full), strict=True)))

    def by_derivative(self, jaxpr, equation, args):
        """An affine primitive without a rule of its own: JAX applies it to values, its derivative to slopes."""
        bilinear, reads = equation.primitive.name in _BILINEAR, inputs_of([equation])
        given = {v: args[equation.invars.index(v)] for v in reads}
        moving = [v for v in reads if _moves(given[v])]
        if any(isinstance(given[v], _Constant) for v in moving):
            return None
        if bilinear and len(moving) > 1:
            return None
        inputs = self.alike(*(given[v] for v in moving)) if len(moving) > 1 else [given[v] for v in moving]
        grid, n = inputs[0].grid, len(inputs[0].grid)
        function = piece(jaxpr, [equation], reads, equation.outvars)
        more = 2 ** math.ceil(math.log2(n)) - n  # few shapes, few compilations
        pad = lambda array: np.pad(array, [(0, more)] + [(0, 0)] * (array.ndim - 1))

        def derivative(of_fixed, a, s):
            known = {v: of_fixed(x) if bilinear and v not in moving else x for v, x in given.items()}
            f = lambda *xs: function(*({**known, **dict(zip(moving, xs, strict=True))}[v] for v in reads))
            return jax.jvp(f, a, s)

        def all_three(a, s, e):
            values, slopes = derivative(lambda w: w, a, s)
            _, own = derivative(abs, a, tuple(map(abs, s)))
            _, inherited = derivative(jnp.square, a, tuple(map(jnp.square, e)))
            _, terms = derivative(jnp.ones_like, a, tuple(map(jnp.ones_like, s)))
            parts = zip(inherited, terms, own, strict=True)
            return values, slopes, [jnp.sqrt(e) + jnp.sqrt(n) * s for e, n, s in parts]

        found = jax.vmap(all_three)(*(tuple(pad(getattr(x, of)) for x in inputs) for of in "ase"))
        return [_Affine(grid, *(np.array(v)[:n] for v in result)) for result in zip(*found, strict=True)]


def _moves(x):
    return isinstance(x, _Affine | _Constant)


def _of_rank(rank, array):
    """``array``, (p, *shape), with axes of 1 behind its first."""
    return array.reshape(array.shape[:1] + (1,) * (rank - array.ndim) + array.shape[1:])


def _each(f, x):
    """The same rearrangement of values, slopes and errors."""
    return _Constant(x.grid, f(x.a)) if isinstance(x, _Constant) else _Affine(x.grid, f(x.a), f(x.s), f(x.e))


def _grid_of(xs):
    return next(x.grid for x in xs if x.grid is not None)


# ---- primitives: each returns an array, or None where the result is not piecewise affine ---------


def _add(walk, params, x, y, sign=1):
    x, y = walk.alike(walk.number(x), y)
    e = np.hypot(x.e, y.e) + np.maximum(abs(x.s), abs(y.s))
    return _Affine(_grid_of([x, y]), x.a + sign * y.a, x.s + sign * y.s, e)


def _mul(walk, params, x, y):
    x, y = walk.alike(walk.number(x), y)
    if x.s.any() and y.s.any() and np.any((x.s != 0) & (y.s != 0)):
        return None
    s = x.s * y.a + x.a * y.s
    return _Affine(_grid_of([x, y]), x.a * y.a, s, x.e * abs(y.a) + y.e * abs(x.a))


def _div(walk, params, x, y):
    x, y = walk.alike(walk.number(x), y)
    if y.s.any():
        return None
    return _Affine(_grid_of([x, y]), x.a / y.a, x.s / y.a, x.e / abs(y.a))


def _integer_pow(walk, params, x):
    x = walk.number(x)
    if params["y"] == 1:
        return x
    return None if x.s.any() else _Affine(x.grid, x.a ** params["y"], x.s, x.e)


def _dot_general(walk, params, x, y):
    (over_x, over_y), (batch, _) = params["dimension_numbers"]
    if _moves(x) and _moves(y):
        return None
    if batch:
        return NotImplemented

    def dot(moving, fixed):
        """With the axis of pieces first."""
        if _moves(x):
            return np.tensordot(moving, fixed, ([axis + 1 for axis in over_x], over_y))
        product = np.tensordot(fixed, moving, (over_x, [axis + 1 for axis in over_y]))
        return np.moveaxis(product, fixed.ndim - len(over_x), 0)

    moving, fixed = (x, y) if _moves(x) else (y, x)
    moving, fixed = walk.number(moving), np.asarray(fixed, np.float64)
    terms = math.prod(moving.a.shape[axis + 1] for axis in (over_x if _moves(x) else over_y))
    e = np.sqrt(dot(moving.e**2, fixed**2)) + terms**0.5 * dot(abs(moving.s), abs(fixed))
    return _Affine(moving.grid, dot(moving.a, fixed), dot(moving.s, fixed), e)


def _reduce_sum(walk, params, x):
    x = walk.number(x)
    axes = tuple(axis + 1 for axis in params["axes"])
    terms = math.prod(x.a.shape[axis] for axis in axes)
    e = np.sqrt((x.e**2).sum(axes)) + terms**0.5 * abs(x.s).sum(axes)
    return _Affine(x.grid, x.a.sum(axes), x.s.sum(axes), e)


def _larger(walk, params, x, y, sign=1):
    walk.cut(_add(walk, {}, x, y, -1))
    x, y = walk.alike(walk.number(x), y, finest=True)
    over = x.a >= y.a if sign > 0 else x.a <= y.a
    choose = lambda x, y: np.where(over, x, y)
    return _Affine(walk.grid, choose(x.a, y.a), choose(x.s, y.s), choose(x.e, y.e))


def _reduce_max(walk, params, x, sign=1):
    axes = params["axes"]
    count = math.prod(x.a.shape[axis + 1] for axis in axes)
    if isinstance(x, _Constant) or not count:
        return None
    x = _each(lambda v: np.moveaxis(v, [axis + 1 for axis in axes], range(-len(axes), 0)), x)
    x = _each(lambda v: v.reshape(*v.shape[: v.ndim - len(axes)], count), x)
    while count > 1:  # a tournament
        half, odd = count // 2, count % 2
        cuts = (slice(0, half), slice(half, 2 * half), slice(2 * half, None))
        left, right, rest = (_each(lambda v, cut=cut: v[..., cut], x) for cut in cuts)
        x = _larger(walk, {}, left, right, sign)
        x = walk.joined([x, rest], lambda arrays: np.concatenate(arrays, -1)) if odd else x
        count = half + odd
    return _each(lambda v: v[..., 0], x)


def _clamp(walk, params, low, x, high):
    return _larger(walk, {}, _larger(walk, {}, x, low), high, -1)


def _signs(walk, x):
    """On the finest grid: ``x`` and the sign of each entry on each piece."""
    walk.cut(x)
    x = walk.refined(x)
    return x, np.sign(x.a)


def _abs(walk, params, x):
    x, sign = _signs(walk, walk.number(x))
    return _Affine(x.grid, sign * x.a, np.where(x.a == 0, abs(x.s), sign * x.s), x.e)


def _sign(walk, params, x):
    x, sign = _signs(walk, walk.number(x))
    return walk.number(_Constant(x.grid, sign))


def _compare(walk, params, x, y, holds):
    x, sign = _signs(walk, _add(walk, {}, x, y, -1))
    if holds in (operator.eq, operator.ne):  # two lines that meet at a point are not equal on a piece
        sign = np.where(x.s != 0, 1.0, sign)
    return _Constant(x.grid, holds(sign, 0))


def _logical(walk, params, *xs, function):
    xs = walk.alike(*xs)
    return _Constant(_grid_of(xs), function(*(x.a for x in xs))) if isinstance(xs[0], _Constant) else None


def _select_n(walk, params, which, *cases):
    if isinstance(which, _Affine):
        return None
    which, *_ = walk.alike(which, finest=True)
    cases = walk.alike(*cases, finest=True)
    index = _of_rank(cases[0].a.ndim, which.a.astype(np.int64))
    choose = lambda arrays: np.choose(index, arrays) if len(arrays) != 2 else np.where(index, arrays[1], arrays[0])
    full = lambda array: np.broadcast_to(array, (len(walk.grid), *array.shape[1:]))
    chosen = lambda of: full(choose([getattr(x, of) for x in cases]))
    if isinstance(cases[0], _Constant):
        return _Constant(walk.grid, chosen("a"))
    return _Affine(walk.grid, *map(chosen, "ase"))


def _convert(walk, params, x):
    if isinstance(x, _Constant) and params["new_dtype"] == np.dtype(bool):
        return x
    exact = isinstance(x, _Constant) or jnp.issubdtype(params["new_dtype"], jnp.floating)
    return walk.number(x) if exact else None


def _broadcast(walk, params, x):
    shape, axes = params["shape"], params["broadcast_dimensions"]

    def broadcast(v):
        sizes = [1] * len(shape)
        for axis, size in zip(axes, v.shape[1:], strict=True):
            sizes[axis] = size
        return np.broadcast_to(v.reshape(len(v), *sizes), (len(v), *shape))

    return _each(broadcast, x)


def _slice(walk, params, x):
    steps = params["strides"] or (1,) * len(params["start_indices"])
    cuts = tuple(map(slice, params["start_indices"], params["limit_indices"], steps))
    return _each(lambda v: v[(slice(None), *cuts)], x)


def _in_order(v, dimensions):
    """The axes of an array behind the pieces, as a reshape with ``dimensions`` reads them."""
    return v if dimensions is None else v.transpose(0, *(1 + axis for axis in dimensions))


def _moved_by(f) -> Callable:
    """The rule of a primitive that only moves entries: ``f(array, params)``, pieces first."""
    return lambda walk, params, x: _each(lambda v: f(v, params), x)


_same = _moved_by(lambda v, p: v)
_RULES: dict[str, Callable] = {
    "abs": _abs,
    "add": _add,
    "add_any": _add,
    "and": partial(_logical, function=np.logical_and),
    "broadcast_in_dim": _broadcast,
    "clamp": _clamp,
    "concatenate": lambda walk, params, *xs: walk.joined(xs, lambda v: np.concatenate(v, params["dimension"] + 1)),
    "convert_element_type": _convert,
    "copy": _same,
    "copy_p": _same,
    "div": _div,
    "dot_general": _dot_general,
    "integer_pow": _integer_pow,
    "max": _larger,
    "min": partial(_larger, sign=-1),
    "mul": _mul,
    "name": _same,
    "neg": lambda walk, params, x: _mul(walk, params, x, -1.0),
    "not": partial(_logical, function=np.logical_not),
    "or": partial(_logical, function=np.logical_or),
    "reduce_max": _reduce_max,
    "reduce_min": partial(_reduce_max, sign=-1),
    "reduce_precision": _same,
    "reduce_sum": _reduce_sum,
    "reshape": _moved_by(lambda v, p: _in_order(v, p["dimensions"]).reshape(len(v), *p["new_sizes"])),
    "rev": _moved_by(lambda v, p: np.flip(v, [axis + 1 for axis in p["dimensions"]])),
    "select_n": _select_n,
    "sign": _sign,
    "slice": _slice,
    "squeeze": _moved_by(lambda v, p: np.squeeze(v, tuple(axis + 1 for axis in p["dimensions"]))),
    "stop_gradient": _same,
    "sub": partial(_add, sign=-1),
    "transpose": _moved_by(lambda v, p: v.transpose(0, *(axis + 1 for axis in p["permutation"]))),
    "xor": partial(_logical, function=np.logical_xor),
}
_RULES |= {name: partial(_compare, holds=getattr(operator, name)) for name in ("eq", "ge", "gt", "le", "lt", "ne")}

_BILINEAR = {"conv_general_dilated", "dot_general"}
_AFFINE = {
    *("cumsum", "dynamic_slice", "dynamic_update_slice", "gather", "pad", "reduce_window_sum", "scatter"),
    *("scatter-add", "split", "stack", "tile", "unstack"),
    *_BILINEAR,
}
