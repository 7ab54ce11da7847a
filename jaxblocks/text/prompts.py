"""The inputs of generation: prompts, the source of an encoder-decoder, and whether both fit the model."""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Integer

from jaxblocks.backend.jit_cache import jit_with_static
from jaxblocks.checks.errors import describe, require
from jaxblocks.checks.values import as_int32, check_range, check_values, checkable
from jaxblocks.core.pairs import Layer, StatefulLayer

__all__ = [
    "Calls", "Source", "SourceInputs", "SourceMask", "Tokens", "calls_of", "check_drawn", "check_tokens",
    "checked_calls", "initial_state", "inside", "is_undefined", "pad_prompts", "processed", "source_of",
]  # fmt: skip

Tokens: TypeAlias = Integer[Array, "*batch time"] | Integer[np.ndarray, "*batch time"]
Source: TypeAlias = (
    Integer[Array, "*batch source_time"]
    | Integer[np.ndarray, "*batch source_time"]
    | Float[Array, "*batch source_time bands"]
    | Float[np.ndarray, "*batch source_time bands"]
    | None
)
SourceMask: TypeAlias = Bool[Array, "*batch source_time"] | Bool[np.ndarray, "*batch source_time"] | None


class SourceInputs(NamedTuple):
    """What a model reads beside the tokens: the source, if there is one, and its mask as a side input."""

    inputs: tuple
    side: dict[str, Any]


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
                "encode each text: [tokenizer.encode(t) for t in texts]" if row.size else "omit empty prompts",
            )
            require(False, "prompts of integers (time,)", got, repair)
    lengths = np.array([row.size for row in rows], np.int32)
    # Padding has no effect, and 0 is in every vocabulary.
    padded = np.zeros((len(rows), lengths.max()), np.int32)
    for number, row in enumerate(rows):
        check_range("tokens", row, -(2**31), 2**31 - 1, "encode the texts with the tokenizer of the model")
        padded[number, : row.size] = row
    return padded, lengths


def check_tokens(tokens, vocab_size: int, what: str) -> None:
    """Raise a ``ValueError`` if concrete tokens are outside of 0, ..., vocab_size - 1."""
    check_range(what, tokens, 0, vocab_size - 1, "encode the text with the tokenizer that the model was trained with")


def source_of(source, mask) -> SourceInputs:
    """The source as the model reads it: tokens in int32, a spectrogram as it is."""
    expected, repair = "source_mask with a source", "pass source= too, or leave the mask out"
    require(mask is None or source is not None, expected, "a mask alone", repair)
    if source is None:
        return SourceInputs((), {})
    source = jnp.asarray(source)
    source = source if jnp.issubdtype(source.dtype, jnp.floating) else as_int32(source)
    return SourceInputs((source,), {} if mask is None else {"mask": jnp.asarray(mask)})


def _check_prompts(prompts, lengths, source, vocab_size) -> None:
    """Raise a ``ValueError`` for tokens outside of the vocabulary, and lengths that no prompt has."""
    for x in source.inputs:
        if not jnp.issubdtype(x.dtype, jnp.floating):
            check_tokens(x, vocab_size, "tokens of the source")
    time = prompts.shape[-1]
    if lengths is not None:
        known = checkable(lengths, False)
        if known is None:
            return
        check_values(
            (known >= 1) & (known <= time),
            f"lengths from 1 to {time}, the length of the longest prompt, got {{least}} to {{most}}; make them with "
            "pad_prompts, and begin an empty prompt with a token such as a newline",
            least=known.min(initial=time),
            most=known.max(initial=1),
        )
        # Padding may be any number.
        prompts = prompts.__array_namespace__().where(inside(prompts, as_int32(known)), prompts, 0)
    check_tokens(prompts, vocab_size, "tokens of prompts")


class Calls:
    """The shapes of the calls of a model with params and sources of known types, found once for each length."""

    def __init__(self, model, structure, types: tuple, sources: tuple, batch: tuple):
        """For params of one structure, with the types of its leaves; ``batch`` are the leading axes of the tokens."""
        # With shardings, since a program for sharded params differs.
        shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding) for x in types]
        self._model, self._params, self._batch = model, jax.tree.unflatten(structure, shapes), batch
        self._inputs = [jax.ShapeDtypeStruct(*one) for one in sources[0]]
        self._side = {name: jax.ShapeDtypeStruct(*one) for name, *one in sources[1]}
        self._found: dict[int, Any] = {}

    def logits(self, time: int):
        """The logits for prompts of this length."""
        if time not in self._found:
            tokens = jax.ShapeDtypeStruct((*self._batch, time), jnp.int32)
            state = () if isinstance(self._model, Layer) else (self.state,)
            made = jax.eval_shape(self._model.apply, self._params, *state, *self._inputs, tokens, **self._side)
            self._found[time] = made[0] if state else made
        return self._found[time]

    @functools.cached_property
    def state(self):
        """The state before the first token."""
        one = jax.ShapeDtypeStruct((*self._batch, 1), jnp.int32)
        return jax.eval_shape(functools.partial(initial_state, self._model), *self._inputs, one)

    @functools.cached_property
    def can_go_back(self) -> bool:
        """Whether the state before an earlier token is the state with other positions (see `_can_go_back`)."""
        return _can_go_back(self.state)

    def fit(self, time: int, steps: int) -> bool:
        """Whether the model takes prompts of this length, and without a state the steps after them."""
        try:
            self.logits(time + (steps if isinstance(self._model, Layer) else 0))
        except (TypeError, ValueError):  # the errors of JAX for shapes that do not fit
            return False
        return True


