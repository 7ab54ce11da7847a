"""Checks of the arguments of derivative functions: functions, points, directions, parameters and batches.

Each function returns the converted argument, or raises an error that names the invalid leaf or return value. All
checks run while JAX traces, so they cost nothing at run time.
"""

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr, tree_leaves_with_path
from jaxtyping import PyTree

from jaxblocks.backend.varying import varying_like
from jaxblocks.checks.errors import describe, require
from jaxblocks.checks.expectations import checked
from jaxblocks.checks.signatures import arguments_of, takes

__all__ = [
    "Tree",
    "array_valued",
    "as_point",
    "at_point",
    "batch_length",
    "explained",
    "explained_call",
    "explained_model",
    "fits",
    "floating_leaves",
    "floating_like",
    "floating_params",
    "scalar_valued",
    "to_floating",
]

Tree = TypeVar("Tree")
"""A pytree whose structure a result has: type checkers give the result its type."""


@checked
def scalar_valued(f: Callable, *, name: str = "f", point: str = "x") -> Callable:
    """Wrap a function so that tracing raises an error unless it returns one scalar floating-point array.

    The errors call the function ``name`` and its argument ``point``.

    >>> scalar_valued(lambda x: x)(jnp.zeros(3))
    Traceback (most recent call last):
    ...
    ValueError: scalar_valued expected f to return a scalar, got float32 (3,); pass the function itself if f is its \
gradient; otherwise reduce it first (as in f(x).sum()), differentiate one output at a time, or use jax.jacobian for \
all first derivatives.
    """

    def scalar_f(*args):
        y = _value(f, args, name, point)
        unless = f"pass the function itself if {name} is its gradient; otherwise "
        if not _is_leaf(y):
            first = next(iter(y), 0) if isinstance(y, dict) else 0
            several = jax.tree.leaves(y) and not isinstance(y, str)
            repair = f"return the value alone, as in lambda {point}: {name}({point})[{first!r}]"
            repair = unless * fits(y, *args[:1]) + repair if several else "return the value"
            require(False, f"{name} to return one scalar array", y, repair, error=TypeError)
        y = jnp.asarray(y)
        if y.shape:
            repair = (
                f"reduce it first (as in {name}({point}).sum()), differentiate one output at a time, or use "
                "jax.jacobian for all first derivatives"
            )
            require(False, f"{name} to return a scalar", y, unless * fits(y, *args[:1]) + repair)
        if not jnp.issubdtype(y.dtype, jnp.floating):
            repair = "return a value computed in floating point"
            require(False, f"{name} to return a floating-point scalar", str(y.dtype), repair, error=TypeError)
        return y

    return scalar_f


@checked
def array_valued(f: Callable) -> Callable:
    """Wrap a function so that tracing raises a ``TypeError`` unless it returns one floating-point array.

    >>> array_valued(lambda x: (x, x))(jnp.zeros(3))
    Traceback (most recent call last):
    ...
    TypeError: array_valued expected f to return one array, got a tuple; return one of its arrays, as in \
lambda x: f(x)[0].
    """

    def array_f(*args):
        y = _value(f, args, "f", "x")
        if not _is_leaf(y):
            several = jax.tree.leaves(y) and not isinstance(y, str)
            repair = "return one of its arrays, as in lambda x: f(x)[0]" if several else "return the array"
            require(False, "f to return one array", describe(y), repair, error=TypeError)
        y = jnp.asarray(y)
        if not jnp.issubdtype(y.dtype, jnp.floating):
            got, repair = describe(y), "return its real and imaginary parts as one array"
            if not jnp.iscomplexobj(y):
                got += ", which has no derivative"
                repair = "return the floating-point array that it is computed from"
            require(False, "f to return a floating-point array", got, repair, error=TypeError)
        return y

    return array_f


