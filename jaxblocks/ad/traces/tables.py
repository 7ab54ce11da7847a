"""The tables of an evaluation trace: nodes, rows and their printed form."""

import dataclasses
import html
from typing import Any

from jaxblocks.ad.traces.printing import aligned, number_of, numbered, text

__all__ = ["TraceNode", "TraceRow", "TraceTable"]


@dataclasses.dataclass(frozen=True, eq=False)
class TraceNode:
    """A node of the computational graph: an input, a constant or the result of one operation.

    Attributes:
        name: the printed name, ``"v₁"``; constants are ``"c₁"``.
        kind: ``"input"``, ``"constant"`` or ``"operation"``.
        operation: the name of the primitive, or of a function with its own derivative rule (``"relu"``); for an
            input its name in the function, for a constant ``""``.
        parents: the names of the nodes that it is computed from; numbers in the program have none.
        level: its depth, 0 for inputs and constants, else one more than the deepest of its parents.
        value, tangent, adjoint: arrays of one shape; tangent and adjoint are ``None`` for nodes without derivatives
            (constants, integers, and nodes that depend only on these).

    >>> import jax.numpy as jnp
    >>> from jaxblocks.ad.traces import trace_table
    >>> [
    ...     (node.name, node.operation, node.parents)
    ...     for node in trace_table(lambda x: jnp.sin(x) * x, 2.0).nodes
    ... ]
    [('v₀', 'x', ()), ('v₁', 'sin', ('v₀',)), ('v₂', 'mul', ('v₁', 'v₀'))]
    """

    name: str
    kind: str
    operation: str
    parents: tuple[str, ...]
    level: int
    value: Any
    tangent: Any
    adjoint: Any


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class TraceRow:
    """One line of a trace: ``name = expression = ... = value``.

    Attributes:
        name: the left-hand side, ``"v₁"``, ``"v̇₁"`` or ``"v̄₁"``.
        kind: ``"input"``, ``"constant"``, ``"operation"`` or ``"output"``.
        node: the name of its node.
        expressions: right-hand sides as symbols; the last one in numbers, if all operands are scalars.
        value: an array; for an adjoint the sum so far.
        read_by: for a term of an adjoint, the name of the node whose operation adds it; else ``""``.

    >>> import jax.numpy as jnp
    >>> from jaxblocks.ad.traces import trace_table
    >>> trace_table(lambda x: jnp.log(x), 2.0).primal[1]
    v₁ = ln v₀ = ln 2 = 0.693
    """

    name: str
    kind: str
    node: str
    expressions: tuple[str, ...]
    value: Any
    read_by: str = ""

    def __repr__(self):
        parts = [self.name, *self.expressions, text(self.value)]
        return " = ".join(part for i, part in enumerate(parts) if i == 0 or part != parts[i - 1])


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class TraceTable:
    """The three traces of a function at a point, as `trace_table` returns them.

    It prints as text and in a notebook; `plot` draws the graph; ``table[k]`` is the node $v_k$.

    Attributes:
        primal, tangent, adjoint: rows in the order of computation. An operation adds to the adjoints of its operands
            in the order in which it reads them.
        nodes: of the computational graph, in the order of the primal trace.
        value: the value of the function.
        derivative: along the tangent, like ``value``.
        gradient: the result of the reverse pass, one for each argument, like the arguments.

    >>> from jaxblocks.ad.traces import trace_table
    >>> table = trace_table(lambda x1, x2: x1 * x2, 2.0, 5.0)
    >>> float(table.value), float(table.derivative), [float(g) for g in table.gradient]
    (10.0, 5.0, [5.0, 2.0])
    >>> table[1].operation
    'mul'
    """

    primal: tuple[TraceRow, ...]
    tangent: tuple[TraceRow, ...]
    adjoint: tuple[TraceRow, ...]
    nodes: tuple[TraceNode, ...]
    value: Any
    derivative: Any
    gradient: tuple

    def __getitem__(self, k: int) -> TraceNode:
        name = numbered("v", k)
        for node in self.nodes:
            if node.name == name:
                return node
        numbers = [number_of(node.name) for node in self.nodes if node.name.startswith("v")]
        raise IndexError(
            f"TraceTable expected an index from {min(numbers)} to {max(numbers)}, that of a variable v_k, got {k}."
        )

    def __repr__(self):
        return "\n\n".join(aligned(headings, lines) for headings, lines in self._sections())

    def _repr_html_(self) -> str:
        pieces = []
        for headings, lines in self._sections():
            rows = ["".join(f"<th>{html.escape(heading)}</th>" for heading in headings)]
            rows += ["".join(f"<td style='text-align: left'>{html.escape(c)}</td>" for c in line) for line in lines]
            pieces.append("<table>" + "".join(f"<tr>{row}</tr>" for row in rows) + "</table>")
        return "".join(pieces)

    def _sections(self):
        moving, tangents = {node.name for node in self.nodes if node.tangent is not None}, iter(self.tangent)
        # Rows without a tangent, those of constants, leave their place in the second column empty.
        forward = [(str(row), str(next(tangents)) if row.node in moving else "") for row in self.primal]
        return [
            (("forward primal trace", "forward tangent trace"), forward),
            (("reverse adjoint trace",), [(str(row),) for row in self.adjoint]),
        ]

    def plot(self, ax=None, *, step: int | None = None):
        """Draw the computational graph, from the inputs to the output by depth; returns the axes.

        Values are below the nodes, adjoints (red) above them.

        Args:
            ax: matplotlib axes; new ones by default.
            step: the number of rows shown, first of the forward pass and then of the reverse pass, from 0 to
                ``len(table.primal) + len(table.adjoint)``; all by default. One picture for each step
                shows both passes as dynamic programming: no value is computed twice.

        >>> import jax.numpy as jnp
        >>> from jaxblocks.ad.traces import trace_table
        >>> axes = trace_table(lambda x: jnp.sin(x) * x, 2.0).plot()
        >>> axes.get_title()
        'value and adjoint of every node'
        """
        from jaxblocks.ad.traces.drawing import draw

        return draw(self, ax, step)
