"""Access to the configs, metrics and evaluations of runs, without importing torch."""

import math
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from ssl_vision.errors import InputError
from ssl_vision.runs.config import class_name
from ssl_vision.runs.evaluation_file import TEST_PREFIXES, evaluation_summary, preferred, read_rows
from ssl_vision.runs.files import last_value, read_csv, read_yaml
from ssl_vision.runs.folder import RunFolder

SHORT = {
    "objective": "model.init_args.objective",
    "data": "data",
    "seed": "seed_everything",
    "epochs": "trainer.max_epochs",
    "batch_size": "data.init_args.batch_size",
}
"""Short names of common settings, and their keys in config.yaml."""

_SECONDS = ("time/train_seconds", "time/val_seconds")

_NO_RUNS = {"wandb", "checkpoints", "features"}
"""Directories in which runs are not searched."""

_WITHOUT_VALIDATION = ("CIFAR10", "CIFAR100", "Digits", "STL10")
"""Data sets without a validation split."""


class Run:
    """A run, read from its run directory; each file is read on first access.

    Args:
        path: the run directory.
    """

    def __init__(self, path: str | Path) -> None:
        self.folder = RunFolder(path)
        self.name = os.path.basename(os.path.abspath(self.folder.path))

    @cached_property
    def config(self) -> dict[str, Any]:
        """The config of the run, from config.yaml.

        Raises:
            InputError: config.yaml is missing or damaged.
        """
        config = read_yaml(self.folder.config_file)
        if not isinstance(config, dict):
            raise InputError(f"{self.folder.config_file} is not a table of keys and values")
        return config

    def setting(self, key: str) -> Any:
        """Return the value of a setting; None if it does not exist. For a class, return its name.

        Args:
            key: ``name``, one of ``SHORT``, or a dotted key of config.yaml with or without ``init_args``,
                such as ``model.objective.temperature``.
        """
        if key == "name":
            return self.name
        value = _look_up(self.config, SHORT.get(key, key))
        if value is None and key == "objective":  # a method with a fixed objective
            value = self.config.get("model")
        if isinstance(value, dict) and "class_path" in value:
            return class_name(value)
        return value

    def described(self, key: str) -> str | None:
        """Return a class with its options in words, such as ``ResNet (depth 18, width 64)``; None without it.

        Args:
            key: dotted key of config.yaml, as for `setting`.
        """
        value = _look_up(self.config, key)
        if not isinstance(value, dict) or "class_path" not in value:
            return str(value) if value else None
        options = {**(value.get("init_args") or {}), **(value.get("dict_kwargs") or {})}
        words = [f"{name} {option}" for name, option in options.items() if option not in (None, False)]
        name = class_name(value)
        return f"{name} ({', '.join(words)})" if words else name

    @property
    def status(self) -> str:
        """``running``, ``finished`` (all epochs or steps of the config are done) or ``stopped``.

        A run is running while a process holds its lock.
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
        ended = (row for row in self.history if any(name.startswith("val/") for name in row))
        epochs = [last_value(self.history, "epoch") or 0]
        epochs += [row["epoch"] + 1 for row in (*self.times, *ended) if "epoch" in row]
        return int(max(epochs))

    @property
    def epochs(self) -> float | None:
        """Epochs trained, including the fraction of an unfinished one; None before the first has ended."""
        return last_value(self.times, "time/epochs")

    @property
    def processes(self) -> int:
        """Number of processes that trained the run, as far as its config states it, otherwise one."""
        devices, nodes = self.setting("trainer.devices"), self.setting("trainer.num_nodes")
        devices = len(devices) if isinstance(devices, list) else devices
        return math.prod(each for each in (devices, nodes) if isinstance(each, int) and each > 0)

    @property
    def steps(self) -> int:
        """Number of optimizer steps up to the last row of metrics.csv or times.csv."""
        return 1 + max(int(table[-1]["step"]) if table else -1 for table in (self.history, self.times))

    @cached_property
    def history(self) -> list[dict[str, float]]:
        """The rows of metrics.csv as dicts of numbers, without empty cells."""
        return read_csv(self.folder.metrics_file)[1]

    @cached_property
    def times(self) -> list[dict[str, float]]:
        """The rows of times.csv, as in `history`."""
        return read_csv(self.folder.times_file)[1]

    def curve(self, metric: str) -> list[tuple[int, int, float]]:
        """Return the step, epoch and value of each logged value of a metric."""
        return [
            (int(row["step"]), int(row.get("epoch", 0)), row[metric]) for row in self.history if metric in row
        ]

    def last(self, metric: str) -> float | None:
        """Return the last value of a metric in metrics.csv, or else its value in `test_metrics`.

        None if there is none.
        """
        value = last_value(self.history, metric)
        if value is None and metric.startswith(TEST_PREFIXES):
            with suppress(InputError):  # other programs may write no config.yaml
                return self.test_metrics.get(metric)
        return value

    @cached_property
    def test_metrics(self) -> dict[str, float]:
        """Values that ``ssl-vision evaluate`` measured at the last epoch, by names such as ``test/knn_top1``.

        Raises:
            InputError: evaluation.json is not what ``ssl-vision evaluate`` writes.
        """
        return evaluation_summary(self.evaluation, self.config, epoch=self.epoch)

    @cached_property
    def damage(self) -> InputError | None:
        """The error on reading config.yaml, metrics.csv or times.csv; None if there is none."""
        try:
            _ = self.config, self.history, self.times
        except InputError as error:
            return error
        return None

    @property
    def seconds(self) -> float | None:
        """Seconds of training and validation, from times.csv; None if that does not exist."""
        seconds = [row[name] for row in self.times for name in _SECONDS if name in row]
        return math.fsum(seconds) if seconds else None

    @cached_property
    def evaluation(self) -> list[dict[str, Any]]:
        """Rows of evaluation.json; empty if the run was not evaluated.

        Raises:
            InputError: the file was not written by ``ssl-vision evaluate``.
        """
        return read_rows(self.folder.evaluation_file)

    def evaluated(self, metric: str) -> dict[str, Any] | None:
        """Return the row of evaluation.json with a metric of the trained backbone, measured with all labels.

        None if there is none. Of several rows, those of the run's own data set are preferred, then those of
        the latest epoch, of the protocol ``macl``, and of the most recent evaluation.
        """
        wanted = {"features": "trained", "layer": "backbone", "metric": metric, "labels": None}
        rows = [row for row in self.evaluation if all(row.get(key) == wanted[key] for key in wanted)]

        def priority(row: dict[str, Any]) -> tuple[int, bool]:
            return row.get("epoch", 0), row.get("protocol") == "macl"

        return max(reversed(preferred(rows, self.config)), key=priority, default=None)

    @property
    def validated_images(self) -> float | None:
        """Number of images on which the accuracies in metrics.csv are measured; None if it is unknown."""
        return last_value(self.times, "time/val_images")

    @property
    def validated_k(self) -> int:
        """Number of neighbours that vote in validation; 0 if it is unknown."""
        return int(last_value(self.times, "time/knn_k") or self.setting("metrics.k") or 0)

    @property
    def validated_on(self) -> str:
        """Description of the images on which the accuracies in metrics.csv are measured."""
        if last_value(self.times, "time/leave_one_out"):
            return "labelled train images, leaving one out"
        descriptions = {"test": "test images", "val": "validation images"}
        unknown = self.setting("data.val") == "auto" and self.setting("data") not in _WITHOUT_VALIDATION
        return descriptions.get(
            self.setting("data.val"), "held-out images" if unknown else "held-out train images"
        )


def find_runs(paths: Iterable[str | Path]) -> list[Run]:
    """Find all run directories at or below the paths, without duplicates, sorted by path.

    A run directory is one that contains a config.yaml; its subdirectories are not searched.

    Raises:
        InputError: a path does not exist, or has no run at or below it.
    """
    unique: dict[str, Path] = {}
    for path in map(Path, paths):
        path = path.expanduser()
        if not path.is_dir():
            raise InputError(f"{path}: no such directory")
        folders = list(_below(path))
        if not folders:
            raise InputError(f"{path}: no run directory (one with a config.yaml) at or below this path")
        for folder in folders:
            real = os.path.realpath(folder)
            unique[real] = min(unique.get(real, folder), folder, key=lambda path: len(path.parts))
    return [Run(folder) for folder in sorted(unique.values())]


def readable(runs: Iterable[Run], command: str) -> list[Run]:
    """Skip the runs whose files cannot be read, and print a message about each to stderr.

    Args:
        runs: the runs.
        command: name of the command, for the messages.

    Raises:
        InputError: no run can be read.
    """
    undamaged, damage = [], None
    for run in runs:
        if run.damage is None:
            undamaged.append(run)
        else:
            damage = run.damage
            print(f"ssl-vision {command}: skipped: {damage}", file=sys.stderr)
    if not undamaged and damage is not None:
        raise InputError("no run can be read, for the reasons above")
    return undamaged


def _below(path: Path) -> Iterator[Path]:
    seen = set()
    for folder, subfolders, files in os.walk(path, followlinks=True):
        real = os.path.realpath(folder)
        if "config.yaml" in files:
            yield Path(folder)
        if "config.yaml" in files or real in seen:  # a link may form a cycle
            subfolders.clear()
        seen.add(real)
        subfolders[:] = sorted(name for name in subfolders if name[0] != "." and name not in _NO_RUNS)


def _look_up(config: dict[str, Any], key: str) -> Any:
    """Return the value of a key, which may leave out ``init_args``; None if it is absent."""
    value: Any = config
    for part in key.split("."):
        if isinstance(value, dict) and part not in value and isinstance(value.get("init_args"), dict):
            value = value["init_args"]
        if not isinstance(value, dict) or part not in value:
            return None
        value = value[part]
    return value
