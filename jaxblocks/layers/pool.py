r"""Pooling: the maximum or the mean of each window, of all positions, or of a given number of bins.

Axis letters: ``...`` batch, ``*spatial`` positions (one to three axes), then channels, each
pooled separately. A pool has no params.

Windows are reduced one axis at a time, in about :math:`\log_2 k` steps for a window of :math:`k`
entries. The result is exact, has all derivatives in both modes, and is much faster on CPU than
``lax.reduce_window``, whose gradient is a scatter.
"""

import functools
from collections.abc import Callable
from operator import add
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from jaxblocks.checks import PositiveInt, checked, require
from jaxblocks.core import ArrayOrShape, Layer, builder
from jaxblocks.precision import widen
from jaxblocks.sliding_windows import (
    Padding,
    PerAxis,
    check_fit,
    check_spatial,
    per_axis,
    slide,
    warn_channels_first,
    window_sizes,
)

__all__ = [
    "AvgPool",
    "GlobalAvgPool",
    "GlobalMaxPool",
    "MaxPool",
    "adaptive_avg_pool",
    "adaptive_max_pool",
    "avg_pool",
    "global_avg_pool",
    "global_max_pool",
    "max_pool",
]


@checked
def max_pool(
    x: Float[Array, "... channels"], window_shape: PerAxis, *, stride: PerAxis | None = None, padding: Padding = "valid"
) -> Float[Array, "... channels"]:
    r"""The maximum of each window, :math:`y_i = \max_j x_{si + j}`.

    On ties the gradient goes to the first of the largest entries, in the order of the axes.
    NaN in a window gives NaN. Padding is never the maximum.

    Args:
        x: ``(..., *spatial, channels)``.
        window_shape: an integer for one spatial axis, or a tuple with an integer for each of up to three axes.
        stride: :math:`s`, the distance between adjacent windows; by default the window's size, so that windows
            do not overlap. Remaining entries at the end are dropped.
        padding: as in `conv`, less than the window's size on either side.

    Raises:
        ValueError: where the window does not fit into the input, or the rank is too low.
        TypeError: for integer ``x``.

    >>> max_pool(jnp.array([[1.0], [3.0], [2.0], [0.0]]), 2)[:, 0]
    Array([3., 2.], dtype=float32)
    >>> max_pool(jnp.zeros((8, 28, 28, 3)), (3, 3), stride=2, padding=1).shape
    (8, 14, 14, 3)

    Source: Goodfellow, Bengio & Courville 2016, Deep learning, section 9.3.
    """
    window, strides, pads = _windows(x, window_shape, stride, padding)
    x = _pad(x, pads, -jnp.inf)
    # the last axis first, so that the first maximum is the first in the order of the axes
    for axis in reversed(range(len(window))):
        x = _reduce_windows(_first_maximum, x, axis - len(window) - 1, window[axis], strides[axis])
    return x


@checked
def avg_pool(
    x: Float[Array, "... channels"],
    window_shape: PerAxis,
    *,
    stride: PerAxis | None = None,
    padding: Padding = "valid",
    count_padding: bool = False,
) -> Float[Array, "... channels"]:
    r"""The mean of each window, :math:`y_i = \frac{1}{|W_i|} \sum_{j \in W_i} x_{si + j}`.

    By default :math:`W_i` contains the entries of the window that are inside the input, so that the
    mean of a constant is that constant; with ``count_padding=True`` padded zeros are included
    (torch's default).

    Args:
        x, window_shape, stride, padding: as in `max_pool`.
        count_padding: whether to divide by the size of the window everywhere.

    Raises:
        ValueError: where the window does not fit into the input, or the rank is too low.
        TypeError: for integer ``x``.

    >>> avg_pool(jnp.array([[1.0], [3.0], [2.0]]), 2, stride=1, padding=1)[:, 0]
    Array([1. , 2. , 2.5, 2. ], dtype=float32)

    Source: Goodfellow, Bengio & Courville 2016, Deep learning, section 9.3.
    """
    window, strides, pads = _windows(x, window_shape, stride, padding)
    y = _pad(widen(x), pads, 0.0)
    for i, (k, s, (before, after)) in enumerate(zip(window, strides, pads, strict=True)):
        axis = i - len(window) - 1
        n, y = y.shape[axis] - before - after, _reduce_windows(add, y, axis, k, s)
        if count_padding or not before + after:
            y = y / k
        else:
            starts = np.arange(y.shape[axis]) * s - before
            inside = np.minimum(starts + k, n) - np.maximum(starts, 0)  # entries of each window
            by_position = inside.reshape([-1 if a == y.ndim + axis else 1 for a in range(y.ndim)])
            y = y / np.broadcast_to(by_position, y.shape).astype(y.dtype)
    return y.astype(x.dtype)


