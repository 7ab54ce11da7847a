"""Derivatives of solutions against unrolled iterations and closed forms."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import checkify

from jaxblocks import ad
from jaxblocks.ad import argmin, fixed_point, root

N = 3
RNG = np.random.default_rng(0)
M, B = 0.3 * RNG.normal(size=(N, N)), RNG.normal(size=N)
SPD = M @ M.T + np.eye(N)
close = functools.partial(np.testing.assert_allclose, rtol=1e-8, atol=1e-10)


@pytest.fixture
def double():
    with jax.enable_x64(True):
        yield


def iterate(g, x, steps=60):
    """Plain iteration, which can be differentiated in both modes."""
    return lax.scan(lambda x, _: (g(x), None), x, length=steps)[0]


def derivatives(f, m):
    """Value, reverse mode, and forward over reverse, of a pytree-valued function of a matrix, and forward mode."""
    f = jax.jit(f)  # traced once for all derivatives

    def pulled(m):
        value, pull = jax.vjp(f, m)
        return value, pull(jax.tree.map(jnp.cos, value))[0]

    return jax.jvp(pulled, (m,), (jnp.cos(m),))


def test_fixed_points_have_the_derivatives_of_the_iteration(double):
    """A pytree; derivatives with respect to an argument and to an array that is closed over; values by each solver."""
    m, start = jnp.asarray(M), {"a": jnp.zeros(N), "b": (jnp.zeros(()),)}

    def solution(solve, m):
        g = lambda x, b: {"a": jnp.tanh(m @ x["a"] + b * x["b"][0]), "b": (jnp.cos(x["a"] @ b) / 3,)}
        return solve(g, start, jnp.sin(m[0]))

    anderson, newton = (
        functools.partial(solution, functools.partial(fixed_point, solver=solver)) for solver in ("anderson", "newton")
    )
    theirs = functools.partial(solution, lambda g, x, b: iterate(lambda x: g(x, b), x))
    found, expected, value = jax.jit(lambda m: [derivatives(anderson, m), derivatives(theirs, m), newton(m)])(m)
    jax.tree.map(close, found, expected)
    jax.tree.map(close, value, expected[0][0])


def test_linear_systems_by_each_solver(double):
    """The root of A x + x^3 - b with symmetric A against its closed derivative (A + 3 diag x^2)^-1."""
    solvers = ("gmres", lambda a, b: jnp.linalg.solve(jax.jacobian(a)(b), b))
    solve = lambda b, solver: root(lambda x: SPD @ x + x**3 - b, jnp.zeros(N), linear_solver=solver)

    @jax.jit
    def program(b):
        each = [jax.vjp(functools.partial(solve, solver=solver), b) for solver in solvers]
        return [(x, pull(jnp.ones(N))[0]) for x, pull in each]

    for x, pulled in program(B):
        close(SPD @ x + x**3, B)
        close(pulled, np.linalg.solve(SPD + 3 * np.diag(x**2), np.ones(N)))


def test_solutions_inside_transformations(double):
    """vmap of a second derivative, a scan over solutions, and a solver of the user, for the cube root."""

    def bisect(f, x):
        def halve(bounds, _):
            low, high = bounds
            middle = (low + high) / 2
            return (jnp.where(f(middle) < 0, middle, low), jnp.where(f(middle) < 0, high, middle)), None

        return lax.scan(halve, (jnp.zeros_like(x), 4 * jnp.ones_like(x)), length=60)[0][0]

    cube_root = lambda a, solver: root(lambda x: x**3 - a, 1.0, solver=solver)
    a = jnp.array([1.0, 8.0, 27.0])

    @jax.jit
    def program(a):
        second = jax.vmap(jax.grad(jax.grad(lambda a: cube_root(a, bisect))))(a)
        chain = jax.grad(lambda a: lax.scan(lambda c, _: (cube_root(c, "newton"), None), a, length=2)[0])(a[1])
        return second, chain

    second, chain = program(a)
    close(second, -2 / 9 * np.asarray(a) ** (-5 / 3))
    close(chain, 8.0 ** (1 / 9 - 1) / 9)


def test_minima_have_the_derivatives_of_closed_forms(double):
    """Ridge regression: the solution, its derivative with respect to the penalty, and the mixed derivative."""
    x, y = RNG.normal(size=(8, N)), RNG.normal(size=8)
    loss = lambda w, penalty, y: jnp.sum((x @ w - y) ** 2) + penalty * jnp.sum(w**2)
    fit = jax.jit(lambda penalty, y: argmin(loss, jnp.ones(N), penalty, y))  # traced once
    with jax.debug_nans(False):
        solution, (of_penalty, of_y) = jax.jit(lambda p, y: (fit(p, y), jax.jacrev(fit, (0, 1))(p, y)))(0.7, y)
    inverse = np.linalg.inv(x.T @ x + 0.7 * np.eye(N))
    w = inverse @ x.T @ y
    for ours, expected in zip((solution, of_penalty, of_y), (w, -inverse @ w, inverse @ x.T), strict=True):
        close(ours, expected)


def test_newton_steps_are_halved():
    """Undamped, Newton's method diverges from 3 on the arctangent, and goes to the maximum of the double well."""
    found = jax.jit(lambda: (root(jnp.arctan, 3.0), argmin(lambda x: x**4 - 2 * x**2, 0.1)))()
    np.testing.assert_allclose(found, [0, 1], rtol=1e-4, atol=1e-5)


