"""Batch norm: statistics of the batch in training, running statistics in evaluation."""

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from jaxblocks.backend.linear_maps import in_dtype
from jaxblocks.backend.precision import wide_dtype, widen
from jaxblocks.backend.quotients import rsqrt
from jaxblocks.backend.symbolic_sizes import at_most
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import Rate, check_params, checked
from jaxblocks.core.pairs import ArrayOrShape, StatefulLayer, builder
from jaxblocks.layers.norm.running_statistics import make_statistics, measured_by, moved_by, running_statistics
from jaxblocks.layers.norm.shared import EpsilonOrArray, make_params, names_of_params, normalized, reduced_axes
from jaxblocks.statistics import align_axes, average, count_valid, expand_mask

__all__ = ["BatchNorm", "batch_norm"]


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

    >>> x, mean, variance = jnp.array([[1.0], [3.0]]), jnp.array([2.0]), jnp.array([4.0])
    >>> batch_norm(x, mean, variance, epsilon=0.0).ravel()
    Array([-0.5,  0.5], dtype=float32)

    Source: Ioffe and Szegedy 2015, Batch normalization, algorithm 1 (arXiv:1502.03167); Diehl 2023, section 1.6.
    """
    axes = range(max(0, x.ndim - mean.ndim), x.ndim)
    return normalized(x, *align_axes(x, axes, mean=mean, variance=variance, scale=scale, bias=bias), epsilon=epsilon)


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
    their running mean is $1 - p^k$ times this one. To continue from such statistics, set the state to
    ``{"mean": ..., "variance": ..., "updates": jnp.asarray(1_000_000)}``, as ``load`` and ``load_torch`` do: the next
    batch then has the weight $1 - p$. (All statistics share one count of updates: a statistic that a mask excludes
    from the first updates, as with ``axes=0``, does depend on 0 and 1.)

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
    names = names_of_params(use_scale, use_bias)
    # Statistics in at least float32: averages of many batches lose digits in half precision.
    state_dtype = wide_dtype(param_dtype)

    def split(x):
        """The axes to average over, and the remaining axes, which are those of the statistics."""
        require(axes is not None or len(x.shape) > 0, "x with a feature axis", x, "use x[..., None]")
        over = tuple(range(len(x.shape) - 1)) if axes is None else reduced_axes(x, axes)
        return over, tuple(a for a in range(len(x.shape)) if a not in over)

    def init(key, x: Float[ArrayOrShape, "..."]):
        shape = tuple(x.shape[a] for a in split(x)[1])
        return make_params(names, shape, param_dtype), make_statistics(shape, state_dtype)

    def apply(params, state, x: Float[Array, "..."], *, train=False, mask: Bool[Array, "..."] | None = None):
        over, kept = split(x)
        check_params(params, **dict.fromkeys(names, (None,) * len(kept)))  # `align_axes` compares the sizes
        x = in_dtype(x, dtype)
        running = running_statistics(x, kept, state)
        weights = align_axes(
            x, kept, scale=params["scale"] if use_scale else None, bias=params["bias"] if use_bias else None
        )
        if mask is not None:
            # Padding may be NaN, which 0 * NaN in a masked sum would keep.
            x = jnp.where(expand_mask(mask, x), x, 0)
        if train:
            # `updated` handles a mask, whose values may be traced.
            if at_most(count_valid(x, over, None, axis_name), 1):
                repair = "pass a batch of at least two (to init_train_state as well), or under vmap pass axis_name="
                require(False, f"more than one entry to average over (axes {over}) in training", x, repair)
            wide = widen(x)
            y, mean, variance = _normalize_batch(
                wide, mask, *weights, axes=over, axis_name=axis_name, epsilon=jnp.asarray(epsilon, wide.dtype)
            )
            return y.astype(x.dtype), updated(state, mean, variance, count_valid(x, over, mask, axis_name))
        return normalized(x, *measured_by(state, running), *weights, epsilon=epsilon), state

    def updated(state, mean, variance, count):
        """The running statistics after one more batch, with ``count`` entries for each statistic."""
        # The statistics of a batch have axes of size 1, those of the state do not.
        moved = moved_by(state, momentum, *(each.reshape(state["mean"].shape) for each in (mean, variance)))
        counts = count if isinstance(count, int) else jnp.broadcast_to(count, mean.shape).reshape(state["mean"].shape)
        enough = counts >= 2  # the variance of one entry is 0, and evaluation would divide by it
        enough_for = {"mean": enough, "variance": enough, "updates": jnp.any(enough)}
        return {name: jnp.where(enough_for[name], moved[name], state[name]) for name in moved}

    return StatefulLayer(init, apply)


def _normalize_batch(x, mask, scale, bias, *, axes, axis_name, epsilon):
    """The formula with the statistics of ``x`` over ``axes``, and these statistics.

    The derivative rules of its two parts contain no sum over a mapped axis: JAX evaluates a rule where the derivative
    is taken, which may be outside of the `vmap` that has the name.
    """
    mean = average(x, axes, mask, axis_name)
    variance = average(_squared_deviation(x, mean), axes, mask, axis_name)
    variance = jnp.where(jnp.isinf(variance), jnp.nan, variance)  # divided by infinity, outputs would be 0
    return _jitted_normalize_by(x, mean, variance, scale, bias, epsilon), mean, variance


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
    return normalized(x, mean, variance, scale, bias, epsilon=epsilon)


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


# The affine parts of norms of equal shapes are traced, differentiated and lowered once.
_jitted_normalize_by = jax.jit(_normalize_by)
