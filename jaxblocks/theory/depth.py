r"""Depth separation: functions that fold the line, their kinks, and their distance from every small shallow net."""

import math
from fractions import Fraction
from typing import Annotated, Any

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PyTree

from jaxblocks.activations import relu
from jaxblocks.checks.expectations import NonNegativeFloat, NonNegativeInt, PositiveInt, Range, checked
from jaxblocks.core.pairs import Layer, LayerLike
from jaxblocks.theory.explicit_weights import explicit_mlp
from jaxblocks.theory.piecewise_linear import PiecewiseLinear, to_piecewise_linear

__all__ = [
    "pieces_bound",
    "sawtooth",
    "sawtooth_network",
    "separation",
    "separation_bound",
    "triangle_network",
    "triangle_wave",
]


@checked
def sawtooth(x: Float[Array, "*shape"], levels: NonNegativeInt) -> Float[Array, "*shape"]:
    r"""The sawtooth function, which folds the line repeatedly: $f_0(x) = x, f_l(x) = 2 |f_{l-1}(x)| - 2$.

    On [-2, 2] it alternates between -2 and 2 with $2^l - 1$ kinks, at the multiples of $2^{2-l}$ inside of
    the interval. Outside it is $2^l |x| - (2^{l+1} - 2)$. It is exact in floating point for dyadic x.

    >>> sawtooth(jnp.array([-2.0, 0.5, 3.0]), 5)
    Array([ 2.,  2., 34.], dtype=float32)

    Source: Telgarsky 2016, Benefits of depth in neural networks (arXiv:1602.04485); Huszar, DeepNN lecture 3.
    """
    for _ in range(levels):
        x = 2 * jnp.abs(x) - 2
    return x


@checked
def sawtooth_network(levels: NonNegativeInt, *, param_dtype: DTypeLike | None = None) -> tuple[Layer, tuple]:
    r"""The function `sawtooth` as a deep net of width two.

    .. math::

        f_l = 2 ReLU(f_{l-1}) + 2 ReLU(-f_{l-1}) - 2

    With l = ``levels`` hidden layers it has 2 l rectifiers and $2^l - 1$ kinks; a net with one hidden layer needs
    one unit for each kink. At a kink the derivative of ``relu`` in JAX is 0; the derivative of ``abs`` in the recursion
    is one of the two one-sided derivatives.

    Returns:
        A pair ``(..., 1)`` to ``(..., 1)``, and its params: 31 numbers for five levels.

    >>> net, params = sawtooth_network(5)
    >>> net.apply(params, jnp.array([0.375]))
    Array([-2.], dtype=float32)

    Source: random nets have about as many kinks as units; Huszar, DeepNN lecture 3. The $O(2^{depth})$ kinks given
    there are attained by folding.
    """
    if not levels:
        return explicit_mlp(([[1]], [0]), param_dtype=param_dtype)
    # The output 2 h_1 + 2 h_2 - 2 of a level and the inputs z, -z of the next one are one affine map.
    fold = [[2, -2], [2, -2]], [-2, 2]
    maps = ([[1, -1]], [0, 0]), *[fold] * (levels - 1), ([[2], [2]], [-2])
    return explicit_mlp(*maps, param_dtype=param_dtype)


@checked
def triangle_network(levels: PositiveInt, *, param_dtype: DTypeLike | None = None) -> tuple[Layer, tuple]:
    r"""The iterated triangle map as a net.

    $Δ(x) = ReLU(2 ReLU(x) - 4 ReLU(x - 1/2))$ takes two layers.

    $Δ^k$, k = ``levels``, has 2 k layers, 3 k nodes and $2^k$ pieces on [0, 1], where it alternates
    between 0 and 1; outside it is 0. It is `triangle_wave` as a net.

    >>> net, params = triangle_network(3)
    >>> net.apply(params, jnp.array([[0.125], [0.25], [0.3125]]))[:, 0]
    Array([1. , 0. , 0.5], dtype=float32)

    Source: Telgarsky 2016, Benefits of depth in neural networks, arXiv:1602.04485.
    """
    one = ([[1, 1]], [0, -0.5]), ([[2], [-4]], [0])
    return explicit_mlp(*one * levels, last_activation=relu, param_dtype=param_dtype)


