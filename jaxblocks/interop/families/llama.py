"""Llama 2 and 3, Mistral and Qwen2: one net, whose options they set differently."""

from collections.abc import Mapping
from typing import Any

from jaxblocks.checks import require
from jaxblocks.interop.families.family import Config, Family, tokens
from jaxblocks.models import Llama

__all__ = ["LLAMA", "MISTRAL", "QWEN2"]

BLOCK = "model.layers.{i}"
RULES = {
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


def _llama(config: Config) -> dict[str, Any]:
    config.architecture("LlamaForCausalLM")
    config.one_of("mlp_bias", False, default=False)
    return _options(config, use_bias=config.one_of("attention_bias", False, True, default=False))


def _mistral(config: Config) -> dict[str, Any]:
    config.architecture("MistralForCausalLM")
    return _options(config, kv_heads=config["num_key_value_heads"], sliding_window=config.get("sliding_window", 4096))


def _qwen2(config: Config) -> dict[str, Any]:
    config.architecture("Qwen2ForCausalLM")
    config.one_of("use_sliding_window", False, default=False)  # in Qwen2 it is that of some layers only
    return _options(config, kv_heads=config["num_key_value_heads"], use_bias=("query", "key", "value"))


def _options(config: Config, **options: Any) -> dict[str, Any]:
    config.one_of("hidden_act", "silu", default="silu")
    common: dict[str, Any] = dict(
        vocab_size=config["vocab_size"],
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        kv_heads=config.get("num_key_value_heads"),
        head_dim=config.get("head_dim"),
        features=config["hidden_size"],
        hidden=config["intermediate_size"],
        epsilon=config.get("rms_norm_eps", 1e-6),
        tied=config.get("tie_word_embeddings", False),
        **_positions(config),
    )
    return common | options


# The options of `rotary_frequencies` by their names in a configuration.
SCALING = {
    "factor": "factor",
    "original_max_position_embeddings": "original_length",
    "low_freq_factor": "low_frequency_factor",
    "high_freq_factor": "high_frequency_factor",
}


def _positions(config: Config) -> dict[str, Any]:
    """The base and the scaling of the rotary positions, which versions of Hugging Face name differently."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    require(isinstance(rope, Mapping), "rope_parameters to be a dict in a configuration", rope, error=TypeError)
    rope = Config(rope, model_type=config["model_type"])
    base = rope.get("rope_theta", config.get("rope_theta", 10_000.0))
    kind = rope.one_of("rope_type" if "rope_type" in rope else "type", "default", "linear", "llama3", default="default")
    for options in (config, rope):
        options.one_of("partial_rotary_factor", 1.0, default=1.0)
    if kind == "default":
        return {"base": base}
    names = SCALING if kind == "llama3" else ["factor"]
    return {"base": base, "rope_scaling": {"scaling": kind} | {SCALING[name]: rope[name] for name in names}}


def _tied(config: Config) -> dict[str, str]:
    return {"lm_head.weight": "model.embed_tokens.weight"} if config.get("tie_word_embeddings") else {}


LLAMA, MISTRAL, QWEN2 = (
    Family(
        Llama,
        options,
        lambda config: RULES,
        inputs=tokens,
        architecture=architecture,
        prefix="model.",
        tied=_tied,
        ignored=("*.rotary_emb.inv_freq",),  # frequencies, which the configuration states
    )
    for options, architecture in (
        (_llama, "LlamaForCausalLM"),
        (_mistral, "MistralForCausalLM"),
        (_qwen2, "Qwen2ForCausalLM"),
    )
)
