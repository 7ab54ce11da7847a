"""Shapes and types of inputs and outputs, found without computing anything, once for each call of ``init``."""

from collections.abc import Callable, Hashable, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

import jax

__all__ = [
    "as_inputs",
    "as_question",
    "as_shapes",
    "eval_shape",
    "once_per_init",
    "one_init",
    "split_side",
    "types_of",
]


def once_per_init(find: Callable, about: Hashable, inputs: tuple, side: Mapping):
    """``find()``, called once during the outermost ``init`` for one subject and for inputs of equal types.

    The result must not hold arrays, since they may belong to a trace that ends before the next call.
    """
    with one_init() as found:
        question = as_question(about, inputs, side)
        if question is None:
            return find()
        if question not in found:
            found[question] = find()
        return found[question]


_found: ContextVar[dict | None] = ContextVar("what one init has found", default=None)


@contextmanager
def one_init():
    """A dict that lasts for the call of the outermost ``init``."""
    # Only the outermost call creates the dict and removes it: shapes are not kept between calls of init.
    found = _found.get()
    token = _found.set(found := {}) if found is None else None
    try:
        yield found
    finally:
        if token is not None:
            _found.reset(token)


def as_question(about: Hashable, inputs: tuple, side: Mapping):
    """Types of arrays, and static values, as a dict key; ``None`` where a value is not hashable."""
    leaves, structure = jax.tree.flatten(types_of((inputs, dict(side))))
    # With types, since 1 == True == 1.0 as keys of a dict.
    question = about, structure, tuple((type(x), x) for x in leaves)
    try:
        hash(question)
    except TypeError:
        return None
    return question


def eval_shape(function, *args):
    """``jax.eval_shape`` where the last argument, the side inputs, may contain arrays and static values (flags)."""
    *args, side = args
    # Flags must stay Python values: as arguments of eval_shape they would be traced, and could not be branched on.
    arrays, static = split_side(side)
    return jax.eval_shape(lambda args, arrays: function(*args, {**arrays, **static}), args, arrays)


def split_side(side: Mapping) -> tuple[dict, dict]:
    """Split side inputs into arrays (or trees of arrays) and static values such as flags."""
    arrays = {name: value for name, value in side.items() if _is_arrays(value)}
    return arrays, {name: value for name, value in side.items() if name not in arrays}


def as_inputs(outputs) -> tuple:
    """Outputs of a layer as inputs of the next: a plain tuple is several inputs, any other value is one.

    >>> as_inputs(1), as_inputs((1, 2))
    ((1,), (1, 2))
    """
    # Not isinstance: a NamedTuple, such as a Graph, is one value.
    return outputs if type(outputs) is tuple else (outputs,)


def as_shapes(tree):
    """The same tree with a ``ShapeDtypeStruct`` in place of every array, of the dtype that the array has in JAX."""

    def of(x):
        if not _is_arrays(x):
            return x
        # NumPy's int64 and float64 have 32 bits in JAX by default; JAX 0.11 warns of a struct that says otherwise.
        return jax.ShapeDtypeStruct(x.shape, jax.dtypes.canonicalize_dtype(x.dtype, allow_extended_dtype=True))

    return jax.tree.map(of, tree)


def types_of(tree):
    """The same tree with a ``ShapeDtypeStruct`` of the type of each array, valid after the trace of the array too."""

    def of(x):
        if not isinstance(x, jax.Array):
            return x
        kind = jax.typeof(x)
        sharding = None if kind.sharding.mesh.empty else kind.sharding
        return jax.ShapeDtypeStruct(kind.shape, kind.dtype, weak_type=kind.weak_type, sharding=sharding)

    return jax.tree.map(of, tree)


def _is_arrays(value) -> bool:
    leaves = jax.tree.leaves(value)
    return bool(leaves) and all(hasattr(leaf, "shape") and hasattr(leaf, "dtype") for leaf in leaves)
