"""Training on several devices and processes gives the numbers of one device, and each device holds its part."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import several_processes
from compiled import drawn, fixed_init
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

import jaxblocks as jb
from jaxblocks import ad, diffusion, models, text, training
from jaxblocks.backend import linear_maps
from jaxblocks.models import GPT2, TransformerMLP
from jaxblocks.sharding import batch_sharding, fully_sharded, mesh_of, shardings, tensor_parallel
from jaxblocks.training import fit, minibatches, sharding_report, sharding_reports, train_state_shapes
from jaxblocks.training.data.rows import take_rows

P = PartitionSpec
MESH = AbstractMesh((2, 4), ("data", "model"))
PARAMS = {
    "up": {"kernel": jax.ShapeDtypeStruct((6, 16), jnp.float32), "bias": jax.ShapeDtypeStruct((16,), jnp.float32)},
    "down": {"kernel": jax.ShapeDtypeStruct((16, 6), jnp.float32)},
}


@pytest.fixture(autouse=True)
def several_devices(monkeypatch):
    """Products as users with several devices have them."""
    monkeypatch.setattr(linear_maps, "_on_one_device", lambda: False)


def specs(tree):
    return jax.tree.map(lambda sharding: sharding.spec, tree)


# ---- rules ---------------------------------------------------------------------------------


def test_rules_are_applied_in_turn():
    """A dict sets the specs of what it selects, later patterns first; a function gets the spec so far."""
    rules = [{"**/kernel": P(None, "model"), "down/*": P("model")}, fully_sharded("data", min_size=1)]
    found = specs(shardings(PARAMS, MESH, rules))
    assert found == {
        "up": {"kernel": P("data", "model"), "bias": P("data")},
        "down": {"kernel": P("model", "data")},
    }
    assert set(jax.tree.leaves(specs(shardings(PARAMS, MESH)))) == {P()}


def test_full_sharding_takes_the_largest_axis_that_is_divisible():
    shapes = {"a": (6, 8, 4), "b": (3, 5), "c": (8, 8), "small": (4,)}
    tree = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    found = specs(shardings(tree, MESH, fully_sharded("model", min_size=5)))
    assert found == {"a": P(None, "model", None), "b": P(), "c": P("model", None), "small": P()}


def test_numbers_of_python_are_replicated():
    found = shardings({"scale": 1.0, "kernel": np.zeros((8, 4))}, MESH, fully_sharded(min_size=0))
    assert found["scale"].spec == P() and found["kernel"].spec == P("data", None)


def test_rules_that_do_not_fit_are_rejected(sentences):
    for rules, error, words in (
        ({"**/kernle": P()}, ValueError, "did you mean"),
        ({"up/kernel": P("model")}, ValueError, r"fits up/kernel, float32 \(6, 16\), .* axis 0 is partitioned 4 times"),
        ({"up/kernel": P(("data", "model"))}, ValueError, "axis 0 is partitioned 8 times"),
        ({"up/bias": P(None, "model")}, ValueError, "at most 1 entries for up/bias"),
        ({"up/bias": P(None, None)}, ValueError, "at most 1 entries for up/bias"),
        ({"up/bias": P("devices")}, ValueError, "fits up/bias, .* not found in mesh"),
        ({"down/kernel": P("model", "model")}, ValueError, "fits down/kernel, .* duplicate"),
        ({"up/bias": "model"}, TypeError, "a PartitionSpec for up/bias"),
        ([None], TypeError, "rules that are dicts or functions"),
        ("fsdp", TypeError, "rules that are dicts or functions, got 'fsdp'"),
        (fully_sharded("devices"), ValueError, "an axis of the mesh"),
        (tensor_parallel("devices"), ValueError, "an axis of the mesh"),
        (fully_sharded, TypeError, r"got the function fully_sharded, which makes one; call it: fully_sharded\(\)"),
        ([tensor_parallel], TypeError, r"call it: tensor_parallel\(\)"),
        (lambda path: P(), TypeError, "a rule of four arguments, got the function <lambda>"),
    ):
        with pytest.raises(error, match=words):
            shardings(PARAMS, MESH, rules)


def test_tensor_parallel_needs_its_axis_and_transformer_blocks(sentences):
    """Without a match it would shard nothing, without a word."""
    params = {"kernel": jax.ShapeDtypeStruct((4, 8), "float32")}
    with pytest.raises(ValueError, match=r"a net with transformer blocks .*, got arrays such as kernel; leave it out"):
        shardings(params, MESH, tensor_parallel())
    assert shardings((), MESH, tensor_parallel()) == ()
    block = {"up": {"kernel": jax.ShapeDtypeStruct((4, 8), "float32")}}
    once, twice = (shardings(block, MESH, [tensor_parallel()] * n) for n in (1, 2))
    assert once == twice
    with pytest.raises(ValueError, match="an axis of the mesh"):
        shardings(params, jax.sharding.AbstractMesh((8,), ("data",)), tensor_parallel())


def test_a_mesh_without_devices_and_rules_beside_a_state_are_rejected(sentences):
    mesh, x = jax.sharding.AbstractMesh((8,), ("data",)), jnp.zeros((16, 3))
    key, net, optimizer = jax.random.key(0), jb.Dense(1), optax.sgd(0.1)
    for call in (
        lambda: fit(net, jb.mse, optimizer, (x, x[:, :1]), key=key, steps=1, batch_size=8, mesh=mesh),
        lambda: jb.init_train_state(key, net, optimizer, x, mesh=mesh),
        lambda: minibatches(key, x, 8, sharding=batch_sharding(mesh)),
    ):
        with pytest.raises(TypeError, match="a mesh of devices, got an AbstractMesh; pass jax.make_mesh"):
            call()
    ts = jb.init_train_state(key, net, optimizer, x)
    with pytest.raises(ValueError, match="fit expected no sharding= beside ts=, which keeps its own, got both"):
        fit(net, jb.mse, optimizer, (x, x[:, :1]), key=key, steps=1, batch_size=8, ts=ts, sharding=fully_sharded())


def test_options_of_rules_are_checked(sentences):
    for wrong, words in (
        (lambda: fully_sharded(min_size=-1), "fully_sharded expected min_size to be"),
        (lambda: fully_sharded(min_size="large"), "fully_sharded expected min_size to be"),
        (lambda: fully_sharded(3), "fully_sharded expected axis to be"),
        (lambda: tensor_parallel(2), "tensor_parallel expected axis to be"),
    ):
        with pytest.raises((TypeError, ValueError), match=words):
            wrong()


def test_a_mesh_is_needed(sentences):
    with pytest.raises(TypeError, match="expected a mesh of devices"):
        shardings(PARAMS, 8)
    with pytest.raises(TypeError, match="expected a mesh of devices, got 'data'; pass for instance jax.make_mesh"):
        shardings(PARAMS, "data")
    with pytest.raises(ValueError, match="a mesh for the sharding"):
        jb.init_train_state(jax.random.key(0), jb.Dense(4), optax.sgd(0.1), jnp.zeros((2, 3)), sharding=fully_sharded())


# ---- training ------------------------------------------------------------------------------


def test_fit_on_a_mesh_equals_fit_on_one_device(as_a_user_has_it):
    """Batch norm over the whole batch, dropout, and a validation set that the devices do not divide."""
    mesh = jax.make_mesh((3, 2), ("data", "model"), devices=jax.devices()[:6])
    rules = [fully_sharded("data", min_size=1), {"0/kernel": P(None, "model")}]
    alone = several_processes.train(progress=False)
    fitted = several_processes.train(progress=False, mesh=mesh, sharding=rules)
    np.testing.assert_allclose(fitted.history.step_loss, alone.history.step_loss, rtol=2e-6)
    np.testing.assert_allclose(fitted.history.validation["loss"], alone.history.validation["loss"], rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), fitted.params, alone.params)
    assert {leaf.sharding.mesh.size for leaf in jax.tree.leaves(fitted.ts)} == {6}
    assert {leaf.sharding.num_devices for leaf in jax.tree.leaves(fitted.params)} == {6}
    kernels = [fitted.params[0]["kernel"], *(m[0]["kernel"] for m in fitted.ts.opt_state[0][1:])]
    assert [kernel.sharding.spec for kernel in kernels] == [P(None, "model")] * 3


def test_a_language_model_on_a_mesh(as_a_user_has_it):
    """Tensor parallel and fully sharded: an eighth of the large arrays on each device, and the losses of one device."""
    net = GPT2(vocab_size=32, max_length=8, layers=1, heads=4, features=16)
    ids = np.random.default_rng(0).integers(0, 32, size=(8, 9))
    mesh = jax.make_mesh((2, 4), ("data", "model"))
    losses, optimizer, values = [], optax.sgd(1e-2, momentum=0.9), drawn(net, ids[:, :-1])
    step = jb.train_step(net, jb.softmax_cross_entropy, optimizer)
    for options in ({}, {"mesh": mesh, "sharding": [tensor_parallel(), fully_sharded(min_size=128)]}):
        given = jb.Layer(lambda key, x: values, net.apply)
        ts = jb.init_train_state(jax.random.key(0), given, optimizer, ids[:, :-1], **options)
        before = [leaf.sharding for leaf in jax.tree.leaves(ts)]
        sharding = batch_sharding(mesh) if options else None
        for x, y in minibatches(jax.random.key(1), (ids[:, :-1], ids[:, 1:]), 8, epochs=2, sharding=sharding):
            ts, value = step(ts, x, y)
            losses.append(float(value))
        assert [leaf.sharding for leaf in jax.tree.leaves(ts)] == before
    np.testing.assert_allclose(losses[2:], losses[:2], rtol=1e-6)
    up, momentum = (tree["blocks"]["mlp"]["up"]["kernel"] for tree in (ts.params, ts.opt_state[0].trace))
    assert up.addressable_shards[0].data.size == momentum.addressable_shards[0].data.size == up.size // 8
    found = specs(jax.tree.map(lambda leaf: leaf.sharding, ts.params))
    assert found["blocks"]["attention"]["query"]["bias"] == P(None, "model")
    assert found["blocks"]["attention"]["out"]["kernel"] == P(None, "model", "data")
    assert found["tokens"]["embedding"] == P("model", "data")


def test_recurrent_layers_and_accumulated_gradients_on_a_mesh(as_a_user_has_it):
    """An LSTM; the second of two batches makes a step of the optimizer."""
    x, y = np.random.default_rng(0).normal(size=(2, 12, 5, 4)).astype(np.float32), np.arange(12) % 3
    recurrent = jb.LSTM(8, kernel_init=fixed_init, recurrent_kernel_init=fixed_init)
    net = jb.Serial(recurrent, lambda x: x[..., -1, :], jb.Dense(3, kernel_init=fixed_init))
    optimizer = optax.MultiSteps(optax.adam(1e-2), every_k_schedule=2).gradient_transformation()
    step, ends = jb.train_step(net, jb.softmax_cross_entropy, optimizer), []
    mesh = jax.make_mesh((4,), ("data",), devices=jax.devices()[:4])
    for options in ({}, {"mesh": mesh, "sharding": fully_sharded(min_size=8)}):
        ts = jb.init_train_state(jax.random.key(0), net, optimizer, x[0], **options)
        for batch in x:
            batch = jax.device_put((batch, y), batch_sharding(mesh) if options else None)
            ts, value = step(ts, *batch)
        ends.append((ts.params, value))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-6), *ends)
    assert ts.params[0]["recurrent_kernel"].addressable_shards[0].data.size == 8 * 32 // 4


def test_functions_of_sharded_params(as_a_user_has_it):
    """Hessian-vector products, norms of the gradient of each example, and a sampler of a diffusion model."""
    x = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)
    net, schedule = jb.MLP(16, 4), diffusion.variance_preserving_schedule()
    params = drawn(net, x)

    @jax.jit
    def run(params, x):
        loss = lambda params, x: jnp.mean(jnp.sin(net.apply(params, x)) ** 2)
        product = jb.hvp(lambda params: loss(params, x), params, jax.tree.map(jnp.cos, params))
        predict = lambda x, time: jnp.tanh(net.apply(params, x))
        grid = diffusion.times(schedule, 3, start=0.8)
        sample = diffusion.ancestral(predict, x, grid, schedule, "eps", key=jax.random.key(1))
        return product, ad.per_example_norms(loss, params, x), sample

    mesh = jax.make_mesh((2, 4), ("data", "model"))
    rules = shardings(params, mesh, fully_sharded("model", min_size=4))
    found = run(jax.device_put(params, rules), jax.device_put(x, batch_sharding(mesh)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), found, run(params, x))


def test_text_of_sharded_params(as_a_user_has_it):
    """Heads and MLPs in parts, keys and values of the cache with them: the tokens of one device."""
    options = dict(vocab_size=32, layers=1, heads=4, features=16, hidden=32)
    ids = np.random.default_rng(0).integers(0, 32, size=(4, 5))
    params, net = drawn(models.Llama(**options), ids), models.Llama(cache=8, **options)
    mesh = jax.make_mesh((2, 4), ("data", "model"))
    on_mesh = jax.device_put(params, shardings(params, mesh, [tensor_parallel(), fully_sharded(min_size=64)]))
    found, expected = (text.generate(net, own, ids, key=jax.random.key(1), steps=3) for own in (on_mesh, params))
    np.testing.assert_array_equal(found, expected)


def test_batches_on_a_mesh(as_a_user_has_it):
    """Each row once, those of `minibatches` without a mesh; JAX arrays and memory maps, too."""
    mesh = jax.make_mesh((4,), ("data",), devices=jax.devices()[:4])
    x = np.arange(24.0).reshape(12, 2)
    for data in (x, jnp.asarray(x)):
        batches = minibatches(jax.random.key(0), data, 4, sharding=batch_sharding(mesh))
        for got, expected in zip(batches, minibatches(jax.random.key(0), x, 4), strict=True):
            assert [shard.data.shape for shard in got.addressable_shards] == [(1, 2)] * 4
            np.testing.assert_array_equal(got, expected)
    with pytest.raises(ValueError, match="a batch_size that is a multiple of the devices"):
        minibatches(jax.random.key(0), x, 6, sharding=batch_sharding(mesh))
    with pytest.raises(ValueError, match="last_batch='drop'"):
        minibatches(jax.random.key(0), x, 4, last_batch="keep", sharding=batch_sharding(mesh))
    with pytest.raises(TypeError, match=r"a sharding of batches, got .*; pass jaxblocks.sharding.batch_sharding\(mesh"):
        minibatches(jax.random.key(0), x, 4, sharding=mesh)


def test_rows_are_read_once():
    """Also where four devices hold the same rows."""

    reads = []

    class Counted:
        shape, dtype = (12, 2), np.dtype(np.float32)

        def __array__(self, dtype=None, copy=None):
            reads.append(1)
            return np.arange(24, dtype=np.float32).reshape(12, 2)

    got = take_rows(Counted(), np.array([5, 0, 7, 1]), batch_sharding(jax.make_mesh((2, 4), ("data", "model"))))
    np.testing.assert_array_equal(got[:, 0], [10, 0, 14, 2])
    assert len(reads) == 2


def test_evaluation_on_a_mesh():
    """With params on a mesh each batch is sharded, unless the devices do not divide it."""
    mesh = jax.make_mesh((8,), ("data",))
    x = np.random.default_rng(0).normal(size=(19, 3)).astype(np.float32)
    net = jb.Dense(2)
    params = net.init(jax.random.key(0), x)
    on_mesh = jax.device_put(params, shardings(params, mesh))
    outputs = jb.predict(net, on_mesh, (), x, batch_size=16)
    np.testing.assert_allclose(outputs, jb.predict(net, params, (), x), rtol=1e-6)
    shared = jax.make_jaxpr(lambda x: take_rows(x, np.arange(16), batch_sharding(mesh)))(x)
    assert "sharding_constraint" in str(shared)
    traced = jax.jit(lambda x: jb.predict(net, on_mesh, (), x, batch_size=16))(x)
    np.testing.assert_allclose(traced, outputs, rtol=1e-6)
    mean = lambda params: jb.evaluate(net, params, (), (x, x[:, :2]), {"mse": jb.mse}, batch_size=8)["mse"]
    assert mean(on_mesh) == pytest.approx(mean(params), rel=1e-6)
    seen = []
    spy = lambda outputs, y: jax.debug.inspect_array_sharding(outputs, callback=seen.append) or jb.mse(outputs, y)
    jb.evaluate(net, on_mesh, (), (x[:16], x[:16, :2]), {"mse": spy}, batch_size=16)
    assert {sharding.shard_shape((16, 2)) for sharding in seen} == {(2, 2)}


def test_a_training_state_of_one_device_is_rejected_on_a_mesh(as_a_user_has_it):
    net, x = jb.Dense(1), np.ones((8, 2), np.float32)
    ts = jb.init_train_state(jax.random.key(0), net, optax.sgd(0.1), x)
    mesh = jax.make_mesh((8,), ("data",))
    options = dict(key=jax.random.key(0), steps=1, batch_size=8, progress=False, mesh=mesh)
    with pytest.raises(ValueError, match="a ts whose arrays are on the mesh.* make it with init_train_state"):
        jb.fit(net, jb.mse, optax.sgd(0.1), (x, x[:, :1]), ts=ts, **options)
    ts = jb.init_train_state(jax.random.key(0), net, optax.sgd(0.1), x, mesh=mesh)
    assert mesh_of(ts).size == 8
    jb.fit(net, jb.mse, optax.sgd(0.1), (x, x[:, :1]), ts=ts, **options)


def test_data_on_a_mesh_with_explicit_axes(as_a_user_has_it, sentences):
    """The default axes of `jax.make_mesh`, in context: the numbers of one device, and arrays with automatic axes."""
    mesh, optimizer = jax.make_mesh((8,), ("data",)), optax.sgd(0.1)
    assert mesh.axis_types == (AxisType.Explicit,)
    x, y = np.random.default_rng(0).normal(size=(16, 6)).astype(np.float32), np.arange(16) % 3
    net = jb.Serial(jb.Dense(8, kernel_init=fixed_init), jb.BatchNorm(), jb.tanh, jb.Dense(3, kernel_init=fixed_init))
    step = jb.train_step(net, jb.softmax_cross_entropy, optimizer)

    def results(data, mesh):
        replicated = lambda tree: tree if mesh is None else jax.device_put(tree, NamedSharding(mesh, P()))
        key = replicated(jax.random.key(0))
        split, [batch] = jb.train_val_test_split(key, data), minibatches(key, data, 12)
        ts, value = step(jb.init_train_state(key, net, optimizer, x, mesh=mesh), *data)
        net_of_ts = (net, *replicated((ts.params, ts.state)))
        evaluated = jb.evaluate(*net_of_ts, data, {"accuracy": jb.accuracy}, batch_size=8)
        outputs = jb.predict(*net_of_ts, data[0], batch_size=8)
        arguments = (net, jb.softmax_cross_entropy, optimizer, data)
        options = dict(key=key, steps=3, batch_size=8, progress=False)
        fitted = fit(*arguments, ts=ts, mesh=mesh, validation=data, **options)
        tested = training.find_learning_rate(*arguments[:2], optax.sgd, data, key=key, steps=30, batch_size=8)
        return split, batch, ts.params, value, evaluated, outputs, fitted.params, tested.losses

    expected = results((x, y), None)
    data = jax.device_put((x, y), NamedSharding(mesh, P("data")))
    one, _ = step(jb.init_train_state(jax.random.key(0), net, optimizer, x), x, y)  # of one device
    of_one = lambda: jb.evaluate(net, one.params, one.state, data, {"accuracy": jb.accuracy}, batch_size=8)
    with jax.set_mesh(mesh):
        found = results(data, mesh)
        assert of_one() == expected[4]
        np.testing.assert_allclose(jb.predict(net, one.params, one.state, data[0]), expected[5], rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="a ts on the mesh of the batch, .* make it with init_train_state"):
        step(jb.init_train_state(jax.random.key(0), net, optimizer, x), *data)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), found, expected)
    assert mesh_of(found).axis_types == (AxisType.Auto,)


@pytest.mark.parametrize("in_context", [False, True])
def test_traced_functions_on_a_mesh_with_explicit_axes(as_a_user_has_it, sentences, in_context):
    """JAX changes no mesh while it traces: the types of arrays stay explicit."""
    mesh, optimizer = jax.make_mesh((8,), ("data",)), optax.sgd(0.1)
    net = jb.Serial(jb.Dense(8, kernel_init=fixed_init), jb.tanh, jb.Dense(2, kernel_init=fixed_init))
    x = np.random.default_rng(0).normal(size=(16, 6)).astype(np.float32)
    step, ts = jb.train_step(net, jb.mse, optimizer), jb.init_train_state(jax.random.key(0), net, optimizer, x)

    def results(ts, x):
        value = jax.jit(lambda ts, x: step(ts, x, x[:, :2])[1])(ts, x)
        return value, jax.jit(lambda ts, x: jb.predict(net, ts.params, (), x))(ts, x)

    of_constants = lambda params, x: jax.jit(lambda params: jb.predict(net, params, (), x))(params)

    expected = results(ts, x)
    data = jax.device_put(ts, NamedSharding(mesh, P())), jax.device_put(x, NamedSharding(mesh, P("data")))
    with jax.set_mesh(mesh) if in_context else contextlib.nullcontext():
        found = results(*data)
        np.testing.assert_allclose(of_constants(data[0].params, data[1]), expected[1], rtol=1e-5, atol=1e-6)
        jax.grad(lambda params: jb.predict(net, params, (), x).sum())(ts.params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), found, expected)
    on_mesh = jb.init_train_state(jax.random.key(0), net, optimizer, x, mesh=mesh)
    with pytest.raises(ValueError, match="a ts on the mesh of the batch, .* and shard the batch by batch_sharding"):
        results(on_mesh, data[1])
    results(on_mesh, jax.device_put(x, batch_sharding(mesh)))


def test_a_step_on_a_mesh_with_explicit_axes_is_lowered_and_donates(as_a_user_has_it, sentences):
    mesh, net, optimizer = jax.make_mesh((8,), ("data",)), jb.Dense(2), optax.sgd(0.1)
    sharding = NamedSharding(mesh, P("data"))
    x, shape = jax.device_put(np.ones((8, 2), np.float32), sharding), jax.ShapeDtypeStruct((8, 2), jnp.float32)
    step = jb.train_step(net, jb.mse, optimizer, donate=True)
    ts = jb.init_train_state(jax.random.key(0), net, optimizer, x, mesh=mesh)
    for batch in (x, shape.update(sharding=sharding)):
        assert step.lower(ts, batch, batch).compile()(ts, *jax.device_put((x, x), batch_sharding(mesh)))
        ts = jb.init_train_state(jax.random.key(0), net, optimizer, x, mesh=mesh)
    ts = jax.device_put(ts, NamedSharding(mesh, P()))
    step(ts, x, x)
    with pytest.raises(ValueError, match="got some that a step has donated"):
        step(ts, x, x)
    ts = jb.init_train_state(jax.random.key(0), net, optimizer, np.ones((8, 2)))
    with pytest.raises(TypeError, match="got a DataFrame of pandas; write x.to_numpy()"):
        step.__wrapped__(ts, pytest.importorskip("pandas").DataFrame(np.ones((8, 2))), x)


def test_a_run_continues_on_another_mesh(as_a_user_has_it, tmp_path):
    """Four devices, then eight with other rules, then one: the losses of a run on one device."""
    pytest.importorskip("orbax.checkpoint", reason="checkpoints require orbax")
    x, y = several_processes.data()

    def run(steps, **options):
        options = dict(key=jax.random.key(0), steps=steps, batch_size=24, progress=False, **options)
        return jb.fit(jb.Dense(8, kernel_init=fixed_init), jb.mse, optax.adam(1e-2), (x, np.tile(y, 8)), **options)

    four = jax.make_mesh((2, 2), ("data", "model"), devices=jax.devices()[:4])
    run(1, checkpoint_dir=tmp_path, mesh=four, sharding={"kernel": P(None, "model")})
    eight = jax.make_mesh((8,), ("data",))
    second = run(2, checkpoint_dir=tmp_path, mesh=eight, sharding=fully_sharded(min_size=1))
    assert second.params["kernel"].sharding.spec == P(None, "data")
    last = run(3, checkpoint_dir=tmp_path)
    assert len(jax.tree.leaves(last.params)[0].sharding.device_set) == 1
    np.testing.assert_allclose(last.history.step_loss, run(3).history.step_loss, rtol=2e-6)


def test_a_training_state_keeps_its_sharding(as_a_user_has_it):
    """In programs that are lowered from shapes, and in `fit` without a mesh on data of one device."""
    net, x, mesh = jb.Dense(8), jnp.ones((8, 2)), jax.make_mesh((8,), ("data",))
    options = dict(mesh=mesh, sharding=fully_sharded(min_size=1))
    ts = jb.init_train_state(jax.random.key(0), net, optax.sgd(0.1), x, **options)
    before = jax.tree.map(lambda leaf: leaf.sharding, ts)
    shapes = train_state_shapes(net, optax.sgd(0.1), x, **options)
    program = jb.train_step(net, jb.mse, optax.sgd(0.1)).lower(shapes, x, jnp.ones((8, 8))).compile()
    assert program.output_shardings[0] == before
    data = (x, jnp.ones((8, 8)))
    fitted = jb.fit(
        net, jb.mse, optax.sgd(0.1), data, ts=ts, key=jax.random.key(0), steps=1, batch_size=8, progress=False
    )
    assert jax.tree.map(lambda leaf: leaf.sharding, fitted.ts) == before


def test_a_mesh_in_context():
    """With automatic axes the products of layers are sharded by batch, also where arrays come from one device."""
    net, x = jb.Dense(3), np.random.default_rng(0).normal(size=(8, 5)).astype(np.float32)
    params = net.init(jax.random.key(0), x)
    loss = lambda params: jnp.sum(net.apply(params, x) ** 2)
    expected, gradient = jax.jit(jax.value_and_grad(loss))(params)
    constrained = lambda x: "sharding_constraint" in str(jax.make_jaxpr(net.apply)(params, x))
    with jax.set_mesh(jax.make_mesh((8,), ("data",))):
        assert not constrained(x)
    with jax.set_mesh(batch_sharding(jax.make_mesh((8,), ("data",))).mesh):
        assert constrained(x) and not constrained(x[:7]) and not constrained(x[0])
        value, found = jax.jit(jax.value_and_grad(loss))(params)
        np.testing.assert_allclose(net.apply(params, x), x @ np.asarray(params["kernel"]), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), found, gradient)


# ---- reports -------------------------------------------------------------------------------


def test_report_of_data_parallel_training(as_a_user_has_it):
    """One all-reduce of the gradient and of the loss, no other communication; the bytes of params and of Adam."""
    x, y = jax.ShapeDtypeStruct((16, 8), jnp.float32), jax.ShapeDtypeStruct((16,), jnp.int32)
    mesh = jax.make_mesh((8,), ("data",))
    report = sharding_report(jb.MLP(32, 4), jb.softmax_cross_entropy, optax.adam(1e-3), x, y, mesh=mesh)
    params = 4 * (8 * 32 + 32 + 32 * 4 + 4)
    assert (report.devices, report.params, report.opt_state) == (8, params, 2 * params + 4)
    assert {each.kind for each in report.collectives} == {"all-reduce"}
    assert sum(each.bytes for each in report.collectives) == params + 4
    assert report.replicated[0] == ("0/kernel", 4 * 8 * 32) and len(report.replicated) == 4
    assert "communication" in repr(report) and "all-reduce of" in repr(report)


def test_report_counts_the_layers_of_a_repeat(as_a_user_has_it):
    """Tensor parallel MLPs: one all-reduce of activations for each copy forward, one backward."""
    net = jb.Repeat(jb.Residual(TransformerMLP(8, 4, use_bias=False)), 3)
    x = jax.ShapeDtypeStruct((2, 4), jnp.float32)
    mesh = jax.make_mesh((1, 4), ("data", "model"), devices=jax.devices()[:4])
    rules = {"**/up/kernel": P(None, None, "model"), "**/down/kernel": P(None, "model")}
    report = sharding_report(net, jb.mse, optax.sgd(0.1), x, x, mesh=mesh, sharding=rules)
    assert report.params == 4 * 3 * 2 * 8 * 4 // 4 and report.replicated == ()
    assert sum(each.count for each in report.collectives if each.bytes) in (5, 6)  # the input of the first is constant
    assert all(each.bytes == each.count * 4 * 2 * 4 for each in report.collectives)
    assert {each.layer.split("/")[-1] for each in report.collectives} <= {"up", "down"}


def test_params_in_parts_are_gathered_layer_by_layer(as_a_user_has_it):
    """Each param once forward and, in the loop, once backward; each gradient is reduced once; no activation is sent."""
    mlp = TransformerMLP(256, 64, use_bias=False, gated=True)
    net = jb.Serial(jb.Dense(64, use_bias=False), jb.Repeat(jb.Residual(mlp), 3), jb.Dense(512, use_bias=False))
    x, y = jax.ShapeDtypeStruct((16, 128, 64), jnp.float32), jax.ShapeDtypeStruct((16, 128), jnp.int32)
    options = dict(mesh=jax.make_mesh((8,), ("data",)), sharding=fully_sharded())
    report = sharding_report(net, jb.softmax_cross_entropy, optax.sgd(0.1), x, y, **options)
    first, blocks, last = 4 * 64 * 64, 4 * 3 * 3 * 64 * 256, 4 * 64 * 512
    by_kind = dict.fromkeys(("all-gather", "all-reduce"), 0)
    for each in report.collectives:
        by_kind[each.kind] += each.bytes
    assert by_kind == {"all-gather": first + 2 * blocks + last, "all-reduce": first + blocks + last + 4}
    assert report.gathered == ()


def test_results_of_an_asynchronous_collective_are_counted_once():
    """As on GPU, where the start of a collective also returns its operand."""
    text = """
