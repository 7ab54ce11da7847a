r"""What depth buys: functions that fold the line, their kinks, and how far every small shallow net stays from them."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxblocks.activations import relu
from jaxblocks.checks import require_whole
from jaxblocks.core import Layer
from jaxblocks.layers.combinators import Serial
from jaxblocks.layers.dense import Dense
from jaxblocks.theory.constructions import dense_params
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


def sawtooth(x: Float[Array, "*shape"], levels: int) -> Float[Array, "*shape"]:
    r"""The line folded again and again: :math:`f_0(x) = x,\ f_l(x) = 2\,|f_{l-1}(x)| - 2`.

    On [-2, 2] it goes up and down between -2 and 2 with :math:`2^l - 1` kinks, at the multiples of :math:`2^{2-l}`
    inside; beyond it is :math:`2^l |x| - (2^{l+1} - 2)`. Exact in floats at dyadic x.

    >>> sawtooth(jnp.array([-2.0, 0.5, 3.0]), 5)
    Array([ 2.,  2., 34.], dtype=float32)

    Source: Huszar, DeepNN lecture 3.
    """
    for _ in range(require_whole("sawtooth", "levels", levels, 0)):
        x = 2 * jnp.abs(x) - 2
    return x


def sawtooth_network(levels: int, *, param_dtype=None) -> tuple[Layer, tuple]:
    r"""The same as a deep net of width two: :math:`f_l = 2\,\mathrm{ReLU}(f_{l-1}) + 2\,\mathrm{ReLU}(-f_{l-1}) - 2`.

    With l = ``levels`` hidden layers it has 2 l rectifiers and :math:`2^l - 1` kinks; one hidden layer needs
    as many units as there are kinks. At a kink JAX gives ``relu`` the derivative 0 and ``abs`` in the recursion one of
    the two one-sided ones.

    Returns:
        A pair ``(..., 1)`` to ``(..., 1)``, and its params: 31 numbers for five levels.

    >>> net, params = sawtooth_network(5)
    >>> net.apply(params, jnp.array([0.375]))
    Array([-2.], dtype=float32)

    Source: Huszar, DeepNN lecture 3. The :math:`O(2^{depth})` kinks printed there are what folding reaches; random
    nets have about as many as units.
    """
    levels = require_whole("sawtooth_network", "levels", levels, 0)
    if not levels:
        return Serial(Dense(1)), (dense_params([[1]], [0], param_dtype),)
    fold = np.array([[2, -2], [2, -2]]), np.array([-2, 2])
    first = dense_params([[1, -1]], [0, 0], param_dtype)
    middle = [dense_params(*fold, param_dtype) for _ in range(levels - 1)]
    last = dense_params([[2], [2]], [-2], param_dtype)
    layers = [layer for _ in range(levels) for layer in (Dense(2), relu)]
    return Serial(*layers, Dense(1)), (*(p for hidden in (first, *middle) for p in (hidden, ())), last)


def triangle_network(levels: int, *, param_dtype=None) -> tuple[Layer, tuple]:
    r"""The triangle map, applied again and again, as a net.

    :math:`\Delta(x) = \mathrm{ReLU}(2\,\mathrm{ReLU}(x) - 4\,\mathrm{ReLU}(x - \tfrac12))` takes two layers.

    :math:`\Delta^k`, k = ``levels``, has 2 k layers, 3 k nodes and :math:`2^k` pieces on [0, 1], where it goes up and
    down between 0 and 1; outside it is 0. It is `triangle_wave` as a net.

    >>> net, params = triangle_network(3)
    >>> net.apply(params, jnp.array([[0.125], [0.25], [0.3125]]))[:, 0]
    Array([1. , 0. , 0.5], dtype=float32)

    Source: Telgarsky 2016, Benefits of depth in neural networks.
    """
    levels = require_whole("triangle_network", "levels", levels)
    one = (dense_params([[1, 1]], [0, -0.5], param_dtype), (), dense_params([[2], [-4]], [0], param_dtype), ())
    return Serial(*(Dense(2), relu, Dense(1), relu) * levels), one * levels


def triangle_wave(levels: int) -> PiecewiseLinear:
    r""":math:`\Delta^k`, k = ``levels``, as its breakpoints, the :math:`i / 2^k`, and its slopes, :math:`\pm 2^k`.

    >>> triangle_wave(1)(np.array([-1.0, 0.25, 0.5, 0.75]))
    array([0. , 0.5, 1. , 0.5])

    Source: Telgarsky 2016.
    """
    pieces = 2 ** require_whole("triangle_wave", "levels", levels)
    slopes = np.where(np.arange(pieces) % 2, -float(pieces), float(pieces))
    return PiecewiseLinear(np.arange(pieces + 1) / pieces, np.concatenate([[0.0], slopes, [0.0]]), 0.0)


def pieces_bound(layers: int, nodes: int) -> float:
    r"""The most pieces that a ReLU net of one input can have: :math:`(2N / L)^L`, L = ``layers``, N = ``nodes`` in all.

    >>> round(pieces_bound(3, 8), 2)  # and the triangle map of depth 3^2 + 2 has 2048
    151.7

    Source: Telgarsky 2016, Lemma 2.1.
    """
    layers, nodes = (require_whole("pieces_bound", n, v) for n, v in (("layers", layers), ("nodes", nodes)))
    return (2 * nodes / layers) ** layers


def separation_bound(levels: int, pieces: int | float) -> float:
    r"""How far every continuous function of so few pieces is from the triangle wave on [0, 1].

    .. math:: \int_0^1 |\Delta^k - g|\,dx \ge \frac18 - \frac{P + 1}{2^{k+2}},
        \qquad k = \text{levels},\ P = \text{pieces of } g \text{ on } [0, 1].

    The proof: :math:`\Delta^k` crosses 1/2 at :math:`2^k` places, :math:`2^{-k}` apart, and lies above and below in
    turn. g crosses 1/2 at most P times, so among the :math:`2^k - 1` intervals between the crossings at least
    :math:`2^k - 1 - P` see g on one side throughout, in at most P + 1 runs; in a run every second interval
    has g on the wrong side of 1/2, which costs the triangle's area, :math:`2^{-k}/4`.

    For k = L^2 + 2 and nets with at most L >= 2 layers and :math:`2^L` nodes, of which `pieces_bound` allows few
    pieces, it exceeds the 1/32 of the theorem; a constant 1/2 has 1/4.

    >>> separation_bound(2**2 + 2, pieces_bound(2, 2**2)) > 1 / 32
    True

    Source: Telgarsky 2016, as in Diehl 2023, Theorem 1.7, which prints :math:`O(2L^2)` nodes for the
    shallow class where :math:`2^L` is meant.
    """
    levels = require_whole("separation_bound", "levels", levels)
    return max(0.0, 1 / 8 - (pieces + 1) / 2 ** (levels + 2))


def separation(levels: int, net, params=(), **side) -> float:
    r"""The distance :math:`\int_0^1 |\Delta^k(x) - g(x)|\,dx` of a net g from the triangle wave, exactly.

    Both are piecewise linear, so the integral is a sum of trapezia; k = ``levels``, at most 20.

    >>> separation(11, lambda x: 0 * x + 0.5)
    0.25

    Source: Telgarsky 2016; Diehl 2023, Theorem 1.7.
    """
    if require_whole("separation", "levels", levels) > 20:
        raise ValueError(f"separation expects at most 20 levels, a million pieces, but {levels} came.")
    return triangle_wave(levels).l1_distance(to_piecewise_linear(net, params, **side), 0.0, 1.0)
