r"""Recurrent cells whose products with the kernels are convolutions: long short-term memory and the gated unit.

The carry has positions, as images have. Everything else is that of the dense cells in ``recurrent``.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jaxblocks import initializers
from jaxblocks.backend.sliding_windows import Padding, PerAxis, check_one_axis, window_sizes
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import PositiveInt, checked
from jaxblocks.core.lifting import set_spatial_axes
from jaxblocks.core.pairs import StatefulLayer, builder
from jaxblocks.layers.conv import PaddingMode, conv
from jaxblocks.layers.recurrent.gates import (
    cell_of_output,
    check_dtype_of_carry,
    check_forget_bias,
    lstm_cell,
    lstm_update,
    params_of_gates,
    products_after_reset,
    update_after_reset,
    with_forget_bias,
)

__all__ = ["ConvGRUCell", "ConvLSTMCell", "conv_gru_step", "conv_lstm_step"]


@checked
def conv_lstm_step(
    x: Float[Array, "... in"],
    hidden: Float[Array, "... hidden"],
    cell: Float[Array, "... hidden"],
    kernel: Float[Array, "*kernel_size in 4*hidden"],
    recurrent_kernel: Float[Array, "*recurrent_kernel_size hidden 4*hidden"],
    bias: Float[Array, "4*hidden"] | None = None,
    *,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    padding: Padding = "same",
    padding_mode: PaddingMode | Sequence[PaddingMode] = "zeros",
) -> tuple[Float[Array, "... hidden"], Float[Array, "... hidden"]]:
    r"""One step of convolutional long short-term memory: the next ``(hidden, cell)``.

    It is `lstm_step` with the convolutions $x ⋆ W$ and $h ⋆ U$ in place of the products x W and h U, and gates in the
    same order i, f, g, o.

    Args:
        x: ``(..., *spatial, in)``, with one to three spatial axes.
        hidden, cell: ``(..., *positions, hidden)``, where the positions are those of $x ⋆ W$.
        stride, dilation, padding, padding_mode: of $x ⋆ W$, as in `conv`. $h ⋆ U$ keeps its size, with the same
            ``padding_mode``.

    >>> x, carry = jnp.ones((4, 4, 1)), jnp.zeros((4, 4, 2))
    >>> kernels = jnp.zeros((3, 3, 1, 8)), jnp.zeros((3, 3, 2, 8))
    >>> hidden, cell = jax.jit(conv_lstm_step)(x, carry, carry + 2, *kernels)
    >>> hidden.shape, cell[0, 0]
    ((4, 4, 2), Array([1., 1.], dtype=float32))

    Source: Shi et al. 2015, Convolutional LSTM network: a machine learning approach for precipitation nowcasting,
    arXiv:1506.04214.
    """
    require(hidden.shape == cell.shape, "hidden and cell of one shape", (hidden.shape, cell.shape), "make both by init")
    of_input: dict[str, Any] = dict(stride=stride, dilation=dilation, padding=padding, padding_mode=padding_mode)
    return lstm_update(_products(x, hidden, kernel, recurrent_kernel, bias, **of_input), cell)


@checked
def conv_gru_step(
    x: Float[Array, "... in"],
    hidden: Float[Array, "... hidden"],
    kernel: Float[Array, "*kernel_size in 3*hidden"],
    recurrent_kernel: Float[Array, "*recurrent_kernel_size hidden 3*hidden"],
    bias: Float[Array, "3*hidden"] | None = None,
    *,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    padding: Padding = "same",
    padding_mode: PaddingMode | Sequence[PaddingMode] = "zeros",
) -> Float[Array, "... hidden"]:
    r"""One step of the convolutional gated recurrent unit: $h_t = (1 - z) ⊙ n + z ⊙ h_{t-1}$.

    It is `gru_step` with ``reset="before"``, as published, and convolutions in place of the products with the kernels:

    .. math::

        (r, z) = σ(x ⋆ W + h ⋆ U + b)_{r, z},
        n = tanh(x ⋆ W_n + (r ⊙ h) ⋆ U_n + b_n)

    Args:
        x, hidden, stride, dilation, padding, padding_mode: as in `conv_lstm_step`.

    >>> kernels = jnp.zeros((3, 3, 1, 6)), jnp.zeros((3, 3, 2, 6))
    >>> hidden = jax.jit(conv_gru_step)(jnp.ones((4, 4, 1)), jnp.ones((4, 4, 2)), *kernels)
    >>> hidden[0, 0]
    Array([0.5, 0.5], dtype=float32)

    Source: Ballas et al. 2016, Delving deeper into convolutional networks for learning video representations,
    arXiv:1511.06432, which has z and 1 - z exchanged.
    """
    of_input: dict[str, Any] = dict(stride=stride, dilation=dilation, padding=padding, padding_mode=padding_mode)
    return update_after_reset(_products_after_reset(x, hidden, kernel, recurrent_kernel, bias, **of_input), hidden)


def _products_after_reset(x, hidden, kernel, recurrent_kernel, bias=None, *, padding_mode, **options):
    """The preactivations of z and n."""
    check_dtype_of_carry(x, hidden)
    product, of_carry = partial(conv, padding_mode=padding_mode, **options), _keeping_size(padding_mode)
    return products_after_reset(x, hidden, kernel, recurrent_kernel, bias, product=product, of_carry=of_carry)


def _products(x, hidden, kernel, recurrent_kernel, bias=None, *, padding_mode, **options):
    """The sum of both convolutions."""
    check_dtype_of_carry(x, hidden)
    of_x = conv(x, kernel, bias, padding_mode=padding_mode, **options)
    of_carry = _keeping_size(padding_mode)(hidden, recurrent_kernel)
    repair = "make the carry by init for inputs like x"
    require(of_x.shape == of_carry.shape, f"a carry with the positions {of_x.shape[:-1]} of x ⋆ W", hidden, repair)
    return of_x + of_carry


def _keeping_size(padding_mode):
    return partial(conv, padding="same", padding_mode=padding_mode)


@builder
def ConvLSTMCell(
    features: PositiveInt,
    kernel_size: PerAxis,
    *,
    recurrent_kernel_size: PerAxis | None = None,
    forget_bias: float | int = 1.0,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    padding: Padding = "same",
    padding_mode: PaddingMode | Sequence[PaddingMode] = "zeros",
    use_bias: bool = True,
    kernel_init: Callable = initializers.lecun_normal(),
    recurrent_kernel_init: Callable = initializers.orthogonal(),
    bias_init: Callable = initializers.zeros,
    dtype: DTypeLike | None = None,
    param_dtype: DTypeLike = jnp.float32,
) -> StatefulLayer:
    r"""Convolutional long short-term memory `conv_lstm_step`; its carry is ``{"cell", "hidden"}``, initially zero.

    Args:
        features: of the cell and the output.
        kernel_size: of the kernel of the input, an integer for each of up to three spatial axes.
        recurrent_kernel_size: of the kernel of the carry, by default ``kernel_size``.
        forget_bias: added at ``init`` to the bias of the forget gate.
        stride, dilation, padding, padding_mode: as in `conv_lstm_step`.
        use_bias: whether the cell has a bias; without one, ``forget_bias`` other than 0 and 1 is an error.
        kernel_init, recurrent_kernel_init, bias_init, dtype, param_dtype: as in `RNNCell`.

    Shapes: ``(..., *spatial, in)`` to ``(..., *positions, features)``, with a carry of two such arrays.

    >>> net = Recurrent(ConvLSTMCell(8, (3, 3)))
    >>> video = jnp.zeros((2, 5, 16, 16, 3))
    >>> params = net.init(jax.random.key(0), video)
    >>> jax.tree.map(jnp.shape, params)
    {'bias': (32,), 'kernel': (3, 3, 3, 32), 'recurrent_kernel': (3, 3, 8, 32)}
    >>> jax.jit(net.apply)(params, video).shape
    (2, 5, 16, 16, 8)

    Source: Shi et al. 2015, arXiv:1506.04214; for the bias of the forget gate as in `LSTMCell`.
    """
    check_forget_bias(forget_bias, use_bias=use_bias)
    options: dict[str, Any] = dict(stride=stride, dilation=dilation, padding=padding, padding_mode=padding_mode)
    inits = kernel_init, recurrent_kernel_init, bias_init, param_dtype
    draw, check_drawn, shape_of, axes = _params_and_shape(
        4, features, kernel_size, recurrent_kernel_size, options, use_bias, *inits
    )
    draw = with_forget_bias(draw, "bias", features, forget_bias) if use_bias else draw
    step, products = partial(conv_lstm_step, **options), partial(_products, **options)
    cell = lstm_cell(step, products, shape_of, draw, check_drawn, dtype)
    set_spatial_axes(cell.apply, axes)
    return cell


@builder
def ConvGRUCell(
    features: PositiveInt,
    kernel_size: PerAxis,
    *,
    recurrent_kernel_size: PerAxis | None = None,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    padding: Padding = "same",
    padding_mode: PaddingMode | Sequence[PaddingMode] = "zeros",
    use_bias: bool = True,
    kernel_init: Callable = initializers.lecun_normal(),
    recurrent_kernel_init: Callable = initializers.orthogonal(),
    bias_init: Callable = initializers.zeros,
    dtype: DTypeLike | None = None,
    param_dtype: DTypeLike = jnp.float32,
) -> StatefulLayer:
    r"""The convolutional gated recurrent unit `conv_gru_step`; its carry $h$ is initially zero.

    Args:
        features: of the carry and the output.
        kernel_size, recurrent_kernel_size: as in `ConvLSTMCell`.
        stride, dilation, padding, padding_mode: as in `conv_lstm_step`.
        use_bias: whether the cell has a bias.
        kernel_init, recurrent_kernel_init, bias_init, dtype, param_dtype: as in `RNNCell`.

    Shapes: ``(..., *spatial, in)`` to ``(..., *positions, features)``, with a carry of the same shape.

    >>> net = Recurrent(ConvGRUCell(8, (3, 3), stride=2))
    >>> video = jnp.zeros((2, 5, 16, 16, 3))
    >>> params = net.init(jax.random.key(0), video)
    >>> jax.jit(net.apply)(params, video).shape
    (2, 5, 8, 8, 8)

    Source: Ballas et al. 2016, arXiv:1511.06432.
    """
    options: dict[str, Any] = dict(stride=stride, dilation=dilation, padding=padding, padding_mode=padding_mode)
    inits = kernel_init, recurrent_kernel_init, bias_init, param_dtype
    draw, check_drawn, shape_of, axes = _params_and_shape(
        3, features, kernel_size, recurrent_kernel_size, options, use_bias, *inits
    )
    step, products = partial(conv_gru_step, **options), partial(_products_after_reset, **options)
    cell = cell_of_output(step, products, update_after_reset, shape_of, draw, check_drawn, dtype, scanned=False)
    set_spatial_axes(cell.apply, axes)
    return cell


def _params_and_shape(gates, features, kernel_size, recurrent_kernel_size, options, use_bias, *inits):
    """What `params_of_gates` returns, the shape of the carry for an input, and the number of spatial axes."""
    sizes = window_sizes("kernel_size", kernel_size)
    of_carry = sizes
    if recurrent_kernel_size is not None:
        of_carry = window_sizes("recurrent_kernel_size", recurrent_kernel_size)
        expected = f"one integer in recurrent_kernel_size for each of the {len(sizes)} axes of kernel_size"
        require(len(of_carry) == len(sizes), expected, repr(recurrent_kernel_size), "pass as many as in kernel_size")
    draw, check_drawn = params_of_gates(gates, features, use_bias, False, *inits, windows=(sizes, of_carry))

    def drawn(key, x):
        check_one_axis("kernel_size", kernel_size, x)
        return draw(key, x)

    def shape_of(x):
        kernel = jax.ShapeDtypeStruct((*sizes, x.shape[-1], features), x.dtype)
        return jax.eval_shape(partial(conv, **options), jax.ShapeDtypeStruct(x.shape, x.dtype), kernel).shape

    return drawn, check_drawn, shape_of, len(sizes)
