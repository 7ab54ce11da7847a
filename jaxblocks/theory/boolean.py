r"""Boolean functions by rectifiers: any truth table with one unit for each true row, parity with far fewer units.

Inputs are rows of n numbers, 0 or 1, (..., n); outputs are (..., 1).
"""

import functools
from typing import Annotated, cast

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jaxblocks.activations import cosine
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import PositiveInt, Range, checked
from jaxblocks.core.pairs import Layer
from jaxblocks.layers.combinators import Wire
from jaxblocks.layers.mlp import MLP
from jaxblocks.theory.arrays import ArrayLike
from jaxblocks.theory.explicit_weights import one_hidden_layer

__all__ = ["bit_rows", "minterm_network", "parity_chain", "parity_cosine", "parity_shallow"]


@checked
def bit_rows(n: PositiveInt) -> np.ndarray:
    """All rows of n bits, (2^n, n), in the order of a truth table: the first bit is the most significant.

    >>> bit_rows(2)
    array([[0., 0.],
           [0., 1.],
           [1., 0.],
           [1., 1.]])
    """
    return (np.arange(2**n)[:, None] >> np.arange(n)[::-1] & 1).astype(np.float64)


@checked
def minterm_network(truth_table: ArrayLike, *, param_dtype: DTypeLike | None = None) -> tuple[Layer, tuple]:
    r"""A net for any Boolean function, with one hidden unit for each row where it is true (its minterms).

    The unit of a row r is $ReLU(∑_i (2 r_i - 1) x_i + 1 - ∑_i r_i)$: 1 at x = r and 0 at every other row. So one hidden
    layer is always enough, but it may be exponentially large: parity of n bits has $2^{n-1}$ true rows.

    Args:
        truth_table: $2^n$ Booleans, in the order of `bit_rows`.
        param_dtype: by default float64 where JAX has it enabled, else float32.

    Raises:
        ValueError: if its length is not a power of two, or an entry is neither 0 nor 1.

    >>> net, params = minterm_network([0, 1, 1, 0])  # exclusive or
    >>> net.apply(params, jnp.asarray(bit_rows(2), jnp.float32))[:, 0]
    Array([0., 1., 1., 0.], dtype=float32)

    Source: Wegener 1987, The complexity of Boolean functions; Krapac & Segvic, Deep feed-forward models (the second
    caveat of universal approximation).
    """
    table = np.asarray(truth_table)
    power_of_two = table.ndim == 1 and len(table) >= 2 and not len(table) & (len(table) - 1)
    n = max(1, (max(table.size, 1) - 1).bit_length())
    repair = "pass np.ravel(table)" if table.size == 2**n else f"pass an entry for each row of bit_rows({n})"
    require(power_of_two, "a table of 2^n entries, n >= 1", f"shape {table.shape}", repair)
    require(bool(np.isin(table, (0, 1)).all()), "entries that are 0 or 1", "other values", "pass table > 0.5")
    rows, weights = bit_rows(n)[table == 1], np.ones(np.count_nonzero(table))
    if not len(rows):  # a net has at least one unit
        rows, weights = np.zeros((1, n)), np.zeros(1)
    # At its own row r the preactivation <2r - 1, x> + 1 - |r| is 1; each other bit lowers it by 1, to 0 or below.
    return one_hidden_layer((2 * rows - 1).T, 1 - rows.sum(1), weights, 0.0, param_dtype=param_dtype)


@checked
def parity_shallow(n: PositiveInt, *, param_dtype: DTypeLike | None = None) -> tuple[Layer, tuple]:
    r"""Parity of n bits by n rectifiers in one hidden layer, as a function of the sum $s = ∑_i x_i$.

    .. math::

        ReLU(s) + 2 ∑_{k=1}^{n-1} (-1)^k ReLU(s - k)

    alternates between 0 and 1; for n = 2 it is the exclusive or of the lecture.

    >>> net, params = parity_shallow(3)
    >>> net.apply(params, jnp.array([[1.0, 0.0, 1.0], [1.0, 1.0, 1.0]]))[:, 0]
    Array([0., 1.], dtype=float32)

    Source: rectifiers of sums need n units; Krapac & Segvic, Deep feed-forward models (n-way exclusive or). The
    $O(2^n)$ units given there for shallow models are those of `minterm_network`.
    """
    k = np.arange(n)
    # Slopes 1, -1, 1, ... between integers: the first unit begins with 1, each further one changes the slope by 2.
    weights = np.where(k == 0, 1.0, 2.0 * (-1.0) ** k)
    return one_hidden_layer(np.ones((n, n)), -k, weights, 0.0, param_dtype=param_dtype)


@checked
def parity_cosine(n: PositiveInt, *, param_dtype: DTypeLike | None = None) -> tuple[Layer, tuple]:
    r"""Parity of n bits by a single cosine: $1/2 - (1/2) cos(π ∑_i x_i)$, up to rounding.

    >>> net, params = parity_cosine(3)
    >>> net.apply(params, jnp.array([[1.0, 0.0, 1.0], [1.0, 1.0, 1.0]]))[:, 0].round(6)
    Array([0., 1.], dtype=float32)

    Source: Minsky & Papert 1969, Perceptrons; Krapac & Segvic, Deep feed-forward models (n-way exclusive or).
    """
    kernel = np.full((n, 1), np.pi)
    # cos(pi s) is (-1)^s for an integer s.
    return one_hidden_layer(kernel, [0.0], [-0.5], 0.5, activation=cosine, param_dtype=param_dtype)


@checked
def parity_chain(n: Annotated[int, Range(2)], *, param_dtype: DTypeLike | None = None) -> tuple[Layer, dict]:
    r"""Parity of n bits by a chain of n - 1 exclusive ors of two bits: 2 (n - 1) rectifiers that share nine weights.

    $z_1 = x_1, z_i = ReLU(z_{i-1} + x_i) - 2 ReLU(z_{i-1} + x_i - 1)$. Its size is
    linear in n; the size of `minterm_network` is exponential.

    >>> net, params = parity_chain(3)
    >>> net.apply(params, jnp.array([[1.0, 0.0, 1.0], [1.0, 1.0, 1.0]]))[:, 0]
    Array([0., 1.], dtype=float32)

    Source: Minsky & Papert 1969, Perceptrons; Krapac & Segvic, Deep feed-forward models (n-way exclusive or).
    """

    def forward(f, x):
        step = lambda z, i: f.xor(jnp.concatenate([z, x[..., i : i + 1]], -1))
        return functools.reduce(step, range(1, n), x[..., :1])

    # xor(a, b) = relu(s) - 2 relu(s - 1) with s = a + b.
    _, xor = one_hidden_layer(np.ones((2, 2)), [0, -1], [1, -2], 0.0, param_dtype=param_dtype)
    return cast(Layer, Wire(forward, xor=MLP(2, 1))), {"xor": xor}