@checked
def global_max_pool(x: Float[Array, "... channels"], spatial: PositiveInt) -> Float[Array, "... channels"]:
    """The maximum over all positions, ``(..., *spatial, channels)`` to ``(..., channels)``.

    After convolutions it makes an equivariant net invariant to translations. It is
    ``jnp.max``: on ties the largest entries share the gradient equally.

    Args:
        x: ``(..., *spatial, channels)``.
        spatial: number of axes before the last that are positions: 2 for images, 1 for sequences.

    >>> global_max_pool(jnp.arange(12.0).reshape(2, 3, 2), spatial=2)
    Array([10., 11.], dtype=float32)

    Source: Diehl 2023, section 1.1 (invariance; see `conv` on equivariance).
    """
    return jnp.max(x, _spatial_axes(x, spatial))


@checked
def global_avg_pool(x: Float[Array, "... channels"], spatial: PositiveInt) -> Float[Array, "... channels"]:
    """The mean over all positions, ``(..., *spatial, channels)`` to ``(..., channels)``.

    Args:
        x: ``(..., *spatial, channels)``.
        spatial: number of axes before the last that are positions: 2 for images, 1 for sequences.

    >>> global_avg_pool(jnp.arange(12.0).reshape(2, 3, 2), spatial=2)
    Array([5., 6.], dtype=float32)

    Source: Lin, Chen & Yan 2014, Network in network, arXiv:1312.4400.
    """
    return jnp.mean(widen(x), _spatial_axes(x, spatial)).astype(x.dtype)


