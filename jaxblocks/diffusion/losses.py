r"""How a denoiser learns: guess what was mixed, at random times, and be charged by the squared error.

The denoiser is any pair that reads the side input ``time``. The recipe, with `jaxblocks.fit`::

    schedule = variance_preserving_schedule()
    training = Denoising(net, schedule, "v")  # a pair: data in, one loss for each example out
    fitted = fit(training, lambda losses, y: losses, optax.adam(1e-3), (x, x), key=key, steps=1000)
    params = fitted.params["net"]  # those of net

`Denoising` draws times and noise from the key that each training step passes, so nothing else is needed; labels come as
further inputs. In a loop of your own, call `denoising_loss`.

Axis letters: ``...`` the axes of the data; a time for each example has the first of them.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxblocks.checks import describe, require_floating, require_key, require_whole
from jaxblocks.core import Layer, StatefulLayer, declared_by, require_flag, side_inputs, stateful
from jaxblocks.diffusion.parametrizations import (
    PARAMETRIZATIONS,
    combined,
    error_scale,
    require_parametrization,
    require_prediction,
)
from jaxblocks.diffusion.schedules import Schedule, add_noise, align, require_schedule, require_time
from jaxblocks.layers.combinators import Wire
from jaxblocks.precision import wide_dtype, widen

__all__ = ["Denoising", "denoising_loss", "drop_condition", "sample_times"]


def sample_times(key, shape: tuple[int, ...]) -> Float[Array, "..."]:
    r"""Random times in (0, 1], evenly distributed, and evenly over the examples too: one in each n-th of the interval.

    With n examples in a random order, the i-th gets :math:`t = (i + u) / n`, the same u for all: each t is uniform on
    its own, and the mean of a loss over the batch varies less than with independent times.

    >>> t = sample_times(jax.random.key(0), (4,))
    >>> print(jnp.ceil(4 * jnp.sort(t)))
    [1. 2. 3. 4.]

    Source: Kingma et al. 2021, Variational diffusion models, appendix I.1.
    """
    require_key("sample_times", key)
    order, offset = jax.random.split(key)
    count = 1
    for size in shape:
        count *= size
    places = jax.random.permutation(order, count).astype(jnp.float32)
    u = 1 - jax.random.uniform(offset, (), jnp.float32)  # in (0, 1]
    return ((places + u) / count).reshape(shape)


def denoising_loss(
    predict: Callable,
    x0: Float[Array, "..."],
    t: Float[Array, "*_batch"],
    eps: Float[Array, "..."],
    schedule: Schedule,
    prediction_type: str,
    weighting: str | Callable | None = None,
) -> Float[Array, "*_batch"]:
    r"""The squared error of a denoiser, one number per example: the mean over the axes that t has not.

    .. math:: \ell = w(t)\,\frac1d \big\lVert P - \hat P(x_t, t) \big\rVert^2, \qquad x_t = \alpha x_0 +
    \sigma\varepsilon

    with P what the net prediction_type: :math:`\varepsilon` (then it is the simple loss of DDPM), :math:`x_0`, v, ... An error
    in one is a multiple of an error in another (`jaxblocks.diffusion.error_scale`), so a weight turns the loss of one
    into that of another.

    Args:
        predict: ``predict(x, t)``, t with the axes that are given here.
        x0, eps: the data, and standard normal noise of their shape.
        t: a time for each example, ``(*batch,)``, see `sample_times`.
        prediction_type: "eps", "x0", "v", "score" or "velocity".
        weighting: ``None``: 1 (for "score", which grows without bound at t = 0, as "eps"). A parametrization: the error
            is measured in that one. A function of the log-SNR: the weight of the error in x0, for instance the one of
            Min-SNR, ``lambda log_snr: jnp.minimum(jnp.exp(log_snr), 5.0)``.

    Raises:
        ValueError: for an unknown parametrization, a prediction that has not the shape of the data, shapes that do not
            fit, times outside of [0, 1], or a schedule whose ends are wrong.
        TypeError: for integers.

    >>> from jaxblocks.diffusion import flow_matching
    >>> zero = lambda x, t: jnp.zeros_like(x)
    >>> x0, eps = jnp.ones((2, 3)), jnp.full((2, 3), 2.0)
    >>> t = jnp.array([0.5, 0.25])
    >>> print(denoising_loss(zero, x0, t, eps, flow_matching_schedule(), "eps"))
    [4. 4.]
    >>> print(denoising_loss(zero, x0, t, eps, flow_matching_schedule(), "x0", weighting="eps"))  # SNR 1 and 9
    [1. 9.]

    Source: Ho et al. 2020, equation 14; Salimans & Ho 2022, section 4; Hang et al. 2023 (Min-SNR).
    """
    where = "denoising_loss"
    require_schedule(where, schedule)
    require_parametrization(where, prediction_type)
    if not (weighting is None or callable(weighting) or weighting in PARAMETRIZATIONS):
        raise ValueError(
            f"{where} expects a weighting out of {', '.join(PARAMETRIZATIONS)}, or a function of the log-SNR, but "
            f"{weighting!r} came; leave it out for the plain squared error."
        )
    require_floating(where, x0=x0)
    x = add_noise(x0, eps, t, schedule)
    wide, noise = widen(x0), widen(eps)
    t = require_time(where, t, wide)
    found = predict(x, t)
    require_prediction(where, found, x)
    found = found.astype(wide.dtype)
    if prediction_type == "score" and weighting in (None, "eps"):  # sigma (score - target), which does not divide by 0
        error = noise + align(schedule.noise(t), wide) * found
        weight = jnp.ones_like(t)
    else:
        error = found - combined(wide, noise, t, schedule, prediction_type)
        weight = _weight(t, schedule, prediction_type, weighting)
    squares = jnp.square(error)
    return weight * squares.reshape(*t.shape, -1).mean(-1)


def _weight(t, schedule, prediction_type, weighting):
    if weighting is None or weighting == prediction_type:
        return jnp.ones_like(t)
    own = jnp.square(error_scale(t, schedule, prediction_type))
    if callable(weighting):
        return weighting(schedule.log_snr(t)) / own
    return jnp.square(error_scale(t, schedule, weighting)) / own


def Denoising(
    net: Layer | StatefulLayer | Callable,
    schedule: Schedule,
    prediction_type: str,
    *,
    conditions: str | tuple[str, ...] = (),
    event_axes: int = 1,
    weighting: str | Callable | None = None,
    draw_times: Callable = sample_times,
) -> Layer | StatefulLayer:
    r"""A pair that trains a denoiser: it takes data, blurs them by its key, and returns the loss of each example.

    ``apply(params, x0, *conditions, key=...)`` draws a time for each example and noise, and calls ``net`` on
    :math:`x_t` with ``time``; params are ``{"net": those of net}``. As a net for `jaxblocks.fit` or
    `jaxblocks.train_step` it goes with the loss ``lambda losses, y: losses``. While training (``train=True``) it asks
    for a key. Without one, in evaluation, times and noise are those of ``jax.random.key(0)`` each time, so that
    validation losses can be compared.

    Args:
        net: any pair that reads the side input ``time``, of the shape of the batch axes.
        schedule, prediction_type, weighting: as in `denoising_loss`.
        conditions: the name of a side input of ``net``, or several, such as ``("label",)``, which come as further
            inputs; see `drop_condition`.
        event_axes: how many axes one example has: 1 for points, 3 for images.
        draw_times: ``(key, shape) -> t``.

    Raises:
        TypeError: for a net that reads no ``time``; a missing key.
        ValueError: as `denoising_loss`; for data without batch axes or with too few.

    >>> from jaxblocks.diffusion import variance_preserving
    >>> net = Wire(lambda f, x, *, time: f.out(jnp.concatenate([x, time[..., None]], -1)), out=Dense(2))
    >>> training = Denoising(net, variance_preserving_schedule(), "eps")
    >>> x0 = jnp.ones((64, 2))
    >>> params = training.init(jax.random.key(0), x0)
    >>> losses = training.apply(params, x0, key=jax.random.key(1), train=True)
    >>> losses.shape, jax.tree.map(jnp.shape, params["net"]["out"])
    ((64,), {'bias': (2,), 'kernel': (3, 2)})

    Source: Ho et al. 2020, algorithm 1.
    """
    require_schedule("Denoising", schedule)
    require_parametrization("Denoising", prediction_type)
    event_axes = require_whole("Denoising", "event_axes", event_axes)
    conditions = (conditions,) if isinstance(conditions, str) else tuple(conditions)
    reads = side_inputs(net)
    if missing := [name for name in ("time", *conditions) if name not in reads]:
        raise TypeError(
            f"Denoising expects a net that reads {' and '.join(missing)}, but it reads "
            f"{', '.join(reads) or 'nothing'}; declare it: apply(params, x, *, time)."
        )
    own = {"time", "train", "key", *conditions}
    asked = declared_by(stateful(net).apply)
    if lacking := [name for name, p in asked.items() if p.default is p.empty and name not in own]:
        raise TypeError(
            f"Denoising expects conditions to name what the net needs beside time, but it needs {', '.join(lacking)}; "
            f"pass conditions={(*conditions, *lacking)}, and the values as further inputs beside the data."
        )

    def forward(f, x0, *given, key=None, train=False):
        require_flag("Denoising", train=train)
        require_floating("Denoising", x0=x0)
        if len(given) != len(conditions):
            raise TypeError(
                f"Denoising expects {1 + len(conditions)} inputs (x0{''.join(', ' + name for name in conditions)}), "
                f"but {1 + len(given)} came; name the side inputs that come with the data in conditions=."
            )
        if x0.ndim < event_axes:
            raise ValueError(
                f"Denoising expects data of {event_axes} axes at least, but {describe(x0)} came; set event_axes to the "
                "number of axes of one example."
            )
        if key is None and train:
            raise TypeError(
                "Denoising draws times and noise while training and needs a key; pass key=jax.random.key(0)."
            )
        when, noise = jax.random.split(jax.random.key(0) if key is None else key)
        eps = jax.random.normal(noise, x0.shape, x0.dtype)
        t = draw_times(when, x0.shape[: x0.ndim - event_axes])
        side = dict(zip(conditions, given, strict=True))
        predict = lambda x, t: f.net(x, time=lax.convert_element_type(t, wide_dtype(x.dtype)), **side)
        return denoising_loss(predict, x0, t, eps, schedule, prediction_type, weighting)

    return Wire(forward, net=net)


def drop_condition(key, condition: Array, null, rate: float | int) -> Array:
    r"""A batch of conditions in which each example's is replaced by ``null`` with probability ``rate``.

    A net that is trained on these learns to denoise with the condition and without, which is what
    `jaxblocks.diffusion.guided` needs. For labels 0 to 9, ``null`` can be 10, an eleventh class.

    Args:
        condition: ``(batch, ...)``, such as labels ``(batch,)`` or vectors ``(batch, features)``.
        null: one number, or an array of the shape of one example's condition.
        rate: a probability.

    As an augmentation for `jaxblocks.fit` on ``x = (images, labels)``:
    ``augment=lambda key, x: (x[0], drop_condition(key, x[1], 10, 0.1))``.

    >>> print(drop_condition(jax.random.key(0), jnp.arange(8), 10, 1.0))
    [10 10 10 10 10 10 10 10]

    Source: Ho & Salimans 2022, Classifier-free diffusion guidance, algorithm 1.
    """
    require_key("drop_condition", key)
    if not 0 <= rate <= 1:
        raise ValueError(f"drop_condition expects a probability, but rate={rate} came; pass for instance 0.1.")
    dropped = jax.random.bernoulli(key, rate, condition.shape[:1])
    null = jnp.asarray(null, condition.dtype)
    if null.shape not in ((), condition.shape[1:]):
        raise ValueError(
            f"drop_condition expects one number for null, or the shape {condition.shape[1:]} of one condition, but "
            f"{describe(null)} came."
        )
    dropped = dropped.reshape(-1, *(1,) * (condition.ndim - 1))
    return jnp.where(dropped, jnp.broadcast_to(null, condition.shape), condition)
