"""The training step, `fit` and its callbacks: purity, reproducibility, donation, detection of NaN."""

import dataclasses
import functools
import gc
import importlib
import itertools
import os
import pkgutil
import sys
import time
import weakref
from pathlib import Path

import arrays
import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from arrays import same
from cases import for_each
from compiled import drawn, fixed_init
from jax import lax

import jaxblocks.training
from jaxblocks.activations import relu, sigmoid
from jaxblocks.backend.jit_cache import jit_with_static
from jaxblocks.core import Layer, StatefulLayer
from jaxblocks.core.keys import child_key
from jaxblocks.initializers import glorot_uniform, orthogonal
from jaxblocks.layers import dense
from jaxblocks.layers.combinators import Parallel, Serial
from jaxblocks.layers.conv import Conv
from jaxblocks.layers.mlp import MLP
from jaxblocks.layers.reshaping import Flatten
from jaxblocks.losses import l2_penalty, mse, sigmoid_cross_entropy, soft_threshold, softmax_cross_entropy
from jaxblocks.probabilities import softmax
from jaxblocks.training import (
    Callback,
    RangeTest,
    csv_log,
    early_stopping,
    ema_params,
    evaluate,
    find_learning_rate,
    fit,
    gaussian_noise,
    get_ema,
    get_norms,
    init_train_state,
    minibatches,
    mixup,
    norm_log,
    predict,
    proximal_l1,
    stopping_rule,
    track_norms,
    train_state_shapes,
    train_step,
)
from jaxblocks.training.loop import intervals
from jaxblocks.training.loop.intervals import is_for_a_loop
from jaxblocks.training.optimizers.ema import check_ema_is_last
from jaxblocks.training.step.state import check_no_carry

close = functools.partial(arrays.close, tolerance=1e-6)


@pytest.fixture(autouse=True)
def _default_configuration():
    """Optax requires standard promotion; jax_debug_nans disables donation; the leak check compiles at each call."""
    leaks = jax.config.jax_check_tracer_leaks
    jax.config.update("jax_check_tracer_leaks", False)
    with jax.numpy_dtype_promotion("standard"), jax.debug_nans(False):
        yield
    jax.config.update("jax_check_tracer_leaks", leaks)


KEY = jax.random.key(0)
Dense = functools.partial(dense.Dense, kernel_init=fixed_init)
NET = MLP(4, 1, activation=jnp.tanh, kernel_init=fixed_init)
RANDOM = MLP(4, 1, activation=jnp.tanh)  # for tests of what init draws
quiet = functools.partial(fit, key=KEY, progress=False)


def line(n=40):
    x = np.linspace(-1, 1, n, dtype=np.float32)[:, None]
    return jax.device_put(x), jax.device_put(np.sin(3 * x))


def copy(tree):
    return jax.tree.map(lambda leaf: jax.device_put(np.array(leaf)), tree)


def Dropped():
    """Sets entries to zero in training; declares its side inputs."""

    def init(key, x):
        return ()

    def apply(params, x, *, train, key=None):
        return x * jax.random.bernoulli(key, 0.5, x.shape).astype(x.dtype) if train else x

    return Layer(init, apply)


def Centered():
    """Subtracts the batch mean in training, the running mean in evaluation."""

    def init(key, x):
        return (), {"mean": jnp.zeros(x.shape[-1:], x.dtype)}

    def apply(params, state, x, *, train):
        if not train:
            return x - jnp.broadcast_to(state["mean"], x.shape), state
        mean = x.mean(0)
        return x - jnp.broadcast_to(mean, x.shape), {"mean": 0.5 * state["mean"] + 0.5 * mean}

    return StatefulLayer(init, apply)


# ---- the step ------------------------------------------------------------------------------


def test_step_is_forward_pass_backward_pass_and_optimizer_update():
    """theta' = theta - delta grad J in NumPy, where J is the mean over the batch."""
    x, y = np.array([[1.0], [2.0], [4.0]], np.float32), np.array([[1.0], [0.0], [2.0]], np.float32)
    optimizer = optax.sgd(0.1)
    ts = init_train_state(KEY, Dense(1), optimizer, x)
    w = float(ts.params["kernel"][0, 0])
    ts, value = train_step(Dense(1), mse, optimizer)(ts, x, y)
    residual = w * x - y
    np.testing.assert_allclose(value, (residual**2).mean(), rtol=1e-6)
    np.testing.assert_allclose(ts.params["kernel"][0, 0], w - 0.1 * (2 * residual * x).mean(), rtol=1e-6)
    np.testing.assert_allclose(ts.params["bias"][0], -0.1 * (2 * residual).mean(), rtol=1e-6)
    assert int(ts.step) == 1 and value.dtype == jnp.float32


def test_mean_of_per_example_gradients_and_of_minibatch_gradients_is_the_full_gradient():
    """Measured by the change of params in an SGD step with learning rate 1."""
    with jax.enable_x64(True):
        x, y = (a.astype(jnp.float64) for a in line(24))
        optimizer = optax.sgd(1.0)
        step = train_step(NET, mse, optimizer).__wrapped__
        ts = init_train_state(KEY, NET, optimizer, x)

        @jax.jit
        def gradient(x, y):
            return jax.tree.map(lambda p, q: p - q, ts.params, step(ts, x, y)[0].params)

        full = gradient(x, y)
        each = jax.jit(jax.vmap(lambda x, y: gradient(x[None], y[None])))(x, y)
        close(jax.tree.map(lambda g: np.mean(g, 0), each), full, tolerance=1e-7)  # params are float32
        batches = [gradient(*batch) for batch in minibatches(KEY, (x, y), 6)]
        close(jax.tree.map(lambda *g: np.mean(g, 0), *batches), full, tolerance=1e-6)
        assert np.abs(np.subtract(batches[0][0]["kernel"], full[0]["kernel"])).max() > 1e-2


@pytest.mark.parametrize(
    "make",
    [
        lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.01), optax.contrib.reduce_on_plateau()),
        lambda: optax.lbfgs(),
    ],
    ids=["plateau", "lbfgs"],
)
def test_step_with_any_optimizer_is_compiled_once_and_donates_its_buffers(make):
    x, y = line(16)
    traces = []

    def loss(outputs, y):
        traces.append(1)
        return mse(outputs, y)

    optimizer = make()
    step = train_step(NET, loss, optimizer, donate=True)
    first = ts = init_train_state(KEY, NET, optimizer, x)
    donated, values = jax.tree.leaves((first.params, first.step, first.key)), []
    for _ in range(3):
        ts, value = step(ts, x, y)
        values.append(float(value))
        if len(values) == 1:
            once = len(traces)
    assert len(traces) == once
    assert all(leaf.is_deleted() for leaf in donated)
    assert values[2] < values[0]


def test_unwrapped_step_gives_the_same_result_and_donates_nothing(monkeypatch):
    x, y = line(8)
    optimizer = optax.sgd(0.1)
    step = train_step(Dense(1), mse, optimizer, donate=True)
    ts = init_train_state(KEY, Dense(1), optimizer, x)
    by_hand, value = step.__wrapped__(ts, x, y)
    jitted, jitted_value = step(copy(ts), x, y)
    close((by_hand.params, value), (jitted.params, jitted_value))
    for options in ({}, {"donate": False}):  # the default does not donate on CPU
        after, value = train_step(Dense(1), mse, optimizer, **options)(ts, x, y)
        close((by_hand.params, jitted_value), (after.params, value))
        assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(ts))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")  # where the default donates
    train_step(Dense(1), mse, optimizer)(ts, x, y)
    assert ts.step.is_deleted()


def test_a_step_inside_of_a_transformation_donates_nothing(as_a_user_has_it):
    x, y = line(8)
    ts = init_train_state(KEY, NET, optax.sgd(0.1), x)
    step = train_step(NET, mse, optax.sgd(0.1), donate=True)
    _, values = jax.vmap(step, in_axes=(None, 0, 0))(ts, jnp.stack([x, x + 1]), jnp.stack([y, y]))
    assert values.shape == (2,) and not any(leaf.is_deleted() for leaf in jax.tree.leaves(ts))
    assert jax.grad(lambda x: step(ts, x, y)[1])(x).shape == x.shape
    # Of params alone, as for gradients through a step, and for an ensemble.
    jax.grad(lambda params: step(ts._replace(params=params), x, y)[1])(ts.params)
    stacked = jax.tree.map(lambda a: jnp.stack([a, a]), ts.params)
    jax.vmap(lambda params: step(ts._replace(params=params), x, y)[1])(stacked)
    on_mesh = init_train_state(KEY, NET, optax.sgd(0.1), x, mesh=jax.make_mesh((1,), ("data",)))
    keep = train_step(NET, mse, optax.sgd(0.1), donate=False)
    jax.grad(lambda params: keep(on_mesh._replace(params=params), x, y)[1])(on_mesh.params)
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves((ts, stacked)))


def test_each_fit_reads_values_from_outside_anew():
    x, y = line(8)
    weight = {"now": 1.0}
    loss = lambda outputs, y: weight["now"] * mse(outputs, y)
    for weight["now"] in (1.0, 100.0):
        fitted = fit(Dense(1), loss, optax.sgd(0.0), (x, y), key=KEY, epochs=1, batch_size=8, validation=(x, y))
        np.testing.assert_allclose(fitted.history.validation["loss"], fitted.history.step_loss, rtol=1e-6)


@pytest.mark.parametrize("rows", [np.arange(8), jnp.arange(8)])
def test_batches_keep_the_structure_of_their_data(rows):
    """Trees with as many arrays as the tuple has entries too: several inputs without targets, dicts of one array."""
    for data in (((rows, rows), None), ({"x": rows}, {"y": rows}), (rows, [rows]), [rows, rows], (rows, rows)):
        batch = next(minibatches(KEY, data, 4))
        assert jax.tree.structure(batch) == jax.tree.structure(data)
        first, *rest = jax.tree.leaves(batch)
        assert first.shape == (4,) and all((leaf == first).all() for leaf in rest)


def test_programs_of_a_bounded_number_of_nets_are_kept():
    @jit_with_static(1, most=2)
    def run(f, x):
        return f(x)

    nets = [functools.partial(jnp.add, jnp.ones(()) * n) for n in range(4)]
    assert [float(run(net, 1.0)) for net in nets] == [1, 2, 3, 4]
    alive = [weakref.ref(net) for net in nets]
    del nets
    gc.collect()
    assert [ref() is not None for ref in alive] == [False, False, True, True]


def test_a_net_without_inputs_is_trained():
    constant = Layer(lambda key: {"mean": jnp.zeros(1, jnp.float32)}, lambda params: params["mean"])
    ts = init_train_state(KEY, constant, optax.sgd(0.5))
    _, value = train_step(constant, lambda mean, y: jnp.mean((mean - y) ** 2), optax.sgd(0.5))(ts, (), jnp.ones(4))
    assert value == 1


