r"""Pooling: the maximum or the mean of each window, of all positions, or of a given number of bins.

Axis letters: ``...`` batch, ``*spatial`` positions (one to three axes), then channels, each
pooled separately. A pool has no params.

Windows of at most 9 entries that neither overlap nor are dilated are reduced over all axes at once, larger sums of
adjacent windows (whose stride is their size) too, others one axis at a time, in about $log_2 k$ steps for a
window of $k$ entries. The gradient of adjacent windows is broadcast to their entries. The result is exact, has
all derivatives in both modes, and is much faster on CPU than ``lax.reduce_window``, whose gradient is a scatter.
"""

import functools
import math
from collections.abc import Callable
from operator import add
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Inexact

from jaxblocks.backend.linear_maps import unsharded
from jaxblocks.backend.precision import widen
from jaxblocks.backend.quotients import Order, norm
from jaxblocks.backend.sliding_windows import (
    Padding,
    PerAxis,
    check_fit,
    check_spatial,
    entries_of_windows,
    per_axis,
    slices_of_entries,
    slide,
    spatial_layer,
    spatial_sizes,
    sum_of_windows,
    window_sizes,
)
from jaxblocks.backend.symbolic_sizes import at_most, check_integer
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import PositiveInt, checked
from jaxblocks.core.pairs import Layer, builder
from jaxblocks.statistics import average, expand_mask

__all__ = [
    "AvgPool",
    "GlobalAvgPool",
    "GlobalMaxPool",
    "LpPool",
    "MaxPool",
    "adaptive_avg_pool",
    "avg_pool",
    "global_avg_pool",
    "global_max_pool",
    "lp_pool",
    "max_pool",
]


@checked
def max_pool(
    x: Float[Array, "... channels"],
    window_shape: PerAxis,
    *,
    stride: PerAxis | None = None,
    dilation: PerAxis = 1,
    padding: Padding = "valid",
    ceil_mode: bool = False,
) -> Float[Array, "... channels"]:
    r"""The maximum of each window, $y_i = max_j x_{si + dj}$.

    On ties the gradient goes to the first of the largest entries, in the order of the axes.
    NaN in a window gives NaN. Padding is never the maximum.

    Args:
        x: ``(..., *spatial, channels)``.
        window_shape: a tuple with an integer for each of up to three spatial axes, ``(2, 2)`` for images; an integer
            stands for one axis, and is rejected for inputs of more than three axes, such as a batch of images.
        stride: $s$, the distance between adjacent windows; by default the window's size, so that windows
            do not overlap.
        dilation: $d$, the distance between adjacent entries of a window.
        padding: as in `conv`, less than the window's span on either side.
        ceil_mode: ``False`` drops remaining entries at the end, where no whole window fits; ``True`` adds a last
            window that reaches beyond the end, if it starts inside the (padded) input.

    Raises:
        ValueError: where the window does not fit into the input, or the rank is too low.
        TypeError: for integer ``x``.

    >>> x = jnp.array([[1.0], [3.0], [2.0], [0.0], [5.0]])
    >>> max_pool(x, 2)[:, 0]
    Array([3., 2.], dtype=float32)
    >>> max_pool(x, 2, ceil_mode=True)[:, 0]
    Array([3., 2., 5.], dtype=float32)
    >>> max_pool(jnp.zeros((8, 28, 28, 3)), (3, 3), stride=2, padding=1).shape
    (8, 14, 14, 3)

    Source: Goodfellow, Bengio & Courville 2016, Deep learning, section 9.3.
    """
    window, (_, strides, dilations, _), around = _windows(x, window_shape, stride, dilation, padding, ceil_mode)
    return _reduce_all(_first_maximum, _pad(x, around, -jnp.inf), window, strides, dilations)


