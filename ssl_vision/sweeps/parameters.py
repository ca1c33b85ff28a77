"""Parameters of a sweep file, given by their values or by a distribution."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from ssl_vision.cli.suggestions import check_keys
from ssl_vision.errors import InputError

Quantile = Callable[[Mapping[str, Any], float], float]


@dataclass(frozen=True)
class Choice:
    """A parameter with a list of values."""

    values: tuple[Any, ...]
    probabilities: tuple[float, ...] | None = None

    def at(self, quantile: float) -> Any:
        """The value at a quantile in [0, 1) of the distribution."""
        shares = self.probabilities or (1.0,) * len(self.values)
        left = quantile * math.fsum(shares)
        for value, share in zip(self.values, shares, strict=True):
            if left < share:
                return value
            left -= share
        return self.values[-1]


@dataclass(frozen=True)
class Range:
    """A parameter with a distribution of W&B's sweep files."""

    distribution: str
    options: Mapping[str, Any]

    def at(self, quantile: float) -> float:
        """The value at a quantile in [0, 1) of the distribution."""
        name = self.distribution
        value = _QUANTILES[name.removeprefix("q_")](self.options, quantile)
        if name.startswith("q_"):
            q = self.options["q"]
            value = round(value / q) * q
            value = value if isinstance(q, int) else float(f"{value:.12g}")
        return value


Parameter = Choice | Range


def _uniform(options: Mapping[str, Any], u: float) -> float:
    return float(options["min"] + u * (options["max"] - options["min"]))


def _integer(options: Mapping[str, Any], u: float) -> float:
    return int(options["min"] + math.floor(u * (options["max"] - options["min"] + 1)))


def _log_values(options: Mapping[str, Any], u: float) -> float:
    return math.exp(math.log(options["min"]) + u * math.log(options["max"] / options["min"]))


def _normal(options: Mapping[str, Any], u: float) -> float:
    standard = NormalDist().inv_cdf(u) if u else -math.inf
    return float(options["mu"] + options["sigma"] * max(standard, -40.0))


_QUANTILES: dict[str, Quantile] = {
    "int_uniform": _integer,
    "uniform": _uniform,
    "log_uniform": lambda options, u: math.exp(_uniform(options, u)),
    "log_uniform_values": _log_values,
    "inv_log_uniform": lambda options, u: math.exp(-_uniform(options, 1 - u)),
    "inv_log_uniform_values": _log_values,
    "normal": _normal,
    "log_normal": lambda options, u: math.exp(_normal(options, u)),
}
"""Quantile functions of the distributions; the prefix ``q_`` rounds to multiples of q."""

_QUANTIZED = ("uniform", "log_uniform", "log_uniform_values", "normal", "log_normal")
_IN_OPTUNA = ("int_uniform", "uniform", "log_uniform_values")
DISTRIBUTIONS = (*_QUANTILES, *(f"q_{name}" for name in _QUANTIZED))


def read_parameter(where: str, given: Mapping[str, Any]) -> Parameter:
    """Read a parameter of a sweep file: ``value``, ``values``, or a distribution and its options.

    Args:
        where: place in the file, for messages.
        given: keys and values of the parameter.

    Raises:
        InputError: a key or distribution is unknown, a key is missing, or a value is out of range.
    """
    name = given.get("distribution") or _implied(where, given)
    if name == "constant" and "value" in given:
        check_keys(where, given, ("value", "distribution"))
        return Choice((given["value"],))
    if name in ("categorical", "categorical_w_probabilities"):
        check_keys(where, given, ("values", "probabilities", "distribution"))
        return _choice(where, given)
    if name not in DISTRIBUTIONS:
        distributions = ("constant", "categorical", *DISTRIBUTIONS)
        raise InputError(
            f"{where}.distribution: no distribution '{name}'; there are {', '.join(distributions)}"
        )
    defaults: dict[str, Any] = {"q": 1} if name.startswith("q_") else {}
    ends = ("mu", "sigma") if name.endswith("normal") else ("min", "max")
    defaults |= {"mu": 0.0, "sigma": 1.0} if name.endswith("normal") else {}
    check_keys(where, given, (*ends, "distribution", *(key for key in ("q",) if key in defaults)))
    options = defaults | {key: value for key, value in given.items() if key != "distribution"}
    for key in (*ends, *defaults):
        if key not in options:
            raise InputError(f"{where}: {name} needs '{key}'")
        _number(f"{where}.{key}", options[key], whole=name == "int_uniform")
    _check_range(where, name, options)
    return Range(name, options)


