"""The simple recurrent cell and the gated recurrent unit."""

from collections.abc import Callable
from functools import partial

import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jaxblocks import initializers
from jaxblocks.activations import sigmoid, tanh
from jaxblocks.backend.linear_maps import affine_map
from jaxblocks.checks.expectations import PositiveInt, checked
from jaxblocks.core.pairs import StatefulLayer, builder
from jaxblocks.layers.recurrent.gates import (
    Reset,
    cell_of_output,
    check_dtype_of_carry,
    mix,
    params_of_gates,
    preactivation,
    products_after_reset,
    update_after_reset,
)

__all__ = ["GRUCell", "RNNCell", "gru_step", "rnn_step"]


@checked
def rnn_step(
    x: Float[Array, "*batch in"],
    hidden: Float[Array, "*batch hidden"],
    kernel: Float[Array, "in hidden"],
    recurrent_kernel: Float[Array, "hidden hidden"],
    bias: Float[Array, "hidden"] | None = None,
    recurrent_bias: Float[Array, "hidden"] | None = None,
    *,
    activation: Callable = tanh,
) -> Float[Array, "*batch hidden"]:
    r"""One step of the simple recurrent network: $h_t = σ(x_t W + b + h_{t-1} U + b')$.

    $σ$ is ``activation``. Computes in the dtype of ``x``, which is that of ``hidden``.

    >>> rnn_step(
    ...     jnp.array([1.0]),
    ...     jnp.array([2.0]),
    ...     jnp.eye(1),
    ...     0.5 * jnp.eye(1),
    ...     activation=lambda z: z,
    ... )
    Array([2.], dtype=float32)

    Source: Elman 1990, Finding structure in time, doi:10.1207/s15516709cog1402_1; Cevher, Mathematics of Data,
    "Recurrent layers".
    """
    return activation(preactivation(x, hidden, kernel, recurrent_kernel, bias, recurrent_bias))


@checked
def gru_step(
    x: Float[Array, "*batch in"],
    hidden: Float[Array, "*batch hidden"],
    kernel: Float[Array, "in 3*hidden"],
    recurrent_kernel: Float[Array, "hidden 3*hidden"],
    bias: Float[Array, "3*hidden"] | None = None,
    recurrent_bias: Float[Array, "3*hidden"] | None = None,
    *,
    reset: Reset = "after",
) -> Float[Array, "*batch hidden"]:
    r"""One step of the gated recurrent unit: $h_t = (1 - z) ⊙ n + z ⊙ h_{t-1}$.

    With the gates in the order $(r, z, n)$ along the last axis of the kernels,

    .. math::

        r = σ(x W_r + b_r + h U_r + b'_r),
        z = σ(x W_z + b_z + h U_z + b'_z),
        n = tanh(x W_n + b_n + r ⊙ (h U_n + b'_n)) reset="after"
        n = tanh(x W_n + b_n + (r ⊙ h) U_n + b'_n) reset="before"

    where $h$ is ``hidden``. PyTorch and cuDNN compute ``"after"``; ``"before"`` is the first
    published form. The two differ, and params trained for one do not fit the other.

    >>> ones = jnp.ones((1, 3))
    >>> gru_step(jnp.array([0.0]), jnp.array([0.0]), ones, ones)
    Array([0.], dtype=float32)

    Source: Cho et al. 2014, Learning phrase representations using RNN encoder-decoder, arXiv:1406.1078; Cevher,
    Mathematics of Data, "Recurrent layers" (which names the unit).
    """
    check_dtype_of_carry(x, hidden)
    products, update = _GRU[reset]
    return update(products(x, hidden, kernel, recurrent_kernel, bias, recurrent_bias), hidden)


