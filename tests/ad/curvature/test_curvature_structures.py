"""KFAC, EKFAC, diagonal and full curvature against matrices built from Jacobians, and against NumPy formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import jaxblocks as jb
from jaxblocks.ad import StructuredCurvature, as_function, laplace_approximation, solve, structured_curvature
from jaxblocks.ad.curvature.kronecker_factors import KroneckerFactors
from jaxblocks.ad.curvature.structures import Eigenbasis, eigenbases, rotated_eigenvalues

RNG = np.random.default_rng(0)


def half_square(outputs, y):
    return jnp.sum((outputs - y) ** 2) / 2


def cross_entropy(outputs, y):
    return jb.softmax_cross_entropy(outputs, y)


def doubles(tree):
    """Random values like a tree, in float64."""
    return jax.tree.map(lambda leaf: RNG.normal(size=leaf.shape), tree)


def doubles_for(net, x):
    """Random params of a net, in float64."""
    return doubles(jax.eval_shape(net.init, jax.random.key(0), x))


def exact(model, params, x, middle):
    """The mean of J' H J, from the Jacobian J of each example and ``middle(outputs, i)``, its H."""
    flat, unravel = ravel_pytree(params)

    def one(x):
        of = lambda w: model(unravel(w), x).reshape(-1)
        return of(flat), jax.jacrev(of)(flat)

    outputs, J = map(np.asarray, jax.jit(jax.vmap(one))(x))
    return np.mean([J[i].T @ middle(outputs[i], i) @ J[i] for i in range(len(J))], axis=0)


def softmax_hessian(f, i):
    p = np.exp(f) / np.exp(f).sum()
    return np.diag(p) - np.outer(p, p)


def blocks_of(matrix, params):
    """The diagonal blocks of a matrix, one for each leaf; zero elsewhere."""
    ids = np.concatenate([np.full(leaf.size, i) for i, leaf in enumerate(jax.tree.leaves(params))])
    return np.where(ids[:, None] == ids, matrix, 0)


def dense(operator, params):
    flat, unravel = ravel_pytree(params)
    return jax.vmap(lambda v: ravel_pytree(operator(unravel(v)))[0])(jnp.eye(flat.size, dtype=flat.dtype))


def close(got, expected):
    np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-10 * np.abs(expected).max())


# ---- where KFAC is exact -------------------------------------------------------------------------


def test_eigenvalues_in_a_basis_that_is_turned():
    """The squares of 0.6 and 0.8, by which the first eigenvector is turned, divide its eigenvalue."""
    turned = jnp.array([[[0.6, -0.8], [0.8, 0.6]]])
    old = Eigenbasis(None, jnp.eye(2)[None], jnp.array([[[100.0, 0.0]]]))
    np.testing.assert_allclose(rotated_eigenvalues(old, old._replace(right=turned)), [[[36, 64]]], rtol=1e-6)


def test_one_example_and_all_functions_of_the_matrix():
    """Each block is exact for one example; inverse, root, determinant, trace and diagonal are those of the matrix."""
    with jax.enable_x64(True):
        net = jb.Serial(jb.Dense(4), jb.tanh, jb.LayerNorm(), jb.Dense(3))
        x, y = RNG.normal(size=(1, 2)), np.array([1])
        params, model = doubles_for(net, x), as_function(net)
        expected = blocks_of(exact(model, params, x, softmax_hessian), params)

        @jax.jit
        def everything(params):
            K = structured_curvature(model, cross_entropy, params, x, y)
            found = {"K": K, "inverse": K.inverse(damping=0.1), "sqrt": K.sqrt()}
            matrices = {name: dense(of, params) for name, of in found.items()}
            return K, matrices, K.log_determinant(damping=0.1), K.trace(), ravel_pytree(K.diagonal())[0]

        K, matrices, log_determinant, trace, diagonal = everything(params)
        matrices = jax.tree.map(np.asarray, matrices)
        damped = expected + 0.1 * np.eye(len(expected))
        close(matrices["K"], expected)
        close(matrices["inverse"], np.linalg.inv(damped))
        np.testing.assert_allclose(matrices["sqrt"] @ matrices["sqrt"], expected, atol=1e-9)
        close(log_determinant, np.linalg.slogdet(damped)[1])
        close(trace, np.trace(expected))
        close(diagonal, np.diag(expected))
        assert repr(K) == f"StructuredCurvature(kfac, {len(expected)} params, 6 blocks)"


