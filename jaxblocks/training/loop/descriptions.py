"""Descriptions of functions, which a checkpoint stores to detect a change of the net, the loss or the optimizer."""

import dis
import functools
import inspect
import re
from types import CodeType
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from jaxblocks.core.pairs import Layer, StatefulLayer
from jaxblocks.core.recording import Call

__all__ = ["describe_function"]


def describe_function(function: Any) -> list[str]:
    """The names of a function and of the functions in its closure, with the numbers that they were made with.

    The numbers are those in closures, defaults, attributes of callable objects, and the text of functions (of functions
    and objects that are not from this library, JAX or optax). A layer is described by the expression that builds it and
    by the functions in it. Two functions with the same description may differ: in arrays, in the operations in their
    text, in what they call.

    >>> import optax
    >>> def scaled(scale):
    ...     return lambda outputs, y: scale * abs(outputs - y)
    >>> describe_function(scaled(2.0))
    ['scaled.<lambda>(scale=2.0)']
    >>> describe_function(optax.sgd(0.1))[-1]
    'scale.update_fn(step_size=-0.1)'
    """
    found: list[str] = []
    parts = [function]
    if isinstance(function, (Layer, StatefulLayer)):  # addresses differ between processes
        found += [line.strip() for line in re.sub(r" at 0x[0-9a-f]+", "", repr(function)).splitlines()]
        parts = _functions_of(function)
    elif hasattr(function, "init") and hasattr(function, "update"):  # an optimizer
        parts = [function.init, function.update]
    seen: set[int] = set()
    for part in parts:
        _describe(part, found, seen)
    return found


def _functions_of(value: Any) -> list:
    """The functions that a layer was built with, except those of libraries."""
    call = getattr(value, "call", None)
    if isinstance(call, Call):
        value = (*call.args, *call.kwargs.values())
    elif isinstance(value, functools.partial):
        value = (value.func, *value.args, *value.keywords.values())
    if isinstance(value, (tuple, list)):
        return [function for one in value for function in _functions_of(one)]
    return [value] if callable(value) and not isinstance(value, type) and not _is_of_library(value) else []


def _is_of_library(function: Any) -> bool:
    module = getattr(function, "__module__", None) or ""  # of an object that of its class
    return module.partition(".")[0] in ("jax", "jaxlib", "jaxblocks", "numpy", "optax")


def _describe(function, found: list[str], seen: set[int]) -> None:
    if id(function) in seen or len(found) >= 100:
        return
    seen.add(id(function))
    constants: list[str] = []
    if isinstance(function, functools.partial):
        inside = {"": function.func, **dict(enumerate(function.args)), **function.keywords}
        name = "partial"
    else:
        function = inspect.unwrap(function)  # of jax.jit and other decorators
        code = getattr(function, "__code__", None)
        inside = dict(zip(code.co_freevars, map(_content, function.__closure__ or ()), strict=False)) if code else {}
        defaults = inspect.signature(function).parameters.values() if code else ()
        inside |= {p.name: p.default for p in defaults if _is_number(p.default)}
        if not _is_of_library(function):
            owner = function.__self__ if inspect.ismethod(function) else function
            if not isinstance(owner, type):
                fields = getattr(owner, "__dict__", {}) | {key: getattr(owner, key) for key in _fields(owner)}
                inside |= {key: value for key, value in fields.items() if key != "__wrapped__"}
            code = code or getattr(type(function).__call__, "__code__", None)  # of an object
            constants = _constants(code) if code else []
        name = str(getattr(function, "__qualname__", type(function).__name__)).replace(".<locals>", "")
    inside |= {name: one for value in inside.values() if isinstance(value, dict) for name, one in value.items()}
    numbers = [f"{key}={_number(value)!r}" for key, value in inside.items() if _is_number(value)] + constants
    found.append(f"{name}({', '.join(numbers)})" if numbers else name)
    for value in inside.values():
        for one in value if isinstance(value, (tuple, list)) else (value,):
            if callable(one) and not isinstance(one, type):
                _describe(one, found, seen)


def _fields(owner) -> tuple[str, ...]:
    """The names of the entries of a NamedTuple, and of attributes without ``__dict__``."""
    slots = getattr(owner, "__slots__", ())
    names = (*getattr(owner, "_fields", ()), *((slots,) if isinstance(slots, str) else slots))
    return tuple(name for name in names if hasattr(owner, name))


def _constants(code: CodeType) -> list[str]:
    """The numbers in the text of a function and of the functions inside."""
    loads = ("LOAD_CONST", "LOAD_SMALL_INT", "RETURN_CONST")  # by the version of Python
    values = [one.argval for one in dis.get_instructions(code) if one.opname in loads]
    values = [one for value in values for one in (value if isinstance(value, tuple) else (value,))]
    inner = [number for one in values if isinstance(one, CodeType) for number in _constants(one)]
    return [repr(_number(value)) for value in values if _is_number(value)] + inner


def _is_number(value: Any) -> bool:
    """Whether a value is a number, of Python, NumPy or JAX."""
    if isinstance(value, (np.generic, jax.Array)) and not isinstance(value, Tracer):
        # A key has no dtype of NumPy.
        return np.ndim(value) == 0 and isinstance(value.dtype, np.dtype) and value.dtype.kind in "biuf"
    return isinstance(value, (bool, int, float))


def _number(value: Any) -> bool | float:
    """A number as a float, since optax converts some of them at the first call."""
    return value if isinstance(value, bool) else float(value)


def _content(cell):
    try:
        return cell.cell_contents
    except ValueError:  # not yet assigned
        return None
