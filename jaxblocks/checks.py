"""Argument checks and their error messages. Every message has the form

    <public name> expected <what>, got <shape, dtype or value>; <what to do>.

`checked` reads the expectations of a function from its annotations and checks the arguments of every call before the
body runs: dtypes and shapes (``Float[Array, "*batch in"]``), options (``bool``, ``int``,
``Literal["valid", "same"]``), ranges (`PositiveInt`, `Rate`, ...), functions (``Callable``). An axis name that occurs
twice has one size. For an unknown option the message names the one that is meant, also by the names that other
libraries have for it (`jaxblocks.other_libraries`). For a condition that annotations cannot express, the body calls
`require`. When a check fails, `public_name` finds the public function in the call stack.

Shapes and dtypes are static, so these checks always run while JAX traces and cost nothing at run time. Values are
available only where they are concrete (eager calls, and eager ``grad``); there `check_values` raises at once. Inside
``jit`` or ``vmap`` it cannot raise. The functions that check values therefore document their result for invalid
values, and take ``check=True``, which passes the condition to ``jax.experimental.checkify`` (under ``jit`` without
``checkify`` JAX raises an error)::

    >>> from jax.experimental import checkify
    >>> from jaxblocks.losses import kl_divergence
    >>> checkified = jax.jit(checkify.checkify(lambda p, q: kl_divergence(p, q, check=True)))
    >>> error, value = checkified(jnp.array([0.5, 0.5]), jnp.array([0.5, 0.25]))
    >>> error.get() is None
    False
"""

import collections.abc
import difflib
import functools
import inspect
import itertools
import math
import numbers
import operator
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import DTypeLike
from jaxtyping import AbstractArray, Key

from jaxblocks import other_libraries

__all__ = [
    "Epsilon",
    "NonNegativeFloat",
    "NonNegativeInt",
    "PositiveFloat",
    "PositiveInt",
    "Range",
    "Rate",
    "require",
    "check_params",
    "check_range",
    "check_side_inputs",
    "check_values",
    "checkable",
    "checked",
    "concrete",
    "describe",
    "public_name",
    "reject_shapes",
]

F = TypeVar("F", bound=Callable)


# ---- ranges in annotations -------------------------------------------------------------------


class Range(NamedTuple):
    """The range of an annotated number: ``Annotated[int, Range(1)]`` is an integer >= 1.

    Attributes:
        least: the lower bound; excluded where ``open_below``.
        below: the upper bound, excluded.
        most: the upper bound, included.
    """

    least: float = -math.inf
    below: float = math.inf
    most: float = math.inf
    open_below: bool = False

    def __contains__(self, value) -> bool:
        above = value > self.least if self.open_below else value >= self.least
        return bool(above and value <= self.most and (value < self.below or self.below == math.inf))

    def __repr__(self) -> str:
        return f"Range({self})"

    def __str__(self) -> str:
        first = f"> {self.least:g}" if self.open_below else f">= {self.least:g}"
        last = f"< {self.below:g}" if self.below < math.inf else f"<= {self.most:g}" if self.most < math.inf else ""
        return " and ".join(filter(None, ("" if self.least == -math.inf else first, last)))


PositiveInt = Annotated[int, Range(1)]
NonNegativeInt = Annotated[int, Range(0)]
PositiveFloat = Annotated[float | int, Range(0, open_below=True)]  # int too, for checkers without a numeric tower
NonNegativeFloat = Annotated[float | int, Range(0)]
Rate = Annotated[float | int, Range(0, below=1)]
Epsilon = Annotated[float | int, Range(0, below=1e38)]  # finite in float32 too


# ---- the error message -----------------------------------------------------------------------


def require(ok, expected: str, got: object = ..., repair: str = "", *, error: type[Exception] = ValueError) -> None:
    """Raise ``error`` unless ``ok``: "<public name> expected <expected>, got <got>; <repair>."

    `describe` formats ``got`` where it is not a string. Omit ``got`` where ``expected`` suffices.

    >>> require(len("abc") == 3, "three letters", "abc")
    >>> require(len("ab") == 3, "three letters", 2, "add one")
    Traceback (most recent call last):
    ...
    ValueError: jaxblocks expected three letters, got 2; add one.
    """
    if not ok:
        said = "" if got is ... else f", got {got if isinstance(got, str) else describe(got)}"
        end = "" if repair.endswith("?") else "."
        raise error(f"{public_name()} expected {expected}{said}{'; ' * bool(repair)}{repair}{end}")


