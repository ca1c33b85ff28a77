"""One process a run folder."""

import fcntl
import os
import socket
from io import TextIOWrapper
from pathlib import Path

from ssl_vision.errors import InputError


class Lock:
    """A claim on a folder, which ends with the process that has it, however that ends.

    Args:
        path: of the lock file, which stays.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: TextIOWrapper | None = None

    def take(self) -> None:
        """Claims the folder.

        Raises:
            InputError: another process has it.
        """
        if self._file is not None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = self.path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            owner = file.read().strip()
            file.close()
            raise InputError(
                f"{self.path.parent} is being trained by {owner or 'another process'}"
            ) from error
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        self._file = file

    def check(self) -> None:
        """Complains where another process has the folder, and changes nothing.

        Raises:
            InputError: it has.
        """
        if self._file is None and self.path.exists():
            self.take()
            self.release()

    def release(self) -> None:
        """Gives the folder back."""
        if self._file is not None:
            self._file.close()
            self._file = None
