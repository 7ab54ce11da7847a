r"""Samplers: from noise to data along a grid of times, with a denoiser ``predict(x, t)``.

All samplers take the same arguments. Each is one ``lax.scan``, so ``jax.jit`` (with a key or noise as arguments),
``jax.vmap`` and ``jax.grad`` work::

    x = initial_noise(key, (64, 2), schedule)
    predict = lambda x, t: net.apply(params, x, time=jnp.full(len(x), t))
    samples = ddim(predict, x, times(schedule, 50), schedule, "eps")

``predict`` is a plain function of x and one time (a scalar). It returns the quantity of its prediction type, in the
shape of x. With step size h the final error is proportional to h to the power of the *order* of the sampler:

=======================  ======================================  =====  ==============  =======
sampler                  each step                               order  calls per step  random
=======================  ======================================  =====  ==============  =======
`ddim`                   exact for a constant prediction         1      1               for eta > 0
`euler`                  along the velocity                      1      1
`heun`                   along the mean of two velocities        2      2
`dpm_solver_pp_2m`       as ddim, with x0 extrapolated           2      1
`ancestral`              the posterior of DDPM                          1               yes
`predictor_corrector`    ancestral, then Langevin steps                 2 or more       yes
=======================  ======================================  =====  ==============  =======

The first four follow the probability-flow ODE $dx/dt = α' x_0(x, t) + σ' ε(x, t)$, whose
solution has the distribution of the process at each time. Orders hold up to t = 0 on the default grid of `times`.
Nothing is evaluated at a last time without noise, where many conversions divide by 0.

Where values are concrete, times must fall within [0, 1], and a division by 0 at the first time raises (see `convert`);
under ``jit`` with times as an argument it gives infinity or NaN.

Axis letters: ``...`` the axes of the samples, ``times`` of a grid.
"""

from collections.abc import Callable
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Key

from jaxblocks.backend.precision import wide_dtype, widen
from jaxblocks.backend.quotients import sqrt
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import NonNegativeFloat, NonNegativeInt, Range, checked
from jaxblocks.diffusion.prediction_types import (
    PredictionType,
    check_prediction,
    check_solvable,
    convert_unchecked,
)
from jaxblocks.diffusion.schedules import Schedule, check_schedule, checked_times

__all__ = ["ancestral", "ddim", "dpm_solver_pp_2m", "euler", "heun", "initial_noise", "predictor_corrector"]


@checked
def initial_noise(
    key: Key[Array, ""], shape: tuple[int, ...], schedule: Schedule, *, dtype: DTypeLike = jnp.float32
) -> Float[Array, "..."]:
    r"""Normal noise at t = 1, where sampling starts: $x_1 = σ(1) ε$.

    >>> from jaxblocks.diffusion import variance_preserving_schedule
    >>> initial_noise(jax.random.key(0), (3, 2), variance_preserving_schedule()).shape
    (3, 2)
    """
    check_schedule(schedule)
    # The small signal left at t = 1 is neglected.
    noise = schedule.noise(jnp.ones((), wide_dtype(dtype)))
    return (noise * jax.random.normal(key, shape, wide_dtype(dtype))).astype(dtype)


