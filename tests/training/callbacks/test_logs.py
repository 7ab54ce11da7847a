"""Logs: each step exactly once, also after a killed run; numbers that are read back exactly."""

import csv
import re
import struct
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxblocks as jb
from jaxblocks.training import Run, csv_log, fit, row_log, tensorboard_log, terminal_log

X = np.linspace(-1, 1, 20, dtype=np.float32)[:, None]
DATA = X, np.sin(3 * X)
COLUMNS = ["step", "epoch", "loss", "validation loss"]


@pytest.fixture(autouse=True)
def _default_configuration():
    with jax.numpy_dtype_promotion("standard"), jax.debug_nans(False):
        yield


def go(loss=jb.mse, **options):
    options = {"validation": DATA, "steps": 10, **options}
    return fit(jb.Dense(1), loss, optax.sgd(0.1), DATA, key=jax.random.key(0), batch_size=5, progress=False, **options)


def rows(first, last):
    return [{"step": n, "epoch": n / 4, "loss": 1 / n} for n in range(first, last + 1)]


def begin(log, step, columns=COLUMNS):
    """Start a log as `fit` does, at this step."""
    run = Run(steps=20, step=step, start=step, columns=list(columns))
    log.on_start(run)
    return run


def write(log, run, rows):
    """Pass rows to a log as `fit` does after a reading."""
    run.rows = rows
    log.on_step(run)


def records(path):
    """The records of an event file: length, checksum, data, checksum."""
    from tensorboardX.crc32c import crc32c

    def masked(data):
        crc = crc32c(data)
        return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF

    data, place = path.read_bytes(), 0
    while place < len(data):
        (length,) = struct.unpack_from("<Q", data, place)
        assert struct.unpack_from("<I", data, place + 8)[0] == masked(data[place : place + 8])
        record = data[place + 12 : place + 12 + length]
        assert struct.unpack_from("<I", data, place + 12 + length)[0] == masked(record)
        yield record
        place += 16 + length


def events(path):
    """Steps, tags and values in an event file."""
    from tensorboardX.proto.event_pb2 import Event

    each = map(Event.FromString, records(path))
    return [(event.step, value.tag, value.simple_value) for event in each for value in event.summary.value]


def test_fit_logs_every_step_and_validation(tmp_path, capsys):
    """CSV, event file and terminal agree with the history."""
    pytest.importorskip("tensorboardX", reason="event files are written by tensorboardX")
    path = tmp_path / "new" / "log.csv"
    history = go(callbacks=[csv_log(path), tensorboard_log(tmp_path / "tb"), terminal_log(every=3)]).history
    with open(path) as file:
        read = list(csv.DictReader(file))
    assert list(read[0]) == COLUMNS
    assert [np.float32(row["loss"]) for row in read] == history.step_loss.tolist()
    assert [float(row["epoch"]) for row in read] == history.step_epoch.tolist()
    validated = [(int(row["step"]), float(row["validation loss"])) for row in read if row["validation loss"]]
    assert validated == list(zip([4, 8, 10], history.validation["loss"].tolist(), strict=True))
    [file] = (tmp_path / "tb").iterdir()
    found = events(file)
    assert [(step, np.float32(value)) for step, tag, value in found if tag == "loss"] == list(
        enumerate(history.step_loss.tolist(), 1)
    )
    assert [step for step, tag, _ in found if tag == "validation loss"] == [4, 8, 10]
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in lines] == [f"step {n}" for n in (3, 4, 6, 8, 9, 10)]
    assert lines[1].endswith(f"validation loss {history.validation['loss'][0]:.4g}")


@pytest.mark.parametrize("cut", [0, 1, 5, 30])
def test_truncated_rows_and_rows_after_the_resumed_step_are_rewritten(tmp_path, cut):
    """A run of 9 steps is killed in the middle of a line and resumed from step 4."""
    path = tmp_path / "log.csv"
    log = csv_log(path)
    run = begin(log, 0)
    write(log, run, rows(1, 9))  # on_end is not called after a kill
    path.write_bytes(path.read_bytes()[: -cut or None])
    again = csv_log(path)
    resumed = begin(again, 4)
    write(again, resumed, rows(5, 12))
    again.on_end(resumed)
    log.on_end(run)
    assert [int(line.split(",")[0]) for line in path.read_text().splitlines()[1:]] == list(range(1, 13))
    new = csv_log(path)
    new.on_end(begin(new, 0))  # a new run
    assert path.read_text() == "step,epoch,loss,validation loss\n"


def test_the_event_file_of_a_resumed_run_says_where_it_begins(tmp_path):
    """TensorBoard then leaves out what earlier files have from there on."""
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2", reason="event files are written by tensorboardX")
    for step, last in ((0, 9), (4, 12)):
        log = tensorboard_log(tmp_path)
        run = begin(log, step)
        write(log, run, rows(step + 1, last))
        log.on_end(run)
    first, second = sorted(tmp_path.iterdir())
    assert [step for step, tag, _ in events(first) if tag == "loss"] == list(range(1, 10))
    assert [step for step, tag, _ in events(second) if tag == "loss"] == list(range(5, 13))
    for file, begins in ((first, 1), (second, 5)):
        _, start, *_ = map(event_pb2.Event.FromString, records(file))
        assert (start.session_log.status, start.step) == (event_pb2.SessionLog.START, begins)


