r"""Solutions of equations as functions of what the equations contain, with derivatives of any order in both modes.

    x*       the solution: f(x*, a) = 0, with n numbers in all
    a        what f depends on: further arguments, and arrays that f closes over
    A        the derivative of f with respect to x at x*, n by n

The derivative does not go through the steps of the solver. Along a direction v of a, the equation f(x*(a), a) = 0 gives

    A (dx*/da) v = -(df/da) v        one linear system per direction; in reverse mode its transpose per weighting

so its memory does not depend on the number of steps, and it is exact for any solver that converges.
"""

from collections.abc import Callable
from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.sparse.linalg import cg, gmres
from jaxtyping import Array, Float, PyTree

from jaxblocks.ad.arguments import as_point, scalar_valued
from jaxblocks.ad.linearization import with_forward_mode
from jaxblocks.ad.raveled import dot, raveled
from jaxblocks.checks import PositiveFloat, PositiveInt, checked
from jaxblocks.errors import describe, require
from jaxblocks.value_checks import check_values
from jaxblocks.varying import inside_shard_map, varying_like

__all__ = ["argmin", "fixed_point", "root"]

LinearSolver: TypeAlias = Literal["auto", "dense", "gmres", "cg"] | Callable[[Callable, Array], Array]
"""How linear systems are solved: by name, or a function ``(A, b) -> x`` of vectors, where ``A(v)`` is a product."""


@checked
def root(
    f: Callable[..., PyTree],
    x: PyTree,
    *args: PyTree,
    solver: Literal["newton"] | Callable = "newton",
    linear_solver: LinearSolver = "auto",
    tolerance: PositiveFloat | None = None,
    max_steps: PositiveInt = 100,
    check: bool = False,
) -> PyTree:
    r"""A solution :math:`x^*` of :math:`f(x^*, a) = 0`, with its derivatives with respect to :math:`a`.

    .. math:: A \, \frac{dx^*}{da} = -\frac{\partial f}{\partial a}, \qquad A = \frac{\partial f}{\partial x}(x^*, a)

    Args:
        f: ``f(x, *args)`` returns a pytree like ``x``. Derivatives with respect to ``args`` and to arrays that ``f``
            closes over are computed, in forward and reverse mode, of any order. A ``jax.custom_vjp`` in ``f`` is pushed
            forward by the pullback of its pullback.
        x: the point at which the search starts, a pytree of floating-point arrays; the derivative with respect to it
            is zero.
        args: further arguments of ``f``.
        solver: ``"newton"``, with steps that are halved until the sum of squares decreases, or a function
            ``solver(f, x)`` of one argument ``f(x)`` that returns the solution. It need not be differentiable.
        linear_solver: for Newton steps and derivatives: ``"dense"`` builds A, ``"gmres"`` and ``"cg"`` (for symmetric
            positive definite A) use its products only. ``"auto"`` is ``"dense"`` for at most 256 numbers. A function
            ``(A, b) -> x`` may use preconditioners; vectors hold the leaves in the order of ``jax.tree.leaves``.
        tolerance: the largest magnitude of an entry of :math:`f(x^*)`; by default :math:`\epsilon^{2/3}` (2.4e-5 in
            float32, 3.7e-11 in float64). It is checked for your solver too.
        max_steps: the number of steps after which ``"newton"`` stops.
        check: whether to report failure by ``checkify`` where arrays are traced.

    Returns:
        :math:`x^*`, like ``x``.

    Raises:
        ValueError: if the result does not reach the tolerance. Under ``jit`` and ``vmap`` the solution and its
            derivatives are NaN instead. A derivative is also NaN if its linear system is singular, or not solved to
            the square root of :math:`\epsilon`.
        TypeError: if a leaf of ``x`` is not floating-point, or ``f`` does not return a pytree like ``x``.

    >>> square_root = lambda a: root(lambda x: x**2 - a, 1.0)
    >>> value, slope = jax.jit(jax.value_and_grad(square_root))(4.0)
    >>> float(value), float(slope)
    (2.0, 0.25)

    Source: Griewank & Walther 2008, Evaluating Derivatives, chapter 15 (implicit functions;
    doi:10.1137/1.9780898717761); Blondel et al. 2022, Efficient and modular implicit differentiation
    (arXiv:2105.15183).
    """
    x, f = _of_x(f, x, args)
    return _solution(f, f, x, solver, linear_solver, tolerance, max_steps, check)


