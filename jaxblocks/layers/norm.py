r"""Normalization: of inputs, of batches, of single examples. (That of weights stands in `weight_norm`.)

All compute :math:`(x - \mathrm{mean}) / \sqrt{\mathrm{var} + \epsilon}`; they differ in the axes
that the mean and the (biased) variance are taken over. For :math:`T_{bnc}` with b batch, n positions, c channels:

    batch norm       over b and n, for each c; the lecture's form over b, for each (n, c)
    layer norm       over c, for each (b, n); the lecture's form over (n, c), for each b
    group norm       over n and a group of channels, for each b
    instance norm    over n, for each (b, c)

Statistics are computed in float32 for bfloat16 and float16, in two passes (first the mean, then the mean of squared
distances from it): :math:`\mathrm{mean}(x^2) - \mathrm{mean}(x)^2` loses all digits where the mean is large.
"""

import math
from collections.abc import Callable

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from jaxblocks.checks import check_values, describe, describe_any, require_floating, require_whole
from jaxblocks.core import Layer, StatefulLayer, builder, require_flag, require_params
from jaxblocks.precision import wide_dtype, widen
from jaxblocks.sliding_windows import as_axes, channels_first

__all__ = [
    "BatchNorm",
    "GroupNorm",
    "InstanceNorm",
    "LayerNorm",
    "RMSNorm",
    "batch_norm",
    "fit_standardizer",
    "group_norm",
    "instance_norm",
    "layer_norm",
    "moments",
    "rms_norm",
    "standardize",
]


# ---- statistics, and the standardization of inputs -------------------------------------------


