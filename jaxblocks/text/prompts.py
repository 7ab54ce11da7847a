"""The inputs of generation: prompts, the source of an encoder-decoder, and whether both fit the model."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Integer

from jaxblocks.checks import check_values, checkable, require
from jaxblocks.core import Layer
from jaxblocks.text.vocabulary import check_tokens

__all__ = [
    "Source", "SourceInputs", "SourceMask", "Tokens", "check_drawn", "check_prompts", "check_room", "check_stop",
    "fits", "initial_state", "inside", "is_undefined", "processed", "shapes_of_call", "source_of",
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


def source_of(source, mask) -> SourceInputs:
    """The source as the model reads it: tokens in int32, a spectrogram as it is."""
    expected, repair = "source_mask with a source", "pass source= too, or leave the mask out"
    require(mask is None or source is not None, expected, "a mask alone", repair)
    if source is None:
        return SourceInputs((), {})
    source = jnp.asarray(source)
    source = source if jnp.issubdtype(source.dtype, jnp.floating) else source.astype(jnp.int32)
    return SourceInputs((source,), {} if mask is None else {"mask": jnp.asarray(mask)})


def check_prompts(prompts, lengths, source, vocab_size) -> None:
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
        prompts = jnp.where(inside(prompts, known), prompts, 0)
    check_tokens(prompts, vocab_size, "tokens of prompts")


def shapes_of_call(model, params, prompts, source, time: int):
    """The logits for prompts of this length, and the state before them, as shapes."""
    return _shapes_of(*_described(model, params, prompts, source, time))


def fits(model, params, prompts, source, time: int, steps: int) -> bool:
    """Whether the model takes prompts of this length, and without a state the steps after them."""
    return _fits_of(*_described(model, params, prompts, source, time + (steps if isinstance(model, Layer) else 0)))


def _described(model, params, prompts, source, time: int) -> tuple:
    leaves, structure = jax.tree.flatten(params)
    shape = lambda x: (x.shape, x.dtype)
    sources = tuple(map(shape, source.inputs)), tuple((name, *shape(x)) for name, x in source.side.items())
    return model, structure, tuple(map(jax.typeof, leaves)), sources, (*prompts.shape[:-1], time)


@functools.lru_cache(maxsize=64)  # so that a second call of generate traces nothing
def _shapes_of(model, structure, types: tuple, sources: tuple, tokens: tuple):
    params = jax.tree.unflatten(structure, [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding) for x in types])
    inputs = [jax.ShapeDtypeStruct(*one) for one in (*sources[0], (tokens, jnp.int32))]
    side = {name: jax.ShapeDtypeStruct(*one) for name, *one in sources[1]}
    if isinstance(model, Layer):
        return jax.eval_shape(model.apply, params, *inputs, **side), ()
    one = jax.ShapeDtypeStruct((*tokens[:-1], 1), jnp.int32)
    state = jax.eval_shape(functools.partial(initial_state, model), *inputs[:-1], one)
    return jax.eval_shape(model.apply, params, state, *inputs, **side)[0], state


@functools.lru_cache(maxsize=64)
def _fits_of(*described) -> bool:
    try:
        _shapes_of(*described)
    except (TypeError, ValueError):  # the errors of JAX for shapes that do not fit
        return False
    return True


@functools.partial(jax.jit, static_argnums=0)
def initial_state(model, *inputs):
    """The state before the first token, from the source and one token of each text; traced once for all lengths.

    The shapes of a state must not depend on the number of tokens.
    """
    return model.init(jax.random.key(0), *inputs)[1]


def check_room(model, params, prompts, steps, source) -> int:
    """The vocabulary size of the model; raises if the whole text does not fit into the model."""
    logits = lambda time: shapes_of_call(model, params, prompts, source, time)[0]
    found = logits(1)  # an error of this call does not concern the length
    good = getattr(found, "shape", ())[:-1] == (*prompts.shape[:-1], 1)
    expected = "a model from tokens (..., time) to logits (..., time, vocab)"
    require(good, expected, found, "use a model that returns one row of logits for each token", error=TypeError)
    time, total = prompts.shape[-1], prompts.shape[-1] + steps
    try:
        logits(total)
    except (TypeError, ValueError) as error:
        got = f"{steps} tokens after prompts of {time}, {total} together"
        repair = "use fewer steps, cut the prompts on their left, or build the model for longer texts"
        try:
            repair += f"; error of the model: {str(error).removesuffix('.')}"
            require(False, "prompts and steps that fit into the model", got, repair)
        except ValueError as longer:
            raise longer from error
    return found.shape[-1]


def check_stop(stop: int | None, vocab_size: int) -> None:
    """Raise a ``ValueError`` for a token that ends texts and that the model does not have."""
    if stop is not None and not 0 <= stop < vocab_size:
        expected = f"stop to be a token of the model, 0, ..., {vocab_size - 1}"
        require(False, expected, stop, "pass for instance int(tokenizer.encode('.')[0])")


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
    return jnp.broadcast_to(jnp.arange(prompts.shape[-1]), prompts.shape) < lengths[..., None]
