"""BERT, RoBERTa, MPNet, ELECTRA and DistilBERT: one net; the base model, and those for masked words and for classes."""

from collections.abc import Mapping
from typing import Any

from jaxblocks.activations import gelu, relu
from jaxblocks.interop.families.family import (
    COUNT,
    EPSILON,
    INDEX,
    LENGTH,
    RATE,
    WIDTH,
    Config,
    Family,
    activation,
    number_of_classes,
    tokens,
    widths,
)
from jaxblocks.models import BERT

__all__ = ["BERT_FAMILY", "CAMEMBERT", "DISTILBERT", "ELECTRA", "MPNET", "ROBERTA", "XLM_ROBERTA"]

HEADS = {
    "Model": "pooler",
    "ForMaskedLM": "words",
    "ForSequenceClassification": "classes",
    "ForTokenClassification": "token_classes",
    "ForQuestionAnswering": "token_classes",  # the first and the last token of the answer
}
ELECTRA_HEADS = {**HEADS, "Model": None, "ForPreTraining": "replaced"}


def _heads(name: str) -> Mapping[str, Any]:
    return ELECTRA_HEADS if name == "Electra" else HEADS


def _task(config: Config, name: str) -> str:
    return config.architecture(*(name + task for task in _heads(name))).removeprefix(name)


def _head(config: Config, name: str, classifier: str = "classifier_dropout") -> dict[str, Any]:
    """The options of the head; ``classifier`` is the key of the rate before its last layer."""
    task = _task(config, name)
    if task == "ForMaskedLM":
        config.one_of("tie_word_embeddings", True, default=True)
    if task == "ForQuestionAnswering":  # BERT and RoBERTa have no dropout before its last layer
        return dict(head=HEADS[task], classes=2, classifier_dropout=0.0)
    head = _heads(name)[task]
    rate = config.read(classifier, RATE, None) if head in ("classes", "token_classes") else None
    return dict(head=head, classes=number_of_classes(config), classifier_dropout=rate)


def _with_head(rules: Mapping[str, str], config: Config, name: str) -> Mapping[str, str]:
    # transformers names the same map of token classes differently for questions.
    return {**rules, "out": "qa_outputs"} if _task(config, name) == "ForQuestionAnswering" else rules


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
LM_HEAD = {
    "words/dense": "lm_head.dense",
    "words/norm": "lm_head.layer_norm",
    "words_bias": "lm_head",
    "out": "classifier",
}
ROBERTA_RULES = {**_encoder("roberta."), "pooler": "roberta.pooler.dense", **LM_HEAD}


NAMES = {
    "bert": "Bert",
    "camembert": "Camembert",
    "electra": "Electra",
    "mpnet": "MPNet",
    "roberta": "Roberta",
    "xlm-roberta": "XLMRoberta",
}


def _bert(config: Config) -> dict[str, Any]:
    # Options that would change what the attention computes.
    config.one_of("is_decoder", False, default=False)
    config.one_of("position_embedding_type", "absolute", default="absolute")
    return dict(
        vocab_size=config.read("vocab_size", LENGTH),
        max_length=config.read("max_position_embeddings", LENGTH),
        segments=0 if config["model_type"] == "mpnet" else config.read("type_vocab_size", LENGTH),
        layers=config.read("num_hidden_layers", COUNT),
        **widths(config),
        hidden=config.read("intermediate_size", WIDTH),
        activation=activation(config, "hidden_act", "gelu"),
        dropout=config.read("hidden_dropout_prob", RATE, 0.1),
        attention_dropout=config.read("attention_probs_dropout_prob", RATE, 0.1),
        epsilon=config.read("layer_norm_eps", EPSILON, 1e-12),
        **_head(config, NAMES[config["model_type"]]),
    )


def _roberta(config: Config) -> dict[str, Any]:
    options, padding = _bert(config), config.read("pad_token_id", INDEX, 1)
    length = options["max_length"] - padding - 1  # positions are numbered from the token after that of padding
    config.require(length > 0, "max_position_embeddings above pad_token_id + 1", options["max_length"])
    return _two_layers(config, options) | dict(position_offset=padding + 1, max_length=length)


def _two_layers(config: Config, options: dict[str, Any]) -> dict[str, Any]:
    """Of heads whose layers are not BERT's: for words the GELU is fixed, for classes dropout is before both layers."""
    if options["head"] == "words":
        config.one_of("hidden_act", "gelu", default="gelu")
    if options["head"] == "classes":
        rate = options["classifier_dropout"]
        options["pooler_dropout"] = options["dropout"] if rate is None else rate
    return options


