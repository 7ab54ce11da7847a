"""The rows of a cost table, their text and their picture, and why times and operations differ."""

import dataclasses
import html
import math
from collections.abc import Callable, Iterator

from jaxblocks.ad.counting.counts import Count
from jaxblocks.plotting.axes import GRAY, HATCHES, MARKERS, PALETTE, axes_or_new, show_bytes

__all__ = ["MOST_PASSES", "CostRow", "CostTable", "short_number"]

MOST_PASSES = 1000
"""Derivatives that take more passes are left out by default: their results are large, and measuring them is slow."""

# Seconds: of a shorter call, starting the program is a large part.
_SHORT = 1e-3

# The third quartile of the time ratios over the first: above it, half of the rounds disagree too much to conclude.
_WIDE = 1.5

# Bytes: larger arrays do not stay in the cache of a core.
_CACHE = 2**23


@dataclasses.dataclass(frozen=True)
class CostRow:
    """One line of a `CostTable`.

    Attributes:
        name: the name of the derivative, such as ``"gradient"``.
        count: its operations, a `Count`.
        flops_ratio: its operations over those of the function.
        seconds: the median time of a call, ``None`` where it is not measured.
        quartiles: the first and third quartile of the times of the calls, in seconds.
        time_ratio: the median over the rounds of its time over that of the function.
        time_ratio_quartiles: the first and third quartile of these ratios.
        temporary_bytes: the peak memory of the compiled program besides its inputs and outputs, ``None`` where the
            compiler does not report it.
        impossible: the reason, where f has no such derivative; the count is then empty and the ratio NaN.

    >>> CostRow("function", Count(additions=3), 1.0).flops
    3
    """

    name: str
    count: Count
    flops_ratio: float
    seconds: float | None = None
    quartiles: tuple[float, float] | None = None
    time_ratio: float | None = None
    time_ratio_quartiles: tuple[float, float] | None = None
    temporary_bytes: int | None = None
    impossible: str | None = None

    @property
    def flops(self) -> int:
        """The counted operations: ``count.flops``."""
        return self.count.flops


