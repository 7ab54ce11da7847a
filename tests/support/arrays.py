"""How tests make arrays, and how they compare them."""

import chex
import jax
import numpy as np


def normal(seed, *shape, dtype=np.float64):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def params_of(net, *inputs, seed=2, dtype=np.float64):
    """Normal params of deviation 1 without compiling ``init``, biases and scales included."""
    leaves, structure = jax.tree.flatten(jax.eval_shape(net.init, jax.random.key(0), *inputs))
    return structure.unflatten([normal(seed + i, *leaf.shape, dtype=dtype) for i, leaf in enumerate(leaves)])


def close(got, expected, tolerance):
    """Trees of the same structure and numbers, with an error of at most ``tolerance * (1 + abs(expected))``.

    What is compared with one array may be a list of its numbers.
    """
    expected = np.asarray(expected) if isinstance(got, jax.Array | np.ndarray) else expected
    chex.assert_trees_all_close(got, expected, rtol=tolerance, atol=tolerance)


def same(got, expected):
    """Trees of the same structure, shapes, dtypes and bits; keys are compared by their numbers."""
    chex.assert_trees_all_equal_shapes_and_dtypes(got, expected)
    chex.assert_trees_all_equal(jax.tree.map(_bits, got), jax.tree.map(_bits, expected))


def _bits(leaf):
    is_key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    values = np.asarray(jax.random.key_data(leaf) if is_key else leaf)
    return np.frombuffer(values.tobytes(), np.uint8)
