"""Weights & Biases: name, config and numbers of a run, online or offline."""

import json
import os
import secrets
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pytorch_lightning.loggers import WandbLogger
from pytorch_lightning.utilities import rank_zero_only

from ssl_vision.errors import InputError, Interrupted
from ssl_vision.quiet import quiet
from ssl_vision.runs.atomic_files import atomic_write
from ssl_vision.runs.folder import RunFolder, class_name, derived_group
from ssl_vision.runs.reading import read_json

PROJECT = "ssl_vision"
_IDENTITY = {"id", "project", "group"}
"""Keys of mirror.json; the group is that of a sweep."""

_LONGEST_TAG = 64
"""Characters that W&B accepts in a tag."""


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
    _wait_for_another_second(folder)
    if fresh or _remembered(folder.mirror_file) is None:
        sweep = os.environ.get("WANDB_RUN_GROUP")
        _remember(folder, _new_identity(folder) | ({"group": sweep} if sweep else {}))
    return WandbLogger(save_dir=folder.path, **_identity(folder, config, mode))


def mirror_rows(
    folder: RunFolder,
    config: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    *,
    name: str,
    summary: Mapping[str, float],
) -> None:
    """Add an evaluation to the W&B run that mirrors the folder's run, if there is one.

    The rows become a table, and the values of the trained network entries of the run's summary, by which runs
    are sorted, filtered and plotted.

    Offline that is one more folder of the same run, as W&B keeps each part. What W&B cannot take is said on
    stderr: the rows are in the run directory.

    Args:
        folder: of the run.
        config: of the run.
        rows: those of an evaluation.
        name: of the table.
        summary: values by names such as ``test/linear_top1``.
    """
    with opened_mirror(folder, config, command="evaluate") as run:
        if run is not None:
            import wandb

            columns: list[str | int] = list(dict.fromkeys(key for row in rows for key in row))
            data = [[row.get(str(key)) for key in columns] for row in rows]
            run.log({name: wandb.Table(columns=columns, data=data, allow_mixed_types=True)})
            run.summary.update(dict(summary))


@contextmanager
def opened_mirror(folder: RunFolder, config: Mapping[str, Any], *, command: str) -> Iterator[Any]:
    """The W&B run that mirrors the folder's run, for a command after training; None if there is none.

    Offline it is one more directory of the same run, as W&B keeps each part. If W&B does not accept what is
    logged, a line on stderr says so, as the run directory has it in any case.

    Args:
        folder: run directory.
        config: config of the run.
        command: name of the command, for the line.
    """
    if not config.get("wandb") or not folder.mirror_file.exists():
        yield None
        return
    import wandb

    refusals, run = (ValueError, wandb.Error, OSError), None
    try:
        mode = mirror_mode(config["wandb"])
        _wait_for_another_second(folder)
        run = wandb.init(dir=folder.path, **_identity(folder, config, str(mode)))
    except refusals as error:
        print(f"ssl-vision {command}: not mirrored to W&B: {error}", file=sys.stderr)
    if run is None:
        yield None
        return
    try:
        with run:
            yield run
    except refusals as error:
        print(f"ssl-vision {command}: not mirrored to W&B: {error}", file=sys.stderr)


@contextmanager
def mirror_ends() -> Iterator[None]:
    """End a W&B run that began meanwhile; else the process's next one would be logged into it.

    W&B learns the exit code, by which it tells runs that finished from those that failed or were preempted.
    """
    before, code = _open_run(), 0
    try:
        yield
    except Interrupted as error:
        code = 128 + error.signal
        raise
    except BaseException:
        code = 1
        raise
    finally:
        if _open_run() is not before:
            sys.modules["wandb"].finish(exit_code=code)


def _open_run() -> Any:
    """The W&B run of this process, if there is one; W&B is not imported for the question."""
    return getattr(sys.modules.get("wandb"), "run", None)


def _wait_for_another_second(folder: RunFolder) -> None:
    """Wait until no part of the run was begun in this second.

    W&B names offline parts after the second, and one of the same name would replace the first.
    """
    while any(folder.mirror_file.parent.glob(f"offline-run-{time.strftime('%Y%m%d_%H%M%S')}-*")):
        time.sleep(0.05)


def requeued_by_agent(folder: RunFolder) -> bool:
    """Whether ``wandb agent`` hands out the run of this run directory again, after a preemption."""
    remembered = _remembered(folder.mirror_file)
    chosen, saved = os.environ.get("WANDB_RUN_ID"), folder.last.exists() or folder.previous.exists()
    return bool(os.environ.get("WANDB_SWEEP_ID") and remembered and remembered["id"] == chosen and saved)


def _new_identity(folder: RunFolder) -> dict[str, str]:
    """Of a run at W&B: ``WANDB_RUN_ID`` where that is set, as ``wandb agent`` does, else one of its own.

    Raises:
        InputError: the id is that of another folder's run, which both would be written into.
    """
    project = os.environ.get("WANDB_PROJECT") or PROJECT
    chosen = os.environ.get("WANDB_RUN_ID")
    if not chosen:
        return {"id": secrets.token_hex(4), "project": project}
    identity = {"id": chosen, "project": project}
    for file in folder.path.parent.glob("*/wandb/mirror.json"):
        other = _remembered(file) or {}
        if file != folder.mirror_file and {**other, **identity} == other:
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
    known = isinstance(identity, dict) and {"id", "project"} <= identity.keys() <= _IDENTITY
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
    sweep = os.environ.get("WANDB_RUN_GROUP") or remembered.get("group")
    seeds = derived_group(config)
    tags = [class_name(config.get("data")), class_name(model.get("init_args", {}).get("objective"))]
    tags += [f"seed {config.get('seed_everything')}", *([seeds[:_LONGEST_TAG]] if sweep else [])]
    return {
        **remembered,
        "name": folder.path.name,
        "group": sweep or seeds,
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


def _text(flag: bool | str) -> str:
    return str(flag).lower()
