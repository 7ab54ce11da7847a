"""The selective state space of Mamba: a diagonal recurrence whose step size, input and output depend on the input."""

import math
from collections.abc import Callable
from typing import Literal, TypedDict, Unpack, overload

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jaxblocks import initializers
from jaxblocks.activations import softplus, softplus_inverse
from jaxblocks.backend.linear_maps import affine_map, along_batch
from jaxblocks.backend.precision import widen
from jaxblocks.backend.sliding_windows import in_chunks
from jaxblocks.backend.symbolic_sizes import at_most
from jaxblocks.backend.varying import varying_like
from jaxblocks.checks.expectations import PositiveInt, check_params, checked
from jaxblocks.checks.values import check_range
from jaxblocks.core.pairs import Layer, StatefulLayer, builder
from jaxblocks.layers.linear_recurrent.carried import layer_over_time
from jaxblocks.layers.linear_recurrent.recurrence import linear_recurrence

__all__ = ["SelectiveSSM", "selective_scan"]


@checked
def selective_scan(
    x: Float[Array, "*batch time features"],
    step: Float[Array, "*batch time features"],
    a: Float[Array, "features state"],
    b: Float[Array, "*batch time state"],
    c: Float[Array, "*batch time state"],
    skip: Float[Array, "features"] | None = None,
    initial: Float[Array, "*batch features state"] | None = None,
    *,
    chunk: PositiveInt = 64,
) -> tuple[Float[Array, "*batch time features"], Float[Array, "*batch features state"]]:
    r"""Outputs and last carry of the selective state space, discretized by ``step``.

    .. math::

        h_t = exp(Δ_t A) ⊙ h_{t-1} + (Δ_t x_t) b_tᵀ,
        y_t = h_t c_t + D ⊙ x_t

    where the carry h has one row of ``state`` entries for each feature, Δ is ``step`` and D is ``skip``. Steps of one
    chunk are computed in parallel and chunks one after another; the gradient computes the carries of a chunk again,
    so that no array of time × features × state entries is stored.

    Args:
        x: the input.
        step: Δ, positive; 0 leaves the carry as it is.
        a: A, negative, so that the carry decays.
        b, c: input and output of the carry, at each step.
        skip: D; by default 0.
        initial: the carry before the first step, by default 0.
        chunk: time steps in a chunk.

    Half precision is computed in float32; the carry is returned in float32.

    Raises:
        ValueError: for shapes that do not fit together, and for a negative ``step`` or a positive ``a`` where their
            values are known, outside of ``jit``; there the carry grows.

    >>> x, one = jnp.array([[1.0], [0.0]]), jnp.ones((2, 1))
    >>> y, carry = selective_scan(x, one, -jnp.log(jnp.full((1, 1), 2.0)), one, one)
    >>> y.ravel(), carry.ravel()
    (Array([1. , 0.5], dtype=float32), Array([0.5], dtype=float32))

    Source: Gu & Dao 2023, Mamba: linear-time sequence modeling with selective state spaces, arXiv:2312.00752.
    """
    check_range("step", step, 0, math.inf, "make it positive, by softplus(step)")
    check_range("a", a, -math.inf, 0, "make it negative, by -jnp.exp(a_log)")
    dtype, time = x.dtype, x.shape[-2]
    x, step, a, b, c = map(widen, (x, step, a, b, c))
    h = jnp.zeros((*x.shape[:-2], *a.shape), x.dtype) if initial is None else widen(initial)
    h = varying_like(h, x, step, a, b, c)
    inputs = (step, step * x, b, c)

    @jax.checkpoint
    def run(a, h, chunk):
        step, driven, b, c = chunk
        decay = jnp.exp(step[..., None] * jnp.broadcast_to(a, (*step.shape, a.shape[-1])))
        h = linear_recurrence(decay, driven[..., None] * b[..., None, :], h, axis=-3)
        return lax.index_in_dim(h, -1, -3, keepdims=False), jnp.sum(h * c[..., None, :], -1)

    if at_most(time, chunk):
        h, y = run(a, h, inputs) if time else (h, x)
    else:
        # In the padding a step of 0 leaves the carry as it is.
        chunks = tuple(jnp.moveaxis(in_chunks(each, chunk), -3, 0) for each in inputs)
        h, y = lax.scan(lambda h, each: run(a, h, each), h, chunks)
        y = jnp.moveaxis(y, 0, -3)
        y = y.reshape(*y.shape[:-3], y.shape[-3] * chunk, y.shape[-1])[..., :time, :]
    y = y if skip is None else y + along_batch(skip, x) * x
    return y.astype(dtype), h


