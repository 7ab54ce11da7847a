"""Checkpoints of `fit`, a callback: written during training, and read when the run is started again."""

import contextlib
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxblocks.checks.errors import public_name, require
from jaxblocks.checks.expectations import PositiveInt, checked
from jaxblocks.checks.terminal import warn
from jaxblocks.training.callbacks.callback import Callback, Run
from jaxblocks.training.callbacks.validation import last_is_best
from jaxblocks.training.checkpoint.array_files import require_orbax
from jaxblocks.training.checkpoint.leaves import rebuild
from jaxblocks.training.checkpoint.lock import lock_of_run
from jaxblocks.training.checkpoint.names import as_directory
from jaxblocks.training.checkpoint.reading import read_newest
from jaxblocks.training.checkpoint.writing import begin_write
from jaxblocks.training.processes import any_process, are_several, is_first

__all__ = ["Saver", "checkpoints"]

_SECONDS = 60  # between two checkpoints, unless ``every`` is given


@checked
def checkpoints(directory: Any, *, every: PositiveInt | None = None, keep: PositiveInt = 2) -> Callback:
    """A callback that saves checkpoints during a run, and resumes the run when it is started again.

    A run that was killed, and is started again by the same call of `fit`, continues from its last checkpoint. Its
    params, history, best params and count of `early_stopping` are bitwise equal to those of an uninterrupted run. A
    complete run returns its earlier result. A run that ended inside of an epoch may be extended: the validation at its
    end then does not count. ``fit(checkpoint_dir=directory)`` is short for this callback with its default options.

    Checkpoints are written in a thread during training, and at the end of the run. A state that is not finite is not
    saved. If a checkpoint cannot be written (a full disk), a warning is issued and training continues. After Ctrl-C or
    SIGTERM (which SLURM and Kubernetes send before they kill a process) the steps in progress are completed, and their
    state is saved. The directory is locked during the run; a kill releases the lock.

    In a run of several processes each one writes the shards of its devices, to a directory that all share; the first
    one holds the lock and removes old checkpoints. The run may continue on another number of devices or processes.

    The directory must belong to one run: leaves, key, batch size, ``compute_dtype``, metrics and the shapes of the data
    are compared, and a difference is an error, such as the state of another optimizer. Where the net, the loss, the
    optimizer, the penalty or the augmentation changed and all leaves have the same shapes, a warning says so, as far as
    names of functions and the numbers in their closures show it; changes of the values of the data are not detected.

    Args:
        directory: the directory of this run; created if it does not exist. See `save_checkpoint` for the files.
        every: the number of steps between checkpoints; ``None`` for one checkpoint per minute.
        keep: the number of checkpoints to keep.

    Raises:
        ValueError: before the first step, if all checkpoints are damaged, or belong to another run.
        RuntimeError: before the first step, while another run uses the directory.
        OSError: before the first step, if nothing can be written there, or if the system cannot read a checkpoint.
        ModuleNotFoundError: without orbax.

    >>> import tempfile
    >>> import jax.numpy as jnp, optax
    >>> from jaxblocks.layers.dense import Dense
    >>> from jaxblocks.losses import mse
    >>> from jaxblocks.training import fit
    >>> x, folder = jnp.linspace(-1, 1, 40)[:, None], tempfile.mkdtemp()
    >>> options = dict(key=jax.random.key(0), batch_size=20, progress=False)
    >>> options["callbacks"] = [checkpoints(folder, every=5)]
    >>> first = fit(Dense(1), mse, optax.sgd(0.1), (x, 3 * x), steps=10, **options)
    >>> # steps 11 and 12
    >>> second = fit(Dense(1), mse, optax.sgd(0.1), (x, 3 * x), steps=12, **options)
    >>> second.history.step_loss.shape
    (12,)
    """
    saver: Saver | None = None
    lock = contextlib.ExitStack()
    saved = 0.0

    def on_restore(run: Run):
        require_orbax()
        path = as_directory(directory)
        lock.enter_context(lock_of_run(path))
        _restore(run, path)

    def on_start(run: Run):
        nonlocal saver, saved
        saver, saved = Saver(as_directory(directory), keep), time.monotonic()

    def on_step(run: Run):
        nonlocal saved
        if saver is None:
            return
        # One decision for all processes, whose clocks differ, since writing is a collective operation.
        if not any_process(every is not None or run.is_last or time.monotonic() - saved >= _SECONDS):
            return
        saver.start(*_contents(run))
        # From the end of the call: the time to wait for the previous checkpoint does not count.
        saved = time.monotonic()

    def on_end(run: Run):
        nonlocal saver
        # A second call of on_end finds nothing to close.
        ended, saver = saver, None
        with lock:
            if ended is not None:
                ended.close()
                # The step of the last checkpoint that was written completely, for the message after a signal.
                run.saved = None if ended.saved is None else (ended.saved, directory)

    return Callback(
        on_restore=on_restore, on_start=on_start, on_step=on_step, on_end=on_end, every=every, collective=True
    )


