"""What a function costs, counted in its jaxpr: nothing is compiled and nothing is run.

JAX writes every function, differentiated or not, as a jaxpr: a list of equations between
arrays of known shapes. The count below removes what nothing uses (dead code), walks
through nested jaxprs, multiplies the body of a scan by its length, and adds up:

* *multiplications*: products, divisions and squares;
* *additions*: sums and differences, and what an adder does as well: negations, absolute
  values, signs, roundings, maxima, minima and comparisons;
* *transcendentals*: exp, log, tanh, sqrt, erf, powers with a real exponent, ...: one each;
* *bytes*: the sizes of the operands and results of every equation. Compilers fuse
  equations, so that this is an upper bound of what goes through memory.

The conventions, where there is a choice:

* A product of matrices (m, k) and (k, n) has m n k multiplications and as many additions,
  the customary 2 m n k. A convolution likewise: each output element has one of each per
  tap and input channel of its group. Padding is counted as any other input; the holes
  that a dilated input (``lhs_dilation``, the transposed convolution) has are not.
* The sum (maximum, ...) of n numbers has n - 1 additions, and so has their cumulative sum.
  A window that hangs over the edge is counted whole.
* An integer power counts the multiplications of repeated squaring. A complex product (or
  quotient) counts 4 multiplications and 2 additions, a complex sum 2 additions.
* Sorting n numbers counts n ceil(log2 n) comparisons, an estimate. Triangular solves and
  Cholesky factors are counted by their textbook loops.
* Whatever moves, selects, compares or converts without floating-point arithmetic counts
  only bytes, and so do integers, booleans, random bits and communication between devices.
* A ``cond`` counts its costliest branch; the counts of all of them stand in ``conds``.
* A ``while`` does not say how often it runs: its condition and body are counted once, and what
  one pass costs stands in ``loops``, to be multiplied by a number that you know.
* What a ``shard_map`` does is counted on every device: the sum over the mesh.
* What is written twice is counted twice, though a compiler may find that it is the same (it does in
  second derivatives by forward over forward mode, which run faster than their count).
* No equation is counted as zero because it is not known: it is listed in ``uncounted``.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from jaxblocks.ad.jaxprs import scan_parts, scope_of
from jaxblocks.checks import describe_any

__all__ = ["Cond", "Count", "Loop", "count_flops", "equations"]


@dataclasses.dataclass(frozen=True, repr=False)
class Count:
    """Operations of a function, in all and by named scope. Counts add, and a count times n is that of n calls.

    Attributes:
        multiplications, additions, transcendentals: as the head of this file defines them.
        bytes: of all operands and results, an upper bound of what moves through memory.
        dots: the flops among them that products of matrices and convolutions have.
        uncounted: names of primitives whose arithmetic is not known, and how often each came.
        scopes: the count of each named scope (``jax.named_scope``; every layer has one) by its
            path, as in ``"0.Repeat/.Dense"``, without those of the scopes inside it; ``""`` is what
            lies in no scope. They add up to the whole; `within` adds the ones inside.
        conds: a `Cond` for each ``cond`` or ``switch``, with the count of every branch.
        loops: a `Loop` for each ``while``, with the count of one pass.

    >>> one = Count(multiplications=6, additions=6)
    >>> one.flops, (one + one).flops, (10 * one).flops
    (12, 24, 120)
    """

    multiplications: int = 0
    additions: int = 0
    transcendentals: int = 0
    bytes: int = 0
    dots: int = 0
    uncounted: dict[str, int] = dataclasses.field(default_factory=dict)
    scopes: dict[str, "Count"] = dataclasses.field(default_factory=dict)
    conds: tuple["Cond", ...] = ()
    loops: tuple["Loop", ...] = ()

    @property
    def flops(self) -> int:
        """Floating-point operations: multiplications + additions + transcendentals.

        >>> Count(multiplications=3, additions=2, transcendentals=1).flops
        6
        """
        return self.multiplications + self.additions + self.transcendentals

    @property
    def loops_of_unknown_length(self) -> int:
        """How many ``while`` loops were entered; one pass through the body of each is counted.

        >>> halve = lambda x: jax.lax.while_loop(lambda x: x > 1.0, lambda x: x / 2, x)
        >>> counted = count_flops(lambda xs: jax.lax.map(halve, xs), jnp.ones(3))
        >>> counted.loops_of_unknown_length, counted.loops[0].once.multiplications
        (3, 1)
        """
        return sum(loop.times for loop in self.loops)

    def within(self, scope: str) -> "Count":
        """The count of a scope with all the scopes inside it.

        >>> whole = Count(scopes={"0.Serial": Count(), "0.Serial/1.Dense": Count(additions=4)})
        >>> whole.within("0.Serial").flops
        4
        """
        inside = [own for path, own in self.scopes.items() if path == scope or path.startswith(scope + "/")]
        if not inside:
            known = ", ".join(map(repr, sorted(self.scopes))) or "none"
            raise KeyError(f"No operation lies in the scope {scope!r}; the scopes that have one: {known}.")
        return sum(inside, Count())

    def __add__(self, other):
        if not isinstance(other, Count):
            return NotImplemented
        return Count(
            *(getattr(self, name) + getattr(other, name) for name in _NUMBERS),
            uncounted=_merge(self.uncounted, other.uncounted),
            scopes=_merge(self.scopes, other.scopes),
            conds=self.conds + other.conds,
            loops=self.loops + other.loops,
        )

    def __mul__(self, times):
        if isinstance(times, bool) or not isinstance(times, int):
            return NotImplemented
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
        if self.conds:
            words.append(f"conds={sum(cond.times for cond in self.conds):,} (the costliest branch of each counted)")
        if self.loops_of_unknown_length:
            words.append(f"loops_of_unknown_length={self.loops_of_unknown_length:,} (each body counted once)")
        if self.uncounted:
            words.append(f"uncounted={', '.join(sorted(self.uncounted))}")
        return f"Count({', '.join(words)})"


@dataclasses.dataclass(frozen=True)
class Cond:
    """The branches of one ``cond`` or ``switch``.

    Attributes:
        scope: the named scopes it lies in.
        times: how often it is decided, a scan around it taken into account.
        branches: the count of each branch, taken once, in the order of ``jax.lax.switch``; of a
            ``jax.lax.cond`` the branch for False comes first.

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
    """A ``while`` loop, whose number of passes n nobody knows: n times what one of them costs.

    Attributes:
        scope: the named scopes it lies in.
        times: how often it is entered, a scan around it taken into account.
        once: the count of one pass, its condition and its body.

    >>> halve = lambda x: jax.lax.while_loop(lambda x: x.sum() > 1.0, lambda x: x / 2, x)
    >>> [loop] = count_flops(halve, jnp.ones(10)).loops
    >>> loop.once.additions, 7 * loop.once.multiplications
    (10, 70)
    """

    scope: str
    times: int
    once: Count


