"""What the products and the code paths of GPUs and TPUs change: nothing in solvers and closed forms, little in layers.

The suite runs a part on the CPU. ``pytest --products tpu`` (or ``gpu``) runs any tests with rounded products, and
``pytest --backend gpu tests/laws/test_laws.py`` all laws with the code paths of a GPU.
"""

import re

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from accelerators import MANTISSA, code_of, products_of
from compiled import drawn
from jax import lax
from jax.extend.core import jaxpr_as_fun
from zoo import ON_BACKENDS, SIMPLE, ZOO

import jaxblocks as jb
from jaxblocks import ad, diffusion, layers, losses, tensors, theory
from jaxblocks.ad.counting.counts import equations
from jaxblocks.models import LoRA
from jaxblocks.testing.case import Case, differentiable_part
from jaxblocks.testing.laws import LAWS, check_layer

pytestmark = pytest.mark.cpu  # an accelerator rounds by itself
RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


X, Y, B = normal(20, 5), normal(20, 2), normal(5)
M, LABELS = normal(5, 5), np.arange(20) % 2
SPD = (M @ M.T + 5 * np.eye(5)).astype(np.float32)

# ---- products as accelerators compute them ------------------------------------------------------


def rounded(x, accelerator):
    """x with the mantissa of the products of an accelerator, rounded to the nearest, ties to even."""
    if accelerator == "tpu":
        return x.astype(ml_dtypes.bfloat16).astype(np.float64)
    bits = x.view(np.uint32).astype(np.uint64)
    dropped = 23 - MANTISSA[accelerator]
    bits += (1 << (dropped - 1)) - 1 + ((bits >> dropped) & 1)
    return ((bits >> dropped) << dropped).astype(np.uint32).view(np.float32).astype(np.float64)


