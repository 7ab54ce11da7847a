"""Scaled dot-product attention, in one step or in parts."""

import functools
from collections.abc import Callable
from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Integer, Key, Real

from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import NonNegativeInt, PositiveFloat, PositiveInt, Rate, checked
from jaxblocks.layers.attention.fused import fused_attention
from jaxblocks.layers.attention.scores import ScoreOptions, attention_of_rows, averages_of, score_arrays
from jaxblocks.layers.attention.tiles import Parts, by_blocks, by_chunks, by_tiles, choose_parts

__all__ = ["Bias", "Scale", "SegmentIds", "attention", "attention_weights", "attention_with_weights"]

Scale: TypeAlias = float | int | Real[Array, ""] | Literal["inverse_sqrt"] | None
Bias: TypeAlias = Float[Array, "..."] | Callable | None
SegmentIds: TypeAlias = Integer[Array, "..."] | tuple[Integer[Array, "..."], Integer[Array, "..."]] | None
Window: TypeAlias = PositiveInt | tuple[NonNegativeInt, NonNegativeInt] | None
Offset: TypeAlias = Integer[Array, ""] | int | Literal["last", "first"]


@checked
def attention(
    q: Float[Array, "*batch time_q heads head_dim"],
    k: Float[Array, "*batch time_k kv_heads head_dim"],
    v: Float[Array, "*batch time_k kv_heads value_dim"],
    *,
    scale: Scale = "inverse_sqrt",
    causal: bool = False,
    sliding_window: Window = None,
    soft_cap: PositiveFloat | None = None,
    score_fn: Callable | None = None,
    dropout: Rate = 0.0,
    implementation: Literal["einsum", "chunked", "fused"] | None = None,
    chunk: PositiveInt = 128,
    mask: Bool[Array, "..."] | None = None,
    bias: Bias = None,
    sink: Float[Array, "heads"] | None = None,
    segment_ids: SegmentIds = None,
    offset: Offset = "last",
    key: Key[Array, ""] | None = None,
) -> Float[Array, "*batch time_q heads value_dim"]:
    """Attention of each query to all keys, per head: softmax(scale * Q K^T) V.

    out_i = sum_j w_ij v_j with w_ij = exp(s_ij) / sum_l exp(s_il) and scores s_ij = scale <q_i, k_j>, for query
    position i and key positions j. Keys and values are a set: the same permutation of both changes nothing, and a
    permutation of the queries permutes the output. Self-attention takes q, k and v from one sequence, cross-attention
    k and v from another. The cost is quadratic: 2 time_q time_k (head_dim + value_dim) operations per head.

    **Heads.** ``heads`` is a multiple r of ``kv_heads``: queries of head h attend to keys of head h // r, as if each
    head of keys were repeated r times (grouped-query attention; multi-query for ``kv_heads`` = 1).

    **Scores.** ``scale``: the default ``"inverse_sqrt"`` is 1/sqrt(head_dim), which keeps the variance of the
    scores at one for independent standard normal q and k. ``None`` does not scale, as in the lectures; note that
    ``scale=None`` of ``jax.nn.dot_product_attention`` means 1/sqrt(head_dim). A number multiplies the scores.
    ``soft_cap`` c replaces s by c tanh(s / c), and then ``score_fn`` by any function of the scores,
    ``score_fn(scores, offset)``: it maps scores ``(*batch, heads, time_q, time_k)``, float32 for half precision, of
    queries whose positions are ``offset`` larger than those of the keys, to scores of the same shape (``score_mod`` of
    FlexAttention). ``bias`` is added after that. It is an array ``(*batch, heads, time_q, time_k)`` whose axes but the
    last may have size one, or a function ``bias(heads, time_q, time_k, offset)``, such as ``alibi``, that returns
    ``(heads, time_q, time_k)``. Both functions are called for one chunk at a time, so that the whole result need not be
    in memory; where they return -inf, the key is masked.

    **Masking.** Query i has the position p = i + ``offset`` among the keys. The ``offset`` is an integer, or names two
    positions that coincide: ``"last"`` (time_k - time_q) those of the last query and the last key, so that one new
    query attends to a whole cache; ``"first"`` (0) those of the first query and the first key, as in ``is_causal`` of
    torch and ONNX. They differ only where time_q and time_k do. A query attends to key j only if all of the given
    conditions hold:

    - ``causal``: j <= p.
    - ``sliding_window`` (a, b): p - a <= j <= p + b, as ``local_window_size`` of ``jax.nn.dot_product_attention``. One
      number w stands for (w - 1, w - 1), with ``causal`` for (w - 1, 0), the last w keys up to p.
    - ``segment_ids``, integers ``(*batch, time)`` or a pair of them for queries and keys: query and key are in the same
      segment, where several sequences are packed into one.
    - ``mask``, boolean with the axes ``(*batch, heads, time_q, time_k)``, is True. Any axis but the last may have size
      one, which broadcasts.

    Weights of masked keys are exactly zero; their values must still be finite, since 0 * inf is not zero.

    Offsets that differ between examples are those of a map over examples, ``jax.vmap(lambda q, k, v, offset:
    attention(q, k, v, causal=True, offset=offset))``. For caches of one size with n valid keys each
    (``nonpad_kv_seqlen`` of ONNX) the offsets n - time_q mask the others too; without ``causal`` the mask is
    ``(jnp.arange(time_k) < n[:, None])[:, None, None, :]``.

    **Sinks.** ``sink`` is one logit z for each head, a key without a value: w_ij = exp(s_ij) / (exp(z) + sum_l
    exp(s_il)), so that the weights of a query sum to less than one, and a head need not attend to any key. It is
    neither scaled nor capped nor masked. Zeros are ``add_zero_attn`` of torch. A learned key and value, ``bias_k`` and
    ``bias_v`` of torch, ``(*batch, 1, heads, features)``, come first, where causal order does not mask them:
    ``attention(q, jnp.concatenate([bias_k, k], -3), jnp.concatenate([bias_v, v], -3))``, with one more column of True
    in a ``mask``.

    **Fully masked rows** (or ``time_k = 0`` keys; a sink does not count). The output is zero and so is the gradient.
    (``jax.nn`` averages the masked values; torch returns NaN or zeros.) ``mask.any(-1).all()`` says whether a mask has
    none.

    **Dropout.** ``dropout`` is the probability of setting a weight to zero; the others are divided by 1 - dropout. It
    needs ``key``. For one ``key`` and the same shapes, draws do not depend on the implementation.

    **Implementations.** ``"einsum"`` stores all time_q time_k weights of all heads. ``"chunked"`` processes ``chunk``
    queries at a time and recomputes their weights in the backward pass, so memory is linear in the length. With a
    ``sliding_window`` it skips keys outside the windows of a chunk, so that time is linear too; with ``causal`` it
    skips most of the masked keys. Forward mode and second derivatives are exact in both.
    ``"fused"`` is cuDNN's kernel behind ``jax.nn.dot_product_attention``, on GPU and for half precision, with a
    ``head_dim`` that is a multiple of 8 up to 256, ``causal``, ``sliding_window`` and arrays of ``bias``; it has a
    reverse rule only (no ``jvp``, no second derivatives), so it is never chosen automatically.

    ``None`` uses chunks where time_q time_k is larger than 1024^2. On GPUs and TPUs, without a window, they are larger
    than ``chunk``, up to 2^25 scores of all heads (of one call: ``vmap`` multiplies them), and fewer scores are not
    split. On one CPU device, with ``causal`` or a ``sliding_window``, blocks of queries skip masked keys; from 2^22
    scores of all heads on (2^23 with neither), a compiled program is a loop over tiles of examples and heads that fit
    into the caches, and recomputes their weights in the backward pass (not with a function of biases or scores).

    Half precision inputs are multiplied without conversion, with sums and softmax in float32. Where ``q`` and ``k``
    differ in precision, JAX promotes them (with ``jax_numpy_dtype_promotion="strict"`` this is its error); the output
    has the dtype of ``v``.

    **Layout.** The axis of heads comes after time. In torch's layout ``(*batch, heads, time, head_dim)`` each position
    would attend among its heads. That is an error where these heads would not form groups, or where a mask or a bias
    fits torch's layout only. Without these, shapes do not show it. Convert with ``jnp.swapaxes(x, -3, -2)``. Nor do
    they show an array without an axis of heads: ``(batch, time, features)`` counts as ``(time, heads, head_dim)``. For
    one head write ``attention(q[..., None, :], k[..., None, :], v[..., None, :])[..., 0, :]``.

    Raises:
        ValueError: for shapes that do not fit together and options out of range.
        TypeError: for integer inputs or a mask that is not boolean.

    >>> x = jnp.array([[0.0, 1.0], [2.0, 0.0], [1.0, 1.0]])[
    ...     :, None, :
    ... ]  # (time, heads, head_dim)
    >>> out = jax.jit(attention, static_argnames="causal")(x, x, x, causal=True)
    >>> print(out[0])
    [[0. 1.]]

    Source: Vaswani et al. 2017, Attention is all you need, arXiv:1706.03762, section 3.2.1; Diehl 2023, section 2.2.
    Chunks: Rabe & Staats 2021, Self-attention does not need O(n^2) memory, arXiv:2112.05682. Grouped heads: Ainslie et
    al. 2023, GQA, arXiv:2305.13245. Sinks: Xiao et al. 2023, Efficient streaming language models with attention sinks,
    arXiv:2309.17453; as a logit, OpenAI 2025, gpt-oss-120b & gpt-oss-20b model card, arXiv:2508.10925.
    Functions of scores: Dong et al. 2024, FlexAttention, arXiv:2412.05496.
    """
    options = _options(q, k, scale, causal, sliding_window, soft_cap, score_fn, offset, dropout, key)
    if implementation == "fused":
        not_supported = dict(soft_cap=soft_cap, score_fn=score_fn, dropout=dropout or None, sink=sink)
        not_supported |= dict(mask=mask, segment_ids=segment_ids)
        return fused_attention(q, k, v, options.offset, scale, causal, options.window, bias, **not_supported)
    arrays, options = score_arrays(q, k, v, options, mask, bias, segment_ids, sink)
    out = _in_parts(arrays, options, key, choose_parts(arrays, options, implementation, chunk))
    # (*batch, heads, time_q, value_dim) to (*batch, time_q, heads, value_dim)
    return jnp.moveaxis(out, -3, -2).astype(v.dtype)


