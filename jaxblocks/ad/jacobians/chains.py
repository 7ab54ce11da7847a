r"""The product of Jacobians of the chain rule, and the cost of each order of multiplication.

    f_l   the l-th of L functions; the first is applied first, f_L(... f_2(f_1(x)))
    d_l   the number of outputs of f_l; d_0 is the number of entries of x
    J_l   the Jacobian of f_l at the point where the chain evaluates it, d_l by d_{l-1}

The product J_L ... J_2 J_1 is the same in every bracketing, but its cost is not. Forward mode multiplies from
right to left, J_L (... (J_2 J_1)), reverse mode from left to right, ((J_L J_{L-1}) ...) J_1; there are many
other bracketings. A bracketing is written as nested pairs of the indices of the factors, in the order of the
formula: ``((3, 2), 1)`` is (J3 J2) J1.

Only the products of Jacobians are counted here. ``jax.jacfwd`` pushes the identity through f_1, and ``jax.jacrev``
pulls it through f_L, which costs one more product; a gradient, which is reverse mode with d_L = 1,
starts from a single row and needs no such product.
"""

import dataclasses
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxblocks.ad.programs.arguments import to_floating
from jaxblocks.ad.programs.linearization import linearize
from jaxblocks.backend.precision import full_precision
from jaxblocks.backend.varying import varying_like
from jaxblocks.checks.annotations import is_integer
from jaxblocks.checks.errors import describe, require
from jaxblocks.checks.expectations import PositiveInt, checked
from jaxblocks.checks.foreign_arrays import reject_foreign
from jaxblocks.plotting.axes import GRAY, MODES, axes_or_new

__all__ = [
    "ChainOrder",
    "bracketings",
    "chain_cost",
    "chain_memory",
    "jacobian_chain",
    "multiply_chain",
    "optimal_order",
]

Order = str | int | tuple


@checked
def chain_cost(dims: Sequence[int], *, order: Order = "best") -> int:
    r"""The number of multiplications in the product of the Jacobians of a chain, in a given order.

    .. math::

        forward: d_0 ∑_{l=2}^{L} d_l d_{l-1}
        reverse: d_L ∑_{l=0}^{L-2} d_l d_{l+1}

    and in general the sum of m k n over the products of an (m, k) and a (k, n) matrix. The number of additions is
    about the same.

    Args:
        dims: $d_0, …, d_L$, as in ``(784, 128, 64, 10)`` for a net of three layers.
        order: ``"forward"``, ``"reverse"``, ``"best"`` (that of `optimal_order`), or a bracketing: ``((3, 2), 1)``.

    Raises:
        ValueError: if ``dims`` are not at least two integers >= 1, or ``order`` is not an order of L factors.

    >>> dims = (1000, 500, 100, 1)
    >>> [chain_cost(dims, order=order) for order in ("forward", "reverse", ((3, 2), 1))]
    [50100000, 550000, 550000]

    Source: Griewank & Walther 2008, Evaluating derivatives (doi:10.1137/1.9780898717761); Huszar, DeepNN lecture 3
    (forward and reverse mode as orders of multiplication).
    """
    dims = _dims(dims)
    return _cost(dims, _bracketing(order, dims))


@checked
def chain_memory(dims: Sequence[int], *, order: Order = "best") -> int:
    r"""The largest number of entries that are live at a time while the product of a chain of Jacobians is computed.

    The function is evaluated from its inputs to its outputs, and makes $J_1, J_2, …, J_L$ in this order. Each
    product is computed as soon as both of its factors exist, and then the factors are dropped. Forward mode needs one
    factor at a time and what it has pushed so far; reverse mode needs all factors before its first product.

    Args:
        dims, order: as for `chain_cost`.

    Raises:
        ValueError: as `chain_cost`.

    >>> [chain_memory((1000, 500, 100, 1), order=order) for order in ("forward", "reverse")]
    [650000, 550600]
    >>> (
    ...     650_000 == 500 * 1000 + 100 * 500 + 100 * 1000,
    ...     550_600 == 500 * 1000 + 100 * 500 + 1 * 100 + 1 * 500,
    ... )
    (True, True)

    Source: Griewank & Walther 2008, Evaluating derivatives (doi:10.1137/1.9780898717761); Huszar, DeepNN lecture 3 (the
    memory of forward and reverse mode).
    """
    dims = _dims(dims)
    return _peak(dims, _bracketing(order, dims))


