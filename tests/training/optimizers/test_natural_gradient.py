"""The KFAC optimizer against the natural gradient in NumPy, inside of train_step, and its example at toy size."""

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from legible import saved_pictures
from repository import ROOT

import jaxblocks as jb
from jaxblocks.training import kfac, scale_by_kfac

RNG = np.random.default_rng(0)
X1, X2 = RNG.normal(size=(2, 6, 3))
Y = RNG.normal(size=(6, 2))


def half_square(outputs, y):
    return jnp.sum((outputs - y) ** 2, axis=-1) / 2


def linear(w, x):
    return x @ w


def test_steps_are_the_natural_gradient_of_averaged_factors():
    """Steps 0 and 2 update the factors, step 1 does not; the constraint bounds the norm of each step.

    KFAC is exact for a linear model, so EKFAC takes the same steps, from averages that are turned to new eigenvectors.
    """
    with jax.enable_x64(True):
        options = dict(damping=0.1, decay=0.75, every=2)
        plain = scale_by_kfac(linear, half_square, (X1, Y), **options)
        bounded = scale_by_kfac(linear, half_square, (X1, Y), norm_constraint=0.01, **options)
        turned = scale_by_kfac(linear, half_square, (X1, Y), structure="ekfac", **options)
        optimizers = plain, bounded, turned
        g = jnp.asarray(RNG.normal(size=(3, 2)))

        @jax.jit
        def run(w, batches):
            def step(states, batch):
                outs = [own.update(g, state, w, batch=batch) for own, state in zip(optimizers, states, strict=True)]
                return [state for _, state in outs], [update for update, _ in outs]

            return jax.lax.scan(step, [own.init(w) for own in optimizers], batches)[1]

        batches = jnp.stack([X1, X2, X2]), jnp.stack([Y, Y, Y])
        updates, limited, others = run(jnp.zeros((3, 2)), batches)
        first, second = X1.T @ X1 / 6, X2.T @ X2 / 6
        averages = first, first, (first + second) / 2
        for update, short, other, A in zip(updates, limited, others, averages, strict=True):
            expected = np.linalg.solve(A + 0.1 * np.eye(3), g)  # B is the identity: half squared errors of two outputs
            np.testing.assert_allclose(update, expected, rtol=1e-9)
            np.testing.assert_allclose(other, expected, rtol=1e-9)
            np.testing.assert_allclose(short, expected * np.sqrt(0.01 / np.sum(expected * g)), rtol=1e-9)


@pytest.mark.parametrize("structure", ["kfac", "ekfac"])
def test_each_device_steps_by_the_curvature_of_its_own_examples(structure):
    """Inside of `shard_map`, where JAX sums the gradients of shared params over the devices."""
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    g = RNG.normal(size=(3, 2))
    with jax.enable_x64(True):

        def own(w, x, y):
            optimizer = scale_by_kfac(linear, half_square, (x, y), damping=0.1, every=2, structure=structure)
            first, state = optimizer.update(g, optimizer.init(w), w, batch=(x, y))
            second, _ = optimizer.update(g, state, w, batch=(x, y))
            return jnp.stack([first, second])

        specs = dict(in_specs=(jax.P(), jax.P("d"), jax.P("d")), out_specs=jax.P("d"))
        found = jax.jit(jax.shard_map(own, mesh=mesh, **specs))(jnp.zeros((3, 2)), X1, Y)
        expected = [np.linalg.solve(x.T @ x / 3 + 0.1 * np.eye(3), g) for x in np.split(X1, 2)]
        np.testing.assert_allclose(found, np.repeat(expected, 2, axis=0), rtol=1e-9)


def test_in_the_training_step():
    """train_step passes the batch after augment. One step solves a linear problem; the next moves by momentum only."""
    net = jb.Dense(2, use_bias=False)
    x, y = jnp.asarray(X1, jnp.float32), jnp.asarray(Y, jnp.float32)
    options = dict(damping=0.0, adaptive=False)
    optimizer = kfac(jb.ad.as_function(net), half_square, (x, y), optax.constant_schedule(1.0), **options)
    start = jb.init_train_state(jax.random.key(0), net, optimizer, x)
    doubled = lambda key, x: 2 * x
    step = jb.train_step(net, half_square, optimizer, augment=doubled, donate=False)
    first, _ = step(start, x / 2, y)
    second, _ = step(first, x / 2, y)
    solution = np.linalg.lstsq(X1, Y, rcond=None)[0]
    kernels = [ts.params["kernel"] for ts in (start, first, second)]
    np.testing.assert_allclose(kernels[1], solution, rtol=1e-4)
    np.testing.assert_allclose(kernels[2] - kernels[1], 0.9 * (kernels[1] - kernels[0]), atol=1e-4)


