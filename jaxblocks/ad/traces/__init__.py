"""Evaluation traces: the computation of a derivative, line by line, as symbols and numbers.

Read ``tracing`` first. ``passes`` has the three passes, ``rows`` and ``tables`` what they print, ``symbols`` and
``printing`` the text, and ``drawing`` the graph.

A function is a list of elementary operations, its Wengert list. There are three passes:

    v_k     the forward primal trace: each value from the ones before it
    v_k'    the forward tangent trace: the derivative of v_k along one direction of the inputs
    dy/dv_k the reverse adjoint trace: from the output back, each operation adds to the adjoints of its operands

The inputs are numbered up to 0, the operations from 1, as in surveys. The operations are those of the jaxpr, ordered by
depth: first those that depend on inputs only, then those that depend on these, and so on.

Tangents are printed with a dot, adjoints with a bar; ``⊙`` is the entrywise product, ``@`` the matrix
product (a vector is a column on its right and a row on its left), ``[a > b]`` is 1 if a > b and
else 0, and ``∂v₂/∂v₁`` is the derivative of an operation for which no shorter form is known.
"""

from jaxblocks.ad.traces.tables import TraceNode, TraceRow, TraceTable
from jaxblocks.ad.traces.tracing import trace_table

__all__ = ["TraceNode", "TraceRow", "TraceTable", "trace_table"]
