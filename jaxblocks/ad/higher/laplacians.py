r"""The Laplacian of a function in one forward pass, by one rule for every equation of its jaxpr.

    x        the point, any pytree of floating-point arrays with n numbers in all
    y        the value f(x), an array
    J_i      the derivative of a value in the i-th direction: n of them, on a leading axis
    L        the Laplacian of a value, the sum of its n second derivatives

Where an equation computes y = p(x) from values with known J and L, the chain rule gives
    y = p(x)        J_y,i = p'(x) J_i        L_y = p'(x) L + sum_i p''(x)[J_i, J_i]
and nothing else is stored: no n by n Hessian, no residuals. The computation depends on p:

if p'(x) does not depend on x, the second term vanishes; an elementwise p needs p''(x) once and not n times;
a product of matrices contracts over i in addition to its own axes; a chain of elementwise functions of one value is
multiplied out before it is applied to the directions; inputs share a direction
(`jaxblocks.ad.higher.shared_directions`) until an intermediate value depends on both.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Literal
from jaxtyping import Array, Float, PyTree

from jaxblocks.ad.higher.shared_directions import SharedDirections, shared_directions
from jaxblocks.ad.programs.arguments import Tree, array_valued, as_point
from jaxblocks.ad.programs.dependence import SINGLE
from jaxblocks.ad.programs.jaxprs import (
    Step,
    all_equations,
    body_of_call,
    dtype_of,
    evaluate,
    interpret,
    shape_of,
)
from jaxblocks.ad.programs.linearization import with_forward_rules
from jaxblocks.ad.programs.propagation import can_move, depends, differentiable, moved, nested_rules, opens
from jaxblocks.ad.vectors.raveled import offsets
from jaxblocks.backend.powers_of_two import divided, unit_of
from jaxblocks.backend.quotients import divide
from jaxblocks.backend.varying import varying_like
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import PositiveInt, checked

__all__ = ["biharmonic", "laplacian", "value_grad_laplacian"]


@checked
def laplacian(
    f: Callable[[Any], Float[Array, "..."]], x: PyTree, *, chunk_size: PositiveInt | None = None
) -> Float[Array, "..."]:
    r"""The Laplacian $Δ f(x) = ∑_{i=1}^n ((∂^2 f) / (∂ x_i^2))$, exactly.

    It is the trace of the Hessian of each output, in about half the operations that the
    Hessian of a dense network takes, and in far fewer where f is a sum over particles (or other parts of x): their
    entries share directions until a value depends on several particles. Loops and branches are kept (a ``scan`` stays a
    ``scan``), and take all directions. The result can be transformed by ``jit``, ``vmap`` and ``grad``.

    Args:
        f: takes a pytree, returns one floating-point array, of any shape.
        x: the point, a pytree of floating-point arrays, n numbers in all.
        chunk_size: the number of directions computed at once; all n by default. With chunks the memory is about
            ``chunk_size / n`` of that, f itself is computed once for each chunk, and no directions are shared.

    Returns:
        $Δ f(x)$, of the shape of ``f(x)``.

    Raises:
        TypeError: if a leaf of ``x`` is not floating-point, or ``f`` does not return one floating-point array.
        NotImplementedError: if ``f`` uses a primitive that JAX cannot differentiate (the error names it).

    Rules of ``jax.custom_jvp`` are used. A ``jax.custom_vjp`` has no rule for forward mode; the derivative along a
    direction is the pullback of its pullback. For large n, `estimate_trace` of `directional_curvature` estimates the
    Laplacian of a scalar-valued function from few random vectors.

    >>> float(laplacian(lambda x: jnp.sum(x**3), jnp.array([1.0, 2.0])))
    18.0

    Source: Li et al. 2023 (the forward Laplacian; arXiv:2307.08214); Dangel et al. 2025 (arXiv:2505.13644).
    """
    return _forward_laplacian(f, x, chunk_size)[2]


@checked
def value_grad_laplacian(
    f: Callable[[Tree], Float[Array, "..."]], x: Tree, *, chunk_size: PositiveInt | None = None
) -> tuple[Float[Array, "..."], Tree, Float[Array, "..."]]:
    r"""The value $f(x)$, the Jacobian and $Δ f(x)$, in one forward pass.

    The Jacobian has the structure of ``x`` and leaves of the shape ``(*f(x).shape, *leaf.shape)``: for a
    scalar-valued f it is the gradient. Arguments and errors are those of `laplacian`.

    >>> value, gradient, laplacian = value_grad_laplacian(
    ...     lambda x: jnp.sum(x**3), jnp.array([1.0, 2.0])
    ... )
    >>> value, gradient, laplacian
    (Array(9., dtype=float32), Array([ 3., 12.], dtype=float32), Array(18., dtype=float32))

    Source: Li et al. 2023 (the forward Laplacian; arXiv:2307.08214).
    """
    value, jacobian, total = _forward_laplacian(f, x, chunk_size)
    leaves, structure = jax.tree.flatten(as_point(x))
    parts = []
    for start, leaf in offsets(leaves):
        part = jnp.moveaxis(jacobian[start : start + leaf.size], 0, -1)  # (*y, leaf.size)
        parts.append(part.reshape(*value.shape, *leaf.shape))
    return value, structure.unflatten(parts), total


@checked
def biharmonic(
    f: Callable[[Any], Float[Array, "..."]], x: PyTree, *, chunk_size: PositiveInt | None = None
) -> Float[Array, "..."]:
    r"""The biharmonic operator $Δ^2 f(x) = ∑_{i,j} (∂^4 f) / (∂ x_i^2 ∂ x_j^2)$.

    It is the Laplacian of the Laplacian, in one forward pass. Arguments, the result and the errors are those of
    `laplacian`; ``chunk_size`` limits the directions of both. For large n, `estimate_biharmonic` estimates it.

    >>> quartic = lambda x: jnp.sum(x**2) ** 2
    >>> float(jax.jit(lambda x: biharmonic(quartic, x))(jnp.array([1.0, 2.0])))
    64.0
    """
    return laplacian(lambda x: laplacian(f, x, chunk_size=chunk_size), x, chunk_size=chunk_size)


def _forward_laplacian(f, x, chunk_size) -> tuple[Array, Array, Array]:
    """Value, Jacobian (n, *y) and Laplacian of f at x, all directions at once or in chunks."""
    f = array_valued(f)
    x = as_point(x)
    leaves, structure = jax.tree.flatten(x)
    sizes = [leaf.size for leaf in leaves]
    n = sum(sizes)
    require(n > 0, "x to hold at least one number", "empty arrays", "pass the point of the derivative")
    closed = with_forward_rules(jax.make_jaxpr(lambda *leaves: f(structure.unflatten(leaves)))(*leaves))
    if chunk_size is None or chunk_size >= n:
        shared = shared_directions(closed, sizes)
        points = []
        for start, leaf in offsets(leaves):
            ids = np.arange(SINGLE + start, SINGLE + start + leaf.size).reshape(leaf.shape)
            color = shared.colors[start : start + leaf.size].reshape(leaf.shape)
            # One direction for each color; the entries of x with this color share it.
            units = np.arange(shared.count).reshape(-1, *(1,) * leaf.ndim) == color[None]
            points.append(_Point(leaf, varying_like(units.astype(leaf.dtype), leaf), None, ids))
        [y] = _interpret(closed, points, shared)
        return _filled(_spread(y, shared), n)[:3]

    def along(start, size):
        points = [_seeded(leaf, start - first, size) for first, leaf in offsets(leaves)]  # parts of unit vectors
        [y] = _interpret(closed, points)
        return _filled(y, size)[:3]

    def step(carry, start):
        value, jacobian, part = along(start, chunk_size)
        return (value, carry[1] + part), jacobian

    [aval] = closed.out_avals
    begin = varying_like(jnp.zeros(aval.shape, aval.dtype), aval)
    # Every chunk computes the same value, and the carry holds the last one.
    (value, total), jacobian = lax.scan(step, (begin, begin), jnp.arange(0, n, chunk_size))
    return value, jacobian.reshape(-(-n // chunk_size) * chunk_size, *aval.shape)[:n], total


def _seeded(leaf, start, count):
    """A part of x with a derivative of 1 along the direction of each entry; ``count`` of them from ``start`` on."""
    directions = (start + jnp.arange(count)).reshape(count, *(1,) * leaf.ndim)
    # Rows of the identity; beyond the last entry, in the last chunk, the comparison gives zeros.
    own = directions == jnp.arange(leaf.size).reshape(1, *leaf.shape)
    return _Point(leaf, varying_like(own.astype(leaf.dtype), leaf), None)


# ---- the interpretation -----------------------------------------------------------------------------


class _Point(NamedTuple):
    """A value with its derivatives, directions on the leading axis; these are ``None`` if it does not depend on x.

    The Laplacian is ``None`` where it is zero, as for linear functions of x. ``ids`` are the dependences of a narrow or
    sparse value (`jaxblocks.ad.higher.shared_directions`), whose directions are shared; else there is one for each
    input.
    """

    value: Any
    jacobian: Any = None
    laplacian: Any = None
    ids: Any = None
    sparse: Any = None  # True or None, so that loops carry no flag

    @property
    def moves(self) -> bool:
        return self.jacobian is not None

    @property
    def point(self) -> "_Point":
        return self


class _Function:
    """An elementwise function of one point, by its derivatives at each element.

    The derivatives along the directions are computed when another operation needs them: once for a chain of elementwise
    functions, such as the parts of an activation. The slopes of a chain are multiplied first; factors that could take
    their product out of the range of the dtype end the chain (`_is_rescaling`).

    Attributes:
        slope: the first derivative; ``None`` for the point itself.
        first, second: the first and the second derivative in the ``unit`` of the point (`_unit`), ``None`` for a linear
            function.
    """

    moves = True

    def __init__(self, value, base: _Point, slope=None, first=None, second=None, unit=None):
        self.value, self.base, self.slope = value, base, slope
        self.first, self.second, self.unit = first, second, unit

    def first_in(self, unit) -> Array:
        """The first derivative in ``unit``, which is ``None`` where the unit is 1."""
        if self.first is not None:
            return self.first
        one = jnp.ones_like(self.value)
        # The derivative of a linear function is a constant, and a compiler multiplies constants first: the square of
        # this one may overflow where its products with a second derivative do not. A selection is not a constant.
        first = one if self.slope is None else jnp.where(jnp.isnan(self.value), one, self.slope)
        return first if unit is None else first * unit

    @functools.cached_property
    def point(self) -> _Point:
        """The same value with its derivatives along the directions."""
        # The chain rule: Laplacian of p(y) = p'(y) Laplacian of y + p''(y) |gradient of y|^2.
        base, slope = self.base, self.slope
        if slope is None:
            return base
        total = None if base.laplacian is None else slope * base.laplacian
        if self.second is not None:
            squares = _sum(lambda x: jnp.square(_in_unit(x, self.unit)), base.jacobian)
            total = _plus(total, self.second * squares)
        return base._replace(value=self.value, jacobian=slope[None] * base.jacobian, laplacian=total)


def _unit(point: _Point) -> Array | None:
    """For each element a power of two of the size of its derivatives; ``None`` for 1.

    A rescaling inside of f, such as x * 2^64, gives derivatives whose squares leave the range of the dtype, and the
    second derivative of what follows leaves it at the other end, although their product is an ordinary number. With
    y + u t for the value y, neither the second derivative with respect to t nor the squares of the derivatives of y
    divided by u, which are at most 4, leave the range.
    """
    if isinstance(point.jacobian, np.ndarray):  # of x itself, zeros and ones
        return None
    size = _sum(jnp.abs, point.jacobian)
    # Where all are 0, neither their squares in this unit overflow, nor those of what follows.
    return unit_of(size, of_zero=float(jnp.finfo(size.dtype).tiny) ** (1 / 3))


def _sum(f, x):
    """The sum of f(x_d) over the directions; of few as separate terms, which the compiler fuses with what uses them."""
    if x.shape[0] > _FEW:
        return jnp.sum(jax.vmap(f)(x), axis=0)
    return functools.reduce(jnp.add, [f(x[d]) for d in range(x.shape[0])])


_FEW = 8


def _in_unit(derivative, unit):
    return derivative if unit is None else divided(derivative, unit)


def _filled(point, directions) -> _Point:
    """The same point with arrays for derivatives that are zero, where a loop or a branch needs them."""
    point = point.point
    value = jnp.asarray(point.value)
    if not point.moves:
        point = point._replace(value=value, jacobian=jnp.zeros_like(value, shape=(directions, *value.shape)))
    return point if point.laplacian is not None else point._replace(laplacian=jnp.zeros_like(value))


def _plus(a, b):
    """The sum of two arrays, of which ``None`` is zero."""
    return b if a is None else a if b is None else a + b


def _spread(point, shared) -> _Point:
    """The same point with one direction for each input."""
    point = point.point
    if point.ids is None:
        return point
    jacobian = shared.expand(point.jacobian, point.ids, sparse=bool(point.sparse))
    return point._replace(jacobian=jacobian, ids=None, sparse=None)


def _aligned(point, ids, shared, count):
    """The same point with its derivatives at the places of the dependences ``ids``; ``None`` leaves it as it is."""
    if ids is None or not point.moves:
        return point
    owners = shared.places(point.ids) if point.sparse else shared.owners(point.ids)
    if point.value.shape != ids.shape:
        full = lambda x: None if x is None else jnp.broadcast_to(x, (*x.shape[: x.ndim - ids.ndim], *ids.shape))
        point = _Point(*map(full, point[:3]))
    return point._replace(jacobian=shared.align(point.jacobian, owners, ids, count), ids=ids, sparse=True)


def _interpret(closed: ClosedJaxpr, points, shared: SharedDirections | None = None) -> list:
    """The outputs of a jaxpr with their derivatives, from its inputs with theirs."""

    def rule(step):
        if not depends(step):
            return [_Point(value) for value in step.evaluate([point.value for point in step.operands])]
        if step.name in _NESTED:
            spread = [_spread(point, shared) for point in step.operands]
            spread = [_filled(point, None) if point.moves else point for point in spread]
            return _NESTED[step.name](dataclasses.replace(step, operands=spread))
        along = _of_one_point(step)
        if along is not None:
            return [along]
        operands = [point.point for point in step.operands]
        moves = can_move(step.equation)
        sharing = shared if all(point.ids is not None for point in operands if point.moves) else None
        if sharing is not None and step.path in sharing.sparse:
            return [_of_sparse(step, operands, sharing)]
        narrow = None
        if sharing is not None and not any(point.sparse for point in operands):
            narrow = sharing.narrow[step.path]
        if narrow and any(ids is None for ids, moves in zip(narrow, moves, strict=True) if moves):
            narrow = None
        if narrow is None:
            of_inputs = _of_inputs(dataclasses.replace(step, operands=operands), shared)
            if of_inputs is not None:
                return [of_inputs]
            operands, narrow = [_spread(point, shared) for point in operands], [None] * len(moves)
        outs = _differentiate(dataclasses.replace(step, operands=operands))
        return [out._replace(ids=ids) if out.moves else out for out, ids in zip(outs, narrow, strict=True)]

    return interpret(closed, points, rule, constant=_Point, opens=opens)


_NESTED = nested_rules(
    lambda point, like: _filled(point, like.jacobian.shape[0]),
    to_slices=lambda point: point._replace(jacobian=jnp.moveaxis(point.jacobian, 0, 1)) if point.moves else point,
    from_slices=lambda point: point._replace(jacobian=jnp.moveaxis(point.jacobian, 1, 0)) if point.moves else point,
)


# ---- one equation -------------------------------------------------------------------------


def _part(step, outputs, moving):
    """Some outputs of an equation as a function of its inputs ``moving``."""
    operands = [point.value for point in step.operands]
    if step.name != "div":
        return step.function_of(moving, operands, outputs)

    def quotient(*xs):
        values = dict(zip(moving, xs, strict=True))
        pairs = zip(step.equation.invars, operands, strict=True)
        return [_divide(*(x if isinstance(v, Literal) else values.get(v, x) for v, x in pairs))]

    return quotient


def _divide(a, b):
    return divide(jnp.asarray(a), jnp.asarray(b))


def _traced(f, *args):
    """The jaxpr of a derivative, and the function that evaluates it, with derivatives that divide by no square.

    The derivatives of roots and logarithms are quotients, and JAX divides by a square in the derivative of a quotient.
    """
    closed, shape = jax.make_jaxpr(f, return_shape=True)(*args)
    structure = jax.tree.structure(shape)

    def run(*args):
        leaves = jax.tree.leaves(args)
        return structure.unflatten(evaluate(closed, *leaves, opens=lambda body: False, rules={"div": _divide}))

    return closed, run


def _moving(step) -> dict:
    """The distinct inputs of an equation that depend on x."""
    pairs = zip(step.equation.invars, step.operands, strict=True)
    return {v: point for v, point in pairs if not isinstance(v, Literal) and point.moves}


def _of_one_point(step) -> _Function | None:
    """An elementwise function of values that are themselves elementwise functions of one point; else ``None``."""
    if not _is_elementwise(step):
        return None
    known = _moving(step)
    parts = [part if isinstance(part, _Function) else _Function(part.value, part) for part in known.values()]
    base = parts[0].base
    # The derivatives of x are zeros and ones: slopes are as large as derivatives.
    of_x = isinstance(base.jacobian, np.ndarray)
    if any(part.base is not base for part in parts) or (not of_x and _is_rescaling(step)):
        return None
    xs = tuple(part.value for part in parts)
    p = _part(step, step.equation.outvars, list(known))

    with differentiable(step.name, "twice"):
        traced, push = _traced(lambda xs, ts: jax.jvp(lambda *xs: p(*xs)[0], xs, ts)[1], xs, xs)
        if step.name == "custom_jvp_call" and not _all_elementwise(traced.eqns, _shape(step.equation)):
            return None
        # With x' the first derivatives of the parts in their base, p(x)' = sum of p_i x_i'.
        slopes = tuple(jnp.ones_like(part.value) if part.slope is None else part.slope for part in parts)
        value, slope = p(*xs)[0], push(xs, slopes)
        bends = any(moved(traced, [True] * len(xs) + [False] * len(xs)))
        if not bends and all(part.second is None for part in parts):
            return _Function(value, base, slope)
        unit = next((part.unit for part in parts if part.unit is not None), None)
        unit = _unit(base) if unit is None else unit
        firsts = tuple(part.first_in(unit) for part in parts)
        second = jax.jvp(lambda *xs: push(xs, firsts), xs, firsts)[1] if bends else None
        if any(part.second is not None for part in parts):
            seconds = tuple(jnp.zeros_like(part.value) if part.second is None else part.second for part in parts)
            second = _plus(second, push(xs, seconds))
        return _Function(value, base, slope, push(xs, firsts), second, unit)


def _is_elementwise(step) -> bool:
    """Whether each element of the output depends on the elements of the same index of inputs like the output."""
    outs: list[Any] = step.equation.outvars
    like = (shape_of(outs[0]), dtype_of(outs[0]))
    body = step.body.eqns if step.name == "custom_jvp_call" else [step.equation]
    return (
        len(outs) == 1
        and all((point.value.shape, point.value.dtype) == like for point in step.operands if point.moves)
        and _all_elementwise(body, like[0])
    )


def _is_rescaling(step) -> bool:
    """Whether an equation multiplies by an array of constants, or by a number far from 1, or divides by one.

    A product with other slopes may leave the range of the dtype, where the products with the derivatives do not.
    """
    if step.name not in ("mul", "div"):
        return False
    limit = float(jnp.finfo(dtype_of(step.equation.outvars[0])).max) ** 0.25
    for variable, point in zip(step.equation.invars, step.operands, strict=True):
        if point.moves:
            continue
        if not isinstance(variable, Literal) or np.ndim(variable.val):
            return True
        if variable.val and not 1 / limit < abs(float(variable.val)) < limit:
            return True
    return False


def _all_elementwise(equations, shape) -> bool:
    """Whether some equations compute arrays of a shape elementwise, or constants from scalars."""

    def fits(equation):
        outs, name = equation.outvars, equation.primitive.name
        from_scalar = name == "broadcast_in_dim" and shape_of(equation.invars[0]) == ()
        known = name in _ALONG or from_scalar or body_of_call(equation) is not None
        return known and all(shape_of(v) in (shape, ()) and _is_float_or_flag(v) for v in outs)

    return all(map(fits, all_equations(equations)))


def _is_float_or_flag(variable):
    return jnp.issubdtype(dtype_of(variable), jnp.floating) or jnp.issubdtype(dtype_of(variable), jnp.bool_)


def _differentiate(step: Step) -> list[_Point]:
    """The second-order chain rule for one primitive, as a function of its distinct inputs that depend on x."""
    equation, name, kinds = step.equation, step.name, can_move(step.equation)
    known = _moving(step)
    points = list(known.values())
    xs = [point.value for point in points]
    p = _part(step, [v for v, moves in zip(equation.outvars, kinds, strict=True) if moves], list(known))
    with differentiable(name, "twice"):
        if name in _ELEMENTWISE and _is_real(equation) and all(jnp.shape(x) == _shape(equation) for x in xs):
            # A product has derivatives of the size of its factors, which need no units.
            units = [None if name == "mul" else _unit(point) for point in points]
            outs = [_elementwise(lambda *xs: p(*xs)[0], points, units)]
        else:
            second = _product(equation, step.operands) if name == "dot_general" else None
            outs = _any(p, points, second)
    # Outputs of integers and flags have no derivatives, and are only evaluated.
    rest = _part(step, [v for v, moves in zip(equation.outvars, kinds, strict=True) if not moves], list(known))(*xs)
    outs, rest = iter(outs), iter(rest)
    return [next(outs) if moves else _Point(next(rest)) for moves in kinds]


def _of_sparse(step, operands, shared) -> _Point:
    """An equation with a sparse output: each element has the directions of the inputs that it depends on."""
    targets, output = shared.sparse[step.path]
    count = max(len(shared.places(ids)) for ids in targets if ids is not None)
    operands = [_aligned(point, ids, shared, count) for point, ids in zip(operands, targets, strict=True)]
    [out] = _differentiate(dataclasses.replace(step, operands=operands))
    return out._replace(jacobian=out.jacobian[: len(shared.places(output))], ids=output, sparse=True)


def _of_inputs(step, shared) -> _Point | None:
    """A product of a vector, of which entry i depends on input i alone, with a constant matrix; else ``None``.

    Its Jacobian is the matrix, each row times the derivative of its entry, and takes no product.
    """
    if step.name != "dot_general" or shared is None or shared.count > 1 or step.operands[1].moves:
        return None
    point, other = step.operands
    (axes, other_axes), (batch, _) = step.params["dimension_numbers"]
    own = np.arange(SINGLE, SINGLE + shared.colors.size)  # the dependences of x itself
    if batch or len(axes) != 1 or point.sparse or not np.array_equal(point.ids, own):
        return None
    matrix = jnp.moveaxis(other.value, other_axes[0], 0)  # (inputs, *free axes)
    slopes = point.jacobian[0].reshape(-1, *(1,) * (matrix.ndim - 1))
    of_x = isinstance(slopes, np.ndarray) and (slopes == 1).all()
    bind = lambda x: step.evaluate([x, other.value])[0]
    value, total = bind(point.value), None if point.laplacian is None else bind(point.laplacian)
    return _Point(value, (matrix if of_x else slopes * matrix).astype(value.dtype), total)


def _any(p, points, second=None) -> list[_Point]:
    """Any primitive, linearized once; ``second`` is the sum of the second derivatives if already known."""
    xs, jacobians = (tuple(getattr(point, name) for point in points) for name in ("value", "jacobian"))
    values, push = jax.linearize(p, *xs)
    pushed, totals = jax.vmap(push)(*jacobians), [None] * len(values)
    if any(point.laplacian is not None for point in points):
        # The first derivative is linear: it maps the Laplacians of the inputs as it maps a tangent.
        totals = push(*(_filled(point, None).laplacian for point in points))

    traced, slope = _traced(lambda xs, ts: jax.jvp(p, xs, ts)[1], xs, xs)

    def bend(*ts):
        return jax.jvp(lambda *xs: slope(xs, ts), xs, ts)[1]

    if second is not None:
        totals = [_plus(totals[0], second)]
    elif any(moved(traced, [True] * len(xs) + [False] * len(xs))):
        # The sum over the directions d of the second derivative of p along (J_d, J_d).
        bends = jax.vmap(bend)(*jacobians)
        totals = [_plus(total, each.sum(axis=0)) for total, each in zip(totals, bends, strict=True)]
    return [_Point(*parts) for parts in zip(values, pushed, totals, strict=True)]


def _elementwise(p, points, units) -> _Point:
    """An elementwise function: its partial derivatives are computed once for all directions, in units (`_unit`)."""
    xs = [point.value for point in points]

    def partial(p, a, unit=None):
        along = jnp.ones_like(xs[a]) if unit is None else unit

        def slope(*xs):
            return jax.jvp(lambda x: p(*xs[:a], x, *xs[a + 1 :]), (xs[a],), (along,))[1]

        return _traced(slope, *xs)

    slopes = [partial(p, a) for a in range(len(xs))]
    firsts = [slope(*xs) for _, slope in slopes]
    jacobian = sum(first[None] * point.jacobian for first, point in zip(firsts, points, strict=True))
    total = None
    for first, point in zip(firsts, points, strict=True):
        total = total if point.laplacian is None else _plus(total, first * point.laplacian)
    in_unit = [jax.vmap(_in_unit, (0, None))(point.jacobian, unit) for point, unit in zip(points, units, strict=True)]
    for a in range(len(xs)):
        traced, slope = slopes[a] if units[a] is None else partial(p, a, units[a])
        # Mixed derivatives are symmetric, so those with b > a count twice.
        for b in range(a, len(xs)):
            if any(moved(traced, [i == b for i in range(len(xs))])):
                together = jnp.sum(in_unit[a] * in_unit[b], axis=0)
                second = partial(slope, b, units[b])[1](*xs)
                total = _plus(total, second * (together if a == b else 2 * together))
    return _Point(p(*xs), jacobian, total)


def _product(equation, inputs):
    """The second term of a product of matrices; ``None`` if one factor does not depend on x."""
    if not all(point.moves for point in inputs):
        return None
    (left, right), batch = equation.params["dimension_numbers"]
    shifted = [tuple(axis + 1 for axis in axes) for axes in (left, right, *batch)]
    numbers = (((0, *shifted[0]), (0, *shifted[1])), (shifted[2], shifted[3]))
    # The mixed term, twice the sum over the directions of J_d(left) J_d(right), is one product in which the directions
    # are contracted too.
    return 2 * lax.dot_general(
        inputs[0].jacobian,
        inputs[1].jacobian,
        numbers,
        precision=equation.params["precision"],
        preferred_element_type=equation.params["preferred_element_type"],
    )


def _shape(equation):
    return shape_of(equation.outvars[0])


def _is_real(equation):
    return all(jnp.issubdtype(v.aval.dtype, jnp.floating) for v in (*equation.invars, *equation.outvars))


# Nonlinear functions whose output elements depend on the input elements at the same index only.
_ELEMENTWISE = frozenset(
    """acos acosh asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt cos cosh digamma div erf erf_inv erfc exp
    exp2 expm1 integer_pow lgamma log log1p logistic mul pow rsqrt sin sinh sqrt square tan tanh""".split()
)
# Functions that a chain of elementwise functions may contain besides.
_ALONG = _ELEMENTWISE | set(
    """abs add add_any clamp convert_element_type copy copy_p eq ge gt is_finite le lt max min ne neg not and or xor
    select_n sign sub stop_gradient""".split()
)
