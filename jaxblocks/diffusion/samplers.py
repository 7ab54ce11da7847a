r"""Samplers: from noise to data along a grid of times, with a denoiser ``predict(x, t)``.

All take the same arguments and are one ``lax.scan``, so they can be jitted (with a new key or new noise as arguments),
mapped and differentiated::

    x = initial_noise(key, (64, 2), schedule)
    predict = lambda x, t: net.apply(params, x, time=jnp.full(len(x), t))
    samples = ddim(predict, x, times(schedule, 50), schedule, "eps")

``predict`` is a plain function: it gets x and one time (a scalar), and returns what its parametrization says, in the
shape of x. An error of a step of size h adds up to one of the *order* of the sampler:

=======================  ======================================  =====  ==============  =======
sampler                  each step                               order  calls per step  random
=======================  ======================================  =====  ==============  =======
`ddim`                   exact if the prediction stood still     1      1               for eta > 0
`euler`                  along the velocity                      1      1
`heun`                   along the mean of two velocities        2      2
`dpm_solver_pp_2m`       as ddim, with x0 extrapolated           2      1
`ancestral`              the posterior of DDPM                          1               yes
`predictor_corrector`    ancestral, then Langevin steps                 2 or more       yes
=======================  ======================================  =====  ==============  =======

The first four follow the probability-flow ODE :math:`dx/dt = \alpha' x_0(x, t) + \sigma' \varepsilon(x, t)`, whose
solution has the distribution of the process at each time. Orders hold up to t = 0 on the grid that `times` makes by
itself; see there. Nothing is evaluated at a last time without noise, where many conversions divide by 0.

Values: where they are concrete, times must fall within [0, 1], and a division by 0 at the first time raises (see
`convert`); under ``jit`` with times as an argument it gives infinity or NaN.

Axis letters: ``...`` the axes of the samples, ``times`` of a grid.
"""

import numbers
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxblocks.checks import describe_any, require_floating, require_key, require_whole
from jaxblocks.diffusion.parametrizations import (
    converted,
    require_parametrization,
    require_prediction,
    require_solvable,
)
from jaxblocks.diffusion.schedules import Schedule, require_schedule, require_times
from jaxblocks.precision import wide_dtype, widen

__all__ = ["ancestral", "ddim", "dpm_solver_pp_2m", "euler", "heun", "initial_noise", "predictor_corrector"]


def initial_noise(key, shape: tuple[int, ...], schedule: Schedule, dtype=jnp.float32) -> Float[Array, "..."]:
    r"""What sampling starts from: :math:`x_1 = \sigma(1)\,\varepsilon`, normal noise of the schedule's last size.

    >>> from jaxblocks.diffusion import variance_preserving
    >>> initial_noise(jax.random.key(0), (3, 2), variance_preserving_schedule()).shape
    (3, 2)
    """
    require_key("initial_noise", key)
    require_schedule("initial_noise", schedule)
    noise = schedule.noise(jnp.ones((), wide_dtype(dtype)))
    return (noise * jax.random.normal(key, shape, wide_dtype(dtype))).astype(dtype)


