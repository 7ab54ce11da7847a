"""T5, versions 1.0 and 1.1: from a source and a target to logits."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from jaxblocks.activations import gelu, relu
from jaxblocks.interop.families.family import Config, Family
from jaxblocks.models import T5

__all__ = ["T5_FAMILY"]


def _blocks(path: str, mlp: int) -> dict[str, str]:
    """The rules of a stack, whose MLP has this number in each block."""
    block = f"{path}.block.{{i}}.layer"
    attention, dense = f"{block}.0.SelfAttention", f"{block}.{mlp}.DenseReluDense"
    return {
        f"{path}_bias": f"{path}.block.0.layer.0.SelfAttention.relative_attention_bias",
        f"{path}/attention_norm": f"{block}.0.layer_norm",
        f"{path}/attention/query": f"{attention}.q",
        f"{path}/attention/key": f"{attention}.k",
        f"{path}/attention/value": f"{attention}.v",
        f"{path}/attention/out": f"{attention}.o",
        f"{path}/mlp_norm": f"{block}.{mlp}.layer_norm",
        f"{path}/mlp/gate": f"{dense}.wi_0",
        f"{path}/mlp/up": f"{dense}.wi",
        f"{path}/mlp/down": f"{dense}.wo",
    }


CROSS = "decoder.block.{i}.layer.1"
RULES = {
    "tokens": "shared",
    **_blocks("encoder", mlp=1),
    "encoder_norm": "encoder.final_layer_norm",
    **_blocks("decoder", mlp=2),
    "decoder/cross_attention_norm": f"{CROSS}.layer_norm",
    "decoder/cross_attention/query": f"{CROSS}.EncDecAttention.q",
    "decoder/cross_attention/key": f"{CROSS}.EncDecAttention.k",
    "decoder/cross_attention/value": f"{CROSS}.EncDecAttention.v",
    "decoder/cross_attention/out": f"{CROSS}.EncDecAttention.o",
    "norm": "decoder.final_layer_norm",
    "out": "lm_head",
}
GATED = RULES | {f"{path}/mlp/up": RULES[f"{path}/mlp/gate"].replace("wi_0", "wi_1") for path in ("encoder", "decoder")}


def _is_gated(config: Config) -> bool:
    return config.one_of("feed_forward_proj", "relu", "gated-gelu", default="relu") == "gated-gelu"


def _options(config: Config) -> dict[str, Any]:
    config.architecture("T5ForConditionalGeneration")
    tied, gated = config.get("tie_word_embeddings", True), _is_gated(config)
    return dict(
        vocab_size=config["vocab_size"],
        layers=config["num_layers"],
        decoder_layers=config.get("num_decoder_layers"),
        heads=config["num_heads"],
        head_dim=config["d_kv"],
        features=config["d_model"],
        hidden=config["d_ff"],
        gated=gated,
        activation=functools.partial(gelu, approximate=True) if gated else relu,
        tied=tied,
        scale_outputs=config.get("scale_decoder_outputs", tied),
        buckets=config.get("relative_attention_num_buckets", 32),
        max_distance=config.get("relative_attention_max_distance", 128),
        dropout=config.get("dropout_rate", 0.1),
        epsilon=config.get("layer_norm_epsilon", 1e-6),
    )


def _tied(config: Config) -> dict[str, str]:
    names = ["encoder.embed_tokens", "decoder.embed_tokens"]
    names += ["lm_head"] if config.get("tie_word_embeddings", True) else []
    return {f"{name}.weight": "shared.weight" for name in names}


T5_FAMILY = Family(
    T5,
    _options,
    lambda config: GATED if _is_gated(config) else RULES,
    inputs=lambda config: (jax.ShapeDtypeStruct((1, 1), jnp.int32),) * 2,
    architecture="T5ForConditionalGeneration",
    prefix="",
    tied=_tied,
    ignored=("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",),  # never used
)
