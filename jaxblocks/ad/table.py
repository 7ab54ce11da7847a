"""What derivatives cost, counted and measured side by side in one table."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key, PyTree

from jaxblocks.ad.build import warn_of_wrong_build
from jaxblocks.ad.counting import Count, count
from jaxblocks.ad.products import at_point, scalar_valued

__all__ = ["CostRow", "CostTable", "cost"]


@dataclasses.dataclass(frozen=True)
class CostRow:
    """One line of a `CostTable`.

    Attributes:
        name: what is computed, as in ``"gradient"``.
        count: its operations, a `Count`.
        flops_ratio: its operations over those of the function.
        seconds: the median time of a call, ``None`` where none was measured.
        quartiles: a quarter of the calls took less than the first, a quarter more than the second (seconds).
        time_ratio: its median time over that of the function.
        temporary_bytes: what the compiled program needs beside its inputs and outputs at its peak,
            where the compiler tells it.

    >>> CostRow("function", Count(additions=3), 1.0).flops
    3
    """

    name: str
    count: Count
    flops_ratio: float
    seconds: float | None = None
    quartiles: tuple[float, float] | None = None
    time_ratio: float | None = None
    temporary_bytes: int | None = None

    @property
    def flops(self) -> int:
        """The operations counted: ``count.flops``.

        >>> CostRow("jvp", Count(multiplications=2, additions=3), 2.5).flops
        5
        """
        return self.count.flops


@dataclasses.dataclass(frozen=True, repr=False)
class CostTable:
    """The rows of `cost` by name: ``table["gradient"]`` or ``table.gradient``.

    It prints as a table in a terminal and in a notebook; `plot` draws it.

    >>> table = CostTable({"function": CostRow("function", Count(additions=3), 1.0)})
    >>> table.function.flops
    3
    >>> print(table)
                operations    / function
    --------  ------------  ------------
    function             3             1
    """

    rows: dict[str, CostRow]

    def __getitem__(self, name: str) -> CostRow:
        if name not in self.rows:
            raise KeyError(f"This table has no row {name!r}; it has {', '.join(self.rows)}.")
        return self.rows[name]

    def __getattr__(self, name: str) -> CostRow:
        rows = self.__dict__.get("rows", {})
        if name not in rows:
            raise AttributeError(f"CostTable has no attribute or row {name!r}; its rows: {', '.join(rows)}.")
        return rows[name]

    def __iter__(self) -> Iterator[CostRow]:
        return iter(self.rows.values())

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self):
        return "\n".join([self._table("simple"), *self._notes()])

    def _repr_html_(self) -> str:
        return "".join([self._table("html"), *(f"<p>{note}</p>" for note in self._notes())])

    def plot(self, ax=None):
        """Bars of each row's cost over the function's, counted and (where measured) in time; returns the axes.

        >>> import pytest
        >>> matplotlib = pytest.importorskip("matplotlib")
        >>> matplotlib.use("agg")
        >>> axes = CostTable({"function": CostRow("function", Count(additions=3), 1.0)}).plot()
        >>> axes.get_ylabel()
        'cost / cost of the function'
        """
        if ax is None:
            import matplotlib.pyplot as plt

            _, ax = plt.subplots()
        bars = {"operations counted": [row.flops_ratio for row in self]}
        if all(row.time_ratio is not None for row in self):
            bars["time measured"] = [row.time_ratio for row in self]
        width = 0.8 / len(bars)
        for i, (label, heights) in enumerate(bars.items()):
            places = [place + (i - (len(bars) - 1) / 2) * width for place in range(len(self))]
            ax.bar(places, heights, width, label=label)
        ax.set_xticks(range(len(self)), list(self.rows))
        ax.set_ylabel("cost / cost of the function")
        ax.legend()
        return ax

    def _table(self, style) -> str:
        from tabulate import tabulate

        columns: dict[str, Callable] = {
            "": lambda row: row.name,
            "operations": lambda row: f"{row.flops:,}",
            "/ function": lambda row: f"{row.flops_ratio:.3g}",
        }
        if any(row.seconds is not None for row in self):
            columns |= {
                "time (ms)": lambda row: f"{1e3 * row.seconds:.3g}",
                "quartiles (ms)": lambda row: f"{1e3 * row.quartiles[0]:.3g} to {1e3 * row.quartiles[1]:.3g}",
                "time / function": lambda row: f"{row.time_ratio:.3g}",
            }
        if any(row.temporary_bytes is not None for row in self):
            columns["temporary bytes"] = lambda row: "" if row.temporary_bytes is None else f"{row.temporary_bytes:,}"
        lines = [[cell(row) for cell in columns.values()] for row in self]
        align = ["left"] + ["right"] * (len(columns) - 1)
        return tabulate(lines, headers=list(columns), tablefmt=style, colalign=align, disable_numparse=True)

    def _notes(self) -> list[str]:
        unknown = sorted({name for row in self for name in row.count.uncounted})
        notes = [f"Not counted, for their arithmetic is not known: {', '.join(unknown)}."] if unknown else []
        if any(row.count.loops_of_unknown_length for row in self):
            notes.append("A loop of unknown length is counted as one pass through its body.")
        return notes


def cost(
    f: Callable,
    /,
    *args: Any,
    rows: tuple[str, ...] = ("function", "gradient", "jvp", "hvp"),
    measure: bool = True,
    repeats: int = 20,
    key: Key[Array, ""] | None = None,
) -> CostTable:
    r"""A table of what :math:`f` and its derivatives with respect to its first argument cost.

    Args:
        f: scalar-valued, ``f(x, *rest)``; it is differentiated with respect to ``x``, a pytree.
        args: ``x`` and the rest: arrays, or ``jax.ShapeDtypeStruct`` where nothing is measured.
        rows: any of ``"function"``, ``"gradient"`` (with the value), ``"jvp"`` :math:`\nabla f^\top v`,
            ``"hvp"`` :math:`Hv`, ``"curvature"`` :math:`v^\top Hv`, ``"jacfwd"`` and ``"jacrev"`` (the
            gradient by either mode), ``"hessian"``. The function always comes, first: the ratios refer to it.
        measure: whether to compile and to time; with ``False`` operations are only counted, in milliseconds.
        repeats: timed calls of each row, taken in turns so that a busy machine disturbs all alike; with ``0``
            programs are compiled for their memory, but not timed.
        key: draws the direction :math:`v` from a normal distribution; without it every entry is
            :math:`1/\sqrt n`. It moves no count.

    Times are those of the wall clock, of compiled programs, until the results are there; the first call
    of each is not timed.

    Raises:
        ValueError: where ``f`` is not scalar-valued, or a row is not known.
        TypeError: where ``x`` holds a leaf that is not floating-point.

    >>> w, x = jnp.ones((3, 2)), jnp.ones((4, 3))
    >>> table = cost(lambda w, x: jnp.sum((x @ w) ** 2), w, x, measure=False)
    >>> table.function.flops, table["gradient"].flops
    (63, 127)

    Source: Griewank & Walther, Evaluating Derivatives (the cheap gradient principle: between two and four
    times the function, whatever the number of its arguments).
    """
    warn_of_wrong_build()
    if not args:
        raise ValueError("cost expects the arguments of f after it, cost(f, x, ...), but none came.")
    unknown = [name for name in rows if name not in _PROGRAMS]
    if unknown:
        raise ValueError(
            f"cost knows no row {', '.join(map(repr, unknown))}; those that it knows: {', '.join(_PROGRAMS)}."
        )
    if isinstance(repeats, bool) or not isinstance(repeats, int) or repeats < 0:
        raise ValueError(f"cost expects repeats to be a whole number >= 0, but {repeats!r} came.")
    x, _ = at_point("cost", args[0], args[0])
    args = (x, *args[1:])
    names = list(dict.fromkeys(("function", *rows)))
    programs = {name: _PROGRAMS[name](scalar_valued("cost", f)) for name in names}
    counts = {name: count(program, x, *args) for name, program in programs.items()}
    seconds: dict[str, list[float]] = {}
    memory: dict[str, int | None] = dict.fromkeys(names)
    if measure:
        if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(args)) and repeats:
            raise ValueError(
                "cost measures calls on arrays, but a ShapeDtypeStruct came; pass arrays, or measure=False to count "
                "only, or repeats=0 to compile without calling."
            )
        compiled = {name: jax.jit(program).lower(x, *args).compile() for name, program in programs.items()}
        memory = {name: _temporary_bytes(program) for name, program in compiled.items()}
        if repeats:
            seconds = _time(compiled, (_direction(x, key), *args), repeats)
    return CostTable({name: _row(name, counts, seconds, memory) for name in names})


# Each takes the direction first and then the arguments of f, so that all are called alike.
_PROGRAMS: dict[str, Callable] = {
    "function": lambda f: lambda v, x, *rest: f(x, *rest),
    "gradient": lambda f: lambda v, x, *rest: jax.value_and_grad(f)(x, *rest),
    "jvp": lambda f: lambda v, x, *rest: jax.jvp(lambda x: f(x, *rest), (x,), (v,)),
    "hvp": lambda f: lambda v, x, *rest: jax.jvp(jax.grad(lambda x: f(x, *rest)), (x,), (v,))[1],
    "curvature": lambda f: (
        lambda v, x, *rest: jax.jvp(lambda x: jax.jvp(lambda x: f(x, *rest), (x,), (v,))[1], (x,), (v,))[1]
    ),
    "jacfwd": lambda f: lambda v, x, *rest: jax.jacfwd(f)(x, *rest),
    "jacrev": lambda f: lambda v, x, *rest: jax.jacrev(f)(x, *rest),
    "hessian": lambda f: lambda v, x, *rest: jax.hessian(f)(x, *rest),
}


def _direction(x: PyTree, key) -> PyTree:
    leaves, structure = jax.tree.flatten(x)
    n = sum(leaf.size for leaf in leaves)
    if key is None:
        return structure.unflatten([jnp.full(leaf.shape, n**-0.5, leaf.dtype) for leaf in leaves])
    keys = jax.random.split(key, len(leaves))
    return structure.unflatten(
        [jax.random.normal(k, leaf.shape, leaf.dtype) for k, leaf in zip(keys, leaves, strict=True)]
    )


def _time(compiled, args, repeats) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in compiled}
    for program in compiled.values():
        jax.block_until_ready(program(*args))
    for _ in range(repeats):
        for name, program in compiled.items():
            start = time.perf_counter()
            jax.block_until_ready(program(*args))
            seconds[name].append(time.perf_counter() - start)
    return seconds


def _temporary_bytes(program) -> int | None:
    try:
        return program.memory_analysis().temp_size_in_bytes
    except (AttributeError, NotImplementedError, RuntimeError):  # not every backend tells
        return None


def _row(name, counts, seconds, memory) -> CostRow:
    whole, flops = counts["function"].flops, counts[name].flops
    row = CostRow(name, counts[name], flops / whole if whole else float("nan"), temporary_bytes=memory[name])
    if not seconds:
        return row
    low, median, high = (
        statistics.quantiles(seconds[name], n=4, method="inclusive") if len(seconds[name]) > 1 else seconds[name] * 3
    )
    ratio = median / statistics.median(seconds["function"])
    return dataclasses.replace(row, seconds=median, quartiles=(low, high), time_ratio=ratio)
