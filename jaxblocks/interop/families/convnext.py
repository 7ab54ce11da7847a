"""ConvNeXt: the classifier of images."""

from typing import Any

from jaxblocks.interop.families.family import Config, Family, images, number_of_classes
from jaxblocks.models import ConvNeXt

__all__ = ["CONVNEXT"]

STAGE = "convnext.encoder.stages.{*-1}"  # theirs are numbered from 0, ours from 1
RULES = {
    "stem/patches": "convnext.embeddings.patch_embeddings",
    "stem/norm": "convnext.embeddings.layernorm",
    "stage_*/norm": f"{STAGE}.downsampling_layer.0",
    "stage_*/conv": f"{STAGE}.downsampling_layer.1",
    "stage_*/blocks/conv": f"{STAGE}.layers.{{i}}.dwconv",
    "stage_*/blocks/norm": f"{STAGE}.layers.{{i}}.layernorm",
    "stage_*/blocks/mlp/up": f"{STAGE}.layers.{{i}}.pwconv1",
    "stage_*/blocks/mlp/down": f"{STAGE}.layers.{{i}}.pwconv2",
    "stage_*/blocks/scale/scale": f"{STAGE}.layers.{{i}}.layer_scale_parameter",
    "norm": "convnext.layernorm",
    "out": "classifier",
}


def _options(config: Config) -> dict[str, Any]:
    config.architecture("ConvNextForImageClassification")
    config.one_of("hidden_act", "gelu", default="gelu")
    return dict(
        classes=number_of_classes(config),
        patch_size=config.get("patch_size", 4),
        depths=tuple(config["depths"]),
        widths=tuple(config["hidden_sizes"]),
        layer_scale=config.get("layer_scale_init_value", 1e-6),
        out_epsilon=config.get("layer_norm_eps", 1e-12),
    )


CONVNEXT = Family(
    ConvNeXt,
    _options,
    lambda config: RULES,
    inputs=images,
    architecture="ConvNextForImageClassification",
    prefix="convnext.",
)
