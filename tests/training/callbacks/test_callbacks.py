"""Callbacks of `fit`: when they are called, in which order, what they receive, and how they end a run."""

import functools
import signal
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import for_each

import jaxblocks as jb
from jaxblocks.training import Callback, Run, early_stopping, fit, progress_bar

X = np.linspace(-1, 1, 40, dtype=np.float32)[:, None]
DATA = X, np.sin(3 * X)  # on the host: a call for each step
ON_DEVICE = jax.tree.map(jnp.asarray, DATA)  # a program for all steps between two readings


@pytest.fixture(autouse=True)
def _default_configuration():
    with jax.numpy_dtype_promotion("standard"), jax.debug_nans(False):
        yield


def go(*callbacks, data=DATA, **options):
    options = {"steps": 11, "batch_size": 10, "progress": False, **options}
    return fit(jb.Dense(1), jb.mse, optax.sgd(0.1), data, key=jax.random.key(0), callbacks=callbacks, **options)


def recorder(seen, name, **options):
    """A callback that records each call and its step."""
    note = lambda event: lambda run: seen.append((name, event, run.step))
    events = ("on_restore", "on_start", "on_step", "on_epoch_end", "on_end")
    return Callback(**{event: note(event) for event in events}, **options)


def test_the_order_of_events():
    """All ``on_restore``, then all ``on_start``; each reading callback by callback; ``on_end`` in reverse order."""
    seen = []
    go(recorder(seen, "a"), recorder(seen, "b"), steps=1)
    assert seen == [
        ("a", "on_restore", 0),
        ("b", "on_restore", 0),
        ("a", "on_start", 0),
        ("b", "on_start", 0),
        ("a", "on_epoch_end", 1),
        ("a", "on_step", 1),
        ("b", "on_epoch_end", 1),
        ("b", "on_step", 1),
        ("b", "on_end", 1),
        ("a", "on_end", 1),
    ]


@pytest.mark.parametrize("place", [np.asarray, jnp.asarray], ids=["host", "device"])
def test_the_memory_of_a_run_is_that_of_two_states(place):
    """The state of the steps and the copy for callbacks, also right after the first ones."""
    features, counts = place(np.ones((40, 173), np.float32)), []  # no other test has weights of this shape
    held = lambda run: counts.append(sum(a.shape == (173, 1) for a in jax.live_arrays()))
    callbacks = [Callback(on_start=held, on_step=held, every=2)]
    options = dict(key=jax.random.key(0), batch_size=10, steps=6, progress=False, callbacks=callbacks)
    fit(jb.Dense(1), jb.mse, optax.adam(0.1), (features, place(X)), **options)  # params and two moments
    assert counts == [6, 6, 6, 6]


def test_the_option_every_sets_the_steps_of_a_callback():
    """On host and device; the record and the result do not depend on it."""
    expected, plain = {3: [3, 6, 9, 11], 1: list(range(1, 12)), 100: [11]}, go()
    for data in (DATA, ON_DEVICE):
        seen = {every: [] for every in expected}
        note = lambda every, seen=seen: Callback(on_step=lambda run: seen[every].append(run.step), every=every)
        fitted = go(*map(note, expected), data=data)
        assert fitted.history.step_loss.tolist() == plain.history.step_loss.tolist()
        assert jnp.array_equal(fitted.params["kernel"], plain.params["kernel"])
        assert seen == expected


def test_on_epoch_end_is_called_after_each_epoch_and_at_the_end_of_the_run():
    epochs = []
    go(Callback(on_epoch_end=lambda run: epochs.append(run.epoch)))
    assert epochs == [1.0, 2.0, 2.75]


def test_each_loss_is_reported_once_and_the_training_state_can_be_stored():
    """Readings are adaptive; together their rows are the history, and the states are not donated."""
    rows, states = [], []
    fitted = go(Callback(on_step=lambda run: (rows.extend(run.rows), states.append(run.ts))))
    assert [row["step"] for row in rows] == list(range(1, 12))
    assert np.float32([row["loss"] for row in rows]).tolist() == fitted.history.step_loss.tolist()
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(states))
    first = go(steps=int(states[1].step))
    assert jax.tree.map(jnp.array_equal, first.params, states[1].params) == {"bias": True, "kernel": True}


def test_a_callback_receives_the_validation_of_its_step():
    seen = []
    fitted = go(
        Callback(on_step=lambda run: seen.append(run.rows[-1].get("validation loss")), every=4),
        validation=DATA,
    )
    assert seen == fitted.history.validation["loss"].tolist()


def test_a_callback_ends_the_run_after_its_step():
    def on_step(run):
        run.stop = run.step >= 5

    fitted = go(Callback(on_step=on_step, every=5))
    assert int(fitted.ts.step) == 5 and fitted.history.step_loss.shape == (5,)
    same = go(steps=5)
    assert jnp.array_equal(fitted.params["kernel"], same.params["kernel"])


def test_callbacks_do_not_change_the_result():
    plain = go()
    watched = go(recorder([], "a", every=2), progress_bar(), validation=DATA)
    assert jnp.array_equal(plain.ts.params["kernel"], watched.ts.params["kernel"])
    assert plain.history.step_loss.tolist() == watched.history.step_loss.tolist()


def test_on_end_is_called_after_an_error_in_another_callback():
    ended = []

    def fails(run):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        go(Callback(on_end=lambda run: ended.append(run.step)), Callback(on_step=fails, every=3))
    assert ended == [3]


# ---- signals -------------------------------------------------------------------------------


