"""What all norms share: params, axes, and the affine map after the normalization."""

from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxblocks.backend.linear_maps import in_dtype
from jaxblocks.backend.precision import widen
from jaxblocks.backend.quotients import rsqrt
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import Epsilon, check_params
from jaxblocks.core.pairs import ArrayOrShape, Layer
from jaxblocks.statistics import sorted_axes

__all__ = [
    "EpsilonOrArray",
    "as_number",
    "make_params",
    "names_of_params",
    "negative_axes",
    "norm_layer",
    "normalized",
    "reduced_axes",
    "scaled_and_shifted",
    "shape_at",
]

EpsilonOrArray: TypeAlias = Epsilon | Float[Array, ""]

"""A number, or an array of one number, which may be traced."""


def normalized(x, mean, variance, scale, bias, *, epsilon):
    """The formula, for statistics and params with the rank of ``x``."""
    return scaled_and_shifted(x, widen(x) - mean, rsqrt(variance + as_number(epsilon, variance)), scale, bias)


def scaled_and_shifted(x, centered, factor, scale, bias):
    """The centered array times the factor and the scale, plus the bias, in the dtype of ``x``."""
    y = centered * (factor if scale is None else factor * scale)
    return (y if bias is None else y + bias).astype(x.dtype)


def as_number(epsilon, like):
    """A traced epsilon in the dtype of ``like``; numbers are unchanged."""
    return epsilon.astype(like.dtype) if isinstance(epsilon, jax.Array) else epsilon


def norm_layer(shape: Callable[..., tuple], normalize: Callable, names: tuple[str, ...], dtype, param_dtype) -> Layer:
    """The pair of a norm without state: ``shape(x)`` of its params, ``normalize(x, scale=..., bias=...)``."""

    def init(key, x: Float[ArrayOrShape, "..."]):
        return make_params(names, shape(x), param_dtype)

    def apply(params, x: Float[Array, "..."]):
        check_params(params, **dict.fromkeys(names, shape(x)))
        return normalize(in_dtype(x, dtype), **dict(params))

    return Layer(init, apply)


def names_of_params(use_scale, use_bias):
    """Which params a norm has."""
    return ("scale",) * use_scale + ("bias",) * use_bias


def make_params(names, shape, dtype):
    """Scales of ones and biases of zeros; ``()`` without params."""
    start = {"scale": jnp.ones, "bias": jnp.zeros}
    return {name: start[name](shape, dtype) for name in names} or ()


def shape_at(x, axes):
    """The sizes of some axes, in their order in ``x``."""
    return tuple(x.shape[a] for a in sorted_axes(x, axes))


def reduced_axes(x, axes) -> tuple[int, ...]:
    """The axes counted from the front, in order; at least one."""
    found = sorted_axes(x, axes)
    require(len(found) > 0, "at least one axis to average over", f"axes={axes}", "write axes=-1 for the features")
    return found


def negative_axes(axes) -> tuple[int, ...]:
    """Axes counted from the last one, as norms take them."""
    found = tuple(np.atleast_1d(axes).tolist())
    negative = found and all(type(a) is int and a < 0 for a in found)
    require(negative, "negative axes, since leading axes are batch", f"axes={axes!r}", "write -1 for the last axis")
    return found
