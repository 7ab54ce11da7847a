"""Bounds on the number of linear regions of a ReLU net."""

import math
import operator
from collections import Counter
from collections.abc import Sequence
from typing import Any

from jaxblocks.checks.annotations import is_integer
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import NonNegativeInt, PositiveInt, checked

__all__ = ["arrangement_regions", "region_lower_bound", "region_upper_bound"]


@checked
def arrangement_regions(n: NonNegativeInt, d: NonNegativeInt) -> int:
    r"""The largest number of cells of n hyperplanes in d dimensions: $∑_{j=0}^{d} binom(n, j)$.

    Hyperplanes in general position attain it, and so does one hidden layer of n rectifiers on d inputs.

    Args:
        n: the number of hyperplanes.
        d: the number of dimensions.

    >>> arrangement_regions(20, 2), arrangement_regions(10, 2)
    (211, 56)

    Source: Zaslavsky 1975, Facing up to arrangements; Krapac & Segvic, Deep feed-forward models.
    """
    return sum(math.comb(n, j) for j in range(d + 1))


@checked
def region_upper_bound(widths: Sequence[int], d: PositiveInt) -> int:
    r"""An upper bound on the number of activation regions of a ReLU net.

    .. math::

        ∑_{(j_1, …, j_L)} ∏_{l=1}^{L} binom(n_l, j_l),
        0 ≤ j_l ≤ min(d, n_1 - j_1, …, n_{l-1} - j_{l-1}, n_l).

    In a region where only n - j units of a layer are on, the later layers depend on at most n - j dimensions. For
    layers of 2 d units or more this is the product over layers of `arrangement_regions`; for narrow layers it is
    smaller.

    Args:
        widths: the widths of the hidden layers, $n_1, …, n_L$.
        d: the number of inputs.

    >>> region_upper_bound((20,), 2), region_upper_bound((10, 10), 2)
    (211, 3136)

    Source: Serra, Tjandraatmadja, Ramalingam 2018, Theorem 1, arXiv:1711.02114.
    """
    regions = Counter({d: 1})  # their number, by the number of dimensions on which the next layer depends
    for n in checked_widths(widths):
        after = Counter()
        for dimension, count in regions.items():
            for j in range(min(dimension, n) + 1):
                after[min(dimension, n - j)] += count * math.comb(n, j)
        regions = after
    return regions.total()


@checked
def region_lower_bound(widths: Sequence[int], d: PositiveInt) -> int:
    r"""A number of linear regions that some ReLU net with these hidden layers attains.

    .. math::

        (∏_{l=1}^{L-1} ⌊(n_l / d)⌋^{d}) ∑_{j=0}^{d} binom(n_L, j)

    With equal widths n it grows like $(n/d)^{d(L-1)} n^d$, exponentially in the depth; `folding_network` is
    such a net for d = 1 and 2. This number is attainable; random nets have far fewer regions.

    Args:
        widths: the widths of the hidden layers, $n_1, …, n_L$.
        d: the number of inputs.

    Raises:
        ValueError: if a width is smaller than d, a case that the theorem excludes.

    >>> [region_lower_bound(widths, 2) for widths in ((10, 10), (4, 4), (20,))]
    [1400, 44, 211]

    Source: Montufar, Pascanu, Cho, Bengio 2014, Theorem 4, arXiv:1402.1869; Diehl 2023, Theorem 1.7, states it as an
    upper bound, with a binomial coefficient in place of the fraction n/d.
    """
    widths = checked_widths(widths)
    narrow = f"a layer of {min(widths)}"
    require(min(widths) >= d, f"layers of at least as many units as there are inputs, {d}", narrow, "take a smaller d")
    *folds, last = widths
    # Each of d coordinates is folded n // d times by a layer; the last one divides the folded cube.
    return math.prod((n // d) ** d for n in folds) * arrangement_regions(last, d)


def checked_widths(widths: Any) -> list[int]:
    """The widths of one or more hidden layers, checked, as integers of Python, which do not overflow."""
    fits = isinstance(widths, Sequence) and not isinstance(widths, str) and len(widths) > 0
    require(fits, "the widths of the hidden layers", repr(widths), "pass a tuple such as (10, 10)")
    for n in list[Any](widths):
        require(is_integer(n) and n >= 1, "every width to be an integer >= 1", repr(n), "pass 1 or more")
    return [operator.index(n) for n in list[Any](widths)]
