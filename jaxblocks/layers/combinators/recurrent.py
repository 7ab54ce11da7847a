"""`Recurrent`: a cell over the time axis, with masks and lengths."""

import functools
import math
from typing import Literal, TypedDict, Unpack, overload

import jax
import jax.numpy as jnp

from jaxblocks.ad.checkpointing.scans import Checkpoint
from jaxblocks.backend.derivative_rules import products_are_visible
from jaxblocks.backend.symbolic_sizes import check_integer
from jaxblocks.backend.varying import varying_like
from jaxblocks.checks.errors import describe, require
from jaxblocks.checks.expectations import NonNegativeInt
from jaxblocks.checks.values import check_range
from jaxblocks.core.children import apply_child, child_of, init_child, make_combinator
from jaxblocks.core.keys import child_key, fold_keys
from jaxblocks.core.lifting import declared_by, set_spatial_axes, spatial_axes_of
from jaxblocks.core.pairs import Layer, LayerLike, StatefulLayer, builder
from jaxblocks.core.shapes import split_side
from jaxblocks.layers.combinators.shared import in_words, scan_with
from jaxblocks.layers.scan_of_cells import CellParts, parts_of, scan_cell

__all__ = ["Recurrent"]


class _Options(TypedDict, total=False):
    reverse: bool
    spatial: int | None
    unroll: int | bool
    checkpoint: Checkpoint | None


