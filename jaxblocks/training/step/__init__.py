"""One training step: the state, the objective, the step itself, and optimizers of our own.

Read `step` first. `state` is the pytree that a step changes, `objective` the loss as a function of params, and
`accumulation` the same from parts of a batch; `ema`, `norms`, `proximal` and `natural_gradient` are transformations for
optax.
"""

from jaxblocks.training.step.ema import EmaState, ema_params, get_ema
from jaxblocks.training.step.natural_gradient import KfacState, kfac, scale_by_kfac
from jaxblocks.training.step.norms import NormsState, get_norms, track_norms
from jaxblocks.training.step.proximal import proximal_l1
from jaxblocks.training.step.state import TrainState, init_train_state, train_state_shapes
from jaxblocks.training.step.step import TrainStep, train_step

__all__ = [
    "EmaState",
    "KfacState",
    "NormsState",
    "TrainState",
    "TrainStep",
    "ema_params",
    "get_ema",
    "get_norms",
    "init_train_state",
    "kfac",
    "proximal_l1",
    "scale_by_kfac",
    "track_norms",
    "train_state_shapes",
    "train_step",
]
