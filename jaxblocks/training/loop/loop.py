"""The training loop `fit`: steps, callbacks between them, and the result."""

import contextlib
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import numpy as np
import optax
from jax.typing import DTypeLike
from jaxtyping import Array, Key

from jaxblocks.checks.errors import describe, require
from jaxblocks.checks.expectations import PositiveInt, checked
from jaxblocks.checks.signatures import arguments_of, takes
from jaxblocks.checks.values import has_values, reject_traced
from jaxblocks.core.pairs import LayerLike, Params, State
from jaxblocks.core.shapes import as_inputs
from jaxblocks.sharding import Rule, batch_sharding, mesh_of, with_automatic_axes, without_explicit_axes
from jaxblocks.training.callbacks.callback import Callback, Run, call
from jaxblocks.training.callbacks.progress import progress_bar
from jaxblocks.training.callbacks.validation import validation_callback
from jaxblocks.training.checkpoint.resume import checkpoints
from jaxblocks.training.data.batches import minibatches
from jaxblocks.training.data.rows import (
    check_batch_size,
    check_devices,
    check_finite_pair,
    check_numbers,
    is_on_one_device,
    name_arrays,
)
from jaxblocks.training.evaluation import check_metrics
from jaxblocks.training.loop.descriptions import describe_function
from jaxblocks.training.loop.divergence import finite_state_check, raise_divergence
from jaxblocks.training.loop.history import History, history_of
from jaxblocks.training.loop.intervals import MOST_STEPS, batch_by_batch, in_one_program, is_for_a_loop
from jaxblocks.training.loop.signals import StopSignals, stop_signals
from jaxblocks.training.optimizers.transformations import check_optimizer
from jaxblocks.training.processes import any_process, are_several, is_first, largest
from jaxblocks.training.step.objective import as_compute_dtype
from jaxblocks.training.step.state import (
    TrainState,
    check_no_carry,
    check_not_donated,
    copy_tree,
    init_train_state,
)
from jaxblocks.training.step.step import train_step

__all__ = ["Fitted", "fit"]


class Fitted(NamedTuple):
    """The result of `fit`.

    Args:
        params, state: those with the lowest validation loss; without validation, those after the last step.
        history: the recorded losses and metrics.
        ts: the training state after the last step, from which another call of `fit` can continue.
    """

    params: Params
    state: State
    history: History
    ts: TrainState

    if not TYPE_CHECKING:  # a type checker reports such names itself

        def __getattr__(self, name):
            has = f"it has {', '.join(self._fields)}; the net is the one that fit was called with"
            raise AttributeError(f"'Fitted' object has no attribute {name!r}; {has}", name=name, obj=self)

    def __repr__(self):
        step = self.ts.step
        return f"Fitted({self.history!r}, step {step if has_values(step, 0) else describe(step)})"