@checked
def avg_pool(
    x: Inexact[Array, "... channels"],
    window_shape: PerAxis,
    *,
    stride: PerAxis | None = None,
    dilation: PerAxis = 1,
    padding: Padding = "valid",
    ceil_mode: bool = False,
    count_padding: bool = False,
) -> Inexact[Array, "... channels"]:
    r"""The mean of each window, $y_i = (1 / (|W_i|)) ∑_{j ∈ W_i} x_{si + dj}$.

    By default $W_i$ contains the entries of the window that are inside the input, so that the
    mean of a constant is that constant; with ``count_padding=True`` padded zeros are included
    (torch's default), but not the entries of a last window beyond them.

    Args:
        x, window_shape, stride, dilation, padding, ceil_mode: as in `max_pool`.
        count_padding: whether to divide by the size of the window, its padding included.

    Raises:
        ValueError: where the window does not fit into the input, or the rank is too low.
        TypeError: for integer ``x``.

    >>> avg_pool(jnp.array([[1.0], [3.0], [2.0]]), 2, stride=1, padding=1)[:, 0]
    Array([1. , 2. , 2.5, 2. ], dtype=float32)

    Source: Goodfellow, Bengio & Courville 2016, Deep learning, section 9.3.
    """
    window, (_, strides, dilations, pads), around = _windows(x, window_shape, stride, dilation, padding, ceil_mode)
    # Sums first, divisions after: the number of entries of a window is the product of its numbers along the axes.
    y = _reduce_all(add, _pad(widen(x), around, 0.0), window, strides, dilations)
    for i, (k, s, d, (before, after)) in enumerate(zip(window, strides, dilations, pads, strict=True)):
        axis = i - len(window) - 1
        # Padding by `padding` counts or not, by option; the positions that ceil_mode adds never count, as in PyTorch.
        low, high = (before, after) if count_padding else (0, 0)
        n = x.shape[axis] + low + high
        # `before - low` entries of padding are in front of the axis of n, which includes those that count.
        counts = _counts(n, k, s, d, before - low, y.shape[axis])  # entries of each window
        if isinstance(counts, np.ndarray) and (counts == k).all():
            y = y / int(k)
        else:
            by_position = counts.reshape([-1 if a == y.ndim + axis else 1 for a in range(y.ndim)])
            y = y / jnp.broadcast_to(jnp.asarray(by_position, y.dtype), y.shape)
    return y.astype(x.dtype)


@checked
def lp_pool(
    x: Float[Array, "... channels"],
    window_shape: PerAxis,
    *,
    order: Order = 2,
    stride: PerAxis | None = None,
    dilation: PerAxis = 1,
    padding: Padding = "valid",
    ceil_mode: bool = False,
) -> Float[Array, "... channels"]:
    r"""The norm of each window, $y_i = (∑_j |x_{si + dj}|^r)^{1/r}$.

    Between the sum of magnitudes, for r = ``order`` = 1, and the maximum, for large r. No power overflows or
    underflows. The derivative of a window of zeros is 0, and for an order other than 2 also that with respect to an
    entry that is 0: subgradients. (PyTorch takes no magnitudes, so that entries of odd powers cancel, and scales up a
    last window that ``ceil_mode`` adds.) The entries of all windows are in memory at once.

    Args:
        x, window_shape, stride, dilation, padding, ceil_mode: as in `max_pool`. Padding adds nothing.
        order: r, a Python number >= 1; ``math.inf`` gives the largest magnitude.

    Raises:
        ValueError: for an order below 1, where the window does not fit into the input, or the rank is too low.
        TypeError: for integer ``x``.

    >>> lp_pool(jnp.array([[3.0], [-4.0], [0.0], [1.0]]), 2)[:, 0]
    Array([5., 1.], dtype=float32)

    Source: Sermanet, Chintala & LeCun 2012, Convolutional neural networks applied to house numbers digit
    classification (arXiv:1204.3968).
    """
    window, windows, around = _windows(x, window_shape, stride, dilation, padding, ceil_mode)
    entries = entries_of_windows(_pad(widen(x), around, 0.0), window, windows)
    return norm(entries, tuple(range(entries.ndim - 1 - len(window), entries.ndim - 1)), order).astype(x.dtype)


@checked
def global_max_pool(
    x: Float[Array, "... channels"], spatial: PositiveInt, *, mask: Bool[Array, "..."] | None = None
) -> Float[Array, "... channels"]:
    """The maximum over all positions, ``(..., *spatial, channels)`` to ``(..., channels)``.

    After convolutions it makes an equivariant net invariant to translations. It is
    ``jnp.max``: on ties the largest entries share the gradient equally.

    Args:
        x: ``(..., *spatial, channels)``.
        spatial: number of axes before the last that are positions: 2 for images, 1 for sequences.
        mask: True at the positions that count, ``(..., *spatial)`` or leading axes of it; the maximum of none is 0.

    >>> global_max_pool(jnp.arange(12.0).reshape(2, 3, 2), spatial=2)
    Array([10., 11.], dtype=float32)

    Source: Goodfellow, Bengio & Courville 2016, Deep learning, section 9.3; Diehl 2023, section 1.1 (invariance; see
    `conv` on equivariance).
    """
    axes = _spatial_axes(x, spatial)
    if mask is None:
        return jnp.max(x, axes)
    valid = expand_mask(mask, x)
    largest = jnp.max(jnp.where(valid, x, -jnp.inf), axes)
    return jnp.where(jnp.any(valid, axes), largest, 0)


