r"""The U-Net: down to small images and up again, with bridges between equal sizes; the denoiser of diffusion.

A U-Net is a recursion. One level of it refines the image, hands a half-size copy to the level below, takes the answer
back at full size, and refines it again beside all that it had seen on the way down::

    refine(x) = up(join(down(x), grow(refine(shrink(down(x))))))

Axis letters: ``...`` batch, h and w height and width, c channels, d the features of the condition.
"""

import functools
import operator

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxblocks import initializers
from jaxblocks.activations import identity
from jaxblocks.activations import silu as swish
from jaxblocks.checks import describe, require_floating, require_whole
from jaxblocks.core import Layer, builder
from jaxblocks.layers.combinators import Residual, Serial, Wire
from jaxblocks.layers.conv import Conv
from jaxblocks.layers.dense import Dense
from jaxblocks.layers.dropout import Dropout
from jaxblocks.layers.embedding import Embedding
from jaxblocks.layers.mlp import MLP
from jaxblocks.layers.norm import GroupNorm
from jaxblocks.models.tokens import SelfAttention, as_tokens
from jaxblocks.precision import wide_dtype, widen
from jaxblocks.sliding_windows import check_spatial

__all__ = ["UNet", "time_features"]


@builder
def UNet(
    channels: int,
    *,
    width: int = 128,
    multipliers: tuple[int, ...] = (1, 2, 2, 2),
    blocks: int = 2,
    attention: tuple[int, ...] = (1,),
    heads: int = 1,
    time: bool = True,
    labels: int | None = None,
    groups: int | None = None,
    dropout: float | int = 0.1,
) -> Layer:
    r"""A U-Net of residual blocks and attention; with the defaults, the denoiser of Ho et al. for 32x32 images.

    Each residual block is :math:`y = Sx + f(x, e)` with f twice group norm, swish and a 3x3 convolution; the condition
    :math:`e`, made of time and label, is added between the two, and :math:`S` is the identity, or a 1x1 convolution
    where the channels change. The second convolution and the last one of the net begin at zero: at the start every
    block is its :math:`S`, and the net returns zeros.

    Args:
        channels: of the output: those of the image for a denoiser, classes for segmentation (the output is logits).
        width: channels of the first level.
        multipliers: the width of each level, in multiples of ``width``. Every level but the first works at half the
            size of the one before it, so height and width must be divisible by ``2 ** (len(multipliers) - 1)``.
        blocks: residual blocks of a level on the way down; there is one more on the way up.
        attention: the levels, counted from 0, whose blocks are each followed by attention over all places. There is
            attention in the middle too, at the bottom of the net; but none anywhere with ``attention=()``.
        heads: of attention.
        time: ``True`` reads the side input ``time``; ``False`` for a U-Net without it.
        labels: how many class labels there are, if the side input ``label`` is read.
        groups: of the group norms, by default ``width // 4``: at the first level four channels each (32 in the paper).
        dropout: of the values before the second convolution of a block; with ``dropout=0`` no key is needed to train.

    Side inputs of ``apply`` (and of ``init``), each one number per image (of the shape of the batch axes), or one for
    all images:
        time: floating-point, 0 for data and 1 for noise: 1000 ``time`` is the paper's step. Read with ``time=True``.
        label: whole numbers from 0 to ``labels - 1``. ``None``, and the number ``labels`` (for single images), is the
            null label of classifier-free guidance: it has a row of its own in the table. Read with ``labels=``.
        train, key: read with ``dropout`` above 0.

    Shapes: images ``(..., h, w, c)`` to ``(..., h, w, channels)``.

    Raises:
        ValueError: for an image whose sides cannot be halved so often, a time or label of another shape than the batch
            axes, a level in ``attention`` that is not there; without ``time`` where it is read.
        TypeError: for a time of whole numbers.

    >>> net = UNet(1, width=8, multipliers=(1, 2), blocks=1, labels=10, dropout=0)
    >>> x, t = jnp.zeros((5, 8, 8, 1)), jnp.linspace(0, 1, 5)
    >>> params = jax.eval_shape(net.init, jax.random.key(0), x, time=t)  # jax.jit(net.init) draws them
    >>> denoise = lambda params, x: net.apply(params, x, time=t, label=jnp.arange(5))  # label=None: unconditional
    >>> jax.eval_shape(denoise, params, x).shape, sorted(side_inputs(net))
    ((5, 8, 8, 1), ['label', 'time'])

    Sources: Ronneberger, Fischer, Brox 2015, U-Net; Ho, Jain, Abbeel 2020, Denoising diffusion probabilistic models,
    appendix B, whose net for CIFAR-10 has 35,746,307 params; Ho & Salimans 2022, Classifier-free diffusion guidance
    (the null label).
    """
    for name, value in {"channels": channels, "width": width, "blocks": blocks, "heads": heads}.items():
        require_whole("UNet", name, value)
    if not multipliers:
        raise ValueError("UNet expects at least one level, but multipliers=() came; (1, 2, 2) makes three.")
    wrong = [level for level in attention if level not in range(len(multipliers))]
    if wrong:
        raise ValueError(
            f"UNet expects attention to name levels from 0 to {len(multipliers) - 1}, but {wrong[0]!r} came; levels "
            "are counted from 0 (full size), one for each of multipliers."
        )
    groups = max(width // 4, 1) if groups is None else require_whole("UNet", "groups", groups)
    widths = tuple(width * multiplier for multiplier in multipliers)
    block = functools.partial(
        _Block, heads=heads, groups=groups, dropout=dropout, conditioned=time or labels is not None
    )

    conditions = {"time": _Time(width)} if time else {}
    if labels is not None:
        conditions["label"] = _Label(labels, 4 * width)

    layers = {"stem": Conv(width, (3, 3), padding="same")}
    for level, features in enumerate(widths):
        layers |= {f"down_{level}_{i}": block(features, attend=level in attention) for i in range(blocks)}
        if level + 1 < len(widths):
            layers[f"shrink_{level}"] = Conv(features, (3, 3), stride=2, padding="same")
            layers[f"grow_{level}"] = Serial(double=_double, conv=Conv(widths[level + 1], (3, 3), padding="same"))
        layers |= {f"up_{level}_{i}": block(features, attend=level in attention) for i in range(blocks + 1)}
    layers["middle_0"] = block(widths[-1], attend=bool(attention))
    layers["middle_1"] = block(widths[-1], attend=False)
    last = Conv(channels, (3, 3), padding="same", kernel_init=initializers.zeros)
    layers["out"] = Serial(norm=_Norm(groups), activation=swish, conv=last)

    def forward(f, x):
        _require_image(x, 2 ** (len(widths) - 1))
        layer = vars(f)
        e = [layer[name](x) for name in conditions]  # (..., d), one or two or none
        e = (functools.reduce(operator.add, e),) if e else ()

        def refine(level, x):
            """The U-Net from this level downwards."""
            seen = [x]
            for i in range(blocks):
                x = layer[f"down_{level}_{i}"](x, *e)
                seen.append(x)
            if level + 1 < len(widths):
                x = layer[f"grow_{level}"](refine(level + 1, layer[f"shrink_{level}"](x)))
            else:
                x = f.middle_1(f.middle_0(x, *e), *e)
            for i in range(blocks + 1):
                x = layer[f"up_{level}_{i}"](jnp.concatenate([x, seen.pop()], -1), *e)
            return x

        return f.out(refine(0, f.stem(x)))

    return Wire(forward, **conditions, **layers)


def time_features(time: Float[Array, "*batch"], features: int) -> Float[Array, "*batch features"]:
    r"""Waves of a time in [0, 1]: :math:`\sin(1000\,t\,r_i)` and then :math:`\cos(1000\,t\,r_i)`, i = 0, ..., n - 1.

    With t ``time``, n half of ``features`` (even), and rates :math:`r_i = 10000^{-i/(n-1)}` from 1 down to 1/10000: the
    fastest waves tell steps of 1/1000 apart, the slowest rise all the way from 0 to 1. Float32 or wider.

    Raises ``ValueError`` for odd ``features`` and ``TypeError`` for a time of whole numbers.

    >>> time_features(jnp.array([0.0, 0.001]), 2)
    Array([[0.        , 1.        ],
           [0.84147096, 0.5403023 ]], dtype=float32)

    Source: Ho, Jain, Abbeel 2020, Denoising diffusion probabilistic models (their steps are 1000 t); Vaswani et al.
    2017, section 3.5.
    """
    require_floating("time_features", time=time)
    if require_whole("time_features", "features", features) % 2:
        raise ValueError(f"time_features expects an even number of features, sines and cosines, but {features} came.")
    n = features // 2
    time = widen(time)
    rates = 1000 * 10000.0 ** (-np.arange(n) / max(n - 1, 1))
    angles = time[..., None] * jnp.broadcast_to(jnp.asarray(rates, time.dtype), (*time.shape, n))  # (*batch, n)
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1)


