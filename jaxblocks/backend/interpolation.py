"""Interpolation between equally spaced entries: which entries are read, and their weights."""

from typing import Any, Literal

__all__ = ["interpolation_weights"]


def interpolation_weights(t: Any, method: Literal["linear", "cubic"]) -> tuple[tuple[int, ...], tuple[Any, ...]]:
    """The entries that are read, from the last one at or before the point, and their weights; the point is ``t`` on.

    The cubic kernel is that of Keys (1981) with -3/4, as in PyTorch and OpenCV.

    >>> interpolation_weights(0.25, "linear")
    ((0, 1), (0.75, 0.25))
    """
    if method == "linear":
        return (0, 1), (1 - t, t)
    a = -0.75
    near = lambda d: ((a + 2) * d - (a + 3)) * d**2 + 1  # at a distance of at most 1
    far = lambda d: a * (((d - 5) * d + 8) * d - 4)  # from 1 to 2
    return (-1, 0, 1, 2), (far(t + 1), near(t), near(1 - t), far(2 - t))
