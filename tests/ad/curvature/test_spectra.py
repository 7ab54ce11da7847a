"""Traces, largest eigenvalues and densities against eigenvalues of dense matrices."""

import functools

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest

from jaxblocks import losses
from jaxblocks.activations import tanh
from jaxblocks.ad import (
    SpectralDensity,
    TraceEstimate,
    as_matrix,
    directional_curvature,
    empirical_risk,
    estimate_trace,
    hessian_operator,
    hvp,
    lanczos,
    largest_eigenvalues,
    spectral_density,
)
from jaxblocks.layers.mlp import MLP


@functools.cache
def trained():
    """A classifier of 163 params after 300 steps of gradient descent, its Hessian and eigenvalues, in float64."""
    rng = np.random.default_rng(0)
    net = MLP(8, 8, 3, activation=tanh)
    x = rng.normal(size=(64, 6))
    y = (np.sin(3 * x[:, 0]) + x[:, 1] > 0).astype(int) + (x[:, 2] > 0.5)
    risk = empirical_risk(net, losses.softmax_cross_entropy)
    f = lambda p: risk(p, (jnp.asarray(x), jnp.asarray(y)))
    step = lambda i, p: jax.tree.map(lambda p, g: p - 0.5 * g, p, jax.grad(f)(p))

    @jax.jit
    def run(key):
        params = jax.tree.map(lambda p: p.astype(jnp.float64), net.init(key, x.astype(np.float32)))
        params = jax.lax.fori_loop(0, 300, step, params)
        return params, as_matrix(hessian_operator(f, params), params)

    params, matrix = jax.tree.map(np.asarray, run(jax.random.key(0)))
    return f, params, matrix, np.linalg.eigvalsh(matrix)[::-1]


def of_matrix(A):
    return (lambda v: jnp.matmul(A, v, precision="highest")), jax.ShapeDtypeStruct(A.shape[:1], A.dtype)


@functools.partial(jax.jit, static_argnums=(0,), static_argnames=("count", "steps", "samples", "method"))
def of_dense(tool, key, A, **options):
    """``tool`` for the operator of a matrix: one program for all matrices of a shape."""
    return tool(key, *of_matrix(A), **options)


@jax.jit
def alone_and_mapped(key, A):
    """Results for one key, and under vmap over one key."""
    run = lambda tool: lambda key: tool(key, *of_matrix(A), steps=4)
    with jax.debug_key_reuse(False):
        alone = [run(tool)(key) for tool in (lanczos, largest_eigenvalues)]
        return alone, [jax.vmap(run(tool))(key[None]) for tool in TOOLS[1:]]


# ---- Lanczos -------------------------------------------------------------------------------


@functools.cache
def tridiagonal():
    """The recurrence of the Hessian of `trained` in 25 steps, T as a matrix, and Q."""
    found = jax.tree.map(np.asarray, of_dense(lanczos, jax.random.key(0), trained()[2], steps=25))
    T = np.diag(found.diagonal) + np.diag(found.off_diagonal, 1) + np.diag(found.off_diagonal, -1)
    return T, found.basis, found.residual


def test_lanczos_is_a_tridiagonalization():
    """Q A Q' = T with orthonormal Q, and A Q' = Q' T except for the last column, whose norm is the residual."""
    with jax.enable_x64(True):
        A, (T, Q, residual) = trained()[2], tridiagonal()
        np.testing.assert_allclose(Q @ Q.T, np.eye(25), atol=1e-13)
        np.testing.assert_allclose(Q @ A @ Q.T, T, atol=1e-12)
        rest = A @ Q.T - Q.T @ T
        np.testing.assert_allclose(rest[:, :-1], 0, atol=1e-12)
        np.testing.assert_allclose(np.linalg.norm(rest[:, -1]), residual, rtol=1e-9)


