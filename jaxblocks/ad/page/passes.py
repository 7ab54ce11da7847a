"""The forward and the reverse pass over units: values and tangents from the inputs, adjoints from the outputs."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxblocks.ad.counting.counts import count_flops
from jaxblocks.ad.page.programs import Program, Unit, Value, part_of

__all__ = ["Part", "parts_of", "run_passes", "struct_of"]


class Part(NamedTuple):
    """A unit as compiled functions; units with the same jaxpr, such as the blocks of a transformer, share them.

    Attributes:
        flops: its operations.
        push: from the arrays that it reads and their tangents to those that it makes and their tangents.
        pull: from the arrays that it reads and the cotangents of those that it makes to the cotangents of the former.
    """

    flops: int
    push: Callable[[list, list], tuple[list, list]]
    pull: Callable[[list, list], list]


def struct_of(value: Value) -> jax.ShapeDtypeStruct:
    """The shape and dtype of a value."""
    return jax.ShapeDtypeStruct(value.shape, value.dtype)


def parts_of(units: Sequence[Unit]) -> list[Part]:
    """The parts of units; nothing is compiled before its first call."""
    known: dict[Any, Part] = {}
    parts = []
    for unit in units:
        closed = jax.make_jaxpr(part_of(unit))(*map(struct_of, unit.reads))
        # Equal units, such as the layers of a deep net, share one compiled program; constants do not appear in the
        # text.
        same = str(closed.jaxpr), tuple(map(id, closed.consts))
        if same not in known:
            known[same] = _part(unit)
        parts.append(known[same])
    return parts


def _part(unit: Unit) -> Part:
    run = part_of(unit)
    into = [i for i, value in enumerate(unit.reads) if _moves(value)]
    out = [i for i, value in enumerate(unit.makes) if _moves(value)]

    def of_floats(arrays):
        def part(*floats):
            filled = list(arrays)
            for i, x in zip(into, floats, strict=True):
                filled[i] = x
            made = run(*filled)
            # The integers among the results are auxiliary, since they have no tangents.
            return [made[i] for i in out], made

        return part

    def push(arrays, tangents):
        floats = tuple(arrays[i] for i in into)
        _, moved, made = jax.jvp(of_floats(arrays), floats, tuple(tangents[i] for i in into), has_aux=True)
        return made, _scattered(moved, out, len(unit.makes))

    def pull(arrays, cotangents):
        _, pullback, _ = jax.vjp(of_floats(arrays), *(arrays[i] for i in into), has_aux=True)
        return _scattered(pullback([cotangents[i] for i in out]), into, len(unit.reads))

    flops = count_flops(lambda *arrays: run(*arrays), *map(struct_of, unit.reads)).flops
    return Part(flops, jax.jit(push), jax.jit(pull))


def _moves(value: Value) -> bool:
    return jnp.issubdtype(value.dtype, jnp.inexact)


def _scattered(found: Sequence, places: list[int], length: int) -> list:
    """A list with the entries of ``found`` at their places, and None elsewhere."""
    return [found[places.index(i)] if i in places else None for i in range(length)]


def run_passes(
    program: Program, units: Sequence[Unit], parts: Sequence[Part], arrays: Sequence, tangents: Sequence
) -> dict[Value, tuple[Any, Any, Any]]:
    """The value, tangent and adjoint of every value between units; the adjoints of the outputs begin with ones."""
    values = dict(zip(program.inputs, arrays, strict=True))
    moved = dict(zip(program.inputs, tangents, strict=True))
    for unit, part in zip(units, parts, strict=True):
        made, pushed = part.push([values[v] for v in unit.reads], [moved[v] for v in unit.reads])
        values |= zip(unit.makes, made, strict=True)
        moved |= zip(unit.makes, pushed, strict=True)
    adjoints: dict[Value, Any] = {}

    def add(value: Value, more) -> None:
        if more is not None:
            adjoints[value] = more if value not in adjoints else adjoints[value] + more

    for value in program.outputs:
        add(value, jnp.ones(value.shape, value.dtype) if _moves(value) else None)
    for unit, part in reversed(list(zip(units, parts, strict=True))):
        # A unit on which no output depends has no adjoints.
        if any(value in adjoints for value in unit.makes):
            bars = [adjoints.get(v, jnp.zeros(v.shape, v.dtype) if _moves(v) else None) for v in unit.makes]
            for value, more in zip(unit.reads, part.pull([values[v] for v in unit.reads], bars), strict=True):
                add(value, more)
    return {value: (array, moved.get(value), adjoints.get(value)) for value, array in values.items()}
