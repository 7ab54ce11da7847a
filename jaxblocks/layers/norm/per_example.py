"""Norms of single examples: layer, RMS, group and instance norm."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jaxblocks.backend.powers_of_two import divided, unit_of
from jaxblocks.backend.precision import widen
from jaxblocks.backend.sliding_windows import check_spatial
from jaxblocks.backend.symbolic_sizes import at_most
from jaxblocks.checks.errors import describe, require
from jaxblocks.checks.expectations import NonNegativeInt, PositiveInt, checked
from jaxblocks.core.pairs import Layer, builder
from jaxblocks.layers.norm.shared import (
    EpsilonOrArray,
    as_number,
    names_of_params,
    negative_axes,
    norm_layer,
    reduced_axes,
    scaled_and_shifted,
    shape_at,
)
from jaxblocks.statistics import align_axes

__all__ = ["GroupNorm", "InstanceNorm", "LayerNorm", "RMSNorm", "group_norm", "instance_norm", "layer_norm", "rms_norm"]


@checked
def layer_norm(
    x: Float[Array, "*shape"],
    scale: Float[Array, "..."] | None = None,
    bias: Float[Array, "..."] | None = None,
    *,
    axes: int | tuple[int, ...] = -1,
    epsilon: EpsilonOrArray = 1e-5,
) -> Float[Array, "*shape"]:
    r"""Layer normalization $γ (x - m) / √(v + ϵ) + β$, statistics over ``axes``.

    With m and v the mean and biased variance of each example over ``axes``, $γ$ ``scale`` and $β$ ``bias``, of the
    shape of ``x`` at ``axes``. Transformers normalize the features of each position, ``axes=-1``; the lecture all
    positions and features of an example, ``axes=(-2, -1)``. In float32, deviations from the mean may be up to 1e31 /
    sqrt(n) for n entries; larger ones, whose squares overflow, give NaN. With $ϵ$ below 1e-7, or as an array, they may
    be from 1e-36 to 1e38 / n, for one more pass over the entries. Derivatives of every order are finite and exact also
    where all entries are equal, unless $ϵ = 0$: then such entries give NaN.

    Raises:
        ValueError: for no axes or axes that ``x`` lacks, or scale or bias of another shape.
        TypeError: for ``x`` that is not floating-point.

    >>> print(layer_norm(jnp.array([[1.0, 3.0], [10.0, 30.0]])).round(3))
    [[-1.  1.]
     [-1.  1.]]

    Source: Ba, Kiros and Hinton 2016, Layer normalization (arXiv:1607.06450); Diehl 2023, section 1.6 (which says
    "fixed batched" for "each example of the batch").
    """
    over = reduced_axes(x, axes)
    return _normalize_examples(x, over, over, scale, bias, epsilon=epsilon)


@builder
def LayerNorm(
    *,
    axes: int | tuple[int, ...] = -1,
    epsilon: EpsilonOrArray = 1e-5,
    use_scale: bool = True,
    use_bias: bool = True,
    dtype: DTypeLike | None = None,
    param_dtype: DTypeLike = jnp.float32,
) -> Layer:
    r"""Layer normalization ``layer_norm`` with params ``{"scale": γ, "bias": β}``, initially 1 and 0.

    Every example is normalized separately: the output does not depend on the batch, and training and evaluation agree.

    Args:
        axes: negative, since leading axes are batch: -1 for each position's features, ``(-2, -1)`` for the lecture's
            form.
        epsilon: added to the variance, inside the root.
        use_scale, use_bias: ``False`` for no $γ$, no $β$.
        dtype: of the arithmetic and the output; by default that of the input.
        param_dtype: of the params.

    >>> layer = LayerNorm()
    >>> params = layer.init(jax.random.key(0), jnp.zeros((8, 2)))
    >>> print(layer.apply(params, jnp.array([1.0, 3.0])).round(3))
    [-1.  1.]

    Source: Ba, Kiros and Hinton 2016, Layer normalization (arXiv:1607.06450); Diehl 2023, section 1.6.
    """
    normalize = partial(layer_norm, axes=negative_axes(axes), epsilon=epsilon)
    return norm_layer(lambda x: shape_at(x, axes), normalize, names_of_params(use_scale, use_bias), dtype, param_dtype)


@checked
def rms_norm(
    x: Float[Array, "*shape"],
    scale: Float[Array, "..."] | None = None,
    *,
    axes: int | tuple[int, ...] = -1,
    epsilon: EpsilonOrArray = 1e-6,
) -> Float[Array, "*shape"]:
    r"""Division by the root mean square over ``axes``: $γ x / √(mean(x^2) + ϵ)$.

    Layer normalization without centering; $γ$ is ``scale``, of the shape of ``x`` at ``axes``. The range of
    ``x``, and derivatives, are as in `layer_norm`.

    Raises:
        ValueError: for no axes or axes that ``x`` lacks, or a scale of another shape.
        TypeError: for ``x`` that is not floating-point.

    >>> print(rms_norm(jnp.array([[1.0, -1.0], [10.0, 10.0]])).round(3))
    [[ 1. -1.]
     [ 1.  1.]]

    Source: Zhang and Sennrich 2019, Root mean square layer normalization (arXiv:1910.07467).
    """
    over = reduced_axes(x, axes)
    return _normalize_examples(x, over, over, scale, None, epsilon=epsilon, center=False)


@builder
def RMSNorm(
    *,
    axes: int | tuple[int, ...] = -1,
    epsilon: EpsilonOrArray = 1e-6,
    use_scale: bool = True,
    dtype: DTypeLike | None = None,
    param_dtype: DTypeLike = jnp.float32,
) -> Layer:
    r"""Root mean square normalization ``rms_norm`` with params ``{"scale": γ}``, initially 1.

    Arguments as in ``LayerNorm``.

    >>> layer = RMSNorm()
    >>> params = layer.init(jax.random.key(0), jnp.zeros((8, 2)))
    >>> print(layer.apply(params, jnp.array([3.0, 3.0])).round(3))
    [1. 1.]

    Source: Zhang and Sennrich 2019, Root mean square layer normalization (arXiv:1910.07467).
    """
    normalize = partial(rms_norm, axes=negative_axes(axes), epsilon=epsilon)
    return norm_layer(lambda x: shape_at(x, axes), normalize, names_of_params(use_scale, False), dtype, param_dtype)


@checked
def group_norm(
    x: Float[Array, "... channels"],
    scale: Float[Array, "channels"] | None = None,
    bias: Float[Array, "channels"] | None = None,
    *,
    groups: PositiveInt,
    spatial: NonNegativeInt,
    epsilon: EpsilonOrArray = 1e-5,
) -> Float[Array, "... channels"]:
    r"""Group normalization $γ (x - m) / √(v + ϵ) + β$, statistics over groups of channels.

    Each of the ``groups`` consists of consecutive channels; m and v are mean and biased variance of each example over
    all positions and one group. One group is layer normalization of the whole example (with params per channel), one
    group per channel is instance normalization.

    Args:
        x: ``(..., *spatial, channels)``.
        scale, bias: $γ$ and $β$, ``(channels,)``.
        groups: the number of groups; must divide the channels.
        spatial: the number of axes between the batch and the channels: 2 for images, 1 for sequences, 0 for none.
        epsilon: added to the variance, inside the root.

    Raises:
        ValueError: where groups do not divide the channels, or axes are missing.
        TypeError: for ``x`` that is not floating-point.

    >>> print(group_norm(jnp.array([1.0, 3.0, 10.0, 30.0]), groups=2, spatial=0).round(3))
    [-1.  1. -1.  1.]

    Source: Wu and He 2018, Group normalization (arXiv:1803.08494).
    """
    _check_groups(x, groups, spatial)
    # Where the channels of a group are on an axis of their own, this axis is x.ndim.
    axes = (*range(x.ndim - 1 - spatial, x.ndim - 1), x.ndim)
    return _normalize_examples(x, axes, (x.ndim - 1, x.ndim), scale, bias, epsilon=epsilon, groups=groups)


@builder
def GroupNorm(
    *,
    groups: PositiveInt,
    spatial: NonNegativeInt,
    epsilon: EpsilonOrArray = 1e-5,
    use_scale: bool = True,
    use_bias: bool = True,
    dtype: DTypeLike | None = None,
    param_dtype: DTypeLike = jnp.float32,
) -> Layer:
    r"""Group normalization ``group_norm`` with its params ``{"scale": γ, "bias": β}``, of shape ``(channels,)``.

    Args:
        groups, spatial, epsilon: as in `group_norm`.
        use_scale, use_bias, dtype, param_dtype: as in `LayerNorm`.

    >>> layer = GroupNorm(groups=2, spatial=2)
    >>> params = layer.init(jax.random.key(0), jnp.zeros((8, 5, 5, 4)))
    >>> jax.tree.map(jnp.shape, params)
    {'bias': (4,), 'scale': (4,)}

    Source: Wu and He 2018, Group normalization (arXiv:1803.08494).
    """

    def shape(x):
        _check_groups(x, groups, spatial)
        return x.shape[-1:]

    normalize = partial(group_norm, groups=groups, spatial=spatial, epsilon=epsilon)
    return norm_layer(shape, normalize, names_of_params(use_scale, use_bias), dtype, param_dtype)


@checked
def instance_norm(
    x: Float[Array, "... channels"],
    scale: Float[Array, "channels"] | None = None,
    bias: Float[Array, "channels"] | None = None,
    *,
    spatial: PositiveInt,
    epsilon: EpsilonOrArray = 1e-5,
) -> Float[Array, "... channels"]:
    r"""Instance normalization $γ (x - m) / √(v + ϵ) + β$, statistics over positions.

    With m and v the mean and biased variance of each channel of each example, over all its positions.

    Args:
        x: ``(..., *spatial, channels)``.
        scale, bias: $γ$ and $β$, ``(channels,)``.
        spatial: the number of axes between the batch and the channels: 2 for images, 1 for sequences.
        epsilon: added to the variance, inside the root.

    Raises:
        ValueError: where axes are missing, or scale or bias have another shape.
        TypeError: for ``x`` that is not floating-point.

    >>> print(instance_norm(jnp.array([[1.0, 10.0], [3.0, 30.0]]), spatial=1).round(3))
    [[-1. -1.]
     [ 1.  1.]]

    Source: Ulyanov, Vedaldi and Lempitsky 2016, Instance normalization (arXiv:1607.08022).
    """
    check_spatial(x, spatial)
    positions = tuple(range(x.ndim - 1 - spatial, x.ndim - 1))
    return _normalize_examples(x, positions, (x.ndim - 1,), scale, bias, epsilon=epsilon)


@builder
def InstanceNorm(
    *,
    spatial: PositiveInt,
    epsilon: EpsilonOrArray = 1e-5,
    use_scale: bool = True,
    use_bias: bool = True,
    dtype: DTypeLike | None = None,
    param_dtype: DTypeLike = jnp.float32,
) -> Layer:
    r"""Instance normalization ``instance_norm`` with its params ``{"scale": γ, "bias": β}``, of shape ``(channels,)``.

    Args:
        spatial, epsilon: as in `instance_norm`.
        use_scale, use_bias, dtype, param_dtype: as in `LayerNorm`; PyTorch has no params by default.

    >>> layer = InstanceNorm(spatial=2)
    >>> params = layer.init(jax.random.key(0), jnp.zeros((8, 5, 5, 4)))
    >>> jax.tree.map(jnp.shape, params)
    {'bias': (4,), 'scale': (4,)}

    Source: Ulyanov, Vedaldi and Lempitsky 2016, Instance normalization (arXiv:1607.08022).
    """

    def shape(x):
        check_spatial(x, spatial)
        return x.shape[-1:]

    normalize = partial(instance_norm, spatial=spatial, epsilon=epsilon)
    return norm_layer(shape, normalize, names_of_params(use_scale, use_bias), dtype, param_dtype)


def _normalize_examples(x, axes, of_params, scale, bias, *, epsilon, center=True, groups=None):
    """The formula with the statistics of ``x`` over ``axes``, and params of the axes ``of_params``.

    Without ``center`` the mean is taken to be 0; with ``groups``, channels are split into two axes before.
    """
    usual = not isinstance(epsilon, jax.Array) and epsilon >= 1e-7
    return _jitted_examples(axes, of_params, center, groups, usual, x, scale, bias, epsilon)


# Norms of equal shapes are traced, differentiated and lowered once, and an eager call is one program.
@partial(jax.jit, static_argnums=(0, 1, 2, 3, 4))
def _jitted_examples(axes, of_params, center, groups, usual, x, scale, bias, epsilon):
    """The formula, where ``usual`` says whether epsilon is known to be at least 1e-7.

    The square of a float32 above 1.8e19 overflows. So deviations are squared in a unit of 2^40, a power of two, in
    which no digit changes; squares below 1e-14 lose digits there, which only a smaller epsilon would show: with one,
    each example has the unit of its largest deviation, which takes one more pass over it.
    """
    shape = x.shape
    if groups is not None:
        split = lambda w: w.reshape(*w.shape[:-1], groups, w.shape[-1] // groups)
        x, scale, bias = split(x), *(w if w is None else split(w) for w in (scale, bias))
    scale, bias = align_axes(x, of_params, scale=scale, bias=bias)
    if any(at_most(n, 0) for n in shape):  # a mean of no entries is NaN, and with it the gradients of the params
        return x.reshape(shape)
    wide = widen(x)
    centered = wide - wide.mean(axes, keepdims=True) if center else wide
    epsilon = as_number(epsilon, wide)
    if usual:
        # The barrier keeps the compiler from multiplying units with each other: 2^-40 four times is 0 in float32.
        unit = lax.optimization_barrier(jnp.asarray(2.0**-40, wide.dtype))
    else:
        largest = jnp.max(jnp.abs(lax.stop_gradient(centered)), axes, keepdims=True, initial=0)
        own = unit_of(jnp.maximum(largest, jnp.sqrt(epsilon)))
        unit, centered, own = jnp.ones((), wide.dtype), divided(centered, own), jnp.squeeze(own, axes)
        epsilon = divided(divided(jnp.asarray(epsilon, wide.dtype), own), own)  # a number under jax.disable_jit
    power, near_one = _variance(axes, centered, epsilon, unit)
    # The axes are added before the root, since a second derivative that composes elementwise functions
    # (`jaxblocks.ad.laplacian`) then begins anew there, at a number near 1.
    power, near_one = (jnp.expand_dims(one, axes) for one in (power, near_one))
    # First the power of two, constant for derivatives: then both factors are of moderate size, and deviations are
    # multiplied in a unit where small ones are not lost.
    return scaled_and_shifted(x, centered * (power * unit), lax.rsqrt(near_one), scale, bias).reshape(shape)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _variance(axes, centered, epsilon, unit):
    """A power of two p, constant for derivatives, and p^2 (mean(centered^2) + epsilon) unit^2, a number near 1.

    NaN for a variance that overflows, and not 0.
    """
    variance = jnp.mean(jnp.square(centered * unit), axes) + epsilon * unit * unit
    # Without mantissa bits a number is rounded to a power of two, in which no digit changes.
    power = lax.reduce_precision(lax.stop_gradient(lax.rsqrt(variance)), jnp.finfo(variance.dtype).nexp, 0)
    return power, variance * power * power


@partial(_variance.defjvp, symbolic_zeros=True)
def _push_variance(axes, primals, tangents):
    """The product of deviations and their tangents in a unit near the inverse root: it does not leave the range."""
    (centered, _, unit), (d_centered, d_epsilon, _) = primals, tangents
    power, near_one = _variance(axes, *primals)
    own = power * unit
    along = jnp.expand_dims(own, axes)
    terms = []
    if not isinstance(d_centered, SymbolicZero):
        terms.append(2 * jnp.mean((centered * along) * (d_centered * along), axes))
    if not isinstance(d_epsilon, SymbolicZero):
        terms.append(d_epsilon * own * own)
    return (power, near_one), (jnp.zeros_like(power), sum(terms))


def _check_groups(x, groups, spatial) -> None:
    check_spatial(x, spatial)
    repair = f"choose a divisor of {x.shape[-1]}; if the channels of x are first, write "
    repair += f"jnp.moveaxis(x, {len(x.shape) - 1 - spatial}, -1)"
    ok = x.shape[-1] % groups == 0
    require(ok, "groups that divide the channels", f"groups={groups} for x of {describe(x)}", repair)
