r"""Images at points between their pixels: spatial transformers, optical flow, and other warps.

Points are in normalized coordinates, from -1 to 1 along each axis, the last axis of the image first: $(x, y)$ for
images with axes (height, width), as in PyTorch and ONNX. With ``align_corners`` -1 and 1 are the centers of the first
and the last pixel, without it their outer edges. No function here has params; in a `Wire` the points are what another
layer computes. `deform_conv` reads at learned offsets from the positions of a convolution.
"""

import itertools
import math
from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxblocks.backend.interpolation import interpolation_weights
from jaxblocks.backend.linear_maps import along_batch
from jaxblocks.backend.precision import full_precision, widen
from jaxblocks.backend.sliding_windows import Padding, PerAxis, check_channels, check_fit, slide, window_sizes
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import PositiveInt, checked

__all__ = ["affine_grid", "deform_conv", "grid_sample"]

SampleMethod: TypeAlias = Literal["linear", "nearest", "cubic"]
SamplePadding: TypeAlias = Literal["constant", "replicate", "reflect"]


@checked
def affine_grid(
    matrix: Float[Array, "*batch axes axes_and_1"], size: PerAxis, *, align_corners: bool = False
) -> Float[Array, "... axes"]:
    r"""The points $A (x, y, 1)ᵀ$ of an affine map for every pixel of an image of ``size``, for `grid_sample`.

    With the normalized coordinates $(x, y)$ of the pixel, and $A$ = ``matrix``, 2 by 3 for images, k by k + 1 for k
    axes. The identity is $A = (I 0)$. Products are in full precision on every device.

    Args:
        matrix: ``(*batch, axes, axes + 1)``.
        size: the spatial sizes of the result, a tuple with an integer for each axis.
        align_corners: as in `grid_sample`, which must have the same.

    Returns:
        ``(*batch, *size, axes)``, in the dtype of the matrix.

    Raises:
        ValueError: for a matrix of another shape than that for the axes in ``size``.

    >>> to_the_right = jnp.array([[1.0, 0.0, 0.5], [0.0, 1.0, 0.0]])
    >>> affine_grid(to_the_right, (1, 2))
    Array([[[0., 0.],
            [1., 0.]]], dtype=float32)

    Source: Jaderberg, Simonyan, Zisserman & Kavukcuoglu 2015, Spatial transformer networks (arXiv:1506.02025).
    """
    sizes = window_sizes("size", size)
    k = len(sizes)
    expected = f"a matrix of shape (..., {k}, {k + 1}) for size {sizes}"
    square = matrix.shape[-2:] == (k, k)  # without a translation
    repair = "append it, zeros for none: jnp.pad(matrix, [(0, 0)] * (matrix.ndim - 1) + [(0, 1)])"
    repair = repair if square else "pass a size for each axis of the image"
    require(matrix.shape[-2:] == (k, k + 1), expected, matrix, repair)
    axes = [_centers(n, align_corners) for n in sizes]
    # (*size, k + 1): the last axis of the image first, then 1.
    points = np.stack([*np.meshgrid(*axes, indexing="ij")[::-1], np.ones(sizes)], -1)
    wide = widen(matrix)
    with full_precision():
        moved = jnp.einsum("pj,...kj->...pk", jnp.asarray(points.reshape(-1, k + 1), wide.dtype), wide)
    return moved.reshape(*matrix.shape[:-2], *sizes, k).astype(matrix.dtype)


