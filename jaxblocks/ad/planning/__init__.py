r"""The cheapest order to multiply the Jacobians of a chain of functions, determined before the computation.

Read ``plan`` first.

A function is linearized at a point (`linear_program`, with `pools` in a cheap form); its linear program is cut where
few numbers are live (`stages`, which reads single `equations`), the stages between the cuts are priced (`prices`), and
dynamic programming finds the bracketing with the least price (`bracketing`). `accounting` has its sweeps and bytes, and
`plan` chooses between it and forward or reverse mode; `drawing` shows it. All modules read shapes only.

Source: Naumann, Matrix-free Jacobian chaining (arXiv 2406.11862).
"""

from jaxblocks.ad.planning.bracketing import Chain, Part, as_product, best_bracketing
from jaxblocks.ad.planning.linear_program import Linear, linearized, width_of
from jaxblocks.ad.planning.plan import JacobianPlan, Route, Stage, make_plan
from jaxblocks.ad.planning.stages import Link

__all__ = [
    "Chain",
    "JacobianPlan",
    "Linear",
    "Link",
    "Part",
    "Route",
    "Stage",
    "as_product",
    "best_bracketing",
    "linearized",
    "make_plan",
    "width_of",
]
