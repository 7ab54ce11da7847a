"""Gradient descent, momentum and Adam: bounds at every step, stability limits, values from the lecture."""

import dataclasses
import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import for_each
from compiled import compiled

from jaxblocks.theory.convergence import (
    Objective,
    convex_bound,
    descend,
    huber_objective,
    iteration_matrix,
    least_squares_objective,
    linear_bound,
    logistic_objective,
    quadratic_objective,
    smoothness,
    spectral_radius,
    stability_map,
    stable_step_size,
    tuned_momentum,
)

SLOPES = np.array([1.0, 10.0])  # of the quadratic in the lecture, (x_1^2 + 10 x_2^2) / 2


@pytest.fixture
def x64():
    """Double precision, and the dtype promotion that optax needs."""
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        yield


@functools.cache
def lecture_in(dtype):
    return quadratic_objective(jnp.asarray(SLOPES, dtype))


def lecture():  # in the default precision
    return lecture_in(jnp.result_type(float))


def quartic(x):
    return x**4 - x**3 - 2 * x**2 + 3


@functools.cache
def problem(name):
    """An objective and a starting point, in double precision."""
    rng = np.random.default_rng(3)
    x, noise = rng.normal(size=(40, 3)), rng.normal(size=40)
    if name == "quadratic":
        root = rng.normal(size=(5, 3))  # two flat directions
        return quadratic_objective(jnp.asarray(root @ root.T), jnp.asarray(root @ rng.normal(size=3))), jnp.ones(5)
    if name == "huber":
        return huber_objective(knee=0.2), jnp.asarray(rng.normal(size=4))
    if name == "least squares":
        objective = least_squares_objective(jnp.asarray(x), jnp.asarray(noise[:, None] + x[:, :1]))
    else:
        objective = logistic_objective(jnp.asarray(x), jnp.asarray(x[:, 0] + noise > 0.3))
    return objective, {"kernel": jnp.full((3, 1), -1.0), "bias": jnp.ones(1)}


PROBLEMS = ("quadratic", "least squares", "logistic", "huber")


# ---- bounds -------------------------------------------------------------------------------


def test_bound_of_the_lecture_on_its_quadratic(x64):
    """The gaps f - f* at t = 1, 10, 50 for eta = .099, and their bounds."""
    seen = descend(lecture(), jnp.ones(2), 0.099, steps=50)
    np.testing.assert_allclose(np.asarray(seen.gaps)[[1, 10, 50]], [0.4064005, 0.0621535, 1.484052e-5], rtol=1e-6)
    np.testing.assert_allclose(
        np.asarray(seen.bounds["convex"])[[1, 10, 50]], [10.10101, 1.010101, 0.2020202], rtol=1e-6
    )
    assert seen.bounds["convex"][0] == jnp.inf
    assert bool(seen.holds)


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_bound_holds_at_every_step(x64, name):
    """The steps of the proof hold too: the descent lemma, and the inequality whose sum telescopes."""
    objective, start = problem(name)
    shares = (0.3, 1.0, 1.7)  # of 1 / L
    every = jax.jit(jax.vmap(lambda eta: descend(objective, start, eta, steps=120)))
    runs = every(np.array(shares) / objective.smoothness)
    assert runs.holds.shape == (3,) and bool(runs.holds.all())
    for share, seen in zip(
        shares, (jax.tree.map(lambda leaf, i=i: np.asarray(leaf)[i], runs) for i in range(3)), strict=True
    ):
        gaps = np.asarray(seen.gaps)
        assert bool(seen.holds)
        assert set(seen.bounds) == {"convex", "sharp"} | ({"strongly convex"} if objective.convexity else set())
        for bound in seen.bounds.values():
            assert (gaps <= np.asarray(bound) + 1e-14 * gaps[0]).all()
        assert np.isinf(seen.bounds["convex"][1:]).all() == (share > 1)
        assert (np.diff(gaps) <= 1e-15).all()  # up to 2 / L the values decrease
        if share <= 1:
            eta = share / objective.smoothness
            fall = eta / 2 * np.asarray(seen.gradient_norms[:-1]) ** 2
            assert (gaps[1:] <= gaps[:-1] - fall + 1e-14).all()
            nearer = -np.diff(np.asarray(seen.distances) ** 2) / (2 * eta)
            assert (gaps[1:] <= nearer + 1e-14).all()


def test_strong_convexity_of_the_objectives(x64):
    assert lecture().convexity == pytest.approx(1) and problem("quadratic")[0].convexity == 0
    assert problem("least squares")[0].convexity > 0


