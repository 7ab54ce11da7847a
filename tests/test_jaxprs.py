"""Jaxprs as functions agree with the functions that they were traced from."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxblocks.ad.jaxprs import evaluate, inputs_of, open_calls, piece

X = jnp.asarray(np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3))
W = jnp.asarray(np.linspace(0.5, 2, 12, dtype=np.float32).reshape(3, 4))


@jax.custom_vjp
def cube(x):
    return x**3


cube.defvjp(lambda x: (x**3, x), lambda x, g: (3 * x**2 * g,))


def everything(x, w):
    y = jax.checkpoint(lambda x: jnp.tanh(x) @ w)(x)
    y = jax.nn.relu(y) + jax.jit(jnp.sin)(y) + jax.jit(jnp.sin)(2 * y) + cube(y) + jax.nn.softmax(y)
    y, _ = lax.scan(lambda carry, _: (jnp.cos(jax.jit(jnp.sin)(carry)), None), y, length=3)
    return lax.cond(y.sum() > 0, lambda: y, lambda: -y), x * x


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit])
def test_a_jaxpr_evaluates_to_its_function(wrap):
    """Calls opened or not: the same values, under jit too, and the same derivatives."""
    traced = jax.make_jaxpr(everything)(X, W)
    for program in (traced, open_calls(traced)):
        values = wrap(lambda x, w, program=program: evaluate(program, x, w))(X, W)
        for ours, expected in zip(values, everything(X, W), strict=True):
            np.testing.assert_allclose(ours, expected, rtol=1e-6)
    ours = jax.grad(lambda x: evaluate(traced, x, W)[0].sum())(X)
    np.testing.assert_allclose(ours, jax.grad(lambda x: everything(x, W)[0].sum())(X), rtol=1e-5)


def test_no_call_is_left():
    """Opened: only arithmetic, loops and branches remain, and a body called twice has names of its own."""
    opened = open_calls(jax.make_jaxpr(everything)(X, W))
    names = [equation.primitive.name for equation in opened.eqns]
    assert not {"jit", "pjit", "custom_jvp_call", "custom_vjp_call", "checkpoint", "remat2"} & set(names)
    assert names.count("sin") == 2
    made = [variable for equation in opened.eqns for variable in equation.outvars]
    assert len(made) == len(set(made))


def test_a_piece_is_the_function_between_two_places():
    """Cut anywhere, the two pieces compose to the whole."""
    opened = open_calls(jax.make_jaxpr(lambda x: jnp.tanh(x @ W) * jnp.sin(x @ W) + 1)(X))
    whole, jaxpr = evaluate(opened, X), opened.jaxpr
    constants = list(jaxpr.constvars)
    for cut in range(len(jaxpr.eqns) + 1):
        first, second = jaxpr.eqns[:cut], jaxpr.eqns[cut:]
        between = inputs_of(second) or list(jaxpr.outvars)
        start = [*constants, *jaxpr.invars]
        middle = piece(jaxpr, first, start, between)(*opened.consts, X)
        np.testing.assert_allclose(piece(jaxpr, second, between, jaxpr.outvars)(*middle)[0], whole[0], rtol=1e-6)
