"""Attention: looking values up by how well their keys match a query.

Axis letters: q query positions (``time_q``), k key and value positions (``time_k``), h heads, g heads of keys and
values (``kv_heads``), d features that queries and keys share (``head_dim``), v features of a value (``value_dim``).

``hard_lookup`` and ``soft_lookup`` are the lecture's tables, with one head and the layout (position, features).
``attention`` and ``attention_weights`` take heads, in the layout of ``jax.nn``: (position, heads, features).
All are functions of what has already been projected. The pair ``Attention`` owns the learned maps W^Q, W^K, W^V and
the output projection, and with ``cache=`` the keys and values of what it has seen.

Inside, heads stand before positions, (heads, position, features), so that every product is one of matrices; weights
are divided by their sum after the product with the values, where there are fewer numbers.
"""

import functools
import operator
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Integer, Key, Real

from jaxblocks import initializers
from jaxblocks.checks import (
    check_values,
    checkable,
    describe,
    require_floating,
    require_key,
    require_mask,
    require_whole,
)
from jaxblocks.core import Layer, StatefulLayer, builder, child_key, require_flag, require_params
from jaxblocks.precision import wide_dtype
from jaxblocks.tensors import einsum

__all__ = ["Attention", "attention", "attention_weights", "hard_lookup", "soft_lookup"]

Scale = float | int | Real[Array, ""] | Literal["inverse_sqrt"] | None
Segments = Integer[Array, "..."] | tuple[Integer[Array, "..."], Integer[Array, "..."]] | None

# From this many scores per head on, queries go in chunks. Measured (benchmarks/attention.py; CPU, 8 heads of 64), time
# chunked / einsum: of the gradient 1.3 to 1.4 at 256 x 256, 0.7 to 1.4 at 512 x 512, 0.65 to 1.25 from 1024 x 1024 on
# (lower for small batches); of the forward pass 1.0 to 1.4, 0.85 to 1.05, 0.4 to 0.75. Memory: 1/35 at 8192 x 8192.
_CHUNKED_FROM = 1024 * 1024


def hard_lookup(
    query: Float[Array, "*queries features"],
    keys: Float[Array, "*_batch entries _features"],
    values: Float[Array, "*_batch _entries value_features"],
) -> Float[Array, "*queries value_features"]:
    """Value of the table entry whose key is the query: lookup(q) = sum_i <q, k_i> v_i.

    The keys k_i are ``keys[..., i, :]`` and should be orthonormal; then a query that equals k_i returns v_i.
    The sum is linear in each argument, so k_2 + 2 k_4 returns v_2 + 2 v_4, and the table is differentiable.

    ``keys`` is ``(*batch, entries, features)``, ``values`` ``(*batch, entries, value_features)``, and ``query`` is
    ``(*batch, *queries, features)``: one query, a row of them, or a grid, for each table. Returns
    ``(*batch, *queries, value_features)``. Raises ``ValueError`` if these shapes do not fit together. That the keys
    are orthonormal is not checked.

    >>> keys, values = jnp.eye(5), jnp.arange(10.0).reshape(5, 2)
    >>> hard_lookup(keys[2], keys, values)
    Array([4., 5.], dtype=float32)
    >>> hard_lookup(keys[2] + 2 * keys[4], keys, values)
    Array([20., 23.], dtype=float32)

    Source: Diehl 2023, example 2.3.
    """
    _check_table("hard_lookup", query, keys, values)
    found = einsum("...qd,...kd,...kv->...qv", _rows(query, keys), keys, values)
    return found.reshape(*query.shape[:-1], values.shape[-1])


def soft_lookup(
    query: Float[Array, "*queries features"],
    keys: Float[Array, "*_batch entries _features"],
    values: Float[Array, "*_batch _entries value_features"],
    scale: Scale = None,
) -> Float[Array, "*queries value_features"]:
    """Average of the table's values, weighted by how well their keys match: sum_i softmax_i(<q, k_i>) v_i.

    In matrices, softmax(Q K^T) V with the softmax along each row, for Q of shape (n_q, d), K (n_k, d), V (n_k, v).
    The lecture prints the product as (Q W^Q)^T (K W^K), which fits no shapes unless n_q = n_k and then compares
    features instead of positions; queries and keys meet in (Q W^Q)(K W^K)^T. Its form as a map of a sequence a,
    softmax(a X_q (a X_k)^T) a X_v, is ``soft_lookup(a @ X_q, a @ X_k, a @ X_v)``.

    Every answer lies in the convex hull of the values. As the query grows, the answer tends to the value whose key
    matches best: scaled by s, all others together keep a weight below (n_k - 1) exp(-s gap), where gap is the
    distance from the best to the second-best match <q, k_i>.

    Shapes and errors as in ``hard_lookup``. ``scale`` multiplies <q, k_i>: ``None`` (the lecture's form) leaves it,
    ``"inverse_sqrt"`` stands for 1/sqrt(features). This is ``attention`` with one head.

    >>> keys, values = jnp.eye(5), jnp.arange(10.0).reshape(5, 2)
    >>> print(soft_lookup(20 * keys[2], keys, values).round(3))
    [4. 5.]

    Source: Diehl 2023, example 2.3 and section 2.2.
    """
    _check_table("soft_lookup", query, keys, values)
    q, k, v = (x[..., None, :] for x in (_rows(query, keys), keys, values))  # one head
    return attention(q, k, v, scale).reshape(*query.shape[:-1], values.shape[-1])