def test_the_init_of_few_nets_is_stored():
    """A net that is not in use is freed; an optimizer without a hash is no error."""
    nets = [Layer(NET.init, lambda params, x: NET.apply(params, x)) for _ in range(10)]
    for net in nets:
        train_state_shapes(net, optax.sgd(0.1), jnp.ones((4, 1)), mesh=jax.make_mesh((1,), ("data",)))
    first = weakref.ref(nets[0].apply)
    del nets, net
    gc.collect()
    assert first() is None

    class Unhashed(optax.GradientTransformationExtraArgs):
        __hash__ = None

    assert init_train_state(KEY, NET, Unhashed(*optax.sgd(0.1)), jnp.ones((4, 1))).step == 0


def test_traced_hyperparameters_are_not_kept():
    """An init inside of a transformation is not stored: it would keep the traced values of the optimizer."""
    init = lambda rate: init_train_state(KEY, NET, optax.inject_hyperparams(optax.sgd)(rate), jnp.ones((4, 1)))
    with jax.checking_leaks():
        states = jax.jit(jax.vmap(init))(jnp.array([0.1, 0.2]))
    close(states.opt_state.hyperparams["learning_rate"], [0.1, 0.2])


def test_training_states_of_several_keys_are_trained_under_vmap():
    x, y = line(8)
    optimizer = optax.adam(0.01)
    step = train_step(RANDOM, mse, optimizer).__wrapped__
    keys = jax.random.split(KEY, 3)
    states = jax.jit(jax.vmap(lambda key: init_train_state(key, RANDOM, optimizer, x)))(keys)
    together, _ = jax.jit(jax.vmap(step, (0, None, None)))(states, x, y)
    alone, _ = jax.jit(step)(init_train_state(jax.random.split(jax.random.key(0), 3)[1], RANDOM, optimizer, x), x, y)
    close(jax.tree.map(lambda p: np.asarray(p)[1], together.params), alone.params)


def test_params_are_the_same_at_the_level_of_optimization_that_compiles_them_quickly():
    net = Serial(Dense(7), Dense(5, kernel_init=orthogonal()), Dense(3, kernel_init=glorot_uniform()))
    program = jax.jit(net.init).lower(KEY, jnp.ones(9))
    full, quick = (program.compile({"xla_backend_optimization_level": level}) for level in (3, 1))
    same(full(jax.random.key(0), jnp.ones(9)), quick(jax.random.key(0), jnp.ones(9)))


def test_a_net_that_cannot_be_validated_is_rejected_before_the_first_step(sentences):
    """It requires a key, which evaluation does not pass."""
    net, called = jaxblocks.Wire(lambda f, x, *, key: f.d(x + jax.random.normal(key, x.shape)), d=Dense(1)), []
    loss = lambda outputs, y: called.append(outputs) or mse(outputs, y)
    data = line(8)
    with pytest.raises(TypeError, match="fit expected the side input key, got none; pass key=..., or declare key=None"):
        fit(net, loss, optax.sgd(0.1), data, key=KEY, epochs=1, validation=data, progress=False)
    assert not called


def test_init_depends_on_shapes_and_dtypes_only():
    x = np.ones((8, 2))  # float64, which JAX converts to float32
    a = init_train_state(KEY, RANDOM, optax.adam(0.1), x)
    b = init_train_state(jax.random.key(0), RANDOM, optax.adam(0.1), jax.ShapeDtypeStruct((8, 2), jnp.float32))
    same(a, b)


def test_train_and_key_are_passed_to_layers_that_declare_them():
    net = Serial(Dropped())
    x = jnp.ones((64, 4))
    ts = init_train_state(KEY, net, optax.sgd(0.1), x)
    step = train_step(net, lambda outputs, y: outputs, optax.sgd(0.1)).__wrapped__
    _, first = step(ts, x, x)
    assert 0.4 < float(first) < 0.6
    assert float(step(ts, x, x)[1]) == float(first)
    assert float(step(ts._replace(step=ts.step + 1), x, x)[1]) != float(first)
    assert evaluate(net, ((),), (), (x, x), {"mean": lambda outputs, y: outputs.mean(-1)}) == {"mean": 1.0}
    with pytest.raises(TypeError, match="expected no side input train or key, got train; omit it"):
        step(ts, x, x, train=False)


def test_keys_of_another_implementation():
    """The random numbers are those of the given key, derived explicitly by the three folds."""
    x = jnp.ones((64, 4))
    ts = init_train_state(jax.random.key(0, impl="rbg"), Dropped(), optax.sgd(0.1), x)
    step = train_step(Dropped(), lambda outputs, y: outputs, optax.sgd(0.1), donate=True)
    _, value = step.__wrapped__(ts, x, x)
    key = child_key(jax.random.fold_in(child_key(jax.random.key(0, impl="rbg"), "training"), 0), "net")
    assert float(value) == float(Dropped().apply((), x, train=True, key=key).mean())
    after, jitted = step(ts, x, x)
    assert float(jitted) == float(value) and ts.key.is_deleted()
    assert float(step(jax.tree.map(jnp.copy, after), x, x)[1]) != float(value)


def test_typed_key_in_the_state_gives_the_random_numbers_of_its_data():
    x = jnp.ones((64, 4))
    ts = init_train_state(KEY, Dropped(), optax.sgd(0.1), x)
    step = train_step(Dropped(), lambda outputs, y: outputs, optax.sgd(0.1)).__wrapped__
    typed = ts._replace(key=jax.random.wrap_key_data(ts.key))
    assert ts.key.dtype == jnp.uint32 and float(step(typed, x, x)[1]) == float(step(ts, x, x)[1])


def test_donated_training_state_is_rejected(sentences):
    x, y = line(8)
    optimizer = optax.sgd(0.1)
    step = train_step(Dense(1), mse, optimizer, donate=True)
    ts = init_train_state(KEY, Dense(1), optimizer, x)
    kept = jax.tree.map(jnp.copy, ts)  # the suggested repair
    after, _ = step(ts, x, y)
    assert repr(ts) == "TrainState(step int32 (), params: 2 numbers in 2 arrays, state: empty, opt_state: empty)"
    donated = "got some that a step has donated; pass those that the step returned"
    with pytest.raises(ValueError, match=f"^train_step expected arrays with values in ts, {donated}"):
        step(ts, x, y)
    with pytest.raises(ValueError, match=f"^predict expected arrays with values in params and state, {donated}"):
        predict(Dense(1), ts.params, ts.state, x)
    with pytest.raises(ValueError, match=f"^evaluate expected arrays with values in params and state, {donated}"):
        evaluate(Dense(1), ts.params, ts.state, (x, y), {"loss": mse})
    assert predict(Dense(1), after.params, after.state, x).shape == (8, 1)
    assert int(step(kept, x, y)[0].step) == 1
    assert int(step(after, x, y)[0].step) == 2
    assert step.lower(step(init_train_state(KEY, Dense(1), optimizer, x), x, y)[0], x, y).as_text()


def test_what_is_no_training_state_is_rejected(sentences):
    x, y = jnp.zeros((4, 1)), jnp.zeros(4, int)
    net = dense.Dense(2)
    step = train_step(net, softmax_cross_entropy, optax.sgd(0.1))
    for ts, sentence in [
        (net, r"got a Layer; call step\(ts, x, y\)"),
        ({"kernel": jnp.ones((1, 2))}, r"got a dict; call step\(ts, x, y\)"),
        (jnp.float32(1), r"got float32 \(\); write ts, loss = step\(ts, x, y\)"),
    ]:
        with pytest.raises(TypeError, match="train_step expected the state that init_train_state returns, " + sentence):
            step(ts, x, y)


def test_training_state_of_another_optimizer_is_rejected(sentences):
    """Also where the optimizer would not fail: SGD ignores its state."""
    x, y = line(8)
    adam, sgd = optax.adam(0.1), optax.sgd(0.1)
    states = {name: init_train_state(jax.random.key(0), Dense(1), o, x) for name, o in (("adam", adam), ("sgd", sgd))}
    for optimizer, ts in ((sgd, states["adam"]), (adam, states["sgd"])):
        step = train_step(Dense(1), mse, optimizer).__wrapped__
        with pytest.raises(ValueError, match="^train_step expected ts to hold the state of this opt.* got that of ano"):
            step(ts, x, y)
        repaired = ts._replace(opt_state=optimizer.init(ts.params))  # as the error advises
        assert jax.tree.structure(jax.eval_shape(step, repaired, x, y)[0].opt_state) is not None
    with pytest.raises(ValueError, match="^fit expected ts to hold the state of this optimizer"):
        quiet(Dense(1), mse, adam, (x, y), ts=states["sgd"], batch_size=4, steps=1)


def test_repr_of_a_training_state_is_one_line():
    ts = init_train_state(KEY, NET, optax.adam(0.1), line(8)[0])
    numbers = "params: 13 numbers in 4 arrays, state: empty, opt_state: 27 numbers in 9 arrays"
    assert repr(ts) == f"TrainState(step 0, {numbers})"
    stacked = jax.tree.map(lambda a: jnp.stack([a, a]), ts)
    assert repr(stacked).startswith("TrainState(step int32 (2,), params: 26 numbers in 4 arrays")
    seen = []
    jax.eval_shape(lambda ts: seen.append(repr(ts)), ts)
    assert seen == [f"TrainState(step int32 (), {numbers})"]


@pytest.mark.parametrize("accumulate", [1, 2])
def test_params_that_have_no_gradient_are_rejected(accumulate, sentences):
    made = lambda dtype: {"scale": jnp.ones(4), "order": {"by": jnp.asarray([3, 1, 0, 2], dtype)}}
    apply = lambda params, x: x[:, params["order"]["by"].astype(int)] * params["scale"][None]
    x = np.arange(8, dtype=np.float32).reshape(2, 4)

    def run(dtype):
        net = Layer(lambda key, x: made(dtype), apply)
        step = train_step(net, mse, optax.sgd(0.1), accumulate=accumulate, donate=False)
        return step(init_train_state(jax.random.key(0), net, optax.sgd(0.1), x), x, x)

    expected = "train_step expected params to hold floating-point arrays"
    with pytest.raises(TypeError, match=rf"{expected}, got int32 \(4,\) at params\['order'\]\['by'\]; convert it"):
        run(jnp.int32)
    assert run(jnp.float32)[1] == ((x[:, [3, 1, 0, 2]] - x) ** 2).mean()  # as the error advises


def test_a_net_that_ends_in_what_its_loss_applies_is_rejected(sentences):
    step = lambda *layers, loss=softmax_cross_entropy: train_step(Serial(Dense(3), *layers), loss, optax.sgd(0.1))
    smoothed = functools.partial(softmax_cross_entropy, label_smoothing=0.1)
    over = [softmax, jax.nn.softmax, functools.partial(softmax, axis=-1), Serial(out=Serial(relu, softmax))]
    for last, loss in itertools.product(over, (softmax_cross_entropy, smoothed)):
        with pytest.raises(ValueError, match="a net that returns logits.*ends in softmax; leave out the softmax"):
            step(last, loss=loss)
    with pytest.raises(ValueError, match="as sigmoid_cross_entropy takes them, got one that ends in sigmoid"):
        step(jax.nn.sigmoid, loss=sigmoid_cross_entropy)
    for last, loss in [
        (softmax, mse),
        (sigmoid, mse),
        (relu, softmax_cross_entropy),
        (Serial(), softmax_cross_entropy),
    ]:
        step(last, loss=loss)
    train_step(lambda x: x, softmax_cross_entropy, optax.sgd(0.1))
    own = lambda probabilities, y: -jnp.sum(y * jnp.log(probabilities), -1)
    own.__name__ = "softmax_cross_entropy"
    step(softmax, loss=own)
    step(Parallel(relu, softmax), loss=softmax_cross_entropy)  # what follows joins the two