@overload
def Recurrent(cell: LayerLike, *, stateful: Literal[False] = False, **options: Unpack[_Options]) -> Layer: ...
@overload
def Recurrent(cell: LayerLike, *, stateful: Literal[True], **options: Unpack[_Options]) -> StatefulLayer: ...
@builder
def Recurrent(
    cell: LayerLike,
    *,
    reverse: bool = False,
    spatial: NonNegativeInt | None = None,
    unroll: NonNegativeInt | bool = 1,
    stateful: bool = False,
    checkpoint: Checkpoint | None = None,
) -> Layer | StatefulLayer:
    r"""A cell scanned over the time axis: $(y_t, h_t) = g(x_t, h_{t-1})$.

    The cell is a ``StatefulLayer`` whose state is its carry $h$; it processes one time step at a time. (The lecture
    prints $h_t = g(x_{t-1}, h_{t-1})$, where outputs ignore the current input; this is the corrected form.)

    Reads the side input ``mask``, boolean ``(..., time)``, True at valid entries: at padding (in any position) the
    carry is unchanged, the output is 0, and the input has no effect on values or gradients; without a valid entry the
    outputs are 0 and the carry is the initial one. For padding at the end, ``lengths``, integers ``(...)``, is the same
    as the mask ``jnp.arange(time) < lengths[..., None]``. Of ``key`` a cell obtains another one at every step, and as
    ``sequence_key``, if it declares that, one for all steps. Other side inputs are passed to the cell unchanged.

    Several cells are one cell where a combinator holds them: ``Recurrent(Serial(LSTMCell(8), Residual(LSTMCell(8))))``
    runs both in one scan, and computes what ``Serial(LSTM(8), Residual(LSTM(8)))`` does in two; each has its own carry.

    Args:
        cell: maps inputs ``(..., features)`` and a carry to outputs and the next carry.
        reverse: run from the last step to the first; outputs keep the order of the inputs.
        spatial: the number of axes between time and features, 2 for images; by default those of the kernel of
            `ConvLSTMCell` or `ConvGRUCell`, alone or in a combinator, and 0 for other cells.
        unroll: time steps per iteration of the scan; ``True`` for a program without a loop.
        stateful: ``False`` makes a ``Layer``: every call begins with the carry of the cell's ``init`` (which must not
            depend on its key). ``True`` makes a ``StatefulLayer`` whose state is the carry, for sequences in pieces,
            for your own initial carry, and to obtain the last carry.
        checkpoint: the values stored for the backward pass of a long sequence, as for `Repeat`; ``None`` stores all,
            or for `LSTMCell` and `GRUCell` the carries and the products with the kernels, from which the gradient
            computes the rest. They are stored in forward mode too; with a policy, forward mode stores nothing.

    Shapes: inputs ``(..., time, *spatial, features)`` to outputs ``(..., time, *spatial', features')``; an input of two
    axes is one sequence ``(time, features)``, not a batch of single steps, which is ``x[:, None]``.

    Raises:
        ValueError: for inputs without a time axis, or a mask of another shape.
        TypeError: for a cell with state that is not a carry (running statistics), unless ``stateful``; for one that
            reads ``mask`` or ``lengths`` itself, such as ``BatchNorm``; for one that returns another kind of carry.

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
    own_axes = spatial_axes_of(child.functions[1])
    expected, repair = f"spatial={own_axes}, the axes of the kernel of {child.kind}", "leave it out"
    require(spatial is None or own_axes in (0, spatial), expected, f"spatial={spatial}", repair)
    spatial = own_axes if spatial is None else spatial
    axis = -2 - spatial  # that of time
    expected = "a cell, which takes one time step, such as LSTMCell(4)"
    repair = "pass the cell, or rename its side input (Recurrent uses the mask itself)"
    for name in ("mask", "lengths"):
        # Not passed on: a cell sees single steps, so that a mask over time does not fit it.
        require(name not in child.reads, expected, f"{child.kind}, which reads its own {name}", repair, error=TypeError)
    own = declared_by(lambda *, mask=None, lengths=None: None)
    if "sequence_key" in child.reads and "key" not in child.reads:
        own |= declared_by(lambda *, key=None: None)  # from which the sequence_key is made
    reads = {name: parameter for name, parameter in child.reads.items() if name != "sequence_key"}
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
        shape = f"(..., time, {'*spatial, ' * bool(spatial)}features)"
        for x in inputs:
            good = hasattr(x, "shape")
            require(good, "inputs that are arrays", x, f"pass arrays {shape}{carry}", error=TypeError)
            repair = "use x[:, None] for a sequence of numbers, x[None] for a single step"
            require(len(x.shape) >= 2 + spatial, f"inputs {shape}", x, repair)
        lengths = {x.shape[axis] for x in inputs}
        require(len(lengths) == 1, "inputs with one length in time", in_words(inputs), f"cut or pad them{carry}")
        steps = ((*x.shape[:axis], *x.shape[axis + 1 :]) for x in inputs)
        return tuple(jax.ShapeDtypeStruct(shape, x.dtype) for shape, x in zip(steps, inputs, strict=True))

    def init(key, inputs, side):
        return *init_child(child, key, one_step(inputs), side), None

    def scan_of_steps(params, carry, mask, inputs, side):
        def step(carry, now):
            position, valid, inputs = now
            keyed = fold_keys(side, position)
            if "key" in side:  # by a label of its own: that of a child in a Serial is a number, as the position is
                keyed["sequence_key"] = child_key(side["key"], "sequence_key")
            outputs, after = apply_child(child, params, carry, inputs, keyed)
            _check_carry(child.kind, carry, after)
            return _held(valid, carry, outputs, after)[::-1]

        # Positions on the axis of time, for the key of each step: reversed, step t has the key of t too.
        steps = jnp.arange(inputs[0].shape[0])
        return scan_with(step, carry, (steps, mask, inputs), reverse=reverse, unroll=unroll, checkpoint=checkpoint)

    def scan_in_parts(parts, params, carry, mask, inputs, side):
        def step(params, carry, now):
            valid, x = now
            return _held(valid, carry, *apply_child(child, params, carry, (x,), side))[::-1]

        def update(params, z, carry, valid):
            return _held(valid, carry, *parts.update(params, z, carry))

        return scan_cell(step, CellParts(parts.products, update), reverse, unroll, params, carry, mask, *inputs)

    def apply(params, carry, inputs, side):
        one_step(inputs)
        if unroll is True:
            check_integer(inputs[0].shape[axis], inputs[0], "unroll=True")
        mask = _mask_of(side.get("mask"), side.get("lengths"), inputs[0].shape[: axis + 1])
        side = {name: value for name, value in side.items() if name not in ("mask", "lengths")}
        time_first = tuple(jnp.moveaxis(x, axis, 0) for x in inputs)  # (time, ..., features)
        if mask is not None:
            mask = jnp.moveaxis(mask, -1, 0)  # (time, ...)
            time_first = tuple(_where(mask, x, jnp.zeros_like(x)) for x in time_first)  # so that NaN has no effect

        carry = varying_like(carry, params, time_first)
        in_parts = parts and parts.scanned and checkpoint is None and len(inputs) == 1 and not products_are_visible()
        run = functools.partial(scan_in_parts, parts) if in_parts else scan_of_steps
        carry, outputs = run(params, carry, mask, time_first, side)
        before = len(inputs[0].shape) + axis  # axes of the batch
        return jax.tree.map(lambda y: jnp.moveaxis(y, 0, min(before, y.ndim - 1)), outputs), carry

    def fresh_init(key, inputs, side):
        params, carry, _ = init(key, inputs, side)
        batch = inputs[0].shape[:axis]
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
        return apply(params, _placed_like(carry, inputs[0], axis), inputs, side)[0], state

    if stateful:
        made = make_combinator((child._replace(reads=reads),), init, apply, own)
    else:  # without state for those around it: the carry is made anew in each call
        made = make_combinator((child._replace(reads=reads, has_state=False),), fresh_init, fresh_apply, own)
    set_spatial_axes(made.apply, 0)  # it is no cell
    return made


def _check_carry(kind, before, after) -> None:
    """The carries of a loop have one structure, and the shapes and dtypes of the first one; weak dtypes may change."""
    (old, structure), (new, other) = map(jax.tree.flatten, (before, after))
    like = f"the carry that {kind} returns to be like that of init"
    repair = "end apply with return outputs, carry, where carry has the dtype and shape of the one before"
    require(other == structure, f"{like}, {structure}", str(other), repair, error=TypeError)
    for a, b in zip(old, new, strict=True):
        dtype = b.dtype if hasattr(b, "dtype") else jnp.result_type(b)
        same = jnp.shape(a) == jnp.shape(b) and (a.dtype == dtype or a.weak_type)
        require(same, f"{like}, {describe(a)}", b, repair, error=TypeError)


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
        repair = f"write jnp.full({shape[:-1]}, {shape[-1]}) for sequences without padding"
        if lengths.size == math.prod(shape[:-1]):
            repair = f"write lengths.astype(jnp.int32){f'.reshape{shape[:-1]}' * (lengths.shape != shape[:-1])}"
        require(jnp.issubdtype(lengths.dtype, jnp.integer) and lengths.shape == shape[:-1], expected, lengths, repair)
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


def _placed_like(carry, x, axis):
    """On a mesh with explicit axes, shard the carry of each example like the example."""
    if jax.sharding.get_abstract_mesh().empty:
        return carry
    # A sum has the sharding of its operands; a carry of zeros made from shapes would be replicated.
    zero = jnp.zeros_like(x[(..., *(0,) * -axis)])  # (...), sharded like the batch

    def placed(leaf):
        if leaf.shape[: zero.ndim] != zero.shape:
            return leaf
        return leaf + jnp.expand_dims(zero, tuple(range(zero.ndim, leaf.ndim))).astype(leaf.dtype)

    return jax.tree.map(placed, carry)
