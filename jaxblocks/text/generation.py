"""Generation: continuations of prompts, sampled from a language model, at once or token by token.

Axis letters: ``*batch``; ``time`` of the prompts; ``source_time`` of the source, ``bands`` its features; ``vocab``.
"""

import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jaxtyping import Array, Float, Integer, Key, PyTree

from jaxblocks.backend.jit_cache import jit_with_static
from jaxblocks.backend.platforms import platform
from jaxblocks.backend.precision import widen
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Range, checked
from jaxblocks.checks.values import as_int32, checkable, reject_traced
from jaxblocks.core.pairs import Layer, StatefulLayer
from jaxblocks.layers.combinators import unstack_repeats
from jaxblocks.text.prompts import (
    Source,
    SourceMask,
    Tokens,
    check_drawn,
    checked_calls,
    initial_state,
    inside,
    is_undefined,
    processed,
    source_of,
)
from jaxblocks.text.truncation import below_best, check_top_k, truncate_logits

__all__ = ["generate", "stream"]

Lengths: TypeAlias = Integer[Array, "*batch"] | Integer[np.ndarray, "*batch"] | None
Temperature: TypeAlias = NonNegativeFloat | NonNegativeInt | Float[Array, ""]
TopP: TypeAlias = Annotated[float, Range(0, most=1, open_below=True)] | Literal[1] | Float[Array, ""] | None
MinP: TypeAlias = Annotated[float | int, Range(0, most=1)] | Float[Array, ""] | None
Penalty: TypeAlias = PositiveFloat | Float[Array, ""] | None


