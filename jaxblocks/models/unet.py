r"""The U-Net: a net at several resolutions with skip connections between equal ones; the denoiser of diffusion models.

A U-Net is a recursion over levels. Each level applies residual blocks (the encoder), the next level at half the
resolution, and residual blocks again (the decoder) to the concatenation with the outputs of its encoder::

    level(x) = up(concatenate(down(x), upsample(next_level(downsample(down(x))))))

Axis letters: ``...`` batch, h and w height and width, c channels, d the features of the condition.
"""

import functools
import math
import operator
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxblocks import initializers
from jaxblocks.activations import identity
from jaxblocks.activations import silu as swish
from jaxblocks.backend.precision import wide_dtype, widen
from jaxblocks.checks.errors import describe, require
from jaxblocks.checks.expectations import Epsilon, PositiveInt, Rate, checked
from jaxblocks.core.pairs import Layer, LayerLike, builder
from jaxblocks.layers.combinators import Serial, Wire
from jaxblocks.layers.conv import Conv
from jaxblocks.layers.dense import Dense
from jaxblocks.layers.dropout import Dropout
from jaxblocks.layers.embedding import Embedding
from jaxblocks.layers.norm import GroupNorm
from jaxblocks.layers.reshaping import UpSample
from jaxblocks.models.image_tokens import SelfAttention, as_tokens

__all__ = ["LabelEmbedding", "TimeEmbedding", "UNet", "time_features"]