@dataclasses.dataclass(frozen=True, repr=False)
class ChainOrder:
    """The cheapest bracketing of a chain of Jacobians, compared with the two pure modes; returned by `optimal_order`.

    It prints as a table in a terminal and in a notebook; `plot` draws it.

    Attributes:
        dims: the dimensions d_0, ..., d_L.
        order: the cheapest bracketing as nested pairs, for `chain_cost` and `multiply_chain`.
        cost: its number of multiplications.
        forward, reverse: the numbers of multiplications of the two modes.

    >>> print(optimal_order((50, 1, 50, 50, 50)))
             bracketing         multiplications    / best
    -------  ---------------  -----------------  --------
    forward  J4 (J3 (J2 J1))            252,500      33.7
    reverse  ((J4 J3) J2) J1            130,000      17.3
    best     (J4 (J3 J2)) J1              7,500         1
    """

    dims: tuple[int, ...]
    order: int | tuple
    cost: int
    forward: int
    reverse: int

    @property
    def bracketing(self) -> str:
        """The cheapest bracketing as a formula.

        >>> optimal_order((784, 128, 64, 10, 1)).bracketing
        '((J4 J3) J2) J1'
        """
        return _formula(self.order)

    @property
    def crossover(self) -> float | None:
        r"""The output dimension $d_L$ at which both modes cost the same: below it reverse mode is cheaper.

        ``None`` where there is none: with two factors the modes are the same, and where $d_{L-1}$ is large compared
        with $d_1$, reverse mode is cheaper for every $d_L$. For $d_1 = d_{L-1}$ it is $d_0$.

        >>> optimal_order((20, 50, 100, 50, 3)).crossover
        20.0
        """
        d, inner = self.dims, sum(a * b for a, b in zip(self.dims[1:-2], self.dims[2:-1], strict=True))
        slope = inner + d[0] * (d[1] - d[-2])  # of reverse - forward, as d_L grows
        return d[0] * inner / slope if inner and slope > 0 else None

    def plot(self, ax: Any = None) -> Any:
        """Draw the cost of each mode and of the best order over output dimensions from 1 to d_0; returns the axes.

        The inner dimensions are fixed. A dot marks this chain, a dotted line the crossover.

        >>> axes = optimal_order((784, 128, 64, 10)).plot()
        >>> [line.get_label() for line in axes.lines][:3]
        ['forward', 'reverse', 'best']
        """
        repair = f"pass the dimensions between, as in optimal_order({(self.dims[0], 64, self.dims[-1])})"
        require(len(self.dims) >= 3, "a chain of at least two Jacobians", f"dims {self.dims}", repair)
        ax = axes_or_new(ax)
        last = max(self.dims[0], self.dims[-1])
        steps = min(last, 100)
        swept = sorted({*(round(last ** (i / max(1, steps - 1))) for i in range(steps)), self.dims[-1]})
        chains = [(*self.dims[:-1], d) for d in swept]
        for order, style in (("forward", "--"), ("reverse", "-."), ("best", "-")):
            look = {"linewidth": 5, "alpha": 0.3, "zorder": 1} if order == "best" else {}
            look["color"] = MODES["product" if order == "best" else order]
            ax.plot(swept, [chain_cost(chain, order=order) for chain in chains], style, label=order, **look)
        ax.plot([self.dims[-1]], [self.cost], "ko", label=self.bracketing)
        if self.crossover is not None and 1 <= self.crossover <= last:
            ax.axvline(self.crossover, color=GRAY, linestyle=":", label=f"modes cross at {self.crossover:.4g}")
        ax.set(xscale="log", yscale="log")
        ax.set_xlabel(f"output dimension (input dimension {self.dims[0]})")
        ax.set_ylabel("multiplications")
        ax.legend()
        return ax

    def __repr__(self):
        return self._table("simple")

    def _repr_html_(self) -> str:
        return self._table("html")

    def _table(self, style: str) -> str:
        from tabulate import tabulate

        factors = len(self.dims) - 1
        rows = [
            ("forward", _sweep("forward", factors), self.forward),
            ("reverse", _sweep("reverse", factors), self.reverse),
            ("best", self.order, self.cost),
        ]
        lines = [
            (name, _formula(order), f"{cost:,}", f"{cost / self.cost if self.cost else 1:.3g}")
            for name, order, cost in rows
        ]
        headers, align = ("", "bracketing", "multiplications", "/ best"), ("left", "left", "right", "right")
        return tabulate(lines, headers, style, colalign=align, disable_numparse=True)