@dataclasses.dataclass(frozen=True, repr=False)
class CostTable:
    """The rows of `cost_table` by name: ``table["gradient"]`` or ``table.gradient``.

    It prints as a table in a terminal and in a notebook, with `notes` below it; `plot` and `plot_frontier` draw it.
    Its rows are dataclasses: ``pandas.DataFrame(map(vars, table))`` is the table in pandas.

    >>> table = CostTable({"function": CostRow("function", Count(additions=3), 1.0)})
    >>> table.function.flops
    3
    >>> print(table)
                operations    / function
    --------  ------------  ------------
    function             3             1
    """

    rows: dict[str, CostRow]
    left_out: tuple[str, ...] = ()  # the rows that are not computed by default for this function

    def __getitem__(self, name: str) -> CostRow:
        if name not in self.rows:
            expected = f"a row of {', '.join(self.rows)}"
            raise KeyError(f"CostTable expected {expected}, got {name!r}; {self._repair(name, 'pass')}.")
        return self.rows[name]

    def __getattr__(self, name: str) -> CostRow:
        rows = self.__dict__.get("rows", {})
        if name not in rows:
            expected = f"an attribute or a row of {', '.join(rows)}"
            raise AttributeError(f"CostTable expected {expected}, got {name!r}; {self._repair(name, 'write')}.")
        return rows[name]

    def _repair(self, name: str, verb: str) -> str:
        left_out = self.__dict__.get("left_out", ())  # an object that is being unpickled has no attributes yet
        return "pass rows='all' to cost_table" if name in left_out else f"{verb} one of these"

    def __iter__(self) -> Iterator[CostRow]:
        return iter(self.rows.values())

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self):
        return "\n".join([self._table("simple"), *self.notes()])

    def _repr_html_(self) -> str:
        return "".join([self._table("html"), *(f"<p>{html.escape(note)}</p>" for note in self.notes())])

    def plot(self, ax=None):
        """Bars of each row's cost over the function's, counted and (where measured) in time; returns the axes.

        A line through the end of a bar of time spans the quartiles of the rounds. The scale is logarithmic where a row
        costs more than 30 times the function.

        >>> axes = CostTable({"function": CostRow("function", Count(additions=3), 1.0)}).plot()
        >>> axes.get_xlabel()
        'cost / cost of the function'
        """
        ax = axes_or_new(ax, figsize=(6.4, 1.2 + 0.4 * len(self)))
        series = self._ratios()
        width = 0.8 / len(series)
        for i, (label, (lengths, low, high)) in enumerate(series.items()):
            places = [place + (i - (len(series) - 1) / 2) * width for place in range(len(self))]
            ax.barh(places, lengths, width, label=label, color=PALETTE[i], hatch=HATCHES[i], edgecolor="white")
            if label == "time measured":
                ax.hlines(places, low, high, color="black", linewidth=1.5)
        if any(length > 30 for lengths, *_ in series.values() for length in lengths):
            ax.set_xscale("log")
        ax.axvline(1, color=GRAY, linewidth=0.8)
        ax.set_yticks(range(len(self)), list(self.rows))
        ax.invert_yaxis()
        ax.set_xlabel("cost / cost of the function")
        ax.legend()
        return ax

    def plot_frontier(self, ax=None):
        """The cost of each row over its temporary bytes; returns the axes.

        One point for each row but the function, with its name; a line joins those that no other one improves in both.
        Rows whose bytes are zero or not known are left out.

        >>> row = CostRow("gradient", Count(additions=30), 3.0, temporary_bytes=800)
        >>> CostTable({"gradient": row}).plot_frontier().lines[0].get_xdata().tolist()
        [800.0]
        """
        ax = axes_or_new(ax)
        known = [i for i, row in enumerate(self) if row.temporary_bytes and row.name != "function"]
        rows = [row for i, row in enumerate(self) if i in known]
        sizes = [float(row.temporary_bytes or 0) for row in rows]
        for k, (label, series) in enumerate(self._ratios().items()):
            costs, low, high = ([column[i] for i in known] for column in series)
            points = sorted(zip(sizes, costs, strict=True))
            # In the order of bytes: a point is on the frontier if it costs less than all with fewer bytes.
            best = [(x, y) for i, (x, y) in enumerate(points) if all(y < other for _, other in points[:i])]
            ax.plot(*zip(*best, strict=True) if best else ((), ()), color=PALETTE[k], linewidth=1, zorder=1)
            ax.vlines(sizes, low, high, color=PALETTE[k], linewidth=2)
            ax.scatter(sizes, costs, color=PALETTE[k], marker=MARKERS[k], label=label, zorder=2)
        for x, row in zip(sizes, rows, strict=True):
            y = max(
                cost for cost in (row.flops_ratio, row.time_ratio_quartiles and row.time_ratio_quartiles[1]) if cost
            )
            look = dict(textcoords="offset points", ha="left", va="bottom", fontsize=8, rotation=30, color=GRAY)
            ax.annotate(row.name.removeprefix("gradient, "), (x, y), (0, 6), **look)
        show_bytes(ax.xaxis)
        ax.margins(0.12, 0.25)
        ax.set_xlabel("temporary memory")
        ax.set_ylabel("cost / cost of the function")
        ax.legend()
        return ax

    def _ratios(self) -> dict[str, tuple[list[float], list[float], list[float]]]:
        """The costs over those of the function, with quartiles: counted and, where there are any, measured."""
        counted = [row.flops_ratio for row in self]
        found = {"operations counted": (counted, counted, counted)}
        if any(row.time_ratio is not None for row in self):
            unknown = (math.nan, math.nan, math.nan)
            times = [
                unknown if row.time_ratio is None else (row.time_ratio, *(row.time_ratio_quartiles or unknown[1:]))
                for row in self
            ]
            median, low, high = map(list, zip(*times, strict=True))
            found["time measured"] = (median, low, high)
        return found

    def _table(self, style) -> str:
        from tabulate import tabulate

        columns: dict[str, Callable] = {
            "": lambda row: row.name,
            "operations": lambda row: "impossible" if row.impossible else f"{row.flops:,}",
            "/ function": lambda row: "" if math.isnan(row.flops_ratio) else short_number(row.flops_ratio),
        }
        if any(row.seconds is not None for row in self):
            columns |= {
                "time (ms)": lambda row: row.seconds and short_number(1e3 * row.seconds),
                "time / function": lambda row: row.time_ratio and short_number(row.time_ratio),
                "quartiles": lambda row: (
                    row.time_ratio_quartiles and " to ".join(short_number(q) for q in row.time_ratio_quartiles)
                ),
            }
        if any(row.temporary_bytes is not None for row in self):
            columns["temporary bytes"] = lambda row: None if row.temporary_bytes is None else f"{row.temporary_bytes:,}"
        lines = [[cell(row) or "" for cell in columns.values()] for row in self]
        align = ["left"] + ["right"] * (len(columns) - 1)
        return tabulate(lines, headers=list(columns), tablefmt=style, colalign=align, disable_numparse=True)

    def notes(self) -> list[str]:
        """What the numbers leave out, and why a time differs from the operations; printed below the table.

        Where the time ratio of a row differs from its ratio of operations by more than a factor of 2, and a call of the
        function is long enough to tell, one sentence states the reason.

        >>> CostTable(
        ...     {"function": CostRow("function", Count(uncounted={"fft": 1}), 1.0)}
        ... ).notes()
        ['Not counted, because their arithmetic is unknown: fft.']
        """
        unknown = sorted({name for row in self for name in row.count.uncounted})
        notes = [f"Not counted, because their arithmetic is unknown: {', '.join(unknown)}."] if unknown else []
        if any(row.count.loops_of_unknown_length for row in self):
            notes.append("A loop of unknown length is counted as one iteration.")
        if any(row.count.conds for row in self):
            notes.append("Of the branches of a cond only the costliest is counted.")
        for reason in dict.fromkeys(row.impossible for row in self if row.impossible):
            names = ", ".join(row.name for row in self if row.impossible == reason)
            notes.append(f"Impossible, because {reason}: {names}.")
        if self.left_out:
            names = ", ".join(self.left_out)
            notes.append(
                f"Left out, since they take more than {MOST_PASSES} passes: {names}; cost_table takes them as rows=."
            )
        function = self.rows.get("function")
        if function is not None and function.seconds and function.seconds < _SHORT and len(self) > 1:
            notes.append(
                f"A call of the function takes {1e3 * function.seconds:.2g} ms. Below {1e3 * _SHORT:g} ms starting a "
                "program is a large part of a call, and the time ratios say little; a larger batch takes longer."
            )
        elif function is not None and function.seconds:
            notes += [words for row in self if (words := _disagreement(row, function))]
        spread = {row.name: row.time_ratio_quartiles for row in self if row.time_ratio_quartiles}
        wide = [name for name, (low, high) in spread.items() if high > _WIDE * low]
        if wide:
            notes.append(
                f"Uncertain, because the quartiles of the time ratio differ by more than a factor of {_WIDE:g}: "
                f"{', '.join(wide)}. Raise repeats, or measure while the machine does nothing else."
            )
        untimed = [row.name for row in self if row.seconds is None and not row.impossible]
        if 0 < len(untimed) and any(row.seconds is not None for row in self):
            notes.append(f"Not timed, because memory_limit is exceeded: {', '.join(untimed)}.")
        return notes


