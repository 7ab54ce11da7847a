"""CLIP, whole and each of its two transformers alone, and SigLIP: from images and tokens to vectors of one space."""

from typing import Any

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
    images,
    projections,
    tokens,
    widths,
)
from jaxblocks.interop.layouts import Layout, without_batch
from jaxblocks.interop.rules import Rules, merge_qkv
from jaxblocks.models import CLIP, CLIPImage, CLIPText, SigLIP

__all__ = ["CLIP_FAMILY", "CLIP_IMAGE", "CLIP_TEXT", "SIGLIP", "one_transformer"]


def _mlp_rules(path: str, name: str) -> dict[str, str]:
    """The rules of an MLP whose maps are ``fc1`` and ``fc2``."""
    return {f"{path}/mlp/up": f"{name}.mlp.fc1", f"{path}/mlp/down": f"{name}.mlp.fc2"}


def _block_rules(path: str, name: str) -> dict[str, str]:
    norms = {f"{path}/attention_norm": f"{name}.layer_norm1", f"{path}/mlp_norm": f"{name}.layer_norm2"}
    return {**norms, **projections(f"{path}/attention", f"{name}.self_attn"), **_mlp_rules(path, name)}


def _transformer(config: Config, width: int = 768, heads: int = 12) -> dict[str, Any]:
    """The options of a transformer; configurations leave out what has these values, and an MLP four times as wide."""
    return dict(
        layers=config.read("num_hidden_layers", COUNT, 12),
        **widths(config, defaults=(width, heads)),
        hidden=config.read("intermediate_size", WIDTH, 4 * width),
        dropout=config.read("attention_dropout", RATE, 0.0),
    )


def _two_transformers(text: dict[str, Any], image: dict[str, Any]) -> dict[str, Any]:
    """The options of both in one net."""
    return {f"text_{name}": value for name, value in text.items()} | {
        f"image_{name}": value for name, value in image.items()
    }


def _of_both(text: Config, image: Config, of_mlps: str, epsilon: float) -> dict[str, Any]:
    """The activation and the epsilon, which are one option for both; with the values that are left out."""
    found = dict(
        activation=activation(text, "hidden_act", of_mlps), epsilon=text.read("layer_norm_eps", EPSILON, epsilon)
    )
    image.same("hidden_act", text.get("hidden_act", of_mlps), f"{text.inside}.hidden_act", of_mlps)
    image.same("layer_norm_eps", found["epsilon"], f"{text.inside}.layer_norm_eps", epsilon)
    return found


def _patch_size(config: Config, default: int) -> int:
    """The size of a patch, which fits into the image."""
    size, patch = config.read("image_size", WIDTH, 224), config.read("patch_size", WIDTH, default)
    name = f"{config.inside}.patch_size" if config.inside else "patch_size"
    config.require(patch <= size, f"{name} <= image_size", f"{patch} and {size}")
    return patch


# ---- CLIP ------------------------------------------------------------------------------------