@pytest.mark.cpu
def test_memory_does_not_depend_on_the_number_of_steps():
    """Reverse mode of the iteration stores each step; the implicit derivative stores none."""
    g, m = lambda x, m: jnp.tanh(m @ x + 1), jnp.asarray(M, jnp.float32)

    def make(steps, implicit):
        plain = lambda m: iterate(lambda x: g(x, m), jnp.zeros(N), steps)
        solve = lambda m: fixed_point(g, jnp.zeros(N), m, solver=lambda g, x: iterate(g, x, steps))
        return lambda m: jnp.sum((solve if implicit else plain)(m))

    def bytes_of(steps, implicit):
        return jax.jit(jax.grad(make(steps, implicit))).lower(m).compile().memory_analysis().temp_size_in_bytes

    unrolled, implicit = ([bytes_of(steps, flag) for steps in (256, 1024)] for flag in (False, True))
    assert unrolled[1] > 4**0.9 * unrolled[0]
    assert implicit[0] == implicit[1] < unrolled[1] / 4


def test_units_do_not_matter():
    """Solutions and derivatives of s f for s from 1e-6 to 1e6, of rows with units of their own, and in units of x."""
    rng = np.random.default_rng(0)
    A, b = rng.normal(size=(30, 30)), rng.normal(size=30)
    exact, inverse = np.linalg.solve(A, b), np.linalg.inv(A)
    m = jnp.asarray(A, jnp.float32)
    solve = lambda b, rows, unit: root(lambda x: rows * (m @ (x / unit) - b), jnp.zeros(30))
    gradient = jax.jit(jax.value_and_grad(lambda *args: jnp.sum(solve(*args)) / args[2]))
    mixed = np.exp(rng.uniform(-12, 12, 30))
    for rows, unit in ((1e-6, 1), (1e3, 1), (1e6, 1), (mixed, 1), (1, 1e-6), (1, 1e6)):
        total, slope = gradient(*(np.float32(a) for a in (b, rows * np.ones(30), unit)))
        np.testing.assert_allclose(total, exact.sum(), rtol=1e-4)
        np.testing.assert_allclose(slope, inverse.sum(0), rtol=1e-3, atol=1e-4)


def test_solutions_at_the_ends_of_the_range():
    """Units of f and of x whose squares overflow or vanish in float32, and weightings of derivatives in such units."""
    solve = lambda unit, c: root(lambda x: unit * (3 * x - c), 1.0)
    units, solutions = np.float32([1e20, 1e-20, 1e35, 1e-35, 1, 1]), np.float32([2, 2, 2, 2, 1e20, 1e30]) / 3
    found, slopes = jax.jit(jax.vmap(jax.value_and_grad(solve, 1)))(units, 3 * solutions)
    np.testing.assert_allclose(found, solutions, rtol=1e-6)
    np.testing.assert_allclose(slopes, np.full(6, 1 / 3), rtol=1e-6)
    # The value overflows at the start.
    far = jax.jit(lambda x: argmin(lambda x: jnp.sum((x - 1e20) ** 2) / 2, x))(np.zeros(257, np.float32))
    np.testing.assert_allclose(far, np.full(257, 1e20), rtol=1e-6)


