"""Scaled dot-product attention, in one step or in chunks of queries.

Internally, the layout is (heads, position, features), so that every product is a matrix product; weights
are normalized after the product with the values, which has fewer entries.
"""

import functools
import operator
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Integer, Key, Real

from jaxblocks.checks import NonNegativeInt, PositiveFloat, PositiveInt, Rate, checked
from jaxblocks.errors import describe, require
from jaxblocks.layers.attention.fused import fused_attention
from jaxblocks.linear_maps import unsharded
from jaxblocks.precision import wide_dtype
from jaxblocks.value_checks import check_values, checkable

__all__ = [
    "Bias",
    "Scale",
    "ScoreOptions",
    "SegmentIds",
    "attention",
    "attention_of_rows",
    "attention_weights",
    "attention_with_weights",
    "by_chunks",
]

Scale: TypeAlias = float | int | Real[Array, ""] | Literal["inverse_sqrt"] | None
Bias: TypeAlias = Float[Array, "..."] | Callable | None
SegmentIds: TypeAlias = Integer[Array, "..."] | tuple[Integer[Array, "..."], Integer[Array, "..."]] | None
Window: TypeAlias = PositiveInt | tuple[NonNegativeInt, NonNegativeInt] | None
Offset: TypeAlias = Integer[Array, ""] | int | Literal["last", "first"]

# Scores per head from which queries are chunked. Measured (benchmarks/attention.py; CPU, 8 heads of 64), time
# chunked / einsum: of the gradient 1.3 to 1.4 at 256 x 256, 0.7 to 1.4 at 512 x 512, 0.65 to 1.25 from 1024 x 1024 on
# (lower for small batches); of the forward pass 1.0 to 1.4, 0.85 to 1.05, 0.4 to 0.75. Memory: 1/35 at 8192 x 8192.
_CHUNKED_FROM = 1024 * 1024

