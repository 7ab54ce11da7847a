r"""Noise schedules: the coefficients of data and noise at each time.

A diffusion process adds Gaussian noise to data $x_0$,

.. math::

    x_t = α(t) x_0 + σ(t) ε,
    ε ∼ N(0, I),
    t ∈ [0, 1],

from t = 0, the data, to t = 1, (almost) pure noise. A `Schedule` is the pair of functions $α$ (``signal``)
and $σ$ (``noise``) of t; ``Schedule(signal, noise)`` makes one from any two functions. Time is continuous;
`times` makes the grid of times for the steps of a sampler.

In this subpackage a time is one number, or an array whose axes are the first ones of ``x`` (one time for each example).

Axis letters: ``...`` the axes of an array x; ``times`` of a grid.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jaxtyping import Array, Float

from jaxblocks.backend.precision import wide_dtype, widen
from jaxblocks.checks.errors import describe, require
from jaxblocks.checks.expectations import PositiveFloat, PositiveInt, Range, checked
from jaxblocks.checks.values import check_entries, checkable
from jaxblocks.core.recording import Call

__all__ = [
    "Schedule",
    "add_noise",
    "align",
    "check_schedule",
    "checked_time",
    "checked_times",
    "cosine_schedule",
    "ddpm_schedule",
    "flow_matching_schedule",
    "times",
    "variance_exploding_schedule",
    "variance_preserving_schedule",
]


F = TypeVar("F", bound=Callable)


class _Functions(NamedTuple):
    signal: Callable[..., Any]
    noise: Callable[..., Any]


class Schedule(_Functions):
    r"""Two functions of time, $α(t)$ and $σ(t)$, in $x_t = α x_0 + σε$.

    Args:
        signal: $α$, from 1 at t = 0 to (about) 0 at t = 1, or 1 throughout.
        noise: $σ$, from 0 at t = 0 to much more than the signal at t = 1.

    Both act elementwise and are differentiable for 0 < t < 1, and $α / σ$ decreases. Functions that
    take a schedule check its values at t = 0 and t = 1, and raise a ``ValueError`` that contains a wrong value. A
    schedule made by a function of `jaxblocks.diffusion` prints and pickles as the call that made it.

    >>> line = Schedule(signal=lambda t: 1 - t, noise=lambda t: t)
    >>> print(line.signal(0.25), line.noise(0.25), f"{line.log_snr(0.25):.3f}")
    0.75 0.25 2.197
    >>> ddpm_schedule(steps=500)
    ddpm_schedule(steps=500)
    """

    call: Call | None = None
    is_valid = False  # set by `check_schedule`, which inspects a schedule once

    def __repr__(self) -> str:
        return str(self.call) if self.call else super().__repr__()

    def __reduce__(self):
        # The functions are closures, which pickle does not take; the call is repeated instead.
        return self.call.reduced() if self.call else (Schedule, tuple(self))

    def log_snr(self, t: float | int | Float[Array, "*batch"]) -> Float[Array, "*batch"]:
        r"""The logarithm of the signal-to-noise ratio, $log α^2 / σ^2$; infinite where one is 0."""
        t = _time(t)
        return 2 * (jnp.log(self.signal(t)) - jnp.log(self.noise(t)))

    def rates(self, t: float | int | Float[Array, "*batch"]) -> tuple[Float[Array, "*batch"], Float[Array, "*batch"]]:
        r"""The derivatives $(α', σ')$ at t; $σ'$ may be infinite at t = 0."""
        t = _time(t)
        ones = jnp.ones_like(t)
        return jax.jvp(self.signal, (t,), (ones,))[1], jax.jvp(self.noise, (t,), (ones,))[1]


def _records_call(function: F) -> F:
    """Check the arguments of a function that makes a schedule, and let the schedule print and pickle as the call."""

    @functools.wraps(function)
    def make(*args, **kwargs):
        schedule = checked_function(*args, **kwargs)
        schedule.call = Call(make, args, kwargs)
        return schedule

    checked_function = checked(function)
    return make  # type: ignore[return-value]


