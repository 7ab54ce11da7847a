"""Signals that end a process (Ctrl-C, SIGTERM, SIGHUP) during a run: they take effect after the steps in progress.

In a run of several processes a signal to one of them ends all, when the losses are read next.
"""

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator

from jaxblocks.checks.terminal import write_line
from jaxblocks.training.callbacks.callback import Run
from jaxblocks.training.processes import are_several, is_first, largest

__all__ = ["StopSignals", "stop_signals"]


class StopSignals:
    """The signals that have arrived so far."""

    def __init__(self):
        """Begin without signals."""
        self.number: int | None = None
        self._own: int | None = None

    def receive(self, number: int, frame) -> None:
        """Store the first signal; the second one ends the process at once, as it would without this handler."""
        if self._own is not None:  # not that of another process: schedulers send one to each of them
            raise _meaning(number)
        self.number = self._own = number

    def agree(self) -> None:
        """Take the signal of another process as one of this process; all processes call this after the same step."""
        if are_several():
            self.number = largest([self._own or 0])[0] or None

    def raise_meaning(self, run: Run) -> None:
        """Print what was saved and raise what the signal means, if there was one; ``error.ts`` is ``run.ts``."""
        self.agree()
        if self.number is not None:
            end = "nothing is saved; pass checkpoint_dir= to make a run resumable"
            if run.saved is not None:
                end = "step {} is saved in {}; the same call of fit continues from it".format(*run.saved)
            if is_first():
                write_line(f"fit ended at step {run.step} by {signal.Signals(self.number).name}: {end}.", sys.stderr)
            error = _meaning(self.number)
            error.ts = run.ts  # pyright: ignore[reportAttributeAccessIssue]
            raise error


# SIGHUP is that of a lost session (ssh); Windows does not have it.
_ENDING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


def _meaning(number: int) -> BaseException:
    return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)  # as a shell reports a signal


@contextlib.contextmanager
def stop_signals() -> Iterator[StopSignals]:
    """Receive `_ENDING` inside of the block, in the main thread, except for signals that the program handles itself."""
    received, before = StopSignals(), {}
    if threading.current_thread() is threading.main_thread():
        for number in _ENDING:
            if signal.getsignal(number) in (signal.default_int_handler, signal.SIG_DFL):
                before[number] = signal.signal(number, received.receive)
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
