"""A training loop for those who need no other: `fit`, what it returns, and the history that plots itself."""

import contextlib
import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxblocks.checks import describe, describe_any, require_key, require_whole
from jaxblocks.core import Layer, StatefulLayer, as_inputs
from jaxblocks.training.checkpoint import Saver, make_directory, read_newest, rebuild, require_orbax
from jaxblocks.training.data import count_rows, minibatches, name_arrays, require_batch_size, take_rows
from jaxblocks.training.logs import Log, as_logs
from jaxblocks.training.nonfinite import first_not_finite
from jaxblocks.training.step import (
    TrainState,
    evaluate,
    evaluation_forward,
    init_train_state,
    require_compute_dtype,
    require_loss,
    require_optimizer,
    train_step,
    training_forward,
    training_objective,
)
from jaxblocks.training.stopping import StoppingState, early_stopping

__all__ = ["Fitted", "History", "fit"]


@dataclass(frozen=True, repr=False)
class History:
    """What `fit` saw: NumPy arrays.

    Args:
        step_loss: the objective of each step's batch before that step, ``(steps,)``.
        step_epoch: epochs made after each step, ``(steps,)``.
        epoch: epochs made at each validation, ``(validations,)``.
        validation: by name, the means over the validation data, ``(validations,)`` each; ``"loss"`` is the loss.
    """

    step_loss: np.ndarray
    step_epoch: np.ndarray
    epoch: np.ndarray
    validation: dict[str, np.ndarray]

    def plot(self, ax=None):
        """Draw the losses (and validation metrics) over epochs on Matplotlib axes, and return the axes."""
        import matplotlib.pyplot as plt

        ax = plt.subplots()[1] if ax is None else ax
        ax.plot(self.step_epoch, self.step_loss, label="training loss", linewidth=1, alpha=0.6)
        for name, values in self.validation.items():
            ax.plot(self.epoch, values, label=f"validation {name}", marker=".")
        ax.set_xlabel("epoch")
        ax.legend()
        return ax

    def __repr__(self):
        if not len(self.step_loss):
            return "History(0 steps)"
        last = "".join(
            f", validation {name} {values[-1]:.4g}" for name, values in self.validation.items() if len(values)
        )
        return f"History({len(self.step_loss)} steps, last training loss {self.step_loss[-1]:.4g}{last})"


class Fitted(NamedTuple):
    """What `fit` returns.

    Args:
        params, state: those with the lowest validation loss; the last ones without validation.
        history: losses and metrics on the way.
        train: the training state after the last step, to go on from.
    """

    params: Any
    state: Any
    history: History
    train: TrainState

    def __repr__(self):
        return f"Fitted({self.history!r}, step {int(self.train.step)})"