@_records_call
def variance_preserving_schedule(*, beta_min: float | int = 0.1, beta_max: float | int = 20.0) -> Schedule:
    r"""Noise at a rate that grows linearly, the continuous form of DDPM: $α^2 + σ^2 = 1$.

    .. math::

        α^2 = e^{-B},
        σ^2 = 1 - e^{-B},
        B(t) = ∫_0^t β = β_{min} t + (β_{max} - β_{min}) t^2 / 2

    The variance of data of variance 1 stays 1. $σ$ grows like $√t$ at t = 0, so its rate is
    infinite there.

    Raises:
        ValueError: unless ``0 <= beta_min <= beta_max``, or where they leave too much signal at t = 1.

    >>> schedule = variance_preserving_schedule()
    >>> print(f"{schedule.signal(1.0):.4f} {schedule.noise(1.0):.4f}")
    0.0066 1.0000

    Source: Song et al. 2021, Score-based generative modeling through stochastic differential equations,
    arXiv:2011.13456; Ho et al. 2020, arXiv:2006.11239.
    """
    order = 0 <= beta_min <= beta_max
    require(order, "0 <= beta_min <= beta_max", (beta_min, beta_max), "pass the rates of the noise at t = 0 and t = 1")
    total = lambda t: t * (beta_min + 0.5 * (beta_max - beta_min) * t)
    return _schedule(
        lambda t: jnp.exp(-0.5 * total(_time(t))),
        # expm1, since 1 - exp(-B) cancels for the small B near t = 0, where samplers end.
        lambda t: jnp.sqrt(-jnp.expm1(-total(_time(t)))),
    )


@_records_call
def cosine_schedule(*, signal_end: Annotated[float | int, Range(0, most=0.1, open_below=True)] = 1e-3) -> Schedule:
    r"""The cosine schedule, $α = cos φ, σ = sin φ$, with an angle proportional to t.

    It ends at an angle below $π / 2$, where $α(1)$ is ``signal_end``, since at $α = 0$
    the noise does not determine the data. Unlike the schedule of Nichol & Dhariwal it has no offset of 0.008, which
    enlarges the first of their 1000 steps and is not needed in continuous time.

    Raises:
        ValueError: unless ``0 < signal_end <= 0.1``.

    >>> schedule = cosine_schedule()
    >>> signal, noise = schedule.signal, schedule.noise
    >>> print(f"{signal(0.5):.4f} {noise(0.5):.4f} {signal(1.0):.4f}")
    0.7075 0.7068 0.0010

    Source: Nichol & Dhariwal 2021, Improved denoising diffusion probabilistic models, arXiv:2102.09672.
    """
    end = math.acos(signal_end)
    return _schedule(lambda t: jnp.cos(end * _time(t)), lambda t: jnp.sin(end * _time(t)))


