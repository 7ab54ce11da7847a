"""The children of combinators: how a combinator holds, initializes and applies its layers.

A combinator makes its children with `children`, writes two functions that call `init_child` and `apply_child`, and
returns `make_combinator` of them. `init_child` and `apply_child` give each child its key, the side inputs that it
declares, and its place in error notes and named scopes.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from jaxblocks.checks.errors import public_name, require
from jaxblocks.checks.expectations import unchecked
from jaxblocks.checks.layer_inputs import MASK_OF_LENGTHS, check_declarations, check_side_inputs
from jaxblocks.core.keys import KEYS, child_key, fold_keys
from jaxblocks.core.lifting import (
    as_layer,
    declared_by,
    required_by,
    set_signature,
    set_spatial_axes,
    spatial_axes_of,
    stateful,
)
from jaxblocks.core.pairs import Layer, LayerLike, StatefulLayer, layer_name
from jaxblocks.core.shapes import as_question, as_shapes, eval_shape, once_per_init, one_init

__all__ = [
    "Child",
    "apply_child",
    "child_of",
    "children",
    "constant_params",
    "error_context",
    "init_child",
    "init_shapes",
    "make_combinator",
    "named_outputs",
    "output_shapes",
    "require_pair",
    "with_made_params",
]


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
    def functions(self) -> tuple[Callable, Callable]:
        """The ``init`` and ``apply`` that were written for the layer."""
        init, apply = _not_lifted(self.layer)
        return unchecked(init), unchecked(apply)

    @property
    def mark(self) -> str:
        """The name of its outputs under `named_outputs`, such as ``2.Dense``."""
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
        # A combinator passes the keyword-only parameters that the signature names; **kwargs names none.
        expected = f"the side inputs of {kind} as keyword-only parameters with names"
        repair = "declare them, as in apply(params, x, *, train=False, key=None)"
        for function in map(check_declarations, pair):
            for p in inspect.signature(function).parameters.values():
                if p.kind is p.VAR_KEYWORD:
                    require(False, expected, f"{p}", repair, error=TypeError)
    has_state = isinstance(pair, StatefulLayer)
    return Child(label, kind, stateful(pair), has_state, declared_by(pair.init), declared_by(pair.apply))


@contextmanager
def error_context(label: int | str | None, layer: LayerLike):
    """Add the path of the layer to an error that is raised inside: "in layer block/0 (Dense)" (see `paths`).

    Each enclosing combinator prepends the label of its child.
    """
    try:
        yield
    except Exception as error:
        # An inner combinator has stored the path so far in the error: the path grows from the inside out.
        path, kind, note = getattr(error, "place_in_net", ("", layer_name(layer), None))
        path = "/".join(str(part) for part in (label, path) if part not in (None, ""))
        # The note of the inner combinator is replaced by one with the longer path, so that an error has one note.
        notes = [one for one in getattr(error, "__notes__", []) if one is not note]
        note = f"in layer {path} ({kind})" if path else f"in {kind}"
        error.place_in_net, error.__notes__ = (path, kind, note), [*notes, note]  # type: ignore[attr-defined]
        raise


def init_child(child: Child, key, inputs: tuple, side: Mapping):
    """Params and state of a child, from the key and side inputs of its combinator."""
    with error_context(child.label, child.layer):
        given = _declared_inputs(child.init_reads, inputs, side)
        made = child.layer.init(child_key(key, child.label), *inputs, **given)
        return require_pair("init", "(params, state)", made)


def apply_child(child: Child, params, state, inputs: tuple, side: Mapping):
    """Outputs and next state of a child, called with its side inputs and its key, in its named scope."""
    with error_context(child.label, child.layer), child.scope():
        given = _declared_inputs(child.reads, inputs, side)
        given = fold_keys(given, child.label)
        outputs, state = require_pair("apply", "(outputs, state)", child.layer.apply(params, state, *inputs, **given))
        return checkpoint_name(outputs, child.mark) if _named.value else outputs, state


# JAX traces a jitted function once for each value of it.
_named = jax.make_user_context(False)


@contextmanager
def named_outputs():
    """Inside, combinators name the outputs of each layer by ``checkpoint_name``, such as ``2.Dense`` for layer 2.

    Policies of ``jax.checkpoint`` (``save_only_these_names``) and `jaxblocks.summary` read the names. Elsewhere there
    are none, since programs that read jaxprs may not know the primitive. `Repeat` and `Recurrent` name the outputs
    where their ``checkpoint`` is a policy.

    >>> import jaxblocks as jb
    >>> net = jb.Serial(jb.relu, jb.relu)
    >>> policy = jax.checkpoint_policies.save_only_these_names("0.relu")
    >>> f = jax.checkpoint(lambda x: net.apply(((), ()), x).sum(), policy=policy)
    >>> with named_outputs():
    ...     print(jax.grad(f)(1.0))
    1.0
    """
    with _named(True):
        yield


def constant_params(params):
    """Params without a gradient, for a layer that freezes them.

    Inside of `with_made_params` they are values of a layer around. Those of `LoRA` keep their gradient, since it
    freezes its own base; for others an error says that the params of the layer around would have none.
    """
    maker = _made_by.value
    if maker == "LoRA":
        return params
    if maker and any(path and str(path[-1]) == "['kernel']" for path, _ in jax.tree.leaves_with_path(params)):
        expected = f"params that are not made by {maker}, whose own would have no gradient"
        require(False, expected, f"kernels of the {maker} around it", f"write {public_name()}({maker}(layer))")
    return jax.lax.stop_gradient(params)


@contextmanager
def with_made_params(maker: str):
    """Inside, the layer ``maker`` makes kernels of its child from params of its own."""
    with _made_by(maker):
        yield


_made_by = jax.make_user_context(None)


def require_pair(function: str, what: str, made) -> tuple:
    """The result of a function of a ``StatefulLayer``, checked to be a pair."""
    right = isinstance(made, tuple) and len(made) == 2
    repair = "return both, or make it a Layer"
    require(right, f"{function} of a StatefulLayer to return {what}", made, repair, error=TypeError)
    return made


def init_shapes(child: Child, key, inputs: tuple, side: Mapping):
    """Params and state of a child as ``ShapeDtypeStruct``s; nothing is computed."""
    read = _asked_about(side, child.init_reads)
    find = lambda: eval_shape(functools.partial(init_child, child), as_shapes(key), inputs, side)
    return once_per_init(find, ("init", child.functions), inputs, read)


def output_shapes(child: Child, key, params, state, inputs: tuple, side: Mapping):
    """Outputs of a child as ``ShapeDtypeStruct``s; nothing is computed.

    A combinator knows them from its own children (see `make_combinator`), so that no layer is traced once for each
    combinator around it. Another child runs in evaluation mode, which has the same shapes and needs no device axis and
    no second example.
    """

    def run():
        # apply may require keys, and init has one; their values have no influence on shapes.
        given = {**{name: key for name in KEYS if name in child.reads}, **side}
        given = {**given, "train": False} if "train" in child.reads else given
        outputs, _ = eval_shape(functools.partial(apply_child, child), params, state, inputs, given)
        return lambda: outputs

    read = _asked_about(side, {**child.init_reads, **child.reads})
    outputs = once_per_init(run, child.functions, inputs, read)
    with error_context(child.label, child.layer):
        return outputs()


def _asked_about(side: Mapping, reads: Iterable[str]) -> dict[str, Any]:
    """The side inputs on which shapes may depend: those that a layer reads, and of keys only that there is none."""
    return {name: value for name, value in side.items() if name in reads and (name not in KEYS or value is None)}


def make_combinator(
    kids: tuple[Child, ...], init: Callable, apply: Callable, own: Mapping | None = None
) -> Layer[Any] | StatefulLayer[Any]:
    """Make the pair of a combinator from its two functions, which take state and all side inputs.

    ``init(key, inputs, side) -> (params, state, outputs)`` and
    ``apply(params, state, inputs, side) -> (outputs, state)`` become a ``Layer`` where
    no child has state, else a ``StatefulLayer``. The third result of ``init`` is a function that returns the output
    shapes (see `output_shapes`), or ``None``; it must not hold arrays, which may be tracers (`types_of`). The
    signatures declare the side inputs of the children and of ``own``; ``own`` takes precedence. The function that
    calls it is a `builder`, which rejects side inputs that no child reads.
    """
    declared = {**_union(child.reads for child in kids), **(own or {})}
    # `init` also takes the side inputs of `apply`, since shapes of later layers follow from a call of the earlier ones.
    for_init = {**_union(child.init_reads for child in kids), **declared}
    for name in KEYS:
        for_init.pop(name, None)  # the first argument of init
    has_state = any(child.has_state for child in kids)
    empty = _empty_state(kids)

    def pair_init(key, *inputs, **side):
        with one_init() as found:
            params, state, outputs = init(key, inputs, side)
            # For `output_shapes` of an enclosing combinator, which then need not trace apply.
            question = as_question((pair_init, pair_apply), inputs, side)
            if outputs and question:
                found[question] = outputs
        return (params, state) if has_state else params

    def stateful_apply(params, state, *inputs, **side):
        return apply(params, state, inputs, side)

    def stateless_apply(params, *inputs, **side):
        # The call apply(params, state, x) of a stateless net would pass the state as the first input.
        empty_state = bool(inputs) and type(inputs[0]) is tuple and not inputs[0]
        repair = "call it as apply(params, x)"
        require(not empty_state, "no state, since none of its layers has one", "()", repair, error=TypeError)
        return stateful_apply(params, empty, *inputs, **side)[0]

    pair_apply = stateful_apply if has_state else stateless_apply
    made = StatefulLayer(pair_init, pair_apply) if has_state else Layer(pair_init, pair_apply)
    # Labels as in the params, for net[path] and `unstack_repeats`; a combinator of one layer is no level of its own.
    made.inner = {child.label: _not_lifted(child.layer) for child in kids if child.label is not None}
    set_signature(made.init, ("key",), for_init)
    set_signature(made.apply, ("params", "state") if has_state else ("params",), declared)
    set_spatial_axes(made.apply, max((spatial_axes_of(child.functions[1]) for child in kids), default=0))
    return made


def _not_lifted(layer: StatefulLayer) -> Layer | StatefulLayer:
    """The inverse of `stateful`."""
    return layer.call.args[0] if layer.call and layer.call.function is stateful else layer


def _empty_state(kids):
    """The state of a combinator whose children have no state."""
    if kids and isinstance(kids[0].label, str):
        return {child.label: () for child in kids}
    return () if kids and kids[0].label is None else ((),) * len(kids)


def _declared_inputs(declared, inputs, side):
    """The declared ones among the side inputs; a missing required one raises an error."""
    check_side_inputs(required_by(declared), side)
    if "lengths" in side and "mask" not in side:
        no_mask = "mask" not in declared or "lengths" in declared or side["lengths"] is None
        # A head behind a pool over time has inputs (*batch, features), in which there is no padding.
        no_mask = no_mask or not _has_time(inputs, jnp.ndim(side["lengths"]))
        require(no_mask, "mask, since it reads no lengths", "lengths alone", MASK_OF_LENGTHS, error=TypeError)
    return {name: side[name] for name in declared if name in side}


def _has_time(inputs, batch_axes: int) -> bool:
    """Whether one of the inputs has an axis between those of the batch and the features, which integers do not have."""
    features = lambda leaf: jnp.issubdtype(getattr(leaf, "dtype", jnp.float32), jnp.inexact)
    return any(jnp.ndim(leaf) - features(leaf) > batch_axes for leaf in jax.tree.leaves(inputs))


def _union(declarations) -> dict[str, inspect.Parameter]:
    """The union of the declarations; a side input is required if one of them requires it."""
    union: dict[str, inspect.Parameter] = {}
    for declared in declarations:
        for name, parameter in declared.items():
            if name not in union or parameter.default is inspect.Parameter.empty:
                union[name] = parameter
    return union
