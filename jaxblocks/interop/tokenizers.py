"""Tokenizers of Hugging Face, ``tokenizer.json``, as those of `jaxblocks.text`."""

from pathlib import Path

import numpy as np

from jaxblocks.checks import PositiveInt
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import checked
from jaxblocks.checks.system import as_path, library
from jaxblocks.text import Tokenizer

__all__ = ["load_tokenizer"]


class _PretrainedTokenizer(Tokenizer):
    def __repr__(self):
        return f"Tokenizer({self.vocab_size} tokens: tokenizer.json)"


@checked
def load_tokenizer(path: str | Path, *, max_length: PositiveInt | None = None) -> Tokenizer:
    """The tokenizer in a ``tokenizer.json``, or in a folder with one; it needs the library tokenizers.

    ``encode`` adds the special tokens that the file states, such as BERT's ``[CLS]`` and ``[SEP]``, and does not
    pad; ``decode`` leaves special tokens out. Settings of padding and truncation in the file do not count.

    Args:
        path: of the file, or of its folder.
        max_length: ``encode`` cuts texts of more tokens, and keeps the special tokens; by default it cuts none.

    Raises:
        FileNotFoundError: where there is no such file.
        ImportError: without the library tokenizers.
        ValueError: for a damaged file.

    >>> import tempfile
    >>> path = f"{tempfile.mkdtemp()}/tokenizer.json"
    >>> words = {"a": 0, "rose": 1, "is": 2, "?": 3}
    >>> model = {"type": "WordLevel", "vocab": words, "unk_token": "?"}
    >>> import json, pathlib
    >>> _ = pathlib.Path(path).write_text(
    ...     json.dumps({"model": model, "pre_tokenizer": {"type": "Whitespace"}})
    ... )
    >>> tokenizer = load_tokenizer(path)
    >>> tokenizer.encode("a rose is a rose"), tokenizer.decode([0, 1])
    (array([0, 1, 2, 0, 1], dtype=int32), 'a rose')
    """
    path = as_path(path)
    path = path / "tokenizer.json" if path.is_dir() else path
    repair = f"write it by tokenizer.save_pretrained({str(path.parent)!r}) of transformers"
    require(path.is_file(), f"a tokenizer at {path}", "no such file", repair, error=FileNotFoundError)
    tokenizers = library("tokenizers", f"reads {path}", "interop")
    try:
        found = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises no narrower class
        require(False, f"a tokenizer in {path}", f"{error}"[:200], "the file is damaged: get it again")
        raise AssertionError from None
    found.no_padding()  # the library transformers ignores these settings of the file too
    found.no_truncation()
    if max_length is not None:
        found.enable_truncation(max_length)

    def encode(text: str) -> np.ndarray:
        require(isinstance(text, str), "a string to encode", text, "call encode for each text", error=TypeError)
        try:
            return np.asarray(found.encode(text).ids, np.int32)
        except Exception as error:  # such as a word without a token, where the file names none for unknown words
            require(False, f"a token of {path} for each part of the text", f"{error}"[:200], "get the file again")
            raise AssertionError from None

    def decode(tokens):
        tokens = np.asarray(tokens, np.int32 if np.size(tokens) == 0 else None)
        good = np.issubdtype(tokens.dtype, np.integer) and tokens.ndim
        require(good, "integers (time,)", tokens, "pass the output of encode or generate", error=TypeError)
        return found.decode(tokens.tolist()) if tokens.ndim == 1 else [decode(row) for row in tokens]

    return _PretrainedTokenizer(encode, decode, found.get_vocab_size(), None)