def _gru_products(x, hidden, kernel, recurrent_kernel, bias=None, recurrent_bias=None):
    """The sums of both products for r and z, and those with x and the carry for n, where r multiplies the second."""
    of_x, of_carry = affine_map(x, kernel, bias), affine_map(hidden, recurrent_kernel, recurrent_bias)
    gates = 2 * (recurrent_kernel.shape[-1] // 3)
    return of_x[..., :gates] + of_carry[..., :gates], of_x[..., gates:], of_carry[..., gates:]


def _gru_update(products, hidden):
    """The next carry from the products."""
    gates, x_n, h_n = products
    r, z = jnp.split(gates, 2, axis=-1)
    return mix(sigmoid(z), tanh(x_n + sigmoid(r) * h_n), hidden)


# The parts of a cell, by the place of the reset.
_GRU = {"after": (_gru_products, _gru_update), "before": (products_after_reset, update_after_reset)}


@builder
def RNNCell(
    features: PositiveInt,
    *,
    activation: Callable = tanh,
    use_bias: bool = True,
    recurrent_bias: bool = True,
    kernel_init: Callable = initializers.lecun_normal(),
    recurrent_kernel_init: Callable = initializers.orthogonal(),
    bias_init: Callable = initializers.zeros,
    dtype: DTypeLike | None = None,
    param_dtype: DTypeLike = jnp.float32,
) -> StatefulLayer:
    r"""The simple recurrent cell `rnn_step`; its carry $h$ is initially zero.

    Args:
        features: of the carry and the output.
        activation: $σ$.
        use_bias, recurrent_bias: whether the cell has $b$ and $b'$. One of them is redundant
            here; the default has both, as in PyTorch.
        kernel_init, recurrent_kernel_init, bias_init: as in ``jax.nn.initializers``: ``f(key, shape, dtype)``.
        dtype: of the arithmetic, the carry and the output; by default that of the input.
        param_dtype: of the params.

    Shapes: ``(..., in)`` to ``(..., features)``, with a carry ``(..., features)``.

    >>> cell = RNNCell(3)
    >>> params, carry = cell.init(jax.random.key(0), jnp.zeros((8, 2)))
    >>> jax.tree.map(jnp.shape, params)
    {'bias': (3,), 'kernel': (2, 3), 'recurrent_bias': (3,), 'recurrent_kernel': (3, 3)}

    Source: Elman 1990, Finding structure in time (doi:10.1207/s15516709cog1402_1); Cevher, Mathematics of Data,
    "Recurrent layers".
    """
    draw, check_drawn = params_of_gates(
        1, features, use_bias, recurrent_bias, kernel_init, recurrent_kernel_init, bias_init, param_dtype
    )
    step, update = partial(rnn_step, activation=activation), lambda z, _: activation(z)
    shape_of = lambda x: (*x.shape[:-1], features)
    # Not scanned by parts: the update is one activation, so that nothing is gained.
    return cell_of_output(step, preactivation, update, shape_of, draw, check_drawn, dtype, scanned=False)


@builder
def GRUCell(
    features: PositiveInt,
    *,
    reset: Reset = "after",
    use_bias: bool = True,
    recurrent_bias: bool = True,
    kernel_init: Callable = initializers.lecun_normal(),
    recurrent_kernel_init: Callable = initializers.orthogonal(),
    bias_init: Callable = initializers.zeros,
    dtype: DTypeLike | None = None,
    param_dtype: DTypeLike = jnp.float32,
) -> StatefulLayer:
    r"""The gated recurrent unit `gru_step`; its carry $h$ is initially zero.

    Args:
        features: of the carry and the output.
        reset: ``"after"`` the product with the carry (PyTorch, cuDNN) or ``"before"`` it (the first published form).
        use_bias, recurrent_bias: whether the cell has $b$ and $b'$.
        kernel_init, recurrent_kernel_init, bias_init, dtype, param_dtype: as in `RNNCell`.

    Shapes: ``(..., in)`` to ``(..., features)``, with a carry ``(..., features)``.

    >>> params, _ = GRUCell(3).init(jax.random.key(0), jnp.zeros(2))
    >>> sum(leaf.size for leaf in jax.tree.leaves(params))
    63

    Source: Cho et al. 2014, arXiv:1406.1078; Cevher, Mathematics of Data, "Recurrent layers".
    """
    draw, check_drawn = params_of_gates(
        3, features, use_bias, recurrent_bias, kernel_init, recurrent_kernel_init, bias_init, param_dtype
    )
    # With "before" one product depends on another, so that they are not affine in the carry.
    products, update = _GRU[reset]
    step, scanned = partial(gru_step, reset=reset), reset == "after"
    shape_of = lambda x: (*x.shape[:-1], features)
    return cell_of_output(step, products, update, shape_of, draw, check_drawn, dtype, scanned=scanned)
