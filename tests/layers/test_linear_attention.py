"""Linear attention against the explicit matrix of weights."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import normal
from compiled import compiled

from jaxblocks import linear_attention


def elu_plus_one(x):
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


def explicit(q, k, v, causal=False, mask=None):
    """Compute each weight phi(q_i) . phi(k_j) in a loop, and divide by their sum."""
    out = np.zeros((*q.shape[:-1], v.shape[-1]))
    group = q.shape[-2] // k.shape[-2]
    for b, h, i in itertools.product(range(q.shape[0]), range(q.shape[2]), range(q.shape[1])):
        weights = {}
        for j in range(k.shape[1]):
            if (not causal or j <= i) and (mask is None or mask[b, j]):
                weights[j] = float(elu_plus_one(q[b, i, h]) @ elu_plus_one(k[b, j, h // group]))
        total = sum(weights.values())
        for j, w in weights.items():
            out[b, i, h] += w / total * v[b, j, h // group]
    return out


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_values_equal_explicit_kernel_attention(causal, masked):
    time_q = 7 if causal else 5
    q, k, v = normal(0, 2, time_q, 4, 3), normal(1, 2, 7, 2, 3), normal(2, 2, 7, 2, 5)
    mask = np.array([[True, False, True, True, True, True, False], [False, False, True, False, True, True, True]])
    side = {"mask": mask} if masked else {}
    with jax.enable_x64(True):
        f = jax.jit(lambda *x: linear_attention(*x, causal=causal, chunk=3, **jax.tree.map(jnp.asarray, side)))
        ours = f(*map(jnp.asarray, (q, k, v)))
    np.testing.assert_allclose(ours, explicit(q, k, v, causal, **side), rtol=1e-12, atol=2e-15)


def test_gradients_equal_those_of_the_explicit_matrix():
    with jax.enable_x64(True):
        q, k, v = (jnp.asarray(normal(i, 7, 2, 3)) for i in range(3))

        def by_matrix(q, k, v):
            phi = [jnp.where(x > 0, x + 1, jnp.exp(jnp.minimum(x, 0.0))) for x in (q, k)]
            weights = jnp.tril(jnp.einsum("qhd,khd->hqk", *phi))
            return jnp.einsum("hqk,khv->qhv", weights / weights.sum(-1, keepdims=True), v)

        @jax.jit
        def derived(*x):
            forms = (lambda *x: linear_attention(*x, causal=True, chunk=3), by_matrix)
            return [jax.jvp(jax.grad(lambda x, f=f: jnp.sum(jnp.sin(f(*x)))), (x,), (x,)) for f in forms]

        ours, expected = derived(q, k, v)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)


def test_later_keys_change_no_bit_of_earlier_outputs():
    """A key and a value of 1e7 leave all outputs before them bitwise equal, since no sums are subtracted."""
    q, k, v = (normal(i, 2, 7, 2, 3, dtype=np.float32) for i in range(3))
    f = compiled(lambda *x: linear_attention(*x, causal=True, chunk=3))
    at = np.arange(7)[:, None, None]
    with jax.debug_nans(False):  # in a later chunk even NaN has no effect
        out = f(q, k, v)
        after = f(q, np.where(at == 2, np.float32(1e7), k), np.where(at == 2, np.float32(-1e7), v))
        of_nan = f(q, np.where(at >= 3, np.float32(np.nan), k), np.where(at >= 3, np.float32(np.inf), v))
    np.testing.assert_array_equal(after[:, :2], out[:, :2])
    assert np.abs(after[:, 2] - out[:, 2]).max() > 1
    np.testing.assert_array_equal(of_nan[:, :3], out[:, :3])


def test_nan_in_padding_has_no_effect():
    """Outputs and gradients equal those without padding."""
    q, k, v = (jnp.asarray(normal(i, 7, 2, 3), jnp.float32) for i in range(3))
    mask = jnp.arange(7) < 5

    def total(q, k, v, mask=None):
        return jnp.sin(linear_attention(q, k, v, causal=True, chunk=3, mask=mask)[:5]).sum()

    with jax.debug_nans(False):
        dirty = (q, k.at[5:].set(jnp.nan), v.at[5:].set(jnp.nan))
        ours = jax.jit(jax.value_and_grad(total, (0, 1, 2)))(*dirty, mask)
    expected = jax.jit(jax.value_and_grad(total, (0, 1, 2)))(*(x[:5] for x in (q, k, v)))
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a[:5] if a.ndim else a, b, rtol=1e-5, atol=1e-6)
        assert not a.ndim or np.all(np.asarray(a[5:]) == 0)


@pytest.mark.parametrize(("causal", "shape"), [(False, (0, 7, 2, 3)), (True, (2, 0, 2, 3))])
def test_empty_axes(causal, shape):
    assert compiled(linear_attention)(*[np.zeros(shape, np.float32)] * 3, causal=causal).shape == shape


def dots(f, *shapes):
    """Multiplications of all matrix products."""
    total = 0
    for eqn in jax.make_jaxpr(f)(*shapes).jaxpr.eqns:
        inner = eqn.params.get("jaxpr")
        assert eqn.primitive.name not in ("scan", "while")
        if eqn.primitive.name == "dot_general":
            contracted = eqn.params["dimension_numbers"][0][0]
            total += math.prod(eqn.invars[0].aval.shape[a] for a in contracted) * math.prod(eqn.outvars[0].aval.shape)
        elif inner is not None:
            total += dots(jax.extend.core.jaxpr_as_fun(inner), *[v.aval for v in eqn.invars])
    return total


def test_the_cost_is_linear_in_the_length():
    """2 T d v multiplications against T^2 (d + v): a factor of T/64 fewer for d = v = 64."""

    def shapes(n):
        return [jax.ShapeDtypeStruct((n, 1, 64), jnp.float32)] * 3

    for n, ratio in [(64, 1), (1024, 16), (16384, 256)]:
        assert n**2 * (64 + 64) == ratio * dots(linear_attention, *shapes(n))
    one, two = (dots(lambda *x: linear_attention(*x, causal=True), *shapes(n)) for n in (1024, 2048))
    assert two == 2 * one


def test_half_precision_extremes_and_fully_masked_queries():
    q, k, v = (jnp.asarray(normal(i, 1, 40, 2, 4), jnp.bfloat16) for i in range(3))
    ours = jax.jit(functools.partial(linear_attention, causal=True, chunk=16))(q, k, v)
    assert ours.dtype == jnp.bfloat16
    exact = explicit(*(np.asarray(x, np.float64) for x in (q, k, v)), True)
    np.testing.assert_allclose(np.asarray(ours, np.float64), exact, atol=0.02)
    masked = jax.jit(linear_attention)(q, k, v, mask=jnp.zeros((1, 40), bool))
    assert jnp.all(masked == 0)

    def total(x):
        return linear_attention(x, x, x, causal=True).sum()

    gradient_of = jax.jit(jax.grad(total))
    for value in (1e4, -1e4, 0.0):
        assert np.isfinite(np.asarray(gradient_of(jnp.full((3, 1, 2), value)))).all()
    # The mean of the values for a query whose reciprocal is below the normal numbers.
    means = jax.jit(linear_attention)(jnp.full((1, 1, 2), 2e38), jnp.zeros((2, 1, 2)), jnp.array([[[1.0]], [[3.0]]]))
    np.testing.assert_allclose(means, [[[2.0]]], rtol=1e-6)


def test_errors(sentences):
    q, k, v = (normal(i, 2, n, 2, 4).astype(np.float32) for i, n in enumerate((3, 5, 5)))
    with pytest.raises(ValueError, match="equal numbers of queries and keys with causal=True"):
        linear_attention(q, k, v, causal=True)
    jax.eval_shape(linear_attention, q, k, v)  # as the error advises
    with pytest.raises(ValueError, match="with the same size of time_k"):
        linear_attention(q, k, v[:, :4])
    with pytest.raises(ValueError, match=r"write q\[..., None, :\] for one head"):
        linear_attention(q[0, :, 0], k[0, :, 0], v[0, :, 0])
    for wrong in ((5,), (2, 2, 3, 5)):
        with pytest.raises(
            ValueError, match=r"\(\*batch, time_k\) = \(2, 5\), or \(2, 1, 1, 5\), .*; pass a mask of keys"
        ):
            linear_attention(q, k, v, mask=np.ones(wrong, bool))
    jax.eval_shape(lambda mask: linear_attention(q, k, v, mask=mask), np.ones((2, 5), bool))
    with pytest.raises(TypeError, match="mask to be a boolean array"):
        linear_attention(q, k, v, mask=np.ones((2, 5)))
    with pytest.raises(TypeError, match="mask to be a boolean array, got a list"):
        linear_attention(q, k, v, mask=[[True] * 5] * 2)
    with pytest.raises(ValueError, match="chunk to be an integer"):
        linear_attention(q, k, v, chunk=0)


@pytest.mark.parametrize("causal", [False, True])
def test_derivatives_where_all_features_of_a_query_are_small_or_large(causal):
    """Features of 1e-25 to 1e25: the output is an average, whose derivatives do not depend on their common size."""
    rng = np.random.default_rng(8)
    k, v = rng.normal(size=(2, 4, 1, 3)).astype(np.float32)

    def run(q):
        weights = jnp.arange(1.0, 13).reshape(4, 1, 3).astype(q.dtype)
        return jnp.sum(weights * linear_attention(q, k.astype(q.dtype), v.astype(q.dtype), causal=causal, chunk=2))

    q = rng.normal(size=(4, 1, 3)) - np.reshape([0, 30, 57, 0], (4, 1, 1))
    q[3] = 1e25 * np.array([1, 2, 3])
    along = np.where(q > 1e3, 1e20, rng.normal(size=q.shape))
    both = compiled(lambda q, t: (run(q), *jax.jvp(jax.grad(run), (q,), (t,))))
    found = both(q.astype(np.float32), along.astype(np.float32))
    with jax.enable_x64(True):
        expected = both(q.astype(np.float32).astype(np.float64), along)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
    for ours, theirs in zip(found[1:], expected[1:], strict=True):
        np.testing.assert_allclose(ours[:3], theirs[:3], rtol=1e-4, atol=1e-5)
        assert np.isfinite(ours).all()
