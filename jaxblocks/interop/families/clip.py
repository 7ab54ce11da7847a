"""CLIP: from images and tokens to vectors of one space, and the scale of their products."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxblocks.interop.families.family import (
    COUNT,
    EPSILON,
    INDEX,
    LENGTH,
    RATE,
    WIDTH,
    Config,
    Family,
    activation,
    projections,
)
from jaxblocks.interop.layouts import Layout
from jaxblocks.interop.rules import Rules
from jaxblocks.models import CLIP

__all__ = ["CLIP_FAMILY"]


def _blocks(path: str, name: str) -> dict[str, str]:
    return {
        f"{path}/attention_norm": f"{name}.layer_norm1",
        **projections(f"{path}/attention", f"{name}.self_attn"),
        f"{path}/mlp_norm": f"{name}.layer_norm2",
        f"{path}/mlp/up": f"{name}.mlp.fc1",
        f"{path}/mlp/down": f"{name}.mlp.fc2",
    }


# Theirs is a vector (c,), ours (1, c), one row for the token.
one_row = Layout("one_row", lambda x: x[None], lambda x: x[0])
RULES: Rules = {
    "image/patches": "vision_model.embeddings.patch_embedding",
    "image/class_token/embedding": ("vision_model.embeddings.class_embedding", one_row),
    "image/positions": "vision_model.embeddings.position_embedding",
    "image/embedding_norm": "vision_model.pre_layrnorm",
    **_blocks("image/blocks", "vision_model.encoder.layers.{i}"),
    "image/norm": "vision_model.post_layernorm",
    "image/out": "visual_projection",
    "text/tokens": "text_model.embeddings.token_embedding",
    "text/positions": "text_model.embeddings.position_embedding",
    **_blocks("text/blocks", "text_model.encoder.layers.{i}"),
    "text/norm": "text_model.final_layer_norm",
    "text/out": "text_projection",
    "scale/log_scale": "logit_scale",
}
# Configurations leave out what has these values.
TEXT = dict(hidden_size=512, intermediate_size=2048, num_hidden_layers=12, num_attention_heads=8)
IMAGE = dict(hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12)


def _tower(config: Config, name: str, defaults: dict[str, int]) -> dict[str, Any]:
    """The options of one of the two transformers, with its name before each."""
    features, heads = (config.read(key, WIDTH, defaults[key]) for key in ("hidden_size", "num_attention_heads"))
    config.divides("num_attention_heads", "hidden_size", heads, features)
    return {
        f"{name}_layers": config.read("num_hidden_layers", COUNT, defaults["num_hidden_layers"]),
        f"{name}_heads": heads,
        f"{name}_features": features,
        f"{name}_dropout": config.read("attention_dropout", RATE, 0.0),
        f"{name}_hidden": config.read("intermediate_size", WIDTH, defaults["intermediate_size"]),
    }


def _part(config: Config, name: str) -> Config:
    """A section; one by its older name takes its place, as in transformers."""
    return config.part(f"{name}_dict" if config.get(f"{name}_dict") is not None else name, None)


def _options(config: Config) -> dict[str, Any]:
    config.architecture("CLIPModel")
    # null or missing sections mean defaults.
    text, image = _part(config, "text_config"), _part(config, "vision_config")
    of_mlps = activation(text, "hidden_act", "quick_gelu")
    # One activation and one epsilon for both towers here.
    named = f"{text.inside}.hidden_act"
    image.same("hidden_act", text.get("hidden_act", "quick_gelu"), named, "quick_gelu")
    epsilon = text.read("layer_norm_eps", EPSILON, 1e-5)
    image.same("layer_norm_eps", epsilon, f"{text.inside}.layer_norm_eps", 1e-5)
    end = text.read("eos_token_id", INDEX, 49_407)
    size, patch = image.read("image_size", WIDTH, 224), image.read("patch_size", WIDTH, 32)
    image.require(patch <= size, "vision_config.patch_size <= image_size", f"{patch} and {size}")
    return dict(
        features=config.read("projection_dim", WIDTH, 512),
        vocab_size=text.read("vocab_size", LENGTH, 49_408),
        max_length=text.read("max_position_embeddings", LENGTH, 77),
        end_token=None if end == 2 else end,  # 2 stands for the largest token, in old configurations
        patch_size=patch,
        activation=of_mlps,
        epsilon=epsilon,
        **_tower(text, "text", TEXT),
        **_tower(image, "image", IMAGE),
    )


def _inputs(config: Config) -> tuple:
    image = _part(config, "vision_config")
    # The number of positions of the image is a shape of a param, so the size matters.
    size = image.read("image_size", WIDTH, 224)
    shape = (1, size, size, image.read("num_channels", WIDTH, 3))
    return jax.ShapeDtypeStruct(shape, jnp.float32), jax.ShapeDtypeStruct((1, 1), jnp.int32)


CLIP_FAMILY = Family(
    CLIP,
    _options,
    lambda config: RULES,
    inputs=_inputs,
    architecture="CLIPModel",
    prefix="",
    ignored=("*embeddings.position_ids",),  # 0, 1, 2, ...
)
