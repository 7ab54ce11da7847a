r"""VGG: 3x3 convolutions, max pools, and three wide dense layers.

Axis letters: ``...`` batch, h and w height and width, c channels.
"""

from typing import Literal, TypedDict, Unpack, overload

from jaxblocks import initializers
from jaxblocks.activations import relu
from jaxblocks.checks.expectations import PositiveInt, Rate
from jaxblocks.core.pairs import Layer, StatefulLayer, builder
from jaxblocks.layers.combinators import Serial
from jaxblocks.layers.conv import Conv
from jaxblocks.layers.dense import Dense
from jaxblocks.layers.dropout import Dropout
from jaxblocks.layers.norm import BatchNorm
from jaxblocks.layers.pool import MaxPool, adaptive_avg_pool
from jaxblocks.layers.reshaping import flatten

__all__ = ["VGG"]

_CONVOLUTIONS = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}


class _Options(TypedDict, total=False):
    """The options of `VGG` without ``batch_norm``, which decides on the type of the layer."""

    classes: int
    width: int
    hidden: int
    pool_size: int
    dropout: float


@overload
def VGG(
    depth: Literal[11, 13, 16, 19], *, batch_norm: Literal[False] = False, **options: Unpack[_Options]
) -> Layer: ...
@overload
def VGG(depth: Literal[11, 13, 16, 19], *, batch_norm: Literal[True], **options: Unpack[_Options]) -> StatefulLayer: ...
@builder
def VGG(
    depth: Literal[11, 13, 16, 19],
    *,
    classes: PositiveInt = 1000,
    width: PositiveInt = 64,
    hidden: PositiveInt = 4096,
    pool_size: PositiveInt = 7,
    batch_norm: bool = False,
    dropout: Rate = 0.5,
) -> Layer | StatefulLayer:
    r"""Five blocks of 3x3 convolutions with relu, each with a max pool that halves the image, and three dense layers.

    Blocks have 1, 2, 4, 8 and 8 times ``width`` channels; ``depth`` counts the convolutions and the dense layers.
    VGG-16 has 138,357,544 params (VGG-19 143,667,240), three quarters of them in the first dense layer.

    Args:
        depth: 11, 13, 16 or 19 (the paper's configurations A, B, D, E).
        classes: the number of logits.
        width: channels of the first block.
        hidden: features of the two dense layers before the last.
        pool_size: height and width of the output of an adaptive average pool before the dense layers, as in
            torchvision, so that images of any size from 32x32 on are valid. For 224x224 images it changes nothing.
        batch_norm: after each convolution, before its relu (momentum 0.9, epsilon 1e-5; 138,365,992 params for depth
            16); then the net has a state, and ``apply`` reads ``train`` and ``mask`` as `BatchNorm` does.
        dropout: the rate after the two hidden dense layers; above 0, ``apply`` reads ``train`` and ``key``.

    Shapes: images ``(..., h, w, c)`` to logits ``(..., classes)``.

    Raises:
        ValueError: for a depth that is not listed, or images smaller than 32x32.

    >>> x = jax.ShapeDtypeStruct((224, 224, 3), jnp.float32)
    >>> count_params(jax.eval_shape(VGG(16).init, jax.random.key(0), x))
    138357544

    Source: Simonyan & Zisserman 2015, Very deep convolutional networks for large-scale image recognition, table 1,
    arXiv:1409.1556.
    """
    net = {}
    for i, convolutions in enumerate(_CONVOLUTIONS[depth]):
        block = {}
        for j in range(1, convolutions + 1):
            block[f"conv_{j}"] = Conv(width * min(2**i, 8), (3, 3), padding=1, kernel_init=initializers.he_normal())
            if batch_norm:
                block[f"norm_{j}"] = BatchNorm(momentum=0.9, epsilon=1e-5)
            block[f"relu_{j}"] = relu
        net[f"block_{i + 1}"] = Serial(**block, pool=MaxPool((2, 2)))

    def pool_and_flatten(x):
        return flatten(adaptive_avg_pool(x, (pool_size, pool_size)), spatial=2)  # (..., 7 7 512)

    net["flatten"] = pool_and_flatten
    for i in (1, 2):
        net |= {f"dense_{i}": Dense(hidden, kernel_init=initializers.he_normal()), f"relu_{i}": relu}
        if dropout:
            net[f"dropout_{i}"] = Dropout(dropout)
    return Serial(**net, out=Dense(classes))
