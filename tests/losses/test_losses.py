"""Losses: values of the lectures, values and gradients of other libraries, extreme inputs, rejected inputs."""

import functools
import itertools
import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import normal
from compiled import compiled
from derivatives import check_against_float64, up_to_second
from jax.experimental import checkify
from jax.test_util import check_grads
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
    multi_margin_loss,
    multilabel_margin_loss,
    nll,
    pairwise_distances,
    poisson_nll,
    sigmoid_cross_entropy,
    soft_threshold,
    softmax_cross_entropy,
    total_variation,
    total_variation_penalty,
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
    close = partial(np.testing.assert_allclose, rtol=3e-7)
    close(run(lp_distance, p, q, order=1), [0.8, 0.8])
    close(run(lp_distance, p, q, order=2), [0.5656854, 0.5656854])
    close(run(lp_distance, p, q, order=math.inf), [0.4, 0.4])
    close(run(total_variation, p, q), [0.4, 0.4])
    close(run(kl_divergence, p, q), [0.5108256, 0.3680642])
    close(run(kl_divergence, p, q, base=2)[0], 0.7369656)
    close(run(cross_entropy, p, q)[0], 1.2039728)
    close(0.5108256 + 0.6931472, 1.2039728)
    close(run(entropy, p)[0], 0.6931472)
    close(run(entropy, p, base=2)[0], 1.0)


def test_distances_of_binary_distributions():
    """P = (.3, .7) against Q = (q, 1 - q); in the binary case L1 = 2 TV and L2 = sqrt(2) TV."""
    p, q = pair(0.3, 0.3, 0.3), pair(0.1, 0.5, 0.9)
    table = {
        "tv": (run(total_variation, p, q), [0.2, 0.2, 0.6]),
        "l1": (run(lp_distance, p, q, order=1), [0.4, 0.4, 1.2]),
        "l2": (run(lp_distance, p, q, order=2), [0.2828427, 0.2828427, 0.8485281]),
        "kl": (run(kl_divergence, p, q), [0.1536636, 0.0822829, 1.0325535]),
        "reversed": (run(kl_divergence, q, p), [0.1163218, 0.0871767, 0.7941600]),
        "ce": (run(cross_entropy, p, q), [0.7645279, 0.6931472, 1.6434177]),
    }
    for value, expected in table.values():
        np.testing.assert_allclose(value, expected, rtol=1e-6)


@pytest.mark.parametrize("n", range(1, 9))
def test_total_variation_is_the_largest_difference_over_all_events(n):
    """Brute force over all 2^n sets; A = {P_i >= Q_i} and its complement attain the maximum."""
    p, q = dirichlet(n, 2, 5, n)
    with jax.enable_x64(True):
        value = np.asarray(run(total_variation, jnp.asarray(p), jnp.asarray(q)))
    events = np.array(list(itertools.product([0, 1], repeat=n)))
    gaps = np.abs((p - q) @ events.T)  # (5, 2^n)
    np.testing.assert_allclose(value, gaps.max(-1), rtol=1e-13, atol=1e-16)
    best = p >= q
    np.testing.assert_allclose(((p - q) * best).sum(-1), value, atol=1e-15)
    np.testing.assert_allclose(np.abs(((p - q) * ~best).sum(-1)), value, atol=1e-15)


def test_total_variation_of_the_pair_in_the_syllabus():
    random = np.random.default_rng(0)
    p, q = random.dirichlet(np.ones(6)), random.dirichlet(np.ones(6))
    with jax.enable_x64(True):
        np.testing.assert_allclose(run(total_variation, jnp.asarray(p), jnp.asarray(q)), 0.7480686952, atol=1e-10)


@pytest.mark.parametrize("order", [1, 1.5, 2, 3, 40, math.inf])
def test_lp_distance_is_a_metric(order):
    p, q, r = dirichlet(20, 3, 200, 5)
    with jax.enable_x64(True):
        d = partial(lp_distance, order=order)
        pq, qp, pr, rq, pp = run(d, np.stack([p, q, p, r, p]), np.stack([q, p, r, q, p]))
    np.testing.assert_allclose(pq, np.linalg.norm(p - q, order, axis=-1), rtol=1e-13)
    np.testing.assert_array_equal(pq, qp)
    np.testing.assert_array_equal(pp, 0)
    assert (pq > 0).all()
    assert (pq <= pr + rq + 1e-15).all()


def test_lp_distance_below_order_one_is_not_a_metric(sentences):
    """Negative control: the triangle inequality fails for order 1/2, so that order is rejected."""
    p, r, q = np.array([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0, 0.5, 0.5]])

    def d(a, b):
        return (np.abs(a - b) ** 0.5).sum() ** 2

    assert d(p, q) > 1.4 * (d(p, r) + d(r, q))
    for order in (0.5, 0, -1, math.nan):
        with pytest.raises(ValueError, match="expected order to be a number >= 1, got|order to be a number, got nan"):
            lp_distance(pair(0.5), pair(0.9), order)


def test_lp_distance_of_high_order_does_not_underflow():
    """0.001^40 underflows in float32, but the distance does not."""
    p, q = jnp.array([0.5, 0.3, 0.2]), jnp.array([0.501, 0.299, 0.2])
    expected = 0.001 * 2 ** (1 / 40)
    np.testing.assert_allclose(run(lp_distance, p, q, order=40), expected, rtol=1e-4)
    gradient = grad(partial(lp_distance, order=40))(p, q)
    np.testing.assert_allclose(gradient, np.array([-1, 1, 0]) * 2 ** (1 / 40 - 1), rtol=2e-3, atol=1e-12)
    assert np.float32(0.001) ** np.float32(40) == 0


@pytest.mark.parametrize("order", [1, 1.5, 2, 3.0, math.inf])
def test_gradient_of_the_distance_is_zero_at_equality(order):
    p = jnp.array([0.5, 0.25, 0.25])
    gradient = np.asarray(grad(partial(lp_distance, order=order))(p, p))
    if math.isinf(order):
        assert np.isfinite(gradient).all()
    else:
        np.testing.assert_array_equal(gradient, 0)
        forward = run(jax.jacfwd(partial(lp_distance, order=order)), p, p)
        np.testing.assert_array_equal(forward, 0)
    if order == 1:
        np.testing.assert_array_equal(grad(total_variation)(p, p), 0)


# Entropy, cross-entropy, Kullback-Leibler ----------------------------------------------------------------------------


def test_information_measures_against_scipy():
    p, q = dirichlet(21, 2, 50, 7)
    p[:, 2] = 0
    p /= p.sum(-1, keepdims=True)
    q[::2, 3] = p[::2, 3] = 0
    p, q = p / p.sum(-1, keepdims=True), q / q.sum(-1, keepdims=True)
    close = partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-15)
    with jax.enable_x64(True):
        a, b = jnp.asarray(p), jnp.asarray(q)
        for base in (math.e, 2, 10):
            close(run(entropy, a, base=base), stats.entropy(p, base=base, axis=-1))
            close(run(kl_divergence, a, b, base=base), stats.entropy(p, q, base=base, axis=-1))
            close(run(jensen_shannon, a, b, base=base), distance.jensenshannon(p, q, base, axis=-1) ** 2)
        close(run(cross_entropy, a, b), special.entr(p).sum(-1) + special.rel_entr(p, q).sum(-1))


def test_conventions_for_zero_probabilities():
    """0 log 0 = 0, 0 log(0/q) = 0 log(0/0) = 0, p log(p/0) = +infinity."""
    one, half, other = jnp.array([1.0, 0, 0]), jnp.array([0.5, 0.5, 0]), jnp.array([0.0, 1, 0])
    p = jnp.stack([one, one, half, one, half])
    q = jnp.stack([one, half, one, other, half])
    np.testing.assert_allclose(run(kl_divergence, p, q), [0, math.log(2), np.inf, np.inf, 0], atol=1e-7)
    np.testing.assert_allclose(run(cross_entropy, p, q), [0, math.log(2), np.inf, np.inf, math.log(2)], atol=1e-7)
    np.testing.assert_allclose(run(entropy, p), np.log([1, 1, 2, 1, 2]), atol=1e-7)
    midpoint = distance.jensenshannon(np.asarray(p), np.asarray(q), axis=-1) ** 2
    np.testing.assert_allclose(run(jensen_shannon, p, q), midpoint, atol=1e-7)
    assert midpoint[3] == pytest.approx(math.log(2))
    assert str(entropy(one)) == "0.0"  # not -0.0


