r"""Embeddings: whole numbers become rows of a learned table, and features become scores of its rows.

Axis letters: ``...`` batch (and time), ``size`` rows of the table, ``features`` its columns.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Integer

from jaxblocks import initializers
from jaxblocks.checks import (
    check_values,
    checkable,
    describe,
    describe_any,
    require_floating,
    require_key,
    require_whole,
)
from jaxblocks.core import Layer, builder, require_params

__all__ = ["Embedding", "embed", "unembed"]


def embed(
    ids: Integer[Array, "*batch"], table: Float[Array, "size features"], *, check: bool = False
) -> Float[Array, "*batch features"]:
    r"""The rows of a table: :math:`y_j = E_{i j}` with i ``ids`` and E ``table``.

    The same as ``one_hot(ids) @ table``, without the product. In reverse mode the gradients of equal ids add up.

    Raises:
        ValueError: for an id outside ``0, ..., size - 1``, where the values are known. Under ``jit`` its row
            is NaN, also for a negative one; ``check=True`` reports it to ``jax.experimental.checkify``.
        TypeError: for ids that are not integers.

    >>> embed(jnp.array([2, 0]), jnp.array([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]))
    Array([[4., 5.],
           [0., 1.]], dtype=float32)

    Source: Bengio, Ducharme, Vincent, Jauvin 2003, A neural probabilistic language model.
    """
    return _embed("embed", ids, table, check)


def unembed(x: Float[Array, "*batch features"], table: Float[Array, "size features"]) -> Float[Array, "*batch size"]:
    r"""A score for each row of a table, the read-out of a tied embedding: :math:`y_i = \sum_j x_j E_{i j}`.

    With x ``x`` and E ``table``: the logits of a net that ends with the table it began with. Computes in the dtype of
    ``x``.

    Raises:
        ValueError: where ``x`` and ``table`` differ in their features.
        TypeError: for integer ``x``.

    >>> unembed(jnp.array([1.0, -1.0]), jnp.array([[0.0, 1.0], [2.0, 3.0], [5.0, 4.0]]))
    Array([-1., -1.,  1.], dtype=float32)

    Source: Press & Wolf 2017, Using the output embedding to improve language models.
    """
    return _unembed("unembed", x, table)


@builder
def Embedding(
    size: int,
    features: int,
    *,
    tied: bool = False,
    embedding_init: Callable = initializers.variance_scaling(1.0, "fan_out", "normal"),
    dtype=None,
    param_dtype=jnp.float32,
    check: bool = False,
) -> Layer:
    r"""A learned row for each of ``size`` ids, params ``{"embedding": (size, features)}``.

    Args:
        size: how many ids there are: ``0, ..., size - 1``.
        features: of each row.
        tied: ``True`` lets the layer read out as well: integers are looked up, and floating-point numbers
            ``(..., features)`` become logits ``(..., size)`` by the same table. A ``Wire`` that calls it twice,
            as below, is a net whose first and last layer share their params.
        embedding_init: ``f(key, shape, dtype)``; by default normal with variance 1 / features, so that rows have
            length 1 or so, and logits of inputs of variance 1 have variance 1.
        dtype: of the rows; by default that of the params. (Layers that follow compute in it.) Logits have the dtype of
            what is read out.
        param_dtype: of the params.
        check: report ids out of range to ``jax.experimental.checkify``, as in `embed`.

    Shapes: ids ``(...)`` to ``(..., features)``; with ``tied`` also ``(..., features)`` to ``(..., size)``.

    Raises:
        ValueError: for an id out of range, where the values are known; under ``jit`` its row is NaN.
        TypeError: for ids that are not integers, unless ``tied``.

    >>> net = Wire(lambda f, ids: f.table(f.body(f.table(ids))), table=Embedding(256, 16, tied=True), body=Dense(16))
    >>> ids = jnp.zeros((8, 5), jnp.int32)
    >>> params = net.init(jax.random.key(0), ids)
    >>> count_params(params["table"]), net.apply(params, ids).shape
    (4096, (8, 5, 256))

    Source: Bengio et al. 2003; Press & Wolf 2017 (tied).
    """
    size, features = require_whole("Embedding", "size", size), require_whole("Embedding", "features", features)
    if tied not in (True, False):
        raise TypeError(f"Embedding expects tied to be True or False, but {tied!r} came.")

    def reads_out(x):
        return tied and hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.floating)

    def init(key, ids):
        require_key("Embedding.init", key)
        if not reads_out(ids):
            _require_ids("Embedding", ids)
        return {"embedding": embedding_init(key, (size, features), param_dtype)}

    def apply(params, ids):
        require_params("Embedding", params, "embedding")
        table = params["embedding"]
        if table.shape != (size, features):
            raise ValueError(
                f"Embedding({size}, {features}) expects an embedding of shape {(size, features)}, but "
                f"{describe(table)} came; pass params that its own init made."
            )
        if reads_out(ids):
            return _unembed("Embedding", ids, table)
        rows = _embed("Embedding", ids, table, check)
        return rows if dtype is None else rows.astype(dtype)

    return Layer(init, apply)


def _embed(where, ids, table, check):
    _require_ids(where, ids)
    require_floating(where, table=table)
    size = table.shape[0]
    ids = ids.astype(jnp.int32) if ids.dtype.itemsize < 4 else ids  # so that size fits in
    known = checkable(ids, check)
    if known is not None:
        check_values(
            (known >= 0) & (known < size),
            f"{where} expects ids from 0 to {size - 1}, one for each of the {size} rows of its table, but they go from "
            "{least} to {most}; make the table larger, or map rare ids (and padding) to one of its own.",
            check=check,
            least=jnp.min(known, initial=size),
            most=jnp.max(known, initial=0),
        )
    spec = jax.typeof(ids).sharding.spec  # on an explicit mesh rows lie where their ids do
    laid_out = PartitionSpec(*spec, None) if any(axis is not None for axis in spec) else None
    options = dict(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False, out_sharding=laid_out)
    return table.at[ids].get(**options)  # (*batch, features)


def _unembed(where, x, table):
    require_floating(where, x=x, table=table)
    if not x.shape or x.shape[-1] != table.shape[-1]:
        raise ValueError(
            f"{where} reads out x with {table.shape[-1]} features on its last axis (its table is {describe(table)}), "
            f"but {describe(x)} came; let the layer before it put out {table.shape[-1]} features."
        )
    return jnp.matmul(x, table.astype(x.dtype).T)  # (*batch, size)


def _require_ids(where, ids):
    if not hasattr(ids, "dtype"):
        raise TypeError(
            f"{where} expects an array of ids, but {describe_any(ids)} came; convert it with jnp.asarray(ids)."
        )
    if not jnp.issubdtype(ids.dtype, jnp.integer):
        tie = ", or pass tied=True to read out features" if where == "Embedding" else ""
        raise TypeError(
            f"{where} expects ids that are integers, but {describe(ids)} came; convert them with "
            f"ids.astype(jnp.int32){tie}."
        )
