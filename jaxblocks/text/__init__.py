"""Text: tokenizers, and generation and likelihoods with language models.

Read ``generation`` first. ``beams``, ``truncation`` and ``likelihood`` are the other uses of a language model;
``tokenizers`` turn text into tokens, and ``prompts`` has what generation and beams need of prompts and models.

A language model is a pair that maps tokens ``(..., time)`` to logits ``(..., time, vocab)``, where the logits at t
predict the token at t + 1; see `jaxblocks.models`.
"""

from jaxblocks.core.lazy import explain_missing_names
from jaxblocks.text.beams import beam_search
from jaxblocks.text.generation import generate, stream
from jaxblocks.text.likelihood import bits_per_token
from jaxblocks.text.prompts import pad_prompts
from jaxblocks.text.tokenizers import ByteTokenizer, CharTokenizer, Tokenizer
from jaxblocks.text.truncation import truncate_logits

__all__ = [
    "ByteTokenizer",
    "CharTokenizer",
    "Tokenizer",
    "beam_search",
    "bits_per_token",
    "generate",
    "pad_prompts",
    "stream",
    "truncate_logits",
]
explain_missing_names(__name__)
