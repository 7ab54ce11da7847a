"""CLIP: from images and tokens to vectors of one space, and the scale of their products; and each of the two alone."""

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
    tokens,
)
from jaxblocks.interop.layouts import Layout
from jaxblocks.interop.rules import Rules
from jaxblocks.models import CLIP, CLIPImage, CLIPText

__all__ = ["CLIP_FAMILY", "CLIP_IMAGE", "CLIP_TEXT"]


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


def _tower(config: Config, defaults: dict[str, int]) -> dict[str, Any]:
    """The options that both transformers have."""
    features, heads = (config.read(key, WIDTH, defaults[key]) for key in ("hidden_size", "num_attention_heads"))
    config.divides("num_attention_heads", "hidden_size", heads, features)
    return dict(
        layers=config.read("num_hidden_layers", COUNT, defaults["num_hidden_layers"]),
        heads=heads,
        features=features,
        dropout=config.read("attention_dropout", RATE, 0.0),
        hidden=config.read("intermediate_size", WIDTH, defaults["intermediate_size"]),
    )


def _text(config: Config) -> dict[str, Any]:
    """The options of texts that are not those of their transformer."""
    end = config.read("eos_token_id", INDEX, 49_407)
    return dict(
        vocab_size=config.read("vocab_size", LENGTH, 49_408),
        max_length=config.read("max_position_embeddings", LENGTH, 77),
        end_token=None if end == 2 else end,  # 2 stands for the largest token, in old configurations
    )


def _image(config: Config) -> dict[str, Any]:
    """The options of images that are not those of their transformer."""
    size, patch = config.read("image_size", WIDTH, 224), config.read("patch_size", WIDTH, 32)
    name = f"{config.inside}.patch_size" if config.inside else "patch_size"
    config.require(patch <= size, f"{name} <= image_size", f"{patch} and {size}")
    return dict(patch_size=patch)


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
    return dict(
        features=config.read("projection_dim", WIDTH, 512),
        activation=of_mlps,
        epsilon=epsilon,
        **_text(text),
        **_image(image),
        **{f"text_{name}": value for name, value in _tower(text, TEXT).items()},
        **{f"image_{name}": value for name, value in _tower(image, IMAGE).items()},
    )


def _one_tower(config: Config, name: str, defaults: dict[str, int]) -> dict[str, Any]:
    """The options of one transformer alone, with or without its projection."""
    projected = config.architecture(name, f"{name}WithProjection") != name
    return dict(
        projection=config.read("projection_dim", WIDTH, 512) if projected else None,
        activation=activation(config, "hidden_act", "quick_gelu"),
        epsilon=config.read("layer_norm_eps", EPSILON, 1e-5),
        **_tower(config, defaults),
    )


def _shape_of_images(config: Config) -> jax.ShapeDtypeStruct:
    # The number of positions of the image is a shape of a param, so the size matters.
    size = config.read("image_size", WIDTH, 224)
    return jax.ShapeDtypeStruct((1, size, size, config.read("num_channels", WIDTH, 3)), jnp.float32)


def _rules_of(tower: str) -> Rules:
    return {path.removeprefix(tower): right for path, right in RULES.items() if path.startswith(tower)}


CLIP_FAMILY = Family(
    CLIP,
    _options,
    lambda config: RULES,
    inputs=lambda config: (_shape_of_images(_part(config, "vision_config")), *tokens(config)),
    architecture="CLIPModel",
    prefix="",
    ignored=("*embeddings.position_ids",),  # 0, 1, 2, ...
)
CLIP_TEXT = CLIP_FAMILY._replace(
    builder=CLIPText,
    options=lambda config: _text(config) | _one_tower(config, "CLIPTextModel", TEXT),
    rules=lambda config: _rules_of("text/"),
    inputs=tokens,
    architecture="CLIPTextModel",
    prefix="text_model.",
)
CLIP_IMAGE = CLIP_FAMILY._replace(
    builder=CLIPImage,
    options=lambda config: _image(config) | _one_tower(config, "CLIPVisionModel", IMAGE),
    rules=lambda config: _rules_of("image/"),
    inputs=lambda config: (_shape_of_images(config),),
    architecture="CLIPVisionModel",
    prefix="vision_model.",
)