@builder
def UNet(
    channels: PositiveInt,
    *,
    width: PositiveInt = 128,
    multipliers: tuple[int, ...] = (1, 2, 2, 2),
    blocks: PositiveInt = 2,
    attention_levels: tuple[int, ...] = (1,),
    middle_attention: bool | None = None,
    heads: PositiveInt = 1,
    head_dim: PositiveInt | None = None,
    time: bool = True,
    frequency_shift: Literal[0, 1] = 1,
    cosines_first: bool = False,
    classes: PositiveInt | None = None,
    groups: PositiveInt | None = None,
    epsilon: Epsilon = 1e-6,
    downsample_padding: Literal["after", "both"] = "after",
    dropout: Rate = 0.1,
) -> Layer:
    r"""A U-Net of residual blocks and attention; with the defaults, the denoiser of Ho et al. for 32x32 images.

    Each residual block is $y = Sx + f(x, e)$, where f applies group norm, swish and a 3x3 convolution twice. The
    condition $e$, computed from time and label, is added after the first convolution. $S$ is the identity,
    or a 1x1 convolution where the number of channels changes. The second convolution of each block and the last one of
    the net are zero at initialization, so each block is initially its $S$, and the net returns zeros.

    Args:
        channels: channels of the output: those of the image for a denoiser, or the number of classes for segmentation
            (the output is logits).
        width: channels of the first level.
        multipliers: the width of each level, in multiples of ``width``. Each level but the first has half the
            resolution of the previous one, so height and width must be divisible by ``2 ** (len(multipliers) - 1)``.
        blocks: residual blocks of each level in the encoder; the decoder has one more per level.
        attention_levels: the levels, counted from 0, whose blocks are each followed by attention over all pixels.
        middle_attention: whether there is also attention in the middle, after the last level; by default where there
            is some at a level.
        heads, head_dim: heads of attention, or features of a head, whose number then grows with the channels.
        time: ``True`` reads the side input ``time``; ``False`` for a U-Net without it.
        frequency_shift, cosines_first: as in `time_features`.
        classes: the number of class labels, if the side input ``label`` is read.
        groups: groups of the group norms, by default ``width // 4``, four channels each at the first level (the paper
            has 32 groups).
        epsilon: of the group norms.
        downsample_padding: where a row and a column of zeros are added before the resolution is halved: ``"after"`` the
            last ones, or at ``"both"`` ends.
        dropout: the rate before the second convolution of a block; with ``dropout=0`` training needs no key.

    Side inputs of ``apply`` (and of ``init``), each one number per image (of the shape of the batch axes), or one for
    all images:
        time: floating-point, 0 for data and 1 for noise: 1000 ``time`` is the step of the paper. Read with
            ``time=True``.
        label: integers from 0 to ``classes - 1``. ``None``, or the number ``classes`` (for single images), is the null
            label of classifier-free guidance, which has its own embedding. Read with ``classes=``.
        train, key: read with ``dropout`` above 0.

    Shapes: images ``(..., h, w, c)`` to ``(..., h, w, channels)``.

    The default net of the library diffusers, ``UNet2DModel()``, is ``UNet(3, width=224, multipliers=(1, 2, 3, 4),
    attention_levels=(1, 2, 3), head_dim=8, groups=32, epsilon=1e-5, downsample_padding="both", frequency_shift=0,
    cosines_first=True, dropout=0)``.

    Raises:
        ValueError: for an image whose height or width is not divisible as above, a time or label of another shape than
            the batch axes, a level in ``attention_levels`` that does not exist, or a missing ``time``.
        TypeError: for a time that is an integer.

    >>> net = UNet(1, width=8, multipliers=(1, 2), blocks=1, classes=10, dropout=0)
    >>> x, t = jnp.zeros((5, 8, 8, 1)), jnp.linspace(0, 1, 5)
    >>> # jax.jit(net.init) makes arrays
    >>> params = jax.eval_shape(net.init, jax.random.key(0), x, time=t)
    >>> # label=None: unconditional
    >>> denoise = lambda params, x: net.apply(params, x, time=t, label=jnp.arange(5))
    >>> jax.eval_shape(denoise, params, x).shape, sorted(side_inputs(net))
    ((5, 8, 8, 1), ['label', 'time'])

    Source: Ronneberger, Fischer, Brox 2015, U-Net, arXiv:1505.04597; Ho, Jain, Abbeel 2020, Denoising diffusion
    probabilistic models, appendix B, whose net for CIFAR-10 has 35,746,307 params, arXiv:2006.11239; Ho & Salimans
    2022, Classifier-free diffusion guidance (the null label), arXiv:2207.12598.
    """
    require(len(multipliers) > 0, "at least one level", "multipliers=()", "write (1, 2, 2) for three levels")
    for level in attention_levels:
        expected = f"attention_levels from 0 to {len(multipliers) - 1}"
        require(level in range(len(multipliers)), expected, level, "count levels from 0 (full resolution)")
    # head_dim divides each width, heads is one number for all levels.
    expected, got = "one of heads and head_dim", f"heads={heads} and head_dim={head_dim}"
    require(heads == 1 or head_dim is None, expected, got, "leave out heads")
    norm = functools.partial(GroupNorm, groups=groups or max(width // 4, 1), spatial=2, epsilon=epsilon)
    widths = tuple(width * multiplier for multiplier in multipliers)
    for features in widths:
        if head_dim and features % head_dim:
            near = max(n for n in range(1, head_dim) if math.gcd(*widths) % n == 0)
            got = f"head_dim={head_dim} and {features} channels"
            require(False, "head_dim to divide the channels of each level", got, f"pass head_dim={near}")
    attention = functools.partial(_PixelAttention, heads=heads, head_dim=head_dim)
    conditioned = time or classes is not None
    block = functools.partial(_Block, attention=attention, norm=norm, dropout=dropout, conditioned=conditioned)

    conditions = {}
    if time:
        conditions["time"] = TimeEmbedding(width, frequency_shift=frequency_shift, cosines_first=cosines_first)
    if classes is not None:
        conditions["label"] = LabelEmbedding(classes, 4 * width)

    layers: dict[str, LayerLike] = {"stem": Conv(width, (3, 3), padding="same")}
    for level, features in enumerate(widths):
        layers |= {f"down_{level}_{i}": block(features, attend=level in attention_levels) for i in range(blocks)}
        if level + 1 < len(widths):
            # (0, 1) is TensorFlow's "same" for a stride of 2, as in the published code; (1, 1) is the default of
            # diffusers.
            padding = [(1, 1) if downsample_padding == "both" else (0, 1)] * 2
            layers[f"downsample_{level}"] = Conv(features, (3, 3), stride=2, padding=padding)
            layers[f"upsample_{level}"] = Serial(
                nearest=UpSample((2, 2)), conv=Conv(widths[level + 1], (3, 3), padding="same")
            )
        layers |= {f"up_{level}_{i}": block(features, attend=level in attention_levels) for i in range(blocks + 1)}
    layers["middle_0"] = block(
        widths[-1], attend=bool(attention_levels) if middle_attention is None else middle_attention
    )
    layers["middle_1"] = block(widths[-1], attend=False)
    last = Conv(channels, (3, 3), padding="same", kernel_init=initializers.zeros)
    layers["out"] = Serial(norm=norm(), activation=swish, conv=last)

    def forward(f, x):
        _require_image(x, 2 ** (len(widths) - 1))
        layer = vars(f)
        e = [layer[name](x) for name in conditions]  # (..., d), zero to two of them
        # The embeddings of time and label are added, so that blocks have one condition.
        e = (functools.reduce(operator.add, e),) if e else ()

        def apply_from(level, x):
            """Apply the U-Net from this level on."""
            skips = [x]
            for i in range(blocks):
                x = layer[f"down_{level}_{i}"](x, *e)
                skips.append(x)
            if level + 1 < len(widths):
                x = layer[f"upsample_{level}"](apply_from(level + 1, layer[f"downsample_{level}"](x)))
            else:
                x = f.middle_1(f.middle_0(x, *e), *e)
            for i in range(blocks + 1):
                # The input of the level is a skip too, so there is one block more on the way up.
                x = layer[f"up_{level}_{i}"](jnp.concatenate([x, skips.pop()], -1), *e)
            return x

        return f.out(apply_from(0, f.stem(x)))

    return Wire(forward, **conditions, **layers)  # type: ignore[return-value]


@checked
def time_features(
    time: Float[Array, "*batch"],
    features: PositiveInt,
    *,
    frequency_shift: Literal[0, 1] = 1,
    cosines_first: bool = False,
) -> Float[Array, "*batch features"]:
    r"""Sinusoidal encoding of a time in [0, 1]: $sin(1000 t r_i)$, then $cos(1000 t r_i)$.

    With t ``time``, n half of ``features``, i = 0, ..., n - 1, and frequencies $r_i = 10000^{-i/(n-s)}$, with s
    ``frequency_shift``. For s = 1 they are from 1 down to 1/10000: the highest separates times that differ by 1/1000,
    the lowest is monotone from 0 to 1.

    Args:
        time: floating-point.
        features: even.
        frequency_shift: s; 1 in the code of Ho et al., 0 in Vaswani et al. and by default in diffusers.
        cosines_first: whether the cosines come before the sines, as by default in diffusers.

    Returns:
        Features ``(*batch, features)`` in float32 or wider.

    Raises:
        ValueError: for odd ``features``.
        TypeError: for a time that is an integer.

    >>> time_features(jnp.array([0.0, 0.001]), 2)
    Array([[0.        , 1.        ],
           [0.84147096, 0.5403023 ]], dtype=float32)

    Source: Ho, Jain, Abbeel 2020, Denoising diffusion probabilistic models (their steps are 1000 t), arXiv:2006.11239;
    Vaswani et al. 2017, Attention is all you need, section 3.5, arXiv:1706.03762.
    """
    repair = f"pass features={features + 1}"
    require(features % 2 == 0, "an even number of features, sines and cosines", features, repair)
    n = features // 2
    time = widen(time)
    rates = 1000 * 10000.0 ** (-np.arange(n) / max(n - frequency_shift, 1))
    angles = time[..., None] * jnp.broadcast_to(jnp.asarray(rates, time.dtype), (*time.shape, n))  # (*batch, n)
    waves = [jnp.sin(angles), jnp.cos(angles)]
    return jnp.concatenate(waves[::-1] if cosines_first else waves, -1)


@builder
def TimeEmbedding(width: PositiveInt, *, frequency_shift: Literal[0, 1] = 1, cosines_first: bool = False) -> Layer:
    """Two dense layers on `time_features` of the side input ``time``, ``(..., 4 width)``.

    The options are those of `time_features`. The input, images ``(..., h, w, c)``, determines batch axes and dtype.

    >>> layer = TimeEmbedding(8)
    >>> x, time = jnp.zeros((5, 4, 4, 1)), jnp.linspace(0, 1, 5)
    >>> params = jax.jit(layer.init)(jax.random.key(0), x, time=time)
    >>> jax.jit(layer.apply)(params, x, time=time).shape
    (5, 32)

    Source: Ho, Jain, Abbeel 2020, appendix B, arXiv:2006.11239.
    """

    def forward(f, x, *, time=None):
        repair = "pass time=..., one number from 0 to 1 for each image (to init and to apply), or UNet(time=False)"
        require(time is not None, "the side input time", "none", repair)
        time = jnp.asarray(time)
        repair = "pass a time from 0 to 1, a number of steps divided by their total"
        require(jnp.issubdtype(time.dtype, jnp.floating), "a floating-point time", time, repair, error=TypeError)
        time = _for_each_image("time", time, x).astype(wide_dtype(x.dtype))
        features = time_features(time, width, frequency_shift=frequency_shift, cosines_first=cosines_first)
        return f.down(f.activation(f.up(features.astype(x.dtype))))

    up = Dense(4 * width, kernel_init=initializers.for_activation(swish))
    return Wire(forward, up=up, activation=swish, down=Dense(4 * width))  # type: ignore[return-value]


@builder
def LabelEmbedding(classes: PositiveInt, features: PositiveInt) -> Layer:
    """A learned row for each value of the side input ``label``, and one for the null label, ``(..., features)``.

    The input, images ``(..., h, w, c)``, determines batch axes and dtype. ``None`` and ``classes`` are the null label.

    >>> layer = LabelEmbedding(10, 8)
    >>> x = jnp.zeros((5, 4, 4, 1))
    >>> layer.apply(layer.init(jax.random.key(0), x), x, label=jnp.arange(5)).shape
    (5, 8)

    Source: Ho & Salimans 2022, Classifier-free diffusion guidance, arXiv:2207.12598.
    """

    def forward(f, x, *, label=None):
        # The null label is the last row of the table; training drops conditions to it for classifier-free guidance.
        label = _for_each_image("label", jnp.asarray(classes if label is None else label), x)
        return f.table(label).astype(x.dtype)

    return Wire(forward, table=Embedding(classes + 1, features))  # type: ignore[return-value]


# ---- the blocks -------------------------------------------------------------------------------


def _Block(features, *, attend, attention, norm, dropout, conditioned):
    """The residual block S x + f(x, e); with ``attend`` it is followed by x + attention(N(x)) over all pixels."""
    last = Conv(features, (3, 3), padding="same", kernel_init=initializers.zeros)
    layers = {
        "skip": _Skip(features),
        "first": Serial(norm=norm(), activation=swish, conv=Conv(features, (3, 3), padding="same")),
        "second": Serial(norm=norm(), activation=swish, dropout=Dropout(dropout) if dropout else identity, conv=last),
    }
    if conditioned:
        layers["condition"] = Serial(activation=swish, dense=Dense(features))
    if attend:
        layers |= {"attention_norm": norm(), "attention": attention(features)}

    def forward(f, x, *e):
        h = f.first(x)  # (..., h, w, features)
        if conditioned:
            # The condition is one vector for each image, the same at all pixels.
            h = h + jnp.broadcast_to(f.condition(*e)[..., None, None, :], h.shape)
        y = f.skip(x) + f.second(h)
        return y + f.attention(f.attention_norm(y)) if attend else y

    return Wire(forward, **layers)


def _Skip(features):
    """The identity, or a 1x1 convolution where the number of channels changes."""
    convolution = Conv(features, (1, 1))

    def init(key, x):
        return convolution.init(key, x) if x.shape[-1] != features else ()

    def apply(params, x):
        return convolution.apply(params, x) if x.shape[-1] != features else x

    return Layer(init, apply)


def _PixelAttention(features, *, heads, head_dim):
    """Attention over the pixels of an image, (..., h, w, c) to the same, without a mask."""
    attention = SelfAttention(features // head_dim if head_dim else heads, out_kernel_init=initializers.zeros)

    def init(key, x):
        return attention.init(key, jax.eval_shape(as_tokens, x))

    def apply(params, x):
        return attention.apply(params, as_tokens(x)).reshape(x.shape)

    return Layer(init, apply)


# ---- checks ----------------------------------------------------------------------------


def _for_each_image(name, value, x):
    """Broadcast a side input, one number for each image or one for all images, to one number for each image."""
    batch = x.shape[:-3]
    if value.shape not in ((), batch):
        expected = f"{name} to be one number for each image, of shape {batch} for x {describe(x)}, or one for all"
        require(False, expected, value, "leave out axes of length 1")
    return jnp.broadcast_to(value, batch)


def _require_image(x, factor):
    require(len(x.shape) >= 3, "images (..., h, w, c)", x, "use x[..., None] for images of one channel")
    expected = f"images whose height and width are divisible by {factor}, since each level but the first halves them"
    require(all(n % factor == 0 for n in x.shape[-3:-1]), expected, x, "pad the image, or leave out a level")
