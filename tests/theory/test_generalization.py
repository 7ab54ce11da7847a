"""Experiments on generalization: their numbers against formulas, enumerations and values from the lecture."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.stats
from cases import for_each

from jaxblocks import MLP
from jaxblocks.theory.generalization import (
    balancedness,
    batch_noise,
    conservation_drift,
    degree_sweep,
    depth_sweep,
    matrix_completion,
    max_margin,
    max_margin_bias,
    min_norm_bias,
    no_free_lunch,
    polynomial_fit,
    random_labels,
    relu_covariance,
    selection_optimism,
    stationary_variance,
    width_sweep,
)

RNG = np.random.default_rng(0)


# ---- complexity ---------------------------------------------------------------------------


def noisy_sine(n=20):
    rng = np.random.default_rng(1)
    x, test_x = rng.uniform(-1, 1, n), rng.uniform(-0.9, 0.9, 400)
    target = lambda x: np.sin(4 * x)
    return x, target(x) + 0.2 * rng.normal(size=n), test_x, target(test_x) + 0.2 * rng.normal(size=400)


def test_training_error_falls_and_test_error_is_u_shaped():
    """The fits equal those of NumPy, and the fit of degree n - 1 interpolates all points."""
    x, y, test_x, test_y = noisy_sine()
    sweep = degree_sweep(x, y, test_x, test_y, degrees=range(20))
    assert (np.diff(sweep.train) <= 1e-15).all() and sweep.train[19] < 1e-12
    assert sweep.best == 6
    under, best, over = sweep.test[[0, sweep.best, 19]]
    assert best < 0.07 < 0.3 < under < 5 * under < over
    for degree in (1, 4, 8):
        expected = np.polyval(np.polyfit(x, y, degree), test_x)
        np.testing.assert_allclose(polynomial_fit(x, y, degree)(test_x), expected, atol=1e-9)
        assert sweep.test[degree] == pytest.approx(np.mean((expected - test_y) ** 2))
    assert repr(sweep).startswith("Sweep(degree 0 to 19, training error 0.325 to ")


def test_double_descent_over_width():
    """The test error peaks at the interpolation threshold, and for wider nets falls below that of all narrower ones."""
    rng = np.random.default_rng(0)
    x, test_x = rng.normal(size=(30, 4)), rng.normal(size=(300, 4))
    target = lambda x: np.tanh(x[:, 0] - x[:, 1])
    sweep = width_sweep(
        x,
        target(x) + 0.1 * rng.normal(size=30),
        test_x,
        target(test_x),
        widths=[2, 8, 15, 24, 30, 45, 100, 400],
        key=jax.random.key(0),
        samples=9,
    )
    assert sweep.complexity[np.argmax(sweep.test)] == 30
    assert sweep.train[3] > 1e-4 > 1e-12 > sweep.train[5]
    assert sweep.best == 400
    assert sweep.test[4] > 10 * sweep.test[-1]


def test_depth_sweep():
    """Without hidden layers the result is the least-squares affine function."""
    x = np.linspace(-1, 1, 21, dtype=np.float32)[:, None]
    x, y = jax.device_put((x, np.abs(x[:, 0])))
    sweep = depth_sweep(x, y, x, y, depths=(0, 2), key=jax.random.key(0), width=8, steps=400, optimizer=0.1)
    np.testing.assert_array_equal(sweep.complexity, [0, 2])
    assert sweep.train[0] == pytest.approx(np.var(np.abs(np.linspace(-1, 1, 21))), rel=1e-3)
    assert sweep.train[1] < 0.01 and sweep.name == "hidden layers"
    np.testing.assert_allclose(sweep.train, sweep.test)


# ---- implicit bias ------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "d"), [(5, 3), (6, 2), (4, 4)])
def test_margins_exist_for_as_many_labelings_as_cover_counts(n, d):
    """Of the 2^n labelings of n points, 2 sum_(k < d) binom(n - 1, k) have a hyperplane (Cover 1965)."""
    x, found = np.random.default_rng(5).normal(size=(n, d)), 0
    for labels in itertools.product([0, 1], repeat=n):
        try:
            found += max_margin(x, np.array(labels)).margin > 0
        except ValueError:
            continue
    assert found == 2 * sum(math.comb(n - 1, k) for k in range(d))


def test_limit_of_gradient_descent_on_least_squares():
    """From zero the limit is pinv(X) y up to rounding; another start gives another interpolant."""
    x, y = RNG.normal(size=(8, 20)), RNG.normal(size=8)
    zero = min_norm_bias(x, y)
    expected = np.linalg.lstsq(x, y, rcond=None)[0]
    np.testing.assert_allclose(zero.weights, expected, atol=1e-14)
    assert zero.deviation < 1e-14 and zero.error < 1e-25
    start = RNG.normal(size=20)
    other = min_norm_bias(x, y, start)
    assert other.deviation < 1e-13 and other.error < 1e-25
    null = np.linalg.svd(x)[2][8:]  # orthogonal to the rows of x
    np.testing.assert_allclose(null @ other.weights, null @ start, atol=1e-13)
    assert np.linalg.norm(other.weights) > 1.1 * np.linalg.norm(zero.weights)
    assert np.abs(other.weights - zero.weights).max() > 0.5
    assert repr(zero).startswith("MinNormBias(norm ")


def separable(n=30, d=3):
    rng = np.random.default_rng(2)
    x = rng.normal(size=(n, d))
    labels = x @ np.array([1.0, -2.0, 0.5]) > 0
    return x + 0.3 * np.where(labels, 1, -1)[:, None] * np.array([1.0, -2.0, 0.5]), labels


def test_largest_margin_equals_that_of_support_vector_machines():
    from sklearn.svm import SVC

    x, labels = separable()
    best = max_margin(x, labels)
    both, signs = np.concatenate([x, -x]), np.concatenate([labels, ~labels])  # mirrored, so that the offset is 0
    machine = SVC(kernel="linear", C=1e8, tol=1e-10).fit(both, signs)
    weights = machine.coef_[0]
    np.testing.assert_allclose(best.direction, weights / np.linalg.norm(weights), atol=1e-6)
    assert best.margin == pytest.approx(1 / np.linalg.norm(weights), rel=1e-6)
    z = np.where(labels, 1, -1)[:, None] * x
    np.testing.assert_allclose(z[best.support] @ best.direction, best.margin, rtol=1e-10)
    assert best.support.sum() <= 3


def test_every_example_at_the_margin_is_of_the_support():
    """Also those without which the margin would be the same, of which weights may be 0."""
    x = np.array([[2.0, 0.0], [0.0, 2.0], [1.0, 1.0], [-1.5, -0.5], [2.0, 1.0]])
    for scale in (1e-200, 1.0, 1e200):
        np.testing.assert_array_equal(max_margin(scale * x, np.array([1, 1, 1, 0, 1])).support, [1, 1, 1, 1, 0])


def test_logistic_regression_converges_to_the_largest_margin():
    """The norm grows like log(t) / margin, and the angle to the direction of the largest margin falls."""
    x, labels = np.array([[1.0, 0.5], [1.0, -0.5], [5.0, 4.0], [-6.0, 1.0]]), np.array([1, 1, 1, 0])
    seen = max_margin_bias(x, labels, steps=30_000)
    np.testing.assert_allclose(seen.best.direction, [1, 0], atol=1e-12)  # two support vectors, symmetric
    assert seen.best.margin == pytest.approx(1) and seen.best.support.tolist() == [True, True, False, False]
    late = seen.steps > 3000
    assert np.polyfit(np.log(seen.steps[late]), seen.norms[late], 1)[0] == pytest.approx(1, rel=0.05)
    assert (np.diff(seen.angles[late]) < 0).all() and seen.angles[-1] < seen.angles[0] / 3
    assert (seen.margins <= seen.best.margin + 1e-12).all() and seen.margins[-1] > 0.97
    w = np.zeros(2)
    for _ in range(seen.steps[3]):
        z = np.where(labels, 1, -1)[:, None] * x
        w = w + 4 / np.linalg.norm(z, 2) ** 2 * z.T @ (1 / (1 + np.exp(z @ w)))
    assert seen.norms[3] == pytest.approx(np.linalg.norm(w), rel=1e-12)


# ---- deep linear nets ---------------------------------------------------------------------


def test_drift_of_conserved_matrices_is_proportional_to_the_step():
    """Steps smaller by a factor of ten give a drift smaller by a factor of ten."""
    rng = np.random.default_rng(0)
    kernels = [0.5 * rng.normal(size=shape) for shape in ((3, 4), (4, 4), (4, 2))]
    x, y = rng.normal(size=(10, 3)), rng.normal(size=(10, 2))
    drift = conservation_drift(kernels, x, y)
    np.testing.assert_allclose(drift.drifts[:-1] / drift.drifts[1:], 10, rtol=0.03)
    assert drift.order == pytest.approx(1, abs=0.01)
    assert 1e-6 < drift.drifts[-1] < 1e-4
    np.testing.assert_allclose(drift.losses, drift.losses[-1], rtol=0.02)  # equal time
    # One step against the gradient of JAX, and the conserved matrices against their definition with W = kernel'.
    with jax.enable_x64(True):
        loss = lambda k: jnp.sum((jnp.asarray(x) @ k[0] @ k[1] @ k[2] - y) ** 2) / 20
        start = [jnp.asarray(k) for k in kernels]
        step = lambda start: jax.tree.map(lambda k, g: k - 0.3 * g, start, jax.grad(loss)(start))
        after, final = jax.jit(lambda start: (after := step(start), loss(after)))(start)
        expected = max(
            float(np.abs((b.T @ b - a @ a.T) - (d.T @ d - c @ c.T)).max())
            for (a, b), (c, d) in zip(
                itertools.pairwise([np.asarray(k).T for k in after]),
                itertools.pairwise([k.T for k in kernels]),
                strict=True,
            )
        )
    one = conservation_drift(kernels, x, y, step_sizes=[0.3], time=0.3)
    assert one.drifts[0] == pytest.approx(expected, rel=1e-12)
    assert one.losses[0] == pytest.approx(float(final), rel=1e-12)
    assert [m.shape for m in balancedness(kernels)] == [(4, 4), (4, 4)]


def test_depth_is_biased_towards_low_rank():
    """A single factor does not change unobserved entries; with depth the effective rank falls to that of the target."""
    rng = np.random.default_rng(3)
    target = np.outer(rng.normal(size=8), rng.normal(size=8)) + np.outer(rng.normal(size=8), rng.normal(size=8))
    observed = rng.uniform(size=(8, 8)) < 0.75
    found = matrix_completion(target, observed, depths=(1, 2, 3), key=jax.random.key(0))
    assert (np.diff(found.effective_rank) < 0).all()
    assert (found.observed_error < 2e-3).all()
    assert found.unobserved_error[0] > 0.4 > 0.05 > found.unobserved_error[2]
    masked = np.where(observed, target, 0)  # the limit of a single factor with an initial value near zero
    np.testing.assert_allclose(found.matrices[0], masked, atol=0.02 * np.abs(target).max())
    assert found.effective_rank[2] < 2.2
    assert np.count_nonzero(found.target_values > 1e-10) == 2


# ---- labels -------------------------------------------------------------------------------


def test_a_net_fits_true_and_random_labels():
    """Both training errors are 0; on test data only the net with the true labels is better than chance."""
    x = np.asarray(jax.random.normal(jax.random.key(0), (260, 20)))
    y = (x[:, 0] + x[:, 1] > 0).astype(np.int32)
    data = jax.device_put((x[:60], y[:60], x[60:], y[60:]))
    with jax.numpy_dtype_promotion("standard"):
        found = random_labels(MLP(128, 2), *data, key=jax.random.key(1), optimizer=optax.adam(0.01), steps=100)
    np.testing.assert_array_equal(found.train, 1)
    assert found.test[0] > 0.75 and abs(found.test[1] - 0.5) < 0.15
    assert found.losses.shape == (2, 101) and (found.losses[:, -1] < 0.1).all()
    assert (found.losses[1, 20] > found.losses[0, 20]).all()  # but memorization takes longer
    assert repr(found).startswith("RandomLabels(true labels: training 100%")


def test_covariance_of_wide_random_nets():
    """kappa_1(.6) = .6775476 agrees with the empirical covariance of a wide random net; derivatives are finite."""
    with jax.enable_x64(True):
        x = jnp.array([[1.0, 0.0], [0.6, 0.8], [-2.0, 0.0], [0.0, 0.0]])
        of_sum = jax.grad(lambda x: jnp.sum(relu_covariance(x)))
        kernel, slope = map(np.asarray, jax.jit(lambda x: (relu_covariance(x), of_sum(x)))(x))
        assert kernel[0, 1] == pytest.approx(0.6775476, abs=5e-8)
        np.testing.assert_allclose(np.diag(kernel), [1, 1, 4, 0], atol=1e-12)
        assert kernel[0, 2] == pytest.approx(0, abs=1e-12)
        w = np.random.default_rng(0).normal(size=(2, 400_000))
        features = np.maximum(np.asarray(x) @ w, 0)
        np.testing.assert_allclose(2 * features @ features.T / w.shape[1], kernel, atol=0.02)
        assert np.isfinite(slope).all()


# ---- noise --------------------------------------------------------------------------------


def test_batch_noise_by_enumeration():
    """tr Cov = (tr Sigma / B) (N - B) / (N - 1) over all batches of six examples; random batches agree."""
    rng = np.random.default_rng(0)
    x, y, w = rng.normal(size=(6, 3)), rng.normal(size=6), rng.normal(size=3)
    loss = lambda w, x, y: (x @ w - y) ** 2
    with jax.enable_x64(True):
        noise = batch_noise(
            loss,
            jnp.asarray(w),
            jnp.asarray(x),
            jnp.asarray(y),
            key=jax.random.key(0),
            batch_sizes=[1, 2, 4, 6],
            samples=4000,
        )
    gradients = 2 * (x @ w - y)[:, None] * x
    mean = gradients.mean(0)
    for size, predicted in zip(noise.batch_sizes, noise.predicted, strict=True):
        batches = [gradients[list(rows)].mean(0) for rows in itertools.combinations(range(6), size)]
        assert predicted == pytest.approx(np.mean([np.sum((g - mean) ** 2) for g in batches]), rel=1e-12, abs=1e-14)
    np.testing.assert_allclose(noise.measured, noise.predicted, rtol=0.1, atol=1e-14)
    assert noise.squared_norm == pytest.approx(mean @ mean)


def test_stationary_variance_by_simulation():
    """The variance of 4000 runs after 400 noisy steps, within 4 standard errors."""
    rng, eta, curvature, sigma = np.random.default_rng(0), 0.3, 2.0, 0.7
    x = np.zeros(4000)
    for _ in range(400):
        x = x - eta * (curvature * x + sigma * rng.normal(size=x.shape))
    expected = stationary_variance(eta, curvature, sigma**2)
    assert np.var(x) == pytest.approx(expected, rel=4 * math.sqrt(2 / 4000))
    assert stationary_variance(eta / 100, curvature, sigma**2) < expected / 100


# ---- test sets and learners ---------------------------------------------------------------


def test_optimistic_bias_of_selection_on_the_test_set():
    """The best of 1, 10, 100 and 1000 random classifiers on 100 points; the bound is Hoeffding's, sqrt(log K / 2n)."""
    found = selection_optimism(key=jax.random.key(3), trials=1000)
    np.testing.assert_allclose(found.expected, [0.5, 0.580, 0.625, 0.662], atol=0.004)
    below = scipy.stats.binom(100, 0.5).cdf(np.arange(100))
    np.testing.assert_allclose(found.expected, [np.sum(1 - below**k) / 100 for k in found.classifiers], rtol=1e-10)
    np.testing.assert_allclose(found.expected, [0.5, 0.57678, 0.624762, 0.660718], atol=5e-7)
    np.testing.assert_allclose(found.simulated, found.expected, atol=5 * 0.05 / math.sqrt(1000))
    np.testing.assert_allclose(found.fresh, 0.5, atol=5 * 0.05 / math.sqrt(1000))
    assert (found.expected <= found.bound + 1e-12).all()
    np.testing.assert_allclose(found.bound, [0.5, 0.6072983, 0.6517427, 0.6858461], atol=5e-7)
    for chance in (0.0, 0.9, 1.0):  # a test set as large as that of MNIST
        found = selection_optimism(key=jax.random.key(3), classifiers=[100], examples=10_000, chance=chance, trials=2)
        below = scipy.stats.binom(10_000, chance).cdf(np.arange(10_000))
        np.testing.assert_allclose(found.expected, np.sum(1 - below**100) / 10_000, rtol=1e-9)


