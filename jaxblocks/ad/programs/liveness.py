"""Dead-code elimination: the equations of a jaxpr that its outputs need, nested jaxprs included."""

import functools
import math
from collections.abc import Callable, Container, Sequence
from typing import Any, NamedTuple

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from jaxblocks.ad.programs.jaxprs import bodies_of, scan_parts

__all__ = ["Live", "called_body", "grid_size", "live_equations", "solver_of", "visible_bodies"]


class Live(NamedTuple):
    """An equation that is needed, with the needed equations of the jaxprs in it.

    Attributes:
        equation: the equation.
        bodies: for each jaxpr in it that runs, its needed equations and its number of runs.
        branches: of a ``cond``, the needed equations of every branch; its only body is the costliest one.
    """

    equation: JaxprEqn
    bodies: tuple[tuple[list["Live"], int], ...] = ()
    branches: tuple[list["Live"], ...] = ()


def live_equations(
    jaxpr: ClosedJaxpr | Jaxpr,
    wanted: Sequence[bool] | None = None,
    *,
    leaves: Container[str],
    cost: Callable[[list[Live]], Any],
) -> tuple[list[Live], list[bool]]:
    """The equations that the wanted outputs need, and those with effects; and flags of the inputs that they read.

    Args:
        jaxpr: the program.
        wanted: flags of the wanted outputs; all by default.
        leaves: names of primitives whose nested jaxprs are not entered.
        cost: the function that determines the costliest branch of a ``cond``.
    """
    program = jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr
    wanted = [True] * len(program.outvars) if wanted is None else wanted
    needed = {v for v, want in zip(program.outvars, wanted, strict=True) if want and not isinstance(v, Literal)}
    inside = functools.partial(live_equations, leaves=leaves, cost=cost)

    def rule(equation, outs):
        name = equation.primitive.name
        if name in leaves:
            return [True] * len(equation.invars), Live(equation)
        if name == "cond":
            branches, reads = zip(*(inside(branch, outs) for branch in equation.params["branches"]), strict=True)
            live = Live(equation, ((max(branches, key=cost), 1),), branches)
            return [True, *map(any, zip(*reads, strict=True))], live
        if (solver := solver_of(equation)) is not None:
            return [True] * len(equation.invars), Live(equation, ((inside(solver)[0], 1),))
        grid = grid_size(equation)
        if grid is not None:  # it writes its outputs, so all of it is needed
            return [True] * len(equation.invars), Live(equation, ((inside(equation.params["jaxpr"])[0], grid),))
        ins, bodies = _RULES.get(name, _call)(equation, outs, inside)
        return ins, Live(equation, tuple(bodies))

    kept = []
    for equation in reversed(program.eqns):
        outs = [v in needed for v in equation.outvars]
        if any(outs) or _has_effects(equation):
            ins, live = rule(equation, outs)
            needed |= {v for v, read in zip(equation.invars, ins, strict=True) if read and not isinstance(v, Literal)}
            kept.append(live)
    return kept[::-1], [v in needed for v in program.invars]


def _has_effects(equation) -> bool:
    """Whether an equation has visible effects, such as prints and callbacks; a mesh axis name is not one."""
    return any(type(effect).__name__ != "NamedAxisEffect" for effect in equation.effects)


# ---- rules: equation, wanted outputs, live_equations -> which inputs are read, and the bodies with their repeats -----


def _call(equation, outs, inside):
    """A call, whose dead code is removed, or any other equation, which needs all inputs for each output."""
    body = called_body(equation)
    if body is not None:
        live, ins = inside(body, outs)
        return ins, [(live, _devices(equation.params) if equation.primitive.name == "shard_map" else 1)]
    return [True] * len(equation.invars), [(inside(body)[0], 1) for body in visible_bodies(equation)]


