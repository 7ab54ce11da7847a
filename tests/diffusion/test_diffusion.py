"""Diffusion, against closed forms for Gaussians and their mixtures and accurate solutions of the ODE."""

import functools
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import compiled, drawn
from scipy.integrate import solve_ivp

from jaxblocks.core import Layer
from jaxblocks.diffusion import (
    PREDICTION_TYPES,
    DenoisingLoss,
    GaussianMixture,
    Schedule,
    add_noise,
    ancestral,
    classifier_free_guidance,
    classifier_guidance,
    convert,
    cosine_schedule,
    ddim,
    ddpm_schedule,
    denoising_loss,
    dpm_solver_pp_2m,
    drop_condition,
    error_scale,
    euler,
    flow_matching_schedule,
    gaussian_mixture,
    heun,
    initial_noise,
    predictor_corrector,
    sample_times,
    times,
    variance_exploding_schedule,
    variance_preserving_schedule,
)
from jaxblocks.diffusion.schedules import check_schedule
from jaxblocks.layers.combinators import Wire
from jaxblocks.layers.dense import Dense

# One program for each call, where its values are not checked.
add_noise = compiled(add_noise)
ancestral = compiled(ancestral)
ddim = compiled(ddim)
euler = compiled(euler)
initial_noise = compiled(initial_noise)
predictor_corrector = compiled(predictor_corrector)
times = compiled(times)

SCHEDULES = {
    "preserving": variance_preserving_schedule(),
    "cosine": cosine_schedule(),
    "ddpm": ddpm_schedule(),
    "exploding": variance_exploding_schedule(),
    "flow": flow_matching_schedule(),
}
# The same schedules, written from the formulas.
REFERENCES = {
    "preserving": lambda t: (np.exp(-(0.1 * t + 9.95 * t**2) / 2), np.sqrt(1 - np.exp(-(0.1 * t + 9.95 * t**2)))),
    "cosine": lambda t: (np.cos(np.arccos(1e-3) * t), np.sin(np.arccos(1e-3) * t)),
    "exploding": lambda t: (np.ones_like(t), 0.01 * np.sqrt((50 / 0.01) ** (2 * t) - 1)),
    "flow": lambda t: (1 - t, t),
}
RNG = np.random.default_rng(0)
MEANS, COVARIANCES = np.array([[-1.0, 0.5], [1.0, 1.0]]), np.array([[[0.3, 0.1], [0.1, 0.2]], [[0.1, 0.0], [0.0, 0.5]]])
WEIGHTS = np.array([0.3, 0.7])


@pytest.fixture
def double():
    with jax.enable_x64(True):
        yield


def _mixture():
    return gaussian_mixture(MEANS, COVARIANCES, WEIGHTS)


def _log_density(x, signal=1.0, noise=0.0):
    """The log density by its definition; complex x allow derivatives by complex steps."""
    total = 0
    for w, m, c in zip(WEIGHTS, MEANS, COVARIANCES, strict=True):
        c = signal**2 * c + noise**2 * np.eye(2)
        z = x - signal * m
        total = total + w * np.exp(-0.5 * z @ np.linalg.inv(c) @ z) / (2 * np.pi * np.sqrt(np.linalg.det(c)))
    return np.log(total)


# ---- schedules -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", REFERENCES)
def test_a_schedule_equals_its_formula(name, double):
    t = np.linspace(0, 1, 11)
    signal, noise = REFERENCES[name](t)
    schedule, inner = SCHEDULES[name], t[1:-1]
    of_schedule = lambda t, inner: (
        schedule.signal(t),
        schedule.noise(t),
        schedule.rates(inner),
        schedule.log_snr(inner),
    )
    found_signal, found_noise, rates, log_snr = compiled(of_schedule)(t, inner)
    np.testing.assert_allclose(found_signal, signal, atol=1e-13)
    np.testing.assert_allclose(found_noise, noise, atol=1e-13, rtol=1e-13)
    step = 1e-6
    for rate, place in zip(rates, (0, 1), strict=True):
        difference = (REFERENCES[name](inner + step)[place] - REFERENCES[name](inner - step)[place]) / (2 * step)
        np.testing.assert_allclose(rate, difference, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(log_snr, 2 * np.log(signal[1:-1] / noise[1:-1]), atol=1e-10)


def test_at_the_data_the_noise_is_zero_and_grows():
    """Its rate may be infinite there, but has the sign of growth."""
    of_schedules = lambda t: {name: (schedule.noise(t), schedule.rates(t)[1]) for name, schedule in SCHEDULES.items()}
    for name, (noise, rate) in jax.jit(of_schedules)(0.0).items():
        assert noise == 0 and not np.signbit(noise) and rate > 0, name


def test_ddpm_schedule_equals_the_product_of_its_betas(double):
    """alpha bar after k steps, and the noise of a single step."""
    kept = np.cumprod(1 - np.linspace(1e-4, 0.02, 1000))
    k = np.array([1, 2, 500, 999, 1000])
    signal, noise = (compiled(f)(k / 1000) for f in SCHEDULES["ddpm"])
    np.testing.assert_allclose(signal**2, kept[k - 1], rtol=1e-10)
    np.testing.assert_allclose(noise**2, 1 - kept[k - 1], rtol=1e-10)


def test_tables_of_common_checkpoints_equal_their_formulas(double):
    """Scaled linear, the squared cosine of diffusers (in its loop), and a table given as betas."""
    bar = lambda t: np.cos((t + 0.008) / 1.008 * np.pi / 2) ** 2
    tables = {
        "scaled_linear": np.linspace(0.00085**0.5, 0.012**0.5, 1000) ** 2,
        "squaredcos_cap_v2": np.array([min(1 - bar((i + 1) / 50) / bar(i / 50), 0.999) for i in range(50)]),
    }
    assert tables["squaredcos_cap_v2"].max() == 0.999
    for name, betas in tables.items():
        made = ddpm_schedule(beta_schedule=name, steps=len(betas), beta_start=0.00085, beta_end=0.012)
        t = np.arange(1, len(betas) + 1) / len(betas)
        for schedule in (made, ddpm_schedule(betas=betas)):
            signal, noise = compiled(lambda t, schedule=schedule: (schedule.signal(t), schedule.noise(t)))(t)
            np.testing.assert_allclose(signal**2, np.cumprod(1 - betas), rtol=1e-9)
            np.testing.assert_allclose(noise**2, 1 - np.cumprod(1 - betas), rtol=1e-9)
    again = pickle.loads(pickle.dumps(schedule))
    np.testing.assert_array_equal(compiled(again.signal)(t), compiled(schedule.signal)(t))
    for wrong in ([0.1, 1.0], [0.5], np.array([[0.5, 0.9]])):
        with pytest.raises(ValueError, match="betas, at least two numbers between 0 and 1 on one axis, got float64"):
            ddpm_schedule(betas=wrong)


def test_karras_spacing_of_noise_levels(double):
    """sigma / alpha of the grid is (max^(1/rho) + i/n (min^(1/rho) - max^(1/rho)))^rho (equation 5)."""
    for name, rho in (("preserving", 7.0), ("flow", 3.0)):
        grid = np.asarray(times(SCHEDULES[name], 9, spacing="karras", start=0.99, end=0.001, rho=rho))
        a, s = REFERENCES[name](grid)
        low, high = (s / a)[-1], (s / a)[0]
        levels = (high ** (1 / rho) + np.arange(10) / 9 * (low ** (1 / rho) - high ** (1 / rho))) ** rho
        np.testing.assert_allclose(s / a, levels, rtol=1e-9)
    with pytest.raises(ValueError, match=r"'karras', got an infinite one at start=1.0 and end=0.0; choose both"):
        times(SCHEDULES["flow"], 9, spacing="karras")
    times(SCHEDULES["flow"], 9, spacing="karras", start=0.999, end=0.001)


@pytest.mark.parametrize("name", SCHEDULES)
def test_noise_at_small_times_is_accurate_in_single_precision(name):
    """The noise is not computed as 1 - alpha^2, which would cancel."""
    t = np.float32(1e-7)
    schedule = SCHEDULES[name]
    with jax.enable_x64(True):
        exact = float(compiled(schedule.noise)(jnp.float64(t)))
    np.testing.assert_allclose(compiled(schedule.noise)(jnp.float32(t)), exact, rtol=1e-5)


def test_each_example_has_its_own_time():
    x0, eps = RNG.normal(size=(2, 3, 4, 2)).astype(np.float32)
    t = np.array([0.1, 0.5, 0.9])
    signal, noise = REFERENCES["preserving"](t)
    expected = signal[:, None, None] * x0 + noise[:, None, None] * eps
    found = add_noise(x0, eps, t.astype(np.float32), SCHEDULES["preserving"])
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("name", "spacing"), [("preserving", "balanced"), ("exploding", "log_snr"), ("flow", "time")])
def test_a_grid_of_times_is_equidistant_in_its_spacing(name, spacing, double):
    start, end = (1.0, 0.0) if spacing != "log_snr" else (0.99, 0.01)
    grid = times(SCHEDULES[name], 20, spacing=spacing, start=start, end=end)
    assert grid.shape == (21,) and grid[0] == start and grid[-1] == end and grid.dtype == jnp.float64
    a, s = REFERENCES[name](np.asarray(grid))
    place = {
        "time": lambda: np.asarray(grid),
        "log_snr": lambda: np.log(a / s),
        "balanced": lambda: np.sqrt(s) / (np.sqrt(a) + np.sqrt(s)),
    }[spacing]()
    np.testing.assert_allclose(np.diff(place), np.diff(place).mean(), rtol=1e-6)


