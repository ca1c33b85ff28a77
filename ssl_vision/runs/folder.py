"""The run directory: where a run keeps its config, its metrics and its checkpoints."""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from ssl_vision.errors import InputError
from ssl_vision.runs.atomic_files import atomic_write, check_inside
from ssl_vision.runs.lock import Lock
from ssl_vision.runs.migration import original_settings

_ROOT = "data.init_args.root"

# Keys that say where to run and for how long, not what is computed: a continuation may change them. A folder
# of one's own images is what is computed, and so is the length of a run whose schedule ends with it.
_FREE = (
    "name",
    "runs_dir",
    "save_every_n_steps",
    "wandb",
    "data.init_args.cache",
    "data.init_args.cache_dir",
    "data.init_args.changed",
    "data.init_args.download",
    "data.init_args.resident",
    _ROOT,
    "trainer.default_root_dir",
    "trainer.enable_model_summary",
    "trainer.enable_progress_bar",
    "trainer.logger",
    "trainer.max_epochs",
    "trainer.max_steps",
    "trainer.max_time",
)

# Defaults, and the settings that they were before: a run with the one is still a run with the other.
_DEFAULTS_SINCE = {"data.init_args.val": ("auto", "train"), "data.init_args.val_folder": ("val", None)}
_EXPORT = re.compile(r"(backbone(-torchvision|-timm)?\.safetensors|backbone\.onnx)(\.md)?")
_FEATURES = re.compile(r"[a-z0-9_-]+-[0-9a-f]{24}\.pt")
"""Names of the files that exports and the feature cache write."""
_ROW = {"protocol", "metric", "value"}
"""Keys of every row of an evaluation."""


_LONGEST_NAME = 200
"""Bytes of a run's name: file systems take 255, and some files are named after it."""


class RunFolder:
    """``runs/<name>/``: config.yaml, metrics.csv, times.csv, weights.csv, checkpoints/; evaluations, exports.

    Args:
        path: the folder; it need not exist.
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

    def check(
        self,
        config: Mapping[str, Any],
        *,
        recorded: Callable[[], Mapping[str, Any]],
        resume: bool,
        overwrite: bool,
        moved: bool = False,
    ) -> None:
        """Says why a run with this config cannot have the folder, if it cannot. Changes nothing.

        Args:
            config: configuration of the run about to start.
            recorded: reads the configuration of the run that the directory holds.
            resume: the run continues one that the folder holds.
            overwrite: a run that the folder holds may be replaced.
            moved: as for `differences`.

        Raises:
            InputError: the folder holds another run, or this one already, or something else, or is in use, or
                one of its subfolders is a symbolic link out of it.
        """
        self.check_links()
        self.lock.check()
        if not self.config_file.exists():
            started = {self.lock.path, self.path / "wandb"}  # what a run that could not start may leave
            if self.path.exists() and (not self.path.is_dir() or set(self.path.iterdir()) - started):
                raise InputError(
                    f"{self.path} exists and is not a run directory: give the run another --name"
                )
            return
        if overwrite:
            return
        other = differences(recorded(), config, moved=moved)
        if other:
            raise InputError(
                f"{self.path} holds a run with another config ({'; '.join(other)}): "
                "give this one another --name, or replace that one with --overwrite true"
            )
        if not resume:
            raise InputError(
                f"{self.path} already holds this run: continue it with --ckpt_path last, "
                "replace it with --overwrite true, or give this one another --name"
            )

    def check_links(self) -> None:
        """Checks that what is written into subfolders stays in the run directory.

        Raises:
            InputError: a subfolder is a symbolic link out of it.
        """
        check_inside(self.path, "checkpoints", "features", "wandb")

    @property
    def owned(self) -> bool:
        """True if the run directory, its config and its last checkpoint belong to the current user."""
        return owned(self.path, *filter(Path.exists, (self.config_file, self.last)))

    def clear(self) -> None:
        """Deletes the files that a run, its evaluations and its exports wrote, by their exact names."""
        logs = (self.metrics_file, self.times_file, self.weights_file, self.skipped_file, self.images_file)
        own = [self.config_file, *logs, self.evaluation_file, self.report_file]
        own += [file for file in self.path.glob("*") if _EXPORT.fullmatch(file.name)]
        own += filter(_is_evaluation, self.path.glob("evaluation_*.json"))
        own += self.checkpoints.glob("*.ckpt")
        own += [file for file in self.features.glob("*.pt") if _FEATURES.fullmatch(file.name)]
        for file in own:
            with suppress(FileNotFoundError, IsADirectoryError):
                file.unlink()
        for folder in (self.checkpoints, self.features):
            with suppress(OSError):  # absent, or other files are left in it
                folder.rmdir()

    def remove_requeued(self) -> None:
        """Deletes the checkpoints of SLURM requeues, which Lightning would take before any other."""
        for file in self.path.glob("hpc_ckpt_*.ckpt"):
            file.unlink()

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Writes config.yaml."""
        with atomic_write(self.config_file) as partial:
            partial.write_text(as_yaml(config), encoding="utf-8")