def test_wrong_losses_and_optimizers_are_rejected(sentences):
    x = jnp.zeros((4, 1))
    adam = optax.adam(1e-3)
    for optimizer, sentence in [
        (optax.adam, r"optax.adam itself; call it: optax.adam\(...\)"),
        (0.1, r"0.1; pass for instance optax.adam\(1e-3\)"),
        (mse, "the function mse; pass for instance"),
    ]:
        with pytest.raises(TypeError, match=f"^train_step expected an optimizer.* got {sentence}"):
            train_step(Dense(1), mse, optimizer)
        with pytest.raises(TypeError, match=f"^init_train_state expected an optimizer.* got {sentence}"):
            init_train_state(KEY, Dense(1), optimizer, x)
        with pytest.raises(TypeError, match=f"^fit expected an optimizer.* got {sentence}"):
            quiet(Dense(1), mse, optimizer, line(), epochs=1)
    with pytest.raises(
        TypeError, match="^train_step expected loss to be a function, got .*; the order is net, loss, op"
    ):
        train_step(Dense(1), adam, mse)
    with pytest.raises(
        TypeError, match="^fit expected loss to be a function, got .*; the order is net, loss, optimizer, data"
    ):
        quiet(Dense(1), adam, mse, line(), epochs=1)
    with pytest.raises(
        TypeError, match="^train_step expected loss to be a function, got 'mse'; pass the function itself as"
    ):
        train_step(Dense(1), "mse", adam)
    for name, function, arguments in (
        ("train_step", train_step, ()),
        ("fit", functools.partial(quiet, epochs=1, batch_size=4), (line(),)),
    ):
        with pytest.raises(
            TypeError, match=f"^{name} expected loss to be a function, got a Layer; the order is net, loss, opt"
        ):
            function(mse, Dense(1), adam, *arguments)
        with pytest.raises(TypeError, match=rf"^{name} expected augment to be a function augment\(key, x\) or .*, got"):
            function(Dense(1), mse, adam, *arguments, augment=lambda x: x)
        with pytest.raises(
            TypeError, match=rf"^{name} expected augment .*, got one whose first argument is x; .*key, x, y"
        ):
            function(Dense(1), mse, adam, *arguments, augment=lambda x, y: (x, y))
        with pytest.raises(TypeError, match=rf"^{name} expected penalty to be a function or None, got 0.1"):
            function(Dense(1), mse, adam, *arguments, penalty=0.1)
    params = Dense(1).init(jax.random.key(0), x)
    for function in (
        lambda net: train_step(net, mse, adam),
        lambda net: quiet(net, mse, adam, line(), steps=1, batch_size=4),
        lambda net: init_train_state(jax.random.key(0), net, adam, x),
        lambda net: evaluate(net, params, (), line(), {"loss": mse}),
        lambda net: predict(net, params, (), x),
        lambda net: Serial(Dense(1), net),
    ):
        with pytest.raises(TypeError, match="a layer or a function of arrays, got params; pass the layer itself"):
            function(params)


def test_a_state_of_examples_is_rejected_where_batches_are_drawn(sentences):
    """A carry or a cache of each example, found by its shape; statistics are shared, also with as many features."""
    cell = jaxblocks.LSTMCell(3, kernel_init=fixed_init, recurrent_kernel_init=fixed_init)
    data = (np.ones((6, 3), np.float32), np.ones((6, 3), np.float32))
    runs = (
        lambda net, **options: quiet(net, mse, optax.sgd(0.1), data, steps=1, **options),
        lambda net, **options: find_learning_rate(net, mse, optax.sgd, data, key=jax.random.key(0), **options),
    )
    for run in runs:
        with pytest.raises(
            ValueError, match="no example, .*, got a row for each .* in 1/cell, 1/hidden; leave out stateful"
        ):
            run(Serial(Dense(3), cell), batch_size=3)
        with pytest.raises(ValueError, match="a row for each .* in cell, hidden; leave out stateful"):
            run(jaxblocks.Repeat(cell, 2), batch_size=3)
    groups = Serial(lambda x: x.reshape(3, -1, 3), jaxblocks.BatchNorm())  # takes multiples of three examples
    alone = Serial(lambda x: x.reshape(9), jaxblocks.BatchNorm())  # takes three examples
    for net in (jaxblocks.BatchNorm(), jaxblocks.layers.SpectralNorm(Dense(3)), groups, alone):
        _, state = jax.eval_shape(net.init, jax.random.key(0), data[0][:3])
        check_no_carry(net, optax.sgd(0.1), state, data[0][:3])
    ts = init_train_state(jax.random.key(0), jaxblocks.BatchNorm(), optax.sgd(0.1), data[0][:3])
    with pytest.raises(ValueError, match="Serial expected params to be a tuple of 2"):
        runs[0](Serial(jaxblocks.BatchNorm(), jaxblocks.BatchNorm()), ts=ts, batch_size=3)


def test_metrics_that_are_no_dict_are_rejected(sentences):
    for metrics in ([mse], {"mse": "mse"}):
        words = (
            f"expected metrics to be a dict from names to functions.*, got {'a list' if metrics == [mse] else 'mse'}"
        )
        with pytest.raises(TypeError, match=f"^fit {words}"):
            quiet(Dense(1), mse, optax.sgd(0.1), line(), validation=line(), metrics=metrics, batch_size=4, steps=1)
        with pytest.raises(TypeError, match=f"^evaluate {words}"):
            evaluate(Dense(1), (), (), line(), metrics)
    of_outputs = {"size": lambda outputs: outputs.mean()}
    with pytest.raises(TypeError, match=r"^fit expected metrics\['size'\] to be a function \(outputs, y\)"):
        quiet(Dense(1), mse, optax.sgd(0.1), line(), validation=line(), metrics=of_outputs, batch_size=4, steps=1)


# Shapes of outputs and y, and a loss.
COVERED = {
    "scalar": ((8, 3), (8,), lambda o, y: o.sum()),
    "scalar with an axis": ((8, 3), (8,), lambda o, y: o.mean((0, 1), keepdims=True)),
    "one per example": ((8, 3), (8,), lambda o, y: o.sum(-1) - y),
    "one per example, with an axis": ((8, 3), (8,), lambda o, y: o.sum(-1, keepdims=True)),
    "one per position": ((8, 5, 3), (8, 5), lambda o, y: o.sum(-1) - y),
    "one per output": ((8, 5, 3), (8,), lambda o, y: o**2),
    "one per row of y": ((8, 3), (8, 5), lambda o, y: y),
    "no batch": ((3,), (), lambda o, y: o**2),
    "one example": ((1, 1), (1,), lambda o, y: o - y),
    "outputs in a dict": ({"mean": (8, 2), "all": (8, 9)}, (8, 2), lambda o, y: o["mean"] - y),
}
BROADCAST = {
    "a column and a row": ((8, 1), (8,), lambda o, y: (o - y) ** 2),
    "a row and a column": ((8,), (8, 1), lambda o, y: (o - y) ** 2),
    "weights": ((8, 10), (8,), lambda o, y: o.sum(-1) * jnp.ones((8, 1))),
    "positions": ((5, 5, 1), (5, 5), lambda o, y: (o - y) ** 2),
    "in a dict": ({"mean": (8, 1), "all": (8, 90)}, (8,), lambda o, y: o["mean"] - y),
}


def value_of_a_step(outputs, y, loss):
    """Shape and dtype of the loss that a step returns, by abstract evaluation."""

    def value(outputs, y):
        ts = init_train_state(jax.random.key(0), lambda x: x, optax.sgd(0.1), outputs)
        return train_step(lambda x: x, loss, optax.sgd(0.1)).__wrapped__(ts, outputs, y)[1]

    arrays = lambda shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    with jax.numpy_rank_promotion("allow"):
        return jax.eval_shape(value, jax.tree.map(arrays, outputs, is_leaf=lambda s: type(s) is tuple), arrays(y))


@for_each(COVERED)
def test_loss_with_the_leading_axes_of_outputs_or_labels_is_accepted(case):
    value = value_of_a_step(*case)
    assert (value.shape, value.dtype) == ((), jnp.float32)


@for_each(BROADCAST)
def test_broadcast_loss_is_rejected(case):
    outputs, y, loss = case
    with pytest.raises(
        ValueError,
        match="train_step expected the loss to be one number, or to have the leading axes of the outputs or of y",
    ):
        value_of_a_step(outputs, y, loss)
    value_of_a_step(outputs, y, lambda o, y: loss(o, y).mean())  # a single number, which may be meant


def test_a_net_that_loses_the_batch_axis_is_named_instead_of_the_labels():
    images, labels = jnp.ones((2, 4, 4, 3)), jnp.zeros(2, jnp.int32)
    classify = jaxblocks.softmax_cross_entropy
    squared = lambda outputs, y: jnp.broadcast_to(outputs, y.shape) - y.astype(jnp.float32)  # no error, wrong numbers
    for features, loss, cause in (
        (5, classify, "; error of the loss: softmax_cross_entropy expected"),
        (1, squared, ""),
    ):
        net = Serial(Flatten(3), Dense(features))
        ts, step = init_train_state(KEY, net, optax.sgd(0.1), images), train_step(net, loss, optax.sgd(0.1))
        got = rf"size 2, got outputs float32 \({features},\) for x float32 \(2, 4, 4, 3\); .* Flatten\(2\) on images"
        with pytest.raises(ValueError, match=f"^train_step expected a net that keeps the batch axis of {got}{cause}"):
            jax.eval_shape(step, ts, images, labels)
    with pytest.raises(ValueError, match="^evaluate expected a net .*; error of the metric 'loss': softmax_cross"):
        evaluate(lambda x: x.sum((0, 1, 2)), (), (), (images, labels), {"loss": classify})
    whole = train_step(lambda x: x.mean((0, 1, 2)), lambda outputs, y: outputs.sum(), optax.sgd(0.1))
    ts = init_train_state(KEY, lambda x: x, optax.sgd(0.1), images)
    assert jax.eval_shape(whole, ts, images, labels)[1].shape == ()  # one number of the whole batch
    net = Serial(Flatten(2), Dense(5))  # as the error advises
    ts = init_train_state(KEY, net, optax.sgd(0.1), images)
    assert jax.eval_shape(train_step(net, classify, optax.sgd(0.1)), ts, images, labels)[1].shape == ()


