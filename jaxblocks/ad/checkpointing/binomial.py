r"""Binomial checkpointing schedules: the carries of a scan to store so that its reversal takes the fewest steps.

L    the length of the scan; step i takes the carry h_i to h_{i+1}, h_0 is given
c    the number of carries that are stored at a time, h_0 among them: the snapshots
"""

import math
from typing import NamedTuple

import numpy as np

from jaxblocks.checks.expectations import PositiveInt, checked

__all__ = ["Schedule", "binomial_schedule", "binomial_steps"]


@checked
def binomial_steps(length: PositiveInt, snapshots: PositiveInt) -> int:
    r"""The minimal number of forward steps to reverse ``length`` steps with ``snapshots`` stored carries.

    $t(L, c) = rL - binom(c + r, c + 1)$ with the smallest $r$ for which
    $binom(c + r, c) ≥ L$. The first carry is one of the $c$. The count excludes the last step,
    whose output the reversal does not need, and the step that each pullback linearizes.

    >>> binomial_steps(10, 3), binomial_steps(1024, 16)
    (15, 2956)

    Source: Griewank & Walther 2000, Algorithm 799: revolve, proposition 1 (doi:10.1145/347837.347846).
    """
    c, r = snapshots, _repetitions(length, snapshots)
    return r * length - math.comb(c + r, c + 1)


class Schedule(NamedTuple):
    """A checkpointing schedule, three arrays of ``length`` integers; returned by `binomial_schedule`.

    Attributes:
        begins: to reverse step i, step forward from the snapshot of the carry at ``begins[i]``. The first pass ends
            at the last step, so there no step is left to run.
        stored_for: the carry at i is stored on the pass that ends at step ``stored_for[i]``; -1 for a carry that is
            never stored, and for the carry at 0, which is stored before all passes.
        slot: where the carry at i is stored, an index below ``snapshots``.

    >>> binomial_schedule(4, 2).begins
    array([0, 1, 1, 3])
    """

    begins: np.ndarray
    stored_for: np.ndarray
    slot: np.ndarray


@checked
def binomial_schedule(length: PositiveInt, snapshots: PositiveInt) -> Schedule:
    """The schedule that reverses ``length`` steps with `binomial_steps` forward steps.

    The first pass ends at the last step, ``length - 1``, whose reversal needs no further step.
    Each carry is stored at most once, because a snapshot at i is last read to reverse step i.

    >>> schedule = binomial_schedule(10, 3)
    >>> schedule.begins
    array([0, 1, 2, 0, 4, 5, 4, 7, 7, 9])
    >>> 9 + sum(range(9)) - sum(schedule.begins[:9].tolist()) == binomial_steps(10, 3)
    True

    Source: Griewank & Walther 2000, Algorithm 799: revolve (doi:10.1145/347837.347846).
    """
    begins, stored_for, slot = np.arange(length), np.full(length, -1), np.zeros(length, int)
    intervals = [(0, length, 0, True)]  # start, end, slot of the first carry, whether a pass begins there
    while intervals:
        start, end, depth, new_pass = intervals.pop()
        if new_pass and end < length:
            begins[end - 1] = start
        free = snapshots - depth  # the one at start included
        if free == 1:
            begins[start : end - 1] = start
        if free == 1 or end - start == 1:
            continue
        cut = start + _advance(end - start, free)
        stored_for[cut], slot[cut] = end - 1, depth + 1
        intervals += [(start, cut, depth, True), (cut, end, depth + 1, False)]  # the right one is reversed first
    return Schedule(begins, stored_for, slot)


def _repetitions(length: int, c: int) -> int:
    """The maximal number of runs of a step: the smallest r with binomial(c + r, c) >= length."""
    r = 0
    while math.comb(c + r, c) < length:
        r += 1
    return r


def _advance(length: int, c: int) -> int:
    """The number of steps before the next snapshot: one of the optimal cuts."""
    r = _repetitions(length, c)
    shorter = math.comb(c + r - 2, c) if r > 1 else 0
    return max(1, shorter, length - math.comb(c - 1 + r, c - 1))
