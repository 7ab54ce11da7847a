r"""A recurrent language model: an embedding, recurrent layers, and logits of the next token.

Axis letters: ``...`` batch; ``time``.
"""

from collections.abc import Callable
from typing import Literal, TypedDict, Unpack, overload

from jaxblocks.checks.expectations import PositiveInt, Rate
from jaxblocks.core.pairs import Layer, StatefulLayer, builder
from jaxblocks.layers.combinators import Repeat, Serial
from jaxblocks.layers.dense import Dense
from jaxblocks.layers.dropout import Dropout
from jaxblocks.layers.embedding import Embedding
from jaxblocks.layers.recurrent.over_time import LSTM

__all__ = ["RecurrentLM"]


class _Options(TypedDict, total=False):
    """The options of `RecurrentLM` without ``stateful``, which decides on the type of the layer."""

    vocab_size: int
    features: int
    layers: int
    recurrent: Callable
    dropout: float


@overload
def RecurrentLM(*, stateful: Literal[False] = False, **options: Unpack[_Options]) -> Layer: ...
@overload
def RecurrentLM(*, stateful: Literal[True], **options: Unpack[_Options]) -> StatefulLayer: ...
@builder
def RecurrentLM(
    *,
    vocab_size: PositiveInt = 10_000,
    features: PositiveInt = 650,
    layers: PositiveInt = 2,
    recurrent: Callable = LSTM,
    dropout: Rate = 0.5,
    stateful: bool = False,
) -> Layer | StatefulLayer:
    r"""A recurrent language model, logits of the next token: $p(x_{t+1} ∣ x_{≤ t}) = softmax(W h_t + b)$.

    $h_t$ is the output of the last of several recurrent layers on the embedded tokens. The defaults are the
    "medium" model of the paper: 20 million params, about a third each in the embedding, the recurrent layers and the
    last layer. (The LSTM of the paper has one bias, and all its initial weights are uniform from -0.05 to 0.05. `LSTM`
    has two biases, as in PyTorch, orthogonal initial weights and an initial bias of 1 for the forget gate.)

    Args:
        vocab_size: the number of tokens.
        features: the number of features of the embedding and of each layer.
        layers: the number of recurrent layers.
        recurrent: builds a layer by ``recurrent(features, stateful=...)``: `LSTM`, `GRU`, `RNN`.
        dropout: the rate for values between layers; it does not apply to the carry.
        stateful: ``True`` makes a ``StatefulLayer`` with the same params for sequences that arrive in pieces; its state
            is the carry of each layer.

    Shapes: tokens ``(..., time)``, integers, to logits ``(..., time, vocab_size)``.

    Side inputs: ``mask``, boolean ``(..., time)``, ``False`` at padding; ``train`` and ``key`` for the dropout.

    >>> net = RecurrentLM(vocab_size=5, features=4)
    >>> tokens = jnp.array([0, 3, 1])
    >>> # jax.jit(net.init) makes arrays
    >>> params = jax.eval_shape(net.init, jax.random.key(0), tokens)
    >>> jax.eval_shape(net.apply, params, tokens).shape
    (3, 5)

    Source: Zaremba, Sutskever & Vinyals 2014, Recurrent neural network regularization, arXiv:1409.2329; Mikolov et al.
    2010, Recurrent neural network based language model.
    """
    # Dropout on the connections between layers, not on those in time (Zaremba et al.), hence before each layer and
    # before the logits.
    block = Serial(dropout=Dropout(dropout), recurrent=recurrent(features, stateful=stateful))
    return Serial(
        tokens=Embedding(vocab_size, features),
        blocks=Repeat(block, layers),
        dropout=Dropout(dropout),
        out=Dense(vocab_size),
    )
