"""Early stopping as a pure state machine: a state, and a function from a state and a loss to the next state."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp

from jaxblocks.checks import require_whole

__all__ = ["EarlyStopping", "StoppingState", "early_stopping"]


class StoppingState(NamedTuple):
    """Where the machine of `early_stopping` stands, four scalars.

    Args:
        best: the lowest value that counted as an improvement; infinity before there is one.
        since_best: values seen since then.
        stop: whether to stop; once true it stays so.
        improved: whether the last value was an improvement (time to keep the params).
    """

    best: Any
    since_best: Any
    stop: Any
    improved: Any


class EarlyStopping(NamedTuple):
    """What `early_stopping` returns: ``init() -> state`` and ``update(state, value) -> state``."""

    init: Callable[[], StoppingState]
    update: Callable[..., StoppingState]


def early_stopping(patience: int, min_delta: float = 0.0) -> EarlyStopping:
    r"""Stop after ``patience`` values in a row that do not improve on the best by more than ``min_delta``.

    With :math:`b_0 = \infty`, a value :math:`v_t` (a validation loss) is an improvement if
    :math:`v_t < b_{t-1} - \delta`; then :math:`b_t = v_t`, else :math:`b_t = b_{t-1}`. A NaN is never an
    improvement. For a score that should rise, pass its negative.

    Works in plain Python, under ``jit`` and as the carry of ``lax.scan``.

    Raises:
        ValueError: unless ``patience`` is a whole number >= 1 and ``min_delta`` >= 0.

    >>> stopping = early_stopping(patience=2)
    >>> state = stopping.init()
    >>> for value in [3.0, 2.0, 2.5, 2.0]:
    ...     state = stopping.update(state, value)
    >>> bool(state.stop), float(state.best)
    (True, 2.0)

    Source: Diehl 2023, section 1.6 (named there).
    """
    patience = require_whole("early_stopping", "patience", patience)
    if not min_delta >= 0:
        raise ValueError(f"early_stopping expects min_delta >= 0, but {min_delta!r} came.")

    def init():
        return StoppingState(jnp.full((), jnp.inf, float), jnp.zeros((), int), jnp.array(False), jnp.array(False))

    def update(state, value):
        value = jnp.asarray(value).astype(state.best.dtype)
        improved = value < state.best - min_delta
        since_best = jnp.where(improved, 0, state.since_best + 1)
        stop = state.stop | (since_best >= patience)
        return StoppingState(jnp.where(improved, value, state.best), since_best, stop, improved)

    return EarlyStopping(init, update)