@checked
def attention_weights(
    q: Float[Array, "*batch time_q heads head_dim"],
    k: Float[Array, "*batch time_k kv_heads head_dim"],
    *,
    scale: Scale = "inverse_sqrt",
    causal: bool = False,
    sliding_window: Window = None,
    soft_cap: PositiveFloat | None = None,
    score_fn: Callable | None = None,
    mask: Bool[Array, "..."] | None = None,
    bias: Bias = None,
    sink: Float[Array, "heads"] | None = None,
    segment_ids: SegmentIds = None,
    offset: Offset = "last",
) -> Float[Array, "*batch heads time_q time_k"]:
    """Attention weights of each query: softmax over k of scale * <q, k>.

    Each row ``weights[..., h, i, :]`` is a probability vector over the key positions, or zeros where all keys are
    masked for query i. With a ``sink`` it sums to less than one. Arguments and errors as in `attention`. Scores and
    softmax are computed in float32 for half precision inputs.

    >>> q, k = jnp.zeros((1, 1, 4)), jnp.ones((2, 1, 4))
    >>> attention_weights(q, k)
    Array([[[0.5, 0.5]]], dtype=float32)

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.1; Diehl 2023, section 2.2.
    """
    options = _options(q, k, scale, causal, sliding_window, soft_cap, score_fn, offset)
    arrays, options = score_arrays(q, k, None, options, mask, bias, segment_ids, sink)
    attend, rows = attention_of_rows(arrays, options)
    # Without values there is no product to divide after: the output is the normalized weights.
    weights = attend(0, rows)
    return weights.astype(k.dtype)


