"""Descriptions of functions, which a checkpoint stores to detect a change of the net, the loss or the optimizer."""

import contextlib
import functools
import inspect
import re
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from jaxblocks.core.pairs import Layer, StatefulLayer

__all__ = ["describe_function"]


def describe_function(function: Any) -> list[str]:
    """The names of a function and of the functions in its closure, each with the numbers in its own closure.

    A layer is described by the expression that builds it, an optimizer by its two functions. Two functions with the
    same description may differ: in arrays, in their text, in what they call.

    >>> import optax
    >>> def scaled(scale):
    ...     return lambda outputs, y: scale * abs(outputs - y)
    >>> describe_function(scaled(2.0))
    ['scaled.<lambda>(scale=2.0)']
    >>> describe_function(optax.sgd(0.1))[-1]
    'scale.update_fn(step_size=-0.1)'
    """
    if isinstance(function, Layer | StatefulLayer):  # addresses differ between processes
        return [line.strip() for line in re.sub(r" at 0x[0-9a-f]+", "", repr(function)).splitlines()]
    found: list[str] = []
    seen: set[int] = set()
    is_optimizer = hasattr(function, "init") and hasattr(function, "update")
    for part in (function.init, function.update) if is_optimizer else (function,):
        _describe(part, found, seen)
    return found


def _describe(function, found: list[str], seen: set[int]) -> None:
    if id(function) in seen or len(found) >= 100:
        return
    seen.add(id(function))
    if isinstance(function, functools.partial):
        name, inside = "partial", {"": function.func, **dict(enumerate(function.args)), **function.keywords}
    else:
        function = inspect.unwrap(function)  # of jax.jit and other decorators
        name = str(getattr(function, "__qualname__", type(function).__name__)).replace(".<locals>", "")
        code, inside = getattr(function, "__code__", None), {}
        for variable, cell in zip(code.co_freevars, function.__closure__ or (), strict=False) if code else ():
            with contextlib.suppress(ValueError):  # not yet assigned
                inside[variable] = cell.cell_contents
    for value in list(inside.values()):
        inside = {**inside, **value} if isinstance(value, dict) else inside  # of optax.inject_hyperparams
    # As floats, since optax converts some of them at the first call.
    as_float = lambda value: value if isinstance(value, bool) else float(value)
    numbers = [f"{key}={as_float(value)!r}" for key, value in inside.items() if _is_number(value)]
    found.append(f"{name}({', '.join(numbers)})" if numbers else name)
    for value in inside.values():
        for one in value if isinstance(value, tuple | list) else (value,):
            if callable(one) and not isinstance(one, type):
                _describe(one, found, seen)


def _is_number(value: Any) -> bool:
    """Whether a value is a number, of Python, NumPy or JAX."""
    if isinstance(value, np.generic | jax.Array) and not isinstance(value, Tracer):
        # A key has no dtype of NumPy.
        return np.ndim(value) == 0 and isinstance(value.dtype, np.dtype) and value.dtype.kind in "biuf"
    return isinstance(value, bool | int | float)
