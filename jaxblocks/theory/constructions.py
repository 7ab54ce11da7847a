"""Where every construction ends: numbers that a theorem names, computed in float64, as the params of a net."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxblocks.activations import relu
from jaxblocks.core import Layer
from jaxblocks.layers.mlp import MLP

__all__ = ["dense_params", "one_hidden_layer"]


def dense_params(kernel, bias, param_dtype=None) -> dict[str, jax.Array]:
    """The params of a ``Dense`` from numbers; float64 where JAX has it switched on, else float32.

    >>> dense_params([[2.0]], [1.0])
    {'kernel': Array([[2.]], dtype=float32), 'bias': Array([1.], dtype=float32)}
    """
    dtype = jnp.result_type(float) if param_dtype is None else param_dtype
    number = lambda x: jnp.asarray(np.asarray(x, np.float64).astype(dtype))
    return {"kernel": number(kernel), "bias": number(bias)}


def one_hidden_layer(kernel, bias, weights, constant, *, activation=relu, param_dtype=None) -> tuple[Layer, tuple]:
    r"""The net :math:`x \mapsto \sum_i a_i\, \sigma(\langle w_i, x \rangle + b_i) + c` with one output, and its params.

    Args:
        kernel: :math:`w_i` in its columns, (inputs, units).
        bias: :math:`b`, (units,).
        weights: :math:`a`, (units,).
        constant: :math:`c`.
        activation: :math:`\sigma`.

    >>> net, params = one_hidden_layer([[1.0, -1.0]], [0.0, 0.0], [1.0, 1.0], 0.0)
    >>> net.apply(params, jnp.array([-3.0]))
    Array([3.], dtype=float32)

    Source: Diehl 2023, section 1.1, equation (2).
    """
    hidden = dense_params(kernel, bias, param_dtype)
    out = dense_params(np.asarray(weights)[:, None], np.asarray(constant, np.float64).reshape(1), param_dtype)
    return MLP(hidden["bias"].size, 1, activation=activation), (hidden, (), out)
