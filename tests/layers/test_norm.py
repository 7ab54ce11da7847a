"""Normalization: values of the lectures and of PyTorch, padding, devices, half precision, and errors."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import for_each
from compiled import compiled, drawn
from derivatives import check_second_order, drawn_like
from jax.sharding import PartitionSpec as P

from jaxblocks import (
    BatchNorm,
    Dense,
    GroupNorm,
    InstanceNorm,
    Layer,
    LayerNorm,
    Repeat,
    Residual,
    RMSNorm,
    Serial,
    SpectralNorm,
    WeightNorm,
    batch_norm,
    group_norm,
    instance_norm,
    layer_norm,
    paths,
    rms_norm,
    select,
    stateful,
)
from jaxblocks.layers import local_response_norm, unit_norm
from jaxblocks.layers.norm.per_example import _jitted_examples
from jaxblocks.statistics import fit_standardizer, moments, standardize

# One program for each call, where its values are not checked.
batch_norm = compiled(batch_norm)
group_norm = compiled(group_norm)
instance_norm = compiled(instance_norm)
layer_norm = compiled(layer_norm)
rms_norm = compiled(rms_norm)
fit_standardizer = compiled(fit_standardizer)
moments = compiled(moments)
standardize = compiled(standardize)

RNG = np.random.default_rng(0)
X = RNG.normal(2.0, 3.0, (6, 5, 4)).astype(np.float32)
T = np.float32([[[1], [2]], [[3], [6]]])  # the examples of the lecture: (batch, n, c) = (2, 2, 1)


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="PyTorch is a reference here; install the parity extra")


def trained(layer, x, **side):
    """Output and next state of one training step from a fresh state."""
    params, state = layer.init(jax.random.key(0), x)
    return compiled(layer.apply)(params, state, x, train=True, **side)


@functools.partial(jax.jit, static_argnums=0)
def pulled(f, params, x, g, *rest):
    """The results y and other of ``f(params, x, *rest)``, and the gradients of y for the cotangent g."""
    y, pull, other = jax.vjp(lambda params, x: f(params, x, *rest), params, x, has_aux=True)
    return y, other, *pull(g)


def channels_second(x):
    """Move the channels of (batch, *spatial, channels) to axis 1, as in PyTorch."""
    return np.moveaxis(np.asarray(x), -1, 1).copy()


def channels_last(x):
    return np.moveaxis(np.asarray(x), 1, -1)


# ---- moments and standardization -------------------------------------------------------------


def test_moments_over_any_axes():
    cases = [(axes, keepdims) for axes in (0, -1, (0, 1), (1, -1), (0, 1, 2), ()) for keepdims in (False, True)]
    found = compiled(lambda x: [moments(x, axes, keepdims=keepdims) for axes, keepdims in cases])(X)
    x = np.asarray(X, np.float64)
    for (mean, variance), (axes, keepdims) in zip(found, cases, strict=True):
        np.testing.assert_allclose(mean, x.mean(axes, keepdims=keepdims), rtol=1e-5)
        np.testing.assert_allclose(variance, x.var(axes, keepdims=keepdims), rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize(("axes", "rank"), [((0,), 2), ((0, 1), 1), ((1, 2), 3)])
def test_masked_moments_by_an_explicit_selection(axes, rank):
    """Only valid entries count; the others may have any value, for masks with one, two and three axes."""
    rng = np.random.default_rng(1)
    x, mask = X.astype(np.float64), rng.random(X.shape[:rank]) < 0.6
    full = np.broadcast_to(mask.reshape(mask.shape + (1,) * (3 - rank)), x.shape)
    polluted = np.where(full, X, np.float32(np.inf))
    mean, variance = moments(polluted, axes, keepdims=True, mask=mask)
    kept = [a for a in range(3) if a not in axes]
    for index in np.ndindex(*(x.shape[a] for a in kept)):
        where = [slice(None)] * 3
        for a, i in zip(kept, index, strict=True):
            where[a] = i
        chosen = x[tuple(where)][full[tuple(where)]]
        place = tuple(0 if a in axes else index[kept.index(a)] for a in range(3))
        np.testing.assert_allclose(mean[place], chosen.mean() if chosen.size else 0, rtol=1e-5)
        np.testing.assert_allclose(variance[place], chosen.var() if chosen.size else 0, rtol=1e-5, atol=1e-12)


def test_statistics_of_the_training_data_are_used_on_test_data():
    train, test = np.asarray(X[:4], np.float64), np.asarray(X[4:], np.float64) + 1
    fitted = fit_standardizer(train.astype(np.float32), axes=(0, 1))
    expected = (test - train.mean((0, 1))) / train.std((0, 1))
    np.testing.assert_allclose(standardize(test.astype(np.float32), **fitted), expected, rtol=1e-4, atol=1e-5)


def test_a_constant_feature_is_centered_only():
    """The computed variance is 0 or a rounding error, since 0.1 is not exact in float32."""
    x = np.stack([np.full(1000, 0.1), np.arange(1000)], -1).astype(np.float32)
    fitted = fit_standardizer(x)
    assert float(fitted["deviation"][0]) == 1
    np.testing.assert_allclose(standardize(x, **fitted)[:, 0], 0, atol=1e-6)
    np.testing.assert_allclose(fitted["deviation"][1], np.arange(1000.0).std(), rtol=1e-6)


# ---- batch norm: the lecture's numbers -------------------------------------------------------


def test_statistics_per_position_and_pooled():
    """The form of the lecture (over the batch) and that of Keras (over batch and positions) for one tensor."""
    lecture, state = trained(BatchNorm(axes=0, epsilon=1e-5), T)
    pooled, pooled_state = trained(BatchNorm(epsilon=1e-5), T)
    np.testing.assert_allclose(lecture.ravel(), [-0.999995, -0.99999875, 0.999995, 0.99999875], rtol=1e-6)
    np.testing.assert_allclose(pooled.ravel(), [-1.0690434, -0.5345217, 0, 1.6035652], rtol=1e-6, atol=1e-7)
    assert state["mean"].tolist() == [[2.0], [4.0]] and pooled_state["mean"].tolist() == [3.0]


@pytest.mark.parametrize("axes", [None, -1, (0, 2)])
def test_training_normalizes_over_the_axes(axes):
    """Compare with NumPy; scale and bias have the shape of the statistics."""
    over = (0, 1) if axes is None else axes
    x = np.asarray(X, np.float64)
    shape = x.mean(over).shape
    layer = BatchNorm(axes=axes)
    params, state = layer.init(jax.random.key(0), X)
    assert params["scale"].shape == params["bias"].shape == state["mean"].shape == state["variance"].shape == shape
    scale, bias = RNG.normal(size=(2, *shape))
    given = {"scale": scale.astype(np.float32), "bias": bias.astype(np.float32)}
    y, after = compiled(layer.apply)(given, state, X, train=True)
    keep = x.mean(over, keepdims=True).shape
    expected = (x - x.mean(over, keepdims=True)) / np.sqrt(x.var(over, keepdims=True) + 1e-3)
    np.testing.assert_allclose(y, scale.reshape(keep) * expected + bias.reshape(keep), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(after["mean"], x.mean(over), rtol=1e-5)
    np.testing.assert_allclose(after["variance"], x.var(over), rtol=1e-5)


def test_epsilon_is_inside_the_square_root():
    """A variance of 1.25 becomes 1.25 / 1.251 = 0.9992006; with epsilon outside the root, it would be 0.9982135."""
    y, _ = trained(BatchNorm(), np.float32([[1], [2], [3], [4]]))
    assert float(y.var()) == pytest.approx(0.9992006, abs=2e-7)
    assert 1.25 / (np.sqrt(1.25) + 1e-3) ** 2 == pytest.approx(0.9982135, abs=1e-7)


def test_scale_and_bias_can_be_left_out():
    for use_scale, use_bias in ((True, True), (True, False), (False, True), (False, False)):
        layer = BatchNorm(use_scale=use_scale, use_bias=use_bias)
        params, _ = jax.eval_shape(layer.init, jax.random.key(0), X)
        assert set(params) == {name for name, used in (("scale", use_scale), ("bias", use_bias)) if used}
        assert params == () or isinstance(params, dict)


@pytest.mark.parametrize(
    ("options", "masked"),
    [({"axes": 0}, True), ({"use_scale": False, "use_bias": False}, False)],
    ids=str,
)
def test_derivatives_of_batch_norm(options, masked):
    """Those of the formula, of outputs and state, with respect to input, params, epsilon and momentum."""
    mask = jnp.array([[True, True], [True, False], [True, True], [False, False]]) if masked else None
    axes = (0,) if options.get("axes") == 0 else (0, 1)

    def ours(x, params, epsilon, momentum):
        layer = BatchNorm(epsilon=epsilon, momentum=momentum, param_dtype=jnp.float64, **options)
        _, state = layer.init(jax.random.key(0), x)
        return layer.apply(params, {**state, "updates": jnp.ones((), jnp.int32)}, x, train=True, mask=mask)

    def plain(x, params, epsilon, momentum):
        valid = jnp.ones(x.shape) if mask is None else jnp.broadcast_to(mask[..., None], x.shape).astype(x.dtype)
        total = lambda values: jnp.broadcast_to((values * valid).sum(axes, keepdims=True), x.shape)
        count, x = total(jnp.ones(x.shape)), x * valid
        mean = total(x) / count
        variance = total((x - mean) ** 2) / count
        spread = lambda name, value: jnp.broadcast_to(params.get(name, value), x.shape)
        y = (x - mean) / jnp.sqrt(variance + epsilon) * spread("scale", 1.0) + spread("bias", 0.0)
        weight = (1 - momentum) / (1 - momentum**2)  # of the second batch
        move = lambda old, new: jnp.where(count >= 2, old + weight * (new - old), old)
        one_of_each = (0,) * len(axes)
        return y, {"mean": move(0.0, mean)[one_of_each], "variance": move(1.0, variance)[one_of_each]}

    def total(f):
        def loss(x, params, epsilon, momentum):
            # epsilon and momentum enter by their squares, which are positive
            y, state = f(x, params, epsilon**2 + 0.1, 0.8 + 0.1 * jnp.sin(momentum))
            return jnp.sum(jnp.sin(y) * y) + jnp.sum(state["mean"] ** 3) + jnp.sum(jnp.cos(state["variance"]))

        return loss

    with jax.enable_x64(True):
        shape = (2, 3) if axes == (0,) else (3,)
        params = {name: jnp.zeros(shape) for name in ("scale", "bias") if options.get(f"use_{name}", True)} or ()
        shapes = jnp.zeros((4, 2, 3)), params, jnp.zeros(()), jnp.zeros(())
        as_dict = lambda f: lambda x, params, *rest: f(x, dict(params), *rest)
        check_second_order(total(ours), total(as_dict(plain)), drawn_like(shapes), drawn_like(shapes, 1))


@pytest.mark.cpu
def test_the_gradient_of_batch_norm_has_two_sums_over_the_batch():
    """Of the cotangent and of its product with x; the compiler finds those of scale and bias among them."""
    layer = BatchNorm()
    params, state = layer.init(jax.random.key(0), X)
    pull = jax.jit(lambda x, params, g: jax.vjp(lambda x, p: layer.apply(p, state, x, train=True)[0], x, params)[1](g))
    sums = [line for line in pull.lower(X, params, X).compile().as_text().splitlines() if " reduce(" in line]
    assert len(sums) == 4, sums  # with those of the mean and of the variance


# ---- batch norm: running statistics ----------------------------------------------------------


def test_running_statistics_are_weighted_averages_of_the_batches():
    """Weights p^(k-1), ..., p, 1, divided by their sum."""
    layer, batches = BatchNorm(momentum=0.7), RNG.normal(1.0, 2.0, (4, 8, 3))
    params, state = layer.init(jax.random.key(0), np.zeros((8, 3), np.float32))
    step = compiled(layer.apply)
    for batch in batches:
        _, state = step(params, state, batch.astype(np.float32), train=True)
    weights = 0.7 ** np.arange(4)[::-1]
    np.testing.assert_allclose(state["mean"], np.average(batches.mean(1), 0, weights), rtol=1e-5)
    np.testing.assert_allclose(state["variance"], np.average(batches.var(1), 0, weights), rtol=1e-5)
    assert int(state["updates"]) == 4
    layer, (first, second) = BatchNorm(), batches[:2].astype(np.float32)
    _, state = layer.init(jax.random.key(0), first)
    for batch in (first, second):
        _, state = compiled(layer.apply)(params, state, batch, train=True)
    np.testing.assert_allclose(state["mean"], (0.99 * first.mean(0) + second.mean(0)) / 1.99, rtol=1e-5)  # the default


def test_evaluation_keeps_the_state_and_examples_are_independent():
    layer = BatchNorm()
    params, state = layer.init(jax.random.key(0), X)
    _, state = compiled(layer.apply)(params, state, X, train=True)
    whole, after = compiled(layer.apply)(params, state, X)
    jax.tree.map(np.testing.assert_array_equal, after, state)
    given = batch_norm(X, state["mean"], state["variance"], **params)
    np.testing.assert_allclose(given, whole, rtol=1e-6, atol=1e-6)


def test_evaluation_before_any_update_is_an_error(sentences):
    """An error if the state is known, NaN under jit; the repair suggested by the error works."""
    layer = BatchNorm()
    params, state = layer.init(jax.random.key(0), X)
    with pytest.raises(ValueError, match="never updated.*train=True"):
        layer.apply(params, state, X)
    with jax.debug_nans(False):
        assert np.isnan(compiled(layer.apply)(params, state, X)[0]).all()
    _, state = compiled(layer.apply)(params, state, X, train=True)
    assert np.isfinite(layer.apply(params, state, X)[0]).all()


@pytest.mark.parametrize(("spatial", "affine"), [(0, True), (2, False)])
def test_batch_norm_against_torch(torch, spatial, affine):
    """Values, gradients and running statistics (except for their initial values) over three batches in float64."""
    shape, momentum = (5, *(3, 2, 4)[:spatial], 3), 0.9
    n = np.prod(shape[:-1])
    kind = {0: "BatchNorm1d", 1: "BatchNorm1d", 2: "BatchNorm2d", 3: "BatchNorm3d"}[spatial]
    theirs = getattr(torch.nn, kind)(3, momentum=1 - momentum, affine=affine, dtype=torch.float64)
    with jax.enable_x64(True):
        layer = BatchNorm(momentum=momentum, epsilon=1e-5, use_scale=affine, use_bias=affine, param_dtype=jnp.float64)
        params, state = layer.init(jax.random.key(0), jax.ShapeDtypeStruct(shape, jnp.float64))
        steps = lambda params, x, state: layer.apply(params, state, x, train=True)
        evaluations = lambda params, x, state: layer.apply(params, state, x)
        if affine:
            params = {name: RNG.normal(size=3) for name in ("scale", "bias")}
            theirs.weight.data = torch.tensor(params["scale"])
            theirs.bias.data = torch.tensor(params["bias"])
        for step in range(4):
            train = step < 3
            theirs.train(train)
            x, g = RNG.normal(1.0, 2.0, (2, *shape))
            x_torch = torch.tensor(channels_second(x), requires_grad=True)
            y_torch = theirs(x_torch)
            y_torch.backward(torch.tensor(channels_second(g)))
            if not train:  # PyTorch starts at 0 and 1 with weight p^k, and its running variance is unbiased
                past = momentum**3
                np.testing.assert_allclose(theirs.running_mean, (1 - past) * state["mean"], rtol=1e-10)
                unbiased = n / (n - 1) * np.asarray(state["variance"])
                np.testing.assert_allclose(theirs.running_var, past + (1 - past) * unbiased, rtol=1e-10)
                state = {
                    "mean": theirs.running_mean.numpy(),
                    "variance": theirs.running_var.numpy(),
                    "updates": np.asarray(10_000, np.int32),
                }
            f = steps if train else evaluations
            y, state, param_grads, x_grad = pulled(f, params, x, g, state)
            np.testing.assert_allclose(y, channels_last(y_torch.detach()), rtol=1e-10, atol=1e-10)
            np.testing.assert_allclose(x_grad, channels_last(x_torch.grad), rtol=1e-10, atol=1e-10)
            if affine:
                np.testing.assert_allclose(param_grads["scale"], theirs.weight.grad, rtol=1e-10, atol=1e-10)
                np.testing.assert_allclose(param_grads["bias"], theirs.bias.grad, rtol=1e-10, atol=1e-10)
                theirs.zero_grad()


# ---- batch norm: padding ---------------------------------------------------------------------


def test_padding_has_no_effect():
    """Outputs, gradients and running statistics depend on the valid entries only, for any values of the padding."""
    with jax.enable_x64(True):
        layer = BatchNorm(momentum=0.8, param_dtype=jnp.float64)
        x = X.astype(np.float64)
        mask = RNG.random(X.shape[:2]) < 0.5
        weights = RNG.normal(size=X.shape)
        real, real_weights = x[mask].reshape(-1, 4), weights[mask].reshape(-1, 4)
        params, state = layer.init(jax.random.key(0), x)
        params = {"scale": np.arange(1.0, 5.0), "bias": np.ones(4)}
        full = mask[..., None]
        padded = np.where(full, x, np.nan)

        def loss(params, x, weights, **side):
            y, after = layer.apply(params, state, x, train=True, **side)
            return (weights * y**2).sum(), (y, after)

        both = compiled(jax.value_and_grad(loss, (0, 1), has_aux=True))
        (_, (expected, expected_state)), expected_grads = both(params, real, real_weights)
        (_, (y, after)), grads = both(params, padded, np.where(full, weights, 0), mask=mask)
        np.testing.assert_allclose(y[mask].reshape(-1, 4), expected, rtol=1e-10, atol=1e-10)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10), after, expected_state)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10), grads[0], expected_grads[0])
        np.testing.assert_allclose(grads[1][mask].reshape(-1, 4), expected_grads[1], rtol=1e-10, atol=1e-10)
        np.testing.assert_array_equal(grads[1][~mask], 0)
        assert np.isfinite(y).all()
        wrong = np.where(full, x, 0).mean((0, 1))  # statistics that include the padding
        assert np.abs(wrong - after["mean"]).max() > 0.1


def test_a_batch_without_valid_entries_keeps_the_state():
    layer = BatchNorm()
    params, state = layer.init(jax.random.key(0), X)
    step = compiled(layer.apply)
    y, after = step(params, state, X, train=True, mask=np.zeros(6, bool))
    jax.tree.map(np.testing.assert_array_equal, after, state)
    np.testing.assert_array_equal(y, 0)  # padding is treated as zero, and mean and bias are 0
    _, state = step(params, after, X, train=True)
    _, after = step(params, state, X, train=True, mask=np.zeros((6, 5), bool))
    jax.tree.map(np.testing.assert_array_equal, after, state)


def test_statistics_per_position_of_padded_sequences():
    """With axes=0, each position uses the sequences that contain it; a position without sequences keeps its state."""
    lengths = np.array([1, 2, 2, 3, 3, 4])
    mask = np.arange(5)[None] < lengths[:, None]
    _, state = trained(BatchNorm(axes=0), X, mask=mask)
    for position in range(5):
        real = X[mask[:, position], position]
        expected = real.mean(0) if len(real) > 1 else np.zeros(4)
        np.testing.assert_allclose(state["mean"][position], expected, rtol=1e-5)
    np.testing.assert_array_equal(state["variance"][3:], 1)  # positions with one sequence and with none


def test_a_single_valid_entry_keeps_the_state():
    """A variance of 0 would give huge values in the next evaluation; also for traced masks."""
    layer = BatchNorm()
    params, state = layer.init(jax.random.key(0), X)
    step = jax.jit(lambda mask: layer.apply(params, state, X, train=True, mask=mask))
    _, after = step(np.arange(30).reshape(6, 5) == 2)
    jax.tree.map(np.testing.assert_array_equal, after, state)
    assert int(step(np.arange(30).reshape(6, 5) < 2)[1]["updates"]) == 1


def test_a_range_is_written_as_axes(sentences):
    with pytest.raises(TypeError, match=r"got range\(0, 2\); pass one such as axes=\(0, 1\)"):
        BatchNorm(axes=range(2))


def test_a_mask_of_one_entry_is_rejected():
    """If the shape shows that there is one entry, the error is raised with and without a mask."""
    layer, one = BatchNorm(), X[:1, 0]
    params, state = layer.init(jax.random.key(0), one)
    with pytest.raises(ValueError, match="more than one entry to average over"):
        layer.apply(params, state, one, train=True, mask=np.ones(1, bool))
    compiled(layer.apply)(params, state, X[:2, 0], train=True, mask=np.ones(2, bool))


def test_empty_batches():
    """An empty batch has an empty output; fitting to an empty batch is rejected."""
    assert group_norm(np.zeros((0, 3, 4), np.float32), groups=2, spatial=1).shape == (0, 3, 4)
    # No position: a mean of no entries, which has no effect on the gradients of the params.
    for layer in (GroupNorm(groups=2, spatial=1), InstanceNorm(spatial=1)):
        params, x = layer.init(jax.random.key(0), np.zeros((2, 3, 4), np.float32)), np.zeros((2, 0, 4), np.float32)
        gradient = compiled(jax.grad(lambda params, x, layer=layer: layer.apply(params, x).sum()))(params, x)
        assert all((one == 0).all() for one in jax.tree.leaves(gradient))
    with pytest.raises(ValueError, match=r"at least one example to fit to, got float32 \(0, 2\)"):
        fit_standardizer(np.zeros((0, 2), np.float32))


@pytest.mark.usefixtures("sentences")
def test_errors_suggest_channels_last():
    x = np.zeros((2, 6, 8, 8), np.float32)
    params, state = BatchNorm().init(jax.random.key(0), np.moveaxis(x, 1, -1))
    with pytest.raises(ValueError, match=r"if the channels of x are first, write jnp.moveaxis\(x, 1, -1\)"):
        BatchNorm().apply(params, state, x, train=True)
    compiled(BatchNorm().apply)(params, state, np.moveaxis(x, 1, -1), train=True)
    with pytest.raises(ValueError, match=r"groups.*if the channels of x are first, write jnp.moveaxis\(x, 1, -1\)"):
        group_norm(x[:, :3], groups=3, spatial=2)
    group_norm(np.moveaxis(x[:, :3], 1, -1), groups=3, spatial=2)
    np.testing.assert_array_equal(layer_norm(X, axes=np.int64(-1)), layer_norm(X))


def test_weight_decay_of_kernels_excludes_lengths():
    """Lengths and singular vectors are stored outside the params of the child, with their own names."""
    net = WeightNorm(Serial(Dense(5), BatchNorm(), Residual(Dense(5))))
    params, _ = jax.eval_shape(net.init, jax.random.key(0), X)
    chosen = [
        path for path, mark in zip(paths(params), jax.tree.leaves(select(params, "**/kernel")), strict=True) if mark
    ]
    assert chosen == ["layer/0/kernel", "layer/2/0/kernel"]
    lengths = [path for path in paths(params) if path.startswith("scale")]
    assert lengths == ["scale/0/kernel/length", "scale/2/0/kernel/length"]
    net = SpectralNorm(Serial(Dense(5), Residual(Dense(5))))
    _, state = jax.eval_shape(net.init, jax.random.key(0), X)
    assert set(state["vectors"]) == {"0/kernel", "1/0/kernel"}
    net = SpectralNorm(Dense(5))
    params, state = drawn(net, X)
    with pytest.raises(ValueError, match="state named layer and vectors, got a dict; pass the one that init"):
        net.apply(params, {"layer": (), "inner": state["vectors"]}, X)
    net = WeightNorm(Serial(Dense(5)))
    with pytest.raises(ValueError, match="expected scale with values at 0/kernel/length, got length; pass those that"):
        net.apply({**drawn(net, X), "scale": {"length": np.ones(5, np.float32)}}, X)


# ---- batch norm: across vmap, devices, and depth ---------------------------------------------


@pytest.mark.parametrize(("how", "masked"), [("vmap", False), ("shard_map", True)])
def test_statistics_across_a_mapped_axis_are_those_of_the_whole_batch(how, masked):
    """Outputs, gradients and state, with different numbers of valid entries in the shards."""
    x = RNG.normal(3.0, 2.0, (16, 3)).astype(np.float32)
    mask = np.arange(16) % 7 > np.arange(16) // 6 if masked else None
    weights = RNG.normal(size=x.shape).astype(np.float32)
    _, state = BatchNorm().init(jax.random.key(0), x)
    params = {"scale": np.float32([1, 2, 3]), "bias": np.ones(3, np.float32)}
    whole, across = BatchNorm(), BatchNorm(axis_name="shards")

    def mapped(params, x, mask):
        f = lambda x, mask: across.apply(params, state, x, train=True, mask=mask)
        if how == "vmap":
            split = lambda a: a.reshape(8, 2, *a.shape[1:])
            y, after = jax.vmap(f, axis_name="shards")(split(x), jax.tree.map(split, mask))
            return y.reshape(x.shape), jax.tree.map(lambda leaf: leaf[0], after)
        mesh = jax.make_mesh((8,), ("shards",), axis_types=(jax.sharding.AxisType.Auto,))
        return jax.shard_map(f, mesh=mesh, in_specs=P("shards"), out_specs=(P("shards"), P()))(x, mask)

    def loss(f):
        def g(params, x):
            y, after = f(params, x, mask)
            return (weights * jnp.sin(y)).sum(), (y, after)

        return jax.jit(jax.value_and_grad(g, (0, 1), has_aux=True))

    expected = loss(lambda params, x, mask: whole.apply(params, state, x, train=True, mask=mask))(params, x)
    got = loss(mapped)(params, x)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), got, expected)
    assert np.abs(x[:2].mean(0) - got[0][1][1]["mean"]).max() > 0.1  # the mean of one shard


def test_single_examples_under_vmap():
    """x has no batch axis; the mapped axis is the batch."""
    layer = BatchNorm(axis_name="batch")
    params, state = layer.init(jax.random.key(0), X[0, 0])
    y, _ = jax.jit(jax.vmap(lambda x: layer.apply(params, state, x, train=True), axis_name="batch"))(X[:, 0])
    np.testing.assert_allclose(y, trained(BatchNorm(), X[:, 0])[0], rtol=1e-5, atol=1e-5)


def test_repeat_is_serial_of_copies():
    """The scan stacks state like params: outputs, states and gradients agree, in training and in evaluation."""
    with jax.enable_x64(True):
        block = lambda: Residual(Dense(4, param_dtype=jnp.float64), BatchNorm(param_dtype=jnp.float64), jnp.tanh)
        deep, flat = Repeat(block(), 2), Serial(*[block() for _ in range(2)])
        x = X[:, 0].astype(np.float64)
        params, state = drawn(deep, x)
        unstacked = lambda tree: tuple(jax.tree.map(lambda leaf, i=i: leaf[i], tree) for i in range(2))

        def loss(net, state, params):
            y, after = net.apply(params, state, x, train=True)
            return (y**2).sum(), after

        grad = lambda net, state, params: jax.jit(jax.grad(functools.partial(loss, net, state), has_aux=True))(params)
        expected_grads, expected_state = grad(flat, unstacked(state), unstacked(params))
        grads, after = grad(deep, state, params)
        close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)
        jax.tree.map(close, unstacked(grads), expected_grads)
        jax.tree.map(close, unstacked(after), expected_state)
        expected = jax.jit(flat.apply)(unstacked(params), expected_state, x)[0]
        np.testing.assert_allclose(jax.jit(deep.apply)(params, after, x)[0], expected, rtol=1e-10, atol=1e-10)


# ---- norms of single examples ----------------------------------------------------------------


def test_layer_norm_of_the_lecture_and_of_transformers():
    """Over (n, c) for each example; over c alone, which has size one here, the output is 0."""
    over_all = layer_norm(T, axes=(-2, -1)).ravel()
    np.testing.assert_allclose(over_all, [-0.99998, 0.99998, -0.9999978, 0.9999978], rtol=1e-6)
    np.testing.assert_array_equal(layer_norm(T), 0)


def test_rms_norm_against_torch(torch):
    """Values and gradients of x and the scale, over two axes."""
    theirs = torch.nn.RMSNorm((5, 4), eps=1e-6, dtype=torch.float64)
    layer = RMSNorm(axes=(-2, -1), param_dtype=jnp.float64)
    x, g = RNG.normal(1.0, 2.0, (2, 6, 5, 4))
    scale = RNG.normal(size=(5, 4))
    theirs.weight.data, x_torch = torch.tensor(scale), torch.tensor(x, requires_grad=True)
    y_torch = theirs(x_torch)
    y_torch.backward(torch.tensor(g))
    with jax.enable_x64(True):
        y, _, of_params, of_x = pulled(lambda p, x: (layer.apply(p, x), ()), {"scale": scale}, x, g)
    np.testing.assert_allclose(y, y_torch.detach(), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(of_x, x_torch.grad, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(of_params["scale"], theirs.weight.grad, rtol=1e-10, atol=1e-10)


def test_group_norm_of_odd_shapes_by_a_loop():
    """Compare with a loop over examples and groups, for any number of batch and spatial axes."""
    cases = ((), (), 2, 2), ((2, 3), (), 2, 1), ((), (2, 1, 3), 1, 3), ((2,), (3, 1), 3, 2)
    inputs = [RNG.normal(size=(*batch, *spatial, groups * size)) for batch, spatial, groups, size in cases]
    every = lambda xs: [
        group_norm(x, groups=groups, spatial=len(spatial)) for x, (_, spatial, groups, _) in zip(xs, cases, strict=True)
    ]
    with jax.enable_x64(True):
        found = compiled(every)(inputs)
    for got, x, (batch, _, groups, size) in zip(found, inputs, cases, strict=True):
        expected = np.empty(x.shape)
        for example in np.ndindex(*batch):
            for group in range(groups):
                part = (*example, ..., slice(group * size, (group + 1) * size))
                v = x[part]
                expected[part] = (v - v.mean()) / np.sqrt(v.var() + 1e-5)
        np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-10)


def test_batch_norm_of_values_whose_squares_overflow_is_not_a_number():
    layer, x = BatchNorm(), np.float32([[3e19], [-3e19]])
    with jax.debug_nans(False):
        outputs, state = trained(layer, x)
    assert np.isnan(outputs).all() and np.isnan(state["variance"]).all()
    np.testing.assert_allclose(trained(layer, x / 100)[0], [[1], [-1]], 1e-6)


def test_norms_of_values_up_to_1e30_and_their_derivatives_at_equal_entries():
    x = np.float32([1, -1, 2, -2])
    for norm in (layer_norm, rms_norm):
        np.testing.assert_allclose(norm(1e30 * x), norm(x, epsilon=0.0), rtol=1e-6)
    same = np.full(4, 3.0, np.float32)
    jacobian, second = compiled(lambda x: (jax.jacobian(layer_norm)(x), jax.jacfwd(jax.jacrev(layer_norm))(x)))(same)
    np.testing.assert_allclose(jacobian, (np.eye(4) - 0.25) * 1e5**0.5, rtol=1e-5)
    np.testing.assert_array_equal(second, 0)  # an odd function around equal entries


@pytest.mark.parametrize("norm", [layer_norm, rms_norm], ids=["layer_norm", "rms_norm"])
def test_norms_with_any_epsilon_are_right_from_1e_30_to_1e30(norm):
    """Values, gradients and products with the Hessian, against the formula in float64: squares leave the range."""

    def formula(x, epsilon):
        centered = x - jnp.mean(x) if norm is layer_norm else x
        return centered / jnp.sqrt(jnp.mean(centered**2) + epsilon)

    def at_scales(norm, dtype, epsilon):
        x = np.array([1, -1.5, 2, -2.25, 0.3, 0], dtype)

        def at(scale):  # derivatives multiplied by the scale have the size of the outputs
            weights, direction = x[::-1] + 1, scale * x[::-1]
            gradient = jax.grad(lambda x: jnp.sum(norm(x, epsilon=epsilon) * weights))
            slope, curve = jax.jvp(gradient, (scale * x,), (direction,))
            return norm(scale * x, epsilon=epsilon), scale * slope, scale * curve

        scales = np.array([1e-30, 1e-22, 1e-19, 1e-10, 1e-3, 1, 1e10, 1e22, 1e30], dtype)
        return compiled(jax.vmap(at))(scales)

    for epsilon in (0.0, 1e-5, np.float32(1e-5)):  # an array has no value while it is traced
        found = at_scales(norm, np.float32, epsilon if isinstance(epsilon, float) else jnp.asarray(epsilon))
        with jax.enable_x64(True):
            expected = at_scales(formula, np.float64, float(epsilon))
        for got, wanted in zip(found, expected, strict=True):
            # Relative to each scale: with an epsilon, those of small deviations are small.
            size = np.maximum(np.abs(wanted).max(-1, keepdims=True), 1e-30)
            np.testing.assert_allclose(got / size, wanted / size, atol=1e-5)


def test_a_traced_epsilon_is_that_of_a_number():
    norm = jax.jit(lambda epsilon, x: layer_norm(x, epsilon=epsilon))
    for epsilon in (1e-30, 1e-15, 1e-5):
        np.testing.assert_array_equal(norm(np.float32(epsilon), np.full(4, 2.0, np.float32)), 0)
        x = np.float32([1e-7, 2e-7, 3e-7, 5e-7])
        np.testing.assert_allclose(norm(np.float32(epsilon), x), layer_norm(x, epsilon=epsilon), rtol=1e-6)
    outlier = np.float32([0] * 63 + [8])  # its deviation is eight times the root of the variance
    for x, epsilon in [(np.float32([1, 2, 3, 6]), np.float32(0.5)), (outlier, np.float32(0.25))]:
        slope = compiled(jax.jacfwd(norm))(epsilon, x)
        np.testing.assert_allclose(slope, -0.5 * (x - x.mean()) / (x.var() + epsilon) ** 1.5, rtol=1e-5)


def test_the_derivative_of_batch_norm_at_large_values():
    """The cube of the root is not representable at a deviation of 1e14, and the derivative is."""
    layer, x = BatchNorm(), 1e14 * X[:, 0]
    params, state = layer.init(jax.random.key(0), x)
    w = RNG.normal(size=x.shape).astype(np.float32)
    loss = lambda x: jnp.sum(jnp.asarray(w, x.dtype) * layer.apply(params, state, x, train=True)[0])
    found = compiled(jax.grad(loss))(x)
    with jax.enable_x64(True):
        expected = compiled(jax.grad(loss))(x.astype(np.float64))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6 * np.abs(expected).max())


def test_weight_norm_of_columns_of_every_length():
    layer = WeightNorm(Dense(3, use_bias=False))
    kernel = np.float32([[3, 3, 0], [4, 4, 0]]) * np.float32([1e-25, 1e25, 0])
    params = {"layer": {"kernel": kernel}, "scale": {"kernel": {"length": np.float32([1, 2, 3])}}}
    apply = lambda kernel: layer.apply(params | {"layer": {"kernel": kernel}}, jnp.ones(2))
    value, jacobian = compiled(lambda kernel: (apply(kernel), jax.jacobian(apply)(kernel)))(kernel)
    np.testing.assert_allclose(value, [1.4, 2.8, 0], rtol=1e-6)
    np.testing.assert_allclose(jacobian[0, :, 0] * 5e-25, [0.16, -0.12], rtol=1e-5)
    np.testing.assert_allclose(jacobian[1, :, 1] * 5e25, [0.32, -0.24], rtol=1e-5)
    np.testing.assert_array_equal(jacobian[2, :, 2], 3)
    layer = WeightNorm(Dense(2, kernel_init=lambda *_: kernel[:, :2]))
    lengths = layer.init(jax.random.key(0), jnp.ones(2))["scale"]["kernel"]["length"]
    np.testing.assert_allclose(lengths, [5e-25, 5e25], rtol=1e-6)


def test_standardizers_of_constant_and_of_tiny_features():
    x = np.float32([[1, 1e-25], [1, 2e-25], [1, 3e-25]])
    deviation = lambda x: fit_standardizer(x)["deviation"]
    value, jacobian = compiled(lambda x: (deviation(x), jax.jacobian(deviation)(x)))(x)
    np.testing.assert_allclose(value, [1, np.sqrt(2 / 3) * 1e-25], rtol=1e-6)
    np.testing.assert_array_equal(jacobian[0], 0)
    np.testing.assert_allclose(jacobian[1, :, 1], np.array([-1, 0, 1]) / 6**0.5, rtol=1e-5, atol=1e-6)


# ---- large values and half precision ---------------------------------------------------------


def one_pass_variance(x, axes):
    """The form without accuracy for large means: mean of squares minus square of the mean."""
    return (x**2).mean(axes) - x.mean(axes) ** 2


def test_a_small_variance_around_a_large_mean():
    """1e4 plus deviations of 1, in float32: two passes keep the variance, one pass does not."""
    x = (1e4 + np.random.default_rng(3).normal(0, 1, (1000, 3))).astype(np.float32)
    expected = np.asarray(x, np.float64).var(0)
    np.testing.assert_allclose(moments(x, 0)[1], expected, rtol=1e-3)
    assert np.abs(one_pass_variance(x, 0) - expected).min() > expected.max()


def test_half_precision_accumulates_in_float32():
    """For values near 1e4, squares and sums overflow in float16; the statistics of the rounded values are accurate."""
    x = (1e4 + RNG.integers(-8, 8, (4, 16, 6)) * 64).astype(np.float16)
    wide, layer = x.astype(np.float64), BatchNorm(epsilon=1e-5)
    params, state = layer.init(jax.random.key(0), x)

    @compiled
    def every(x, params, state):
        fitted = fit_standardizer(x, axes=(0, 1))
        of_group = group_norm(x, groups=2, spatial=1), rms_norm(x), layer_norm(x), instance_norm(x, spatial=1)
        normalized = *of_group, layer.apply(params, state, x, train=True)[0], standardize(x, **fitted)
        return moments(x, (0, 1)), fitted["mean"], normalized

    (mean, variance), fitted_mean, (of_group, of_rms, *others) = every(x, params, state)
    assert mean.dtype == variance.dtype == fitted_mean.dtype == jnp.float32
    np.testing.assert_allclose(mean, wide.mean((0, 1)), rtol=1e-6)
    np.testing.assert_allclose(variance, wide.var((0, 1)), rtol=1e-4)
    tolerance = 2 * float(jnp.finfo(x.dtype).eps)
    for got, axes in zip(others, (-1, 1, (0, 1), (0, 1)), strict=True):
        expected = (wide - wide.mean(axes, keepdims=True)) / np.sqrt(wide.var(axes, keepdims=True) + 1e-5)
        np.testing.assert_allclose(got.astype(np.float32), expected, rtol=tolerance, atol=tolerance)
    assert {y.dtype for y in (of_group, of_rms, *others)} == {x.dtype}
    expected = wide / np.sqrt((wide**2).mean(-1, keepdims=True))
    np.testing.assert_allclose(of_rms.astype(np.float32), expected, rtol=tolerance)


# ---- norms of weights ------------------------------------------------------------------------


def wide_dense(features, use_bias=True):
    return Dense(features, use_bias=use_bias, param_dtype=jnp.float64)


def test_weight_norm_against_torch(torch):
    """Values and gradients for length, direction, bias and x; at init the output is that of the child."""
    x, g = RNG.normal(size=(5, 4)), RNG.normal(size=(5, 3))
    with jax.enable_x64(True):
        net = WeightNorm(wide_dense(3))
        params = compiled(net.init)(jax.random.key(0), x)
        by_child = x @ params["layer"]["kernel"] + params["layer"]["bias"]
        np.testing.assert_allclose(compiled(net.apply)(params, x), by_child, rtol=1e-12)
        params = jax.tree.map(lambda p: p + RNG.normal(size=p.shape), params)
        theirs = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(4, 3, dtype=torch.float64))
        weight = theirs.parametrizations.weight
        weight.original0.data = torch.tensor(np.asarray(params["scale"]["kernel"]["length"]))[:, None]
        weight.original1.data = torch.tensor(np.asarray(params["layer"]["kernel"]).T.copy())
        theirs.bias.data = torch.tensor(np.asarray(params["layer"]["bias"]))
        x_torch = torch.tensor(x, requires_grad=True)
        y_torch = theirs(x_torch)
        y_torch.backward(torch.tensor(g))
        y, _, grads, x_grad = pulled(lambda p, x: (net.apply(p, x), ()), params, x, g)
        for got, expected in (
            (y, y_torch.detach()),
            (x_grad, x_torch.grad),
            (grads["scale"]["kernel"]["length"], weight.original0.grad[:, 0]),
            (grads["layer"]["kernel"], weight.original1.grad.T),
            (grads["layer"]["bias"], theirs.bias.grad),
        ):
            np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-10)


def test_weight_norm_of_a_net_with_state():
    """Each kernel of the child has a length; state, side inputs and other params of the child are unchanged."""
    net = WeightNorm(Serial(Dense(5), BatchNorm(), jnp.tanh, Dense(2)))
    params, state = compiled(net.init)(jax.random.key(0), X)
    assert jax.tree.map(jnp.shape, params["scale"]) == {"0/kernel": {"length": (5,)}, "3/kernel": {"length": (2,)}}
    step = jax.jit(functools.partial(net.apply, train=True))
    y, after = step(params, state, X)
    assert int(after[1]["updates"]) == 1
    of_last = {"length": 2 * params["scale"]["3/kernel"]["length"]}
    doubled = {**params, "scale": {**params["scale"], "3/kernel": of_last}}
    np.testing.assert_allclose(step(doubled, state, X)[0], 2 * y, rtol=1e-5)
    rescaled = {**params, "layer": jax.tree.map(lambda p: 3 * p if p.ndim > 1 else p, params["layer"])}
    np.testing.assert_allclose(step(rescaled, state, X)[0], y, rtol=1e-4, atol=1e-5)


def test_weight_norm_inside_repeat():
    net, x = Repeat(WeightNorm(Dense(4)), 3), X[:, 0]
    params, y = drawn(net, x), x
    for i in range(3):
        y = compiled(WeightNorm(Dense(4)).apply)(jax.tree.map(lambda p, i=i: p[i], params), y)
    np.testing.assert_allclose(compiled(net.apply)(params, x), y, rtol=1e-5, atol=1e-6)


def test_kernels_beside_deeper_kernels():
    """A param named kernel and a dict with another one, of one layer: each kernel is normalized by itself."""

    def init(key, x):
        outer, inner = jax.random.split(key)
        return {"kernel": jax.random.normal(outer, (4, 3)), "next": {"kernel": jax.random.normal(inner, (3, 2))}}

    layer = Layer(init, lambda params, x: x @ params["kernel"] @ params["next"]["kernel"])
    x = X[:, 0]
    params = compiled(WeightNorm(layer).init)(jax.random.key(0), x)
    assert jax.tree.map(jnp.shape, params["scale"]) == {"kernel": {"length": (3,)}, "next/kernel": {"length": (2,)}}
    by_child = x @ params["layer"]["kernel"] @ params["layer"]["next"]["kernel"]
    np.testing.assert_allclose(compiled(WeightNorm(layer).apply)(params, x), by_child, rtol=1e-5, atol=1e-6)
    net = SpectralNorm(layer)
    params, state = jax.eval_shape(net.init, jax.random.key(0), x)
    params = jax.tree.map(lambda p: RNG.normal(size=p.shape).astype(p.dtype), params)
    state = jax.tree.map(lambda v: np.full(v.shape, v.shape[0] ** -0.5, v.dtype), state)
    step, after = jax.jit(functools.partial(net.apply, train=True)), state
    for _ in range(50):
        y, after = step(params, after, x)
    norms = [np.linalg.norm(kernel, 2) for kernel in (params["kernel"], params["next"]["kernel"])]
    expected = x @ params["kernel"] @ params["next"]["kernel"] / np.prod(norms)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-6)
    assert jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, state)


def test_spectral_norm_against_torch(torch):
    """Values, gradients and next vectors from equal vectors, in evaluation and in training."""
    x, g = RNG.normal(size=(5, 4)), RNG.normal(size=(5, 3))
    with jax.enable_x64(True):
        net = SpectralNorm(wide_dense(3), n_iterations=2)
        params, state = compiled(net.init)(jax.random.key(0), x)
        params = jax.tree.map(lambda p: p + RNG.normal(size=p.shape), params)  # no longer converged
        theirs = torch.nn.Linear(4, 3, dtype=torch.float64)
        theirs.weight.data = torch.tensor(np.asarray(params["kernel"]).T.copy())
        theirs.bias.data = torch.tensor(np.asarray(params["bias"]))
        theirs = torch.nn.utils.parametrizations.spectral_norm(theirs, n_power_iterations=2)
        theirs.parametrizations.weight[0]._u.data = torch.tensor(np.asarray(state["vectors"]["kernel"]["outer"]))
        theirs.parametrizations.weight[0]._v.data = torch.tensor(np.asarray(state["vectors"]["kernel"]["inner"]))
        steps = lambda params, x, state: net.apply(params, state, x, train=True)
        evaluations = lambda params, x, state: net.apply(params, state, x)
        for train in (False, True, False):
            theirs.train(train)
            theirs.zero_grad()
            x_torch = torch.tensor(x, requires_grad=True)
            y_torch = theirs(x_torch)
            y_torch.backward(torch.tensor(g))
            f = steps if train else evaluations
            y, state, grads, x_grad = pulled(f, params, x, g, state)
            for got, expected in (
                (y, y_torch.detach()),
                (x_grad, x_torch.grad),
                (grads["kernel"], theirs.parametrizations.weight.original.grad.T),
                (state["vectors"]["kernel"]["outer"], theirs.parametrizations.weight[0]._u),
                (state["vectors"]["kernel"]["inner"], theirs.parametrizations.weight[0]._v),
            ):
                np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-10)


def test_spectral_norm_converges_to_the_largest_singular_value():
    """After enough steps the kernel has norm 1, also for a child with state and kernels with three axes."""

    def Product():
        def init(key, x):
            return {"kernel": jax.random.normal(key, (2, 3, 5))}

        def apply(params, x):
            return x @ params["kernel"].reshape(6, 5)

        return Layer(init, apply)

    net = SpectralNorm(Serial(Product(), BatchNorm()))
    params, state = compiled(net.init)(jax.random.key(3), np.zeros((2, 6), np.float32))
    x = RNG.normal(size=(6, 6)).astype(np.float32)
    step = jax.jit(lambda state: net.apply(params, state, x, train=True)[1])
    for _ in range(200):
        state = step(state)
    kernel = np.asarray(params[0]["kernel"]).reshape(6, 5)
    vectors = state["vectors"]["0/kernel"]
    u, w = (np.asarray(vectors[name]) for name in ("inner", "outer"))
    np.testing.assert_allclose(u @ kernel @ w, np.linalg.svd(kernel)[1][0], rtol=1e-5)
    assert int(state["layer"][1]["updates"]) == 200
    alone = {"layer": (), "vectors": {"kernel": vectors}}
    for factor in 1, 1e38 / np.abs(kernel).max():  # a singular value of 1e38 has no reciprocal
        scaled = jax.tree.map(lambda leaf, by=np.float32(factor): by * leaf, params[0])
        normalized, _ = compiled(SpectralNorm(Product()).apply)(scaled, alone, np.eye(6, dtype=np.float32))
        assert np.linalg.norm(normalized, 2) == pytest.approx(1, rel=1e-5)


def test_kernel_of_zeros_remains_zero_and_has_finite_gradients():
    dense = Dense(3, kernel_init=jax.nn.initializers.zeros)
    params, state = compiled(SpectralNorm(dense).init)(jax.random.key(0), np.zeros(4, np.float32))
    for net, own_params, own_state in (
        (SpectralNorm(dense), params, state),
        (stateful(WeightNorm(dense)), {"layer": params, "scale": {"kernel": {"length": np.zeros(3, np.float32)}}}, ()),
    ):
        total = lambda p, net=net, s=own_state: net.apply(p, s, jnp.ones(4))[0].sum()
        y, grads = jax.jit(jax.value_and_grad(total))(own_params)
        assert float(y) == 0
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))


# ---- errors ---------------------------------------------------------------


def run(layer, *inputs, **side):
    params, state = stateful(layer).init(jax.random.key(0), *inputs)
    return compiled(stateful(layer).apply)(params, state, *inputs, **side)


WHOLE = np.arange(8, dtype=np.int32).reshape(2, 4)
HALVES = np.ones((2, 4), np.float32) * np.float32([[1], [2]])
BAD = {
    "groups": (
        lambda: GroupNorm(groups=3, spatial=1).init(jax.random.key(0), X),
        "divide.*choose a divisor of 4",
        lambda: group_norm(X, groups=4, spatial=1),
    ),
    "too few axes": (
        lambda: group_norm(X, groups=2, spatial=3),
        "with at least 4 axes.*lower the number of spatial axes",
        lambda: group_norm(X, groups=2, spatial=1),
    ),
    "too few axes at init": (
        lambda: InstanceNorm(spatial=2).init(jax.random.key(0), HALVES),
        "lower the number of spatial axes",
        lambda: instance_norm(HALVES, spatial=1),
    ),
    "axes out of range": (lambda: layer_norm(X, axes=3), "from -3 to 2.*axes=3", lambda: layer_norm(X, axes=2)),
    "repeated axes": (lambda: moments(X, (0, -3)), "each of them once", lambda: moments(X, (0, -2))),
    "no axes": (
        lambda: LayerNorm().apply({}, jnp.float32(1)),
        "LayerNorm expected x with at least one axis, got float32",
        lambda: layer_norm(X),
    ),
    "positive axes": (lambda: LayerNorm(axes=2), "negative axes.*-1", lambda: LayerNorm(axes=-1)),
    "positive axes of RMS": (lambda: RMSNorm(axes=(-2, 1)), "negative axes", lambda: RMSNorm(axes=(-2, -1))),
    "scale of another shape": (
        lambda: layer_norm(X, np.ones(5, np.float32)),
        r"scale of shape \(4,\).*float32 \(5,\)",
        lambda: layer_norm(X, np.ones(4, np.float32)),
    ),
    "another number of features": (
        lambda: BatchNorm().apply(*BatchNorm().init(jax.random.key(0), X), X[..., :3], train=True),
        r"mean of shape \(3,\).*made by init for this x",
        lambda: run(BatchNorm(), X[..., :3], train=True),
    ),
    "no feature axis": (
        lambda: BatchNorm().init(jax.random.key(0), X[0, 0, 0]),
        "feature axis",
        lambda: BatchNorm().init(jax.random.key(0), X[0, 0, 0][..., None]),
    ),
    "one example": (
        lambda: run(BatchNorm(), X[:1, 0], train=True),
        "more than one entry.*at least two",
        lambda: run(BatchNorm(), X[:2, 0], train=True),
    ),
    "vmap without axis_name": (
        lambda: jax.vmap(lambda x: run(BatchNorm(), x, train=True))(X[:, 0]),
        "under vmap pass axis_name=",
        lambda: jax.vmap(lambda x: run(BatchNorm(axis_name="a"), x, train=True), axis_name="a")(X[:, 0]),
    ),
    "momentum": (
        lambda: BatchNorm(momentum=1),
        "momentum to be a number >= 0 and < 1 or an array, got 1",
        lambda: BatchNorm(momentum=0),
    ),
    "mask of numbers": (
        lambda: run(BatchNorm(), X, train=True, mask=np.ones((6, 5), np.float32)),
        r"mask to be a boolean array, got float32 \(6, 5\).*write mask > 0 for ones",
        lambda: run(BatchNorm(), X, train=True, mask=np.ones((6, 5), np.float32).astype(bool)),
    ),
    "mask of another shape": (
        lambda: moments(X, 0, mask=np.ones(5, bool)),
        r"such as \(6, 5\) for .*, got bool \(5,\)",
        lambda: moments(X, 0, mask=np.ones((6, 5), bool)),
    ),
    "standardizer's axes": (
        lambda: fit_standardizer(X, axes=-1),
        "first ones of x.*moveaxis",
        lambda: fit_standardizer(np.moveaxis(X, -1, 0), axes=0),
    ),
    "no kernel": (
        lambda: WeightNorm(LayerNorm()).init(jax.random.key(0), X),
        "named kernel.*bias, scale",
        lambda: drawn(WeightNorm(Dense(2)), X),
    ),
    "columns of zeros": (
        lambda: WeightNorm(Dense(2, kernel_init=jax.nn.initializers.zeros)).init(jax.random.key(0), X),
        "columns of zeros.*kernel_init",
        lambda: WeightNorm(Dense(2, kernel_init=jax.nn.initializers.ones)).init(jax.random.key(0), X),
    ),
    "params of another layer": (
        lambda: LayerNorm(use_bias=False).apply({"bias": np.ones(4, np.float32)}, X),
        "LayerNorm expected params named scale, got bias",
        lambda: LayerNorm(use_bias=False).apply({"scale": np.ones(4, np.float32)}, X),
    ),
    "params for a layer without params": (
        lambda: LayerNorm(use_scale=False, use_bias=False).apply({"bias": np.ones(4, np.float32)}, X),
        "LayerNorm expected no params, .*, got a dict",
        lambda: LayerNorm(use_scale=False, use_bias=False).apply((), X),
    ),
    "state of another layer": (
        lambda: BatchNorm().apply(BatchNorm().init(jax.random.key(0), X)[0], (), X, train=True),
        "BatchNorm expected a state of mean, variance and updates, got",
        lambda: run(BatchNorm(), X, train=True),
    ),
}


@pytest.mark.usefixtures("sentences")
@for_each(BAD)
def test_errors_describe_wrong_input_and_their_repair_works(case):
    bad, words, repaired = case
    with pytest.raises((ValueError, TypeError), match=f"(?s){words}"):
        bad()
    repaired()


def test_integers_are_rejected(sentences):
    for f in (layer_norm, lambda x: moments(x, 0), lambda x: run(BatchNorm(), x, train=True)):
        with pytest.raises(
            TypeError, match=r"x to be a floating-point array, got int32 \(2, 4\); convert it with x.astype"
        ):
            f(WHOLE)
        f(WHOLE.astype(np.float32))


# Lengths -----------------------------------------------------------------------------------------------------------


def test_lengths_against_torch():
    """Values and gradients of divisions by a norm, and by the strength of neighboring channels."""
    torch = pytest.importorskip("torch", reason="PyTorch is a reference here; install the parity extra")
    F = torch.nn.functional
    x = np.random.default_rng(0).normal(size=(3, 7))
    pairs = {
        **{
            f"order {order}": (lambda x, o=order: unit_norm(x, order=o), lambda x, o=order: F.normalize(x, o))
            for order in (1, 1.5, 2, 3, np.inf)
        },
        "all axes": (lambda x: unit_norm(x, axes=(0, 1)), lambda x: F.normalize(x.flatten(), dim=0).reshape(3, 7)),
        **{
            f"{size} channels": (
                lambda x, n=size: local_response_norm(x, n, alpha=0.7, k=2.0),
                lambda x, n=size: F.local_response_norm(x[..., None], n, alpha=0.7, k=2.0)[..., 0],
            )
            for size in (1, 4, 5)
        },
    }
    weights = np.random.default_rng(1).normal(size=(3, 7))
    with jax.enable_x64(True):
        both = lambda ours: lambda x: (ours(x), jax.grad(lambda x: jnp.sum(ours(x) * weights))(x))
        found = compiled(lambda x: {name: both(ours)(x) for name, (ours, _) in pairs.items()})(x)
    for name, (_, theirs) in pairs.items():
        leaf = torch.tensor(x, requires_grad=True)
        value = theirs(leaf)
        (value * torch.tensor(weights)).sum().backward()
        np.testing.assert_allclose(found[name][0], value.detach(), rtol=1e-12, err_msg=name)
        np.testing.assert_allclose(found[name][1], leaf.grad, rtol=1e-9, atol=1e-12, err_msg=name)


def test_vectors_of_length_one_at_every_scale(sentences):
    x = np.float32([[3e-38, -4e-38], [3e37, 4e37], [0, 0]])
    np.testing.assert_allclose(compiled(unit_norm)(x), [[0.6, -0.8], [0.6, 0.8], [0, 0]], rtol=1e-6)
    np.testing.assert_allclose(
        compiled(functools.partial(unit_norm, order=1))(x), [[3 / 7, -4 / 7], [3 / 7, 4 / 7], [0, 0]], rtol=1e-6
    )
    long = np.float32([[9e37, -9e37], [3e38, 3e38], [0, 0]])  # a norm above 8.5e37 has no reciprocal
    for order, size in (1, 1 / 2), (3, 2 ** (-1 / 3)), (math.inf, 1):
        y = compiled(functools.partial(unit_norm, order=order))(long)
        np.testing.assert_allclose(y, [[size, -size], [size, size], [0, 0]], rtol=1e-6)
    with pytest.raises(
        ValueError, match=r"unit_norm expected order to be a number >= 1, got 0.5; pass one such as order=1"
    ):
        unit_norm(x, order=0.5)


def test_one_program_serves_all_epsilons():
    x = jnp.ones((3, 11))
    programs = []
    for epsilon in (1e-3, 1e-4, 2e-5):
        layer_norm(x, epsilon=epsilon)
        programs.append(_jitted_examples._cache_size())
    assert len(set(programs)) == 1