@checked
def ddim(
    predict: Callable,
    x: Float[Array, "..."],
    times: Float[Array, " times"],
    schedule: Schedule,
    prediction_type: PredictionType,
    *,
    eta: Annotated[float | int, Range(0, most=1)] = 0.0,
    key: Key[Array, ""] | None = None,
    trajectory: bool = False,
) -> Float[Array, "..."]:
    r"""DDIM: predict x0 and the noise, and combine them at the next time; order 1, random for ``eta`` > 0.

    From t to the next time s, with $x_0, ε$ from the prediction at t and z new noise:

    .. math::

        x_s = α_s x_0 + √(σ_s^2 - η^2 v) ε + η √v z,
        v = (σ_s^2 / σ_t^2) (σ_t^2 - (α_t^2 / α_s^2) σ_s^2)

    $η = 0$ follows the probability-flow ODE: Euler's method for $x / α$ as a function of
    $σ / α$. $η = 1$ is `ancestral` with ``spread=0``.

    Args:
        predict: ``predict(x, t)`` of x and one time, as in `jaxblocks.diffusion.samplers`.
        x: the value at the first time, see `initial_noise`.
        times: a decreasing grid, see `times`.
        schedule: the noise schedule.
        prediction_type: the type of the result of ``predict``: "eps", "x0", "v", "score" or "velocity".
        eta: from 0 to 1.
        key: the random key for ``eta`` > 0.
        trajectory: ``True`` returns x at all times, ``(steps + 1, ...)``, ``False`` only at the last time.

    Raises:
        ValueError: for times out of order or range, an unknown prediction type, a prediction that does not have the
            shape of x, a schedule with wrong values at t = 0 or t = 1, or a prediction that does not determine x0 at
            the first time.
        TypeError: for integers, or a missing key.

    >>> from jaxblocks.diffusion import cosine_schedule, gaussian_mixture, times
    >>> data = gaussian_mixture(jnp.array([[-2.0], [2.0]]), jnp.array([0.01, 0.01]))
    >>> schedule = cosine_schedule()
    >>> predict, grid = data.predictor(schedule, "eps"), times(schedule, 50)
    >>> print(ddim(predict, jnp.array([[-1.0], [0.5]]), grid, schedule, "eps").round(1))
    [[-2.]
     [ 2.]]

    Source: Song, Meng & Ermon 2021, Denoising diffusion implicit models, arXiv:2010.02502.
    """
    require(key is not None or not eta, f"a key for eta={eta}", "none", "pass key=jax.random.key(0)", error=TypeError)
    run = _Run(predict, x, times, schedule, prediction_type)

    def step(x, now, then, key):
        x0, eps = run.predicted(x, now, "x0", "eps")
        if not eta:
            return then["signal"] * x0 + then["noise"] * eps
        kept, new = _parts(now, then)
        # Of the variance at `then`, added^2 is new noise, and the rest is along the predicted eps.
        added = eta * then["noise"] * new / now["noise"]
        # At eta = 1 the root has a closed form, without the cancellation.
        same = then["noise"] * (jnp.sqrt(1 - (eta * new / now["noise"]) ** 2) if eta < 1 else kept / now["noise"])
        return then["signal"] * x0 + same * eps + added * jax.random.normal(key, x.shape, x.dtype)

    return run.scan(step, key if eta else None, trajectory)


@checked
def ancestral(
    predict: Callable,
    x: Float[Array, "..."],
    times: Float[Array, " times"],
    schedule: Schedule,
    prediction_type: PredictionType,
    *,
    key: Key[Array, ""],
    spread: NonNegativeFloat = 1.0,
    trajectory: bool = False,
) -> Float[Array, "..."]:
    r"""The ancestral sampler of DDPM: a draw from $q(x_s ∣ x_t, x_0)$ at each step, with the predicted x0.

    .. math::

        x_s = ((α_t σ_s^2) / (α_s σ_t^2)) x_t + ((α_s σ_{t|s}^2) / σ_t^2) x_0 + σ_{t|s} (τ_s / τ_t) z,
        σ_{t|s}^2 = σ_t^2 - (α_t^2 / α_s^2) σ_s^2,
        τ^2 = α^2 d^2 + σ^2

    for any schedule, with new noise z (none in a last step to a time without noise) and d ``spread``: the variance is
    exact for normal data of standard deviation d. The two variances of DDPM are $β_t$, d = 1, and
    $β̃_t$, d = 0, the posterior for a single data point. As the steps become small, the distribution of
    the samples tends to that of the data for every d. With few steps, the samples are too narrow if d is too small, and
    too wide if d is too large.

    Args:
        spread: d, the standard deviation of the data. 0 suits few steps.

    Other arguments and errors are those of `ddim`; ``key`` is required.

    >>> from jaxblocks.diffusion import cosine_schedule, gaussian_mixture, times
    >>> data = gaussian_mixture(jnp.array([[3.0]]), jnp.array([4.0]))
    >>> schedule = cosine_schedule()
    >>> predict, grid = data.predictor(schedule, "eps"), times(schedule, 200)
    >>> @jax.jit
    ... def sample(noise_key, key):
    ...     x = initial_noise(noise_key, (5000, 1), schedule)
    ...     return ancestral(predict, x, grid, schedule, "eps", key=key)
    >>> samples = sample(jax.random.key(0), jax.random.key(1))
    >>> print(f"{samples.mean():.1f} {samples.std():.1f}")
    3.0 2.0

    Source: Ho et al. 2020, algorithm 2, arXiv:2006.11239.
    """
    run = _Run(predict, x, times, schedule, prediction_type)

    def step(x, now, then, key):
        x0, eps = run.predicted(x, now, "x0", "eps")
        return _posterior(x0, eps, now, then, spread, key)

    return run.scan(step, key, trajectory)


