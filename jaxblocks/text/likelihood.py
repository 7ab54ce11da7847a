"""The code length of tokens under a language model."""

import math

from jaxtyping import Array, Float, Integer

from jaxblocks.backend.precision import widen
from jaxblocks.checks.expectations import checked
from jaxblocks.losses import softmax_cross_entropy
from jaxblocks.text.prompts import check_tokens

__all__ = ["bits_per_token"]


@checked
def bits_per_token(logits: Float[Array, "*batch vocab"], tokens: Integer[Array, "*batch"]) -> Float[Array, "*batch"]:
    r"""The code length of each token under a model, $-log_2 p(x)$: cross-entropy in nats over $ln 2$.

    The mean over a text whose tokens are characters is the number of bits per character. For the uniform distribution
    it is $log_2$ of the vocabulary size. The computation is in float32 at least. A code length below 1 has the
    rounding error of 1.

    Raises:
        TypeError: for logits that are not floating-point, and tokens that are not integers.
        ValueError: for shapes that differ, and tokens out of range (under ``jit`` the result there is NaN).

    >>> print(bits_per_token(jnp.zeros((2, 8)), jnp.array([0, 7])))
    [3. 3.]

    Source: Shannon 1951, Prediction and entropy of printed English.
    """
    check_tokens(tokens, logits.shape[-1], "tokens")
    return softmax_cross_entropy(widen(logits), tokens) / math.log(2)
