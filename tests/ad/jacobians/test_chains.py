"""The chain of Jacobians: the cost of each bracketing, the best one, and the equality of all products."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import for_each
from jax import lax

from jaxblocks.ad import bracketings, chain_cost, count_flops, jacobian_chain, multiply_chain, optimal_order


def shape(*sizes):
    return jax.ShapeDtypeStruct(sizes, jnp.float32)


# ---- costs ---------------------------------------------------------------------------------

PUBLISHED = [
    ((1000, 500, 100, 1), 50_100_000, 550_000, 550_000),
    ((784, 128, 64, 10, 1), 6_932_128, 109_184, 109_184),
    ((2, 5, 10, 5, 2), 220, 220, None),
    ((1, 100, 2, 1), 202, 300, 202),
    ((50, 1, 50, 50, 50), 252_500, 130_000, 7_500),
]


@pytest.mark.parametrize(("dims", "forward", "reverse", "best"), PUBLISHED)
def test_published_costs(dims, forward, reverse, best):
    """The costs of the lecture; the operations counted in the jaxpr equal them, for every bracketing."""
    assert (chain_cost(dims, order="forward"), chain_cost(dims, order="reverse")) == (forward, reverse)
    order = optimal_order(dims)
    assert (order.forward, order.reverse, order.cost) == (forward, reverse, best or order.cost)
    assert order.cost == chain_cost(dims) == chain_cost(dims, order=order.order) <= min(forward, reverse)
    jacobians = [shape(d, before) for before, d in itertools.pairwise(dims)]
    for each in ["forward", "reverse", "best", *bracketings(len(dims) - 1)]:
        counted = count_flops(functools.partial(multiply_chain, order=each), jacobians)
        assert counted.dots == counted.flops == 2 * chain_cost(dims, order=each)


def test_catalan_numbers_count_the_bracketings():
    assert [len(list(bracketings(n))) for n in range(1, 8)] == [1, 1, 2, 5, 14, 42, 132]
    assert len(set(bracketings(6))) == 42


def every_cost(dims):
    """All costs of a chain, by a recursive definition that does not use the library."""
    if len(dims) == 2:
        return [0]
    return [
        left + right + dims[0] * dims[k] * dims[-1]
        for k in range(1, len(dims) - 1)
        for right in every_cost(dims[: k + 1])
        for left in every_cost(dims[k:])
    ]


def test_the_optimal_order_costs_least():
    rng = np.random.default_rng(0)
    for length in range(2, 9):
        for _ in range(6):
            dims = [int(d) for d in rng.integers(1, 40, length)]
            costs = every_cost(dims)
            assert optimal_order(dims).cost == min(costs)
            assert sorted(costs) == sorted(chain_cost(dims, order=order) for order in bracketings(length - 1))


def test_reverse_mode_is_optimal_for_scalar_outputs():
    """All chains of 2 to 4 factors with d_L = 1 and the other dimensions among 2, 3, 4, 7."""
    for length in range(2, 5):
        for dims in itertools.product((2, 3, 4, 7), repeat=length):
            order = optimal_order((*dims, 1))
            assert order.cost == order.reverse == min(every_cost((*dims, 1)))
    counterexample = optimal_order((1, 100, 2, 1))  # the statement of the lecture omits the condition
    assert counterexample.cost == counterexample.forward < counterexample.reverse


def test_bracketings_as_formulas():
    assert optimal_order((784, 128, 64, 10, 1)).bracketing == "((J4 J3) J2) J1"
    assert optimal_order((50, 1, 50, 50, 50)).bracketing == "(J4 (J3 J2)) J1"
    assert optimal_order((1, 100, 2, 1)).bracketing == "J3 (J2 J1)"
    assert optimal_order((3, 4)).bracketing == "J1"
    assert optimal_order((9, 9, 1, 9, 9)).bracketing == "(J4 J3) (J2 J1)"
    assert optimal_order((5, 5, 5, 5)).bracketing == "(J3 J2) J1"  # ties prefer a pure mode


def test_long_chains():
    dims = (2,) * 3001
    assert chain_cost(dims, order="forward") == chain_cost(dims, order="reverse") == 2999 * 8
    assert optimal_order((3, 2) * 30).cost == optimal_order((2, 3) * 30).cost


def test_the_crossover_of_forward_and_reverse_mode():
    """At the crossover both costs are equal; below it reverse mode is cheaper, above it forward mode."""
    symmetric = optimal_order((20, 50, 100, 50, 20))
    assert symmetric.crossover == 20
    assert symmetric.forward == symmetric.reverse
    rng = np.random.default_rng(1)
    for _ in range(50):
        dims = [int(d) for d in rng.integers(2, 60, rng.integers(4, 8))]
        cross = optimal_order(dims).crossover
        for d in (1, 2, 5, 20, 60, 400, 10**6):
            swept = optimal_order((*dims[:-1], d))
            assert swept.crossover == cross
            assert (swept.reverse < swept.forward) == (cross is None or d < cross)
    assert optimal_order((3, 4, 5)).crossover is None


def test_orders_print_and_plot():
    pytest.importorskip("matplotlib").use("agg")
    import matplotlib.pyplot as plt

    order = optimal_order((50, 50, 50, 7, 20))
    text, html = str(order), order._repr_html_()
    assert text == repr(order)
    for line, words in zip(
        text.splitlines()[2:], ("J4 (J3 (J2 J1))", "((J4 J3) J2) J1", order.bracketing), strict=True
    ):
        assert words in line
        assert words in html
    assert f"{order.forward:,}" in text
    _, ax = plt.subplots()
    assert order.plot(ax) is ax
    forward, reverse, best, dot, cross = ax.lines
    assert (min(forward.get_xdata()), max(forward.get_xdata())) == (1, 50)
    for line, mode in ((forward, "forward"), (reverse, "reverse"), (best, "best")):
        assert line.get_label() == mode
        assert list(line.get_ydata()) == [chain_cost((50, 50, 50, 7, int(d)), order=mode) for d in line.get_xdata()]
    assert (list(dot.get_xdata()), list(dot.get_ydata())) == ([20], [order.cost])
    assert cross.get_xdata()[0] == order.crossover
    assert len(optimal_order((3, 4, 5)).plot().lines) == 4  # there is no crossover
    assert optimal_order((1, 4, 5, 3)).plot() is not None
    plt.close("all")
    with pytest.raises(ValueError, match="a chain of at least two Jacobians"):
        optimal_order((3, 4)).plot()


# ---- the matrices --------------------------------------------------------------------------


def functions(rng, dims):
    ws = [jnp.asarray(rng.normal(size=(d, before))) for before, d in itertools.pairwise(dims)]
    return [lambda x, w=w: jnp.tanh(w @ x) for w in ws]


def composed(fs):
    return lambda x: functools.reduce(lambda x, f: f(x), fs, x)


def test_every_order_gives_the_jacobian_of_the_composition():
    """All bracketings against the product in NumPy and against jax.jacobian."""
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        fs = functions(rng, (3, 5, 2, 6, 4))
        x = jnp.asarray(rng.normal(size=3))
        jacobians = jax.jit(functools.partial(jacobian_chain, fs))(x)
        assert [j.shape for j in jacobians] == [(5, 3), (2, 5), (6, 2), (4, 6)]
        np.testing.assert_allclose(
            jacobians[0], np.diag(1 - np.tanh(np_inner(fs[0], x)) ** 2) @ weight(fs[0]), atol=1e-14
        )
        whole = jax.jit(jax.jacobian(composed(fs)))(x)
        by_hand = functools.reduce(lambda product, j: np.asarray(j) @ product, jacobians, np.eye(3))
        np.testing.assert_allclose(whole, by_hand, atol=1e-14)
        for order in ["forward", "reverse", "best", *bracketings(4)]:
            np.testing.assert_allclose(multiply_chain(jacobians, order=order), whole, atol=1e-14)
        for eager, compiled in zip(jacobian_chain(fs[:2], x), jacobians, strict=False):
            np.testing.assert_allclose(eager, compiled, atol=1e-14)


def weight(f):
    return np.asarray(f.__defaults__[0])


def np_inner(f, x):
    return weight(f) @ np.asarray(x)


def test_a_chain_of_numbers_is_the_scalar_chain_rule():
    """dz/dx = dz/dy dy/dx; for a scalar z of vectors the gradient is the transpose."""
    [of_y, of_z] = jacobian_chain([jnp.sin, jnp.exp], jnp.float32(0.3))
    assert of_y.shape == of_z.shape == (1, 1)
    np.testing.assert_allclose(of_z * of_y, [[np.exp(np.sin(0.3)) * np.cos(0.3)]], rtol=1e-6)
    x = jnp.arange(3.0)
    product = multiply_chain(jacobian_chain([jnp.cos, lambda y: jnp.sum(y**2)], x))
    np.testing.assert_allclose(product[0], -2 * np.cos(x) * np.sin(x), rtol=1e-5, atol=1e-6)


def test_tensors_are_flattened():
    """d vec(y) / d vec(x) of two consecutive convolutions of images."""
    with jax.enable_x64(True):
        rng = np.random.default_rng(2)
        kernels = [jnp.asarray(rng.normal(size=(o, i, 2, 2))) for i, o in ((2, 3), (3, 1))]
        fs = [lambda x, k=k: jnp.tanh(lax.conv(x, k, (1, 1), "VALID")) for k in kernels]
        x = jnp.asarray(rng.normal(size=(1, 2, 3, 4)))
        jacobians = jax.jit(functools.partial(jacobian_chain, fs))(x)
        assert [j.shape for j in jacobians] == [(3 * 2 * 3, 2 * 3 * 4), (2, 18)]
        whole = jax.jit(jax.jacfwd(composed(fs)))(x).reshape(2, 24)
        np.testing.assert_allclose(multiply_chain(jacobians), whole, atol=1e-13)
        pulled = jax.vjp(composed(fs), x)[1](jnp.asarray([1.0, -2.0]).reshape(1, 1, 1, 2))[0]
        np.testing.assert_allclose(np.array([1.0, -2.0]) @ whole, pulled.reshape(-1), atol=1e-13)


def test_each_jacobian_uses_the_mode_with_fewer_passes():
    """f_1 from 3 to 40 takes 3 forward passes, f_2 from 40 to 2 takes 2 reverse passes."""
    up, down = shape(40, 3), shape(2, 40)
    chain = lambda up, down, x: jacobian_chain([lambda x: up @ x, lambda x: down @ x], x)
    assert count_flops(chain, up, down, shape(3)).dots == 3 * 2 * 40 * 3 + 2 * 2 * 2 * 40


def test_products_without_entries():
    """An axis of size 0, inside or at an end, as `jacobian_chain` returns it for an empty value."""
    jacobians = jacobian_chain([lambda x: x[:0], lambda x: jnp.sum(x) + jnp.ones(2)], jnp.ones(3))
    np.testing.assert_array_equal(multiply_chain(jacobians), np.zeros((2, 3)))
    assert multiply_chain([jnp.ones((2, 3)), jnp.ones((0, 2))], order="forward").shape == (0, 3)


def test_batches_of_chains():
    rng = np.random.default_rng(3)
    js = [jnp.asarray(rng.normal(size=(7, d, before)), jnp.float32) for before, d in itertools.pairwise((4, 2, 5))]
    expected = np.stack([b @ a for a, b in zip(*js, strict=True)])
    np.testing.assert_allclose(multiply_chain(js), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(jax.jit(jax.vmap(multiply_chain))(js), expected, rtol=1e-5, atol=1e-6)
    gradient = jax.jit(jax.grad(lambda js: multiply_chain(js, order="forward").sum()))(js)
    np.testing.assert_allclose(gradient[1], np.broadcast_to(js[0].sum(2)[:, None], js[1].shape), rtol=1e-5, atol=1e-6)


def test_gradients_of_dense_layers_as_jacobians():
    """The Jacobian I (x) h^T of rows and h^T (x) I of columns."""
    w, h = np.arange(12.0).reshape(4, 3), np.array([0.5, -1.0, 2.0])
    [by_rows], [by_columns] = jax.jit(
        lambda w: (jacobian_chain([lambda w: w @ h], w), jacobian_chain([lambda wt: wt.T @ h], w.T))
    )(w)
    np.testing.assert_array_equal(by_rows, np.kron(np.eye(4), h))
    np.testing.assert_array_equal(by_columns, np.kron(h[None], np.eye(4)))


# ---- errors --------------------------------------------------------------------------------


VALUES = [
    (
        lambda: chain_cost((3,)),
        r"chain_cost expected dims, d_0, ..., d_L, to be at least two integers >= 1, got \(3,\)",
    ),
    (lambda: chain_cost((3, 2.5)), r"chain_cost expected dims, .* integers >= 1, got \(3, 2.5\)"),
    (lambda: optimal_order((3, 0)), r"optimal_order expected dims, .* integers >= 1, got \(3, 0\)"),
    (
        lambda: chain_cost((3, 4, 5), order="backward"),
        r"'best', or the factors 2 to 1.*, got 'backward'; pass \(2, 1\), for example",
    ),
    (lambda: chain_cost((3, 4, 5), order=(1, 2)), r"factors 2 to 1, in this order.*got \(1, 2\)"),
    (
        lambda: chain_cost((3, 4, 5, 6), order=(3, 2, 1)),
        r"nested pairs, got \(3, 2, 1\); pass \(\(3, 2\), 1\)",
    ),
    (lambda: optimal_order(3), r"optimal_order expected dims, d_0, .*, got 3; pass a tuple such as"),
    (lambda: chain_cost(3), "got 3; pass a tuple such as .784, 128, 10."),
    (lambda: bracketings(0), r"factors to be an integer >= 1, got 0"),
    (lambda: multiply_chain([]), "at least one Jacobian, got none"),
    (lambda: multiply_chain([jnp.ones(3)]), r"J1 to be a matrix, got float32 \(3,\); write J1.reshape"),
    (
        lambda: multiply_chain([jnp.ones((2, 3)), jnp.ones((4, 3))]),
        r"J2 to have as many columns as J1 has rows, got float32 \(4, 3\) after float32 \(2, 3\); begin with",
    ),
    (lambda: multiply_chain([jnp.ones((2, 2))] * 2, order=(1, 2)), "multiply_chain expected order to be"),
    (lambda: jacobian_chain([], jnp.ones(3)), r"got none; write jacobian_chain\(\[f\], x\)"),
]


@pytest.mark.usefixtures("sentences")
@for_each({str(i): case for i, case in enumerate(VALUES)})
def test_invalid_values_raise_value_errors(case):
    call, words = case
    with pytest.raises(ValueError, match=words):
        call()


TYPES = [
    (lambda: jacobian_chain([jnp.sin], jnp.arange(3)), r"got int32 \(3,\); convert it"),
    (
        lambda: jacobian_chain([jnp.sin], {"w": jnp.ones(3)}),
        "x to be a floating-point array, got a dict; pass one array",
    ),
    (
        lambda: jacobian_chain([jnp.sin, lambda x: (x, x)], jnp.ones(3)),
        r"expected f_2\(x\) to be one array, got a tuple",
    ),
    (
        lambda: jacobian_chain([jnp.argmax], jnp.ones(3)),
        r"f_1\(x\) to be a floating-point array, got int32 \(\)",
    ),
    (lambda: jacobian_chain([jnp.sin, jnp.ones(3)], jnp.ones(3)), r"f_2 to be a function, got float32 \(3,\)"),
]


@pytest.mark.usefixtures("sentences")
@for_each({str(i): case for i, case in enumerate(TYPES)})
def test_invalid_types_raise_type_errors(case):
    call, words = case
    with pytest.raises(TypeError, match=words):
        call()


def test_suggested_repairs_work():
    a, b = jnp.ones((2, 3)), jnp.ones((4, 2))
    assert multiply_chain([a, b]).shape == (4, 3)
    assert multiply_chain([jnp.ones(3).reshape(1, 3)]).shape == (1, 3)
    assert chain_cost((3, 4, 5, 6), order=((3, 2), 1)) == 6 * 5 * 4 + 6 * 4 * 3
