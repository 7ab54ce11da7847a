"""Random changes of a batch that do not change its labels: shifts, reflections, noise. A key determines every draw.

Axis letters: ``batch``; images are ``(batch, height, width, channels)``.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Key, Num

from jaxblocks.checks import NonNegativeInt, checked

__all__ = ["gaussian_noise", "random_flip", "random_shift"]


@checked
def random_shift(
    key: Key[Array, ""], images: Num[Array, "batch height width channels"], pixels: NonNegativeInt
) -> Num[Array, "batch height width channels"]:
    """Shift each image by up to ``pixels`` vertically and horizontally; pixels from outside of the image are 0.

    >>> images = jnp.ones((2, 4, 4, 1))
    >>> bool((random_shift(jax.random.key(0), images, 0) == images).all())
    True

    Source: Diehl 2023, section 1.6 (data augmentation, named there).
    """
    batch, *shape = images.shape
    padded = jnp.pad(images, ((0, 0), (pixels, pixels), (pixels, pixels), (0, 0)))
    corners = jax.random.randint(key, (batch, 2), 0, 2 * pixels + 1)
    return jax.vmap(lambda image, corner: lax.dynamic_slice(image, (*corner, 0), shape))(padded, corners)


@checked
def random_flip(
    key: Key[Array, ""], images: Num[Array, "batch height width channels"]
) -> Num[Array, "batch height width channels"]:
    """Mirror each image left to right with probability 1/2.

    >>> images = jnp.arange(4.0).reshape(2, 1, 2, 1)
    >>> sorted(random_flip(jax.random.key(0), images)[1].ravel().tolist())
    [2.0, 3.0]

    Source: Diehl 2023, section 1.6 (data augmentation, named there).
    """
    flip = jax.random.bernoulli(key, 0.5, (images.shape[0], 1, 1, 1))
    return jnp.where(jnp.broadcast_to(flip, images.shape), images[:, :, ::-1], images)


@checked
def gaussian_noise(
    key: Key[Array, ""], x: Float[Array, "*shape"], scale: float | Float[Array, ""]
) -> Float[Array, "*shape"]:
    r"""Add noise to the input: :math:`x + \sigma \varepsilon` with :math:`\varepsilon \sim N(0, I)`.

    :math:`\sigma` is ``scale``.

    In linear regression on :math:`N` rows the expected squared error is that of ridge regression with penalty
    :math:`\lambda = N \sigma^2` for the sum over rows (:math:`\sigma^2 \lVert w \rVert^2` for the mean).

    As an augmentation: ``train_step(..., augment=lambda key, x: gaussian_noise(key, x, 0.1))``.

    >>> gaussian_noise(jax.random.key(0), jnp.ones(2), 0.0)
    Array([1., 1.], dtype=float32)

    Source: Diehl 2023, section 1.6 (data augmentation, named there); Bishop 1995, "Training with noise
    is equivalent to Tikhonov regularization".
    """
    return x + scale * jax.random.normal(key, x.shape, x.dtype)
