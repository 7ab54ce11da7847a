"""Linear and logistic regression: closed forms, scikit-learn, optimality conditions, derivatives, errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import compiled
from jax.experimental import checkify
from jax.test_util import check_grads

from jaxblocks.layers.combinators import Serial
from jaxblocks.layers.dense import Dense
from jaxblocks.layers.linear_models import linear_regression, logistic_regression

XOR_X = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
XOR_Y = np.array([[0.0], [1.0], [1.0], [0.0]])


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


@pytest.fixture(autouse=True)
def _trace_once(request):
    """Check for leaked tracers in one test only, since the check retraces every loop at each call."""
    before = jax.config.jax_check_tracer_leaks
    jax.config.update("jax_check_tracer_leaks", before and "leaks" in request.node.name)
    yield
    jax.config.update("jax_check_tracer_leaks", before)


def data(n=40, n_in=3, n_out=2, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, n_in)) * 3 + 1
    return x, x @ rng.normal(size=(n_in, n_out)) + rng.normal(size=(n, n_out)) + 2


def overlapping(n=60, n_in=3, seed=1):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, n_in))
    return x, (x @ rng.normal(size=n_in) + 1.5 * rng.normal(size=n) + 0.5 > 0).astype(np.int32)


def augmented_lstsq(x, y):
    """Least squares in NumPy with a column of ones."""
    solution = np.linalg.lstsq(np.concatenate([x, np.ones((len(x), 1))], axis=1), y, rcond=None)[0]
    return solution[:-1], solution[-1]


def log_loss(params, x, labels, ridge=0.0):
    """The loss as defined in the docstring."""
    z = jnp.matmul(x, params["kernel"][:, 0], precision="highest") + params["bias"][0]
    return jnp.mean(jnp.logaddexp(0.0, jnp.where(labels == 1, -z, z))) + ridge * jnp.sum(params["kernel"] ** 2)


fit_linear, fit_logistic = jax.jit(linear_regression), jax.jit(logistic_regression)


# Linear regression


@pytest.mark.parametrize(("dtype", "rtol"), [("float32", 2e-5), ("float64", 1e-12)])
def test_linear_regression_is_least_squares(x64, dtype, rtol):
    x, y = data()
    kernel, bias = augmented_lstsq(x, y)
    params = fit_linear(x.astype(dtype), y.astype(dtype))
    assert params["kernel"].dtype == params["bias"].dtype == dtype
    np.testing.assert_allclose(params["kernel"], kernel, rtol=rtol)
    np.testing.assert_allclose(params["bias"], bias, rtol=rtol)


def test_half_precision_is_computed_in_float32():
    x, y = (jnp.asarray(v, jnp.bfloat16) for v in data())
    kernel, bias = augmented_lstsq(np.asarray(x, np.float64), np.asarray(y, np.float64))
    params = fit_linear(x, y)
    assert params["kernel"].dtype == params["bias"].dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(params["kernel"], np.float64), kernel, rtol=2**-8, atol=1e-5)
    np.testing.assert_allclose(np.asarray(params["bias"], np.float64), bias, rtol=2**-8)


def test_ridge_solves_its_normal_equations_with_an_unpenalized_bias(x64):
    """(X^T X + N lambda I)^{-1} X^T y on centered data; the negative control penalizes the bias too."""
    from sklearn.linear_model import Ridge

    x, y = data()
    n, ridge = len(x), 0.01
    params = fit_linear(x, y, ridge=ridge)
    centered = x - x.mean(0)
    kernel = np.linalg.solve(centered.T @ centered + n * ridge * np.eye(3), centered.T @ (y - y.mean(0)))
    np.testing.assert_allclose(params["kernel"], kernel, rtol=1e-11)
    np.testing.assert_allclose(params["bias"], y.mean(0) - x.mean(0) @ kernel, rtol=1e-11)
    reference = Ridge(alpha=n * ridge, solver="svd").fit(x, y)
    np.testing.assert_allclose(params["kernel"], reference.coef_.T, rtol=1e-11)
    ones = np.concatenate([x, np.ones((n, 1))], axis=1)
    penalized = np.linalg.solve(ones.T @ ones + n * ridge * np.eye(4), ones.T @ y)
    assert np.abs(penalized[:-1] - kernel).max() > 1e-4
    on_centered = fit_linear(centered, y - y.mean(0), ridge=ridge)
    np.testing.assert_allclose(on_centered["kernel"], kernel, rtol=1e-11)
    np.testing.assert_allclose(on_centered["bias"], [0.0, 0.0], atol=1e-13)


@pytest.mark.parametrize("case", ["collinear", "constant column", "one example"])
def test_underdetermined_fit_has_the_minimum_norm(x64, case):
    from sklearn.linear_model import LinearRegression

    x, y = data()
    if case == "collinear":
        x = np.concatenate([x, x[:, :1] - 2 * x[:, 1:2]], axis=1)
    if case == "constant column":
        x = np.concatenate([x, np.full((len(x), 1), 0.1)], axis=1)
    if case == "one example":
        x, y = x[:1], y[:1]
    params = fit_linear(x, y)
    reference = LinearRegression().fit(x, y)
    np.testing.assert_allclose(params["kernel"], reference.coef_.T, rtol=1e-9, atol=1e-13)
    np.testing.assert_allclose(params["bias"], reference.intercept_, rtol=1e-9)


def test_large_offsets_keep_the_precision():
    """Data are centered first: in float32, data around 1000 are fitted as accurately as data around 0."""
    x = np.linspace(-1, 1, 33, dtype=np.float32)[:, None] + np.float32(1000)
    y = 2 * (x.astype(np.float64) - 1000)
    params = fit_linear(x, y.astype(np.float32))
    np.testing.assert_allclose(params["kernel"], [[2.0]], rtol=1e-5)


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e20, 1e30])
def test_data_of_every_size(scale):
    """Weights are the inverse of the unit of the features; squares of 1e-20 and of 1e20 leave the range of float32."""
    rng = np.random.default_rng(5)
    x, labels = rng.normal(size=(12, 3)).astype(np.float32), np.arange(12) % 2
    y, scale = x @ np.ones((3, 1), np.float32) + labels[:, None].astype(np.float32), np.float32(scale)

    for fit, targets in (linear_regression, y), (logistic_regression, labels):
        expected, found = (compiled(fit)(c * x, targets) for c in (np.float32(1), scale))
        np.testing.assert_allclose(found["kernel"] * scale, expected["kernel"], rtol=1e-3)
        np.testing.assert_allclose(found["bias"], expected["bias"], rtol=1e-3)
    slope = lambda c: jax.jit(jax.jacobian(lambda y: linear_regression(c * x, y)["kernel"]))(y) * c
    np.testing.assert_allclose(slope(scale), slope(np.float32(1)), rtol=1e-3, atol=1e-5)


def test_derivatives_of_the_fit(x64):
    """Along the ridge, with A = X_c^T X_c / N: dW/dlambda = -A^{-1} W and d2W/dlambda2 = 2 A^{-2} W, at 0 too."""
    x, y = data(n=12)
    fit = jax.jit(lambda x, y, ridge: linear_regression(x, y, ridge=ridge))
    check_grads(fit, (x, y, 0.1), order=1, rtol=1e-6)

    def kernel(ridge):
        return linear_regression(x, y, ridge=ridge)["kernel"]

    first = jax.jacfwd(kernel)
    value, slope, bend = jax.jit(lambda ridge: (kernel(ridge), first(ridge), jax.jacrev(first)(ridge)))(np.zeros(()))
    centered = x - x.mean(0)
    a = centered.T @ centered / 12
    np.testing.assert_allclose(slope, -np.linalg.solve(a, value), rtol=1e-10)
    np.testing.assert_allclose(bend, 2 * np.linalg.solve(a, np.linalg.solve(a, value)), rtol=1e-10)


# Logistic regression


@pytest.mark.parametrize(("ridge", "dtype", "atol"), [(0.0, "float32", 5e-6), (0.01, "float64", 1e-9)])
def test_logistic_regression_agrees_with_scikit_learn(x64, ridge, dtype, atol):
    from sklearn.linear_model import LogisticRegression

    x, labels = overlapping()
    fitted = LogisticRegression(C=1 / (2 * len(x) * ridge) if ridge else np.inf, solver="newton-cg", tol=1e-13)
    fitted.fit(x.astype(dtype).astype(np.float64), labels)
    for kind in (np.int32, bool):
        params = fit_logistic(x.astype(dtype), labels.astype(kind), ridge=ridge)
        assert params["kernel"].dtype == params["bias"].dtype == dtype
        np.testing.assert_allclose(params["kernel"].T, fitted.coef_, atol=atol)
        np.testing.assert_allclose(params["bias"], fitted.intercept_, atol=atol)


def test_gradient_vanishes_at_the_optimum(x64):
    x, labels = overlapping()
    for ridge in (0.0, 0.1):
        params = fit_logistic(x * 50 + 7, labels, ridge=ridge)
        for leaf in jax.tree.leaves(jax.jit(jax.grad(log_loss))(params, x * 50 + 7, labels, ridge)):
            np.testing.assert_allclose(leaf, np.zeros(leaf.shape), atol=1e-12)


SEPARABLE = {
    "separated": ([0, 1, 2, 3, 4], [0, 0, 0, 0, 0], [0, 0, 1, 1, 1]),
    "touching": ([0, 1, 1, 3, 3], [0, 0, 0, 0, 0], [0, 0, 1, 1, 1]),
    "touching in two dimensions": ([0, 1, 1, 3, 2], [0, 0, 0, 5, 3], [0, 1, 0, 1, 1]),
    "one class": ([0, 1, 1, 3, 4], [0, 2, 1, 1, 0], [1, 1, 1, 1, 1]),
    "few examples": ([0, 1, 0, 1, 0], [2, 3, 2, 3, 2], [0, 1, 0, 1, 0]),
}


@pytest.mark.parametrize("case", SEPARABLE)
def test_without_a_finite_optimum_params_are_nan_under_jit(x64, case):
    dtype = "float64" if case == "touching in two dimensions" else "float32"
    *columns, labels = SEPARABLE[case]
    x, labels = np.transpose(columns).astype(dtype), np.array(labels, np.int32)
    with jax.debug_nans(False):
        assert all(np.isnan(leaf).all() for leaf in jax.tree.leaves(fit_logistic(x, labels, ridge=0.0)))
    if case != "one class":  # the suggested repair
        gradient = jax.jit(jax.grad(log_loss))(fit_logistic(x, labels, ridge=1e-3), x, labels, 1e-3)
        assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(gradient)) < (1e-6 if dtype == "float32" else 1e-12)


def test_without_a_finite_optimum_an_error_is_raised():
    *columns, labels = SEPARABLE["touching"]
    x, labels = np.transpose(columns).astype(np.float32), np.array(labels, np.int32)
    with pytest.raises(ValueError, match=r"no finite optimum.*pass ridge > 0"):
        logistic_regression(x, labels)
    with jax.debug_nans(False):
        error, _ = checkify.checkify(jax.jit(lambda x, y: logistic_regression(x, y, check=True)))(x, labels)
    with pytest.raises(checkify.JaxRuntimeError, match="no finite optimum"):
        error.throw()


def test_one_wrong_label_makes_the_optimum_of_separable_data_finite(x64):
    """Nearly separable data have a steep but finite optimum, which raises no error."""
    x = np.linspace(-1.0, 1.0, 200, dtype=np.float32)[:, None]
    labels = (x[:, 0] > 0).astype(np.int32)
    labels[99:101] = 1, 0
    params = fit_logistic(x, labels)
    exact = fit_logistic(x.astype(np.float64), labels)
    np.testing.assert_allclose(params["kernel"], exact["kernel"], rtol=1e-4)
    assert exact["kernel"][0, 0] > 50


def test_duplicate_features_have_equal_weights(x64):
    x, labels = overlapping()
    alone = fit_logistic(x, labels, ridge=0.0)
    doubled = fit_logistic(np.concatenate([x, x[:, :1]], axis=1), labels)
    first, *others = np.asarray(alone["kernel"])
    expected = [first / 2, *others, first / 2]
    np.testing.assert_allclose(doubled["kernel"], expected, rtol=1e-10)


def test_derivatives_of_the_logistic_fit_and_vmap(x64):
    x, labels = overlapping()

    def fit(x, ridge):
        return logistic_regression(x, labels, ridge=ridge)

    @jax.jit
    def derivatives(x, along):
        """Along a direction by differences, forward mode, and reverse mode."""
        at, step = (x, 0.1), 1e-5
        shifted = jax.vmap(lambda s: fit(*(a + s * v for a, v in zip(at, along, strict=True))))(
            jnp.array([step, -step])
        )
        difference = jax.tree.map(lambda ends: (ends[0] - ends[1]) / (2 * step), shifted)
        _, forward = jax.jvp(fit, at, along)
        behind = jax.vjp(fit, *at)[1](forward)
        return difference, forward, sum(jnp.vdot(a, v) for a, v in zip(behind, along, strict=True))

    along = np.random.default_rng(0).normal(size=x.shape), 0.3
    difference, forward, reverse = derivatives(x, along)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), forward, difference)
    squares = sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(forward))
    np.testing.assert_allclose(reverse, squares, rtol=1e-9)


def test_no_tracer_leaks():
    x, labels = np.linspace(0, 1, 8, dtype=np.float32)[:, None], np.arange(8, dtype=np.int32) % 2
    for fit, y in ((linear_regression, x), (logistic_regression, labels)):
        gradient = jax.jit(jax.grad(lambda x, fit=fit, y=y: fit(x, y, ridge=0.1)["kernel"].sum()))(x)
        assert np.isfinite(gradient).all()
        assert np.abs(gradient).max() > 1e-3


# Features


def test_a_feature_map_is_a_function_in_serial(x64):
    """Phi(x) = (x1, x2, x1 x2) makes XOR linear: w = (1, 1, -2), b = 0."""

    def features(x):
        return jnp.concatenate([x, x[..., :1] * x[..., 1:]], axis=-1)

    x, y = XOR_X, XOR_Y
    params = fit_linear(jax.jit(features)(x), y)
    np.testing.assert_allclose(params["kernel"], [[1.0], [1.0], [-2.0]], atol=1e-14)
    np.testing.assert_allclose(params["bias"], [0.0], atol=1e-14)
    net = Serial(features, Dense(1))
    assert jax.tree.map(jnp.shape, jax.eval_shape(net.init, jax.random.key(0), x)) == (
        (),
        {"kernel": (3, 1), "bias": (1,)},
    )
    np.testing.assert_allclose(compiled(net.apply)(((), params), x), XOR_Y, atol=1e-14)


# Errors


def test_wrong_arguments_are_rejected(sentences):
    x, y = np.ones((4, 2), np.float32), np.ones((4, 1), np.float32)
    with pytest.raises(ValueError, match=r"y with 2 axes, \(n, out\), got float32 \(4,\)"):
        linear_regression(x, y[:, 0])
    assert jax.eval_shape(linear_regression, x, y[:, 0][:, None])["kernel"].shape == (2, 1)  # the suggested repair
    with pytest.raises(ValueError, match="same size of n"):
        linear_regression(x, y[:3])
    with pytest.raises(TypeError, match=r"x to be a floating-point array, got int32 \(4, 2\)"):
        linear_regression(np.ones((4, 2), np.int32), y)
    with pytest.raises(ValueError, match=r"linear_regression expected ridge to be a number >= 0 or an array, got -1.0"):
        linear_regression(x, y, ridge=-1.0)
    with pytest.raises(ValueError, match="logistic_regression expected ridge to be a number >= 0 or an array"):
        logistic_regression(x, np.array([0, 1, 0, 1]), ridge=jnp.array(-1.0))
    with pytest.raises(ValueError, match=r"labels 0 and 1, got \[0 1 2 1\]"):
        logistic_regression(x, np.array([0, 1, 2, 1]))
    with pytest.raises(TypeError, match=r"float32 \(4,\); convert it with labels.astype\(jnp.int32\)"):
        logistic_regression(x, np.ones(4, np.float32))
    with pytest.raises(ValueError, match=r"labels with 1 axis, \(n,\), got int32 \(4, 1\)"):
        logistic_regression(x, np.ones((4, 1), np.int32))


def test_bad_values_under_jit_are_nan():
    x, y = (v.astype(np.float32) for v in data())
    points, labels = overlapping()
    with jax.debug_nans(False):
        assert np.isnan(fit_linear(x, y, ridge=-1.0)["kernel"]).all()
        labels[0] = 2
        assert np.isnan(fit_logistic(points.astype(np.float32), labels)["bias"]).all()
