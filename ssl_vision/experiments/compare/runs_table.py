"""``ssl-vision runs``: a table of runs, read without opening a checkpoint, and the keys of its columns."""

import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from ssl_vision.cli.parser import ArgumentParser
from ssl_vision.cli.suggestions import closest_match
from ssl_vision.descriptions import description_of
from ssl_vision.errors import InputError
from ssl_vision.progress import duration
from ssl_vision.runs.config import named_settings
from ssl_vision.runs.evaluation_file import TEST_PREFIXES
from ssl_vision.runs.files import read_csv
from ssl_vision.runs.registry import SHORT, Run, find_runs
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
    add_paths(parser)
    parser.add_argument(
        "--where", action="append", default=[], help="KEY=VALUE that the listed runs have; may be repeated."
    )
    parser.add_argument(
        "--sort", type=str | None, default=None, help="Key to sort by (default: the directory)."
    )
    parser.add_argument("--descending", action="store_true", help="Sort in descending order.")
    text = "Keys to show instead of the usual columns."
    parser.add_argument("--columns", nargs="+", type=str, default=[], help=text)
    text = "Print JSON, with times in seconds and accuracies from 0 to 1."
    parser.add_argument("--json", action="store_true", help=text)
    options = parser.parse_args(list(args))
    columns = [key for text in options.columns for key in text.split(",")] or list(_COLUMNS)
    every = find_runs(options.paths)
    full = {key: _known_key(key, every) for key in columns}
    runs = filtered(every, options.where)
    for damage in filter(None, (each.damage for each in every)):
        print(f"ssl-vision runs: {damage}", file=sys.stderr)
    if options.sort:
        key = _known_key(options.sort, every)
        runs.sort(key=lambda each: order(_plain(_value(each, key))), reverse=options.descending)
        runs.sort(key=lambda each: _plain(_value(each, key)) is None)
    elif options.descending:
        runs.reverse()
    rows = [{key: _value(each, name) for key, name in full.items()} for each in runs]
    if options.json:
        print(json.dumps([{key: _plain(value) for key, value in row.items()} for row in rows], indent=1))
    elif rows:
        titles = {"knn": _KNN.heading, "knn_split": f"{_KNN.title} measured on"}
        left = next((i for i, key in enumerate(full) if key not in _LEFT_ALIGNED), len(full))
        lines = [[_cell(key, value) for key, value in row.items()] for row in rows]
        print(aligned([[titles.get(key, key) for key in full], *lines], left=max(1, left)))
    else:
        print(f"none of {len(every)} runs has {' and '.join(options.where)}")


def add_paths(parser: ArgumentParser) -> None:
    """Add the argument with the directories of the runs."""
    parser.add_argument("paths", nargs="*", default=["runs"], help="Run directories, or directories of them.")


def full_key(key: str, runs: Sequence[Run], *, others: Sequence[str] = ()) -> str:
    """Complete the name of a setting, such as ``temperature`` for ``model.objective.temperature``.

    A key that a config has, a short name and a metric are returned as they are. Any other key is matched
    with the last parts of all settings. If several match, the one that differs between the runs is meant.

    Args:
        key: setting, or with a slash, metric of training or evaluation.
        runs: runs with readable configs.
        others: further valid keys, for the suggestion in the message.

    Raises:
        InputError: No run has the key, or several settings match and not exactly one of them differs; the
            message suggests the closest key or lists the settings.
    """
    if "/" in key:
        file = "evaluation.json" if key.startswith(TEST_PREFIXES) else "metrics.csv"
        known = list(dict.fromkeys(name for run in runs for name in _metrics(run) if "/" in name))
        if key in known:
            return key
    elif key == "name" or key in SHORT or any(run.setting(key) is not None for run in runs):
        return key
    else:
        settings = dict.fromkeys(name for run in runs for name, _ in named_settings(run.config))
        plain = key.replace(".init_args", "")
        similar = [name for name in settings if f".{name}".endswith(f".{plain}")]
        varying = [name for name in similar if len({str(run.setting(name)) for run in runs}) > 1]
        candidates = varying or similar
        if len(candidates) > 1:
            raise InputError(f"'{key}' is ambiguous: choose one of {', '.join(sorted(candidates))}")
        if candidates:
            return candidates[0]
        file, known = "config.yaml", [*others, *SHORT, *settings]
    raise InputError(f"no run has '{key}' in its {file}{closest_match(key, known)}")


def _metrics(run: Run) -> Iterator[str]:
    yield from read_csv(run.folder.metrics_file)[0]
    with suppress(InputError):
        yield from run.test_metrics


def _known_key(key: str, runs: Sequence[Run]) -> str:
    """Return the key of a column, completed as `full_key` does."""
    readable = [run for run in runs if run.damage is None]
    return key if key in _FACTS else full_key(key, readable, others=tuple(_FACTS))


def filtered(runs: Sequence[Run], conditions: Sequence[str]) -> list[Run]:
    """Return the runs that meet all conditions ``KEY=VALUE``.

    Numbers are compared by value, everything else as text without regard to case.

    Raises:
        InputError: A condition has another form, or no run has its key.
    """
    selected = list(runs)
    for condition in conditions:
        key, text = key_value("--where", condition)
        name = _known_key(key, runs)
        selected = [run for run in selected if _matches(_value(run, name), text)]
    return selected


def _value(run: Run, key: str) -> Any:
    if run.damage is not None:
        return {"run": str(run.folder.path), "status": "unreadable"}.get(key)
    if key in _FACTS:
        return _FACTS[key](run)
    return run.last(key) if "/" in key else run.setting(key)


def _matches(value: Any, text: str) -> bool:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        with suppress(ValueError):
            return value == float(text)
        return False
    return shown(value).lower() == text.lower()


def key_value(option: str, text: str) -> tuple[str, str]:
    """Split KEY=VALUE.

    Raises:
        InputError: The text has another form; the message names the option.
    """
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise InputError(f"{option} {text}: expected KEY=VALUE")
    return key, value


def shown(value: Any) -> str:
    """The value of a setting as in config.yaml."""
    return "null" if value is None else str(value)


def order(value: Any) -> tuple[bool, Any]:
    """Sort key that puts numbers before text."""
    number = isinstance(value, (int, float))
    return (not number, value if number else str(value))


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
