"""CLIP: from images and tokens to vectors of one space, and the scale of their products."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from jaxblocks.activations import gelu
from jaxblocks.interop.families.family import Config, Family, projections
from jaxblocks.interop.layouts import Layout
from jaxblocks.interop.rules import Rules
from jaxblocks.models import CLIP
from jaxblocks.models.clip import quick_gelu

__all__ = ["CLIP_FAMILY"]


def _blocks(path: str, name: str) -> dict[str, str]:
    return {
        f"{path}/attention_norm": f"{name}.layer_norm1",
        **projections(f"{path}/attention", f"{name}.self_attn"),
        f"{path}/mlp_norm": f"{name}.layer_norm2",
        f"{path}/mlp/up": f"{name}.mlp.fc1",
        f"{path}/mlp/down": f"{name}.mlp.fc2",
    }


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
ACTIVATIONS = {"quick_gelu": quick_gelu, "gelu": functools.partial(gelu, approximate=False)}


def _options(config: Config) -> dict[str, Any]:
    config.architecture("CLIPModel")
    text, image = (Config(config[name], model_type="clip") for name in ("text_config", "vision_config"))
    activation = text.one_of("hidden_act", *ACTIVATIONS, default="quick_gelu")
    image.one_of("hidden_act", activation, default="quick_gelu")
    epsilon = text.get("layer_norm_eps", 1e-5)
    image.one_of("layer_norm_eps", epsilon, default=1e-5)
    end = text.get("eos_token_id", 49_407)
    return dict(
        features=config["projection_dim"],
        vocab_size=text["vocab_size"],
        max_length=text["max_position_embeddings"],
        end_token=None if end == 2 else end,  # 2 stands for the largest token, in old configurations
        text_layers=text["num_hidden_layers"],
        text_heads=text["num_attention_heads"],
        text_features=text["hidden_size"],
        text_hidden=text["intermediate_size"],
        patch_size=image["patch_size"],
        image_layers=image["num_hidden_layers"],
        image_heads=image["num_attention_heads"],
        image_features=image["hidden_size"],
        image_hidden=image["intermediate_size"],
        activation=ACTIVATIONS[activation],
        epsilon=epsilon,
    )


def _inputs(config: Config) -> tuple:
    image = config["vision_config"]
    size = image["image_size"]
    shape = (1, size, size, image.get("num_channels", 3))
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