def test_kl_is_infinite_if_and_only_if_q_is_zero_where_p_is_positive():
    random = np.random.default_rng(22)
    p, q = dirichlet(23, 2, 300, 4) * random.integers(0, 2, size=(2, 300, 4))
    keep = (p.sum(-1) > 0) & (q.sum(-1) > 0)
    p, q = p[keep], q[keep]
    p, q = (x / x.sum(-1, keepdims=True) for x in (p, q))
    value = np.asarray(run(kl_divergence, jnp.asarray(p, jnp.float32), jnp.asarray(q, jnp.float32)))
    excluded = ((p > 0) & (q == 0)).any(-1)
    np.testing.assert_array_equal(np.isinf(value), excluded)
    assert 50 < excluded.sum() < len(p) - 50
    assert not np.isnan(value).any()


def test_cross_entropy_takes_the_one_hot_label_first():
    """CE(onehot, q) = -log q_label; with the arguments swapped it is infinite."""
    label, q = one_hot(jnp.array(1), 3), jnp.array([0.2, 0.5, 0.3])
    np.testing.assert_allclose(run(cross_entropy, label, q), -math.log(0.5), rtol=1e-6)
    assert run(cross_entropy, q, label) == np.inf
    assert run(kl_divergence, q, label) == np.inf
    assert run(cross_entropy, label, label) == 0  # except for P = Q


def test_kl_is_nonnegative_and_zero_only_at_equality():
    p, q = dirichlet(24, 2, 500, 4)
    with jax.enable_x64(True):
        p, q = jnp.asarray(p), jnp.asarray(q)
        d = jax.jit(kl_divergence)
        assert (np.asarray(d(p, q)) > 1e-4).all()
        np.testing.assert_array_equal(d(p, p), 0)
        near = np.asarray(d(p, 0.999 * p + 0.001 * q))
        assert (near > 0).all()
        assert (near < 1e-3).all()


def test_kl_is_jointly_convex():
    """D(aP + (1-a)P' || aQ + (1-a)Q') <= a D(P||Q) + (1-a) D(P'||Q'); without the last prime it is false."""
    random = np.random.default_rng(25)
    p, p_, q, q_ = random.dirichlet(np.ones(4), size=(4, 1000))
    a = random.uniform(size=(1000, 1))
    with jax.enable_x64(True):
        d = jax.jit(kl_divergence)
        left = np.asarray(d(a * p + (1 - a) * p_, a * q + (1 - a) * q_))
        right = np.asarray(
            a[:, 0] * d(jnp.asarray(p), jnp.asarray(q)) + (1 - a[:, 0]) * d(jnp.asarray(p_), jnp.asarray(q_))
        )
        printed = np.asarray(
            a[:, 0] * d(jnp.asarray(p), jnp.asarray(q)) + (1 - a[:, 0]) * d(jnp.asarray(p_), jnp.asarray(q))
        )
    assert (left <= right + 1e-14).all()
    assert (left > printed + 1e-3).sum() > 10
    half, skew = pair(0.5), pair(0.9)
    np.testing.assert_allclose(run(kl_divergence, half, 0.5 * half + 0.5 * skew), 0.0871767, atol=1e-7)
    assert run(kl_divergence, half, half) == 0  # the right-hand side as printed, for lambda = 1/2
    np.testing.assert_allclose(0.5 * run(kl_divergence, half, skew), 0.2554128, atol=1e-7)


def test_kl_is_not_a_metric():
    """KL is not symmetric and violates the triangle inequality."""
    p, q, r = pair(0.5, 0.9, 0.7)
    np.testing.assert_allclose(run(kl_divergence, p, q) - run(kl_divergence, q, p), 0.5108256 - 0.3680642, atol=1e-6)
    detour = run(kl_divergence, p, r) + run(kl_divergence, r, q)
    np.testing.assert_allclose(detour, 0.2408403, atol=1e-6)
    assert run(kl_divergence, p, q) > detour + 0.2


def test_x_log_x_is_convex():
    """phi = x log x: phi' = log x + 1, phi'' = 1/x (printed as 1/x + 1)."""

    def phi(x):  # x log x as the negative entropy of (x, 1), since 1 log 1 = 0
        return -entropy(jnp.stack([x, 1.0]))

    x = np.array([0.25, 1.0, 2.0])
    with jax.enable_x64(True):
        first, second = run(jax.vmap(jax.value_and_grad(jax.grad(phi))), x)
    np.testing.assert_allclose(first, np.log(x) + 1, rtol=1e-14)
    np.testing.assert_allclose(second, 1 / x, rtol=1e-14)
    assert abs(second[2] - 1.5) > 0.9


def test_kl_in_bits_is_the_expected_excess_of_code_length():
    """The expected excess for code lengths -log2 q instead of -log2 p."""
    p, q = np.array([0.5, 0.5]), np.array([0.9, 0.1])
    symbols = np.random.default_rng(26).choice(2, p=p, size=200_000)
    excess = np.mean(np.log2(p[symbols]) - np.log2(q[symbols]))
    np.testing.assert_allclose(excess, 0.7369656, atol=0.01)
    np.testing.assert_allclose(kl_divergence(p.astype(np.float32), q.astype(np.float32), base=2), excess, atol=0.01)
    # a code with lengths 1, 2, 3, 3 is ideal for (1/2, 1/4, 1/8, 1/8)
    code, truth = np.float32([0.5, 0.25, 0.125, 0.125]), np.float32([0.1, 0.2, 0.3, 0.4])
    np.testing.assert_allclose(run(cross_entropy, truth, code, base=2), 0.1 * 1 + 0.2 * 2 + 0.7 * 3, rtol=1e-6)


def test_cross_entropy_is_kl_plus_entropy_and_smallest_at_p():
    p, q = dirichlet(27, 2, 200, 5)
    with jax.enable_x64(True):
        p, q = jnp.asarray(p), jnp.asarray(q)
        cross = jax.jit(cross_entropy)
        ce, h = np.asarray(cross(p, q)), np.asarray(run(entropy, p))
        np.testing.assert_allclose(ce, run(kl_divergence, p, q) + h, rtol=1e-13)
        np.testing.assert_allclose(cross(p, p), h, rtol=1e-13)
        assert (ce > h).all()
        assert (h > 0).all()
        np.testing.assert_allclose(run(entropy, jnp.full(5, 0.2)), math.log(5), rtol=1e-14)
        assert np.abs(ce - cross(q, p)).max() > 0.1  # not symmetric


def test_minimizing_cross_entropy_over_q_finds_p():
    p = jnp.array([0.5, 0.3, 0.15, 0.05])

    def step(z, _):
        return z - 2.0 * grad(lambda z: softmax_cross_entropy(z, p))(z), None

    z = jax.jit(lambda z: jax.lax.scan(step, z, None, length=500)[0])(jnp.zeros(4))
    np.testing.assert_allclose(softmax(z), p, atol=1e-6)


def test_kl_and_cross_entropy_have_the_same_gradient_in_q():
    """Diehl, Remark 1.10: for fixed P, minimizing KL and cross-entropy is equivalent."""
    p, z = dirichlet(28, 5).astype(np.float32), normal(29, 5).astype(np.float32)

    @compiled
    def derived(z):
        gradients = [jax.grad(lambda z, f=f: f(p, softmax(z)))(z) for f in (kl_divergence, cross_entropy)]
        return softmax(z), jax.grad(kl_divergence, 1)(p, softmax(z)), gradients

    q, of_q, gradients = derived(z)
    np.testing.assert_allclose(gradients[0], gradients[1], rtol=1e-6)
    np.testing.assert_allclose(gradients[0], q - p, atol=2e-7)
    np.testing.assert_allclose(of_q, -p / q, rtol=1e-5)


def test_gradients_at_zero_probabilities():
    """Gradients are finite for q > 0; the infinite slope of x log x at 0 is replaced by 0."""
    p, q, zero = np.float32([0, 0.25, 0.75]), np.float32([0.5, 0.25, 0.25]), np.float32([0, 0.5, 0.5])
    both = partial(jax.grad, argnums=(0, 1))

    @compiled
    def derived(p, q, zero, z):
        at_zero = [both(loss)(zero, zero) for loss in (kl_divergence, cross_entropy, jensen_shannon)]
        of_scores = entropy, lambda p: kl_divergence(p, q), lambda p: jensen_shannon(p, q)
        saturated = [jax.grad(lambda z, f=f: f(softmax(z)))(z) for f in of_scores]
        infinite = jax.grad(cross_entropy, 1)(q, zero)
        return both(kl_divergence)(p, q), both(cross_entropy)(p, q), jax.grad(entropy)(p), at_zero, saturated, infinite

    z = np.float32([1e4, 0, -1e4])  # its softmax rounds to (1, 0, 0)
    of_kl, of_ce, of_entropy, at_zero, saturated, infinite = derived(p, q, zero, z)
    np.testing.assert_allclose(of_kl[1], [0, -1, -3], rtol=1e-6)
    np.testing.assert_allclose(of_ce[1], [0, -1, -3], rtol=1e-6)
    np.testing.assert_allclose(of_ce[0], -np.log(q), rtol=1e-6)
    np.testing.assert_allclose(of_kl[0], [-math.log(0.5), 1.0, 1 + math.log(3)], rtol=1e-6)
    np.testing.assert_allclose(of_entropy, [0, -1 - math.log(0.25), -1 - math.log(0.75)], rtol=1e-6)
    for gradient in itertools.chain(*at_zero):
        assert np.isfinite(gradient).all()
        assert gradient[0] == 0
    assert infinite[0] == -np.inf  # the slope is infinite
    np.testing.assert_array_equal(saturated, 0)


