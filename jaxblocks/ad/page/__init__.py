"""A page on which the cost of the derivatives of a function can be explored, in one file that reads nothing else.

Read ``exploration`` first. ``programs`` lists the operations of a function, ``passes`` runs them, and ``graphs``,
``tapes`` and ``costs`` make the data of the three parts.

The page has three parts: the chain of Jacobians with widths to choose, the computational graph with the values,
tangents and adjoints of each step and the tape of reverse mode, and the cost table with the plan of the Jacobian. The
numbers are those of `jaxblocks.ad.chain_cost`, `jaxblocks.ad.trace_table`, `jaxblocks.ad.cost_table` and
`jaxblocks.ad.jacobian_plan`.
"""

from jaxblocks.ad.page.exploration import Exploration, explore

__all__ = ["Exploration", "explore"]
