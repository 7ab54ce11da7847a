r"""Dropout of single values, of feature maps and of examples.

All variants draw a random mask of values to keep. They divide these by the probability of being kept, so that the
expectation is the input, and differ in the axes that share a draw. `alpha_dropout` keeps mean and variance instead.
"""

from collections.abc import Callable
from typing import cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Inexact, Key

from jaxblocks.backend.precision import wide_dtype, widen
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import NonNegativeInt, PositiveInt, Rate, checked
from jaxblocks.core.pairs import ArrayOrShape, Layer, builder
from jaxblocks.probabilities import Share
from jaxblocks.statistics import sorted_axes

__all__ = ["AlphaDropout", "Dropout", "FeatureDropout", "StochasticDepth", "alpha_dropout", "dropout"]


@checked
def dropout(
    key: Key[Array, ""], x: Inexact[Array, "*shape"], rate: Share, *, axes: int | tuple[int, ...] = ()
) -> Inexact[Array, "*shape"]:
    r"""Set random values to zero and scale up the others: $y = x m / (1 - p)$, $m ∼ B(1 - p)$.

    Here p is ``rate``, the probability of zero. The expectation of y is x, and its variance $x^2 p / (1 - p)$;
    so evaluation needs no scaling.

    Args:
        key: a key; the same key gives the same m.
        x: an array; a complex value is kept or dropped whole.
        rate: p, from 0 (which returns ``x``) to 1 (which returns zeros); a number, or an array of one number, which may
            be traced (then it is not checked).
        axes: the axes that share a draw: all values along them are kept or dropped together.

    Raises:
        ValueError: for ``rate`` outside [0, 1], or axes that ``x`` lacks.
        TypeError: for ``x`` that is neither floating-point nor complex.

    >>> y = dropout(jax.random.key(0), jnp.ones(1000), 0.5)
    >>> sorted(set(y.tolist())), bool(450 < (y > 0).sum() < 550)
    ([0.0, 2.0], True)

    Source: Srivastava et al. 2014, Dropout (named in Diehl 2023, section 1.6), scaled in training ("inverted").
    """
    shared = sorted_axes(x, axes)
    # A rate in an array may be traced, where its value cannot decide which program runs.
    if not isinstance(rate, jax.Array) and rate == 0:
        return x
    keep = _keep_probability(x, rate)
    # Divided in float32 for half precision: rounding 1 / (1 - p) to few digits would shift the expectation.
    wide = widen(x)
    # A rate of 1 keeps nothing, and the quotient, which is then not used, must have a finite derivative.
    divisor = jnp.where(keep == 0, 1, keep).astype(wide.dtype) if isinstance(keep, jax.Array) else keep or 1
    return jnp.where(_kept(key, x, keep, shared), (wide / divisor).astype(x.dtype), 0)


_SELU_LIMIT = -1.7580993408473766  # -lambda alpha, the value of selu at minus infinity


@checked
def alpha_dropout(
    key: Key[Array, ""], x: Float[Array, "*shape"], rate: Rate | Float[Array, ""], *, axes: int | tuple[int, ...] = ()
) -> Float[Array, "*shape"]:
    r"""Dropout for nets of `selu`: random values become its limit $α'$, and mean 0 and variance 1 are kept.

    $y = a (x m + α' (1 - m)) + b$ with $m ∼ B(q)$, $q = 1 - p$, p = ``rate``,
    $α' = -λ α = -1.7581$, the value of SELU at minus infinity, and

    .. math::

        a = (q + α'^2 q (1 - q))^{-1/2},
        b = -a (1 - q) α'

    Args:
        key, x, rate, axes: as in `dropout`.

    Raises:
        ValueError: for ``rate`` outside [0, 1), or axes that ``x`` lacks.
        TypeError: for ``x`` that is not floating-point.

    >>> x = jax.random.normal(jax.random.key(0), (100_000,))
    >>> y = alpha_dropout(jax.random.key(1), x, 0.2)
    >>> print(f"{abs(y.mean()):.2f} {y.var():.2f}")
    0.00 1.00

    Source: Klambauer, Unterthiner, Mayr, Hochreiter 2017, Self-normalizing neural networks, arXiv:1706.02515.
    """
    shared = sorted_axes(x, axes)
    if not isinstance(rate, jax.Array) and rate == 0:
        return x
    keep = _keep_probability(x, rate)
    # a and b restore mean 0, a (1 - keep) alpha' + b = 0, and variance 1, a^2 keep (1 + (1 - keep) alpha'^2) = 1.
    a = (keep * (1 + (1 - keep) * _SELU_LIMIT**2)) ** -0.5
    b = -a * (1 - keep) * _SELU_LIMIT
    return jnp.where(_kept(key, x, keep, shared), a * widen(x) + b, a * _SELU_LIMIT + b).astype(x.dtype)


def _keep_probability(x, rate):
    """1 - rate: a number, or an array in the dtype of the intermediate results; for complex x that of real parts."""
    return 1 - rate.astype(jnp.finfo(wide_dtype(x.dtype)).dtype) if isinstance(rate, jax.Array) else 1.0 - rate