# ---- the blocks -------------------------------------------------------------------------------


def _Block(features, *, attend, heads, groups, dropout, conditioned):
    """The residual block S x + f(x, e); with ``attend``, every place then looks at all places, x + attention(x)."""
    last = Conv(features, (3, 3), padding="same", kernel_init=initializers.zeros)
    layers = {
        "skip": _Skip(features),
        "first": Serial(norm=_Norm(groups), activation=swish, conv=Conv(features, (3, 3), padding="same")),
        "second": Serial(
            norm=_Norm(groups), activation=swish, dropout=Dropout(dropout) if dropout else identity, conv=last
        ),
    }
    if conditioned:
        layers["condition"] = Serial(activation=swish, dense=Dense(features))
    if attend:
        layers["look"] = Residual(norm=_Norm(groups), attention=_PlaceAttention(heads))

    def forward(f, x, *e):
        h = f.first(x)  # (..., h, w, features)
        if conditioned:
            h = h + jnp.broadcast_to(f.condition(*e)[..., None, None, :], h.shape)
        y = f.skip(x) + f.second(h)
        return f.look(y) if attend else y

    return Wire(forward, **layers)


def _Skip(features):
    """The identity, or where the channels change a 1x1 convolution."""
    convolution = Conv(features, (1, 1))

    def init(key, x):
        return convolution.init(key, x) if x.shape[-1] != features else ()

    def apply(params, x):
        return convolution.apply(params, x) if x.shape[-1] != features else x

    return Layer(init, apply)


