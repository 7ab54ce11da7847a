"""The range of the tokens of a model."""

import jax.numpy as jnp

from jaxblocks.checks import check_values, checkable

__all__ = ["check_tokens"]


def check_tokens(tokens, vocab_size: int, what: str) -> None:
    """Raise a ``ValueError`` if concrete tokens are outside of 0, ..., vocab_size - 1."""
    known = checkable(tokens, False)
    if known is None or not known.size:
        return
    bad = (known < 0) | (known >= vocab_size)
    place = tuple(int(i) for i in jnp.unravel_index(jnp.argmax(bad.ravel()), bad.shape))
    check_values(
        ~bad,
        f"{what} from 0 to {vocab_size - 1}, the vocabulary of the model, got {{got}} at "
        f"{place[0] if len(place) == 1 else place}; encode the text with the tokenizer that the model was trained with",
        got=known[place],
    )
