"""Whisper: from spectrograms ``(..., frames, mel)`` and tokens to logits."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxblocks.interop.families.family import (
    COUNT,
    LENGTH,
    RATE,
    WIDTH,
    Config,
    Family,
    activation,
    projections,
    widths,
)
from jaxblocks.models import Whisper

__all__ = ["WHISPER"]


def _blocks(path: str, name: str) -> dict[str, str]:
    # Whisper uses BART's names for its blocks, the same for encoder and decoder.
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
    # What the net here does not compute is rejected, not ignored.
    config.one_of("scale_embedding", False, default=False)
    config.one_of("tie_word_embeddings", True, default=True)
    sizes, hidden = widths(config, "d_model", "encoder_attention_heads"), config.read("encoder_ffn_dim", WIDTH)
    # One number of heads, and one width of the MLP, for both stacks of the net here.
    config.same("decoder_attention_heads", sizes["heads"], "encoder_attention_heads", sizes["heads"])
    config.same("decoder_ffn_dim", hidden, "encoder_ffn_dim", hidden)
    return dict(
        vocab_size=config.read("vocab_size", LENGTH),
        # The second convolution halves the frames; positions are counted after it.
        max_frames=2 * config.read("max_source_positions", WIDTH),
        max_length=config.read("max_target_positions", WIDTH),
        encoder_layers=config.read("encoder_layers", COUNT),
        decoder_layers=config.read("decoder_layers", COUNT),
        **sizes,
        hidden=hidden,
        activation=activation(config, "activation_function", "gelu"),
        dropout=config.read("dropout", RATE, 0.0),
        attention_dropout=config.read("attention_dropout", RATE, 0.0),
        mlp_dropout=config.read("activation_dropout", RATE, 0.0),
    )


def _inputs(config: Config) -> tuple:
    shape = (1, 2 * config.read("max_source_positions", WIDTH), config.read("num_mel_bins", WIDTH))
    return jax.ShapeDtypeStruct(shape, jnp.float32), jax.ShapeDtypeStruct((1, 1), jnp.int32)


WHISPER = Family(
    Whisper,
    _options,
    lambda config: RULES,
    inputs=_inputs,
    architecture="WhisperForConditionalGeneration",
    prefix="model.",
    aliases={
        "hidden_size": "d_model",
        "num_attention_heads": "encoder_attention_heads",
        "num_hidden_layers": "encoder_layers",
        "num_key_value_heads": "encoder_attention_heads",
    },
    rates=("encoder_layerdrop", "decoder_layerdrop"),
    # The output map is the token embedding; some files list it too.
    tied=lambda config: {"proj_out.weight": "model.decoder.embed_tokens.weight"},
)