def ddim(
    predict: Callable,
    x: Float[Array, "..."],
    times: Float[Array, " times"],
    schedule: Schedule,
    prediction_type: str,
    *,
    eta: float | int = 0.0,
    key=None,
    path: bool = False,
) -> Float[Array, "..."]:
    r"""Denoise, and add the *same* noise again, a little less of it: order 1, and random as far as ``eta`` says.

    From t to the next time s, with :math:`x_0, \varepsilon` from the prediction at t and z new noise:

    .. math:: x_s = \alpha_s x_0 + \sqrt{\sigma_s^2 - \eta^2 v}\;\varepsilon + \eta \sqrt v\,z, \qquad
        v = \frac{\sigma_s^2}{\sigma_t^2} \Big(\sigma_t^2 - \frac{\alpha_t^2}{\alpha_s^2} \sigma_s^2\Big)

    :math:`\eta = 0` follows the probability-flow ODE: Euler's method for :math:`x / \alpha` as a function of
    :math:`\sigma / \alpha`. :math:`\eta = 1` is `ancestral` with ``spread=0``.

    Args:
        predict: ``predict(x, t)``, see the head of this file.
        x: at the first time, see `initial_noise`.
        times: a falling grid, see `times`.
        prediction_type: what ``predict`` returns: "eps", "x0", "v", "score" or "velocity".
        eta: from 0 to 1.
        key: for ``eta`` > 0.
        path: return x at all times, ``(steps + 1, ...)``, rather than at the last.

    Raises:
        ValueError: for times out of order or range, an unknown parametrization, a prediction that has not the shape of
            x, a schedule whose ends are wrong, or a prediction from which x0 cannot be found at the first time.
        TypeError: for integers, or a missing key.

    >>> from jaxblocks.diffusion import gaussian_mixture, times, variance_preserving
    >>> data = gaussian_mixture(jnp.array([[-2.0], [2.0]]), jnp.array([0.01, 0.01]))
    >>> schedule = variance_preserving_schedule()
    >>> x = jnp.array([[-1.0], [0.5]])
    >>> print(ddim(data.predictor(schedule, "eps"), x, times(schedule, 50), schedule, "eps").round(1))
    [[-2.]
     [ 2.]]

    Source: Song, Meng & Ermon 2021, Denoising diffusion implicit models.
    """
    if not (isinstance(eta, numbers.Real) and 0 <= eta <= 1):
        raise ValueError(f"ddim expects eta from 0 (none) to 1 (a draw from the posterior), but {eta!r} came.")
    key = _require_key("ddim", key, eta > 0)
    run = _Run("ddim", predict, x, times, schedule, prediction_type)

    def step(x, now, then, key):
        x0, eps = run.denoise(x, now)
        return _towards(x0, eps, now, then, eta, key)

    return run.scan(step, key, path)


def ancestral(
    predict: Callable,
    x: Float[Array, "..."],
    times: Float[Array, " times"],
    schedule: Schedule,
    prediction_type: str,
    *,
    key,
    spread: float | int = 1.0,
    path: bool = False,
) -> Float[Array, "..."]:
    r"""A draw from the posterior :math:`q(x_s \mid x_t, x_0)` at each step, the x0 predicted: the sampler of DDPM.

    .. math:: x_s = \frac{\alpha_t \sigma_s^2}{\alpha_s \sigma_t^2}\,x_t
        + \frac{\alpha_s \sigma_{t|s}^2}{\sigma_t^2}\,x_0 + \sigma_{t|s}\,\frac{\tau_s}{\tau_t}\,z, \qquad
        \sigma_{t|s}^2 = \sigma_t^2 - \frac{\alpha_t^2}{\alpha_s^2} \sigma_s^2, \quad
        \tau^2 = \alpha^2 d^2 + \sigma^2

    for any schedule, with new noise z (none in a last step to where there is no noise) and d ``spread``: the variance
    is right for normal data of standard deviation d. The two of DDPM are d = 1, its :math:`\beta_t`, and d = 0, its
    :math:`\tilde\beta_t`, the posterior of one point. As steps get smaller, the samples tend to the distribution of the
    data, whatever d; with few steps a d that is too small makes them too narrow, one that is too large too wide.

    Args:
        spread: d, how far the data reach. 0 suits few steps.

    Other arguments and errors are those of `ddim`; ``key`` is required.

    >>> from jaxblocks.diffusion import gaussian_mixture, times, variance_preserving
    >>> data = gaussian_mixture(jnp.array([[3.0]]), jnp.array([4.0]))
    >>> schedule = variance_preserving_schedule()
    >>> x = initial_noise(jax.random.key(0), (5000, 1), schedule)
    >>> predict = data.predictor(schedule, "eps")
    >>> samples = ancestral(predict, x, times(schedule, 200), schedule, "eps", key=jax.random.key(1))
    >>> print(f"{samples.mean():.1f} {samples.std():.1f}")
    3.0 2.0

    Source: Ho et al. 2020, algorithm 2.
    """
    key = _require_key("ancestral", key, True)
    run = _Run("ancestral", predict, x, times, schedule, prediction_type)

    def step(x, now, then, key):
        x0, eps = run.denoise(x, now)
        return _posterior(x0, eps, now, then, spread, key)

    return run.scan(step, key, path)


