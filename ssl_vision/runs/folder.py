"""The run directory, which contains a run's config, metrics and checkpoints."""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from ssl_vision.errors import InputError
from ssl_vision.runs.lock import Lock
from ssl_vision.runs.settings import class_name, last_part

_ROOT = "data.init_args.root"

DATA_OF_ROOT = ("ImageFolder", "Shards")
"""Data sets that are whatever their root contains. The root of others is only the place where they are."""

_LISTED = 6
"""Number of differences that a message names."""

# Settings that do not change the result, so that a continued run may change them. See `significant` for two
# exceptions: the root of `DATA_OF_ROOT`, and the length of a run with one of the `_SCHEDULES`.
_FREE = (
    "gradients",
    "metrics.extended",
    "name",
    "runs_dir",
    "save_every_n_epochs",
    "save_every_n_steps",
    "wandb",
    "wandb_artifacts",
    "wandb_media",
    "data.init_args.cache",
    "data.init_args.cache_dir",
    "data.init_args.changed",
    "data.init_args.download",
    "data.init_args.resident",
    "data.init_args.workers",
    _ROOT,
    "trainer.default_root_dir",
    "trainer.enable_model_summary",
    "trainer.enable_progress_bar",
    "trainer.logger",
    "trainer.max_epochs",
    "trainer.max_steps",
    "trainer.max_time",
)

_SCHEDULES = ("model.init_args.optimizer.schedule", "model.init_args.momentum_schedule")
"""Settings of schedules that depend on the length of the run, unless they are constant."""

_EXPORT = re.compile(r"(backbone(-torchvision|-timm)?\.safetensors|backbone\.onnx)(\.md)?")
_FEATURES = re.compile(r"[a-z0-9_-]+-[0-9a-f]{24}\.pt")
"""File names of the feature cache."""
PARTIAL = re.compile(
    r"\..+\.ckpt\.[0-9a-f]+\.partial|\.[0-9a-f]{8}-(config\.yaml|skipped\.txt|(metrics|times|weights)\.csv)"
)
"""Names of files that were still being written when a run was killed."""

_SECTIONS = {"model", "data", "trainer", "runs_dir"}
"""Keys of the config of every run."""

_ROW = {"protocol", "metric", "value"}
"""Keys of every row of an evaluation."""

_LONGEST_NAME = 200
"""Maximum length of a run's name in bytes; file systems allow 255, and some file names are longer."""


