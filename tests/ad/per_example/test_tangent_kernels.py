"""Neural tangent kernels: all methods against the dense J J^T, infinite width, training with a constant kernel."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.linalg
from arrays import close, params_of
from cases import for_each
from compiled import compiled
from derivatives import derivative_along

from jaxblocks import (
    MLP,
    Conv,
    Dense,
    Embedding,
    Serial,
)
from jaxblocks.ad import count_flops, kernel_regression, ntk, ntk_plan, ntk_relu
from jaxblocks.ad.per_example import tangent_kernels

METHODS = ["contraction", "products", "structured"]
kernel_regression, ntk_relu = compiled(kernel_regression), compiled(ntk_relu)  # one program for each call


def draw(*shape, seed=1, dtype=np.float64):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def ids(*shape, seed=3):
    return np.random.default_rng(seed).integers(0, 4, shape).astype(np.int32)


def dense_kernels(f, params, x1, x2):
    """J J^T in NumPy, from the Jacobian of each example: between x1 and x2, and of x1."""
    shape = jax.eval_shape(f, params, x1[0]).shape
    found = jax.tree.leaves(jax.jit(jax.vmap(jax.jacrev(f), (None, 0)))(params, np.concatenate([x1, x2])))
    rows = int(np.prod(shape))
    J = np.concatenate([np.reshape(leaf, (len(leaf), rows, -1)) for leaf in found], axis=2)
    left, right = J[: len(x1)], J[len(x1) :]
    return [np.einsum("iop,jmp->ijom", left, J).reshape(len(x1), len(J), *shape, *shape) for J in (right, left)]


def tied(table, ids):
    return jnp.tanh(jnp.sum(table[ids], axis=0)) @ table.T


def joined(w, x):
    return jnp.tanh(x @ jnp.concatenate([w, 2 * w], axis=1))[1:5:2]


def recurrent(w, x):
    """A kernel that is used in each step of a loop."""
    return jax.lax.scan(lambda h, x: (jnp.tanh((h + x) @ w), None), x[0], x)[0][:1]


NETS = {  # function or net, examples x1 and x2, methods in the plan
    "convolution": (
        Serial(Conv(4, (3, 3), stride=2, groups=2, padding="valid"), jax.nn.relu, jnp.ravel, Dense(2)),
        (draw, (3, 5, 5, 2), (2, 5, 5, 2)),
        {"pairs"},
    ),
    "embedding": (Serial(Embedding(9, 4), Dense(3)), (ids, (3, 2), (2, 2)), {"chain"}),
    "recurrent": (recurrent, (draw, (2, 2, 6), (3, 2, 6)), {"pairs"}),
    "tied": (tied, (ids, (3, 2), (2, 2)), set()),
    "joined": (joined, (draw, (3, 4), (2, 4)), set()),
}
PARAMS = {"recurrent": (6, 6), "tied": (9, 4), "joined": (4, 3)}


@pytest.mark.parametrize("name", NETS)
def test_each_method_equals_the_dense_kernel(name, monkeypatch):
    """Full kernel and trace in float64, for two batches and for one, in blocks of rows; positive semidefinite."""
    net, (examples, first, second), ways = NETS[name]
    with jax.enable_x64(True):
        x1, x2 = examples(*first), examples(*second, seed=4)
        if name in PARAMS:
            f, params = jax.jit(net), draw(*PARAMS[name], seed=9)  # traced once for all methods
        else:
            f, params = jax.jit(net.apply), params_of(net, x1[0])

        @jax.jit
        def kernels_of(params):
            full = {m: ntk(f, params, x1, x2, method=m) for m in METHODS}
            return full, {m: ntk(f, params, x1, method=m, trace=True) for m in METHODS[2 * (name != "tied") :: 2]}

        full, traces = kernels_of(params)
        full, traces = jax.tree.map(np.asarray, (full, traces))
        expected, own = dense_kernels(f, params, x1, x2)
        outputs = int(np.prod(own.shape[2:]) ** 0.5 + 0.5)
        own = own.reshape(*own.shape[:2], outputs, outputs)
        for found in full.values():
            np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10 * np.abs(expected).max())
        for found in traces.values():
            np.testing.assert_allclose(found, np.einsum("ijoo->ij", own), rtol=1e-10, atol=1e-10 * np.abs(own).max())
            np.testing.assert_allclose(found, found.T, rtol=1e-12)
            assert np.linalg.eigvalsh(found).min() > -1e-9 * np.abs(found).max()
        # `ntk_plan` without its counts.
        _, plan, _ = tangent_kernels._planned(f, params, x1, x2, method="structured", trace=False)
        assert ways <= {word for leaf in plan.leaves for word in leaf.method.split(" and ")}, plan


def test_kernel_in_blocks_of_rows(monkeypatch):
    """Blocks of rows, of which the last one is smaller, give the same kernel."""
    x = draw(7, 3, dtype=jnp.float32)
    net = MLP(5, 2, activation=jnp.tanh)
    params = jax.tree.map(np.float32, params_of(net, x[0]))
    whole, blocks = (jax.jit(lambda x: ntk(net.apply, params, x, method="structured")) for _ in range(2))
    whole = whole(x)
    monkeypatch.setattr(tangent_kernels, "_BLOCK", 7 * 4 * 3)
    np.testing.assert_allclose(blocks(x), whole, rtol=1e-6, atol=1e-6)
    assert whole.shape == (7, 7, 2, 2) and whole.dtype == jnp.float32


def test_chained_sums():
    """With many outputs and few positions, the sums over positions are computed sequentially."""

    def f(w, x):
        return jnp.ravel(jnp.tanh(x @ w["kernel"])[:, :, None] * w["scale"][None])

    with jax.enable_x64(True):
        w, x = {"kernel": draw(40, 2), "scale": draw(2, 3)}, draw(2, 3, 40)
        [kernel, scale] = ntk_plan(f, w, x).leaves
        assert (kernel.method, scale.method) == ("chain", "formed"), ntk_plan(f, w, x)
        found = jax.jit(lambda w: ntk(f, w, x, method="structured"))(w)
        np.testing.assert_allclose(found, dense_kernels(f, w, x, x)[0], rtol=1e-10, atol=1e-10)


@pytest.mark.cpu  # memory without the workspace of products
def test_plan_reduces_operations_and_memory(monkeypatch):
    """A dense net takes 60 times fewer operations and 40 times less memory; a small net uses contraction."""
    params_of = lambda net, n: jax.eval_shape(net.init, jax.random.key(0), jax.ShapeDtypeStruct((n,), jnp.float32))
    net = MLP(256, 256, 10, activation=jnp.tanh)
    params, x = params_of(net, 64), jax.ShapeDtypeStruct((32, 64), jnp.float32)
    f = jax.jit(net.apply)
    plan = ntk_plan(f, params, x)
    assert plan.method == "structured"
    assert plan.operations["contraction"] > 60 * plan.operations["structured"]
    assert plan.operations["structured"] == count_flops(functools.partial(ntk, f), params, x).flops
    compiled = [jax.jit(lambda p, x, m=m: ntk(f, p, x, method=m)).lower(params, x).compile() for m in METHODS]
    contraction, products, structured = (c.memory_analysis().temp_size_in_bytes for c in compiled)
    assert contraction > 40 * structured and contraction > 20 * products
    small = ntk_plan(MLP(2, 1).apply, params_of(MLP(2, 1), 3), jax.ShapeDtypeStruct((64, 3), jnp.float32))
    assert small.method == "contraction"
    assert "contraction (chosen)" in small.explain() and small._repr_html_().count("<table>") == 2


def test_params_and_outputs_of_size_zero():
    x, used = np.ones((3, 5), np.float32), np.ones((5, 2), np.float32)
    beside = lambda p, x: x @ p["used"] + jnp.sum(p["empty"])
    params, plain = {"used": used, "empty": np.ones((0, 3), np.float32)}, lambda p, x: x @ p

    @jax.jit
    def run(params, x):
        of = lambda trace: [ntk(beside, params, x, trace=trace), ntk(plain, params["used"], x, trace=trace)]
        return [(*of(trace), ntk(plain, params["used"][:, :0], x, trace=trace)) for trace in (True, False)]

    for (found, expected, empty), shape in zip(run(params, x), [(3, 3), (3, 3, 0, 0)], strict=True):
        close(found, expected, 1e-6)
        assert empty.shape == shape and not empty.any()


def test_half_precision_and_integers():
    w, x = jnp.full((300, 2), 1 / 16, jnp.bfloat16), jnp.ones((2, 300), jnp.bfloat16)
    for method in METHODS[::2]:
        kernel = np.asarray(jax.jit(lambda w, x, m=method: ntk(lambda w, x: x @ w, w, x, method=m))(w, x))
        assert kernel.dtype == jnp.bfloat16
        np.testing.assert_array_equal(kernel[:, :, 0, 0].astype(np.float32), 300)  # a sum in bfloat16 would give 256


# ---- infinite width


def test_published_value():
    """u = 0.6 gives kappa_0 = 0.7048328 and kappa_1 + u kappa_0 = 1.1004472; unit inputs 2 on the diagonal."""
    with jax.enable_x64(True):
        kernel = ntk_relu(np.array([[1.0, 0.0]]), np.array([[0.6, 0.8], [1.0, 0.0], [-1.0, 0.0], [0.0, 0.0]]))
        np.testing.assert_allclose(kernel[0], [1.1004472, 2.0, 0.0, 0.0], atol=5e-8)
        # The kernel is homogeneous in each input; other conventions omit the factor of two.
        twice = ntk_relu(np.array([[2.0, 0.0]]), np.array([[1.8, 2.4]]))
        np.testing.assert_allclose(twice, 6 * kernel[:, :1], rtol=1e-14)


def test_closed_form_is_the_mean_over_weights():
    """Monte Carlo over the weights of the wide network, and the formula with the arccosine in NumPy."""
    with jax.enable_x64(True):
        x1, x2 = draw(3, 4), draw(2, 4, seed=5)
        norms = np.outer(np.linalg.norm(x1, axis=1), np.linalg.norm(x2, axis=1))
        u = np.asarray(x1 @ x2.T) / norms
        kappa_0 = (np.pi - np.arccos(u)) / np.pi
        kappa_1 = (u * (np.pi - np.arccos(u)) + np.sqrt(1 - u**2)) / np.pi
        np.testing.assert_allclose(ntk_relu(x1, x2), norms * (kappa_1 + u * kappa_0), rtol=1e-12)
    rng = np.random.default_rng(0)
    w, v = rng.standard_normal((400_000, 4)), rng.standard_normal(400_000)
    hidden = [w @ np.asarray(x).T for x in (x1, x2)]
    relus, steps = [np.maximum(h, 0) for h in hidden], [(h > 0) * v[:, None] for h in hidden]
    mean = 2 / len(v) * (relus[0].T @ relus[1] + (steps[0].T @ steps[1]) * (np.asarray(x1) @ np.asarray(x2).T))
    with jax.enable_x64(True):
        np.testing.assert_allclose(ntk_relu(x1, x2), mean, atol=0.03)


def test_kernels_of_long_and_of_short_inputs():
    """The kernel is homogeneous in each input; the square of a norm of 1e-20 is 0, and so is 1 / 1.6e38."""
    x1, x2 = draw(3, 4, dtype=np.float32), 1e4 * draw(2, 4, seed=5, dtype=np.float32)
    x1 *= 4 / np.linalg.norm(x1, axis=1, keepdims=True)
    of_first = jax.jit(jax.value_and_grad(lambda x1, x2: ntk_relu(x1, x2).sum()))
    expected, slope = of_first(x1, x2)
    for scale in np.float32([1e-30, 1e-20, 1e25, 4e37]):
        found, steep = of_first(scale * x1, x2 / scale)
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        np.testing.assert_allclose(steep * scale, slope, rtol=1e-4, atol=1)


def test_diagonal_is_exact():
    """In float32, arccos has an error of 1e-4 on the diagonal; gradients are finite there and at zero."""
    x = draw(5, 7, dtype=np.float32)
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    np.testing.assert_allclose(np.diag(ntk_relu(x)), 2, rtol=1e-6)
    assert np.isfinite(jax.jit(jax.grad(lambda x: ntk_relu(x).sum()))(np.concatenate([x, 0 * x[:1]]))).all()


def test_empirical_kernel_converges_to_the_closed_form():
    def f(params, x):
        return jnp.sqrt(2 / params["v"].size) * jnp.sum(params["v"] * jax.nn.relu(x @ params["w"]))

    x = np.array([[1.0, 0.0], [0.6, 0.8]], np.float32)
    params = {"w": draw(2, 20_000, dtype=np.float32), "v": draw(20_000, seed=2, dtype=np.float32)}
    np.testing.assert_allclose(jax.jit(lambda p: ntk(f, p, x))(params), ntk_relu(x), atol=0.05)


# ---- training with a constant kernel


def problem(outputs=()):
    root = draw(5, 6, seed=8)
    kernel, across = root @ root.T, draw(3, 6, seed=9) @ root.T
    return kernel, across, draw(5, *outputs, seed=10), draw(5, *outputs, seed=11), draw(3, *outputs, seed=12)


def test_gradient_flow_solves_the_differential_equation():
    """Compare with an ODE solver of SciPy, at training points and at other points."""
    with jax.enable_x64(True):
        kernel, across, y, start, test_start = problem()
        both = np.concatenate([kernel, across])
        solved = scipy.integrate.solve_ivp(
            lambda t, f: -0.3 * both @ (f[:5] - y), (0, 2), np.concatenate([start, test_start]), rtol=1e-10, atol=1e-12
        ).y[:, -1]
        found = kernel_regression(kernel, y, across, time=2, rate=0.3, start=start, test_start=test_start)
        np.testing.assert_allclose(found, solved[5:], rtol=1e-7)
        alone = kernel_regression(kernel, y, time=2, rate=0.3, start=start)
        np.testing.assert_allclose(alone, solved[:5], rtol=1e-7)


def test_gradient_descent_matches_a_loop():
    """Compare discrete time with a loop at a learning rate where the largest mode overshoots; t = inf interpolates."""
    with jax.enable_x64(True):
        kernel, across, y, start, test_start = problem((2,))
        rate = 1.7 / float(np.linalg.eigvalsh(kernel)[-1])
        f, g = start, test_start
        for _ in range(7):
            f, g = f - rate * kernel @ (f - y), g - rate * across @ (f - y)
        found = kernel_regression(
            kernel, y, across, time=np.array([0, 7]), rate=rate, start=start, test_start=test_start, discrete=True
        )
        np.testing.assert_allclose(found[0], test_start, rtol=1e-12)
        np.testing.assert_allclose(found[1], g, rtol=1e-10)
        np.testing.assert_allclose(kernel_regression(kernel, y), y, rtol=1e-9)
        limit = kernel_regression(kernel, y, across)
        np.testing.assert_allclose(limit, across @ np.linalg.solve(kernel, y), rtol=1e-9)


def test_between_steps_modes_that_overshoot_have_no_prediction():
    """(1 - 1.5)^1.5 is no real number; at infinite time the powers are 0."""
    kernel, y = jnp.diag(jnp.array([0.5, 1.5])), jnp.array([1.0, 2.0])
    with jax.debug_nans(False):
        assert np.isnan(kernel_regression(kernel, y, time=1.5, discrete=True)).all()
    slow = kernel_regression(kernel / 2, y, time=1.5, discrete=True)
    np.testing.assert_allclose(slow, y * (1 - np.array([0.75, 0.25]) ** 1.5), rtol=1e-6)
    times = jnp.array([2.0, 3.0, jnp.inf])  # no NaN on the way, which the tests make an error
    found = kernel_regression(kernel, y, time=times, discrete=True)
    np.testing.assert_allclose(found, [[1 - 0.5**2, 2 * (1 - 0.5**2)], [1 - 0.5**3, 2 * (1 + 0.5**3)], y], rtol=1e-6)


def test_several_outputs_and_singular_kernels():
    """Compare (N, N, O, O) with the matrix exponential of SciPy; directions with eigenvalue zero do not change."""
    with jax.enable_x64(True):
        root = draw(3, 2, 9)
        full, y = np.einsum("iop,jmp->ijom", root, root), draw(3, 2, seed=5)
        matrix = full.transpose(0, 2, 1, 3).reshape(6, 6)
        expected = (np.eye(6) - scipy.linalg.expm(-0.4 * matrix)) @ np.ravel(y)
        np.testing.assert_allclose(np.ravel(kernel_regression(full, y, time=0.4)), expected, rtol=1e-10)
        ones, y = np.ones((2, 2)), np.array([1.0, 3.0])
        np.testing.assert_allclose(kernel_regression(ones, y), [2, 2], rtol=1e-12)
        np.testing.assert_allclose(kernel_regression(ones, y, time=1e9), [2, 2], rtol=1e-12)
        untrained = kernel_regression(np.ones((0, 0)), np.ones(0), np.ones((2, 0)), test_start=y)
        np.testing.assert_array_equal(untrained, y)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_kernels_in_half_precision(dtype):
    """`ntk` returns half precision for such params; the predictions are those of float32, rounded once."""
    root, y = jnp.asarray(draw(4, 5), dtype), jnp.asarray(draw(4, seed=5), dtype)
    kernel = root @ root.T
    found = kernel_regression(kernel, y, kernel[:2], time=0.3)
    wide = [x.astype(jnp.float32) for x in (kernel, y, kernel[:2])]
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, kernel_regression(*wide, time=0.3).astype(dtype))


@pytest.mark.parametrize("options", [{}, {"time": 1.3, "rate": 0.4}, {"time": 3.0, "rate": 0.4, "discrete": True}])
def test_derivatives_where_eigenvalues_are_equal(options):
    """Compare derivatives along the kernel and the time with differences of functions of matrices by SciPy."""
    rate, time = options.get("rate"), options.get("time")

    def expected(kernel, time):
        if time is None:
            return across @ np.linalg.solve(kernel, y)
        step = -rate * kernel
        left = (
            scipy.linalg.expm(time * step) if "discrete" not in options else np.linalg.matrix_power(np.eye(4) + step, 3)
        )
        return across @ np.linalg.solve(kernel, (np.eye(4) - left) @ y)

    with jax.enable_x64(True):
        y, across, d_kernel, h = draw(4), draw(2, 4, seed=2), draw(4, 4, seed=3), 1e-5
        d_kernel = d_kernel + d_kernel.T
        others = {k: v for k, v in options.items() if k != "time"}
        continuous = time is not None and "discrete" not in options

        @jax.jit
        def derivatives(kernel, time):
            f = lambda kernel, time: kernel_regression(kernel, y, across, time=time, **others)
            along = jax.jvp(lambda kernel: f(kernel, time), [kernel], [d_kernel])[1]
            back = jax.grad(lambda kernel: f(kernel, time).sum())(kernel)
            return along, back, jax.jvp(lambda time: f(kernel, time), [time], [1.0])[1] if continuous else None

        for spread in (0.0, 1e-9, 0.3):  # the eigenvalues are 1, 1, 1 and 1.4 without a spread
            kernel = np.eye(4) + 0.1 + np.diag([0, spread, 0, -spread])
            along, back, found = derivatives(kernel, time)
            differences = (expected(kernel + h * d_kernel, time) - expected(kernel - h * d_kernel, time)) / (2 * h)
            np.testing.assert_allclose(along, differences, rtol=1e-7, atol=1e-8)
            np.testing.assert_allclose(np.sum(back * d_kernel), differences.sum(), rtol=1e-7, atol=1e-8)
            if continuous:
                slope = (expected(kernel, time + h) - expected(kernel, time - h)) / (2 * h)
                np.testing.assert_allclose(found, slope, rtol=1e-7, atol=1e-8)


def test_second_derivatives_along_kernels():
    """Compare with differences of inverses; where eigenvalues are equal, they may be NaN."""
    expected = lambda t, y: np.linalg.solve(kernel + t * d_kernel, y).sum()
    d_kernel, y, h = np.ones((3, 3)) + np.eye(3), draw(3), 1e-4
    at = lambda kernel, t, y: kernel_regression(kernel + t * d_kernel, y, np.ones((1, 3)))[0]
    second = (
        jax.grad(jax.grad(at, 1), 1),
        jax.jacrev(jax.grad(at, 1), 2),
        jax.jacfwd(jax.grad(at, 2), 1),
    )
    with jax.enable_x64(True), jax.debug_nans(False):
        every = jax.jit(lambda kernel: [derivative(kernel, 0.0, y) for derivative in second])
        for diagonal in ([1.0, 2.0, 4.0], [1.0, 1.0, 1.0], [1.0, 1.0 + 1e-15, 4.0]):
            kernel, differ = np.diag(diagonal), diagonal[1] == 2
            of_t, by_reverse, by_forward = every(kernel)
            twice = (expected(h, y) - 2 * expected(0, y) + expected(-h, y)) / h**2
            np.testing.assert_allclose(of_t, twice if differ else np.nan, rtol=1e-5)
            by_y = np.array([(expected(h, one) - expected(-h, one)) / (2 * h) for one in np.eye(3)])
            np.testing.assert_allclose(by_reverse, by_y, rtol=1e-5)
            np.testing.assert_allclose(
                by_forward, np.where(np.isnan(by_forward) & (not differ), np.nan, by_y), rtol=1e-5
            )


def test_second_derivatives_along_kernels_of_low_rank():
    """Against the matrix exponential, for a kernel with several directions of eigenvalue 0."""
    root, change, y = draw(8, 2), draw(8, 2, seed=2), draw(8, seed=3)
    kernel = lambda t: (J := root + t * change) @ J.T
    plain = lambda t: y - scipy.linalg.expm(-1.5 * kernel(t)) @ y
    with jax.enable_x64(True):
        ours = lambda t: kernel_regression(kernel(t), y, time=1.5)
        found = jax.jit(jax.jacfwd(jax.jacrev(ours)))(0.0)
    np.testing.assert_allclose(found, derivative_along(plain, 0.0, 1.0, 2), rtol=1e-9, atol=1e-11)


# ---- errors


W, X = jnp.ones((3, 2)), jnp.ones((4, 3))


def linear(w, x):
    return x @ w


BAD = [
    (
        lambda: ntk(linear, W, X, jnp.ones((4, 2))),
        ValueError,
        r"examples of x2 like those of x1, float32 \(3,\) at x1, got float32 \(2,\) at x2",
    ),
    (lambda: ntk(linear, W, X, {"x": X}), ValueError, "expected x2 in the containers of x1"),
    (lambda: ntk(linear, W, X, method="dense"), ValueError, "method to be 'auto' or 'contraction'.*got 'dense'"),
    (lambda: ntk(linear, {"w": jnp.arange(3)}, X), TypeError, r"got int32 \(3,\) at params\['w'\]"),
    (lambda: ntk(lambda w: w, W, X), TypeError, r"expected a model \(params, x\) of one example, got .* of \(w\)"),
    (lambda: ntk(lambda w, x: (x, w), W, X), TypeError, "one floating-point array, got a tuple"),
    (
        lambda: ntk(linear, W, jnp.float32(1)),
        ValueError,
        r"x1 to have the examples on a leading axis",
    ),
    (lambda: ntk(X, W, X), TypeError, r"ntk expected f to be a function, got float32 \(4, 3\)"),
    (
        lambda: ntk(lambda p, x: x @ jnp.exp(p["w"]), {"w": W}, X, method="structured"),
        ValueError,
        r"used in products only, got params\['w'\], where exp uses it; use method=\"auto\"",
    ),
    (lambda: ntk_relu(X, jnp.ones((4, 2))), ValueError, r"with the same size of features, got float32 \(4, 3\)"),
    (lambda: ntk_relu(jnp.arange(3)), TypeError, r"x1 to be a floating-point array, got int32 \(3,\)"),
    (
        lambda: kernel_regression(jnp.ones((2, 2)), jnp.ones(3)),
        ValueError,
        "same size of n, got",
    ),
    (
        lambda: kernel_regression(jnp.eye(2), jnp.ones(2), start=jnp.ones(3)),
        ValueError,
        r"start .*with the same size of n, got .*float32 \(3,\)",
    ),
]


@pytest.mark.usefixtures("sentences")
@for_each({words: (call, error, words) for call, error, words in BAD})
def test_wrong_arguments_are_rejected(case):
    call, error, words = case
    with pytest.raises(error, match=words):
        call()


def test_suggested_repairs_work():
    """The repairs suggested by the errors work."""
    kernel = jax.jit(lambda w, x: ntk(lambda p, x: x @ jnp.exp(p["w"]), {"w": w}, x, x[:3], method="auto"))(0 * W, X)
    np.testing.assert_allclose(np.einsum("ijoo->ij", kernel), 6, rtol=1e-6)


def test_kernels_of_small_gradients_keep_their_digits():
    """Gradients that are differences of two inputs, where pairs of positions cancel."""
    rng = np.random.default_rng(0)
    a, step, w = (rng.normal(size=shape).astype(np.float32) for shape in [(4, 1, 16), (4, 1, 16), (16, 12)])
    f = lambda w, x: jnp.sum(jnp.array([1.0, -1.0]) @ (x @ w))
    structured = jax.jit(lambda w, x: ntk(f, w, x, method="structured"))
    for size in (np.float32(1e-3), np.float32(0)):
        x = np.concatenate([a, a + size * step], axis=1)
        inputs = x[:, 0].astype(np.float64) - x[:, 1]
        # A product adds the terms of one of the two gradients only after it was multiplied by the other.
        atol = 1e-3 * 12 * np.max(np.sum(inputs**2, axis=1))
        np.testing.assert_allclose(structured(w, x), 12 * inputs @ inputs.T, rtol=0, atol=atol)


def test_params_of_several_dtypes_under_strict_promotion():
    params = {"a": np.ones((2, 1), np.float16), "b": np.ones((), np.float32)}
    f = lambda params, x: (jnp.ones(2, jnp.float16) @ params["a"]).astype(x.dtype) * x + params["b"] * x
    x = np.float32([1, 2, 3])
    with jax.numpy_dtype_promotion("strict"):
        for found in jax.jit(lambda params, x: [ntk(f, params, x, method=method) for method in METHODS])(params, x):
            close(found, 3 * np.outer(x, x)[..., None, None], 1e-6)