def optuna_distribution(parameter: Parameter) -> Any:
    """Convert a parameter to a distribution of Optuna; ``from_optuna`` converts its values back.

    A choice becomes a choice of texts. Distributions that Optuna has are converted directly, and all others
    to their quantile in [0, 1].
    """
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(parameter, Choice):
        return CategoricalDistribution([json.dumps(value) for value in parameter.values])
    options = parameter.options
    if parameter.distribution == "int_uniform":
        return IntDistribution(options["min"], options["max"])
    if parameter.distribution in ("uniform", "log_uniform_values"):
        return FloatDistribution(options["min"], options["max"], log=parameter.distribution != "uniform")
    return FloatDistribution(0.0, 1.0)


def size(parameter: Parameter) -> float:
    """Return the number of values of a choice or of a range of integers, and infinity for other ranges."""
    if isinstance(parameter, Choice):
        return len(parameter.values)
    options = parameter.options
    return options["max"] - options["min"] + 1 if parameter.distribution == "int_uniform" else math.inf


def to_optuna(parameter: Parameter, quantile: float) -> Any:
    """Return what Optuna would suggest at a quantile in [0, 1) of the distribution."""
    if isinstance(parameter, Choice):
        return json.dumps(parameter.at(quantile))
    return parameter.at(quantile) if parameter.distribution in _IN_OPTUNA else quantile


def from_optuna(parameter: Parameter, value: Any) -> Any:
    """Convert a suggestion of Optuna to the value of the parameter."""
    if isinstance(parameter, Choice):
        return json.loads(value)
    if parameter.distribution in _IN_OPTUNA:
        return value
    return parameter.at(min(value, math.nextafter(1.0, 0.0)))


def _implied(where: str, given: Mapping[str, Any]) -> str:
    """Return the distribution that W&B assumes for a parameter without one."""
    if "values" in given:
        return "categorical"
    if "value" in given:
        return "constant"
    if "min" in given and "max" in given:
        ends = (given["min"], given["max"])
        return "int_uniform" if all(type(end) is int for end in ends) else "uniform"
    check_keys(where, given, ("value", "values", "min", "max", "distribution", "parameters"))
    raise InputError(f"{where}: specify value, values, min and max, a distribution, or nested parameters")


def _choice(where: str, given: Mapping[str, Any]) -> Choice:
    values, shares = given.get("values"), given.get("probabilities")
    if not isinstance(values, list) or not values:
        raise InputError(f"{where}.values: expected a list of values, got {values}")
    texts = [json.dumps(value, default=str) for value in values]
    if len(set(texts)) < len(texts):
        raise InputError(f"{where}.values: {values} contains a value twice")
    if shares is None:
        return Choice(tuple(values))
    if not isinstance(shares, list) or len(shares) != len(values):
        raise InputError(
            f"{where}.probabilities: expected one for each of {len(values)} values, got {shares}"
        )
    for share in shares:
        _number(f"{where}.probabilities", share)
    if min(shares) < 0 or math.fsum(shares) <= 0:
        raise InputError(f"{where}.probabilities: {shares} must be at least 0 and not all 0")
    return Choice(tuple(values), tuple(map(float, shares)))


def _number(where: str, value: Any, *, whole: bool = False) -> None:
    kinds = (int,) if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not math.isfinite(value):
        hint = " (YAML reads 1e-3 as text: write 1.0e-3)" if isinstance(value, str) and "e" in value else ""
        raise InputError(f"{where}: expected {'an integer' if whole else 'a number'}, got {value!r}{hint}")


def _check_range(where: str, name: str, options: Mapping[str, Any]) -> None:
    if options.get("q", 1) <= 0:
        raise InputError(f"{where}.q: {options['q']} must be above 0")
    if options.get("sigma", 1) < 0:
        raise InputError(f"{where}.sigma: {options['sigma']} must be at least 0")
    if "min" in options and options["min"] >= options["max"]:
        raise InputError(f"{where}: min {options['min']} must be below max {options['max']}")
    if name.endswith("_values") and options["min"] <= 0:
        raise InputError(f"{where}.min: {options['min']} must be above 0 for {name}")
