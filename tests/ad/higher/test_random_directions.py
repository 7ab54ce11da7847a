"""Randomized estimates: their means and variances over many keys against the stated formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxblocks.ad import estimate_biharmonic, estimate_laplacian, forward_gradient

N, KEYS = 5, 8_000
A = np.random.default_rng(0).normal(size=(N, N))
H = A + A.T
POINT = {"a": jnp.arange(1.0, 3.0), "b": jnp.arange(3.0)}


def quadratic(x):
    """A quadratic form of all entries of a pytree; its matrix of second derivatives is H."""
    v = jnp.concatenate(jax.tree.leaves(x))
    return v @ jnp.asarray(H, v.dtype) @ v / 2


def samples(estimate):
    """The estimates of many keys as rows."""
    found = jax.jit(jax.vmap(estimate))(jax.random.split(jax.random.key(0), KEYS))
    return np.concatenate([np.reshape(leaf, (KEYS, -1)) for leaf in jax.tree.leaves(found)], axis=1).astype(np.float64)


def assert_moments(found, mean, variance):
    """The sample mean within five standard errors, the sample variance (summed over entries) within 8 percent."""
    error = np.abs(found.mean(0) - mean)
    assert np.all(error <= 5 * found.std(0) / KEYS**0.5 + 1e-4), error
    np.testing.assert_allclose(np.square(found - mean).sum(1).mean(), variance, rtol=0.08, atol=1e-6)


def test_forward_gradient():
    g, m = H @ np.concatenate(jax.tree.leaves(POINT)), 3
    found = samples(lambda key: forward_gradient(key, quadratic, POINT, samples=m))
    assert_moments(found, g, (N - 1) / m * np.sum(g**2))
    # The sum of the slopes is not a number of float16; their mean is.
    of_half = lambda x: forward_gradient(jax.random.key(0), lambda x: 300 * x[0], x, samples=256)
    np.testing.assert_array_equal(of_half(jnp.ones(1, jnp.float16)), jnp.full(1, 300, jnp.float16))


def test_laplacian():
    """For an array of two outputs; all coordinates are exact."""
    diagonal, m = np.diag(H), 3
    f = lambda x: jnp.stack([quadratic(x), 2 * quadratic(x)])
    mean, scale = np.array([1, 2]) * diagonal.sum(), 5  # 1 + 2^2
    found = samples(lambda key: estimate_laplacian(key, f, POINT, samples=m))
    assert_moments(found, mean, scale * N**2 / m * (1 - m / N) * diagonal.var(ddof=1))
    exact = estimate_laplacian(jax.random.key(1), f, POINT)  # by default all of few coordinates
    np.testing.assert_allclose(exact, mean, rtol=1e-5)


def test_biharmonic():
    """The fourth power of the norm, whose biharmonic operator is 8 n (n + 2)."""
    f = lambda x: jnp.sum(x**2) ** 2
    found = samples(lambda key: estimate_biharmonic(key, f, jnp.ones(N), samples=4))
    mean = 8 * N * (N + 2)
    assert_moments(found, mean, (8 * N + 24) / (N * (N + 2) * 4) * mean**2)


def test_errors_name_the_repair(sentences):
    key, x = jax.random.key(0), jnp.ones(2)
    with pytest.raises(ValueError, match=r"expected at most 2 coordinates, those of x, got 3; pass samples=2"):
        estimate_laplacian(key, jnp.sum, x, samples=3)
    estimate_laplacian(jax.random.clone(key), jnp.sum, x, samples=2)
    with pytest.raises(ValueError, match=r"estimate_laplacian expected x to hold at least one number"):
        estimate_laplacian(jax.random.clone(key), jnp.sum, x[:0])
    with pytest.raises(ValueError, match=r"forward_gradient expected f to return a scalar"):
        forward_gradient(jax.random.clone(key), jnp.sin, x)


def test_leaves_of_several_dtypes_under_strict_promotion():
    x = {"a": jnp.ones(2, jnp.float16), "b": jnp.ones(3)}
    f = lambda x: jnp.sum(x["a"].astype(jnp.float32) ** 3) + jnp.sum(x["b"] ** 2)
    with jax.numpy_dtype_promotion("strict"):
        found = forward_gradient(jax.random.key(0), f, x, samples=64)
        assert estimate_laplacian(jax.random.key(0), f, x) == 18
        assert estimate_biharmonic(jax.random.key(0), f, x) == 0
    assert jax.tree.map(jnp.result_type, found) == jax.tree.map(jnp.result_type, x)
