"""The plan of a Jacobian: its mode, its batches, and the reason."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jax.extend.core import JaxprEqn

from jaxblocks.ad.planning.accounting import COPIES, Step, Sweep, held_bytes, peak_bytes, sweeps_of
from jaxblocks.ad.planning.bracketing import Part, as_product
from jaxblocks.ad.planning.linear_program import Linear
from jaxblocks.ad.planning.prices import PRICES, PricedChain, price_chain
from jaxblocks.ad.planning.stages import Link
from jaxblocks.ad.programs.jaxprs import dtype_of
from jaxblocks.checks.errors import require

__all__ = ["AUTO_MEMORY", "LEAST_GAIN", "JacobianPlan", "Route", "Stage", "make_plan"]

# If the predicted gain of a bracketing is less than this, jax.jacfwd or jax.jacrev is used: predictions are wrong by
# 13 % in the mean, and a bracketing may need several times the temporaries.
LEAST_GAIN = 1.3

# Bytes of temporaries that chunk_size="auto" allows, or twice the size of the Jacobian where that is more.
AUTO_MEMORY = 2**28


# ---- the plan -----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Stage:
    """One stage of the chain: the linear map between two cuts.

    Attributes:
        name: ``"J1"`` is the first.
        kind: ``"dense"`` (its matrix is known up to factors of its rows and columns), ``"diagonal"`` or
            ``"matrix-free"`` (only its products with vectors are known).
        n_in, n_out: the numbers of entries of its input and output.
        operations: of one sweep through it with one seed.
        made_of: its primitives, with the number of occurrences of each.

    >>> Stage("J1", "dense", 784, 256, 401408, "dot_general")
    J1: 784 -> 256, dense, 401,408 operations a seed (dot_general)
    """

    name: str
    kind: str
    n_in: int
    n_out: int
    operations: int
    made_of: str

    def __repr__(self):
        return (
            f"{self.name}: {self.n_in} -> {self.n_out}, {self.kind}, {self.operations:,} operations a seed "
            f"({self.made_of})"
        )


@dataclasses.dataclass(frozen=True, repr=False)
class JacobianPlan:
    """The method for a Jacobian and the reason for it; `explain` describes both.

    Attributes:
        mode: ``"forward"`` (``jax.jacfwd``), ``"reverse"`` (``jax.jacrev``), ``"mixed"`` (the bracketing), or
            ``"known"``, where the chain is one stage whose matrix is known without a sweep.
        n_in, n_out: the numbers of entries of the point and the value: the Jacobian is ``n_out`` by ``n_in``.
        stages: the chain, from the inputs to the outputs.
        bracketing: the cheapest one, as in ``"(J4 (J3 J2)) J1"``; executed where ``mode`` is ``"mixed"``.
        operations: multiplications and additions of ``"forward"``, ``"reverse"`` and ``"chosen"``; ``None`` where
            a mode does not exist (a custom vjp rule, a while loop). A known matrix counts by its scaling. Those of
            linearizing the function once are left out; `cost_table` counts them.
        seconds: their predicted times, including that of the function itself. Only their ratios are meaningful.
        sweeps: descriptions of the executed steps.
        steps: what each of them makes, and from where to where its seeds pass.
        chunk_size: the largest number of seeds in one batch, ``None`` where every sweep is one batch.
        temporary_bytes: predicted, at the peak, besides those of the function itself.
        reason: the reason for this mode, in one sentence.

    >>> import jax.numpy as jnp
    >>> from jaxblocks.ad.jacobians.jacobians import jacobian_plan
    >>> plan = jacobian_plan(
    ...     lambda x: jnp.ones((4, 900)).T @ (jnp.ones((4, 900)) @ x), jnp.ones(900)
    ... )
    >>> plan.mode, plan.bracketing, [stage.kind for stage in plan.stages]
    ('mixed', 'J2 J1', ['dense', 'dense'])
    """

    mode: str
    n_in: int
    n_out: int
    stages: tuple[Stage, ...]
    bracketing: str
    operations: dict[str, int | None]
    seconds: dict[str, float]
    sweeps: tuple[str, ...]
    steps: tuple[Step, ...]
    chunk_size: int | None
    temporary_bytes: int
    reason: str

    @property
    def gain(self) -> float:
        """The predicted time of the better of forward and reverse mode over that of the chosen mode."""
        return min(self.seconds["forward"], self.seconds["reverse"]) / self.seconds["chosen"]

    def explain(self) -> str:
        """The stages, the bracketing, the operations of forward, reverse and chosen, and the reason.

        >>> import jax.numpy as jnp
        >>> from jaxblocks.ad.jacobians.jacobians import jacobian_plan
        >>> print(jacobian_plan(jnp.sum, jnp.ones(3)).explain().splitlines()[0])
        Jacobian, 1 by 3: reverse mode (jax.jacrev): the chain cannot be cut at a narrow place, and forward mode is \
