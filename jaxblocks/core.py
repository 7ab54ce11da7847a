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
import inspect
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from jaxblocks.checks import describe_any, require_key

__all__ = [
    "Child",
    "Layer",
    "StatefulLayer",
    "apply_child",
    "as_inputs",
    "as_layer",
    "as_shapes",
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
    "require_flag",
    "require_pair",
    "require_params",
    "side_inputs",
    "split_side",
    "stateful",
]


class Layer(NamedTuple):
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

    init: Callable[..., Any]
    apply: Callable[..., Any]


class StatefulLayer(NamedTuple):
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

    init: Callable[..., Any]
    apply: Callable[..., Any]


def side_inputs(layer) -> tuple[str, ...]:
    """Names of the side inputs that a pair, or a function of arrays, reads: its keyword-only parameters.

    >>> import jax.numpy as jnp
    >>> side_inputs(lambda x, *, time: x + time)
    ('time',)
    """
    return tuple(declared_by(layer.apply if isinstance(layer, (Layer, StatefulLayer)) else layer))


def as_layer(layer) -> Layer | StatefulLayer:
    """A pair as it is; a plain function of arrays as a layer without params.

    The function's keyword-only parameters become the layer's side inputs.

    >>> import jax, jax.numpy as jnp
    >>> layer = as_layer(jnp.sin)
    >>> layer.init(jax.random.key(0), jnp.zeros(2)), layer.apply((), jnp.zeros(2))
    ((), Array([0., 0.], dtype=float32))
    """
    if isinstance(layer, (Layer, StatefulLayer)):
        return layer
    if isinstance(layer, tuple) and len(layer) == 2:
        raise TypeError("A layer was expected, but a bare tuple came; name its two functions: Layer(init, apply).")
    if not callable(layer):
        hint = {list: "; write Serial(*layers)", dict: "; write Serial(**layers)"}.get(type(layer), "")
        came = describe_any(layer) if hint or hasattr(layer, "shape") else repr(layer)
        raise TypeError(f"A layer or a function of arrays was expected, but {came} came{hint}.")
    name = getattr(layer, "__name__", "")
    if name[:1].isupper():  # the case of a name is its type
        raise TypeError(f"A layer was expected, but {name} itself came; call it: {name}(...).")
    function = layer

    def init(key, *inputs):
        return ()

    def apply(params, *inputs, **side):
        return function(*inputs, **side)

    _sign(apply, ("params",), declared_by(function))
    apply.of_arrays = function  # whose annotations are those of the layer
    apply.__qualname__ = f"{_name_of(function)}.<locals>.apply"
    return Layer(init, apply)


def stateful(layer) -> StatefulLayer:
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
    apply.__qualname__ = layer.apply.__qualname__
    return StatefulLayer(init, apply)


def require_params(where: str, params, *names: str) -> None:
    """Raise a ``ValueError`` unless ``params`` is a dict with exactly these names.

    >>> require_params("Bias", {"scale": 1.0}, "bias")
    Traceback (most recent call last):
    ...
    ValueError: Bias expects params named bias, but scale came; pass those that its own init made: apply(params, x).
    """
    if not isinstance(params, Mapping) or set(params) != set(names):
        came = ", ".join(sorted(map(str, params))) or "none" if isinstance(params, Mapping) else describe_any(params)
        raise ValueError(
            f"{where} expects params named {', '.join(sorted(names))}, but {came} came; "
            "pass those that its own init made: apply(params, x)."
        )


def require_flag(where: str, **flags) -> None:
    """Raise a ``TypeError`` unless every flag (such as ``train``) is a Python bool.

    >>> require_flag("Dropout", train=1)
    Traceback (most recent call last):
    ...
    TypeError: Dropout expects train to be True or False, but 1 came; under jit, write static_argnames="train".
    """
    for name, flag in flags.items():
        if not isinstance(flag, (bool, np.bool_)):
            raise TypeError(
                f"{where} expects {name} to be True or False, but {flag!r} came; "
                f'under jit, write static_argnames="{name}".'
            )


# ---- for those who write combinators ------------------------------------------------------


class Child(NamedTuple):
    """A layer at its place in a combinator, lifted to a ``StatefulLayer``.

    ``label`` is its position (int), its name (str), or ``None`` for an only child.
    """

    owner: str
    label: int | str | None
    kind: str
    layer: StatefulLayer
    has_state: bool
    init_reads: dict[str, inspect.Parameter]
    reads: dict[str, inspect.Parameter]

    @property
    def place(self) -> str:
        """Where it is, in words: ``Serial[2] (Dense)``."""
        label = {int: f"[{self.label}]", str: f".{self.label}"}.get(type(self.label), "")
        return f"{self.owner}{label} ({self.kind})"

    @property
    def scope(self) -> str:
        """Its name for the compiler: ``2.Dense``; `jaxblocks.summary` reads it off the jaxpr."""
        return f"{'' if self.label is None else self.label}.{self.kind}"


def children(owner: str, layers: Iterable, named: Mapping | None = None) -> tuple[Child, ...]:
    """The children of a combinator, positional or named, each with what it declares."""
    layers, named = tuple(layers), dict(named or {})
    if layers and named:
        raise TypeError(
            f"{owner} takes its layers by position or by name, but {len(layers)} came by position and "
            f"{', '.join(named)} by name; name all of them or none."
        )
    for name in named:
        if not name.isidentifier():
            raise ValueError(f"{owner} expects names without dots, slashes and blanks, but {name!r} came; rename it.")
    return tuple(child_of(owner, label, layer) for label, layer in (named.items() or enumerate(layers)))


