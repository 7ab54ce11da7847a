"""What an annotation says of an argument, as a function that checks it.

Options are ``bool``, ``int``, ``Literal["valid", "same"]``, numbers in a range, functions (``Callable``), dtypes, and
unions of these and of arrays (`jaxblocks.checks.array_annotations`). For an unknown value the error names the one that
is meant, also by its names in other libraries (`jaxblocks.checks.foreign_names`).
"""

import collections.abc
import contextlib
import functools
import itertools
import math
import numbers
import operator
import re
import types
import typing
from collections.abc import Callable, Container
from typing import Annotated, Any, Literal, get_args, get_origin

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import DTypeLike
from jaxtyping import AbstractArray, PyTree

from jaxblocks.checks import foreign_names
from jaxblocks.checks.array_annotations import check_array
from jaxblocks.checks.errors import describe, public_name, require
from jaxblocks.checks.foreign_arrays import reject_foreign
from jaxblocks.checks.layer_inputs import reject_holder
from jaxblocks.checks.names import nearest

__all__ = ["expectation", "is_integer", "union_members"]

_DTYPES = {one for one in get_args(DTypeLike) if one is not type(None)}


def expectation(annotation: Any, optional: bool, repair_place: Callable[[Any], str]) -> Callable | None:
    """The check for an annotation: ``(name, value, sizes) -> value``; ``None`` where there is nothing to check.

    >>> expectation(int, False, lambda value: "")("n", 2.5, {})
    Traceback (most recent call last):
    ...
    ValueError: jaxblocks expected n to be an integer, got 2.5; pass one such as n=2.
    """
    options = union_members(annotation)
    optional = optional or type(None) in options
    # float accepts integers too; without int the error names the numbers once.
    options = [one for one in options if one is not type(None) and not (one is int and float in options)]
    # DTypeLike is a union of many types, and is recognized by containing them all; `InexactDType` is an annotated one.
    if _DTYPES <= set(options):
        return _expects_dtype
    if any(get_origin(one) is Annotated and _DTYPES <= set(union_members(get_args(one)[0])) for one in options):
        return functools.partial(_expects_dtype, complex_too=True)
    if len(options) == 1 and (options[0] is PyTree or getattr(options[0], "__name__", "") == "Tree"):
        return _expects_tree
    # Annotations of jaxtyping are classes; all other members of the union are checked as scalars.
    arrays = [one for one in options if isinstance(one, type) and issubclass(one, AbstractArray)]
    scalars = [one for one in options if one not in arrays]
    accepts = [_acceptance(one) for one in scalars]
    # One member of the union that is not known here may accept anything.
    if any(accept is None for accept in accepts) or not options:
        return _expects_tree if arrays else None
    known = [accept for accept in accepts if accept is not None]
    words = [word for word, _ in known]

    def accept_entry(value):  # an array of one number is in the range of the numbers that may stand in its place
        limited = [get_origin(one) is Annotated for one in scalars]
        return not any(limited) or any(accept(value.item()) for _, accept in itertools.compress(known, limited))

    def expects(name, value, sizes):
        # he_normal is callable too: called with (key, shape, dtype), it would return a function and not an array.
        if name.endswith("_init") and _makes_initializers(value):
            repair = f"call it: {value.__name__}()"
            require(False, f"{name} to be an initializer", f"{value.__name__} itself", repair, error=TypeError)
        if (value is None and optional) or any(accept(value) for _, accept in known):
            if not arrays and isinstance(value, (np.integer, np.ndarray)):  # accepted as an integer
                return operator.index(value)
            return value
        if arrays and (not scalars or hasattr(value, "shape")):
            value = check_array(name, value, arrays, sizes, repair_place)
            if not (scalars and value.shape == () and not isinstance(value, Tracer)) or accept_entry(value):
                return value
            # The number in the array is out of range: the error shows it as a number.
            value = value.item()
        said = " or ".join(dict.fromkeys(words + ["an array"] * bool(arrays) + ["None"] * optional))
        repair = repair_place(value) or _repair(name, value, scalars, words)
        # The right type with a wrong value is a ValueError, another type a TypeError.
        of_type = isinstance(value, (numbers.Real, str)) and not isinstance(value, bool)
        of_type = of_type or (isinstance(value, (tuple, list)) and " of " in said)
        if "function" in said:
            of_type = "'" in said if isinstance(value, str) else of_type and "integer" in said
        require(False, f"{name} to be {said}", describe(value), repair, error=ValueError if of_type else TypeError)

    expects.reads_values = bool(scalars)  # of arrays; without scalars it reads their shapes and dtypes only
    return expects


