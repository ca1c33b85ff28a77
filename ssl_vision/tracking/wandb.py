"""Name, config and metrics of a run at Weights & Biases, online or offline."""

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

from ssl_vision.errors import InputError, Interrupted
from ssl_vision.lightning_private import remove_anonymous
from ssl_vision.progress import quiet
from ssl_vision.runs.config import class_name, derived_group
from ssl_vision.runs.files import read_json, write_text
from ssl_vision.runs.folder import RunFolder
from ssl_vision.runs.registry import Run

PROJECT = "ssl_vision"
_IDENTITY = {"id", "project", "group"}
"""Keys of mirror.json; the group is that of a sweep."""

_LONGEST_TAG = 64
"""Characters that W&B accepts in a tag."""


def mirror_mode(flag: bool | str) -> str | None:
    """Return ``"offline"``, ``"online"`` or ``"disabled"``, or None; online mode requires an API key.

    Raises:
        InputError: there is no API key, W&B rejects it or cannot be reached, or this process has another W&B
            run open.
    """
    if not flag:
        return None
    import wandb

    mode = "offline" if flag == "offline" else os.environ.get("WANDB_MODE", "online")
    if wandb.run is not None:  # Lightning's logger would overwrite its config
        raise InputError(
            f"--wandb {str(flag).lower()}: the W&B run {wandb.run.id} is open: wandb.finish() ends it"
        )
    if mode == "online":
        try:
            has_key = wandb.login(prompt=False)
        except wandb.errors.AuthenticationError as error:
            reason = " ".join(str(error).split())
            raise InputError(f"--wandb true: {reason}; log locally with --wandb offline") from error
        if not has_key:
            raise InputError(
                "--wandb true: no W&B API key is configured; "
                "run 'wandb login', or log locally with --wandb offline"
            )
    return mode


class MirrorLogger(WandbLogger):
    """Logger of the W&B run of a run directory; see `mirror`.

    Args:
        folder: run directory.
        identity: content of mirror.json.
        options: arguments of the W&B run.
    """

    def __init__(self, folder: RunFolder, identity: Mapping[str, str], options: Mapping[str, Any]) -> None:
        super().__init__(save_dir=folder.path, **options)
        remove_anonymous(self)
        self._file, self._identity = folder.mirror_file, identity

    @rank_zero_only
    def remember(self) -> None:
        """Store the identity of the W&B run for continuations and evaluations."""
        write_text(self._file, json.dumps(self._identity))


def mirror(folder: RunFolder, config: Mapping[str, Any], *, mode: str, fresh: bool) -> MirrorLogger:
    """Return a logger whose W&B run has the name of the run directory; a continued run keeps its W&B run.

    Call `MirrorLogger.remember` when training starts, so that a run that cannot start leaves the identity of
    an earlier one.

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
    identity = None if fresh else _remembered(folder.mirror_file)
    if identity is None:
        sweep = os.environ.get("WANDB_RUN_GROUP")
        identity = _new_identity(folder) | ({"group": sweep} if sweep else {})
    return MirrorLogger(folder, identity, _options(folder, config, mode, identity))


def mirror_rows(
    folder: RunFolder,
    config: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    *,
    name: str,
    summary: Mapping[str, float],
) -> None:
    """Add an evaluation to the W&B run of a run, if there is one, as `opened_mirror` does.

    The rows are logged as a table. The values of the trained network are added to the summary of the W&B run,
    so that runs can be sorted, filtered and plotted by them.

    Args:
        folder: run directory.
        config: config of the run.
        rows: rows of the evaluation.
        name: name of the table.
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
    """Open the W&B run of a run for a command after training; None if there is none.

    Offline, W&B makes a further directory of the same run. The config and the summary are written to it
    again, because ``wandb sync`` replaces both by those of the directory that it uploads last. If W&B does
    not accept the data, a message is printed to stderr; the data is in the run directory in any case.

    Args:
        folder: run directory.
        config: config of the run.
        command: name of the command, for the message.
    """
    if not config.get("wandb") or not folder.mirror_file.exists():
        yield None
        return
    import wandb

    refusals, run = (ValueError, wandb.Error, OSError), None
    try:
        mode = mirror_mode(config["wandb"])
        identity = _remembered(folder.mirror_file) or {}
        run = wandb.init(dir=folder.path, **_options(folder, config, str(mode), identity))
        if mode == "offline":
            run.config.update(dict(config), allow_val_change=True)  # type: ignore[no-untyped-call]
            run.summary.update(_summary(Run(folder.path)))
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


def _summary(run: Run) -> dict[str, float]:
    """Return the values in the summary of a trained run: last values, best kNN accuracy and test metrics."""
    values = {name: value for row in run.history for name, value in row.items() if name != "step"}
    if curve := run.curve("val/knn_top1"):
        best, epoch = max((value, epoch + 1) for _, epoch, value in curve)
        values |= {"best/knn_top1": best, "best/epoch": epoch}
    return values | run.test_metrics


@contextmanager
def mirror_ends() -> Iterator[None]:
    """End a W&B run that was started in this context, so that the next run is not logged into it.

    The exit code tells W&B whether the run finished, failed or was preempted.
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
    """Return the W&B run of this process, if there is one, without importing W&B."""
    return getattr(sys.modules.get("wandb"), "run", None)


def requeued_by_agent(folder: RunFolder) -> bool:
    """Return True if ``wandb agent`` has rescheduled the run in this directory after a preemption."""
    remembered = _remembered(folder.mirror_file)
    chosen, saved = os.environ.get("WANDB_RUN_ID"), folder.last.exists() or folder.previous.exists()
    return bool(os.environ.get("WANDB_SWEEP_ID") and remembered and remembered["id"] == chosen and saved)


def _new_identity(folder: RunFolder) -> dict[str, str]:
    """Return the identity of a new W&B run: ``WANDB_RUN_ID`` if set, as by ``wandb agent``, or a new id.

    Raises:
        InputError: the id is that of a run in another directory.
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
    """Return the identity in a mirror.json; None if the file is missing or invalid."""
    try:
        identity = read_json(file)
    except InputError:
        return None
    complete = isinstance(identity, dict) and {"id", "project"} <= identity.keys() <= _IDENTITY
    return identity if complete and all(isinstance(value, str) for value in identity.values()) else None


def _options(
    folder: RunFolder, config: Mapping[str, Any], mode: str, identity: Mapping[str, str]
) -> dict[str, Any]:
    """Return the arguments of every part of the W&B run, without paths and programs of the machine."""
    import wandb

    model = config.get("model") or {}
    sweep = os.environ.get("WANDB_RUN_GROUP") or identity.get("group")
    seeds = derived_group(config)
    tags = [class_name(config.get("data")), class_name(model.get("init_args", {}).get("objective"))]
    tags += [f"seed {config.get('seed_everything')}", *([seeds[:_LONGEST_TAG]] if sweep else [])]
    return {
        **identity,
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