@checked
def grid_sample(
    x: Float[Array, "... channels"],
    grid: Float[Array, "... axes"],
    *,
    method: SampleMethod = "linear",
    padding_mode: SamplePadding = "constant",
    align_corners: bool = False,
) -> Float[Array, "... channels"]:
    r"""The values of images at any points, by interpolation.

    A point $g ∈ [-1, 1]$ on an axis of $n$ pixels is at $u = ((g + 1) n - 1) / 2$, with ``align_corners`` at
    $u = (g + 1) (n - 1) / 2$. Linear interpolation reads the $2^k$ pixels around it,

    .. math::

        y = ∑_{j ∈ \{0,1\}^k} x_{⌊u⌋ + j} ∏_a (1 - j_a - (-1)^{j_a} (u_a - ⌊u_a⌋))

    and has derivatives with respect to images and points. On a pixel, where it has a kink, the derivative is that
    towards larger $u$. ``"cubic"`` reads $4^k$ pixels, with the kernel of `resize` without antialiasing, and has a
    kink in the derivative only. ``"nearest"`` reads one pixel, the even one where two are equally near, and has no
    derivative with respect to points.

    Args:
        x: ``(*batch, *spatial, channels)`` with one to three spatial axes.
        grid: ``(*batch, *positions, axes)``, the points, each with a coordinate for every spatial axis of ``x``, the
            last axis first: $(x, y)$ for (height, width).
        method: ``"linear"`` (in PyTorch bilinear), ``"cubic"`` (bicubic) or ``"nearest"``.
        padding_mode: beyond the image, ``"constant"`` is 0, ``"replicate"`` the pixel at the edge (with linear
            interpolation, the derivative is 0 from its center on), and ``"reflect"`` the image mirrored: at the outer
            edges of its pixels, with ``align_corners`` at their centers.
        align_corners: which points -1 and 1 are: the outer edges of the image, or the centers of its pixels there.

    Returns:
        ``(*batch, *positions, channels)``. Half precision is computed in float32.

    Raises:
        ValueError: for batch axes that differ, points with more than three coordinates, or an image without pixels.

    >>> image = jnp.array([[[0.0], [1.0]], [[2.0], [3.0]]])
    >>> grid_sample(image, jnp.array([[0.0, 0.0], [0.5, -0.5], [0.5, -1.5]]))[:, 0]
    Array([1.5, 1. , 0. ], dtype=float32)

    Source: Jaderberg, Simonyan, Zisserman & Kavukcuoglu 2015, Spatial transformer networks (arXiv:1506.02025); Keys
    1981, Cubic convolution interpolation for digital image processing, doi:10.1109/TASSP.1981.1163711.
    """
    k = grid.shape[-1]
    require(1 <= k <= 3, "points with one to three coordinates", grid, "give the grid a last axis (x, y)")
    require(
        x.ndim > k, f"x (*batch, *spatial, channels) with {k} spatial axes, as the points", x, "add the missing axis"
    )
    batch, sizes, channels = x.shape[: -k - 1], x.shape[-k - 1 : -1], x.shape[-1]
    same = grid.shape[: len(batch)] == batch and grid.ndim > len(batch)
    repair = "broadcast the grid to the batch, with jnp.broadcast_to"
    require(same, f"grid (*batch, *positions, {k}) with the batch axes {batch} of x", grid, repair)
    require(0 not in sizes, "at least one pixel", x, "pass a larger image")
    positions = grid.shape[len(batch) : -1]
    points = widen(grid).reshape(math.prod(batch), math.prod(positions), k)
    images = widen(x).reshape(math.prod(batch), math.prod(sizes), channels)
    dtype = jnp.promote_types(images.dtype, points.dtype)
    # The last coordinate is that of the first spatial axis.
    at = [_pixels(points[..., k - 1 - a], n, align_corners) for a, n in enumerate(sizes)]
    taps = [_taps(u, n, method, padding_mode, align_corners) for u, n in zip(at, sizes, strict=True)]
    total = _read(images, taps, sizes, dtype)
    return total.reshape(*batch, *positions, channels).astype(x.dtype)


