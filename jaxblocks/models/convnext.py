r"""ConvNeXt: a convolutional net with the proportions of a transformer.

Axis letters: ``...`` batch, h and w height and width, c channels.
"""

import functools
from collections.abc import Callable
from typing import Literal

from jaxblocks import initializers
from jaxblocks.activations import gelu, identity
from jaxblocks.ad.checkpointing.scans import Checkpoint
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import Epsilon, PositiveFloat, PositiveInt
from jaxblocks.core.pairs import Layer, LayerLike, builder
from jaxblocks.layers.combinators import Repeat, Serial, Wire
from jaxblocks.layers.conv import Conv, DepthwiseConv
from jaxblocks.layers.dense import Dense
from jaxblocks.layers.norm import LayerNorm
from jaxblocks.layers.pool import GlobalAvgPool
from jaxblocks.models.layer_scale import LayerScale
from jaxblocks.models.transformer_block import TransformerMLP

__all__ = ["ConvNeXt"]


@builder
def ConvNeXt(
    *,
    classes: PositiveInt = 1000,
    patch_size: PositiveInt = 4,
    depths: tuple[int, ...] = (3, 3, 9, 3),
    widths: tuple[int, ...] = (96, 192, 384, 768),
    layer_scale: PositiveFloat | None = 1e-6,
    activation: Callable = gelu,
    head: Literal["classes", "pooler"] = "classes",
    epsilon: Epsilon = 1e-6,
    out_epsilon: Epsilon = 1e-6,
    checkpoint: Checkpoint | None = None,
    unroll: int | bool | None = None,
) -> Layer:
    r"""A ConvNeXt for images; with the defaults, ConvNeXt-T with 28,589,128 params.

    Patches are mapped to channels by a convolution without overlap, and normalized. Each stage but the first begins
    with a norm and a 2x2 convolution of stride 2. Its blocks are $x + γ ⊙ m(N(d(x)))$ with a depthwise
    7x7 convolution $d$, a norm $N$ over the channels of each position, an MLP $m$ with four times as
    many channels, and a learned scale $γ$ of each channel. The last layers are a global average pool, a norm
    and a dense layer.

    Args:
        classes: the number of logits.
        patch_size: height and width of a patch.
        depths: the number of blocks in each stage.
        widths: the channels of each stage; 128, 256, 512, 1024 with depths 3, 3, 27, 3 is ConvNeXt-B.
        layer_scale: the initial $γ$; ``None`` for none.
        activation: of the MLPs.
        head: what the net returns: logits of ``"classes"``; or ``"pooler"`` the features of the last stage and their
            normalized mean.
        epsilon, out_epsilon: of the norms, and of the last one; 1e-12 in the checkpoints of Hugging Face.
        checkpoint, unroll: of `Repeat`.

    Shapes: images ``(..., h, w, c)`` to logits ``(..., classes)``; with ``"pooler"`` to ``(..., h', w', c')`` and
    ``(..., c')``.

    Raises:
        ValueError: unless there is a width for each depth.

    >>> x = jax.ShapeDtypeStruct((224, 224, 3), jnp.float32)
    >>> count_params(jax.eval_shape(ConvNeXt().init, jax.random.key(0), x))
    28589128

    Source: Liu et al. 2022, A ConvNet for the 2020s, section 2 and appendix A, arXiv:2201.03545. The stochastic depth
    of its training is not part of this net.
    """
    got = f"{len(depths)} depths and {len(widths)} widths"
    require(len(depths) == len(widths) > 0, "as many depths as widths", got, "pass one of each for each stage")
    initial = initializers.truncated_normal(0.02)
    norm = functools.partial(LayerNorm, epsilon=epsilon)
    patches = Conv(widths[0], (patch_size, patch_size), stride=patch_size, kernel_init=initial)
    layers: dict[str, LayerLike] = {"stem": Serial(patches=patches, norm=norm())}
    for i, (depth, width) in enumerate(zip(depths, widths, strict=True)):
        block = Wire(
            lambda f, x: x + f.scale(f.mlp(f.norm(f.conv(x)))),
            conv=DepthwiseConv((7, 7), padding=3, kernel_init=initial),
            norm=norm(),
            mlp=TransformerMLP(4 * width, width, activation=activation, kernel_init=initial),
            scale=identity if layer_scale is None else LayerScale(layer_scale),
        )
        # The norm is before the convolution: the paper found that training diverges without norms where the resolution
        # changes.
        halve = dict(norm=norm(), conv=Conv(width, (2, 2), stride=2, kernel_init=initial)) if i else {}
        layers[f"stage_{i + 1}"] = Serial(**halve, blocks=Repeat(block, depth, checkpoint=checkpoint, unroll=unroll))
    pool, norm_of_mean = GlobalAvgPool(2), LayerNorm(epsilon=out_epsilon)
    if head == "pooler":
        summary = Wire(lambda f, x: (x, f.norm(f.pool(x))), pool=pool, norm=norm_of_mean)
        return Serial(**layers, pooled=summary)  # type: ignore[return-value]
    return Serial(**layers, pool=pool, norm=norm_of_mean, out=Dense(classes, kernel_init=initial))  # type: ignore[return-value]
