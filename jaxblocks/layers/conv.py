r"""Convolution over one, two or three axes, its adjoint, and the corresponding layers.

A convolution applies the same small affine map at every position. So it has few parameters, and a
shift of the input shifts the output (equivariance).

Axis letters: ``...`` batch, ``*spatial`` positions (one to three axes), ``*kernel_size`` the
kernel's, ``in`` and ``out`` channels. The number of spatial axes is that of the kernel.
"""

import functools
import math
from collections.abc import Callable, Sequence
from itertools import starmap
from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Inexact

from jaxblocks import initializers
from jaxblocks.backend.linear_maps import along_batch, in_dtype
from jaxblocks.backend.platforms import platform
from jaxblocks.backend.precision import widen
from jaxblocks.backend.sliding_windows import (
    Padding,
    PerAxis,
    check_channels,
    check_fit,
    check_groups,
    check_one_axis,
    check_spatial,
    name_with_zeros,
    per_axis,
    products_on_axis,
    slices_of_entries,
    slide,
    warn_channels_first,
    window_sizes,
)
from jaxblocks.backend.symbolic_sizes import at_most, check_integer
from jaxblocks.checks.errors import describe, require
from jaxblocks.checks.expectations import InexactDType, NonNegativeInt, PositiveInt, check_params, checked
from jaxblocks.core.pairs import ArrayOrShape, Layer, builder
from jaxblocks.layers.conv_by_products import convolve, correlate, pays

__all__ = ["Conv", "ConvTranspose", "DepthwiseConv", "conv", "conv_transpose"]

PaddingMode: TypeAlias = Literal["zeros", "circular", "reflect", "replicate"]
_MODES = {"circular": "wrap", "reflect": "reflect", "replicate": "edge"}  # as `jnp.pad` names them


@checked
def conv(
    x: Inexact[Array, "... channels"],
    kernel: Inexact[Array, "*kernel_size in_of_group out"],
    bias: Inexact[Array, "out"] | None = None,
    *,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    groups: PositiveInt = 1,
    padding: Padding = "valid",
    padding_mode: PaddingMode | Sequence[PaddingMode] = "zeros",
) -> Inexact[Array, "... out"]:
    r"""The convolution $y_{io} = b_o + ∑_{j,c} x_{si + dj, c} w_{jco}$, with positions from 0.

    As in all of deep learning, the kernel $w$ is not flipped: mathematics calls this a
    cross-correlation, and ``kernel[::-1]`` gives its convolution. Signal and kernel are not interchangeable.
    Each axis has $⌊(n + p + q - d(k-1) - 1)/s⌋ + 1$ positions in the output.

    Args:
        x: ``(..., *spatial, channels)`` with zero or more batch axes.
        kernel: ``(*kernel_size, channels / groups, out)``, with one to three axes of the kernel size.
        bias: ``(out,)``.
        stride: $s$, the distance between adjacent positions of the kernel; one integer, or one per axis.
        dilation: $d$, the distance between adjacent entries of the kernel.
        groups: number of groups of consecutive channels; each group is mapped to its own
            part of ``out``. With one group per channel the convolution is depthwise.
        padding: ``"valid"`` (none), ``"same"`` ($⌈n/s⌉$ positions), ``"causal"``
            (before the input only: no output depends on later positions), an integer for both ends, or a
            sequence with a name, an integer or a pair ``(before, after)`` for each spatial axis.
        padding_mode: the padded values: ``"zeros"``, ``"circular"`` (from the other end), ``"reflect"``
            (mirrored, without repeating the edge) or ``"replicate"`` (the edge); one for all axes or one per
            axis. Padding larger than the input is periodic.

    Computes in the dtype of ``x``. On CPU, groups are computed one by one, since XLA's grouped
    convolution is slow on CPU, especially its gradient.

    Raises:
        ValueError: where channels, groups or rank do not fit, or the kernel does not fit into the input.
        TypeError: for integer ``x``.

    >>> conv(jnp.arange(1.0, 6.0)[:, None], jnp.array([1.0, 0.0, -1.0])[:, None, None])[
    ...     :, 0
    ... ]
    Array([-2., -2., -2.], dtype=float32)
    >>> conv(jnp.zeros((8, 32, 32, 3)), jnp.zeros((3, 3, 3, 16)), stride=2, padding=1).shape
    (8, 16, 16, 16)

    Source: Goodfellow, Bengio & Courville 2016, Deep learning, sections 9.1 and 9.5; Diehl 2023, section 1.1, which
    calls convolution translation-invariant: it is equivariant, and a global pool after it makes the net invariant;
    Cevher, Mathematics of Data, "Convolutional layers", whose sizes H - k + 1 are those of ``"valid"`` with stride 1 (a
    stride subsamples, the border that is cut off does not).
    """
    *kernel_size, in_of_group, out = kernel.shape
    check_channels(x, kernel, in_of_group * groups, out, groups)
    windows = slide(x.shape[-len(kernel_size) - 1 : -1], kernel_size, stride, dilation, padding)
    check_fit(windows, x)
    x, pads = _pad(x, windows.pads, padding_mode)
    # `spread` 1: no zeros between the entries of x; conv_transpose uses its stride there.
    spread = (1,) * len(kernel_size)
    return _correlate(x, kernel.astype(x.dtype), bias, windows.strides, pads, spread, windows.dilations, groups)