def _scan(equation, outs, inside):
    """Inputs are constants, carry, slices; outputs are carry, slices. A carry that a step reads is needed."""
    first, n_carry = scan_parts(equation)
    wanted = list(outs)
    while True:
        live, ins = inside(equation.params["jaxpr"], wanted)
        wider = [a or b for a, b in zip(wanted[:n_carry], ins[first : first + n_carry], strict=True)] + wanted[n_carry:]
        if wider == wanted:
            break
        wanted = wider
    reads = ins[:first] + wanted[:n_carry] + ins[first + n_carry :]
    return reads, [(live, equation.params["length"])]


def _while(equation, outs, inside):
    """Inputs are constants of the condition, constants of the body, carry; the condition is always needed."""
    condition, body = equation.params["cond_jaxpr"], equation.params["body_jaxpr"]
    n_carry = len(equation.outvars)
    test, reads_condition = inside(condition)
    n_condition, n_body = len(reads_condition) - n_carry, len(equation.invars) - len(reads_condition)
    wanted = [a or b for a, b in zip(outs, reads_condition[n_condition:], strict=True)]
    while True:
        live, ins = inside(body, wanted)
        wider = [a or b for a, b in zip(wanted, ins[n_body:], strict=True)]
        if wider == wanted:
            break
        wanted = wider
    return reads_condition[:n_condition] + ins[:n_body] + wanted, [(test, 1), (live, 1)]


_RULES: dict[str, Callable] = {"scan": _scan, "while": _while}


# ---- calls of any kind ------------------------------------------------------------------------

# Primitives whose nested jaxprs run an unknown number of times.
_OPAQUE = frozenset({"custom_partitioning", "pallas_call"})


def solver_of(equation: JaxprEqn) -> ClosedJaxpr | Jaxpr | None:
    """The solver of a custom root or linear solve, the only jaxpr in it that runs; ``None`` for other equations.

    The other jaxprs are for derivatives. Since JAX 0.12, a custom root is an object among the parameters.
    """
    if equation.primitive.name in ("custom_linear_solve", "custom_root"):
        return equation.params["jaxprs"].solve
    return getattr(equation.params.get("_prim"), "solve_jaxpr", None)


def grid_size(equation: JaxprEqn) -> int | None:
    """The number of runs of the body of a ``pallas_call`` whose grid has a known size; else ``None``."""
    if equation.primitive.name != "pallas_call":
        return None
    grid = equation.params["grid_mapping"].grid
    return math.prod(grid) if all(isinstance(n, int) for n in grid) else None


def visible_bodies(equation: JaxprEqn) -> list[ClosedJaxpr | Jaxpr]:
    """The jaxprs in an equation, unless their number of runs is unknown."""
    return [] if equation.primitive.name in _OPAQUE else bodies_of(equation)


def called_body(equation: JaxprEqn) -> ClosedJaxpr | Jaxpr | None:
    """The only jaxpr in an equation, if its inputs and outputs are those of the equation; else ``None``.

    More general than `jaxblocks.ad.programs.jaxprs.body_of_call`: it finds calls by any primitive.
    """
    bodies = visible_bodies(equation)
    if len(bodies) != 1:
        return None
    body = getattr(bodies[0], "jaxpr", bodies[0])
    pairs = [(equation.invars, body.invars), (equation.outvars, body.outvars)]
    if equation.primitive.name == "shard_map":  # the same arrays, in parts
        fits = all(len(outer) == len(inner) for outer, inner in pairs)
    else:
        fits = all([_shape(v) for v in outer] == [_shape(v) for v in inner] for outer, inner in pairs)
    return bodies[0] if fits else None


def _shape(variable):
    return getattr(variable.aval, "shape", None), getattr(variable.aval, "dtype", None)


def _devices(params) -> int:
    """The number of devices of a shard_map."""
    axes = params.get("manual_axes", params.get("newly_manual_axes", params["mesh"].axis_names))
    return math.prod(params["mesh"].shape[axis] for axis in axes)