@pytest.mark.parametrize(
    ("net", "shape", "weight_sharing"),
    [
        (jb.Conv(3, kernel_size=2, padding="valid"), (5, 4, 2), "expand"),
        (jb.Serial(jb.Dense(3), jb.GlobalAvgPool(spatial=1), jb.Dense(2)), (5, 4, 2), "reduce"),
    ],
    ids=["convolution", "mean over positions"],
)
def test_linear_nets_are_exact(net, shape, weight_sharing):
    """With squared error, where no cotangent depends on the example: for the convolution, its output is the outputs."""
    with jax.enable_x64(True):
        x = RNG.normal(size=shape)
        params, model = doubles_for(net, x), as_function(net)
        options = dict(weight_sharing=weight_sharing)
        run = lambda p: dense(structured_curvature(model, half_square, p, x, jnp.zeros(5), **options), p)
        close(jax.jit(run)(params), blocks_of(exact(model, params, x, lambda f, i: np.eye(len(f))), params))


def test_groups_of_a_convolution_are_matrices_of_their_own():
    with jax.enable_x64(True):
        x, w = jnp.asarray(RNG.normal(size=(3, 4, 2))), jnp.asarray(RNG.normal(size=(2, 1, 6)))
        options = dict(dimension_numbers=("NTC", "TIO", "NTC"), feature_group_count=2)
        model = lambda w, x: jax.lax.conv_general_dilated(x[None], w, (1,), "VALID", **options)[0]
        run = lambda w: dense(structured_curvature(model, half_square, w, x, jnp.zeros(3)), w)
        close(jax.jit(run)(w), exact(model, w, x, lambda f, i: np.eye(len(f))))


# ---- the other structures and matrices ------------------------------------------------------------


def classifier():
    """A convolution, a scan with stacked weights, and a table: every kind of parameter."""
    net = jb.Serial(
        jb.Embedding(5, 2),
        jb.Repeat(jb.Dense(2, use_bias=False), 2),
        jb.Conv(2, kernel_size=2, groups=2),
        jb.LayerNorm(),
        jb.GlobalAvgPool(spatial=1),
        jb.Dense(3),
    )
    x, y = RNG.integers(0, 5, size=(3, 4)), RNG.integers(0, 3, size=3)
    return jax.jit(as_function(net)), doubles_for(net, x), x, y


def test_full_diagonal_and_the_trace_of_ekfac():
    """Full is the matrix, diagonal its diagonal; EKFAC has the trace of each block and is nearer to it than KFAC."""
    with jax.enable_x64(True):
        model, params, x, y = classifier()
        expected = exact(model, params, x, softmax_hessian)

        @jax.jit
        def everything(params):
            of = lambda structure: structured_curvature(model, cross_entropy, params, x, y, structure=structure)
            matrix = lambda K: dense(K, params)
            kfac, ekfac = of("kfac"), of("ekfac")
            return matrix(of("full")), of("diagonal").diagonal(), matrix(kfac), matrix(ekfac), ekfac.diagonal()

        full, diagonal, kfac, ekfac, ekfac_diagonal = everything(params)
        full, kfac, ekfac = map(np.asarray, (full, kfac, ekfac))
        blocks = blocks_of(expected, params)
        close(full, expected)
        close(np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(diagonal)]), np.diag(expected))
        close(np.trace(ekfac), np.trace(expected))
        close(np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(ekfac_diagonal)]), np.diag(ekfac))
        assert np.linalg.norm(ekfac - blocks) < 0.9 * np.linalg.norm(kfac - blocks)


def test_expand_and_reduce_are_the_formulas():
    """A and B of a kernel that five positions share, in NumPy; the empirical Fisher; chunks; diagonal factors."""
    with jax.enable_x64(True):
        x, y = RNG.normal(size=(4, 5, 3)), RNG.normal(size=(4, 2))
        w = jnp.asarray(RNG.normal(size=(3, 2)))
        model = lambda w, x: jnp.sum(jnp.tanh(x @ w), axis=0)
        v = 1 - np.tanh(x @ w) ** 2  # (4, 5, 2), the derivative of each output; the columns of the loss are units
        residual = np.tanh(x @ w).sum(1) - y

        empirical = dict(matrix="empirical_fisher")
        cases = [dict(chunk_size=3), dict(weight_sharing="reduce"), empirical, dict(max_size=2, **empirical)]

        @jax.jit
        def matrices(w, x, y):
            return [dense(structured_curvature(model, half_square, w, x, y, **options), w) for options in cases]

        expand, reduce, fisher, with_diagonal = matrices(w, x, y)
        A = np.einsum("ipc,ipd->cd", x, x) / 20
        B = np.diag(np.sum(v**2, (0, 1))) / 4
        close(expand, np.kron(A, B))
        a = x.mean(1)
        close(reduce, np.kron(a.T @ a / 4, np.diag(np.sum(v.sum(1) ** 2, 0)) / 4))
        g = v * residual[:, None]
        B = np.einsum("ipn,ipm->nm", g, g) / 4
        close(fisher, np.kron(A, B))
        close(with_diagonal, np.kron(np.diag(np.diag(A)), B))


