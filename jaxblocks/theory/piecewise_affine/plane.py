"""A net on a plane as a list of steps, each affine in (u, v) or piecewise constant, with its comparisons.

Calls are inlined, loops are unrolled and constants are evaluated. On a set where no comparison changes, each array is
one affine function of (u, v), given by its value and its slopes at a point; `evaluator` computes them at many points at
once.

    n     points
    u     entries of one array
"""

import itertools
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxblocks.ad.programs.jaxprs import Step
from jaxblocks.core.pairs import LayerLike
from jaxblocks.theory.piecewise_affine.interpreter import (
    Interpreter,
    bind_params,
    network_name,
    shapes_of,
    trace_network,
)

__all__ = ["AffineMaps", "Program", "evaluator", "program_on_plane"]

_BUDGET = 2**21  # numbers in one array


class _Slot(NamedTuple):
    """A value that depends on (u, v): its index, and whether it is affine; otherwise it is piecewise constant."""

    number: int
    affine: bool


class _Step(NamedTuple):
    """A step ``function(*args)``, which returns a list; ``sizes`` maps sizes of added terms to those of the sums."""

    function: Callable
    sizes: Callable | None
    args: tuple
    outs: tuple[_Slot, ...]


class Program(NamedTuple):
    """The result of `program_on_plane`.

    Attributes:
        steps: the steps in the order of evaluation.
        kinks: the slots whose entries change sign where a comparison changes.
        widths: the number of entries of each of these slots.
        widest: the number of entries of the largest array.
        output: the slot of the result.
        shape: the shape of the result.
    """

    steps: list[_Step]
    kinks: list[_Slot]
    widths: tuple[int, ...]
    widest: int
    output: _Slot
    shape: tuple[int, ...]


class _Plane(Interpreter):
    """The traversal that creates the list of steps."""

    def __init__(self, network):
        super().__init__(network)
        self.steps: list[_Step] = []
        self.kinks: list[_Slot] = []
        self.widths: tuple[int, ...] = ()
        self.widest = 2
        self.slots = itertools.count()

    def moves(self, x):
        return isinstance(x, _Slot)

    def is_affine(self, x):
        return isinstance(x, _Slot) and x.affine

    # -- steps

    def add(self, function, args, *shapes, affine=None, sizes=None) -> list[_Slot]:
        affine = any(map(self.is_affine, args)) if affine is None else affine
        outs = tuple(_Slot(next(self.slots), affine) for _ in shapes)
        self.steps.append(_Step(function, sizes, tuple(args), outs))
        self.widest = max(self.widest, *map(math.prod, shapes))
        return list(outs)

    def sum(self, function, args, shape) -> _Slot:
        """A step that moves entries, or adds terms of one sign."""
        return self.add(function, args, shape, sizes=function)[0]

    def kink(self, x, y, shape) -> None:
        """Record that the entries of x and y are compared."""
        if x is y or not (self.is_affine(x) or self.is_affine(y)) or not math.prod(shape):
            return
        # The sizes of both terms add, since the rounding error of a difference does not cancel.
        [difference] = self.add(lambda x, y: [x - y], (x, y), shape, sizes=lambda x, y: [x + y])
        self.kinks.append(difference)
        self.widths += (math.prod(shape),)

    def bind(self, step: Step, args, affine=None, chosen=False) -> list[_Slot]:
        """A step that applies the primitive in float64; ``chosen`` if it selects terms and does not add them."""
        # Parameters such as preferred_element_type would round back to float32.
        params = {key: _wide_dtype(value) for key, value in step.params.items()}
        bound = partial(step.equation.primitive.bind, **params)
        function = bound if step.equation.primitive.multiple_results else lambda *xs: [bound(*xs)]
        sizes = None if chosen else _SIZES.get(step.name, function)
        return self.add(function, args, *shapes_of(step), affine=affine, sizes=sizes)

    # -- operations

    def operate(self, step, args):
        args = [x if self.moves(x) else _widened(x) for x in args]
        if not any(map(self.is_affine, args)) and step.name not in ("cond", "while"):
            return self.bind(step, args)  # a function of piecewise constant arrays is piecewise constant
        return super().operate(step, args)

    def rearrange(self, f, x, shape):
        return self.sum(lambda v: [f(v)], [x], shape)

    def join(self, how, parts, axis, shape):
        return self.sum(lambda *xs: [getattr(jnp, how)(xs, axis)], parts, shape)

    def choose_larger(self, x, y, sign, shape):
        self.kink(x, y, shape)
        choose = jnp.maximum if sign > 0 else jnp.minimum
        return self.add(lambda x, y: [jnp.broadcast_to(choose(x, y), shape)], (x, y), shape)[0]

    def affine(self, step, *args):
        return self.bind(step, args)

    def multiply(self, step, x, y):
        # The product of two affine functions is not affine; `None` reports it.
        return None if self.is_affine(x) and self.is_affine(y) else self.bind(step, (x, y))

    def divide(self, step, x, y):
        return None if self.is_affine(y) else self.bind(step, (x, y))

    def power(self, step, x):
        return x if step.params["y"] == 1 else None

    def convert(self, step, x):
        return self.bind(step, (x,)) if jnp.issubdtype(step.params["new_dtype"], jnp.floating) else None

    def absolute(self, step, x):
        [shape] = shapes_of(step)
        self.kink(x, np.zeros(shape), shape)
        return self.bind(step, (x,), chosen=True)

    def sign(self, step, x):
        [shape] = shapes_of(step)
        self.kink(x, np.zeros(shape), shape)
        return self.bind(step, (x,), affine=False, chosen=True)

    def compare(self, step, x, y):
        self.kink(x, y, shapes_of(step)[0])
        return self.bind(step, (x, y), affine=False, chosen=True)

    def logical(self, step, *args):
        return None

    def select(self, step, which, *cases):
        return self.bind(step, (which, *cases), chosen=self.moves(which))


