"""Weights of examples in the training step and `evaluate`: losses that return values and weights."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxblocks as jb

pytestmark = pytest.mark.usefixtures("as_a_user_has_it")

NET = jb.Dense(3)
X = np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32)
Y = np.array([0, 1, -100, 2, -100, 1])


def padded(logits, y):
    return jb.softmax_cross_entropy(logits, y, where=y >= 0), y >= 0


def test_a_step_on_padded_rows_is_the_step_on_the_others():
    optimizer = optax.sgd(0.1)
    ts = jb.init_train_state(jax.random.key(0), NET, optimizer, X)
    step = jax.jit(jb.train_step(NET, padded, optimizer).__wrapped__)  # without donation
    plain = jax.jit(jb.train_step(NET, jb.softmax_cross_entropy, optimizer).__wrapped__)
    kept, kept_value = plain(ts, X[Y >= 0], Y[Y >= 0])
    after, value = step(ts, X, Y)
    np.testing.assert_allclose(value, kept_value, rtol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7), after.params, kept.params)
    alone, value = step(ts, X, np.full(6, -100))  # a batch of padding alone changes nothing
    assert value == 0
    jax.tree.map(np.testing.assert_array_equal, alone.params, ts.params)


def test_weights_are_repetitions_and_divide_the_mean():
    """Weights 3, 0, 1: the objective and the gradient of the rows repeated 3, 0 and 1 times."""
    x, y, w = X[:3], np.array([0, 1, 2]), np.array([3.0, 0.0, 1.0], np.float32)
    optimizer = optax.sgd(0.1)
    ts = jb.init_train_state(jax.random.key(0), NET, optimizer, x)
    weighted = lambda logits, y: (jb.softmax_cross_entropy(logits, y["label"]), y["weight"])
    one, value = jax.jit(jb.train_step(NET, weighted, optimizer).__wrapped__)(ts, x, {"label": y, "weight": w})
    times = [0, 0, 0, 2]
    plain = jax.jit(jb.train_step(NET, jb.softmax_cross_entropy, optimizer).__wrapped__)
    other, expected = plain(ts, x[times], y[times])
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), one.params, other.params)


def test_steps_are_differentiable_by_the_weights_of_examples():
    """Weights that are learned: the derivative through two steps, in the second of which the params depend on them."""
    optimizer, weight, y = optax.sgd(0.1), np.linspace(1, 2, 6, dtype=np.float32), Y.clip(0)
    ts = jb.init_train_state(jax.random.key(0), NET, optimizer, X)
    loss = lambda logits, y: (jb.softmax_cross_entropy(logits, y["label"]), y["weight"])

    def by_steps(w, accumulate):
        step = jb.train_step(NET, loss, optimizer, accumulate=accumulate)
        after, _ = step(ts, X, {"label": y, "weight": w})
        return step(after, X, {"label": y, "weight": w})[1]

    def by_hand(w):
        mean = lambda params: (w * jb.softmax_cross_entropy(NET.apply(params, X), y)).sum() / w.sum()
        return mean(jax.tree.map(lambda p, g: p - 0.1 * g, ts.params, jax.grad(mean)(ts.params)))

    every = jax.jit(lambda w: (jax.grad(by_hand)(w), [jax.grad(by_steps)(w, accumulate) for accumulate in (1, 2)]))
    expected, each = every(weight)
    for found in each:
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_evaluate_divides_by_the_weights_of_all_batches():
    """Batches of 4 and 2 rows hold 3 and 1 rows that count."""
    params = NET.init(jax.random.key(1), X)
    metrics = {"loss": padded, "accuracy": lambda z, y: (jb.predict_class(z) == y, y >= 0), "rows": lambda z, y: y}
    found = jb.evaluate(NET, params, (), (X, Y), metrics, batch_size=4)
    logits, y = NET.apply(params, jnp.asarray(X[Y >= 0])), jnp.asarray(Y[Y >= 0])
    np.testing.assert_allclose(found["loss"], jb.softmax_cross_entropy(logits, y).mean(), rtol=1e-6)
    assert found["accuracy"] == jb.accuracy(logits, y)
    assert found["rows"] == pytest.approx(Y.mean())
    nothing = {"loss": lambda z, y: (jb.mse(z, z), y > 9)}
    with pytest.raises(
        ValueError, match="evaluate expected weights of the metric 'loss' that are not all 0, got zeros; omit"
    ):
        jb.evaluate(NET, params, (), (X, Y), nothing, batch_size=4)


def test_pairs_that_are_no_weights_are_rejected():
    params = NET.init(jax.random.key(1), X)
    for loss, got in (
        (lambda z, y: (z.mean(), z.mean()), r"float32 \(\) and float32 \(\)"),
        (lambda z, y: (jb.mse(z, z), {"aux": 1}), r"float32 \(6,\) and a dict"),
        (lambda z, y: (jb.mse(z, z), y[:, None]), r"float32 \(6,\) and int32 \(6, 1\)"),
    ):
        with pytest.raises(
            TypeError, match=rf"'a' to be an array, or a pair \(values, weights\) of one .* got {got}; "
        ):
            jb.evaluate(NET, params, (), (X, Y), {"a": loss})


def test_the_mean_of_a_half_precision_loss_is_in_float32():
    """The mean of 1 and 1 + 2^-7 is no bfloat16; nor is the gradient rounded to one."""
    identity, sgd = lambda x: x, optax.sgd(1.0)
    x = jnp.zeros((2, 1))
    ts = jb.init_train_state(jax.random.key(0), identity, sgd, x)
    values = jnp.asarray([1, 1 + 2**-7], jnp.bfloat16)
    for loss in (lambda o, y: y, lambda o, y: (y, jnp.ones(2, jnp.bfloat16))):
        _, value = jb.train_step(identity, loss, sgd).__wrapped__(ts, x, values)
        assert (value.dtype, float(value)) == (jnp.float32, 1 + 2**-8)
    assert jb.evaluate(identity, (), (), (x, values), {"mean": lambda o, y: y}) == {"mean": 1 + 2**-8}