def test_huber_attains_the_sharp_bound(x64):
    """With the knee R / (2 t + 1) and eta = 1 / L the gap is L R^2 / (4 t + 2), from any direction."""

    @jax.jit
    def run(start):
        seen = [descend(huber_objective(knee=1 / (2 * steps + 1)), start, 1.0, steps=steps) for steps in (1, 10)]
        return *seen, descend(huber_objective(knee=1 / 9), 1.0, 0.4, steps=10)

    one, ten, short = run(np.array([0.6, 0.0, -0.8]))
    assert one.gaps[-1] == pytest.approx(0.1666667, rel=1e-5) and ten.gaps[-1] == pytest.approx(0.0238095, rel=1e-5)
    for seen in (one, ten, short):  # short with eta = .4
        assert seen.gaps[-1] == pytest.approx(float(seen.bounds["sharp"][-1]), rel=1e-12)


def test_the_sharp_bound_of_long_steps(x64):
    """Huber functions of all knees and quadratics of all curvatures are below it, and one of them attains it."""
    etas = np.array([0.5, 1.0, 1.1, 1.5, 1.7, 1.9, 1.99])
    every = jax.jit(jax.vmap(lambda steps: convex_bound(steps, 2.0, etas, smoothness=1.0)))
    for steps, bounds in zip((1, 2, 5, 20), every(np.array([1, 2, 5, 20])), strict=True):
        for eta, bound in zip(etas, bounds, strict=True):
            knees = np.append(np.arange(1, 30) / 10, 2 / (2 * eta * steps + 1))
            curvatures = np.arange(1, 11) / 10
            x, z = np.full_like(knees, 2), np.full_like(curvatures, 2)
            for _ in range(steps):
                x, z = x - eta * np.clip(x, -knees, knees), (1 - eta * curvatures) * z
            near, far = x**2 / 2, knees * np.abs(x) - knees**2 / 2
            gaps = np.concatenate([np.where(np.abs(x) > knees, far, near), curvatures / 2 * z**2])
            assert gaps.max() == pytest.approx(float(bound), rel=1e-12)
    seen = descend(huber_objective(knee=0.5), 2.0, 1.5, steps=1)  # eta for which both attain it
    assert float(seen.gaps[1]) == float(seen.bounds["sharp"][1]) == 0.5 and bool(seen.holds)
    slopes = jax.vmap(jax.jacfwd(lambda eta: convex_bound(np.arange(3.0), 2.0, eta, smoothness=1.0)))
    assert np.isfinite(jax.jit(slopes)(np.array([0.5, 1.0, 1.5]))).all()


@pytest.mark.parametrize(("eta", "start"), [(0.15, [1.0, 0.0]), (0.19, [0.0, 1.0])])
def test_a_quadratic_attains_the_linear_rate(x64, eta, start):
    """Along the flattest direction, and along the steepest."""
    seen = descend(lecture(), jnp.array(start), eta, steps=30)
    np.testing.assert_allclose(seen.gaps, seen.bounds["strongly convex"], rtol=1e-10)


def test_bounds_fail_where_their_assumptions_do(x64):
    """Negative controls: a step above 2 / L, an L that is too small, a mu that is too large, no convexity."""
    with pytest.warns(
        UserWarning, match=r"above 2 / L = 0.2 gradient descent diverges .* L = 10; below it the bounds hold"
    ):
        assert bool(descend(lecture(), jnp.ones(2), 0.21, steps=50).holds)  # no bound is stated there ...
    climbing = np.asarray(descend(lecture().f, jnp.ones(2), 0.21, steps=50).values)
    bound = compiled(convex_bound)(np.arange(1, 51), 2**0.5, 0.21)
    assert (climbing[1:] > bound).any()  # ... since it would not hold
    honest = lecture()
    assert not descend(
        Objective(honest.f, smoothness=5.0, convexity=1.0, minimizer=honest.minimizer), jnp.ones(2), 0.2, steps=50
    ).holds
    assert not descend(
        Objective(honest.f, smoothness=10.0, convexity=2.0, minimizer=honest.minimizer), jnp.ones(2), 0.1, steps=50
    ).holds
    bent = Objective(lambda x: 1 - jnp.exp(-(x**2) / 2), smoothness=1.0, convexity=0.0, minimizer=0.0)
    bending = descend(bent, 3.5, 1.0, steps=300)
    assert not bending.holds and "FAIL" in repr(bending)


def test_a_step_at_the_limit_does_not_warn(x64):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        seen = descend(lecture(), jnp.ones(2), 0.2, steps=10)
    np.testing.assert_allclose(
        np.abs(np.asarray(seen.points)[:, 1]), 1, rtol=1e-12
    )  # it oscillates with constant amplitude


