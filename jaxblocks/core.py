"""The contract of layers. ::

    Layer(init, apply)                                          a pair of pure functions
        init(key, *inputs, **side)            -> params
        apply(params, *inputs, **side)        -> outputs
    StatefulLayer(init, apply)                                  a pair with explicit state
        init(key, *inputs, **side)            -> (params, state)
        apply(params, state, *inputs, **side) -> (outputs, state)

``init`` reads shapes and dtypes only (arrays or ``jax.ShapeDtypeStruct``). Params are
pytrees of named arrays, ``()`` for a layer without params. Side inputs (``key``, ``train``,
``mask``, ...) are the keyword-only parameters of ``apply``: a layer declares those that
it reads, and a combinator passes exactly those to each child.

`jaxblocks.children` has the tools that combinators are built with.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypeVar

import jax

from jaxblocks.checks import PositiveInt, checked, require
from jaxblocks.recording import Call, reduce_call

__all__ = [
    "ArrayOrShape",
    "Checkpoint",
    "Layer",
    "LayerLike",
    "StatefulLayer",
    "as_layer",
    "builder",
    "declared_by",
    "layer_name",
    "set_signature",
    "side_inputs",
    "stateful",
]

F = TypeVar("F", bound=Callable)


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

    @functools.wraps(function)
    def build(*args, **kwargs):
        layer = check_call(*args, **kwargs)
        init, apply = (checked(one, layer=function.__name__) for one in layer)
        return _with_call(type(layer)(init, apply), Call(build, args, kwargs), getattr(layer, "inner", None))

    check_call = checked(function)
    return build  # type: ignore[return-value]


def _with_call(layer, call: Call, inner: Mapping | None = None):
    """A new pair of the same functions that stores the call and, of a combinator, the layers inside."""
    layer = type(layer)(*layer)
    layer.call, layer.inner = call, inner or {}
    return layer


class _Pair(NamedTuple):
    init: Callable[..., Any]
    apply: Callable[..., Any]


class _Recorded(_Pair):
    """The methods that both kinds of layers share: printing, pickling, copying."""

    call: Call | None = None
    inner: Mapping[int | str, Any] = MappingProxyType({})
    """The layers inside a combinator, by position or by name."""

    def __repr__(self) -> str:
        return str(self.call) if self.call else f"<{layer_name(self)}: {type(self).__name__}>"  # type: ignore[arg-type]

    def __reduce__(self):
        return reduce_call(self.call) if self.call else (type(self), tuple(self))

    def __getitem__(self, place):
        """The layer at a place in a combinator: its position, its name, or its path, such as ``"block/0"``."""
        label, _, rest = place.partition("/") if isinstance(place, str) else (place, "", "")
        labels = {**dict(enumerate(self.inner)), **{str(own): own for own in self.inner}}
        position = label + len(self.inner) if isinstance(label, int) and label < 0 else label
        if isinstance(position, slice) or position not in labels:
            known = ", ".join(map(str, self.inner)) or "none; unpack the pair as init, apply = layer"
            expected = f"{layer_name(self)} expected the place of a layer inside"  # type: ignore[arg-type]
            raise LookupError(f"{expected}, got {place!r}; there is {known}.")
        found = self.inner[labels[position]]
        return found[rest] if rest else found

    def __len__(self) -> int:
        """The number of layers in a combinator."""
        return len(self.inner)

    def __bool__(self) -> bool:
        return True

    @classmethod
    def _make(cls, iterable):  # that of tuples reads the length
        return cls(*iterable)

    def __add__(self, other):
        name, repair = layer_name(self), "write Serial(net, other), or Residual(net) for x + f(x)"  # type: ignore[arg-type]
        raise TypeError(f"{name} expected a combinator of layers, got an operator such as +; {repair}.")

    __radd__ = __mul__ = __rmul__ = __add__

    def __deepcopy__(self, memo):  # functions are not copied: a copied jitted function would lose its name
        return self

    if not TYPE_CHECKING:  # for type checkers a layer cannot be called

        def __call__(self, *args, **kwargs):
            call = "(params, state, x)" if isinstance(self, StatefulLayer) else "(params, x)"
            raise TypeError(
                f"{layer_name(self)} expected a call of init or apply, got a call of the layer itself; write "
                f"params = net.init(key, x) and net.apply{call}."
            )


class Layer(_Recorded):
    """A pair of pure functions: ``init(key, *inputs) -> params``, ``apply(params, *inputs) -> outputs``.

    >>> import jax, jax.numpy as jnp
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


