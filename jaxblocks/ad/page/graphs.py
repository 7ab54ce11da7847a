"""The computational graph of a function as data: its units, their values, tangents and adjoints, and the tape."""

import collections
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxblocks.ad.page.passes import parts_of, run_passes, struct_of
from jaxblocks.ad.page.programs import Program, Unit, Value, each_operation, grouped, of_trace, read_program
from jaxblocks.ad.page.tapes import Entry, bytes_alive, tape_of
from jaxblocks.ad.traces import TraceTable, trace_table
from jaxblocks.ad.traces.drawing import node_places, node_sign
from jaxblocks.ad.traces.printing import text
from jaxblocks.ad.traces.tracing import input_labels, slots_of
from jaxblocks.checks.errors import describe
from jaxblocks.core.children import named_outputs

__all__ = ["graph_of"]

MOST_TRACED = 120  # operations of a function whose trace is shown line by line


def graph_of(f: Callable, xs: tuple) -> tuple[list[dict[str, Any]], TraceTable | None, Program]:
    """The graph of ``f(*xs)`` in one or two levels of detail: operations, if there are few, and layers.

    Returns:
        The levels, the trace if the operations are shown, and the program.
    """
    with named_outputs():  # the kinds of layers
        closed = jax.make_jaxpr(f)(*xs)
    program = read_program(closed, input_labels(closed, xs))
    concrete = not any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(xs))
    # A unit is one node of the page at the level of layers: consecutive operations of one named scope.
    units = grouped(program)
    traced = concrete and 0 < len(program.ops) <= MOST_TRACED
    levels, table = [], None
    if traced:
        level, table = _traced(f, xs)
        levels.append(level)
    # The level of layers adds nothing to that of operations unless some operation has a scope.
    if units and (not traced or any(unit.scope for unit in units)):
        levels.append(_layers(program, units, _start(xs) if concrete else None))
    return levels, table, program


def _start(xs: tuple) -> tuple[list, list]:
    """The arrays of the arguments, and the tangents of `trace_table`: 1 for the first argument, 0 for the others."""
    tangents = [jax.tree.map(jnp.zeros_like if i else jnp.ones_like, x) for i, x in enumerate(xs)]
    return jax.tree.leaves(xs), jax.tree.leaves(tangents)


def _traced(f: Callable, xs: tuple) -> tuple[dict[str, Any], TraceTable]:
    """The trace of ``f`` at ``xs`` as data, with the tape, and the trace itself."""
    shapes = jax.eval_shape(f, *xs)
    ones = jax.tree.map(lambda y: jnp.ones(y.shape, y.dtype), shapes)
    # Cotangents of ones, so that an adjoint is the derivative of the sum of the outputs.
    table = trace_table(f, *xs, cotangent=ones)
    inputs, _, operations, outputs = slots_of(jax.make_jaxpr(f)(*xs), xs)
    program = of_trace(operations, inputs, outputs)
    units = each_operation(program)
    # The page is JSON, which refers to nodes and units by their numbers, not by the names of Python objects.
    number = {node.name: i for i, node in enumerate(table.nodes)}
    unit_of = {value.name: i for i, unit in enumerate(units) for op in unit.ops for value in op.outs}
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
            # A node that is read twice (x * x) is drawn with one edge.
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
            # -1 stands for a row without a node or a unit of its own.
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
    level = {"kind": "operations", "nodes": nodes, "forward": forward, "reverse": reverse, "units": len(units)}
    return level | {"tapes": _tapes(program, units)}, table


def _layers(program: Program, units: list[Unit], point: tuple[list, list] | None) -> dict[str, Any]:
    """The units as data; ``point`` holds arrays and tangents of the inputs, ``None`` if only shapes are known."""
    main = [_largest(unit) for unit in units]
    parts = parts_of(units)
    passes = run_passes(program, units, parts, *point) if point is not None else {}
    unit_of = {value: i for i, unit in enumerate(units) for value in unit.makes}
    parents = [sorted({unit_of[value] for value in unit.reads if value in unit_of}) for unit in units]
    nodes, inputs = [], set(program.inputs)
    # A unit makes several arrays; its largest one stands for it, as the activation of a layer.
    for i, unit in enumerate(units):
        shown = main[i]
        # No arrays are computed for shapes alone, or for a unit without floating-point outputs.
        triple = passes.get(shown, (None, None, None)) if shown is not None else (None, None, None)
        value, tangent, adjoint = (None if array is None else text(array) for array in triple)
        names = [op.name for op in unit.ops]
        nodes.append(
            {
                "name": unit.scope or _listed(names, 3),
                "kind": program.kinds.get(unit.scope, ""),
                "operations": _listed(names, 8),
                "equations": len(names),
                "flops": parts[i].flops,
                "shape": "" if shown is None else describe(struct_of(shown)),
                "arguments": [read.name for read in unit.reads if read in inputs],
                "parents": parents[i],
                "value": value,
                "tangent": tangent,
                "adjoint": adjoint,
            }
        )
    return {"kind": "layers", "nodes": nodes, "units": len(units), "tapes": _tapes(program, units)}


def _listed(names: Sequence[str], most: int) -> str:
    counted = collections.Counter(names)
    words = [name if n == 1 else f"{n} {name}" for name, n in counted.items()]
    return ", ".join(words[:most]) + (f", {len(words) - most} more" if len(words) > most else "")


def _largest(unit: Unit) -> Value | None:
    """The largest floating-point array that a unit makes."""
    floats = [value for value in unit.makes if jnp.issubdtype(value.dtype, jnp.floating)]
    return max(floats, key=lambda value: int(np.prod(value.shape)), default=None)


def _tapes(program: Program, units: Sequence[Unit]) -> list[dict[str, Any]]:
    """The tape as JAX keeps it, and with a checkpoint around each unit."""
    plain = tape_of(program, units)
    found = [_tape("everything", plain, bytes_alive(plain, len(units)))]
    if any(len(unit.ops) > 1 for unit in units):
        stored = tape_of(program, units, checkpoint=True)
        # Entries that one unit makes and frees are not stored between the passes; its reversal recomputes them.
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