def test_huber_objective_of_large_and_small_vectors():
    """Squares of entries that leave the range of float32 do not occur."""
    x = np.array([3.0, -4.0])
    scales = (1e-30, 1e-3, 1.0, 1e3, 1e30)
    each = jax.jit(lambda xs: [jax.value_and_grad(huber_objective(knee=s))(x) for s, x in zip(scales, xs, strict=True)])
    for scale, (value, gradient) in zip(scales, each([np.float32(scale * x) for scale in scales]), strict=True):
        if scale < 1e19:  # else the square of the knee leaves the range
            np.testing.assert_allclose(value, np.float32(scale**2 * 4.5), rtol=1e-6)
        np.testing.assert_allclose(gradient, scale * x / 5, rtol=1e-6)
    far, slope = jax.jit(jax.value_and_grad(huber_objective()))(jnp.asarray(1e30 * x, jnp.float32))
    np.testing.assert_allclose(far, 5e30, rtol=1e-6)
    np.testing.assert_allclose(slope, x / 5, rtol=1e-6)
    assert huber_objective()(3) == 2.5 and huber_objective()(-0.5) == 0.125


def test_smoothness_of_params_of_several_dtypes_under_strict_promotion():
    f = lambda x: jnp.sum(x["a"].astype(jnp.float32) ** 2) + 5 * jnp.sum(x["b"] ** 2)
    with jax.numpy_dtype_promotion("strict"):
        found = smoothness(f, {"a": jnp.ones(2, jnp.bfloat16), "b": jnp.ones(1)})
    np.testing.assert_allclose(found, 10, rtol=1e-6)


def test_smoothness_of_the_objectives(x64):
    """L is the largest curvature: everywhere for quadratics, where all logits are 0 for the logistic loss."""
    objective, start = problem("logistic")
    zero = jax.tree.map(jnp.zeros_like, start)
    assert smoothness(objective, zero) == pytest.approx(objective.smoothness, rel=1e-12)
    ridged = logistic_objective(*logistic_data(), ridge=0.5)
    assert objective.smoothness < smoothness(ridged, zero) <= ridged.smoothness == objective.smoothness + 1
    objective, start = problem("least squares")
    assert smoothness(objective, start) == pytest.approx(objective.smoothness, rel=1e-10)
    xor = jnp.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    assert least_squares_objective(xor, xor[:, :1]).smoothness == pytest.approx(3.1861407, rel=1e-7)
    assert smoothness(lambda x: jnp.sum(x**2), jnp.zeros(0)) == 0  # without params


def logistic_data():
    rng = np.random.default_rng(3)
    x, noise = rng.normal(size=(40, 3)), rng.normal(size=40)
    return jnp.asarray(x), jnp.asarray(x[:, 0] + noise > 0.3)


@pytest.mark.parametrize("name", PROBLEMS)
def test_gradients_vanish_at_the_minimizers(x64, name):
    objective, start = problem(name)
    best = jax.tree.map(lambda b, s: np.broadcast_to(np.asarray(b, s.dtype), s.shape), objective.minimizer, start)
    assert max(np.abs(g).max() for g in jax.tree.leaves(jax.jit(jax.grad(objective.f))(best))) < 1e-9


def test_values_of_the_bounds(x64):
    assert convex_bound(10, 3.0, 0.5) == pytest.approx(0.9)
    assert convex_bound(10, 3.0, 0.5, smoothness=2.0) == pytest.approx(9 / 21)
    assert convex_bound(10, 3.0, 0.75, smoothness=2.0) == pytest.approx(9 / (30 + 1))
    assert convex_bound(10, 3.0, 0.99, smoothness=2.0) == pytest.approx(9 * 0.98**20)
    np.testing.assert_allclose(convex_bound(0, 3.0, jnp.array([0.3, 0.5, 0.9]), smoothness=2.0), 9)
    assert convex_bound(10, 3.0, 1.0, smoothness=2.0) == jnp.inf
    assert linear_bound(3, 2.0, 0.1, smoothness=10.0, convexity=1.0) == pytest.approx(2 * 0.9**6)


def test_derivatives_of_the_linear_bound_where_its_rate_is_0(x64):
    """At step 0 the bound is the gap, whatever the step size; after it 0, with the derivative 0."""
    bound = lambda gap, eta: linear_bound(jnp.array([0.0, 1.0, 2.0]), gap, eta, smoothness=1.0, convexity=1.0)
    np.testing.assert_array_equal(bound(3.0, 1.0), [3, 0, 0])
    of_gap, of_step = jax.jacrev(bound, (0, 1))(3.0, 1.0)
    np.testing.assert_array_equal(of_gap, [1, 0, 0])
    np.testing.assert_array_equal(of_step, [0, 0, 0])
    np.testing.assert_allclose(jax.jacrev(bound, 1)(3.0, 0.9), [0, -3 * 2 * 0.1, -3 * 4 * 0.1**3])


# ---- optimizers of optax against the corrected formulas ----------------------------------------


