"""Calls measured in turns, so that whatever else the machine does meets all of them alike."""

import time

import jax
import numpy as np


def in_turns(calls, rounds, repeats=1, clock=time.perf_counter):
    """Seconds per round of each call, the calls of a round one after the other in alternating order.

    With ``clock=time.process_time`` they are seconds of the processor.
    """
    seconds = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(max(1, repeats)):
            jax.block_until_ready(call())
    for turn in range(rounds):
        for name in list(calls)[:: 1 if turn % 2 else -1]:
            start = clock()
            for _ in range(repeats):
                out = calls[name]()
            jax.block_until_ready(out)
            seconds[name].append(clock() - start)
    return {name: np.array(values) for name, values in seconds.items()}


def ratio(seconds, name, base):
    """Median and quartiles of the ratio of two calls, round by round."""
    low, middle, high = np.percentile(seconds[name] / seconds[base], [25, 50, 75])
    return middle, low, high
