"""ViT, DeiT and DINOv2: the base models, and the classifiers of images."""

from typing import Any

from jaxblocks.activations import silu
from jaxblocks.interop.families.family import (
    COUNT,
    EPSILON,
    FLAG,
    POSITIVE,
    RATE,
    WIDTH,
    Config,
    Family,
    activation,
    images,
    number_of_classes,
    widths,
)
from jaxblocks.interop.layouts import without_batch
from jaxblocks.interop.rules import Rules, Source
from jaxblocks.models import ViT

__all__ = ["DEIT", "DINOV2", "VIT"]


def _rules(prefix: str) -> Rules:
    block = f"{prefix}encoder.layer.{{i}}"
    return {
        "patches": f"{prefix}embeddings.patch_embeddings.projection",
        "class_token/embedding": (f"{prefix}embeddings.cls_token", without_batch),
        "distillation_token/embedding": (f"{prefix}embeddings.distillation_token", without_batch),
        "positions/embedding": (f"{prefix}embeddings.position_embeddings", without_batch),
        "blocks/attention_norm": f"{block}.layernorm_before",
        # Before the pattern below, which matches it too: the first rule that matches holds.
        "blocks/attention/out": f"{block}.attention.output.dense",
        "blocks/attention/*": f"{block}.attention.attention.*",
        "blocks/mlp_norm": f"{block}.layernorm_after",
        "blocks/mlp/up": f"{block}.intermediate.dense",
        "blocks/mlp/down": f"{block}.output.dense",
        "norm": f"{prefix}layernorm",
        "pooler/dense": f"{prefix}pooler.dense",
        "out": "classifier",
        # Rules of all heads: those of heads that the net lacks match no param.
        "out/classes": "cls_classifier",
        "out/distillation": "distillation_classifier",
    }


def _options(config: Config, **options: Any) -> dict[str, Any]:
    if options["head"] == "pooler":
        # The pooler here has tanh and the width of the blocks.
        config.one_of("pooler_act", "tanh", default="tanh")
        if config.get("pooler_output_size") is not None:
            config.same("pooler_output_size", config.get("hidden_size"), "hidden_size", None)
    sizes = widths(config)
    config.one_of("head_dim", sizes["features"] // sizes["heads"], None, default=None)
    patch = options.get("patch_size") or config.read("patch_size", WIDTH, 16)
    size = config.read("image_size", WIDTH, 224)
    config.require(patch <= size, "patch_size to be at most image_size", f"{patch} and {size}")
    common: dict[str, Any] = dict(
        classes=number_of_classes(config),
        patch_size=patch,
        layers=config.read("num_hidden_layers", COUNT),
        **sizes,
        hidden=options.get("hidden") or config.read("intermediate_size", WIDTH),
        activation=activation(config, "hidden_act", "gelu"),
        # qkv_bias: the output map has a bias in any case.
        use_bias=True if config.read("qkv_bias", FLAG, True) else ("out",),
        dropout=config.read("hidden_dropout_prob", RATE, 0.0),
        attention_dropout=config.read("attention_probs_dropout_prob", RATE, 0.0),
        mlp_dropout=0.0,
        epsilon=config.read("layer_norm_eps", EPSILON, 1e-12),
    )
    return common | options


def _vit(config: Config) -> dict[str, Any]:
    name = config.architecture("ViTForImageClassification", "ViTModel")
    return _options(config, head="pooler" if name == "ViTModel" else "classes")


def _deit(config: Config) -> dict[str, Any]:
    name = config.architecture("DeiTForImageClassification", "DeiTForImageClassificationWithTeacher", "DeiTModel")
    # DeiTForImageClassification reads the class token alone, WithTeacher both heads.
    distillation = "classes" if name.endswith("Teacher") else "token"
    return _options(config, head="pooler" if name == "DeiTModel" else "classes", distillation=distillation)


VIT = Family(
    ViT,
    _vit,
    lambda config: _rules("vit."),
    inputs=lambda config: images(config, 224),
    architecture="ViTForImageClassification",
    prefix="vit.",
)
DEIT = VIT._replace(
    options=_deit, rules=lambda config: _rules("deit."), architecture="DeiTForImageClassification", prefix="deit."
)

# ---- DINOv2 ----------------------------------------------------------------------------------

DINOV2_BLOCK = "dinov2.encoder.layer.{i}"
DINOV2_RULES: Rules = {
    **_rules("dinov2."),
    "blocks/attention_norm": f"{DINOV2_BLOCK}.norm1",
    "blocks/attention_scale/scale": f"{DINOV2_BLOCK}.layer_scale1.lambda1",
    "blocks/mlp_norm": f"{DINOV2_BLOCK}.norm2",
    "blocks/mlp_scale/scale": f"{DINOV2_BLOCK}.layer_scale2.lambda1",
    "blocks/mlp/up": f"{DINOV2_BLOCK}.mlp.fc1",
    "blocks/mlp/down": f"{DINOV2_BLOCK}.mlp.fc2",
}
DINOV2_GATED: Rules = {
    **DINOV2_RULES,
    "blocks/mlp/gate": Source(f"{DINOV2_BLOCK}.mlp.weights_in", part=0),
    "blocks/mlp/up": Source(f"{DINOV2_BLOCK}.mlp.weights_in", part=1),
    "blocks/mlp/down": f"{DINOV2_BLOCK}.mlp.weights_out",
}


def _dinov2(config: Config) -> dict[str, Any]:
    is_base = config.architecture("Dinov2Model", "Dinov2ForImageClassification") == "Dinov2Model"
    hidden = int(config.read("hidden_size", WIDTH) * config.read("mlp_ratio", POSITIVE, 4))
    config.require(hidden > 0, "hidden_size times mlp_ratio to be at least 1", f"{hidden}")
    options = _options(
        config,
        head=None if is_base else "classes",
        pool="token" if is_base else "token_and_mean",
        patch_size=config.read("patch_size", WIDTH, 14),
        hidden=hidden,
        epsilon=config.read("layer_norm_eps", EPSILON, 1e-6),
        layer_scale=config.read("layerscale_value", POSITIVE, 1.0),  # initial: the weights are in the file
        dropout_after=(),
        interpolate=True,
    )
    if config.read("use_swiglu_ffn", FLAG, False):
        # Two thirds, so that there are as many params as without a gate, rounded up to a multiple of 8.
        options |= dict(gated=True, activation=silu, hidden=(int(hidden * 2 / 3) + 7) // 8 * 8)
    return options


DINOV2 = VIT._replace(
    options=_dinov2,
    rules=lambda config: DINOV2_GATED if config.get("use_swiglu_ffn") else DINOV2_RULES,
    architecture="Dinov2Model",
    prefix="dinov2.",
    ignored=("*embeddings.mask_token",),  # of pretraining
    rates=("drop_path_rate",),
)
