"""The cost of a function and of its derivatives, counted and measured, in one table."""

import dataclasses
import html
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.stages import Traced
from jaxtyping import Array, Key, PyTree

from jaxblocks.ad.arguments import as_point, scalar_valued
from jaxblocks.ad.counting import Count, count_jaxpr
from jaxblocks.ad.linearization import missing_mode
from jaxblocks.ad.memory import compiled_bytes
from jaxblocks.ad.products import directional_curvature, hvp
from jaxblocks.ad.timing import quartiles, time_in_turns
from jaxblocks.checks import NonNegativeInt, PositiveInt, checked
from jaxblocks.errors import describe, require
from jaxblocks.matplotlib_axes import GRAY, HATCHES, MARKERS, PALETTE, axes_or_new, show_bytes

__all__ = ["CostRow", "CostTable", "cost_table", "table_of_programs"]

# Seconds: of a shorter call, starting the program is a large part.
_SHORT = 1e-3

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
        """The counted operations: ``count.flops``.

        >>> CostRow("jvp", Count(multiplications=2, additions=3), 2.5).flops
        5
        """
        return self.count.flops


@dataclasses.dataclass(frozen=True, repr=False)
class CostTable:
    """The rows of `cost_table` by name: ``table["gradient"]`` or ``table.gradient``.

    It prints as a table in a terminal and in a notebook, with `notes` below it; `plot` and `plot_frontier` draw it,
    `to_frame` converts it to pandas.

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
            raise KeyError(f"CostTable expected a row of {', '.join(self.rows)}, got {name!r}; pass one of these.")
        return self.rows[name]

    def __getattr__(self, name: str) -> CostRow:
        rows = self.__dict__.get("rows", {})
        if name not in rows:
            expected = f"an attribute or a row of {', '.join(rows)}"
            raise AttributeError(f"CostTable expected {expected}, got {name!r}; write one of these.")
        return rows[name]

    def __iter__(self) -> Iterator[CostRow]:
        return iter(self.rows.values())

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self):
        return "\n".join([self._table("simple"), *self.notes()])

    def _repr_html_(self) -> str:
        return "".join([self._table("html"), *(f"<p>{html.escape(note)}</p>" for note in self.notes())])

    def to_frame(self):
        """The table as a ``pandas.DataFrame``, indexed by the names of the rows, with numbers without units.

        The columns are operations, multiplications, additions, transcendentals, ratio (of operations to the
        function's), seconds, lower_quartile, upper_quartile, time_ratio, lower_time_ratio, upper_time_ratio,
        temporary_bytes; missing values are NaN. The quartiles are those of the seconds and of the time ratio.

        >>> import pytest
        >>> pandas = pytest.importorskip("pandas")
        >>> table = CostTable({"function": CostRow("function", Count(additions=3), 1.0)})
        >>> table.to_frame().loc["function", ["operations", "ratio", "seconds"]].tolist()
        [3.0, 1.0, nan]
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError(
                "CostTable.to_frame expected pandas, got no such package; install it with: pip install pandas, or read "
                "the rows themselves, as in {row.name: row.flops for row in table}."
            ) from error
        lines = {
            row.name: {
                "operations": row.flops,
                "multiplications": row.count.multiplications,
                "additions": row.count.additions,
                "transcendentals": row.count.transcendentals,
                "ratio": row.flops_ratio,
                "seconds": row.seconds,
                "lower_quartile": row.quartiles and row.quartiles[0],
                "upper_quartile": row.quartiles and row.quartiles[1],
                "time_ratio": row.time_ratio,
                "lower_time_ratio": row.time_ratio_quartiles and row.time_ratio_quartiles[0],
                "upper_time_ratio": row.time_ratio_quartiles and row.time_ratio_quartiles[1],
                "temporary_bytes": row.temporary_bytes,
            }
            for row in self
        }
        frame = pd.DataFrame.from_dict(lines, orient="index")
        counted = ["operations", "multiplications", "additions", "transcendentals", "ratio"]
        return frame.astype({name: float for name in frame if name not in counted})

    def plot(self, ax=None):
        """Bars of each row's cost over the function's, counted and (where measured) in time; returns the axes.

        A line through the end of a bar of time spans the quartiles of the rounds. The scale is logarithmic where a row
        costs more than 30 times the function.

        >>> import pytest
        >>> matplotlib = pytest.importorskip("matplotlib")
        >>> matplotlib.use("agg")
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

        One point for each row but the function, with its name; a line joins those that no other one
        improves in both.
        Rows whose bytes are zero or not known are left out.

        >>> import pytest
        >>> matplotlib = pytest.importorskip("matplotlib")
        >>> matplotlib.use("agg")
        >>> rows = [
        ...     CostRow("function", Count(additions=10), 1.0, temporary_bytes=0),
        ...     CostRow("gradient", Count(additions=30), 3.0, temporary_bytes=800),
        ...     CostRow(
        ...         "gradient, checkpoint=2", Count(additions=40), 4.0, temporary_bytes=200
        ...     ),
        ... ]
        >>> axes = CostTable({row.name: row for row in rows}).plot_frontier()
        >>> [text.get_text() for text in axes.texts], axes.lines[0].get_xdata().tolist()
        (['gradient', 'checkpoint=2'], [200.0, 800.0])
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
        # Counts have no spread.
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
            "/ function": lambda row: "" if row.impossible else f"{row.flops_ratio:.3g}",
        }
        if any(row.seconds is not None for row in self):
            columns |= {
                "time (ms)": lambda row: row.seconds and f"{1e3 * row.seconds:.3g}",
                "time / function": lambda row: row.time_ratio and f"{row.time_ratio:.3g}",
                "quartiles": lambda row: (
                    row.time_ratio_quartiles and " to ".join(f"{q:.3g}" for q in row.time_ratio_quartiles)
                ),
            }
        if any(row.temporary_bytes is not None for row in self):
            columns["temporary bytes"] = lambda row: None if row.temporary_bytes is None else f"{row.temporary_bytes:,}"
        lines = [[cell(row) or "" for cell in columns.values()] for row in self]
        align = ["left"] + ["right"] * (len(columns) - 1)
        return tabulate(lines, headers=list(columns), tablefmt=style, colalign=align, disable_numparse=True)

    def notes(self) -> list[str]:
        """What the numbers leave out, and why a time differs from the operations; printed below the table.

        Where the time ratio of a row differs from its ratio of operations by more than a factor of 2, one sentence
        states the reason.

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
        function = self.rows.get("function")
        if function is not None and function.seconds and function.seconds < _SHORT and len(self) > 1:
            notes.append(
                f"A call of the function takes {1e3 * function.seconds:.2g} ms. Below {1e3 * _SHORT:g} ms starting a "
                "program is a large part of a call, and the time ratios are too small; a larger batch takes longer."
            )
        elif function is not None and function.seconds:
            notes += [words for row in self if (words := _disagreement(row, function))]
        untimed = [row.name for row in self if row.seconds is None and not row.impossible]
        if 0 < len(untimed) and any(row.seconds is not None for row in self):
            notes.append(f"Not timed, because memory_limit is exceeded: {', '.join(untimed)}.")
        return notes


@checked
def cost_table(
    f: Callable,
    /,
    *args: Any,
    rows: tuple[str, ...] | list[str] | str | None = None,
    measure: bool = True,
    repeats: NonNegativeInt = 20,
    memory_limit: PositiveInt = 4 * 2**30,
    key: Key[Array, ""] | None = None,
) -> CostTable:
    r"""The cost of :math:`f` and of its derivatives with respect to its first argument, as a table.

    ==============================  ==========================================================================
    row                             computes
    ==============================  ==========================================================================
    ``"function"``                  :math:`f(x)`; always the first row: the ratios refer to it
    ``"jvp"``                       :math:`f(x)` and :math:`Jv`: one pass of forward mode
    ``"vjp"``                       :math:`f(x)` and :math:`u^\top J`: one pass of reverse mode
    ``"gradient"``                  :math:`f(x)` and :math:`\nabla f(x)`
    ``"jacfwd"``, ``"jacrev"``      :math:`J` by either mode: one pass for each entry of x (of f(x))
    ``"hessian"``                   :math:`H`, forward over reverse: one product for each entry of x
    ``"hvp"``                       :math:`Hv`, forward over reverse, as `jaxblocks.hvp` computes it
    ``"hvp_reverse_over_forward"``  :math:`Hv` as the gradient of :math:`\nabla f^\top v`, itself in forward mode
    ``"hvp_reverse_over_reverse"``  :math:`Hv` as the vjp of the gradient
    ``"directional_curvature"``     :math:`v^\top Hv` in Taylor mode, as `jaxblocks.directional_curvature` computes it
    ==============================  ==========================================================================

    Args:
        f: ``f(x, *rest)``; it is differentiated with respect to ``x``, a pytree. It returns a scalar, or a
            pytree of arrays: then only ``"function"``, ``"jvp"``, ``"vjp"``, ``"jacfwd"`` and ``"jacrev"`` apply.
        args: ``x`` and the rest: arrays, or ``jax.ShapeDtypeStruct`` where nothing is measured.
        rows: the names of some rows, or ``"all"``. By default all rows that apply to ``f``, but whole matrices only
            where they take at most 1000 passes.
        measure: whether to compile and time; ``False`` only counts operations, which takes milliseconds.
        repeats: the rounds; in each round the rows are timed in turns, so that other load affects all of them, and a
            short program is called several times. With ``0`` programs are compiled for their memory, but not timed.
        memory_limit: a program that needs more bytes than this, outputs included, is not called.
        key: the key for the normally distributed direction :math:`v` and weights :math:`u`; without it every
            entry is :math:`1/\sqrt n`. It does not affect counts.

    Returns:
        A `CostTable`. Times are medians over the rounds, of calls of compiled programs until the results are ready;
        time ratios are medians, with quartiles, of the ratios within a round.

    Time is proportional to operations only for large programs: measure a function that takes at least 5 ms, for
    example on a larger batch. `CostTable.notes` says where they differ by more than a factor of 2, and why.

    A derivative that ``f`` does not have (forward mode of a `jax.custom_vjp`, reverse mode of a ``while`` loop) is
    marked as impossible, with the reason below the table.

    Raises:
        ValueError: if a row is unknown, or ``f`` is not scalar-valued where a row requires it.
        TypeError: if ``x`` or ``f(x)`` holds a leaf that is not floating-point.

    >>> w, x = jnp.ones((3, 2)), jnp.ones((4, 3))
    >>> table = cost_table(lambda w, x: jnp.sum((x @ w) ** 2), w, x, measure=False)
    >>> table.function.flops, table["gradient"].flops
    (63, 127)
    >>> print(cost_table(lambda w, x: x @ w, w, x, measure=False))
                operations    / function
    --------  ------------  ------------
    function            48             1
    jvp                 96             2
    vjp                 96             2
    jacfwd             288             6
    jacrev             384             8

    Source: Griewank & Walther, Evaluating Derivatives (the cheap gradient principle: between two and four
    times the cost of the function, for any number of arguments); Cevher, Mathematics of Data, where one slide states
    that automatic differentiation reduces the backward pass of k layers of width m from O(k m^2) to O(k m): the
    gradient alone has k m^2 entries.
    """
    require(args, "the arguments of f after it", "none", "write cost_table(f, x, ...)")
    x = as_point(args[0])
    args = (x, *args[1:])
    y = jax.eval_shape(f, *args)
    names = _rows(rows, x, y)
    programs = {name: _PROGRAMS[name](scalar_valued(f) if name in _OF_SCALARS else f) for name in names}
    keys = (None, None) if key is None else jax.random.split(key)
    called = measure and repeats
    # Where nothing is called, shapes suffice, and no random numbers are computed.
    weights, direction = (_direction(y, keys[0]), _direction(x, keys[1])) if called else (y, x)
    options = {"measure": measure, "repeats": repeats, "memory_limit": memory_limit}
    return table_of_programs(programs, weights, direction, *args, **options)


def table_of_programs(
    programs: Mapping[str, Callable],
    /,
    *args: Any,
    measure: bool = True,
    repeats: NonNegativeInt = 20,
    memory_limit: PositiveInt = 4 * 2**30,
) -> CostTable:
    """The costs of programs that all take the same arguments; the first is the function.

    Args:
        programs: by name, functions of the arguments.
        args: arrays, or ``jax.ShapeDtypeStruct`` where nothing is measured.
        measure: as for `cost_table`.
        repeats: as for `cost_table`.
        memory_limit: as for `cost_table`.

    >>> programs = {"function": jnp.sum, "gradient": jax.grad(jnp.sum)}
    >>> table_of_programs(programs, jnp.ones(5), measure=False)["function"].flops
    4
    """
    # One trace of each derivative serves the count and the compilation.
    traces = {name: _trace_or_reason(program, *args) for name, program in programs.items()}
    counts = {name: trace if isinstance(trace, str) else _count_or_reason(trace) for name, trace in traces.items()}
    if not measure:
        return CostTable({name: _row(name, counts, {}, None) for name in programs})
    shapes_only = any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(args))
    repair = "pass arrays, or measure=False to count only, or repeats=0 to compile without calling"
    require(not (shapes_only and repeats), "arrays, as it measures calls", "a ShapeDtypeStruct", repair)
    # Inside of a trace a call would be traced too, and its time would be that of tracing.
    traced = any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(args))
    repair = "call it outside of jit, vmap and grad, or pass measure=False to count only"
    require(not (traced and repeats), "arrays, as it measures calls", "a traced array", repair)
    compiled = {
        name: trace.lower().compile()
        for name, trace in traces.items()
        if not isinstance(trace, str) and isinstance(counts[name], Count)
    }
    # The memory is that which the compiler planned, so that a program too large to run has a row as well.
    memory = {name: compiled_bytes(program)[0] for name, program in compiled.items()}
    small = {
        name: program
        for name, program in compiled.items()
        if repeats and sum(b or 0 for b in compiled_bytes(program)) <= memory_limit
    }
    seconds = time_in_turns(small, *args, repeats=repeats) if small else {}
    return CostTable({name: _row(name, counts, seconds, memory.get(name)) for name in programs})


