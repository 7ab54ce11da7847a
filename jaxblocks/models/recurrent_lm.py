r"""The recurrent language model: an embedding, recurrent layers, a score for each symbol.

Axis letters: ``...`` batch; ``time``.
"""

from collections.abc import Callable

from jaxblocks.checks import require_whole
from jaxblocks.core import Layer, StatefulLayer, builder
from jaxblocks.layers.combinators import Repeat, Serial
from jaxblocks.layers.dense import Dense
from jaxblocks.layers.dropout import Dropout
from jaxblocks.layers.embedding import Embedding
from jaxblocks.layers.recurrent import LSTM

__all__ = ["RecurrentLM"]


@builder
def RecurrentLM(
    *,
    vocabulary: int = 10_000,
    features: int = 650,
    layers: int = 2,
    recurrent: Callable = LSTM,
    dropout: float | int = 0.5,
    stateful: bool = False,
) -> Layer | StatefulLayer:
    r"""What comes next, from a summary of all that came before: :math:`p(x_{t+1} \mid x_{\le t}) = softmax(W h_t + b)`.

    :math:`h_t` is the output of the last of several recurrent layers on the embedded symbols. The defaults are the
    "medium" model of the paper: 20 million params, about as many in the embedding, the recurrence and the read-out.
    (Its LSTM has one bias where that of ours, and PyTorch's, has two, and it draws all weights uniformly from -0.05 to
    0.05, where ours are orthogonal with an open forget gate.)

    Args:
        vocabulary: how many symbols there are.
        features: of the embedding and of each layer.
        layers: how many recurrent layers.
        recurrent: builds one, ``recurrent(features, stateful=...)``: `LSTM`, `GRU`, `RNN`.
        dropout: the probability with which a value between layers is dropped; what a layer hands on in time is not.
        stateful: ``True`` makes a ``StatefulLayer`` with the same params for text that comes in pieces; its state is
            the carry of each layer.

    Shapes: tokens ``(..., time)``, whole numbers, to logits ``(..., time, vocabulary)``.

    Side inputs: ``mask``, boolean ``(..., time)``, ``False`` at padding; ``train`` and ``key`` for the dropout.

    >>> net = RecurrentLM(vocabulary=5, features=4)
    >>> tokens = jnp.array([0, 3, 1])
    >>> params = net.init(jax.random.key(0), tokens)
    >>> net.apply(params, tokens).shape
    (3, 5)

    Source: Zaremba, Sutskever & Vinyals 2014, Recurrent neural network regularization; Mikolov et al. 2010.
    """
    layers = require_whole("RecurrentLM", "layers", layers)
    return Serial(
        tokens=Embedding(vocabulary, features),
        layers=Repeat(Serial(dropout=Dropout(dropout), recurrent=recurrent(features, stateful=stateful)), layers),
        dropout=Dropout(dropout),
        out=Dense(vocabulary),
    )
