"""A warning about a version of jaxlib that computes wrong derivatives.

jaxlib 0.10.2 on CPU fuses multiply, reduce and broadcast wrongly under ``jit`` when a pullback is vmapped:
``jit(jacrev(f))`` of x mean(x) or of a layer norm has wrong rows. The dependencies of the package exclude this
version, but an environment may still contain it.
"""

import os
import shlex
from pathlib import Path

import jaxlib.version

from jaxblocks.checks.terminal import warn

__all__ = ["warn_if_jaxlib_is_wrong"]

_WRONG = frozenset({"0.10.2"})
_FLAG = "--xla_cpu_experimental_ynn_fusion_type"


def warn_if_jaxlib_is_wrong() -> None:
    """Warn if this jaxlib computes wrong Jacobians under ``jit`` on CPU; ``import jaxblocks`` calls it.

    There is no warning if ``XLA_FLAGS`` already contains the workaround.

    >>> warn_if_jaxlib_is_wrong()
    """
    if _version() in _WRONG and not _has_workaround(os.environ.get("XLA_FLAGS", "")):
        warn(
            f"jaxlib {_version()} computes wrong Jacobians under jit on CPU (jit(jacrev(f)), jit(vmap(vjp)) of means "
            "and norms); install another version of jaxlib, or start Python with "
            f"XLA_FLAGS={_FLAG}=-reduce placed before any bare token in XLA_FLAGS.",
            category=RuntimeWarning,
        )


def _version() -> str:
    return jaxlib.version.__version__


def _has_workaround(flags: str) -> bool:
    """Whether XLA reads the workaround: the last value applies, and XLA ignores everything after a bare token."""
    if flags.strip() and not flags.lstrip().startswith("-"):  # XLA then interprets it as a file name
        try:
            flags = Path(flags.strip()).read_text()
        except (OSError, ValueError):
            return False
    try:
        tokens = shlex.split(flags)
    except ValueError:  # an open quote
        tokens = flags.split()
    fixed = False
    for token in tokens:
        if not token.startswith("--"):
            break
        name, equals, value = token.partition("=")
        if name == _FLAG:
            fixed = equals == "=" and (value == "" or "-reduce" in value.split(","))
    return fixed