def _trace_or_reason(program, *args) -> Traced | str:
    """The traced derivative, which is counted and compiled, or the reason why it does not exist."""
    try:
        return jax.jit(program).trace(*args)
    except (TypeError, NotImplementedError, ValueError) as error:
        mode = missing_mode(error)
        if mode is None:
            raise
        return _REASONS[mode]


def _count_or_reason(trace) -> Count | str:
    """The count of a traced derivative, or the reason why it does not exist."""
    counted = count_jaxpr(trace.jaxpr.jaxpr)
    # JAX replaces the tangent of a custom_vjp by `custom_lin` and raises only when it is evaluated.
    return _REASONS["forward"] if "custom_lin" in counted.uncounted else counted


_REASONS = {
    "forward": "a jax.custom_vjp has no rule for forward mode",
    "reverse": "a loop of unknown length has no reverse mode",
}


# All take the weights of the outputs or the direction, and the arguments of f.
_PROGRAMS: dict[str, Callable] = {
    "function": lambda f: lambda u, v, x, *rest: f(x, *rest),
    "jvp": lambda f: lambda u, v, x, *rest: jax.jvp(lambda x: f(x, *rest), (x,), (v,)),
    "vjp": lambda f: lambda u, v, x, *rest: _value_and_vjp(lambda x: f(x, *rest), x, u),
    "gradient": lambda f: lambda u, v, x, *rest: jax.value_and_grad(f)(x, *rest),
    "jacfwd": lambda f: lambda u, v, x, *rest: jax.jacfwd(f)(x, *rest),
    "jacrev": lambda f: lambda u, v, x, *rest: jax.jacrev(f)(x, *rest),
    "hessian": lambda f: lambda u, v, x, *rest: jax.hessian(f)(x, *rest),
    "hvp": lambda f: lambda u, v, x, *rest: hvp(lambda x: f(x, *rest), x, v),
    "hvp_reverse_over_forward": lambda f: (
        lambda u, v, x, *rest: jax.grad(lambda x: jax.jvp(lambda x: f(x, *rest), (x,), (v,))[1])(x)
    ),
    "hvp_reverse_over_reverse": lambda f: (
        lambda u, v, x, *rest: _value_and_vjp(jax.grad(lambda x: f(x, *rest)), x, v)[1]
    ),
    "directional_curvature": lambda f: lambda u, v, x, *rest: directional_curvature(lambda x: f(x, *rest), x, v),
}
_MATRICES = ("jacfwd", "jacrev", "hessian")
_OF_SCALARS = tuple(name for name in _PROGRAMS if name.startswith(("gradient", "hessian", "hvp", "directional")))
_MOST_PASSES = 1000