def by_hand(method, eta, m, steps, slopes=SLOPES):
    """The momentum methods of the lecture, corrected with v_{t+1}, and with v_t as printed."""
    theta, v = np.ones(len(slopes)), np.zeros(len(slopes))
    path = [theta]
    for _ in range(steps):
        if method == "average":
            v = m * v + (1 - m) * slopes * theta
            theta = theta - eta * v
        elif method == "nesterov":  # optax keeps the point at which the gradient is taken: y = x + m v
            x = theta - m * v
            v = m * v - eta * slopes * theta
            theta = x + v + m * v
        else:
            new = m * v - eta * slopes * theta
            theta, v = theta + (v if method == "printed" else new), new
        path.append(theta)
    return np.array(path)


def optimizer(method, eta, m):
    if method == "average":
        return optax.chain(optax.ema(m, debias=False), optax.scale(-eta))
    return optax.sgd(eta, momentum=m, nesterov=method == "nesterov")


METHODS = ("heavy ball", "nesterov", "average")


@pytest.mark.parametrize("method", METHODS)
def test_optax_computes_the_corrected_momentum(x64, method):
    seen = descend(lecture(), jnp.ones(2), optimizer(method, 0.05, 0.7), steps=60)
    np.testing.assert_allclose(seen.points, by_hand(method, 0.05, 0.7, 60), atol=1e-14)
    assert seen.bounds == {} and bool(seen.holds)


def test_both_forms_of_momentum_are_one_method(x64):
    """gamma = eta (1 - beta), m = beta; 1, .9, .72, .486, .2268, -.02916, -.256608."""
    one = quadratic_objective(jnp.ones(1))
    first = np.asarray(descend(one, jnp.ones(1), optimizer("heavy ball", 0.1, 0.9), steps=100).points)[:, 0]
    second = np.asarray(descend(one, jnp.ones(1), optimizer("average", 1.0, 0.9), steps=100).points)[:, 0]
    np.testing.assert_allclose(first[:7], [1, 0.9, 0.72, 0.486, 0.2268, -0.02916, -0.256608], atol=1e-14)
    np.testing.assert_allclose(first, second, atol=1e-15)


def test_gradient_descent_is_optax_sgd(x64):
    mine, theirs = (descend(lecture(), jnp.ones(2), o, steps=30).points for o in (0.05, optax.sgd(0.05)))
    np.testing.assert_array_equal(mine, theirs)
    np.testing.assert_allclose(mine, by_hand("heavy ball", 0.05, 0.0, 30), rtol=1e-13)


def test_momentum_as_printed_differs_from_momentum(x64):
    """C = x^2 / 2, m = .9, eta = .5, 100 steps from 1: 2.89005e-3 against 1.158960e7."""
    one = quadratic_objective(jnp.ones(1))
    right = descend(one, jnp.ones(1), optimizer("heavy ball", 0.5, 0.9), steps=100).last[0]
    assert abs(right) == pytest.approx(2.89005e-3, rel=1e-5)
    assert abs(by_hand("printed", 0.5, 0.9, 100, np.ones(1))[-1, 0]) == pytest.approx(1.158960e7, rel=1e-6)


def adam(eta, steps, correct=True, start=(1.0, 1.0), scale=1.0):
    theta, v, s = np.array(start), 0.0, 0.0
    path = [theta]
    for t in range(1, steps + 1):
        g = scale * SLOPES * theta
        v, s = 0.9 * v + 0.1 * g, 0.999 * s + 0.001 * g**2
        v_hat, s_hat = (v / (1 - 0.9**t), s / (1 - 0.999**t)) if correct else (v, s)
        theta = theta - eta * v_hat / (np.sqrt(s_hat) + 1e-8)
        path.append(theta)
    return np.array(path)


def test_adam_is_the_corrected_formula(x64):
    """v_0 = s_0 = 0, t from 1; without the correction of the bias the first step is .316228."""
    path = np.asarray(descend(lecture(), jnp.ones(2), optax.adam(0.1), steps=60).points)
    printed = [[0.900000001, 0.9000000001], [0.8004122297, 0.8004122279], [0.7015862745, 0.7015862717]]
    printed += [[0.6039390627, 0.6039390589], [0.5079636619, 0.5079636571]]
    np.testing.assert_allclose(path[1:6], printed, atol=5e-11)
    np.testing.assert_allclose(path, adam(0.1, 60), atol=1e-12)
    np.testing.assert_allclose(1 - path[1], 0.1 * SLOPES / (SLOPES + 1e-8), rtol=1e-12)
    np.testing.assert_allclose(1 - adam(0.1, 1, correct=False)[1], 0.316228, atol=5e-7)
    scaled = descend(lambda x: 1000 * (x[0] ** 2 + 10 * x[1] ** 2) / 2, jnp.ones(2), optax.adam(0.1), steps=60).points
    np.testing.assert_allclose(
        scaled, path, atol=1e-7
    )  # its steps depend on the scale of the gradient only through epsilon


