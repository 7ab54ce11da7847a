"""The sweeps, operations and bytes of a bracketing.

The operations are exactly those that `jaxblocks.ad.jacobian` executes, scalings included.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from jax.extend.core import JaxprEqn, Var

from jaxblocks.ad.planning.bracketing import Part
from jaxblocks.ad.planning.equations import MOVES
from jaxblocks.ad.planning.low_rank import compositions
from jaxblocks.ad.planning.prices import PricedChain, works
from jaxblocks.ad.planning.program import bytes_of, is_tangent, size_of
from jaxblocks.ad.planning.stages import Link
from jaxblocks.ad.programs.jaxprs import inputs_of, shape_of

__all__ = ["COPIES", "Step", "Sweep", "held_bytes", "live_bytes", "operations_of", "peak_bytes", "sweeps_of"]

# Compiler copies of the known arrays: up to twice their size (attention, jax 0.12).
COPIES = 2


# ---- sweeps -------------------------------------------------------------------------------------


class Step(NamedTuple):
    """What one sweep or product makes: the Jacobian between two cuts of the chain; cut 0 is the point.

    Attributes:
        how: ``"forward"`` (pushed columns), ``"reverse"`` (pulled rows), ``"product"``, ``"known"`` (a matrix), or
            ``"low-rank"`` (a diagonal and factors, by pushed columns and pulled rows).
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
        if how == "low-rank":
            words = f"J{stage + 1} is {_low_rank_description(link)}"
            return [*_factor_sweeps(step, link), Sweep(step, 0, [], words)]
        seeds = sizes[stage] if how == "forward" else sizes[stage + 1]
        return [Sweep(step, seeds, link.equations, f"J{stage + 1} by {how} mode with {seeds} seeds")]
    used = chain.factors_of(part)
    if used is not None:
        factor, other = used
        link, cut = chain.links[factor.first], max(factor.first, other.first)
        step = Step("product", part.first, part.last, cut, cut)
        words = f"product with the factors of J{factor.first + 1}, {_low_rank_description(link)}"
        return [*sweeps_of(other, chain), *_factor_sweeps(step, link), Sweep(step, 0, [], words)]
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


def _factor_sweeps(step: Step, link: Link) -> list[Sweep]:
    """The sweeps for the factors of a low-rank stage; `_low_rank_description` describes them together."""
    sides = [(block.rank + 1, block.above) for block in link.blocks] + [(b.rank, b.below) for b in link.blocks]
    return [Sweep(step, seeds, equations, "") for seeds, equations in sides]


def _low_rank_description(link: Link) -> str:
    bottlenecks = f"{len(link.blocks)} bottlenecks" if len(link.blocks) > 1 else "one bottleneck"
    return f"a diagonal plus rank {link.rank}: {link.rank} seeds pushed from and pulled to {bottlenecks}"


def _known_description(stage: int, link: Link) -> str:
    if link.kind == "diagonal":
        return f"J{stage + 1} is known: a diagonal matrix"
    scaled = " and ".join(["row by row"] * bool(link.after) + ["column by column"] * bool(link.before))
    return f"J{stage + 1} is known: its matrix" + f", scaled {scaled}" * bool(scaled)


# ---- bytes --------------------------------------------------------------------------------------


def held_bytes(part: Part, chain: PricedChain) -> int:
    """Bytes of the Jacobians that are stored between the sweeps, compiler copies included."""
    if part.how == "own":  # a low-rank stage stores its factors, twice while two are composed
        link = chain.links[part.first]
        return 4 * COPIES * chain.itemsize * link.rank * chain.sizes[part.first]
    inner = [p for p in (part.left, part.right) if p is not None]
    own = sum(chain.itemsize * chain.sizes[p.first] * chain.sizes[p.last] for p in inner)
    return COPIES * own + sum(held_bytes(p, chain) for p in inner)


def peak_bytes(equations: Sequence[JaxprEqn], tangents: set[Var]) -> int:
    """Maximal bytes of the live tangents of one seed, compiler copies included: an upper bound."""
    return COPIES * max((live for _, live in live_bytes(equations, tangents)), default=0)