not cheaper.
        """
        chunk = (
            "all seeds of a sweep at once" if self.chunk_size is None else f"at most {self.chunk_size} seeds at once"
        )
        if not any(" seeds" in sweep or " through " in sweep for sweep in self.sweeps):
            chunk = "none, since no seeds are swept"
        lines = [
            f"Jacobian, {self.n_out} by {self.n_in}: {self.reason}",
            *(f"  {stage!r}" for stage in self.stages),
            *([f"  bracketing: {self.bracketing}"] if len(self.stages) > 1 else []),
            *(f"  {i}. {sweep}" for i, sweep in enumerate(self.sweeps, 1)),
            f"  batches: {chunk}, about {self.temporary_bytes:,} bytes of temporaries",
            "  operations of the sweeps, to which cost tables add one linearization:",
            *(
                f"    {name + ':':9s}{_number(self.operations[name])} operations, "
                f"predicted time {self.seconds[name] / self.seconds['chosen']:.3g}"
                for name in ("forward", "reverse", "chosen")
            ),
        ]
        return "\n".join(lines)

    def plot(self, ax=None):
        """Draw the chain and the order of its products; returns the axes.

        Above are the values between the stages, from the point on the left to the value on the right, each a bar as
        long as the root of its size; between them are the stages. Each line below is one step, in the order of
        execution: a bar that spans the stages whose Jacobian the step makes, and in it an arrow where columns are
        pushed forward or rows are pulled back, a cross where two matrices are multiplied. Gray lines lead from a
        result to the step that uses it.

        >>> import jax.numpy as jnp
        >>> from jaxblocks.ad.jacobians.jacobians import jacobian_plan
        >>> axes = jacobian_plan(jnp.sum, jnp.ones(3)).plot()
        >>> axes.get_title()
        '1 by 3, reverse mode: 1/3 of the operations of forward mode'
        """
        from jaxblocks.ad.planning.drawing import draw_plan

        return draw_plan(self, ax)

    __repr__ = explain

    def _repr_html_(self) -> str:
        return f"<pre>{self.explain()}</pre>"


def _number(operations: int | None) -> str:
    return "no" if operations is None else f"{int(operations):,}"


class Route(NamedTuple):
    """A plan with the data for its execution.

    Attributes:
        plan: the plan.
        links: the stages.
        part: the bracketing.
        directions: how the Jacobian of each single stage is computed: ``"known"``, ``"forward"`` or ``"reverse"``.
        chunk: from the seeds and the equations of a sweep to its batch size, ``None`` for a single batch.
    """

    plan: JacobianPlan
    links: list[Link]
    part: Part
    directions: list[str]
    chunk: Callable[[int, Sequence[JaxprEqn]], int | None]


# ---- construction -------------------------------------------------------------------------------


def make_plan(linear: Linear, *, mode: str = "auto", chunk_size: int | str | None = "auto") -> Route:
    """The plan for a linear program; `jaxblocks.ad.jacobian` describes the options.

    The operations of a bracketing are ``None``: `jaxblocks.ad.jacobian_plan` counts them in the program that is run.

    Raises:
        TypeError: where neither mode, or not the requested one, can differentiate the function.
    """
    chain = price_chain(linear)
    part = chain.cheapest()
    # A requested mode that does not exist fails here, with the reason; for "auto" it has an infinite price.
    times = _times(chain, part)
    if mode != "auto" and not np.isfinite(times[mode]):
        other = "reverse" if mode == "forward" else "forward"
        got = {"forward": "a jax.custom_vjp", "reverse": "a while loop"}[mode] + f", which has {other} mode only"
        repair = f"pass mode={other!r} or 'auto'"
        require(False, f"f to be differentiable in {mode} mode", got, repair, error=TypeError)
    stock = next(name for name in _stock(chain, times) if np.isfinite(times[name]))
    # A bracketing is considered only where it is predicted to save time.
    chosen = mode if mode != "auto" else "mixed" if _pays(chain, times) else stock
    bound = max(AUTO_MEMORY, 2 * chain.itemsize * chain.n_in * chain.n_out) if chunk_size == "auto" else None
    way = _way(chosen, chain, part, chunk_size, bound)
    operations = {name: _sweep_operations(name, chain, times) for name in ("forward", "reverse")}
    plan = JacobianPlan(
        mode="known" if way.mode == "mixed" and _is_known(chain, part) else way.mode,
        n_in=chain.n_in,
        n_out=chain.n_out,
        stages=_stages(chain),
        bracketing=as_product(part),
        operations={**operations, "chosen": operations.get(way.mode)},
        seconds={"forward": times["forward"], "reverse": times["reverse"], "chosen": times[way.mode]},
        sweeps=tuple(sweep.description for sweep in way.sweeps),
        steps=tuple(sweep.step for sweep in way.sweeps),
        chunk_size=max((size for size in way.sizes if size), default=None),
        temporary_bytes=way.temporaries,
        reason=_reason(mode, way.mode, chain, part, times),
    )
    return Route(plan, chain.links, part, chain.directions, way.chunk)


def _times(chain: PricedChain, part: Part) -> dict[str, float]:
    """Predicted seconds of ``"forward"``, ``"reverse"`` and ``"mixed"``; infinite where a mode does not exist."""
    times = {
        "forward": chain.forward[:, 0].sum(),
        "reverse": chain.reverse[:, -1].sum(),
        "mixed": chain.seconds_of(part),
    }
    require(
        any(map(np.isfinite, times.values())),
        "f to be differentiable in forward or in reverse mode",
        "a while loop, which has no reverse mode, and a custom_vjp, which has no forward mode",
        "give the loop a fixed length (fori_loop with static bounds, or scan), or write the rule as a jax.custom_jvp",
        error=TypeError,
    )
    function = PRICES.call + sum(float(cost.seconds(1)) for cost in chain.costs)  # equal in all three
    return {name: float(function + seconds) for name, seconds in times.items()}


def _stock(chain: PricedChain, times: dict[str, float]) -> tuple[str, str]:
    """Forward and reverse mode, the cheaper one first."""
    # Forward mode makes columns, whose transposition into the rows of the result takes time: it must gain that much.
    reverse = times["reverse"] <= times["forward"] + chain.turn
    reverse |= chain.communicates and bool(np.isfinite(times["reverse"]))
    return ("reverse", "forward") if reverse else ("forward", "reverse")


def _gain(times: dict[str, float]) -> float:
    """The time of the better of forward and reverse mode over that of the bracketing."""
    return min(times["forward"], times["reverse"]) / times["mixed"]


def _pays(chain: PricedChain, times: dict[str, float]) -> bool:
    """Whether the bracketing is sufficiently faster than forward and reverse mode."""
    one_dtype = len({dtype_of(v) for v in (*chain.linear.inputs, *chain.linear.outputs)}) == 1
    enough = _gain(times) >= LEAST_GAIN or not np.isfinite(times[_stock(chain, times)[0]])
    allowed = one_dtype and not chain.linear.is_complex and not chain.communicates
    return bool(allowed and chain.n_in and chain.n_out and enough)


def _is_known(chain: PricedChain, part: Part) -> bool:
    """Whether the Jacobian is that of one stage with a known matrix."""
    return part.how == "own" and chain.directions[part.first] == "known"


def _sweep_operations(mode: str, chain: PricedChain, times: dict[str, float]) -> int | None:
    """Operations of one sweep through the whole function; ``None`` where the mode does not exist."""
    seeds = chain.n_in if mode == "forward" else chain.n_out
    return seeds * sum(cost.operations for cost in chain.costs) if np.isfinite(times[mode]) else None


def _stages(chain: PricedChain) -> tuple[Stage, ...]:
    return tuple(
        Stage(f"J{i + 1}", link.kind, chain.sizes[i], chain.sizes[i + 1], cost.operations, _summary(primitives))
        for i, (link, cost, primitives) in enumerate(zip(chain.links, chain.costs, chain.primitives, strict=True))
    )


def _summary(names: dict[str, int]) -> str:
    return ", ".join(name if times == 1 else f"{times} {name}" for name, times in names.items()) or "nothing"


# ---- memory -------------------------------------------------------------------------------------


class _Way(NamedTuple):
    """One mode.

    Attributes:
        mode: its name.
        sweeps: its sweeps.
        peaks: for each sweep, the bytes that one seed needs.
        sizes: for each sweep, its batch size, ``None`` for a single batch.
        held: the bytes stored between the sweeps.
        chunk: as in `Route`.
    """

    mode: str
    sweeps: list[Sweep]
    peaks: list[int]
    sizes: list[int | None]
    held: int
    chunk: Callable[[int, Sequence[JaxprEqn]], int | None]

    @property
    def temporaries(self) -> int:
        """An upper bound of the bytes that it needs in its batches."""
        batches = zip(self.sweeps, self.sizes, self.peaks, strict=True)
        return self.held + max(
            (min(size or sweep.seeds, sweep.seeds) * peak for sweep, size, peak in batches), default=0
        )


def _way(mode: str, chain: PricedChain, part: Part, chunk_size, bound: int | None) -> _Way:
    """One mode in batches of ``chunk_size`` seeds, or of as many as stay within ``bound`` bytes."""
    n, m, cuts = chain.n_in, chain.n_out, len(chain.links)
    if mode == "mixed":
        # Sweeps through parts of the function; their results are stored until the products need them.
        sweeps, held = sweeps_of(part, chain), held_bytes(part, chain) + _factor_bytes(chain, part)
        peaks = [peak_bytes(sweep.equations, chain.linear.tangents) for sweep in sweeps]
    else:
        seeds, words = (n, "columns pushed") if mode == "forward" else (m, "rows pulled")
        step = Step(mode, 0, cuts, 0, cuts)
        sweeps, held = [Sweep(step, seeds, chain.linear.equations, f"{seeds} {words} through the whole function")], 0
        peaks = [peak_bytes(chain.linear.equations, chain.linear.tangents)]

    def size(seeds, peak):
        most = chunk_size if isinstance(chunk_size, int) else seeds
        if bound is not None:
            # At least one seed, even if that exceeds the bound.
            most = min(most, max(1, (bound - held) // max(1, peak)))
        return None if most >= seeds else most

    sizes = [size(sweep.seeds, peak) for sweep, peak in zip(sweeps, peaks, strict=True)]

    def chunk(seeds, equations):
        return size(seeds, peak_bytes(equations, chain.linear.tangents))

    return _Way(mode, sweeps, peaks, sizes, held, chunk)


def _factor_bytes(chain: PricedChain, part: Part) -> int:
    """Bytes of the factors of a known matrix that is the whole Jacobian."""
    link = chain.links[0]
    # Only a whole Jacobian that is one known matrix stores its factors; those that are absent need no memory.
    if part.how != "own" or link.kind != "dense":
        return 0
    return COPIES * chain.itemsize * (bool(link.before) * chain.n_in + bool(link.after) * chain.n_out)


# ---- the reason ---------------------------------------------------------------------------------


def _reason(requested: str, chosen: str, chain: PricedChain, part: Part, times: dict[str, float]) -> str:
    call = {"forward": "jax.jacfwd", "reverse": "jax.jacrev"}
    stock, other = _stock(chain, times)
    if requested != "auto":
        return f"{requested} mode ({call[requested]}), as requested."
    if chosen == "mixed" and _is_known(chain, part):
        return f"the matrix of J1 is known, which is predicted to be {_gain(times):.3g} times faster than {stock} mode."
    if chosen == "mixed":
        return f"the bracketing below is predicted to be {_gain(times):.3g} times faster than {stock} mode."
    if chain.communicates:
        return f"{chosen} mode ({call[chosen]}), since f communicates between devices."
    if not np.isfinite(times[other]):
        return f"{chosen} mode ({call[chosen]}): f has no {other} mode."
    why = "no bracketing saves enough" if len(chain.links) > 1 else "the chain cannot be cut at a narrow place"
    return f"{chosen} mode ({call[chosen]}): {why}, and {other} mode is not cheaper."
