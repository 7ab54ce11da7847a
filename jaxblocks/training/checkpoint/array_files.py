"""The library that writes and reads the arrays, orbax: how it is called, and what its errors mean."""

import contextlib
import errno
import gc
import logging
import os
import re
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path

from jaxblocks.checks.system import library

__all__ = ["ABSENT", "orbax_is_quiet", "require_orbax", "system_error"]


ABSENT = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
"""Errors of the system that speak of the files: one is missing, or is no file. All others are of the system alone."""


def require_orbax():
    """Import orbax, the library that writes arrays; raises an error with the install command if it is missing."""
    return library("orbax.checkpoint", "writes checkpoints", "train", "orbax (0.12 or newer)").v1


_ONE_AT_A_TIME = threading.RLock()  # of the threads that replace the hook


@contextlib.contextmanager
def orbax_is_quiet(settle: float = 0.05):
    """Suppress the tracebacks of the tasks of orbax; errors are raised, ``settle`` seconds later for other tasks."""
    logs = [logging.getLogger(name) for name in ("absl", "asyncio")]
    quiet = lambda record: False
    handled, failed = sys.exception(), False

    def report_others(unraisable) -> None:
        # A closed event loop is that of tasks that end after the first failure.
        if not failed and "Event loop is closed" not in str(unraisable.exc_value):
            before(unraisable)

    with _ONE_AT_A_TIME:
        for log in logs:
            log.addFilter(quiet)
        before, sys.unraisablehook = sys.unraisablehook, report_others
        try:
            yield
        except Exception as error:
            time.sleep(settle)
            # Tasks report their own errors when they are removed, as late as the tracebacks that hold them. So do
            # coroutines that never began, and event loops that are incomplete.
            failed = True
            with warnings.catch_warnings(action="ignore"):
                for one in _chain(error, handled):
                    traceback.clear_frames(one.__traceback__)
                gc.collect()
            raise
        finally:
            sys.unraisablehook = before
            for log in logs:
                log.removeFilter(quiet)


def system_error(error: BaseException, folder: Path, handled: BaseException | None = None) -> OSError | None:
    """The error of the system (no access, too many open files) behind one of orbax; ``None`` for damaged files.

    Args:
        handled: the error that the caller was handling when it called orbax, which is not behind it.
    """
    for one in _chain(error, handled):
        code = one.errno if isinstance(one, OSError) else None
        found = re.search(r"os_error_code='(\d+)'", str(one))  # of tensorstore, which reads the arrays
        code = int(found[1]) if found else code
        if code and not isinstance(said := OSError(code, os.strerror(code)), ABSENT):
            return said
    try:
        # orbax may report files that it cannot open as missing.
        for at, _, names in os.walk(folder, onerror=_raise):
            for name in names:
                open(os.path.join(at, name), "rb").close()
    except OSError as said:
        return None if isinstance(said, ABSENT) else said
    no_memory = any(isinstance(one, MemoryError) or "Out of memory" in str(one) for one in _chain(error, handled))
    return OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)) if no_memory else None


def _chain(error: BaseException | None, end: BaseException | None) -> Iterator[BaseException]:
    """An error and those from which it was raised, up to ``end``, the error that was handled before."""
    seen = set()
    while error is not None and error is not end and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _raise(error: OSError):
    raise error
