"""Products that are transposed at once take their operands in the other order."""

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import close, normal
from jax import lax
from jax.sharding import AxisType, PartitionSpec

from jaxblocks.ad import per_example_gradients
from jaxblocks.ad.programs import order_of_products
from jaxblocks.ad.programs.order_of_products import with_products_in_order

X, Y = np.float32(normal(1, 4, 2)), np.float32(normal(2, 2, 3))


def products_of(f, *args):
    return [e for e in jax.make_jaxpr(with_products_in_order(f))(*args).eqns if e.primitive.name != "jit"]


def test_operands_in_the_other_order_where_a_product_is_read_twice():
    def both(x, y):
        return lax.transpose(product := x @ y, (1, 0)), product

    assert [e.outvars[0].aval.shape for e in products_of(both, X, Y)] == [(4, 3), (3, 4)]
    close(with_products_in_order(both)(X, Y), both(X, Y), 1e-6)
    assert [e.outvars[0].aval.shape for e in products_of(lambda x, y: both(x, y)[0], X, Y)] == [(3, 4)]


def test_operands_in_the_other_order_keep_their_precision():
    f = lambda x, y: (x @ y).T
    with jax.default_matmul_precision("highest"):
        [product] = products_of(f, X, Y)
    assert product.params["precision"] == (lax.Precision.HIGHEST,) * 2
    f = lambda x, y: jnp.dot(x, y, precision=("highest", "default")).T
    [product] = products_of(f, X, Y)
    assert product.params["precision"] == (lax.Precision.DEFAULT, lax.Precision.HIGHEST)
    algorithm = lax.DotAlgorithm(jnp.bfloat16, jnp.float32, jnp.float32)
    f = lambda x, y: lax.dot_general(x, y, (((1,), (0,)), ((), ())), precision=algorithm).T
    assert [e.primitive.name for e in products_of(f, X, Y)] == ["dot_general", "transpose"]


@pytest.mark.parametrize("jitted", [False, True])
def test_no_array_and_no_tracer_is_kept(jitted):
    """The params of a call are free after it, as are the tracers of a trace."""
    loss = lambda kernel, x: jnp.sum(jnp.tanh(x @ kernel))
    loss = jax.jit(loss) if jitted else loss
    kernel, xs = jnp.asarray(Y), jnp.asarray(X)
    place = weakref.ref(kernel)
    per_example_gradients(loss, kernel, xs)
    del kernel
    gc.collect()
    assert place() is None
    with jax.checking_leaks():
        jax.jit(lambda kernel, x: per_example_gradients(loss, kernel, x))(Y, xs)


def test_jitted_functions_are_rewritten_once(monkeypatch):
    """An eager call has the programs of the call before, so that nothing is compiled anew."""
    rewritten, rewrite = [], order_of_products._in_order
    monkeypatch.setattr(order_of_products, "_in_order", lambda program: rewritten.append(program) or rewrite(program))
    loss = jax.jit(lambda kernel, x: jnp.sum(jnp.tanh(x @ kernel)))
    for numbers in (3, 4):  # that of the call, and those of the forward and the backward pass of the loss
        per_example_gradients(loss, Y, X)
        assert len(rewritten) == numbers


@pytest.mark.parametrize("permutation", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (2, 0, 1)])
def test_other_permutations_stay(permutation):
    x, y = np.float32(normal(1, 2, 4, 5)), np.float32(normal(2, 2, 5, 3))
    f = lambda x, y: lax.transpose(jnp.einsum("bik,bkj->bij", x, y), permutation)
    names = [e.primitive.name for e in products_of(f, x, y)]
    assert names == ["dot_general"] + ["transpose"] * (permutation not in ((0, 1, 2), (0, 2, 1)))
    np.testing.assert_allclose(with_products_in_order(f)(x, y), f(x, y), rtol=1e-6)


def test_stated_shardings_stay():
    mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh):
        x, y = jax.reshard(jnp.asarray(X), PartitionSpec("d", None)), jnp.asarray(Y)
        stated = lambda x, y: jnp.einsum("ik,kj->ij", x, y, out_sharding=PartitionSpec("d", None)).T
        for f in stated, lambda x, y: (x @ y).T:
            found, expected = jax.jit(with_products_in_order(f))(x, y), jax.jit(f)(x, y)
            assert found.sharding.spec == expected.sharding.spec == PartitionSpec(None, "d")
            np.testing.assert_allclose(found, expected, rtol=1e-6)
