r"""Recurrent layers: the simple cell, the gated recurrent unit, long short-term memory, both directions at once.

Each comes as a function of one step, as a cell (a ``StatefulLayer`` whose state is its carry),
and as a layer over the time axis, which is ``Recurrent(cell)``.

Axis letters: ``...`` batch, ``time``, ``in`` features of the input, ``hidden`` features of the carry.
Params are named alike in all: ``kernel`` :math:`W` acts on the input, ``recurrent_kernel`` :math:`U`
on the carry, ``bias`` :math:`b` and ``recurrent_bias`` :math:`b'` stand beside them; gates lie side
by side along the last axis.
"""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxblocks import initializers
from jaxblocks.activations import sigmoid, tanh
from jaxblocks.checks import describe, describe_any, require_floating, require_key, require_whole
from jaxblocks.core import Layer, StatefulLayer, builder, require_params
from jaxblocks.layers.combinators import Recurrent, Wire

__all__ = ["GRU", "LSTM", "RNN", "Bidirectional", "GRUCell", "LSTMCell", "RNNCell", "gru_step", "lstm_step", "rnn_step"]


def rnn_step(
    x: Float[Array, "*batch in"],
    hidden: Float[Array, "*batch hidden"],
    kernel: Float[Array, "in hidden"],
    recurrent_kernel: Float[Array, "hidden hidden"],
    bias: Float[Array, " hidden"] | None = None,
    recurrent_bias: Float[Array, " hidden"] | None = None,
    activation: Callable = tanh,
) -> Float[Array, "*batch hidden"]:
    r"""One step of the simple recurrent network: :math:`h_t = \sigma(x_t W + b + h_{t-1} U + b')`.

    :math:`\sigma` is ``activation``. Computes in the dtype of ``x``.

    >>> rnn_step(jnp.array([1.0]), jnp.array([2.0]), jnp.eye(1), 0.5 * jnp.eye(1), activation=lambda z: z)
    Array([2.], dtype=float32)

    Source: Huszar, DeepNN lecture ("Recurrent Layers"); Elman 1990, Finding structure in time.
    """
    _check("rnn_step", 1, x, hidden, kernel, recurrent_kernel, bias, recurrent_bias)
    return activation(_both(x, hidden, kernel, recurrent_kernel, bias, recurrent_bias))


def gru_step(
    x: Float[Array, "*batch in"],
    hidden: Float[Array, "*batch hidden"],
    kernel: Float[Array, "in 3*hidden"],
    recurrent_kernel: Float[Array, "hidden 3*hidden"],
    bias: Float[Array, " 3*hidden"] | None = None,
    recurrent_bias: Float[Array, " 3*hidden"] | None = None,
    reset: str = "after",
) -> Float[Array, "*batch hidden"]:
    r"""One step of the gated recurrent unit: :math:`h_t = (1 - z) \odot n + z \odot h_{t-1}`.

    With the gates in the order :math:`(r, z, n)` along the last axis of the kernels,

    .. math::
        r &= \sigma(x W_r + b_r + h U_r + b'_r), \qquad z = \sigma(x W_z + b_z + h U_z + b'_z), \\
        n &= \tanh(x W_n + b_n + r \odot (h U_n + b'_n)) && \text{reset="after"} \\
        n &= \tanh(x W_n + b_n + (r \odot h) U_n + b'_n) && \text{reset="before"}

    where :math:`h` is ``hidden``. ``"after"`` is what PyTorch and cuDNN compute, ``"before"`` the first
    published form; they differ, and params trained for one do not serve the other.

    >>> ones = jnp.ones((1, 3))
    >>> gru_step(jnp.array([0.0]), jnp.array([0.0]), ones, ones)
    Array([0.], dtype=float32)

    Source: Cho et al. 2014, Learning phrase representations using RNN encoder-decoder; Huszar, DeepNN
    lecture ("Recurrent Layers", where the unit is named).
    """
    _check("gru_step", 3, x, hidden, kernel, recurrent_kernel, bias, recurrent_bias)
    if reset not in ("after", "before"):
        raise ValueError(f"gru_step expects reset to be 'after' or 'before', but {reset!r} came.")
    x_r, x_z, x_n = jnp.split(_affine(x, kernel, bias), 3, axis=-1)
    if reset == "after":
        h_r, h_z, h_n = jnp.split(_affine(hidden, recurrent_kernel, recurrent_bias), 3, axis=-1)
        r = sigmoid(x_r + h_r)
        candidate = r * h_n
    else:
        size = hidden.shape[-1]
        b_gates, b_n = (None, None) if recurrent_bias is None else jnp.split(recurrent_bias, [2 * size])
        h_r, h_z = jnp.split(_affine(hidden, recurrent_kernel[:, : 2 * size], b_gates), 2, axis=-1)
        r = sigmoid(x_r + h_r)
        candidate = _affine(r * hidden, recurrent_kernel[:, 2 * size :], b_n)
    z, n = sigmoid(x_z + h_z), tanh(x_n + candidate)
    return n + z * (hidden - n)


