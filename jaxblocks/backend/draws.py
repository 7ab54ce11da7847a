"""Draws of kernels with a window, as matrices, whose programs compile in half the time, of rotations, and of orders."""

import inspect
import math
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key

from jaxblocks.backend.precision import wide_dtype
from jaxblocks.backend.symbolic_sizes import Size

__all__ = ["initializer_of", "random_order"]

_BY_FAN = {"he_normal", "he_uniform", "lecun_normal", "lecun_uniform", "variance_scaling"}
_WITHOUT_FAN = {"normal", "truncated_normal", "uniform"}
_BY_ROTATION = {"delta_orthogonal", "orthogonal"}


def initializer_of(make: Callable, args: tuple, kwargs: Mapping) -> Callable:
    """``make(*args, **kwargs)``, of JAX, which draws a kernel of three axes or more as a matrix with the same fan.

    The numbers are the same: each depends on its place in the flat kernel. Its program compiles in half the time, since
    it computes no positions along each axis. Orthogonal ones are drawn in float32 for half precision, which the
    decomposition does not take. Initializers with chosen axes, or a mean of both fans, are those of JAX.

    >>> make = jax.nn.initializers.he_normal
    >>> ours, theirs = initializer_of(make, (), {}), make()
    >>> shape = (3, 3, 4, 5)
    >>> bool((ours(jax.random.key(0), shape) == theirs(jax.random.key(0), shape)).all())
    True
    """
    draw, given = make(*args, **kwargs), inspect.signature(make).bind(*args, **kwargs).arguments
    mode = given.get("mode", "fan_in")
    if make.__name__ in _BY_ROTATION:
        return _drawn_wide(draw, given.get("dtype"))
    has_axes = given.keys() & {"in_axis", "out_axis", "batch_axis"}
    if make.__name__ not in _BY_FAN | _WITHOUT_FAN or mode not in ("fan_in", "fan_out") or has_axes:
        return draw

    def drawn(key, shape, *options, **named):
        has_window = np.ndim(shape) == 1 and len(shape) >= 3
        if not has_window or len(options) > 1 or named.get("out_sharding") is not None:  # that of the kernel
            return draw(key, shape, *options, **named)
        *window, n, m = shape
        positions = math.prod(window)
        matrix = (positions * n, m) if mode == "fan_in" else (n, positions * m)
        return draw(key, matrix, *options, **named).reshape(shape)

    return drawn


def _drawn_wide(draw: Callable, default) -> Callable:
    """The initializer in float32 for half precision, and then rounded; ``default`` is its dtype where none is given."""

    def drawn(key, shape, dtype=default, **named):
        dtype = jnp.result_type(float) if dtype is None else dtype
        return draw(key, shape, wide_dtype(dtype), **named).astype(dtype)

    return drawn


def random_order(key: Key[Array, ""], size: Size) -> Int[Array, " size"]:
    """``jax.random.permutation(key, size)``, also for the symbolic sizes of `jax.export`.

    The numbers are the same up to a size of 1,600; a larger order is drawn once, where that function draws it twice.
    Equal bits, of which larger ones may have some, stay in order.

    >>> print(random_order(jax.random.key(0), 7))
    [0 1 5 6 4 3 2]
    >>> print(jax.random.permutation(jax.random.key(0), 7))
    [0 1 5 6 4 3 2]
    """
    return jnp.argsort(jax.random.bits(jax.random.split(key)[1], (size,), jnp.uint32))