class _Options(TypedDict, total=False):
    rank: int | None
    chunk: int
    kernel_init: Callable
    dtype: DTypeLike | None
    param_dtype: DTypeLike


@overload
def SelectiveSSM(state_features: int, *, stateful: Literal[False] = False, **options: Unpack[_Options]) -> Layer: ...
@overload
def SelectiveSSM(state_features: int, *, stateful: Literal[True], **options: Unpack[_Options]) -> StatefulLayer: ...
@builder
def SelectiveSSM(
    state_features: PositiveInt,
    *,
    rank: PositiveInt | None = None,
    chunk: PositiveInt = 64,
    stateful: bool = False,
    kernel_init: Callable = initializers.lecun_normal(),
    dtype: DTypeLike | None = None,
    param_dtype: DTypeLike = jnp.float32,
) -> Layer | StatefulLayer:
    r"""The selective state space `selective_scan`, with step, input and output that are linear in x.

    $(r_t, b_t, c_t) = x_t W$, $Δ_t = softplus(r_t V + v)$ and $A = -e^a$, with the params W ``projection_kernel``,
    (features, rank + 2 state_features), V ``step_kernel``, (rank, features), v ``step_bias``, a ``a_log``, (features,
    state_features), and D ``skip``. Initially A is -1, -2, ..., -state_features for each feature, and Δ is between
    0.001 and 0.1 (uniform in its logarithm) where r is 0.

    It is the core of the Mamba block, which has a projection to two parts, a causal `DepthwiseConv` and `silu` before
    it, and a product with the `silu` of the other part and a projection after it.

    Args:
        state_features: entries of the carry for each feature, 16 in Mamba.
        rank: features of r; by default a sixteenth of the features of x, rounded up.
        chunk: as in `selective_scan`.
        stateful: ``True`` makes a ``StatefulLayer`` whose state is the carry, for sequences in pieces and for decoding
            step by step.
        kernel_init: of W and V.
        dtype, param_dtype: as in `Dense`. The carry is float32 where the arithmetic has half precision.

    Shapes: ``(..., time, features)`` to the same, with a carry ``(..., features, state_features)``. There is no
    ``mask``: put padding at the end.

    >>> net = SelectiveSSM(4)
    >>> params = net.init(jax.random.key(0), jnp.zeros((8, 5, 3)))
    >>> jax.jit(net.apply)(params, jnp.ones((8, 5, 3))).shape
    (8, 5, 3)

    Source: Gu & Dao 2023, arXiv:2312.00752.
    """
    state = state_features

    def draw(key, features):
        width, keys = rank_of(features), jax.random.split(key, 3)
        steps = jnp.exp(jax.random.uniform(keys[2], (features,), minval=math.log(1e-3), maxval=math.log(0.1)))
        params = {
            "projection_kernel": kernel_init(keys[0], (features, width + 2 * state), param_dtype),
            "step_kernel": kernel_init(keys[1], (width, features), param_dtype),
            "step_bias": softplus_inverse(steps),
            "a_log": jnp.log(jnp.broadcast_to(jnp.arange(1.0, state + 1, dtype=jnp.float32), (features, state))),
            "skip": jnp.ones(features),
        }
        return {name: param.astype(param_dtype) for name, param in params.items()}

    def rank_of(features):
        return rank or -(-features // 16)

    def run(params, carry, x):
        features = x.shape[-1]
        width = rank_of(features)
        check_params(
            params,
            projection_kernel=(features, width + 2 * state),
            step_kernel=(width, features),
            step_bias=(features,),
            a_log=(features, state),
            skip=(features,),
        )
        r, b, c = jnp.split(affine_map(x, params["projection_kernel"]), [width, width + state], -1)
        # In float32 for half precision: A and the steps are exponents.
        step = softplus(widen(affine_map(r, params["step_kernel"])) + along_batch(params["step_bias"], widen(x)))
        a = -jnp.exp(params["a_log"].astype(carry.dtype))
        return selective_scan(x, step, a, b, c, params["skip"], carry, chunk=chunk)

    return layer_over_time(draw, run, lambda features: (features, state), stateful, dtype)
