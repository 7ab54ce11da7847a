"""Generation: continuations of prompts, sampled from a language model.

Axis letters: ``*batch``; ``time`` of the prompts; ``source_time`` of the source; ``vocab``.
"""

import functools
from collections.abc import Iterable
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jaxtyping import Array, Float, Integer, Key

from jaxblocks.checks import (
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    Range,
    check_values,
    checkable,
    checked,
    describe,
    require,
)
from jaxblocks.core import Layer, StatefulLayer
from jaxblocks.precision import widen
from jaxblocks.text.truncation import check_top_k, truncate_logits
from jaxblocks.text.vocabulary import check_tokens

__all__ = ["generate", "pad_prompts"]


def pad_prompts(prompts: Iterable[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Prompts of different lengths as one array with zeros on the right, and their lengths, for `generate`.

    Args:
        prompts: integer arrays ``(time,)``, of any lengths.

    Returns:
        int32 ``(prompts, time)`` and ``(prompts,)``, with time the length of the longest.

    Raises:
        ValueError: for no prompts, or one that is not an integer array with one axis.

    >>> from jaxblocks.text import ByteTokenizer
    >>> encode = ByteTokenizer().encode
    >>> pad_prompts([encode("ab"), encode("c")])
    (array([[97, 98],
           [99,  0]], dtype=int32), array([2, 1], dtype=int32))
    """
    rows = [np.asarray(prompt) for prompt in prompts]
    require(rows, "at least one prompt", "none", "pass a list of encoded texts")
    for number, row in enumerate(rows):
        if row.ndim != 1 or not np.issubdtype(row.dtype, np.integer):
            got, repair = (
                f"{describe(row)} for prompt {number}",
                "encode each text: [tokenizer.encode(t) for t in texts]",
            )
            require(False, "prompts of integers (time,)", got, repair)
    lengths = np.array([row.size for row in rows], np.int32)
    padded = np.zeros((len(rows), lengths.max()), np.int32)
    for number, row in enumerate(rows):
        padded[number, : row.size] = row
    return padded, lengths


@checked
def generate(
    model: Layer | StatefulLayer,
    params: Any,
    prompts: Integer[Array, "*batch time"] | Integer[np.ndarray, "*batch time"],
    *,
    key: Key[Array, ""],
    steps: PositiveInt,
    lengths: Integer[Array, "*batch"] | Integer[np.ndarray, "*batch"] | None = None,
    temperature: NonNegativeFloat | NonNegativeInt | Float[Array, ""] = 1.0,
    top_k: PositiveInt | None = None,
    top_p: Annotated[float, Range(0, most=1, open_below=True)] | Literal[1] | Float[Array, ""] | None = None,
    stop: int | None = None,
    source: Integer[Array, "*batch source_time"] | Integer[np.ndarray, "*batch source_time"] | None = None,
) -> Integer[Array, "*batch _total"]:
    r"""Continue prompts with tokens drawn from a model, one after another: :math:`x_{t+1} \sim softmax(z_t / \tau)`.

    :math:`z_t` are the logits of the model after :math:`x_0, \dots, x_t`, and :math:`\tau` is ``temperature``.
    Generation is one compiled scan. A ``StatefulLayer`` (``cache=``, ``stateful=``) reads each token once; a ``Layer``
    computes the whole text again at every step. Both draw the same tokens.

    Args:
        model: tokens ``(..., time)`` to logits ``(..., time, vocab)``; logits at t must not depend on tokens
            after t. With ``cache=``, generation starts with an empty cache.
        params: of the model.
        prompts: at least one token each.
        key: the random key; position t draws from ``fold_in(key, t)``, the same with and without cache.
        steps: the number of tokens that are generated after the longest prompt.
        lengths: the length of each prompt, if they differ. Tokens beyond the length are not read (see `pad_prompts`);
            drawn tokens replace them, so shorter prompts get longer continuations. By default all prompts have the full
            length.
        temperature: below 1 sharpens the distribution, above 1 flattens it; 0 takes the likeliest token (the first of
            equal ones) and draws nothing. It may be traced.
        top_k, top_p: as in `truncate_logits`, after the temperature.
        stop: a token that ends a text: after the model has drawn it, the rest of the row is filled with it. In a prompt
            it has no effect.
        source: the source of an encoder-decoder model, which is called with ``source, tokens`` (with a cache only
            in the first call).

    Returns:
        int32 ``(..., time + steps)``: each row a prompt and its continuation.

    Raises:
        TypeError: for a model that is not a pair, and prompts that are not integers.
        ValueError: before the computation, if prompts and steps together exceed the cache or the context of the model,
            for tokens outside of its vocabulary, and for options out of range; after it, if logits are NaN. Under
            ``jit`` values are not checked; from the first NaN logits on, tokens are -1.

    >>> from jaxblocks.models.llama import Llama
    >>> from jaxblocks.text import ByteTokenizer
    >>> sizes = dict(vocab_size=256, layers=2, heads=2, features=8, hidden=16)
    >>> tokenizer = ByteTokenizer()
    >>> prompts, lengths = pad_prompts([tokenizer.encode("once upon"), tokenizer.encode("if")])
    >>> params = Llama(**sizes).init(jax.random.key(0), prompts)
    >>> key = jax.random.key(1)
    >>> texts = generate(Llama(**sizes, cache=32), params, prompts, lengths=lengths, key=key, steps=4)
    >>> same = generate(Llama(**sizes), params, prompts, lengths=lengths, key=key, steps=4)
    >>> texts.shape, bool((texts == same).all()), tokenizer.decode(texts)[1][:2]
    ((2, 13), True, 'if')

    Source: Holtzman et al. 2019, The curious case of neural text degeneration (decoding strategies), arXiv:1904.09751.
    """
    is_pair = isinstance(model, (Layer, StatefulLayer))
    require(is_pair, "a model that is a pair", model, "the order is model, params, prompts", error=TypeError)
    has_tokens = prompts.shape[-1] > 0
    require(has_tokens, "prompts of at least one token", prompts, "begin an empty one with a token such as a newline")
    prompts = jnp.asarray(prompts, jnp.int32)
    lengths, source = (x if x is None else jnp.asarray(x, jnp.int32) for x in (lengths, source))
    vocab_size = _check_room(model, params, prompts, steps, source)
    _check_prompts(prompts, lengths, source, vocab_size)
    check_top_k(top_k, vocab_size)
    if stop is not None and not 0 <= stop < vocab_size:
        expected = f"stop to be a token of the model, 0, ..., {vocab_size - 1}"
        require(False, expected, stop, "pass for instance int(tokenizer.encode('.')[0])")
    is_greedy = not isinstance(temperature, Tracer) and temperature == 0  # before jit would trace the number
    options = dict(
        temperature=None if is_greedy else jnp.asarray(temperature, jnp.float32),
        top_p=None if top_p is None else jnp.asarray(top_p, jnp.float32),
        stop=None if stop is None else jnp.asarray(int(stop), jnp.int32),
    )
    tokens = _generate(model, int(steps), top_k, params, prompts, lengths, source, key, options)
    known = checkable(tokens, False)
    if known is not None:
        check_values(
            known >= 0,
            "finite logits, got NaN from position {first} on in {rows} of the texts; check the params with "
            "jax.tree.map(lambda x: jnp.isfinite(x).all(), params)",
            first=jnp.argmax((known < 0).reshape(-1, known.shape[-1]).any(0)),
            rows=jnp.sum((known < 0).any(-1)),
        )
    return tokens


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _generate(model, steps, top_k, params, prompts, lengths, source, key, options):
    *batch, time = prompts.shape
    temperature, top_p, stop = options["temperature"], options["top_p"], options["stop"]
    if lengths is not None:  # padding may be outside of the vocabulary
        prompts = jnp.where(_inside(prompts, lengths), prompts, 0)
    tokens = jnp.concatenate([prompts, jnp.zeros((*batch, steps), jnp.int32)], -1)
    first = time if lengths is None else 1  # the tokens that are read in one call; the others are read one by one
    source = () if source is None else (source,)

    def write(t, tokens, done, logits):
        """The token at t, drawn unless it belongs to the prompt."""
        if temperature is None:
            drawn = jnp.argmax(logits, -1)
        else:
            positive = jnp.where(temperature > 0, temperature, 1)  # a traced temperature may be 0
            kept = truncate_logits(widen(logits) / positive, top_k=top_k, top_p=top_p)
            drawn = jax.random.categorical(jax.random.fold_in(key, t), kept)
            drawn = jnp.where(temperature > 0, drawn, jnp.argmax(logits, -1))
        drawn = jnp.where(jnp.isnan(logits).any(-1), -1, drawn.astype(jnp.int32))
        is_drawn = True if lengths is None else lengths <= t
        if stop is not None:
            drawn = jnp.where(done, stop, drawn)
            done = is_drawn & (drawn == stop)
        drawn = jnp.where(is_drawn, drawn, tokens[..., t])
        return tokens.at[..., t].set(drawn), done

    if isinstance(model, StatefulLayer):
        read = lambda t, tokens, state: model.apply(params, state, lax.dynamic_slice_in_dim(tokens, t, 1, -1))
        _, state = model.init(jax.random.key(0), *source, tokens[..., :first])
        logits, state = model.apply(params, state, *source, tokens[..., :first])
    else:
        read = lambda t, tokens, state: (model.apply(params, *source, tokens)[..., t, None, :], state)
        logits, state = read(first - 1, tokens, ())

    def step(carry, t):
        tokens, done, logits, state = carry
        tokens, done = write(t, tokens, done, logits)
        logits, state = read(t, tokens, state)
        return (tokens, done, logits[..., -1, :], state), None

    end = time + steps
    carry = tokens, jnp.zeros(batch, bool), logits[..., -1, :], state
    (tokens, done, logits, _), _ = lax.scan(step, carry, jnp.arange(first, end - 1))
    return write(end - 1, tokens, done, logits)[0]


def _inside(prompts, lengths):
    """True at the tokens of the prompts, False at padding."""
    return jnp.broadcast_to(jnp.arange(prompts.shape[-1]), prompts.shape) < lengths[..., None]


def _check_prompts(prompts, lengths, source, vocab_size):
    if source is not None:
        check_tokens(source, vocab_size, "tokens of the source")
    time = prompts.shape[-1]
    if lengths is not None:
        known = checkable(lengths, False)
        if known is None:
            return
        check_values(
            (known >= 1) & (known <= time),
            f"lengths from 1 to {time}, the length of the longest prompt, got {{least}} to {{most}}; make them with "
            "pad_prompts, and begin an empty prompt with a token such as a newline",
            least=jnp.min(known, initial=time),
            most=jnp.max(known, initial=1),
        )
        prompts = jnp.where(_inside(prompts, known), prompts, 0)
    check_tokens(prompts, vocab_size, "tokens of prompts")


def _check_room(model, params, prompts, steps, source) -> int:
    """The vocabulary size of the model; raises if the whole text does not fit into the model."""

    def logits(time):
        tokens = jax.ShapeDtypeStruct((*prompts.shape[:-1], time), jnp.int32)
        inputs = (tokens,) if source is None else (jax.ShapeDtypeStruct(source.shape, jnp.int32), tokens)
        apply = jax.jit(model.apply)  # under jit, so that a second call of generate does not trace it again
        if isinstance(model, Layer):
            return apply.eval_shape(params, *inputs)
        _, state = jax.jit(model.init).eval_shape(jax.random.key(0), *inputs)
        return apply.eval_shape(params, state, *inputs)[0]

    found = logits(1)  # an error of this call does not concern the length
    fits = getattr(found, "shape", ())[:-1] == (*prompts.shape[:-1], 1)
    expected = "a model from tokens (..., time) to logits (..., time, vocab)"
    require(fits, expected, found, "use a model that returns one row of logits for each token", error=TypeError)
    time, total = prompts.shape[-1], prompts.shape[-1] + steps
    try:
        logits(total)
    except ValueError as error:
        got = f"{steps} tokens after prompts of {time}, {total} together"
        repair = "use fewer steps, cut the prompts on their left, or build the model for longer texts"
        try:
            repair += f"; error of the model: {str(error).removesuffix('.')}"
            require(False, "prompts and steps that fit into the model", got, repair)
        except ValueError as longer:
            raise longer from error
    return found.shape[-1]
