"""Hessians in chunks: equal to jax.hessian for each chunk size, in bounded memory."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxblocks import losses
from jaxblocks.activations import tanh
from jaxblocks.ad import (
    as_matrix,
    directional_curvature,
    empirical_risk,
    gauss_newton_operator,
    hessian,
    hessian_diagonal,
    hessian_operator,
    hvp,
)
from jaxblocks.ad.counting.counts import count_jaxpr
from jaxblocks.layers.mlp import MLP


def problem(dtype, net, shape, outputs=3):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=shape).astype(dtype), rng.integers(outputs, size=shape[0]).astype(np.int32)
    shapes = jax.eval_shape(net.init, jax.random.key(0), x.astype(np.float32))
    params = jax.tree.map(lambda p: rng.normal(size=p.shape).astype(dtype), shapes)
    risk = empirical_risk(net, losses.softmax_cross_entropy)
    return jax.jit(lambda p: risk(p, (jnp.asarray(x), jnp.asarray(y)))), params  # traced once for all derivatives


def published(x):
    """The example ln x1 + x1 x2 - sin x2 of Baydin et al. (2018)."""
    return jnp.log(x[0]) + x[0] * x[1] - jnp.sin(x[1])


def test_published_hessian():
    """The Hessian at (2, 5): [[-.25, 1], [1, -.9589243]]; once without jit."""
    with jax.enable_x64(True):
        x, expected = jnp.array([2.0, 5.0]), np.array([[-0.25, 1.0], [1.0, -0.9589242746631385]])
        np.testing.assert_allclose(hessian(published, x), expected, rtol=1e-14)
        tools = functools.partial(hessian, chunk_size=1), hessian_diagonal
        one, diagonal = jax.jit(lambda x: [tool(published, x) for tool in tools])(x)
        np.testing.assert_allclose(one, expected, rtol=1e-14)
        np.testing.assert_allclose(diagonal, np.diag(expected))


def test_chunks_equal_jax_hessian():
    """Chunk sizes that divide 21 and that do not; shapes and dtypes of each leaf."""
    with jax.enable_x64(True):
        f, params = problem(np.float64, MLP(3, 3, activation=tanh), (5, 2))

        @jax.jit
        def every(p):
            ours = [hessian(f, p, chunk_size=size) for size in (4, 7)]
            return jax.hessian(f)(p), ours, hessian_diagonal(f, p, chunk_size=4)

        theirs, both, diagonal = jax.tree.map(np.asarray, every(params))
        for ours in both:
            assert jax.tree.structure(ours) == jax.tree.structure(theirs)
            for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
                assert (a.shape, a.dtype) == (b.shape, b.dtype)
                np.testing.assert_allclose(a, b, atol=1e-13)
        on_diagonal = [theirs[i][name][i][name] for i in range(len(params)) for name in params[i] if params[i]]
        for d, h in zip(jax.tree.leaves(diagonal), on_diagonal, strict=True):
            np.testing.assert_allclose(d.reshape(-1), np.diag(h.reshape(d.size, d.size)), atol=1e-13)


def test_matrices_of_operators():
    """An asymmetric operator on a pytree, with columns in the order of the leaves; under vmap and grad."""
    A = np.random.default_rng(0).normal(size=(5, 5)).astype(np.float32)

    def operator(scale, v):
        y = scale * (A @ jnp.concatenate([v["a"].reshape(-1), v["b"]]))
        return {"a": y[:4].reshape(2, 2), "b": y[4:]}

    like = {"a": jax.ShapeDtypeStruct((2, 2), jnp.float32), "b": jax.ShapeDtypeStruct((1,), jnp.float32)}
    matrix = lambda scale, chunk_size: as_matrix(functools.partial(operator, scale), like, chunk_size=chunk_size)
    at = functools.partial(matrix, chunk_size=2)
    run = lambda one, scales: (at(one), jax.vmap(at)(scales), jax.grad(lambda scale: at(scale).sum())(one))
    found, mapped, slope = jax.jit(run)(1.0, np.array([1, 3], np.float32))
    np.testing.assert_allclose(found, A, rtol=1e-6)
    np.testing.assert_allclose(mapped, np.stack([A, 3 * A]), rtol=1e-6)
    np.testing.assert_allclose(slope, A.sum(), rtol=1e-5)


def test_dtypes_of_leaves_are_kept():
    x = {"a": jnp.ones(2, jnp.float32), "b": jnp.ones(1, jnp.bfloat16)}
    H = jax.jit(lambda x: hessian(lambda x: jnp.sum(x["a"] ** 3) * x["b"].astype(jnp.float32)[0], x))(x)
    assert H["a"]["b"].dtype == jnp.float32 and H["b"]["a"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(np.asarray(H["a"]["b"])[:, 0], [3.0, 3.0])
    half = jax.ShapeDtypeStruct((2,), jnp.bfloat16)
    assert jax.eval_shape(lambda x: hessian_diagonal(lambda x: jnp.sum(x**3), x), half).dtype == jnp.bfloat16


# ---- costs ---------------------------------------------------------------------------------


def test_memory_decreases_with_the_chunk_size():
    """With 1133 params and 64 rows, 1/8 of the temporaries of jax.hessian, for as many operations."""
    f, params = problem(np.float32, MLP(24, 24, 5, activation=tanh), (64, 16), 5)
    matrix = lambda p: as_matrix(hessian_operator(f, p), p, chunk_size=8)
    traced = [jax.jit(g).trace(params) for g in (jax.hessian(f), functools.partial(hessian, f), matrix)]
    stock, ours, few = (each.lower().compile().memory_analysis().temp_size_in_bytes for each in traced)
    assert ours < stock / 7 and few < stock / 30
    flops = [count_jaxpr(each.jaxpr.jaxpr).flops for each in traced]
    assert flops[1] < 1.02 * flops[0]


def test_unit_vectors_are_not_constants_of_the_program():
    """The program has no n x n constant."""
    jaxpr = jax.make_jaxpr(functools.partial(hessian, lambda x: jnp.sum(jnp.sin(x) ** 2), chunk_size=8))(jnp.ones(64))
    assert all(np.size(constant) <= 64 for constant in jaxpr.consts)


# ---- errors --------------------------------------------------------------------------------


@pytest.mark.parametrize("tool", [hessian, hessian_diagonal])
def test_errors_name_the_public_function(tool, sentences):
    name, x = tool.__name__, jnp.ones(2)
    with pytest.raises(ValueError, match=rf"{name} expected f to return a scalar, got float32 \(2,\)"):
        tool(jnp.sin, x)
    tool(lambda x: jnp.sin(x).sum(), x)
    with pytest.raises(TypeError, match=rf"{name} expected x to hold floating-point arrays, got int32 \(2,\) at x"):
        tool(jnp.sum, jnp.arange(2))
    with pytest.raises(ValueError, match=rf"{name} expected chunk_size to be .*integer >= 1.*, got 0"):
        tool(jnp.sum, x, chunk_size=0)
    with pytest.raises(ValueError, match=rf"{name} expected chunk_size to be .*'auto'.*, got 'all'"):
        tool(jnp.sum, x, chunk_size="all")
    tool(jnp.sum, x, chunk_size="auto")


def test_functions_that_are_not_operators_are_rejected(sentences):
    x = jnp.ones(2)
    with pytest.raises(ValueError, match=r"like its argument, float32 \(2,\), got float32 \(\); pass a function v"):
        as_matrix(jnp.sum, x)
    with pytest.raises(TypeError, match=r"operator to be a function, got float32 \(2,\)"):
        as_matrix(x, x)
    as_matrix(lambda v: v, x)
    with pytest.raises(TypeError, match=r"as_matrix expected like to hold floating-point arrays, got int32"):
        as_matrix(lambda v: v, jnp.arange(2))


def test_affine_functions_are_rejected():
    """A function that is not zero at zero is rejected, its jvp is accepted. Infinite and NaN entries are allowed."""
    x, f = jnp.array([0.5, 2.0]), jnp.cos
    with pytest.raises(ValueError, match=r"as_matrix expected a linear operator, got .* value 1.0 at zero; .*jax.jvp"):
        as_matrix(f, x)
    found = as_matrix(lambda v: jax.jvp(f, (x,), (v,))[1], x)
    np.testing.assert_allclose(found, np.diag(-np.sin(x)), rtol=1e-6)
    jax.jit(lambda x: as_matrix(lambda v: 2 * v, x))(x)
    with jax.debug_nans(False):
        assert np.isinf(as_matrix(lambda v: jnp.array([jnp.inf, 1.0]) * v, x)[0, 0])


def looped(x):
    """A while loop, which has no reverse mode, with a rule of its own inside."""
    return jnp.sum(jax.lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, tanh(c[1]) * c[1][::-1]), (0, x))[1])


def unrolled(x):
    for _ in range(2):
        x = jnp.tanh(x) * x[::-1]
    return jnp.sum(x)


def test_while_loops_by_two_forward_modes():
    """Every tool of second derivatives, in vmap and another derivative, against the unrolled loop."""
    x, v = (np.random.default_rng(seed).normal(size=3).astype(np.float32) for seed in (0, 1))
    tools = {
        "hessian": lambda f, x: hessian(f, x, chunk_size=2),
        "diagonal": hessian_diagonal,
        "operator": lambda f, x: hessian_operator(f, x)(v),
        "hvp": lambda f, x: hvp(f, x, v),
        "curvature": lambda f, x: directional_curvature(f, x, v),
        "pushed": lambda f, x: jax.jvp(lambda x: hessian_diagonal(f, x), (x,), (v,))[1],
    }

    run = jax.jit(lambda x: {name: tool(looped, x) for name, tool in tools.items()})
    H, pushed = jax.jit(lambda x: jax.jvp(jax.hessian(unrolled), (x,), (v,)))(x)
    H, pushed = np.asarray(H), np.asarray(pushed)
    theirs = {
        "hessian": H,
        "diagonal": np.diag(H),
        "operator": H @ v,
        "hvp": H @ v,
        "curvature": v @ (H @ v),
        "pushed": np.diag(pushed),
    }
    found = jax.tree.map(lambda a: a[0], jax.vmap(run)(x[None]))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), found, theirs)


def test_python_reads_the_point_of_an_eager_call():
    """Functions that read numbers of x, which `jax.grad` differentiates outside of `jax.jit`."""
    x, v = jnp.array([1.0, 2.0]), jnp.array([3.0, -1.0])
    for f in (
        lambda x: jnp.sum(x**3) if x[0] > 0 else jnp.sum(x**2),
        lambda x: jnp.sum(x[x > 0] ** 3),
        lambda x: [2.0, 1.0][jnp.argmax(x)] * jnp.sum(x**3),
        lambda x: jnp.sum(x**3) * float(np.asarray(x > 0).all()),
    ):
        for found in hvp(f, x, v), hessian(f, x) @ v, hessian_diagonal(f, x) * v, hessian_operator(f, x)(v):
            np.testing.assert_allclose(found, 6 * x * v, rtol=1e-6)


def test_models_with_while_loops_are_named():
    model = lambda x: jax.lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, jnp.sin(c[1])), (0, x))[1]
    with pytest.raises(
        TypeError, match="gauss_newton_operator expected model to be differentiable in reverse mode, got"
    ):
        gauss_newton_operator(model, jnp.sum, jnp.ones(2))


def test_empty_points():
    x = {"a": jnp.zeros((0, 2))}
    f = lambda x: jnp.sum(x["a"] ** 2)
    assert hessian(f, x)["a"]["a"].shape == (0, 2, 0, 2)
    assert hessian_diagonal(f, x)["a"].shape == hessian_operator(f, x)(x)["a"].shape == (0, 2)
    assert as_matrix(lambda v: v, x).shape == (0, 0)


def test_a_matrix_of_all_devices_does_not_vary_over_them():
    """An operator that sums over the devices, for a vector of one device."""
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    scales = jnp.arange(1.0, 7.0).reshape(2, 3)

    def of_device(scale):
        like = jnp.zeros_like(scale[0])
        return as_matrix(lambda v: jax.lax.psum(scale[0] * v, "data"), like, chunk_size=2)

    split, whole = jax.P("data"), jax.P()
    found = jax.jit(jax.shard_map(of_device, mesh=mesh, in_specs=split, out_specs=whole))(scales)
    np.testing.assert_array_equal(found, np.diag([5.0, 7.0, 9.0]))
