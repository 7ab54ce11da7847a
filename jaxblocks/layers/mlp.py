"""The multilayer perceptron: dense layers and activations in series."""

from collections.abc import Callable
from typing import cast

from jaxblocks import initializers
from jaxblocks.activations import identity, relu
from jaxblocks.checks import PositiveInt, require
from jaxblocks.core import Layer, builder
from jaxblocks.layers.combinators import Serial
from jaxblocks.layers.dense import Dense

__all__ = ["MLP"]


@builder
def MLP(
    *widths: PositiveInt,
    activation: Callable = relu,
    last_activation: Callable = identity,
    kernel_init: Callable | None = None,
) -> Layer:
    r"""The multilayer perceptron :math:`x \mapsto o(W_n\,\sigma(\dots\sigma(W_1 x + b_1)\dots) + b_n)`.

    Args:
        widths: features of each ``Dense``, so ``n_layers = len(widths)`` and
            ``n_hidden = len(widths) - 1`` (the lectures use "depth" for both).
        activation: :math:`\sigma`, between the layers.
        last_activation: :math:`o`, after the last layer. The lectures differ on whether there
            is one; by default there is none.
        kernel_init: by default He's before a rectifier, LeCun's elsewhere.

    >>> net = MLP(5, 10, 5, 2)
    >>> params = net.init(jax.random.key(0), jnp.zeros(2))
    >>> sum(leaf.size for leaf in jax.tree.leaves(params))
    142

    Source: Huszar, DeepNN lecture 3; Krapac & Segvic, Deep feed-forward models.
    """
    require(len(widths) > 0, "at least one width", "none", "write MLP(64, 10) for one hidden layer of 64 features")
    layers: list = []
    for position, width in enumerate(widths, 1):
        after = activation if position < len(widths) else last_activation
        layers.append(Dense(width, kernel_init=kernel_init or initializers.for_activation(after)))
        if after is not identity:
            layers.append(after)
    return cast(Layer, Serial(*layers))
