"""Calls as text and as bytes: the Python expression of a call, and what `pickle` stores of it.

The functions of JAX among the arguments, which `pickle` does not take, are written by their names in both.
"""

import functools
import importlib
import inspect
import math
import re
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.scipy.special
import numpy as np
from jax.core import Tracer

__all__ = ["call_expression", "reduced"]

_MODULES = {  # whose functions are known by their names
    "jnp": "jax.numpy",
    "jnp.linalg": "jax.numpy.linalg",
    "jax.nn": "jax.nn",
    "jax.nn.initializers": "jax.nn.initializers",
    "jax.lax": "jax.lax",
    "jax.scipy.special": "jax.scipy.special",
}
_LARGEST_ARRAY = 100  # entries that are printed


def call_expression(function: Callable, args: tuple, kwargs: dict) -> str:
    """The expression of a call; options that have their default values are left out.

    >>> call_expression(Dense, (3,), {"use_bias": False, "dtype": None})
    'Dense(3, use_bias=False)'
    """
    signature, parts, left = inspect.signature(function), [], len(args)
    for name, value in signature.bind(*args, **kwargs).arguments.items():
        p = signature.parameters[name]
        if p.kind is p.VAR_POSITIONAL:
            parts += map(_expression, value)
        elif p.kind is p.VAR_KEYWORD:
            parts += [f"{key}={_expression(each)}" for key, each in value.items()]
        # Arguments that were given by position stay so, as long as the parameters take them by position.
        elif left > 0 and p.kind is not p.KEYWORD_ONLY:
            parts.append(_expression(value))
        # Compared as text, since == of arrays is elementwise, and equal functions may be different objects.
        elif p.default is p.empty or _expression(value) != _expression(p.default):
            parts.append(f"{name}={_expression(value)}")
        left -= 1
    line = f"{function.__name__}({', '.join(parts)})"
    if len(line) <= 100 and "\n" not in line:
        return line
    # As a formatter breaks a call: one argument on each line.
    lines = ",\n".join(parts).replace("\n", "\n    ")
    return f"{function.__name__}(\n    {lines},\n)"


def _expression(value) -> str:
    if isinstance(value, functools.partial):
        options = [*map(_expression, value.args), *(f"{k}={_expression(v)}" for k, v in value.keywords.items())]
        return f"partial({', '.join([_expression(value.func), *options])})"
    if type(value) in (tuple, list):
        left, right = ("(", ")") if type(value) is tuple else ("[", "]")
        return left + ", ".join(map(_expression, value)) + "," * (left == "(" and len(value) == 1) + right
    if isinstance(value, (jax.Array, np.ndarray, np.generic)) and not isinstance(value, Tracer):
        return _array_expression(value)
    # Scalar types such as jnp.float32 are instances of a metaclass of JAX, not NumPy types.
    if isinstance(value, np.dtype) or isinstance(value, type(jnp.float32)) or value in (float, int, bool):
        return f"jnp.{jnp.dtype(value).name}"
    if isinstance(value, type) and issubclass(value, np.generic):
        return f"jnp.{value.__name__}"
    # repr gives inf and nan, which are no names in Python.
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value).replace("inf", "jnp.inf").replace("nan", "jnp.nan")
    return _function_expression(value) if callable(value) else repr(value)


def _array_expression(x) -> str:
    # In angle brackets: not an expression, and so not evaluated by mistake.
    if x.size > _LARGEST_ARRAY:
        return f"<{x.dtype} {x.shape}>"
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return f"jax.random.wrap_key_data({_array_expression(jax.random.key_data(x))})"
    # An integer of NumPy where a Python integer would do.
    if x.ndim == 0 and np.issubdtype(x.dtype, np.integer):
        return str(int(x))
    # The same for the entries of an array.
    numbers = re.sub(r"\b(nan|inf)\b", r"jnp.\1", str(np.asarray(x).tolist()))
    return f"jnp.array({numbers}, jnp.{x.dtype})"


def _function_expression(function) -> str:
    """``relu``, ``jnp.tanh``; in angle brackets where the name does not lead back to the function."""
    found = _find(function)
    if found:
        return f"{found[0]}.{found[1]}"
    name = getattr(function, "__name__", None)
    if name is None:
        return repr(function)
    home = sys.modules.get(getattr(function, "__module__", None) or "")
    # A local function is printed by its bare name, although the name does not lead back to it.
    reachable = "<locals>" in getattr(function, "__qualname__", "") or getattr(home, name, None) is function
    return name if reachable or name.startswith("<") else f"<{name}>"


def _find(function) -> tuple[str, str] | None:
    """The module and the name of a function of JAX."""
    name = getattr(function, "__name__", "")
    for prefix, module in _MODULES.items():
        if name and getattr(sys.modules.get(module), name, None) is function:
            return prefix, name
    # A namespace object and not a module, so that sys.modules does not have it.
    for name, policy in vars(jax.checkpoint_policies).items():
        if policy is function:
            return "jax.checkpoint_policies", name
    return None


class _FunctionName(NamedTuple):
    module: str
    name: str


class _Partial(NamedTuple):
    function: Any
    args: tuple
    kwargs: dict


def reduced(function: Callable, args: tuple, kwargs: dict) -> tuple:
    """The value of ``__reduce__`` for the result of a call: ``pickle`` stores the call and repeats it.

    >>> again, of = reduced(Dense, (3,), {})
    >>> again(*of)
    Dense(3)
    """
    return _call_again, (function, _to_names(args), _to_names(kwargs))


def _call_again(function, args, kwargs):
    return function(*_from_names(args), **_from_names(kwargs))


def _to_names(value: Any) -> Any:
    """The arguments of a call with names in place of the functions of JAX."""
    # Exact types: a subclass, such as a NamedTuple, cannot be built from one iterable, and is stored as it is.
    if type(value) in (tuple, list):
        return type(value)(map(_to_names, value))
    if type(value) is dict:
        return {key: _to_names(one) for key, one in value.items()}
    if type(value) is functools.partial:
        return _Partial(_to_names(value.func), _to_names(value.args), _to_names(value.keywords))
    found = _find(value) if callable(value) else None
    if found is None:
        return value
    return _FunctionName(_MODULES.get(found[0], found[0]), found[1])


def _from_names(value: Any) -> Any:
    """The inverse of `_to_names`."""
    if type(value) is _FunctionName:
        if value.module == "jax.checkpoint_policies":
            return getattr(jax.checkpoint_policies, value.name)
        return getattr(importlib.import_module(value.module), value.name)
    if type(value) is _Partial:
        return functools.partial(_from_names(value.function), *_from_names(value.args), **_from_names(value.kwargs))
    if type(value) in (tuple, list):
        return type(value)(map(_from_names, value))
    return {key: _from_names(one) for key, one in value.items()} if type(value) is dict else value
