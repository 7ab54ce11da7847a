"""Linear attention: products of features in place of the softmax, so that the cost grows with the length only.

Axis letters: q query positions, k key and value positions, h heads, d features that queries and keys share
(``head_dim``), v features of a value (``value_dim``). The layout is that of ``attention``.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxblocks.checks import describe, require_floating, require_mask, require_whole
from jaxblocks.precision import widen

__all__ = ["linear_attention"]


def linear_attention(
    q: Float[Array, "*batch time_q heads head_dim"],
    k: Float[Array, "*_batch time_k kv_heads _head_dim"],
    v: Float[Array, "*_batch _time_k _kv_heads value_dim"],
    causal: bool = False,
    chunk: int = 64,
    *,
    mask: Bool[Array, "*_batch _time_k"] | None = None,
) -> Float[Array, "*batch time_q heads value_dim"]:
    r"""Attention of weights :math:`w_{ij} \propto \phi(q_i) \cdot \phi(k_j)`, :math:`\phi(x) = \mathrm{elu}(x) + 1`.

    The weights are positive and sum to 1 over j, as those of the softmax, but their sums can be taken in another
    order: :math:`\phi(Q) (\phi(K)^\top V)` divided by :math:`\phi(Q) (\phi(K)^\top 1)`. So no weight is ever formed: 2
    time head_dim value_dim multiplications per head where ``attention`` takes time^2 (head_dim + value_dim). (The
    lecture says that cost of about O(T) is possible, and leaves open how.)

    Args:
        q, k, v: as in ``attention``, grouped heads included.
        causal: query i sees keys j <= i only; sums over all chunks before, weights within a chunk. Memory is linear in
            the length too.
        chunk: positions of such a chunk.
        mask: boolean ``(*batch, time_k)``, true where there is a key and not padding. What k and v hold at padding
            has no effect, even if it is NaN. (What is later than a causal query must be finite.)

    Half precision is summed in float32. A query that sees no key returns zeros, and so does one whose features all
    underflow (every entry of q_i below -100 in float32).

    Raises:
        ValueError: for shapes that do not fit together; for ``causal`` with time_q and time_k different.
        TypeError: for integer inputs, or a mask that is not boolean.

    >>> q, k, v = jnp.zeros((3, 1, 2)), jnp.zeros((3, 1, 2)), jnp.arange(3.0)[:, None, None]
    >>> linear_attention(q, k, v, causal=True).ravel()
    Array([0. , 0.5, 1. ], dtype=float32)

    Source: Katharopoulos et al. 2020, Transformers are RNNs; Diehl 2023, remark 2.5.
    """
    _check(q, k, v, causal, chunk, mask)
    dtype, n, heads = v.dtype, q.shape[-3], q.shape[-2]
    q, k, v = (jnp.moveaxis(widen(x), -3, -2) for x in (q, k, v))  # (*batch, heads, time, features)
    there = None if mask is None else mask[..., None, :, None]
    if there is not None:  # before the features too, so that padding has no gradient
        k, v = jnp.where(there, k, 0.0), jnp.where(there, v, 0.0)
    q, k = _phi(q), _phi(k)
    if there is not None:
        k = jnp.where(there, k, 0.0)
    if k.shape[-3] != heads:  # (*batch, heads, time, features), each head of keys repeated for its group
        k, v = (jnp.repeat(x, heads // x.shape[-3], -3) for x in (k, v))
    if causal:
        q, k, v = (_chunked(x, min(chunk, max(n, 1))) for x in (q, k, v))  # (*batch, heads, count, chunk, features)
        before = _sum_before(jnp.matmul(k.mT, v))  # (*batch, heads, count, head_dim, value_dim)
        near = jnp.tril(jnp.matmul(q, k.mT))  # (*batch, heads, count, chunk, chunk): the only weights ever formed
        out = jnp.matmul(q, before) + jnp.matmul(near, v)
        ones = _sum_before(jnp.sum(k, -2, keepdims=True))  # (*batch, heads, count, 1, head_dim)
        total = jnp.sum(q * ones, -1, keepdims=True) + jnp.sum(near, -1, keepdims=True)
        out, total = (
            x.reshape(*x.shape[:-3], x.shape[-3] * x.shape[-2], x.shape[-1])[..., :n, :] for x in (out, total)
        )
    else:
        out = jnp.matmul(q, jnp.matmul(k.mT, v))  # (*batch, heads, time_q, value_dim)
        total = jnp.sum(q * jnp.sum(k, -2, keepdims=True), -1, keepdims=True)
    out = jnp.where(total == 0, 0.0, out / jnp.where(total == 0, 1.0, total))
    return jnp.moveaxis(out, -3, -2).astype(dtype)


def _phi(x):
    """elu(x) + 1, which is x + 1 or exp(x): as exp, so that it stays positive where elu is rounded to -1."""
    return jnp.where(x > 0, x + 1, jnp.exp(jnp.where(x > 0, 0.0, x)))


def _chunked(x, chunk):
    """Time cut into chunks, the last one filled up with zeros: (..., time, f) to (..., count, chunk, f)."""
    count = -(-x.shape[-2] // chunk)
    x = jnp.pad(x, [(0, 0)] * (x.ndim - 2) + [(0, count * chunk - x.shape[-2]), (0, 0)])
    return x.reshape(*x.shape[:-2], count, chunk, x.shape[-1])


def _sum_before(x):
    """Sums over all chunks (axis -3) that stand before; what comes later is never touched, not even to cancel."""
    shifted = jnp.pad(x, [(0, 0)] * (x.ndim - 3) + [(1, 0), (0, 0), (0, 0)])[..., :-1, :, :]
    return jnp.cumsum(shifted, -3)


def _check(q, k, v, causal, chunk, mask):
    require_floating("linear_attention", q=q, k=k, v=v)
    chunk = require_whole("linear_attention", "chunk", chunk)
    shapes = f"q is {describe(q)}, k {describe(k)} and v {describe(v)}"
    if min(q.ndim, k.ndim, v.ndim) < 3:
        raise ValueError(
            f"linear_attention expects q, k and v (..., time, heads, features), but {shapes}; write q[..., None, :] "
            "for one head."
        )
    same = q.shape[:-3] == k.shape[:-3] and q.shape[-1] == k.shape[-1] and k.shape[:-1] == v.shape[:-1]
    if not same or q.shape[-2] % max(k.shape[-2], 1):
        raise ValueError(
            "linear_attention expects q (*batch, time_q, heads, head_dim), k (*batch, time_k, kv_heads, head_dim) and "
            f"v (*batch, time_k, kv_heads, value_dim) with kv_heads a divisor of heads, but {shapes}; project or "
            "repeat what differs."
        )
    if causal and q.shape[-3] != k.shape[-3]:
        raise ValueError(
            f"linear_attention expects as many queries as keys where it is causal, but {shapes}; for queries that see "
            "all keys, pass causal=False."
        )
    if mask is not None:
        require_mask("linear_attention", mask, (*k.shape[:-3], k.shape[-3]))
