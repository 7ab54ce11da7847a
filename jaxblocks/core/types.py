"""The types that an editor shows for layers, their params and their outputs; read by type checkers alone.

``Layer`` is ``Layer[Array]``, a layer that returns one array; `jaxblocks.core.pairs` has what runs. A default of a
type variable needs Python 3.13, and ``typing_extensions`` is installed for type checkers only.
"""

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, Self

import jax
from typing_extensions import TypeVar

__all__ = ["LayerPair", "Out", "Params", "State", "StatefulPair"]

Made = TypeVar("Made", covariant=True)
Returned = TypeVar("Returned", covariant=True)
Out = TypeVar("Out", default=jax.Array, covariant=True)


class Params(Any):
    """Params: a pytree of named arrays, such as ``{"kernel": ..., "bias": ...}``; fits every annotation."""

    def __getitem__(self, label: Any, /) -> "Params":
        """The params of a layer inside, or an array."""
        ...

    def __get__(self, *_: Any) -> Self:  # else ``ts.params`` would be the unknown result of a descriptor
        """The params themselves."""
        ...


class State(Params):
    """The state of a net: a pytree of named arrays; fits every annotation."""


class _Pair(NamedTuple, Generic[Made, Returned]):
    init: Callable[..., Made]
    apply: Callable[..., Returned]


class LayerPair(_Pair[Params, Out]):
    """The two functions of a `Layer`."""

    def __new__(cls, init: Callable[..., Any], apply: Callable[..., Out]) -> Self:
        """A layer of its two functions; ``init`` returns any pytree."""
        ...


class StatefulPair(_Pair[tuple[Params, State], tuple[Out, State]]):
    """The two functions of a `StatefulLayer`."""

    def __new__(cls, init: Callable[..., Any], apply: Callable[..., tuple[Out, Any]]) -> Self:
        """A layer with state of its two functions; params and state are any pytrees."""
        ...
