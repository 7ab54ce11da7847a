r"""Text: from a string to numbers and back, and the drawing of more of it from a model.

A language model is a pair that maps tokens ``(..., time)`` to logits ``(..., time, vocabulary)``, where those at t are
of the token at t + 1; see `jaxblocks.models`. `generate` takes it with a cache (``cache=`` or ``stateful=`` in its
builder), or, for the same tokens in more time, without.

Axis letters: ``*batch``; ``time`` of the prompts; ``steps`` drawn.
"""

import functools
import math
import numbers
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Integer

from jaxblocks.checks import (
    check_values,
    checkable,
    describe,
    describe_any,
    require_floating,
    require_key,
    require_whole,
)
from jaxblocks.core import Layer, StatefulLayer
from jaxblocks.precision import widen

__all__ = [
    "ByteTokenizer",
    "CharTokenizer",
    "Tokenizer",
    "bits_per_token",
    "generate",
    "pad_prompts",
    "truncate_logits",
]


# ---- between strings and numbers -------------------------------------------------------------


class Tokenizer(NamedTuple):
    """What `ByteTokenizer` and `CharTokenizer` return: two functions, and how many tokens there are.

    Args:
        encode: a string to int32 ``(time,)``, NumPy.
        decode: whole numbers ``(time,)`` to a string; with more axes, to nested lists of them.
        vocabulary: the number of tokens, 0, ..., vocabulary - 1.
        symbols: the symbols of a `CharTokenizer` in order, which make it again; ``None`` for bytes.
    """

    encode: Callable[[str], np.ndarray]
    decode: Callable[[Any], Any]
    vocabulary: int
    symbols: str | None

    def __repr__(self):
        of = "bytes" if self.symbols is None else repr(self.symbols)
        return f"Tokenizer({self.vocabulary} tokens: {of})"


def ByteTokenizer() -> Tokenizer:
    """Tokens are the 256 bytes of UTF-8: every text can be encoded, a character in one to four tokens.

    ``decode`` puts U+FFFD where bytes are no UTF-8, as those of a model may be.

    Raises:
        ValueError: by ``encode``, for half of a surrogate pair, which is no character; by ``decode``, for numbers that
            are no tokens.

    >>> tokenizer = ByteTokenizer()
    >>> tokenizer.encode("naïve").tolist()
    [110, 97, 195, 175, 118, 101]
    >>> tokenizer.decode([110, 97, 195, 175, 118, 101])
    'naïve'
    """

    def encode(text):
        _require_text("ByteTokenizer", text)
        try:
            return np.frombuffer(text.encode("utf-8"), np.uint8).astype(np.int32)
        except UnicodeEncodeError as error:
            raise _unknown("ByteTokenizer", text, error.start, "a surrogate has no bytes in UTF-8") from None

    return Tokenizer(
        encode, _decoder("ByteTokenizer", 256, lambda row: bytes(row).decode("utf-8", "replace")), 256, None
    )


def CharTokenizer(text: str) -> Tokenizer:
    """Tokens are the characters that occur in a text, numbered in the order of their code points.

    ``CharTokenizer(tokenizer.symbols)`` is the same tokenizer: store that string beside the params of a model.

    Raises:
        ValueError: for an empty text; by ``encode``, for a character that does not occur in it; by ``decode``, for
            numbers that are no tokens.

    >>> tokenizer = CharTokenizer("abracadabra")
    >>> tokenizer
    Tokenizer(5 tokens: 'abcdr')
    >>> tokenizer.encode("cab").tolist(), tokenizer.decode([2, 0, 1])
    ([2, 0, 1], 'cab')
    """
    _require_text("CharTokenizer", text)
    symbols = np.unique(_code_points(text))
    if not symbols.size:
        raise ValueError("CharTokenizer expects a text that holds each symbol at least once, but an empty one came.")

    def encode(text):
        _require_text("CharTokenizer", text)
        characters = _code_points(text)
        places = np.searchsorted(symbols, characters)
        unknown = symbols[np.minimum(places, symbols.size - 1)] != characters
        if unknown.any():
            number = np.unique(characters[unknown]).size
            raise _unknown(
                "CharTokenizer",
                text,
                int(unknown.argmax()),
                f"it is none of the {symbols.size} symbols that the tokenizer was made of ({number} of the text's are "
                "not); leave it out or replace it, make the tokenizer of a text that holds it, or take ByteTokenizer",
            )
        return places.astype(np.int32)

    names = "".join(map(chr, symbols))
    decode = _decoder("CharTokenizer", symbols.size, lambda row: "".join([names[i] for i in row]))
    return Tokenizer(encode, decode, int(symbols.size), names)


