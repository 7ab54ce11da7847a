r"""Dropout: of single values, of whole feature maps, of whole examples.

All are one function: draw which values to keep, and divide those by the probability of being kept, so that the
expectation is the input. They differ in the axes that share a draw.
"""

import numbers

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxblocks.checks import describe, require_floating, require_key, require_whole
from jaxblocks.core import Layer, builder, require_flag
from jaxblocks.precision import widen
from jaxblocks.sliding_windows import as_axes, as_integer

__all__ = ["Dropout", "FeatureDropout", "StochasticDepth", "dropout"]


def dropout(
    key, x: Float[Array, "*shape"], rate: float | int, axes: int | tuple[int, ...] = ()
) -> Float[Array, "*shape"]:
    r"""Values set to zero at random, the others scaled up: :math:`y = x\,m / (1 - p)`, :math:`m \sim B(1 - p)`.

    With p ``rate``, the probability of zero. The expectation of y is x, and its variance :math:`x^2 p / (1 - p)`;
    so nothing is to be scaled in evaluation.

    Args:
        key: a key; the same one draws the same m.
        x: an array.
        rate: p, at least 0 (which returns ``x``) and below 1.
        axes: those that share a draw: all values along them are kept or dropped together.

    Raises:
        ValueError: for ``rate`` outside [0, 1), or axes that ``x`` lacks.
        TypeError: for integer ``x``.

    >>> y = dropout(jax.random.key(0), jnp.ones(1000), 0.5)
    >>> sorted(set(y.tolist())), bool(450 < (y > 0).sum() < 550)
    ([0.0, 2.0], True)

    Source: Srivastava et al. 2014, Dropout (named in Diehl 2023, section 1.6), scaled while training ("inverted").
    """
    return _dropout("dropout", key, x, rate, as_axes(axes))


@builder
def Dropout(rate: float | int, *, axes: int | tuple[int, ...] = ()) -> Layer:
    r"""Dropout while training, :math:`y = x\,m / (1 - p)` with :math:`m \sim B(1 - p)`; the identity in evaluation.

    Args:
        rate: p, the probability of zero, at least 0 and below 1.
        axes: those that share a draw, best counted from the end; -2 of ``(..., time, features)`` drops a feature at
            all times ("variational" dropout).

    Side inputs of ``apply``: ``train``, a Python bool, and ``key``, needed while training.

    Raises:
        ValueError: for ``rate`` outside [0, 1), axes that ``x`` lacks, or training without a key.
        TypeError: for integer input.

    >>> layer = Dropout(0.5)
    >>> x = jnp.ones((2, 3))
    >>> bool((layer.apply((), x) == x).all())
    True
    >>> sorted(set(layer.apply((), x, train=True, key=jax.random.key(0)).ravel().tolist()))
    [0.0, 2.0]

    Source: Srivastava et al. 2014, Dropout (named in Diehl 2023, section 1.6).
    """
    return _make("Dropout", rate, axes)


@builder
def FeatureDropout(rate: float | int, *, spatial: int) -> Layer:
    r"""Dropout of whole feature maps: a channel is kept or dropped at all positions of an example.

    Neighboring pixels are so alike that ``Dropout`` of single ones takes little away.

    Args:
        rate: the probability of zero, at least 0 and below 1.
        spatial: how many axes stand between the batch and the channels: 2 for images, 1 for sequences.

    Otherwise as ``Dropout``.

    >>> y = FeatureDropout(0.5, spatial=2).apply((), jnp.ones((4, 5, 5, 3)), train=True, key=jax.random.key(0))
    >>> bool((y == y[:, :1, :1]).all())
    True

    Source: Tompson et al. 2015, Efficient object localization using convolutional networks.
    """
    whole = as_integer(spatial)
    if whole is None or whole < 1:
        raise ValueError(
            f"FeatureDropout expects spatial to be a whole number >= 1, but {spatial!r} came; "
            "without spatial axes use Dropout."
        )
    return _make("FeatureDropout", rate, tuple(range(-1 - whole, -1)))


@builder
def StochasticDepth(rate: float | int, *, spatial: int) -> Layer:
    r"""Dropout of whole examples: the last layer of a ``Residual`` that is skipped at random while training.

    ``Residual(Dense(8), relu, Dense(8), StochasticDepth(0.1, spatial=0))`` is :math:`x + m f(x) / (1 - p)` with one
    :math:`m \sim B(1 - p)` for each example, and :math:`x + f(x)` in evaluation. (The paper scales in evaluation
    instead; the expectations agree.)

    Args:
        rate: p, the probability that an example skips, at least 0 and below 1.
        spatial: how many axes stand between the batch and the channels, since all of them and the channels are one
            example: 2 for images, 1 for sequences, 0 for ``(..., features)``.

    Otherwise as ``Dropout``.

    >>> layer = StochasticDepth(0.5, spatial=1)
    >>> y = layer.apply((), jnp.ones((8, 3, 2)), train=True, key=jax.random.key(0))
    >>> bool((y == y[:, :1, :1]).all())
    True

    Source: Huang et al. 2016, Deep networks with stochastic depth.
    """
    spatial = require_whole("StochasticDepth", "spatial", spatial, least=0)
    return _make("StochasticDepth", rate, tuple(range(-1 - spatial, 0)))


def _make(kind: str, rate, axes) -> Layer:
    _require_probability(kind, rate)
    axes = as_axes(axes)

    def init(key, x):
        require_floating(kind, x=x)
        _mask_shape(kind, x, axes)
        return ()

    def apply(params, x, *, train=False, key=None):
        require_flag(kind, train=train)
        require_floating(kind, x=x)
        if not train or rate == 0:
            return x
        if key is None:
            raise ValueError(
                f"{kind} needs a key while it trains, but none came; pass "
                "apply(..., train=True, key=jax.random.key(0)), and another key at every step."
            )
        return _dropout(kind, key, x, rate, axes)

    init.__qualname__, apply.__qualname__ = f"{kind}.<locals>.init", f"{kind}.<locals>.apply"
    return Layer(init, apply)


def _dropout(where, key, x, rate, axes):
    require_floating(where, x=x)
    _require_probability(where, rate)
    shape = _mask_shape(where, x, axes)
    if rate == 0:
        return x
    require_key(where, key)
    kept = jax.random.bernoulli(key, 1 - rate, shape)
    return jnp.where(kept, (widen(x) / (1 - rate)).astype(x.dtype), 0)


def _mask_shape(where, x, axes):
    ndim = len(x.shape)
    if any(not -ndim <= a < ndim for a in axes):
        raise ValueError(
            f"{where} expects axes that x has, but axes={axes} came for x of {describe(x)}; "
            f"they run from {-ndim} to {ndim - 1}."
        )
    shared = {a % ndim for a in axes}
    return tuple(1 if a in shared else size for a, size in enumerate(x.shape))


def _require_probability(where, rate):
    if isinstance(rate, bool) or not isinstance(rate, numbers.Real) or not 0 <= rate < 1:
        raise ValueError(
            f"{where} expects rate, the probability of zero, to be at least 0 and below 1, but {rate!r} came; "
            "to keep nine values of ten write 0.1."
        )
