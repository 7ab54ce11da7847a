"""ResNet: the classifier of images."""

from typing import Any

from jaxblocks.interop.families.family import Config, Family, images, number_of_classes
from jaxblocks.models import ResNet

__all__ = ["RESNET"]

STEM = "resnet.embedder.embedder"
STAGE = "resnet.encoder.stages.{*-1}.layers"  # theirs are numbered from 0, ours from 1
RULES = {
    "stem/conv": f"{STEM}.convolution",
    "stem/norm": f"{STEM}.normalization",
    "stage_*/first/body/conv_*": f"{STAGE}.0.layer.{{*-1}}.convolution",
    "stage_*/first/body/norm_*": f"{STAGE}.0.layer.{{*-1}}.normalization",
    "stage_*/first/skip/conv": f"{STAGE}.0.shortcut.convolution",
    "stage_*/first/skip/norm": f"{STAGE}.0.shortcut.normalization",
    "stage_*/blocks/body/conv_*": f"{STAGE}.{{i+1}}.layer.{{*-1}}.convolution",
    "stage_*/blocks/body/norm_*": f"{STAGE}.{{i+1}}.layer.{{*-1}}.normalization",
    "out": "classifier.1",
}


def _options(config: Config) -> dict[str, Any]:
    config.architecture("ResNetForImageClassification")
    config.one_of("hidden_act", "relu", default="relu")
    bottleneck = config.one_of("layer_type", "bottleneck", "basic", default="bottleneck") == "bottleneck"
    return dict(
        depth=tuple(config["depths"]),
        classes=number_of_classes(config),
        width=config["embedding_size"],
        widths=tuple(size // 4 if bottleneck else size for size in config["hidden_sizes"]),
        bottleneck=bottleneck,
        stride_in="1x1" if config.get("downsample_in_bottleneck", False) else "3x3",
        first_stride=2 if config.get("downsample_in_first_stage", False) else 1,
    )


RESNET = Family(
    ResNet,
    _options,
    lambda config: RULES,
    inputs=images,
    architecture="ResNetForImageClassification",
    prefix="resnet.",
)