_NUMBERS = ("multiplications", "additions", "transcendentals", "bytes", "dots")


def count_flops(f: Callable, /, *args: Any, **kwargs: Any) -> Count:
    r"""Count the operations of ``f(*args, **kwargs)``, exactly, without compiling or running it.

    Args:
        f: any function that JAX can trace, derivatives of others included: ``count_flops(jax.grad(loss), params)``.
        args: arrays, numbers, or pytrees of them; ``jax.ShapeDtypeStruct`` where only shapes are known.
        kwargs: those that hold arrays are traced, all others (flags, sizes) are passed as they are.

    The conventions stand at the head of this file: a product of (m, k) and (k, n) matrices has
    :math:`2mnk` operations, a scan as many as its body times its length.

    >>> x, w = jax.ShapeDtypeStruct((8, 3), jnp.float32), jax.ShapeDtypeStruct((3, 5), jnp.float32)
    >>> count_flops(jnp.matmul, x, w)
    Count(flops=240, multiplications=120, additions=120, transcendentals=0, bytes=316)

    Source: Griewank & Walther, Evaluating Derivatives (a derivative's cost is a small multiple of the function's).
    """
    if not callable(f):
        raise TypeError(f"count expects a function f first, but {describe_any(f)} came; write count_flops(f, x, ...).")
    traced = {name: value for name, value in kwargs.items() if _holds_arrays(value)}
    static = {name: value for name, value in kwargs.items() if name not in traced}
    jaxpr = jax.make_jaxpr(lambda args, traced: f(*args, **traced, **static))(args, traced).jaxpr
    return _total(_live_equations(jaxpr, [True] * len(jaxpr.outvars))[0])


