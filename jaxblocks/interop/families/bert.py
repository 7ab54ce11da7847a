"""BERT, RoBERTa and DistilBERT: one net; the base model, and those for masked words and for classes of sequences."""

from collections.abc import Mapping
from typing import Any

from jaxblocks.activations import relu
from jaxblocks.interop.families.family import Config, Family, number_of_classes, tokens
from jaxblocks.models import BERT

__all__ = ["BERT_FAMILY", "DISTILBERT", "ROBERTA"]

# By the class of the model, the head of `BERT`.
HEADS = {"Model": "pooler", "ForMaskedLM": "words", "ForSequenceClassification": "classes"}


def _head(config: Config, name: str) -> Any:
    return HEADS[config.architecture(*(name + head for head in HEADS)).removeprefix(name)]


# ---- BERT and RoBERTa ------------------------------------------------------------------------


def _encoder(prefix: str) -> dict[str, str]:
    block = f"{prefix}encoder.layer.{{i}}"
    return {
        "tokens": f"{prefix}embeddings.word_embeddings",
        "segments": f"{prefix}embeddings.token_type_embeddings",
        "positions": f"{prefix}embeddings.position_embeddings",
        "embedding_norm": f"{prefix}embeddings.LayerNorm",
        "blocks/attention_norm": f"{block}.attention.output.LayerNorm",
        "blocks/attention/out": f"{block}.attention.output.dense",
        "blocks/attention/*": f"{block}.attention.self.*",
        "blocks/mlp_norm": f"{block}.output.LayerNorm",
        "blocks/mlp/up": f"{block}.intermediate.dense",
        "blocks/mlp/down": f"{block}.output.dense",
    }


BERT_RULES = {
    **_encoder("bert."),
    "pooler": "bert.pooler.dense",
    "out": "classifier",
    "words/dense": "cls.predictions.transform.dense",
    "words/norm": "cls.predictions.transform.LayerNorm",
    "words_bias": "cls.predictions",
}
ROBERTA_RULES = {
    **_encoder("roberta."),
    "pooler": "roberta.pooler.dense",
    "words/dense": "lm_head.dense",
    "words/norm": "lm_head.layer_norm",
    "words_bias": "lm_head",
}
ROBERTA_CLASSES = {**ROBERTA_RULES, "pooler": "classifier.dense", "out": "classifier.out_proj"}


def _bert(config: Config) -> dict[str, Any]:
    config.one_of("is_decoder", False, default=False)
    config.one_of("hidden_act", "gelu", default="gelu")
    config.one_of("position_embedding_type", "absolute", default="absolute")
    return dict(
        vocab_size=config["vocab_size"],
        max_length=config["max_position_embeddings"],
        segments=config["type_vocab_size"],
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        features=config["hidden_size"],
        hidden=config["intermediate_size"],
        dropout=config.get("hidden_dropout_prob", 0.1),
        epsilon=config.get("layer_norm_eps", 1e-12),
        head=_head(config, "Bert" if config["model_type"] == "bert" else "Roberta"),
        classes=number_of_classes(config),
    )


def _roberta(config: Config) -> dict[str, Any]:
    offset = config.get("pad_token_id", 1) + 1  # positions are numbered from there
    return _bert(config) | dict(position_offset=offset, max_length=config["max_position_embeddings"] - offset)


def _roberta_rules(config: Config) -> Mapping[str, str]:
    return ROBERTA_CLASSES if _head(config, "Roberta") == "classes" else ROBERTA_RULES


BERT_FAMILY = Family(
    BERT,
    _bert,
    lambda config: BERT_RULES,
    inputs=tokens,
    architecture="BertModel",
    prefix="bert.",
    tied=lambda config: {
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    ignored=("*embeddings.position_ids",),  # 0, 1, 2, ...
)

ROBERTA = BERT_FAMILY._replace(
    options=_roberta,
    rules=_roberta_rules,
    architecture="RobertaModel",
    prefix="roberta.",
    tied=lambda config: {
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
)

# ---- DistilBERT ------------------------------------------------------------------------------

BLOCK = "distilbert.transformer.layer.{i}"
DISTILBERT_RULES = {
    "tokens": "distilbert.embeddings.word_embeddings",
    "positions": "distilbert.embeddings.position_embeddings",
    "embedding_norm": "distilbert.embeddings.LayerNorm",
    "blocks/attention_norm": f"{BLOCK}.sa_layer_norm",
    "blocks/attention/query": f"{BLOCK}.attention.q_lin",
    "blocks/attention/key": f"{BLOCK}.attention.k_lin",
    "blocks/attention/value": f"{BLOCK}.attention.v_lin",
    "blocks/attention/out": f"{BLOCK}.attention.out_lin",
    "blocks/mlp_norm": f"{BLOCK}.output_layer_norm",
    "blocks/mlp/up": f"{BLOCK}.ffn.lin1",
    "blocks/mlp/down": f"{BLOCK}.ffn.lin2",
    "pooler": "pre_classifier",
    "out": "classifier",
    "words/dense": "vocab_transform",
    "words/norm": "vocab_layer_norm",
    "words_bias": "vocab_projector",
}


def _distilbert(config: Config) -> dict[str, Any]:
    config.one_of("activation", "gelu", default="gelu")
    head = _head(config, "DistilBert")
    return dict(
        vocab_size=config["vocab_size"],
        max_length=config["max_position_embeddings"],
        segments=0,
        layers=config["n_layers"],
        heads=config["n_heads"],
        features=config["dim"],
        hidden=config["hidden_dim"],
        dropout=config.get("dropout", 0.1),
        head=None if head == "pooler" else head,  # the base model has no pooler
        classes=number_of_classes(config),
        pooler_activation=relu,
    )


DISTILBERT = BERT_FAMILY._replace(
    options=_distilbert,
    rules=lambda config: DISTILBERT_RULES,
    architecture="DistilBertModel",
    prefix="distilbert.",
    tied=lambda config: {"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
)