@checked
def conv_transpose(
    x: Inexact[Array, "... channels"],
    kernel: Inexact[Array, "*kernel_size out_of_group in"],
    bias: Inexact[Array, "out"] | None = None,
    *,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    groups: PositiveInt = 1,
    padding: Padding = "valid",
    output_padding: NonNegativeInt | Sequence[NonNegativeInt] = 0,
) -> Inexact[Array, "... out"]:
    r"""The adjoint of `conv` with the same kernel and options: $y_{si + dj, c} = b_c + ∑ x_{io} w_{jco}$.

    Each entry of ``x`` adds a scaled copy of the kernel to the output. This is the transposed matrix, not the
    inverse: $⟨A u, x⟩ = ⟨u, B x⟩$ for ``conv``, A, and ``conv_transpose``, B. With stride
    1 and no padding it is the full convolution (kernel flipped), of length $H + k - 1$; the lecture prints the
    formula of the convolution instead, which gives a shorter output. An axis of $H$ positions has output size

    .. math::

        (H-1)s - p - q + d(k-1) + 1 + op

    Args:
        x: ``(..., *spatial, channels)``.
        kernel: the kernel of the convolution whose adjoint this is, ``(*kernel_size, out / groups, channels)``.
        bias: ``(out,)``, added to the result.
        stride, dilation, groups, padding: those of the convolution. ``padding="same"`` gives $H s$ positions.
        output_padding: several input sizes of a strided convolution give the same output size: ``op``, from 0 to
            ``stride - 1``, is added to the smallest of them. A larger one, below ``dilation``, adds positions that
            no entry of ``x`` reaches. One integer, or one per axis.

    Raises:
        ValueError: where channels, groups or rank do not fit, or ``output_padding`` is below neither the stride nor
            the dilation.
        TypeError: for integer ``x``.

    >>> x = w = jnp.array([1.0, 2.0, 3.0])
    >>> conv_transpose(x[:, None], w[:, None, None])[:, 0]
    Array([ 1.,  4., 10., 12.,  9.], dtype=float32)

    Source: Dumoulin & Visin 2016, A guide to convolution arithmetic, arXiv:1603.07285; Cevher, Mathematics of Data,
    "Transposed-convolutional layers" (corrected: $y_i = ∑_j x_{i-j+1} w_j$ for one axis).
    """
    *kernel_size, out_of_group, channels = kernel.shape
    axes = len(kernel_size)
    check_channels(x, kernel, channels, out_of_group * groups, groups)
    sizes = x.shape[-axes - 1 : -1]
    strides, more = per_axis("stride", stride, axes), per_axis("output_padding", output_padding, axes)
    # The pads of padding="same" are those of a convolution of the output, whose size is h * s.
    full = [h * s for h, s in zip(sizes, strides, strict=True)]
    spans, _, dilations, pads = slide(full, kernel_size, strides, dilation, padding)
    names = per_axis("padding", padding, axes)
    cut = []
    # The padding of the convolution cuts the full adjoint: span - 1 zeros around x, minus the pads.
    for h, s, d, span, (low, high), extra, name in zip(
        sizes, strides, dilations, spans, pads, more, names, strict=True
    ):
        expected = f"output_padding below {max(s, d)}, the larger of stride and dilation, and 0 with padding='same'"
        repair = "leave output_padding at 0, or increase the input"
        require(extra < (1 if name == "same" else max(s, d)), expected, output_padding, repair)
        size = h * s if name == "same" else (h - 1) * s + span - low - high + extra
        require(size >= 1, "at least one position in its output", f"{size} for {describe(x)}", "reduce the padding")
        # Zeros before and after x with s - 1 zeros between its entries, for an output of `size` positions.
        cut.append((span - 1 - low, size - (h - 1) * s - 1 + low))
    # The adjoint of a correlation correlates with the reversed kernel, with input and output channels swapped.
    flipped = jnp.flip(_swap(kernel.astype(x.dtype), groups), range(axes))
    y = _correlate(x, flipped, None, (1,) * axes, tuple(cut), strides, dilations, groups)
    repair = f"pass jnp.zeros({y.shape[-1]}), or leave it out"
    require(bias is None or bias.shape == y.shape[-1:], f"bias of shape {y.shape[-1:]}", bias, repair)
    return _plus_bias(y, bias)