@checked
@without_explicit_axes()
def fit(
    net: LayerLike,
    loss: Callable,
    optimizer: optax.GradientTransformation,
    data: tuple,
    *,
    key: Key[Array, ""],
    epochs: PositiveInt | None = None,
    steps: PositiveInt | None = None,
    batch_size: PositiveInt | None = None,
    last_batch: Literal["drop", "keep"] = "drop",
    validation: tuple | None = None,
    metrics: Mapping[str, Callable] | None = None,
    ts: TrainState | None = None,
    checkpoint_dir: Any = None,
    progress: bool = True,
    callbacks: Sequence[Callback] = (),
    penalty: Callable | None = None,
    augment: Callable | None = None,
    compute_dtype: DTypeLike | None = None,
    accumulate: PositiveInt = 1,
    mesh: Any = None,
    sharding: Rule | Sequence[Rule] = (),
) -> Fitted:
    r"""Train a net on ``data = (x, y)`` with minibatches, and return the params, the state and the history.

    The result is that of these lines up to rounding; start from them for a custom loop::

        ts = init_train_state(key, net, optimizer, x[:64])
        step = train_step(net, loss, optimizer)
        for x_batch, y_batch in minibatches(key, (x, y), 64, epochs=10):
            ts, value = step(ts, x_batch, y_batch)
            ...  # value is on the device; reading it in every step would stall the device

    For JAX arrays on one device, one program makes all steps between two readings of the losses, and XLA may round
    differently in it. Data on the host, and nets with convolutions on CPU, where these are slow in loops, take one call
    for each step; then the result is bitwise that of the lines.

    All other parts are callbacks: the progress bar, the validation, checkpoints, logs (`csv_log`, `tensorboard_log`,
    `terminal_log`), early stopping (`early_stopping`), and custom ones (`Callback`).

    Args:
        net, loss, optimizer: as in `train_step`.
        data: as in `minibatches`; ``x`` is an array, or a tuple of several inputs. Side inputs that belong to the data
            are passed as inputs: ``Wire(lambda f, x, mask: f.net(x, mask=mask), net=net)`` on ``((x, mask), y)``.
        batch_size: the number of rows of a batch; by default 64, or all rows where there are fewer.
        last_batch: as in `minibatches`. By default the rows that do not fill a batch are left out in an epoch, other
            ones in each: 100 rows in batches of 64 are one step per epoch. With ``"keep"`` they are a smaller batch,
            which takes another compilation: two steps per epoch, of 64 and of 36 rows. Not on a mesh.
        key: the random key of the initial params, the order of the data, random layers and the augmentation.
        epochs, steps: the total length of the run, including earlier parts; pass one of the two.
        validation: ``(x, y)``; the mean loss (without penalty) is computed after each epoch and after the last of
            ``steps``. The params with the lowest validation loss are returned.
        metrics: named functions of ``(outputs, y)``, as in `evaluate`, on the validation data.
        ts: the training state to continue from (``fitted.ts``, or one with other params). With the same ``key`` and
            data, a run in two parts ends with the same training state as a run in one part. The history, the best
            params and the count of `early_stopping` start again in each call.
        checkpoint_dir: makes the run resumable by `checkpoints` with its default options, one a minute. If a process
            is killed, the same call continues from the last checkpoint, and its params and history are bitwise equal
            to those of an uninterrupted run. ``ts`` is used only while the directory has no checkpoint.
            After Ctrl-C or SIGTERM the steps in progress are completed and their state is saved.
        progress: show a progress bar with the loss and the validation metrics, where standard error can be written.
        callbacks: for example ``[csv_log("loss.csv"), early_stopping(patience=3)]``; see `Callback`.
        penalty, augment: as in `train_step`.
        compute_dtype: as in `train_step`, also for the validation.
        accumulate: the number of parts of each batch, as in `train_step`; it divides ``batch_size``.
        mesh: train on several devices: each batch is sharded along the first axis of the mesh. The result is that of
            one device, except for rounding. In a run of several processes (``jax.distributed.initialize``) each one
            makes the same call with data that all can read; it reads the rows of its own devices. The first process
            writes logs and shows the progress. A signal to one process, and a callback that stops the run in one of
            them, end all after the same step.
        sharding: the rules for the params on the mesh, as in `init_train_state`. A ``ts`` keeps its own sharding; pass
            one of the two. Within ``jax.set_mesh`` of a mesh with explicit axes, the functions and callbacks of the
            run are called with automatic ones.

    Raises:
        TypeError: before the first step, unless ``key`` is a typed key, ``loss`` a function, and ``optimizer`` an
            optimizer.
        ValueError: before the first step, for data that are empty, not finite, or of different lengths, for counts that
            are not integers >= 1, for a ``batch_size`` that the mesh does not divide, for a run of several processes
            without a mesh, for a net whose state is a carry or a cache of each example, and for checkpoints that are
            all damaged or belong to another run; later, the error that ``loss`` raises for a batch on which it was not
            finite (labels out of range).
        FloatingPointError: if loss or params are not finite for another reason. The message states the step, the layer
            and the pass (forward or backward) of the origin; ``error.ts`` is the last finite training state.
        KeyboardInterrupt, SystemExit: after Ctrl-C, SIGTERM (exit status 143), or SIGHUP of a lost session (129), when
            the steps in progress (those of one program take about half a second) are complete and the callbacks have
            been called. A line on standard error says which step is saved where; ``error.ts`` is the training state. A
            second signal ends the process at once. Where the program handles these signals itself, and in other
            threads, nothing changes.
        ModuleNotFoundError: for ``checkpoint_dir`` without orbax.

    >>> from jaxblocks.layers.dense import Dense
    >>> x = jnp.linspace(-1, 1, 64)[:, None]
    >>> squared_error = lambda outputs, y: (outputs - y) ** 2
    >>> key = jax.random.key(0)
    >>> data = x, 3 * x
    >>> options = dict(key=key, batch_size=16, epochs=20, progress=False)
    >>> fitted = fit(Dense(1), squared_error, optax.sgd(0.3), data, **options)
    >>> print(f"{fitted.params['kernel'].item():.3f}")
    3.000
    >>> fitted.history.step_loss.shape
    (80,)

    Source: Bottou, Curtis & Nocedal 2018, Optimization methods for large-scale machine learning (arXiv:1606.04838);
    Diehl 2023, sections 1.3 to 1.6.
    """
    got = f"epochs={epochs} and steps={steps}"
    require((epochs is None) != (steps is None), "one of epochs and steps", got, "pass one of them")
    check_optimizer(optimizer)
    compute_dtype = as_compute_dtype(compute_dtype)
    step_options: dict[str, Any] = {"penalty": penalty, "augment": augment, "compute_dtype": compute_dtype}
    step_options["accumulate"] = accumulate
    # Compiled in each run, since the functions may read values from outside that have changed.
    step = train_step(net, loss, optimizer, donate=True, **step_options)
    reject_traced(key, ts)
    rows = check_finite_pair("data", data)
    key, data, validation, ts = with_automatic_axes((key, data, validation, ts))
    batch_size = min(64, rows) if batch_size is None else int(batch_size)
    check_batch_size(batch_size, rows)
    is_even = last_batch == "drop" or rows % batch_size == 0  # all batches have one size
    steps_per_epoch = rows // batch_size + (not is_even)
    rest, least = 0 if is_even else rows % batch_size, f"a last batch of a multiple of accumulate={accumulate} examples"
    repair = 'pass last_batch="drop", or another batch_size'
    require(rest % accumulate == 0, least, f'{rest} of {rows} with last_batch="keep"', repair)
    over_devices = None if mesh is None else batch_sharding(mesh)
    _check_mesh(mesh, ts, sharding)
    # A resumed run draws the batches that would have come next: they depend on the key and the step only.
    options: dict[str, Any] = {"epochs": None, "last_batch": last_batch, "sharding": over_devices}
    batches = lambda start: minibatches(key, data, batch_size, start=start, **options)

    all_callbacks = _check_callbacks(callbacks)
    metrics = _metrics_with_loss(loss, metrics, validation)
    if validation is not None:
        # Validation is the first callback, since others (early stopping, logs) read its result.
        validates = validation_callback(net, validation, metrics, batch_size=batch_size, compute_dtype=compute_dtype)
        all_callbacks.insert(0, validates)
    if progress and is_first():
        all_callbacks.append(progress_bar())
    # Checkpoints are the last callback, so that they store the results of all others.
    if checkpoint_dir is not None:
        all_callbacks.append(checkpoints(checkpoint_dir))

    x = None
    if ts is None:
        x, _ = next(batches(0))
        first = init_train_state(key, net, optimizer, *as_inputs(x), mesh=mesh, sharding=sharding)
    else:
        _check_train_state(ts)
        first = copy_tree(ts)  # the caller's buffers are not donated
    if jax.tree.leaves(first.state):
        check_no_carry(net, optimizer, first.state, next(batches(0))[0] if x is None else x)
    total = int(steps) if steps is not None else int(epochs or 0) * steps_per_epoch
    run = Run(steps=total, steps_per_epoch=steps_per_epoch, ts=first, step=int(first.step), first=int(first.step))
    functions = {"net": net, "loss": loss, "optimizer": optimizer, "penalty": penalty, "augment": augment}
    run.config = _config(data, batch_size, validation, metrics, compute_dtype, functions)
    run.config |= {} if is_even else {"last_batch": last_batch}
    run.config |= {} if accumulate == 1 else {"accumulate": accumulate}
    explain = lambda is_finite, count: raise_divergence(
        net, loss, step, is_finite, run.ts, itertools.islice(batches(run.step), count), steps_per_epoch, step_options
    )
    is_alone = is_even and mesh is None and mesh_of(first) is None and is_on_one_device(data)
    del first  # only `run` holds it, and no longer than it is needed

    def steps_from(ts, start):
        if is_alone and is_for_a_loop(step, ts, data, batch_size):
            return in_one_program(step, data, key, batch_size, start)
        return batch_by_batch(step, batches(start))

    ts = _train(steps_from, run, all_callbacks, explain)
    # With validation, the params of the best validation loss; `ts` is always that of the last step.
    params, state = run.best or (run.ts.params, run.ts.state)
    return Fitted(params, state, history_of(run), ts)