@checked
def generate(
    model: Layer[Any] | StatefulLayer[Any],
    params: PyTree,
    prompts: Tokens,
    *,
    key: Key[Array, ""] | None = None,
    steps: PositiveInt,
    lengths: Lengths = None,
    temperature: Temperature = 1.0,
    top_k: PositiveInt | None = None,
    top_p: TopP = None,
    min_p: MinP = None,
    repetition_penalty: Penalty = None,
    processors: tuple[Callable, ...] = (),
    stop: int | None = None,
    source: Source = None,
    source_mask: SourceMask = None,
    bucket: PositiveInt = 32,
) -> Integer[Array, "*batch _total"]:
    r"""Continue prompts with tokens drawn from a model, one after another: $x_{t+1} ∼ softmax(z_t / τ)$.

    $z_t$ are the logits of the model after $x_0, …, x_t$, and $τ$ is ``temperature``.
    Generation is a compiled pass over the prompts, then a compiled loop over tokens, in parts of about half a second,
    between which Ctrl-C takes effect; under ``jit`` it is one loop. A ``StatefulLayer``
    (``cache=``, ``stateful=``) reads each token once; a ``Layer`` computes the whole text again at every step. Both
    draw the same tokens.

    Args:
        model: tokens ``(..., time)`` to logits ``(..., time, vocab)``; logits at t must not depend on tokens
            after t. With ``cache=``, generation starts with an empty cache.
        params: of the model.
        prompts: at least one token each.
        key: the random key; position t draws from ``fold_in(key, t)``, the same with and without cache. It may
            be left out where the temperature is 0.
        steps: the number of tokens that are generated after the longest prompt.
        lengths: the length of each prompt, if they differ. Tokens beyond the length are not read (see `pad_prompts`);
            drawn tokens replace them, so shorter prompts get longer continuations. By default all prompts have the full
            length.
        temperature: below 1 sharpens the distribution, above 1 flattens it; 0 (and below 1.2e-38) takes the likeliest
            token, the first of equal ones, and draws nothing. It may be traced.
        top_k, top_p, min_p: as in `truncate_logits`, after the temperature.
        repetition_penalty: r divides the positive logits of tokens that the text contains, and multiplies the negative
            ones; above 1 such tokens become less likely.
        processors: functions ``f(logits, tokens, t) -> logits``, applied in order to the logits of position t, before
            the temperature and after the repetition penalty; -inf excludes a token, and +inf all others. ``tokens``,
            ``(..., total)``, are the texts, padded by ``bucket``; entries from t on are not written yet. Pass the same
            function objects each time: new ones are compiled again.
        stop: a token that ends a text: after the model has drawn it, the rest of the row is filled with it. In a prompt
            it has no effect. The loop ends when all texts have ended.
        source: the source of an encoder-decoder model, tokens or a spectrogram; the model is called with ``source,
            tokens`` (with a cache only in the first call).
        source_mask: ``False`` at padding of the source, the ``mask`` of the model.
        bucket: prompts are padded to a multiple of this length if they and ``steps`` still fit into the model, so
            that prompts of other lengths do not compile again; 1 does not pad. The padding has no effect on the texts.
            Models whose state cannot go back to an earlier position (recurrent ones) are not padded.

    Returns:
        int32 ``(..., time + steps)``: each row a prompt and its continuation.

    Raises:
        TypeError: for a model that is not a pair, and prompts that are not integers.
        ValueError: before the computation, if prompts and steps together exceed the cache or the context of the model,
            for tokens outside of its vocabulary, and for options out of range; after it, if logits are NaN. Under
            ``jit`` values are not checked; from the first NaN logits on, tokens are -1.

    On CPU, for a ``StatefulLayer`` with less than 2 GiB of params, a second copy of the params of each `Repeat` is in
    memory during the call (see `unstack_repeats`).

    >>> from jaxblocks.models.llama import Llama
    >>> from jaxblocks.text import ByteTokenizer
    >>> model = Llama(vocab_size=256, layers=1, heads=2, features=8, hidden=16, cache=32)
    >>> tokenizer = ByteTokenizer()
    >>> prompts, lengths = pad_prompts(map(tokenizer.encode, ["once upon", "if"]))
    >>> params, _ = jax.jit(model.init)(jax.random.key(0), prompts)
    >>> def no_zeros(logits, tokens, t):
    ...     return logits.at[..., 0].set(-jnp.inf)
    >>> options = dict(min_p=0.1, repetition_penalty=1.2, processors=(no_zeros,), stop=10)
    >>> options |= dict(lengths=lengths, key=jax.random.key(1), steps=4)
    >>> texts = generate(model, params, prompts, **options)
    >>> texts.shape, tokenizer.decode(texts)[1][:2], bool((texts > 0).all())
    ((2, 13), 'if', True)

    Source: Holtzman et al. 2019, The curious case of neural text degeneration (decoding strategies), arXiv:1904.09751;
    Keskar et al. 2019, CTRL (repetition penalty), arXiv:1909.05858.
    """
    plan, *arrays = _prepare(
        model, params, prompts, key=key, steps=steps, bucket=bucket, temperature=temperature, top_k=top_k, top_p=top_p,
        min_p=min_p, repetition_penalty=repetition_penalty, processors=processors, stop=stop, source=source,
        source_mask=source_mask, lengths=lengths,
    )  # fmt: skip
    tokens = _generate(model, plan, params, *arrays)
    known = checkable(tokens, False)
    total = prompts.shape[-1] + steps
    if known is None or not tokens.is_fully_addressable:
        return tokens[..., :total]
    values = np.asarray(known)[..., :total]
    check_drawn(values)
    if tokens.shape[-1] == total:
        return tokens
    # A slice is compiled for each length; but a committed array stays on its devices.
    return tokens[..., :total] if tokens.committed else jnp.asarray(values)


