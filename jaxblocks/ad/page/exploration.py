"""What a page shows of a function, and the file that shows it."""

import dataclasses
import functools
import html
import inspect
import json
import operator
import re
import sys
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import jax
from jaxtyping import PyTree

from jaxblocks.ad.checkpointing.binomial import binomial_schedule, binomial_steps
from jaxblocks.ad.costs.cost_tables import cost_table
from jaxblocks.ad.costs.tables import CostTable
from jaxblocks.ad.page.costs import costs_of, plan_of
from jaxblocks.ad.page.graphs import graph_of
from jaxblocks.ad.planning import JacobianPlan
from jaxblocks.ad.programs.arguments import as_point
from jaxblocks.ad.programs.linearization import missing_mode
from jaxblocks.ad.traces import TraceTable
from jaxblocks.checks.errors import describe, require
from jaxblocks.checks.expectations import NonNegativeInt, checked
from jaxblocks.checks.system import as_path

__all__ = ["CHAINS", "SCHEDULES", "Exploration", "explore", "page_of"]

# The chains that the page offers, by name: those of the lectures, one with a bottleneck, and an exception to the rule.
CHAINS: dict[str, tuple[int, ...]] = {
    "Classifier of digits": (784, 128, 64, 10),
    "Classifier with its loss": (784, 128, 64, 10, 1),
    "Narrow to one output": (100, 50, 200, 50, 1),
    "Autoencoder with a bottleneck": (784, 128, 8, 128, 784),
    "Decoder, wider to the output": (10, 64, 128, 784),
    "Equal widths": (100, 100, 100, 100, 100),
    "One output, yet forward is best": (1, 100, 2, 1),
}

# A function of more operations has only the brief rows in the cost table: tracing the others takes too long.
MOST_ROWS = 1500
_BRIEF = ("function", "jvp", "vjp", "gradient", "hvp")

# Lengths of chains and numbers of snapshots for which the page has schedules.
SCHEDULES = ((6, 10, 16, 24, 32, 48), (1, 2, 3, 4, 6, 8))


@dataclasses.dataclass(frozen=True, repr=False)
class Exploration:
    """What `explore` returns: a function with the cost of its derivatives; `save` writes the page.

    It prints as its cost table.

    Attributes:
        name: the name of the function.
        table: its `CostTable`.
        plan: the `JacobianPlan` of its Jacobian; ``None`` where neither mode can differentiate it.
        trace: its `TraceTable`; ``None`` for a function of more than 120 operations, which the page shows by layer.
        data: what the page shows, as in its JSON.

    >>> import jax.numpy as jnp
    >>> exploration = explore(
    ...     lambda x: jnp.sum(jnp.sin(x)), jnp.ones(3), name="sum of sines", measure=False
    ... )
    >>> (
    ...     exploration.table.gradient.flops,
    ...     exploration.plan.mode,
    ...     len(exploration.trace.primal),
    ... )
    (11, 'reverse', 4)
    """

    name: str
    table: CostTable
    plan: JacobianPlan | None
    trace: TraceTable | None
    data: dict[str, Any]

    def save(self, path: str | Path, *others: "Exploration") -> None:
        """Write the page, one HTML file that works without a network; ``others`` are offered on the same page.

        >>> import tempfile
        >>> exploration = explore(jax.numpy.sin, 1.0, measure=False)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     exploration.save(f"{folder}/page.html")
        """
        as_path(path).write_text(page_of([self, *others]), encoding="utf-8")

    def __repr__(self):
        return repr(self.table)

    def _repr_html_(self) -> str:
        return self.table._repr_html_()


