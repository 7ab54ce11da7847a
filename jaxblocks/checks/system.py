"""What the system has: files, and the libraries that an extra installs, imported where they are needed."""

import os
from importlib import import_module
from pathlib import Path
from typing import Any

from jaxblocks.checks.errors import public_name, require

__all__ = ["as_path", "library"]


def as_path(path: str | os.PathLike) -> Path:
    """A path with the home directory in the place of ``~``.

    >>> as_path("~/run") == Path.home() / "run"
    True
    """
    is_path, repair = isinstance(path, str | os.PathLike), "pass a string such as 'runs/1'"
    require(is_path, "the path of a file or folder", path, repair, error=TypeError)
    return Path(path).expanduser()


def library(module: str, purpose: str, extra: str, name: str = "") -> Any:
    """Import a module of an optional library; the error for one that is missing says how to install it.

    Args:
        module: such as ``"sklearn.datasets"``.
        purpose: what the library does here, such as "contains the data".
        extra: of jaxblocks, which installs it.
        name: of the library, by default that of its package.

    >>> library("missing.module", "is an example", "data")
    Traceback (most recent call last):
    ...
    ModuleNotFoundError: jaxblocks expected missing, which is an example, got no such package; install it with: \
pip install "jaxblocks[data]".
    """
    package = module.partition(".")[0]
    try:
        return import_module(module)
    except ImportError as error:
        raise ModuleNotFoundError(
            f"{public_name()} expected {name or package}, which {purpose}, got no such package; "
            f'install it with: pip install "jaxblocks[{extra}]".',
            name=package,
        ) from error