def test_expected_best_by_enumeration():
    """Two classifiers on three examples, each correct with probability .3: all 64 outcomes."""
    expected = 0.0
    for outcome in itertools.product([0, 1], repeat=6):
        right = sum(outcome)
        expected += 0.3**right * 0.7 ** (6 - right) * max(sum(outcome[:3]), sum(outcome[3:])) / 3
    found = selection_optimism(classifiers=[2], examples=3, key=jax.random.key(0), chance=0.3, trials=5)
    assert found.expected[0] == pytest.approx(expected, rel=1e-12)


def test_no_learner_is_better_than_another_on_average():
    """The mean accuracy over all labelings of the unseen points is exactly 1/2."""
    for predictions in ([0, 0, 0, 0], [1, 0, 1, 1], RNG.integers(0, 2, 10)):
        found = no_free_lunch(np.array(predictions))
        assert found.mean == 0.5 and len(found.accuracies) == 2 ** len(predictions)
        assert (found.accuracies.min(), found.accuracies.max()) == (0, 1)
        assert len(np.unique(found.accuracies)) == len(predictions) + 1


# ---- plots and errors ---------------------------------------------------------------


def test_plots_and_prints_of_all_records():
    matplotlib = pytest.importorskip("matplotlib", reason="plots require matplotlib")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    x = np.array([[2.0, 1.0], [-1.0, 1.0]])
    records = [
        degree_sweep(*noisy_sine(), degrees=range(5)),
        max_margin_bias(x, np.array([1, 0]), steps=50),
        matrix_completion(x, np.eye(2) > 0, depths=(1, 2), key=jax.random.key(0), steps=20),
    ]
    for record in records:
        ax = record.plot()
        assert record.plot(ax) is ax and ax.get_xlabel() and ax.get_ylabel()
        assert repr(record).startswith(type(record).__name__ + "(")
    plt.close("all")
    printed = [
        min_norm_bias(x[:1], np.ones(1)),
        conservation_drift([np.eye(2), x], x, x, step_sizes=[0.1, 0.01]),
        selection_optimism(key=jax.random.key(0), trials=5),
        no_free_lunch(np.array([0, 1])),
    ]
    for record in printed:
        assert repr(record).startswith(type(record).__name__ + "(")


