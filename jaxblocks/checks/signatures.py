"""Calls against signatures: which arguments a function takes, which it requires, and what its annotations say of them.

`jaxblocks.checks.checked` loads this module at the first call of a function.
"""

import collections.abc
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Unpack, get_args, get_origin

import jax
import jax.numpy as jnp
from jaxtyping import Key

from jaxblocks.checks import foreign_names
from jaxblocks.checks.annotations import expectation, is_integer
from jaxblocks.checks.array_annotations import check_complex
from jaxblocks.checks.errors import describe, public_name, require
from jaxblocks.checks.foreign_arrays import as_numpy, reject_foreign
from jaxblocks.checks.layer_inputs import MASK_OF_LENGTHS, check_side_inputs, reject_shapes
from jaxblocks.checks.names import nearest

__all__ = ["arguments_of", "check_of_calls", "reject_unknown", "takes"]


def check_of_calls(function: Callable, *, of_layer: bool) -> Callable[[tuple, Mapping], tuple[list, dict]]:
    """The check of the calls of a function: it takes and returns their arguments, by position and by name.

    ``of_layer``: whether the function is the ``init`` or ``apply`` of a layer.

    >>> check = check_of_calls(lambda x, *, train: x, of_layer=False)
    >>> check((1,), {"train": True})
    ([1], {'train': True})
    """
    expected = _expected_by(function)
    if not of_layer:
        check = functools.partial(_check_arguments, expected)
        return _of_method(check) if next(iter(_signature(function).parameters), "") == "self" else check
    if expected.rest:  # a combinator: the checks of its children require their side inputs
        expected.required_by_name.clear()

    def check(args, kwargs):
        _check_inputs(expected, args, kwargs)
        return _check_arguments(expected, args, kwargs)

    return check


def _of_method(check: Callable) -> Callable:
    """The check of the calls of a method, whose first argument is no argument of the caller."""

    def check_method(args, kwargs):
        rest, kwargs = check(args[1:], kwargs)
        return [*args[:1], *rest], kwargs

    return check_method


def takes(function: Callable, number: int, *names: str) -> bool:
    """Whether a function can be called with this number of arguments, and with those of these names.

    True where its signature is unknown.

    >>> takes(lambda x, y: x, 2), takes(lambda x, y: x, 1)
    (True, False)
    >>> takes(lambda x, *, mask: x, 1, "mask")
    True
    """
    try:
        inspect.signature(function).bind(*(None,) * number, **dict.fromkeys(names))
    except ValueError:
        return True
    except TypeError:
        return False
    return True


def arguments_of(function: Callable) -> str:
    """What a function with a signature takes, for the error of one that cannot be called as is needed.

    >>> arguments_of(lambda x, *, mask=None: x)
    'a function of (x, *, mask=None)'
    """
    signature, bare = inspect.signature(function), inspect.Parameter.empty
    parameters = [p.replace(annotation=bare) for p in signature.parameters.values()]
    return f"a function of {signature.replace(parameters=parameters, return_annotation=bare)}"


# ---- the signature ---------------------------------------------------------------------------


class _Expected(NamedTuple):
    """What the annotations of a function say, with a check or ``None`` for each parameter.

    Attributes:
        positional: the parameters that may be given by position, in order.
        rest: that of ``*args``, if there is one.
        named: the parameters that may be given by name.
        takes_any_name: whether there are ``**kwargs``.
        required: the names of those by position without a default.
        required_by_name: the names of keyword-only ones without a default.
        passed: what the check read of the calls that it let pass (`_read_of`).
    """

    positional: list[tuple[str, Callable | None]]
    rest: tuple[str, Callable | None] | None
    named: dict[str, Callable | None]
    takes_any_name: bool
    required: list[str]
    required_by_name: list[str]
    passed: set[tuple]

    def unknown(self, kwargs: Mapping) -> list[str]:
        """The names that are not parameters."""
        return [] if self.takes_any_name else [name for name in kwargs if name not in self.named]


_BY_NAME = {"key": Key[jax.Array, ""], "sequence_key": Key[jax.Array, ""], "train": bool}
"""The annotations that the contract implies for some names, where a function has none."""


