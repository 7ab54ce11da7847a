"""The heads of decoders: for words, for classes of texts and of tokens, and for answers, by the class of the model."""

from collections.abc import Mapping
from typing import Any

from jaxblocks.interop.families.family import RATE, Config, integers, number_of_classes
from jaxblocks.interop.rules import Rules

__all__ = ["decoder_head", "head_rules"]

# By the end of the class, the head of the net and the name of its map.
TASKS = {
    "ForSequenceClassification": ("classes", "score"),
    "ForTokenClassification": ("token_classes", "score"),
    "ForQuestionAnswering": ("token_classes", "qa_outputs"),  # the first and the last token of the answer
}


def _task(config: Config, name: str, words: str, base: str) -> str:
    """The end of the class of the model, ``""`` for words and ``"Model"`` for the base model."""
    named = config.architecture(words, base, *(name + task for task in TASKS))
    return {words: "", base: "Model"}.get(named, named.removeprefix(name))


def decoder_head(config: Config, name: str, words: str, base: str, pad_token: int | None = None) -> dict[str, Any]:
    """The options of the head; names are those of the classes, ``pad_token`` that of a configuration without one."""
    task = _task(config, name, words, base)
    if task not in TASKS:
        return {"head": None if task else "words"}
    options: dict[str, Any] = {"head": TASKS[task][0], "classes": 2}
    if task == "ForQuestionAnswering":  # without dropout before its last layer
        return options | {"classifier_dropout": 0.0}
    options["classes"] = number_of_classes(config)
    if task == "ForTokenClassification":
        config.one_of("token_classification_bias", True, default=True)
        rates = [config.read(key, RATE, None) for key in ("classifier_dropout", "hidden_dropout")]
        return options | {"classifier_dropout": next((rate for rate in rates if rate is not None), 0.1)}
    token = config.read("pad_token_id", integers(-1, 2**31 - 1), None) if "pad_token_id" in config else pad_token
    return options | {"pad_token": None if token == -1 else token}  # -1, which no token is, stands for none


def head_rules(rules: Rules, config: Config, name: str, words: str, base: str, maps: Mapping[str, str] = {}) -> Rules:
    """The rules with the name of the head; ``maps`` are its names by the end of the class where they are others."""
    task = _task(config, name, words, base)
    return {**rules, "out": maps.get(task, TASKS[task][1])} if task in TASKS else rules