@checked
def deform_conv(
    x: Float[Array, "... channels"],
    offset: Float[Array, "... offsets"],
    kernel: Float[Array, "*kernel_size in_of_group out"],
    bias: Float[Array, "out"] | None = None,
    *,
    modulation: Float[Array, "... entries"] | None = None,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    groups: PositiveInt = 1,
    padding: Padding = "valid",
) -> Float[Array, "... out"]:
    r"""The deformable convolution $y_{io} = b_o + ∑_{j,c} m_{ij} x(si + dj + Δ_{ij})_c w_{jco}$, at learned positions.

    Each entry $j$ of the kernel reads at a distance $Δ$ from its position in `conv`, by linear interpolation, and 0
    outside of the image. Offsets come from a convolution with the same options, whose kernel begins at 0::

        offsets = Conv(2 * 9, (3, 3), padding="same", kernel_init=initializers.zeros)
        ...
        y = deform_conv(x, f.offsets(x), kernel, padding="same")

    Derivatives with respect to offsets on a pixel are those of `grid_sample`. The entries that all positions read are
    in memory at once.

    Args:
        x: ``(*batch, *spatial, channels)`` with one to three spatial axes.
        offset: $Δ$ in pixels, ``(*batch, *positions, n * entries * axes)`` with the number of entries of the kernel. In
            the order of the kernel, and for each entry of the axes of ``x``, (height, width). Each of n groups of
            consecutive channels has its own offsets.
        kernel, bias, stride, dilation, groups, padding: as in `conv`.
        modulation: $m$, ``(*batch, *positions, n * entries)``, such as a sigmoid; by default 1.

    Returns:
        ``(*batch, *positions, out)``, in the dtype of ``x``.

    Raises:
        ValueError: for shapes that do not fit together, or a kernel that does not fit into the input.

    >>> x = jnp.array([[1.0], [2.0], [4.0]])
    >>> deform_conv(x, jnp.array([[0.0], [0.5], [-9.0]]), jnp.ones((1, 1, 1)))[:, 0]
    Array([1., 3., 0.], dtype=float32)

    Source: Dai et al. 2017, Deformable convolutional networks (arXiv:1703.06211); Zhu, Hu, Lin & Dai 2019, Deformable
    ConvNets v2 (arXiv:1811.11168; the modulation).
    """
    *kernel_size, in_of_group, out = kernel.shape
    k, entries = len(kernel_size), math.prod(kernel_size)
    check_channels(x, kernel, in_of_group * groups, out, groups)
    batch, sizes, channels = x.shape[: -k - 1], x.shape[-k - 1 : -1], x.shape[-1]
    windows = slide(sizes, kernel_size, stride, dilation, padding)
    check_fit(windows, x)
    # The positions of the entries in the input, along each axis: (positions, entries).
    along = [
        np.arange((n + sum(pair) - span) // s + 1)[:, None] * s + np.arange(size) * d - pair[0]
        for n, size, span, s, d, pair in zip(sizes, kernel_size, *windows, strict=True)
    ]
    positions = tuple(len(one) for one in along)
    n = offset.shape[-1] // (entries * k)
    fits = offset.shape == (*batch, *positions, n * entries * k) and n > 0 and channels % n == 0
    expected = f"offset of shape {(*batch, *positions, entries * k)}, or n times as many for n groups of its channels"
    require(fits, expected, offset, f"compute it by Conv({entries * k}, {tuple(kernel_size)}) with the same options")
    b, p = math.prod(batch), math.prod(positions)

    def by_group(a, *last):  # (batch, positions, n, entries, ...) to (batch * n, positions * entries, ...)
        return jnp.moveaxis(widen(a).reshape(b, p, n, entries, *last), 2, 1).reshape(b * n, p * entries, *last)

    moved, taps = by_group(offset, k), []
    for a, (one, size) in enumerate(zip(along, sizes, strict=True)):
        shape = [1] * (2 * k)
        shape[a], shape[k + a] = one.shape
        at = np.broadcast_to(one.reshape(shape), (*positions, *kernel_size)).reshape(1, p * entries)
        taps.append(_taps(moved[..., a] + jnp.asarray(at, moved.dtype), size, "linear", "constant", False))
    images = jnp.moveaxis(widen(x).reshape(b, math.prod(sizes), n, channels // n), 2, 1)
    images = images.reshape(b * n, math.prod(sizes), channels // n)
    values = _read(images, taps, sizes, jnp.promote_types(images.dtype, moved.dtype))
    if modulation is not None:
        shape = (*batch, *positions, n * entries)
        require(modulation.shape == shape, f"modulation of shape {shape}", modulation, "one number for each entry")
        values = values * by_group(modulation)[..., None].astype(values.dtype)
    # (batch * n, positions * entries, channels / n) to (batch, positions, entries, channels), in groups of the kernel.
    values = jnp.moveaxis(values.reshape(b, n, p, entries, channels // n), 1, 3)
    values = values.reshape(b, p, entries, groups, in_of_group).astype(x.dtype)
    kernel = kernel.astype(x.dtype).reshape(entries, in_of_group, groups, out // groups)
    y = jnp.einsum("bpjgc,jcgo->bpgo", values, kernel).reshape(*batch, *positions, out)
    return y if bias is None else y + along_batch(bias, y)


def _read(images, taps, sizes, dtype):
    """The sums of pixels times weights, (batch, points, channels), for taps along each axis."""
    total = jnp.zeros((), dtype)
    for each in itertools.product(*taps):
        index, weight = jnp.zeros((), jnp.int32), jnp.ones((), each[0][1].dtype)
        for n, (own, share) in zip(sizes, each, strict=True):
            index, weight = index * n + own, weight * share
        values = jnp.take_along_axis(images, index[..., None], 1, mode="clip")
        total = total + values.astype(dtype) * weight.astype(dtype)[..., None]
    return total


def _centers(n: int, align_corners: bool) -> np.ndarray:
    """The normalized coordinates of n pixels."""
    return 2 * np.arange(n) / max(n - 1, 1) - (n > 1) if align_corners else (2 * np.arange(n) + 1) / n - 1


def _pixels(g, n, align_corners):
    """Normalized coordinates as numbers of pixels."""
    return (g + 1) * ((n - 1) / 2) if align_corners else ((g + 1) * n - 1) / 2


def _inside(u, n, padding_mode, align_corners):
    """The same numbers of pixels inside of the image, but for padding with zeros."""
    if padding_mode == "constant":
        return u
    if padding_mode == "reflect":
        low, span = (0, n - 1) if align_corners else (-0.5, n)
        if span == 0:
            return jnp.zeros_like(u)
        distance = jnp.where(u < low, low - u, u - low)
        turns = jax.lax.stop_gradient(jnp.floor(distance / span))
        rest = distance - turns * span
        u = jnp.where(turns % 2 == 0, rest, span - rest) + low
    return jnp.where(u <= 0, 0, jnp.where(u >= n - 1, n - 1, u))


def _taps(u, n, method, padding_mode, align_corners) -> list:
    """The pixels that are read along an axis, as pairs of an index and a weight."""
    if method == "nearest":
        u = _inside(u, n, padding_mode, align_corners)
        first, taps, shares = jnp.round(u), (0,), (jnp.where(jnp.isnan(u), u, 1),)
    else:
        # Linear interpolation ends with the last pixel; the cubic one reads pixels beyond it, as they are padded.
        u = _inside(u, n, padding_mode, align_corners) if method == "linear" else u
        if method == "cubic" and padding_mode != "reflect":  # so far outside that nothing changes; inf - inf is NaN
            u = jnp.clip(u, -3, n + 2)
        first = jax.lax.stop_gradient(jnp.floor(u))
        taps, shares = interpolation_weights(u - first, method)
    found = []
    for tap, share in zip(taps, shares, strict=True):
        place = jax.lax.stop_gradient(first) + tap
        if padding_mode == "constant":
            share = jnp.where((place < 0) | (place > n - 1), 0, share)  # that of NaN stays
        else:
            place = _inside(place, n, padding_mode, align_corners)
        # Clipped before the conversion: a float beyond the range of integers has none.
        found.append((jnp.clip(place, 0, n - 1).astype(jnp.int32), share))
    return found
