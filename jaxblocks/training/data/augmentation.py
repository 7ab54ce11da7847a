"""Random changes of a batch: shifts, crops, reflections and noise, and mixtures of examples with their targets.

Axis letters: ``batch``; images are ``(batch, height, width, channels)``. A key determines every draw. Those that do not
change the targets are the option ``augment=`` of `train_step`; `mixup` changes batches before the step::

    mixed = jax.jit(mixup)
    batches = (mixed(key, x, one_hot(y, 10)) for key, (x, y) in zip(keys, batches))
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Key, Num

from jaxblocks.backend.draws import random_order
from jaxblocks.backend.precision import widen
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import NonNegativeInt, PositiveFloat, PositiveInt, checked

__all__ = ["gaussian_noise", "mixup", "random_crop", "random_flip", "random_shift"]


@checked
def random_shift(
    key: Key[Array, ""], images: Num[Array, "batch height width channels"], *, pixels: NonNegativeInt
) -> Num[Array, "batch height width channels"]:
    """Shift each image by up to ``pixels`` vertically and horizontally; pixels from outside of the image are 0.

    >>> images = jnp.ones((2, 4, 4, 1))
    >>> bool((random_shift(jax.random.key(0), images, pixels=0) == images).all())
    True

    Source: Goodfellow, Bengio & Courville 2016, Deep learning, section 7.4; Diehl 2023, section 1.6 (data augmentation,
    named there).
    """
    _, height, width, _ = images.shape
    # A crop of the padded image, at a random corner, is the shift.
    padded = jnp.pad(images, ((0, 0), (pixels, pixels), (pixels, pixels), (0, 0)))
    return random_crop(key, padded, size=(height, width))


@checked
def random_crop(
    key: Key[Array, ""], images: Num[Array, "batch height width channels"], *, size: tuple[PositiveInt, PositiveInt]
) -> Num[Array, "batch height_out width_out channels"]:
    """A rectangle of ``size`` from each image, its height and width; all positions are equally likely.

    >>> random_crop(jax.random.key(0), jnp.ones((2, 6, 6, 1)), size=(4, 5)).shape
    (2, 4, 5, 1)

    Source: Krizhevsky, Sutskever, Hinton 2012, ImageNet classification with deep convolutional neural networks,
    section 4.1.
    """
    batch, height, width, channels = images.shape
    fits = size[0] <= height and size[1] <= width
    require(fits, f"size at most that of the images, {(height, width)}", tuple(size), "pad the images, as with jnp.pad")
    last = jnp.array([height - size[0] + 1, width - size[1] + 1])  # the number of positions for each corner
    corners = jax.random.randint(key, (batch, 2), 0, jnp.broadcast_to(last, (batch, 2)))
    return jax.vmap(lambda image, corner: lax.dynamic_slice(image, (*corner, 0), (*size, channels)))(images, corners)


@checked
def random_flip(
    key: Key[Array, ""], images: Num[Array, "batch height width channels"]
) -> Num[Array, "batch height width channels"]:
    """Mirror each image left to right with probability 1/2.

    >>> images = jnp.arange(4.0).reshape(2, 1, 2, 1)
    >>> sorted(random_flip(jax.random.key(0), images)[1].ravel().tolist())
    [2.0, 3.0]

    Source: Goodfellow, Bengio & Courville 2016, Deep learning, section 7.4; Diehl 2023, section 1.6 (data augmentation,
    named there).
    """
    flip = jax.random.bernoulli(key, 0.5, (images.shape[0], 1, 1, 1))
    return jnp.where(jnp.broadcast_to(flip, images.shape), images[:, :, ::-1], images)


@checked
def gaussian_noise(
    key: Key[Array, ""], x: Float[Array, "*shape"], *, scale: float | Float[Array, ""]
) -> Float[Array, "*shape"]:
    r"""Add noise to the input: $x + σ ε$ with $ε ∼ N(0, I)$.

    $σ$ is ``scale``.

    In linear regression on $N$ rows the expected squared error is that of ridge regression with penalty
    $λ = N σ^2$ for the sum over rows ($σ^2 ‖ w ‖^2$ for the mean).

    As an augmentation: ``train_step(..., augment=functools.partial(gaussian_noise, scale=0.1))``.

    >>> gaussian_noise(jax.random.key(0), jnp.ones(2), scale=0.0)
    Array([1., 1.], dtype=float32)

    Source: Bishop 1995, "Training with noise is equivalent to Tikhonov regularization"; Diehl 2023, section 1.6 (data
    augmentation, named there).
    """
    return x + jnp.asarray(scale, x.dtype) * jax.random.normal(key, x.shape, x.dtype)


@checked
def mixup(
    key: Key[Array, ""],
    x: Num[Array, "batch *inputs"],
    targets: Num[Array, "batch *classes"],
    *,
    alpha: PositiveFloat = 0.2,
) -> tuple[Float[Array, "batch *inputs"], Float[Array, "batch *classes"]]:
    r"""Mix each example with another of the batch, and their targets alike.

    $x_i ← λ_i x_i + (1 - λ_i) x_{π(i)}$, and $y$ the same, with a random permutation $π$ of the batch and
    $λ_i ∼ Beta(α, α)$ for each example. (The paper's program draws one $λ$ for each batch.)

    Args:
        key: a key.
        x: a batch of inputs.
        targets: numbers, or for labels ``one_hot(labels, classes)``.
        alpha: $α$, small for mixtures near one of both examples; 1 is uniform.

    Returns:
        The mixed inputs and targets.

    Raises:
        TypeError: for integers as inputs or labels, which have no mixture.

    >>> x, y = mixup(jax.random.key(0), jnp.array([[0.0], [10.0]]), jnp.array([0.0, 1.0]))
    >>> bool(jnp.allclose(x[:, 0], 10 * y))
    True

    Source: Zhang, Cisse, Dauphin, Lopez-Paz 2018, mixup: beyond empirical risk minimization, arXiv:1710.09412.
    """
    expected = "targets that are floating-point, since it mixes them"
    repair = "for labels pass one_hot(targets, classes)"
    require(jnp.issubdtype(targets.dtype, jnp.floating), expected, targets, repair, error=TypeError)
    expected, repair = "x to be floating-point, since it mixes them", "write x.astype(jnp.float32)"
    require(jnp.issubdtype(x.dtype, jnp.floating), expected, x, repair, error=TypeError)
    share_key, partner_key = jax.random.split(key)
    share = jax.random.beta(share_key, alpha, alpha, x.shape[:1])
    partner = random_order(partner_key, x.shape[0])
    return _mixed(share, x, partner), _mixed(share, targets, partner)


def _mixed(share, x, partner):
    """``share`` of each example and the rest of its partner."""
    wide = widen(x)
    share = jnp.broadcast_to(share.reshape(-1, *[1] * (x.ndim - 1)).astype(wide.dtype), x.shape)
    return (share * wide + (1 - share) * wide[partner]).astype(x.dtype)
