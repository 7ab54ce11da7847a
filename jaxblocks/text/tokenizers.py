"""Tokenizers: from a string to integers and back, by bytes or by characters."""

from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import numpy as np

from jaxblocks.checks.errors import require

__all__ = ["ByteTokenizer", "CharTokenizer", "Tokenizer"]


class Tokenizer(NamedTuple):
    """The result of `ByteTokenizer` and `CharTokenizer`: two functions, and the size of the vocabulary.

    Args:
        encode: a string to int32 ``(time,)``, NumPy.
        decode: integers ``(time,)`` to a string; with more axes, to nested lists of strings.
        vocab_size: the number of tokens, 0, ..., vocab_size - 1.
        symbols: the symbols of a `CharTokenizer` in order, which are enough to rebuild it; ``None`` for bytes.
    """

    encode: Callable[[str], np.ndarray]
    decode: Callable[[Any], Any]
    vocab_size: int
    symbols: str | None

    def __repr__(self):
        of = "bytes" if self.symbols is None else repr(self.symbols)
        return f"Tokenizer({self.vocab_size} tokens: {of})"


def ByteTokenizer() -> Tokenizer:
    """A tokenizer whose tokens are the 256 bytes of UTF-8: a character takes one to four tokens.

    ``decode`` replaces bytes that are not valid UTF-8, which a model may generate, by U+FFFD.

    Raises:
        TypeError: in ``encode``, unless it gets a string; in ``decode``, unless it gets integers.
        ValueError: in ``encode``, for half of a surrogate pair, which is not a character; in ``decode``, for integers
            outside of the vocabulary.

    >>> tokenizer = ByteTokenizer()
    >>> tokenizer.encode("naïve").tolist()
    [110, 97, 195, 175, 118, 101]
    >>> tokenizer.decode([110, 97, 195, 175, 118, 101])
    'naïve'
    """

    def encode(text):
        _check_text(text)
        try:
            return np.frombuffer(text.encode("utf-8"), np.uint8).astype(np.int32)
        except UnicodeEncodeError as error:
            _reject_character(text, error.start, "characters that UTF-8 can encode", "remove the surrogate")

    def decode(tokens):
        return _decoded(tokens, 256, lambda row: bytes(row).decode("utf-8", "replace"))

    return Tokenizer(encode, decode, 256, None)


def CharTokenizer(text: str) -> Tokenizer:
    """A tokenizer whose tokens are the characters that occur in a text, in the order of their code points.

    ``CharTokenizer(tokenizer.symbols)`` is the same tokenizer: store that string with the params of a model.

    Raises:
        TypeError: unless ``text`` is a string; in ``decode``, unless it gets integers.
        ValueError: for an empty text; in ``encode``, for a character that does not occur in it; in ``decode``, for
            integers outside of the vocabulary.

    >>> tokenizer = CharTokenizer("abracadabra")
    >>> tokenizer
    Tokenizer(5 tokens: 'abcdr')
    >>> tokenizer.encode("cab").tolist(), tokenizer.decode([2, 0, 1])
    ([2, 0, 1], 'cab')
    """
    _check_text(text)
    symbols = np.unique(_code_points(text))  # sorted, as searchsorted needs them
    require(symbols.size, "a text that contains each symbol at least once", repr(text), "pass a longer text")

    def encode(text):
        _check_text(text)
        characters = _code_points(text)
        places = np.searchsorted(symbols, characters)
        # `searchsorted` returns the size for a character beyond the last one.
        unknown = symbols[np.minimum(places, symbols.size - 1)] != characters
        if unknown.any():
            number = np.unique(characters[unknown]).size
            expected = f"the {symbols.size} symbols of the tokenizer"
            repair = f"remove or replace it ({number} of the characters are unknown), build the tokenizer from a text "
            _reject_character(text, int(unknown.argmax()), expected, f"{repair}that contains it, or use ByteTokenizer")
        return places.astype(np.int32)

    names = "".join(map(chr, symbols))

    def decode(tokens):
        return _decoded(tokens, int(symbols.size), lambda row: "".join([names[i] for i in row]))

    return Tokenizer(encode, decode, int(symbols.size), names)


def _check_text(text):
    require(isinstance(text, str), "a string to encode", text, "call encode for each text", error=TypeError)


def _code_points(text):
    # One number for each character, and a NumPy array without a loop in Python; half of a surrogate pair is kept, to be
    # reported by its position.
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


def _reject_character(text, place, expected, repair) -> NoReturn:
    before = text[max(place - 10, 0) : place]
    after = f" after {before!r}" if before else ""
    require(False, expected, f"{text[place]!r} at position {place}{after}", repair)
    raise AssertionError


def _decoded(tokens, vocab_size: int, join: Callable):
    """A string, or nested lists of strings; ``join`` makes the string of a list of tokens."""
    try:
        # An empty list would be an array of floats.
        tokens = np.asarray(tokens, np.int32 if np.size(tokens) == 0 else None)
    except ValueError:  # of NumPy
        require(False, "rows of one length", "rows of several lengths", "write [tokenizer.decode(row) for row in rows]")
    is_integer = np.issubdtype(tokens.dtype, np.integer) and tokens.ndim
    require(is_integer, "integers (time,)", tokens, "pass the output of encode or generate", error=TypeError)
    bad = (tokens < 0) | (tokens >= vocab_size)
    if bad.any():
        place = tuple(int(i) for i in np.argwhere(bad)[0])
        got = f"{tokens[place]} at position {place[0] if len(place) == 1 else place}"
        repair = "decode the tokens of a model with this vocabulary"
        require(False, f"tokens from 0 to {vocab_size - 1}", got, repair)
    return join(tokens.tolist()) if tokens.ndim == 1 else [_decoded(row, vocab_size, join) for row in tokens]