def _expected_by(function) -> _Expected:
    found = _Expected([], None, {}, False, [], [], set())
    parameters = [p for p in _signature(function).parameters.values() if p.name != "self"]
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    order = ", ".join([*names, *(f"*{p.name}" for p in parameters if p.kind is p.VAR_POSITIONAL)])
    for p in parameters:
        annotation = _BY_NAME.get(p.name) if p.annotation is p.empty else p.annotation
        repair = functools.partial(_repair_place, p, names, order)
        of_options = get_origin(annotation) is Unpack
        expects = None if annotation is None or of_options else expectation(annotation, p.default is None, repair)
        if p.kind is p.VAR_POSITIONAL:
            found = found._replace(rest=(p.name, expects))
        elif of_options:  # the options of the function inside
            found.named.update(dict.fromkeys(get_args(annotation)[0].__annotations__))
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
        # Strings come from `from __future__ import annotations`; names that are imported for type checkers only do not
        # evaluate.
        return inspect.signature(function, eval_str=True)
    except (NameError, SyntaxError, TypeError, AttributeError):
        return inspect.signature(function)


def _repair_place(p: inspect.Parameter, names: list[str], order: str, value) -> str:
    """The repair for a value that is in the place of another, or several in the place of one; else empty."""
    if p.kind is p.VAR_POSITIONAL:
        # Serial([a, b]) instead of Serial(a, b), and LoRA(net, ["a", "b"]) instead of LoRA(net, "a", "b").
        several = isinstance(value, (tuple, list))
        of_strings = several and len(value) > 0 and all(isinstance(one, str) for one in value)
        if several and (of_strings or not names):
            return f"write {public_name()}({', '.join([*names, *map(repr, value)])})"
    is_key = p.name == names[0] == "key" if names else False
    dtypes = [getattr(leaf, "dtype", jnp.uint32) for leaf in jax.tree.leaves(value)]
    # Keys made by jax.random.PRNGKey are uint32 arrays, and not misplaced.
    misplaced = is_key and any(dtype != jnp.uint32 and jnp.issubdtype(dtype, jnp.number) for dtype in dtypes)
    # A layer or an optimizer; but a layer as the first argument stands for the function that is expected there.
    as_function = names[:1] == [p.name] and (get_origin(p.annotation) or p.annotation) is collections.abc.Callable
    misplaced = misplaced or (hasattr(value, "init") and p.name in names and not as_function)
    return f"the order is {order}" if misplaced and order != p.name else ""


# ---- the call --------------------------------------------------------------------------------


def _check_arguments(expected: _Expected, args: tuple, kwargs: Mapping) -> tuple[list, dict]:
    """The checked arguments of a call: NumPy arrays as JAX arrays, integers of NumPy as Python's, others unchanged."""
    read = _read_of(expected, args, kwargs)
    if read in expected.passed:
        return list(args), dict(kwargs)
    positional, rest, named, _, required, by_name, passed = expected
    if unknown := expected.unknown(kwargs):
        value = kwargs[unknown[0]]
        hint = _close_over([one for one, _ in positional], named, [value])
        reject_unknown(named, unknown[0], value, hint)
    sizes: dict[str, tuple] = {}
    checked_args = []
    for i, value in enumerate(args):
        name, expects = positional[i] if i < len(positional) else rest or ("", None)
        try:
            checked_args.append(value if expects is None else expects(name, value, sizes))
        except TypeError as error:
            names = [one for one, _ in positional]
            if _is_swapped(positional, args, i):
                repair = f"the order is {', '.join(names)}"
            elif 0 < i <= len(names) and names[i - 1] in ("arrays", "data") and _is_data(value):
                repair = _ONE_TUPLE
            else:
                raise
            sentence = str(error).rpartition("; ")[0] or str(error)[:-1]
            raise TypeError(f"{sentence}; {repair}.") from None
    checked_kwargs = {}
    for name, value in kwargs.items():
        expects = named.get(name)
        checked_kwargs[name] = value if expects is None else expects(name, value, sizes)
        if name not in named:  # one of ``**kwargs``
            reject_foreign(name, value)
    check_complex(sizes)
    # After the values: a misplaced argument leaves another one missing, and the error about its value says more.
    missing = [name for name in (*required[len(args) :], *by_name) if name not in kwargs]
    if missing or (len(args) > len(positional) and not rest):
        _reject_number(positional, named, args, missing, any_number=rest is not None)
    if read is not None:
        if len(passed) == 1000:
            passed.clear()
        passed.add(read)
    return checked_args, checked_kwargs


def _read_of(expected: _Expected, args: tuple, kwargs: Mapping) -> tuple | None:
    """All that `_check_arguments` reads of a call, as a key; ``None`` where it reads more than shapes and options."""
    checks = [expects for _, expects in expected.positional[: len(args)]]
    checks += [expected.rest[1] if expected.rest else None] * (len(args) - len(checks))
    if not kwargs.keys() <= expected.named.keys():
        return None
    read: list = [len(args), *kwargs]
    for expects, value in zip((*checks, *map(expected.named.get, kwargs)), (*args, *kwargs.values()), strict=True):
        if expects is None:
            continue
        if type(value) in _PLAIN:
            read.append((type(value), value))
        elif (
            isinstance(value, jax.Array)
            and not getattr(expects, "reads_values", True)
            and all(type(size) is int for size in value.shape)  # not the symbolic ones of jax.export
        ):
            read.append((value.shape, value.dtype))
        else:
            return None
    return tuple(read)


