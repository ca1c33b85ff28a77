"""A lock that gives a run directory to one process."""

import fcntl
import os
import socket
import time
import warnings
from io import TextIOWrapper
from pathlib import Path

from ssl_vision.errors import InputError
from ssl_vision.runs.atomic_files import no_follow


class Lock:
    """A claim on a folder, which ends with the process that has it, however that ends.

    Args:
        path: of the lock file, which stays.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: TextIOWrapper | None = None

    def take(self) -> None:
        """Claims the directory; on a file system without locks, warns that nothing guards it.

        Raises:
            InputError: another process holds the lock, or the lock file is a link or cannot be opened.
        """
        if self._file is not None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = open(self.path, "a+", encoding="utf-8", opener=no_follow)  # noqa: SIM115
        except OSError as error:
            raise InputError(f"{self.path} cannot be used as a lock ({error.strerror}): remove it") from error
        try:
            _claim(file)
        except BlockingIOError as error:
            file.seek(0)
            owner = file.read().strip()
            file.close()
            raise InputError(
                f"{self.path.parent} is being trained by {owner or 'another process'}"
            ) from error
        except OSError as error:
            warnings.warn(
                f"{self.path} cannot be locked ({error.strerror}): do not start this run a second time",
                stacklevel=2,
            )
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        self._file = file

    def check(self) -> None:
        """Checks that the directory can be claimed, and changes nothing.

        Raises:
            InputError: another process holds the lock, or something else is in the place of the lock file.
        """
        blocked = os.path.lexists(self.path) and (self.path.is_symlink() or not self.path.is_file())
        if self._file is None and (blocked or self.held):
            self.take()
            self.release()

    @property
    def held(self) -> bool:
        """True while a process, this one or another, holds the lock; False where nobody can tell."""
        try:
            with open(self.path, "rb", opener=no_follow) as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # absent, a link or no file, not permitted, or no locks on this file system
            pass
        return False

    def release(self) -> None:
        """Gives the folder back."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _claim(file: TextIOWrapper) -> None:
    """Locks the file, or raises; whoever only asks whether it is held is waited for."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        time.sleep(0.05)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
