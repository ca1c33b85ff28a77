"""Reading a checkpoint that ``ssl-vision fit`` wrote."""

import pickle
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml

from ssl_vision.errors import InputError
from ssl_vision.runs.folder import RunFolder
from ssl_vision.runs.record import CHECKPOINT_KEY


class Checkpoint(NamedTuple):
    """What evaluation needs of a checkpoint."""

    path: Path
    config: dict[str, Any]
    epoch: int
    """Epochs that were completed when it was written."""
    state: dict[str, torch.Tensor]


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Reads a checkpoint file, or the last checkpoint of a run folder.

    Only tensors and plain values are read; a file that holds anything else, such as a pickle that would
    run code, is refused.

    Raises:
        InputError: absent, unreadable, refused, or not written by ``ssl-vision fit``.
    """
    path = Path(path)
    file = RunFolder(path).last if path.is_dir() else path
    if not file.is_file():
        raise InputError(f"{file}: no such checkpoint")
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise InputError(f"{file}: refused, it holds more than tensors and plain values") from error
    except Exception as error:
        raise InputError(f"{file}: not a readable checkpoint ({type(error).__name__})") from error
    if not isinstance(content, dict) or CHECKPOINT_KEY not in content or "state_dict" not in content:
        raise InputError(f"{file}: was not written by ssl-vision fit")
    config = yaml.safe_load(content[CHECKPOINT_KEY]["config"])
    # "processed" counts epochs whose batches are all done; Lightning saves before it counts them "completed".
    progress = content["loops"]["fit_loop"]["epoch_progress"]["current"]
    return Checkpoint(file, config, int(progress["processed"]), content["state_dict"])
