"""Training: the step, the loop `fit` and its callbacks, data, checkpoints, several processes.

Read `step` first, then `loop`, which calls it. `optimizers` has transformations for optax, `callbacks` are called
during a run, `checkpoint` keeps it on disk, `data` makes its batches, `processes` lets several processes agree,
`evaluation` has `evaluate` and `predict`, and `sharding_reports` what a step sends between devices.
"""

from jaxblocks.core.lazy import explain_missing_names
from jaxblocks.training.callbacks import (
    Callback,
    Run,
    StoppingRule,
    StoppingState,
    csv_log,
    early_stopping,
    norm_log,
    progress_bar,
    row_log,
    stopping_rule,
    tensorboard_log,
    terminal_log,
)
from jaxblocks.training.checkpoint import RestoreReport, checkpoints, load_checkpoint, save_checkpoint
from jaxblocks.training.data import (
    cutmix,
    gaussian_noise,
    minibatches,
    mixup,
    prefetch,
    random_crop,
    random_flip,
    random_shift,
    train_val_test_split,
)
from jaxblocks.training.evaluation import evaluate, predict
from jaxblocks.training.loop import Fitted, History, RangeTest, find_learning_rate, fit
from jaxblocks.training.optimizers import (
    EmaState,
    KfacState,
    NormsState,
    ema_params,
    get_ema,
    get_norms,
    kfac,
    proximal_l1,
    scale_by_kfac,
    track_norms,
)
from jaxblocks.training.sharding_reports import ShardingReport, sharding_report
from jaxblocks.training.step import TrainState, TrainStep, init_train_state, train_state_shapes, train_step

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
    "cutmix",
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
