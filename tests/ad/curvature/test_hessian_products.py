"""Hessian-vector products against dense matrices and differences."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from derivatives import small_net

from jaxblocks.ad import (
    cost_table,
    directional_curvature,
    hvp,
    jacobian,
    per_example_gradients,
)


def flat(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def like(params, vector):
    leaves, structure = jax.tree.flatten(params)
    parts = np.split(np.asarray(vector), np.cumsum([leaf.size for leaf in leaves])[:-1])
    return structure.unflatten(
        [part.reshape(leaf.shape).astype(leaf.dtype) for part, leaf in zip(parts, leaves, strict=True)]
    )


def published(x):
    """Baydin's example ln x1 + x1 x2 - sin x2."""
    return jnp.log(x[0]) + x[0] * x[1] - jnp.sin(x[1])


def test_published_hessian_and_product():
    """At (2, 5): [[-.25, 1], [1, -.9589243]], and (-2.25, 2.9178485) for v = (1, -2)."""
    with jax.enable_x64(True):
        x, v = np.array([2.0, 5.0]), np.array([1.0, -2.0])
        product = jax.jit(functools.partial(hvp, published))
        columns = [product(x, e) for e in np.eye(2)]
        np.testing.assert_allclose(columns, [[-0.25, 1.0], [1.0, -0.9589242746631385]], rtol=1e-14)
        np.testing.assert_allclose(product(x, v), [-2.25, 2.917848549326277], rtol=1e-14)


def hessian_by_differences(f, params, h=1e-5):
    """The columns of the Hessian by central differences of the gradient, in numpy: no second derivative of JAX."""
    point, gradient = flat(params), jax.jit(jax.grad(f))
    columns = []
    for e in np.eye(point.size):
        up, down = (flat(gradient(like(params, point + s * h * e))) for s in (1, -1))
        columns.append((up - down) / (2 * h))
    return np.stack(columns, 1)


def test_products_are_columns_of_the_hessian():
    """Under vmap and jit, and eagerly, of all tools; the matrix is symmetric, and that of central differences."""
    with jax.enable_x64(True):
        f, params = small_net(sizes=(2, 3, 2))
        f, n = jax.jit(f), flat(params).size  # traced once for all tools
        directions = [*np.eye(n), np.random.default_rng(1).normal(size=n)]
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *(like(params, v) for v in directions))

        @jax.jit
        def every(params, vs):
            tools = (hvp, directional_curvature)
            return [jax.vmap(functools.partial(tool, f, params))(vs) for tool in tools]

        products, bends = every(params, stacked)
        rows = lambda tree: np.concatenate([np.reshape(leaf, (n + 1, -1)) for leaf in jax.tree.leaves(tree)], 1)
        matrix = rows(products)[:n]
        assert jax.tree.structure(products) == jax.tree.structure(params)
        np.testing.assert_allclose(matrix, hessian_by_differences(f, params), atol=1e-8)
        np.testing.assert_allclose(matrix, matrix.T, atol=1e-14)
        np.testing.assert_allclose(rows(products)[n], matrix @ directions[n], atol=1e-13)
        np.testing.assert_allclose(bends, np.einsum("vi,vi->v", directions, rows(products)), rtol=1e-12)
        np.testing.assert_allclose(flat(hvp(f, params, like(params, directions[0]))), matrix[0], rtol=1e-12)  # eager


def test_products_can_be_differentiated():
    """The third derivative along v, v and u against a central difference of the curvature."""
    with jax.enable_x64(True):
        f, params = small_net(sizes=(2, 3, 2))
        v, u = (like(params, w) for w in np.random.default_rng(3).normal(size=(2, flat(params).size)))
        along = jax.jit(lambda p: directional_curvature(f, p, v))
        h = 1e-5
        near = [like(params, flat(params) + s * h * flat(u)) for s in (1, -1)]
        up, down, forward, reverse = jax.jit(
            lambda p, near: (*map(along, near), jax.jvp(along, (p,), (u,))[1], jax.grad(along)(p))
        )(params, near)
        np.testing.assert_allclose(forward, (up - down) / (2 * h), rtol=1e-7)
        np.testing.assert_allclose(flat(reverse) @ flat(u), forward, rtol=1e-10)