def _value_and_vjp(f, x, u):
    y, pull = jax.vjp(f, x)
    return y, pull(u)[0]


def _rows(rows, x, y) -> list[str]:
    """The requested rows, or those that apply to an f from x to y (given by their shapes)."""
    leaves = jax.tree.leaves(y)
    require(leaves, "f to return arrays", y, "return what is differentiated", error=TypeError)
    for leaf in leaves:
        floating = jnp.issubdtype(leaf.dtype, jnp.floating)
        repair = "return only what is differentiated, as in lambda x: f(x)[0]"
        require(floating, "f to return floating-point arrays", leaf, repair, error=TypeError)
    is_scalar = len(leaves) == 1 and leaves[0] is y and not y.shape
    possible = [name for name in _PROGRAMS if is_scalar or name not in _OF_SCALARS]
    if rows is None:
        of_x, of_y = (sum(leaf.size for leaf in jax.tree.leaves(tree)) for tree in (x, y))
        # By default, derivatives of more than 1000 passes are left out: their results are large, and measuring them is
        # slow.
        passes = {"jacfwd": of_x, "hessian": of_x, "jacrev": of_y}
        return [name for name in possible if passes.get(name, 1) <= _MOST_PASSES]
    if rows == "all":
        return possible
    rows = (rows,) if isinstance(rows, str) or not hasattr(rows, "__iter__") else tuple(rows)
    unknown = [name for name in rows if name not in _PROGRAMS]
    require(not unknown, f"rows among {', '.join(_PROGRAMS)}", ", ".join(map(repr, unknown)))
    for name in rows:
        if name not in possible:
            got = describe(y) if leaves[0] is y else f"a {type(y).__name__} of {len(leaves)} arrays"
            repair = (
                "ask for 'vjp' (one weighting of its outputs), 'jacfwd' or 'jacrev' (all first derivatives), or reduce "
                "f to a scalar, as in lambda x: f(x).sum()"
            )
            require(False, f"a scalar-valued f for the row {name!r}", got, repair)
    return list(dict.fromkeys(("function", *rows)))


