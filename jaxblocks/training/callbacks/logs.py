"""Logs of a run, callbacks of `fit`: lines in the terminal, a CSV file, event files for TensorBoard.

A resumed run continues the same CSV file: rows after the step of its checkpoint, and an incomplete row, are removed and
written again.
"""

import contextlib
import csv
import io
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from jaxblocks.checks.errors import public_name, require
from jaxblocks.checks.expectations import PositiveInt, checked
from jaxblocks.checks.system import as_path, library
from jaxblocks.checks.terminal import warn, write_line
from jaxblocks.training.callbacks.callback import Callback, Run
from jaxblocks.training.optimizers.gradient_norms import get_norms
from jaxblocks.training.processes import is_first

__all__ = ["csv_log", "norm_log", "row_log", "tensorboard_log", "terminal_log"]

Row = Mapping[str, Any]


@checked
def row_log(
    write: Callable[[Sequence[Row]], None],
    *,
    begin: Callable[[int, Sequence[str]], None] | None = None,
    end: Callable[[], None] | None = None,
) -> Callback:
    """A callback that passes the row of each step to ``write`` exactly once, for custom logs.

    The rows of the steps before an error are passed too. In a run of several processes only the first one logs. An
    ``OSError`` of ``write`` (a full disk) becomes a warning and ends the log; training continues.

    Args:
        write: ``write(rows)`` gets dicts from columns to numbers, one for each step, in order; only some contain
            validation metrics. It must flush the rows to the file before it returns, or a kill may lose them.
        begin: ``begin(step, columns)``, called once: rows up to ``step`` were written by an earlier call of `fit` (0:
            none).
        end: ``end()``, called once, also after an error.

    Raises:
        OSError: before the first step, if ``begin`` raises one.

    >>> seen = []
    >>> log = row_log(seen.extend)
    >>> run = Run(steps=10)
    >>> log.on_start(run)
    >>> run.rows = [{"step": 1, "epoch": 0.5, "loss": 2.0}]
    >>> log.on_step(run)
    >>> seen
    [{'step': 1, 'epoch': 0.5, 'loss': 2.0}]
    """
    written, is_open = 0, False

    def on_start(run: Run):
        nonlocal written, is_open
        written = run.start
        if not is_first():
            return
        try:
            if begin is not None:
                begin(run.start, tuple(run.columns))
        except OSError as error:
            repair = "pass another path, or free disk space"
            raise OSError(f"{public_name()} expected to write the log, got {error}; {repair}.") from error
        is_open = True

    def on_step(run: Run):
        nonlocal written, is_open
        # on_end may pass the rows of the last reading again; each one is written once.
        rows = [row for row in run.rows if row["step"] > written]
        if not is_open or not rows:
            return
        written = rows[-1]["step"]
        try:
            write(rows)
        except OSError as error:
            is_open = False
            warn(f"A log cannot be written: {error}. Training continues without it.")

    def on_end(run: Run):
        on_step(run)  # after an error, the rows before it
        if end is not None and is_first():
            with contextlib.suppress(OSError):  # a full disk was already reported
                end()

    return Callback(on_start=on_start, on_step=on_step, on_end=on_end)


@checked
def norm_log(*, every: PositiveInt = 100) -> Callback:
    """Add the norms of gradient and update to the row of each multiple of ``every`` steps, for logs that follow.

    The optimizer is one of `track_norms`. Pass it before the logs: ``callbacks=[norm_log(), csv_log("run.csv")]``.

    Raises:
        ValueError: in the run, for an optimizer without `track_norms`.

    >>> import jax.numpy as jnp, optax
    >>> from jaxblocks.training import track_norms
    >>> state = track_norms(optax.sgd(0.1)).init(jnp.zeros(2))
    >>> log, run = norm_log(), Run(steps=1, ts=state)
    >>> log.on_start(run)
    >>> run.rows = [{"step": 1, "loss": 0.5}]
    >>> log.on_step(run)
    >>> run.rows
    [{'step': 1, 'loss': 0.5, 'gradient norm': 0.0, 'update norm': 0.0}]
    """

    def on_start(run: Run):
        run.columns += list(get_norms(run.ts))

    def on_step(run: Run):
        run.rows[-1] |= {name: float(value) for name, value in get_norms(run.ts).items()}

    return Callback(on_start=on_start, on_step=on_step, every=every)