@checked
def stream(
    model: Layer[Any] | StatefulLayer[Any],
    params: PyTree,
    prompts: Tokens,
    *,
    key: Key[Array, ""] | None = None,
    steps: PositiveInt,
    temperature: Temperature = 1.0,
    top_k: PositiveInt | None = None,
    top_p: TopP = None,
    min_p: MinP = None,
    repetition_penalty: Penalty = None,
    processors: tuple[Callable, ...] = (),
    stop: int | None = None,
    source: Source = None,
    source_mask: SourceMask = None,
    bucket: PositiveInt = 32,
) -> Iterator[np.ndarray]:
    """Yield the tokens of `generate` one after another, each as soon as it is drawn.

    The tokens are those that `generate` writes after the prompts, with the same key and options. The iterator ends
    after ``steps`` tokens, or with the one by which the last text ends.

    Args:
        model, params, prompts, key, steps, temperature, top_k, top_p, min_p: as in `generate`.
        repetition_penalty, processors, stop, source, source_mask, bucket: as in `generate`.

    Returns:
        An iterator over int32 arrays ``(...)``, one token for each prompt.

    Raises:
        TypeError, ValueError: at the call, as `generate`; for NaN logits while it runs.

    >>> model = Embedding(256, 256)  # logits that depend on the last token alone
    >>> prompt = jnp.array([104, 105])
    >>> params = model.init(jax.random.key(0), prompt)
    >>> options = dict(key=jax.random.key(1), steps=3)
    >>> written = [int(token) for token in stream(model, params, prompt, **options)]
    >>> written == generate(model, params, prompt, **options)[2:].tolist()
    True
    """
    reject_traced(params, prompts, key, temperature, source, source_mask)
    plan, *arrays = _prepare(
        model, params, prompts, key=key, steps=steps, bucket=bucket, temperature=temperature, top_k=top_k, top_p=top_p,
        min_p=min_p, repetition_penalty=repetition_penalty, processors=processors, stop=stop, source=source,
        source_mask=source_mask,
    )  # fmt: skip
    first, end = prompts.shape[-1], prompts.shape[-1] + steps

    def tokens():
        listed, carry = _start(model, plan, params, *arrays)
        for t in range(first, end):
            if t > first or plan.first is None:  # else _start has written the first one
                # Each step is a call of its own, so that its token is there before the next one is computed.
                carry = _continue(model, plan, listed, carry, np.int32(1), *arrays[1:])
            writing = carry[1]
            token = np.array(writing.tokens[..., t])
            check_drawn(token[..., None], t)
            yield token
            if stop is not None and np.asarray(writing.done).all():
                return

    return tokens()


# ---- the program -----------------------------------------------------------------------------


class _Plan(NamedTuple):
    """What is fixed when the program is compiled.

    Attributes:
        steps: the number of tokens after the longest prompt.
        first: the tokens that are read by the first call of a model whose state cannot go back; else ``None``.
        unstack: whether the layers of a `Repeat` are unrolled.
        may_be_greedy: whether the temperature is traced, so that it may be 0.
        top_k, processors: as in `generate`.
    """

    steps: int
    first: int | None
    unstack: bool
    may_be_greedy: bool
    top_k: int | None
    processors: tuple[Callable, ...]


class _Writing(NamedTuple):
    """The texts so far, which of them have ended, and the state of the model."""

    tokens: Any
    done: Any
    state: Any


_SECONDS = 0.5
"""The time of a program of several steps."""

_PROGRAMS = 16
"""How many programs of each kind are kept; one of a transformer with two layers takes about 15 MiB."""


@jit_with_static(2, most=_PROGRAMS)
def _start(model, plan, params, prompts, end, lengths, source, key, options):
    """Read the prompts: the params in the form that the loop takes, and the carry before its first step."""
    del end
    *batch, time = prompts.shape
    prompts = jnp.where(inside(prompts, lengths), prompts, 0)  # padding may be outside of the vocabulary
    tokens = jnp.concatenate([prompts, jnp.zeros((*batch, plan.steps), jnp.int32)], -1)
    state: Any = ()
    logits: Any = None
    if isinstance(model, StatefulLayer):
        number = time if plan.first is None else plan.first
        state = initial_state(model, *source.inputs, tokens[..., :1])
        if plan.unstack:  # before the loop, which slices nothing then
            params, state = unstack_repeats(model, params), unstack_repeats(model, state)
        logits, state = model.apply(params, state, *source.inputs, tokens[..., :number], **source.side)
        if plan.first is None:  # the last common token is read again in the loop
            state = _at_position(state, _shortest(prompts, lengths) - 1)
    writing = _Writing(tokens, jnp.zeros(batch, bool), state)
    if plan.first is not None:
        writing = _write(plan, writing, logits[..., -1, :], jnp.int32(plan.first), lengths, key, options)
        return params, (jnp.int32(plan.first + 1), writing)
    # Prompts of different lengths are read together up to the shortest one; from there on the loop writes, or copies
    # tokens of the longer prompts.
    return params, (_shortest(prompts, lengths), writing)


