r"""The cheapest bracketing of a product of Jacobians, by dynamic programming over sub-chains.

    J_l         the Jacobian of stage l, sizes[l] by sizes[l - 1]; the whole Jacobian is J_L ... J_2 J_1
    sizes       n = sizes[0] inputs, then the width of each cut, and m = sizes[L] outputs
    forward     a sweep that pushes s columns through stages, as forward mode does with s = n
    reverse     a sweep that pulls s rows through stages, as reverse mode does with s = m

This is Naumann's generalized dense Jacobian chain problem.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Chain", "Part", "as_product", "best_bracketing"]


class Chain(NamedTuple):
    """The prices of a chain of L stages, for `best_bracketing`.

    Stages are numbered from 0 here; cut c is before stage c.

    Attributes:
        sizes: L + 1 widths, of the inputs, the cuts and the outputs.
        own: the price of the Jacobian of each single stage, (L,).
        forward: ``forward[l, c]``, the price of pushing ``sizes[c]`` seeds through stage l, (L, L + 1).
        reverse: ``reverse[l, c]``, the price of pulling ``sizes[c]`` seeds through stage l, (L, L + 1).
        product: ``product(m, k, n)``, the price of a dense product of an m by k and a k by n matrix.
        switch: the price of starting a sweep or a product on the result of another.
    """

    sizes: Sequence[int]
    own: np.ndarray
    forward: np.ndarray
    reverse: np.ndarray
    product: Callable[[Any, Any, Any], Any] = lambda m, k, n: m * k * n
    switch: float = 0.0


class Part(NamedTuple):
    """A node of a bracketing: the Jacobian of the stages ``first`` to ``last - 1``.

    Attributes:
        how: ``"own"`` (a single stage), ``"forward"`` (``right`` pushed through the stages that follow it),
            ``"reverse"`` (``left`` pulled through those before it) or ``"product"`` (``left`` times ``right``).
        first, last: its stages, from ``first`` to ``last - 1``.
        left: the part of the later stages, or ``None``.
        right: the part of the earlier stages, or ``None``.
    """

    how: str
    first: int
    last: int
    left: "Part | None" = None
    right: "Part | None" = None

    @property
    def factors(self) -> "tuple[Part, Part]":
        """The left and right factor of a product."""
        assert self.left is not None and self.right is not None
        return self.left, self.right

    @property
    def child(self) -> "Part":
        """The part whose columns a sweep pushes or whose rows it pulls."""
        child = self.right if self.how == "forward" else self.left
        assert child is not None
        return child

    @property
    def swept(self) -> range:
        """The stages of a sweep."""
        child = self.child
        return range(child.last, self.last) if self.how == "forward" else range(self.first, child.first)


def best_bracketing(chain: Chain) -> tuple[float, Part]:
    r"""The least price of a product of Jacobians and the corresponding bracketing.

    .. math::

        C(j, i) = min_k min(C(j, k) + C(k, i) + product(m_j, m_k, n_i),
            C(k, i) + forward(k … j), C(j, k) + reverse(i … k))

    Args:
        chain: the prices.

    Returns:
        The least price and its bracketing; among equal prices, the one with the longer sweep.

    The published instance, three factors with (n, m) = (3, 3), (3, 1), (1, 2) and 29, 14 and 7 edges:

    >>> sizes, edges = np.array([3, 3, 1, 2]), np.array([29, 14, 7])
    >>> sweeps = edges[:, None] * sizes
    >>> chain = Chain(
    ...     sizes,
    ...     own=edges * np.minimum(sizes[:-1], sizes[1:]),
    ...     forward=sweeps,
    ...     reverse=sweeps,
    ... )
    >>> price, part = best_bracketing(chain)
    >>> price, as_product(part)
    (56.0, 'J3 (J2 J1)')

    Source: Naumann, Matrix-free Jacobian chaining (arXiv 2406.11862), without its bound on the tape.
    """
    sizes = np.asarray(chain.sizes, float)
    n_stages = len(sizes) - 1
    # With cumulative sums the price of a sweep is one difference, and the whole search takes O(L^3).
    passed, pulled = _sums(chain.forward), _sums(chain.reverse)
    price = np.full((n_stages + 1, n_stages + 1), np.inf)
    parts: dict[tuple[int, int], Part] = {}
    for stage in range(n_stages):
        price[stage, stage + 1] = chain.own[stage]
        parts[stage, stage + 1] = Part("own", stage, stage + 1)
    for length in range(2, n_stages + 1):
        for first in range(n_stages - length + 1):
            last = first + length
            ks = np.arange(first + 1, last)
            push = price[first, ks] + _between(passed, ks, last, first)
            pull = price[ks, last] + _between(pulled, first, ks, last)
            products = price[ks, last] + price[first, ks] + chain.product(sizes[last], sizes[ks], sizes[first])
            # In this order a tie selects the longest sweep, whose k is next to its start.
            options = [
                ("forward", ks, push),
                ("reverse", ks[::-1], pull[::-1]),
                ("product", ks, products + chain.switch),
            ]
            how, places, prices = min(options, key=lambda option: option[2].min())
            k = int(places[np.argmin(prices)])
            price[first, last] = prices.min()
            left = None if how == "forward" else parts[k, last]
            right = None if how == "reverse" else parts[first, k]
            parts[first, last] = Part(how, first, last, left, right)
    return float(price[0, n_stages]), parts[0, n_stages]


def _sums(prices):
    """Cumulative sums over the stages of the finite prices, and of the number of infinite ones."""
    # Counted apart, because the difference of two infinite sums is NaN.
    impossible = np.isinf(prices)
    zero = np.zeros((1, prices.shape[1]))
    sums = np.concatenate([zero, np.cumsum(np.where(impossible, 0.0, prices), axis=0)])
    return sums, np.concatenate([zero, np.cumsum(impossible, axis=0)])


def _between(sums, first, last, cut):
    """The price of a sweep through the stages ``first`` to ``last - 1`` with the seeds of a cut."""
    possible, impossible = sums
    price = possible[last, cut] - possible[first, cut]
    return np.where(impossible[last, cut] > impossible[first, cut], np.inf, price)


def as_product(part: Part) -> str:
    """A bracketing as text, a product of Jacobians with brackets."""
    return _bracketed(part) if part.how == "own" else _bracketed(part)[1:-1]


def _bracketed(part: Part) -> str:
    if part.how == "own":
        return f"J{part.last}"
    if part.how == "product":
        left, right = part.factors
        return f"({_bracketed(left)} {_bracketed(right)})"
    words = _bracketed(part.child)
    for stage in part.swept if part.how == "forward" else reversed(part.swept):
        words = f"(J{stage + 1} {words})" if part.how == "forward" else f"({words} J{stage + 1})"
    return words