def test_largest_eigenvalue_of_a_trained_net():
    """To 1e-3 in 10 steps and to rounding in 30, with valid bounds and eigenvectors."""
    with jax.enable_x64(True):
        f, params, A, eigenvalues = trained()

        @jax.jit
        def run(key, params):
            operator = hessian_operator(f, params)
            return [largest_eigenvalues(key, operator, params, count=3, steps=steps) for steps in (10, 30)]

        for seed in range(3):
            early, late = jax.tree.map(np.asarray, run(jax.random.key(seed), params))
            assert abs(early.values[0] - eigenvalues[0]) < 1e-3 * eigenvalues[0]
            np.testing.assert_allclose(late.values[0], eigenvalues[0], rtol=1e-12)
            np.testing.assert_allclose(late.values, eigenvalues[:3], rtol=1e-6)
            for found in (early, late):
                for value, bound in zip(found.values, found.bounds, strict=True):
                    assert np.abs(eigenvalues - value).min() <= bound + 1e-12
            for i in range(3):
                v = np.concatenate([np.ravel(leaf[i]) for leaf in jax.tree.leaves(late.vectors)])
                assert abs(np.linalg.norm(v) - 1) < 1e-12
                np.testing.assert_allclose(np.linalg.norm(A @ v - late.values[i] * v), late.bounds[i], atol=1e-10)


def test_invariant_subspaces():
    """Multiple eigenvalues and low ranks: Lanczos continues with a new vector and finds all multiplicities."""
    with jax.enable_x64(True):
        Q = np.linalg.qr(np.random.default_rng(0).normal(size=(6, 6)))[0]
        for eigenvalues in ([3.0] * 6, [0.0] * 6, [5, 5, 5, -1, 0, 0], [6, 4, 3, 1, -2, -7], [1e-20] * 6):
            found = of_dense(largest_eigenvalues, jax.random.key(0), Q @ np.diag(eigenvalues) @ Q.T, count=6, steps=6)
            np.testing.assert_allclose(found.values, sorted(eigenvalues)[::-1], atol=1e-14, rtol=1e-12)
            vectors = np.asarray(found.vectors)
            np.testing.assert_allclose(vectors @ vectors.T, np.eye(6), atol=1e-13)


def test_single_precision():
    A = np.diag(np.arange(1.0, 41.0)).astype(np.float32)
    found = of_dense(largest_eigenvalues, jax.random.key(0), A, count=2, steps=40)
    np.testing.assert_allclose(found.values, [40.0, 39.0], rtol=1e-5)


# ---- traces --------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "products"), [("hutchinson", 32), ("hutch++", 48)])
def test_standard_errors_are_calibrated(method, products):
    """Over 200 keys: unbiased, with the stated error; at least 90 % are within two stated errors of the trace."""
    with jax.enable_x64(True):
        A = trained()[2]
        estimate = lambda key: estimate_trace(key, *of_matrix(A), samples=products, method=method)
        found = jax.jit(jax.vmap(estimate))(jax.random.split(jax.random.key(1), 200))
        away = np.asarray(found.value) - np.trace(A)
        assert found.products == products
        assert abs(away.mean()) < 4 * away.std() / 200**0.5
        assert np.mean(np.abs(away) <= 2 * np.asarray(found.standard_error)) >= 0.9
        stated, real = np.sqrt(np.mean(found.standard_error**2)), away.std()
        assert 0.85 < stated / real < 1.2
        assert real < {"hutchinson": 0.15, "hutch++": 0.06}[method] * np.trace(A)


def test_traces_by_products_and_forms_agree():
    """Products and the form v'Hv give the same estimate for the same key, for all chunk sizes."""
    with jax.enable_x64(True):
        B = np.random.default_rng(0).normal(size=(5, 2))
        f = lambda p: jnp.sum(jnp.cosh(B @ p["a"])) + jnp.sum(jnp.exp(p["b"])) * p["a"][0, 0]
        params = {"a": B[:2].T, "b": B[3]}
        ways = {
            "operator": lambda v: hessian_operator(f, params)(v),
            "product": functools.partial(hvp, f, params),
            "form": functools.partial(directional_curvature, f, params),
        }
        cases = [("operator", "auto"), ("operator", 3), ("product", "auto"), ("form", 3)]
        run = lambda key: [
            estimate_trace(key, ways[way], params, samples=10, chunk_size=size).value for way, size in cases
        ]
        with jax.debug_key_reuse(False):
            values, hessian = jax.jit(lambda key: (run(key), as_matrix(ways["operator"], params)))(jax.random.key(0))
        values, hessian = np.asarray(values), np.asarray(hessian)
        np.testing.assert_allclose(values, values[0], rtol=1e-12)
        assert abs(values[0] - np.trace(hessian)) <= np.abs(hessian - np.diag(np.diag(hessian))).sum()