def lstm_step(
    x: Float[Array, "*batch in"],
    hidden: Float[Array, "*batch hidden"],
    cell: Float[Array, "*batch hidden"],
    kernel: Float[Array, "in 4*hidden"],
    recurrent_kernel: Float[Array, "hidden 4*hidden"],
    bias: Float[Array, " 4*hidden"] | None = None,
    recurrent_bias: Float[Array, " 4*hidden"] | None = None,
) -> tuple[Float[Array, "*batch hidden"], Float[Array, "*batch hidden"]]:
    r"""One step of long short-term memory: the next ``(hidden, cell)``.

    With the gates in the order :math:`(i, f, g, o)` along the last axis of the kernels,

    .. math::
        (i, f, o) = \sigma(x W + b + h U + b')_{i, f, o}, \quad g = \tanh(x W + b + h U + b')_g, \qquad
        c_t = f \odot c_{t-1} + i \odot g, \quad h_t = o \odot \tanh c_t

    where :math:`h` is ``hidden`` and :math:`c` is ``cell``.

    >>> ones = jnp.ones((1, 4))
    >>> hidden, cell = lstm_step(jnp.array([0.0]), jnp.array([0.0]), jnp.array([2.0]), ones, ones)
    >>> cell
    Array([1.], dtype=float32)

    Source: Hochreiter & Schmidhuber 1997, Long short-term memory; Gers et al. 2000 (forget gate); Huszar,
    DeepNN lecture ("Recurrent Layers", where the unit is named).
    """
    _check("lstm_step", 4, x, hidden, kernel, recurrent_kernel, bias, recurrent_bias)
    gates = _both(x, hidden, kernel, recurrent_kernel, bias, recurrent_bias)  # (*batch, 4 hidden)
    i, f, g, o = jnp.split(gates, 4, axis=-1)
    cell = sigmoid(f) * cell + sigmoid(i) * tanh(g)
    return sigmoid(o) * tanh(cell), cell


@builder
def RNNCell(
    features: int,
    *,
    activation: Callable = tanh,
    use_bias: bool = True,
    recurrent_bias: bool = True,
    kernel_init: Callable = initializers.lecun_normal(),
    recurrent_kernel_init: Callable = initializers.orthogonal(),
    bias_init: Callable = initializers.zeros,
    param_dtype=jnp.float32,
) -> StatefulLayer:
    r"""The simple recurrent cell `rnn_step`; its carry :math:`h` is zero at first.

    Args:
        features: of the carry and the output.
        activation: :math:`\sigma`.
        use_bias, recurrent_bias: whether there are :math:`b` and :math:`b'`. The two are redundant
            here; both are there by default because PyTorch's params hold both.
        kernel_init, recurrent_kernel_init, bias_init, param_dtype: as in `Dense`.

    >>> cell = RNNCell(3)
    >>> params, carry = cell.init(jax.random.key(0), jnp.zeros((8, 2)))
    >>> jax.tree.map(jnp.shape, params)
    {'bias': (3,), 'kernel': (2, 3), 'recurrent_bias': (3,), 'recurrent_kernel': (3, 3)}

    Source: Huszar, DeepNN lecture ("Recurrent Layers").
    """
    names = _names(use_bias, recurrent_bias)
    features = require_whole("RNNCell", "features", features)

    def init(key, x):
        params = _draw(
            "RNNCell", key, x, 1, features, names, kernel_init, recurrent_kernel_init, bias_init, param_dtype
        )
        return params, jnp.zeros((*x.shape[:-1], features), x.dtype)

    def apply(params, hidden, x):
        require_params("RNNCell", params, *names)
        if not hasattr(hidden, "dtype"):
            raise _no_carry("RNNCell", "an array", hidden)
        hidden = rnn_step(x, hidden, **params, activation=activation)
        return hidden, hidden

    return StatefulLayer(init, apply)


