"""The type of arguments that this package converts to NumPy arrays in float64, and the conversion."""

import contextlib
from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.core import Tracer

from jaxblocks.checks.errors import require

__all__ = ["ArrayLike", "real_array"]

ArrayLike: TypeAlias = jax.Array | np.ndarray | np.number | Sequence | int | float
"""A JAX or NumPy array, a number, or nested sequences of these."""


def real_array(name: str, x: Any) -> np.ndarray:
    """An argument in float64; raises unless it is an array of real numbers.

    >>> real_array("points", [1, 2])
    array([1., 2.])
    """
    real, array = False, np.zeros(0)
    with contextlib.suppress(TypeError, ValueError):
        array = np.asarray(x)
        real, array = not np.iscomplexobj(array), array.real.astype(np.float64)
    repair = "call it outside of jax.jit" if isinstance(x, Tracer) else "pass an array of floats"
    got = repr(x) if isinstance(x, str) else x
    require(real, f"{name} to be an array of real numbers", got, repair, error=TypeError)
    return array
