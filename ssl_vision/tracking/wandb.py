"""The Weights & Biases run of a run directory: its name, config and artifacts, online or offline."""

import json
import os
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytorch_lightning.loggers import WandbLogger

from ssl_vision.errors import InputError
from ssl_vision.lightning_private import remove_anonymous
from ssl_vision.progress import quiet
from ssl_vision.runs.checkpoint import Checkpoint
from ssl_vision.runs.config import class_name, derived_group
from ssl_vision.runs.files import read_json, write_text
from ssl_vision.runs.folder import RunFolder
from ssl_vision.runs.registry import Run

PROJECT = "ssl_vision"
SCHEME = "wandb://"

KNN = "val/knn_top1"
"""Metric whose best value is in the summary."""

_LONGEST_TAG = 64
"""Characters that W&B accepts in a tag."""


def wandb_mode(flag: bool | str) -> str | None:
    """Return ``"offline"``, ``"online"`` or ``"disabled"``, or None; online mode requires an API key.

    Raises:
        InputError: there is no API key, or this process has another W&B run open.
    """
    if not flag:
        return None
    import wandb

    mode = "offline" if flag == "offline" else os.environ.get("WANDB_MODE", "online")
    if wandb.run is not None:  # Lightning's logger would overwrite its config
        raise InputError(
            f"--wandb {str(flag).lower()}: the W&B run {wandb.run.id} is open: wandb.finish() ends it"
        )
    if mode == "online" and not wandb.login(prompt=False):
        raise InputError(
            "--wandb true: no W&B API key is configured: run 'wandb login', or use --wandb offline"
        )
    return mode


def remember(folder: RunFolder, run: Any) -> None:
    """Store the identity of a W&B run for continuations and evaluations."""
    identity = {"id": run.id, "project": run.project, "group": run.group}
    write_text(folder.mirror_file, json.dumps(identity))


def wandb_logger(folder: RunFolder, config: Mapping[str, Any], *, mode: str, fresh: bool) -> WandbLogger:
    """Return a logger whose W&B run has the name of the run directory; a continued run keeps its W&B run.

    The group is ``WANDB_RUN_GROUP``, which a sweep sets. Otherwise, runs that differ only in the seed share a
    group.

    Args:
        folder: run directory.
        config: config of the run.
        mode: ``"offline"``, ``"online"`` or ``"disabled"``.
        fresh: the run does not continue another one.

    Raises:
        InputError: ``WANDB_RUN_ID`` is the W&B run of another run directory in the same parent directory.
    """
    identity = (None if fresh else remembered(folder)) or _new_identity(folder)
    logger = WandbLogger(save_dir=folder.path, **_options(folder, config, mode, identity))
    remove_anonymous(logger)
    return logger


def log_later(
    folder: RunFolder, config: Mapping[str, Any], log: Callable[[Any], object], *, command: str
) -> None:
    """Add something to the W&B run of a run after training, if there is one.

    Offline, W&B makes a further directory of the same run. The config and the summary are written to it
    again, because ``wandb sync`` replaces both by those of the directory that it uploads last. If W&B does
    not accept the data, a message is printed to stderr; the data is in the run directory in any case.

    Args:
        folder: run directory.
        config: config of the run.
        log: function that adds data to the W&B run.
        command: name of the command, for the message.
    """
    if not config.get("wandb") or not folder.mirror_file.exists():
        return
    import wandb

    try:
        mode = wandb_mode(config["wandb"])
        with wandb.init(
            dir=folder.path, **_options(folder, config, str(mode), remembered(folder) or {})
        ) as run:
            if mode == "offline":
                run.config.update(dict(config), allow_val_change=True)  # type: ignore[no-untyped-call]
                run.summary.update(_summary(Run(folder.path)))
            log(run)
    except (ValueError, wandb.Error, OSError) as error:
        print(f"ssl-vision {command}: not logged to W&B: {error}", file=sys.stderr)


def _summary(run: Run) -> dict[str, float]:
    """Return the values in the summary of a trained run: last values, best kNN accuracy and test metrics."""
    values = {name: value for row in run.history for name, value in row.items() if name != "step"}
    return values | best_value(run) | run.test_metrics


def best_value(run: Run, *later: tuple[float, int]) -> dict[str, float]:
    """Return the best kNN accuracy of a run and its epoch, for the summary.

    Args:
        run: the run.
        later: further values with their epochs, counted from 1.
    """
    values = [*((value, epoch + 1) for _, epoch, value in run.curve(KNN)), *later]
    return dict(zip(("best/knn_top1", "best/epoch"), max(values), strict=True)) if values else {}


