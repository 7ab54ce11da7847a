"""Combinators, layers that contain layers: Serial, Parallel, Residual, Frozen, Repeat, Recurrent, Wire.

Each accepts children with and without state; `children.make_combinator` returns a ``Layer`` where no child
has state and a ``StatefulLayer`` otherwise. Params (and state) are a tuple for children given by position
and a dict for children given by name. A combinator of one layer has the params of that layer.
"""

import functools
import inspect
import operator
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, Concatenate, Literal, TypeAlias, overload

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxblocks import ad
from jaxblocks.backend.derivative_rules import products_are_visible
from jaxblocks.backend.platforms import platform
from jaxblocks.backend.varying import varying_like
from jaxblocks.checks.errors import describe, require
from jaxblocks.checks.expectations import Checkpoint, NonNegativeInt
from jaxblocks.checks.values import check_range
from jaxblocks.core.children import (
    Child,
    apply_child,
    as_inputs,
    as_shapes,
    child_key,
    child_of,
    children,
    eval_shape,
    init_child,
    make_combinator,
    named_outputs,
    once_per_init,
    output_shapes,
    split_side,
    types_of,
)
from jaxblocks.core.lifting import declared_by
from jaxblocks.core.pairs import Layer, LayerLike, Out, StatefulLayer, StatelessLike, builder
from jaxblocks.layers.scan_of_cells import CellParts, parts_of, scan_cell

__all__ = ["Frozen", "Parallel", "Recurrent", "Repeat", "Residual", "Serial", "Wire", "unstack_repeats"]


@overload
def Serial(*layers: StatelessLike, **named: StatelessLike) -> Layer: ...
@overload  # for type checkers, a layer that may have state has it
def Serial(*layers: LayerLike, **named: LayerLike) -> StatefulLayer: ...
@builder
def Serial(*layers: LayerLike, **named: LayerLike) -> Layer | StatefulLayer:
    r"""Layers in series: $f_n ∘ … ∘ f_1$; the first argument is applied first.

    A tuple that one layer returns is passed to the next as several inputs (a tuple of length one as a single
    input). ``Serial()`` is the identity, and ``Serial(a, Serial(b, c))`` computes the same function as
    ``Serial(a, b, c)``.

    Args:
        layers: pairs or functions of arrays, by position (params are a tuple), or
        named: by name (params are a dict).

    Raises:
        TypeError: for an argument that is not a layer, or for positional and named layers together.
        ValueError: for params of a net with other layers.

    >>> net = Serial(hidden=Dense(5), activation=jnp.tanh, out=Dense(1))
    >>> params = net.init(jax.random.key(0), jnp.zeros((8, 2)))
    >>> jax.tree.map(jnp.shape, params["hidden"])
    {'bias': (5,), 'kernel': (2, 5)}
    >>> jax.jit(net.apply)(params, jnp.zeros((8, 2))).shape
    (8, 1)
    >>> net["hidden"], len(net)
    (Dense(5), 3)
    """
    kids = children(layers, named)
    init, apply = _chain(kids)
    return make_combinator(kids, init, apply)


@overload
def Parallel(*layers: StatelessLike, **named: StatelessLike) -> Layer[tuple[Array, ...] | dict[str, Array]]: ...
@overload
def Parallel(*layers: LayerLike, **named: LayerLike) -> StatefulLayer[tuple[Array, ...] | dict[str, Array]]: ...
@builder
def Parallel(*layers: LayerLike, **named: LayerLike) -> Layer[Any] | StatefulLayer[Any]:
    r"""Several layers on the same inputs: $x ↦ (f_1(x), …, f_n(x))$.

    The outputs are a tuple for layers given by position, and a dict for layers given by
    name. In a ``Serial`` the tuple is passed to the next layer as several inputs.

    >>> net = Serial(Parallel(Dense(3), Dense(3)), lambda a, b: a * b)
    >>> params = net.init(jax.random.key(0), jnp.zeros((8, 2)))
    >>> jax.jit(net.apply)(params, jnp.zeros((8, 2))).shape
    (8, 3)
    """
    kids = children(layers, named)

    def init(key, inputs, side):
        made = [init_child(child, key, inputs, side) for child in kids]
        # Types alone are kept for `outputs`, so that it does not hold arrays, and stays valid after the trace.
        types = [types_of((key, p, s, inputs, side)) for p, s in made]

        # Called only by an enclosing combinator that needs the shapes; see `make_combinator`.
        def outputs():
            return _gather(kids, [output_shapes(child, *each) for child, each in zip(kids, types, strict=True)])

        return _gather(kids, [p for p, _ in made]), _gather(kids, [s for _, s in made]), outputs

    def apply(params, states, inputs, side):
        each = _with_params(kids, params, states)
        done = [apply_child(child, p, s, inputs, side) for child, p, s in each]
        return _gather(kids, [y for y, _ in done]), _gather(kids, [s for _, s in done])

    return make_combinator(kids, init, apply)


