r"""Solutions of equations as functions of what the equations contain, with derivatives of any order in both modes.

    x*       the solution: f(x*, a) = 0, with n numbers in all
    a        what f depends on: further arguments, and arrays that f closes over
    A        the derivative of f with respect to x at x*, n by n

The derivative does not go through the steps of the solver. Along a direction v of a, the equation f(x*(a), a) = 0 gives

    A (dx*/da) v = -(df/da) v        one linear system per direction; in reverse mode its transpose per weighting

so its memory does not depend on the number of steps, and it is exact for any solver that converges.

The function and its derivatives are evaluated in full precision on every device. With the products of GPUs and TPUs,
which have 3 digits by default, no solver converges to float32. (Products in f with a ``precision=`` of their own keep
it.)

What "solved" means does not depend on the units of f or of its entries. The terms of entry i are the products
$A_{ij} x_j$, and their size is measured by two products of A with x, with different signs of the entries. The
entry is solved if $|f_i| ≤ τ ·$ size, with the tolerance $τ$. This cannot be reached where
the terms vanish at the solution, or where f has larger terms that cancel, such as 1 in exp(x) - 1 near 0. So a result
is also accepted if the Newton step from it is at most $τ max(1, |x|)$, and solves its linear system. A result is
not accepted where it, f or the size of a term is infinite.
"""

import contextlib
from collections.abc import Callable
from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.linalg import solve_triangular
from jax.scipy.sparse.linalg import cg
from jaxtyping import Array, Float, PyTree

from jaxblocks.ad.programs.arguments import Tree, as_point, scalar_valued
from jaxblocks.ad.programs.linearization import missing_mode, with_forward_mode
from jaxblocks.ad.vectors.raveled import dot, raveled
from jaxblocks.backend.powers_of_two import divided, unit_of
from jaxblocks.backend.precision import full_precision
from jaxblocks.backend.quotients import norm
from jaxblocks.backend.varying import inside_shard_map, varying_like
from jaxblocks.checks.errors import describe, require
from jaxblocks.checks.expectations import PositiveFloat, PositiveInt, checked
from jaxblocks.checks.values import check_values

__all__ = ["argmin", "fixed_point", "root"]

LinearSolver: TypeAlias = Literal["auto", "dense", "gmres", "cg"] | Callable[[Callable, Array], Array]
"""How linear systems are solved: by name, or a function ``(A, b) -> x`` of vectors, where ``A(v)`` is a product."""


@checked
def root(
    f: Callable[..., PyTree],
    x: Tree,
    *args: PyTree,
    solver: Literal["newton"] | Callable = "newton",
    linear_solver: LinearSolver = "auto",
    tolerance: PositiveFloat | None = None,
    max_steps: PositiveInt = 100,
    check: bool = False,
) -> Tree:
    r"""A solution $x^*$ of $f(x^*, a) = 0$, with its derivatives with respect to $a$.

    .. math::

        A ((dx^*) / da) = -(∂ f) / (∂ a),
        A = ((∂ f) / (∂ x)) (x^*, a)

    Args:
        f: ``f(x, *args)`` returns a pytree like ``x``. Derivatives with respect to ``args`` and to arrays that ``f``
            closes over are computed, in forward and reverse mode, of any order. A ``jax.custom_vjp`` in ``f`` is pushed
            forward by the pullback of its pullback.
        x: the point at which the search starts, a pytree of floating-point arrays; the derivative with respect to it
            is zero.
        args: further arguments of ``f``. Under ``jax.vmap`` inside of ``jax.shard_map``, pass arrays that all devices
            share here: JAX rejects those that ``f`` closes over there.
        solver: ``"newton"``, with steps that are halved until the sum of squares decreases, or a function
            ``solver(f, x)`` of one argument ``f(x)`` that returns the solution. It need not be differentiable.
        linear_solver: for Newton steps and derivatives: ``"dense"`` builds A, ``"gmres"`` and ``"cg"`` (for symmetric
            positive definite A) use its products only. ``"auto"`` is ``"dense"`` for at most 256 numbers. A function
            ``(A, b) -> x`` may use preconditioners; vectors hold the leaves in the order of ``jax.tree.leaves``.
        tolerance: $τ$, the magnitude of the entries of $f(x^*)$ relative to that of the terms
            $A_{ij} x^*_j$ of each, so that f and 1000 f have the same solution; by default
            $ϵ^{2/3}$ (2.4e-5 in float32, 3.7e-11 in float64). Where the terms vanish or cancel, a Newton
            step of at most $τ max(1, |x^*|)$ suffices. It is checked for your solver too.
        max_steps: the number of steps after which ``"newton"`` stops.
        check: whether to report failure by ``checkify`` where arrays are traced.

    Returns:
        $x^*$, like ``x``.

    Raises:
        ValueError: if the result does not reach the tolerance. Under ``jit`` and ``vmap`` the solution and its
            derivatives are NaN instead. A derivative is also NaN if its linear system is singular, or not solved to
            the square root of $ϵ$.
        TypeError: if a leaf of ``x`` is not floating-point, or ``f`` does not return a pytree like ``x``, or has a
            ``jax.lax.while_loop`` over ``x``, which has no reverse mode.

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
    x: Tree,
    *args: PyTree,
    solver: Literal["anderson", "newton"] | Callable = "anderson",
    linear_solver: LinearSolver = "auto",
    tolerance: PositiveFloat | None = None,
    max_steps: PositiveInt = 100,
    check: bool = False,
) -> Tree:
    r"""A fixed point $x^* = g(x^*, a)$, with its derivatives with respect to $a$.

    The derivatives are those of the `root` of $x - g(x, a)$, so $A = I - ∂ g / ∂ x$.

    Args:
        g: ``g(x, *args)`` returns a pytree like ``x``.
        x, args, linear_solver, max_steps, check: as for `root`.
        solver: ``"anderson"`` combines the last six iterates (Anderson acceleration), ``"newton"`` takes fewer,
            more expensive steps; or a function ``solver(g, x)`` that returns the fixed point, such as plain iteration.
        tolerance: the magnitude of the entries of $x^* - g(x^*)$ relative to the largest entry of $x^*$
            and $g(x^*)$; otherwise as for `root`.

    Returns:
        $x^*$, like ``x``. Errors, and results that did not converge, are those of `root`.

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
    return _solution(residual, g, x, solver, linear_solver, tolerance, max_steps, check, terms_of=_terms_of_fixed_point)