def log_rows(
    folder: RunFolder,
    config: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    *,
    name: str,
    summary: Mapping[str, float],
) -> None:
    """Add an evaluation to the W&B run of a run, if there is one, as `log_later` does.

    The rows are logged as a table. The values of the trained network are added to the summary of the W&B run,
    so that runs can be sorted, filtered and plotted by them.

    Args:
        folder: run directory.
        config: config of the run.
        rows: rows of the evaluation.
        name: name of the table.
        summary: values by names such as ``test/linear_top1``.
    """

    def log(run: Any) -> None:
        import wandb

        columns: list[str | int] = list(dict.fromkeys(key for row in rows for key in row))
        data = [[row.get(str(key)) for key in columns] for row in rows]
        run.log({name: wandb.Table(columns=columns, data=data, allow_mixed_types=True)})
        run.summary.update(dict(summary))

    log_later(folder, config, log, command="evaluate")


def log_files(
    run: Any, name: str, files: Sequence[Path], *, checkpoint: Checkpoint, aliases: Sequence[str] = ()
) -> None:
    """Log files as the artifact ``NAME-ID``, where ID is that of the W&B run.

    Args:
        run: W&B run.
        name: name of the artifact.
        files: the files.
        checkpoint: checkpoint that they contain or were made from.
        aliases: aliases besides those of the epoch and the latest version.
    """
    import wandb

    data = class_name(checkpoint.config.get("data"))
    metadata = {"epoch": checkpoint.epoch, "data": data, "images": checkpoint.images}
    artifact = wandb.Artifact(f"{name}-{run.id}", type="model", metadata=metadata)
    for file in files:
        artifact.add_file(str(file), name=file.name)
    run.log_artifact(artifact, aliases=[*aliases, f"epoch-{checkpoint.epoch}", "latest"])


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


def requeued_by_agent(folder: RunFolder) -> bool:
    """Return True if ``wandb agent`` has rescheduled the run in this directory after a preemption."""
    identity, chosen = remembered(folder) or {}, os.environ.get("WANDB_RUN_ID")
    saved = folder.last.exists() or folder.previous.exists()
    return bool(os.environ.get("WANDB_SWEEP_ID") and chosen and identity.get("id") == chosen and saved)


def _new_identity(folder: RunFolder) -> dict[str, str]:
    """Return the identity of a new W&B run: ``WANDB_RUN_ID`` if set, as by ``wandb agent``, or a new id.

    Raises:
        InputError: the id is that of a run in another directory.
    """
    chosen = os.environ.get("WANDB_RUN_ID")
    identity = {"id": chosen or secrets.token_hex(4), "project": os.environ.get("WANDB_PROJECT") or PROJECT}
    for other in folder.path.parent.iterdir() if chosen and folder.path.parent.exists() else ():
        if other != folder.path and identity.items() <= (remembered(RunFolder(other)) or {}).items():
            raise InputError(
                f"WANDB_RUN_ID {chosen} is the W&B run of {other}: "
                "unset it, so that this run has an id of its own"
            )
    return identity


def remembered(folder: RunFolder) -> dict[str, str] | None:
    """Return the identity in a mirror.json; None if the file is missing or invalid."""
    try:
        identity = read_json(folder.mirror_file)
        return {key: identity[key] for key in ("id", "project", "group")}
    except (InputError, LookupError, TypeError):
        return None


def _options(
    folder: RunFolder, config: Mapping[str, Any], mode: str, identity: Mapping[str, str]
) -> dict[str, Any]:
    """Return the arguments of every part of the W&B run, without paths and programs of the machine."""
    import wandb

    model = config.get("model") or {}
    seeds = derived_group(config)
    group = os.environ.get("WANDB_RUN_GROUP") or identity.get("group") or seeds
    tags = [class_name(config.get("data")), class_name(model.get("init_args", {}).get("objective"))]
    tags += [f"seed {config.get('seed_everything')}", *([seeds[:_LONGEST_TAG]] if group != seeds else [])]
    return {
        **identity,
        "name": folder.path.name,
        "group": group,
        "tags": tags,
        "mode": mode,
        "resume": "allow" if mode == "online" else None,
        "settings": wandb.Settings(
            x_disable_meta=True,
            x_disable_machine_info=True,
            disable_git=True,
            disable_code=True,
            console="off",
            silent=quiet(),
        ),
    }