def _two_layer_rules(rules: Mapping[str, str], config: Config) -> Mapping[str, str]:
    name = NAMES[config["model_type"]]
    is_classifier = _task(config, name) == "ForSequenceClassification"
    classes = {"pooler": "classifier.dense", "out": "classifier.out_proj"} if is_classifier else {}
    return _with_head({**rules, **classes}, config, name)


BERT_FAMILY = Family(
    BERT,
    _bert,
    lambda config: _with_head(BERT_RULES, config, "Bert"),
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
    rules=lambda config: _two_layer_rules(ROBERTA_RULES, config),
    architecture="RobertaModel",
    prefix="roberta.",
    tied=lambda config: {
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
)

CAMEMBERT = ROBERTA._replace(architecture="CamembertModel")
XLM_ROBERTA = ROBERTA._replace(architecture="XLMRobertaModel")

# ---- MPNet -----------------------------------------------------------------------------------

MPNET_BLOCK = "mpnet.encoder.layer.{i}"
MPNET_RULES = {
    **{f"blocks/attention/{role}": f"{MPNET_BLOCK}.attention.attn.{role[0]}" for role in ("query", "key", "value")},
    **_encoder("mpnet."),
    "blocks/attention/out": f"{MPNET_BLOCK}.attention.attn.o",
    "blocks/attention_norm": f"{MPNET_BLOCK}.attention.LayerNorm",
    "relative_positions": "mpnet.encoder.relative_attention_bias",
    "pooler": "mpnet.pooler.dense",
    **LM_HEAD,
}


def _mpnet(config: Config) -> dict[str, Any]:
    # The published code has positions from 2 on for any pad_token_id, no segments, and a fixed number of buckets.
    options = _roberta(Config({**config, "pad_token_id": 1, "classifier_dropout": None}, config.file))
    return options | dict(buckets=config.one_of("relative_attention_num_buckets", 32, default=32))


MPNET = ROBERTA._replace(
    options=_mpnet,
    rules=lambda config: _two_layer_rules(MPNET_RULES, config),
    architecture="MPNetModel",
    prefix="mpnet.",
    tied=lambda config: {
        "lm_head.decoder.weight": "mpnet.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
)

# ---- ELECTRA ---------------------------------------------------------------------------------

ELECTRA_RULES = {
    **_encoder("electra."),
    "embedding_out": "electra.embeddings_project",
    "words/dense": "generator_predictions.dense",
    "words/norm": "generator_predictions.LayerNorm",
    "words_bias": "generator_lm_head",
    "replaced/dense": "discriminator_predictions.dense",
    "replaced/out": "discriminator_predictions.dense_prediction",
    "out": "classifier",
}


def _electra(config: Config) -> dict[str, Any]:
    options, width = _two_layers(config, _bert(config)), config.read("embedding_size", WIDTH, 128)
    return options | dict(embedding_features=None if width == options["features"] else width, pooler_activation=gelu)


ELECTRA = BERT_FAMILY._replace(
    options=_electra,
    rules=lambda config: _two_layer_rules(ELECTRA_RULES, config),
    architecture="ElectraModel",
    prefix="electra.",
    tied=lambda config: {"generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"},
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


DISTILBERT_RATES = {
    "ForSequenceClassification": ("seq_classif_dropout", RATE, 0.2),
    "ForQuestionAnswering": ("qa_dropout", RATE, 0.1),
    "ForTokenClassification": ("dropout", RATE, 0.1),
}


def _distilbert(config: Config) -> dict[str, Any]:
    head, task = _head(config, "DistilBert"), _task(config, "DistilBert")
    if task in DISTILBERT_RATES:
        head["classifier_dropout"] = config.read(*DISTILBERT_RATES[task])
    return dict(
        vocab_size=config.read("vocab_size", LENGTH),
        max_length=config.read("max_position_embeddings", LENGTH),
        segments=0,
        layers=config.read("n_layers", COUNT),
        **widths(config, "dim", "n_heads"),
        hidden=config.read("hidden_dim", WIDTH),
        activation=activation(config, "activation", "gelu"),
        dropout=config.read("dropout", RATE, 0.1),
        attention_dropout=config.read("attention_dropout", RATE, 0.1),
        dropout_after=("mlp",),
        # Its classifier has a relu where BERT has tanh.
        pooler_activation=relu,
        **head | (dict(head=None) if head["head"] == "pooler" else {}),  # the base model has no pooler
    )


DISTILBERT = BERT_FAMILY._replace(
    options=_distilbert,
    rules=lambda config: _with_head(DISTILBERT_RULES, config, "DistilBert"),
    architecture="DistilBertModel",
    prefix="distilbert.",
    aliases={"hidden_size": "dim", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"},
    tied=lambda config: {"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
)
