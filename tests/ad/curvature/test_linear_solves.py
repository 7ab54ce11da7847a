"""Conjugate gradients and log-determinants of operators against NumPy's solutions, determinants and derivatives."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxblocks.ad import log_determinant, solve

RNG = np.random.default_rng(0)
ROOT = RNG.normal(size=(6, 6))
A, B = ROOT @ ROOT.T + np.eye(6), RNG.normal(size=6)


def on_tree(matrix):
    """The matrix as an operator on {"a": 2 numbers, "b": (2, 2)}."""

    def operator(v):
        product = jnp.matmul(matrix, jnp.concatenate([v["a"], v["b"].ravel()]), precision="highest")
        return {"a": product[:2], "b": product[2:].reshape(2, 2)}

    return operator


def tree(vector):
    return {"a": vector[:2], "b": vector[2:].reshape(2, 2)}


# ---- solve -------------------------------------------------------------------------------------


def test_solutions_their_residuals_and_derivatives():
    """x = M b with M = (A + d I)^-1, dx = -M dA x in both modes, and the second derivative, under jit and vmap."""
    with jax.enable_x64(True):
        dampings = np.array([0.1, 2.0])
        change = RNG.normal(size=(6, 6))

        @jax.jit  # traced once for all derivatives
        def at(t, damping):
            found = solve(on_tree(A + t * change @ change.T), tree(jnp.asarray(B)), damping=damping, tolerance=1e-12)
            return jnp.concatenate([found.x["a"], found.x["b"].ravel()]), found

        @jax.jit
        def run(dampings):
            x, found = jax.vmap(lambda d: at(0.0, d))(dampings)
            forward = jax.jvp(lambda t, d: at(t, d)[0], (0.0, dampings[0]), (1.0, 1.0))[1]
            backward = jax.grad(lambda t, d: at(t, d)[0] @ jnp.arange(6.0), (0, 1))
            slopes, of_slopes = jax.jvp(lambda d: backward(0.0, d), (dampings[0],), (1.0,))
            of_damping = lambda d: at(0.0, d)[0] @ jnp.arange(6.0)
            orders = jax.grad(jax.grad(of_damping)), jax.jacfwd(jax.jacfwd(of_damping))
            return x, found, forward, slopes, jnp.stack([of_slopes[1], *(order(dampings[0]) for order in orders)])

        x, found, forward, backward, second = run(dampings)
        inverses = np.linalg.inv(A + dampings[:, None, None] * np.eye(6))
        np.testing.assert_allclose(x, inverses @ B, rtol=1e-9)
        damped = A + dampings[:, None, None] * np.eye(6)
        errors = np.einsum("kij,kj->ki", damped, x) - B
        np.testing.assert_allclose(found.residual, np.linalg.norm(errors, axis=1), atol=1e-13)
        assert np.all(found.residual < 1e-11) and np.all(found.steps <= 8)
        inverse = inverses[0]
        changes = [-inverse @ change @ change.T @ inverse @ B, -inverse @ inverse @ B]
        np.testing.assert_allclose(forward, sum(changes), rtol=1e-8)
        np.testing.assert_allclose(backward, [np.arange(6.0) @ each for each in changes], rtol=1e-8)
        np.testing.assert_allclose(second, 2 * np.arange(6.0) @ inverse @ inverse @ inverse @ B, rtol=1e-8)


def test_rules_of_stopping():
    """A zero right-hand side takes no step, the identity one; the limit of steps and the tolerance hold."""
    operator, b = on_tree(A.astype(np.float32)), tree(B.astype(np.float32))

    @jax.jit
    def run(b):
        limited, coarse, fine = (
            solve(operator, b, **options) for options in (dict(max_steps=2), dict(tolerance=1e-2), dict(tolerance=1e-5))
        )
        return solve(lambda v: v, b), limited, coarse, fine

    one, short, coarse, fine = run(b)
    assert one.steps == 1 and short.steps == 2 < coarse.steps < fine.steps
    assert [found.steps for found in run(tree(np.zeros(6, np.float32)))] == [0, 0, 0, 0]
    assert run(jax.tree.map(lambda leaf: np.float32(1e4) * leaf, b))[3].steps == fine.steps
    assert short.residual > 1e-2 * np.linalg.norm(B)
    # After one step the residual is 0.03 times the norm of b, which is 20 here.
    many = jax.jit(lambda b: solve(lambda v: jnp.linspace(0.95, 1.05, 400) * v, b, tolerance=0.1).steps)
    assert many(np.ones(400, np.float32)) == 1


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Module:
    """A pytree that can be called, as the modules of equinox are."""

    w: jax.Array

    def __call__(self, x):
        return self.w * x


def test_a_module_is_no_operator():
    ws = jnp.array([3.0, 6.0]), np.array([3.0, 6.0], np.float32), 3.0
    found = jax.jit(lambda: [solve(lambda v: Module(3 * v.w), Module(w)).x.w for w in ws])()
    for x, w in zip(found, ws, strict=True):
        np.testing.assert_allclose(x, np.asarray(w) / 3, rtol=1e-6)


def test_an_indefinite_operator():
    """It is rejected, or the residual is NaN under jit; the repair, a damping above the negative eigenvalue, works."""
    operator, b = lambda v: jnp.array([1.0, -2.0]) * v, jnp.array([1.0, 1.0])
    with pytest.raises(
        ValueError, match=r"expected a positive definite operator, got .* -0.5 .*; increase the damping"
    ):
        solve(operator, b)
    repaired = jax.jit(lambda b: solve(operator, b, damping=3.0).x)(b)
    np.testing.assert_allclose(repaired, [0.25, 1.0], rtol=1e-5)
    with pytest.raises(TypeError, match="solve expected b to hold floating-point arrays, got int32"):
        solve(operator, jnp.arange(2))
    with pytest.raises(
        ValueError, match="solve expected an operator .*; pass a function v -> A v, and its argument as b"
    ):
        solve(jnp.sum, b)
    with jax.debug_nans(False):
        assert jnp.isnan(jax.jit(lambda b: solve(operator, b).residual)(b))


# ---- determinants --------------------------------------------------------------------------------


def test_nan_is_no_solution():
    """NaN in b or in a product is an error, and NaN under jit; a step of zero would pass for a solution."""
    with jax.debug_nans(False):
        nan = jnp.array([jnp.nan, 1.0])
        for operator, b in ((lambda v: 2 * v, nan), (lambda v: v * nan, jnp.ones(2))):
            with pytest.raises(ValueError, match="solve expected finite numbers in b and in the products"):
                solve(operator, b)
        assert jnp.isnan(jax.jit(lambda b: solve(lambda v: 2 * v, b).x)(nan)).all()


def test_infinity_is_no_solution():
    with pytest.raises(ValueError, match="finite numbers in b and in the products, got a residual of nan"):
        solve(lambda v: 2 * v, jnp.array([1.0, jnp.inf]))
    with jax.debug_nans(False):
        solution = jax.jit(lambda b: solve(lambda v: 2 * v, b))(jnp.array([1.0, jnp.inf]))
        assert np.isnan(solution.x).all() and np.isnan(solution.residual)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_a_damping_of_another_dtype(dtype):
    """(A + I) x = b with A = 3 I has the solution b / 4, in the dtype of b."""
    with jax.enable_x64(True), jax.numpy_dtype_promotion("strict"):
        for damping in (np.float64(1.0), jnp.ones((), jnp.float64), jnp.ones((), dtype), 1.0):
            x = solve(lambda v: 3.0 * v, jnp.array([4.0, 8.0], dtype), damping=damping).x
            assert x.dtype == dtype
            np.testing.assert_array_equal(x.astype(jnp.float32), [1.0, 2.0])


def test_log_determinants_and_their_derivatives():
    """Of (1 + s) (A + t D): exactly n for s, up to the standard error those of slogdet for t; second ones too."""
    with jax.enable_x64(True):
        change = np.diag(RNG.uniform(0.5, 1.5, size=6))

        @jax.jit  # traced once for all derivatives
        def estimate(s, t):
            operator = on_tree((1 + s) * (A + t * change))
            found = log_determinant(jax.random.key(0), operator, tree(jnp.zeros(6)), samples=400)
            return found.value, found.standard_error

        value = lambda s, t: estimate(s, t)[0]

        @jax.jit
        def run():
            return estimate(0.0, 0.0), jax.jvp(jax.grad(value, (0, 1)), (0.0, 0.0), (1.0, 1.0))

        (mean, error), ((s_slope, slope), (s_bend, t_bend)) = run()
        assert abs(mean - np.linalg.slogdet(A)[1]) < 4 * error < 0.6
        inverse = np.linalg.inv(A)
        np.testing.assert_allclose(s_slope, 6, rtol=1e-9)
        np.testing.assert_allclose(slope, np.trace(inverse @ change), rtol=0.1)
        np.testing.assert_allclose(s_bend, -6, rtol=1e-9)
        np.testing.assert_allclose(t_bend, -np.trace(inverse @ change @ inverse @ change), rtol=0.2)


def test_each_device_solves_its_own_system_with_a_shared_array():
    """Inside of `shard_map`, an array of the operator that all devices share: derivatives of s A x = b in s."""
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    with jax.enable_x64(True):
        halves, b = RNG.normal(size=(2, 5, 3)), jnp.ones(3)

        def of_device(x, s):
            operator = lambda v: s * (x.T @ (x @ v) + v)
            found = log_determinant(jax.random.key(0), operator, b, steps=3)
            return jax.lax.pmean(jnp.sum(solve(operator, b, tolerance=1e-12).x), "d"), jax.lax.pmean(found.value, "d")

        sharded = jax.shard_map(of_device, mesh=mesh, in_specs=(jax.P("d"), jax.P()), out_specs=jax.P())
        f = lambda s: sharded(halves.reshape(10, 3), s)

        @jax.jit
        def run(s):
            value, push = jax.linearize(f, s)
            pull = jax.linear_transpose(push, s)
            return value, [pull(weights)[0] for weights in ((1.0, 0.0), (0.0, 1.0))], push(1.0)

        value, slope, other = run(2.0)
        total = np.mean([np.linalg.inv(x.T @ x + np.eye(3)).sum() for x in halves])
        np.testing.assert_allclose(value[0], total / 2, rtol=1e-9)
        np.testing.assert_allclose(slope, [-total / 4, 3 / 2], rtol=1e-9)
        np.testing.assert_allclose(other, slope, rtol=1e-9)


def test_a_log_determinant_keeps_no_traced_array():
    f = lambda a: log_determinant(jax.random.key(0), lambda v: a * v, jnp.zeros(3), steps=1, samples=2).value
    with jax.checking_leaks():
        jax.eval_shape(jax.grad(f), np.float32([1, 2, 3]))


def test_a_log_determinant_needs_a_positive_definite_operator():
    diagonal = np.float32([1, -1])
    log_det = lambda shift: log_determinant(jax.random.key(0), lambda v: diagonal * v + shift * v, diagonal, samples=8)
    with pytest.raises(ValueError, match=r"log_determinant expected a positive definite operator, .*; add a damping"):
        log_det(0.0)
    with jax.debug_nans(False):
        bad, good = np.asarray(jax.jit(jax.vmap(log_det))(np.float32([0, 2])).value)
    assert np.isnan(bad)
    assert abs(good - np.log(3)) < 0.5


def test_right_hand_sides_of_any_scale():
    """The solution is linear in b, whose square leaves the range of float32."""
    A, b = np.float32([[2, 1], [1, 3]]), np.float32([1, -2])
    solution = lambda b: solve(lambda v: A @ v, b)
    run = jax.jit(lambda b: (solution(b), jax.grad(lambda b: solution(b).x[0])(jnp.zeros(2))))
    for scale in np.float32([1e-30, 1e30]):
        found, slope = run(b * scale)
        np.testing.assert_allclose(found.x / scale, np.linalg.solve(A, b), rtol=1e-5)
        assert found.steps == 2
        np.testing.assert_allclose(slope, np.linalg.inv(A)[0], rtol=1e-5)


def test_operators_and_preconditioners_of_any_scale():
    """The residual of A scaled by c does not depend on c; a preconditioner with 1 / c makes the direction as large."""
    matrix, b = np.array([[4, 1, 0], [1, 3, 0.5], [0, 0.5, 2]], np.float32), np.array([1, 2, 3], np.float32)

    @jax.jit
    def run(scaled):
        operator = lambda v: jnp.matmul(scaled, v, precision="highest")
        return solve(operator, b, preconditioner=lambda r: r / scaled.diagonal())

    for scale in np.float32([1e-36, 1e-20, 1e30]):
        found = run(matrix * scale)
        np.testing.assert_allclose(found.x * scale, np.linalg.solve(matrix, b), rtol=1e-5)
        assert found.steps == 3


def test_preconditioners_of_any_scale():
    """Also where the product of a residual with its preconditioned form overflows."""
    matrix, b = np.array([[4, 1], [1, 3]], np.float32), np.array([3, 3], np.float32)
    run = jax.jit(lambda b: solve(lambda v: matrix @ v, b, preconditioner=lambda r: np.float32(1.5e38) * r).x)
    np.testing.assert_allclose(run(b), np.linalg.solve(matrix, b), rtol=1e-5)