def _kept(key, x, keep, shared):
    """The mask of the values to keep, with one draw along the shared axes."""
    # An axis of size 1 in the draw, which jnp.where broadcasts: one decision for all values along it.
    shape = tuple(1 if a in shared else size for a, size in enumerate(x.shape))
    return jax.random.bernoulli(key, keep, shape)


@builder
def Dropout(rate: Share, *, axes: int | tuple[int, ...] = ()) -> Layer:
    r"""Dropout in training, $y = x m / (1 - p)$ with $m ∼ B(1 - p)$; the identity in evaluation.

    Complex values are dropped whole.

    Args:
        rate: p, the probability of zero, from 0 to 1; an array of one number may be traced (then it is not checked).
        axes: the axes that share a draw, best counted from the end; -2 of ``(..., time, features)`` drops a feature
            at all times ("variational" dropout).

    Side inputs of ``apply``: ``train``, a Python bool, and ``key``, needed in training.

    Raises:
        ValueError: for ``rate`` outside [0, 1], axes that ``x`` lacks, or training without a key.
        TypeError: for input that is neither floating-point nor complex.

    >>> layer = Dropout(0.5)
    >>> x = jnp.ones((2, 3))
    >>> bool((layer.apply((), x) == x).all())
    True
    >>> sorted(set(layer.apply((), x, train=True, key=jax.random.key(0)).ravel().tolist()))
    [0.0, 2.0]

    Source: Srivastava et al. 2014, Dropout (named in Diehl 2023, section 1.6).
    """
    return _dropout_of(rate, axes)


@builder
def FeatureDropout(rate: Share, *, spatial: PositiveInt) -> Layer:
    r"""Dropout of whole feature maps: a channel is kept or dropped at all positions of an example.

    Adjacent pixels are so similar that ``Dropout`` of single values removes little information.

    Args:
        rate: the probability of zero, from 0 to 1.
        spatial: the number of axes between the batch and the channels: 2 for images, 1 for sequences.

    Otherwise as ``Dropout``; without spatial axes use ``Dropout``.

    >>> layer, x = FeatureDropout(0.5, spatial=2), jnp.ones((4, 5, 5, 3))
    >>> y = layer.apply((), x, train=True, key=jax.random.key(0))
    >>> bool((y == y[:, :1, :1]).all())
    True

    Source: Tompson et al. 2015, Efficient object localization using convolutional networks (arXiv:1411.4280).
    """
    return _dropout_of(rate, tuple(range(-1 - spatial, -1)))


@builder
def AlphaDropout(rate: Rate | Float[Array, ""], *, axes: int | tuple[int, ...] = ()) -> Layer:
    r"""`alpha_dropout` in training, the identity in evaluation: the dropout of nets whose activation is `selu`.

    Args:
        rate: as in `Dropout`, but below 1: what keeps no value has no variance.
        axes: as in `Dropout`.

    Otherwise as ``Dropout``.

    >>> net = Serial(Dense(8), selu, AlphaDropout(0.1), Dense(1))
    >>> params = net.init(jax.random.key(0), jnp.zeros(3))
    >>> apply = jax.jit(net.apply, static_argnames="train")
    >>> apply(params, jnp.zeros(3), train=True, key=jax.random.key(1)).shape
    (1,)

    Source: Klambauer, Unterthiner, Mayr, Hochreiter 2017, Self-normalizing neural networks, arXiv:1706.02515.
    """
    return _dropout_of(rate, axes, alpha_dropout)


@builder
def StochasticDepth(rate: Share, *, spatial: NonNegativeInt) -> Layer:
    r"""Dropout of whole examples, as the last layer of a ``Residual`` that is skipped at random in training.

    ``Residual(Dense(8), relu, Dense(8), StochasticDepth(0.1, spatial=0))`` is $x + m f(x) / (1 - p)$ with one
    $m ∼ B(1 - p)$ for each example, and $x + f(x)$ in evaluation. (The paper scales in evaluation
    instead; the expectations agree.)

    Args:
        rate: p, the probability that an example is dropped, from 0 to 1.
        spatial: the number of axes between the batch and the channels: 2 for images, 1 for sequences, 0 for
            ``(..., features)``. These axes and the channels form one example.

    Otherwise as ``Dropout``.

    >>> layer = StochasticDepth(0.5, spatial=1)
    >>> y = layer.apply((), jnp.ones((8, 3, 2)), train=True, key=jax.random.key(0))
    >>> bool((y == y[:, :1, :1]).all())
    True

    Source: Huang et al. 2016, Deep networks with stochastic depth (arXiv:1603.09382).
    """
    return _dropout_of(rate, tuple(range(-1 - spatial, 0)))


def _dropout_of(rate: Share, axes: int | tuple[int, ...], drop: Callable = dropout) -> Layer:
    """The layer that is ``drop`` in training and the identity in evaluation."""

    def init(key, x: Inexact[ArrayOrShape, "..."]):
        sorted_axes(x, axes)  # no params; wrong axes fail here and not at the first training step
        return ()

    def apply(params, x: Inexact[Array, "..."], *, train=False, key=None):
        if not train or (not isinstance(rate, jax.Array) and rate == 0):
            return x
        repair = "pass apply(..., train=True, key=jax.random.key(0)), and another key at every step"
        require(key is not None, "a key in training", "none", repair)
        return drop(cast(Array, key), x, rate, axes=axes)

    return Layer(init, apply)
