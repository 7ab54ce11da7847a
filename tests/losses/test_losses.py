"""Losses: values of the lectures, values and gradients of other libraries, extreme inputs, rejected inputs."""

import functools
import inspect
import itertools
import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import normal
from cases import for_each
from compiled import compiled
from jax.experimental import checkify
from scipy import special, stats
from scipy.spatial import distance

import jaxblocks
from jaxblocks import metrics
from jaxblocks.losses import (
    cosine_embedding_loss,
    cross_entropy,
    distillation_loss,
    entropy,
    gaussian_nll,
    hinge_loss,
    huber_loss,
    info_nce_loss,
    jensen_gap,
    jensen_shannon,
    kl_divergence,
    l1_penalty,
    l2_penalty,
    lp_distance,
    mae,
    mse,
    nll,
    pairwise_distances,
    poisson_nll,
    sigmoid_cross_entropy,
    soft_threshold,
    softmax_cross_entropy,
    total_variation,
    weighted_mean,
    zero_one_loss,
)
from jaxblocks.probabilities import log_softmax, one_hot, smooth_labels, softmax

# One program for each call, where its values are not checked.
log_softmax = compiled(log_softmax)
one_hot = compiled(one_hot)
smooth_labels = compiled(smooth_labels)
softmax = compiled(softmax)

HALF = (jnp.bfloat16, jnp.float16)
H = np.array([0.1, -0.8, 1.4, 1.1])  # scores of the example in the lectures


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="PyTorch is a reference for values and gradients")


def dirichlet(seed, *shape):
    return np.random.default_rng(seed).dirichlet(np.ones(shape[-1]), size=shape[:-1])


def run(function, *arguments, **options):
    """The value under jit: one compilation instead of one per operation, and no checks of values."""
    return compiled(function)(*arguments, **options)


def grad(function, argnums=0):
    return compiled(jax.grad(function, argnums))


def value_and_gradient(loss):
    """The losses, and the gradient of their sum by the first argument."""

    def total(*x):
        value = loss(*x)
        return value.sum(), value

    def both(*x):
        (_, value), gradient = jax.value_and_grad(total, has_aux=True)(*x)
        return value, gradient

    return compiled(both)


def pair(*numbers):
    """Distributions on two classes from their first probabilities."""
    return np.array([[x, 1 - x] for x in numbers], np.float32)


# Distances between distributions -------------------------------------------------------------------------------------


def test_distances_of_the_pair_in_the_lectures():
    """P = (.5, .5) and Q = (.9, .1), in both orders."""
    p, q = pair(0.5, 0.9), pair(0.9, 0.5)

    @compiled
    def distances(p, q):
        of_orders = [lp_distance(p, q, order) for order in (1, 2, math.inf)]
        return *of_orders, total_variation(p, q), kl_divergence(p, q), cross_entropy(p, q), entropy(p)

    expected = (0.8, 0.8), (0.5656854,) * 2, (0.4, 0.4), (0.4, 0.4), (0.5108256, 0.3680642)
    expected += (1.2039728, 0.6931472), (0.6931472, 0.3250830)
    for found, wanted in zip(distances(p, q), expected, strict=True):
        np.testing.assert_allclose(found[0], wanted[0], rtol=3e-7)
        np.testing.assert_allclose(found[1], wanted[1], rtol=4e-7)


@pytest.mark.parametrize("n", [1, 6])
def test_total_variation_is_the_largest_difference_over_all_events(n):
    """Brute force over all 2^n sets."""
    p, q = dirichlet(n, 2, 5, n)
    with jax.enable_x64(True):
        value = run(total_variation, p, q)
    events = np.array(list(itertools.product([0, 1], repeat=n)))
    np.testing.assert_allclose(value, np.abs((p - q) @ events.T).max(-1), rtol=1e-13, atol=1e-16)


def test_lp_distance_is_a_metric():
    orders = 1, 1.5, 2, 3, 40, math.inf
    p, q, r = dirichlet(20, 3, 200, 5)
    with jax.enable_x64(True):
        every = compiled(lambda p, q: [lp_distance(p, q, order) for order in orders])
        found = every(np.stack([p, q, p, r, p]), np.stack([q, p, r, q, p]))
    for order, (pq, qp, pr, rq, pp) in zip(orders, found, strict=True):
        np.testing.assert_allclose(pq, np.linalg.norm(p - q, order, axis=-1), rtol=1e-13)
        np.testing.assert_array_equal(pq, qp)
        np.testing.assert_array_equal(pp, 0)
        assert (pq <= pr + rq + 1e-15).all()


def test_lp_distance_below_order_one_is_rejected(sentences):
    for order in (0.5, 0, -1, math.nan):
        with pytest.raises(ValueError, match="expected order to be a number >= 1, got|order to be a number, got nan"):
            lp_distance(pair(0.5), pair(0.9), order)


def test_lp_distance_of_high_order_does_not_underflow():
    """0.001^40 underflows in float32, but the distance does not."""
    p, q = np.float32([0.5, 0.3, 0.2]), np.float32([0.501, 0.299, 0.2])
    value, gradient = compiled(jax.value_and_grad(partial(lp_distance, order=40)))(p, q)
    np.testing.assert_allclose(value, 0.001 * 2 ** (1 / 40), rtol=1e-4)
    np.testing.assert_allclose(gradient, np.array([-1, 1, 0]) * 2 ** (1 / 40 - 1), rtol=2e-3, atol=1e-12)
    assert np.float32(0.001) ** np.float32(40) == 0


def test_gradient_of_the_distance_is_zero_at_equality():
    losses = [partial(lp_distance, order=order) for order in (1, 1.5, 2, 3.0, math.inf)] + [total_variation]
    p = np.float32([0.5, 0.25, 0.25])
    gradients = compiled(lambda p: [jax.grad(loss)(p, p) for loss in losses])(p)
    *others, largest, of_total_variation = gradients
    np.testing.assert_array_equal([*others, of_total_variation], 0)
    assert np.isfinite(largest).all()


# Entropy, cross-entropy, Kullback-Leibler ----------------------------------------------------------------------------


