"""Linear attention whose sums decay, by a factor for each head and step: retention, and the duality of Mamba-2."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxblocks.backend.precision import widen
from jaxblocks.checks.expectations import PositiveInt, checked
from jaxblocks.layers.linear_recurrent.recurrence import linear_recurrence

__all__ = ["gated_linear_attention"]


@checked
def gated_linear_attention(
    q: Float[Array, "*batch time heads head_dim"],
    k: Float[Array, "*batch time heads head_dim"],
    v: Float[Array, "*batch time heads value_dim"],
    log_decay: Float[Array, "*batch time heads"],
    initial: Float[Array, "*batch heads head_dim value_dim"] | None = None,
    *,
    chunk: PositiveInt = 64,
) -> tuple[Float[Array, "*batch time heads value_dim"], Float[Array, "*batch heads head_dim value_dim"]]:
    r"""Outputs and last carry of causal linear attention that forgets: sums over keys that decay with time.

    For each head, with $g_t$ = ``log_decay``,

    .. math::

        S_t = e^{g_t} S_{t-1} + k_t v_tᵀ,
        o_t = S_tᵀ q_t = ∑_{s ≤ t} e^{g_{s+1} + … + g_t} (q_t · k_s) v_s

    A constant $g_t = log γ$ is retention (RetNet), one that depends on the input is gated retention and the state
    space duality of Mamba-2; with g = 0 it is linear attention without feature map and normalization. Within a chunk
    the weights of all pairs are computed, and carries only at the ends of chunks (`linear_recurrence`). The cost is
    linear in time; a piece of one step is a step of decoding.

    Args:
        q, k, v: as in `attention`; scale q or k before, if the scores are to be scaled.
        log_decay: the logarithm of the decay at each step, at most 0; ``jnp.log(gamma)`` for retention.
        initial: the carry before the first step, by default 0.
        chunk: time steps in a chunk.

    Half precision is computed in float32; the carry is returned in float32.

    >>> one = jnp.ones((3, 1, 1))
    >>> outputs, carry = gated_linear_attention(one, one, one, jnp.log(0.5 * one[..., 0]))
    >>> outputs.ravel(), carry.ravel()
    (Array([1.  , 1.5 , 1.75], dtype=float32), Array([1.75], dtype=float32))

    Source: Sun et al. 2023, Retentive network, arXiv:2307.08621; Yang et al. 2023, Gated linear attention transformers
    with hardware-efficient training, arXiv:2312.06635; Dao & Gu 2024, Transformers are SSMs, arXiv:2405.21060.
    """
    dtype, time = v.dtype, q.shape[-3]
    q, k, v = (jnp.moveaxis(widen(x), -3, -2) for x in (q, k, v))  # (*batch, heads, time, features)
    first = jnp.zeros((*q.shape[:-2], q.shape[-1], v.shape[-1]), q.dtype) if initial is None else widen(initial)
    if not time:
        return jnp.moveaxis(v, -2, -3).astype(dtype), first
    chunk = min(chunk, time)
    q, k, v, g = (_chunked(x, chunk) for x in (q, k, v, widen(log_decay).mT[..., None]))
    g = jnp.cumsum(g, -2)  # (*batch, heads, count, chunk, 1), from the beginning of the chunk
    total = g[..., -1:, :]
    # Each chunk adds its keys, decayed to its end; padding at the end is decayed by e^0.
    added = jnp.matmul((k * jnp.exp(total - g)).mT, v)  # (*batch, heads, count, head_dim, value_dim)
    after = linear_recurrence(jnp.exp(total), added, first, axis=-3)
    before = jnp.concatenate([first[..., None, :, :], after[..., :-1, :, :]], -3)
    steps = jnp.arange(chunk)
    near = jnp.broadcast_to(steps[:, None] >= steps[None], (*g.shape[:-2], chunk, chunk))
    # Set to 0 before the exponential, which is infinite for a later key.
    weights = jnp.where(near, jnp.exp(jnp.where(near, g - g.mT, 0)), 0)
    out = jnp.matmul(q * jnp.exp(g), before) + jnp.matmul(weights * jnp.matmul(q, k.mT), v)
    out = out.reshape(*out.shape[:-3], out.shape[-3] * chunk, out.shape[-1])[..., :time, :]
    return jnp.moveaxis(out, -2, -3).astype(dtype), lax.index_in_dim(after, -1, -3, keepdims=False)


def _chunked(x, chunk):
    """Split time into chunks, the last one padded with zeros: (..., time, f) to (..., count, chunk, f)."""
    count = -(-x.shape[-2] // chunk)
    x = jnp.pad(x, [(0, 0)] * (x.ndim - 2) + [(0, count * chunk - x.shape[-2]), (0, 0)])
    return x.reshape(*x.shape[:-2], count, chunk, x.shape[-1])