def moments(
    x: Float[Array, "*shape"],
    axes: int | tuple[int, ...],
    keepdims: bool = False,
    *,
    mask: Bool[Array, "..."] | None = None,
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    r"""Mean and biased variance, :math:`m = \frac1N \sum_i x_i` and :math:`v = \frac1N \sum_i (x_i - m)^2`.

    Args:
        x: an array.
        axes: those that the sums run over.
        keepdims: keep them, with size 1.
        mask: which entries of the leading axes of ``x`` are real; only these count, and what stands at the others
            is not read. Where none is real, both moments are 0.

    Returns:
        Two arrays, of float32 for half-precision ``x`` and else of its dtype.

    Raises:
        ValueError: for axes that ``x`` lacks, or a mask that does not fit its leading axes.
        TypeError: for integer ``x``.

    >>> moments(jnp.array([1.0, 2.0, 3.0, 4.0]), 0)
    (Array(2.5, dtype=float32), Array(1.25, dtype=float32))

    Source: Diehl 2023, section 1.6.
    """
    require_floating("moments", x=x)
    axes = _axes("moments", x, axes)
    mean, variance, _ = _moments("moments", x, axes, mask)
    return (mean, variance) if keepdims else (mean.squeeze(axes), variance.squeeze(axes))


def fit_standardizer(x: Float[Array, "*shape"], axes: int | tuple[int, ...] = 0) -> dict[str, Float[Array, "..."]]:
    r"""Mean and standard deviation of each feature, ``{"mean", "deviation"}``, for ``standardize``.

    Fit on the training data alone and keep the result for all other data: statistics that have seen the test data
    tell the model about them. A feature that is constant in ``x`` gets deviation 1, so it is only centered.

    Args:
        x: the training data, ``(examples, ..., features)``.
        axes: those to average over, the first ones of ``x``: 0 for statistics per feature of ``(examples,
            features)``, ``(0, 1, 2)`` for statistics per channel of images.

    Raises:
        ValueError: for axes other than the first ones, or ``x`` without entries.
        TypeError: for integer ``x``.

    >>> train, test = jnp.array([[1.0], [2.0], [3.0], [4.0]]), jnp.array([[5.0]])
    >>> fitted = fit_standardizer(train)
    >>> standardize(train, **fitted).ravel()
    Array([-1.3416407, -0.4472136,  0.4472136,  1.3416407], dtype=float32)
    >>> standardize(test, **fitted).ravel()
    Array([2.236068], dtype=float32)

    Source: Diehl 2023, section 1.6 ("Standardization of inputs").
    """
    require_floating("fit_standardizer", x=x)
    found = _axes("fit_standardizer", x, axes)
    if 0 in x.shape:
        raise ValueError(f"fit_standardizer expects examples to fit to, but {describe(x)} came; pass at least one.")
    if found != tuple(range(len(found))) or not found:
        raise ValueError(
            f"fit_standardizer expects axes to be the first ones of x, such as 0 or (0, 1), but axes={axes} came for "
            f"x of {describe(x)}; move the axes of the features to the end with jnp.moveaxis."
        )
    mean, variance = moments(x, found)
    constant = x.max(found) == x.min(found)  # its computed variance may be a rounding error
    return {"mean": mean, "deviation": jnp.where(constant, 1.0, jnp.sqrt(variance))}


def standardize(
    x: Float[Array, "*shape"], mean: Float[Array, "..."], deviation: Float[Array, "..."]
) -> Float[Array, "*shape"]:
    r"""Inputs with given statistics taken away: :math:`(x - m) / s`, with m ``mean`` and s ``deviation``.

    The statistics come from ``fit_standardizer``; their shape is that of the trailing axes of ``x``. As the first
    layer of a net: ``Serial(functools.partial(standardize, **fitted), Dense(64), ...)``.

    Raises:
        ValueError: for statistics of another shape.
        TypeError: for integer ``x``.

    >>> standardize(jnp.array([1.0, 2.0]), jnp.array([1.0, 1.0]), jnp.array([1.0, 2.0]))
    Array([0. , 0.5], dtype=float32)

    Source: Diehl 2023, section 1.6 ("Standardization of inputs").
    """
    require_floating("standardize", x=x)
    mean, deviation = _trailing("standardize", x, mean=mean, deviation=deviation)
    return ((widen(x) - mean) / deviation).astype(x.dtype)


# ---- batch norm ------------------------------------------------------------------------------


def batch_norm(
    x: Float[Array, "*shape"],
    mean: Float[Array, "..."],
    variance: Float[Array, "..."],
    scale: Float[Array, "..."] | None = None,
    bias: Float[Array, "..."] | None = None,
    epsilon: float | int = 1e-3,
) -> Float[Array, "*shape"]:
    r"""Normalization by given statistics: :math:`\gamma\,(x - m) / \sqrt{v + \epsilon} + \beta`.

    With m ``mean``, v ``variance``, :math:`\gamma` ``scale`` and :math:`\beta` ``bias``, each of the shape of the
    trailing axes of ``x``. ``BatchNorm`` is the layer that measures and keeps the statistics.

    Raises:
        ValueError: for statistics, scale or bias of another shape.
        TypeError: for integer ``x``.

    >>> batch_norm(jnp.array([[1.0], [3.0]]), jnp.array([2.0]), jnp.array([4.0]), epsilon=0.0).ravel()
    Array([-0.5,  0.5], dtype=float32)

    Source: Ioffe and Szegedy 2015, Batch normalization, algorithm 1; Diehl 2023, section 1.6.
    """
    require_floating("batch_norm", x=x)
    mean, variance, scale, bias = _trailing("batch_norm", x, mean=mean, variance=variance, scale=scale, bias=bias)
    return _normalize(x, mean, variance, scale, bias, epsilon)


@builder
def BatchNorm(
    *,
    axes: int | tuple[int, ...] | None = None,
    momentum: float | int = 0.99,
    epsilon: float | int = 1e-3,
    use_scale: bool = True,
    use_bias: bool = True,
    axis_name: str | tuple[str, ...] | None = None,
    param_dtype=jnp.float32,
) -> StatefulLayer:
    r"""Batch normalization :math:`y = \gamma\,(x - m) / \sqrt{v + \epsilon} + \beta` with running statistics as state.

    With ``train=True``, m and v are mean and biased variance of the batch, so one example moves the output of the
    others, and the running statistics move towards them. In evaluation m and v are the running statistics.
    :math:`\epsilon` stands inside the root: the output's variance is :math:`v / (v + \epsilon)`. The output has mean
    0, but not half of it is positive (unless its median is 0 too): a rectifier after it passes 37 % of an
    exponential distribution.

    Params ``{"scale": γ, "bias": β}``, 1 and 0 at the start, and state ``{"mean", "variance", "updates"}`` have the
    shape of the statistics, but for the number of ``updates``. After k updates the running mean is the average of
    the batches' means with weights :math:`p^{k-1}, \dots, p, 1` for momentum p; so is the variance. It does not
    remember how it was initialized: after one update evaluation is right already, and after many identical batches
    it equals training. PyTorch and Keras start at mean 0 and variance 1 instead, with a weight of :math:`p^k`:
    their running mean is :math:`1 - p^k` times this one. Statistics that come from there are loaded as
    ``{"mean": ..., "variance": ..., "updates": jnp.asarray(10_000)}``. (Updates are counted once for all statistics:
    one that a mask hides at first, as it can with ``axes=0``, does remember 0 and 1.)

    Args:
        axes: those that the statistics are taken over. By default all but the last, so per channel, as in Keras and
            PyTorch. The lecture's form has statistics per position and channel: ``axes=0``.
        momentum: p, the weight of the past: ``running = p * running + (1 - p) * batch`` in the long run, as in
            Keras; PyTorch's ``momentum`` is :math:`1 - p`. 0 keeps the last batch only.
        epsilon: 1e-3 as in Keras; PyTorch's is 1e-5.
        use_scale, use_bias: ``False`` for no :math:`\gamma` (Keras: ``scale``), no :math:`\beta` (Keras: ``center``).
        axis_name: of the ``vmap``, ``shard_map`` or ``pmap`` whose mapped axis is part of the batch: the statistics are
            those of the whole batch, examples of all devices counted alike. Needless in an array that ``jit`` shards.
        param_dtype: of the params; the state is float32, or float64 for params of float64.

    Side inputs of ``apply``:
        train: a Python bool.
        mask: which entries of the leading axes of ``x`` are real, boolean; the others are padding: they are read as
            zeros and do not count. A statistic of fewer than two real entries (whose variance would be 0) leaves its
            place in the state as it is; in training the output at a single entry is :math:`\beta`.

    Shapes: ``(..., features)`` to the same.

    Raises:
        ValueError: in evaluation before the first update. Where the state's values are not known (under ``jit``, and in
            ``Repeat``), the output is NaN instead. In training, where there is only one entry to average over (a
            batch of one, or under ``vmap`` without ``axis_name``): the output would not depend on ``x``. For a mask
            that does not fit, or another number of features than at ``init``.
        TypeError: for integer input.

    >>> layer = BatchNorm(momentum=0.9)
    >>> x = jnp.array([[1.0, 10.0], [3.0, 30.0]])
    >>> params, state = layer.init(jax.random.key(0), x)
    >>> y, state = layer.apply(params, state, x, train=True)
    >>> print(y.round(2).tolist(), state["mean"].tolist(), state["variance"].tolist())
    [[-1.0, -1.0], [1.0, 1.0]] [2.0, 20.0] [1.0, 100.0]

    Source: Ioffe and Szegedy 2015, Batch normalization; Diehl 2023, section 1.6, whose statistics are per (n, c)
    while the margin shows Keras' layer, which pools positions too.
    """
    if isinstance(momentum, bool) or not 0 <= momentum < 1:
        raise ValueError(f"BatchNorm expects momentum in [0, 1), the weight of the past, but {momentum!r} came.")
    names = _names(use_scale, use_bias)
    state_dtype = wide_dtype(param_dtype)
    log_momentum = math.log(momentum) if momentum else -math.inf

    def split(x):
        """The axes to average over, and those that are left: the statistics'."""
        require_floating("BatchNorm", x=x)
        if axes is None and not x.shape:
            raise ValueError(f"BatchNorm expects x with a feature axis, but {describe(x)} came; use x[..., None].")
        over = tuple(range(len(x.shape) - 1)) if axes is None else _axes("BatchNorm", x, axes)
        return over, tuple(a for a in range(len(x.shape)) if a not in over)

    def init(key, x):
        shape = tuple(x.shape[a] for a in split(x)[1])
        state = {
            "mean": jnp.zeros(shape, state_dtype),
            "variance": jnp.ones(shape, state_dtype),
            "updates": jnp.zeros((), jnp.int32),
        }
        return _make_params(names, shape, param_dtype), state

    def apply(params, state, x, *, train=False, mask=None):
        require_flag("BatchNorm", train=train)
        _require_names("BatchNorm", params, names)
        require_params("BatchNorm (its state)", state, "mean", "variance", "updates")
        over, kept = split(x)
        scale, bias, *running = (
            _weight("BatchNorm", name, values, x, kept)
            for name, values in (
                ("scale", params.get("scale") if names else None),
                ("bias", params.get("bias") if names else None),
                ("a running mean", state["mean"]),
                ("a running variance", state["variance"]),
            )
        )
        if mask is not None:
            x = jnp.where(_expand_mask("BatchNorm", mask, x), x, 0)
        if train:
            mean, variance, count = _moments("BatchNorm", x, over, mask, axis_name)
            most = math.prod(x.shape[a] for a in over) * (1 if axis_name is None else lax.psum(1, axis_name))
            if most < 2:  # with a mask, whose values may be traced, `updated` looks at what is real
                raise ValueError(
                    f"BatchNorm expects more than one entry to average over while it trains, but {describe(x)} came, "
                    f"averaged over axes {over}; pass a batch of at least two (to init_train_state as well), or under "
                    "vmap say axis_name=."
                )
            state = updated(state, mean, variance, count)
        else:
            seen = state["updates"] > 0
            check_values(
                seen,
                "BatchNorm was never updated, so there are no running statistics to evaluate with; "
                "call apply(..., train=True) on training data first, and pass on the state that it returns.",
            )
            mean, variance = (jnp.where(seen, statistic, jnp.nan) for statistic in running)
        return _normalize(x, mean, variance, scale, bias, epsilon), state

    def updated(state, mean, variance, count):
        """The running statistics with one more batch; ``count_flops`` says how many entries each of them saw."""
        updates = state["updates"] + 1
        # The weight (1 - p) / (1 - p^k) makes a weighted average of k batches; by expm1 it is exactly 1 for k = 1.
        log_past = jnp.asarray(log_momentum, state_dtype)
        weight = jnp.expm1(log_past) / jnp.expm1(updates.astype(state_dtype) * log_past)
        counts = count if isinstance(count, int) else jnp.broadcast_to(count, mean.shape).reshape(state["mean"].shape)
        enough = counts >= 2  # the variance of one entry is 0, and evaluation would divide by it
        moved = {}
        for name, batch in (("mean", mean), ("variance", variance)):
            old, batch = state[name], batch.reshape(state[name].shape).astype(state_dtype)
            moved[name] = jnp.where(enough, old + weight * (batch - old), old)
        return {**moved, "updates": jnp.where(jnp.any(enough), updates, state["updates"])}

    return StatefulLayer(init, apply)


# ---- norms of single examples ----------------------------------------------------------------


def layer_norm(
    x: Float[Array, "*shape"],
    scale: Float[Array, "..."] | None = None,
    bias: Float[Array, "..."] | None = None,
    axes: int | tuple[int, ...] = -1,
    epsilon: float | int = 1e-5,
) -> Float[Array, "*shape"]:
    r"""Layer normalization :math:`\gamma\,(x - m) / \sqrt{v + \epsilon} + \beta`, statistics over ``axes``.

    With m and v the mean and biased variance of each example over ``axes``, :math:`\gamma` ``scale`` and
    :math:`\beta` ``bias``, of the shape of ``x`` at ``axes``. Transformers normalize the features of each position,
    ``axes=-1``; the lecture all positions and features of an example, ``axes=(-2, -1)``.

    Raises:
        ValueError: for axes that ``x`` lacks, or scale or bias of another shape.
        TypeError: for integer ``x``.

    >>> print(layer_norm(jnp.array([[1.0, 3.0], [10.0, 30.0]])).round(3))
    [[-1.  1.]
     [-1.  1.]]

    Source: Ba, Kiros and Hinton 2016, Layer normalization; Diehl 2023, section 1.6 (which says "fixed batched" for
    "each example of the batch").
    """
    require_floating("layer_norm", x=x)
    axes = _axes("layer_norm", x, axes)
    scale, bias = (_weight("layer_norm", n, values, x, axes) for n, values in (("scale", scale), ("bias", bias)))
    mean, variance, _ = _moments("layer_norm", x, axes)
    return _normalize(x, mean, variance, scale, bias, epsilon)


@builder
def LayerNorm(
    *,
    axes: int | tuple[int, ...] = -1,
    epsilon: float | int = 1e-5,
    use_scale: bool = True,
    use_bias: bool = True,
    param_dtype=jnp.float32,
) -> Layer:
    r"""Layer normalization ``layer_norm`` with its params ``{"scale": γ, "bias": β}``, 1 and 0 at the start.

    Every example is normalized by itself: nothing depends on the batch, and training and evaluation are the same.

    Args:
        axes: negative, since leading axes are batch: -1 for each position's features, ``(-2, -1)`` for the lecture's
            form.
        epsilon: added to the variance, inside the root.
        use_scale, use_bias: ``False`` for no :math:`\gamma`, no :math:`\beta`.
        param_dtype: of the params.

    >>> layer = LayerNorm()
    >>> params = layer.init(jax.random.key(0), jnp.zeros((8, 2)))
    >>> print(layer.apply(params, jnp.array([1.0, 3.0])).round(3))
    [-1.  1.]

    Source: Ba, Kiros and Hinton 2016, Layer normalization; Diehl 2023, section 1.6.
    """
    axes = as_axes(axes)
    if any(a >= 0 for a in axes):
        raise ValueError(
            f"LayerNorm expects negative axes, counted from the end since leading axes are batch, but axes={axes} "
            "came; write -1 for the last axis."
        )

    def shape(x):
        return tuple(x.shape[a] for a in _axes("LayerNorm", x, axes))

    def normalize(x, scale, bias):
        return layer_norm(x, scale, bias, axes, epsilon)

    return _norm("LayerNorm", shape, normalize, _names(use_scale, use_bias), param_dtype)


def rms_norm(
    x: Float[Array, "*shape"],
    scale: Float[Array, "..."] | None = None,
    axes: int | tuple[int, ...] = -1,
    epsilon: float | int = 1e-6,
) -> Float[Array, "*shape"]:
    r"""Division by the root mean square over ``axes``: :math:`\gamma\,x / \sqrt{\mathrm{mean}(x^2) + \epsilon}`.

    Layer normalization without centering; :math:`\gamma` is ``scale``, of the shape of ``x`` at ``axes``.

    Raises:
        ValueError: for axes that ``x`` lacks, or a scale of another shape.
        TypeError: for integer ``x``.

    >>> print(rms_norm(jnp.array([[1.0, -1.0], [10.0, 10.0]])).round(3))
    [[ 1. -1.]
     [ 1.  1.]]

    Source: Zhang and Sennrich 2019, Root mean square layer normalization.
    """
    require_floating("rms_norm", x=x)
    axes = _axes("rms_norm", x, axes)
    scale = _weight("rms_norm", "scale", scale, x, axes)
    wide = widen(x)
    factor = lax.rsqrt(jnp.mean(jnp.square(wide), axes, keepdims=True) + epsilon)
    return (wide * factor if scale is None else wide * factor * scale).astype(x.dtype)


@builder
def RMSNorm(
    *, axes: int | tuple[int, ...] = -1, epsilon: float | int = 1e-6, use_scale: bool = True, param_dtype=jnp.float32
) -> Layer:
    r"""Root mean square normalization ``rms_norm`` with its params ``{"scale": γ}``, 1 at the start.

    Arguments as in ``LayerNorm``.

    >>> layer = RMSNorm()
    >>> params = layer.init(jax.random.key(0), jnp.zeros((8, 2)))
    >>> print(layer.apply(params, jnp.array([3.0, 3.0])).round(3))
    [1. 1.]

    Source: Zhang and Sennrich 2019, Root mean square layer normalization.
    """
    axes = as_axes(axes)
    if any(a >= 0 for a in axes):
        raise ValueError(
            f"RMSNorm expects negative axes, counted from the end since leading axes are batch, but axes={axes} "
            "came; write -1 for the last axis."
        )

    def shape(x):
        return tuple(x.shape[a] for a in _axes("RMSNorm", x, axes))

    def normalize(x, scale, bias):
        return rms_norm(x, scale, axes, epsilon)

    return _norm("RMSNorm", shape, normalize, _names(use_scale, False), param_dtype)


def group_norm(
    x: Float[Array, "*shape"],
    groups: int,
    spatial: int,
    scale: Float[Array, " channels"] | None = None,
    bias: Float[Array, " channels"] | None = None,
    epsilon: float | int = 1e-5,
) -> Float[Array, "*shape"]:
    r"""Group normalization :math:`\gamma\,(x - m) / \sqrt{v + \epsilon} + \beta`, statistics over groups of channels.

    The channels fall into ``groups`` of neighbors; m and v are mean and biased variance of each example over all
    positions and one group. One group is layer normalization of the whole example (with params per channel), as many
    groups as channels is instance normalization.

    Args:
        x: ``(..., *spatial, channels)``.
        groups: how many; must divide the channels.
        spatial: how many axes stand between the batch and the channels: 2 for images, 1 for sequences, 0 for none.
        scale, bias: :math:`\gamma` and :math:`\beta`, ``(channels,)``.
        epsilon: added to the variance, inside the root.

    Raises:
        ValueError: where groups do not divide the channels, or axes are missing.
        TypeError: for integer ``x``.

    >>> print(group_norm(jnp.array([1.0, 3.0, 10.0, 30.0]), groups=2, spatial=0).round(3))
    [-1.  1. -1.  1.]

    Source: Wu and He 2018, Group normalization.
    """
    return _group_norm("group_norm", x, groups, spatial, scale, bias, epsilon)


@builder
def GroupNorm(
    groups: int,
    *,
    spatial: int,
    epsilon: float | int = 1e-5,
    use_scale: bool = True,
    use_bias: bool = True,
    param_dtype=jnp.float32,
) -> Layer:
    r"""Group normalization ``group_norm`` with its params ``{"scale": γ, "bias": β}``, of shape ``(channels,)``.

    Args:
        groups: how many groups of channels; must divide their number.
        spatial: how many axes stand between the batch and the channels: 2 for images, 1 for sequences, 0 for none.
        epsilon: added to the variance, inside the root.
        use_scale, use_bias: ``False`` for no :math:`\gamma`, no :math:`\beta`.
        param_dtype: of the params.

    >>> layer = GroupNorm(2, spatial=2)
    >>> params = layer.init(jax.random.key(0), jnp.zeros((8, 5, 5, 4)))
    >>> jax.tree.map(jnp.shape, params)
    {'bias': (4,), 'scale': (4,)}

    Source: Wu and He 2018, Group normalization.
    """
    require_whole("GroupNorm", "groups", groups)
    require_whole("GroupNorm", "spatial", spatial, least=0)

    def shape(x):
        _require_groups("GroupNorm", x, groups, spatial)
        return x.shape[-1:]

    def normalize(x, scale, bias):
        return _group_norm("GroupNorm", x, groups, spatial, scale, bias, epsilon)

    return _norm("GroupNorm", shape, normalize, _names(use_scale, use_bias), param_dtype)


def instance_norm(
    x: Float[Array, "*shape"],
    spatial: int,
    scale: Float[Array, " channels"] | None = None,
    bias: Float[Array, " channels"] | None = None,
    epsilon: float | int = 1e-5,
) -> Float[Array, "*shape"]:
    r"""Instance normalization :math:`\gamma\,(x - m) / \sqrt{v + \epsilon} + \beta`, statistics over positions.

    With m and v the mean and biased variance of each channel of each example, over all its positions.

    Args:
        x: ``(..., *spatial, channels)``.
        spatial: how many axes stand between the batch and the channels: 2 for images, 1 for sequences.
        scale, bias: :math:`\gamma` and :math:`\beta`, ``(channels,)``.
        epsilon: added to the variance, inside the root.

    Raises:
        ValueError: where axes are missing, or scale or bias have another shape.
        TypeError: for integer ``x``.

    >>> print(instance_norm(jnp.array([[1.0, 10.0], [3.0, 30.0]]), spatial=1).round(3))
    [[-1. -1.]
     [ 1.  1.]]

    Source: Ulyanov, Vedaldi and Lempitsky 2016, Instance normalization.
    """
    return _instance_norm("instance_norm", x, spatial, scale, bias, epsilon)


@builder
def InstanceNorm(
    *,
    spatial: int,
    epsilon: float | int = 1e-5,
    use_scale: bool = True,
    use_bias: bool = True,
    param_dtype=jnp.float32,
) -> Layer:
    r"""Instance normalization ``instance_norm`` with its params ``{"scale": γ, "bias": β}``, of shape ``(channels,)``.

    Arguments as in ``GroupNorm``; PyTorch has no params by default, nor running statistics.

    >>> layer = InstanceNorm(spatial=2)
    >>> params = layer.init(jax.random.key(0), jnp.zeros((8, 5, 5, 4)))
    >>> jax.tree.map(jnp.shape, params)
    {'bias': (4,), 'scale': (4,)}

    Source: Ulyanov, Vedaldi and Lempitsky 2016, Instance normalization.
    """
    require_whole("InstanceNorm", "spatial", spatial)

    def shape(x):
        _require_spatial("InstanceNorm", x, spatial)
        return x.shape[-1:]

    def normalize(x, scale, bias):
        return _instance_norm("InstanceNorm", x, spatial, scale, bias, epsilon)

    return _norm("InstanceNorm", shape, normalize, _names(use_scale, use_bias), param_dtype)


# ---- what they share -------------------------------------------------------------------------


def _moments(where, x, axes, mask=None, axis_name=None):
    """Mean, variance and how many entries they are of; axes keep their places, dtype wide, axes >= 0 and in order."""
    x = widen(x)

    def total(values):
        values = values.sum(axes, keepdims=True)
        return values if axis_name is None else lax.psum(values, axis_name)

    if mask is None:
        count = math.prod(x.shape[a] for a in axes) * (1 if axis_name is None else lax.psum(1, axis_name))
        mean = total(x) / count
        return mean, total(jnp.square(x - mean)) / count, count
    mask = _expand_mask(where, mask, x)
    each = math.prod(x.shape[a] for a in axes if mask.shape[a] == 1)  # entries of x for one of the mask
    count = total(mask.astype(x.dtype)) * each
    at_least_one = jnp.maximum(count, 1)
    mean = total(jnp.where(mask, x, 0)) / at_least_one
    return mean, total(jnp.where(mask, jnp.square(x - mean), 0)) / at_least_one, count


def _normalize(x, mean, variance, scale, bias, epsilon):
    """The formula, for statistics and params that have as many axes as ``x``."""
    factor = lax.rsqrt(variance + epsilon)
    if scale is not None:
        factor = factor * scale
    y = (widen(x) - mean) * factor
    return (y if bias is None else y + bias).astype(x.dtype)


def _group_norm(where, x, groups, spatial, scale, bias, epsilon):
    require_floating(where, x=x)
    _require_groups(where, x, groups, spatial)
    grouped = x.reshape(*x.shape[:-1], groups, x.shape[-1] // groups)  # (..., *spatial, groups, channels / groups)
    axes = (*range(x.ndim - 1 - spatial, x.ndim - 1), x.ndim)
    shape = (1,) * (x.ndim - 1) + grouped.shape[-2:]
    scale, bias = (
        None if values is None else _weight(where, name, values, x, (x.ndim - 1,)).reshape(shape)
        for name, values in (("scale", scale), ("bias", bias))
    )
    mean, variance, _ = _moments(where, grouped, axes)
    return _normalize(grouped, mean, variance, scale, bias, epsilon).reshape(x.shape)


def _instance_norm(where, x, spatial, scale, bias, epsilon):
    require_floating(where, x=x)
    require_whole(where, "spatial", spatial)
    _require_spatial(where, x, spatial)
    scale, bias = (_weight(where, n, values, x, (x.ndim - 1,)) for n, values in (("scale", scale), ("bias", bias)))
    mean, variance, _ = _moments(where, x, tuple(range(x.ndim - 1 - spatial, x.ndim - 1)))
    return _normalize(x, mean, variance, scale, bias, epsilon)


def _norm(kind: str, shape: Callable, normalize: Callable, names: tuple[str, ...], param_dtype) -> Layer:
    """The pair of a norm without state: ``shape(x)`` of its params, ``normalize(x, scale, bias)``."""

    def init(key, x):
        require_floating(kind, x=x)
        return _make_params(names, shape(x), param_dtype)

    def apply(params, x):
        _require_names(kind, params, names)
        return normalize(x, *(params.get(name) if names else None for name in ("scale", "bias")))

    init.__qualname__, apply.__qualname__ = f"{kind}.<locals>.init", f"{kind}.<locals>.apply"
    return Layer(init, apply)


def _names(use_scale, use_bias):
    return ("scale",) * use_scale + ("bias",) * use_bias


def _make_params(names, shape, dtype):
    start = {"scale": jnp.ones, "bias": jnp.zeros}
    return {name: start[name](shape, dtype) for name in names} or ()


def _require_names(where, params, names):
    if names or params != ():
        require_params(where, params, *names)


def _axes(where, x, axes) -> tuple[int, ...]:
    """The axes counted from the front, in order."""
    ndim = len(x.shape)
    found = sorted(a + ndim if a < 0 else a for a in as_axes(axes))
    if len(set(found)) < len(found) or any(not 0 <= a < ndim for a in found):
        raise ValueError(
            f"{where} expects axes that x has, each of them once, but axes={axes} came for x of {describe(x)}; "
            f"they run from {-ndim} to {ndim - 1}."
        )
    return tuple(found)


def _weight(where, name, values, x, axes):
    """Values of the shape of ``x`` at ``axes``, with as many axes as ``x`` and in the dtype to compute in."""
    if values is None:
        return None
    expected = tuple(x.shape[a] for a in axes)
    if values.shape != expected:
        first = len(x.shape) > 3 and values.shape == (x.shape[1],)
        hint = " If channels come first in x, write jnp.moveaxis(x, 1, -1)." if first else ""
        raise ValueError(
            f"{where} expects {name} of shape {expected} for x of {describe(x)}, but {describe(values)} came; "
            "pass x of the size that it was made for, or params and state made by init for this x." + hint
        )
    shape = [size if a in axes else 1 for a, size in enumerate(x.shape)]
    return values.reshape(shape).astype(wide_dtype(x.dtype))


def _trailing(where, x, **named):
    """Each of the named values (``None`` passes) as ``_weight`` of the trailing axes of ``x``."""
    axes = {name: range(max(0, x.ndim - v.ndim), x.ndim) for name, v in named.items() if v is not None}
    return tuple(None if v is None else _weight(where, name, v, x, axes[name]) for name, v in named.items())


def _expand_mask(where, mask, x):
    """The mask with as many axes as ``x``."""
    if not hasattr(mask, "dtype") or mask.dtype != jnp.bool_ or mask.shape != x.shape[: mask.ndim]:
        raise ValueError(
            f"{where} expects a boolean mask of the shape of the leading axes of x, such as {x.shape[:-1]}, but "
            f"{describe_any(mask)} came for x of {describe(x)}; True is what is real, so mask.astype(bool) converts "
            "ones and zeros."
        )
    return mask.reshape(mask.shape + (1,) * (x.ndim - mask.ndim))


def _require_spatial(where, x, spatial):
    if len(x.shape) < spatial + 1:
        raise ValueError(
            f"{where} expects x with {spatial} spatial axes and one of channels, (..., *spatial, channels), but "
            f"{describe(x)} came; spatial= is the number of axes between batch and channels."
        )


def _require_groups(where, x, groups, spatial):
    require_whole(where, "groups", groups)
    require_whole(where, "spatial", spatial, least=0)
    _require_spatial(where, x, spatial)
    if x.shape[-1] % groups:
        whole = ", ".join(str(n) for n in range(1, x.shape[-1] + 1) if x.shape[-1] % n == 0)
        raise ValueError(
            f"{where} expects groups that divide the channels, but groups={groups} and x of {describe(x)} came; "
            f"{x.shape[-1]} channels can be in {whole} groups{channels_first(x, spatial)}."
        )