@checked
def triangle_wave(levels: PositiveInt) -> PiecewiseLinear:
    r"""The function $Δ^k$, k = ``levels``, with breakpoints $i / 2^k$ and slopes $± 2^k$.

    >>> triangle_wave(1)(np.array([-1.0, 0.25, 0.5, 0.75]))
    array([0. , 0.5, 1. , 0.5])

    Source: Telgarsky 2016, arXiv:1602.04485.
    """
    pieces = 2**levels
    # Slopes alternate, +2^k first; the function is 0 outside of [0, 1].
    slopes = np.where(np.arange(pieces) % 2, -float(pieces), float(pieces))
    return PiecewiseLinear(np.arange(pieces + 1) / pieces, np.concatenate([[0.0], slopes, [0.0]]), 0.0)


@checked
def pieces_bound(layers: PositiveInt, nodes: PositiveInt) -> float:
    r"""An upper bound on the number of pieces of a ReLU net of one input: $(2N / L)^L$.

    Args:
        layers: L.
        nodes: N, the number of nodes of all layers together.

    >>> round(pieces_bound(3, 8), 2)  # the triangle map of depth 3^2 + 2 has 2048
    151.7

    Source: Telgarsky 2016, Lemma 2.1, arXiv:1602.04485.
    """
    try:
        return (2 * nodes / layers) ** layers
    except OverflowError:  # above the range of float64
        return math.inf


@checked
def separation_bound(levels: PositiveInt, pieces: NonNegativeFloat) -> float:
    r"""A lower bound on the distance of every function with a given number of pieces from the triangle wave on [0, 1].

    .. math::

        ∫_0^1 |Δ^k - g| dx ≥ 1/8 - (P + 1) / 2^{k+2},
        k = levels, P = pieces of g on [0, 1].

    Proof: $Δ^k$ crosses 1/2 at $2^k$ points, $2^{-k}$ apart, and is alternately above and below.
    g crosses 1/2 at most P times, so in at least $2^k - 1 - P$ of the $2^k - 1$ intervals between the
    crossings g stays on one side. These intervals form at most P + 1 runs. In every second interval of a run, g is on
    the opposite side of 1/2, which adds at least the area of the triangle, $2^{-k}/4$.

    For k = L^2 + 2 and nets with at most L >= 2 layers and $2^L$ nodes, whose number of pieces is at most
    `pieces_bound`, it exceeds the 1/32 of the theorem; the distance of the constant 1/2 is 1/4.

    Args:
        levels: k.
        pieces: P.

    >>> separation_bound(2**2 + 2, pieces_bound(2, 2**2)) > 1 / 32
    True

    Source: Telgarsky 2016, arXiv:1602.04485, as in Diehl 2023, Theorem 1.7, which prints $O(2L^2)$ nodes for the
    shallow class in place of $2^L$.
    """
    # As a fraction, since 2^k leaves float64 from k = 1024 on; with 2^k pieces there is no bound.
    pieces = pieces if isinstance(pieces, int) else float(pieces)
    lost = Fraction(min(pieces, 2**levels) + 1) / 2 ** (levels + 2)
    return float(max(0, Fraction(1, 8) - lost))


@checked
def separation(levels: Annotated[int, Range(1, most=20)], net: LayerLike, params: PyTree = (), **side: Any) -> float:
    r"""The exact distance $∫_0^1 |Δ^k(x) - g(x)| dx$ of a net g from the triangle wave.

    Both are piecewise linear, so the integral is a sum of areas of trapezoids.

    Args:
        levels: k, at most 20 (a million pieces).
        net, params: a net of one input, as for `to_piecewise_linear`.
        side: side inputs, as for ``apply``.

    >>> separation(11, lambda x: 0 * x + 0.5)
    0.25

    Source: Telgarsky 2016, arXiv:1602.04485; Diehl 2023, Theorem 1.7.
    """
    return triangle_wave(levels).l1_distance(to_piecewise_linear(net, params, **side), 0.0, 1.0)
