"""The list of the leaves of a checkpoint: reading it from disk, and its differences from the leaves that are wanted."""

import json

from jaxblocks.training.checkpoint.array_files import ABSENT
from jaxblocks.training.checkpoint.shards import hash_of

__all__ = ["FORMAT", "LIST_NAME", "RejectedError", "differences_of", "list_or_none", "place_of", "read_list"]


class RejectedError(ValueError):
    """The reason why a checkpoint is not used, as the words after "The checkpoint ... "."""


LIST_NAME = "checkpoint.json"

FORMAT = 1
"""Of the list and of the notes of `fit` in it, which are not checked further: each change of them needs another one."""


def read_list(path) -> dict:
    """The list of a checkpoint; raises a `RejectedError` where it is missing or damaged.

    Where the system cannot read it (no access, too many open files), its ``OSError`` is raised.
    """
    try:
        # The text, its hash, and the empty rest after the last newline: a file that is cut short has fewer lines.
        text, own, rest = (path / LIST_NAME).read_text().split("\n")
        if own != hash_of(text.encode()) or rest:
            raise ValueError("its hash differs")
        listed = json.loads(text)
    except (*ABSENT, ValueError, RecursionError) as error:
        raise RejectedError(f"is damaged: its {LIST_NAME} is missing, cut short or changed") from error
    if not isinstance(listed, dict) or listed.get("format") != FORMAT:
        got = f"format {listed.get('format')!r:.40}" if isinstance(listed, dict) else "no format"
        raise RejectedError(f"is of another version: its {LIST_NAME} has {got}, and this version reads format {FORMAT}")
    return listed


def list_or_none(path):
    """The list of a checkpoint, or ``None`` where it is missing or damaged, or cannot be read."""
    try:
        return read_list(path)
    except (OSError, RejectedError):
        return None


def differences_of(listed, wanted) -> str:
    """A description of the leaves in which a checkpoint differs from the expected tree; empty if it does not."""
    found = []
    for name, leaves in wanted.items():
        stored, here = (
            {path: f"{entry['dtype']} {tuple(entry['shape'])}" for path, entry in described.items()}
            for described in (listed["leaves"].get(name, {}), leaves)
        )
        for path in [*stored, *(p for p in here if p not in stored)]:
            place = place_of(name, path)
            if path not in here:
                found.append(f"{place}, {stored[path]}, is in the checkpoint only")
            elif path not in stored:
                found.append(f"{place}, {here[path]}, is not in the checkpoint")
            elif stored[path] != here[path]:
                found.append(f"{place} is {stored[path]} in the checkpoint and {here[path]} here")
    more = f", and {len(found) - 4} more leaves differ" if len(found) > 4 else ""
    return "; ".join(found[:4]) + more


def place_of(name: str, path: str) -> str:
    """The words for a leaf in an error: its path in the tree that users pass, else with the name of the tree."""
    return (path or "the array") if name == "ts" else f"{name}/{path}"
