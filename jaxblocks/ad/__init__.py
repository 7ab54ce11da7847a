"""Derivatives and what they cost: functions of functions."""

from jaxblocks.ad.build import warn_of_wrong_build
from jaxblocks.ad.counting import Count, count, equations
from jaxblocks.ad.products import curvature, hvp, value_grad_hvp
from jaxblocks.ad.table import CostRow, CostTable, cost

__all__ = [
    "CostRow",
    "CostTable",
    "Count",
    "cost",
    "count",
    "curvature",
    "equations",
    "hvp",
    "value_grad_hvp",
    "warn_of_wrong_build",
]
