"""The contract of layers, and the tools that combinators are built with.

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

The first half of this file is the contract, the second half is for combinators.
"""

import functools
import inspect
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import jax
from jax.ad_checkpoint import checkpoint_name

from jaxblocks.checks import checked, require
from jaxblocks.recording import Call, reduce_call

__all__ = [
    "ArrayOrShape",
    "Child",
    "Layer",
    "LayerLike",
    "StatefulLayer",
    "apply_child",
    "as_inputs",
    "as_layer",
    "as_shapes",
    "builder",
    "child_key",
    "child_of",
    "children",
    "declared_by",
    "error_context",
    "eval_shape",
    "init_child",
    "layer_name",
    "make_combinator",
    "output_shapes",
    "require_pair",
    "side_inputs",
    "split_side",
    "stateful",
]

F = TypeVar("F", bound=Callable)


# ---- the two pairs, and how they are built ------------------------------------------------------


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
        return _with_call(type(layer)(init, apply), Call(build, args, kwargs))

    check_call = checked(function)
    return build  # type: ignore[return-value]


def _with_call(layer, call: Call):
    """A new pair of the same functions that stores the call."""
    layer = type(layer)(*layer)
    layer.call = call
    return layer


class _Pair(NamedTuple):
    init: Callable[..., Any]
    apply: Callable[..., Any]


class _Recorded(_Pair):
    """The methods that both kinds of layers share: printing, pickling, copying."""

    call: Call | None = None

    def __repr__(self) -> str:
        return str(self.call) if self.call else f"<{layer_name(self)}: {type(self).__name__}>"  # type: ignore[arg-type]

    def __reduce__(self):
        return reduce_call(self.call) if self.call else (type(self), tuple(self))

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
    two = isinstance(layer, tuple) and len(layer) == 2
    require(not two, expected, "a bare tuple", "name its two functions: Layer(init, apply)", error=TypeError)
    hint = {list: "write Serial(*layers)", dict: "write Serial(**layers)"}.get(type(layer), "")
    require(callable(layer), expected, layer, hint, error=TypeError)
    name = getattr(layer, "__name__", "")  # builders have CamelCase names
    require(not name[:1].isupper(), expected, f"{name} itself", f"call it: {name}(...)", error=TypeError)
    function: Callable = layer  # type: ignore[assignment]

    def init(key, *inputs):
        return ()

    def apply(params, *inputs, **side):
        return function(*inputs, **side)

    _sign(apply, ("params",), declared_by(function))
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

    _sign(init, ("key",), declared_by(layer.init))
    _sign(apply, ("params", "state"), declared_by(layer.apply))
    return _with_call(StatefulLayer(init, apply), Call(stateful, (layer,), {}))


# ---- for authors of combinators -----------------------------------------------------------


class Child(NamedTuple):
    """A layer at its position in a combinator, lifted to a ``StatefulLayer``.

    ``label`` is its position (int), its name (str), or ``None`` for an only child, whose params are those of the
    combinator itself.
    """

    label: int | str | None
    kind: str
    layer: StatefulLayer
    has_state: bool
    init_reads: dict[str, inspect.Parameter]
    reads: dict[str, inspect.Parameter]

    @property
    def mark(self) -> str:
        """The ``checkpoint_name`` of its outputs, such as ``2.Dense``, by which `jaxblocks.summary` identifies it."""
        return f"{'' if self.label is None else self.label}.{self.kind}"

    def scope(self):
        """The named scope of the child: its label, so that operation names begin with the path of their layer."""
        return nullcontext() if self.label is None else jax.named_scope(str(self.label))


def children(layers: Iterable[LayerLike], named: Mapping[str, LayerLike] | None = None) -> tuple[Child, ...]:
    """The children of a combinator, positional or named, each with the side inputs that it declares."""
    layers, named = tuple(layers), dict(named or {})
    both = f"{len(layers)} by position and {', '.join(named)} by name"
    expected = "layers by position or by name, not both"
    require(not (layers and named), expected, both, "name all of them or none", error=TypeError)
    for name in named:
        require(name.isidentifier(), "names without dots, slashes and blanks", repr(name), "rename it")
    return tuple(child_of(label, layer) for label, layer in (named.items() or enumerate(layers)))


