"""Feature maps: the kernel in four forms, values from the lecture, a linear layer on features, nearest neighbors."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import compiled

from jaxblocks.layers import (
    RBF,
    RandomFourierFeatures,
    knn_predict,
    random_fourier_features,
    rbf_kernel,
    taylor_features,
)


def pairwise(x, y, gamma):
    """The kernel of each pair, in a loop."""
    return np.array([[math.exp(-gamma * sum((a - b) ** 2 for a, b in zip(u, v, strict=True))) for v in y] for u in x])


# ---- the kernel


kernel = jax.jit(rbf_kernel)


def test_the_kernel_equals_loops_over_pairs():
    """In float64, by a product, since there are many features; leading axes are kept."""
    with jax.enable_x64(True):
        x, y = np.random.default_rng(0).normal(size=(2, 6, 9)) + 3
        expected = pairwise(x, y, 0.3)
        np.testing.assert_allclose(kernel(x, y, gamma=0.3), expected, rtol=1e-12)
        np.testing.assert_allclose(kernel(x.reshape(2, 3, 9), y, gamma=0.3), expected.reshape(2, 3, 6), rtol=1e-12)


def test_the_gradient_of_the_kernel():
    """dk / dx = -2 gamma (x - c) k, also at the centers."""
    with jax.enable_x64(True):
        x, c = np.random.default_rng(0).normal(size=(2, 4, 6))
        c[0] = x[0]

        @compiled
        def derived(x, c, gamma):
            got = jax.jacrev(lambda x: rbf_kernel(x, c, gamma=0.3))(x[0])
            by_gamma = jax.grad(lambda g: rbf_kernel(x[1:2], c, gamma=g)[0, 2])(gamma)
            return got, by_gamma, jax.grad(lambda x, c: rbf_kernel(x, c).sum(), (0, 1))(x, c[:0])

        got, by_gamma, of_none = derived(x, c, np.array(0.3))
    k = pairwise(x[:1], c, 0.3)[0]
    np.testing.assert_allclose(got, -0.6 * (x[:1] - c) * k[:, None], rtol=1e-10, atol=1e-12)
    k = pairwise(x[1:2], c, 0.3)[0, 2]
    assert by_gamma == pytest.approx(k * math.log(k) / 0.3)
    assert (of_none[0] == 0).all() and of_none[1].shape == (0, 6)


def test_points_close_together_far_from_the_origin():
    """In float32 around 1000, where |x|^2 + |c|^2 - 2 x c has no correct digit."""
    for features in (3, 8):
        x = 1000 + np.random.default_rng(0).normal(size=(5, features)).astype(np.float32)
        expected = pairwise(x.astype(np.float64), x.astype(np.float64), 0.5)
        np.testing.assert_allclose(kernel(jnp.asarray(x), jnp.asarray(x), gamma=0.5), expected, atol=2e-6)
        lengths = (x**2).sum(-1)
        naive = np.exp(-0.5 * (lengths[:, None] + lengths[None] - 2 * x @ x.T))  # control
        assert np.abs(naive - expected).max() > 0.1


# ---- features of the kernel


def test_features_of_the_exponential_series():
    """phi_n(x) = exp(-gamma x^2) sqrt((2 gamma)^n / n!) x^n; the sum of their squares is 1."""
    with jax.enable_x64(True):
        x = np.linspace(-2, 2, 9).reshape(3, 3)
        got = np.asarray(jax.jit(taylor_features, static_argnums=1)(jnp.asarray(x), 60, gamma=1.3))
        for n in (0, 1, 2, 7, 30):
            expected = np.exp(-1.3 * x**2) * math.sqrt(2.6**n / math.factorial(n)) * x**n
            np.testing.assert_allclose(got[..., n], expected, rtol=1e-12, atol=1e-300)
        np.testing.assert_allclose((got**2).sum(-1), np.ones((3, 3)), rtol=1e-12)


def test_features_of_extreme_inputs_are_zero():
    x = jnp.array([1e4, -1e4, 0.0])
    values, slopes = jax.jit(jax.vmap(jax.value_and_grad(lambda x: taylor_features(x, 20).sum())))(x)
    np.testing.assert_array_equal(values, [0, 0, 1])
    np.testing.assert_allclose(slopes, [0, 0, math.sqrt(2)], rtol=1e-6)


def test_random_features_equal_the_cosine_formula():
    x, omega, b = (np.random.default_rng(0).normal(size=shape).astype(np.float32) for shape in ((3, 2), (2, 5), (5,)))
    expected = [[math.sqrt(2 / 5) * math.cos(sum(r * w) + p) for w, p in zip(omega.T, b, strict=True)] for r in x]
    np.testing.assert_allclose(jax.jit(random_fourier_features)(x, omega, b), expected, rtol=1e-5)


def test_random_features_approximate_the_kernel_to_one_over_root_d():
    """Over 100 draws the error is unbiased, at most 1 / sqrt(D) in root mean square, and halves if D quadruples."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(6, 3)), jnp.float32)
    exact = pairwise(np.asarray(x), np.asarray(x), 0.4)
    spreads = []
    for features in (50, 200):
        layer = RandomFourierFeatures(features, gamma=0.4)

        def gram(key, layer=layer):
            z = layer.apply(layer.init(key, x), x)
            return z @ z.T

        errors = np.asarray(jax.jit(jax.vmap(gram))(jax.random.split(jax.random.key(features), 100))) - exact
        rms = np.sqrt((errors**2).mean(0))
        assert rms.max() <= 1.2 / math.sqrt(features)
        assert np.abs(errors.mean(0)).max() < 5 / math.sqrt(100 * features)
        spreads.append(rms.mean())
    assert spreads[0] / spreads[1] == pytest.approx(2, rel=0.1)