def from_scores(p, z):
    """The divergences of p and softmax(z) in terms of log_softmax, whose derivatives cannot overflow in float64."""
    log_q, positive = jax.nn.log_softmax(z), p > 0
    q, log_p = jnp.exp(log_q), jnp.where(positive, jnp.log(jnp.where(positive, p, 1)), -1e5)
    log_m = jnp.logaddexp(log_p, log_q) - math.log(2)
    of_p = jnp.sum(p * (log_p - log_m))
    cross = -jnp.sum(p * log_q)
    return cross + jnp.sum(p * log_p), 0.5 * (of_p + jnp.sum(q * (log_q - log_m))), cross, -jnp.sum(q * log_q)


def test_second_derivatives_from_scores_far_apart():
    """Probabilities from 1e-30 to 1, whose squares are not representable; the Hessian has none."""
    z = np.float32([[0, -68, -35, -3], [-45, 0, -65, -22], [-50, -49, 0, -48], [-0.3, 0, -1, -61]])
    one_hot, of_scores, with_zeros = np.eye(4)[[1, 0, 3, 2]], special.softmax(z[::-1, ::-1], -1), [[0.5, 0, 0.5, 0]] * 4
    p, z = np.concatenate([one_hot, of_scores, with_zeros]).astype(np.float32), np.tile(z, (3, 1))
    losses = kl_divergence, jensen_shannon, cross_entropy, lambda p, q: entropy(q)
    ours = [lambda p, z, f=f: up_to_second(lambda z: f(p, jax.nn.softmax(z)))(z) for f in losses]
    plain = [lambda p, z, i=i: up_to_second(lambda z: from_scores(p, z)[i])(z) for i in range(len(losses))]
    found = compiled(jax.vmap(lambda p, z: [f(p, z) for f in ours]))(p, z)
    with jax.enable_x64(True):
        expected = compiled(jax.vmap(lambda p, z: [f(p, z) for f in plain]))(np.float64(p), np.float64(z))
    for a, b in zip(found, expected, strict=True):
        for ours, theirs in zip(a, b, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=2e-6)


def test_second_derivatives_of_distances_where_entries_are_equal():
    """Of the Euclidean distance (1 - n n^T) / d; of others infinite or 0, for which 0 is used."""
    p, q = np.float32([0.5, 0.25, 0.25]), np.float32([0.5, 0.5, 0])
    orders = 1, 1.5, 2, 3

    @compiled
    def hessians(p, q):
        return [jax.hessian(lambda p, r=order: lp_distance(p, q, r))(p) for order in orders]

    found = dict(zip(orders, hessians(p, q), strict=True))
    e = p - q
    d = np.linalg.norm(e)
    np.testing.assert_allclose(found[2], (np.eye(3) - np.outer(e, e) / d**2) / d, rtol=1e-5, atol=1e-6)
    for order in orders:
        assert np.isfinite(found[order]).all()
    for order in (1, 1.5, 3):
        np.testing.assert_array_equal(found[order][0], 0)
    assert all(np.isfinite(h).all() for h in hessians(p, p))


def test_means_and_likelihoods_with_tiny_weights_and_variances():
    """The weights and variances are 1e-30: their squares, and products with values of this size, are 0 in float32."""
    values, weights = normal(60, 5), np.abs(normal(61, 5)) + 0.1

    def mean(values, weights):
        return jnp.sum(values * weights) / jnp.sum(weights)

    def derived(f, scale):
        return up_to_second(lambda x: f(scale * x[0], scale * x[1]) / scale)

    def likelihood(error, log_variance):
        return gaussian_nll(error, jnp.zeros_like(error), variance=jnp.exp(log_variance))

    x = np.stack([values, weights]).astype(np.float32)
    found = compiled(derived(weighted_mean, np.float32(1e-30)))(x)
    y = np.float32([1e-15, 2e-15, -1e-15])
    logs = np.log(np.float32([1e-30, 2e-30, 4e-30]))
    of_variance = compiled(up_to_second(lambda s: likelihood(y, s)))(logs)
    with jax.enable_x64(True):
        expected = compiled(derived(mean, 1.0))(x.astype(np.float64))
        error = (np.float64(y) ** 2) * np.exp(-np.float64(logs))
    check_against_float64([a[None] for a in found], [a[None] for a in expected], 1e-5)
    np.testing.assert_allclose(of_variance[1], 0.5 * (1 - error), rtol=1e-4, atol=1e-5)
    for hessian in of_variance[2:]:
        np.testing.assert_allclose(hessian, np.diag(0.5 * error), rtol=1e-4, atol=1e-5)


def test_gradient_where_the_label_has_a_score_of_minus_infinity():
    """The loss is infinite; the gradient is softmax - target, as elsewhere."""
    z = jnp.array([-jnp.inf, 0.0, 1.0])
    value, gradient = compiled(jax.value_and_grad(lambda z: softmax_cross_entropy(z, jnp.array(0))))(z)
    assert value == np.inf
    np.testing.assert_allclose(gradient, [-1, 0.26894143, 0.7310586], rtol=1e-6)


def test_jensen_shannon_is_symmetric_and_its_square_root_is_a_metric():
    p, q, r = dirichlet(30, 3, 300, 4)
    with jax.enable_x64(True):
        pq, qp, pr, rq = np.sqrt(run(jensen_shannon, np.stack([p, q, p, r]), np.stack([q, p, r, q])))
    np.testing.assert_allclose(pq, qp, rtol=1e-12)
    assert (pq <= pr + rq).all()
    assert (pq**2 <= math.log(2)).all()


def test_derivatives_of_the_distances():
    """Compare with finite differences, for both arguments and both AD modes."""
    with jax.enable_x64(True):
        p, q = 0.9 * dirichlet(31, 2, 3, 4) + 0.025
        losses = kl_divergence, cross_entropy, jensen_shannon, partial(lp_distance, order=3), total_variation

        def together(p, q):
            return [loss(p, q) for loss in losses] + [entropy(p)]

        check_grads(jax.jit(together), (p, q), order=1, atol=1e-5, rtol=1e-5, eps=1e-6)


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


def test_jensen_gap_rejects_wrong_arguments(sentences):
    with pytest.raises(ValueError, match="points .* and weights .* with the same size of n"):
        jensen_gap(jnp.exp, jnp.zeros(3), jnp.array([0.5, 0.5]))
    with pytest.raises(ValueError, match="probability distributions in weights"):
        jensen_gap(jnp.exp, jnp.zeros(2), jnp.array([0.5, 0.6]))
    with pytest.raises(ValueError, match=r"a function from one point to one number, got float32 \(3,\); sum"):
        jensen_gap(jnp.exp, jnp.zeros((2, 3)), jnp.array([0.5, 0.5]))


# Losses of scores ----------------------------------------------------------------------------------------------------


def test_cross_entropy_of_the_scores_in_the_lectures():
    """h = (.1, -.8, 1.4, 1.1): 2.95 and .75 for the lecture's labels 2 and 3, counted from 1."""
    h = np.tile(H, (4, 1)).astype(np.float32)
    labels = np.array([1, 2, 3, 4]) - 1
    np.testing.assert_allclose(
        run(softmax_cross_entropy, h, labels), [2.053373, 2.953373, 0.753373, 1.053373], atol=1e-6
    )
    np.testing.assert_allclose(np.exp(H).sum(), 8.6138659, atol=1e-7)
    np.testing.assert_allclose(2.1533732 - H, run(softmax_cross_entropy, h, labels), atol=1e-6)


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


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint32, np.int32])
def test_labels_of_any_integer_dtype(dtype):
    logits = jnp.asarray(normal(37, 2, 300), jnp.float32)
    labels = jnp.asarray(np.array([7, 120]).astype(dtype))
    expected = -special.log_softmax(np.asarray(logits, np.float64), axis=-1)[[0, 1], [7, 120]]
    np.testing.assert_allclose(run(softmax_cross_entropy, logits, labels), expected, rtol=1e-6)


