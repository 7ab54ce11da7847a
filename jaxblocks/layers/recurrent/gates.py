"""What the cells share: the builders of cells with and without a memory, products, params gate by gate, checks."""

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxblocks.activations import sigmoid, tanh
from jaxblocks.backend.linear_maps import affine_map, in_dtype
from jaxblocks.checks.errors import describe, require
from jaxblocks.checks.expectations import check_params
from jaxblocks.core.pairs import ArrayOrShape, StatefulLayer
from jaxblocks.layers.scan_of_cells import cell_of_parts

__all__ = [
    "Reset",
    "cell_of_output",
    "check_dtype_of_carry",
    "check_forget_bias",
    "lstm_cell",
    "lstm_update",
    "mix",
    "params_of_gates",
    "preactivation",
    "products_after_reset",
    "update_after_reset",
    "with_forget_bias",
]

Reset = Literal["after", "before"]
"""Where a gated recurrent unit resets its carry: after the product with the kernel, or before it."""


def cell_of_output(step, products, update, shape_of, draw, check_drawn, dtype, *, scanned) -> StatefulLayer:
    """The cell whose carry is its output, ``step(x, hidden, **params)``, equal to ``update(products(...), hidden)``.

    ``shape_of(x)`` is the shape of the carry; ``draw`` and ``check_drawn`` are those of `params_of_gates`.
    """

    def init(key, x: Float[ArrayOrShape, "*batch in"]):
        # The carry has the dtype of the outputs: a scan requires equal types of the first and of later carries.
        return draw(key, x), jnp.zeros(shape_of(x), dtype or x.dtype)

    def apply(params, hidden, x: Float[Array, "*batch in"]):
        check_drawn(params)
        x = in_dtype(x, dtype)
        _check_carry(hidden, jax.ShapeDtypeStruct(shape_of(x), x.dtype))
        hidden = step(x, hidden, **params)
        return hidden, hidden  # output and carry

    own = lambda params, hidden, x: products(in_dtype(x, dtype), hidden, **params)
    return cell_of_parts(init, apply, own, lambda params, z, hidden: (update(z, hidden),) * 2, scanned)


def lstm_cell(step, products, shape_of, draw, check_drawn, dtype) -> StatefulLayer:
    """The cell of ``step(x, hidden, cell, **params)``, with the other arguments of `cell_of_output`.

    It equals `lstm_update` of the products.
    """

    def init(key, x: Float[ArrayOrShape, "*batch in"]):
        zeros = lambda: jnp.zeros(shape_of(x), dtype or x.dtype)  # two, so that both can be donated
        return draw(key, x), {"hidden": zeros(), "cell": zeros()}

    def apply(params, carry, x: Float[Array, "*batch in"]):
        check_drawn(params)
        x = in_dtype(x, dtype)
        _check_carry(carry, dict.fromkeys(("hidden", "cell"), jax.ShapeDtypeStruct(shape_of(x), x.dtype)))
        hidden, cell = step(x, carry["hidden"], carry["cell"], **params)
        return hidden, {"hidden": hidden, "cell": cell}

    def update(params, gates, carry):
        hidden, cell = lstm_update(gates, carry["cell"])
        return hidden, {"hidden": hidden, "cell": cell}

    own = lambda params, carry, x: products(in_dtype(x, dtype), carry["hidden"], **params)
    return cell_of_parts(init, apply, own, update)


def preactivation(x, hidden, kernel, recurrent_kernel, bias=None, recurrent_bias=None):
    """x W + b + h U + b'."""
    check_dtype_of_carry(x, hidden)
    return affine_map(x, kernel, bias) + affine_map(hidden, recurrent_kernel, recurrent_bias)


def lstm_update(gates, cell):
    """The next ``(hidden, cell)`` from the preactivations of the gates."""
    i, f, g, o = jnp.split(gates, 4, axis=-1)
    cell = sigmoid(f) * cell + sigmoid(i) * tanh(g)
    return sigmoid(o) * tanh(cell), cell


