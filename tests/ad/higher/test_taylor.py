"""Derivatives of high order against nested jvps and closed forms."""

import functools
import math
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from derivatives import nested_derivatives
from jax import lax

from jaxblocks.ad import biharmonic, count_flops, directional_derivatives, partial_derivative, root

N = 3
W = np.random.default_rng(0).normal(size=(N, N))
close = functools.partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-10)


@pytest.fixture
def double():
    rng = np.random.default_rng(1)
    with jax.enable_x64(True):
        yield types.SimpleNamespace(x=jnp.asarray(rng.normal(size=N)), v=jnp.asarray(rng.normal(size=N)))


@jax.custom_jvp
def straight_through(x):
    return jnp.round(x)


straight_through.defjvp(lambda x, t: (straight_through(x[0]), jnp.cos(x[0]) * t[0]))


def loops(x):
    """A scan with a counter and a part of the carry that is constant at first, a while and a cond in them."""

    def body(carry, y):
        state, i, late = carry
        state = lax.cond(i % 2 == 0, lambda s: s**2, lambda s: s, jax.jit(jnp.tanh)(jnp.asarray(W) @ state) * y)
        return (state, i + 1, state[0] + late), late

    (state, _, late), ys = lax.scan(body, (x, 0, jnp.ones((), x.dtype)), x)
    _, grown = lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, jnp.sin(c[1]) * c[1]), (0, state))
    return ys * grown * late


# One function for each rule: linear, bilinear, quotient, any other; loops, custom rules, solutions of equations.
FUNCTIONS = {
    "elementwise": lambda x: jnp.exp(jnp.sin(x)) / (1 + x**2) + jnp.arctan2(x, 2 + x) * jax.lax.erf(x),
    "products": lambda x: jnp.outer(x, x) @ jnp.tanh(jnp.outer(x, x) @ jnp.asarray(W)) @ x,
    "convolution and powers": lambda x: jnp.convolve(x, jnp.sin(x)) ** 2 * (2 + jnp.cos(x[0])) ** x[1],
    "piecewise": lambda x: jnp.max(x) * jax.nn.relu(jnp.sort(x)) + jnp.abs(x) * x * lax.stop_gradient(x),
    "solve": lambda x: jnp.linalg.solve(jnp.asarray(W) + jnp.diag(x), x),
    "loops": loops,
    "custom jvp": lambda x: straight_through(x) * x + jax.nn.softplus(x),
    "root": lambda x: root(lambda y: y**3 + y - x, jnp.ones(N)),
    "constant": lambda x: jnp.ones(2, x.dtype),
}


def test_derivatives_equal_nested_jvps(double):
    order = 3

    @jax.jit
    def run(x, v):
        every = lambda x: {name: f(x) for name, f in FUNCTIONS.items()}
        ours = {name: directional_derivatives(f, x, v, order=order) for name, f in FUNCTIONS.items()}
        return ours, nested_derivatives(every, x, v, order)

    with jax.debug_nans(False):
        ours, theirs = run(double.x, double.v)
    for name in FUNCTIONS:
        assert len(ours[name]) == order + 1
        for a, b in zip(ours[name], theirs, strict=True):
            assert a.dtype == b[name].dtype
            close(a, b[name], err_msg=name)


def test_derivatives_of_pytrees_equal_closed_forms(double):
    """The Gaussian gives Hermite polynomials; a polynomial ends; order 0 is the value."""
    x = {"a": double.x[0], "b": double.x[1:]}
    f = lambda x: jnp.exp(-(x["a"] ** 2) / 2) + jnp.prod(x["b"])
    v = {"a": jnp.ones(()), "b": jnp.ones(2)}
    found = jax.jit(lambda x: directional_derivatives(f, x, v, order=6))(x)
    a, (b, c) = double.x[0], double.x[1:]
    product = [b * c, b + c, 2.0] + [0.0] * 4
    for k, each in enumerate(found):
        hermite = np.polynomial.hermite_e.hermeval(a, [0] * k + [1])
        close(each, (-1) ** k * hermite * np.exp(-(a**2) / 2) + product[k])
    close(directional_derivatives(f, x, v, order=0)[0], f(x))


def test_mixed_derivatives_equal_closed_forms(double):
    """The mixed derivative of a product of functions, and the biharmonic operator of a power of |x|."""
    f = lambda x: jnp.sin(2 * x[0]) * jnp.exp(3 * x[1]) * x[2] ** 4
    power = lambda x: jnp.sum(x**2) ** 3

    @jax.jit
    def program(x):
        return (
            partial_derivative(f, x, (2, 1, 1)),
            biharmonic(power, x, chunk_size=2),
            jax.grad(lambda x: partial_derivative(f, x, (0, 0, 2)))(x),
        )

    x, y, z = double.x
    s, e = np.sin(2 * x), np.exp(3 * y)
    mixed, twice, gradient = program(double.x)
    close(mixed, -4 * s * 3 * e * 4 * z**3)
    close(twice, 6 * (4 + N) * 4 * (2 + N) * np.sum(double.x**2))  # laplacian r^k = k (k + n - 2) r^(k - 2)
    close(gradient, 12 * e * np.array([2 * np.cos(2 * x) * z**2, 3 * s * z**2, 2 * s * z]))


def test_the_program_does_not_double_with_the_order():
    """Work of a net at order 8 relative to order 4; nested jvps take 16 times as much."""
    w = jnp.ones((16, 16))
    f = lambda x: jnp.sum(jnp.tanh(w @ jnp.tanh(w @ x)))
    x = jnp.ones(16)
    counts = {k: count_flops(lambda x, k=k: directional_derivatives(f, x, x, order=k), x).flops for k in (4, 8)}
    assert counts[8] < 4 * counts[4]


def test_errors_name_the_repair(sentences):
    x = jnp.ones(2)
    with pytest.raises(ValueError, match=r"directional_derivatives expected v like x, .* got float32 \(3,\) at v"):
        directional_derivatives(jnp.sum, x, jnp.ones(3), order=2)
    with pytest.raises(ValueError, match=r"order to be an integer >= 0, got -1"):
        directional_derivatives(jnp.sum, x, x, order=-1)
    with pytest.raises(ValueError, match=r"partial_derivative expected orders to be 2 integers >= 0.*, got \(1,\)"):
        partial_derivative(jnp.sum, x, (1,))
    assert float(partial_derivative(jnp.sum, x, (1, 0))) == 1
    with pytest.raises(TypeError, match=r"partial_derivative expected f to return one array, got a tuple"):
        partial_derivative(lambda x: (x, x), x, (1, 0))
    host = lambda x: jax.pure_callback(lambda x: np.asarray(x), x, x)
    with pytest.raises(NotImplementedError, match=r"differentiate several times, got 'pure_callback'.*custom_jvp"):
        directional_derivatives(host, x, x, order=2)


def test_orders_whose_binomials_exceed_integers(double):
    """binomial(34, 17) > 2^31: the product rule and that of quotients."""
    order = 34
    x = jnp.zeros((), jnp.float32)
    products = directional_derivatives(lambda x: jnp.exp(x) * jnp.exp(x), x, jnp.ones_like(x), order=order)
    np.testing.assert_allclose(np.array(products), 2.0 ** np.arange(order + 1), rtol=1e-6)
    quotients = directional_derivatives(lambda x: 1 / (1 - x), jnp.zeros(()), jnp.ones(()), order=order)
    close(np.array(quotients), [float(math.factorial(k)) for k in range(order + 1)])