def optimal_order(dims: Sequence[int]) -> ChainOrder:
    r"""The bracketing of a chain of Jacobians that takes the fewest multiplications.

    Dynamic programming over the sub-chains $J_j ⋯ J_i$:

    .. math::

        C_{ji} = min_{i ≤ k < j} C_{j,k+1} + C_{ki} + d_j d_k d_{i-1},
        C_{ii} = 0

    in $O(L^3)$ steps. If a pure mode is as cheap as the optimum, that mode is returned.

    A scalar output, $d_L = 1$, makes reverse mode (backpropagation) the best order if no other dimension is 1.
    The lecture states this without the condition: (1, 100, 2, 1) costs 202 in forward and 300 in reverse mode.

    Args:
        dims: $d_0, …, d_L$, as for `chain_cost`.

    Raises:
        ValueError: if ``dims`` are not at least two integers >= 1.

    >>> best = optimal_order((50, 1, 50, 50, 50))
    >>> best.bracketing, best.cost, best.forward, best.reverse
    ('(J4 (J3 J2)) J1', 7500, 252500, 130000)

    Source: Godbole 1973, On efficient computation of matrix chain products; Griewank &
    Naumann 2003, Accumulating Jacobians as chained sparse matrix products (doi:10.1007/s10107-002-0329-7).
    """
    dims = _dims(dims)
    factors = len(dims) - 1
    # best[j, i]: the least cost of J_j ... J_i, and its bracketing.
    best: dict[tuple[int, int], tuple[int, int | tuple]] = {(i, i): (0, i) for i in range(1, factors + 1)}
    for span in range(1, factors):
        for i in range(1, factors - span + 1):
            j = i + span
            costs = [best[j, k + 1][0] + best[k, i][0] + dims[j] * dims[k] * dims[i - 1] for k in range(i, j)]
            cost = min(costs)
            k = i + costs.index(cost)
            best[j, i] = cost, (best[j, k + 1][1], best[k, i][1])
    cost, order = best[factors, 1]
    forward, reverse = (_cost(dims, _sweep(mode, factors)) for mode in ("forward", "reverse"))
    for mode, its_cost in (("forward", forward), ("reverse", reverse)):
        # Reverse mode comes last: it is returned where both modes are optimal.
        if its_cost == cost:
            order = _sweep(mode, factors)
    return ChainOrder(dims, order, cost, forward, reverse)


@checked
def bracketings(factors: PositiveInt) -> Iterator[int | tuple]:
    """All bracketings of ``factors`` factors, as nested pairs; their numbers 1, 1, 2, 5, 14, ... are Catalan numbers.

    >>> list(bracketings(3))
    [((3, 2), 1), (3, (2, 1))]
    """
    return _bracketings(factors, 1)


def _bracketings(last, first):
    if last == first:
        yield last
    for k in range(first, last):
        for left in _bracketings(last, k + 1):
            for right in _bracketings(k, first):
                yield left, right


