"""Gradient accumulation: parts of a batch give the step of the whole batch, with weights and on a mesh."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxblocks as jb
from jaxblocks.sharding import batch_sharding, fully_sharded

RNG = np.random.default_rng(0)
X = RNG.normal(size=(8, 3)).astype(np.float32)
# Five of the first eight labels count, four in one part and one in the other.
Y = np.array([0, -1, 1, -1, 1, -1, 0, 1], np.int32)


@pytest.fixture(autouse=True)
def _as_a_user(as_a_user_has_it):
    """Optax requires standard promotion."""


def weighted(logits, y):
    return jb.softmax_cross_entropy(logits, y, where=y >= 0), y >= 0


def penalty(params):
    return 0.1 * jb.l2_penalty(params)


def stepped(net, loss, optimizer, *batch, n=1, place=None, **side):
    options = {} if place is None else {"mesh": place, "sharding": fully_sharded(min_size=4)}
    ts = jb.init_train_state(jax.random.key(0), net, optimizer, X, **options, **side)
    if place is not None:
        batch, side = jax.device_put((batch, side), batch_sharding(place))
    step = jb.train_step(net, loss, optimizer, penalty=penalty, accumulate=n, donate=False)
    return step(ts, *batch, **side)


def close(a, b, tolerance=1e-5):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), a, b)


def test_parts_give_the_step_of_the_whole_batch():
    """Weights, a penalty, a side input of each example, a line search; on one device and on a mesh of four."""
    net = jb.Wire(lambda f, x, *, shift: f.net(x + shift), net=jb.MLP(5, 2, activation=jb.tanh))
    side = {"shift": X[:, :1]}
    search = optax.chain(optax.sgd(0.5), optax.scale_by_backtracking_linesearch(max_backtracking_steps=3))
    mesh = jax.make_mesh((4,), ("data",), devices=jax.devices()[:4])
    for loss, optimizer, place in (
        (weighted, search, None),
        (weighted, optax.sgd(0.5), mesh),
        (lambda logits, y: jb.softmax_cross_entropy(logits, jnp.maximum(y, 0)), optax.sgd(0.5), None),
    ):
        ts, value = stepped(net, loss, optimizer, X, Y, **side)
        parts, value_of_parts = stepped(net, loss, optimizer, X, Y, n=2, place=place, **side)
        close((parts.params, value_of_parts), (ts.params, value))

    # The mean of the means of the parts is another number.
    @jax.jit
    def means(params):
        logits = net.apply(params, X, **side)
        of = lambda logits, y: jb.losses.weighted_mean(*weighted(logits, jnp.asarray(y)))
        return [of(logits[i::2], Y[i::2]) for i in range(2)], of(logits, Y)

    parts, whole = means(ts.params)
    assert abs(sum(parts) / 2 - whole) > 1e-3


def test_arrays_without_the_batch_axis_are_whole_in_each_part():
    net = jb.Wire(lambda f, x, shift: f.net(x + shift), net=jb.Dense(2))
    ts = jb.init_train_state(jax.random.key(0), net, optax.sgd(1.0), X, X[:1])
    loss = lambda outputs, y: ((outputs - y["center"]) ** 2).sum(-1) * y["scale"]
    batch = (X, X[:1]), {"center": np.float32([[1, 2]]), "scale": Y.astype(np.float32)}
    parts, whole = (jb.train_step(net, loss, optax.sgd(1.0), accumulate=n)(ts, *batch) for n in (4, 1))
    close((parts[0].params, parts[1]), (whole[0].params, whole[1]))


def test_nothing_that_counts_gives_no_gradient():
    net = jb.Dense(2)
    begin = jb.init_train_state(jax.random.key(0), net, optax.sgd(1.0), X).params
    none = np.full(8, -1, np.int32)
    ts, value = stepped(net, weighted, optax.sgd(1.0), X, none, n=4)
    close(ts.params, jax.tree.map(lambda p, g: p - g, begin, jax.grad(penalty)(begin)))
    close(value, penalty(begin))


def test_batch_norm_sees_the_parts_in_turn():
    """Each part is normalized by its own statistics, and the running ones have one update for each part."""
    net = jb.BatchNorm(momentum=0.9)
    ts, _ = stepped(net, lambda outputs, y: outputs.sum(-1) ** 2, optax.sgd(0.1), X, Y, n=2)
    params, state = net.init(jax.random.key(0), X)
    for i in range(2):
        _, state = net.apply(params, state, X[i::2], train=True)
    close(ts.state, state)


def test_random_layers_draw_anew_in_each_part():
    net = jb.Dropout(0.5)
    kept = lambda outputs, y: (jnp.where(outputs != 0, y[:, None], 0.0), jnp.ones(outputs.shape))
    x, y = np.ones((64, 1), np.float32), np.tile(np.float32([1, -1]), 32)
    ts = jb.init_train_state(jax.random.key(0), net, optax.sgd(1.0), x)
    _, value = jb.train_step(net, kept, optax.sgd(1.0), accumulate=2)(ts, x, y)
    assert value != 0  # with one mask for both parts the signs would cancel


@pytest.mark.parametrize("n", [1, 2])
def test_a_penalty_is_one_real_number(n):
    """A Python number too, such as the 0 of a penalty that is switched off."""
    ts = jb.init_train_state(jax.random.key(0), jb.Dense(1), optax.sgd(0.5), X)
    after = lambda own: jb.train_step(jb.Dense(1), jb.mse, optax.sgd(0.5), penalty=own, accumulate=n)(ts, X, X[:, :1])
    plain, value = after(None)
    for number in (2, 2.0, np.float32(2)):
        moved, more = after(lambda params, number=number: number)
        close((moved.params, more), (plain.params, value + 2))
    for wrong, got in (
        (lambda params: params["kernel"] ** 2, r"float32 \(3, 1\)"),
        (lambda params: params["bias"], r"float32 \(1,\)"),
        (lambda params: jnp.sum(params["kernel"]) + 1j, r"complex64 \(\)"),
        (lambda params: jnp.int32(1), r"int32 \(\)"),
        (lambda params: None, "None"),
    ):
        with pytest.raises(TypeError, match=rf"^train_step expected penalty\(params\) to be one real .*, got {got};"):
            after(wrong)
    # The repair.
    total = lambda params: jnp.sum(params["kernel"] ** 2)
    close(after(total)[1], value + total(ts.params))


def test_parts_inside_of_shard_map():
    """Each device divides by the weights of its own examples; JAX then sums the gradients of shared params."""
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    net = jb.Serial(jb.Dense(2), jb.BatchNorm(), jb.Frozen(jb.Dense(2)))
    ts = jb.init_train_state(jax.random.key(0), net, optax.sgd(0.5), X)

    def after(n, x, y):
        specs = dict(in_specs=(jax.P(), jax.P("d"), jax.P("d")), out_specs=(jax.P(), jax.P("d")))
        step = jb.train_step(net, weighted, optax.sgd(0.5), penalty=penalty, accumulate=n)

        def own(ts, x, y):
            after, value = step(ts, x, y)
            return after.params, value[None]

        return jax.jit(jax.shard_map(own, mesh=mesh, **specs))(ts, x, y)

    # Both parts of a device have the same rows and hence the statistics of the whole.
    close(after(2, X.repeat(2, axis=0), Y.repeat(2)), after(1, X, Y))


def test_gradients_of_devices_in_a_shard_map_are_summed():
    """A scale of one over their number gives the step of the whole batch."""
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    net, loss = jb.Dense(2), lambda outputs, y: jnp.square(outputs[..., 0] - y)
    specs = dict(in_specs=(jax.P(), jax.P("d"), jax.P("d")), out_specs=jax.P())

    def params_after(optimizer, placed=lambda own: own):
        ts = jb.init_train_state(jax.random.key(0), net, optimizer, X)
        step = jb.train_step(net, loss, optimizer)
        return jax.jit(placed(lambda ts, x, y: step(ts, x, y)[0].params))(ts, X, Y)

    scaled = optax.chain(optax.scale(1 / 2), optax.sgd(0.5))
    close(params_after(scaled, lambda own: jax.shard_map(own, mesh=mesh, **specs)), params_after(optax.sgd(0.5)))


def test_what_cannot_be_accumulated_is_rejected():
    net = jb.Dense(2)
    for x, y, n, got in (
        (X, Y, 3, r"a batch of a multiple of accumulate=3 examples, got float32 \(8, 3\)"),
        (X[:0], Y[:0], 2, r"at least one row in x, got float32 \(0, 3\)"),
        ((), Y, 2, "a batch of a multiple of .*, got no arrays"),
        (X, Y[:4], 2, r"x and y with the same number of rows, got x float32 \(8, 3\) and y int32 \(4,\)"),
    ):
        with pytest.raises(ValueError, match=f"^train_step expected {got}"):
            stepped(net, weighted, optax.sgd(1.0), x, y, n=n)
    for reduced in (jnp.mean, jnp.sum, lambda values: jb.weighted_mean(values, jnp.ones(len(values)))):
        with pytest.raises(ValueError, match="^train_step expected a loss of one number per example .* single number"):
            stepped(net, lambda outputs, y, reduced=reduced: reduced(outputs.sum(-1)), optax.sgd(1.0), X, Y, n=2)
    of_outputs = lambda outputs, y: (outputs.sum(-1), jnp.square(outputs).sum(-1))
    for n in (1, 2):
        with pytest.raises(ValueError, match="weights that do not depend on the params .* through jax.lax.stop"):
            stepped(net, of_outputs, optax.sgd(1.0), X, Y, n=n)
    with pytest.raises(ValueError, match="BatchNorm expected more than one entry") as caught:
        stepped(jb.BatchNorm(), weighted, optax.sgd(1.0), X, Y, n=8)
    assert caught.value.__notes__[-1] == "in each of accumulate=8 parts of the batch, of 1 example each"
    constant = lambda outputs, y: (outputs.sum(-1), jax.lax.stop_gradient(jnp.square(outputs).sum(-1)))
    stepped(net, constant, optax.sgd(1.0), X, Y, n=2)


def test_weights_under_multi_steps_are_rejected():
    optimizer = optax.MultiSteps(optax.sgd(0.5), every_k_schedule=2).gradient_transformation()
    with pytest.raises(
        ValueError,
        match="^train_step expected .* averages .* whatever their weights, got .*; pass accumulate= to train_step",
    ):
        stepped(jb.Dense(2), weighted, optimizer, X, Y)
