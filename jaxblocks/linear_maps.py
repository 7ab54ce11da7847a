"""Products of features with a kernel, as all layers compute them."""

import math
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType
from jaxtyping import Array, Float

__all__ = ["affine_map", "linear_map"]

AnyArray: TypeAlias = Array | np.ndarray


def linear_map(x: Float[AnyArray, "*batch in"], kernel: Float[AnyArray, "in out"]) -> Float[Array, "*batch out"]:
    """x W, in the dtype of x.

    Leading axes are merged, so that the product has two axes and the gradient of the kernel is x^T g of two matrices.
    With more axes, XLA first writes a transposed copy of g on CPU; the step of a transformer takes a tenth longer.

    >>> linear_map(jnp.ones((2, 3, 4)), jnp.ones((4, 5))).shape
    (2, 3, 5)
    """
    kernel, batch = kernel.astype(x.dtype), x.shape[:-1]
    if len(batch) < 2 or not _can_merge(x):
        return jnp.matmul(x, kernel)
    return jnp.matmul(x.reshape(math.prod(batch), x.shape[-1]), kernel).reshape(*batch, kernel.shape[-1])


def affine_map(
    x: Float[AnyArray, "*batch in"], kernel: Float[AnyArray, "in out"], bias: Float[AnyArray, "out"] | None
) -> Float[Array, "*batch out"]:
    """x W + b, in the dtype of x.

    >>> affine_map(jnp.array([1.0, 2.0]), jnp.eye(2), jnp.array([0.0, 1.0]))
    Array([1., 3.], dtype=float32)
    """
    y = linear_map(x, kernel)
    return y if bias is None else y + jnp.broadcast_to(bias.astype(x.dtype), y.shape)


def _can_merge(x) -> bool:
    """Whether the leading axes of x are known to be merged without communication between devices.

    An axis other than the first may be sharded. The type of x shows this on an explicit mesh and inside of `shard_map`,
    but not where the compiler chooses the shardings, so with several devices axes stay apart there.
    """
    sharding = jax.typeof(x).sharding
    kinds = sharding.mesh.axis_types
    if not kinds or AxisType.Auto in kinds:
        return _on_one_device()
    return all(axis is None for axis in sharding.spec[1:-1])


def _on_one_device() -> bool:
    return jax.device_count() == 1
