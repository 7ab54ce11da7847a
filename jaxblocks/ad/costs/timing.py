"""Times of compiled programs in turns, so that other load affects all of them alike."""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from jaxblocks.checks.expectations import PositiveInt, checked

__all__ = ["quartiles", "time_in_turns"]

# A program is called until this time is reached, so that the resolution of the clock does not matter; a program that
# takes less than its thousandth is called a thousand times.
_LEAST_SECONDS = 5e-3
_MOST_CALLS = 1000


@checked
def time_in_turns(programs: Mapping, /, *args: Any, repeats: PositiveInt = 10) -> dict[str, list[float]]:
    """The seconds of a call of each program, in each round.

    In a round the programs run one after the other, in alternating order, so that other load on the machine affects all
    of them: the ratio of two times of one round varies less than that of two medians, unless the load changes within
    the round. A short program is called several times in a row, and its time is the mean of these calls. The first
    call of each program is not timed.

    ``programs`` are compiled, by name, and all take ``args``. The result has, by name, one time for each of the
    ``repeats`` rounds.
    """
    calls = {}
    for name, program in programs.items():
        _seconds(program, args, 1)  # compiles, where that is left to do
        calls[name] = min(_MOST_CALLS, math.ceil(_LEAST_SECONDS / max(_seconds(program, args, 1), 1e-9)))
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for turn in range(repeats):
        for name in list(programs)[:: -1 if turn % 2 else 1]:
            seconds[name].append(_seconds(programs[name], args, calls[name]))
    return seconds


def _seconds(program: Callable, args: tuple, calls: int) -> float:
    """The mean time of some calls, each until its result is ready."""
    start = time.perf_counter()
    for _ in range(calls):
        jax.block_until_ready(program(*args))
    return (time.perf_counter() - start) / calls


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """The first quartile, the median and the third quartile of one or more numbers."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, median, high
