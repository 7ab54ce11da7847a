r"""ModernBERT: a bidirectional encoder with the parts of later decoders.

Axis letters: ``...`` batch; ``time``.
"""

import functools
from collections.abc import Callable
from typing import Any, Literal

from jaxtyping import Array, Bool

from jaxblocks import initializers
from jaxblocks.activations import gelu, identity
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import Epsilon, NonNegativeInt, PositiveFloat, PositiveInt, Rate
from jaxblocks.core.pairs import Layer, LayerLike, builder
from jaxblocks.layers.attention import Attention, attention
from jaxblocks.layers.combinators import Repeat, Serial, Wire
from jaxblocks.layers.dense import Bias, Dense
from jaxblocks.layers.dropout import Dropout
from jaxblocks.layers.embedding import Embedding
from jaxblocks.layers.norm import LayerNorm
from jaxblocks.layers.positions import rotary
from jaxblocks.models.sentence_encoder import pooled
from jaxblocks.models.transformer_block import TransformerBlock, TransformerMLP

__all__ = ["ModernBERT"]


@builder
def ModernBERT(
    *,
    vocab_size: PositiveInt = 50_368,
    layers: PositiveInt = 22,
    heads: PositiveInt = 12,
    features: PositiveInt = 768,
    hidden: PositiveInt = 1152,
    activation: Callable = gelu,
    sliding_window: NonNegativeInt = 64,
    sliding_layers: tuple[bool, ...] | None = None,
    base: PositiveFloat = 160_000,
    local_base: PositiveFloat = 10_000,
    dropout: Rate = 0.0,
    attention_dropout: Rate | None = None,
    mlp_dropout: Rate | None = None,
    classifier_dropout: Rate | None = None,
    epsilon: Epsilon = 1e-5,
    head: Literal["classes", "token_classes", "words"] | None = None,
    classes: PositiveInt = 2,
    pool: Literal["first", "mean"] = "first",
    head_activation: Callable = gelu,
) -> Layer:
    r"""A transformer encoder with rotary positions, windows, gated MLPs and no biases; by default ModernBERT-base.

    It has 149,014,272 params with ``head=None``. Each block is $x + a(N(x))$, then $x + m(N(x))$, with bidirectional
    attention $a$ and $m(x) = (gelu(x W_g) ⊙ x W_u) W_d$; the first block has no norm before its attention, since the
    embeddings are normalized. Two of three blocks attend to the positions nearby only.

    Args:
        vocab_size: the number of tokens.
        layers, heads, features, hidden: blocks, heads per block, features per position, features inside the MLP; 28,
            16, 1024, 2624 is ModernBERT-large.
        activation: of the MLPs.
        sliding_window: how many positions before and after its own a position attends to, in blocks with the window.
        sliding_layers: for each block whether it has the window, by default all but the blocks 0, 3, 6, ...
        base, local_base: of the rotary angles, in blocks without and with the window.
        dropout: the rate for embeddings, in training.
        attention_dropout: for the weights of attention and after it; by default ``dropout``.
        mlp_dropout, classifier_dropout: inside the MLPs, and before the last layer of classes; by default ``dropout``.
        epsilon: of the layer norms.
        head: what the net returns: ``None`` the features of each position; ``"classes"`` logits of classes of the
            sequence; ``"token_classes"`` of each position; ``"words"`` logits of the word at each position. Each is a
            dense layer, an activation and a norm, then a dense layer, for words the token embedding with a bias.
        classes: the number of logits of ``"classes"`` and ``"token_classes"``.
        pool: the features that ``"classes"`` reads: of the first position, or the mean.
        head_activation: of the head.

    Shapes: tokens ``(..., time)`` to features ``(..., time, features)``, or to logits ``(..., classes)``, ``(..., time,
    classes)`` or ``(..., time, vocab_size)``.

    Side inputs: ``mask``, boolean ``(..., time)``, ``False`` at padding; ``segment_ids`` for several sequences packed
    into one, as in `Attention`; ``train`` and ``key`` with a rate above 0.

    Raises:
        ValueError: for ``sliding_layers`` of another number of blocks.

    >>> net = ModernBERT(vocab_size=5, layers=2, heads=2, features=4, hidden=6)
    >>> tokens = jnp.array([0, 3, 1])
    >>> # jax.jit(net.init) makes arrays
    >>> params = jax.eval_shape(net.init, jax.random.key(0), tokens)
    >>> jax.eval_shape(net.apply, params, tokens).shape
    (3, 4)

    Source: Warner et al. 2024, Smarter, better, faster, longer: a modern bidirectional encoder, arXiv:2412.13663.
    """
    slides = tuple(layer % 3 != 0 for layer in range(layers)) if sliding_layers is None else sliding_layers
    got, repair = f"sliding_layers of {len(slides)}", "pass one bool for each block"
    require(len(slides) == layers, f"sliding_layers for each of {layers} blocks", got, repair)
    initial = initializers.truncated_normal(0.02)
    last = initializers.truncated_normal(0.02 / (2 * layers) ** 0.5)  # of the last map of a branch, as published
    norm = functools.partial(LayerNorm, use_bias=False, epsilon=epsilon)
    rate = lambda own: dropout if own is None else own
    dropped = lambda own: Dropout(own) if own else identity
    mlp = TransformerMLP(
        hidden, features, gated=True, activation=activation, use_bias=False, dropout=rate(mlp_dropout),
        kernel_init=initial, down_kernel_init=last,
    )  # fmt: skip

    def self_attention(local: bool) -> Layer[Any]:
        window = {"sliding_window": (sliding_window, sliding_window)} if local else {}
        positions = functools.partial(rotary, base=local_base if local else base)
        attention_fn = functools.partial(attention, **window) if window else attention
        return Attention(
            heads, positions=positions, attention_fn=attention_fn, use_bias=False, dropout=rate(attention_dropout),
            kernel_init=initial, out_kernel_init=last,
        )  # fmt: skip

    def block(local: bool) -> Layer[Any]:
        options: dict[str, Any] = dict(dropout=rate(attention_dropout), dropout_after=("attention",))
        return TransformerBlock(attention=self_attention(local), mlp=mlp, norm=norm, **options)

    def first(f, x):
        x = x + f.dropout(f.attention(x))
        return x + f.mlp(f.mlp_norm(x))

    after = dropped(rate(attention_dropout))
    parts: dict[str, LayerLike] = dict(
        tokens=Embedding(vocab_size, features, tied=head == "words", embedding_init=initial),
        embedding_norm=norm(),
        dropout=dropped(dropout),
        first=Wire(first, attention=self_attention(slides[0]), dropout=after, mlp_norm=norm(), mlp=mlp),
    )
    if layers > 1:
        kinds = sorted({*slides[1:]})
        each = tuple(map(block, kinds)) if len(kinds) > 1 else block(kinds[0])
        which = tuple(map(int, slides[1:])) if len(kinds) > 1 else None
        parts["blocks"] = Repeat(each, layers - 1, which=which)  # type: ignore[arg-type]
    parts["norm"] = norm()
    names = [*parts]

    def encode(f, tokens):
        for name in names:
            tokens = getattr(f, name)(tokens)
        return tokens

    if head is None:
        return Serial(**parts)  # type: ignore[return-value]
    dense = Dense(features, use_bias=False, kernel_init=last)
    parts["head"] = Serial(dense=dense, activation=head_activation, norm=norm())
    if head == "words":
        parts["words_bias"] = Bias()
        # The tied table, applied to features, computes the logits.
        return Wire(lambda f, tokens: f.words_bias(f.tokens(f.head(encode(f, tokens)))), **parts)  # type: ignore[return-value]
    parts["out_dropout"] = dropped(rate(classifier_dropout))
    parts["out"] = Dense(classes, kernel_init=initializers.truncated_normal(features**-0.5))

    def classify_tokens(f, tokens):
        return f.out(f.out_dropout(f.head(encode(f, tokens))))

    def classify(f, tokens, *, mask: Bool[Array, "*batch time"] | None = None):
        return f.out(f.out_dropout(f.head(pooled(encode(f, tokens), mask, pool))))

    return Wire(classify if head == "classes" else classify_tokens, **parts)  # type: ignore[return-value]
