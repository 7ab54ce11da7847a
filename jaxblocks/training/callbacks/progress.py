"""The progress bar of `fit`, a callback."""

import sys

from jaxblocks.checks.terminal import Terminal
from jaxblocks.training.callbacks.callback import Callback, Run

__all__ = ["progress_bar"]


def progress_bar() -> Callback:
    """A tqdm bar on standard error with the loss and the last validation; ``fit(progress=True)`` adds it.

    In a terminal or a notebook it is updated twice a second; in other outputs, where each update adds a line, every ten
    seconds. Its rate excludes the time of the first step, which includes the compilation. Where standard error is
    missing, closed or full, there is no bar, and training continues.

    >>> progress_bar().every is None
    True
    """
    bar = None

    def on_start(run: Run):
        nonlocal bar
        from tqdm.auto import tqdm

        terminal = Terminal(sys.stderr)
        if run.step == run.steps:  # made by an earlier call
            terminal.write(f"The run is complete: its {run.steps} steps were made before.\n")
        # In a file each update is a line.
        interval = 0.5 if terminal.is_interactive or "ipykernel" in sys.modules else 10
        places = {"total": run.steps, "initial": run.start, "disable": run.is_last, "file": terminal}
        bar = tqdm(unit="step", mininterval=interval, miniters=1, **places)

    def on_step(run: Run):
        assert bar is not None
        metrics = run.validations[-1][1] if run.validations else {}
        shown = {"loss": run.losses[-1], **{f"validation {name}": value for name, value in metrics.items()}}
        bar.set_postfix({name: f"{value:.4g}" for name, value in shown.items()}, refresh=False)
        # True at the first reading only, of the steps since the start.
        if run.step == run.start + len(run.rows):
            bar.unpause()  # the first step was compiled
        bar.update(len(run.rows))

    def on_end(run: Run):
        if bar is not None:
            bar.close()

    return Callback(on_start=on_start, on_step=on_step, on_end=on_end)
