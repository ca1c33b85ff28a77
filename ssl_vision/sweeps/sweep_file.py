"""Reading and checking of W&B sweep files."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssl_vision.cli.suggestions import check_keys
from ssl_vision.errors import InputError
from ssl_vision.runs.reading import parse_yaml, read_text
from ssl_vision.sweeps.hyperband import Hyperband, read_hyperband
from ssl_vision.sweeps.macros import DEFAULT_COMMAND, check_command
from ssl_vision.sweeps.parameters import Choice, Parameter, Range, read_parameter, size

METHODS = ("grid", "random", "bayes")
_NEUTRAL = ("name", "description", "project", "entity", "run_cap")
"""Keys that do not change any trial's result."""

_KEYS = ("method", "metric", "parameters", "command", "program", "early_terminate", *_NEUTRAL)

_MOST_TRIALS = 1_000_000

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class SweepMetric:
    """The metric of a sweep: the last value of a column of metrics.csv."""

    name: str
    goal: str
    target: float | None

    @property
    def sign(self) -> int:
        """1 if higher is better, otherwise −1."""
        return 1 if self.goal == "maximize" else -1

    def reached(self, value: float) -> bool:
        """Return True if a value has reached the target, so that no further trial is needed."""
        return self.target is not None and self.sign * value >= self.sign * self.target


@dataclass(frozen=True)
class SweepFile:
    """The content of a sweep file.

    ``parameters`` maps the path of each parameter to its values or distribution. A path has more than one
    part if the file nests blocks of parameters.
    """

    content: Mapping[str, Any]
    method: str
    metric: SweepMetric
    parameters: Mapping[tuple[str, ...], Parameter]
    command: tuple[Any, ...]
    program: str | None
    run_cap: int | None
    early: Hyperband | None

    @property
    def varied(self) -> list[tuple[str, ...]]:
        """Paths of the parameters with more than one value."""
        return [
            path
            for path, parameter in self.parameters.items()
            if not isinstance(parameter, Choice) or len(parameter.values) > 1
        ]


def read_sweep_file(path: str | Path) -> SweepFile:
    """Read a sweep file.

    Raises:
        InputError: it cannot be read, a key is unknown or missing, or a value is invalid.
    """
    return parse_sweep(read_text(Path(path)), where=str(path))


def parse_sweep(text: str, *, where: str) -> SweepFile:
    """Parse the text of a sweep file.

    Args:
        text: content of the file as YAML.
        where: name of the file, for messages.

    Raises:
        InputError: the errors of ``read_sweep_file``.
    """
    content = parse_yaml(text, where=where)
    _table(where, content)
    check_keys(where, content, _KEYS)
    method = content.get("method")
    if method not in METHODS:
        raise InputError(f"{where}: method: no method '{method}'; there are {', '.join(METHODS)}")
    parameters = dict(_parameters(f"{where}: parameters", content.get("parameters")))
    if method == "grid":
        parameters = {path: _listed(parameter) for path, parameter in parameters.items()}
    _check_method(where, method, parameters)
    run_cap = content.get("run_cap")
    if run_cap is not None and (type(run_cap) is not int or run_cap < 1):
        raise InputError(f"{where}: run_cap: expected an integer above 0, got {run_cap!r}")
    command = content.get("command", list(DEFAULT_COMMAND))
    check_command(f"{where}: command", command, content.get("program"))
    early = content.get("early_terminate")
    return SweepFile(
        content=content,
        method=method,
        metric=_metric(f"{where}: metric", content.get("metric")),
        parameters=parameters,
        command=tuple(command),
        program=content.get("program"),
        run_cap=run_cap,
        early=read_hyperband(f"{where}: early_terminate", early) if early is not None else None,
    )


def changed_keys(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """List the dotted keys of two sweep files that differ and affect the trials."""
    left = {key: value for key, value in before.items() if key not in _NEUTRAL}
    right = {key: value for key, value in now.items() if key not in _NEUTRAL}
    return sorted(set(_differing(left, right, "")))


def _differing(left: Any, right: Any, prefix: str) -> Iterator[str]:
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        for key in left.keys() | right.keys():
            yield from _differing(left.get(key), right.get(key), f"{prefix}.{key}" if prefix else str(key))
    elif left != right:
        yield prefix


def _table(where: str, content: Any) -> None:
    if not isinstance(content, Mapping) or not content:
        raise InputError(f"{where}: expected a table of keys and values, got {content!r}")


def _metric(where: str, given: Any) -> SweepMetric:
    if given is None:
        raise InputError(f"{where}: is missing; specify name and goal, such as val/knn_top1 and maximize")
    _table(where, given)
    check_keys(where, given, ("name", "goal", "target"))
    name, goal, target = given.get("name"), given.get("goal", "minimize"), given.get("target")
    if not isinstance(name, str) or not name:
        raise InputError(f"{where}.name: expected a column of metrics.csv, got {name!r}")
    if goal not in ("minimize", "maximize"):
        raise InputError(f"{where}.goal: expected minimize or maximize, got {goal!r}")
    if target is not None and (isinstance(target, bool) or not isinstance(target, (int, float))):
        raise InputError(f"{where}.target: expected a number, got {target!r}")
    return SweepMetric(name, goal, target)


def _parameters(where: str, given: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[Any, Parameter]]:
    """Iterate over paths and contents of the parameters in alphabetical order, classes before arguments."""
    _table(where, given)
    for name in sorted(given, key=str):
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InputError(f"{where}: {name!r} is not the name of an option")
        inner = given[name]
        _table(f"{where}.{name}", inner)
        if "parameters" in inner:
            check_keys(f"{where}.{name}", inner, ("parameters",))
            yield from _parameters(f"{where}.{name}", inner["parameters"], (*above, name))
        else:
            yield (*above, name), read_parameter(f"{where}.{name}", inner)


def _listed(parameter: Parameter) -> Parameter:
    """Return a range of integers as a choice, of which a grid takes every value as in W&B."""
    if isinstance(parameter, Range) and size(parameter) <= _MOST_TRIALS:
        return Choice(tuple(range(parameter.options["min"], parameter.options["max"] + 1)))
    return parameter


def _check_method(where: str, method: str, parameters: Mapping[tuple[str, ...], Parameter]) -> None:
    for path, parameter in parameters.items():
        place = f"{where}: parameters.{'.'.join(path)}"
        if method == "grid" and not isinstance(parameter, Choice):
            raise InputError(f"{place}: a grid needs values, not a distribution")
        if method != "random" and isinstance(parameter, Choice) and parameter.probabilities:
            raise InputError(f"{place}.probabilities: only the method random supports them")


def check_cap(file: SweepFile, trials: int | None) -> int | None:
    """Return the maximum number of trials: ``trials``, else run_cap of the file; None for a whole grid.

    Raises:
        InputError: neither is given for a method without an end, or the number is too large.
    """
    cap = trials if trials is not None else file.run_cap
    if cap is None and file.method != "grid":
        raise InputError(f"method {file.method} has no end: set run_cap in the file, or --trials")
    if cap is not None and cap > _MOST_TRIALS:
        raise InputError(f"--trials and run_cap must be {_MOST_TRIALS} or less, not {cap}")
    if cap is None and (count := math.prod(map(size, file.parameters.values()))) > _MOST_TRIALS:
        raise InputError(f"the grid has {count} trials: set run_cap in the file, or --trials")
    return cap