@_records_call
def ddpm_schedule(
    *,
    steps: Annotated[int, Range(2)] = 1000,
    beta_schedule: Literal["linear", "scaled_linear", "squaredcos_cap_v2"] = "linear",
    beta_start: float | int = 1e-4,
    beta_end: float | int = 0.02,
    betas: Sequence[float] | np.ndarray | jax.Array | None = None,
) -> Schedule:
    r"""The discrete schedule of DDPM: $α^2 = ᾱ_k = ∏_{i ≤ k} (1 - β_i)$.

    At t = k / ``steps``, for nets that were trained with this table. (Libraries that count steps from 0 call it step
    k - 1.) In between, $log ᾱ$ is linear, so that its rate jumps at each k: for new nets use
    `variance_preserving_schedule`, its smooth form.

    Args:
        steps: the number of $β_i$.
        beta_schedule: as in diffusers: ``"linear"``, equidistant $β_i$ from ``beta_start`` to ``beta_end``
            (DDPM); ``"scaled_linear"``, equidistant $√(β_i)$ (Stable Diffusion, from 0.00085 to 0.012);
            ``"squaredcos_cap_v2"``, $β_i = min(1 - c(i / n) / c((i - 1) / n), 0.999)$ with
            $c(t) = cos^2(((t + 0.008) / (1.008)) (π/2))$ and n ``steps``, without ``beta_start`` and
            ``beta_end``.
        betas: the table itself, $β_1, …$, in place of all other arguments.

    Raises:
        ValueError: unless ``0 < beta_start <= beta_end < 1``, for ``betas`` outside of (0, 1), or where they leave too
            much signal at t = 1.

    >>> schedule = ddpm_schedule()
    >>> print(f"{schedule.signal(1 / 1000) ** 2:.4f} {schedule.signal(1.0) ** 2:.6f}")
    0.9999 0.000040
    >>> betas = dict(beta_start=0.00085, beta_end=0.012)
    >>> schedule = ddpm_schedule(beta_schedule="scaled_linear", **betas)
    >>> print(f"{schedule.signal(1.0) ** 2:.4f}")
    0.0047
    >>> print(f"{ddpm_schedule(betas=[0.5, 0.99]).signal(0.5) ** 2:.2f}")
    0.50

    Source: Ho et al. 2020, Denoising diffusion probabilistic models, section 4, arXiv:2006.11239; Rombach et al. 2022,
    arXiv:2112.10752 (scaled linear); Nichol & Dhariwal 2021, section 3.2, arXiv:2102.09672 (squared cosine).
    """
    if betas is not None:
        table = np.asarray(betas, np.float64)
        steps = len(table) if table.ndim == 1 else 0
        repair = "pass the variances of the noise of the single steps"
        valid = steps > 1 and ((table > 0) & (table < 1)).all()
        require(valid, "betas, at least two numbers between 0 and 1 on one axis", np.asarray(betas), repair)
    elif beta_schedule == "squaredcos_cap_v2":
        kept = np.cos((np.linspace(0, 1, steps + 1) + 0.008) / 1.008 * np.pi / 2) ** 2
        # The last factor would be 0, and its logarithm infinite; the limit is that of the paper.
        table = np.minimum(1 - kept[1:] / kept[:-1], 0.999)
    else:
        order = 0 < beta_start <= beta_end < 1
        repair = "pass the variances of the noise of the first and the last step"
        require(order, "0 < beta_start <= beta_end < 1", (beta_start, beta_end), repair)
        power = 2 if beta_schedule == "scaled_linear" else 1
        table = np.linspace(beta_start ** (1 / power), beta_end ** (1 / power), steps) ** power
    # Sums of logarithms in float64: the product of 1000 factors would lose digits, and underflow for large betas.
    # -0.0, so that the noise at t = 0 is 0.0 and its rate infinity; those of 0.0 are -0.0 and -infinity.
    log_kept = np.concatenate([[-0.0], np.cumsum(np.log1p(-table))])

    def log_alpha_bar(t):
        table = jnp.asarray(log_kept, t.dtype)
        # The index is clipped to steps - 1, so that t = 1 reads the end of the last interval.
        k = jnp.clip(lax.stop_gradient(t * steps).astype(jnp.int32), 0, steps - 1)
        return table[k] + (t * steps - k.astype(t.dtype)) * (table[k + 1] - table[k])

    return _schedule(
        lambda t: jnp.exp(0.5 * log_alpha_bar(_time(t))),
        lambda t: jnp.sqrt(-jnp.expm1(log_alpha_bar(_time(t)))),
    )


@_records_call
def variance_exploding_schedule(*, noise_min: PositiveFloat = 0.01, noise_max: PositiveFloat = 50.0) -> Schedule:
    r"""Noise that grows exponentially, on data that keep their scale: $α = 1$.

    .. math::

        σ^2 = σ_{min}^2 ( (σ_{max} / σ_{min})^{2t} - 1 )

    the variance at t of the process that starts from the data. (Some definitions leave the 1 out; then the noise at
    t = 0 is ``noise_min``.) ``noise_max`` should be well above the distances between data points.

    Raises:
        ValueError: unless ``0 < noise_min < noise_max``, or where ``noise_max`` is too small.

    >>> schedule = variance_exploding_schedule()
    >>> print(schedule.signal(0.5), f"{schedule.noise(0.5):.3f} {schedule.noise(1.0):.1f}")
    1.0 0.707 50.0

    Source: Song et al. 2021, appendix C, arXiv:2011.13456.
    """
    order = noise_min < noise_max
    require(
        order, "noise_min < noise_max", (noise_min, noise_max), "pass the smallest relevant noise and that at t = 1"
    )
    exponent = 2 * math.log(noise_max / noise_min)
    return _schedule(
        lambda t: jnp.ones_like(_time(t)),
        # expm1, since the difference to 1 cancels near t = 0.
        lambda t: noise_min * jnp.sqrt(jnp.expm1(exponent * _time(t))),
    )


