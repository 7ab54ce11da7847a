r"""Embeddings: map integers to rows of a learned table, and features to scores of the rows.

Axis letters: ``...`` batch (and time), ``size`` rows of the table, ``features`` its columns.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Integer

from jaxblocks import initializers
from jaxblocks.backend.linear_maps import affine_map, in_dtype
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import NonNegativeInt, PositiveInt, check_params, checked
from jaxblocks.checks.values import as_int32, check_range
from jaxblocks.core.pairs import ArrayOrShape, Layer, builder

__all__ = ["Embedding", "embed", "unembed"]


@checked
def embed(
    ids: Integer[Array, "*batch"],
    table: Float[Array, "size features"],
    *,
    padding_idx: NonNegativeInt | None = None,
    check: bool = False,
) -> Float[Array, "*batch features"]:
    r"""The rows of a table: $y_j = E_{i j}$ with i ``ids`` and E ``table``.

    The same as ``one_hot(ids) @ table``, without the product. In reverse mode the gradients of equal ids add up.

    Args:
        ids: integers ``(...)``.
        table: ``(size, features)``.
        padding_idx: the id of padding, as in PyTorch: its row is returned as it is and has the gradient 0. (To mask
            padding, multiply the rows by ``(ids != padding_idx)[..., None]``, or pass ``mask=`` to the next layer.)
        check: report ids out of range to ``jax.experimental.checkify``.

    Returns:
        The rows ``(..., features)``.

    Raises:
        ValueError: for an id outside ``0, ..., size - 1``, where the values are concrete. Under ``jit`` its row
            is NaN, also for a negative id; ``check=True`` reports it to ``jax.experimental.checkify``.
        TypeError: for ids that are not integers.

    >>> embed(jnp.array([2, 0]), jnp.array([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]))
    Array([[4., 5.],
           [0., 1.]], dtype=float32)

    Source: Bengio, Ducharme, Vincent, Jauvin 2003, A neural probabilistic language model.
    """
    size = table.shape[0]
    repair = "make the table larger, or map rare ids (and padding) to one row"
    check_range("ids", ids, 0, size - 1, repair, check=check)
    spec = jax.typeof(ids).sharding.spec  # on an explicit mesh the rows are sharded as their ids are
    out_sharding = PartitionSpec(*spec, None) if any(axis is not None for axis in spec) else None
    # Clamping, as plain indexing does under jit, would return a wrong row for an id out of range, and a negative id
    # would count from the end; NaN shows either.
    ids = as_int32(ids)  # also for padding_idx, which 8 bits may not hold
    rows = table.at[ids].get(  # (*batch, features)
        mode="fill", fill_value=jnp.nan, wrap_negative_indices=False, out_sharding=out_sharding
    )
    if padding_idx is None:
        return rows
    padding = jnp.broadcast_to((ids == padding_idx)[..., None], rows.shape)
    return jnp.where(padding, jax.lax.stop_gradient(rows), rows)


@checked
def unembed(x: Float[Array, "*batch features"], table: Float[Array, "size features"]) -> Float[Array, "*batch size"]:
    r"""A score for each row of a table, the output layer of a tied embedding: $y_i = ∑_j x_j E_{i j}$.

    Here E is ``table``. The scores are the logits of a net whose first and last layer share one table. Computes in the
    dtype of ``x``.

    Raises:
        ValueError: where ``x`` and ``table`` differ in their features.
        TypeError: for ``x`` that is not floating-point.

    >>> unembed(jnp.array([1.0, -1.0]), jnp.array([[0.0, 1.0], [2.0, 3.0], [5.0, 4.0]]))
    Array([-1., -1.,  1.], dtype=float32)

    Source: Press and Wolf 2017, Using the output embedding to improve language models (arXiv:1608.05859).
    """
    return affine_map(x, table.T)  # (*batch, size)


@builder
def Embedding(
    size: PositiveInt,
    features: PositiveInt,
    *,
    tied: bool = False,
    padding_idx: NonNegativeInt | None = None,
    embedding_init: Callable = initializers.variance_scaling(1.0, "fan_out", "normal"),
    dtype: DTypeLike | None = None,
    param_dtype: DTypeLike = jnp.float32,
    check: bool = False,
) -> Layer:
    r"""A learned row for each of ``size`` ids, params ``{"embedding": (size, features)}``: a lookup table.

    Args:
        size: the number of ids: ``0, ..., size - 1``.
        features: of each row.
        tied: ``True`` enables logits as well: integers ``(...)`` give rows, and floating-point numbers
            ``(..., features)`` give logits ``(..., size)`` by the same table. A ``Wire`` that calls it twice,
            as below, is a net whose first and last layer share their params.
        padding_idx: the id of padding, as in PyTorch: its row is 0 at ``init`` and has the gradient 0, so that training
            leaves it as it is. A table from elsewhere is used as it is. With ``tied`` the logit of padding gives the
            row no gradient either, where PyTorch's ``Linear`` with the same weights does.
        embedding_init: ``f(key, shape, dtype)``; by default normal with variance 1 / features, so that rows have
            length near 1, and logits of inputs of variance 1 have variance 1.
        dtype: of the rows; by default that of the params. (The following layers compute in it.) Logits have the dtype
            of the features.
        param_dtype: of the params.
        check: report ids out of range to ``jax.experimental.checkify``, as in `embed`.

    Shapes: ids ``(...)`` to ``(..., features)``; with ``tied`` also ``(..., features)`` to ``(..., size)``.

    Raises:
        ValueError: for an id out of range, where the values are concrete; under ``jit`` its row is NaN.
        TypeError: for ids that are not integers, unless ``tied``.

    >>> forward = lambda f, ids: f.table(f.body(f.table(ids)))
    >>> net = Wire(forward, table=Embedding(256, 16, tied=True), body=Dense(16))
    >>> ids = jnp.zeros((8, 5), jnp.int32)
    >>> params = net.init(jax.random.key(0), ids)
    >>> count_params(params["table"]), jax.jit(net.apply)(params, ids).shape
    (4096, (8, 5, 256))

    Source: Bengio et al. 2003; Press and Wolf 2017 (tied; arXiv:1608.05859).
    """

    inside = padding_idx is None or padding_idx < size
    require(inside, f"padding_idx among the ids 0, ..., {size - 1}", padding_idx, "make size one larger")

    def init(key, ids: Integer[ArrayOrShape, "*batch"] | Float[ArrayOrShape, "*batch in"]):
        _computes_logits(ids, features, tied)
        table = embedding_init(key, (size, features), param_dtype)
        return {"embedding": table if padding_idx is None else table.at[padding_idx].set(0)}

    def apply(params, ids: Integer[Array, "*batch"] | Float[Array, "*batch in"]):
        check_params(params, embedding=(size, features))
        if _computes_logits(ids, features, tied):
            table = params["embedding"]
            if padding_idx is not None:
                padding = jnp.broadcast_to((jnp.arange(size) == padding_idx)[:, None], table.shape)
                table = jnp.where(padding, jax.lax.stop_gradient(table), table)
            return unembed(ids, table)
        rows = embed(ids, params["embedding"], padding_idx=padding_idx, check=check)
        return in_dtype(rows, dtype)

    return Layer(init, apply)


def _computes_logits(x, features: int, tied: bool) -> bool:
    """Whether an `Embedding` is applied to features rather than to ids, which only a tied one accepts."""
    floating = jnp.issubdtype(x.dtype, jnp.floating)
    repair = "convert them with ids.astype(jnp.int32), or pass tied=True to compute logits of features"
    require(tied or not floating, "ids to be an integer array", x, repair, error=TypeError)
    repair = "convert ids with ids.astype(jnp.int32), or pass features of that size"
    fits = not floating or x.shape[-1:] == (features,)
    require(fits, f"ids, an integer array, or features (*batch, {features})", x, repair)
    return floating