# ---- prediction types ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ddpm", "flow"])
def test_conversions_are_exact_in_both_directions(name, double):
    """All 25 conversions equal the definitions, and converting back is exact to 1e-12."""
    schedule = SCHEDULES[name]
    t = np.array([0.001, 0.05, 0.3, 0.7, 0.999])
    x0, eps = RNG.normal(size=(2, 5, 3))
    of_schedule = compiled(lambda t: (schedule.signal(t), schedule.noise(t), *schedule.rates(t)))
    a, s, da, ds = (value[:, None] for value in of_schedule(t))
    x = a * x0 + s * eps
    true = {"eps": eps, "x0": x0, "v": a * eps - s * x0, "score": -eps / s, "velocity": da * x0 + ds * eps}
    pairs = [(source, target) for source in PREDICTION_TYPES for target in PREDICTION_TYPES]

    @jax.jit
    def both_ways(true, x, t):
        there = {(p, q): convert(true[p], x, t, schedule, p, q) for p, q in pairs}
        return there, {(p, q): convert(there[p, q], x, t, schedule, q, p) for p, q in pairs}

    there, back = both_ways(true, x, t)
    for p, q in pairs:
        # tolerance: a rounding error in x, divided by signal or noise, and scaled by rates
        allowed = 1e-13 * (1 + np.abs(x)) * (1 + 1 / a) * (1 + 1 / s) * (1 + abs(da) + abs(ds)) + 1e-13 * abs(true[q])
        assert (np.abs(there[p, q] - true[q]) < allowed).all(), (p, q)
        np.testing.assert_allclose(back[p, q], true[p], rtol=1e-12, atol=1e-12 * np.abs(true[p]).max())


@pytest.mark.parametrize(
    ("schedule", "t", "source", "target"),
    [
        ("flow", 1.0, "eps", "x0"),
        ("flow", 1.0, "score", "velocity"),
        ("flow", 0.0, "x0", "eps"),
        ("preserving", 0.0, "eps", "score"),
        ("preserving", 0.0, "eps", "velocity"),
        ("exploding", 0.0, "velocity", "x0"),
    ],
)
def test_a_conversion_that_divides_by_zero_raises(schedule, t, source, target):
    """An eager call raises an error; under jit the result is not finite; following the error's advice works."""
    schedule, p, x = SCHEDULES[schedule], np.float32([[1, -2]]), np.float32([[0.5, 0.5]])
    with pytest.raises(ValueError, match="leave that end out"):
        convert(p, x, t, schedule, source, target)
    with jax.debug_nans(False):
        found = jax.jit(lambda t: convert(p, x, t, schedule, source, target))(jnp.float32(t))
        assert not np.isfinite(found).any()
    assert np.isfinite(convert(p, x, abs(t - 1e-3), schedule, source, target)).all()


def test_conversions_without_division_work_at_the_ends():
    """At t = 1 of flow matching from x0, v, velocity; at t = 0 from eps and v."""
    x = p = np.float32([[1, -2]])
    at_noise = [(source, target) for source in ("x0", "v", "velocity") for target in PREDICTION_TYPES]
    at_data = ("eps", "x0"), ("eps", "v"), ("v", "eps"), ("v", "x0"), ("score", "eps")

    @jax.jit
    def run(p, x):
        found = [convert(p, x, 1.0, SCHEDULES["flow"], *types) for types in at_noise]
        return found + [convert(p, x, 0.0, SCHEDULES["preserving"], *types) for types in at_data]

    assert np.isfinite(run(p, x)).all()


# ---- mixtures --------------------------------------------------------------------------------


def test_the_density_of_a_wide_mixture():
    """The square of a point leaves the range, its quotient by the variance does not."""
    one = np.ones((1, 1), np.float32)
    wide = GaussianMixture(one[0], 0 * one, np.float32(1e38) * one, one[None])
    found = wide.log_density(jnp.float32([1e20]))
    np.testing.assert_allclose(found, -50 - 0.5 * np.log(2 * np.pi * 1e38), rtol=1e-6)


