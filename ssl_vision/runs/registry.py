"""What run directories say of their runs, read from text files without torch."""

import math
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from ssl_vision.errors import InputError
from ssl_vision.runs.csv_files import column, last_value, rows
from ssl_vision.runs.evaluation_file import preferred, read_rows
from ssl_vision.runs.folder import RunFolder
from ssl_vision.runs.migration import migrated_config, migrated_key
from ssl_vision.runs.reading import read_yaml

SHORT = {
    "objective": "model.init_args.objective",
    "data": "data",
    "seed": "seed_everything",
    "epochs": "trainer.max_epochs",
    "batch_size": "data.init_args.batch_size",
}
"""Names of settings that are asked for often, and their keys in config.yaml."""

_SECONDS = ("time/train_seconds", "time/val_seconds")

_LAST_KEY = "wandb"
"""The key that every config.yaml ends with: without it, the file was cut short."""

_NO_RUNS = {"wandb", "checkpoints", "features"}
"""Folders that hold no runs, whatever lies in them."""


class Run:
    """What a run directory says of its run; each file is read when it is asked for.

    Args:
        path: the run directory.
    """

    def __init__(self, path: str | Path) -> None:
        self.folder = RunFolder(path)
        self.name = self.folder.path.name or self.folder.path.resolve().name

    @cached_property
    def config(self) -> dict[str, Any]:
        """The configuration that the run was started with, read once.

        It is read from config.yaml. Where that is damaged or cut short, as a power cut may leave it, the
        copy in the last checkpoint is taken instead, which imports torch.

        Raises:
            InputError: config.yaml is absent or damaged, and no checkpoint has a copy.
        """
        file, config = self.folder.config_file, None
        try:
            config = migrated_config(read_yaml(file))
            if isinstance(config, dict) and _LAST_KEY in config:
                return config
            damage = InputError(f"{file} is not a table of keys and values")
        except InputError as error:
            damage = error
        copy = self._config_of_checkpoint()
        if copy is not None:
            return copy
        if isinstance(config, dict):
            return config
        raise damage

    def _config_of_checkpoint(self) -> dict[str, Any] | None:
        """The copy of config.yaml in a checkpoint; None where no checkpoint can be read."""
        for file in (self.folder.last, self.folder.previous):
            if file.is_file():
                from ssl_vision.runs.checkpoint import read_checkpoint

                with suppress(InputError):
                    return read_checkpoint(file).config
        return None

    def setting(self, key: str) -> Any:
        """The value of a key; None where there is none.

        Args:
            key: ``name``, one of ``SHORT``, or a dotted key of config.yaml, with or without its
                ``init_args``: ``model.objective.temperature``. A class with its arguments is given as the
                name of the class.
        """
        if key == "name":
            return self.name
        value = _found(self.config, migrated_key(SHORT.get(key, key)))[1]
        if value is None and key == "objective":  # a method that has one objective only
            value = self.config.get("model")
        if isinstance(value, dict) and "class_path" in value:
            return str(value["class_path"]).rpartition(".")[2]
        return value

    def described(self, key: str) -> str | None:
        """Return a class with its options in words, such as ``ResNet (depth 18, width 64)``; None without it.

        Args:
            key: dotted key of config.yaml, as for `setting`.
        """
        value = _found(self.config, key)[1]
        if not isinstance(value, dict) or "class_path" not in value:
            return str(value) if value else None
        options = {**(value.get("init_args") or {}), **(value.get("dict_kwargs") or {})}
        words = [f"{name} {option}" for name, option in options.items() if option not in (None, False)]
        name = str(value["class_path"]).rpartition(".")[2]
        return f"{name} ({', '.join(words)})" if words else name

    def whole_key(self, key: str) -> str | None:
        """The dotted key of config.yaml that a key stands for; None where there is none."""
        parts = _found(self.config, migrated_key(SHORT.get(key, key)))[0]
        return ".".join(parts) if parts else None

    @property
    def status(self) -> str:
        """``running``, ``finished`` (as many epochs, or steps, as the config says) or ``stopped``.

        A run is running while a process has its lock.
        """
        if self.folder.lock.held:
            return "running"
        epochs, steps = self.setting("trainer.max_epochs"), self.setting("trainer.max_steps")
        if isinstance(epochs, int) and 0 <= epochs <= self.epoch:
            return "finished"
        if isinstance(steps, int) and 0 < steps <= self.steps:
            return "finished"
        return "stopped"

    @cached_property
    def epoch(self) -> int:
        """Number of completed epochs."""
        if self.epochs is not None:
            return int(self.epochs)
        logged = last_value(self.folder.metrics_file, "epoch")
        ended = last_value(self.folder.times_file, "epoch")
        if ended is None:
            measured = (
                row.get("epoch", -1) for row in self.history if any(name.startswith("val/") for name in row)
            )
            ended = max(measured, default=-1)
        epoch = max(logged or 0, ended + 1)
        return int(epoch) if math.isfinite(epoch) else 0

    @property
    def epochs(self) -> float | None:
        """Epochs trained, with a fraction where the last one was cut; None in runs of version 0.1."""
        return last_value(self.folder.times_file, "time/epochs")

    @property
    def steps(self) -> int:
        """Number of optimizer steps up to the last row of metrics.csv or times.csv."""
        files = (self.folder.metrics_file, self.folder.times_file)
        return 1 + max(int(-1 if (step := last_value(file, "step")) is None else step) for file in files)

    @cached_property
    def history(self) -> list[dict[str, float]]:
        """metrics.csv as numbers, a dict for each row, empty cells left out."""
        return rows(self.folder.metrics_file)

    def curve(self, metric: str) -> list[tuple[int, int, float]]:
        """Step, epoch and value of each row that has the metric."""
        return [
            (int(row["step"]), int(row.get("epoch", 0)), row[metric]) for row in self.history if metric in row
        ]

    def last(self, metric: str) -> float | None:
        """The metric's last value in metrics.csv; None where it was never logged."""
        return last_value(self.folder.metrics_file, metric)

    @cached_property
    def damage(self) -> InputError | None:
        """Why config.yaml, metrics.csv or times.csv cannot be read; None where they can."""
        try:
            _ = self.config
        except InputError as error:
            return error
        return self.log_damage

    @cached_property
    def log_damage(self) -> InputError | None:
        """Why metrics.csv or times.csv cannot be read; None where they can, or are absent."""
        try:
            for file in (self.folder.metrics_file, self.folder.times_file):
                last_value(file, "step")
        except InputError as error:
            return error
        return None

    @property
    def seconds(self) -> float | None:
        """Seconds of training and validation, from times.csv; None without it."""
        found = column(self.folder.times_file, *_SECONDS)
        return math.fsum(found) if found else None

    @cached_property
    def evaluation(self) -> list[dict[str, Any]]:
        """Rows of evaluation.json; none where the run was not evaluated.

        Raises:
            InputError: the file is not what ``ssl-vision evaluate`` writes.
        """
        return read_rows(self.folder.evaluation_file, self.config)

    def evaluated(self, metric: str) -> dict[str, Any] | None:
        """The row of evaluation.json that stands for a metric of the trained backbone; None without one.

        Of several it is one of the run's own data set where there is one, of the latest epoch, of the
        protocol ``macl`` where there is one, and of the evaluation that was made last.
        """
        wanted = {"features": "trained", "layer": "backbone", "metric": metric}
        rows = [row for row in self.evaluation if all(row.get(key) == wanted[key] for key in wanted)]

        def standing(row: dict[str, Any]) -> tuple[int, bool]:
            return row.get("epoch", 0), row.get("protocol") == "macl"

        return max(reversed(preferred(rows, self.config)), key=standing, default=None)

    @property
    def validated_on(self) -> str:
        """The images whose accuracies metrics.csv has, in words."""
        known = {"test": "test images", "val": "validation images"}
        own_splits = self.setting("data.val") == "auto" and self.setting("data") == "ImageFolder"
        return known.get(
            self.setting("data.val"), "held-out images" if own_splits else "held-out train images"
        )