def describe(x) -> str:
    """A short description of a value for error messages: dtype and shape of an array, ``repr`` of other values.

    >>> describe(jnp.zeros((2, 3))), describe(None), describe(2.5), describe({"scale": 1})
    ('float32 (2, 3)', 'None', '2.5', 'a dict')
    """
    if hasattr(x, "dtype") and hasattr(x, "shape"):
        return f"{x.dtype} {tuple(x.shape)}"
    name = type(x).__name__
    if inspect.isroutine(x):
        return f"the function {getattr(x, '__name__', name)}"
    short = x is None or isinstance(x, (bool, int, float, complex, str, range, type))
    short = short or (isinstance(x, tuple) and all(isinstance(one, (bool, int, float, str, type(None))) for one in x))
    return repr(x) if short and len(repr(x)) <= 60 else f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


_TRANSPARENT = {"jax", "jaxlib", "jaxtyping", "beartype", "contextlib", "functools", "typing"}
_MECHANISM = {"jaxblocks.checks", "jaxblocks.children", "jaxblocks.core"}
_WITHOUT_PUBLIC_NAMES = {*_MECHANISM, "jaxblocks.recording"}
_BOUNDARIES = {"init_child", "apply_child", "call_forward", "call_loss"}


def public_name() -> str:
    """Name of the public function that the user called: the outermost one on the call stack.

    The search goes outward and stops at the layer that is being run, at user code, and at the calls by which the
    library runs functions of the user.
    """
    name, fallback, in_layer, frame = "", "", False, sys._getframe(1)
    while frame is not None:
        module, path = frame.f_globals.get("__name__", ""), frame.f_code.co_qualname
        is_wrapper = path == "checked.<locals>.wrapper" and module == __name__
        if is_wrapper:  # its function may not have a frame yet
            module, path = frame.f_locals["known_as"]
            fallback = fallback or path
        head, _, last = path.partition(".<locals>.")
        at_boundary = module.partition(".")[0] == "jaxblocks" and frame.f_code.co_name in _BOUNDARIES
        if at_boundary and (name or fallback):  # else the combinator itself raises the error
            break
        if in_layer and not (is_wrapper and last in ("init", "apply")):  # of another builder around this one
            inside = module in _MECHANISM or head == name  # of the same layer
            if not inside and module.partition(".")[0] not in _TRANSPARENT:
                break
        elif last in ("init", "apply") and head[:1].isupper() and (is_wrapper or module.startswith("jaxblocks.")):
            name, in_layer = head, True
        elif module.partition(".")[0] == "jaxblocks":
            public = getattr(sys.modules[module], "__all__", ())  # a method is public if its class is
            if head.partition(".")[0] in public and module not in _WITHOUT_PUBLIC_NAMES:
                name = head
        elif name and module.partition(".")[0] not in _TRANSPARENT:
            break
        frame = frame.f_back
    return name or fallback or "jaxblocks"


# ---- checks from annotations -----------------------------------------------------------------


def checked(function: F, *, layer: str = "") -> F:
    """Check the arguments of every call against the annotations, and convert NumPy arrays to JAX arrays.

    >>> from jaxtyping import Array, Float
    >>> @checked
    ... def affine(x: Float[Array, "*batch in"], kernel: Float[Array, "in out"]):
    ...     return x @ kernel
    >>> affine(jnp.ones((2, 3)), jnp.ones((4, 5)))
    Traceback (most recent call last):
    ...
    ValueError: affine expected x (*batch, in) and kernel (in, out) with the same size of in, got float32 (2, 3) and \
float32 (4, 5); give axis -1 of x and axis 0 of kernel one size.

    ``layer`` is the name of the builder whose ``init`` or ``apply`` the function is.
    """
    stored = _Stored()
    role = "init" if inspect.unwrap(function).__name__.endswith("init") else "apply"
    name = (function.__module__ or "", f"{layer}.<locals>.{role}" if layer else function.__qualname__)

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        known_as = name  # read by public_name  # noqa: F841
        if stored.expected is None:  # read at the first call, so that the import stays fast
            stored.expected = _expected_by(function)
            if layer and stored.expected.rest:  # a combinator, whose children ask for their side inputs
                stored.expected.required_by_name.clear()
        if layer:
            _check_inputs(stored.expected, args, kwargs)
        args, kwargs = _check_arguments(stored.expected, args, kwargs)
        return function(*args, **kwargs)

    if layer:
        wrapper.__qualname__ = name[1]
    return wrapper  # type: ignore[return-value]