def _makes_initializers(value) -> bool:
    """Whether a function makes initializers, such as ``he_normal``, and so has to be called first."""
    of_jax = getattr(jax.nn.initializers, getattr(value, "__name__", ""), None) is value
    return getattr(value, "makes_functions", False) or (of_jax and value.__name__ not in ("zeros", "ones"))


def _expects_dtype(name, value, sizes, *, complex_too=False):
    """A dtype, or what ``jnp.dtype`` makes one from; most layers take floating-point ones only."""
    kind, words = (jnp.inexact, "floating-point or complex") if complex_too else (jnp.floating, "floating-point")
    try:
        floating = value is None or jnp.issubdtype(jnp.dtype(value), kind)
    except TypeError:
        meant = foreign_names.DTYPES.get(str(value).rpartition(".")[2], "")
        repair = f"pass jnp.{meant}" if meant else "pass one such as jnp.float32"
        require(False, f"{name} to be a dtype", repr(value), repair, error=TypeError)
    if not floating and public_name()[:1].isupper():
        require(False, f"{name} to be a {words} dtype", jnp.dtype(value).name, "pass one such as jnp.float32")
    return value


def _expects_tree(name, value, sizes):
    """A tree of arrays of any shapes, none of them of another library; params, and not what holds them."""
    reject_holder(name, value)
    reject_foreign(name, value)
    return value


def union_members(annotation: Any) -> list:
    """The members of a union, including those of nested unions.

    >>> union_members(int | None)
    [<class 'int'>, <class 'NoneType'>]
    """
    if get_origin(annotation) in (typing.Union, types.UnionType):
        return [member for one in get_args(annotation) for member in union_members(one)]
    return [annotation]


def _acceptance(annotation) -> tuple[str, Callable] | None:
    """Description and predicate of an annotation without arrays; ``None`` for an annotation of another kind."""
    origin, limits = get_origin(annotation), ()
    if origin is Annotated:  # with containers of the accepted numbers, such as `jaxblocks.checks.Range`
        annotation, *limits = get_args(annotation)
        limits = [one for one in limits if isinstance(one, Container) and not isinstance(one, str)]
    words = "".join(f" {limit}" for limit in limits)
    if origin is Literal:
        choices = get_args(annotation)
        # With the type, since 1 == True: Literal[1] does not accept True.
        return " or ".join(map(repr, choices)), lambda x: any(
            x is one or (type(x) is type(one) and x == one) for one in choices
        )
    if annotation is bool:
        return "True or False", lambda x: isinstance(x, (bool, np.bool_))
    if annotation is int:
        return f"an integer{words}", lambda x: is_integer(x) and all(x in limit for limit in limits)
    if annotation is float or annotation == float | int:
        return f"a number{words}", lambda x: _is_number(x) and all(x in limit for limit in limits)
    if annotation is str:
        return "a string", lambda x: isinstance(x, str)
    if origin in (typing.Union, types.UnionType):
        accepted = [_acceptance(one) for one in union_members(annotation)]
        if None not in accepted:
            known = [one for one in accepted if one is not None]
            return " or ".join(words for words, _ in known), lambda x: any(accept(x) for _, accept in known)
    if origin in (tuple, collections.abc.Sequence) and get_args(annotation):
        return _acceptance_of_entries(origin, get_args(annotation))
    if annotation is collections.abc.Callable or origin is collections.abc.Callable:
        return "a function", lambda x: callable(x) and not _is_layer(x)
    return None


def _acceptance_of_entries(kind: type, entries: tuple) -> tuple[str, Callable] | None:
    """That of ``tuple[X, ...]``, of ``tuple[int, int]``, and of ``Sequence[X]`` where X has a range or choices."""
    size = len(entries) if kind is tuple and entries[-1] is not ... else None
    # Functions check sequences without ranges themselves, and pairs of numbers, such as intervals.
    plain = get_origin(entries[0]) is None or entries[0] == float | int
    elsewhere = plain and (kind is not tuple or (size is not None and entries[0] is not int))
    of_one = _acceptance(entries[0])
    if of_one is None or (size is not None and set(entries) != {entries[0]}) or elsewhere:
        return None
    words, accept = of_one
    several = f"entries, each {words}" if " or " in words else re.sub("^an? ([a-z]+)", r"\1s", words)
    types_taken = (tuple, list) if kind is tuple else collections.abc.Sequence

    def accepts(x):
        taken = isinstance(x, types_taken) and not isinstance(x, str)
        return taken and size in (None, len(x)) and all(map(accept, x))

    return f"a {kind.__name__.lower()} of {several if size is None else f'{size} {several}'}", accepts


