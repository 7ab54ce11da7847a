"""Repairs for arguments that are no arrays, or arrays of another dtype or shape: what the likeliest mistake suggests.

`jaxblocks.checks.array_annotations` finds what is wrong, and asks here what to write in its place. In each function the
first case that applies is the repair, and the last one is the general repair.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxblocks.checks.errors import public_name
from jaxblocks.checks.foreign_arrays import as_numpy
from jaxblocks.checks.layer_inputs import is_shape

__all__ = ["of_dtype", "of_leading_axes", "of_rank", "of_size", "of_value"]

_CONFUSION = "write precision_recall_f1(confusion_matrix(predictions, targets, classes))"


def of_value(name: str, x: Any) -> str:
    """In the place of a value that is no array.

    >>> of_value("x", [1.0, 2.0])
    'convert it with jnp.asarray(x)'
    """
    leaves = jax.tree.leaves(x)
    if leaves and all(isinstance(one, str) for one in leaves):
        return "pass numbers, for a text those of tokenizer.encode(text)"
    if any(getattr(one, "shape", ()) for one in leaves):  # numbers of NumPy have the shape ()
        return _of_arrays(name, x, leaves)
    if is_shape(x, tuple):
        return f"pass an array, jnp.zeros({x}) for example if this is its shape, or else jnp.asarray({name})"
    if not leaves:  # None, or an empty container
        of_losses = "; where outputs are losses, train with lambda losses, y: losses"
        return "pass an array" + of_losses * (name == "targets")
    return f"convert it with jnp.asarray({name})"


def _of_arrays(name, x, leaves) -> str:
    """In the place of a tree of arrays."""
    if "'kernel'" in str(jax.tree.structure(x)):
        return "pass an array of data in the place of params"
    if type(x).__name__ == "Graph":
        return "for the features of its nodes, wrap a layer as in jaxblocks.layers.GraphMapFeatures(node=relu)"
    if type(x) is tuple and [hasattr(one, "shape") for one in x] == [True, False]:  # what a net with state returns
        return f"write {name}, state = net.apply(...) for the outputs of a net with state"
    if type(x) in (list, tuple) and len({getattr(one, "shape", None) for one in leaves}) == 1:
        foreign = as_numpy("a", leaves[0])
        joined = f"pass one array, or join them first, for example with jnp.stack({name})"
        return f"write np.stack([{foreign} for a in {name}])" if foreign else joined
    if isinstance(x, dict):
        return f"pass one array, such as {name}[{next(iter(x))!r}], or join them first"
    return "pass one array, or join them first"


def of_dtype(name: str, x: Any, axes: Sequence[str], words: str, general: str) -> str:
    """In the place of an array of another kind of numbers than ``words``, such as "an integer array".

    >>> of_dtype("targets", jnp.ones((2, 3)), ["*batch"], "an integer array", "convert it")
    'convert it, or with targets.argmax(-1) where it has one number per class'
    """
    integers = jnp.issubdtype(x.dtype, jnp.integer)
    if words == "a key":
        of_data = "pass jax.random.key(0), or jax.random.wrap_key_data(key) for raw key data"
        return of_data if x.dtype == jnp.uint32 else general
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return f"pass its real part, {name}.real, or its absolute value, jnp.abs({name})"
    one_axis = len(axes) == 1 and axes[0][0] not in "*."  # as of the mask of rows, which has no time
    if name == "mask" and integers and x.ndim == 1 and not one_axis:
        return f"{general}, jnp.arange(time) < mask[..., None] for lengths"
    if name in ("targets", "predictions", "labels") and words == "an integer array":
        return f"{general}, or with {name}.argmax(-1) where it has one number per class"
    if name == "targets" and public_name() == "hinge_loss" and integers:
        return f"{general} for -1 and 1; write 2.0 * targets - 1 for 0 and 1, softmax_cross_entropy for more classes"
    if name in ("targets", "p", "q") and axes[-1:] == ["classes"] and integers:
        return f"for labels write jaxblocks.one_hot({name}, classes), else {general}"
    if name == "x" and x.ndim == 1 and integers and public_name().endswith("Cell"):
        return f"for tokens, put jaxblocks.Embedding(...) in front, else {general}"
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) and "floating" in words:
        return f"draw {name} from it, as in jax.random.normal(key, shape)"
    return general


def of_rank(name: str, x: Any, axes: tuple[str, ...], missing: int) -> str:
    """In the place of an array with too few axes, or with too many, where ``missing`` is negative.

    >>> of_rank("x", jnp.ones(5), ("rows", "features"), 1)
    'add the missing axis, as in x[None]'
    """
    if name == "confusion":
        return _CONFUSION
    if missing < 0:
        return "map over the leading axes with jax.vmap" if x.shape else "pass one value"
    if "heads" in axes or "kv_heads" in axes:
        return f"write {name}[..., None, :] for one head"
    return f"add the missing ax{'i' if missing == 1 else 'e'}s, as in {name}[{', '.join(['None'] * missing)}]"


def of_size(other: str, place_of_other: int, name: str, place: int) -> str:
    """In the place of two arrays of which an axis each should have one size; ``other`` is the argument before.

    >>> of_size("x", -1, "kernel", 0)
    'give axis -1 of x and axis 0 of kernel one size'
    """
    if name == "confusion":
        return _CONFUSION
    # In a layer the other argument is a param, whose shape the user did not choose.
    if public_name()[:1].isupper() and other == "x":
        return f"pass {other} of that size, or params made by init for this {other}"
    return f"give axis {place_of_other} of {other} and axis {place} of {name} one size"


def of_leading_axes(name: str, x: Any, other: str, y: Any) -> str:
    """In the place of two arrays whose leading axes differ.

    >>> of_leading_axes("x", jnp.ones(3), "y", jnp.ones((2, 3)))
    'write x=jnp.broadcast_to(x, (2, 3))'
    """
    if name == "predictions" and x.shape == y.shape and jnp.issubdtype(x.dtype, jnp.integer):
        return "pass scores (*batch, classes); of predicted classes, take (predictions == targets).mean()"
    if (name, other) == ("logits", "targets") and x.shape[:-1] == y.shape and x.shape[-1] > 1:
        return "for classes write softmax_cross_entropy(logits, targets.astype(int)), else make one logit per example"
    if len(x.shape) != len(y.shape):
        low, high = ((name, x), (other, y)) if len(x.shape) < len(y.shape) else ((other, y), (name, x))
        if len(x.shape) and len(low[1].shape) and low[1].shape[-1] == high[1].shape[-1]:
            shape = (*high[1].shape[: len(high[1].shape) - len(low[1].shape)], *low[1].shape)
            return f"write {low[0]}=jnp.broadcast_to({low[0]}, {shape})"
        return "reshape one of them, for example with [..., None] or .squeeze(-1)"
    return "give both the same leading axes"
