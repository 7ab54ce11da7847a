"""The U-Net of diffusers, ``UNet2DModel``, without classes."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxblocks.interop.families.family import (
    EPSILON,
    FLAG,
    RATE,
    WIDTH,
    Config,
    Family,
    integers,
    list_of,
    one_of,
    or_null,
)
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
    # Read without a check here, since `_options` has read the configuration before.
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
        # Ours belongs to the level that it leads to, theirs to the block that it leaves.
        rules[f"upsample_{level}/conv"] = f"up_blocks.{last - level - 1}.upsamplers.0.conv"
    return rules


def _options(config: Config) -> dict[str, Any]:
    for name, *known in _FIXED:
        config.one_of(name, *known, default=known[0])
    # Options that change what is computed, and that the net here does not have.
    config.without("class_embed_type", "num_class_embeds", "num_train_timesteps", "attn_norm_num_groups")
    widths = config.read("block_out_channels", list_of(WIDTH, most=12))
    down = config.read("down_block_types", list_of(one_of("DownBlock2D", "AttnDownBlock2D")))
    up = config.read("up_block_types", list_of(one_of("UpBlock2D", "AttnUpBlock2D")))
    # Here one option sets the attention of a level in both directions.
    same = [block.replace("Down", "Up") for block in down] == [*up][::-1]
    config.require(same, "up_block_types with attention at the same levels as down_block_types", f"{up} and {down}")
    config.require(len(down) == len(widths), "as many down_block_types as block_out_channels", f"{down} and {widths}")
    width = widths[0]
    regular = all(each % width == 0 for each in widths)
    config.require(regular, "block_out_channels to be multiples of the first", widths)
    # `TimeEmbedding` has 4 times the width; another size would need another net.
    config.one_of("time_embedding_dim", 4 * width, default=None)
    groups = config.read("norm_num_groups", WIDTH, 32)
    config.divides("norm_num_groups", "block_out_channels", groups, width)
    levels = tuple(level for level, block in enumerate(down) if block == "AttnDownBlock2D")
    head_dim = config.read("attention_head_dim", or_null(WIDTH), 8)
    config.divides("attention_head_dim", "block_out_channels", head_dim or 1, width)
    return dict(
        channels=config.read("out_channels", WIDTH),
        width=width,
        multipliers=tuple(each // width for each in widths),
        blocks=config.read("layers_per_block", integers(1, 16), 2),
        attention_levels=levels,
        middle_attention=config.read("add_attention", FLAG, True),
        head_dim=head_dim,
        frequency_shift=config.one_of("freq_shift", 0, 1, default=0),
        cosines_first=config.read("flip_sin_to_cos", FLAG, True),
        groups=groups,
        epsilon=config.read("norm_eps", EPSILON, 1e-5),
        downsample_padding="both" if config.one_of("downsample_padding", 0, 1, default=1) else "after",
        dropout=config.read("dropout", RATE, 0.0),
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
    # The smallest image that all levels can halve; params do not depend on its size.
    size = 2 ** (len(config["block_out_channels"]) - 1)
    return (jax.ShapeDtypeStruct((1, size, size, config.read("in_channels", WIDTH, 3)), jnp.float32),)


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
