"""Reading and checking of W&B sweep files."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ssl_vision.cli.suggestions import check_keys, closest_match
from ssl_vision.errors import InputError
from ssl_vision.runs.files import parse_yaml

METHODS = ("grid", "random", "bayes")
DISTRIBUTIONS = ("constant", "categorical", "int_uniform", "uniform", "q_uniform", "log_uniform_values")
"""W&B's distributions that Optuna has as well."""

MACROS = (
    "env", "interpreter", "program", "args", "args_no_equals", "args_no_hyphens", "args_no_boolean_flags",
    "args_json",
)  # fmt: skip
"""W&B's macros that the command of a sweep file may contain, besides ``${envvar:NAME}``."""

WHOLE = re.compile(r"\$\{(?!envvar:[A-Z0-9_]*\})(.*)\}")
"""A word that is a macro."""

_NEUTRAL = ("name", "description", "project", "entity", "run_cap")
"""Keys that do not change any trial's result."""

_KEYS = ("method", "metric", "parameters", "command", "program", "early_terminate", *_NEUTRAL)
_MOST_TRIALS = 1_000_000
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class Choice:
    """A parameter with a list of values, which are JSON texts in Optuna."""

    values: tuple[Any, ...]

    @property
    def size(self) -> float:
        """Number of values."""
        return len(self.values)

    @property
    def distribution(self) -> Any:
        """The distribution in Optuna."""
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution([json.dumps(value) for value in self.values])


@dataclass(frozen=True)
class Range:
    """A parameter between two numbers, of which ``step`` selects multiples."""

    low: float
    high: float
    step: float | None = None
    log: bool = False

    @property
    def size(self) -> float:
        """Number of values."""
        return math.inf if self.step is None else int((self.high - self.low) / self.step) + 1

    @property
    def distribution(self) -> Any:
        """The distribution in Optuna."""
        from optuna.distributions import FloatDistribution, IntDistribution

        if all(type(each) is int for each in (self.low, self.high, self.step)):
            return IntDistribution(self.low, self.high, step=self.step)  # type: ignore[arg-type]
        return FloatDistribution(self.low, self.high, log=self.log, step=self.step)


@dataclass(frozen=True)
class SweepMetric:
    """The metric of a sweep: the last value of a column of metrics.csv."""

    name: str
    goal: Literal["minimize", "maximize"] = "minimize"
    target: float | None = None

    @property
    def sign(self) -> int:
        """1 if higher is better, otherwise −1."""
        return 1 if self.goal == "maximize" else -1

    def reached(self, value: float) -> bool:
        """Return True if a value has reached the target, so that no further trial is needed."""
        return self.target is not None and self.sign * value >= self.sign * self.target


@dataclass(frozen=True)
class EarlyTermination:
    """Successive halving: the best 1/eta of the trials pass values number first · eta^k."""

    first: int
    eta: int


@dataclass(frozen=True)
class SweepFile:
    """The content of a sweep file.

    ``parameters`` maps the path of each parameter to its values or its range. A path has more than one part
    if the file nests blocks of parameters.
    """

    content: Mapping[str, Any]
    method: str
    metric: SweepMetric
    parameters: Mapping[tuple[str, ...], Choice | Range]
    command: tuple[str, ...]
    cap: int | None
    early: EarlyTermination | None

    @property
    def significant(self) -> dict[str, Any]:
        """The keys of the file and its parameters, without keys that do not change the trials."""
        keys = {key: value for key, value in self.content.items() if key not in (*_NEUTRAL, "parameters")}
        return keys | {f"parameters.{name}": each for name, each in self.content["parameters"].items()}

    @property
    def varied(self) -> list[tuple[str, ...]]:
        """Paths of the parameters with more than one value."""
        return [path for path, parameter in self.parameters.items() if parameter.size > 1]

    @property
    def most(self) -> float:
        """Number of combinations of all parameters."""
        return math.prod(parameter.size for parameter in self.parameters.values())

    @property
    def distributions(self) -> dict[str, Any]:
        """The distributions in Optuna by the dotted names of the parameters."""
        return {".".join(path): parameter.distribution for path, parameter in self.parameters.items()}