def live_bytes(equations: Sequence[JaxprEqn], tangents: set[Var]) -> Iterator[tuple[JaxprEqn, int]]:
    """For each equation, the bytes of the live tangents of one seed; inputs and outputs of a loop count twice."""
    last_read = {v: place for place, e in enumerate(equations) for v in e.invars if is_tangent(v, tangents)}
    ends: list[list[Any]] = [[] for _ in equations]
    for v, place in last_read.items():
        ends[place].append(v)
    live = sum(bytes_of(v) for v in inputs_of(equations) if v in last_read)
    for place, equation in enumerate(equations):
        made = sum(map(bytes_of, equation.outvars))
        loops = equation.primitive.name in ("scan", "while")
        twice = loops and made + sum(bytes_of(v) for v in equation.invars if is_tangent(v, tangents))
        live += made
        yield equation, live + twice
        live -= sum(map(bytes_of, ends[place]))


# ---- operations ---------------------------------------------------------------------------------


class _Partial(NamedTuple):
    """A Jacobian between two cuts while its operations are counted.

    Attributes:
        operations: so far.
        by: ``"rows"`` or ``"columns"``, its layout.
        left, right: whether a factor of its rows, or of its columns, is not multiplied in yet.
    """

    operations: int
    by: str
    left: bool = False
    right: bool = False


def operations_of(part: Part, chain: PricedChain, chunk: Callable[[int, Sequence[JaxprEqn]], int | None]) -> int:
    """Multiplications and additions of a bracketing as `jaxblocks.ad.jacobian` executes it, scalings included.

    Args:
        part: the bracketing.
        chain: its stages.
        chunk: from the seeds and the equations of a sweep to its batch size, ``None`` for a single batch.
    """
    whole = _partial(part, chain, chunk, top=True)
    # A factor that no product has absorbed is multiplied into the final Jacobian, one product per entry.
    return int(whole.operations + (whole.left + whole.right) * chain.n_in * chain.n_out)


def _partial(part: Part, chain: PricedChain, chunk, top: bool = False) -> _Partial:
    if part.how == "own":
        return _own(part.first, chain)
    used = chain.factors_of(part)
    if used is not None:
        factor, other = used
        link, held = chain.links[factor.first], _partial(other, chain, chunk)
        size = chain.sizes[other.first] * chain.sizes[other.last]
        # For each entry of the other matrix: times D and the sum, two narrow products, and the scalings that are left.
        applied = (2 + 4 * link.rank + held.left + held.right) * size
        return _Partial(held.operations + _factor_operations(link, chain.tangents) + applied, held.by)
    if part.how == "product":
        left, right = (_partial(factor, chain, chunk) for factor in part.factors)
        return _multiplied(part, left, right, chain.sizes, top)
    return _swept(part, chain, chunk, top)


def _own(stage: int, chain: PricedChain) -> _Partial:
    """The Jacobian of a single stage."""
    link, how = chain.links[stage], chain.directions[stage]
    if how == "low-rank":
        n = chain.sizes[stage]
        return _Partial(_factor_operations(link, chain.tangents) + 2 * n * n * link.rank + n * n, "rows")
    if how != "known":
        seeds = chain.sizes[stage] if how == "forward" else chain.sizes[stage + 1]
        return _Partial(seeds * chain.costs[stage].operations, "columns" if how == "forward" else "rows")
    if link.kind == "diagonal":
        return _Partial(_diagonal_operations(link.equations, chain.tangents), "rows")
    scalings = _scaling_operations(link, chain.tangents)
    layout = _layout(link.equations[link.dense], chain.tangents)
    return _Partial(scalings, layout, bool(link.after), bool(link.before))


def _factor_operations(link: Link, tangents: set[Var]) -> int:
    """Operations that compute the factors of a low-rank stage."""
    n, total = size_of(link.inputs[0]), 0
    for block in link.blocks:
        for seeds, equations in ((block.rank + 1, block.above), (block.rank, block.below)):
            total += seeds * sum(work.operations * work.times for work in works(equations, tangents))
    for later, earlier in compositions([block.rank for block in link.blocks]):
        # D E, D P, the sum E V + Q (P^T V), and its two products, in the letters of `low_rank`.
        total += n * (1 + earlier + 2 * later + 4 * later * earlier)
    return total