def pad_prompts(prompts: Iterable[Integer[np.ndarray, " _time"]]) -> tuple[np.ndarray, np.ndarray]:
    """Prompts of different lengths as one array with zeros on the right, and their lengths, as `generate` takes them.

    Returns:
        int32 ``(prompts, time)`` and ``(prompts,)``, with time the length of the longest.

    Raises:
        ValueError: where there are no prompts, or one of them is no row of tokens.

    >>> encode = ByteTokenizer().encode
    >>> pad_prompts([encode("ab"), encode("c")])
    (array([[97, 98],
           [99,  0]], dtype=int32), array([2, 1], dtype=int32))
    """
    rows = [np.asarray(prompt) for prompt in prompts]
    if not rows:
        raise ValueError("pad_prompts expects at least one prompt, but none came.")
    for number, row in enumerate(rows):
        if row.ndim != 1 or not np.issubdtype(row.dtype, np.integer):
            raise ValueError(
                f"pad_prompts expects prompts of whole numbers (time,), but prompt {number} is {describe(row)}; encode "
                "each by itself: [tokenizer.encode(text) for text in texts]."
            )
    lengths = np.array([row.size for row in rows], np.int32)
    padded = np.zeros((len(rows), lengths.max()), np.int32)
    for number, row in enumerate(rows):
        padded[number, : row.size] = row
    return padded, lengths


# ---- how good a model is ---------------------------------------------------------------------


def bits_per_token(
    logits: Float[Array, "*batch vocabulary"], tokens: Integer[Array, "*batch"]
) -> Float[Array, "*batch"]:
    r"""What each token costs under a model: :math:`-\log_2 p(x)`, its cross-entropy in nats divided by :math:`\ln 2`.

    A code made for the model needs so many bits; the mean over a text whose tokens are characters is the bits per
    character. Without a model it is :math:`\log_2` of the size of the vocabulary.

    Computed in float32 at least. Raises ``ValueError`` for shapes that do not fit and tokens out of range (under
    ``jit`` these cost NaN), ``TypeError`` for tokens that are no whole numbers.

    >>> print(bits_per_token(jnp.zeros((2, 8)), jnp.array([0, 7])))
    [3. 3.]

    Source: Shannon 1951, Prediction and entropy of printed English.
    """
    require_floating("bits_per_token", logits=logits)
    if not jnp.issubdtype(tokens.dtype, jnp.integer) or logits.shape[:-1] != tokens.shape or not logits.ndim:
        raise (ValueError if jnp.issubdtype(tokens.dtype, jnp.integer) else TypeError)(
            f"bits_per_token expects logits (..., vocabulary) and whole numbers (...), but {describe(logits)} and "
            f"{describe(tokens)} came; pass the logits at t with the token at t + 1."
        )
    _check_tokens("bits_per_token", tokens, logits.shape[-1])
    logits = widen(logits)
    own = jnp.take_along_axis(logits, tokens[..., None], -1, mode="fill", fill_value=jnp.nan)[..., 0]
    own = jnp.where(tokens < 0, jnp.nan, own)
    return (jax.nn.logsumexp(logits, -1) - own) / math.log(2)


# ---- more of it ------------------------------------------------------------------------------