def test_rbf_begins_with_the_given_gamma():
    x, layer = jnp.array([[0.5, -1.0]]), RBF(3, gamma_init=0.3)
    params = layer.init(jax.random.key(0), x)
    np.testing.assert_allclose(layer.apply(params, x), rbf_kernel(x, params["centers"], gamma=0.3), rtol=1e-6)


# ---- nearest neighbors


def slow_knn(x, examples, targets, k):
    out = []
    for row in x:
        order = np.argsort(((examples - row) ** 2).sum(-1), kind="stable")[:k]
        near = list(targets[order])
        if targets.dtype.kind == "f":
            out.append(np.mean(near))
        else:
            most = max(near.count(c) for c in near)
            out.append(next(c for c in near if near.count(c) == most))
    return np.array(out)


predict = jax.jit(knn_predict, static_argnames="k")


@pytest.mark.parametrize(("k", "features"), [(1, 6), (5, 2)])
def test_neighbors_against_loops(k, features):
    rng = np.random.default_rng(k)
    x, examples = (rng.normal(size=(n, features)).astype(np.float32) for n in (12, 30))
    classes, values = rng.integers(3, size=30), rng.normal(size=30).astype(np.float32)
    arguments = jnp.asarray(x), jnp.asarray(examples)
    np.testing.assert_array_equal(predict(*arguments, jnp.asarray(classes), k=k), slow_knn(x, examples, classes, k))
    expected = slow_knn(x, examples, values, k)
    np.testing.assert_allclose(predict(*arguments, jnp.asarray(values), k=k), expected, rtol=1e-5)
    split = predict(jnp.asarray(x.reshape(3, 4, -1)), *arguments[1:], classes, k=k)
    np.testing.assert_array_equal(split, slow_knn(x, examples, classes, k).reshape(3, 4))


def test_ties_of_votes_go_to_the_nearest_neighbor():
    examples = jnp.array([[3.0], [1.0], [2.0], [4.0]])
    assert int(predict(jnp.array([0.0]), examples, jnp.array([5, 9, 5, 9]), k=4)) == 9
    assert int(predict(jnp.array([1.5]), examples, jnp.array([4, 7, 5, 4]), k=1)) == 7  # a tie of distances


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("features", [2, 5])
def test_neighbors_at_every_scale(scale, features):
    examples = jnp.stack([jnp.full(features, -scale), jnp.full(features, 2 * scale), jnp.full(features, scale)])
    x = jnp.full((1, features), 0.9 * scale)
    assert predict(x, examples, jnp.array([1, 2, 3]), k=1).tolist() == [3]


