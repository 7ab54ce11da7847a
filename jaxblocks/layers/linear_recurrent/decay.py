"""Linear attention that forgets: sums over keys that decay with time, and the delta rule, which replaces values."""

import math

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxblocks.backend.precision import full_precision, widen
from jaxblocks.backend.sliding_windows import in_chunks
from jaxblocks.backend.varying import varying_like
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import PositiveInt, checked
from jaxblocks.checks.layer_inputs import check_groups_of_heads
from jaxblocks.checks.values import check_range
from jaxblocks.layers.linear_recurrent.recurrence import linear_recurrence

__all__ = ["gated_linear_attention"]


@checked
def gated_linear_attention(
    q: Float[Array, "*batch time heads head_dim"],
    k: Float[Array, "*batch time kv_heads head_dim"],
    v: Float[Array, "*batch time kv_heads value_dim"],
    log_decay: Float[Array, "..."] | None = None,
    beta: Float[Array, "*batch time kv_heads"] | None = None,
    initial: Float[Array, "*batch kv_heads head_dim value_dim"] | None = None,
    *,
    chunk: PositiveInt | None = None,
) -> tuple[Float[Array, "*batch time heads value_dim"], Float[Array, "*batch kv_heads head_dim value_dim"]]:
    r"""Outputs and last carry of causal linear attention whose carry decays, or is corrected by the delta rule.

    For each head, with $g_t$ = ``log_decay``, without ``beta`` and with it,

    .. math::

        S_t = e^{g_t} ⊙ S_{t-1} + k_t v_tᵀ,
        S_t = e^{g_t} ⊙ S_{t-1} + β_t k_t (v_t - (e^{g_t} ⊙ S_{t-1})ᵀ k_t)ᵀ,
        o_t = S_tᵀ q_t

    The delta rule is a step of gradient descent on $|S^T k_t - v_t|^2 / 2$, of size $β_t$: it replaces the value that
    the carry has for $k_t$. Its carry stays bounded for $β_t |k_t|^2$ from 0 to 2, so normalize the keys and take β
    from a `sigmoid`. The rules have names:

    - linear, neither ``log_decay`` nor ``beta``: linear attention without feature map and normalization;
    - gated, ``log_decay``: retention (RetNet) where it is a constant $log γ$, gated retention and Mamba-2 where it
      depends on the input, gated linear attention (GLA) where each feature of the key has its own;
    - delta, ``beta``: DeltaNet;
    - gated delta, both: Gated DeltaNet, or Kimi delta attention with a decay for each feature.

    Within a chunk all pairs are computed in parallel; the delta rule also solves a triangular system there (the WY
    representation of products of reflections). Carries are computed at the ends of chunks only, in parallel by
    `linear_recurrence`, or with ``beta`` one after another. The cost is linear in time; a piece of one step is a step
    of decoding.

    Args:
        q, k, v: as in `attention`, grouped heads included; scale q or k before, if the scores are to be scaled.
        log_decay: the logarithm of the decay at each step, at most 0, for each head ``(*batch, time,
            kv_heads)`` or for each feature of its keys, of the shape of k; by default 0. Below -100 it is -100.
        beta: β, for each head; ``None`` for sums of values.
        initial: the carry before the first step, by default 0.
        chunk: time steps in a chunk; by default 64, and 16 for a decay of each feature, which needs memory for time ×
            chunk × head_dim numbers.

    Half precision is computed in float32; the carry is returned in float32.

    Raises:
        ValueError: for shapes that do not fit together, and for a positive ``log_decay`` where its values are known,
            outside of ``jit``; there the carry grows.

    >>> one = jnp.ones((3, 1, 1))
    >>> outputs, carry = gated_linear_attention(one, one, one, jnp.log(0.5 * one[..., 0]))
    >>> outputs.ravel(), carry.ravel()
    (Array([1.  , 1.5 , 1.75], dtype=float32), Array([1.75], dtype=float32))
    >>> v = jnp.array([2.0, 4.0, 8.0])[:, None, None]
    >>> gated_linear_attention(one, one, v, beta=0.5 * one[..., 0])[0].ravel()
    Array([1.  , 2.5 , 5.25], dtype=float32)

    Source: Sun et al. 2023, Retentive network, arXiv:2307.08621; Yang et al. 2023, Gated linear attention transformers
    with hardware-efficient training, arXiv:2312.06635; Dao & Gu 2024, Transformers are SSMs, arXiv:2405.21060; Yang et
    al. 2024, Parallelizing linear transformers with the delta rule over sequence length, arXiv:2406.06484; Yang, Kautz
    & Hatamizadeh 2024, Gated delta networks, arXiv:2412.06464.
    """
    heads, kv_heads, dtype, time = q.shape[-2], k.shape[-2], v.dtype, q.shape[-3]
    check_groups_of_heads(q, k)
    if log_decay is not None:
        fits = log_decay.shape in (k.shape[:-1], k.shape)
        expected = f"log_decay of shape {k.shape[:-1]}, or {k.shape} for a decay of each feature of the keys"
        require(fits, expected, log_decay, "broadcast it to one of them: jnp.broadcast_to")
        check_range("log_decay", log_decay, -math.inf, 0, "make it from a gate by -softplus(gate), or jnp.log(decay)")
    if not time:
        first = jnp.zeros((*k.shape[:-3], kv_heads, k.shape[-1], v.shape[-1]), widen(k).dtype)
        return jnp.zeros((*q.shape[:-1], v.shape[-1]), dtype), first if initial is None else widen(initial)
    per_feature = log_decay is not None and log_decay.ndim == k.ndim
    chunk = chunk or (16 if per_feature else 64)
    chunk = min(chunk, time) if isinstance(time, int) else chunk  # jax.export also has symbolic sizes
    log_decay = jnp.zeros(k.shape[:-1], k.dtype) if log_decay is None else log_decay
    log_decay = log_decay if per_feature else log_decay[..., None]
    # Sums of larger ones have rounding errors that are not small for the steps after them.
    log_decay = jnp.maximum(log_decay, -100.0)
    # (*batch, kv_heads, heads of a group, chunks, chunk, features)
    q = _chunked(q, chunk)
    q = q.reshape(*q.shape[:-4], kv_heads, heads // kv_heads, *q.shape[-3:])
    k, v, g = (_chunked(x, chunk)[..., None, :, :, :] for x in (k, v, log_decay))
    g = jnp.cumsum(g, -2)  # from the beginning of the chunk
    if initial is None:
        first = jnp.zeros_like(k[..., 0, :1, :].mT * v[..., 0, :1, :])  # sharded as these are
    else:
        first = widen(initial)[..., None, :, :]
    if beta is None:
        # Each chunk adds its keys, decayed to its end; padding at the end is decayed by e^0.
        added = jnp.matmul((k * jnp.exp(g[..., -1:, :] - g)).mT, v)
        after = linear_recurrence(jnp.exp(g[..., -1:, :]).mT, added, first, axis=-3)
        before = jnp.concatenate([first[..., None, :, :], after[..., :-1, :, :]], -3)
        last = lax.index_in_dim(after, -1, -3, keepdims=False)
    else:
        v, before, last = _replacing(k, v, g, _chunked(beta[..., None], chunk)[..., None, :, :, :], first)
    out = jnp.matmul(q * jnp.exp(g), before) + jnp.matmul(_decayed_products(q, k, g), v)
    # Two axes after each other, which keeps the sharding of the others.
    out = out.reshape(*out.shape[:-3], out.shape[-3] * chunk, out.shape[-1])[..., :time, :]
    out = out.reshape(*out.shape[:-4], heads, *out.shape[-2:])
    return jnp.moveaxis(out, -2, -3).astype(dtype), jnp.squeeze(last, -3)


def _decayed_products(a, b, g):
    """Σ_d a_td b_sd exp(g_td - g_sd) for s ≤ t within a chunk, else 0."""
    steps = jnp.arange(g.shape[-2])
    near = steps[:, None] >= steps[None]
    if g.shape[-1] == 1:
        near = jnp.broadcast_to(near, (*g.shape[:-2], *near.shape))
        # Set to 0 before the exponential, which is infinite for a later step.
        return jnp.where(near, jnp.exp(jnp.where(near, g - g.mT, 0)), 0) * jnp.matmul(a, b.mT)
    between = g[..., :, None, :] - g[..., None, :, :]
    near = jnp.broadcast_to(near[..., None], between.shape)
    weights = jnp.where(near, jnp.exp(jnp.where(near, between, 0)), 0)
    return jnp.sum(a[..., :, None, :] * b[..., None, :, :] * weights, -1)


@full_precision()
def _replacing(k, v, g, beta, first):
    """What the delta rule adds to the key of each step, carries before each chunk, and the last one.

    The added values $u_t = β_t (v_t - (e^{g_t} ⊙ S_{t-1})^T k_t)$ turn the delta rule into sums of $k_t u_t^T$. Within
    a chunk they solve a triangular system, whose right side is linear in the carry before the chunk.
    """
    right = beta * jnp.concatenate([v, k * jnp.exp(g)], -1)
    own, of_carry = jnp.split(jnp.matmul(_inverse(beta * _decayed_products(k, k, g)), right), [v.shape[-1]], -1)
    kept, keys = jnp.exp(g[..., -1:, :]).mT, (k * jnp.exp(g[..., -1:, :] - g)).mT

    def step(carry, now):
        own, of_carry, kept, keys = now
        u = own - jnp.matmul(of_carry, carry)
        return kept * carry + jnp.matmul(keys, u), (u, carry)

    chunks = tuple(jnp.moveaxis(x, -3, 0) for x in (own, of_carry, kept, keys))
    last, (u, before) = lax.scan(step, varying_like(first, *chunks), chunks)
    return jnp.moveaxis(u, 0, -3), jnp.moveaxis(before, 0, -3), last


def _inverse(below):
    """The inverse of the identity plus the entries of a matrix below its diagonal, by blocks of 1, 2, 4, ... rows.

    The inverse of two diagonal blocks a, b with l below them has the inverses on its diagonal and -b⁻¹ l a⁻¹ below.
    Products of matrices are parallel on every device; those of a power series of the matrix would grow beyond the
    inverse where keys repeat.
    """
    rows = below.shape[-1]
    whole = 1 << (rows - 1).bit_length()
    below = jnp.pad(below, [(0, 0)] * (below.ndim - 2) + [(0, whole - rows)] * 2)
    inverse = jnp.ones_like(below[..., :1])[..., None]  # (..., blocks, size, size), sharded as below
    size = 1
    while size < whole:
        blocks = whole // (2 * size), 2 * size
        # One axis after the other, which keeps the sharding of the others.
        pairs = below.reshape(*below.shape[:-2], *blocks, whole).reshape(*below.shape[:-2], *blocks, *blocks)
        below_a = jnp.moveaxis(jnp.diagonal(pairs, axis1=-4, axis2=-2), -1, -3)[..., size:, :size]
        a, b = inverse[..., 0::2, :, :], inverse[..., 1::2, :, :]
        corner = -jnp.matmul(b, jnp.matmul(below_a, a))
        inverse = jnp.block([[a, jnp.zeros_like(a)], [corner, b]])
        size *= 2
    return inverse[..., 0, :rows, :rows]


def _chunked(x, chunk):
    """(..., time, heads, features) to (..., heads, count, chunk, features), the last chunk padded with zeros."""
    return in_chunks(jnp.moveaxis(widen(x), -3, -2), chunk)