@builder
def Conv(
    features: PositiveInt,
    kernel_size: PerAxis,
    *,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    groups: PositiveInt = 1,
    padding: Padding = "valid",
    padding_mode: PaddingMode | Sequence[PaddingMode] = "zeros",
    use_bias: bool = True,
    kernel_init: Callable = initializers.lecun_normal(),
    bias_init: Callable = initializers.zeros,
    dtype: InexactDType | None = None,
    param_dtype: InexactDType = jnp.float32,
) -> Layer:
    r"""The convolution $y = x ⋆ w + b$, params ``{"kernel": (*kernel_size, in/groups, out), "bias"}``.

    Its activation is the next layer: ``Serial(Conv(8, (3, 3)), relu)``.

    Args:
        features: the channels of the output.
        kernel_size: a tuple with an integer for each of up to three spatial axes, ``(3, 3)`` for images; an integer
            stands for one axis, and is rejected for inputs of more than three axes, such as a batch of images.
        stride, dilation, groups, padding, padding_mode: as in `conv`.
        use_bias: ``False`` for a linear map.
        kernel_init, bias_init: as in ``jax.nn.initializers``: ``f(key, shape, dtype)``.
        dtype: of the arithmetic and the output; by default that of the input.
        param_dtype: of the params; ``jnp.complex64`` for complex ones, which take complex inputs.

    Shapes: ``(..., *spatial, in)`` to ``(..., *positions, features)``.

    Raises:
        ValueError, TypeError: as `conv` does, and at ``init`` where ``groups`` does not divide the channels.

    >>> layer = Conv(8, (3, 3))
    >>> params = layer.init(jax.random.key(0), jnp.zeros((28, 28, 3)))
    >>> jax.jit(layer.apply)(params, jnp.zeros((28, 28, 3))).shape
    (26, 26, 8)
    >>> count_params(params)  # a dense layer between the same shapes has 12,725,024
    224

    Source: Goodfellow, Bengio & Courville 2016, Deep learning, sections 9.1 and 9.5; Cevher, Mathematics of Data,
    "Convolutional layers"; Diehl 2023, section 1.1.
    """
    run = functools.partial(
        conv, stride=stride, dilation=dilation, groups=groups, padding=padding, padding_mode=padding_mode
    )
    channels = functools.partial(_channels, groups, features)
    return _layer_with_kernel(kernel_size, padding, channels, run, use_bias, kernel_init, bias_init, dtype, param_dtype)


