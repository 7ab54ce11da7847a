"""Invalid options and arrays: laws over the signatures of all public functions and builders.

A function checks every argument before it runs, so one argument at a time is passed, the invalid one, by its name.
"""

import inspect
import math
import re
from typing import Annotated, Literal, get_args, get_origin

import jax.numpy as jnp
import pytest
from jaxtyping import AbstractArray
from test_architecture import PUBLIC_MODULES

from jaxblocks.checks import Range, _members


def functions():
    """Each public function and builder of the library once, by its path."""
    found = {}
    for module in PUBLIC_MODULES:
        for name in module.__all__:
            value = getattr(module, name)
            of_jax = inspect.isfunction(value) and inspect.unwrap(value).__module__.startswith("jax.")
            if inspect.isfunction(value) and value.__module__.startswith("jaxblocks") and not of_jax:
                found.setdefault(value, f"{module.__name__}.{name}")
    return {path: function for function, path in found.items()}


def parameters():
    """(path, function, name, the members of its annotation, whether None is allowed) of each annotated parameter."""
    for path, function in functions().items():
        for p in inspect.signature(function, eval_str=True).parameters.values():
            if p.annotation is not p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY):
                yield path, function, p.name, _members(p.annotation)


def accepted(wrong, chosen):
    """Where the sentence about an invalid value is missing; ``wrong(members)`` are invalid values of a parameter."""
    found = []
    for path, function, name, members in parameters():
        for value in wrong(members):
            chosen.append(path)
            try:
                function(**{name: value})
                found.append(f"{path}({name}={value!r}) is accepted")
            except (TypeError, ValueError) as error:
                public = path.rpartition(".")[2]
                if not re.match(rf"{public} expected .*\b{name}\b", str(error)):
                    found.append(f"{path}({name}={value!r}): {type(error).__name__}: {error}"[:200])
    return "\n".join(found)


@pytest.mark.usefixtures("sentences")
def test_flags_and_choices_accept_only_their_values():
    """A string is not a flag, and a choice is one of those in the annotation."""

    def wrong(members):
        if bool in members and str not in members:
            yield "no"
        if any(get_origin(one) is Literal for one in members) and not {str, tuple} & {
            *members,
            *map(get_origin, members),
        }:
            yield "no such choice"

    chosen = []
    assert accepted(wrong, chosen) == ""
    assert len(set(chosen)) > 100


@pytest.mark.usefixtures("sentences")
def test_numbers_are_in_their_range():
    """A number outside of the range in the annotation, and NaN, are rejected: epsilon, rates, counts."""

    def wrong(members):
        limits = [limit for one in members if get_origin(one) is Annotated for limit in get_args(one)[1:]]
        if limits and all(isinstance(limit, Range) for limit in limits) and str not in members:
            yield math.nan
            yield min(limit.least for limit in limits) - 1.5

    chosen = []
    assert accepted(wrong, chosen) == ""
    assert len(set(chosen)) > 150


def test_epsilon_is_never_negative():
    """Each ``epsilon`` of a public function has a range."""
    for path, _, name, members in parameters():
        if name == "epsilon" and not path.endswith(".GIN"):  # whose epsilon is a weight
            assert any(Range in map(type, get_args(one)) for one in members), path


def arrays(members):
    return [one for one in members if isinstance(one, type) and issubclass(one, AbstractArray)]


@pytest.mark.usefixtures("sentences")
def test_complex_arrays_are_rejected_where_real_ones_are_expected():
    def wrong(members):
        if arrays(members) and all(one.dtype.__name__ == "Float" for one in arrays(members)):
            yield jnp.ones((), jnp.complex64)

    chosen = []
    assert accepted(wrong, chosen) == ""
    assert len(set(chosen)) > 80


@pytest.mark.usefixtures("sentences")
def test_arrays_have_the_annotated_number_of_axes():
    """A matrix is not a table of another rank, and an array is not one number."""

    def wrong(members):
        found = arrays(members)
        if len(found) == 1 and not any(axis in found[0].dim_str for axis in ("*", "...")):
            axes = len(found[0].dim_str.split())
            if found[0].dtype.__name__ in ("Float", "Num", "Shaped", "Inexact", "Real"):
                yield jnp.ones((2,) * (axes + 1))

    chosen = []
    assert accepted(wrong, chosen) == ""
    assert len(set(chosen)) > 40
