"""`Wire`: any graph of layers that a plain function describes."""

import functools
import inspect
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Concatenate, NamedTuple, TypeAlias, overload

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxblocks.checks.errors import describe, require
from jaxblocks.checks.layer_inputs import check_declarations, check_side_inputs
from jaxblocks.core.children import (
    Child,
    apply_child,
    children,
    init_child,
    init_shapes,
    make_combinator,
    output_shapes,
)
from jaxblocks.core.keys import KEYS, fold_keys
from jaxblocks.core.lifting import declared_by, required_by
from jaxblocks.core.pairs import Layer, LayerLike, Out, StatefulLayer, StatelessLike, builder
from jaxblocks.core.shapes import as_shapes, eval_shape, once_per_init
from jaxblocks.layers.combinators.shared import gathered, with_params

__all__ = ["Wire"]


class _Inputs(NamedTuple):
    """The inputs that ``forward(f, *inputs)`` takes: their names, and how many it takes at least and at most.

    >>> _Inputs.of(lambda f, x, context=None: f.cell(x))
    _Inputs(names=['x', 'context'], least=1, most=2)
    >>> _Inputs.of(lambda f, *inputs: f.cell(*inputs))
    _Inputs(names=[], least=0, most=None)
    """

    names: list[str]
    least: int
    most: int | None

    @classmethod
    def of(cls, forward: Callable) -> "_Inputs":
        """Read them from the signature."""
        parameters = inspect.signature(forward).parameters.values()
        positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][1:]
        any_number = any(p.kind is p.VAR_POSITIONAL for p in parameters)
        least = sum(p.default is p.empty for p in positional)
        return cls([p.name for p in positional], least, None if any_number else len(positional))

    def check(self, inputs: tuple, side: Mapping, child: str) -> None:
        """Raise a ``TypeError`` for too many or too few inputs, and for one that is passed by name."""
        if self.most is not None and len(inputs) > self.most:
            expected = f"at most {self.most} input{'s' * (self.most != 1)}"
            repair = "pass a mask and other side inputs by name"
            if self.most < 1:
                repair = f"forward has the children as its first parameter, as in lambda f, x: f.{child}(x)"
            require(False, expected, f"{len(inputs)} of them", repair, error=TypeError)
        expected = f"the inputs ({', '.join(self.names)}) of forward"
        if by_name := [name for name in self.names[len(inputs) :] if name in side and name != "key"]:
            others = (name for name in self.names if name not in by_name)
            declared = ", ".join(["f", *others, "*", f"{by_name[0]}=None"])
            repair = f"pass {by_name[0]} by position, or declare it after *: ({declared})"
            require(False, expected, f"{', '.join(by_name)} by name", repair, error=TypeError)
        missing = self.names[len(inputs) : self.least]
        if not missing:
            return
        repair = f"pass {', '.join(missing)} too"
        if missing == ["key"]:
            repair = f"for a random key declare it after *: ({', '.join(['f', *self.names[:-1], '*', 'key=None'])})"
        elif len(inputs) == 1 and isinstance(inputs[0], list | tuple):
            repair = "pass them one by one, as in init(key, *x) and apply(params, *x); a training step takes a tuple"
        elif len(inputs) == 1 and isinstance(inputs[0], dict):
            repair = "pass its entries one by one; a training step takes a tuple of them"
        require(False, expected, ", ".join(map(describe, inputs)) or "none", repair, error=TypeError)


class _Children:
    """The children that ``forward`` of `Wire` calls; type checkers take the outputs of each for one array."""

    def __init__(self, **children: Callable):
        vars(self).update(children)

    def __getattr__(self, name: str) -> Callable[..., Array]:
        known = ", ".join(vars(self))
        raise AttributeError(f"Wire expected the name of a child, {known}, got {name!r}; call one of these.")

    def _is_no_sequence(self, *_):
        calls = " or ".join(f"f.{name}(x)" for name in vars(self))
        got = "the children themselves, as in f(x), f[name] or a loop over f"
        require(False, "calls of single children", got, f"write {calls}", error=TypeError)

    __getitem__ = __call__ = __iter__ = __len__ = _is_no_sequence


def _reject_pair(name, *_, **__):
    got, repair = f"one of its init or apply, as in f.{name}.apply", f"write f.{name}(x), which has its params"
    require(False, f"a call of the child {name}", got, repair, error=TypeError)


_Forward: TypeAlias = Callable[Concatenate[_Children, ...], Out]


@overload
def Wire(forward: _Forward[Out], /, **layers: StatelessLike) -> Layer[Out]: ...


@overload
def Wire(forward: _Forward[Out], /, **layers: LayerLike) -> StatefulLayer[Out]: ...


