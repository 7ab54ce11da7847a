"""Inside of `jax.shard_map`, arrays that all devices share beside arrays that differ: params and examples.

JAX tracks the difference in the types of arrays, so that a mistake is an error while the program is traced.
"""

import importlib

import jax
import jax.numpy as jnp
import pytest
from derivative_laws.test_table import FIRST, ROWS
from zoo import SIMPLE, ZOO

import jaxblocks as jb
from jaxblocks.core.lifting import declared_by

SHARED, SPREAD = jax.P(), jax.P("d")


def mesh():
    return jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))


def total(tree):
    """The sum of the real parts of all floating-point leaves."""
    return sum(jnp.sum(jnp.real(a), dtype=float) for a in jax.tree.leaves(tree) if jnp.issubdtype(a.dtype, jnp.inexact))


def spread(tree):
    """Each leaf twice, one for each device."""
    return jax.tree.map(lambda a: jnp.stack([a, a]), tree)


@pytest.mark.parametrize("name", SIMPLE)
def test_gradients_of_shared_params(name):
    """Each device has one batch; JAX sums the gradients of shared params over the devices."""
    row = ZOO[name]
    net, inputs, side = jb.stateful(row.layer), row.inputs(), dict(row.side)
    if "train" in jb.side_inputs(row.layer):
        side = {"train": True} | side
    if "key" in jb.side_inputs(row.layer):
        side = {"key": jax.random.key(1)} | side
    of_init = {one: value for one, value in row.side.items() if one in declared_by(row.layer.init)}
    params, state = jax.eval_shape(lambda key: net.init(key, *inputs, **of_init), jax.random.key(0))

    def gradient(params, state, inputs):
        own = jax.tree.map(lambda a: a[0], inputs)
        value, pull = jax.vjp(lambda params: total(net.apply(params, state, *own, **side)[0]), params)
        return value[None], pull(jnp.ones_like(value))[0]

    mapped = jax.shard_map(gradient, mesh=mesh(), in_specs=(SHARED, SHARED, SPREAD), out_specs=(SPREAD, SHARED))
    _, gradients = jax.eval_shape(mapped, params, state, spread(inputs))
    assert jax.tree.map(lambda g: g.shape, gradients) == jax.tree.map(lambda p: p.shape, params)


@pytest.mark.parametrize("name", [name for name in FIRST if len(ROWS[name][1].point) > 1])
def test_functions_of_shared_and_other_arrays(name):
    """Each argument alone differs, beside others that are shared; every second one in a batch of each device."""
    module, row = ROWS[name]
    function, args = getattr(importlib.import_module(module), name.split()[0].rpartition(".")[2]), row.point
    args = [jnp.asarray(a, jnp.result_type(a, jnp.float32)) for a in args]
    for place in range(len(args)):
        specs = [SPREAD if i == place else SHARED for i in range(len(args))]

        def loss(*given, place=place, specs=specs):
            call = lambda *args: total(row.call(function, *args))
            if (place + len(args)) % 2:
                return total(jax.vmap(call, [0 if spec == SPREAD else None for spec in specs])(*given))
            return call(*given[:place], given[place][0], *given[place + 1 :])

        def gradient(*given, loss=loss):
            value, gradients = jax.value_and_grad(loss, range(len(given)))(*given)
            return value[None], list(gradients)

        mapped = jax.shard_map(gradient, mesh=mesh(), in_specs=tuple(specs), out_specs=(SPREAD, specs))
        jax.eval_shape(mapped, *args[:place], spread(args[place]), *args[place + 1 :])