@checked
def argmin(
    f: Callable[..., Float[Array, ""]],
    x: Tree,
    *args: PyTree,
    solver: Literal["newton"] | Callable = "newton",
    linear_solver: LinearSolver = "auto",
    tolerance: PositiveFloat | None = None,
    max_steps: PositiveInt = 100,
    check: bool = False,
) -> Tree:
    r"""A local minimum $x^* = argmin_x f(x, a)$, with its derivatives with respect to $a$.

    The derivatives are those of the `root` of $∇_x f(x, a)$, so A is the Hessian, which is symmetric.

    Args:
        f: ``f(x, *args)`` returns a scalar. It is differentiated twice.
        x, args, max_steps, check: as for `root`.
        solver: ``"newton"``, with steps that are halved until f decreases, or a function ``solver(f, x)`` of one
            argument ``f(x)`` that returns the minimum, such as a loop of an optimizer.
        linear_solver: as for `root`; ``"auto"`` is ``"cg"`` for more than 256 numbers.
        tolerance: the magnitude of the entries of the gradient relative to that of the terms
            $A_{ij} x^*_j$, as for `root`.

    Returns:
        $x^*$, like ``x``. Errors, and results that did not converge, are those of `root`. Where the Hessian is
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
    # Inside of shard_map, arguments that all devices share count as different ones: under vmap, JAX evaluates programs
    # of `lax.cond` and of linear systems with such arrays, which it has traced with shared ones.
    leaves, tree = jax.tree.flatten(args)
    arrays = [leaf for leaf in leaves if isinstance(leaf, jax.Array)]
    args = tree.unflatten(varying_like(leaf, x, arrays) if isinstance(leaf, jax.Array) else leaf for leaf in leaves)
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


@contextlib.contextmanager
def _in_reverse_mode():
    """Raise a ``TypeError`` where a function has no reverse mode, which steps and derivatives of solutions need."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if missing_mode(error) != "reverse":
            raise
        expected, got = "a function with a reverse mode", "a while loop, which has forward mode only"
        repair = "use jax.lax.scan, or jax.lax.fori_loop with a fixed number of steps"
        require(False, expected, got, repair, error=TypeError)


