"""Operation counts of a function from its jaxpr: nothing is compiled or executed.

JAX traces every function, differentiated or not, to a jaxpr: a list of equations between arrays of static shapes. The
count removes dead code, enters nested jaxprs, multiplies the body of a scan by its length, and adds up:

* *multiplications*: products, divisions and squares;
* *additions*: sums and differences, and other operations of an adder: negations, absolute values, signs, roundings,
  maxima, minima and comparisons;
* *transcendentals*: exp, log, tanh, sqrt, erf, powers with a real exponent, ...: one each;
* *bytes*: the sizes of the operands and results of every equation. Compilers fuse equations, so this is an upper
  bound of the memory traffic.

The conventions:

* A product of matrices (m, k) and (k, n) has m n k multiplications and m n k additions, 2 m n k in total. Each output
  element of a convolution has one of each for every tap and input channel of its group, where the tap reads an input:
  neither padding nor the holes of a dilated input (``lhs_dilation``, the transposed convolution) are counted. So does
  XLA. Papers count padding, and one number for a product and its addition: ``macs``.
* A depthwise convolution, which runs on CPU as a sum of shifted products, counts as a convolution on every
  backend; only its bytes differ.
* The sum (maximum, ...) of n numbers has n - 1 additions, and so has their cumulative sum. A window that extends past
  the border is counted in full.
* An integer power counts the multiplications of repeated squaring. A complex product (or quotient) counts 4
  multiplications and 2 additions, a complex sum 2 additions.
* Sorting n numbers counts n ceil(log2 n) comparisons, an estimate. Triangular solves, lu and Cholesky factors are
  counted by their textbook loops; qr, svd, eigenvalues and the Schur form by the leading terms of the algorithms in
  Golub & Van Loan 2013, Matrix Computations (with eigenvectors, which JAX always computes for symmetric matrices; the
  iterations are estimates). XLA does not count them on CPU, where they are calls of LAPACK.
* A Fourier transform of N complex numbers counts 5 N log2 N operations, half of that where one side is real (Van Loan
  1992, Computational Frameworks for the Fast Fourier Transform). XLA counts 8 N log2 N for both.
* A product with a sparse matrix (``jax.experimental.sparse``) counts two operations for each stored number and column.
* A ``pallas_call`` counts its body times the size of its grid.
* Primitives that move, select, compare or convert without floating-point arithmetic count only bytes, and so do
  integers, booleans, random bits and communication between devices (``psum``, ``all_gather``, ...: the bytes of what
  each device puts in and gets out).
* Collectives inside of ``jax.shard_map`` also count the bytes that devices send by ring algorithms (Patarasuk & Yuan
  2009, Bandwidth optimal all-reduce algorithms for clusters of workstations, doi:10.1016/j.jpdc.2008.09.002): with n
  devices, a device sends 2 (n - 1) / n of its array for ``psum``, (n - 1) / n of it for ``psum_scatter`` and
  ``all_to_all``, n - 1 times its part for ``all_gather``, and its array once for each pair of a ``ppermute``.
* A ``cond`` counts its costliest branch; ``conds`` has the counts of all branches.
* The number of iterations of a ``while`` is unknown: its condition and body are counted once, and the cost of one
  iteration is in ``loops``, to be multiplied by the number of iterations.
* A ``shard_map`` is counted on every device: the sum over the mesh.
* A computation that occurs twice is counted twice, although the compiler may merge the copies (as in
  second derivatives by forward over forward mode, which run faster than their count).
* An unknown primitive is not counted as zero but listed in ``uncounted``.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn
from jaxtyping import PyTree

from jaxblocks.ad.counting.primitive_costs import DOTS, RULES, Rule, bytes_moved, bytes_sent, macs_of
from jaxblocks.ad.programs.jaxprs import scope_of, size_of
from jaxblocks.ad.programs.liveness import Live, called_body, grid_size, live_equations, solver_of, visible_bodies
from jaxblocks.backend.sliding_windows import share_of_products
from jaxblocks.checks.expectations import checked
from jaxblocks.core.shapes import split_side

__all__ = ["Cond", "Count", "Loop", "count_flops", "equations"]


@dataclasses.dataclass(frozen=True, repr=False)
class Count:
    """Operations of a function, in total and by named scope. Counts add, and n times a count is that of n calls.

    Attributes:
        multiplications, additions, transcendentals: as defined in `jaxblocks.ad.counting.counts`.
        bytes: of all operands and results, an upper bound of the memory traffic.
        dots: the flops of products of matrices and convolutions among them.
        macs: multiply-accumulates in the convention of papers: the products of matrices and convolutions, with those
            that read padding. (Many papers call them FLOPs.)
        sent: the bytes that devices send to each other, all devices together.
        uncounted: names of primitives whose arithmetic is unknown, and the number of occurrences of each.
        scopes: the count of each named scope (``jax.named_scope``; every layer has one) by its
            path, as in ``"0.Repeat/.Dense"``, without those of nested scopes; ``""`` has the
            operations outside all scopes. They add up to the total; `within` adds nested scopes.
        conds: a `Cond` for each ``cond`` or ``switch``, with the count of every branch.
        loops: a `Loop` for each ``while``, with the count of one iteration.

    >>> one = Count(multiplications=6, additions=6)
    >>> one.flops, (one + one).flops, (10 * one).flops
    (12, 24, 120)
    """

    multiplications: int = 0
    additions: int = 0
    transcendentals: int = 0
    bytes: int = 0
    dots: int = 0
    macs: int = 0
    sent: int = 0
    uncounted: dict[str, int] = dataclasses.field(default_factory=dict)
    scopes: dict[str, "Count"] = dataclasses.field(default_factory=dict)
    conds: tuple["Cond", ...] = ()
    loops: tuple["Loop", ...] = ()

    @property
    def flops(self) -> int:
        """Floating-point operations: multiplications + additions + transcendentals."""
        return self.multiplications + self.additions + self.transcendentals

    @property
    def loops_of_unknown_length(self) -> int:
        """The number of ``while`` loops that are entered; one iteration of each is counted.

        >>> halve = lambda x: jax.lax.while_loop(lambda x: x > 1.0, lambda x: x / 2, x)
        >>> counted = count_flops(lambda xs: jax.lax.map(halve, xs), jnp.ones(3))
        >>> counted.loops_of_unknown_length, counted.loops[0].once.multiplications
        (3, 1)
        """
        return sum(loop.times for loop in self.loops)

    def within(self, scope: str) -> "Count":
        """The count of a scope with all nested scopes.

        >>> whole = Count(scopes={"0.Serial": Count(), "0.Serial/1.Dense": Count(additions=4)})
        >>> whole.within("0.Serial").flops
        4
        """
        inside = [own for path, own in self.scopes.items() if path == scope or path.startswith(scope + "/")]
        if not inside:
            known = ", ".join(map(repr, sorted(self.scopes))) or "none"
            raise KeyError(f"Count.within expected one of the scopes {known}, got {scope!r}; pass one of these.")
        return _sum(inside)

    def __add__(self, other):
        return _sum([self, other]) if isinstance(other, Count) else NotImplemented

    def __mul__(self, times):
        if isinstance(times, bool) or not isinstance(times, int):
            return NotImplemented
        if times == 1:
            return self
        return Count(
            *(getattr(self, name) * times for name in _NUMBERS),
            uncounted={name: n * times for name, n in self.uncounted.items()},
            scopes={path: own * times for path, own in self.scopes.items()},
            conds=tuple(dataclasses.replace(cond, times=cond.times * times) for cond in self.conds),
            loops=tuple(dataclasses.replace(loop, times=loop.times * times) for loop in self.loops),
        )

    __rmul__ = __mul__

    def __repr__(self):
        words = [
            f"flops={self.flops:,}",
            f"multiplications={self.multiplications:,}",
            f"additions={self.additions:,}",
            f"transcendentals={self.transcendentals:,}",
            f"bytes={self.bytes:,}",
        ]
        if self.sent:
            words.append(f"sent={self.sent:,}")
        if self.conds:
            words.append(f"conds={sum(cond.times for cond in self.conds):,} (the costliest branch of each counted)")
        if self.loops_of_unknown_length:
            words.append(f"loops_of_unknown_length={self.loops_of_unknown_length:,} (one iteration of each counted)")
        if self.uncounted:
            words.append(f"uncounted={', '.join(sorted(self.uncounted))}")
        return f"Count({', '.join(words)})"


@dataclasses.dataclass(frozen=True)
class Cond:
    """The branches of one ``cond`` or ``switch``.

    Attributes:
        scope: the named scopes around it.
        times: the number of runs, with enclosing scans taken into account.
        branches: the count of each branch, executed once, in the order of ``jax.lax.switch``; of a
            ``jax.lax.cond`` the branch for False is first.

    >>> f = lambda wanted, x: jax.lax.cond(wanted, lambda x: x @ x, lambda x: x + 1.0, x)
    >>> [cond] = count_flops(f, True, jnp.ones((5, 5))).conds
    >>> [branch.flops for branch in cond.branches]
    [25, 250]
    """

    scope: str
    times: int
    branches: tuple[Count, ...]


@dataclasses.dataclass(frozen=True)
class Loop:
    """A ``while`` loop, whose number of iterations n is unknown: it costs n times ``once``.

    Attributes:
        scope: the named scopes around it.
        times: the number of times it is entered, with enclosing scans taken into account.
        once: the count of one iteration, its condition and its body.

    >>> halve = lambda x: jax.lax.while_loop(lambda x: x.sum() > 1.0, lambda x: x / 2, x)
    >>> [loop] = count_flops(halve, jnp.ones(10)).loops
    >>> loop.once.additions, 7 * loop.once.multiplications
    (10, 70)
    """

    scope: str
    times: int
    once: Count


_NUMBERS = ("multiplications", "additions", "transcendentals", "bytes", "dots", "macs", "sent")


@checked
def count_flops(f: Callable, /, *args: PyTree, **kwargs: Any) -> Count:
    r"""Count the operations of ``f(*args, **kwargs)`` exactly, without compiling or executing it.

    Args:
        f: any function that JAX can trace, derivatives of others included: ``count_flops(jax.grad(loss), params)``.
        args: arrays, numbers, or pytrees of them; ``jax.ShapeDtypeStruct`` where only shapes are known.
        kwargs: those that contain arrays are traced, all others (flags, sizes) are static.

    Returns:
        A `Count`. The conventions are in `jaxblocks.ad.counting.counts`: a product of (m, k) and (k, n) matrices has
        $2mnk$ operations, a scan has those of its body times its length. For comparison with published numbers, such
        as the 4.09 GMACs of ResNet-50, ``macs`` has the convention of papers.

    >>> x, w = (
    ...     jax.ShapeDtypeStruct((8, 3), jnp.float32),
    ...     jax.ShapeDtypeStruct((3, 5), jnp.float32),
    ... )
    >>> count_flops(jnp.matmul, x, w)
    Count(flops=240, multiplications=120, additions=120, transcendentals=0, bytes=316)

    Source: Griewank & Walther, Evaluating Derivatives (a derivative's cost is a small multiple of the function's).
    """
    # Options such as strings and flags must not be traced: f would not be able to branch on them.
    traced, static = split_side(kwargs)
    return count_jaxpr(jax.make_jaxpr(lambda args, traced: f(*args, **traced, **static))(args, traced).jaxpr)


def count_jaxpr(jaxpr: Jaxpr) -> Count:
    """The `Count` of a function that is already traced."""
    return _total(_live(jaxpr))


def equations(closed_jaxpr: ClosedJaxpr | Jaxpr) -> Iterator[tuple[JaxprEqn, str, int]]:
    """Every equation of a jaxpr that its outputs need, nested ones included, as `count_flops` counts them.

    Yields:
        ``(equation, scope, times)``: the equation, the path of the named scopes around it (``"0.Repeat/.Dense"``;
        the marks of ``jvp``, ``transpose``, ``vmap`` and rematerialization are stripped), and its number of runs. An
        equation that contains others (a scan, a jitted call) is yielded before them; of a ``cond`` only the costliest
        branch is visited.

    >>> def f(x):
    ...     with jax.named_scope("loop"):
    ...         return jax.lax.scan(lambda carry, _: (jnp.sin(carry), None), x, length=7)[0]
    >>> [
    ...     (str(e.primitive), scope, times)
    ...     for e, scope, times in equations(jax.make_jaxpr(f)(1.0))
    ... ]
    [('scan', 'loop', 1), ('sin', 'loop', 7)]
    """
    yield from _walk(_live(closed_jaxpr), "", 1)


# ---- the sum over a program -------------------------------------------------------------------


def _live(jaxpr) -> list[Live]:
    return live_equations(jaxpr, leaves=_RULES, cost=_cost)[0]


def _cost(live: list[Live]) -> tuple[int, int]:
    whole = _total(live)
    return whole.flops, whole.bytes


def _walk(live: list[Live], prefix: str, times: int):
    for item in live:
        scope = _join(prefix, scope_of(item.equation))
        yield item.equation, scope, times
        for body, repeats in item.bodies:
            yield from _walk(body, scope, times * repeats)


def _total(live: list[Live], prefix: str = "", sizes: Mapping[str, int] = MappingProxyType({})) -> Count:
    """The count of equations and their nested jaxprs, by scope; ``sizes`` are those of the mesh axes around them."""
    counts: dict[str, list[Count]] = {}
    for item in live:
        scope = _join(prefix, scope_of(item.equation))
        # What a collective sends depends on the sizes of the mesh axes, which only the enclosing shard_map states.
        own_mesh = item.equation.params["mesh"].shape if item.equation.primitive.name == "shard_map" else {}
        inside = [_total(body, scope, {**sizes, **own_mesh}) * repeats for body, repeats in item.bodies]
        share = share_of_products(item.equation.params)
        if share is not None:
            inside = [_as_dots(count, *share) for count in inside]
        own = _count_equation(item.equation, sizes)
        # The branches of a cond are counted separately, since the largest one stands in `bodies` and the others would
        # be lost.
        if item.branches:
            own = Count(conds=(Cond(scope, 1, tuple(_total(branch, scope, sizes) for branch in item.branches)),))
        elif item.equation.primitive.name == "while":
            own = Count(loops=(Loop(scope, 1, _sum(inside)),))
        if own is not None:
            counts.setdefault(scope, []).append(own)
        for nested in inside:
            for path, inner in nested.scopes.items():
                counts.setdefault(path, []).append(inner)
    scopes = {path: _sum(own) for path, own in counts.items()}
    return dataclasses.replace(_sum(scopes.values()), scopes=scopes)


def _sum(counts: Iterable[Count]) -> Count:
    """The sum of counts, by one addition of each number: programs have thousands of equations."""
    counts = tuple(counts)
    if len(counts) == 1:
        return counts[0]
    return Count(
        *(sum(getattr(count, name) for count in counts) for name in _NUMBERS),
        uncounted=functools.reduce(_merge, (count.uncounted for count in counts), {}),
        scopes=functools.reduce(_merge, (count.scopes for count in counts), {}),
        conds=tuple(cond for count in counts for cond in count.conds),
        loops=tuple(loop for count in counts for loop in count.loops),
    )


def _as_dots(count: Count, used: int, computed: int) -> Count:
    """The count of a convolution, one addition for each product, from that of its form with zeros."""
    scopes = {path: _as_dots(own, used, computed) for path, own in count.scopes.items()}
    n = count.multiplications * used // max(1, computed)
    if count.macs:  # a convolution with channels of zeros, and in forward mode the sum of two of them
        additions = count.additions - (count.multiplications - n)
        macs = count.macs * used // computed
    else:  # Sums over shifts: all are additions of the convolution. Papers count those of padding.
        additions, macs = n, count.multiplications
    return dataclasses.replace(count, multiplications=n, additions=additions, dots=2 * n, macs=macs, scopes=scopes)


def _join(*parts):
    return "/".join(part for part in parts if part)


def _merge(left: dict, right: dict) -> dict:
    if not right:
        return left
    merged = dict(left)
    for name, value in right.items():
        merged[name] = merged[name] + value if name in merged else value
    return merged


# ---- one equation -----------------------------------------------------------------------------


def _count_equation(equation: JaxprEqn, sizes: Mapping[str, int]) -> Count | None:
    """The count of one equation without nested ones; ``None`` where it only contains others."""
    name = equation.primitive.name
    if name in ("scan", "while", "cond") or solver_of(equation) is not None or grid_size(equation) is not None:
        return None
    if name not in _RULES:
        if called_body(equation) is not None:
            return None
        return Count(uncounted={name: 1}, bytes=0 if visible_bodies(equation) else bytes_moved(equation))
    multiplications, additions, transcendentals = _RULES[name](equation)
    outputs = () if name in ("eig", "fft") else equation.outvars[:1]  # complex eigenvalues of a real matrix
    kinds = [getattr(v.aval, "dtype", None) for v in (*equation.invars[:1], *outputs)]
    if not any(kind is not None and jnp.issubdtype(kind, jnp.inexact) for kind in kinds):
        # Arithmetic on integers, such as that of indices, is no floating-point operation.
        multiplications = additions = transcendentals = 0
    elif name not in ("abs", "conj", "fft") and any(
        jnp.issubdtype(kind, jnp.complexfloating) for kind in kinds if kind is not None
    ):
        # A complex product is four real products and two sums, and a complex sum is two real ones.
        multiplications, additions = 4 * multiplications, 2 * multiplications + 2 * additions
    dots, macs = (multiplications + additions, macs_of(equation)) if name in DOTS else (0, 0)
    sent = bytes_sent(equation, sizes)
    return Count(multiplications, additions, transcendentals, bytes_moved(equation), dots, macs, sent)


def _combined(equation):
    """A reduction by a user-defined function of two scalars (or of two tuples of scalars)."""
    out = size_of(equation.outvars[0])
    if "window_dimensions" in equation.params:
        steps = out * max(0, math.prod(equation.params["window_dimensions"]) - 1)
    else:
        steps = max(0, size_of(equation.invars[0]) - out)
    each = _total(_live(equation.params["jaxpr"]))
    return steps * each.multiplications, steps * each.additions, steps * each.transcendentals


_RULES: dict[str, Rule] = {**RULES, "reduce": _combined, "reduce_window": _combined}
