"""Forward against reverse mode over the numbers of inputs and of outputs."""

import dataclasses
import statistics
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from jaxblocks.ad.costs.memory import increasing_integers
from jaxblocks.ad.costs.tables import short_number
from jaxblocks.ad.costs.timing import time_in_turns
from jaxblocks.ad.counting.counts import count_flops
from jaxblocks.ad.programs.arguments import as_point
from jaxblocks.ad.programs.linearization import missing_mode
from jaxblocks.checks.errors import describe, require
from jaxblocks.checks.expectations import NonNegativeInt, checked
from jaxblocks.plotting.axes import GRAY, MODES, axes_or_new

__all__ = ["ModeGrid", "mode_grid"]

Table = tuple[tuple[float | int, ...], ...]


@dataclasses.dataclass(frozen=True, repr=False)
class ModeGrid:
    """The cost of a Jacobian by forward and by reverse mode, over the numbers of inputs and of outputs.

    It prints as a table in a terminal and in a notebook; `plot` draws it.

    Attributes:
        inputs: the numbers of inputs n, increasing.
        outputs: the numbers of outputs m, increasing.
        operations: for ``"forward"`` and ``"reverse"``, the counted operations: a row for each number of outputs, and
            in it a number for each number of inputs.
        seconds: the median times in the same form; empty where nothing is measured.
        time_ratio: the medians over the rounds of the time of forward mode over that of reverse mode.

    >>> grid = ModeGrid(
    ...     (1, 8), (1, 8), {"forward": ((2, 9), (2, 9)), "reverse": ((2, 2), (9, 9))}
    ... )
    >>> grid.ratio()
    array([[1.        , 4.5       ],
           [0.22222222, 1.        ]])
    >>> print(grid)
    forward / reverse, operations      1 inputs    8 inputs
    -------------------------------  ----------  ----------
    1 outputs                                 1         4.5
    8 outputs                             0.222           1
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    operations: dict[str, Table]
    seconds: dict[str, Table] = dataclasses.field(default_factory=dict)
    time_ratio: Table = ()

    def ratio(self, what: Literal["operations", "time"] = "operations") -> np.ndarray:
        """The cost of forward mode over that of reverse mode, (numbers of outputs, numbers of inputs).

        >>> ModeGrid((4,), (1,), {"forward": ((8,),), "reverse": ((2,),)}).ratio()
        array([[4.]])
        """
        if what == "time":
            require(self.time_ratio, "a grid that was measured", "one that was counted", "make it with measure=True")
            return np.asarray(self.time_ratio, float)
        forward, reverse = (np.asarray(self.operations[mode], float) for mode in ("forward", "reverse"))
        with np.errstate(divide="ignore", invalid="ignore"):  # NaN for a function that computes nothing
            return forward / reverse

    def plot(self, ax: Any = None, *, what: Literal["operations", "time"] = "operations") -> Any:
        """A heat map: in each cell, how many times cheaper the better mode is; returns the axes.

        Blue is forward mode, vermilion reverse mode, and white where both cost the same. The line is the diagonal, as
        many outputs as inputs.

        >>> axes = ModeGrid((4,), (1,), {"forward": ((8,),), "reverse": ((2,),)}).plot()
        >>> [text.get_text() for text in axes.texts]
        ['4']
        """
        from matplotlib.colors import LinearSegmentedColormap

        ratio = self.ratio(what)
        ax = axes_or_new(ax)
        shades = LinearSegmentedColormap.from_list("modes", [MODES["forward"], "white", MODES["reverse"]], 257)
        powers = np.log2(ratio)
        size = max(1.0, float(np.max(abs(powers))))
        image = ax.imshow(powers, cmap=shades, vmin=-size, vmax=size, origin="lower", aspect="auto")
        for (i, j), power in np.ndenumerate(powers):
            look: dict[str, Any] = dict(
                ha="center", va="center", fontsize=8, color="white" if abs(power) > 0.6 * size else "black"
            )
            look["bbox"] = dict(facecolor=shades(image.norm(power)), linewidth=0, pad=1.5)  # above the diagonal
            ax.text(j, i, _times(2 ** abs(power)), **look)
        equal = [
            n for n in sorted({*self.inputs, *self.outputs}) if _between(n, self.inputs) and _between(n, self.outputs)
        ]
        ax.plot(_places(equal, self.inputs), _places(equal, self.outputs), color=GRAY, linestyle="--", label="$m = n$")
        ax.set_xticks(range(len(self.inputs)), [f"{n:,}" for n in self.inputs])
        ax.set_yticks(range(len(self.outputs)), [f"{m:,}" for m in self.outputs])
        ax.set(
            xlabel="inputs $n$",
            ylabel="outputs $m$",
            title="operations counted" if what == "operations" else "time measured",
        )
        bar = ax.figure.colorbar(image, ax=ax, ticks=[-size, 0, size])
        bar.ax.set_yticklabels(
            [f"{mode}\n{_times(2**size)} times\ncheaper" if mode else "equal" for mode in ("forward", "", "reverse")]
        )
        return ax

    def __repr__(self):
        return self._table("simple")

    def _repr_html_(self) -> str:
        return self._table("html")

    def _table(self, style: str) -> str:
        from tabulate import tabulate

        parts: list[Literal["operations", "time"]] = ["operations", "time"] if self.time_ratio else ["operations"]
        tables = []
        for what in parts:
            headers = [f"forward / reverse, {what}", *(f"{n:,} inputs" for n in self.inputs)]
            lines = [
                [f"{m:,} outputs", *(short_number(r) for r in row)]
                for m, row in zip(self.outputs, self.ratio(what), strict=True)
            ]
            align = ["left"] + ["right"] * len(self.inputs)
            tables.append(tabulate(lines, headers, style, colalign=align, disable_numparse=True))
        return "\n\n".join(tables)


@checked
def mode_grid(
    make: Callable[..., tuple[Callable, PyTree]],
    inputs: Sequence[int],
    outputs: Sequence[int],
    *,
    measure: bool = True,
    repeats: NonNegativeInt = 5,
) -> ModeGrid:
    r"""The cost of ``jax.jacfwd`` and ``jax.jacrev`` for each number of inputs and each number of outputs.

    Forward mode takes one pass for each of the n inputs, reverse mode one for each of the m outputs, and passes of both
    modes cost about the same: the ratio of the costs is about $n / m$, and 1 on the diagonal.

    Args:
        make: ``make(n, m)`` returns ``(f, x)``: a function with m outputs, and its point, n numbers.
        inputs, outputs: increasing integers >= 1.
        measure: whether to compile and time; ``False`` only counts operations.
        repeats: the rounds; in each round both modes are timed in turns.

    Returns:
        A `ModeGrid`.

    Raises:
        ValueError: if ``inputs`` or ``outputs`` are not increasing, or ``f`` has not m outputs at n numbers.

    >>> def make(n, m):
    ...     return lambda x: jnp.tanh(
    ...         jnp.ones((m, 32)) @ jnp.tanh(jnp.ones((32, n)) @ x)
    ...     ), jnp.ones(n)
    >>> grid = mode_grid(make, (2, 32), (2, 32), measure=False)
    >>> grid.ratio()[0].round()
    array([ 1., 11.])

    Source: Griewank & Walther 2008, Evaluating derivatives (doi:10.1137/1.9780898717761); Huszar, DeepNN lecture 3
    (forward mode for few inputs, reverse mode for few outputs).
    """
    columns = increasing_integers("inputs", inputs, (1, 10, 100))
    rows = increasing_integers("outputs", outputs, (1, 10, 100))
    cells = [[_cell(make, n, m, repeats if measure else 0) for n in columns] for m in rows]

    def table(value: Callable) -> Table:
        return tuple(tuple(value(cell) for cell in row) for row in cells)

    operations = {mode: table(lambda cell, mode=mode: cell[0][mode]) for mode in _JACOBIANS}
    if not (measure and repeats):
        return ModeGrid(columns, rows, operations)
    seconds = {mode: table(lambda cell, mode=mode: statistics.median(cell[1][mode])) for mode in _JACOBIANS}
    # The median of the ratios within the rounds, not the ratio of the medians: in a round both modes run under the same
    # load of the machine.
    ratio = table(
        lambda cell: statistics.median(
            forward / reverse for forward, reverse in zip(cell[1]["forward"], cell[1]["reverse"], strict=True)
        )
    )
    return ModeGrid(columns, rows, operations, seconds, ratio)


_JACOBIANS: dict[str, Callable] = {"forward": jax.jacfwd, "reverse": jax.jacrev}
_REPAIRS = {
    "forward": "write its rule with jax.custom_jvp in place of jax.custom_vjp",
    "reverse": "write its loop with jax.lax.scan in place of jax.lax.while_loop",
}


def _cell(make, n, m, repeats) -> tuple[dict[str, int], dict[str, list[float]]]:
    """The operations of both modes, and their times in each round."""
    pair = make(n, m)
    is_pair = isinstance(pair, tuple) and len(pair) == 2 and callable(pair[0])
    expected = f"make({n}, {m}) to return a function and its point"
    require(is_pair, expected, pair, "write return f, x", error=TypeError)
    f, x = pair[0], as_point(pair[1])
    for what, tree, size, repair in (
        ("x", x, n, f"write return f, jnp.ones({n})"),
        ("f(x)", jax.eval_shape(f, x), m, f"write an f that returns a float32 array of shape ({m},)"),
    ):
        leaves = jax.tree.leaves(tree)
        floating = all(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves)
        got = ", ".join(map(describe, leaves))
        require(floating, f"floating-point {what} of make({n}, {m})", got, repair, error=TypeError)
        numbers = sum(leaf.size for leaf in leaves)
        require(numbers == size, f"make({n}, {m}) to give {size} numbers in {what}", numbers, repair)
    programs = {mode: jacobian(f) for mode, jacobian in _JACOBIANS.items()}
    try:
        operations = {mode: count_flops(program, x).flops for mode, program in programs.items()}
    except Exception as error:
        missing = missing_mode(error)
        if missing is None:
            raise
        got, repair = f"one without {missing} mode", _REPAIRS[missing]
        require(False, "functions with a forward and a reverse mode", got, repair, error=TypeError)
    if not repeats:
        return operations, {}
    return operations, time_in_turns({mode: jax.jit(program) for mode, program in programs.items()}, x, repeats=repeats)


def _times(ratio: float) -> str:
    """A ratio of at least 1 as a number without an exponent: 4.5 or 1,420."""
    return f"{ratio:.2g}" if ratio < 10 else f"{ratio:,.0f}"


def _between(n: int, numbers: Sequence[int]) -> bool:
    return numbers[0] <= n <= numbers[-1]


def _places(values: Sequence[int], numbers: Sequence[int]) -> np.ndarray:
    """The places of some values on an axis whose ticks are the numbers, at equal distances."""
    return np.interp(np.log(values), np.log(numbers), np.arange(len(numbers)))
