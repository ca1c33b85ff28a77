"""Reading, merging and selecting the rows of evaluation.json."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ssl_vision.errors import InputError
from ssl_vision.runs.reading import read_json
from ssl_vision.runs.settings import class_name

Rows = list[dict[str, Any]]

_OUTCOME = {"value", "recall", "weights", "title", "unit", "direction"}


def chosen_fields(metric: object) -> set[str]:
    """Return the fields of a metric's rows that a grid search selects; other metrics have none."""
    return {"lr", "weight_decay"} if metric == "grid_top1" else set()


def read_rows(file: Path) -> Rows:
    """Read the rows of an evaluation file; none if the file does not exist.

    Raises:
        InputError: the file was not written by ``ssl-vision evaluate``.
    """
    if not file.exists():
        return []
    rows = read_json(file)
    if not isinstance(rows, list) or not all(map(_is_row, rows)):
        raise InputError(f"{file} is not a list of rows")
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
    grid search selected. Rows of a trained network are also dropped if the weights of their epoch have
    changed.
    """
    replaced = {_key(row) for row in new}
    weights = {row["epoch"]: row["weights"] for row in new if row.get("features") == "trained"}

    def stale(row: Mapping[str, Any]) -> bool:
        current = weights.get(row.get("epoch"))
        return row.get("features") == "trained" and current not in (None, row.get("weights"))

    return [*(dict(row) for row in before if _key(row) not in replaced and not stale(row)), *map(dict, new)]


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


def _key(row: Mapping[str, Any]) -> frozenset[tuple[str, Any]]:
    left_out = _OUTCOME | chosen_fields(row.get("metric"))
    return frozenset((name, str(value)) for name, value in row.items() if name not in left_out)
