"""Trials of a sweep: their parameters, the names of their run directories, and their commands."""

import hashlib
import itertools
import json
import os
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from ssl_vision.cli.import_paths import names_in_command
from ssl_vision.errors import InputError
from ssl_vision.experiments.sweeps.sweep_file import WHOLE, SweepFile, parse_sweep
from ssl_vision.runs.config import class_name

_ENVIRONMENT = re.compile(r"\$\{envvar:([A-Z0-9_]*)\}")
_UNSAFE = re.compile(r"[^A-Za-z0-9_.,=+-]+")
_CLASS = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_LONGEST = 120


@dataclass(frozen=True)
class Trial:
    """One run of a sweep."""

    name: str
    parameters: Mapping[str, Any]
    """Values by option; the value of a nested block is a dict."""
    varied: Mapping[str, Any]
    """Parameters that differ between trials, by short names for tables."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """All parameters as they are in Optuna, in which a choice is a JSON text."""


@dataclass(frozen=True)
class Plan:
    """The settings of a sweep that every process of it needs."""

    folder: Path
    """Directory with the run directories of the trials and the files of the sweep."""
    text: str
    """Text of the sweep file."""
    cap: int | None = None
    """Maximum number of trials, instead of run_cap in the file."""
    options: tuple[str, ...] = ()
    """Options that follow those of the file in the command of every trial."""
    seed: int = 0
    evaluate: tuple[str, ...] = ()
    """Protocols under which finished trials are evaluated."""
    adopts_runs: ClassVar[bool] = False
    """Continue runs that are already in the directory, and only the trials of this plan."""

    @cached_property
    def file(self) -> SweepFile:
        """The parsed sweep file."""
        return parse_sweep(self.text, where=str(self.folder / "sweep.yaml"), cap=self.cap)

    @cached_property
    def trials(self) -> list[Trial]:
        """The trials that are known before training: all of a grid or random search, none of bayes."""
        if self.file.method == "grid":
            return list(itertools.islice(self._grid(), self.file.run_cap))
        count, trials = self.file.run_cap or 0, dict[str, Trial]()
        for trial in self.random_trials() if self.file.method == "random" else ():
            trials.setdefault(trial.name, trial)
            if len(trials) >= min(count, self.file.most):
                break
        return list(trials.values())

    def trial(self, params: Mapping[str, Any]) -> Trial:
        """Create the trial with these parameters in Optuna."""
        values = {name: json.loads(each) if isinstance(each, str) else each for name, each in params.items()}
        short = short_names([".".join(path) for path in self.file.varied])
        varied = {title: values[name] for name, title in short.items()}
        parameters: dict[str, Any] = {}
        for path in self.file.parameters:
            place = parameters
            for part in path[:-1]:
                place = place.setdefault(part, {})
            place[path[-1]] = values[".".join(path)]
        return Trial(_folder_name(varied), parameters, varied, params)

    def _grid(self) -> Iterator[Trial]:
        choices = {name: each.choices for name, each in self.file.distributions.items()}
        for combination in itertools.product(*choices.values()):
            yield self.trial(dict(zip(choices, combination, strict=True)))

    def random_trials(self) -> Iterator[Trial]:
        """Iterate over trials that Optuna draws at random, which may repeat."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=self.seed % 2**32))
        while True:
            yield self.trial(study.ask(self.file.distributions).params)

    def changes(self, before: "Plan", begun: Collection[str]) -> list[str]:
        """List the keys and parameters of the file that differ from those of a plan whose trials have begun.

        A grid may get further values.
        """
        left, right = before.file.significant, self.file.significant
        changed = sorted(key for key in left | right if left.get(key) != right.get(key))
        if self.file.method == "grid" and begun and all(key.startswith("parameters.") for key in changed):
            old, new = ({trial.name: trial for trial in each.trials} for each in (before, self))
            return [] if all(new.get(name) == old.get(name) for name in begun) else changed
        return changed

    @property
    def environment(self) -> dict[str, str]:
        """Variables for W&B: the group, and the project and entity of the file if they are not set."""
        given = {"WANDB_PROJECT": self.file.project, "WANDB_ENTITY": self.file.entity}
        stated = {name: value for name, value in given.items() if value and name not in os.environ}
        return {"WANDB_RUN_GROUP": self.folder.resolve().name, **stated}

    def train_command(self, trial: Trial) -> list[str]:
        """Return the command that trains a trial.

        If it is ``ssl-vision fit``, it uses the run directory of the trial and resumes from its last
        checkpoint. Only an option after the sweep file enables W&B.

        Raises:
            InputError: an environment variable in the command is not set.
        """
        words = expanded(self.file.command, trial.parameters)
        if not is_fit(words):
            return [*words, *self.options]
        quiet = ["--wandb=false", "--report=false", "--trainer.enable_progress_bar=false"]
        place = [f"--runs_dir={self.folder}", f"--name={trial.name}", "--ckpt_path=last"]
        return [*words, *quiet, *self.options, *place]

    def evaluate_command(self, trial: Trial, protocols: Sequence[str], *, baselines: bool) -> list[str]:
        """Return the command that evaluates a trial without cached features and with the classes of ``fit``.

        Args:
            trial: the trial.
            protocols: names or paths of protocols.
            baselines: evaluate the untrained network and raw pixels, too.
        """
        named = dict.fromkeys(names_in_command(self.train_command(trial)))
        words = [f"--protocol={protocol}" for protocol in protocols]
        words += [f"--baselines={str(baselines).lower()}", "--cache=false", "--report=false"]
        words += [f"--allow_class={name}" for name in named if not name.startswith("ssl_vision.")]
        return [sys.executable, "-m", "ssl_vision", "evaluate", str(self.folder / trial.name), *words]


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Map each dotted name to its shortest unique ending."""
    shortest = {}
    for name in names:
        parts = name.split(".")
        endings = [".".join(parts[-count:]) for count in range(1, len(parts) + 1)]
        alone = (
            ending
            for ending in endings
            if not any(other != name and f".{other}".endswith(f".{ending}") for other in names)
        )
        shortest[name] = next(alone, name)
    return shortest


def _folder_name(varied: Mapping[str, Any]) -> str:
    """Return ``name=value,name=value`` in safe characters, with a hash if values are shortened."""
    plain = ",".join(f"{name}={_short_value(value)}" for name, value in varied.items()) or "cell"
    safe = _UNSAFE.sub("_", plain)
    exact = ",".join(f"{name}={value}" for name, value in varied.items()) or "cell"
    if safe != exact or len(safe) > _LONGEST:
        text = json.dumps(dict(varied), sort_keys=True, default=str)
        safe = f"{safe[:_LONGEST]}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"
    return safe.lstrip(".-")


def _short_value(value: Any) -> str:
    """Shorten a value: four digits of a number, the last part of a class path."""
    if isinstance(value, float):
        return repr(value) if len(repr(value)) <= 6 else f"{value:.4g}"
    if isinstance(value, Mapping) and "class_path" in value:
        return class_name(value)
    if isinstance(value, str) and _CLASS.fullmatch(value):
        return value.rpartition(".")[2]
    return str(value)


def label(value: Any) -> str:
    """A value in tables and charts: shortened, with the options of a class, and other texts in full."""
    if isinstance(value, Mapping) and "class_path" in value:
        options = ", ".join(f"{name} {label(each)}" for name, each in (value.get("init_args") or {}).items())
        return f"{class_name(value)} ({options})" if options else class_name(value)
    if isinstance(value, str) and not value.rpartition(".")[2][:1].isupper():
        return value
    return _short_value(value)


def is_fit(words: Sequence[str]) -> bool:
    """Return True if a command starts ``ssl-vision fit`` in any way."""
    names = [Path(word).name for word in words]
    return any(
        word in ("ssl_vision", "ssl-vision") and after == "fit" for word, after in itertools.pairwise(names)
    )


def expanded(command: Sequence[str], parameters: Mapping[str, Any]) -> list[str]:
    """Return the command line of a trial.

    It equals that of ``wandb agent``, except for ``${interpreter}``, which is the Python of this process, and
    for null, which ``fit`` reads as ``null``.

    Args:
        command: words and macros.
        parameters: names and values in the order of the command line.

    Raises:
        InputError: an environment variable is not set.
    """
    from wandb.sdk.launch.sweeps.utils import create_sweep_command_args

    as_text = yaml_value if is_fit(command) else lambda value: value
    macros = create_sweep_command_args({
        "args": {name: {"value": as_text(value)} for name, value in parameters.items()}
    }) | {"env": ["/usr/bin/env"], "interpreter": [sys.executable]}  # fmt: skip
    line: list[str] = []
    for word in command:
        macro = WHOLE.fullmatch(word)
        line += macros[macro[1]] if macro else [_ENVIRONMENT.sub(_variable, word)]
    return line


def _variable(match: re.Match[str]) -> str:
    if match[1] not in os.environ:
        raise InputError(f"the sweep's command needs ${match[1]}, which is not set in the environment")
    return os.environ[match[1]]


def yaml_value(value: Any) -> Any:
    """Return a value that ``str`` writes as YAML: null instead of None, also in lists and tables."""
    return json.dumps(value) if value is None or isinstance(value, (list, dict)) else value
