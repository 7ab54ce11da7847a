"""Beam search: the likeliest continuations that a search with a fixed number of candidates finds.

Axis letters: ``*batch``; ``time`` of the prompts; in the code b texts, k beams, v tokens of the vocabulary.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Integer, PyTree

from jaxblocks.backend.jit_cache import jit_with_static
from jaxblocks.backend.precision import widen
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import PositiveInt, checked
from jaxblocks.checks.values import as_int32, checkable
from jaxblocks.core.pairs import Layer, StatefulLayer
from jaxblocks.text.prompts import (
    Source,
    SourceInputs,
    SourceMask,
    Tokens,
    check_drawn,
    checked_calls,
    initial_state,
    is_undefined,
    processed,
    source_of,
)
from jaxblocks.text.truncation import below_best

__all__ = ["beam_search"]


@checked
def beam_search(
    model: Layer[Any] | StatefulLayer[Any],
    params: PyTree,
    prompts: Tokens,
    *,
    steps: PositiveInt,
    beams: PositiveInt = 4,
    length_penalty: float | int = 1.0,
    early_stopping: bool = False,
    processors: tuple[Callable, ...] = (),
    stop: int | None = None,
    source: Source = None,
    source_mask: SourceMask = None,
) -> Integer[Array, "*batch _total"]:
    r"""Continue prompts with the likeliest text of n tokens by $(1 / n^α) ∑_t log p(x_t|x_{<t})$.

    At each step every text has k candidates; of all their continuations by one token, the k likeliest that do not end
    the text are the next candidates. Those of the k likeliest that do end it are kept as results if they are among
    the k best so far. A text is complete when its best candidate, at its length so far, has no better score than the
    worst of k results.

    Args:
        model, params, prompts, source, source_mask: as in `generate`; all prompts have the same length.
        steps: the largest number of tokens that are generated.
        beams: k, the number of candidates; 1 is greedy where no text ends early.
        length_penalty: $α$; larger values prefer longer texts.
        early_stopping: whether a text is complete as soon as it has k results.
        processors: functions ``f(log_probs, tokens, t) -> log_probs``, as in `generate`; their inputs have an axis more
            for the candidates.
        stop: a token that ends a text; the rest of the row is filled with it.

    Returns:
        int32 ``(..., time + steps)``: each row a prompt and its best continuation.

    Raises:
        TypeError, ValueError: as `generate`.

    >>> model = Embedding(3, 3)  # logits that depend on the last token alone
    >>> p = jnp.array([[0.01, 0.55, 0.44], [0.34, 0.33, 0.33], [0.05, 0.05, 0.9]])
    >>> params = {"embedding": jnp.log(p)}
    >>> # 0.44 * 0.9 is more than 0.55 * 0.34
    >>> beam_search(model, params, jnp.array([0]), steps=2, beams=2)
    Array([0, 2, 2], dtype=int32)

    Source: Graves 2012, Sequence transduction with recurrent neural networks, section 2.5, arXiv:1211.3711; the order
    of results and the end of the search are those of Hugging Face's transformers.
    """
    given = source_of(source, source_mask)
    rows = prompts.reshape(math.prod(prompts.shape[:-1]), prompts.shape[-1])
    number = len(prompts.shape) - 1
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[number:]), given)
    _, vocab_size = checked_calls(model, params, rows, None, flat, steps, stop)
    repair = "end the model with one logit for each token, such as Dense(vocab_size)"
    require(vocab_size > 1, "a model of at least two tokens", vocab_size, repair)
    if not len(rows):
        return jnp.zeros((*prompts.shape[:-1], prompts.shape[-1] + steps), jnp.int32)
    search = _Search(int(steps), int(beams), early_stopping, stop, processors)
    tokens = _beam_search(model, search, params, jnp.asarray(as_int32(rows)), flat, np.float32(length_penalty))
    known = checkable(tokens, False)
    if known is not None and tokens.is_fully_addressable:
        check_drawn(np.asarray(known))
    return tokens.reshape(*prompts.shape[:-1], -1)


class _Search(NamedTuple):
    """The options, which are fixed when the program is compiled."""

    steps: int
    beams: int
    early_stopping: bool
    stop: int | None
    processors: tuple[Callable, ...]


class _Beams(NamedTuple):
    """Texts and their scores, (b, k, total) and (b, k)."""

    tokens: Any
    scores: Any

    def best(self, k: int) -> "_Beams":
        """The k best of each text."""
        scores, places = lax.top_k(self.scores, k)
        return _Beams(jnp.take_along_axis(self.tokens, places[..., None], 1), scores)


@jit_with_static(2, most=16)
def _beam_search(model, search: _Search, params, prompts, source: SourceInputs, length_penalty):
    b, time = prompts.shape
    k, last = search.beams, time + search.steps - 1
    call = _caller(model, params, source, prompts, k)
    # Fixed length: texts that end early are filled with the stop token.
    empty = jnp.full((b, k, search.steps), search.stop or 0, jnp.int32)
    tokens = jnp.concatenate([jnp.broadcast_to(prompts[:, None], (b, k, time)), empty], -1)

    def step(carry):
        t, candidates, results, is_open, unknown, log_probs, state = carry
        v, unknown = log_probs.shape[-1], unknown | is_undefined(log_probs).any(-1)
        log_probs = processed(search.processors, log_probs, candidates.tokens, t)
        unknown = unknown | is_undefined(log_probs).any(-1)
        # A processor may set +inf for the one token to take, whose probability is then 1.
        forced = log_probs.max(-1, keepdims=True) == jnp.inf
        log_probs = jnp.where(forced, below_best(log_probs), log_probs)
        # 2k candidates: k of them at most end with the one stop token, so that k are left to go on.
        scores, places = lax.top_k((candidates.scores[..., None] + log_probs).reshape(b, k * v), 2 * k)  # (b, 2k)
        # The k v scores are numbered by candidate, then by token.
        parents, drawn = places // v, (places % v).astype(jnp.int32)
        longer = jnp.take_along_axis(candidates.tokens, parents[..., None], 1)
        longer = lax.dynamic_update_index_in_dim(longer, drawn, t, -1)  # (b, 2k, total)
        ends = jnp.full(drawn.shape, t == last) if search.stop is None else (drawn == search.stop) | (t == last)
        length = (t + 1 - time).astype(scores.dtype) ** length_penalty.astype(scores.dtype)
        # A text that ends counts as a result only if it is among the k best, as in transformers; lower ones would fill
        # the list of results with poor texts.
        kept = ends & (jnp.arange(2 * k) < k)[None] & is_open[:, None]
        ended = _Beams(longer, jnp.where(kept, scores / length, -jnp.inf))
        results = _Beams(*map(lambda *both: jnp.concatenate(both, 1), results, ended)).best(k)
        going, chosen = lax.top_k(jnp.where(ends, -jnp.inf, scores), k)
        parents = jnp.take_along_axis(parents, chosen, 1)
        # Candidates keep sums of log-probabilities; only results are divided by their length.
        candidates = _Beams(jnp.take_along_axis(longer, chosen[..., None], 1), going)
        worst = results.scores.min(-1)  # -inf unless there are k results
        is_open = is_open & (going[:, 0] / length > worst) & ~(search.early_stopping & (worst > -jnp.inf))
        log_probs, state = call(state, candidates.tokens, parents, t)
        return t + 1, candidates, results, is_open, unknown, log_probs, state

    first = jnp.where(jnp.arange(k) == 0, 0.0, -jnp.inf)  # all candidates are the prompt, of which one is counted
    log_probs, state = call(None, tokens, None, jnp.int32(time - 1))
    scores = jnp.broadcast_to(first.astype(log_probs.dtype), (b, k))
    results = _Beams(tokens, jnp.full_like(scores, -jnp.inf))
    # A text with undefined log-probabilities becomes -1, since no error can be raised in a compiled loop.
    is_open, unknown = jnp.ones(b, bool), jnp.zeros(b, bool)
    carry = jnp.int32(time), _Beams(tokens, scores), results, is_open, unknown, log_probs, state
    _, _, results, _, unknown, *_ = lax.while_loop(lambda carry: (carry[0] <= last) & carry[3].any(), step, carry)
    written = jnp.arange(time + search.steps) >= time
    return jnp.where(unknown[:, None] & written[None], -1, results.tokens[:, 0])


def _caller(model, params, source: SourceInputs, prompts, k: int) -> Callable:
    """The function of state, tokens (b, k, total), parents (b, k) and t to log-probabilities after t, and the state."""
    b = len(prompts)
    rows = lambda x: x.reshape(b * k, *x.shape[2:])
    apart = lambda logits: jax.nn.log_softmax(widen(logits[:, -1]), -1).reshape(b, k, -1)
    if isinstance(model, Layer):
        many = jax.tree.map(lambda x: jnp.repeat(x, k, 0), source)

        def call_with_all_tokens(state, tokens, parents, t):
            logits = model.apply(params, *many.inputs, rows(tokens), **many.side)
            return apart(lax.dynamic_slice_in_dim(logits, t, 1, 1)), ()

        return call_with_all_tokens

    def state_of(b):
        shape = lambda x: jax.ShapeDtypeStruct((b, *x.shape[1:]), x.dtype)
        return jax.eval_shape(functools.partial(initial_state, model), *map(shape, (*source.inputs, prompts[:, :1])))

    def axis_of_texts(one, other):
        """The axis of a leaf whose size changes with the number of texts, -1 for none."""
        return next((i for i, sizes in enumerate(zip(one.shape, other.shape, strict=True)) if len({*sizes}) == 2), -1)

    # The axis of texts is not always the first one, for example in stacked layers; it is the one that changes with the
    # number of texts.
    axes = jax.tree.map(axis_of_texts, state_of(b), state_of(b + 1))
    take = lambda state, places: jax.tree.map(lambda x, axis: x if axis < 0 else jnp.take(x, places, axis), state, axes)

    def call(state, tokens, parents, t):
        if state is None:
            state = initial_state(model, *source.inputs, prompts[:, :1])
            logits, state = model.apply(params, state, *source.inputs, prompts, **source.side)
            # The prompts are read once per text; the copies for the beams are made of the results.
            return apart(jnp.repeat(logits[:, -1:], k, 0)), take(state, jnp.repeat(jnp.arange(b), k))
        state = take(state, (jnp.arange(b)[:, None] * k + parents).reshape(-1))
        logits, state = model.apply(params, state, rows(lax.dynamic_slice_in_dim(tokens, t, 1, -1)))
        return apart(logits), state

    return call
