"""The contract, stated once.

    Layer(init, apply)                                          a pair of pure functions
        init(key, *inputs, **side)            -> params
        apply(params, *inputs, **side)        -> outputs
    StatefulLayer(init, apply)                                  the same, with explicit state
        init(key, *inputs, **side)            -> (params, state)
        apply(params, state, *inputs, **side) -> (outputs, state)

``init`` reads shapes and dtypes only (arrays or ``jax.ShapeDtypeStruct``). Params are
pytrees of named arrays, ``()`` where there are none. Side inputs (``key``, ``train``,
``mask``, ...) are the keyword-only parameters of ``apply``: a layer declares those that
it reads, and a combinator passes each child exactly those.

The first half of this file serves everybody, the second those who write combinators.
"""

import functools
import importlib
import inspect
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple, NoReturn, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.core import Tracer

from jaxblocks.checks import checked, require

__all__ = [
    "ArrayOrShape",
    "Call",
    "Child",
    "Layer",
    "LayerLike",
    "RecordedFunction",
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
    "recorded",
    "require_pair",
    "side_inputs",
    "split_side",
    "stateful",
]

F = TypeVar("F", bound=Callable)


# ---- how a layer is built, and how it prints -------------------------------------------------


class Call(NamedTuple):
    """A call of a builder: what a layer prints as, and what a pickled layer is rebuilt by.

    >>> str(Call(Dense, (3,), {"use_bias": False, "dtype": None}))
    'Dense(3, use_bias=False)'
    """

    function: Callable
    args: tuple
    kwargs: dict

    def __str__(self) -> str:
        given = inspect.signature(self.function).bind(*self.args, **self.kwargs).arguments
        parameters, parts, left = inspect.signature(self.function).parameters, [], len(self.args)
        for name, value in given.items():
            p = parameters[name]
            if p.kind is p.VAR_POSITIONAL:
                parts += map(_expression, value)
            elif p.kind is p.VAR_KEYWORD:
                parts += [f"{key}={_expression(each)}" for key, each in value.items()]
            elif left > 0 and p.kind is not p.KEYWORD_ONLY:
                parts.append(_expression(value))
            elif p.default is p.empty or _expression(value) != _expression(p.default):
                parts.append(f"{name}={_expression(value)}")
            left -= 1
        line = f"{self.function.__name__}({', '.join(parts)})"
        if len(line) <= 100 and "\n" not in line:
            return line
        lines = ",\n".join(parts).replace("\n", "\n    ")
        return f"{self.function.__name__}(\n    {lines},\n)"


def _expression(value) -> str:
    """The Python expression that gives a value; functions show their names."""
    if isinstance(value, functools.partial):
        options = [*map(_expression, value.args), *(f"{k}={_expression(v)}" for k, v in value.keywords.items())]
        return f"partial({', '.join([_expression(value.func), *options])})"
    if isinstance(value, (Layer, StatefulLayer, RecordedFunction)):
        return repr(value)
    if isinstance(value, (tuple, list)) and type(value) in (tuple, list):
        left, right = ("(", ")") if type(value) is tuple else ("[", "]")
        return left + ", ".join(map(_expression, value)) + "," * (left == "(" and len(value) == 1) + right
    if isinstance(value, (jax.Array, np.ndarray)) and not isinstance(value, Tracer):
        return f"jnp.array({np.asarray(value).tolist()}, jnp.{value.dtype})"
    if isinstance(value, np.dtype) or (isinstance(value, type(jnp.float32)) or value in (float, int, bool)):
        return f"jnp.{jnp.dtype(value).name}"
    name = getattr(value, "__name__", "") if callable(value) else ""
    for prefix, module in (("jnp", jnp), ("jax.nn", jax.nn), ("jax.lax", jax.lax)):
        if name and getattr(module, name, None) is value:
            return f"{prefix}.{name}"
    return name or repr(value)


