"""First and second derivatives of a function in both modes, to compare custom rules with plain JAX or NumPy; a loss."""

import itertools
import math
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


def nested_derivatives(f: Callable, x, v, order: int) -> list:
    """The value of ``f`` at x and its derivatives along v up to ``order``: jvp of jvp, traced once."""
    if order == 0:
        return [f(x)]
    lower, changes = jax.jvp(lambda x: nested_derivatives(f, x, v, order - 1), (x,), (v,))
    return [*lower, changes[-1]]


def derivative_along(f: Callable, x, v, order: int, radius: float = 0.3):
    """The derivative of an analytic function of NumPy along v, by Cauchy's formula on a circle around x."""
    circle = radius * np.exp(2j * np.pi * np.arange(64) / 64)
    values = [f(x + z * np.asarray(v)) for z in circle]
    return math.factorial(order) * np.mean([y * z**-order for y, z in zip(values, circle, strict=True)], 0).real


def hessian_by_numpy(f: Callable, x, radius: float = 0.3):
    """The Hessian of an analytic function of NumPy, from second derivatives along sums and differences of axes."""
    axes = np.eye(len(x))
    entry = lambda u, v: (derivative_along(f, x, u + v, 2, radius) - derivative_along(f, x, u - v, 2, radius)) / 4
    return np.array([[entry(u, v) for u in axes] for v in axes])


def biharmonic_by_numpy(f: Callable, x, radius: float = 0.3):
    """The Laplacian of the Laplacian of an analytic function of NumPy, from fourth derivatives."""
    axes = np.eye(len(x))
    fourth = [derivative_along(f, x, u, 4, radius) for u in axes]
    mixed = sum(
        derivative_along(f, x, u + sign * v, 4, radius) for u, v in itertools.combinations(axes, 2) for sign in (1, -1)
    )
    # (u + v)^4 + (u - v)^4 = 2 u^4 + 12 u^2 v^2 + 2 v^4
    return sum(fourth) + 2 * (mixed - 2 * (len(x) - 1) * sum(fourth)) / 12
