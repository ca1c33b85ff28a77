"""Weights & Biases: name, config and numbers of a run, online or offline."""

import json
import os
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pytorch_lightning.loggers import WandbLogger
from pytorch_lightning.utilities import rank_zero_only

from ssl_vision.errors import InputError
from ssl_vision.quiet import quiet
from ssl_vision.runs.atomic_files import atomic_write
from ssl_vision.runs.folder import RunFolder, class_name, derived_group
from ssl_vision.runs.reading import read_json

_PROJECT = "ssl_vision"


def mirror_mode(flag: bool | str) -> str | None:
    """None, ``"offline"``, ``"online"`` or ``"disabled"``; online needs a key, looked for before training.

    Raises:
        InputError: there is no key, or this process has another W&B run open.
    """
    if not flag:
        return None
    import wandb

    mode = "offline" if flag == "offline" else os.environ.get("WANDB_MODE", "online")
    if wandb.run is not None:  # whose config Lightning's logger would overwrite
        raise InputError(f"--wandb {_text(flag)}: the W&B run {wandb.run.id} is open: wandb.finish() ends it")
    if mode == "online" and not _has_key():
        raise InputError(
            "--wandb true: no W&B API key is configured; "
            "run 'wandb login', or log locally with --wandb offline"
        )
    return mode


def _has_key() -> bool:
    """Whether W&B knows who is there.

    Raises:
        InputError: it does not take the key that there is, or cannot be reached.
    """
    import wandb

    try:
        return wandb.login(prompt=False)
    except wandb.errors.AuthenticationError as error:
        reason = " ".join(str(error).split())
        raise InputError(f"--wandb true: {reason}; log locally with --wandb offline") from error


def mirror(folder: RunFolder, config: Mapping[str, Any], *, mode: str, fresh: bool) -> WandbLogger:
    """A logger whose W&B run has the folder's name, and is a continued run's own.

    Its group is ``WANDB_RUN_GROUP``, which a sweep sets; else the runs that differ in the seed alone are one.

    Args:
        folder: of the run; it is made.
        config: of the run.
        mode: ``"offline"``, ``"online"`` or ``"disabled"``.
        fresh: the run continues none.

    Raises:
        InputError: ``WANDB_RUN_ID`` names the W&B run of another folder beside it.
    """
    folder.check_links()
    if fresh or _remembered(folder.mirror_file) is None:
        _remember(folder, _new_identity(folder))
    return WandbLogger(save_dir=folder.path, **_identity(folder, config, mode))


def mirror_rows(
    folder: RunFolder, config: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], *, name: str
) -> None:
    """Adds rows as a table to the W&B run that mirrors the folder's run; nothing where none does.

    Offline that is one more folder of the same run, as W&B keeps each part. What W&B cannot take is said on
    stderr: the rows are in the run directory.

    Args:
        folder: of the run.
        config: of the run.
        rows: those of an evaluation.
        name: of the table.
    """
    if not config.get("wandb") or not folder.mirror_file.exists():
        return
    import wandb

    columns: list[str | int] = list(dict.fromkeys(key for row in rows for key in row))
    data = [[row.get(str(key)) for key in columns] for row in rows]
    try:
        mode = mirror_mode(config["wandb"])
        run = wandb.init(dir=folder.path, **_identity(folder, config, str(mode)))
        with run:
            run.log({name: wandb.Table(columns=columns, data=data, allow_mixed_types=True)})
    except (ValueError, wandb.Error, OSError) as error:
        print(f"ssl-vision evaluate: not mirrored to W&B: {error}", file=sys.stderr)


@contextmanager
def mirror_ends() -> Iterator[None]:
    """Ends a W&B run that began meanwhile; else the process's next one would be logged into it."""
    before = _open_run()
    try:
        yield
    finally:
        if _open_run() is not before:
            sys.modules["wandb"].finish()


def _open_run() -> Any:
    """The W&B run of this process, if there is one; W&B is not imported for the question."""
    return getattr(sys.modules.get("wandb"), "run", None)


def _new_identity(folder: RunFolder) -> dict[str, str]:
    """Of a run at W&B: ``WANDB_RUN_ID`` where that is set, as ``wandb agent`` does, else one of its own.

    Raises:
        InputError: the id is that of another folder's run, which both would be written into.
    """
    project = os.environ.get("WANDB_PROJECT") or _PROJECT
    chosen = os.environ.get("WANDB_RUN_ID")
    if not chosen:
        return {"id": secrets.token_hex(4), "project": project}
    identity = {"id": chosen, "project": project}
    for file in folder.path.parent.glob("*/wandb/mirror.json"):
        if file != folder.mirror_file and _remembered(file) == identity:
            raise InputError(
                f"WANDB_RUN_ID {chosen} is the W&B run of {file.parent.parent}: "
                "unset it, so that this run has an id of its own"
            )
    return identity


def _remembered(file: Path) -> dict[str, str] | None:
    """The identity that a mirror.json holds; None where it is absent, damaged or something else."""
    try:
        identity = read_json(file)
    except InputError:
        return None
    known = isinstance(identity, dict) and identity.keys() == {"id", "project"}
    return identity if known and all(isinstance(value, str) for value in identity.values()) else None


@rank_zero_only
def _remember(folder: RunFolder, identity: Mapping[str, str]) -> None:
    """Keeps the run's identity at W&B, which its continuations and evaluations share."""
    with atomic_write(folder.mirror_file) as partial:
        partial.write_text(json.dumps(identity), encoding="utf-8")


def _identity(folder: RunFolder, config: Mapping[str, Any], mode: str) -> dict[str, Any]:
    """What every part of the run tells W&B: not the machine's paths and programs."""
    import wandb

    remembered = _remembered(folder.mirror_file) or {}
    model = config.get("model") or {}
    return {
        **remembered,
        "name": folder.path.name,
        "group": os.environ.get("WANDB_RUN_GROUP") or derived_group(config),
        "tags": [class_name(config.get("data")), class_name(model.get("init_args", {}).get("objective"))],
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


def _text(flag: bool | str) -> str:
    return str(flag).lower()