# ---- stability ----------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "m"), [("heavy ball", 0.0), *((method, 0.9) for method in METHODS)])
def test_spectral_radius_equals_that_of_optax(x64, method, m):
    """On a quadratic its step is linear in the point and the state; eigenvalues of its Jacobian."""

    @jax.jit
    @jax.vmap
    def every(a):
        o = optimizer(method, a / 2, m)  # curvature 2

        def step(flat):
            x, v = flat
            state = jax.tree.map(lambda leaf: v if leaf.dtype == x.dtype else leaf, o.init(x))
            updates, state = o.update(2 * x, state, x)
            [v] = [leaf for leaf in jax.tree.leaves(state) if leaf.dtype == x.dtype] or [v]
            return jnp.stack([x + updates, v])

        at = dict(momentum=m, method=method)
        own = spectral_radius(a / 2, 2.0, **at), iteration_matrix(a / 2, 2.0, **at)
        return jax.jacobian(step)(jnp.array([0.3, 0.2])), *own

    jacobians, radii, matrices = every(np.array([0.05, 0.4, 1.3, 3.7]))
    expected = np.abs(np.linalg.eigvals(jacobians)).max(1)
    np.testing.assert_allclose(radii, expected, rtol=1e-7)
    np.testing.assert_allclose(np.abs(np.linalg.eigvals(matrices)).max(1), expected, rtol=1e-7)


