"""What several combinators do with their children: chains, params and states of each child, words of errors."""

import functools
from collections.abc import Mapping
from contextlib import nullcontext

import jax

from jaxblocks import ad
from jaxblocks.checks.errors import describe, require
from jaxblocks.checks.layer_inputs import repair_of_params
from jaxblocks.core.children import Child, apply_child, init_child, named_outputs, output_shapes
from jaxblocks.core.shapes import as_inputs, types_of

__all__ = ["as_outputs", "chain_of", "gathered", "in_words", "repair_of_shapes", "scan_with", "with_params"]


def scan_with(*args, checkpoint, **options):
    """``ad.scan``; a policy of ``jax.checkpoint`` may read the names of outputs."""
    with named_outputs() if callable(checkpoint) else nullcontext():
        return ad.scan(*args, checkpoint=checkpoint, **options)


def chain_of(kids: tuple[Child, ...]):
    """The two functions of layers in series, for `make_combinator`."""

    def init(key, inputs, side):
        params, states, outputs = [], [], functools.partial(as_outputs, types_of(inputs))
        for child in kids:
            # Shapes of the inputs of a child come from the one before; those of the last child only if somebody asks.
            inputs = as_inputs(outputs()) if params else inputs
            p, s = init_child(child, key, inputs, side)
            params.append(p)
            states.append(s)
            outputs = functools.partial(output_shapes, child, *types_of((key, p, s, inputs, side)))
        # Like the result of apply: one output is not a tuple of one.
        return gathered(kids, params), gathered(kids, states), lambda: as_outputs(as_inputs(outputs()))

    def apply(params, states, inputs, side):
        after = []
        for child, p, s in with_params(kids, params, states):
            outputs, s = apply_child(child, p, s, inputs, side)
            inputs = as_inputs(outputs)
            after.append(s)
        return as_outputs(inputs), gathered(kids, after)

    return init, apply


def as_outputs(inputs: tuple):
    """One array for a tuple of one, as layers return it."""
    return inputs[0] if len(inputs) == 1 else inputs


def gathered(kids, values):
    """A dict for children with names, a tuple for children by position."""
    if kids and isinstance(kids[0].label, str):
        return {child.label: value for child, value in zip(kids, values, strict=True)}
    return tuple(values)


def with_params(kids, params, states):
    """Tuples of each child, its params and its state."""
    call = "apply(params, state, x)" if any(child.has_state for child in kids) else "apply(params, x)"
    return zip(kids, _spread(kids, params, "params", call), _spread(kids, states, "state", call), strict=True)


def _spread(kids, tree, what, call) -> tuple:
    """The inverse of ``gathered``: one value per child, or an error that describes the tree."""
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
    repair = repair_of_params(tree, call)
    if what == "params" and "state" in call and isinstance(tree, tuple) and len(tree) == 2:  # what init returns
        repair = f"unpack what init returns, params, state = init(key, x), and write {call}"
    require(False, f"{what} to be {expected}, one for each layer", got, repair)
    raise AssertionError


def repair_of_shapes(before, after) -> str:
    """The last part of the error for a layer that changes shapes or dtypes."""
    # The first difference is the one to correct; dtypes before shapes.
    for x, y in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=False):
        if x.dtype.kind != "c" and y.dtype.kind == "c":
            return f"convert the input with x.astype({y.dtype})"
        if x.dtype != y.dtype:
            return f"compute in the dtype of the input: y.astype({x.dtype})"
        if x.shape != y.shape:
            return f"give the last layer {x.shape[-1] if x.shape else 1} features, and keep the other axes"
    return "return one array for each input"


def in_words(arrays: tuple) -> str:
    """Dtypes and shapes of arrays in an error."""
    return ", ".join(map(describe, arrays)) or "none"
