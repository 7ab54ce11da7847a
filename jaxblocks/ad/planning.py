r"""The cheapest way to multiply the Jacobians of a chain of functions, found before anything is computed.

    J_l         the Jacobian of stage l, sizes[l] by sizes[l - 1]; the whole Jacobian is J_L ... J_2 J_1
    sizes       n = sizes[0] inputs, then the width of each cut, and m = sizes[L] outputs
    forward     sweep that pushes s columns through stages, as forward mode does with s = n
    reverse     sweep that pulls s rows through stages, as reverse mode does with s = m

A function is linearized at a point; its linear program is cut wherever few numbers are alive, the
stages between the cuts are priced, and dynamic programming finds the bracketing with the least price
(Naumann's generalized dense Jacobian chain problem). All of it reads shapes only.

**The price** is a time. An equation with s seeds takes ``max(s a, s b + c) + launch`` seconds: arithmetic
a = operations / rate, memory b = bytes of tangents / bandwidth and c = bytes of constants / bandwidth, and a
fixed time to start it. `PRICES` holds the constants. They were measured on one core (x86-64 with AVX-512, jax
0.10.1, float32, Eigen threads off, median process time of jitted calls, November 2026): products of matrices of
width 256 and above run at 200 GFlop/s and those of width 64 at 25 to 180; convolutions at 75 to 190, with one input
channel at 5 to 13; arrays in the cache move at 20 to 80 GB/s, arrays beyond it at 4 to 30; an operation starts in
about 5 microseconds; a matrix that is scaled and transposed at once moves at 1 to 4 GB/s. Other machines differ;
only the ratios of the constants move a plan.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var

from jaxblocks.ad.jaxprs import inputs_of, open_calls, piece
from jaxblocks.axes import axes_or_new

__all__ = [
    "PRICES",
    "Chain",
    "JacobianPlan",
    "Linear",
    "Part",
    "Prices",
    "Stage",
    "best_bracketing",
    "linearized",
    "make_plan",
    "written",
]


# ---- the bracketing: dynamic programming over sub-chains ------------------------------------


class Chain(NamedTuple):
    """What a chain of L stages costs: every price that `best_bracketing` adds up.

    Stages are counted from 0 here; cut c stands before stage c.

    Attributes:
        sizes: L + 1 widths, of the inputs, the cuts and the outputs.
        own: price of each stage's Jacobian by itself, (L,).
        forward: ``forward[l, c]``, price of pushing ``sizes[c]`` seeds through stage l, (L, L + 1).
        reverse: ``reverse[l, c]``, price of pulling ``sizes[c]`` seeds through stage l, (L, L + 1).
        product: ``product(m, k, n)``, price of a dense product of an m by k and a k by n matrix.
        switch: price of starting a sweep or a product from what another has left.
    """

    sizes: Sequence[int]
    own: np.ndarray
    forward: np.ndarray
    reverse: np.ndarray
    product: Callable[[Any, Any, Any], Any] = lambda m, k, n: m * k * n
    switch: float = 0.0


class Part(NamedTuple):
    """A node of a bracketing: the Jacobian of the stages ``first`` to ``last - 1``.

    Attributes:
        how: ``"own"`` (one stage, by itself), ``"forward"`` (``right`` pushed through the stages that follow it),
            ``"reverse"`` (``left`` pulled through those before it) or ``"product"`` (``left`` times ``right``).
        left: the part of the later stages, or ``None``.
        right: the part of the earlier stages, or ``None``.
    """

    how: str
    first: int
    last: int
    left: "Part | None" = None
    right: "Part | None" = None


def best_bracketing(chain: Chain) -> tuple[float, Part]:
    r"""The cheapest bracketing of a product of Jacobians and its price.

    .. math:: C(j, i) = \min_k \{ C(j, k) + C(k, i) + \text{product}(m_j, m_k, n_i),\;
              C(k, i) + \text{forward}(k \ldots j),\; C(j, k) + \text{reverse}(i \ldots k) \}

    Of equal prices the one with the longer sweep is taken.

    The published instance, three factors with (n, m) = (3, 3), (3, 1), (1, 2) and 29, 14 and 7 edges:

    >>> sizes, edges = np.array([3, 3, 1, 2]), np.array([29, 14, 7])
    >>> sweeps = edges[:, None] * sizes
    >>> chain = Chain(sizes, own=edges * np.minimum(sizes[:-1], sizes[1:]), forward=sweeps, reverse=sweeps)
    >>> price, part = best_bracketing(chain)
    >>> price, written(part)
    (56.0, 'J3 (J2 J1)')

    Source: Naumann, Matrix-free Jacobian chaining (arXiv 2406.11862), without its bound on the tape.
    """
    sizes = np.asarray(chain.sizes, float)
    n_stages = len(sizes) - 1
    passed, pulled = _sums(chain.forward), _sums(chain.reverse)
    price = np.full((n_stages + 1, n_stages + 1), np.inf)
    parts: dict[tuple[int, int], Part] = {}
    for stage in range(n_stages):
        price[stage, stage + 1] = chain.own[stage]
        parts[stage, stage + 1] = Part("own", stage, stage + 1)
    for length in range(2, n_stages + 1):
        for first in range(n_stages - length + 1):
            last = first + length
            ks = np.arange(first + 1, last)
            push = price[first, ks] + _between(passed, ks, last, first)
            pull = price[ks, last] + _between(pulled, first, ks, last)
            products = price[ks, last] + price[first, ks] + chain.product(sizes[last], sizes[ks], sizes[first])
            # In this order a tie goes to the longest sweep: k next to its beginning.
            options = [
                ("forward", ks, push),
                ("reverse", ks[::-1], pull[::-1]),
                ("product", ks, products + chain.switch),
            ]
            how, places, prices = min(options, key=lambda option: option[2].min())
            k = int(places[np.argmin(prices)])
            price[first, last] = prices.min()
            left = None if how == "forward" else parts[k, last]
            right = None if how == "reverse" else parts[first, k]
            parts[first, last] = Part(how, first, last, left, right)
    return float(price[0, n_stages]), parts[0, n_stages]


def _sums(prices):
    """Running sums over the stages of the possible prices, and of how many are impossible (infinite)."""
    impossible = np.isinf(prices)
    zero = np.zeros((1, prices.shape[1]))
    sums = np.concatenate([zero, np.cumsum(np.where(impossible, 0.0, prices), axis=0)])
    return sums, np.concatenate([zero, np.cumsum(impossible, axis=0)])


def _between(sums, first, last, cut):
    """The price of a sweep through the stages ``first`` to ``last - 1`` with the seeds of a cut."""
    possible, impossible = sums
    price = possible[last, cut] - possible[first, cut]
    return np.where(impossible[last, cut] > impossible[first, cut], np.inf, price)


def written(part: Part) -> str:
    """A bracketing as a product: the right factor is multiplied first inside each bracket.

    >>> j1, j2, j3 = (Part("own", i, i + 1) for i in range(3))
    >>> written(Part("product", 0, 3, j3, Part("forward", 0, 2, None, j1)))
    'J3 (J2 J1)'
    """
    return _bracketed(part) if part.how == "own" else _bracketed(part)[1:-1]


def _bracketed(part):
    if part.how == "own":
        return f"J{part.last}"
    if part.how == "product":
        return f"({_bracketed(part.left)} {_bracketed(part.right)})"
    if part.how == "forward":
        words = _bracketed(part.right)
        for stage in range(part.right.last, part.last):
            words = f"(J{stage + 1} {words})"
        return words
    words = _bracketed(part.left)
    for stage in reversed(range(part.first, part.left.first)):
        words = f"({words} J{stage + 1})"
    return words


# ---- the linear program ---------------------------------------------------------------------


class Linear(NamedTuple):
    """A function linearized at a point: equations between tangents, and what they read besides.

    Attributes:
        jaxpr: of the linear function, with its calls opened.
        constants: the value of each of its ``constvars``.
        before: the equations that make further constants, which no tangent enters.
        equations: those between tangents, without dead code.
        inputs, outputs: variables going in and coming out; an output that is no tangent is zero.
        tangents: every variable that depends on the inputs.
    """

    jaxpr: Jaxpr
    constants: Sequence[Any]
    before: list[JaxprEqn]
    equations: list[JaxprEqn]
    inputs: list[Var]
    outputs: list[Any]
    tangents: set[Var]

    def values(self) -> dict[Var, Any]:
        """The constants that the equations read, by variable; computed here, once."""
        values = dict(zip(self.jaxpr.constvars, self.constants, strict=True))
        if self.before:
            read = [v for v in inputs_of(self.equations) if v not in values and v not in self.tangents]
            inputs = inputs_of(self.before)
            made = piece(self.jaxpr, self.before, inputs, read)(*(values[v] for v in inputs))
            values |= dict(zip(read, made, strict=True))
        return values


def linearized(f: Callable, x: Sequence[Any]) -> tuple[list, Linear]:
    """The outputs of ``f(*x)``, a function of arrays that returns a list of arrays, and its linear program at ``x``.

    >>> [y], linear = linearized(lambda x: [jnp.sin(x) * 2], [jnp.zeros(3)])
    >>> [equation.primitive.name for equation in linear.equations]
    ['mul', 'mul']
    """
    y, push = jax.linearize(f, *x)
    closed = open_calls(jax.make_jaxpr(push)(*(jax.ShapeDtypeStruct(jnp.shape(leaf), leaf.dtype) for leaf in x)))
    jaxpr = closed.jaxpr
    tangents = set(jaxpr.invars)
    for equation in jaxpr.eqns:
        if any(not isinstance(v, Literal) and v in tangents for v in equation.invars):
            tangents |= set(equation.outvars)
    needed = {v for v in jaxpr.outvars if not isinstance(v, Literal)}
    before: list[JaxprEqn] = []
    equations: list[JaxprEqn] = []
    for equation in reversed(jaxpr.eqns):
        if any(v in needed for v in equation.outvars):
            needed |= {v for v in equation.invars if not isinstance(v, Literal)}
            (equations if any(v in tangents for v in equation.outvars) else before).append(equation)
    return y, Linear(
        jaxpr, closed.consts, before[::-1], equations[::-1], list(jaxpr.invars), list(jaxpr.outvars), tangents
    )


# ---- the price of an equation ---------------------------------------------------------------


class Prices(NamedTuple):
    """Constants of the price of an equation; the head of this file says how they were found.

    Attributes:
        dot, conv, other: operations a second.
        bandwidth: bytes a second.
        turn: bytes a second of a matrix that is transposed while it is scaled, as jax.jacfwd ends.
        launch: seconds to start an operation.
        loop_conv: how many times slower the reverse sweep of a convolution is inside a loop (jax-ml/jax#12868).
        switch: seconds to go from one sweep to the next.
    """

    dot: float = 180e9
    conv: float = 60e9
    other: float = 20e9
    bandwidth: float = 15e9
    turn: float = 1.5e9
    launch: float = 3e-6
    loop_conv: float = 11.0
    switch: float = 10e-6


PRICES = Prices()


class _Work(NamedTuple):
    """What one equation does for each seed."""

    kind: str  # "dot", "conv" or "other"
    operations: int
    moved: int  # bytes of tangents
    fixed: int = 0  # bytes of constants, read once for all seeds
    times: int = 1
    in_loop: bool = False


_LINEAR_BY_ELEMENT = frozenset("mul div neg add_any add sub select_n convert_element_type copy copy_p real".split())
_ORDER_KEPT = frozenset("reshape squeeze expand_dims broadcast_in_dim".split())
_MOVES = _ORDER_KEPT | frozenset(
    "transpose slice pad gather concatenate rev dynamic_slice convert_element_type".split()
)
_FORWARD_ONLY = frozenset(["while"])
_REVERSE_ONLY = frozenset(["custom_lin"])


def _size(v) -> int:
    return math.prod(getattr(v.aval, "shape", ()))


def _bytes(v) -> int:
    dtype = getattr(v.aval, "dtype", None)
    return _size(v) * getattr(dtype, "itemsize", 4)


def _is_in(v, tangents) -> bool:
    return not isinstance(v, Literal) and v in tangents


def _works(equations, tangents) -> list[_Work]:
    """One row for each equation with a tangent in it, those in the bodies of loops and branches included."""
    rows: list[_Work] = []
    for equation in equations:
        ins = [_is_in(v, tangents) for v in equation.invars]
        if not any(ins):
            continue
        name, params = equation.primitive.name, equation.params
        [lhs, *others], out = equation.invars, equation.outvars[0]
        made = sum(_bytes(v) for v in equation.outvars if _is_in(v, tangents))
        read = sum(_bytes(v) for v, tangent in zip(equation.invars, ins, strict=True) if tangent)
        fixed = sum(_bytes(v) for v, tangent in zip(equation.invars, ins, strict=True) if not tangent)
        bodies = [b for b in params.values() if hasattr(getattr(b, "jaxpr", b), "eqns")]
        if name == "scan":
            length = params["length"]
            rows += [work._replace(times=work.times * length, in_loop=True) for work in _inside(params["jaxpr"], ins)]
        elif name == "while":
            body = _inside(params["body_jaxpr"], ins[params["cond_nconsts"] :])
            rows += [work._replace(in_loop=True) for work in body]
        elif name == "cond":
            branches = [_inside(branch, ins[1:]) for branch in params["branches"]]
            rows += max(branches, key=lambda works: sum(work.operations * work.times for work in works))
        elif name == "dot_general":
            (contracted, _), _ = params["dimension_numbers"]
            deep = math.prod(lhs.aval.shape[axis] for axis in contracted)
            rows.append(_Work("dot", 2 * deep * _size(out), made + read, fixed))
        elif name == "conv_general_dilated":
            kernel = others[0].aval.shape
            taps = math.prod(kernel) // max(kernel[params["dimension_numbers"].rhs_spec[0]], 1)
            taps /= math.prod(params["lhs_dilation"])  # the holes are not computed
            rows.append(_Work("conv", int(2 * taps * _size(out)), made + read, fixed))
        elif len(bodies) == 1 and len(getattr(bodies[0], "jaxpr", bodies[0]).invars) == len(ins):
            rows += _inside(bodies[0], ins)
        else:
            operations = sum(map(_size, equation.outvars))
            if name.startswith(("reduce", "cum", "scatter")):
                operations = max(_size(v) for v in (*equation.outvars, *equation.invars))
            rows.append(_Work("other", 0 if name in _MOVES else operations, made))
    return rows


def _inside(body, ins) -> list[_Work]:
    jaxpr = getattr(body, "jaxpr", body)
    tangents = {v for v, tangent in zip(jaxpr.invars, ins, strict=True) if tangent}
    for equation in jaxpr.eqns:
        if any(_is_in(v, tangents) for v in equation.invars):
            tangents |= set(equation.outvars)
    return _works(jaxpr.eqns, tangents)


class _Cost(NamedTuple):
    """Operations of some equations for one seed, and their time as a function of the seeds."""

    operations: int
    seconds: Callable[..., float]  # of (seeds, reverse=False)


def _cost(works: list[_Work], prices: Prices) -> _Cost:
    times = np.array([work.times for work in works], float)
    arithmetic = np.array([work.operations / getattr(prices, work.kind) for work in works], float)
    moved = np.array([work.moved / prices.bandwidth for work in works], float)
    fixed = np.array([work.fixed / prices.bandwidth for work in works], float)
    slow = np.array([prices.loop_conv if work.kind == "conv" and work.in_loop else 1.0 for work in works], float)
    # What works element by element is fused with its neighbors: it does not start by itself, but in a loop.
    launch = prices.launch * np.array([work.kind != "other" or work.in_loop for work in works], float)

    def seconds(seeds, reverse=False):
        worked = seeds * arithmetic * (slow if reverse else 1.0)
        return float(np.sum(times * (np.maximum(worked, seeds * moved + fixed) + launch)))

    return _Cost(sum(work.operations * work.times for work in works), seconds)


# ---- cuts and stages ------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Stage:
    """One link of the chain: the linear map between two cuts.

    Attributes:
        name: ``"J1"`` is the first.
        kind: ``"dense"`` (its matrix is known, but for factors along its rows and columns), ``"diagonal"``, or
            ``"matrix-free"`` (only its products with vectors are known).
        n_in, n_out: numbers that go in and come out.
        operations: of one sweep through it with one seed.
        made_of: the primitives in it, and how often each comes.

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


class Link(NamedTuple):
    """A stage with its equations: what the sweeps run."""

    kind: str
    equations: list[JaxprEqn]
    inputs: list[Var]
    outputs: list[Any]
    dense: int = -1  # the place among the equations of the one whose matrix is known


def known_matrix(equation: JaxprEqn, tangents: set[Var]) -> bool:
    """Whether an equation multiplies a whole vector by a constant matrix."""
    if equation.primitive.name != "dot_general":
        return False
    (left, right), (batch, _) = equation.params["dimension_numbers"]
    lhs, rhs = equation.invars
    if batch or _is_in(lhs, tangents) == _is_in(rhs, tangents):
        return False
    tangent, axes = (lhs, left) if _is_in(lhs, tangents) else (rhs, right)
    return math.prod(tangent.aval.shape[axis] for axis in axes) == _size(tangent)


def _by_element(equation, tangents) -> bool:
    """Whether element i of what an equation makes depends on element i of the tangents it reads, and on no other."""
    name = equation.primitive.name
    [out] = equation.outvars if len(equation.outvars) == 1 else [None]
    if out is None or name not in _LINEAR_BY_ELEMENT | _ORDER_KEPT:
        return False
    read = [v for v in equation.invars if _is_in(v, tangents)]
    if any(_size(v) != _size(out) for v in read):
        return False
    if name == "broadcast_in_dim":  # ones may be added, and axes keep their order
        return True
    if name == "reshape":
        return equation.params.get("dimensions") is None
    return name in _ORDER_KEPT or all(v.aval.shape == out.aval.shape for v in read)


def _cuts(linear: Linear, narrow: int) -> list[tuple[int, list[Var]]]:
    """The places between equations where one tangent alone is alive, or several that are together narrow."""
    equations, end = linear.equations, len(linear.equations)
    dies: dict[Var, int] = {}
    for place, equation in enumerate(equations):
        for v in equation.invars:
            if _is_in(v, linear.tangents):
                dies[v] = place
    for v in linear.outputs:
        if _is_in(v, linear.tangents):
            dies[v] = end
    alive = [v for v in linear.inputs if v in dies]
    places = []
    for place in range(1, end):
        alive = [v for v in [*alive, *equations[place - 1].outvars] if dies.get(v, -1) >= place]
        width = sum(map(_size, alive))
        dtypes = {v.aval.dtype for v in alive}
        if len(dtypes) != 1 or not all(jnp.issubdtype(dtype, jnp.floating) for dtype in dtypes):
            continue  # complex tangents are linear in pairs of real numbers only
        if len(alive) == 1 or width <= narrow:
            places.append((place, alive, width))
    # Of neighbors with several alive only the narrowest is of use.
    kept = []
    for i, (place, alive, width) in enumerate(places):
        around = [w for p, _, w in places[max(i - 1, 0) : i + 2] if abs(p - place) == 1]
        first_of_plateau = not (i and places[i - 1][0] == place - 1 and places[i - 1][2] == width)
        if len(alive) == 1 or (width <= min(around, default=width) and first_of_plateau):
            kept.append((place, alive))
    return kept


def links(linear: Linear, most: int = 40) -> list[Link]:
    """The chain of stages; neighbors that no bracketing could use apart are one."""
    tangents = linear.tangents
    n, m = (sum(map(_size, cut)) for cut in (linear.inputs, linear.outputs))
    cuts = _cuts(linear, min(n, m) // 2)
    begins = [(0, linear.inputs), *cuts, (len(linear.equations), linear.outputs)]
    chain: list[Link] = []
    for (start, inputs), (stop, outputs) in itertools.pairwise(begins):
        equations = linear.equations[start:stop]
        single = len(inputs) == len(outputs) == 1 and _is_in(outputs[0], tangents)
        if single and len(equations) == 1 and known_matrix(equations[0], tangents):
            chain.append(Link("dense", equations, inputs, outputs, 0))
        elif single and equations and all(_by_element(equation, tangents) for equation in equations):
            chain.append(Link("diagonal", equations, inputs, outputs))
        else:
            chain.append(Link("matrix-free", equations, inputs, outputs))
    chain = _merged(chain)
    while len(chain) > most:  # the widest cut goes first
        widths = [sum(map(_size, link.outputs)) for link in chain[:-1]]
        at = int(np.argmax(widths))
        chain[at : at + 2] = [_joined(chain[at], chain[at + 1])]
    return chain


def _joined(left: Link, right: Link) -> Link:
    equations = [*left.equations, *right.equations]
    kinds = {left.kind, right.kind}
    if kinds == {"diagonal"}:
        return Link("diagonal", equations, left.inputs, right.outputs)
    if kinds == {"diagonal", "dense"}:
        dense = left.dense if left.kind == "dense" else len(left.equations) + right.dense
        return Link("dense", equations, left.inputs, right.outputs, dense)
    return Link("matrix-free", equations, left.inputs, right.outputs)


def _merged(chain: list[Link]) -> list[Link]:
    """Diagonal stages join a neighbor, a dense one first; so do matrix-free ones, but at a narrow place."""
    merged: list[Link] = []
    for link in chain:
        if merged and link.kind == "diagonal" and merged[-1].kind in ("diagonal", "dense"):
            merged[-1] = _joined(merged[-1], link)
        else:
            merged.append(link)
    chain, merged = merged, []
    for link in chain:
        if merged and merged[-1].kind == "diagonal":  # before it stands nothing or a matrix-free stage
            if link.kind == "dense" or len(merged) == 1:
                merged[-1] = _joined(merged[-1], link)
                continue
            diagonal = merged.pop()
            merged[-1] = _joined(merged[-1], diagonal)
        merged.append(link)
    if len(merged) > 1 and merged[-1].kind == "diagonal":
        merged[-2:] = [_joined(*merged[-2:])]
    at = 0
    while at + 1 < len(merged):
        left, right = merged[at], merged[at + 1]
        before, width, after = (sum(map(_size, cut)) for cut in (left.inputs, left.outputs, right.outputs))
        useless = width >= before or width >= after
        if left.kind == right.kind == "matrix-free" and useless:
            merged[at : at + 2] = [_joined(left, right)]
            at = max(at - 1, 0)
        else:
            at += 1
    return merged


# ---- the plan -------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, repr=False)
class JacobianPlan:
    """How a Jacobian is going to be computed, and why: `explain` says it in words.

    Attributes:
        mode: ``"forward"`` (``jax.jacfwd``), ``"reverse"`` (``jax.jacrev``), ``"mixed"`` (the bracketing), or
            ``"known"``, where the chain is one stage whose matrix is written down and nothing is swept.
        n_in, n_out: numbers in the point and in the value: the Jacobian is ``n_out`` by ``n_in``.
        stages: the chain, from the inputs to the outputs.
        bracketing: the cheapest that was found, as in ``"(J4 (J3 J2)) J1"``; run where ``mode`` is ``"mixed"``.
        operations: multiplications and additions of ``"forward"``, ``"reverse"`` and ``"chosen"``; ``None`` where
            a mode cannot be had (a custom vjp rule, a while loop). What is written down counts by its scaling.
        seconds: their predicted times, with that of the function itself in each. Ratios are what to read off.
        sweeps: what is run, step by step, in words.
        chunk_size: seeds that one batch holds at most, ``None`` where every sweep is one batch.
        temporary_bytes: predicted, at the peak, beside the function's own.
        reason: why this mode, in a sentence.

    >>> from jaxblocks.ad.jacobians import jacobian_plan
    >>> plan = jacobian_plan(lambda x: jnp.ones((4, 900)).T @ (jnp.ones((4, 900)) @ x), jnp.ones(900))
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
    chunk_size: int | None
    temporary_bytes: int
    reason: str

    @property
    def gain(self) -> float:
        """Predicted time of the better of forward and reverse over that of what is chosen.

        >>> from jaxblocks.ad.jacobians import jacobian_plan
        >>> jacobian_plan(jnp.sum, jnp.ones(3)).gain
        1.0
        """
        return min(self.seconds["forward"], self.seconds["reverse"]) / self.seconds["chosen"]

    def explain(self) -> str:
        """The stages, the bracketing, the operations of forward, reverse and chosen, and the reason.

        >>> from jaxblocks.ad.jacobians import jacobian_plan
        >>> print(jacobian_plan(jnp.sum, jnp.ones(3)).explain().splitlines()[0])
        Jacobian, 1 by 3: reverse mode (jax.jacrev), for the chain cannot be cut at a narrow place and forward mode is \
not cheaper.
        """
        chunk = (
            "all seeds of a sweep at once" if self.chunk_size is None else f"at most {self.chunk_size} seeds at once"
        )
        if not any(" seeds" in sweep or " through " in sweep for sweep in self.sweeps):
            chunk = "none, for no seeds are swept"
        lines = [
            f"Jacobian, {self.n_out} by {self.n_in}: {self.reason}",
            *(f"  {stage!r}" for stage in self.stages),
            *([f"  bracketing: {self.bracketing}"] if len(self.stages) > 1 else []),
            *(f"  {i}. {sweep}" for i, sweep in enumerate(self.sweeps, 1)),
            f"  batches: {chunk}, about {self.temporary_bytes:,} bytes of temporaries",
            *(
                f"  {name + ':':9s}{_number(self.operations[name])} operations, "
                f"predicted time {self.seconds[name] / self.seconds['chosen']:.3g}"
                for name in ("forward", "reverse", "chosen")
            ),
        ]
        return "\n".join(lines)

    def plot(self, ax=None):
        """Bars of forward, reverse and chosen: operations and predicted time over those of chosen; returns the axes.

        >>> import pytest
        >>> matplotlib = pytest.importorskip("matplotlib")
        >>> matplotlib.use("agg")
        >>> from jaxblocks.ad.jacobians import jacobian_plan
        >>> jacobian_plan(jnp.sum, jnp.ones(3)).plot().get_ylabel()
        'cost / cost of what is chosen'
        """
        ax = axes_or_new(ax)
        for i, (label, costs) in enumerate({"operations": self.operations, "predicted time": self.seconds}.items()):
            names = [name for name in costs if costs[name] is not None and math.isfinite(costs[name])]
            heights = [costs[name] / max(costs["chosen"], 1e-12) for name in names]
            ax.bar([list(costs).index(name) + 0.4 * i - 0.2 for name in names], heights, 0.4, label=label)
        ax.set_xticks(range(3), list(self.operations))
        ax.set_ylabel("cost / cost of what is chosen")
        ax.set_yscale("log")
        ax.legend()
        return ax

    __repr__ = explain

    def _repr_html_(self) -> str:
        return f"<pre>{self.explain()}</pre>"


def _number(operations) -> str:
    return "no" if operations is None else f"{int(operations):,}"


class Route(NamedTuple):
    """A plan with what it takes to run it."""

    plan: JacobianPlan
    links: list[Link]
    part: Part
    directions: list[str]  # of each stage by itself: "known", "forward" or "reverse"
    chunk: Callable[[int, Sequence[JaxprEqn]], int | None]  # of a sweep, from its seeds and equations
    unroll: bool


# A bracketing that is predicted to gain less than this is left for jax.jacfwd or jax.jacrev.
LEAST_GAIN = 1.15

# Bytes of temporaries that chunk_size="auto" allows, or twice the size of the Jacobian where that is more.
AUTO_MEMORY = 2**28


def make_plan(
    linear: Linear,
    *,
    mode: str = "auto",
    chunk_size: int | str | None = "auto",
    memory: int | float | None = None,
    prices: Prices = PRICES,
) -> Route:
    """The plan for a linear program, see `jaxblocks.ad.jacobian` for the options."""
    chain = links(linear)
    sizes = [sum(map(_size, link.inputs)) for link in chain] + [sum(map(_size, chain[-1].outputs))]
    n, m, cuts = sizes[0], sizes[-1], range(len(sizes))
    costs = [_cost(_works(link.equations, linear.tangents), prices) for link in chain]
    names = [_primitives(link.equations) for link in chain]
    forward = np.array([[cost.seconds(sizes[c]) for c in cuts] for cost in costs])
    reverse = np.array([[cost.seconds(sizes[c], reverse=True) for c in cuts] for cost in costs])
    for stage, primitives in enumerate(names):
        forward[stage] += np.inf if _REVERSE_ONLY & set(primitives) else 0.0
        reverse[stage] += np.inf if _FORWARD_ONLY & set(primitives) else 0.0
    item = max((v.aval.dtype.itemsize for v in linear.inputs), default=4)
    own, directions = np.zeros(len(chain)), []
    for stage, link in enumerate(chain):
        n_in, n_out = sizes[stage], sizes[stage + 1]
        alone = {"forward": forward[stage, stage], "reverse": reverse[stage, stage + 1]}
        if link.kind != "matrix-free":
            alone = {"known": item * n_in * n_out / prices.bandwidth}
        directions.append(min(alone, key=alone.get))
        own[stage] = alone[directions[stage]]

    def product(m, k, n):
        arithmetic, memory = 2.0 * m * k * n / prices.dot, item * (m * k + k * n + m * n) / prices.bandwidth
        return np.maximum(arithmetic, memory) + prices.launch

    # The result is wanted by rows, which costs forward mode a turn, and is slow where it is scaled as well. It decides
    # between sweeps that cost the same otherwise; no gain is claimed for it.
    turn = item * n * m / prices.turn if min(n, m) >= 64 else 0.0
    swept = forward.copy()
    swept[-1, 0] += 0.0 if chain[-1].kind == "dense" else turn
    _, part = best_bracketing(Chain(sizes, own, swept, reverse, product, prices.switch))
    once = 2 * prices.switch + sum(cost.seconds(1) for cost in costs)  # the function itself, in all three alike
    seconds = {"forward": forward[:, 0].sum(), "reverse": reverse[:, -1].sum()}
    operations = {
        "forward": n * sum(cost.operations for cost in costs) if np.isfinite(seconds["forward"]) else None,
        "reverse": m * sum(cost.operations for cost in costs) if np.isfinite(seconds["reverse"]) else None,
    }
    seconds["mixed"] = _total(part, sizes, own, forward, reverse, product)
    if not any(map(np.isfinite, seconds.values())):
        raise TypeError(
            "jacobian can differentiate f in neither mode: a while loop forbids reverse mode and a custom_vjp forward "
            "mode; give the loop a fixed length (fori_loop with static bounds, or scan), or write the rule as a "
            "jax.custom_jvp."
        )
    seconds = {name: float(once + value) for name, value in seconds.items()}
    stock, other = ("reverse", "forward") if seconds["reverse"] <= seconds["forward"] + turn else ("forward", "reverse")
    gain = min(seconds["forward"], seconds["reverse"]) / seconds["mixed"]
    alike = len({v.aval.dtype for v in (*linear.inputs, *linear.outputs)}) == 1 and n and m
    pays = alike and (gain >= LEAST_GAIN or not np.isfinite(seconds[stock]))

    factors = 0  # of a matrix that is written down and is all that is wanted
    if part.how == "own" and chain[0].kind == "dense":
        before, after = _around(chain[0])
        factors = _COPIES * item * (bool(before) * n + bool(after) * m)

    # What to run, in the order of preference: (mode, sweeps, bytes held between them).
    everything = [equation for link in chain for equation in link.equations]
    ways = {
        "mixed": (_sweeps(part, sizes, directions, chain), _held(part, sizes, item) + factors),
        "forward": ([(n, everything, f"{n} columns pushed through the whole function")], 0),
        "reverse": ([(m, everything, f"{m} rows pulled through the whole function")], 0),
    }
    possible = ["mixed"] * bool(pays) + [stock] + [other] * bool(np.isfinite(seconds[other]))
    memory = None if memory is None else int(memory)
    bound = memory
    if memory is None and chunk_size == "auto":
        bound = max(AUTO_MEMORY, 2 * item * n * m)
    unroll = jax.default_backend() == "cpu" and any("conv_general_dilated" in primitives for primitives in names)
    least = {}
    for name in possible if mode == "auto" else [mode]:
        sweeps, held = ways[name]
        peaks = [_peak(equations, linear.tangents) for _, equations, _ in sweeps]
        if (
            unroll
            and bound is not None
            and any(held + s * p > bound for (s, _, _), p in zip(sweeps, peaks, strict=True))
        ):
            held += (
                _COPIES * item * n * m
            )  # batches written one after the other need a place of their own for the result
        least[name] = held + max(peaks, default=0)
        if memory is None or least[name] <= memory:
            chosen = name
            break
    else:
        needed = min(least.values())
        raise ValueError(
            f"jacobian cannot do with memory={memory} bytes: batches of one seed need {needed} beside the function's "
            f"own; pass memory={needed} or more."
        )

    def chunk(seeds, equations):
        size = chunk_size if isinstance(chunk_size, int) else seeds
        if bound is not None:
            size = min(size, max(1, (bound - held) // max(1, _peak(equations, linear.tangents))))
        return None if size >= seeds else size

    chunks = [chunk(seeds, equations) for seeds, equations, _ in sweeps]
    batches = [
        min(size or seeds, seeds) * peak for (seeds, _, _), size, peak in zip(sweeps, chunks, peaks, strict=True)
    ]
    if chosen == "mixed":
        operations["mixed"] = _operations(part, sizes, directions, chain, costs, linear.tangents, chunk)
    known = chosen == "mixed" and part.how == "own" and directions[part.first] == "known"
    call = {"forward": "jax.jacfwd", "reverse": "jax.jacrev"}
    if mode != "auto":
        reason = f"{mode} mode ({call[mode]}), as asked for."
    elif known:
        reason = f"J1 is written down, which is predicted to be {gain:.3g} times faster than {stock} mode."
    elif chosen == "mixed":
        reason = f"the bracketing below is predicted to be {gain:.3g} times faster than {stock} mode."
    elif pays:
        reason = f"{chosen} mode ({call[chosen]}), for the bracketing would need {least['mixed']} bytes."
    else:
        why = "no bracketing of the chain pays" if len(chain) > 1 else "the chain cannot be cut at a narrow place"
        reason = f"{chosen} mode ({call[chosen]}), for {why} and {other} mode is not cheaper."
    stages = tuple(
        Stage(f"J{i + 1}", link.kind, sizes[i], sizes[i + 1], cost.operations, _summary(primitives))
        for i, (link, cost, primitives) in enumerate(zip(chain, costs, names, strict=True))
    )
    plan = JacobianPlan(
        mode="known" if known else chosen,
        n_in=n,
        n_out=m,
        stages=stages,
        bracketing=written(part),
        operations={"forward": operations["forward"], "reverse": operations["reverse"], "chosen": operations[chosen]},
        seconds={"forward": seconds["forward"], "reverse": seconds["reverse"], "chosen": seconds[chosen]},
        sweeps=tuple(words for _, _, words in sweeps),
        chunk_size=max((size for size in chunks if size), default=None),
        temporary_bytes=held + max(batches, default=0),
        reason=reason,
    )
    return Route(plan, chain, part, directions, chunk, unroll)


def _total(part, sizes, own, forward, reverse, product) -> float:
    """Seconds of a bracketing."""

    def seconds(part):
        if part.how == "own":
            return own[part.first]
        if part.how == "product":
            m, k, n = sizes[part.last], sizes[part.left.first], sizes[part.first]
            return seconds(part.left) + seconds(part.right) + float(product(m, k, n))
        child = part.right if part.how == "forward" else part.left
        table, cut = (forward, part.first) if part.how == "forward" else (reverse, part.last)
        stages = range(child.last, part.last) if part.how == "forward" else range(part.first, child.first)
        return seconds(child) + sum(table[stage, cut] for stage in stages)

    return seconds(part)


def _around(link: Link) -> tuple[list[JaxprEqn], list[JaxprEqn]]:
    """Of a dense stage: the equations before its matrix, which scale the columns, and those after it: the rows."""
    return link.equations[: link.dense], link.equations[link.dense + 1 :]


def _diagonal_made(equations, tangents) -> int:
    """Operations that make the diagonal of some equations out of ones; to multiply ones is nothing."""
    first = next((equation for equation in equations if equation.primitive.name not in _MOVES), None)
    spared = _size(first.outvars[0]) if first is not None and first.primitive.name == "mul" else 0
    return sum(work.operations * work.times for work in _works(equations, tangents)) - spared


class _Made(NamedTuple):
    """A Jacobian between two cuts while it is counted: what it took, how it lies, and which factors still wait."""

    operations: int
    by: str
    left: bool = False
    right: bool = False


def _operations(part, sizes, directions, chain, costs, tangents, chunk) -> int:
    """Multiplications and additions of a bracketing as `jaxblocks.ad.jacobian` runs it, scalings included."""

    def own(stage):
        link, how = chain[stage], directions[stage]
        if how != "known":
            seeds = sizes[stage] if how == "forward" else sizes[stage + 1]
            return _Made(seeds * costs[stage].operations, "columns" if how == "forward" else "rows")
        if link.kind == "diagonal":
            return _Made(_diagonal_made(link.equations, tangents), "rows")
        before, after = _around(link)
        made = _diagonal_made(before, tangents) + _diagonal_made(after, tangents)
        return _Made(made, _layout(link.equations[link.dense], tangents), bool(after), bool(before))

    def swept(stages, seeds, folds, waits, top):
        """Through known stages as matrices and diagonals; a diagonal is worked into its matrix where that is less."""
        total = 0
        for stage in stages:
            link, n, m = chain[stage], sizes[stage], sizes[stage + 1]
            next_to_seeds = waits and stage == (stages[0] if top is not None else stages[-1])
            if link.kind == "matrix-free":
                total += seeds * costs[stage].operations + next_to_seeds * seeds * (n if top is not None else m)
            elif link.kind == "diagonal":
                total += _diagonal_made(link.equations, tangents) + (1 + next_to_seeds) * seeds * n
            else:
                before, after = _around(link)
                total += seeds * 2 * n * m + _diagonal_made(before, tangents) + _diagonal_made(after, tangents)
                columns = bool(before) + (next_to_seeds and top is not None)
                rows = bool(after) + (next_to_seeds and top is None)
                late = 16 if top and stage == stages[-1] else 1  # a matrix that is turned is not scaled as well
                total += columns * n * (m if folds and m <= seeds else seeds)
                total += rows * m * (n if folds and n <= late * seeds else seeds)
        return total

    def made(part, top=False):
        if part.how == "own":
            return own(part.first)
        m, n = sizes[part.last], sizes[part.first]
        if part.how == "product":
            k = sizes[part.left.first]
            left, right = made(part.left), made(part.right)
            turned = top and left.by == right.by == "columns"
            total = left.operations + right.operations + 2 * m * k * n
            total += k * (left.right and right.left)  # the factors in the middle are one
            if left.right or right.left:
                total += k * n if turned or n <= m else m * k
            early = left.left and (not turned or 16 * k < n)
            total += early * m * k + right.right * k * n
            by = (
                "columns"
                if ("rows" if turned else left.by) == "columns" and (right.by == "columns" or n < m)
                else "rows"
            )
            return _Made(total, by, left.left and not early)
        child = part
        while child.how == part.how:
            child = child.right if part.how == "forward" else child.left
        pushes, seeds = part.how == "forward", n if part.how == "forward" else m
        held = made(child)
        if child.how == "own" and directions[child.first] == part.how:
            held = _Made(held.operations, held.by)
        stages = range(child.last, part.last) if pushes else range(part.first, child.first)
        batched = chunk(seeds, [equation for stage in stages for equation in chain[stage].equations]) is not None
        size = sizes[child.first] * sizes[child.last]
        at_once = held.right if pushes else held.left and held.by == "rows"
        total = held.operations + at_once * size
        total += swept(stages, seeds, not batched, held.left if pushes else held.right, top if pushes else None)
        return _Made(total, "columns" if pushes else "rows", not pushes and held.left and not at_once)

    whole = made(part, top=True)
    return int(whole.operations + (whole.left + whole.right) * sizes[0] * sizes[-1])


def _layout(equation, tangents) -> str:
    """Whether a known matrix lies by ``"rows"`` (the free axes first) or by ``"columns"``."""
    (left, right), _ = equation.params["dimension_numbers"]
    lhs, rhs = equation.invars
    pairs, weight = (
        (zip(left, right, strict=True), rhs) if _is_in(lhs, tangents) else (zip(right, left, strict=True), lhs)
    )
    order = [w for _, w in sorted(pairs)]
    free = [axis for axis in range(len(weight.aval.shape)) if axis not in order]
    return "rows" if free and [*free, *order] == list(range(len(weight.aval.shape))) else "columns"


def _written_down(stage: int, link: Link) -> str:
    """How a known Jacobian comes about, in words."""
    if link.kind == "diagonal":
        return f"J{stage + 1} is written down: a diagonal matrix"
    before, after = _around(link)
    scaled = " and ".join(["row by row"] * bool(after) + ["column by column"] * bool(before))
    return f"J{stage + 1} is written down: its matrix" + f", scaled {scaled}" * bool(scaled)


def _sweeps(part, sizes, directions, chain) -> list[tuple[int, list[JaxprEqn], str]]:
    """Every sweep and product of a bracketing in the order of running: seeds, equations, words."""
    if part.how == "own":
        stage, link = part.first, chain[part.first]
        how = directions[stage]
        if how == "known":
            return [(0, [], _written_down(stage, link))]
        seeds = sizes[stage] if how == "forward" else sizes[stage + 1]
        return [(seeds, link.equations, f"J{stage + 1} by {how} mode with {seeds} seeds")]
    if part.how == "product":
        m, k, n = sizes[part.last], sizes[part.left.first], sizes[part.first]
        right, left = (_sweeps(p, sizes, directions, chain) for p in (part.right, part.left))
        return [*right, *left, (0, [], f"product of a {m} by {k} and a {k} by {n} matrix")]
    if part.how == "forward":
        child, seeds, stages = part.right, sizes[part.first], range(part.right.last, part.last)
        words = f"{seeds} columns pushed through {', '.join(f'J{stage + 1}' for stage in stages)}"
    else:
        child, seeds, stages = part.left, sizes[part.last], range(part.first, part.left.first)
        words = f"{seeds} rows pulled through {', '.join(f'J{stage + 1}' for stage in reversed(stages))}"
    equations = [equation for stage in stages for equation in chain[stage].equations]
    return [*_sweeps(child, sizes, directions, chain), (seeds, equations, words)]


# What the compiler lays beside the arrays that are known: up to twice their size (attention, jax 0.12).
_COPIES = 2


def _held(part, sizes, item) -> int:
    """Bytes of the Jacobians that stand between the sweeps, copies of the compiler included."""
    if part.how == "own":
        return 0
    inner = [p for p in (part.left, part.right) if p is not None]
    own = sum(item * sizes[p.first] * sizes[p.last] for p in inner)
    return _COPIES * own + sum(_held(p, sizes, item) for p in inner)


def _peak(equations, tangents) -> int:
    """Bytes of tangents that one seed keeps alive at most, copies of the compiler included.

    What a loop reads and makes lies there twice.
    """
    dies = {v: place for place, equation in enumerate(equations) for v in equation.invars if _is_in(v, tangents)}
    alive = {v for v in inputs_of(equations) if v in dies}
    most = 0
    for place, equation in enumerate(equations):
        alive |= set(equation.outvars)
        twice = [*equation.outvars, *equation.invars] if equation.primitive.name in ("scan", "while") else []
        most = max(most, sum(map(_bytes, alive)) + sum(_bytes(v) for v in twice if _is_in(v, tangents)))
        alive = {v for v in alive if dies.get(v, -1 if v in dies else len(equations)) > place}
    return _COPIES * most


def _primitives(equations) -> dict[str, int]:
    """Names of the primitives, and how often each is written, in loops and branches too."""
    names: dict[str, int] = {}
    for equation in equations:
        names[equation.primitive.name] = names.get(equation.primitive.name, 0) + 1
        for value in equation.params.values():
            for item in value if isinstance(value, tuple | list) else (value,):
                body = getattr(item, "jaxpr", item)
                if hasattr(body, "eqns"):
                    for name, times in _primitives(body.eqns).items():
                        names[name] = names.get(name, 0) + times
    return names


def _summary(names: dict[str, int]) -> str:
    return ", ".join(name if times == 1 else f"{times} {name}" for name, times in names.items()) or "nothing"