def products_after_reset(
    x, hidden, kernel, recurrent_kernel, bias=None, recurrent_bias=None, *, product=affine_map, of_carry=affine_map
):
    """The preactivations of z and n in a gated recurrent unit that resets its carry before the product.

    ``product(x, kernel, bias)`` and ``of_carry(hidden, kernel, bias)`` are those with the kernels.
    """
    x_r, x_z, x_n = jnp.split(product(x, kernel, bias), 3, axis=-1)
    size = hidden.shape[-1]
    b_gates, b_n = (None, None) if recurrent_bias is None else jnp.split(recurrent_bias, [2 * size])
    h_r, h_z = jnp.split(of_carry(hidden, recurrent_kernel[..., : 2 * size], b_gates), 2, axis=-1)
    # This product depends on r, so that it cannot be computed together with those of the gates.
    candidate = of_carry(sigmoid(x_r + h_r) * hidden, recurrent_kernel[..., 2 * size :], b_n)
    return x_z + h_z, x_n + candidate


def update_after_reset(products, hidden):
    """The next carry from the preactivations of z and n."""
    z, n = products
    return mix(sigmoid(z), tanh(n), hidden)


def mix(z, n, hidden):
    """z keeps the old state, n is the new candidate: (1 - z) n + z h, with one product fewer."""
    return n + z * (hidden - n)


def params_of_gates(
    gates, features, use_bias, recurrent_bias, kernel_init, recurrent_kernel_init, bias_init, dtype, windows=((), ())
):
    """Two functions for the params of a cell: one draws them, one checks their names and shapes.

    Each gate is drawn as a separate matrix, so that variance and orthogonality hold for each. ``windows`` are the
    leading axes of the two kernels of a convolution.
    """
    leaves = {  # whether it is a param, how each gate is drawn, and the axes before its features
        "kernel": (True, kernel_init, (*windows[0], None)),
        "recurrent_kernel": (True, recurrent_kernel_init, (*windows[1], features)),
        "bias": (use_bias, bias_init, ()),
        "recurrent_bias": (recurrent_bias, bias_init, ()),
    }

    def draw(key, x):
        params = {}
        for position, (name, (kept, initialize, rows)) in enumerate(leaves.items()):
            if kept:
                keys = jax.random.split(jax.random.fold_in(key, position), gates)
                shape = *(x.shape[-1] if n is None else n for n in rows), features
                params[name] = jnp.concatenate([initialize(k, shape, dtype) for k in keys], axis=-1)
        return params

    def check_drawn(params):
        check_params(params, **{name: (*rows, gates * features) for name, (kept, _, rows) in leaves.items() if kept})

    return draw, check_drawn


def check_forget_bias(forget_bias, **biases: bool):
    """Without a bias the forget bias has no effect; 0 and the default 1 are accepted."""
    biased = any(biases.values()) or forget_bias in (0, 1)
    repair = f"leave {' or '.join(biases)} at True, or omit forget_bias"
    require(biased, "a bias for forget_bias to be added to", f"forget_bias={forget_bias!r} and no bias", repair)


def with_forget_bias(draw, name, features, forget_bias):
    """The function of params with ``forget_bias`` added to the forget gate's part of a bias, the second of i, f, g, o.

    A bias of 1 keeps the cell at the start of training.
    """

    def drawn(key, x):
        params = draw(key, x)
        return params | {name: params[name].at[features : 2 * features].add(forget_bias)}

    return drawn


def _check_carry(carry, like):
    """The carry has the structure, shapes and dtypes of that of ``init``."""
    # Described in words, so that arrays and ShapeDtypeStructs compare equal.
    got, expected = jax.tree.map(describe, carry), jax.tree.map(describe, like)
    repair = "pass the carry that init made for inputs like x, or that the last call returned"
    # A wrong structure is a TypeError, a wrong shape or dtype a ValueError.
    error = ValueError if jax.tree.structure(got) == jax.tree.structure(expected) else TypeError
    require(got == expected, f"its carry, {expected}", str(got), repair, error=error)


def check_dtype_of_carry(x, hidden):
    """The carry has the dtype of x."""
    got, repair = f"{describe(x)} and {describe(hidden)}", "make the carry with init for inputs like x"
    require(x.dtype == hidden.dtype, "x and its carry with one dtype", got, repair)
