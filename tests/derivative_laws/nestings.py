"""The column of nestings: derivatives outside and inside of every transformation are those of a plain call.

Compilation takes most of the time, so that the transformations are nested in each other, in few programs, with the
derivative outside of all and inside of a loop.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

AXIS, DEVICES = "examples", "devices"


def gradient_outside(f: Callable, z) -> jax.Array:
    """The gradient at z of the scalar-valued f, from outside of all transformations."""
    mesh = jax.make_mesh((2,), (DEVICES,), devices=jax.devices()[:2], axis_types=(jax.sharding.AxisType.Auto,))
    split = lambda g: jax.shard_map(g, mesh=mesh, in_specs=PartitionSpec(DEVICES), out_specs=PartitionSpec(DEVICES))
    pair = jnp.stack([z, z])
    average = lambda pair: split(jax.vmap(f, axis_name=AXIS))(pair).mean(0)
    nested = _with_own_rule(jax.jit(jax.checkpoint(_scanned(_branching(average, z[0])))))
    return jax.grad(nested)(pair).sum(0)


def gradient_in_loop(f: Callable) -> Callable:
    """The gradient of f, in the last of two steps of a loop without reverse mode."""

    def call(z):
        body = lambda carry: (carry[0] + 1, jax.grad(f)(z))
        return jax.lax.while_loop(lambda carry: carry[0] < 2, body, (0, jnp.zeros_like(z)))[1]

    return call


def _scanned(f):
    """f in the second of two steps of a loop."""

    def call(z):
        return jax.lax.scan(lambda carry, x: (carry, f(x)), None, jnp.stack([z, z]))[1][1]

    return call


def _branching(f, like):
    """f in a branch that is chosen by a value."""

    def call(z):
        return jax.lax.cond(jnp.sum(z) > -1e30, f, lambda z: 0 * z.sum() + jnp.zeros_like(like), z)

    return call


def _with_own_rule(f):
    """f with a rule of reverse mode that calls ``jax.vjp``."""
    g = jax.custom_vjp(f)
    g.defvjp(lambda z: jax.vjp(f, z), lambda pull, cotangent: pull(cotangent))
    return g