@overload
def Residual(*layers: StatelessLike, **named: StatelessLike) -> Layer: ...
@overload
def Residual(*layers: LayerLike, **named: LayerLike) -> StatefulLayer: ...
@builder
def Residual(*layers: LayerLike, **named: LayerLike) -> Layer | StatefulLayer:
    r"""A skip connection around layers in series: $y = x + f(x)$.

    Its Jacobian is $I + J_f$; if ``f`` is zero at initialization, the layer is the identity there.

    Raises:
        ValueError: where ``f`` changes the shape or dtype of ``x`` (at ``init``).

    >>> net = Residual(Dense(16), jnp.tanh, Dense(4))
    >>> params = net.init(jax.random.key(0), jnp.zeros(4))
    >>> jax.jit(net.apply)(params, jnp.zeros(4))
    Array([0., 0., 0., 0.], dtype=float32)
    """
    kids = children(layers, named)
    chain_init, chain_apply = _chain(kids)

    def check_same(inputs, outputs):
        # Params and states may also be inputs (a tree, a NamedTuple); only a single array can be added.
        if as_shapes(inputs) == as_shapes(outputs) and len(inputs) == 1 and hasattr(inputs[0], "dtype"):
            return
        got, repair = f"{_in_words(inputs)} in and {_in_words(outputs)} out", "use Wire for a sum of another form"
        arrays = all(hasattr(x, "dtype") for x in (*inputs, *outputs))
        require(arrays, "one array in and one array out", got, repair, error=TypeError)
        require(len(inputs) == len(outputs) == 1, "one array in and one array out", got, repair)
        require(False, "layers that keep shape and dtype", got, _repair(inputs, outputs))

    def init(key, inputs, side):
        params, states, outputs = chain_init(key, inputs, side)
        check_same(inputs, as_inputs(outputs()))
        return params, states, outputs

    def apply(params, states, inputs, side):
        y, states = chain_apply(params, states, inputs, side)
        check_same(inputs, as_inputs(y))
        return inputs[0] + y, states

    return make_combinator(kids, init, apply)


@overload
def Frozen(layer: Layer[Out] | Callable[..., Out]) -> Layer[Out]: ...
@overload
def Frozen(layer: StatefulLayer[Out]) -> StatefulLayer[Out]: ...
@builder
def Frozen(layer: LayerLike) -> Layer[Any] | StatefulLayer[Any]:
    r"""A layer whose params have no gradient and which always runs in evaluation mode.

    Batch norm inside uses its running statistics and keeps them, and dropout is the identity, whatever ``train`` is for
    the layers around it; without this, a training step would update the statistics of a backbone whose params are
    frozen. Params and state are those of the layer, so a trained layer can be frozen, and a frozen one trained again.
    Gradients with respect to the inputs are those of the layer.

    Gradients of the params are 0, and so are their updates by most optimizers. Weight decay changes params without a
    gradient too; exclude them: ``optax.adamw(1e-3, mask=lambda params: select(params, "**", "!backbone/**"))``.

    Args:
        layer: any layer, for instance ``Serial`` of a pretrained backbone.

    >>> net = Serial(backbone=Frozen(Serial(Dense(5), BatchNorm())), head=Dense(1))
    >>> params, state = net.init(jax.random.key(0), jnp.zeros((8, 2)))
    >>> jax.tree.map(jnp.shape, params["backbone"][0])
    {'bias': (5,), 'kernel': (2, 5)}
    >>> outputs = lambda params: Frozen(Dense(5)).apply(params, jnp.ones(2)).sum()
    >>> float(jax.grad(outputs)(params["backbone"][0])["kernel"].max())
    0.0
    """
    child = child_of(None, layer)
    # Side inputs are collected from what children declare: without train here, the net of a frozen layer lacks it too.
    without_train = lambda declared: {name: p for name, p in declared.items() if name != "train"}
    frozen = child._replace(reads=without_train(child.reads), init_reads=without_train(child.init_reads))

    def init(key, inputs, side):
        side = {**side, "train": False}
        params, state = init_child(child, key, inputs, side)
        types = types_of((key, params, state, inputs, side))
        return params, state, lambda: output_shapes(child, *types)

    def apply(params, state, inputs, side):
        return apply_child(child, jax.lax.stop_gradient(params), state, inputs, {**side, "train": False})

    return make_combinator((frozen,), init, apply)