def _direction(x: PyTree, key) -> PyTree:
    leaves, structure = jax.tree.flatten(x)
    n = max(1, sum(leaf.size for leaf in leaves))
    if key is None:
        # A direction of length 1.
        return structure.unflatten([jnp.full(leaf.shape, n**-0.5, leaf.dtype) for leaf in leaves])
    keys = jax.random.split(key, len(leaves))
    return structure.unflatten(
        [jax.random.normal(k, leaf.shape, leaf.dtype) for k, leaf in zip(keys, leaves, strict=True)]
    )


def _row(name, counts, seconds, temporary_bytes) -> CostRow:
    if isinstance(counts[name], str):
        return CostRow(name, Count(), math.nan, impossible=counts[name])
    function = next(iter(counts))
    whole, flops = counts[function].flops, counts[name].flops
    row = CostRow(name, counts[name], flops / whole if whole else math.nan, temporary_bytes=temporary_bytes)
    if name not in seconds:
        return row
    low, median, high = quartiles(seconds[name])
    row = dataclasses.replace(row, seconds=median, quartiles=(low, high))
    if function not in seconds:
        return row
    # Ratios within each round, since both programs then run under the same load of the machine.
    low, median, high = quartiles([own / whole for own, whole in zip(seconds[name], seconds[function], strict=True)])
    return dataclasses.replace(row, time_ratio=median, time_ratio_quartiles=(low, high))


