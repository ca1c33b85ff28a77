"""The rows of evaluation.json: how they are read, kept, replaced and chosen."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ssl_vision.errors import InputError
from ssl_vision.runs.reading import read_json

Rows = list[dict[str, Any]]

_OUTCOME = {"value", "weights", "title", "unit", "direction"}
_CHOSEN = {"lr", "weight_decay"}
"""What a grid chooses by itself."""


def read_rows(file: Path, config: Mapping[str, Any]) -> Rows:
    """The rows of an evaluation file, none where there is no file.

    Rows that version 0.1 wrote do not name the root of their data. They are completed: that version kept only
    measurements of the run's own data in this file.

    Args:
        file: evaluation.json, or a file of the same form.
        config: of the run.

    Raises:
        InputError: the file is not what ``ssl-vision evaluate`` writes.
    """
    if not file.exists():
        return []
    found = read_json(file)
    if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
        raise InputError(f"{file} is not a list of rows")
    own = own_data(config)
    for row in found:
        if row.get("data", own.get("data")) == own.get("data"):
            row |= {name: value for name, value in own.items() if name not in row}
    return found


def own_data(config: Mapping[str, Any]) -> dict[str, str]:
    """What rows of a run's own data set have in ``data``, ``root`` and ``folder``, as far as it applies."""
    data = config.get("data")
    if not isinstance(data, Mapping) or "class_path" not in data:
        return {}
    options = data.get("init_args") or {}
    named = {"root": options.get("root"), "folder": options.get("test")}
    return {"data": str(data["class_path"]).rpartition(".")[2]} | {k: v for k, v in named.items() if v}


def merged(before: Iterable[Mapping[str, Any]], new: Sequence[Mapping[str, Any]]) -> Rows:
    """The new rows behind those of before that they do not replace.

    A row is replaced by one of the same measurement: all fields are equal but the value and what a grid
    chose. Where the row was written by version 0.1, ``options`` are unknown and not compared. Rows of a
    trained network go, too, when the same epoch now has other weights.
    """
    exact, short = {_key(row) for row in new}, {_key(row, "options") for row in new}
    weights = {row["epoch"]: row["weights"] for row in new if row.get("features") == "trained"}
    kept = [
        dict(row)
        for row in before
        if _key(row) not in (exact if "options" in row else exact | short) and not _stale(row, weights)
    ]
    return [*kept, *map(dict, new)]


def preferred(rows: Sequence[dict[str, Any]], config: Mapping[str, Any]) -> Rows:
    """The rows of one data set, in their order: the run's own where there are any, and of its test split.

    Rows of the same class at another place come next, then those of the data set that was measured first.
    """

    def distance(row: Mapping[str, Any]) -> tuple[Any, ...]:
        own = own_data(config)
        differs = tuple(row.get(name) != own.get(name) for name in ("data", "root", "folder"))
        return (*differs, row.get("split") != "test", row.get("settings") is not None)

    def place(row: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(row.get(name) for name in ("data", "root", "folder", "split", "settings"))

    if not rows:
        return []
    best = place(min(rows, key=distance))
    return [row for row in rows if place(row) == best]


def _stale(row: Mapping[str, Any], weights: Mapping[int, str]) -> bool:
    """Whether a row is of a network whose epoch now has other weights; version 0.1 did not say which."""
    if row.get("features") != "trained" or "weights" not in row or row.get("epoch") not in weights:
        return False
    return bool(row["weights"] != weights[row["epoch"]])


def _key(row: Mapping[str, Any], *without: str) -> frozenset[tuple[str, Any]]:
    left_out = _OUTCOME | set(without) | (_CHOSEN if row.get("metric") == "grid_top1" else set())
    return frozenset((name, str(value)) for name, value in row.items() if name not in left_out)
