"""What only informs never ends a run: a closed pipe, a full device, a closed or missing standard error."""

import contextlib
import io
import os
import signal
import sys
import warnings

import jax
import jax.numpy as jnp
import optax
import pytest

import jaxblocks as jb
from jaxblocks.checks.terminal import Terminal, warn
from jaxblocks.training import fit, terminal_log
from jaxblocks.training.callbacks.callback import Run
from jaxblocks.training.callbacks.progress import progress_bar
from jaxblocks.training.loop.signals import StopSignals, stop_signals


@contextlib.contextmanager
def broken(name):
    """A stream whose writes fail; ``None`` is what Python has for a descriptor that is closed at its start."""
    stream = {"closed": io.StringIO, "missing": lambda: None}.get(name, lambda: open_broken(name))()
    if name == "closed":
        stream.close()
    yield stream
    if stream is not None:
        with contextlib.suppress(OSError):
            stream.close()


def open_broken(name):
    if name == "full device":
        return open("/dev/full", "w")
    if name == "bad descriptor":
        return os.fdopen(os.open(os.devnull, os.O_RDONLY), "w")
    reading, writing = os.pipe()
    os.close(reading)
    return os.fdopen(writing, "w")


WITH_DESCRIPTORS = ["closed pipe", "bad descriptor", *(["full device"] if os.path.exists("/dev/full") else [])]


@pytest.mark.parametrize("name", [*WITH_DESCRIPTORS, "closed", "missing"])
def test_bars_logs_and_messages_are_given_up(name, monkeypatch):
    """The line after a signal, too, which must not replace the exit status, and warnings."""
    run = Run(steps=2, step=1, rows=[{"step": 1, "epoch": 0.5, "loss": 2.0}], losses=[2.0])
    signals = StopSignals()
    signals.receive(signal.SIGTERM, None)
    with broken(name) as stream, monkeypatch.context() as patched, warnings.catch_warnings():
        patched.setattr(sys, "stderr", stream)
        patched.setattr(sys, "stdout", stream)
        for callback in (progress_bar(), terminal_log(every=1)):
            for event in (callback.on_start, callback.on_step, callback.on_end):
                if event is not None:
                    event(run)
        with pytest.raises(SystemExit) as raised:
            signals.raise_meaning(run)
        assert raised.value.code == 128 + signal.SIGTERM
        if stream is not None:
            warnings.simplefilter("always")
            # As Python does; pytest replaces it.
            patched.setattr(warnings, "showwarning", lambda message, *_: print(message, file=stream, flush=True))
            warn("a checkpoint cannot be written")


def test_nothing_is_left_for_the_end_of_the_process():
    """Python writes what a buffer still holds, and an error then changes the exit status to 120."""
    for name in WITH_DESCRIPTORS:
        with broken(name) as stream:
            assert Terminal(stream).write("a line\n") == 7
            stream.close()  # would write it
    reading, writing = os.pipe()
    with os.fdopen(reading) as reader, os.fdopen(writing, "w") as writer:
        print("before", file=writer)
        Terminal(writer).write("ä\n")
        assert [reader.readline(), reader.readline()] == ["before\n", "ä\n"]


def test_a_run_with_a_broken_standard_error_is_complete_and_saved(tmp_path, monkeypatch):
    pytest.importorskip("orbax.checkpoint", reason="checkpoints require orbax")
    x = jnp.linspace(-1, 1, 8)[:, None]
    options = dict(key=jax.random.key(0), steps=2, batch_size=8, checkpoint_dir=tmp_path)
    with broken("closed pipe") as stream, jax.numpy_dtype_promotion("standard"), monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", stream)
        assert int(fit(jb.Dense(1), jb.mse, optax.sgd(0.1), (x, x), **options).ts.step) == 2
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-000000-step-2"]


def test_a_given_file_that_is_closed_ends_its_log_with_a_warning():
    run = Run(steps=2, rows=[{"step": 1, "epoch": 0.5, "loss": 2.0}])
    with open(os.devnull, "w") as stream:
        stream.close()
        log = terminal_log(every=1, file=stream)
        log.on_start(run)
        with pytest.warns(UserWarning, match="A log cannot be written"):
            log.on_step(run)


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="Windows has no SIGHUP")
def test_a_lost_session_ends_a_run_as_sigterm_does():
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores the signal
    try:
        with stop_signals() as signals:
            signal.raise_signal(signal.SIGHUP)
            with pytest.raises(SystemExit) as raised:
                signals.raise_meaning(Run(steps=2))
    finally:
        signal.signal(signal.SIGHUP, before)
    assert raised.value.code == 128 + signal.SIGHUP


def test_lines_that_tqdm_writes_clear_the_bar(capsys):
    import tqdm

    with tqdm.tqdm(total=2, file=Terminal(sys.stderr)):
        capsys.readouterr()
        tqdm.tqdm.write("a line")
        assert "0/2" in capsys.readouterr().err  # cleared, and shown again after the line
