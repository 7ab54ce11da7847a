"""Logits of classes on the features of a decoder, of a text or of each token.

Axis letters: ``...`` batch; ``time``; c features.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax.numpy as jnp
from jaxtyping import Array

from jaxblocks.activations import identity
from jaxblocks.checks.errors import require
from jaxblocks.checks.values import as_int32
from jaxblocks.core.pairs import LayerLike
from jaxblocks.layers.combinators import Wire
from jaxblocks.layers.dense import Dense
from jaxblocks.layers.dropout import Dropout

__all__ = ["check_texts", "with_classes"]


def check_texts(tokens: Array) -> None:
    """Raise a ``ValueError`` for texts ``(..., time)`` without tokens, which nothing can summarize."""
    require(tokens.shape[-1] > 0, "texts of at least one token", tokens, "pass padding for an empty text")


def _at_last_token(x, tokens, mask, pad_token):
    """The features at the last token that is neither padding nor ``False`` in the mask; at the first without one."""
    kept = jnp.ones(tokens.shape, bool) if pad_token is None else as_int32(tokens) != pad_token
    # A mask of scores, (*batch, heads, time_q, time_k), does not state which tokens are padding.
    kept = kept & mask if mask is not None and mask.shape == tokens.shape else kept
    places = jnp.broadcast_to(jnp.arange(tokens.shape[-1], dtype=jnp.int32), tokens.shape)
    last = jnp.max(jnp.where(kept, places, 0), -1)
    return jnp.take_along_axis(x, last[..., None, None], -2)[..., 0, :]


def with_classes(
    encode: Callable,
    parts: Mapping[str, LayerLike],
    head: Literal["classes", "token_classes"],
    *,
    classes: int,
    dropout: float,
    pad_token: int | None,
    kernel_init: Callable,
) -> Any:
    """A decoder with logits of classes in place of those of words.

    Args:
        encode: ``encode(f, tokens)``, the body of a `Wire` of the parts, which computes the features.
        parts: the layers that ``encode`` calls.
        head: ``"classes"``, of the text by its last token, which has seen all others, without bias; or
            ``"token_classes"``, of each token, after dropout.
        classes, dropout, kernel_init: the number of logits, the rate before them, and of their kernel.
        pad_token: that of padding, which is never the last token of a text.

    >>> parts = dict(tokens=Embedding(5, 4))
    >>> encode = lambda f, tokens: f.tokens(tokens)
    >>> options = dict(dropout=0.0, pad_token=0, kernel_init=initializers.zeros)
    >>> net = with_classes(encode, parts, "classes", classes=3, **options)
    >>> tokens = jnp.ones((2, 6), jnp.int32)
    >>> net.apply(net.init(jax.random.key(0), tokens), tokens).shape
    (2, 3)
    """
    out = Dense(classes, use_bias=head == "token_classes", kernel_init=kernel_init)

    def classify(f, tokens, *, mask=None):
        check_texts(tokens)
        return f.out(_at_last_token(encode(f, tokens), tokens, mask, pad_token))

    def classify_tokens(f, tokens):
        return f.out(f.out_dropout(encode(f, tokens)))

    if head == "classes":
        return Wire(classify, **parts, out=out)
    return Wire(classify_tokens, **parts, out_dropout=Dropout(dropout) if dropout else identity, out=out)
