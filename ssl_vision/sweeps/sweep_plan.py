"""The plan of a sweep, the claim on one of its trials, and the record of a trial."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

from ssl_vision.errors import InputError
from ssl_vision.sweeps.sweep_file import SweepFile, parse_sweep
from ssl_vision.sweeps.trials import Trial

ATTEMPTS = 3
"""Maximum number of attempts at a trial that fails."""


@dataclass(frozen=True)
class Plan:
    """The settings of a sweep that every process of it needs."""

    folder: Path
    """Directory with the run directories of the trials and the files of the sweep."""
    text: str
    """Text of the sweep file."""
    cap: int | None = None
    """Maximum number of trials, or None."""
    options: tuple[str, ...] = ()
    """Options that follow those of the file in the command of every trial."""
    seed: int = 0
    evaluate: tuple[str, ...] = ()
    """Protocols under which finished trials are evaluated."""

    @cached_property
    def file(self) -> SweepFile:
        """The parsed sweep file."""
        return parse_sweep(self.text, where=str(self.folder / "sweep.yaml"))

    @property
    def name(self) -> str:
        """Name of the sweep."""
        return self.folder.resolve().name


@dataclass(frozen=True)
class Claim:
    """Exclusive right of this process to train or evaluate a trial, until it is released."""

    trial: Trial
    entry: int
    attempt: int
    lock: BinaryIO

    def release(self) -> None:
        """Release the trial. Its own process keeps the lock until it ends."""
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
    """Reason of a failure, or the bracket of early termination."""


def check_folder(folder: Path) -> None:
    """Check that a directory can be used for a sweep.

    Raises:
        InputError: it is a run directory, a file, or contains other files.
    """
    if (folder / "config.yaml").exists():
        raise InputError(f"{folder} is a run directory: choose another --name")
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file: choose another --name")
    # The locks are checked last, because a process that creates a sweep creates them first.
    if folder.exists() and any(folder.iterdir()) and not (folder / ".locks").exists():
        raise InputError(f"{folder} exists and is not a sweep: choose another --name")
