"""Text of the names and numbers in a trace."""

import math
import unicodedata

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxblocks.checks.errors import describe

__all__ = ["aligned", "bracketed", "is_known", "marked", "number_of", "numbered", "text"]

_LOWERED = str.maketrans("-0123456789", "₋₀₁₂₃₄₅₆₇₈₉")
_RAISED = {index: digit for digit, index in _LOWERED.items()}


def numbered(letter: str, number: int) -> str:
    """A letter with an index, ``v₋₁``."""
    return letter + str(number).translate(_LOWERED)


def number_of(name: str) -> int:
    """The index of a name."""
    return int(name[1:].translate(_RAISED))


def marked(name: str, mark: str, word: str = "") -> str:
    """A letter with a dot or bar, ``ẋ1``; a longer name with a word, ``tangent of params['w']``."""
    if word and len(name.rstrip("0123456789")) > 1:
        return f"{word} of {name}"
    return unicodedata.normalize("NFC", name[0] + mark) + name[1:]


def is_known(value) -> bool:
    """Whether a value is an array, not a tracer."""
    return value is not None and not isinstance(value, Tracer)


def text(value, most: int = 4) -> str:
    """The digits of a scalar or of an array of at most ``most`` numbers; shape and norm of a larger array."""
    if not is_known(value) or not (hasattr(value, "dtype") or isinstance(value, int | float | complex | bool)):
        return describe(value)
    if jnp.issubdtype(jnp.result_type(value), jax.dtypes.extended):
        return describe(value)
    value = np.asarray(value)
    if value.size > most:
        wide = np.abs(value.astype(np.complex128 if np.iscomplexobj(value) else np.float64))
        return f"{value.shape}, norm {_digits(np.sqrt(np.sum(wide**2)))}"
    if value.ndim == 0:
        return _digits(value)
    return _listed(value)


def _listed(value) -> str:
    if value.ndim == 0:
        return _digits(value)
    left, right = "()" if value.ndim == 1 else "[]"
    return left + ", ".join(map(_listed, value)) + right


def _digits(number) -> str:
    """Three decimals, but at least three significant digits."""
    number = np.asarray(number).item()
    if not isinstance(number, float) or not math.isfinite(number):
        return f"{number:.3g}" if isinstance(number, complex) else str(number)
    if number != 0 and not 0.01 <= abs(number) < 1e6:
        return f"{number:.3g}"
    written = f"{number:.3f}".rstrip("0").rstrip(".")
    return "0" if written == "-0" else written


def bracketed(value) -> str:
    """A value as an operand: negative and complex numbers in brackets."""
    written = text(value)
    whole = not jnp.ndim(value) and is_known(value)
    return f"({written})" if written.startswith("-") or (whole and jnp.iscomplexobj(value)) else written


def aligned(headings, lines) -> str:
    """Columns under their headings; combining marks have no width."""
    table = [headings, *lines]
    widths = [max(map(_width, column)) for column in zip(*table, strict=True)]
    table = [headings, tuple("-" * width for width in widths), *lines]
    return "\n".join(
        "  ".join(c + " " * (w - _width(c)) for c, w in zip(line, widths, strict=True)).rstrip() for line in table
    )


def _width(text: str) -> int:
    return sum(not unicodedata.combining(letter) for letter in text)
