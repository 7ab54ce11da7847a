"""The contract of layers. ::

    Layer(init, apply)                                          a pair of pure functions
        init(key, *inputs, **side)            -> params
        apply(params, *inputs, **side)        -> outputs
    StatefulLayer(init, apply)                                  a pair with explicit state
        init(key, *inputs, **side)            -> (params, state)
        apply(params, state, *inputs, **side) -> (outputs, state)

``init`` reads shapes and dtypes only (arrays or ``jax.ShapeDtypeStruct``). Params are pytrees of named arrays, ``()``
for a layer without params. Side inputs (``key``, ``train``, ``mask``, ...) are the keyword-only parameters of
``apply``: a layer declares those that it reads, and a combinator passes exactly those to each child.
`jaxblocks.core.lifting` makes layers of functions; `jaxblocks.core.children` has what combinators are built with.
"""

import functools
from collections.abc import Callable, Mapping
from types import GenericAlias, MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import jax

from jaxblocks.checks.expectations import checked
from jaxblocks.core.recording import Call, RecordedFunction

__all__ = [
    "ArrayOrShape",
    "Layer",
    "LayerLike",
    "Out",
    "Params",
    "State",
    "StatefulLayer",
    "StatelessLike",
    "builder",
    "layer_name",
]

F = TypeVar("F", bound=Callable)


def _reject(what: str, *of) -> Any:
    from jaxblocks.core import misuse  # which imports this module

    return getattr(misuse, f"reject_{what}")(*of)


def builder(function: F) -> F:
    """Record the call that builds a layer, and check its arguments.

    The layer prints and pickles as the call that built it. The builder, ``init`` and ``apply`` check their arguments
    against their annotations (see `jaxblocks.checks.checked`): ``key`` is a key, ``train`` a bool.

    >>> @builder
    ... def Scale(factor: float, *, offset: float = 0.0) -> Layer:
    ...     return Layer(lambda key, x: (), lambda params, x: factor * x + offset)
    >>> Serial(Scale(2.0), Scale(3.0, offset=1.0), relu)
    Serial(Scale(2.0), Scale(3.0, offset=1.0), relu)
    """
    if isinstance(function, type) or not (callable(function) and hasattr(function, "__qualname__")):
        _reject("builder", function)
    check_call = checked(function)

    @functools.wraps(check_call)
    def build(*args, **kwargs):
        layer = check_call(*args, **kwargs)
        if not isinstance(layer, (Layer, StatefulLayer)):
            _reject("result", function, layer)
        built = type(layer)(*(checked(one, layer=function.__name__) for one in layer))
        built.call, built.inner = Call(build, args, kwargs), getattr(layer, "inner", {})
        return built

    return build  # type: ignore[return-value]


if TYPE_CHECKING:  # what an editor shows
    from jaxblocks.core.types import LayerPair, Out, Params, State, StatefulPair
else:
    Out, Params, State = TypeVar("Out"), Any, Any

    class LayerPair(NamedTuple):  # for type checkers it cannot be called, and has no other attributes
        init: Callable[..., Any]
        apply: Callable[..., Any]

        __class_getitem__ = classmethod(GenericAlias)
        __call__ = lambda self, *_, **__: _reject("call", self)
        __getattr__ = lambda self, name: _reject("attribute", self, name)

    StatefulPair = LayerPair


class _Recorded:
    """The methods that both kinds of layers share: printing, pickling, copying."""

    call: Call | None = None
    inner: Mapping[int | str, Any] = MappingProxyType({})
    """The layers inside a combinator, by position or by name."""

    def __repr__(self) -> str:
        return str(self.call) if self.call else f"<{layer_name(self)}: {type(self).__name__}>"  # type: ignore[arg-type]

    def __reduce__(self):
        return self.call.reduced() if self.call else (type(self), tuple(self))  # type: ignore[arg-type]

    def __getitem__(self, place):
        """The layer at a place in a combinator: its position, its name, or its path, such as ``"block/0"``."""
        from jaxblocks.core.selection import layer_at  # few layers are looked up

        return layer_at(self, place)

    def __len__(self) -> int:
        """The number of layers in a combinator."""
        return len(self.inner)

    __bool__ = lambda self: True

    @classmethod
    def _make(cls, iterable):  # that of tuples reads the length
        return cls(*iterable)

    __add__ = __radd__ = __mul__ = __rmul__ = lambda self, other: _reject("operator", self)

    def __deepcopy__(self, memo):  # functions are not copied: a copied jitted function would lose its name
        return self


class Layer(_Recorded, LayerPair[Out]):
    """A pair of pure functions: ``init(key, *inputs) -> params``, ``apply(params, *inputs) -> outputs``.

    >>> def Scale():
    ...     def init(key, x):
    ...         return {"scale": jnp.full(x.shape[-1], 2.0, jnp.float32)}
    ...     def apply(params, x):
    ...         return x * jnp.broadcast_to(params["scale"], x.shape).astype(x.dtype)
    ...     return Layer(init, apply)
    >>> init, apply = Scale()
    >>> params = init(jax.random.key(0), jnp.zeros((4, 3)))
    >>> apply(params, jnp.arange(3.0))
    Array([0., 2., 4.], dtype=float32)
    """


class StatefulLayer(_Recorded, StatefulPair[Out]):
    """A pair of pure functions with explicit state: ``apply`` returns its outputs and the next state.

    >>> def CountCalls():
    ...     def init(key, x):
    ...         return (), {"calls": jnp.zeros((), jnp.int32)}
    ...     def apply(params, state, x):
    ...         return x, {"calls": state["calls"] + 1}
    ...     return StatefulLayer(init, apply)
    >>> layer = CountCalls()
    >>> params, state = layer.init(jax.random.key(0), jnp.zeros(3))
    >>> _, state = layer.apply(params, state, jnp.zeros(3))
    >>> state
    {'calls': Array(1, dtype=int32)}
    """


ArrayOrShape: TypeAlias = jax.Array | jax.ShapeDtypeStruct
"""The inputs of ``init``: an array, or its shape and dtype."""

LayerLike: TypeAlias = Layer[Any] | StatefulLayer[Any] | Callable[..., Any]
"""The layers that combinators accept: a pair, or a function of arrays."""

StatelessLike: TypeAlias = Layer[Any] | Callable[..., Any]
"""Those without state. Combinators of these alone have no state either."""


def layer_name(layer: LayerLike) -> str:
    """Name of a layer: that of the function that built it, which ``__qualname__`` of its ``apply`` has.

    >>> layer_name(Dense(3)), layer_name(jnp.sin)
    ('Dense', 'sin')
    """
    if isinstance(layer, (Layer, StatefulLayer)):
        parts = getattr(layer.apply, "__qualname__", "layer").split(".")
        return parts[-3] if len(parts) >= 3 and parts[-2] == "<locals>" else parts[-1]
    while isinstance(layer, functools.partial):
        layer = layer.func
    made = layer.call.function if isinstance(layer, RecordedFunction) else layer
    return getattr(made, "__name__", type(made).__name__).strip("<>")
