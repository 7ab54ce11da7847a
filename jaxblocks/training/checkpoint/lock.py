"""The lock of a checkpoint directory: one run at a time writes there."""

import contextlib
import os
import socket
import sys
import weakref
from pathlib import Path

from jaxblocks.checks.errors import public_name, require
from jaxblocks.training.processes.processes import is_first, on_first

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

__all__ = ["DirectoryLock", "lock_of_run"]


class DirectoryLock:
    """An exclusive lock of a directory, held from construction to `release`.

    The operating system releases the lock when the process ends, also by a kill: the file that a killed process leaves
    behind is not locked. The file names the process, for the error message.
    """

    def __init__(self, directory: Path):
        """Create the directory and lock it; raises if this is not possible, or if another run has the lock."""
        self._path, self._file = directory / ".lock", -1
        try:
            directory.mkdir(parents=True, exist_ok=True)
            # Again, as long as the file that was locked is one that its owner has removed meanwhile.
            while self._file < 0:
                self._file = self._open()
        except OSError as error:
            expected = f"to save checkpoints in {directory}"
            raise OSError(
                f"{public_name()} expected {expected}, got {error.strerror}; pass another directory."
            ) from error
        except _HeldError as error:
            expected, repair = "a directory that no other run uses", "pass another directory, or wait for that run"
            require(False, expected, f"{directory}, which {error} uses", repair, error=RuntimeError)
        _HELD.add(self)

    def _open(self) -> int:
        """Open and lock the file; -1 where its owner removed it at the same time."""
        file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _lock(file)
        except (BlockingIOError, PermissionError) as error:
            with contextlib.suppress(OSError), os.fdopen(file, "rb") as opened:
                raise _HeldError(opened.read(200).decode(errors="replace") or "another process") from error
            raise _HeldError("another process") from error
        except OSError:  # a file system without locks: two runs are not detected
            pass
        # The owner may have removed the file between open and lock: the lock then belongs to a file without a name, and
        # a third run could make a new one.
        if not self._is_current(file):
            os.close(file)
            return -1
        with contextlib.suppress(OSError):  # a full disk
            os.truncate(file, 0)
            os.write(file, f"process {os.getpid()} on {socket.gethostname()}".encode())
        return file

    def _is_current(self, file: int) -> bool:
        try:
            return os.path.samestat(os.fstat(file), os.stat(self._path))
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Remove the file and release the lock; a second call does nothing."""
        if self._file >= 0:
            # Removed while it is locked, so that no other run locks it in between and loses it.
            with contextlib.suppress(OSError):  # Windows cannot remove an open file
                self._path.unlink()
            self.close()

    def close(self) -> None:
        """Close the file; in a forked process this leaves the lock to the parent."""
        os.close(self._file)
        self._file = -1
        _HELD.discard(self)

    def __enter__(self) -> "DirectoryLock":
        return self

    def __exit__(self, *error) -> None:
        self.release()


def lock_of_run(directory: Path) -> contextlib.AbstractContextManager:
    """The lock of a run of any number of processes: the first one holds it; all raise if another run has it."""
    held = []
    on_first(lambda: held.append(DirectoryLock(directory)))
    return held[0] if is_first() else contextlib.nullcontext()


class _HeldError(Exception):
    """Another run has the lock; the message is its process."""


def _lock(file: int) -> None:
    if sys.platform == "win32":
        msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
    else:
        # LOCK_NB: an error instead of waiting for the end of the other run.
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


_HELD: weakref.WeakSet[DirectoryLock] = weakref.WeakSet()


def _close_in_fork() -> None:
    """Close the inherited files: a forked data loader that still runs after its run was killed would keep the lock."""
    for lock in list(_HELD):
        lock.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_fork)
