"""The type of arguments that this package converts to NumPy arrays in float64, and the conversion."""

import contextlib
from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
import numpy as np

from jaxblocks.checks.errors import describe, require
from jaxblocks.checks.values import reject_traced

__all__ = ["ArrayLike", "real_array"]

ArrayLike: TypeAlias = jax.Array | np.ndarray | np.number | Sequence | int | float
"""A JAX or NumPy array, a number, or nested sequences of these."""


def real_array(name: str, x: Any) -> np.ndarray:
    """An argument in float64; raises unless it is an array of real numbers.

    >>> real_array("points", [1, 2])
    array([1., 2.])
    """
    reject_traced(x)
    real, array = False, np.zeros(0)
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        known = np.asarray(x)
        if x is not None and known.dtype.kind not in "cmMSU":  # complex numbers, dates and strings
            real, array = True, known.astype(np.float64)
    require(real, f"{name} to be an array of real numbers", describe(x), "pass an array of floats", error=TypeError)
    return array
