"""A row of the table: a public function of arrays, the points at which its derivatives are checked, and its formula."""

import dataclasses
from collections.abc import Callable, Mapping

import mpmath
import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class Row:
    """A public function of floating-point arrays, and where its derivatives are checked.

    The numbers of all points have at most eight significant bits, so that every dtype represents them exactly.
    """

    point: tuple
    """An ordinary point, away from kinks: the arguments that are differentiated."""
    call: Callable = lambda f, *args: f(*args)
    """The call of the public function ``f``, which it is handed, with these arguments."""
    corners: Mapping[str, tuple] = dataclasses.field(default_factory=dict)
    """Corners of the domain: points at which the derivatives are finite, or those that the docstring states."""
    exponents: tuple = tuple(range(-100, 101, 20))
    """The ordinary point is multiplied by these powers of 2."""
    scaled: tuple = ()
    """The arguments that are multiplied; all of them if empty."""
    formula: Callable | None = None
    """The function of object arrays of mpmath numbers, written from the definition."""
    choices: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Points at which a derivative does not exist and the docstring states the number returned: no formula there."""
    infinite: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Points at which a derivative is infinite and the docstring says so: only the value is compared there."""
    wide_only: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Points at which second derivatives are compared in float64 alone: what leaves the range of float32."""
    tolerance: float = 64.0
    """The accepted error, in units of the rounding error of the largest entry of a result."""
    magnitude: float = 0.0
    """The size of the largest intermediate results, where the value is a small difference of them."""
    steep: bool = False
    """Whether the slopes are not smaller at large inputs, as those of exponentials of differences."""
    second: str = ""
    """Why second derivatives are not compared, or empty."""
    in_batch: str = ""
    """Why the points are one batch in place of single calls, which are cheaper to trace, or empty."""


@dataclasses.dataclass(frozen=True)
class Exempt:
    """A public function without derivatives, and the reason."""

    reason: str


def entries(f: Callable) -> Callable:
    """A function of one mpmath number, applied to each entry."""
    return np.vectorize(f, otypes=[object])


exp, log, tanh, sqrt, erf, cos, sin, expm1, loggamma = map(
    entries,
    (
        mpmath.exp,
        mpmath.log,
        mpmath.tanh,
        mpmath.sqrt,
        mpmath.erf,
        mpmath.cos,
        mpmath.sin,
        mpmath.expm1,
        mpmath.loggamma,
    ),
)


def array(*values) -> np.ndarray:
    """A vector of float64 numbers."""
    return np.asarray(values, np.float64)