# Theirs is a vector (c,), ours (1, c), one row for the token.
one_row = Layout("one_row", lambda x: x[None], lambda x: x[0])
TEXT_RULES = {
    "text/tokens": "text_model.embeddings.token_embedding",
    "text/positions": "text_model.embeddings.position_embedding",
    **_block_rules("text/blocks", "text_model.encoder.layers.{i}"),
    "text/norm": "text_model.final_layer_norm",
}
RULES: Rules = {
    "image/patches": "vision_model.embeddings.patch_embedding",
    "image/class_token/embedding": ("vision_model.embeddings.class_embedding", one_row),
    "image/positions": "vision_model.embeddings.position_embedding",
    "image/embedding_norm": "vision_model.pre_layrnorm",
    **_block_rules("image/blocks", "vision_model.encoder.layers.{i}"),
    "image/norm": "vision_model.post_layernorm",
    "image/out": "visual_projection",
    **TEXT_RULES,
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


# Read by `one_transformer`, which makes their configurations those of other families.
ONE_TRANSFORMER = tuple(f"CLIP{part}Model{head}" for part in ("Text", "Vision") for head in ("", "WithProjection"))


def _part(config: Config, name: str) -> Config:
    """A section; one by its older name takes its place, as in transformers."""
    return config.part(f"{name}_dict" if config.get(f"{name}_dict") is not None else name, None)


def _options(config: Config) -> dict[str, Any]:
    config.architecture("CLIPModel", *ONE_TRANSFORMER)
    # null or missing sections mean defaults.
    text, image = _part(config, "text_config"), _part(config, "vision_config")
    return dict(
        features=config.read("projection_dim", WIDTH, 512),
        patch_size=_patch_size(image, 32),
        **_of_both(text, image, "quick_gelu", 1e-5),
        **_text(text),
        **_two_transformers(_transformer(text, 512, 8), _transformer(image)),
    )


def _alone(config: Config, name: str) -> dict[str, Any]:
    """The options of one transformer alone that are not those of its blocks, with or without its projection."""
    projected = config.architecture(name, f"{name}WithProjection") != name
    return dict(
        projection=config.read("projection_dim", WIDTH, 512) if projected else None,
        activation=activation(config, "hidden_act", "quick_gelu"),
        epsilon=config.read("layer_norm_eps", EPSILON, 1e-5),
    )


def one_transformer(config: Config) -> Config:
    """The section of one transformer, where the class of one is asked of a configuration of both."""
    [asked, *_] = config.get("architectures") or [""]
    for name, kind in (("text", "CLIPText"), ("vision", "CLIPVision")):
        if config.get("model_type") == "clip" and str(asked).startswith(kind):
            part = _part(config, f"{name}_config")
            own = {"model_type": f"clip_{name}_model", "architectures": [asked]}
            return Config({**part, **own}, config.file, part.inside)
    return config


def _image(config: Config) -> dict[str, Any]:
    return {"patch_size": _patch_size(config, 32), **_transformer(config), **_alone(config, "CLIPVisionModel")}


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
    options=lambda config: {**_text(config), **_transformer(config, 512, 8), **_alone(config, "CLIPTextModel")},
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

# ---- SigLIP ----------------------------------------------------------------------------------

SIGLIP_RULES: Rules = {
    "image/patches": "vision_model.embeddings.patch_embedding",
    "image/positions": "vision_model.embeddings.position_embedding",
    **_block_rules("image/blocks", "vision_model.encoder.layers.{i}"),
    "image/norm": "vision_model.post_layernorm",
    "image/head/query/embedding": ("vision_model.head.probe", without_batch),
    **merge_qkv("image/head/attention", "vision_model.head.attention.in_proj_{leaf}"),
    "image/head/attention/out": "vision_model.head.attention.out_proj",
    "image/head/norm": "vision_model.head.layernorm",
    **_mlp_rules("image/head", "vision_model.head"),
    **TEXT_RULES,
    "text/out": "text_model.head",
    "logits/log_scale": ("logit_scale", without_batch),
    "logits/bias": ("logit_bias", without_batch),
}


def _siglip(config: Config) -> dict[str, Any]:
    config.architecture("SiglipModel")
    text, image = config.part("text_config", None), config.part("vision_config", None)
    image.one_of("vision_use_head", True, default=True)
    options = _two_transformers(_transformer(text), _transformer(image))
    projected, width = text.read("projection_size", WIDTH, None) or options["text_features"], options["image_features"]
    text.require(projected == width, f"text_config.projection_size to be vision_config.hidden_size={width}", projected)
    return dict(
        vocab_size=text.read("vocab_size", LENGTH, 32_000),
        max_length=text.read("max_position_embeddings", LENGTH, 64),
        patch_size=_patch_size(image, 16),
        **_of_both(text, image, "gelu_pytorch_tanh", 1e-6),
        **options,
    )


SIGLIP = Family(
    SigLIP,
    _siglip,
    lambda config: SIGLIP_RULES,
    inputs=lambda config: (*images(config.part("vision_config", None), 224), *tokens(config)),
    architecture="SiglipModel",
    prefix="",
    ignored=("*embeddings.position_ids",),  # 0, 1, 2, ...
)
