"""A function as a list of operations, grouped into units that are run, checkpointed and drawn as one.

The operations are the equations of the jaxpr, with calls opened and short scans unrolled, so that every iteration of a
`jaxblocks.Repeat` or of a recurrent net is a unit of its own. Calls with their own derivative rule and checkpointed
calls are one operation, so that derivatives of the list are those of the function.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.extend.core import ClosedJaxpr

from jaxblocks.ad.programs.jaxprs import (
    Step,
    all_equations,
    body_of_call,
    dtype_of,
    inputs_of,
    interpret,
    piece,
    scope_of,
    shape_of,
    unroll_scan,
)
from jaxblocks.ad.traces.passes import Operation, Slot, needed

__all__ = [
    "Op",
    "Program",
    "Unit",
    "Value",
    "each_operation",
    "grouped",
    "of_trace",
    "part_of",
    "read_program",
    "replay",
]

MOST_UNITS = 64  # of the units that `grouped` makes; more cannot be told apart on a page
MOST_UNROLLED = 12_000  # operations of a scan that is unrolled, all iterations together
_CHECKPOINTS = ("checkpoint", "remat", "remat2")


@dataclasses.dataclass(frozen=True, eq=False)
class Value:
    """An array of a program; values are compared by identity.

    Attributes:
        shape, dtype: its shape and dtype.
        name: of an argument, or of a value of a trace; else ``""``.
        constant: its array, where it does not depend on the arguments.
    """

    shape: tuple[int, ...]
    dtype: Any
    name: str = ""
    constant: Any = None


class Op(NamedTuple):
    """One operation.

    Attributes:
        name: of the primitive, or of a function with its own derivative rule.
        scope: the path of the named scopes around it, with the numbers of the iterations of unrolled scans, as in
            ``"blocks/[3]/attention"``.
        run: from the operands to the list of the results.
        operands, outs: its values.
    """

    name: str
    scope: str
    run: Callable[..., list]
    operands: list[Value]
    outs: list[Value]


class Program(NamedTuple):
    """A function as operations.

    Attributes:
        ops: the operations that the outputs need, in the order of execution.
        inputs, outputs: the values of the arguments and of the results.
        kinds: the kind of the layer of each scope, such as ``"Dense"``, where combinators have noted it; for layers in
            an unrolled scan under the path with the number of the iteration and under the path without it.
    """

    ops: list[Op]
    inputs: list[Value]
    outputs: list[Value]
    kinds: dict[str, str]


class Unit(NamedTuple):
    """Operations that follow each other.

    Attributes:
        scope: the named scope that they share; ``""`` outside all scopes.
        ops: the operations.
        reads: the values that they read and do not compute, constants excluded.
        makes: the values that other units or the outputs read.
    """

    scope: str
    ops: list[Op]
    reads: list[Value]
    makes: list[Value]


# ---- reading ----------------------------------------------------------------------------------


def read_program(closed: ClosedJaxpr, names: Sequence[str]) -> Program:
    """The operations of a jaxpr; ``names`` are those of its inputs."""
    reader = _Reader()
    inputs = [Value(shape_of(v), dtype_of(v), name) for v, name in zip(closed.jaxpr.invars, names, strict=True)]
    outputs = interpret(
        closed,
        inputs,
        reader.operation,
        rules={"scan": reader.scan, "name": reader.mark},
        constant=lambda value: Value(jnp.shape(value), jnp.result_type(value), constant=value),
        opens=lambda step: not step.name.startswith("custom_") and step.name not in _CHECKPOINTS,
    )
    return Program(needed(reader.ops, outputs), inputs, outputs, reader.kinds)


class _Reader:
    """The rules of `read_program`, and what they collect."""

    def __init__(self):
        self.ops: list[Op] = []
        self.kinds: dict[str, str] = {}

    def scope(self, step: Step | None, iterations: bool = True) -> str:
        """The path of the named scopes around a step, by default with the numbers of iterations."""
        if step is None:
            return ""
        iteration = f"[{step.iteration}]" if iterations and step.iteration is not None else ""
        return "/".join(filter(None, (self.scope(step.around, iterations), scope_of(step.equation), iteration)))

    def operation(self, step: Step) -> list[Value]:
        """The rule of an operation."""
        equation = step.equation
        inputs = inputs_of([equation])
        places = [equation.invars.index(v) for v in inputs]
        run = piece(step.jaxpr, [equation], inputs, equation.outvars)
        body = body_of_call(equation)
        name = step.name if body is None or step.name in _CHECKPOINTS else body.jaxpr.debug_info.func_name
        return self.add(name, self.scope(step), run, [step.operands[i] for i in places], equation.outvars)

    def add(self, name, scope, run, operands, variables) -> list[Value]:
        """Append an operation; its results."""
        results = [Value(shape_of(v), dtype_of(v)) for v in variables]
        self.ops.append(Op(name, scope, run, operands, results))
        return results

    def mark(self, step: Step) -> list[Value]:
        """The rule of ``checkpoint_name``, with which combinators note the kinds of their children."""
        label, dot, kind = step.params["name"].partition(".")
        for scope in (self.scope(step), self.scope(step, iterations=False)):
            if dot and scope and (not label or label == scope.rpartition("/")[2]):
                self.kinds.setdefault(scope, kind)
        return list(step.operands)

    def scan(self, step: Step) -> list[Value]:
        """The rule of a scan: unrolled where that is not too long."""
        scope = self.scope(step)
        if not 0 < step.params["length"] * len(list(all_equations(step.params["jaxpr"].eqns))) <= MOST_UNROLLED:
            return self.operation(step)

        def take(stack, i, variable):
            inside = self.scope(dataclasses.replace(step, iteration=i))
            entry = lambda stack: [lax.index_in_dim(stack, i, keepdims=False)]
            return self.add("slice", inside, entry, [stack], [variable])[0]

        def stack(entries, variable):
            return self.add("stack", scope, lambda *ys: [jnp.stack(ys)], entries, [variable])[0]

        return unroll_scan(step, take, stack)


def of_trace(operations: Sequence[Operation], inputs: Sequence[Slot], outputs: Sequence[Slot]) -> Program:
    """The operations of a trace (`jaxblocks.ad.trace_table`) as a program, in their order and with their names."""
    values: dict[Slot, Value] = {}

    def value(slot: Slot) -> Value:
        """The value of an input or a constant at its first use, and of any slot after that."""
        if slot not in values:
            constant = None if slot in inputs else slot.value
            values[slot] = Value(jnp.shape(slot.value), jnp.result_type(slot.value), slot.name, constant)
        return values[slot]

    ops = []
    for operation in operations:
        equation = operation.equation
        reads = inputs_of([equation])
        operands = [value(operation.operands[equation.invars.index(v)]) for v in reads]
        for slot, v in zip(operation.outs, equation.outvars, strict=True):
            values[slot] = Value(shape_of(v), dtype_of(v), slot.name)
        run = piece(operation.jaxpr, [equation], reads, equation.outvars)
        ops.append(Op(operation.outs[0].operation, operation.scope, run, operands, [values[s] for s in operation.outs]))
    return Program(ops, [value(slot) for slot in inputs], [value(slot) for slot in outputs], {})


# ---- units --------------------------------------------------------------------------------------


def each_operation(program: Program) -> list[Unit]:
    """Every operation as a unit."""
    return _units(program, [[op] for op in program.ops])


def grouped(program: Program) -> list[Unit]:
    """Units by named scope, as deep as at most `MOST_UNITS` allow; without scopes, runs of operations."""
    if not program.ops:
        return []
    deepest = max(op.scope.count("/") + 1 for op in program.ops)
    runs = [_runs(program.ops, depth) for depth in range(1, deepest + 1)]
    few = [each for each in runs if len(each) <= MOST_UNITS]
    best = few[-1] if few else runs[0]
    if len(best) > 2 * MOST_UNITS or not any(op.scope for op in program.ops):
        size = -(-len(program.ops) // MOST_UNITS)
        best = [program.ops[i : i + size] for i in range(0, len(program.ops), size)]
    return _units(program, best)


def _runs(ops: list[Op], depth: int) -> list[list[Op]]:
    def scope(op: Op) -> str:
        return "/".join(op.scope.split("/")[:depth])

    return [list(run) for _, run in itertools.groupby(ops, scope)]


def _units(program: Program, runs: list[list[Op]]) -> list[Unit]:
    run_of = {value: i for i, run in enumerate(runs) for op in run for value in op.outs}
    outside = {v for i, run in enumerate(runs) for op in run for v in op.operands if run_of.get(v, i) != i}
    outside |= set(program.outputs)
    units = []
    for run in runs:
        made = {value for op in run for value in op.outs}
        reads = dict.fromkeys(v for op in run for v in op.operands if v not in made and v.constant is None)
        makes = [value for op in run for value in op.outs if value in outside]
        units.append(Unit(_common([op.scope for op in run]), run, list(reads), makes))
    return units


def _common(scopes: Sequence[str]) -> str:
    """The longest path at the beginning of all scopes."""
    first, *others = (scope.split("/") for scope in scopes)
    n = len(first)
    for other in others:
        n = next((i for i, (a, b) in enumerate(zip(first, other, strict=False)) if a != b), min(n, len(other)))
        first = first[:n]
    return "/".join(first)


def replay(
    program: Program, units: Sequence[Unit], *, around: Callable[[int, Callable], Callable] = lambda i, part: part
) -> Callable[..., tuple[list, list[list]]]:
    """The program as a function of its inputs that runs the units: its outputs, and the arrays that each unit makes.

    ``around(i, part)`` is run instead of unit i, the function ``part`` of the arrays that it reads.
    """

    def run(*arrays):
        known = dict(zip(program.inputs, arrays, strict=True))
        made = []
        for i, unit in enumerate(units):
            results = around(i, part_of(unit))(*(known[v] for v in unit.reads))
            known |= zip(unit.makes, results, strict=True)
            made.append(results)
        return [v.constant if v.constant is not None else known[v] for v in program.outputs], made

    return run


def part_of(unit: Unit) -> Callable[..., list]:
    """A unit as a function from the arrays of ``reads`` to those of ``makes``."""

    def part(*arrays):
        known = dict(zip(unit.reads, arrays, strict=True))
        for op in unit.ops:
            operands = [v.constant if v.constant is not None else known[v] for v in op.operands]
            known |= zip(op.outs, op.run(*operands), strict=True)
        return [known[v] for v in unit.makes]

    return part
