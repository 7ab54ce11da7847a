"""The computational graph of a function as data: its units, their values, tangents and adjoints, and the tape."""

import collections
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxblocks.ad.counting import count_flops
from jaxblocks.ad.page.programs import Program, Unit, each_operation, grouped, of_trace, read_program, replay
from jaxblocks.ad.page.tapes import Entry, bytes_alive, tape_of
from jaxblocks.ad.traces import TraceTable, trace_table
from jaxblocks.ad.traces.drawing import node_places, node_sign
from jaxblocks.ad.traces.printing import text
from jaxblocks.ad.traces.tracing import input_labels, slots_of
from jaxblocks.checks import describe

__all__ = ["graph_of", "kinds_of", "trace_of"]

MOST_TRACED = 120  # operations of a function whose trace is shown line by line


def graph_of(f: Callable, xs: tuple) -> tuple[list[dict[str, Any]], TraceTable | None, Program]:
    """The graph of ``f(*xs)`` in one or two levels of detail: operations, if there are few, and layers.

    Returns:
        The levels, the trace if the operations are shown, and the program.
    """
    closed = jax.make_jaxpr(f)(*xs)
    program = read_program(closed, input_labels(closed, xs))
    concrete = not any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(xs))
    units = grouped(program)
    traced = concrete and 0 < len(program.ops) <= MOST_TRACED
    levels, table = [], None
    if traced:
        level, table = trace_of(f, xs)
        levels.append(level)
    if units and (not traced or any(unit.scope for unit in units)):
        levels.append(_layers(program, units, _start(xs) if concrete else None))
    return levels, table, program


def _start(xs: tuple) -> tuple[list, list]:
    """The arrays of the arguments, and the tangents of `trace_table`: 1 for the first argument, 0 for the others."""
    tangents = [jax.tree.map(jnp.zeros_like if i else jnp.ones_like, x) for i, x in enumerate(xs)]
    return jax.tree.leaves(xs), jax.tree.leaves(tangents)


# ---- operations ---------------------------------------------------------------------------------


def trace_of(f: Callable, xs: tuple) -> tuple[dict[str, Any], TraceTable]:
    """The trace of ``f`` at ``xs`` as data, with the tape, and the trace itself."""
    shapes = jax.eval_shape(f, *xs)
    ones = jax.tree.map(lambda y: jnp.ones(y.shape, y.dtype), shapes)
    table = trace_table(f, *xs, cotangent=ones)
    inputs, _, operations, outputs = slots_of(jax.make_jaxpr(f)(*xs), xs)
    program = of_trace(operations, inputs, outputs)
    units = each_operation(program)
    number = {node.name: i for i, node in enumerate(table.nodes)}
    unit_of = {value.name: i for i, unit in enumerate(units) for op in unit.ops for value in op.results}
    tangents = {row.node: row for row in table.tangent if row.kind != "output"}
    place = node_places(table.nodes)
    nodes = [
        {
            "name": node.name,
            "kind": node.kind,
            "label": node_sign(node),
            "operation": node.operation,
            "scope": units[unit_of[node.name]].scope if node.name in unit_of else "",
            "shape": describe(node.value),
            "parents": [number[parent] for parent in dict.fromkeys(node.parents)],
            "value": text(node.value),
            "tangent": None if node.tangent is None else text(node.tangent),
            "adjoint": None if node.adjoint is None else text(node.adjoint),
            "x": place[node.name][0],
            "y": place[node.name][1],
        }
        for node in table.nodes
    ]
    forward = [
        {
            "node": number.get(row.node, -1),
            "unit": unit_of.get(row.node, -1) if row.kind == "operation" else -1,
            "primal": str(row),
            "tangent": str(tangents[row.node]) if row.node in tangents and row.kind != "output" else "",
        }
        for row in table.primal
    ]
    reverse = [
        {
            "node": number.get(row.node, -1),
            "unit": unit_of.get(row.read_by, -1),
            "adjoint": str(row),
            "value": text(row.value),
        }
        for row in table.adjoint
    ]
    counted = [count_flops(lambda *xs, run=unit.ops[0].run: run(*xs), *_shapes_of(unit)).flops for unit in units]
    level = {"kind": "operations", "nodes": nodes, "forward": forward, "reverse": reverse, "units": len(units)}
    return level | {"operations": counted, "tapes": _tapes(program, units)}, table


def _shapes_of(unit: Unit) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(v.shape, v.dtype) for op in unit.ops for v in op.operands]


# ---- layers -------------------------------------------------------------------------------------


