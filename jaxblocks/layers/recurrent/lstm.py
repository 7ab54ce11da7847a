"""Long short-term memory."""

from collections.abc import Callable

import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jaxblocks import initializers
from jaxblocks.checks.expectations import PositiveInt, checked
from jaxblocks.core.pairs import StatefulLayer, builder
from jaxblocks.layers.recurrent.gates import (
    check_forget_bias,
    lstm_cell,
    lstm_update,
    params_of_gates,
    preactivation,
    with_forget_bias,
)

__all__ = ["LSTMCell", "lstm_step"]


@checked
def lstm_step(
    x: Float[Array, "*batch in"],
    hidden: Float[Array, "*batch hidden"],
    cell: Float[Array, "*batch hidden"],
    kernel: Float[Array, "in 4*hidden"],
    recurrent_kernel: Float[Array, "hidden 4*hidden"],
    bias: Float[Array, "4*hidden"] | None = None,
    recurrent_bias: Float[Array, "4*hidden"] | None = None,
) -> tuple[Float[Array, "*batch hidden"], Float[Array, "*batch hidden"]]:
    r"""One step of long short-term memory: the next ``(hidden, cell)``.

    With the gates in the order $(i, f, g, o)$ along the last axis of the kernels,

    .. math::

        (i, f, o) = σ(x W + b + h U + b')_{i, f, o},
        g = tanh(x W + b + h U + b')_g,
        c_t = f ⊙ c_{t-1} + i ⊙ g,
        h_t = o ⊙ tanh c_t

    where $h$ is ``hidden`` and $c$ is ``cell``.

    >>> ones = jnp.ones((1, 4))
    >>> hidden, cell = lstm_step(
    ...     jnp.array([0.0]), jnp.array([0.0]), jnp.array([2.0]), ones, ones
    ... )
    >>> cell
    Array([1.], dtype=float32)

    Source: Hochreiter & Schmidhuber 1997, Long short-term memory, doi:10.1162/neco.1997.9.8.1735; Gers et al. 2000,
    Learning to forget, doi:10.1162/089976600300015015 (forget gate); Cevher, Mathematics of Data, "Recurrent layers"
    (which names the unit).
    """
    return lstm_update(preactivation(x, hidden, kernel, recurrent_kernel, bias, recurrent_bias), cell)


@builder
def LSTMCell(
    features: PositiveInt,
    *,
    forget_bias: float | int = 1.0,
    use_bias: bool = True,
    recurrent_bias: bool = True,
    kernel_init: Callable = initializers.lecun_normal(),
    recurrent_kernel_init: Callable = initializers.orthogonal(),
    bias_init: Callable = initializers.zeros,
    dtype: DTypeLike | None = None,
    param_dtype: DTypeLike = jnp.float32,
) -> StatefulLayer:
    r"""Long short-term memory `lstm_step`; its carry is ``{"cell", "hidden"}``, initially zero.

    Args:
        features: of the cell and the output.
        forget_bias: added at ``init`` to the forget gate's $b_f$ ($b'_f$ without ``use_bias``). With 1,
            an untrained cell keeps 0.73 of its value per step instead of 0.5.
            Without both biases nothing is added, and a value other than 0 and 1 is an error.
        use_bias, recurrent_bias: whether the cell has $b$ and $b'$; one is redundant, as in `RNNCell`.
        kernel_init, recurrent_kernel_init, bias_init, dtype, param_dtype: as in `RNNCell`.

    Shapes: ``(..., in)`` to ``(..., features)``, with a carry of two arrays ``(..., features)``.

    >>> params, _ = jax.eval_shape(LSTMCell(3).init, jax.random.key(0), jnp.zeros(2))
    >>> sum(leaf.size for leaf in jax.tree.leaves(params))
    84

    Source: Hochreiter & Schmidhuber 1997, doi:10.1162/neco.1997.9.8.1735; Jozefowicz et al. 2015, An empirical
    exploration of recurrent network architectures (the bias of the forget gate); Cevher, Mathematics of Data,
    "Recurrent layers".
    """
    draw, check_drawn = params_of_gates(
        4, features, use_bias, recurrent_bias, kernel_init, recurrent_kernel_init, bias_init, param_dtype
    )
    check_forget_bias(forget_bias, use_bias=use_bias, recurrent_bias=recurrent_bias)
    if use_bias or recurrent_bias:
        draw = with_forget_bias(draw, "bias" if use_bias else "recurrent_bias", features, forget_bias)
    return lstm_cell(lstm_step, preactivation, lambda x: (*x.shape[:-1], features), draw, check_drawn, dtype)
