"""Gradients and Hessian-vector products, to compare a form of a layer with plain JAX where their programs are large."""

from collections.abc import Callable

import jax
import numpy as np


def check_second_order(loss: Callable, plain: Callable, arguments: tuple, along: tuple) -> None:
    """The gradients of ``loss``, and their derivatives along a direction, are those of ``plain``, in float64."""

    def derived(f):
        return jax.jvp(jax.grad(f, tuple(range(len(arguments)))), arguments, along)

    found, expected = jax.jit(lambda: (derived(loss), derived(plain)))()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9), found, expected)