# ---- where time and operations differ --------------------------------------------------------


def _disagreement(row: CostRow, function: CostRow) -> str | None:
    """Why the time ratio of a row is not within a factor of 2 of its ratio of operations; ``None`` where it is."""
    if row.seconds is None or row.time_ratio is None or not row.flops_ratio > 0 or not function.seconds:
        return None
    if _close(row.time_ratio, row.flops_ratio):
        return None
    facts = f"{row.name} takes {row.time_ratio:.3g} times the time for {row.flops_ratio:.3g} times the operations"
    # The first cause that explains the ratio is reported.
    moved = row.count.bytes / max(1, function.count.bytes)
    if _close(row.time_ratio, moved):
        return f"{facts}, because memory limits it: it moves {moved:.3g} times the bytes."
    own, others = (one.flops / (1e9 * seconds) for one, seconds in ((row, row.seconds), (function, function.seconds)))
    rates = f"{facts}: {own:.3g} operations per ns against {others:.3g}"
    if own > others:
        larger = ", because many directions at once make its products larger" if row.name in _MATRICES else ""
        return f"{rates}{larger}."
    kept, by_function = (one.temporary_bytes or 0 for one in (row, function))
    if kept > _CACHE >= by_function:
        return f"{rates}, because its temporary memory of {kept / 2**20:.3g} MiB exceeds a cache."
    elementwise, less = (100 * (1 - one.count.dots / max(1, one.flops)) for one in (row, function))
    if elementwise > 1.5 * less and elementwise > 10:
        return (
            f"{rates}, because {elementwise:.0f} % of them are elementwise, and {less:.0f} % of those of the function."
        )
    return f"{rates}, because products of its shapes are slower."


def _close(p: float, q: float) -> bool:
    return p <= 2 * q and q <= 2 * p