@builder
def DepthwiseConv(
    kernel_size: PerAxis,
    *,
    multiplier: PositiveInt = 1,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    padding: Padding = "valid",
    padding_mode: PaddingMode | Sequence[PaddingMode] = "zeros",
    use_bias: bool = True,
    kernel_init: Callable = initializers.lecun_normal(),
    bias_init: Callable = initializers.zeros,
    dtype: InexactDType | None = None,
    param_dtype: InexactDType = jnp.float32,
) -> Layer:
    r"""A separate convolution of each channel, params ``{"kernel": (*kernel_size, 1, in * multiplier), "bias"}``.

    A ``Conv`` with one group per channel: output channel ``c * multiplier + j`` is the ``j``-th filter of input channel
    ``c``. ``Serial(DepthwiseConv((3, 3)), Conv(out, (1, 1)))`` is a separable convolution.

    Args:
        kernel_size: as in `Conv`.
        multiplier: filters for each channel.
        stride, dilation, padding, padding_mode, use_bias, kernel_init, bias_init, dtype, param_dtype: as in `Conv`.

    Shapes: ``(..., *spatial, in)`` to ``(..., *positions, in * multiplier)``.

    >>> layer = DepthwiseConv((3, 3), padding="same")
    >>> params = layer.init(jax.random.key(0), jnp.zeros((28, 28, 16)))
    >>> params["kernel"].shape, jax.jit(layer.apply)(params, jnp.zeros((28, 28, 16))).shape
    ((3, 3, 1, 16), (28, 28, 16))

    Source: Chollet 2017, Xception, arXiv:1610.02357.
    """
    by_depth = functools.partial(conv, stride=stride, dilation=dilation, padding=padding, padding_mode=padding_mode)
    run = lambda x, kernel, bias: by_depth(x, kernel, bias, groups=kernel.shape[-1] // multiplier)
    channels = lambda of_x: (1, of_x * multiplier)
    return _layer_with_kernel(kernel_size, padding, channels, run, use_bias, kernel_init, bias_init, dtype, param_dtype)


@builder
def ConvTranspose(
    features: PositiveInt,
    kernel_size: PerAxis,
    *,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    groups: PositiveInt = 1,
    padding: Padding = "valid",
    output_padding: NonNegativeInt | Sequence[NonNegativeInt] = 0,
    use_bias: bool = True,
    kernel_init: Callable = initializers.lecun_normal(),
    bias_init: Callable = initializers.zeros,
    dtype: InexactDType | None = None,
    param_dtype: InexactDType = jnp.float32,
) -> Layer:
    r"""The adjoint of a convolution as a layer, params ``{"kernel": (*kernel_size, features/groups, in), "bias"}``.

    The layer is the adjoint of a ``Conv`` from ``features`` to ``in`` channels and has the same kernel, so that an
    encoder can share its kernel with its decoder (also called deconvolution). ``kernel_init`` is called as for a
    ``Conv`` from ``in`` to ``features``, so that the fan-in is correct.

    Args:
        features: the channels of the output.
        kernel_size: as in `Conv`.
        stride, dilation, groups, padding, output_padding: as in `conv_transpose`.
        use_bias, kernel_init, bias_init, dtype, param_dtype: as in `Conv`.

    Shapes: ``(..., *spatial, in)`` to ``(..., *larger, features)``.

    >>> layer = ConvTranspose(8, (4, 4), stride=2, padding=1)
    >>> params = layer.init(jax.random.key(0), jnp.zeros((16, 16, 3)))
    >>> jax.jit(layer.apply)(params, jnp.zeros((16, 16, 3))).shape
    (32, 32, 8)

    Source: Dumoulin & Visin 2016, A guide to convolution arithmetic for deep learning (arXiv:1603.07285); Cevher,
    Mathematics of Data, "Transposed-convolutional layers".
    """

    def draw(key, shape, dtype):
        # Drawn as for the convolution whose adjoint this is, so that fan_in counts the right channels.
        return _swap(kernel_init(key, shape, dtype), groups)

    run = functools.partial(
        conv_transpose, stride=stride, dilation=dilation, groups=groups, padding=padding, output_padding=output_padding
    )
    channels = functools.partial(_channels, groups, features)
    return _layer_with_kernel(kernel_size, padding, channels, run, use_bias, draw, bias_init, dtype, param_dtype)


def _channels(groups, features, of_x):
    """Those of the kernel, in and out, from those of the input."""
    check_groups(groups, of_x, features)
    return of_x // groups, features


def _layer_with_kernel(size, padding, channels, run, use_bias, kernel_init, bias_init, dtype, param_dtype) -> Layer:
    """A layer from a function of the kernel; ``channels`` of the input are those of the kernel, in and out."""
    kernel_size = window_sizes("kernel_size", size)
    per_axis("padding", padding, len(kernel_size))

    def init(key, x: Inexact[ArrayOrShape, "... in"]):
        check_one_axis("kernel_size", size, x)
        check_spatial(x, len(kernel_size))
        warn_channels_first(x, len(kernel_size))
        shape = (*kernel_size, *channels(x.shape[-1]))
        params = {"kernel": kernel_init(key, shape, param_dtype)}
        if use_bias:
            params["bias"] = bias_init(jax.random.fold_in(key, 1), shape[-1:], param_dtype)
        return params

    def apply(params, x: Inexact[Array, "..."]):
        x = in_dtype(x, dtype)
        check_params(params, x, kernel=(*kernel_size, None, None), **{"bias": (None,)} if use_bias else {})
        return run(x, params["kernel"], params.get("bias"))

    return Layer(init, apply)


# ---- the computation -------------------------------------------------------------------------


def _pad(x, pads, mode):
    """The input padded where the mode is not zeros, and the pads that are left for zeros."""
    # Each axis has its own mode; zeros are left to the convolution, which pads without a copy.
    modes = per_axis("padding_mode", mode, len(pads))
    left = []
    for axis, (m, pair) in enumerate(zip(modes, pads, strict=True), x.ndim - 1 - len(pads)):
        # The pads of a symbolic size of jax.export may be symbolic too.
        static = all(isinstance(one, int | np.integer) for one in pair)
        if (m != "zeros" or not static) and pair != (0, 0):
            expected = f"an entry to repeat on axis {axis} for padding_mode={m!r}"
            empty = at_most(x.shape[axis], 0) and m != "zeros"
            require(not empty, expected, x, "pass a longer input, or padding_mode='zeros'")
            if m == "circular":
                check_integer(x.shape[axis], x, "padding_mode='circular'")
            around = [(0, 0)] * x.ndim
            around[axis] = pair
            x, pair = jnp.pad(x, around, mode=_MODES.get(m, "constant")), (0, 0)
        left.append(pair)
    return x, tuple(left)


def _correlate(x, kernel, bias, strides, pads, spread, dilations, groups):
    """Apply the kernel at every position, with one batch axis; ``spread`` inserts zeros between entries of ``x``."""
    axes = len(strides)
    batch = x.shape[: -axes - 1]
    x = x.reshape(math.prod(batch), *x.shape[-axes - 1 :]) if len(batch) != 1 else x  # (batch, *spatial, in)
    geometry = strides, pads, spread, dilations
    # XLA's grouped form takes tens to hundreds of times longer on CPU, especially the gradient of the kernel
    by_hand = groups > 1 and platform() == "cpu"
    # One input channel in each group, and few kernel entries: a sum over shifts, with one term for each entry.
    few = kernel.shape[-2] == 1 and math.prod(kernel.shape[:-2]) <= 64
    if by_hand and few and all(isinstance(n, int) for n in x.shape[1:-1]):  # not symbolic ones of jax.export
        y = _plus_bias(_depthwise_by_shifts(x.shape[1:-1], kernel.shape[:-2], *geometry)(x, kernel), bias)
    elif by_hand and groups <= 32:
        parts = zip(jnp.split(x, groups, -1), jnp.split(kernel, groups, -1), strict=True)
        y = _plus_bias(jnp.concatenate([_by_xla(part, own, None, *geometry, 1) for part, own in parts], -1), bias)
    else:
        y = _by_xla(x, kernel, bias, *geometry, groups)
    return y.reshape(*batch, *y.shape[1:]) if len(batch) != 1 else y  # (*batch, *positions, out)


def _by_xla(x, kernel, bias, strides, pads, spread, dilations, groups):
    if groups == 1 and set(spread) == {1} and pays(x, kernel, strides, pads, dilations):
        return _jitted_correlate(strides, pads, dilations, x, kernel, bias)
    return _plus_bias(convolve(x, kernel, strides, pads, spread, dilations, groups), bias)


# Convolutions of equal shapes are traced, differentiated and lowered once. JAX keeps the rule as it was traced first.
@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _jitted_correlate(strides, pads, dilations, x, kernel, bias=None):
    return _plus_bias(correlate(x, kernel, strides, pads, dilations), bias)


def _plus_bias(y, bias):
    return y if bias is None else y + along_batch(bias, y)


# Cached by geometry, so that each one is compiled once.
@functools.lru_cache(maxsize=256)
def _depthwise_by_shifts(sizes, kernel_size, strides, pads, spread, dilations) -> Callable:
    """A jitted depthwise convolution for one geometry, the sum over the kernel entries, each times the shifted input.

    `count_flops` recognizes it by its name.
    """
    # Sizes after zeros between the entries (`spread`) and padding.
    padded = [(n - 1) * hole + 1 + sum(pair) for n, hole, pair in zip(sizes, spread, pads, strict=True)]
    reached = [n - d * (k - 1) - 1 for n, k, d in zip(padded, kernel_size, dilations, strict=True)]
    positions = [r // s + 1 for r, s in zip(reached, strides, strict=True)]
    before = [first for first, _ in pads]
    axes = zip(positions, kernel_size, sizes, strides, before, spread, dilations, strict=True)

    def by_shifts(x, kernel):  # the axis of input channels per group has size 1
        out, dtype, x, kernel = kernel.shape[-1], x.dtype, widen(x), widen(kernel)
        # Pads around each spatial axis and s - 1 zeros between its entries, none for batch and channels.
        amounts = [(0, 0, 0), *((*pair, s - 1) for pair, s in zip(pads, spread, strict=True)), (0, 0, 0)]
        x = lax.pad(x, jnp.zeros((), x.dtype), amounts)
        x = jnp.repeat(x, out // x.shape[-1], -1)  # (batch, *spatial, out): a copy for each filter of a channel
        shifts = slices_of_entries(x, *((1, *each, 1) for each in (kernel_size, strides, dilations)))
        # Position i of a slice is the entry of x that its kernel entry meets at output i.
        entries = zip(np.ndindex(*kernel_size), shifts, strict=True)
        terms = [shifted * jnp.broadcast_to(kernel[*entry, 0], shifted.shape) for entry, shifted in entries]
        return functools.reduce(jnp.add, terms).astype(dtype)  # (batch, *positions, out)

    # Products with entries of x and not with zeros; `count_flops` reads their number from the name.
    used = math.prod(starmap(products_on_axis, axes))
    by_shifts.__name__ = name_with_zeros(used, math.prod(positions + list(kernel_size)))
    return jax.jit(by_shifts)


def _swap(kernel, groups):
    """``(*kernel_size, a/groups, b)`` to ``(*kernel_size, b/groups, a)``: swap the channels of each group."""
    *kernel_size, a, b = kernel.shape
    # Each group has a input channels and b / groups output channels; these are exchanged within it.
    split = kernel.reshape(*kernel_size, a, groups, b // groups)
    return jnp.swapaxes(split, -3, -1).reshape(*kernel_size, b // groups, -1)
