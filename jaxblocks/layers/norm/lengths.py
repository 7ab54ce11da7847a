"""Divisions by a length: that of each vector, and that of neighboring channels. Neither has params."""

import functools

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxblocks.backend.powers_of_two import divided, unit_of
from jaxblocks.backend.precision import widen
from jaxblocks.backend.quotients import Order, divide, norm, unit_vector, vanishes
from jaxblocks.checks.expectations import PositiveFloat, PositiveInt, checked
from jaxblocks.core.pairs import ArrayOrShape, Layer, builder
from jaxblocks.layers.norm.shared import negative_axes, reduced_axes

__all__ = ["LocalResponseNorm", "UnitNorm", "local_response_norm", "unit_norm"]


@checked
def unit_norm(
    x: Float[Array, "*shape"], *, axes: int | tuple[int, ...] = -1, order: Order = 2
) -> Float[Array, "*shape"]:
    r"""Vectors of length 1: $x / ‖x‖_r$, with the norm of the entries along ``axes``.

    $‖x‖_r = (∑_i |x_i|^r)^{1/r}$ with r = ``order``, a Python number >= 1; ``math.inf`` gives the largest
    $|x_i|$. Right at every scale, and without an epsilon: a vector of zeros stays 0, and the derivative there is the
    identity, a choice. For an order other than 2, so is the derivative 0 of $|x_i|$ at $x_i = 0$.

    Raises:
        ValueError: for ``order`` < 1, or axes that ``x`` lacks.
        TypeError: for ``x`` that is not floating-point.

    >>> print(unit_norm(jnp.array([[3.0, -4.0], [0.0, 0.0]])))
    [[ 0.6 -0.8]
     [ 0.   0. ]]
    >>> print(unit_norm(jnp.array([3.0, -1.0]), order=1))
    [ 0.75 -0.25]

    Source: Schroff, Kalenichenko & Philbin 2015, FaceNet (arXiv:1503.03832), for embeddings of length 1.
    """
    over = reduced_axes(x, axes)
    if order == 2:
        return unit_vector(x, over)
    wide = widen(x)
    largest = jnp.max(jnp.abs(wide), over, keepdims=True, initial=0)
    wide = divided(wide, unit_of(largest))  # the norm may be above the range, and its reciprocal below
    length = jnp.where(vanishes(largest), 1, norm(wide, over, order, keepdims=True))
    return divide(wide, jnp.broadcast_to(length, wide.shape)).astype(x.dtype)


@builder
def UnitNorm(*, axes: int | tuple[int, ...] = -1, order: Order = 2) -> Layer:
    """`unit_norm` as a layer, without params.

    >>> UnitNorm().apply((), jnp.array([3.0, 4.0]))
    Array([0.6, 0.8], dtype=float32)
    """
    over = negative_axes(axes)

    def init(key, x: Float[ArrayOrShape, "..."]):
        reduced_axes(x, over)
        return ()

    def apply(params, x: Float[Array, "..."]):
        return unit_norm(x, axes=over, order=order)

    return Layer(init, apply)


@checked
def local_response_norm(
    x: Float[Array, "*batch channels"],
    size: PositiveInt,
    *,
    alpha: PositiveFloat = 1e-4,
    beta: PositiveFloat = 0.75,
    k: PositiveFloat = 1.0,
) -> Float[Array, "*batch channels"]:
    r"""Division by the strength of neighboring channels, as in AlexNet.

    .. math::

        y_c = x_c (k + (α/n) ∑_{c' = c - ⌊n/2⌋}^{c + ⌊(n-1)/2⌋} x_{c'}^2)^{-β}

    with n = ``size`` channels, of which those that do not exist count as 0. It is that of PyTorch. (The paper has no
    $1/n$: there $α$ = 1e-4, n = 5, k = 2 are ``alpha=5e-4, size=5, k=2`` here.) Right at every scale.

    >>> x = jnp.array([1.0, 2.0, 3.0])
    >>> y = local_response_norm(x, 3, alpha=3.0, beta=1.0)
    >>> print(np.asarray(y).round(4))
    [0.1667 0.1333 0.2143]

    Source: Krizhevsky, Sutskever & Hinton 2012, ImageNet classification with deep convolutional neural networks,
    section 3.3.
    """
    wide = widen(x)
    padded = jnp.pad(wide, [(0, 0)] * (x.ndim - 1) + [(size // 2, (size - 1) // 2)])
    near = [lax.slice_in_dim(padded, i, i + x.shape[-1], axis=-1) for i in range(size)]
    # Squared in a unit of the size of the neighbors, a constant for derivatives, so that none overflows or underflows.
    unit = jnp.maximum(unit_of(functools.reduce(jnp.maximum, map(jnp.abs, near))), 1)
    strength = k / unit / unit + (alpha / size) * sum(jnp.square(divided(one, unit)) for one in near)
    return (divided(wide, unit) * strength**-beta * unit ** (1 - 2 * beta)).astype(x.dtype)


@builder
def LocalResponseNorm(
    size: PositiveInt, *, alpha: PositiveFloat = 1e-4, beta: PositiveFloat = 0.75, k: PositiveFloat = 1.0
) -> Layer:
    """`local_response_norm` as a layer, without params.

    >>> LocalResponseNorm(3, alpha=3.0, beta=1.0).apply((), jnp.array([1.0]))
    Array([0.5], dtype=float32)
    """

    def init(key, x: Float[ArrayOrShape, "*batch channels"]):
        return ()

    def apply(params, x: Float[Array, "*batch channels"]):
        return local_response_norm(x, size, alpha=alpha, beta=beta, k=k)

    return Layer(init, apply)