# Blocks of queries without the keys that are masked for all of them, on CPU (benchmarks/RESULTS.md). Causal, time of
# the gradient relative to einsum, in blocks of 64 | 128 | 256 queries: 0.52 | 0.62 | - at 256 x 256, 0.85 | 0.76 | 0.84
# at 512 x 512, - | 0.65 | 0.66 at 1024 x 1024. For longer sequences, chunks in 4 groups take 0.70 of the time of chunks
# alone; 8 groups take 0.66, and 1.7 times the memory of 4.
_BLOCKS_FROM, _BLOCKS_TO, _MOST_BLOCKS, _GROUPS = 128, 1024 * 1024, 8, 4


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
    dropout: Rate = 0.0,
    fully_masked: Literal["zero", "error"] = "zero",
    implementation: Literal["einsum", "chunked", "fused"] | None = None,
    chunk: PositiveInt = 128,
    mask: Bool[Array, "..."] | None = None,
    bias: Bias = None,
    segment_ids: SegmentIds = None,
    offset: Offset = "last",
    key: Key[Array, ""] | None = None,
    check: bool = False,
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
    ``soft_cap`` c replaces s by c tanh(s / c). ``bias`` is added after that. It is an array ``(*batch, heads, time_q,
    time_k)`` whose axes but the last may have size one, or a function ``bias(heads, time_q, time_k, offset)``, such as
    ``alibi``, that returns ``(heads, time_q, time_k)`` for queries whose positions are ``offset`` larger than those of
    the keys. The function is called for one chunk at a time, so that the whole bias need not be in memory.

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

    **Fully masked rows** (or ``time_k = 0`` keys). ``fully_masked="zero"``: the output is zero and so is the
    gradient. (``jax.nn`` averages the masked values; torch returns NaN or zeros.) ``"error"``: an eager call
    raises; under ``jit`` such rows are NaN, or with ``check=True`` reported to ``jax.experimental.checkify``.

    **Dropout.** ``dropout`` is the probability of setting a weight to zero; the others are divided by 1 - dropout. It
    needs ``key``. For one ``key`` and the same shapes, draws do not depend on the implementation.

    **Implementations.** ``"einsum"`` stores all time_q time_k weights of all heads. ``"chunked"`` processes ``chunk``
    queries at a time and recomputes their weights in the backward pass, so memory is linear in the length. It has no
    custom derivative rule, so forward mode and second derivatives are exact. With a ``sliding_window`` it skips
    keys outside the windows of a chunk, so that time is linear too; with ``causal`` it skips most of the masked keys.
    ``None`` uses chunks from time_q time_k = 1024^2 on: on CPU the gradient at length 8192 then takes 1/35 of the
    memory, in 0.65 to 1.25 of the time. Up to that size, with ``causal`` or a ``sliding_window``, and on one CPU, it
    stores the weights of blocks of queries that skip masked keys; causal gradients take 0.5 to 0.8 of the time of
    ``"einsum"``.
    ``"fused"`` is cuDNN's kernel behind ``jax.nn.dot_product_attention``, on GPU and for half precision, with
    ``causal``, ``sliding_window`` and arrays of ``bias``; it has a reverse rule only (no ``jvp``, no second
    derivatives), so it is never chosen automatically.

    Half precision inputs are multiplied without conversion, with sums and softmax in float32.

    **Layout.** The axis of heads comes after time. In torch's layout ``(*batch, heads, time, head_dim)`` each position
    would attend among its heads. That is an error where these heads would not form groups, or where a mask or a bias
    fits torch's layout only. Without these, shapes do not show it. Convert with ``jnp.swapaxes(x, -3, -2)``.

    Raises:
        ValueError: for shapes that do not fit together and options out of range.
        TypeError: for integer inputs or a mask that is not boolean.

    >>> x = jnp.array([[0.0, 1.0], [2.0, 0.0], [1.0, 1.0]])[:, None, :]  # (time, heads, head_dim)
    >>> out = jax.jit(attention, static_argnames="causal")(x, x, x, causal=True)
    >>> print(out[0])
    [[0. 1.]]

    Source: Vaswani et al. 2017, Attention is all you need, arXiv:1706.03762, section 3.2.1; Diehl 2023, section 2.2.
    Chunks: Rabe & Staats 2021, Self-attention does not need O(n^2) memory, arXiv:2112.05682. Grouped heads: Ainslie et
    al. 2023, GQA, arXiv:2305.13245.
    """
    n_q, n_k = q.shape[-3], k.shape[-3]
    options = ScoreOptions(scale, causal, _window(sliding_window, causal), soft_cap, _offset(offset, n_q, n_k))
    if implementation == "fused":
        not_supported = dict(soft_cap=soft_cap, dropout=dropout or None, mask=mask, segment_ids=segment_ids)
        return fused_attention(
            q, k, v, options.offset, scale, causal, options.window, bias, fully_masked, **not_supported
        )
    attend, rows = attention_of_rows(q, k, v, options, mask, bias, segment_ids, dropout, key)
    static = isinstance(n_q, int) and isinstance(n_k, int)  # jax.export also has symbolic sizes, which do not compare
    long = static and n_q > chunk and n_q * n_k >= _CHUNKED_FROM
    skips = static and isinstance(options.offset, int) and unsharded(q, -3) and unsharded(k, -3)
    # Blocks slice the keys at fixed places: only where shapes and offset are static and time is not sharded.
    if implementation is None and skips and (causal or options.window) and (block := _block_size(n_q, n_k)):
        out, total = _by_blocks(attend, rows, n_k, options, block)
    elif implementation == "chunked" or (implementation is None and long):
        each = functools.partial(by_chunks, attend, chunk=chunk)
        # A few groups, each in chunks: the groups skip masked keys, the chunks bound the memory. With a window, each
        # chunk skips keys by itself.
        if skips and causal and not options.window and n_q > chunk:
            out, total = _by_blocks(each, rows, n_k, options, -(-n_q // (_GROUPS * chunk)) * chunk)
        else:
            out, total = each(0, rows)
    else:
        out, total = attend(0, rows)
    # (*batch, heads, time_q, value_dim) and (*batch, heads, time_q, 1)
    if fully_masked == "error":
        out = _nan_where_fully_masked(out, total, check)
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
    mask: Bool[Array, "..."] | None = None,
    bias: Bias = None,
    segment_ids: SegmentIds = None,
    offset: Offset = "last",
) -> Float[Array, "*batch heads time_q time_k"]:
    """Attention weights of each query: softmax over k of scale * <q, k>.

    Each row ``weights[..., h, i, :]`` is a probability vector over the key positions, or zeros where all keys are
    masked for query i. Arguments and errors as in `attention`. Scores and softmax are computed in float32 for half
    precision inputs.

    >>> q, k = jnp.zeros((1, 1, 4)), jnp.ones((2, 1, 4))
    >>> attention_weights(q, k)
    Array([[[0.5, 0.5]]], dtype=float32)

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.1; Diehl 2023, section 2.2.
    """
    offset = _offset(offset, q.shape[-3], k.shape[-3])
    options = ScoreOptions(scale, causal, _window(sliding_window, causal), soft_cap, offset)
    attend, rows = attention_of_rows(q, k, None, options, mask, bias, segment_ids)
    # Without values there is no product to divide after: the output is the normalized weights.
    weights, _ = attend(0, rows)
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
    dropout: Rate = 0.0,
    mask: Bool[Array, "..."] | None = None,
    bias: Bias = None,
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
    offset = _offset(offset, q.shape[-3], k.shape[-3])
    options = ScoreOptions(scale, causal, _window(sliding_window, causal), soft_cap, offset)
    attend, rows = attention_of_rows(q, k, None, options, mask, bias, segment_ids, dropout, key)
    weights, _ = attend(0, rows)
    out = _per_head(weights.astype(v.dtype), jnp.moveaxis(v, -3, -2))
    return jnp.moveaxis(out, -3, -2).astype(v.dtype), weights.astype(v.dtype)


# ---- the computation -------------------------------------------------------------------------


class ScoreOptions(NamedTuple):
    """The options of the scores that are not arrays of their axes."""

    scale: Any
    causal: bool
    window: tuple[int, int] | None  # keys before and after the position of a query
    soft_cap: float | None
    offset: Any  # the position of the first query


def _window(sliding_window, causal: bool) -> tuple[int, int] | None:
    """The numbers of keys before and after the position of a query."""
    if sliding_window is None:
        return None
    before, after = sliding_window if isinstance(sliding_window, (tuple, list)) else (sliding_window - 1,) * 2
    # With causal order the part of the window after the query is masked anyway; 0 lets chunks skip those keys.
    return before, 0 if causal else after


def _offset(offset, n_q, n_k):
    """The position of the first query among the keys."""
    return {"last": n_k - n_q, "first": 0}[offset] if isinstance(offset, str) else offset


def attention_of_rows(q, k, v, options: ScoreOptions, mask, bias, segment_ids, dropout=0.0, key=None, sums=False):
    """Prepare a function ``attend(start, rows)`` for the queries from ``start`` on, and the rows of all queries.

    ``attend`` returns the weighted average of the values (the weights for ``v = None``) and the sum of the
    unnormalized weights; with ``sums`` the weighted sum, the sum of the weights and the score whose weight is 1.
    ``rows`` has all arrays with an axis of queries (-2), to be split into chunks.
    """
    scale, causal, window, soft_cap, offset = options
    n_q, n_k, heads = q.shape[-3], k.shape[-3], q.shape[-2]
    _check_scores(q, k, mask, bias)
    segments = _segments(q, k, segment_ids)
    require(key is not None or not dropout, f"a key for dropout={dropout}", "none", "pass key=, or dropout=0")
    wide = wide_dtype(jnp.result_type(q, k))
    factor = max(q.shape[-1], 1) ** -0.5 if isinstance(scale, str) else scale
    early = factor is not None and q.dtype == wide  # scaling q is cheaper than scaling the scores
    if early:
        q = q * jnp.asarray(factor, wide)
    q, k = jnp.moveaxis(q, -3, -2), jnp.moveaxis(k, -3, -2)  # (*batch, heads, time, head_dim)
    v = None if v is None else jnp.moveaxis(v, -3, -2)
    # Axis -2 is split into chunks of queries, axis -1 is sliced to the keys in the windows of a chunk.
    rows, columns = {"q": q}, {}
    for name, x in {"mask": mask, "bias": bias, **segments}.items():
        if x is not None and not callable(x):
            # A mask or bias of one row serves all queries; it is not split into chunks.
            (rows if name == "q_segments" or x.shape[-2] == n_q != 1 else columns)[name] = x

    def attend(start, rows, keys=(0, n_k)) -> tuple:
        """The queries from ``start`` on and the keys between two positions, outside of which all are masked."""
        size, (begin, end) = rows["q"].shape[-2], keys
        static = isinstance(size, int) and isinstance(n_k, int)  # not the symbolic sizes of jax.export
        # With dropout all keys stay, and the draw is that of the other implementations.
        if window and static and v is not None and not dropout and (span := size + sum(window)) < end - begin:
            first = jnp.asarray(offset + start - window[0], jnp.int32)  # of the keys in the windows of these queries
            begin = jnp.clip(first, begin, end - span)
            visible = lambda x, axis: lax.dynamic_slice_in_dim(x, begin, span, axis)
        elif (begin, end) == (0, n_k):
            visible = lambda x, axis: x
        else:
            visible = lambda x, axis: lax.slice_in_dim(x, begin, end, axis=axis)

        ahead = offset + start - begin  # of the first query, from the first visible key
        scores = _per_head(rows["q"], visible(k, -2).mT)  # (*batch, heads, size, visible keys)
        if factor is not None and not early:
            scores = scores * jnp.asarray(factor, wide)
        if soft_cap is not None:
            scores = soft_cap * jnp.tanh(scores / soft_cap)
        # Arrays of rows were split by queries already, so only their key axis is sliced; q_segments has no key axis.
        own = {**{name: visible(x, -1) for name, x in columns.items()}, **rows}
        own |= {name: visible(rows[name], -1) for name in ("mask", "bias") if name in rows}
        if callable(bias):
            own["bias"] = _call_bias(bias, heads, scores.shape, ahead)
        if "bias" in own:
            scores = scores + own["bias"].astype(wide)
        allowed = [own["mask"]] if "mask" in own else []
        allowed += [own["q_segments"] == own["k_segments"]] if segments else []
        allowed += _allowed_by_position(scores.shape, ahead, causal, window)
        if allowed:
            scores = jnp.where(functools.reduce(operator.and_, allowed), scores, -jnp.inf)
        # exp(-inf) is a weight of zero; a row where all scores are -inf must not become -inf - (-inf).
        top = lax.stop_gradient(jnp.max(scores, -1, keepdims=True, initial=-jnp.inf))
        weights = jnp.exp(scores - jnp.where(top == -jnp.inf, 0.0, top))
        total = jnp.sum(weights, -1, keepdims=True)  # (*batch, heads, size, 1); zero where all keys are masked
        # Dropped weights leave the sum `total` unchanged: the others are divided by 1 - dropout instead.
        if dropout:
            kept = visible(_kept(key, start, (*weights.shape[:-1], n_k), dropout), -1)
            weights = jnp.where(kept, weights / (1 - dropout), 0.0)
        out = weights if v is None else _per_head(weights.astype(v.dtype), visible(v, -2))
        if sums:
            return out, total, top
        # Dividing after the product: (size, value_dim) numbers instead of (size, keys).
        return out / jnp.where(total == 0, 1.0, total).astype(out.dtype), total

    return attend, rows


def _allowed_by_position(shape, ahead, causal, window) -> list:
    """Boolean arrays (1, ..., queries, keys): causal order and the window, for queries ``ahead`` of the first key."""
    *front, size, n_keys = shape
    allowed = []
    if causal or window:
        positions = jnp.arange(size, dtype=jnp.int32)[:, None] + ahead
        # Leading axes of size 1, since rank promotion may be an error.
        distance = (positions - jnp.arange(n_keys, dtype=jnp.int32)[None]).reshape(*[1] * len(front), size, n_keys)
        if causal:
            allowed.append(distance >= 0)
        if window:
            allowed.append(distance <= window[0])
        if window and not causal:
            allowed.append(distance >= -window[1])
    return allowed


def _call_bias(bias, heads, shape, offset):
    """Call a bias function for scores of this shape."""
    *front, size, n_keys = shape
    y = bias(heads, size, n_keys, offset)
    expected = f"bias({heads}, {size}, {n_keys}, offset) to return (heads, time_q, time_k) = {(heads, size, n_keys)}"
    require(y.shape == (heads, size, n_keys), expected, y)
    return y.reshape(*[1] * (len(front) - 1), heads, size, n_keys)


def _segments(q, k, segment_ids) -> dict:
    """Segment ids of queries as a column, of keys as a row."""
    if segment_ids is None:
        return {}
    two = segment_ids if isinstance(segment_ids, (tuple, list)) else (segment_ids, segment_ids)
    expected = [(*x.shape[:-3], x.shape[-3]) for x in (q, k)]
    integers = all(jnp.issubdtype(one.dtype, jnp.integer) for one in two)
    fits = integers and [one.shape for one in two] == expected
    words = f"segment_ids, integers of shape {expected[0]} for the queries and {expected[1]} for the keys"
    repair = "pass one array where the two are the same, else a pair (of_queries, of_keys)"
    if integers and all(one.shape == shape[-1:] for one, shape in zip(two, expected, strict=True)):
        repair = f"write jnp.broadcast_to(segment_ids, {expected[0]})"
    require(fits, words, " and ".join(map(describe, two)), repair)
    return {"q_segments": two[0][..., None, :, None], "k_segments": two[1][..., None, None, :]}


def _block_size(n_q: int, n_k: int) -> int:
    """The queries of a block; 0 for one product of all queries and keys, or for chunks."""
    blocks = jax.default_backend() == "cpu" and n_q >= _BLOCKS_FROM and n_q * n_k <= _BLOCKS_TO
    return max(64 if n_q <= 256 else 128, -(-n_q // _MOST_BLOCKS)) if blocks else 0


def _by_blocks(attend, rows, n_k: int, options: ScoreOptions, block: int):
    """``attend(start, rows, keys)`` for blocks of the query axis (-2), with the keys that they attend to."""
    n_q, offset = rows["q"].shape[-2], options.offset
    # Without a window, all keys before a query are in reach: a number larger than any distance.
    before, after = options.window or (n_q + n_k + abs(offset),) * 2
    after, parts = 0 if options.causal else after, []
    for start in range(0, n_q, block):
        end = min(start + block, n_q)
        keys = tuple(min(max(key, 0), n_k) for key in (offset + start - before, offset + end + after))
        own = jax.tree.map(lambda x, span=(start, end): lax.slice_in_dim(x, *span, axis=-2), rows)
        parts.append(attend(start, own, keys))
    return jax.tree.map(lambda *parts: jnp.concatenate(parts, -2), *parts)


def by_chunks(attend, start: int, rows, keys=None, *, chunk: int):
    """``attend`` for chunks of the query axis (-2), which are recomputed in the backward pass."""
    attend = attend if keys is None else functools.partial(attend, keys=keys)
    n_q = rows["q"].shape[-2]
    count, size = -(-n_q // chunk), chunk
    if isinstance(n_q, int):  # and not one of the symbolic sizes of jax.export
        size = -(-n_q // max(count, 1))  # equal chunks, so that few queries are padding
        if count <= 1:
            # A single chunk is recomputed too, so that the memory of the weights is free in the forward pass.
            return jax.checkpoint(functools.partial(attend, start))(rows)

    def split(x):  # (..., n_q, m) to (count, ..., size, m)
        # The last chunk is padded with rows of zeros, which `join` cuts off.
        x = jnp.pad(x, [(0, 0)] * (x.ndim - 2) + [(0, count * size - n_q), (0, 0)])
        return jnp.moveaxis(x.reshape(*x.shape[:-2], count, size, x.shape[-1]), -3, 0)

    def join(y):
        y = jnp.moveaxis(y, 0, -3)
        return y.reshape(*y.shape[:-3], count * size, y.shape[-1])[..., :n_q, :]

    starts = jnp.arange(count, dtype=jnp.int32) * size + start
    one = jax.checkpoint(lambda chunk: attend(*chunk), prevent_cse=False)  # a loop needs no barrier against CSE
    return jax.tree.map(join, lax.map(one, (starts, jax.tree.map(split, rows))))


def _per_head(a, b):
    """Matrix products ``(*batch, heads, n, d) @ (*batch, kv_heads, d, m)``; each group of heads shares one b."""
    *batch, heads, n, d = a.shape
    kv_heads, m = b.shape[-3], b.shape[-1]
    wide = wide_dtype(jnp.result_type(a, b))
    if kv_heads == heads:
        return jnp.matmul(a, b, preferred_element_type=wide)
    r = heads // kv_heads  # split heads, then join with n: in one reshape, an explicit mesh would require shardings
    a = a.reshape(*batch, kv_heads, r, n, d).reshape(*batch, kv_heads, r * n, d)
    out = jnp.matmul(a, b, preferred_element_type=wide)
    return out.reshape(*batch, kv_heads, r, n, m).reshape(*batch, heads, n, m)


def _kept(key, start, shape, dropout):
    """The dropout mask of the weights, drawn per query from the key and its position, so that chunks do not matter."""
    *front, size, n_k = shape
    # One key for each query position; a draw for a whole chunk would depend on its size.
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(size, dtype=jnp.int32) + start)
    return jnp.moveaxis(jax.vmap(lambda key: jax.random.bernoulli(key, 1 - dropout, (*front, n_k)))(keys), 0, -2)


def _nan_where_fully_masked(out, total, check):
    """The output with NaN for queries without a key; an error where values are concrete."""
    known = checkable(total, check)
    if known is not None:
        message = "at least one key for every query, got {empty} of {all} rows (queries of each head) fully masked; "
        message += "unmask a key there, or pass fully_masked='zero' for zeros"
        check_values(known > 0, message, check=check, empty=(known == 0).sum(), all=known.size)
    return jnp.where(total == 0, jnp.nan, out)


def _check_scores(q, k, mask, bias) -> None:
    """Check that heads form groups, and that a mask and an array of biases have the axes of the scores."""
    heads, kv_heads = q.shape[-2], k.shape[-2]
    expected = "the heads of q (axis -2) to be a multiple of those of k, each group sharing one head of keys"
    from_torch = "if the axes are torch's (*batch, heads, time, head_dim), write jnp.swapaxes(x, -3, -2) for q, k and v"
    if kv_heads == 0 or heads % kv_heads:
        require(False, expected, f"{describe(q)} and {describe(k)}", from_torch if kv_heads else "give k a head")
    full = (*q.shape[:-3], heads, q.shape[-3], k.shape[-3])
    swapped = (*q.shape[:-3], q.shape[-3], heads, kv_heads)
    for name, x in {"mask": mask, "bias": bias}.items():
        if x is not None and not callable(x) and not broadcasts_to(x.shape, full):
            expected = (
                f"{name} of shape (*batch, heads, time_q, time_k) = {full}, any axis but the last of size 1 or equal"
            )
            forms = [
                (full[-2:], f"jnp.broadcast_to({name}, {full}) for axes (time_q, time_k)"),
                ((*full[:-3], full[-1]), f"{name}[..., None, None, :] for axes (*batch, time_k)"),
            ]
            # Both, where batch and time_q have one size.
            fitting = " or ".join(form for shape, form in forms if x.shape == shape)
            repair = f"write {fitting}" if fitting else f"add a missing axis: {name}[..., None, :, :]"
            require(False, expected, x, from_torch if broadcasts_to(x.shape, swapped) else repair)


def broadcasts_to(shape: tuple[int, ...], full: tuple[int, ...]) -> bool:
    """Whether a mask of this shape fits scores of shape ``full``: any axis but the last has size one or is equal."""
    same_rank = len(shape) == len(full) and shape[-1] == full[-1]
    return same_rank and all(m in (1, n) for m, n in zip(shape, full, strict=True))
