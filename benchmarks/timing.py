"""Timing for the benchmarks: calls are measured alternately, so other work on the machine affects all of them alike."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np


def in_turns(
    calls: Mapping[str, Callable[[], Any]],
    *,
    rounds: int,
    repeats: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, np.ndarray]:
    """Seconds of each call per round; the calls of a round run one after the other, in alternating order.

    With ``clock=time.process_time`` they are seconds of processor time.
    """
    seconds = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(repeats):
            jax.block_until_ready(call())
    for turn in range(rounds):
        for name in list(calls)[:: 1 if turn % 2 else -1]:
            start, out = clock(), None
            for _ in range(repeats):
                out = calls[name]()
            jax.block_until_ready(out)
            seconds[name].append(clock() - start)
    return {name: np.array(values) for name, values in seconds.items()}


def ratio(seconds: Mapping[str, np.ndarray], name: str, base: str) -> tuple[float, float, float]:
    """Median and quartiles of the ratio of two calls, round by round."""
    low, middle, high = np.percentile(seconds[name] / seconds[base], [25, 50, 75])
    return float(middle), float(low), float(high)


def temporary_bytes(program: Any) -> int:
    """The temporary memory of a compiled program, as the compiler reports it."""
    return program.memory_analysis().temp_size_in_bytes
