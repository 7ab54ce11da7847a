r"""Flattening, padding, resizing and pixel shuffle: layers without params that change the number of positions.

Axis letters: ``...`` batch, ``*spatial`` positions (one to three axes), then channels. As in pools, an option with one
entry for each spatial axis is a sequence; an integer stands for one axis, and is rejected for inputs of more than three
axes, such as a batch of images.
"""

import functools
import math
from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Inexact

from jaxblocks.backend.interpolation import interpolation_weights
from jaxblocks.backend.precision import widen
from jaxblocks.backend.sliding_windows import (
    Padding,
    PerAxis,
    check_fit,
    check_one_axis,
    check_spatial,
    entries_of_windows,
    slide,
    spatial_layer,
    spatial_sizes,
    window_sizes,
)
from jaxblocks.backend.symbolic_sizes import at_most, check_integer
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import PositiveInt, Range, checked
from jaxblocks.core.pairs import Layer, builder

__all__ = [
    "Flatten",
    "Pad",
    "PixelShuffle",
    "PixelUnshuffle",
    "Resize",
    "UpSample",
    "flatten",
    "fold",
    "pad",
    "pixel_shuffle",
    "pixel_unshuffle",
    "resize",
    "unfold",
    "upsample",
]

Pads: TypeAlias = int | Sequence[int | tuple[int, int]]
Factor = Annotated[float | int, Range(0, below=1e38, open_below=True)]
Factors: TypeAlias = Factor | Sequence[Factor]
PadMode: TypeAlias = Literal["constant", "circular", "reflect", "replicate"]
ResizeMethod: TypeAlias = Literal["nearest", "nearest_floor", "linear", "cubic"]


@checked
def flatten(x: Inexact[Array, "... channels"], spatial: PositiveInt) -> Inexact[Array, "... features"]:
    """All positions and channels as one axis, ``(..., *spatial, channels)`` to ``(..., features)``, in row-major order.

    Args:
        x: ``(..., *spatial, channels)``.
        spatial: number of axes before the last that are positions: 2 for images, 1 for sequences.

    >>> flatten(jnp.zeros((8, 5, 5, 3)), spatial=2).shape
    (8, 75)
    """
    check_spatial(x, spatial)
    return x.reshape(*x.shape[: -spatial - 1], math.prod(x.shape[-spatial - 1 :]))


@checked
def pad(
    x: Float[Array, "... channels"], padding: Pads, *, padding_mode: PadMode = "constant", value: float | int = 0.0
) -> Float[Array, "... channels"]:
    """More positions before and after each spatial axis, or fewer.

    Args:
        x: ``(..., *spatial, channels)``.
        padding: a sequence with an integer for both ends, or a pair ``(before, after)``, for each spatial axis; an
            integer stands for one spatial axis, as in `max_pool`. A negative number crops, before anything is added.
        padding_mode: ``"constant"`` (``value``), ``"circular"`` (from the other end), ``"reflect"`` (mirrored, without
            repeating the edge) or ``"replicate"`` (the edge), as in `conv`.
        value: what ``"constant"`` pads with.

    Raises:
        ValueError: where padding crops more positions than there are.

    >>> pad(jnp.array([[1.0], [2.0], [3.0]]), ((2, 1),), padding_mode="reflect")[:, 0]
    Array([3., 2., 1., 2., 3., 2.], dtype=float32)
    >>> pad(jnp.array([[1.0], [2.0], [3.0]]), ((-1, 1),))[:, 0]
    Array([2., 3., 0.], dtype=float32)

    Source: torch.nn.functional.pad, with the modes of `conv`; ``jnp.pad`` pads any axes.
    """
    each = _per_axis_pads(padding)
    check_one_axis("padding", padding, x)
    check_spatial(x, len(each))
    around = [(0, 0)] * (x.ndim - len(each) - 1) + [*each, (0, 0)]  # none for batch and channels
    starts = [max(-before, 0) for before, _ in around]
    stops = [size - max(-after, 0) for size, (_, after) in zip(x.shape, around, strict=True)]
    some = all(start <= stop for start, stop in zip(starts, stops, strict=True))
    require(some, f"padding that leaves positions of x {x.shape}", f"padding={padding}", "crop less")
    x = jax.lax.slice(x, starts, stops)
    around = [(max(before, 0), max(after, 0)) for before, after in around]
    if padding_mode == "constant":
        return jnp.pad(x, around, constant_values=value)
    for size, pair in zip(x.shape, around, strict=True):
        repair = "pass a longer input, or padding_mode='constant'"
        require(size or not any(pair), f"an entry to repeat for padding_mode={padding_mode!r}", x, repair)
        if padding_mode == "circular" and any(pair):
            check_integer(size, x, "padding_mode='circular'")
    return jnp.pad(x, around, mode={"circular": "wrap", "reflect": "reflect", "replicate": "edge"}[padding_mode])