@_records_call
def flow_matching_schedule() -> Schedule:
    r"""A straight line from the data to the noise: $α = 1 - t, σ = t$.

    Flow matching learns its velocity $dx/dt = ε - x_0$. (In this subpackage time increases from data to
    noise; some papers use the opposite direction and sign.) At t = 1 there is no signal, so the noise does not
    determine the data there: predict ``velocity``, ``x0`` or ``v``.

    >>> schedule = flow_matching_schedule()
    >>> print(schedule.signal(0.25), schedule.noise(0.25))
    0.75 0.25

    Source: Lipman et al. 2023, Flow matching for generative modeling, arXiv:2210.02747; Liu et al. 2023 (rectified
    flow), arXiv:2209.03003.
    """
    return _schedule(lambda t: 1 - _time(t), lambda t: +_time(t))


@checked
def add_noise(
    x0: Float[Array, "*shape"],
    eps: Float[Array, "*shape"],
    t: float | int | Float[Array, "*_batch"],
    schedule: Schedule,
    *,
    check: bool = False,
) -> Float[Array, "*shape"]:
    r"""The data at time t: $x_t = α(t) x_0 + σ(t) ε$, a draw from $q(x_t ∣ x_0)$.

    With $ε$ = ``eps``, standard normal noise of the shape of ``x0`` (``q_sample`` in other libraries).
    t is one number, or has the first axes of ``x0``. Linear in ``x0`` and ``eps``; derivatives with respect to t are
    those of the schedule.

    Raises:
        ValueError: for incompatible shapes, a time outside of [0, 1] (under ``jit`` with ``check=True`` only), or a
            schedule with wrong values at t = 0 or t = 1.
        TypeError: for integers.

    >>> x0, eps = jnp.array([[2.0], [2.0]]), jnp.array([[1.0], [1.0]])
    >>> print(add_noise(x0, eps, jnp.array([0.0, 0.5]), flow_matching_schedule()))
    [[2. ]
     [1.5]]

    Source: Ho et al. 2020, equation 4, arXiv:2006.11239.
    """
    check_schedule(schedule)
    wide = widen(x0)
    t = checked_time(t, wide, check)
    x = align(schedule.signal(t), wide) * wide + align(schedule.noise(t), wide) * eps.astype(wide.dtype)
    return x.astype(x0.dtype)


@checked
def times(
    schedule: Schedule,
    steps: PositiveInt,
    *,
    spacing: Literal["balanced", "time", "log_snr", "karras"] = "balanced",
    start: float | int = 1.0,
    end: float | int = 0.0,
    rho: PositiveFloat = 7.0,
) -> Float[Array, " times"]:
    r"""A grid of ``steps`` + 1 times for a sampler, falling from ``start`` to ``end``.

    ``spacing`` is the quantity whose values are equidistant:

    - ``"balanced"``: $√σ / (√α + √σ)$, which goes from 0 to 1 for every schedule. Near
      both ends $σ / α$ (or its inverse) then decreases with the square of the number of remaining
      steps. A sampler of second order needs this to keep its order up to the ends. Grids of different schedules are
      comparable.
    - ``"time"``: t. With `variance_preserving_schedule` and `variance_exploding_schedule`, where
      $σ ∼ √t$, a sampler of second order loses its order in the last step, with a small effect.
    - ``"log_snr"``: $log α^2/σ^2$; ``start`` and ``end`` must lie where it is finite.
    - ``"karras"``: $(σ / α)^{1 / ρ}$ with $ρ$ ``rho``, the noise levels of Karras et al.,
      between two times with signal and noise. Their last step, to the data, is an additional time 0:
      ``jnp.append(times(schedule, steps - 1, spacing="karras", end=1e-3), 0.0)``.

    Raises:
        ValueError: for an unknown spacing, times out of order or range, an infinite log-SNR, or so many steps that
            consecutive times are equal in float32.

    >>> print(times(flow_matching_schedule(), 4, spacing="time"))
    [1.   0.75 0.5  0.25 0.  ]
    >>> print(times(flow_matching_schedule(), 2))
    [1.  0.5 0. ]

    Source: Karras et al. 2022, equation (5), arXiv:2206.00364, whose grid "balanced" follows without
    bounds; "log_snr" is the grid of Lu et al. 2022, DPM-Solver, arXiv:2206.00927.
    """
    check_schedule(schedule)
    order = 0 <= end < start <= 1
    require(order, "0 <= end < start <= 1", f"start={start} and end={end}", "sample from noise, t = 1, to data, t = 0")
    if spacing == "time":
        return jnp.linspace(start, end, steps + 1)
    with jax.ensure_compile_time_eval():  # the values of a grid are concrete, also inside of jit
        log_noise = lambda t: -0.5 * schedule.log_snr(t)  # log sigma / alpha
        value = {
            "balanced": lambda t: _balanced(schedule, t),
            "log_snr": log_noise,
            "karras": lambda t: jnp.exp(log_noise(t) / rho),
        }[spacing]
        if spacing != "balanced":
            # Infinite logarithms would make the grid NaN; the balanced value is finite at both ends.
            at_ends = checkable(jax.jit(log_noise)(_time(np.array([start, end], jnp.result_type(float)))), False)
            wrong = (False, False) if at_ends is None else np.isinf(at_ends)  # None for traced parameters
            infinite = [words for words, one in zip((f"start={start}", f"end={end}"), wrong, strict=True) if one]
            repair = "choose both ends inside (0, 1), as in start=0.999, end=0.001"
            expected = f"a finite log-SNR at both ends for spacing={spacing!r}"
            require(not infinite, expected, f"an infinite one at {' and '.join(infinite)}", repair)

        @jax.jit
        def solve(start, end):  # arguments: constants would be evaluated one operation at a time
            # Equally spaced in value, so that t is found by inverting value at each of them.
            wanted = jnp.linspace(value(start), value(end), steps + 1)

            def halve(_, bounds):
                low, high = bounds
                middle = 0.5 * (low + high)
                above = value(middle) > wanted
                return jnp.where(above, low, middle), jnp.where(above, middle, high)

            bounds = jnp.full_like(wanted, end), jnp.full_like(wanted, start)
            # Bisection: it needs only that the signal-to-noise ratio decreases, which `check_schedule` ensures. Each
            # step gains one bit; times near 0 need more bits than the 24 of float32.
            low, high = lax.fori_loop(0, 100 if wanted.dtype == jnp.float64 else 60, halve, bounds)
            return (0.5 * (low + high)).at[0].set(start).at[-1].set(end)

        grid = solve(_time(start), _time(end))
        expected = f"few enough steps that times of spacing={spacing!r} differ in {grid.dtype}"
        known = checkable(grid, False)
        require(known is None or (np.diff(known) < 0).all(), expected, steps, "take fewer steps, or float64")
        return grid


