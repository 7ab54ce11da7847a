"""Annotations of arrays: the dtype and the shape of an argument against ``Float[Array, "*batch in"]``.

An axis name that occurs twice has one size over all arguments of a call.
"""

import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxblocks.checks.errors import describe, public_name, require
from jaxblocks.checks.foreign_arrays import as_numpy, check_byte_order, has_numbers
from jaxblocks.checks.layer_inputs import check_features, is_shape
from jaxblocks.checks.values import check_range

__all__ = ["check_array", "check_complex"]

_KINDS = {
    "Float": ("a floating-point array", "convert it with {name}.astype(jnp.float32)"),
    "Complex": ("a complex array", "convert it with {name}.astype(jnp.complex64)"),
    "Inexact": ("a floating-point or complex array", "convert it with {name}.astype(jnp.float32)"),
    "Integer": ("an integer array", "convert it with {name}.astype(jnp.int32)"),
    "Int": ("an integer array", "convert it with {name}.astype(jnp.int32)"),
    "Real": ("an array of real numbers", "convert it with {name}.astype(jnp.float32)"),
    "Num": ("an array of numbers", "convert it with {name}.astype(jnp.float32)"),
    "Bool": ("a boolean array", "write {name} > 0 for ones and zeros, {name} == 0 for zeros and -inf"),
    "Key": ("a key", "pass jax.random.key(0)"),
    "Shaped": ("an array", "convert it with jnp.asarray({name})"),
}


_INEXACT = "arguments of real or complex numbers"  # in the place of the name of an axis


