"""Recurrent layers over the time axis, in one direction and in both."""

from collections.abc import Callable
from typing import Literal, TypedDict, Unpack, overload

import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import NonNegativeInt
from jaxblocks.core.pairs import Layer, StatefulLayer, builder
from jaxblocks.layers.combinators import Recurrent, Wire
from jaxblocks.layers.recurrent.cells import GRUCell, RNNCell
from jaxblocks.layers.recurrent.gates import Reset
from jaxblocks.layers.recurrent.lstm import LSTMCell

__all__ = ["GRU", "LSTM", "RNN", "Bidirectional"]


# total=False: an option that is left out has the default of the cell, which is written once, there.
class _CellOptions(TypedDict, total=False):
    """The options that all cells have."""

    use_bias: bool
    recurrent_bias: bool
    kernel_init: Callable
    recurrent_kernel_init: Callable
    bias_init: Callable
    dtype: DTypeLike | None
    param_dtype: DTypeLike


class _RNNOptions(_CellOptions, total=False):
    activation: Callable


class _GRUOptions(_CellOptions, total=False):
    reset: Reset


class _LSTMOptions(_CellOptions, total=False):
    forget_bias: float


@overload
def RNN(
    features: int, *, reverse: bool = False, stateful: Literal[False] = False, **options: Unpack[_RNNOptions]
) -> Layer: ...
@overload
def RNN(
    features: int, *, reverse: bool = False, stateful: Literal[True], **options: Unpack[_RNNOptions]
) -> StatefulLayer: ...
@builder
def RNN(
    features: int, *, reverse: bool = False, stateful: bool = False, **options: Unpack[_RNNOptions]
) -> Layer | StatefulLayer:
    r"""`RNNCell` over the time axis: ``Recurrent(RNNCell(features, **options), reverse=..., stateful=...)``.

    Side inputs and state are those of `Recurrent`. Shapes: ``(..., time, in)`` to ``(..., time, features)``.

    >>> net = RNN(3)
    >>> params = net.init(jax.random.key(0), jnp.zeros((8, 5, 2)))
    >>> jax.jit(net.apply)(params, jnp.zeros((8, 5, 2))).shape
    (8, 5, 3)

    Source: Elman 1990, Finding structure in time (doi:10.1207/s15516709cog1402_1); Cevher, Mathematics of Data,
    "Recurrent layers".
    """
    return Recurrent(RNNCell(features, **options), reverse=reverse, stateful=stateful)


@overload
def GRU(
    features: int, *, reverse: bool = False, stateful: Literal[False] = False, **options: Unpack[_GRUOptions]
) -> Layer: ...
@overload
def GRU(
    features: int, *, reverse: bool = False, stateful: Literal[True], **options: Unpack[_GRUOptions]
) -> StatefulLayer: ...
@builder
def GRU(
    features: int, *, reverse: bool = False, stateful: bool = False, **options: Unpack[_GRUOptions]
) -> Layer | StatefulLayer:
    r"""`GRUCell` over the time axis: ``Recurrent(GRUCell(features, **options), reverse=..., stateful=...)``.

    Side inputs and state are those of `Recurrent`. Shapes: ``(..., time, in)`` to ``(..., time, features)``.

    >>> net = GRU(3, stateful=True)
    >>> params, carry = net.init(jax.random.key(0), jnp.zeros((8, 5, 2)))
    >>> outputs, carry = jax.jit(net.apply)(params, carry, jnp.zeros((8, 5, 2)))
    >>> carry.shape
    (8, 3)

    Source: Cho et al. 2014, arXiv:1406.1078; Cevher, Mathematics of Data, "Recurrent layers".
    """
    return Recurrent(GRUCell(features, **options), reverse=reverse, stateful=stateful)


@overload
def LSTM(
    features: int, *, reverse: bool = False, stateful: Literal[False] = False, **options: Unpack[_LSTMOptions]
) -> Layer: ...
@overload
def LSTM(
    features: int, *, reverse: bool = False, stateful: Literal[True], **options: Unpack[_LSTMOptions]
) -> StatefulLayer: ...
@builder
def LSTM(
    features: int, *, reverse: bool = False, stateful: bool = False, **options: Unpack[_LSTMOptions]
) -> Layer | StatefulLayer:
    r"""`LSTMCell` over the time axis: ``Recurrent(LSTMCell(features, **options), reverse=..., stateful=...)``.

    Side inputs and state are those of `Recurrent`. Shapes: ``(..., time, in)`` to ``(..., time, features)``.

    >>> net = LSTM(3)
    >>> params = net.init(jax.random.key(0), jnp.zeros((8, 5, 2)))
    >>> outputs = jax.jit(net.apply)(
    ...     params, jnp.zeros((8, 5, 2)), mask=jnp.ones((8, 5), bool)
    ... )

    Source: Hochreiter & Schmidhuber 1997, doi:10.1162/neco.1997.9.8.1735; Cevher, Mathematics of Data,
    "Recurrent layers".
    """
    return Recurrent(LSTMCell(features, **options), reverse=reverse, stateful=stateful)


@overload
def Bidirectional(
    forward: StatefulLayer, backward: StatefulLayer, *, spatial: int | None = None, stateful: Literal[False] = False
) -> Layer: ...
@overload
def Bidirectional(
    forward: StatefulLayer, backward: StatefulLayer, *, spatial: int | None = None, stateful: Literal[True]
) -> StatefulLayer: ...
@builder
def Bidirectional(
    forward: StatefulLayer, backward: StatefulLayer, *, spatial: NonNegativeInt | None = None, stateful: bool = False
) -> Layer | StatefulLayer:
    r"""A bidirectional layer: one cell forward in time, one backward in time, outputs concatenated.

    Args:
        forward, backward: two recurrent cells; each has its own params, ``{"backward", "forward"}``.
        spatial: the number of axes between time and features, as in `Recurrent`.
        stateful: ``True`` makes a ``StatefulLayer`` whose state is the two carries, ``{"backward", "forward"}``, to set
            the initial carries and to obtain the last ones. The carry of ``backward`` enters at the last time step, and
            the one that is returned is that after the first time step.

    Shapes: ``(..., time, in)`` to ``(..., time, features of forward + features of backward)``.

    >>> net = Bidirectional(LSTMCell(3), LSTMCell(3))
    >>> params = net.init(jax.random.key(0), jnp.zeros((8, 5, 2)))
    >>> jax.jit(net.apply)(params, jnp.zeros((8, 5, 2))).shape
    (8, 5, 6)

    Source: Schuster & Paliwal 1997, Bidirectional recurrent neural networks, doi:10.1109/78.650093.
    """
    # A Layer, such as LSTM(3), runs over time itself; a cell takes one step.
    for cell in (forward, backward):
        expected, repair = "two recurrent cells", "pass cells: Bidirectional(LSTMCell(3), LSTMCell(3))"
        require(isinstance(cell, StatefulLayer), expected, cell, repair, error=TypeError)

    def concatenated(f, *inputs):
        # (..., time, features of forward + features of backward)
        return jnp.concatenate([f.forward(*inputs), f.backward(*inputs)], axis=-1)

    run_forward: Layer | StatefulLayer = Recurrent(forward, spatial=spatial, stateful=stateful)
    # Outputs of a reversed scan are in the order of time, so both are concatenated as they are.
    run_backward: Layer | StatefulLayer = Recurrent(backward, reverse=True, spatial=spatial, stateful=stateful)
    return Wire(concatenated, forward=run_forward, backward=run_backward)