def test_a_damaged_row_does_not_stop_a_resumed_run(tmp_path):
    """It is kept as it is."""
    for place in (0, 3):
        path = tmp_path / f"{place}.csv"
        log = csv_log(path)
        run = begin(log, 0)
        write(log, run, rows(1, 9))
        log.on_end(run)
        lines = path.read_bytes().split(b"\n")
        lines[3] = lines[3][:place] + b"\xff" + lines[3][place + 1 :]
        path.write_bytes(b"\n".join(lines))
        again = csv_log(path)
        resumed = begin(again, 5)
        write(again, resumed, rows(6, 9))
        again.on_end(resumed)
        assert path.read_bytes().split(b"\n") == lines


def test_nan_float32_and_quoted_names_are_read_back(tmp_path):
    log = csv_log(tmp_path / "log.csv")
    columns = ["step", 'validation "a", b']
    run = begin(log, 0, columns)
    write(log, run, [{"step": 1, columns[1]: float("nan")}, {"step": 2, columns[1]: float(np.float32(0.1))}])
    log.on_end(run)
    with open(tmp_path / "log.csv") as file:
        read = list(csv.DictReader(file))
    assert list(read[0]) == columns
    assert np.isnan(float(read[0][columns[1]])) and np.float32(read[1][columns[1]]) == np.float32(0.1)


@pytest.mark.parametrize("name", ["a\nb", "a\r", "\ud800"])
def test_names_that_are_not_printable_are_rejected(tmp_path, name, sentences):
    """A resumed run could not read the header."""
    with pytest.raises(ValueError, match=re.escape(f"printable names of metrics, got {name!r}; rename")):
        begin(csv_log(tmp_path / "log.csv"), 0, ["step", name])
    assert not (tmp_path / "log.csv").exists()


def test_sparse_rows_keep_the_validations(tmp_path):
    go(callbacks=[csv_log(tmp_path / "log.csv", every=5)])
    assert [line.split(",")[0] for line in (tmp_path / "log.csv").read_text().splitlines()] == "step 4 5 8 10".split()


def test_log_contains_the_diverging_step(tmp_path):
    """The rows end with the step of the divergence."""
    with pytest.raises(FloatingPointError, match="in step ") as raised:
        go(loss=lambda o, y: jnp.exp(20 * jnp.abs(o - y)), callbacks=[csv_log(tmp_path / "log.csv")], validation=None)
    read = [line.split(",") for line in (tmp_path / "log.csv").read_text().splitlines()[1:]]
    bad = [int(step) for step, _, loss in read if not np.isfinite(float(loss))]
    assert bad[0] == int(raised.value.ts.step) + 1


def test_wrong_arguments_are_rejected(tmp_path, monkeypatch, sentences):
    with pytest.raises(
        TypeError, match=r"fit expected callbacks, got log.csv; pass a list, for instance callbacks=\[csv_log\("
    ):
        go(callbacks=["log.csv"])
    with pytest.raises(ValueError, match="csv_log expected every to be an integer >= 1, got 0"):
        csv_log(tmp_path / "log.csv", every=0)
    log = csv_log(tmp_path / "log.csv")
    log.on_end(begin(log, 0))
    with pytest.raises(
        ValueError, match=r"expected the columns of .*, step,epoch,.*, got step,loss; pass another path"
    ):
        begin(csv_log(tmp_path / "log.csv"), 3, ["step", "loss"])
    other = csv_log(tmp_path / "other.csv")  # the suggested repair
    other.on_end(begin(other, 3, ["step", "loss"]))
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    monkeypatch.setitem(sys.modules, "tensorboardX.proto.event_pb2", None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "jaxblocks\[train\]"'):
        tensorboard_log(tmp_path)


def test_on_end_is_called_after_an_error():
    seen = []
    log = row_log(lambda rows: 1 / 0, begin=lambda *args: seen.append(args), end=lambda: seen.append("end"))
    with pytest.raises(ZeroDivisionError):
        go(callbacks=[log])
    assert seen == [(0, tuple(COLUMNS)), "end"]


def test_uncalled_log_is_rejected(sentences):
    with pytest.raises(
        TypeError, match=r"fit expected callbacks, got the function terminal_log; call it: terminal_log\(\)"
    ):
        go(callbacks=[terminal_log])


def test_unwritable_log_does_not_stop_training(tmp_path):
    """A full disk causes a warning; an unwritable path is rejected before the first step."""

    def full(rows):
        raise OSError(28, "No space left on device")

    broken = row_log(full)
    with pytest.warns(UserWarning, match=r"A log cannot be written: .*No space left.*Training continues without it"):
        fitted = go(callbacks=[broken, csv_log(tmp_path / "loss.csv")])
    assert int(fitted.ts.step) == 10 and len((tmp_path / "loss.csv").read_text().splitlines()) == 11
    with pytest.raises(OSError, match="^fit expected to write the log, got .*; pass another path"):
        go(callbacks=[csv_log(tmp_path)])


@pytest.mark.parametrize("text", [b"", b"\xef\xbb\xbfstep,loss\r\n"])
def test_files_without_a_header_or_of_other_programs_are_continued(tmp_path, text):
    path = tmp_path / "loss.csv"
    path.write_bytes(text)
    log, run = csv_log(path), Run(steps=4, start=2, columns=["step", "loss"])
    log.on_start(run)
    run.rows = [{"step": 3, "loss": 0.5}]
    log.on_step(run)
    log.on_end(run)
    assert path.read_text() == "step,loss\n3,0.5\n"