def check_array(name: str, x: Any, specs: list, sizes: dict, repair_place: Callable[[Any], str]) -> Any:
    """Check dtype and shape of an array; ``sizes`` holds the axis sizes of the earlier arguments.

    >>> from jaxtyping import Array, Float
    >>> check_array("x", jnp.ones(3), [Float[Array, "2"]], {}, lambda x: "")
    Traceback (most recent call last):
    ...
    ValueError: jaxblocks expected x (2,) with 2 entries on axis 0, got float32 (3,); keep 2.
    """
    words, repair = (text.format(name=name) for text in _KINDS.get(specs[0].dtype.__name__, _KINDS["Shaped"]))
    if isinstance(x, (np.ndarray, np.generic)):
        if not has_numbers(x):
            repair = repair_place(x) or f"convert it with {name}.astype(np.float32), which has to hold numbers only"
            require(False, f"{name} to be {words}", x, repair, error=TypeError)
        check_byte_order(name, x)
        narrow = jax.dtypes.canonicalize_dtype(x.dtype)
        if x.dtype.kind in "iu" and narrow != x.dtype:  # JAX would cut the upper bits
            limits, to_wide = jnp.iinfo(narrow), "jax.config.update('jax_enable_x64', True)"
            check_range(name, x, limits.min, limits.max, f"pass smaller integers, or first write {to_wide}")
        x = jnp.asarray(x)  # NumPy's float64 becomes float32, as everywhere in JAX
    elif way := as_numpy(name, x):
        if "floating" in words and way.startswith("np."):  # images have bytes
            way = way.replace(")", ", np.float32)")
        require(False, f"{name} to be {words}", x, f"write {way}", error=TypeError)
    if not (hasattr(x, "shape") and hasattr(x, "dtype")):
        # A key is not made from another value by a conversion.
        repair = repair if words == "a key" else f"convert it with jnp.asarray({name})"
        leaves = jax.tree.leaves(x)
        if words != "a key" and not leaves:  # None, or an empty container
            of_losses = "; where outputs are losses, train with lambda losses, y: losses"
            repair = "pass an array" + of_losses * (name == "targets")
        if words != "a key" and is_shape(x, tuple):
            repair = f"pass an array, jnp.zeros({x}) for example if this is its shape, or else jnp.asarray({name})"
        if name == "times" and is_shape((x,), tuple):  # a number of steps
            repair = f"pass jaxblocks.diffusion.times(schedule, {x})"
        if words != "a key" and any(getattr(one, "shape", ()) for one in leaves):  # numbers of NumPy have the shape ()
            stack = type(x) in (list, tuple) and len({getattr(one, "shape", None) for one in leaves}) == 1
            foreign = as_numpy("a", leaves[0])
            repair = "pass one array, or join them first"
            if "'kernel'" in str(jax.tree.structure(x)):
                repair = "pass an array of data in the place of params"
            elif type(x).__name__ == "Graph":
                layer = public_name() + "(...)" * public_name()[:1].isupper()
                repair = f"write jaxblocks.layers.GraphMapFeatures(node={layer}) for the features of its nodes"
                if layer.startswith("Global"):
                    options = f"how={'mean' if 'Avg' in layer else 'max'!r}, mask=g.node_mask"
                    pool = f"jaxblocks.layers.aggregate(g.nodes, g.node_graph, len(g.graph_mask), {options})"
                    repair = f"for a graph of batch_graphs write lambda g: {pool}"
            elif _has_state(x):
                repair = f"write {name}, state = net.apply(...) for the outputs of a net with state"
            elif stack and foreign:
                repair = f"write np.stack([{foreign} for a in {name}])"
            elif stack:
                repair += f", for example with jnp.stack({name})"
        if name == "class_weights" and type(x).__name__ == "dict":
            repair = "pass an array with one weight for each class, such as jnp.array([1.0, 2.0])"
        elif leaves and all(isinstance(one, str) for one in leaves):
            repair = "pass numbers, for a text those of tokenizer.encode(text)"
            x = repr(x) if isinstance(x, str) else x
        repair = repair_place(x) or repair
        require(False, f"{name} to be {words}", x, repair, error=TypeError)
    if not any(_is_dtype(x.dtype, spec.dtype) for spec in specs):
        if jnp.issubdtype(x.dtype, jnp.complexfloating) and words != "a key":
            repair = f"pass its real part, {name}.real, or its absolute value, jnp.abs({name})"
        elif name in ("targets", "predictions", "labels") and words == "an integer array":
            repair += f", or with {name}.argmax(-1) where it has one number per class"
        elif name in ("targets", "p", "q") and specs[0].dim_str.endswith(" classes") and x.dtype.kind in "iu":
            repair = f"for labels write jaxblocks.one_hot({name}, classes), else {repair}"
        elif name == "teacher_logits" and x.dtype.kind in "iu":
            repair = "pass the scores of the teacher; labels belong to softmax_cross_entropy(student_logits, labels)"
        elif name == "x" and x.ndim == 1 and x.dtype.kind in "iu" and public_name().endswith("Cell"):
            repair = f"for tokens, put jaxblocks.Embedding(...) in front, else {repair}"
        elif jnp.issubdtype(x.dtype, jax.dtypes.prng_key) and "floating" in words:
            repair = f"draw {name} from it, as in jax.random.normal(key, shape)"
        elif words == "a key" and x.dtype == jnp.uint32:
            repair = "pass jax.random.key(0), or jax.random.wrap_key_data(key) for raw key data"
        repair = repair_place(x) or repair
        require(False, f"{name} to be {words}", x, repair, error=TypeError)
    spec = next(spec for spec in specs if _is_dtype(x.dtype, spec.dtype))
    if spec.dtype.__name__ == "Inexact":
        sizes[_INEXACT] = (*sizes.get(_INEXACT, ()), (name, x))
    axes = tuple(spec.dim_str.split())
    _check_shape(name, x, axes, sizes)
    if axes[-1:] in (("in",), ("_in",)) and any(one.array_type is jax.ShapeDtypeStruct for one in specs):  # of `init`
        check_features(name, x)
    return x


def check_complex(sizes: dict) -> None:
    """Raise a ``TypeError`` where the first argument of real or complex numbers is real, and a later one complex.

    The first one has the dtype of the arithmetic, in which imaginary parts would be lost. ``sizes`` is that of
    `check_array`, after all arguments of a call.

    >>> check_complex({})
    """
    (first, one), *rest = sizes.get(_INEXACT, [("", None)])
    for name, x in rest:
        real = jnp.iscomplexobj(one) or not jnp.iscomplexobj(x)
        repair = f"convert {first} with {first}.astype(jnp.complex64)"
        require(real, f"{name} of real numbers, as {first}", x, repair, error=TypeError)


def _has_state(x: Any) -> bool:
    """Whether it may be what a net with state returns: an array and a tree."""
    return type(x) is tuple and [hasattr(one, "shape") for one in x] == [True, False]


_CONFUSION = "pass one matrix, confusion_matrix(predictions, targets, classes)"


@functools.cache
def _is_dtype(dtype, kind) -> bool:
    """Whether a dtype is of a kind such as ``Float``; by kind, since each builder call makes new annotations."""
    if kind.__name__ == "Key":
        return jnp.issubdtype(dtype, jax.dtypes.prng_key)
    return not isinstance(kind.dtypes, (tuple, list)) or dtype.name in kind.dtypes


