"""T5, versions 1.0 and 1.1: from a source and a target to logits; and its encoder alone."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxblocks.interop.families.family import (
    ACTIVATIONS,
    COUNT,
    EPSILON,
    FLAG,
    LENGTH,
    RATE,
    WIDTH,
    Config,
    Family,
    integers,
)
from jaxblocks.models import T5

__all__ = ["T5_FAMILY"]


def _blocks(path: str, mlp: int) -> dict[str, str]:
    """The rules of a stack, whose MLP has this number in each block."""
    block = f"{path}.block.{{i}}.layer"
    attention, dense = f"{block}.0.SelfAttention", f"{block}.{mlp}.DenseReluDense"
    return {
        # Only the first block has the table of biases, and all blocks use it.
        f"{path}_bias": f"{path}.block.0.layer.0.SelfAttention.relative_attention_bias",
        f"{path}/attention_norm": f"{block}.0.layer_norm",
        f"{path}/attention/query": f"{attention}.q",
        f"{path}/attention/key": f"{attention}.k",
        f"{path}/attention/value": f"{attention}.v",
        f"{path}/attention/out": f"{attention}.o",
        f"{path}/mlp_norm": f"{block}.{mlp}.layer_norm",
        # wi_0 is the gate in a gated MLP; without one the rule matches no param.
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
# In a gated MLP wi is split: wi_0 is the gate, wi_1 the map beside it.
GATED = RULES | {f"{path}/mlp/up": RULES[f"{path}/mlp/gate"].replace("wi_0", "wi_1") for path in ("encoder", "decoder")}


def _mlp(config: Config) -> tuple[bool, str]:
    """Whether the MLP is gated, and its activation; the GELU of a gated one is the approximation by tanh."""
    known = [*ACTIVATIONS, *(f"gated-{name}" for name in ACTIVATIONS)]
    name = config.one_of("feed_forward_proj", *known, default="relu")
    plain = "gelu_new" if name == "gated-gelu" else name.removeprefix("gated-")
    # What transformers derives from the name is in the files too, and holds there.
    gated = config.read("is_gated_act", FLAG, name.startswith("gated-"))
    return gated, config.one_of("dense_act_fn", *ACTIVATIONS, default=plain)


def _is_encoder(config: Config) -> bool:
    return config.architecture("T5ForConditionalGeneration", "T5EncoderModel") == "T5EncoderModel"


def _is_tied(config: Config) -> bool:
    return not _is_encoder(config) and config.read("tie_word_embeddings", FLAG, True)


def _options(config: Config) -> dict[str, Any]:
    is_encoder = _is_encoder(config)
    if is_encoder:
        config.one_of("is_decoder", False, default=False)
    else:
        config.one_of("is_encoder_decoder", True, default=True)
    tied, (gated, activation) = _is_tied(config), _mlp(config)
    buckets = config.read("relative_attention_num_buckets", integers(4, 2**20), 32)
    distance = config.read("relative_attention_max_distance", LENGTH, 128)
    expected = "relative_attention_max_distance above half of relative_attention_num_buckets"
    config.require(distance > buckets // 2, expected, f"{distance} and {buckets}", "the library computes no other")
    return dict(
        vocab_size=config.read("vocab_size", LENGTH),
        layers=config.read("num_layers", COUNT),
        decoder_layers=0 if is_encoder else config.read("num_decoder_layers", COUNT, None),
        heads=config.read("num_heads", COUNT),
        head_dim=config.read("d_kv", WIDTH),
        features=config.read("d_model", WIDTH),
        hidden=config.read("d_ff", WIDTH),
        gated=gated,
        activation=ACTIVATIONS[activation],
        tied=tied,
        # T5 scales the outputs where the token embedding computes the logits.
        scale_outputs=config.read("scale_decoder_outputs", FLAG, tied),
        buckets=buckets,
        max_distance=distance,
        dropout=config.read("dropout_rate", RATE, 0.1),
        epsilon=config.read("layer_norm_epsilon", EPSILON, 1e-6),
    )


def _tied(config: Config) -> dict[str, str]:
    # The embedding of encoder and decoder is the same tensor as "shared".
    decoder = [] if _is_encoder(config) else ["decoder.embed_tokens"]
    names = ["encoder.embed_tokens", *decoder, *(["lm_head"] if _is_tied(config) else [])]
    return {f"{name}.weight": "shared.weight" for name in names}


T5_FAMILY = Family(
    T5,
    _options,
    lambda config: GATED if _mlp(config)[0] else RULES,
    inputs=lambda config: (jax.ShapeDtypeStruct((1, 1), jnp.int32),) * (1 if _is_encoder(config) else 2),
    architecture="T5ForConditionalGeneration",
    prefix="",
    aliases={
        "hidden_size": "d_model",
        "num_attention_heads": "num_heads",
        "num_hidden_layers": "num_layers",
        "head_dim": "d_kv",
    },
    tied=_tied,
    ignored=("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",),  # never used
)
