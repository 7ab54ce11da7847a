"""The leaves of a tree as arrays that can be stored, and trees from the arrays that were read."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxblocks.checks.errors import describe, require
from jaxblocks.checks.foreign_arrays import reject_foreign
from jaxblocks.checks.layer_inputs import reject_holder
from jaxblocks.checks.values import reject_traced
from jaxblocks.core.selection import paths
from jaxblocks.training.checkpoint.shards import is_sharded
from jaxblocks.training.step.state import check_not_donated

__all__ = ["abstract_leaf", "check_tree", "description_in", "description_of", "host_arrays", "named_leaves", "rebuild"]


def rebuild(tree, arrays: dict):
    """A tree like ``tree`` with these arrays, with its typed keys and on its devices; they are taken out of the dict.

    Without x64, 64-bit arrays stay NumPy arrays.
    """
    leaves, structure = jax.tree.flatten(tree)
    found = []
    for path, leaf in zip(paths(tree), leaves, strict=True):
        a = arrays.pop(path)  # where it is copied below, its memory is free before the next one is copied
        if jax.dtypes.canonicalize_dtype(a.dtype) == a.dtype:  # else 64 bits without x64
            a = jnp.asarray(a)
            a = jax.random.wrap_key_data(a, impl=_generator(leaf)) if is_key(leaf) else a
            sharding = sharding_of(leaf)
            a = a if sharding is None else jax.device_put(a, sharding)
        found.append(a)
    return jax.tree_util.tree_unflatten(structure, found)


def abstract_leaf(entry, like):
    """The argument with which orbax reads a leaf: a NumPy array of its shape and dtype, or a sharding."""
    sharding = sharding_of(like)
    # Read to the devices only where shapes agree, which optional trees need not.
    if sharding is not None and len(sharding.device_set) > 1 and description_of(like) == description_in(entry):
        return jax.ShapeDtypeStruct(like.shape, like.dtype, sharding=sharding)
    return np.broadcast_to(np.zeros((), jnp.dtype(entry["dtype"])), entry["shape"])  # takes no memory


def sharding_of(like):
    """The sharding (or the device) that a leaf requests; ``None`` for the default device."""
    if isinstance(like, jax.Array):
        return like.sharding if like.committed else None
    sharding = getattr(like, "sharding", None)
    return None if isinstance(getattr(sharding, "mesh", None), jax.sharding.AbstractMesh) else sharding


def check_tree(tree) -> None:
    """Raise unless a tree has leaves with values."""
    leaves = jax.tree.leaves(tree)
    reject_holder("tree", tree)
    require(leaves, "a tree with at least one array", f"an empty {type(tree).__name__}", "pass the training state")
    reject_traced(leaves)
    reject_foreign("tree", tree)
    check_not_donated(tree, "the tree")


def named_leaves(tree) -> dict:
    """Every leaf by its path, typed keys by their data."""
    names, leaves = paths(tree), jax.tree.leaves(tree)
    unique = len(set(names)) == len(names)
    require(unique, "a tree whose leaves have different paths", "a name with a slash", "rename it")
    return {name: _key_data(leaf) if is_key(leaf) else leaf for name, leaf in zip(names, leaves, strict=True)}


def host_arrays(tree) -> dict:
    """The leaves as NumPy arrays, except for arrays that are sharded over devices."""
    return {path: a if is_sharded(a) else _host(path, a) for path, a in named_leaves(tree).items()}


def _host(path, leaf):
    a = np.asarray(leaf)
    if a.dtype.kind in "OUSMm" or a.dtype.type is np.void:
        what = f"leaf {path}" if path else "the tree"
        require(False, f"{what} to be an array of numbers", describe(leaf), "remove it from the tree", error=TypeError)
    return a.astype(a.dtype.newbyteorder("="), copy=False)  # orbax stores no other byte order


def is_key(leaf) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _generator(key):
    """The generator of a typed key, or of the shape of one."""
    # In eval_shape no key need exist: the leaf may be a ShapeDtypeStruct.
    found = []
    jax.eval_shape(lambda key: found.append(jax.random.key_impl(key)), key)
    return found[0]


def _key_data(key):
    return jax.random.key_data(key) if isinstance(key, jax.Array) else jax.eval_shape(jax.random.key_data, key)


def description_of(leaf) -> dict:
    """The shape and the dtype of a leaf, as the list of a checkpoint has them."""
    leaf = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
    return {"shape": list(leaf.shape), "dtype": leaf.dtype.name}  # without the byte order


def description_in(entry) -> dict:
    """The shape and the dtype in an entry of the list."""
    return {"shape": entry["shape"], "dtype": entry["dtype"]}