def test_the_score_is_the_gradient_of_the_log_density(double):
    """By complex steps of a density in NumPy; all types of the optimal prediction follow from the score."""
    data, points = _mixture(), RNG.normal(size=(6, 2))
    for name, t in (("preserving", 0.3), ("exploding", 0.4), ("flow", 0.6)):
        a, s = REFERENCES[name](t)
        logs = np.array([_log_density(p, a, s) for p in points])
        tiny = 1e-30
        score = np.array([[_log_density(p + 1j * tiny * e, a, s).imag / tiny for e in np.eye(2)] for p in points])

        @jax.jit
        def everything(x, score, name=name, t=t):
            at, schedule = data.at(t, SCHEDULES[name]), SCHEDULES[name]
            converted = [convert(score, x, t, schedule, "score", p) for p in PREDICTION_TYPES]
            return (
                at.log_density(x),
                at.score(x),
                [data.predictor(schedule, p)(x, t) for p in PREDICTION_TYPES],
                converted,
            )

        log_density, found, predicted, converted = everything(points, score)
        np.testing.assert_allclose(log_density, logs, rtol=1e-12)
        np.testing.assert_allclose(found, score, rtol=1e-11, atol=1e-12)
        np.testing.assert_allclose(predicted, converted, rtol=1e-10, atol=1e-11)


