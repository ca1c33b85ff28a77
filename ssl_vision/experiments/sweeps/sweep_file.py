"""Reading and checking of W&B sweep files."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from jsonargparse.typing import PositiveInt

from ssl_vision.cli.parser import ArgumentParser
from ssl_vision.cli.suggestions import check_keys, closest_match
from ssl_vision.errors import InputError, check, check_choice
from ssl_vision.runs.files import parse_yaml

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

Parameters = dict[tuple[str, ...], Any]
"""Optuna's distributions by the paths of the parameters, with choices as JSON texts.

A path has more than one part if the file nests blocks of parameters.
"""


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

    type: Literal["hyperband"]
    min_iter: PositiveInt | None = None
    max_iter: PositiveInt | None = None
    s: PositiveInt | None = None
    eta: PositiveInt = 3

    def check(self) -> None:
        """Check what the parser cannot.

        Raises:
            InputError: eta is 1, or there are not either min_iter, or max_iter and s.
        """
        check("early_terminate.eta", self.eta, at_least=2)
        given = [each is not None for each in (self.min_iter, self.max_iter, self.s)]
        if given not in ([True, False, False], [False, True, True]):
            raise InputError("early_terminate: give min_iter, or max_iter and s")

    @property
    def first(self) -> int:
        """Number of the first value at which trials are compared."""
        if self.max_iter is None or self.s is None:
            return int(self.min_iter or 1)
        return max(1, int(self.max_iter // self.eta**self.s))


@dataclass(frozen=True)
class SweepFile:
    """The content of a sweep file."""

    parameters: Parameters
    method: Literal["grid", "random", "bayes"]
    metric: SweepMetric
    program: str | None = None
    command: list[str] = field(default_factory=lambda: ["${env}", "${interpreter}", "${program}", "${args}"])
    early_terminate: EarlyTermination | None = None
    run_cap: PositiveInt | None = None
    name: str | None = None
    description: str | None = None
    project: str | None = None
    entity: str | None = None

    @property
    def significant(self) -> dict[str, Any]:
        """The keys of the file and its parameters, without keys that do not change the trials."""
        keys = {key: value for key, value in asdict(self).items() if key not in (*_NEUTRAL, "parameters")}
        return keys | {f"parameters.{name}": each for name, each in self.distributions.items()}

    @property
    def varied(self) -> list[tuple[str, ...]]:
        """Paths of the parameters with more than one value."""
        return [path for path, parameter in self.parameters.items() if not parameter.single()]

    @property
    def most(self) -> float:
        """Number of combinations of all parameters."""
        return math.prod(map(size, self.parameters.values()))

    @property
    def distributions(self) -> dict[str, Any]:
        """The distributions by the dotted names of the parameters."""
        return {".".join(path): parameter for path, parameter in self.parameters.items()}


def size(distribution: Any) -> float:
    """Return the number of values of a distribution."""
    from optuna.distributions import CategoricalDistribution

    if isinstance(distribution, CategoricalDistribution):
        return len(distribution.choices)
    if distribution.step is None:
        return math.inf
    steps: int = round((distribution.high - distribution.low) / distribution.step)
    return steps + 1


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
    try:
        return _file(content, cap)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def _file(content: Any, cap: int | None) -> SweepFile:
    _table("the file", content)
    check_keys("the file", content, [each.name for each in fields(SweepFile)])
    parser = ArgumentParser()
    parser.add_class_arguments(SweepFile, skip={"parameters"})
    others = {key: value for key, value in content.items() if key != "parameters"}
    options = vars(parser.instantiate(parser.parse_object(others)))
    options["run_cap"] = cap or options["run_cap"]
    if options["early_terminate"] is not None:
        options["early_terminate"].check()
    if options["run_cap"] is None and options["method"] != "grid":
        raise InputError(f"method {options['method']} has no end: set run_cap in the file, or --trials")
    for macro in filter(None, map(WHOLE.fullmatch, options["command"])):
        if macro[1] not in MACROS:
            raise InputError(
                f"command: unknown or unsupported macro '{macro[0]}'{closest_match(macro[1], MACROS)}"
            )
        if macro[1] == "program" and options["program"] is None:
            raise InputError("command: uses ${program}, but the file has no program")
    options["command"] = [options["program"] if word == "${program}" else word for word in options["command"]]
    parameters = dict(_parameters("parameters", content.get("parameters")))
    if options["method"] == "grid":
        parameters = {path: _listed(".".join(path), each) for path, each in parameters.items()}
    return SweepFile(parameters, **options)


def _table(where: str, content: Any) -> None:
    if not isinstance(content, Mapping) or not content:
        raise InputError(f"{where}: expected a table of keys and values, got {content!r}")


def _parameters(where: str, given: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[Any, Any]]:
    """Iterate over paths and distributions in alphabetical order, classes before arguments."""
    _table(where, given)
    for name in sorted(given, key=str):
        inner = given[name]
        _table(f"{where}.{name}", inner)
        if "parameters" in inner:
            check_keys(f"{where}.{name}", inner, ("parameters",))
            yield from _parameters(f"{where}.{name}", inner["parameters"], (*above, str(name)))
        else:
            yield (*above, str(name)), read_parameter(f"{where}.{name}", inner)


def read_parameter(where: str, given: Mapping[str, Any]) -> Any:
    """Return Optuna's distribution for a parameter with ``value``, ``values``, or ``min`` and ``max``.

    Raises:
        InputError: a key is unknown or missing, a distribution is not supported, or a value is out of range.
    """
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if "value" in given or "values" in given:
        key, kind = ("values", "categorical") if "values" in given else ("value", "constant")
        check_keys(where, given, (key, "distribution"))
        check_choice(f"{where}.distribution", given.get("distribution", kind), (kind,))
        values = given.get("values", [given.get("value")])
        if not isinstance(values, list) or not values:
            raise InputError(f"{where}.values: expected a list of values, got {values}")
        return CategoricalDistribution(list(dict.fromkeys(map(json.dumps, values))))
    whole = all(type(given.get(end)) is int for end in ("min", "max"))
    name = given.get("distribution", "int_uniform" if whole else "uniform")
    if name not in DISTRIBUTIONS:
        supported = ", ".join(DISTRIBUTIONS)
        raise InputError(f"{where}.distribution: '{name}' is not supported; available: {supported}")
    if name in ("constant", "categorical"):
        raise InputError(f"{where}: {name} needs '{'value' if name == 'constant' else 'values'}'")
    check_keys(where, given, ("min", "max", "distribution", *(("q",) if name == "q_uniform" else ())))
    step = given.get("q", 1)
    if name == "int_uniform" and not whole:
        raise InputError(f"{where}: int_uniform needs integers min and max")
    if texts := [end for end in ("min", "max", "q") if isinstance(given.get(end), str)]:
        raise InputError(f"{where}.{texts[0]}: is text, as YAML reads 1e-3: write numbers, such as 1.0e-3")
    try:
        if name == "int_uniform" or (name == "q_uniform" and whole and type(step) is int):
            return IntDistribution(given["min"], given["max"], step=step)
        log = name == "log_uniform_values"
        return FloatDistribution(given["min"], given["max"], log, step if name == "q_uniform" else None)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{where}: needs value, values, or numbers min and max ({error})") from error


def _listed(name: str, parameter: Any) -> Any:
    """Return a range of integers as a choice, of which a grid takes every value as in W&B."""
    from optuna.distributions import CategoricalDistribution, IntDistribution

    if isinstance(parameter, CategoricalDistribution):
        return parameter
    if not isinstance(parameter, IntDistribution) or parameter.step != 1:
        raise InputError(f"parameters.{name}: a grid needs values, not a distribution")
    return CategoricalDistribution([str(value) for value in range(parameter.low, parameter.high + 1)])
