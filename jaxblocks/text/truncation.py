"""Truncation of a distribution over tokens: top-k and top-p (nucleus) sampling."""

from typing import Annotated, Literal

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxblocks.checks import PositiveInt, Range, checked, require
from jaxblocks.precision import widen

__all__ = ["check_top_k", "truncate_logits"]


@checked
def truncate_logits(
    logits: Float[Array, "*batch vocab"],
    *,
    top_k: PositiveInt | None = None,
    top_p: Annotated[float, Range(0, most=1, open_below=True)] | Literal[1] | Float[Array, ""] | None = None,
) -> Float[Array, "*batch vocab"]:
    r"""Set the logits of unlikely tokens to :math:`-\infty`, so that these tokens are never drawn.

    Args:
        logits: one for each token.
        top_k: keep the k largest logits (and those equal to the smallest of these).
        top_p: of the tokens that ``top_k`` keeps, keep the smallest set of likeliest tokens whose probabilities sum to
            p or more. The likeliest token is always kept.

    Raises:
        ValueError: for ``top_k`` outside of 1, ..., vocab, or ``top_p`` outside of (0, 1].

    >>> logits = jnp.log(jnp.array([0.1, 0.6, 0.3]))
    >>> print(np.asarray(jax.nn.softmax(truncate_logits(logits, top_k=2))).round(2))
    [0.   0.67 0.33]
    >>> print(jax.nn.softmax(truncate_logits(logits, top_p=0.5)))
    [0. 1. 0.]

    Sources: Fan, Lewis & Dauphin 2018, Hierarchical neural story generation (top-k); Holtzman et al. 2019, The curious
    case of neural text degeneration (top-p).
    """
    check_top_k(top_k, logits.shape[-1])
    if top_k is not None:
        least = lax.top_k(logits, top_k)[0][..., -1:]
        logits = jnp.where(logits < least, -jnp.inf, logits)
    if top_p is not None:
        order = jnp.argsort(logits, -1, descending=True)
        p = jax.nn.softmax(widen(jnp.take_along_axis(logits, order, -1)), -1)
        before = jnp.cumsum(p, -1) - p  # of all likelier tokens
        kept = (before < jnp.asarray(top_p, p.dtype)).at[..., 0].set(True)
        logits = jnp.where(jnp.take_along_axis(kept, jnp.argsort(order, -1), -1), logits, -jnp.inf)
    return logits


def check_top_k(top_k: int | None, vocab_size: int) -> None:
    """Raise a ``ValueError`` if ``top_k`` is larger than the vocabulary."""
    if top_k is not None and top_k > vocab_size:
        require(False, f"top_k to be at most {vocab_size}, the vocabulary size", top_k, "omit it to keep all tokens")