@builder
def GRUCell(
    features: int,
    *,
    reset: str = "after",
    use_bias: bool = True,
    recurrent_bias: bool = True,
    kernel_init: Callable = initializers.lecun_normal(),
    recurrent_kernel_init: Callable = initializers.orthogonal(),
    bias_init: Callable = initializers.zeros,
    param_dtype=jnp.float32,
) -> StatefulLayer:
    r"""The gated recurrent unit `gru_step`; its carry :math:`h` is zero at first.

    Args:
        features: of the carry and the output.
        reset: ``"after"`` the product with the carry (PyTorch, cuDNN) or ``"before"`` it (the first published form).
        use_bias, recurrent_bias: whether there are :math:`b` and :math:`b'`.
        kernel_init, recurrent_kernel_init, bias_init, param_dtype: as in `Dense`.

    >>> params, _ = GRUCell(3).init(jax.random.key(0), jnp.zeros(2))
    >>> sum(leaf.size for leaf in jax.tree.leaves(params))
    63

    Source: Cho et al. 2014; Huszar, DeepNN lecture ("Recurrent Layers").
    """
    names = _names(use_bias, recurrent_bias)
    features = require_whole("GRUCell", "features", features)
    if reset not in ("after", "before"):
        raise ValueError(f"GRUCell expects reset to be 'after' or 'before', but {reset!r} came.")

    def init(key, x):
        params = _draw(
            "GRUCell", key, x, 3, features, names, kernel_init, recurrent_kernel_init, bias_init, param_dtype
        )
        return params, jnp.zeros((*x.shape[:-1], features), x.dtype)

    def apply(params, hidden, x):
        require_params("GRUCell", params, *names)
        if not hasattr(hidden, "dtype"):
            raise _no_carry("GRUCell", "an array", hidden)
        hidden = gru_step(x, hidden, **params, reset=reset)
        return hidden, hidden

    return StatefulLayer(init, apply)


