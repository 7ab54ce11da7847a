"""Training: the step, the loop `fit` and its callbacks, data, checkpoints, several processes.

Read `step` first, then `loop`, which calls it. `optimizers` has transformations for optax, `callbacks` are called
during a run, `checkpoint` keeps it on disk, `data` makes its batches, `processes` lets several processes agree,
`evaluation` has `evaluate` and `predict`, and `sharding_reports` what a step sends between devices.
"""

from jaxblocks.core.lazy import explain_missing_names
from jaxblocks.training.callbacks.callback import Callback, Run
from jaxblocks.training.callbacks.logs import csv_log, norm_log, row_log, tensorboard_log, terminal_log
from jaxblocks.training.callbacks.progress import progress_bar
from jaxblocks.training.callbacks.stopping import StoppingRule, StoppingState, early_stopping, stopping_rule
from jaxblocks.training.checkpoint.checkpoint import RestoreReport, load_checkpoint, save_checkpoint
from jaxblocks.training.checkpoint.resume import checkpoints
from jaxblocks.training.data.augmentation import gaussian_noise, mixup, random_crop, random_flip, random_shift
from jaxblocks.training.data.batches import minibatches, prefetch, train_val_test_split
from jaxblocks.training.evaluation import evaluate, predict
from jaxblocks.training.loop.history import History
from jaxblocks.training.loop.loop import Fitted, fit
from jaxblocks.training.loop.range_test import RangeTest, find_learning_rate
from jaxblocks.training.optimizers.ema import EmaState, ema_params, get_ema
from jaxblocks.training.optimizers.gradient_norms import NormsState, get_norms, track_norms
from jaxblocks.training.optimizers.natural_gradient import KfacState, kfac, scale_by_kfac
from jaxblocks.training.optimizers.proximal import proximal_l1
from jaxblocks.training.sharding_reports import ShardingReport, sharding_report
from jaxblocks.training.step.state import TrainState, init_train_state, train_state_shapes
from jaxblocks.training.step.step import TrainStep, train_step

__all__ = [
    "Callback",
    "EmaState",
    "Fitted",
    "History",
    "KfacState",
    "NormsState",
    "RangeTest",
    "RestoreReport",
    "Run",
    "ShardingReport",
    "StoppingRule",
    "StoppingState",
    "TrainState",
    "TrainStep",
    "checkpoints",
    "csv_log",
    "early_stopping",
    "ema_params",
    "evaluate",
    "find_learning_rate",
    "fit",
    "gaussian_noise",
    "get_ema",
    "get_norms",
    "init_train_state",
    "kfac",
    "load_checkpoint",
    "minibatches",
    "mixup",
    "norm_log",
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
    "track_norms",
    "train_state_shapes",
    "train_step",
    "train_val_test_split",
]
explain_missing_names(__name__)
