"""The value of a metric by which a run is compared, and the conditions under which it was measured."""

import shlex
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from ssl_vision.cli.suggestions import closest_match
from ssl_vision.descriptions import layer_of
from ssl_vision.errors import InputError
from ssl_vision.experiments.compare.runs_table import shown
from ssl_vision.runs.config import DATA_OF_ROOT
from ssl_vision.runs.evaluation_file import OUTCOME, TEST_PREFIXES, chosen_fields, preferred
from ssl_vision.runs.registry import Run

BASELINES = {"start": "start", "untrained network": "untrained", "raw pixels": "pixels"}
"""Titles of the baselines in tables, and their ``features`` in rows of evaluation.json."""


def logged_value(run: Run, metric: str) -> dict[str, Any]:
    """The last value of a metric in metrics.csv, and the conditions under which it was measured.

    Raises:
        InputError: The run has no such metric.
    """
    curve = run.curve(metric)
    if not curve:
        hint = ""
        if metric.startswith(TEST_PREFIXES):
            name = layer_of(metric.rpartition("/")[2])[0]
            hint = f"; give --metric {name}, --protocol and --layer for a value of ssl-vision evaluate"
        raise InputError(f"{run.folder.path} has no {metric} in its metrics.csv{hint}")
    images = {"images": run.validated_on} if metric.startswith("val/") else {}
    epoch = curve[-1][1] + 1
    earlier = {"last measured epoch": epoch} if epoch < run.epoch else {}
    return {"value": curve[-1][2], **images, **earlier}


def evaluated_row(run: Run, fields: Mapping[str, str]) -> dict[str, Any]:
    """The row of evaluation.json that has these fields.

    Raises:
        InputError: The run has no such row, has several, or was evaluated at an earlier epoch.
    """
    rows = [row for row in run.evaluation if row.get("features") == "trained"]
    place = shlex.quote(str(run.folder.path))
    evaluate = f"ssl-vision evaluate {place} --protocol {fields['protocol']}"
    for key, value in fields.items():
        present = list(dict.fromkeys(str(row[key]) for row in rows if key in row))
        rows = [row for row in rows if shown(row.get(key)) == value]
        if not (rows and present) and key == "protocol":
            raise InputError(f"{place} is not evaluated under the protocol {value}: {evaluate}")
        if not (rows and present):
            hint = closest_match(value, present) if key == "metric" else f"; available: {', '.join(present)}"
            raise InputError(f"{place} has no {key} '{value}' in its evaluation.json{hint * bool(present)}")
    rows = preferred(rows, run.config)
    rows = [row for row in rows if row.get("epoch") == run.epoch] or rows[-1:]
    rows = [row for place, row in enumerate(rows) if row not in rows[:place]]
    if len(rows) > 1:
        keys = dict.fromkeys(key for row in rows for key in _conditions(row))
        values = {key: list(dict.fromkeys(shown(row.get(key)) for row in rows)) for key in keys}
        differing = [f"{key} ({', '.join(each)})" for key, each in values.items() if len(each) > 1]
        raise InputError(
            f"{run.folder.path} has {len(rows)} rows of {fields['metric']}, which differ in "
            f"{', '.join(differing)}: choose one with --row KEY=VALUE"
        )
    if (epoch := rows[0].get("epoch")) != run.epoch:
        raise InputError(
            f"{run.folder.path} was evaluated at epoch {epoch} and has {run.epoch} now: {evaluate}"
        )
    return rows[0]


def _conditions(row: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a row that state how its value was measured; its epoch is the last one of its run."""
    free = OUTCOME | {"seed", "epoch"} | chosen_fields(row.get("metric"))
    free |= set() if row.get("data") in DATA_OF_ROOT else {"root"}
    return {key: value for key, value in row.items() if key not in free}


def shared_conditions(runs: Sequence[Run], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The conditions under which the values of all runs were measured.

    Raises:
        InputError: Two runs were measured under different conditions.
    """
    first, *others = map(_conditions, rows)
    for run, other in zip(runs[1:], others, strict=True):
        for key in sorted(other.keys() | first.keys()):
            if other.get(key) != first.get(key):
                raise InputError(
                    f"{runs[0].folder.path} and {run.folder.path} were evaluated under different conditions: "
                    f"{key} is {shown(first.get(key))} and {shown(other.get(key))}. Evaluate both alike"
                )
    return first


def baseline_means(runs: Sequence[Run], conditions: Mapping[str, Any]) -> dict[str, float]:
    """Mean of each baseline over the runs that evaluated it under the given conditions of the rows."""
    evaluated = runs if "protocol" in conditions else []
    rows = [(row, _conditions(row)) for run in evaluated for row in run.evaluation]
    values = {}
    for title, features in BASELINES.items():  # which are evaluated at the backbone only
        alike = {**conditions, "features": features, "layer": "raw" if features == "pixels" else "backbone"}
        values[title] = [row["value"] for row, measured in rows if measured == alike]
    return {title: fmean(each) for title, each in values.items() if each}
