"""Trials of a sweep file, with their parameters and the names of their run directories."""

import hashlib
import itertools
import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ssl_vision.runs.settings import class_name
from ssl_vision.sweeps.parameters import Choice
from ssl_vision.sweeps.sweep_file import SweepFile

_UNSAFE = re.compile(r"[^A-Za-z0-9_.,=+-]+")
_CLASS = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_LONGEST = 120
_DRAWS = 1000


@dataclass(frozen=True)
class Trial:
    """One run of a sweep."""

    name: str
    parameters: Mapping[str, Any]
    """Values by option; the value of a nested block is a dict."""
    varied: Mapping[str, Any]
    """Parameters that differ between trials, by short names for tables."""


def trials_of(file: SweepFile, *, cap: int | None, seed: int) -> list[Trial]:
    """Return the trials that are known before training: all of a grid or random search, none of bayes.

    A random trial depends only on (seed, number), so a higher cap adds trials to those of a lower cap.
    Repeated trials are drawn again; after a thousand repetitions in a row the search ends.
    """
    if file.method == "grid":
        return list(itertools.islice(_grid(file), cap))
    if file.method == "bayes":
        return []
    trials: dict[str, Trial] = {}
    number = repeated = 0
    while len(trials) < (cap or 0) and repeated < _DRAWS:
        values = {
            path: parameter.at(random.Random(f"{seed}/{number}/{'.'.join(path)}").random())
            for path, parameter in file.parameters.items()
        }
        trial = named_trial(file, values)
        repeated = repeated + 1 if trial.name in trials else 0
        trials.setdefault(trial.name, trial)
        number += 1
    return list(trials.values())


def named_trial(file: SweepFile, values: Mapping[tuple[str, ...], Any]) -> Trial:
    """Create the trial with these values, given by the paths of the parameters."""
    short = short_names([".".join(path) for path in file.varied])
    varied = {short[".".join(path)]: values[path] for path in file.varied}
    parameters: dict[str, Any] = {}
    for path, value in values.items():
        place = parameters
        for part in path[:-1]:
            place = place.setdefault(part, {})
        place[path[-1]] = value
    return Trial(_folder_name(varied), parameters, varied)


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


def short_value(value: Any) -> str:
    """Shorten a value: four digits of a number, the last part of a class path."""
    if isinstance(value, float):
        return repr(value) if len(repr(value)) <= 6 else f"{value:.4g}"
    if isinstance(value, Mapping) and "class_path" in value:
        return class_name(value)
    if isinstance(value, str) and _CLASS.fullmatch(value):
        return value.rpartition(".")[2]
    return str(value)


def label(value: Any) -> str:
    """A value in tables and plots: as `short_value`, with the options of a class, and other texts in full."""
    if isinstance(value, Mapping) and "class_path" in value:
        options = ", ".join(f"{name} {label(each)}" for name, each in (value.get("init_args") or {}).items())
        return f"{class_name(value)} ({options})" if options else class_name(value)
    if isinstance(value, str) and not value.rpartition(".")[2][:1].isupper():
        return value
    return short_value(value)


def _grid(file: SweepFile) -> Iterator[Trial]:
    paths = list(file.parameters)
    values = [parameter.values for parameter in file.parameters.values() if isinstance(parameter, Choice)]
    for combination in itertools.product(*values):
        yield named_trial(file, dict(zip(paths, combination, strict=True)))


def _folder_name(varied: Mapping[str, Any]) -> str:
    """Return ``name=value,name=value`` in safe characters, with a hash if values are shortened."""
    plain = ",".join(f"{name}={short_value(value)}" for name, value in varied.items()) or "cell"
    safe = _UNSAFE.sub("_", plain)
    exact = ",".join(f"{name}={value}" for name, value in varied.items()) or "cell"
    if safe != exact or len(safe) > _LONGEST:
        text = json.dumps(dict(varied), sort_keys=True, default=str)
        safe = f"{safe[:_LONGEST]}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"
    return safe.lstrip(".-")