def equations(closed_jaxpr: ClosedJaxpr | Jaxpr) -> Iterator[tuple[JaxprEqn, str, int]]:
    """Every equation of a jaxpr that its outputs need, nested ones included, as `count_flops` sees them.

    Yields ``(equation, scope, times)``: the equation, the path of the named scopes it lies in
    (``"0.Repeat/.Dense"``; the marks of ``jvp``, ``transpose``, ``vmap`` and rematerialization are
    stripped), and how often it runs. An equation that holds others (a scan, a jitted call) comes
    before them; of a ``cond`` only the costliest branch comes.

    >>> def f(x):
    ...     with jax.named_scope("loop"):
    ...         return jax.lax.scan(lambda carry, _: (jnp.sin(carry), None), x, length=7)[0]
    >>> [(str(e.primitive), scope, times) for e, scope, times in equations(jax.make_jaxpr(f)(1.0))]
    [('scan', 'loop', 1), ('sin', 'loop', 7)]
    """
    jaxpr = getattr(closed_jaxpr, "jaxpr", closed_jaxpr)
    live, _ = _live_equations(jaxpr, [True] * len(jaxpr.outvars))
    yield from _walk(live, "", 1)


# ---- dead code ----------------------------------------------------------------------------


class _Live(NamedTuple):
    """An equation that is needed, and the needed equations of the jaxprs in it: (equations, times).

    ``branches`` are those of a ``cond``, the costliest of which is its only body.
    """

    equation: JaxprEqn
    bodies: tuple[tuple[list, int], ...]
    branches: tuple[list, ...] = ()


def _live_equations(jaxpr, wanted) -> tuple[list[_Live], list[bool]]:
    """The equations that the wanted outputs need (and those with effects), and which inputs they read."""
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    needed = {v for v, want in zip(jaxpr.outvars, wanted, strict=True) if want and not isinstance(v, Literal)}
    live = []
    for equation in reversed(jaxpr.eqns):
        outs = [v in needed for v in equation.outvars]
        if any(outs) or _has_effects(equation):
            ins, bodies, *branches = _live_in(equation, outs)
            needed |= {v for v, read in zip(equation.invars, ins, strict=True) if read and not isinstance(v, Literal)}
            live.append(_Live(equation, tuple(bodies), *branches))
    return live[::-1], [v in needed for v in jaxpr.invars]


def _has_effects(equation) -> bool:
    """Prints and callbacks stay; naming an axis of a mesh is no effect that anybody sees."""
    return any(type(effect).__name__ != "NamedAxisEffect" for effect in equation.effects)


def _live_in(equation, outs):
    """Which inputs of one equation are read for its wanted outputs, its bodies without dead code, and branches."""
    name, params = equation.primitive.name, equation.params
    everything = [True] * len(equation.invars)
    if name in _RULES:
        return everything, []
    if name == "scan":
        return _live_in_scan(equation, outs)
    if name == "while":
        return _live_in_while(equation, outs)
    if name == "cond":
        lives, reads = zip(*(_live_equations(branch, outs) for branch in params["branches"]), strict=True)
        costliest = max(lives, key=_cost_of)
        return [True, *map(any, zip(*reads, strict=True))], [(costliest, 1)], lives
    if name == "custom_linear_solve":  # of its four jaxprs this one runs; the others serve derivatives
        solve = params["jaxprs"].solve
        return everything, [(_live_equations(solve, [True] * len(_outvars(solve)))[0], 1)]
    bodies = _jaxprs_in(equation)
    if len(bodies) == 1 and _matches(equation, bodies[0]):
        live, ins = _live_equations(bodies[0], outs)
        return ins, [(live, _devices(params) if name == "shard_map" else 1)]
    return everything, [(_live_equations(body, [True] * len(_outvars(body)))[0], 1) for body in bodies]


def _cost_of(live) -> tuple[int, int]:
    whole = _total(live)
    return whole.flops, whole.bytes


def _live_in_scan(equation, outs):
    """Inputs are constants, carry, slices; outputs are carry, slices. What a step reads of the carry, one makes."""
    body = equation.params["jaxpr"]
    first, n_carry = scan_parts(equation)
    wanted = list(outs)
    while True:
        live, ins = _live_equations(body, wanted)
        wider = [a or b for a, b in zip(wanted[:n_carry], ins[first : first + n_carry], strict=True)] + wanted[n_carry:]
        if wider == wanted:
            break
        wanted = wider
    reads = ins[:first] + wanted[:n_carry] + ins[first + n_carry :]
    return reads, [(live, equation.params["length"])]