def _multiplied(part: Part, left: _Partial, right: _Partial, sizes: Sequence[int], top: bool) -> _Partial:
    """The dense product of two Jacobians."""
    m, k, n = sizes[part.last], sizes[part.factors[0].first], sizes[part.first]
    turned = top and left.by == right.by == "columns"
    total = left.operations + right.operations + 2 * m * k * n
    total += k * (left.right and right.left)  # the two factors in the middle become one
    if left.right or right.left:
        total += k * n if turned or n <= m else m * k
    early = left.left and (not turned or 16 * k < n)
    total += early * m * k + right.right * k * n
    left_by = "rows" if turned else left.by
    by = "columns" if left_by == "columns" and (right.by == "columns" or n < m) else "rows"
    return _Partial(total, by, left.left and not early)


def _swept(part: Part, chain: PricedChain, chunk, top: bool) -> _Partial:
    """A Jacobian pushed or pulled through known or matrix-free stages."""
    child = part
    while child.how == part.how:  # sweeps of one direction run as one
        child = child.child
    pushes = part.how == "forward"
    # Forward mode pushes one seed for each input of the part, reverse mode pulls one for each of its outputs.
    seeds = chain.sizes[part.first] if pushes else chain.sizes[part.last]
    held = _partial(child, chain, chunk)
    if child.how == "own" and chain.directions[child.first] == part.how:
        held = _Partial(held.operations, held.by)
    stages = range(child.last, part.last) if pushes else range(part.first, child.first)
    batched = chunk(seeds, [e for stage in stages for e in chain.links[stage].equations]) is not None
    at_once = held.right if pushes else held.left and held.by == "rows"
    total = held.operations + at_once * chain.sizes[child.first] * chain.sizes[child.last]
    for stage in stages:
        scaled = (held.left if pushes else held.right) and stage == (stages[0] if pushes else stages[-1])
        last = pushes and top and stage == stages[-1]
        total += _stage_operations(stage, chain, seeds, pushes, scaled, last, not batched)
    return _Partial(total, "columns" if pushes else "rows", not pushes and held.left and not at_once)


def _stage_operations(stage, chain, seeds, pushes, scaled, last, folds) -> int:
    """Operations of a sweep through one stage.

    A diagonal is multiplied into its matrix if that takes fewer operations than scaling the seeds.

    Args:
        stage: its number.
        chain: the chain.
        seeds: of the sweep.
        pushes: whether it runs forward.
        scaled: whether a factor of the seeds is multiplied in at this stage.
        last: whether its result is transposed into the final Jacobian.
        folds: whether diagonals may be multiplied into matrices.
    """
    link, n, m = chain.links[stage], chain.sizes[stage], chain.sizes[stage + 1]
    if link.kind in ("matrix-free", "low-rank"):
        return seeds * chain.costs[stage].operations + scaled * seeds * (n if pushes else m)
    if link.kind == "diagonal":
        return _diagonal_operations(link.equations, chain.tangents) + (1 + scaled) * seeds * n
    total = seeds * 2 * n * m + _scaling_operations(link, chain.tangents)
    columns = bool(link.before) + (scaled and pushes)
    rows = bool(link.after) + (scaled and not pushes)
    late = 16 if last else 1  # a matrix that is transposed is not scaled at the same time
    total += columns * n * (m if folds and m <= seeds else seeds)
    total += rows * m * (n if folds and n <= late * seeds else seeds)
    return total


def _scaling_operations(link: Link, tangents) -> int:
    """Operations that compute the factors of a dense stage."""
    return _diagonal_operations(link.before, tangents) + _diagonal_operations(link.after, tangents)


def _diagonal_operations(equations, tangents) -> int:
    """Operations that compute the diagonal of some equations from ones; a product with ones counts as none."""
    first = next((equation for equation in equations if equation.primitive.name not in MOVES), None)
    counted_as_none = size_of(first.outvars[0]) if first is not None and first.primitive.name == "mul" else 0
    return sum(work.operations * work.times for work in works(equations, tangents)) - counted_as_none


def _layout(equation, tangents) -> str:
    """Whether a known matrix is stored by ``"rows"`` (the free axes first) or by ``"columns"``."""
    (left, right), _ = equation.params["dimension_numbers"]
    lhs, rhs = equation.invars
    pairs, weight = (
        (zip(left, right, strict=True), rhs) if is_tangent(lhs, tangents) else (zip(right, left, strict=True), lhs)
    )
    order = [w for _, w in sorted(pairs)]
    free = [axis for axis in range(len(shape_of(weight))) if axis not in order]
    return "rows" if free and [*free, *order] == list(range(len(shape_of(weight)))) else "columns"