def _balanced(schedule, t):
    root = jnp.sqrt(schedule.noise(t))
    return root / (jnp.sqrt(jnp.maximum(schedule.signal(t), 0)) + root)


def align(t: Float[Array, "*batch"], x: Float[Array, "..."]) -> Float[Array, "..."]:
    """A value for each time, with axes of length 1 up to those of ``x``: ``(batch,)`` becomes ``(batch, 1, 1)``.

    >>> align(jnp.zeros(5), jnp.zeros((5, 2, 3))).shape
    (5, 1, 1)
    """
    return t.reshape(t.shape + (1,) * (x.ndim - t.ndim)).astype(x.dtype)


@jax.ensure_compile_time_eval()  # known times are concrete inside of jit too
def checked_time(t, x: Float[Array, "..."], check: bool = False) -> Float[Array, "*batch"]:
    """t as an array in the dtype of the computation; raises unless it is in [0, 1] and has the first axes of ``x``.

    >>> checked_time(0.5, jnp.zeros((5, 2)))
    Array(0.5, dtype=float32)
    """
    if hasattr(t, "dtype"):
        repair = "divide a number of steps by their total"
        require(jnp.issubdtype(t.dtype, jnp.floating), "floating-point times", t, repair, error=TypeError)
    t = jnp.asarray(t, wide_dtype(x.dtype))
    if t.shape != x.shape[: t.ndim]:
        expected = f"one time, or times with the first axes of x, {describe(x)}"
        require(False, expected, t, "pass one time for each example")
    message = "times from 0 (data) to 1 (noise), got {low} to {high}; divide a number of steps by their total"
    check_entries(t, lambda known: (known >= 0) & (known <= 1), message, check=check)
    return t