def test_table_rows_have_their_frequencies():
    with jax.enable_x64(True):
        ids, table = jnp.array([[0, 2, 2, 1], [3, 2, 0, 0]]), jnp.asarray(RNG.normal(size=(5, 2)))
        model = lambda table, ids: jnp.mean(table[ids], axis=0)
        of = lambda how: structured_curvature(model, half_square, table, ids, jnp.zeros((2, 2)), weight_sharing=how)
        expand, reduce = jax.jit(lambda: [dense(of(how), table) for how in ("expand", "reduce")])()
        counts = np.array([3, 1, 3, 1, 0])
        close(expand, np.kron(np.diag(counts / 8), 4 * np.eye(2) / 16))
        shares = np.array([[1, 1, 2, 0, 0], [2, 0, 1, 1, 0]]) / 4
        close(reduce, np.kron(np.diag(np.mean(shares**2, 0)), np.eye(2)))


def test_the_sampled_fisher_approaches_the_gauss_newton_matrix():
    """With 4000 targets per example; a sample that is not random gives the outer product of its gradient."""
    with jax.enable_x64(True):
        x, w = jnp.asarray(RNG.normal(size=(2, 2))), jnp.asarray(RNG.normal(size=(2, 3)))
        options = dict(matrix="fisher", key=jax.random.key(0), samples=4000, structure="full")
        model = lambda w, x: x @ w
        of = lambda drawn, loss: dense(structured_curvature(model, loss, w, x, None, likelihood=drawn, **options), w)
        run = jax.jit(lambda: (of("categorical", cross_entropy), of(lambda key, f: f - 3, half_square)))
        categorical, constant = run()
        expected = exact(model, w, x, softmax_hessian)
        np.testing.assert_allclose(categorical, expected, atol=0.05 * np.abs(expected).max())
        close(constant, exact(model, w, x, lambda f, i: 9 * np.ones((3, 3))))


def test_as_a_preconditioner():
    """Conjugate gradients with the inverse take one step, to the product with the inverse."""
    with jax.enable_x64(True):
        scales = jnp.array([1.0, 10.0, 100.0])[None]
        x, params = jnp.asarray(RNG.normal(size=(8, 3))) * scales, jnp.asarray(RNG.normal(size=(3, 2)))
        model = lambda w, x: x @ w

        @jax.jit
        def run(params):
            K = structured_curvature(model, half_square, params, x, jnp.zeros((8, 2)))
            inverse, options = K.inverse(damping=1e-3), dict(damping=1e-3, tolerance=1e-8)
            return solve(K, params, **options), solve(K, params, preconditioner=inverse, **options), inverse(params)

        plain, fast, expected = run(params)
        assert fast.steps == 1 < plain.steps
        np.testing.assert_allclose(fast.x, expected, rtol=1e-8)


# ---- errors ------------------------------------------------------------------------------------


def positive_part(h):
    """Of a 2 x 2 matrix with eigenvalues of both signs: that of the larger one, from trace and determinant."""
    width = jnp.sqrt(jnp.trace(h) ** 2 - 4 * jnp.linalg.det(h))
    larger, smaller = (jnp.trace(h) + width) / 2, (jnp.trace(h) - width) / 2
    return larger * (h - smaller * jnp.eye(2)) / width


