"""Checkpoint files that are whole or not there."""

import os
import re
import secrets
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning_fabric.plugins.io.torch_io import TorchCheckpointIO

from ssl_vision.runs.atomic_files import sync
from ssl_vision.runs.migration import migrated_checkpoint

_PARTIAL = re.compile(
    r"\..+\.ckpt\.[0-9a-f]+\.partial|\.[0-9a-f]{8}-(config\.yaml|skipped\.txt|(metrics|times|weights)\.csv)"
)
"""Names of files that training had not finished writing."""


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint beside its place and gives it its name when it is complete and on the disk.

    A process killed or a disk filled at any moment leaves the file that was there before. What cannot be
    written is a warning, and training goes on; what it was to replace is kept.

    One file, ``last``, waits for ``commit`` before it gets its name, so that what belongs to it, the rows
    of metrics.csv, is on disk first; the one it replaces stays beside it as ``previous``.

    Args:
        last: that file.
        previous: where the one before it is kept.
    """

    def __init__(self, last: Path, previous: Path) -> None:
        self.last, self.previous = last, previous
        self._complete: tuple[Path, dict[str, Any]] | None = None
        self._unwritten: dict[str, Any] | None = None
        self._failed = False

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """Writes the file, or warns."""
        target = Path(path)
        try:
            partial = _written(checkpoint, target)
            if target == self.last:
                self._complete, self._unwritten = (partial, checkpoint), None
            else:
                _named(partial, target)
                self._failed = False
        except OSError as error:
            _warn(target, error)
            if target == self.last:
                self._unwritten = checkpoint
            else:
                self._failed = True

    def load_checkpoint(self, path: Any, *args: Any, **options: Any) -> dict[str, Any]:
        """Reads a checkpoint, also of an earlier version."""
        return migrated_checkpoint(super().load_checkpoint(path, *args, **options))

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Removes a checkpoint that a later one replaces, unless that one could not be written."""
        if not self._failed:
            super().remove_checkpoint(Path(path))

    @property
    def waiting(self) -> bool:
        """Whether a new ``last`` is complete and has yet to get its name."""
        return self._complete is not None

    def commit(self) -> None:
        """Gives ``last`` its name, where a new one waits, or warns."""
        if self._complete is None:
            return
        (partial, checkpoint), self._complete = self._complete, None
        try:
            if self.last.exists():
                self.previous.unlink(missing_ok=True)
                try:
                    os.link(self.last, self.previous)
                except OSError:  # a file system without links
                    os.replace(self.last, self.previous)
            _named(partial, self.last)
        except OSError as error:
            _warn(self.last, error)
            self._unwritten = checkpoint

    def discard(self) -> None:
        """Forgets a new ``last`` that waits for its name."""
        if self._complete is not None:
            self._complete[0].unlink(missing_ok=True)
            self._complete = None

    def finish(self, spare: Path | None) -> None:
        """Tries once more to write a ``last`` that could not be written.

        Args:
            spare: a folder that takes it if its own place still cannot.

        Raises:
            OSError: the own place cannot take it; the message says whether ``spare`` did.
        """
        if self._unwritten is None:
            return
        checkpoint, self._unwritten = self._unwritten, None
        try:
            _named(_written(checkpoint, self.last), self.last)
        except OSError as error:
            lost = f"{self.last} cannot be written ({error.strerror})"
            if spare is None:
                advice = "the end of the run is lost, give --spare_dir another disk"
                raise OSError(error.errno, f"{lost}: {advice}") from error
            try:
                _named(_written(checkpoint, spare / self.last.name), spare / self.last.name)
            except OSError as other:
                advice = f"nor can {spare} ({other.strerror}): the end of the run is lost"
                raise OSError(error.errno, f"{lost}, {advice}") from other
            raise OSError(error.errno, f"{lost}: it is at {spare / self.last.name}") from error


def remove_partial(folder: Path) -> None:
    """Deletes the unfinished files that a killed run left: checkpoints at any depth, others in its folder."""
    for file in (*folder.rglob(".*.partial"), *folder.glob(".*-*")):
        if _PARTIAL.fullmatch(file.name) and not file.is_dir():
            file.unlink(missing_ok=True)


def _warn(target: Path, error: OSError) -> None:
    warnings.warn(f"{target} cannot be written ({error.strerror}): training goes on", stacklevel=3)


def _written(checkpoint: dict[str, Any], target: Path) -> Path:
    """The checkpoint in a file beside ``target``, on the disk.

    Raises:
        OSError: it cannot be written; nothing is left of it.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}.partial")
    try:
        with partial.open("xb") as file:
            torch.save(checkpoint, file)
            file.flush()
            os.fsync(file.fileno())
    except BaseException as error:
        partial.unlink(missing_ok=True)
        cause = error.__context__
        if isinstance(error, RuntimeError) and isinstance(cause, OSError):  # torch's words for a full disk
            raise cause from None
        raise
    return partial


def _named(partial: Path, target: Path) -> None:
    """Gives a complete file its name, for good."""
    os.replace(partial, target)
    sync(target.parent)
