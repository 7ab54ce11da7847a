"""Writing a checkpoint: under another name, flushed to the disk, and renamed when it is complete."""

import asyncio
import contextlib
import errno
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jaxblocks.checks.errors import public_name, require
from jaxblocks.training.checkpoint.array_files import orbax_is_quiet, require_orbax
from jaxblocks.training.checkpoint.leaves import description_of, host_arrays
from jaxblocks.training.checkpoint.listing import FORMAT, LIST_NAME, differences_of, list_or_none
from jaxblocks.training.checkpoint.names import REMOVING, SAVING, checkpoints_in, clear, number_of
from jaxblocks.training.checkpoint.shards import hash_of, hashes_of_shards
from jaxblocks.training.processes import are_several, in_all, is_first, on_first

__all__ = ["begin_write"]


def begin_write(
    directory, trees: Mapping[str, Any], step: int, notes: Mapping[str, Any], keep: int, by: str | None = None
) -> Callable[[], Path]:
    """Write named trees of arrays, and ``notes`` as JSON, as one checkpoint, and remove old ones, in two parts.

    All processes call the first part in the thread of the steps. It returns the second part, which may be called in
    another thread: the devices of different processes do not communicate in it. ``by`` is the public name for errors
    where the caller is in another thread.
    """
    by = by or public_name()
    ocp = require_orbax()
    arrays = {name: host_arrays(tree) for name, tree in trees.items()}
    # Only the first process makes the directory; the others receive its names.
    plan = on_first(lambda: _plan(directory, arrays, step, keep, by))
    temporary, path, several = directory / plan.temporary, directory / plan.name, are_several()
    # orbax does not store arrays without entries; `reading` makes them from their shapes.
    stored = {name: {path: a for path, a in named.items() if a.size} for name, named in arrays.items()}
    stored = {name: named for name, named in stored.items() if named}
    response = None
    with _explained(directory, step, plan, by):
        if several:
            in_all(lambda: _check_shared(temporary))
            if stored:  # the second part of orbax waits for the other processes without using their devices
                with _writing():
                    response = in_all(lambda: ocp.save_checkpointables_async(str(temporary / "arrays"), stored))

    def finish() -> Path:
        with _explained(directory, step, plan, by), ThreadPoolExecutor(1, "hashes") as other_thread:
            try:
                hashing = other_thread.submit(_hashes, arrays)  # while orbax writes
                if stored:
                    with _writing(), orbax_is_quiet(settle=0.3):  # until the other writes have failed, too
                        write = lambda: ocp.save_checkpointables(str(temporary / "arrays"), stored)
                        write() if response is None else response.result()
                hashes = hashing.result()
                if several:
                    _flush(temporary)
                    (temporary / f"hashes-{jax.process_index()}.json").write_text(json.dumps(hashes))
            finally:
                if several:  # after an error, too: the others wait
                    asyncio.run(ocp.multihost.sync_global_processes("jaxblocks", operation_id=temporary.name))
            # The first process commits after the barrier, when the hashes of all processes are on the disk.
            if is_first():
                hashes = _collected(temporary) if several else hashes
                leaves = {
                    name: {
                        path: {**description_of(a), "sha256": _joined(hashes[name][path])} for path, a in named.items()
                    }
                    for name, named in arrays.items()
                }
                _commit(temporary, path, {"format": FORMAT, "step": step, "leaves": leaves, "notes": notes})
        # Removed after the commit only, so that a complete checkpoint exists at any time.
        for old in plan.superfluous if is_first() else ():
            with contextlib.suppress(OSError):  # the new checkpoint is complete; this one is removed by the next call
                # Renamed first: a directory that is removed only in part must not look like a checkpoint.
                gone = (directory / old).rename(directory / (REMOVING + old))
                shutil.rmtree(gone)
        return path

    return finish


def _hashes(arrays: dict[str, dict]) -> dict[str, dict[str, dict[str, str]]]:
    return {name: {path: hashes_of_shards(a) for path, a in named.items()} for name, named in arrays.items()}


def _writing():
    """The options of orbax: no compression, and no copy of NumPy arrays, which do not change during a save.

    Compressing takes four times as long as writing, and makes random numbers 8 % smaller. Versions of orbax that do not
    have the option ``deepcopy_host_arrays``, such as 0.12.0, ignore it.
    """
    options = require_orbax().Context()
    options.memory.deepcopy_host_arrays = False
    options.array.saving.use_compression = False
    return options