def test_information_measures_against_scipy():
    p, q = dirichlet(21, 2, 50, 7)
    p[:, 2] = 0
    q[::2, 3] = p[::2, 3] = 0
    p, q = p / p.sum(-1, keepdims=True), q / q.sum(-1, keepdims=True)
    bases = math.e, 10
    measures = entropy, kl_divergence, jensen_shannon
    with jax.enable_x64(True):
        every = compiled(lambda p, q: [[f(*(p, q)[: 1 + (f is not entropy)], base=b) for f in measures] for b in bases])
        found, cross = every(p, q), run(cross_entropy, p, q)
    for base, values in zip(bases, found, strict=True):
        expected = stats.entropy(p, base=base, axis=-1), stats.entropy(p, q, base=base, axis=-1)
        expected = *expected, distance.jensenshannon(p, q, base, axis=-1) ** 2
        np.testing.assert_allclose(values, expected, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(cross, special.entr(p).sum(-1) + special.rel_entr(p, q).sum(-1), rtol=1e-12, atol=1e-15)


def test_conventions_for_zero_probabilities():
    """0 log 0 = 0, 0 log(0/q) = 0 log(0/0) = 0, p log(p/0) = +infinity."""
    one, half, other = np.float32([[1, 0, 0], [0.5, 0.5, 0], [0, 1, 0]])
    p = np.stack([one, one, half, one, half])
    q = np.stack([one, half, one, other, half])
    every = compiled(lambda p, q: (kl_divergence(p, q), cross_entropy(p, q), jensen_shannon(p, q), entropy(p)))
    kl, cross, midpoint, own = every(p, q)
    np.testing.assert_allclose(kl, [0, math.log(2), np.inf, np.inf, 0], atol=1e-7)
    np.testing.assert_allclose(cross, [0, math.log(2), np.inf, np.inf, math.log(2)], atol=1e-7)
    np.testing.assert_allclose(own, np.log([1, 1, 2, 1, 2]), atol=1e-7)
    np.testing.assert_allclose(midpoint, distance.jensenshannon(p, q, axis=-1) ** 2, atol=1e-7)
    assert not np.signbit(own[0])  # not -0.0


def test_gradients_at_zero_probabilities():
    """Gradients are finite for q > 0; the infinite slope of x log x at 0 is replaced by 0."""
    p, zero, q = np.float32([[0, 0.25, 0.75], [0, 0.5, 0.5], [0.5, 0.25, 0.25]])

    @compiled
    def derived(p, q, zero, z):
        at_zero = [jax.grad(loss, (0, 1))(zero, zero) for loss in (kl_divergence, cross_entropy, jensen_shannon)]
        of_scores = entropy, lambda p: kl_divergence(p, q), lambda p: jensen_shannon(p, q)
        saturated = jax.jacrev(lambda z: [f(softmax(z)) for f in of_scores])(z)
        return at_zero, saturated, jax.grad(entropy)(p), jax.grad(cross_entropy, 1)(q, zero)

    z = np.float32([1e4, 0, -1e4])  # its softmax rounds to (1, 0, 0)
    at_zero, saturated, of_entropy, infinite = derived(p, q, zero, z)
    for gradient in itertools.chain(*at_zero):
        assert np.isfinite(gradient).all()
        assert gradient[0] == 0
    np.testing.assert_array_equal(saturated, 0)
    np.testing.assert_allclose(of_entropy, [0, -1 - math.log(0.25), -1 - math.log(0.75)], rtol=1e-6)
    assert infinite[0] == -np.inf  # the slope is infinite


def test_second_derivatives_of_distances_where_entries_are_equal():
    """Of the Euclidean distance (1 - n n^T) / d; of others infinite or 0, for which 0 is used."""
    p, q = np.float32([0.5, 0.25, 0.25]), np.float32([0.5, 0.5, 0])
    orders = 1, 1.5, 2

    @compiled
    def hessians(p, q):
        return [jax.hessian(lambda p, r=order: lp_distance(p, q, r))(p) for order in orders]

    found = dict(zip(orders, hessians(p, q), strict=True))
    e = p - q
    d = np.linalg.norm(e)
    np.testing.assert_allclose(found[2], (np.eye(3) - np.outer(e, e) / d**2) / d, rtol=1e-5, atol=1e-6)
    for order in orders:
        assert np.isfinite(found[order]).all()
    for order in (1, 1.5):
        np.testing.assert_array_equal(found[order][0], 0)
    assert all(np.isfinite(h).all() for h in hessians(p, p))


def test_gradient_where_the_label_has_a_score_of_minus_infinity():
    """The loss is infinite; the gradient is softmax - target, as elsewhere."""
    z = jnp.array([-jnp.inf, 0.0, 1.0])
    value, gradient = compiled(jax.value_and_grad(lambda z: softmax_cross_entropy(z, jnp.array(0))))(z)
    assert value == np.inf
    np.testing.assert_allclose(gradient, [-1, 0.26894143, 0.7310586], rtol=1e-6)


def test_jensen_gap():
    """sum_i p_i phi(x_i) - phi(sum_i p_i x_i) >= 0 for convex phi, <= 0 for concave phi."""
    weights, points = dirichlet(32, 20, 6), normal(33, 20, 6, 3)
    p, q = dirichlet(34, 2, 5)

    @compiled
    def gaps_of_functions(points, weights):
        gaps = lambda phi, points: jax.vmap(partial(jensen_gap, phi))(points, weights)
        of_vectors = [gaps(phi, points) for phi in (lambda x: x @ x, jnp.max, jnp.sum)]
        of_numbers = gaps(jnp.exp, points[..., 0]), gaps(jnp.log, jnp.exp(points[..., 0]))
        return *of_vectors, *of_numbers, jensen_gap(lambda x: x * jnp.log(x), p / q, q), kl_divergence(p, q)

    with jax.enable_x64(True):
        square, largest, total, exp, log, gap, divergence = gaps_of_functions(points, weights)
    assert (square > 0).all()
    assert (largest > -1e-15).all()
    assert (exp > 0).all()
    assert (log < 0).all()
    np.testing.assert_allclose(total, 0, atol=1e-14)
    # the gap of the square is the variance
    mean = (weights[..., None] * points).sum(1, keepdims=True)
    variance = (weights[..., None] * (points - mean) ** 2).sum((1, 2))
    np.testing.assert_allclose(square, variance, rtol=1e-12)
    np.testing.assert_allclose(gap, divergence, rtol=1e-12)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_jensen_gap_of_half_precision(dtype):
    """It is computed in float32: the gap of points far from 0 is a small difference."""
    points, weights = jnp.linspace(20, 23, 1024).astype(dtype), jnp.full(1024, 2.0**-10, dtype)
    x, p = np.asarray(points, np.float64), np.asarray(weights, np.float64)
    gap = jensen_gap(jnp.square, points, weights)
    assert gap.dtype == dtype
    exact = np.sum(p * x**2) - np.sum(p * x) ** 2
    np.testing.assert_allclose(np.float64(gap), exact, rtol=float(jnp.finfo(dtype).eps))


def test_jensen_gap_rejects_wrong_arguments(sentences):
    with pytest.raises(ValueError, match="points .* and weights .* with the same size of n"):
        jensen_gap(jnp.exp, jnp.zeros(3), jnp.array([0.5, 0.5]))
    with pytest.raises(ValueError, match="probability distributions in weights"):
        jensen_gap(jnp.exp, jnp.zeros(2), jnp.array([0.5, 0.6]))
    with pytest.raises(ValueError, match=r"a function from one point to one number, got float32 \(3,\); sum"):
        jensen_gap(jnp.exp, jnp.zeros((2, 3)), jnp.array([0.5, 0.5]))


# Losses of scores ----------------------------------------------------------------------------------------------------


def test_labels_and_distributions_agree():
    """A one-hot target is a label; -log softmax(z)_y = CE(onehot(y), softmax(z)) = nll(log softmax(z), y)."""
    z = normal(35, 3, 4, 6) * 3
    y = np.random.default_rng(36).integers(0, 6, size=(3, 4))
    with jax.enable_x64(True):

        @compiled
        def values_of(logits, labels):
            rows = one_hot(labels, 6, dtype=jnp.float64)
            by_scores = [softmax_cross_entropy(logits, targets) for targets in (labels, rows)]
            return *by_scores, cross_entropy(rows, softmax(logits)), nll(log_softmax(logits), labels)

        values = values_of(z, y)
    expected = -np.take_along_axis(special.log_softmax(z, axis=-1), y[..., None], -1)[..., 0]
    for value in values:
        np.testing.assert_allclose(value, expected, rtol=1e-12)


def test_labels_of_any_integer_dtype():
    logits, labels = normal(37, 2, 300, dtype=np.float32), np.array([7, 120])
    expected = -special.log_softmax(logits.astype(np.float64), axis=-1)[[0, 1], labels]
    every = compiled(lambda logits, *labels: [softmax_cross_entropy(logits, y) for y in labels])
    for found in every(logits, *(labels.astype(dtype) for dtype in (np.int8, np.uint8, np.int16, np.uint32))):
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_extreme_scores():
    """Losses are exact at +-1e4, where exp overflows, and as precise far from 0 as near 0."""
    z = np.float32([[1e4, -1e4, 0], [1e4, -1e4, 0], [-1e4, -1e4, -1e4], [1e4, 1e4, 1e4], [1e4, 10001, 10002]])
    labels = np.array([0, 1, 2, 0, 2])
    third, near = np.array([1, 1, 1]) / 3, special.softmax([0, 1, 2])
    expected = [[0, 0, 0], [1, -1, 0], third - [0, 0, 1], third - [1, 0, 0], near - [0, 0, 1]]
    for targets in (labels, np.eye(3, dtype=np.float32)[labels]):
        value, gradient = value_and_gradient(softmax_cross_entropy)(z, targets)
        np.testing.assert_allclose(value, [0, 2e4, math.log(3), math.log(3), 0.4076060], rtol=1e-6)
        np.testing.assert_allclose(gradient, expected, atol=1e-6)


def test_excluded_classes():
    """A score of -inf excludes its class; if that class is the label, the loss is infinite."""
    z, expected = np.float32([0.5, -np.inf, 1]), -special.log_softmax([0.5, 1.0])

    @compiled
    def losses(z, t, other):
        of_targets = jax.grad(softmax_cross_entropy, 1)(z, t)
        return [softmax_cross_entropy(z, y) for y in (jnp.array(2), t, jnp.array(1), other)], of_targets

    found, of_targets = losses(z, np.float32([0.25, 0, 0.75]), np.float32([0, 0.5, 0.5]))
    np.testing.assert_allclose(found, [expected[1], expected @ [0.25, 0.75], np.inf, np.inf], rtol=1e-6)
    assert np.isfinite(of_targets).all()


def test_zero_one():
    labels, predictions = np.array([0, 1, 2, 2], np.uint8), np.array([0, 2, 2, 1])
    result = zero_one_loss(predictions, labels)
    np.testing.assert_array_equal(result, [0, 1, 0, 1])
    assert result.dtype == jnp.float32
    assert run(zero_one_loss, np.array(256), np.array(0, np.uint8)) == 1  # no comparison in the narrower dtype
    np.testing.assert_array_equal(run(zero_one_loss, np.array([True, False]), np.array([True, True])), [0, 1])
    z = normal(42, 5, 3).astype(np.float32)
    gradient = grad(lambda z: zero_one_loss(z.argmax(-1), jnp.zeros(5, jnp.int32)).sum())(z)
    np.testing.assert_array_equal(gradient, 0)


def test_probabilities_are_not_scores():
    h, y = H.astype(np.float32), np.array(2)
    with pytest.raises(ValueError, match=r"nll expected log-probabilities, .* got sums from 8.61.*log_softmax"):
        nll(h, y)
    np.testing.assert_allclose(nll(log_softmax(h), y), 0.753373, atol=1e-6)


def test_distillation():
    """The gradient is (softmax(z_s/T) - softmax(z_t/T)) / T: no factor T^2."""
    soft = {
        1: [0.1283014, 0.0521635, 0.4707758, 0.3487593],
        2: [0.1922378, 0.1225762, 0.3682394, 0.3169465],
        10: [0.2405043, 0.2198043, 0.2738931, 0.2657983],
    }
    student = np.array([0.3, 0.2, -0.5, 1.0])
    with jax.enable_x64(True):
        derived = jax.jit(lambda z, t: jax.value_and_grad(distillation_loss)(z, jnp.asarray(H), temperature=t))
        for temperature, teacher in soft.items():
            log_q = special.log_softmax(student / temperature)
            loss, gradient = derived(student, np.float64(temperature))
            np.testing.assert_allclose(loss, -(teacher * log_q).sum(), atol=1e-6)
            np.testing.assert_allclose(gradient, (np.exp(log_q) - teacher) / temperature, atol=1e-7)
    z = H.astype(np.float32)
    cooled = run(distillation_loss, z, z, temperature=2)  # a Python number
    np.testing.assert_allclose(cooled, stats.entropy(soft[2]), atol=1e-6)


# Binary --------------------------------------------------------------------------------------------------------------


def test_hinge_loss():
    z, y = np.float32([2, 1, 0.5, -3, 0.5]), np.float32([1, 1, 1, 1, -1])
    value, gradient = value_and_gradient(hinge_loss)(z, y)
    np.testing.assert_array_equal(value, [0, 0, 0.5, 4, 1.5])
    np.testing.assert_array_equal(gradient, [0, 0, -1, -1, 1])


# Regression ----------------------------------------------------------------------------------------------------------


def test_squared_error_is_a_mean_and_not_a_sum():
    """y = [0,0,1]: the lecture's 1.28 and .96 are sums, the means are .426667 and .32. The likelihoods are equal."""
    y = np.tile(np.float32([0, 0, 1]), (2, 1))
    prediction = np.float32([[0.8, 0, 0.2], [0.4, 0.4, 0.2]])
    np.testing.assert_allclose(run(mse, prediction, y), [0.426667, 0.320000], atol=1e-6)
    np.testing.assert_allclose(3 * run(mse, prediction, y), [1.28, 0.96], rtol=1e-6)
    np.testing.assert_allclose(run(cross_entropy, y, prediction), [1.6094379, 1.6094379], rtol=1e-7)
    assert run(mse, y, y).shape == (2,)
    assert run(mse, y[0], y[0]).shape == ()


def test_huber():
    prediction = np.float32([[0, 0.5], [1, -3], [1e20, 0]])
    value, slope = value_and_gradient(partial(huber_loss, delta=2.0))(prediction, np.zeros((3, 2), np.float32))
    np.testing.assert_allclose(value, [0.0625, (0.5 + 2 * (3 - 1)) / 2, 1e20], rtol=1e-6)  # no overflow
    np.testing.assert_array_equal(slope, np.array([[0, 0.5], [1, -2], [2, 0]]) / 2)
    slope = jax.grad(lambda e: huber_loss(e[None], jnp.zeros(1)))
    slopes, curvatures = compiled(jax.vmap(jax.value_and_grad(slope)))(np.float32([0, 1.5, 1]))
    assert curvatures[0] == 1
    assert curvatures[1] == 0
    assert slopes[2] == 1  # at the edge


def test_gradient_of_mae_is_zero_at_a_perfect_fit():
    x = np.float32([1, 2])
    np.testing.assert_array_equal(grad(mae)(x, x), 0)
    np.testing.assert_array_equal(grad(mae)(x, x + 1), [-0.5, -0.5])


# Against PyTorch -----------------------------------------------------------------------------------------------------


def test_values_and_gradients_against_torch(torch):
    F, none = torch.nn.functional, {"reduction": "none"}
    z, w = normal(49, 5, 7), normal(48, 5, 7)
    y, holds = np.array([0, 6, 3, 3, 1]), w > 0
    signs, tw, ty, p = torch.tensor([1, -1, -1, 1, -1]), torch.tensor(w), torch.tensor(y), dirichlet(49, 5, 7)
    pairs = {
        "labels": (lambda z: softmax_cross_entropy(z, jnp.asarray(y)), lambda z: F.cross_entropy(z, ty, **none)),
        "nll": (
            lambda z: nll(log_softmax(z), jnp.asarray(y)),
            lambda z: F.nll_loss(torch.log_softmax(z, -1), ty, **none),
        ),
        "kl": (
            lambda z: kl_divergence(jnp.asarray(p), softmax(z)),
            lambda z: F.kl_div(torch.log_softmax(z, -1), torch.tensor(p), **none).sum(-1),
        ),
        "huber": (
            lambda z: huber_loss(z, jnp.asarray(w), delta=0.7),
            lambda z: F.huber_loss(z, tw, delta=0.7, **none).mean(-1),
        ),
        "distillation": (
            lambda z: distillation_loss(z, jnp.asarray(w), temperature=3.0),
            lambda z: F.cross_entropy(z / 3, torch.softmax(tw / 3, -1), **none),
        ),
        "soft": (
            lambda z: sigmoid_cross_entropy(z, jnp.asarray(holds, z.dtype)).mean(-1),
            lambda z: F.multilabel_soft_margin_loss(z, torch.tensor(holds).double(), **none),
        ),
        "cosine": (
            lambda z: cosine_embedding_loss(z, jnp.asarray(w), jnp.asarray(signs.numpy() > 0), margin=0.1),
            lambda z: F.cosine_embedding_loss(z, tw, signs, margin=0.1, **none),
        ),
        **{
            f"order {order}": (
                lambda z, order=order: pairwise_distances(z, jnp.asarray(w[:3]), order=order),
                lambda z, order=order: torch.cdist(z, tw[:3], order, compute_mode="donot_use_mm_for_euclid_dist"),
            )
            for order in (1.0, 1.5, 2.0, 3.0, math.inf)
        },
        "pdist": (lambda z: pairwise_distances(z)[jnp.triu_indices(5, 1)], F.pdist),
    }
    with jax.enable_x64(True):
        both = lambda ours: jax.value_and_grad(lambda z: (ours(z) ** 2).sum())
        found = compiled(lambda z: [both(ours)(z) for ours, _ in pairs.values()])(z)
    for (value, gradient), (name, (_, theirs)) in zip(found, pairs.items(), strict=True):
        leaf = torch.tensor(z, requires_grad=True)
        expected = (theirs(leaf) ** 2).sum()
        expected.backward()
        np.testing.assert_allclose(value, expected.detach().numpy(), rtol=1e-11, err_msg=name)
        np.testing.assert_allclose(gradient, leaf.grad.numpy(), rtol=1e-8, atol=1e-10, err_msg=name)


def test_distances_of_sets_without_points_have_gradients_of_zeros():
    shapes = [((0, 4),), ((3, 4), (0, 4)), ((0, 4), (3, 4)), ((2, 3, 4), (2, 0, 4))]
    every = [tuple(np.ones(shape, np.float32) for shape in each) for each in shapes]

    def derived(*points):
        total = lambda *points: pairwise_distances(*points).sum()
        return pairwise_distances(*points), jax.grad(total, tuple(range(len(points))))(*points)

    for points, (distances, gradients) in zip(
        every, run(lambda *each: [derived(*p) for p in each], *every), strict=True
    ):
        assert distances.shape == (*points[0].shape[:-1], points[-1].shape[-2])
        for x, gradient in zip(points, gradients, strict=True):
            np.testing.assert_array_equal(gradient, np.zeros_like(x))


def test_pairwise_distances_of_far_and_many_points(monkeypatch):
    """Exact far from the origin, where the expansion of squares loses all digits; and in blocks as at once."""
    x = np.float32(2.0**20) + np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    y = x[:, :2] + 1

    def derived(x, y):
        value = pairwise_distances(x, y)
        return value.sum(), value

    both = lambda: jax.jit(jax.value_and_grad(lambda x, y: derived(x, y), has_aux=True))(x, y)
    (_, value), slope = both()
    np.testing.assert_allclose(value[1], distance.cdist(x[1], y[1]), rtol=1e-7)
    monkeypatch.setattr("jaxblocks.losses.distances._MOST_AT_ONCE", 16)
    (_, in_blocks), its_slope = both()
    assert "scan" in str(jax.make_jaxpr(lambda x, y: pairwise_distances(x, y))(x, y))
    np.testing.assert_allclose(in_blocks, value, rtol=1e-7)
    np.testing.assert_allclose(its_slope, slope, rtol=1e-6)


# Penalties -----------------------------------------------------------------------------------------------------------

PARAMS = {
    "hidden": {"kernel": np.array([[1.0, -0.5], [0.0, 0.5]]), "bias": np.array([3.0, -4.0])},
    "out": {"kernel": np.array([[0.5], [-0.5], [0.5]]), "bias": np.array([7.0])},
}


def params(dtype=np.float32):
    return jax.tree.map(lambda w: w.astype(dtype), PARAMS)


def test_l2_of_the_example_in_the_lectures():
    """lambda (sum W1^2 + sum W2^2) = .01 * 2.25 = .0225, without the biases."""
    kernels = jax.tree.map_with_path(lambda path, _: path[-1].key == "kernel", PARAMS)
    outer = {"hidden": True, "out": False}  # a prefix of the tree

    @compiled
    def penalties(params):
        slopes = jax.grad(partial(l2_penalty, mask=kernels))(params), jax.grad(l1_penalty)(params)
        by_mask = [penalty(params, mask=kernels) for penalty in (l2_penalty, l1_penalty)]
        return *by_mask, l2_penalty(params), l1_penalty(params), l2_penalty(params, mask=outer), *slopes

    *values, square, absolute = penalties(params())
    np.testing.assert_allclose(0.01 * values[0], 0.0225, rtol=1e-6)
    np.testing.assert_allclose(values[1:], [3.5, 2.25 + 9 + 16 + 49, 3.5 + 14, 1.5 + 25], rtol=1e-6)
    np.testing.assert_array_equal(square["hidden"]["kernel"], 2 * PARAMS["hidden"]["kernel"])
    np.testing.assert_array_equal(square["hidden"]["bias"], 0)
    np.testing.assert_array_equal(absolute["hidden"]["kernel"], [[1, -1], [0, 1]])  # 0 at 0
    assert l1_penalty(()) == 0
    assert l2_penalty({}) == 0


def test_penalties_sum_in_float32_or_wider():
    for dtype in HALF:
        tree = {"a": np.full(5000, 0.25, dtype), "b": np.ones(3, np.float32)}
        both = run(lambda tree: [jax.value_and_grad(f)(tree) for f in (l1_penalty, l2_penalty)], tree)
        for (value, gradient), expected in zip(both, (1253.0, 315.5), strict=True):
            assert value.dtype == jnp.float32
            assert value == expected
            assert gradient["a"].dtype == dtype
    with jax.enable_x64(True):
        tree = {"a": np.ones(2, np.float32), "b": np.full(1, 1e-12)}
        assert run(l2_penalty, tree).dtype == jnp.float64
        np.testing.assert_allclose(run(l1_penalty, tree) - 2, 1e-12, rtol=1e-3)


def test_penalties_reject_wrong_arguments(sentences):
    with pytest.raises(
        TypeError, match=r"l2_penalty expected params of floating-point or complex arrays, got int32 \(3,\)"
    ):
        l2_penalty({"kernel": jnp.ones(2), "steps": jnp.arange(3)})
    mask = {"kernel": True, "steps": False}  # the suggested repair
    assert l2_penalty({"kernel": jnp.ones(2), "steps": jnp.arange(3)}, mask=mask) == 2
    with pytest.raises(TypeError, match="l1_penalty expected a mask of True and False, got 1.0"):
        l1_penalty(params(), mask=1.0)
    with pytest.raises(ValueError, match="prefix") as caught:
        l1_penalty(params(), mask={"hidden": True})
    assert "l1_penalty expected a mask with the structure of params" in "".join(caught.value.__notes__)


def test_soft_threshold_numbers():
    x = np.float32([-1.2, 0.05, 0.7, 0.1])
    value, gradient = value_and_gradient(lambda x: soft_threshold(x, 0.1))(x)
    np.testing.assert_allclose(value, [-1.1, 0, 0.6, 0], atol=1e-7)
    assert value[1] == 0
    np.testing.assert_array_equal(soft_threshold(x, 0), x)
    np.testing.assert_array_equal(gradient[:3], [1, 0, 1])
    assert run(soft_threshold, x.astype(jnp.bfloat16), jnp.bfloat16(0.1)).dtype == jnp.bfloat16
    threshold = jnp.float32(0.1)  # made here, since under jit it would be traced
    np.testing.assert_array_equal(value, jax.jit(lambda x: soft_threshold(x, threshold))(x))
    with pytest.raises(ValueError, match=r"threshold >= 0, got -0.1"):
        soft_threshold(x, -0.1)


def test_soft_threshold_is_the_proximal_step_of_l1():
    """It minimizes 1/2 (u - x)^2 + t |u| over u."""
    x = np.array([-1.2, -0.3, 0.05, 0.7])
    u = np.linspace(-2, 2, 40_001)
    objective = 0.5 * (u - x[:, None]) ** 2 + 0.3 * np.abs(u)
    with jax.enable_x64(True):
        np.testing.assert_allclose(run(soft_threshold, x, 0.3), u[objective.argmin(-1)], atol=1e-4)


# Contracts of all losses ---------------------------------------------------------------------------------------------


class Row(NamedTuple):
    """A loss with arguments of leading shape (2, 3), its formula in numpy, and whether it keeps the last axis."""

    loss: object
    arguments: tuple
    formula: object
    keeps: bool = False


def log_q(z):
    return special.log_softmax(z, axis=-1)


def pick(x, y):
    return np.take_along_axis(x, y[..., None], -1)[..., 0]


def cosines(a, b):
    return (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)


P, Q = dirichlet(60, 2, 2, 3, 4)
Z, W = 2 * normal(61, 2, 2, 3, 4)
Y = np.random.default_rng(62).integers(0, 4, size=(2, 3)).astype(np.int32)
SIGNS = np.sign(W)

LOSSES = {
    "entropy": Row(entropy, (P,), lambda p: -(p * np.log(p)).sum(-1)),
    "cross_entropy": Row(cross_entropy, (P, Q), lambda p, q: -(p * np.log(q)).sum(-1)),
    "kl_divergence": Row(kl_divergence, (P, Q), lambda p, q: (p * np.log(p / q) - p + q).sum(-1)),
    "jensen_shannon": Row(
        jensen_shannon,
        (P, Q),
        lambda p, q: 0.5 * (p * np.log(2 * p / (p + q)) + q * np.log(2 * q / (p + q))).sum(-1),
    ),
    "total_variation": Row(total_variation, (P, Q), lambda p, q: 0.5 * np.abs(p - q).sum(-1)),
    "lp_distance": Row(partial(lp_distance, order=3), (P, Q), lambda p, q: (np.abs(p - q) ** 3).sum(-1) ** (1 / 3)),
    "cosine_embedding_loss": Row(
        lambda a, b, **options: cosine_embedding_loss(a, b, jnp.ones(a.shape[:-1], bool), **options),
        (Z, W),
        lambda a, b: 1 - cosines(a, b),
    ),
    "softmax_cross_entropy labels": Row(softmax_cross_entropy, (Z, Y), lambda z, y: -pick(log_q(z), y)),
    "softmax_cross_entropy soft": Row(softmax_cross_entropy, (Z, P), lambda z, p: -(p * log_q(z)).sum(-1)),
    "distillation_loss": Row(
        partial(distillation_loss, temperature=2.0),
        (Z, W),
        lambda z, w: -(special.softmax(w / 2, axis=-1) * log_q(z / 2)).sum(-1),
    ),
    "nll": Row(nll, (np.log(P), Y), lambda x, y: -pick(x, y)),
    "sigmoid_cross_entropy": Row(
        sigmoid_cross_entropy,
        (Z, P),
        lambda z, p: -p * np.log(special.expit(z)) - (1 - p) * np.log(special.expit(-z)),
        keeps=True,
    ),
    "hinge_loss": Row(hinge_loss, (Z, SIGNS), lambda z, y: np.maximum(0, 1 - y * z), keeps=True),
    "mse": Row(mse, (Z, W), lambda z, w: ((z - w) ** 2).mean(-1)),
    "mae": Row(mae, (Z, W), lambda z, w: np.abs(z - w).mean(-1)),
    "huber_loss": Row(
        huber_loss,
        (Z, W),
        lambda z, w: np.where(np.abs(z - w) <= 1, (z - w) ** 2 / 2, np.abs(z - w) - 0.5).mean(-1),
    ),
    "gaussian_nll": Row(gaussian_nll, (Z, W), lambda z, w: ((z - w) ** 2).sum(-1) / 2 + 2 * math.log(2 * math.pi)),
}


def cast(arguments, dtype):
    return tuple(x if x.dtype == np.int32 else x.astype(dtype) for x in arguments)


def values_of_all(form, dtype):
    """``form(loss, *arguments)`` of each loss, from one program."""

    def values(arguments):
        return {name: form(LOSSES[name].loss, *x) for name, x in arguments.items()}

    return jax.jit(values)({name: cast(row.arguments, dtype) for name, row in LOSSES.items()})


@functools.cache
def in_double():
    """The values, and that of one example."""
    with jax.enable_x64(True):
        return values_of_all(lambda loss, *x: (loss(*x), loss(*(a[1, 2] for a in x))), np.float64)


@functools.cache
def in_bfloat16():
    return values_of_all(lambda loss, *x: loss(*x), jnp.bfloat16)


@functools.cache
@for_each({name: name for name in LOSSES})
def test_losses_are_one_number_per_example_and_match_their_formula(name):
    """Any number of leading axes are batch axes."""
    _, arguments, formula, keeps = LOSSES[name]
    expected = formula(*arguments)
    assert expected.shape == ((2, 3, 4) if keeps else (2, 3))
    value, single = in_double()[name]
    np.testing.assert_allclose(value, expected, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(single, expected[1, 2], rtol=1e-12)


@for_each({name: name for name in LOSSES})
def test_dtype_is_kept_and_sums_are_at_least_float32(name):
    """The result is the exact formula of the rounded input, rounded once."""
    _, arguments, formula, _ = LOSSES[name]
    arguments = cast(arguments, jnp.bfloat16)
    exact = formula(*(np.asarray(x, None if x.dtype == jnp.int32 else np.float64) for x in arguments))
    value = in_bfloat16()[name]
    assert value.dtype == jnp.bfloat16
    assert not value.weak_type
    unit = float(jnp.finfo(jnp.bfloat16).eps) / 2
    np.testing.assert_allclose(np.asarray(value, np.float64), exact, rtol=1.02 * unit, atol=1e-6)


@pytest.mark.usefixtures("sentences")
@for_each({name: row for name, row in LOSSES.items() if len(row.arguments) == 2})
def test_broadcasting_is_rejected(row):
    a, b = cast(row.arguments, jnp.float32)
    for one, other in ((a, b[0]), (a[0], b), (a, b[:1]), (a[:, :1], b)):
        with pytest.raises(ValueError, match=r"expected .*got .*\(\d.*; "):
            row.loss(one, other)
    if b.dtype != jnp.int32:
        with pytest.raises(ValueError, match=r"expected .*got .*\(\d.*; "):
            row.loss(a, b[..., :1])


def test_column_against_row_is_rejected(sentences):
    """Predictions (8, 1) and targets (8,) would broadcast to (8, 8)."""
    for loss in (mse, mae, huber_loss, gaussian_nll, sigmoid_cross_entropy, hinge_loss):
        with pytest.raises(ValueError, match=r"float32 \(8, 1\) and float32 \(8,\); reshape .*squeeze\(-1\)"):
            loss(np.ones((8, 1), np.float32), np.ones(8, np.float32))
        for shape in ((8,), (8, 1)):  # the suggested repairs
            assert jax.eval_shape(loss, *[jax.ShapeDtypeStruct(shape, jnp.float32)] * 2).shape in (shape, shape[:-1])
    with pytest.raises(ValueError, match="zero_one_loss expected predictions .* and targets .* with the same"):
        zero_one_loss(np.zeros((8, 1), np.int32), np.zeros(8, np.int32))


@pytest.mark.usefixtures("sentences")
@for_each(LOSSES)
def test_scalars_without_an_axis_to_reduce_are_rejected(row):
    loss, arguments, _, keeps = row
    if keeps:
        numbers = [jax.ShapeDtypeStruct((), np.float32)] * len(arguments)
        assert jax.eval_shape(loss, *numbers).shape == ()
        return
    arguments = [np.asarray(x.flat[0], x.dtype if x.dtype == np.int32 else np.float32) for x in arguments]
    with pytest.raises(
        ValueError, match=r"at least 1 axis, .*got float32 \(\); add the missing axis, as in \w+\[None\]"
    ):
        loss(*arguments)


@pytest.mark.usefixtures("sentences")
@for_each(LOSSES)
def test_integers_are_rejected_where_floats_are_required(row):
    with pytest.raises(
        TypeError, match=r"to be (a floating-point (or complex )?array|an array of .*), got int32 \(2, 3, 4\)"
    ):
        row.loss(np.zeros((2, 3, 4), np.int32), *cast(row.arguments, jnp.float32)[1:])


def test_invalid_distributions_are_rejected(sentences):
    good, scores = pair(0.5, 0.25), np.float32([[0.5, 0.5], [1.5, -2]])
    for loss in (cross_entropy, kl_divergence, jensen_shannon, total_variation, entropy):
        name = loss.__name__
        for arguments in [(scores,)] if loss is entropy else [(scores, good), (good, scores)]:
            with pytest.raises(
                ValueError, match=rf"{name} expected probability distributions in [pq] .*softmax\(scores\)"
            ):
                loss(*arguments)
    # under jit the values are unknown: only check=True gives an error
    checked = checkify.checkify(jax.jit(partial(kl_divergence, check=True)))
    error, _ = checked(good, softmax(scores))  # the suggested repair
    assert error.get() is None
    with jax.debug_nans(False):
        error, _ = checked(good, scores)
    with pytest.raises(ValueError, match="kl_divergence expected probability distributions"):
        error.throw()


def test_checks_add_no_operations_under_jit():
    """Without check=True, the jaxpr has no operations for checks."""
    p = pair(0.5)
    for loss, arguments in (
        (kl_divergence, (p, p)),
        (softmax_cross_entropy, (p, p)),
        (sigmoid_cross_entropy, (p, p)),
        (hinge_loss, (p, p)),
        (nll, (p, np.array([0]))),
    ):
        operations = {equation.primitive.name for equation in jax.make_jaxpr(loss)(*arguments).eqns}
        assert not operations & {"reduce_min", "reduce_and", "abs"}, operations


def test_arguments_are_checked_in_an_eager_gradient(sentences):
    """The values are known in an eager gradient; the error shows numbers, not tracers."""
    with pytest.raises(ValueError, match=r"a minimum of 0.25 and sums from 0.75 to 0.75"):
        jax.grad(entropy)(jnp.array([0.5, 0.25]))
    with pytest.raises(ValueError, match=r"targets between 0 and 1, got values from 2.0 to 2.0"):
        jax.grad(sigmoid_cross_entropy, 1)(jnp.float32(0), jnp.float32(2))


def test_other_invalid_values_are_rejected(sentences):
    cases = [
        (softmax_cross_entropy, (jnp.zeros((1, 2)), jnp.array([[0.5, 0.6]])), "probability distributions in targets"),
        (
            sigmoid_cross_entropy,
            (jnp.zeros(2), jnp.array([-1.0, 1.0])),
            "between 0 and 1, got values from -1.0 to 1.0",
        ),
        (hinge_loss, (jnp.zeros(2), jnp.array([0.0, 1.0])), "targets that are -1 or 1, got values from 0.0 to 1.0"),
        (nll, (jnp.zeros(2), jnp.array(0)), "log-probabilities, .* from 2.0 to 2.0"),
        (softmax_cross_entropy, (jnp.zeros((2, 3)), jnp.array([1, 3])), "targets from 0 to 2, got targets from 1 to 3"),
        (nll, (jnp.log(jnp.full((2, 2), 0.5)), jnp.array([-1, 0])), "targets from 0 to 1, got targets from -1 to 0"),
    ]
    for loss, arguments, sentence in cases:
        with pytest.raises(ValueError, match=f"{loss.__name__} expected .*{sentence}"):
            loss(*arguments)
        if arguments is cases[0][1]:
            continue  # as `test_invalid_distributions_are_rejected`
        with jax.debug_nans(False):
            error, _ = checkify.checkify(jax.jit(partial(loss, check=True)))(*arguments)
        with pytest.raises(ValueError, match=f"{loss.__name__} expected .*{sentence}"):
            error.throw()
    error, value = checkify.checkify(jax.jit(partial(nll, check=True)))(jnp.log(pair(0.25)[0]), jnp.array(0))
    assert error.get() is None
    assert value == pytest.approx(math.log(4))


def test_label_out_of_range_gives_nan_under_jit():
    """The value is NaN and the gradient not finite in the row of that label only."""
    x, labels = np.log(np.float32([[0.25, 0.75]] * 4)), np.array([0, 2, -1, 1])
    for loss in (softmax_cross_entropy, nll):
        with jax.debug_nans(False):
            value, gradient = value_and_gradient(loss)(x, labels)
        np.testing.assert_allclose(value, [math.log(4), np.nan, np.nan, -math.log(0.75)], rtol=1e-6)
        np.testing.assert_array_equal(~np.isfinite(gradient).all(-1), [False, True, True, False])


def test_targets_that_are_neither_labels_nor_distributions_are_rejected(sentences):
    logits = jnp.zeros((2, 3, 4))
    for targets in (
        jnp.zeros((2, 3)),  # floating-point labels
        jnp.zeros((2, 3, 4), jnp.int32),  # integer one-hot rows
        jnp.zeros((2, 3, 1), jnp.int32),
        jnp.zeros((6,), jnp.int32),
        jnp.zeros((2, 3), bool),
        jnp.full((2, 3, 1), 1.0),
    ):
        with pytest.raises(
            (TypeError, ValueError),
            match=r"integer labels \(2, 3\) or .* \(2, 3, 4\) as targets|targets .* with the same|an integer array",
        ):
            softmax_cross_entropy(logits, targets)
    with pytest.raises(
        ValueError, match=r"nll expected log_probs .* and targets .* with the same size of \*batch, got .* int32 \(6,\)"
    ):
        nll(jnp.log(jnp.full((2, 3, 4), 0.25)), jnp.zeros((6,), jnp.int32))
    with pytest.raises(TypeError, match="nll expected targets to be an integer array"):
        nll(jnp.log(jnp.full((2, 3, 4), 0.25)), jnp.zeros((2, 3)))
    with pytest.raises(TypeError, match="zero_one_loss expected targets to be an integer array, got float32"):
        zero_one_loss(jnp.array([0, 1]), jnp.array([0.5, 0.5]))


def test_python_numbers_are_rejected(sentences):
    for loss, arguments in (
        (mse, (jnp.ones(2), 1.0)),
        (softmax_cross_entropy, (jnp.ones(2), 1)),
        (nll, (jnp.log(jnp.full(2, 0.5)), 1)),
        (zero_one_loss, (jnp.array([1]), 1)),
    ):
        with pytest.raises(TypeError, match=r"array, got (1|1.0); .*jnp.asarray"):
            loss(*arguments)


def test_options_out_of_range_are_rejected(sentences):
    p, z = pair(0.5), jnp.zeros((1, 2))
    for base in (1, 0.5, 0, -2):
        with pytest.raises(ValueError, match="entropy expected base to be a number > 1, got"):
            entropy(p, base=base)
    for bad in (0, -1.0, math.nan):
        with pytest.raises(ValueError, match="distillation_loss expected temperature (> 0|to be a number)"):
            distillation_loss(z, z, temperature=bad)
        with pytest.raises(ValueError, match="huber_loss expected delta (> 0|to be a number)"):
            huber_loss(z, z, delta=bad)


# Masks, weights of classes and examples -------------------------------------------------------------------------------

COUNTS = np.abs(np.round(2 * W))
MASKABLE = {
    **LOSSES,
    "smoothed labels": Row(
        partial(softmax_cross_entropy, label_smoothing=0.1, class_weights=np.float32([1, 0, 2, 0.5])), (Z, Y), None
    ),
    "zero_one_loss": Row(zero_one_loss, (Y, Y[::-1]), None),
    "poisson_nll": Row(poisson_nll, (Z, COUNTS), None),
    "weighted nll": Row(partial(nll, class_weights=np.float32([1, 0, 2, 0.5])), (np.log(P), Y), None),
}


KEPT = np.array([[True, False, True], [False, False, True]])


def spoiled(name):
    """Arguments with NaN, infinity and labels of -100 at the masked examples, and the mask."""
    _, arguments, _, keeps = MASKABLE[name]
    keep, arguments = KEPT, cast(arguments, np.float32)
    values = (-100 if x.dtype == np.int32 else bad for x, bad in zip(arguments, (np.nan, -np.inf), strict=False))
    wrong = tuple(
        np.where(keep.reshape(keep.shape + (1,) * (x.ndim - 2)), x, value).astype(x.dtype)
        for x, value in zip(arguments, values, strict=True)
    )
    return wrong, np.broadcast_to(keep.reshape((2, 3) + (1,) * keeps), arguments[0].shape[: 2 + keeps])


@functools.cache
def masked_and_whole():
    """For each loss the values and gradients where examples are masked, and those where none is, from one program."""

    def derived(name, x, where):
        floats = tuple(i for i, a in enumerate(x) if jnp.issubdtype(a.dtype, jnp.floating))
        run = lambda *x: (lambda value: (value.sum(), value))(MASKABLE[name].loss(*x, where=where))
        (_, value), gradients = jax.value_and_grad(run, floats, has_aux=True)(*x) if floats else (run(*x), ())
        return value, *gradients

    every = jax.jit(lambda given: {name: derived(name, *each) for name, each in given.items()})
    masked = {name: spoiled(name) for name in MASKABLE}
    whole = {name: (cast(row.arguments, np.float32), np.ones_like(masked[name][1])) for name, row in MASKABLE.items()}
    with jax.debug_nans(False):  # NaN is an input here
        return jax.tree.map(np.asarray, (every(masked), every(whole)))


@for_each({name: name for name in MASKABLE})
def test_masked_examples_have_loss_and_gradient_zero_whatever_they_are(name):
    """NaN, infinity and labels of -100 at masked examples; values and gradients of the others are those alone."""
    masked, whole = (each[name] for each in masked_and_whole())
    for ours, alone in zip(masked, whole, strict=True):
        np.testing.assert_array_equal(ours[~KEPT], 0)
        np.testing.assert_allclose(ours[KEPT], alone[KEPT], rtol=1e-5, atol=1e-6)
    assert np.abs(masked[0][KEPT]).max() > 0.1
    if "check" in inspect.signature(MASKABLE[name].loss).parameters:  # its eager call has nothing to reject
        wrong, where = spoiled(name)
        with jax.debug_nans(False):
            np.testing.assert_allclose(MASKABLE[name].loss(*wrong, where=where), masked[0], rtol=1e-5)


def test_padding_labels_in_the_idiom_of_where(sentences):
    """`jnp.where(y >= 0, loss, 0)` under jit: labels of -100 give the gradient 0, in value and in gradient no NaN."""
    z, y = normal(70, 3, 4, dtype=np.float32), np.array([2, -100, 0])
    z -= special.logsumexp(z, -1, keepdims=True)  # scores and log-probabilities
    losses = softmax_cross_entropy, nll

    def both(z, y):
        idiom = lambda z, loss: jnp.where(y >= 0, loss(z, y), 0).sum()
        masked = lambda z, loss: loss(z, y, where=y >= 0).sum()
        return [[jax.value_and_grad(form)(z, loss) for form in (idiom, masked)] for loss in losses]

    with jax.debug_nans(False):
        found = run(both, z, y)
    for loss, (one, other) in zip(losses, found, strict=True):
        np.testing.assert_array_equal(one[1][1], 0)
        jax.tree.map(np.testing.assert_array_equal, one, other)
        with pytest.raises(
            ValueError, match=r"targets from 0 to 3, got targets from -100 to 2; .*where=targets >= 0\.$"
        ):
            loss(z, y)
        assert np.isfinite(loss(z, y, where=y >= 0)).all()  # the suggested repair


def test_features_may_be_masked_one_by_one():
    z, w = normal(71, 2, 2, 3)
    keep = np.array([[True, False, True], [False, False, False]])
    errors, rates = (z - w)[0, [0, 2]], np.abs(w)[0, [0, 2]]
    z32, kept = z.astype(np.float32), z[0, [0, 2]]
    expected = {
        mse: (errors**2).mean(),
        mae: np.abs(errors).mean(),
        huber_loss: special.huber(1.0, errors).mean(),
        gaussian_nll: -stats.norm.logpdf(errors).sum(),
        poisson_nll: (np.exp(kept) - rates * kept + special.gammaln(rates + 1)).sum(),
    }

    def everything(z, targets, where):
        losses = [loss(z, jnp.abs(targets) if loss is poisson_nll else targets, where=where) for loss in expected]
        return sum(loss.sum() for loss in losses), jnp.stack(losses)

    with jax.debug_nans(False):
        spoiled = np.where(keep, w, np.nan).astype(np.float32)
        (_, values), slope = run(jax.value_and_grad(everything, has_aux=True), z32, spoiled, keep)
    np.testing.assert_allclose(values[:, 0], list(expected.values()), rtol=2e-6)
    np.testing.assert_array_equal(values[:, 1], 0)
    np.testing.assert_array_equal(slope == 0, ~keep)


def test_masks_of_other_shapes_are_rejected(sentences):
    z = jnp.zeros((2, 3))
    with pytest.raises(
        ValueError, match=r"mse expected where of shape \(2,\), one per example, or \(2, 3\), .*got bool"
    ):
        mse(z, z, where=jnp.ones(3, bool))
    with pytest.raises(ValueError, match=r"kl_divergence expected .* where \(\*batch,\) with the same size of \*batch"):
        kl_divergence(z + 1 / 3, z + 1 / 3, where=jnp.ones(3, bool))
    with pytest.raises(TypeError, match="hinge_loss expected where to be a boolean array, got float32"):
        hinge_loss(z, z + 1, where=z)
    hinge_loss(z, z + 1, where=z > 0)  # the suggested repair


def test_tangents_of_weight_0_are_left_out():
    """The derivative of a root at 0 is infinite; that with respect to its weight is the distance to the mean."""
    with jax.debug_nans(False), jax.debug_infs(False):
        f = jax.jit(lambda x, w: weighted_mean(jnp.sqrt(x), w))
        x, w = jnp.array([4.0, 0.0]), jnp.array([1.0, 0.0])
        np.testing.assert_array_equal(jax.jvp(lambda x: f(x, w), [x], [jnp.ones(2)]), [2, 0.25])
        np.testing.assert_array_equal(jax.jacfwd(f, 0)(x, w), [0.25, 0])
        np.testing.assert_array_equal(jax.grad(f, 1)(x, w), [0, -2])


def test_weighted_mean():
    values, weights = normal(72, 5), np.array([1, 0, 2, 0.5, 0])
    w = weights.astype(np.float32)
    with jax.debug_nans(False):
        v = np.where(w > 0, values, np.nan).astype(np.float32)
        mean_and_slopes = compiled(jax.value_and_grad(weighted_mean, (0, 1)))
        mean, slopes = mean_and_slopes(v, w)
        of_mask, _ = mean_and_slopes(v, (w > 0).astype(np.float32))
        nothing, (slope, _) = mean_and_slopes(v, 0 * w)
        known = compiled(jax.grad(weighted_mean, 1))(values.astype(np.float32), w)
    expected = np.average(values, weights=weights)
    np.testing.assert_allclose(mean, expected, rtol=1e-6)
    np.testing.assert_allclose(slopes[0], weights / 3.5, rtol=1e-6)
    np.testing.assert_allclose(slopes[1][weights > 0], (values - expected)[weights > 0] / 3.5, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(slopes[1][weights == 0], -expected / 3.5, rtol=1e-5)  # of NaN, which counts as 0
    np.testing.assert_allclose(known, (values - expected) / 3.5, rtol=1e-5, atol=1e-7)  # at weights of 0 too
    np.testing.assert_allclose(of_mask, values[weights > 0].mean(), rtol=1e-6)
    assert nothing == 0
    np.testing.assert_array_equal(slope, 0)
    # The mean does not depend on a factor of the weights, whose squares of 1e-60 are 0 in float32.
    x, w = normal(60, 5, dtype=np.float32), (np.abs(normal(61, 5)) + 0.1).astype(np.float32)
    both = lambda w: weighted_mean(x, np.float32(1e-30) * w)
    slope, hessian = compiled(lambda w: (jax.grad(both)(w), jax.hessian(both)(w)))(w)
    total, off = w.sum(), x - np.average(x, weights=w)
    np.testing.assert_allclose(slope, off / total, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(hessian, -np.add.outer(off, off) / total**2, rtol=1e-5, atol=1e-6)
    # Weights near the ends of the range; 1 / 2e38 is below the normal numbers.
    for scale in (1.2e-38, 1e38, 3e38):
        mean, slope = compiled(jax.value_and_grad(weighted_mean))(np.float32([1, 3]), np.float32([scale, scale]))
        np.testing.assert_allclose([mean, *slope], [2, 0.5, 0.5], rtol=1e-6)
    with jax.enable_x64(True):
        for scale in (1e-300, 1e300):  # beyond the range of float32, in which the sums are
            assert abs(weighted_mean(np.float32([1, 3]), np.float64([scale, 3 * scale])) - 2.5) < 1e-6
    half = np.array([1, 1 + 2**-7], jnp.bfloat16)
    assert run(weighted_mean, half, np.ones(2, jnp.bfloat16)) == 1 + 2**-8  # in float32: bfloat16 has no such number
    assert run(weighted_mean, half, np.ones(2, bool)).dtype == jnp.float32
    assert weighted_mean(np.zeros(0, np.float32), np.zeros(0, np.float32)) == 0
    assert weighted_mean(np.float32([1, 5]), np.float32([1, 0])) == 1
    for wrong in (-1, np.inf, np.nan):
        with jax.debug_nans(False), pytest.raises(ValueError, match="weighted_mean expected finite weights >= 0, got"):
            weighted_mean(w, np.where(np.arange(5) == 0, np.float32(wrong), w))


def test_class_weights_and_label_smoothing():
    """-sum_i w_i t_i log q_i with the smoothed targets t, from labels and from distributions."""
    z, y, w = normal(73, 3, 4), np.array([3, 0, 1]), np.array([0.5, 2, 0, 1])
    targets = 0.9 * np.eye(4)[y] + 0.1 / 4
    expected = -(w * targets * log_q(z)).sum(-1)
    shares = np.array([0.0, 0.1, 1.0])

    @compiled
    def values(z, y, w, shares):
        loss, rows = partial(softmax_cross_entropy, z), one_hot(y, 4, dtype=jnp.float64)
        smoothed = [loss(t, label_smoothing=0.1, class_weights=w) for t in (y, rows)]
        sweeps = [jax.vmap(lambda s, t=t: loss(t, label_smoothing=s))(shares) for t in (y, rows)]
        return smoothed, sweeps, loss(y, class_weights=w), nll(log_softmax(z), y, class_weights=w)

    with jax.enable_x64(True):
        smoothed, sweeps, weighted, by_nll = values(z, y, w, shares)
    np.testing.assert_allclose(smoothed, [expected, expected], rtol=1e-12)
    np.testing.assert_allclose(weighted, -w[y] * pick(log_q(z), y), rtol=1e-12)
    np.testing.assert_allclose(by_nll, weighted)
    by_hand = [-((1 - s) * np.eye(4)[y] + s / 4) for s in shares]
    for sweep in sweeps:
        np.testing.assert_allclose(sweep, [(t * log_q(z)).sum(-1) for t in by_hand], rtol=1e-12, atol=1e-15)
    excluded = np.float32([0.5, -np.inf, 1])  # smoothing of 0 ignores an excluded class, also where it is traced
    run_at = jax.jit(lambda s: softmax_cross_entropy(excluded, np.array(0), label_smoothing=s))
    np.testing.assert_allclose(run_at(0.0), run(softmax_cross_entropy, excluded, np.array(0)), rtol=1e-6)
    assert run_at(0.1) == np.inf
    with pytest.raises(ValueError, match="label_smoothing to be a number >= 0 and <= 1 or an array, got 2"):
        softmax_cross_entropy(jnp.zeros((1, 2)), jnp.array([0]), label_smoothing=jnp.array(2.0))
    for loss in (softmax_cross_entropy, nll):
        with pytest.raises(ValueError, match=rf"^{loss.__name__} expected class_weights >= 0, got -1"):
            loss(jnp.log(jnp.full((1, 2), 0.5)), jnp.array([0]), class_weights=jnp.array([-1.0, 1.0]))
    # The weights are not rounded to the dtype of half precision before the product.
    half, w = jnp.log(jnp.full((1, 4), 0.25)).astype(jnp.bfloat16), jnp.full(4, 1.0035)
    exact = -np.asarray(half, np.float64)[0, :1] * 1.0035
    rounded = jnp.asarray(exact, jnp.float32).astype(jnp.bfloat16)
    assert nll(half, jnp.array([0]), class_weights=w) == rounded


def test_class_weights_against_torch(torch):
    F = torch.nn.functional
    z, y, w = normal(74, 6, 4), np.array([3, 0, 1, 1, 2, -100]), np.array([0.5, 2, 0.25, 1])
    bits = np.random.default_rng(75).integers(0, 2, size=(6, 4)).astype(np.float64)
    tz, ty, tw = torch.tensor(z), torch.tensor(y), torch.tensor(w)
    with jax.enable_x64(True):
        counts = y >= 0
        each = run(softmax_cross_entropy, z, y, class_weights=w, label_smoothing=0.2, where=counts)
        mean = run(
            weighted_mean, run(softmax_cross_entropy, z, y, where=counts), np.where(counts, w[np.maximum(y, 0)], 0)
        )
        binary = run(sigmoid_cross_entropy, z, bits, pos_weight=w)
    expected = F.cross_entropy(tz, ty, tw, label_smoothing=0.2, reduction="none")
    np.testing.assert_allclose(each, expected, rtol=1e-12)
    np.testing.assert_allclose(mean, F.cross_entropy(tz, ty, tw), rtol=1e-12)
    expected = F.binary_cross_entropy_with_logits(tz, torch.tensor(bits), pos_weight=tw, reduction="none")
    np.testing.assert_allclose(binary, expected, rtol=1e-11)


# Close distributions, infinite arguments, options --------------------------------------------------------------------


@functools.partial(jax.jit, static_argnums=0)
def divergence_and_slopes(loss, p, q):
    value, pull = jax.vjp(loss, p, q)
    return value, pull(jnp.ones_like(value))


@pytest.mark.parametrize("distance", [1e-6, 0.3])
def test_divergences_of_close_distributions_are_exact_and_not_negative(distance):
    """2000 pairs in float32 against the formula in extended precision, values and gradients."""
    random = np.random.default_rng(76)
    p = random.dirichlet(np.ones(6), 2000)
    q = p * np.exp(distance * random.normal(size=p.shape))
    p, q = p.astype(np.float32), (q / q.sum(-1, keepdims=True)).astype(np.float32)
    a, b = np.asarray(p, np.longdouble), np.asarray(q, np.longdouble)
    m = (a + b) / 2
    kl = lambda a, b: (a * np.log(a / b) - a + b).sum(-1)
    references = {
        kl_divergence: (kl(a, b), np.log(a / b) + 1, -a / b),
        jensen_shannon: ((kl(a, m) + kl(b, m)) / 2, np.log(a / m) / 2, np.log(b / m) / 2),
    }
    for loss, (expected, *slopes) in references.items():
        each, gradients = divergence_and_slopes(loss, p, q)
        assert (each >= 0).all()
        assert np.isfinite(each).all()
        tolerance = 3e-6 if distance > 1e-5 else 1e-5  # the rounding of (p + q) / 2 has a part of it
        np.testing.assert_allclose(each, expected.astype(float), rtol=tolerance, atol=1e-20)
        for gradient, slope in zip(gradients, slopes, strict=True):
            np.testing.assert_allclose(gradient, slope.astype(float), rtol=2e-6, atol=1e-6 * distance)


def test_divergences_of_half_precision_are_not_negative():
    p = np.random.default_rng(77).dirichlet(np.ones(20), (2, 500))
    p, close = p[0].astype(jnp.bfloat16), (0.99 * p[0] + 0.01 * p[1]).astype(jnp.bfloat16)
    for divergence in run(lambda p, q: (kl_divergence(p, q), jensen_shannon(p, q)), p, close):
        assert (divergence >= 0).all()


def test_relative_entropy_of_what_is_no_distribution_keeps_the_plain_sum():
    """Under jit, where values are unknown: sum p log(p / q), also where the sums differ."""
    p, q = np.array([0.2, 0.3]), np.array([0.5, 0.75])
    expected = (p * np.log(p / q)).sum()
    value, slope = run(jax.value_and_grad(kl_divergence, 1), p.astype(np.float32), q.astype(np.float32))
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    np.testing.assert_allclose(slope, -p / q, rtol=1e-6)


def test_infinite_scores_and_errors():
    z, y = np.float32([np.inf, np.inf, -np.inf, -np.inf, np.inf]), np.float32([0, 1, 0, 1, 0.25])
    value, gradient = value_and_gradient(sigmoid_cross_entropy)(z, y)
    np.testing.assert_array_equal(value, [np.inf, 0, 0, np.inf, np.inf])
    np.testing.assert_array_equal(gradient, [1, 0, 0, -1, 0.75])  # sigma(z) - y
    e, zeros = np.float32([np.inf, -np.inf, 3, 0.5]), np.zeros((4, 1), np.float32)
    loss = lambda e: huber_loss(e[:, None], zeros, delta=2.0)

    @compiled
    def derived(e):
        of_mae = jax.grad(lambda e: mae(e[:, None], zeros).sum())(e)
        return *jax.jvp(loss, (e,), (jnp.ones(4),)), jax.grad(lambda e: loss(e).sum())(e), of_mae

    value, slope, by_reverse, of_mae = derived(e)
    np.testing.assert_array_equal(value, [np.inf, np.inf, 4, 0.125])
    np.testing.assert_array_equal(slope, [2, -2, 2, 0.5])
    np.testing.assert_array_equal(by_reverse, slope)
    np.testing.assert_array_equal(of_mae, [1, -1, 1, 1])


def test_options_that_are_arrays():
    e, zeros, delta = np.float32([[3, 3], [0.5, -3]]), np.zeros((2, 2), np.float32), np.float32([1, 2])
    value, slope = value_and_gradient(lambda d: huber_loss(e, zeros, delta=d))(delta)
    np.testing.assert_allclose(value, [(2.5 + 4) / 2, (0.125 + 4) / 2], rtol=1e-6)
    np.testing.assert_allclose(slope, np.array([3 - 1, 2 * (3 - 2)]) / 2, rtol=1e-6)
    with pytest.raises(
        ValueError, match=r"huber_loss expected delta to be a number or of shape \(2,\) or \(2, 2\), got"
    ):
        huber_loss(e, zeros, delta=np.ones(3, np.float32))
    for loss, option in ((huber_loss, "delta"), (gaussian_nll, "variance"), (sigmoid_cross_entropy, "pos_weight")):
        with pytest.raises(ValueError, match=f"{loss.__name__} expected {option} > 0, got 0"):
            loss(e, zeros, **{option: np.float32([0, 1])})
    hinge = run(hinge_loss, np.float32([0.5, -1]), np.ones(2, np.float32), margin=0.25)
    np.testing.assert_array_equal(hinge, [0, 1.25])


def test_gaussian_nll_with_a_variance_and_poisson_nll():
    f, y, v = normal(78, 4, 3), normal(79, 4, 3), np.random.default_rng(80).uniform(0.1, 4, size=(4, 3))
    counts = np.random.default_rng(81).poisson(3.0, size=(4, 3)).astype(float)
    with jax.enable_x64(True):
        every = compiled(
            lambda f, y, v, counts: ([gaussian_nll(f, y, variance=x) for x in (v, v[0], 0.3)], poisson_nll(f, counts))
        )
        of_variances, of_counts = every(f, y, v, counts)
    for found, variance in zip(of_variances, (v, v[0], 0.3), strict=True):
        np.testing.assert_allclose(found, -stats.norm.logpdf(y, f, np.sqrt(variance)).sum(-1), rtol=1e-12)
    np.testing.assert_allclose(of_counts, -stats.poisson.logpmf(counts, np.exp(f)).sum(-1), rtol=1e-12)
    assert poisson_nll(*[np.zeros((0, 3), np.float32)] * 2).shape == (0,)
    with pytest.raises(ValueError, match="poisson_nll expected targets >= 0, got a minimum of -1.0"):
        poisson_nll(jnp.zeros(1), -jnp.ones(1))


def test_info_nce_loss():
    a, b = normal(82, 2, 5, 3, dtype=np.float32)
    unit = lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True)
    expected = lambda a, b: -np.diag(special.log_softmax(unit(a) @ unit(b).T / 0.5, axis=-1))
    everywhere, some = np.ones(5, bool), np.arange(5) % 2 == 0
    loss = value_and_gradient(lambda x, y, where: info_nce_loss(x, y, temperature=0.5, where=where))
    value, slope = loss(a, b, everywhere)
    np.testing.assert_allclose(value, expected(a, b), rtol=1e-5)
    np.testing.assert_allclose((slope * a).sum(-1), 0, atol=1e-5)  # the length has no effect
    huge, tiny = np.float32(1e30) * a, np.float32(1e-30) * b
    np.testing.assert_allclose(loss(huge, tiny, everywhere)[0], value, rtol=1e-5)  # no overflow
    assert np.isfinite(loss(a * some[:, None].astype(np.float32), b, everywhere)[1]).all()
    with jax.debug_nans(False):  # masked examples are no negatives of the others, whatever they are
        spoiled = np.where(some[:, None], a, np.float32(np.nan)), np.where(some[:, None], b, np.float32(-np.inf))
        value, slope = loss(*spoiled, some)
        np.testing.assert_allclose(info_nce_loss(*spoiled, temperature=0.5, where=some), value, rtol=1e-5)
    np.testing.assert_allclose(value[some], expected(a[some], b[some]), rtol=1e-5)
    np.testing.assert_array_equal(value[~some], 0)
    assert (np.isfinite(slope).all(-1) & ((slope != 0).any(-1) == some)).all()
    with pytest.raises(ValueError, match="info_nce_loss expected at least one entry on the last axis"):
        info_nce_loss(*[np.zeros((2, 0), np.float32)] * 2)
    for shape in ((0, 3), (2, 0, 3)):
        empty = jax.ShapeDtypeStruct(shape, jnp.bfloat16)
        losses = jax.eval_shape(info_nce_loss, empty, empty, where=jax.ShapeDtypeStruct(shape[:-1], bool))
        assert losses.shape == shape[:-1] and losses.dtype == jnp.bfloat16


# Rejected inputs of all functions ------------------------------------------------------------------------------------

COMPLEX = {
    **{name: (row.loss, row.arguments) for name, row in MASKABLE.items()},
    "pairwise_distances": (pairwise_distances, (Z, W)),
    "jensen_gap": (partial(jensen_gap, jnp.exp), (Z[0, 0], P[0, 0])),
    "soft_threshold": (partial(soft_threshold, threshold=1.0), (Z,)),
    "l1_penalty": (l1_penalty, (Z,)),
    "l2_penalty": (l2_penalty, (Z,)),
    "info_nce_loss": (info_nce_loss, (Z, W)),
    "weighted_mean": (weighted_mean, (Z, P)),
    "accuracy": (metrics.accuracy, (Z, Y, Y)),
    "top_k_accuracy": (partial(metrics.top_k_accuracy, k=2), (Z, Y, Y)),
    "perplexity": (metrics.perplexity, (Z, Y, Y)),
    "predict_class": (metrics.predict_class, (Z,)),
    "confusion_matrix": (partial(metrics.confusion_matrix, classes=4), (Y, Y)),
    "precision_recall_f1": (metrics.precision_recall_f1, (COUNTS[0, 0] * np.eye(4),)),
    "r_squared": (metrics.r_squared, (Z, W)),
}


def test_complex_arrays_are_rejected_by_losses_and_metrics(sentences):
    tested = {name.split()[0] for name in COMPLEX} | {"nll"}
    assert tested >= set(jaxblocks.losses.__all__) | set(metrics.__all__)
    for name, (function, arguments) in COMPLEX.items():
        arguments = cast(arguments, np.float32)
        for slot, x in enumerate(arguments):
            spoiled = [*arguments[:slot], x.astype(np.complex64), *arguments[slot + 1 :]]
            options = {"weights": spoiled.pop()} if len(spoiled) == 3 else {}
            if name in ("mse", "mae", "l1_penalty", "l2_penalty") and slot == 0:  # see `tests/laws/test_complex.py`
                continue
            with pytest.raises(
                TypeError, match=rf"^{name.split()[-1] if 'nll' in name else ''}.* got complex64 .*; \w+"
            ):
                function(*spoiled, **options)
    assert run(mse, np.ones(2, np.float32), np.abs(np.ones(2, np.complex64))) == 0  # the suggested repair


def test_options_of_other_libraries_are_answered_with_ours(sentences):
    z, y = jnp.zeros((2, 3)), jnp.array([2, 0])
    for option, repair in (
        ("weight", r"did you mean class_weights\?"),
        ("ignore_index", "write where=targets != "),
        ("reduction", "take the mean of the result"),
        ("mask", r"did you mean where\?"),
    ):
        with pytest.raises(
            TypeError, match=f"^softmax_cross_entropy expected one of its options, got '{option}'; .*{repair}"
        ):
            softmax_cross_entropy(z, y, **{option: None})


def test_scores_and_labels_given_to_cross_entropy(sentences):
    z, y = normal(84, 2, 3).astype(np.float32), np.array([2, 0], np.int32)
    for arguments in ((z, y), (y, z)):
        with pytest.raises(
            TypeError, match=r"^cross_entropy expected .*int32 \(2,\); .*softmax_cross_entropy\(logits, labels\)"
        ):
            cross_entropy(*arguments)
    repairs = lambda z, y: (softmax_cross_entropy(z, y), cross_entropy(one_hot(y, 3), softmax(z)))
    np.testing.assert_allclose(*run(repairs, z, y), rtol=1e-6)


def test_derivatives_by_temperatures_and_variances_at_the_ends_of_the_range():
    """In units of the temperature, or of the variance, they do not depend on it; squares of it leave the range."""
    z, t = np.float32([[1.0, 2.0, -1.0]]), np.float32([[0.5, 1.0, -2.0]])

    def distilled(unit):
        loss = lambda temperature, z: distillation_loss(z * unit, t * unit, temperature=temperature).sum()
        gradient = lambda *x: [one * scale for one, scale in zip(jax.grad(loss, (0, 1))(*x), (unit, 1), strict=True)]
        return jax.jvp(gradient, (unit, z), (unit, z))

    def likely(unit):
        loss = lambda p, v: gaussian_nll(p * unit, t * unit, variance=v).sum() / unit
        return jax.grad(loss)(z, unit * (1 + z**2))

    run = compiled(jax.vmap(distilled))
    expected = run(np.float32([1.0]))
    for unit in (1e-30, 1e-20, 1e20, 1e30):
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), run(np.float32([unit])), expected)
    # The second prediction has the similarity -1 to its target and 1 to the other: its loss is 2 / temperature.
    x, y = np.float32([[1], [1]]), np.float32([[1], [-1]])
    slope = compiled(jax.grad(lambda u: info_nce_loss(x, y, temperature=u).sum()))(np.float32(1e-19))
    np.testing.assert_allclose(slope * 1e-19, -2e19, rtol=1e-5)
    gradients = compiled(jax.vmap(likely))(np.float32([1e10, 1e19, 1e30]))
    np.testing.assert_allclose(gradients, np.stack([(z - t) / (1 + z**2)] * 3), rtol=1e-5)