def checked_times(times: Float[Array, " times"], dtype) -> Float[Array, " times"]:
    """A grid of times in ``dtype``; raises unless it decreases and lies within [0, 1] (for concrete values).

    >>> checked_times(jnp.array([1.0, 0.0]), jnp.float32)
    Array([1., 0.], dtype=float32)
    """
    if len(times.shape) != 1 or times.shape[0] < 2:
        require(False, "at least two times on one axis", times, "make them with times(schedule, steps)")
    message = "times from 1 (noise) to 0 (data), got {low} to {high}; divide a number of steps by their total"
    check_entries(times, lambda known: (known >= 0) & (known <= 1), message)
    if (known := checkable(times, False)) is not None:
        known = np.asarray(known)
        wrong = np.flatnonzero(~(np.diff(known) < 0))
        if len(wrong):
            got = f"{known[wrong[0]]} before {known[wrong[0] + 1]} (at index {wrong[0] + 1})"
            repair = "sort them, as in jnp.sort(times)[::-1], without repeats"
            require(False, "times that decrease, from noise to data", got, repair)
    return jnp.asarray(times).astype(dtype)


def check_schedule(schedule: Schedule) -> None:
    """Raise unless ``schedule`` is a `Schedule` with correct values at both ends: a ``TypeError`` or ``ValueError``.

    >>> check_schedule(Schedule(lambda t: t, lambda t: 1 - t))
    Traceback (most recent call last):
    ...
    ValueError: check_schedule expected a schedule with signal 1 and noise 0 at t = 0, got signal 0 and noise 1; ...
    """
    if not isinstance(schedule, Schedule):
        name = getattr(schedule, "__name__", "") if callable(schedule) else ""
        repair = f"call it: {name}()" if name else "pass for instance variance_preserving_schedule()"
        require(False, "a schedule", schedule, repair, error=TypeError)
    if schedule.is_valid:
        return
    with jax.ensure_compile_time_eval():
        probes = jnp.linspace(0, 1, 33, dtype=jnp.float32)
        signal, noise = schedule.signal(probes), schedule.noise(probes)
    is_traceable = True
    try:
        jax.eval_shape(lambda t: (schedule.signal(t), schedule.noise(t)), probes)
    except jax.errors.TracerArrayConversionError:
        is_traceable = False
    got = "functions that use NumPy, which jit cannot trace"
    require(is_traceable, "a schedule written with jax.numpy", got, "write jnp")
    for name, value in (("signal", signal), ("noise", noise)):
        got = f"{describe(value)} as the {name} of {describe(probes)}"
        repair = "write it with jax.numpy, and a constant as jnp.ones_like(t)"
        require(jnp.shape(value) == probes.shape, "a schedule of elementwise functions", got, repair)
    if isinstance(signal, Tracer) or isinstance(noise, Tracer):  # of traced parameters
        return
    _check_coefficients(np.asarray(signal, np.float64), np.asarray(noise, np.float64))
    schedule.is_valid = True


def _check_coefficients(signal, noise) -> None:
    """Raise unless these are coefficients at equally spaced times from 0 to 1 that turn data into noise."""
    at = lambda i: f"signal {signal[i]:.4g} and noise {noise[i]:.4g}"
    last = len(signal) - 1
    valid = np.isfinite(signal) & np.isfinite(noise) & (signal >= -1e-6) & (noise >= 0)
    bad = int(np.argmin(valid))
    got = f"{at(bad)} at t = {bad / last:g}"
    require(valid.all(), "a schedule whose signal and noise are numbers >= 0", got, "correct the functions there")
    repair = (
        "time increases from data (t = 0) to noise (t = 1), so for the opposite direction replace t by 1 - t in both "
        "functions"
    )
    begins = abs(signal[0] - 1) <= 0.05 and noise[0] <= 0.1
    require(begins, "a schedule with signal 1 and noise 0 at t = 0", at(0), repair)
    repair = "make the signal at t = 1 at most a tenth of the noise, since sampling starts from pure noise"
    ends = signal[-1] <= 0.1 * noise[-1]
    require(ends, "a schedule with much more noise than signal at t = 1", at(-1), repair)
    # The angle is finite at both ends, where the ratio is 0 or infinite.
    grows = np.diff(np.arctan2(noise, signal)) > 0
    place = int(np.argmin(grows))
    got = f"one that does not decrease between t = {place / last:g} and t = {(place + 1) / last:g}"
    require(grows.all(), "a schedule whose signal-to-noise ratio decreases", got, "make the noise grow there")


def _schedule(signal: Callable, noise: Callable) -> Schedule:
    schedule = Schedule(signal, noise)
    check_schedule(schedule)
    return schedule


def _time(t):
    """t as an array without weak type, in a dtype wide enough for the computation."""
    if hasattr(t, "dtype"):
        return widen(jnp.asarray(t))
    return jnp.asarray(t, jnp.result_type(float))
