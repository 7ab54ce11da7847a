"""The price of a chain of stages, in seconds, predicted from shapes.

An equation with s seeds takes ``max(s a, s b + c) + launch`` seconds: arithmetic a = operations / rate, memory
b = bytes of tangents / bandwidth and c = bytes of constants / bandwidth, and a fixed time to start it. `PRICES` has
the constants. Those of products, elementwise operations, memory and starts are fitted to the measured times of four
programs (forward mode, reverse mode, two bracketings) of each of 39 nets: chains of widths 10 to 400 and residual nets
of widths 64 to 512 (one busy core, x86-64 with AVX-512, jax 0.10.1, float32, Eigen threads off, median process time,
November 2026). With them the predicted gain of a bracketing is wrong by 13 % in the mean. ``conv`` and ``turn`` were
measured alone: convolutions run at 75 to 190 GFlop/s (5 to 13 with one input channel, products of matrices of width
256 and above at 80 to 200), and a matrix that is scaled and transposed at once moves at 1 to 4 GB/s. Other machines
differ; only the ratios of the constants affect a plan.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax.extend.core import JaxprEqn, Var

from jaxblocks.ad.counting.primitive_costs import COLLECTIVES, RULES
from jaxblocks.ad.planning.bracketing import Chain, Part, best_bracketing
from jaxblocks.ad.planning.equations import MOVES
from jaxblocks.ad.planning.linear_program import Linear, is_tangent, width_of
from jaxblocks.ad.planning.stages import Link, links
from jaxblocks.ad.programs.jaxprs import (
    all_equations,
    as_closed,
    bodies_of,
    bytes_of,
    dtype_of,
    has_forward_only_loop,
    interpret,
    size_of,
)
from jaxblocks.ad.programs.liveness import solver_of

__all__ = ["PRICES", "Prices", "PricedChain", "Work", "price_chain", "works"]


class Prices(NamedTuple):
    """The constants of the price of an equation; `jaxblocks.ad.planning.prices` describes their measurement.

    Attributes:
        dot, conv, other: operations a second.
        bandwidth: bytes a second.
        turn: bytes a second of a matrix that is transposed while it is scaled, as at the end of jax.jacfwd.
        launch: seconds to start an operation.
        loop_conv: how many times slower the reverse sweep of a convolution is inside a loop (jax-ml/jax#12868).
        switch: seconds from one sweep to the next.
        call: seconds of a call of a compiled program that computes nothing.
    """

    dot: float = 76e9
    conv: float = 60e9
    other: float = 45e9
    bandwidth: float = 25e9
    turn: float = 1.5e9
    launch: float = 1.5e-6
    loop_conv: float = 11.0
    switch: float = 5e-6
    call: float = 20e-6


PRICES = Prices()


# ---- the work of equations --------------------------------------------------------------------


class Work(NamedTuple):
    """The work of one equation for each seed.

    Attributes:
        kind: ``"dot"``, ``"conv"`` or ``"other"``.
        operations: additions and multiplications.
        moved: bytes of tangents.
        fixed: bytes of constants, read once for all seeds.
        times: its number of runs.
        in_loop: whether it is inside a loop.
    """

    kind: str
    operations: int
    moved: int
    fixed: int = 0
    times: int = 1
    in_loop: bool = False


def works(equations: Sequence[JaxprEqn], tangents: set[Var]) -> list[Work]:
    """The work of every equation that reads a tangent, those in the bodies of loops and branches included."""
    rows: list[Work] = []
    for equation in equations:
        rows += _works_of(equation, [is_tangent(v, tangents) for v in equation.invars])
    return rows


def _works_of(equation: JaxprEqn, moving: list[bool]) -> list[Work]:
    """The work of one equation; ``moving`` marks the inputs that are tangents."""
    if not any(moving):
        return []
    if equation.primitive.name in _WORKS:
        return _WORKS[equation.primitive.name](equation, moving)
    bodies = [as_closed(body) for body in bodies_of(equation)]
    if len(bodies) == 1 and len(bodies[0].jaxpr.invars) == len(moving):
        return _works_inside(bodies[0], moving)
    return [_other_work(equation)]


def _works_inside(body, moving: list[bool]) -> list[Work]:
    rows: list[Work] = []

    def rule(step):
        rows.extend(_works_of(step.equation, step.operands))
        return [any(step.operands)] * len(step.equation.outvars)

    interpret(as_closed(body), moving, rule, constant=lambda value: False, opens=lambda step: False)
    return rows


def _scan_works(equation, moving):
    rows, length = _works_inside(equation.params["jaxpr"], moving), equation.params["length"]
    return [work._replace(times=work.times * length, in_loop=True) for work in rows]


def _while_works(equation, moving):
    # The length is unknown, so the body counts once.
    rows = _works_inside(equation.params["body_jaxpr"], moving[equation.params["cond_nconsts"] :])
    return [work._replace(in_loop=True) for work in rows]


def _cond_works(equation, moving):
    branches = [_works_inside(branch, moving[1:]) for branch in equation.params["branches"]]
    # The branch is unknown, so the costliest counts.
    return max(branches, key=lambda rows: sum(work.operations * work.times for work in rows))


def _solve_works(equation, moving):
    # Of its functions only the solver runs; the transposed one takes the same work. A linear program has tangents in b.
    lengths = equation.params["const_lengths"]
    return _works_inside(solver_of(equation), [False] * lengths.solve + moving[sum(lengths) :])


def _product_works(equation, moving):
    kind = "dot" if equation.primitive.name == "dot_general" else "conv"
    return [Work(kind, sum(RULES[equation.primitive.name](equation)), *_traffic(equation, moving))]


_WORKS: dict[str, Callable[[JaxprEqn, list[bool]], list[Work]]] = {
    "cond": _cond_works,
    "conv_general_dilated": _product_works,
    "custom_linear_solve": _solve_works,
    "dot_general": _product_works,
    "scan": _scan_works,
    "while": _while_works,
}


def _other_work(equation) -> Work:
    name = equation.primitive.name
    rule = RULES.get(name, lambda equation: [sum(map(size_of, equation.outvars))])
    return Work("other", 0 if name in MOVES else sum(rule(equation)), sum(map(bytes_of, equation.outvars)))


def _traffic(equation, moving) -> tuple[int, int]:
    """Bytes of tangents and bytes of constants that an equation reads and writes."""
    read = sum(bytes_of(v) for v, tangent in zip(equation.invars, moving, strict=True) if tangent)
    fixed = sum(bytes_of(v) for v, tangent in zip(equation.invars, moving, strict=True) if not tangent)
    return sum(map(bytes_of, equation.outvars)) + read, fixed


class Cost(NamedTuple):
    """Operations of some equations for one seed, and their times for numbers of seeds: ``seconds(seeds, reverse)``."""

    operations: int
    seconds: Callable[..., np.ndarray]


def _cost(rows: list[Work]) -> Cost:
    times = np.array([work.times for work in rows], float)
    arithmetic = np.array([work.operations / getattr(PRICES, work.kind) for work in rows], float)
    moved = np.array([work.moved / PRICES.bandwidth for work in rows], float)
    fixed = np.array([work.fixed / PRICES.bandwidth for work in rows], float)
    slow = np.array([PRICES.loop_conv if work.kind == "conv" and work.in_loop else 1.0 for work in rows], float)
    # Elementwise operations are fused with adjacent ones, so they have no launch time, except in a loop.
    launch = PRICES.launch * np.array([work.kind != "other" or work.in_loop for work in rows], float)

    def seconds(seeds, reverse=False):
        seeds = np.asarray(seeds)[..., None]
        worked = seeds * arithmetic * (slow if reverse else 1.0)
        return np.sum(times * (np.maximum(worked, seeds * moved + fixed) + launch), axis=-1)

    return Cost(sum(work.operations * work.times for work in rows), seconds)


# ---- the prices of a chain --------------------------------------------------------------------


_REVERSE_ONLY = frozenset(["custom_lin"])


@dataclasses.dataclass(frozen=True, eq=False)
class PricedChain:
    """The chain of stages of a linear program, and the prices of sweeps through it.

    Attributes:
        linear: the linear program.
        links: its stages.
        sizes: widths of the inputs, the cuts and the outputs.
        costs: of each stage.
        primitives: for each stage, the number of occurrences of each primitive.
        forward, reverse: as in `Chain`, infinite where a stage has no such mode.
        own: as in `Chain`.
        directions: how the Jacobian of each single stage is computed: ``"known"``, ``"forward"`` or ``"reverse"``.
        itemsize: bytes of one number of the point.
    """

    linear: Linear
    links: list[Link]
    sizes: list[int]
    costs: list[Cost]
    primitives: list[dict[str, int]]
    forward: np.ndarray
    reverse: np.ndarray
    own: np.ndarray
    directions: list[str]
    itemsize: int

    @property
    def n_in(self) -> int:
        """The number of entries of the point."""
        return self.sizes[0]

    @property
    def n_out(self) -> int:
        """The number of entries of the value."""
        return self.sizes[-1]

    @functools.cached_property
    def communicates(self) -> bool:
        """Whether the devices of a `jax.shard_map` communicate."""
        return any(not COLLECTIVES.isdisjoint(names) for names in self.primitives)

    @functools.cached_property
    def turn(self) -> float:
        """Seconds to transpose the columns of forward mode into the rows of the result."""
        n, m = self.n_in, self.n_out
        return self.itemsize * n * m / PRICES.turn if min(n, m) >= 64 else 0.0

    def product(self, m: Any, k: Any, n: Any) -> Any:
        """Seconds of a dense product of an m by k and a k by n matrix."""
        # The larger of the two times, since the processor computes and loads at the same time.
        arithmetic = 2.0 * m * k * n / PRICES.dot
        memory = self.itemsize * (m * k + k * n + m * n) / PRICES.bandwidth
        return np.maximum(arithmetic, memory) + PRICES.launch

    def cheapest(self) -> Part:
        """The cheapest bracketing.

        The result is needed by rows, so forward mode requires a transposition, which is slow if the matrix is
        scaled as well. This only decides between sweeps of equal price.
        """
        swept = self.forward.copy()
        swept[-1, 0] += 0.0 if self.links[-1].kind == "dense" else self.turn
        return best_bracketing(Chain(self.sizes, self.own, swept, self.reverse, self.product, PRICES.switch))[1]

    def seconds_of(self, part: Part) -> float:
        """Seconds of a bracketing."""
        if part.how == "own":
            return self.own[part.first]
        if part.how == "product":
            left, right = part.factors
            product = self.product(self.sizes[part.last], self.sizes[left.first], self.sizes[part.first])
            return self.seconds_of(left) + self.seconds_of(right) + float(product)
        table, cut = (self.forward, part.first) if part.how == "forward" else (self.reverse, part.last)
        return self.seconds_of(part.child) + sum(table[stage, cut] for stage in part.swept)


def price_chain(linear: Linear) -> PricedChain:
    """Cut a linear program into stages and price all sweeps through them."""
    chain = links(linear)
    sizes = [width_of(link.inputs) for link in chain] + [width_of(chain[-1].outputs)]
    costs = [_cost(works(link.equations, linear.tangents)) for link in chain]
    primitives = [_primitives(link.equations) for link in chain]
    forward = np.array([cost.seconds(sizes) for cost in costs])
    reverse = np.array([cost.seconds(sizes, reverse=True) for cost in costs])
    for stage, names in enumerate(primitives):
        # An infinite price excludes a mode that does not exist, without a special case in the search.
        forward[stage] += np.inf if _REVERSE_ONLY & set(names) else 0.0
        reverse[stage] += np.inf if has_forward_only_loop(chain[stage].equations) else 0.0
    own, directions = np.zeros(len(chain)), []
    itemsize = max((dtype_of(v).itemsize for v in linear.inputs), default=4)
    for stage, link in enumerate(chain):
        alone = {"forward": forward[stage, stage], "reverse": reverse[stage, stage + 1]}
        if link.kind in ("dense", "diagonal"):
            # A known matrix takes no sweep and is only written.
            alone = {"known": itemsize * sizes[stage] * sizes[stage + 1] / PRICES.bandwidth}
        directions.append(min(alone, key=lambda how: alone[how]))
        own[stage] = alone[directions[stage]]
    return PricedChain(linear, chain, sizes, costs, primitives, forward, reverse, own, directions, itemsize)


def _primitives(equations) -> dict[str, int]:
    """The number of occurrences of each primitive, in loops and branches too."""
    names: dict[str, int] = {}
    for equation in all_equations(equations):
        names[equation.primitive.name] = names.get(equation.primitive.name, 0) + 1
    return names
