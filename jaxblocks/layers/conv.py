r"""Convolution over one, two or three axes, its adjoint, and their layers.

A convolution is a small affine map slid over positions: the same kernel is used at each of
them, so it has few parameters, and moving its input moves its output (equivariance).

Axis letters: ``...`` batch, ``*spatial`` positions (one to three axes), ``*kernel_size`` the
kernel's, ``in`` and ``out`` channels. How many axes are spatial is read off the kernel.
"""

import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from jaxblocks import initializers
from jaxblocks.checks import describe, require_floating, require_key, require_whole
from jaxblocks.core import Layer, builder, require_params
from jaxblocks.precision import widen
from jaxblocks.windows import (
    Padding,
    PerAxis,
    as_whole,
    as_window,
    pads_of,
    per_axis,
    positions,
    require_padding,
    require_spatial,
    warn_channels_first,
)

__all__ = ["Conv", "ConvTranspose", "DepthwiseConv", "conv", "conv_transpose"]

_MODES = {"zeros": None, "circular": "wrap", "reflect": "reflect", "replicate": "edge"}


def conv(
    x: Float[Array, "... channels"],
    kernel: Float[Array, "*kernel_size in out"],
    bias: Float[Array, " out"] | None = None,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    groups: int = 1,
    padding: Padding = "valid",
    padding_mode: str | Sequence[str] = "zeros",
) -> Float[Array, "... out"]:
    r"""The convolution of the field, :math:`y_{io} = b_o + \sum_{j,c} x_{si + dj,\,c}\, w_{jco}` (positions from 0).

    The kernel :math:`w` is not flipped: mathematics calls this a cross-correlation, and
    ``kernel[::-1]`` makes the other one. Signal and kernel are not interchangeable. Each
    axis has :math:`\lfloor (n + p + q - d(k-1) - 1)/s \rfloor + 1` positions in the output.

    Args:
        x: ``(..., *spatial, channels)`` with any number of batch axes, none included.
        kernel: ``(*kernel_size, channels / groups, out)``, with one to three kernel_size axes.
        bias: ``(out,)``.
        stride: :math:`s`, how far the kernel_size moves; one number, or one per spatial axis.
        dilation: :math:`d`, how far entries of the kernel_size lie apart.
        groups: channels are cut into so many groups, in order, and each is mapped to its own
            part of ``out``; as many groups as channels make it depthwise.
        padding: ``"valid"`` (none), ``"same"`` (:math:`\lceil n/s \rceil` positions), ``"causal"``
            (in front only: no output reads what comes later), a number for both ends, or a
            sequence with a name, a number or a pair ``(before, after)`` for each spatial axis.
        padding_mode: what is padded: ``"zeros"``, ``"circular"`` (the other end), ``"reflect"``
            (mirrored, without repeating the edge) or ``"replicate"`` (the edge); one for all
            axes or one per axis. Where more is padded than there is, it goes on periodically.

    Computes in the dtype of ``x``. On CPU, groups are written out, since XLA's own form is
    slow there, above all in the gradient.

    Raises:
        ValueError: where channels, groups or rank do not fit, or the kernel_size does not fit into the input.
        TypeError: for integer ``x``.

    >>> conv(jnp.arange(1.0, 6.0)[:, None], jnp.array([1.0, 0.0, -1.0])[:, None, None])[:, 0]
    Array([-2., -2., -2.], dtype=float32)
    >>> conv(jnp.zeros((8, 32, 32, 3)), jnp.zeros((3, 3, 3, 16)), stride=2, padding=1).shape
    (8, 16, 16, 16)

    Source: Diehl 2023, section 1.1; Krapac & Segvic, Convolutional models, whose sizes
    H - k + 1 are those of ``"valid"`` with stride 1. The lectures call convolution
    translation-invariant: it is equivariant, and invariance comes with a global pool.
    """
    return _conv("conv", x, kernel, bias, stride, dilation, groups, padding, padding_mode)