def _train(steps_from: Callable, run: Run, callbacks: Sequence[Callback], explain: Callable) -> TrainState:
    """Execute the steps of a run; after Ctrl-C or SIGTERM, complete the step, call the callbacks, and end."""
    with stop_signals() as signals:
        try:
            ts = _steps(steps_from, run, callbacks, explain, signals)
        except (KeyboardInterrupt, SystemExit) as error:
            # The state of the last completed steps, so that an interrupted run is not lost.
            error.ts = run.ts  # pyright: ignore[reportAttributeAccessIssue]
            raise
        signals.raise_meaning(run)
    return ts


def _steps(steps_from, run: Run, callbacks: Sequence[Callback], explain, signals: StopSignals) -> TrainState:
    """Execute the steps of a run, read their losses at intervals, and call the callbacks after each reading."""
    with contextlib.ExitStack() as stack:
        # Registered before on_restore, so that on_end is called even if a restoration raises.
        for callback in callbacks:
            stack.callback(call, callback.on_end, run)
            call(callback.on_restore, run)
        # The steps that were restored from a checkpoint count as made.
        run.start = run.step
        _check_length(run)
        is_finite = finite_state_check(run.ts)
        ts = copy_tree(run.ts)  # each step donates the previous state; `run.ts` is for the callbacks
        for callback in callbacks:
            call(callback.on_start, run)
        # All processes must take the same branch below: a step of only some of them waits forever.
        run.stop, alone = any_process(run.stop), not are_several()
        reading = _Reading(run, callbacks)
        # With several processes a signal ends the run only after all agree, in signals.agree.
        interrupted = lambda: alone and signals.number is not None
        advance = None if run.is_last else steps_from(ts, run.start)
        while advance is not None and not run.is_last:
            ts, losses, number = advance(ts, reading.next - run.step, interrupted)
            finite = is_finite(ts)  # before losses are read, so that the device does not wait
            losses = np.array(jax.device_get(losses))[:number]  # a copy: views would keep all buffers alive
            run.rows = [
                {"step": n, "epoch": n / run.steps_per_epoch, "loss": float(value)}
                for n, value in enumerate(losses, run.step + 1)
            ]
            # The steps are repeated from run.ts, the state before them, to find where values stop being finite.
            if not (np.isfinite(losses).all() and finite):
                explain(is_finite, number)
            run.ts = ts  # until it is copied: the memory of the previous copy is free before that
            run.ts, run.step = copy_tree(ts), run.step + number
            run.losses += list(losses)
            signals.agree()
            run.stop = run.stop or signals.number is not None
            for callback in callbacks:
                if callback.collective and not alone:
                    run.stop = any_process(run.stop)
                callback.after_steps(run)
            reading.schedule(run)
    return ts


