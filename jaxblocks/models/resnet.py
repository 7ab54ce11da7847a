r"""Residual networks: each block learns a residual, which is added to its input.

Axis letters: ``...`` batch, h and w height and width, c channels.
"""

import functools
from typing import Any, Literal

import jax.numpy as jnp

from jaxblocks import initializers
from jaxblocks.activations import relu
from jaxblocks.ad.checkpointing.scans import Checkpoint
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import PositiveInt
from jaxblocks.core.pairs import LayerLike, StatefulLayer, builder
from jaxblocks.layers.combinators import Repeat, Serial, Wire
from jaxblocks.layers.conv import Conv
from jaxblocks.layers.dense import Dense
from jaxblocks.layers.norm import BatchNorm
from jaxblocks.layers.pool import GlobalAvgPool, MaxPool

__all__ = ["ResNet"]

_BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}


@builder
def ResNet(
    depth: int | tuple[int, ...],
    *,
    classes: PositiveInt = 1000,
    width: PositiveInt = 64,
    widths: tuple[int, ...] | None = None,
    bottleneck: bool | None = None,
    bottleneck_width: PositiveInt | None = None,
    groups: PositiveInt = 1,
    stem: Literal["7x7", "3x3", "deep"] = "7x7",
    stride_in: Literal["3x3", "1x1"] = "3x3",
    first_stride: PositiveInt = 1,
    shortcut: Literal["projection", "zero_padding"] = "projection",
    head: Literal["classes", "pooler"] = "classes",
    checkpoint: Checkpoint | None = None,
    unroll: int | bool | None = None,
) -> StatefulLayer:
    r"""A residual network for images: a stem, stages of residual blocks, a global average pool, and one dense layer.

    A block is $y = relu(Sx + f(x))$. $f$ is two 3x3 convolutions, or in a bottleneck 1x1, 3x3 and
    1x1, the last with four times the channels; each is followed by batch norm, and all but the last by relu.
    $S$ is the identity, or in the first block of a stage, where shapes change, a 1x1 convolution with batch
    norm (``shortcut``). The other blocks of a stage are equal and stacked by `Repeat`, so the size of the program and
    its compile time (except on CPU, see ``unroll``) depend on the number of stages and not on the number of blocks.

    Params, with 1000 classes: 11,689,512 (18), 21,797,672 (34), 25,557,032 (50), 44,549,160 (101), 60,192,808 (152).

    Relatives: ResNeXt-50 32x4d is ``ResNet(50, groups=32, bottleneck_width=128)``, the wide ResNet-50-2
    ``ResNet(50, bottleneck_width=128)``, ResNet-50-C ``ResNet(50, stem="deep")``, and the ResNet-20 for CIFAR
    ``ResNet((3, 3, 3), classes=10, width=16, stem="3x3", shortcut="zero_padding")``.

    Args:
        depth: 18, 34, 50, 101 or 152; or the number of blocks in each stage, such as ``(2, 2, 2, 2)``.
        classes: the number of logits.
        width: channels of the stem; stage i has ``width * 2**i`` channels (four times as many after a bottleneck).
        widths: of the stages, in place of these; of bottlenecks without the factor of four.
        bottleneck: by default ``True`` for depths from 50 on, ``False`` for shallower nets and for numbers of blocks.
        bottleneck_width: channels of the 3x3 convolution of a bottleneck in the first stage, by default ``width``;
            ``bottleneck_width * 2**i`` in stage i.
        groups: of the 3x3 convolution of a bottleneck, as in `Conv`.
        stem: ``"7x7"`` with stride 2 and a max pool of stride 2; ``"deep"``, three 3x3 convolutions instead, the first
            two to half the channels; or for small images ``"3x3"`` with stride 1 and no pool.
        stride_in: the convolution of a bottleneck that has stride 2: ``"3x3"`` as in torchvision (there called v1.5,
            more accurate by about half a percent), or the first ``"1x1"`` as in the paper. (Without bottlenecks it is
            always the first.)
        first_stride: of the first block of the first stage.
        shortcut: $S$ where shapes change: a ``"projection"`` (in the paper option B), or ``"zero_padding"``
            (option A), which takes every second position and adds channels of zeros at the end, without params.
        head: what the net returns: logits of ``"classes"``; or ``"pooler"`` the features of the last stage and their
            mean.
        checkpoint, unroll: of `Repeat`, which on CPU unrolls the blocks of a stage: with ``unroll=1``, a training step
            with stages of five blocks takes 13 times as long there, but compiles faster.

    Side inputs: ``train``, as in `BatchNorm` (and ``mask`` with it: ``True`` at valid entries of the leading axes). The
    state is its running statistics (momentum 0.9, epsilon 1e-5, as in torchvision).

    Shapes: images ``(..., h, w, c)`` to logits ``(..., classes)``; with ``"pooler"`` to ``(..., h', w', c')`` and
    ``(..., c')``.

    Raises:
        ValueError: for an option that is not listed, ``groups`` or a ``bottleneck_width`` without bottlenecks; for
            evaluation before the first update.

    >>> net = ResNet(18)
    >>> x = jax.ShapeDtypeStruct((1, 224, 224, 3), jnp.float32)
    >>> params, state = jax.eval_shape(net.init, jax.random.key(0), x)
    >>> count_params(params)
    11689512

    Source: He, Zhang, Ren, Sun 2016, Deep residual learning for image recognition, table 1, arXiv:1512.03385; Goyal et
    al. 2017, Accurate, large minibatch SGD, section 5.1 (``stride_in="3x3"``), arXiv:1706.02677; Xie et al. 2017,
    Aggregated residual transformations for deep neural networks (``groups``), arXiv:1611.05431; Zagoruyko & Komodakis
    2016, Wide residual networks (``bottleneck_width``), arXiv:1605.07146; He et al. 2019, Bag of tricks for image
    classification (``stem="deep"``), arXiv:1812.01187.
    """
    if isinstance(depth, int) and depth not in _BLOCKS:
        repair = "for another one pass the number of blocks in each stage, as in ResNet((2, 2, 2, 2), bottleneck=False)"
        require(False, f"depth to be one of {', '.join(map(str, _BLOCKS))}", depth, repair)
    stages = _BLOCKS[depth] if isinstance(depth, int) else tuple(depth)
    if bottleneck is None:
        bottleneck = isinstance(depth, int) and depth >= 50

    plain = groups == 1 and bottleneck_width is None
    expected, got = "bottlenecks for groups and bottleneck_width", f"bottleneck={bottleneck}"
    require(bottleneck or plain, expected, got, "pass bottleneck=True, or only width")

    expected, got = f"one of the widths for each of {len(stages)} stages, without bottleneck_width", f"widths={widths}"
    fits = widths is None or (len(widths) == len(stages) and bottleneck_width is None)
    repair = f"pass widths={tuple(width * 2**i for i in range(len(stages)))} without bottleneck_width"
    require(fits, expected, f"{got} and bottleneck_width={bottleneck_width}", repair)
    features_of = tuple(width * 2**i for i in range(len(stages))) if widths is None else tuple(widths)

    convs = {"7x7": [(width, 7, 2)], "3x3": [(width, 3, 1)]}.get(
        stem, [(width // 2, 3, 2), (width // 2, 3, 1), (width, 3, 1)]
    )
    first: dict[str, LayerLike] = {}
    for i, (features, size, stride) in enumerate(convs, 1):
        end = f"_{i}" if len(convs) > 1 else ""
        first |= {f"conv{end}": _conv(features, size, stride), f"norm{end}": _norm(), f"relu{end}": relu}
    if stem != "3x3":
        first["pool"] = MaxPool((3, 3), stride=2, padding=1)
    layers = {"stem": Serial(**first)}
    for i, blocks in enumerate(stages):
        repair = f"pass {tuple(max(1, n) for n in stages)}"
        require(blocks > 0, "an integer >= 1 for the blocks of each stage", depth, repair)
        inner = features_of[i] if bottleneck_width is None else bottleneck_width * 2**i
        block = functools.partial(_Block, features_of[i], inner if bottleneck else None, groups)
        stride = first_stride if i == 0 else 2
        # The first stage keeps the resolution; its shortcut is a projection only where its output has other channels.
        changes = stride > 1 or width != features_of[0] * (4 if bottleneck else 1)
        stage = {"first": block(stride, stride_in, shortcut if changes else "identity")}
        if blocks > 1:
            stage["blocks"] = Repeat(block(), blocks - 1, checkpoint=checkpoint, unroll=unroll)
        layers[f"stage_{i + 1}"] = Serial(**stage)
    if head == "pooler":
        return Serial(**layers, pooled=Wire(lambda f, x: (x, f.pool(x)), pool=GlobalAvgPool(2)))  # type: ignore[return-value]
    return Serial(**layers, pool=GlobalAvgPool(2), out=Dense(classes))  # type: ignore[return-value]


def _Block(features, inner, groups, stride=1, stride_in="3x3", shortcut="identity"):
    """relu(S x + f(x)) with a shortcut S; with ``inner`` channels between 1x1 convolutions, or ``None`` of them."""
    if inner is not None:
        early, features = stride_in == "1x1", 4 * features
        convs = _conv(inner, 1, stride if early else 1), _conv(inner, 3, 1 if early else stride, groups)
        convs += (_conv(features, 1),)
    else:
        convs = _conv(features, 3, stride), _conv(features, 3)
    body = {}
    for i, conv in enumerate(convs, 1):
        body |= {f"conv_{i}": conv, f"norm_{i}": _norm(), f"relu_{i}": relu}
    body.popitem()  # the last one is applied to the sum
    if shortcut == "projection":
        # A projection has a norm of its own, and no relu before the sum.
        skip = Serial(conv=_conv(features, 1, stride), norm=_norm())
        return Wire(lambda f, x: relu(f.skip(x) + f.body(x)), body=Serial(**body), skip=skip)
    if shortcut == "zero_padding":
        return Wire(lambda f, x: relu(_strided(x, stride, features) + f.body(x)), body=Serial(**body))
    return Wire(lambda f, x: relu(x + f.body(x)), body=Serial(**body))


def _strided(x, stride, features):
    """Every ``stride``-th position of x, with channels of zeros up to ``features``."""
    more = [(0, 0)] * (x.ndim - 1) + [(0, features - x.shape[-1])]
    return jnp.pad(x[..., ::stride, ::stride, :], more)


def _conv(features, size, stride=1, groups=1):
    # He's variance for the backward pass, fan_out, as in torchvision.
    he = initializers.variance_scaling(2.0, "fan_out", "normal")
    # No bias: the batch norm after the convolution would subtract it.
    options: dict[str, Any] = dict(stride=stride, padding=size // 2, groups=groups, use_bias=False, kernel_init=he)
    return Conv(features, (size, size), **options)


def _norm():
    # 0.9 here is the momentum 0.1 of PyTorch, which weighs the new batch.
    return BatchNorm(momentum=0.9, epsilon=1e-5)
