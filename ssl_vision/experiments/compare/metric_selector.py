"""Select the value by which runs are compared, and the conditions under which it was measured."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from ssl_vision.cli.suggestions import closest_match
from ssl_vision.descriptions import MetricDescription, description_of, layer_of
from ssl_vision.errors import InputError
from ssl_vision.experiments.compare.keys import is_metric, shown
from ssl_vision.runs.config import DATA_OF_ROOT
from ssl_vision.runs.evaluation_file import OUTCOME, TEST_PREFIXES, chosen_fields, preferred
from ssl_vision.runs.registry import Run

BASELINES = {"untrained network": "untrained", "raw pixels": "pixels"}
"""Titles of the baselines in tables, and their ``features`` in rows of evaluation.json."""


@dataclass(frozen=True, kw_only=True)
class MetricSelector:
    """Select one value of each run.

    Args:
        metric: name of a metric in evaluation.json; with a slash, such as ``val/knn_top1``, the last value of
            that metric in metrics.csv.
        layer: layer of the row in evaluation.json.
        protocol: protocol of the row.
        row: further fields that the row must have, for a protocol with several rows of one metric.
    """

    metric: str = "knn_top1"
    layer: str = "backbone"
    protocol: str = "macl"
    row: Mapping[str, str] = field(default_factory=dict)

    def description(self, rows: Sequence[Mapping[str, Any]] = ()) -> MetricDescription:
        """Description of the metric.

        Args:
            rows: selected rows of evaluation.json, which describe a metric whose module is not imported.

        Raises:
            InputError: The description in a row is invalid.
        """
        try:
            return description_of(self.metric, stored=rows[0] if rows else None)
        except ValueError as error:
            raise InputError(f"{self.metric} in evaluation.json: {error}") from error

    def select(self, run: Run) -> dict[str, Any]:
        """The value of a run and the conditions under which it was measured.

        Raises:
            InputError: The run has no such value, has several, or was evaluated at an earlier epoch.
        """
        if is_metric(self.metric):
            curve = run.curve(self.metric)
            if not curve:
                hint = ""
                if self.metric.startswith(TEST_PREFIXES):
                    bare = layer_of(self.metric.rpartition("/")[2])[0]
                    hint = (
                        f"; give --metric {bare}, --protocol and --layer for a value of ssl-vision evaluate"
                    )
                raise InputError(f"{run.folder.path} has no {self.metric} in its metrics.csv{hint}")
            images = {"images": run.validated_on} if self.metric.startswith("val/") else {}
            return {"value": curve[-1][2], "epoch": curve[-1][1] + 1, **images}
        rows = [row for row in run.evaluation if row.get("features") == "trained"]
        required = {"protocol": self.protocol, "layer": self.layer, "metric": self.metric, **self.row}
        for key, value in required.items():
            present = list(dict.fromkeys(str(row[key]) for row in rows if key in row))
            rows = [row for row in rows if str(row.get(key)) == value]
            if rows:
                continue
            place = shlex.quote(str(run.folder.path))
            if key == "protocol":
                raise InputError(
                    f"{place} is not evaluated under the protocol {value}: "
                    f"ssl-vision evaluate {place} --protocol {value}"
                )
            raise InputError(
                f"{place} has no {key} '{value}' in its evaluation.json{closest_match(value, present)}"
            )
        rows = preferred(rows, run.config)
        rows = [row for row in rows if row.get("epoch") == run.epoch] or rows[-1:]
        rows = [row for place, row in enumerate(rows) if row not in rows[:place]]
        if len(rows) > 1:
            choices = _differing_fields(rows)
            options = (
                " or ".join(f"--row {shlex.quote(f'{key}={value}')}" for value in values)
                for key, values in choices.items()
            )
            raise InputError(
                f"{run.folder.path} has {len(rows)} rows of {self.metric}: "
                f"choose one with {', and '.join(options)}"
            )
        if rows[0].get("epoch") != run.epoch:
            raise InputError(
                f"{run.folder.path} was evaluated at epoch {rows[0].get('epoch')} and has {run.epoch} now: "
                f"ssl-vision evaluate {shlex.quote(str(run.folder.path))} --protocol {self.protocol}"
            )
        row = dict(rows[0])
        if row.get("data") not in DATA_OF_ROOT:
            row.pop("root", None)
        return row

    def baselines(self, runs: Sequence[Run], conditions: Mapping[str, Any]) -> dict[str, float]:
        """Mean of each baseline over the runs that measured it under the given conditions."""
        alike = {key: conditions[key] for key in conditions if key not in ("features", "layer", "epoch")}
        rows = [] if is_metric(self.metric) else [row for run in runs for row in run.evaluation]
        rows = [row for row in rows if alike.items() <= row.items()]
        values = {
            title: [row["value"] for row in rows if row.get("features") == features]
            for title, features in BASELINES.items()
        }
        return {title: fmean(each) for title, each in values.items() if each}


def shared_conditions(runs: Sequence[Run], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The conditions under which the selected values were measured.

    Raises:
        InputError: Two runs were measured under different conditions.
    """
    fields = [_conditions(row) for row in rows]
    first = fields[0]
    for run, other in zip(runs, fields, strict=True):
        for key in sorted(other.keys() | first.keys()):
            if other.get(key) != first.get(key):
                raise InputError(
                    f"{runs[0].folder.path} and {run.folder.path} were evaluated under different conditions: "
                    f"{key} is {shown(first.get(key))} and {shown(other.get(key))}. Evaluate both alike"
                )
    return first


def _conditions(row: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a row that state how its value was measured."""
    free = OUTCOME | {"seed"} | chosen_fields(row.get("metric"))
    return {key: value for key, value in row.items() if key not in free}


def _differing_fields(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Fields in which the rows differ, and their values."""
    keys = dict.fromkeys(key for row in rows for key in _conditions(row))
    values = {key: list(dict.fromkeys(str(row[key]) for row in rows if key in row)) for key in keys}
    return {key: options for key, options in values.items() if len({row.get(key) for row in rows}) > 1}
