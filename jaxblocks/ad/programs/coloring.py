"""Coloring of the columns of a sparse matrix: columns of one color have no row in common."""

import numpy as np

__all__ = ["color_columns", "distinct", "number_of_colors"]


def color_columns(rows: np.ndarray, cols: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Greedy coloring of the columns, in their order or the longest first, whichever takes fewer colors.

    ``rows`` and ``cols`` are the indices of the entries.

    >>> color_columns(np.array([0, 0, 1]), np.array([0, 1, 2]), (2, 3))
    array([0, 1, 0])
    """
    m, n = shape
    longest = np.bincount(rows, minlength=1).max(initial=0)
    if longest == n:  # a full row: no two columns share a color
        return np.arange(n)
    order = np.argsort(cols, kind="stable")
    ends = np.cumsum(np.bincount(cols, minlength=n))
    by_column = [part.tolist() for part in np.split(rows[order], ends[:-1])]
    best = _greedy(by_column, range(n), m)
    if number_of_colors(best) > longest:
        other = _greedy(by_column, np.argsort([-len(part) for part in by_column], kind="stable").tolist(), m)
        best = min(best, other, key=number_of_colors)
    return best


def _greedy(by_column, order, m) -> np.ndarray:
    taken = [0] * m  # for each row, the colors in it as bits
    colors = np.zeros(len(by_column), np.int64)
    for column in order:
        used = 0
        for row in by_column[column]:
            used |= taken[row]
        bit = ~used & (used + 1)  # the lowest free color
        colors[column] = bit.bit_length() - 1
        for row in by_column[column]:
            taken[row] |= bit
    return colors


def number_of_colors(colors: np.ndarray) -> int:
    """The number of colors, which are numbered from 0."""
    return int(colors.max(initial=-1)) + 1


def distinct(numbers: np.ndarray) -> np.ndarray:
    """The sorted distinct numbers: as ``numpy.unique``, but much faster for numbers that are almost sorted."""
    numbers = np.sort(numbers, kind="stable")
    return numbers[np.concatenate([[True], numbers[1:] != numbers[:-1]])] if numbers.size else numbers