def owned(*paths: Path) -> bool:
    """True if all files and folders belong to the current user."""
    return all(path.stat().st_uid == os.getuid() for path in paths)


def _is_evaluation(file: Path) -> bool:
    """True if the file holds rows of ``ssl-vision evaluate``."""
    try:
        rows = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    if not isinstance(rows, list) or not rows:
        return False
    return all(isinstance(row, dict) and _ROW.issubset(row) for row in rows)


def run_path(runs_dir: str, name: str) -> Path:
    """The path of a run directory, or of the directory of a sweep.

    Raises:
        InputError: the name is a path or too long, or nothing can be a directory there.
    """
    if Path(name).name != name or name == ".." or name.startswith("~"):
        raise InputError(f"--name {name}: a name, not a path; the folder is --runs_dir")
    if len(os.fsencode(name)) > _LONGEST_NAME:
        raise InputError(f"--name {name[:20]}…: longer than {_LONGEST_NAME} bytes")
    try:
        path = Path(runs_dir).expanduser() / name
        for option, place in (("--runs_dir", path.parent), ("--name", path)):
            if os.path.lexists(place) and not place.is_dir():
                raise InputError(f"{option}: {place} is not a directory")
            place.exists()
    except (OSError, RuntimeError) as error:  # RuntimeError: ~ without a home directory
        raise InputError(f"--runs_dir {runs_dir[:200]}: {getattr(error, 'strerror', error)}") from error
    return path


def below_home(value: Any) -> Any:
    """The same with ``~`` for the home directory, which is nobody else's business and differs elsewhere."""
    if isinstance(value, dict):
        return {key: below_home(item) for key, item in value.items()}
    if isinstance(value, list):
        return [below_home(item) for item in value]
    home = str(Path.home()) + os.sep
    return f"~{os.sep}{value[len(home) :]}" if isinstance(value, str) and value.startswith(home) else value


def as_yaml(config: Mapping[str, Any]) -> str:
    """The text of a config file."""
    return yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)


def differences(before: Mapping[str, Any], now: Mapping[str, Any], *, moved: bool = False) -> list[str]:
    """The keys that change what is computed and differ, each as ``key: before there, now here``.

    Args:
        before: a run's config.
        now: another one.
        moved: the root of an own folder of images may differ, as its images are compared by themselves.
    """
    left, right = significant(before), significant(now)
    for settings in (left, right) if moved else ():
        settings.pop(_ROOT, None)
    absent = object()
    return [
        f"{key}: {left.get(key, 'nothing')} there, {right.get(key, 'nothing')} here"
        for key in sorted(left | right)
        if left.get(key, absent) != right.get(key, absent)
    ]


def derived_name(config: Mapping[str, Any]) -> str:
    """A name for a run that was given none: data, objective, seed, and a hash of all that matters."""
    return _named(config, f"s{config.get('seed_everything', 0)}", significant(config))


def derived_group(config: Mapping[str, Any]) -> str:
    """The same without the seed: one name for the runs that differ in it alone."""
    settings = significant(config)
    settings.pop("seed_everything", None)
    return _named(config, "seeds", settings)


def _named(config: Mapping[str, Any], middle: str, settings: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(
        json.dumps(original_settings(settings), sort_keys=True, default=str).encode()
    ).hexdigest()[:6]
    data = class_name(config.get("data"))
    objective = class_name((config.get("model") or {}).get("init_args", {}).get("objective"))
    return f"{data}-{objective}-{middle}-{digest}".lower()


def class_name(spec: Any) -> str:
    """The name of the class that a config's section is of."""
    return str(spec["class_path"]).rsplit(".", 1)[-1] if isinstance(spec, Mapping) else "default"


def significant(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that change what is computed, by their dotted keys, without those that are null."""
    flat = dict(_flat(config))
    for key, (value, former) in _DEFAULTS_SINCE.items():
        if flat.get(key) == value:
            flat[key] = former
    free = set(_FREE)
    if str(flat.get("data.class_path", "")).endswith("ImageFolder"):
        free.discard(_ROOT)
    if flat.get("model.init_args.optimizer.schedule", "constant") != "constant":
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
            yield prefix + key, list(item) if isinstance(item, tuple) else item