def run_of_small_nets(net, adaptive):
    """The losses before each of 12 steps at rate 0.1, of ten nets on ten data sets of 24 rows."""
    x = jnp.asarray(np.random.default_rng(1).normal(size=(10, 24, 3)), jnp.float32)
    y = jnp.sin(3 * x).sum(-1, keepdims=True) * jnp.linspace(0.3, 3.0, 10)[:, None, None]
    optimizer = kfac(jb.ad.as_function(net), half_square, (x[0], y[0]), 0.1, every=5, adaptive=adaptive)
    step = jb.train_step(net, half_square, optimizer).__wrapped__

    def run(key, x, y):
        ts = jb.init_train_state(key, net, optimizer, x)
        return jax.lax.scan(lambda ts, _: step(ts, x, y), ts, None, length=12)[1]

    return np.asarray(jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(0), 10), x, y))


def test_small_nets_never_end_above_where_they_began(as_a_user_has_it):
    losses = run_of_small_nets(jb.MLP(8, 1, activation=jb.relu), adaptive=True)
    assert (losses <= losses[:, :1]).all() and (losses[:, -1] < 0.9 * losses[:, 0]).all()


def test_a_step_that_raises_the_loss_is_not_taken():
    x = jnp.ones((4, 1))
    optimizer = lambda rate: kfac(linear, half_square, (x, x), rate, momentum=0.0, damping=0.5)
    update = jax.jit(lambda rate, state, w: optimizer(rate).update(-(1 - w), state, w, batch=(x, x)))
    for rate, moves, dampings in (
        # 1 / (1 + 0.5) of the way to the minimum; the loss falls as predicted.
        (1.0, [1 / 1.5], [0.5]),
        # 2.5 / 1.5 of the way: the model, with the damping in it, predicts a rise of 5 / 12, and the loss falls.
        (2.5, [2.5 / 1.5], [0.5]),
        # 5 / 1.5 and 10 / 3 of the way: not taken, and the damping rises fourfold until a step lowers the loss.
        (5.0, [0.0, 5 / 3], [2.0, 2.0]),
        (10.0, [0.0, 0.0, 10 / 9], [2.0, 8.0, 8.0]),
    ):
        w = jnp.zeros((1, 1))
        state = optimizer(rate).init(w)
        for move, damping in zip(moves, dampings, strict=True):
            step, state = update(rate, state, w)
            w = w + step
            np.testing.assert_allclose((step.item(), 0.5 + state.extra_damping), (move, damping), rtol=1e-5)


def test_a_batch_with_nan_changes_nothing(as_a_user_has_it):
    """At an update of the factors (steps 0 and 2) and between two (step 1)."""
    x, w = jnp.ones((4, 1)), jnp.zeros((1, 1))
    optimizer = kfac(linear, half_square, (x, x), 1.0, damping=0.5, every=2)
    state, update = optimizer.init(w), jax.jit(optimizer.update)
    for _ in range(3):
        step, after = update(w * jnp.nan, state, w, batch=(x * jnp.nan, x))
        assert step.item() == 0
        jax.tree.map(np.testing.assert_array_equal, after, state)
        step, state = update(-(1 - w), state, w, batch=(x, x))
        w = w + step
    assert w.item() > 0.5


def test_errors_and_their_repairs():
    batch = jnp.ones((2, 3)), jnp.ones((2, 1))
    with pytest.raises(ValueError, match=r"expected a key, from which targets are drawn, got None; pass key="):
        scale_by_kfac(linear, half_square, batch, matrix="fisher", likelihood="gaussian")
    with pytest.raises(
        TypeError, match=r"expected a loss \(outputs, y\) of one example, got a function of \(outputs\)"
    ):
        kfac(linear, lambda outputs: jnp.sum(outputs), batch, 0.1).init(jnp.ones((3, 1)))
    optimizer = scale_by_kfac(linear, half_square, batch, matrix="fisher", likelihood="gaussian", key=jax.random.key(0))
    w = jnp.ones((3, 1))
    state = optimizer.init(w)
    with pytest.raises(TypeError, match=r"expected params and the batch .*; call update\(grads, state, params, batch="):
        optimizer.update(w, state, w)
    jax.eval_shape(lambda w: optimizer.update(w, state, w, batch=batch), w)
    with pytest.raises(ValueError, match=r"kfac expected damping >= 0, got -1.0"):
        scale_by_kfac(linear, half_square, batch, damping=-1.0)


@pytest.mark.usefixtures("as_a_user_has_it")
def test_the_example_at_toy_size(tmp_path, capsys, monkeypatch):
    """Thirty steps of KFAC on a narrow classifier reduce the loss more than as many of Adam."""
    pytest.importorskip("sklearn", reason="scikit-learn has the digits")
    spec = importlib.util.spec_from_file_location("example", ROOT / "examples/natural_gradient.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with saved_pictures(monkeypatch) as faults:
        found = module.main(["--problem", "classifier", "--steps", "90", "--width", "8", "--out", str(tmp_path)])
    assert faults == {"curves.png": []}
    (steps, _, losses), (few, _, natural) = found["classifier"].values()
    assert steps[-1] == 90 and few[-1] == 30 and natural[-1] < losses[10] < losses[0]
    assert "ms per step" in capsys.readouterr().out and (tmp_path / "curves.png").exists()
    with pytest.raises(SystemExit):
        module.main(["--steps", "89"])
    assert "expected --steps to be an integer >= 90" in capsys.readouterr().err
