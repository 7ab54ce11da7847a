"""Second derivatives of iterative solvers of JAX, whose rules lack a form that tools need."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from derivatives import derivative_along, hessian_by_numpy
from jax.experimental.ode import odeint
from jax.scipy.sparse.linalg import bicgstab, cg, gmres

from jaxblocks import cost_table, hvp, laplacian
from jaxblocks.ad import directional_curvature, directional_derivatives

A = np.array([[3.0, 0.5, 0.2], [0.5, 4.0, 0.1], [0.2, 0.1, 5.0]])
X, V = np.array([1.0, 0.7, -0.4]), np.array([-1.0, 0.5, 2.0])

# Functions with an iterative solver, and the same ones with a direct solver of NumPy.
SOLVES = {
    "the operator is constant": (
        lambda x: jnp.sum(cg(lambda v: A @ v, x, tol=1e-14)[0] ** 2),
        lambda x: np.sum(np.linalg.solve(A, x) ** 2),
    ),
    "the operator depends on x": (
        lambda x: jnp.sum(bicgstab(lambda v: A @ v + x * x * v, jnp.sin(x), tol=1e-14)[0] ** 3),
        lambda x: np.sum(np.linalg.solve(A + np.diag(x * x), np.sin(x)) ** 3),
    ),
    "all is linear": (
        lambda x: jnp.sum(gmres(lambda v: A @ v, x, tol=1e-14)[0]),
        lambda x: np.sum(np.linalg.solve(A, x)),
    ),
    "in a loop": (
        lambda x: jnp.prod(jax.lax.fori_loop(0, 2, lambda i, c: cg(lambda v: A @ v, c, tol=1e-14)[0], x)),
        lambda x: np.prod(np.linalg.solve(A @ A, x)),
    ),
}


def test_second_derivatives_of_iterative_linear_solvers():
    """By every tool for the first two functions, and by two for each of the others."""
    tools = {
        "laplacian": laplacian,
        "hvp": lambda f, x: hvp(f, x, V),
        "curvature": lambda f, x: directional_curvature(f, x, V),
        "along": lambda f, x: directional_derivatives(f, x, V, order=2),
    }
    chosen = dict.fromkeys(SOLVES, tools) | {"all is linear": ("laplacian", "hvp"), "in a loop": ("hvp", "along")}
    with jax.enable_x64(True):
        run = lambda x: {name: {tool: tools[tool](SOLVES[name][0], x) for tool in chosen[name]} for name in SOLVES}
        found = jax.jit(run)(X)
    for name, (_, direct) in SOLVES.items():
        h, slope = hessian_by_numpy(direct, X), derivative_along(direct, X, V, 1)
        bend = V @ h @ V
        expected = {"laplacian": np.trace(h), "hvp": h @ V, "curvature": bend, "along": (direct(X), slope, bend)}
        expected = {tool: expected[tool] for tool in chosen[name]}
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11), found[name], expected)


def test_the_operator_of_a_solver_keeps_its_tangents():
    f, direct = SOLVES["the operator depends on x"]
    with jax.enable_x64(True):
        third = jax.jit(jax.grad(lambda x: laplacian(f, x)))(X)
    axes = np.eye(3)
    of = lambda v: derivative_along(direct, X, v, 3)
    # (u + v)^3 + (u - v)^3 = 2 u^3 + 6 u v^2
    expected = [sum((of(u + v) + of(u - v) - 2 * of(u)) / 6 for v in axes) for u in axes]
    np.testing.assert_allclose(third, expected, rtol=1e-8)


def test_tables_state_what_jax_lacks_for_a_solve():
    f, x, name = SOLVES["all is linear"][0], jnp.float32(X), "hvp_reverse_over_forward"
    row = cost_table(f, x, rows=name, measure=False)[name]
    try:
        jax.grad(lambda y: jax.jvp(f, (y,), (x,))[1])(x)
    except TypeError:
        assert "second derivative of a custom_linear_solve" in row.impossible
    else:  # newer releases of JAX
        assert row.impossible is None
    one_way = lambda x: jnp.sum(jax.lax.custom_linear_solve(lambda v: 2 * v, x, lambda _, b: b / 2))
    table = cost_table(one_way, x, rows=["jvp", "gradient"], measure=False)
    assert table["jvp"].impossible is None
    assert "without transpose_solve has no reverse mode" in table["gradient"].impossible


def test_rules_that_read_traced_values_have_hessians_in_reverse_mode(sentences):
    """odeint integrates backward by itself, with the times as values that its function reads."""
    solve = lambda x: jnp.sum(odeint(lambda y, t: -y * y, x, jnp.linspace(0.0, 1.0, 3), rtol=1e-10, atol=1e-10) ** 2)
    x = np.abs(X)
    # The second derivative of (x / (1 + t x))^2.
    curvatures = sum((2 - 4 * t * x) / (1 + t * x) ** 4 for t in (0.0, 0.5, 1.0))
    with jax.enable_x64(True):
        got = jax.jit(lambda x, v: hvp(solve, x, v))(x, V)
        np.testing.assert_allclose(got, curvatures * V, rtol=1e-6, atol=1e-8)
        with pytest.raises(TypeError, match="custom_vjp whose rule reads its arguments alone.*in reverse mode only"):
            laplacian(solve, x)
        table = cost_table(solve, x, rows="jvp", measure=False)
    assert "custom_vjp" in table["jvp"].impossible
