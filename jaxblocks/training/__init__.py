"""Training: the step, the loop `fit` and its callbacks, minibatches, augmentation, checkpoints.

Submodules in the order of their use: `state`, `data`, `augmentation`, `objective`, `step`, `evaluation`; then the loop
and its callbacks: `loop`, `callback`, `signals`, `validation`, `stopping`, `logs`, `progress`, `history`, and for runs
that are started again `resume`, `checkpoint`, `lock`, `descriptions`. `divergence` and `nonfinite` find the origin of
values that are not finite; `communication` plans a run on several devices; `natural_gradient` is an optimizer, `ema`
and `proximal` are parts of optimizers.
"""

from jaxblocks.training.augmentation import cutmix, gaussian_noise, mixup, random_crop, random_flip, random_shift
from jaxblocks.training.callback import Callback, Run
from jaxblocks.training.checkpoint import load_checkpoint, save_checkpoint
from jaxblocks.training.communication import ShardingReport, sharding_report
from jaxblocks.training.data import minibatches, prefetch, train_val_test_split
from jaxblocks.training.ema import EmaState, ema_params, get_ema
from jaxblocks.training.evaluation import evaluate, predict
from jaxblocks.training.history import History
from jaxblocks.training.logs import csv_log, row_log, tensorboard_log, terminal_log
from jaxblocks.training.loop import Fitted, fit
from jaxblocks.training.natural_gradient import KfacState, kfac, scale_by_kfac
from jaxblocks.training.progress import progress_bar
from jaxblocks.training.proximal import proximal_l1
from jaxblocks.training.resume import checkpoints
from jaxblocks.training.state import TrainState, init_train_state, train_state_shapes
from jaxblocks.training.step import train_step
from jaxblocks.training.stopping import StoppingRule, StoppingState, early_stopping, stopping_rule

__all__ = [
    "Callback",
    "EmaState",
    "Fitted",
    "History",
    "KfacState",
    "Run",
    "ShardingReport",
    "StoppingRule",
    "StoppingState",
    "TrainState",
    "checkpoints",
    "csv_log",
    "cutmix",
    "early_stopping",
    "ema_params",
    "evaluate",
    "fit",
    "gaussian_noise",
    "get_ema",
    "init_train_state",
    "kfac",
    "load_checkpoint",
    "minibatches",
    "mixup",
    "predict",
    "prefetch",
    "progress_bar",
    "proximal_l1",
    "random_crop",
    "random_flip",
    "random_shift",
    "row_log",
    "save_checkpoint",
    "scale_by_kfac",
    "sharding_report",
    "stopping_rule",
    "tensorboard_log",
    "terminal_log",
    "train_state_shapes",
    "train_step",
    "train_val_test_split",
]
