"""What CLIP and SigLIP share: the rules of a block, and the options of a transformer for images and one for texts."""

from typing import Any

from jaxblocks.interop.families.family import COUNT, EPSILON, RATE, WIDTH, Config, activation, projections

__all__ = ["block_rules", "mlp_rules", "of_both", "patch_size", "transformer", "two_transformers"]


def mlp_rules(path: str, name: str) -> dict[str, str]:
    """The rules of an MLP whose maps are ``fc1`` and ``fc2``."""
    return {f"{path}/mlp/up": f"{name}.mlp.fc1", f"{path}/mlp/down": f"{name}.mlp.fc2"}


def block_rules(path: str, name: str) -> dict[str, str]:
    """The rules of a block."""
    norms = {f"{path}/attention_norm": f"{name}.layer_norm1", f"{path}/mlp_norm": f"{name}.layer_norm2"}
    return {**norms, **projections(f"{path}/attention", f"{name}.self_attn"), **mlp_rules(path, name)}


def transformer(config: Config, width: int = 768, heads: int = 12) -> dict[str, Any]:
    """The options of a transformer; configurations leave out what has these values, and an MLP four times as wide."""
    features, heads = config.read("hidden_size", WIDTH, width), config.read("num_attention_heads", COUNT, heads)
    config.divides("num_attention_heads", "hidden_size", heads, features)
    return dict(
        layers=config.read("num_hidden_layers", COUNT, 12),
        heads=heads,
        features=features,
        hidden=config.read("intermediate_size", WIDTH, 4 * width),
        dropout=config.read("attention_dropout", RATE, 0.0),
    )


def two_transformers(text: dict[str, Any], image: dict[str, Any]) -> dict[str, Any]:
    """The options of both in one net."""
    return {f"text_{name}": value for name, value in text.items()} | {
        f"image_{name}": value for name, value in image.items()
    }


def of_both(text: Config, image: Config, of_mlps: str, epsilon: float) -> dict[str, Any]:
    """The activation and the epsilon, which are one option for both; with the values that are left out."""
    found = dict(
        activation=activation(text, "hidden_act", of_mlps), epsilon=text.read("layer_norm_eps", EPSILON, epsilon)
    )
    image.same("hidden_act", text.get("hidden_act", of_mlps), f"{text.inside}.hidden_act", of_mlps)
    image.same("layer_norm_eps", found["epsilon"], f"{text.inside}.layer_norm_eps", epsilon)
    return found


def patch_size(config: Config, default: int) -> int:
    """The size of a patch, which fits into the image."""
    size, patch = config.read("image_size", WIDTH, 224), config.read("patch_size", WIDTH, default)
    name = f"{config.inside}.patch_size" if config.inside else "patch_size"
    config.require(patch <= size, f"{name} <= image_size", f"{patch} and {size}")
    return patch