def builder(function: F) -> F:
    """Let the layers that a function builds know how they were built.

    The layer prints as the call that built it, and pickles as that call; ``init`` and ``apply`` check their arguments
    by their annotations, as the builder does (see `jaxblocks.checks.checked`): ``key`` is a key, ``train`` a bool.

    >>> @builder
    ... def Scale(factor: float, *, offset: float = 0.0) -> Layer:
    ...     return Layer(lambda key, x: (), lambda params, x: factor * x + offset)
    >>> Serial(Scale(2.0), Scale(3.0, offset=1.0), relu)
    Serial(Scale(2.0), Scale(3.0, offset=1.0), relu)
    """

    @functools.wraps(function)
    def build(*args, **kwargs):
        layer = check_call(*args, **kwargs)
        if layer.__dict__.get("call") is None:  # not built by another builder
            for one, role in zip(layer, ("init", "apply"), strict=True):
                one.__qualname__ = f"{function.__name__}.<locals>.{role}"
            layer = type(layer)(*map(checked, layer))
        return _with_call(layer, Call(build, args, kwargs))

    check_call = checked(function)
    return build  # type: ignore[return-value]


def recorded(function: F) -> F:
    """A `builder` of functions, such as initializers, which then print and pickle as the call that made them.

    >>> recorded(lambda scale: lambda x: scale * x)(2.0)
    <lambda>(2.0)
    """

    @functools.wraps(function)
    def make(*args, **kwargs):
        return RecordedFunction(Call(make, args, kwargs), function(*args, **kwargs))

    return make  # type: ignore[return-value]


class RecordedFunction:
    """A function that knows the call that made it; made by `recorded`.

    >>> from jaxblocks import initializers
    >>> initializers.constant(2.0)
    constant(2.0)
    """

    def __init__(self, call: Call, function: Callable):
        """Of a call, the function that it returned."""
        self._call, self._function = call, function

    def __call__(self, *args, **kwargs):
        """Call the function."""
        return self._function(*args, **kwargs)

    def __repr__(self) -> str:
        return str(self._call)

    def __reduce__(self):
        return _reduce(self._call)


def _call_again(function, args, kwargs):
    return function(*_resolve(args), **_resolve(kwargs))


def _reduce(call: Call) -> tuple:
    """What ``__reduce__`` returns for the result of a call."""
    return _call_again, (call.function, _by_name(call.args), _by_name(call.kwargs))


class _FunctionName(NamedTuple):
    """What a jitted function such as ``jnp.tanh`` pickles as, since `pickle` does not take it."""

    module: str
    name: str


def _by_name(value):
    """The arguments of a call with the names of jitted functions in place of the functions."""
    if type(value) in (tuple, list):
        return type(value)(map(_by_name, value))
    if type(value) is dict:
        return {key: _by_name(one) for key, one in value.items()}
    if type(value) is type(jnp.tanh):
        for module in ("jax.numpy", "jax.nn", "jax.lax", value.__module__):
            if getattr(sys.modules.get(module), value.__name__, None) is value:
                return _FunctionName(module, value.__name__)
    return value


def _resolve(value):
    """The inverse of `_by_name`."""
    if type(value) is _FunctionName:
        return getattr(importlib.import_module(value.module), value.name)
    if type(value) in (tuple, list):
        return type(value)(map(_resolve, value))
    return {key: _resolve(one) for key, one in value.items()} if type(value) is dict else value


def _with_call(layer, call: Call):
    """The same functions as a new pair that remembers the call."""
    layer = type(layer)(*layer)
    layer.call = call
    return layer


class _Pair(NamedTuple):
    init: Callable[..., Any]
    apply: Callable[..., Any]


class _Recorded(_Pair):
    """What both kinds of pair can do beside being a tuple of two functions."""

    call: Call | None = None

    def __repr__(self) -> str:
        return str(self.call) if self.call else f"<{layer_name(self)}: {type(self).__name__}>"

    def __reduce__(self):
        return _reduce(self.call) if self.call else (type(self), tuple(self))

    def __deepcopy__(self, memo):  # as of a function; a copy of a jitted function in it would lose its name
        return self

    def __call__(self, *args, **kwargs) -> NoReturn:
        call = "(params, state, x)" if isinstance(self, StatefulLayer) else "(params, x)"
        raise TypeError(
            f"{layer_name(self)} expected a call of init or apply, got a call of the layer itself; write "
            f"params = net.init(key, x) and net.apply{call}."
        )


