"""A layer over time whose carry is hidden, or is its state."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxblocks.backend.linear_maps import in_dtype
from jaxblocks.backend.precision import wide_dtype
from jaxblocks.checks.errors import describe, require
from jaxblocks.core.pairs import ArrayOrShape, Layer, StatefulLayer

__all__ = ["layer_over_time"]


def layer_over_time(
    draw: Callable, run: Callable, carry_shape: Callable, stateful: bool, dtype
) -> Layer | StatefulLayer:
    """The layer of ``run(params, carry, x)``, which returns outputs and the last carry.

    ``draw(key, features)`` makes the params, ``carry_shape(features)`` is the shape of the carry of one example.
    Carries are float32 where x has half precision, since they sum over all steps.
    """

    def first_carry(x):
        kind = wide_dtype(dtype or x.dtype)
        return jax.ShapeDtypeStruct((*x.shape[:-2], *carry_shape(x.shape[-1])), kind)

    def zeros(x):
        like = first_carry(x)
        return jnp.zeros(like.shape, like.dtype)

    def init(key, x: Float[ArrayOrShape, "*batch time in"]):
        params = draw(key, x.shape[-1])
        return (params, zeros(x)) if stateful else params

    def carried(params, carry, x: Float[Array, "*batch time features"]):
        expected = f"its carry, {describe(first_carry(x))}"
        repair = "pass the carry that init made for inputs like x, or that the last call returned"
        require(describe(carry) == describe(first_carry(x)), expected, carry, repair)
        return run(params, carry, in_dtype(x, dtype))

    def apply(params, x: Float[Array, "*batch time features"]):
        return run(params, zeros(x), in_dtype(x, dtype))[0]

    return StatefulLayer(init, carried) if stateful else Layer(init, apply)
