"""The record of a run: losses and metrics over steps and epochs, with a plot."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from jaxblocks.plotting.axes import axes_or_new
from jaxblocks.training.callbacks.callback import Run

__all__ = ["History", "history_of"]


@dataclass(frozen=True, repr=False)
class History:
    """The losses and metrics that `fit` recorded, as NumPy arrays.

    Args:
        step_loss: the objective on the batch of each step, before that step, ``(steps,)``.
        step_epoch: the number of epochs after each step, ``(steps,)``.
        epoch: the number of epochs at each validation, ``(validations,)``.
        validation: by name, the means over the validation data, ``(validations,)`` each; ``"loss"`` is the loss.

    >>> losses, epochs = np.array([2.0, 1.0]), np.array([0.5, 1.0])
    >>> History(losses, epochs, np.array([1.0]), {"loss": np.array([1.5])})
    History(2 steps, last training loss 1, validation loss 1.5)
    """

    step_loss: np.ndarray
    step_epoch: np.ndarray
    epoch: np.ndarray
    validation: dict[str, np.ndarray]

    if not TYPE_CHECKING:  # a type checker reports such names itself

        def __getattr__(self, name):
            repair = 'write history.step_loss, or history.validation["loss"] of a run with validation data'
            raise AttributeError(f"'History' object has no attribute {name!r}; {repair}", name=name, obj=self)

    def plot(self, ax=None):
        """Plot the losses (and validation metrics) over epochs on Matplotlib axes, and return the axes."""
        ax = axes_or_new(ax)
        ax.plot(self.step_epoch, self.step_loss, label="training loss", linewidth=1, alpha=0.6)
        for name, values in self.validation.items():
            ax.plot(self.epoch, values, label=f"validation {name}", marker=".")
        ax.set_xlabel("epoch")
        ax.legend()
        return ax

    def __repr__(self):
        # A run that was stopped before its first step.
        if not len(self.step_loss):
            return "History(0 steps)"
        last = "".join(
            f", validation {name} {values[-1]:.4g}" for name, values in self.validation.items() if len(values)
        )
        return f"History({len(self.step_loss)} steps, last training loss {self.step_loss[-1]:.4g}{last})"


def history_of(run: Run) -> History:
    """The record of a run as arrays."""
    # All validations have the metrics of the first one; without validation there is no column.
    names = run.validations[0][1] if run.validations else ()
    return History(
        np.array(run.losses),
        # A step counts at its end: step n of an epoch of m is at n / m. A resumed run begins where its record does.
        np.arange(run.first + 1, run.first + 1 + len(run.losses)) / run.steps_per_epoch,
        np.array([epoch for epoch, _ in run.validations]),
        {name: np.array([means[name] for _, means in run.validations]) for name in names},
    )
