"""Errors about the inputs of a layer, its side inputs and its params, that several callers raise."""

import functools
import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Array, Float

from jaxblocks.checks.errors import describe, require

__all__ = [
    "FROM_TORCH",
    "MASK_OF_LENGTHS",
    "check_declarations",
    "check_features",
    "check_groups_of_heads",
    "check_side_inputs",
    "is_shape",
    "reject_holder",
    "reject_shapes",
    "repair_of_params",
]


MASK_OF_LENGTHS = "pass mask=jnp.arange(time) < lengths[..., None] in its place"
"""The repair for lengths that are given to a layer that reads only a mask."""
FROM_TORCH = "if the axes are torch's (*batch, heads, time, head_dim), write jnp.swapaxes(x, -3, -2) for q, k and v"
"""The repair for shapes of heads that fit with the axes of time and heads exchanged."""


def is_shape(x: Any, *kinds: type) -> bool:
    """Whether x is one of these sequences, with integers only.

    >>> is_shape((4, 8), tuple), is_shape([4, 8], tuple), is_shape((), tuple)
    (True, False, False)
    """
    integers = isinstance(x, kinds) and all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) for n in x)
    return integers and len(x) > 0


def reject_shapes(inputs: Iterable) -> None:
    """Raise a ``TypeError`` for an input that is a shape, such as ``(4, 8)``, or the size of one axis.

    >>> reject_shapes([(4, 8)])
    Traceback (most recent call last):
    ...
    TypeError: jaxblocks expected arrays as inputs, got (4, 8); write jax.ShapeDtypeStruct((4, 8), jnp.float32).
    """
    for x in inputs:
        if type(x) is int or isinstance(x, np.integer):
            repair = f"pass an array, or its shape: jax.ShapeDtypeStruct((1, {x}), jnp.float32)"
            require(False, "arrays as inputs", x, repair, error=TypeError)
        elif is_shape(x, tuple, list):
            repair = f"jax.ShapeDtypeStruct({tuple(n if n >= 0 else 1 for n in x)}, jnp.float32)"  # -1 for any
            repair = f"write {repair}" if isinstance(x, tuple) else f"write jnp.asarray(x), or {repair} for a shape"
            repair = repair if len(x) <= 8 else "write jnp.asarray(x)"
            require(False, "arrays as inputs", x, repair, error=TypeError)


def check_declarations(function: Any) -> Any:
    """Return a function of arrays; a ``TypeError`` where it declares ``train`` or a random key by position.

    Combinators pass side inputs to keyword-only parameters, so these would always have their default. The first
    parameter is an input, the params or the key of ``init``. A ``key`` without a default, or beside a ``query`` or
    ``value``, may be an input.

    >>> check_declarations(lambda x, train=False: x)
    Traceback (most recent call last):
    ...
    TypeError: jaxblocks expected side inputs as keyword-only parameters, got train=False by position; declare it \
after *: (x, *, train=False).
    """
    is_partial = isinstance(function, functools.partial)
    given = function.keywords if is_partial else {}
    try:
        parameters = inspect.signature(function).parameters
        # Parameters after one that a partial sets are keyword-only in its signature, but not in that of its function.
        written = inspect.signature(function.func).parameters if is_partial else parameters
    except (TypeError, ValueError):  # a builtin without a signature
        return function
    inputs, moved, by_place = [], [], (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    for name, p in parameters.items():
        is_key = name == "key" and p.default is None and not {"query", "value"} & set(parameters)
        by_position = inputs and name not in given and written[name].kind in by_place
        (moved if by_position and (name == "train" or is_key) else inputs).append(p)
    if moved:
        # Only train may be without a default.
        by_name = [p.replace(kind=p.KEYWORD_ONLY, default=False if p.default is p.empty else p.default) for p in moved]
        whole = inspect.Signature(sorted([*inputs, *by_name], key=lambda p: p.kind))
        it, got = "it" if len(moved) == 1 else "them", ", ".join(map(str, moved))
        repair = f"declare {it} after *: {whole}"
        require(False, "side inputs as keyword-only parameters", f"{got} by position", repair, error=TypeError)
    return function


def check_side_inputs(required: Iterable[str], side: Mapping) -> None:
    """Raise a ``TypeError`` for the first of the required side inputs that is missing.

    >>> check_side_inputs(["time"], {"train": True})
    Traceback (most recent call last):
    ...
    TypeError: jaxblocks expected the side input time, got none; pass time=... (to init and to apply).
    """
    for name in required:
        if name not in side:
            repair = f"pass {name}=... (to init and to apply)"
            if name == "key":  # as evaluation calls a net
                repair = "pass key=..., or declare key=None and return the mean of what is drawn where there is no key"
            require(False, f"the side input {name}", "none", repair, error=TypeError)


def check_features(name: str, x: Any) -> None:
    """Raise a ``ValueError`` where an array that a kernel multiplies has no features, since a fan-in is positive.

    Of the inputs of ``init`` these are the arrays whose annotation ends with the axis ``in``. Layers without a kernel,
    such as pools and norms, take arrays without features.
    """
    require(x.shape[-1] != 0, "at least one feature", x, f"pass features on the last axis of {name}")


def check_groups_of_heads(q: Float[Array, "... heads head_dim"], k: Float[Array, "... kv_heads head_dim"]) -> None:
    """Raise a ``ValueError`` unless each head of keys serves the same number of heads of queries."""
    expected = "the heads of q (axis -2) to be a multiple of those of k, each group sharing one head of keys"
    got, repair = f"{describe(q)} and {describe(k)}", FROM_TORCH if k.shape[-2] else "give k a head"
    require(k.shape[-2] > 0 and q.shape[-2] % k.shape[-2] == 0, expected, got, repair)


def _holder(value) -> str:
    """The usual name of a value of this package that holds params, such as ``"ts"``; "" for other values."""
    own = type(value).__module__.startswith("jaxblocks.")  # `training` is not imported here
    return {"Fitted": "fitted", "TrainState": "ts"}.get(type(value).__name__, "") if own else ""


def reject_holder(name: str, value: Any) -> None:
    """Raise a ``TypeError`` for what `fit` returns where a tree is expected, and for a training state as params."""
    holder = _holder(value)
    if holder and (name in ("params", "state") or holder == "fitted"):
        repair = f"pass {holder}.{'state' if name == 'state' else 'params'}"
        require(False, f"{name} to be a tree of arrays", value, repair, error=TypeError)


def repair_of_params(params: Any, call: str) -> str:
    """What to do about params that are not those of a layer, as in the variables of Flax, which hold them.

    >>> repair_of_params({"params": {"scale": 1.0}}, "apply(params, x)")
    'pass the entry "params" alone: apply(variables["params"], x)'
    """
    if isinstance(params, Mapping) and "params" in params:
        call = call.replace("params", 'variables["params"]')
        return f'pass the entry "params" alone: {call}'
    if holder := _holder(params):
        call = call.replace("params", f"{holder}.params").replace("state,", f"{holder}.state,")
        return f"pass those in {'the result of fit' if holder == 'fitted' else 'the training state'}: {call}"
    return f"pass those that its own init made: {call}"