def _commit(temporary: Path, path: Path, listed: dict) -> None:
    """Write the list of a checkpoint, flush everything to the disk, and give the directory its name."""
    text = json.dumps(listed)
    # The hash of the list itself stands in the file's second line.
    (temporary / LIST_NAME).write_text(f"{text}\n{hash_of(text.encode())}\n")
    _flush(temporary)
    # The rename is atomic on one file system; the parent is flushed after it, so that the new name survives a crash.
    temporary.rename(path)
    _sync(path.parent)


class _Plan(NamedTuple):
    """The names of a new checkpoint, of its directory until it is complete, of the one before it, and of old ones."""

    name: str
    temporary: str
    last: str | None
    superfluous: list[str]


def _plan(directory, arrays, step: int, keep: int, by: str) -> _Plan:
    """Make the directory of a new checkpoint; raises if older ones hold another tree, or if the disk is full."""
    described = {name: {path: description_of(a) for path, a in named.items()} for name, named in arrays.items()}
    older = checkpoints_in(directory)
    # A damaged list is skipped: it does not show whether its tree differs.
    readable = {path: listed for path in older if (listed := list_or_none(path)) is not None}
    same = [path for path, listed in readable.items() if not differences_of(listed, {"ts": described["ts"]})]
    if readable and not same:
        differences = differences_of(list(readable.values())[-1], described)
        got = f"those of another tree: {differences}"
        require(False, f"checkpoints of this tree in {directory}", got, "pass another directory, or remove its files")
    # The number after the newest directory, damaged ones included, so that names are not reused.
    sequence = 1 + number_of(older[-1]) if older else 0
    name = f"checkpoint-{sequence:06d}-step-{step}"
    # Another name in each run: a process of a killed run may still be writing.
    temporary = f"{SAVING}{name}-{os.getpid()}-{time.time_ns()}"
    # The new checkpoint is one of those that are kept.
    superfluous = [old.name for old in same[: max(len(same) + 1 - keep, 0)]]
    plan = _Plan(name, temporary, older[-1].name if older else None, superfluous)
    with _explained(directory, step, plan, by):
        clear(directory)
        (directory / temporary).mkdir()
        _reserve(directory / temporary / "reserved", [a.nbytes for named in arrays.values() for a in named.values()])
    return plan


@contextlib.contextmanager
def _explained(directory, step: int, plan: _Plan, by: str):
    """Remove an incomplete checkpoint after an error, and raise an ``OSError`` that says what is kept."""
    try:
        yield
    except Exception as error:  # orbax raises a ValueError on a full disk
        if is_first():
            shutil.rmtree(directory / plan.temporary, ignore_errors=True)
        kept = f"the last one is {plan.last}" if plan.last else "there was none before it"
        reason = str(error).split(" [")[0].splitlines()[0] if str(error) else type(error).__name__
        no_access = isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
        repair = f"{'pass' if no_access else 'free disk space or pass'} another directory"
        if "Unsupported data type" in reason:
            repair = "convert the arrays of this dtype, as with .astype(jnp.uint8)"
        raise OSError(
            f"{by} expected to save the checkpoint of step {step} in {directory}, got {reason}; "
            f"{repair}. Earlier checkpoints are unchanged ({kept})."
        ) from error


def _check_shared(folder: Path) -> None:
    if not folder.is_dir():
        raise OSError(errno.EACCES, f"process {jax.process_index()} cannot find it, and all must share it")


def _collected(folder: Path) -> dict[str, dict[str, dict[str, str]]]:
    collected: dict = {}
    for number in range(jax.process_count()):
        file = folder / f"hashes-{number}.json"
        if not file.exists():
            raise OSError(f"process {number} could not write its shards")
        for name, named in json.loads(file.read_text()).items():
            for path, found in named.items():
                collected.setdefault(name, {}).setdefault(path, {}).update(found)
        file.unlink()
    return collected


def _joined(hashes: dict[str, str]) -> str | dict[str, str]:
    """The hash of an array in one part, or the hashes of its shards."""
    return next(iter(hashes.values())) if len(hashes) == 1 else dict(sorted(hashes.items()))


def _reserve(path, sizes: list[int]):
    """Allocate the disk space in advance: on a full disk, orbax may wait for minutes."""
    size = sum(sizes) + 512 * len(sizes) + 2**17  # for the descriptions of the arrays, and for parts of blocks
    with open(path, "wb") as file:
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):  # file systems that cannot allocate
                raise
    path.unlink()


def _flush(folder):
    for place, folders, files in os.walk(folder):
        for name in (*files, *folders):
            _sync(os.path.join(place, name))
    _sync(folder)


def _sync(path):
    with contextlib.suppress(PermissionError):  # Windows cannot open directories
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