@checked
def unfold(
    x: Float[Array, "... channels"],
    window_shape: PerAxis,
    *,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    padding: Padding = "valid",
) -> Float[Array, "... features"]:
    """The entries of each window as features: ``(..., *positions, window * channels)``, also known as im2col.

    A `conv` is a dense layer on them: ``unfold(x, (3, 3)) @ kernel.reshape(-1, out)``. The features are in the order of
    the kernel: the axes of the window, then the channels. (PyTorch has the channels first and one axis for all
    positions.) With a stride of the size of the window they are the patches of a vision transformer.

    Args:
        x: ``(..., *spatial, channels)``.
        window_shape: a tuple with an integer for each of up to three spatial axes; an integer stands for one, as in
            `max_pool`.
        stride, dilation, padding: as in `conv`; padding is 0.

    Raises:
        ValueError: where the window does not fit into the input, or the rank is too low.

    >>> unfold(jnp.array([[1.0], [2.0], [3.0]]), 2)
    Array([[1., 2.],
           [2., 3.]], dtype=float32)
    >>> unfold(jnp.zeros((8, 28, 28, 3)), (14, 14), stride=14).shape
    (8, 2, 2, 588)

    Source: Chellapilla, Puri & Simard 2006, High performance convolutional neural networks for document processing.
    """
    window = spatial_sizes("window_shape", window_shape, x)
    windows = slide(x.shape[-len(window) - 1 : -1], window, stride, dilation, padding)
    check_fit(windows, x)
    padded = jnp.pad(x, [(0, 0)] * (x.ndim - len(window) - 1) + [*windows.pads, (0, 0)])
    entries = entries_of_windows(padded, window, windows)
    return entries.reshape(*entries.shape[: -len(window) - 1], math.prod(window) * x.shape[-1])


@checked
def fold(
    x: Float[Array, "... features"],
    size: PerAxis,
    window_shape: PerAxis,
    *,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    padding: Padding = "valid",
) -> Float[Array, "... channels"]:
    """Add the entries of all windows at their positions: the transpose of `unfold`, not its inverse.

    Where windows overlap, entries add up; ``fold(unfold(jnp.ones(...)))`` counts them. What falls into the padding is
    left out.

    Args:
        x: ``(..., *positions, window * channels)``, in the order of `unfold`.
        size: the spatial sizes of the output, those of the input of `unfold`.
        window_shape, stride, dilation, padding: as in `unfold`.

    Raises:
        ValueError: where ``x`` does not have the shape that `unfold` returns for an input of this size.

    >>> fold(jnp.array([[1.0, 2.0], [10.0, 20.0]]), 3, 2)[:, 0]
    Array([ 1., 12., 20.], dtype=float32)

    Source: torch.nn.functional.fold.
    """
    window, sizes = window_sizes("window_shape", window_shape), spatial_sizes("size", size, x)
    same = len(window) == len(sizes)
    require(same, f"as many axes in size as in window_shape {window}", size, "give both the same number of axes")
    whole = x.shape[-1] % math.prod(window) == 0
    require(
        whole, f"a multiple of {math.prod(window)} features, the entries of a window", x, "fold what unfold returns"
    )
    batch, channels = x.shape[: -len(sizes) - 1], x.shape[-1] // math.prod(window)
    like = jax.ShapeDtypeStruct((*batch, *sizes, channels), x.dtype)
    gather = functools.partial(unfold, window_shape=window, stride=stride, dilation=dilation, padding=padding)
    expected = jax.eval_shape(gather, like).shape
    require(x.shape == expected, f"x of shape {expected}, as of unfold for size {sizes}", x, "fold what unfold returns")
    (y,) = jax.linear_transpose(gather, like)(x)
    return y