def _check_shape(name, x, axes, sizes) -> None:
    """Match the axes of an array: ``*name`` stands for several axes, ``_name`` and ``...`` are not compared."""
    shape = tuple(x.shape)
    # As jaxtyping writes them: `*` for any number of axes, `_` for an axis that is not compared, `#` for one that may
    # be 1.
    several = [i for i, axis in enumerate(axes) if axis == "..." or axis.lstrip("#_")[:1] == "*"]
    least = len(axes) - len(several)
    if axes == () and jnp.issubdtype(x.dtype, jax.dtypes.prng_key) and shape:
        require(False, f"one {name}", f"keys of shape {shape}", "pass one, or use jax.vmap", error=TypeError)
    if len(shape) < least or (len(shape) > least and not several):
        way = "at least " if several else ""
        form = _form(axes)
        missing = least - len(shape)
        repair = f"add the missing ax{'i' if missing == 1 else 'e'}s, as in {name}[{', '.join(['None'] * missing)}]"
        if missing == 2 and axes[:2] == ("batch", "height"):  # images as vectors
            repair = f"reshape it, as in {name}.reshape(-1, {', '.join(axes[1:])})"
        if "heads" in axes or "kv_heads" in axes:
            repair = f"write {name}[..., None, :] for one head"
        if axes[-2:] == ("points", "features") and missing == 1:
            repair = f"write {name}[:, None] for points on a line, {name}[None] for one point"
        if axes[-2:] == ("examples", "features"):
            repair = "pass all examples in one call, not one by one as under jax.vmap: the others are the negatives"
        if name == "nodes" and missing == 1:
            repair = "write nodes[:, None] for one feature of each node"
        if name == "confusion":
            repair = _CONFUSION
        elif missing < 0:
            repair = "map over the leading axes with jax.vmap" if shape else "pass one value"
        require(False, f"{name} with {way}{least} ax{'i' if least == 1 else 'e'}s, {form}", x, repair)
    # Axes before the one of several (`*batch`, `...`) count from the front, those after it from the end.
    split = several[0] if several else len(axes)
    after = len(axes) - split - 1 if several else 0
    where = [(axis, i, size) for i, (axis, size) in enumerate(zip(axes[:split], shape, strict=False))]
    if several:
        where.append((axes[split], split, shape[split : len(shape) - after]))
        where += [(axis, i - after, shape[i - after]) for i, axis in enumerate(axes[split + 1 :])]
    for axis, place, size in where:
        if axis.lstrip("*#")[:1] == "_":
            continue
        if axis.isdigit():
            expected = f"{name} {_form(axes)} with {axis} entries on axis {place}"
            repair = f"keep {axis}" if size > int(axis) else f"stack {axis} arrays with jnp.stack([...], {place})"
            require(size == int(axis), expected, x, repair)
        elif re.fullmatch(r"\d+\*\w+", axis):  # a multiple of an axis of an argument before this one
            factor, one = axis.split("*")
            if one in sizes and size != int(factor) * sizes[one][1]:
                other, known, met, *_ = sizes[one]
                expected = f"{name} {_form(axes)} with {one} = {known}, as {other} has it"
                require(False, expected, x, f"give axis {place} of {name} {int(factor) * known} entries")
        elif axis.lstrip("*").isidentifier():
            # The first argument with this axis sets its size; all later ones are compared with it.
            other, known, met, other_place, other_axes = sizes.setdefault(axis, (name, size, x, place, axes))
            if known != size:
                both = f"give axis {other_place} of {other} and axis {place} of {name} one size"
                # In a layer the other argument is a param, whose shape the user did not choose.
                if name == "confusion":
                    both = _CONFUSION
                if public_name()[:1].isupper() and other == "x":
                    both = f"pass {other} of that size, or params made by init for this {other}"
                require(
                    False,
                    f"{other} {_form(other_axes)} and {name} {_form(axes)} with the same size of {axis}",
                    f"{describe(met)} and {describe(x)}",
                    _repair_leading_axes(other, met, name, x) if axis[0] == "*" else both,
                )


def _repair_leading_axes(name, x, other, y) -> str:
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


def _form(axes) -> str:
    """The axes in tuple notation: ``(*batch, in)``."""
    words = [axis.replace("_", "", 1) if axis.lstrip("*#")[:1] == "_" else axis for axis in axes]
    return f"({', '.join(words)}{',' * (len(words) == 1)})"
