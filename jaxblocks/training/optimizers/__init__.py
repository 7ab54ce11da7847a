"""Transformations for optax that it does not have, and what they have in common.

Read `ema` first, the average of params. `gradient_norms` keeps the norms of gradients and updates, `proximal` sets
params to exact zeros, `natural_gradient` is KFAC; `transformations` checks optimizers and reads their states.
"""

from jaxblocks.training.optimizers.ema import EmaState, ema_params, get_ema
from jaxblocks.training.optimizers.gradient_norms import NormsState, get_norms, track_norms
from jaxblocks.training.optimizers.natural_gradient import KfacState, kfac, scale_by_kfac
from jaxblocks.training.optimizers.proximal import proximal_l1

__all__ = [
    "EmaState",
    "KfacState",
    "NormsState",
    "ema_params",
    "get_ema",
    "get_norms",
    "kfac",
    "proximal_l1",
    "scale_by_kfac",
    "track_norms",
]