def test_error_about_broadcasting_names_the_shapes():
    x, y = line(40)
    squared = lambda outputs, y: (outputs - y) ** 2
    got = r"got float32 \(8, 8\) for outputs float32 \(8, 1\) and y float32 \(8,\), which were broadcast"
    with jax.numpy_rank_promotion("allow"):
        with pytest.raises(ValueError, match="^fit expected the loss .*" + got + r".* for example with y\[:, None\]"):
            quiet(lambda x: x, squared, optax.sgd(0.1), (x, y[:, 0]), batch_size=8, epochs=1)
        with pytest.raises(ValueError, match="^evaluate expected the metric 'squared' .*" + got):
            evaluate(lambda x: x, (), (), (x, y[:, 0]), {"squared": squared}, batch_size=8)
        evaluate(lambda x: x, (), (), (x, y[:, 0][:, None]), {"squared": squared}, batch_size=8)  # the suggested repair


def test_other_side_inputs_and_several_inputs_are_passed():
    def add(a, b, *, weight):
        return weight * a + b

    step = train_step(add, mse, optax.sgd(0.1))
    a, b = jnp.ones((2, 3)), jnp.full((2, 3), 2.0)
    ts = init_train_state(KEY, add, optax.sgd(0.1), a, b)
    _, value = step(ts, (a, b), jnp.zeros((2, 3)), weight=jnp.float32(3.0))
    assert float(value) == 25.0


def test_state_is_updated_by_steps_and_unchanged_by_evaluation():
    net = Serial(Centered(), Dense(1))
    x, y = jnp.array([[1.0], [3.0]]), jnp.zeros((2, 1))
    optimizer = optax.sgd(0.1)
    step = train_step(net, mse, optimizer, donate=True)
    ts = first = init_train_state(KEY, net, optimizer, x)
    kernel = float(first.params[1]["kernel"][0, 0])
    ts, value = step(ts, x, y)
    np.testing.assert_allclose(value, kernel**2, rtol=1e-6)  # the batch is centered: -1 and 1
    ts, _ = step(ts, x + 2, y)
    assert ts.state[0]["mean"][0] == 0.5 * (0.5 * 2) + 0.5 * 4
    assert first.state[0]["mean"].is_deleted()
    found = evaluate(net, ts.params, ts.state, (x, y), {"output": lambda outputs, y: outputs[:, 0]}, batch_size=1)
    w, b = float(ts.params[1]["kernel"][0, 0]), float(ts.params[1]["bias"][0])
    np.testing.assert_allclose(found["output"], w * (2 - 2.5) + b, rtol=1e-5)
    assert not ts.state[0]["mean"].is_deleted()


def test_evaluation_counts_every_row_once():
    x = jnp.arange(7.0)[:, None]
    error = {"error": lambda outputs, y: jnp.abs(outputs - y)[:, 0], "scalar": lambda outputs, y: jnp.mean(outputs)}
    for batch_size in (3, 7, 100):
        found = evaluate(lambda x: 2 * x, (), (), (x, jnp.zeros_like(x)), error, batch_size=batch_size)
        np.testing.assert_allclose([found["error"], found["scalar"]], 6.0, rtol=1e-6)


def test_prediction_in_batches_is_the_net_in_evaluation_mode(sentences):
    """All rows, in order; outputs are trees; inputs are arrays or tuples, of NumPy or JAX."""
    net = Serial(lambda a, b: a + b, Centered(), Dropped())
    x = np.arange(7, dtype=np.float32)[:, None]
    state = (), {"mean": jnp.ones(1)}, ()
    for batch_size in (3, 7, 100):
        outputs = predict(net, ((), (), ()), state, (x, jnp.asarray(x)), batch_size=batch_size)
        np.testing.assert_array_equal(outputs, 2 * x - 1)
    tree = predict(lambda x: {"twice": 2 * x, "sum": x.sum(-1)}, (), (), x, batch_size=4)
    assert tree["twice"].tolist() == (2 * x).tolist() and tree["sum"].tolist() == x[:, 0].tolist()
    with jax.numpy_dtype_promotion("strict"):
        assert predict(lambda x: x, (), (), x, compute_dtype="bfloat16").dtype == jnp.float32
    with pytest.raises(ValueError, match=r"^predict expected outputs with 3 rows, got float32 \(\); use net.apply"):
        predict(lambda x: x.sum(), (), (), x[:3])
    assert predict(lambda x: jnp.concatenate([x, x], -1), (), (), x[:0]).shape == (0, 2)


def test_nets_and_metrics_without_a_hash_are_evaluated():
    """A dataclass has none; no program is kept for it, so that a changed field counts in the next call."""

    @dataclasses.dataclass
    class Times:
        factor: float

        def __call__(self, x):
            return self.factor * x

    @dataclasses.dataclass
    class Within:
        tolerance: float

        def __call__(self, outputs, y):
            return jnp.abs(outputs - y) <= self.tolerance

    net, within, x = Times(2.0), Within(1.0), jnp.arange(4.0)
    assert evaluate(net, (), (), (x, x), {"within": within}) == {"within": 0.5}
    assert predict(net, (), (), x).tolist() == [0, 2, 4, 6]
    net.factor = within.tolerance = 3.0
    assert evaluate(net, (), (), (x, x), {"within": within}) == {"within": 0.5}
    assert predict(net, (), (), x).tolist() == [0, 3, 6, 9]


def test_a_frozen_layer_is_not_changed_by_training():
    """Neither its params nor its batch statistics; the layer after it is trained on its outputs in evaluation."""
    x, y = line(8)
    backbone, optimizer = Serial(Dense(3), jaxblocks.BatchNorm(), jaxblocks.Dropout(0.5)), optax.sgd(0.1)
    params, state = drawn(backbone, x)
    _, state = jax.jit(functools.partial(backbone.apply, train=True))(params, state, x, key=jax.random.key(1))

    def changed(layer):
        net = Serial(layer, Dense(1))
        ts = init_train_state(jax.random.key(2), net, optimizer, x)
        ts = ts._replace(params=(params, ts.params[1]), state=(state, ts.state[1]))
        step = train_step(net, mse, optimizer).__wrapped__
        of_inputs = jax.grad(lambda x: net.apply(ts.params, ts.state, x)[0].sum())
        after, gradient = jax.jit(lambda ts: (step(ts, x, y)[0], of_inputs(x)))(ts)
        unequal = lambda a, b: any(map(np.any, map(np.not_equal, *map(jax.tree.leaves, (a, b)))))
        flags = [unequal(a, b) for a, b in zip((*ts.params, ts.state), (*after.params, after.state), strict=True)]
        return flags, ts.params[1], after.params[1], np.asarray(gradient)

    flags, before, after, of_inputs = changed(jaxblocks.Frozen(backbone))
    assert flags == [False, True, False]
    assert changed(backbone)[0] == [True, True, True]

    @jax.jit
    def by_hand(last):
        hidden = backbone.apply(params, state, x)[0]
        gradient = jax.grad(lambda last: mse(Dense(1).apply(last, hidden), y).mean())(last)
        return jax.tree.map(lambda p, g: p - 0.1 * g, last, gradient)

    close(by_hand(before), after)
    assert np.abs(of_inputs).max() > 0


def test_sweep_over_hyperparameters_by_vmap():
    """Learning rate, label smoothing, decay of the average, dropout rate: each net equals the one trained alone."""
    x, _ = line(16)
    y = np.eye(2, dtype=np.float32)[(np.asarray(x)[:, 0] > 0.2).astype(int)]
    key = jax.random.key(0)

    def train(rate, smoothing, decay, dropped):
        def drop(x, *, train, key=None):
            return x * jax.random.bernoulli(key, 1 - dropped, x.shape) / (1 - dropped) if train else x

        def loss(outputs, y):
            return softmax_cross_entropy(outputs, optax.smooth_labels(y, smoothing))

        net, optimizer = Serial(Dense(4), drop, Dense(2)), optax.chain(optax.adam(rate), ema_params(decay))
        step = train_step(net, loss, optimizer)
        ts, values = lax.scan(lambda ts, _: step(ts, x, y), init_train_state(key, net, optimizer, x), length=3)
        return values, get_ema(ts), ts.params

    sweep = [(0.1, 0.0, 0.5, 0.5), (0.01, 0.2, 0.9, 0.1)]
    together = jax.jit(jax.vmap(train))(*np.float32(list(zip(*sweep, strict=True))))
    together, alone = jax.tree.map(np.asarray, together), jax.jit(train)
    for i, options in enumerate(sweep):
        close(jax.tree.map(lambda a, i=i: a[i], together), alone(*map(np.float32, options)), tolerance=2e-5)
    assert np.abs(together[0][0] - together[0][1]).min() > 1e-3


def test_the_order_of_arguments_is_part_of_the_repair(sentences):
    x = jnp.ones((2, 3))
    params = Dense(1).init(jax.random.key(0), x)
    with pytest.raises(
        TypeError, match=r"predict expected the argument x, got none; write predict\(net, params, state, x"
    ):
        predict(Dense(1), params, x)
    np.testing.assert_array_equal(predict(Dense(1), params, (), x), Dense(1).apply(params, x))


def test_steps_run_inside_transformations():
    """A step under ``jit``, ``scan`` and ``vmap`` equals the step alone; no warning about donation."""
    (x, y), optimizer = line(8), optax.sgd(0.1)
    step = train_step(Dense(1), mse, optimizer, donate=True)
    start = lambda: init_train_state(jax.random.key(0), Dense(1), optimizer, x)
    values = []
    ts = start()
    for _ in range(3):
        ts, value = step(ts, x, y)
        values.append(float(value))
    scanned = lax.scan(lambda ts, _: step(ts, x, y), start(), length=3)[1]
    mapped = jax.vmap(lambda ts: step(ts, x, y)[1])(jax.tree.map(lambda a: jnp.stack([a, a]), start()))
    np.testing.assert_allclose(scanned, values, rtol=1e-6)
    np.testing.assert_allclose([jax.jit(step)(start(), x, y)[1], *mapped], [values[0]] * 3, rtol=1e-6)


# ---- regularization ------------------------------------------------------------------------


def regression(n=60, d=3):
    draw = np.random.default_rng(0)
    x = draw.normal(size=(n, d)).astype(np.float32)
    return x, (x @ np.array([[1.0], [-2.0], [0.05]]) + 0.3 * draw.normal(size=(n, 1))).astype(np.float32)


LINEAR = Dense(1, use_bias=False)


def test_l2_penalty_is_ridge_regression():
    """Mean squared error + lambda ||w||^2 has its minimum at (X'X + N lambda I)^-1 X'y."""
    x, y = regression()
    optimizer = optax.sgd(0.2)
    step = train_step(LINEAR, mse, optimizer, penalty=lambda params: 0.1 * l2_penalty(params))
    ts = init_train_state(KEY, LINEAR, optimizer, x)
    for _ in range(200):
        ts, value = step(ts, x, y)
    ridge = np.linalg.solve(x.T @ x + len(x) * 0.1 * np.eye(3), x.T @ y)
    np.testing.assert_allclose(ts.params["kernel"], ridge, rtol=1e-5)
    np.testing.assert_allclose(value, ((x @ ridge - y) ** 2).mean() + 0.1 * (ridge**2).sum(), rtol=1e-5)
    plain = np.linalg.lstsq(x, y, rcond=None)[0]
    assert abs(plain - ridge).max() > 0.05