def conv_transpose(
    x: Float[Array, "... channels"],
    kernel: Float[Array, "*kernel_size features in"],
    bias: Float[Array, " out"] | None = None,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    groups: int = 1,
    padding: Padding = "valid",
    output_padding: PerAxis = 0,
) -> Float[Array, "... out"]:
    r"""The adjoint of `conv` with the same kernel and settings: :math:`y_{si + dj,\,c} = b_c + \sum x_{io}\, w_{jco}`.

    Each entry of ``x`` spreads a copy of the kernel. It is the transposed matrix, not the
    inverse: :math:`\langle \mathrm{conv}\,u,\, x\rangle = \langle u,\, \mathrm{conv\_transpose}\,x\rangle`. With stride
    1 and no padding it is the full convolution (kernel flipped), of length :math:`H + k - 1`; the lecture prints the
    formula of the convolution in its place, which shrinks. An axis of :math:`H` positions becomes

    .. math:: (H-1)s - p - q + d(k-1) + 1 + \mathrm{op}

    Args:
        x: ``(..., *spatial, channels)``.
        kernel: that of the convolution of which this is the adjoint, ``(*kernel_size, out / groups, channels)``.
        bias: ``(out,)``, added to the result.
        stride, dilation, groups, padding: those of the convolution. ``padding="same"`` gives :math:`H s` positions.
        output_padding: several input sizes of a strided convolution give the same output size: ``op``, from 0 to
            ``stride - 1``, takes a larger one than the smallest. One number, or one per axis.

    Raises:
        ValueError: where channels, groups or rank do not fit, or ``output_padding`` is not below the stride.
        TypeError: for integer ``x``.

    >>> x = w = jnp.array([1.0, 2.0, 3.0])
    >>> conv_transpose(x[:, None], w[:, None, None])[:, 0]
    Array([ 1.,  4., 10., 12.,  9.], dtype=float32)

    Source: Krapac & Segvic, Convolutional models; Dumoulin & Visin 2016, A guide to convolution arithmetic.
    """
    return _conv_transpose("conv_transpose", x, kernel, bias, stride, dilation, groups, padding, output_padding)