@_in_reverse_mode()
@full_precision()
def _solution(residual, function, x, solver, linear_solver, tolerance, max_steps, check, objective=None, terms_of=None):
    """The root of the residual; ``function`` is what a solver of the user gets, ``terms_of`` measures its terms."""
    sizes = [leaf.size for leaf in jax.tree.leaves(x)]
    repair = "leave empty arrays out" if any(sizes) else "start for instance at jnp.zeros(1)"
    require(sizes and all(sizes), "numbers in each array of x", x, repair)
    if inside_shard_map():  # the solution varies over the devices over which the function varies
        x = varying_like(x, jax.eval_shape(function, x))
    space = raveled(with_forward_mode(residual, x), x)
    precision = max(float(jnp.finfo(leaf.dtype).eps) for leaf in jax.tree.leaves(x))
    # Rounding keeps a residual of some multiple of the precision; the power leaves a margin of 200 in float32.
    tolerance = precision ** (2 / 3) if tolerance is None else tolerance
    symmetric, terms_of = objective is not None, terms_of or _terms_of_root
    solve_linear = _linear_solver(linear_solver, space.n, symmetric, precision ** (2 / 3))

    def find(f, start):
        """The solution as a vector, and the facts by which it is judged."""
        steps = jnp.zeros((), int)
        if callable(solver):
            found = solver(function, space.to_tree(start))
            repair = "return the solution alone"
            same = _shapes(found) == _shapes(space.like)
            require(same, "a solver that returns a pytree like x", found, repair, error=TypeError)
            found = space.to_vector(jax.tree.map(jnp.asarray, found))
        elif solver == "anderson":
            found, steps = _anderson(f, start, tolerance, max_steps)
        else:
            # A root minimizes half the squared residual, of which the Newton direction is a descent direction. Merits
            # are divided by the unit of f, so that those of a root, and slopes, have the magnitude of f.
            merit = lambda v, unit: 0.5 * unit * jnp.sum(jnp.square(divided(f(v), unit)))
            if objective is not None:
                merit = lambda v, unit, of_x=objective: divided(of_x(space.to_tree(v)).astype(space.dtype), unit)
            found, steps = _newton(f, start, solve_linear, tolerance, max_steps, merit, terms_of)
        left, terms = terms_of(f, found)
        limit = tolerance * terms
        finite = _is_finite(found) & _is_finite(left)
        reached = finite & _is_reached(left, terms, tolerance)

        def by_step():
            product = jax.linearize(f, found)[1]
            step = solve_linear(product, -left)
            # A tenth suffices for the size of the step; one that was not solved may be small for no reason.
            return step, _is_small(step, found, tolerance) & _solves(product, step, -left, 0.1)

        # Under vmap the step is always computed; it costs a linear system.
        step, small = lax.cond(reached, lambda: (jnp.zeros_like(found), jnp.ones_like(reached)), by_step)
        solved = reached | (finite & small)
        worst = jnp.argmax(jnp.abs(left) - limit)
        lowest = jnp.zeros((), space.dtype)
        # Only a Hessian that is built anyway is checked; for larger ones the eigenvalue would cost more than the
        # solution. It is relative to the largest one, as its rounding errors are.
        if symmetric and solve_linear is _dense:
            values = jnp.linalg.eigvalsh(_matrix(jax.linearize(f, found)[1], found))
            lowest = jnp.where(values[0] < -(precision**0.5) * jnp.max(jnp.abs(values)), values[0], 0)
        facts = solved, jnp.abs(left)[worst], terms[worst], jnp.max(jnp.abs(step)), steps, lowest
        return found, tuple(jnp.asarray(fact, space.dtype) for fact in facts)

    def solve_derivative(product, b):
        """A linear system; NaN where it is singular or not solved, so that no wrong derivative passes silently."""

        def solve(product, b):
            y = solve_linear(product, b)
            # Iterative solvers return their last iterate without an error if they did not converge.
            ok = _solves(product, y, b, precision**0.5)
            return y * jnp.where(ok, 1, jnp.nan).astype(y.dtype)

        return lax.custom_linear_solve(product, b, solve, transpose_solve=solve, symmetric=symmetric)

    compiled = lambda f, start: jax.jit(lambda start: find(f, start))(start)  # one program where it is called eagerly
    found, facts = lax.custom_root(space.apply, space.to_vector(x), compiled, solve_derivative, has_aux=True)
    solved, residual, terms, step, steps, lowest = lax.stop_gradient(facts)
    taken = "" if callable(solver) else f" after {{steps}} of at most {max_steps} steps"
    check_values(
        solved == 1,
        f"a solution within the tolerance {tolerance:.2g}, got a residual of {{residual}} where terms have the size "
        f"{{terms}}, and a next Newton step of {{step}}{taken}; pass another start, more max_steps, another solver, or "
        "a larger tolerance",
        check=check,
        residual=residual,
        terms=terms,
        step=step,
        steps=steps.astype(int),
    )
    is_minimum = lowest >= 0
    message = "a minimum, got a point where the Hessian has the eigenvalue {lowest}; pass another start"
    check_values(is_minimum, message, check=check, lowest=lowest)
    ok = lax.stop_gradient((solved == 1) & is_minimum)
    return space.to_tree(found * jnp.where(ok, 1, jnp.nan).astype(found.dtype))  # the derivatives become NaN too


