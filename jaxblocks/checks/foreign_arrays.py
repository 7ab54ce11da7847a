"""Arrays of other libraries (PyTorch, TensorFlow, pandas, Pillow, ...), and what to write instead of them.

They are recognized by the methods of their type, so that none of these libraries is imported.
"""

import functools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jax.tree_util import keystr, tree_leaves_with_path

from jaxblocks.checks.errors import require

__all__ = ["as_numpy", "check_byte_order", "has_numbers", "reject_foreign"]

_WAYS = {"detach": "{0}.detach().cpu().numpy()", "to_numpy": "{0}.to_numpy()", "numpy": "{0}.numpy()"}
"""The expression of a NumPy array, by the method that the type has."""


def as_numpy(name: str, x: Any) -> str:
    """The expression that makes a NumPy array of an array of another library; empty for every other value.

    >>> import pandas
    >>> as_numpy("x", pandas.Series([1.0])), as_numpy("x", jnp.ones(1))
    ('x.to_numpy()', '')
    """
    return _way(type(x)).format(name)


@functools.cache
def _way(kind: type) -> str:
    own = jax.Array, Tracer, np.ndarray, np.generic  # other libraries have tracers, too
    if issubclass(kind, own) or kind.__module__.partition(".")[0] in ("jax", "jaxlib"):
        return ""
    found = [way for method, way in _WAYS.items() if hasattr(kind, method)]
    protocols = "__array__", "__array_interface__", "__dlpack__"
    return found[0] if found else "np.asarray({0})" if any(hasattr(kind, one) for one in protocols) else ""


def has_numbers(x: np.ndarray | np.generic) -> bool:
    """Whether an array of NumPy has numbers or booleans, and not strings, dates or Python objects.

    >>> has_numbers(np.ones(2)), has_numbers(np.array([1, "a"], object))
    (True, False)
    """
    return x.dtype.kind in "biufcV" and not x.dtype.names  # V is bfloat16 and its like


def check_byte_order(name: str, x: np.ndarray | np.generic) -> None:
    """Raise a ``TypeError`` for an array of NumPy in another byte order, such as one read from an IDX or FITS file.

    >>> check_byte_order("x", np.ones(2, ">f4"))
    Traceback (most recent call last):
    ...
    TypeError: jaxblocks expected x in the byte order of this machine, got >f4 (2,); \
write x.astype(x.dtype.newbyteorder("=")).
    """
    if not x.dtype.isnative:
        repair = f'write {name}.astype({name}.dtype.newbyteorder("="))'
        require(False, f"{name} in the byte order of this machine", x, repair, error=TypeError)


def reject_foreign(name: str, tree: Any) -> None:
    """Raise a ``TypeError`` for the first leaf of a tree that is an array of another library.

    Others that convert by a protocol, such as data sets of HDF5, may be rows of data, and are left to the caller.

    >>> import pandas
    >>> reject_foreign("x", (jnp.ones(2), pandas.Series([1.0])))
    Traceback (most recent call last):
    ...
    TypeError: jaxblocks expected x[1] to be an array of JAX or NumPy, got a Series of pandas; \
write x[1].to_numpy().
    """
    # JAX warns about an iterator, which it will not take as a leaf.
    stops = lambda x: isinstance(x, Iterator)
    if as_numpy("", tree) or any(as_numpy("", leaf) for leaf in jax.tree.leaves(tree, is_leaf=stops)):
        for path, leaf in [((), tree), *tree_leaves_with_path(tree, is_leaf=stops)]:
            place = f"{name}{keystr(path)}"
            way = as_numpy(place, leaf)
            if way and not way.startswith("np."):
                require(False, f"{place} to be an array of JAX or NumPy", leaf, f"write {way}", error=TypeError)
