"""Transformations for optax that it does not have, and what they have in common.

Read `ema` first, the average of params. `gradient_norms` keeps the norms of gradients and updates, `proximal` sets
params to exact zeros, `natural_gradient` is KFAC; `transformations` checks optimizers and reads their states.
"""
