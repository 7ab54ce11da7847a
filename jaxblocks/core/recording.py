"""Calls that are recorded: a layer or an initializer prints as the call that made it, and pickles as that call.

`jaxblocks.core.builder` records the calls of functions that build layers, `recorded` those of functions that make
functions. Both keep a `Call`, of which `jaxblocks.core.expressions` has the text and what is pickled.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple, TypeVar

__all__ = ["Call", "RecordedFunction", "recorded"]

F = TypeVar("F", bound=Callable)


class Call(NamedTuple):
    """A call of a function, which prints as its expression; options that have their default values are left out.

    >>> str(Call(Dense, (3,), {"use_bias": False, "dtype": None}))
    'Dense(3, use_bias=False)'
    """

    function: Callable
    args: tuple
    kwargs: dict

    def __str__(self) -> str:
        from jaxblocks.core.expressions import call_expression  # few calls are printed

        return call_expression(*self)

    def reduced(self) -> tuple:
        """The value of ``__reduce__`` for the result of the call."""
        from jaxblocks.core.expressions import reduced

        return reduced(*self)


def recorded(function: F) -> F:
    """Let the functions that a function makes, such as initializers, print and pickle as the call that made them.

    >>> recorded(lambda scale: lambda x: scale * x)(2.0)
    <lambda>(2.0)
    """

    @functools.wraps(function)
    def make(*args, **kwargs):
        return RecordedFunction(Call(make, args, kwargs), function(*args, **kwargs))

    make.makes_functions = True  # type: ignore[attr-defined]
    return make  # type: ignore[return-value]


class RecordedFunction:
    """A function with the call that made it; made by `recorded`.

    >>> jaxblocks.initializers.constant(2.0)
    constant(2.0)
    """

    def __init__(self, call: Call, function: Callable):
        """Store a call and the function that it returned."""
        self.call, self._function = call, function

    def __call__(self, *args, **kwargs):
        """Call the function."""
        return self._function(*args, **kwargs)

    def __repr__(self) -> str:
        return str(self.call)

    def __reduce__(self):
        return self.call.reduced()