@checked
def adaptive_max_pool(x: Float[Array, "... channels"], size: PerAxis) -> Float[Array, "... channels"]:
    r"""The maximum of each of ``size`` bins: the output has this size for any size of the input.

    Bin :math:`i` of :math:`m` on an axis of :math:`n` contains the positions from
    :math:`\lfloor i n/m \rfloor` up to, but excluding, :math:`\lceil (i+1) n/m \rceil`; where :math:`m`
    does not divide :math:`n`, adjacent bins overlap. Ties as in `max_pool`.

    Args:
        x: ``(..., *spatial, channels)``.
        size: :math:`m`, an integer for one spatial axis, or a tuple with an integer for each of up to three axes.

    >>> adaptive_max_pool(jnp.arange(5.0)[:, None], 2)[:, 0]  # bins of positions 0 to 2 and 2 to 4
    Array([2., 4.], dtype=float32)

    Source: torch.nn.AdaptiveMaxPool2d.
    """
    for axis, m in _bins(x, size):
        n = x.shape[axis]
        if n % m == 0:
            x = _reduce_windows(_first_maximum, x, axis, n // m, n // m)
        else:
            bins = [lax.slice_in_dim(x, i * n // m, -(-(i + 1) * n // m), axis=axis) for i in range(m)]
            x = jnp.concatenate([_reduce_windows(_first_maximum, b, axis, b.shape[axis], 1) for b in bins], axis)
    return x


@checked
def adaptive_avg_pool(x: Float[Array, "... channels"], size: PerAxis) -> Float[Array, "... channels"]:
    """The mean of each of ``size`` bins: the output has this size for any size of the input.

    Bins and arguments are those of `adaptive_max_pool`.

    >>> adaptive_avg_pool(jnp.arange(5.0)[:, None], 2)[:, 0]
    Array([1., 3.], dtype=float32)

    Source: torch.nn.AdaptiveAvgPool2d.
    """
    y = widen(x)
    for axis, m in _bins(x, size):
        n = y.shape[axis]
        if n % m == 0:
            y = _reduce_windows(add, y, axis, n // m, n // m) / (n // m)
        else:
            bins = [lax.slice_in_dim(y, i * n // m, -(-(i + 1) * n // m), axis=axis) for i in range(m)]
            y = jnp.concatenate([jnp.mean(b, axis, keepdims=True) for b in bins], axis)
    return y.astype(x.dtype)


@builder
def MaxPool(window_shape: PerAxis, *, stride: PerAxis | None = None, padding: Padding = "valid") -> Layer:
    """`max_pool` as a layer, without params.

    >>> net = Serial(Conv(8, (3, 3), padding="same"), relu, MaxPool((2, 2)))
    >>> params = net.init(jax.random.key(0), jnp.zeros((28, 28, 1)))
    >>> net.apply(params, jnp.zeros((28, 28, 1))).shape
    (14, 14, 8)
    """
    axes = len(window_sizes("window_shape", window_shape))
    per_axis("padding", padding, axes)
    return _pooling(axes, lambda x: max_pool(x, window_shape, stride=stride, padding=padding))


@builder
def AvgPool(
    window_shape: PerAxis, *, stride: PerAxis | None = None, padding: Padding = "valid", count_padding: bool = False
) -> Layer:
    """`avg_pool` as a layer, without params.

    >>> AvgPool(2).apply((), jnp.array([[1.0], [3.0]]))
    Array([[2.]], dtype=float32)
    """
    axes = len(window_sizes("window_shape", window_shape))
    per_axis("padding", padding, axes)
    options: dict[str, Any] = dict(stride=stride, padding=padding, count_padding=count_padding)
    return _pooling(axes, lambda x: avg_pool(x, window_shape, **options))


@builder
def GlobalMaxPool(spatial: PositiveInt) -> Layer:
    """`global_max_pool` as a layer, without params: the maximum over all positions.

    Args:
        spatial: number of axes between the batch and the channels: 2 for images, 1 for sequences.

    >>> GlobalMaxPool(1).apply((), jnp.array([[1.0, 5.0], [3.0, 2.0]]))
    Array([3., 5.], dtype=float32)
    """
    return _pooling(spatial, lambda x: global_max_pool(x, spatial))


@builder
def GlobalAvgPool(spatial: PositiveInt) -> Layer:
    """`global_avg_pool` as a layer, without params: the mean over all positions.

    Args:
        spatial: number of axes between the batch and the channels: 2 for images, 1 for sequences.

    >>> GlobalAvgPool(1).apply((), jnp.array([[1.0, 5.0], [3.0, 2.0]]))
    Array([2. , 3.5], dtype=float32)
    """
    return _pooling(spatial, lambda x: global_avg_pool(x, spatial))


# ---- the computation -------------------------------------------------------------------------


def _pooling(axes: int, pool: Callable) -> Layer:
    """A pool over ``axes`` spatial axes as a layer without params."""

    def init(key, x: Float[ArrayOrShape, "..."]):
        check_spatial(x, axes)
        warn_channels_first(x, axes)
        return ()

    def apply(params, x: Float[Array, "..."]):
        return pool(x)

    return Layer(init, apply)


def _windows(x, window_shape, stride, padding):
    """Size, stride and padding of the windows along each spatial axis."""
    window = window_sizes("window_shape", window_shape)
    check_spatial(x, len(window))
    windows = slide(x.shape[-len(window) - 1 : -1], window, window if stride is None else stride, 1, padding)
    less = all(max(pair) < k for pair, k in zip(windows.pads, window, strict=True))
    expected = f"less padding than its window_shape {window}, since a window of padding alone has no value"
    require(less, expected, f"padding={padding!r}", "reduce the padding")
    check_fit(windows, x)
    return window, windows.strides, windows.pads


def _spatial_axes(x, spatial):
    """The spatial axes, of which there is at least one."""
    check_spatial(x, spatial)
    require(0 not in x.shape[-spatial - 1 : -1], "at least one position", x, "pass a longer input")
    return tuple(range(x.ndim - 1 - spatial, x.ndim - 1))


def _bins(x, size):
    """Each spatial axis, the last one first, with its number of bins."""
    size = window_sizes("size", size)
    return list(zip(_spatial_axes(x, len(size)), size, strict=True))[::-1]


def _reduce_windows(operation, x, axis, window, stride) -> Any:
    """Reduce each window along an axis by an associative operation, with earlier entries on its left."""
    cut = lambda x, start, stop, step=1: lax.slice_in_dim(x, start, stop, step, axis % x.ndim)
    while window % 2 == 0 and stride % 2 == 0:  # every window consists of whole pairs
        even = x.shape[axis] // 2 * 2
        x = operation(cut(x, 0, even, 2), cut(x, 1, even, 2))
        window, stride = window // 2, stride // 2
    reach = (x.shape[axis] - window) // stride * stride + 1  # from the first start of a window to one past the last
    if window <= stride:  # windows do not overlap
        return functools.reduce(operation, [cut(x, start, start + reach, stride) for start in range(window)])
    # x[i] combines `span` entries from i on; total combines the first `done` of each window
    total, done, span = None, 0, 1
    while True:
        if window & span:
            part = cut(x, done, done + reach, stride)
            total, done = part if total is None else operation(total, part), done + span
        if done == window:
            return total
        x = operation(cut(x, 0, x.shape[axis] - span), cut(x, span, x.shape[axis]))
        span *= 2


def _first_maximum(a, b):
    """The maximum, the first argument on ties; NaN if either is NaN."""
    return jnp.where((a >= b) | (a != a), a, b)


def _pad(x, pads, value):
    if not any(map(any, pads)):
        return x
    around = [(0, 0)] * (x.ndim - len(pads) - 1) + [*pads, (0, 0)]
    return jnp.pad(x, around, constant_values=value)