def euler(
    predict: Callable,
    x: Float[Array, "..."],
    times: Float[Array, " times"],
    schedule: Schedule,
    prediction_type: str,
    *,
    path: bool = False,
) -> Float[Array, "..."]:
    r"""Euler's method on the probability-flow ODE: :math:`x_s = x_t + (s - t)\,u(x_t, t)`, order 1.

    With u the velocity. For `flow_matching_schedule` it is the same as `ddim`; for the others either may be the better one.

    Arguments and errors are those of `ddim`.

    >>> from jaxblocks.diffusion import flow_matching
    >>> predict = lambda x, t: x - 2.0  # the velocity that leads to the point 2, if t = 1 is noise
    >>> print(euler(predict, jnp.array([0.5]), jnp.array([1.0, 0.0]), flow_matching_schedule(), "velocity"))
    [2.]

    Source: Song et al. 2021, section 4.3.
    """
    run = _Run("euler", predict, x, times, schedule, prediction_type)

    def step(x, now, then, key):
        return x + (then["t"] - now["t"]) * run.velocity(x, now)

    return run.scan(step, None, path)


def heun(
    predict: Callable,
    x: Float[Array, "..."],
    times: Float[Array, " times"],
    schedule: Schedule,
    prediction_type: str,
    *,
    path: bool = False,
) -> Float[Array, "..."]:
    r"""Heun's method on the probability-flow ODE, the trapezoidal rule with Euler's guess: order 2.

    .. math:: \tilde x = x_t + (s - t)\,u(x_t, t), \qquad x_s = x_t + \tfrac12 (s - t) \big(u(x_t, t) + u(\tilde x,
    s)\big)

    A last step to where there is no noise is Euler's, since the velocity need not be known there; one step of lower
    order leaves the order of the whole as it is.

    Arguments and errors are those of `ddim`.

    >>> from jaxblocks.diffusion import flow_matching, gaussian_mixture, times
    >>> data = gaussian_mixture(jnp.array([[3.0]]), jnp.array([4.0]))
    >>> schedule = flow_matching_schedule()
    >>> x = jnp.array([[1.0]])  # one standard deviation above the mean, there and here
    >>> print(heun(data.predictor(schedule, "velocity"), x, times(schedule, 100), schedule, "velocity").round(3))
    [[5.]]

    Source: Karras et al. 2022, Elucidating the design space of diffusion-based generative models, algorithm 1.
    """
    run = _Run("heun", predict, x, times, schedule, prediction_type)

    def step(x, now, then, key):
        h = then["t"] - now["t"]
        first = run.velocity(x, now)
        clean = then["noise"] <= 0
        # where the end is clean, the second velocity is taken here and not used, so that nothing divides by 0
        second = run.velocity(x + h * first, {name: jnp.where(clean, now[name], then[name]) for name in now})
        return x + h * jnp.where(clean, first, 0.5 * (first + second))

    return run.scan(step, None, path)