def truncate_logits(
    logits: Float[Array, "*batch vocabulary"], top_k: int | None = None, top_p: float | Float[Array, ""] | None = None
) -> Float[Array, "*batch vocabulary"]:
    r"""Logits with those of unlikely tokens set to :math:`-\infty`, so that they are never drawn.

    Args:
        logits: of each token.
        top_k: keep the k largest (and what is equal to the last of them).
        top_p: keep the fewest tokens, the likeliest first, whose probabilities sum to p or more; those are of
            the tokens that ``top_k`` has left. The likeliest token is always kept.

    Raises:
        ValueError: for ``top_k`` that is not in 1, ..., vocabulary, or ``top_p`` outside of (0, 1].

    >>> logits = jnp.log(jnp.array([0.1, 0.6, 0.3]))
    >>> print(np.asarray(jax.nn.softmax(truncate_logits(logits, top_k=2))).round(2))
    [0.   0.67 0.33]
    >>> print(jax.nn.softmax(truncate_logits(logits, top_p=0.5)))
    [0. 1. 0.]

    Sources: Fan, Lewis & Dauphin 2018, Hierarchical neural story generation (top-k); Holtzman et al. 2019, The curious
    case of neural text degeneration (top-p).
    """
    require_floating("truncate_logits", logits=logits)
    _check_truncation("truncate_logits", logits.shape[-1], top_k, top_p)
    if top_k is not None:
        least = lax.top_k(logits, top_k)[0][..., -1:]
        logits = jnp.where(logits < least, -jnp.inf, logits)
    if top_p is not None:
        order = jnp.argsort(logits, -1, descending=True)
        p = jax.nn.softmax(widen(jnp.take_along_axis(logits, order, -1)), -1)
        before = jnp.cumsum(p, -1) - p  # of all that are likelier
        kept = (before < jnp.asarray(top_p, p.dtype)).at[..., 0].set(True)
        logits = jnp.where(jnp.take_along_axis(kept, jnp.argsort(order, -1), -1), logits, -jnp.inf)
    return logits