def test_l1_by_the_proximal_step_is_the_lasso_with_exact_zeros():
    """For X'X = N I, the lasso is S_(lambda/2)(X'y / N), and params below the threshold are exactly 0."""
    x, y = regression()
    x = np.sqrt(len(x)) * np.linalg.qr(x)[0]
    lasso = soft_threshold(jnp.asarray(x.T @ y / len(x)), 0.4 / 2)
    assert int((lasso == 0).sum()) == 1
    optimizer = optax.chain(optax.sgd(0.2), proximal_l1(jnp.float32(0.2 * 0.4)))
    step = train_step(LINEAR, mse, optimizer)
    ts = init_train_state(KEY, LINEAR, optimizer, x)
    for _ in range(100):
        ts, _ = step(ts, x, y)
    np.testing.assert_allclose(ts.params["kernel"], lasso, atol=1e-5)
    np.testing.assert_array_equal(ts.params["kernel"] == 0, lasso == 0)
    with pytest.raises(ValueError, match=r"^proximal_l1 expected params to shrink, got None; call update\(gradients, "):
        proximal_l1(0.1).update(x, optax.EmptyState())


def test_augmentation_may_change_the_labels():
    """``augment=mixup`` mixes both; with parts of the batch the whole batch is mixed once."""
    x, y = np.float32([[0], [10], [20], [30]]), np.float32([[0], [1], [2], [3]])
    # 0 where inputs and targets are mixed, and mixed alike.
    seen = lambda outputs, y: jnp.abs(outputs - 10 * y) + 100.0 * (outputs % 10 == 0).all()
    for n in (1, 2):
        step = train_step(lambda x: x, seen, optax.sgd(0.1), augment=functools.partial(mixup, alpha=1.0), accumulate=n)
        ts = init_train_state(jax.random.key(0), lambda x: x, optax.sgd(0.1), x)
        assert step(ts, x, y)[1] < 1e-5
    with pytest.raises(TypeError) as raised:
        train_step(lambda x: x, seen, optax.sgd(0.1), augment=lambda a, b: (a + 1, b))(ts, x, y)
    assert "Raised by augment(key, x), called with a key and x of float32 (4, 1)." in raised.value.__notes__
    with pytest.raises(ValueError, match=r"^fit expected augment to .* one row for each example.*, got float32 \(1,\)"):
        quiet(Dense(1), mse, optax.sgd(0.1), line(), batch_size=4, steps=1, augment=lambda key, x: x[0])


def test_fit_in_parts_of_batches():
    """The result of whole batches; a batch that the parts do not divide is rejected."""
    x = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32)
    data, options = (x, x[:, :1]), {"key": jax.random.key(0), "steps": 4, "batch_size": 8, "progress": False}
    whole, parts = (fit(Dense(1), mse, optax.adam(0.1), data, accumulate=n, **options) for n in (1, 4))
    np.testing.assert_allclose(parts.history.step_loss, whole.history.step_loss, rtol=1e-5)
    np.testing.assert_allclose(parts.params["kernel"], whole.params["kernel"], rtol=1e-4)
    with pytest.raises(ValueError, match=r"expected .*3.*got .*8"):
        fit(Dense(1), mse, optax.adam(0.1), data, accumulate=3, **options)


def test_the_range_test_is_descent_with_growing_rates(sentences):
    """By hand in NumPy, on whole batches; it ends where the smoothed loss explodes."""
    x = np.random.default_rng(0).normal(size=(16, 1)).astype(np.float32)
    net, options = Dense(1, use_bias=False), {"key": jax.random.key(0), "lowest": 1e-3, "highest": 100.0, "steps": 40}
    test = find_learning_rate(net, mse, optax.sgd, (x, 3 * x), **options)
    ts = init_train_state(options["key"], net, optax.sgd(0.1), x)
    w, square = float(ts.params["kernel"][0, 0]), float((x**2).mean())
    average, smoothed = 0.0, []
    for k, rate in enumerate(np.geomspace(1e-3, 100, 40)):
        value = square * (w - 3) ** 2
        average = 0.9 * average + 0.1 * value
        if average / (1 - 0.9 ** (k + 1)) > 4 * min(smoothed, default=np.inf):
            break
        smoothed.append(average / (1 - 0.9 ** (k + 1)))
        np.testing.assert_allclose(test.rates[k], rate, rtol=1e-6)
        np.testing.assert_allclose(test.losses[k], value, rtol=1e-3, atol=1e-9)
        w -= rate * 2 * square * (w - 3)
    assert len(test.rates) == k < 40
    np.testing.assert_allclose(test.smoothed, smoothed, rtol=1e-3)
    assert test.rates[0] < test.suggestion < 1 / square  # above it the descent of this parabola diverges
    assert "the loss falls fastest at" in repr(test)
    with pytest.raises(
        ValueError, match="find_learning_rate expected lowest below highest=0.1, got 1.0; pass a smaller lowest rate"
    ):
        find_learning_rate(net, mse, optax.sgd, (x, x), key=jax.random.key(0), lowest=1.0, highest=0.1, steps=2)
    with pytest.raises(ValueError, match="find_learning_rate expected steps of at least 2, got 1; pass more steps"):
        find_learning_rate(net, mse, optax.sgd, (x, x), key=jax.random.key(0), steps=1)
    with pytest.raises(TypeError, match=r"find_learning_rate expected data to be a pair \(x, y\), got float32"):
        find_learning_rate(net, mse, optax.sgd, x, key=jax.random.key(0))
    with pytest.raises(ValueError, match="expected a loss that is finite and does not explode at once, got 0 steps"):
        find_learning_rate(net, lambda outputs, y: outputs / 0, optax.sgd, (x, x), key=jax.random.key(0))


def test_the_suggested_rate_is_not_that_of_noise_or_of_a_rebound():
    """Losses fall by 2 around a rate of 0.1 and explode around 1.5; the noise of a batch has a deviation of 0.1."""
    rates = np.geomspace(1e-6, 10, 100)
    of_rate = 2.4 - 2 / (1 + (0.1 / rates) ** 2) + 8 * np.exp(-(np.log(rates / 1.5) ** 2) / 0.3)
    for seed in range(20):
        losses = of_rate + np.random.default_rng(seed).normal(size=100) * 0.1
        smoothed = [np.average(losses[: k + 1], weights=0.9 ** np.arange(k, -1, -1)) for k in range(100)]
        assert 0.05 < RangeTest(rates, losses, np.array(smoothed)).suggestion < 0.2
    for losses, best in ([10.0, 1, 2, 3, 4], 1), ([10.0, 10, 10, 10, 1], 3), ([3.0, 1], 1):  # short runs
        few = np.geomspace(1e-4, 1, len(losses))
        assert RangeTest(few, np.array(losses), np.array(losses)).suggestion == few[best]


def test_norms_of_gradients_and_updates_are_in_the_logs(tmp_path):
    """The gradient before clipping, the update after all; rows of other steps have none."""
    x = np.random.default_rng(0).normal(size=(8, 1)).astype(np.float32)
    net, path = Dense(1, use_bias=False), tmp_path / "log.csv"
    optimizer = track_norms(optax.chain(optax.clip_by_global_norm(0.5), optax.sgd(0.25)))
    options = {"key": jax.random.key(0), "steps": 4, "progress": False, "callbacks": [norm_log(every=2), csv_log(path)]}
    fitted = fit(net, mse, optimizer, (x, 9 * x), **options)
    header, *rows = [line.split(",") for line in path.read_text().splitlines()]
    assert header[-2:] == ["gradient norm", "update norm"]
    assert [bool(row[-1]) for row in rows] == [False, True, False, True]
    # mse = m (w - 9)^2, so that the gradient is 2 sqrt(m loss)
    expected = 2 * np.sqrt((x**2).mean() * fitted.history.step_loss[[1, 3]])
    np.testing.assert_allclose([float(rows[i][-2]) for i in (1, 3)], expected, rtol=1e-4)
    np.testing.assert_allclose([float(rows[i][-1]) for i in (1, 3)], 0.125, rtol=1e-4)
    np.testing.assert_allclose(get_norms(fitted.ts)["update norm"], 0.125, rtol=1e-4)
    with pytest.raises(
        ValueError, match="get_norms expected the state of an optimizer with one track_norms around it, got"
    ):
        get_norms(optax.sgd(0.1).init(x))


def test_augmentation_has_a_new_key_in_each_step_and_keeps_the_labels():
    x = jnp.zeros((4, 2))
    seen = lambda outputs, y: jnp.where(y == 0, outputs, jnp.nan)
    step = train_step(
        lambda x: x, seen, optax.sgd(0.1), augment=functools.partial(gaussian_noise, scale=1.0)
    ).__wrapped__
    ts = init_train_state(KEY, lambda x: x, optax.sgd(0.1), x)
    after, first = step(ts, x, x)
    _, second = step(after, x, x)
    _, again = step(ts, x, x)
    assert float(first) == float(again) != float(second) and np.isfinite(first)


# ---- optax transformations and averages --------------------------------------------------------


def test_average_of_half_precision_params_is_float32():
    """In bfloat16, updates with weight 0.001 would be lost to rounding; the average is float32."""
    optimizer = ema_params(0.999)
    params = jnp.zeros(1, jnp.bfloat16)

    def step(state, now):
        return optimizer.update(jnp.zeros(1, jnp.bfloat16), state, jnp.full(1, now, jnp.bfloat16))[1], None

    state, _ = jax.lax.scan(step, optimizer.init(params), (jnp.arange(3000) >= 1000).astype(jnp.bfloat16))
    expected = sum(0.999 ** (2999 - s) for s in range(1000, 3000)) * 0.001 / (1 - 0.999**3000)
    assert get_ema(state).dtype == jnp.float32
    np.testing.assert_allclose(get_ema(state), expected, rtol=1e-4)


def test_averaged_params_are_the_weighted_mean_of_all_steps():
    """In NumPy, float64: weights (1 - d) d^(t - s) / (1 - d^t); the params are unchanged."""
    (x, y), decay = line(16), 0.9
    optimizer = optax.chain(optax.sgd(0.3), ema_params(decay))
    plain, step = train_step(NET, mse, optax.sgd(0.3)), train_step(NET, mse, optimizer)
    ts, bare = init_train_state(KEY, NET, optimizer, x), init_train_state(jax.random.key(0), NET, optax.sgd(0.3), x)
    same(get_ema(ts.opt_state), ts.params)
    seen = []
    for t in range(1, 8):
        ts, _ = step(ts, x, y)
        bare, _ = plain(bare, x, y)
        seen.append(np.asarray(ts.params[0]["kernel"], np.float64))
        weights = (1 - decay) * decay ** np.arange(t - 1.0, -1.0, -1.0) / (1 - decay**t)
        expected = sum(w * p for w, p in zip(weights, seen, strict=True))
        np.testing.assert_allclose(get_ema(ts.opt_state)[0]["kernel"], expected, rtol=2e-6, atol=1e-7)
        same(get_ema(ts), get_ema(ts.opt_state))
    close(ts.params, bare.params)


