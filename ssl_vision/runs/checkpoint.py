"""Reading checkpoints written by ``ssl-vision fit``."""

import pickle
import warnings
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ssl_vision._version import __version__
from ssl_vision.errors import InputError
from ssl_vision.hub import is_address
from ssl_vision.lightning_private import epochs_done
from ssl_vision.runs.folder import RunFolder
from ssl_vision.runs.reading import parse_yaml

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
    try:
        if verify and zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as archive:
                if damaged := archive.testzip():
                    raise InputError(f"{file}: damaged, the checksum of {damaged} does not match")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the pickle protocol of files that are refused anyway
            mapped = zipfile.is_zipfile(file)  # memory-mapped, so that the optimizer's state is never read
            content = torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError as error:
        raise InputError(f"{file}: refused, it contains more than tensors and plain values") from error
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{file}: not a readable checkpoint ({type(error).__name__})") from error
    try:
        if not isinstance(content, dict) or not isinstance(record := content[CHECKPOINT_KEY], dict):
            raise TypeError  # a tensor warns when it is indexed by a name
        version = record["version"]
        if _release(version) > _release(__version__):
            raise InputError(
                f"{file}: written by ssl_vision {version}, but {__version__} is installed; update ssl_vision"
            )
        config = parse_yaml(record["config"], where=f"{file}: its config")
        state = content["state_dict"]
        epoch = epochs_done(content)
        if (
            not _is_config(config)
            or not isinstance(state, dict)
            or not all(map(torch.is_tensor, state.values()))
        ):
            raise TypeError
        online = content.get("callbacks", {}).get("OnlineProbe", {}).get("layer")
        images, side, classes = (record.get(name) for name in ("images", "side", "classes"))
        return Checkpoint(file, config, epoch, state, online, images, classes, side)
    except InputError:
        raise
    except (LookupError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise InputError(f"{file}: was not written by ssl-vision fit; {OTHER_WEIGHTS}") from error


def _runs_within(folder: Path) -> str:
    """Return the end of a message about a directory of runs, such as a sweep."""
    runs = sorted(str(file.parent.parent) for file in folder.glob("*/checkpoints/last.ckpt"))
    return f"; give one of its {len(runs)} runs, such as {runs[0]}" if runs else ""


def is_checkpoint(path: Path) -> bool:
    """Return True for a file that ``ssl-vision fit`` wrote; False if it cannot be read."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception:  # of any class; the reader of weights describes it
        return False
    return isinstance(content, dict) and CHECKPOINT_KEY in content


def remove_requeued(folder: RunFolder) -> None:
    """Delete the checkpoints of SLURM requeues, which Lightning would prefer to any other.

    Raises:
        InputError: a file of that name was not written by ``ssl-vision fit``.
    """
    for file in folder.path.glob("hpc_ckpt_*.ckpt"):
        if not is_checkpoint(file):
            raise InputError(f"{file}: not written by this run, but Lightning would resume from it; move it")
        file.unlink()


def _is_config(config: Any) -> bool:
    """Return True for a dict with the sections of a run's config: seed, trainer, model and data."""
    return (
        isinstance(config, dict)
        and isinstance(config["seed_everything"], int)
        and isinstance(config["trainer"], dict)
        and all(isinstance(config[part]["class_path"], str) for part in ("model", "data"))
        and all(isinstance(config[part]["init_args"], dict) for part in ("model", "data"))
    )


def _release(version: str) -> tuple[int, ...]:
    """Return the major and minor version numbers."""
    return tuple(map(int, version.split(".")[:2]))
