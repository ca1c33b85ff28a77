"""Checkpoints and encoders as W&B artifacts, with the digest of the images for their lineage."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytorch_lightning.utilities import rank_zero_info

from ssl_vision.errors import InputError
from ssl_vision.runs.checkpoint import Checkpoint, read_checkpoint
from ssl_vision.runs.config import class_name
from ssl_vision.tracking.wandb import PROJECT

SCHEME = "wandb://"


def log_checkpoint(run: Any, file: Path) -> None:
    """Log the last checkpoint of a run as ``checkpoint-ID``, where ID is that of the W&B run.

    The run is recorded as a user of the data set ``images-DIGEST``, which contains only the digest of the
    training images.

    Args:
        run: W&B run.
        file: checkpoint.
    """
    import wandb

    checkpoint = read_checkpoint(file)
    described = _described(checkpoint)
    if checkpoint.images is not None:
        images = wandb.Artifact(f"images-{checkpoint.images}", type="dataset", metadata=described)
        with images.new_file("images.json") as out:
            json.dump({"data": described["data"], "digest": checkpoint.images}, out)
        if run.offline:  # W&B records the use of an artifact online only
            run.log_artifact(images)
        else:
            run.use_artifact(images)
    artifact = wandb.Artifact(f"checkpoint-{run.id}", type="model", metadata=described)
    artifact.add_file(str(file), name=file.name)
    run.log_artifact(artifact, aliases=["last", f"epoch-{checkpoint.epoch}", "latest"])


def log_encoder(run: Any, files: Sequence[Path], *, checkpoint: Checkpoint) -> None:
    """Log the files of an exported encoder as ``encoder-ID``, where ID is that of the W&B run.

    Args:
        run: W&B run.
        files: encoder and model card.
        checkpoint: checkpoint that contains the encoder.
    """
    import wandb

    artifact = wandb.Artifact(f"encoder-{run.id}", type="model", metadata=_described(checkpoint))
    for file in files:
        artifact.add_file(str(file), name=file.name)
    run.log_artifact(artifact, aliases=[f"epoch-{checkpoint.epoch}", "latest"])


def requeued_checkpoint() -> Path | None:
    """Download the checkpoint of a run that ``wandb agent`` has rescheduled; None if there is none."""
    sweep, run = os.environ.get("WANDB_SWEEP_ID"), os.environ.get("WANDB_RUN_ID")
    project = os.environ.get("WANDB_PROJECT") or PROJECT
    if not (sweep and run):
        return None
    try:
        return fetched_checkpoint(f"{SCHEME}{project}/checkpoint-{run}:last")
    except InputError as error:
        rank_zero_info(f"no checkpoint at W&B to continue from: {error}")
        return None


def _described(checkpoint: Checkpoint) -> dict[str, Any]:
    data = class_name(checkpoint.config.get("data"))
    return {"epoch": checkpoint.epoch, "data": data, "images": checkpoint.images}


def fetched_checkpoint(address: str) -> Path:
    """Download the checkpoint at ``wandb://ENTITY/PROJECT/NAME:ALIAS`` into ``artifacts/``.

    Args:
        address: artifact with one ``.ckpt`` file; without an entity, the default one of the user.

    Returns:
        Path of the checkpoint.

    Raises:
        InputError: W&B cannot be reached or has no such artifact, or the artifact does not have exactly one
            checkpoint.
    """
    import wandb

    name = address.removeprefix(SCHEME)
    if name.count("/") not in (1, 2):
        raise InputError(f"{address}: expected {SCHEME}ENTITY/PROJECT/NAME:ALIAS")
    try:
        folder = Path(wandb.Api().artifact(name if ":" in name else f"{name}:latest").download())
    except (wandb.Error, ValueError, OSError) as error:
        raise InputError(f"{address}: {' '.join(str(error).split())}") from error
    files = sorted(folder.glob("*.ckpt"))
    if len(files) != 1:
        raise InputError(f"{address}: expected one checkpoint, got {len(files)}")
    return files[0]
