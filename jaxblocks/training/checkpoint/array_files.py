"""The library that writes and reads the arrays, orbax."""

import contextlib
import logging
import sys
import time

from jaxblocks.checks.libraries import library

__all__ = ["orbax_is_quiet", "require_orbax"]


def require_orbax():
    """Import orbax, the library that writes arrays; raises an error with the install command if it is missing."""
    return library("orbax.checkpoint", "writes checkpoints", "train", "orbax (0.12 or newer)").v1


@contextlib.contextmanager
def orbax_is_quiet(settle: float = 0.0):
    """Suppress the tracebacks of the threads of orbax; errors are raised, after ``settle`` seconds."""
    logs = [logging.getLogger(name) for name in ("absl", "asyncio")]
    quiet = lambda record: False
    report = sys.unraisablehook

    def report_others(unraisable):
        if "Event loop is closed" not in str(unraisable.exc_value):  # of writes that end after the first failure
            report(unraisable)

    for log in logs:
        log.addFilter(quiet)
    sys.unraisablehook = report_others
    try:
        yield
    except Exception:
        time.sleep(settle)
        raise
    finally:
        sys.unraisablehook = report
        for log in logs:
            log.removeFilter(quiet)
