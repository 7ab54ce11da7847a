"""The type of what the functions of this package convert to NumPy arrays in float64."""

from collections.abc import Sequence
from typing import TypeAlias

import jax
import numpy as np

__all__ = ["ArrayLike"]

ArrayLike: TypeAlias = jax.Array | np.ndarray | np.number | Sequence | int | float
"""An array of JAX or NumPy, a number, or nested sequences of them."""
