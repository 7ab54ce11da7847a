"""The training loop `fit`, and what it finds out about a run.

Read `loop` first. `intervals` makes the steps between two readings of the losses, `signals` ends a run after the steps
in progress, `history` records it, `divergence` and `nonfinite` find the origin of values that are not finite, and
`descriptions` detects a changed net, loss or optimizer. `range_test` is a short run that compares learning rates.
"""

from jaxblocks.training.loop.history import History
from jaxblocks.training.loop.loop import Fitted, fit
from jaxblocks.training.loop.range_test import RangeTest, find_learning_rate

__all__ = ["Fitted", "History", "RangeTest", "find_learning_rate", "fit"]