@pytest.mark.parametrize("spread", [1.0, 0.0])
@pytest.mark.parametrize("convex", [True, False])
def test_derivatives_in_the_params(convex, spread):
    """An eigenvalue of softmax stays 0 and the others are equal at params of 0; that of o_0^2 o_1 has both signs."""
    loss = cross_entropy if convex else lambda o, y: o[0] ** 2 * o[1]
    model = lambda w, x: jnp.tanh(x @ w) + (0 if convex else 1)
    with jax.enable_x64(True):
        w, x = spread * RNG.normal(size=(3, 3 if convex else 2)), RNG.normal(size=(4, 3))
        y, weights = jnp.array([0, 1, 2, 0]), RNG.normal(size=w.shape)

        def one(w, x, y):
            J, h = jax.jacobian(model)(w, x), jax.hessian(loss)(model(w, x), y)
            return jnp.einsum("ij,eij,ef,fij", weights, J, h if convex else positive_part(h), J)

        plain = lambda w: jnp.mean(jax.vmap(one, (None, 0, 0))(w, x, y))
        expected = jax.jit(jax.grad(plain))(w)
        K = lambda w, **options: structured_curvature(model, loss, w, x, y, structure="diagonal", **options)
        of = lambda w, **options: jnp.sum(weights * K(w, **options).diagonal())
        close(jax.jit(jax.grad(of))(w), expected)
        close(jax.jit(jax.jacfwd(lambda w: of(w, chunk_size=2)))(w), expected)
        with jax.debug_nans(False):
            found = jax.jit(jax.hessian(of))(w)
        if spread:
            close(found, jax.jit(jax.hessian(plain))(w))
        elif convex:  # the eigenvalues that are equal are not those of 0: right where it is a number
            expected = jax.jit(jax.hessian(plain))(w)
            close(found, np.where(np.isnan(found), np.nan, expected))


@pytest.mark.parametrize("equal", [True, False])
def test_inverses_have_derivatives_where_eigenvalues_differ(equal):
    """That of A (x) B for a linear model, A the second moment of x and B the Hessian; else they are NaN, not wrong."""
    x, y, v = RNG.normal(size=(5, 2)), np.zeros((5, 3)), RNG.normal(size=(2, 3))
    with jax.enable_x64(True), jax.debug_nans(False):
        turn = np.linalg.qr(RNG.normal(size=(3, 3)))[0]  # so that equal eigenvalues differ by their rounding
        loss = lambda scales, f: jnp.sum(scales * (turn @ f) ** 2) / 2

        def ours(scales):
            K = structured_curvature(lambda w, x: x @ w, lambda f, y: loss(scales, f), jnp.ones((2, 3)), x, y)
            return jnp.sum(v * K.inverse(damping=0.3)(v)), jnp.sum(v * K.sqrt()(v)), K.trace(), K.log_determinant()

        def plain(scales):
            K = jnp.kron(x.T @ x / 5, turn.T @ jnp.diag(scales) @ turn)
            values, vectors = np.linalg.eigh(x.T @ x / 5)
            root = jnp.kron(vectors * np.sqrt(values) @ vectors.T, turn.T @ jnp.diag(jnp.sqrt(scales)) @ turn)
            inverse = jnp.linalg.inv(K + 0.3 * jnp.eye(6))
            return v.ravel() @ inverse @ v.ravel(), v.ravel() @ root @ v.ravel(), jnp.trace(K), jnp.linalg.slogdet(K)[1]

        scales = jnp.array([1.0, 1.0 if equal else 3.0, 2.0])
        close(jax.jit(ours)(scales), plain(scales))
        gradients = lambda f: [jax.grad(lambda scales, i=i: f(scales)[i])(scales) for i in range(4)]
        found, expected = jax.jit(lambda: (gradients(ours), gradients(plain)))()
        for name, got, of_plain in zip(("inverse", "sqrt", "trace", "log"), found, expected, strict=True):
            close(got, np.full(3, np.nan) if equal and name in ("inverse", "sqrt") else of_plain)


@pytest.mark.parametrize("spectrum", ["rank of 3", "rows of zeros", "decaying"])
def test_inverses_have_derivatives_for_matrices_of_low_rank(spectrum):
    """Eigenvectors of zeros are left where they are, and small eigenvalues near each other are not equal ones."""
    n, rank = 12, 12 if spectrum == "decaying" else 3
    root, change = RNG.normal(size=(2, n, rank)) * 3.0 ** (-np.arange(rank) / 2)
    if spectrum == "rows of zeros":  # eigenvalues that are exactly 0
        root[6:], change[6:] = 0, 0
    v = RNG.normal(size=n)
    covariance = lambda t, dtype: (J := root.astype(dtype) + t * change.astype(dtype)) @ J.T

    def ours(t):
        [basis] = eigenbases([KroneckerFactors(jnp.ones((1, 1), t.dtype), covariance(t, t.dtype)[None])])
        rotated = basis.right[0].T @ v.astype(t.dtype)
        return jnp.sum(rotated**2 / (basis.values[0, 0] + 0.01)), jnp.sum(rotated**2 * basis.values[0, 0])

    def plain(t):
        K = covariance(t, t.dtype)
        return v @ jnp.linalg.solve(K + 0.01 * jnp.eye(n), v), v @ K @ v

    with jax.enable_x64(True), jax.default_matmul_precision("highest"):
        expected = jax.jit(jax.jacfwd(plain))(jnp.float64(0))
        np.testing.assert_allclose(jax.jit(jax.jacfwd(ours))(jnp.float64(0)), expected, rtol=1e-9)
        np.testing.assert_allclose(jax.jit(jax.jacfwd(ours))(jnp.float32(0)), expected, rtol=2e-3)


