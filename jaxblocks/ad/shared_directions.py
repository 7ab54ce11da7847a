"""Inputs of a function that can share one direction of differentiation, determined from its jaxpr.

In f(x) = sum_p g(x_p) no value before the sum depends on two particles. Entry 1 of every particle can then share a
direction: its derivative of a value is the derivative with respect to the one entry that the value depends on. So the
inputs are colored: inputs of one color share a direction. An array is *narrow* where each element depends on at most
one input of each color; other arrays, such as the sum, need a direction for each input.
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

from jaxblocks.ad.coloring import color_columns, number_of_colors
from jaxblocks.ad.dependence import SINGLE, Entry, Sets, anything, dependences
from jaxblocks.ad.jaxprs import Step, dtype_of, inputs_of, interpret, piece, shape_of

__all__ = ["SharedDirections", "shared_directions"]


class SharedDirections(NamedTuple):
    """The color of each input, and where they suffice.

    Attributes:
        colors: for each input, its direction.
        sets: the sets of inputs.
        narrow: the dependences of each narrow output of an equation, by the path of the equation.
    """

    colors: np.ndarray
    sets: Sets
    narrow: dict[tuple[int, ...], list[np.ndarray | None]]

    @property
    def count(self) -> int:
        """The number of directions."""
        return number_of_colors(self.colors)

    def owners(self, ids: np.ndarray) -> np.ndarray:
        """For each direction and element the input that it stands for, -1 for none; equal entries of an axis once."""
        owners = np.full((self.count, ids.size), -1, np.int32)
        elements, inputs = self.sets.members(ids.reshape(-1))
        owners[self.colors[inputs], elements] = inputs
        owners = owners.reshape(-1, *ids.shape)
        for axis in range(1, owners.ndim):
            first = owners.take([0], axis) if owners.shape[axis] else owners
            owners = first if (owners == first).all() else owners
        return owners

    def expand(self, jacobian: Array, ids: np.ndarray) -> Array:
        """The derivatives along every input, from those along the shared directions."""
        owners, n = self.owners(ids), self.colors.size
        if self.count == 1 and ids.size == owners.size == n and (owners.reshape(-1) == np.arange(n)).all():
            return (jnp.eye(n, dtype=jacobian.dtype) * jacobian.reshape(1, n)).reshape(n, *ids.shape)
        inputs = jnp.arange(n, dtype=jnp.int32).reshape(n, *(1,) * ids.ndim)
        mine = jnp.broadcast_to(jnp.asarray(owners)[self.colors] == inputs, (n, *ids.shape))
        return jnp.where(mine, jacobian[self.colors], jnp.zeros((), jacobian.dtype))


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
        found[step.path] = [out.ids for out in outs]
        return outs

    rule = lambda step: record(step, _dependences(step, sets))
    custom = {"custom_jvp_call": lambda step: record(step, _of_custom_jvp(step, sets))}
    with jax.ensure_compile_time_eval():  # indices are concrete even while f is traced
        interpret(closed, entries, rule, rules=custom, constant=_index)
    arrays = [
        (ids.size, int(sets.lengths[np.unique(ids)].max(initial=0)))
        for outs in found.values()
        for ids in outs
        if ids is not None
    ]

    def work(most):
        directions = number_of_colors(_color(sets, most))
        return sum(size * (directions if largest <= most else n) for size, largest in arrays)

    most = min(sorted({1, *(largest for _, largest in arrays if largest < n)})[:_MOST_SIZES], key=work)
    narrow = {
        path: [None if ids is None or sets.lengths[np.unique(ids)].max(initial=0) > most else ids for ids in outs]
        for path, outs in found.items()
    }
    return SharedDirections(_color(sets, most), sets, narrow)


_MOST_SIZES = 8


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
    if all(entry.ids is None for entry in step.operands):
        values = [entry.value for entry in step.operands]
        inexact = any(jnp.issubdtype(dtype_of(v), jnp.inexact) for v in step.equation.outvars)
        if inexact or step.equation.effects or any(value is None for value in values):
            return [Entry() for _ in step.equation.outvars]
        return [_index(value) for value in step.evaluate(values)]
    if step.name in ("scan", "while", "cond"):
        return anything(step, sets)
    return dependences(step, sets)


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

    shapes = [jax.ShapeDtypeStruct(shape_of(v), dtype_of(v)) for v in variables]
    traced = jax.make_jaxpr(slope)(shapes, [shapes[i] for i in moving])
    entries = [*(known[v] for v in variables), *(known[variables[i]] for i in moving)]
    slopes = interpret(traced, entries, functools.partial(_dependences, sets=sets), constant=_index)
    both = [(a.ids, b.ids) for a, b in zip(values, slopes, strict=True)]
    return [Entry(a if b is None else b if a is None else sets.union(a, b)) for a, b in both]
