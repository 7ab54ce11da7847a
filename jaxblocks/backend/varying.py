"""Types of arrays inside `jax.shard_map`: the mesh axes along which the devices hold different values.

JAX tracks these axes in the type of each array and rejects a tangent, a cotangent or the carry of a loop that does not
have the type of its value. An array that is created inside (zeros, unit vectors, random numbers) is equal on all
devices; `varying_like` gives it the type of another one. Outside of `jax.shard_map` it changes nothing.

On a mesh with explicit axes (``jax.sharding.AxisType.Explicit``) the sharding is a part of the type too: `sharded_like`
gives an array that of another one, and `replicated` removes it.
"""

from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jaxtyping import PyTree

__all__ = ["as_structs", "inside_shard_map", "is_tracing", "replicated", "sharded_like", "varying_like"]


def inside_shard_map() -> bool:
    """Whether the code is traced inside of `jax.shard_map`."""
    return bool(jax.sharding.get_abstract_mesh().manual_axes)


def is_tracing() -> bool:
    """Whether JAX traces a function here, also under an eager `jax.vmap` or `jax.grad`.

    >>> is_tracing(), bool(jax.jit(lambda: is_tracing())())
    (False, True)
    """
    try:
        jax.sharding.get_mesh()
    except ValueError:  # which JAX raises exactly then
        return True
    return False


def as_structs(tree: PyTree) -> PyTree:
    """The types of arrays (or of variables of a jaxpr) as ``jax.ShapeDtypeStruct``, varying axes included."""
    return jax.eval_shape(lambda tree: tree, tree)


def varying_like(tree: PyTree, *likes: PyTree) -> PyTree:
    """The arrays of a tree, varying over all mesh axes over which an array of ``likes`` varies.

    Args:
        tree: a pytree of arrays.
        likes: pytrees of arrays, of ``jax.ShapeDtypeStruct`` or of types of variables.
    """
    if not inside_shard_map():
        return tree
    axes = frozenset().union(*map(_axes, jax.tree.leaves(likes)))

    def varied(leaf):
        # Only the missing axes: pcast rejects an axis along which the array varies already.
        missing = tuple(axes - _axes(leaf))
        return jax.lax.pcast(leaf, missing, to="varying") if missing else leaf

    return jax.tree.map(varied, tree)


def _axes(leaf: Any) -> frozenset:
    """The mesh axes along which an array, or an array of this type, varies; none for a struct without a mesh."""
    # A ShapeDtypeStruct has it as an attribute, an array in its type.
    kind = leaf.manual_axis_type if hasattr(leaf, "manual_axis_type") else jax.typeof(leaf).manual_axis_type
    return frozenset() if kind is None else kind.varying


def sharded_like(x: Any, like: Any) -> Any:
    """An array in the explicit sharding of another one of its shape; the array itself if that has none."""
    sharding = _explicit(like)
    return x if sharding is None else jax.sharding.reshard(x, sharding)


def replicated(x: Any) -> Any:
    """An array without an explicit sharding."""
    sharding = _explicit(x)
    return x if sharding is None else jax.sharding.reshard(x, NamedSharding(sharding.mesh, PartitionSpec()))


def _explicit(leaf: Any) -> NamedSharding | None:
    """The sharding in the type of an array (or of a struct), unless it is replicated or a choice of the compiler."""
    # Of an array the type counts: under jit `x.sharding` does not exist for tracers.
    sharding = leaf.sharding if isinstance(leaf, jax.ShapeDtypeStruct) else jax.typeof(leaf).sharding
    if not isinstance(sharding, NamedSharding) or AxisType.Explicit not in sharding.mesh.axis_types:
        return None
    return sharding if any(part is not None for part in sharding.spec) else None
