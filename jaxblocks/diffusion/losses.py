r"""Training of a denoiser: predict the noise (or the data, ...) at random times, with the squared error as the loss.

The denoiser is any pair that reads the side input ``time``. With `jaxblocks.fit`::

    schedule = variance_preserving_schedule()
    training = DenoisingLoss(net, schedule, "v")  # a pair that maps data to one loss for each example
    fitted = fit(training, lambda losses, y: losses, optax.adam(1e-3), (x, x), key=key, steps=1000)
    params = fitted.params["net"]  # the params of net

`DenoisingLoss` draws times and noise from the key of each training step; labels are further inputs. In a training loop
of your own, call `denoising_loss`.

Axis letters: ``...`` the axes of the data; a time for each example has the first of them.
"""

import math
from collections.abc import Callable
from typing import overload

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Key

from jaxblocks.backend.draws import random_order
from jaxblocks.backend.precision import wide_dtype, widen
from jaxblocks.backend.symbolic_sizes import Size, is_size
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import PositiveInt, checked
from jaxblocks.core.lifting import declared_by, required_by, side_inputs, stateful
from jaxblocks.core.pairs import Layer, LayerLike, StatefulLayer, StatelessLike, builder
from jaxblocks.diffusion.prediction_types import PredictionType, check_prediction, combine, ratio_of_scales
from jaxblocks.diffusion.schedules import Schedule, add_noise, align, check_schedule, checked_time
from jaxblocks.layers.combinators import Wire

__all__ = ["DenoisingLoss", "denoising_loss", "sample_times"]


@checked
def sample_times(key: Key[Array, ""], shape: tuple[Size, ...]) -> Float[Array, "..."]:
    r"""Random times in (0, 1], uniform, and stratified over the examples: one in each of n equal subintervals.

    With n examples in a random order, the i-th gets $t = (i + u) / n$, with the same u for all: each t is
    uniform, and the mean of a loss over the batch varies less than with independent times.

    Raises:
        ValueError: unless ``shape`` is a tuple of integers >= 0.

    >>> t = sample_times(jax.random.key(0), (4,))
    >>> print(jnp.ceil(4 * jnp.sort(t)))
    [1. 2. 3. 4.]

    Source: Kingma et al. 2021, Variational diffusion models, appendix I.1, arXiv:2107.00630.
    """
    known = isinstance(shape, tuple | list) and all(map(is_size, shape))
    repair = f"pass one such as shape=({shape if is_size(shape) else 1},)"
    require(known, "shape to be a tuple of integers >= 0", shape, repair)
    order, offset = jax.random.split(key)
    count = math.prod(shape)
    index = random_order(order, count).astype(jnp.float32)
    u = 1 - jax.random.uniform(offset, (), jnp.float32)  # in (0, 1]
    return ((index + u) / count).reshape(shape)


