"""Rows of the zoo: convolution, pooling and resizing, against their formulas as loops in NumPy."""

import numpy as np
from specimen import Specimen

from jaxblocks import (
    AvgPool,
    Conv,
    ConvTranspose,
    DepthwiseConv,
    Flatten,
    GlobalAvgPool,
    GlobalMaxPool,
    MaxPool,
    Pad,
    Resize,
    UpSample,
)
from jaxblocks.layers import LpPool, PixelShuffle, PixelUnshuffle

VALID = np.array([[True, True, False, True], [False, False, False, False], [False, True, True, False]])


def padded(x, pads, mode="constant", **values):
    return np.pad(x, [(0, 0)] * (x.ndim - len(pads) - 1) + [*pads, (0, 0)], mode=mode, **values)


def each(value, axes):
    return (value,) * axes if isinstance(value, int) else value


def convolution(x, kernel, bias=0.0, stride=1, dilation=1, groups=1, pads=0, mode="constant"):
    """y_{i,o} = b_o + sum_{j,c} x_{s i + d j, c} w_{j,c,o}: a loop over positions i and outputs o."""
    *kernel_size, per_group, out = kernel.shape
    axes = len(kernel_size)
    s, d = each(stride, axes), each(dilation, axes)
    x = padded(x, [(p, p) if isinstance(p, int) else p for p in each(pads, axes)], mode)
    sizes = [(n - d[a] * (kernel_size[a] - 1) - 1) // s[a] + 1 for a, n in enumerate(x.shape[-axes - 1 : -1])]
    y = np.zeros((*x.shape[: -axes - 1], *sizes, out), np.result_type(x, kernel))
    for i in np.ndindex(*sizes):
        for o in range(out):
            first = o // (out // groups) * per_group
            where = [slice(a * b, a * b + c * (k - 1) + 1, c) for a, b, c, k in zip(i, s, d, kernel_size, strict=True)]
            patch = x[(..., *where, slice(first, first + per_group))]
            y[(..., *i, o)] = (patch * kernel[..., o]).sum(tuple(range(-axes - 1, 0)))
    return y + bias


def transposed(x, kernel, bias=0.0, stride=1, groups=1, pads=0, more=0):
    """y_{s i + j, c} += x_{i, o} w_{j, c, o}: each entry of x adds a copy of the kernel; then the padding is cut."""
    *kernel_size, per_group, out = kernel.shape
    axes = len(kernel_size)
    sizes = x.shape[-axes - 1 : -1]
    full = [(n - 1) * stride + k + more for n, k in zip(sizes, kernel_size, strict=True)]
    y = np.zeros((*x.shape[: -axes - 1], *full, 1), np.result_type(x, kernel))
    y = np.repeat(y, per_group * groups, -1)
    for i in np.ndindex(*sizes):
        for j in np.ndindex(*kernel_size):
            for o in range(out):
                first = o // (out // groups) * per_group
                at = (..., *[a * stride + b for a, b in zip(i, j, strict=True)], slice(first, first + per_group))
                y[at] += x[(..., *i, slice(o, o + 1))] * kernel[(*j, slice(None), o)]
    cut = slice(pads, -pads) if pads else slice(None)
    return y[(..., *[cut] * axes, slice(None))] + bias


def pooled(x, kernel_size, stride, pads, reduce):
    """Apply reduce to each window of an array padded with NaN; reduce ignores NaN."""
    axes = len(kernel_size)
    x = padded(x, [(p, p) for p in each(pads, axes)], constant_values=np.nan)
    sizes = [(n - k) // s + 1 for n, k, s in zip(x.shape[-axes - 1 : -1], kernel_size, stride, strict=True)]
    y = np.zeros((*x.shape[: -axes - 1], *sizes, x.shape[-1]), x.dtype)
    for i in np.ndindex(*sizes):
        where = [slice(a * s, a * s + k) for a, s, k in zip(i, stride, kernel_size, strict=True)]
        y[(..., *i, slice(None))] = reduce(x[(..., *where, slice(None))], tuple(range(-axes - 1, -1)))
    return y


ROWS = {
    "Conv over time": Specimen(
        "Conv",
        Conv(3, 3, padding="causal", dilation=2),
        ((2, 7, 2),),
        lambda p, x: convolution(x, p["kernel"], p["bias"], dilation=2, pads=((4, 0),)),
    ),
    "Conv of images": Specimen(
        "Conv",
        Conv(3, (3, 2), stride=2, padding=1, use_bias=False),
        ((2, 5, 6, 2),),
        lambda p, x: convolution(x, p["kernel"], stride=2, pads=1),
    ),
    "Conv of volumes on a torus": Specimen(
        "Conv",
        Conv(2, (3, 1, 2), padding="same", padding_mode="circular"),
        ((2, 3, 2, 4, 2),),
        lambda p, x: convolution(x, p["kernel"], p["bias"], pads=((1, 1), (0, 0), (0, 1)), mode="wrap"),
    ),
    "Conv in groups": Specimen(
        "Conv",
        Conv(6, (2, 2), groups=2, padding=1, padding_mode="reflect"),
        ((2, 4, 3, 4),),
        lambda p, x: convolution(x, p["kernel"], p["bias"], groups=2, pads=1, mode="reflect"),
    ),
    "DepthwiseConv": Specimen(
        "DepthwiseConv",
        DepthwiseConv((3, 3), multiplier=2, stride=(1, 2), padding="same"),
        ((2, 4, 5, 3),),
        lambda p, x: convolution(x, p["kernel"], p["bias"], stride=(1, 2), groups=3, pads=((1, 1), (1, 1))),
    ),
    "ConvTranspose": Specimen(
        "ConvTranspose",
        ConvTranspose(4, (3, 2), stride=2, groups=2, padding=1, output_padding=1),
        ((2, 3, 4, 6),),
        lambda p, x: transposed(x, p["kernel"], p["bias"], stride=2, groups=2, pads=1, more=1),
    ),
    "MaxPool": Specimen(
        "MaxPool",
        MaxPool((2, 3), stride=(2, 1), padding=1),
        ((2, 5, 4, 3),),
        lambda p, x: pooled(x, (2, 3), (2, 1), 1, np.nanmax),
    ),
    "GlobalMaxPool": Specimen("GlobalMaxPool", GlobalMaxPool(2), ((2, 3, 4, 3),), lambda p, x: x.max((1, 2))),
    "GlobalMaxPool with a mask": Specimen(
        "GlobalMaxPool",
        GlobalMaxPool(1),
        ((3, 4, 2),),
        lambda p, x: np.stack([a[m].max(0) if m.any() else 0 * a[0] for a, m in zip(x, VALID, strict=True)]),
        {"mask": VALID},
    ),
    "GlobalAvgPool with a mask": Specimen(
        "GlobalAvgPool",
        GlobalAvgPool(2),
        ((2, 3, 4, 2),),
        lambda p, x: x[:, VALID].mean(1),
        {"mask": np.stack([VALID, VALID])},
    ),
    "GlobalAvgPool": Specimen("GlobalAvgPool", GlobalAvgPool(1), ((2, 5, 3),), lambda p, x: x.mean(1)),
    "AvgPool": Specimen(
        "AvgPool",
        AvgPool((2, 3), stride=(1, 2), padding=1),
        ((2, 5, 4, 3),),
        lambda p, x: pooled(x, (2, 3), (1, 2), 1, np.nanmean),
    ),
    "LpPool": Specimen(
        "LpPool",
        LpPool((2, 3), order=3, stride=(1, 2), padding=(0, 1)),
        ((2, 4, 5, 3),),
        lambda p, x: pooled(np.abs(x) ** 3, (2, 3), (1, 2), (0, 1), np.nansum) ** (1 / 3),
    ),
    "Flatten": Specimen("Flatten", Flatten(2), ((2, 3, 4, 2),), lambda p, x: x.reshape(2, 24)),
    "Pad": Specimen(
        "Pad",
        Pad((1, (2, 0)), padding_mode="reflect"),
        ((2, 3, 4, 2),),
        lambda p, x: padded(x, ((1, 1), (2, 0)), "reflect"),
    ),
    "Resize": Specimen(  # u = (-1/6, 1/2, 7/6): entries 0, the mean, 1
        "Resize",
        Resize(3, antialias=False),
        ((4, 2, 2),),
        lambda p, x: np.stack([x[:, 0], x.mean(1), x[:, 1]], 1),
    ),
    "UpSample": Specimen("UpSample", UpSample((1, 2)), ((2, 3, 4, 2),), lambda p, x: x.repeat(2, 2)),
    "PixelShuffle": Specimen(
        "PixelShuffle",
        PixelShuffle(2),
        ((2, 3, 4),),
        lambda p, x: x.reshape(2, 3, 2, 2).swapaxes(2, 3).reshape(2, 6, 2),
    ),
    "PixelUnshuffle": Specimen(
        "PixelUnshuffle",
        PixelUnshuffle(2),
        ((2, 6, 2),),
        lambda p, x: x.reshape(2, 3, 2, 2).swapaxes(2, 3).reshape(2, 3, 4),
    ),
}