def test_wrong_uses_of_ema_params_are_rejected(sentences):
    for decay in (1.0, -0.1, float("nan")):
        with pytest.raises(ValueError, match="ema_params expected decay to be a number >= 0 and < 1"):
            ema_params(decay)
    params = jnp.zeros(2)
    with pytest.raises(
        ValueError, match=r"expected params to average, got None; call update\(gradients, state, params\)"
    ):
        ema_params(0.9).update(params, ema_params(0.9).init(params))
    with pytest.raises(ValueError, match="get_ema expected .* got one with 0; use optax.chain"):
        get_ema(optax.adam(0.1).init(params))
    assert get_ema(optax.chain(optax.adam(0.1), ema_params(0.9)).init(params)).shape == (2,)  # the suggested repair
    adam, average = optax.adam(0.1), ema_params(0.9)
    by_label = optax.multi_transform({"a": optax.chain(adam, average), "b": optax.sgd(0.1)}, {"x": "a", "y": "b"})
    for optimizer, tree in (
        (optax.chain(adam, average, ema_params(0.99)), params),
        (optax.chain(optax.chain(adam, average), ema_params(0.99)), params),
        (optax.named_chain(("steps", adam), ("average", average)), params),
        (by_label, {"x": params, "y": params}),
    ):
        check_ema_is_last(optimizer.init(tree))
    for optimizer in (
        optax.chain(average, adam),
        optax.chain(adam, average, optax.scale(0.1)),
        optax.chain(optax.chain(adam, average), adam, average),
        optax.named_chain(("average", average), ("steps", adam)),
        optax.chain(adam, optax.named_chain(("average", average), ("steps", adam))),
    ):
        with pytest.raises(ValueError, match="expected ema_params as the last transformation of its chain, got"):
            check_ema_is_last(optimizer.init(params))


# ---- mixed precision -----------------------------------------------------------------------


def dtypes_of_products(jaxpr):
    """The dtypes of the operands of all dot_general and convolution equations, including nested ones."""
    found = set()
    for equation in jaxpr.eqns:
        if equation.primitive.name in ("dot_general", "conv_general_dilated"):
            found.add(tuple(str(v.aval.dtype) for v in equation.invars))
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda p: hasattr(p, "eqns")):
            if hasattr(inner, "eqns"):
                found |= dtypes_of_products(inner)
    return found


TOKENS = Serial(
    jaxblocks.Embedding(11, 8), jaxblocks.Residual(jaxblocks.LayerNorm(), jaxblocks.Attention(2)), Dense(11)
)
IMAGES = Serial(
    jaxblocks.Conv(4, (3, 3)), jaxblocks.BatchNorm(), jaxblocks.relu, lambda x: x.reshape(len(x), -1), Dense(5)
)


@pytest.mark.parametrize(
    ("net", "x", "classes"),
    [
        (TOKENS, np.arange(24).reshape(4, 6) % 11, 11),
        (IMAGES, np.linspace(0, 1, 4 * 5 * 5 * 2, dtype=np.float32).reshape(4, 5, 5, 2), 5),
    ],
    ids=["tokens", "images"],
)
def test_mixed_precision_computes_in_bfloat16_and_keeps_params_in_float32(net, x, classes):
    """The products in bfloat16, forward and backward; params, statistics, optimizer and loss in float32."""
    y = np.zeros((4, 6) if classes == 11 else 4, np.int32)
    optimizer, values = optax.adam(1e-2), drawn(net, x)
    ts = init_train_state(KEY, type(net)(lambda key, x: values, net.apply), optimizer, x)
    traced = []

    def loss(outputs, y):
        traced.append(None)
        return softmax_cross_entropy(outputs, y)

    steps = [train_step(net, loss, optimizer, compute_dtype=d) for d in (None, jnp.bfloat16)]
    full, mixed = (dtypes_of_products(jax.make_jaxpr(step.__wrapped__)(ts, x, y).jaxpr) for step in steps)
    assert full == {("float32", "float32")} and ("bfloat16", "bfloat16") in mixed
    # Attention accumulates its products in float32, so one factor of their backward products is float32.
    assert all("bfloat16" in pair for pair in mixed) if net is TOKENS else len(mixed) == 1
    kinds = lambda tree: jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree)
    before = kinds(ts)
    (a, exact), (b, rounded) = steps[0](copy(ts), x, y), steps[1](copy(ts), x, y)
    assert kinds(a) == kinds(b) == before and rounded.dtype == jnp.float32
    assert 0 < abs(float(exact) - float(rounded)) < 0.02 * float(exact)
    once = len(traced)
    for _ in range(10):
        b, last = steps[1](b, x, y)
    assert float(last) < 0.6 * float(rounded) and len(traced) == once
    data = jax.device_put((x, y))
    metric = {"loss": softmax_cross_entropy, "dtype": lambda o, y: jnp.float32(o.dtype == jnp.float32)}
    # After one step: the logits of a fitted net are large, and so are their rounding errors.
    found = evaluate(net, a.params, a.state, data, metric, compute_dtype=jnp.bfloat16)
    np.testing.assert_allclose(found["loss"], evaluate(net, a.params, a.state, data, metric)["loss"], rtol=0.02)
    assert found["dtype"] == 1


def test_fit_in_mixed_precision(sentences):
    x, y = line()
    go = functools.partial(quiet, NET, mse, optax.adam(0.05), (x, y), batch_size=8, epochs=10, validation=(x, y))
    full, mixed = go(), go(compute_dtype="bfloat16")
    assert mixed.params[0]["kernel"].dtype == jnp.float32
    assert abs(full.params[0]["kernel"] - mixed.params[0]["kernel"]).max() > 0
    np.testing.assert_allclose(mixed.history.validation["loss"][-1], full.history.validation["loss"][-1], rtol=0.3)
    with pytest.raises(ValueError, match=r"expected compute_dtype to be jnp.bfloat16.*, got float16 \(small gradients"):
        go(compute_dtype=jnp.float16)
    with pytest.raises(
        ValueError, match="train_step expected compute_dtype to be jnp.bfloat16, jnp.float32 or None, got int32"
    ):
        train_step(NET, mse, optax.sgd(0.1), compute_dtype=jnp.int32)
    with pytest.raises(ValueError, match="evaluate expected compute_dtype .* got float16"):
        evaluate(NET, full.params, (), (x, y), {"loss": mse}, compute_dtype="float16")


# ---- early stopping ------------------------------------------------------------------------

SCRIPT = [5.0, 4.0, 4.5, float("nan"), 3.0, 3.0, 3.5, 3.1, 1.0]


def test_stopping_rule_stops_at_the_exact_step():
    """The best value is 3.0 at index 4; the rule stops three values later, at index 7."""
    stopping = stopping_rule(3)
    state, stops, improved = stopping.init(), [], []
    for value in SCRIPT:
        state = stopping.update(state, value)
        stops.append(bool(state.stop))
        improved.append(bool(state.improved))
    scanned, seen = lax.scan(
        lambda state, value: (new := stopping.update(state, value), new.stop), stopping.init(), jnp.array(SCRIPT)
    )
    assert stops == [False] * 7 + [True] * 2
    assert improved == [True, True, False, False, True, False, False, False, True]
    np.testing.assert_array_equal(seen, np.array(stops))
    same(scanned, state)


def test_improvement_is_larger_than_min_delta():
    stopping = stopping_rule(1, min_delta=0.5)
    state = stopping.update(stopping.init(), 2.0)
    assert not jax.jit(stopping.update)(state, 1.4).stop
    assert jax.jit(stopping.update)(state, 1.5).stop
    for bad in (0, -1, True):
        with pytest.raises((ValueError, TypeError), match="patience"):
            stopping_rule(bad)
    with pytest.raises(ValueError, match="min_delta"):
        stopping_rule(1, min_delta=-1.0)
    with pytest.raises(ValueError, match="^early_stopping expected patience to be an integer >= 1, got 2.5"):
        early_stopping(2.5)


# ---- fit -----------------------------------------------------------------------------------


def test_loop_of_five_lines_equals_fit_bitwise():
    x, y = map(np.asarray, line(100))
    net, optimizer, key = Serial(dense.Dense(8), Dropped(), Dense(1)), optax.adam(0.01), jax.random.key(3)
    fitted = fit(net, mse, optimizer, (x, y), key=key, batch_size=16, epochs=3, progress=False)

    ts = init_train_state(key, net, optimizer, x[:16])
    step = train_step(net, mse, optimizer)
    values = []
    for x_batch, y_batch in minibatches(key, (x, y), 16, epochs=3):
        ts, value = step(ts, x_batch, y_batch)
        values.append(value)

    same(ts, fitted.ts)
    same((ts.params, ts.state), (fitted.params, fitted.state))
    np.testing.assert_array_equal(np.array(values), fitted.history.step_loss)


def test_data_may_be_on_host_or_device_and_the_init_of_a_net_is_compiled_once():
    """Steps in one program give the same run as those for batches that are copied to the device."""
    x, y = map(np.asarray, line(40))
    traced, scale = [], 1.0

    def init(key, x):
        traced.append("init")
        return NET.init(key, x)

    def loss(outputs, y):
        return scale * mse(outputs, y)

    net, optimizer = Layer(init, NET.apply), optax.sgd(0.05)
    run = lambda data, seed: quiet(net, loss, optimizer, data, key=jax.random.key(seed), batch_size=16, epochs=3)
    on_host, on_device = run((x, y), 0), run((jnp.asarray(x), jnp.asarray(y)), 0)
    close(on_host.ts, on_device.ts)
    close(on_host.history.step_loss, on_device.history.step_loss)
    assert len(traced) == 1
    scale = 2.0  # a value that the loss reads when it is called
    close(run((x, y), 0).history.step_loss[0], 2 * on_host.history.step_loss[0])


@pytest.mark.parametrize("kind", ["dropout and state", "convolution"])
def test_steps_in_one_program_are_those_of_single_calls(kind, monkeypatch):
    """To the bit in parts of any length; convolutions are slow in loops on CPU, so their steps are single calls."""
    if kind == "convolution":
        x = jax.device_put(np.linspace(-1, 1, 320, dtype=np.float32).reshape(40, 8, 1))
        net = Serial(Conv(2, (3,), kernel_init=fixed_init), Flatten(1), Dense(1))
    else:
        net, x = Serial(Dense(8), Centered(), Dropped(), Dense(1)), line()[0]
    data, optimizer = (x, line()[1]), optax.sgd(0.05)
    step, ts = train_step(net, mse, optimizer), init_train_state(KEY, net, optimizer, x[:16])
    assert is_for_a_loop(step, ts, data, 16) == (kind == "dropout and state")
    run = lambda data, **options: quiet(net, mse, optimizer, data, batch_size=16, **options)
    whole, first = run(data, steps=9), run(data, steps=4)
    monkeypatch.setattr(intervals, "_MOST_ROWS", 2 * 16)  # two steps in a program, as for large batches
    second = run(data, steps=9, ts=first.ts)
    same(whole.ts, second.ts)
    np.testing.assert_array_equal(
        whole.history.step_loss, np.concatenate([first.history.step_loss, second.history.step_loss])
    )
    close(run(jax.tree.map(np.asarray, data), steps=9).ts, whole.ts)
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves((first.params, first.state, first.ts)))
    with pytest.raises(
        ValueError, match="^fit expected more steps than the 4 that were made .*, got 2; pass epochs > 2 or steps > 4, "
    ):
        run(data, epochs=1, ts=first.ts)


