"""Products of features with a kernel, as all layers compute them, and how devices share their arrays."""

import functools
import math
from contextlib import contextmanager
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.custom_derivatives import SymbolicZero
from jax.sharding import AxisType, PartitionSpec
from jaxtyping import Array, Float, Shaped

__all__ = ["affine_map", "linear_map", "products_are_visible", "sharded_by_batch", "unsharded", "visible_products"]

AnyArray: TypeAlias = Array | np.ndarray

# The fewest rows of x for which the gradient of a kernel is computed with columns of zeros, and their number; see
# "Whole training steps" in benchmarks/RESULTS.md.
_ROWS, _ZEROS = 256, 8


def linear_map(x: Float[AnyArray, "*batch in"], kernel: Float[AnyArray, "in out"]) -> Float[Array, "*batch out"]:
    """x W, in the dtype of x.

    Leading axes are merged where no device has to gather them, so that the gradient of the kernel is a product x^T g
    of two matrices. With more axes, XLA first writes a transposed copy of g on CPU; the step of a transformer takes a
    tenth longer. On a mesh x and the result are sharded by batch (`sharded_by_batch`).

    On one CPU device, for float32, at least 256 rows, and a number of inputs that is a multiple of 512 and larger than
    that of the outputs, the gradient of the kernel is computed with 8 columns of zeros more in x. Its values are equal
    up to rounding.

    >>> linear_map(jnp.ones((2, 3, 4)), jnp.ones((4, 5))).shape
    (2, 3, 5)
    """
    kernel, batch = kernel.astype(x.dtype), x.shape[:-1]
    x = sharded_by_batch(x)
    product = _product_with_padded_gradient if _padding_is_faster(x, kernel) else jnp.matmul
    if len(batch) < 2 or not unsharded(x, *range(1, len(batch))):  # the first of merged axes may be sharded
        return sharded_by_batch(product(x, kernel))
    y = product(x.reshape(math.prod(batch), x.shape[-1]), kernel).reshape(*batch, kernel.shape[-1])
    return sharded_by_batch(y)


def _padding_is_faster(x, kernel) -> bool:
    """Whether `_product_with_padded_gradient` has the faster gradient.

    The gradient x^T g of the kernel reads columns of x. Where rows of x are a multiple of 2 kB apart, the entries of a
    column are in few sets of a CPU's cache and replace each other there.
    """
    if jax.default_backend() != "cpu" or products_are_visible() or x.dtype != jnp.float32:
        return False
    # Copying x must be cheap beside the product; jax.export also has symbolic sizes.
    static = all(isinstance(n, int) for n in (*x.shape, *kernel.shape))
    large = static and x.shape[-1] % 512 == 0 and x.shape[-1] > kernel.shape[-1] and math.prod(x.shape[:-1]) >= _ROWS
    return large and unsharded(x, *range(x.ndim)) and unsharded(kernel, 0, 1)


@jax.custom_jvp
def _product_with_padded_gradient(x, kernel):
    """x W for a matrix x; along W, its derivative is computed with zeros after each row of x."""
    return jnp.matmul(x, kernel)


@functools.partial(_product_with_padded_gradient.defjvp, symbolic_zeros=True)
def _rule(primals, tangents):
    (x, kernel), (d_x, d_kernel) = primals, tangents
    y = jnp.matmul(x, kernel)
    if isinstance(d_kernel, SymbolicZero):
        return y, jnp.matmul(d_x, kernel)
    d_y = jnp.matmul(jnp.pad(x, [(0, 0), (0, _ZEROS)]), jnp.pad(d_kernel, [(0, _ZEROS), (0, 0)]))
    return y, d_y if isinstance(d_x, SymbolicZero) else d_y + jnp.matmul(d_x, kernel)


def affine_map(
    x: Float[AnyArray, "*batch in"], kernel: Float[AnyArray, "in out"], bias: Float[AnyArray, "out"] | None
) -> Float[Array, "*batch out"]:
    """x W + b, in the dtype of x.

    >>> affine_map(jnp.array([1.0, 2.0]), jnp.eye(2), jnp.array([0.0, 1.0]))
    Array([1., 3.], dtype=float32)
    """
    y = linear_map(x, kernel)
    # Broadcast explicitly: implicit rank promotion may be an error (jax_numpy_rank_promotion).
    return y if bias is None else y + jnp.broadcast_to(bias.astype(x.dtype), y.shape)


def sharded_by_batch(x: Float[AnyArray, "..."]) -> Any:
    """x with its first axis sharded along the first axis of the mesh; a hint to the compiler, without effect on values.

    Params are then gathered, layer by layer, where a layer is computed, and their gradients are reduced. Without this
    hint XLA may choose the opposite for params in parts (`jaxblocks.sharding.fully_sharded`): it gathers and reduces
    activations, for the steps of a Llama 7B on 64 devices five times as many bytes. The other axes are left to XLA.

    The mesh is the one in context, of ``jax.set_mesh`` or of a training step, if all its axes are automatic. Where x is
    not traced, or the axis does not divide its first axis, x stays as it is.

    >>> sharded_by_batch(jnp.ones((2, 3))).shape
    (2, 3)
    """
    mesh = jax.sharding.get_abstract_mesh()
    # The constraint is for automatic axes: explicit ones have shardings in types, manual ones hold parts of arrays.
    # Eagerly there is no compiler to tell.
    if mesh.empty or set(mesh.axis_types) != {AxisType.Auto} or not isinstance(x, Tracer) or x.ndim < 2:
        return x
    axis = mesh.axis_names[0]
    # A constraint on an axis that the devices do not divide would be an error.
    if x.shape[0] % mesh.shape[axis]:
        return x
    # The compiler chooses the other axes.
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
    # Without a mesh, or with automatic axes, types do not show shardings.
    if not kinds or AxisType.Auto in kinds:
        return _on_one_device()
    return all(sharding.spec[axis] is None for axis in axes)


def _on_one_device() -> bool:
    return jax.device_count() == 1


# ---- derivative rules of products ----------------------------------------------------------------

# JAX traces a jitted function once for each value of it.
_visible = jax.make_user_context(False)


@contextmanager
def visible_products():
    """Inside, layers are traced without derivative rules of their own around products with kernels.

    For programs that read from a jaxpr where a param multiplies (`jaxblocks.ad.sites`); they do not open such a rule.

    >>> with visible_products():
    ...     products_are_visible()
    True
    """
    with _visible(True):
        yield


def products_are_visible() -> bool:
    """Whether the code is traced inside of `visible_products`.

    >>> products_are_visible()
    False
    """
    return _visible.value