def _layers(program: Program, units: list[Unit], point: tuple[list, list] | None) -> dict[str, Any]:
    """The units as data; ``point`` holds arrays and tangents of the inputs, ``None`` if only shapes are known."""
    main = [_main(unit) for unit in units]
    passes = _passes(program, units, point, main) if point is not None else [(None, None, None)] * len(units)
    home = {value: i for i, unit in enumerate(units) for value in unit.makes}
    parents = [sorted({home[value] for value in unit.reads if value in home}) for unit in units]
    depth: list[int] = []
    for above in parents:
        depth.append(1 + max((depth[i] for i in above), default=-1))
    kinds = kinds_of(program)
    nodes = []
    for i, unit in enumerate(units):
        value, tangent, adjoint = passes[i]
        names = [op.name for op in unit.ops]
        nodes.append(
            {
                "name": unit.scope or _listed(names, 3),
                "kind": kinds(unit.scope),
                "operations": _listed(names, 8),
                "equations": len(names),
                "flops": _flops(program, unit),
                "shape": "" if main[i] is None else describe(_struct(unit.makes[main[i]])),
                "arguments": [value.name for value in unit.reads if value in program.inputs],
                "parents": parents[i],
                "value": value,
                "tangent": tangent,
                "adjoint": adjoint,
                "depth": depth[i],
                "row": depth[:i].count(depth[i]),
            }
        )
    return {"kind": "layers", "nodes": nodes, "units": len(units), "tapes": _tapes(program, units)}


def kinds_of(program: Program) -> Callable[[str], str]:
    """From a scope to the kind of its layer, such as ``"Dense"``; ``""`` where it is not known."""
    return lambda scope: program.kinds.get(scope, "")


def _listed(names: Sequence[str], most: int) -> str:
    counted = collections.Counter(names)
    words = [name if n == 1 else f"{n} {name}" for name, n in counted.items()]
    return ", ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")


def _flops(program: Program, unit: Unit) -> int:
    alone = Program(unit.ops, unit.reads, unit.makes, {})
    run = replay(alone, [unit])
    return count_flops(lambda *xs: run(*xs)[0], *map(_struct, unit.reads)).flops


def _struct(value) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(value.shape, value.dtype)


def _main(unit: Unit) -> int | None:
    """The place of the largest floating-point array that a unit makes."""
    floats = [i for i, value in enumerate(unit.makes) if jnp.issubdtype(value.dtype, jnp.floating)]
    return max(floats, key=lambda i: int(np.prod(unit.makes[i].shape)), default=None)


def _passes(program: Program, units: list[Unit], point: tuple[list, list], main: list[int | None]) -> list[tuple]:
    """The value, tangent and adjoint of the main array of each unit as text, by one jvp and one vjp."""
    arrays, tangents = point

    def pick(made):
        return [None if k is None else values[k] for values, k in zip(made, main, strict=True)]

    run = replay(program, units)
    values, moved = jax.jvp(lambda *xs: pick(run(*xs)[1]), tuple(arrays), tuple(tangents))

    def tapped(taps):
        def around(i, part):
            def added(*xs):
                return [y + taps[i] if k == main[i] else y for k, y in enumerate(part(*xs))]

            return added

        return replay(program, units, around=around)(*arrays)[0]

    outputs, pullback = jax.vjp(tapped, [None if value is None else jnp.zeros_like(value) for value in values])
    [adjoints] = pullback([jnp.ones_like(y) for y in outputs])
    return [
        tuple(None if array is None else text(array) for array in triple)
        for triple in zip(values, moved, adjoints, strict=True)
    ]


# ---- tapes --------------------------------------------------------------------------------------


def _tapes(program: Program, units: Sequence[Unit]) -> list[dict[str, Any]]:
    """The tape as JAX keeps it, and with a checkpoint around each unit."""
    plain = tape_of(program, units)
    found = [_tape("everything", plain, bytes_alive(plain, len(units)))]
    if any(len(unit.ops) > 1 for unit in units):
        stored = tape_of(program, units, checkpoint=True)
        recomputed = [sum(e.bytes for e in plain if e.made == e.freed == i) for i in range(len(units))]
        found.append(_tape("checkpoints", stored, bytes_alive(stored, len(units), recomputed)))
    return found


def _tape(name: str, entries: Sequence[Entry], alive: list[int]) -> dict[str, Any]:
    rows = [
        {
            "name": entry.name,
            "isValue": entry.is_value,
            "shape": list(entry.shape),
            "bytes": entry.bytes,
            "made": entry.made,
            "freed": entry.freed,
        }
        for entry in entries
    ]
    numbers = sum(int(np.prod(entry.shape)) for entry in entries)
    return {"name": name, "entries": rows, "alive": alive, "peak": max(alive, default=0), "numbers": numbers}