@checked
def global_avg_pool(
    x: Inexact[Array, "... channels"], spatial: PositiveInt, *, mask: Bool[Array, "..."] | None = None
) -> Inexact[Array, "... channels"]:
    """The mean over all positions, ``(..., *spatial, channels)`` to ``(..., channels)``.

    Args:
        x: ``(..., *spatial, channels)``.
        spatial: number of axes before the last that are positions: 2 for images, 1 for sequences.
        mask: True at the positions that count, ``(..., *spatial)`` or leading axes of it; the mean of none is 0.

    >>> global_avg_pool(jnp.arange(12.0).reshape(2, 3, 2), spatial=2)
    Array([5., 6.], dtype=float32)

    Source: Lin, Chen & Yan 2014, Network in network, arXiv:1312.4400.
    """
    axes = _spatial_axes(x, spatial)
    return jnp.squeeze(average(widen(x), axes, mask), axes).astype(x.dtype)


@checked
def adaptive_avg_pool(x: Float[Array, "... channels"], size: PerAxis) -> Float[Array, "... channels"]:
    r"""The mean of each of ``size`` bins: the output has this size for any size of the input.

    Bin $i$ of $m$ on an axis of $n$ contains the positions from $⌊i n/m⌋$ up to, but excluding, $⌈(i+1) n/m⌉$; where
    $m$ does not divide $n$, adjacent bins overlap, as in PyTorch.

    Args:
        x: ``(..., *spatial, channels)``.
        size: $m$, a tuple with an integer for each of up to three spatial axes; an integer stands for one, as in
            `max_pool`.

    >>> adaptive_avg_pool(jnp.arange(5.0)[:, None], 2)[:, 0]
    Array([1., 3.], dtype=float32)

    Source: torch.nn.AdaptiveAvgPool2d.
    """
    y, sizes = widen(x), spatial_sizes("size", size, x)
    for axis, m in zip(_spatial_axes(x, len(sizes)), map(int, sizes), strict=True):
        n = y.shape[axis]
        if n % m == 0:
            y = _reduce_windows(add, y, axis, n // m, n // m) / (n // m)
        else:
            bins = [lax.slice_in_dim(y, i * n // m, -(-(i + 1) * n // m), axis=axis) for i in range(m)]
            y = jnp.concatenate([jnp.mean(b, axis, keepdims=True) for b in bins], axis)
    return y.astype(x.dtype)


@builder
def MaxPool(
    window_shape: PerAxis,
    *,
    stride: PerAxis | None = None,
    dilation: PerAxis = 1,
    padding: Padding = "valid",
    ceil_mode: bool = False,
) -> Layer:
    """`max_pool` as a layer, without params.

    >>> net = Serial(Conv(8, (3, 3), padding="same"), relu, MaxPool((2, 2)))
    >>> params = net.init(jax.random.key(0), jnp.zeros((28, 28, 1)))
    >>> jax.jit(net.apply)(params, jnp.zeros((28, 28, 1))).shape
    (14, 14, 8)
    """
    options: dict[str, Any] = dict(stride=stride, dilation=dilation, padding=padding, ceil_mode=ceil_mode)
    return _layer_of(max_pool, window_shape, **options)


@builder
def AvgPool(
    window_shape: PerAxis,
    *,
    stride: PerAxis | None = None,
    dilation: PerAxis = 1,
    padding: Padding = "valid",
    ceil_mode: bool = False,
    count_padding: bool = False,
) -> Layer:
    """`avg_pool` as a layer, without params.

    >>> AvgPool(2).apply((), jnp.array([[1.0], [3.0]]))
    Array([[2.]], dtype=float32)
    """
    options: dict[str, Any] = dict(stride=stride, dilation=dilation, padding=padding, ceil_mode=ceil_mode)
    return _layer_of(avg_pool, window_shape, **options, count_padding=count_padding)


@builder
def LpPool(
    window_shape: PerAxis,
    *,
    order: Order = 2,
    stride: PerAxis | None = None,
    dilation: PerAxis = 1,
    padding: Padding = "valid",
    ceil_mode: bool = False,
) -> Layer:
    """`lp_pool` as a layer, without params.

    >>> LpPool(2).apply((), jnp.array([[3.0], [4.0]]))
    Array([[5.]], dtype=float32)
    """
    options: dict[str, Any] = dict(stride=stride, dilation=dilation, padding=padding, ceil_mode=ceil_mode)
    return _layer_of(lp_pool, window_shape, **options, order=order)


def _layer_of(pool: Callable, window_shape: PerAxis, *, padding: Padding, **options: Any) -> Layer[Any]:
    """A pool of sliding windows as a layer; what does not depend on the input is checked at once."""
    window = window_sizes("window_shape", window_shape)
    per_axis("padding", padding, len(window))
    return spatial_layer(lambda x: pool(x, window, padding=padding, **options), len(window), window_shape=window_shape)


@builder
def GlobalMaxPool(spatial: PositiveInt) -> Layer:
    """`global_max_pool` as a layer, without params: the maximum over all positions, or over those of a ``mask``.

    Args:
        spatial: number of axes between the batch and the channels: 2 for images, 1 for sequences.

    >>> GlobalMaxPool(1).apply((), jnp.array([[1.0, 5.0], [3.0, 2.0]]))
    Array([3., 5.], dtype=float32)
    """
    return _global_layer(global_max_pool, spatial)


@builder
def GlobalAvgPool(spatial: PositiveInt) -> Layer:
    """`global_avg_pool` as a layer, without params: the mean over all positions, or over those of a ``mask``.

    Args:
        spatial: number of axes between the batch and the channels: 2 for images, 1 for sequences.

    >>> GlobalAvgPool(1).apply((), jnp.array([[1.0, 5.0], [3.0, 2.0]]))
    Array([2. , 3.5], dtype=float32)
    """
    return _global_layer(global_avg_pool, spatial)


def _global_layer(pool: Callable, spatial: int) -> Layer[Any]:
    def apply(params, x: Inexact[Array, "..."], *, mask: Bool[Array, "..."] | None = None):
        return pool(x, spatial, mask=mask)

    return Layer(spatial_layer(pool, spatial).init, apply)


def _windows(x, window_shape, stride, dilation, padding, ceil_mode):
    """The sizes of the windows, their geometry, and the padding of each axis with what a last window adds to it."""
    window = spatial_sizes("window_shape", window_shape, x)
    sizes = x.shape[-len(window) - 1 : -1]
    windows = slide(sizes, window, window if stride is None else stride, dilation, padding)
    check_fit(windows, x)
    around = []
    for k, n, span, s, d, (low, high) in zip(window, sizes, *windows, strict=True):
        rest = (n + low + high - span) % s
        last = n + high + low - span - rest + s  # where one more window would start
        # As in PyTorch, a last window that would start in the padding after the input is left out.
        known = isinstance(n, int)  # and not one of the symbolic sizes of jax.export
        if ceil_mode:
            check_integer(n, x, "ceil_mode=True")
        around.append((low, high + (s - rest if ceil_mode and rest and last < n + low else 0)))
        positions = (n + sum(around[-1]) - span) // s + 1
        # A window longer than its padding on both sides may still miss all entries, by dilation.
        empty = at_most(span, low) or at_most(span, high) or (known and 0 in _counts(n, k, s, d, low, positions))
        expected = f"less padding than its window_shape {window}, since a window of padding alone has no value"
        require(not empty, expected, f"padding={padding!r}", "reduce the padding" + " or the dilation" * (d > 1))
    return window, windows, around


def _counts(n, window, stride, dilation, before, positions):
    """The number of entries of each window that are inside an axis of ``n``, with ``before`` entries of padding."""
    starts = (np if isinstance(positions, int | np.integer) else jnp).arange(positions) * stride - before
    entries = starts[:, None] + np.arange(window)[None] * dilation
    return ((entries >= 0) & (entries < n)).sum(1)


def _spatial_axes(x, spatial):
    """The spatial axes, of which there is at least one."""
    check_spatial(x, spatial)
    require(0 not in x.shape[-spatial - 1 : -1], "at least one position", x, "pass a longer input")
    return tuple(range(x.ndim - 1 - spatial, x.ndim - 1))


# Windows with more entries are reduced one axis at a time, also if they do not overlap.
_MOST_AT_ONCE = 9


def _reduce_all(operation, x, window, strides, dilations):
    """Reduce each window over all axes; of equal maxima the first one in row-major order is selected.

    Where each entry is in one window at most, one entry of all windows is a slice of ``x``; their derivative is one sum
    of padded arrays, where one axis at a time would store an array between the axes.
    """
    geometry = list(zip(window, strides, dilations, strict=True))
    adjacent = all(k == s and d == 1 for k, s, d in geometry)
    spatial = range(-len(window) - 1, -1)
    few = math.prod(window) <= _MOST_AT_ONCE
    if adjacent and (few or operation is add) and unsharded(x, *spatial):
        return _reduce_adjacent(operation, x, window) if few else sum_of_windows(x, _on_all_axes(window, x))
    if few and all(k <= s and d == 1 for k, s, d in geometry):
        return functools.reduce(operation, _entries(x, window, strides))
    # The last axis first, so that the first maximum is first in the axes' order.
    for axis, (k, s, d) in reversed(list(zip(spatial, geometry, strict=True))):
        x = _reduce_windows(operation, x, axis, k, s, d)
    return x


def _entries(x, window, strides) -> list:
    """The slices of each entry of all windows, in row-major order; windows are not dilated."""
    return list(slices_of_entries(x, _on_all_axes(window, x), _on_all_axes(strides, x), (1,) * x.ndim))


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 2))
def _reduce_adjacent(operation, x, window):
    """Sum or first maximum of adjacent windows.

    The transpose of its derivative is a broadcast of each window's gradient, with a mask for a maximum. XLA computes it
    faster than the sum of padded arrays that slices give.
    """
    return functools.reduce(operation, _entries(x, window, window))


@_reduce_adjacent.defjvp
def _push_adjacent(operation, window, primals, tangents):
    (x,), (d_x,) = primals, tangents
    selected = None
    if operation is _first_maximum:
        best, *others = _entries(lax.stop_gradient(x), window, window)
        # int8 suffices for the index of an entry in its window.
        selected = jnp.zeros(best.shape, jnp.int8)
        for k, entry in enumerate(others, 1):
            selected = jnp.where(_comes_first(best, entry), selected, jnp.int8(k))
            best = _first_maximum(best, entry)
    return _reduce_adjacent(operation, x, window), sum_of_windows(d_x, _on_all_axes(window, x), selected)


def _on_all_axes(window, x):
    return (1,) * (x.ndim - len(window) - 1) + tuple(window) + (1,)


def _reduce_windows(operation, x, axis, window, stride, dilation=1) -> Any:
    """Reduce each window along an axis by an associative operation, with earlier entries on its left."""
    cut = lambda x, start, stop, step=1: lax.slice_in_dim(x, start, stop, step, axis)
    while window % 2 == 0 and stride % 2 == 0 and dilation == 1:  # every window consists of whole pairs
        even = x.shape[axis] // 2 * 2
        x = operation(cut(x, 0, even, 2), cut(x, 1, even, 2))
        window, stride = window // 2, stride // 2
    # From the first start of a window to one past the last.
    reach = (x.shape[axis] - dilation * (window - 1) - 1) // stride * stride + 1
    if window <= stride:  # windows do not overlap, so that no part of one is part of another
        parts = [cut(x, start * dilation, start * dilation + reach, stride) for start in range(window)]
        return functools.reduce(operation, parts)
    # x[i] combines `span` entries from i on, `dilation` apart; total combines the first `done` of each window
    total, done, span = None, 0, 1
    while True:
        if window & span:
            part = cut(x, done * dilation, done * dilation + reach, stride)
            total, done = part if total is None else operation(total, part), done + span
        if done == window:
            return total
        # Two runs of `span` entries, side by side, are one of twice the length.
        x = operation(cut(x, 0, x.shape[axis] - span * dilation), cut(x, span * dilation, x.shape[axis]))
        span *= 2


def _first_maximum(a, b):
    """The maximum, the first argument on ties; NaN if either is NaN."""
    return jnp.where(_comes_first(a, b), a, b)


def _comes_first(a, b):
    # a != a only for NaN; if b is NaN, a >= b is False and b is taken.
    return (a >= b) | (a != a)


def _pad(x, pads, value):
    if not any(map(any, pads)):
        return x
    around = [(0, 0)] * (x.ndim - len(pads) - 1) + [*pads, (0, 0)]
    return jnp.pad(x, around, constant_values=value)