def dpm_solver_pp_2m(
    predict: Callable,
    x: Float[Array, "..."],
    times: Float[Array, " times"],
    schedule: Schedule,
    prediction_type: str,
    *,
    path: bool = False,
) -> Float[Array, "..."]:
    r"""DPM-Solver++(2M): as `ddim`, with an x0 that is extrapolated from this step and the one before. Order 2.

    With :math:`\lambda = \log \alpha / \sigma` (half of the log-SNR), :math:`h_i = \lambda_{t_{i+1}} - \lambda_{t_i}`
    and :math:`x_0^i` predicted at :math:`t_i`,

    .. math:: D = x_0^i + \frac{h_i}{2 h_{i-1}} (x_0^i - x_0^{i-1}), \qquad
        x_{t_{i+1}} = \frac{\sigma_{t_{i+1}}}{\sigma_{t_i}}\,x_{t_i} - \alpha_{t_{i+1}} (e^{-h_i} - 1)\,D

    The first step, and steps from where there is no signal or to where there is no noise (an infinite h), take
    :math:`D = x_0^i`. One call of ``predict`` a step.

    Arguments and errors are those of `ddim`.

    >>> from jaxblocks.diffusion import gaussian_mixture, times, variance_preserving
    >>> data = gaussian_mixture(jnp.array([[3.0]]), jnp.array([4.0]))
    >>> schedule = variance_preserving_schedule()
    >>> x = jnp.array([[1.0]])
    >>> found = dpm_solver_pp_2m(data.predictor(schedule, "v"), x, times(schedule, 100), schedule, "v")
    >>> print(found.round(1))  # one standard deviation above the mean, as x is (about)
    [[5.]]

    Source: Lu et al. 2022, DPM-Solver++, algorithm 2.
    """
    run = _Run("dpm_solver_pp_2m", predict, x, times, schedule, prediction_type)
    log_ratio = jnp.log(jnp.maximum(run.grid["signal"], 0)) - jnp.log(run.grid["noise"])
    h = jnp.diff(log_ratio)
    before, usable = h[:-1], jnp.isfinite(h)
    both = usable[1:] & usable[:-1]
    weight = jnp.where(both, h[1:], 0.0) / (2 * jnp.where(both, before, 1.0))
    weight = jnp.concatenate([jnp.zeros_like(h[:1]), weight])

    def step(carry, now, then, key):
        x, before = carry
        x0, _ = run.denoise(x, now)
        ahead = x0 + now["weight"] * (x0 - before)
        shrink = then["noise"] / now["noise"]
        return shrink * x + (then["signal"] - now["signal"] * shrink) * ahead, x0

    run.grid["weight"] = jnp.concatenate([weight, jnp.zeros_like(h[:1])])
    return run.scan(step, None, path, memory=True)


def predictor_corrector(
    predict: Callable,
    x: Float[Array, "..."],
    times: Float[Array, " times"],
    schedule: Schedule,
    prediction_type: str,
    *,
    key,
    corrections: int = 1,
    snr: float | int = 0.16,
    spread: float | int = 1.0,
    path: bool = False,
) -> Float[Array, "..."]:
    r"""`ancestral` steps, each followed by steps of Langevin dynamics at its time, which mend its distribution.

    .. math:: x \leftarrow x + \delta\, s(x, t) + \sqrt{2\delta}\,z, \qquad \delta = (\sqrt 2\, r\, \sigma(t))^2

    with s the score, r ``snr``, and z new noise. (The paper measures the size of the score to choose :math:`\delta`;
    its size :math:`1 / \sigma` is put in here, so that one sample does not depend on others.) No correction is made at
    a last time without noise. The steps are of finite size, which makes the distribution a little wider than it should
    be.

    Args:
        corrections: Langevin steps at each time.
        snr: r, how large they are, relative to the noise.
        spread: of the ancestral steps.

    Other arguments and errors are those of `ddim`; ``key`` is required.

    >>> from jaxblocks.diffusion import gaussian_mixture, times, variance_preserving
    >>> data = gaussian_mixture(jnp.array([[3.0]]), jnp.array([4.0]))
    >>> schedule = variance_preserving_schedule()
    >>> x = initial_noise(jax.random.key(0), (5000, 1), schedule)
    >>> predict = data.predictor(schedule, "score")
    >>> samples = predictor_corrector(predict, x, times(schedule, 100), schedule, "score", key=jax.random.key(1))
    >>> print(f"{samples.mean():.0f} {samples.std():.0f}")
    3 2

    Source: Song et al. 2021, algorithms 2 to 5.
    """
    corrections = require_whole("predictor_corrector", "corrections", corrections, least=0)
    if not (isinstance(snr, numbers.Real) and 0 < snr < 1):
        raise ValueError(f"predictor_corrector expects 0 < snr < 1, but {snr!r} came; 0.16 is usual.")
    key = _require_key("predictor_corrector", key, True)
    run = _Run("predictor_corrector", predict, x, times, schedule, prediction_type)

    def step(x, now, then, key):
        keys = jax.random.split(key, 1 + corrections)
        x0, eps = run.denoise(x, now)
        x = _posterior(x0, eps, now, then, spread, keys[0])
        clean = then["noise"] <= 0
        place = {name: jnp.where(clean, now[name], then[name]) for name in now}
        size = jnp.where(clean, 0.0, 2.0 * snr * snr) * place["noise"]  # delta / sigma

        def correct(x, key):
            eps = run.eps(x, place)
            z = jax.random.normal(key, x.shape, x.dtype)
            return x - size * eps + jnp.sqrt(2 * size * place["noise"]) * z, None  # the score is - eps / sigma

        return lax.scan(correct, x, keys[1:])[0]

    return run.scan(step, key, path)