class _Expected(NamedTuple):
    """What the annotations of a function say, with a check or ``None`` for each parameter.

    Attributes:
        positional: the parameters that may be given by position, in order.
        rest: that of ``*args``, if there is one.
        named: the parameters that may be given by name.
        takes_any_name: whether there are ``**kwargs``.
        required: the names of those by position without a default.
        required_by_name: the names of keyword-only ones without a default.
    """

    positional: list[tuple[str, Callable | None]]
    rest: tuple[str, Callable | None] | None
    named: dict[str, Callable | None]
    takes_any_name: bool
    required: list[str]
    required_by_name: list[str]

    def unknown(self, kwargs: Mapping) -> list[str]:
        """The names that are not parameters."""
        return [] if self.takes_any_name else [name for name in kwargs if name not in self.named]


class _Stored:
    """Holds the expectations. They are not pickled: a copy of the function reads its annotations again."""

    def __init__(self):
        self.expected: Any = None

    def __reduce__(self):
        return _Stored, ()


def _check_inputs(expected: _Expected, args: tuple, kwargs: Mapping) -> None:
    """The number of inputs of a layer, and the names of its side inputs."""
    inputs = [name for name, _ in expected.positional]
    if inputs[:1] == ["key"]:
        reject_shapes(args)
    sides = [name for name in expected.named if name not in inputs]
    if unknown := expected.unknown(kwargs):
        repair = "leave it out, or declare it as a keyword-only parameter of the layer that should read it"
        repair = other_libraries.MISSING_OPTIONS.get(unknown[0], repair).format(name=public_name())
        known = f"side inputs among those that it reads ({', '.join(sorted(sides)) or 'none'})"
        require(False, known, ", ".join(map(repr, unknown)), repair, error=TypeError)
    given = len(args) + sum(name in kwargs for name in inputs)
    if len(args) > len(inputs) and not expected.rest:
        repair = "call apply with params (and state) first"
        if hasattr(args[len(inputs)], "shape"):
            repair = "join several arrays before this layer, for example by lambda *xs: jnp.concatenate(xs, -1)"
        require(False, f"the inputs ({', '.join(inputs)})", f"{given} inputs", repair, error=TypeError)
    missing = [name for name in expected.required[len(args) :] if name not in kwargs]
    if missing:
        repair = f"write apply({', '.join(inputs)})"
        if inputs[0] == "key":
            repair = f"pass an array or a jax.ShapeDtypeStruct, as in init({', '.join(inputs)})"
        require(False, f"the input {missing[0]}", "none", repair, error=TypeError)
    check_side_inputs(expected.required_by_name, kwargs)


def reject_shapes(inputs: Iterable) -> None:
    """Raise a ``TypeError`` for an input that is a shape, such as ``(4, 8)``.

    >>> reject_shapes([(4, 8)])
    Traceback (most recent call last):
    ...
    TypeError: jaxblocks expected arrays as inputs, got (4, 8); write jax.ShapeDtypeStruct((4, 8), jnp.float32).
    """
    for x in inputs:
        if isinstance(x, (tuple, list)) and x and all(map(_is_integer, x)):
            repair = f"write jax.ShapeDtypeStruct({tuple(x)}, jnp.float32)"
            require(False, "arrays as inputs", x, repair, error=TypeError)


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
            require(False, f"the side input {name}", "none", repair, error=TypeError)


def _is_synonym(name: str, option: str) -> bool:
    return name in other_libraries.OPTIONS.get(option, "").split()


def _reject_unknown(named: Iterable[str], unknown: list[str]) -> None:
    """Reject options that a function does not have, and advise the one that is meant."""
    first = unknown[0]
    near = [name for name in named if _is_synonym(first, name)]
    hints = other_libraries.MISSING_OPTIONS
    if first not in hints:
        near += difflib.get_close_matches(first, named, 1)
    repair = f"did you mean {near[0]}?" if near else hints.get(first, "leave it out").format(name=public_name())
    expected = f"options among {', '.join(named)}" if named else "no options"
    require(False, expected, ", ".join(map(repr, unknown)), repair, error=TypeError)