@checked
def resize(
    x: Float[Array, "... channels"],
    size: PerAxis,
    *,
    method: ResizeMethod = "linear",
    align_corners: bool = False,
    antialias: bool = True,
) -> Float[Array, "... channels"]:
    r"""Resample the positions to ``size``: the interpolation of ``x`` at equally spaced points.

    An axis of $n$ positions is read at $u_i = (i + 1/2) (n/m) - 1/2$ for $i < m$: the
    outer edges of the first and the last entry stay where they are. With ``align_corners`` their centers stay,
    $u_i = i ((n - 1) / (m - 1))$. The interpolation is a product over the axes.

    Args:
        x: ``(..., *spatial, channels)``.
        size: $m$, a tuple with an integer for each of up to three spatial axes; an integer stands for one, as in
            `max_pool`.
        method: ``"nearest"``, ``"nearest_floor"``, ``"linear"`` (on two axes called bilinear) or ``"cubic"``.
            ``"nearest_floor"`` reads the entry $⌊i n/m⌋$.
        align_corners: which points are read; not for the nearest ones.
        antialias: ``True`` widens the interpolation kernel where an axis shrinks, so that each entry is a mean of those
            it stands for, and gives the values of ``jax.image.resize``: the cubic kernel is that of Keys (-1/2), and
            weights outside of the input are left out. ``False`` reads two entries (linear) or four (cubic) on each
            axis, with kernel -3/4 and the edge repeated, as ``torch.nn.functional.interpolate`` and OpenCV do.

    Computes half precision in float32. ``"nearest"`` is that of ``jax.image.resize``, in PyTorch ``"nearest-exact"``;
    ``"nearest_floor"`` is PyTorch's ``"nearest"``, the same where m is a multiple of n. (PyTorch rounds n/m to float32:
    of 2 entries enlarged to 82, it reads the second one from i = 42 on, not from 41.) `grid_sample` reads at any other
    points.

    Raises:
        ValueError: for an input without positions, or ``align_corners`` with ``"nearest"`` or ``"nearest_floor"``.

    >>> x = jnp.array([[0.0], [4.0]])
    >>> resize(x, 4)[:, 0], resize(x, 5, align_corners=True)[:, 0]
    (Array([0., 1., 3., 4.], dtype=float32), Array([0., 1., 2., 3., 4.], dtype=float32))
    >>> resize(jnp.zeros((8, 32, 32, 3)), (24, 48), method="cubic").shape
    (8, 24, 48, 3)

    Source: Keys 1981, Cubic convolution interpolation for digital image processing, doi:10.1109/TASSP.1981.1163711.
    """
    sizes = spatial_sizes("size", size, x)
    _check_resize(x, len(sizes), method, align_corners)
    y = widen(x)
    for axis, m in enumerate(sizes, x.ndim - 1 - len(sizes)):
        y = _resample(y, axis, m, method, align_corners, antialias)
    return y.astype(x.dtype)