@overload
def Repeat(
    layer: Layer[Out] | Callable[..., Out],
    n: NonNegativeInt,
    *,
    checkpoint: Checkpoint | None = "dots",
    unroll: NonNegativeInt | bool | None = None,
) -> Layer[Out]: ...
@overload
def Repeat(
    layer: StatefulLayer[Out],
    n: NonNegativeInt,
    *,
    checkpoint: Checkpoint | None = "dots",
    unroll: NonNegativeInt | bool | None = None,
) -> StatefulLayer[Out]: ...
@builder
def Repeat(
    layer: LayerLike,
    n: NonNegativeInt,
    *,
    checkpoint: Checkpoint | None = "dots",
    unroll: NonNegativeInt | bool | None = None,
) -> Layer[Any] | StatefulLayer[Any]:
    r"""One layer ``n`` times in series, each with its own params: $f_{θ_n} ∘ … ∘ f_{θ_1}$.

    Computes the same function as ``Serial`` of ``n`` copies (with the same params from the same key, for JAX's
    default generator), by one `jaxblocks.ad.scan` over params stacked along a new leading axis. Compile time does
    not grow with ``n``.

    Args:
        layer: maps its inputs to outputs of the same shapes and dtypes.
        n: the number of copies.
        checkpoint: the values stored for the backward pass; the others are recomputed. ``None`` stores everything,
            ``"dots"`` matrix products but no elementwise results (less memory, and on CPU less time
            too), ``"body"`` the inputs of each copy, ``"sqrt"`` the inputs of about $2√n$
            copies, an integer the inputs of that many copies (without forward mode); or a policy of
            ``jax.checkpoint_policies``; the names of outputs are those of layers, such as ``0.Dense``. See the table
            in `jaxblocks.ad.scan`.
        unroll: copies per iteration of the scan; ``True`` for a program without a loop, whose compile time grows with
            ``n``. ``None`` is ``True`` on CPU if the layer contains `Conv` or its variants, whose derivatives take
            about 20 times as long in a loop there, and otherwise ``False``.

    Params (and state) may also be those that `unstack_repeats` makes, ``n`` trees: the copies are then applied one
    after another without a loop.

    Raises:
        ValueError: where the layer changes the shape of its inputs, or params are not stacked
            ``n`` times.

    >>> net = Repeat(Residual(Dense(4), jnp.tanh), 3)
    >>> params = net.init(jax.random.key(0), jnp.zeros(4))
    >>> jax.tree.map(jnp.shape, params)
    ({'bias': (3, 4), 'kernel': (3, 4, 4)}, ())
    """
    child, convolves = child_of(None, layer), _convolves(layer)

    def init(key, inputs, side):
        # As shapes, so that nothing of the layer is computed: every copy has the same shapes, found from one.
        inputs, side = as_shapes(inputs), as_shapes(side)
        params, state = jax.eval_shape(lambda key: init_child(child, key, inputs, side), key)
        y = output_shapes(child, key, params, state, inputs, side)
        outputs = as_inputs(y)
        if as_shapes(outputs) != inputs:
            got = f"{_in_words(inputs)} in and {_in_words(outputs)} out"
            require(False, "a layer that keeps shape and dtype", got, _repair(inputs, outputs))
        # A loop compiles one copy, and the random bits of one need memory at a time.
        made = jax.lax.map(lambda i: init_child(child, child_key(key, i), inputs, side), jnp.arange(n))
        return *made, lambda: y

    def apply(params, states, inputs, side):
        if isinstance(params, _Copies):
            return apply_copies(params, states, inputs, side)
        for leaf in jax.tree.leaves((params, states)):
            expected = f"params (and state) stacked {n} times along their first axis"
            require(leaf.shape[:1] == (n,), expected, leaf, "pass those that its own init made: apply(params, x)")

        # With the position folded in, each copy draws other random numbers, as the layers of a Serial do.
        def step(inputs, own):
            position, params, state = own
            keyed = {**side, "key": child_key(side["key"], position)} if "key" in side else side
            outputs, state = apply_child(child, params, state, inputs, keyed)
            return as_inputs(outputs), state

        # Inside shard_map a scan requires equal types of the first and of later carries: inputs that are equal on all
        # devices become varying where the params vary.
        inputs = varying_like(inputs, params, states)
        unrolled = unroll if unroll is not None else convolves and platform() == "cpu"
        outputs, states = _scan(step, inputs, (jnp.arange(n), params, states), unroll=unrolled, checkpoint=checkpoint)
        return _as_outputs(outputs), states

    def apply_copies(params, states, inputs, side):
        listed = states if isinstance(states, _Copies) else (states,) * n  # the state () of a layer without state
        expected, got = f"params and state of {n} copies", f"those of {len(params)} and {len(listed)}"
        require(len(params) == len(listed) == n, expected, got, "make both by unstack_repeats")
        after = []
        for position, (own, state) in enumerate(zip(params, listed, strict=True)):
            keyed = {**side, "key": child_key(side["key"], position)} if "key" in side else side
            outputs, state = apply_child(child, own, state, inputs, keyed)
            inputs = as_inputs(outputs)
            after.append(state)
        return _as_outputs(inputs), _Copies(after) if isinstance(states, _Copies) else states

    return make_combinator((child,), init, apply)


