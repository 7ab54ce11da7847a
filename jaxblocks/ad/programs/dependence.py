"""The inputs that each output of a program depends on, determined from its jaxpr.

Each element of an array is mapped to the set of inputs that it depends on. The constants of the program (a
finite-difference matrix, a mask, indices) are known by value, and their zeros remove dependences.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr

from jaxblocks.ad.programs.coloring import distinct
from jaxblocks.ad.programs.jaxprs import Step, as_closed, dtype_of, interpret, shape_of, size_of, unroll_scan

__all__ = [
    "EMPTY",
    "MOVES",
    "RETYPES",
    "RULES",
    "SINGLE",
    "Entry",
    "Sets",
    "anything",
    "dependences",
    "elementwise",
    "follow",
    "ids_of",
    "move",
    "over_axes",
]


# ---- sets of inputs -----------------------------------------------------------------------

# The ids of predefined sets: the empty set, the full set, and from SINGLE on the sets of one input each.
EMPTY, _FULL, SINGLE = 0, 1, 2


class Sets:
    """Sets of the numbers 0 ... n - 1, each with an id; an array of ids gives the dependences of an array's elements.

    Args:
        n: the number of inputs.
    """

    def __init__(self, n: int):
        """Create the empty set, the full set, and one set for each number."""
        self.n = n
        self.lengths = np.concatenate([[0, n], np.ones(n, np.int64)])
        self.starts = np.concatenate([[0, 0], np.arange(n)])
        self.indices, self.used = np.arange(n, dtype=np.int32), n

    def members(self, ids) -> tuple[np.ndarray, np.ndarray]:
        """For every member of every set, the index of the set in ``ids`` and the member."""
        lengths = self.lengths[ids]
        owners = np.repeat(np.arange(ids.size), lengths)
        first = np.cumsum(lengths) - lengths
        places = np.arange(owners.size) + np.repeat(self.starts[ids] - first, lengths)
        return owners, self.indices[places].astype(np.int64)

    def join(self, owners, ids, count) -> np.ndarray:
        """The ids of ``count`` unions: set ``ids[k]`` is part of the union ``owners[k]``."""
        out = np.full(count, EMPTY)
        # One integer for each pair of a union and a part, whose duplicates one sort removes.
        owners, ids = np.divmod(distinct(owners * self.lengths.size + ids), self.lengths.size)
        out[owners] = ids  # correct where a union has one part
        out[owners[ids == _FULL]] = _FULL
        keep = (ids != EMPTY) & (out[owners] != _FULL)
        owners, ids = owners[keep], ids[keep]
        out[owners] = ids
        # A union of one part has the id of the part; only unions of several parts are new sets.
        several = np.bincount(owners, minlength=count)[owners] > 1
        new, places = np.unique(owners[several], return_inverse=True)
        if new.size:
            pairs, members = self.members(ids[several])
            union, members = np.divmod(distinct(places[pairs] * self.n + members), self.n)
            lengths = np.bincount(union, minlength=new.size)
            # The full set has a single id, by which it is recognized without its members.
            out[new] = np.where(lengths == self.n, _FULL, self.lengths.size + np.arange(new.size))
            self._append(lengths, members)
        return out

    def _append(self, lengths, members):
        needed = self.used + members.size
        if needed > self.indices.size:
            # The capacity at least doubles, so that all calls together take linear time.
            self.indices = np.concatenate([self.indices[: self.used], np.empty(needed, np.int32)])
        self.indices[self.used : needed] = members
        self.starts = np.concatenate([self.starts, self.used + np.cumsum(lengths) - lengths])
        self.lengths = np.concatenate([self.lengths, lengths])
        self.used = needed

    def union(self, a, b) -> np.ndarray:
        """The unions of two arrays of ids, element by element."""
        out = np.where(a == EMPTY, b, a)
        different = (a != b) & (a != EMPTY) & (b != EMPTY)
        if different.any():
            size = self.lengths.size
            # Each pair of ids is joined once, however many elements have it.
            pairs, places = np.unique(a[different] * size + b[different], return_inverse=True)
            owners = np.arange(pairs.size)
            joined = self.join(np.tile(owners, 2), np.concatenate(np.divmod(pairs, size)), pairs.size)
            out[different] = joined[places.reshape(-1)]
        return out

    def along(self, ids, axes) -> np.ndarray:
        """The unions over some axes, as for a sum over them."""
        rest = [axis for axis in range(ids.ndim) if axis not in axes]
        moved = ids.transpose(*rest, *axes)
        shape = moved.shape[: len(rest)]
        count = math.prod(shape)
        flat = moved.reshape(count, math.prod(moved.shape[len(rest) :]))
        return self.join(np.repeat(np.arange(count), flat.shape[1]), flat.reshape(-1), count).reshape(shape)


# ---- the interpretation -----------------------------------------------------------------------

RETYPES = ("pcast", "pvary")  # primitives that change the type inside of shard_map, not the value


class Entry(NamedTuple):
    """The dependences and the value of an array.

    Attributes:
        ids: for each element, the set of inputs that it depends on; ``None`` if no element depends on inputs.
        value: its value; ``None`` if it is unknown.
    """

    ids: Any = None
    value: Any = None


def follow(closed: ClosedJaxpr, entries: Sequence[Entry], sets: Sets) -> list[Entry]:
    """The entries of the outputs of a jaxpr, from those of its inputs."""
    return interpret(
        closed,
        entries,
        functools.partial(_rule, sets=sets),
        constant=_constant,
        opens=lambda step: any(entry.ids is not None or entry.value is not None for entry in step.operands),
    )


def ids_of(entry: Entry, shape: Sequence[int]) -> np.ndarray:
    """The sets of each element of an array."""
    return np.full(shape, EMPTY) if entry.ids is None else np.asarray(entry.ids)


def _rule(step: Step, sets: Sets) -> list[Entry]:
    if step.name in RETYPES:
        return step.operands
    if all(entry.ids is None for entry in step.operands):
        return _evaluate(step)
    return dependences(step, sets)


def dependences(step: Step, sets: Sets) -> list[Entry]:
    """The outputs of an equation of which some input depends on inputs of the program."""
    ids = RULES[step.name](step, sets) if step.name in RULES else None
    return anything(step, sets) if ids is None else _entries(step, ids)


def anything(step: Step, sets: Sets) -> list[Entry]:
    """The outputs of a primitive without a rule: each depends on whatever some input depends on."""
    ids = np.unique(np.concatenate([entry.ids.reshape(-1) for entry in step.operands if entry.ids is not None]))
    [whole] = sets.join(np.zeros(ids.size, np.int64), ids, 1)
    return _entries(step, [np.full(getattr(v.aval, "shape", ()), whole) for v in step.equation.outvars])


def _entries(step, ids) -> list[Entry]:
    return [
        Entry(each if jnp.issubdtype(dtype_of(v), jnp.inexact) else None)
        for each, v in zip(ids, step.equation.outvars, strict=True)
    ]


def _constant(value) -> Entry:
    random = jnp.issubdtype(getattr(value, "dtype", bool), jax.dtypes.prng_key)  # only f itself may use a key
    return Entry(value=None if random or isinstance(value, Tracer) else value)


def _evaluate(step: Step) -> list[Entry]:
    """The outputs of an equation whose inputs are all known."""
    values = [entry.value for entry in step.operands]
    if step.equation.effects or any(value is None for value in values):
        return [Entry() for _ in step.equation.outvars]
    return [_constant(value) for value in step.evaluate(values)]


# ---- rules: step, sets -> the ids of each output, or None for the fallback -----------------------
# For sparsity they are applied to t -> J t, which is linear: no factor of t depends on t, and exp(t) does not occur.


def elementwise(step: Step, sets: Sets) -> list[np.ndarray]:
    """The rule of functions whose elements depend on the elements of the same index."""
    shape, name = shape_of(step.equation.outvars[0]), step.name
    parts = []
    for i, entry in enumerate(step.operands):
        if entry.ids is not None:
            ids = np.broadcast_to(entry.ids, shape)
            if name == "mul" and step.operands[1 - i].value is not None:
                ids = np.where(np.broadcast_to(step.operands[1 - i].value, shape) == 0, EMPTY, ids)
            parts.append(ids)
    return [functools.reduce(sets.union, parts)]


def _select(step, sets):
    shape = shape_of(step.equation.outvars[0])
    cases = [ids_of(entry, shape_of(v)) for entry, v in zip(step.operands[1:], step.equation.invars[1:], strict=True)]
    if step.operands[0].value is None:
        return [functools.reduce(sets.union, cases)]
    which = np.broadcast_to(np.asarray(step.operands[0].value).astype(int), shape)
    return [np.select([which == i for i in range(len(cases))], cases)]


def move(step: Step, sets: Sets) -> list[np.ndarray] | None:
    """Move the ids as the primitive moves numbers: by NumPy, or by the primitive itself applied to the ids."""
    shape, params, name = shape_of(step.equation.outvars[0]), step.params, step.name
    if name in MOVES:
        return [MOVES[name](step.operands[0].ids, params, shape)]
    operands = []
    for entry, variable in zip(step.operands, step.equation.invars, strict=True):
        if jnp.issubdtype(dtype_of(variable), jnp.inexact):
            operands.append(jnp.asarray(ids_of(entry, shape_of(variable)), jnp.int32))
        elif entry.value is None:
            return None
        else:
            operands.append(jnp.asarray(entry.value))
    moved = step.equation.primitive.bind(*operands, **params)
    moved = moved if step.equation.primitive.multiple_results else [moved]
    # Out of bounds: below zero. Where there are no axes, NumPy returns a number.
    return [np.asarray(np.maximum(np.asarray(ids).astype(np.int64), EMPTY)) for ids in moved]


def _broadcast(ids, params, shape):
    axes = params["broadcast_dimensions"]
    ids = ids.reshape([ids.shape[axes.index(axis)] if axis in axes else 1 for axis in range(len(shape))])
    return np.broadcast_to(ids, shape)


def _cut(ids, params, shape):
    steps = params["strides"] or (1,) * ids.ndim
    return ids[tuple(map(slice, params["start_indices"], params["limit_indices"], steps))]


def _reshape(ids, params, shape):
    order = params.get("dimensions")  # the axes in the order in which they are read
    return (ids if order is None else ids.transpose(order)).reshape(shape)


# Primitives that move entries, as functions of a NumPy array, the parameters and the shape of the output.
MOVES: dict[str, Callable] = {
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "rev": lambda ids, params, shape: np.flip(ids, params["dimensions"]),
    "slice": _cut,
    "squeeze": lambda ids, params, shape: ids.reshape(shape),
    "transpose": lambda ids, params, shape: ids.transpose(params["permutation"]),
}


def _concatenate(step, sets):
    parts = [ids_of(entry, shape_of(v)) for entry, v in zip(step.operands, step.equation.invars, strict=True)]
    return [np.concatenate(parts, axis=step.params["dimension"])]


def _scatter(step, sets):
    """Find the position of each update by the transpose, a gather, of the array of positions."""
    (operand, indices, updates), params = step.operands, step.params
    size = size_of(step.equation.outvars[0])
    if indices.value is None or size > 2**24:  # float32 holds integers up to here exactly
        return None
    shape = shape_of(step.equation.invars[2])
    into = functools.partial(
        lax.scatter_add,
        jnp.zeros(shape_of(step.equation.outvars[0]), jnp.float32),
        jnp.asarray(indices.value),
        dimension_numbers=params["dimension_numbers"],
        indices_are_sorted=params["indices_are_sorted"],
        unique_indices=params["unique_indices"],
        mode=params["mode"],
    )
    # Positions count from 1, so that 0 marks an update that is out of bounds.
    numbers = jnp.arange(1, size + 1, dtype=jnp.float32).reshape(shape_of(step.equation.outvars[0]))
    [places] = jax.linear_transpose(into, jax.ShapeDtypeStruct(shape, jnp.float32))(numbers)
    places = np.asarray(places).astype(np.int64).reshape(-1) - 1
    old = ids_of(operand, shape_of(step.equation.invars[0])).reshape(-1).copy()
    new, inside = ids_of(updates, shape_of(step.equation.invars[2])).reshape(-1), places >= 0  # outside: dropped
    if step.name == "scatter":
        old[places[inside]] = EMPTY
    owners = np.concatenate([np.arange(size), places[inside]])
    return [sets.join(owners, np.concatenate([old, new[inside]]), size).reshape(shape_of(step.equation.outvars[0]))]


def _scale(step, sets):
    """scatter-mul: factors at some positions."""
    return [step.operands[0].ids] if step.operands[2].ids is None else None


def over_axes(step: Step, sets: Sets) -> list[np.ndarray]:
    """The rule of sums, and of other functions that combine all elements along some axes."""
    return [sets.along(step.operands[0].ids, tuple(step.params["axes"]))]


def _cumulative(step, sets):
    lines = np.moveaxis(step.operands[0].ids, step.params["axis"], 0)
    lines = lines[::-1] if step.params["reverse"] else lines
    sums = np.stack(list(itertools.accumulate(lines, sets.union))) if len(lines) else lines
    return [np.moveaxis(sums[::-1] if step.params["reverse"] else sums, 0, step.params["axis"])]


def _dot_general(step, sets):
    """A sum over the contracted axes: over the nonzeros of a known matrix, otherwise over all entries."""
    (contracted, batch) = step.params["dimension_numbers"]
    side = 0 if step.operands[0].ids is not None else 1
    if step.operands[1 - side].ids is not None:  # both depend on inputs
        each = [
            dataclasses.replace(step, operands=pair)
            for pair in ([step.operands[0], Entry()], [Entry(), step.operands[1]])
        ]
        return [sets.union(*(_dot_general(one, sets)[0] for one in each))]

    def arranged(array, i) -> np.ndarray:  # (batch, free, contracted)
        free = [axis for axis in range(array.ndim) if axis not in (*batch[i], *contracted[i])]
        sizes = [math.prod(array.shape[axis] for axis in axes) for axes in (batch[i], free, contracted[i])]
        return array.transpose(*batch[i], *free, *contracted[i]).reshape(sizes)

    ids = arranged(step.operands[side].ids, side)
    other = step.operands[1 - side].value
    shape = shape_of(step.equation.invars[1 - side])
    matrix = arranged(np.ones(shape, bool) if other is None else np.asarray(other) != 0, 1 - side)
    b, frees = len(ids), (matrix.shape[1], ids.shape[1])
    if matrix.all():
        out = np.broadcast_to(sets.along(ids, (2,))[:, None, :], (b, *frees))
    else:
        batches, places, sums = np.nonzero(matrix)
        owners = (batches * frees[0] + places)[:, None] * frees[1] + np.arange(frees[1])[None, :]
        found = ids[batches, :, sums]  # (nonzeros, free)
        out = sets.join(owners.reshape(-1), found.reshape(-1), b * math.prod(frees)).reshape(b, *frees)
    out = out if side == 1 else out.transpose(0, 2, 1)
    return [out.reshape(shape_of(step.equation.outvars[0]))]


def _windows(ids, sizes, strides, padding, holes, spread) -> list[np.ndarray]:
    """For each tap of a window the ids that it reads at each position; padding and holes are empty sets."""
    config = [(low, high, hole - 1) for (low, high), hole in zip(padding, holes, strict=True)]
    ids = np.asarray(lax.pad(jnp.asarray(ids, jnp.int32), jnp.int32(EMPTY), config)).astype(np.int64)
    seen = []
    for tap in itertools.product(*map(range, sizes)):
        cut = []
        for place, size, length, stride, gap in zip(tap, sizes, ids.shape, strides, spread, strict=True):
            count = max(0, (length - (size - 1) * gap - 1) // stride + 1)
            cut.append(slice(place * gap, place * gap + count * stride, stride))
        whole = tuple(slice(s.start, min(s.stop, length), s.step) for s, length in zip(cut, ids.shape, strict=True))
        seen.append(ids[whole])
    return seen


def _pool(step, sets):
    params = step.params
    seen = _windows(  # select_and_gather_add has no derivative by its second operand, which selects
        ids_of(step.operands[0], shape_of(step.equation.invars[0])),
        params["window_dimensions"],
        params["window_strides"],
        params["padding"],
        params["base_dilation"],
        params["window_dilation"],
    )
    return [sets.along(np.stack(seen), (0,))]


def _convolution(step, sets):
    params = step.params
    numbers, groups = params["dimension_numbers"], params["feature_group_count"]
    if step.operands[1].ids is not None or params["batch_group_count"] != 1:
        return None
    ids = step.operands[0].ids.transpose(numbers.lhs_spec)  # (batch, channels, *space)
    batch, channels, *space = ids.shape
    kernel = (
        np.ones(shape_of(step.equation.invars[1]))
        if step.operands[1].value is None
        else np.asarray(step.operands[1].value)
    )
    kernel = kernel.transpose(numbers.rhs_spec)  # (out, in / groups, *window)
    sizes = kernel.shape[2:]
    spacewise = _windows(
        ids.reshape(batch * channels, *space),
        (1, *sizes),
        (1, *params["window_strides"]),
        ((0, 0), *params["padding"]),
        (1, *params["lhs_dilation"]),
        (1, *params["rhs_dilation"]),
    )
    read = kernel.any(axis=(0, 1)).reshape(-1)  # a tap that is zero in all channels reads nothing
    spacewise = [np.where(reads, seen, EMPTY) for seen, reads in zip(spacewise, read, strict=True)]
    seen = np.stack(spacewise).reshape(len(read), batch, groups, channels // groups, *spacewise[0].shape[1:])
    out = sets.along(seen, (0, 3))  # (batch, groups, *space)
    out = np.repeat(out, kernel.shape[0] // groups, axis=1)
    return [out.transpose(np.argsort(numbers.out_spec))]


def _scan(step, sets):
    """Execute a scan iteration by iteration, so that counters, and the slices that they index, are known."""
    body = as_closed(step.params["jaxpr"])
    if step.params["length"] * len(body.jaxpr.eqns) > _MOST_STEPS:
        return None

    def take(entry, i, variable):
        return Entry(*(None if part is None else part[i] for part in entry))

    def stack(entries, variable):
        shape = shape_of(variable)
        return Entry(np.stack([ids_of(entry, shape[1:]) for entry in entries]) if entries else np.full(shape, EMPTY))

    outputs = unroll_scan(step, take, stack)
    return [ids_of(entry, shape_of(v)) for entry, v in zip(outputs, step.equation.outvars, strict=True)]


_MOST_STEPS = 50_000  # a few seconds


def _cond(step, sets):
    index, *operands = step.operands
    branches = [as_closed(branch) for branch in step.params["branches"]]
    if index.value is not None:
        # lax.switch clamps its index.
        branches = [branches[int(np.clip(index.value, 0, len(branches) - 1))]]
    shapes = [shape_of(v) for v in step.equation.outvars]
    each = [map(ids_of, step.interpret(branch, operands), shapes) for branch in branches]
    return [functools.reduce(sets.union, ids) for ids in zip(*each, strict=True)]


RULES: dict[str, Callable] = {
    "conv_general_dilated": _convolution,
    "concatenate": _concatenate,
    "cond": _cond,
    "cumsum": _cumulative,
    "dot_general": _dot_general,
    "reduce_sum": over_axes,
    "reduce_window_sum": _pool,
    "scan": _scan,
    "scatter": _scatter,
    "scatter-add": _scatter,
    "scatter-mul": _scale,
    "scatter-sub": _scatter,
    "select_and_gather_add": _pool,
    "select_n": _select,
}
RULES |= dict.fromkeys(
    "add add_any conj convert_element_type copy copy_p div imag mul neg real reduce_precision sub".split(), elementwise
)
RULES |= dict.fromkeys(  # nonlinear functions
    """abs acos acosh asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil clamp cos cosh digamma erf erf_inv
    erfc exp exp2 expm1 floor integer_pow is_finite lgamma log log1p logistic max min nextafter pow rem round rsqrt sign
    sin sinh sqrt square tan tanh""".split(),
    elementwise,
)
RULES |= dict.fromkeys("reduce_max reduce_min reduce_prod".split(), over_axes)
RULES |= dict.fromkeys("cumlogsumexp cummax cummin cumprod".split(), _cumulative)
RULES |= dict.fromkeys(
    "dynamic_slice dynamic_update_slice gather pad split stack tile unstack".split() + list(MOVES),
    move,
)
