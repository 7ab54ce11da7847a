"""Rows of the zoo: attention and positions."""

import functools
import itertools
import math

import jax.numpy as jnp
import numpy as np
from specimen import Specimen

from jaxblocks import (
    Attention,
    CachedAttention,
    LearnedPositions,
    RMSNorm,
    SinusoidalPositions,
    alibi,
    attention,
    initializers,
    rotary,
)
from jaxblocks.layers import RelativePositionBias

VALID = np.array([[True, True, False, True], [True, True, True, True], [False, True, True, False]])


def dense(p, x):
    return np.einsum("...i,io->...o", x, p["kernel"]) + p.get("bias", 0)


def rms(x, scale):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * scale


def turned(x, base):
    """Each pair (i, i + d/2) of (..., time, heads, d) as a complex number, times exp(i t b^(-2i/d))."""
    half = x.shape[-1] // 2
    angles = np.arange(x.shape[-3])[:, None] * base ** (-np.arange(half) / half)
    pairs = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angles)[:, None]
    return np.concatenate([pairs.real, pairs.imag], -1)


PLACES = np.array([[0, 1, 2, 9], [5, 3, 30, 4]], np.int32)


def distance_bias(embedding, queries, keys):
    """T5's buckets of both directions in a loop: exact distances, then geometric steps up to ``max_distance``."""
    n = len(embedding) // 2
    farthest = {3: 4, 4: 6}[n]
    bias = np.zeros((embedding.shape[1], len(queries), len(keys)))
    for (i, s), (j, t) in itertools.product(enumerate(queries), enumerate(keys)):
        bucket = distance = abs(int(t) - int(s))
        if distance >= n // 2:
            grown = math.log(distance / (n // 2)) / math.log(farthest / (n // 2)) * (n - n // 2)
            bucket = min(n // 2 + int(grown + 1e-9), n - 1)
        bias[:, i, j] = embedding[bucket + n * (t > s)]
    return bias


def attend(p, *inputs, heads, kv_heads=None, scale=None, normed=False, seen=None, base=None, slopes=None, bias=None):
    """Attention in a loop over queries; ``seen(b, i, j)``: whether query i attends to key j."""
    of_q, of_k, of_v = inputs * 3 if len(inputs) == 1 else (*inputs, inputs[-1])[:3]
    maps = zip(("query", "key", "value"), (of_q, of_k, of_v), (heads, *[kv_heads or heads] * 2), strict=True)
    q, k, v = (dense(p[name], x).reshape(*x.shape[:-1], n, -1) for name, x, n in maps)
    if normed:  # over the features of all heads
        q, k = (
            rms(x.reshape(*x.shape[:-2], -1), p[name]["scale"]).reshape(x.shape)
            for x, name in ((q, "query_norm"), (k, "key_norm"))
        )
    if base:
        q, k = turned(q, base), turned(k, base)
    out = np.zeros((*q.shape[:-1], v.shape[-1]))
    for b, i, h in np.ndindex(q.shape[:-1]):
        own = h * k.shape[-2] // heads
        scores = k[b, :, own] @ q[b, i, h] * (q.shape[-1] ** -0.5 if scale is None else scale)
        if slopes:
            scores = scores - slopes[h] * np.abs(i - np.arange(k.shape[1]))
        scores = scores if bias is None else scores + bias[h, i]
        allowed = np.array([seen is None or bool(seen(b, i, j)) for j in range(k.shape[1])])
        weights = np.where(allowed, np.exp(scores), 0)
        total = weights.sum() + (np.exp(p["sink"][h]) if "sink" in p else 0)
        out[b, i, h] = weights @ v[b, :, own] / max(total, 1e-300)
    out = out.reshape(*out.shape[:-2], -1)
    return dense(p["out"], out)


def sinusoids(x):
    t, i = np.arange(x.shape[-2])[:, None], np.arange(x.shape[-1])[None]
    angles = t / 10000 ** (i // 2 * 2 / x.shape[-1])
    return np.where(i % 2 == 0, np.sin(angles), np.cos(angles))


def past(b, i, j):
    return j <= i


ROWS = {
    "Attention": Specimen("Attention", Attention(2), ((3, 4, 6),), functools.partial(attend, heads=2)),
    "Attention, causal, grouped heads, window, rotary, chunks": Specimen(
        "Attention",
        Attention(
            4,
            head_dim=2,
            kv_heads=2,
            causal=True,
            positions=rotary,
            attention_fn=functools.partial(attention, sliding_window=2, implementation="chunked", chunk=3),
        ),
        ((3, 5, 6),),
        functools.partial(attend, heads=4, kv_heads=2, seen=lambda b, i, j: i - 2 < j <= i, base=10000),
    ),
    "Attention with norms of queries and keys": Specimen(
        "Attention",
        Attention(2, qk_norm=RMSNorm, qk_norm_axis="heads", positions=rotary),
        ((3, 4, 8),),
        functools.partial(attend, heads=2, normed=True, base=10000),
    ),
    "Attention to a context, single, without scale": Specimen(
        "Attention",
        Attention(
            1,
            head_dim=4,
            value_dim=3,
            use_bias=("query", "out"),
            attention_fn=functools.partial(attention, scale=None),
        ),
        ((3, 2, 6), (3, 4, 5)),
        functools.partial(attend, heads=1, scale=1.0),
    ),
    "Attention with a mask of keys": Specimen(
        "Attention",
        Attention(2, dropout=0.4, score_bias=alibi),
        ((3, 4, 6),),
        lambda p, x: attend(
            p,
            np.where(VALID[..., None], x, 0),
            heads=2,
            seen=lambda b, i, j: VALID[b, j],
            slopes=(2**-4, 2**-8),
        ),
        {"mask": jnp.asarray(VALID)},
    ),
    "Attention with sinks": Specimen(
        "Attention",
        Attention(2, causal=True, use_sink=True),
        ((3, 4, 6),),
        functools.partial(attend, heads=2, seen=past),
    ),
    "Attention with a cache": Specimen(
        "CachedAttention",
        CachedAttention(Attention(2, causal=True, positions=rotary, head_dim=4), 12),
        ((3, 4, 6),),
        functools.partial(attend, heads=2, seen=past, base=10000),
    ),
    "Attention with a learned bias": Specimen(
        "Attention",
        Attention(2, score_bias=RelativePositionBias(2, buckets=6, max_distance=4), use_bias=("query",)),
        ((3, 4, 6),),
        lambda p, x: attend(
            p, x, heads=2, bias=distance_bias(p["score_bias"]["embedding"], np.arange(4), np.arange(4))
        ),
    ),
    "RelativePositionBias": Specimen(
        "RelativePositionBias",
        RelativePositionBias(2, buckets=8, max_distance=6),
        (PLACES, PLACES[:, :3] + 4),
        lambda p, s, t: np.stack([distance_bias(p["embedding"], *one) for one in zip(s, t, strict=True)]),
    ),
    "SinusoidalPositions": Specimen(
        "SinusoidalPositions", SinusoidalPositions(), ((3, 4, 6),), lambda p, x: x + sinusoids(x)
    ),
    "SinusoidalPositions stateful": Specimen(
        "SinusoidalPositions", SinusoidalPositions(stateful=True), ((3, 4, 6),), lambda p, x: x + sinusoids(x)
    ),
    "LearnedPositions": Specimen(
        "LearnedPositions",
        LearnedPositions(5, embedding_init=initializers.normal(1.0)),
        ((3, 4, 6),),
        lambda p, x: x + p["embedding"][:4],
    ),
    "LearnedPositions stateful": Specimen(
        "LearnedPositions", LearnedPositions(12, stateful=True), ((3, 4, 6),), lambda p, x: x + p["embedding"][:4]
    ),
}
