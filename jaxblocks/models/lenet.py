r"""LeNet-5: two convolutions, each followed by a pool, and three dense layers.

Axis letters: ``...`` batch, h and w height and width, c channels.
"""

from typing import cast

from jaxblocks.activations import tanh
from jaxblocks.backend.sliding_windows import Padding
from jaxblocks.checks.expectations import PositiveInt
from jaxblocks.core.pairs import Layer, LayerLike, builder
from jaxblocks.layers.combinators import Serial
from jaxblocks.layers.conv import Conv
from jaxblocks.layers.dense import Dense
from jaxblocks.layers.pool import AvgPool
from jaxblocks.layers.reshaping import Flatten

__all__ = ["LeNet5"]


@builder
def LeNet5(
    *,
    classes: PositiveInt = 10,
    channels: tuple[int, int] = (6, 16),
    hidden: tuple[int, int] = (120, 84),
    activation: LayerLike = tanh,
    padding: Padding = 2,
) -> Layer:
    r"""LeNet-5 in its common form: two 5x5 convolutions, each with tanh and a 2x2 average pool, and three dense layers.

    It has 61,706 params for 28x28 images of one channel (and, with ``padding=0``, for 32x32 images). The net of the
    paper has 60,000: its pools have a learned scale and bias, its second convolution connects only some of the
    channels, and its output units are radial basis functions.

    Args:
        classes: the number of logits.
        channels: the channels of the two convolutions.
        hidden: features of the two dense layers before the last.
        activation: after every layer but the last; a function or a layer without state.
        padding: the padding of the first convolution, as in `Conv`; 2 keeps 28x28 images at that size, as in the paper,
            where the digits are padded to 32x32.

    Shapes: images ``(..., h, w, c)`` to logits ``(..., classes)``.

    Raises:
        ValueError: for images smaller than a 5x5 kernel at some layer (below 16x16 with ``padding=0``, 12x12 with 2).

    >>> x = jax.ShapeDtypeStruct((28, 28, 1), jnp.float32)
    >>> count_params(jax.eval_shape(LeNet5().init, jax.random.key(0), x))
    61706

    Source: LeCun, Bottou, Bengio, Haffner 1998, Gradient-based learning applied to document recognition,
    doi:10.1109/5.726791.
    """
    first, second = channels
    wide, narrow = hidden
    net = Serial(
        conv_1=Conv(first, (5, 5), padding=padding),  # (..., 28, 28, 6)
        activation_1=activation,
        pool_1=AvgPool((2, 2)),  # (..., 14, 14, 6)
        conv_2=Conv(second, (5, 5)),  # (..., 10, 10, 16)
        activation_2=activation,
        pool_2=AvgPool((2, 2)),  # (..., 5, 5, 16)
        flatten=Flatten(2),  # (..., 400)
        dense_1=Dense(wide),
        activation_3=activation,
        dense_2=Dense(narrow),
        activation_4=activation,
        out=Dense(classes),
    )
    return cast(Layer, net)