def test_one_vector_of_params_has_the_exact_matrix():
    """Logistic regression with params of one axis: the mean of p (1 - p) x x^T, which is no product of two means."""
    x, w = jnp.array([[1.0, 2.0, 0.0], [0.5, -1.0, 1.0], [3.0, 0.0, -1.0]]), jnp.array([1.0, -2.0, 0.5])
    loss = lambda z, y: jnp.logaddexp(0.0, z) - y * z
    apply = lambda w, x: x @ w
    with jax.default_matmul_precision("highest"):
        K = jax.jit(lambda w: structured_curvature(apply, loss, w, x, jnp.ones(3), structure="full"))(w)
    p = np.asarray(jax.nn.sigmoid(x @ w))
    expected = np.einsum("n, ni, nj -> ij", p * (1 - p), x, x) / 3
    np.testing.assert_allclose(dense(K, w), expected, rtol=1e-5, atol=1e-6)


def test_models_without_outputs_have_no_curvature():
    run = jax.jit(lambda w, x: structured_curvature(lambda w, x: (x @ w)[:0], half_square, w, x, x[:, :0]).trace())
    assert run(np.ones((3, 2), np.float32), np.ones((4, 3), np.float32)) == 0


def test_one_logit_has_second_derivatives():
    """The trace of the matrix of binary logistic regression is the sum of p (1 - p) |x|^2 / N."""
    x, y = jnp.array([[1.0, 2.0], [0.5, -1.0], [3.0, 0.0]]), jnp.array([0.0, 1.0, 1.0])
    loss = lambda z, y: jnp.sum(jnp.logaddexp(0.0, z) - y * z)
    of_class = lambda w: structured_curvature(lambda w, x: x @ w, loss, w, x, y, structure="diagonal").trace()
    w = jnp.array([[0.3], [-0.2]])
    plain = lambda w: jnp.mean((s := jax.nn.sigmoid(x @ w)[:, 0]) * (1 - s) * jnp.sum(x * x, 1))
    for derivative in (jax.grad, jax.hessian):
        found, expected = jax.jit(derivative(of_class))(w), derivative(plain)(w)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("matrix", ["gauss_newton", "empirical_fisher"])
def test_each_device_has_the_matrix_of_its_own_examples(matrix):
    """Inside of `shard_map`, where JAX sums the gradients of shared params over the devices."""
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    model = lambda p, x: jnp.tanh(x @ p["w"] + p["b"])
    with jax.enable_x64(True):
        params, x = doubles({"b": np.zeros(2), "w": np.zeros((3, 2))}), RNG.normal(size=(6, 3))
        options = dict(structure="full", matrix=matrix, chunk_size=2)
        own = lambda x: structured_curvature(model, half_square, params, x, x[:, :2], **options).diagonal()
        stacked = lambda x: jax.tree.map(lambda leaf: leaf[None], own(x))
        found = jax.jit(jax.shard_map(stacked, mesh=mesh, in_specs=jax.P("d"), out_specs=jax.P("d")))(x)
        for device, rows in enumerate(np.split(x, 2)):
            squared_error = lambda f, i, rows=rows: np.outer(f - rows[i, :2], f - rows[i, :2])
            middle = (lambda f, i: np.eye(2)) if matrix == "gauss_newton" else squared_error
            expected = np.diag(exact(model, params, rows, middle))
            close(ravel_pytree(jax.tree.map(lambda leaf, device=device: leaf[device], found))[0], expected)


