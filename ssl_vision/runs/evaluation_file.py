"""Reading, merging and selecting the rows of evaluation.json."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ssl_vision.errors import InputError
from ssl_vision.runs.reading import read_json
from ssl_vision.runs.settings import class_name

Rows = list[dict[str, Any]]

_OUTCOME = {"value", "weights", "title", "unit", "direction"}


def chosen_fields(metric: object) -> set[str]:
    """Return the fields of a metric's rows that a grid search selects; other metrics have none."""
    return {"lr", "weight_decay"} if metric == "grid_top1" else set()


def read_rows(file: Path, config: Mapping[str, Any]) -> Rows:
    """Read the rows of an evaluation file; none if the file does not exist.

    Rows of version 0.1 do not name the root of their data. It is filled in from the config, because that
    version only stored measurements on the run's own data in this file.

    Args:
        file: evaluation.json, or a file of the same format.
        config: config of the run.

    Raises:
        InputError: the file was not written by ``ssl-vision evaluate``.
    """
    if not file.exists():
        return []
    rows = read_json(file)
    if not isinstance(rows, list) or not all(map(_is_row, rows)):
        raise InputError(f"{file} is not a list of rows")
    data_of_run = own_data(config)
    for row in rows:
        if row.get("data", data_of_run.get("data")) == data_of_run.get("data"):
            row |= {name: value for name, value in data_of_run.items() if name not in row}
    return rows


def _is_row(row: Any) -> bool:
    number = isinstance(row, dict) and isinstance(row.get("value"), (int, float))
    return number and isinstance(row.get("metric"), str)


def own_data(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the ``data``, ``root`` and ``folder`` fields of rows measured on a run's own data set."""
    data = config.get("data")
    if not isinstance(data, Mapping) or "class_path" not in data:
        return {}
    options = data.get("init_args") or {}
    paths = {"root": options.get("root"), "folder": options.get("test")}
    return {"data": class_name(data)} | {k: v for k, v in paths.items() if v}


def merged(before: Iterable[Mapping[str, Any]], new: Sequence[Mapping[str, Any]]) -> Rows:
    """Append new rows to existing ones, and drop the existing rows that they replace.

    A new row replaces one of the same measurement, that is, with equal fields apart from the value and what a
    grid search selected. ``options`` are not compared with rows of version 0.1, which do not have them. Rows
    of a trained network are also dropped if the weights of their epoch have changed.
    """
    exact, short = {_key(row) for row in new}, {_key(row, "options") for row in new}
    weights = {row["epoch"]: row["weights"] for row in new if row.get("features") == "trained"}
    unchanged = [
        dict(row)
        for row in before
        if _key(row) not in (exact if "options" in row else exact | short) and not _stale(row, weights)
    ]
    return [*unchanged, *map(dict, new)]


def preferred(rows: Sequence[dict[str, Any]], config: Mapping[str, Any]) -> Rows:
    """Select the rows of one data set, preferably of the run's own data and of its test split.

    Otherwise, rows of the same data class at another path are preferred to those of the first data set.
    """

    def distance(row: Mapping[str, Any]) -> tuple[Any, ...]:
        data_of_run = own_data(config)
        differs = tuple(row.get(name) != data_of_run.get(name) for name in ("data", "root", "folder"))
        return (*differs, row.get("split") != "test", row.get("settings") is not None)

    def place(row: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(row.get(name) for name in ("data", "root", "folder", "split", "settings"))

    if not rows:
        return []
    best = place(min(rows, key=distance))
    return [row for row in rows if place(row) == best]


def _stale(row: Mapping[str, Any], weights: Mapping[int, str]) -> bool:
    """Return True if the weights of a row's epoch have changed; rows of version 0.1 do not record weights."""
    if row.get("features") != "trained" or "weights" not in row or row.get("epoch") not in weights:
        return False
    return bool(row["weights"] != weights[row["epoch"]])


def _key(row: Mapping[str, Any], *without: str) -> frozenset[tuple[str, Any]]:
    left_out = _OUTCOME | set(without) | chosen_fields(row.get("metric"))
    return frozenset((name, str(value)) for name, value in row.items() if name not in left_out)