def parse_sweep(text: str, *, where: str, cap: int | None = None) -> SweepFile:
    """Parse the text of a sweep file.

    Args:
        text: content of the file as YAML.
        where: name of the file, for messages.
        cap: maximum number of trials, instead of run_cap in the file.

    Raises:
        InputError: a key is unknown or missing, or a value is invalid or not supported.
    """
    content = parse_yaml(text, where=where)
    _table(where, content)
    check_keys(where, content, _KEYS)
    method = content.get("method")
    if method not in METHODS:
        raise InputError(f"{where}: method: no method '{method}'; there are {', '.join(METHODS)}")
    parameters = dict(_parameters(f"{where}: parameters", content.get("parameters")))
    if method == "grid":
        place = f"{where}: parameters."
        parameters = {path: _listed(place + ".".join(path), each) for path, each in parameters.items()}
    command = content.get("command", ["${env}", "${interpreter}", "${program}", "${args}"])
    _check_command(f"{where}: command", command, content.get("program"))
    early = content.get("early_terminate")
    file = SweepFile(
        content=content,
        method=method,
        metric=_metric(f"{where}: metric", content.get("metric")),
        parameters=parameters,
        command=tuple(str(content["program"] if word == "${program}" else word) for word in command),
        cap=cap or content.get("run_cap"),
        early=None if early is None else _early(f"{where}: early_terminate", early),
    )
    if file.cap is None and (method != "grid" or file.most > _MOST_TRIALS):
        count = f"the grid has {file.most:.0f} trials" if method == "grid" else f"method {method} has no end"
        raise InputError(f"{where}: {count}: set run_cap in the file, or --trials")
    if file.cap is not None:
        _number(f"{where}: run_cap", file.cap, whole=True)
        if not 1 <= file.cap <= _MOST_TRIALS:
            raise InputError(f"{where}: run_cap: expected 1 to {_MOST_TRIALS}, got {file.cap}")
    return file


def _table(where: str, content: Any) -> None:
    if not isinstance(content, Mapping) or not content:
        raise InputError(f"{where}: expected a table of keys and values, got {content!r}")


def _check_command(where: str, command: Any, program: Any) -> None:
    if not isinstance(command, list) or not command:
        raise InputError(f"{where}: expected a list of words and macros, got {command!r}")
    for macro in filter(None, (WHOLE.fullmatch(str(word)) for word in command)):
        if macro[1] not in MACROS:
            raise InputError(
                f"{where}: unknown or unsupported macro '{macro[0]}'{closest_match(macro[1], MACROS)}"
            )
        if macro[1] == "program" and not isinstance(program, str):
            raise InputError(f"{where}: uses ${{program}}, but the file has no program")


def _metric(where: str, given: Any) -> SweepMetric:
    if given is None:
        raise InputError(f"{where}: is missing; specify name and goal, such as val/knn_top1 and maximize")
    _table(where, given)
    check_keys(where, given, ("name", "goal", "target"))
    metric = SweepMetric(**{"name": "", **given})
    if not isinstance(metric.name, str) or not metric.name:
        raise InputError(f"{where}.name: expected a column of metrics.csv, got {metric.name!r}")
    if metric.goal not in ("minimize", "maximize"):
        raise InputError(f"{where}.goal: expected minimize or maximize, got {metric.goal!r}")
    if metric.target is not None:
        _number(f"{where}.target", metric.target)
    return metric


