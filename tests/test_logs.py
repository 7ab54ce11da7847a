"""Logs: every step once, whatever was killed when; numbers that read back exactly."""

import csv
import struct
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxblocks as jb
from jaxblocks.training import Log, csv_log, fit, tensorboard_log, terminal_log

X = np.linspace(-1, 1, 20, dtype=np.float32)[:, None]
DATA = X, np.sin(3 * X)
COLUMNS = ["step", "epoch", "loss", "validation loss"]


@pytest.fixture(autouse=True)
def _as_a_user_trains():
    with jax.numpy_dtype_promotion("standard"), jax.debug_nans(False):
        yield


def go(loss=jb.mse, **options):
    options = {"validation": DATA, "steps": 10, **options}
    return fit(jb.Dense(1), loss, optax.sgd(0.1), DATA, key=jax.random.key(0), batch_size=5, progress=False, **options)


def rows(first, last):
    return [{"step": n, "epoch": n / 4, "loss": 1 / n} for n in range(first, last + 1)]


def events(path):
    """Steps and tags of an event file, read by its format: length, checksum, data, checksum."""
    from tensorboardX.crc32c import crc32c
    from tensorboardX.proto.event_pb2 import Event

    def masked(data):
        crc = crc32c(data)
        return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF

    data, place, found = path.read_bytes(), 0, []
    while place < len(data):
        (length,) = struct.unpack_from("<Q", data, place)
        assert struct.unpack_from("<I", data, place + 8)[0] == masked(data[place : place + 8])
        record = data[place + 12 : place + 12 + length]
        assert struct.unpack_from("<I", data, place + 12 + length)[0] == masked(record)
        event = Event.FromString(record)
        found += [(event.step, value.tag, value.simple_value) for value in event.summary.value]
        place += 16 + length
    return found


def test_fit_logs_every_step_and_validation(tmp_path, capsys):
    """CSV, event file and terminal say what the history says."""
    pytest.importorskip("tensorboardX", reason="event files are written by tensorboardX")
    path = tmp_path / "new" / "log.csv"
    history = go(log=[csv_log(path), tensorboard_log(tmp_path / "tb"), terminal_log(every=3)]).history
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
def test_what_was_cut_off_or_lies_ahead_is_written_again(tmp_path, cut):
    """A run of 9 steps, killed in the middle of a line, goes on from step 4 (or from 8, where rows are missing)."""
    pytest.importorskip("tensorboardX", reason="event files are written by tensorboardX")
    for make, name in [
        (csv_log, "log.csv"),
        (lambda path, **options: tensorboard_log(path.parent, **options), "events.out.tfevents.jaxblocks"),
    ]:
        path = tmp_path / name
        log = make(path)
        log.begin(0, COLUMNS)
        log.write(rows(1, 9))  # nobody ends a run that is killed
        path.write_bytes(path.read_bytes()[: -cut or None])
        again = make(path)
        again.begin(4, COLUMNS)
        again.write(rows(5, 12))
        again.end()
        log.end()
        if make is csv_log:
            assert [int(line.split(",")[0]) for line in path.read_text().splitlines()[1:]] == list(range(1, 13))
        else:
            assert [step for step, tag, _ in events(path) if tag == "loss"] == list(range(1, 13))
        new = make(path)
        new.begin(0, COLUMNS)  # a new run
        new.end()
        assert path.read_text() == "step,epoch,loss,validation loss\n" if make is csv_log else not events(path)


def test_numbers_and_names_of_every_kind_read_back(tmp_path):
    log = csv_log(tmp_path / "log.csv")
    columns = ["step", 'validation "a", b']
    log.begin(0, columns)
    log.write([{"step": 1, columns[1]: float("nan")}, {"step": 2, columns[1]: np.float32(0.1)}])
    log.end()
    with open(tmp_path / "log.csv") as file:
        read = list(csv.DictReader(file))
    assert list(read[0]) == columns
    assert np.isnan(float(read[0][columns[1]])) and np.float32(read[1][columns[1]]) == np.float32(0.1)


def test_sparse_rows_keep_the_validations(tmp_path):
    go(log=csv_log(tmp_path / "log.csv", every=5))
    assert [line.split(",")[0] for line in (tmp_path / "log.csv").read_text().splitlines()] == "step 4 5 8 10".split()


def test_a_divergence_is_in_the_log(tmp_path):
    """Rows up to it, and itself."""
    with pytest.raises(FloatingPointError, match="In step ") as raised:
        go(loss=lambda o, y: jnp.exp(20 * jnp.abs(o - y)), log=csv_log(tmp_path / "log.csv"), validation=None)
    read = [line.split(",") for line in (tmp_path / "log.csv").read_text().splitlines()[1:]]
    bad = [int(step) for step, _, loss in read if not np.isfinite(float(loss))]
    assert bad[0] == int(raised.value.train.step) + 1


def test_what_is_wrong_is_a_sentence(tmp_path, monkeypatch, sentences):
    with pytest.raises(TypeError, match=r"fit expects logs, but a str came; pass for instance log=\[csv_log\(path"):
        go(log=["log.csv"])
    with pytest.raises(ValueError, match="csv_log expects every to be a whole number >= 1, but 0 came"):
        csv_log(tmp_path / "log.csv", every=0)
    log = csv_log(tmp_path / "log.csv")
    log.begin(0, COLUMNS)
    log.end()
    with pytest.raises(ValueError, match=r"whose columns are step,epoch,.*, but this run has step,loss; pass another"):
        csv_log(tmp_path / "log.csv").begin(3, ["step", "loss"])
    other = csv_log(tmp_path / "other.csv")  # the repair
    other.begin(3, ["step", "loss"])
    other.end()
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    monkeypatch.setitem(sys.modules, "tensorboardX.proto.event_pb2", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install jaxblocks\[train\]"):
        tensorboard_log(tmp_path)


def test_a_log_of_ones_own_is_ended_after_an_error():
    seen = []
    log = Log(lambda *args: seen.append(args), lambda rows: 1 / 0, lambda: seen.append("end"))
    with pytest.raises(ZeroDivisionError):
        go(log=log)
    assert seen == [(0, COLUMNS), "end"]


def test_a_log_that_was_not_called_is_a_sentence(sentences):
    with pytest.raises(TypeError, match="fit expects logs, but a function came; pass for instance"):
        go(log=terminal_log)


def test_a_log_that_cannot_be_written_does_not_stop_training(tmp_path):
    """A disk that fills up is a warning; a path that cannot be used from the beginning is an error before any step."""

    def full(rows):
        raise OSError(28, "No space left on device")

    broken = Log(lambda step, columns: None, full, lambda: None)
    with pytest.warns(UserWarning, match=r"A log cannot be written: .*No space left.*Training goes on without it"):
        fitted = go(log=[broken, csv_log(tmp_path / "loss.csv")])
    assert int(fitted.train.step) == 10 and len((tmp_path / "loss.csv").read_text().splitlines()) == 11
    with pytest.raises(OSError, match="A log cannot be written: .*Pass another path"):
        go(log=csv_log(tmp_path))
