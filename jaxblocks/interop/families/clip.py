"""CLIP: from images and tokens to vectors of one space, and the scale of their products; and each of the two alone."""

from typing import Any

from jaxblocks.interop.families.family import (
    EPSILON,
    INDEX,
    LENGTH,
    WIDTH,
    Config,
    Family,
    activation,
    images,
    tokens,
)
from jaxblocks.interop.families.images_and_texts import (
    block_rules,
    of_both,
    patch_size,
    transformer,
    two_transformers,
)
from jaxblocks.interop.layouts import Layout
from jaxblocks.interop.rules import Rules
from jaxblocks.models import CLIP, CLIPImage, CLIPText

__all__ = ["CLIP_FAMILY", "CLIP_IMAGE", "CLIP_TEXT"]


# Theirs is a vector (c,), ours (1, c), one row for the token.
one_row = Layout("one_row", lambda x: x[None], lambda x: x[0])
RULES: Rules = {
    "image/patches": "vision_model.embeddings.patch_embedding",
    "image/class_token/embedding": ("vision_model.embeddings.class_embedding", one_row),
    "image/positions": "vision_model.embeddings.position_embedding",
    "image/embedding_norm": "vision_model.pre_layrnorm",
    **block_rules("image/blocks", "vision_model.encoder.layers.{i}"),
    "image/norm": "vision_model.post_layernorm",
    "image/out": "visual_projection",
    "text/tokens": "text_model.embeddings.token_embedding",
    "text/positions": "text_model.embeddings.position_embedding",
    **block_rules("text/blocks", "text_model.encoder.layers.{i}"),
    "text/norm": "text_model.final_layer_norm",
    "text/out": "text_projection",
    "scale/log_scale": "logit_scale",
}


def _text(config: Config) -> dict[str, Any]:
    """The options of texts that are not those of their transformer."""
    end = config.read("eos_token_id", INDEX, 49_407)
    return dict(
        vocab_size=config.read("vocab_size", LENGTH, 49_408),
        max_length=config.read("max_position_embeddings", LENGTH, 77),
        end_token=None if end == 2 else end,  # 2 stands for the largest token, in old configurations
    )


def _part(config: Config, name: str) -> Config:
    """A section; one by its older name takes its place, as in transformers."""
    return config.part(f"{name}_dict" if config.get(f"{name}_dict") is not None else name, None)


def _options(config: Config) -> dict[str, Any]:
    config.architecture("CLIPModel")
    # null or missing sections mean defaults.
    text, image = _part(config, "text_config"), _part(config, "vision_config")
    return dict(
        features=config.read("projection_dim", WIDTH, 512),
        patch_size=patch_size(image, 32),
        **of_both(text, image, "quick_gelu", 1e-5),
        **_text(text),
        **two_transformers(transformer(text, 512, 8), transformer(image)),
    )


def _alone(config: Config, name: str) -> dict[str, Any]:
    """The options of one transformer alone that are not those of its blocks, with or without its projection."""
    projected = config.architecture(name, f"{name}WithProjection") != name
    return dict(
        projection=config.read("projection_dim", WIDTH, 512) if projected else None,
        activation=activation(config, "hidden_act", "quick_gelu"),
        epsilon=config.read("layer_norm_eps", EPSILON, 1e-5),
    )


def _image(config: Config) -> dict[str, Any]:
    return {"patch_size": patch_size(config, 32), **transformer(config), **_alone(config, "CLIPVisionModel")}


def _rules_of(part: str) -> Rules:
    return {path.removeprefix(part): right for path, right in RULES.items() if path.startswith(part)}


CLIP_FAMILY = Family(
    CLIP,
    _options,
    lambda config: RULES,
    inputs=lambda config: (*images(_part(config, "vision_config"), 224), *tokens(config)),
    architecture="CLIPModel",
    prefix="",
    ignored=("*embeddings.position_ids",),  # 0, 1, 2, ...
)
CLIP_TEXT = CLIP_FAMILY._replace(
    builder=CLIPText,
    options=lambda config: {**_text(config), **transformer(config, 512, 8), **_alone(config, "CLIPTextModel")},
    rules=lambda config: _rules_of("text/"),
    inputs=tokens,
    architecture="CLIPTextModel",
    prefix="text_model.",
)
CLIP_IMAGE = CLIP_FAMILY._replace(
    builder=CLIPImage,
    options=_image,
    rules=lambda config: _rules_of("image/"),
    inputs=lambda config: images(config, 224),
    architecture="CLIPVisionModel",
    prefix="vision_model.",
)