def _live_in_while(equation, outs):
    """Inputs are constants of the condition, constants of the body, carry; the condition is always needed."""
    condition, body = equation.params["cond_jaxpr"], equation.params["body_jaxpr"]
    n_carry = len(equation.outvars)
    asked, reads_condition = _live_equations(condition, [True])
    n_condition, n_body = len(reads_condition) - n_carry, len(equation.invars) - len(reads_condition)
    wanted = [a or b for a, b in zip(outs, reads_condition[n_condition:], strict=True)]
    while True:
        live, ins = _live_equations(body, wanted)
        wider = [a or b for a, b in zip(wanted, ins[n_body:], strict=True)]
        if wider == wanted:
            break
        wanted = wider
    return reads_condition[:n_condition] + ins[:n_body] + wanted, [(asked, 1), (live, 1)]


def _outvars(jaxpr):
    return getattr(jaxpr, "jaxpr", jaxpr).outvars


def _jaxprs_in(equation) -> list:
    """The jaxprs among the parameters of an equation."""
    if equation.primitive.name in _OPAQUE:
        return []
    found = []
    for value in equation.params.values():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if hasattr(getattr(item, "jaxpr", item), "eqns"):
                found.append(item)
    return found


def _matches(equation, body) -> bool:
    """Whether a body takes the inputs and gives the outputs of its equation, one for one: a call."""
    body = getattr(body, "jaxpr", body)
    pairs = [(equation.invars, body.invars), (equation.outvars, body.outvars)]
    if equation.primitive.name == "shard_map":  # the same arrays, in parts
        return all(len(outer) == len(inner) for outer, inner in pairs)
    return all([_shape(v) for v in outer] == [_shape(v) for v in inner] for outer, inner in pairs)


def _shape(variable):
    return getattr(variable.aval, "shape", None), getattr(variable.aval, "dtype", None)


def _devices(params) -> int:
    """How many devices a shard_map splits over."""
    axes = params.get("manual_axes", params.get("newly_manual_axes", params["mesh"].axis_names))
    return math.prod(params["mesh"].shape[axis] for axis in axes)


# ---- the walk -----------------------------------------------------------------------------


def _walk(live, prefix, times):
    for item in live:
        scope = _scope_of(item, prefix)
        yield item.equation, scope, times
        for body, repeats in item.bodies:
            yield from _walk(body, scope, times * repeats)


def _total(live, prefix="") -> Count:
    """The count of equations with all that is nested in them, by scope."""
    scopes: dict[str, Count] = {}
    for item in live:
        scope = _scope_of(item, prefix)
        inside = [_total(body, scope) * repeats for body, repeats in item.bodies]
        own = _count_equation(item.equation)
        if item.branches:
            own = Count(conds=(Cond(scope, 1, tuple(_total(branch, scope) for branch in item.branches)),))
        elif item.equation.primitive.name == "while":
            own = Count(loops=(Loop(scope, 1, sum(inside, Count())),))
        if own is not None:
            scopes[scope] = scopes.get(scope, Count()) + own
        for nested in inside:
            scopes = _merge(scopes, nested.scopes)
    return dataclasses.replace(sum(scopes.values(), Count()), scopes=scopes)


def _scope_of(item, prefix):
    return _join(prefix, scope_of(item.equation))


def _join(*parts):
    return "/".join(part for part in parts if part)


# ---- one equation -------------------------------------------------------------------------


def _count_equation(equation) -> Count | None:
    """The count of one equation without those nested in it; ``None`` where it only holds others."""
    name = equation.primitive.name
    if name in ("scan", "while", "cond", "custom_linear_solve"):
        return None
    if name not in _RULES:
        bodies = _jaxprs_in(equation)
        if len(bodies) == 1 and _matches(equation, bodies[0]):
            return None
        return Count(uncounted={name: 1}, bytes=0 if bodies else _bytes_moved(equation))
    multiplications, additions, transcendentals = _RULES[name](equation)
    kinds = [getattr(v.aval, "dtype", None) for v in (*equation.invars[:1], *equation.outvars[:1])]
    if not any(kind is not None and jnp.issubdtype(kind, jnp.inexact) for kind in kinds):
        multiplications = additions = transcendentals = 0
    elif name not in ("abs", "conj") and any(
        jnp.issubdtype(kind, jnp.complexfloating) for kind in kinds if kind is not None
    ):
        multiplications, additions = 4 * multiplications, 2 * multiplications + 2 * additions
    dots = multiplications + additions if name in _DOTS else 0
    return Count(multiplications, additions, transcendentals, _bytes_moved(equation), dots)


def _bytes_moved(equation) -> int:
    moved = [v.aval for v in equation.invars if not isinstance(v, Literal)] + [v.aval for v in equation.outvars]
    return sum(math.prod(getattr(a, "shape", ())) * getattr(getattr(a, "dtype", None), "itemsize", 0) for a in moved)


