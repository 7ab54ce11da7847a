r"""Noise schedules: how much is left of the data, and how much noise there is, at each time.

A diffusion process blurs data :math:`x_0` with Gaussian noise,

.. math:: x_t = \alpha(t)\,x_0 + \sigma(t)\,\varepsilon, \qquad \varepsilon \sim N(0, I), \qquad t \in [0, 1],

from t = 0, the data, to t = 1, (almost) pure noise. A `Schedule` is the two functions :math:`\alpha` (``signal``) and
:math:`\sigma` (``noise``) of t. What is made of t here is continuous; the steps of a sampler are a grid of times, which
`times` makes. A schedule of your own is ``Schedule(signal, noise)``.

Everywhere in this folder a time is one number, or an array whose axes are the first ones of ``x`` (one time for each
example).

Axis letters: ``...`` the axes of an array x; ``times`` of a grid.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from jaxblocks.checks import check_values, checkable, describe, describe_any, require_floating, require_whole
from jaxblocks.precision import wide_dtype, widen

__all__ = [
    "Schedule",
    "add_noise",
    "align",
    "cosine_schedule",
    "ddpm_schedule",
    "flow_matching_schedule",
    "require_schedule",
    "require_times",
    "times",
    "variance_exploding_schedule",
    "variance_preserving_schedule",
]


class Schedule(NamedTuple):
    r"""Two functions of time, :math:`\alpha(t)` and :math:`\sigma(t)`, in :math:`x_t = \alpha x_0 + \sigma\varepsilon`.

    Args:
        signal: :math:`\alpha`, from 1 at t = 0 to (about) 0 at t = 1, or 1 throughout.
        noise: :math:`\sigma`, from 0 at t = 0 to much more than the signal at t = 1.

    Both act entry by entry, are differentiable for 0 < t < 1, and :math:`\alpha / \sigma` falls. Whoever takes a
    schedule looks at its ends, and raises a ``ValueError`` that tells the value where one is wrong.

    >>> line = Schedule(signal=lambda t: 1 - t, noise=lambda t: t)
    >>> print(line.signal(0.25), line.noise(0.25), f"{line.log_snr(0.25):.3f}")
    0.75 0.25 2.197
    """

    signal: Callable[..., Any]
    noise: Callable[..., Any]

    def log_snr(self, t):
        r"""The logarithm of the ratio of signal to noise, :math:`\log \alpha^2 / \sigma^2`; infinite where one is 0."""
        t = _time(t)
        return 2 * (jnp.log(self.signal(t)) - jnp.log(self.noise(t)))

    def rates(self, t):
        r"""The derivatives :math:`(\alpha', \sigma')` at t; :math:`\sigma'` may be infinite at t = 0."""
        t = _time(t)
        ones = jnp.ones_like(t)
        return jax.jvp(self.signal, (t,), (ones,))[1], jax.jvp(self.noise, (t,), (ones,))[1]


def variance_preserving_schedule(beta_min: float | int = 0.1, beta_max: float | int = 20.0) -> Schedule:
    r"""Noise at a rate that grows linearly, the continuous form of DDPM: :math:`\alpha^2 + \sigma^2 = 1`.

    .. math:: \alpha^2 = e^{-B}, \quad \sigma^2 = 1 - e^{-B}, \quad B(t) = \int_0^t \beta =
        \beta_{\min} t + (\beta_{\max} - \beta_{\min})\,t^2 / 2

    Data of variance 1 keep it. :math:`\sigma` grows like :math:`\sqrt t` at t = 0, so its rate is infinite there.

    Raises:
        ValueError: unless ``0 <= beta_min <= beta_max``, or where they leave too much signal at t = 1.

    >>> schedule = variance_preserving_schedule()
    >>> print(f"{schedule.signal(1.0):.4f} {schedule.noise(1.0):.4f}")
    0.0066 1.0000

    Source: Song et al. 2021, Score-based generative modeling through stochastic differential equations; Ho et al. 2020.
    """
    if not 0 <= beta_min <= beta_max:
        raise ValueError(
            f"variance_preserving expects 0 <= beta_min <= beta_max, but {beta_min} and {beta_max} came; "
            "beta is the rate of the noise at t = 0 and t = 1."
        )
    total = lambda t: t * (beta_min + 0.5 * (beta_max - beta_min) * t)
    return _checked(
        "variance_preserving_schedule",
        lambda t: jnp.exp(-0.5 * total(_time(t))),
        lambda t: jnp.sqrt(-jnp.expm1(-total(_time(t)))),
    )


def cosine_schedule(signal_end: float | int = 1e-3) -> Schedule:
    r"""A quarter of a turn, :math:`\alpha = \cos\varphi,\; \sigma = \sin\varphi`, with the angle proportional to t.

    It ends just before the quarter, where :math:`\alpha(1)` is ``signal_end``: at :math:`\alpha = 0` the data could not
    be found from the noise. It stands for the schedule of Nichol & Dhariwal, whose offset of 0.008 keeps the first of
    their 1000 steps from being too small, and is not needed where time is continuous.

    Raises:
        ValueError: unless ``0 < signal_end <= 0.1``.

    >>> schedule = cosine_schedule()
    >>> print(f"{schedule.signal(0.5):.4f} {schedule.noise(0.5):.4f} {schedule.signal(1.0):.4f}")
    0.7075 0.7068 0.0010

    Source: Nichol & Dhariwal 2021, Improved denoising diffusion probabilistic models.
    """
    if not 0 < signal_end <= 0.1:
        raise ValueError(f"cosine expects 0 < signal_end <= 0.1, but {signal_end} came; it is what is left at t = 1.")
    end = math.acos(signal_end)
    return _checked("cosine_schedule", lambda t: jnp.cos(end * _time(t)), lambda t: jnp.sin(end * _time(t)))


def ddpm_schedule(steps: int = 1000, beta_first: float | int = 1e-4, beta_last: float | int = 0.02) -> Schedule:
    r"""The discrete schedule of DDPM: :math:`\alpha^2 = \bar\alpha_k = \prod_{i \le k} (1 - \beta_i)`.

    At t = k / ``steps``, with ``steps`` equidistant :math:`\beta_i` from ``beta_first`` to ``beta_last``; for nets that
    were trained with this table. In between, :math:`\log \bar\alpha` is linear, so that its rate jumps at each k: for
    new nets take `variance_preserving_schedule`, its smooth form.

    Raises:
        ValueError: unless ``0 < beta_first <= beta_last < 1``, or where they leave too much signal at t = 1.

    >>> schedule = ddpm_schedule()
    >>> print(f"{schedule.signal(1 / 1000) ** 2:.4f} {schedule.signal(1.0) ** 2:.6f}")
    0.9999 0.000040

    Source: Ho et al. 2020, Denoising diffusion probabilistic models, section 4.
    """
    steps = require_whole("ddpm_schedule", "steps", steps, least=2)
    if not 0 < beta_first <= beta_last < 1:
        raise ValueError(
            f"ddpm expects 0 < beta_first <= beta_last < 1, but {beta_first} and {beta_last} came; they are the "
            "variances of the noise in the first and the last step."
        )
    log_kept = np.concatenate([[0.0], np.cumsum(np.log1p(-np.linspace(beta_first, beta_last, steps)))])

    def log_alpha_bar(t):
        table = jnp.asarray(log_kept, t.dtype)
        k = jnp.clip(lax.stop_gradient(t * steps).astype(jnp.int32), 0, steps - 1)
        return table[k] + (t * steps - k.astype(t.dtype)) * (table[k + 1] - table[k])

    return _checked(
        "ddpm_schedule",
        lambda t: jnp.exp(0.5 * log_alpha_bar(_time(t))),
        lambda t: jnp.sqrt(-jnp.expm1(log_alpha_bar(_time(t)))),
    )


def variance_exploding_schedule(noise_min: float | int = 0.01, noise_max: float | int = 50.0) -> Schedule:
    r"""The data stay, and noise is added, ever faster: :math:`\alpha = 1`.

    .. math:: \sigma^2 = \sigma_{\min}^2 \big( (\sigma_{\max} / \sigma_{\min})^{2t} - 1 \big)

    the variance at t of the process that starts from the data. (Often the 1 is left out; then the noise at t = 0 is not
    0 but ``noise_min``.) ``noise_max`` should be well above the distance of the data from each other.

    Raises:
        ValueError: unless ``0 < noise_min < noise_max``, or where ``noise_max`` is too small.

    >>> schedule = variance_exploding_schedule()
    >>> print(schedule.signal(0.5), f"{schedule.noise(0.5):.3f} {schedule.noise(1.0):.1f}")
    1.0 0.707 50.0

    Source: Song et al. 2021, appendix C.
    """
    if not 0 < noise_min < noise_max:
        raise ValueError(
            f"variance_exploding expects 0 < noise_min < noise_max, but {noise_min} and {noise_max} came; "
            "they are the smallest noise that matters, and the noise at t = 1."
        )
    exponent = 2 * math.log(noise_max / noise_min)
    return _checked(
        "variance_exploding_schedule",
        lambda t: jnp.ones_like(_time(t)),
        lambda t: noise_min * jnp.sqrt(jnp.expm1(exponent * _time(t))),
    )


def flow_matching_schedule() -> Schedule:
    r"""A straight line from the data to the noise: :math:`\alpha = 1 - t,\; \sigma = t`.

    Its velocity :math:`dx/dt = \varepsilon - x_0` is what flow matching learns. (Time runs as everywhere here, from
    data to noise; some papers run it the other way, with the other sign.) At t = 1 no signal is left, so nothing can be
    found
    from the noise there: predict ``velocity``, ``x0`` or ``v``.

    >>> schedule = flow_matching_schedule()
    >>> print(schedule.signal(0.25), schedule.noise(0.25))
    0.75 0.25

    Source: Lipman et al. 2023, Flow matching for generative modeling; Liu et al. 2023 (rectified flow).
    """
    return _checked("flow_matching_schedule", lambda t: 1 - _time(t), lambda t: +_time(t))


def add_noise(
    x0: Float[Array, "*shape"],
    eps: Float[Array, "*shape"],
    t: float | int | Float[Array, "*_batch"],
    schedule: Schedule,
    *,
    check: bool = False,
) -> Float[Array, "*shape"]:
    r"""The data at time t: :math:`x_t = \alpha(t)\,x_0 + \sigma(t)\,\varepsilon`, a draw from :math:`q(x_t \mid x_0)`.

    With :math:`\varepsilon` = ``eps``, standard normal noise of the shape of ``x0`` (``q_sample`` in other libraries).
    t is one number, or has the first axes of ``x0``.

    Raises:
        ValueError: for shapes that do not fit, a time outside of [0, 1] (under ``jit`` with ``check=True`` only), or a
            schedule whose ends are wrong.
        TypeError: for integers.

    >>> x0, eps = jnp.array([[2.0], [2.0]]), jnp.array([[1.0], [1.0]])
    >>> print(add_noise(x0, eps, jnp.array([0.0, 0.5]), flow_matching_schedule()))
    [[2. ]
     [1.5]]

    Source: Ho et al. 2020, equation 4.
    """
    require_schedule("add_noise", schedule)
    require_floating("add_noise", x0=x0, eps=eps)
    if x0.shape != eps.shape:
        raise ValueError(
            f"add_noise expects noise of the shape of x0, but x0 is {describe(x0)} and eps {describe(eps)}; "
            "draw it with jax.random.normal(key, x0.shape, x0.dtype)."
        )
    wide = widen(x0)
    t = require_time("add_noise", t, wide, check)
    x = align(schedule.signal(t), wide) * wide + align(schedule.noise(t), wide) * eps.astype(wide.dtype)
    return x.astype(x0.dtype)


_SPACINGS = ("balanced", "time", "log_snr")


def times(
    schedule: Schedule, steps: int, spacing: str = "balanced", *, start: float | int = 1.0, end: float | int = 0.0
) -> Float[Array, " times"]:
    r"""A grid of ``steps`` + 1 times for a sampler, falling from ``start`` to ``end``.

    ``spacing`` names what is equidistant:

    - ``"balanced"``: the share of the noise :math:`\sqrt\sigma / (\sqrt\alpha + \sqrt\sigma)`, which goes from 0 to 1
      for every schedule. Near both ends :math:`\sigma / \alpha` (or its inverse) then falls with the square of the
      number of steps to go. That is what a sampler of second order needs in order to keep its order up to the ends, and
      makes grids of different schedules comparable.
    - ``"time"``: t. With `variance_preserving_schedule` and `variance_exploding_schedule`, where :math:`\sigma \sim \sqrt t`, a sampler
      of second order then loses its order in the last step, if little.
    - ``"log_snr"``: :math:`\log \alpha^2/\sigma^2`; ``start`` and ``end`` must lie where it is finite.

    Raises:
        ValueError: for a spacing that is none of these, times out of order or range, an infinite log-SNR, or so many
            steps that float32 cannot tell the times apart.

    >>> print(times(flow_matching_schedule(), 4, "time"))
    [1.   0.75 0.5  0.25 0.  ]
    >>> print(times(flow_matching_schedule(), 2))
    [1.  0.5 0. ]

    Source: "balanced" is ours, after Karras et al. 2022 (table 1), whose grid is a power of the noise between two
    bounds; "log_snr" is that of Lu et al. 2022, DPM-Solver.
    """
    require_schedule("times", schedule)
    steps = require_whole("times", "steps", steps)
    if spacing not in _SPACINGS:
        raise ValueError(f"times expects a spacing out of {', '.join(_SPACINGS)}, but {spacing!r} came; name one.")
    if not 0 <= end < start <= 1:
        raise ValueError(
            f"times expects 0 <= end < start <= 1, but start={start} and end={end} came; sampling goes from noise at "
            "t = 1 to data at t = 0."
        )
    places = {"balanced": _share_of_noise, "log_snr": lambda schedule, t: -schedule.log_snr(t)}.get(spacing)
    if places is None:
        return jnp.linspace(start, end, steps + 1)
    with jax.ensure_compile_time_eval():  # a grid is made of numbers, also inside of jit
        place = lambda t: places(schedule, t)
        first, last = place(_time(start)), place(_time(end))
        if not (jnp.isfinite(first) & jnp.isfinite(last)):
            where = f"start={start}" if not jnp.isfinite(first) else f"end={end}"
            raise ValueError(
                f"times expects a finite log-SNR at both ends for spacing 'log_snr', but it is infinite at {where}; "
                "move it inside, as in start=0.999, end=0.001."
            )
        wanted = jnp.linspace(first, last, steps + 1)

        def halve(_, bounds):
            low, high = bounds
            middle = 0.5 * (low + high)
            above = place(middle) > wanted
            return jnp.where(above, low, middle), jnp.where(above, middle, high)

        bounds = jnp.full_like(wanted, end), jnp.full_like(wanted, start)
        low, high = lax.fori_loop(0, 100 if wanted.dtype == jnp.float64 else 60, halve, bounds)
        grid = (0.5 * (low + high)).at[0].set(start).at[-1].set(end)
        if not (jnp.diff(grid) < 0).all():
            raise ValueError(
                f"times cannot tell {steps} steps of spacing {spacing!r} apart in {grid.dtype}; take fewer steps, or "
                "float64."
            )
        return grid


def _share_of_noise(schedule, t):
    root = jnp.sqrt(schedule.noise(t))
    return root / (jnp.sqrt(jnp.maximum(schedule.signal(t), 0)) + root)


# ---- shared by the files of this folder ----------------------------------------------------


def align(t, x):
    """A value for each time, with axes of length 1 up to those of ``x``: ``(batch,)`` becomes ``(batch, 1, 1)``.

    >>> align(jnp.zeros(5), jnp.zeros((5, 2, 3))).shape
    (5, 1, 1)
    """
    return t.reshape(t.shape + (1,) * (x.ndim - t.ndim)).astype(x.dtype)


def require_time(where: str, t, x, check: bool = False):
    """t as an array in the dtype to compute in; raises unless it is in [0, 1] and has the first axes of ``x``."""
    if hasattr(t, "dtype"):
        require_floating(where, t=t)
    t = jnp.asarray(t, wide_dtype(x.dtype))
    if t.shape != x.shape[: t.ndim]:
        raise ValueError(
            f"{where} expects one time, or times with the first axes of x, but t is {describe(t)} and x {describe(x)}; "
            "pass one time for each example."
        )
    if (known := checkable(t, check)) is not None:
        check_values(
            (known >= 0) & (known <= 1),
            f"{where} expects times from 0 (data) to 1 (noise), but from {{least}} to {{most}} came; divide a number "
            "of steps by their total.",
            check=check,
            least=known.min(),
            most=known.max(),
        )
    return t


def require_times(where: str, times, dtype):
    """A grid of times in ``dtype``; raises unless it falls within [0, 1] (where its values are known)."""
    if not (hasattr(times, "dtype") and hasattr(times, "shape")) or not jnp.issubdtype(times.dtype, jnp.floating):
        raise TypeError(
            f"{where} expects an array of times, but {describe_any(times)} came; make one with times(schedule, steps)."
        )
    if len(times.shape) != 1 or times.shape[0] < 2:
        raise ValueError(
            f"{where} expects at least two times in a row, but {describe(times)} came; "
            "make them with times(schedule, steps)."
        )
    if (known := checkable(times, False)) is not None:
        known = np.asarray(known)
        if not (known.min() >= 0 and known.max() <= 1):
            raise ValueError(
                f"{where} expects times from 1 (noise) to 0 (data), but from {known.min()} to {known.max()} came; "
                "divide a number of steps by their total."
            )
        wrong = np.flatnonzero(~(np.diff(known) < 0))
        if len(wrong):
            raise ValueError(
                f"{where} expects times that fall, from noise to data, but {known[wrong[0]]} is followed by "
                f"{known[wrong[0] + 1]} (place {wrong[0] + 1}); sort them, as in jnp.sort(times)[::-1], without "
                "repeats."
            )
    return jnp.asarray(times).astype(dtype)


def require_schedule(where: str, schedule) -> None:
    """Raise unless ``schedule`` is a `Schedule` with right ends: a ``TypeError``, or a ``ValueError`` that tells its
    value.

    >>> require_schedule("add_noise", Schedule(lambda t: t, lambda t: 1 - t))
    Traceback (most recent call last):
    ...
    ValueError: add_noise expects a schedule with signal 1 and noise 0 at t = 0, but its signal is 0 and its noise 1 ...
    """
    if not isinstance(schedule, Schedule):
        name = getattr(schedule, "__name__", "")
        repair = (
            f"call it: {name}()" if callable(schedule) and name else "pass for instance variance_preserving_schedule()"
        )
        came = f"the function {name}" if callable(schedule) and name else describe_any(schedule)
        raise TypeError(f"{where} expects a schedule, but {came} came; {repair}.")
    if (wrong := _what_is_wrong(schedule)) is not None:
        raise ValueError(f"{where} expects {wrong}")


def _what_is_wrong(schedule: Schedule) -> str | None:
    """What is wrong with a schedule, in words; ``None`` if nothing is, or where nobody knows (it is traced)."""
    try:
        hash(schedule)
    except TypeError:
        look = _look_at.__wrapped__
    else:
        look = _look_at
    try:
        return look(schedule)
    except _TracedError:
        return None


class _TracedError(Exception):
    """The schedule has parameters that are traced; an error is not kept by the cache, a tracer would be."""


@functools.lru_cache(maxsize=64)
def _look_at(schedule):
    with jax.ensure_compile_time_eval():
        probes = jnp.linspace(0, 1, 33, dtype=jnp.float32)
        signal, noise = schedule.signal(probes), schedule.noise(probes)
    try:
        jax.eval_shape(lambda t: (schedule.signal(t), schedule.noise(t)), probes)
    except jax.errors.TracerArrayConversionError:
        return (
            "a schedule written with jax.numpy, but its signal or noise uses NumPy, which jit cannot trace; write jnp."
        )
    for name, value in (("signal", signal), ("noise", noise)):
        if jnp.shape(value) != probes.shape:
            return (
                f"a schedule of functions that act entry by entry, but its {name} of {describe(probes)} is "
                f"{describe(value)}; write it with jax.numpy, and a constant as jnp.ones_like(t)."
            )
    if isinstance(signal, jax.core.Tracer) or isinstance(noise, jax.core.Tracer):
        raise _TracedError
    signal, noise = np.asarray(signal, np.float64), np.asarray(noise, np.float64)
    if not (np.isfinite(signal).all() and np.isfinite(noise).all() and (signal >= -1e-6).all() and (noise >= 0).all()):
        bad = int(np.argmin(np.isfinite(signal) & np.isfinite(noise) & (signal >= -1e-6) & (noise >= 0)))
        return (
            f"a schedule whose signal and noise are numbers >= 0, but at t = {bad / 32:g} its signal is "
            f"{signal[bad]:.4g} and its noise {noise[bad]:.4g}; mend the functions there."
        )
    if abs(signal[0] - 1) > 0.05 or noise[0] > 0.1:
        return (
            f"a schedule with signal 1 and noise 0 at t = 0, but its signal is {signal[0]:.4g} and its noise "
            f"{noise[0]:.4g} there; time runs from data (t = 0) to noise (t = 1): write t -> 1 - t in both functions "
            "if yours runs the other way."
        )
    if signal[-1] > 0.1 * noise[-1]:
        return (
            "a schedule with much more noise than signal at t = 1, where sampling starts from pure noise, but its "
            f"signal is {signal[-1]:.4g} and its noise {noise[-1]:.4g} there; let the signal end at a tenth of the "
            "noise at most."
        )
    angle = np.arctan2(noise, signal)
    if not (np.diff(angle) > 0).all():
        place = int(np.argmin(np.diff(angle) > 0))
        return (
            "a schedule in which the ratio of signal to noise falls, but it does not between "
            f"t = {place / 32:g} and t = {(place + 1) / 32:g}; let the noise grow there."
        )
    return None


def _checked(where: str, signal: Callable, noise: Callable) -> Schedule:
    schedule = Schedule(signal, noise)
    require_schedule(where, schedule)
    return schedule


def _time(t):
    """t as an array without weak type, wide enough to compute in."""
    if hasattr(t, "dtype"):
        return widen(jnp.asarray(t))
    return jnp.asarray(t, jnp.result_type(float))