@checked
def attention_with_weights(
    q: Float[Array, "*batch time_q heads head_dim"],
    k: Float[Array, "*batch time_k kv_heads head_dim"],
    v: Float[Array, "*batch time_k kv_heads value_dim"],
    *,
    scale: Scale = "inverse_sqrt",
    causal: bool = False,
    sliding_window: Window = None,
    soft_cap: PositiveFloat | None = None,
    score_fn: Callable | None = None,
    dropout: Rate = 0.0,
    mask: Bool[Array, "..."] | None = None,
    bias: Bias = None,
    sink: Float[Array, "heads"] | None = None,
    segment_ids: SegmentIds = None,
    offset: Offset = "last",
    key: Key[Array, ""] | None = None,
) -> tuple[Float[Array, "*batch time_q heads value_dim"], Float[Array, "*batch heads time_q time_k"]]:
    """Attention of each query to all keys, and the weights: ``(w V, w)`` with w = softmax(scale * Q K^T).

    Arguments, shapes and errors as in `attention`; the weights are those that multiply the values, after the dropout.
    All of them are in memory. As ``attention_fn`` it makes the layer `Attention` return its weights too.

    >>> x = jnp.zeros((3, 1, 4))  # (time, heads, head_dim)
    >>> out, weights = attention_with_weights(x, x, x, causal=True)
    >>> print(weights[0, 1])
    [0.5 0.5 0. ]
    >>> layer = Attention(2, attention_fn=attention_with_weights)
    >>> params = layer.init(jax.random.key(0), jnp.ones((3, 8)))
    >>> out, weights = jax.jit(layer.apply)(params, jnp.ones((3, 8)))
    >>> out.shape, weights.shape
    ((3, 8), (2, 3, 3))

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.1.
    """
    options = _options(q, k, scale, causal, sliding_window, soft_cap, score_fn, offset, dropout, key)
    arrays, options = score_arrays(q, k, None, options, mask, bias, segment_ids, sink)
    attend, rows = attention_of_rows(arrays, options, key)
    weights = attend(0, rows)
    out = averages_of(weights.astype(v.dtype), jnp.moveaxis(v, -3, -2))
    return jnp.moveaxis(out, -3, -2).astype(v.dtype), weights.astype(v.dtype)


