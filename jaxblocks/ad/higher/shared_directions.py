"""Inputs of a function that can share one direction of differentiation, determined from its jaxpr.

In f(x) = sum_p g(x_p) no value before the sum depends on two particles. Entry 1 of every particle can then share a
direction: its derivative of a value is the derivative with respect to the one entry that the value depends on. So the
inputs are colored: inputs of one color share a direction. An array is *narrow* where each element depends on at most
one input of each color; other arrays, such as the sum, need a direction for each input.

In f(x) = sum_pq g(x_p - x_q) some element depends on each pair of particles, so no two of them have one color, but each
element depends on two particles only. Such an array is *sparse*: direction s of an element is the s-th of the inputs
that it depends on. An equation of sparse arrays first moves the derivatives of its operands to the places of the
inputs that its output depends on (`Alignment`); it exists for elementwise functions, sums, products of matrices and
functions that move elements.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr
from jaxtyping import Array

from jaxblocks.ad.programs.coloring import color_columns, number_of_colors
from jaxblocks.ad.programs.dependence import (
    RETYPES,
    RULES,
    SINGLE,
    Entry,
    Sets,
    anything,
    dependences,
    elementwise,
    move,
    over_axes,
)
from jaxblocks.ad.programs.jaxprs import Step, dtype_of, inputs_of, interpret, piece, shape_of
from jaxblocks.backend.varying import as_structs

__all__ = ["Alignment", "SharedDirections", "shared_directions"]


class Alignment(NamedTuple):
    """The dependences of the sparse output of an equation, and those that each operand takes before it.

    Attributes:
        operands: for each operand, the dependences of its elements; ``None`` for one that depends on no input.
        output: the dependences of the output.
    """

    operands: Sequence[np.ndarray | None]
    output: np.ndarray


class SharedDirections(NamedTuple):
    """The color of each input, and where they suffice.

    Attributes:
        colors: for each input, its direction.
        sets: the sets of inputs.
        narrow: the dependences of each narrow output of an equation, by the path of the equation.
        sparse: the alignment of each equation with a sparse output, by its path.
    """

    colors: np.ndarray
    sets: Sets
    narrow: dict[tuple[int, ...], list[np.ndarray | None]]
    sparse: dict[tuple[int, ...], Alignment]

    @property
    def count(self) -> int:
        """The number of directions."""
        return number_of_colors(self.colors)

    def owners(self, ids: np.ndarray) -> np.ndarray:
        """For each direction and element the input that it stands for, -1 for none; equal entries of an axis once."""
        owners = np.full((self.count, ids.size), -1, np.int32)
        elements, inputs = self.sets.members(ids.reshape(-1))
        # No element of a narrow array depends on two inputs of one color, so no entry is written twice.
        owners[self.colors[inputs], elements] = inputs
        return _compact(owners.reshape(len(owners), *ids.shape))

    def places(self, ids: np.ndarray) -> np.ndarray:
        """For each place and element of a sparse array the input, -1 for none; equal entries of an axis once."""
        elements, inputs = self.sets.members(ids.reshape(-1))
        lengths = self.sets.lengths[ids.reshape(-1)]
        owners = np.full((lengths.max(initial=0), ids.size), -1, np.int32)
        owners[np.arange(elements.size) - (np.cumsum(lengths) - lengths)[elements], elements] = inputs
        return _compact(owners.reshape(len(owners), *ids.shape))

    def align(
        self, jacobian: Array | np.ndarray, owners: np.ndarray, ids: np.ndarray, count: int
    ) -> Array | np.ndarray:
        """The derivatives of an array with some owners at the ``count`` places of the dependences ``ids``."""
        places, shape = self.places(ids), jacobian.shape[1:]
        if places.shape == owners.shape and (places == owners).all() and len(places) == count:
            return jacobian
        same = [(owners == place) & (place >= 0) for place in places]
        if sum(own.any() for each in same for own in each) > _MOST_SELECTIONS:
            which, found = (np.stack([read(each, axis=0) for each in same]) for read in (np.argmax, np.any))
            which = np.broadcast_to(which.astype(np.int32), (len(places), *shape))
            moved = jnp.where(found, jnp.take_along_axis(jnp.asarray(jacobian), which, axis=0), 0)
            return jnp.concatenate([moved, jnp.zeros((count - len(places), *shape), jacobian.dtype)])
        rows = []
        for each in same:
            row = None
            for own, derivative in zip(each, jacobian, strict=True):
                if own.any():
                    part = derivative if own.all() else jnp.where(own, derivative, jnp.zeros((), jacobian.dtype))
                    row = part if row is None else row + part
            rows.append(jnp.zeros(shape, jacobian.dtype) if row is None else row)
        # All operands of an equation have the same number of places.
        rows += [jnp.zeros(shape, jacobian.dtype)] * (count - len(rows))
        return jnp.stack(rows)

    def expand(self, jacobian: Array | np.ndarray, ids: np.ndarray, *, sparse: bool = False) -> Array:
        """The derivatives along every input, from those along the shared directions, or those of a sparse array."""
        jacobian, n = jnp.asarray(jacobian), self.colors.size
        if sparse:
            inputs = np.arange(n, dtype=np.int32).reshape(n, *(1,) * ids.ndim)
            parts = [
                jnp.where(jnp.asarray(own)[None] == inputs, derivative[None], jnp.zeros((), jacobian.dtype))
                for own, derivative in zip(self.places(ids), jacobian, strict=True)
            ]
            return functools.reduce(jnp.add, parts)
        owners = self.owners(ids)
        if self.count == 1 and ids.size == owners.size == n and (owners.reshape(-1) == np.arange(n)).all():
            return (jnp.eye(n, dtype=jacobian.dtype) * jacobian.reshape(1, n)).reshape(n, *ids.shape)
        inputs = jnp.arange(n, dtype=jnp.int32).reshape(n, *(1,) * ids.ndim)
        mine = jnp.broadcast_to(jnp.asarray(owners)[self.colors] == inputs, (n, *ids.shape))
        return jnp.where(mine, jacobian[self.colors], jnp.zeros((), jacobian.dtype))


def _compact(owners):
    """The same array with one entry along each axis of elements on which all entries are equal."""
    for axis in range(1, owners.ndim):
        first = owners.take([0], axis) if owners.shape[axis] else owners
        owners = first if (owners == first).all() else owners
    return owners


def shared_directions(closed: ClosedJaxpr, sizes: Sequence[int]) -> SharedDirections:
    """The coloring with the least work: all sets of inputs up to some size have different colors.

    Args:
        closed: the program; all its inputs are differentiated.
        sizes: the number of entries of each input.
    """
    n = sum(sizes)
    sets, found = Sets(n), {}
    starts = np.cumsum([0, *sizes[:-1]]) + SINGLE
    entries = [
        Entry(np.arange(start, start + size).reshape(shape_of(v)))
        for start, size, v in zip(starts, sizes, closed.jaxpr.invars, strict=True)
    ]

    def record(step, outs):
        found[step.path] = step, [out.ids for out in outs]
        return outs

    rule = lambda step: record(step, _dependences(step, sets))
    custom = {"custom_jvp_call": lambda step: record(step, _of_custom_jvp(step, sets))}
    interpret(closed, entries, rule, rules=custom, constant=_index)
    longest = lambda ids: int(sets.lengths[np.unique(ids)].max(initial=0))
    arrays = [(ids.size, longest(ids)) for _, outs in found.values() for ids in outs if ids is not None]

    def work(most):
        directions = number_of_colors(_color(sets, most))
        alone = lambda largest: 2 * largest if largest <= n // _SPARSE else n  # places are aligned, colors are not
        return sum(size * (directions if largest <= most else alone(largest)) for size, largest in arrays)

    # The candidates are the sizes of the sets that occur, beginning with the smallest.
    most = min(sorted({1, *(largest for _, largest in arrays if largest < n)})[:_MOST_SIZES], key=work)
    narrow, sparse = {}, {}
    for path, (step, outs) in found.items():
        narrow[path] = [None if ids is None or longest(ids) > most else ids for ids in outs]
        if len(outs) == 1 and outs[0] is not None and most < longest(outs[0]) <= n // _SPARSE:
            alignment = _alignment(step, outs[0])
            if alignment is not None:
                sparse[path] = alignment
    return SharedDirections(_color(sets, most), sets, narrow, sparse)


_MOST_SIZES = 8
_MOST_SELECTIONS = 64  # of one operand; with more, its derivatives are gathered, so that the program stays small
_SPARSE = 2  # an array of elements that depend on more than this part of the inputs has a direction for each input


def _alignment(step: Step, output: np.ndarray) -> Alignment | None:
    """The dependences that the operands of an equation take before it; ``None`` where they are unknown.

    All elements of an operand that enter the same element of the output have its dependences.
    """
    name, shape = step.name, output.shape
    moving = [entry.ids is not None for entry in step.operands]
    shapes = [shape_of(v) for v in step.equation.invars]
    fits = all(len(own) == len(shape) for own, moves in zip(shapes, moving, strict=True) if moves)
    if (RULES.get(name) is elementwise or name == "select_n") and fits:  # axes of length 1 are broadcast
        operands = [output if moves else None for moves in moving]
    elif RULES.get(name) is move and sum(moving) == 1:
        # By unknown indices, any element may be moved to any place.
        integer = [jnp.issubdtype(dtype_of(v), jnp.integer) for v in step.equation.invars]
        if any(i and entry.value is None for i, entry in zip(integer, step.operands, strict=True)):
            return None
        operands = [entry.ids for entry in step.operands]
    elif name == "concatenate":
        operands = [entry.ids for entry in step.operands]
    elif name.startswith("reduce_") and RULES.get(name) is over_axes:
        operands = [np.broadcast_to(np.expand_dims(output, tuple(step.params["axes"])), shapes[0])]
    elif name == "dot_general":
        operands = [_dependences_of_factor(step, output, i) if moves else None for i, moves in enumerate(moving)]
        if any(moves and ids is None for moves, ids in zip(moving, operands, strict=True)):
            return None
        left, right = operands
        # An array that is both factors has one Jacobian, which cannot have the dependences of both sides.
        if step.equation.invars[0] is step.equation.invars[1] and (left != right).any():  # pyright: ignore
            return None
    else:
        return None
    return Alignment(operands, output)


def _dependences_of_factor(step: Step, output: np.ndarray, side: int) -> np.ndarray | None:
    """For each element of a factor the dependences of the elements of the product that read it, if they are equal."""
    contracted, batch = step.params["dimension_numbers"]
    shapes = [shape_of(v) for v in step.equation.invars]
    free = [[axis for axis in range(len(shapes[i])) if axis not in (*contracted[i], *batch[i])] for i in (0, 1)]
    first = len(batch[0]) + (len(free[0]) if side else 0)  # the free axes of this factor in the product
    others = tuple(axis for axis in range(len(batch[0]), output.ndim) if not first <= axis < first + len(free[side]))
    if any((output != output.take([0], axis)).any() for axis in others if output.shape[axis]):
        return None
    own = output[tuple(0 if axis in others else slice(None) for axis in range(output.ndim))]  # (batch, free)
    order = [*batch[side], *free[side]]
    own = own.reshape(*own.shape, *(1,) * len(contracted[side]))
    own = own.transpose(np.argsort([*order, *contracted[side]]))
    return np.broadcast_to(own, shapes[side])


def _color(sets, most) -> np.ndarray:
    """Colors that differ within each set of at most ``most`` inputs."""
    [small] = np.nonzero((sets.lengths <= most) & (sets.lengths > 0))
    rows, cols = sets.members(small)
    return color_columns(rows, cols, (small.size, sets.n))


def _index(value) -> Entry:
    """A constant: indices are known by value, other constants are not read."""
    known = not isinstance(value, Tracer) and getattr(value, "dtype", None) is not None
    known = known and (jnp.issubdtype(value.dtype, jnp.integer) or value.dtype == bool)
    return Entry(value=value if known else None)


def _dependences(step: Step, sets: Sets) -> list[Entry]:
    if step.name in RETYPES:
        return step.operands
    with jax.ensure_compile_time_eval():  # indices are concrete even while f is traced
        if any(entry.ids is not None for entry in step.operands):
            loop = step.name in ("scan", "while", "cond")
            return anything(step, sets) if loop else dependences(step, sets)
        values = [entry.value for entry in step.operands]
        inexact = any(jnp.issubdtype(dtype_of(v), jnp.inexact) for v in step.equation.outvars)
        if inexact or step.equation.effects or any(value is None for value in values):
            return [Entry() for _ in step.equation.outvars]
        return [_index(value) for value in step.evaluate(values)]


def _of_custom_jvp(step: Step, sets: Sets) -> list[Entry]:
    """What the value depends on, and the derivative that the rule computes from the value's inputs."""
    if all(entry.ids is None for entry in step.operands):
        return [Entry() for _ in step.equation.outvars]
    values = step.interpret(step.body, step.operands)
    variables = inputs_of([step.equation])
    known = {v: entry for v, entry in zip(step.equation.invars, step.operands, strict=True) if v in variables}
    whole = piece(step.jaxpr, [step.equation], variables, step.equation.outvars)
    moving = [i for i, v in enumerate(variables) if known[v].ids is not None]

    def slope(xs, ts):
        def p(*some):
            inputs = list(xs)
            for i, x in zip(moving, some, strict=True):
                inputs[i] = x
            return whole(*inputs)

        return jax.jvp(p, [xs[i] for i in moving], ts)[1]

    shapes = as_structs([v.aval for v in variables])
    traced = jax.make_jaxpr(slope)(shapes, [shapes[i] for i in moving])
    entries = [*(known[v] for v in variables), *(known[variables[i]] for i in moving)]
    slopes = interpret(traced, entries, functools.partial(_dependences, sets=sets), constant=_index)
    # The rule may read inputs that the value does not depend on, and the reverse.
    both = [(a.ids, b.ids) for a, b in zip(values, slopes, strict=True)]
    return [Entry(a if b is None else b if a is None else sets.union(a, b)) for a, b in both]
