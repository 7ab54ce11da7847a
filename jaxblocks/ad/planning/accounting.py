"""The sweeps of a bracketing, and bounds of their bytes."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from jax.extend.core import JaxprEqn, Var

from jaxblocks.ad.planning.bracketing import Part
from jaxblocks.ad.planning.linear_program import is_tangent
from jaxblocks.ad.planning.prices import PricedChain
from jaxblocks.ad.planning.stages import Link
from jaxblocks.ad.programs.jaxprs import bytes_of, inputs_of

__all__ = ["COPIES", "Step", "Sweep", "held_bytes", "peak_bytes", "sweeps_of"]

# Compiler copies of the known arrays: up to twice their size (attention, jax 0.12).
COPIES = 2


# ---- sweeps -------------------------------------------------------------------------------------


class Step(NamedTuple):
    """What one sweep or product makes: the Jacobian between two cuts of the chain; cut 0 is the point.

    Attributes:
        how: ``"forward"`` (pushed columns), ``"reverse"`` (pulled rows), ``"product"`` or ``"known"`` (a matrix).
        first, last: the cuts: the Jacobian is that of the values at ``last`` with respect to those at ``first``.
        start, stop: the cuts between which seeds pass; for a product both are the cut between its factors.
    """

    how: str
    first: int
    last: int
    start: int
    stop: int


class Sweep(NamedTuple):
    """One sweep or product of a bracketing.

    Attributes:
        step: what it makes.
        seeds: the number of pushed columns or pulled rows; 0 for a product and for a stage with a known matrix.
        equations: the equations of the sweep.
        description: a description for `explain`.
    """

    step: Step
    seeds: int
    equations: list[JaxprEqn]
    description: str


def sweeps_of(part: Part, chain: PricedChain) -> list[Sweep]:
    """Every sweep and product of a bracketing, in order of execution."""
    sizes = chain.sizes
    if part.how == "own":
        stage, link = part.first, chain.links[part.first]
        how = chain.directions[stage]
        step = Step(how, stage, stage + 1, stage, stage + 1)
        if how == "known":
            return [Sweep(step, 0, [], _known_description(stage, link))]
        seeds = sizes[stage] if how == "forward" else sizes[stage + 1]
        return [Sweep(step, seeds, link.equations, f"J{stage + 1} by {how} mode with {seeds} seeds")]
    if part.how == "product":
        left, right = part.factors
        m, k, n = sizes[part.last], sizes[left.first], sizes[part.first]
        step = Step("product", part.first, part.last, left.first, left.first)
        product = Sweep(step, 0, [], f"product of two matrices, {m} by {k} and {k} by {n}")
        return [*sweeps_of(right, chain), *sweeps_of(left, chain), product]
    if part.how == "forward":
        seeds = sizes[part.first]
        words = f"{seeds} columns pushed through {', '.join(f'J{stage + 1}' for stage in part.swept)}"
    else:
        seeds = sizes[part.last]
        words = f"{seeds} rows pulled through {', '.join(f'J{stage + 1}' for stage in reversed(part.swept))}"
    step = Step(part.how, part.first, part.last, part.swept[0], part.swept[-1] + 1)
    equations = [equation for stage in part.swept for equation in chain.links[stage].equations]
    return [*sweeps_of(part.child, chain), Sweep(step, seeds, equations, words)]


def _known_description(stage: int, link: Link) -> str:
    if link.kind == "diagonal":
        return f"J{stage + 1} is known: a diagonal matrix"
    scaled = " and ".join(["row by row"] * bool(link.after) + ["column by column"] * bool(link.before))
    return f"J{stage + 1} is known: its matrix" + f", scaled {scaled}" * bool(scaled)


# ---- bytes --------------------------------------------------------------------------------------


def held_bytes(part: Part, chain: PricedChain) -> int:
    """Bytes of the Jacobians that are stored between the sweeps, compiler copies included."""
    inner = [p for p in (part.left, part.right) if p is not None]
    own = sum(chain.itemsize * chain.sizes[p.first] * chain.sizes[p.last] for p in inner)
    return COPIES * own + sum(held_bytes(p, chain) for p in inner)


def peak_bytes(equations: Sequence[JaxprEqn], tangents: set[Var]) -> int:
    """Maximal bytes of the live tangents of one seed, compiler copies included: an upper bound.

    Inputs and outputs of a loop count twice.
    """
    last_read = {v: place for place, e in enumerate(equations) for v in e.invars if is_tangent(v, tangents)}
    ends: list[list[Any]] = [[] for _ in equations]
    for v, place in last_read.items():
        ends[place].append(v)
    live = sum(bytes_of(v) for v in inputs_of(equations) if v in last_read)
    peak = 0
    for place, equation in enumerate(equations):
        made = sum(map(bytes_of, equation.outvars))
        loops = equation.primitive.name in ("scan", "while")
        twice = loops and made + sum(bytes_of(v) for v in equation.invars if is_tangent(v, tangents))
        live += made
        peak = max(peak, live + twice)
        live -= sum(map(bytes_of, ends[place]))
    return COPIES * peak
