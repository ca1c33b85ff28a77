"""Checkpoint files: what a run adds to them, how they are read, and how they are written."""

import os
import pickle
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning_fabric.plugins.io.torch_io import TorchCheckpointIO

from ssl_vision._version import __version__
from ssl_vision.errors import InputError
from ssl_vision.hub import is_address
from ssl_vision.lightning_private import epochs_done
from ssl_vision.runs.files import parse_yaml, partial_file, rename
from ssl_vision.runs.folder import RunFolder

CHECKPOINT_KEY = "ssl_vision"
"""Key of what `RunRecord` adds to a checkpoint."""

OTHER_WEIGHTS = "to use weights of other code, name their network with --encoder (fit: --initial_checkpoint)"
"""Advice on a file that does not state its network."""


class Checkpoint(NamedTuple):
    """The parts of a checkpoint that evaluation needs."""

    path: Path
    config: dict[str, Any]
    epoch: int
    """Number of completed epochs."""
    state: dict[str, torch.Tensor]
    online: dict[str, torch.Tensor] | None = None
    """Weight and bias of the online probe; None for runs without one."""
    images: str | None = None
    """Digest of the training images; None for other data modules than those of this package."""
    classes: list[str] | None = None
    """Names of the classes of the online probe; None without one."""
    side: int | None = None
    """Side of the training images in pixels, before they are resized; None like `images`."""


def read_checkpoint(path: str | Path, *, verify: bool = False) -> Checkpoint:
    """Read a checkpoint file, or the last checkpoint of a run directory.

    Only tensors and plain values are read. Files that contain anything else, such as a pickle that would run
    code, are refused.

    Args:
        path: path of the file or of the run directory.
        verify: compare the checksums of the whole file, which torch does not.

    Raises:
        InputError: the file does not exist, is damaged or refused, or was not written by ``ssl-vision fit``;
            or it was written by a version with a higher major or minor number than this one.
    """
    if is_address(path):
        raise InputError(
            f"{path}: a repository on the Hugging Face Hub holds an encoder, but a checkpoint is required: "
            "give a checkpoint or a run directory"
        )
    path = Path(path)
    file = RunFolder(path).last if path.is_dir() else path
    if not file.is_file():
        raise InputError(f"{file}: no such checkpoint{_runs_within(path)}")
    content = load_plain(file, "checkpoint", verify=verify)
    try:
        record = content[CHECKPOINT_KEY]
        version = record["version"]
        if _release(version) > _release(__version__):
            raise InputError(
                f"{file}: written by ssl_vision {version}, but {__version__} is installed; update ssl_vision"
            )
        return Checkpoint(
            path=file,
            config=parse_yaml(record["config"], where=f"{file}: its config"),
            epoch=epochs_done(content),
            state=content["state_dict"],
            online=content.get("callbacks", {}).get("OnlineProbe", {}).get("layer"),
            images=record.get("images"),
            classes=record.get("classes"),
            side=record.get("side"),
        )
    except (LookupError, TypeError, AttributeError) as error:
        raise InputError(f"{file}: was not written by ssl-vision fit; {OTHER_WEIGHTS}") from error


def _runs_within(folder: Path) -> str:
    """Return the end of a message about a directory of runs, such as a sweep."""
    runs = sorted(str(file.parent.parent) for file in folder.glob("*/checkpoints/last.ckpt"))
    return f"; give one of its {len(runs)} runs, such as {runs[0]}" if runs else ""


def is_checkpoint(path: Path) -> bool:
    """Return True for a file that ``ssl-vision fit`` wrote; False if it cannot be read."""
    try:
        content = load_plain(path, "checkpoint")
    except InputError:
        return False
    return isinstance(content, dict) and CHECKPOINT_KEY in content


def load_plain(file: Path, kind: str, *, verify: bool = False) -> Any:
    """Load a file that was written with ``torch.save`` and contains only tensors and plain values.

    Args:
        file: path of the file.
        kind: what the file is, for messages.
        verify: compare the checksums of the whole file, which torch does not.

    Raises:
        InputError: the file is damaged, or contains anything else, such as a pickle that would run code.
    """
    try:
        mapped = zipfile.is_zipfile(file)  # memory-mapped, so that the optimizer's state is never read
        if verify and mapped:
            with zipfile.ZipFile(file) as archive:
                if damaged := archive.testzip():
                    raise InputError(f"{file}: damaged, the checksum of {damaged} does not match")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the pickle protocol of files that are refused anyway
            return torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
    except InputError:
        raise
    except pickle.UnpicklingError as error:
        raise InputError(f"{file}: refused, it contains more than tensors and plain values") from error
    except Exception as error:
        raise InputError(f"{file}: not a readable {kind} ({type(error).__name__})") from error


def _release(version: str) -> tuple[int, ...]:
    """Return the major and minor version numbers."""
    return tuple(map(int, version.split(".")[:2]))


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes checkpoints to temporary files and renames them when they are complete and on disk.

    If the process is killed or the disk fills up, the previous file remains. A checkpoint that cannot be
    written ends the run.

    The file ``last`` is renamed only by `commit`, so that the corresponding rows of metrics.csv can be
    written first. The file that it replaces is kept as ``previous``.

    Args:
        last: path of the last checkpoint.
        previous: path of the checkpoint before it.
        check: function that raises if the run directory must not be written; called before every write.
    """

    def __init__(self, last: Path, previous: Path, check: Callable[[], None] = lambda: None) -> None:
        self.last, self.previous, self.check = last, previous, check
        self._complete: Path | None = None

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """Write a checkpoint.

        Raises:
            OSError: the file cannot be written.
        """
        self.check()
        target = Path(path)
        partial = _write_partial(checkpoint, target)
        if target == self.last:
            self._complete = partial
        else:
            rename(partial, target)

    @property
    def waiting(self) -> bool:
        """True if a new ``last`` is complete and waits for `commit`."""
        return self._complete is not None

    def commit(self) -> None:
        """Rename a waiting ``last``, if any.

        Raises:
            OSError: ``last`` cannot be renamed.
        """
        if self._complete is None:
            return
        self.check()
        partial, self._complete = self._complete, None
        if self.last.exists():
            self.previous.unlink(missing_ok=True)
            try:
                os.link(self.last, self.previous)
            except OSError:  # the file system has no hard links
                os.replace(self.last, self.previous)
        rename(partial, self.last)

    def discard(self) -> None:
        """Delete a ``last`` that waits for `commit`."""
        if self._complete is not None:
            self._complete.unlink(missing_ok=True)
            self._complete = None


def _write_partial(checkpoint: dict[str, Any], target: Path) -> Path:
    """Write a checkpoint to a temporary file next to ``target``.

    Raises:
        OSError: the file cannot be written; it is deleted.
    """
    try:
        with partial_file(target, ".partial") as partial, partial.open("wb") as file:
            torch.save(checkpoint, file)
    except RuntimeError as error:
        cause = error.__context__
        if isinstance(cause, OSError):  # torch's error for a full disk
            raise OSError(cause.errno, cause.strerror, str(target)) from error
        raise
    return partial