@checked
def denoising_loss(
    predict: Callable,
    x0: Float[Array, "*shape"],
    t: Float[Array, "*_batch"],
    eps: Float[Array, "*shape"],
    schedule: Schedule,
    prediction_type: PredictionType,
    *,
    weighting: PredictionType | Callable | None = None,
) -> Float[Array, "*_batch"]:
    r"""The squared error of a denoiser, one number for each example: the mean over the axes that t does not have.

    .. math::

        ℓ = w(t) (1/d) ‖ P - P̂(x_t, t) ‖^2,
        x_t = α x_0 + σε

    with P the quantity that the net predicts: $ε$ (the simple loss of DDPM), $x_0$, v, ... An
    error in one is a multiple of an error in another (`jaxblocks.diffusion.error_scale`), so a weight turns the loss of
    one into the loss of another.

    Args:
        predict: ``predict(x, t)``, t with the axes that are given here.
        x0, eps: the data, and standard normal noise of their shape.
        t: a time for each example, ``(*batch,)``, see `sample_times`.
        prediction_type: "eps", "x0", "v", "score" or "velocity".
        weighting: ``None``: 1 (for "score", which is unbounded at t = 0, the weight of "eps"). A prediction type: the
            error is measured in that type. A function of the log-SNR: the weight of the error in x0, for instance that
            of Min-SNR, ``lambda log_snr: jnp.minimum(jnp.exp(log_snr), 5.0)``. Signal and noise count
            as at least 1e-9 there.

    Raises:
        ValueError: for an unknown prediction type, a prediction that does not have the shape of the data, incompatible
            shapes, times outside of [0, 1], or a schedule with wrong values at t = 0 or t = 1.
        TypeError: for integers.

    >>> from jaxblocks.diffusion import flow_matching_schedule
    >>> zero, schedule = lambda x, t: jnp.zeros_like(x), flow_matching_schedule()
    >>> x0, eps = jnp.ones((2, 3)), jnp.full((2, 3), 2.0)
    >>> t = jnp.array([0.5, 0.25])  # SNR 1 and 9
    >>> print(denoising_loss(zero, x0, t, eps, schedule, "eps"))
    [4. 4.]
    >>> print(denoising_loss(zero, x0, t, eps, schedule, "x0", weighting="eps"))
    [1. 9.]

    Source: Ho et al. 2020, equation 14, arXiv:2006.11239; Salimans & Ho 2022, section 4, arXiv:2202.00512; Hang et al.
    2023 (Min-SNR), arXiv:2303.09556.
    """
    check_schedule(schedule)
    x = add_noise(x0, eps, t, schedule)
    wide, noise = widen(x0), widen(eps)
    t = checked_time(t, wide)
    prediction = predict(x, t)
    check_prediction(prediction, x)
    prediction = prediction.astype(wide.dtype)
    if prediction_type == "score":  # as the noise that it determines, without a division by 0 at t = 0
        prediction, prediction_type = -align(schedule.noise(t), wide) * prediction, "eps"
    error = prediction - combine(wide, noise, t, schedule, prediction_type)
    weight = _weight(t, schedule, prediction_type, weighting)
    return weight * jnp.mean(jnp.square(error), tuple(range(t.ndim, error.ndim)))


def _weight(t, schedule: Schedule, prediction_type, weighting: PredictionType | Callable | None):
    """The factor of the squared error of a prediction that the weighting requires."""
    if weighting is None or weighting == prediction_type:
        return jnp.ones_like(t)
    if not callable(weighting):
        return jnp.square(ratio_of_scales(t, schedule, weighting, prediction_type))
    # Without signal or noise the weight and the scale may both be 0 or infinite: their quotient beside that time.
    own, root_of_snr = (ratio_of_scales(t, schedule, name, "x0", least=1e-9) for name in (prediction_type, "eps"))
    return weighting(2 * jnp.log(root_of_snr)) / jnp.square(own)


