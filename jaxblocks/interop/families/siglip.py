"""SigLIP: from images and tokens to vectors of one space, and the scale and the bias of their products."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxblocks.interop.families.family import (
    COUNT,
    EPSILON,
    LENGTH,
    RATE,
    WIDTH,
    Config,
    Family,
    activation,
    projections,
)
from jaxblocks.interop.layouts import Layout, without_batch
from jaxblocks.interop.rules import Rules, merge_qkv
from jaxblocks.models import SigLIP

__all__ = ["SIGLIP"]


def _mlp(path: str, name: str) -> dict[str, str]:
    return {f"{path}/mlp/up": f"{name}.mlp.fc1", f"{path}/mlp/down": f"{name}.mlp.fc2"}


def _blocks(path: str, name: str) -> dict[str, str]:
    norms = {f"{path}/attention_norm": f"{name}.layer_norm1", f"{path}/mlp_norm": f"{name}.layer_norm2"}
    return {**norms, **projections(f"{path}/attention", f"{name}.self_attn"), **_mlp(path, name)}


# Theirs are vectors with one entry.
one_entry = Layout("one_entry", lambda x: x.reshape(()), lambda x: x.reshape(1))
RULES: Rules = {
    "image/patches": "vision_model.embeddings.patch_embedding",
    "image/positions": "vision_model.embeddings.position_embedding",
    **_blocks("image/blocks", "vision_model.encoder.layers.{i}"),
    "image/norm": "vision_model.post_layernorm",
    "image/head/query/embedding": ("vision_model.head.probe", without_batch),
    **merge_qkv("image/head/attention", "vision_model.head.attention.in_proj_{leaf}"),
    "image/head/attention/out": "vision_model.head.attention.out_proj",
    "image/head/norm": "vision_model.head.layernorm",
    **_mlp("image/head", "vision_model.head"),
    "text/tokens": "text_model.embeddings.token_embedding",
    "text/positions": "text_model.embeddings.position_embedding",
    **_blocks("text/blocks", "text_model.encoder.layers.{i}"),
    "text/norm": "text_model.final_layer_norm",
    "text/out": "text_model.head",
    "logits/log_scale": ("logit_scale", one_entry),
    "logits/bias": ("logit_bias", one_entry),
}


def _tower(config: Config, name: str) -> dict[str, Any]:
    """The options of one of the two transformers, with its name before each; files leave out what is the default."""
    features, heads = config.read("hidden_size", WIDTH, 768), config.read("num_attention_heads", COUNT, 12)
    config.divides("num_attention_heads", "hidden_size", heads, features)
    return {
        f"{name}_layers": config.read("num_hidden_layers", COUNT, 12),
        f"{name}_heads": heads,
        f"{name}_features": features,
        f"{name}_hidden": config.read("intermediate_size", WIDTH, 3072),
        f"{name}_dropout": config.read("attention_dropout", RATE, 0.0),
    }


def _options(config: Config) -> dict[str, Any]:
    config.architecture("SiglipModel")
    text, image = config.part("text_config", None), config.part("vision_config", None)
    of_mlps, default = activation(text, "hidden_act", "gelu_pytorch_tanh"), "gelu_pytorch_tanh"
    # One activation and one epsilon for both here.
    image.same("hidden_act", text.get("hidden_act", default), f"{text.inside}.hidden_act", default)
    epsilon = text.read("layer_norm_eps", EPSILON, 1e-6)
    image.same("layer_norm_eps", epsilon, f"{text.inside}.layer_norm_eps", 1e-6)
    image.one_of("vision_use_head", True, default=True)
    towers = _tower(text, "text") | _tower(image, "image")
    projected = text.read("projection_size", WIDTH, None) or towers["text_features"]
    width = towers["image_features"]
    text.require(projected == width, f"text_config.projection_size to be vision_config.hidden_size={width}", projected)
    size, patch = image.read("image_size", WIDTH, 224), image.read("patch_size", WIDTH, 16)
    image.require(patch <= size, "vision_config.patch_size <= image_size", f"{patch} and {size}")
    return dict(
        vocab_size=text.read("vocab_size", LENGTH, 32_000),
        max_length=text.read("max_position_embeddings", LENGTH, 64),
        patch_size=patch,
        activation=of_mlps,
        epsilon=epsilon,
        **towers,
    )


def _inputs(config: Config) -> tuple:
    image = config.part("vision_config", None)
    size = image.read("image_size", WIDTH, 224)  # the number of positions is a shape of a param
    shape = (1, size, size, image.read("num_channels", WIDTH, 3))
    return jax.ShapeDtypeStruct(shape, jnp.float32), jax.ShapeDtypeStruct((1, 1), jnp.int32)


SIGLIP = Family(
    SigLIP,
    _options,
    lambda config: RULES,
    inputs=_inputs,
    architecture="SiglipModel",
    prefix="",
    ignored=("*embeddings.position_ids",),  # 0, 1, 2, ...
)
