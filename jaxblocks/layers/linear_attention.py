"""Linear attention: products of features instead of the softmax, with a cost linear in the length.

Axis letters: q query positions, k key and value positions, h heads, d features that queries and keys share
(``head_dim``), v features of a value (``value_dim``). The layout is that of ``attention``.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxblocks.backend.powers_of_two import divided, unit_of
from jaxblocks.backend.precision import widen
from jaxblocks.backend.quotients import divide, vanishes
from jaxblocks.backend.sliding_windows import in_chunks
from jaxblocks.checks.errors import describe, require
from jaxblocks.checks.expectations import PositiveInt, checked
from jaxblocks.checks.layer_inputs import check_groups_of_heads

__all__ = ["linear_attention"]


@checked
def linear_attention(
    q: Float[Array, "*batch time_q heads head_dim"],
    k: Float[Array, "*batch time_k kv_heads head_dim"],
    v: Float[Array, "*batch time_k kv_heads value_dim"],
    *,
    causal: bool = False,
    chunk: PositiveInt = 64,
    mask: Bool[Array, "..."] | None = None,
) -> Float[Array, "*batch time_q heads value_dim"]:
    r"""Attention with weights $w_{ij} ∝ ϕ(q_i) · ϕ(k_j)$, $ϕ(x) = elu(x) + 1$.

    The weights are positive and sum to 1 over j, like those of the softmax, but the products can be computed in another
    order: $ϕ(Q) (ϕ(K)ᵀ V)$ divided by $ϕ(Q) (ϕ(K)ᵀ 1)$. So no weight is computed. It
    takes 2 time head_dim value_dim multiplications per head; ``attention`` takes time^2 (head_dim + value_dim). (The
    lecture states that a cost of about O(T) is possible, without a method.)

    Args:
        q, k, v: as in `attention`, grouped heads included.
        causal: query i attends to keys j <= i only, by sums over all earlier chunks and weights within a chunk. Memory
            is linear in the length too.
        chunk: the number of positions in a chunk.
        mask: boolean ``(*batch, time_k)``, or ``(*batch, 1, 1, time_k)`` as the layer `Attention` passes it; True at
            valid keys and False at padding. The contents of k and v at padding have no effect, even if they are NaN.
            (Keys and values after a causal query must be finite.)

    The second derivative of $ϕ$ jumps from 1 to 0 at 0, and is 1 there; all others are exact.

    Half precision is summed in float32. The output is zero for a query whose keys are all masked, and for one whose
    features all underflow (every entry of q_i below -100 in float32).

    Raises:
        ValueError: for shapes that do not fit together; for ``causal`` with time_q and time_k different.
        TypeError: for integer inputs, or a mask that is not boolean.

    >>> q, k, v = jnp.zeros((3, 1, 2)), jnp.zeros((3, 1, 2)), jnp.arange(3.0)[:, None, None]
    >>> jax.jit(linear_attention, static_argnames="causal")(q, k, v, causal=True).ravel()
    Array([0. , 0.5, 1. ], dtype=float32)

    Source: Katharopoulos et al. 2020, Transformers are RNNs, arXiv:2006.16236; Diehl 2023, remark 2.5.
    """
    check_groups_of_heads(q, k)
    got = f"{describe(q)} and {describe(k)}"
    repair = "pass causal=False, so that all queries attend to all keys"
    require(not causal or q.shape[-3] == k.shape[-3], "equal numbers of queries and keys with causal=True", got, repair)
    if mask is not None:
        of_keys, of_scores = (*k.shape[:-3], k.shape[-3]), (*k.shape[:-3], 1, 1, k.shape[-3])
        expected = f"mask of shape (*batch, time_k) = {of_keys}, or {of_scores}, since it computes no weights of pairs"
        require(mask.shape in (of_keys, of_scores), expected, mask, "pass a mask of keys, or use attention")
        mask = mask[..., 0, 0, :] if mask.shape == of_scores else mask
    dtype, n, heads = v.dtype, q.shape[-3], q.shape[-2]
    q, k, v = (jnp.moveaxis(widen(x), -3, -2) for x in (q, k, v))  # (*batch, heads, time, features)
    valid = None if mask is None else mask[..., None, :, None]  # (*batch, 1, time_k, 1)
    if valid is not None:  # also before the feature map, so that padding has no gradient
        k, v = jnp.where(valid, k, 0.0), jnp.where(valid, v, 0.0)
    q, k = _phi(q), _phi(k)
    # In a unit of the largest feature of each query, so that no product overflows.
    q = divided(q, unit_of(jnp.max(q, -1, keepdims=True, initial=0)))
    if valid is not None:
        k = jnp.where(valid, k, 0.0)
    if k.shape[-3] != heads:  # (*batch, heads, time, features), each head of keys repeated for its group
        k, v = (jnp.repeat(x, heads // x.shape[-3], -3) for x in (k, v))
    if causal:
        chunk = min(chunk, max(n, 1)) if isinstance(n, int) else chunk  # jax.export also has symbolic sizes
        q, k, v = (in_chunks(x, chunk) for x in (q, k, v))  # (*batch, heads, count, chunk, features)
        before = _sum_before(jnp.matmul(k.mT, v))  # (*batch, heads, count, head_dim, value_dim)
        near = jnp.tril(jnp.matmul(q, k.mT))  # (*batch, heads, count, chunk, chunk): the only weights that are computed
        out = jnp.matmul(q, before) + jnp.matmul(near, v)
        ones = _sum_before(jnp.sum(k, -2, keepdims=True))  # (*batch, heads, count, 1, head_dim)
        total = jnp.sum(q * ones, -1, keepdims=True) + jnp.sum(near, -1, keepdims=True)
        out, total = (
            x.reshape(*x.shape[:-3], x.shape[-3] * x.shape[-2], x.shape[-1])[..., :n, :] for x in (out, total)
        )
    else:
        out = jnp.matmul(q, jnp.matmul(k.mT, v))  # (*batch, heads, time_q, value_dim)
        total = jnp.sum(q * jnp.sum(k, -2, keepdims=True), -1, keepdims=True)
    none = vanishes(total)
    out = jnp.where(none, 0.0, divide(out, jnp.where(none, 1.0, total)))
    return jnp.moveaxis(out, -3, -2).astype(dtype)


def _phi(x):
    """elu(x) + 1, computed as x + 1 or exp(x), so that it stays positive where elu rounds to -1."""
    return jnp.where(x > 0, x + 1, jnp.exp(jnp.where(x > 0, 0.0, x)))


def _sum_before(x):
    """Exclusive cumulative sum over chunks (axis -3), which does not read later chunks."""
    shifted = jnp.pad(x, [(0, 0)] * (x.ndim - 3) + [(1, 0), (0, 0), (0, 0)])[..., :-1, :, :]
    return jnp.cumsum(shifted, -3)
