"""Reading a checkpoint that ``ssl-vision fit`` wrote."""

import pickle
import warnings
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ssl_vision._version import __version__
from ssl_vision.errors import InputError
from ssl_vision.runs.folder import RunFolder
from ssl_vision.runs.migration import migrated_config
from ssl_vision.runs.reading import parse_yaml
from ssl_vision.runs.record import CHECKPOINT_KEY


class Checkpoint(NamedTuple):
    """What evaluation needs of a checkpoint."""

    path: Path
    config: dict[str, Any]
    epoch: int
    """Epochs that were completed when it was written."""
    state: dict[str, torch.Tensor]
    online: dict[str, torch.Tensor] | None = None
    """Weight and bias of the online probe, where the run had one."""
    images: str | None = None
    """Digest of the images that the run was trained on; None in checkpoints of earlier versions."""


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Reads a checkpoint file, or the last checkpoint of a run directory.

    Only tensors and plain values are read; a file that holds anything else, such as a pickle that would
    run code, is refused. So is one whose bytes are not those that were written.

    Raises:
        InputError: absent, damaged, refused, not written by ``ssl-vision fit``, or by a later version than
            this one: one whose major or minor number is higher.
    """
    path = Path(path)
    file = RunFolder(path).last if path.is_dir() else path
    if not file.is_file():
        raise InputError(f"{file}: no such checkpoint")
    try:
        check_bytes(file)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the pickle protocol of what is refused anyway
            mapped = zipfile.is_zipfile(file)  # the optimizer's state is not needed, and so never read
            content = torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError as error:
        raise InputError(f"{file}: refused, it holds more than tensors and plain values") from error
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{file}: not a readable checkpoint ({type(error).__name__})") from error
    try:
        own, fit_loop = _table(content, CHECKPOINT_KEY), _table(content, "loops", "fit_loop")
        version, text = own["version"], own["config"]
        if _release(version) > _release(__version__):
            raise InputError(f"{file}: written by ssl_vision {version}, this is {__version__}: update it")
        config = migrated_config(parse_yaml(text, where=f"{file}: its config"))
        state = content["state_dict"]
        # "processed" counts epochs whose batches are all done; Lightning saves before it counts "completed".
        progress = _table(fit_loop, "epoch_progress", "current")
        if (
            not _is_config(config)
            or not isinstance(state, dict)
            or not all(map(torch.is_tensor, state.values()))
        ):
            raise TypeError
        online = content.get("callbacks", {}).get("OnlineProbe", {}).get("layer")
        images = own.get("images")
        return Checkpoint(file, config, int(progress["processed"]), state, online, images)
    except InputError:
        raise
    except (LookupError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise InputError(f"{file}: was not written by ssl-vision fit") from error


def _table(content: Any, *keys: str) -> dict[str, Any]:
    """The table at the end of a path of keys.

    Raises:
        TypeError: something on the path is not a table.
        KeyError: a table lacks its key.
    """
    for key in keys:
        if not isinstance(content, dict):
            raise TypeError
        content = content[key]
    if not isinstance(content, dict):
        raise TypeError
    return content


def _is_config(config: Any) -> bool:
    """True for a table with a seed, a trainer, a model and its data, as every run has one."""
    return (
        isinstance(config, dict)
        and isinstance(config["seed_everything"], int)
        and isinstance(config["trainer"], dict)
        and all(isinstance(config[part]["class_path"], str) for part in ("model", "data"))
        and all(isinstance(config[part]["init_args"], dict) for part in ("model", "data"))
    )


def check_bytes(file: Path) -> None:
    """Compares the parts of a zip archive with their CRC-32, which torch does not.

    Raises:
        InputError: a checksum is wrong, or a part is compressed: torch compresses none, and a compressed part
            may expand to any size.
    """
    if not zipfile.is_zipfile(file):
        return
    with zipfile.ZipFile(file) as archive:
        if any(part.compress_type != zipfile.ZIP_STORED for part in archive.infolist()):
            raise InputError(f"{file}: refused, it is compressed")
        if damaged := archive.testzip():
            raise InputError(f"{file}: damaged, the checksum of {damaged} is another")


def _release(version: str) -> tuple[int, ...]:
    """Major and minor number."""
    return tuple(map(int, version.split(".")[:2]))