@contextmanager
def explained_call(f: Callable, number: int, expected: str, repair: str):
    """Inside, the ``TypeError`` of a call of ``f`` becomes a sentence where it does not take so many arguments.

    This is not seen before the call, since a wrapper may pass arguments that its signature has.

    >>> f = lambda x, y: x + y
    >>> with explained_call(f, 1, "f to be a function of x alone", "close over y"):
    ...     f(1.0)
    Traceback (most recent call last):
    ...
    TypeError: explained_call expected f to be a function of x alone, got a function of (x, y); close over y.
    """
    try:
        yield
    except TypeError:
        if not takes(f, number):
            require(False, expected, arguments_of(f), repair, error=TypeError)
        raise


def explained(f: Callable, number: int, expected: str, repair: str) -> Callable:
    """``f``, with the sentence of `explained_call` where it does not take this number of arguments."""

    def call(*args):
        with explained_call(f, number, expected, repair):
            return f(*args)

    return call


def explained_model(model: Callable) -> Callable:
    """A model of one example, with a sentence where it does not take params and an input."""
    repair = "write a function of params and x, such as jaxblocks.ad.as_function(net)"
    return explained(model, 2, "a model (params, x) of one example", repair)


def _value(f: Callable, args: tuple, name: str, point: str) -> Any:
    if len(args) != 1:
        return f(*args)
    repair = f"close over other arguments, as in lambda {point}: {name}({point}, ...)"
    with explained_call(f, 1, f"{name} to be a function of {point} alone", repair):
        return f(*args)


def _is_leaf(y: Any) -> bool:
    leaves = jax.tree.leaves(y)
    return len(leaves) == 1 and leaves[0] is y and not isinstance(y, str)


def fits(y: Any, point: Any = None) -> bool:
    """Whether ``y`` has the structure and the shapes of the point, as a gradient has."""
    (leaves, structure), (others, other) = map(jax.tree.flatten, (y, point))
    return structure == other and [*map(np.shape, leaves)] == [*map(np.shape, others)]


def as_point(x: PyTree) -> PyTree:
    """Convert a point to a pytree of arrays; the error names a leaf that is not floating-point."""
    return floating_leaves("x", x, "close over it as a constant of f")


def floating_leaves(name: str, tree: PyTree, otherwise: str = "") -> PyTree:
    """Convert a tree to arrays; the error names a leaf that is not floating-point, and the repair (or ``otherwise``).

    >>> floating_leaves("x", (1.5, 2), "leave it out")
    Traceback (most recent call last):
    ...
    TypeError: floating_leaves expected x to hold floating-point arrays, got 2 at x[1]; write 2.0, or leave it out.
    """
    leaves = tree_leaves_with_path(tree)
    require(leaves, f"{name} to hold at least one array", repr(tree), f"pass the arrays in {name}")
    arrays = [_as_array(leaf) for _, leaf in leaves]
    for (path, leaf), array in zip(leaves, arrays, strict=True):
        dtype = getattr(array, "dtype", None)
        if dtype is None or not jnp.issubdtype(dtype, jnp.floating):
            got = f"{describe(leaf)} at {name}{keystr(path)}"
            repair = to_floating(leaf) + f", or {otherwise}" * bool(otherwise)
            require(False, f"{name} to hold floating-point arrays", got, repair, error=TypeError)
    return jax.tree.unflatten(jax.tree.structure(tree), arrays)


def at_point(x: PyTree, v: PyTree) -> tuple[PyTree, PyTree]:
    """Convert a point and a direction to pytrees of arrays; the error names a leaf where they do not match.

    >>> from jaxblocks.ad import hvp
    >>> hvp(lambda x: jnp.sum(x["w"]), {"w": jnp.zeros(2)}, {"w": jnp.zeros(3)})
    Traceback (most recent call last):
    ...
    ValueError: hvp expected v like x, float32 (2,) at x['w'], got float32 (3,) at v['w']; build v with \
jax.tree.map(jnp.ones_like, x).
    """
    x, v = as_point(x), jax.tree.map(_as_array, v)
    points = {keystr(path): leaf for path, leaf in tree_leaves_with_path(x)}
    directions = {keystr(path): leaf for path, leaf in tree_leaves_with_path(v)}
    repair = "build v with jax.tree.map(jnp.ones_like, x)"
    # First the leaves of x in their order, then those that only v has.
    for path in dict.fromkeys([*points, *directions]):
        if path not in points or path not in directions or not _alike(points[path], directions[path]):
            expected = f"v like x, {_leaf_in_words('x', points, path)}"
            got, others = _leaf_in_words("v", directions, path), [one for one in directions if one not in points]
            if path not in directions and others:
                got += f" but {_leaf_in_words('v', directions, others[0])}"
            require(False, expected, got, repair)
    structure, other = jax.tree.structure(x), jax.tree.structure(v)
    # Equal paths in other containers, such as a list instead of a tuple.
    if structure != other:
        require(False, f"v in the containers of x, {structure}", str(other), repair)
    # A tangent has the type of its value; inside of shard_map a direction may be equal on all devices.
    return x, jax.tree.map(varying_like, v, x)


