"""The lock of a checkpoint directory: one run at a time writes there."""

import contextlib
import errno
from pathlib import Path

from jaxblocks.checks.errors import public_name, require
from jaxblocks.checks.system import library
from jaxblocks.training.processes import on_first

__all__ = ["lock_directory", "lock_of_run"]

_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP)  # of file systems without locks


def lock_directory(directory: Path) -> contextlib.ExitStack:
    """Create a directory and lock it exclusively until the result is closed, by a file that filelock locks.

    It raises if this is not possible, or if another run has the lock. The operating system releases the lock when the
    process ends, also by a kill: the file that a killed process leaves behind is not locked, and a forked process does
    not keep the lock. On a file system without locks, two runs are not detected; on a network file system, they are
    detected where it passes ``flock`` on to its server, as NFS does since Linux 2.6.12.
    """
    filelock = library("filelock", "locks the directory of checkpoints", "train")
    path, held = directory / ".lock", contextlib.ExitStack()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(path, blocking=False, thread_local=False, fallback_to_soft=False)
        lock.acquire()
        held.callback(_release, lock, path)
    except filelock.Timeout:
        repair = "pass another directory, wait for that run, or leave out checkpoint_dir beside checkpoints(...)"
        got = f"{directory}, which is locked"
        require(False, "a directory that no other run uses", got, repair, error=RuntimeError)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise OSError(
                f"{public_name()} expected to save checkpoints in {directory}, got {error.strerror}; "
                "pass another directory."
            ) from error
    return held


def lock_of_run(directory: Path) -> contextlib.AbstractContextManager:
    """The lock of a run of any number of processes: the first one holds it; all raise if another run has it."""
    held = []
    on_first(lambda: held.append(lock_directory(directory)))
    return held[0] if held else contextlib.nullcontext()


def _release(lock, path: Path) -> None:
    if not lock.is_locked:  # in a forked process, which must not remove the lock of the run
        return
    # Removed while it is locked, so that no other run locks it in between and loses it.
    with contextlib.suppress(OSError):  # Windows cannot remove an open file
        path.unlink()
    lock.release()
