r"""Statistics of arrays: mean and variance over axes, and standardization of inputs by training statistics.

Statistics are computed in float32 for bfloat16 and float16, in two passes (first the mean, then the mean of squared
distances from it): $mean(x^2) - mean(x)^2$ loses all digits where the mean is large.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float
from numpy.lib.array_utils import normalize_axis_tuple

from jaxblocks.backend.precision import wide_dtype, widen
from jaxblocks.backend.quotients import divide, norm, vanishes
from jaxblocks.checks.errors import describe, require
from jaxblocks.checks.expectations import checked
from jaxblocks.core.lazy import explain_missing_names

__all__ = [
    "align_axes",
    "average",
    "count_valid",
    "expand_mask",
    "fit_standardizer",
    "moments",
    "sorted_axes",
    "standardize",
]
explain_missing_names(__name__)


@checked
def moments(
    x: Float[Array, "*shape"],
    axes: int | tuple[int, ...],
    *,
    keepdims: bool = False,
    mask: Bool[Array, "..."] | None = None,
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    r"""Mean and biased variance, $m = (1/N) ∑_i x_i$ and $v = (1/N) ∑_i (x_i - m)^2$.

    Args:
        x: an array.
        axes: the axes that the sums run over.
        keepdims: keep these axes, with size 1.
        mask: True at valid entries of the leading axes of ``x``. Only valid entries are included; the values of the
            others have no effect. Where no entry is valid, both moments are 0.

    Returns:
        Two arrays, of float32 for half-precision ``x`` and else of its dtype.

    Raises:
        ValueError: for axes that ``x`` lacks, or a mask that does not fit its leading axes.
        TypeError: for ``x`` that is not floating-point.

    >>> moments(jnp.array([1.0, 2.0, 3.0, 4.0]), 0)
    (Array(2.5, dtype=float32), Array(1.25, dtype=float32))

    Source: Ioffe & Szegedy 2015, Batch normalization (arXiv:1502.03167); Diehl 2023, section 1.6.
    """
    axes = sorted_axes(x, axes)
    x = widen(x)
    if mask is not None:
        # Here, and not in the sums alone: the square of an invalid NaN has a derivative of 0 times NaN.
        x = jnp.where(expand_mask(mask, x), x, 0)
    mean = average(x, axes, mask)
    # Two passes: E x^2 - (E x)^2 cancels where the mean is large against the deviation.
    variance = average(jnp.square(x - mean), axes, mask)
    return (mean, variance) if keepdims else (mean.squeeze(axes), variance.squeeze(axes))


@checked
def fit_standardizer(x: Float[Array, "*shape"], *, axes: int | tuple[int, ...] = 0) -> dict[str, Float[Array, "..."]]:
    r"""Mean and standard deviation of each feature, ``{"mean", "deviation"}``, for ``standardize``.

    Fit on the training data alone and use the result for all other data: statistics that include the test data leak
    information about them into the model. A feature that is constant in ``x`` gets deviation 1, so it is only
    centered; the derivative of its deviation is 0 by choice.

    Args:
        x: the training data, ``(examples, ..., features)``.
        axes: the axes to average over, the first ones of ``x``: 0 for statistics per feature of ``(examples,
            features)``, ``(0, 1, 2)`` for statistics per channel of images.

    Raises:
        ValueError: for axes other than the first ones, or ``x`` without entries.
        TypeError: for ``x`` that is not floating-point.

    >>> train, test = jnp.array([[1.0], [2.0], [3.0], [4.0]]), jnp.array([[5.0]])
    >>> fitted = fit_standardizer(train)
    >>> standardize(train, **fitted).ravel()
    Array([-1.3416407, -0.4472136,  0.4472136,  1.3416407], dtype=float32)
    >>> standardize(test, **fitted).ravel()
    Array([2.236068], dtype=float32)

    Source: LeCun, Bottou, Orr & Mueller 1998, Efficient backprop; Diehl 2023, section 1.6 ("Standardization of
    inputs").
    """
    if 0 in x.shape:
        require(False, "at least one example to fit to", x, f"check the slice that made axis {x.shape.index(0)} empty")
    found = sorted_axes(x, axes)
    repair = "move the axes of the features to the end with jnp.moveaxis"
    # Statistics keep the last axes, so that `standardize` can align them with any leading axes.
    require(found and found[-1] == len(found) - 1, "axes that are the first ones of x, as 0 or (0, 1)", axes, repair)
    mean = average(widen(x), found)
    centered = widen(x) - mean
    # Its computed variance may be a rounding error.
    constant = x.max(found, keepdims=True) == x.min(found, keepdims=True)
    deviation = norm(centered, found, keepdims=True) / math.sqrt(math.prod(x.shape[a] for a in found))
    constant = constant | vanishes(deviation)
    return {"mean": mean.squeeze(found), "deviation": jnp.where(constant, 1, deviation).squeeze(found)}


@checked
def standardize(
    x: Float[Array, "*shape"], mean: Float[Array, "..."], deviation: Float[Array, "..."]
) -> Float[Array, "*shape"]:
    r"""Standardized inputs $(x - m) / s$, with m ``mean`` and s ``deviation``.

    ``fit_standardizer`` computes the statistics; their shape is that of the trailing axes of ``x``. As the first
    layer of a net: ``Serial(functools.partial(standardize, **fitted), Dense(64), ...)``.

    Raises:
        ValueError: for statistics of another shape.
        TypeError: for ``x`` that is not floating-point.

    >>> standardize(jnp.array([1.0, 2.0]), jnp.array([1.0, 1.0]), jnp.array([1.0, 2.0]))
    Array([0. , 0.5], dtype=float32)

    Source: LeCun, Bottou, Orr & Mueller 1998, Efficient backprop; Diehl 2023, section 1.6 ("Standardization of
    inputs").
    """
    axes = range(max(0, x.ndim - mean.ndim), x.ndim)
    mean, deviation = align_axes(x, axes, mean=mean, deviation=deviation)
    return divide(widen(x) - mean, deviation).astype(x.dtype)


def average(values: Array, axes: tuple[int, ...], mask: Array | None = None, axis_name: Any = None) -> Array:
    """The mean over ``axes``, which remain, and a mapped axis; 0 where no entry is valid.

    >>> average(jnp.array([1.0, 3.0, 8.0]), (0,), jnp.array([True, True, False]))
    Array([2.], dtype=float32)
    """
    valid = values if mask is None else jnp.where(expand_mask(mask, values), values, 0)
    total, count = valid.sum(axes, keepdims=True), count_valid(values, axes, mask, axis_name)
    # Sums, not means, are added over devices: with a mask, devices may have different numbers of valid entries.
    total = total if axis_name is None else lax.psum(total, axis_name)
    return total / (count if mask is None else jnp.maximum(count, 1))


def count_valid(x: Array, axes: tuple[int, ...], mask: Array | None = None, axis_name: Any = None) -> Any:
    """The number of entries of ``x`` over ``axes`` that are valid, as an integer where there is no mask.

    >>> (
    ...     count_valid(jnp.ones((3, 2)), (0,)),
    ...     count_valid(jnp.ones((3, 2)), (0,), jnp.array([True, False, True])),
    ... )
    (3, Array([[2.]], dtype=float32))
    """
    over_devices = lambda count: count if axis_name is None else lax.psum(count, axis_name)
    if mask is None:
        return math.prod(x.shape[a] for a in axes) * over_devices(1)
    mask = expand_mask(mask, x)
    each = math.prod(x.shape[a] for a in axes if mask.shape[a] == 1)  # entries of x per entry of the mask
    return over_devices(mask.astype(wide_dtype(x.dtype)).sum(axes, keepdims=True)) * each


def sorted_axes(x: Any, axes: int | tuple[int, ...]) -> tuple[int, ...]:
    """The axes counted from the front, in order.

    >>> sorted_axes(jnp.ones((3, 2, 5)), (-1, 0))
    (0, 2)
    """
    n_axes = len(x.shape)
    try:
        # Sorted, so that (-1, -2) and (-2, -1) are the same axes for params.
        return tuple(sorted(normalize_axis_tuple(axes, n_axes)))
    except (TypeError, ValueError):
        require(n_axes, "x with at least one axis", x, "write x[None] for one number")
        expected = f"axes of x, integers from {-n_axes} to {n_axes - 1}, each of them once"
        repair = "write axes=-1 for the last axis, axes=0 for the first"
        require(False, expected, f"axes={axes!r} for x of {describe(x)}", repair)
        raise


def align_axes(x: Array, axes: Sequence[int], **values: Array | np.ndarray | np.generic | None) -> tuple:
    """Arrays of the shape of ``x`` at ``axes``, with as many axes as ``x`` and in the dtype to compute in.

    ``None`` stays ``None``.

    >>> [one.shape for one in align_axes(jnp.ones((3, 2, 5)), (1,), mean=jnp.ones(2))]
    [(1, 2, 1)]
    """
    expected = tuple(x.shape[a] for a in axes)
    shape = [size if a in axes else 1 for a, size in enumerate(x.shape)]
    for name, value in values.items():
        if value is not None and value.shape != expected:
            repair = "pass x of the size that it was made for, or params and state made by init for this x"
            # As many params as entries on the axis where PyTorch has the channels.
            if len(x.shape) > 3 and value.shape == (x.shape[1],):
                repair = "if the channels of x are first, write jnp.moveaxis(x, 1, -1)"
            require(False, f"{name} of shape {expected} for x of {describe(x)}", value, repair)
    dtype = wide_dtype(x.dtype)
    return tuple(value if value is None else value.reshape(shape).astype(dtype) for value in values.values())


def expand_mask(mask: Array, x: Array) -> Array:
    """A mask of the leading axes of ``x``, with as many axes as ``x``.

    >>> expand_mask(jnp.ones((3, 2), bool), jnp.ones((3, 2, 5))).shape
    (3, 2, 1)
    """
    if mask.shape != x.shape[: mask.ndim]:
        expected = f"a mask of the shape of the leading axes of x, such as {x.shape[:-1]} for {describe(x)}"
        one_more = mask.shape[-1:] == (1,) and mask.shape[:-1] == x.shape[: mask.ndim - 1]
        repair = "pass mask[..., 0]" if one_more else f"pass jnp.ones({x.shape[:-1]}, bool) to count all entries"
        require(False, expected, mask, repair)
    return mask.reshape(mask.shape + (1,) * (x.ndim - mask.ndim))
