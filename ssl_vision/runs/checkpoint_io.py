"""Atomic checkpoint files."""

import os
import secrets
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import torch
from lightning_fabric.plugins.io.torch_io import TorchCheckpointIO

from ssl_vision.runs.atomic_files import sync
from ssl_vision.runs.folder import PARTIAL


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes checkpoints to temporary files and renames them when they are complete and on disk.

    If the process is killed or the disk fills up, the previous file remains. If a checkpoint cannot be
    written, a warning is issued, training continues, and the file that it would have replaced is kept.

    The file ``last`` is renamed only by `commit`, so that the corresponding rows of metrics.csv can be
    written first. The file that it replaces is kept as ``previous``.

    Args:
        last: path of the last checkpoint.
        previous: path of the checkpoint before it.
        check: function that raises if the run directory must not be written; called before every write.
    """

    def __init__(self, last: Path, previous: Path, check: Callable[[], None] = lambda: None) -> None:
        self.last, self.previous, self.check = last, previous, check
        self._complete: tuple[Path, dict[str, Any]] | None = None
        self._unwritten: dict[str, Any] | None = None
        self._failed = False

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """Write a checkpoint; warn if it cannot be written."""
        self.check()
        target = Path(path)
        try:
            partial = _write_partial(checkpoint, target)
            if target == self.last:
                self._complete, self._unwritten = (partial, checkpoint), None
            else:
                _rename(partial, target)
                self._failed = False
        except OSError as error:
            _warn(target, error)
            if target == self.last:
                self._unwritten = checkpoint
            else:
                self._failed = True

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Remove a checkpoint, unless the one that replaces it could not be written."""
        if not self._failed:
            super().remove_checkpoint(Path(path))

    @property
    def waiting(self) -> bool:
        """True if a new ``last`` is complete and waits for `commit`."""
        return self._complete is not None

    def commit(self) -> None:
        """Rename a waiting ``last``, if any; warn if that fails."""
        if self._complete is None:
            return
        self.check()
        (partial, checkpoint), self._complete = self._complete, None
        try:
            if self.last.exists():
                self.previous.unlink(missing_ok=True)
                try:
                    os.link(self.last, self.previous)
                except OSError:  # the file system has no hard links
                    os.replace(self.last, self.previous)
            _rename(partial, self.last)
        except OSError as error:
            _warn(self.last, error)
            self._unwritten = checkpoint

    def discard(self) -> None:
        """Delete a ``last`` that waits for `commit`."""
        if self._complete is not None:
            self._complete[0].unlink(missing_ok=True)
            self._complete = None

    def forget(self) -> None:
        """Give up a ``last`` that could not be written: training will change the tensors in it."""
        self._unwritten = None

    def finish(self) -> None:
        """Retry writing a ``last`` that could not be written.

        Raises:
            OSError: ``last`` cannot be written.
        """
        if self._unwritten is None:
            return
        checkpoint, self._unwritten = self._unwritten, None
        try:
            _rename(_write_partial(checkpoint, self.last), self.last)
        except OSError as error:
            message = f"{self.last} cannot be written ({error.strerror}): the end of the run is lost"
            raise OSError(error.errno, message) from error


def remove_partial(folder: Path) -> None:
    """Delete the unfinished files of a killed run: checkpoints at any depth, others in its directory."""
    for file in (*folder.rglob(".*.partial"), *folder.glob(".*-*")):
        if PARTIAL.fullmatch(file.name) and not file.is_dir():
            file.unlink(missing_ok=True)


def _warn(target: Path, error: OSError) -> None:
    warnings.warn(f"{target} cannot be written ({error.strerror}); training continues", stacklevel=3)


def copy_checkpoint(source: Path, target: Path) -> None:
    """Copy a checkpoint atomically and durably.

    Raises:
        OSError: the copy cannot be written.
    """

    def copy(file: BinaryIO) -> None:
        with source.open("rb") as content:
            shutil.copyfileobj(content, file)

    _rename(_written(target, copy), target)


def _write_partial(checkpoint: dict[str, Any], target: Path) -> Path:
    """Write a checkpoint to a temporary file next to ``target``; see `_written`."""
    return _written(target, lambda file: torch.save(checkpoint, file))


def _written(target: Path, write: Callable[[BinaryIO], None]) -> Path:
    """Write a temporary file next to ``target``, flush it to disk and return its path.

    Raises:
        OSError: the file cannot be written; it is deleted.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}.partial")
    try:
        with partial.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
    except BaseException as error:
        partial.unlink(missing_ok=True)
        cause = error.__context__
        if isinstance(error, RuntimeError) and isinstance(cause, OSError):  # torch's error for a full disk
            raise cause from None
        raise
    return partial


def _rename(partial: Path, target: Path) -> None:
    """Rename a file durably."""
    os.replace(partial, target)
    sync(target.parent)