def _PlaceAttention(heads):
    """Attention among the places of an image, (..., h, w, c) to the same; no place is masked."""
    attention = SelfAttention(heads, out_kernel_init=initializers.zeros)

    def init(key, x):
        return attention.init(key, jax.eval_shape(as_tokens, x))

    def apply(params, x):
        return attention.apply(params, as_tokens(x)).reshape(x.shape)

    return Layer(init, apply)


def _Norm(groups):
    return GroupNorm(groups, spatial=2, epsilon=1e-6)


def _double(x):
    """Every pixel four times: (..., h, w, c) to (..., 2 h, 2 w, c)."""
    return x.repeat(2, -3).repeat(2, -2)


def _Time(width):
    """Features of the side input ``time``, (..., 4 width)."""

    def forward(f, x, *, time=None):
        if time is None:
            raise ValueError(
                "UNet reads the side input time, but none came; pass time=..., one number from 0 to 1 for each image "
                "(to init and to apply), or build it with time=False."
            )
        time = _for_each_image("time", time, x).astype(wide_dtype(x.dtype))
        return f.mlp(time_features(time, width).astype(x.dtype))

    return Wire(forward, mlp=MLP(4 * width, 4 * width, activation=swish))


def _Label(labels, features):
    """A row for each label, and one for none, (..., features)."""
    labels = require_whole("UNet", "labels", labels)

    def forward(f, x, *, label=None):
        return f.table(_for_each_image("label", labels if label is None else label, x)).astype(x.dtype)

    return Wire(forward, table=Embedding(labels + 1, features))


# ---- what must fit ----------------------------------------------------------------------------


def _for_each_image(name, value, x):
    """A side input with one number for each image, or one for all, as one for each."""
    value, batch = jnp.asarray(value), x.shape[:-3]
    if name == "time":
        require_floating("UNet", time=value)
    if value.shape not in ((), batch):
        raise ValueError(
            f"UNet expects {name} to be one number for each image, of shape {batch} as the batch axes of x, "
            f"{describe(x)}, or one for all, but {describe(value)} came; leave out axes of length 1."
        )
    return jnp.broadcast_to(value, batch)


def _require_image(x, factor):
    check_spatial(x, 2)
    height, width = x.shape[-3:-1]
    if height % factor or width % factor:
        raise ValueError(
            f"UNet expects images whose height and width are divisible by {factor}, since they are halved before each "
            f"level but the first, but {describe(x)} came; pad the image, or leave out a level."
        )
