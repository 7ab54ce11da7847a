"""Multi-head attention: the layer with learned maps of queries, keys, values and output."""

import inspect
from collections.abc import Callable
from typing import Any, Literal, TypeAlias, TypedDict

import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from jaxblocks import initializers
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import PositiveInt, Rate
from jaxblocks.core.pairs import ArrayOrShape, Layer, LayerLike, Out, StatefulLayer, builder
from jaxblocks.layers.attention.dot_product import SegmentIds, attention
from jaxblocks.layers.attention.padding import zero_padding
from jaxblocks.layers.attention.projections import MultiHead, inputs_by_role

__all__ = ["Attention", "AttentionOptions", "steps_of"]


UseBias: TypeAlias = bool | tuple[Literal["query", "key", "value", "out"], ...]


class AttentionOptions(TypedDict, total=False):
    """The options of `Attention`, for builders that pass them on."""

    kv_heads: int | None
    head_dim: int | None
    value_dim: int | None
    causal: bool
    positions: Callable | None
    score_bias: LayerLike | None
    dropout: float
    attention_fn: Callable
    use_bias: UseBias
    qk_norm: Callable | None
    qk_norm_axis: Literal["head", "heads"]
    use_sink: bool
    kernel_init: Callable
    query_kernel_init: Callable | None
    out_kernel_init: Callable | None
    dtype: DTypeLike | None
    param_dtype: DTypeLike


