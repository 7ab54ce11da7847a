"""One training step: the state, the objective, and the step itself.

Read `step` first. `state` is the pytree that a step changes, `objective` the loss as a function of params, and
`accumulation` the same from parts of a batch.
"""

from jaxblocks.training.step.state import TrainState, init_train_state, train_state_shapes
from jaxblocks.training.step.step import TrainStep, train_step

__all__ = ["TrainState", "TrainStep", "init_train_state", "train_state_shapes", "train_step"]
