"""ResNet: the base model, and the classifier of images."""

from typing import Any

from jaxblocks.interop.families.family import COUNT, FLAG, WIDTH, Config, Family, images, list_of, number_of_classes
from jaxblocks.models import ResNet

__all__ = ["RESNET"]

STEM = "resnet.embedder.embedder"
STAGE = "resnet.encoder.stages.{*-1}.layers"  # theirs are numbered from 0, ours from 1
RULES = {
    "stem/conv": f"{STEM}.convolution",
    "stem/norm": f"{STEM}.normalization",
    # In a block of transformers the layers are numbered from 0, conv and norm together.
    "stage_*/first/body/conv_*": f"{STAGE}.0.layer.{{*-1}}.convolution",
    "stage_*/first/body/norm_*": f"{STAGE}.0.layer.{{*-1}}.normalization",
    "stage_*/first/skip/conv": f"{STAGE}.0.shortcut.convolution",
    "stage_*/first/skip/norm": f"{STAGE}.0.shortcut.normalization",
    # Copy i of the stacked blocks is block i + 1: block 0 changes the shape.
    "stage_*/blocks/body/conv_*": f"{STAGE}.{{i+1}}.layer.{{*-1}}.convolution",
    "stage_*/blocks/body/norm_*": f"{STAGE}.{{i+1}}.layer.{{*-1}}.normalization",
    # classifier.0 is a Flatten.
    "out": "classifier.1",
}


def _options(config: Config) -> dict[str, Any]:
    name = config.architecture("ResNetForImageClassification", "ResNetModel")
    config.one_of("hidden_act", "relu", default="relu")
    bottleneck = config.one_of("layer_type", "bottleneck", "basic", default="bottleneck") == "bottleneck"
    depths, widths = config.read("depths", list_of(COUNT)), config.read("hidden_sizes", list_of(WIDTH))
    config.require(len(depths) == len(widths), "as many depths as hidden_sizes", f"{depths} and {widths}")
    fits = not bottleneck or all(width % 4 == 0 for width in widths)
    config.require(fits, "hidden_sizes of bottlenecks to be multiples of 4", widths)
    return dict(
        depth=tuple(depths),
        classes=number_of_classes(config),
        width=config.read("embedding_size", WIDTH),
        # hidden_sizes are those of the outputs; a bottleneck has 4 times its inner width.
        widths=tuple(width // 4 if bottleneck else width for width in widths),
        bottleneck=bottleneck,
        head="pooler" if name == "ResNetModel" else "classes",
        stride_in="1x1" if config.read("downsample_in_bottleneck", FLAG, False) else "3x3",
        first_stride=2 if config.read("downsample_in_first_stage", FLAG, False) else 1,
    )


RESNET = Family(
    ResNet, _options, lambda config: RULES, inputs=images, architecture="ResNetForImageClassification", prefix="resnet."
)