@overload
def DenoisingLoss(
    net: StatelessLike,
    schedule: Schedule,
    prediction_type: PredictionType,
    *,
    conditions: str | tuple[str, ...] = (),
    event_axes: PositiveInt = 1,
    weighting: PredictionType | Callable | None = None,
    draw_times: Callable = sample_times,
) -> Layer: ...
@overload
def DenoisingLoss(
    net: LayerLike,
    schedule: Schedule,
    prediction_type: PredictionType,
    *,
    conditions: str | tuple[str, ...] = (),
    event_axes: PositiveInt = 1,
    weighting: PredictionType | Callable | None = None,
    draw_times: Callable = sample_times,
) -> StatefulLayer: ...
@builder
def DenoisingLoss(
    net: LayerLike,
    schedule: Schedule,
    prediction_type: PredictionType,
    *,
    conditions: str | tuple[str, ...] = (),
    event_axes: PositiveInt = 1,
    weighting: PredictionType | Callable | None = None,
    draw_times: Callable = sample_times,
) -> Layer | StatefulLayer:
    r"""A pair that trains a denoiser: it adds noise to data, and returns the `denoising_loss` of each example.

    ``apply(params, x0, *conditions, key=...)`` draws a time for each example and noise, and calls ``net`` on
    $x_t$ with ``time``; params are ``{"net": params of net}``. In `jaxblocks.fit` or `jaxblocks.train_step` use
    it with the loss ``lambda losses, y: losses`` and the data ``(x0, None)``, and draw samples with the params
    ``fitted.params["net"]``. In training (``train=True``) it needs a key. In evaluation without a key, times and noise
    are drawn from ``jax.random.key(0)`` in each call, so that validation losses are comparable.

    Args:
        net: any pair that reads the side input ``time``, which has the shape of the batch axes.
        schedule, prediction_type, weighting: as in `denoising_loss`.
        conditions: the name of a side input of ``net``, or several, such as ``("label",)``, whose values are further
            inputs; see `drop_condition`.
        event_axes: the number of axes of one example: 1 for points, 3 for images (with 1, each pixel has its own time).
        draw_times: ``(key, shape) -> t``.

    Raises:
        TypeError: for a net that does not read ``time``; a missing key.
        ValueError: as in `denoising_loss`; for data without batch axes, or with too few axes.

    >>> from jaxblocks.diffusion import variance_preserving_schedule
    >>> forward = lambda f, x, *, time: f.out(jnp.concatenate([x, time[..., None]], -1))
    >>> net = Wire(forward, out=Dense(2))
    >>> training = DenoisingLoss(net, variance_preserving_schedule(), "eps")
    >>> x0 = jnp.ones((64, 2))
    >>> params = jax.jit(training.init)(jax.random.key(0), x0)
    >>> apply = jax.jit(training.apply, static_argnames="train")
    >>> losses = apply(params, x0, key=jax.random.key(1), train=True)
    >>> losses.shape, jax.tree.map(jnp.shape, params["net"]["out"])
    ((64,), {'bias': (2,), 'kernel': (3, 2)})

    Source: Ho et al. 2020, algorithm 1, arXiv:2006.11239.
    """
    check_schedule(schedule)
    names = (conditions,) if isinstance(conditions, str) else tuple(conditions)
    reads = side_inputs(net)
    missing = [name for name in ("time", *names) if name not in reads]
    got = f"one that reads {', '.join(reads) or 'no side input'}"
    repair = "declare it: apply(params, x, *, time)"
    require(not missing, f"a net that reads {' and '.join(missing)}", got, repair, error=TypeError)
    # Side inputs without default that the net needs, and that nothing would pass: found here, not in the first step.
    needed = required_by(declared_by(stateful(net).apply))
    lacking = [name for name in needed if name not in {"time", "train", "key", *names}]
    repair = f"pass conditions={(*names, *lacking)}, and the values as further inputs after the data"
    got = f"a net that also needs {', '.join(lacking)}"
    require(not lacking, "conditions to name each side input that the net needs", got, repair, error=TypeError)

    def forward(f, x0, *given, key=None, train=False):
        if len(given) != len(names):
            expected = f"{1 + len(names)} inputs ({', '.join(('x0', *names))})"
            repair = "name the side inputs that come with the data in conditions="
            require(False, expected, 1 + len(given), repair, error=TypeError)
        repair = "set event_axes to the number of axes of one example"
        require(x0.ndim >= event_axes, f"data of at least {event_axes} axes", x0, repair)
        repair = "pass key=jax.random.key(0)"
        require(
            not train or key is not None, "a key to draw times and noise in training", "none", repair, error=TypeError
        )
        # One key for the times and one for the noise, so that the noise does not depend on how times are drawn.
        when, noise = jax.random.split(jax.random.key(0) if key is None else key)
        eps = jax.random.normal(noise, x0.shape, x0.dtype)
        t = draw_times(when, x0.shape[: x0.ndim - event_axes])
        side = dict(zip(names, given, strict=True))
        # Times stay in float32 or wider, since bfloat16 cannot distinguish close times.
        predict = lambda x, t: f.net(x, time=lax.convert_element_type(t, wide_dtype(x.dtype)), **side)
        return denoising_loss(predict, x0, t, eps, schedule, prediction_type, weighting=weighting)

    return Wire(forward, net=net)
