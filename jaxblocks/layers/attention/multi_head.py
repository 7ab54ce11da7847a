"""Multi-head attention: the layer with learned maps of queries, keys, values and output."""

import functools
from collections.abc import Callable
from typing import Literal, TypedDict, Unpack, overload

import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from jaxblocks import initializers
from jaxblocks.checks import PositiveFloat, PositiveInt, Rate, require
from jaxblocks.core import ArrayOrShape, Layer, StatefulLayer, builder
from jaxblocks.layers.attention.cache import cached_attention
from jaxblocks.layers.attention.dot_product import Implementation, Scale, SegmentIds, attention
from jaxblocks.layers.attention.masks import zero_padding
from jaxblocks.layers.attention.projections import Projections, inputs_by_role

__all__ = ["Attention", "AttentionOptions"]


class AttentionOptions(TypedDict, total=False):
    """The options of `Attention`, without ``cache``, which decides on the type of the layer."""

    head_dim: int | None
    value_dim: int | None
    kv_heads: int | None
    features: int | None
    scale: Scale
    causal: bool
    sliding_window: int | None
    soft_cap: float | None
    positions: Callable | None
    score_bias: Callable | None
    dropout: float
    fully_masked: Literal["zero", "error"]
    implementation: Implementation
    chunk: int
    use_bias: bool
    use_out: bool
    kernel_init: Callable
    out_kernel_init: Callable | None
    bias_init: Callable
    dtype: DTypeLike | None
    param_dtype: DTypeLike
    check: bool


