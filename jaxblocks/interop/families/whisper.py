"""Whisper: from spectrograms ``(..., frames, mel)`` and tokens to logits."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxblocks.interop.families.family import Config, Family, projections
from jaxblocks.models import Whisper

__all__ = ["WHISPER"]


def _blocks(path: str, name: str) -> dict[str, str]:
    return {
        f"{path}/attention_norm": f"{name}.self_attn_layer_norm",
        **projections(f"{path}/attention", f"{name}.self_attn"),
        f"{path}/cross_attention_norm": f"{name}.encoder_attn_layer_norm",
        **projections(f"{path}/cross_attention", f"{name}.encoder_attn"),
        f"{path}/mlp_norm": f"{name}.final_layer_norm",
        f"{path}/mlp/up": f"{name}.fc1",
        f"{path}/mlp/down": f"{name}.fc2",
    }


RULES = {
    "conv_*": "model.encoder.conv*",
    "source_positions": "model.encoder.embed_positions",
    **_blocks("encoder", "model.encoder.layers.{i}"),
    "encoder_norm": "model.encoder.layer_norm",
    "tokens": "model.decoder.embed_tokens",
    "positions": "model.decoder.embed_positions",
    **_blocks("decoder", "model.decoder.layers.{i}"),
    "norm": "model.decoder.layer_norm",
}


def _options(config: Config) -> dict[str, Any]:
    config.architecture("WhisperForConditionalGeneration")
    config.one_of("activation_function", "gelu", default="gelu")
    config.one_of("scale_embedding", False, default=False)
    config.one_of("tie_word_embeddings", True, default=True)
    heads, hidden = config["encoder_attention_heads"], config["encoder_ffn_dim"]
    config.one_of("decoder_attention_heads", heads, default=heads)
    config.one_of("decoder_ffn_dim", hidden, default=hidden)
    return dict(
        vocab_size=config["vocab_size"],
        max_frames=2 * config["max_source_positions"],
        max_length=config["max_target_positions"],
        encoder_layers=config["encoder_layers"],
        decoder_layers=config["decoder_layers"],
        heads=heads,
        features=config["d_model"],
        hidden=hidden,
        dropout=config.get("dropout", 0.0),
    )


def _inputs(config: Config) -> tuple:
    spectrogram = jax.ShapeDtypeStruct((1, 2 * config["max_source_positions"], config["num_mel_bins"]), jnp.float32)
    return spectrogram, jax.ShapeDtypeStruct((1, 1), jnp.int32)


WHISPER = Family(
    Whisper,
    _options,
    lambda config: RULES,
    inputs=_inputs,
    architecture="WhisperForConditionalGeneration",
    prefix="model.",
    tied=lambda config: {"proj_out.weight": "model.decoder.embed_tokens.weight"},
)
