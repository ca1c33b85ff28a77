"""Checkpoint from which ``fit`` continues, or which ``validate`` reads."""

import os
import shlex
from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

from pytorch_lightning.utilities import rank_zero_info, rank_zero_warn

from ssl_vision.errors import InputError
from ssl_vision.runs.checkpoint import Checkpoint, read_checkpoint
from ssl_vision.runs.folder import RunFolder, differences, listed
from ssl_vision.tracking.wandb import SCHEME, fetched_checkpoint, requeued_by_agent, requeued_checkpoint

_CONTINUED = "SSL_VISION_CONTINUED"
"""Environment variable with the checkpoint that the first process continues from."""


def place_to_continue(folder: RunFolder, *, online: bool) -> str | None:
    """Return the checkpoint from which a requeued run continues, as for ``--ckpt_path``; None for other runs.

    The first process of a machine decides for the processes that it launches, which inherit its environment.

    Args:
        folder: run directory.
        online: allow a run that ``wandb agent`` has rescheduled to download its checkpoint from W&B.
    """
    if int(os.environ.get("SLURM_RESTART_COUNT") or 0) > 0:  # restarted with the command of the first start
        return "last"
    if int(os.environ.get("LOCAL_RANK") or 0) and _CONTINUED in os.environ:
        return os.environ[_CONTINUED] or None
    place = "last" if requeued_by_agent(folder) else None
    if place is None and online and (file := requeued_checkpoint()):
        place = str(file)
    if os.environ.get("WANDB_SWEEP_ID"):
        os.environ[_CONTINUED] = place or ""
    return place


def checkpoint_at(place: str, folder: RunFolder, command: str) -> Checkpoint | None:
    """Return a checkpoint without its weights, or None if training has not written one yet.

    Args:
        place: path, W&B artifact or run directory; ``last`` is the last readable checkpoint of the run.
        folder: run directory.
        command: ``fit`` or ``validate``, which requires a checkpoint.

    Raises:
        InputError: there is no readable checkpoint, but results that training would overwrite.
    """
    if place != "last":
        file = fetched_checkpoint(place) if place.startswith(SCHEME) else place
        return read_checkpoint(file, verify=True)._replace(state={})
    files = [file for file in (folder.last, folder.previous) if file.exists()]
    for file, fallback in zip_longest(files, files[1:]):
        try:
            checkpoint = read_checkpoint(file, verify=True)
        except InputError as error:
            if fallback is None:
                raise
            rank_zero_warn(f"{error}: falling back to {fallback}")
        else:
            if command == "fit":
                rank_zero_info(f"continuing from {file}")
            return checkpoint._replace(state={})
    if command != "fit" or any(folder.checkpoints.glob("*.ckpt")):
        advice = "" if folder.config_file.exists() else f"; give the run directory: ssl-vision {command} RUN"
        raise InputError(f"{folder.last}: no such checkpoint{advice}")
    if folder.results():
        raise InputError(
            f"{folder.path} has results, but no checkpoint to continue from: "
            "--overwrite true replaces the run"
        )
    rank_zero_info(f"no checkpoint in {folder.checkpoints}: starting from the beginning")
    return None


def check_config(checkpoint: Checkpoint, config: Mapping[str, Any], command: str) -> None:
    """Check that ``fit`` continues the same run, or that ``validate`` uses the same network.

    Args:
        checkpoint: the checkpoint.
        config: config of the command.
        command: ``fit`` or ``validate``.

    Raises:
        InputError: the checkpoint was made with another config.
    """
    other = differences(checkpoint.config, config, moved=knows_images(checkpoint))
    if command != "fit":
        trained = ("model.init_args.objective", "model.init_args.optimizer")
        other = [key for key in other if key.startswith("model.") and not key.startswith(trained)]
    if other:
        run = RunFolder(checkpoint.path.parent.parent)
        message = f"{checkpoint.path} was made with another config ({listed(other)})"
        if run.config_file.exists():
            message += f"; use that config with ssl-vision {command} {shlex.quote(str(run.path))}"
        raise InputError(message)


def knows_images(checkpoint: Checkpoint | None) -> bool:
    """Return True if a checkpoint has a digest of its images, which may then have moved to another folder."""
    return checkpoint is not None and checkpoint.images is not None