@overload
def Attention(heads: int, *, cache: None = ..., **options: Unpack[AttentionOptions]) -> Layer: ...
@overload
def Attention(heads: int, *, cache: int, **options: Unpack[AttentionOptions]) -> StatefulLayer: ...
@builder
def Attention(
    heads: PositiveInt,
    *,
    head_dim: PositiveInt | None = None,
    value_dim: PositiveInt | None = None,
    kv_heads: PositiveInt | None = None,
    features: PositiveInt | None = None,
    scale: Scale = "inverse_sqrt",
    causal: bool = False,
    sliding_window: PositiveInt | None = None,
    soft_cap: PositiveFloat | None = None,
    positions: Callable | None = None,
    score_bias: Callable | None = None,
    dropout: Rate = 0.0,
    fully_masked: Literal["zero", "error"] = "zero",
    implementation: Implementation = None,
    chunk: PositiveInt = 128,
    cache: PositiveInt | None = None,
    use_bias: bool = True,
    use_out: bool = True,
    kernel_init: Callable = initializers.lecun_normal(),
    out_kernel_init: Callable | None = None,
    bias_init: Callable = initializers.zeros,
    dtype: DTypeLike | None = None,
    param_dtype: DTypeLike = jnp.float32,
    check: bool = False,
) -> Layer | StatefulLayer:
    r"""Multi-head attention with learned maps of queries, keys, values and output.

    It is :math:`[H_1, \dots, H_h]\,W^O + b` with
    :math:`H_i = \mathrm{softmax}(s\,Q W^Q_i (K W^K_i)^\top)\,V W^V_i`.

    Heads are concatenated along the features of each position. (The lecture stacks them vertically and multiplies by
    A from the left, which would mix positions.) The lecture's single attention is ``Attention(1, head_dim=k,
    value_dim=v, scale=None, use_bias=False, use_out=False)``.

    Inputs: ``x`` for self-attention, ``x, context`` for cross-attention (keys and values from ``context``), or ``q, k,
    v``, each ``(*batch, time, features)``. Returns ``(*batch, time, features)`` with the time of the queries. Params
    are ``{"query", "key", "value", "out"}``, each as those of ``Dense``; head i has the columns from ``i * head_dim``
    up to ``(i + 1) * head_dim`` of a kernel.

    Args:
        heads: h, the number of heads of the queries.
        head_dim: features of a query and a key, by default those of the queries' input divided by ``heads``.
        value_dim: features of a value, by default ``head_dim``.
        kv_heads: heads of keys and values, a divisor of ``heads``; by default ``heads``.
        features: of the output, by default those of the queries' input.
        scale, causal, sliding_window, soft_cap, dropout, fully_masked, implementation, chunk, check: as in `attention`.
            With ``dropout``, ``apply`` reads ``train`` (a Python bool) and ``key``, and drops weights in training.
        positions: a function ``positions(x, index)``, such as ``rotary``, applied to queries and keys, ``(*batch,
            time, heads, head_dim)``, with their positions in time, ``(time,)``. Keys have the positions 0, 1, 2, ...,
            and query i has i + time_k - time_q, as in `attention`, in cross-attention too.
        score_bias: a function ``score_bias(heads, time_q, time_k, offset)``, such as ``alibi``, added to the scores
            like the ``bias`` of `attention`.
        cache: length of a key-value cache, which makes a ``StatefulLayer`` for sequences in pieces of any size. Its
            state, ``{"key", "value", "mask", "position"}``, stores keys, values and their mask for this many positions.
            The outputs for the pieces equal those for the whole sequence, with the same params as without cache (but
            training drops other weights). Requires ``causal``, and ``x`` as the only input.
        use_bias: ``False`` for linear maps.
        use_out: ``False`` returns the concatenated heads, without the params ``"out"``.
        kernel_init, bias_init, dtype, param_dtype: as in `Dense`.
        out_kernel_init: for the kernel of ``"out"`` (small for deep nets); by default ``kernel_init``.

    Side inputs of ``apply``: ``mask``, boolean, either a mask of keys ``(*batch, time_k)``, True at valid keys and
    False at padding, or a mask of scores as in `attention`; and, without ``cache``, ``segment_ids`` as in `attention`.
    With a mask of keys, padding (of keys and values; in self-attention of queries too) is replaced by zeros before the
    maps, so that it has no effect and no gradient, even if it is NaN. With ``cache`` a mask of keys is that of the
    piece, ``(*batch, time)``, and is stored; in a mask of scores ``time_k`` is the length of the cache.

    Raises:
        ValueError: where ``heads`` do not divide the features, for options out of range and shapes that do not fit; for
            a sequence that is longer than its cache, if the position is concrete. Under ``jit`` the following outputs
            are NaN, or with ``check=True`` it is reported to ``jax.experimental.checkify``.

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

    Source: Vaswani et al. 2017, Attention is all you need, arXiv:1706.03762, section 3.2.2; Diehl 2023, section 2.2.
    """
    kv_heads = kv_heads or heads
    got = f"heads={heads} and kv_heads={kv_heads}"
    require(heads % kv_heads == 0, "kv_heads to divide heads, each group sharing one head of keys", got)
    repair = "pass causal=True, since later positions would change earlier outputs"
    require(cache is None or causal, "causal=True with a cache", "causal=False", repair)
    maps = Projections(
        heads, kv_heads, head_dim, value_dim, features, positions, use_bias, use_out,
        kernel_init, out_kernel_init or kernel_init, bias_init, dtype, param_dtype,
    )  # fmt: skip
    options = dict(scale=scale, causal=causal, sliding_window=sliding_window, soft_cap=soft_cap, bias=score_bias)
    options |= dict(fully_masked=fully_masked, implementation=implementation, chunk=chunk, check=check)
    attend = functools.partial(_attend, dropout, options)
    if cache is not None:
        return cached_attention(maps, attend, cache, reads_key=bool(dropout), check_traced=check)

    def init(key, *inputs: Float[ArrayOrShape, "*batch _time _features"]):
        return maps.init(key, *inputs_by_role(inputs))

    def apply(
        params,
        *inputs: Float[Array, "*batch _time _features"],
        mask: Bool[Array, "..."] | None = None,
        segment_ids: SegmentIds = None,
        train=False,
        key=None,
    ):
        inputs, of_keys, mask = zero_padding(inputs, mask, heads)
        q, k, v = maps.split(params, *inputs_by_role(inputs))
        mask = mask if of_keys is None else of_keys[..., None, None, :]
        out = attend(q, k, v, mask=mask, segment_ids=segment_ids, train=train, key=key)
        return maps.join(params, out)

    def apply_without_key(
        params,
        *inputs: Float[Array, "*batch _time _features"],
        mask: Bool[Array, "..."] | None = None,
        segment_ids: SegmentIds = None,
    ):
        return apply(params, *inputs, mask=mask, segment_ids=segment_ids)

    return Layer(init, apply if dropout else apply_without_key)  # without dropout, train and key are not read


def _attend(dropout, options, q, k, v, *, train=False, key=None, **given):
    """`attention` with the options of the layer, and with dropout in training."""
    repair = "pass key=jax.random.key(0) to apply"
    require(not train or key is not None, f"a key in training for dropout={dropout}", "none", repair)
    return attention(q, k, v, **options, **given, **({"dropout": dropout, "key": key} if train else {}))
