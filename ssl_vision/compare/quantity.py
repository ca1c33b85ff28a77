"""What runs are compared by: a number of each, and everything that says how it came about."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ssl_vision.cli.suggestions import closest_match
from ssl_vision.compare.keys import is_metric, shown
from ssl_vision.descriptions import MetricDescription, description_of
from ssl_vision.errors import InputError
from ssl_vision.runs.evaluation_file import preferred
from ssl_vision.runs.registry import Run

_OF_ONE_RUN = ("value", "seed", "lr", "weight_decay", "weights", "title", "unit", "direction")
"""Fields of a row of evaluation.json that may differ between runs; the step size is chosen for each."""


@dataclass(frozen=True, kw_only=True)
class MetricSelector:
    """What is compared.

    Args:
        metric: of a row of evaluation.json; with a slash, such as ``val/knn_top1``, the last in metrics.csv.
        layer: of the row.
        protocol: of the row.
        row: other fields that the row must have, for a protocol with several rows of that metric.
    """

    metric: str = "knn_top1"
    layer: str = "backbone"
    protocol: str = "macl"
    row: Mapping[str, str] = field(default_factory=dict)

    def description(self, rows: Sequence[Mapping[str, Any]] = ()) -> MetricDescription:
        """Description of the metric.

        Args:
            rows: rows of evaluation.json, which describe a metric whose module is not imported.

        Raises:
            InputError: The description in a row is invalid.
        """
        try:
            return description_of(self.metric, stored=rows[0] if rows else None)
        except ValueError as error:
            raise InputError(f"{self.metric} in evaluation.json: {error}") from error

    def of(self, run: Run) -> dict[str, Any]:
        """The value and everything that says how it came about.

        Raises:
            InputError: the run does not have it, has several, or has it of an earlier epoch.
        """
        if is_metric(self.metric):
            curve = run.curve(self.metric)
            if not curve:
                raise InputError(f"{run.folder.path} has no {self.metric} in its metrics.csv")
            on = {"images": run.validated_on} if self.metric.startswith("val/") else {}
            return {"value": curve[-1][2], "epoch": curve[-1][1] + 1, **on}
        rows = [row for row in run.evaluation if row.get("features") == "trained"]
        wanted = {"protocol": self.protocol, "layer": self.layer, "metric": self.metric, **self.row}
        for key, value in wanted.items():
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
        if len(rows) > 1:
            choices = _different(rows)
            raise InputError(
                f"{run.folder.path} has {len(rows)} rows of {self.metric}: choose one with "
                + " ".join(f"--row {key}={'|'.join(values)}" for key, values in choices.items())
            )
        if rows[0].get("epoch") != run.epoch:
            raise InputError(
                f"{run.folder.path} was evaluated at epoch {rows[0].get('epoch')} and has {run.epoch} now: "
                f"ssl-vision evaluate {shlex.quote(str(run.folder.path))} --protocol {self.protocol}"
            )
        found = dict(rows[0])
        if found.get("data") != "ImageFolder":  # the root of any other data set says where it is, not which
            found.pop("root", None)
        return found


def common(runs: Sequence[Run], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the rows say of how their values came about, which must be the same."""
    fields = [{key: value for key, value in row.items() if key not in _OF_ONE_RUN} for row in rows]
    for run, own in zip(runs, fields, strict=True):
        for key in sorted(own.keys() | fields[0].keys()):
            if own.get(key) != fields[0].get(key):
                raise InputError(
                    f"{runs[0].folder.path} and {run.folder.path} were measured in different ways: {key} is "
                    f"{shown(fields[0].get(key))} there and {shown(own.get(key))} here: evaluate both alike"
                )
    return fields[0]


def _different(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Fields in which the rows differ, and their values."""
    keys = dict.fromkeys(key for row in rows for key in row if key not in _OF_ONE_RUN)
    values = {key: list(dict.fromkeys(str(row[key]) for row in rows if key in row)) for key in keys}
    return {key: found for key, found in values.items() if len({row.get(key) for row in rows}) > 1}
