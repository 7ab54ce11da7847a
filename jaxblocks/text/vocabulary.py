"""The range of the tokens of a model."""

import numpy as np

from jaxblocks.checks.values import check_values, checkable

__all__ = ["check_tokens"]


def check_tokens(tokens, vocab_size: int, what: str) -> None:
    """Raise a ``ValueError`` if concrete tokens are outside of 0, ..., vocab_size - 1."""
    known = checkable(tokens, False)
    if known is None:
        return
    known = np.asarray(known)  # NumPy dispatches small operations much faster
    bad = (known < 0) | (known >= vocab_size)
    if not bad.any():
        return
    place = tuple(int(i) for i in np.unravel_index(bad.argmax(), bad.shape))
    check_values(
        False,
        f"{what} from 0 to {vocab_size - 1}, the vocabulary of the model, got {{got}} at "
        f"{place[0] if len(place) == 1 else place}; encode the text with the tokenizer that the model was trained with",
        got=known[place],
    )