@checked
def euler(
    predict: Callable,
    x: Float[Array, "..."],
    times: Float[Array, " times"],
    schedule: Schedule,
    prediction_type: PredictionType,
    *,
    trajectory: bool = False,
) -> Float[Array, "..."]:
    r"""Euler's method on the probability-flow ODE: $x_s = x_t + (s - t) u(x_t, t)$, order 1.

    u is the velocity. For `flow_matching_schedule` it equals `ddim`; for other schedules either may be more accurate.

    Arguments and errors are those of `ddim`.

    >>> from jaxblocks.diffusion import flow_matching_schedule
    >>> # the velocity that leads to the point 2, if t = 1 is noise
    >>> predict = lambda x, t: x - 2.0
    >>> x, times = jnp.array([0.5]), jnp.array([1.0, 0.0])
    >>> print(euler(predict, x, times, flow_matching_schedule(), "velocity"))
    [2.]

    Source: Song et al. 2021, section 4.3, arXiv:2011.13456.
    """
    run = _Run(predict, x, times, schedule, prediction_type)

    def step(x, now, then, key):
        [velocity] = run.predicted(x, now, "velocity")
        return x + (then["t"] - now["t"]) * velocity

    return run.scan(step, None, trajectory)


@checked
def heun(
    predict: Callable,
    x: Float[Array, "..."],
    times: Float[Array, " times"],
    schedule: Schedule,
    prediction_type: PredictionType,
    *,
    trajectory: bool = False,
) -> Float[Array, "..."]:
    r"""Heun's method on the probability-flow ODE, the trapezoidal rule with an Euler predictor: order 2.

    .. math::

        x̃ = x_t + (s - t) u(x_t, t),
        x_s = x_t + (1/2) (s - t) (u(x_t, t) + u(x̃, s))

    A last step to a time without noise is Euler's, since the velocity may not be defined there; one step of lower order
    does not change the order of the sampler.

    Arguments and errors are those of `ddim`.

    >>> from jaxblocks.diffusion import flow_matching_schedule, gaussian_mixture, times
    >>> data = gaussian_mixture(jnp.array([[3.0]]), jnp.array([4.0]))
    >>> schedule = flow_matching_schedule()
    >>> predict, grid = data.predictor(schedule, "velocity"), times(schedule, 100)
    >>> x = jnp.array([[1.0]])  # one standard deviation above the mean, as is the result
    >>> print(heun(predict, x, grid, schedule, "velocity").round(3))
    [[5.]]

    Source: Karras et al. 2022, Elucidating the design space of diffusion-based generative models, algorithm 1,
    arXiv:2206.00364.
    """
    run = _Run(predict, x, times, schedule, prediction_type)

    def step(x, now, then, key):
        h = then["t"] - now["t"]
        [first] = run.predicted(x, now, "velocity")
        clean = then["noise"] <= 0
        # at an end without noise the second velocity is computed at ``now`` and not used, so that nothing divides by 0
        place = {name: jnp.where(clean, now[name], then[name]) for name in now}
        [second] = run.predicted(x + h * first, place, "velocity")
        return x + h * jnp.where(clean, first, 0.5 * (first + second))

    return run.scan(step, None, trajectory)


