"""The paths of files and folders that users pass."""

import os
from pathlib import Path

from jaxblocks.checks.errors import require

__all__ = ["as_path"]


def as_path(path: str | os.PathLike) -> Path:
    """A path with the home directory in the place of ``~``.

    >>> as_path("~/run") == Path.home() / "run"
    True
    """
    require(
        isinstance(path, str | os.PathLike),
        "the path of a file or folder",
        path,
        "pass a string such as 'runs/1'",
        error=TypeError,
    )
    return Path(path).expanduser()