def test_linear_systems_at_the_ends_of_the_range():
    """The root of unit (B x - c) with B = [[2, 1], [1, 2]], and the derivative of a large multiple of it."""
    matrix, exact = np.float32([[2, 1], [1, 2]]), np.float32([1, -2])

    @jax.jit
    def program(unit, c, weight):
        def solved(linear_solver):
            find = lambda c: root(lambda x: unit * (matrix @ x - c), jnp.ones(2), linear_solver=linear_solver)
            found, pull = jax.vjp(find, c)
            return found, pull(weight * jnp.array([1.0, 0.0]))[0]

        return [solved(linear_solver) for linear_solver in ("dense", "cg")]

    for unit, scale, weight in np.float32([(1, 1e25, 1), (1e20, 1, 1e25), (1e-25, 1, 1e-25), (1e-30, 1e30, 1)]):
        for found, pulled in program(unit, scale * (matrix @ exact), weight):
            np.testing.assert_allclose(found / scale, exact, rtol=1e-4)
            np.testing.assert_allclose(pulled / weight, [2 / 3, -1 / 3], rtol=1e-4)


def test_the_combination_of_iterates_may_leave_the_domain():
    """Far from the root, Heron's iteration is the linear x / 2, whose combination is 0, where it divides by 0."""
    heron = lambda x: (x + 1e-8 / x) / 2
    with jax.debug_nans(False), jax.debug_infs(False):
        np.testing.assert_allclose(jax.jit(lambda: fixed_point(heron, 1.0))(), 1e-4, rtol=1e-5)
        np.testing.assert_allclose(jax.jit(lambda: fixed_point(heron, 1.0, solver=lambda g, x: 0 * x))(), np.nan)


def test_a_residual_that_is_rounding_is_accepted():
    """Where all terms A_ij x_j vanish at the solution: gradients that are sums of terms that cancel, exp(x) - 1."""
    x, y = np.array([[0, 0], [0, 1], [1, 0], [1, 1]]) / 3 - 0.17, np.array([0, 1, 1, 0])
    loss = lambda w: jnp.mean(jnp.logaddexp(0.0, jnp.float32(x) @ w) - jnp.float32(y) * (jnp.float32(x) @ w))
    start = jnp.full(2, 1e-4)
    found = jax.jit(lambda start: (argmin(loss, start), root(lambda x: jnp.exp(x) - 1, start)))(start)
    np.testing.assert_allclose(found, np.zeros((2, 2)), atol=1e-5)


def test_failures_are_reported():
    """An equation without solution, a saddle, a singular derivative: an error, NaN under jit, or checkify."""
    no_root = lambda a, **options: root(lambda x: x**2 + a, 1.0, max_steps=20, **options)
    with pytest.raises(
        ValueError,
        match=r"root expected a solution within the tolerance .*, got a residual of 1.* 20 of at most 20 steps;",
    ):
        no_root(1.0)
    with pytest.raises(ValueError, match=r"argmin expected a minimum, got a point where .* eigenvalue -(2|1.99999)"):
        argmin(lambda x: x[0] ** 2 - x[1] ** 2, jnp.array([1.0, 0.0]))
    with jax.debug_nans(False):
        stopped = lambda a: root(lambda x: x**3 - a, 1.0, max_steps=1)  # where the derivative of f is regular
        twofold = lambda a: root(lambda x: x**3 - a, 0.0)
        (value, slope), of_twofold = jax.jit(lambda a: (jax.value_and_grad(stopped)(a), jax.grad(twofold)(0 * a)))(27.0)
        assert np.isnan([value, slope, of_twofold]).all()
        error, _ = jax.jit(checkify.checkify(functools.partial(no_root, check=True)))(1.0)
    assert "root expected a solution within the tolerance" in error.get()


@pytest.mark.parametrize(
    "find",
    [
        lambda: root(lambda x: jnp.exp(x) - 2.0, 100.0),
        lambda: argmin(lambda x: jnp.exp(x) - 2 * x, 100.0),
        lambda: fixed_point(lambda x: x / 2 + 1, 1.0, solver=lambda g, x: jnp.inf * x),
        lambda: fixed_point(lambda x: jnp.exp(x), 100.0, max_steps=5),
        # Newton steps that are small because the linear solver did not run.
        lambda: root(lambda x: x - 1e25, jnp.ones(2), solver=lambda f, x: x, linear_solver=lambda a, b: 0 * b),
    ],
)
def test_infinite_residuals_and_systems_that_are_not_solved_are_failures(find):
    with jax.debug_nans(False), jax.debug_infs(False):
        with pytest.raises(ValueError, match="expected a solution within the tolerance"):
            find()


