"""The cost of a function and of its derivatives, counted and measured, in one table."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.stages import Traced
from jaxtyping import Array, Key, PyTree

from jaxblocks.ad.costs.memory import compiled_bytes
from jaxblocks.ad.costs.tables import MOST_PASSES, CostRow, CostTable
from jaxblocks.ad.costs.timing import quartiles, time_in_turns
from jaxblocks.ad.counting.counts import Count, count_jaxpr
from jaxblocks.ad.curvature.hessian_products import directional_curvature, hvp
from jaxblocks.ad.programs.arguments import as_point, explained_call, scalar_valued
from jaxblocks.ad.programs.linearization import missing_mode
from jaxblocks.checks.errors import describe, require
from jaxblocks.checks.expectations import NonNegativeInt, PositiveInt, checked
from jaxblocks.checks.names import nearest

__all__ = ["cost_table", "table_of_programs"]


@checked
def cost_table(
    f: Callable,
    /,
    *args: PyTree,
    rows: tuple[str, ...] | list[str] | str | None = None,
    measure: bool = True,
    repeats: NonNegativeInt = 20,
    memory_limit: PositiveInt = 4 * 2**30,
    key: Key[Array, ""] | None = None,
) -> CostTable:
    r"""The cost of $f$ and of its derivatives with respect to its first argument, as a table.

    ==============================  ==========================================================================
    row                             computes
    ==============================  ==========================================================================
    ``"function"``                  $f(x)$; always the first row: the ratios refer to it
    ``"jvp"``                       $f(x)$ and $Jv$: one pass of forward mode
    ``"vjp"``                       $f(x)$ and $uᵀ J$: one pass of reverse mode
    ``"gradient"``                  $f(x)$ and $∇ f(x)$
    ``"jacfwd"``, ``"jacrev"``      $J$ by either mode: one pass for each entry of x (of f(x))
    ``"hessian"``                   $H$ by ``jax.hessian``, forward over reverse: one product for each entry of x
    ``"hvp"``                       $Hv$ as `jaxblocks.hvp` computes it: forward over reverse, where both exist
    ``"hvp_reverse_over_forward"``  $Hv$ as the gradient of $∇ fᵀ v$, itself in forward mode
    ``"hvp_reverse_over_reverse"``  $Hv$ as the vjp of the gradient
    ``"directional_curvature"``     $vᵀ Hv$ in Taylor mode, as `jaxblocks.directional_curvature` computes it
    ==============================  ==========================================================================

    Args:
        f: ``f(x, *rest)``; it is differentiated with respect to ``x``, a pytree. It returns a scalar, or a
            pytree of arrays: then only ``"function"``, ``"jvp"``, ``"vjp"``, ``"jacfwd"`` and ``"jacrev"`` apply.
        args: ``x`` and the rest: arrays, or ``jax.ShapeDtypeStruct`` where nothing is measured.
        rows: the names of some rows, or ``"all"``. By default all rows that apply to ``f``, but whole matrices only
            where they take at most 1000 passes.
        measure: whether to compile and time the programs, by default up to eleven, which takes several seconds or
            more; ``False`` only counts operations.
        repeats: the rounds; in each round the rows are timed in turns, so that other load affects all of them, and a
            short program is called several times. With ``0`` programs are compiled for their memory, but not timed.
        memory_limit: a program that needs more bytes than this, outputs included, is not called.
        key: the key for the normally distributed direction $v$ and weights $u$; without it every
            entry is $1/√n$. It does not affect counts.

    Returns:
        A `CostTable`. Times are medians over the rounds, of calls of compiled programs until the results are ready;
        time ratios are medians, with quartiles, of the ratios within a round. So the ratio of two times of the table
        differs from the time ratio beside them, more so on a busy machine. `CostTable.notes` names the rows whose
        quartiles are wide.

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
    expected = f"f to take {len(args)} argument{'s' * (len(args) != 1)}"
    with explained_call(f, len(args), expected, "pass those by position after f, and close over others"):
        y = jax.eval_shape(f, *args)
    names = _rows(rows, x, y)
    programs = {name: _PROGRAMS[name](scalar_valued(f) if name in _OF_SCALARS else f) for name in names}
    keys = (None, None) if key is None else jax.random.split(key)
    called = measure and repeats
    # Where nothing is called, shapes suffice, and no random numbers are computed.
    weights, direction = (_direction(y, keys[0]), _direction(x, keys[1])) if called else (y, x)
    options = {"measure": measure, "repeats": repeats, "memory_limit": memory_limit}
    table = table_of_programs(programs, weights, direction, *args, **options)
    left_out = tuple(name for name in _rows("all", x, y) if name not in names) if rows is None else ()
    return dataclasses.replace(table, left_out=left_out)


def table_of_programs(
    programs: Mapping[str, Callable],
    /,
    *args: Any,
    measure: bool = True,
    repeats: NonNegativeInt = 20,
    memory_limit: PositiveInt = 4 * 2**30,
) -> CostTable:
    """The costs of functions of ``args``, by name; the first is *the* function. Options are those of `cost_table`."""
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
    except Exception as error:
        mode = missing_mode(error)
        if mode is None:
            raise
        return _REASONS[f"{mode}, solve" if "custom_linear_solve" in str(error) else mode]


def _count_or_reason(trace) -> Count | str:
    """The count of a traced derivative, or the reason why it does not exist."""
    counted = count_jaxpr(trace.jaxpr.jaxpr)
    # JAX replaces the tangent of a custom_vjp by `custom_lin` and raises only when it is evaluated.
    return _REASONS["forward"] if "custom_lin" in counted.uncounted else counted


_REASONS = {
    "forward": "a jax.custom_vjp has no rule for forward mode",
    "reverse": "a loop of unknown length has no reverse mode",
    "forward, solve": "JAX has no second derivative of a custom_linear_solve in this order",
    "reverse, solve": "a custom_linear_solve without transpose_solve has no reverse mode",
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

_OF_SCALARS = tuple(name for name in _PROGRAMS if name.startswith(("gradient", "hessian", "hvp", "directional")))


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
        passes = {"jacfwd": of_x, "hessian": of_x, "jacrev": of_y}
        return [name for name in possible if passes.get(name, 1) <= MOST_PASSES]
    if rows == "all":
        return possible
    rows = (rows,) if isinstance(rows, str) or not hasattr(rows, "__iter__") else tuple(rows)
    unknown = [name for name in rows if name not in _PROGRAMS]
    if unknown:
        near = nearest(unknown[0], _PROGRAMS)
        repair = f"did you mean {near}?" if near else 'name some of these, or write rows="all"'
        require(False, f"rows among {', '.join(_PROGRAMS)}", ", ".join(map(repr, unknown)), repair)
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