def generate(
    model: Layer | StatefulLayer,
    params,
    prompts: Integer[Array, "*batch time"] | Integer[np.ndarray, "*batch time"],
    *,
    key,
    steps: int,
    lengths: Integer[Array, "*batch"] | Integer[np.ndarray, "*batch"] | None = None,
    temperature: float | int | Float[Array, ""] = 1.0,
    top_k: int | None = None,
    top_p: float | int | Float[Array, ""] | None = None,
    stop: int | None = None,
    source: Integer[Array, "*batch time_s"] | Integer[np.ndarray, "*batch time_s"] | None = None,
) -> Integer[Array, "*batch _total"]:
    r"""Prompts, and what a model writes after them: :math:`x_{t+1} \sim softmax(z_t / \tau)`, one token after another.

    With :math:`z_t` the logits of the model after :math:`x_0, \dots, x_t` and :math:`\tau` ``temperature``. All is one
    compiled scan. A ``StatefulLayer`` (``cache=``, ``stateful=``) sees each token once; a ``Layer`` computes the whole
    text again at every step, and writes the same tokens.

    Args:
        model: tokens ``(..., time)`` to logits ``(..., time, vocabulary)``; logits at t may not depend on what comes
            after t. With ``cache=``, its state begins afresh.
        params: of the model.
        prompts: at least one token each.
        key: of all draws; position t draws from ``fold_in(key, t)``, the same with and without cache.
        steps: how many tokens are written after the longest prompt.
        lengths: of each prompt, where they differ; what stands to the right of it is not read (see `pad_prompts`), and
            drawn tokens begin there: shorter prompts get as many more. By default all have the full length.
        temperature: below 1 sharpens, above 1 flattens; 0 takes the likeliest token (the first of equals) and draws
            nothing.
        top_k, top_p: as in `truncate_logits`, after the temperature.
        stop: a token after which a text is over: where it has been drawn (not: read in a prompt), the rest of the row
            is filled with it.
        source: tokens that an encoder-decoder reads first; it is then called with ``source, tokens`` (with a cache at
            the first call only).

    Returns:
        int32 ``(..., time + steps)``: each row a prompt and what was written.

    Raises:
        ValueError: before any work, for prompts and steps that are longer together than the cache or the context of
            the model; for tokens outside of its vocabulary; for options out of range. After it, where logits were NaN
            (bad params). Under ``jit`` values are not looked at: tokens are -1 from there on.

    >>> from jaxblocks.models.llama import Llama
    >>> sizes = dict(vocab_size=256, layers=2, heads=2, features=8, hidden=16)
    >>> tokenizer = ByteTokenizer()
    >>> prompts, lengths = pad_prompts([tokenizer.encode("once upon"), tokenizer.encode("if")])
    >>> params = Llama(**sizes).init(jax.random.key(0), prompts)
    >>> key = jax.random.key(1)
    >>> texts = generate(Llama(**sizes, cache=32), params, prompts, lengths=lengths, key=key, steps=4)
    >>> same = generate(Llama(**sizes), params, prompts, lengths=lengths, key=key, steps=4)
    >>> texts.shape, bool((texts == same).all()), tokenizer.decode(texts)[1][:2]
    ((2, 13), True, 'if')

    Source: Holtzman et al. 2019, The curious case of neural text degeneration (ways to draw).
    """
    if not isinstance(model, (Layer, StatefulLayer)):
        raise TypeError(
            f"generate expects a pair, such as GPT2(cache=1024), but {describe_any(model)} came; the order is model, "
            "params, prompts."
        )
    require_key("generate", key)
    steps = require_whole("generate", "steps", steps)
    prompts = _as_tokens("prompts", prompts)
    if not prompts.ndim or not prompts.shape[-1]:
        raise ValueError(
            f"generate expects prompts (..., time) of at least one token, but {describe(prompts)} came; begin an empty "
            "one with a token of its own, such as a newline."
        )
    lengths = None if lengths is None else _as_tokens("lengths", lengths)
    source = None if source is None else _as_tokens("source", source)
    vocabulary = _check_room(model, params, prompts, steps, source)
    _check_prompts(prompts, lengths, source, vocabulary)
    _check_truncation("generate", vocabulary, top_k, top_p)
    if stop is not None and not (isinstance(stop, numbers.Integral) and 0 <= stop < vocabulary):
        raise ValueError(
            f"generate expects stop to be a token of the model, 0, ..., {vocabulary - 1}, but {stop!r} came; pass for "
            "instance int(tokenizer.encode('.')[0])."
        )
    known = checkable(jnp.asarray(temperature), False)
    if known is not None and not 0 <= known < jnp.inf:
        raise ValueError(
            f"generate expects a temperature >= 0, but {temperature!r} came; 0 takes the likeliest token, 1 draws from "
            "the model as it is."
        )
    greedy = known is not None and known == 0
    options = dict(
        temperature=None if greedy else jnp.asarray(temperature, jnp.float32),
        top_p=None if top_p is None else jnp.asarray(top_p, jnp.float32),
        stop=None if stop is None else jnp.asarray(int(stop), jnp.int32),
    )
    tokens = _generate(model, steps, top_k, params, prompts, lengths, source, key, options)
    known = checkable(tokens, False)
    if known is not None:
        check_values(
            known >= 0,
            "generate drew nothing from position {first} on, in {rows} of the texts, since the logits of the model are "
            "NaN there; look at its params with jax.tree.map(lambda x: jnp.isfinite(x).all(), params).",
            first=jnp.argmax((known < 0).reshape(-1, known.shape[-1]).any(0)),
            rows=jnp.sum((known < 0).any(-1)),
        )
    return tokens


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _generate(model, steps, top_k, params, prompts, lengths, source, key, options):
    *batch, time = prompts.shape
    temperature, top_p, stop = options["temperature"], options["top_p"], options["stop"]
    if lengths is not None:  # what stands at padding may be no token
        prompts = jnp.where(_inside(prompts, lengths), prompts, 0)
    tokens = jnp.concatenate([prompts, jnp.zeros((*batch, steps), jnp.int32)], -1)
    first = time if lengths is None else 1  # so many at once; then one after the other
    source = () if source is None else (source,)

    def write(t, tokens, done, logits):
        """The token at t, which is drawn where it does not belong to the prompt."""
        if temperature is None:
            drawn = jnp.argmax(logits, -1)
        else:
            logits = truncate_logits(widen(logits) / temperature, top_k, top_p)
            drawn = jax.random.categorical(jax.random.fold_in(key, t), logits)
        drawn = jnp.where(jnp.isnan(logits).any(-1), -1, drawn.astype(jnp.int32))
        ours = True if lengths is None else lengths <= t
        if stop is not None:
            drawn = jnp.where(done, stop, drawn)
            done = ours & (drawn == stop)
        drawn = jnp.where(ours, drawn, tokens[..., t])
        return tokens.at[..., t].set(drawn), done

    if isinstance(model, StatefulLayer):
        _, state = model.init(jax.random.key(0), *source, tokens[..., :first])
        logits, state = model.apply(params, state, *source, tokens[..., :first])
        logits = logits[..., -1, :]

        def read(t, tokens, state):
            logits, state = model.apply(params, state, lax.dynamic_slice_in_dim(tokens, t, 1, -1))
            return logits[..., 0, :], state

    else:
        state = ()

        def read(t, tokens, state):
            return model.apply(params, *source, tokens)[..., t, :], state

        logits, _ = read(first - 1, tokens, state)

    def step(carry, t):
        tokens, done, logits, state = carry
        tokens, done = write(t, tokens, done, logits)
        return (tokens, done, *read(t, tokens, state)), None

    end = time + steps
    carry = tokens, jnp.zeros(batch, bool), logits, state
    (tokens, done, logits, _), _ = lax.scan(step, carry, jnp.arange(first, end - 1))
    return write(end - 1, tokens, done, logits)[0]