def test_functions_of_other_arguments(sentences):
    """A loss, a model, or a function that draws targets, with the call that it needs."""
    x, y, w = jnp.ones((2, 1)), jnp.ones((2, 2)), jnp.ones((1, 2))
    model, other = lambda w, x: x @ w, lambda f: jnp.sum(f)
    loss = r"expected a loss \(outputs, y\) of one example, got a function of \(f\); write for instance loss=lambda"
    for call in (structured_curvature, laplace_approximation):
        for structure in ("kfac", "full"):
            with pytest.raises(TypeError, match=f"{call.__name__} {loss}"):
                call(model, other, w, x, y, structure=structure)
            with pytest.raises(
                TypeError, match=r"expected a model \(params, x\) of one example, got a .* \(f\); write"
            ):
                call(other, half_square, w, x, y, structure=structure)
    with pytest.raises(TypeError, match=r"expected a model \(params, x\)"):
        laplace_approximation(model, half_square, w, x, y).predictive_covariance(other, x)
    options = dict(matrix="fisher", key=jax.random.key(0))
    with pytest.raises(
        TypeError, match=r"expected a function sample\(key, outputs\), which draws targets, got a .*\(f\)"
    ):
        structured_curvature(model, half_square, w, x, y, likelihood=other, **options)
    pair = structured_curvature(model, half_square, w, x, y, likelihood=(lambda key, f: f + 1, other), **options)
    alone = structured_curvature(model, half_square, w, x, y, likelihood=lambda key, f: f + 1, **options)
    np.testing.assert_array_equal(pair.diagonal(), alone.diagonal())


def test_errors_and_their_repairs():
    x, w = jnp.ones((2, 1)), jnp.ones((1, 2))
    call = lambda **options: structured_curvature(lambda w, x: x @ w, half_square, w, x, jnp.ones((2, 2)), **options)
    with pytest.raises(ValueError, match=r'expected a likelihood, .* got None; pass likelihood="categorical"'):
        call(matrix="fisher", key=jax.random.key(0))
    with pytest.raises(ValueError, match=r"expected a key, from which targets are drawn, got None; pass key="):
        call(matrix="fisher", likelihood="gaussian")
    jax.eval_shape(lambda: call(matrix="fisher", likelihood="gaussian", key=jax.random.key(0)))
    with pytest.raises(
        ValueError, match=r"float32 \(2, 1\) at x, got float32 \(4, 2\) at y; give their first axes one"
    ):
        structured_curvature(lambda w, x: x @ w, half_square, w, x, jnp.ones((4, 2)))
    with pytest.raises(TypeError, match="expected model to return one floating-point array"):
        structured_curvature(lambda w, x: (x @ w,), half_square, w, x, jnp.ones((2, 2)))
    with pytest.raises(ValueError, match="structured_curvature expected at least one example, got none; pass x and y"):
        structured_curvature(lambda w, x: x @ w, half_square, w, x[:0], jnp.ones((0, 2)))
    with pytest.raises(ValueError, match=r"expected numbers in each array of params, got float32 \(0,\); remove the"):
        structured_curvature(lambda w, x: x @ w[0], half_square, (w, jnp.ones(0)), x, jnp.ones((2, 2)))
    jax.eval_shape(lambda: structured_curvature(lambda w, x: x @ w[0], half_square, (w,), x, jnp.ones((2, 2))))
    curvature = jax.jit(call)()
    for method in (StructuredCurvature.inverse, StructuredCurvature.log_determinant):
        with pytest.raises(ValueError, match=f"{method.__name__} expected damping >= 0, got -1.0; the eigenvalues"):
            method(curvature, damping=-1.0)
    with pytest.raises(ValueError, match="expected loss to return a scalar"):
        structured_curvature(lambda w, x: x @ w, lambda f, y: f - y, w, x, jnp.ones((2, 2)))


@pytest.mark.parametrize("structure", ["kfac", "ekfac", "diagonal", "full"])
def test_params_of_several_dtypes_under_strict_promotion(structure):
    params = {"a": jnp.ones(2, jnp.float16), "b": jnp.ones(3)}
    model = lambda params, x: (jnp.sum(params["b"]) * jnp.sum(params["a"].astype(jnp.float32)) * x)[None]
    x = jnp.ones(3)
    with jax.numpy_dtype_promotion("strict"):
        K = structured_curvature(model, half_square, params, x, x[:, None], structure=structure)
        assert jax.tree.map(jnp.result_type, K(params)) == jax.tree.map(jnp.result_type, params)
    np.testing.assert_allclose(K.trace(), 2 * 3**2 + 3 * 2**2, rtol=1e-6)  # |J|^2
