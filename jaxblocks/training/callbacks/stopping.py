"""Early stopping: the rule as a pure state machine, and the callback of `fit` that applies it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp

from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import NonNegativeFloat, PositiveInt, checked
from jaxblocks.checks.names import nearest
from jaxblocks.training.callbacks.callback import Callback, Run

__all__ = ["StoppingRule", "StoppingState", "early_stopping", "stopping_rule"]


@checked
def early_stopping(
    patience: PositiveInt, *, min_delta: NonNegativeFloat = 0.0, monitor: str = "loss", maximize: bool = False
) -> Callback:
    """A callback that ends the run after ``patience`` consecutive validations without improvement (`stopping_rule`).

    `fit` returns the params with the lowest validation loss, with and without early stopping. A run that is resumed
    from a checkpoint continues the count.

    Args:
        monitor: the validation metric to minimize: ``"loss"`` or a name in ``fit(metrics=)``.
        maximize: whether larger values are better, as of an accuracy.

    Raises:
        ValueError: unless ``patience`` is an integer >= 1 and ``min_delta`` >= 0; before the first step, if `fit` has
            no validation data or no such metric.

    >>> import jax, jax.numpy as jnp, optax
    >>> from jaxblocks.layers.dense import Dense
    >>> from jaxblocks.losses import mse
    >>> from jaxblocks.training import fit
    >>> x = jnp.linspace(-1, 1, 40)[:, None]
    >>> options = dict(key=jax.random.key(0), batch_size=20, epochs=50, progress=False)
    >>> options |= dict(validation=(x, -x), callbacks=[early_stopping(patience=3)])
    >>> fitted = fit(Dense(1), mse, optax.sgd(0.05), (x, x), **options)
    >>> losses = fitted.history.validation["loss"]
    >>> len(losses) - 1 - int(losses.argmin())
    3

    Source: Prechelt 1998, Early stopping, but when?; Diehl 2023, section 1.6 (named there).
    """
    rule = stopping_rule(patience, min_delta=min_delta)
    state = rule.init()
    cost = lambda means: -means[monitor] if maximize else means[monitor]

    def on_start(run: Run):
        nonlocal state
        if f"validation {monitor}" not in run.columns:
            names = [column.removeprefix("validation ") for column in run.columns if column.startswith("validation ")]
            repair = "pass validation=(x, y) to fit"
            if names:
                near = nearest(monitor.removeprefix("val_"), names) or names[0]
                repair = f"write monitor={near!r}, or pass the metric to fit in metrics="
            got = ", ".join(map(repr, names)) or "no validation"
            require(False, f"a validation metric {monitor!r} to stop early", got, repair)
        state = rule.init()
        for _, means in run.validations:  # those of a resumed run
            state = rule.update(state, cost(means))
        # From the last validations alone: an earlier series without improvement did not end the run, or its patience
        # was smaller.
        state = state._replace(stop=state.since_best >= patience)
        run.stop = run.stop or bool(state.stop)

    def on_epoch_end(run: Run):
        nonlocal state
        state = rule.update(state, cost(run.validations[-1][1]))
        run.stop = run.stop or bool(state.stop)

    return Callback(on_start=on_start, on_epoch_end=on_epoch_end)


class StoppingState(NamedTuple):
    """The state of a `stopping_rule`, four scalars.

    Args:
        best: the lowest value that counted as an improvement; infinity before there is one.
        since_best: the number of values since then.
        stop: whether to stop; once ``True`` it stays ``True``.
        improved: whether the last value was an improvement.
    """

    best: Any
    since_best: Any
    stop: Any
    improved: Any


class StoppingRule(NamedTuple):
    """The result of `stopping_rule`: ``init() -> state`` and ``update(state, value) -> state``."""

    init: Callable[[], StoppingState]
    update: Callable[..., StoppingState]


@checked
def stopping_rule(patience: PositiveInt, *, min_delta: NonNegativeFloat = 0.0) -> StoppingRule:
    r"""Stop after ``patience`` consecutive values that do not improve on the best one by more than ``min_delta``.

    With $b_0 = ∞$, a value $v_t$ (a validation loss) is an improvement if $v_t < b_{t-1} - δ$; then $b_t = v_t$, else
    $b_t = b_{t-1}$. A NaN is never an improvement. For a score to maximize, pass its negative.

    The rule works in plain Python, under ``jit`` and as the carry of ``lax.scan``; `early_stopping` applies it in
    `fit`.

    Raises:
        ValueError: unless ``patience`` is an integer >= 1 and ``min_delta`` >= 0.

    >>> rule = stopping_rule(patience=2)
    >>> state = rule.init()
    >>> for value in [3.0, 2.0, 2.5, 2.0]:
    ...     state = rule.update(state, value)
    >>> bool(state.stop), float(state.best)
    (True, 2.0)

    Source: Prechelt 1998, Early stopping, but when?; Diehl 2023, section 1.6 (named there).
    """

    def init():
        # The first value is an improvement.
        return StoppingState(jnp.full((), jnp.inf, float), jnp.zeros((), int), jnp.array(False), jnp.array(False))

    def update(state, value):
        # Values of metrics are Python floats or float32; the state keeps its types, so that `update` can be a step of a
        # scan.
        value = jnp.asarray(value).astype(state.best.dtype)
        improved = value < state.best - min_delta
        since_best = jnp.where(improved, 0, state.since_best + 1)
        stop = state.stop | (since_best >= patience)
        return StoppingState(jnp.where(improved, value, state.best), since_best, stop, improved)

    return StoppingRule(init, update)
