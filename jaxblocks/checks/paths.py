"""The paths of files and folders that users pass."""

import os
from pathlib import Path

__all__ = ["as_path"]


def as_path(path: str | os.PathLike) -> Path:
    """A path with the home directory in the place of ``~``.

    >>> as_path("~/run") == Path.home() / "run"
    True
    """
    return Path(path).expanduser()