@checked
def dpm_solver_pp_2m(
    predict: Callable,
    x: Float[Array, "..."],
    times: Float[Array, " times"],
    schedule: Schedule,
    prediction_type: PredictionType,
    *,
    trajectory: bool = False,
) -> Float[Array, "..."]:
    r"""DPM-Solver++(2M): as `ddim`, with an x0 that is extrapolated from this step and the previous one; order 2.

    With $λ = log α / σ$ (half of the log-SNR), $h_i = λ_{t_{i+1}} - λ_{t_i}$
    and $x_0^i$ predicted at $t_i$,

    .. math::

        D = x_0^i + (h_i / (2 h_{i-1})) (x_0^i - x_0^{i-1}),
        x_{t_{i+1}} = ((σ_{t_{i+1}}) / σ_{t_i}) x_{t_i} - α_{t_{i+1}} (e^{-h_i} - 1) D

    The first step, and steps from a time without signal or to a time without noise (an infinite h), take
    $D = x_0^i$. Each step calls ``predict`` once.

    Arguments and errors are those of `ddim`.

    >>> from jaxblocks.diffusion import cosine_schedule, gaussian_mixture, times
    >>> data = gaussian_mixture(jnp.array([[3.0]]), jnp.array([4.0]))
    >>> schedule = cosine_schedule()
    >>> predict, grid = data.predictor(schedule, "v"), times(schedule, 100)
    >>> x = jnp.array([[1.0]])  # one standard deviation above the mean, as is the result
    >>> print(dpm_solver_pp_2m(predict, x, grid, schedule, "v").round(1))
    [[5.]]

    Source: Lu et al. 2022, DPM-Solver++, algorithm 2, arXiv:2211.01095.
    """
    run = _Run(predict, x, times, schedule, prediction_type)
    signal, noise = run.grid["signal"], run.grid["noise"]
    finite = (signal > 0) & (noise > 0)
    log_ratio = jnp.log(jnp.where(finite, signal, 1.0)) - jnp.log(jnp.where(finite, noise, 1.0))
    # h = log(a / s) at the next time minus that now, the step in half the log-SNR.
    h = jnp.diff(log_ratio)
    usable = finite[1:] & finite[:-1]
    both = usable[1:] & usable[:-1]
    # The first step and steps of infinite length have weight 0, which makes them first-order steps.
    weight = jnp.where(both, h[1:], 0.0) / (2 * jnp.where(both, h[:-1], 1.0))
    weight = jnp.concatenate([jnp.zeros_like(h[:1]), weight])

    def step(carry, now, then, key):
        x, before = carry
        [x0] = run.predicted(x, now, "x0")
        ahead = x0 + now["weight"] * (x0 - before)
        # The factor of the exponential, alpha (exp(-h) - 1), is written as a ratio of noise levels: it is finite for an
        # infinite h.
        shrink = then["noise"] / now["noise"]
        return shrink * x + (then["signal"] - now["signal"] * shrink) * ahead, x0

    run.grid["weight"] = jnp.concatenate([weight, jnp.zeros_like(h[:1])])
    return run.scan(step, None, trajectory, keeps_x0=True)


@checked
def predictor_corrector(
    predict: Callable,
    x: Float[Array, "..."],
    times: Float[Array, " times"],
    schedule: Schedule,
    prediction_type: PredictionType,
    *,
    key: Key[Array, ""],
    corrections: NonNegativeInt = 1,
    snr: Annotated[float | int, Range(0, below=1, open_below=True)] = 0.16,
    spread: NonNegativeFloat = 1.0,
    trajectory: bool = False,
) -> Float[Array, "..."]:
    r"""`ancestral` steps, each followed by steps of Langevin dynamics at its time, which correct the distribution.

    .. math::

        x ← x + δ s(x, t) + √(2δ) z,
        δ = (√2 r σ(t))^2

    with s the score, r ``snr``, and z new noise. (The paper computes $δ$ from the norm of the score; here it
    is computed from the expected norm, $1 / σ$, so that samples do not depend on each other.) There is no
    correction at a last time without noise. Since the steps are finite, the distribution is slightly too wide.

    Args:
        corrections: Langevin steps at each time.
        snr: r, their size relative to the noise.
        spread: of the ancestral steps.

    Other arguments and errors are those of `ddim`; ``key`` is required.

    >>> from jaxblocks.diffusion import cosine_schedule, gaussian_mixture, times
    >>> data = gaussian_mixture(jnp.array([[3.0]]), jnp.array([4.0]))
    >>> schedule = cosine_schedule()
    >>> predict, grid = data.predictor(schedule, "score"), times(schedule, 100)
    >>> @jax.jit
    ... def sample(noise_key, key):
    ...     x = initial_noise(noise_key, (5000, 1), schedule)
    ...     return predictor_corrector(predict, x, grid, schedule, "score", key=key)
    >>> samples = sample(jax.random.key(0), jax.random.key(1))
    >>> print(f"{samples.mean():.0f} {samples.std():.0f}")
    3 2

    Source: Song et al. 2021, algorithms 2 to 5, arXiv:2011.13456.
    """
    run = _Run(predict, x, times, schedule, prediction_type)

    def step(x, now, then, key):
        keys = jax.random.split(key, 1 + corrections)
        x0, eps = run.predicted(x, now, "x0", "eps")
        x = _posterior(x0, eps, now, then, spread, keys[0])
        clean = then["noise"] <= 0
        place = {name: jnp.where(clean, now[name], then[name]) for name in now}
        # At a time without noise there is no score: the prediction is made at `now`, and the step has size 0.
        deviation = jnp.where(clean, 0.0, 2.0 * snr) * place["noise"]  # sqrt(2 delta), without a root of 0

        def correct(x, key):
            [eps] = run.predicted(x, place, "eps")
            z = jax.random.normal(key, x.shape, x.dtype)
            return x - snr * deviation * eps + deviation * z, None  # the score is - eps / sigma

        return lax.scan(correct, x, keys[1:])[0]

    return run.scan(step, key, trajectory)