def _options(q, k, scale, causal, sliding_window, soft_cap, score_fn, offset, dropout=0.0, key=None) -> ScoreOptions:
    """The options of the scores from the arguments."""
    require(key is not None or not dropout, f"a key for dropout={dropout}", "none", "pass key=, or dropout=0")
    window = None
    if sliding_window is not None:
        before, after = sliding_window if isinstance(sliding_window, (tuple, list)) else (sliding_window - 1,) * 2
        # With causal order the part of the window after the query is masked anyway; 0 lets chunks skip those keys.
        window = before, 0 if causal else after
    first = {"last": k.shape[-3] - q.shape[-3], "first": 0}[offset] if isinstance(offset, str) else offset
    return ScoreOptions(scale, causal, window, soft_cap, first, dropout=dropout, score_fn=score_fn)


def _in_parts(arrays, options: ScoreOptions, key, parts: Parts):
    """The output, computed in these parts."""
    static = all(option is None or isinstance(option, (int, float, tuple)) for option in options)
    # An offset that counts the positions of a cache would make a program for each number.
    static = static and options.offset in (0, arrays["k"].shape[-2] - arrays["q"].shape[-2])
    return (_jitted_parts if static else _of_parts)(options, parts, arrays, key)


def _of_parts(options: ScoreOptions, parts: Parts, arrays, key):
    n_k, time_last, stored = arrays["k"].shape[-2], parts.tile is not None, bool(parts.tile or parts.chunk)

    def run(arrays, first=0):
        attend, rows = attention_of_rows(arrays, options, key, first=first, time_last=time_last, stored=stored)
        if parts.chunk:
            attend = functools.partial(by_chunks, attend, chunk=parts.chunk)
        return by_blocks(attend, rows, n_k, options, parts.block) if parts.block else attend(0, rows)

    if parts.tile is None:
        return run(arrays)
    return by_tiles(run, arrays | {name: arrays[name].mT for name in ("k", "v")}, parts.tile)


# Attention of equal shapes is traced, differentiated and lowered once, and an eager call is one program. Functions of
# biases and scores are called in each trace.
_jitted_parts = jax.jit(_of_parts, static_argnums=(0, 1))