def attention_weights(
    q: Float[Array, "*batch time_q heads head_dim"],
    k: Float[Array, "*_batch time_k _kv_heads _head_dim"],
    scale: Scale = "inverse_sqrt",
    causal: bool = False,
    sliding_window: int | None = None,
    soft_cap: float | int | None = None,
    *,
    mask: Bool[Array, "..."] | None = None,
    bias: Float[Array, "..."] | Callable | None = None,
    segment_ids: Segments = None,
) -> Float[Array, "*batch heads time_q time_k"]:
    """How much each query looks at each key: softmax over k of scale * <q, k>.

    Each row ``weights[..., h, i, :]`` is a probability vector over the key positions, or zeros where query i may look
    at nothing. Arguments and errors as in ``attention``. Scores and softmax are computed in float32 for half
    precision inputs.

    >>> q, k = jnp.zeros((1, 1, 4)), jnp.ones((2, 1, 4))
    >>> attention_weights(q, k)
    Array([[[0.5, 0.5]]], dtype=float32)

    Source: Vaswani et al. 2017, Attention is all you need, section 3.2.1; Diehl 2023, section 2.2.
    """
    return _attend(
        "attention_weights",
        q,
        k,
        None,
        scale=scale,
        causal=causal,
        sliding_window=sliding_window,
        soft_cap=soft_cap,
        mask=mask,
        bias=bias,
        segment_ids=segment_ids,
    )


def attention(
    q: Float[Array, "*batch time_q heads head_dim"],
    k: Float[Array, "*_batch time_k kv_heads _head_dim"],
    v: Float[Array, "*_batch _time_k _kv_heads value_dim"],
    scale: Scale = "inverse_sqrt",
    causal: bool = False,
    sliding_window: int | None = None,
    soft_cap: float | int | None = None,
    dropout: float | int = 0.0,
    fully_masked: Literal["zero", "error"] = "zero",
    implementation: Literal["einsum", "chunked", "fused"] | None = None,
    chunk: int = 128,
    *,
    mask: Bool[Array, "..."] | None = None,
    bias: Float[Array, "..."] | Callable | None = None,
    segment_ids: Segments = None,
    key: Key[Array, ""] | None = None,
    check: bool = False,
) -> Float[Array, "*batch time_q heads value_dim"]:
    """Attention of each query to all keys, per head: softmax(scale * Q K^T) V.

    out_i = sum_j w_ij v_j with w_ij = exp(s_ij) / sum_l exp(s_il) and scores s_ij = scale <q_i, k_j>, for query
    position i and key positions j. Keys and values are a set: permuting both alike changes nothing, and permuting the
    queries permutes the output. Self-attention takes q, k and v from one sequence, cross-attention k and v from
    another. The cost is quadratic: 2 time_q time_k (head_dim + value_dim) operations per head.

    ``q`` is ``(*batch, time_q, heads, head_dim)``, ``k`` ``(*batch, time_k, kv_heads, head_dim)``, ``v``
    ``(*batch, time_k, kv_heads, value_dim)``; returns ``(*batch, time_q, heads, value_dim)``. ``heads`` is a multiple
    r of ``kv_heads``: queries of head h look at keys of head h // r, as if each were repeated r times (grouped heads;
    multi-query for ``kv_heads`` = 1).

    **Scores.** ``scale``: the default ``"inverse_sqrt"`` is 1/sqrt(head_dim), which keeps the variance of the
    scores at one for independent standard normal q and k. ``None`` leaves them alone, as the lectures do; mind that
    ``scale=None`` of ``jax.nn.dot_product_attention`` means the former. A number is taken as it is. ``soft_cap`` c
    replaces s by c tanh(s / c). ``bias`` is added after that: an array ``(*batch, heads, time_q, time_k)`` whose axes
    but the last may have size one, or a function ``bias(heads, time_q, time_k, offset)`` that returns ``(heads, time_q,
    time_k)`` for queries that stand ``offset`` later than the keys, such as ``alibi``; it is called for one chunk at a
    time, so that not all of the bias need exist at once.

    **Who sees whom.** Queries are aligned with the last keys: query i stands at position p = i + time_k - time_q, so
    that one new query sees a whole cache. ``causal``: keys j <= p. ``sliding_window`` w: keys at distance p - j < w, with
    ``causal`` the last w up to and with p, without it |p - j| < w. ``segment_ids``: integers ``(*batch, time)``, or a
    pair of them for queries and keys, of sequences packed into one; a query sees keys of its own segment only.
    ``mask``: boolean, true where a query may look at a key, with the axes ``(*batch, heads, time_q, time_k)``; any
    axis but the last may have size one, which stands for all. All that is given must hold at once. Weights of what is
    not seen are exactly zero; masked values must still be finite, as 0 * inf is not zero.

    **Rows that see nothing** (or ``time_k = 0`` keys). ``fully_masked="zero"``: the output is zero and so is the
    gradient. (``jax.nn`` averages the values that were masked; torch returns NaN or zeros.) ``"error"``: an eager call
    raises; under ``jit`` such rows are NaN, or with ``check=True`` reported to ``jax.experimental.checkify``.

    ``dropout``: the probability with which a weight is dropped, those that stay are divided by 1 - dropout; needs ``key``.
    For one ``key`` and the same shapes, draws do not depend on the implementation.

    **Implementations.** ``"einsum"`` holds all time_q time_k weights of all heads. ``"chunked"`` takes ``chunk``
    queries at a time and recomputes their weights in the backward pass: memory is linear in the length, no rule of
    derivatives is its own, so forward mode and second derivatives are exact; with a ``sliding_window`` it skips keys that no
    query of the chunk sees, so that time is linear too. ``None`` takes chunks from time_q time_k = 1024^2 on: on CPU
    the gradient at length 8192 then takes 1/35 of the memory, at about the same time (0.65 to 1.25 of it).
    ``"fused"`` is cuDNN's kernel behind ``jax.nn.dot_product_attention``, on GPU and for half precision, with
    ``causal``, ``sliding_window`` and arrays of ``bias``; it has a reverse rule only (no ``jvp``, no second derivatives), so
    it is never taken unasked.

    Half precision inputs are multiplied as they are, with sums and softmax in float32. Raises ``ValueError`` for
    shapes that do not fit together and options out of range, ``TypeError`` for integer inputs or a mask that is not
    boolean.

    >>> x = jnp.array([[0.0, 1.0], [2.0, 0.0], [1.0, 1.0]])[:, None, :]  # (time, heads, head_dim)
    >>> print(attention(x, x, x, causal=True)[0])
    [[0. 1.]]

    Source: Vaswani et al. 2017, Attention is all you need, section 3.2.1; Diehl 2023, section 2.2. Chunks: Rabe &
    Staats 2021, Self-attention does not need O(n^2) memory. Grouped heads: Ainslie et al. 2023, GQA.
    """
    return _attend(
        "attention",
        q,
        k,
        v,
        scale=scale,
        causal=causal,
        sliding_window=sliding_window,
        soft_cap=soft_cap,
        dropout=dropout,
        fully_masked=fully_masked,
        implementation=implementation,
        chunk=chunk,
        mask=mask,
        bias=bias,
        segment_ids=segment_ids,
        key=key,
        check=check,
    )