def test_low_ranks_are_exact():
    """An operator whose rank is below the number of vectors: exact up to rounding, without NaN."""
    with jax.enable_x64(True):
        for rank in (0, 2, 20):
            B = np.random.default_rng(rank).normal(size=(30, rank))
            A = B @ B.T
            found = of_dense(estimate_trace, jax.random.key(0), A, samples=72, method="hutch++")
            np.testing.assert_allclose(found.value, np.trace(A), rtol=1e-9, atol=1e-12)
            assert "±" in repr(found)
            assert np.asarray(found.standard_error) <= 1e-9 * max(1, np.trace(A))


@pytest.mark.parametrize("method", ["hutchinson", "hutch++"])
def test_traces_of_small_operators_are_unbiased(method):
    """In 3 dimensions random signs are often dependent; the mean over 20 000 keys is within four of its errors."""
    A = np.array([[1, 2, 0], [2, -3, 1], [0, 1, 0.5]], np.float32)
    estimate = lambda key: estimate_trace(key, *of_matrix(A), samples=6, method=method).value
    found = np.asarray(jax.jit(jax.vmap(estimate))(jax.random.split(jax.random.key(0), 20_000)), float)
    assert abs(found.mean() - np.trace(A)) < 4 * found.std() / len(found) ** 0.5


def test_the_standard_error_divides_by_the_samples_less_one():
    """z^T A z = 2 z_1 z_2 is 2 or -2, so the mean of 5 samples tells how many are 2, and so their deviation."""
    swap = np.array([[0, 1], [1, 0]], np.float32)
    found = [of_dense(estimate_trace, jax.random.key(seed), swap, samples=5) for seed in range(3)]
    assert {abs(float(one.value)) for one in found} != {2.0}
    for one in found:
        positive = round((float(one.value) + 2) / 4 * 5)
        samples = np.repeat([2.0, -2.0], [positive, 5 - positive])
        np.testing.assert_allclose(one.standard_error, samples.std(ddof=1) / np.sqrt(5), rtol=1e-6)


def test_hutchinson_is_exact_for_diagonals():
    @jax.jit
    def run(key, other):
        diagonal = estimate_trace(key, lambda v: jnp.arange(5.0) * v, jnp.zeros(5), samples=2)
        return diagonal, estimate_trace(other, lambda v: 3 * v, jnp.zeros(()), samples=2).value

    diagonal, scalar = jax.tree.map(np.asarray, run(jax.random.key(0), jax.random.key(1)))
    assert diagonal.value == 10 and diagonal.standard_error == 0
    assert scalar == 3


# ---- densities -----------------------------------------------------------------------------