# ---- solvers of vectors ------------------------------------------------------------------------


def _linear_solver(method, n, symmetric, tolerance) -> Callable[[Callable, Array], Array]:
    """The function ``(A, b) -> x`` of a method; it needs no derivative."""
    if method == "auto":
        method = "dense" if n <= 256 else "cg" if symmetric else "gmres"
    if method == "dense":
        return _dense
    if method == "cg":
        return _in_units(lambda product, b: cg(product, b, tol=tolerance, maxiter=min(10 * n, 1000))[0])
    if method == "gmres":
        return _in_units(lambda product, b: _gmres(product, b, tolerance, min(n, 30), 20))
    return method


def _gmres(product, b, tolerance, size, restarts):
    r"""The x of a Krylov space whose residual A x - b is smallest, restarted until this is at most tolerance |b|.

    Arnoldi's basis Q of the space has the rows q_i, with A q_k = ∑_i H_ik q_i. Rotations, of which G is the product,
    make G H triangular. Then the residual in a space of k vectors is |r| |G_k0|. That of `jax.scipy` does not run in
    `jax.shard_map`.

    Source: Saad & Schultz 1986, GMRES (doi:10.1137/0907058).
    """
    goal = tolerance * norm(b)
    zeros = lambda *shape: varying_like(jnp.zeros(shape, b.dtype), b)
    identity = varying_like(jnp.eye(size + 1, dtype=b.dtype), b)

    def restart(carry):
        x, residual, count = carry
        length = norm(residual)

        def goes_on(carry):
            _, _, rotation, k = carry
            return (k < size) & (length * jnp.abs(rotation[k, 0]) > goal)

        def arnoldi(carry):
            basis, triangle, rotation, k = carry
            new = product(basis[k])
            column = dot(basis, new)
            new = new - dot(column, basis)  # once: what rounding leaves along the basis, the next cycle removes
            rest = norm(new)
            basis = basis.at[k + 1].set(new / jnp.where(rest == 0, 1, rest))
            column = dot(rotation, column.at[k + 1].set(rest))
            diagonal = jnp.hypot(column[k], column[k + 1])
            cos, sin = column[k] / diagonal, column[k + 1] / diagonal
            upper, lower = rotation[k], rotation[k + 1]
            rotation = rotation.at[k].set(cos * upper + sin * lower).at[k + 1].set(cos * lower - sin * upper)
            triangle = triangle.at[:, k].set(column.at[k].set(diagonal).at[k + 1].set(0))
            return basis, triangle, rotation, k + 1

        start = zeros(size + 1, b.size).at[0].set(residual / length), identity, identity, 0
        basis, triangle, rotation, k = lax.while_loop(goes_on, arnoldi, start)
        weights = jnp.where(jnp.arange(size) < k, length * rotation[:size, 0], 0)
        x = x + dot(solve_triangular(triangle[:size, :size], weights), basis[:size])
        return x, b - product(x), count + 1

    more = lambda carry: (norm(carry[1]) > goal) & (carry[2] < restarts)
    return lax.while_loop(more, restart, (jnp.zeros_like(b), b, 0))[0]


def _in_units(solve):
    """The solver of the system in units of b and of A: iterative solvers square both, and stop at b = 0 or inf."""

    def in_units(product, b):
        of_b = unit_of(jnp.max(jnp.abs(b)))
        b = divided(b, of_b)
        of_product = unit_of(jnp.max(jnp.abs(product(b))))
        return divided(solve(lambda v: divided(product(v), of_product), b), of_product) * of_b

    return in_units


def _solves(product, y, b, tolerance):
    """Whether A y = b up to the tolerance, relative to the norm of b; False where b is not finite."""
    unit = unit_of(jnp.max(jnp.abs(b)))
    size = norm(divided(b, unit))
    return (norm(divided(product(y) - b, unit)) <= tolerance * size) & (size < jnp.inf)


def _dense(product, b):
    return jnp.linalg.solve(_matrix(product, b), b)


def _matrix(product, like):
    return jax.vmap(product, out_axes=1)(varying_like(jnp.eye(like.size, dtype=like.dtype), like))


def _is_finite(x):
    return jnp.all(jnp.isfinite(x))