def find_runs(paths: Iterable[str | Path]) -> list[Run]:
    """All run directories at or below the paths, each once, by path.

    A run directory is one with a config.yaml; below it none is looked for.

    Raises:
        InputError: a path that does not exist, or without a run.
    """
    found: dict[Path, Path] = {}
    for path in map(Path, paths):
        path = path.expanduser()
        if not path.is_dir():
            raise InputError(f"{path}: no such folder")
        here = list(_below(path, set()))
        if not here:
            raise InputError(f"{path}: no run directory at or below it (one has a config.yaml)")
        for folder in here:
            real = folder.resolve()
            found[real] = min(found.get(real, folder), folder, key=lambda path: len(path.parts))
    return [Run(folder) for folder in sorted(found.values())]


def readable(runs: Iterable[Run], command: str) -> list[Run]:
    """Leaves out the runs whose files cannot be read, each with a line on stderr.

    Args:
        runs: the runs.
        command: name of the command that leaves them out, for the line.

    Raises:
        InputError: no run is left.
    """
    kept, damage = [], None
    for run in runs:
        if run.damage is None:
            kept.append(run)
        else:
            damage = run.damage
            print(f"ssl-vision {command}: left out: {damage}", file=sys.stderr)
    if not kept and damage is not None:
        raise InputError("no run can be read: the lines above say why")
    return kept


def _below(path: Path, seen: set[str]) -> Iterator[Path]:
    with os.scandir(path) as entries:
        listed = list(entries)
    if any(entry.name == "config.yaml" for entry in listed):
        yield path
        return
    for entry in listed:
        if entry.name.startswith(".") or entry.name in _NO_RUNS or not entry.is_dir():
            continue
        if entry.is_symlink():  # which may lead back to where it came from
            real = os.path.realpath(entry.path)
            if real in seen:
                continue
            seen.add(real)
        yield from _below(Path(entry.path), seen)


def _found(config: dict[str, Any], key: str) -> tuple[list[str], Any]:
    """The parts of a key's whole path, ``init_args`` among them, and its value; ``([], None)`` without it."""
    path: list[str] = []
    value: Any = config
    for part in key.split("."):
        if isinstance(value, dict) and part not in value and isinstance(value.get("init_args"), dict):
            path.append("init_args")
            value = value["init_args"]
        if not isinstance(value, dict) or part not in value:
            return [], None
        path.append(part)
        value = value[part]
    return path, value