def calls_of(model, params, prompts, source) -> Calls:
    """The calls of a model for these params, prompts and source; a second call of `generate` traces nothing."""
    leaves, structure = jax.tree.flatten(params)
    # Tuples instead of ShapeDtypeStructs, since keys of a cache have to be hashable.
    shape = lambda x: (x.shape, x.dtype)
    sources = tuple(map(shape, source.inputs)), tuple((name, *shape(x)) for name, x in source.side.items())
    return _calls_of(model, structure, tuple(map(jax.typeof, leaves)), sources, prompts.shape[:-1])


# Compared by types alone, so that new values of the params find the same calls.
_calls_of = functools.lru_cache(maxsize=16)(Calls)

# In this order: a position alone, a key-value cache, the kept context of a cross-attention.
_REWINDABLE = ({"position"}, {"key", "value", "mask", "position"}, {"key", "value", "mask", "is_set"})
"""The states of which all but the position stays valid when it goes back: later entries are overwritten unread."""


def _can_go_back(state) -> bool:
    """Whether a state consists of caches of attention, counts of positions and keys of contexts."""
    if isinstance(state, dict) and set(state) in _REWINDABLE:
        return True
    if isinstance(state, dict):
        return all(map(_can_go_back, state.values()))
    # Any other leaf, such as the carry of a cell, is not known for an earlier position.
    return isinstance(state, (tuple, list)) and all(map(_can_go_back, state))


@jit_with_static(1, most=16)
def initial_state(model, *inputs):
    """The state before the first token, from the source and one token of each text; traced once for all lengths.

    The shapes of a state must not depend on the number of tokens.
    """
    # Only the state is taken, so that under jit the params are not made.
    return model.init(jax.random.key(0), *inputs)[1]


def _check_room(calls: Calls, prompts, steps) -> int:
    """The vocabulary size of the model; raises if the whole text does not fit into the model."""
    found = calls.logits(1)  # an error of this call does not concern the length
    good = getattr(found, "shape", ())[:-1] == (*prompts.shape[:-1], 1)
    expected = "a model from tokens (..., time) to logits (..., time, vocab)"
    require(good, expected, found, "use a model that returns one row of logits for each token", error=TypeError)
    time, total = prompts.shape[-1], prompts.shape[-1] + steps
    # By shapes: whether a text of this length fits is known before anything is computed.
    try:
        calls.logits(total)
    except (TypeError, ValueError) as error:
        got = f"{steps} tokens after prompts of {time}, {total} together"
        repair = "use fewer steps, cut the prompts on their left, or build the model for longer texts"
        repair += f"; error of the model: {str(error).removesuffix('.')}"
        require(False, "prompts and steps that fit into the model", got, repair)
    return found.shape[-1]


def checked_calls(model, params, prompts, lengths, source, steps, stop) -> tuple[Calls, int]:
    """The calls of a model, and the size of its vocabulary; raises where these arguments do not fit it."""
    is_pair = isinstance(model, (Layer, StatefulLayer))
    require(is_pair, "a model that is a pair", model, "the order is model, params, prompts", error=TypeError)
    repair = "begin an empty one with a token such as a newline"
    require(prompts.shape[-1] > 0, "prompts of at least one token", prompts, repair)
    calls = calls_of(model, params, prompts, source)
    vocab_size = _check_room(calls, prompts, steps)
    _check_prompts(prompts, lengths, source, vocab_size)
    expected = f"stop to be a token of the model, 0, ..., {vocab_size - 1}"
    known = stop is None or 0 <= stop < vocab_size
    require(known, expected, stop, "pass for instance int(tokenizer.encode('.')[0])")
    return calls, vocab_size


def processed(processors: Sequence[Callable], logits, tokens, t):
    """The logits after every processor, each of which keeps their shape."""
    for process in processors:
        shape, logits = logits.shape, process(logits, tokens, t)
        is_kept = getattr(logits, "shape", None) == shape
        require(is_kept, f"processors to return logits {shape}", logits, "write f(logits, tokens, t) -> logits")
    return logits


def is_undefined(logits):
    """Whether no token can be drawn from logits, one of which is NaN or all of which are -inf."""
    most = logits.max(-1)  # a maximum propagates NaN
    return jnp.isnan(most) | (most == -jnp.inf)


def check_drawn(tokens: np.ndarray, first: int = 0) -> None:
    """Raise a ``ValueError`` for tokens that are -1, for undefined logits; the first one is at ``first``."""
    bad = tokens < 0
    if bad.any():
        check_values(
            False,
            "finite logits, got NaN from position {first} on in {rows} of the texts, or -inf for all tokens; check the "
            "processors, and the params with jax.tree.map(lambda x: jnp.isfinite(x).all(), params)",
            first=first + np.argmax(bad.reshape(-1, bad.shape[-1]).any(0)),
            rows=np.sum(bad.any(-1)),
        )


def inside(prompts, lengths):
    """True at the tokens of the prompts, False at padding."""
    return jnp.broadcast_to(jnp.arange(prompts.shape[-1], dtype=jnp.int32), prompts.shape) < lengths[..., None]