def child_of(label: int | str | None, layer: LayerLike) -> Child:
    """The child for one layer at one position."""
    with error_context(label, layer):
        pair = as_layer(layer)
        kind = layer_name(pair)
        for function in pair:
            if any(p.kind is p.VAR_KEYWORD for p in inspect.signature(function).parameters.values()):
                expected = f"the side inputs of {kind} as keyword-only parameters with names"
                repair = "declare them, as in apply(params, x, *, train=False, key=None)"
                require(False, expected, "**kwargs", repair, error=TypeError)
    has_state = isinstance(pair, StatefulLayer)
    return Child(label, kind, stateful(pair), has_state, declared_by(pair.init), declared_by(pair.apply))


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
    if call is not None and call.function in (as_layer, stateful):
        return layer_name(call.args[0])
    if call is not None:
        return call.function.__name__
    if not isinstance(layer, (Layer, StatefulLayer)):
        return _name_of(layer)
    parts = getattr(layer.apply, "__qualname__", "layer").split(".")
    return parts[-3] if len(parts) >= 3 and parts[-2] == "<locals>" else parts[-1]


def child_key(key: Any, label: int | str | jax.Array | None) -> Any:
    """The key of the child at ``label``: ``fold_in`` of its position or (hashed) name.

    Adding or editing one layer does not change the keys of the others.
    """
    if label is None or key is None:
        return key
    return jax.random.fold_in(key, zlib.crc32(label.encode()) if isinstance(label, str) else label)


@contextmanager
def error_context(label: int | str | None, layer: LayerLike):
    """Add the path of the layer to an error that is raised inside: "in layer block/0 (Dense)" (see `paths`).

    Each enclosing combinator prepends the label of its child.
    """
    try:
        yield
    except Exception as error:
        path, kind, note = getattr(error, "place_in_net", ("", layer_name(layer), None))
        path = "/".join(str(part) for part in (label, path) if part not in (None, ""))
        notes = [one for one in getattr(error, "__notes__", []) if one is not note]
        note = f"in layer {path} ({kind})" if path else f"in {kind}"
        error.place_in_net, error.__notes__ = (path, kind, note), [*notes, note]  # type: ignore[attr-defined]
        raise


def init_child(child: Child, key, inputs: tuple, side: Mapping):
    """Params and state of a child, from the key and side inputs of its combinator."""
    with error_context(child.label, child.layer):
        made = child.layer.init(child_key(key, child.label), *inputs, **_asked_for(child.init_reads, side))
        return require_pair("init", "(params, state)", made)


def apply_child(child: Child, params, state, inputs: tuple, side: Mapping):
    """Outputs and next state of a child, called with its side inputs and its key, in its named scope."""
    with error_context(child.label, child.layer), child.scope():
        given = _asked_for(child.reads, side)
        if "key" in given:
            given["key"] = child_key(given["key"], child.label)
        outputs, state = require_pair("apply", "(outputs, state)", child.layer.apply(params, state, *inputs, **given))
        return checkpoint_name(outputs, child.mark), state


def require_pair(function: str, what: str, made) -> tuple:
    """The result of a function of a ``StatefulLayer``, checked to be a pair."""
    right = isinstance(made, tuple) and len(made) == 2
    repair = "return both, or make it a Layer"
    require(right, f"{function} of a StatefulLayer to return {what}", made, repair, error=TypeError)
    return made


def output_shapes(child: Child, key, params, state, inputs: tuple, side: Mapping):
    """Outputs of a child and its next state as ``ShapeDtypeStruct``s; nothing is computed.

    The child runs in evaluation mode, which has the same shapes and needs no device axis and no second example.
    """
    if "key" in child.reads:
        side = {"key": key, **side}
    if "train" in child.reads:
        side = {**side, "train": False}
    return eval_shape(functools.partial(apply_child, child), params, state, inputs, side)


def eval_shape(function, *args):
    """``jax.eval_shape`` where the last argument, the side inputs, may contain arrays and static values (flags)."""
    *args, side = args
    arrays, static = split_side(side)
    return jax.eval_shape(lambda args, arrays: function(*args, {**arrays, **static}), args, arrays)


