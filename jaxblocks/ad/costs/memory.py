"""The memory of derivatives, and its growth with depth.

Forward mode stores one tangent; reverse mode stores the residuals of each layer until the backward pass reaches that
layer. `jaxblocks.ad.scan` provides tradeoffs between memory and time.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jaxtyping import PyTree

from jaxblocks.ad.programs.arguments import as_point, scalar_valued
from jaxblocks.ad.programs.linearization import missing_mode
from jaxblocks.checks.annotations import is_integer
from jaxblocks.checks.errors import describe, require
from jaxblocks.checks.expectations import checked
from jaxblocks.checks.signatures import takes
from jaxblocks.plotting.axes import DASHES, MARKERS, PALETTE, axes_or_new, show_bytes

__all__ = [
    "MemoryCurve",
    "check_takes_checkpoint",
    "checkpointed",
    "compiled_bytes",
    "increasing_integers",
    "made",
    "memory_curve",
    "saved_numbers",
    "temporary_bytes",
]


@checked
def temporary_bytes(f: Callable, /, *args: PyTree) -> int | None:
    """The peak memory of the compiled ``f`` besides its arguments and results, in bytes; ``f`` is not executed.

    Args:
        f: any function that ``jax.jit`` takes.
        args: arrays or ``jax.ShapeDtypeStruct``, in pytrees.

    Returns:
        The bytes; ``None`` where the compiler does not report them.

    >>> x = jax.ShapeDtypeStruct((1000,), jnp.float32)
    >>> temporary_bytes(lambda x: jnp.sum(jnp.sort(x) * x), x) >= 4000
    True
    """
    return compiled_bytes(jax.jit(f).lower(*args).compile())[0]


def compiled_bytes(program: Any) -> tuple[int | None, int]:
    """The temporary bytes of a compiled program and those of its outputs; ``None, 0`` where it does not report them."""
    try:
        analysis = program.memory_analysis()
        return analysis.temp_size_in_bytes, analysis.output_size_in_bytes
    except (AttributeError, NotImplementedError, RuntimeError):
        return None, 0


@checked
def saved_numbers(f: Callable, /, *args: PyTree) -> int:
    """The number of entries that reverse mode stores between forward and backward pass: the residuals of ``jax.vjp``.

    This is the theoretical number; the optimized program may store less. It grows with the number of layers, except
    under ``jax.checkpoint``, which stores the arguments only.

    Args:
        f: takes pytrees of floating-point arrays.
        args: its arguments, arrays or ``jax.ShapeDtypeStruct``; nothing is computed.

    Raises:
        TypeError: if an argument is not floating-point.

    >>> x = jnp.ones(1000)
    >>> saved_numbers(jnp.sin, x), saved_numbers(lambda x: jnp.sin(jnp.sin(x)), x)
    (1000, 2000)
    >>> saved_numbers(jax.checkpoint(lambda x: jnp.sin(jnp.sin(x))), x)
    1000

    Source: Griewank & Walther 2008, Evaluating derivatives (doi:10.1137/1.9780898717761); Huszar, DeepNN lecture 3 (the
    memory of reverse mode).
    """
    args = as_point(args)
    # The pullback is a pytree, and its leaves are the residuals.
    pullback = jax.eval_shape(lambda *args: jax.vjp(f, *args)[1], *args)
    return sum(leaf.size for leaf in jax.tree.leaves(pullback))


@dataclasses.dataclass(frozen=True, repr=False)
class MemoryCurve:
    """Temporary bytes of a function and of its derivatives at several depths, as `memory_curve` measures them.

    It prints as a table in a terminal and in a notebook; `plot` draws it.

    Attributes:
        depths: the depths, increasing.
        bytes: for each row, by name, the bytes at each depth (``None`` where the compiler does not report them, or
            where f has no such derivative: the jvp of a `jax.custom_vjp`).

    >>> curve = MemoryCurve((10, 100), {"jvp": (64, 64), "gradient": (1000, 10000)})
    >>> curve["gradient"], curve.growth("jvp"), curve.growth("gradient")
    ((1000, 10000), 0.0, 1.0)
    >>> print(curve)
    temporary bytes      depth 10    depth 100      growth
    -----------------  ----------  -----------  ----------
    jvp                        64           64  depth^0.00
    gradient                1,000       10,000  depth^1.00
    """

    depths: tuple[int, ...]
    bytes: dict[str, tuple[int | None, ...]]

    def __getitem__(self, name: str) -> tuple[int | None, ...]:
        if name not in self.bytes:
            raise KeyError(f"MemoryCurve expected a row of {', '.join(self.bytes)}, got {name!r}; pass one of these.")
        return self.bytes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.bytes)

    def __len__(self) -> int:
        return len(self.bytes)

    def growth(self, name: str) -> float:
        """The exponent of the growth of a row with depth, from the last two depths; NaN if it is not known."""
        row = self[name]
        if len(row) < 2 or not row[-1] or not row[-2]:
            return math.nan
        # The slope on logarithmic axes between the two largest depths, where constant terms matter least.
        return math.log(row[-1] / row[-2]) / math.log(self.depths[-1] / self.depths[-2])

    def __repr__(self):
        return self._table("simple")

    def _repr_html_(self) -> str:
        return self._table("html")

    def plot(self, ax: Any = None) -> Any:
        """Draw a line for each row, bytes over depth on logarithmic axes; returns the axes.

        >>> axes = MemoryCurve((10, 100), {"jvp": (64, 64), "gradient": (1000, 10000)}).plot()
        >>> axes.get_ylabel(), [line.get_label() for line in axes.get_lines()]
        ('temporary memory', ['jvp', 'gradient'])
        """
        ax = axes_or_new(ax)
        for i, (name, row) in enumerate(self.bytes.items()):
            known = [(depth, size) for depth, size in zip(self.depths, row, strict=True) if size]
            k = i % len(PALETTE)
            look = dict(color=PALETTE[k], linestyle=DASHES[k], marker=MARKERS[k])
            ax.plot(*zip(*known, strict=True) if known else ((), ()), label=name, **look)
        ax.set_xscale("log", base=2)
        show_bytes(ax.yaxis)
        ax.set_xlabel("depth")
        ax.set_ylabel("temporary memory")
        ax.legend(loc="upper left", bbox_to_anchor=(1, 1))  # beside the axes, where it covers no line
        return ax

    def _table(self, style: str) -> str:
        from tabulate import tabulate

        def cell(size):
            return "" if size is None else f"{size:,}"

        def growth(name):
            power = self.growth(name)
            return "" if math.isnan(power) else f"depth^{power:.2f}"

        lines = [[name, *map(cell, row), growth(name)] for name, row in self.bytes.items()]
        headers = ["temporary bytes", *(f"depth {depth:,}" for depth in self.depths), "growth"]
        align = ["left"] + ["right"] * (len(headers) - 1)
        return tabulate(lines, headers=headers, tablefmt=style, colalign=align, disable_numparse=True)


@checked
def memory_curve(
    make: Callable[..., tuple[Callable, PyTree]],
    depths: Sequence[int],
    *,
    checkpoints: Sequence[str | int | Callable | None] = (),
) -> MemoryCurve:
    r"""The memory of $f$, of its jvp and of its gradient at several depths of $f$.

    Args:
        make: ``make(depth)`` returns ``(f, x)``: a scalar-valued function and its point, a pytree of
            floating-point arrays (or ``jax.ShapeDtypeStruct``: programs are compiled and not run).
        depths: increasing integers >= 1.
        checkpoints: values of ``checkpoint`` for `jaxblocks.ad.scan` or `jaxblocks.layers.Repeat`; each adds a row,
            the gradient of ``make(depth, checkpoint=...)``.

    Returns:
        Rows ``"function"``, ``"jvp"``, ``"gradient"``, and ``"gradient, checkpoint='body'"`` and so on.

    Raises:
        ValueError: if ``depths`` is empty or not increasing, or ``f`` is not scalar-valued.
        TypeError: if a leaf of ``x`` is not floating-point, ``make`` does not return a pair, or it has no parameter
            ``checkpoint`` although ``checkpoints`` are given.

    >>> from jaxblocks.ad.checkpointing.scans import scan
    >>> def make(depth, checkpoint=None):
    ...     def f(w):
    ...         layer = lambda h, w: (jnp.tanh(w @ h), None)
    ...         return jnp.sum(scan(layer, jnp.ones(8), w, checkpoint=checkpoint)[0])
    ...     return f, jnp.ones((depth, 8, 8))
    >>> curve = memory_curve(make, (128, 512), checkpoints=[4])
    >>> [
    ...     round(curve.growth(name), 1)
    ...     for name in ("jvp", "gradient", "gradient, checkpoint=4")
    ... ]
    [0.0, 1.0, 0.0]

    Source: Griewank & Walther 2008, Evaluating Derivatives (doi:10.1137/1.9780898717761); Huszar, DeepNN lecture 3 (the
    memory of reverse mode).
    """
    depths, checkpoints = increasing_integers("depths", depths, (16, 64, 256)), tuple(checkpoints)
    if checkpoints:
        check_takes_checkpoint(make)
    rows: dict[str, tuple[Callable, dict]] = {name: (program, {}) for name, program in _PROGRAMS.items()}
    for checkpoint in checkpoints:
        rows[checkpointed(checkpoint)] = _PROGRAMS["gradient"], {"checkpoint": checkpoint}
    return MemoryCurve(
        depths,
        {name: tuple(_bytes_at(make, depth, *row) for depth in depths) for name, row in rows.items()},
    )


def increasing_integers(name: str, numbers: Sequence[int], example: tuple[int, ...]) -> tuple[int, ...]:
    """Increasing integers >= 1; an error for others proposes those among them, or else the ``example``."""
    values = list(numbers) if hasattr(numbers, "__iter__") else []
    integers = all(map(is_integer, values))
    increasing = values and integers and values == sorted(set(values)) and values[0] >= 1
    got = repr(numbers) if integers else describe(numbers)
    known = tuple(sorted({int(value) for value in values if is_integer(value) and value >= 1})) or example
    require(increasing, f"{name} to be increasing integers >= 1", got, f"pass {name}={known}")
    return tuple(map(int, values))


# Each takes the point and a direction, so that all have one signature.
_PROGRAMS: dict[str, Callable] = {
    "function": lambda f: lambda x, v: f(x),
    "jvp": lambda f: lambda x, v: jax.jvp(f, (x,), (v,)),
    "gradient": lambda f: lambda x, v: jax.grad(f)(x),
}


def check_takes_checkpoint(make: Callable) -> None:
    """Raise an error if ``make`` has no parameter ``checkpoint``."""
    expected = "make to take the keyword checkpoint for each of checkpoints"
    repair = "write def make(depth, checkpoint=None) and pass it on, as in scan(..., checkpoint=checkpoint)"
    require(takes(make, 1, "checkpoint"), expected, make, repair, error=TypeError)


def checkpointed(checkpoint: Any) -> str:
    """The name of the row of the gradient with a value of ``checkpoint``."""
    return f"gradient, checkpoint={getattr(checkpoint, '__name__', repr(checkpoint))}"


def made(make: Callable, depth: int, **options: Any) -> tuple[Callable, PyTree]:
    """The function and its point that ``make(depth, **options)`` returns, checked."""
    pair = make(depth, **options)
    is_pair = isinstance(pair, tuple) and len(pair) == 2
    require(is_pair, "make(depth) to return a function and its point", pair, "write return f, x", error=TypeError)
    return scalar_valued(pair[0]), as_point(pair[1])


def _bytes_at(make, depth, program, options) -> int | None:
    f, x = made(make, depth, **options)
    try:
        return temporary_bytes(program(f), x, x)
    except Exception as error:
        if missing_mode(error) is None:
            raise
        return None
