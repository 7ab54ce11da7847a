"""ModernBERT: the base model, and those for masked words, classes and questions."""

import itertools
from typing import Any

from jaxblocks.interop.families.family import (
    COUNT,
    EPSILON,
    LENGTH,
    POSITIVE,
    RATE,
    WIDTH,
    Config,
    Family,
    activation,
    number_of_classes,
    sliding_layers,
    tokens,
    widths,
)
from jaxblocks.interop.rules import Rules, Source, merge_qkv
from jaxblocks.models import ModernBERT

__all__ = ["MODERN_BERT"]

HEADS = {
    "ModernBertModel": None,
    "ModernBertForMaskedLM": "words",
    "ModernBertForSequenceClassification": "classes",
    "ModernBertForTokenClassification": "token_classes",
    "ModernBertForQuestionAnswering": "token_classes",  # the first and the last token of the answer
}


def _block(path: str, name: str) -> Rules:
    return {
        **merge_qkv(f"{path}/attention", f"{name}.attn.Wqkv"),
        f"{path}/attention_norm": f"{name}.attn_norm",
        f"{path}/attention/out": f"{name}.attn.Wo",
        f"{path}/mlp_norm": f"{name}.mlp_norm",
        f"{path}/mlp/gate": Source(f"{name}.mlp.Wi", part=0),
        f"{path}/mlp/up": Source(f"{name}.mlp.Wi", part=1),
        f"{path}/mlp/down": f"{name}.mlp.Wo",
    }


RULES: Rules = {
    "tokens": "model.embeddings.tok_embeddings",
    "embedding_norm": "model.embeddings.norm",
    **_block("first", "model.layers.0"),
    **_block("blocks", "model.layers.{i+1}"),
    "norm": "model.final_norm",
    "head/*": "head.*",
    "words_bias": "decoder",
    "out": "classifier",
}


def _options(config: Config) -> dict[str, Any]:
    name = config.architecture(*HEADS)
    for key in ("attention_bias", "mlp_bias", "norm_bias", "classifier_bias"):
        config.one_of(key, False, default=False)
    if HEADS[name] == "words":
        config.one_of("decoder_bias", True, default=True)
        config.one_of("tie_word_embeddings", True, default=True)
    config.without("sliding_window")  # another spelling of local_attention
    layers, sizes = config.read("num_hidden_layers", COUNT), widths(config)
    config.one_of("head_dim", sizes["features"] // sizes["heads"], None, default=None)
    every = config.read("global_attn_every_n_layers", COUNT, 3)
    is_question = name.endswith("QuestionAnswering")
    return dict(
        vocab_size=config.read("vocab_size", LENGTH),
        layers=layers,
        **sizes,
        hidden=config.read("intermediate_size", WIDTH),
        activation=activation(config, "hidden_activation", "gelu"),
        sliding_window=config.read("local_attention", LENGTH, 128) // 2,
        sliding_layers=sliding_layers(config, lambda layer: layer % every != 0),
        base=_base(config, "full_attention", "global_rope_theta", 160_000.0),
        local_base=_base(config, "sliding_attention", "local_rope_theta", 10_000.0),
        dropout=config.read("embedding_dropout", RATE, 0.0),
        attention_dropout=config.read("attention_dropout", RATE, 0.0),
        mlp_dropout=config.read("mlp_dropout", RATE, 0.0),
        classifier_dropout=config.read("classifier_dropout", RATE, 0.0),
        epsilon=config.read("norm_eps", EPSILON, 1e-5),
        head=HEADS[name],
        classes=2 if is_question else number_of_classes(config),
        pool="mean" if config.one_of("classifier_pooling", "cls", "mean", default="cls") == "mean" else "first",
        head_activation=activation(config, "classifier_activation", "gelu"),
    )


def _base(config: Config, kind: str, old: str, default: float) -> float:
    """The base of the rotary positions of one kind of layer, which versions of Hugging Face name differently."""
    part, scaling = config.part("rope_parameters", None).part(kind, None), config.part("rope_scaling", None)
    for each, name in itertools.product((scaling, part), ("rope_type", "type")):
        each.one_of(name, "default", default="default")
    part = scaling if "rope_theta" in scaling else part  # the older one holds, for both kinds
    return part.read("rope_theta", POSITIVE, config.read(old, POSITIVE, default))


MODERN_BERT = Family(
    ModernBERT,
    _options,
    lambda config: RULES,
    inputs=tokens,
    architecture="ModernBertModel",
    prefix="model.",
    tied=lambda config: {"decoder.weight": "model.embeddings.tok_embeddings.weight"},
)