@builder
def Conv(
    features: int,
    kernel_size: PerAxis,
    *,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    groups: int = 1,
    padding: Padding = "valid",
    padding_mode: str | Sequence[str] = "zeros",
    use_bias: bool = True,
    kernel_init: Callable = initializers.lecun_normal(),
    bias_init: Callable = initializers.zeros,
    dtype=None,
    param_dtype=jnp.float32,
) -> Layer:
    r"""The convolutional layer :math:`y = x \star w + b`, params ``{"kernel": (*kernel_size, in/groups, out), "bias"}``.

    One affine map per kernel_size. Its activation is the next layer: ``Serial(Conv(8, (3, 3)), relu)``.

    Args:
        features: the channels of the output.
        kernel_size: a number for one spatial axis, a tuple with a number per axis for up to three.
        stride, dilation, groups, padding, padding_mode: as in `conv`.
        use_bias: ``False`` for a linear map.
        kernel_init, bias_init: as in ``jax.nn.initializers``: ``f(key, shape, dtype)``.
        dtype: of the arithmetic and the output; by default that of the input.
        param_dtype: of the params.

    Shapes: ``(..., *spatial, in)`` to ``(..., *positions, features)``.

    Raises:
        ValueError, TypeError: as `conv` does, and at ``init`` where ``groups`` does not divide the channels.

    >>> layer = Conv(8, (3, 3))
    >>> params = layer.init(jax.random.key(0), jnp.zeros((28, 28, 3)))
    >>> layer.apply(params, jnp.zeros((28, 28, 3))).shape
    (26, 26, 8)
    >>> count_params(params)  # a dense layer between the same shapes has 12,725,024
    224

    Source: Krapac & Segvic, Convolutional models; Diehl 2023, section 1.1.
    """
    require_whole("Conv", "features", features)
    kernel_size = as_window("Conv", kernel_size)
    require_padding("Conv", padding, len(kernel_size))

    def kernel_shape(channels):
        _require_groups("Conv", groups, channels, features)
        return (*kernel_size, channels // groups, features)

    def run(*args):
        return _conv(*args, stride, dilation, groups, padding, padding_mode)

    return _pair("Conv", kernel_size, kernel_shape, kernel_init, run, use_bias, bias_init, dtype, param_dtype)


@builder
def DepthwiseConv(
    kernel_size: PerAxis,
    multiplier: int = 1,
    *,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    padding: Padding = "valid",
    padding_mode: str | Sequence[str] = "zeros",
    use_bias: bool = True,
    kernel_init: Callable = initializers.lecun_normal(),
    bias_init: Callable = initializers.zeros,
    dtype=None,
    param_dtype=jnp.float32,
) -> Layer:
    r"""The convolution of each channel by itself, params ``{"kernel": (*kernel_size, 1, in * multiplier), "bias"}``.

    A ``Conv`` with as many groups as channels: output channel ``c * multiplier + j`` is the
    ``j``-th filter of input channel ``c``. ``Serial(DepthwiseConv((3, 3)), Conv(out, (1, 1)))``
    is a separable convolution.

    Args:
        kernel_size: as in `Conv`.
        multiplier: filters for each channel.
        stride, dilation, padding, padding_mode, use_bias, kernel_init, bias_init, dtype, param_dtype: as in `Conv`.

    >>> layer = DepthwiseConv((3, 3), padding="same")
    >>> params = layer.init(jax.random.key(0), jnp.zeros((28, 28, 16)))
    >>> params["kernel"].shape, layer.apply(params, jnp.zeros((28, 28, 16))).shape
    ((3, 3, 1, 16), (28, 28, 16))

    Source: Chollet 2017, Xception.
    """
    require_whole("DepthwiseConv", "multiplier", multiplier)
    kernel_size = as_window("DepthwiseConv", kernel_size)
    require_padding("DepthwiseConv", padding, len(kernel_size))

    def kernel_shape(channels):
        return (*kernel_size, 1, channels * multiplier)

    def run(where, x, kernel, bias):
        channels = kernel.shape[-1] // multiplier
        return _conv(where, x, kernel, bias, stride, dilation, channels, padding, padding_mode)

    return _pair("DepthwiseConv", kernel_size, kernel_shape, kernel_init, run, use_bias, bias_init, dtype, param_dtype)


@builder
def ConvTranspose(
    features: int,
    kernel_size: PerAxis,
    *,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    groups: int = 1,
    padding: Padding = "valid",
    output_padding: PerAxis = 0,
    use_bias: bool = True,
    kernel_init: Callable = initializers.lecun_normal(),
    bias_init: Callable = initializers.zeros,
    dtype=None,
    param_dtype=jnp.float32,
) -> Layer:
    r"""The adjoint of a convolution, as a layer; params ``{"kernel": (*kernel_size, features/groups, in), "bias"}``.

    The kernel is that of the ``Conv`` from ``features`` to ``in`` channels whose adjoint it
    is, so an encoder's kernel can be shared with its decoder. It is drawn as that of a
    ``Conv`` from ``in`` to ``features``, so that ``kernel_init`` meets the right fan-in.

    Args:
        features: the channels of the output.
        kernel_size: as in `Conv`.
        stride, dilation, groups, padding, output_padding: as in `conv_transpose`.
        use_bias, kernel_init, bias_init, dtype, param_dtype: as in `Conv`.

    Shapes: ``(..., *spatial, in)`` to ``(..., *larger, features)``.

    >>> layer = ConvTranspose(8, (4, 4), stride=2, padding=1)
    >>> params = layer.init(jax.random.key(0), jnp.zeros((16, 16, 3)))
    >>> layer.apply(params, jnp.zeros((16, 16, 3))).shape
    (32, 32, 8)

    Source: Krapac & Segvic, Convolutional models.
    """
    require_whole("ConvTranspose", "features", features)
    kernel_size = as_window("ConvTranspose", kernel_size)

    def kernel_shape(channels):
        _require_groups("ConvTranspose", groups, channels, features)
        return (*kernel_size, channels // groups, features)

    def draw(key, shape, dtype):
        return _swap(kernel_init(key, shape, dtype), groups)

    def run(*args):
        return _conv_transpose(*args, stride, dilation, groups, padding, output_padding)

    return _pair("ConvTranspose", kernel_size, kernel_shape, draw, run, use_bias, bias_init, dtype, param_dtype)


# ---- how it is computed ------------------------------------------------------------------------


def _conv(where, x, kernel, bias, stride, dilation, groups, padding, padding_mode):
    axes, kernel_size = _require_kernel(where, x, kernel)
    _require_groups(where, groups, kernel.shape[-2] * groups, kernel.shape[-1])
    _require_channels(where, x, kernel, axes, kernel.shape[-2] * groups, groups)
    strides, dilations = per_axis(where, "stride", stride, axes), per_axis(where, "dilation", dilation, axes)
    spans = tuple(d * (k - 1) + 1 for k, d in zip(kernel_size, dilations, strict=True))
    sizes = x.shape[-axes - 1 : -1]
    pads = pads_of(where, padding, sizes, spans, strides)
    positions(where, x, sizes, spans, strides, pads)
    x, pads = _pad(where, x, pads, padding_mode)
    y = _slide(x, kernel.astype(x.dtype), strides, pads, (1,) * axes, dilations, groups)
    return _add_bias(where, y, bias)


def _conv_transpose(where, x, kernel, bias, stride, dilation, groups, padding, output_padding):
    axes, kernel_size = _require_kernel(where, x, kernel)
    _require_groups(where, groups, kernel.shape[-1], kernel.shape[-2] * groups)
    _require_channels(where, x, kernel, axes, kernel.shape[-1], groups)
    strides, dilations = per_axis(where, "stride", stride, axes), per_axis(where, "dilation", dilation, axes)
    more = per_axis(where, "output_padding", output_padding, axes, least=0)
    if any(extra >= s for extra, s in zip(more, strides, strict=True)):
        raise ValueError(
            f"{where} expects output_padding below the stride {strides}, but {more} came: a convolution "
            "of so large an input would have another position; increase the input, or lower output_padding."
        )
    spans = tuple(d * (k - 1) + 1 for k, d in zip(kernel_size, dilations, strict=True))
    before = x.shape[-axes - 1 : -1]
    pads = pads_of(where, padding, [h * s for h, s in zip(before, strides, strict=True)], spans, strides)
    names = (padding,) * axes if isinstance(padding, str) or as_whole(padding) is not None else padding
    if any(name == "same" and extra for name, extra in zip(names, more, strict=True)):
        raise ValueError(
            f"{where} with padding='same' gives input times stride, but output_padding={output_padding} came with it; "
            "leave output_padding at 0, or give padding as a number."
        )
    adjoint_pads = []
    for h, s, span, (low, high), extra, name in zip(before, strides, spans, pads, more, names, strict=True):
        size = h * s if name == "same" else (h - 1) * s + span - low - high + extra
        if size < 1:
            raise ValueError(
                f"{where} cuts {padding!r} off its output, which leaves {size} positions of an axis for "
                f"{describe(x)}; pad less."
            )
        adjoint_pads.append((span - 1 - low, size - (h - 1) * s - 1 + low))
    flipped = jnp.flip(_swap(kernel.astype(x.dtype), groups), range(axes))
    y = _slide(x, flipped, (1,) * axes, tuple(adjoint_pads), strides, dilations, groups)
    return _add_bias(where, y, bias)


def _pad(where, x, pads, mode):
    """The input padded where zeros do not do, and the pads that are left for zeros."""
    modes = (mode,) * len(pads) if isinstance(mode, str) else tuple(mode)
    if len(modes) != len(pads) or any(m not in _MODES for m in modes):
        each = f", or {len(pads)} of them, one per spatial axis" if len(pads) > 1 else ""
        raise ValueError(
            f"{where} expects padding_mode to be one of {', '.join(map(repr, _MODES))}{each}, but {mode!r} came."
        )
    left = []
    for axis, (m, pair) in enumerate(zip(modes, pads, strict=True), x.ndim - 1 - len(pads)):
        if m != "zeros" and pair != (0, 0):
            if x.shape[axis] == 0:
                raise ValueError(
                    f"{where} pads with padding_mode={m!r}, which repeats what is there, but {describe(x)} came, whose "
                    f"axis {axis} is empty; pass a longer input, or padding_mode='zeros'."
                )
            around = [(0, 0)] * x.ndim
            around[axis] = pair
            x, pair = jnp.pad(x, around, mode=_MODES[m]), (0, 0)
        left.append(pair)
    return x, tuple(left)


def _slide(x, kernel, strides, pads, spread, dilations, groups):
    """The kernel at every position, with one batch axis; ``spread`` puts zeros between entries of ``x``."""
    axes = len(strides)
    batch = x.shape[: -axes - 1]
    x = x.reshape(math.prod(batch), *x.shape[-axes - 1 :]) if len(batch) != 1 else x  # (batch, *spatial, in)
    geometry = (strides, pads, spread, dilations)
    # XLA's grouped form takes tens to hundreds of times longer on CPU, above all in the gradient of the kernel
    by_hand = groups > 1 and jax.default_backend() == "cpu"
    if by_hand and kernel.shape[-2] == 1 and math.prod(kernel.shape[:-2]) <= 64:
        y = _by_shifts(x, kernel, *geometry)
    elif by_hand and groups <= 32:
        parts = zip(jnp.split(x, groups, -1), jnp.split(kernel, groups, -1), strict=True)
        y = jnp.concatenate([_by_xla(part, own, *geometry, 1) for part, own in parts], -1)
    else:
        y = _by_xla(x, kernel, *geometry, groups)
    return y.reshape(*batch, *y.shape[1:]) if len(batch) != 1 else y  # (*batch, *positions, out)


def _by_xla(x, kernel, strides, pads, spread, dilations, groups):
    axes = len(strides)
    channels_last = (0, axes + 1, *range(1, axes + 1))
    layout = lax.ConvDimensionNumbers(channels_last, (axes + 1, axes, *range(axes)), channels_last)
    return lax.conv_general_dilated(
        x, kernel, strides, pads, spread, dilations, dimension_numbers=layout, feature_group_count=groups
    )


def _by_shifts(x, kernel, strides, pads, spread, dilations):
    """A depthwise kernel: the sum over its entries, each times the input shifted to it."""
    *kernel_size, _, out = kernel.shape
    dtype, x, kernel = x.dtype, widen(x), widen(kernel)
    amounts = [(0, 0, 0), *((*pair, s - 1) for pair, s in zip(pads, spread, strict=True)), (0, 0, 0)]
    x = lax.pad(x, jnp.zeros((), x.dtype), amounts)
    x = jnp.repeat(x, out // x.shape[-1], -1)  # (batch, *spatial, out): a copy for each filter of a channel
    reach = [  # from the first position of an entry to behind its last
        (n - d * (k - 1) - 1) // s * s + 1
        for n, k, d, s in zip(x.shape[1:-1], kernel_size, dilations, strides, strict=True)
    ]
    total = None
    for entry in np.ndindex(*kernel_size):
        starts = [e * d for e, d in zip(entry, dilations, strict=True)]
        ends = [start + n for start, n in zip(starts, reach, strict=True)]
        shifted = lax.slice(x, (0, *starts, 0), (x.shape[0], *ends, out), (1, *strides, 1))
        term = shifted * jnp.broadcast_to(kernel[*entry, 0], shifted.shape)
        total = term if total is None else total + term
    return total.astype(dtype)  # (batch, *positions, out)


def _swap(kernel, groups):
    """From ``(*kernel_size, a/groups, b)`` to ``(*kernel_size, b/groups, a)``: the two ends of each group change places."""
    *kernel_size, a, b = kernel.shape
    return jnp.swapaxes(kernel.reshape(*kernel_size, a, groups, b // groups), -3, -1).reshape(
        *kernel_size, b // groups, -1
    )


def _add_bias(where, y, bias):
    if bias is None:
        return y
    if bias.shape != y.shape[-1:]:
        raise ValueError(f"{where} expects a bias of shape {y.shape[-1:]}, but {describe(bias)} came.")
    return y + jnp.broadcast_to(bias.astype(y.dtype), y.shape)


def _pair(kind, kernel_size, kernel_shape, kernel_init, run, use_bias, bias_init, dtype, param_dtype):
    """The pair of a layer with a kernel: its shape from the channels, and what runs it."""
    names = ("kernel", "bias") if use_bias else ("kernel",)

    def init(key, x):
        require_key(f"{kind}.init", key)
        require_floating(kind, x=x)
        require_spatial(kind, x, len(kernel_size))
        warn_channels_first(kind, x, len(kernel_size))
        shape = kernel_shape(x.shape[-1])
        params = {"kernel": kernel_init(key, shape, param_dtype)}
        if use_bias:
            params["bias"] = bias_init(jax.random.fold_in(key, 1), shape[-1:], param_dtype)
        return params

    def apply(params, x):
        require_params(kind, params, *names)
        require_floating(kind, x=x)
        return run(kind, x if dtype is None else x.astype(dtype), params["kernel"], params.get("bias"))

    init.__qualname__, apply.__qualname__ = f"{kind}.<locals>.init", f"{kind}.<locals>.apply"
    return Layer(init, apply)


# ---- what must fit -----------------------------------------------------------------------------


def _require_groups(where, groups, channels, features):
    require_whole(where, "groups", groups)
    if channels % groups or features % groups:
        raise ValueError(
            f"{where} expects groups to divide the channels of input and output, but groups={groups} came "
            f"with {channels} channels in and {features} out; choose a common divisor, such as "
            f"groups={math.gcd(channels, features)}."
        )


def _require_kernel(where, x, kernel):
    """How many axes the kernel_size has, and its sizes."""
    require_floating(where, x=x, kernel=kernel)
    axes = kernel.ndim - 2
    if not 1 <= axes <= 3:
        raise ValueError(
            f"{where} expects a kernel (*kernel_size, in, out) with one to three kernel_size axes, but {describe(kernel)} came; "
            "a map without a kernel_size is affine(x, kernel)."
        )
    require_spatial(where, x, axes)
    return axes, per_axis(where, "kernel_size", tuple(kernel.shape[:-2]), axes)


def _require_channels(where, x, kernel, axes, channels, groups):
    if x.shape[-1] == channels:
        return
    first = x.ndim - axes - 1
    if x.shape[first] == channels:
        repair = f"x seems to have its channels first; write jnp.moveaxis(x, {first}, -1)."
    else:
        repair = "pass x of that size, or params made by init for this x."
    raise ValueError(
        f"{where} expects x with {channels} channels on its last axis (its kernel is {describe(kernel)}, "
        f"groups={groups}), but {describe(x)} came; {repair}"
    )