def test_density_of_a_trained_net():
    """Moments within the stated errors, the trace of a function, the smoothed density against that of eigvalsh."""
    with jax.enable_x64(True):
        _, _, A, eigenvalues = trained()
        operator, like = of_matrix(A)
        functions = [(lambda t: t, lambda t: t), (jnp.square, np.square), (lambda t: jnp.exp(-t), lambda t: np.exp(-t)),
                     (lambda t: jnp.log(t + 1), lambda t: np.log(t + 1))]  # fmt: skip
        points, width = np.linspace(-1, 1.1 * eigenvalues[0], 400), 0.1

        @jax.jit
        def run(key):
            density = spectral_density(key, operator, like, steps=40, samples=32, chunk_size=32)
            smooth = [density(jnp.asarray(at), width=width) for at in (points, np.linspace(-27, 27, 4001))]
            return density.weights, [density.trace(g) for g, _ in functions], smooth

        weights, traces, (near, wide) = jax.tree.map(np.asarray, run(jax.random.key(2)))
        np.testing.assert_allclose(weights.sum(1), 1, atol=1e-12)
        for found, (_, g) in zip(traces, functions, strict=True):
            truth = np.sum(g(eigenvalues))
            assert abs(found.value - truth) < 3.5 * found.standard_error + 1e-9
            assert found.standard_error < 0.25 * abs(truth)
        exact = np.exp(-(((points[:, None] - eigenvalues[None]) / width) ** 2) / 2).sum(1) / (
            len(eigenvalues) * width * np.sqrt(2 * np.pi)
        )
        assert np.abs(near - exact).sum() * (points[1] - points[0]) < 0.1
        assert abs(wide.sum() * 54 / 4000 - 1) < 1e-3


def test_quadrature_is_exact_for_polynomials():
    """Polynomials up to degree 2k - 1: the moments of the spectral measure of each vector."""
    with jax.enable_x64(True):
        A, (T, Q, _) = trained()[2], tridiagonal()
        norm = np.linalg.norm(A, 2)
        A, T, z = A / norm, T[:4, :4] / norm, Q[0]
        nodes, vectors = np.linalg.eigh(T)
        for degree in range(8):
            moment = z @ np.linalg.matrix_power(A, degree) @ z
            np.testing.assert_allclose(np.sum(vectors[0] ** 2 * nodes**degree), moment, atol=1e-13)


# ---- records -------------------------------------------------------------------------------


def test_traces_can_be_differentiated():
    """The derivative of a trace estimate of a diagonal operator is exact."""
    trace = lambda x: (
        estimate_trace(jax.random.key(0), hessian_operator(lambda x: jnp.sum(x**3) / 2, x), x, samples=2).value
    )
    np.testing.assert_allclose(jax.jit(jax.grad(trace))(jnp.array([1.0, 2.0])), [3.0, 3.0], rtol=1e-6)


def test_derivatives_of_traces_of_low_rank():
    """The trace of s u u^T is s |u|^2, whose sketch has linearly dependent columns."""
    u = jnp.arange(1.0, 7.0)
    trace = lambda s, key: estimate_trace(key, lambda v: s * u * jnp.vdot(u, v), jnp.zeros(6), method="hutch++").value
    found = jax.jit(jax.vmap(jax.grad(trace), (None, 0)))(1.0, jax.random.split(jax.random.key(0), 6))
    np.testing.assert_allclose(found, np.full(6, 91), rtol=1e-5)


def test_derivatives_of_a_full_basis():
    """The nodes of s A are s times those of A, in both modes, for every key."""
    A = np.float32([[1.1, 0.1, 0.1], [0.1, 2.1, 0.1], [0.1, 0.1, 4.1]])
    total = lambda s, key: spectral_density(key, lambda v: s * (A @ v), A[0], samples=2).nodes.sum()
    keys = jax.random.split(jax.random.key(0), 40)
    found = jax.jit(jax.vmap(jax.value_and_grad(total), (None, 0)))(2.0, keys)
    np.testing.assert_allclose(found, [np.full(40, 2 * 2 * 7.3), np.full(40, 2 * 7.3)], rtol=1e-4)


def test_the_standard_error_of_a_density_divides_by_the_samples_less_one():
    """One node each: the samples are n times the nodes, 8 and 24, with deviation 8 sqrt(2)."""
    density = SpectralDensity(jnp.array([[1.0], [3.0]]), jnp.ones((2, 1)), 8)
    found = density.trace()
    assert found.value == 16 and found.standard_error == pytest.approx(8, rel=1e-6)


def test_density_plots():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    density = SpectralDensity(jnp.array([[0.0, 2.0]]), jnp.array([[0.75, 0.25]]), 8)
    axes = density.plot()
    assert axes.get_ylabel() == "density of 8 eigenvalues"
    assert density.plot(axes) is axes
    with jax.debug_nans(False):
        assert np.isnan(density.trace().standard_error)