KEY = jax.random.key(0)
ONE = np.ones((2, 2))


ERRORS = [
    (lambda: polynomial_fit(np.ones(3), np.ones(4), 1), ValueError, r"of one shape \(n,\), got \(3,\) and \(4,\)"),
    (lambda: polynomial_fit(np.ones(3), np.ones(3), -1), ValueError, "degree to be an integer >= 0"),
    (lambda: degree_sweep(*[np.ones(3)] * 4, degrees=[]), ValueError, "at least one number in degrees"),
    (lambda: degree_sweep(*[np.ones(3)] * 4, degrees=3), TypeError, "degrees to be integers >= 0, got 3; "),
    (lambda: polynomial_fit(np.full(2, 1j), np.ones(2), 1), TypeError, "x to be an array of real numbers"),
    (lambda: conservation_drift([ONE], ONE[:0], ONE[:0]), ValueError, "got .* pass a row of each"),
    (
        lambda: width_sweep(ONE, np.ones(2), ONE, np.ones(2), widths=[0], key=KEY),
        ValueError,
        "widths to be integers >= 1, got 0",
    ),
    (lambda: width_sweep(ONE, np.ones(2), ONE, np.ones(2), widths=[1], key=0), TypeError, "pass jax.random.key"),
    (lambda: min_norm_bias(ONE, np.ones(3)), ValueError, r"expected x \(n, features\) and y \(n,\)"),
    (
        lambda: min_norm_bias(ONE, np.ones(2), np.ones(3)),
        ValueError,
        r"start of shape \(2,\), one weight for each feature",
    ),
    (lambda: min_norm_bias(ONE, np.ones(2), np.full(2, 1j)), TypeError, "start to be an array of real numbers"),
    (lambda: min_norm_bias(ONE * np.nan, np.ones(2)), ValueError, "finite inputs, got nan in example 0"),
    (lambda: min_norm_bias(ONE, np.array([1, np.inf])), ValueError, "finite targets, got inf in example 1"),
    (lambda: min_norm_bias(ONE, np.ones(2), np.full(2, np.nan)), ValueError, "expected a finite start"),
    (lambda: polynomial_fit(np.arange(2.0), np.full(2, np.nan), 1), ValueError, "expected finite targets"),
    (lambda: min_norm_bias(0 * ONE, np.ones(2)), ValueError, "x other than 0"),
    (
        lambda: max_margin(ONE, np.array([0, 1])),
        ValueError,
        "hyperplane through the origin separates, got other labels; take more features",
    ),
    (lambda: max_margin(0 * ONE, np.array([0, 1])), ValueError, "separates, got other labels"),
    (lambda: max_margin(ONE, np.array([-1, 1])), ValueError, "labels 0 and 1, .* from -1 to 1; .* labels > 0"),
    (
        lambda: balancedness([np.ones((2, 3)), ONE]),
        ValueError,
        r"layers in series, got shapes \[\(2, 3\), \(2, 2\)\]",
    ),
    (lambda: conservation_drift([ONE], ONE, np.ones((2, 3))), ValueError, r"x \(n, 2\) and y \(n, 2\)"),
    (lambda: conservation_drift([ONE], ONE, ONE, time=0.0), ValueError, "a time > 0"),
    (lambda: conservation_drift([ONE], ONE, ONE, step_sizes=0.1), ValueError, "step sizes > 0 .*, got 0.1 and 1.0"),
    (lambda: matrix_completion(np.ones((2, 3)), ONE, key=KEY), ValueError, "expected a square matrix"),
    (
        lambda: matrix_completion(ONE, ONE, key=KEY, scale=0.0),
        ValueError,
        "at 0 a product of factors has gradient 0",
    ),
    (
        lambda: random_labels(MLP(2), ONE, np.ones(2), ONE, np.ones(2), key=KEY, optimizer=0.1, steps=1),
        ValueError,
        r"expected y to be integers \(2,\), a label for each row, got float32 \(2,\)",
    ),
    (
        lambda: batch_noise(lambda w, x: w * x, 1.0, jnp.ones(3), key=KEY, batch_sizes=[4]),
        ValueError,
        r"from 1 to 3, the number of examples, got \[4\]",
    ),
    (lambda: stationary_variance(1.0, 2.0, 1.0), ValueError, "step_size < 2 / curvature = 1, got 1.0; pass .* 0.5;"),
    (lambda: stationary_variance(0.1, -2.0, 1.0), ValueError, "expected curvature > 0, got -2.0; without curvature"),
    (lambda: stationary_variance(0.1, 2.0, -1.0), ValueError, "expected noise >= 0, a variance, got -1.0; pass sigma"),
    (lambda: selection_optimism(key=KEY, chance=1.5), ValueError, "0 <= chance <= 1, got 1.5"),
    (lambda: no_free_lunch(np.array([0, 2])), ValueError, r"predictions 0 or 1 on 1 to 20 .* shape \(2,\)"),
    (lambda: relu_covariance(jnp.ones((2, 3)), jnp.ones((2, 4))), ValueError, "with the same size of features"),
]


@pytest.mark.usefixtures("sentences")
@for_each({str(i): case for i, case in enumerate(ERRORS)})
def test_errors(case):
    call, error, sentence = case
    with pytest.raises(error, match=sentence):
        call()


def test_following_the_errors_advice_works(sentences):
    """An offset as a column of ones, and labels > 0 as classes."""
    x, labels = np.array([[1.0], [3.0]]), np.array([-1, 1])
    with pytest.raises(ValueError, match="a column of ones for an offset"):
        max_margin(x, labels > 0)
    found = max_margin(np.append(x, np.ones((2, 1)), 1), labels > 0)
    assert found.margin > 0 and found.support.all()