def split_side(side: Mapping) -> tuple[dict, dict]:
    """Split side inputs into arrays (or trees of arrays) and static values such as flags."""
    arrays = {name: value for name, value in side.items() if _is_arrays(value)}
    return arrays, {name: value for name, value in side.items() if name not in arrays}


def as_inputs(outputs) -> tuple:
    """Outputs of a layer as inputs of the next: a plain tuple is several inputs, any other value is one.

    >>> as_inputs(1), as_inputs((1, 2))
    ((1,), (1, 2))
    """
    return outputs if type(outputs) is tuple else (outputs,)


def as_shapes(tree):
    """The same tree with a ``ShapeDtypeStruct`` in place of every array."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype) if _is_arrays(x) else x, tree)


def make_combinator(kids: tuple[Child, ...], init: Callable, apply: Callable, own: Mapping | None = None):
    """Make the pair of a combinator from its two functions, which take state and all side inputs.

    ``init(key, inputs, side) -> (params, state)`` and
    ``apply(params, state, inputs, side) -> (outputs, state)`` become a ``Layer`` where
    no child has state, else a ``StatefulLayer``. The signatures declare the side inputs of
    the children and of ``own``; ``own`` takes precedence. A side input that no child
    reads is rejected. The function that calls it is a `builder`.
    """
    declared = {**_union(child.reads for child in kids), **(own or {})}
    for_init = {**_union(child.init_reads for child in kids), **declared}
    for_init.pop("key", None)  # it is the first argument of init
    has_state = any(child.has_state for child in kids)
    empty = _empty_state(kids)

    def pair_init(key, *inputs, **side):
        _reject_unknown(side, for_init)
        params, state = init(key, inputs, side)
        return (params, state) if has_state else params

    def stateful_apply(params, state, *inputs, **side):
        _reject_unknown(side, declared)
        return apply(params, state, inputs, side)

    def stateless_apply(params, *inputs, **side):
        empty_state = bool(inputs) and type(inputs[0]) is tuple and not inputs[0]
        repair = "call it as apply(params, x)"
        require(not empty_state, "no state, since none of its layers has one", "()", repair, error=TypeError)
        return stateful_apply(params, empty, *inputs, **side)[0]

    made = StatefulLayer(pair_init, stateful_apply) if has_state else Layer(pair_init, stateless_apply)
    _sign(made.init, ("key",), for_init)
    _sign(made.apply, ("params", "state") if has_state else ("params",), declared)
    return made


def _empty_state(kids):
    """The state of a combinator whose children have no state."""
    if kids and isinstance(kids[0].label, str):
        return {child.label: () for child in kids}
    return () if kids and kids[0].label is None else ((),) * len(kids)


def _asked_for(declared, side):
    """The declared ones among the side inputs; a missing required one raises an error."""
    missing = [name for name, p in declared.items() if name not in side and p.default is p.empty]
    if missing:
        expected = f"the side input {missing[0]}"
        require(False, expected, "none", f"pass {missing[0]}=... (to init and to apply)", error=TypeError)
    return {name: side[name] for name in declared if name in side}


def _reject_unknown(side, declared):
    """Reject side inputs that no layer reads, and list those that are read."""
    unknown = sorted(side.keys() - declared.keys())
    if unknown:
        expected = f"side inputs among those that it reads ({', '.join(sorted(declared)) or 'none'})"
        repair = "leave it out, or declare it as a keyword-only parameter of the layer that should read it"
        require(False, expected, ", ".join(map(repr, unknown)), repair, error=TypeError)


def _union(declarations) -> dict[str, inspect.Parameter]:
    """The union of the declarations; a side input is required if one of them requires it."""
    union: dict[str, inspect.Parameter] = {}
    for declared in declarations:
        for name, parameter in declared.items():
            if name not in union or parameter.default is inspect.Parameter.empty:
                union[name] = parameter
    return union


def _sign(function, positional, declared):
    """Set the signature that ``inspect.signature`` reports."""
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


def _is_arrays(value) -> bool:
    leaves = jax.tree.leaves(value)
    return bool(leaves) and all(hasattr(leaf, "shape") and hasattr(leaf, "dtype") for leaf in leaves)
