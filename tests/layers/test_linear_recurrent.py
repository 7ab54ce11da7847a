"""Layers with a linear carry: pieces against the whole, memory, other implementations, errors."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import normal
from compiled import compiled
from derivatives import check_second_order, drawn_like

from jaxblocks.layers import LRU, SelectiveSSM, gated_linear_attention, linear_recurrence, selective_scan


def loop(a, b, h):
    steps = []
    for now, more in zip(a, b, strict=True):
        h = now * h + more
        steps.append(h)
    return np.stack(steps)


@pytest.mark.parametrize("time", [1, 33])
def test_complex_recurrences_equal_a_loop(time):
    """Along the first axis, in both directions, with rates that other axes share."""
    a, b = (normal(i, time, n, 2) + 1j * normal(i + 2, time, n, 2) for i, n in enumerate((1, 3)))
    a, h = a / (1 + abs(a)), normal(4, 3, 2) + 0j
    with jax.enable_x64(True):
        run = compiled(lambda *x: [linear_recurrence(*x, axis=0, reverse=r) for r in (False, True)])
        forward, backward = run(a, b, h)
    np.testing.assert_allclose(forward, loop(a, b, h), rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(backward, loop(a[::-1], b[::-1], h)[::-1], rtol=1e-13, atol=1e-14)


def test_gradients_store_what_is_linear_in_time():
    """The gradient of one entry per step stores a and h."""

    def temporary(time):
        x = jax.ShapeDtypeStruct((time, 64), jnp.float32)
        # The tangent is an argument of the pullback, so that what is stored in between are its constants.
        pullback = jax.eval_shape(lambda a, b: jax.vjp(linear_recurrence, a, b)[1], x, x)
        return sum(leaf.size for leaf in jax.tree.leaves(pullback))

    assert temporary(1024) <= 3 * 1024 * 64  # of the scan alone, all levels: more than 6
    assert temporary(2048) == 2 * temporary(1024)


def test_the_selective_scan_stores_no_carries_of_all_steps():
    """Stored are arrays of time entries per feature, and a carry for each chunk."""
    time, features, state = 256, 4, 16
    shapes = [(time, features)] * 2 + [(features, state)] + [(time, state)] * 2
    run = lambda *x: selective_scan(*x, chunk=64)
    args = [jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes]
    pullback = jax.eval_shape(lambda *x: jax.vjp(run, *x)[1], *args)
    assert max(leaf.size for leaf in jax.tree.leaves(pullback)) == time * state < time * features * state


def decoded(layer, params, carry, pieces):
    outputs = []
    for x in pieces:
        y, carry = layer.apply(params, carry, x)
        outputs.append(y)
    return jnp.concatenate(outputs, -2), carry


@pytest.mark.parametrize("build", [functools.partial(LRU, 3), functools.partial(SelectiveSSM, 3, chunk=4)])
def test_steps_of_decoding_equal_the_whole(build):
    x = jnp.asarray(normal(0, 2, 9, 5), jnp.float32)
    layer, whole = build(stateful=True), build()
    params, first = jax.jit(layer.init)(jax.random.key(0), x)

    @jax.jit
    def compare(params, x):
        cuts = jnp.split(x, [4, 4, 5, 6, 7, 8], axis=-2)  # with a piece of no steps
        return whole.apply(params, x), layer.apply(params, first, x)[1], decoded(layer, params, first, cuts)

    expected, last, (outputs, carry) = compare(params, x)
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(carry, last, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="expected its carry, .*; pass the carry that init made"):
        layer.apply(params, first[:1], x)


def test_attention_with_decay_equals_all_pairs_and_its_steps():
    """For time 7 in chunks of 3, against the sum over pairs, and step by step."""
    q, k, v, g = normal(0, 2, 7, 2, 3), normal(1, 2, 7, 2, 3), normal(2, 2, 7, 2, 4), -abs(normal(3, 2, 7, 2))
    sums = np.cumsum(g, 1)
    weights = np.exp(np.minimum(sums[:, :, None] - sums[:, None], 0)) * np.einsum("bthd,bshd->btsh", q, k)
    expected = np.einsum("btsh,bshv->bthv", weights * np.tri(7)[None, :, :, None], v)

    def both(q, k, v, g):
        whole = gated_linear_attention(q, k, v, g, chunk=3)
        carry, outputs = jnp.zeros((2, 2, 3, 4)), []
        for t in range(7):
            y, carry = gated_linear_attention(*(x[:, t : t + 1] for x in (q, k, v, g)), initial=carry)
            outputs.append(y)
        return whole, (jnp.concatenate(outputs, 1), carry)

    with jax.enable_x64(True):
        for outputs, carry in compiled(both)(q, k, v, g):
            np.testing.assert_allclose(outputs, expected, rtol=1e-12, atol=1e-13)
            last = np.einsum("bsh,bshd,bshv->bhdv", np.exp(sums[:, -1:] - sums), k, v)
            np.testing.assert_allclose(carry, last, rtol=1e-12, atol=1e-13)
    for batch, time in ((0, 5), (2, 0)):
        x, beta = np.zeros((batch, time, 1, 2), np.float32), np.zeros((batch, time, 1), np.float32)
        for rule in ({}, {"beta": beta}):
            outputs, carry = compiled(gated_linear_attention)(x, x, x, beta, **rule)
            assert outputs.shape == (batch, time, 1, 2) and carry.shape == (batch, 1, 2, 2)


def delta_loop(q, k, v, g, beta, carry):
    """One step after another, as the ONNX operator LinearAttention defines its four rules; heads of q in groups."""
    outputs, shape = [], (*q.shape[:1], k.shape[2], -1, q.shape[-1])
    for t in range(q.shape[1]):
        if g is not None:
            carry = np.exp(g[:, t] if g.ndim == 4 else g[:, t, :, None])[..., None] * carry
        value = v[:, t]
        if beta is not None:
            value = beta[:, t, :, None] * (value - np.einsum("bhdv,bhd->bhv", carry, k[:, t]))
        carry = carry + np.einsum("bhd,bhv->bhdv", k[:, t], value)
        y = np.einsum("bhdv,bhgd->bhgv", carry, q[:, t].reshape(shape))
        outputs.append(y.reshape(len(q), q.shape[2], -1))
    return np.stack(outputs, 1), carry


def delta_inputs(rule, decays=()):
    q, k, v, carry = normal(0, 2, 7, 6, 3), normal(1, 2, 7, 2, 3), normal(2, 2, 7, 2, 4), normal(5, 2, 2, 3, 4)
    k = k / np.linalg.norm(k, axis=-1, keepdims=True)
    g = -abs(normal(3, 2, 7, 2, *decays)) if "gated" in rule else None
    beta = 2 / (1 + np.exp(normal(4, 2, 7, 2))) if "delta" in rule else None
    return q, k, v, g, beta, carry


RULES = {
    "linear": (),
    "gated": (),
    "gated, each feature": (3,),
    "delta": (),
    "gated delta": (),
    "gated delta, each": (3,),
}


@pytest.mark.parametrize("rule", ["linear", "gated, each feature", "delta", "gated delta"])
def test_the_rules_of_linear_attention_equal_a_loop_and_their_steps(rule):
    """In chunks of 3 and in one, with a first carry and grouped heads; and from step to step."""
    arguments = delta_inputs(rule, RULES[rule])
    expected = delta_loop(*arguments)

    def run(q, k, v, g, beta, carry):
        found = [gated_linear_attention(q, k, v, g, beta, carry, chunk=chunk) for chunk in (3, None)]

        def step(carry, now):
            y, carry = gated_linear_attention(*(None if x is None else x[:, None] for x in now), carry)
            return carry, y[:, 0]

        now = tuple(None if x is None else jnp.moveaxis(x, 1, 0) for x in (q, k, v, g, beta))
        last, outputs = jax.lax.scan(step, carry, now)
        return *found, (jnp.moveaxis(outputs, 0, 1), last)

    with jax.enable_x64(True):
        for found in compiled(run)(*arguments):
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12), found, expected)


def test_derivatives_of_the_delta_rule_are_those_of_the_scan_of_steps():
    """Of all arguments, first and second, in chunks of 3 of 7 steps, with a decay of each feature."""
    q, k, v, g, beta, carry = delta_inputs("gated delta", (3,))
    with jax.enable_x64(True):
        arguments = tuple(map(jnp.asarray, (q, k, v, g, beta, carry)))

        def total(outputs, carry):
            return jnp.sum(jnp.sin(outputs)) + jnp.sum(jnp.cos(carry))

        def by_steps(q, k, v, g, beta, carry):
            def step(carry, now):
                q, k, v, g, beta = now
                carry = jnp.exp(g)[..., None] * carry
                u = beta[..., None] * (v - jnp.einsum("bhdv,bhd->bhv", carry, k))
                carry = carry + k[..., None] * u[..., None, :]
                return carry, jnp.einsum("bhdv,bhgd->bhgv", carry, q.reshape(2, 2, 3, 3)).reshape(2, 6, 4)

            carry, outputs = jax.lax.scan(step, carry, tuple(jnp.moveaxis(x, 1, 0) for x in (q, k, v, g, beta)))
            return total(outputs, carry)

        chunked = lambda *args: total(*gated_linear_attention(*args, chunk=3))
        check_second_order(chunked, by_steps, arguments, drawn_like(arguments))


def test_the_delta_rule_on_a_mesh_with_explicit_axes():
    """Sharded over heads."""
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Explicit,), devices=jax.devices()[:2])
    q, k, v, _, beta, _ = (None if x is None else np.float32(x) for x in delta_inputs("delta"))
    of = jax.grad(
        lambda *args: jnp.sum(gated_linear_attention(*args[:3], None, args[3], chunk=3)[0] ** 2), (0, 1, 2, 3)
    )
    expected = jax.jit(of)(q, k, v, beta)
    with jax.set_mesh(mesh):
        placed = jax.device_put((q, k, v, beta), jax.NamedSharding(mesh, jax.P(None, None, "d")))
        found = jax.jit(of)(*placed)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.asarray(a), b, rtol=1e-5, atol=1e-5)


def test_the_delta_rule_of_one_key_replaces_its_value():
    """In float32, for 64 steps of a chunk: powers of the system would be as large as binomial coefficients."""
    k = np.broadcast_to(np.float32([0.6, 0.8]), (64, 1, 2))
    v = np.float32(normal(0, 64, 1, 3))
    outputs, carry = compiled(gated_linear_attention)(k, k, v, beta=np.ones((64, 1), np.float32))
    np.testing.assert_allclose(outputs, v, rtol=1e-5, atol=2e-6)
    np.testing.assert_allclose(carry[0], np.outer(k[0, 0], v[-1, 0]), rtol=1e-5, atol=2e-6)


@pytest.mark.slow
def test_a_step_may_forget_everything():
    """Later steps decay as before: sums of large logarithms would lose their digits."""
    x = np.float32(normal(0, 4, 1, 2))

    @jax.jit
    def outputs_and_slope(g):
        run = lambda g: gated_linear_attention(x, x, x, g)[0]
        return run(g), jax.grad(lambda g: run(g).sum())(g)

    for decay in (-1e3, -np.inf):
        g = np.array([[-1.0], [-0.5], [decay], [-0.25]], np.float32)
        carry, expected = np.zeros((2, 2)), []
        for now, rate in zip(x[:, 0], np.exp(np.float64(g[:, 0])), strict=True):
            carry = rate * carry + np.outer(now, now)
            expected.append(carry.T @ now)
        outputs, slope = outputs_and_slope(g)
        np.testing.assert_allclose(outputs[:, 0], expected, rtol=1e-5, atol=1e-6)
        assert np.isfinite(slope).all() and slope[2] == 0


def test_strong_decay_neither_overflows_nor_gives_nan():
    """e^-200 at each step: only the key of the query itself counts, in values and gradients."""
    q, k, v = (jnp.asarray(normal(i, 8, 1, 2), jnp.float32) for i in range(3))

    def total(g):
        y, _ = gated_linear_attention(q, k, v, g, chunk=4)
        return jnp.sum(y), y

    (_, y), slope = jax.jit(jax.value_and_grad(total, has_aux=True))(jnp.full((8, 1), -200.0))
    np.testing.assert_allclose(y, jnp.sum(q * k, -1, keepdims=True) * v, rtol=1e-5)
    np.testing.assert_array_equal(slope, 0)


def test_the_initial_eigenvalues_are_on_the_ring():
    layer = LRU(500, r_min=0.5, r_max=0.9, max_phase=1.0)
    params = jax.jit(layer.init)(jax.random.key(0), np.zeros((3, 2), np.float32))
    radius = np.exp(-np.exp(params["nu_log"]))
    assert 0.5 < radius.min() < 0.52 and 0.88 < radius.max() < 0.9
    assert np.exp(params["theta_log"]).max() < 1
    np.testing.assert_allclose(np.exp(params["gamma_log"]) ** 2, 1 - radius**2, rtol=1e-5)
    biases = jax.jit(lambda key: SelectiveSSM(16).init(key, jnp.zeros((3, 500)))["step_bias"])  # no other draws
    steps = np.log1p(np.exp(biases(jax.random.key(0))))
    assert 1e-3 < steps.min() < 1.5e-3 and 0.07 < steps.max() < 0.1


def test_errors(sentences):
    ones = lambda shape: np.ones(shape, np.float32)
    a, b = ones((3, 1)), ones((2, 3, 4))
    with pytest.raises(ValueError, match="a of the shape of b, or with axes of size 1"):
        linear_recurrence(a, b)
    jax.eval_shape(linear_recurrence, a[None], b)  # as the error advises
    with pytest.raises(ValueError, match="b with the time axis -2"):
        linear_recurrence(ones(3), ones(3))
    jax.eval_shape(functools.partial(linear_recurrence, axis=0), ones(3), ones(3))
    with pytest.raises(TypeError, match="arguments of one dtype"):
        linear_recurrence(b, b.astype(jnp.bfloat16))
    with pytest.raises(ValueError, match=r"initial of shape \(2, 4\)"):
        linear_recurrence(b, b, ones(4))
    q, k = ones((2, 3, 4, 5)), ones((2, 3, 3, 5))
    with pytest.raises(ValueError, match=r"the heads of q \(axis -2\) to be a multiple of those of k"):
        gated_linear_attention(q, k, k)
    with pytest.raises(
        ValueError, match=r"log_decay from -inf to 0, got log_decay from 1.0 to 1.0; .* -softplus\(gate\)"
    ):
        gated_linear_attention(k, k, k, ones(k.shape[:-1]))
    nan = np.full(k.shape[:-1], np.nan, np.float32)  # which is an error of its origin
    with jax.debug_nans(False):
        assert np.isnan(compiled(gated_linear_attention)(k, k, k, nan)[0]).any()
    x, matrix = ones((2, 3, 4)), -np.ones((4, 4), np.float32)
    with pytest.raises(ValueError, match=r"a from -inf to 0, got a from 1.0 to 1.0; make it negative, by -jnp.exp"):
        selective_scan(x, x, -matrix, x, x)
    with pytest.raises(
        ValueError, match="step from 0 to inf, got step from -1.0 to -1.0; make it positive, by softplus"
    ):
        selective_scan(x, -x, matrix, x, x)
    with pytest.raises(ValueError, match=r"log_decay of shape \(2, 3, 4\), or \(2, 3, 4, 5\).*jnp.broadcast_to"):
        gated_linear_attention(q, q, q, ones((4,)))
    compiled(gated_linear_attention)(q, q, q, np.zeros((2, 3, 4), np.float32))
    with pytest.raises(ValueError, match="r_min < r_max <= 1"):
        LRU(3, r_min=0.9, r_max=0.5)