def test_gradient_is_softmax_minus_target():
    z, t = H.astype(np.float32), np.float32([0.1, 0.2, 0.3, 0.4])
    gradient = grad(softmax_cross_entropy)(z, np.array(1))
    np.testing.assert_allclose(gradient, [0.1283014, -0.9478365, 0.4707758, 0.3487593], atol=1e-7)
    assert abs(gradient.sum()) < 1e-6
    by_scores, by_targets = grad(softmax_cross_entropy, (0, 1))(z, t)
    np.testing.assert_allclose(by_scores, special.softmax(H) - t, atol=2e-7)
    np.testing.assert_allclose(by_targets, -special.log_softmax(H), rtol=1e-6)


def test_derivatives_from_scores():
    with jax.enable_x64(True):
        z, y, t = normal(38, 3, 4), np.array([0, 3, 1]), dirichlet(39, 3, 4)
        pairs = (softmax_cross_entropy, t), (sigmoid_cross_entropy, t), (distillation_loss, 2 * z[::-1])
        others = tuple(other for _, other in pairs)

        def together(z, others):
            by_both = [loss(z, other) for (loss, _), other in zip(pairs, others, strict=True)]
            return softmax_cross_entropy(z, y), by_both

        check_grads(jax.jit(together), (z, others), order=1, atol=1e-6, rtol=1e-6)
        p = special.softmax(z[0])
        hessians = compiled(lambda z: [jax.hessian(softmax_cross_entropy)(z, target) for target in (y[0], t[0])])
        for hessian in hessians(z[0]):
            np.testing.assert_allclose(hessian, np.diag(p) - np.outer(p, p), atol=1e-15)


@pytest.mark.parametrize("kind", ["labels", "distributions"])
def test_extreme_scores(kind):
    """Losses are exact at +-1e4, where exp overflows, and as precise far from 0 as near 0."""

    def targets(*labels):
        labels = np.array(labels)
        return labels if kind == "labels" else one_hot(labels, 3)

    z = np.float32([[1e4, -1e4, 0], [1e4, -1e4, 0], [-1e4, -1e4, -1e4], [1e4, 1e4, 1e4]])
    value, gradient = value_and_gradient(softmax_cross_entropy)(z, targets(0, 1, 2, 0))
    np.testing.assert_allclose(value, [0, 2e4, math.log(3), math.log(3)], rtol=1e-6)
    third = np.array([1, 1, 1]) / 3
    expected = [[0, 0, 0], [1, -1, 0], third - [0, 0, 1], third - [1, 0, 0]]
    np.testing.assert_allclose(gradient, expected, atol=1e-6)

    near, far = np.array([0.0, 1.0, 2.0], np.float32), np.array([10000.0, 10001.0, 10002.0], np.float32)
    np.testing.assert_allclose(run(softmax_cross_entropy, far[None], targets(2)), 0.4076060, atol=1e-7)
    naive = run(jax.nn.logsumexp, far) - far[2]  # negative control: the difference of two large numbers
    assert abs(naive - 0.4076060) > 1e-5 > abs(run(jax.nn.logsumexp, near) - near[2] - 0.4076060)


def test_excluded_classes():
    """A score of -inf excludes its class; if that class is the label, the loss is infinite."""
    z, rest = np.float32([0.5, -np.inf, 1]), np.array([0.5, 1.0])
    t, p, expected = np.float32([0.25, 0, 0.75]), special.softmax(rest), -special.log_softmax(rest)
    mean = 0.25 * expected[0] + 0.75 * expected[1]
    for target, value, wanted in ((np.array(2), expected[1], p - [0, 1]), (t, mean, p - [0.25, 0.75])):
        found, gradient = value_and_gradient(softmax_cross_entropy)(z, target)
        np.testing.assert_allclose(found, value, rtol=1e-6)
        np.testing.assert_allclose(gradient, [wanted[0], 0, wanted[1]], atol=1e-7)
    assert np.isfinite(grad(softmax_cross_entropy, 1)(z, t)).all()
    assert run(softmax_cross_entropy, z, np.array(1)) == np.inf
    assert run(softmax_cross_entropy, z, np.float32([0, 0.5, 0.5])) == np.inf


def test_loss_of_a_correct_prediction_depends_on_the_margin():
    """The loss is at most log(1 + (C-1) exp(-margin)), not about 0; it exceeds max z - z_y by up to log C."""
    z = np.array([[1.2, 1, 0.9], [3, 1, 0], [10, 0, 0], [0, 0, 0]])
    with jax.enable_x64(True):
        loss = run(softmax_cross_entropy, z, np.zeros(4, np.int32))
    np.testing.assert_allclose(loss, [0.939831, 0.169846, 9.07957e-5, 1.098612], rtol=2e-6)
    margin = z[:, 0] - z[:, 1:].max(-1)
    assert (loss <= np.log(1 + 2 * np.exp(-margin)) * (1 + 1e-12)).all()
    z = normal(40, 1000, 3).astype(np.float32) * 4
    loss = run(softmax_cross_entropy, z, np.zeros(1000, np.int32))
    rough = z.max(-1) - z[:, 0]
    assert (loss >= rough - 1e-5).all()
    assert (loss <= rough + math.log(3) + 1e-5).all()


def test_nll_in_bits_bounds_the_zero_one_loss_and_nll_in_nats_does_not():
    z = np.random.default_rng(41).normal(size=(100_000, 3)).astype(np.float32)
    labels = np.zeros(100_000, np.int32)
    loss = run(softmax_cross_entropy, z, labels)
    wrong = run(zero_one_loss, z.argmax(-1).astype(np.int32), labels)
    assert 0.6 < wrong.mean() < 0.7
    assert (loss / math.log(2) >= wrong).all()
    assert 100 < (loss < wrong).sum() < 20_000  # the printed bound fails
    close, tie = run(softmax_cross_entropy, np.float32([[0, 0.1], [0, 0]]), np.array([0, 0]))
    np.testing.assert_allclose(close, 0.744397, atol=1e-6)
    np.testing.assert_allclose(close / math.log(2), 1.073937, atol=1e-6)
    np.testing.assert_allclose(tie / math.log(2), 1, rtol=1e-6)  # equality


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


def test_cross_entropy_of_a_point_mass_is_zero_or_infinite():
    """The cross-entropy of a point mass differs from the 0-1 loss, which is 1 - P(Y' = y)."""
    prediction, labels = one_hot(np.array([1, 1]), 3), np.array([1, 2])
    np.testing.assert_array_equal(run(lambda p, y: nll(jnp.log(p), y), prediction, labels), [0, np.inf])
    wrong = run(zero_one_loss, prediction.argmax(-1), labels)
    np.testing.assert_array_equal(wrong, [0, 1])
    np.testing.assert_array_equal(wrong, 1 - prediction[np.arange(2), labels])


def test_probabilities_are_not_scores():
    """The loss includes the softmax: probabilities as scores give another value; nll rejects scores."""
    h, y = H.astype(np.float32), np.array(2)
    assert abs(run(softmax_cross_entropy, softmax(h), y) - run(softmax_cross_entropy, h, y)) > 0.3
    with pytest.raises(ValueError, match=r"nll expected log-probabilities, .* got sums from 8.61.*log_softmax"):
        nll(h, y)
    np.testing.assert_allclose(nll(log_softmax(h), y), 0.753373, atol=1e-6)


def test_label_smoothing_numbers():
    """CE .8483732 and KL .4995928 for class 2 of 4 and smoothing 0.1."""
    with jax.enable_x64(True):
        targets = smooth_labels(one_hot(jnp.array(2), 4, dtype=jnp.float64), 0.1)
        loss = run(softmax_cross_entropy, jnp.asarray(H), targets)
        np.testing.assert_allclose(loss, 0.8483732, atol=1e-7)
        np.testing.assert_allclose(loss - run(entropy, targets), 0.4995928, atol=1e-7)
        np.testing.assert_allclose(run(kl_divergence, targets, run(softmax, jnp.asarray(H))), 0.4995928, atol=1e-7)


def test_distillation():
    """The gradient is (softmax(z_s/T) - softmax(z_t/T)) / T: no factor T^2."""
    soft = {
        1: [0.1283014, 0.0521635, 0.4707758, 0.3487593],
        2: [0.1922378, 0.1225762, 0.3682394, 0.3169465],
        10: [0.2405043, 0.2198043, 0.2738931, 0.2657983],
    }
    student = np.array([0.3, 0.2, -0.5, 1.0])
    for temperature, teacher in soft.items():
        log_q = special.log_softmax(student / temperature)
        with jax.enable_x64(True):
            loss_of = partial(distillation_loss, temperature=temperature)
            loss, gradient = jax.jit(jax.value_and_grad(loss_of))(jnp.asarray(student), jnp.asarray(H))
        np.testing.assert_allclose(special.softmax(H / temperature), teacher, atol=1e-7)
        np.testing.assert_allclose(loss, -(teacher * log_q).sum(), atol=1e-6)
        np.testing.assert_allclose(gradient, (np.exp(log_q) - teacher) / temperature, atol=1e-7)
    z = H.astype(np.float32)
    np.testing.assert_allclose(run(distillation_loss, z, z), stats.entropy(soft[1]), atol=1e-6)
    cooled = jax.jit(distillation_loss)(z, z[::-1], temperature=np.float32(4.0))  # a temperature that is traced
    np.testing.assert_allclose(cooled, run(distillation_loss, z, z[::-1], temperature=4), rtol=1e-6)