def _early(where: str, given: Any) -> EarlyTermination:
    _table(where, given)
    check_keys(where, given, ("type", "min_iter", "max_iter", "s", "eta"))
    if given.get("type") != "hyperband":
        raise InputError(f"{where}.type: expected hyperband, got {given.get('type')!r}")
    numbers = {"eta": 3} | {key: value for key, value in given.items() if key != "type"}
    for key, value in numbers.items():
        if type(value) is not int or value < 1 + (key == "eta"):
            raise InputError(f"{where}.{key}: expected an integer above {key == 'eta':d}, got {value!r}")
    if numbers.keys() == {"eta", "min_iter"}:
        return EarlyTermination(numbers["min_iter"], numbers["eta"])
    if numbers.keys() == {"eta", "max_iter", "s"}:
        return EarlyTermination(max(1, numbers["max_iter"] // numbers["eta"] ** numbers["s"]), numbers["eta"])
    raise InputError(f"{where}: give min_iter, or max_iter and s")


def _parameters(where: str, given: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[Any, Choice | Range]]:
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


def read_parameter(where: str, given: Mapping[str, Any]) -> Choice | Range:
    """Read a parameter of a sweep file: ``value``, ``values``, or a distribution with its ends.

    Args:
        where: place in the file, for messages.
        given: keys and values of the parameter.

    Raises:
        InputError: a key is unknown or missing, a distribution is unknown or not supported, or a value is out
            of range.
    """
    whole = all(type(given.get(end)) is int for end in ("min", "max"))
    implied = {"values": "categorical", "value": "constant", "min": "int_uniform" if whole else "uniform"}
    name = given.get("distribution") or next((implied[key] for key in implied if key in given), None)
    if name is None:
        check_keys(where, given, ("value", "values", "min", "max", "distribution", "parameters"))
        raise InputError(f"{where}: specify value, values, min and max, a distribution, or nested parameters")
    if name not in DISTRIBUTIONS:
        supported = ", ".join(DISTRIBUTIONS)
        raise InputError(f"{where}.distribution: '{name}' is not supported; available: {supported}")
    required = {"constant": ("value",), "categorical": ("values",)}.get(name, ("min", "max"))
    check_keys(where, given, (*required, "distribution", *(("q",) if name == "q_uniform" else ())))
    if missing := [key for key in required if key not in given]:
        raise InputError(f"{where}: {name} needs '{missing[0]}'")
    if name == "constant":
        return Choice((given["value"],))
    if name == "categorical":
        values = given["values"]
        if not isinstance(values, list) or not values:
            raise InputError(f"{where}.values: expected a list of values, got {values}")
        if len({json.dumps(value, default=str) for value in values}) < len(values):
            raise InputError(f"{where}.values: {values} contains a value twice")
        return Choice(tuple(values))
    low, high, step = given["min"], given["max"], given.get("q", 1)
    for key, value in (("min", low), ("max", high), ("q", step)):
        _number(f"{where}.{key}", value, whole=name == "int_uniform")
    if low >= high:
        raise InputError(f"{where}: min {low} must be below max {high}")
    if step <= 0:
        raise InputError(f"{where}.q: {step} must be above 0")
    if name == "log_uniform_values" and low <= 0:
        raise InputError(f"{where}.min: {low} must be above 0 for {name}")
    return Range(low, high, step if name in ("int_uniform", "q_uniform") else None, name.startswith("log"))


def _listed(where: str, parameter: Choice | Range) -> Choice:
    """Return a range of integers as a choice, of which a grid takes every value as in W&B."""
    if isinstance(parameter, Choice):
        return parameter
    if type(parameter.low) is not int or parameter.step != 1 or parameter.size > _MOST_TRIALS:
        raise InputError(f"{where}: a grid needs values, not a distribution")
    return Choice(tuple(range(parameter.low, int(parameter.high) + 1)))


def _number(where: str, value: Any, *, whole: bool = False) -> None:
    kinds = (int,) if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not math.isfinite(value):
        hint = " (YAML reads 1e-3 as text: write 1.0e-3)" if isinstance(value, str) and "e" in value else ""
        raise InputError(f"{where}: expected {'an integer' if whole else 'a number'}, got {value!r}{hint}")