def _posterior(x0, eps, now, then, spread, key):
    """A draw from the posterior of x at ``then``, with the variance for normal data of deviation ``spread``."""
    kept, new = _parts(now, then)
    mean = then["signal"] * x0 + then["noise"] * kept / now["noise"] * eps
    variance = lambda at: (at["signal"] * spread) ** 2 + at["noise"] ** 2
    # A last step to the data adds no noise, since nothing would remove it.
    added = jnp.where(then["noise"] > 0, new * jnp.sqrt(variance(then) / variance(now)), 0.0)
    return mean + added * jax.random.normal(key, x0.shape, x0.dtype)


def _parts(now, then):
    """Standard deviations of the noise at ``now``: the part from ``then``, and the part added after ``then``."""
    # x at `now` is x at `then` times a_now / a_then, plus new noise.
    kept = now["signal"] / then["signal"] * then["noise"]
    return kept, sqrt(jnp.maximum(now["noise"] ** 2 - kept**2, 0))  # rounding makes this negative for close times


class _Run:
    """The checks that all samplers share, conversions of a prediction, and the scan over times."""

    def __init__(self, predict: Callable, x, times, schedule: Schedule, prediction_type: PredictionType):
        check_schedule(schedule)
        with jax.ensure_compile_time_eval():
            times = checked_times(times, wide_dtype(x.dtype))
            check_solvable(times[:1], schedule, prediction_type, "x0" if prediction_type != "x0" else "eps")
        self.predict, self.schedule = predict, schedule
        self.prediction_type: PredictionType = prediction_type
        self.x, self.dtype = widen(x), x.dtype
        self.grid = {"t": times, "signal": schedule.signal(times), "noise": schedule.noise(times)}

    def predicted(self, x, now, *targets: PredictionType):
        """The predictions of these types at x."""
        # The net gets its dtype; the state of the sampler is float32 at least, since small steps would be rounded away
        # in half precision.
        given = x.astype(self.dtype)
        prediction = self.predict(given, now["t"])
        check_prediction(prediction, given)
        arguments = prediction.astype(x.dtype), x, now["t"], self.schedule, self.prediction_type
        return [convert_unchecked(*arguments, target) for target in targets]

    def scan(self, step, key, trajectory, keeps_x0=False):
        """``step(x, now, then, key)`` over all pairs of times; with ``keeps_x0`` the carry is x and the last x0."""
        now = {name: value[:-1] for name, value in self.grid.items()}
        then = {name: value[1:] for name, value in self.grid.items()}
        keys = None if key is None else jax.random.split(key, len(self.grid["t"]) - 1)

        def body(carry, given):
            carry = step(carry, *given)
            x = carry[0] if keeps_x0 else carry
            return carry, x.astype(self.dtype) if trajectory else None

        first: Any = (self.x, jnp.zeros_like(self.x)) if keeps_x0 else self.x
        last, xs = lax.scan(body, first, (now, then, keys))
        if xs is not None:
            return jnp.concatenate([self.x[None].astype(self.dtype), xs])
        return (last[0] if keeps_x0 else last).astype(self.dtype)