# Binary --------------------------------------------------------------------------------------------------------------


def test_sigmoid_cross_entropy_of_a_half():
    """z = .5, y = 0: loss .9740770, gradient sigma(z) - y = .6224593."""
    value, gradient = jax.jit(jax.value_and_grad(sigmoid_cross_entropy))(jnp.float32(0.5), jnp.float32(0))
    np.testing.assert_allclose(value, 0.9740770, atol=1e-7)
    np.testing.assert_allclose(gradient, 0.6224593, atol=1e-7)


def test_sigmoid_cross_entropy_is_softmax_cross_entropy_with_a_zero_score():
    z, y = normal(43, 5) * 4, np.random.default_rng(44).uniform(size=5)
    with jax.enable_x64(True):
        binary = run(sigmoid_cross_entropy, z, y)
        both = run(softmax_cross_entropy, np.stack([np.zeros(5), z], -1), np.stack([1 - y, y], -1))
    np.testing.assert_allclose(binary, both, rtol=1e-13)


def test_sigmoid_cross_entropy_at_extreme_scores():
    z = np.float32([1e4, -1e4, 1e4, -1e4, 20, -20, 1e4])
    y = np.float32([1, 0, 0, 1, 1, 0, 0.25])
    small = math.log1p(math.exp(-20))
    value, gradient = value_and_gradient(sigmoid_cross_entropy)(z, y)
    np.testing.assert_allclose(value, [0, 0, 1e4, 1e4, small, small, 7500], rtol=1e-6)
    np.testing.assert_allclose(gradient, [0, 0, 1, -1, 0, 0, 0.75], atol=1e-7)


def test_sigmoid_cross_entropy_has_exact_derivatives_at_zero():
    """The derivatives are sigma - y, sigma (1 - sigma) and 0, although max and abs both have a kink at 0."""

    def kinked(z, y):
        return jnp.maximum(z, 0) - z * y + jnp.log1p(jnp.exp(-jnp.abs(z)))

    def derivatives(loss):
        first = jax.grad(loss)
        second = jax.grad(first)
        return run(lambda *x: [f(*x) for f in (first, second, jax.grad(second))], np.array(0.0), np.array(0.75))

    with jax.enable_x64(True):
        np.testing.assert_allclose(derivatives(sigmoid_cross_entropy), [-0.25, 0.25, 0], atol=1e-15)
        assert np.abs(np.array(derivatives(kinked)) - [-0.25, 0.25, 0]).max() > 0.2  # negative control


def test_gradient_of_the_squared_error_vanishes_for_a_saturated_sigmoid():
    """2 (sigma - y)(1 - sigma) sigma has the maximum 8/27 at z = -log 2; the logistic loss has sigma - y."""

    def squared(z):
        return mse(jax.nn.sigmoid(z)[..., None], jnp.ones_like(z)[..., None])

    def logistic(z):
        return sigmoid_cross_entropy(z, jnp.ones_like(z))

    with jax.enable_x64(True):
        slope = compiled(lambda z: [jax.grad(lambda z, f=f: f(z).sum())(z) for f in (squared, logistic)])
        grid = np.linspace(-10, 10, 200_001)
        by_square, by_logistic = slope(grid)
        at = [0, 50_000, 100_000, 150_000]  # -10, -5, 0 and 5
        np.testing.assert_allclose(by_square[at], [-9.07875e-5, -0.0132071, -0.25, -8.89889e-5], rtol=5e-6)
        np.testing.assert_allclose(by_logistic[at[:3]], [-0.99995460, -0.9933071, -0.5], rtol=5e-8)
        steep = np.abs(by_square)
        np.testing.assert_allclose(steep.max(), 8 / 27, rtol=1e-8)
        np.testing.assert_allclose(grid[steep.argmax()], -math.log(2), atol=2e-4)

        def train(loss):
            step = lambda z, _: (z - jax.grad(loss)(z), None)
            return jax.lax.scan(step, jnp.array(-10.0), None, length=100)[0]

        stuck, moved = np.asarray(jax.jit(lambda: jnp.stack([train(squared), train(logistic)]))())
    assert stuck < -9.9
    assert moved > 3


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


def test_best_constants_are_mean_and_median():
    data = np.random.default_rng(45).exponential(size=101).astype(np.float32)
    constants = np.linspace(0, 3, 3001).astype(np.float32)
    shape = np.zeros((3001, 101), np.float32)
    squared, absolute = (run(loss, constants[:, None] + shape, data + shape) for loss in (mse, mae))
    np.testing.assert_allclose(constants[np.argmin(squared)], data.mean(), atol=1e-3)
    np.testing.assert_allclose(constants[np.argmin(absolute)], np.median(data), atol=1e-3)
    assert abs(data.mean() - np.median(data)) > 0.1


def test_gaussian_nll():
    """-log N(y; f, I) = 1/2 |y - f|^2 + (D/2) log 2 pi differs from the squared error and from its mean."""
    f, y = np.float32([0.5, 1]), np.float32([1, 2])
    np.testing.assert_allclose(run(gaussian_nll, f, y), 2.462877, atol=1e-6)
    np.testing.assert_allclose(2 * run(mse, f, y), 1.25, rtol=1e-6)
    f, y = normal(46, 2, 10, 3)
    expected = [-stats.multivariate_normal.logpdf(b, a, np.eye(3)) for a, b in zip(f, y, strict=True)]
    with jax.enable_x64(True):
        value, slope = value_and_gradient(gaussian_nll)(f, y)
        error = run(mse, f, y)
    np.testing.assert_allclose(value, expected, rtol=1e-13)
    np.testing.assert_allclose(value - 1.5 * error, np.full(10, 1.5 * math.log(2 * math.pi)), rtol=1e-13)
    np.testing.assert_allclose(slope, f - y, rtol=1e-13)


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
    F = torch.nn.functional
    z, w, t = normal(47, 5, 7) * 3, normal(48, 5, 7), dirichlet(49, 5, 7)
    bits = np.random.default_rng(50).integers(0, 2, size=(5, 7)).astype(np.float64)
    y = np.random.default_rng(51).integers(0, 7, size=5)
    ty, none = torch.tensor(y), {"reduction": "none"}
    with jax.enable_x64(True):
        pairs = {
            "labels": (lambda z: softmax_cross_entropy(z, jnp.asarray(y)), lambda z: F.cross_entropy(z, ty, **none)),
            "soft": (
                lambda z: softmax_cross_entropy(z, jnp.asarray(t)),
                lambda z: F.cross_entropy(z, torch.tensor(t), **none),
            ),
            "smoothed": (
                lambda z: softmax_cross_entropy(z, smooth_labels(one_hot(jnp.asarray(y), 7, dtype=jnp.float64), 0.1)),
                lambda z: F.cross_entropy(z, ty, label_smoothing=0.1, **none),
            ),
            "nll": (
                lambda z: nll(log_softmax(z), jnp.asarray(y)),
                lambda z: F.nll_loss(torch.log_softmax(z, -1), ty, **none),
            ),
            "kl": (
                lambda z: kl_divergence(jnp.asarray(t), softmax(z)),
                lambda z: F.kl_div(torch.log_softmax(z, -1), torch.tensor(t), **none).sum(-1),
            ),
            "entropy": (
                lambda z: entropy(softmax(z)),
                lambda z: torch.distributions.Categorical(logits=z).entropy(),
            ),
            "binary": (
                lambda z: sigmoid_cross_entropy(z, jnp.asarray(bits)),
                lambda z: F.binary_cross_entropy_with_logits(z, torch.tensor(bits), **none),
            ),
            "mse": (lambda z: mse(z, jnp.asarray(w)), lambda z: F.mse_loss(z, torch.tensor(w), **none).mean(-1)),
            "mae": (lambda z: mae(z, jnp.asarray(w)), lambda z: F.l1_loss(z, torch.tensor(w), **none).mean(-1)),
            "huber_loss": (
                lambda z: huber_loss(z, jnp.asarray(w), delta=0.7),
                lambda z: F.huber_loss(z, torch.tensor(w), delta=0.7, **none).mean(-1),
            ),
            "gaussian": (
                lambda z: gaussian_nll(z, jnp.asarray(w)),
                lambda z: F.gaussian_nll_loss(z, torch.tensor(w), torch.ones(5, 7), full=True, **none).sum(-1),
            ),
            "distillation": (
                lambda z: distillation_loss(z, jnp.asarray(w), temperature=3.0),
                lambda z: F.cross_entropy(z / 3, torch.softmax(torch.tensor(w) / 3, -1), **none),
            ),
        }
        for name, (ours, theirs) in pairs.items():
            leaf = torch.tensor(z, requires_grad=True)
            expected = theirs(leaf)
            expected.sum().backward()

            value, gradient = value_and_gradient(ours)(z)
            np.testing.assert_allclose(value, expected.detach().numpy(), rtol=1e-11, atol=1e-14, err_msg=name)
            np.testing.assert_allclose(gradient, leaf.grad.numpy(), rtol=1e-10, atol=1e-13, err_msg=name)


