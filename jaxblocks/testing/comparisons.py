"""Comparisons of outputs, of annotations and of programs, whose errors are sentences."""

import functools
import sys
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxblocks.checks.errors import describe
from jaxblocks.core.lifting import as_layer, stateful
from jaxblocks.core.recording import Call
from jaxblocks.testing.case import Case, Tree, as_numpy

__all__ = ["assert_annotated", "assert_same", "assert_same_program", "functions_in", "is_importable", "widened"]


def widened(x) -> np.ndarray:
    """The values in the widest dtype of their kind; a conversion to real numbers would lose imaginary parts."""
    values = as_numpy(x)
    return values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)


def assert_same(got: Tree, expected: Tree, sentence: str, tolerance: float = 0.0) -> None:
    """Trees of one structure whose arrays differ by at most ``tolerance``, relative to their size."""
    assert jax.tree.structure(got) == jax.tree.structure(expected), f"{sentence}: the trees differ."
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype), f"{sentence}: {describe(a)} instead of {describe(b)}."
        a, b = widened(a), widened(b)
        finite = np.isfinite(a) & np.isfinite(b)
        # Infinities and NaN have no difference: they are compared by equality.
        others = np.where(np.isnan(a), np.isnan(b), a == b) | finite
        worst = np.max(np.abs(a[finite] - b[finite]), initial=0.0) if others.all() else np.inf
        by = f" (by {worst:.2g})" if tolerance else ""
        # Absolute for results up to 1, relative above.
        assert worst <= tolerance * (1 + np.max(np.abs(b[finite]), initial=0.0)), f"{sentence}{by}."


def assert_annotated(annotation: Any, value: Any, what: str) -> None:
    """The dtype and the shape of a value are those of its annotation."""
    if not hasattr(annotation, "dims"):
        return
    assert isinstance(value, annotation), (
        f"{what} is annotated as {annotation.__name__}, but is {describe(value)}; state its actual shape."
    )


def assert_same_program(got: Case, expected: Case, what: str) -> None:
    """``init`` and ``apply`` of both cases have one jaxpr and equal constants, hence equal params and outputs."""
    (text, constants), (expected_text, expected_constants) = got._program, expected._program
    assert text == expected_text, f"{what} computes something else; let its builder depend on its arguments only."
    for a, b in zip(constants, expected_constants, strict=True):
        np.testing.assert_array_equal(a, b, f"{what} has other constants")


def functions_in(value: Any) -> list[Callable]:
    """The functions that a layer consists of: builders, and the functions among their arguments."""
    call = getattr(value, "call", None)
    if isinstance(call, Call):
        # These two lift functions and layers, and do not appear in the text.
        own = [] if call.function in (as_layer, stateful) else [call.function]
        return own + [f for each in (*call.args, *call.kwargs.values()) for f in functions_in(each)]
    if isinstance(value, functools.partial):
        return [f for each in (value.func, *value.args, *value.keywords.values()) for f in functions_in(each)]
    if isinstance(value, (tuple, list)):
        return [f for each in value for f in functions_in(each)]
    return [value] if callable(value) and hasattr(value, "__name__") else []


def is_importable(function: Callable) -> bool:
    """Whether the name of a function leads to it, as pickling requires."""
    found = sys.modules.get(getattr(function, "__module__", None) or "")
    # A local function has "<locals>" in its name, which no attribute leads to.
    for part in function.__qualname__.split(".") if hasattr(function, "__qualname__") else ("?",):
        found = getattr(found, part, None)
    return found is function
