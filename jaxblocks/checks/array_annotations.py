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

from jaxblocks.checks.array_repairs import of_dtype, of_leading_axes, of_rank, of_size, of_value
from jaxblocks.checks.errors import describe, require
from jaxblocks.checks.foreign_arrays import as_numpy, check_byte_order, has_numbers
from jaxblocks.checks.layer_inputs import check_features
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
        repair = repair_place(x) or (repair if words == "a key" else of_value(name, x))
        require(False, f"{name} to be {words}", describe(x), repair, error=TypeError)
    if not any(_is_dtype(x.dtype, spec.dtype) for spec in specs):
        repair = repair_place(x) or of_dtype(name, x, specs[0].dim_str.split(), words, repair)
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
    """
    (first, one), *rest = sizes.get(_INEXACT, [("", None)])
    for name, x in rest:
        real = jnp.iscomplexobj(one) or not jnp.iscomplexobj(x)
        repair = f"convert {first} with {first}.astype(jnp.complex64)"
        require(real, f"{name} of real numbers, as {first}", x, repair, error=TypeError)


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
        repair = of_rank(name, x, axes, least - len(shape))
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
                leading = axis[0] == "*"
                repair = of_leading_axes(other, met, name, x) if leading else of_size(other, other_place, name, place)
                expected = f"{other} {_form(other_axes)} and {name} {_form(axes)} with the same size of {axis}"
                require(False, expected, f"{describe(met)} and {describe(x)}", repair)


def _form(axes) -> str:
    """The axes in tuple notation: ``(*batch, in)``."""
    words = [axis.replace("_", "", 1) if axis.lstrip("*#")[:1] == "_" else axis for axis in axes]
    return f"({', '.join(words)}{',' * (len(words) == 1)})"
