"""Callbacks of `fit`: functions that it calls during a run.

Read `callback` first, the protocol. `logs` and `progress` report, `validation` and `stopping` decide.
"""

from jaxblocks.training.callbacks.callback import Callback, Run
from jaxblocks.training.callbacks.logs import csv_log, norm_log, row_log, tensorboard_log, terminal_log
from jaxblocks.training.callbacks.progress import progress_bar
from jaxblocks.training.callbacks.stopping import StoppingRule, StoppingState, early_stopping, stopping_rule

__all__ = [
    "Callback",
    "Run",
    "StoppingRule",
    "StoppingState",
    "csv_log",
    "early_stopping",
    "norm_log",
    "progress_bar",
    "row_log",
    "stopping_rule",
    "tensorboard_log",
    "terminal_log",
]
