r"""Normalization layers over batches and over single examples. (`weight_norm` normalizes weights.)

All compute $(x - mean) / √(var + ϵ)$; they differ in the axes
of the mean and the (biased) variance. For $T_{bnc}$ with b batch, n positions, c channels:

    batch norm       over b and n, for each c; the lecture's form over b, for each (n, c)
    layer norm       over c, for each (b, n); the lecture's form over (n, c), for each b
    group norm       over n and a group of channels, for each b
    instance norm    over n, for each (b, c)

Statistics of bfloat16 and float16 are computed in float32 (`jaxblocks.statistics`).
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Literal, TypeAlias, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from jaxblocks.backend.precision import wide_dtype, widen
from jaxblocks.backend.quotients import rsqrt
from jaxblocks.backend.sliding_windows import check_spatial
from jaxblocks.checks.errors import describe, require
from jaxblocks.checks.expectations import Epsilon, NonNegativeInt, PositiveInt, Rate, check_params, checked
from jaxblocks.checks.values import check_values
from jaxblocks.core.pairs import ArrayOrShape, Layer, StatefulLayer, builder
from jaxblocks.statistics import align_axes, average, count_valid, expand_mask, mean_and_variance, sorted_axes

__all__ = [
    "BatchNorm",
    "GroupNorm",
    "InstanceNorm",
    "LayerNorm",
    "RMSNorm",
    "batch_norm",
    "group_norm",
    "instance_norm",
    "layer_norm",
    "rms_norm",
]


EpsilonOrArray: TypeAlias = Epsilon | Float[Array, ""]
"""A number, or an array of one number, which may be traced."""


# ---- batch norm ------------------------------------------------------------------------------


@checked
def batch_norm(
    x: Float[Array, "*shape"],
    mean: Float[Array, "..."],
    variance: Float[Array, "..."],
    scale: Float[Array, "..."] | None = None,
    bias: Float[Array, "..."] | None = None,
    *,
    epsilon: EpsilonOrArray = 1e-3,
) -> Float[Array, "*shape"]:
    r"""Normalization by given statistics: $γ (x - m) / √(v + ϵ) + β$.

    With m ``mean``, v ``variance``, $γ$ ``scale`` and $β$ ``bias``, each of the shape of the
    trailing axes of ``x``. The layer ``BatchNorm`` computes and stores the statistics.

    Raises:
        ValueError: for statistics, scale or bias of another shape.
        TypeError: for ``x`` that is not floating-point.

    >>> batch_norm(
    ...     jnp.array([[1.0], [3.0]]), jnp.array([2.0]), jnp.array([4.0]), epsilon=0.0
    ... ).ravel()
    Array([-0.5,  0.5], dtype=float32)

    Source: Ioffe and Szegedy 2015, Batch normalization, algorithm 1 (arXiv:1502.03167); Diehl 2023, section 1.6.
    """
    # Statistics have the shape of the last axes of x.
    axes = range(max(0, x.ndim - mean.ndim), x.ndim)
    return _normalize(x, *align_axes(x, axes, mean=mean, variance=variance, scale=scale, bias=bias), epsilon=epsilon)


@builder
def BatchNorm(
    *,
    axes: int | tuple[int, ...] | None = None,
    momentum: Rate | Float[Array, ""] = 0.99,
    epsilon: EpsilonOrArray = 1e-3,
    use_scale: bool = True,
    use_bias: bool = True,
    axis_name: str | tuple[str, ...] | None = None,
    dtype: DTypeLike | None = None,
    param_dtype: DTypeLike = jnp.float32,
) -> StatefulLayer:
    r"""Batch normalization $y = γ (x - m) / √(v + ϵ) + β$ with running statistics as state.

    With ``train=True``, m and v are mean and biased variance of the batch, so each example changes the output of the
    others, and the running statistics are updated with them. In evaluation m and v are the running statistics.
    $ϵ$ is added inside the root: the output's variance is $v / (v + ϵ)$. The output has mean
    0, but in general not median 0: for an exponential distribution 37 % of the entries are positive.

    Params ``{"scale": γ, "bias": β}``, initially 1 and 0, and state ``{"mean", "variance", "updates"}`` have the
    shape of the statistics; ``updates`` is one number. After k updates the running mean is the average of
    the batches' means with weights $p^{k-1}, …, p, 1$ for momentum p; the variance likewise. It does not
    depend on its initial value: evaluation is correct after one update, and after many identical batches
    it equals training. PyTorch and Keras start at mean 0 and variance 1 instead, with a weight of $p^k$:
    their running mean is $1 - p^k$ times this one. To load such statistics, set the state to
    ``{"mean": ..., "variance": ..., "updates": jnp.asarray(10_000)}``. (All statistics share one count of updates: a
    statistic that a mask excludes from the first updates, as with ``axes=0``, does depend on 0 and 1.)

    Args:
        axes: the axes to average over. By default all but the last (statistics per channel), as in Keras and
            PyTorch. The lecture's form has statistics per position and channel: ``axes=0``.
        momentum: p, the weight of the past: asymptotically ``running = p * running + (1 - p) * batch``, as in
            Keras; PyTorch's ``momentum`` is $1 - p$. 0 uses the last batch only.
        epsilon: 1e-3 as in Keras; PyTorch's is 1e-5. ``momentum`` and ``epsilon`` may be traced, for example under
            ``vmap``.
        use_scale, use_bias: ``False`` for no $γ$ (Keras: ``scale``), no $β$ (Keras: ``center``).
        axis_name: of the ``vmap``, ``shard_map`` or ``pmap`` whose mapped axis is part of the batch: the statistics are
            those of the whole batch, over all devices. Not needed for an array that ``jit`` shards.
        dtype: of the arithmetic and the output; by default that of the input.
        param_dtype: of the params; the state is float32, or float64 for params of float64.

    Side inputs of ``apply``:
        train: a Python bool.
        mask: True at valid entries of the leading axes of ``x``; the others are padding: they are replaced by
            zeros and excluded from the statistics. A statistic of fewer than two valid entries (whose variance would
            be 0) keeps its value in the state; in training the output at a single entry is $β$.

    Shapes: ``(..., features)`` to the same.

    Raises:
        ValueError: in evaluation before the first update. Where the state is traced (under ``jit``, and in
            ``Repeat``), the output is NaN instead. In training, where there is only one entry to average over (a
            batch of one, or under ``vmap`` without ``axis_name``): the output would not depend on ``x``. For a mask
            that does not fit, or another number of features than at ``init``.
        TypeError: for input that is not floating-point.

    >>> layer = BatchNorm(momentum=0.9)
    >>> x = jnp.array([[1.0, 10.0], [3.0, 30.0]])
    >>> params, state = layer.init(jax.random.key(0), x)
    >>> y, state = layer.apply(params, state, x, train=True)
    >>> print(y.round(2).tolist(), state["mean"].tolist(), state["variance"].tolist())
    [[-1.0, -1.0], [1.0, 1.0]] [2.0, 20.0] [1.0, 100.0]

    Source: Ioffe and Szegedy 2015, Batch normalization (arXiv:1502.03167); Diehl 2023, section 1.6, whose statistics
    are per (n, c), while its margin shows Keras' layer, which averages over positions too.
    """
    names = _names(use_scale, use_bias)
    # Statistics in at least float32: averages of many batches lose digits in half precision.
    state_dtype = wide_dtype(param_dtype)

    def split(x):
        """The axes to average over, and the remaining axes, which are those of the statistics."""
        require(axes is not None or len(x.shape) > 0, "x with a feature axis", x, "use x[..., None]")
        over = tuple(range(len(x.shape) - 1)) if axes is None else _reduced_axes(x, axes)
        return over, tuple(a for a in range(len(x.shape)) if a not in over)

    def init(key, x: Float[ArrayOrShape, "..."]):
        shape = tuple(x.shape[a] for a in split(x)[1])
        return _make_params(names, shape, param_dtype), _make_statistics(shape, state_dtype)

    def apply(params, state, x: Float[Array, "..."], *, train=False, mask: Bool[Array, "..."] | None = None):
        over, kept = split(x)
        check_params(params, **dict.fromkeys(names, (None,) * len(kept)))  # `align_axes` compares the sizes
        x = x if dtype is None else x.astype(dtype)
        running = _running_statistics(x, kept, state)
        weights = align_axes(
            x, kept, scale=params["scale"] if use_scale else None, bias=params["bias"] if use_bias else None
        )
        if mask is not None:
            # Padding may be NaN, which 0 * NaN in a masked sum would keep.
            x = jnp.where(expand_mask(mask, x), x, 0)
        if train:
            if count_valid(x, over, None, axis_name) < 2:  # `updated` handles a mask, whose values may be traced
                repair = "pass a batch of at least two (to init_train_state as well), or under vmap pass axis_name="
                require(False, f"more than one entry to average over (axes {over}) in training", x, repair)
            wide = widen(x)
            y, mean, variance = _normalize_batch(
                wide, mask, *weights, axes=over, axis_name=axis_name, epsilon=jnp.asarray(epsilon, wide.dtype)
            )
            return y.astype(x.dtype), updated(state, mean, variance, count_valid(x, over, mask, axis_name))
        return _normalize(x, *_measured(state, running), *weights, epsilon=epsilon), state

    def updated(state, mean, variance, count):
        """The running statistics after one more batch, with ``count`` entries for each statistic."""
        # The statistics of a batch have axes of size 1, those of the state do not.
        moved = _moved(state, momentum, *(each.reshape(state["mean"].shape) for each in (mean, variance)))
        counts = count if isinstance(count, int) else jnp.broadcast_to(count, mean.shape).reshape(state["mean"].shape)
        enough = counts >= 2  # the variance of one entry is 0, and evaluation would divide by it
        enough_for = {"mean": enough, "variance": enough, "updates": jnp.any(enough)}
        return {name: jnp.where(enough_for[name], moved[name], state[name]) for name in moved}

    return StatefulLayer(init, apply)


# ---- norms of single examples ----------------------------------------------------------------


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

    With m and v the mean and biased variance of each example over ``axes``, $γ$ ``scale`` and $β$
    ``bias``, of the shape of ``x`` at ``axes``. Transformers normalize the features of each position, ``axes=-1``; the
    lecture all positions and features of an example, ``axes=(-2, -1)``. In float32, deviations from the mean are valid
    up to 1e31 / sqrt(n) for n entries, their derivatives up to 1e23; larger ones, whose squares overflow, give NaN.
    Derivatives of every order are finite and exact also where all entries are equal, unless $ϵ = 0$: then
    such entries give NaN.

    Raises:
        ValueError: for no axes or axes that ``x`` lacks, or scale or bias of another shape.
        TypeError: for ``x`` that is not floating-point.

    >>> print(layer_norm(jnp.array([[1.0, 3.0], [10.0, 30.0]])).round(3))
    [[-1.  1.]
     [-1.  1.]]

    Source: Ba, Kiros and Hinton 2016, Layer normalization (arXiv:1607.06450); Diehl 2023, section 1.6 (which says
    "fixed batched" for "each example of the batch").
    """
    over = _reduced_axes(x, axes)
    return _normalize_examples(x, over, *align_axes(x, over, scale=scale, bias=bias), epsilon=epsilon)


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
    normalize = partial(layer_norm, axes=_negative_axes(axes), epsilon=epsilon)
    return _norm(lambda x: _shape_at(x, axes), normalize, _names(use_scale, use_bias), dtype, param_dtype)


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
    over = _reduced_axes(x, axes)
    (scale,) = align_axes(x, over, scale=scale)
    return _normalize_examples(x, over, scale, None, epsilon=epsilon, center=False)


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
    normalize = partial(rms_norm, axes=_negative_axes(axes), epsilon=epsilon)
    return _norm(lambda x: _shape_at(x, axes), normalize, _names(use_scale, False), dtype, param_dtype)


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
    grouped = x.reshape(*x.shape[:-1], groups, x.shape[-1] // groups)  # (..., *spatial, groups, channels / groups)
    # After the reshape the channels of a group are on axis x.ndim.
    axes = (*range(x.ndim - 1 - spatial, x.ndim - 1), x.ndim)
    # Params per channel, (channels,) to (groups, channels / groups)
    scale, bias = (w if w is None else w.reshape(grouped.shape[-2:]) for w in (scale, bias))
    weights = align_axes(grouped, (x.ndim - 1, x.ndim), scale=scale, bias=bias)
    return _normalize_examples(grouped, axes, *weights, epsilon=epsilon).reshape(x.shape)


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
        groups: the number of groups of channels; must divide their number.
        spatial: the number of axes between the batch and the channels: 2 for images, 1 for sequences, 0 for none.
        epsilon: added to the variance, inside the root.
        use_scale, use_bias: ``False`` for no $γ$, no $β$.
        dtype: of the arithmetic and the output; by default that of the input.
        param_dtype: of the params.

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
    return _norm(shape, normalize, _names(use_scale, use_bias), dtype, param_dtype)


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
    weights = align_axes(x, (x.ndim - 1,), scale=scale, bias=bias)
    return _normalize_examples(x, tuple(range(x.ndim - 1 - spatial, x.ndim - 1)), *weights, epsilon=epsilon)


@overload
def InstanceNorm(
    *,
    spatial: int,
    epsilon: EpsilonOrArray = 1e-5,
    stateful: Literal[False] = False,
    momentum: Rate | Float[Array, ""] = 0.99,
    use_scale: bool = True,
    use_bias: bool = True,
    dtype: DTypeLike | None = None,
    param_dtype: DTypeLike = jnp.float32,
) -> Layer: ...
@overload
def InstanceNorm(
    *,
    spatial: int,
    epsilon: EpsilonOrArray = 1e-5,
    stateful: Literal[True],
    momentum: Rate | Float[Array, ""] = 0.99,
    use_scale: bool = True,
    use_bias: bool = True,
    dtype: DTypeLike | None = None,
    param_dtype: DTypeLike = jnp.float32,
) -> StatefulLayer: ...
@builder
def InstanceNorm(
    *,
    spatial: PositiveInt,
    epsilon: EpsilonOrArray = 1e-5,
    stateful: bool = False,
    momentum: Rate | Float[Array, ""] = 0.99,
    use_scale: bool = True,
    use_bias: bool = True,
    dtype: DTypeLike | None = None,
    param_dtype: DTypeLike = jnp.float32,
) -> Layer | StatefulLayer:
    r"""Instance normalization ``instance_norm`` with its params ``{"scale": γ, "bias": β}``, of shape ``(channels,)``.

    Args:
        stateful: ``True`` makes a ``StatefulLayer`` with the state of `BatchNorm`, as with PyTorch's
            ``track_running_stats``: in training it normalizes by the statistics of each example and updates running
            averages of their means over the batch; in evaluation it normalizes by the running averages.
        momentum: the weight of the past in the running averages, as in `BatchNorm`; has no effect unless ``stateful``.
        spatial, epsilon, use_scale, use_bias, dtype, param_dtype: as in `GroupNorm`; PyTorch has no params by default.

    Raises:
        ValueError: where ``stateful``, in evaluation before the first update, and in training with one position.

    >>> layer = InstanceNorm(spatial=2)
    >>> params = layer.init(jax.random.key(0), jnp.zeros((8, 5, 5, 4)))
    >>> jax.tree.map(jnp.shape, params)
    {'bias': (4,), 'scale': (4,)}
    >>> layer = InstanceNorm(spatial=1, stateful=True)
    >>> x = jnp.array([[[1.0], [3.0]], [[10.0], [30.0]]])
    >>> params, state = layer.init(jax.random.key(0), x)
    >>> y, state = jax.jit(layer.apply, static_argnames="train")(
    ...     params, state, x, train=True
    ... )
    >>> print(state["mean"], state["variance"])
    [11.] [50.5]

    Source: Ulyanov, Vedaldi and Lempitsky 2016, Instance normalization (arXiv:1607.08022).
    """

    def shape(x):
        check_spatial(x, spatial)
        return x.shape[-1:]

    names = _names(use_scale, use_bias)
    stateless = _norm(shape, partial(instance_norm, spatial=spatial, epsilon=epsilon), names, dtype, param_dtype)
    if not stateful:
        return stateless
    state_dtype = wide_dtype(param_dtype)

    def init(key, x: Float[ArrayOrShape, "..."]):
        return stateless.init(key, x), _make_statistics(shape(x), state_dtype)

    def apply(params, state, x: Float[Array, "..."], *, train=False):
        check_params(params, **dict.fromkeys(names, shape(x)))
        x = x if dtype is None else x.astype(dtype)
        running = _running_statistics(x, (x.ndim - 1,), state)
        if not train:
            # In evaluation all examples share the running statistics; in training each has its own.
            weights = align_axes(x, (x.ndim - 1,), **{"scale": None, "bias": None, **dict(params)})
            return _normalize(x, *_measured(state, running), *weights, epsilon=epsilon), state
        positions = tuple(range(x.ndim - 1 - spatial, x.ndim - 1))
        several = math.prod(x.shape[a] for a in positions) > 1
        require(several, "more than one position to average over in training", x, "pass stateful=False, or larger x")
        if x.size == 0:  # no example
            return stateless.apply(params, x), state
        mean, variance = mean_and_variance(x, positions)
        variance = _finite(variance)
        # (examples, channels): the average over examples of each example's statistics
        means = (each.astype(state_dtype).reshape(-1, x.shape[-1]).mean(0) for each in (mean, variance))
        return stateless.apply(params, x), _moved(state, momentum, *means)

    return StatefulLayer(init, apply)


# ---- running statistics ----------------------------------------------------------------------


def _make_statistics(shape, dtype):
    """The state of a norm with running statistics."""
    return {"mean": jnp.zeros(shape, dtype), "variance": jnp.ones(shape, dtype), "updates": jnp.zeros((), jnp.int32)}


def _running_statistics(x, axes, state):
    """Mean and variance of the state, with as many axes as ``x``."""
    made = isinstance(state, dict) and state.keys() == {"mean", "variance", "updates"}
    require(made, "a state of mean, variance and updates", state, "pass the one that init or the last apply returned")
    return align_axes(x, axes, mean=state["mean"], variance=state["variance"])


def _measured(state, running):
    """The running statistics; NaN before the first update, where values are not concrete."""
    measured = state["updates"] > 0
    check_values(
        measured,
        "running statistics to evaluate with, got a state that was never updated; call "
        "apply(..., train=True) on training data first, and use the state that it returns",
    )
    return [jnp.where(measured, statistic, jnp.nan) for statistic in running]


def _finite(variance):
    """NaN for a variance that overflows; divided by infinity, outputs would be 0."""
    return jnp.where(jnp.isinf(variance), jnp.nan, variance)


def _moved(state, momentum, mean, variance):
    """The running statistics after one more batch.

    Batch k has the weight (1 - p) / (1 - p^k) in their weighted average; by expm1 it is exactly 1 for k = 1.
    """
    dtype, updates = state["mean"].dtype, state["updates"] + 1
    # A traced momentum cannot be read by math.log.
    if isinstance(momentum, jax.Array):
        log_past = jnp.log(momentum.astype(dtype))
    else:  # in double precision
        log_past = jnp.asarray(math.log(momentum) if momentum else -math.inf, dtype)
    weight = jnp.expm1(log_past) / jnp.expm1(updates.astype(dtype) * log_past)
    # A weighted average as a step towards the batch; with the weight 1 the initial value drops out.
    move = lambda old, batch: old + weight * (batch.astype(dtype) - old)
    return {"mean": move(state["mean"], mean), "variance": move(state["variance"], variance), "updates": updates}


# ---- shared functions ------------------------------------------------------------------------


def _normalize(x, mean, variance, scale, bias, *, epsilon):
    """The formula, for statistics and params with the rank of ``x``."""
    return _affine(x, widen(x) - mean, rsqrt(variance + _as_number(epsilon, variance)), scale, bias)


def _normalize_batch(x, mask, scale, bias, *, axes, axis_name, epsilon):
    """The formula with the statistics of ``x`` over ``axes``, and these statistics.

    The derivative rules of its two parts contain no sum over a mapped axis: JAX evaluates a rule where the derivative
    is taken, which may be outside of the `vmap` that has the name.
    """
    mean = average(x, axes, mask, axis_name)
    variance = _finite(average(_squared_deviation(x, mean), axes, mask, axis_name))
    return _normalize_by(x, mean, variance, scale, bias, epsilon), mean, variance


@jax.custom_jvp
def _squared_deviation(x, mean):
    return jnp.square(x - mean)


@_squared_deviation.defjvp
def _push_squared_deviation(primals, tangents):
    """Along the mean, the average of the derivative is 0 (deviations from a mean), so this part is left out."""
    (x, mean), (d_x, _) = primals, tangents
    return _squared_deviation(x, mean), 2 * (x - mean) * d_x


@jax.custom_jvp
def _normalize_by(x, mean, variance, scale, bias, epsilon):
    return _normalize(x, mean, variance, scale, bias, epsilon=epsilon)


@_normalize_by.defjvp
def _push_normalize_by(primals, tangents):
    r"""With $c = x - m$ and $r = 1/√(v + ϵ)$,

    .. math::

        dy = γ r (dx - dm) + c (r dγ - (1/2) γ r^3 (dv + dϵ)) + dβ .

    In this order the transpose sums $ȳ$ and $c ȳ$ over entries, once for all of its terms. The
    derivative of the formula has three more sums of products, which are slow on CPU.
    """
    (x, mean, variance, scale, _, epsilon), (d_x, d_mean, d_variance, d_scale, d_bias, d_epsilon) = primals, tangents
    centered, root = x - mean, rsqrt(variance + epsilon)
    factor = root if scale is None else root * scale
    # The change of the variance first, which has the size of 1 / root^2: root^3 alone may underflow.
    of_centered = -factor * (root * (root * (d_variance + d_epsilon))) / 2
    of_centered = of_centered if scale is None else of_centered + root * d_scale
    constant = -factor * d_mean if d_bias is None else d_bias - factor * d_mean
    return _normalize_by(*primals), factor * d_x + centered * of_centered + constant


def _normalize_examples(x, axes, scale, bias, *, epsilon, center=True):
    """The formula with the statistics of ``x`` over ``axes``; without ``center`` the mean is taken to be 0.

    The square of a float32 above 1.8e19 overflows. So deviations are squared in a unit of 2^40, a power of two, in
    which no digit changes; squares below 1e-14 lose digits there, which only a small epsilon would show.
    """
    wide = widen(x)
    centered = wide - wide.mean(axes, keepdims=True) if center else wide
    # Float64 has the range for the square.
    natural = wide.dtype != jnp.float32 or (not isinstance(epsilon, jax.Array) and epsilon < 1e-7)
    unit = 1.0 if natural else 2.0**-40  # the scale 2^-40 of deviations cancels in the result
    centered = centered if natural else centered * unit
    variance = jnp.mean(jnp.square(centered), axes) + _as_number(epsilon, wide) * unit**2
    return _affine(x, centered, _inverse_root(variance, axes), scale, bias)


def _inverse_root(variance, axes):
    """1 / sqrt(variance) with ``axes`` of size 1 added; NaN for a variance that overflows, and not 0.

    Derivatives of the root are taken near 1, where they neither overflow nor vanish: the variance is multiplied by the
    square of a power of two, constant for derivatives. The axes are added in between, since a second derivative that
    composes elementwise functions (`jaxblocks.ad.laplacian`) then begins anew there, at a number near 1.
    """
    number = jnp.finfo(variance.dtype)
    # Without mantissa bits a number is rounded to a power of two, in which no digit changes.
    part = lax.reduce_precision(lax.stop_gradient(lax.rsqrt(variance)), number.nexp, 0)
    near_one, part = (jnp.expand_dims(each, axes) for each in (variance * part * part, part))
    return lax.rsqrt(near_one) * part


def _affine(x, centered, factor, scale, bias):
    y = centered * (factor if scale is None else factor * scale)
    return (y if bias is None else y + bias).astype(x.dtype)


def _as_number(epsilon, like):
    return epsilon.astype(like.dtype) if isinstance(epsilon, jax.Array) else epsilon


def _norm(shape: Callable[..., tuple], normalize: Callable, names: tuple[str, ...], dtype, param_dtype) -> Layer:
    """The pair of a norm without state: ``shape(x)`` of its params, ``normalize(x, scale=..., bias=...)``."""

    def init(key, x: Float[ArrayOrShape, "..."]):
        return _make_params(names, shape(x), param_dtype)

    def apply(params, x: Float[Array, "..."]):
        check_params(params, **dict.fromkeys(names, shape(x)))
        return normalize(x if dtype is None else x.astype(dtype), **dict(params))

    return Layer(init, apply)


def _names(use_scale, use_bias):
    return ("scale",) * use_scale + ("bias",) * use_bias


def _make_params(names, shape, dtype):
    start = {"scale": jnp.ones, "bias": jnp.zeros}
    # Without params, an empty tuple, as in layers that have none.
    return {name: start[name](shape, dtype) for name in names} or ()


def _shape_at(x, axes):
    return tuple(x.shape[a] for a in sorted_axes(x, axes))


def _reduced_axes(x, axes) -> tuple[int, ...]:
    """The axes counted from the front, in order; at least one."""
    found = sorted_axes(x, axes)
    require(len(found) > 0, "at least one axis to average over", f"axes={axes}", "write axes=-1 for the features")
    return found


def _negative_axes(axes) -> tuple[int, ...]:
    found = tuple(np.atleast_1d(axes).tolist())
    negative = found and all(type(a) is int and a < 0 for a in found)
    require(negative, "negative axes, since leading axes are batch", f"axes={axes!r}", "write -1 for the last axis")
    return found


def _check_groups(x, groups, spatial) -> None:
    check_spatial(x, spatial)
    repair = f"choose a divisor of {x.shape[-1]}; if the channels of x are first, write "
    repair += f"jnp.moveaxis(x, {len(x.shape) - 1 - spatial}, -1)"
    ok = x.shape[-1] % groups == 0
    require(ok, "groups that divide the channels", f"groups={groups} for x of {describe(x)}", repair)