def _size(variable) -> int:
    return math.prod(variable.aval.shape)


def _per_element(multiplications, additions, transcendentals):
    def rule(equation):
        n = _size(equation.outvars[0])
        return n * multiplications, n * additions, n * transcendentals

    return rule


def _dot_general(equation):
    (contracted, _), _ = equation.params["dimension_numbers"]
    left = equation.invars[0].aval.shape
    products = _size(equation.outvars[0]) * math.prod(left[axis] for axis in contracted)
    return products, products, 0


def _ragged_dot_general(equation):
    """Rows in groups, each group with a matrix of its own: every row, or place that is summed over, in one group."""
    numbers = equation.params["ragged_dot_dimension_numbers"]
    (contracted, _), _ = numbers.dot_dimension_numbers
    left = equation.invars[0].aval.shape
    products = _size(equation.outvars[0]) * math.prod(left[axis] for axis in contracted)
    if set(numbers.lhs_ragged_dimensions) & set(contracted):  # the output has an axis of groups
        products //= max(1, equation.invars[2].aval.shape[-1])
    return products, products, 0


def _conv_general_dilated(equation):
    params, kernel = equation.params, equation.invars[1].aval.shape
    numbers = params["dimension_numbers"]
    out = equation.outvars[0].aval.shape
    products = math.prod(out[axis] for axis in numbers.out_spec[:2]) * kernel[numbers.rhs_spec[1]]
    axes = zip(
        (out[axis] for axis in numbers.out_spec[2:]),
        (kernel[axis] for axis in numbers.rhs_spec[2:]),
        params["window_strides"],
        params["padding"],
        params["lhs_dilation"],
        params["rhs_dilation"],
        strict=True,
    )
    for positions, taps, stride, (before, _), holes, spread in axes:
        if holes == 1:
            products *= positions * taps
        else:  # only taps that meet an input, not the zeros between two of them
            place = np.arange(positions)[:, None] * stride + np.arange(taps)[None, :] * spread - before
            products *= int((place % holes == 0).sum())
    return products, products, 0


def _polynomial(equation):  # Horner's scheme; the inputs are x and the coefficients
    steps = _size(equation.outvars[0]) * (len(equation.invars) - 2)
    return steps, steps, 0


def _integer_pow(equation):
    power = abs(equation.params["y"])
    each = power.bit_length() + power.bit_count() - 2 if power else 0
    return _size(equation.outvars[0]) * (each + (equation.params["y"] < 0)), 0, 0


def _abs(equation):
    n = _size(equation.outvars[0])
    return (2 * n, n, n) if jnp.issubdtype(equation.invars[0].aval.dtype, jnp.complexfloating) else (0, n, 0)


def _reduction(multiplies=False):
    def rule(equation):
        n = max(0, _size(equation.invars[0]) - _size(equation.outvars[0]))
        return (n, 0, 0) if multiplies else (0, n, 0)

    return rule


def _cumulative(multiplications=0, additions=0, transcendentals=0):
    def rule(equation):
        n, length = _size(equation.outvars[0]), equation.outvars[0].aval.shape[equation.params["axis"]]
        steps = n - n // length if length else 0
        return steps * multiplications, steps * additions, steps * transcendentals

    return rule


def _window_reduction(equation):
    window = math.prod(equation.params["window_dimensions"])
    return 0, _size(equation.outvars[0]) * max(0, window - 1), 0


def _window_scatter(equation):  # window - 1 comparisons and one addition for each element of the source
    return 0, _size(equation.invars[0]) * math.prod(equation.params["window_dimensions"]), 0


def _combined(equation):
    """A reduction by the user's own function of two scalars (or of two tuples of them)."""
    operands = len(equation.invars) // 2
    out = _size(equation.outvars[0])
    if "window_dimensions" in equation.params:
        steps = out * max(0, math.prod(equation.params["window_dimensions"]) - 1)
    else:
        steps = max(0, _size(equation.invars[0]) - out)
    each = _total(_live_equations(equation.params["jaxpr"], [True] * operands)[0])
    return steps * each.multiplications, steps * each.additions, steps * each.transcendentals


def _scatter(multiplies=False):
    def rule(equation):
        n = _size(equation.invars[2])
        return (n, 0, 0) if multiplies else (0, n, 0)

    return rule


def _sort(equation):
    shape = equation.invars[0].aval.shape
    length = shape[equation.params.get("dimension", equation.params.get("axis", -1))]
    return 0, math.prod(shape) * max(0, length - 1).bit_length(), 0