@checked
def upsample(
    x: Float[Array, "... channels"],
    factor: Factors,
    *,
    method: ResizeMethod = "nearest",
    align_corners: bool = False,
    antialias: bool = True,
) -> Float[Array, "... channels"]:
    """`resize` to ``factor`` times as many positions; by default each entry is repeated.

    An axis of n positions gets floor(n f) for the factor f, and is read at u_i = (i + 1/2) / f - 1/2, also where n f is
    not a whole number, as in PyTorch and ONNX. A factor below 1 makes it smaller.

    Args:
        x: ``(..., *spatial, channels)``.
        factor: a tuple with a number for each of up to three spatial axes; a number stands for one, as in `max_pool`.
        method, align_corners, antialias: as in `resize`.

    >>> upsample(jnp.array([[1.0], [2.0]]), 2)[:, 0]
    Array([1., 1., 2., 2.], dtype=float32)

    Source: Odena, Dumoulin, Olah 2016, Deconvolution and checkerboard artifacts, doi:10.23915/distill.00003.
    """
    factors = spatial_sizes("factor", factor, x)
    _check_resize(x, len(factors), method, align_corners)
    y = widen(x)
    for axis, f in enumerate(factors, x.ndim - 1 - len(factors)):
        n = x.shape[axis]
        whole = f == int(f)
        if not whole:
            check_integer(n, x, f"the factor {f}")
        m = n * int(f) if whole else math.floor(n * f)
        require(m > 0, "a factor that leaves at least one position", f"factor={factor} for {n} positions", "pass more")
        y = _resample(y, axis, m, method, align_corners, antialias, None if whole or m == n * f else 1 / f)
    return y.astype(x.dtype)


