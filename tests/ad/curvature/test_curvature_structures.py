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


def jacobians(model, params, x):
    """The outputs of all examples, and their Jacobians in the raveled params."""
    flat, unravel = ravel_pytree(params)

    def one(x):
        def of(w):
            outputs = model(unravel(w), x).reshape(-1)
            return outputs, outputs

        J, outputs = jax.jacrev(of, has_aux=True)(flat)
        return outputs, J

    return [np.asarray(found) for found in jax.jit(jax.vmap(one))(x)]


def exact(model, params, x, middle):
    """The mean of J' H J, from the Jacobian J of each example and ``middle(outputs, i)``, its H."""
    outputs, J = jacobians(model, params, x)
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


def derivatives_of_two_orders(f, w):
    """The gradient in reverse mode and the Hessian by forward mode over it, from one trace."""

    def of(w):
        gradient = jax.grad(f)(w)
        return gradient, gradient

    hessian, gradient = jax.jacfwd(of, has_aux=True)(w)
    return gradient, hessian


@pytest.mark.parametrize("convex", [True, False])
def test_derivatives_in_the_params(convex):
    """An eigenvalue of softmax stays 0 and the others are equal at params of 0; that of o_0^2 o_1 has both signs."""
    loss = cross_entropy if convex else lambda o, y: o[0] ** 2 * o[1]
    model = lambda w, x: jnp.tanh(x @ w) + (0 if convex else 1)
    with jax.enable_x64(True), jax.debug_nans(False):
        w, x = RNG.normal(size=(3, 3 if convex else 2)), RNG.normal(size=(4, 3))
        y, weights, v = jnp.array([0, 1, 2, 0]), RNG.normal(size=w.shape), RNG.normal(size=w.shape)

        def one(w, x, y):
            J, h = jax.jacobian(model)(w, x), jax.hessian(loss)(model(w, x), y)
            return jnp.einsum("ij,eij,ef,fij", weights, J, h if convex else positive_part(h), J)

        plain = lambda w: jnp.mean(jax.vmap(one, (None, 0, 0))(w, x, y))
        K = lambda w, **options: structured_curvature(model, loss, w, x, y, structure="diagonal", **options)
        of = lambda w, **options: jnp.sum(weights * K(w, **options).diagonal())

        @jax.jit
        def run(w):
            along = jax.jvp(lambda w: of(w, chunk_size=2), (w,), (v,))[1]
            return [derivatives_of_two_orders(f, w) for f in (of, plain)], along

        for spread in (1.0, 0.0) if convex else (1.0,):
            ((gradient, hessian), expected), along = run(spread * w)
            close(gradient, expected[0])
            if spread:
                close(hessian, expected[1])
            else:  # the eigenvalues that are equal are not those of 0: right where it is a number
                close(hessian, np.where(np.isnan(hessian), np.nan, expected[1]))
            close(along, np.sum(expected[0] * v))


