"""Where `fit` writes what it sees: lines in the terminal, a CSV file, event files for TensorBoard.

A log is three functions. A run that was killed goes on in the same files: what lies after the step from which it goes
on, or was cut off in the middle of a line, is dropped, and written again.
"""

import csv
import io
import os
import struct
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from jaxblocks.checks import describe_any, require_whole

__all__ = ["Log", "csv_log", "tensorboard_log", "terminal_log"]


class Log(NamedTuple):
    """Three functions; write your own for another place.

    Args:
        begin: ``begin(step, columns)``, once: rows up to this step are there already (0: none); what may come in
            a row is ``"step"``, ``"epoch"``, ``"loss"``, and ``"validation ..."`` by the name of each metric.
        write: ``write(rows)``: dicts from columns to numbers, one a step, in order; validation only at some steps.
            What was written must survive the death of the process (``flush``).
        end: ``end()``, once, also after an error.

    >>> seen = []
    >>> log = Log(lambda step, columns: None, seen.extend, lambda: None)
    >>> log.write([{"step": 1, "epoch": 0.5, "loss": 2.0}])
    >>> seen
    [{'step': 1, 'epoch': 0.5, 'loss': 2.0}]
    """

    begin: Callable[[int, Sequence[str]], None]
    write: Callable[[Iterable[Mapping[str, float]]], None]
    end: Callable[[], None]


def csv_log(path: str | os.PathLike, *, every: int = 1) -> Log:
    """A CSV file with a header, a row for every ``every``-th step and one for each validation.

    A run that begins at step 0 begins the file anew.

    Raises:
        ValueError: where it is to go on with a file that has other columns.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "losses.csv"
    >>> log = csv_log(path)
    >>> log.begin(0, ["step", "loss"])
    >>> log.write([{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.25}])
    >>> log.end()
    >>> path.read_text().splitlines()
    ['step,loss', '1,0.5', '2,0.25']
    """
    path, every, file, names = Path(path), require_whole("csv_log", "every", every), None, ()

    def begin(step, columns):
        nonlocal file, names
        names = tuple(columns)
        kept = _kept_lines(path, names, step) if step and path.exists() else [_line(names)]
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f".{path.name}.new")
        new.write_text("".join(kept))
        os.replace(new, path)
        file = open(path, "a")  # `end` closes it

    def write(rows):
        rows = [row for row in rows if _is_due(row, every)]
        file.write("".join(_line([row.get(name, "") for name in names]) for row in rows))
        file.flush()

    def end():
        if file is not None:
            file.close()

    return Log(begin, write, end)


def tensorboard_log(directory: str | os.PathLike, *, every: int = 1) -> Log:
    """Event files that TensorBoard shows: a curve for each column, over steps.

    One file a folder, ``events.out.tfevents.jaxblocks``; a run that begins at step 0 begins it anew. Written with
    tensorboardX (``pip install jaxblocks[train]``).

    Raises:
        ModuleNotFoundError: without tensorboardX.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> log = tensorboard_log(folder)
    >>> log.begin(0, ["step", "epoch", "loss"])
    >>> log.write([{"step": 1, "epoch": 0.5, "loss": 2.0}])
    >>> log.end()
    >>> [path.name for path in folder.iterdir()]
    ['events.out.tfevents.jaxblocks']
    """
    path = Path(directory) / "events.out.tfevents.jaxblocks"
    every, writer = require_whole("tensorboard_log", "every", every), None
    try:
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary
        from tensorboardX.record_writer import RecordWriter
    except ImportError as error:
        raise ModuleNotFoundError(
            "tensorboard_log writes event files with tensorboardX, which is not installed; "
            "install it with: pip install jaxblocks[train]",
            name="tensorboardX",
        ) from error

    def begin(step, columns):
        nonlocal writer
        path.parent.mkdir(parents=True, exist_ok=True)
        old = list(_records(path)) if step and path.exists() else []
        kept = [record for record in old if Event.FromString(record).step <= step]
        new = path.with_name(f".{path.name}.new")
        writer = RecordWriter(str(new))
        for record in kept or [Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString()]:
            writer.write(record)
        writer.flush()
        os.replace(new, path)  # the writer goes on in the renamed file

    def write(rows):
        for row in rows:
            if _is_due(row, every):
                values = [Summary.Value(tag=k, simple_value=v) for k, v in row.items() if k != "step"]
                event = Event(wall_time=time.time(), step=row["step"], summary=Summary(value=values))
                writer.write(event.SerializeToString())
        writer.flush()

    def end():
        if writer is not None:
            writer.close()

    return Log(begin, write, end)


def terminal_log(*, every: int = 100, file=None) -> Log:
    """A line for every ``every``-th step and for each validation; for log files, where a progress bar is in the way.

    Args:
        file: where to print; standard output by default.

    >>> log = terminal_log(every=2)
    >>> log.begin(0, ["step", "epoch", "loss", "validation loss"])
    >>> log.write([{"step": 1, "epoch": 0.5, "loss": 2.0}, {"step": 2, "epoch": 1.0, "loss": 1.0}])
    step 2, epoch 1, loss 1
    """
    every = require_whole("terminal_log", "every", every)

    def write(rows):
        for row in rows:
            if _is_due(row, every):
                words = ", ".join(f"{k} {v}" if k == "step" else f"{k} {v:.4g}" for k, v in row.items())
                print(words, file=file or sys.stdout, flush=True)

    return Log(lambda step, columns: None, write, lambda: None)


# ---- shared with fit -----------------------------------------------------------------------


def as_logs(log) -> list[Log]:
    """What ``fit(log=)`` takes as a list of logs, a new one."""
    if log is None:
        return []
    logs = [log] if isinstance(log, Log) or not isinstance(log, Sequence) else list(log)
    for one in logs:
        if not isinstance(one, Log):
            raise TypeError(
                f"fit expects logs, but {describe_any(one)} came; pass for instance "
                "log=[csv_log(path), terminal_log()]."
            )
    return logs


def _is_due(row, every) -> bool:
    return row["step"] % every == 0 or any(name.startswith("validation") for name in row)


def _line(values) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(values)
    return line.getvalue()


def _kept_lines(path, names, step) -> list[str]:
    """The header and the complete rows of a CSV file up to a step."""
    header, *lines = path.read_text().splitlines(keepends=True) or [""]
    if header != _line(names):
        raise ValueError(
            f"csv_log is to go on with {path}, whose columns are {header.strip()}, but this run has "
            f"{_line(names).strip()}; pass another path."
        )
    kept = [header]
    for line in lines:
        first = next(csv.reader([line]), [""])[0]
        if not line.endswith("\n") or not first.isdigit() or int(first) > step:
            break
        kept.append(line)
    return kept


def _records(path):
    """The complete records of an event file: length, a checksum, data, a checksum."""
    data, place = path.read_bytes(), 0
    while place + 12 <= len(data):
        (length,) = struct.unpack_from("<Q", data, place)
        if place + 16 + length > len(data):
            return
        yield data[place + 12 : place + 12 + length]
        place += 16 + length
