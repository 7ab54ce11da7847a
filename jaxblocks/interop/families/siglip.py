"""SigLIP: from images and tokens to vectors of one space, and the scale and the bias of their products."""

from typing import Any

from jaxblocks.interop.families.family import LENGTH, WIDTH, Config, Family, images, tokens
from jaxblocks.interop.families.images_and_texts import (
    block_rules,
    mlp_rules,
    of_both,
    patch_size,
    transformer,
    two_transformers,
)
from jaxblocks.interop.layouts import Layout, without_batch
from jaxblocks.interop.rules import Rules, merge_qkv
from jaxblocks.models import SigLIP

__all__ = ["SIGLIP"]


# Theirs are vectors with one entry.
one_entry = Layout("one_entry", lambda x: x.reshape(()), lambda x: x.reshape(1))
RULES: Rules = {
    "image/patches": "vision_model.embeddings.patch_embedding",
    "image/positions": "vision_model.embeddings.position_embedding",
    **block_rules("image/blocks", "vision_model.encoder.layers.{i}"),
    "image/norm": "vision_model.post_layernorm",
    "image/head/query/embedding": ("vision_model.head.probe", without_batch),
    **merge_qkv("image/head/attention", "vision_model.head.attention.in_proj_{leaf}"),
    "image/head/attention/out": "vision_model.head.attention.out_proj",
    "image/head/norm": "vision_model.head.layernorm",
    **mlp_rules("image/head", "vision_model.head"),
    "text/tokens": "text_model.embeddings.token_embedding",
    "text/positions": "text_model.embeddings.position_embedding",
    **block_rules("text/blocks", "text_model.encoder.layers.{i}"),
    "text/norm": "text_model.final_layer_norm",
    "text/out": "text_model.head",
    "logits/log_scale": ("logit_scale", one_entry),
    "logits/bias": ("logit_bias", one_entry),
}


def _options(config: Config) -> dict[str, Any]:
    config.architecture("SiglipModel")
    text, image = config.part("text_config", None), config.part("vision_config", None)
    image.one_of("vision_use_head", True, default=True)
    options = two_transformers(transformer(text), transformer(image))
    projected, width = text.read("projection_size", WIDTH, None) or options["text_features"], options["image_features"]
    text.require(projected == width, f"text_config.projection_size to be vision_config.hidden_size={width}", projected)
    return dict(
        vocab_size=text.read("vocab_size", LENGTH, 32_000),
        max_length=text.read("max_position_embeddings", LENGTH, 64),
        patch_size=patch_size(image, 16),
        **of_both(text, image, "gelu_pytorch_tanh", 1e-6),
        **options,
    )


SIGLIP = Family(
    SigLIP,
    _options,
    lambda config: RULES,
    inputs=lambda config: (*images(config.part("vision_config", None), 224), *tokens(config)),
    architecture="SiglipModel",
    prefix="",
    ignored=("*embeddings.position_ids",),  # 0, 1, 2, ...
)
