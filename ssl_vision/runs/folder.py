"""The run directory, which contains a run's config, metrics and checkpoints."""

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ssl_vision.errors import InputError
from ssl_vision.runs.config import differences, listed
from ssl_vision.runs.files import read_yaml
from ssl_vision.runs.lock import Lock

_EXPORT = re.compile(r"(backbone(-torchvision|-timm)?\.safetensors|backbone\.onnx)(\.md)?")
_FEATURES = re.compile(r"[a-z0-9_-]+-[0-9a-f]{24}\.pt")
"""File names of the feature cache."""

_LOGS = ("metrics.csv", "times.csv", "weights.csv", "skipped.txt", "images.csv")
_PARTIAL = re.compile(rf"\..+\.ckpt.*\.partial|\.[0-9a-f]{{8}}-(config\.yaml|{'|'.join(_LOGS)})")
"""Names of files that were still being written when a run was killed."""

_SECTIONS = {"model", "data", "trainer", "runs_dir"}
"""Keys of the config of every run."""

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
        logs = (self.path / name for name in _LOGS)
        self.metrics_file, self.times_file, self.weights_file, self.skipped_file, self.images_file = logs
        self.report_file = self.path / "report.html"
        self.evaluation_file = self.path / "evaluation.json"
        self.mirror_file = self.path / "wandb" / "mirror.json"
        self.lock = Lock(self.path / ".lock")
        self.checkpoints = self.path / "checkpoints"
        self.features = self.path / "features"
        self.last = self.checkpoints / "last.ckpt"
        self.previous = self.checkpoints / "previous-last.ckpt"
        self.start = self.path / "start.ckpt"
        self._free = False

    def check(self, config: Mapping[str, Any], *, resume: bool, overwrite: bool, moved: bool = False) -> None:
        """Check that a run can use the directory, without changing anything.

        Files that a logger adds to a free directory after the first call are accepted.

        Args:
            config: config of the run about to start.
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
        other = read_yaml(self.config_file)
        if not isinstance(other, dict) or not _SECTIONS.issubset(other):
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
            file.name in leftovers or _PARTIAL.fullmatch(file.name) for file in self.path.iterdir()
        )

    def results(self) -> list[Path]:
        """Return the evaluation and the exports, which only a run with a checkpoint has."""
        exports = [file for file in self.path.glob("backbone*") if _EXPORT.fullmatch(file.name)]
        return [self.evaluation_file, *exports] if self.evaluation_file.is_file() else exports

    @property
    def owned(self) -> bool:
        """True if the run directory, its config and its last checkpoint belong to the current user."""
        return owned(self.path, *filter(Path.exists, (self.config_file, self.last)))

    def clear(self) -> None:
        """Delete the files that a run, its evaluation and its exports wrote, except ``config.yaml``."""
        files = [*(self.path / name for name in _LOGS), self.report_file, *self.results()]
        files += [self.last, self.previous, self.start]
        files += [file for file in self.features.glob("*.pt") if _FEATURES.fullmatch(file.name)]
        for file in files:
            with suppress(FileNotFoundError, IsADirectoryError):
                file.unlink()
        for folder in (self.checkpoints, self.features):
            with suppress(OSError):  # does not exist, or contains other files
                folder.rmdir()

    def remove_partial(self) -> None:
        """Delete the files that were still being written when a run was killed."""
        for file in self.path.rglob(".*"):
            if _PARTIAL.fullmatch(file.name) and not file.is_dir():
                file.unlink(missing_ok=True)


def owned(*paths: Path) -> bool:
    """Return True if all files and directories belong to the current user."""
    return all(path.stat().st_uid == os.getuid() for path in paths)


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