@checked
def fixed_point(
    g: Callable[..., PyTree],
    x: PyTree,
    *args: PyTree,
    solver: Literal["anderson", "newton"] | Callable = "anderson",
    linear_solver: LinearSolver = "auto",
    tolerance: PositiveFloat | None = None,
    max_steps: PositiveInt = 100,
    check: bool = False,
) -> PyTree:
    r"""A fixed point :math:`x^* = g(x^*, a)`, with its derivatives with respect to :math:`a`.

    The derivatives are those of the `root` of :math:`x - g(x, a)`, so :math:`A = I - \partial g / \partial x`.

    Args:
        g: ``g(x, *args)`` returns a pytree like ``x``.
        x, args, linear_solver, max_steps, check: as for `root`.
        solver: ``"anderson"`` combines the last six iterates (Anderson acceleration), ``"newton"`` takes fewer,
            more expensive steps; or a function ``solver(g, x)`` that returns the fixed point, such as plain iteration.
        tolerance: the largest magnitude of an entry of :math:`x^* - g(x^*)`; the default is that of `root`.

    Returns:
        :math:`x^*`, like ``x``. Errors, and results that did not converge, are those of `root`.

    >>> # Heron's square root
    >>> halfway = lambda a: fixed_point(lambda x: (x + a / x) / 2, 1.0)
    >>> value, slope = jax.jit(jax.value_and_grad(halfway))(9.0)
    >>> round(float(value), 4), round(float(slope), 4)
    (3.0, 0.1667)

    Source: Anderson 1965, Iterative procedures for nonlinear integral equations (doi:10.1145/321296.321305); Bai,
    Kolter & Koltun 2019, Deep equilibrium models (arXiv:1909.01377).
    """
    x, g = _of_x(g, x, args)
    residual = lambda x: jax.tree.map(jnp.subtract, x, g(x))
    return _solution(residual, g, x, solver, linear_solver, tolerance, max_steps, check)


@checked
def argmin(
    f: Callable[..., Float[Array, ""]],
    x: PyTree,
    *args: PyTree,
    solver: Literal["newton"] | Callable = "newton",
    linear_solver: LinearSolver = "auto",
    tolerance: PositiveFloat | None = None,
    max_steps: PositiveInt = 100,
    check: bool = False,
) -> PyTree:
    r"""A local minimum :math:`x^* = \operatorname{argmin}_x f(x, a)`, with its derivatives with respect to :math:`a`.

    The derivatives are those of the `root` of :math:`\nabla_x f(x, a)`, so A is the Hessian, which is symmetric.

    Args:
        f: ``f(x, *args)`` returns a scalar. It is differentiated twice.
        x, args, max_steps, check: as for `root`.
        solver: ``"newton"``, with steps that are halved until f decreases, or a function ``solver(f, x)`` of one
            argument ``f(x)`` that returns the minimum, such as a loop of an optimizer.
        linear_solver: as for `root`; ``"auto"`` is ``"cg"`` for more than 256 numbers.
        tolerance: the largest magnitude of an entry of the gradient; the default is that of `root`.

    Returns:
        :math:`x^*`, like ``x``. Errors, and results that did not converge, are those of `root`. Where the Hessian is
        built (``"dense"``), a result with a negative eigenvalue, such as a saddle, is an error too.

    >>> center = lambda weights: argmin(
    ...     lambda x: jnp.sum(weights * (x - jnp.array([0.0, 4.0])) ** 2), 1.0
    ... )
    >>> jax.jit(jax.value_and_grad(center))(jnp.array([3.0, 1.0]))
    (Array(1., dtype=float32), Array([-0.25,  0.75], dtype=float32))

    Source: Griewank & Walther 2008, Evaluating Derivatives, chapter 15 (doi:10.1137/1.9780898717761); Blondel et al.
    2022, Efficient and modular implicit differentiation (arXiv:2105.15183).
    """
    x, of_x = _of_x(f, x, args, same=False)
    objective = scalar_valued(of_x)
    return _solution(jax.grad(objective), objective, x, solver, linear_solver, tolerance, max_steps, check, objective)