@builder
def LSTMCell(
    features: int,
    *,
    forget_bias: int | float = 1.0,
    use_bias: bool = True,
    recurrent_bias: bool = True,
    kernel_init: Callable = initializers.lecun_normal(),
    recurrent_kernel_init: Callable = initializers.orthogonal(),
    bias_init: Callable = initializers.zeros,
    param_dtype=jnp.float32,
) -> StatefulLayer:
    r"""Long short-term memory `lstm_step`; its carry is ``{"cell", "hidden"}``, zero at first.

    Args:
        features: of the carry and the output.
        forget_bias: added at ``init`` to the forget gate's :math:`b_f` (:math:`b'_f` without ``use_bias``), so that a
            net remembers before it has learned to: with 1, a cell keeps 0.73 of itself per step instead of 0.5.
            Without either bias nothing is added, and a value of your own is refused.
        use_bias, recurrent_bias: whether there are :math:`b` and :math:`b'`, redundant here as in `RNNCell`.
        kernel_init, recurrent_kernel_init, bias_init, param_dtype: as in `Dense`.

    >>> params, _ = LSTMCell(3).init(jax.random.key(0), jnp.zeros(2))
    >>> sum(leaf.size for leaf in jax.tree.leaves(params))
    84

    Source: Hochreiter & Schmidhuber 1997; Jozefowicz et al. 2015 (the bias of the forget gate); Huszar,
    DeepNN lecture ("Recurrent Layers").
    """
    names = _names(use_bias, recurrent_bias)
    features = require_whole("LSTMCell", "features", features)
    biases = names[2:]
    if not biases and forget_bias not in (0, 1):
        raise ValueError(
            f"LSTMCell adds forget_bias to a bias, but has none, and forget_bias={forget_bias!r} came; "
            "leave use_bias or recurrent_bias at True, or forget_bias out."
        )

    def init(key, x):
        params = _draw(
            "LSTMCell", key, x, 4, features, names, kernel_init, recurrent_kernel_init, bias_init, param_dtype
        )
        for name in biases[:1]:
            params[name] = params[name].at[features : 2 * features].add(forget_bias)
        zeros = jnp.zeros((*x.shape[:-1], features), x.dtype)
        return params, {"hidden": zeros, "cell": zeros}

    def apply(params, carry, x):
        require_params("LSTMCell", params, *names)
        if not isinstance(carry, Mapping) or set(carry) != {"hidden", "cell"}:
            raise _no_carry("LSTMCell", 'a dict of "cell" and "hidden"', carry)
        hidden, cell = lstm_step(x, carry["hidden"], carry["cell"], **params)
        return hidden, {"hidden": hidden, "cell": cell}

    return StatefulLayer(init, apply)


@builder
def RNN(features: int, *, reverse: bool = False, stateful: bool = False, **options) -> Layer | StatefulLayer:
    r"""`RNNCell` over the time axis: ``Recurrent(RNNCell(features, **options))``, mask and stateful included.

    Shapes: ``(..., time, in)`` to ``(..., time, features)``.

    >>> net = RNN(3)
    >>> params = net.init(jax.random.key(0), jnp.zeros((8, 5, 2)))
    >>> net.apply(params, jnp.zeros((8, 5, 2))).shape
    (8, 5, 3)

    Source: Huszar, DeepNN lecture ("Recurrent Layers").
    """
    return Recurrent(RNNCell(features, **options), reverse=reverse, stateful=stateful)


@builder
def GRU(features: int, *, reverse: bool = False, stateful: bool = False, **options) -> Layer | StatefulLayer:
    r"""`GRUCell` over the time axis: ``Recurrent(GRUCell(features, **options))``, mask and stateful included.

    Shapes: ``(..., time, in)`` to ``(..., time, features)``.

    >>> net = GRU(3, stateful=True)
    >>> params, carry = net.init(jax.random.key(0), jnp.zeros((8, 5, 2)))
    >>> outputs, carry = net.apply(params, carry, jnp.zeros((8, 5, 2)))
    >>> carry.shape
    (8, 3)

    Source: Cho et al. 2014; Huszar, DeepNN lecture ("Recurrent Layers").
    """
    return Recurrent(GRUCell(features, **options), reverse=reverse, stateful=stateful)


@builder
def LSTM(features: int, *, reverse: bool = False, stateful: bool = False, **options) -> Layer | StatefulLayer:
    r"""`LSTMCell` over the time axis: ``Recurrent(LSTMCell(features, **options))``, mask and stateful included.

    Shapes: ``(..., time, in)`` to ``(..., time, features)``.

    >>> net = LSTM(3)
    >>> params = net.init(jax.random.key(0), jnp.zeros((8, 5, 2)))
    >>> outputs = net.apply(params, jnp.zeros((8, 5, 2)), mask=jnp.ones((8, 5), bool))

    Source: Hochreiter & Schmidhuber 1997; Huszar, DeepNN lecture ("Recurrent Layers").
    """
    return Recurrent(LSTMCell(features, **options), reverse=reverse, stateful=stateful)