def test_the_other_neighbors_of_one_far_away():
    examples = jnp.array([[0.0], [1.0], [1e30]])
    assert predict(jnp.array([[0.9], [1e29], [9e29]]), examples, jnp.array([1, 2, 3]), k=1).tolist() == [2, 1, 3]


# ---- errors


@pytest.mark.usefixtures("sentences")
def test_errors_state_what_was_expected():
    x, c = jnp.ones((4, 2)), jnp.ones((3, 5))
    with pytest.raises(ValueError, match=r"same size of in, got float32 \(4, 2\) and float32 \(3, 5\)"):
        rbf_kernel(x, c)
    with pytest.raises(ValueError, match=r"centers of shape \(3, 2\), got float32 \(3, 5\)"):
        RBF(3).apply({"centers": c, "log_gamma": jnp.zeros(())}, x)
    assert rbf_kernel(jnp.ones(4)[..., None], c[:, :1]).shape == (4, 3)  # as the error advises
    with pytest.raises(
        ValueError, match=r"frequencies \(in, features\) with the same size of in, got .* and float32 \(3, 5\)"
    ):
        random_fourier_features(x, c, jnp.ones(5))
    with pytest.raises(ValueError, match="phases \\(features,\\) with the same size of features"):
        random_fourier_features(x, jnp.ones((2, 3)), jnp.ones(2))
    for wrong in (0.0, -1, jnp.float32(0)):
        with pytest.raises(
            ValueError,
            match=r"gamma (to be a number > 0 or an array, got (0.0|-1)|> 0, got 0.0; 1 / sqrt\(gamma\) is the length)",
        ):
            rbf_kernel(x, x, gamma=wrong)
        with pytest.raises(ValueError, match=r"gamma(_init)? (to be a number )?> 0"):
            taylor_features(x, 3, gamma=wrong)
    for build in (lambda: RBF(3, gamma_init=0), lambda: RandomFourierFeatures(3, gamma=-1.0)):
        with pytest.raises(ValueError, match=r"gamma(_init)? (to be a number )?> 0"):
            build()
    for build in (lambda: RBF(0), lambda: RandomFourierFeatures(2.5), lambda: taylor_features(x, 0)):
        with pytest.raises(ValueError, match="to be an integer >= 1"):
            build()
    for layer in (RBF(3), RandomFourierFeatures(3)):
        with pytest.raises(TypeError, match="expected x to be a floating-point array"):
            layer.init(jax.random.key(0), jnp.arange(3))
        with pytest.raises(ValueError, match=r"x with at least 1 axis, .* x\[None\]"):
            layer.init(jax.random.key(0), jnp.ones(()))
        assert jax.eval_shape(layer.init, jax.random.key(0), jnp.ones(())[None])
    with pytest.raises(ValueError, match=r"same size of examples, got .* and int32 \(4,\)"):
        knn_predict(c, c, jnp.arange(4))
    for k in (0, 4, 1.0):
        with pytest.raises(ValueError, match="k (from 1 to 3, the number of examples|to be an integer >= 1), got"):
            knn_predict(c, c, jnp.arange(3), k=k)


def test_the_hessian_of_the_kernel_at_distance_zero():
    """-2 gamma 1, also for more than three features, where the squared distance is 0 by rounding."""
    x = np.float32([0.3, -1.2, 0.7, 2.1, -0.4])
    points = np.stack([x, x + 1])
    hessian = jax.jit(jax.hessian(lambda x: rbf_kernel(x, jnp.asarray(points), gamma=0.5)[0]))(jnp.asarray(x))
    np.testing.assert_allclose(hessian, -np.eye(5), atol=1e-5)