@builder
def Wire(forward: Callable, /, **layers: LayerLike) -> Layer[Any] | StatefulLayer[Any]:
    r"""A layer from a plain function that calls its children: any graph, shared weights, skip connections.

    Args:
        forward: ``forward(f, *inputs)`` calls the children as ``f.name(x)``, also inside ``jax.checkpoint``, ``vmap``,
            ``lax.map`` and similar transformations. A child called twice uses the same params twice; its state is
            passed from call to call, and each call has its own key. A call inside ``vmap``, ``lax.map`` or ``scan`` is
            one call, whose key all rows or steps share: pass keys there, as in ``jax.vmap(lambda x, key: f.drop(x,
            key=key))(x, keys)``. Side inputs are passed automatically to the children that declare them; one that
            ``forward`` passes explicitly takes precedence. Keyword-only parameters of ``forward`` are side inputs of
            ``forward``.
        layers: the children by name; params are a dict of these names.

    Raises:
        ValueError: at ``init``, for a child that ``forward`` never calls; for a child with
            state that it calls inside another transformation, which cannot return the state.
        AttributeError: for a child that does not exist.

    >>> net = Wire(
    ...     lambda f, x: f.up(jnp.concatenate([x, f.down(x)], -1)),
    ...     down=Dense(2),
    ...     up=Dense(4),
    ... )
    >>> params = net.init(jax.random.key(0), jnp.zeros(4))
    >>> jax.tree.map(jnp.shape, params["up"])
    {'bias': (4,), 'kernel': (6, 4)}
    """
    kids = children((), layers)
    check_declarations(forward)
    # forward may pass a side input that a child requires, so callers need not pass it.
    required = {name: p for child in kids for name, p in child.reads.items() if p.default is p.empty}
    own = {**{name: p.replace(default=None) for name, p in required.items()}, **declared_by(forward)}
    own_names, takes = [child.label for child in kids], _Inputs.of(forward)

    def run(call, inputs, side):
        """Run ``forward`` with children that are called by ``call(child, inputs, side)``."""
        from jax.extend.core import get_opaque_trace_state  # imported here, because it imports Pallas

        calls: Counter = Counter()
        level = get_opaque_trace_state()

        def bind(child: Child):
            def f(*inputs, **given):
                unknown = sorted(given.keys() - child.reads.keys())
                reads = f"side inputs that {child.label} reads ({', '.join(sorted(child.reads)) or 'none'})"
                require(not unknown, reads, ", ".join(map(repr, unknown)), "leave them out", error=TypeError)
                # A child with state must be called at this level of tracing: a call inside cond or vmap has inner
                # tracers as its next state, which may not leave the transformation.
                inside = child.has_state and get_opaque_trace_state() != level
                expected = f"{child.label}, which has state, outside of other transformations"
                got = "a call inside cond, checkpoint, vmap, scan or the like, which drops its next state"
                require(not inside, expected, got, "move the call out, or transform the whole Wire")
                # The first call has the key of the child itself, so that a child called once draws as it does in
                # Serial.
                passed = fold_keys(side, f"call {calls[child.label]}") if calls[child.label] else side
                calls[child.label] += 1
                return call(child, inputs, {**passed, **given})

            f.init = f.apply = functools.partial(_reject_pair, child.label)
            f.__name__ = f.__qualname__ = f"f.{child.label}"
            return f

        takes.check(inputs, side, str(next(iter(own_names), "child")))
        declared = declared_by(forward)
        check_side_inputs(required_by(declared), side)
        mine = {name: side[name] for name in declared if name in side}
        # Neither the key of a child, whose label is an identifier, nor the key of the Wire itself, so that draws of
        # forward are independent.
        mine = fold_keys(mine, "forward()")

        def call_forward():  # an error raised in forward names the model, not Wire: see `errors.public_name`
            return forward(_Children(**{str(child.label): bind(child) for child in kids}), *inputs, **mine)

        try:
            outputs = call_forward()
        except AttributeError as error:
            swapped = error.name in own_names and not isinstance(error.obj, _Children)
            repair = f"write the children first, as in lambda f, x: f.{error.name}(x)"
            expected, got = "a function forward(f, *inputs)", f"one that calls {error.name} of {describe(error.obj)}"
            require(not swapped, expected, got, repair, error=TypeError)
            raise
        for leaf in jax.tree.leaves(outputs):
            got = f"the function {getattr(leaf, '__name__', leaf)}"
            require(not callable(leaf), "arrays from forward", got, "call it, as in f.name(x)", error=TypeError)
        return outputs

    def trace_first_calls(key, inputs, side):
        """The inputs of the first call of each child, and the outputs of ``forward``, as shapes."""
        first = {}
        made = {}  # the shapes of each child's params and of its state

        def call(child, inputs, side):
            name = child.label
            inputs, side = as_shapes((inputs, side))
            # Params are those of the first call; later calls share them, and must fit.
            if name not in first:
                first[name] = inputs, side
                made[name] = init_shapes(child, key, inputs, side)
            params, state = made[name]
            outputs = output_shapes(child, as_shapes(key), params, state, inputs, side)
            # Zeros stand for the outputs: under eval_shape they are traced, and no memory is used.
            return jax.tree.map(lambda y: jnp.zeros(y.shape, y.dtype), outputs)

        keys = dict.fromkeys(KEYS, jax.random.key(0))
        outputs = eval_shape(lambda inputs, side: run(call, inputs, {**keys, **side}), inputs, side)
        for child in kids:
            repair = f"call f.{child.label}(...) or leave that layer out"
            expected = f"forward to call every child, {child.label} too"
            require(child.label in first, expected, "no call of it", repair)
        return first, outputs

    def init(key, inputs, side):
        # Without `once_per_init` each enclosing Wire would trace a nested one twice, 2 ** depth times in all.
        inputs, side = as_shapes((inputs, side))
        # Keyed by the function: it is new for each Wire, and so never stands for another one.
        first, outputs = once_per_init(lambda: trace_first_calls(key, inputs, side), trace_first_calls, inputs, side)
        each = [init_child(child, key, *first[child.label]) for child in kids]
        return gathered(kids, [p for p, _ in each]), gathered(kids, [s for _, s in each]), lambda: outputs

    def apply(params, states, inputs, side):
        own = {child.label: [p, s] for child, p, s in with_params(kids, params, states)}

        def call(child, inputs, side):
            p, s = own[child.label]
            outputs, own[child.label][1] = apply_child(child, p, s, inputs, side)
            return outputs

        outputs = run(call, inputs, side)
        return outputs, gathered(kids, [s for _, s in own.values()])

    return make_combinator(kids, init, apply, own)