def _convolves(layer) -> bool:
    """Whether a layer is, or contains, one of `jaxblocks.layers.conv`."""
    if not isinstance(layer, Layer | StatefulLayer) or layer.call is None:
        return False
    parts = (*layer.inner.values(), *layer.call.args, *layer.call.kwargs.values())
    return layer.call.function.__module__ == "jaxblocks.layers.conv" or any(map(_convolves, parts))


@jax.tree_util.register_pytree_node_class
class _Copies(tuple):
    """The params or states of the copies of a `Repeat`, not stacked."""

    def tree_flatten(self):
        return tuple(self), None

    @classmethod
    def tree_unflatten(cls, _, copies):
        return cls(copies)


def unstack_repeats(net: LayerLike, tree: Any) -> Any:
    """The params (or the state) of a net with those of each `Repeat` as a tuple of trees, one for each copy.

    ``net.apply`` takes both forms. This one costs a copy of the params and more time to compile, but a loop around
    ``apply`` then slices nothing: on CPU, decoding one token takes 0.14 to 0.64 of the time. A `Repeat` inside of a
    layer that does not show its children stays as it is.

    Args:
        net: a pair, or a function of arrays.
        tree: its params, or its state.

    >>> net = Serial(Dense(4), Repeat(Dense(4), 3))
    >>> params = net.init(jax.random.key(0), jnp.zeros(2))
    >>> listed = unstack_repeats(net, params)
    >>> jax.tree.map(jnp.shape, listed[1][2])
    {'bias': (4,), 'kernel': (4, 4)}
    >>> apply = jax.jit(net.apply)
    >>> bool(jnp.allclose(apply(listed, jnp.ones(2)), apply(params, jnp.ones(2))))
    True
    """
    call: Any = getattr(net, "call", None)
    inner = getattr(net, "inner", {})
    if getattr(call, "function", None) is Repeat and not isinstance(tree, _Copies):
        # Copies share their leading axis n, the only place where the params state it.
        counts = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(tree)}
        if len(counts) != 1 or () in counts:  # no params or no state; apply rejects those of another net
            return tree
        own = [jax.tree.map(operator.itemgetter(i), tree) for i in range(*counts.pop())]
        layer = call.args[0] if call.args else call.kwargs["layer"]
        return _Copies(unstack_repeats(layer, one) for one in own)
    if isinstance(tree, dict) and inner:
        return {name: unstack_repeats(inner[name], own) if name in inner else own for name, own in tree.items()}
    if type(tree) is tuple and inner:
        return tuple(unstack_repeats(inner[i], own) if i in inner else own for i, own in enumerate(tree))
    return tree