def _reject_number(positional, args: tuple, kwargs: Mapping, missing: list[str]) -> None:
    """Reject a call with too many arguments by position, or without the required ``missing``."""
    names, name = ", ".join(one for one, _ in positional) or "none", public_name()
    if len(args) > len(positional) and not missing:
        repair = "pass options by name"
        if name[:1].isupper() and all(_is_integer(one) for one in args):  # as in PyTorch, input size first
            last = ", ".join(map(str, args[len(args) - len(positional) :]))
            repair = f"init reads the size of the input from x, so leave it out: {name}({last})"
        if names.endswith("data"):
            repair = "put x and y in one tuple: data=(x, y)"
        expected = f"at most {len(positional)} arguments by position ({names})"
        require(False, expected, f"{len(args)} of them", repair, error=TypeError)
    repair = f"write {name}(..., {missing[0]}=...)"
    if missing[0] in other_libraries.ARGUMENTS:
        repair = other_libraries.ARGUMENTS[missing[0]].format(name=name)
    elif args and missing[0] in [one for one, _ in positional]:
        repair = f"write {name}({names})"
    if not args and positional and missing[0] == positional[0][0] == "x":
        repair = f"pass an array; as a layer it is {name}, without a call"
    foreign = [one for one in kwargs if _is_synonym(one, missing[0])]
    repair = f"write {missing[0]}= instead of {foreign[0]}=" if foreign else repair
    require(False, f"the argument {missing[0]}", "none", repair, error=TypeError)


def _check_arguments(expected: _Expected, args: tuple, kwargs: Mapping) -> tuple[list, dict]:
    """The checked arguments of a call: NumPy arrays are converted to JAX arrays, all others are unchanged."""
    positional, rest, named, _, required, by_name = expected
    if unknown := expected.unknown(kwargs):
        _reject_unknown(named, unknown)
    sizes: dict[str, tuple] = {}
    checked_args = []
    for i, value in enumerate(args):
        name, expects = positional[i] if i < len(positional) else rest or ("", None)
        checked_args.append(value if expects is None else expects(name, value, sizes))
    checked_kwargs = {}
    for name, value in kwargs.items():
        expects = named.get(name)
        checked_kwargs[name] = value if expects is None else expects(name, value, sizes)
    missing = [name for name in (*required[len(args) :], *by_name) if name not in kwargs]
    if missing or (len(args) > len(positional) and not rest):
        _reject_number([] if rest else positional, args, kwargs, missing)
    return checked_args, checked_kwargs


_DTYPES = {one for one in typing.get_args(DTypeLike) if one is not type(None)}
_BY_NAME = {"key": Key[jax.Array, ""], "train": bool}
"""The annotations that the contract implies for two names, where a function has none."""


def _expected_by(function) -> _Expected:
    """The expectations of a function, from its signature."""
    found = _Expected([], None, {}, False, [], [])
    parameters = _signature(function).parameters.values()
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    for p in parameters:
        annotation = _BY_NAME.get(p.name) if p.annotation is p.empty else p.annotation
        repair = functools.partial(_repair_place, p, names)
        expects = None if annotation is None else _expectation(annotation, p.default is None, repair)
        if p.kind is p.VAR_POSITIONAL:
            found = found._replace(rest=(p.name, expects))
        elif p.kind is p.VAR_KEYWORD:
            found = found._replace(takes_any_name=True)
        else:
            if p.default is p.empty:
                (found.required_by_name if p.kind is p.KEYWORD_ONLY else found.required).append(p.name)
            if p.kind is not p.POSITIONAL_ONLY:  # whose name may also be that of one of ``**kwargs``
                found.named[p.name] = expects
            if p.kind is not p.KEYWORD_ONLY:
                found.positional.append((p.name, expects))
    return found


def _signature(function):
    """The signature with annotations that are strings evaluated, where that is possible."""
    try:
        return inspect.signature(function, eval_str=True)
    except (NameError, SyntaxError, TypeError, AttributeError):
        return inspect.signature(function)


def _expectation(annotation, optional: bool, repair_place: Callable[[Any], str]) -> Callable | None:
    """The check for an annotation: ``(name, value, sizes) -> value``; ``None`` where there is nothing to check."""
    options = _members(annotation)
    optional = optional or type(None) in options
    options = [one for one in options if one is not type(None) and not (one is int and float in options)]
    if _DTYPES <= set(options):
        return _expects_dtype
    arrays = [one for one in options if isinstance(one, type) and issubclass(one, AbstractArray)]
    scalars = [one for one in options if one not in arrays]
    accepts = [_acceptance(one) for one in scalars]
    if any(accept is None for accept in accepts) or not options:
        return None
    known = [accept for accept in accepts if accept is not None]
    words = [word for word, _ in known]

    def accept_entry(value):  # an array of one number is in the range of the numbers that may stand in its place
        limited = [typing.get_origin(one) is Annotated for one in scalars]
        return not any(limited) or any(accept(value.item()) for _, accept in itertools.compress(known, limited))

    def expects(name, value, sizes):
        if name.endswith("_init") and _makes_initializers(value):
            repair = f"call it: {value.__name__}()"
            require(False, f"{name} to be an initializer", f"{value.__name__} itself", repair, error=TypeError)
        if (value is None and optional) or any(accept(value) for _, accept in known):
            return value
        if arrays and (not scalars or hasattr(value, "shape")):
            value = _check_array(name, value, arrays, sizes, repair_place)
            if not (scalars and value.shape == () and not isinstance(value, Tracer)) or accept_entry(value):
                return value
            value = value.item()
        said = " or ".join(dict.fromkeys(words + ["an array"] * bool(arrays) + ["None"] * optional))
        repair = repair_place(value) or _repair_scalar(name, value, words)
        got = repr(value) if isinstance(value, str) else value
        of_type = isinstance(value, (numbers.Real, str)) and not isinstance(value, bool)
        of_type = of_type or (isinstance(value, (tuple, list)) and " of " in said)
        if "function" in said:
            of_type = "'" in said if isinstance(value, str) else of_type and "integer" in said
        require(False, f"{name} to be {said}", got, repair, error=ValueError if of_type else TypeError)

    return expects