@checked
def csv_log(path: str | os.PathLike, *, every: PositiveInt = 1) -> Callback:
    """Write a CSV file with a header, a row for each multiple of ``every`` steps and a row for each validation.

    A run that begins at step 0 overwrites the file.

    Raises:
        ValueError: unless ``every`` is an integer >= 1; before the first step, if the name of a metric contains a line
            break or another character that is not printable, or if the columns of a resumed run differ from those of
            the file.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "losses.csv"
    >>> log, run = csv_log(path), Run(steps=2, columns=["step", "loss"])
    >>> log.on_start(run)
    >>> run.rows = [{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.25}]
    >>> log.on_step(run)
    >>> log.on_end(run)
    >>> path.read_text().splitlines()
    ['step,loss', '1,0.5', '2,0.25']
    """
    target = as_path(path)
    file: TextIO | None = None
    names: Sequence[str] = ()

    def begin(step, columns):
        nonlocal file, names
        names = columns
        for name in names:
            # A resumed run reads the header as one line of text.
            require(name.isprintable(), "printable names of metrics", repr(name), "rename the metric")
        kept = (
            _kept_lines(target, names, step) if step and target.exists() and target.stat().st_size else [_line(names)]
        )
        target.parent.mkdir(parents=True, exist_ok=True)
        # Written beside it and renamed, so that a kill leaves the old file or the new one.
        new = target.with_name(f".{target.name}.new")
        new.write_text("".join(kept), encoding="utf-8", errors="surrogateescape", newline="\n")
        os.replace(new, target)
        file = open(target, "a", encoding="utf-8", newline="\n")  # `end` closes it

    def write(rows):
        assert file is not None
        # Validations are rows too, whatever `every` is.
        rows = [row for row in rows if _is_due(row, every)]
        file.write("".join(_line([row.get(name, "") for name in names]) for row in rows))
        file.flush()

    def end():
        if file is not None:
            file.close()

    return row_log(write, begin=begin, end=end)


@checked
def tensorboard_log(directory: str | os.PathLike, *, every: PositiveInt = 1) -> Callback:
    """Write an event file for TensorBoard: a curve over steps for each column.

    Each call of `fit` writes a file of its own with tensorboardX (``pip install jaxblocks[train]``). At its beginning
    it says after which step the run begins, so that TensorBoard leaves out what earlier files in the directory have
    after that step. Other writers therefore need another directory.

    Raises:
        ValueError: unless ``every`` is an integer >= 1.
        ModuleNotFoundError: without tensorboardX.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> log, run = tensorboard_log(folder), Run(steps=1)
    >>> log.on_start(run)
    >>> run.rows = [{"step": 1, "epoch": 0.5, "loss": 2.0}]
    >>> log.on_step(run)
    >>> log.on_end(run)
    >>> len(list(folder.glob("events.out.tfevents.*")))
    1
    """
    folder = as_path(directory)
    writer: Any = None
    of_tensorboard = lambda module: library(f"tensorboardX.{module}", "writes event files", "train")
    events: Any = of_tensorboard("proto.event_pb2")  # its classes are created at run time
    Summary: Any = of_tensorboard("proto.summary_pb2").Summary
    EventsWriter = of_tensorboard("event_file_writer").EventsWriter

    def begin(step, columns):
        nonlocal writer
        folder.mkdir(parents=True, exist_ok=True)
        # Its names have seconds, in which two runs may begin.
        writer = EventsWriter(str(folder / "events"), f".{time.time_ns()}")
        start = events.SessionLog(status=events.SessionLog.START)
        writer.write_event(events.Event(wall_time=time.time(), step=step + 1, session_log=start))
        writer.flush()

    def write(rows):
        for row in rows:
            if _is_due(row, every):
                values = [Summary.Value(tag=k, simple_value=v) for k, v in row.items() if k != "step"]
                event = events.Event(wall_time=time.time(), step=row["step"], summary=Summary(value=values))
                writer.write_event(event)
        writer.flush()

    def end():
        if writer is not None:
            writer.close()

    return row_log(write, begin=begin, end=end)


@checked
def terminal_log(*, every: PositiveInt = 100, file: TextIO | None = None) -> Callback:
    """Print a line for each multiple of ``every`` steps and for each validation, for output to a file.

    Args:
        file: the file to print to; standard output by default. Where standard output is missing, closed or full,
            nothing is printed, and training continues.

    Raises:
        ValueError: unless ``every`` is an integer >= 1.

    >>> log, run = terminal_log(every=2), Run(steps=2)
    >>> log.on_start(run)
    >>> run.rows = [{"step": n, "epoch": n / 2, "loss": 2 / n} for n in (1, 2)]
    >>> log.on_step(run)
    step 2, epoch 1, loss 1
    """

    def write(rows):
        for row in rows:
            if _is_due(row, every):
                words = ", ".join(f"{k} {v}" if k == "step" else f"{k} {v:.4g}" for k, v in row.items())
                _write_to(file, words)

    return row_log(write)


def _write_to(file: TextIO | None, line: str) -> None:
    if file is None:
        write_line(line, sys.stdout)
        return
    try:
        file.write(f"{line}\n")
        file.flush()
    except ValueError as error:  # a closed file
        raise OSError(str(error)) from error


def _is_due(row, every) -> bool:
    return row["step"] % every == 0 or any(name.startswith("validation") for name in row)


def _line(values) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(values)
    return line.getvalue()


def _kept_lines(path: Path, names, step) -> list[str]:
    """The header and the complete lines of a CSV file, without the rows after a step."""
    # Other programs add a mark, and end lines by \r\n; damaged bytes are written as they are.
    text = path.read_bytes().decode("utf-8-sig", errors="surrogateescape")
    header, *lines = text.replace("\r\n", "\n").split("\n")
    expected = f"the columns of {path}, {header.encode(errors='replace').decode()}, to continue that file"
    require(header == _line(names)[:-1], expected, _line(names).strip(), "pass another path")
    # The last piece of the text, after the last end of line, is an incomplete row.
    found = [(_NUMBER.match(line), line) for line in lines[:-1]]
    return [_line(names), *(f"{line}\n" for number, line in found if not number or int(number[0]) <= step)]


_NUMBER = re.compile(r"[0-9]{1,18}(?=,|$)")
