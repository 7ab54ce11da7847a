"""The type of arguments that this package converts to NumPy arrays in float64."""

from collections.abc import Sequence
from typing import TypeAlias

import jax
import numpy as np

__all__ = ["ArrayLike"]

ArrayLike: TypeAlias = jax.Array | np.ndarray | np.number | Sequence | int | float
"""A JAX or NumPy array, a number, or nested sequences of these."""