@pytest.fixture
def interruptible():
    """Handle SIGINT as Python does by default; a process in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(
    ("number", "error", "data"),
    [(signal.SIGINT, KeyboardInterrupt, DATA), (signal.SIGTERM, SystemExit, ON_DEVICE)],
    ids=["SIGINT", "SIGTERM, data on the device"],
)
def test_a_signal_ends_the_run_after_the_step_and_saves_it(tmp_path, number, error, data, capsys):
    pytest.importorskip("orbax.checkpoint", reason="checkpoints require orbax")
    handlers = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    sends = Callback(on_step=lambda run: signal.raise_signal(number) if run.step == 3 else None, every=3)
    ended, options = [], {"validation": DATA, "data": data, "batch_size": 5}
    with pytest.raises(error) as raised:
        go(sends, Callback(on_end=lambda run: ended.append(run.step)), checkpoint_dir=tmp_path, **options)
    assert int(raised.value.ts.step) == 4 and ended == [4]
    assert error is KeyboardInterrupt or raised.value.code == 143
    name = signal.Signals(number).name
    line = f"fit ended at step 4 by {name}: step 4 is saved in {tmp_path}; the same call of fit continues from it.\n"
    assert capsys.readouterr().err == line
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-000000-step-4"]
    with jax.debug_nans(False):
        resumed, whole = go(checkpoint_dir=tmp_path, **options), go(**options)
    assert resumed.history.step_loss.tolist() == whole.history.step_loss.tolist()
    assert resumed.history.epoch.tolist() == whole.history.epoch.tolist()


def test_a_signal_without_checkpoints_says_that_nothing_is_saved(capsys):
    with pytest.raises(SystemExit):
        go(Callback(on_step=lambda run: signal.raise_signal(signal.SIGTERM), every=2), steps=2)
    assert "fit ended at step 2 by SIGTERM: nothing is saved; pass checkpoint_dir=" in capsys.readouterr().err


@pytest.mark.usefixtures("interruptible")
def test_a_second_signal_ends_the_run_at_once():
    def on_step(run):
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt) as raised:
        go(Callback(on_step=on_step, every=3))
    assert int(raised.value.ts.step) == 3
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_signals_that_the_program_handles_are_left_to_it():
    """Also in a thread, where Python allows no handlers."""
    received = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    try:
        fitted = go(Callback(on_step=lambda run: signal.raise_signal(signal.SIGTERM), every=5))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert int(fitted.ts.step) == 11 and received == [signal.SIGTERM] * 3
    with ThreadPoolExecutor(1) as pool:
        assert int(pool.submit(go, steps=2).result().ts.step) == 2


# ---- early stopping ------------------------------------------------------------------------


def test_early_stopping_observes_any_metric_of_the_validation():
    metrics = {"worse": lambda outputs, y: jnp.full(len(y), 1.0), "score": lambda outputs, y: -((outputs - y) ** 2)}
    options = dict(steps=40, validation=DATA, metrics=metrics)
    # The first value is an improvement on inf.
    assert int(go(early_stopping(2, monitor="worse"), **options).ts.step) == 12
    assert int(go(early_stopping(2), **options).ts.step) == 40
    assert int(go(early_stopping(2, monitor="score"), **options).ts.step) == 12
    assert int(go(early_stopping(2, monitor="score", maximize=True), **options).ts.step) == 40
    with pytest.raises(TypeError, match="did you mean maximize"):
        early_stopping(2, mode="max")
    got = "'loss', 'worse', 'score'"
    for name, near in (("other", "loss"), ("val_worse", "worse"), ("scores", "score")):
        with pytest.raises(ValueError, match=f"a validation metric '{name}' .*, got {got}; write monitor='{near}'"):
            go(early_stopping(2, monitor=name), **options)


@for_each({f"after {before}": before for before in range(7)})
def test_a_run_resumed_after_any_validation_stops_after_the_same_one(before):
    """The second loss is the best one, so patience 3 ends after the fifth, and patience 4 after the sixth."""
    losses = [3.0, 2.0, 2.5, 2.0, 2.25, 4.0]
    for patience, last in ((3, 5), (4, 6)):
        callback = early_stopping(patience)
        run = Run(steps=100, columns=["step", "epoch", "loss", "validation loss"])
        run.validations = [(float(epoch), {"loss": loss}) for epoch, loss in enumerate(losses[:before], 1)]
        callback.on_start(run)
        stops = [before] if run.stop else []
        for epoch, loss in enumerate(losses[before:], before + 1):
            if not run.stop:
                run.validations.append((float(epoch), {"loss": loss}))
                callback.on_epoch_end(run)
                stops += [epoch] if run.stop else []
        assert stops == [max(last, before)]
    improved = [
        (float(epoch), {"loss": loss}) for epoch, loss in enumerate([2.0, 3.0, 3.0, 1.0])
    ]  # with more patience before
    run = Run(steps=100, columns=["validation loss"], validations=improved)
    early_stopping(2).on_start(run)
    assert not run.stop


def test_a_resumed_run_keeps_the_patience_of_the_original_run(tmp_path):
    """A run interrupted after fewer steps and resumed ends at the same step with the same best params."""
    pytest.importorskip("orbax.checkpoint", reason="checkpoints require orbax")
    worse = functools.partial(go, validation=(X, -DATA[1]), checkpoint_dir=tmp_path)
    straight = go(early_stopping(3), steps=100, validation=(X, -DATA[1]))
    stop = int(straight.ts.step)
    worse(early_stopping(3), steps=stop - 4)
    resumed = worse(early_stopping(3), steps=100)
    assert int(resumed.ts.step) == stop < 100
    assert jnp.array_equal(resumed.params["kernel"], straight.params["kernel"])
    again = worse(early_stopping(3), steps=100)
    assert int(again.ts.step) == stop
