"""Evaluation traces: the computation of a derivative, line by line, in symbols and in numbers.

A function is a list of simple operations, its Wengert list. Three passes run over it:

    v_k     the forward primal trace: each value from the ones before it
    v_k'    the forward tangent trace: the derivative of v_k along one direction of the inputs
    dy/dv_k the reverse adjoint trace: from the output back, each operation adds to its operands

The inputs are numbered up to 0, the operations from 1, as surveys print them. The operations
are read off the jaxpr and ordered by depth: first those that need inputs alone, then those
that need them, and so on.

In print tangents carry a dot, adjoints a bar; ``⊙`` multiplies entry by entry, ``@`` is a product
of matrices (a vector is a column on its right and a row on its left), ``[a > b]`` is 1 where that holds and
else 0, and ``∂v₂/∂v₁`` is the derivative of an operation for which no shorter form is known.
"""

from jaxblocks.ad.traces.tables import TraceNode, TraceRow, TraceTable
from jaxblocks.ad.traces.tracing import trace_table

__all__ = ["TraceNode", "TraceRow", "TraceTable", "trace_table"]
