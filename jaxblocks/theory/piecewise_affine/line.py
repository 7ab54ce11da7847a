r"""The exact pieces of a net of one input: every array in the net as a piecewise affine function of the input.

The value of a variable is a partition of the line into pieces and, on each piece, an affine function: its value at a
point of the piece and its slope. A primitive with kinks (``max``, ``abs``, a comparison) first divides the pieces where
its argument changes sign, at $r = c - a / s$, and then selects one branch on each piece. Nothing is sampled, so
no kink is missed. All arithmetic is in float64, independently of the dtype of the net.

Where kinks cancel, the slopes on both sides agree up to rounding, so the size of rounding errors is computed too.
Errors are assumed to be independent: they add up as the root of the sum of their squares, and a sum of n terms adds an
error of $√n$ times the sum of their sizes. Therefore $y = W x$ has $e_y = √(W^2 e_x^2) + √n |W| |s_x|$, the propagated
and the new error, with elementwise squares. A unit that is off propagates no error, so errors grow with depth at the
rate of the slopes. The worst-case bound, a product of all $|W|$, would exceed every slope after twenty wide layers.

Source of the estimate: Higham & Mary 2019, A new approach to probabilistic rounding error analysis,
doi:10.1137/18M1226312.

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
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxblocks.ad.programs.dependence import MOVES
from jaxblocks.ad.programs.jaxprs import Step, inputs_of, piece
from jaxblocks.core.pairs import LayerLike
from jaxblocks.theory.piecewise_affine.interpreter import (
    RULES,
    Interpreter,
    bind_params,
    network_name,
    shapes_of,
    trace_network,
)

__all__ = ["Pieces", "affine_pieces"]

_BUDGET = 2**19  # numbers in one array; larger problems are divided into parts of the line


@dataclass(frozen=True)
class Pieces:
    """The result of `affine_pieces`: on piece i, from ``edges[i]`` to ``edges[i + 1]``, the function
    ``values[i] + slopes[i] * (x - points[i])``.

    Attributes:
        edges: the ends of the pieces, increasing, from -inf to inf.
        points: one point in each piece.
        values, slopes: ``(pieces, *shape)`` for a net with outputs of this shape.
        noise: ``eps * noise`` is the largest rounding error of the slopes; in the shape of the output.

    Edges are the kinks of all units of the net; some of them cancel at the output.
    """

    edges: np.ndarray
    points: np.ndarray
    values: np.ndarray
    slopes: np.ndarray
    noise: np.ndarray | np.float64


def affine_pieces(
    net: LayerLike, params=(), *, shape: tuple[int, ...] = (1,), name: str = "", hint: str = "", **side
) -> Pieces:
    """The pieces of a net of one input, an array of this ``shape`` with a single entry.

    Args:
        net: a layer without state, or a function of an array.
        params: the params of the layer.
        shape: the shape of the input.
        name: the name of the net, for errors; for a function that calls a layer, the name of the layer.
        hint: a note on the shape of the input, added to an error of the net.
        side: side inputs, as for ``apply``.

    Raises:
        TypeError: for a layer with state.
        ValueError: for a net that is not piecewise affine; the error names the layer and the operation.

    >>> found = affine_pieces(lambda x: jnp.abs(jnp.abs(x) - 1))
    >>> found.edges, found.slopes[:, 0]
    (array([-inf,  -1.,   0.,   1.,  inf]), array([-1.,  1., -1.,  1.]))
    """
    closed = trace_network(bind_params(net, params, side), shape, hint)
    with jax.enable_x64(True), np.errstate(all="ignore"):  # the callers reject results that are not finite
        done: list[tuple] = []
        todo = [np.array([-np.inf, np.inf])]
        while todo:
            line = _Line(name or network_name(net), todo.pop())
            try:
                [y] = line.run(closed, [_input(shape)])
                done.append((line.grid, line.refined(line.number(y))))
            except _TooManyError as too_many:
                # Reversed, since the end of `todo` is processed first: the parts are done from left to right and
                # concatenate in order.
                todo += too_many.parts[::-1]
    grids, values = zip(*done, strict=True)
    return Pieces(
        np.concatenate([grids[0].edges[:1], *(grid.edges[1:] for grid in grids)]),
        np.concatenate([grid.points for grid in grids]),
        np.concatenate([y.a for y in values]),
        np.concatenate([y.s for y in values]),
        np.max([y.e.max(0) for y in values], 0),
    )


# ---- pieces of the line, and functions on them -----------------------------------------------


class _Grid:
    """A partition of (a part of) the line, with a point in each piece."""

    def __init__(self, edges):
        self.edges = edges
        low, high = edges[:-1], edges[1:]
        finite = edges[np.isfinite(edges)]
        reach = 1.0
        if len(finite):
            # An unbounded piece has its point at the distance of the whole grid, so that the kinks and the point have
            # one scale.
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

    grid: _Grid | None  # None for an array that does not depend on the input, broadcast against one that does
    a: np.ndarray
    s: np.ndarray
    e: np.ndarray


@dataclass(frozen=True)
class _Constant:
    """An array that is constant on each piece, as the results of comparisons are."""

    grid: _Grid | None  # None for an array that does not depend on the input, broadcast against one that does
    a: np.ndarray


class _TooManyError(Exception):
    """The number of pieces times units is too large for one array; process these parts of the line in order."""

    def __init__(self, edges, size):
        pieces, each = len(edges) - 1, _most(size)
        cuts = [*range(0, pieces, each), pieces]
        self.parts = [edges[i : j + 1] for i, j in itertools.pairwise(cuts)]


def _most(size):
    """The initial number of pieces of a part, for arrays of ``size`` entries."""
    return max(_BUDGET // (2 * max(size, 1)), 1)


def _input(shape):
    """The input itself, on one piece whose point is 0, so that the first roots are exactly -b / w."""
    zeros = np.zeros((1, *shape))
    return _Affine(_Grid(np.array([-np.inf, np.inf])), zeros, np.ones_like(zeros), zeros)


# ---- the interpreter -------------------------------------------------------------------------


class _Line(Interpreter):
    """A traversal of the net on one part of the line; its grid only becomes finer."""

    def __init__(self, network, edges):
        super().__init__(network)
        self.grid = _Grid(edges)

    def moves(self, x):
        return _moves(x)

    def is_affine(self, x):
        return isinstance(x, _Affine)

    def operate(self, step, args):
        self.require_room(self.grid.edges, max(map(math.prod, shapes_of(step))))
        return super().operate(step, args)

    # -- the grid

    def require_room(self, edges, size):
        pieces = len(edges) - 1
        if pieces * size > _BUDGET and pieces > _most(size):
            raise _TooManyError(edges, size)

    def cut(self, x) -> None:
        """Add to the grid the points where some entry of ``x`` changes its sign."""
        points, low, high = x.grid.points, x.grid.edges[:-1], x.grid.edges[1:]
        ulps = 4 * np.finfo(np.float64).eps
        # Entries with slope 0 give an infinity or NaN, which the comparisons with the edges remove.
        roots = _of_rank(x.a.ndim, points) - x.a / x.s
        roots = np.unique(roots[(roots > _of_rank(x.a.ndim, low)) & (roots < _of_rank(x.a.ndim, high))])
        edges = self.grid.edges
        roots = roots[(roots > edges[0]) & (roots < edges[-1])]
        if len(roots):  # some may already be edges, up to rounding
            roots = roots[np.append(True, np.diff(roots) > ulps * np.maximum(abs(roots[1:]), abs(roots[:-1])))]
            after = np.searchsorted(edges, roots)
            gap = np.minimum(roots - edges[after - 1], edges[after] - roots)
            roots = roots[gap > ulps * np.maximum(abs(roots), self.size(after - 1))]
        if len(roots):
            edges = np.sort(np.concatenate([edges, roots]))
            self.require_room(edges, math.prod(x.a.shape[1:]))
            self.grid = _Grid(edges)

    def size(self, pieces):
        """The magnitude of the edges of these pieces."""
        finite = np.where(np.isfinite(self.grid.edges), abs(self.grid.edges), 0.0)
        return np.maximum(finite[pieces], finite[pieces + 1])

    # -- arrays on a grid: an array keeps its grid until it is combined with an array on another grid

    def refined(self, x) -> Any:
        """The same function on the current grid."""
        if x.grid is self.grid:
            return x
        if x.grid is None:
            return _each(lambda v: np.broadcast_to(v, (len(self.grid), *v.shape[1:])), replace(x, grid=self.grid))
        # The grid only becomes finer, so each new piece lies in one old piece, in which its point falls.
        old = np.searchsorted(x.grid.edges, self.grid.points) - 1
        if isinstance(x, _Constant):
            return _Constant(self.grid, x.a[old])
        moved = (self.grid.points - x.grid.points[old]).reshape(-1, *(1,) * (x.a.ndim - 1))
        s = x.s[old]
        return _Affine(self.grid, x.a[old] + s * moved, s, x.e[old])

    def number(self, x) -> _Affine:
        """The same array as an affine function, with True as 1; an array independent of the input has one piece."""
        if isinstance(x, _Affine):
            return x
        a, grid = (x.a, x.grid) if _moves(x) else (np.asarray(x)[None], None)
        a = a.astype(np.float64)
        return _Affine(grid, a, np.zeros_like(a), np.zeros_like(a))

    def alike(self, *xs, finest=False) -> list[Any]:
        """The arrays on one grid (the ``finest``, or the grid that they share) and with one rank."""
        grids = {id(x.grid) for x in xs if _moves(x) and x.grid is not None}
        if finest or len(grids) > 1:
            xs = tuple(self.refined(x) if _moves(x) and x.grid is not None else x for x in xs)
        xs = [x if _moves(x) else _Constant(None, np.asarray(x)[None]) for x in xs]
        if not all(isinstance(x, _Constant) for x in xs):
            xs = [self.number(x) for x in xs]
        rank = max(x.a.ndim for x in xs)
        return [_each(partial(_of_rank, rank), x) if x.a.ndim < rank else x for x in xs]

    def rearrange(self, f, x, shape):
        return _each(f, x)

    def join(self, how, parts, axis, shape):
        # Arrays that do not move get an axis of pieces too, so that `axis` counts the same axes in both cases.
        f = partial(getattr(np, how), axis=axis)
        if not any(map(_moves, parts)):
            return jnp.asarray(f([np.asarray(x)[None] for x in parts])[0])
        parts = self.alike(*parts)
        grid = _grid_of(parts)
        full = [_each(lambda v: np.broadcast_to(v, (len(grid), *v.shape[1:])), x) for x in parts]
        if isinstance(full[0], _Constant):
            return _Constant(grid, f([x.a for x in full]))
        return _Affine(grid, *(f(arrays) for arrays in zip(*((x.a, x.s, x.e) for x in full), strict=True)))

    # -- operations

    def affine(self, step, *args):
        if step.name in _IN_NUMPY:
            return _IN_NUMPY[step.name](self, step.params, *args)
        if step.name in MOVES:
            [x], [shape] = args, shapes_of(step)
            places = np.arange(x.a[0].size).reshape(x.a.shape[1:])
            moved = MOVES[step.name](places, step.params, shape)  # where each entry comes from
            return _each(lambda v: v.reshape(len(v), -1)[:, moved], x)
        return self.by_derivative(step, args)

    def by_derivative(self, step: Step, args):
        """A primitive without a NumPy implementation: JAX applies it to values, and its derivative to slopes."""
        bilinear, reads = RULES[step.name] == "multiply", inputs_of([step.equation])
        given = {v: args[step.equation.invars.index(v)] for v in reads}
        moving = [v for v in reads if _moves(given[v])]
        # A jump has no derivative, and the product of two affine functions is not affine.
        if any(isinstance(given[v], _Constant) for v in moving) or (bilinear and len(moving) > 1):
            return None
        inputs: list[Any] = self.alike(*(given[v] for v in moving)) if len(moving) > 1 else [given[v] for v in moving]
        grid, n = inputs[0].grid, len(inputs[0].grid)
        function = piece(step.jaxpr, [step.equation], reads, step.equation.outvars)
        more = 2 ** math.ceil(math.log2(n)) - n  # few shapes, few compilations
        pad = lambda array: np.pad(array, [(0, more)] + [(0, 0)] * (array.ndim - 1))

        def derivative(of_fixed, a, s):
            known = {v: of_fixed(x) if bilinear and v not in moving else x for v, x in given.items()}
            f = lambda *xs: function(*({**known, **dict(zip(moving, xs, strict=True))}[v] for v in reads))
            return jax.jvp(f, a, s)

        def all_three(a, s, e):
            values, slopes = derivative(lambda w: w, a, s)
            _, own = derivative(abs, a, tuple(map(abs, s)))
            # Rounding errors of independent terms add up as squares. A sum of n terms itself adds about sqrt(n) times
            # their size; n is the primitive applied to ones.
            _, inherited = derivative(jnp.square, a, tuple(map(jnp.square, e)))
            _, terms = derivative(jnp.ones_like, a, tuple(map(jnp.ones_like, s)))
            parts = zip(inherited, terms, own, strict=True)
            return values, slopes, [jnp.sqrt(e) + jnp.sqrt(n) * s for e, n, s in parts]

        found = jax.jit(jax.vmap(all_three))(*(tuple(pad(getattr(x, of)) for x in inputs) for of in "ase"))
        return [_Affine(grid, *(np.array(v)[:n] for v in result)) for result in zip(*found, strict=True)]

    def multiply(self, step, x, y):
        if step.name == "mul":
            return _mul(self, x, y)
        if step.name == "dot_general" and not step.params["dimension_numbers"][1][0]:
            return _dot(self, step.params["dimension_numbers"][0], x, y)
        return self.by_derivative(step, (x, y))

    def divide(self, step, x, y):
        x, y = self.alike(self.number(x), y)
        if y.s.any():
            return None
        return _Affine(_grid_of([x, y]), x.a / y.a, x.s / y.a, x.e / abs(y.a))

    def power(self, step, x):
        x, exponent = self.number(x), step.params["y"]
        if exponent == 1:
            return x
        return None if x.s.any() else _Affine(x.grid, x.a**exponent, x.s, x.e)

    def convert(self, step, x):
        dtype = step.params["new_dtype"]
        if isinstance(x, _Constant) and dtype == np.dtype(bool):
            return x
        # A conversion to integers rounds, which is a step function, unless the values are constant on each piece.
        exact = isinstance(x, _Constant) or jnp.issubdtype(dtype, jnp.floating)
        return self.number(x) if exact else None

    def choose_larger(self, x, y, sign, shape):
        self.cut(_add(self, {}, x, y, -1))
        x, y = self.alike(self.number(x), y, finest=True)
        over = x.a >= y.a if sign > 0 else x.a <= y.a
        choose = lambda x, y: np.where(over, x, y)
        return _Affine(self.grid, choose(x.a, y.a), choose(x.s, y.s), choose(x.e, y.e))

    def signs(self, x) -> tuple[_Affine, np.ndarray]:
        """On the finest grid: ``x`` and the sign of each entry on each piece."""
        self.cut(x)
        x = self.refined(x)
        return x, np.sign(x.a)

    def absolute(self, step, x):
        x, sign = self.signs(self.number(x))
        return _Affine(x.grid, sign * x.a, np.where(x.a == 0, abs(x.s), sign * x.s), x.e)

    def sign(self, step, x):
        x, sign = self.signs(self.number(x))
        return self.number(_Constant(x.grid, sign))

    def compare(self, step, x, y):
        holds = getattr(operator, step.name)
        x, sign = self.signs(_add(self, {}, x, y, -1))
        if step.name in ("eq", "ne"):  # two lines that are equal at one point are not equal on a piece
            sign = np.where(x.s != 0, 1.0, sign)
        return _Constant(x.grid, holds(sign, 0))

    def logical(self, step, *args):
        function = getattr(np, f"logical_{step.name}")
        xs = self.alike(*args)
        return _Constant(_grid_of(xs), function(*(x.a for x in xs))) if isinstance(xs[0], _Constant) else None

    def select(self, step, which, *cases):
        if isinstance(which, _Affine):
            return None
        which, *_ = self.alike(which, finest=True)
        cases = self.alike(*cases, finest=True)
        index = _of_rank(cases[0].a.ndim, which.a.astype(np.int64))
        # Not np.choose, which takes at most 64 arrays.
        choose = lambda arrays: np.select([index == i for i in range(len(arrays))], arrays, arrays[0])
        full = lambda array: np.broadcast_to(array, (len(self.grid), *array.shape[1:]))
        chosen = lambda of: full(choose([getattr(x, of) for x in cases]))
        if isinstance(cases[0], _Constant):
            return _Constant(self.grid, chosen("a"))
        return _Affine(self.grid, *map(chosen, "ase"))


def _moves(x):
    return isinstance(x, _Affine | _Constant)


def _of_rank(rank, array):
    """``array``, (p, *shape), with axes of length 1 inserted after the first axis."""
    return array.reshape(array.shape[:1] + (1,) * (rank - array.ndim) + array.shape[1:])


def _each(f, x) -> Any:
    """The same rearrangement of values, slopes and errors."""
    return _Constant(x.grid, f(x.a)) if isinstance(x, _Constant) else _Affine(x.grid, f(x.a), f(x.s), f(x.e))


def _grid_of(xs) -> Any:
    return next(x.grid for x in xs if x.grid is not None)


# ---- NumPy implementations, which need no compilation for each number of pieces ----------------


def _mul(line, x, y):
    x, y = line.alike(line.number(x), y)
    if x.s.any() and y.s.any() and np.any((x.s != 0) & (y.s != 0)):
        return None
    s = x.s * y.a + x.a * y.s
    return _Affine(_grid_of([x, y]), x.a * y.a, s, x.e * abs(y.a) + y.e * abs(x.a))


def _dot(line, contracted, x, y):
    """The product of two arrays, summed over ``contracted`` axes of both."""
    if _moves(x) and _moves(y):
        return None
    over_x, over_y = contracted

    def dot(moving, fixed):
        """The product, with the axis of pieces first."""
        if _moves(x):
            return np.tensordot(moving, fixed, ([axis + 1 for axis in over_x], over_y))
        product = np.tensordot(fixed, moving, (over_x, [axis + 1 for axis in over_y]))
        return np.moveaxis(product, fixed.ndim - len(over_x), 0)

    moving, fixed = (x, y) if _moves(x) else (y, x)
    moving, fixed = line.number(moving), np.asarray(fixed, np.float64)
    terms = math.prod(moving.a.shape[axis + 1] for axis in (over_x if _moves(x) else over_y))
    e = np.sqrt(dot(moving.e**2, fixed**2)) + terms**0.5 * dot(abs(moving.s), abs(fixed))
    return _Affine(moving.grid, dot(moving.a, fixed), dot(moving.s, fixed), e)


def _add(line, params, x, y, sign=1) -> _Affine:
    x, y = line.alike(line.number(x), y)
    e = np.hypot(x.e, y.e) + np.maximum(abs(x.s), abs(y.s))
    return _Affine(_grid_of([x, y]), x.a + sign * y.a, x.s + sign * y.s, e)


def _reduce_sum(line, params, x):
    x = line.number(x)
    axes = tuple(axis + 1 for axis in params["axes"])
    terms = math.prod(x.a.shape[axis] for axis in axes)
    e = np.sqrt((x.e**2).sum(axes)) + terms**0.5 * abs(x.s).sum(axes)
    return _Affine(x.grid, x.a.sum(axes), x.s.sum(axes), e)


_IN_NUMPY: dict[str, Callable] = {
    "add": _add,
    "add_any": _add,
    "concatenate": lambda line, params, *xs: line.join("concatenate", xs, params["dimension"] + 1, None),
    "neg": lambda line, params, x: _mul(line, x, -1.0),
    "reduce_sum": _reduce_sum,
    "sub": partial(_add, sign=-1),
}
