"""The lock of a checkpoint directory: one run at a time writes there."""

import contextlib
import errno
import os
import socket
from pathlib import Path

from jaxblocks.checks.errors import public_name, require
from jaxblocks.checks.libraries import library
from jaxblocks.training.processes.processes import is_first, on_first

__all__ = ["DirectoryLock", "lock_of_run"]

_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP)  # of file systems without locks


class DirectoryLock:
    """An exclusive lock of a directory, held from construction to `release`: a file that filelock locks.

    The operating system releases the lock when the process ends, also by a kill: the file that a killed process leaves
    behind is not locked, and a forked process does not keep the lock. The file names the process, for the error
    message. On a file system without locks, two runs are not detected; on a network file system, they are detected
    where it passes ``flock`` on to its server, as NFS does since Linux 2.6.12.
    """

    def __init__(self, directory: Path):
        """Create the directory and lock it; raises if this is not possible, or if another run has the lock."""
        filelock = library("filelock", "locks the directory of checkpoints", "train")
        self._path = directory / ".lock"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._lock = filelock.FileLock(
                self._path, blocking=False, thread_local=False, fallback_to_soft=False, on_acquired=_write_owner
            )
            self._lock.acquire()
        except filelock.Timeout:
            expected, repair = "a directory that no other run uses", "pass another directory, or wait for that run"
            require(False, expected, f"{directory}, which {self._owner()} uses", repair, error=RuntimeError)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                expected = f"to save checkpoints in {directory}"
                raise OSError(
                    f"{public_name()} expected {expected}, got {error.strerror}; pass another directory."
                ) from error

    def _owner(self) -> str:
        with contextlib.suppress(OSError):  # Windows lets no other process read it
            return self._path.read_text(errors="replace")[:200] or "another process"
        return "another process"

    def release(self) -> None:
        """Remove the file and release the lock; a second call does nothing."""
        if self._lock.is_locked:
            # Removed while it is locked, so that no other run locks it in between and loses it.
            with contextlib.suppress(OSError):  # Windows cannot remove an open file
                self._path.unlink()
            self._lock.release()

    def __enter__(self) -> "DirectoryLock":
        return self

    def __exit__(self, *error) -> None:
        self.release()


def lock_of_run(directory: Path) -> contextlib.AbstractContextManager:
    """The lock of a run of any number of processes: the first one holds it; all raise if another run has it."""
    held = []
    on_first(lambda: held.append(DirectoryLock(directory)))
    return held[0] if is_first() else contextlib.nullcontext()


def _write_owner(file: int) -> None:
    with contextlib.suppress(OSError):  # a full disk
        os.truncate(file, 0)
        os.write(file, f"process {os.getpid()} on {socket.gethostname()}".encode())
