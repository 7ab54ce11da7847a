"""A known wrong build of jaxlib, noticed before its derivatives are believed.

jaxlib 0.10.2 on CPU fuses multiply, reduce and broadcast wrongly under ``jit`` when a
pullback is vmapped: ``jit(jacrev(f))`` of x mean(x) or of a layer norm has wrong rows.
The package does not install with it, but it may be there all the same.
"""

import functools
import os
import shlex
import warnings
from pathlib import Path

import jax
import jaxlib.version

__all__ = ["warn_if_jaxlib_is_wrong"]

_WRONG = frozenset({"0.10.2"})
_FLAG = "--xla_cpu_experimental_ynn_fusion_type"


@functools.cache
def warn_if_jaxlib_is_wrong() -> None:
    """Warn, once in a process, where this jaxlib computes wrong Jacobians under ``jit``.

    Called at the first use of each derivative tool; later calls return at once. The
    versions are told by ``jaxlib.__version__``, and nothing is said where the backend is
    not the CPU or where ``XLA_FLAGS`` already holds the cure.

    >>> warn_if_jaxlib_is_wrong()
    """
    if _version() in _WRONG and jax.default_backend() == "cpu" and not _is_cured(os.environ.get("XLA_FLAGS", "")):
        warnings.warn(
            f"jaxlib {_version()} computes wrong Jacobians under jit on CPU (jit(jacrev(f)), jit(vmap(vjp)) of means "
            "and norms); install another version of jaxlib, or start Python with "
            f"XLA_FLAGS={_FLAG}=-reduce placed before any bare token in XLA_FLAGS.",
            RuntimeWarning,
            stacklevel=3,
        )


def _version() -> str:
    return jaxlib.version.__version__


def _is_cured(flags: str) -> bool:
    """Whether XLA will read the cure: the last of its values counts, a bare token hides all that follows."""
    if flags.strip() and not flags.lstrip().startswith("-"):  # XLA then takes the whole for the name of a file
        try:
            flags = Path(flags.strip()).read_text()
        except (OSError, ValueError):
            return False
    try:
        tokens = shlex.split(flags)
    except ValueError:  # an open quote
        tokens = flags.split()
    cured = False
    for token in tokens:
        if not token.startswith("--"):
            break
        name, equals, value = token.partition("=")
        if name == _FLAG:
            cured = equals == "=" and (value == "" or "-reduce" in value.split(","))
    return cured
