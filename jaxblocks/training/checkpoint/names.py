"""The names of the checkpoints in the directory of a run."""

import os
import re
import shutil
from pathlib import Path

from jaxblocks.checks.errors import require
from jaxblocks.checks.system import as_path

__all__ = ["REMOVING", "SAVING", "as_directory", "checkpoints_in", "clear", "number_of"]


NAME = re.compile(r"checkpoint-(\d+)-step-(\d+)")

SAVING, REMOVING = ".saving-", ".removing-"


def checkpoints_in(directory: Path) -> list[Path]:
    """The complete checkpoints of a directory, in the order in which they were written."""
    try:
        names = os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):  # other errors do not show that there are none
        return []
    return sorted((directory / name for name in names if NAME.fullmatch(name)), key=number_of)


def number_of(path: Path) -> int:
    """The number of a checkpoint in the order of writing."""
    return int(path.name.split("-")[1])


def as_directory(directory) -> Path:
    """The directory of a run as a path; raises if it is not a path, or is the directory of a single checkpoint."""
    is_path = isinstance(directory, str | os.PathLike)
    alone = isinstance(directory, int | float | None)
    repair = "pass a path" if alone else "pass the directory before the training state"
    require(is_path, "the directory of a run", directory, repair, error=TypeError)
    path = as_path(directory).absolute()
    if NAME.fullmatch(path.name):
        require(False, "the directory of a run", f"{path}, which is one of its checkpoints", f"pass {path.parent}")
    return path


def clear(directory):
    """Remove incomplete files of processes that were killed while they wrote or removed checkpoints."""
    for path in directory.iterdir():
        if path.name.startswith((SAVING, REMOVING)):
            shutil.rmtree(path, ignore_errors=True)