@checked
def pixel_shuffle(x: Float[Array, "... channels"], factor: PerAxis) -> Float[Array, "... fewer_channels"]:
    r"""Channels to positions: each position becomes a block of ``factor`` positions, which share its channels.

    On two axes $y_{rh + i, sw + j, c} = x_{h, w, (cr + i)s + j}$ for factors $(r, s)$. After a
    `Conv` to $rs$ times as many channels it is an upsampling without zeros or interpolation. The order of the
    channels is that of PyTorch (ONNX: CRD).

    Args:
        x: ``(..., *spatial, channels)``, a multiple of the product of the factors.
        factor: a tuple with an integer for each of up to three spatial axes; an integer stands for one, as in
            `max_pool`.

    Raises:
        ValueError: where the number of channels is not a multiple.

    >>> pixel_shuffle(jnp.array([[1.0, 2.0], [3.0, 4.0]]), 2)[:, 0]
    Array([1., 2., 3., 4.], dtype=float32)

    Source: Shi et al. 2016, Real-time single image and video super-resolution using an efficient sub-pixel
    convolutional neural network, arXiv:1609.05158.
    """
    factors = spatial_sizes("factor", factor, x)
    axes, block = len(factors), math.prod(factors)
    expected = f"a multiple of {block} channels, the product of factor = {factor}"
    require(x.shape[-1] % block == 0, expected, x, "give the layer before it that many times as many features")
    *batch, channels = x.shape[: -axes - 1] + x.shape[-1:]
    sizes = x.shape[-axes - 1 : -1]
    split = x.reshape(*batch, *sizes, channels // block, *factors)  # (*batch, *spatial, c, *factors)
    first = len(batch)
    order = [axis for i in range(axes) for axis in (first + i, first + axes + 1 + i)]
    mixed = split.transpose(*range(first), *order, first + axes)  # (*batch, h, r, w, s, c)
    return mixed.reshape(*batch, *(n * f for n, f in zip(sizes, factors, strict=True)), channels // block)


@checked
def pixel_unshuffle(x: Float[Array, "... channels"], factor: PerAxis) -> Float[Array, "... more_channels"]:
    """Positions to channels, the inverse of `pixel_shuffle`: each block of ``factor`` positions becomes one.

    Args:
        x: ``(..., *spatial, channels)``, with sizes that are multiples of the factors.
        factor: a tuple with an integer for each of up to three spatial axes; an integer stands for one, as in
            `max_pool`.

    Raises:
        ValueError: where a size is not a multiple of its factor.

    >>> pixel_unshuffle(jnp.array([[1.0], [2.0], [3.0], [4.0]]), 2)
    Array([[1., 2.],
           [3., 4.]], dtype=float32)

    Source: Shi et al. 2016, arXiv:1609.05158.
    """
    factors = spatial_sizes("factor", factor, x)
    axes = len(factors)
    batch, sizes = x.shape[: -axes - 1], x.shape[-axes - 1 : -1]
    whole = all(n % f == 0 for n, f in zip(sizes, factors, strict=True))
    require(whole, f"sizes that are multiples of factor = {factor}", x, "pad or crop it")
    fewer = [n // f for n, f in zip(sizes, factors, strict=True)]
    pairs = [size for pair in zip(fewer, factors, strict=True) for size in pair]
    split = x.reshape(*batch, *pairs, x.shape[-1])  # (*batch, h, r, w, s, c)
    first = len(batch)
    places = range(first, first + 2 * axes)
    mixed = split.transpose(*range(first), *places[::2], first + 2 * axes, *places[1::2])  # (*batch, h, w, c, r, s)
    return mixed.reshape(*batch, *fewer, x.shape[-1] * math.prod(factors))


@builder
def Flatten(spatial: PositiveInt) -> Layer:
    """`flatten` as a layer, without params: between convolutions and dense layers.

    Args:
        spatial: number of axes between the batch and the channels: 2 for images, 1 for sequences. Axes before these are
            batch, so one axis too many takes the batch for positions: ``Flatten(3)`` of images ``(6, 3, 3, 4)`` returns
            ``(216,)``.

    >>> net = Serial(Conv(4, (3, 3)), relu, Flatten(2), Dense(10))
    >>> params = net.init(jax.random.key(0), jnp.zeros((8, 5, 5, 1)))
    >>> params[3]["kernel"].shape
    (36, 10)
    """
    return spatial_layer(lambda x: flatten(x, spatial), spatial)


@builder
def Pad(padding: Pads, *, padding_mode: PadMode = "constant", value: float | int = 0.0) -> Layer:
    """`pad` as a layer, without params.

    >>> Pad((1, (0, 2))).apply((), jnp.zeros((8, 5, 5, 3))).shape
    (8, 7, 7, 3)
    """
    axes = len(_per_axis_pads(padding))
    return spatial_layer(lambda x: pad(x, padding, padding_mode=padding_mode, value=value), axes, padding=padding)


@builder
def Resize(
    size: PerAxis, *, method: ResizeMethod = "linear", align_corners: bool = False, antialias: bool = True
) -> Layer:
    """`resize` as a layer, without params.

    >>> Resize((7, 7)).apply((), jnp.zeros((8, 5, 5, 3))).shape
    (8, 7, 7, 3)
    """
    run = lambda x: resize(x, size, method=method, align_corners=align_corners, antialias=antialias)
    return spatial_layer(run, len(window_sizes("size", size)), size=size)


@builder
def UpSample(
    factor: Factors, *, method: ResizeMethod = "nearest", align_corners: bool = False, antialias: bool = True
) -> Layer:
    """`upsample` as a layer, without params.

    >>> UpSample((2, 2)).apply((), jnp.zeros((8, 5, 5, 3))).shape
    (8, 10, 10, 3)
    """
    run = lambda x: upsample(x, factor, method=method, align_corners=align_corners, antialias=antialias)
    return spatial_layer(run, len(window_sizes("factor", factor)), factor=factor)


@builder
def PixelShuffle(factor: PerAxis) -> Layer:
    """`pixel_shuffle` as a layer, without params.

    >>> net = Serial(Conv(3 * 4, (3, 3), padding="same"), PixelShuffle((2, 2)))
    >>> params = net.init(jax.random.key(0), jnp.zeros((5, 5, 8)))
    >>> jax.jit(net.apply)(params, jnp.zeros((5, 5, 8))).shape
    (10, 10, 3)
    """
    return spatial_layer(lambda x: pixel_shuffle(x, factor), len(window_sizes("factor", factor)), factor=factor)


@builder
def PixelUnshuffle(factor: PerAxis) -> Layer:
    """`pixel_unshuffle` as a layer, without params.

    >>> PixelUnshuffle((2, 2)).apply((), jnp.zeros((10, 10, 3))).shape
    (5, 5, 12)
    """
    return spatial_layer(lambda x: pixel_unshuffle(x, factor), len(window_sizes("factor", factor)), factor=factor)


def _per_axis_pads(padding) -> list[tuple[int, int]]:
    """The pair (before, after) of each spatial axis."""
    each = padding if isinstance(padding, Sequence) else (padding,)
    require(1 <= len(each) <= 3, "padding for each of one to three spatial axes", padding, "for two, padding=(1, 1)")
    return [tuple(one) if isinstance(one, Sequence) else (one, one) for one in each]


def _check_resize(x, axes, method, align_corners) -> None:
    require(0 not in x.shape[-axes - 1 : -1], "at least one position", x, "pass a longer input")
    corners = not (align_corners and method.startswith("nearest"))
    require(corners, f"align_corners=False for method={method!r}", "align_corners=True", "choose another method")


@functools.partial(jax.jit, static_argnums=(1, 2, 3, 4, 5, 6))
def _resample(y, axis, m, method, align_corners, antialias, step=None):
    """Resample one axis to ``m`` positions, ``step`` positions of the input apart, by default n / m."""
    n = y.shape[axis]
    whole = step is None
    step = n / m if whole else step
    if m == n and whole:
        return y
    # jax.image widens the kernel where the axis shrinks; its cubic kernel, Keys' with a = -1/2, differs from that below
    # also where the axis grows. Linear interpolation that does not shrink is the same in both.
    widens = antialias and (method == "cubic" or (method == "linear" and at_most(m + 1, n)))
    if widens and at_most(2, n) and not (align_corners and m == 1):
        scale = (m - 1) / (n - 1) if align_corners else 1 / step
        # scale_and_translate reads output i at (i + 1/2 - shift) / scale - 1/2.
        shift = (1 - scale) / 2 if align_corners else 0.0  # so that entry 0 stays at 0
        shape = (*y.shape[:axis], m, *y.shape[axis + 1 :])
        scale, shift = jnp.full(1, scale, y.dtype), jnp.full(1, shift, y.dtype)
        return jax.image.scale_and_translate(y, shape, (axis,), scale, shift, method)
    if whole and method.startswith("nearest") and m % n == 0:
        return jnp.repeat(y, m // n, axis)
    if method.startswith("nearest"):
        twice = 2 * np.arange(m) + (method == "nearest")  # 2 i, or 2 (i + 1/2)
        # In integers where the step is n / m, so that no rounding moves an index.
        at = twice * n // (2 * m) if whole else np.minimum((twice / 2 * step).astype(int), n - 1)
        return jnp.take(y, at, axis, mode="clip")
    check_integer(n, y, f"{method} interpolation")
    at = np.arange(m) * ((n - 1) / max(m - 1, 1)) if align_corners else (np.arange(m) + 0.5) * step - 0.5
    first = np.floor(at).astype(int)  # the last entry at or before each point
    total = jnp.zeros((), y.dtype)
    for tap, weight in zip(*interpolation_weights(at - first, method), strict=True):
        # Clipped: beyond an end its last entry is repeated.
        part = jnp.take(y, np.clip(first + tap, 0, n - 1), axis, mode="clip")
        by_position = weight.reshape([-1 if a == axis else 1 for a in range(y.ndim)])
        total = total + part * jnp.broadcast_to(jnp.asarray(by_position, y.dtype), part.shape)
    return total
