"""Networks with explicit weights: the numbers of a theorem, computed in float64, as the params of a net."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jaxblocks.activations import identity, relu
from jaxblocks.checks.errors import require
from jaxblocks.core.pairs import Layer
from jaxblocks.layers.mlp import MLP
from jaxblocks.theory.arrays import ArrayLike

__all__ = ["DenseParams", "one_hidden_layer", "explicit_mlp"]

DenseParams = dict[str, jax.Array]
"""The params of a ``Dense``: its ``kernel`` and ``bias``."""


def explicit_mlp(
    *maps: tuple[ArrayLike, ArrayLike],
    activation: Callable = relu,
    last_activation: Callable = identity,
    param_dtype: DTypeLike | None = None,
) -> tuple[Layer, tuple]:
    """The net of affine maps with activations between them, an `MLP`, and its params.

    Args:
        maps: kernel (inputs, units) and bias (units,) of each.
        activation, last_activation: as in `MLP`.
        param_dtype: by default float64 where JAX has it enabled, else float32.

    >>> net, params = explicit_mlp(([[2.0]], [1.0]), ([[3.0]], [0.0]))
    >>> net.apply(params, jnp.array([1.0]))
    Array([9.], dtype=float32)
    """
    dtype = jnp.dtype(jnp.result_type(float) if param_dtype is None else param_dtype)
    repair = "pass one such as jnp.float32"
    require(jnp.issubdtype(dtype, jnp.floating), "param_dtype to be a floating-point dtype", dtype.name, repair)
    # Rounded once, from float64 to the dtype of the params; device_put compiles nothing.
    number = lambda x: jax.device_put(np.asarray(x, np.float64).astype(dtype))
    params = [{"kernel": number(kernel), "bias": number(bias)} for kernel, bias in maps]
    with_activations = [part for dense in params for part in (dense, ())]
    net = MLP(*(dense["bias"].size for dense in params), activation=activation, last_activation=last_activation)
    return net, tuple(with_activations[:-1] if last_activation is identity else with_activations)


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
    maps = (kernel, bias), (np.asarray(weights)[:, None], np.reshape(constant, 1))
    return explicit_mlp(*maps, activation=activation, param_dtype=param_dtype)
