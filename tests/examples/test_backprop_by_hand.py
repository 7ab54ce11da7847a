"""The example backprop_by_hand: its gradients equal those of jax.grad, its costs equal counts by hand."""

import backprop_by_hand as example
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("matplotlib", reason="the figures require matplotlib")


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def test_the_example_prints_returns_and_draws(tmp_path, capsys, small_pictures):
    """At toy size: its printed output, its results, and its figures."""
    sizes = ["--expressions", "2", "--depths", "1", "2", "--width", "3", "--widths", "2", "3", "1"]
    numbers = example.main(["--out", str(tmp_path), *sizes])
    printed = capsys.readouterr().out
    assert "= v₋₁ + v̄₁ / v₋₁ = 5.5".replace("= v₋₁", "= v̄₋₁") in printed
    assert "J = 0.9965770, dJ/dW2 = (0.3312297, 0.6224593)" in printed
    assert "tape: gradient (5.5000, 1.7163)" in printed
    assert max(numbers[name] for name in ("closed_form", "backprop", "tape")) < 1e-12
    np.testing.assert_allclose(numbers["graph"].gradient[0]["W1"], [[0.6324593, 0.6224593], [0, 0.02]], atol=5e-8)
    for name in ("passes", "classifier", "costs"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_an_invalid_argument_gives_a_one_line_error(capsys, tmp_path):
    with pytest.raises(SystemExit) as stop:
        example.main(["--out", str(tmp_path / "never"), "--widths", "4"])
    assert stop.value.code == 2
    assert "--widths to have at least two entries" in capsys.readouterr().err
    assert not (tmp_path / "never").exists()


# ---- the backward pass ----------------------------------------------------------------------


@pytest.mark.parametrize("widths", [(1, 6, 1), (5, 7, 3, 2)])
@pytest.mark.parametrize("last", [example.IDENTITY, example.TANH], ids=["identity", "tanh"])
def test_the_backward_pass_is_the_gradient(widths, last):
    """By every X_l, every mu_l and the input, for several widths, with and without an activation on the last layer."""
    params, a, b = example.random_net(3, list(widths))

    def loss(params, a):
        return jnp.sum((example.forward(params, a, last=last)[-1].a - b) ** 2)

    @jax.jit
    def both(params, a):
        trace = example.forward(params, a, last=last)
        return example.backprop(params, trace, 2 * (trace[-1].a - b)), jax.grad(loss, (0, 1))(params, a)

    ours, theirs = both(params, a)
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for x, y in zip(*map(jax.tree.leaves, (ours, theirs)), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-14)


def test_the_forward_pass_stores_all_values():
    """u_l = X_l a_{l-1} + mu_l and a_l = tanh(u_l), against numpy; the last layer is affine."""
    params, a, _ = example.random_net(0, [3, 4, 2])
    trace = example.forward(params, a)
    (X1, mu1), (X2, mu2) = jax.tree.map(np.asarray, params)
    u1 = X1 @ np.asarray(a) + mu1
    u2 = X2 @ np.tanh(u1) + mu2
    for layer, expected in zip(trace, [(a, u1, np.tanh(u1)), (np.tanh(u1), u2, u2)], strict=True):
        np.testing.assert_allclose(np.concatenate(layer[:3]), np.concatenate(expected), rtol=1e-14)


def test_the_gradient_by_mu_equals_that_by_u():
    """dL/dmu_l = dL/du_l: the slides announce the gradient by u, while their scheme computes that by mu."""
    params, a, _ = example.random_net(1, [3, 4, 2])
    grads, _ = example.backprop(params, example.forward(params, a), jnp.ones(2))
    (X1, mu1), (X2, mu2) = params
    by_u = jax.jit(jax.grad(lambda u1: jnp.sum(X2 @ jnp.tanh(u1) + mu2)))(X1 @ a + mu1)
    np.testing.assert_allclose(grads[0][1], by_u, rtol=1e-14)


def test_the_closed_form():
    """L = (b - X_2^T act(X_1 a))^2: equals jax.grad to 1e-15; without the parentheses of (3) it does not."""
    rng = np.random.default_rng(0)
    X1, X2, a = (jnp.asarray(rng.normal(size=shape)) for shape in ((5, 3), (5,), (3,)))
    b = jnp.asarray(0.7)
    loss, dX1, dX2 = example.closed_form(X1, X2, a, b)
    expected = jax.jit(jax.grad(lambda X1, X2: (b - X2 @ jnp.tanh(X1 @ a)) ** 2, (0, 1)))(X1, X2)
    np.testing.assert_allclose(loss, (b - X2 @ np.tanh(X1 @ a)) ** 2, rtol=1e-14)
    np.testing.assert_allclose(dX1, expected[0], rtol=1e-12)
    np.testing.assert_allclose(dX2, expected[1], rtol=1e-12)
    h, slope = np.tanh(X1 @ a), 1 - np.tanh(X1 @ a) ** 2
    as_printed = -2 * b - X2 @ h * np.outer(X2 * slope, a)
    assert np.abs(as_printed - expected[0]).max() > 0.1


# ---- the tape -------------------------------------------------------------------------------


@settings(max_examples=8)
@given(seed=st.integers(0, 10**6))
def test_the_tape_on_random_expressions(seed):
    assert example.tape_gap(example.random_expression(seed)) < 1e-12


def test_the_tape_visits_shared_terms_once_in_order():
    """Sixty doublings have 2^60 paths but 60 operations: each adjoint is complete before it is propagated."""
    x = example.Var(1.0)
    v = x
    for _ in range(60):
        v = v + v
    example.backward(v)
    assert x.adjoint == 2.0**60


def test_every_operation_of_the_tape():
    """Each operation with a number as either operand, against jax.grad."""

    def f(x, y):
        forms = [x + y, x - y, x * y, x / y, -x, x**3, 2.0 + x, 2.0 - x, 2.0 * x, 2.0 / x, x + 2.0, x - 2.0, x / 2.0]
        forms += [example.ln(x), example.exp(x), example.sin(x), example.tanh(x), y**-2]
        return sum((k + 1.0) * form for k, form in enumerate(forms))

    x, y = example.Var(0.6), example.Var(1.7)
    example.backward(f(x, y))
    np.testing.assert_allclose([x.adjoint, y.adjoint], jax.jit(jax.grad(f, (0, 1)))(0.6, 1.7), rtol=1e-13)


# ---- costs ----------------------------------------------------------------------------------

PRINTED = {  # layers: flops / 64^2, as XLA counts them, of k separate gradients and of one gradient
    2: (11.22, 7.22),
    4: (47.69, 17.47),
    8: (193.4, 37.97),
    16: (775.8, 78.97),
    32: (3104.5, 160.97),
}


@pytest.fixture(scope="module")
def costs():
    return {(k, m): example.layer_costs(k, m) for k, m in [(2, 64), (4, 64), (8, 64), (16, 64), (8, 128)]}


def test_the_naive_gradient_equals_the_gradient():
    kernels = [jnp.asarray(np.random.default_rng(i).normal(size=(3, 3))) for i in range(4)]
    one_by_one = jax.jit(lambda kernels: example.naive_gradient(example.loss_of, kernels))(kernels)
    for x, y in zip(one_by_one, jax.jit(jax.grad(example.loss_of))(kernels), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-12)


def test_costs_equal_counts_by_hand(costs):
    """Backpropagation costs (6 k - 2) m^2: per layer 2 m^2 for u, dL/dX and dL/da each, without dL/da of the first.

    Separate gradients cost (3 k^2 + k) m^2: layer l takes 2 k m^2 forward, 2 (k - l) m^2 backward, 2 m^2 for dL/dX.
    """
    for (k, m), row in costs.items():
        assert 0 <= row["forward"] - 2 * k * m**2 <= 4 * k * m
        assert 0 <= row["backprop"] - (6 * k - 2) * m**2 <= 7 * k * m
        by_hand = sum(2 * k + 2 * (k - layer) + 2 for layer in range(1, k + 1))
        assert by_hand == 3 * k**2 + k
        assert 0 <= row["naive"] - by_hand * m**2 <= 7 * k**2 * m


def test_naive_cost_is_quadratic_in_the_depth_and_backprop_linear(costs):
    """Doubling k multiplies the costs by 4 and 2; doubling m multiplies both by 4, which contradicts O(k m)."""
    assert costs[16, 64]["naive"] / costs[8, 64]["naive"] == pytest.approx(4, rel=0.03)
    assert costs[16, 64]["backprop"] / costs[8, 64]["backprop"] == pytest.approx(2, rel=0.03)
    for name in ("forward", "backprop", "naive"):
        assert costs[8, 128][name] / costs[8, 64][name] == pytest.approx(4, rel=0.02)
    for row in costs.values():
        assert 2 < row["backprop"] / row["forward"] < 3


def test_the_printed_numbers_equal_those_of_the_compiler():
    """3 k^2 - 1 and 5 k - 3 for k = 2: XLA counts m^2 multiplications for an outer product, and none for one with ones.

    Some terms O(k m) depend on the version of XLA: one gradient of two layers gives 7.14 or 7.22.
    """
    k, m = 2, 64
    kernels = [jax.ShapeDtypeStruct((m, m), jnp.float32)] * k

    def flops(f):
        return jax.jit(f).lower(kernels).compile().cost_analysis()["flops"] / m**2

    separate, shared = PRINTED[k]
    one_by_one = [
        flops(
            lambda kernels, i=i: jax.grad(lambda X: example.loss_of([*kernels[:i], X, *kernels[i + 1 :]]))(kernels[i])
        )
        for i in range(k)
    ]
    assert sum(one_by_one) == pytest.approx(separate, rel=0.015)
    assert flops(jax.grad(example.loss_of)) == pytest.approx(shared, rel=0.015)


def test_the_printed_numbers_by_hand():
    """All numbers agree within 4 % if terms O(k m), and O(k^2 m) for separate gradients, are omitted."""
    for k, (separate, shared) in PRINTED.items():
        assert separate == pytest.approx(3 * k**2 - 1, rel=0.04)
        assert shared == pytest.approx(5 * k - 3, rel=0.04)


def test_costs_of_the_steps_of_one_layer():
    """u O(m^2), a O(m), dL/du O(m), dL/dX O(m^2), dL/dmu zero, dL/da O(m^2); by hand for m = 64 and 128."""
    for m in (64, 128):
        assert example.step_costs(m) == {
            "u": 2 * m * m + m,
            "a": m,
            "dL/du": 4 * m,
            "dL/dX": m * m,
            "dL/dmu": 0,
            "dL/da": 2 * m * m,
        }
