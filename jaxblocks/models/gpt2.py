r"""GPT-2: a transformer decoder that predicts the next token.

Axis letters: ``...`` batch; ``time``.
"""

import functools
from collections.abc import Callable
from typing import Literal, TypedDict, Unpack, overload

from jaxblocks import initializers
from jaxblocks.activations import gelu
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import Epsilon, NonNegativeInt, PositiveInt, Rate
from jaxblocks.core.pairs import Layer, LayerLike, StatefulLayer, builder
from jaxblocks.layers.attention import Attention, CachedAttention
from jaxblocks.layers.combinators import Repeat, Wire
from jaxblocks.layers.dense import Dense
from jaxblocks.layers.dropout import Dropout
from jaxblocks.layers.embedding import Embedding
from jaxblocks.layers.norm import LayerNorm
from jaxblocks.layers.positions import LearnedPositions
from jaxblocks.models.class_heads import with_classes
from jaxblocks.models.transformer_block import TransformerBlock, TransformerMLP

__all__ = ["GPT2"]


class _Options(TypedDict, total=False):
    """The options of `GPT2` without ``cache``, which decides on the type of the layer."""

    vocab_size: int
    max_length: int
    layers: int
    heads: int
    features: int
    hidden: int | None
    activation: Callable
    tied: bool
    dropout: float
    attention_dropout: float | None
    embedding_dropout: float | None
    classifier_dropout: float | None
    epsilon: float
    head: Literal["words", "classes", "token_classes"] | None
    classes: int
    pad_token: int | None


@overload
def GPT2(*, cache: None = None, **options: Unpack[_Options]) -> Layer: ...
@overload
def GPT2(*, cache: int, **options: Unpack[_Options]) -> StatefulLayer: ...
@builder
def GPT2(
    *,
    vocab_size: PositiveInt = 50_257,
    max_length: PositiveInt = 1024,
    layers: PositiveInt = 12,
    heads: PositiveInt = 12,
    features: PositiveInt = 768,
    hidden: PositiveInt | None = None,
    activation: Callable = functools.partial(gelu, approximate=True),
    tied: bool = True,
    dropout: Rate = 0.1,
    attention_dropout: Rate | None = None,
    embedding_dropout: Rate | None = None,
    classifier_dropout: Rate | None = None,
    epsilon: Epsilon = 1e-5,
    head: Literal["words", "classes", "token_classes"] | None = "words",
    classes: PositiveInt = 2,
    pad_token: NonNegativeInt | None = None,
    cache: PositiveInt | None = None,
) -> Layer | StatefulLayer:
    r"""A transformer decoder with pre-norm blocks; the defaults are the smallest GPT-2.

    It has 124,439,808 params. Each block is $x + a(N(x))$, then $x + m(N(x))$, with causal attention
    $a$ and an MLP $m$. The token embedding also computes the logits (tied weights). GELU is the tanh
    approximation. The initial kernels at the end of each residual branch are scaled by
    $1 / √(2 · layers)$, so that the variance of the sum of branches does not grow with depth.

    Args:
        vocab_size: the number of tokens.
        max_length: the maximal length of a sequence, the number of position embeddings.
        layers, heads, features: blocks, heads per block, features per position; 24, 16, 1024 is "medium", 36, 20,
            1280 "large", 48, 25, 1600 "XL".
        hidden: features inside the MLP, by default ``4 * features``.
        activation: of the MLP.
        tied: whether the token embedding also computes the logits; else they have a map of their own.
        dropout: the rate for branches, in training.
        attention_dropout, embedding_dropout, classifier_dropout: for the weights of attention, for the embeddings, and
            before the logits of ``"token_classes"``; by default ``dropout``.
        epsilon: of the layer norms.
        head: what the net returns: logits of the next word; with ``None`` the features of each position; with
            ``"classes"`` logits of classes of the text, a map without bias of the features of the last token that is
            not padding; with ``"token_classes"`` logits of classes of each token, a dense layer after dropout.
        classes: the number of logits of ``"classes"`` and ``"token_classes"``.
        pad_token: the token that is padding for ``"classes"``, as positions are where ``mask`` is ``False``.
        cache: a number of positions, at most ``max_length``; the result is then a ``StatefulLayer`` with the same
            params for sequences that arrive in pieces. Its state holds the keys and values of up to ``cache`` positions
            and their number. See `CachedAttention`.

    Shapes: tokens ``(..., time)``, integers, to logits ``(..., time, vocab_size)``; without a head to ``(..., time,
    features)``, with ``"classes"`` to ``(..., classes)``, with ``"token_classes"`` to ``(..., time, classes)``.

    Side inputs: ``mask``, ``False`` at padding (padding on the right needs none: it is never attended to), and
    ``segment_ids`` (without cache), as in `Attention`; ``train`` and ``key`` for the dropout.

    Raises:
        ValueError: for a sequence, or a cache, of more than ``max_length`` positions. For pieces under ``jit``, where
            the position is unknown, the logits beyond ``max_length`` are NaN instead.

    >>> net = GPT2(vocab_size=5, max_length=8, layers=2, heads=2, features=4)
    >>> tokens = jnp.array([0, 3, 1])
    >>> # jax.jit(net.init) makes arrays
    >>> params = jax.eval_shape(net.init, jax.random.key(0), tokens)
    >>> jax.eval_shape(net.apply, params, tokens).shape
    (3, 5)

    A symbolic time axis of ``jax.export`` needs a constraint, as in `LearnedPositions`.

    Source: Radford et al. 2019, Language models are unsupervised multitask learners, and its published code.
    """
    expected = f"a cache of at most max_length={max_length} positions"
    require((cache or 0) <= max_length, expected, f"cache={cache}", "make the cache smaller, or max_length larger")
    initial = initializers.normal(0.02)
    last = initializers.normal(0.02 / (2 * layers) ** 0.5)  # for the last kernel of each branch
    norm = functools.partial(LayerNorm, epsilon=epsilon)
    of_weights = dropout if attention_dropout is None else attention_dropout
    attention = Attention(heads, causal=True, dropout=of_weights, kernel_init=initial, out_kernel_init=last)
    block = TransformerBlock(
        attention=attention if cache is None else CachedAttention(attention, cache),
        mlp=TransformerMLP(
            hidden or 4 * features, features, activation=activation, kernel_init=initial, down_kernel_init=last
        ),
        norm=norm,
        dropout=dropout,
    )
    parts: dict[str, LayerLike] = dict(
        tokens=Embedding(vocab_size, features, tied=tied, embedding_init=initial),
        # As in the released code, smaller than that of tokens.
        positions=LearnedPositions(max_length, embedding_init=initializers.normal(0.01), stateful=cache is not None),
        dropout=Dropout(dropout if embedding_dropout is None else embedding_dropout),
        blocks=Repeat(block, layers),
        norm=norm(),
    )

    def encode(f, tokens):
        return f.norm(f.blocks(f.dropout(f.positions(f.tokens(tokens)))))

    if head in ("classes", "token_classes"):
        rate = dropout if classifier_dropout is None else classifier_dropout
        return with_classes(
            encode, parts, head, classes=classes, dropout=rate, pad_token=pad_token, kernel_init=initial
        )
    if head and not tied:
        parts["out"] = Dense(vocab_size, use_bias=False, kernel_init=initial)

    def forward(f, tokens):
        x = encode(f, tokens)
        if head is None:
            return x
        return f.tokens(x) if tied else f.out(x)

    return Wire(forward, **parts)  # type: ignore[return-value]