def test_points_in_half_precision_do_not_round_the_mixture():
    data, points = _mixture(), jnp.asarray(RNG.normal(size=(6, 2)), jnp.bfloat16)

    @jax.jit
    def everything(x):
        return data.log_density(x), data.score(x), data.responsibilities(x)

    with jax.numpy_dtype_promotion("standard"):
        own = everything(points)
    for found, expected in zip(own, everything(points.astype(jnp.float32)), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("equal", [True, False])
def test_densities_have_derivatives_in_covariances_whose_eigenvalues_differ(equal):
    """Of one component by its inverse and determinant; else they are NaN, where they would depend on rounding."""
    turn, x = np.linalg.qr(RNG.normal(size=(3, 3)))[0], RNG.normal(size=3)
    with jax.enable_x64(True), jax.debug_nans(False):
        covariance = jnp.asarray(turn.T @ np.diag([1.0, 1.0 if equal else 3.0, 2.0]) @ turn)
        covariance = (covariance + covariance.T) / 2
        found = jax.grad(lambda c: gaussian_mixture(np.zeros((1, 3)), c[None]).log_density(x))(covariance)
        inverse = np.linalg.inv(covariance)
        expected = np.outer(inverse @ x, inverse @ x) / 2 - inverse / 2
        np.testing.assert_allclose(found, np.full((3, 3), np.nan) if equal else expected, rtol=1e-9, atol=1e-12)


def test_samples_of_a_mixture_have_its_moments():
    data, n = gaussian_mixture(*(a.astype(np.float32) for a in (MEANS, COVARIANCES, WEIGHTS))), 40_000

    @compiled
    def of_data(key):
        x = data.sample(key, n)
        return x, data.mean(), data.covariance(), data.responsibilities(x[:5])

    x, found_mean, found_covariance, responsibilities = of_data(jax.random.key(0))
    x = x.astype(np.float64)
    mean = WEIGHTS @ MEANS
    covariance = np.einsum("k,kij->ij", WEIGHTS, COVARIANCES + np.einsum("ki,kj->kij", MEANS - mean, MEANS - mean))
    np.testing.assert_allclose(found_mean, mean, rtol=1e-6)
    np.testing.assert_allclose(found_covariance, covariance, rtol=1e-6)
    np.testing.assert_allclose(x.mean(0), mean, atol=4 * np.sqrt(covariance.max() / n))
    np.testing.assert_allclose(np.cov(x.T), covariance, atol=6 * covariance.max() / np.sqrt(n))
    np.testing.assert_allclose(responsibilities.sum(-1), 1, rtol=1e-6)


def test_the_optimal_denoiser_is_exact_at_both_ends(double):
    """Without signal it predicts the mean; without noise it returns its input."""
    data, x, flow = _mixture(), RNG.normal(size=(3, 2)), SCHEDULES["flow"]
    mean = np.broadcast_to(WEIGHTS @ MEANS, (3, 2))
    ends = ("x0", 1.0), ("velocity", 1.0), ("x0", 0.0), ("eps", 0.0)
    at_one, velocity, at_zero, eps = compiled(lambda x: [data.predictor(flow, name)(x, t) for name, t in ends])(x)
    np.testing.assert_allclose(at_one, mean, rtol=1e-12)
    np.testing.assert_allclose(velocity, x - mean, rtol=1e-12)
    np.testing.assert_allclose(at_zero, x, rtol=1e-12)
    np.testing.assert_allclose(eps, 0, atol=1e-15)


# ---- samplers --------------------------------------------------------------------------------


ORDERS = {ddim: 1, euler: 1, heun: 2, dpm_solver_pp_2m: 2}
CASES = {"preserving": "eps", "exploding": "score", "flow": "velocity"}


@functools.cache
def _exact(name):
    """Solve the probability-flow ODE from eight points of noise by SciPy, in normalized coordinates.

    With z = x / r, signal = r cos phi and noise = r sin phi, the ODE of every schedule is dz/dphi = v(z, phi). It is
    smooth up to both ends, and the solution uses no code of the library.
    """
    x = np.random.default_rng(1).normal(size=(8, 2))
    a1, s1 = REFERENCES[name](np.float64(1))

    def v(phi, z):
        c, s = np.cos(phi), np.sin(phi)
        z = z.reshape(8, 2)
        variances = c * c * COVARIANCES + s * s * np.eye(2)
        apart = z[:, None] - c * MEANS
        scaled = np.einsum("kij,nkj->nki", np.linalg.inv(variances), apart)
        logs = np.log(WEIGHTS / np.sqrt(np.linalg.det(variances))) - 0.5 * (apart * scaled).sum(-1)
        r = np.exp(logs - logs.max(1, keepdims=True))
        r = (r / r.sum(1, keepdims=True))[..., None]
        eps = s * (r * scaled).sum(1)
        x0 = (r * (MEANS + c * np.einsum("kij,nkj->nki", COVARIANCES, scaled))).sum(1)
        return (c * eps - s * x0).ravel()

    start = x * s1
    solved = solve_ivp(v, (np.arctan2(s1, a1), 0), (start / np.hypot(a1, s1)).ravel(), rtol=1e-11, atol=1e-11)
    return start, solved.y[:, -1].reshape(8, 2)


@pytest.mark.parametrize("name", ["preserving", "flow"])
def test_samplers_have_their_theoretical_orders(name, double):
    """The slope of log error over log steps is within 0.15 of the order, from t = 1 to t = 0 on the default grid."""
    schedule, predict = SCHEDULES[name], _mixture().predictor(SCHEDULES[name], CASES[name])
    start, exact = _exact(name)
    counts = (160, 320)

    @jax.jit
    def run(grid):
        return [sampler(predict, jnp.asarray(start), grid, schedule, CASES[name]) for sampler in ORDERS]

    found = np.asarray([run(times(schedule, n)) for n in counts])
    for (sampler, order), errors in zip(ORDERS.items(), np.sqrt(np.mean((found - exact) ** 2, (2, 3))).T, strict=True):
        assert errors[1] < (0.15 if order == 1 else 5e-3), (sampler.__name__, errors)
        assert abs(np.log2(errors[0] / errors[1]) - order) < 0.15, (sampler.__name__, errors)


def test_steps_of_heun_and_the_last_one():
    """The trapezoidal rule for u = x t + t^2, and Euler's in a last step to a time without noise."""
    u = lambda x, t: x * t + t * t
    for end in (0.0, 0.2):
        grid = np.array([1, 0.6, end], np.float32)
        found = compiled(heun)(u, np.float32([2]), grid, SCHEDULES["flow"], "velocity", trajectory=True)
        x = [2.0]
        for t, s in ((1.0, 0.6), (0.6, end)):
            first = u(x[-1], t)
            second = first if s == 0 else u(x[-1] + (s - t) * first, s)
            x.append(x[-1] + (s - t) * (first + second) / 2)
        np.testing.assert_allclose(found[:, 0], x, rtol=1e-6)


def test_a_single_gaussian_is_solved_in_closed_form(double):
    """x0 = mean + s (x - alpha mean) / sqrt(alpha^2 s^2 + sigma^2), for every prediction type."""
    data, schedule = gaussian_mixture(np.array([[3.0]]), np.array([4.0])), SCHEDULES["preserving"]
    a, s = REFERENCES["preserving"](np.float64(1))
    x = np.array([[-1.0], [0.3], [2.0]])
    exact = 3 + 2 * (x - 3 * a) / np.sqrt(4 * a**2 + s**2)
    grid = times(schedule, 200)
    run = lambda p: dpm_solver_pp_2m(data.predictor(schedule, p), x, grid, schedule, p)
    found = jax.jit(lambda: {p: run(p) for p in PREDICTION_TYPES})()
    for values in found.values():
        np.testing.assert_allclose(values, exact, atol=5e-4)
        np.testing.assert_allclose(values, found["eps"], rtol=1e-10)


def test_initial_noise_has_the_deviation_at_time_one():
    key, (_, deviation) = jax.random.key(0), REFERENCES["exploding"](np.float64(1))
    expected = deviation * np.asarray(jax.random.normal(jax.random.clone(key), (3, 2)))
    np.testing.assert_allclose(initial_noise(key, (3, 2), SCHEDULES["exploding"]), expected, rtol=1e-5)


def test_euler_and_ddim_are_equal_for_flow_matching(double):
    schedule, x = SCHEDULES["flow"], RNG.normal(size=(4, 2))
    predict, grid = _mixture().predictor(schedule, "velocity"), times(schedule, 10)
    one, two = (f(predict, x, grid, schedule, "velocity", trajectory=True) for f in (euler, ddim))
    assert one.shape == (11, 4, 2)
    np.testing.assert_array_equal(one[0], x)
    np.testing.assert_allclose(one, two, rtol=1e-11, atol=1e-12)


def test_one_step_of_each_sampler_equals_its_formula(double):
    """The formulas in NumPy, in the variables of DDPM, with the noise of the key."""
    schedule = SCHEDULES["ddpm"]
    t, s = 0.5, 0.499
    bar = np.cumprod(1 - np.linspace(1e-4, 0.02, 1000))[[499, 498]]
    beta = np.linspace(1e-4, 0.02, 1000)[499]
    x, eps = RNG.normal(size=(2, 3, 2))
    predict = lambda x, t: jnp.asarray(eps)
    grid, key = np.array([t, s]), jax.random.key(3)
    mean = (x - beta / np.sqrt(1 - bar[0]) * eps) / np.sqrt(1 - beta)  # algorithm 2 of the paper
    z = np.asarray(jax.random.normal(jax.random.split(jax.random.clone(key), 1)[0], (3, 2)))
    of_wide = beta * (4 * bar[1] + 1 - bar[1]) / (4 * bar[0] + 1 - bar[0])  # for data of variance 4
    variances = {1.0: beta, 2.0: of_wide, 0.0: (1 - bar[1]) / (1 - bar[0]) * beta}

    @jax.jit
    def run(x, key):
        at = predict, x, grid, schedule, "eps"
        by_spread = [ancestral(*at, key=jax.random.clone(key), spread=spread) for spread in variances]
        return [*by_spread, *(ddim(*at, eta=eta, key=jax.random.clone(key)) for eta in (1.0, 0.5))]

    *found, half = run(x, key)
    for one, variance in zip(found, [*variances.values(), variances[0.0]], strict=True):
        np.testing.assert_allclose(one, mean + np.sqrt(variance) * z, rtol=1e-9)
    x0 = (x - np.sqrt(1 - bar[0]) * eps) / np.sqrt(bar[0])
    step = np.sqrt(bar[1]) * x0 + np.sqrt(1 - bar[1] - variance / 4) * eps + np.sqrt(variance) / 2 * z
    np.testing.assert_allclose(half, step, rtol=1e-9)


@pytest.mark.parametrize("name", ["preserving", "exploding"])
def test_random_samplers_reproduce_mean_and_variance(name):
    """N(3, 4) within 2.9 standard errors for ancestral sampling, and slightly more for predictor-corrector."""
    schedule, prediction_type, n = SCHEDULES[name], CASES[name], 10_000
    grid = times(schedule, 50)

    @jax.jit
    def run(start, key):
        predict = gaussian_mixture(np.float32([[3]]), np.float32([4])).predictor(schedule, prediction_type)
        x = initial_noise(start, (n, 1), schedule)
        return [
            sampler(predict, x, grid, schedule, prediction_type, key=own, spread=2.0)
            for sampler, own in zip((ancestral, predictor_corrector), jax.random.split(key), strict=True)
        ]

    for found, extra in zip(run(jax.random.key(0), jax.random.key(1)), (0.0, 0.05), strict=True):
        found = np.asarray(found, np.float64)
        assert abs(found.mean() - 3) < 2.9 * 2 / np.sqrt(n)
        assert abs(found.var() - 4) < 2.9 * 4 * np.sqrt(2 / n) + extra


def test_the_corrector_alone_converges_to_the_distribution(double):
    """With two close times and many corrections, samples of a wrong variance reach the correct variance."""
    schedule = SCHEDULES["preserving"]
    data = gaussian_mixture(np.array([[0.0]]), np.array([0.2]))
    a, s = REFERENCES["preserving"](0.5)
    wrong = 2 * np.random.default_rng(0).normal(size=(10_000, 1))
    grid = np.array([0.501, 0.5])
    score = data.predictor(schedule, "score")
    found = predictor_corrector(score, wrong, grid, schedule, "score", key=jax.random.key(1), corrections=40, snr=0.4)
    delta, right = 2 * (0.4 * s) ** 2, a * a * 0.2 + s * s
    assert abs(found.var() / (right / (1 - delta / (2 * right))) - 1) < 0.06  # with the known bias of Langevin steps


def test_samplers_work_under_transformations():
    """jit equals eager, vmap equals a loop, gradients are finite through the last step, half precision is kept."""
    schedule, predict = SCHEDULES["preserving"], lambda x, t: jnp.sin(2 * x) - t
    grid = times(schedule, 6)
    x, small = np.random.default_rng(0).normal(size=(3, 1)).astype(np.float32), np.float32(1e-2)
    for sampler in (heun, dpm_solver_pp_2m):
        run = lambda x, sampler=sampler: sampler(predict, x, grid, schedule, "v")
        found = run(x)
        assert found.dtype == jnp.float32

        @jax.jit
        def transformed(x, run=run):
            ahead, behind, plain = run(jnp.stack([x + small, x - small, x]).reshape(9, 1)).reshape(3, 3, 1)
            difference = (ahead - behind) / (2 * small)  # each example separately
            return plain, jax.vmap(run)(x), jax.grad(lambda x: run(x).sum())(x), difference

        plain, mapped, gradient, difference = transformed(x)
        np.testing.assert_allclose(plain, found, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(mapped, found, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(gradient, difference, rtol=2e-2, atol=1e-3)
    half = ddim(lambda x, t: x, x.astype(jnp.bfloat16), grid, schedule, "v")
    assert half.dtype == jnp.bfloat16


def test_derivatives_with_respect_to_the_schedule(double):
    """Also where the last time has no noise: against differences of the values."""
    x, grid = jnp.array([[0.5]]), jnp.linspace(1, 0, 5)
    samplers = {
        "ddim": lambda *args: ddim(*args, eta=0.5, key=jax.random.key(0)),
        "ancestral": lambda *args: ancestral(*args, key=jax.random.key(1)),
        "heun": heun,
        "dpm_solver_pp_2m": dpm_solver_pp_2m,
        "predictor_corrector": lambda *args: predictor_corrector(*args, key=jax.random.key(2)),
    }

    def sampled(rate):
        schedule = Schedule(lambda t: jnp.cos(1.5 * rate * t), lambda t: jnp.sin(1.5 * rate * t))
        of = {n: run(lambda x, t: 0.1 * x, x, grid, schedule, "v") for n, run in samplers.items()}
        return jax.tree.map(jnp.sum, of)

    found, h = jax.jit(jax.jacrev(sampled))(1.0), 1e-6
    above, below = (jax.jit(sampled)(1.0 + step) for step in (h, -h))
    for name in samplers:
        np.testing.assert_allclose(found[name], (above[name] - below[name]) / (2 * h), rtol=1e-7, err_msg=name)


def test_grids_and_mixtures_can_be_made_under_jit():
    schedule, variances = SCHEDULES["preserving"], np.float32([0.1, 0.1])

    @jax.jit
    def inside(x, means):
        data = gaussian_mixture(means, variances)
        return ddim(data.predictor(schedule, "v"), x, times(schedule, 4), schedule, "v")

    x, means = np.float32([[0.3], [-2]]), np.float32([[-1], [1]])
    outside = gaussian_mixture(means, variances).predictor(schedule, "v")
    np.testing.assert_allclose(inside(x, means), ddim(outside, x, times(schedule, 4), schedule, "v"), rtol=1e-5)
    traced = jax.jit(lambda rate: Schedule(lambda t: jnp.exp(-rate * t), lambda t: rate * t).signal(0.5))
    assert traced(5.0) == pytest.approx(np.exp(-2.5))


@pytest.mark.parametrize("spacing", ["balanced", "log_snr"])
def test_the_grid_of_a_schedule_with_traced_parameters(spacing):
    schedule = lambda angle: Schedule(lambda t: jnp.cos(angle * t), lambda t: jnp.sin(angle * t))
    # In one program each: `times` of this file takes no traced schedule.
    grid = lambda angle: times.__wrapped__(schedule(angle), 4, spacing=spacing, start=0.9, end=0.1)
    np.testing.assert_allclose(jax.jit(grid)(1.5), grid(1.5), rtol=1e-6)


def test_random_samplers_take_times_of_equal_noise():
    """Consecutive numbers of float32, between which the noise changes by less than its rounding."""
    grid = np.array([0.01, np.nextafter(np.float32(0.01), np.float32(0))], np.float32)
    x, schedule = np.ones((1, 1), np.float32), SCHEDULES["preserving"]
    for sampler, options in ((ancestral, {}), (ddim, dict(eta=0.5))):
        y = sampler(lambda x, t: 0 * x, x, grid, schedule, "eps", key=jax.random.key(0), **options)
        np.testing.assert_allclose(y, x, rtol=1e-2)


def test_invalid_schedules_and_conditions_are_rejected():
    by_numpy = Schedule(lambda t: np.cos(1.5 * t), lambda t: np.sin(1.5 * t))
    with pytest.raises(ValueError, match="a schedule written with jax.numpy"):
        times(by_numpy, 3)
    constant = Schedule(jnp.ones_like, jnp.ones_like)
    for _ in range(2):  # a schedule that was refused is checked again
        with pytest.raises(ValueError, match="signal 1 and noise 0 at t = 0"):
            check_schedule(constant)
    with pytest.raises(TypeError, match=r"got a net that also needs label; pass conditions=\('label',\)"):
        DenoisingLoss(_net(), SCHEDULES["flow"], "v")
    training = DenoisingLoss(_net(), SCHEDULES["flow"], "v", conditions="label")  # a single name is a condition
    inputs = np.ones((8, 2), np.float32), np.zeros((8, 3), np.float32)
    assert set(jax.eval_shape(training.init, jax.random.key(0), *inputs)) == {"net"}


def test_times_and_losses_are_float32_for_nets_in_half_precision():
    """A net in bfloat16 gets float32 times, and its losses are float32."""
    seen = []

    def forward(f, x, *, time):
        seen.append(time.dtype)
        return f.out(x)

    training = DenoisingLoss(Wire(forward, out=Dense(2)), SCHEDULES["flow"], "velocity")

    def losses_of(x):
        return training.apply(training.init(jax.random.key(0), x), x, key=jax.random.key(1), train=True)

    losses = jax.eval_shape(losses_of, jax.ShapeDtypeStruct((8, 2), jnp.bfloat16))
    assert set(seen) == {jnp.dtype("float32")} and losses.dtype == jnp.float32


# ---- losses ----------------------------------------------------------------------------------


def test_the_optimal_eps_minimizes_the_loss():
    """Scaled and shifted predictions are worse; the minimum is alpha^2 / sigma^2 times the variance of x0 given x."""
    data, schedule = gaussian_mixture(np.float32([[3]]), np.float32([4])), SCHEDULES["preserving"]
    x0, eps = np.random.default_rng(0).normal(size=(2, 20_000, 1)).astype(np.float32)
    x0, t = 3 + 2 * x0, np.full(len(x0), 0.2, np.float32)
    best = data.predictor(schedule, "eps")

    @jax.jit
    def loss(scale, shift):
        return denoising_loss(lambda x, t: scale * best(x, t) + shift, x0, t, eps, schedule, "eps").mean()

    a, s = REFERENCES["preserving"](0.2)
    least, *others = (float(loss(*at)) for at in ((1.0, 0.0), (0.9, 0.0), (1.1, 0.0), (1.0, 0.05), (1.0, -0.05)))
    assert abs(least - 4 * a**2 / (4 * a**2 + s**2)) < 0.02
    assert least < min(others)


def test_weighted_losses_agree_for_all_prediction_types(double):
    """One denoiser, converted to each prediction type: with the weighting of one type, the losses agree."""
    schedule = SCHEDULES["flow"]
    x0, eps = RNG.normal(size=(2, 4, 3))
    t = np.array([0.1, 0.4, 0.6, 0.9])
    guess = lambda x, t: 0.3 * x
    said = lambda p: lambda x, t: convert(guess(x, t), x, t, schedule, "x0", p)
    for measured in ("eps", "velocity", lambda log_snr: jnp.minimum(jnp.exp(log_snr), 5.0)):
        loss = lambda p, measured=measured: denoising_loss(said(p), x0, t, eps, schedule, p, weighting=measured)
        losses = jax.jit(lambda loss=loss: [loss(p) for p in PREDICTION_TYPES])()
        for found in losses:
            np.testing.assert_allclose(found, losses[0], rtol=1e-9)
    x = add_noise(x0, eps, t, schedule)
    plain = np.mean((guess(x, t) - x0) ** 2, 1)
    np.testing.assert_allclose(compiled(denoising_loss)(guess, x0, t, eps, schedule, "x0"), plain, rtol=1e-12)
    slopes = compiled(jax.vmap(jax.grad(lambda t: error_scale(t, schedule, "eps"))))(np.array([0.5, 1.0]))
    np.testing.assert_allclose(slopes, [-4, -1], rtol=1e-12)  # of 1 / t - 1
    snr = ((1 - t) / t) ** 2
    np.testing.assert_allclose(losses[0], np.minimum(snr, 5) * plain, rtol=1e-9)
    np.testing.assert_allclose(compiled(error_scale)(t, schedule, "eps") ** 2, snr, rtol=1e-12)


def test_the_loss_of_a_score_is_finite_at_small_times():
    x0 = eps = np.ones((2, 3), np.float32)
    t = np.float32([0, 1e-6])
    found = compiled(denoising_loss)(lambda x, t: x, x0, t, eps, SCHEDULES["preserving"], "score")
    np.testing.assert_allclose(found, 1, atol=5e-3)


@pytest.mark.parametrize(("weighting", "limit"), [("x0", 0.0), ("v", 4.0)])
def test_the_loss_of_a_score_without_noise_is_its_limit(weighting, limit):
    """At t = 0 the error in eps is eps itself, whatever the score is; so is that in v, and that in x0 is 0."""
    x0, eps, t = jnp.ones((2, 3)), jnp.full((2, 3), 2.0), jnp.array([0.0, 0.5])
    loss = lambda x0: denoising_loss(lambda x, t: x, x0, t, eps, SCHEDULES["cosine"], "score", weighting=weighting)
    found, slope = jax.jit(lambda x0: (loss(x0), jax.grad(lambda x0: loss(x0).sum())(x0)))(x0)
    assert found[0] == limit and found[1] > 0 and (slope[0] == 0).all() and jnp.isfinite(slope[1]).all()


def test_weights_at_the_ends_are_their_limits(double):
    """Where the quotient of two scales, or of a weight and a scale, is one of two zeros or infinities."""
    scale = {
        "eps": lambda a, s: a / s,
        "x0": lambda a, s: 1.0,
        "v": lambda a, s: (a * a + s * s) / s,
        "score": lambda a, s: a / s**2,
        "velocity": lambda a, s: 1 / s,
    }
    bounded = lambda log_snr: jnp.minimum(jnp.exp(log_snr), 5.0)
    pairs = [(p, q) for p in ("eps", "x0", "v", "velocity") for q in (*PREDICTION_TYPES, bounded) if p != q]
    ends, seen = np.array([0.0, 1.0]), 0
    x0, eps = jnp.ones((2, 1)), jnp.full((2, 1), 2.0)

    def weights(own, measured):
        """The loss of a prediction with an error of 1."""
        target = {"eps": eps, "x0": x0, "v": (1 - ends[:, None]) * eps - ends[:, None] * x0, "velocity": eps - x0}
        predict = lambda x, t: target[own] + 1
        return denoising_loss(predict, x0, jnp.asarray(ends), eps, SCHEDULES["flow"], own, weighting=measured)

    with jax.debug_nans(False), jax.debug_infs(False):
        found = jax.jit(lambda: [weights(own, measured) for own, measured in pairs])()
    for (own, measured), at_ends in zip(pairs, found, strict=True):
        near = []
        for distance in (1e-6, 1e-8):
            a, s = np.array([1 - distance, distance]), np.array([distance, 1 - distance])
            of = np.minimum((a / s) ** 2, 5) if callable(measured) else scale[measured](a, s) ** 2
            near.append(of / scale[own](a, s) ** 2)
        exists = np.abs(near[0] - near[1]) < 1e-3
        np.testing.assert_allclose(np.asarray(at_ends)[exists], near[1][exists], atol=1e-5)
        seen += exists.sum()
    assert seen > 20


def test_times_of_a_negative_number_of_examples_are_rejected(sentences):
    with pytest.raises(ValueError, match="expected shape to be a tuple of integers >= 0, got .*-1.*; pass"):
        sample_times(jax.random.key(0), (-1,))


def test_an_empty_batch_has_no_losses():
    none = jnp.ones((0, 3))
    assert denoising_loss(lambda x, t: x, none, jnp.ones(0), none, SCHEDULES["flow"], "eps").shape == (0,)
    assert convert(none, none, jnp.ones(0), SCHEDULES["flow"], "eps", "velocity").shape == (0, 3)
    assert sample_times(jax.random.key(0), (0,)).shape == (0,)


def test_sampled_times_are_stratified_over_the_batch():
    """There is one time in each n-th part of (0, 1], in random order, and with a common shift."""
    t = compiled(sample_times)(jax.random.key(0), (4, 25)).ravel()
    assert (np.ceil(100 * np.sort(t)) == np.arange(1, 101)).all()
    assert (np.argsort(t) != np.arange(100)).any()
    one_by_one = compiled(lambda key: jax.vmap(lambda key: sample_times(key, ()))(jax.random.split(key, 50)))
    single = one_by_one(jax.random.key(1))
    assert 0 < single.min() < 0.1 and 0.9 < single.max() <= 1
    within = 100 * t - np.floor(100 * t)
    np.testing.assert_allclose(within, within[0], atol=1e-4)  # one shift for all
    with jax.enable_x64(True):
        assert jax.eval_shape(lambda: sample_times(jax.random.key(0), (3,))).dtype == jnp.float32


def _net():
    return Wire(lambda f, x, *, time, label: f.out(jnp.concatenate([x, time[..., None], label], -1)), out=Dense(2))


def test_denoising_loss_equals_the_loss_of_its_net():
    """Times and noise come from the key, the label is passed on, and evaluation is deterministic."""
    training = DenoisingLoss(_net(), SCHEDULES["flow"], "velocity", conditions=("label",))
    x, label = np.ones((8, 2), np.float32), np.zeros((8, 3), np.float32)
    params = drawn(training, x, label)
    assert params["net"]["out"]["kernel"].shape == (6, 2)

    @jax.jit
    def losses_of(params, x, label):
        trained = [training.apply(params, x, label, key=jax.random.key(seed), train=True) for seed in (1, 2)]
        evaluated = training.apply(params, x, label), training.apply(params, x, label, train=False)
        return *trained, *evaluated, training.apply(params, x, label + 1)

    one, two, default, fixed, other = map(np.asarray, losses_of(params, x, label))
    assert one.shape == (8,) and (one != two).all()
    np.testing.assert_array_equal(default, fixed)
    assert (other != fixed).any()
    # the loss of a net of zeros is the mean square of eps - x0
    zeros, many = jax.tree.map(np.zeros_like, params), np.zeros((4000, 3), np.float32)
    losses = compiled(training.apply)(zeros, many[:, :2], many, key=jax.random.key(3))
    assert abs(float(losses.mean()) - 1) < 0.05


# ---- guidance --------------------------------------------------------------------------------


def test_guidance_of_scale_one_is_conditional_and_of_zero_unconditional():
    x = RNG.normal(size=(4, 2)).astype(np.float32)
    with_it, without = lambda x, t: jnp.sin(x) + t, lambda x, t: jnp.cos(x) - t
    np.testing.assert_array_equal(classifier_free_guidance(with_it, without, 1.0)(x, 0.3), with_it(x, 0.3))
    np.testing.assert_array_equal(classifier_free_guidance(with_it, without, 0.0)(x, 0.3), without(x, 0.3))
    expected = without(x, 0.3) + 2.5 * (with_it(x, 0.3) - without(x, 0.3))
    np.testing.assert_allclose(classifier_free_guidance(with_it, without, 2.5)(x, 0.3), expected, rtol=1e-5, atol=1e-6)


def test_guidance_keeps_the_dtype_of_predictions():
    """Whatever the dtype of the scale: a number, float32 or a traced one."""
    x, log_probability = jnp.ones((2, 3), jnp.bfloat16), lambda x, t: -x.sum(-1)
    guided = (
        lambda scale: classifier_free_guidance(lambda x, t: 2 * x, lambda x, t: x, scale)(x, 0.5),
        lambda scale: classifier_guidance(lambda x, t: 5 * x, log_probability, scale, SCHEDULES["flow"], "score")(
            x, 0.5
        ),
    )
    two = jnp.float32(2)
    for found in jax.jit(lambda traced: [f(scale) for f in guided for scale in (2.0, two, traced)])(two):
        assert found.dtype == jnp.bfloat16
        np.testing.assert_array_equal(np.float32(found), 3)


def test_guidance_in_half_precision_is_rounded_once():
    """A large scale amplifies the rounding of products, and the variance of the noise is above the range of float16."""
    with_it, without = jnp.ones(2, jnp.bfloat16), jnp.full(2, 0.99609375, jnp.bfloat16)
    for scale in (7.5, 100.0):
        expected = jnp.asarray(0.99609375 + scale * 0.00390625, jnp.bfloat16)
        found = classifier_free_guidance(lambda x, t: with_it, lambda x, t: without, scale)(without, 0.5)
        np.testing.assert_array_equal(np.float32(found), np.float32(expected))
    schedule, x = variance_exploding_schedule(noise_max=400.0), jnp.ones((2, 3), jnp.float16)
    log_probability = lambda x, t: 0.001 * x[..., 0]
    found = classifier_guidance(lambda x, t: x, log_probability, 1.0, schedule, "x0")(x, 1.0)
    assert found.dtype == jnp.float16
    np.testing.assert_allclose(np.float32(found), [[1 + 0.001 * 400**2, 1, 1]] * 2, rtol=1e-3)


def test_guidance_by_the_exact_classifier_is_bayes_rule(double):
    """The unconditional denoiser and the probability of a class give the denoiser of that class."""
    schedule, data = SCHEDULES["flow"], _mixture()
    one = gaussian_mixture(MEANS[:1], COVARIANCES[:1])
    log_probability = lambda x, t: jnp.log(data.at(t, schedule).responsibilities(x)[..., 0])
    x = RNG.normal(size=(5, 2))
    all_classes = lambda p: classifier_guidance(data.predictor(schedule, p), log_probability, 1.0, schedule, p)
    found = jax.jit(lambda x: [all_classes(p)(x, 0.4) for p in PREDICTION_TYPES])(x)
    expected = jax.jit(lambda x: [one.predictor(schedule, p)(x, 0.4) for p in PREDICTION_TYPES])(x)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)


def test_conditions_are_dropped_per_example_at_the_given_rate():
    labels, drop = np.arange(10_000, dtype=np.int32) % 10, compiled(drop_condition)
    dropped = drop(jax.random.key(0), labels, null=10, rate=0.2)
    share = (dropped == 10).mean()
    assert abs(share - 0.2) < 4 * np.sqrt(0.16 / 10_000)
    assert ((dropped == labels) | (dropped == 10)).all()
    vectors = drop(jax.random.key(1), np.ones((100, 3), np.float32), null=np.zeros(3, np.float32), rate=0.5)
    assert set(vectors.sum(-1).tolist()) == {0.0, 3.0}


# ---- errors ----------------------------------------------------------------------------------

X, FLOW = np.ones((2, 2), np.float32), SCHEDULES["flow"]
GRID = np.array([1, 0.5, 0], np.float32)
same = lambda x, t: x
BAD = {
    "reversed ends": (
        lambda: add_noise(X, X, 0.5, Schedule(lambda t: t, lambda t: 1 - t)),
        "signal 1 and noise 0 at t = 0, got signal 0 and noise 1",
        lambda: add_noise(X, X, 0.5, Schedule(lambda t: 1 - t, lambda t: t)),
    ),
    "signal at t = 1": (
        lambda: times(Schedule(lambda t: 1 - 0.5 * t, lambda t: t), 4),
        "got signal 0.5 and noise 1",
        lambda: times(Schedule(lambda t: 1 - 0.95 * t, lambda t: t), 4),
    ),
    "too little noise": (
        lambda: variance_preserving_schedule(beta_max=1.0),
        "variance_preserving_schedule expected a schedule with much more noise than signal at t = 1, got signal 0.7596",
        lambda: variance_preserving_schedule(beta_max=15),
    ),
    "not monotone": (
        lambda: times(Schedule(lambda t: 1 - t, lambda t: t + 0.5 * jnp.sin(12 * t) ** 2), 4),
        "decreases, got one that does not decrease between",
        lambda: times(FLOW, 4),
    ),
    "NaN": (
        lambda: times(Schedule(lambda t: 1 - t, lambda t: jnp.where(t > 0.5, jnp.inf, t)), 4),
        "correct the functions there",
        lambda: times(FLOW, 4),
    ),
    "constant": (
        lambda: times(Schedule(lambda t: 1.0, lambda t: 20 * t), 4),
        "a constant as jnp.ones_like(t)",
        lambda: times(Schedule(lambda t: jnp.ones_like(t), lambda t: 20 * t), 4),
    ),
    "function instead of schedule": (
        lambda: times(flow_matching_schedule, 4),
        "call it: flow_matching_schedule()",
        lambda: times(flow_matching_schedule(), 4),
    ),
    "increasing times": (
        lambda: euler.__wrapped__(same, X, GRID[::-1], FLOW, "velocity"),
        "0.0 before 0.5 (at index 1); sort them",
        lambda: euler(same, X, np.sort(GRID)[::-1], FLOW, "velocity"),
    ),
    "times above 1": (
        lambda: euler.__wrapped__(same, X, 2 * GRID, FLOW, "velocity"),
        "got 0.0 to 2.0; divide",
        lambda: euler(same, X, GRID, FLOW, "velocity"),
    ),
    "shape of prediction": (
        lambda: heun(lambda x, t: x[..., :1], X, GRID, FLOW, "v"),
        "heun expected a prediction of the shape of x, float32 (2, 2), got float32 (2, 1)",
        lambda: compiled(heun)(same, X, GRID, FLOW, "v"),
    ),
    "no signal": (
        lambda: heun(same, X, GRID, FLOW, "eps"),
        "got t = 1.0, where the conversion divides by the signal",
        lambda: compiled(heun)(same, X, times(FLOW, 4, start=0.999, end=0.001), FLOW, "eps"),
    ),
    "missing key": (
        lambda: ddim(same, X, GRID, FLOW, "v", eta=1.0),
        "pass key=jax.random.key(0)",
        lambda: ddim(same, X, GRID, FLOW, "v", eta=1.0, key=jax.random.key(0)),
    ),
    "infinite log_snr": (
        lambda: times(FLOW, 4, spacing="log_snr"),
        "got an infinite one at start=1.0",
        lambda: times(FLOW, 4, spacing="log_snr", start=0.999, end=0.001),
    ),
    "time above 1": (
        lambda: add_noise.__wrapped__(X, X, 500.0, FLOW),
        "got 500.0 to 500.0",
        lambda: add_noise(X, X, 0.5, FLOW),
    ),
    "too many times": (
        lambda: add_noise(X, X, np.ones(3, np.float32), FLOW),
        "times with the first axes of x, float32 (2, 2), got float32 (3,)",
        lambda: add_noise(X, X, np.ones(2, np.float32), FLOW),
    ),
    "net without time": (
        lambda: DenoisingLoss(Dense(2), FLOW, "v"),
        "reads time",
        lambda: DenoisingLoss(_net(), FLOW, "v", conditions="label"),
    ),
    "weights": (
        lambda: gaussian_mixture(X, np.ones(2, np.float32), np.float32([1, 2])),
        "divide by their sum",
        lambda: gaussian_mixture(X, np.ones(2, np.float32), np.float32([1, 2]) / 3),
    ),
    "singular covariance": (
        lambda: gaussian_mixture(X, np.zeros((2, 2, 2), np.float32)),
        "add a small multiple of the identity",
        lambda: gaussian_mixture(X, np.broadcast_to(np.eye(2, dtype=np.float32) / 10, (2, 2, 2))),
    ),
    "null between labels": (
        lambda: drop_condition(jax.random.key(0), np.arange(3), null=0.5, rate=0.5),
        "null to be a number of int",
        lambda: drop_condition(jax.random.key(0), np.arange(3), null=3, rate=0.5),
    ),
    "null of uint8": (
        lambda: drop_condition(jax.random.key(0), np.arange(3, dtype=np.uint8), null=300, rate=0.5),
        "null to be a number of uint8, as the condition, got 300; pass an integer, and labels in int32",
        lambda: drop_condition(jax.random.key(0), np.arange(3, dtype=np.int32), null=300, rate=0.5),
    ),
    "shape of condition": (
        lambda: drop_condition(jax.random.key(0), X, null=np.zeros(3, np.float32), rate=0.5),
        "the shape (2,) of one condition",
        lambda: drop_condition(jax.random.key(0), X, null=np.zeros(2, np.float32), rate=0.5),
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_errors_state_the_repair_and_the_repair_works(name, sentences):
    wrong, words, repaired = BAD[name]
    with pytest.raises((TypeError, ValueError)) as caught:
        wrong()
    assert words in str(caught.value)
    assert str(caught.value).endswith(".") and "\n" not in str(caught.value)
    repaired()


def test_the_denoising_loss_requires_a_key(sentences):
    training = DenoisingLoss(_net(), FLOW, "v", conditions=("label",))
    label = np.zeros((2, 3), np.float32)
    params = drawn(training, X, label)
    with pytest.raises(TypeError, match="DenoisingLoss expected a key to draw .*, got none; pass key="):
        training.apply(params, X, label, train=True)
    compiled(training.apply)(params, X, label, train=True, key=jax.random.key(0))
    with pytest.raises(TypeError, match="2 inputs \\(x0, label\\)"):
        training.apply(params, X)


def test_a_net_with_state_can_be_trained():
    from jaxblocks.core import StatefulLayer
    from jaxblocks.layers.norm import BatchNorm

    net = Wire(lambda f, x, *, time: f.norm(f.out(x)), out=Dense(2), norm=BatchNorm())
    training = DenoisingLoss(net, FLOW, "v")
    assert isinstance(training, StatefulLayer) and isinstance(
        DenoisingLoss(_net(), FLOW, "v", conditions=("label",)), Layer
    )
    params, state = drawn(training, X)
    losses, after = compiled(training.apply)(params, state, X, key=jax.random.key(1), train=True)
    assert losses.shape == (2,)
    assert any((a != b).any() for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(after), strict=True))


def test_known_times_are_checked_inside_of_jit_too():
    calls = {
        "add_noise expected times from 0": lambda x: add_noise(x, x, 2.0, FLOW),
        "convert expected times at which eps": lambda x: convert(x, x, 1.0, FLOW, "eps", "x0"),
        "euler expected times at which eps": lambda x: euler(same, x, GRID, FLOW, "eps"),
    }
    for words, call in calls.items():
        for transformed in (jax.jit(call), jax.jit(jax.vmap(call))):
            with pytest.raises(ValueError, match=words):
                transformed(jnp.asarray(X))
