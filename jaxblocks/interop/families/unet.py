"""The U-Net of diffusers, ``UNet2DModel``, without classes."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxblocks.checks import require
from jaxblocks.interop.families.family import Config, Family
from jaxblocks.models import UNet

__all__ = ["UNET"]


def _blocks(path: str, resnet: str, attention: str) -> dict[str, str]:
    return {
        f"{path}/first/norm": f"{resnet}.norm1",
        f"{path}/first/conv": f"{resnet}.conv1",
        f"{path}/condition/dense": f"{resnet}.time_emb_proj",
        f"{path}/second/norm": f"{resnet}.norm2",
        f"{path}/second/conv": f"{resnet}.conv2",
        f"{path}/skip": f"{resnet}.conv_shortcut",
        f"{path}/attention_norm": f"{attention}.group_norm",
        f"{path}/attention/query": f"{attention}.to_q",
        f"{path}/attention/key": f"{attention}.to_k",
        f"{path}/attention/value": f"{attention}.to_v",
        f"{path}/attention/out": f"{attention}.to_out.0",
    }


def _rules(config: Config) -> dict[str, str]:
    last = len(config["block_out_channels"]) - 1
    rules = {
        "time/up": "time_embedding.linear_1",
        "time/down": "time_embedding.linear_2",
        "stem": "conv_in",
        **_blocks("middle_*", "mid_block.resnets.*", "mid_block.attentions.*"),
        "downsample_*": "down_blocks.*.downsamplers.0.conv",
        **_blocks("down_*_*", "down_blocks.*.resnets.*", "down_blocks.*.attentions.*"),
        "out/norm": "conv_norm_out",
        "out/conv": "conv_out",
    }
    for level in range(last + 1):  # theirs are numbered on the way up
        block = f"up_blocks.{last - level}"
        rules |= _blocks(f"up_{level}_*", f"{block}.resnets.*", f"{block}.attentions.*")
        rules[f"upsample_{level}/conv"] = f"up_blocks.{last - level - 1}.upsamplers.0.conv"
    return rules


def _options(config: Config) -> dict[str, Any]:
    for name, *known in _FIXED:
        config.one_of(name, *known, default=known[0])
    for name in ("class_embed_type", "num_class_embeds", "num_train_timesteps", "attn_norm_num_groups"):
        require(config.get(name) is None, f"{name} to be null in a configuration", repr(config.get(name)))
    widths, down, up = (config[name] for name in ("block_out_channels", "down_block_types", "up_block_types"))
    levels = tuple(level for level, block in enumerate(down) if block == "AttnDownBlock2D")
    known = [{"DownBlock2D": "UpBlock2D", "AttnDownBlock2D": "AttnUpBlock2D"}.get(block) for block in down]
    expected = "up_block_types with attention at the same levels as down_block_types in a configuration"
    require(None not in known and list(up) == known[::-1], expected, f"{up} and {down}")
    regular = all(width % widths[0] == 0 for width in widths)
    require(regular, "block_out_channels to be multiples of the first in a configuration", repr(widths))
    width = widths[0]
    if config.get("time_embedding_dim") is not None:
        config.one_of("time_embedding_dim", 4 * width)
    return dict(
        channels=config["out_channels"],
        width=width,
        multipliers=tuple(each // width for each in widths),
        blocks=config.get("layers_per_block", 2),
        attention_levels=levels,
        middle_attention=config.get("add_attention", True),
        head_dim=config.get("attention_head_dim", 8),
        frequency_shift=config.one_of("freq_shift", 0, 1, default=0),
        cosines_first=config.one_of("flip_sin_to_cos", True, False, default=True),
        groups=config.get("norm_num_groups", 32),
        epsilon=config.get("norm_eps", 1e-5),
        downsample_padding="both" if config.one_of("downsample_padding", 0, 1, default=1) else "after",
        dropout=config.get("dropout", 0.0),
    )


_FIXED = (
    ("center_input_sample", False),
    ("time_embedding_type", "positional"),
    ("mid_block_type", "UNetMidBlock2D"),
    ("mid_block_scale_factor", 1, 1.0),
    ("downsample_type", "conv"),
    ("upsample_type", "conv"),
    ("act_fn", "silu"),
    ("resnet_time_scale_shift", "default"),
)


def _inputs(config: Config) -> tuple:
    size = 2 ** (len(config["block_out_channels"]) - 1)
    return (jax.ShapeDtypeStruct((1, size, size, config.get("in_channels", 3)), jnp.float32),)


UNET = Family(
    UNet,
    _options,
    _rules,
    inputs=_inputs,
    side={"time": jax.ShapeDtypeStruct((), jnp.float32)},
    architecture="",
    prefix="",
    file="diffusion_pytorch_model.safetensors",
)
