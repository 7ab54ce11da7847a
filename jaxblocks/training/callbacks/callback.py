"""The protocol of callbacks: functions that `fit` calls during a run, and the `Run` that they receive."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Callback", "Run", "call"]


@dataclass
class Run:
    """The state of a call of `fit` that callbacks receive; set ``stop`` to end the run.

    Step numbers, epochs and ``losses`` count from the beginning of the run, which `checkpoints` may have resumed.

    Args:
        steps: the total number of steps.
        steps_per_epoch: batches in one pass over the data.
        ts: the `TrainState` after ``step`` steps. It is a copy that no later step donates, so a callback can keep it.
        step: the number of steps made so far.
        start: the number of steps made before this call of `fit`.
        rows: one dict for each step since losses were last read from the device, in order: ``"step"``, ``"epoch"``,
            ``"loss"``, and ``"validation <metric>"`` in the row of a step with a validation.
        columns: the possible keys of the rows of this run.
        losses: the loss of each recorded step, from step ``first + 1`` on.
        first: the step at which the record begins.
        validations: for each validation ``(epoch, {metric: mean})``; ``"loss"`` is one of the metrics.
        best: ``(params, state)`` with the lowest validation loss; ``None`` before the first validation.
        best_of_epochs: those of the validations at ends of epochs, without one at the end of the run inside of an
            epoch; a run that is extended later continues from them.
        stop: set it to ``True`` to end the run after the current step.
        resumed: whether the run was read from a checkpoint.
        saved: the step of the last checkpoint and its directory, when the run has ended.
        config: a JSON-compatible description of data and options that must not change when a run is resumed; for
            changes of its part ``"functions"`` a warning is issued.

    >>> run = Run(steps=20, steps_per_epoch=8, step=10)
    >>> run.epoch, run.is_last
    (1.25, False)
    """

    steps: int
    steps_per_epoch: int = 1
    ts: Any = None
    step: int = 0
    start: int = 0
    rows: list[dict[str, int | float]] = field(default_factory=list)
    columns: list[str] = field(default_factory=lambda: ["step", "epoch", "loss"])
    losses: list = field(default_factory=list)
    first: int = 0
    validations: list[tuple[float, dict[str, float]]] = field(default_factory=list)
    best: tuple | None = None
    best_of_epochs: tuple | None = None
    stop: bool = False
    resumed: bool = False
    saved: tuple[int, Any] | None = None
    config: dict[str, Any] = field(default_factory=dict)

    @property
    def epoch(self) -> float:
        """The number of passes over the data so far."""
        return self.step / self.steps_per_epoch

    @property
    def is_epoch_end(self) -> bool:
        """Whether an epoch or the run is complete."""
        # The last epoch may be cut short by `steps`.
        return not self.is_inside_epoch or self.step == self.steps

    @property
    def is_inside_epoch(self) -> bool:
        """Whether the current epoch has more batches."""
        return self.step % self.steps_per_epoch != 0

    @property
    def is_last(self) -> bool:
        """Whether this is the last step."""
        return self.stop or self.step >= self.steps


@dataclass(frozen=True, kw_only=True)
class Callback:
    """Functions that `fit` calls during a run; each receives the `Run` and returns nothing. All are optional.

    ``fit(..., callbacks=[...])`` calls them in the order of the list, after the validation and before the progress
    bar and the checkpoint of the same step. A callback ends the run with ``run.stop = True``.

    Args:
        on_restore: once, before everything else; it may replace ``run.ts`` and the record (`checkpoints` does).
        on_start: once, before the first step.
        on_step: after one or more steps, when their losses have been read from the device: after each step at first,
            later about twice a second and at least every 64 steps, and after the last step.
        on_epoch_end: after each epoch, and after the last of ``run.steps``; before the ``on_step`` of the same step. A
            run that ``run.stop`` ends inside of an epoch has none there.
        on_end: once, after the last step, also after an error (of ``on_restore`` too). ``run.rows`` may then hold rows
            that were not passed to ``on_step``: those of the steps before the error.
        every: call ``on_step`` only after each multiple of this number of steps and after the last step. Losses are
            then read at these steps, so small numbers slow training down.
        collective: whether ``on_step`` and ``on_epoch_end`` compute with params of several processes. All processes
            must then pass the callback; before it is called they agree on ``run.stop``.

    >>> import jax, jax.numpy as jnp, optax
    >>> from jaxblocks.layers.dense import Dense
    >>> from jaxblocks.losses import mse
    >>> from jaxblocks.training import fit
    >>> def stop_below(loss):
    ...     def on_step(run):
    ...         run.stop = bool(run.losses[-1] < loss)
    ...     return Callback(on_step=on_step, every=10)
    >>> x, key = jnp.linspace(-1, 1, 64)[:, None], jax.random.key(0)
    >>> options = dict(key=key, epochs=100, progress=False, callbacks=[stop_below(1e-3)])
    >>> fitted = fit(Dense(1), mse, optax.sgd(0.3), (x, 3 * x), **options)
    >>> int(fitted.ts.step) < 100, bool(fitted.history.step_loss[-1] < 1e-3)
    (True, True)
    """

    on_restore: Callable[[Run], None] | None = None
    on_start: Callable[[Run], None] | None = None
    on_step: Callable[[Run], None] | None = None
    on_epoch_end: Callable[[Run], None] | None = None
    on_end: Callable[[Run], None] | None = None
    every: int | None = None
    collective: bool = False

    def after_steps(self, run: Run) -> None:
        """Call ``on_epoch_end`` and ``on_step`` where they are due."""
        if run.is_epoch_end:
            call(self.on_epoch_end, run)
        if self.every is None or run.step % self.every == 0 or run.is_last:
            call(self.on_step, run)


def call(function: Callable[[Run], None] | None, run: Run) -> None:
    """Call a function of a callback, unless it is ``None``."""
    if function is not None:
        function(run)