@pytest.mark.parametrize("after", [lambda x: x, lambda x: x[:0].astype(int)], ids=["shape", "dtype"])
def test_steps_that_change_the_types_of_the_state_are_single_calls(after):
    """A loop cannot carry a buffer that is empty at first."""

    def init(key, x):
        return (), {"last": jnp.zeros((0, 1))}

    def apply(params, state, x):
        return x, {"last": after(x)}

    net, data, optimizer = Serial(Dense(1), StatefulLayer(init, apply)), line(), optax.sgd(0.1)
    ts = init_train_state(KEY, net, optimizer, data[0][:16])
    assert not is_for_a_loop(train_step(net, mse, optimizer), ts, data, 16)


def test_debug_nans_raises_for_a_nan_of_steps_in_one_program():
    with jax.debug_nans(True), pytest.raises(FloatingPointError, match="nan"):
        quiet(Dense(1), lambda outputs, y: jnp.nan * outputs, optax.sgd(0.1), line(), steps=1, batch_size=16)


def test_memory_does_not_grow_with_the_number_of_steps(as_a_user_has_it):
    """The history takes a few bytes a step; views of the losses would keep their device buffers, 2 KiB a step."""
    memory = Path("/proc/self/statm")
    if not memory.exists():
        pytest.skip("the resident memory is read from /proc")
    resident = []
    measure = Callback(on_step=lambda run: resident.append(int(memory.read_text().split()[1])), every=1000)
    data = np.zeros((8000, 1), np.float32), np.zeros((8000, 1), np.float32)
    difference = lambda outputs, y: outputs - y
    quiet(lambda x: x, difference, optax.identity(), data, batch_size=1, steps=8000, callbacks=[measure])
    grown = (resident[-1] - resident[0]) * os.sysconf("SC_PAGE_SIZE")
    assert grown < 8 * 2**20, grown


def test_fit_is_determined_by_its_key_and_learns():
    a = quiet(RANDOM, mse, optax.adam(0.05), line(), batch_size=8, epochs=20)
    b = fit(RANDOM, mse, optax.adam(0.05), line(), key=jax.random.key(0), batch_size=8, epochs=20, progress=False)
    c = fit(RANDOM, mse, optax.adam(0.05), line(), key=jax.random.key(1), batch_size=8, epochs=20, progress=False)
    same(a.params, b.params)
    assert abs(a.params[0]["kernel"] - c.params[0]["kernel"]).max() > 1e-3
    assert a.history.step_loss[-5:].mean() < 0.3 * a.history.step_loss[:5].mean()


def test_resumed_fit_uses_the_training_state_only():
    """History, best params and patience belong to one call: here each validation is worse than the previous one."""
    x, y = line()
    go = functools.partial(quiet, Dense(1), mse, optax.sgd(0.05), (x, y), batch_size=20, validation=(x, -y))
    whole, part = go(epochs=20), go(epochs=10)
    rest = go(epochs=20, ts=part.ts)
    same(rest.ts, whole.ts)
    assert np.all(np.diff(whole.history.validation["loss"][9:]) > 0)
    same(whole.params, part.params)
    found = evaluate(Dense(1), rest.params, (), (x, -y), {"loss": mse}, batch_size=20)
    assert found["loss"] == rest.history.validation["loss"][0] == whole.history.validation["loss"][10]
    stopped = go(epochs=20, ts=part.ts, callbacks=[early_stopping(patience=2)])
    assert int(stopped.ts.step) == int(part.ts.step) + 2 * 3  # the first of this call is an improvement


def test_fit_rejects_invalid_training_states(sentences):
    go = functools.partial(quiet, Dense(1), mse, optax.sgd(0.1), line(), batch_size=20)
    fitted = go(epochs=1)
    with pytest.raises(TypeError, match="^fit expected ts to be a TrainState, got a Fitted; pass ts=fitted.ts"):
        go(epochs=2, ts=fitted)
    with pytest.raises(TypeError, match="got a dict; pass the result of init_train_state or of a step"):
        go(epochs=2, ts=fitted.params)
    same(go(epochs=2, ts=fitted.ts).ts, go(epochs=2).ts)  # the suggested repair
    given = copy(fitted.ts)
    train_step(Dense(1), mse, optax.sgd(0.1), donate=True)(given, *line())
    with pytest.raises(ValueError, match=r"a step has donated; .* or pass a copy to the step: jax.tree.map"):
        go(epochs=2, ts=given)


def test_early_stopping_restores_the_best_params():
    """The validation labels have the opposite sign, so the validation loss increases after some steps."""
    x, y = line()
    net, optimizer = Dense(1), optax.sgd(0.05)
    fitted = quiet(
        net, mse, optimizer, (x, y), batch_size=20, epochs=50, validation=(x, -y), callbacks=[early_stopping(3)]
    )
    losses = fitted.history.validation["loss"]
    best = int(losses.argmin())
    assert len(losses) == best + 4 and int(fitted.ts.step) == 2 * len(losses)
    until_best = quiet(net, mse, optimizer, (x, y), batch_size=20, epochs=best + 1)
    same(fitted.params, until_best.params)
    assert abs(fitted.params["kernel"] - fitted.ts.params["kernel"]).max() > 1e-3
    found = evaluate(net, fitted.params, (), (x, -y), {"loss": mse}, batch_size=20)
    assert found["loss"] == losses[best]


def test_names_that_the_result_does_not_have():
    fitted = quiet(NET, mse, optax.sgd(0.1), line(), batch_size=8, steps=1)
    with pytest.raises(AttributeError, match="no attribute 'model'; it has params, state, history, ts; the net is the"):
        fitted.model  # noqa: B018


def test_validation_metrics_and_history(capsys):
    x, y = line(30)
    metrics = {"worst": lambda outputs, y: jnp.abs(outputs - y).max()}
    fitted = quiet(NET, mse, optax.sgd(0.1), (x, y), batch_size=10, steps=7, validation=(x, y), metrics=metrics)
    history = fitted.history
    assert capsys.readouterr().err == ""
    np.testing.assert_allclose(history.epoch, [1, 2, 7 / 3])
    np.testing.assert_allclose(history.step_epoch, np.arange(1, 8) / 3)
    assert list(history.validation) == ["loss", "worst"] and history.validation["worst"].shape == (3,)
    found = evaluate(NET, fitted.ts.params, (), (x, y), {"loss": mse, **metrics}, batch_size=10)
    assert found["worst"] == history.validation["worst"][-1]
    assert repr(history).startswith("History(7 steps, last training loss 0.") and len(repr(history)) < 120


def test_plot_of_the_history():
    matplotlib = pytest.importorskip("matplotlib", reason="pictures need matplotlib")
    matplotlib.use("Agg")
    x, y = line(30)
    history = quiet(NET, mse, optax.sgd(0.1), (x, y), batch_size=10, epochs=2, validation=(x, y)).history
    ax = history.plot()
    assert history.plot(ax) is ax
    drawn = {line.get_label(): line for line in ax.get_lines()}
    assert set(drawn) == {"training loss", "validation loss"} and ax.get_xlabel() == "epoch"
    np.testing.assert_array_equal(drawn["training loss"].get_ydata(), history.step_loss)
    np.testing.assert_array_equal(drawn["validation loss"].get_xdata(), [1.0, 2.0])


def test_progress_bar_shows_loss_and_validation(capsys):
    x, y = line(30)
    metrics = {"worst": lambda outputs, y: jnp.abs(outputs - y).max()}
    fitted = fit(NET, mse, optax.sgd(0.1), (x, y), key=KEY, batch_size=10, epochs=2, validation=(x, y), metrics=metrics)
    text = capsys.readouterr().err
    assert "6/6" in text
    assert (
        f"loss={fitted.history.step_loss[-1]:.4g}, validation loss={fitted.history.validation['loss'][-1]:.4g}" in text
    )
    assert f"validation worst={fitted.history.validation['worst'][-1]:.4g}" in text


def test_redirected_output_contains_few_bars(capsys):
    x, y = line(8)
    fit(Dense(1), mse, optax.sgd(0.1), (x, y), key=KEY, batch_size=8, epochs=30, validation=(x, y))
    text = capsys.readouterr().err
    assert text.count("%|") <= 3 and "30/30" in text and "validation loss=" in text


def test_progress_bar_refreshes_often_in_terminals_and_excludes_compilation_time(capsys, monkeypatch):
    import tqdm.auto

    bars, traced = [], []

    class Bar(tqdm.auto.tqdm):
        def close(self):
            bars.append((self.mininterval, self.format_dict["elapsed"]))
            super().close()

    def slow_to_compile(outputs, y):
        traced.append(time.monotonic())
        time.sleep(0.3)
        return mse(outputs, y)

    monkeypatch.setattr(tqdm.auto, "tqdm", Bar)
    fit(Dense(1), slow_to_compile, optax.sgd(0.1), line(), key=KEY, batch_size=8, steps=3)
    assert bars[0][0] == 10 and bars[0][1] < time.monotonic() - traced[0] - 0.3
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    fit(Dense(1), mse, optax.sgd(0.1), line(), key=KEY, batch_size=8, steps=3)
    assert bars[-1][0] == 0.5


class Mapped:
    """An array outside of memory that records the maximum number of rows per read."""

    def __init__(self, array):
        self.array, self.shape, self.dtype, self.most = array, array.shape, array.dtype, 0

    def __getitem__(self, rows):
        part = self.array[rows]
        self.most = max(self.most, len(part))
        return part

    def __array__(self, dtype=None, copy=None):
        return self[:]


def test_memory_maps_are_never_read_whole():
    x, y = Mapped(np.zeros((3000, 1000), np.float32)), Mapped(np.zeros((3000, 1), np.float32))
    options = dict(batch_size=8, steps=2, validation=(x, y))
    quiet(Dense(1), mse, optax.sgd(0.1), (x, y), **options)
    assert 8 <= x.most < 1500
    x.array[2500, 3], x.array[2999, 0] = np.nan, np.inf
    with pytest.raises(ValueError, match=r"got nan at \(2500, 3\) of .* \(2 of its 3000000 values"):
        quiet(Dense(1), mse, optax.sgd(0.1), (x, y), **options)
    assert x.most < 1500


def test_float64_data_are_trained_on_in_float32():
    """Without a warning about truncation (warnings are errors here)."""
    x, y = (np.asarray(a, np.float64) for a in line())
    net = Dense(1)
    fitted = quiet(net, mse, optax.adam(0.1), (x, y), batch_size=8, epochs=2, validation=(x, y))
    ts = init_train_state(KEY, net, optax.adam(0.1), x)
    for tree in (fitted.params, fitted.ts, ts):
        assert not any(leaf.dtype == np.float64 for leaf in jax.tree.leaves(tree))
    assert fitted.history.step_loss.dtype == np.float32
    found = evaluate(net, fitted.params, (), (x, y), {"same": lambda o, y: jnp.float32(o.dtype == y.dtype)})
    assert found["same"] == 1.0
    with pytest.raises(FloatingPointError):
        quiet(net, lambda o, y: jnp.log(o * 0 - 1), optax.adam(0.1), (x, y), batch_size=8, epochs=2)