def _inside(prompts, lengths):
    """Which places of the padded prompts belong to them."""
    return jnp.broadcast_to(jnp.arange(prompts.shape[-1]), prompts.shape) < lengths[..., None]


# ---- checks ----------------------------------------------------------------------------------


def _require_text(where, text):
    if not isinstance(text, str):
        raise TypeError(f"{where} expects a string, but {describe_any(text)} came; call it for each text by itself.")


def _code_points(text):
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


def _unknown(where, text, place, why):
    before = text[max(place - 10, 0) : place]
    after = f", after {before!r}" if before else ""
    return ValueError(f"{where} cannot encode {text[place]!r} at position {place}{after}: {why}.")


def _decoder(where, vocabulary, join):
    def decode(tokens):
        tokens = np.asarray(tokens, np.int32 if np.size(tokens) == 0 else None)
        if not np.issubdtype(tokens.dtype, np.integer) or not tokens.ndim:
            raise TypeError(f"{where} decodes whole numbers (time,), but {describe(tokens)} came.")
        bad = (tokens < 0) | (tokens >= vocabulary)
        if bad.any():
            place = tuple(int(i) for i in np.argwhere(bad)[0])
            at = place[0] if len(place) == 1 else place
            raise ValueError(
                f"{where} decodes tokens from 0 to {vocabulary - 1}, but {tokens[place]} came at position {at}; decode "
                "what a model with this vocabulary wrote."
            )
        return join(tokens.tolist()) if tokens.ndim == 1 else [decode(row) for row in tokens]

    return decode


def _as_tokens(name, x):
    if not hasattr(x, "dtype") or not jnp.issubdtype(x.dtype, jnp.integer):
        raise TypeError(
            f"generate expects {name} to be an array of whole numbers, but {describe_any(x)} came; encode a text with "
            "ByteTokenizer().encode(text), and several with pad_prompts."
        )
    return jnp.asarray(x).astype(jnp.int32)