def multiply_chain(jacobians: Sequence[Float[Array, "... _ _"]], *, order: Order = "best") -> Float[Array, "... _ _"]:
    r"""The product $J_L ⋯ J_2 J_1$, multiplied in a given order.

    Args:
        jacobians: $J_1, …, J_L$, beginning with that of the function that is applied first: $J_l$ is
            ``(d_l, d_{l-1})``; equal leading axes are batch axes.
        order: as for `chain_cost`. All orders give the same matrix, up to rounding; products are computed in
            full precision.

    Raises:
        ValueError: if the shapes do not match, or ``order`` is not an order of L factors.

    >>> f, g = jnp.array([[1.0], [2.0]]), jnp.array([[3.0, 4.0]])
    >>> multiply_chain([f, g])
    Array([[11.]], dtype=float32)

    Source: Griewank & Walther 2008, Evaluating derivatives (doi:10.1137/1.9780898717761); Huszar, DeepNN lecture 3 (the
    chain of Jacobians).
    """
    jacobians = list(jacobians)
    reject_foreign("jacobians", jacobians)
    require(jacobians, "at least one Jacobian", "none", "pass [J1, ..., JL]")
    for i, j in enumerate(jacobians, 1):
        require(len(getattr(j, "shape", ())) >= 2, f"J{i} to be a matrix", j, f"write J{i}.reshape(out, in)")
        if i > 1 and (*j.shape[:-2], j.shape[-1]) != jacobians[i - 2].shape[:-1]:
            require(
                False,
                f"J{i} to have as many columns as J{i - 1} has rows",
                f"{describe(j)} after {describe(jacobians[i - 2])}",
                "begin with the Jacobian of the function that is applied first",
            )
    # The order of a product without entries does not matter.
    order = _bracketing(order, [max(1, d) for d in (jacobians[0].shape[-1], *(j.shape[-2] for j in jacobians))])
    return _fold(order, lambda i: jacobians[i - 1], full_precision()(jnp.matmul))


@checked
def jacobian_chain(fs: Sequence[Callable], x: Float[Array, "..."]) -> tuple[Float[Array, "_ _"], ...]:
    r"""The Jacobians $J_1, …, J_L$ of functions applied one after the other, along the chain.

    .. math::

        J_l = (∂ f_l) / (∂ x)|_{x_{l-1}},
        x_l = f_l(x_{l-1}),
        x_0 = x

    Their product, by `multiply_chain`, is the Jacobian of $f_L ∘ ⋯ ∘ f_1$ at x. An array of any
    shape is raveled in row-major order, so that each $J_l$ is a matrix
    $(d_l, d_{l-1})$. Each is computed in forward or reverse mode, whichever takes fewer passes.

    Args:
        fs: functions from an array to an array; the first is applied first.
        x: a floating-point array.

    Raises:
        ValueError: if ``fs`` is empty.
        TypeError: if ``x`` or the value of a function is not one floating-point array.

    >>> jacobians = jax.jit(lambda x: jacobian_chain([jnp.sin, lambda x: x.sum()], x))(
    ...     jnp.zeros(2)
    ... )
    >>> [j.shape for j in jacobians], multiply_chain(jacobians)
    ([(2, 2), (1, 2)], Array([[1., 1.]], dtype=float32))

    Source: Griewank & Walther 2008, Evaluating derivatives (doi:10.1137/1.9780898717761); Krapac & Segvic, Deep
    feed-forward models (Jacobians of vectorized tensors).
    """
    fs = list(fs)
    require(fs, "functions f_1, ..., f_L", "none", "write jacobian_chain([f], x)")
    jacobians = []
    for i, f in enumerate(fs, 1):
        require(callable(f), f"f_{i} to be a function", f, "pass a list of functions", error=TypeError)
        y = _one_array(f"f_{i}(x)", f(x))
        # Forward mode where both take the same number of passes: it stores no intermediate values.
        jacobians.append((_columns(f, x) if x.size <= y.size else jax.jacrev(f)(x)).reshape(y.size, x.size))
        x = y
    return tuple(jacobians)


