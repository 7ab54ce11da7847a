"""Long short-term memory, with peepholes and with a projected output."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jaxblocks import initializers
from jaxblocks.backend.linear_maps import in_dtype
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import PositiveInt, checked
from jaxblocks.core.pairs import ArrayOrShape, StatefulLayer, builder
from jaxblocks.layers.recurrent.gates import (
    cell_of_two_carries,
    check_carry,
    check_forget_bias,
    lstm_update,
    params_of_gates,
    preactivation,
    with_forget_bias,
)
from jaxblocks.layers.scan_of_cells import set_parts

__all__ = ["LSTMCell", "lstm_step"]


@checked
def lstm_step(
    x: Float[Array, "*batch in"],
    hidden: Float[Array, "*batch out"],
    cell: Float[Array, "*batch hidden"],
    kernel: Float[Array, "in 4*hidden"],
    recurrent_kernel: Float[Array, "out 4*hidden"],
    bias: Float[Array, "4*hidden"] | None = None,
    recurrent_bias: Float[Array, "4*hidden"] | None = None,
    *,
    peephole: Float[Array, "3 hidden"] | None = None,
    projection_kernel: Float[Array, "hidden out"] | None = None,
) -> tuple[Float[Array, "*batch out"], Float[Array, "*batch hidden"]]:
    r"""One step of long short-term memory: the next ``(hidden, cell)``.

    With the gates in the order $(i, f, g, o)$ along the last axis of the kernels,

    .. math::

        (i, f, o) = σ(x W + b + h U + b')_{i, f, o},
        g = tanh(x W + b + h U + b')_g,
        c_t = f ⊙ c_{t-1} + i ⊙ g,
        h_t = o ⊙ tanh c_t

    where $h$ is ``hidden`` and $c$ is ``cell``.

    Args:
        peephole: $p$, rows $(p_i, p_f, p_o)$: the gates also read the cell. $p_i ⊙ c_{t-1}$ is
            added inside the sigmoid of i, $p_f ⊙ c_{t-1}$ in that of f, $p_o ⊙ c_t$ in that of o.
        projection_kernel: $P$; then $h_t = (o ⊙ tanh c_t) P$, with fewer features than $c$.

    >>> ones = jnp.ones((1, 4))
    >>> hidden, cell = lstm_step(
    ...     jnp.array([0.0]), jnp.array([0.0]), jnp.array([2.0]), ones, ones
    ... )
    >>> cell
    Array([1.], dtype=float32)

    Source: Hochreiter & Schmidhuber 1997, Long short-term memory, doi:10.1162/neco.1997.9.8.1735; Gers et al. 2000,
    Learning to forget, doi:10.1162/089976600300015015 (forget gate); Gers & Schmidhuber 2000, Recurrent nets that time
    and count, doi:10.1109/IJCNN.2000.861302 (peepholes); Sak, Senior & Beaufays 2014, arXiv:1402.1128 (projection);
    Cevher, Mathematics of Data, "Recurrent layers" (which names the unit).
    """
    fits = projection_kernel is not None or hidden.shape == cell.shape
    require(fits, "hidden and cell of one shape", (hidden.shape, cell.shape), "pass projection_kernel to project cell")
    gates = preactivation(x, hidden, kernel, recurrent_kernel, bias, recurrent_bias)  # (*batch, 4 hidden)
    return lstm_update(gates, cell, peephole, projection_kernel)


@builder
def LSTMCell(
    features: PositiveInt,
    *,
    forget_bias: float | int = 1.0,
    peepholes: bool = False,
    proj_size: PositiveInt | None = None,
    use_bias: bool = True,
    recurrent_bias: bool = True,
    kernel_init: Callable = initializers.lecun_normal(),
    recurrent_kernel_init: Callable = initializers.orthogonal(),
    bias_init: Callable = initializers.zeros,
    peephole_init: Callable = initializers.zeros,
    dtype: DTypeLike | None = None,
    param_dtype: DTypeLike = jnp.float32,
) -> StatefulLayer:
    r"""Long short-term memory `lstm_step`; its carry is ``{"cell", "hidden"}``, initially zero.

    Args:
        features: of the cell, and of the output unless ``proj_size`` is given.
        forget_bias: added at ``init`` to the forget gate's $b_f$ ($b'_f$ without ``use_bias``). With 1,
            an untrained cell keeps 0.73 of its value per step instead of 0.5.
            Without both biases nothing is added, and a value other than the default is an error.
        peepholes: whether the gates read the cell, by the param ``peephole``, (3, features). (ONNX has the rows in the
            order i, o, f.)
        proj_size: features of the output and of ``hidden``, which a param ``projection_kernel`` (features, proj_size)
            computes, as in PyTorch; drawn by ``kernel_init``. ``None`` for no projection.
        use_bias, recurrent_bias: whether the cell has $b$ and $b'$; one is redundant, as in `RNNCell`.
        peephole_init: of ``peephole``; zeros, for a cell that begins without peepholes.
        kernel_init, recurrent_kernel_init, bias_init, dtype, param_dtype: as in `RNNCell`.

    Shapes: ``(..., in)`` to ``(..., features)``, or ``(..., proj_size)``, with a carry of two arrays.

    >>> params, _ = jax.eval_shape(LSTMCell(3).init, jax.random.key(0), jnp.zeros(2))
    >>> sum(leaf.size for leaf in jax.tree.leaves(params))
    84
    >>> cell = LSTMCell(3, peepholes=True, proj_size=1)
    >>> params, carry = jax.eval_shape(cell.init, jax.random.key(0), jnp.zeros(2))
    >>> (
    ...     params["peephole"].shape,
    ...     params["projection_kernel"].shape,
    ...     carry["hidden"].shape,
    ...     carry["cell"].shape,
    ... )
    ((3, 3), (3, 1), (1,), (3,))

    Source: Hochreiter & Schmidhuber 1997, doi:10.1162/neco.1997.9.8.1735; Jozefowicz et al. 2015, An empirical
    exploration of recurrent network architectures (the bias of the forget gate); Sak, Senior & Beaufays 2014, Long
    short-term memory based recurrent neural network architectures, arXiv:1402.1128 (peepholes and projection);
    Cevher, Mathematics of Data, "Recurrent layers".
    """
    # The hidden state has `out` features: those of the cell, or fewer after the projection.
    out = features if proj_size is None else proj_size
    draw, check_drawn = params_of_gates(
        4, features, use_bias, recurrent_bias, kernel_init, recurrent_kernel_init, bias_init, param_dtype, out
    )
    others = {"peephole": (peephole_init, (3, features))} if peepholes else {}
    others |= {"projection_kernel": (kernel_init, (features, out))} if proj_size else {}
    check_forget_bias(forget_bias, use_bias=use_bias, recurrent_bias=recurrent_bias)

    def init(key, x: Float[ArrayOrShape, "*batch in"]):
        params = draw(key, x)
        if use_bias or recurrent_bias:
            params = with_forget_bias(params, "bias" if use_bias else "recurrent_bias", features, forget_bias)
        # Numbers from 4 on, for keys of their own beside those of the params that `draw` makes.
        for position, (name, (initialize, shape)) in enumerate(others.items(), 4):
            params[name] = initialize(jax.random.fold_in(key, position), shape, param_dtype)
        return params, _make_carry(jnp.zeros, x, out, features, dtype)

    def step(params, read, carry, x):
        check_drawn(params, **{name: shape for name, (_, shape) in others.items()})
        x = in_dtype(x, dtype)
        # Shapes alone are compared, so the carry is not computed.
        check_carry(carry, _make_carry(jax.ShapeDtypeStruct, x, out, features))
        hidden, cell = lstm_step(x, read["hidden"], carry["cell"], **params)
        return hidden, {"hidden": hidden, "cell": cell}

    # The two parts that `Recurrent` reads: products with the kernels, and what follows from them.
    def products(params, carry, x):
        of_gates = {name: param for name, param in params.items() if name not in others}
        return preactivation(in_dtype(x, dtype), carry["hidden"], **of_gates)

    def update(params, gates, carry):
        hidden, cell = lstm_update(gates, carry["cell"], **{name: params[name] for name in others})
        return hidden, {"hidden": hidden, "cell": cell}

    made = cell_of_two_carries(init, step)
    set_parts(made.apply, products, update)
    return made


def _make_carry(make, x, out, features, dtype=None):
    """The carry of arrays, or of their shapes, that ``make(shape, dtype)`` makes."""
    of = lambda size: make((*x.shape[:-1], size), dtype or x.dtype)
    return {"hidden": of(out), "cell": of(features)}
