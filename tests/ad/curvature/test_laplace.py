"""The Laplace approximation against Bayesian linear regression in closed form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxblocks.ad import laplace_approximation

RNG = np.random.default_rng(0)
NOISE, TAU = 0.25, 2.0
X = RNG.normal(size=(12, 3))
Y = X @ np.array([[1.0], [-2.0], [0.5]]) + 0.5 * RNG.normal(size=(12, 1))
PRECISION = X.T @ X / NOISE + TAU * np.eye(3)
MEAN = np.linalg.solve(PRECISION, X.T @ Y / NOISE)


def nll(outputs, y):
    return jnp.sum((outputs - y) ** 2) / (2 * NOISE) + jnp.log(2 * jnp.pi * NOISE) / 2


def linear(w, x):
    return x @ w


def evidence(tau):
    """The log density of all targets: normal, with covariance noise I + X X' / tau."""
    return stats.multivariate_normal(np.zeros(12), NOISE * np.eye(12) + X @ X.T / tau).logpdf(Y[:, 0])


@pytest.mark.parametrize("structure", ["kfac", "full"])
def test_bayesian_linear_regression(structure):
    """Mean and covariance of samples, predictive covariance, evidence and its slope are those of the closed form."""
    with jax.enable_x64(True):
        new = RNG.normal(size=(4, 3))

        @jax.jit
        def run(w, x, y, new):
            options = dict(prior_precision=TAU, structure=structure, chunk_size=5)
            posterior = laplace_approximation(linear, nll, w, x, y, **options)
            slope = jax.grad(posterior.log_evidence)(TAU)
            samples = posterior.sample(jax.random.key(0), samples=4000)[..., 0]
            return posterior.log_evidence(), slope, posterior.predictive_covariance(linear, new), samples

        value, slope, covariance, samples = map(np.asarray, run(MEAN, X, Y, new))
        exact = np.linalg.inv(PRECISION)
        np.testing.assert_allclose(value, evidence(TAU), rtol=1e-10)
        # The closed form moves the mean with tau; at the maximum of the posterior the first derivative is the same.
        np.testing.assert_allclose(slope, (evidence(TAU + 1e-5) - evidence(TAU - 1e-5)) / 2e-5, rtol=1e-6)
        np.testing.assert_allclose(covariance[:, 0, 0], np.einsum("mi,ij,mj->m", new, exact, new), rtol=1e-10)
        np.testing.assert_allclose(samples.mean(0), MEAN[:, 0], atol=5 * (np.diag(exact).max() / 4000) ** 0.5)
        np.testing.assert_allclose(np.cov(samples.T), exact, atol=0.1 * exact.max())


def test_each_device_has_the_posterior_of_its_own_examples():
    """Inside of `shard_map`, where JAX sums the gradients of shared params over the devices."""
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    with jax.enable_x64(True):

        def own(w, x, y):
            posterior = laplace_approximation(linear, nll, w, x, y, prior_precision=TAU)
            best = posterior.with_best_prior(steps=100)
            return posterior.predictive_covariance(linear, x), best.prior_precision[None]

        specs = dict(in_specs=(jax.P(), jax.P("d"), jax.P("d")), out_specs=jax.P("d"))
        covariance, best = jax.jit(jax.shard_map(own, mesh=mesh, **specs))(MEAN, X, Y)
        halves = np.split(X, 2)
        exact = [half @ np.linalg.inv(half.T @ half / NOISE + TAU * np.eye(3)) @ half.T for half in halves]
        np.testing.assert_allclose(covariance[:, 0, 0], np.concatenate([np.diag(one) for one in exact]), rtol=1e-9)
        for half, tau in zip(halves, best, strict=True):
            values = np.linalg.eigvalsh(half.T @ half / NOISE)
            np.testing.assert_allclose(tau, np.sum(values / (values + tau)) / np.sum(MEAN**2), rtol=1e-9)


def test_the_precision_of_the_prior_is_positive():
    data = X.astype(np.float32), Y.astype(np.float32)
    with pytest.raises(ValueError, match=r"laplace_approximation expected prior_precision > 0, got -1.0; it"):
        laplace_approximation(linear, nll, jnp.zeros((3, 1)), *data, prior_precision=-1.0)
    posterior = jax.jit(lambda w: laplace_approximation(linear, nll, w, *data))(np.zeros((3, 1), np.float32))
    with pytest.raises(ValueError, match=r"expected prior_precision > 0, got -1.0; it"):
        posterior.log_evidence(-1.0)
    with pytest.raises(ValueError, match=r"expected params that are not all 0, .*; train the params first"):
        posterior.with_best_prior()


def test_the_best_prior_precision():
    """It maximizes the evidence at these params: there its derivative is zero."""
    with jax.enable_x64(True):
        run = jax.jit(lambda w: laplace_approximation(linear, nll, w, X, Y).with_best_prior(steps=100))
        posterior = run(MEAN)
        best = posterior.prior_precision
        np.testing.assert_allclose(jax.grad(posterior.log_evidence)(best), 0, atol=1e-8)
        assert posterior.log_evidence(1.1 * best) < posterior.log_evidence() > posterior.log_evidence(0.9 * best)


def test_half_precision():
    """Sums over params and examples are float32; the prior precision of 20,000 equal targets is that of float32."""

    @jax.jit
    def run(w, x, y):
        posterior = laplace_approximation(lambda w, x: w[:1] * x, nll, w, x, y)
        return posterior.log_likelihood, posterior.with_best_prior().prior_precision

    x, w = np.ones((20_000, 1)), np.full(300, 16.0)
    with jax.numpy_dtype_promotion("standard"):  # the loss has outputs in float32 for its derivatives
        half, single = (run(*(jnp.asarray(a, dtype) for a in (w, x, 16 * x))) for dtype in (jnp.float16, jnp.float32))
    assert [found.dtype for found in half] == [jnp.float32, jnp.float32]
    np.testing.assert_allclose(half, single, rtol=1e-3)
