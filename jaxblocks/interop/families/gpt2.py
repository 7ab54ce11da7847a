"""GPT-2: ``GPT2LMHeadModel``, those for classes and answers, and ``GPT2Model``, which returns features."""

from typing import Any

from jaxblocks.interop.families.family import (
    COUNT,
    EPSILON,
    FLAG,
    LENGTH,
    RATE,
    WIDTH,
    Config,
    Family,
    activation,
    tokens,
    widths,
)
from jaxblocks.interop.families.heads import decoder_head, head_rules
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
    "out": "lm_head",
}


CLASSES = ("GPT2", "GPT2LMHeadModel", "GPT2Model")


def _is_tied(config: Config) -> bool:
    """Whether the token embedding computes the logits; a base model has no map of its own either."""
    return config.read("tie_word_embeddings", FLAG, True) or decoder_head(config, *CLASSES)["head"] != "words"


def _options(config: Config) -> dict[str, Any]:
    # Variants of attention that the net here does not compute.
    config.one_of("scale_attn_weights", True, default=True)
    config.one_of("scale_attn_by_inverse_layer_idx", False, default=False)
    config.one_of("add_cross_attention", False, default=False)
    return dict(
        vocab_size=config.read("vocab_size", LENGTH),
        max_length=config.read("n_positions", LENGTH),
        layers=config.read("n_layer", COUNT),
        **widths(config, "n_embd", "n_head"),
        hidden=config.read("n_inner", WIDTH, None),
        activation=activation(config, "activation_function", "gelu_new"),
        tied=_is_tied(config),
        dropout=config.read("resid_pdrop", RATE, 0.1),
        attention_dropout=config.read("attn_pdrop", RATE, 0.1),
        embedding_dropout=config.read("embd_pdrop", RATE, 0.1),
        epsilon=config.read("layer_norm_epsilon", EPSILON, 1e-5),
        **decoder_head(config, *CLASSES),
    )


GPT2_FAMILY = Family(
    GPT2,
    _options,
    lambda config: head_rules(RULES, config, *CLASSES, maps={"ForTokenClassification": "classifier"}),
    inputs=tokens,
    architecture="GPT2LMHeadModel",
    prefix="transformer.",
    aliases={
        "hidden_size": "n_embd",
        "max_position_embeddings": "n_positions",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    },
    tied=lambda config: {"lm_head.weight": "transformer.wte.weight"} if _is_tied(config) else {},
    ignored=("*h.*.attn.bias", "*h.*.attn.masked_bias"),  # causal masks
)
