"""Agreement of the processes of a run: what one of them decides or finds, all of them know.

Every function here is a collective operation, except for `is_first`: all processes call it at the same place of the
program, in the thread that runs the steps. With a single process each one returns its argument at once.
"""

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

__all__ = ["any_process", "are_several", "is_first", "largest", "of_first", "on_first"]


def are_several() -> bool:
    """Whether the run has more than one process."""
    return jax.process_count() > 1


def is_first() -> bool:
    """Whether this is the process that writes logs and removes files."""
    return jax.process_index() == 0


def any_process(flag: bool) -> bool:
    """Whether the flag is true in any process.

    >>> any_process(True)
    True
    """
    return bool(largest([int(flag)])[0])


def largest(numbers: Sequence[int]) -> list[int]:
    """The largest value of each number over the processes; numbers of 32 bits.

    >>> largest([3, 0])
    [3, 0]
    """
    if not are_several():
        return list(numbers)
    return multihost_utils.process_allgather(np.array(numbers, np.int32)).max(0).tolist()


def of_first(value: Any) -> Any:
    """The value that the first process has.

    >>> of_first({"loss": 0.5})
    {'loss': 0.5}
    """
    return on_first(lambda: value)


def on_first(function: Callable[[], Any]) -> Any:
    """Call a function in the first process only; all processes return its result, or raise its error.

    >>> on_first(lambda: "checkpoint-000000-step-5")
    'checkpoint-000000-step-5'
    """
    if not are_several():
        return function()
    raised, outcome = None, b""
    if is_first():
        try:
            outcome = pickle.dumps((function(), None))
        except Exception as error:
            raised, outcome = error, pickle.dumps((None, error))
    value, error = pickle.loads(_sent(outcome))
    if error is not None:
        raise raised or error  # in the first process with its traceback
    return value


def _sent(data: bytes) -> bytes:
    """Bytes of the first process, in all of them."""
    (size,) = largest([len(data) if is_first() else 0])
    padded = np.zeros(max(1024, 1 << (size - 1).bit_length()), np.uint8)  # few sizes, since each one is compiled
    padded[:size] = np.frombuffer(data or bytes(size), np.uint8)
    return multihost_utils.broadcast_one_to_all(padded)[:size].tobytes()
