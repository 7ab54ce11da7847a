"""Signatures as ``help`` shows them: ``int >= 1`` for an annotated number, and the names of functions as defaults."""

import functools
import inspect
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

from jax.typing import DTypeLike

__all__ = ["ReadableSignature", "type_in_words"]


class ReadableSignature(inspect.Signature):
    """The signature of a function, which is read when it is needed, and prints its types in words.

    Its parameters are those of the function; only the text differs.

    >>> from jaxblocks.checks import PositiveInt
    >>> def f(features: PositiveInt, *, activation: Callable = relu) -> PositiveInt: ...
    >>> print(ReadableSignature(f))
    (features: int >= 1, *, activation: Callable = relu) -> int >= 1
    """

    def __init__(self, function: Callable):
        """Remember the function; importing a module reads no signature."""
        self._function = function

    @functools.cached_property
    def plain(self) -> inspect.Signature:
        """The signature as ``inspect`` reads it from the function."""
        return inspect.signature(self._function)

    parameters = property(lambda self: self.plain.parameters)  # type: ignore[assignment]
    return_annotation = property(lambda self: self.plain.return_annotation)  # type: ignore[assignment]
    replace = __replace__ = lambda self, **changes: self.plain.replace(**changes)  # type: ignore[assignment]

    def __reduce__(self):
        return ReadableSignature, (self._function,)

    def __str__(self) -> str:
        return str(_in_words(self.plain))

    def format(self, **options: Any) -> str:
        """The text, which ``help`` shows from Python 3.13 on."""
        return _in_words(self.plain).format(**options)  # type: ignore[attr-defined]


class _Shown(str):
    """A text that prints without quotes."""

    __repr__ = str.__str__


def _in_words(signature: inspect.Signature) -> inspect.Signature:
    result, empty = signature.return_annotation, inspect.Signature.empty
    return inspect.Signature(
        [_parameter_in_words(p) for p in signature.parameters.values()],
        return_annotation=empty if result is empty else _Shown(type_in_words(result)),
    )


def _parameter_in_words(p: inspect.Parameter) -> inspect.Parameter:
    annotation = p.annotation if p.annotation is p.empty else _Shown(type_in_words(p.annotation))
    default = p.default
    if isinstance(default, functools.partial):
        options = ", ".join(f"{name}={value!r}" for name, value in default.keywords.items())
        default = _Shown(f"partial({default.func.__name__}, {options})")
    elif default is not p.empty and callable(default) and hasattr(default, "__name__"):
        default = _Shown(default.__name__)
    return inspect.Parameter(p.name, p.kind, default=default, annotation=annotation)


def type_in_words(annotation: Any) -> str:
    """The text of a type.

    >>> from jaxblocks.checks import Rate
    >>> type_in_words(Rate | None), type_in_words(Literal["same", "valid"])
    ('float >= 0 and < 1 | None', "'same' | 'valid'")
    """
    origin, members = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        number = "float" if float in typing.get_args(members[0]) else type_in_words(members[0])
        return number if isinstance(members[1], str) else f"{number} {members[1]}"  # a range
    if origin is Literal:
        return " | ".join(map(repr, members))
    if origin in (typing.Union, types.UnionType):
        of_dtype = set(typing.get_args(DTypeLike))
        if of_dtype <= set(members):
            members = ("DTypeLike", *(one for one in members if one not in of_dtype or one is types.NoneType))
        return " | ".join(dict.fromkeys(map(type_in_words, members)))
    if isinstance(annotation, str):
        return annotation
    if annotation is types.NoneType or annotation is None:
        return "None"
    if isinstance(annotation, TypeVar):
        return annotation.__name__
    if origin is not None:
        inside = ", ".join(map(_member, members))
        return f"{getattr(origin, '__name__', origin)}[{inside}]" if inside else origin.__name__
    return getattr(annotation, "__name__", str(annotation).removeprefix("typing.")).replace("jaxlib._jax.", "")


def _member(one: Any) -> str:
    return "..." if one is ... else f"[{', '.join(map(_member, one))}]" if isinstance(one, list) else type_in_words(one)