def test_values_of_the_spectral_radius(x64):
    """m = .9, eta lambda = .11 and 3.7 give .948683; m = 1 never converges; printed: 1.004988, 2.144761."""
    np.testing.assert_allclose(spectral_radius(jnp.array([0.11, 3.7]), 1.0, momentum=0.9), 0.948683, atol=5e-7)
    np.testing.assert_allclose(spectral_radius(jnp.array([0.11, 3.7]), 1.0, momentum=1.0), 1, rtol=1e-12)
    for a, radius in ((0.11, 1.004988), (3.7, 2.144761)):
        printed = np.array([[1, 1], [-a, 0.9]])  # theta' = theta + v, v' = m v - a theta
        assert np.abs(np.linalg.eigvals(printed)).max() == pytest.approx(radius, abs=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_stability_limit(x64, method):
    """The method of optax converges in the steepest direction below the limit only; it is 3.8 for m = .9."""
    limit = float(stable_step_size(10.0, momentum=0.9, method=method))
    assert limit * 10 == pytest.approx({"heavy ball": 3.8, "nesterov": 3.8 / 2.8, "average": 38}[method])
    radii = spectral_radius(limit * jnp.array([0.97, 1.0, 1.03]), 10.0, momentum=0.9, method=method)
    assert radii[0] < 1 < radii[2] and radii[1] == pytest.approx(1)
    f = lecture().f
    last = lambda eta: descend(f, jnp.ones(2), optimizer(method, eta, 0.9), steps=600).values[-1]
    below, above = jax.vmap(last)(limit * jnp.array([3.7, 3.9]) / 3.8)
    assert below < 1e-10 and above > 1e10


def test_stability_limit_of_gradient_descent(x64):
    """Below 2 / L it converges, above it diverges."""
    assert stable_step_size(10.0) == pytest.approx(0.2)
    f = lecture().f
    below, above = jax.vmap(lambda eta: descend(f, jnp.ones(2), eta, steps=2000).values[-1])(jnp.array([0.199, 0.201]))
    assert below < 1e-12 and above > 1e10


@pytest.mark.parametrize("method", ["gradient descent", *METHODS])
def test_optimal_momentum(x64, method):
    """The largest radius over the spectrum is the stated rate, and no point of a grid around it has a smaller one."""
    eta, m, rate = tuned_momentum(100.0, 1.0, method=method)
    plain = method == "gradient descent"
    spectrum = np.linspace(1, 100, 400)[:, None, None]
    etas = eta * np.linspace(0.8, 1.2, 41)[None, :, None]
    momenta = np.clip(m + np.linspace(-0.1, 0.1, 1 if plain else 41), 0, None)[None, None]
    momenta = np.zeros((1, 1, 1)) if plain else momenta
    radius = compiled(functools.partial(spectral_radius, method="heavy ball" if plain else method))
    radii = radius(etas, spectrum, momentum=momenta).max(0)
    assert radii.min() >= rate - 1e-9
    middle = radius(eta, np.linspace(1, 100, 400), momentum=m).max()
    assert middle == pytest.approx(rate, abs=1e-6)


def test_stability_map():
    found = stability_map(method="heavy ball", points=40)
    assert found.radius.shape == (40, 40)
    inside = found.step_sizes[None] < found.limit[:, None] - 1e-3
    assert (found.radius[:, 1:][inside[:, 1:]] < 1).all()
    assert (found.radius[found.step_sizes[None] > found.limit[:, None] + 1e-3] > 1).all()


# ---- the lecture's small functions --------------------------------------------------------


def test_first_example_of_the_lecture(x64):
    """The iterates, the limit (3 + sqrt 73) / 8, within 1e-6 at step 21, contraction -.6027702."""
    path = np.asarray(descend(quartic, 2.0, 0.13, steps=100).points)
    first = [2, 0.44, 0.70000832, 1.07675083, 1.43966841, 1.44498829, 1.44179491, 1.44372444]
    np.testing.assert_allclose(path[:8], first, atol=5e-9)
    limit = (3 + np.sqrt(73)) / 8
    assert path[100] == pytest.approx(limit, abs=1e-14)
    assert np.argmax(np.abs(path - limit) < 1e-6) == 21
    curvature = float(smoothness(quartic, limit))
    assert curvature == pytest.approx(12.3290014, abs=1e-7)
    assert 1 - 0.13 * curvature == pytest.approx(-0.6027702, abs=1e-7)
    assert stable_step_size(curvature) == pytest.approx(0.1622191, abs=1e-7)


def test_too_large_steps_end_in_a_cycle_or_at_another_minimum(x64):
    """Step .163 alternates between 1.3957087 and 1.4855976 (printed as 1.488...); .17 converges to -.6930005."""
    lasts = jax.vmap(lambda eta: descend(quartic, 2.0, eta, steps=2000).points[-2:])(jnp.array([0.163, 0.17]))
    lasts = np.asarray(lasts)
    np.testing.assert_allclose(np.sort(lasts[0]), [1.3957087, 1.4855976], atol=5e-8)
    np.testing.assert_allclose(lasts[1], -0.6930004682, atol=1e-9)


def test_minimum_depends_on_the_start_unless_the_function_is_convex(x64):
    ends = jax.vmap(lambda x: descend(quartic, x, 0.1, steps=300).last)(jnp.array([-1.0, 2.0]))
    np.testing.assert_allclose(ends, (3 + np.array([-1, 1]) * np.sqrt(73)) / 8, atol=1e-10)
    np.testing.assert_allclose(quartic(np.asarray(ends)), [2.6029536590, 0.1665775910], atol=1e-9)
    starts = jnp.array([[5.0, -3.0], [-1.0, 1.0]])
    assert (jax.vmap(lambda x: descend(lecture().f, x, 0.1, steps=300).values[-1])(starts) < 1e-12).all()


def test_convergence_to_multiple_roots(x64):
    """On r^2 of the homework, to the fourfold root like 1 / sqrt(t), to the double root linearly."""
    square = lambda x: (x**5 - x**4 - x + 1) ** 2
    slow = np.asarray(descend(square, 0.0, 0.05, steps=10_000).points)
    np.testing.assert_allclose(slow[10 ** np.arange(1, 5)], [0.67218, 0.95181, 0.98683, 0.99599], atol=5e-6)
    assert np.log10((1 - slow[1000]) / (1 - slow[10000])) == pytest.approx(0.5, abs=0.02)
    assert descend(square, -0.6, 0.01, steps=10).last == pytest.approx(-1.0000546, abs=5e-8)


def test_negative_gradient_is_the_steepest_direction():
    """For the gradient (3, 4), the least slope over unit directions is -5, along -(3, 4) / 5."""
    x, angles = np.array([3.0, 4.0]), np.linspace(0, 2 * np.pi, 10_001)
    slopes = np.stack([np.cos(angles), np.sin(angles)], -1) @ x
    assert -5 <= slopes.min() < -5 + 1e-6
    f = lambda x: jnp.sum(x**2) / 2
    step = descend(f, jnp.asarray(x, jnp.float32), 0.5, steps=1)
    start, last = np.asarray(step.points)
    np.testing.assert_allclose(last - start, -0.5 * 5 * x / 5, rtol=1e-6)
    assert step.gradient_norms[0] == 5


# ---- the record ---------------------------------------------------------------------------


def test_descent_is_a_pytree_and_keeps_its_dtype():
    seen = jax.jit(lambda x: descend(quartic, x, 0.1, steps=5))(jnp.float32(1.5))
    assert seen.points.shape == (6,) and seen.values.dtype == jnp.float32 and not seen.values.weak_type
    np.testing.assert_allclose(seen.values, quartic(seen.points), rtol=1e-6)
    assert seen.minimum is None and seen.distances is None
    assert float(seen.gaps.min()) == 0
    single = descend(huber_objective(), jnp.array([2.0, -3.0]), 0.5, steps=200)  # bounds in single precision
    assert bool(single.holds)
    assert repr(single).startswith("Descent(200 steps, f from 3.10555 to")
    half = descend(lambda x: jnp.sum(x**2), jnp.ones(2, jnp.bfloat16), 0.25, steps=3)
    assert half.points.dtype == jnp.bfloat16


def test_divergence_is_recorded():
    with jax.debug_nans(False):
        seen = descend(lambda x: x**4, 10.0, 1.0, steps=20)
        assert not np.isfinite(seen.values[-1])
        assert repr(seen) == "Descent(20 steps, f from 10000 to nan)"
        nowhere = descend(quadratic_objective(jnp.ones(2)), jnp.array([1.0, jnp.nan]), 0.1, steps=3)
        assert not nowhere.holds  # and no error about the minimizer, since it is correct


def test_repr_lists_informative_bounds():
    """Above 1 / L the bound of the lecture is infinite; above 2 / L all bounds are infinite or grow."""
    long = repr(descend(lecture(), jnp.ones(2), 0.15, steps=20))
    assert "bounds hold: sharp, strongly convex)" in long
    with pytest.warns(UserWarning, match="above 2 / L") as said:
        words = repr(descend(lecture(), jnp.ones(2), 0.3, steps=20))
    assert said[0].filename == __file__
    assert words.endswith("minimum 0, no bound for this step size)")
    wrong = Objective(lambda x: jnp.sum(x**2), smoothness=4.0, convexity=3.0, minimizer=0.0)
    assert "bounds FAIL: convex, sharp, strongly convex)" in repr(descend(wrong, jnp.ones(2), 0.01, steps=50))


def test_tolerance_for_rounding_from_a_start_of_value_zero(x64):
    """The tolerance scales with the minimum."""
    q = quadratic_objective(jnp.array([3.0, 1.0]), jnp.array([1.0, 0.3]))
    assert bool(descend(q, jnp.zeros(2), 0.2, steps=100).holds)
    rng = np.random.default_rng(3)
    for n in (2, 5):
        root, b = rng.normal(size=(n, n)), rng.normal(size=n)
        q = quadratic_objective(jnp.asarray(root @ root.T + 0.01 * np.eye(n)), jnp.asarray(b))
        assert bool(descend(q, jnp.zeros(n), 1 / q.smoothness, steps=100).holds)


def test_tolerance_for_rounding_is_small(x64):
    """A value below the minimum by a relative 1e-10 is detected, and a bound too low by a relative 1e-8."""
    q = quadratic_objective(jnp.array([1.0]), jnp.array([1.0]))  # minimum -1/2 at 1
    beside = Objective(
        q.f, smoothness=1.0, convexity=1.0, minimizer=q.minimizer * (1 + 1e-5)
    )  # a value higher by 5e-11
    with pytest.raises(ValueError, match="got the value"):
        descend(beside, jnp.zeros(1), 0.5, steps=100)
    seen = descend(q, jnp.zeros(1), 0.25, steps=20)
    tight = dict(seen.bounds, mine=seen.gaps)
    assert bool(dataclasses.replace(seen, bounds=tight).holds)
    assert not bool(dataclasses.replace(seen, bounds=dict(tight, mine=seen.gaps - 0.5e-8)).holds)


def test_plots():
    matplotlib = pytest.importorskip("matplotlib", reason="plots require matplotlib")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    seen = descend(lecture(), jnp.ones(2), 0.05, steps=20)
    ax = seen.plot()
    assert seen.plot(ax) is ax and ax.get_xscale() == "log"
    assert descend(quartic, 2.0, 0.1, steps=5).plot().get_ylabel() == "f"
    stability_map(method="average", points=10).plot()
    plt.close("all")


# ---- errors ----------------------------------------------------------------------------


ERRORS = [
    (lambda: descend(quartic, 2, 0.1, steps=5), TypeError, "got 2 at x; write 2.0"),
    (lambda: descend(2.0, quartic, 0.1, steps=5), TypeError, "the function and then the start, .* swap them"),
    (lambda: descend(lambda x: x, jnp.ones(2), 0.1, steps=5), ValueError, "f to return a scalar"),
    (lambda: descend(quartic, 2.0, 0.0, steps=5), ValueError, "expected a step size > 0, got 0.0"),
    (
        lambda: descend(quartic, 2.0, "adam", steps=5),
        TypeError,
        "a step size or an optimizer .* got adam; pass",
    ),
    (lambda: descend(quartic, 2.0, optax.adam, steps=5), TypeError, "got the function adam; call it"),
    (lambda: descend(quartic, 2.0, jnp.array([0.1, 0.2]), steps=5), ValueError, "one step size, .* use jax.vmap"),
    (
        lambda: descend(Objective(quartic, minimizer=-0.7), 2.0, 0.1, steps=50),
        ValueError,
        "got the value .* at another point, below the value .* at the minimizer; correct",
    ),
    (
        lambda: descend(lecture(), jnp.ones(3), 0.1),
        ValueError,
        r"a start like the minimizer, \(2,\), got float32 \(3,\)",
    ),
    (lambda: descend(lecture(), {"x": jnp.ones(2)}, 0.1), ValueError, "a start like the minimizer"),
    (lambda: Objective(quartic, smoothness=1.0, convexity=2.0), ValueError, "0 <= convexity <= smoothness"),
    (
        lambda: quadratic_objective(jnp.ones((2, 3))),
        ValueError,
        r"expected hessian to be a matrix \(n, n\) or its diagonal",
    ),
    (
        lambda: quadratic_objective(jnp.array([[1.0, 1.0], [0.0, 1.0]])),
        ValueError,
        r"symmetric .* \(A \+ A.T\) / 2",
    ),
    (lambda: tuned_momentum(float("inf"), 1.0), ValueError, "smoothness, a finite number, got convexity=1.0"),
    (lambda: Objective(jnp.sum, smoothness=-1.0), ValueError, "^Objective expected smoothness > 0 and"),
    (lambda: quadratic_objective(jnp.array([1.0, -1.0])), ValueError, "eigenvalues from -1 to 1"),
    (lambda: quadratic_objective(jnp.array([1.0, jnp.inf])), ValueError, "finite numbers in A and b"),
    (lambda: quadratic_objective(jnp.ones(2), jnp.array([1.0, jnp.inf])), ValueError, "finite numbers in A and b"),
    (lambda: least_squares_objective(jnp.array([[jnp.inf]]), jnp.ones((1, 1))), ValueError, "finite numbers in x"),
    (lambda: quadratic_objective(jnp.array([1.0, 0.0]), jnp.ones(2)), ValueError, "b in the range of A"),
    (lambda: quadratic_objective(jnp.array([1.0, 1.0]), jnp.ones(3)), ValueError, r"linear of shape \(2,\)"),
    (lambda: huber_objective(knee=0.0), ValueError, "knee to be a number > 0, got 0.0"),
    (lambda: stable_step_size(1.0, momentum=1.0), ValueError, "with momentum 1 no step size converges"),
    (lambda: stable_step_size(1.0, momentum=-0.5), ValueError, "momentum < 1, got -0.5; pass for instance 0.9"),
    (lambda: convex_bound(1, 1.0, 0.1, smoothness=0.0), ValueError, "smoothness to be a number > 0 or None, got 0.0"),
    (
        lambda: linear_bound(1, 1.0, 0.1, smoothness=1.0, convexity=-1.0),
        ValueError,
        "convexity to be a number >= 0, got -1.0",
    ),
    (lambda: stable_step_size(0.0), ValueError, "expected curvature > 0, got 0.0; pass the largest eigenvalue"),
    (lambda: stable_step_size(jnp.array([1.0, -2.0])), ValueError, "curvature > 0, got .*-2.*; pass the largest"),
    (lambda: tuned_momentum(1.0, 2.0), ValueError, r"; exchange them: tuned_momentum\(2.0, 1.0\)"),
    (lambda: tuned_momentum(-1.0, 2.0), ValueError, "; pass a smoothness of at least the convexity"),
    (lambda: tuned_momentum(1.0, 0.0), ValueError, "without strong convexity there is no linear rate"),
]


@pytest.mark.usefixtures("sentences")
@for_each({str(i): case for i, case in enumerate(ERRORS)})
def test_errors(case):
    call, error, sentence = case
    with pytest.raises(error, match=sentence):
        call()


def test_following_the_errors_advice_works(sentences):
    with pytest.warns(UserWarning, match="the bounds hold .the convex one for step sizes of at most 1 / L = 0.1"):
        descend(lecture(), jnp.ones(2), 0.3, steps=5)
    assert bool(descend(lecture(), jnp.ones(2), 0.1, steps=5).holds)
    lopsided = np.array([[1.0, 1.0], [0.0, 1.0]], np.float32)
    even = quadratic_objective(jnp.asarray((lopsided + lopsided.T) / 2))
    x = np.array([0.5, -2.0], np.float32)
    np.testing.assert_allclose(jax.jit(even)(x), x @ lopsided @ x / 2)
    with pytest.raises(ValueError, match="separates"):
        logistic_objective(jnp.array([[0.0], [1.0]]), jnp.array([0, 1]))
    assert logistic_objective(jnp.array([[0.0], [1.0]]), jnp.array([0, 1]), ridge=0.1).minimum > 0
