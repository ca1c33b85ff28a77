"""The plan of a sweep, the claim on one of its trials, and the record of a trial."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

from ssl_vision.errors import InputError
from ssl_vision.runs.atomic_files import check_inside
from ssl_vision.sweeps.sweep_file import SweepFile, parse_sweep
from ssl_vision.sweeps.trials import Trial

_WRITTEN = (".locks", "logs", "logs/jobs", *(f"sweep.db{end}" for end in ("", "-journal", "-shm", "-wal")))
"""What a sweep writes in place. Its other files are replaced, and so is a link in their place."""


@dataclass(frozen=True)
class Plan:
    """A sweep as every process that works on it needs it."""

    folder: Path
    """Contains the trials' run directories and the sweep's own files."""
    text: str
    """The sweep file's text."""
    cap: int | None = None
    """The largest number of trials, or None."""
    options: tuple[str, ...] = ()
    """Options of every trial's command, after those of the file."""
    seed: int = 0
    attempts: int = 3
    """How often a trial may fail."""
    storage: str | None = None
    """The URL of another database than the folder's ``sweep.db``."""
    evaluate: tuple[str, ...] = ()
    """Protocols under which finished trials are evaluated."""

    @cached_property
    def file(self) -> SweepFile:
        """The sweep file, read."""
        return parse_sweep(self.text, where=str(self.folder / "sweep.yaml"))

    @property
    def name(self) -> str:
        """The sweep's name."""
        return self.folder.resolve().name


@dataclass(frozen=True)
class Claim:
    """A trial that this process alone trains or evaluates, until it releases it."""

    trial: Trial
    entry: int
    attempt: int
    lock: BinaryIO

    def release(self) -> None:
        """Gives the trial up. Its own process keeps the lock as long as it lives."""
        self.lock.close()


@dataclass(frozen=True)
class Record:
    """The progress of a trial.

    The state is ``waiting``, ``running``, ``interrupted``, ``finished``, ``pruned`` or ``failed``.
    """

    trial: Trial
    state: str
    value: float | None
    note: str
    """Why it failed, or at which bracket it ended."""


def check_folder(folder: Path) -> None:
    """Refuses a folder that is not a sweep's.

    Raises:
        InputError: it is a run's, or holds something else, or has a symbolic link out of it that would be
            written to.
    """
    if (folder / "config.yaml").exists():
        raise InputError(f"{folder} is a run directory: give the sweep another --name")
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file: give the sweep another --name")
    # The locks are looked for last: another process may be making the sweep, and they are its first thing.
    check_inside(folder, *_WRITTEN)
    if folder.exists() and any(folder.iterdir()) and not (folder / ".locks").exists():
        raise InputError(f"{folder} exists and is no sweep: give this one another --name")