@builder
def Attention(
    heads: PositiveInt,
    *,
    kv_heads: PositiveInt | None = None,
    head_dim: PositiveInt | None = None,
    value_dim: PositiveInt | None = None,
    causal: bool = False,
    positions: Callable | None = None,
    score_bias: LayerLike | None = None,
    dropout: Rate = 0.0,
    attention_fn: Callable[..., Out] = attention,
    use_bias: UseBias = True,
    qk_norm: Callable | None = None,
    qk_norm_axis: Literal["head", "heads"] = "head",
    use_sink: bool = False,
    kernel_init: Callable = initializers.lecun_normal(),
    query_kernel_init: Callable | None = None,
    out_kernel_init: Callable | None = None,
    dtype: DTypeLike | None = None,
    param_dtype: DTypeLike = jnp.float32,
) -> Layer[Out]:
    r"""Multi-head attention with learned maps of queries, keys, values and output.

    It is $[H_1, …, H_h] W^O + b$ with $H_i = softmax(s Q W^Q_i (K W^K_i)ᵀ) V W^V_i$.

    Heads are concatenated along the features of each position. (The lecture stacks them vertically and multiplies by
    A from the left, which would mix positions.) The lecture's single attention, without $W^O$, is `soft_lookup`
    of three linear maps. `CachedAttention` computes the same for sequences in pieces.

    Inputs: ``x`` for self-attention, ``x, context`` for cross-attention (keys and values from ``context``), or ``q, k,
    v``, each ``(*batch, time, features)``. Returns ``(*batch, time, features)`` with the time and the features of the
    queries' input. Params are ``{"query", "key", "value", "out"}``, each as those of ``Dense``, with biases zero at
    ``init``; head i has the columns from ``i * head_dim`` up to ``(i + 1) * head_dim`` of a kernel. The params of a
    layer ``score_bias`` are ``"score_bias"``, the sinks ``"sink"``, ``(heads,)``.

    Args:
        heads: h, the number of heads of the queries.
        kv_heads: heads of keys and values, a divisor of ``heads``; by default ``heads``.
        head_dim: features of a query and a key, by default those of the queries' input divided by ``heads``.
        value_dim: features of a value, by default ``head_dim``.
        causal: whether a query attends only to keys up to its own position, as in `attention`.
        positions: a function ``positions(x, index)``, such as ``rotary``, applied to queries and keys, ``(*batch,
            time, heads, head_dim)``, with their positions in time, ``(time,)``. Keys have the positions 0, 1, 2, ...,
            and query i has i + time_k - time_q, as with the default ``offset`` of `attention`, in cross-attention too.
        score_bias: a function ``score_bias(heads, time_q, time_k, offset)``, such as ``alibi``, or a layer of the
            positions of queries and keys, such as `RelativePositionBias`; added to the scores like the ``bias`` of
            `attention`. A rule of positions (dilated, block-diagonal) is one that is -inf where it forbids a key.
        dropout: the rate of the dropout of weights; above 0, ``apply`` reads ``train`` (a Python bool) and ``key``.
        attention_fn: the function of queries, keys and values, ``(*batch, time, heads, features)``. All options of
            `attention` can be set, as in ``functools.partial(attention, soft_cap=30.0, sliding_window=64)``. With
            `attention_with_weights` the layer returns its outputs and the weights ``(*batch, heads, time_q, time_k)``.
            A function of your own, such as ``linear_attention``, is called with those of the options ``causal=True``,
            ``mask``, ``segment_ids``, ``bias``, ``sink``, ``dropout``, ``key`` and, in decoding, ``offset`` that are in
            use.
        use_bias: ``False`` for linear maps; or the names of the maps with a bias, such as ``("query", "value",
            "out")``.
        qk_norm: ``qk_norm()`` builds a norm of queries and one of keys, before the positions, such as ``RMSNorm``, with
            params ``"query_norm"`` and ``"key_norm"``; by default none.
        qk_norm_axis: ``"head"`` for the features of each head, as in Qwen3; ``"heads"`` for all heads together,
            as in OLMo 2.
        use_sink: whether each head has a learned ``sink`` as in `attention`, zero at ``init``.
        kernel_init, dtype, param_dtype: as in `Dense`.
        query_kernel_init, out_kernel_init: for the kernel of ``"query"`` (small where scores are not scaled) and of
            ``"out"`` (small for deep nets); by default ``kernel_init``.

    Side inputs of ``apply``: ``mask``, boolean, either a mask of keys ``(*batch, time_k)``, True at valid keys and
    False at padding, or a mask of scores as in `attention`; and ``segment_ids`` as in `attention`. With a mask of keys,
    padding (of keys and values; in self-attention of queries too) is replaced by zeros before the maps, so that it has
    no effect and no gradient, even if it is NaN. A mask of the shape ``(*batch, time_k)`` is always one of keys, also
    one made as ``(time_q, time_k)`` where the batch has as many examples: write ``causal=True`` for causal order.

    Raises:
        ValueError: where ``heads`` do not divide the features, for options out of range and shapes that do not fit.

    >>> from functools import partial
    >>> layer = Attention(2, causal=True, attention_fn=partial(attention, soft_cap=30.0))
    >>> x = jax.random.normal(jax.random.key(0), (5, 8))
    >>> params = layer.init(jax.random.key(1), x)
    >>> jax.jit(layer.apply)(params, x).shape
    (5, 8)

    Source: Vaswani et al. 2017, Attention is all you need, arXiv:1706.03762, section 3.2.2; Diehl 2023, section 2.2.
    Dehghani et al. 2023, Scaling vision transformers to 22 billion parameters (``qk_norm``), arXiv:2302.05442.
    """
    got = f"heads={heads} and kv_heads={kv_heads}"
    if kv_heads and heads % kv_heads:
        repair = f"pass kv_heads={max(n for n in range(1, kv_heads) if heads % n == 0)}"
        require(False, "kv_heads to divide heads, each group sharing one head of keys", got, repair)
    expected, repair = "score_bias to be a function or a Layer", "pass the function itself, such as alibi"
    # A Layer counts as callable too; state of a bias could not be returned.
    is_function = callable(score_bias) and not isinstance(score_bias, StatefulLayer)
    require(score_bias is None or is_function, expected, repr(score_bias), repair, error=TypeError)
    # By position: `MultiHead` has these options as fields, in this order and with these names.
    steps = MultiHead(
        heads, kv_heads, head_dim, value_dim, causal, positions, score_bias, dropout, attention_fn,
        use_bias, qk_norm, qk_norm_axis, use_sink, kernel_init, query_kernel_init, out_kernel_init, dtype, param_dtype,
    )  # fmt: skip

    def init(key, *inputs: Float[ArrayOrShape, "*batch _time _in"]):
        return steps.init(key, *inputs_by_role(inputs))

    def apply(
        params,
        *inputs: Float[Array, "*batch _time _features"],
        mask: Bool[Array, "..."] | None = None,
        segment_ids: SegmentIds = None,
        train=False,
        key=None,
    ):
        # A mask of keys (*batch, time) zeroes the padding, so that NaN there cannot reach a product; a mask of scores
        # passes on.
        inputs, of_keys, mask = zero_padding(inputs, mask, heads)
        q, k, v = steps.project(params, *inputs_by_role(inputs))
        mask = mask if of_keys is None else of_keys[..., None, None, :]
        out = steps.attend(params, q, k, v, mask=mask, segment_ids=segment_ids, train=train, key=key)
        return steps.join(params, out)

    def apply_without_key(
        params,
        *inputs: Float[Array, "*batch _time _features"],
        mask: Bool[Array, "..."] | None = None,
        segment_ids: SegmentIds = None,
    ):
        return apply(params, *inputs, mask=mask, segment_ids=segment_ids)

    return Layer(init, apply if dropout else apply_without_key)  # without dropout, train and key are not read


def steps_of(layer: Layer) -> MultiHead:
    """The steps of an `Attention`, read off the call that built it."""
    call: Any = getattr(layer, "call", None)
    is_attention, repair = getattr(call, "function", None) is Attention, "pass the result of Attention(...)"
    require(is_attention, "layer to be an Attention", repr(layer), repair, error=TypeError)
    # The options are read from the recorded call, so that a cached layer needs no second list of them.
    options = inspect.signature(Attention).bind(*call.args, **call.kwargs)
    options.apply_defaults()
    return MultiHead(**options.arguments)
