"""Mixtures of experts: against the dense sum, gradients, capacity, devices, errors."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import normal
from compiled import compiled, drawn
from jax.sharding import AxisType, PartitionSpec

import jaxblocks as jb
from jaxblocks.layers import MixtureOfExperts, load_balancing_loss, top_k_routing

EXPERT = jb.Serial(jb.GLU(6, activation=jb.silu), jb.Dense(3))
X = np.float32(normal(0, 2, 20, 4))


def silu(z):
    return z / (1 + np.exp(-z))


def test_all_experts_are_the_sum_weighted_by_the_softmax():
    net = MixtureOfExperts(EXPERT, 3, top_k=3)
    params = drawn(net, X)
    y, _ = compiled(net.apply)(params, X)
    p = jax.tree.map(np.asarray, params["experts"])
    expected = 0
    weights = np.exp(X @ np.asarray(params["router"]["kernel"]))
    for e in range(3):
        gate, up = (X @ p[0][name]["kernel"][e] + p[0][name]["bias"][e] for name in ("gate", "up"))
        expected += weights[..., e : e + 1] * ((silu(gate) * up) @ p[1]["kernel"][e] + p[1]["bias"][e])
    np.testing.assert_allclose(y, expected / weights.sum(-1, keepdims=True), rtol=1e-4, atol=1e-5)


def test_blocks_and_a_large_capacity_equal_all_experts_on_all_tokens():
    """Values, and gradients of params and inputs."""
    nets = [MixtureOfExperts(EXPERT, 4, **options) for options in ({}, {"block": 3}, {"capacity_factor": 2.0})]
    params = drawn(nets[0], X)

    def derived(net, params, x):
        return jax.value_and_grad(lambda params, x: jnp.sum(jnp.sin(net.apply(params, x)[0])), (0, 1))(params, x)

    with jax.enable_x64(True):
        wide = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), (params, X))
        expected, *others = jax.jit(lambda params, x: [derived(net, params, x) for net in nets])(*wide)
    assert any(np.abs(leaf).max() > 0.1 for leaf in jax.tree.leaves(expected))
    for found in others:
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12), found, expected)


@pytest.mark.parametrize("options", [{}, {"block": 1}, {"capacity_factor": 2.0}])
def test_an_expert_that_was_not_chosen_may_overflow(options):
    """Values and gradients are those of the chosen expert, in all three forms."""
    net = MixtureOfExperts(jb.Serial(jb.Dense(2, use_bias=False), jnp.exp), 2, top_k=1, **options)
    kernels = np.stack([np.full((2, 2), 0.1), np.full((2, 2), 100.0)]).astype(np.float32)
    params = jax.tree.map(lambda leaf: kernels, drawn(net, X[0, :3, :2])["experts"])
    params = {"experts": params, "router": {"kernel": np.float32([[1, 0], [1, 0]])}}

    def loss(params, x):
        y = net.apply(params, x)[0]
        return jnp.sum(y), y

    with jax.default_matmul_precision("highest"):
        (_, y), (of_params, of_x) = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))(params, jnp.ones((3, 2)))
    e = np.exp(0.2)
    np.testing.assert_allclose(y, np.full((3, 2), e), rtol=1e-6)
    [of_kernels] = jax.tree.leaves(of_params["experts"])
    np.testing.assert_allclose(of_kernels, [np.full((2, 2), 3 * e), np.zeros((2, 2))], rtol=1e-6)
    np.testing.assert_allclose(of_x, np.full((3, 2), 0.2 * e), rtol=1e-6)
    np.testing.assert_allclose(of_params["router"]["kernel"], 0, atol=1e-6)


def test_first_choices_come_before_second_ones_and_the_rest_is_dropped():
    """Three tokens with the choices (0, 1), (1, 0), (1, 0) and one place for each expert."""
    net = MixtureOfExperts(jb.identity, 2, capacity_factor=1 / 3)
    logits = np.float32([[2, 1], [0, 1], [-1, 1]])
    y, losses = compiled(net.apply)({"experts": (), "router": {"kernel": np.eye(2, dtype=np.float32)}}, logits)
    kept = np.exp([2, 1]) / (np.exp([2, 1]) + np.exp([1, 0]))
    np.testing.assert_allclose(y, [kept[0] * logits[0], kept[1] * logits[1], [0, 0]], rtol=1e-6)
    np.testing.assert_allclose(losses["load_balancing_loss"], 1, rtol=1e-6)  # both are chosen by all three
    uneven = compiled(load_balancing_loss)(100 * logits[:1].repeat(3, 0), np.zeros((3, 1), int))
    np.testing.assert_allclose(uneven, [2, 2, 2], rtol=1e-6)
    near = np.array([[43]], np.int8)  # the last 8 bits of 299
    few = compiled(load_balancing_loss)(np.eye(300, dtype=np.float32)[:1], near)
    np.testing.assert_allclose(few, 300 / (math.e + 299), rtol=1e-6)


def test_the_capacity_is_not_rounded_up_for_the_rounding_of_its_factor():
    """1.1 * 100 / 10 is 11.000000000000002 in Python."""
    net, x = MixtureOfExperts(jb.identity, 10, top_k=1, capacity_factor=1.1), np.ones((100, 1), np.float32)
    kernel = np.float32([[1, *[0] * 9]])
    y, _ = compiled(net.apply)({"experts": (), "router": {"kernel": kernel}}, x)
    assert (y != 0).sum() == 11
    least = MixtureOfExperts(jb.identity, 10, top_k=1, capacity_factor=1e-9)
    y, _ = compiled(least.apply)({"experts": (), "router": {"kernel": kernel}}, x)
    assert (y != 0).sum() == 1


def test_each_expert_has_its_own_random_numbers():
    net = MixtureOfExperts(jb.Dropout(0.5), 2, top_k=1)
    params = {"experts": (), "router": {"kernel": jnp.asarray([[1.0, -1.0]])}}
    x = jnp.concatenate([jnp.ones((64, 1)), -jnp.ones((64, 1))])
    y, _ = jax.jit(lambda key: net.apply(params, x, train=True, key=key))(jax.random.key(0))
    dropped = np.asarray(y).reshape(2, 64) == 0
    assert dropped.sum(1).min() > 16
    assert (dropped[0] != dropped[1]).any()


def test_experts_on_several_devices():
    """Values and gradients equal those of one device; two all-to-alls and no gathered kernels."""
    net = MixtureOfExperts(EXPERT, 8, capacity_factor=8.0, mesh_axis="expert")
    x = np.float32(normal(1, 16, 4))
    params = drawn(net, x)

    def both(params, x):
        y, losses = net.apply(params, x)
        return jnp.sum(jnp.sin(y)) + jnp.mean(losses["load_balancing_loss"] + losses["z_loss"]), y

    f = lambda: jax.jit(jax.value_and_grad(both, has_aux=True))
    expected = f()(params, x)
    mesh = jax.make_mesh((4,), ("expert",), axis_types=(AxisType.Auto,))
    placed = jax.device_put(params, jb.sharding.shardings(params, mesh, {"experts/**": PartitionSpec("expert")}))
    own = jax.device_put(x, jax.NamedSharding(mesh, PartitionSpec("expert")))
    with jax.set_mesh(mesh):
        program = f().lower(placed, own).compile()
        found = program(placed, own)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), found, expected)
    text = program.as_text()
    assert text.count(" all-to-all(") == 3  # two forward; backward one, since x has no gradient here
    assert " all-gather(" not in text


def test_errors(sentences):
    with pytest.raises(TypeError, match="an expert without state, got BatchNorm, which has state"):
        MixtureOfExperts(jb.BatchNorm(), 2)
    for x, got in ((jnp.ones(()), r"float32 \(\)"), ([1.0, 2.0], "a list")):
        with pytest.raises(
            TypeError, match=rf"MixtureOfExperts expected x \(..., features\), an array, got {got}; put"
        ):
            MixtureOfExperts(EXPERT, 2).init(jax.random.key(0), x)
    with pytest.raises(ValueError, match="top_k of at most 2, the number of experts"):
        MixtureOfExperts(jb.Dense(2), 2, top_k=3)
    with pytest.raises(ValueError, match="top_k of at most 2"):
        top_k_routing(jnp.ones((3, 2)), 3)
    with pytest.raises(ValueError, match="a capacity_factor with mesh_axis"):
        MixtureOfExperts(jb.Dense(2), 2, mesh_axis="expert")
    net = MixtureOfExperts(jb.Dense(2), 2)
    params = drawn(net, X)
    with pytest.raises(ValueError, match="stacked 2 times"):
        net.apply({**params, "experts": jax.tree.map(lambda leaf: leaf[:1], params["experts"])}, X)
    with pytest.raises(ValueError, match="params named experts, router"):
        net.apply(params["router"], X)