def is_integer(x: Any) -> bool:
    """Whether a value is a static integer: no bool, and no array of JAX.

    >>> is_integer(3), is_integer(True)
    (True, False)
    """
    # An array of JAX has __index__ too; a traced one fails there with an error of JAX.
    if isinstance(x, (bool, np.bool_)) or isinstance(x, jax.Array):
        return False
    try:
        operator.index(x)
    except TypeError:
        return False
    return True


def _is_layer(x) -> bool:
    """Whether a value is a pair of functions, which cannot be called (`jaxblocks.core` imports this module's users)."""
    return isinstance(x, tuple) and hasattr(x, "init") and hasattr(x, "apply")


def _is_number(x) -> bool:
    number = isinstance(x, (numbers.Real, np.floating, np.integer)) and not isinstance(x, (bool, np.bool_))
    return number and bool(x == x)  # not NaN


def _repair(name: str, value: Any, scalars: list, words: list[str]) -> str:
    """What to write in the place of a value that no member of the annotation accepts."""
    renamed = foreign_names.VALUES.get(name, {}).get(value, "") if isinstance(value, str) else ""
    if renamed and (renamed in " or ".join(words) or renamed[0] != "'"):
        return f"write {name}={renamed}"
    if any(isinstance(one, Tracer) for one in (value if isinstance(value, (tuple, list)) else (value,))):
        if public_name() == "fit":
            return "call fit outside of jax.jit, since it compiles its steps itself"
        return f'it has to be static while JAX traces; under jit, write static_argnames="{name}"'
    if words == ["a function"]:
        if _is_layer(value) and name in ("f", "loss", "losses", "model"):
            return "pass a function of what varies, such as lambda params: net.apply(params, x)"
        if name == "loss" and isinstance(value, (dict, list)):  # one for each head, as in Keras
            return "write one function loss(outputs, y) that returns their weighted sum"
        of_jax = isinstance(value, str) and hasattr(jax.nn, value)
        return f"pass the function itself, {name}=jax.nn.{value}" if of_jax else f"pass the function itself as {name}"
    if isinstance(value, (range, np.ndarray, jax.Array)) and np.ndim(value) == 1:
        with contextlib.suppress(TypeError):  # of keys
            value = tuple(np.asarray(value[:8]).tolist())
    several = isinstance(value, (tuple, list))
    # Of a union, the sequences first for a sequence, and the others first for any other value.
    examples = [_example(name, one, value) for one in sorted(scalars, key=lambda one: _has_entries(one) != several)]
    of_functions = "pass the functions themselves" if Callable in map(_entry, scalars) else ""
    return next((f"pass one such as {name}={example!r}" for example in examples if example is not None), of_functions)


def _has_entries(annotation) -> bool:
    return get_origin(annotation) in (tuple, collections.abc.Sequence)


def _entry(annotation):
    """The annotation of the entries of a sequence, else the annotation itself."""
    return get_args(annotation)[0] if _has_entries(annotation) else annotation


def _example(name: str, annotation, value):
    """A value that an annotation accepts, as like the given one as possible; ``None`` where none is known."""
    acceptance, members = _acceptance(annotation), get_args(annotation)
    if acceptance and acceptance[1](value):
        return value
    if _has_entries(annotation):
        entries = list(value)[:8] if isinstance(value, (tuple, list)) and value else [value]
        size = len(members) if get_origin(annotation) is tuple and members[-1] is not ... else len(entries)
        made = tuple(_example(name, members[0], one) for one in (entries * size)[:size])
        return None if None in made else made
    if get_origin(annotation) is Literal:
        names = [one for one in members if isinstance(one, str)]
        return (nearest(value, names) if isinstance(value, str) else "") or members[0]
    if annotation is bool:
        return next((bool(one) for one in _numbers_like(value)), True)
    if annotation is str:
        return "name"
    if acceptance and (get_origin(annotation) is Annotated or annotation in (int, float, float | int)):
        # The last axis, since layers take the first ones as batch.
        axis = [-1] if name in ("axis", "axes") else []
        usual = (0.5, 1, members[1].most) if get_origin(annotation) is Annotated and 2 not in members[1] else (1, 2)
        return next((one for one in (*_numbers_like(value), *axis, *usual) if acceptance[1](one)), None)
    return next((one for member in union_members(annotation)[1:] if (one := _example(name, member, value))), None)


def _numbers_like(value) -> list:
    """The numbers that may be meant by one in a string or an array, by a float or a percentage, the likeliest first."""
    number = math.nan
    if isinstance(value, (str, numbers.Real, np.generic, jax.Array)) and not isinstance(value, (bool, np.bool_)):
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            number = float(value)
    if not math.isfinite(number):
        return []
    whole = [int(number)] if number.is_integer() else [number, round(number)]
    return [*whole, number / 100] if number >= 2 else whole