def floating_like(like: PyTree, name: str = "like") -> PyTree:
    """Convert ``like``, the argument structure of an operator, to a pytree of arrays; the error names an invalid leaf.

    The errors call the argument ``name``.
    """
    if callable(like) and _is_leaf(like):  # a module of equinox is a pytree with a call
        repair = f"pass the operator first and then {name}"
        require(False, f"{name} to be a pytree of arrays such as the operator takes", like, repair, error=TypeError)
    return floating_leaves(name, like)


def to_floating(leaf: Any) -> str:
    """The repair for a leaf that is no floating-point array: no imaginary part is dropped.

    >>> to_floating(jnp.arange(2)), to_floating(jnp.ones(2, complex))
    ('convert it with .astype(jnp.float32)', 'pass its real and imaginary parts as two arrays')
    """
    if isinstance(leaf, int) and abs(leaf) < 1e6:
        return f"write {float(leaf)!r}"
    kind = getattr(leaf, "dtype", type(leaf))
    if kind is complex or jnp.issubdtype(kind, jnp.complexfloating):
        return "pass its real and imaginary parts as two arrays"
    is_number = hasattr(leaf, "dtype") and any(jnp.issubdtype(kind, own) for own in (jnp.number, jnp.bool_))
    return "convert it with .astype(jnp.float32)" if is_number else "give an array"


def _leaf_in_words(name, leaves, path) -> str:
    return f"{describe(leaves[path])} at {name}{path}" if path in leaves else f"nothing at {name}{path}"


def _alike(x, v) -> bool:
    return (x.shape, x.dtype) == (v.shape, v.dtype)


def _as_array(leaf):
    if isinstance(leaf, float):
        # With a dtype, so that the array is not weakly typed.
        return jnp.asarray(leaf, jnp.result_type(float))
    is_array = isinstance(leaf, int | complex) or hasattr(leaf, "__array__") or hasattr(leaf, "__jax_array__")
    as_it_is = isinstance(leaf, jax.Array) or callable(leaf)  # or the caller's error
    return jnp.asarray(leaf) if is_array and not as_it_is else leaf


def floating_params(params: PyTree) -> PyTree:
    """Convert parameters to a pytree of arrays; the error names a leaf that is not floating-point."""
    return floating_leaves("params", params, "close over it as a constant of the function")


def batch_length(**batches: PyTree) -> int:
    """The number of examples on the leading axes of batch arguments; an error where they differ."""
    found = {}
    for name, batch in batches.items():
        for path, leaf in tree_leaves_with_path(batch):
            label = f"{name}{keystr(path)}"
            if not getattr(leaf, "shape", ()):
                repair = "add that axis, or close over it as a constant of the function"
                require(False, f"{label} to have the examples on a leading axis", leaf, repair)
            found[label] = leaf
    require(found, "at least one array of examples after params", "none", "pass the examples")
    first = next(iter(found))
    for label, leaf in found.items():
        if leaf.shape[0] != found[first].shape[0]:
            require(
                False,
                f"batch arguments with equal numbers of examples, {describe(found[first])} at {first}",
                f"{describe(leaf)} at {label}",
                "give their first axes one length",
            )
    return found[first].shape[0]
