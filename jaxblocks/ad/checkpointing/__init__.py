"""Memory against time: gradients of scans that store fewer values and compute the others again.

Read `scans` first. `binomial` has the schedules with the fewest steps for a number of stored carries.
"""

from jaxblocks.ad.checkpointing.binomial import binomial_schedule, binomial_steps
from jaxblocks.ad.checkpointing.scans import scan

__all__ = [
    "binomial_schedule",
    "binomial_steps",
    "scan",
]