def test_inverses_have_derivatives_where_eigenvalues_differ():
    """That of A (x) B for a linear model, A the second moment of x and B the Hessian; else they are NaN, not wrong."""
    x, y, v = RNG.normal(size=(5, 2)), np.zeros((5, 3)), RNG.normal(size=(2, 3))
    with jax.enable_x64(True), jax.debug_nans(False):
        turn = np.linalg.qr(RNG.normal(size=(3, 3)))[0]  # so that equal eigenvalues differ by their rounding

        @jax.jit
        def run(scales):
            def ours(scales):
                loss = lambda f, y: jnp.sum(scales * (turn @ f) ** 2) / 2
                K = structured_curvature(lambda w, x: x @ w, loss, jnp.ones((2, 3)), x, y)
                products = [jnp.sum(v * matrix(v)) for matrix in (K.inverse(damping=0.3), K.sqrt())]
                return jnp.stack([*products, K.trace(), K.log_determinant()])

            values, push = jax.linearize(ours, scales)
            pull = jax.linear_transpose(push, scales)
            return values, jax.vmap(push, out_axes=1)(jnp.eye(3)), jax.vmap(pull)(jnp.eye(4))[0]

        A = x.T @ x / 5
        root_of_A = np.linalg.eigh(A)[1] * np.linalg.eigvalsh(A) ** 0.5 @ np.linalg.eigh(A)[1].T
        for second in (3.0, 1.0):
            scales = np.array([1.0, second, 2.0])
            K = np.kron(A, turn.T * scales @ turn)
            inverse, w = np.linalg.inv(K + 0.3 * np.eye(6)), v.ravel()
            root = np.kron(root_of_A, turn.T * scales**0.5 @ turn)
            values, forward, backward = run(scales)
            close(values, [w @ inverse @ w, w @ root @ w, np.trace(K), np.linalg.slogdet(K)[1]])
            slopes = []
            for scale, row in zip(scales, turn, strict=True):
                change, of_root = (np.kron(a, np.outer(row, row)) for a in (A, root_of_A / (2 * scale**0.5)))
                products = [-w @ inverse @ change @ inverse @ w, w @ of_root @ w]
                slopes.append([*products, np.trace(change), np.trace(np.linalg.solve(K, change))])
            slopes = np.transpose(slopes)
            if second == 1.0:
                assert np.isnan(forward[:2]).all() and np.isnan(backward[:2]).all()
                close(forward[2:], slopes[2:])
            else:
                close(forward, slopes)
                close(backward, slopes)


@jax.jit
def of_eigenbases(K, change, v):
    """The derivatives along a change of K of v' (K + 0.01)^-1 v and v' K v, by the eigenvectors of K."""

    def ours(K):
        [basis] = eigenbases([KroneckerFactors(jnp.ones((1, 1), K.dtype), K[None])])
        rotated = basis.right[0].T @ v
        return jnp.sum(rotated**2 / (basis.values[0, 0] + 0.01)), jnp.sum(rotated**2 * basis.values[0, 0])

    return jax.jvp(ours, (K,), (change,))[1]


def test_inverses_have_derivatives_for_matrices_of_low_rank():
    """Eigenvectors of zeros are left where they are, and small eigenvalues near each other are not equal ones."""
    for spectrum in ("rank of 3", "rows of zeros", "decaying"):
        rank = 12 if spectrum == "decaying" else 3
        root, change = RNG.normal(size=(2, 12, rank)) * 3.0 ** (-np.arange(rank) / 2)
        if spectrum == "rows of zeros":  # eigenvalues that are exactly 0
            root[6:], change[6:] = 0, 0
        K, v = root @ root.T, RNG.normal(size=12)
        along = root @ change.T + change @ root.T
        solution = np.linalg.solve(K + 0.01 * np.eye(12), v)
        expected = [-solution @ along @ solution, v @ along @ v]
        with jax.enable_x64(True), jax.default_matmul_precision("highest"):
            np.testing.assert_allclose(of_eigenbases(K, along, v), expected, rtol=1e-9, err_msg=spectrum)
            narrow = (a.astype(np.float32) for a in (root, change))
            root, change = narrow
            found = of_eigenbases(root @ root.T, root @ change.T + change @ root.T, v.astype(np.float32))
            np.testing.assert_allclose(found, expected, rtol=2e-3, err_msg=spectrum)


def test_one_vector_of_params_has_the_exact_matrix():
    """Logistic regression with params of one axis: the mean of p (1 - p) x x^T, which is no product of two means."""
    x, w = np.float32([[1, 2, 0], [0.5, -1, 1], [3, 0, -1]]), np.float32([1, -2, 0.5])
    loss = lambda z, y: jnp.logaddexp(0.0, z) - y * z
    apply = lambda w, x: x @ w
    with jax.default_matmul_precision("highest"):
        K = jax.jit(lambda w: dense(structured_curvature(apply, loss, w, x, jnp.ones(3), structure="full"), w))(w)
    p = 1 / (1 + np.exp(-x @ w))
    expected = np.einsum("n, ni, nj -> ij", p * (1 - p), x, x) / 3
    np.testing.assert_allclose(K, expected, rtol=1e-5, atol=1e-6)