# ---- the solution with its derivative -----------------------------------------------------------


def _of_x(f, x, args, same=True) -> tuple[PyTree, Callable]:
    """The start as arrays, and f as a function of x only."""
    x = as_point(x)
    of_x = lambda x: f(x, *args)
    if same:
        y = jax.eval_shape(of_x, x)
        leaves, got = jax.tree.leaves(x), jax.tree.leaves(y)
        alike = jax.tree.structure(y) == jax.tree.structure(x) and all(
            (a.shape, a.dtype) == (b.shape, b.dtype) for a, b in zip(leaves, got, strict=True)
        )
        if not alike:
            expected = f"a function that returns a pytree like x, {', '.join(map(describe, leaves))}"
            repair = "start at an x of the shapes and dtypes that the function returns"
            require(False, expected, ", ".join(map(describe, got)) or "nothing", repair, error=TypeError)
    return x, of_x


def _shapes(tree) -> tuple:
    return jax.tree.structure(tree), *map(jnp.shape, jax.tree.leaves(tree))


def _solution(residual, function, x, solver, linear_solver, tolerance, max_steps, check, objective=None):
    """The root of the residual; ``function`` is what a solver of the user gets."""
    require(bool(jax.tree.leaves(x)) and all(leaf.size for leaf in jax.tree.leaves(x)), "numbers in each array of x", x)
    if inside_shard_map():  # the solution varies over the devices over which the function varies
        x = varying_like(x, jax.eval_shape(function, x))
    space = raveled(with_forward_mode(residual, x), x)
    precision = max(float(jnp.finfo(leaf.dtype).eps) for leaf in jax.tree.leaves(x))
    # Rounding of f keeps a residual of some multiple of the precision; the power leaves a margin of 200 in float32.
    tolerance = precision ** (2 / 3) if tolerance is None else tolerance
    symmetric = objective is not None
    solve_linear = _linear_solver(linear_solver, space.n, symmetric, precision ** (2 / 3))

    def find(f, start):
        """The solution as a vector, its largest residual, and the smallest eigenvalue of a Hessian that is built."""
        if callable(solver):
            found = solver(function, space.to_tree(start))
            repair = "return the solution alone"
            same = _shapes(found) == _shapes(space.like)
            require(same, "a solver that returns a pytree like x", found, repair, error=TypeError)
            found = space.to_vector(jax.tree.map(jnp.asarray, found))
        elif solver == "anderson":
            found = _anderson(f, start, tolerance, max_steps)
        else:
            # A root minimizes half the squared residual, of which the Newton direction is a descent direction.
            merit = lambda v: 0.5 * jnp.sum(jnp.square(f(v)))
            if objective is not None:
                merit = lambda v, of_x=objective: of_x(space.to_tree(v)).astype(space.dtype)
            found = _newton(f, start, solve_linear, tolerance, max_steps, merit)
        lowest = jnp.zeros((), space.dtype)
        # Only a Hessian that is built anyway is checked; for larger ones the eigenvalue would cost more than the
        # solution.
        if symmetric and solve_linear is _dense:
            lowest = jnp.linalg.eigvalsh(_matrix(jax.linearize(f, found)[1], found))[0]
        return found, (jnp.max(jnp.abs(f(found))), lowest)

    def solve_derivative(product, b):
        """A linear system; NaN where it is singular or not solved, so that no wrong derivative passes silently."""

        def solve(product, b):
            y = solve_linear(product, b)
            # Iterative solvers return their last iterate without an error if they did not converge.
            ok = jnp.linalg.norm(product(y) - b) <= precision**0.5 * jnp.linalg.norm(b)
            return y * jnp.where(ok, 1, jnp.nan).astype(y.dtype)

        return lax.custom_linear_solve(product, b, solve, transpose_solve=solve, symmetric=symmetric)

    compiled = lambda f, start: jax.jit(lambda start: find(f, start))(start)  # one program where it is called eagerly
    found, facts = lax.custom_root(space.apply, space.to_vector(x), compiled, solve_derivative, has_aux=True)
    error, lowest = lax.stop_gradient(facts)
    converged = error <= tolerance
    check_values(
        converged,
        f"a solution within the tolerance, got a residual of {{error}} (tolerance {tolerance:.2g}); pass another "
        "start, more max_steps, another solver, or a larger tolerance",
        check=check,
        error=error,
    )
    is_minimum = lowest >= -(precision**0.5)
    message = "a minimum, got a point where the Hessian has the eigenvalue {lowest}; pass another start"
    check_values(is_minimum, message, check=check, lowest=lowest)
    ok = lax.stop_gradient(converged & is_minimum)
    return space.to_tree(found * jnp.where(ok, 1, jnp.nan).astype(found.dtype))  # the derivatives become NaN too


