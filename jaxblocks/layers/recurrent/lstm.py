"""Long short-term memory, with peepholes, with a projected output, and with layer normalization."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jaxblocks import initializers
from jaxblocks.activations import sigmoid, tanh
from jaxblocks.backend.linear_maps import affine_map, along_batch, in_dtype
from jaxblocks.backend.precision import widen
from jaxblocks.backend.quotients import rsqrt
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import Epsilon, PositiveInt, checked
from jaxblocks.core.pairs import ArrayOrShape, StatefulLayer, builder
from jaxblocks.layers.recurrent.gates import (
    cell_of_two_carries,
    check_carry,
    check_dtype_of_carry,
    check_forget_bias,
    lstm_update,
    params_of_gates,
    preactivation,
    with_forget_bias,
)
from jaxblocks.layers.scan_of_cells import set_parts
from jaxblocks.statistics import moments

__all__ = ["LSTMCell", "LayerNormLSTMCell", "layer_norm_lstm_step", "lstm_step"]


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


@checked
def layer_norm_lstm_step(
    x: Float[Array, "*batch in"],
    hidden: Float[Array, "*batch hidden"],
    cell: Float[Array, "*batch hidden"],
    kernel: Float[Array, "in 4*hidden"],
    recurrent_kernel: Float[Array, "hidden 4*hidden"],
    bias: Float[Array, "4*hidden"],
    input_scale: Float[Array, "4*hidden"],
    recurrent_scale: Float[Array, "4*hidden"],
    cell_scale: Float[Array, "hidden"],
    cell_bias: Float[Array, "hidden"],
    *,
    epsilon: Epsilon = 1e-5,
) -> tuple[Float[Array, "*batch hidden"], Float[Array, "*batch hidden"]]:
    r"""One step of layer-normalized long short-term memory: the next ``(hidden, cell)``.

    .. math::

        (i, f, g, o) = γ_x ⊙ N(x W) + γ_h ⊙ N(h U) + b,
        c_t = σ(f) ⊙ c_{t-1} + σ(i) ⊙ tanh g,
        h_t = σ(o) ⊙ tanh(γ_c ⊙ N(c_t) + β_c)

    where $N(z) = (z - m) / √(v + ϵ)$ with mean and biased variance over all features of z (those of
    the four gates together), $γ_x, γ_h, γ_c$ are ``input_scale``, ``recurrent_scale``,
    ``cell_scale`` and $β_c$ is ``cell_bias``. The stored cell is not normalized.

    >>> w, u, of_gates, of_cell = (
    ...     jnp.ones((1, 8)),
    ...     jnp.ones((2, 8)),
    ...     jnp.ones(8),
    ...     jnp.ones(2),
    ... )
    >>> rest = w, u, 0 * of_gates, of_gates, of_gates, of_cell, of_cell
    >>> hidden, cell = jax.jit(layer_norm_lstm_step)(
    ...     jnp.ones(1), jnp.zeros(2), jnp.array([2.0, 2.0]), *rest
    ... )
    >>> print(hidden.round(2), cell)
    [0.38 0.38] [1. 1.]

    Source: Ba, Kiros and Hinton 2016, Layer normalization, equations (20) to (22) of the supplement (arXiv:1607.06450).
    """
    check_dtype_of_carry(x, hidden)
    # Normalized separately, so that the scales of input and recurrent part are learned separately.
    of_input = _normalized(affine_map(x, kernel), epsilon)
    of_carry = _normalized(affine_map(hidden, recurrent_kernel), epsilon)
    gates = along_batch(input_scale, of_input) * of_input + along_batch(recurrent_scale, of_carry) * of_carry
    i, f, g, o = jnp.split(gates + along_batch(bias, gates), 4, axis=-1)
    cell = sigmoid(f) * cell + sigmoid(i) * tanh(g)
    # Only what the output gate reads is normalized: the stored cell is not.
    shown = along_batch(cell_scale, cell) * _normalized(cell, epsilon) + along_batch(cell_bias, cell)
    return sigmoid(o) * tanh(shown), cell


def _normalized(z, epsilon):
    mean, variance = moments(z, -1, keepdims=True)
    # Statistics in float32 for half precision, and the result in the dtype of the input.
    return ((widen(z) - mean) * rsqrt(variance + epsilon)).astype(z.dtype)


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


@builder
def LayerNormLSTMCell(
    features: PositiveInt,
    *,
    forget_bias: float | int = 1.0,
    epsilon: Epsilon = 1e-5,
    kernel_init: Callable = initializers.lecun_normal(),
    recurrent_kernel_init: Callable = initializers.orthogonal(),
    bias_init: Callable = initializers.zeros,
    dtype: DTypeLike | None = None,
    param_dtype: DTypeLike = jnp.float32,
) -> StatefulLayer:
    r"""Layer-normalized long short-term memory `layer_norm_lstm_step`; its carry is that of `LSTMCell`.

    Args:
        features: of the cell and the output.
        forget_bias: added at ``init`` to the forget gate's part of the bias.
        epsilon: added to the variances, inside the root.
        kernel_init, recurrent_kernel_init, bias_init, dtype, param_dtype: as in `RNNCell`. The scales are initially 1.

    Shapes: ``(..., in)`` to ``(..., features)``, with a carry of two arrays ``(..., features)``.

    >>> net = Recurrent(LayerNormLSTMCell(3))
    >>> params = net.init(jax.random.key(0), jnp.zeros((8, 5, 2)))
    >>> net.apply(params, jnp.zeros((8, 5, 2))).shape, sorted(params)[2:]
    ((8, 5, 3), ['cell_scale', 'input_scale', 'kernel', 'recurrent_kernel', 'recurrent_scale'])

    Source: Ba, Kiros and Hinton 2016, Layer normalization (arXiv:1607.06450).
    """
    draw, check_drawn = params_of_gates(
        4, features, True, False, kernel_init, recurrent_kernel_init, bias_init, param_dtype
    )
    scales = {"input_scale": (4 * features,), "recurrent_scale": (4 * features,), "cell_scale": (features,)}

    def init(key, x: Float[ArrayOrShape, "*batch in"]):
        params = with_forget_bias(draw(key, x), "bias", features, forget_bias)
        params |= {name: jnp.ones(shape, param_dtype) for name, shape in scales.items()}
        params["cell_bias"] = jnp.zeros(features, param_dtype)
        return params, _make_carry(jnp.zeros, x, features, features, dtype)

    def step(params, read, carry, x):
        check_drawn(params, cell_bias=(features,), **scales)
        x = in_dtype(x, dtype)
        check_carry(carry, _make_carry(jax.ShapeDtypeStruct, x, features, features))
        hidden, cell = layer_norm_lstm_step(x, read["hidden"], carry["cell"], **params, epsilon=epsilon)
        return hidden, {"hidden": hidden, "cell": cell}

    return cell_of_two_carries(init, step)


def _make_carry(make, x, out, features, dtype=None):
    """The carry of arrays, or of their shapes, that ``make(shape, dtype)`` makes."""
    of = lambda size: make((*x.shape[:-1], size), dtype or x.dtype)
    return {"hidden": of(out), "cell": of(features)}
