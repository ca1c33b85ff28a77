"""Runs of the cells of a paper: state, remaining commands, time and results."""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from ssl_vision.cli.recipes import CONFIGS, find_recipe
from ssl_vision.errors import InputError
from ssl_vision.experiments.reproduce.paper import Options, Paper, TableCell, TableMetric
from ssl_vision.experiments.sweeps.trials import evaluate_arguments
from ssl_vision.runs.config import below_home, class_name, differences, last_part, named_settings
from ssl_vision.runs.evaluation_file import preferred
from ssl_vision.runs.files import parse_yaml, read_text, read_yaml, write_text
from ssl_vision.runs.registry import Run

_SETTLED = ("name", "runs_dir", "seed_everything", "ckpt_path", "overwrite", "config", "c")
_DEVICES = ("trainer.devices", "trainer.num_nodes")


class PaperRun:
    """A run of a cell with one seed.

    Args:
        cell: cell of the table.
        seed: seed of the run.
        place: directory of the paper's run directories.
        paper: paper of the cell.
    """

    def __init__(self, cell: TableCell, seed: int, place: Path, paper: Paper) -> None:
        self.cell, self.seed, self.place, self.paper = cell, seed, place, paper
        self.name = f"{cell.name}-s{seed}"
        self.path = place / self.name
        self.log = place / f"{self.name}.log"
        self.options_file = place / f"{self.name}.options.txt"

    @property
    def run(self) -> Run | None:
        """The run directory; None before training has started."""
        run = Run(self.path)
        return run if run.folder.config_file.exists() else None

    @property
    def state(self) -> str:
        """``done``, ``trained``, ``running``, ``stopped at epoch n`` or ``to do``."""
        run = self.run
        if run is None:
            return "to do"
        if run.status == "stopped":
            return f"stopped at epoch {run.epoch}"
        if run.status == "running":
            return "running"
        wanted = [metric for name, metric in self.paper.metrics.items() if name in self.cell.published]
        return "done" if all(_result(run, metric) is not None for metric in wanted) else "trained"

    @property
    def fit(self) -> list[str]:
        """Arguments of ``ssl-vision`` that start or resume its training.

        It uses one device, because the batch size is that of each device.
        """
        options = [f"--{key}={value}" for key, value in self.cell.options.items()]
        location = [f"--seed_everything={self.seed}", f"--runs_dir={self.place}", f"--name={self.name}"]
        quiet = ["--report=false", "--trainer.devices=1", "--trainer.enable_progress_bar=false"]
        return ["fit", *quiet, *options, *location, "--ckpt_path=last"]

    @property
    def evaluate(self) -> list[str]:
        """Arguments of ``ssl-vision`` that evaluate it by the paper's protocols."""
        quick = ["--device=cpu", "--report=false"] if self.paper.small else []
        return [*evaluate_arguments(self.path, self.paper.protocols, fit=self.fit), *quick]

    def missing(self) -> list[list[str]]:
        """Return the remaining commands."""
        state = self.state
        return [] if state == "done" else [self.evaluate] if state == "trained" else [self.fit, self.evaluate]

    def value(self, metric: TableMetric) -> float | None:
        """Return the value of the finished run in the unit of the paper; None if there is none yet."""
        run = self.run
        value = _result(run, metric) if run and run.status == "finished" else None
        return None if value is None else metric.scale * value

    def record_options(self) -> None:
        """Write the names of its options, so that `expected` finds those that are no longer given."""
        write_text(self.options_file, "".join(f"{key}\n" for key in self.cell.options))

    def expected(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return a run's config, updated with the current paper file, config file and options.

        Options that were given when it was trained, but are not now, become None. Options that extend a list,
        such as ``trainer.callbacks+``, are not compared.
        """
        file = Path(self.cell.options["config"])
        wanted = dict(named_settings(read_yaml(file)))
        wanted |= {key: value for key, value in self.cell.options.items() if key != "config"}
        recorded = read_text(self.options_file).split() if self.options_file.exists() else []
        wanted = dict.fromkeys(recorded) | wanted
        now: dict[str, Any] = copy.deepcopy(dict(config))
        for key in sorted(wanted):
            path = key.split(".")
            if path[0] in now and not key.endswith("+"):  # some options of fit are not recorded
                _set_value(now, path, below_home(wanted[key]))
        return now

    def check(self) -> None:
        """Compare the run directory with the current paper file and options.

        Raises:
            InputError: the run has a different config.
        """
        run = self.run
        if run is None:
            return
        now = self.expected(run.config)
        epochs, wanted = run.setting("epochs"), int(self.cell.options["trainer.max_epochs"])
        length = [f"trainer.max_epochs: {epochs} there, {wanted} here"] if epochs != wanted else []
        if other := differences(run.config, now) or length:
            raise InputError(
                f"{self.path} contains a run with a different config ({'; '.join(other)}): use its options "
                "or another --runs_dir, or delete it"
            )


def seconds_left(runs: Sequence[PaperRun], every: Sequence[PaperRun]) -> dict[str, float | None]:
    """Estimate the remaining seconds of training of each run, by name.

    The estimate is the mean time of an epoch in runs of the same config file, and None without such runs.

    Args:
        runs: requested runs.
        every: all runs that may have been trained.
    """
    epochs: dict[str, list[float]] = {}
    for paper_run in every:
        run = paper_run.run
        if run and run.epoch and run.seconds:
            epochs.setdefault(paper_run.cell.options["config"], []).append(run.seconds / run.epoch)
    left: dict[str, float | None] = {}
    for paper_run in runs:
        durations, run = epochs.get(paper_run.cell.options["config"]), paper_run.run
        count = int(paper_run.cell.options["trainer.max_epochs"]) - (run.epoch if run else 0)
        left[paper_run.name] = 0.0 if count <= 0 else fmean(durations) * count if durations else None
    return left


def _result(run: Run, metric: TableMetric) -> float | None:
    """Find the value of a metric in evaluation.json at the last epoch."""
    rows = [
        row
        for row in run.evaluation
        if row.get("epoch") == run.setting("epochs")
        and all(str(row.get(key)) == value for key, value in metric.fields.items())
    ]
    rows = preferred(rows, run.config)
    if len(rows) > 1:
        raise InputError(
            f"{run.folder.evaluation_file}: {len(rows)} rows match the metric {metric.name} of the paper file"
        )
    return float(rows[0]["value"]) if rows else None


def _set_value(config: Any, path: Sequence[str], value: Any) -> None:
    """Change a setting of a run's config if its value differs."""
    if not isinstance(config, dict):  # another class, or none: its name differs already
        return
    if "class_path" in config and path[0] not in ("class_path", "init_args"):
        config = config.setdefault("init_args", {})
    first, *rest = path
    if rest:
        _set_value(config.setdefault(first, {}), rest, value)
    elif not _equal_values(config.get(first), value):
        config[first] = value


def _equal_values(there: Any, value: Any) -> bool:
    if isinstance(there, dict) and "class_path" in there:
        return class_name(there) == last_part(value)
    return bool(_plain(there) == _plain(value))


def _plain(value: Any) -> Any:
    """Parse a value of a config file or of the command line."""
    if isinstance(value, str):
        try:
            value = float(value)  # 1e-4 is text to YAML
        except ValueError:
            value = parse_yaml(value, where="after --")
    return value


def options_of(args: Sequence[str]) -> Options:
    """Parse options written as ``--key=value`` or ``--key value``; ``--config FILE`` gives those of a file.

    Raises:
        InputError: an argument has another form, a file cannot be read, or the option is set by ``reproduce``
            itself.
    """
    options: Options = {}
    left = list(args)
    while left:
        first = left.pop(0)
        if not first.startswith("--"):
            raise InputError(f"after --: expected --key=value, got {first}")
        key, equals, value = first[2:].partition("=")
        if not equals and (not left or left[0].startswith("--")):
            raise InputError(f"after --: --{key} has no value")
        value = value if equals else left.pop(0)
        if key == "config":
            options |= named_settings(read_yaml(find_recipe(value, CONFIGS, "--config")))
        else:
            options[key] = value
    for key in options:
        if key in _SETTLED:
            raise InputError(f"after --: --{key} is set by the paper file or by options of reproduce")
        if key in _DEVICES:
            raise InputError(
                f"after --: --{key}: a run uses one device, because the batch size is that of each device; "
                "--workers distributes runs over the GPUs"
            )
    return options