def test_margins_and_angles_against_torch(torch):
    F, none = torch.nn.functional, {"reduction": "none"}
    z, w, weights = normal(49, 5, 7), normal(48, 5, 7), np.random.default_rng(50).uniform(1, 2, 7)
    y, holds = np.array([0, 6, 3, 3, 1]), w > 0
    lists = np.array([[*np.flatnonzero(row), *[-1] * (7 - row.sum())] for row in holds])
    signs, tw = torch.tensor([1, -1, -1, 1, -1]), torch.tensor(w)
    pairs = {
        "multi_margin": (
            lambda z: multi_margin_loss(z, jnp.asarray(y), power=2, margin=0.7, class_weights=jnp.asarray(weights)),
            lambda z: F.multi_margin_loss(z, torch.tensor(y), 2, 0.7, torch.tensor(weights), **none),
        ),
        "multilabel": (
            lambda z: multilabel_margin_loss(z, jnp.asarray(holds)),
            lambda z: F.multilabel_margin_loss(z, torch.tensor(lists), **none),
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


def test_margin_losses_of_infinite_scores():
    """A class that is excluded by -inf adds nothing; no other class is near a label of infinite score."""
    scores = np.float32([[np.inf, 0, 1], [1, -np.inf, 1]])
    np.testing.assert_allclose(run(multi_margin_loss, scores, np.array([0, 0])), [0, 1 / 3], rtol=1e-6)
    holds = np.array([[True, False, False]] * 2)
    np.testing.assert_allclose(run(multilabel_margin_loss, scores, holds), [0, 1 / 3], rtol=1e-6)


def test_pairwise_distances_of_far_and_many_points(monkeypatch):
    """Exact far from the origin, where the expansion of squares loses all digits; and in blocks as at once."""
    x = np.float32(2.0**20) + np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    y = x[:, :2] + 1
    expected = distance.cdist(x[1], y[1])
    both = lambda: jax.jit(jax.value_and_grad(lambda x: pairwise_distances(x, jnp.asarray(y)).sum()))(x)
    np.testing.assert_allclose(run(pairwise_distances, x, y)[1], expected, rtol=1e-7)
    value, slope = both()
    monkeypatch.setattr("jaxblocks.losses.distances._MOST_AT_ONCE", 16)
    jax.clear_caches()
    in_blocks, its_slope = both()
    assert "scan" in str(jax.make_jaxpr(pairwise_distances)(x, y))
    np.testing.assert_allclose([in_blocks], [value], rtol=1e-7)
    np.testing.assert_allclose(its_slope, slope, rtol=1e-6)


def test_means_are_the_default_reductions_of_torch(torch):
    """torch.nn.MSELoss and CrossEntropyLoss reduce by the mean over everything."""
    z, w = normal(52, 5, 7), normal(53, 5, 7)
    y = np.array([0, 6, 3, 3, 1])
    with jax.enable_x64(True):
        ours = run(mse, z, w).mean(), run(softmax_cross_entropy, z, y).mean()
    z, w, y = torch.tensor(z), torch.tensor(w), torch.tensor(y)
    np.testing.assert_allclose(ours, [torch.nn.MSELoss()(z, w), torch.nn.CrossEntropyLoss()(z, y)], rtol=1e-13)


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
    with pytest.raises(ValueError, match=r"threshold >= 0, got -0.1"):
        soft_threshold(x, -0.1)


def test_soft_threshold_is_the_proximal_step_of_l1():
    """It minimizes 1/2 (u - x)^2 + t |u| over u."""
    x = np.array([-1.2, -0.3, 0.05, 0.7])
    u = np.linspace(-2, 2, 40_001)
    objective = 0.5 * (u - x[:, None]) ** 2 + 0.3 * np.abs(u)
    with jax.enable_x64(True):
        np.testing.assert_allclose(run(soft_threshold, x, 0.3), u[objective.argmin(-1)], atol=1e-4)


def test_lasso_of_an_orthogonal_design_is_a_soft_threshold():
    """With X^T X = N I, the minimizer of |y - X w|^2 / (2N) + lambda |w|_1 is S_lambda(X^T y / N)."""
    n, d, penalty = 40, 5, 0.4
    x = np.linalg.qr(normal(54, n, d))[0] * math.sqrt(n)
    y = x @ np.array([2.0, -1.0, 0.2, 0.0, 0.5]) + 0.3 * normal(55, n)
    with jax.enable_x64(True):
        w = run(soft_threshold, x.T @ y / n, penalty)

        def objective(w):
            return 0.5 * mse(x @ w, y) + penalty * l1_penalty(w)

        best, *nearby = run(jax.vmap(objective), np.concatenate([w[None], w + 0.01 * normal(56, 500, d)]))
    assert (w == 0).sum() >= 2
    assert min(nearby) > best


def test_ridge_regression_has_its_closed_form():
    """The gradient of mse + lambda l2 vanishes at (X^T X + N lambda I)^{-1} X^T y."""
    x, y = normal(57, 30, 4), normal(58, 30)
    w = np.linalg.solve(x.T @ x + 30 * 0.3 * np.eye(4), x.T @ y)
    with jax.enable_x64(True):
        slope = grad(lambda w: mse(x @ w, y) + 0.3 * l2_penalty(w))(w)
    np.testing.assert_allclose(slope, 0, atol=1e-14)


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
    "multi_margin_loss": Row(
        partial(multi_margin_loss, power=2),
        (Z, Y),
        lambda z, y: ((np.maximum(1 + z - pick(z, y)[..., None], 0) ** 2).sum(-1) - 1) / 4,
    ),
    "multilabel_margin_loss": Row(
        lambda z, w, **options: multilabel_margin_loss(z, w > 0, **options),
        (Z, W),
        lambda z, w: sum(
            (w[..., j] > 0) * (w[..., i] <= 0) * np.maximum(1 + z[..., i] - z[..., j], 0) / 4
            for i in range(4)
            for j in range(4)
        ),
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
PAIRS = [name for name, row in LOSSES.items() if len(row.arguments) == 2]
every_loss = pytest.mark.parametrize("name", LOSSES)


def cast(arguments, dtype):
    return tuple(x if x.dtype == np.int32 else x.astype(dtype) for x in arguments)


def values_of_all(form, dtype):
    """``form(loss, *arguments)`` of each loss, from one program."""

    def values(arguments):
        return {name: form(LOSSES[name].loss, *x) for name, x in arguments.items()}

    return jax.jit(values)({name: cast(row.arguments, dtype) for name, row in LOSSES.items()})


@functools.cache
def in_double():
    """The values, those of two vmaps, and that of one example."""
    with jax.enable_x64(True):
        forms = lambda loss, *x: (loss(*x), jax.vmap(jax.vmap(loss))(*x), loss(*(a[1, 2] for a in x)))
        return values_of_all(forms, np.float64)


@functools.cache
def in_dtype(dtype):
    return values_of_all(lambda loss, *x: loss(*x), dtype)


@every_loss
def test_losses_are_one_number_per_example_and_match_their_formula(name):
    """Any number of leading axes are batch axes, and vmap agrees."""
    _, arguments, formula, keeps = LOSSES[name]
    expected = formula(*arguments)
    assert expected.shape == ((2, 3, 4) if keeps else (2, 3))
    value, mapped, single = in_double()[name]
    np.testing.assert_allclose(value, expected, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(mapped, expected, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(single, expected[1, 2], rtol=1e-12)


@pytest.mark.parametrize("dtype", [jnp.float32, *HALF])
@every_loss
def test_dtype_is_kept_and_sums_are_at_least_float32(name, dtype):
    """The result is the exact formula of the rounded input, rounded once."""
    _, arguments, formula, _ = LOSSES[name]
    arguments = cast(arguments, dtype)
    exact = formula(*(np.asarray(x, None if x.dtype == jnp.int32 else np.float64) for x in arguments))
    value = in_dtype(dtype)[name]
    assert value.dtype == dtype
    assert not value.weak_type
    unit = float(jnp.finfo(dtype).eps) / 2
    rtol, atol = (4e-6, 2e-7) if dtype == jnp.float32 else (1.02 * unit, 1e-6)
    np.testing.assert_allclose(np.asarray(value, np.float64), exact, rtol=rtol, atol=atol)


@pytest.mark.parametrize("name", PAIRS)
def test_broadcasting_is_rejected(name, sentences):
    loss, (a, b), _, _ = LOSSES[name]
    a, b = cast((a, b), jnp.float32)
    for one, other in ((a, b[0]), (a[0], b), (a, b[:1]), (a[:, :1], b)):
        with pytest.raises(ValueError, match=r"expected .*got .*\(\d.*; "):
            loss(one, other)
    if b.dtype != jnp.int32:
        with pytest.raises(ValueError, match=r"expected .*got .*\(\d.*; "):
            loss(a, b[..., :1])


def test_column_against_row_is_rejected(sentences):
    """Predictions (8, 1) and targets (8,) would broadcast to (8, 8)."""
    for loss in (mse, mae, huber_loss, gaussian_nll, sigmoid_cross_entropy, hinge_loss):
        with pytest.raises(ValueError, match=r"float32 \(8, 1\) and float32 \(8,\); reshape .*squeeze\(-1\)"):
            loss(np.ones((8, 1), np.float32), np.ones(8, np.float32))
        for shape in ((8,), (8, 1)):  # the suggested repairs
            assert jax.eval_shape(loss, *[jax.ShapeDtypeStruct(shape, jnp.float32)] * 2).shape in (shape, shape[:-1])
    with pytest.raises(ValueError, match="zero_one_loss expected predictions .* and targets .* with the same"):
        zero_one_loss(np.zeros((8, 1), np.int32), np.zeros(8, np.int32))


@every_loss
def test_scalars_without_an_axis_to_reduce_are_rejected(name, sentences):
    loss, arguments, _, keeps = LOSSES[name]
    if keeps:
        assert loss(*(np.float32(x[0, 0, 0]) for x in arguments)).shape == ()
        return
    arguments = [np.asarray(x.flat[0], x.dtype if x.dtype == np.int32 else np.float32) for x in arguments]
    with pytest.raises(
        ValueError, match=r"at least 1 axis, .*got float32 \(\); add the missing axis, as in \w+\[None\]"
    ):
        loss(*arguments)


@every_loss
def test_integers_are_rejected_where_floats_are_required(name, sentences):
    loss, arguments, _, _ = LOSSES[name]
    arguments = cast(arguments, jnp.float32)
    with pytest.raises(
        TypeError, match=r"to be (a floating-point (or complex )?array|an array of .*), got int32 \(2, 3, 4\)"
    ):
        loss(np.zeros((2, 3, 4), np.int32), *arguments[1:])


@pytest.mark.parametrize("loss", [cross_entropy, kl_divergence, jensen_shannon, total_variation, entropy])
def test_invalid_distributions_are_rejected(loss, sentences):
    name = loss.__name__
    good, scores = pair(0.5, 0.25), np.float32([[0.5, 0.5], [1.5, -2]])
    slots = [(scores,)] if loss is entropy else [(scores, good), (good, scores)]
    for arguments in slots:
        with pytest.raises(ValueError, match=rf"{name} expected probability distributions in [pq] .*softmax\(scores\)"):
            loss(*arguments)
        repaired = [softmax(x) if x is scores else x for x in arguments]
        assert np.isfinite(loss(*repaired)).all()
    # under jit the values are unknown: only check=True gives an error
    checked = checkify.checkify(jax.jit(partial(loss, check=True)))
    error, _ = checked(*repaired)
    assert error.get() is None
    with jax.debug_nans(False):
        error, _ = checked(*arguments)
        run(loss, *arguments)
    with pytest.raises(ValueError, match=rf"{name} expected probability distributions"):
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
        with jax.debug_nans(False):
            error, _ = checkify.checkify(jax.jit(partial(loss, check=True)))(*arguments)
        with pytest.raises(ValueError, match=f"{loss.__name__} expected .*{sentence}"):
            error.throw()
    error, value = checkify.checkify(jax.jit(partial(nll, check=True)))(jnp.log(pair(0.25)[0]), jnp.array(0))
    assert error.get() is None
    assert value == pytest.approx(math.log(4))


@pytest.mark.parametrize("loss", [softmax_cross_entropy, nll])
def test_label_out_of_range_gives_nan_under_jit(loss):
    """The value is NaN and the gradient not finite in the row of that label only."""
    x = jnp.log(jnp.array([[0.25, 0.75]] * 4))
    labels = jnp.array([0, 2, -1, 1])
    with jax.debug_nans(False):
        value = np.asarray(jax.jit(loss)(x, labels))
        gradient = np.asarray(jax.jit(grad(lambda x, y: loss(x, y).sum()))(x, labels))
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


def extreme_arguments(name):
    """Scores and regression errors of 1e4, probabilities of 0."""
    arguments = LOSSES[name].arguments
    first, second = np.float32([1e4, -1e4, 0, 1e4]), np.float32([-1e4, -1e4, 1e4, 0])
    point, other = np.float32([1, 0, 0, 0]), np.float32([0.25, 0.5, 0.25, 0])
    if arguments[0] is P:
        return (point, other)[: len(arguments)]
    if name == "nll":
        return np.float32([-1e4, 0, -1e4, -2e4]), np.int32(0)
    if arguments[1] is Y:
        return first, np.int32(1)
    if arguments[1] is P:
        return first, point
    return first, np.ones(4, np.float32) if arguments[1] is SIGNS else second


def test_gradients_are_finite_at_extreme_inputs():
    def derived(extreme):
        floats = {name: tuple(i for i, a in enumerate(x) if a.dtype == jnp.float32) for name, x in extreme.items()}
        total = lambda name: lambda *x: LOSSES[name].loss(*x).sum()
        return {name: jax.value_and_grad(total(name), floats[name])(*x) for name, x in extreme.items()}

    found = compiled(derived)({name: tuple(map(np.asarray, extreme_arguments(name))) for name in LOSSES})
    for name, leaf in ((name, leaf) for name, value in found.items() for leaf in jax.tree.leaves(value)):
        assert np.isfinite(leaf).all(), name


# Masks, weights of classes and examples -------------------------------------------------------------------------------

COUNTS = np.abs(np.round(2 * W))
MASKABLE = {
    **LOSSES,
    "smoothed labels": Row(
        partial(softmax_cross_entropy, label_smoothing=0.1, class_weights=np.float32([1, 0, 2, 0.5])), (Z, Y), None
    ),
    "zero_one_loss": Row(zero_one_loss, (Y, Y[::-1]), None),
    "poisson_nll": Row(poisson_nll, (Z, COUNTS), None),
    "info_nce_loss": Row(info_nce_loss, (Z, W), None),
    "weighted nll": Row(partial(nll, class_weights=np.float32([1, 0, 2, 0.5])), (np.log(P), Y), None),
}


def kept(name):
    """Which examples, (2, 3), are not masked."""
    if name == "info_nce_loss":  # whose examples are each other's negatives
        return np.array([[True, False, True], [True, False, True]])
    return np.array([[True, False, True], [False, False, True]])


def spoiled(name):
    """Arguments with NaN, infinity and labels of -100 at the masked examples, and the mask."""
    _, arguments, _, keeps = MASKABLE[name]
    keep, arguments = kept(name), cast(arguments, np.float32)
    values = (-100 if x.dtype == np.int32 else bad for x, bad in zip(arguments, (np.nan, -np.inf), strict=False))
    wrong = tuple(
        np.where(keep.reshape(keep.shape + (1,) * (x.ndim - 2)), x, value).astype(x.dtype)
        for x, value in zip(arguments, values, strict=True)
    )
    return wrong, np.broadcast_to(keep.reshape((2, 3) + (1,) * keeps), arguments[0].shape[: 2 + keeps])


def columns(name):
    return slice(0, None, 2) if name == "info_nce_loss" else slice(None)


@functools.cache
def masked_and_whole():
    """For each loss the values and gradients with a mask, and those without one, from one program."""

    def derived(name, x, where=None):
        floats = tuple(i for i, a in enumerate(x) if jnp.issubdtype(a.dtype, jnp.floating))
        run = lambda *x: (lambda value: (value.sum(), value))(MASKABLE[name].loss(*x, where=where))
        (_, value), gradients = jax.value_and_grad(run, floats, has_aux=True)(*x) if floats else (run(*x), ())
        return value, *gradients

    @compiled
    def both(masked, whole):
        return {name: (derived(name, *masked[name]), derived(name, x)) for name, x in whole.items()}

    whole = {
        name: tuple(x[:, columns(name)] for x in cast(row.arguments, np.float32)) for name, row in MASKABLE.items()
    }
    with jax.debug_nans(False):  # NaN is an input here
        return both({name: spoiled(name) for name in MASKABLE}, whole)


@pytest.mark.parametrize("name", MASKABLE)
def test_masked_examples_have_loss_and_gradient_zero_whatever_they_are(name):
    """NaN, infinity and labels of -100 at masked examples; values and gradients of the others are those alone."""
    masked, whole = masked_and_whole()[name]
    wrong, where = spoiled(name)
    with jax.debug_nans(False):
        eager = MASKABLE[name].loss(*wrong, where=where)  # nothing to reject
    np.testing.assert_allclose(eager, masked[0], rtol=1e-5)
    keep, part = kept(name), np.s_[:, columns(name)]
    for ours, alone in zip(masked, whole, strict=True):
        np.testing.assert_array_equal(ours[~keep], 0)
        np.testing.assert_allclose(ours[part][keep[part]], alone[keep[part]], rtol=1e-5, atol=1e-6)
    assert np.abs(masked[0][keep]).max() > 0.1


def test_padding_labels_in_the_idiom_of_where():
    """`jnp.where(y >= 0, loss, 0)` under jit: labels of -100 give the gradient 0, in value and in gradient no NaN."""
    z, y = normal(70, 3, 4).astype(np.float32), np.array([2, -100, 0])
    for loss, x in ((softmax_cross_entropy, z), (nll, log_softmax(z))):
        outside = lambda x, y, loss=loss: jnp.where(y >= 0, loss(x, y), 0).sum()
        inside = lambda x, y, loss=loss: loss(x, y, where=y >= 0).sum()
        with jax.debug_nans(False):
            both = lambda x, y: [jax.value_and_grad(f)(x, y) for f in (outside, inside)]  # noqa: B023
            found, expected = run(both, x, y)
        np.testing.assert_array_equal(found[1][1], 0)
        np.testing.assert_array_equal(found[0], expected[0])
        np.testing.assert_array_equal(found[1], expected[1])
        with pytest.raises(
            ValueError, match=r"targets from 0 to 3, got targets from -100 to 2; .*where=targets >= 0\.$"
        ):
            loss(x, y)
        assert np.isfinite(loss(x, y, where=y >= 0)).all()  # the suggested repair


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


def test_weighted_mean():
    values, weights = normal(72, 5), np.array([1, 0, 2, 0.5, 0])
    w = weights.astype(np.float32)
    with jax.debug_nans(False):
        v = np.where(w > 0, values, np.nan).astype(np.float32)
        mean_and_slopes = compiled(jax.value_and_grad(weighted_mean, (0, 1)))
        mean, slopes = mean_and_slopes(v, w)
        of_mask, _ = mean_and_slopes(v, (w > 0).astype(np.float32))
        nothing, (slope, _) = mean_and_slopes(v, 0 * w)
    expected = np.average(values, weights=weights)
    np.testing.assert_allclose(mean, expected, rtol=1e-6)
    np.testing.assert_allclose(slopes[0], weights / 3.5, rtol=1e-6)
    np.testing.assert_allclose(slopes[1][weights > 0], (values - expected)[weights > 0] / 3.5, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(of_mask, values[weights > 0].mean(), rtol=1e-6)
    assert nothing == 0
    np.testing.assert_array_equal(slope, 0)
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
    with pytest.raises(ValueError, match=r"class_weights >= 0, got -1"):
        softmax_cross_entropy(jnp.zeros((1, 2)), jnp.array([0]), class_weights=jnp.array([-1.0, 1.0]))


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


@pytest.mark.parametrize("distance", [1e-6, 1e-3, 0.3])
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


@pytest.mark.parametrize("dtype", HALF)
def test_divergences_of_half_precision_are_not_negative(dtype):
    p = np.random.default_rng(77).dirichlet(np.ones(20), (2, 500))
    close = 0.99 * p[0] + 0.01 * p[1]
    for loss in (kl_divergence, jensen_shannon):
        assert (run(loss, p[0].astype(dtype), close.astype(dtype)) >= 0).all()


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
        for variance in (v, v[0], 0.3):
            expected = -stats.norm.logpdf(y, f, np.sqrt(variance)).sum(-1)
            np.testing.assert_allclose(run(gaussian_nll, f, y, variance=variance), expected, rtol=1e-12)
        slope = grad(lambda v: gaussian_nll(f, y, variance=v).sum())(v)
        np.testing.assert_allclose(slope, 0.5 / v - 0.5 * ((y - f) / v) ** 2, rtol=1e-12)
        value, slope = run(jax.value_and_grad(lambda f: poisson_nll(f, counts).sum()), f)
    np.testing.assert_allclose(value, -stats.poisson.logpmf(counts, np.exp(f)).sum(), rtol=1e-12)
    np.testing.assert_allclose(slope, np.exp(f) - counts, rtol=1e-11)
    assert abs(run(poisson_nll, np.float32([-np.inf]), np.float32([0]))) < 1e-6  # a rate of 0, and no event
    assert poisson_nll(*[np.zeros((0, 3), np.float32)] * 2).shape == (0,)
    with pytest.raises(ValueError, match="poisson_nll expected targets >= 0, got a minimum of -1.0"):
        poisson_nll(jnp.zeros(1), -jnp.ones(1))


def test_info_nce_loss():
    a, b = normal(82, 2, 5, 3)
    unit = lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True)
    expected = -np.diag(special.log_softmax(unit(a) @ unit(b).T / 0.5, axis=-1))
    loss = value_and_gradient(partial(info_nce_loss, temperature=0.5))
    x, y = a.astype(np.float32), b.astype(np.float32)
    value, slope = loss(x, y)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    np.testing.assert_allclose((slope * x).sum(-1), 0, atol=1e-5)  # the length has no effect
    np.testing.assert_allclose(loss(np.float32(1e30) * x, np.float32(1e-30) * y)[0], expected, rtol=1e-5)  # no overflow
    assert np.isfinite(loss(x * (np.arange(5) > 0)[:, None].astype(np.float32), y)[1]).all()
    with pytest.raises(ValueError, match="info_nce_loss expected at least one entry on the last axis"):
        info_nce_loss(*[np.zeros((2, 0), np.float32)] * 2)
    for shape in ((0, 3), (2, 0, 3)):
        empty = np.zeros(shape, jnp.bfloat16)
        losses = run(info_nce_loss, empty, empty, where=np.zeros(shape[:-1], bool))
        assert losses.shape == shape[:-1] and losses.dtype == jnp.bfloat16


def test_total_variation_penalty():
    image = normal(83, 2, 4, 5, 3)
    expected = sum(np.abs(np.diff(image, axis=axis)).sum((1, 2, 3)) for axis in (1, 2))
    x = image.astype(np.float32)
    np.testing.assert_allclose(run(total_variation_penalty, x), expected, rtol=1e-6)
    gradient = grad(lambda x: total_variation_penalty(x).sum())(np.ones((1, 2, 2, 1), np.float32))
    np.testing.assert_array_equal(gradient, 0)
    single = run(total_variation_penalty, x[:, :1, :1])
    np.testing.assert_array_equal(single, 0)


# Rejected inputs of all functions ------------------------------------------------------------------------------------

COMPLEX = {
    **{name: (row.loss, row.arguments) for name, row in MASKABLE.items()},
    "multilabel_margin_loss": (lambda z: multilabel_margin_loss(z, np.ones(z.shape, bool)), (Z,)),
    "pairwise_distances": (pairwise_distances, (Z, W)),
    "jensen_gap": (partial(jensen_gap, jnp.exp), (Z[0, 0], P[0, 0])),
    "soft_threshold": (partial(soft_threshold, threshold=1.0), (Z,)),
    "l1_penalty": (l1_penalty, (Z,)),
    "l2_penalty": (l2_penalty, (Z,)),
    "total_variation_penalty": (total_variation_penalty, (Z,)),
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
        with pytest.raises(TypeError, match=f"^softmax_cross_entropy expected options .* got '{option}'; .*{repair}"):
            softmax_cross_entropy(z, y, **{option: None})


def test_scores_and_labels_given_to_cross_entropy(sentences):
    z, y = normal(84, 2, 3).astype(np.float32), np.array([2, 0], np.int32)
    for arguments in ((z, y), (y, z)):
        with pytest.raises(
            TypeError, match=r"^cross_entropy expected .*int32 \(2,\); .*softmax_cross_entropy\(logits, labels\)"
        ):
            cross_entropy(*arguments)
    assert softmax_cross_entropy(z, y).shape == (2,)  # the suggested repairs
    assert cross_entropy(one_hot(y, 3), softmax(z)).shape == (2,)
