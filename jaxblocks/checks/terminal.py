"""The one place that writes to the terminal. What only informs never ends a run: writes that fail are given up."""

import contextlib
import os
import sys
import warnings
from typing import Any

__all__ = ["Terminal", "warn", "write_line"]


class Terminal:
    """A stream such as ``sys.stderr`` as a file whose ``write`` never raises; ``None`` is a stream that is missing.

    A pipe that is closed, a full device and a closed stream are given up at the first write that fails.

    >>> Terminal(None).write("nothing"), Terminal(None).is_interactive
    (7, False)
    """

    def __init__(self, stream: Any):
        """Take the stream as it is now."""
        self._stream: Any = stream
        self._of = stream
        self.encoding = getattr(stream, "encoding", None) or "utf-8"

    def __eq__(self, other: object) -> bool:
        """Whether both write to one stream, by which ``tqdm.write`` finds the bars that it has to clear."""
        return self._of is getattr(other, "_of", other)

    def __hash__(self) -> int:
        """That of the stream."""
        return hash(self._of)

    @property
    def is_interactive(self) -> bool:
        """Whether it is a terminal, where a line can be written again."""
        try:
            return self._stream.isatty()
        except (AttributeError, OSError, ValueError):  # of a missing, a broken and a closed stream
            return False

    def fileno(self) -> int:
        """The descriptor, from which tqdm finds the width; an ``OSError`` where there is none."""
        try:
            return self._stream.fileno()
        except (AttributeError, ValueError) as error:
            raise OSError("a stream without a descriptor") from error

    def flush(self) -> None:
        """Do nothing: each write is flushed."""

    def write(self, text: str) -> int:
        """Write a text at once, unless an earlier write has failed."""
        if self._stream is not None:
            try:
                _write(self._stream, text)
            except (AttributeError, OSError, ValueError):
                self._stream = None
        return len(text)


def write_line(line: str, stream: Any) -> None:
    """Write a line to ``sys.stderr`` or ``sys.stdout``, if that is possible.

    >>> import sys
    >>> write_line("step 3", sys.stdout)
    step 3
    """
    Terminal(stream).write(f"{line}\n")


def warn(message: str, *, category: type[Warning] = UserWarning) -> None:
    """Issue a warning at the line of the user that led to it, also where it cannot be written."""
    frame: Any = sys._getframe(1)
    while frame.f_back is not None and _module_of(frame).partition(".")[0] in _NOT_OF_THE_USER:
        frame = frame.f_back
    registry = frame.f_globals.setdefault("__warningregistry__", {})  # where Python keeps what it has said of a module
    with contextlib.suppress(OSError, ValueError):  # of a closed stream; a warning that a filter raises is neither
        warnings.warn_explicit(
            message,
            category,
            frame.f_code.co_filename,
            frame.f_lineno,
            module=_module_of(frame),
            registry=registry,
        )


def _module_of(frame) -> str:
    return frame.f_globals.get("__name__") or "<string>"  # of code in `exec` without a name


_NOT_OF_THE_USER = {"jaxblocks", "jax", "jaxlib", "jaxtyping", "beartype", "contextlib", "functools", "importlib"}


def _write(stream, text: str) -> None:
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    if raw is None:
        stream.write(text)
        stream.flush()
        return
    # Past the buffer, which would keep a text that cannot be written: Python tries it again at its end, and turns the
    # exit status into 120.
    stream.flush()
    data = text.replace("\n", os.linesep).encode(stream.encoding, "backslashreplace")
    while data:
        written = raw.write(data)
        if not written:  # a stream that would block
            raise BlockingIOError
        data = data[written:]
