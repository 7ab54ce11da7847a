"""Lookup tables: attention as a differentiable dictionary, hard for orthonormal keys and soft for all keys."""

import math

from jaxtyping import Array, Float

from jaxblocks.backend.precision import full_precision
from jaxblocks.checks.errors import describe, require
from jaxblocks.checks.expectations import checked
from jaxblocks.layers.attention.dot_product import Scale, attention
from jaxblocks.tensors import einsum

__all__ = ["hard_lookup", "soft_lookup"]


@checked
def hard_lookup(
    query: Float[Array, "... features"],
    keys: Float[Array, "*batch entries features"],
    values: Float[Array, "*batch entries value_features"],
) -> Float[Array, "... value_features"]:
    """Value of the table entry whose key is the query: lookup(q) = sum_i <q, k_i> v_i.

    The keys k_i are ``keys[..., i, :]`` and should be orthonormal; then a query that equals k_i returns v_i.
    The sum is linear in each argument, so that k_2 + 2 k_4 returns v_2 + 2 v_4, and the table is differentiable.
    Products are computed in full precision.

    Args:
        query: ``(*batch, *queries, features)``: one query, a sequence of queries, or a grid, for each table.
        keys: ``(*batch, entries, features)``; orthonormality is not checked.
        values: ``(*batch, entries, value_features)``.

    Returns:
        ``(*batch, *queries, value_features)``.

    Raises:
        ValueError: if these shapes do not fit together.

    >>> keys, values = jnp.eye(5), jnp.arange(10.0).reshape(5, 2)
    >>> hard_lookup(keys[2], keys, values)
    Array([4., 5.], dtype=float32)
    >>> hard_lookup(keys[2] + 2 * keys[4], keys, values)
    Array([20., 23.], dtype=float32)

    Source: Graves, Wayne & Danihelka 2014, Neural Turing machines (arXiv:1410.5401); Diehl 2023, example 2.3.
    """
    # No softmax: with orthonormal keys <q, k_i> is 1 for the key that equals the query and 0 for the others.
    with full_precision():
        found = einsum("...qd,...kd,...kv->...qv", _as_rows(query, keys), keys, values)
    return found.reshape(*query.shape[:-1], values.shape[-1])


@checked
def soft_lookup(
    query: Float[Array, "... features"],
    keys: Float[Array, "*batch entries features"],
    values: Float[Array, "*batch entries value_features"],
    *,
    scale: Scale = None,
) -> Float[Array, "... value_features"]:
    """Average of the values of a table, weighted by the match of query and keys: sum_i softmax_i(<q, k_i>) v_i.

    In matrix form, softmax(Q K^T) V with the softmax along each row, for Q of shape (n_q, d), K (n_k, d), V (n_k, v).
    The lecture prints the product as (Q W^Q)^T (K W^K). Its shapes do not fit unless n_q = n_k, and then it
    compares features instead of positions; the product of queries and keys is (Q W^Q)(K W^K)^T. The lecture's form as
    a map of a sequence a, softmax(a X_q (a X_k)^T) a X_v, is ``soft_lookup(a @ X_q, a @ X_k, a @ X_v)``.

    Every result lies in the convex hull of the values. As the query grows, the result tends to the value whose key
    matches best: for a query scaled by s, the total weight of all others is below (n_k - 1) exp(-s gap), where gap is
    the difference of the best and the second-best match <q, k_i>.

    Args:
        query, keys, values: as in `hard_lookup`.
        scale: the factor of <q, k_i>: ``None`` (the lecture's form) is 1, ``"inverse_sqrt"`` is 1/sqrt(features).

    Shapes and errors are those of `hard_lookup`; the function is `attention` with one head.

    >>> keys, values = jnp.eye(5), jnp.arange(10.0).reshape(5, 2)
    >>> print(soft_lookup(20 * keys[2], keys, values).round(3))
    [4. 5.]

    Source: Bahdanau, Cho & Bengio 2015, Neural machine translation by jointly learning to align and translate
    (arXiv:1409.0473); Diehl 2023, example 2.3 and section 2.2.
    """
    q, k, v = (x[..., None, :] for x in (_as_rows(query, keys), keys, values))  # one head
    return attention(q, k, v, scale=scale).reshape(*query.shape[:-1], values.shape[-1])


def _as_rows(query, keys):
    """The query with exactly one axis of positions between the batch axes of ``keys`` and the features."""
    batch = keys.shape[:-2]
    fits = query.ndim > len(batch) and query.shape[: len(batch)] == batch
    expected = f"query (*batch, *queries, features) with the batch axes {batch} of keys {describe(keys)}"
    require(fits, expected, query, f"write jnp.broadcast_to(query, {(*batch, *query.shape)})")
    return query.reshape(*batch, math.prod(query.shape[len(batch) : -1]), query.shape[-1])
