"""Calls that are one program each: JAX compiles each operation of an eager call on its own, which takes longer."""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxblocks import StatefulLayer


def compiled(function: Callable) -> Callable:
    """``function`` under ``jit``, where all arguments that are not arrays are static, with results in NumPy.

    It cannot check values, so the tests of these checks call ``function`` itself: ``compiled(function).__wrapped__``.
    """

    @functools.wraps(function)
    def call(*args, **kwargs):
        leaves, tree = jax.tree.flatten((args, kwargs))
        if any(isinstance(x, Tracer) for x in leaves):
            return function(*args, **kwargs)
        arrays = [x if isinstance(x, (jax.Array, np.ndarray)) else None for x in leaves]
        static = tuple((type(x), x) if a is None else None for x, a in zip(leaves, arrays, strict=True))
        return jax.tree.map(_as_numpy, _program(function, tree, static)(arrays))

    return call


def _as_numpy(x):
    is_key = jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
    return x if is_key or isinstance(x, Tracer) else np.asarray(x)


@functools.lru_cache(maxsize=64)
def _program(function, tree, static):
    def run(arrays):
        leaves = [a if s is None else s[1] for a, s in zip(arrays, static, strict=True)]
        args, kwargs = jax.tree.unflatten(tree, leaves)
        return function(*args, **kwargs)

    return jax.jit(run)


def drawn(layer, *inputs, seed: int = 0):
    """Params that NumPy draws for ``layer``, normal of deviation 1/2, and the state of ``init`` if it has one.

    The random numbers of ``init`` take longer to compile than most layers, and its biases are zero.
    """
    rng, key = np.random.default_rng(seed), jax.random.key(0)
    has_state = isinstance(layer, StatefulLayer)
    shapes = jax.eval_shape(layer.init, key, *inputs)
    params = jax.tree.map(lambda p: (rng.normal(size=p.shape) / 2).astype(p.dtype), shapes[0] if has_state else shapes)
    if not has_state:
        return params
    state = jax.jit(lambda *inputs: layer.init(key, *inputs)[1])(*inputs)  # XLA removes the draws
    return params, jax.tree.map(np.asarray, state)


def fixed_init(key, shape, dtype):
    """An initializer without random numbers, for nets whose ``init`` must run, as in `init_train_state`."""
    return jnp.asarray(np.cos(np.arange(1, 1 + math.prod(shape))).reshape(shape), dtype)