# ---- the two pairs ---------------------------------------------------------------------------


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
    """A pair whose ``apply`` takes a state and returns the next one beside its outputs.

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
"""What ``init`` takes: an array, or its shape and dtype."""

LayerLike: TypeAlias = Layer | StatefulLayer | Callable[..., Any]
"""What combinators take: a pair, or a function of arrays."""


def side_inputs(layer: LayerLike) -> tuple[str, ...]:
    """Names of the side inputs that a pair, or a function of arrays, reads: its keyword-only parameters.

    >>> import jax.numpy as jnp
    >>> side_inputs(lambda x, *, time: x + time)
    ('time',)
    """
    return tuple(declared_by(layer.apply if isinstance(layer, (Layer, StatefulLayer)) else layer))


def as_layer(layer: LayerLike) -> Layer | StatefulLayer:
    """A pair as it is; a plain function of arrays as a layer without params.

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
    name = getattr(layer, "__name__", "")  # the case of a name is its type
    require(not name[:1].isupper(), expected, f"{name} itself", f"call it: {name}(...)", error=TypeError)
    function: Callable = layer  # type: ignore[assignment]

    def init(key, *inputs):
        return ()

    def apply(params, *inputs, **side):
        return function(*inputs, **side)

    _sign(apply, ("params",), declared_by(function))
    apply.of_arrays = function  # whose annotations are those of the layer
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


# ---- for those who write combinators ------------------------------------------------------


class Child(NamedTuple):
    """A layer at its place in a combinator, lifted to a ``StatefulLayer``.

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
        """The name that ``checkpoint_name`` gives its outputs, ``2.Dense``, by which `jaxblocks.summary` knows it."""
        return f"{'' if self.label is None else self.label}.{self.kind}"

    def scope(self):
        """Its name for the compiler: its label, so that the name of an operation begins with the path of its layer."""
        return nullcontext() if self.label is None else jax.named_scope(str(self.label))


def children(layers: Iterable[LayerLike], named: Mapping[str, LayerLike] | None = None) -> tuple[Child, ...]:
    """The children of a combinator, positional or named, each with what it declares."""
    layers, named = tuple(layers), dict(named or {})
    both = f"{len(layers)} by position and {', '.join(named)} by name"
    expected = "layers by position or by name, not both"
    require(not (layers and named), expected, both, "name all of them or none", error=TypeError)
    for name in named:
        require(name.isidentifier(), "names without dots, slashes and blanks", repr(name), "rename it")
    return tuple(child_of(label, layer) for label, layer in (named.items() or enumerate(layers)))


def child_of(label: int | str | None, layer: LayerLike) -> Child:
    """One layer at one place."""
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
    """The keyword-only parameters of a function; those that a ``partial`` has already set are not asked for again."""
    if isinstance(function, functools.partial):  # its own signature makes options after a set one keyword-only
        return {name: p for name, p in declared_by(function.func).items() if name not in function.keywords}
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature
        return {}
    return {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY}


def layer_name(layer: LayerLike) -> str:
    """What a layer is called: the name of the function that built it.

    >>> import jax.numpy as jnp
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

    Adding or editing one layer leaves the keys of the others as they were.
    """
    if label is None or key is None:
        return key
    return jax.random.fold_in(key, zlib.crc32(label.encode()) if isinstance(label, str) else label)


@contextmanager
def error_context(label: int | str | None, layer: LayerLike):
    """Add the place to whatever error is raised inside: "in layer block/0 (Dense)", in the grammar of `paths`.

    Each combinator on the way puts the label of its child in front.
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
    """Outputs and next state of a child: side inputs it declares, its own key, its scope, its place."""
    with error_context(child.label, child.layer), child.scope():
        given = _asked_for(child.reads, side)
        if "key" in given:
            given["key"] = child_key(given["key"], child.label)
        outputs, state = require_pair("apply", "(outputs, state)", child.layer.apply(params, state, *inputs, **given))
        return checkpoint_name(outputs, child.mark), state


