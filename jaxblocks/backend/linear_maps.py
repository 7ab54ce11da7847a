"""Products of features with a kernel, params along a batch, and how devices share their arrays."""

import math
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import AxisType, PartitionSpec
from jax.typing import DTypeLike
from jaxtyping import Array, Inexact, Shaped

from jaxblocks.checks.errors import require

__all__ = ["affine_map", "along_batch", "in_dtype", "sharded_by_batch", "unsharded"]

AnyArray: TypeAlias = Array | np.ndarray


def affine_map(
    x: Inexact[AnyArray, "*batch in"], kernel: Inexact[AnyArray, "in out"], bias: Inexact[AnyArray, "out"] | None = None
) -> Inexact[Array, "*batch out"]:
    """x W + b, or x W without a bias, in the dtype of x.

    Leading axes are merged where no device has to gather them, so that the gradient of the kernel is a product x^T g
    of two matrices. With more axes, XLA first writes a transposed copy of g on CPU; the step of a transformer takes a
    tenth longer. On an automatic mesh x and the result are sharded by batch (`sharded_by_batch`).

    >>> affine_map(jnp.array([1.0, 2.0]), jnp.eye(2), jnp.array([0.0, 1.0]))
    Array([1., 3.], dtype=float32)
    """
    batch = x.shape[:-1]
    x = sharded_by_batch(x)
    # The first of merged axes may be sharded, if it is not empty.
    merge = len(batch) >= 2 and 0 not in batch and unsharded(x, *range(1, len(batch)))
    y = jnp.matmul(x.reshape(math.prod(batch), x.shape[-1]) if merge else x, _cast(kernel, x.dtype))
    if bias is not None:  # before the axes are split, so that its gradient needs no transposed copy either
        y = y + along_batch(bias, y)
    return sharded_by_batch(y.reshape(*batch, y.shape[-1]) if merge else y)


def along_batch(param: Inexact[AnyArray, "..."], x: Inexact[AnyArray, "..."]) -> Inexact[Array, "..."]:
    """A param for each example: broadcast to the shape of x, in the dtype of x.

    Its gradient, a sum over all examples, is float32 where x has half precision: XLA sums in the dtype of the array on
    CPU, and a sum in bfloat16 stays at 256 where ones are added.
    """
    wide = x.dtype if x.dtype.itemsize > 2 else jnp.float32
    param = _cast(param, wide)
    if {AxisType.Explicit, AxisType.Manual} & set(jax.typeof(x).sharding.mesh.axis_types):
        # The sum is sharded as x is. A broadcast array would be whole on each device, its gradient gathered, or in
        # `jax.shard_map` reduced, before the sum over examples. Axes are added, since rank promotion may be an error.
        param = jnp.expand_dims(param, range(x.ndim - param.ndim))
        return (jnp.zeros_like(x, wide) + param).astype(x.dtype)
    return _cast(jnp.broadcast_to(param, x.shape), x.dtype)


def _cast(x: Any, dtype: Any) -> Any:
    # Where nothing changes, astype takes as long as a small product. A weak type would yield to that of other operands.
    return x if x.dtype == dtype and not getattr(x, "weak_type", False) else x.astype(dtype)


def in_dtype(x: Inexact[AnyArray, "..."], dtype: DTypeLike | None) -> Any:
    """The input of a layer in the ``dtype`` of its arithmetic, by default its own. No imaginary part is dropped."""
    if dtype is not None and jnp.iscomplexobj(x) and not jnp.issubdtype(dtype, jnp.complexfloating):
        repair = "leave out dtype, or pass dtype=jnp.complex64"
        require(False, f"x of real numbers for dtype={jnp.dtype(dtype).name}", x, repair, error=TypeError)
    return x if dtype is None else x.astype(dtype)


def sharded_by_batch(x: Inexact[AnyArray, "..."]) -> Any:
    """x with its first axis sharded along the first axis of the mesh; a hint to the compiler, without effect on values.

    Params are then gathered, layer by layer, where a layer is computed, and their gradients are reduced. Without this
    hint XLA may choose the opposite for params in parts (`jaxblocks.sharding.fully_sharded`): it gathers and reduces
    activations, for the steps of a Llama 7B on 64 devices five times as many bytes. The other axes are left to XLA.

    The mesh is the one in context, of ``jax.set_mesh`` or of a training step, if all its axes are automatic. Where x is
    not traced, or the axis does not divide its first axis, x stays as it is.
    """
    mesh = jax.sharding.get_abstract_mesh()
    # Only automatic axes take constraints: explicit ones have shardings in types, manual ones hold parts of arrays.
    if mesh.empty or set(mesh.axis_types) != {AxisType.Auto} or not isinstance(x, Tracer) or x.ndim < 2:
        return x
    axis = mesh.axis_names[0]
    if x.shape[0] % mesh.shape[axis]:  # the constraint would be an error
        return x
    return _constrained(x, PartitionSpec(axis, *[PartitionSpec.UNCONSTRAINED] * (x.ndim - 1)))


# Jitted, since the gradient of an eager call traces arrays that may be on a single device.
_constrained = jax.jit(jax.lax.with_sharding_constraint, static_argnums=1)


def unsharded(x: Shaped[AnyArray, "..."], *axes: int) -> bool:
    """Whether these axes of x are known to be whole on each device.

    The type of x shows this on an explicit mesh and inside of `jax.shard_map`. Where the compiler chooses the
    shardings, only a single device makes it known.

    >>> mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Explicit,))
    >>> with jax.set_mesh(mesh):
    ...     x = jax.device_put(jnp.ones((2, 3)), jax.sharding.PartitionSpec("data"))
    ...     unsharded(x, 0), unsharded(x, 1)
    (False, True)
    """
    sharding = jax.typeof(x).sharding
    kinds = sharding.mesh.axis_types
    if not kinds or AxisType.Auto in kinds:  # types do not show shardings
        return _on_one_device()
    return all(sharding.spec[axis] is None for axis in axes)


def _on_one_device() -> bool:
    return jax.device_count() == 1