def test_a_product_with_a_branch_can_be_differentiated():
    """The curvature of the sum of cubes along v is 6 v·(x v), with the gradient 6 v²."""
    f = lambda x: jax.lax.cond(x[0] > 0, lambda x: (x**3).sum(), lambda x: x.sum(), x)
    x, v = jnp.array([2.0, 5.0]), jnp.array([1.0, -2.0])
    np.testing.assert_allclose(jax.grad(lambda x: v @ hvp(f, x, v))(x), 6 * v**2, rtol=1e-6)


def test_dtypes_are_kept():
    x = jnp.array([2.0, 5.0], jnp.bfloat16)
    product = jax.jit(functools.partial(hvp, published))(x, x)
    assert product.dtype == jnp.bfloat16
    assert not product.weak_type
    np.testing.assert_allclose(product.astype(jnp.float32), [4.5, 2 - 5 * 0.9589243], rtol=0.02)


def test_numbers_and_numpy_arrays_are_accepted_as_points():
    class Two:
        def __jax_array__(self):
            return jnp.float32(2)

    for two in (2.0, np.float32(2), Two()):
        np.testing.assert_allclose(hvp(lambda x: x**3, two, np.float32(1)), 12.0)
    cubes = lambda x: jnp.sum(x**3)
    np.testing.assert_allclose(hvp(cubes, np.array([2.0, 5.0]), np.array([1.0, -2.0])), [12, -60])


def test_wrappers_may_pass_arguments_that_the_signature_has():
    def twice(f):
        return functools.wraps(f)(lambda *args: f(*args, 2.0))

    cubes = twice(lambda x, scale: scale * jnp.sum(x**3))
    np.testing.assert_allclose(hvp(cubes, jnp.ones(2), jnp.ones(2)), [12, 12])
    np.testing.assert_allclose(jacobian(twice(lambda x, scale: scale * x))(jnp.ones(2)), 2 * np.eye(2))
    assert cost_table(cubes, jnp.ones(2), rows=("gradient",), measure=False)
    gradients = per_example_gradients(twice(lambda w, x, scale: scale * jnp.dot(w, x)), jnp.ones(2), jnp.ones((3, 2)))
    np.testing.assert_allclose(gradients, np.full((3, 2), 2))


def test_kinks_and_constants():
    both = jax.jit(lambda x: [hvp(f, x, x) for f in (lambda x: jnp.sum(jnp.maximum(x, 0.0)), lambda x: jnp.float32(1))])
    assert np.array_equal(both(np.ones(3, np.float32)), np.zeros((2, 3)))