@overload
def Recurrent(
    cell: LayerLike,
    *,
    reverse: bool = False,
    unroll: int | bool = 1,
    stateful: Literal[False] = False,
    checkpoint: Checkpoint | None = None,
) -> Layer: ...
@overload
def Recurrent(
    cell: LayerLike,
    *,
    reverse: bool = False,
    unroll: int | bool = 1,
    stateful: Literal[True],
    checkpoint: Checkpoint | None = None,
) -> StatefulLayer: ...
@builder
def Recurrent(
    cell: LayerLike,
    *,
    reverse: bool = False,
    unroll: int | bool = 1,
    stateful: bool = False,
    checkpoint: Checkpoint | None = None,
) -> Layer | StatefulLayer:
    r"""A cell scanned over the time axis: $(y_t, h_t) = g(x_t, h_{t-1})$.

    The cell is a ``StatefulLayer`` whose state is its carry $h$; it processes one time
    step at a time. (The lecture prints $h_t = g(x_{t-1}, h_{t-1})$, where outputs
    ignore the current input; this is the corrected form.)

    Reads the side input ``mask``, boolean ``(..., time)``, True at valid entries: at padding (in any
    position) the carry is unchanged, the output is 0, and the input has no effect on values or
    gradients. For padding at the end, ``lengths``, integers ``(...)``, is the same as the mask
    ``jnp.arange(time) < lengths[..., None]``. Other side inputs are passed to the cell unchanged at every step.

    Args:
        cell: maps inputs ``(..., features)`` and a carry to outputs and the next carry.
        reverse: run from the last step to the first; outputs keep the order of the inputs.
        unroll: time steps per iteration of the scan; ``True`` for a program without a loop.
        stateful: ``False`` makes a ``Layer``: every call begins with the carry of the cell's
            ``init`` (which must not depend on its key). ``True`` makes a ``StatefulLayer``
            whose state is the carry, for sequences in pieces, for your own initial carry, and
            to obtain the last carry.
        checkpoint: the values stored for the backward pass of a long sequence, as for `Repeat`; ``None`` stores all,
            or for `LSTMCell` and `GRUCell` the carries and the products with the kernels, from which the gradient
            computes the rest. They are stored in forward mode too; with a policy, forward mode stores nothing.

    Shapes: inputs ``(..., time, features)`` to outputs ``(..., time, features')``; an input of two axes is one sequence
    ``(time, features)``, not a batch of single steps, which is ``x[:, None]``.

    Raises:
        ValueError: for inputs without a time axis, or a mask of another shape.
        TypeError: for a cell with state that is not a carry (running statistics), unless ``stateful``.

    >>> def RunningSum():
    ...     def init(key, x):
    ...         return (), jnp.zeros(x.shape, x.dtype)
    ...     def apply(params, total, x):
    ...         return total + x, total + x
    ...     return StatefulLayer(init, apply)
    >>> Recurrent(RunningSum()).apply((), jnp.ones((3, 1))).ravel()
    Array([1., 2., 3.], dtype=float32)
    >>> Recurrent(RunningSum()).apply(
    ...     (), jnp.ones((3, 1)), mask=jnp.array([True, False, True])
    ... ).ravel()
    Array([1., 0., 2.], dtype=float32)
    """
    child = child_of(None, cell)
    expected = "a cell, which takes one time step, such as LSTMCell(4)"
    repair = "pass the cell, or rename its side input (Recurrent uses the mask itself)"
    for name in ("mask", "lengths"):
        # Not passed on: a cell sees single steps, so that a mask over time does not fit it.
        require(name not in child.reads, expected, f"{child.kind}, which reads its own {name}", repair, error=TypeError)
    own = declared_by(_reads_mask)
    parts = parts_of(child.functions[1])

    # Under jit, so that the params of init are never computed, only the carry.
    @functools.partial(jax.jit, static_argnums=(0, 1))
    def initial_carry(inputs, static, arrays):
        # Any key: a new carry does not depend on it, since apply may be called without one.
        return init_child(child, jax.random.key(0), inputs, {**dict(static), **arrays})[1]  # the carry

    def one_step(inputs):
        call = "call it as apply(params, state, x)" if stateful else "call it as apply(params, x)"
        require(len(inputs) > 0, "inputs (..., time, features)", "none", call, error=TypeError)
        carry = "" if stateful else "; for a carry of your own write stateful=True and apply(params, carry, x)"
        for x in inputs:
            good = hasattr(x, "shape")
            require(good, "inputs that are arrays", x, f"pass arrays (..., time, features){carry}", error=TypeError)
            repair = "use x[:, None] for a sequence of numbers, x[None] for a single step"
            require(len(x.shape) >= 2, "inputs (..., time, features)", x, repair)
        lengths = {x.shape[-2] for x in inputs}
        require(len(lengths) == 1, "inputs with one length in time", _in_words(inputs), f"cut or pad them{carry}")
        return tuple(jax.ShapeDtypeStruct((*x.shape[:-2], x.shape[-1]), x.dtype) for x in inputs)

    def init(key, inputs, side):
        return *init_child(child, key, one_step(inputs), side), None

    def scan_of_steps(params, carry, mask, inputs, side):
        def step(carry, now):
            position, valid, inputs = now
            keyed = {**side, "key": child_key(side["key"], position)} if "key" in side else side
            return _held(valid, carry, *apply_child(child, params, carry, inputs, keyed))[::-1]

        # Positions on the axis of time, for the key of each step: reversed, step t has the key of t too.
        steps = jnp.arange(inputs[0].shape[0])
        return _scan(step, carry, (steps, mask, inputs), reverse=reverse, unroll=unroll, checkpoint=checkpoint)

    def scan_in_parts(parts, params, carry, mask, inputs, side):
        def step(params, carry, now):
            valid, x = now
            return _held(valid, carry, *apply_child(child, params, carry, (x,), side))[::-1]

        def update(params, z, carry, valid):
            return _held(valid, carry, *parts.update(params, z, carry))

        return scan_cell(step, CellParts(parts.products, update), reverse, unroll, params, carry, mask, *inputs)

    def apply(params, carry, inputs, side):
        one_step(inputs)
        mask = _mask_of(side.get("mask"), side.get("lengths"), inputs[0].shape[:-1])
        side = {name: value for name, value in side.items() if name not in ("mask", "lengths")}
        time_first = tuple(jnp.moveaxis(x, -2, 0) for x in inputs)  # (time, ..., features)
        if mask is not None:
            mask = jnp.moveaxis(mask, -1, 0)  # (time, ...)
            time_first = tuple(_where(mask, x, jnp.zeros_like(x)) for x in time_first)  # so that NaN has no effect

        carry = varying_like(carry, params, time_first)
        in_parts = parts and checkpoint is None and len(inputs) == 1 and not products_are_visible()
        run = functools.partial(scan_in_parts, parts) if in_parts else scan_of_steps
        carry, outputs = run(params, carry, mask, time_first, side)
        return jax.tree.map(lambda y: jnp.moveaxis(y, 0, -2), outputs), carry

    def fresh_init(key, inputs, side):
        params, carry, _ = init(key, inputs, side)
        batch = inputs[0].shape[:-2]
        # A new carry at each call drops what the cell has learned in its state, such as running statistics; these are
        # recognized by having no axis for the examples, in a cell that reads train.
        each = all(leaf.shape[: len(batch)] == batch for leaf in jax.tree.leaves(carry))
        expected = "a cell whose state is one carry per example"
        got = "a cell that reads train and has other state, which looks like running statistics"
        repair = "move that layer out of the cell, or pass stateful=True and keep the state"
        require(each or "train" not in child.reads, expected, got, repair, error=TypeError)
        return params, (), None

    def fresh_apply(params, state, inputs, side):
        # Only what init reads: other side inputs, if static, would compile `initial_carry` again for each value.
        arrays, static = split_side({name: value for name, value in side.items() if name in child.init_reads})
        carry = initial_carry(one_step(inputs), tuple(static.items()), arrays)
        return apply(params, _placed_like(carry, inputs[0]), inputs, side)[0], state

    if stateful:
        return make_combinator((child,), init, apply, own)
    # Without state for those around it: the carry is made anew in each call.
    return make_combinator((child._replace(has_state=False),), fresh_init, fresh_apply, own)


