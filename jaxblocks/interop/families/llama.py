"""Llama 2 and 3, Mistral, Mixtral, Qwen2 and 3, Gemma 1 to 3, OLMo 2 and Phi-3: one net, which they set differently."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from jaxblocks.interop.families.family import (
    ACTIVATIONS,
    COUNT,
    EPSILON,
    FLAG,
    INDEX,
    LENGTH,
    POSITIVE,
    RATE,
    WIDTH,
    Config,
    Family,
    Kind,
    activation,
    list_of,
    or_null,
    sliding_layers,
    tokens,
)
from jaxblocks.interop.families.heads import decoder_head, head_rules
from jaxblocks.interop.rules import Rules, Source, merge_qkv
from jaxblocks.models import Llama

__all__ = ["LLAMA_FAMILIES"]

BLOCK = "model.layers.{i}"
RULES: Rules = {
    "tokens": "model.embed_tokens",
    "blocks/attention_norm": f"{BLOCK}.input_layernorm",
    "blocks/attention/query": f"{BLOCK}.self_attn.q_proj",
    "blocks/attention/key": f"{BLOCK}.self_attn.k_proj",
    "blocks/attention/value": f"{BLOCK}.self_attn.v_proj",
    "blocks/attention/out": f"{BLOCK}.self_attn.o_proj",
    "blocks/mlp_norm": f"{BLOCK}.post_attention_layernorm",
    "blocks/mlp/*": f"{BLOCK}.mlp.*_proj",
    "norm": "model.norm",
    "out": "lm_head",
}
QK_NORMS: Rules = {
    "blocks/attention/query_norm": f"{BLOCK}.self_attn.q_norm",
    "blocks/attention/key_norm": f"{BLOCK}.self_attn.k_norm",
}
GEMMA2_RULES: Rules = {
    **RULES,
    "blocks/attention_out_norm": f"{BLOCK}.post_attention_layernorm",
    "blocks/mlp_norm": f"{BLOCK}.pre_feedforward_layernorm",
    "blocks/mlp_out_norm": f"{BLOCK}.post_feedforward_layernorm",
}
OLMO2_RULES: Rules = {
    **RULES,
    **QK_NORMS,
    "blocks/attention_norm": f"{BLOCK}.post_attention_layernorm",
    "blocks/mlp_norm": f"{BLOCK}.post_feedforward_layernorm",
}

EXPERTS = f"{BLOCK}.block_sparse_moe"
MIXTRAL_RULES: Rules = {
    **{path: name for path, name in RULES.items() if path != "blocks/mlp/*"},
    "blocks/mlp/router": f"{EXPERTS}.gate",
    "blocks/mlp/experts/gate": f"{EXPERTS}.experts.{{j}}.w1",
    "blocks/mlp/experts/up": f"{EXPERTS}.experts.{{j}}.w3",
    "blocks/mlp/experts/down": f"{EXPERTS}.experts.{{j}}.w2",
}

MERGED: Rules = {
    **merge_qkv("blocks/attention", f"{BLOCK}.self_attn.qkv_proj"),
    "blocks/mlp/gate": Source(f"{BLOCK}.mlp.gate_up_proj", part=0),
    "blocks/mlp/up": Source(f"{BLOCK}.mlp.gate_up_proj", part=1),
}
# First, so that they hold before patterns such as "blocks/mlp/*", and last, in place of those of the same path.
PHI3_RULES = {**MERGED, **RULES, **MERGED}


def _llama(config: Config) -> dict[str, Any]:
    biases = {"use_bias": "attention_bias", "mlp_bias": "mlp_bias"}
    return _options(config, **{ours: config.read(theirs, FLAG, False) for ours, theirs in biases.items()})


def _mistral(config: Config) -> dict[str, Any]:
    # Default of MistralConfig, null in later versions of the model.
    window = config.read("sliding_window", or_null(LENGTH), 4096)
    return _options(config, kv_heads=_kv_heads(config, 8), sliding_window=window)


def _mixtral(config: Config) -> dict[str, Any]:
    # The losses of the router, and noise on its inputs in training, are not here.
    config.one_of("output_router_logits", False, default=False)
    config.one_of("router_jitter_noise", 0, 0.0, default=0.0)
    experts, chosen = config.read("num_local_experts", COUNT, 8), config.read("num_experts_per_tok", COUNT, 2)
    got = f"{chosen} of {experts}"
    config.require(chosen <= experts, "num_experts_per_tok to be at most num_local_experts", got)
    return _options(
        config,
        kv_heads=_kv_heads(config, 8),
        sliding_window=config.read("sliding_window", or_null(LENGTH), None),
        experts=experts,
        experts_per_token=chosen,
        epsilon=config.read("rms_norm_eps", EPSILON, 1e-5),
        default_base=1_000_000.0,
    )


def _qwen2(config: Config) -> dict[str, Any]:
    windows = _qwen_windows(config)
    return _options(config, kv_heads=_kv_heads(config, 32), use_bias=("query", "key", "value"), **windows)


def _qwen3(config: Config) -> dict[str, Any]:
    return _options(
        config,
        kv_heads=_kv_heads(config, 32),
        head_dim=config.read("head_dim", WIDTH, 128),
        use_bias=config.read("attention_bias", FLAG, False),
        qk_norm="head",
        **_qwen_windows(config),
    )


def _qwen_windows(config: Config) -> dict[str, Any]:
    uses = config.read("use_sliding_window", FLAG, False)
    window = config.read("sliding_window", or_null(LENGTH), 4096) if uses else None
    first = config.read("max_window_layers", INDEX, 28)
    return _windows(config, window, lambda layer: window is not None and layer >= first)


def _windows(config: Config, window: int | None, slides: Callable[[int], bool]) -> dict[str, Any]:
    """The window, and the layers that have it where these are not all; ``slides`` is for those without a type."""
    sliding = sliding_layers(config, slides)
    expected = "sliding_window to be a number with layer_types of sliding_attention"
    config.require(window is not None or not any(sliding), expected, "null")
    if not any(sliding):
        return {"sliding_window": None}
    return {"sliding_window": window, "sliding_layers": None if all(sliding) else sliding}


def _olmo2(config: Config) -> dict[str, Any]:
    bias, epsilon = config.read("attention_bias", FLAG, False), config.read("rms_norm_eps", EPSILON, 1e-5)
    return _options(config, use_bias=bias, epsilon=epsilon, qk_norm="heads", norm_first="after")


def _of_gemma(config: Config, kv_heads: int, **options: Any) -> dict[str, Any]:
    """What all versions of Gemma share; ``kv_heads`` are those of a configuration without them."""
    config.without("use_bidirectional_attention")
    return _options(
        config,
        kv_heads=_kv_heads(config, kv_heads),
        head_dim=config.read("head_dim", WIDTH, 256),
        use_bias=config.read("attention_bias", FLAG, False),
        scale_embedding=True,
        zero_centered_norm=True,
        **options,
    )


def _gemma(config: Config) -> dict[str, Any]:
    for name in ("hidden_act", "hidden_activation"):  # "gelu" of old configurations stands for its approximation
        config.one_of(name, "gelu", "gelu_new", "gelu_pytorch_tanh", None, default="gelu")
    return _of_gemma(config, 16, activation=ACTIVATIONS["gelu_pytorch_tanh"])


def _gemma2(config: Config) -> dict[str, Any]:
    window = config.read("sliding_window", or_null(LENGTH), 4096)
    caps = {"soft_cap": ("attn_logit_softcapping", 50.0), "logit_soft_cap": ("final_logit_softcapping", 30.0)}
    return _later_gemma(
        config,
        **{ours: config.read(name, or_null(POSITIVE), default) for ours, (name, default) in caps.items()},
        **_windows(config, window, lambda layer: layer % 2 == 0),
    )


def _gemma3(config: Config) -> dict[str, Any]:
    window = config.read("sliding_window", or_null(LENGTH), 4096)
    pattern = config.read("sliding_window_pattern", COUNT, 6)
    rope = config.part("rope_parameters", None)
    whole, local = rope.part("full_attention", None), rope.part("sliding_attention", None)
    if config.get("rope_scaling"):
        whole = Config({**whole, **config.part("rope_scaling")}, config.file, "rope_scaling")
    local.one_of("rope_type", "default", default="default")
    head_dim = config.read("head_dim", WIDTH, 256)
    return _later_gemma(
        config,
        qk_norm="head",
        local_base=local.read("rope_theta", POSITIVE, config.read("rope_local_base_freq", POSITIVE, 10_000.0)),
        logit_soft_cap=config.read("final_logit_softcapping", or_null(POSITIVE), None),
        **_windows(config, window, lambda layer: (layer + 1) % pattern != 0),
        **_positions(config, head_dim, whole, 1_000_000.0),
    )


def _later_gemma(config: Config, **options: Any) -> dict[str, Any]:
    """What Gemma 2 and 3 share."""
    if options.get("logit_soft_cap") and _head(config)["head"] != "words":
        options["logit_soft_cap"] = None
    return _of_gemma(
        config,
        4,
        activation=activation(config, "hidden_activation", "gelu_pytorch_tanh"),
        norm_first="around",
        score_scale=config.read("query_pre_attn_scalar", POSITIVE, 256) ** -0.5,
        **options,
    )


def _phi3(config: Config) -> dict[str, Any]:
    window, rate = config.read("sliding_window", LENGTH, None), config.read("resid_pdrop", RATE, 0.0)
    return _options(config, sliding_window=window, dropout=rate, epsilon=config.read("rms_norm_eps", EPSILON, 1e-5))


def _kv_heads(config: Config, default: int | None = None) -> int | None:
    return config.read("num_key_value_heads", or_null(COUNT), default)


def _options(config: Config, default_base: float = 10_000.0, **options: Any) -> dict[str, Any]:
    features, heads = config.read("hidden_size", WIDTH), config.read("num_attention_heads", COUNT)
    # A family may have a default of its own for a missing key.
    kv_heads = options["kv_heads"] if "kv_heads" in options else _kv_heads(config)
    config.divides("num_key_value_heads", "num_attention_heads", kv_heads or heads, heads)
    # Some models (Mistral Nemo) have heads whose total width is not that of the features.
    head_dim = options.get("head_dim") or config.read("head_dim", WIDTH, None)
    if head_dim is None:
        config.divides("num_attention_heads", "hidden_size", heads, features)
    common: dict[str, Any] = dict(
        vocab_size=config.read("vocab_size", LENGTH),
        layers=config.read("num_hidden_layers", COUNT),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        features=features,
        hidden=config.read("intermediate_size", WIDTH),
        epsilon=config.read("rms_norm_eps", EPSILON, 1e-6),
        attention_dropout=config.read("attention_dropout", RATE, 0.0),
        tied=_is_tied(config),
        **_head(config),
    )
    if "base" not in options:
        common |= _positions(config, head_dim or features // heads, default=default_base)
    if "activation" not in options:
        common["activation"] = activation(config, "hidden_act", "silu")
    return common | options


PART = Kind("a number above 0 and at most 1", lambda x: type(x) in (int, float) and 0 < x <= 1)
NUMBER = Kind("a number of at least 0", lambda x: type(x) in (int, float) and 0 <= x < 1e12)
WHOLE = Kind("1", lambda x: type(x) in (int, float) and x == 1)


def _positions(config: Config, head_dim: int, rope: Config | None = None, default: float = 10_000.0) -> dict[str, Any]:
    """The base and the scaling of the rotary positions, which versions of Hugging Face name differently."""
    # Where both are there, the older one holds, as in transformers.
    if rope is None:
        rope = config.part("rope_scaling" if config.get("rope_scaling") else "rope_parameters", None)
    # Later versions of transformers keep it inside of rope_parameters, earlier ones beside rope_scaling.
    base = rope.read("rope_theta", POSITIVE, config.read("rope_theta", POSITIVE, default))
    is_phi = config["model_type"] == "phi3"
    names = {"longrope": "longrope", "yarn": "longrope"} if is_phi else {name: name for name in SCALINGS}
    kind = rope.one_of("rope_type" if "rope_type" in rope else "type", "default", *names, default="default")
    known = PART if is_phi else WHOLE  # the others ignore it
    part = rope.read("partial_rotary_factor", known, config.read("partial_rotary_factor", known, 1.0))
    rotated = int(head_dim * part)
    name = "head_dim" if config.get("head_dim") else "hidden_size / num_attention_heads"
    expected = f"{name} times partial_rotary_factor to be an even number of rotated features"
    config.require(rotated > 0 and rotated % 2 == 0, expected, f"{rotated}")
    options = {"base": base, "rotary_dim": None if rotated == head_dim else rotated}
    if kind == "default":
        return options
    return options | {"rope_scaling": {"scaling": names[kind]} | SCALINGS[names[kind]](config, rope, rotated // 2)}


def _original_length(config: Config, rope: Config) -> int:
    """The length of the sequences of training; the key of Phi-3 beside ``rope_parameters`` holds in all families."""
    name = "original_max_position_embeddings"
    outside = config.read(name, LENGTH, 4096 if config["model_type"] == "phi3" else None)
    default = config.read("max_position_embeddings", LENGTH, None) or ...
    return outside or rope.read(name, LENGTH, default)


def _llama3(config: Config, rope: Config, pairs: int) -> dict[str, Any]:
    low, high = (rope.read(f"{name}_freq_factor", POSITIVE) for name in ("low", "high"))
    rope.require(low < high, "low_freq_factor below high_freq_factor", f"{low} and {high}")
    factors = {"low_frequency_factor": low, "high_frequency_factor": high}
    return {"factor": rope.read("factor", POSITIVE), "original_length": _original_length(config, rope)} | factors


def _yarn(config: Config, rope: Config, pairs: int) -> dict[str, Any]:
    rope.one_of("truncate", True, default=True)
    factor, betas = rope.read("factor", POSITIVE), {"beta_slow": 1.0, "beta_fast": 32.0}
    low, high = (rope.read(name, or_null(POSITIVE), None) or default for name, default in betas.items())
    rope.require(low < high, "beta_slow below beta_fast", f"{low} and {high}")
    scales = [rope.read(name, or_null(NUMBER), None) for name in ("mscale", "mscale_all_dim")]
    one, all_dims = (1 + 0.1 * (scale or 0) * math.log(max(factor, 1)) for scale in scales)
    default = one / all_dims if all(scales) else 1 + 0.1 * math.log(max(factor, 1))
    return {
        "factor": factor,
        "original_length": _original_length(config, rope),
        "low_frequency_factor": low,
        "high_frequency_factor": high,
        "attention_factor": rope.read("attention_factor", or_null(POSITIVE), None) or default,
    }


def _longrope(config: Config, rope: Config, pairs: int) -> dict[str, Any]:
    length = _original_length(config, rope)
    rope.require(length > 1, "original_max_position_embeddings above 1", length)
    factors = {}
    for name in ("short_factor", "long_factor"):
        own = rope.read(name, list_of(POSITIVE, 2**20))
        rope.require(len(own) == pairs, f"{name} with {pairs} numbers, one for each pair", f"{len(own)} of them")
        factors[f"{name}s"] = tuple(map(float, own))
    factor = rope.read("factor", or_null(POSITIVE), None)
    if factor is None:
        default = 4096 if config["model_type"] == "phi3" else ...
        factor = config.read("max_position_embeddings", LENGTH, default) / length
    scale = math.sqrt(1 + math.log(factor) / math.log(length)) if factor > 1 else 1.0
    scale = rope.read("attention_factor", or_null(POSITIVE), None) or scale
    return factors | {"original_length": length, "attention_factor": scale}


SCALINGS: dict[str, Callable[[Config, Config, int], dict[str, Any]]] = {
    "linear": lambda config, rope, pairs: {"factor": rope.read("factor", POSITIVE)},
    "llama3": _llama3,
    "longrope": _longrope,
    "yarn": _yarn,
}


class _Relative(NamedTuple):
    """What distinguishes a model of this net from the others."""

    options: Callable[[Config], dict[str, Any]]
    name: str  # the beginning of its classes
    rules: Rules = RULES
    pad_token: int | None = None  # of a configuration without one
    tied: bool = False  # whether the embedding computes the logits where the configuration is silent
    old_names: bool = False  # whether its model for answers has another name for the base model


RELATIVES = {
    "gemma": _Relative(_gemma, "Gemma", pad_token=0, tied=True),
    "gemma2": _Relative(_gemma2, "Gemma2", GEMMA2_RULES, pad_token=0, tied=True),
    "gemma3_text": _Relative(_gemma3, "Gemma3", {**GEMMA2_RULES, **QK_NORMS}, pad_token=0, tied=True),
    "llama": _Relative(_llama, "Llama", old_names=True),
    "mistral": _Relative(_mistral, "Mistral"),
    "mixtral": _Relative(_mixtral, "Mixtral", MIXTRAL_RULES),
    "olmo2": _Relative(_olmo2, "Olmo2", OLMO2_RULES, pad_token=1),
    "phi3": _Relative(_phi3, "Phi3", PHI3_RULES, pad_token=32_000),
    "qwen2": _Relative(_qwen2, "Qwen2", old_names=True),
    "qwen3": _Relative(_qwen3, "Qwen3", {**RULES, **QK_NORMS}, old_names=True),
}


def _relative(config: Config) -> _Relative:
    return RELATIVES[config["model_type"]]


def _classes(config: Config) -> tuple[str, str, str]:
    """The beginning of the classes of the model, the class for words and that of the base model."""
    words = _relative(config).name
    name = "Gemma3Text" if words == "Gemma3" else words
    return name, f"{words}ForCausalLM", f"{name}Model"


def _head(config: Config) -> dict[str, Any]:
    return decoder_head(config, *_classes(config), _relative(config).pad_token)


def _rules(config: Config) -> Rules:
    """The rules of the family, with those of the head."""
    rules = head_rules(_relative(config).rules, config, *_classes(config))
    prefix = "transformer." if _relative(config).old_names and rules["out"] == "qa_outputs" else "model."
    renamed = lambda right: right.replace("model.", prefix, 1) if isinstance(right, str) else right
    return {path: renamed(right) for path, right in rules.items()}


def _is_tied(config: Config) -> bool:
    # Without words there are no logits to tie.
    return config.read("tie_word_embeddings", FLAG, _relative(config).tied) and _head(config)["head"] == "words"


def _family(relative: _Relative) -> Family:
    return Family(
        Llama,
        relative.options,
        _rules,
        inputs=tokens,
        architecture=f"{relative.name}ForCausalLM",
        prefix="model.",
        tied=lambda config: {"lm_head.weight": "model.embed_tokens.weight"} if _is_tied(config) else {},
        ignored=("*.rotary_emb.inv_freq",),  # frequencies, which the configuration states
    )


LLAMA_FAMILIES = {model_type: _family(relative) for model_type, relative in RELATIVES.items()}
LLAMA_FAMILIES["mixtral"] = LLAMA_FAMILIES["mixtral"]._replace(aliases={"num_experts": "num_local_experts"})
