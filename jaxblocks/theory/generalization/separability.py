"""The labelings that a hyperplane can realize: Cover's function counting theorem."""

import math
from dataclasses import dataclass

import numpy as np

from jaxblocks.checks.expectations import PositiveInt, checked
from jaxblocks.plotting.axes import GRAY, axes_or_new

__all__ = ["Capacity", "capacity", "linear_dichotomies"]


@checked
def linear_dichotomies(examples: PositiveInt, features: PositiveInt) -> int:
    r"""The number of labelings of points in general position that a hyperplane through the origin realizes.

    .. math::

        C(n, d) = 2 ∑_{k=0}^{d-1} binom(n - 1, k)

    of the $2^n$ labelings of n points in d dimensions; an offset of the hyperplane counts as one more feature.

    Args:
        examples: n.
        features: d.

    >>> linear_dichotomies(4, 3), linear_dichotomies(3, 3)  # in the plane, with an offset
    (14, 8)

    Source: Cover 1965, Geometrical and statistical properties of systems of linear inequalities,
    doi:10.1109/PGEC.1965.264137.
    """
    # C(n, d) = 2 sum_(k < d) binom(n - 1, k), from Cover's recursion C(n + 1, d) = C(n, d) + C(n, d - 1).
    return 2 * sum(math.comb(examples - 1, k) for k in range(features))


@dataclass(frozen=True, repr=False)
class Capacity:
    """The record of `capacity`.

    Attributes:
        features: d.
        examples: n, ``(counts,)``.
        fraction: the fraction of all labelings of n points that a hyperplane can realize, ``(counts,)``.
    """

    features: int
    examples: np.ndarray
    fraction: np.ndarray

    def plot(self, ax=None):
        """Plot the fraction over n / d, which is one half at 2; returns the axes.

        >>> capacity(5).plot().get_ylabel()
        'fraction of labelings realized'
        """
        ax = axes_or_new(ax)
        ax.plot(self.examples / self.features, self.fraction, "o-", markersize=3, label=f"{self.features} features")
        ax.axvline(2, color=GRAY, linestyle=":")
        ax.axhline(0.5, color=GRAY, linestyle=":")
        ax.set(xlabel="examples / features", ylabel="fraction of labelings realized")
        ax.legend()
        return ax

    def __repr__(self):
        d = self.features
        return f"Capacity({d} features: all labelings up to {d} examples, half of them at {2 * d})"


@checked
def capacity(features: PositiveInt) -> Capacity:
    r"""The probability that a hyperplane separates random labels: 1 up to d examples, one half at 2 d, then near 0.

    Pascal's rule gives $C(n + 1, d) = 2 C(n, d) - 2 binom(n - 1, d - 1)$, in exact integers; only the
    fractions are rounded (for n slightly above d they may round to 1).

    >>> capacity(20)
    Capacity(20 features: all labelings up to 20 examples, half of them at 40)

    Source: Cover 1965, doi:10.1109/PGEC.1965.264137.
    """
    d = features
    count, lost, fraction = 2, int(d == 1), []  # for one example: C(1, d), and the binomial of 0 over d - 1
    for n in range(1, 4 * d + 1):
        fraction.append(count / 2**n)
        # C(n + 1, d) = 2 C(n, d) - 2 binom(n - 1, d - 1); `lost` is that binomial, updated without a new sum.
        count = 2 * count - 2 * lost
        lost = lost * n // (n - d + 1) if n >= d else int(n == d - 1)
    return Capacity(d, np.arange(1, 4 * d + 1), np.array(fraction))
