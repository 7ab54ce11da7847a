"""The tape of reverse mode: what each unit stores in the forward pass, and when the reverse pass releases it.

The entries are the residuals of ``jax.vjp``, read off its jaxpr: the units run in named scopes, which mark the
equations of both passes.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
from jax.extend.core import Literal

from jaxblocks.ad.page.programs import Program, Unit, Value, replay
from jaxblocks.ad.programs.jaxprs import bytes_of, shape_of

__all__ = ["Entry", "bytes_alive", "tape_of"]

_TAG = "jaxblocks_unit_"


class Entry(NamedTuple):
    """An array on the tape.

    Attributes:
        name: of the value, or of the primitive that computes it for the reverse pass, such as ``"cos"``.
        is_value: whether it is a value of the function; else it is computed for the reverse pass.
        shape: its shape.
        bytes: its size in bytes.
        made: the unit that makes it; -1 for an argument or a constant, which is in memory in any case.
        freed: the unit whose reversal reads it last.
    """

    name: str
    is_value: bool
    shape: tuple[int, ...]
    bytes: int
    made: int
    freed: int


def tape_of(program: Program, units: Sequence[Unit], *, checkpoint: bool = False) -> list[Entry]:
    """The tape of the derivatives with respect to the inputs; ``checkpoint`` checkpoints each unit."""

    def around(i, part):
        part = jax.checkpoint(part) if checkpoint else part

        def tagged(*arrays):
            with jax.named_scope(f"{_TAG}{i}"):
                return part(*arrays)

        return tagged

    run, trees = replay(program, units, around=around), []

    def forward(*arrays):
        outputs, pullback, made = jax.vjp(run, *arrays, has_aux=True)
        residuals, tree = jax.tree.flatten(pullback)
        trees.append(tree)
        return residuals, outputs, made

    shapes = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in program.inputs]
    closed, (residuals, outputs, _) = jax.make_jaxpr(forward, return_shape=True)(*shapes)
    # The pullback is a pytree of its residuals, so they are found without interpreting the program.
    reverse = jax.make_jaxpr(lambda residuals, outputs: trees[0].unflatten(residuals)(outputs))(residuals, outputs)
    kept, made = closed.jaxpr.outvars[: len(residuals)], closed.jaxpr.outvars[len(residuals) + len(outputs) :]
    last_reads = _last_reads(reverse.jaxpr, len(residuals), len(units))
    names = _names(closed.jaxpr, program, units, made)
    maker = {v: (_unit_of(equation), equation) for equation in closed.eqns for v in equation.outvars}
    entries: dict[Any, Entry] = {}
    for v, freed in zip(kept, last_reads, strict=True):
        if isinstance(v, Literal):  # a number in the program
            entries[len(entries)] = Entry(str(v.val), True, (), bytes_of(v), -1, freed)
            continue
        unit, equation = maker.get(v, (-1, None))
        name = names.get(v) or ("constant" if equation is None else equation.primitive.name)
        if v in entries:
            # One array may be several residuals; it is freed after the last of them is read, in the unit that is
            # reversed last.
            freed = min(freed, entries[v].freed)
        entries[v] = Entry(name, v in names or equation is None, shape_of(v), bytes_of(v), unit, freed)
    return list(entries.values())


def _unit_of(equation) -> int:
    """The unit of an equation; -1 for one outside all units."""
    found = re.search(rf"{_TAG}(\d+)", str(equation.source_info.name_stack))
    return int(found.group(1)) if found else -1


def _last_reads(jaxpr, n_residuals: int, n_units: int) -> list[int]:
    """For each residual the first unit of the forward order whose reversal reads it."""
    reads = dict.fromkeys(jaxpr.invars[:n_residuals], n_units)
    for equation in jaxpr.eqns:
        for v in equation.invars:
            if not isinstance(v, Literal) and v in reads:
                reads[v] = min(reads[v], max(_unit_of(equation), 0))
    return [reads[v] for v in jaxpr.invars[:n_residuals]]


def _names(jaxpr, program: Program, units: Sequence[Unit], made) -> dict[Any, str]:
    """The names of the variables that hold arguments and values of the program."""
    values: list[Value] = [value for unit in units for value in unit.makes]
    pairs = [*zip(jaxpr.invars, program.inputs, strict=True), *zip(made, values, strict=True)]
    return {v: value.name or "output" for v, value in pairs if not isinstance(v, Literal)}


def bytes_alive(entries: Sequence[Entry], n_units: int, recomputed: Sequence[int] | None = None) -> list[int]:
    """The bytes on the tape while each unit runs forward and then while each is reversed, without arguments.

    ``recomputed`` are the bytes that the reversal of each unit recomputes before it reads them.
    """
    own = [entry for entry in entries if entry.made >= 0]
    more = [0] * n_units if recomputed is None else recomputed
    forward = [sum(entry.bytes for entry in own if entry.made <= i) for i in range(n_units)]
    reverse = [sum(entry.bytes for entry in own if entry.freed <= i) + more[i] for i in range(n_units)]
    return forward + reverse[::-1]