# ---- errors --------------------------------------------------------------------------------


TOOLS = [estimate_trace, lanczos, largest_eigenvalues, spectral_density]


@pytest.mark.parametrize("tool", TOOLS)
def test_wrong_keys_and_operators_are_rejected(tool, sentences):
    name, like, key = tool.__name__, jnp.zeros(40), jax.random.key(0)
    with pytest.raises(TypeError, match=rf"{name} expected key to be a key, got uint32 \(2,\); pass jax.random"):
        tool(jnp.zeros(2, jnp.uint32), lambda v: v, like)
    with pytest.raises(TypeError, match=rf"{name} expected key to be a key, got .*; the order is key, operator"):
        tool(lambda v: v, key, like)
    with pytest.raises(TypeError, match=rf"{name} expected operator to be a function, got float32 \(2, 2\)"):
        tool(key, jnp.eye(2), like)
    with pytest.raises(ValueError, match=r"like its argument, float32 \(40,\), got float32 \(1,\)"):
        tool(key, lambda v: v[:1], like)
    with pytest.raises(
        TypeError, match=rf"{name} expected like to hold floating-point arrays, got int32 \(3,\) at like; .*astype"
    ):
        tool(key, lambda v: v, jnp.arange(3))
    with pytest.raises(TypeError, match=rf"{name} expected like to be a pytree .*, got the function .*; pass"):
        tool(key, jnp.sum, lambda v: v)
    with pytest.raises(TypeError, match=rf"{name} expected operator to be a function, got float32 \(40,\)"):
        tool(key, like, lambda v: v)
    with pytest.raises(TypeError, match=r"got the function sum at like\['f'\]; give an array"):
        tool(key, lambda v: v, {"f": jnp.sum, "x": like})


def test_asymmetric_operators_are_rejected():
    """By NaN where the values are traced, also under vmap; an error for known values."""
    B = np.random.default_rng(0).normal(size=(9, 9)).astype(np.float32)
    key = lambda: jax.random.key(0)
    nilpotent = np.zeros((9, 9), np.float32)
    nilpotent[0, 1] = 100
    for A in (nilpotent, B + B.T + 0.3 * B):
        with jax.debug_nans(False):
            (basis, largest), (bases, each, density) = alone_and_mapped(key(), A)
            for values in (basis.residual, largest.bounds, bases.residual, each.bounds, density.nodes):
                assert np.isnan(values).all()
            found = (basis, largest), (bases, each, density) = alone_and_mapped(key(), (A + A.T) / 2)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found))
        assert [*map(jax.tree.structure, (basis, largest))] == [*map(jax.tree.structure, (bases, each))]
    assert "±" in repr(largest)
    for many in (each, density):
        assert "float32 (1" in repr(many)
    with pytest.raises(ValueError, match="lanczos expected a symmetric operator, got a difference of"):
        lanczos(key(), *of_matrix(A), steps=2)


def test_rounding_errors_are_not_reported_as_asymmetry():
    """Products in the dtype itself, products in bfloat16 with float32 inputs and outputs, and equal eigenvalues."""
    B = np.random.default_rng(0).normal(size=(60, 60))
    of_bfloat16 = (largest_in, jnp.bfloat16), (largest_in_bfloat16, jnp.bfloat16)
    for find, dtype in (*of_bfloat16, (largest_in, jnp.float16), (largest_in, jnp.float32)):
        for A in (B + B.T, np.ones((60, 60)), 1e-3 * np.eye(60)):
            found = find(jax.random.key(0), A.astype(dtype))
            assert np.isfinite(found.bounds).all() and found.values.dtype == jnp.float32
            if A[0, 1] == 0:
                np.testing.assert_allclose(found.values, 1e-3, rtol=5e-3)


@jax.jit
def largest_in(key, A):
    return largest_eigenvalues(key, lambda v: A @ v, A[0], steps=20)