# ---- what they share -----------------------------------------------------------------------


def _towards(x0, eps, now, then, eta=0.0, key=None):
    """A step of DDIM from what was predicted."""
    if not eta:
        return then["signal"] * x0 + then["noise"] * eps
    kept, new = _parts(now, then)
    added = eta * then["noise"] * new / now["noise"]
    same = jnp.sqrt(then["noise"] ** 2 - added**2) if eta < 1 else then["noise"] * kept / now["noise"]
    return then["signal"] * x0 + same * eps + added * jax.random.normal(key, x0.shape, x0.dtype)


def _posterior(x0, eps, now, then, spread, key):
    """A draw from the posterior of x at ``then``, the variance that of normal data of standard deviation ``spread``."""
    kept, new = _parts(now, then)
    mean = then["signal"] * x0 + then["noise"] * kept / now["noise"] * eps
    variance = lambda at: (at["signal"] * spread) ** 2 + at["noise"] ** 2
    added = jnp.where(then["noise"] > 0, new * jnp.sqrt(variance(then) / variance(now)), 0.0)
    return mean + added * jax.random.normal(key, x0.shape, x0.dtype)


def _parts(now, then):
    """What of the noise at ``now`` was there at ``then``, and what is new since (standard deviations)."""
    kept = now["signal"] / then["signal"] * then["noise"]
    return kept, jnp.sqrt(now["noise"] ** 2 - kept**2)


class _Run:
    """What every sampler does first, and its scan."""

    def __init__(self, where, predict, x, times, schedule, prediction_type):
        require_schedule(where, schedule)
        require_parametrization(where, prediction_type)
        if not callable(predict):
            raise TypeError(
                f"{where} expects a function predict(x, t), but {describe_any(predict)} came; "
                "write lambda x, t: net.apply(params, x, time=...)."
            )
        require_floating(where, x=x)
        times = require_times(where, times, wide_dtype(x.dtype))
        require_solvable(where, times[:1], schedule, prediction_type, "x0" if prediction_type != "x0" else "eps")
        self.where, self.predict, self.schedule, self.prediction_type = where, predict, schedule, prediction_type
        self.x, self.dtype = widen(x), x.dtype
        self.grid = {"t": times, "signal": schedule.signal(times), "noise": schedule.noise(times)}

    def prediction(self, x, now):
        given = x.astype(self.dtype)
        found = self.predict(given, now["t"])
        require_prediction(self.where, found, given)
        require_floating(f"{self.where}: predict", prediction=found)
        return found.astype(x.dtype)

    def convert(self, prediction, x, now, target):
        return converted(prediction, x, now["t"], self.schedule, self.prediction_type, target)

    def denoise(self, x, now):
        """x0 and eps at x."""
        prediction = self.prediction(x, now)
        return self.convert(prediction, x, now, "x0"), self.convert(prediction, x, now, "eps")

    def eps(self, x, now):
        return self.convert(self.prediction(x, now), x, now, "eps")

    def velocity(self, x, now):
        return self.convert(self.prediction(x, now), x, now, "velocity")

    def scan(self, step, key, path, memory=False):
        now = {name: value[:-1] for name, value in self.grid.items()}
        then = {name: value[1:] for name, value in self.grid.items()}
        keys = None if key is None else jax.random.split(key, len(self.grid["t"]) - 1)

        def body(carry, given):
            carry = step(carry, *given)
            x = carry[0] if memory else carry
            return carry, x.astype(self.dtype) if path else None

        first = (self.x, jnp.zeros_like(self.x)) if memory else self.x
        last, seen = lax.scan(body, first, (now, then, keys))
        if path:
            return jnp.concatenate([self.x[None].astype(self.dtype), seen])
        return (last[0] if memory else last).astype(self.dtype)


def _require_key(where, key, needed):
    if not needed:
        return None
    if key is None:
        raise TypeError(f"{where} draws new noise and needs a key; pass key=jax.random.key(0).")
    require_key(where, key)
    return key
