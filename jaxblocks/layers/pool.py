r"""Pooling: the maximum or the mean of each window_shape, of everything, or of a given number of bins.

Axis letters: ``...`` batch, ``*spatial`` positions (one to three axes), then channels, each
pooled by itself. A pool has no params.

Windows are taken one axis at a time, in about :math:`\log_2 k` steps for a window_shape of
:math:`k`. That is exact, has all derivatives in both modes, and is much faster on CPU than
``lax.reduce_window``, whose gradient is a scatter.
"""

import functools
from operator import add

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from jaxblocks.checks import describe, require_floating
from jaxblocks.core import Layer, builder
from jaxblocks.precision import widen
from jaxblocks.windows import (
    Padding,
    PerAxis,
    as_window,
    pads_of,
    per_axis,
    positions,
    require_padding,
    require_spatial,
    warn_channels_first,
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


def max_pool(
    x: Float[Array, "... channels"], window_shape: PerAxis, stride: PerAxis | None = None, padding: Padding = "valid"
) -> Float[Array, "... channels"]:
    r"""The maximum of each window_shape, :math:`y_i = \max_j x_{si + j}`.

    Where several entries are the largest, the derivative belongs to the first of them, in
    the order of the axes. NaN in a window_shape comes out as NaN. What is padded is never the maximum.

    Args:
        x: ``(..., *spatial, channels)``.
        window_shape: a number for one spatial axis, a tuple with a number per axis for up to three.
        stride: how far the window_shape moves; by default the window_shape, so that nothing overlaps.
            What is left over at the end is dropped.
        padding: as in `conv`, less than the window_shape on either side.

    Raises:
        ValueError: where the window_shape does not fit into the input, or the rank is too low.
        TypeError: for integer ``x``.

    >>> max_pool(jnp.array([[1.0], [3.0], [2.0], [0.0]]), 2)[:, 0]
    Array([3., 2.], dtype=float32)
    >>> max_pool(jnp.zeros((8, 28, 28, 3)), (3, 3), 2, padding=1).shape
    (8, 14, 14, 3)

    Source: Krapac & Segvic, Convolutional models.
    """
    return _max_pool("max_pool", x, window_shape, stride, padding)


def avg_pool(
    x: Float[Array, "... channels"],
    window_shape: PerAxis,
    stride: PerAxis | None = None,
    padding: Padding = "valid",
    count_padding: bool = False,
) -> Float[Array, "... channels"]:
    r"""The mean of each window_shape, :math:`y_i = \frac{1}{|W_i|} \sum_{j \in W_i} x_{si + j}`.

    By default :math:`W_i` holds the entries of the window_shape that are inside the input, so a
    constant stays a constant; with ``count_padding=True`` padded zeros count as entries
    (torch's default).

    Args:
        x, window_shape, stride, padding: as in `max_pool`.
        count_padding: whether to divide by the size of the window_shape everywhere.

    Raises:
        ValueError: where the window_shape does not fit into the input, or the rank is too low.
        TypeError: for integer ``x``.

    >>> avg_pool(jnp.array([[1.0], [3.0], [2.0]]), 2, 1, padding=1)[:, 0]
    Array([1. , 2. , 2.5, 2. ], dtype=float32)

    Source: Krapac & Segvic, Convolutional models.
    """
    return _mean_pool("avg_pool", x, window_shape, stride, padding, count_padding)


def global_max_pool(x: Float[Array, "... channels"], spatial: int) -> Float[Array, "... channels"]:
    """The maximum over all positions, ``(..., *spatial, channels)`` to ``(..., channels)``.

    After convolutions it makes an equivariant net invariant to translations. It is
    ``jnp.max``: where several entries are the largest, they share the derivative equally.

    Args:
        x: ``(..., *spatial, channels)``.
        spatial: how many axes before the last are positions: 2 for images, 1 for sequences.

    >>> global_max_pool(jnp.arange(12.0).reshape(2, 3, 2), spatial=2)
    Array([10., 11.], dtype=float32)

    Source: Diehl 2023, section 1.1 (invariance; see `conv` on equivariance).
    """
    return _global_max("global_max_pool", x, spatial)


def global_avg_pool(x: Float[Array, "... channels"], spatial: int) -> Float[Array, "... channels"]:
    """The mean over all positions, ``(..., *spatial, channels)`` to ``(..., channels)``.

    Args:
        x: ``(..., *spatial, channels)``.
        spatial: how many axes before the last are positions: 2 for images, 1 for sequences.

    >>> global_avg_pool(jnp.arange(12.0).reshape(2, 3, 2), spatial=2)
    Array([5., 6.], dtype=float32)

    Source: Lin, Chen & Yan 2014, Network in network.
    """
    return _global_mean("global_avg_pool", x, spatial)


def adaptive_max_pool(x: Float[Array, "... channels"], size: PerAxis) -> Float[Array, "... channels"]:
    r"""The maximum of each of ``size`` bins: whatever the input's size, the output has this one.

    Bin :math:`i` of :math:`m` on an axis of :math:`n` holds the positions from
    :math:`\lfloor i n/m \rfloor` to before :math:`\lceil (i+1) n/m \rceil`; where :math:`m`
    does not divide :math:`n`, neighbors overlap. Ties as in `max_pool`.

    Args:
        x: ``(..., *spatial, channels)``.
        size: :math:`m`, a number for one spatial axis, a tuple with a number per axis for up to three.

    >>> adaptive_max_pool(jnp.arange(5.0)[:, None], 2)[:, 0]  # bins of positions 0 to 2 and 2 to 4
    Array([2., 4.], dtype=float32)

    Source: torch.nn.AdaptiveMaxPool2d.
    """
    for axis, m in _bins("adaptive_max_pool", x, size):
        n = x.shape[axis]
        if n % m == 0:
            x = _combine(_first_maximum, x, axis, n // m, n // m)
        else:
            bins = [lax.slice_in_dim(x, i * n // m, -(-(i + 1) * n // m), axis=axis) for i in range(m)]
            x = jnp.concatenate([_combine(_first_maximum, b, axis, b.shape[axis], 1) for b in bins], axis)
    return x


def adaptive_avg_pool(x: Float[Array, "... channels"], size: PerAxis) -> Float[Array, "... channels"]:
    """The mean of each of ``size`` bins: whatever the input's size, the output has this one.

    Bins and arguments are those of `adaptive_max_pool`.

    >>> adaptive_avg_pool(jnp.arange(5.0)[:, None], 2)[:, 0]
    Array([1., 3.], dtype=float32)

    Source: torch.nn.AdaptiveAvgPool2d.
    """
    y = widen(x)
    for axis, m in _bins("adaptive_avg_pool", x, size):
        n = y.shape[axis]
        if n % m == 0:
            y = _combine(add, y, axis, n // m, n // m) / (n // m)
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
    axes = len(as_window("MaxPool", window_shape))
    require_padding("MaxPool", padding, axes)

    def init(key, x):
        require_floating("MaxPool", x=x)
        require_spatial("MaxPool", x, axes)
        warn_channels_first("MaxPool", x, axes)
        return ()

    def apply(params, x):
        return _max_pool("MaxPool", x, window_shape, stride, padding)

    return Layer(init, apply)


@builder
def AvgPool(
    window_shape: PerAxis, *, stride: PerAxis | None = None, padding: Padding = "valid", count_padding: bool = False
) -> Layer:
    """`avg_pool` as a layer, without params.

    >>> AvgPool(2).apply((), jnp.array([[1.0], [3.0]]))
    Array([[2.]], dtype=float32)
    """
    axes = len(as_window("AvgPool", window_shape))
    require_padding("AvgPool", padding, axes)

    def init(key, x):
        require_floating("AvgPool", x=x)
        require_spatial("AvgPool", x, axes)
        warn_channels_first("AvgPool", x, axes)
        return ()

    def apply(params, x):
        return _mean_pool("AvgPool", x, window_shape, stride, padding, count_padding)

    return Layer(init, apply)


@builder
def GlobalMaxPool(spatial: int) -> Layer:
    """`global_max_pool` as a layer, without params: the maximum over all positions.

    Args:
        spatial: how many axes stand between the batch and the channels: 2 for images, 1 for sequences.

    >>> GlobalMaxPool(1).apply((), jnp.array([[1.0, 5.0], [3.0, 2.0]]))
    Array([3., 5.], dtype=float32)
    """
    (spatial,) = per_axis("GlobalMaxPool", "spatial", spatial, 1)

    def init(key, x):
        _positions_of("GlobalMaxPool", x, spatial)
        warn_channels_first("GlobalMaxPool", x, spatial)
        return ()

    def apply(params, x):
        return _global_max("GlobalMaxPool", x, spatial)

    return Layer(init, apply)


@builder
def GlobalAvgPool(spatial: int) -> Layer:
    """`global_avg_pool` as a layer, without params: the mean over all positions.

    Args:
        spatial: how many axes stand between the batch and the channels: 2 for images, 1 for sequences.

    >>> GlobalAvgPool(1).apply((), jnp.array([[1.0, 5.0], [3.0, 2.0]]))
    Array([2. , 3.5], dtype=float32)
    """
    (spatial,) = per_axis("GlobalAvgPool", "spatial", spatial, 1)

    def init(key, x):
        _positions_of("GlobalAvgPool", x, spatial)
        warn_channels_first("GlobalAvgPool", x, spatial)
        return ()

    def apply(params, x):
        return _global_mean("GlobalAvgPool", x, spatial)

    return Layer(init, apply)


# ---- how it is computed ------------------------------------------------------------------------


def _max_pool(where, x, window_shape, stride, padding):
    window_shape, strides, pads = _geometry(where, x, window_shape, stride, padding)
    x = _pad(x, pads, -jnp.inf)
    # the last axis first, so that the first maximum is the first in the order of the axes
    for axis in reversed(range(len(window_shape))):
        x = _combine(_first_maximum, x, axis - len(window_shape) - 1, window_shape[axis], strides[axis])
    return x


def _mean_pool(where, x, window_shape, stride, padding, count_padding):
    window_shape, strides, pads = _geometry(where, x, window_shape, stride, padding)
    y = _pad(widen(x), pads, 0.0)
    for i, (k, s, (before, after)) in enumerate(zip(window_shape, strides, pads, strict=True)):
        axis = i - len(window_shape) - 1
        n, y = y.shape[axis] - before - after, _combine(add, y, axis, k, s)
        if count_padding or not before + after:
            y = y / k
        else:
            starts = np.arange(y.shape[axis]) * s - before
            inside = np.minimum(starts + k, n) - np.maximum(starts, 0)  # entries of each window_shape
            by_position = inside.reshape([-1 if a == y.ndim + axis else 1 for a in range(y.ndim)])
            y = y / np.broadcast_to(by_position, y.shape).astype(y.dtype)
    return y.astype(x.dtype)


def _global_max(where, x, spatial):
    return jnp.max(x, _positions_of(where, x, spatial))


def _global_mean(where, x, spatial):
    return jnp.mean(widen(x), _positions_of(where, x, spatial)).astype(x.dtype)


def _combine(operation, x, axis, window_shape, stride):
    """An associative operation over each window_shape along an axis, earlier entries on its left."""
    cut = lambda x, start, stop, step=1: lax.slice_in_dim(x, start, stop, step, axis % x.ndim)
    while window_shape % 2 == 0 and stride % 2 == 0:  # pairs that no window_shape separates
        even = x.shape[axis] // 2 * 2
        x = operation(cut(x, 0, even, 2), cut(x, 1, even, 2))
        window_shape, stride = window_shape // 2, stride // 2
    reach = (
        x.shape[axis] - window_shape
    ) // stride * stride + 1  # from the first start of a window_shape to behind the last
    if window_shape <= stride:  # nothing overlaps
        return functools.reduce(operation, [cut(x, start, start + reach, stride) for start in range(window_shape)])
    total, done, span = (
        None,
        0,
        1,
    )  # x[i] combines `span` entries from i on; total the first `done` of each window_shape
    while True:
        if window_shape & span:
            part = cut(x, done, done + reach, stride)
            total, done = part if total is None else operation(total, part), done + span
        if done == window_shape:
            return total
        x = operation(cut(x, 0, x.shape[axis] - span), cut(x, span, x.shape[axis]))
        span *= 2


def _first_maximum(a, b):
    """The larger one, the first where they are equal; NaN if there is one."""
    return jnp.where((a >= b) | (a != a), a, b)


def _pad(x, pads, value):
    if not any(map(any, pads)):
        return x
    around = [(0, 0)] * (x.ndim - len(pads) - 1) + [*pads, (0, 0)]
    return jnp.pad(x, around, constant_values=value)


# ---- what must fit -----------------------------------------------------------------------------


def _geometry(where, x, window_shape, stride, padding):
    """Window, stride and padding of each spatial axis."""
    require_floating(where, x=x)
    window_shape = as_window(where, window_shape)
    axes = len(window_shape)
    require_spatial(where, x, axes)
    strides = window_shape if stride is None else per_axis(where, "stride", stride, axes)
    sizes = x.shape[-axes - 1 : -1]
    pads = pads_of(where, padding, sizes, window_shape, strides)
    if any(max(pair) >= k for pair, k in zip(pads, window_shape, strict=True)):
        raise ValueError(
            f"{where} expects less padding than its window_shape {window_shape}, since a window_shape of padding alone has no value, "
            f"but padding={padding!r} came; pad less."
        )
    positions(where, x, sizes, window_shape, strides, pads)
    return window_shape, strides, pads


def _bins(where, x, size):
    """Each spatial axis, the last one first, with its number of bins."""
    size = as_window(where, size, "size")
    return list(zip(_positions_of(where, x, len(size)), size, strict=True))[::-1]


def _positions_of(where, x, spatial):
    """The axes of positions."""
    require_floating(where, x=x)
    (spatial,) = per_axis(where, "spatial", spatial, 1)
    require_spatial(where, x, spatial)
    if 0 in x.shape[-spatial - 1 : -1]:
        raise ValueError(f"{where} expects at least one position, but {describe(x)} came; pass a longer input.")
    ndim = len(x.shape)
    return tuple(range(ndim - 1 - spatial, ndim - 1))