def require_pair(function: str, what: str, made) -> tuple:
    """What a function of a ``StatefulLayer`` returned, if it is a pair as it must be."""
    right = isinstance(made, tuple) and len(made) == 2
    repair = "return both, or make it a Layer"
    require(right, f"{function} of a StatefulLayer to return {what}", made, repair, error=TypeError)
    return made


def output_shapes(child: Child, key, params, state, inputs: tuple, side: Mapping):
    """Outputs of a child and its next state as ``ShapeDtypeStruct``s; nothing is computed.

    The child is taken in evaluation: shapes are the same, and it needs no axis of devices and no second example.
    """
    if "key" in child.reads:
        side = {"key": key, **side}
    if "train" in child.reads:
        side = {**side, "train": False}
    return eval_shape(functools.partial(apply_child, child), params, state, inputs, side)


def eval_shape(function, *args):
    """``jax.eval_shape`` whose last argument, the side inputs, may hold static values (flags) beside arrays."""
    *args, side = args
    arrays, static = split_side(side)
    return jax.eval_shape(lambda args, arrays: function(*args, {**arrays, **static}), args, arrays)


def split_side(side: Mapping) -> tuple[dict, dict]:
    """Side inputs that are arrays (or trees of them), and static ones such as flags."""
    arrays = {name: value for name, value in side.items() if _is_arrays(value)}
    return arrays, {name: value for name, value in side.items() if name not in arrays}


def as_inputs(outputs) -> tuple:
    """A (plain) tuple is several inputs, anything else is one.

    >>> as_inputs(1), as_inputs((1, 2))
    ((1,), (1, 2))
    """
    return outputs if type(outputs) is tuple else (outputs,)


def as_shapes(tree):
    """The same tree with a ``ShapeDtypeStruct`` in the place of every array."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype) if _is_arrays(x) else x, tree)


def make_combinator(kids: tuple[Child, ...], init: Callable, apply: Callable, own: Mapping | None = None):
    """Make the pair of a combinator from its two functions, written once with state and for all side inputs.

    ``init(key, inputs, side) -> (params, state)`` and
    ``apply(params, state, inputs, side) -> (outputs, state)`` become a ``Layer`` where
    no child has state, else a ``StatefulLayer``; signatures declare the union of what
    the children read and of ``own``, which wins; a side input that no child
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
    """The state of a combinator none of whose children has any."""
    if kids and isinstance(kids[0].label, str):
        return {child.label: () for child in kids}
    return () if kids and kids[0].label is None else ((),) * len(kids)


def _asked_for(declared, side):
    """Of all side inputs those that are declared; one that is required and missing is named."""
    missing = [name for name, p in declared.items() if name not in side and p.default is p.empty]
    if missing:
        expected = f"the side input {missing[0]}"
        require(False, expected, "none", f"pass {missing[0]}=... (to init and to apply)", error=TypeError)
    return {name: side[name] for name in declared if name in side}


def _reject_unknown(side, declared):
    """Side inputs that no layer reads are rejected, with a list of those that are read."""
    unknown = sorted(side.keys() - declared.keys())
    if unknown:
        expected = f"side inputs among those that it reads ({', '.join(sorted(declared)) or 'none'})"
        repair = "leave it out, or declare it as a keyword-only parameter of the layer that should read it"
        require(False, expected, ", ".join(map(repr, unknown)), repair, error=TypeError)


def _union(declarations) -> dict[str, inspect.Parameter]:
    """All declarations together; a side input is required where one of them requires it."""
    union: dict[str, inspect.Parameter] = {}
    for declared in declarations:
        for name, parameter in declared.items():
            if name not in union or parameter.default is inspect.Parameter.empty:
                union[name] = parameter
    return union


def _sign(function, positional, declared):
    """Let ``inspect.signature`` tell what a function really takes."""
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