def short_number(x: float) -> str:
    """A ratio or a time with three significant digits, from 1000 on without digits after the point.

    >>> short_number(2.1849), short_number(1123.4)
    ('2.18', '1,123')
    """
    return f"{x:,.0f}" if abs(x) >= 999.5 else f"{x:.3g}"


_MATRICES = ("jacfwd", "jacrev", "hessian")


def _disagreement(row: CostRow, function: CostRow) -> str | None:
    """Why the time ratio of a row is not within a factor of 2 of its ratio of operations; ``None`` where it is."""
    if row.seconds is None or row.time_ratio is None or not row.flops_ratio > 0 or not function.seconds:
        return None
    if _close(row.time_ratio, row.flops_ratio):
        return None
    time, operations = short_number(row.time_ratio), short_number(row.flops_ratio)
    facts = f"{row.name} takes {time} times the time for {operations} times the operations"
    moved = row.count.bytes / max(1, function.count.bytes)
    if _close(row.time_ratio, moved):
        return f"{facts}, because memory limits it: it moves {short_number(moved)} times the bytes."
    own, others = (one.flops / (1e9 * seconds) for one, seconds in ((row, row.seconds), (function, function.seconds)))
    rates = f"{facts}: {short_number(own)} operations per ns against {short_number(others)}"
    if own > others:
        larger = ", because many directions at once make its products larger" if row.name in _MATRICES else ""
        return f"{rates}{larger}."
    kept, by_function = (one.temporary_bytes or 0 for one in (row, function))
    if kept > _CACHE >= by_function:
        return f"{rates}, because its temporary memory of {short_number(kept / 2**20)} MiB exceeds a cache."
    elementwise, less = (100 * (1 - one.count.dots / max(1, one.flops)) for one in (row, function))
    if elementwise > 1.5 * less and elementwise > 10:
        return (
            f"{rates}, because {elementwise:.0f} % of them are elementwise, and {less:.0f} % of those of the function."
        )
    return f"{rates}, because products of its shapes are slower."


def _close(p: float, q: float) -> bool:
    return p <= 2 * q and q <= 2 * p