_PLAIN = (bool, int, float, str, type(None))


def _is_swapped(positional, args: tuple, i: int) -> bool:
    """Whether the argument at ``i`` and one beside it satisfy each other's annotations."""

    def fits(place, value):
        name, expects = positional[place]
        if expects is None:  # a number in a place that takes anything may belong to the place of an object
            return isinstance(args[place], _PLAIN) and not isinstance(value, _PLAIN)
        try:
            return expects(name, value, {}) is not None
        except (TypeError, ValueError):
            return False

    others = (one for one in (i - 1, i + 1) if 0 <= one < min(len(args), len(positional)))
    return any(fits(i, args[one]) and fits(one, args[i]) for one in others if i < len(positional))


def _check_inputs(expected: _Expected, args: tuple, kwargs: Mapping) -> None:
    """The number of inputs of a layer, and the names of its side inputs."""
    inputs = [name for name, _ in expected.positional]
    if inputs[:1] == ["key"]:
        reject_shapes(args[1:])
    if inputs[:1] == ["params"] and args and type(args[0]) is dict:  # of the layer itself, not of those inside
        reject_foreign("params", args[0])
    for i, value in enumerate(args):
        if as_numpy("", value) and (i >= len(inputs) or expected.positional[i][1] is None):  # else its check says more
            reject_foreign(inputs[i] if i < len(inputs) else "x", value)
    sides = [name for name in expected.named if name not in inputs]
    if unknown := expected.unknown(kwargs):
        repair = "leave it out, or declare it as a keyword-only parameter of the layer that should read it"
        repair = foreign_names.MISSING_OPTIONS.get(unknown[0], repair).format(name=public_name())
        # "pass key=... to apply", of a layer that reads no key.
        meant = unknown[0] if unknown[0] in ("key", "train") else repair.removeprefix("pass ").partition("=")[0]
        if inputs[0] != "key" and meant in ("key", "mask", "train") and meant not in sides:
            repair = f"leave it out where {meant} is not in jaxblocks.side_inputs(net)"
        if unknown[0] == "lengths" and "mask" in sides:
            repair = MASK_OF_LENGTHS
        repair = next((f"did you mean {name}?" for name in sides if _is_synonym(unknown[0], name)), repair)
        if expected.rest and len(args) < len(inputs) + 1:
            function = "init" if inputs[0] == "key" else "apply"
            repair = f"pass the inputs by position, as in {function}({', '.join(inputs)}, x)"
        known = f"side inputs among those that it reads ({', '.join(sorted(sides)) or 'none'})"
        require(False, known, ", ".join(map(repr, unknown)), repair, error=TypeError)
    twice = [name for name in inputs[: len(args)] if name in kwargs]
    require(
        not twice, "each input once", f"{', '.join(twice)} by position and by name", "leave out one", error=TypeError
    )
    given = len(args) + sum(name in kwargs for name in inputs)
    if len(args) > len(inputs) and not expected.rest:
        repair = _repair_inputs(inputs, args)
        require(False, f"the inputs ({', '.join(inputs)})", f"{given} inputs", repair, error=TypeError)
    missing = [name for name in expected.required[len(args) :] if name not in kwargs]
    if missing:
        repair = f"write apply({', '.join(inputs)})"
        if inputs[0] == "key":
            repair = f"pass an array or a jax.ShapeDtypeStruct, as in init({', '.join(inputs)})"
        require(False, f"the input {missing[0]}", "none", repair, error=TypeError)
    check_side_inputs(expected.required_by_name, kwargs)


def _repair_inputs(inputs: list[str], args: tuple) -> str:
    """The repair for more inputs than a layer has."""
    given = args[sum(name in ("key", "params", "state") for name in inputs) :]
    if "graph" in inputs:
        return "pass one graph: jaxblocks.Graph(nodes, senders, receivers)"
    if any(jnp.issubdtype(getattr(one, "dtype", jnp.float32), jax.dtypes.prng_key) for one in given):
        return "pass the key by name, key=key, to a layer that reads it"
    if flag := next((one for one in given if isinstance(one, bool)), None):
        return f"pass a flag by name, such as train={flag}, to a layer that reads it"
    # summary(net, params, x) and net.apply(params, {}, x).
    if unlike := [one for one in given if type(one) in (dict, list, tuple)]:
        return f"leave out params or a state that it does not take, here {describe(unlike[0])}"
    return "join several arrays before this layer, for example by lambda *xs: jnp.concatenate(xs, -1)"