def program_on_plane(net: LayerLike, params, side: dict, origin, directions, *, hint: str = "") -> Program:
    """The steps of a net of the input ``origin + u * directions[0] + v * directions[1]``, (u, v) in [-1, 1]^2.

    ``hint`` is a note on the shape of the input, added to an error of the net.
    """
    closed = trace_network(bind_params(net, params, side), origin.shape, hint)
    shape = closed.out_avals[0].shape
    with jax.enable_x64(True):
        plane = _Plane(network_name(net))
        point = _Slot(next(plane.slots), affine=True)
        onto = lambda directions: lambda uv, origin: [origin + jnp.tensordot(uv, jnp.asarray(directions), 1)]
        [x] = plane.add(onto(directions), (point, origin), origin.shape, sizes=onto(abs(directions)))
        [y] = plane.run(closed, [x])
        if not plane.is_affine(y):  # piecewise constant, or constant: affine with slope 0
            y = plane.sum(lambda uv, y: [jnp.asarray(y, jnp.float64) + 0 * jnp.sum(uv)], (point, y), shape)
    return Program(plane.steps, plane.kinks, plane.widths, plane.widest, y, shape)


def _widened(x):
    return jnp.asarray(x, jnp.float64) if jnp.issubdtype(jnp.result_type(x), jnp.floating) else x


def _wide_dtype(value):
    """A parameter of a primitive, with a floating dtype replaced by float64."""
    is_dtype = isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic))
    return np.dtype(np.float64) if is_dtype and jnp.issubdtype(value, jnp.floating) else value


_SIZES = {"sub": lambda x, y: [x + y], "neg": lambda x: [x], "div": lambda x, y: [x / abs(y)]}


class AffineMaps(NamedTuple):
    """Maps at points: values (n, u), slopes (n, u, 2) and, for rounding errors, the sizes of added terms (n, u)."""

    values: np.ndarray
    slopes: np.ndarray
    sizes: np.ndarray


def _evaluate(program, point):
    """The output and the compared differences near one point: flat values, slopes and sizes."""
    values, slopes, sizes = {0: point}, {0: jnp.eye(2)}, {0: jnp.ones(2)}
    is_affine = lambda x: isinstance(x, _Slot) and x.affine
    for function, of_sizes, args, outs in program.steps:
        given = [values[x.number] if isinstance(x, _Slot) else x for x in args]
        # Piecewise constant values have slope 0 and no size.
        if not outs[0].affine:
            values.update((out.number, y) for out, y in zip(outs, function(*given), strict=True))
            continue
        moving = [i for i, x in enumerate(args) if is_affine(x)]

        def of_moving(*xs, function=function, given=given, moving=moving):
            filled = dict(enumerate(given)) | dict(zip(moving, xs, strict=True))
            return list(function(*filled.values()))

        push = lambda *dx, f=of_moving, x=tuple(given[i] for i in moving): jax.jvp(f, x, dx)
        ys, dys = jax.vmap(push, out_axes=(None, 0))(*(slopes[args[i].number] for i in moving))
        if of_sizes is None:
            results = [abs(y) + abs(dy).sum(0) for y, dy in zip(ys, dys, strict=True)]
        else:
            results = of_sizes(
                *(sizes[x.number] if is_affine(x) else _size(y) for x, y in zip(args, given, strict=True))
            )
        for out, y, dy, size in zip(outs, ys, dys, results, strict=True):
            values[out.number], slopes[out.number], sizes[out.number] = y, dy, size
    flat: Callable[[int], Any] = lambda s: (values[s].ravel(), slopes[s].reshape(2, -1).T, sizes[s].ravel())
    return [AffineMaps(*flat(slot.number)) for slot in (program.output, *program.kinks)]


def _size(x):
    return abs(x) if jnp.issubdtype(jnp.result_type(x), jnp.floating) else x


def evaluator(program: Program) -> Callable[[np.ndarray], Iterator[tuple[slice, Callable, list]]]:
    """The affine maps of a program at points of the plane, evaluated in batches of a limited array size.

    Returns:
        A function of points (n, 2). It yields the rows of each batch of points, a function that converts `AffineMaps`
        to NumPy arrays, and the maps: of the output, then of each kink.

    One compiled program is used for every comparison. The results of later steps are then unused, which takes less time
    than many compilations.
    """
    # The largest arrays of one point; batches are as large as the budget allows.
    numbers = max([program.widest, sum(program.widths), *(10 * n for n in program.widths)])
    most = 2 ** max(int(math.log2(_BUDGET / numbers)), 0)
    with jax.enable_x64(True):
        compiled = jax.jit(jax.vmap(partial(_evaluate, program)))

    def run(points):
        for low in range(0, len(points), most):
            part = points[low : low + most]
            n = len(part)
            padded = next((size for size in (64, 2048) if n <= size < most), most)  # few shapes, few compilations
            with jax.enable_x64(True):
                evaluated = compiled(np.concatenate([part, np.broadcast_to(part[:1], (padded - n, 2))]))
            yield slice(low, low + n), lambda f, n=n: AffineMaps(*(np.asarray(v)[:n] for v in f)), evaluated

    return run
