"""ConvNeXt: the base model, and the classifier of images."""

from typing import Any

from jaxblocks.interop.families.family import (
    COUNT,
    EPSILON,
    WIDTH,
    Config,
    Family,
    activation,
    images,
    list_of,
    number_of_classes,
)
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
    # The same tensor: before the classifier, and in the base model.
    "norm": "convnext.layernorm",
    "pooled/norm": "convnext.layernorm",
    "out": "classifier",
}


def _options(config: Config) -> dict[str, Any]:
    name = config.architecture("ConvNextForImageClassification", "ConvNextModel")
    depths, widths = config.read("depths", list_of(COUNT)), config.read("hidden_sizes", list_of(WIDTH))
    config.require(len(depths) == len(widths), "as many depths as hidden_sizes", f"{depths} and {widths}")
    return dict(
        classes=number_of_classes(config),
        patch_size=config.read("patch_size", WIDTH, 4),
        depths=tuple(depths),
        widths=tuple(widths),
        # 0 switches the layer scale off.
        layer_scale=config.read("layer_scale_init_value", EPSILON, 1e-6) or None,
        activation=activation(config, "hidden_act", "gelu"),
        head="pooler" if name == "ConvNextModel" else "classes",
        # epsilon of the blocks is fixed in transformers; this one is of the last norm only.
        out_epsilon=config.read("layer_norm_eps", EPSILON, 1e-12),
    )


CONVNEXT = Family(
    ConvNeXt,
    _options,
    lambda config: RULES,
    inputs=images,
    architecture="ConvNextForImageClassification",
    prefix="convnext.",
    rates=("drop_path_rate",),
)
