"""Normalizing flows: log-determinants of dense Jacobians, inverses, the identity at first, errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import compiled, drawn
from scipy import stats

from jaxblocks import Dense, Dropout, Serial, initializers, side_inputs
from jaxblocks.layers import AffineCoupling, Flow, affine_coupling, flow_log_likelihood

X = np.random.default_rng(0).normal(size=(4, 5))


def couplings(number, **options):
    options = dict(kernel_init=initializers.lecun_normal(), bias_init=initializers.normal(0.1)) | options
    return [AffineCoupling(Serial(Dense(6), jnp.tanh), flip=i % 2 == 1, **options) for i in range(number)]


def test_a_chain_of_couplings_has_the_determinant_of_its_jacobian_and_an_exact_inverse():
    """In float64: log |det J| of the dense Jacobian of each example, forward and back, and x to rounding."""
    flow = Flow(*couplings(3))
    with jax.enable_x64(True):

        @jax.jit
        def run(params, x):
            z, log_det = flow.apply(params, x)
            back, of_inverse = flow.apply(params, z, inverse=True)
            dense = jax.vmap(jax.jacobian(lambda x: flow.apply(params, x)[0]))(x)
            inverse = jax.vmap(jax.jacobian(lambda z: flow.apply(params, z, inverse=True)[0]))(z)
            return z, log_det, back, of_inverse, dense, inverse

        z, log_det, back, of_inverse, dense, inverse = map(np.asarray, run(drawn(flow, X), X))
    assert np.abs(log_det).min() > 0.01 and np.abs(z - X).min(0).max() > 0.01
    np.testing.assert_allclose(log_det, np.linalg.slogdet(dense)[1], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(of_inverse, -log_det, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(back, X, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(np.einsum("bij,bjk->bik", dense, inverse), np.tile(np.eye(5), (4, 1, 1)), atol=1e-12)
    normal = stats.norm.logpdf(z).sum(-1) + log_det
    np.testing.assert_allclose(flow_log_likelihood(z, log_det), normal, rtol=1e-5)


def test_a_coupling_keeps_one_half_and_is_the_identity_at_first():
    x, first = X.astype(np.float32), AffineCoupling(Dense(3))
    outputs = [compiled(layer.apply)(drawn(layer, x), x) for layer in couplings(2)]
    unchanged, log_det = compiled(first.apply)(first.init(jax.random.key(0), x), x)
    for (y, _), kept in zip(outputs, (slice(0, 2), slice(2, 5)), strict=True):
        np.testing.assert_array_equal(y[:, kept], x[:, kept])
        assert (np.delete(y, np.arange(5)[kept], 1) != np.delete(x, np.arange(5)[kept], 1)).all()
    np.testing.assert_array_equal(unchanged, x)
    np.testing.assert_array_equal(log_det, np.zeros(4))


def test_the_log_scale_is_bounded():
    """Params 1e3 times larger than usual: each |s| is at most the bound, 0.5."""
    layer = AffineCoupling(Dense(3), max_log_scale=0.5, kernel_init=initializers.normal(1e3))
    x = X.astype(np.float32)
    _, log_det = compiled(lambda key, x: layer.apply(layer.init(key, x), x))(jax.random.key(0), x)
    assert 0.5 <= np.abs(log_det).max() <= 3 * 0.5


def test_half_precision_is_rounded_once():
    """The result in bfloat16 is that of float32, rounded; shift and log-scale may be float32."""
    x, log_scale, shift = (each.astype(np.float32) for each in (X[:2], X[2:], X[1:3]))
    half, run = x.astype(jnp.bfloat16), compiled(affine_coupling)
    for inverse in (False, True):
        expected = run(half.astype(np.float32), log_scale, shift, inverse=inverse)
        for ours, exact in zip(run(half, log_scale, shift, inverse=inverse), expected, strict=True):
            np.testing.assert_array_equal(ours, exact.astype(jnp.bfloat16))


def test_flows_of_functions_context_and_side_inputs():
    """A function is a layer of a flow; further inputs reach each conditioner, as do its side inputs."""
    reverse = lambda x, *context, inverse=False: (x[..., ::-1], jnp.zeros(x.shape[:-1], x.dtype))
    conditioner = Serial(lambda x, c: jnp.concatenate([x, c], -1), Dense(4), Dropout(0.5))
    flow = Flow(coupling=AffineCoupling(conditioner, kernel_init=initializers.lecun_normal()), reverse=reverse)
    assert side_inputs(flow) == ("inverse", "key", "train")
    x, context = X[:, :3].astype(np.float32), X[:, 3:].astype(np.float32)
    params, apply = drawn(flow, x, context), compiled(flow.apply)
    z, _ = apply(params, x, context)
    assert (z != apply(params, x, context + 1)[0]).any()
    np.testing.assert_array_equal(z[:, -1], x[:, 0])
    np.testing.assert_allclose(apply(params, z, context, inverse=True)[0], x, rtol=1e-5, atol=1e-6)


def test_errors_and_their_repairs(sentences):
    with pytest.raises(
        ValueError, match=r"AffineCoupling expected an array of at least two features, got float32 \(4, 1\); put"
    ):
        AffineCoupling(Dense(3)).init(jax.random.key(0), jnp.ones((4, 1)))
    with pytest.raises(
        ValueError, match=r"AffineCoupling expected an array of at least two features, got float32 \(\); put"
    ):
        Flow(AffineCoupling(Dense(3))).init(jax.random.key(0), jnp.ones(()))
    with pytest.raises(ValueError, match="AffineCoupling expected an array of at least two features, got a list; put"):
        AffineCoupling(Dense(3)).init(jax.random.key(0), [1.0, 2.0])
    with pytest.raises(
        TypeError, match=r"Flow expected layer_0 to return \(y, log_det\), got float32 \(4, 5\); return"
    ):
        Flow(Dense(5)).init(jax.random.key(0), jnp.ones((4, 5)))
    flow = Flow(lambda x, *, inverse=False: (x, jnp.zeros(x.shape[:-1], x.dtype)))
    run = lambda inverse: flow.apply(((),), jnp.ones((4, 2)), inverse=inverse)
    with pytest.raises(TypeError, match="Flow expected inverse to be True or False.*static_argnames"):
        jax.eval_shape(run, True)
    with pytest.raises(TypeError, match=r"Flow expected at least one layer, got none; write Flow\(AffineCoupling\("):
        Flow()
    with pytest.raises(TypeError, match="Flow expected layers by position or by name, not both"):
        Flow(*couplings(1), last=couplings(1)[0])


def test_the_likelihood_is_a_density():
    """The integral of exp(log-likelihood) over the plane is 1."""
    flow = Flow(*couplings(2, max_log_scale=0.5))
    line = np.linspace(-12, 12, 241)  # the sum with distance 0.1 is exact to many digits for a smooth density
    grid = np.stack(np.meshgrid(line, line), -1).astype(np.float32)
    run = compiled(lambda params, x: flow_log_likelihood(*flow.apply(params, x)))
    density = np.exp(run(drawn(flow, grid[0]), grid))
    assert density.sum() * 0.1**2 == pytest.approx(1, abs=1e-4)
