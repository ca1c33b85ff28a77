"""The cells of a sweep: the parameters of each, and a name that is a folder's."""

import hashlib
import itertools
import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ssl_vision.sweeps.parameters import Choice
from ssl_vision.sweeps.sweep_file import SweepFile

_UNSAFE = re.compile(r"[^A-Za-z0-9_.,=+-]+")
_CLASS = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_LONGEST = 120
_DRAWS = 1000


@dataclass(frozen=True)
class Cell:
    """One run of a sweep."""

    name: str
    parameters: Mapping[str, Any]
    """Values by option; that of a nested block is a dict."""
    varied: Mapping[str, Any]
    """Those that differ between cells, by the short names that a table has room for."""


def cells_of(file: SweepFile, *, cap: int | None, seed: int) -> list[Cell]:
    """The cells that are known before any is trained: all of a grid or of a random search, none of bayes.

    A random cell is a function of (seed, number), so that a higher cap adds cells to those there are; what
    was drawn before is drawn again, and a thousand such draws in a row end the search.
    """
    if file.method == "grid":
        return list(itertools.islice(_grid(file), cap))
    if file.method == "bayes":
        return []
    found: dict[str, Cell] = {}
    number = repeated = 0
    while len(found) < (cap or 0) and repeated < _DRAWS:
        values = {
            path: parameter.at(random.Random(f"{seed}/{number}/{'.'.join(path)}").random())
            for path, parameter in file.parameters.items()
        }
        cell = named_cell(file, values)
        repeated = repeated + 1 if cell.name in found else 0
        found.setdefault(cell.name, cell)
        number += 1
    return list(found.values())


def named_cell(file: SweepFile, values: Mapping[tuple[str, ...], Any]) -> Cell:
    """The cell with these values, by the parameters' paths."""
    short = short_names([".".join(path) for path in file.varied])
    varied = {short[".".join(path)]: values[path] for path in file.varied}
    parameters: dict[str, Any] = {}
    for path, value in values.items():
        place = parameters
        for part in path[:-1]:
            place = place.setdefault(part, {})
        place[path[-1]] = value
    return Cell(_folder_name(varied), parameters, varied)


def short_names(names: Sequence[str]) -> dict[str, str]:
    """For each dotted name its shortest ending that no other one has."""
    found = {}
    for name in names:
        parts = name.split(".")
        endings = [".".join(parts[-count:]) for count in range(1, len(parts) + 1)]
        alone = (
            ending
            for ending in endings
            if not any(other != name and f".{other}".endswith(f".{ending}") for other in names)
        )
        found[name] = next(alone, name)
    return found


def short_value(value: Any) -> str:
    """A value in few characters: four digits of a number, the last part of a class's path."""
    if isinstance(value, float):
        return repr(value) if len(repr(value)) <= 6 else f"{value:.4g}"
    if isinstance(value, Mapping) and "class_path" in value:
        return str(value["class_path"]).rpartition(".")[2]
    if isinstance(value, str) and _CLASS.fullmatch(value):
        return value.rpartition(".")[2]
    return str(value)


def _grid(file: SweepFile) -> Iterator[Cell]:
    paths = list(file.parameters)
    values = [parameter.values for parameter in file.parameters.values() if isinstance(parameter, Choice)]
    for combination in itertools.product(*values):
        yield named_cell(file, dict(zip(paths, combination, strict=True)))


def _folder_name(varied: Mapping[str, Any]) -> str:
    """``name=value,name=value`` in safe characters; with a hash where it does not say all of the values."""
    plain = ",".join(f"{name}={short_value(value)}" for name, value in varied.items()) or "cell"
    safe = _UNSAFE.sub("_", plain)
    exact = ",".join(f"{name}={value}" for name, value in varied.items()) or "cell"
    if safe != exact or len(safe) > _LONGEST:
        text = json.dumps(dict(varied), sort_keys=True, default=str)
        safe = f"{safe[:_LONGEST]}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"
    return safe.lstrip(".-")