def _is_reached(residual, terms, tolerance):
    """Whether all entries are solved; False where terms are infinite, as any residual is within their tolerance."""
    return jnp.all(jnp.abs(residual) <= tolerance * terms) & _is_finite(terms)


def _is_small(step, x, tolerance):
    """Whether a step changes x by the tolerance at most; False where it is NaN."""
    return jnp.max(jnp.abs(step)) <= tolerance * jnp.maximum(jnp.max(jnp.abs(x)), 1)


# ---- the terms of an equation --------------------------------------------------------------------


def _terms_of_root(f, x):
    """f(x), and for each entry the size of the terms A_ij x_j, of which no choice of units changes the ratio to f.

    For two terms a and b it is the larger one: (|a + b| + |a - b|) / 2; for many, their root mean square or more.
    """
    # The signs of cos(0), cos(1), ... have no pattern that the terms could have too.
    signs = jnp.sign(jnp.cos(jnp.arange(x.size, dtype=x.dtype)))
    y, push = jax.linearize(f, x)
    return y, (jnp.abs(push(x)) + jnp.abs(push(signs * x))) / 2


def _terms_of_fixed_point(f, x):
    """x - g(x), and the largest entry of both terms."""
    y = f(x)
    return y, jnp.broadcast_to(jnp.maximum(jnp.max(jnp.abs(x)), jnp.max(jnp.abs(x - y))), y.shape)


def _newton(f, x, solve_linear, tolerance, max_steps, merit, terms_of):
    """Newton's method, and its number of steps.

    A step is halved until the merit decreases; it falls back to the gradient of the merit.
    """
    rounding = 10 * jnp.finfo(x.dtype).eps

    def goes_on(carry):
        _, residual, terms, stuck, steps = carry
        return ~_is_reached(residual, terms, tolerance) & _is_finite(residual) & ~stuck & (steps < max_steps)

    def step(carry):
        x, residual, _, _, steps = carry
        unit = unit_of(jnp.max(jnp.abs(residual)))
        value, gradient = jax.value_and_grad(merit)(x, unit)
        direction = solve_linear(jax.linearize(f, x)[1], -residual)  # to the root of the linearization at x
        descends = dot(gradient, direction) < 0  # also False where it is NaN
        direction = jnp.where(descends, direction, -gradient * unit)
        slope = dot(gradient, direction)

        def too_long(t):
            enough = merit(x + t * direction, unit) <= value + 1e-4 * t * slope + rounding * jnp.abs(value)
            return ~enough & (t > 1e-9)

        t = lax.while_loop(too_long, lambda t: t / 2, varying_like(jnp.ones((), x.dtype), x))
        x = x + t * direction
        following, terms = terms_of(f, x)
        # A small step that does not even halve the residual: what remains is the rounding of f.
        halved = jnp.max(jnp.abs(following)) < jnp.max(jnp.abs(residual)) / 2
        return x, following, terms, descends & ~halved & _is_small(direction, x, tolerance), steps + 1

    never = varying_like(jnp.zeros((), bool), x)
    found = lax.while_loop(goes_on, step, (x, *terms_of(f, x), never, 0))
    return found[0], found[-1]


def _anderson(f, x, tolerance, max_steps, memory=5):
    r"""Anderson acceleration: the combination of the last iterates whose linearized residual f is smallest.

    Returned with the number of steps.
    """

    def goes_on(carry):
        x, residual, _, _, steps = carry
        _, terms = _terms_of_fixed_point(lambda _: residual, x)
        return ~_is_reached(residual, terms, tolerance) & _is_finite(residual) & (steps < max_steps)

    def step(carry):
        x, residual, moves, changes, steps = carry  # the last differences of x and of the residual, in rows
        # Least squares of minimum norm, so that rows that are still zero have weight 0.
        weights = jnp.linalg.lstsq(changes.T, residual)[0]
        move = -residual - dot(weights, moves - changes)
        following = f(x + move)
        row = steps % memory
        moved = x + move, following, moves.at[row].set(move), changes.at[row].set(following - residual)
        # Where the combination leaves the domain of f, the next step is one of plain iteration from the same point.
        stayed = x, residual, jnp.zeros_like(moves), jnp.zeros_like(changes)
        kept = _is_finite(following)
        return *(jnp.where(kept, a, b) for a, b in zip(moved, stayed, strict=True)), steps + 1

    rows = varying_like(jnp.zeros((memory, x.size), x.dtype), x)
    found = lax.while_loop(goes_on, step, (x, f(x), rows, rows, 0))
    return found[0], found[-1]