def test_models_without_outputs_have_no_curvature():
    run = jax.jit(lambda w, x: structured_curvature(lambda w, x: (x @ w)[:0], half_square, w, x, x[:, :0]).trace())
    assert run(np.ones((3, 2), np.float32), np.ones((4, 3), np.float32)) == 0


def test_one_logit_has_second_derivatives():
    """The trace of the matrix of binary logistic regression is the sum of p (1 - p) |x|^2 / N."""
    x, y = jnp.array([[1.0, 2.0], [0.5, -1.0], [3.0, 0.0]]), jnp.array([0.0, 1.0, 1.0])
    loss = lambda z, y: jnp.sum(jnp.logaddexp(0.0, z) - y * z)
    of_class = lambda w: structured_curvature(lambda w, x: x @ w, loss, w, x, y, structure="diagonal").trace()
    plain = lambda w: jnp.mean((s := jax.nn.sigmoid(x @ w)[:, 0]) * (1 - s) * jnp.sum(x * x, 1))
    both = jax.jit(lambda w: [derivatives_of_two_orders(f, w) for f in (of_class, plain)])
    for found, expected in zip(*both(np.float32([[0.3], [-0.2]])), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_each_device_has_the_matrix_of_its_own_examples():
    """Inside of `shard_map`, where JAX sums the gradients of shared params over the devices."""
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    model = lambda p, x: jnp.tanh(x @ p["w"] + p["b"])
    with jax.enable_x64(True):
        params, x = doubles({"b": np.zeros(2), "w": np.zeros((3, 2))}), RNG.normal(size=(6, 3))
        of = lambda x, matrix: structured_curvature(
            model, half_square, params, x, x[:, :2], structure="full", matrix=matrix, chunk_size=2
        )
        own = lambda x: [
            ravel_pytree(of(x, matrix).diagonal())[0][None] for matrix in ("gauss_newton", "empirical_fisher")
        ]
        found = jax.jit(jax.shard_map(own, mesh=mesh, in_specs=jax.P("d"), out_specs=jax.P("d")))(x)
        outputs, J = jacobians(model, params, x)
        gradients = np.einsum("no,nop->np", outputs - x[:, :2], J)
        for matrix, each in zip(found, (np.sum(J**2, 1), gradients**2), strict=True):
            close(matrix, each.reshape(2, 3, -1).mean(1))


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
        jax.eval_shape(lambda w: laplace_approximation(model, half_square, w, x, y).predictive_covariance(other, x), w)
    options = dict(matrix="fisher", key=jax.random.key(0))
    with pytest.raises(
        TypeError, match=r"expected a function sample\(key, outputs\), which draws targets, got a .*\(f\)"
    ):
        structured_curvature(model, half_square, w, x, y, likelihood=other, **options)
    drawn = lambda key, f: f + 1
    of = lambda w, likelihood: structured_curvature(model, half_square, w, x, y, likelihood=likelihood, **options)
    pair, alone = jax.jit(lambda w: [of(w, likelihood).diagonal() for likelihood in ((drawn, other), drawn)])(w)
    np.testing.assert_array_equal(pair, alone)


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


def test_params_of_several_dtypes_under_strict_promotion():
    params = {"a": jnp.ones(2, jnp.float16), "b": jnp.ones(3)}
    model = lambda params, x: (jnp.sum(params["b"]) * jnp.sum(params["a"].astype(jnp.float32)) * x)[None]
    x = jnp.ones(3)

    @jax.jit
    def run(params):
        structures = ("kfac", "ekfac", "diagonal", "full")
        each = [structured_curvature(model, half_square, params, x, x[:, None], structure=one) for one in structures]
        return [(K(params), K.trace()) for K in each]

    with jax.numpy_dtype_promotion("strict"):
        for product, trace in run(params):
            assert jax.tree.map(jnp.result_type, product) == jax.tree.map(jnp.result_type, params)
            np.testing.assert_allclose(trace, 2 * 3**2 + 3 * 2**2, rtol=1e-6)  # |J|^2
