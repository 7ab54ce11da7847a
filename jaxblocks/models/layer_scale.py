"""A learned factor for each feature at the end of a residual branch."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxblocks.backend.linear_maps import along_batch
from jaxblocks.checks.expectations import PositiveFloat, check_params
from jaxblocks.core.pairs import ArrayOrShape, Layer, builder

__all__ = ["LayerScale"]


@builder
def LayerScale(initial: PositiveFloat) -> Layer:
    """A learned factor for each feature, small at first, so that a deep net begins near the identity.

    Args:
        initial: of all factors.

    >>> layer = LayerScale(0.5)
    >>> print(layer.apply(layer.init(jax.random.key(0), jnp.ones(2)), jnp.ones(2)))
    [0.5 0.5]

    Source: Touvron et al. 2021, Going deeper with image transformers, section 2, arXiv:2103.17239.
    """

    def init(key, x: Float[ArrayOrShape, "*batch c"]):
        return {"scale": jnp.full(x.shape[-1:], initial, jnp.float32)}

    def apply(params, x: Float[Array, "*batch c"]):
        check_params(params, scale=x.shape[-1:])
        return x * along_batch(params["scale"], x)

    return Layer(init, apply)