# The carry is donated, so that the cache is not copied.
@jit_with_static(2, most=_PROGRAMS, donate=(3,))
def _continue(model, plan, params, carry, number, end, lengths, source, key, options):
    """Make the next ``number`` steps, or fewer at the end of the texts."""
    stop, until = options["stop"], jnp.minimum(carry[0] + number, end)

    def running(carry):
        t, writing = carry
        return t < until if stop is None else (t < until) & ~writing.done.all()

    def step(carry):
        t, writing = carry
        return t + 1, _advance(model, plan, params, writing, t, lengths, source, key, options)

    last, writing = lax.while_loop(running, step, carry)
    if stop is None:
        return last, writing
    places = jnp.broadcast_to(jnp.arange(writing.tokens.shape[-1], dtype=last.dtype), writing.tokens.shape)
    # Where all texts have ended early, the rest is stop tokens, as in texts that end while others go on.
    rest = writing.done.all() & (places >= last) & (places < end)
    return jnp.where(writing.done.all(), end, last), writing._replace(tokens=jnp.where(rest, stop, writing.tokens))


def _generate(model, plan, params, prompts, end, *rest):
    """All steps: in programs of about half a second each, between which Python receives Ctrl-C."""
    listed, carry = _start(model, plan, params, prompts, end, *rest)
    is_traced = any(isinstance(x, Tracer) for x in jax.tree.leaves((listed, carry, rest)))
    if is_traced or not all(x.is_fully_addressable for x in jax.tree.leaves((listed, carry))):
        # Under jit, and where several processes must make the same programs.
        return _continue(model, plan, listed, carry, prompts.shape[-1] + plan.steps, end, *rest)[1].tokens
    number = 16  # steps of a program
    while (t := int(carry[0])) < end:  # which waits for the program
        begin = time.perf_counter()
        carry = _continue(model, plan, listed, carry, np.int32(number), end, *rest)
        made = int(carry[0]) - t  # which waits, too
        fitting = int(_SECONDS * made / max(time.perf_counter() - begin, 1e-6))
        number = min(max(fitting, number // 2, 1), 16 * number)  # the first time includes the compilation
    return carry[1].tokens


def _advance(model, plan, params, writing, t, lengths, source, key, options):
    """Read the token before t, and write the one at t."""
    if isinstance(model, StatefulLayer):
        last = lax.dynamic_slice_in_dim(writing.tokens, t - 1, 1, -1)
        logits, state = model.apply(params, writing.state, last)
        logits, writing = logits[..., -1, :], writing._replace(state=state)
    else:
        logits = model.apply(params, *source.inputs, writing.tokens, **source.side)
        logits = lax.dynamic_index_in_dim(logits, t - 1, -2, keepdims=False)
    return _write(plan, writing, logits, t, lengths, key, options)


_COLDEST = float(jnp.finfo(jnp.float32).tiny)  # a smaller temperature counts as 0
_HOTTEST = 1e37  # larger ones count as this: -inf / inf would be NaN, and -inf times a reciprocal that underflows


def _write(plan, writing, logits, t, lengths, key, options):
    """Write the tokens at t, drawn unless they belong to the prompts."""
    tokens, done, state = writing
    temperature, stop = options["temperature"], options["stop"]
    unknown = is_undefined(logits)
    if options["repetition_penalty"] is not None:
        penalty = options["repetition_penalty"].astype(logits.dtype)
        seen = _tokens_before(t, tokens, logits.shape[-1])
        logits = jnp.where(seen, jnp.where(logits > 0, logits / penalty, logits * penalty), logits)
    logits = processed(plan.processors, logits, tokens, t)
    unknown = unknown | is_undefined(logits)
    if temperature is None:
        drawn = jnp.argmax(logits, -1)
    else:
        # Logits divided by a temperature of 0 would be NaN or infinite, also where the result is not used.
        temperature = widen(temperature)
        is_warm = temperature >= _COLDEST
        positive = jnp.where(is_warm, temperature, 1) if plan.may_be_greedy else temperature
        differences = below_best(widen(logits))  # so that no quotient is +inf
        # In the dtype of the logits, also where a Python number is float64.
        positive = jnp.minimum(positive, _HOTTEST).astype(differences.dtype)
        kept = truncate_logits(differences / positive, top_k=plan.top_k, top_p=options["top_p"], min_p=options["min_p"])
        # The key of a position: a text does not depend on how many steps are made, or in which calls.
        drawn = jax.random.categorical(jax.random.fold_in(key, t), kept)
        if plan.may_be_greedy:
            drawn = jnp.where(is_warm, drawn, jnp.argmax(logits, -1))
    drawn = jnp.where(unknown, -1, drawn.astype(jnp.int32))
    is_drawn = lengths <= t
    if stop is not None:
        drawn = jnp.where(done, stop, drawn)
        # Only a drawn token ends a text: a prompt may contain the stop token.
        done = is_drawn & (drawn == stop)
    drawn = jnp.where(is_drawn, drawn, lax.dynamic_index_in_dim(tokens, t, -1, keepdims=False))
    return _Writing(lax.dynamic_update_index_in_dim(tokens, drawn, t, -1), done, state)


def _tokens_before(t, tokens, vocab_size: int):
    """Whether each token of the vocabulary is in a text ``(..., time)`` before t: ``(..., vocab)``."""
    before = jnp.broadcast_to(jnp.arange(tokens.shape[-1], dtype=jnp.int32) < t, tokens.shape)
    mark = lambda tokens: jnp.zeros(vocab_size, bool).at[tokens].set(True, mode="drop")
    return jnp.vectorize(mark, signature="(t)->(v)")(jnp.where(before, tokens, vocab_size))


def _at_position(state, position):
    """The state with all positions set to this one."""
    # Later keys stay in the cache: causal order hides them until they are overwritten.
    place = lambda path, x: jnp.full_like(x, position) if getattr(path[-1], "key", None) == "position" else x
    return jax.tree.map_with_path(place, state)


def _shortest(prompts, lengths):
    """The length of the shortest prompt; without prompts that of the array."""
    return jnp.min(lengths, initial=prompts.shape[-1])


# ---- checks ----------------------------------------------------------------------------------

_UNSTACKED_BELOW = 2**31
"""Bytes of params up to which a second copy of them is made on CPU."""


def _prepare(
    model, params, prompts, *, key, steps, bucket, temperature, top_k, top_p, min_p, repetition_penalty, processors,
    stop, source, source_mask, lengths=None,
):  # fmt: skip
    """Check the arguments; the plan, and the arrays that the program takes after the params."""
    time, source = prompts.shape[-1], source_of(source, source_mask)
    calls, vocab_size = checked_calls(model, params, prompts, lengths, source, steps, stop)
    prompts = jnp.asarray(as_int32(prompts))
    lengths = lengths if lengths is None else jnp.asarray(as_int32(lengths))
    check_top_k(top_k, vocab_size)
    # A state that cannot go back, as that of a recurrent net, must not read beyond a prompt: with several lengths only
    # the first token is read at once.
    first = None
    if isinstance(model, StatefulLayer) and not calls.can_go_back:
        first = time if lengths is None else 1
    # Lengths in steps of `bucket`, so that few lengths are compiled.
    padded = -(-time // bucket) * bucket
    if first is None and padded > time and calls.fit(padded, steps):
        prompts = _padded(prompts, padded)
    if lengths is None:
        lengths = np.full(prompts.shape[:-1], time, np.int32)
    is_traced = isinstance(temperature, Tracer)  # or else fixed before jit traces the number
    is_greedy = not is_traced and float(temperature) < _COLDEST
    repair = "write key=jax.random.key(0), or temperature=0 for the likeliest tokens"
    require(is_greedy or key is not None, "the argument key", "none", repair, error=TypeError)
    number = lambda x: x if x is None or isinstance(x, jax.Array) else float(x)
    options = dict(
        temperature=None if is_greedy else number(temperature),
        top_p=None if is_greedy else number(top_p),
        min_p=None if is_greedy else number(min_p),
        repetition_penalty=number(repetition_penalty),
        stop=None if stop is None else np.int32(stop),
    )
    # Slices of stacked params are copied in each step on CPU; unstacked ones are read in place, at the price of a copy.
    size = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(params) if hasattr(x, "size"))
    unstack = isinstance(model, StatefulLayer) and platform() == "cpu" and size < _UNSTACKED_BELOW
    plan = _Plan(int(steps), first, unstack, is_traced, None if is_greedy else top_k, tuple(processors))
    return plan, prompts, np.int32(time + steps), lengths, source, key, options


def _padded(prompts, length: int):
    """Zeros after the prompts up to this length; on the host, which compiles nothing, unless these are committed."""
    more = [(0, 0)] * (prompts.ndim - 1) + [(0, length - prompts.shape[-1])]
    on_device = isinstance(prompts, Tracer) or prompts.committed
    return (jnp if on_device else np).pad(prompts, more)
