"""The training loop `fit`, and what it finds out about a run.

Read `loop` first. `intervals` makes the steps between two readings of the losses, `signals` ends a run after the steps
in progress, `history` records it, `divergence` and `nonfinite` find the origin of values that are not finite, and
`descriptions` detects a changed net, loss or optimizer. `range_test` is a short run that compares learning rates.
"""