class Saver:
    """Writes checkpoints in a thread, one at a time, while training continues."""

    def __init__(self, directory, keep: int):
        """Take the directory of a run, and the number of checkpoints to keep."""
        self._directory, self._keep, self._pool = directory, keep, ThreadPoolExecutor(1, "checkpoint")
        self._running: Future | None = None
        self._step, self.saved = 0, None

    def start(self, trees, step, notes):
        """Wait for the previous checkpoint, then save these trees, whose buffers must not be donated."""
        self.wait()
        self._step = step
        arguments = self._directory, trees, step, notes, self._keep, public_name()
        if not are_several():
            self._running = self._pool.submit(lambda: begin_write(*arguments)())
            return
        any_process(False)  # all have waited: the previous checkpoint is complete, or failed, everywhere
        try:
            self._running = self._pool.submit(begin_write(*arguments))
        except OSError as error:
            _warn(error)

    def wait(self):
        """Wait until the last checkpoint is on disk; a failure becomes a warning, so that training continues."""
        running, self._running = self._running, None
        if running is not None:
            try:
                running.result()
                self.saved = self._step
            except OSError as error:
                _warn(error)

    def close(self):
        """Wait, and end the thread."""
        try:
            self.wait()
        finally:
            self._pool.shutdown()


def _warn(error: OSError) -> None:
    if is_first():
        warn(f"{error} Training continues.")


def _contents(run: Run):
    # run.ts is a copy that no step donates, so that the thread can read it while training continues.
    trees = {"ts": run.ts, "history": {"losses": np.array(run.losses)}}
    if run.best_of_epochs is not None:
        trees["best"] = run.best_of_epochs
    notes = {"config": run.config, "first": run.first, "validations": list(run.validations)}
    return trees, run.step, notes


def _restore(run: Run, directory) -> None:
    """Read the training state and the record from the newest undamaged checkpoint, if there is one."""
    # Trees whose shapes are not known here, or that a checkpoint may lack.
    likes = {"history": {}, "best": (run.ts.params, run.ts.state)}
    found = read_newest(directory, {"ts": run.ts}, likes)
    if found is None:
        return
    ts, record = found.trees["ts"], _record_of(found.trees, found.notes)
    config = {} if record is None else dict(record.pop("config"))
    # Changed data or options are an error. Changed functions are a warning, since their descriptions may differ
    # although they compute the same.
    before, now = config.pop("functions", {}), dict(run.config)
    functions = now.pop("functions", {})
    changed = _changes(config, now) if record is not None else []
    if not _same_key(run.ts.key, ts.key):
        changed.append("the key is different")
    if changed:
        repair = "pass another directory, or the arguments of that run"
        require(False, f"checkpoints of this run in {directory}", f"those of another: {'; '.join(changed)}", repair)
    if is_first() and (others := _changed_functions(before, functions)):
        warn(
            f"{public_name()} expected the functions of the run in {directory}, got others: {'; '.join(others)}; "
            "pass those of that run, or another directory to begin a new run."
        )
    for path in found.rejected if is_first() else ():  # kept, but not counted by ``keep``
        with contextlib.suppress(OSError):
            path.rename(path.with_name(f"rejected-{path.name}"))
    run.ts, run.step = ts, int(ts.step)
    # Of a checkpoint without a record the history begins here.
    run.first = run.step
    if record is not None:  # otherwise save_checkpoint wrote it, in a custom loop
        run.resumed = True
        vars(run).update(record)
        run.best_of_epochs = run.best
        _end_inside_epoch(run)


def _end_inside_epoch(run: Run) -> None:
    """Keep the validation at the end of a run inside of an epoch where the run has ended, not where it is extended.

    An uninterrupted run does not have it, so it must not count for the best params and for early stopping.
    """
    if run.validations and run.is_inside_epoch and run.validations[-1][0] == run.epoch:
        if run.step < run.steps:
            run.validations.pop()
        elif last_is_best(run.validations):
            run.best = run.ts.params, run.ts.state


def _record_of(trees: dict, notes: dict) -> dict[str, Any] | None:
    """The record of a run in its checkpoint, and its ``config``; ``None`` for a checkpoint of `save_checkpoint`."""
    if not notes:
        return None
    ts, best = trees["ts"], trees.get("best")
    return {
        "losses": list(np.array(trees["history"]["losses"])),  # numbers, each a copy
        "validations": [(epoch, means) for epoch, means in notes["validations"]],
        "best": None if best is None else rebuild((ts.params, ts.state), best),
        "first": notes["first"],
        "config": notes["config"],
    }


def _changes(before: dict, now: dict) -> list[str]:
    names = [*before, *(name for name in now if name not in before)]
    differs = [name for name in names if before.get(name) != now.get(name)]
    return [f"{name} was {before.get(name)} and is {now.get(name)}" for name in differs]


def _changed_functions(before: dict, now: dict) -> list[str]:
    """What differs between descriptions of functions, lists of strings (see `describe_function`)."""
    changed = []
    for name in [name for name in now if name in before and before[name] != now[name]]:
        old, new = (
            [part.rstrip(",") for part in a if part not in b] or a
            for a, b in ((before[name], now[name]), (now[name], before[name]))
        )
        changed.append(f"{name} was {', '.join(old) or 'None'} and is {', '.join(new) or 'None'}")
    return changed


def _same_key(a, b) -> bool:
    data = lambda key: jax.random.key_data(key) if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else key
    return np.array_equal(data(a), data(b))
