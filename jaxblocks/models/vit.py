r"""The vision transformer: an image as a sequence of patches.

Axis letters: ``...`` batch, h and w height and width, c channels, n tokens.
"""

import functools
from collections.abc import Callable
from typing import Literal

import jax.numpy as jnp

from jaxblocks.activations import gelu, identity, tanh
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import Epsilon, PositiveFloat, PositiveInt, Rate
from jaxblocks.core.pairs import Layer, LayerLike, builder
from jaxblocks.layers.attention.multi_head import UseBias
from jaxblocks.layers.combinators import Repeat, Serial, Wire
from jaxblocks.layers.dense import Dense
from jaxblocks.layers.dropout import Dropout
from jaxblocks.layers.norm import LayerNorm
from jaxblocks.models.image_tokens import (
    ClassToken,
    InterpolatedPositions,
    Patches,
    SelfAttention,
    TokenPositions,
    as_tokens,
    mean_of_tokens,
)
from jaxblocks.models.transformer_block import Branches, TransformerBlock, TransformerMLP

__all__ = ["ViT"]


@builder
def ViT(
    *,
    classes: PositiveInt = 1000,
    patch_size: PositiveInt = 16,
    features: PositiveInt = 768,
    layers: PositiveInt = 12,
    heads: PositiveInt = 12,
    hidden: PositiveInt = 3072,
    pool: Literal["token", "mean", "token_and_mean"] = "token",
    head: Literal["classes", "pooler"] | None = "classes",
    distillation: Literal["token", "classes"] | None = None,
    use_bias: UseBias = True,
    activation: Callable = gelu,
    gated: bool = False,
    layer_scale: PositiveFloat | None = None,
    interpolate: bool = False,
    dropout: Rate = 0.0,
    attention_dropout: Rate = 0.0,
    mlp_dropout: Rate | None = None,
    dropout_after: Branches = ("attention", "mlp"),
    epsilon: Epsilon = 1e-6,
) -> Layer:
    r"""A vision transformer; with the defaults, ViT-B/16 with 86,567,656 params for 224x224 images.

    A linear map turns each patch into a token; a class token is optionally put before them, and a learned position
    embedding is added to each. They are followed by ``layers`` blocks $x + a(N(x))$, then $x + m(N(x))$,
    with attention $a$ and an MLP $m$, stacked by `Repeat`. The last layers are a norm $N$, and a
    dense layer on the class token or on the mean of all tokens.

    Args:
        classes: the number of logits.
        patch_size: height and width of a patch, divisors of those of the images.
        features: the number of features of a token.
        layers: the number of blocks.
        heads: heads of attention; a divisor of ``features``.
        hidden: features inside the MLP.
        pool: ``"token"`` for a class token; ``"mean"`` for the mean of all tokens, without a class token;
            ``"token_and_mean"`` for the class token and the mean of the others side by side, as in DINOv2.
        head: what the net returns: logits of ``"classes"``; ``None`` the features of all tokens, after the last norm;
            or ``"pooler"`` these and $tanh(x_0 W + b)$ of the class token.
        distillation: as in DeiT, ``"token"`` for a second learned token after the class token, ``"classes"`` for one
            that has a dense layer of its own, with the mean of the logits of both.
        use_bias: which maps of the attention have a bias, as in `Attention`.
        activation: of the MLPs.
        gated: whether the MLPs have a gate; with ``activation=silu`` in DINOv2 giant.
        layer_scale, dropout_after: as in `TransformerBlock`.
        interpolate: whether images of other sizes than at ``init`` are accepted, for which the positions are resized,
            as in DINOv2.
        dropout: the rate for tokens after positions are added, and after every dense layer but those of queries, keys
            and values.
        attention_dropout, mlp_dropout: for the weights of attention, and inside the MLPs, by default ``dropout``; 0 for
            the MLPs of Hugging Face.
        epsilon: of the layer norms; 1e-12 in the checkpoints of Hugging Face.

    The paper's other sizes are ``features, layers, heads, hidden`` = 1024, 24, 16, 4096 (L) and 1280, 32, 16, 5120 (H).
    Side inputs: ``train`` and ``key`` with a rate above 0.

    Shapes: images ``(..., h, w, c)`` to logits ``(..., classes)``; h and w must be those at ``init`` unless
    ``interpolate``, since there is a learned position for each patch.

    Raises:
        ValueError: for a ``distillation`` or a ``"pooler"`` unless ``pool="token"``; for images of another size than at
            ``init`` unless ``interpolate``, or of one that is no multiple of ``patch_size``.

    >>> x = jax.ShapeDtypeStruct((224, 224, 3), jnp.float32)
    >>> count_params(jax.eval_shape(ViT().init, jax.random.key(0), x))
    86567656

    Source: Dosovitskiy et al. 2021, An image is worth 16x16 words, section 3.1 and appendix B.1, arXiv:2010.11929;
    Touvron et al. 2021, Training data-efficient image transformers (``distillation``), arXiv:2012.12877; Oquab et al.
    2023, DINOv2 (``"token_and_mean"``, ``interpolate``), arXiv:2304.07193.
    """
    norm = functools.partial(LayerNorm, epsilon=epsilon)
    rate = dropout if mlp_dropout is None else mlp_dropout
    block = TransformerBlock(
        attention=SelfAttention(heads, use_bias=use_bias, dropout=attention_dropout),
        mlp=TransformerMLP(hidden, features, gated=gated, activation=activation, dropout=rate),
        norm=norm,
        dropout=dropout,
        dropout_after=dropout_after,
        layer_scale=layer_scale,
    )
    # Both read the class token alone.
    needs_token = distillation is not None or head == "pooler"
    got = f"pool={pool!r}, head={head!r} and distillation={distillation!r}"
    expected = 'pool="token" for a distillation or a pooler'
    require(pool == "token" or not needs_token, expected, got, f"leave out pool={pool!r}")
    expected, repair = 'head="classes" for logits of a distillation', 'pass distillation="token"'
    require(head == "classes" or distillation != "classes", expected, got, repair)
    parts: dict[str, LayerLike] = dict(
        patches=Patches(features, patch_size),  # (..., h / patch, w / patch, features)
        flatten=as_tokens,  # (..., n, features)
    )
    if distillation is not None:
        # Before the class token in this list, and so after it in the sequence: each one is put before the tokens.
        parts["distillation_token"] = ClassToken()  # (..., n + 1, features)
    if pool != "mean":
        parts["class_token"] = ClassToken()
    parts |= dict(
        positions=InterpolatedPositions() if interpolate else TokenPositions(),
        dropout=Dropout(dropout) if dropout else identity,
        blocks=Repeat(block, layers),
        norm=norm(),
    )
    if head == "pooler":
        forward = lambda f, x: (x, tanh(f.dense(_first_token(x))))
        parts["pooler"] = Wire(forward, dense=Dense(features))
    elif head == "classes" and distillation == "classes":
        mean = lambda f, x: (f.classes(x[..., 0, :]) + f.distillation(x[..., 1, :])) / 2
        parts["out"] = Wire(mean, classes=Dense(classes), distillation=Dense(classes))
    elif head == "classes":
        parts["pool"] = _POOLS[pool]  # (..., features), or twice as many
        parts["out"] = Dense(classes)
    if not interpolate:
        return Serial(**parts)  # type: ignore[return-value]

    def forward(f, x):
        grid = x = f.patches(x)  # (..., h / patch, w / patch, features)
        for name in [*parts][1:]:
            x = f.positions(x, grid) if name == "positions" else getattr(f, name)(x)
        return x

    return Wire(forward, **parts)  # type: ignore[return-value]


def _first_token(x):
    return x[..., 0, :]


def _token_and_mean(x):
    return jnp.concatenate([x[..., 0, :], mean_of_tokens(x[..., 1:, :])], -1)


_POOLS = {"token": _first_token, "mean": mean_of_tokens, "token_and_mean": _token_and_mean}