class RunFolder:
    """``runs/<name>/``: config.yaml, metrics.csv, times.csv, weights.csv, checkpoints/; evaluations, exports.

    Args:
        path: the directory; it need not exist.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config_file = self.path / "config.yaml"
        self.metrics_file = self.path / "metrics.csv"
        self.times_file = self.path / "times.csv"
        self.weights_file = self.path / "weights.csv"
        self.report_file = self.path / "report.html"
        self.skipped_file = self.path / "skipped.txt"
        self.images_file = self.path / "images.csv"
        self.evaluation_file = self.path / "evaluation.json"
        self.mirror_file = self.path / "wandb" / "mirror.json"
        self.lock = Lock(self.path / ".lock")
        self.checkpoints = self.path / "checkpoints"
        self.features = self.path / "features"
        self.last = self.checkpoints / "last.ckpt"
        self.previous = self.checkpoints / "previous-last.ckpt"
        self._free = False

    def check(
        self,
        config: Mapping[str, Any],
        *,
        recorded: Callable[[], Mapping[str, Any]],
        resume: bool,
        overwrite: bool,
        moved: bool = False,
    ) -> None:
        """Check that a run can use the directory, without changing anything.

        Files that a logger adds to a free directory after the first call are accepted.

        Args:
            config: config of the run about to start.
            recorded: function that reads the config of the run in the directory.
            resume: continue the run in the directory.
            overwrite: replace the run in the directory.
            moved: see `differences`.

        Raises:
            InputError: the directory contains another run, this run already, or other files, including a
                config.yaml of another program; or it is in use.
        """
        self.lock.check()
        if not self.config_file.exists():
            if not self._free and self.path.exists() and not self._is_unused():
                raise InputError(f"{self.path} exists and is not a run directory; choose another --name")
            self._free = True
            return
        other = recorded()
        if not _SECTIONS.issubset(other):
            raise InputError(f"{self.path}: its config.yaml is not that of a run; choose another --name")
        if overwrite:
            return
        changed = differences(other, config, moved=moved)
        if changed:
            raise InputError(
                f"{self.path} contains a run with a different config ({listed(changed)}): "
                "choose another --name, or replace the run with --overwrite true"
            )
        trained = self.metrics_file.exists() or any(self.checkpoints.glob("*.ckpt")) or self.results()
        if not resume and trained:
            raise InputError(
                f"{self.path} already contains this run: continue it with --ckpt_path last, "
                "replace it with --overwrite true, or choose another --name"
            )

    def _is_unused(self) -> bool:
        """Return True if the directory only contains what a run leaves that failed to start."""
        leftovers = (self.lock.path.name, "wandb")
        return self.path.is_dir() and all(
            file.name in leftovers or PARTIAL.fullmatch(file.name) for file in self.path.iterdir()
        )

    def results(self) -> list[Path]:
        """Return the evaluations and exports, which only a run with a checkpoint has."""
        found = [file for file in self.path.glob("*") if _EXPORT.fullmatch(file.name)]
        found += filter(_is_evaluation, self.path.glob("evaluation*.json"))
        return found

    @property
    def owned(self) -> bool:
        """True if the run directory, its config and its last checkpoint belong to the current user."""
        return owned(self.path, *filter(Path.exists, (self.config_file, self.last)))

    def clear(self) -> None:
        """Delete the files that a run, its evaluations and its exports wrote, except ``config.yaml``."""
        logs = (self.metrics_file, self.times_file, self.weights_file, self.skipped_file, self.images_file)
        files = [*logs, self.evaluation_file, self.report_file, *self.results()]
        files += [self.last, self.previous]
        files += [file for file in self.features.glob("*.pt") if _FEATURES.fullmatch(file.name)]
        for file in files:
            with suppress(FileNotFoundError, IsADirectoryError):
                file.unlink()
        for folder in (self.checkpoints, self.features):
            with suppress(OSError):  # does not exist, or contains other files
                folder.rmdir()


def owned(*paths: Path) -> bool:
    """Return True if all files and directories belong to the current user."""
    return all(path.stat().st_uid == os.getuid() for path in paths)


def _is_evaluation(file: Path) -> bool:
    """Return True if a file contains rows of ``ssl-vision evaluate``."""
    try:
        rows = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    if not isinstance(rows, list) or not rows:
        return False
    return all(isinstance(row, dict) and _ROW.issubset(row) for row in rows)


def run_path(runs_dir: str, name: str) -> Path:
    """Return the path of a run directory, or of the directory of a sweep.

    Raises:
        InputError: the name is a path or too long, or the path cannot be a directory.
    """
    if Path(name).name != name or name == ".." or name.startswith("~"):
        raise InputError(f"--name {name}: must be a name, not a path; set the directory with --runs_dir")
    if len(os.fsencode(name)) > _LONGEST_NAME:
        raise InputError(f"--name {name[:20]}…: longer than {_LONGEST_NAME} bytes")
    try:
        path = Path(runs_dir).expanduser() / name
        for option, folder in (("--runs_dir", path.parent), ("--name", path)):
            if os.path.lexists(folder) and not folder.is_dir():
                raise InputError(f"{option}: {folder} is not a directory")
            folder.exists()
    except (OSError, RuntimeError) as error:  # RuntimeError: ~ without a home directory
        raise InputError(f"--runs_dir {runs_dir[:200]}: {getattr(error, 'strerror', error)}") from error
    return path


def below_home(value: Any) -> Any:
    """Replace the home directory in all strings by ``~``, for privacy and because it differs elsewhere."""
    if isinstance(value, dict):
        return {key: below_home(item) for key, item in value.items()}
    if isinstance(value, list):
        return [below_home(item) for item in value]
    home = str(Path.home())
    inside = isinstance(value, str) and f"{value}{os.sep}".startswith(f"{home}{os.sep}")
    return f"~{value[len(home) :]}" if inside else value


def above_home(value: Any) -> Any:
    """Replace ``~`` at the beginning of all strings by the home directory; the inverse of `below_home`."""
    if isinstance(value, dict):
        return {key: above_home(item) for key, item in value.items()}
    if isinstance(value, list):
        return [above_home(item) for item in value]
    begins = isinstance(value, str) and (value == "~" or value.startswith(f"~{os.sep}"))
    return os.path.expanduser(value) if begins else value


def as_yaml(config: Mapping[str, Any]) -> str:
    """Return the text of a config file."""
    return yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)


def differences(before: Mapping[str, Any], now: Mapping[str, Any], *, moved: bool = False) -> list[str]:
    """List the settings that differ and change the result, each as ``key: before there, now here``.

    Args:
        before: config of a run.
        now: another config.
        moved: ignore the root of data, because the images are compared separately.
    """
    old, new = significant(before), significant(now)
    for settings in (old, new) if moved else ():
        settings.pop(_ROOT, None)
    missing = object()
    return [
        f"{key}: {old.get(key, 'nothing')} there, {new.get(key, 'nothing')} here"
        for key in sorted(old | new)
        if old.get(key, missing) != new.get(key, missing)
    ]


def listed(changed: Sequence[str]) -> str:
    """Join the first `differences`, and count the others."""
    more = len(changed) - _LISTED
    return "; ".join(changed[:_LISTED]) + (f"; and {more} more" if more > 0 else "")


def derived_name(config: Mapping[str, Any]) -> str:
    """Return the default name of a run: data, objective, seed, and a hash of its `significant` settings."""
    return _named(config, f"s{config.get('seed_everything', 0)}", significant(config))


def derived_group(config: Mapping[str, Any]) -> str:
    """Return a name shared by all runs that differ only in their seed."""
    settings = significant(config)
    settings.pop("seed_everything", None)
    return _named(config, "seeds", settings)


def _named(config: Mapping[str, Any], middle: str, settings: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()[:6]
    data = class_name(config.get("data"))
    objective = class_name((config.get("model") or {}).get("init_args", {}).get("objective"))
    return f"{data}-{objective}-{middle}-{digest}".lower()


def significant(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that change the result, by their dotted keys, without those that are null."""
    flat = dict(_flat(config))
    free = set(_FREE)
    if last_part(flat.get("data.class_path")) in DATA_OF_ROOT:
        free.discard(_ROOT)
    if any(flat.get(schedule, "constant") != "constant" for schedule in _SCHEDULES):
        free -= {"trainer.max_epochs", "trainer.max_steps"}
    return {
        key: value
        for key, value in flat.items()
        if value is not None and not any(key == name or key.startswith(name + ".") for name in free)
    }


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, item in value.items():
        if isinstance(item, Mapping):
            yield from _flat(item, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", list(item) if isinstance(item, tuple) else item
