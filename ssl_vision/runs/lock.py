"""Lock of a run directory, so that only one process trains in it."""

import fcntl
import os
import socket
import time
import warnings
from io import TextIOWrapper
from pathlib import Path

from ssl_vision.errors import InputError

HELD = "SSL_VISION_LOCK"
"""Environment variable with the path of a lock that a process shares with its child."""


class Lock:
    """Exclusive lock of a directory; it is released when its process ends, even if that is killed.

    A process can `share` its lock with a child. The child need not acquire the lock, and the lock is released
    when both have ended.

    Args:
        path: path of the lock file, which is never deleted.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: TextIOWrapper | None = None

    def take(self) -> None:
        """Acquire the lock; on a file system without locks, warn instead.

        Raises:
            InputError: another process holds the lock, or the lock file is a link or cannot be opened.
        """
        if self._file is not None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = open(self.path, "a+", encoding="utf-8", opener=_opener)  # noqa: SIM115
        except OSError as error:
            raise InputError(f"{self.path} cannot be used as a lock ({error.strerror})") from error
        try:
            if os.environ.get(HELD) != str(self.path.absolute()):
                _lock(file)
        except BlockingIOError as error:
            file.seek(0)
            owner = file.read().strip()
            file.close()
            raise InputError(
                f"{self.path.parent} is being trained by {owner or 'another process'}"
            ) from error
        except OSError as error:
            warnings.warn(
                f"{self.path} cannot be locked ({error.strerror}); do not start this run twice",
                stacklevel=2,
            )
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        self._file = file
        os.register_at_fork(after_in_child=self.release)  # a child that outlives this process has no claim

    def check(self) -> None:
        """Check that the lock can be acquired, without acquiring it.

        Raises:
            InputError: another process holds the lock, or the lock file is a link.
        """
        if self._file is None and (self.path.is_symlink() or self.held):
            self.take()
            self.release()

    @property
    def lost(self) -> bool:
        """True if the locked file is no longer at its path, because the directory was moved or deleted."""
        if self._file is None:
            return False
        try:
            return not os.path.samestat(os.fstat(self._file.fileno()), os.lstat(self.path))
        except OSError as error:
            return isinstance(error, FileNotFoundError)

    def verify(self) -> None:
        """Check that no other process can have locked the directory since `take`.

        Raises:
            InputError: the lock is `lost`.
        """
        if self.lost:
            raise InputError(
                f"{self.path.parent} was moved or deleted while this run trained in it, so it stops; "
                "nothing more was written"
            )

    @property
    def taken(self) -> bool:
        """True after `take`, until `release`."""
        return self._file is not None

    @property
    def held(self) -> bool:
        """True while any process, including this one, holds the lock; False if that cannot be determined."""
        try:
            with open(self.path, "rb", opener=_opener) as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # missing, a link, not permitted, or a file system without locks
            pass
        return False

    def share(self) -> int:
        """Return a descriptor for a child, whose environment must contain `HELD`; it is to be closed here."""
        if self._file is None:
            raise ValueError(f"{self.path} is not locked")
        return os.dup(self._file.fileno())

    def release(self) -> None:
        """Release the lock."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _opener(path: str, flags: int) -> int:
    """Open a file, but not the target of a symbolic link."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def _lock(file: TextIOWrapper) -> None:
    """Lock a file; retry once, because `Lock.held` locks it for a moment."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        time.sleep(0.05)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
