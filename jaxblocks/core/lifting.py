"""Functions of arrays as layers, layers as stateful ones, and the side inputs that each of them declares."""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, overload

import jax

from jaxblocks.checks.errors import describe, public_name, require
from jaxblocks.checks.layer_inputs import check_declarations
from jaxblocks.core.pairs import Layer, LayerLike, Out, StatefulLayer, layer_name
from jaxblocks.core.recording import Call

__all__ = [
    "as_layer",
    "declared_by",
    "required_by",
    "set_signature",
    "set_spatial_axes",
    "side_inputs",
    "spatial_axes_of",
    "stateful",
]


@overload
def as_layer(layer: Layer[Out] | Callable[..., Out]) -> Layer[Out]: ...
@overload
def as_layer(layer: StatefulLayer[Out]) -> StatefulLayer[Out]: ...
def as_layer(layer: LayerLike) -> Layer[Any] | StatefulLayer[Any]:
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
    # Params in the place of the layer, as in Serial(params): their leaves are arrays.
    if not callable(layer) and any(hasattr(leaf, "shape") for leaf in jax.tree.leaves(layer)):
        got = layer if hasattr(layer, "shape") else "params"
        require(False, expected, got, "pass the layer itself; net.apply(params, x) takes its params", error=TypeError)
    # A NamedTuple is what tells a pair from several layers; stax writes pairs as bare tuples.
    two = isinstance(layer, tuple) and len(layer) == 2
    require(not two, expected, "a bare tuple", "name its two functions: Layer(init, apply)", error=TypeError)
    into = public_name() if public_name() in ("Flow", "Parallel") else "Serial"
    hints: dict[type, str] = dict.fromkeys((list, tuple), f"write {into}(*layers)")
    hints |= {dict: f"write {into}(**layers)", str: "pass the function of that name"}
    hint = hints.get(type(layer), "pass a layer, such as Dense(3), or a function, such as jaxblocks.relu")
    require(callable(layer), expected, describe(layer), hint, error=TypeError)
    name = getattr(layer, "__name__", "")  # builders have CamelCase names
    require(not name[:1].isupper(), expected, f"{name} itself", f"call it: {name}(...)", error=TypeError)
    library = (getattr(layer, "__module__", None) or type(layer).__module__).partition(".")[0]
    if library in ("torch", "tensorflow", "keras"):
        hint = "write it with functions and layers of JAX, such as jaxblocks.relu"
        require(False, expected, f"{name or type(layer).__name__} of {library}", hint, error=TypeError)
    if held := _library_of_arrays(layer):
        got = f"{type(layer).__name__} of {held}, whose arrays are no params"
        hint = "write Layer(init, apply) with these arrays as params, or lambda x: module(x) for constants"
        require(False, expected, got, hint, error=TypeError)
    if isinstance(getattr(layer, "__wrapped__", None), Layer | StatefulLayer):  # as by jax.checkpoint
        hint = "pass the layer itself; Repeat(layer, 1, checkpoint='body') recomputes it in the backward pass"
        require(False, expected, "a transformed layer", hint, error=TypeError)
    if own := _of_a_layer(layer):
        hint = "pass the layer itself, as net[i] for one inside"
        require(False, expected, f"the {own} of a layer", hint, error=TypeError)
    function: Callable = layer  # type: ignore[assignment]

    def init(key, *inputs):
        return ()

    def apply(params, *inputs, **side):
        return function(*inputs, **side)

    # Its own signature has **side, of which nobody could tell what the function reads.
    set_signature(apply, ("params",), declared_by(check_declarations(function)))
    apply.of_arrays = function  # its annotations are those of the layer
    apply.__qualname__ = f"{layer_name(function)}.<locals>.apply"
    lifted = Layer(init, apply)
    lifted.call = Call(as_layer, (function,), {})
    return lifted


def _library_of_arrays(module) -> str:
    """The library of a module with arrays of its own, which no optimizer would change here; else empty."""
    bases = {base.__module__.partition(".")[0] for base in type(module).__mro__}
    unbound = getattr(module, "scope", "") is None  # of flax.linen, whose arrays are arguments of its own apply
    holds = unbound or any(hasattr(leaf, "shape") for leaf in jax.tree.leaves(module))
    return next(iter(bases & {"equinox", "flax"}), "") if holds else ""


def _of_a_layer(function) -> str:
    """``init`` or ``apply`` for such a function of a layer, as ``*net`` unpacks them; else empty."""
    _, _, name = getattr(function, "__qualname__", "").rpartition(".<locals>.")
    first = {"init": "key", "apply": "params"}.get(name)
    return name if first and next(iter(inspect.signature(function).parameters), "") == first else ""


def stateful(layer: Layer[Out] | StatefulLayer[Out] | Callable[..., Out]) -> StatefulLayer[Out]:
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
    apply.__qualname__ = f"{layer_name(layer)}.<locals>.apply"
    lifted = StatefulLayer(init, apply)
    lifted.call = Call(stateful, (layer,), {})
    return lifted


def side_inputs(layer: LayerLike) -> tuple[str, ...]:
    """Names of the side inputs that a pair, or a function of arrays, reads: its keyword-only parameters.

    >>> side_inputs(lambda x, *, time: x + time)
    ('time',)
    """
    pair = layer if callable(layer) else as_layer(layer)
    return tuple(declared_by(pair.apply if isinstance(pair, (Layer, StatefulLayer)) else pair))


def declared_by(function: Any) -> dict[str, inspect.Parameter]:
    """The keyword-only parameters of a function, without those that a ``partial`` sets."""
    if isinstance(function, functools.partial):  # its signature turns parameters after a set one into keyword-only ones
        return {name: p for name, p in declared_by(function.func).items() if name not in function.keywords}
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature
        return {}
    return {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY}


def required_by(declared: Mapping[str, inspect.Parameter]) -> list[str]:
    """The names without a default among declared side inputs.

    >>> required_by(declared_by(lambda x, *, time, train=False: x))
    ['time']
    """
    return [name for name, p in declared.items() if p.default is p.empty]


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
        # Sorted, so that the signature of a net does not depend on the order of its layers.
        + sorted(declared.values(), key=lambda p: p.name)
    )


def set_spatial_axes(apply: Callable, axes: int) -> None:
    """Declare how many axes the steps of a cell have between those of the batch and the features, for `Recurrent`."""
    apply.spatial_axes = axes  # type: ignore[attr-defined]


def spatial_axes_of(apply: Callable) -> int:
    """What `set_spatial_axes` has declared, or 0.

    >>> def apply(params, carry, x): ...
    >>> set_spatial_axes(apply, 2)
    >>> spatial_axes_of(apply), spatial_axes_of(print)
    (2, 0)
    """
    return getattr(apply, "spatial_axes", 0)