def _check_tokens(where, tokens, vocabulary, what="tokens"):
    known = checkable(tokens, False)
    if known is None or not known.size:
        return
    bad = (known < 0) | (known >= vocabulary)
    place = tuple(int(i) for i in jnp.unravel_index(jnp.argmax(bad.ravel()), bad.shape))
    check_values(
        ~bad,
        f"{where} expects {what} from 0 to {vocabulary - 1}, the vocabulary of the model, but {{came}} came at "
        f"{place[0] if len(place) == 1 else place}; encode the text with the tokenizer of the text that the model was "
        "trained on.",
        came=known[place],
    )


def _check_prompts(prompts, lengths, source, vocabulary):
    if source is not None:
        _check_tokens("generate", source, vocabulary, "tokens of the source")
    time = prompts.shape[-1]
    if lengths is None:
        return _check_tokens("generate", prompts, vocabulary, "tokens of prompts")
    if lengths.shape != prompts.shape[:-1]:
        raise ValueError(
            f"generate expects one length for each prompt, {prompts.shape[:-1]}, but {describe(lengths)} came for "
            f"prompts {describe(prompts)}; make both with pad_prompts."
        )
    known = checkable(lengths, False)
    if known is None:
        return None
    check_values(
        (known >= 1) & (known <= time),
        f"generate expects lengths from 1 to {time}, the length of the longest prompt, but they go from {{least}} to "
        "{most}; make them with pad_prompts, and begin an empty prompt with a token of its own, such as a newline.",
        least=jnp.min(known, initial=time),
        most=jnp.max(known, initial=1),
    )
    prompts = jnp.where(_inside(prompts, known), prompts, 0)
    return _check_tokens("generate", prompts, vocabulary, "tokens of prompts")


def _check_room(model, params, prompts, steps, source):
    """The size of the model's vocabulary; raises where the whole text does not fit into the model."""

    def logits(time):
        tokens = jax.ShapeDtypeStruct((*prompts.shape[:-1], time), jnp.int32)
        inputs = (tokens,) if source is None else (jax.ShapeDtypeStruct(source.shape, jnp.int32), tokens)
        apply = jax.jit(model.apply)  # under jit, so that the second call of generate does not trace it again
        if isinstance(model, Layer):
            return apply.eval_shape(params, *inputs)
        _, state = jax.jit(model.init).eval_shape(jax.random.key(0), *inputs)
        return apply.eval_shape(params, state, *inputs)[0]

    came = logits(1)  # whatever this raises has nothing to do with the length
    if getattr(came, "shape", ())[:-1] != (*prompts.shape[:-1], 1):
        raise TypeError(
            f"generate expects a model from tokens (..., time) to logits (..., time, vocabulary), but it put out "
            f"{describe_any(came)} for tokens {(*prompts.shape[:-1], 1)}."
        )
    time, total = prompts.shape[-1], prompts.shape[-1] + steps
    try:
        logits(total)
    except ValueError as error:
        raise ValueError(
            f"generate writes {steps} tokens after prompts of {time}, {total} together, which is more than the model "
            f"takes; ask for fewer steps, cut the prompts on their left, or build the model for longer texts. It says: "
            f"{error}"
        ) from error
    return came.shape[-1]


def _check_truncation(where, vocabulary, top_k, top_p):
    if top_k is not None and require_whole(where, "top_k", top_k) > vocabulary:
        raise ValueError(
            f"{where} expects top_k to be at most {vocabulary}, the size of the vocabulary, but {top_k} came; leave it "
            "out to keep all."
        )
    known = None if top_p is None else checkable(jnp.asarray(top_p), False)
    if known is not None and not 0 < known <= 1:
        raise ValueError(
            f"{where} expects top_p in (0, 1], but {top_p!r} came; it is a probability: 0.9 keeps the likeliest tokens "
            "that make up nine tenths."
        )