def test_derivatives_of_systems_that_are_not_solved_are_nan():
    """Also where the norms of the system overflow or vanish."""
    options = {"solver": lambda f, x: x - f(x), "linear_solver": lambda a, b: 0 * b}
    pull = jax.vjp(lambda a: root(lambda x: x - a, jnp.ones(2), **options), jnp.ones(2))[1]
    with jax.debug_nans(False):
        pulled = jax.jit(jax.vmap(pull))(jnp.outer(jnp.array([1e-30, 1.0, 1e30]), jnp.ones(2)))
    assert np.isnan(pulled[0]).all()


def test_while_loops_are_rejected_with_a_sentence(sentences):
    """A loop over x has no reverse mode; the suggested repair works, and a loop over other arguments is none of it."""
    loop = lambda x: lax.while_loop(lambda c: c[1] < 3, lambda c: (c[0] / 2, c[1] + 1), (x, 0))[0]
    fixed = lambda x: lax.fori_loop(0, 3, lambda i, x: x / 2, x)
    right = {"root": lambda y: y - 1, "fixed_point": lambda y: y + 7, "argmin": lambda y: (y - 1) ** 2}
    start, solvers = np.float32(8), []
    for name, own in [("root", False), ("root", True), ("fixed_point", True), ("argmin", True)]:
        solve = functools.partial(getattr(ad, name), solver=(lambda f, x: x) if own else "newton")
        solvers.append((name, solve))
        for call in (solve, jax.jit(solve, static_argnums=0)):
            said = None
            try:
                found = call(lambda x, f=right[name]: f(loop(x)), start)
            except TypeError as error:
                said = str(error)
            if said is None:  # JAX 0.12 needs it for derivatives only, where the solver needs none
                assert jax.__version_info__ >= (0, 11) and name != "argmin" and own
                assert found == 8
            else:
                assert re.match(f"{name} expected .* reverse mode, got a while loop.*; use jax.lax.scan", said)

    @jax.jit
    def repaired(start):
        each = [solve(lambda x, f=right[name]: f(fixed(x)), start) for name, solve in solvers]
        return [*each, root(lambda x, a: x - loop(a), 1.0, start)]

    np.testing.assert_allclose(repaired(start), [8, 8, 8, 8, 1], rtol=1e-5)


def test_errors_name_the_repair(sentences):
    with pytest.raises(TypeError, match=r"root expected .* like x, float32 \(2,\), got float32 \(\); start at an x"):
        root(jnp.sum, jnp.ones(2))
    jax.eval_shape(lambda x: root(lambda x: x - jnp.sum(x) + 1, x), jnp.ones(2))
    with pytest.raises(TypeError, match=r"argmin expected x to hold floating-point arrays, got int32 .*astype"):
        argmin(lambda x: x**2, jnp.array(1))
    jax.eval_shape(lambda x: argmin(lambda x: x**2, x.astype(jnp.float32)), jnp.array(1))
    with pytest.raises(TypeError, match=r"root expected a solver that returns a pytree like x, got float32 \(3,\)"):
        root(lambda x: x - 1, jnp.ones(2), solver=lambda f, x: jnp.ones(3))
    with pytest.raises(ValueError, match=r"root expected numbers in each array of x, got float32 \(0,\)"):
        root(lambda x: x - 1, jnp.zeros(0))
    with pytest.raises(TypeError, match=r"fixed_point expected a solver that returns a pytree like x, got a tuple"):
        fixed_point(jnp.cos, 1.0, solver=lambda g, x: (iterate(g, x), 60))
    jax.eval_shape(lambda x: fixed_point(jnp.cos, x, solver=iterate), 1.0)