@pytest.mark.parametrize("accelerator", ["gpu", "tpu"])
def test_products_are_those_of_an_accelerator(accelerator):
    """Of products, convolutions and their derivatives, but not of those with a precision, and not of float64."""
    image, kernel = normal(1, 6, 1), normal(3, 1, 1)
    convolve = lambda x, k, precision=None: lax.conv_general_dilated(
        x, k, (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC"), precision=precision
    )

    @jax.jit
    def run(x, y, image, kernel):
        with jax.default_matmul_precision("highest"):
            exact = x.T @ y, convolve(image, kernel)
        explicit = jnp.matmul(x.T, y, precision="highest"), convolve(image, kernel, "highest")
        return (x.T @ y, convolve(image, kernel)), jax.grad(lambda x: jnp.sum(x.T @ y))(x), exact, explicit

    with products_of(accelerator):
        default, slope, exact, explicit = run(X, Y, image, kernel)
    round_ = lambda x: rounded(x, accelerator)
    moved = lambda round_: np.convolve(round_(image.ravel()), round_(kernel.ravel())[::-1], "valid").reshape(1, -1, 1)
    np.testing.assert_allclose(default[0], round_(X).T @ round_(Y), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(default[1], moved(round_), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(slope, np.broadcast_to(round_(Y).sum(1)[:, None], (20, 5)), rtol=1e-5, atol=1e-6)
    assert np.abs(default[0] - X.T @ Y).max() > 2.0 ** -MANTISSA[accelerator] / 4
    for found in (exact, explicit):
        np.testing.assert_allclose(found[0], X.T @ Y, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(found[1], moved(np.float64), rtol=1e-5, atol=1e-6)


# ---- full precision -------------------------------------------------------------------------------


def net(params, x):
    return jnp.tanh(x @ params["first"]) @ params["second"]


PARAMS = {"first": normal(5, 3) / 2, "second": normal(3, 2) / 2}
risk = lambda params: jnp.mean((net(params, X) - Y) ** 2)
matrix = lambda a, v: a @ v
symmetric = lambda a: lambda v: a @ v
key = lambda: jax.random.key(0)


def mixture(means, covariance):
    return diffusion.gaussian_mixture(means, jnp.broadcast_to(covariance, (2, 5, 5)))


def curved(operator):
    """A linear system with an operator of a function of the params, that is made under ``jit``."""
    return lambda params: ad.solve(operator(params), params, damping=1.0, max_steps=3).x


def of_layer(layer, *inputs, **side):
    state = {"state": drawn(layer, *inputs)[1]} if isinstance(layer, jb.StatefulLayer) else {}
    params = drawn(layer, *inputs)[0] if state else drawn(layer, *inputs)
    return lambda params, *inputs: layer.apply(params, *state.values(), *inputs, **side), params, *inputs


def of_objective(make, *data):
    """An objective of data, as a function of the params."""

    def f(params):
        with jax.ensure_compile_time_eval():
            objective = make(*map(jnp.asarray, data))
        return objective(params)

    return f


RBF = layers.RBF(4)
AFFINE = {"kernel": M[:, :2], "bias": B[:2]}
KERNEL = jb.Layer(lambda key, x: {"kernel": jnp.ones((5, 5))}, lambda params, x: params["kernel"] * jnp.sum(x))
SPECTRAL = layers.SpectralNorm(KERNEL)
ADAPTED = LoRA(KERNEL, "**", rank=2)

# The function and its arguments; every array of floating-point numbers is differentiated.
FULL = {
    "linear_regression, ridge": (lambda x, y, r: jb.layers.linear_regression(x, y, ridge=r), X, Y, np.float32(0.1)),
    "logistic_regression": (lambda x, r: jb.layers.logistic_regression(x, LABELS, ridge=r), X, np.float32(0.1)),
    "kernel_regression": (ad.kernel_regression, SPD, B, M),
    **{
        f"ntk, {m}": (lambda p, x, m=m: ad.ntk(net, p, x, method=m), PARAMS, X[:3]) for m in ("contraction", "products")
    },
    "ntk, structured": (lambda p, x: ad.ntk(net, p, x, method="structured", trace=True), PARAMS, X[:3]),
    "rbf_kernel": (layers.rbf_kernel, X, M),
    "affine_grid": (lambda a: layers.affine_grid(a, (3, 4)), M[:2, :3]),
    "knn_predict": (lambda x: layers.knn_predict(x, M, B), X),
    "random_fourier_features": (layers.random_fourier_features, X, M, B),
    "load_balancing_loss": (lambda x: layers.load_balancing_loss(x, LABELS[:, None]), X),
    "RBF": of_layer(RBF, X),
    "SpectralNorm": of_layer(SPECTRAL, X, train=True),
    "LoRA": of_layer(ADAPTED, X),
    "root": (lambda a, b: ad.root(lambda x: jnp.tanh(a @ x) - b / 10, jnp.zeros(5)), SPD, B),
    "argmin": (lambda a, b: ad.argmin(lambda x: x @ a @ x / 2 - b @ x, jnp.zeros(5)), SPD, B),
    "fixed_point": (lambda a, b: ad.fixed_point(lambda x: jnp.tanh(a @ x / 20 + b), b), SPD, B),
    "fixed_point of a user": (
        lambda a, b: ad.fixed_point(
            lambda x: a @ x / 20 + b, b, solver=lambda g, x: lax.fori_loop(0, 30, lambda _, x: g(x), x)
        ),
        SPD,
        B,
    ),
    "solve": (lambda a, b: ad.solve(symmetric(a), b).x, SPD, B),
    "solve, Hessian": (curved(lambda p: ad.hessian_operator(risk, p)), PARAMS),
    "solve, Gauss-Newton": (
        curved(lambda p: ad.gauss_newton_operator(lambda p: net(p, X), lambda y: jnp.mean((y - Y) ** 2), p)),
        PARAMS,
    ),
    "gauss_newton_product": (
        lambda p: ad.gauss_newton_product(lambda p: net(p, X), lambda y: jnp.mean(y**2), p, p),
        PARAMS,
    ),
    "solve, Fisher": (
        curved(lambda p: ad.fisher_operator(key(), lambda p: net(p, X), p, likelihood="gaussian")),
        PARAMS,
    ),
    "lanczos": (lambda a: ad.lanczos(key(), symmetric(a), jnp.zeros(5), steps=3).diagonal, SPD),
    "largest_eigenvalues": (lambda a: ad.largest_eigenvalues(key(), symmetric(a), jnp.zeros(5), steps=3).values, SPD),
    "spectral_density": (lambda a: ad.spectral_density(key(), symmetric(a), jnp.zeros(5), steps=3)(B), SPD),
    "log_determinant": (lambda a: ad.log_determinant(key(), symmetric(a), jnp.zeros(5), steps=3).value, SPD),
    "estimate_trace": (lambda a: ad.estimate_trace(key(), symmetric(a), jnp.zeros(5)).value, SPD),
    "as_matrix": (lambda a: ad.as_matrix(symmetric(a), jnp.zeros(5)), SPD),
    "hessian": (lambda p: ad.hessian(risk, p), PARAMS),
    "hessian_diagonal": (lambda p: ad.hessian_diagonal(risk, p), PARAMS),
    "gradient_noise": (
        lambda w: ad.gradient_noise(lambda w, x: jnp.sum(jnp.sin(w * x)), w, X[:4], batch_size=2, covariance=True),
        B,
    ),
    "forward_gradient": (lambda x: ad.forward_gradient(key(), lambda x: jnp.sum(x**3), x, samples=2), B),
    "cp_tensor": (lambda a, b: tensors.cp_tensor((a, b)), M, X[:5]),
    "cp_decompose": (lambda a: tensors.cp_decompose(key(), a, rank=2, steps=2), M),
    "mixture, density": (lambda m, c, x: mixture(m, c).log_density(x), X[:2], SPD, Y[:5, 0]),
    "mixture, score": (lambda m, c, x: mixture(m, c).score(x), X[:2], SPD, Y[:5, 0]),
    "mixture, samples": (lambda m, c: mixture(m, c).sample(key(), 3), X[:2], SPD),
    "mixture, covariance": (lambda m, c: (mixture(m, c).mean(), mixture(m, c).covariance()), X[:2], SPD),
    "info_nce_loss": (losses.info_nce_loss, X, X[::-1].copy()),
    "hard_lookup": (layers.hard_lookup, X[:3], M, Y[:5]),
    "multiply_chain": (lambda a, b: ad.multiply_chain([a, b]), M, SPD),
    "quadratic_objective": (of_objective(theory.quadratic_objective, SPD, B), B),
    "least_squares_objective": (of_objective(theory.least_squares_objective, X, Y), AFFINE),
    "fuse_affine": (lambda a, b: layers.fuse_affine({"kernel": a, "bias": B}, {"kernel": b, "bias": B}), M, SPD),
    "gated_linear_attention, carry of the delta rule": (
        lambda k, v, beta: layers.gated_linear_attention(k, k, v, None, beta, chunk=2)[1],
        normal(5, 1, 2),
        normal(5, 1, 3),
        normal(5, 1),
    ),
    "resize": (lambda x: layers.resize(x, (3,), method="linear"), normal(1, 5, 2)),
}
RULES = {"custom_jvp_call", "custom_vjp_call", "custom_linear_solve"}


DEFAULT = None, (None, None), (lax.Precision.DEFAULT,) * 2


@pytest.mark.parametrize("name", FULL)
def test_products_keep_full_precision(name):
    """No product of the function is rounded, nor of both derivatives and of a Hessian-vector product if it has rules.

    Such products state a precision. The derivatives are of a jitted function: their rules run outside of it.
    Derivatives by JAX's own rules have the precision of the products of the function.
    """
    f, *args = FULL[name]
    scalar = jax.jit(lambda args: sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(f(*args))))
    operations = lambda program, *args: [one for one, _, _ in equations(jax.make_jaxpr(program)(*args))]
    found = operations(scalar, args)
    if {one.primitive.name for one in found} & RULES:
        found = operations(lambda args, directions: jax.jvp(jax.grad(scalar), (args,), (directions,)), args, args)
    products = [one for one in found if one.primitive.name in ("dot_general", "conv_general_dilated")]
    assert products
    for product in products:
        assert product.params["precision"] not in DEFAULT or any(v.aval.dtype != np.float32 for v in product.invars)


# ---- layers ---------------------------------------------------------------------------------------


def case_of(row):
    return Case(row.layer, row.inputs(), row.side, jax.random.key(0), row.mixes_batch)


def with_gradients(row):
    """A function that returns the outputs and a pullback of a layer, and its argument."""
    case, params = case_of(row), drawn(row.layer, *row.inputs())
    params, state = params if isinstance(row.layer, jb.StatefulLayer) else (params, None)
    f, x = differentiable_part(case, params, state, case.inputs)

    def both(x):
        y, pull, _ = jax.vjp(lambda x: f(x, case.key), x, has_aux=True)
        cotangent = jax.tree.map(lambda y: jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape), y)
        return y, pull(cotangent)

    return both, x


def error_of_rounding(program, results, x, products):
    """The largest errors of the outputs and of the gradients by rounded products, relative to the largest of each."""
    found = []
    for accelerator in (products, None):
        with products_of(accelerator):
            leaves = jax.jit(jaxpr_as_fun(program))(*jax.tree.leaves(x))
        found.append(jax.tree.unflatten(jax.tree.structure(results), map(np.asarray, leaves)))
    largest = lambda tree: max(np.abs(leaf).max() for leaf in jax.tree.leaves(tree))
    return max(largest(jax.tree.map(np.subtract, a, b)) / largest(b) for a, b in zip(*found, strict=True))


@pytest.fixture(scope="module")
def products(request):
    """The device whose products are compared: that of the option, or a TPU, which rounds more."""
    return request.config.getoption("products") or "tpu"


@pytest.fixture(scope="module")
def error_of_dense(products):
    both, x = with_gradients(ZOO["Dense"])
    error = error_of_rounding(*jax.make_jaxpr(both, return_shape=True)(x), x, products)
    assert error > 1e-5  # else nothing is rounded
    return error


COMBINATORS = {"Frozen", "Parallel", "Recurrent", "Repeat", "Residual", "Serial", "Wire"}
COMBINATORS |= {"Recurrent stateful", "Repeat of two layers", "Repeat with state"}
"""Rows whose products are those of ``Dense``."""


@pytest.mark.cpu  # the products of its references are not rounded
@pytest.mark.parametrize("name", SIMPLE)
def test_rounding_is_not_amplified(name, products, error_of_dense):
    """With the products and the code of an accelerator, a layer has at most ten times the error of one ``Dense``."""
    both, x = with_gradients(ZOO[name])
    with code_of("tpu") as questions:
        program, results = jax.make_jaxpr(both, return_shape=True)(x)
    names = {equation.primitive.name for equation, _, _ in equations(program)}
    if name not in COMBINATORS and names & {"dot_general", "conv_general_dilated"}:
        assert error_of_rounding(program, results, x, products) <= 10 * error_of_dense
    without_addresses = lambda program: re.sub("0x[0-9a-f]+", "", str(program))
    differs = questions and without_addresses(program) != without_addresses(jax.make_jaxpr(both)(x))
    assert bool(differs) == (name in ON_BACKENDS)


@pytest.mark.parametrize("name", sorted(ON_BACKENDS))
def test_laws_hold_with_the_code_of_accelerators(name):
    """For the layers whose code depends on the backend; all other programs are those of CPUs."""
    case = case_of(ZOO[name])
    with code_of("gpu"):
        for law in LAWS.values():
            law(case)


COMPARING = ("repeatable", "jit_is_eager", "vmap_is_batch", "independence", "scan_and_remat")


def test_check_layer_accepts_rounded_products():
    """The laws compare results of different programs, which rounding would separate."""
    net = jb.Serial(jb.LayerNorm(), jb.gelu, jb.Dense(4))
    with products_of("gpu"):
        check_layer(net, normal(64, 2048), laws={name: LAWS[name] for name in COMPARING})


# ---- errors ---------------------------------------------------------------------------------------


# About ten times the errors in float32.
LIMITS = {"linear": 1e-4, "logistic": 1e-6, "root": 1e-6, "kernel": 1e-5, "features": 1e-4}


@pytest.mark.parametrize("accelerator", ["gpu", "tpu"])
def test_solutions_are_as_accurate_as_in_float32(accelerator):
    """Columns of different scale, an offset, labels that are nearly separated, far frequencies: against float64."""
    scales = np.geomspace(1e-2, 1e2, 5).astype(np.float32)
    x, w = 100 + X * scales, np.arange(5.0)
    y = (X * scales) @ w[:, None]
    labels = (X[:, 0] + 0.1 * X[:, 1] > 0).astype(int)
    labels[0] = 1 - labels[0]
    gram = SPD / 5
    A = np.array(M, np.float64) + 3 * np.eye(5)

    def run(x, y, flat, b):
        regression = jb.layers.linear_regression(x, y)["kernel"][:, 0] * scales
        logistic = jb.layers.logistic_regression(flat, jnp.asarray(labels), ridge=1e-3)
        root = ad.root(lambda x: 1e3 * (jnp.asarray(A, jnp.float32) @ x - b), jnp.zeros(5))
        kernel = ad.kernel_regression(jnp.asarray(gram), b)
        features = layers.random_fourier_features(10 * flat, jnp.asarray(M), b)
        return regression, logistic, root, kernel, features

    with products_of(accelerator):
        regression, logistic, *others = jax.jit(lambda *args: run(*args))(x, y.astype(np.float32), X, B)
    weights = np.float64(logistic["kernel"][:, 0])
    errors = 1 / (1 + np.exp(-X @ weights - np.float64(logistic["bias"]))) - labels
    slope = X.T @ errors / 20 + 2e-3 * weights
    features = np.sqrt(2 / 5) * np.cos(10 * np.float64(X) @ np.float64(M) + B)
    found = regression, slope, *others
    expected = w * scales, np.zeros(5), np.linalg.solve(A, B), B, features
    for name, a, b in zip(LIMITS, found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=LIMITS[name] * max(1, np.abs(b).max()), err_msg=name)