@jax.jit
def largest_in_bfloat16(key, A):
    narrow = lambda v: (A @ v.astype(jnp.bfloat16)).astype(jnp.float32)
    return largest_eigenvalues(key, narrow, jnp.zeros(60), steps=20)


def test_steps_are_at_most_n(sentences):
    ask = lambda steps: jax.eval_shape(
        lambda key: largest_eigenvalues(key, lambda v: v, jnp.zeros(3), steps=steps), jax.random.key(0)
    )
    with pytest.raises(ValueError, match="largest_eigenvalues expected steps to be at most 3, .*, got 4; pass steps=3"):
        ask(steps=4)
    ask(steps=3)
    ask(steps=None)
    with pytest.raises(ValueError, match="steps to be an integer >= 1 or None, got 0"):
        ask(steps=0)


def test_wrong_numbers_of_samples_and_steps_are_rejected(sentences):
    ask = lambda samples, method="hutchinson": jax.eval_shape(
        lambda key: estimate_trace(key, lambda v: v, jnp.zeros(3), samples=samples, method=method), jax.random.key(0)
    )
    with pytest.raises(ValueError, match="samples to be an integer >= 1 or None, got 0"):
        ask(0)
    for method, least in [("hutchinson", 2), ("hutch++", 6)]:
        with pytest.raises(ValueError, match=f"at least {least} samples for '{re_escape(method)}'"):
            ask(least - 1, method)
        ask(least, method)
    with pytest.raises(ValueError, match=r"at most 9 samples for .hutch\+\+. of an operator on 3 numbers, got 12;"):
        ask(12, "hutch++")
    for samples in (None, 3, 6):
        with pytest.raises(ValueError, match=r"an operator on at least 2 numbers for .hutch\+\+., got 1; compute "):
            estimate_trace(jax.random.key(0), lambda v: 2 * v, jnp.zeros(1), samples=samples, method="hutch++")
    with pytest.raises(ValueError, match="method to be 'hutchinson' or .*, got 'exact'"):
        ask(8, "exact")
    with pytest.raises(ValueError, match="expected count <= steps, got count=3 and steps=2"):
        largest_eigenvalues(jax.random.key(0), lambda v: v, jnp.zeros(3), count=3, steps=2)
    with pytest.raises(ValueError, match="expected an operator that returns a pytree like its argument"):
        estimate_trace(jax.random.key(0), lambda v: v @ v, jnp.zeros(3), samples=6, method="hutch++")
    assert isinstance(estimate_trace(jax.random.key(0), lambda v: v @ v, jnp.zeros(3), samples=6), TraceEstimate)


def re_escape(word):
    return word.replace("+", r"\+")


def test_operators_of_any_scale():
    """Eigenvalues are linear in the operator, whose products have squares beyond the range of float32."""
    A = np.diag([1.0, 2.0, 5.0]).astype(np.float32) + np.float32(0.1)
    found = jax.jit(lambda s: largest_eigenvalues(jax.random.key(0), lambda v: s * (A @ v), jnp.zeros(3)))
    for scale in np.float32([1e-30, 1e30]):
        np.testing.assert_allclose(found(scale).values / scale, np.linalg.eigvalsh(A)[-1:], rtol=1e-5)


def test_equal_samples_have_finite_derivatives():
    """The trace of a multiple of the identity has no error, and the error has the derivative 0."""
    estimate = lambda s: estimate_trace(jax.random.key(0), lambda v: s * v, jnp.zeros(4))
    value, error = jax.jit(jax.jacrev(lambda s: [estimate(s).value, estimate(s).standard_error]))(2.0)
    assert value == 4 and error == 0


@pytest.mark.parametrize("tool", [lanczos, largest_eigenvalues, spectral_density])
def test_empty_arguments_are_rejected(tool):
    with pytest.raises(ValueError, match=f"{tool.__name__} expected an operator on at least one number, got empty"):
        tool(jax.random.key(0), lambda v: v, jnp.zeros(0))