def fit(
    net: Layer | StatefulLayer | Callable,
    loss: Callable,
    optimizer: optax.GradientTransformation,
    data: tuple,
    *,
    key,
    batch_size: int = 64,
    epochs: int | None = None,
    steps: int | None = None,
    validation: tuple | None = None,
    metrics: Mapping[str, Callable] | None = None,
    patience: int | None = None,
    penalty: Callable | None = None,
    augment: Callable | None = None,
    progress: bool = True,
    train: TrainState | None = None,
    checkpoint_dir: str | os.PathLike | None = None,
    checkpoint_every: int | None = None,
    log: Log | Sequence[Log] | None = None,
    compute_dtype: Any = None,
) -> Fitted:
    r"""Train a net on ``data = (x, y)``: minibatches, progress bar, validation, early stopping, best params.

    It is these five lines, whose params it reproduces bit for bit, and bookkeeping; copy them where
    you need another loop::

        train = init_train_state(net, optimizer, key, x[:64])
        step = train_step(net, loss, optimizer)
        for x_batch, y_batch in minibatches(key, (x, y), 64, epochs=10):
            train, value = step(train, x_batch, y_batch)
            ...  # value is on the device: read it now and then, not each time, or the device waits

    Args:
        loss, optimizer, penalty, augment: as in `train_step`.
        data, batch_size: as in `minibatches`; ``x`` is an array, or a tuple of several inputs. Side inputs that belong
            to the data come as inputs: ``Wire(lambda f, x, mask: f.net(x, mask=mask), net=net)`` on ``((x, mask), y)``.
        key: for initial params, the order of the data, and the layers and augmentation that draw.
        epochs, steps: how long, one of the two, counted from the beginning of the run.
        validation: ``(x, y)``; its mean loss (without penalty) is computed after each epoch and at the end.
        metrics: named ``(outputs, y)`` functions, as in `evaluate`, on the validation data.
        patience: stop after so many validations without a lower loss; ``None`` never stops.
        progress: show a bar with the loss and the validation metrics; it is drawn seldom where it is no terminal.
        train: go on from here (``fitted.train``, or a state with params of your own). With the same ``key``
            and data, the training state after stopping and going on is that of not stopping. The history, the
            best params and the count of ``patience`` are those of one call: each begins anew.
        checkpoint_dir: a folder for checkpoints of this run (`jaxblocks.training.checkpoint`). A run that was killed,
            at any moment, and is started again by the same call goes on from the last one and ends with the same
            params and the same history, bit for bit, best params and ``patience`` included; one that had ended
            returns what it returned; ``train`` counts only where there is no checkpoint yet. The last two are kept,
            and none is written of a state that is not finite. They are written beside training; what cannot be saved
            (a full disk) is a warning, and training goes on.
            A folder of another run is refused where leaves, key, batch size, metrics or the shapes of the data differ;
            other values of the data, another learning rate or activation are not noticed.
        checkpoint_every: steps from one to the next; ``None`` for one a minute. One is written at the end as well.
        log: `csv_log`, `tensorboard_log`, `terminal_log`, or several in a list: the loss of each step and the means of
            each validation. A run that goes on from a checkpoint goes on in the same files.
        compute_dtype: mixed precision, as in `train_step`, in training and validation: ``jnp.bfloat16``.

    Raises:
        TypeError: before the first step, where ``key`` is no key, ``loss`` no function, or ``optimizer`` none.
        ValueError: before the first step, for data that are empty, not finite, or do not fit together, for numbers
            that are not whole, and for checkpoints none of which is good or that are of another run; after it, what
            ``loss`` says about a batch on which it was not finite (labels out of range).
        FloatingPointError: where loss or params are not finite otherwise: in which step, and in which layer it
            began, forward or backward; ``error.train`` holds the last finite training state.
        ModuleNotFoundError: for ``checkpoint_dir`` without orbax.

    >>> from jaxblocks.layers.dense import Dense
    >>> x = jnp.linspace(-1, 1, 64)[:, None]
    >>> squared_error = lambda outputs, y: (outputs - y) ** 2
    >>> key = jax.random.key(0)
    >>> data = x, 3 * x
    >>> fitted = fit(Dense(1), squared_error, optax.sgd(0.3), data, key=key, batch_size=16, epochs=20, progress=False)
    >>> print(f"{fitted.params['kernel'].item():.3f}")
    3.000
    >>> fitted.history.step_loss.shape
    (80,)

    Source: Diehl 2023, sections 1.3 to 1.6.
    """
    metrics = dict(metrics or {})
    require_key("fit", key)
    require_loss("fit", loss)
    require_optimizer("fit", optimizer)
    rows = _check_data("data", data)
    batch_size = require_batch_size("fit", batch_size, rows)
    if validation is not None:
        _check_data("validation", validation)
    elif metrics or patience is not None:
        raise ValueError(
            "fit computes metrics and stops early on validation data, but none came; pass validation=(x, y)."
        )
    if "loss" in metrics:
        raise ValueError('fit calls the mean of the loss "loss"; give the metric another name.')
    if (epochs is None) == (steps is None):
        raise ValueError(f"fit expects one of epochs and steps, but epochs={epochs} and steps={steps} came.")
    compute_dtype = require_compute_dtype("fit", compute_dtype)
    logs = as_logs(log)
    if checkpoint_every is not None:
        checkpoint_every = require_whole("fit", "checkpoint_every", checkpoint_every)
        if checkpoint_dir is None:
            raise ValueError("fit saves checkpoints in a folder, but none came; pass checkpoint_dir=.")
    batches = lambda start: minibatches(key, data, batch_size, epochs=None, start=start)
    per_epoch = rows // batch_size
    if epochs is None:
        total = require_whole("fit", "steps", steps)
    else:
        total = require_whole("fit", "epochs", epochs) * per_epoch
    stopping = early_stopping(total if patience is None else require_whole("fit", "patience", patience))

    if train is None:
        x, _ = next(batches(0))
        train = init_train_state(net, optimizer, key, *as_inputs(x))
    else:
        _require_training_state(train)
        train = _copy(train)  # the caller's buffers are not donated
    metrics = {"loss": loss, **metrics}
    seen = _Seen(int(train.step), stopping.init())
    if checkpoint_dir is not None:
        require_orbax("fit")
        make_directory("fit", checkpoint_dir)
        about = _about(data, batch_size, validation, metrics)
        train, seen = _go_on(checkpoint_dir, train, seen, about, total if patience is None else patience)
    start, ended = int(train.step), bool(seen.stopper.stop) or (int(train.step) == total and seen.resumed)
    if total <= start and not ended:
        raise ValueError(
            f"fit counts from the beginning of the run: {start} steps are made and {total} were asked for; "
            f"ask for more than {start / per_epoch:g} epochs ({start} steps)."
        )

    step = train_step(net, loss, optimizer, penalty=penalty, augment=augment, compute_dtype=compute_dtype)
    is_sound = _soundness(train)
    pending, chunk, since = [], 1, time.monotonic()  # losses on the device; how many of them to read at once
    good, saved = _copy(train), time.monotonic()  # the training state at the last look, known to be finite

    with contextlib.ExitStack() as stack:
        saver = None
        if checkpoint_dir is not None:
            saver = Saver(checkpoint_dir)
            stack.callback(saver.close)
        columns = ["step", "epoch", "loss", *(f"validation {name}" for name in metrics if validation is not None)]
        for one in () if ended else logs:
            stack.callback(_end, one)
            _begin(one, start, columns)
        bar = stack.enter_context(_bar(start, total, progress and not ended))
        for number, (x, y) in enumerate(() if ended else batches(start), start + 1):
            train, value = step(train, x, y)
            pending.append(value)
            at_validation = validation is not None and (number % per_epoch == 0 or number == total)
            at_checkpoint = checkpoint_every is not None and number % checkpoint_every == 0
            if not (len(pending) == chunk or at_validation or at_checkpoint or number == total):
                continue
            values = jax.device_get(pending)
            rows = [
                {"step": n, "epoch": n / per_epoch, "loss": float(value)}
                for n, value in enumerate(values, number + 1 - len(values))
            ]
            if not (np.isfinite(values).all() and is_sound(train)):
                _write(logs, rows)
                objective = training_objective(net, loss, penalty, augment, compute_dtype)
                forward = training_forward(net, augment, compute_dtype)
                steps = batches(int(good.step))
                _explain(forward, objective, loss, step, is_sound, good, steps, len(pending), per_epoch)
            seen.losses += values
            good, pending = _copy(train), []
            bar.set_postfix({"loss": f"{seen.losses[-1]:.4g}", **_words(seen.validated)}, refresh=False)
            if number == start + 1:
                bar.unpause()  # this step was compiled: its time tells nothing about those to come
            bar.update(len(values))
            quick, since = time.monotonic() - since < 0.5, time.monotonic()
            chunk = min(2 * chunk, 64) if quick else max(chunk // 2, 1)
            if at_validation:
                found = evaluate(net, train.params, train.state, validation, metrics, batch_size, compute_dtype)
                if not math.isfinite(found["loss"]):
                    _ask_the_loss(net, loss, train, validation, batch_size, compute_dtype)
                rows[-1] |= {f"validation {name}": mean for name, mean in found.items()}
                seen.validated.append((number / per_epoch, found))
                bar.set_postfix({"loss": f"{seen.losses[-1]:.4g}", **_words(seen.validated)}, refresh=False)
                seen.stopper = stopping.update(seen.stopper, found["loss"])
                if seen.stopper.improved:
                    seen.best = _copy((train.params, train.state))
            last = number == total or bool(seen.stopper.stop)
            _write(logs, rows)  # before the checkpoint, so that no row is missing where a run goes on
            if saver is not None:
                in_time = checkpoint_every is None and time.monotonic() - saved > 60
                if at_checkpoint or in_time or last:
                    saver.start(*_stored(good, seen, about))
                    saved = time.monotonic()
            if last:
                break

    params, state = seen.best or _copy((train.params, train.state))
    history = History(
        np.array(seen.losses),
        np.arange(seen.first + 1, seen.first + 1 + len(seen.losses)) / per_epoch,
        np.array([epoch for epoch, _ in seen.validated]),
        {name: np.array([found[name] for _, found in seen.validated]) for name in metrics} if seen.validated else {},
    )
    return Fitted(params, state, history, train)


@dataclass
class _Seen:
    """What `fit` gathers on the way, beside the training state."""

    first: int
    stopper: StoppingState
    losses: list = field(default_factory=list)
    validated: list = field(default_factory=list)
    best: tuple | None = None
    resumed: bool = False


def _begin(log, step, columns):
    try:
        log.begin(step, columns)
    except OSError as error:
        raise OSError(f"A log cannot be written: {error}. Pass another path, or make room there.") from error


def _write(logs, rows):
    """A log that cannot be written any more (a full disk) is a warning: what is trained is not lost for it."""
    for one in tuple(logs):
        try:
            one.write(rows)
        except OSError as error:
            logs.remove(one)
            warnings.warn(f"A log cannot be written: {error}. Training goes on without it.", stacklevel=3)


def _end(log):
    with contextlib.suppress(OSError):  # of what a full disk has not taken, `_write` has told
        log.end()


def _bar(start, total, progress):
    from tqdm.auto import tqdm

    seen = sys.stderr.isatty() or "ipykernel" in sys.modules  # else it fills a file, line by line
    return tqdm(
        total=total, initial=start, unit="step", disable=not progress, mininterval=0.5 if seen else 10, miniters=1
    )


def _words(validated):
    return {f"validation {name}": f"{value:.4g}" for name, value in (validated[-1][1] if validated else {}).items()}


@jax.jit
def _copy(tree):
    return jax.tree.map(jnp.copy, tree)


@jax.jit
def _all_finite(tree):
    return jnp.array([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(tree)]).all()


@jax.jit
def _any_nan(tree):
    floats = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return jnp.array([jnp.isnan(leaf).any() for leaf in floats], bool).any()


def _soundness(train):
    """Whether a training state may be saved: finite params, no NaN in the states of net and optimizer.

    Infinities are at home there (the best value so far, before there is one); NaN is where a run began with it.
    """
    from_the_start = bool(_any_nan((train.state, train.opt_state)))
    return lambda train: bool(
        _all_finite(train.params) and (from_the_start or not _any_nan((train.state, train.opt_state)))
    )


# ---- checkpoints ---------------------------------------------------------------------------


def _about(data, batch_size, validation, metrics) -> dict:
    """What must not change from one start of a run to the next."""
    words = lambda tree: [f"{place} {describe(a)}" for place, a in name_arrays(tree).items()]
    held = {"data": words(data), "batch_size": batch_size}
    return held if validation is None else held | {"validation": words(validation), "metrics": list(metrics)}


def _stored(train, seen, about):
    """Trees, step and notes of a checkpoint."""
    trees = {"train": train, "history": {"losses": np.array(seen.losses)}}
    if seen.best is not None:
        trees["best"] = seen.best
    stopper = {name: np.asarray(value).item() for name, value in seen.stopper._asdict().items()}
    notes = {"fit": about, "first": seen.first, "validated": list(seen.validated), "stopper": stopper}
    return trees, int(train.step), notes


def _go_on(directory, train, seen, about, patience):
    """The training state and what was seen, from the newest good checkpoint if there is one."""
    found = read_newest(directory, {"train": train}, optional=("history", "best"))
    if found is None:
        return train, seen
    begun, train = train, found.trees["train"]
    notes, changed = found.notes, []
    if "fit" in notes:
        names = [*notes["fit"], *(name for name in about if name not in notes["fit"])]
        differs = [name for name in names if notes["fit"].get(name) != about.get(name)]
        changed = [f"{name} was {notes['fit'].get(name)} and is {about.get(name)}" for name in differs]
    if not _same_key(begun.key, train.key):
        changed.append("the key is another one")
    if changed:
        raise ValueError(
            f"fit found the checkpoints of another run in {found.path.parent}: {'; '.join(changed)}. Pass another "
            "folder, or the arguments of that run."
        )
    for path in found.refused:  # neither lost nor counted among those to keep
        with contextlib.suppress(OSError):
            path.rename(path.with_name(f"refused-{path.name}"))
    if "fit" not in notes:  # saved by a loop of the user's own
        return train, _Seen(int(train.step), seen.stopper)
    stopper = {name: jnp.asarray(notes["stopper"][name], value.dtype) for name, value in seen.stopper._asdict().items()}
    stopper["stop"] = stopper["since_best"] >= patience
    best = found.trees.get("best")
    return train, _Seen(
        notes["first"],
        StoppingState(**stopper),
        list(np.asarray(found.trees["history"]["['losses']"])),
        [(epoch, means) for epoch, means in notes["validated"]],
        None if best is None else rebuild((train.params, train.state), best),
        resumed=True,
    )


def _same_key(a, b) -> bool:
    plain = lambda key: jax.random.key_data(key) if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else key
    return np.array_equal(plain(a), plain(b))


def _require_training_state(train):
    if not isinstance(train, TrainState):
        repair = "train=fitted.train" if isinstance(train, Fitted) else "what init_train_state or a step returned"
        raise TypeError(f"fit goes on from a training state, but {describe_any(train)} came; pass {repair}.")
    if any(isinstance(leaf, jax.Array) and leaf.is_deleted() for leaf in jax.tree.leaves(train)):
        raise ValueError(
            "fit goes on from a training state, but this one was given to a step, which has used its memory; pass the "
            "one that the step returned, or give the step a copy: jax.tree.map(jnp.copy, train)."
        )


def _check_data(name, data):
    if not isinstance(data, (tuple, list)) or len(data) != 2:
        came = f"a {type(data).__name__} of {len(data)}" if isinstance(data, (tuple, list)) else describe_any(data)
        raise TypeError(f"fit expects {name} to be a pair (x, y), but {came} came; put several inputs in a tuple x.")
    rows = count_rows("fit", data, name)
    for place, a in name_arrays(data).items():
        if jnp.issubdtype(a.dtype, jnp.inexact):
            bad, index, value = _not_finite(a)
            if bad:
                raise ValueError(
                    f"fit expects finite data, but {name}{place}, {describe(a)}, holds {value} at {index} "
                    f"({bad} of its {math.prod(a.shape)} values are not finite); drop these rows or fill them in."
                )
    return rows


_AT_ONCE = 2**20  # values: so many of a memory map are in memory while they are checked


def _not_finite(a):
    """How many values are not finite, and index and value of the first one."""
    a = np.asarray(a) if isinstance(a, jax.Array) else a
    number, first = 0, (None, None)
    rows = max(_AT_ONCE // max(math.prod(a.shape[1:]), 1), 1)
    for start in range(0, a.shape[0], rows):
        part = np.asarray(a[start : start + rows])
        bad = ~np.isfinite(part)
        if number == 0 and bad.any():
            row, *rest = (int(i) for i in np.unravel_index(bad.argmax(), bad.shape))
            first = (start + row, *rest), part[(row, *rest)]
        number += int(bad.sum())
    return number, *first


# ---- when something is not finite ----------------------------------------------------------


def _explain(forward, objective_of, loss, step, is_sound, train, batches, steps, per_epoch):
    """Repeat the steps since the last good training state one by one; raise at the first that is not finite."""
    for _, (x, y) in zip(range(steps), batches, strict=False):
        before = train  # not donated: it may be on its way to the disk
        train, value = step(_copy(train), x, y)
        if np.isfinite(value) and is_sound(train):
            continue
        number = int(train.step)
        x, y = jax.tree.map(jnp.asarray, (x, y))
        outputs, _ = forward(before, x, {})
        try:
            loss(outputs, y)
        except ValueError as error:
            error.add_note(f"in step {number} of fit; error.train is the training state before it")
            error.train = before
            raise
        if np.isfinite(value):
            what = f"the loss is {value:.4g}, but its gradient made params that are not finite"
            if _all_finite(train.params):
                what = f"the loss is {value:.4g}, but the state of the net or of the optimizer became NaN"
        elif _all_finite(outputs):
            what = f"the loss is {value}, though the outputs of the net and the params are finite"
        else:
            what = f"the loss is {value}, and the outputs of the net are not finite, though its params are"
        where = _where(objective_of(before, x, y, {}), before, _all_finite(outputs), np.isfinite(value))
        error = FloatingPointError(
            f"In step {number} (epoch {1 + (number - 1) // per_epoch}) {what}. {where}"
            "Try a smaller learning rate, or optax.clip_by_global_norm in front of the optimizer; error.train is the "
            "training state before that step."
        )
        error.train = before
        raise error
    raise FloatingPointError(
        f"Between steps {int(train.step) - steps} and {int(train.step)} loss or params were not finite, but they were "
        "when the steps were repeated: this device's arithmetic is not deterministic. Try a smaller learning rate."
    )


def _where(objective, train, sound_outputs, sound_value) -> str:
    """In which layer a step stops being finite, as a sentence; nothing where that cannot be told."""
    outside = "the loss (outside of the layers)" if sound_outputs else "the net itself, outside of its layers"
    try:
        for way, f in (
            ("forward", objective),
            ("backward", jax.grad(lambda params: objective(params)[0])),
        ):
            found = first_not_finite(f, train.params)
            if found is not None:
                place = f"layer {found.layer}" if found.layer else outside
                turns = "".join(f", turn {turn} of its loop (from 0)" for turn in found.turns)
                return f"It began in the {way} pass of {place}, in the operation {found.operation}{turns}. "
    except (RuntimeError, NotImplementedError, TypeError, ValueError):  # no memory, a primitive of somebody's own
        return ""
    if not sound_value:  # a constant that was meant to be NaN
        return ""
    return "Forward and backward pass are finite: it began in the update of the optimizer. "


def _ask_the_loss(net, loss, train, data, batch_size, compute_dtype):
    """Let the loss look at concrete values, in case it has something to say about the labels."""
    for first in range(0, count_rows("fit", data), batch_size):
        x, y = jax.tree.map(jnp.asarray, take_rows(data, slice(first, first + batch_size)))
        try:
            loss(evaluation_forward(net, train.params, train.state, x, compute_dtype), y)
        except ValueError as error:
            error.add_note(f"in the validation data of fit, rows {first} to {first + len(jax.tree.leaves(y)[0]) - 1}")
            error.train = train
            raise
