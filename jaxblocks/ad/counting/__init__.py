"""Counts of operations and bytes, from the jaxpr of a function; nothing is compiled or executed.

Read `counts` first: `count_flops`. `primitive_costs` has one rule for each primitive.
"""

from jaxblocks.ad.counting.counts import Cond, Count, Loop, count_flops, equations

__all__ = [
    "Cond",
    "Count",
    "Loop",
    "count_flops",
    "equations",
]