def test_iterative_linear_solvers_have_a_reverse_mode():
    """A loop in the solver of a linear system is not transposed: the transposed system is solved in its place."""
    x = np.linspace(0.1, 1.0, 5, dtype=np.float32)
    implicit = lambda a: fixed_point(lambda y: jnp.cos(y) / 2 * a, jnp.zeros(5), linear_solver="gmres")
    explicit = lambda b: jax.scipy.sparse.linalg.cg(lambda y: 2 * y, b)[0]

    def derived(f, x):
        product = ad.gauss_newton_product(f, lambda y: (y**2).sum(), x, jnp.ones(5))
        return ad.jacobian(f, mode="reverse")(x), product

    every = jax.jit(lambda x: [derived(f, x) for f in (implicit, explicit)])(x)
    a, y = np.float64(x), np.zeros(5)
    for _ in range(60):
        y = np.cos(y) / 2 * a
    slopes = np.cos(y) / 2 / (1 + a * np.sin(y) / 2), np.full(5, 0.5)
    for f, slope, (found, product) in zip((implicit, explicit), slopes, every, strict=True):
        assert ad.jacobian_plan(lambda a, f=f: f(a).sum(), x).mode == "reverse"
        # Systems are solved to 2.4e-5.
        np.testing.assert_allclose(found, np.diag(slope), rtol=5e-5)
        np.testing.assert_allclose(product, 2 * slope**2, rtol=5e-5)
    loop = lambda x: jax.lax.while_loop(lambda c: c[1] < 3, lambda c: (c[0] * 2, c[1] + 1), (x, 0))[0]
    with pytest.raises(TypeError, match="reverse mode, got a while loop"):
        ad.jacobian(lambda x: explicit(loop(x)), mode="reverse")(x)


def test_each_device_solves_its_own_batch_with_shared_arguments(double):
    """Inside of `shard_map`, where JAX sums the derivatives of the matrix over the devices."""
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))

    def on_devices(linear_solver):
        solution = lambda m, b: root(lambda x, m, b: m @ x + x**3 - b, jnp.zeros(N), m, b, linear_solver=linear_solver)
        total = lambda m, b: lax.psum(jnp.sum(jnp.sin(jax.vmap(solution, (None, 0))(m, b)) ** 2), "d")
        return jax.shard_map(total, mesh=mesh, in_specs=(jax.P(), jax.P("d")), out_specs=jax.P())

    m, b = SPD, np.stack([B, -2 * B, B**2, B - 1])
    x = np.zeros_like(b)
    for _ in range(9):  # Newton's method
        x = x - np.linalg.solve(m + 3 * x[:, :, None] ** 2 * np.eye(N), (x @ m + x**3 - b)[..., None])[..., 0]
    weights = np.linalg.solve(m + 3 * x[:, :, None] ** 2 * np.eye(N), np.sin(2 * x)[..., None])[..., 0]
    expected = np.sum(np.sin(x) ** 2), (-weights.T @ x, weights)
    each = [on_devices(solver) for solver in ("dense", "gmres", "cg")]
    for found in jax.jit(lambda m, b: [jax.value_and_grad(f, (0, 1))(m, b) for f in each])(m, b):
        jax.tree.map(functools.partial(close, rtol=1e-7, atol=1e-8), found, expected)
    # An argument need not be an array.
    bent = lambda b: root(lambda x, b, f, n: f(x) - n * b, b, b, jnp.sinh, 2)
    mapped = jax.shard_map(bent, mesh=mesh, in_specs=jax.P("d"), out_specs=jax.P("d"))
    close(jax.jit(mapped)(b), np.arcsinh(2 * b))


def test_large_systems_by_gmres_in_several_cycles():
    """Of 80 unknowns, beside a dense solution, which take more than the 30 vectors of one cycle."""
    n = 80
    matrix = np.eye(n) + 0.8 * RNG.normal(size=(n, n)) / n**0.5
    b = RNG.normal(size=n)
    with jax.enable_x64(True):
        m = jnp.asarray(matrix)
        f = jax.jit(
            jax.value_and_grad(lambda b: jnp.sum(root(lambda x: m @ x - b, jnp.zeros(n), linear_solver="gmres")))
        )
        value, gradient = f(jnp.asarray(b))
    np.testing.assert_allclose(value, np.linalg.solve(matrix, b).sum(), rtol=1e-7)
    np.testing.assert_allclose(gradient, np.linalg.solve(matrix.T, np.ones(n)), rtol=1e-6, atol=1e-8)
