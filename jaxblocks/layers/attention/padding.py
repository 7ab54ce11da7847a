"""Padding in `Attention`: masks of valid keys or of pairs of queries and keys, and zeros in place of what is padded."""

import jax.numpy as jnp

from jaxblocks.checks.errors import require
from jaxblocks.layers.attention.masks import broadcasts_to
from jaxblocks.layers.attention.projections import inputs_by_role

__all__ = ["zero_padding"]


def zero_padding(inputs: tuple, mask, heads: int, time_k: int | None = None):
    """The inputs with zeros at padding, the mask of valid keys, and the mask of the scores; one mask is ``None``.

    ``time_k`` is the number of keys where it differs from that of the input, as with a cache.
    """
    if mask is None:
        return inputs, None, None
    of_q, of_k, _ = inputs_by_role(inputs)
    batch, own = of_q.shape[:-2], of_k.shape[-2]
    full = (*batch, heads, of_q.shape[-2], time_k or own)
    if mask.shape != (*batch, own):
        expected = f"mask of shape (*batch, time_k) = {(*batch, own)}, True at valid keys, or of shape (*batch, heads, "
        expected += f"time_q, time_k) = {full}, any axis but the last of size 1 or equal"
        repair = f"make one of the shape {(*batch, own)}"
        if all(n in (1, there) for n, there in zip(mask.shape[::-1], full[::-1], strict=False)):
            repair = f"write jnp.broadcast_to(mask, {full}) for the latter"
            repair += ", or Attention(..., causal=True) for causal order" if mask.shape == full[-2:] else ""
        if len(mask.shape) == len(full) - 1 and batch:  # of pairs, without an axis of heads
            repair = "write mask[..., None, :, :] for a mask of pairs that all heads share"
        require(broadcasts_to(mask.shape, full), expected, mask, repair)
        return inputs, None, mask

    def cleaned(x):  # where shapes do not fit, a later check raises the error
        # where instead of a product with the mask, since 0 * NaN is NaN.
        return jnp.where(mask[..., None], x, jnp.zeros((), x.dtype)) if x.shape[:-1] == mask.shape else x

    first = int(len(inputs) > 1)  # the mask does not apply to a separate input of the queries
    return (*inputs[:first], *map(cleaned, inputs[first:])), mask, None
