"""First and second derivatives of a function in both modes, to compare custom rules with plain JAX; a loss."""

import itertools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np


def check_second_order(loss: Callable, plain: Callable, arguments: tuple, along: tuple) -> None:
    """Gradients of ``loss``, their derivatives along a direction, and slopes along it, are those of ``plain``."""
    places = range(len(arguments))

    def compute():
        derived = lambda f: jax.jvp(jax.value_and_grad(f, tuple(places)), arguments, along)
        # Along one argument alone a rule sees symbolic zeros for the others.
        of_one = lambda i: lambda argument: loss(*arguments[:i], argument, *arguments[i + 1 :])
        slopes = [jax.jvp(of_one(i), arguments[i : i + 1], along[i : i + 1])[1] for i in places]
        expected = derived(plain)
        products = [jax.tree.map(lambda g, d: jnp.sum(g * d), expected[0][1][i], along[i]) for i in places]
        return (slopes, derived(loss)), ([sum(jax.tree.leaves(x), jnp.zeros(())) for x in products], expected)

    found, expected = jax.jit(compute)()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9), found, expected)


def drawn_like(arrays, seed: int = 0):
    """Normal numbers of the shapes of a tree, in double precision."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda a: jnp.asarray(rng.normal(size=a.shape)), arrays)


def up_to_second(function: Callable) -> Callable:
    """Value, gradient and Hessian of a function of an array: forward over reverse, reverse twice, forward twice."""
    gradient = jax.grad(function)

    def compute(x):
        hessians = jax.jacfwd(gradient), jax.jacrev(gradient), jax.jacfwd(jax.jacfwd(function))
        return function(x), gradient(x), *(hessian(x) for hessian in hessians)

    return compute


def small_net(dtype=jnp.float64, sizes=(3, 4, 2)):
    """The mean squared error of a tanh net as a function of its params, and the params."""
    rng = np.random.default_rng(0)
    params = [
        (rng.normal(size=(a, b)).astype(dtype), rng.normal(size=b).astype(dtype)) for a, b in itertools.pairwise(sizes)
    ]
    x, y = rng.normal(size=(5, sizes[0])).astype(dtype), rng.normal(size=(5, sizes[-1])).astype(dtype)

    def loss(params):
        *hidden, (w, b) = params
        h = x
        for v, c in hidden:
            h = jnp.tanh(h @ v + c[None])
        return jnp.mean((h @ w + b[None] - y) ** 2)

    return loss, params
