"""Random nets of infinite width as Gaussian processes."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxblocks.ad.per_example.infinite_width import kernel_of_angles
from jaxblocks.checks.expectations import checked

__all__ = ["relu_covariance"]


@checked
def relu_covariance(
    x1: Float[Array, "n1 features"], x2: Float[Array, "n2 features"] | None = None
) -> Float[Array, "n1 n2"]:
    r"""The covariance of the outputs of a random net with one infinitely wide hidden layer of rectifiers.

    For $f(x) = √(2/m) ∑_k v_k max(0, w_k · x)$ with all weights standard normal,
    $E f(x) f(x') = ‖x‖ ‖x'‖ κ_1(u)$, $κ_1(u) = (u (π - arccos u) + √(1 - u^2)) / π$,
    u the cosine of the angle between the inputs. This is the kernel of the Gaussian process of the net before training;
    ``ntk_relu`` is the kernel of its training. Where x and x' are parallel, second derivatives are infinite. Norms are
    sums of squares: in float32, second derivatives are exact for inputs from 1e-12 to 1e12.

    Args:
        x1, x2: inputs in rows; by default ``x2`` is ``x1``.

    >>> f"{relu_covariance(jnp.array([[1.0, 0.0]]), jnp.array([[0.6, 0.8]])).item():.6f}"
    '0.677548'

    Source: Cho & Saul 2009, Kernel methods for deep learning; Huszar, DeepNN lecture 3 (infinite-width networks).
    """
    # The arc-cosine kernel of degree 1.
    kappa_1 = lambda angle: (jnp.cos(angle) * (jnp.pi - angle) + jnp.sin(angle)) / jnp.pi
    return kernel_of_angles(x1, x2, kappa_1)
