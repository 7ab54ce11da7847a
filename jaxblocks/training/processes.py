"""Agreement of the processes of a run: what one of them decides or finds is sent to all of them.

Every function here is a collective operation, except for `is_first`: all processes call it at the same place of the
program, in the thread that runs the steps. With a single process each one returns its argument at once.
"""

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

__all__ = ["any_process", "are_several", "in_all", "is_first", "largest", "on_first"]


def are_several() -> bool:
    """Whether the run has more than one process."""
    return jax.process_count() > 1


def is_first() -> bool:
    """Whether this is the process that writes logs and removes files."""
    return jax.process_index() == 0


def any_process(flag: bool) -> bool:
    """Whether the flag is true in any process."""
    return bool(largest([int(flag)])[0])


def largest(numbers: Sequence[int]) -> list[int]:
    """The largest value of each number over the processes; numbers of 32 bits."""
    if not are_several():
        return list(numbers)
    # (processes, numbers)
    return multihost_utils.process_allgather(np.array(numbers, np.int32)).max(0).tolist()


def on_first(function: Callable[[], Any]) -> Any:
    """Call a function in the first process only; all processes return its result, or raise its error."""
    if not are_several():
        return function()
    value, raised = None, None
    if is_first():
        try:
            value = function()
        except Exception as error:
            raised = error
    # An error is sent like a value, so that no process waits for one that has raised.
    value, error = _sent((value, _portable(raised)), 0)
    if error is not None:
        raise raised or error  # in the first process with its traceback
    return value


def in_all(function: Callable[[], Any]) -> Any:
    """Call a function in each process; each one returns its own result, but if one raises an error, all raise it."""
    if not are_several():
        return function()
    value, raised = None, None
    try:
        value = function()
    except Exception as error:
        raised = error
    # The highest number of a process that failed; all raise its error.
    (failed,) = largest([0 if raised is None else 1 + jax.process_index()])
    if failed:
        error = _sent(_portable(raised), failed - 1)
        raise (raised if failed - 1 == jax.process_index() and raised else error)
    return value


def _portable(error: Exception | None) -> Exception | None:
    """An error that other processes can read; one that cannot be pickled becomes a ``RuntimeError`` with its words."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _sent(value: Any, source: int) -> Any:
    """A value of one process, in all of them."""
    is_source = jax.process_index() == source
    data = pickle.dumps(value) if is_source else b""
    # The size first: the arrays of a broadcast need equal shapes in all processes.
    (size,) = largest([len(data)])
    padded = np.zeros(max(1024, 1 << (size - 1).bit_length()), np.uint8)  # few sizes, since each one is compiled
    padded[: len(data)] = np.frombuffer(data, np.uint8)
    return pickle.loads(multihost_utils.broadcast_one_to_all(padded, is_source)[:size].tobytes())
