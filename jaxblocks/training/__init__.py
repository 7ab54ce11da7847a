"""Training: the step, a loop around it, minibatches, early stopping."""

from jaxblocks.training.data import gaussian_noise, minibatches, random_flip, random_shift, three_way_split
from jaxblocks.training.loop import Fitted, History, fit
from jaxblocks.training.proximal import proximal_l1
from jaxblocks.training.step import TrainState, evaluate, init_training, train_step
from jaxblocks.training.stopping import EarlyStopping, StoppingState, early_stopping

__all__ = [
    "EarlyStopping",
    "Fitted",
    "History",
    "StoppingState",
    "TrainState",
    "early_stopping",
    "evaluate",
    "fit",
    "gaussian_noise",
    "init_training",
    "minibatches",
    "proximal_l1",
    "random_flip",
    "random_shift",
    "three_way_split",
    "train_step",
]