def _fold(order, leaf: Callable, join: Callable):
    """Evaluate a bracketing from the inside out, without recursion, because chains may be long."""
    todo, done = [(order, False)], []
    while todo:
        part, opened = todo.pop()
        if not isinstance(part, tuple):
            done.append(leaf(part))
        elif opened:
            right, left = done.pop(), done.pop()
            done.append(join(left, right))
        else:
            # A stack: the left part is evaluated first, then the right one, and then the pair is found again as opened.
            todo += [(part, True), (part[1], False), (part[0], False)]
    return done.pop()


def _cost(dims, order) -> int:
    def join(left, right):
        (rows, inner, of_left), (_, columns, of_right) = left, right
        return rows, columns, of_left + of_right + rows * inner * columns

    return _fold(order, lambda i: (dims[i], dims[i - 1], 0), join)[2]


def _peak(dims, order) -> int:
    """Entries that are live at the peak: the right factor of each product is made before the left one."""

    def join(left, right):
        (rows, inner, of_left), (_, columns, of_right) = left, right
        held = inner * columns
        # The peak is in the right part, in the left part while the right product is stored, or in the product of both.
        return rows, columns, max(of_right, held + of_left, held + rows * inner + rows * columns)

    return _fold(order, lambda i: (dims[i], dims[i - 1], dims[i] * dims[i - 1]), join)[2]


def _formula(order) -> str:
    def in_brackets(text):
        return f"({text})" if " " in text else text

    return _fold(order, lambda i: f"J{i}", lambda left, right: f"{in_brackets(left)} {in_brackets(right)}")


def _sweep(mode, factors):
    """The bracketing of a pure mode: from right to left (forward), or from left to right (reverse)."""
    numbers = range(2, factors + 1) if mode == "forward" else range(factors - 1, 0, -1)
    order = 1 if mode == "forward" else factors
    for i in numbers:
        order = (i, order) if mode == "forward" else (order, i)
    return order


def _bracketing(order, dims):
    """The bracketing that ``order`` names, as nested pairs."""
    if order == "best":
        return optimal_order(dims).order
    factors = len(dims) - 1
    if order in ("forward", "reverse"):
        return _sweep(order, factors)
    leaves, todo = [], [order]
    while todo:
        part = todo.pop()
        if isinstance(part, tuple) and len(part) == 2:
            todo += [part[1], part[0]]
        else:
            leaves.append(part)
    if leaves != list(range(factors, 0, -1)):
        example = _sweep("reverse", factors)
        expected = f"'forward', 'reverse', 'best', or the factors {factors} to 1, in this order, in nested pairs"
        require(False, f"order to be {expected}", repr(order), f"pass {example}, for example")
    return order


def _dims(dims: Any) -> tuple[int, ...]:
    expected, repair = "dims, d_0, ..., d_L, to be at least two integers >= 1", "pass a tuple such as (784, 128, 10)"
    require(isinstance(dims, Iterable) and not isinstance(dims, str), expected, dims, repair)
    sizes: tuple[Any, ...] = tuple(dims)
    integers = all(is_integer(d) and operator.index(d) >= 1 for d in sizes)
    require(integers and len(sizes) >= 2, expected, dims if hasattr(dims, "dtype") else repr(sizes), repair)
    return tuple(map(operator.index, sizes))


def _columns(f, x):
    """The Jacobian by forward mode, one column for each entry of x on the last axis."""
    # Inside of shard_map a tangent must vary over the same mesh axes as its primal.
    basis = varying_like(jnp.eye(x.size, dtype=x.dtype).reshape(x.size, *x.shape), x)
    return jax.vmap(linearize(f, x)[1], out_axes=-1)(basis)


def _one_array(what, x):
    leaves = jax.tree.leaves(x)
    is_array = len(leaves) == 1 and leaves[0] is x
    require(is_array, f"{what} to be one array", x, "split the functions", error=TypeError)
    x = jnp.asarray(x)
    floating = jnp.issubdtype(x.dtype, jnp.floating)
    require(floating, f"{what} to be a floating-point array", x, to_floating(x), error=TypeError)
    return x
