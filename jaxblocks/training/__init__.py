"""Training: the step, a loop around it, minibatches, checkpoints, logs, early stopping."""

from jaxblocks.training.averaging import AverageState, ema_params, get_ema
from jaxblocks.training.checkpoint import load_checkpoint, save_checkpoint
from jaxblocks.training.data import (
    gaussian_noise,
    minibatches,
    prefetch,
    random_flip,
    random_shift,
    train_val_test_split,
)
from jaxblocks.training.logs import Log, csv_log, tensorboard_log, terminal_log
from jaxblocks.training.loop import Fitted, History, fit
from jaxblocks.training.proximal import proximal_l1
from jaxblocks.training.step import TrainState, evaluate, init_train_state, train_step
from jaxblocks.training.stopping import EarlyStopping, StoppingState, early_stopping

__all__ = [
    "AverageState",
    "EarlyStopping",
    "Fitted",
    "History",
    "Log",
    "StoppingState",
    "TrainState",
    "csv_log",
    "early_stopping",
    "ema_params",
    "evaluate",
    "fit",
    "gaussian_noise",
    "get_ema",
    "init_train_state",
    "load_checkpoint",
    "minibatches",
    "prefetch",
    "proximal_l1",
    "random_flip",
    "random_shift",
    "save_checkpoint",
    "tensorboard_log",
    "terminal_log",
    "train_step",
    "train_val_test_split",
]