SENTENCES = [
    (
        lambda x: x,
        jnp.ones(3),
        jnp.ones(3),
        ValueError,
        r"expected f to return a scalar, got float32 \(3,\).*jax.jacobian",
    ),
    (lambda x: x[:1], jnp.ones(3), jnp.ones(3), ValueError, r"got float32 \(1,\)"),
    (lambda x: (x.sum(), x), jnp.ones(3), jnp.ones(3), TypeError, r"got a tuple; return the value alone"),
    (lambda x: (x[0].sum(), x), (jnp.ones(3),) * 2, (jnp.ones(3),) * 2, TypeError, "got a tuple; return the value"),
    (lambda x: None, jnp.ones(3), jnp.ones(3), TypeError, r"got None; return the value\.$"),
    (lambda x: 3 * x**2, jnp.ones(3), jnp.ones(3), ValueError, r"got float32 \(3,\); pass the function itself if f is"),
    (lambda x: {"a": 2 * x["a"]}, {"a": jnp.ones(3)}, {"a": jnp.ones(3)}, TypeError, "its gradient; otherwise"),
    (lambda x: {"loss": x.sum(), "mean": x.mean()}, jnp.ones(3), jnp.ones(3), TypeError, r"lambda x: f\(x\)\['loss'\]"),
    (lambda x: x.sum().astype(int), jnp.ones(3), jnp.ones(3), TypeError, r"floating-point scalar, got int32"),
    (jnp.sum, jnp.arange(3), jnp.arange(3), TypeError, r"got int32 \(3,\) at x"),
    (jnp.sum, {"a": [jnp.ones(2), jnp.arange(3)]}, {}, TypeError, r"got int32 \(3,\) at x\['a'\]\[1\].*close over"),
    (jnp.sum, jnp.ones(3, complex), jnp.ones(3, complex), TypeError, r"got complex64 \(3,\) at x"),
    (jnp.sum, jnp.ones(3), jnp.ones(2), ValueError, r"float32 \(3,\) at x, got float32 \(2,\) at v"),
    (jnp.sum, jnp.ones(3), jnp.ones(3, jnp.bfloat16), ValueError, r"got bfloat16 \(3,\) at v"),
    (
        jnp.sum,
        {"a": jnp.ones(3), "b": jnp.ones(2)},
        {"a": jnp.ones(3), "c": jnp.ones(4)},
        ValueError,
        r"at x\['b'\], got nothing at v\['b'\] but float32 \(4,\) at v\['c'\];",
    ),
    (
        jnp.sum,
        {"a": jnp.ones(3)},
        {"a": jnp.ones(3), "b": jnp.ones(2)},
        ValueError,
        r"nothing at x\['b'\], got float32 \(2,\) at v\['b'\]",
    ),
    (jnp.sum, [jnp.ones(3)], (jnp.ones(3),), ValueError, r"v in the containers of x"),
    (jnp.sum, {"a": jnp.ones(3)}, {"a": jnp.ones((3, 1))}, ValueError, r"got float32 \(3, 1\) at v\['a'\]"),
    (jnp.sum, (), (), ValueError, r"at least one array"),
]


def test_errors_state_what_was_expected_and_what_to_do():
    for i, (f, x, v, error, words) in enumerate(SENTENCES):
        tool = (hvp, directional_curvature)[i % 2]
        with pytest.raises(error, match=f"^{tool.__name__} .*{words}"):
            tool(f, x, v)
    with pytest.raises(ValueError, match=r"^hvp expected f to return a scalar"):
        jax.jit(functools.partial(hvp, jnp.sin))(jnp.ones(3), jnp.ones(3))


def test_following_the_errors_advice_works():
    f = lambda x: x**3
    x, v = jnp.arange(3.0), jnp.ones(3)
    np.testing.assert_allclose(jax.jit(jax.jacobian(f))(x), jnp.diag(3 * x**2))
    np.testing.assert_allclose(hvp(lambda x: (f(x).sum(), x)[0], jnp.arange(3).astype(jnp.float32), v), 6 * x)


def test_arguments_in_another_order_raise(sentences):
    with pytest.raises(TypeError, match=r"hvp expected f to be a function, got float32 \(2,\)"):
        hvp(jnp.ones(2), jnp.sum, jnp.ones(2))


def test_leaves_of_several_dtypes_under_strict_promotion():
    """By forward over forward mode too, which takes all leaves as one vector."""
    x = {"a": jnp.ones(2, jnp.float16), "b": jnp.ones(3)}

    def f(x):
        value = jnp.sum(x["a"].astype(jnp.float32) ** 3) + jnp.sum(x["b"] ** 2)
        return jax.lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, c[1] * value), (0, jnp.ones(())))[1]

    with jax.numpy_dtype_promotion("strict"):
        found = hvp(f, x, x)
    assert jax.tree.map(jnp.result_type, found) == jax.tree.map(jnp.result_type, x)
    # f = v^2 with v = 5, grad v = (3, 3, 2, 2, 2) and hess v = diag(6, 6, 2, 2, 2)
    np.testing.assert_array_equal(flat(found), 2 * 12 * np.array([3, 3, 2, 2, 2]) + 2 * 5 * np.array([6, 6, 2, 2, 2]))