@checked
def explore(
    f: Callable,
    /,
    *args: PyTree,
    argnums: int | tuple[int, ...] = 0,
    name: str | None = None,
    measure: bool = True,
    repeats: NonNegativeInt = 20,
    progress: Callable[[str], Any] | None = None,
) -> Exploration:
    """The cost of a function and of its derivatives as an interactive page.

    The page shows the computational graph, by operation for small functions and by layer (named scope) for nets, with
    the value, tangent and adjoint of every step and with the tape of reverse mode; the cost table, by layer too; and
    the plan of the Jacobian. Tangents and adjoints are those of `jaxblocks.ad.trace_table`: the tangent is 1 for each
    number of the first argument, the adjoint is 1 for each number of the value.

    Args:
        f: any function of arrays that JAX can trace, with floating-point values.
        args: its arguments: arrays, or ``jax.ShapeDtypeStruct`` with ``measure=False``.
        argnums: the argument, or the arguments, that it is differentiated with respect to, as for ``jax.grad``.
        name: the title of the page; by default the name of the function.
        measure: whether to compile and time the derivatives too.
        repeats: timed calls of each, as for `jaxblocks.ad.cost_table`.
        progress: is called with a few words before each part, as in ``progress=print``.

    Returns:
        An `Exploration`.

    Raises:
        TypeError: if an argument to differentiate or the value is not floating-point.
        ValueError: if an argument is missing, or ``f`` has a ``while_loop``, which has no reverse mode and so no tape
            (`jaxblocks.ad.trace_table` shows the iterations that are made).

    >>> import jax.numpy as jnp
    >>> survey = lambda x1, x2: jnp.log(x1) + x1 * x2 - jnp.sin(x2)
    >>> exploration = explore(survey, 2.0, 5.0, argnums=(0, 1), measure=False)
    >>> print(exploration.trace.adjoint[-1])
    x̄2 = v̄₀ = 1.716

    Source: Baydin, Pearlmutter, Radul & Siskind, Automatic differentiation in machine learning: a survey; Griewank &
    Walther 2000, Algorithm 799: revolve (doi:10.1145/347837.347846); Huszar, DeepNN lecture 3.
    """
    require(args, "the arguments of f after it", "none", "write explore(f, x, ...)")
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    inside = len(numbers) > 0 and all(-len(args) <= operator.index(i) < len(args) for i in numbers)
    expected = f"argnums from 0 to {len(args) - 1}, the places of the arguments"
    require(inside, expected, argnums, "0 is the first argument")
    # Negative places become positive, since the page numbers the arguments.
    numbers = tuple(i % len(args) for i in numbers)
    xs = tuple(as_point(args[i]) for i in numbers)
    of_xs = _of_arguments(f, args, numbers)
    say = progress or (lambda words: None)

    # Traced first: a function without a reverse mode fails here, before the slow measurements.
    say("tracing the graph and the tape")
    try:
        levels, trace, program = graph_of(of_xs, xs)
    except (TypeError, ValueError) as error:
        if missing_mode(error) != "reverse":
            raise
        repair = "give its loop a fixed length (scan, or fori_loop with static bounds), or call trace_table"
        require(False, "f to have a reverse mode, for the adjoints", "a loop of unknown length", repair)
    say("counting, compiling and timing the derivatives" if measure else "counting the operations of the derivatives")
    # `cost_table` and `plan_of` take one point, so several arguments are passed as one tuple.
    joint: Callable = of_xs if len(xs) == 1 else lambda point: of_xs(*point)
    point = xs[0] if len(xs) == 1 else xs
    # None means all rows; hvp and gradient exist for scalar functions only.
    shape = jax.eval_shape(of_xs, *xs)
    is_scalar = [leaf.shape for leaf in jax.tree.leaves(shape)] == [()]
    rows = None if len(program.ops) <= MOST_ROWS else _BRIEF if is_scalar else _BRIEF[:3]
    table = cost_table(joint, point, rows=rows, measure=measure, repeats=repeats)
    say("planning the Jacobian")
    plan_data, plan = plan_of(joint, point)
    title = name if name is not None else getattr(f, "__name__", type(f).__name__)
    data = {
        "name": title,
        "arguments": [_signature(i, arg, i in numbers) for i, arg in enumerate(args)],
        "value": ", ".join(describe(leaf) for leaf in jax.tree.leaves(shape)),
        "entries": {"inputs": _entries(xs), "outputs": _entries(shape)},
        "levels": levels,
        "costs": costs_of(table, lambda scope: program.kinds.get(scope, "")),
        "plan": plan_data,
        "device": f"{jax.default_backend()}, jax {jax.__version__}" if measure else "",
    }
    return Exploration(title, table, plan, trace, data)


def _of_arguments(f: Callable, args: tuple, numbers: tuple[int, ...]) -> Callable:
    """``f`` as a function of some of its arguments, with their names."""

    def of_xs(*xs):
        filled = list(args)
        for i, x in zip(numbers, xs, strict=True):
            filled[i] = x
        return f(*filled)

    try:
        bound = inspect.signature(f).bind(*args)
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        names = [key for key in bound.arguments if bound.signature.parameters[key].kind in kinds]
    except (TypeError, ValueError):  # some built-in functions have no signature
        names = []
    # Variadic arguments have no names of their own.
    names += [f"x{i + 1}" for i in range(len(names), len(args))]
    parameters = [inspect.Parameter(names[i], inspect.Parameter.POSITIONAL_OR_KEYWORD) for i in numbers]
    of_xs.__signature__ = inspect.Signature(parameters)  # JAX names the inputs of the jaxpr by it
    return of_xs


def _signature(i: int, arg: Any, differentiated: bool) -> dict[str, Any]:
    leaves = jax.tree.leaves(arg)
    shape = describe(leaves[0]) if len(leaves) == 1 else f"{len(leaves)} arrays, {_entries(arg):,} numbers"
    return {"place": i + 1, "shape": shape, "differentiated": differentiated}


def _entries(tree: Any) -> int:
    return sum(getattr(leaf, "size", 1) for leaf in jax.tree.leaves(tree))


# ---- the file ---------------------------------------------------------------------------------

_SCRIPTS = ("elements.js", "chain.js", "graph.js", "checkpointing.js", "costs.js", "page.js")


def page_of(explorations: Sequence[Exploration]) -> str:
    """The page of some functions, which it offers to choose from; without any, the chain and the schedules."""
    data = {
        "version": sys.modules["jaxblocks"].__version__,  # imported, and above this module
        "chains": [{"name": name, "widths": widths} for name, widths in CHAINS.items()],
        "schedules": _schedules(),
        "functions": [exploration.data for exploration in explorations],
    }
    # In a script "<" could begin a tag; in JSON it may be written as an escape.
    written = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    title = explorations[0].name if len(explorations) == 1 else "The cost of derivatives"
    fields = {
        "title": html.escape(title, quote=False),
        "style": _asset("page.css"),
        "data": written,
        "script": "\n".join(_asset(name) for name in _SCRIPTS),
    }
    # A template of the form text{{field}}text...: str.format would require that braces in CSS and scripts are doubled.
    return re.sub(r"\{\{(\w+)\}\}", lambda field: fields[field[1]], _asset("page.html"))


@functools.cache
def _asset(name: str) -> str:
    return resources.files("jaxblocks.ad.page").joinpath(name).read_text(encoding="utf-8")


@functools.cache
def _schedules() -> list[dict[str, Any]]:
    found = []
    for length in SCHEDULES[0]:
        for snapshots in (c for c in SCHEDULES[1] if c <= length):
            schedule = binomial_schedule(length, snapshots)
            arrays = {name: getattr(schedule, name).tolist() for name in ("begins", "stored_for", "slot")}
            steps = binomial_steps(length, snapshots)
            found.append({"length": length, "snapshots": snapshots, "steps": steps, **arrays})
    return found