def _makes_initializers(value) -> bool:
    """Whether a function makes initializers, such as ``he_normal``, and so has to be called first."""
    of_jax = getattr(jax.nn.initializers, getattr(value, "__name__", ""), None) is value
    return getattr(value, "makes_functions", False) or (of_jax and value.__name__ not in ("zeros", "ones"))


def _expects_dtype(name, value, sizes):
    """A dtype, or what ``jnp.dtype`` makes one from; layers compute with real floating-point numbers."""
    try:
        floating = value is None or jnp.issubdtype(jnp.dtype(value), jnp.floating)
    except TypeError:
        require(False, f"{name} to be a dtype", repr(value), "pass one such as jnp.float32", error=TypeError)
    if not floating and public_name()[:1].isupper():
        require(False, f"{name} to be a floating-point dtype", jnp.dtype(value).name, "pass one such as jnp.float32")
    return value


def _members(annotation) -> list:
    """The members of a union, including those of nested unions."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return [member for one in typing.get_args(annotation) for member in _members(one)]
    return [annotation]


def _acceptance(annotation) -> tuple[str, Callable] | None:
    """Description and predicate of an annotation without arrays; ``None`` for an annotation of another kind."""
    origin, limits = typing.get_origin(annotation), ()
    if origin is Annotated:
        annotation, *limits = typing.get_args(annotation)
        limits = [one for one in limits if isinstance(one, Range)]
    words = "".join(f" {limit}" for limit in limits)
    if origin is Literal:
        choices = typing.get_args(annotation)
        return " or ".join(map(repr, choices)), lambda x: any(
            x is one or (type(x) is type(one) and x == one) for one in choices
        )
    if annotation is bool:
        return "True or False", lambda x: isinstance(x, (bool, np.bool_))
    if annotation is int:
        return f"an integer{words}", lambda x: _is_integer(x) and all(x in limit for limit in limits)
    if annotation is float or annotation == float | int:
        return f"a number{words}", lambda x: _is_number(x) and all(x in limit for limit in limits)
    if annotation is str:
        return "a string", lambda x: isinstance(x, str)
    if origin in (typing.Union, types.UnionType):
        members = [_acceptance(one) for one in _members(annotation)]
        if None not in members:
            known = [one for one in members if one is not None]
            return " or ".join(words for words, _ in known), lambda x: any(accept(x) for _, accept in known)
    if origin in (tuple, collections.abc.Sequence) and typing.get_args(annotation):
        return _acceptance_of_entries(origin, typing.get_args(annotation))
    if annotation is collections.abc.Callable or origin is collections.abc.Callable:
        return "a function", callable
    return None


def _acceptance_of_entries(kind: type, entries: tuple) -> tuple[str, Callable] | None:
    """That of ``tuple[X, ...]``, and of ``tuple[X, X]`` and ``Sequence[X]`` where X has a range or choices."""
    size = len(entries) if kind is tuple and entries[-1] is not ... else None
    plain = typing.get_origin(entries[0]) is None or entries[0] == float | int  # functions check these themselves
    of_one = _acceptance(entries[0])
    if of_one is None or (size is not None and set(entries) != {entries[0]}) or (plain and entries[1:] != (...,)):
        return None
    words, accept = of_one
    several = f"entries, each {words}" if " or " in words else re.sub("^an? ([a-z]+)", r"\1s", words)
    types_taken = (tuple, list) if kind is tuple else collections.abc.Sequence

    def accepts(x):
        taken = isinstance(x, types_taken) and not isinstance(x, str)
        return taken and size in (None, len(x)) and all(map(accept, x))

    return f"a {kind.__name__.lower()} of {several if size is None else f'{size} {several}'}", accepts


def _is_integer(x) -> bool:
    if isinstance(x, (bool, np.bool_)) or isinstance(x, jax.Array):
        return False
    try:
        operator.index(x)
    except TypeError:
        return False
    return True


def _is_number(x) -> bool:
    number = isinstance(x, (numbers.Real, np.floating, np.integer)) and not isinstance(x, (bool, np.bool_))
    return number and bool(x == x)  # not NaN


def _repair_place(p: inspect.Parameter, names: list[str], value) -> str:
    """The repair for a value that is in the place of another, or several in the place of one; else empty."""
    if p.kind is p.VAR_POSITIONAL and not names and isinstance(value, (tuple, list)):
        return f"write {public_name()}({', '.join(map(repr, value))})"
    is_key = p.name == names[0] == "key" if names else False
    dtypes = [getattr(leaf, "dtype", jnp.uint32) for leaf in jax.tree.leaves(value)]
    misplaced = is_key and any(dtype != jnp.uint32 and jnp.issubdtype(dtype, jnp.number) for dtype in dtypes)
    misplaced = misplaced or (hasattr(value, "init") and p.name in names)  # a layer or an optimizer
    return f"the order is {', '.join(names)}" if misplaced and len(names) > 1 else ""


def _repair_scalar(name, value, words) -> str:
    if isinstance(value, str):
        here = other_libraries.VALUES.get(name, {}).get(value, repr(value.lower()))
        if here in " or ".join(words):
            return f"write {name}={here}"
    if isinstance(value, Tracer):
        return f'it has to be static while JAX traces; under jit, write static_argnames="{name}"'
    if isinstance(value, type) or (callable(value) and "a function" not in words):
        return f"pass a value of {name}"
    if words == ["a function"]:
        of_jax = isinstance(value, str) and hasattr(jax.nn, value)
        return f"pass the function itself, {name}=jax.nn.{value}" if of_jax else f"pass the function itself as {name}"
    return ""


# ---- arrays ----------------------------------------------------------------------------------

_KINDS = {
    "Float": ("a floating-point array", "convert it with {name}.astype(jnp.float32)"),
    "Complex": ("a complex array", "convert it with {name}.astype(jnp.complex64)"),
    "Inexact": ("a floating-point or complex array", "convert it with {name}.astype(jnp.float32)"),
    "Integer": ("an integer array", "convert it with {name}.astype(jnp.int32)"),
    "Int": ("an integer array", "convert it with {name}.astype(jnp.int32)"),
    "Real": ("an array of real numbers", "convert it with {name}.astype(jnp.float32)"),
    "Num": ("an array of numbers", "convert it with {name}.astype(jnp.float32)"),
    "Bool": ("a boolean array", "write {name} > 0, or {name}.astype(bool)"),
    "Key": ("a key", "pass jax.random.key(0)"),
    "Shaped": ("an array", "convert it with jnp.asarray({name})"),
}


def _check_array(name, x, specs, sizes, repair_place):
    """Check dtype and shape of an array; ``sizes`` holds the axis sizes of the earlier arguments."""
    words, repair = (text.format(name=name) for text in _KINDS.get(specs[0].dtype.__name__, _KINDS["Shaped"]))
    if isinstance(x, (np.ndarray, np.generic)):
        x = jnp.asarray(x)  # NumPy's float64 becomes float32, as everywhere in JAX
    if not (hasattr(x, "shape") and hasattr(x, "dtype")):
        repair = repair if words == "a key" else f"convert it with jnp.asarray({name})"
        if any(hasattr(one, "shape") for one in jax.tree.leaves(x)):
            repair = "pass one array, or join them first"
        repair = repair_place(x) or repair
        require(False, f"{name} to be {words}", x, repair, error=TypeError)
    if not any(_is_dtype(x.dtype, spec.dtype) for spec in specs):
        if jnp.issubdtype(x.dtype, jnp.complexfloating) and words != "a key":
            repair = f"pass its real part, {name}.real, or its absolute value, jnp.abs({name})"
        elif name in ("targets", "predictions", "labels") and words == "an integer array":
            repair += f", or with {name}.argmax(-1) where it has one number per class"
        elif words == "a key" and x.dtype == jnp.uint32:
            repair = "pass jax.random.key(0), or jax.random.wrap_key_data(key) for raw key data"
        repair = repair_place(x) or repair
        require(False, f"{name} to be {words}", x, repair, error=TypeError)
    spec = next(spec for spec in specs if _is_dtype(x.dtype, spec.dtype))
    _check_shape(name, x, _axes(spec.dim_str), sizes)
    return x


@functools.cache
def _is_dtype(dtype, kind) -> bool:
    """Whether a dtype is of a kind such as ``Float``; by kind, since each builder call makes new annotations."""
    if kind.__name__ == "Key":
        return jnp.issubdtype(dtype, jax.dtypes.prng_key)
    return not isinstance(kind.dtypes, (tuple, list)) or dtype.name in kind.dtypes


@functools.cache
def _axes(dims: str) -> tuple[str, ...]:
    return tuple(dims.split())


def _check_shape(name, x, axes, sizes) -> None:
    """Match the axes of an array: ``*name`` stands for several axes, ``_name`` and ``...`` are not compared."""
    shape = tuple(x.shape)
    several = [i for i, axis in enumerate(axes) if axis == "..." or axis.lstrip("#_")[:1] == "*"]
    least = len(axes) - len(several)
    if axes == () and jnp.issubdtype(x.dtype, jax.dtypes.prng_key) and shape:
        require(False, f"one {name}", f"keys of shape {shape}", "pass one, or use jax.vmap", error=TypeError)
    if len(shape) < least or (len(shape) > least and not several):
        way = "at least " if several else ""
        form = _form(axes)
        missing = least - len(shape)
        repair = f"add the missing ax{'i' if missing == 1 else 'e'}s, as in {name}[{', '.join(['None'] * missing)}]"
        if "heads" in axes or "kv_heads" in axes:
            repair = f"write {name}[..., None, :] for one head"
        if missing < 0:
            repair = "map over the leading axes with jax.vmap" if shape else "pass one value"
        require(False, f"{name} with {way}{least} ax{'i' if least == 1 else 'e'}s, {form}", x, repair)
    split = several[0] if several else len(axes)
    after = len(axes) - split - 1 if several else 0
    where = [(axis, i, size) for i, (axis, size) in enumerate(zip(axes[:split], shape, strict=False))]
    if several:
        where.append((axes[split], split, shape[split : len(shape) - after]))
        where += [(axis, i - after, shape[i - after]) for i, axis in enumerate(axes[split + 1 :])]
    for axis, place, size in where:
        if axis.lstrip("*#")[:1] == "_":
            continue
        if axis.isdigit():
            require(size == int(axis), f"{name} {_form(axes)} with {axis} entries on axis {place}", x)
        elif re.fullmatch(r"\d+\*\w+", axis):  # a multiple of an axis of an argument before this one
            factor, one = axis.split("*")
            if one in sizes and size != int(factor) * sizes[one][1]:
                other, known, met, *_ = sizes[one]
                expected = f"{name} {_form(axes)} with {one} = {known}, as {other} has it"
                require(False, expected, x, f"give axis {place} of {name} {int(factor) * known} entries")
        elif axis.lstrip("*").isidentifier():
            other, known, met, other_place, other_axes = sizes.setdefault(axis, (name, size, x, place, axes))
            if known != size:
                both = f"give axis {other_place} of {other} and axis {place} of {name} one size"
                if public_name()[:1].isupper() and other == "x":
                    both = f"pass {other} of that size, or params made by init for this {other}"
                require(
                    False,
                    f"{other} {_form(other_axes)} and {name} {_form(axes)} with the same size of {axis}",
                    f"{describe(met)} and {describe(x)}",
                    _repair_leading_axes(met, x) if axis[0] == "*" else both,
                )


def _repair_leading_axes(x, y) -> str:
    if len(x.shape) != len(y.shape):
        return "reshape one of them, for example with [..., None] or .squeeze(-1)"
    return "give both the same leading axes"


def _form(axes) -> str:
    """The axes in tuple notation: ``(*batch, in)``."""
    words = [axis.replace("_", "", 1) if axis.lstrip("*#")[:1] == "_" else axis for axis in axes]
    return f"({', '.join(words)}{',' * (len(words) == 1)})"


# ---- params and values -----------------------------------------------------------------------


def check_params(params, **shapes: tuple[int | None, ...]) -> None:
    """Raise a ``ValueError`` unless ``params`` is a dict with exactly these names and array shapes.

    ``None`` in a shape stands for any size. Without names, ``params`` is ``()``.

    >>> check_params({"bias": jnp.zeros(3)}, bias=(3,))
    >>> check_params({"scale": jnp.zeros(3)}, bias=(3,))
    Traceback (most recent call last):
    ...
    ValueError: jaxblocks expected params named bias, got scale; pass those that its own init made: apply(params, x).
    >>> check_params({"bias": jnp.zeros(3)}, bias=(4,))
    Traceback (most recent call last):
    ...
    ValueError: jaxblocks expected bias of shape (4,), got float32 (3,); pass params that init made for this x.
    """
    if not shapes:
        require(params == (), "no params, ()", params, "pass those that its own init made")
    elif not isinstance(params, Mapping) or set(params) != set(shapes):
        got = ", ".join(sorted(map(str, params))) or "none" if isinstance(params, Mapping) else params
        repair = "pass those that its own init made: apply(params, x)"
        require(False, f"params named {', '.join(sorted(shapes))}", got, repair)
    for name, shape in shapes.items():
        got = getattr(params[name], "shape", None)
        fits = (
            got is not None and len(got) == len(shape) and all(n in (m, None) for m, n in zip(got, shape, strict=True))
        )
        wanted = str(shape).replace("None", "any")
        require(fits, f"{name} of shape {wanted}", params[name], "pass params that init made for this x")
        if params[name].dtype.kind == "c":
            repair = "pass their real parts: jax.tree.map(jnp.real, params)"
            require(False, f"{name} of real numbers", params[name], repair, error=TypeError)


def checkable(x, check: bool) -> Any:
    """The values of ``x`` if they can be checked, else ``None``, so that no unused check is traced.

    Write conditions on them by operators, methods and ``known.__array_namespace__()``, which the arrays of NumPy and of
    JAX both have: concrete values are a `concrete` array, except with ``check=True``, since an eager
    ``checkify`` traces only what JAX computes. Under eager ``grad`` the values are available too, without their
    derivative.

    >>> jax.jit(lambda x: checkable(x, check=False))(jnp.ones(2)) is None
    True
    >>> checkable(jnp.ones(2), check=False)
    array([1., 1.], dtype=float32)
    """
    x = jax.lax.stop_gradient(x) if isinstance(x, Tracer) else x
    return x if check else None if isinstance(x, Tracer) else concrete(x)


def concrete(x) -> Any:
    """A concrete array as a NumPy array, of which a check needs no compiled program; a traced array as it is.

    On a CPU this copies nothing. From an accelerator at most 1 MB is copied; a larger array stays there, and so does
    one that other processes hold in part.

    >>> type(concrete(jnp.ones(2))).__name__
    'ndarray'
    """
    if not isinstance(x, jax.Array):
        return np.asarray(x)
    stays = isinstance(x, Tracer) or not x.is_fully_addressable
    return x if stays or (x.nbytes > 2**20 and next(iter(x.devices())).platform != "cpu") else np.asarray(x)


def check_range(name: str, x, least: int, most: int, repair: str, *, check: bool = False) -> None:
    """Raise a ``ValueError`` where an entry of ``x`` is not from ``least`` to ``most``, as `check_values` does.

    >>> check_range("ids", jnp.array([0, 7, 2]), 0, 6, "make the table larger")
    Traceback (most recent call last):
    ...
    ValueError: jaxblocks expected ids from 0 to 6, got ids from 0 to 7; make the table larger.
    """
    known = checkable(x, check)
    if known is not None and known.size:
        integer = jnp.issubdtype(known.dtype, jnp.integer)
        top = min(most, jnp.iinfo(known.dtype).max) if integer else most  # uint8 cannot hold 999
        check_values(
            (known >= least) & (known <= top),
            f"{name} from {least} to {most}, got {name} from {{low}} to {{high}}; {repair}",
            check=check,
            low=known.min(),
            high=known.max(),
        )


def check_values(ok, message: str, *, check: bool = False, **values) -> None:
    """Raise a ``ValueError`` where the boolean array ``ok`` is not all true: "<public name> expected <message>."

    Concrete values are checked at once. Traced values are checked only with
    ``check=True``, through ``checkify.check``; the caller then wraps its function
    in ``checkify.checkify``. Each of ``values`` is an array for a ``{name}`` in ``message``.

    >>> p = jnp.array([0.5, 0.25])
    >>> check_values(p.sum() == 1, "p to sum to 1, got {total}; divide by p.sum()", total=p.sum())
    Traceback (most recent call last):
    ...
    ValueError: jaxblocks expected p to sum to 1, got 0.75; divide by p.sum().
    """
    known = jnp.all(ok) if check and not isinstance(ok, bool) else checkable(ok, False)
    if isinstance(known, Tracer):
        from jax.experimental import checkify  # imported here, because it imports Pallas

        sentence = f"{public_name()} expected {message}."
        named: dict[str, Any] = {name: jnp.asarray(value) for name, value in values.items()}
        checkify.check(known, sentence, **named)
    elif known is not None and not known.all():
        raise ValueError(f"{public_name()} expected {message}.".format(**{n: f"{v}" for n, v in values.items()}))