def _triangular_solve(equation):
    n = equation.invars[0].aval.shape[-1]
    columns = _size(equation.outvars[0]) // n if n else 0
    inner = columns * (n * (n - 1) // 2)
    return inner + (0 if equation.params["unit_diagonal"] else columns * n), inner, 0


def _cholesky(equation):
    n = equation.invars[0].aval.shape[-1]
    matrices = _size(equation.outvars[0]) // (n * n) if n else 0
    inner = n * (n * n - 1) // 6
    return matrices * (inner + n * (n - 1) // 2), matrices * inner, matrices * n


def _no_arithmetic(equation):
    return 0, 0, 0


_ADDITIONS = """
    add add_any sub neg max min sign floor ceil round nextafter conj eq ne lt le gt ge eq_to lt_to le_to is_finite
"""
_TRANSCENDENTALS = """
    exp exp2 expm1 log log1p log2 logistic sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh
    sqrt rsqrt cbrt pow erf erfc erf_inv lgamma digamma polygamma zeta igamma igammac igamma_grad_a
    regularized_incomplete_beta bessel_i0e bessel_i1e
"""
_MOVED = """
    broadcast_in_dim reshape transpose squeeze expand_dims concatenate stack unstack split slice dynamic_slice
    dynamic_update_slice gather scatter rev pad iota tile select_n convert_element_type reduce_precision
    bitcast_convert_type real imag complex copy copy_p empty empty2 stop_gradient name optimization_barrier device_put
    sharding_constraint mesh_cast reshard layout_constraint create_token after_all get swap tie dce_sink
    from_edtype to_edtype
"""
_INTEGERS = """
    and or xor not shift_left shift_right_logical shift_right_arithmetic population_count clz
    random_seed random_bits random_split random_fold_in random_wrap random_unwrap random_clone threefry2x32
    rng_bit_generator rng_uniform reduce_and reduce_or reduce_xor mulhi platform_index lu_pivots_to_permutation
"""
_SENT = """
    psum psum_invariant psum2 psum_scatter pmax pmin ppermute pbroadcast pvary pcast all_gather all_gather_invariant
    all_gather_reduced all_to_all ragged_all_to_all reduce_scatter axis_index debug_print debug_callback check
"""
_RULES: dict[str, Callable] = {
    name: rule
    for names, rule in (
        ("mul div rem square", _per_element(1, 0, 0)),
        (_ADDITIONS, _per_element(0, 1, 0)),
        (_TRANSCENDENTALS, _per_element(0, 0, 1)),
        ("one_minus_square", _per_element(1, 1, 0)),
        ("clamp", _per_element(0, 2, 0)),
        ("abs", _abs),
        ("integer_pow", _integer_pow),
        ("polynomial", _polynomial),
        ("dot_general", _dot_general),
        ("ragged_dot_general", _ragged_dot_general),
        ("conv_general_dilated", _conv_general_dilated),
        ("reduce_sum reduce_max reduce_min argmax argmin", _reduction()),
        ("reduce_prod", _reduction(multiplies=True)),
        ("reduce reduce_window", _combined),
        ("cumsum cummax cummin", _cumulative(additions=1)),
        ("cumprod", _cumulative(multiplications=1)),
        ("cumlogsumexp", _cumulative(additions=3, transcendentals=2)),
        ("reduce_window_sum reduce_window_max reduce_window_min select_and_gather_add", _window_reduction),
        ("select_and_scatter_add", _window_scatter),
        ("scatter-add scatter-sub scatter-max scatter-min", _scatter()),
        ("scatter-mul", _scatter(multiplies=True)),
        ("sort top_k", _sort),
        ("triangular_solve", _triangular_solve),
        ("cholesky", _cholesky),
        (_MOVED + _INTEGERS + _SENT, _no_arithmetic),
    )
    for name in names.split()
}
_DOTS = frozenset({"dot_general", "ragged_dot_general", "conv_general_dilated"})
# Their nested jaxprs run nobody knows how often.
_OPAQUE = frozenset({"custom_partitioning", "pallas_call"})


def _merge(left: dict, right: dict) -> dict:
    merged = dict(left)
    for name, value in right.items():
        merged[name] = merged[name] + value if name in merged else value
    return merged


def _holds_arrays(value) -> bool:
    leaves = jax.tree.leaves(value)
    return bool(leaves) and all(hasattr(leaf, "shape") and hasattr(leaf, "dtype") for leaf in leaves)
