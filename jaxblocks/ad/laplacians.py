r"""The Laplacian of a function in one forward pass, by one rule for every equation of its jaxpr.

    x        the point, any pytree of floating-point arrays with n numbers in all
    y        the value f(x), an array
    J_i      the derivative of a value in the i-th direction: n of them, on a leading axis
    L        the Laplacian of a value, the sum of its n second derivatives

Where an equation computes y = p(x) from values with known J and L, the chain rule gives
    y = p(x)        J_y,i = p'(x) J_i        L_y = p'(x) L + sum_i p''(x)[J_i, J_i]
and nothing else is stored: no n by n Hessian, no residuals. The computation depends on p:

if p'(x) does not depend on x, the second term vanishes; an elementwise p needs p''(x) once and not n times;
a product of matrices contracts over i in addition to its own axes.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal
from jaxtyping import Array, Float, PyTree

from jaxblocks.ad.arguments import array_valued, as_point
from jaxblocks.ad.jaxprs import Step, as_closed, inputs_of, interpret, piece, split_scan_inputs
from jaxblocks.checks import PositiveInt, checked, public_name, require

__all__ = ["biharmonic", "laplacian", "value_grad_laplacian"]


@checked
def laplacian(
    f: Callable[[Any], Float[Array, "..."]], x: PyTree, *, chunk_size: PositiveInt | None = None
) -> Float[Array, "..."]:
    r"""The Laplacian :math:`\Delta f(x) = \sum_{i=1}^n \frac{\partial^2 f}{\partial x_i^2}`, exactly.

    It is the trace of the Hessian of each output, in about half the operations that the
    Hessian of a dense network takes. Loops and branches are kept (a ``scan`` stays a ``scan``). The result can be
    transformed by ``jit``, ``vmap`` and ``grad``.

    Args:
        f: takes a pytree, returns one floating-point array, of any shape.
        x: the point, a pytree of floating-point arrays, n numbers in all.
        chunk_size: the number of directions computed at once; all n by default. With chunks the memory is about
            ``chunk_size / n`` of that, and f itself is computed once for each chunk.

    Returns:
        :math:`\Delta f(x)`, of the shape of ``f(x)``.

    Raises:
        TypeError: if a leaf of ``x`` is not floating-point, or ``f`` does not return one floating-point array.
        NotImplementedError: if ``f`` uses a primitive that JAX cannot differentiate (the error names it).

    Rules of ``jax.custom_jvp`` are used. A function with ``jax.custom_vjp`` has no forward rule: its
    implementation is differentiated instead. For large n, `estimate_trace` of `directional_curvature` estimates the
    Laplacian of a scalar-valued function from few random vectors.

    >>> float(laplacian(lambda x: jnp.sum(x**3), jnp.array([1.0, 2.0])))
    18.0

    Source: Li et al. 2023 (the forward Laplacian; arXiv:2307.08214); Dangel et al. 2025 (arXiv:2505.13644).
    """
    return _forward_laplacian(f, x, chunk_size)[2]


@checked
def value_grad_laplacian(
    f: Callable[[Any], Float[Array, "..."]], x: PyTree, *, chunk_size: PositiveInt | None = None
) -> tuple[Float[Array, "..."], PyTree, Float[Array, "..."]]:
    r"""The value :math:`f(x)`, the Jacobian and :math:`\Delta f(x)`, in one forward pass.

    The Jacobian has the structure of ``x`` and leaves of the shape ``(*f(x).shape, *leaf.shape)``: for a
    scalar-valued f it is the gradient. Arguments and errors are those of `laplacian`.

    >>> value, gradient, laplacian = value_grad_laplacian(lambda x: jnp.sum(x**3), jnp.array([1.0, 2.0]))
    >>> value, gradient, laplacian
    (Array(9., dtype=float32), Array([ 3., 12.], dtype=float32), Array(18., dtype=float32))

    Source: Li et al. 2023 (the forward Laplacian; arXiv:2307.08214).
    """
    value, jacobian, total = _forward_laplacian(f, x, chunk_size)
    leaves, structure = jax.tree.flatten(x)
    parts, start = [], 0
    for leaf in leaves:
        part = jnp.moveaxis(jacobian[start : start + jnp.size(leaf)], 0, -1)  # (*y, leaf.size)
        parts.append(part.reshape(*value.shape, *jnp.shape(leaf)))
        start += jnp.size(leaf)
    return value, structure.unflatten(parts), total


@checked
def biharmonic(f: Callable[[Any], Float[Array, "..."]], x: PyTree) -> Float[Array, "..."]:
    r"""The biharmonic operator :math:`\Delta^2 f(x) = \sum_{i,j} \frac{\partial^4 f}{\partial x_i^2 \partial x_j^2}`.

    It is the Laplacian of the Laplacian, in one forward pass. Arguments and errors are those of `laplacian`; for large
    n, `estimate_biharmonic` estimates it.

    >>> float(biharmonic(lambda x: jnp.sum(x**2) ** 2, jnp.array([1.0, 2.0])))
    64.0
    """
    return laplacian(lambda x: laplacian(f, x), x)


def _forward_laplacian(f, x, chunk_size) -> tuple[Array, Array, Array]:
    """Value, Jacobian (n, *y) and Laplacian of f at x, all directions at once or in chunks."""
    f = array_valued(f)
    x = as_point(x)
    leaves, structure = jax.tree.flatten(x)
    n = sum(leaf.size for leaf in leaves)
    require(n > 0, "x to hold at least one number", "empty arrays")
    closed = jax.make_jaxpr(lambda *leaves: f(structure.unflatten(leaves)))(*leaves)

    def along(start, size):
        points = []
        for leaf in leaves:  # its part of each unit vector
            unit = start + jnp.arange(size)[:, None] == jnp.arange(leaf.size)[None, :]
            points.append(_Point(leaf, unit.astype(leaf.dtype).reshape(size, *leaf.shape), jnp.zeros_like(leaf)))
            start = start - leaf.size
        [y] = _interpret(closed, points)
        return _filled(y, True, size)

    if chunk_size is None or chunk_size >= n:
        return along(0, n)

    def step(carry, start):
        value, jacobian, part = along(start, chunk_size)
        return (value, carry[1] + part), jacobian

    [aval] = closed.out_avals
    begin = jnp.zeros(aval.shape, aval.dtype)
    (value, total), jacobian = lax.scan(step, (begin, begin), jnp.arange(0, n, chunk_size))
    return value, jacobian.reshape(-1, *aval.shape)[:n], total


# ---- the interpretation -----------------------------------------------------------------------------


class _Point(NamedTuple):
    """A value with its derivatives, directions on the leading axis; these are ``None`` if it does not depend on x."""

    value: Any
    jacobian: Any = None
    laplacian: Any = None

    @property
    def moves(self) -> bool:
        return self.jacobian is not None


def _filled(point, moves, directions) -> _Point:
    """A constant with derivatives of zero, where a loop or a branch needs them."""
    if not moves or point.moves:
        return point
    value = jnp.asarray(point.value)
    return _Point(value, jnp.zeros((directions, *value.shape), value.dtype), jnp.zeros(value.shape, value.dtype))


def _interpret(closed: ClosedJaxpr, points) -> list[_Point]:
    """The outputs of a jaxpr with their derivatives, from its inputs with theirs."""
    return interpret(closed, points, _rule, constant=_Point, opens=_opens)


def _opens(step: Step) -> bool:
    """Whether to open a call; a function with a ``custom_jvp`` rule is not opened, since its rule is used."""
    return _depends(step) and step.name != "custom_jvp_call"


def _depends(step: Step) -> bool:
    """Whether an output depends on x."""
    return any(point.moves for point in step.operands) and any(_moves(step.equation))


def _rule(step: Step) -> list[_Point]:
    if not _depends(step):
        return [_Point(value) for value in step.evaluate([point.value for point in step.operands])]
    return _NESTED.get(step.name, _differentiate)(step)


# Piecewise constant functions: the derivative is zero wherever it exists.
_FLAT = frozenset({"ceil", "floor", "round", "sign", "stop_gradient"})


def _moves(equation: JaxprEqn) -> list[bool]:
    """Which outputs can depend on x: floating-point ones of functions that are not piecewise constant."""
    inexact = [jnp.issubdtype(getattr(v.aval, "dtype", bool), jnp.inexact) for v in equation.outvars]
    return [kind and equation.primitive.name not in _FLAT for kind in inexact]


def _moved(closed: ClosedJaxpr, moves) -> list[bool]:
    """Which outputs may depend on x, if those inputs do (an upper bound)."""
    return interpret(
        closed,
        moves,
        lambda step: [moves and any(step.operands) for moves in _moves(step.equation)],
        constant=lambda value: False,
        opens=lambda step: any(step.operands) and step.name != "custom_jvp_call",
    )


# ---- one equation -------------------------------------------------------------------------


def _differentiate(step: Step) -> list[_Point]:
    """The second-order chain rule for one primitive, as a function of its distinct inputs that depend on x."""
    equation, name, kinds = step.equation, step.name, _moves(step.equation)
    variables = inputs_of([equation])
    known = {v: point for v, point in zip(equation.invars, step.operands, strict=True) if not isinstance(v, Literal)}
    moving = [v for v in variables if known[v].moves]
    points = [known[v] for v in moving]
    xs = [point.value for point in points]

    def function(outputs):
        whole = piece(step.jaxpr, [equation], variables, outputs)

        def p(*xs):
            values = dict(zip(moving, xs, strict=True))
            return whole(*(values[v] if v in values else known[v].value for v in variables))

        return p

    p = function([v for v, moves in zip(equation.outvars, kinds, strict=True) if moves])
    try:
        if name in _ELEMENTWISE and _is_real(equation) and all(jnp.shape(x) == _shape(equation) for x in xs):
            moved = [_elementwise(lambda *xs: p(*xs)[0], points)]
        else:
            second = _product(equation, step.operands) if name == "dot_general" else None
            moved = _any(p, points, second, matrix=second is None and name in ("dot_general", "conv_general_dilated"))
    except (NotImplementedError, ValueError) as error:
        if isinstance(error, ValueError) and "callback" not in str(error):
            raise
        raise NotImplementedError(
            f"{public_name()} expected primitives that JAX can differentiate twice, got {name!r}; give the function "
            "that calls it a rule with jax.custom_jvp that can be differentiated again."
        ) from error
    rest = function([v for v, moves in zip(equation.outvars, kinds, strict=True) if not moves])(*xs)
    moved, rest = iter(moved), iter(rest)
    return [next(moved) if moves else _Point(next(rest)) for moves in kinds]


def _any(p, points, second=None, matrix=False) -> list[_Point]:
    """Any primitive, linearized once; ``second`` is the sum of the second derivatives if already known."""
    xs, jacobians, laplacians = (tuple(getattr(point, name) for point in points) for name in _Point._fields)
    values, push = jax.linearize(p, *xs)
    if matrix:  # the Laplacian as one more direction, so that the matrix is read once
        rows = [jnp.concatenate([j, each[None]]) for j, each in zip(jacobians, laplacians, strict=True)]
        pushed = jax.vmap(push)(*rows)
        pushed, totals = [each[:-1] for each in pushed], [each[-1] for each in pushed]
    else:
        pushed, totals = jax.vmap(push)(*jacobians), push(*laplacians)

    def slope(xs, ts):
        return jax.jvp(p, xs, ts)[1]

    def bend(*ts):
        return jax.jvp(lambda *xs: slope(xs, ts), xs, ts)[1]

    if second is not None:
        totals = [totals[0] + second]
    elif any(_moved(jax.make_jaxpr(slope)(xs, xs), [True] * len(xs) + [False] * len(xs))):
        totals = [total + each.sum(axis=0) for total, each in zip(totals, jax.vmap(bend)(*jacobians), strict=True)]
    return [_Point(*parts) for parts in zip(values, pushed, totals, strict=True)]


def _elementwise(p, points) -> _Point:
    """An elementwise function: its partial derivatives are computed once for all directions."""
    xs = [point.value for point in points]

    def partial(p, a):
        def slope(*xs):
            one = jnp.ones(xs[a].shape, xs[a].dtype)
            return jax.jvp(lambda x: p(*xs[:a], x, *xs[a + 1 :]), (xs[a],), (one,))[1]

        return slope

    slopes = [partial(p, a) for a in range(len(xs))]
    firsts = [slope(*xs) for slope in slopes]
    jacobian = sum(first[None] * point.jacobian for first, point in zip(firsts, points, strict=True))
    total = sum(first * point.laplacian for first, point in zip(firsts, points, strict=True))
    for a, slope in enumerate(slopes):
        traced = jax.make_jaxpr(slope)(*xs)
        for b in range(a, len(xs)):
            if any(_moved(traced, [i == b for i in range(len(xs))])):
                together = jnp.sum(points[a].jacobian * points[b].jacobian, axis=0)
                total = total + partial(slope, b)(*xs) * (together if a == b else 2 * together)
    return _Point(p(*xs), jacobian, total)


def _product(equation, inputs):
    """The second term of a product of matrices; ``None`` if one factor does not depend on x."""
    if not all(point.moves for point in inputs):
        return None
    (left, right), batch = equation.params["dimension_numbers"]
    shifted = [tuple(axis + 1 for axis in axes) for axes in (left, right, *batch)]
    numbers = (((0, *shifted[0]), (0, *shifted[1])), (shifted[2], shifted[3]))
    return 2 * lax.dot_general(
        inputs[0].jacobian,
        inputs[1].jacobian,
        numbers,
        precision=equation.params["precision"],
        preferred_element_type=equation.params["preferred_element_type"],
    )


def _shape(equation):
    return equation.outvars[0].aval.shape


def _is_real(equation):
    return all(jnp.issubdtype(v.aval.dtype, jnp.floating) for v in (*equation.invars, *equation.outvars))


# Nonlinear functions whose output elements depend on the input elements at the same index only.
_ELEMENTWISE = frozenset(
    """acos acosh asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt cos cosh digamma div erf erf_inv erfc exp
    exp2 expm1 integer_pow lgamma log log1p logistic mul pow rsqrt sin sinh sqrt square tan tanh""".split()
)


# ---- loops and branches -------------------------------------------------------------------


def _scan(step):
    params, directions = step.params, _directions(step.operands)
    body = as_closed(params["jaxpr"])
    constants, carry, slices = split_scan_inputs(step.equation, step.operands)
    n_carries = len(carry)
    rest = [point.moves for point in slices]
    moves = _carried(lambda moves: _moved(body, [c.moves for c in constants] + moves + rest), carry)

    def iteration(carry, slices):
        points = step.interpret(body, [*constants, *carry, *slices])
        carry = [_filled(point, m, directions) for point, m in zip(points[:n_carries], moves, strict=True)]
        return carry, points[n_carries:]

    carry = [_filled(point, m, directions) for point, m in zip(carry, moves, strict=True)]
    carry, outs = lax.scan(
        iteration,
        carry,
        [_directions_to_axis(point, 0, 1) for point in slices],
        length=params["length"],
        reverse=params["reverse"],
        unroll=params["unroll"],
    )
    return [*carry, *(_directions_to_axis(point, 1, 0) for point in outs)]


def _directions_to_axis(point, source, target):
    return point._replace(jacobian=jnp.moveaxis(point.jacobian, source, target)) if point.moves else point


def _while(step):
    params, directions, inputs = step.params, _directions(step.operands), step.operands
    condition, body = as_closed(params["cond_jaxpr"]), as_closed(params["body_jaxpr"])
    first, second = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    asked, constants, carry = inputs[:first], inputs[first:second], inputs[second:]
    moves = _carried(lambda moves: _moved(body, [c.moves for c in constants] + moves), carry)

    def goes_on(carry):
        [answer] = step.interpret(condition, [_Point(point.value) for point in (*asked, *carry)])
        return answer.value

    def iteration(carry):
        points = step.interpret(body, [*constants, *carry])
        return [_filled(point, m, directions) for point, m in zip(points, moves, strict=True)]

    return lax.while_loop(goes_on, iteration, [_filled(p, m, directions) for p, m in zip(carry, moves, strict=True)])


def _cond(step):
    index, *operands = step.operands
    branches, directions = [as_closed(branch) for branch in step.params["branches"]], _directions(step.operands)
    each = [_moved(branch, [point.moves for point in operands]) for branch in branches]
    moves = [any(outs) for outs in zip(*each, strict=True)]

    def run(branch):
        return lambda points: [
            _filled(point, m, directions) for point, m in zip(step.interpret(branch, points), moves, strict=True)
        ]

    return lax.switch(index.value, [run(branch) for branch in branches], operands)


_NESTED = {"scan": _scan, "while": _while, "cond": _cond}


def _carried(step, carry) -> list[bool]:
    """Which parts of a carry depend on x after some step: a fixed point of the step."""
    moves = [point.moves for point in carry]
    while True:
        wider = [a or b for a, b in zip(moves, step(moves), strict=False)]
        if wider == moves:
            return moves
        moves = wider


def _directions(points) -> int:
    return next(point.jacobian.shape[0] for point in points if point.moves)
