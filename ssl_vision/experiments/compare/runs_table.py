"""``ssl-vision runs``: a table of runs, read without opening a checkpoint."""

import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ssl_vision.cli.parser import ArgumentParser
from ssl_vision.descriptions import description_of
from ssl_vision.experiments.compare.keys import check_known, full_key, is_metric, key_value, matches, order
from ssl_vision.progress import duration
from ssl_vision.runs.registry import Run, find_runs
from ssl_vision.tables import aligned

_KNN = description_of("val/knn_top1")

_FACTS: dict[str, Callable[[Run], Any]] = {
    "run": lambda run: str(run.folder.path),
    "status": lambda run: run.status,
    "epoch": lambda run: run.epoch,
    "time": lambda run: run.seconds,
    "knn": lambda run: run.last(_KNN.logged_name),
    "knn_split": lambda run: None if run.last(_KNN.logged_name) is None else run.validated_on,
}
"""Columns that are neither settings nor metrics."""

_COLUMNS = ("run", "status", "objective", "data", "seed", "epoch", "knn", "knn_split", "time")
_LEFT_ALIGNED = ("run", "status", "objective", "data")


def run(args: Sequence[str]) -> None:
    """List runs: status, objective, completed epochs, last validation kNN accuracy (%), its images, and time.

    Reads only config.yaml, metrics.csv and times.csv of each run directory at or below the paths, and
    evaluation.json if asked for. A run is *running* while a process trains it, *finished* after all its
    epochs, and *stopped* otherwise. A run whose config or log is damaged is *unreadable*, and a line on
    stderr says why. A key is one of run, status, epoch, time, knn, knn_split, objective, data, seed, epochs,
    batch_size; a key of config.yaml, such as model.objective.temperature, with or without init_args, or its
    last part; or the name of a metric, such as val/rankme or test/linear_top1.

    Raises:
        InputError: There is no run, or no run has one of the keys.
    """
    parser = ArgumentParser(prog="ssl-vision runs", description=run.__doc__)
    parser.add_argument(
        "paths", nargs="*", type=str, help="Run directories, or directories of them (default: runs)."
    )
    parser.add_argument(
        "--where",
        action="append",
        type=str,
        default=[],
        help="KEY=VALUE: list only runs with this setting; may be repeated.",
    )
    parser.add_argument(
        "--sort", type=str | None, default=None, help="Key to sort by (default: the directory)."
    )
    parser.add_argument("--descending", action="store_true", help="Sort in descending order.")
    parser.add_argument(
        "--columns", nargs="+", type=str, default=[], help="Keys to show instead of the usual columns."
    )
    parser.add_argument(
        "--json", action="store_true", help="Print JSON, with times in seconds and accuracies from 0 to 1."
    )
    options = parser.parse_args(list(args))
    print(_listing(options))


def _listing(options: Any) -> str:
    """Return the table as text.

    Raises:
        InputError: There is no run, or no run has one of the keys.
    """
    columns = [key for text in options.columns for key in text.split(",")] or list(_COLUMNS)
    filters = [key_value("--where", text) for text in options.where]
    others = [key for key, _ in filters] + ([options.sort] if options.sort else [])
    keys = list(dict.fromkeys([*columns, *others]))
    runs = find_runs(options.paths or ["runs"])
    undamaged = [run for run in runs if run.damage is None]
    names = {key: key if key in _FACTS else full_key(key, undamaged) for key in keys}
    rows = [_row(run, names) for run in runs]
    for key in keys:
        if key not in _FACTS and all(row[key] is None for row in rows):
            check_known(names[key], undamaged, others=tuple(_FACTS))
    rows = [row for row in rows if all(matches(row[key], value) for key, value in filters)]
    if options.sort:
        key = options.sort
        rows.sort(key=lambda row: order(_plain(row[key])), reverse=options.descending)
        rows.sort(key=lambda row: _plain(row[key]) is None)
    elif options.descending:
        rows.reverse()
    rows = [{key: row[key] for key in columns} for row in rows]
    if options.json:
        plain = [{key: _plain(value) for key, value in row.items()} for row in rows]
        return json.dumps(plain, indent=1)
    if not rows:
        return f"none of {len(runs)} runs has {' and '.join(options.where)}"
    left = next((i for i, key in enumerate(columns) if key not in _LEFT_ALIGNED), len(columns))
    titles = {"knn": _KNN.heading, "knn_split": f"{_KNN.title} measured on"}
    heads = [titles.get(key, key) for key in columns]
    lines = [[_cell(key, value) for key, value in row.items()] for row in rows]
    return aligned([heads, *lines], left=max(1, left))


def _row(run: Run, names: Mapping[str, str]) -> dict[str, Any]:
    """The values of a run by the keys as they were given, of which ``names`` has the full names."""
    if run.damage is not None:
        print(f"ssl-vision runs: {run.damage}", file=sys.stderr)
        return {key: {"run": str(run.folder.path), "status": "unreadable"}.get(key) for key in names}
    return {key: _value(run, name) for key, name in names.items()}


def _value(run: Run, key: str) -> Any:
    if key in _FACTS:
        return _FACTS[key](run)
    return run.last(key) if is_metric(key) else run.setting(key)


def _cell(key: str, value: Any) -> str:
    if value is None:
        return ""
    if key == "time":
        return duration(value)
    if not isinstance(value, float):
        return str(value)
    return (_KNN if key == "knn" else description_of(key)).shown(value, plain=".4g")


def _plain(value: Any) -> Any:
    """The value for JSON, which has neither NaN nor infinities."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