def _most_inputs(forward) -> int | None:
    """The largest number of inputs of ``forward(f, *inputs)``; ``None`` for any number."""
    kinds = [p.kind for p in inspect.signature(forward).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return None
    by_position = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    return sum(kind in by_position for kind in kinds) - 1


def _reads_mask(*, mask=None, lengths=None):
    """The side inputs that Recurrent reads itself."""


def _held(valid, carry, outputs, after):
    """Outputs and next carry where valid, else 0 and the old carry, so that padding does not change the last carry."""
    if valid is None:
        return outputs, after
    after = jax.tree.map(lambda new, old: _where(valid, new, old), after, carry)
    return jax.tree.map(lambda y: _where(valid, y, jnp.zeros_like(y)), outputs), after


def _where(valid, x, otherwise):
    """``x`` at valid entries, else ``otherwise``; ``valid`` has the leading axes of ``x``."""
    expected = f"outputs and carries with the leading axes of the mask at each step, {describe(valid)}"
    require(x.shape[: valid.ndim] == valid.shape, expected, x, "make the carry one per example")
    return jnp.where(jnp.broadcast_to(jnp.expand_dims(valid, range(valid.ndim, x.ndim)), x.shape), x, otherwise)


def _mask_of(mask, lengths, shape):
    """The boolean mask with one entry for each position, or ``None``, from what the user passes."""
    if lengths is not None:
        lengths = jnp.asarray(lengths)
        require(mask is None, "mask or lengths", "both", "leave lengths out, or combine them in the mask")
        expected = f"integer lengths of shape {shape[:-1]}, one for each sequence"
        require(jnp.issubdtype(lengths.dtype, jnp.integer) and lengths.shape == shape[:-1], expected, lengths)
        check_range("lengths", lengths, 0, shape[-1], "count the valid entries after cutting or padding the sequences")
        lengths = lengths.astype(int)  # positions beyond 255 do not fit in uint8
        return jnp.broadcast_to(jnp.arange(shape[-1]), shape) < lengths[..., None]
    if mask is not None:
        repair = "write mask > 0" if hasattr(mask, "dtype") else "write jnp.asarray(mask, bool)"
        if getattr(mask, "shape", ()) == shape[:-1]:
            repair = "pass lengths=..., or jnp.arange(time) < lengths[..., None]"
        expected = "a boolean mask, True at valid entries"
        require(getattr(mask, "dtype", "") == "bool", expected, mask, repair, error=TypeError)
        require(mask.shape == shape, f"a mask of shape {shape}", mask, "give it one entry for each position")
    return mask


def _placed_like(carry, x):
    """On a mesh with explicit axes, shard the carry of each example like the example."""
    if jax.sharding.get_abstract_mesh().empty:
        return carry
    # A sum has the sharding of its operands; a carry of zeros made from shapes would be replicated.
    zero = jnp.zeros_like(x[..., 0, 0])  # (...), sharded like the batch

    def placed(leaf):
        if leaf.shape[: zero.ndim] != zero.shape:
            return leaf
        return leaf + jnp.expand_dims(zero, tuple(range(zero.ndim, leaf.ndim))).astype(leaf.dtype)

    return jax.tree.map(placed, carry)


def _scan(*args, checkpoint, **options):
    """``ad.scan``; a policy of ``jax.checkpoint`` may read the names of outputs."""
    with named_outputs() if callable(checkpoint) else nullcontext():
        return ad.scan(*args, checkpoint=checkpoint, **options)


class _Children:
    """The children that ``forward`` of `Wire` calls; type checkers take the outputs of each for one array."""

    def __init__(self, **children: Callable):
        vars(self).update(children)

    def __getattr__(self, name: str) -> Callable[..., Array]:
        known = ", ".join(vars(self))
        raise AttributeError(f"Wire expected the name of a child, {known}, got {name!r}; call one of these.")


_Forward: TypeAlias = Callable[Concatenate[_Children, ...], Out]


@overload
def Wire(forward: _Forward[Out], /, **layers: StatelessLike) -> Layer[Out]: ...
@overload
def Wire(forward: _Forward[Out], /, **layers: LayerLike) -> StatefulLayer[Out]: ...
@builder
def Wire(forward: Callable, /, **layers: LayerLike) -> Layer[Any] | StatefulLayer[Any]:
    r"""A layer from a plain function that calls its children: any graph, shared weights, skip connections.

    Args:
        forward: ``forward(f, *inputs)`` calls the children as ``f.name(x)``, also inside
            ``jax.checkpoint``, ``vmap``, ``lax.map`` and similar transformations. A child
            called twice uses the same params twice; its state is passed from call to call,
            and each call has its own key. Side inputs are passed automatically to the
            children that declare them; one that ``forward`` passes explicitly takes
            precedence. Keyword-only parameters of ``forward`` are side inputs of ``forward``.
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
    # forward may pass a side input that a child requires, so callers need not pass it.
    required = {name: p for child in kids for name, p in child.reads.items() if p.default is p.empty}
    own = {**{name: p.replace(default=None) for name, p in required.items()}, **declared_by(forward)}
    most = _most_inputs(forward)

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
                passed = dict(side)
                # The first call has the key of the child itself, so that a child called once draws as it does in
                # Serial.
                if "key" in side and calls[child.label]:
                    passed["key"] = child_key(side["key"], f"call {calls[child.label]}")
                calls[child.label] += 1
                return call(child, inputs, {**passed, **given})

            return f

        if most is not None and len(inputs) > most:
            expected, repair = f"at most {most} input{'s' * (most != 1)}", "pass a mask and other side inputs by name"
            require(False, expected, f"{len(inputs)} of them", repair, error=TypeError)
        mine = {name: side[name] for name in declared_by(forward) if name in side}
        if "key" in mine:
            # Neither the key of a child, whose label is an identifier, nor the key of the Wire itself, so that draws of
            # forward are independent.
            mine["key"] = child_key(mine["key"], "forward()")

        def call_forward():  # an error raised in forward names the model, not Wire: see `errors.public_name`
            return forward(_Children(**{str(child.label): bind(child) for child in kids}), *inputs, **mine)

        return call_forward()

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
                made[name] = eval_shape(functools.partial(init_child, child), as_shapes(key), inputs, side)
            params, state = made[name]
            outputs = output_shapes(child, as_shapes(key), params, state, inputs, side)
            # Zeros stand for the outputs: under eval_shape they are traced, and no memory is used.
            return jax.tree.map(lambda y: jnp.zeros(y.shape, y.dtype), outputs)

        outputs = eval_shape(lambda inputs, side: run(call, inputs, {"key": jax.random.key(0), **side}), inputs, side)
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
        return _gather(kids, [p for p, _ in each]), _gather(kids, [s for _, s in each]), lambda: outputs

    def apply(params, states, inputs, side):
        own = {child.label: [p, s] for child, p, s in _with_params(kids, params, states)}

        def call(child, inputs, side):
            p, s = own[child.label]
            outputs, own[child.label][1] = apply_child(child, p, s, inputs, side)
            return outputs

        outputs = run(call, inputs, side)
        return outputs, _gather(kids, [s for _, s in own.values()])

    return make_combinator(kids, init, apply, own)


# ---- shared functions ----------------------------------------------------------------------


def _chain(kids: tuple[Child, ...]):
    """The two functions of layers in series, for `make_combinator`."""

    def init(key, inputs, side):
        params, states, outputs = [], [], functools.partial(_as_outputs, types_of(inputs))
        for child in kids:
            # Shapes of the inputs of a child come from the one before; those of the last child only if somebody asks.
            inputs = as_inputs(outputs()) if params else inputs
            p, s = init_child(child, key, inputs, side)
            params.append(p)
            states.append(s)
            outputs = functools.partial(output_shapes, child, *types_of((key, p, s, inputs, side)))
        # Like the result of apply: one output is not a tuple of one.
        return _gather(kids, params), _gather(kids, states), lambda: _as_outputs(as_inputs(outputs()))

    def apply(params, states, inputs, side):
        after = []
        for child, p, s in _with_params(kids, params, states):
            outputs, s = apply_child(child, p, s, inputs, side)
            inputs = as_inputs(outputs)
            after.append(s)
        return _as_outputs(inputs), _gather(kids, after)

    return init, apply


def _as_outputs(inputs: tuple):
    return inputs[0] if len(inputs) == 1 else inputs


def _gather(kids, values):
    """A dict for children with names, a tuple for children by position."""
    if kids and isinstance(kids[0].label, str):
        return {child.label: value for child, value in zip(kids, values, strict=True)}
    return tuple(values)


def _with_params(kids, params, states):
    """Tuples of each child, its params and its state."""
    call = "apply(params, state, x)" if any(child.has_state for child in kids) else "apply(params, x)"
    return zip(kids, _spread(kids, params, "params", call), _spread(kids, states, "state", call), strict=True)


def _spread(kids, tree, what, call) -> tuple:
    """The inverse of ``_gather``: one value per child, or an error that describes the tree."""
    names = [child.label for child in kids if isinstance(child.label, str)]
    if names and isinstance(tree, Mapping) and set(tree) == set(names):
        return tuple(tree[name] for name in names)
    # A list too, since files of other programs give lists for tuples.
    if not names and isinstance(tree, (tuple, list)) and len(tree) == len(kids):
        return tuple(tree)
    expected = f"a dict of {', '.join(names)}" if names else f"a tuple of {len(kids)}"
    if isinstance(tree, Mapping):
        got = f"a dict of {', '.join(map(str, tree)) or 'nothing'}"
    else:
        got = f"a {type(tree).__name__} of {len(tree)}" if isinstance(tree, (tuple, list)) else describe(tree)
    repair = f"pass those that its own init made: {call}"
    require(False, f"{what} to be {expected}, one for each layer", got, repair)
    raise AssertionError


def _repair(before, after) -> str:
    """The last part of the error for a layer that changes shapes or dtypes."""
    # The first difference is the one to correct; dtypes before shapes.
    for x, y in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=False):
        if x.dtype != y.dtype:
            return f"compute in the dtype of the input: y.astype({x.dtype})"
        if x.shape != y.shape:
            return f"give the last layer {x.shape[-1] if x.shape else 1} features, and keep the other axes"
    return "return one array for each input"


def _in_words(arrays: tuple) -> str:
    return ", ".join(map(describe, arrays)) or "none"