class StatefulLayer(_Recorded):
    """A pair of pure functions with explicit state: ``apply`` returns its outputs and the next state.

    >>> import jax, jax.numpy as jnp
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

LayerLike: TypeAlias = Layer | StatefulLayer | Callable[..., Any]
"""The layers that combinators accept: a pair, or a function of arrays."""

Checkpoint: TypeAlias = Literal["dots", "body", "sqrt"] | PositiveInt | Callable[..., Any]
"""What the gradient of a scan stores: a name, a number of snapshots, or a policy of ``jax.checkpoint_policies``."""


def side_inputs(layer: LayerLike) -> tuple[str, ...]:
    """Names of the side inputs that a pair, or a function of arrays, reads: its keyword-only parameters.

    >>> side_inputs(lambda x, *, time: x + time)
    ('time',)
    """
    return tuple(declared_by(layer.apply if isinstance(layer, (Layer, StatefulLayer)) else layer))


def as_layer(layer: LayerLike) -> Layer | StatefulLayer:
    """Convert to a layer: a pair is returned unchanged, a function of arrays becomes a layer without params.

    The function's keyword-only parameters become the layer's side inputs.

    >>> import jax, jax.numpy as jnp
    >>> layer = as_layer(jnp.sin)
    >>> layer.init(jax.random.key(0), jnp.zeros(2)), layer.apply((), jnp.zeros(2))
    ((), Array([0., 0.], dtype=float32))
    """
    if isinstance(layer, (Layer, StatefulLayer)):
        return layer
    expected = "a layer or a function of arrays"
    if not callable(layer) and any(hasattr(leaf, "shape") for leaf in jax.tree.leaves(layer)):
        got = layer if hasattr(layer, "shape") else "params"
        require(False, expected, got, "pass the layer itself; net.apply(params, x) takes its params", error=TypeError)
    two = isinstance(layer, tuple) and len(layer) == 2
    require(not two, expected, "a bare tuple", "name its two functions: Layer(init, apply)", error=TypeError)
    hints = {list: "write Serial(*layers)", dict: "write Serial(**layers)", str: "pass the function of that name"}
    hint = hints.get(type(layer), "")
    got = repr(layer) if isinstance(layer, str) else layer
    require(callable(layer), expected, got, hint, error=TypeError)
    name = getattr(layer, "__name__", "")  # builders have CamelCase names
    require(not name[:1].isupper(), expected, f"{name} itself", f"call it: {name}(...)", error=TypeError)
    function: Callable = layer  # type: ignore[assignment]

    def init(key, *inputs):
        return ()

    def apply(params, *inputs, **side):
        return function(*inputs, **side)

    set_signature(apply, ("params",), declared_by(function))
    apply.of_arrays = function  # its annotations are those of the layer
    apply.__qualname__ = f"{_name_of(function)}.<locals>.apply"
    return _with_call(Layer(init, apply), Call(as_layer, (function,), {}))


def stateful(layer: LayerLike) -> StatefulLayer:
    """Lift any layer (or function) to a ``StatefulLayer``; the state of a stateless one is ``()``.

    >>> import jax, jax.numpy as jnp
    >>> lifted = stateful(jnp.sin)
    >>> lifted.init(jax.random.key(0), jnp.zeros(()))
    ((), ())
    >>> lifted.apply((), (), jnp.zeros(()))
    (Array(0., dtype=float32), ())
    """
    layer = as_layer(layer)
    if isinstance(layer, StatefulLayer):
        return layer

    def init(key, *inputs, **side):
        return layer.init(key, *inputs, **side), ()

    def apply(params, state, *inputs, **side):
        return layer.apply(params, *inputs, **side), state

    set_signature(init, ("key",), declared_by(layer.init))
    set_signature(apply, ("params", "state"), declared_by(layer.apply))
    return _with_call(StatefulLayer(init, apply), Call(stateful, (layer,), {}))


def declared_by(function) -> dict[str, inspect.Parameter]:
    """The keyword-only parameters of a function, without those that a ``partial`` sets."""
    if isinstance(function, functools.partial):  # its signature turns parameters after a set one into keyword-only ones
        return {name: p for name, p in declared_by(function.func).items() if name not in function.keywords}
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature
        return {}
    return {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY}


def layer_name(layer: LayerLike) -> str:
    """Name of a layer: the name of the function that built it.

    >>> layer_name(Dense(3)), layer_name(jnp.sin)
    ('Dense', 'sin')
    """
    call = getattr(layer, "call", None)
    if isinstance(call, Call):  # and no method of that name
        return layer_name(call.args[0]) if call.function in (as_layer, stateful) else call.function.__name__
    if not isinstance(layer, (Layer, StatefulLayer)):
        return _name_of(layer)
    parts = getattr(layer.apply, "__qualname__", "layer").split(".")
    return parts[-3] if len(parts) >= 3 and parts[-2] == "<locals>" else parts[-1]


def set_signature(function: Any, positional: Iterable[str], declared: Mapping[str, inspect.Parameter]) -> None:
    """Set the signature that ``inspect.signature`` reports: names, ``*inputs``, and the declared side inputs.

    >>> def apply(params, *inputs, **side): ...
    >>> set_signature(apply, ("params",), declared_by(lambda x, *, train=False: x))
    >>> print(inspect.signature(apply))
    (params, *inputs, train=False)
    """
    kinds = inspect.Parameter
    function.__signature__ = inspect.Signature(
        [kinds(name, kinds.POSITIONAL_OR_KEYWORD) for name in positional]
        + [kinds("inputs", kinds.VAR_POSITIONAL)]
        + sorted(declared.values(), key=lambda p: p.name)
    )


def _name_of(function) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__name__", type(function).__name__).strip("<>")
