"""Checks of the data of the experiments, and their conversion to NumPy arrays in float64."""

from collections.abc import Iterable

import numpy as np
from jaxtyping import Array

from jaxblocks.checks.errors import require
from jaxblocks.theory.arrays import real_array

__all__ = ["Numbers", "integers", "rows", "vectors"]

Numbers = Array | np.ndarray
"""A JAX or NumPy array."""


def vectors(x: Numbers, y: Numbers) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets of one shape (n,), finite."""
    x, y = real_array("x", x), real_array("y", y)
    fits = x.ndim == 1 and x.shape == y.shape and len(x) > 0
    repair = "flatten both with np.ravel" if x.size == y.size > 0 else "pass as many numbers in x as in y"
    require(fits, "inputs and targets of one shape (n,)", f"{x.shape} and {y.shape}", repair)
    _require_finite(x, y)
    return x, y


def rows(x: Numbers, y: Numbers) -> tuple[np.ndarray, np.ndarray]:
    """Inputs (n, features) and targets (n,), finite."""
    x, y = real_array("x", x), real_array("y", y)
    fits = x.ndim == 2 and y.shape == x.shape[:1] and x.size > 0
    repair = "write x.reshape(len(x), -1)"
    if x.ndim == 2:
        repair = "pass np.ravel(y)" if y.size == len(x) > 0 else "pass one number in y for each row of x"
    require(fits, "x (n, features) and y (n,)", f"{x.shape} and {y.shape}", repair)
    _require_finite(x, y)
    return x, y


def integers(name: str, values: Iterable[int], *, least: int = 1) -> list[int]:
    """One or more integers >= ``least``."""
    repair = f"pass for instance {name}=[{least}]"
    require(isinstance(values, Iterable), f"{name} to be integers >= {least}", values, repair, error=TypeError)
    values = list(values)
    require(len(values) > 0, f"at least one number in {name}", "none", repair)
    for value in values:
        fits = isinstance(value, int | np.integer) and not isinstance(value, bool) and value >= least
        require(fits, f"{name} to be integers >= {least}", value, repair)
    return [int(value) for value in values]


def _require_finite(x, y):
    for name, values in (("inputs", x), ("targets", y)):
        if not np.isfinite(values).all():
            i = np.argwhere(~np.isfinite(values))[0]
            require(False, f"finite {name}", f"{values[tuple(i)]} in example {i[0]}", "leave it out")