def test_several_inputs_and_numpy_data():
    x, y = (np.asarray(a) for a in line())
    net = Serial(lambda a, b: a + b, Dense(1))
    fitted = quiet(net, mse, optax.sgd(0.1), ((x, x), y), batch_size=8, epochs=2, validation=((x, x), y))
    assert fitted.history.step_loss.shape == (10,)


# ---- errors -----------------------------------------------------------------------


def broken(value, index):
    x, y = (np.array(a) for a in line())
    x[index] = value
    return x, y


def callback_with(name, value):
    """A callback with an attribute that its annotation does not allow."""
    callback = Callback()
    object.__setattr__(callback, name, value)
    return callback


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        (
            {"data": broken(np.nan, 17)},
            ValueError,
            r"^fit expected finite data, got nan at \(17, 0\) of data\[0\], float32 \(40, 1\) \(1 of its 40",
        ),
        ({"validation": broken(-np.inf, 3)}, ValueError, r"got -inf at \(3, 0\) of validation\[0\]"),
        ({"data": (np.zeros((0, 1)), np.zeros((0, 1)))}, ValueError, "at least one row in data, got none"),
        ({"validation": (np.zeros((0, 1)), np.zeros((0, 1)))}, ValueError, "at least one row in validation, got none"),
        ({"data": (np.zeros((4, 1)), np.zeros((5, 1)))}, ValueError, "the same number of rows"),
        ({"validation": (np.zeros((4, 1)), np.zeros(5))}, ValueError, r"validation\[0\] float64 \(4, 1\)"),
        ({"data": (jnp.zeros((4, 1)), jnp.zeros(4), jnp.zeros(4))}, TypeError, r"pair \(x, y\), got a tuple of 3"),
        ({"batch_size": 41}, ValueError, "^fit expected batch_size to be at most 40, .* got 41; pass batch_size=40"),
        ({"epochs": None}, ValueError, "one of epochs and steps, got epochs=None and steps=None"),
        ({"steps": 3}, ValueError, "one of epochs and steps, got epochs=1 and steps=3"),
        ({"key": 0}, TypeError, r"^fit expected key to be a key, got 0; pass jax.random.key\(0\)"),
        ({"key": None}, TypeError, "^fit expected key to be a key, got None"),
        ({"data": np.zeros((4, 1))}, TypeError, r"pair \(x, y\), got float64 \(4, 1\)"),
        ({"data": 3}, TypeError, r"pair \(x, y\), got 3"),
        (
            {"callbacks": [early_stopping(3)]},
            ValueError,
            "^fit expected .* 'loss' .*, got no validation; pass validation=",
        ),
        ({"callbacks": early_stopping(3)}, TypeError, "^fit expected a list of callbacks, got a Callback; pass a list"),
        ({"callbacks": [print]}, TypeError, "^fit expected callbacks, got the function print; pass a list"),
        ({"callbacks": [Callback(every=0)]}, ValueError, "^fit expected every of a callback .* >= 1 or None, got 0"),
        (
            {"callbacks": [callback_with("every", 2.5)]},
            ValueError,
            "^fit expected every of a callback .* or None, got 2.5",
        ),
        (
            {"callbacks": [callback_with("on_step", "x")]},
            TypeError,
            "^fit expected on_step of a callback .*, got x; write",
        ),
        (
            {"callbacks": [Callback(on_end=lambda run, more: None)]},
            TypeError,
            r"^fit expected on_end of .*, got a function of \(run, more\); write on_end=lambda run: print\(run.step\)",
        ),
        ({"metrics": {"mse": mse}}, ValueError, "pass validation="),
        ({"metrics": {"loss": mse}, "validation": line()}, ValueError, "another name"),
    ],
)
def test_fit_rejects_wrong_arguments_before_the_first_step(options, error, sentence, sentences):
    options = {"data": line(), "batch_size": 8, "epochs": 1, **options}
    with pytest.raises(error, match=sentence):
        quiet(NET, mse, optax.sgd(0.1), options.pop("data"), **options)


def test_numpy_integers_are_accepted(sentences):
    counts = dict(batch_size=np.int64(8), steps=np.int32(3), callbacks=[early_stopping(np.int64(2))])
    fitted = quiet(Dense(1), mse, optax.sgd(0.1), line(), validation=line(), **counts)
    assert fitted.history.step_loss.shape == (3,)


def test_modules_and_functions_have_different_names():
    """`jaxblocks.training.fit` is the function."""
    modules = {info.name for info in pkgutil.iter_modules(jaxblocks.training.__path__)}
    assert not modules & set(jaxblocks.training.__all__)
    assert callable(jaxblocks.training.fit)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("jaxblocks.training.fit")


def test_divergence_raises_an_error_with_the_last_finite_state():
    with pytest.raises(FloatingPointError, match="^fit expected finite .*; try a smaller learning rate") as raised:
        quiet(Dense(1), mse, optax.sgd(1e6), line(), batch_size=8, epochs=100)
    ts = raised.value.ts
    chex.assert_tree_all_finite(ts.params)
    assert 0 < int(ts.step) < 20
    assert f"in step {int(ts.step) + 1} (epoch {1 + int(ts.step) // 5})" in str(raised.value)
    last_good = quiet(Dense(1), mse, optax.sgd(1e6), line(), batch_size=8, steps=int(ts.step))
    same(last_good.ts, ts)


def overflowing(depth):
    """Squares its input in each layer of a stack: finite at first, infinite in the fifth layer."""
    square = lambda x: x * x
    return Serial(begin=lambda x: 10.0 + 0 * x, stack=jaxblocks.Repeat(Serial(up=square), depth), out=Dense(1))


@pytest.mark.parametrize(
    ("net", "loss", "place", "values"),
    [
        (
            Serial(a=Dense(3), b=lambda x: jnp.log(-jnp.abs(x) - 1), c=Dense(1)),
            mse,
            "forward pass of layer b",
            "got a loss of nan, and outputs of the net that are not",
        ),
        (
            overflowing(7),
            mse,
            r"forward pass of layer stack/up, in the operation mul, scan iteration 5 ",
            "outputs of the net that are not",
        ),
        (
            Serial(a=Dense(1), b=lambda x: jnp.sqrt(x - lax.stop_gradient(x))),
            mse,
            "backward pass of layer b, in the operation div",
            "its gradient made params that are not finite",
        ),
        (
            Serial(mask=lambda x: jnp.where(x > 9, x, -jnp.inf), top=lambda x: jax.nn.relu(x), bad=jnp.log, d=Dense(1)),
            mse,
            "forward pass of layer bad",
            "outputs of the net that are not",
        ),
        (
            Dense(1),
            lambda o, y: jnp.log(0 * o - 1),
            r"forward pass of the loss \(outside of the layers\), in the operation log",
            "got a loss of nan, though the outputs of the net",
        ),
        (
            Dense(1),
            lambda o, y: 1e30 * o,
            "forward and backward pass are finite, so it began in the update of the optimizer; check that",
            "params that are not finite",
        ),
    ],
    ids=["forward", "in a stack", "backward", "after a mask", "loss", "optimizer"],
)
def test_values_that_are_not_finite_and_the_layer_where_they_began_are_named(net, loss, place, values):
    """Infinities that a mask removes before the output are not named."""
    optimizer = optax.chain(optax.scale(1e30), optax.sgd(1.0)) if "optimizer" in place else optax.sgd(0.1)
    place = f"in step 1 .epoch 1.*; (it began in the )?{place}"
    with pytest.raises(FloatingPointError, match=place) as raised:
        quiet(net, loss, optimizer, line(), batch_size=8, epochs=2)
    assert values in str(raised.value) and int(raised.value.ts.step) == 0


def test_nan_in_the_state_stops_the_run_at_that_step():
    """The params are finite, but the state of the optimizer or the statistics become NaN."""

    def gathers():
        return optax.GradientTransformation(
            lambda params: jnp.zeros(()), lambda updates, state, params=None: (updates, jnp.log(state - 1))
        )

    with pytest.raises(FloatingPointError, match="in step 1 .* NaN in the state of the net or of the optimizer"):
        quiet(Dense(1), mse, optax.chain(optax.sgd(0.1), gathers()), line(), batch_size=8, epochs=2)


def test_an_optimizer_may_mark_unset_values_by_nan():
    """A state that contains NaN at the start is not checked for it; params are."""
    unset = optax.GradientTransformation(
        lambda params: jnp.full((), jnp.nan), lambda updates, state, params=None: (updates, state)
    )
    quiet(Dense(1), mse, optax.chain(optax.sgd(0.1), unset), line(), batch_size=8, steps=2)
    with pytest.raises(FloatingPointError, match="in step 1 "):
        quiet(Dense(1), mse, optax.chain(optax.scale(jnp.inf), unset), line(), batch_size=8, steps=2)


def classes(n=40):
    return line(n)[0], (np.arange(n) >= n // 2).astype(np.int32)


def test_error_of_a_divergence_names_labels_out_of_range():
    x, y = classes()
    too_large, negative = y.copy(), y.copy()
    too_large[7], negative[20] = 2, -1
    with pytest.raises(ValueError, match="label") as raised:
        quiet(Dense(2), softmax_cross_entropy, optax.sgd(0.1), (x, jnp.asarray(too_large)), batch_size=8, epochs=3)
    assert any("of fit" in note for note in raised.value.__notes__)
    chex.assert_tree_all_finite(raised.value.ts.params)
    with pytest.raises(ValueError, match="label") as raised:
        quiet(
            Dense(2),
            softmax_cross_entropy,
            optax.sgd(0.1),
            (x, jnp.asarray(y)),
            batch_size=8,
            epochs=3,
            validation=(np.asarray(x), negative),
        )
    assert any("validation data of fit, rows 16 to 23" in note for note in raised.value.__notes__)


def test_evaluation_before_training_gives_the_error_of_the_layer():
    """After a NaN among the means the net is applied outside of jit, where batch norm can check values."""
    net = jaxblocks.Serial(jaxblocks.BatchNorm())
    x = jnp.arange(8.0)[:, None]
    params, state = net.init(jax.random.key(0), x)
    with jax.debug_nans(False), pytest.raises(ValueError, match="was never updated"):
        evaluate(net, params, state, (x, x), {"mean": lambda outputs, y: outputs}, batch_size=4)


def test_net_with_statistics_across_devices_is_initialized_without_the_mapped_axis():
    net = Serial(Dense(3), jaxblocks.BatchNorm(axis_name="devices"), Dense(2))
    ts = init_train_state(jax.random.key(0), net, optax.sgd(0.1), jnp.zeros((4, 5)))
    assert ts.params[2]["kernel"].shape == (3, 2) and int(ts.state[1]["updates"]) == 0