# ---- solvers of vectors ------------------------------------------------------------------------


def _linear_solver(method, n, symmetric, tolerance) -> Callable[[Callable, Array], Array]:
    """The function ``(A, b) -> x`` of a method; it needs no derivative."""
    if method == "auto":
        # "cg" requires a symmetric matrix; "gmres" does not.
        method = "dense" if n <= 256 else "cg" if symmetric else "gmres"
    if method == "dense":
        return _dense
    if method == "cg":
        return lambda product, b: cg(product, b, tol=tolerance, maxiter=min(10 * n, 1000))[0]
    if method == "gmres":
        return lambda product, b: gmres(
            product, b, tol=tolerance, restart=min(n, 30), maxiter=20, solve_method="incremental"
        )[0]
    return method


def _dense(product, b):
    return jnp.linalg.solve(_matrix(product, b), b)


def _matrix(product, like):
    return jax.vmap(product, out_axes=1)(varying_like(jnp.eye(like.size, dtype=like.dtype), like))


def _newton(f, x, solve_linear, tolerance, max_steps, merit):
    """Newton's method. A step is halved until the merit decreases; it falls back to the gradient of the merit."""
    rounding = 10 * jnp.finfo(x.dtype).eps

    def goes_on(carry):
        _, residual, steps = carry
        return (jnp.max(jnp.abs(residual)) > tolerance) & (steps < max_steps)

    def step(carry):
        x, residual, steps = carry
        value, gradient = jax.value_and_grad(merit)(x)
        direction = solve_linear(jax.linearize(f, x)[1], -residual)
        descends = dot(gradient, direction) < 0  # also False where it is NaN
        direction = jnp.where(descends, direction, -gradient)
        slope = dot(gradient, direction)

        def too_long(t):
            enough = merit(x + t * direction) <= value + 1e-4 * t * slope + rounding * jnp.abs(value)
            return ~enough & (t > 1e-9)

        t = lax.while_loop(too_long, lambda t: t / 2, varying_like(jnp.ones((), x.dtype), x))
        x = x + t * direction
        return x, f(x), steps + 1

    return lax.while_loop(goes_on, step, (x, f(x), 0))[0]


def _anderson(f, x, tolerance, max_steps, memory=5):
    r"""Anderson acceleration: the combination of the last iterates whose linearized residual f is smallest."""

    def goes_on(carry):
        _, residual, _, _, steps = carry
        return (jnp.max(jnp.abs(residual)) > tolerance) & (steps < max_steps)

    def step(carry):
        x, residual, moves, changes, steps = carry  # the last differences of x and of the residual, in rows
        # Least squares of minimum norm, so that rows that are still zero have weight 0.
        weights = jnp.linalg.lstsq(changes.T, residual)[0]
        move = -residual - dot(weights, moves - changes)
        changed = f(x + move) - residual
        row = steps % memory
        return x + move, residual + changed, moves.at[row].set(move), changes.at[row].set(changed), steps + 1

    rows = varying_like(jnp.zeros((memory, x.size), x.dtype), x)
    return lax.while_loop(goes_on, step, (x, f(x), rows, rows, 0))[0]
