"""GPT-2: ``GPT2LMHeadModel`` and ``GPT2Model``, which is loaded with the logits of its token embedding."""

from typing import Any

from jaxblocks.interop.families.family import Config, Family, tokens
from jaxblocks.interop.layouts import keep
from jaxblocks.interop.rules import merge_qkv
from jaxblocks.models import GPT2

__all__ = ["GPT2_FAMILY"]

BLOCK = "transformer.h.{i}"
RULES = {
    "tokens": "transformer.wte",
    "positions": "transformer.wpe",
    "blocks/attention_norm": f"{BLOCK}.ln_1",
    **merge_qkv("blocks/attention", f"{BLOCK}.attn.c_attn", layout=keep),  # its kernels are (in, out)
    "blocks/attention/out": (f"{BLOCK}.attn.c_proj", keep),
    "blocks/mlp_norm": f"{BLOCK}.ln_2",
    "blocks/mlp/up": (f"{BLOCK}.mlp.c_fc", keep),
    "blocks/mlp/down": (f"{BLOCK}.mlp.c_proj", keep),
    "norm": "transformer.ln_f",
}


def options(config: Config) -> dict[str, Any]:
    """The options of `GPT2` for a configuration."""
    config.architecture("GPT2LMHeadModel", "GPT2Model")
    config.one_of("activation_function", "gelu_new", "gelu_pytorch_tanh", default="gelu_new")
    config.one_of("scale_attn_weights", True, default=True)
    config.one_of("scale_attn_by_inverse_layer_idx", False, default=False)
    config.one_of("add_cross_attention", False, default=False)
    config.one_of("tie_word_embeddings", True, default=True)
    return dict(
        vocab_size=config["vocab_size"],
        max_length=config["n_positions"],
        layers=config["n_layer"],
        heads=config["n_head"],
        features=config["n_embd"],
        hidden=config.get("n_inner"),
        dropout=config.get("resid_pdrop", 0.1),
        epsilon=config.get("layer_norm_epsilon", 1e-5),
    )


GPT2_FAMILY = Family(
    GPT2,
    options,
    lambda config: RULES,
    inputs=tokens,
    architecture="GPT2LMHeadModel",
    prefix="transformer.",
    tied=lambda config: {"lm_head.weight": "transformer.wte.weight"},
    ignored=("*h.*.attn.bias", "*h.*.attn.masked_bias"),  # causal masks
)