def child_of(owner: str, label: int | str | None, layer) -> Child:
    """One layer at one place."""
    with error_context(f"{owner}[{label}]" if isinstance(label, int) else f"{owner}.{label}" if label else owner):
        layer = as_layer(layer)
        kind = layer_name(layer)
        for function in layer:
            if any(p.kind is p.VAR_KEYWORD for p in inspect.signature(function).parameters.values()):
                raise TypeError(
                    f"{kind} takes **kwargs, so that nobody can tell which side inputs it reads; "
                    "declare them by name, as in apply(params, x, *, train=False, key=None)."
                )
    has_state = isinstance(layer, StatefulLayer)
    return Child(owner, label, kind, stateful(layer), has_state, declared_by(layer.init), declared_by(layer.apply))


def declared_by(function) -> dict[str, inspect.Parameter]:
    """The keyword-only parameters of a function; those that a ``partial`` has already set are not asked for again."""
    if isinstance(function, functools.partial):  # its own signature makes options after a set one keyword-only
        return {name: p for name, p in declared_by(function.func).items() if name not in function.keywords}
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature
        return {}
    return {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY}


def layer_name(layer) -> str:
    """What a layer is called: the name of the function that built it.

    >>> import jax.numpy as jnp
    >>> layer_name(as_layer(jnp.sin))
    'sin'
    """
    parts = getattr(as_layer(layer).apply, "__qualname__", "layer").split(".")
    return parts[-3] if len(parts) >= 3 and parts[-2] == "<locals>" else parts[-1]


def child_key(key, label):
    """The key of the child at ``label``: ``fold_in`` of its position or (hashed) name.

    Adding or editing one layer leaves the keys of the others as they were.
    """
    if label is None or key is None:
        return key
    return jax.random.fold_in(key, zlib.crc32(label.encode()) if isinstance(label, str) else label)


@contextmanager
def error_context(place: str):
    """Add the place to whatever error is raised inside."""
    try:
        yield
    except Exception as error:
        error.add_note(f"in {place}")
        raise


def init_child(child: Child, key, inputs: tuple, side: Mapping):
    """Params and state of a child, from the key and side inputs of its combinator."""
    with error_context(child.place):
        made = child.layer.init(child_key(key, child.label), *inputs, **_asked_for(child.init_reads, side))
        return require_pair("init", "(params, state)", made)


def apply_child(child: Child, params, state, inputs: tuple, side: Mapping):
    """Outputs and next state of a child: side inputs it declares, its own key, its scope, its place."""
    with error_context(child.place), jax.named_scope(child.scope):
        given = _asked_for(child.reads, side)
        if "key" in given:
            given["key"] = child_key(given["key"], child.label)
        outputs, state = require_pair("apply", "(outputs, state)", child.layer.apply(params, state, *inputs, **given))
        return checkpoint_name(outputs, child.scope), state


def require_pair(function: str, what: str, made) -> tuple:
    """What a function of a ``StatefulLayer`` returned, if it is a pair as it must be."""
    if not (isinstance(made, tuple) and len(made) == 2):
        raise TypeError(
            f"{function} of a StatefulLayer must return {what}, but {describe_any(made)} came; return both, or make it "
            "a Layer."
        )
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


def make_combinator(kind: str, kids: tuple[Child, ...], init: Callable, apply: Callable, own: Mapping | None = None):
    """Make the pair of a combinator from its two functions, written once with state and for all side inputs.

    ``init(key, inputs, side) -> (params, state)`` and
    ``apply(params, state, inputs, side) -> (outputs, state)`` become a ``Layer`` where
    no child has state, else a ``StatefulLayer``; signatures declare the union of what
    the children read and of ``own``, which wins; a side input that nobody reads is refused.
    """
    declared = {**_union(child.reads for child in kids), **(own or {})}
    for_init = {**_union(child.init_reads for child in kids), **declared}
    for_init.pop("key", None)  # it is the first argument of init
    has_state = any(child.has_state for child in kids)
    empty = _empty_state(kids)

    def pair_init(key, *inputs, **side):
        require_key(f"{kind}.init", key)
        _refuse_unknown(f"{kind}.init", side, for_init)
        params, state = init(key, inputs, side)
        return (params, state) if has_state else params

    def stateful_apply(params, state, *inputs, **side):
        _refuse_unknown(kind, side, declared)
        if side.get("key") is not None:
            require_key(kind, side["key"])
        return apply(params, state, inputs, side)

    def stateless_apply(params, *inputs, **side):
        if inputs and type(inputs[0]) is tuple and not inputs[0]:
            raise TypeError(f"{kind} has no state here, but an empty one came; call it as apply(params, x).")
        return stateful_apply(params, empty, *inputs, **side)[0]

    made = StatefulLayer(pair_init, stateful_apply) if has_state else Layer(pair_init, stateless_apply)
    _sign(made.init, ("key",), for_init)
    _sign(made.apply, ("params", "state") if has_state else ("params",), declared)
    made.init.__qualname__, made.apply.__qualname__ = f"{kind}.<locals>.init", f"{kind}.<locals>.apply"
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
        raise TypeError(f"The side input {missing[0]} is missing; pass {missing[0]}=... (to init and to apply).")
    return {name: side[name] for name in declared if name in side}


def _refuse_unknown(where, side, declared):
    unknown = sorted(side.keys() - declared.keys())
    if unknown:
        reads = ", ".join(sorted(declared)) or "none"
        raise TypeError(
            f"{where} reads no side input {', '.join(map(repr, unknown))}; those that it reads: {reads}. Leave it out, "
            "or declare it as a keyword-only parameter of the layer that should read it."
        )


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