ENTRY %main (p: f32[2,4]) -> f32[8,4] {
  %s = (f32[2,4], f32[8,4]) all-gather-start(f32[2,4] %p), metadata={op_name="jit(step)/jvp(hidden)/dot"}
  ROOT %d = f32[8,4] all-gather-done((f32[2,4], f32[8,4]) %s), metadata={op_name="jit(step)/jvp(hidden)/dot"}
}
"""
    assert sharding_reports._collectives(text) == (sharding_reports.Collective("all-gather", "hidden", 1, 4 * 8 * 4),)


def test_one_branch_of_a_conditional_is_counted():
    """The one that communicates most; also for a condition with two branches."""
    text = """
%one (p: f32[2]) -> f32[2] {
  ROOT %r = f32[2] all-reduce(f32[2] %p), metadata={op_name="jit(step)/jvp(hidden)/cond/branch_0_fun/psum"}
}

%two (p: f32[2]) -> f32[8] {
  ROOT %r = f32[8] all-gather(f32[2] %p), metadata={op_name="jit(step)/jvp(hidden)/cond/branch_1_fun/gather"}
}

ENTRY %main (p: f32[2]) -> f32[8] {
  %a = f32[8] conditional(s32[] %i, f32[2] %p, f32[2] %p), branch_computations={%one, %two}
  ROOT %b = f32[8] conditional(pred[] %c, f32[2] %p, f32[2] %p), true_computation=%two, false_computation=%one
}
"""
    assert sharding_reports._collectives(text) == (sharding_reports.Collective("all-gather", "hidden", 2, 2 * 4 * 8),)


def test_activations_that_are_gathered_are_reported(as_a_user_has_it):
    """Three heads on two devices: XLA gathers queries, keys and values."""
    net, x = jb.Serial(attention=jb.Attention(3)), jax.ShapeDtypeStruct((8, 16, 24), jnp.float32)
    mesh = jax.make_mesh((1, 2), ("data", "model"), devices=jax.devices()[:2])
    report = sharding_report(net, jb.mse, optax.sgd(0.1), x, x, mesh=mesh, sharding=tensor_parallel())
    (layer, size), *_ = report.gathered
    assert layer == "attention" and size >= 3 * 4 * 8 * 16 * 24 and "gathers activations of attention" in repr(report)


def test_report_of_an_abstract_mesh():
    shapes = jax.ShapeDtypeStruct((16, 8), jnp.float32), jax.ShapeDtypeStruct((16, 64), jnp.float32)
    report = sharding_report(
        jb.Dense(64), jb.mse, optax.sgd(0.1), *shapes, mesh=AbstractMesh((256,), ("data",)), sharding=()
    )
    assert (report.devices, report.params, report.collectives) == (256, 4 * (8 * 64 + 64), None)
