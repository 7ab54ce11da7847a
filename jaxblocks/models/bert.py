r"""BERT: a transformer encoder with bidirectional attention.

Axis letters: ``...`` batch; ``time``.
"""

import functools
from collections.abc import Callable
from typing import Any, Literal

import jax.numpy as jnp

from jaxblocks import initializers
from jaxblocks.activations import gelu, identity, tanh
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import Epsilon, NonNegativeInt, PositiveInt, Rate
from jaxblocks.core.pairs import Layer, LayerLike, builder
from jaxblocks.layers.attention import Attention
from jaxblocks.layers.combinators import Repeat, Serial, Wire
from jaxblocks.layers.dense import Bias, Dense
from jaxblocks.layers.dropout import Dropout
from jaxblocks.layers.embedding import Embedding
from jaxblocks.layers.norm import LayerNorm
from jaxblocks.layers.positions import LearnedPositions
from jaxblocks.models.bias_table import AttentionOfTable, BiasTable
from jaxblocks.models.class_heads import check_texts
from jaxblocks.models.side_inputs import rename_side_inputs
from jaxblocks.models.transformer_block import Branches, TransformerBlock, TransformerMLP

__all__ = ["BERT"]


@builder
def BERT(
    *,
    vocab_size: PositiveInt = 30_522,
    max_length: PositiveInt = 512,
    position_offset: NonNegativeInt = 0,
    segments: NonNegativeInt = 2,
    layers: PositiveInt = 12,
    heads: PositiveInt = 12,
    features: PositiveInt = 768,
    hidden: PositiveInt = 3072,
    activation: Callable = gelu,
    dropout: Rate = 0.1,
    attention_dropout: Rate | None = None,
    classifier_dropout: Rate | None = None,
    pooler_dropout: Rate = 0.0,
    dropout_after: Branches = ("attention", "mlp"),
    epsilon: Epsilon = 1e-12,
    head: Literal["pooler", "classes", "token_classes", "words", "replaced"] | None = "pooler",
    classes: PositiveInt = 2,
    pooler_activation: Callable = tanh,
    embedding_features: PositiveInt | None = None,
    buckets: NonNegativeInt = 0,
) -> Layer[Any]:
    r"""A transformer encoder with post-norm blocks; the defaults are BERT-base (uncased).

    It has 109,482,240 params. Each block is $N(x + a(x))$, then $N(x + m(x))$, with
    bidirectional attention $a$ and an MLP $m$ with the exact GELU. The input is the sum of three
    embeddings: of the token, of its position, and of its segment (the first or second sentence).

    Args:
        vocab_size: the number of tokens.
        max_length: the maximal length of a sequence, the number of position embeddings.
        position_offset: rows before that of the first position, as ``offset`` of `LearnedPositions`; 2 in RoBERTa,
            whose published code does not count padding: pad its texts at the end.
        segments: the number of segments; 0 for no embedding of segments, as in DistilBERT.
        layers, heads, features, hidden: blocks, heads per block, features per position, features inside the MLP; 24,
            16, 1024, 4096 is BERT-large.
        activation: of the MLPs and of the head of words.
        dropout: the rate for embeddings and branches, in training.
        attention_dropout, classifier_dropout: for the weights of attention, and before the last layer of ``"classes"``
            and ``"token_classes"``; by default ``dropout``.
        pooler_dropout: before the dense layer of the summary; in RoBERTa as ``classifier_dropout``.
        dropout_after: the branches that end with dropout, as in `TransformerBlock`.
        epsilon: of the layer norms.
        head: what the net returns: ``None`` the features of each position; ``"pooler"`` these and a summary of the
            sequence, $tanh(x_0 W + b)$ of the first position; ``"classes"`` logits of classes, a dense layer of
            the summary, after dropout; ``"token_classes"`` logits of classes at each position, a dense layer after
            dropout; ``"words"`` logits of the word at each position, by a dense layer, the activation, a norm and the
            token embedding (tied weights) with a bias; ``"replaced"`` the logit at each position that its token was
            replaced, by a dense layer, the activation, and a dense layer, as in ELECTRA.
        classes: the number of logits of ``head="classes"`` and ``"token_classes"``.
        pooler_activation: in place of tanh; relu in DistilBERT, gelu in ELECTRA.
        embedding_features: of the embeddings, which a dense layer then maps to ``features``; by default ``features``
            without such a layer. 128 in ELECTRA-small.
        buckets: of a `RelativePositionBias` that all blocks share; 32 in MPNet, by default none.

    Shapes: tokens ``(..., time)``, and optionally the segment of each, ``(..., time)``, by default 0, to features
    ``(..., time, features)``; with ``"pooler"`` to a tuple of these and ``(..., features)``, with ``"classes"`` to
    ``(..., classes)``, with ``"token_classes"`` to ``(..., time, classes)``, with ``"words"`` to ``(..., time,
    vocab_size)``, with ``"replaced"`` to ``(..., time)``.

    Side inputs: ``mask``, boolean ``(..., time)``, ``False`` at padding, which then does not affect other positions
    (outputs at padding are meaningless); ``segment_ids`` for several sequences packed into one, as in `Attention`;
    ``train`` and ``key`` for the dropout.

    Raises:
        ValueError: for more than ``max_length`` positions.

    >>> net = BERT(vocab_size=5, max_length=8, layers=2, heads=2, features=4, hidden=8)
    >>> tokens = jnp.array([[0, 3, 1], [2, 4, 4]])
    >>> # jax.jit(net.init) makes arrays
    >>> params = jax.eval_shape(net.init, jax.random.key(0), tokens)
    >>> mask = jnp.array([[True, True, True], [True, False, False]])
    >>> features, pooled = jax.eval_shape(net.apply, params, tokens, mask=mask)
    >>> features.shape, pooled.shape
    ((2, 3, 4), (2, 4))

    A symbolic time axis of ``jax.export`` needs a constraint, as in `LearnedPositions`.

    Source: Devlin et al. 2018, BERT: Pre-training of deep bidirectional transformers, arXiv:1810.04805; Liu et al.
    2019, RoBERTa, arXiv:1907.11692; Sanh et al. 2019, DistilBERT, arXiv:1910.01108; Clark et al. 2020, ELECTRA,
    arXiv:2003.10555; Song et al. 2020, MPNet, arXiv:2004.09297.
    """
    initial = initializers.truncated_normal(0.02)
    norm = functools.partial(LayerNorm, epsilon=epsilon)
    rate = dropout if attention_dropout is None else attention_dropout
    block = TransformerBlock(
        attention=(AttentionOfTable if buckets else Attention)(heads, dropout=rate, kernel_init=initial),
        mlp=TransformerMLP(hidden, features, activation=activation, kernel_init=initial),
        norm=norm,
        norm_first=False,
        dropout=dropout,
        dropout_after=dropout_after,
    )

    # The parameter of `encode` has the same name as the option.
    number_of_segments = segments

    def encode(f, tokens, segments=None):
        has_segments, repair = segments is None or number_of_segments > 0, "leave the segments out"
        require(
            has_segments, "tokens alone, since the net has segments=0", "tokens and segments", repair, error=TypeError
        )
        x = f.tokens(tokens)
        if number_of_segments:
            # Without segments all tokens are in segment 0, as in the published code; its row is added all the same.
            x = x + f.segments(jnp.zeros_like(tokens) if segments is None else segments)
        x = f.dropout(f.embedding_norm(f.positions(x)))
        x = f.embedding_out(x) if embedding_features else x
        return f.blocks(x, table=f.relative_positions(tokens)) if buckets else f.blocks(x)

    def summarize(f, *inputs):
        check_texts(inputs[0])
        x = encode(f, *inputs)
        return x, pooler_activation(f.pooler(f.pooler_dropout(x[..., 0, :])))  # of the first token, [CLS]

    def classify(f, *inputs):
        return f.out(f.out_dropout(summarize(f, *inputs)[1]))

    def classify_tokens(f, *inputs):
        return f.out(f.out_dropout(encode(f, *inputs)))

    def predict_words(f, *inputs):
        # The tied table, applied to features, computes the logits.
        return f.words_bias(f.tokens(f.words(encode(f, *inputs))))

    def detect_replaced(f, *inputs):
        return f.replaced(encode(f, *inputs))[..., 0]

    width = embedding_features or features
    # Only what the head calls: `Wire` rejects a child without a call.
    parts: dict[str, LayerLike] = dict(
        tokens=Embedding(vocab_size, width, tied=head == "words", embedding_init=initial),
        positions=LearnedPositions(max_length, offset=position_offset, embedding_init=initial),
        embedding_norm=norm(),
        dropout=Dropout(dropout),
        blocks=Repeat(block, layers),
    )
    if number_of_segments:
        parts["segments"] = Embedding(segments, width, embedding_init=initial)
    if embedding_features:
        parts["embedding_out"] = Dense(features, kernel_init=initial)
    if buckets:
        parts["relative_positions"] = BiasTable(heads, buckets)
    if head in ("pooler", "classes"):
        parts |= dict(
            pooler=Dense(features, kernel_init=initial),
            pooler_dropout=Dropout(pooler_dropout) if pooler_dropout else identity,
        )
    if head in ("classes", "token_classes"):
        before_out = Dropout(dropout if classifier_dropout is None else classifier_dropout)
        parts |= dict(out_dropout=before_out, out=Dense(classes, kernel_init=initial))
    if head == "words":
        # The token embedding computes the logits, so only the bias of the logits is a param of its own.
        words = Serial(dense=Dense(width, kernel_init=initial), activation=activation, norm=norm())
        parts |= dict(words=words, words_bias=Bias())
    if head == "replaced":
        dense, out = Dense(features, kernel_init=initial), Dense(1, kernel_init=initial)
        parts["replaced"] = Serial(dense=dense, activation=activation, out=out)
    forwards = {
        None: encode, "pooler": summarize, "classes": classify, "token_classes": classify_tokens,
        "words": predict_words, "replaced": detect_replaced,
    }  # fmt: skip
    net = Wire(forwards[head], **parts)
    # The table is passed inside, and no side input of the net.
    return rename_side_inputs(net, table=None) if buckets else net  # type: ignore[return-value]