@builder
def Attention(
    heads: int,
    *,
    head_dim: int | None = None,
    value_dim: int | None = None,
    kv_heads: int | None = None,
    features: int | None = None,
    scale: Scale = "inverse_sqrt",
    causal: bool = False,
    sliding_window: int | None = None,
    soft_cap: float | int | None = None,
    positions: Callable | None = None,
    score_bias: Callable | None = None,
    dropout: float | int = 0.0,
    fully_masked: Literal["zero", "error"] = "zero",
    implementation: Literal["einsum", "chunked", "fused"] | None = None,
    chunk: int = 128,
    cache: int | None = None,
    use_bias: bool = True,
    use_out: bool = True,
    kernel_init: Callable = initializers.lecun_normal(),
    out_kernel_init: Callable | None = None,
    bias_init: Callable = initializers.zeros,
    dtype=None,
    param_dtype=jnp.float32,
    check: bool = False,
) -> Layer | StatefulLayer:
    r"""Multi-head attention with learned maps of queries, keys, values and output.

    It is :math:`[H_1, \dots, H_h]\,W^O + b` with
    :math:`H_i = \mathrm{softmax}(s\,Q W^Q_i (K W^K_i)^\top)\,V W^V_i`.

    Heads are joined along the features of each position. (The lecture prints their stack from above with A from the
    left, which would mix positions.) The lecture's single attention is ``Attention(1, head_dim=k, value_dim=v,
    scale=None, use_bias=False, use_out=False)``.

    Inputs: ``x`` for self-attention, ``x, context`` for cross-attention (keys and values from ``context``), or ``q, k,
    v``, each ``(*batch, time, features)``. Returns ``(*batch, time, features)`` with the time of the queries. Params
    are ``{"query", "key", "value", "out"}``, each as those of ``Dense``; head i owns the columns ``i * head_dim`` to
    ``(i + 1) * head_dim`` of a kernel.

    Args:
        heads: h, of the queries.
        head_dim: features of a query and a key, by default those of the queries' input divided by ``heads``.
        value_dim: features of a value, by default ``head_dim``.
        kv_heads: heads of keys and values, a divisor of ``heads``; by default ``heads``.
        features: of the output, by default those of the queries' input.
        scale, causal, sliding_window, soft_cap, dropout, fully_masked, implementation, chunk, check: as in ``attention``. With
            ``dropout``, ``apply`` reads ``train`` (a Python bool) and ``key``, and drops while it trains.
        positions: ``positions(x, index)`` is applied to queries and to keys, ``(*batch, time, heads, head_dim)``,
            with their places in time, ``(time,)``; ``rotary`` is one. Keys stand at 0, 1, 2, ..., and queries, as in
            ``attention``, so that the last stands at the last key: query i at i + time_k - time_q, in
            cross-attention too.
        score_bias: ``score_bias(heads, time_q, time_k, offset)`` is added to the scores, as the ``bias`` of
            ``attention``; ``alibi`` is one.
        cache: with a length, a ``StatefulLayer`` for sequences that come in pieces of any size: its state, ``{"key",
            "value", "mask", "position"}``, holds keys and values of so many positions, and which of them are not
            padding. Pieces after each other give what the whole sequence gives, with the same params as without cache
            (but other weights are dropped in training). Needs ``causal``, and ``x`` as the only input.
        use_bias: ``False`` for linear maps. use_out: ``False`` for the joined heads as they are, without the params
            ``"out"``.
        kernel_init, bias_init, dtype, param_dtype: as in ``Dense``.
        out_kernel_init: as ``kernel_init``, of the kernel of ``"out"`` alone (deep nets begin with a small one); by default
            ``kernel_init``.

    Side inputs of ``apply``: ``mask``, boolean, either ``(*batch, time_k)``, true where there is a key and not padding,
    or as in ``attention``; and, without ``cache``, ``segment_ids`` as there. With the former, padding (of keys and
    values; in self-attention of queries too) is replaced by zeros before the maps, so that it has no effect and no
    gradient, even if it is NaN. With ``cache`` the former is that of the piece, ``(*batch, time)``, and is remembered;
    in the latter ``time_k`` is the cache's length.

    Raises:
        ValueError: where ``heads`` do not divide the features, for options out of range and shapes that do not fit; for
            a sequence that is longer than its cache, when that is known. Under ``jit`` the outputs are NaN from there
            on, or with ``check=True`` it is reported to ``jax.experimental.checkify``.

    >>> layer = Attention(2, causal=True)
    >>> x = jax.random.normal(jax.random.key(0), (5, 8))
    >>> params = layer.init(jax.random.key(1), x)
    >>> whole = layer.apply(params, x)
    >>> decoder = Attention(2, causal=True, cache=16)
    >>> _, state = decoder.init(jax.random.key(1), x)
    >>> first, state = decoder.apply(params, state, x[:3])
    >>> rest, state = decoder.apply(params, state, x[3:])
    >>> bool(jnp.allclose(jnp.concatenate([first, rest]), whole, atol=1e-5)), int(state["position"])
    (True, 5)

    Source: Vaswani et al. 2017, Attention is all you need, section 3.2.2; Diehl 2023, section 2.2.
    """
    kv_heads = heads if kv_heads is None else kv_heads
    for name, value in {"heads": heads, "kv_heads": kv_heads}.items():
        require_whole("Attention", name, value)
    optional = {"head_dim": head_dim, "value_dim": value_dim, "features": features, "cache": cache}
    for name, value in optional.items():
        if value is not None:
            require_whole("Attention", name, value)
    if positions is not None and not callable(positions):
        raise TypeError(
            f"Attention expects positions to be a function of (x, index), such as jaxblocks.rotary, but {positions!r} "
            "came."
        )
    if heads % kv_heads:
        raise ValueError(
            f"Attention expects kv_heads to divide heads, but heads={heads} and kv_heads={kv_heads} came; each group "
            "of heads shares one head of keys and values."
        )
    if cache is not None and not causal:
        raise ValueError(
            "Attention with a cache expects causal=True, but causal=False came: what comes later would change what "
            "was returned before."
        )
    options = dict(
        scale=scale, causal=causal, sliding_window=sliding_window, soft_cap=soft_cap, fully_masked=fully_masked
    )
    options |= dict(implementation=implementation, chunk=chunk, bias=score_bias, check=check)
    _check_options("Attention", scale, sliding_window, soft_cap, dropout, fully_masked, implementation, chunk)
    dense_names = ("kernel", "bias") if use_bias else ("kernel",)
    names = ("query", "key", "value", "out") if use_out else ("query", "key", "value")

    def roles(inputs):
        """Inputs of the queries, keys and values."""
        if not 1 <= len(inputs) <= (3 if cache is None else 1):
            expected = "x, or x and context, or q, k and v" if cache is None else "x alone, since it has a cache"
            raise TypeError(f"Attention expects {expected}, but {len(inputs)} inputs came.")
        for x in inputs:
            require_floating("Attention", input=x)
            if len(x.shape) < 2:
                raise ValueError(f"Attention expects inputs (..., time, features), but {describe(x)} came.")
        return (inputs * 3 if len(inputs) == 1 else (*inputs, inputs[-1]))[:3]

    def width(x):
        if head_dim is None and x.shape[-1] % heads:
            raise ValueError(
                f"Attention expects heads to divide the features of its input, but {describe(x)} came for {heads} "
                "heads; choose a divisor, or pass head_dim=."
            )
        return head_dim or x.shape[-1] // heads

    def init(key, *inputs):
        require_key("Attention.init", key)
        of_q, of_k, of_v = roles(inputs)
        d = width(of_q)
        v = value_dim or d
        sizes = {
            "query": (of_q.shape[-1], heads * d),
            "key": (of_k.shape[-1], kv_heads * d),
            "value": (of_v.shape[-1], kv_heads * v),
            "out": (heads * v, features or of_q.shape[-1]),
        }

        def dense(key, name, shape):
            initialize = out_kernel_init if name == "out" and out_kernel_init is not None else kernel_init
            params = {"kernel": initialize(child_key(key, "kernel"), shape, param_dtype)}
            return params | ({"bias": bias_init(child_key(key, "bias"), shape[1:], param_dtype)} if use_bias else {})

        return {name: dense(child_key(key, name), name, sizes[name]) for name in names}

    def project(params, name, x, n):
        """One dense map, its outputs shared out to n heads: (*batch, time, n, features of a head)."""
        require_params(f"Attention ({name})", params[name], *dense_names)
        kernel = params[name]["kernel"]
        if x.shape[-1] != kernel.shape[0] or kernel.shape[1] % n:
            raise ValueError(
                f"Attention expects the input of its {name} map with {kernel.shape[0]} features for {n} heads (the "
                f"kernel is {describe(kernel)}), but {describe(x)} came; pass x of that size, or params made by init."
            )
        y = jnp.matmul(x, kernel.astype(x.dtype))
        if use_bias:
            y = y + jnp.broadcast_to(params[name]["bias"].astype(x.dtype), y.shape)
        return y.reshape(*y.shape[:-1], n, y.shape[-1] // n)

    def heads_of(params, inputs, position=None):
        """Queries, keys and values of all heads; ``position`` is that of the first of each, if they are the same."""
        require_params("Attention", params, *names)
        q, k, v = (x if dtype is None else x.astype(dtype) for x in roles(inputs))
        q = project(params, "query", q, heads)  # (*batch, time_q, heads, head_dim)
        k = project(params, "key", k, kv_heads)  # (*batch, time_k, kv_heads, head_dim)
        v = project(params, "value", v, kv_heads)  # (*batch, time_k, kv_heads, value_dim)
        if positions is not None:
            of_q = k.shape[-3] - q.shape[-3] if position is None else position
            q = positions(q, jnp.arange(q.shape[-3], dtype=jnp.int32) + of_q)
            k = positions(k, jnp.arange(k.shape[-3], dtype=jnp.int32) + (0 if position is None else position))
        return q, k, v

    def joined(params, out):
        """Heads side by side, and through the output map."""
        out = out.reshape(*out.shape[:-2], out.shape[-2] * out.shape[-1])
        return project(params, "out", out, 1)[..., 0, :] if use_out else out

    def dropping(train, key):
        require_flag("Attention", train=train)
        if not train:
            return {}
        if key is None:
            raise ValueError(
                f"Attention drops weights while it trains (dropout={dropout}) and needs a key, but none came; "
                "pass key=jax.random.key(0) to apply."
            )
        return {"dropout": dropout, "key": key}

    def without_padding(inputs, mask, time_k=None):
        """The inputs with zeros at padding, the mask of keys if one came, and what mask there is for the scores."""
        if mask is None:
            return inputs, None, None
        of_q, of_k, _ = roles(inputs)
        batch, own = of_q.shape[:-2], of_k.shape[-2]
        if not _is_of_keys(mask, (*batch, own), (*batch, heads, of_q.shape[-2], time_k or own)):
            return inputs, None, mask

        def cleaned(x):  # where shapes do not fit, a later check says so
            return jnp.where(mask[..., None], x, jnp.zeros((), x.dtype)) if x.shape[:-1] == mask.shape else x

        apart = len(inputs) > 1  # whether queries have an input of their own, which the mask is not about
        return (*inputs[:apart], *map(cleaned, inputs[apart:])), mask, None

    def attend(params, inputs, mask, segment_ids, train=False, key=None):
        inputs, of_keys, mask = without_padding(inputs, mask)
        q, k, v = heads_of(params, inputs)
        mask = mask if of_keys is None else of_keys[..., None, None, :]
        given = options | dropping(train, key)
        return joined(params, _attend("Attention", q, k, v, mask=mask, segment_ids=segment_ids, **given))

    def attend_to_cache(params, state, inputs, mask, train=False, key=None):
        require_params("Attention (state)", state, "key", "value", "mask", "position")
        position = state["position"]  # of the first query; so many keys are in the cache
        inputs, of_keys, mask = without_padding(inputs, mask, cache)
        q, k, v = heads_of(params, inputs, position)
        room = _require_room(state, k, position, check)
        of_keys = jnp.ones_like(k[..., 0, 0], bool) if of_keys is None else of_keys  # (*batch, time)
        kept = {
            name: lax.dynamic_update_slice_in_dim(
                _laid_out_as(x, state[name]), x.astype(state[name].dtype), position, axis
            )
            for name, x, axis in (("key", k, -3), ("value", v, -3), ("mask", of_keys, -1))
        }
        given = options | dropping(train, key)
        k, v = kept["key"].astype(q.dtype), kept["value"].astype(q.dtype)
        there = kept["mask"][..., None, None, :]
        mask = there if mask is None else mask & there
        out = joined(params, _attend("Attention", q, k, v, offset=position, mask=mask, **given))
        return jnp.where(room, out, jnp.nan), {**kept, "position": position + q.shape[-3]}

    def init_with_cache(key, *inputs):
        params = init(key, *inputs)
        (x,) = inputs
        d = width(x)
        places = (*x.shape[:-2], cache, kv_heads)
        kept = {"key": jnp.zeros((*places, d), dtype or x.dtype)}
        kept["value"] = jnp.zeros((*places, value_dim or d), dtype or x.dtype)
        kept["mask"] = jnp.zeros((*x.shape[:-2], cache), bool)
        return params, {**kept, "position": jnp.zeros((), jnp.int32)}

    # A signature declares what is read: train and key where weights are dropped.
    if cache is None and not dropout:

        def apply(params, *inputs, mask=None, segment_ids=None):
            return attend(params, inputs, mask, segment_ids)

    elif cache is None:

        def apply(params, *inputs, mask=None, segment_ids=None, train=False, key=None):
            return attend(params, inputs, mask, segment_ids, train, key)

    elif not dropout:

        def apply(params, state, *inputs, mask=None):
            return attend_to_cache(params, state, inputs, mask)

    else:

        def apply(params, state, *inputs, mask=None, train=False, key=None):
            return attend_to_cache(params, state, inputs, mask, train, key)

    return Layer(init, apply) if cache is None else StatefulLayer(init_with_cache, apply)


# ---- the computation ------------------------------------------------------------------------


def _attend(
    where,
    q,
    k,
    v,
    *,
    offset=None,
    scale,
    causal,
    sliding_window,
    soft_cap,
    dropout=0.0,
    fully_masked="zero",
    implementation="einsum",
    chunk=128,
    mask=None,
    bias=None,
    segment_ids=None,
    key=None,
    check=False,
):
    """Attention where query i stands at position ``i + offset`` of the keys; without values, its weights.

    By default the last query stands at the last key.
    """
    _check_options(where, scale, sliding_window, soft_cap, dropout, fully_masked, implementation, chunk)
    _check_heads(where, q, k, v)
    offset = k.shape[-3] - q.shape[-3] if offset is None else offset
    full = (*q.shape[:-3], q.shape[-2], q.shape[-3], k.shape[-3])  # (*batch, heads, time_q, time_k)
    _check_scores_side(where, full, mask, bias)
    segments = _check_segments(where, q, k, segment_ids)
    if dropout and key is None:
        raise ValueError(
            f"{where} drops weights (dropout={dropout}) and needs a key, but none came; pass key=, or dropout=0."
        )
    if implementation == "fused":
        refused = {"soft_cap": soft_cap, "dropout": dropout or None, "mask": mask, "segment_ids": segment_ids}
        return _fused(where, q, k, v, offset, scale, causal, sliding_window, bias, fully_masked, refused)
    n_q, n_k = full[-2:]
    wide = wide_dtype(jnp.result_type(q, k))
    factor = q.shape[-1] ** -0.5 if isinstance(scale, str) else scale
    early = factor is not None and q.dtype == wide  # q has fewer numbers than the scores, where it can be scaled
    if early:
        q = q * jnp.asarray(factor, wide)
    q, k = jnp.moveaxis(q, -3, -2), jnp.moveaxis(k, -3, -2)  # (*batch, heads, time, head_dim)
    v = None if v is None else jnp.moveaxis(v, -3, -2)
    # What is cut into chunks of queries, and what is cut into the keys that a chunk sees: axes -2 and -1 of each.
    rows, columns = {"q": q}, {}
    for name, x in {"mask": mask, "bias": bias, **segments}.items():
        if x is not None and not callable(x):
            (rows if name == "q_segments" or x.shape[-2] == n_q != 1 else columns)[name] = x

    def attend(start, rows):
        """Sum of the values, weighted, and the sum of the weights, for the queries from ``start`` on."""
        size = rows["q"].shape[-2]
        span = n_k if sliding_window is None else min(n_k, size + (sliding_window - 1) * (1 if causal else 2))
        begin = None  # the first key that is seen
        if span < n_k and not dropout:
            begin = jnp.clip(jnp.asarray(offset + start - (sliding_window - 1), jnp.int32), 0, n_k - span)

        def seen(x, axis):
            return x if begin is None else lax.dynamic_slice_in_dim(x, begin, span, axis)

        ahead = offset + start - (0 if begin is None else begin)  # of the first query, from the first key seen
        scores = _per_head(rows["q"], seen(k, -2).mT)  # (*batch, heads, size, span)
        n_seen = scores.shape[-1]
        if factor is not None and not early:
            scores = scores * jnp.asarray(factor, wide)
        if soft_cap is not None:
            scores = soft_cap * jnp.tanh(scores / soft_cap)
        own = {**{name: seen(x, -1) for name, x in columns.items()}, **rows}
        for name in ("mask", "bias"):
            if name in rows:
                own[name] = seen(rows[name], -1)
        lead = (1,) * (scores.ndim - 2)
        if callable(bias):
            own["bias"] = _called(where, bias, full[-3], size, n_seen, ahead).reshape(*lead[1:], full[-3], size, n_seen)
        if "bias" in own:
            scores = scores + own["bias"].astype(wide)
        allowed = [own["mask"]] if "mask" in own else []
        if segments:
            allowed.append(own["q_segments"] == own["k_segments"])
        if causal or sliding_window is not None:
            places = jnp.arange(size, dtype=jnp.int32)[:, None] + ahead
            distance = (places - jnp.arange(n_seen, dtype=jnp.int32)[None]).reshape(*lead, size, n_seen)
            if causal:
                allowed.append(distance >= 0)
            if sliding_window is not None:
                allowed.append(distance < sliding_window)
            if sliding_window is not None and not causal:
                allowed.append(distance > -sliding_window)
        if allowed:
            scores = jnp.where(functools.reduce(operator.and_, allowed), scores, -jnp.inf)
        # exp(-inf) is a weight of zero; a row of nothing but -inf must not become -inf - (-inf).
        top = lax.stop_gradient(jnp.max(scores, -1, keepdims=True, initial=-jnp.inf))
        weights = jnp.exp(scores - jnp.where(top == -jnp.inf, 0.0, top))
        total = jnp.sum(weights, -1, keepdims=True)  # (*batch, heads, size, 1); zero where nothing is seen
        if dropout:
            weights = jnp.where(_kept(key, start, weights.shape, dropout), weights / (1 - dropout), 0.0)
        out = weights if v is None else _per_head(weights.astype(v.dtype), seen(v, -2))
        return out / jnp.where(total == 0, 1.0, total).astype(out.dtype), total

    if implementation == "chunked" or (implementation is None and n_q > chunk and n_q * n_k >= _CHUNKED_FROM):
        out, total = _by_chunks(attend, rows, n_q, chunk)
    else:
        out, total = attend(0, rows)
    if fully_masked == "error":
        out = _refuse_empty(where, out, total, check)
    return out.astype(k.dtype) if v is None else jnp.moveaxis(out, -3, -2).astype(v.dtype)


def _by_chunks(attend, rows, n_q: int, chunk: int):
    """``attend(start, rows)`` for chunks of the query axis (-2), which are computed again in the backward pass."""
    count = -(-n_q // chunk)
    size = -(-n_q // max(count, 1))  # of one length, so that few queries are padding
    if count <= 1:
        return jax.checkpoint(attend)(0, rows)

    def split(x):  # (..., n_q, m) to (count, ..., size, m)
        x = jnp.pad(x, [(0, 0)] * (x.ndim - 2) + [(0, count * size - n_q), (0, 0)])
        return jnp.moveaxis(x.reshape(*x.shape[:-2], count, size, x.shape[-1]), -3, 0)

    def join(y):
        y = jnp.moveaxis(y, 0, -3)
        return y.reshape(*y.shape[:-3], count * size, y.shape[-1])[..., :n_q, :]

    starts = jnp.arange(count, dtype=jnp.int32) * size
    one = jax.checkpoint(lambda chunk: attend(*chunk), prevent_cse=False)  # a loop cannot merge what it repeats
    return jax.tree.map(join, lax.map(one, (starts, jax.tree.map(split, rows))))


def _per_head(a, b):
    """Matrix products ``(*batch, heads, n, d) @ (*batch, kv_heads, d, m)``, each group of heads with its own b."""
    *batch, heads, n, d = a.shape
    kv_heads, m = b.shape[-3], b.shape[-1]
    wide = wide_dtype(jnp.result_type(a, b))
    if kv_heads == heads:
        return jnp.matmul(a, b, preferred_element_type=wide)
    r = heads // kv_heads  # heads are split, then joined with n: in one step, an explicit mesh would ask for shardings
    a = a.reshape(*batch, kv_heads, r, n, d).reshape(*batch, kv_heads, r * n, d)
    out = jnp.matmul(a, b, preferred_element_type=wide)
    return out.reshape(*batch, kv_heads, r, n, m).reshape(*batch, heads, n, m)


def _laid_out_as(like, x):
    """``x`` with the sharding of ``like``, where that is part of its type (explicit meshes)."""
    wanted = jax.typeof(like).sharding
    return x if wanted.spec == jax.typeof(x).sharding.spec else jax.sharding.reshard(x, wanted)


def _kept(key, start, shape, dropout):
    """Which weights stay: drawn for each query from the key and its position, so that chunks draw the same."""
    *front, size, n_k = shape
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(size, dtype=jnp.int32) + start)
    return jnp.moveaxis(jax.vmap(lambda key: jax.random.bernoulli(key, 1 - dropout, (*front, n_k)))(keys), 0, -2)


def _refuse_empty(where, out, total, check):
    known = checkable(total, check)
    if known is not None:
        check_values(
            known > 0,
            where
            + " expects every query to see at least one key, but {empty} of {all} rows (queries of each head) see "
            "none; let them see something, or pass fully_masked='zero' for zeros there.",
            check=check,
            empty=jnp.sum(known == 0),
            all=known.size,
        )
    return jnp.where(total == 0, jnp.nan, out)


def _fused(where, q, k, v, offset, scale, causal, sliding_window, bias, fully_masked, refused):
    """cuDNN's kernel, where it computes the same."""
    reasons = [f"{name}=" for name, value in refused.items() if value is not None]
    if callable(bias):
        reasons.append("bias as a function (pass an array)")
    if fully_masked != "zero":
        reasons.append("fully_masked='error'")
    if sliding_window is not None and not causal:
        reasons.append("sliding_window without causal")
    if (causal or sliding_window is not None) and (not isinstance(offset, int) or offset):
        reasons.append("causal with different numbers of queries and keys")
    if k.shape[-3] == 0:
        reasons.append("no keys")
    if q.dtype not in (jnp.bfloat16, jnp.float16):
        reasons.append(f"{q.dtype} (cast to jnp.bfloat16)")
    if q.shape[-1] != v.shape[-1]:
        reasons.append("values with other features than the keys")
    if jax.default_backend() != "gpu":
        reasons.append(f"the backend {jax.default_backend()!r}")
    if reasons:
        raise ValueError(
            f"{where} with implementation='fused' cannot take {', '.join(reasons)}; pass implementation=None, which "
            "takes everything."
        )
    batch = q.shape[:-3]
    flat = [x.reshape(-1, *x.shape[-3:]) for x in (q, k, v)]  # the kernel knows one batch axis
    if bias is not None:
        bias = jnp.broadcast_to(bias, (*batch, *bias.shape[-3:])).reshape(-1, *bias.shape[-3:]).astype(q.dtype)
    factor = q.shape[-1] ** -0.5 if isinstance(scale, str) else 1.0 if scale is None else scale
    out = jax.nn.dot_product_attention(
        *flat,
        bias=bias,
        scale=factor,
        is_causal=causal,
        local_window_size=None if sliding_window is None else (sliding_window - 1, 0),
        implementation="cudnn",
    )
    return out.reshape(*batch, *out.shape[-3:])


# ---- checks ---------------------------------------------------------------------------------


def _check_options(where, scale, sliding_window, soft_cap, dropout, fully_masked, implementation, chunk):
    if isinstance(scale, str) and scale != "inverse_sqrt":
        raise ValueError(f"{where} expects scale to be a number, None or 'inverse_sqrt', but {scale!r} came.")
    if not isinstance(scale, str) and scale is not None and (jnp.ndim(scale) or jnp.result_type(scale) == jnp.bool):
        raise ValueError(
            f"{where} expects scale to be a number, None or 'inverse_sqrt', but {describe(scale)} came; "
            "a mask is passed by name, mask=..."
        )
    require_whole(where, "chunk", chunk)
    if sliding_window is not None and (
        isinstance(sliding_window, bool) or not isinstance(sliding_window, int) or sliding_window < 1
    ):
        raise ValueError(
            f"{where} expects sliding_window to be a whole number >= 1 or None, but {sliding_window!r} came; a sliding_window of 1 is the "
            "position itself."
        )
    if soft_cap is not None and not soft_cap > 0:
        raise ValueError(f"{where} expects soft_cap > 0, but {soft_cap!r} came; None leaves scores uncapped.")
    if not 0 <= dropout < 1:
        raise ValueError(f"{where} expects dropout in [0, 1), but {dropout!r} came; it is the probability of zero.")
    if fully_masked not in ("zero", "error"):
        raise ValueError(f"{where} expects fully_masked to be 'zero' or 'error', but {fully_masked!r} came.")
    if implementation not in (None, "einsum", "chunked", "fused"):
        raise ValueError(
            f"{where} expects implementation to be 'einsum', 'chunked', 'fused' or None, but {implementation!r} came."
        )


def _check_heads(where: str, q, k, v=None) -> None:
    require_floating(where, q=q, k=k, **({} if v is None else {"v": v}))
    for name, x in {"q": q, "k": k, "v": v}.items():
        if x is not None and x.ndim < 3:
            raise ValueError(
                f"{where} expects {name} (..., time, heads, features), but {name} is {describe(x)}; "
                f"write {name}[..., None, :] for one head."
            )
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(
            f"{where} expects q and k with equal features (last axis), but q is {describe(q)} and k {describe(k)}; "
            "project both to one size first."
        )
    if v is not None and k.shape[-3] != v.shape[-3]:
        raise ValueError(
            f"{where} expects one value per key (axis -3, time), but k is {describe(k)} and v {describe(v)}."
        )
    for name, x in {"k": k, "v": v}.items():
        if x is not None and x.shape[:-3] != q.shape[:-3]:
            raise ValueError(
                f"{where} expects q and {name} with equal batch axes, (*batch, time, heads, features), but q is "
                f"{describe(q)} and {name} {describe(x)}; repeat what they share with jnp.broadcast_to."
            )
    if q.shape[-2] % max(k.shape[-2], 1) or k.shape[-2] == 0:
        raise ValueError(
            f"{where} expects the heads of q (axis -2) to be a multiple of those of k, but q is {describe(q)} and k "
            f"{describe(k)}; each group of heads shares one head of keys."
        )
    if v is not None and v.shape[-2] != k.shape[-2]:
        raise ValueError(
            f"{where} expects k and v with equal heads (axis -2), but k is {describe(k)} and v {describe(v)}; repeat "
            "what they share with jnp.broadcast_to."
        )


def _check_scores_side(where, full, mask, bias):
    """A mask and an array of biases have the axes of the scores."""
    if mask is not None:
        require_mask(where, mask, getattr(mask, "shape", ()))  # a boolean array; its shape is looked at below
    if bias is not None and not callable(bias):
        require_floating(where, bias=bias)
    for name, x in {"mask": mask, "bias": bias}.items():
        if x is None or callable(x):
            continue
        fits = len(x.shape) == len(full) and all(m in (1, n) for m, n in zip(x.shape, full, strict=True))
        if not fits or x.shape[-1] != full[-1]:
            raise ValueError(
                f"{where} expects a {name} of shape (*batch, heads, time_q, time_k) = {full}, where any axis but the "
                f"last may have size 1, but {describe(x)} came; add missing axes of size 1 with "
                f"{name}[..., None, :, :]."
            )


def _called(where, bias, heads, n_q, n_k, offset):
    y = bias(heads, n_q, n_k, offset)
    if y.shape != (heads, n_q, n_k):
        raise ValueError(
            f"{where} expects bias({heads}, {n_q}, {n_k}, offset) to return (heads, time_q, time_k) = "
            f"{(heads, n_q, n_k)}, but {describe(y)} came."
        )
    return y


def _check_segments(where, q, k, segment_ids):
    """Segments of queries as a column, of keys as a row."""
    if segment_ids is None:
        return {}
    two = segment_ids if isinstance(segment_ids, (tuple, list)) else (segment_ids, segment_ids)
    expected = [(*x.shape[:-3], x.shape[-3]) for x in (q, k)]
    if len(two) != 2 or any(
        s.shape != e or not jnp.issubdtype(s.dtype, jnp.integer) for s, e in zip(two, expected, strict=True)
    ):
        raise ValueError(
            f"{where} expects segment_ids, integers of shape (*batch, time), {expected[0]} for the queries and "
            f"{expected[1]} for the keys, but {' and '.join(map(describe, two))} came; pass one array where the two "
            "are the same, else (of_queries, of_keys)."
        )
    return {"q_segments": two[0][..., None, :, None], "k_segments": two[1][..., None, None, :]}


def _is_of_keys(mask, of_keys, full):
    """Whether a mask of the pair says which keys there are, or else who sees whom."""
    require_mask("Attention", mask, getattr(mask, "shape", ()))  # a boolean array
    fits = len(mask.shape) == len(full) and all(m in (1, n) for m, n in zip(mask.shape[:-1], full[:-1], strict=True))
    if mask.shape != of_keys and not (fits and mask.shape[-1] == full[-1]):
        raise ValueError(
            f"Attention expects a mask of shape (*batch, time_k) = {of_keys}, true where there is a key, or of shape "
            f"(*batch, heads, time_q, time_k) = {full}, where any axis but the last may have size 1, but "
            f"{describe(mask)} came; pass one of these, the latter e.g. as jnp.broadcast_to(mask, {full})."
        )
    return mask.shape == of_keys


def _require_room(state, k, position, check):
    """Whether the new keys fit into the cache."""
    room = state["key"].shape[-3]
    if state["key"].shape[:-3] != k.shape[:-3] or state["key"].shape[-2:] != k.shape[-2:]:
        raise ValueError(
            f"Attention expects a state for keys {describe(k)}, (*batch, time, heads, features), but its cache is "
            f"{describe(state['key'])}; make the state by init from inputs with the same batch."
        )
    words = f"Attention expects at most {room} positions in its cache, but "
    if k.shape[-3] > room:
        raise ValueError(f"{words}{k.shape[-3]} came at once; build it with a larger cache=.")
    known = checkable(position, check)
    if known is not None:
        check_values(
            known + k.shape[-3] <= room,
            words + "{before} are there and {more} came; build it with a larger cache=, or begin with a fresh state.",
            check=check,
            before=known,
            more=k.shape[-3],
        )
    return position + k.shape[-3] <= room


def _rows(query, keys):
    """Query with exactly one axis of positions between the batch axes of ``keys`` and the features."""
    return query.reshape(*keys.shape[:-2], -1, query.shape[-1])


def _check_table(where: str, query, keys, values) -> None:
    require_floating(where, query=query, keys=keys, values=values)
    batch = keys.shape[:-2]
    if keys.ndim < 2 or keys.shape[:-1] != values.shape[:-1]:
        raise ValueError(
            f"{where} expects keys (*batch, entries, features) and values (*batch, entries, value_features), but "
            f"keys are {describe(keys)} and values {describe(values)}."
        )
    if query.ndim <= len(batch) or query.shape[-1] != keys.shape[-1] or query.shape[: len(batch)] != batch:
        raise ValueError(
            f"{where} expects query (*batch, *queries, features) with the batch {batch} and the {keys.shape[-1]} "
            f"features of keys, {describe(keys)}, but query is {describe(query)}."
        )
