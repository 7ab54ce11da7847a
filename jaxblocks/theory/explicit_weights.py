"""Networks with explicit weights: the numbers of a theorem, computed in float64, as the params of a net."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jaxblocks.activations import relu
from jaxblocks.core.pairs import Layer
from jaxblocks.layers.mlp import MLP
from jaxblocks.theory.arrays import ArrayLike

__all__ = ["DenseParams", "dense_params", "one_hidden_layer"]

DenseParams = dict[str, jax.Array]
"""The params of a ``Dense``: its ``kernel`` and ``bias``."""


def dense_params(kernel: ArrayLike, bias: ArrayLike, *, param_dtype: DTypeLike | None = None) -> DenseParams:
    """The params of a ``Dense`` with these weights.

    Args:
        kernel: (inputs, units).
        bias: (units,).
        param_dtype: by default float64 where JAX has it enabled, else float32.

    >>> dense_params([[2.0]], [1.0])
    {'kernel': Array([[2.]], dtype=float32), 'bias': Array([1.], dtype=float32)}
    """
    dtype = jnp.result_type(float) if param_dtype is None else param_dtype
    # Rounded once, from float64 to the dtype of the params; device_put compiles nothing.
    number = lambda x: jax.device_put(np.asarray(x, np.float64).astype(dtype))
    return {"kernel": number(kernel), "bias": number(bias)}


def one_hidden_layer(
    kernel: ArrayLike,
    bias: ArrayLike,
    weights: ArrayLike,
    constant: ArrayLike,
    *,
    activation: Callable = relu,
    param_dtype: DTypeLike | None = None,
) -> tuple[Layer, tuple[DenseParams, tuple, DenseParams]]:
    r"""The net $x ↦ ∑_i a_i σ(⟨w_i, x⟩ + b_i) + c$ with one output, and its params.

    Args:
        kernel: $w_i$ in its columns, (inputs, units).
        bias: $b$, (units,).
        weights: $a$, (units,).
        constant: $c$.
        activation: $σ$.
        param_dtype: by default float64 where JAX has it enabled, else float32.

    >>> net, params = one_hidden_layer([[1.0, -1.0]], [0.0, 0.0], [1.0, 1.0], 0.0)
    >>> net.apply(params, jnp.array([-3.0]))
    Array([3.], dtype=float32)

    Source: Cybenko 1989, Approximation by superpositions of a sigmoidal function (doi:10.1007/BF02551274); Diehl 2023,
    section 1.1, equation (2).
    """
    hidden = dense_params(kernel, bias, param_dtype=param_dtype)
    constant = np.asarray(constant, np.float64).reshape(1)
    out = dense_params(np.asarray(weights)[:, None], constant, param_dtype=param_dtype)
    return MLP(hidden["bias"].size, 1, activation=activation), (hidden, (), out)
