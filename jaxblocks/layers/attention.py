"""Attention: looking values up by how well their keys match a query.

Axis letters in the einsums: q query positions (``time_q``), k key and value positions (``time_k``), h heads,
d features that queries and keys share (``head_dim``), v features of a value (``value_dim``).

``hard_lookup`` and ``soft_lookup`` are the lecture's tables, with one head and the layout (position, features).
``attention`` and ``attention_weights`` take heads, in the layout of ``jax.nn``: (position, heads, features).
All are functions of what has already been projected: the matrices W^Q, W^K, W^V are dense layers without
activation, applied before.
"""

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Real

from jaxblocks.checks import describe, require_floating
from jaxblocks.precision import wide_dtype
from jaxblocks.tensors import einsum

__all__ = ["attention", "attention_weights", "hard_lookup", "soft_lookup"]

Scale = float | int | Real[Array, ""] | Literal["inverse_sqrt"] | None


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
    k: Float[Array, "*_batch time_k _heads _head_dim"],
    scale: Scale = "inverse_sqrt",
    *,
    mask: Bool[Array, "..."] | None = None,
) -> Float[Array, "*batch heads time_q time_k"]:
    """How much each query looks at each key: softmax over k of scale * <q, k>.

    Each row ``weights[..., h, i, :]`` is a probability vector over the key positions. Arguments, masks and errors
    as in ``attention``. Scores and softmax are computed in float32 for half precision inputs.

    >>> q, k = jnp.zeros((1, 1, 4)), jnp.ones((2, 1, 4))
    >>> attention_weights(q, k)
    Array([[[0.5, 0.5]]], dtype=float32)

    Source: Vaswani et al. 2017, Attention is all you need, section 3.2.1; Diehl 2023, section 2.2.
    """
    _check_heads("attention_weights", q, k, mask)
    wide = wide_dtype(jnp.result_type(q, k))
    scores = jnp.einsum("...qhd,...khd->...hqk", q, k, preferred_element_type=wide)
    factor = _factor(scale, q.shape[-1])
    if factor is not None:
        scores = scores * jnp.asarray(factor, wide)
    if mask is None:
        weights = jax.nn.softmax(scores, axis=-1)
    else:
        # softmax of a row of -inf is 0/0: a row that may look nowhere gets scores 0, and its weights are cleared.
        somewhere = jnp.any(mask, axis=-1, keepdims=True)
        scores = jnp.where(mask, scores, jnp.where(somewhere, -jnp.inf, 0.0))
        weights = jnp.where(mask, jax.nn.softmax(scores, axis=-1), 0.0)
    return weights.astype(jnp.result_type(q, k))


def attention(
    q: Float[Array, "*batch time_q heads head_dim"],
    k: Float[Array, "*_batch time_k _heads _head_dim"],
    v: Float[Array, "*_batch _time_k _heads value_dim"],
    scale: Scale = "inverse_sqrt",
    *,
    mask: Bool[Array, "..."] | None = None,
) -> Float[Array, "*batch time_q heads value_dim"]:
    """Attention of each query to all keys, per head: softmax(scale * Q K^T) V.

    out_i = sum_j w_ij v_j with w_ij = exp(scale <q_i, k_j>) / sum_l exp(scale <q_i, k_l>), for query position i and
    key positions j. Keys and values are a set: permuting both alike changes nothing, and permuting the queries
    permutes the output. Self-attention takes q, k and v from one sequence, cross-attention k and v from another.
    The cost is quadratic: 2 time_q time_k (head_dim + value_dim) operations and time_q time_k weights per head.

    ``q`` is ``(*batch, time_q, heads, head_dim)``, ``k`` ``(*batch, time_k, heads, head_dim)``, ``v``
    ``(*batch, time_k, heads, value_dim)``; returns ``(*batch, time_q, heads, value_dim)``.

    ``scale`` multiplies <q, k>. The default ``"inverse_sqrt"`` is 1/sqrt(head_dim), which keeps the variance of the
    scores at one for independent standard normal q and k. ``None`` leaves them alone, as the lectures do; mind that
    ``scale=None`` of ``jax.nn.dot_product_attention`` means the former. A number is taken as it is.

    ``mask`` is boolean, true where a query may look at a key, with as many axes as the weights
    ``(*batch, heads, time_q, time_k)``; any axis but the last may have size one, which stands for all. Masked
    weights are exactly zero. A query that may look nowhere (or at ``time_k = 0`` keys) gets zeros, and its
    gradient is zero. Masked values must still be finite, as 0 * inf is not zero.

    Half precision inputs are multiplied as they are, with sums and softmax in float32. Raises ``ValueError`` for
    shapes that do not fit together, ``TypeError`` for integer inputs or a mask that is not boolean.

    >>> x = jnp.array([[0.0, 1.0], [2.0, 0.0], [1.0, 1.0]])[:, None, :]  # (time, heads, head_dim)
    >>> past = jnp.tril(jnp.ones((1, 3, 3), bool))  # (heads or 1, time_q, time_k)
    >>> print(attention(x, x, x, mask=past)[0])
    [[0. 1.]]

    Source: Vaswani et al. 2017, Attention is all you need, section 3.2.1; Diehl 2023, section 2.2.
    """
    _check_heads("attention", q, k, mask, v)
    weights = attention_weights(q, k, scale, mask=mask)
    wide = wide_dtype(jnp.result_type(weights, v))
    return jnp.einsum("...hqk,...khv->...qhv", weights, v, preferred_element_type=wide).astype(v.dtype)


def _factor(scale, head_dim: int):
    if isinstance(scale, str):
        if scale != "inverse_sqrt":
            raise ValueError(f"attention expects scale to be a number, None or 'inverse_sqrt', but {scale!r} came.")
        return head_dim**-0.5
    if scale is not None and (jnp.ndim(scale) > 0 or jnp.result_type(scale) == jnp.bool):
        raise ValueError(
            f"attention expects scale to be a number, None or 'inverse_sqrt', but {describe(scale)} came; "
            "a mask is passed by name, mask=..."
        )
    return scale


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


def _check_heads(where: str, q, k, mask, v=None) -> None:
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
        if x is not None and (x.shape[:-3] != q.shape[:-3] or x.shape[-2] != q.shape[-2]):
            raise ValueError(
                f"{where} expects q and {name} with equal batch axes and heads, (*batch, time, heads, features), but "
                f"q is {describe(q)} and {name} {describe(x)}; repeat what they share with jnp.broadcast_to."
            )
    if mask is None:
        return
    if mask.dtype != jnp.bool:
        raise TypeError(
            f"{where} expects a boolean mask, true where a query may look, but {describe(mask)} came; "
            "write mask.astype(bool), or mask > 0."
        )
    full = (*q.shape[:-3], q.shape[-2], q.shape[-3], k.shape[-3])
    fits = len(mask.shape) == len(full) and all(m in (1, n) for m, n in zip(mask.shape, full, strict=True))
    if not fits or mask.shape[-1] != full[-1]:
        raise ValueError(
            f"{where} expects a mask of shape (*batch, heads, time_q, time_k) = {full}, where any axis but the last "
            f"may have size 1, but {describe(mask)} came; add missing axes of size 1 with mask[..., None, :, :]."
        )