@builder
def Bidirectional(forward: StatefulLayer, backward: StatefulLayer) -> Layer:
    r"""One cell from the first step to the last, one from the last to the first, outputs side by side.

    Args:
        forward, backward: two recurrent cells; each has params of its own, ``{"backward", "forward"}``.

    Shapes: ``(..., time, in)`` to ``(..., time, forward's features + backward's)``.

    >>> net = Bidirectional(LSTMCell(3), LSTMCell(3))
    >>> params = net.init(jax.random.key(0), jnp.zeros((8, 5, 2)))
    >>> net.apply(params, jnp.zeros((8, 5, 2))).shape
    (8, 5, 6)

    Source: Schuster & Paliwal 1997, Bidirectional recurrent neural networks.
    """

    for cell in (forward, backward):
        if not isinstance(cell, StatefulLayer):
            raise TypeError(
                f"Bidirectional expects two cells, which it runs over time itself, but {describe_any(cell)} came; "
                "pass cells: Bidirectional(LSTMCell(3), LSTMCell(3))."
            )

    def side_by_side(f, *inputs):
        return jnp.concatenate([f.forward(*inputs), f.backward(*inputs)], axis=-1)

    return Wire(side_by_side, forward=Recurrent(forward), backward=Recurrent(backward, reverse=True))


# ---- what they share -----------------------------------------------------------------------


def _both(x, hidden, kernel, recurrent_kernel, bias, recurrent_bias):
    """x W + b + h U + b' as one product: its gradient is up to a tenth faster than that of two on CPU."""
    weights = jnp.concatenate([kernel, recurrent_kernel])
    biases = [b.astype(x.dtype) for b in (bias, recurrent_bias) if b is not None]
    return _affine(jnp.concatenate([x, hidden], axis=-1), weights, sum(biases[1:], biases[0]) if biases else None)


def _affine(x, kernel, bias):
    y = jnp.matmul(x, kernel.astype(x.dtype))
    return y if bias is None else y + jnp.broadcast_to(bias.astype(x.dtype), y.shape)


def _names(use_bias, recurrent_bias):
    return ("kernel", "recurrent_kernel", *("bias",) * use_bias, *("recurrent_bias",) * recurrent_bias)


def _draw(where, key, x, gates, features, names, kernel_init, recurrent_kernel_init, bias_init, dtype):
    """Params of a cell; each gate is drawn as a matrix of its own, so that variances and orthogonality are its own."""
    require_key(f"{where}.init", key)
    require_floating(where, x=x)
    rows = {
        "kernel": (kernel_init, (x.shape[-1], features)),
        "recurrent_kernel": (recurrent_kernel_init, (features, features)),
    }
    params = {}
    for position, name in enumerate(("kernel", "recurrent_kernel", "bias", "recurrent_bias")):
        initialize, shape = rows.get(name, (bias_init, (features,)))
        if name in names:
            keys = jax.random.split(jax.random.fold_in(key, position), gates)
            params[name] = jnp.concatenate([initialize(k, shape, dtype) for k in keys], axis=-1)
    return params


def _no_carry(where, expected, came):
    return TypeError(
        f"{where} expects its carry, {expected}, but {describe_any(came)} came; pass the carry that init made, or that "
        "the last call returned: apply(params, carry, x)."
    )


def _check(where, gates, x, hidden, kernel, recurrent_kernel, bias, recurrent_bias):
    require_floating(where, x=x, hidden=hidden, kernel=kernel)
    size = hidden.shape[-1] if hidden.shape else 0
    if x.shape[:-1] != hidden.shape[:-1] or x.dtype != hidden.dtype:
        raise ValueError(
            f"{where} expects x and the carry to have the same batch axes and dtype, but x is {describe(x)} and the "
            f"carry {describe(hidden)}; make the carry with init for inputs like x."
        )
    wanted = {"kernel": (x.shape[-1], gates * size), "recurrent_kernel": (size, gates * size)}
    came = {"kernel": kernel, "recurrent_kernel": recurrent_kernel, "bias": bias, "recurrent_bias": recurrent_bias}
    for name, param in came.items():
        shape = wanted.get(name, (gates * size,))
        if param is not None and param.shape != shape:
            raise ValueError(
                f"{where} expects {name} of shape {shape} for x {describe(x)} and a carry of {size} features, but "
                f"{describe(param)} came; pass x of that size, or params made by init for this x."
            )
