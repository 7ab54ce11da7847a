"""First and second derivatives of a function in both modes, to compare custom rules with plain JAX."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np


def derivatives(loss: Callable) -> Callable:
    """A jitted function of the arguments of ``loss`` and of directions: all first and second derivatives along them."""

    def compute(arguments, along):
        every = jax.grad(loss, tuple(range(len(arguments))))
        gradient, of_gradient = jax.jvp(every, arguments, along)
        # Single arguments: the rule sees symbolic zeros for the others.
        of_one = lambda i: lambda argument: loss(*arguments[:i], argument, *arguments[i + 1 :])
        forward = [jax.jvp(of_one(i), arguments[i : i + 1], along[i : i + 1]) for i in range(len(arguments))]
        inner = lambda *arguments: sum(
            jnp.vdot(a, b) for a, b in zip(*map(jax.tree.leaves, (every(*arguments), along)), strict=True)
        )
        both = jax.jvp(loss, arguments, along)
        return gradient, of_gradient, forward, both, jax.grad(inner)(*arguments)

    return jax.jit(compute)


def check_derivatives(loss: Callable, plain: Callable, arguments: tuple, along: tuple) -> None:
    """The derivatives of ``loss`` are those of ``plain``, in float64."""
    found, expected = derivatives(loss)(arguments, along), derivatives(plain)(arguments, along)
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


def check_against_float64(found, expected, rtol: float) -> None:
    """The results of `up_to_second`, over a batch, are finite and near those in float64, relative to the largest."""
    for ours, theirs in zip(found, expected, strict=True):
        ours, theirs = (np.asarray(a, np.float64).reshape(len(a), -1) for a in (ours, theirs))
        assert np.isfinite(ours).all()
        size = np.abs(theirs).max(1, keepdims=True)
        np.testing.assert_array_less(np.abs(ours - theirs) / np.where(size > 0, size, 1), rtol)
