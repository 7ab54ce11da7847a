r"""Llama and its relatives: a transformer decoder with RMS norms, rotary positions, grouped heads and gated MLPs.

Axis letters: ``...`` batch; ``time``.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypedDict, Unpack, overload

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxblocks import initializers
from jaxblocks.activations import identity, silu
from jaxblocks.backend.precision import widen
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import Epsilon, NonNegativeInt, PositiveFloat, PositiveInt, Rate, check_params
from jaxblocks.core.pairs import ArrayOrShape, Layer, LayerLike, StatefulLayer, builder
from jaxblocks.layers.attention import Attention, CachedAttention, attention
from jaxblocks.layers.attention.multi_head import UseBias
from jaxblocks.layers.combinators import Repeat, Serial, Wire
from jaxblocks.layers.dense import Dense
from jaxblocks.layers.embedding import Embedding
from jaxblocks.layers.experts import MixtureOfExperts
from jaxblocks.layers.norm import RMSNorm, rms_norm
from jaxblocks.layers.positions import rotary, rotary_frequencies
from jaxblocks.models.class_heads import with_classes
from jaxblocks.models.transformer_block import TransformerBlock, TransformerMLP

__all__ = ["Llama"]


class _Options(TypedDict, total=False):
    """The options of `Llama` without ``cache``, which decides on the type of the layer."""

    vocab_size: int
    layers: int
    heads: int
    kv_heads: int | None
    head_dim: int | None
    features: int
    hidden: int
    base: float
    rope_scaling: Mapping | None
    rotary_dim: int | None
    sliding_window: int | None
    sliding_layers: tuple[bool, ...] | None
    local_base: float | None
    qk_norm: Literal["head", "heads"] | None
    norm_first: Literal[True, "around", "after"]
    score_scale: float | None
    soft_cap: float | None
    logit_soft_cap: float | None
    use_bias: UseBias
    mlp_bias: bool
    experts: int | None
    experts_per_token: int
    activation: Callable
    tied: bool
    scale_embedding: bool
    zero_centered_norm: bool
    head: Literal["words", "classes", "token_classes"] | None
    classes: int
    pad_token: int | None
    epsilon: float
    dropout: float
    attention_dropout: float
    classifier_dropout: float


@overload
def Llama(*, cache: None = None, **options: Unpack[_Options]) -> Layer: ...
@overload
def Llama(*, cache: int, **options: Unpack[_Options]) -> StatefulLayer: ...
@builder
def Llama(
    *,
    vocab_size: PositiveInt = 32_000,
    layers: PositiveInt = 32,
    heads: PositiveInt = 32,
    kv_heads: PositiveInt | None = None,
    head_dim: PositiveInt | None = None,
    features: PositiveInt = 4096,
    hidden: PositiveInt = 11_008,
    base: PositiveFloat = 10_000,
    rope_scaling: Mapping | None = None,
    rotary_dim: PositiveInt | None = None,
    sliding_window: PositiveInt | None = None,
    sliding_layers: tuple[bool, ...] | None = None,
    local_base: PositiveFloat | None = None,
    qk_norm: Literal["head", "heads"] | None = None,
    norm_first: Literal[True, "around", "after"] = True,
    score_scale: PositiveFloat | None = None,
    soft_cap: PositiveFloat | None = None,
    logit_soft_cap: PositiveFloat | None = None,
    use_bias: UseBias = False,
    mlp_bias: bool = False,
    experts: PositiveInt | None = None,
    experts_per_token: PositiveInt = 2,
    activation: Callable = silu,
    tied: bool = False,
    scale_embedding: bool = False,
    zero_centered_norm: bool = False,
    head: Literal["words", "classes", "token_classes"] | None = "words",
    classes: PositiveInt = 2,
    pad_token: NonNegativeInt | None = None,
    epsilon: Epsilon = 1e-6,
    dropout: Rate = 0.0,
    attention_dropout: Rate = 0.0,
    classifier_dropout: Rate = 0.0,
    cache: PositiveInt | None = None,
) -> Layer | StatefulLayer:
    r"""A transformer decoder of the Llama family; the defaults are the 7B model of the paper.

    It has 6,738,415,616 params. Each block is $x + a(N(x))$, then $x + m(N(x))$, with causal attention
    $a$ with rotary positions, and $m(x) = (silu(x W_g) ⊙ x W_u) W_d$. Positions are relative,
    so only the cache limits the length of a sequence.

    Args:
        vocab_size: the number of tokens.
        layers, heads, features: blocks, heads of the queries, features per position.
        kv_heads: heads of keys and values, by default ``heads``; 8 of 64 in Llama 2 70B, 8 of 32 in Llama 3 8B.
        head_dim: features of a head, by default ``features / heads``; 128 in Mistral Nemo, whose features are 5120.
        hidden: features inside the MLP; about 8/3 of ``features`` has as many params as an MLP without gate.
        base: the base of the rotary angles; 500,000 in Llama 3.
        rope_scaling: options of `rotary_frequencies` for sequences that are longer than those of training, such as
            ``dict(scaling="llama3", factor=8.0)`` in Llama 3.1; ``attention_factor`` is the ``scale`` of `rotary`. In
            Phi-3.5 it is ``dict(scaling="longrope", short_factors=..., long_factors=..., original_length=4096)``:
            sequences of more than ``original_length`` positions have the long factors, others the short ones. With
            ``cache`` the number of its positions decides, since keys in it cannot be rotated anew: a cache of at most
            ``original_length`` gives the outputs of short sequences, a larger one those of long ones.
        rotary_dim: the features of a head that positions rotate, by default all; 3/4 of them in Phi-4-mini.
        sliding_window: the number of positions, the own one included, that a position attends to, by default all; 4096
            in Mistral 7B.
        sliding_layers: for each block whether it has the window, by default all; every second one in Gemma 2.
        local_base: the base of the blocks with the window, whose positions are not scaled, by default as in the others;
            10,000 in Gemma 3.
        qk_norm: RMS norms of queries and keys, of each head in Qwen3 and Gemma 3, of all heads together in OLMo 2.
        norm_first: the place of the norms of a block, as in `TransformerBlock`; ``"after"`` in OLMo 2, ``"around"`` in
            Gemma 2 and 3.
        score_scale: the factor of the scores, by default $1 / √(head_dim)$.
        soft_cap, logit_soft_cap: c of $c tanh(x / c)$ for the scores and for the logits, by default none; 50 and 30 in
            Gemma 2.
        use_bias: which maps of the attention have a bias, as in `Attention`; ``("query", "key", "value")`` in Qwen2.
        mlp_bias: whether the maps of the MLP have a bias.
        experts, experts_per_token: a number of MLPs in each block, in place of one, and how many of them a router
            chooses for each token, as `MixtureOfExperts` without capacity and without the losses of its router; 8 and
            2 in Mixtral.
        activation: of the MLP; the tanh approximation of `gelu` in Gemma.
        tied: whether the token embedding also computes the logits, as in Gemma and the small models of Llama 3.2 and
            Qwen2.
        scale_embedding: whether the embeddings of tokens are multiplied by $√(features)$, as in Gemma.
        zero_centered_norm: whether the params of a norm are its scale minus 1, as in Gemma.
        head, classes, pad_token: what the net returns, as in `GPT2`.
        epsilon: of the norms; 1e-5 in Llama 2 and 3.
        dropout, attention_dropout, classifier_dropout: the rates for branches, for the weights of attention and before
            the logits of ``"token_classes"``, in training; the paper has none.
        cache: a number of positions; the result is then a ``StatefulLayer`` with the same params for sequences that
            arrive in pieces. Its state holds the keys and values of up to ``cache`` positions. See `CachedAttention`.

    Shapes: tokens ``(..., time)``, integers, to logits ``(..., time, vocab_size)``; without a head to ``(..., time,
    features)``, with ``"classes"`` to ``(..., classes)``, with ``"token_classes"`` to ``(..., time, classes)``.

    Side inputs: ``mask``, ``False`` at padding (padding on the right needs none: it is never attended to), and
    ``segment_ids`` (without cache), as in `Attention`; ``train`` and ``key`` with a rate above 0.

    >>> net = Llama(vocab_size=5, layers=2, heads=2, kv_heads=1, features=4, hidden=12)
    >>> tokens = jnp.array([0, 3, 1])
    >>> # jax.jit(net.init) makes arrays
    >>> params = jax.eval_shape(net.init, jax.random.key(0), tokens)
    >>> jax.eval_shape(net.apply, params, tokens).shape
    (3, 5)

    Source: Touvron et al. 2023, LLaMA: Open and efficient foundation language models, section 2.2, arXiv:2302.13971.
    Initial weights are normal with standard deviation 0.02, as in the published training code; the paper does not
    state them. Jiang et al. 2023, Mistral 7B (``sliding_window``), arXiv:2310.06825; Yang et al. 2024, Qwen2 technical
    report (``use_bias``), arXiv:2407.10671; Dubey et al. 2024, The Llama 3 herd of models (``base``), arXiv:2407.21783;
    Gemma Team 2024, Gemma: Open models based on Gemini research and technology, section 2, arXiv:2403.08295, and its
    published code (``scale_embedding``, ``zero_centered_norm``). Gemma Team 2024, Gemma 2 (``sliding_layers``,
    ``soft_cap``, ``norm_first="around"``), arXiv:2408.00118; Gemma Team 2025, Gemma 3 technical report
    (``local_base``), arXiv:2503.19786; OLMo Team 2025, 2 OLMo 2 Furious (``norm_first="after"``), arXiv:2501.00656;
    Yang et al. 2025, Qwen3 technical report (``qk_norm``), arXiv:2505.09388; Jiang et al. 2024, Mixtral of experts
    (``experts``), arXiv:2401.04088; Peng et al. 2023, YaRN, arXiv:2309.00071, and Ding et al. 2024, LongRoPE,
    arXiv:2402.13753 (``rope_scaling``).
    """
    linear: dict[str, Any] = dict(use_bias=False, kernel_init=initializers.normal(0.02))
    norm = functools.partial(_ZeroCenteredRMSNorm if zero_centered_norm else RMSNorm, epsilon=epsilon)
    rotate = functools.partial(rotary, rotary_dim=rotary_dim)
    if rope_scaling is None:
        # `rotary` computes the frequencies from base, in the dtype of its input.
        positions = functools.partial(rotate, base=base)
    else:
        positions = _scaled(rotate, rotary_dim or head_dim or features // heads, base, cache, **rope_scaling)
    local_positions = functools.partial(rotate, base=local_base) if local_base else positions
    of_scores = {name: value for name, value in (("scale", score_scale), ("soft_cap", soft_cap)) if value is not None}

    mlp = TransformerMLP(hidden, features, gated=True, activation=activation, **{**linear, "use_bias": mlp_bias})
    if experts is not None:
        fits, repair = experts_per_token <= experts, "pass fewer experts_per_token"
        require(fits, f"experts_per_token of at most {experts}, the number of experts", experts_per_token, repair)
        mlp = _Mixture(mlp, experts, experts_per_token, linear["kernel_init"])

    def block(window: int | None) -> Any:
        options = of_scores | ({"sliding_window": window} if window else {})
        self_attention = Attention(
            heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            causal=True,
            positions=local_positions if window else positions,
            dropout=attention_dropout,
            attention_fn=functools.partial(attention, **options) if options else attention,
            qk_norm=norm if qk_norm else None,
            qk_norm_axis=qk_norm or "head",
            # The biases of attention are an option of their own, apart from `mlp_bias`.
            **{**linear, "use_bias": use_bias},  # type: ignore[arg-type]
        )
        return TransformerBlock(
            attention=self_attention if cache is None else CachedAttention(self_attention, cache),
            mlp=mlp,
            norm=norm,
            norm_first=norm_first,
            dropout=dropout,
        )

    local = block(sliding_window)
    if sliding_layers is None or all(sliding_layers):
        blocks = Repeat(local, layers)
    else:
        got, repair = f"sliding_layers of {len(sliding_layers)}", "pass one bool for each block"
        require(len(sliding_layers) == layers, f"sliding_layers for each of {layers} blocks", got, repair)
        blocks = Repeat((block(None), local), layers, which=tuple(map(int, sliding_layers)))
    parts: dict[str, LayerLike] = {
        "tokens": Embedding(
            vocab_size, features, tied=tied and head == "words", embedding_init=initializers.normal(0.02)
        ),
        # Only the inputs are scaled, not the table that computes the logits.
        **({"scale": lambda x: x * features**0.5} if scale_embedding else {}),
        "blocks": blocks,
        "norm": norm(),
    }
    if head is None:
        return Serial(**parts)

    def encode(f, ids):
        x = f.tokens(ids)
        return f.norm(f.blocks(f.scale(x) if scale_embedding else x))

    if head != "words":
        return with_classes(
            encode,
            parts,
            head,
            classes=classes,
            dropout=classifier_dropout,
            pad_token=pad_token,
            kernel_init=linear["kernel_init"],
        )
    capped = functools.partial(_soft_cap, cap=logit_soft_cap) if logit_soft_cap else identity
    if tied:
        # A tied table is called twice, and a Serial calls each layer once.
        return Wire(lambda f, ids: capped(f.tokens(encode(f, ids))), **parts)  # type: ignore[arg-type]
    out = {"out": Dense(vocab_size, **linear)} | ({"cap": capped} if logit_soft_cap else {})
    return Serial(**parts, **out)


def _scaled(
    rotate: Callable,
    rotary_dim: int,
    base: PositiveFloat,
    cache: int | None,
    *,
    attention_factor: PositiveFloat | None = None,
    **scaling: Any,
) -> Callable:
    """The rotation ``positions(x, index)`` for the options ``rope_scaling``."""
    frequencies = functools.partial(rotary_frequencies, rotary_dim, base=base)  # static, once for all calls
    rotate = functools.partial(rotate, scale=attention_factor)
    if scaling.get("scaling") != "longrope":
        return functools.partial(rotate, frequencies=frequencies(**scaling))
    length, *factors = given = [scaling.pop(name, None) for name in _OF_LONGROPE]
    missing = [name for name, value in zip(_OF_LONGROPE, given, strict=True) if value is None]
    expected = f"rope_scaling with {', '.join(_OF_LONGROPE)} for longrope"
    require(not missing, expected, f"no {' and no '.join(missing)}", "take them from the configuration of the model")
    short, long = (frequencies(factors=own, **scaling) for own in factors)
    if cache is not None:
        return functools.partial(rotate, frequencies=long if cache > length else short)
    # In terms of the positions, since their number may be symbolic in jax.export.
    is_long = lambda index: jnp.max(index, initial=0) >= length
    return lambda x, index: rotate(x, index, frequencies=jnp.where(is_long(index), long, short))


_OF_LONGROPE = ("original_length", "short_factors", "long_factors")


@builder
def _Mixture(mlp: Any, experts: int, top_k: int, router_init: Callable) -> Layer:
    """`MixtureOfExperts` without the losses of its router."""
    mixture = MixtureOfExperts(mlp, experts, top_k=top_k, router_init=router_init)
    return Layer(mixture.init, lambda params, x: mixture.apply(params, x)[0])


def _soft_cap(x, *, cap):
    return cap * jnp.tanh(x / cap)


@builder
def _ZeroCenteredRMSNorm(*, epsilon: Epsilon) -> Layer:
    """`rms_norm` with params ``{"scale": γ - 1}``, initially 0."""

    def init(key, x: Float[ArrayOrShape, "*batch features"]):
        return {"scale": jnp.zeros(x.shape[-1:], jnp.float32)}

    def apply(params, x: Float[Array, "*batch features"]):
        check_params(params, scale=x.shape[-1:])
        # Gemma stores the scale minus 1: weight decay then pulls the scale towards 1; the sum is taken in float32.
        return rms_norm(x, 1 + widen(params["scale"]), epsilon=epsilon)

    return Layer(init, apply)