class _Reading:
    """The schedule for reading losses: about twice a second, since each reading makes the host wait for the device.

    Losses are also read when a callback is due, at least every 64 steps, and after the last step. Several processes
    agree on the schedule and on the end, since the devices of all take part in a reading.
    """

    def __init__(self, run: Run, callbacks: Sequence[Callback]):
        self._periods = {callback.every for callback in callbacks if callback.every is not None}
        if any(callback.on_epoch_end is not None for callback in callbacks):
            self._periods.add(run.steps_per_epoch)
        self._count, self._since, self.next = 1, time.monotonic(), run.start + 1

    def schedule(self, run: Run) -> None:
        """Double the number of steps to the next reading if the last steps were fast, else halve it."""
        is_quick, self._since = time.monotonic() - self._since < 0.5, time.monotonic()
        self._count = min(2 * self._count, MOST_STEPS) if is_quick else max(self._count // 2, 1)
        # The next multiple of each period, so that callbacks are called exactly at their steps.
        due = [run.step + period - run.step % period for period in self._periods]
        self.next = min(run.step + self._count, run.steps, *due)
        if are_several():
            # The smallest next step of all processes is the largest of its negative: one reduction for both.
            stop, next_negated = largest([run.stop, -self.next])
            run.stop, self.next = bool(stop), -next_negated


# ---- arguments of fit ----------------------------------------------------------------------


def _check_callbacks(callbacks) -> list[Callback]:
    repair = "pass a list, for instance callbacks=[csv_log(path), early_stopping(patience=3)]"
    require(isinstance(callbacks, (list, tuple)), "a list of callbacks", callbacks, repair, error=TypeError)
    for one in callbacks:
        if getattr(one, "__module__", "").startswith("jaxblocks.") and not isinstance(one, Callback):
            repair = f"call it: {one.__name__}({'' if takes(one, 0) else '...'})"
        require(isinstance(one, Callback), "callbacks", one, repair, error=TypeError)
        expected, repair = "every of a callback to be an integer >= 1 or None", "pass every=1 for each step"
        counts = isinstance(one.every, int | np.integer) and one.every >= 1
        require(one.every is None or counts, expected, one.every, repair)
        for name in ("on_restore", "on_start", "on_step", "on_epoch_end", "on_end"):
            function, expected = getattr(one, name), f"{name} of a callback to be a function of the run"
            if function is not None and not takes(function, 1):
                got = arguments_of(function) if callable(function) else function
                require(False, expected, got, f"write {name}=lambda run: print(run.step)", error=TypeError)
    return list(callbacks)


def _metrics_with_loss(loss, metrics, validation) -> dict[str, Callable]:
    check_metrics(metrics)
    if validation is None:
        require(not metrics, "validation data for the metrics", validation, "pass validation=(x, y)")
        return {}
    check_finite_pair("validation", validation)
    named = 'metrics not to contain "loss", which is the mean of the loss'
    require("loss" not in (metrics or {}), named, repr("loss"), "give the metric another name")
    return {"loss": loss, **(metrics or {})}


def _check_mesh(mesh, ts, sharding) -> None:
    check_devices(mesh)
    if ts is not None and sharding:
        repair = "leave it out, and make ts with init_train_state(..., mesh=mesh, sharding=rules)"
        require(False, "no sharding= beside ts=, which keeps its own", "both", repair)
    if mesh is None and jax.process_count() > 1:
        repair = 'pass mesh=jax.make_mesh((jax.device_count(),), ("data",)), else each process trains a net of its own'
        require(False, f"a mesh in a run of {jax.process_count()} processes", mesh, repair)
    if mesh is not None and are_several():
        processes = {device.process_index for device in mesh.devices.flat}
        repair = 'pass mesh=jax.make_mesh((jax.device_count(),), ("data",))'
        expected = f"a mesh with devices of all {jax.process_count()} processes"
        require(len(processes) == jax.process_count(), expected, f"devices of {sorted(processes)}", repair)
    if mesh is not None and ts is not None and mesh_of(ts) is None and mesh.size > 1:
        repair = "make it with init_train_state(..., mesh=mesh, sharding=rules)"
        require(False, "a ts whose arrays are on the mesh", ts, repair)


def _check_train_state(ts) -> None:
    if not isinstance(ts, TrainState):
        repair = "pass ts=fitted.ts" if isinstance(ts, Fitted) else "pass the result of init_train_state or of a step"
        require(False, "ts to be a TrainState", ts, repair, error=TypeError)
    check_not_donated(ts)
    check_numbers(ts, "ts")


def _check_length(run: Run) -> None:
    is_over = run.resumed and run.step == run.steps  # a complete run returns its earlier result
    if run.step >= run.steps and not is_over:
        expected = f"more steps than the {run.step} that were made since the beginning of the run"
        repair = f"pass epochs > {run.step / run.steps_per_epoch:g} or steps > {run.step}, which count from there"
        repair += ", or another checkpoint_dir" * run.resumed
        require(False, expected, run.steps, repair)


def _config(data, batch_size, validation, metrics, compute_dtype, functions) -> dict[str, Any]:
    """The description of data and options that must not change when a run is resumed, and of the functions."""
    shapes = lambda tree: [f"{place} {describe(a)}" for place, a in name_arrays(tree).items()]
    config = {"data": shapes(data), "batch_size": batch_size, "compute_dtype": str(compute_dtype)}
    config |= {"functions": {name: [] if f is None else describe_function(f) for name, f in functions.items()}}
    return config if validation is None else config | {"validation": shapes(validation), "metrics": list(metrics)}