def _close_over(names: list[str], named: Mapping, data: Iterable) -> str:
    """The repair for data that a function of ``f`` and ``x`` does not pass to ``f``; empty for other arguments."""
    if names[:2] != ["f", "x"] or (len(named) > len(names) and not all(map(_is_data, data))):  # may be an option
        return ""
    return f"close over other arguments, as in {public_name()}(lambda x: f(x, ...), {', '.join(names[1:])})"


_ONE_TUPLE = "put several arrays in one tuple: (x, y)"


def _is_data(x) -> bool:
    """Whether a value is an array with axes, or has one inside."""
    return any(getattr(leaf, "shape", ()) for leaf in jax.tree.leaves(x))


def _is_synonym(name: str, option: str) -> bool:
    return name in foreign_names.OPTIONS.get(option, "").split()


def reject_unknown(named: Iterable[str], unknown: str, value, otherwise: str = "") -> None:
    """Reject an option that a function does not have, and advise the one that is meant, or else ``otherwise``."""
    # An option that has another name elsewhere, before one that is spelled alike.
    near = next((name for name in named if _is_synonym(unknown, name)), "")
    # Without a known synonym or a hint, the nearest spelling.
    near = near or ("" if unknown in foreign_names.MISSING_OPTIONS else nearest(unknown, named))
    hint = foreign_names.MISSING_OPTIONS.get(unknown, otherwise or "leave it out")
    hint = hint.format(name=public_name(), value=describe(value))
    repair = f"did you mean {near}?" if near else hint
    if named:  # the repair before what may be a long list
        repair = f"{repair}{'' if near else '.'} The options are {', '.join(named)}"
    require(False, "one of its options" if named else "no options", repr(unknown), repair, error=TypeError)


def _reject_number(positional, named: Mapping, args: tuple, missing: list, *, any_number: bool) -> None:
    """Reject a call with too many arguments by position, or without the required ``missing``."""
    names, name = ", ".join(one for one, _ in positional), public_name()
    options = [one for one in named if one not in [place for place, _ in positional]]
    if len(args) > len(positional) and not any_number:
        by_name = missing or options[: len(args) - len(positional)]
        by_name = ", ".join(f"{one}=..." for one in by_name)
        repair = f"pass options by name: {name}({', '.join(filter(None, (names, by_name)))})"
        if any(hasattr(one, "init") for one in args[len(positional) :]) and not missing:
            repair = f"pass layers by name, as in {name}({names}, a=Dense(3))"
        # As in PyTorch, the size of the input first; but those of a model are options by name.
        has_size = {"features", "heads"} if positional else {"classes", "features", "vocab_size"}
        takes_size = positional[0][0] in has_size if positional else not has_size & named.keys()
        sized = takes_size and not missing and len(args) == len(positional) + 1
        if sized and name[:1].isupper() and all(is_integer(one) for one in args):
            last = ", ".join(map(str, args[1:]))
            repair = f"init reads the size of the input from x, so leave it out: {name}({last})"
        if not missing:  # such as hvp(f, x, v, *data)
            repair = _close_over([one for one, _ in positional], named, args[len(positional) :]) or repair
        # Such as fit(net, loss, optimizer, x, y).
        if names.endswith(("arrays", "data")) and _is_data(args[len(positional) :]):
            repair = _ONE_TUPLE
        if names == "f":
            repair = f"{name}(f) is a function of x: write {name}(f)(x)"
        expected = f"at most {len(positional)} argument{'s' * (len(positional) != 1)} by position ({names})"
        expected = expected if positional else "no arguments by position"
        require(False, expected, f"{len(args)}{' of them' * bool(positional)}", repair, error=TypeError)
    repair = f"write {name}(..., {', '.join(f'{one}=...' for one in missing)})"
    if missing[0] in foreign_names.ARGUMENTS:
        repair = foreign_names.ARGUMENTS[missing[0]].format(name=name)
    elif args and missing[0] in [one for one, _ in positional]:
        repair = f"write {name}({names}){', where state is () for a net without state' * (', state,' in names)}"
    if not args and positional and missing[0] == positional[0][0] == "x":
        repair = f"pass an array; as a layer it is {name}, without a call"
    require(False, f"the argument {missing[0]}", "none", repair, error=TypeError)
