"""Rows of results with the conditions of each measurement, as JSON and as tables."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

from ssl_vision.descriptions import MetricDescription, description_of
from ssl_vision.runs.evaluation_file import Variant, stated_differences, variant_of

_Column = tuple[str, Variant]


@dataclass(frozen=True)
class Row:
    """A measured number.

    ``conditions`` states how it was measured, as far as that applies: ``bank`` (labelled split in which kNN
    searches or on which a classifier is trained), ``k``, ``temperature``, ``distance``, ``vote``,
    ``augmentation``, ``labels`` (share of the labelled training images), ``lr``, ``weight_decay``,
    ``options`` (further training options); of the data ``root``, ``folder`` and ``settings`` (options that
    differ from the run's config); ``title``, ``unit`` and ``direction`` of a metric that is described outside
    this package; and what a measurement of your own adds. In evaluation.json, conditions are keys of the row.

    A metric whose name ends in ``_top1`` is an accuracy. Its conditions contain ``test_images`` and
    ``train_images``, the numbers of labelled images, and ``chance``, the share of the most frequent class
    among the former, and evaluation.json has the ends ``low`` and ``high`` of its `interval`.
    """

    features: str
    """``trained``, ``untrained`` (the same network before training), ``pixels`` or a name of ``--beside``."""
    layer: str
    """``backbone``, ``hidden``, ``projector`` or ``raw``."""
    metric: str
    value: float
    """Accuracies as fractions of 1."""
    split: str
    """Split on which it is measured; for kNN and linear, the split that is classified."""
    data: str | None = None
    """Class of the data set."""
    protocol: str | None = None
    epoch: int = 0
    seed: int = 0
    weights: str | None = None
    """The first digits of a hash of the network."""
    conditions: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Self:
        """Return a row of evaluation.json.

        Raises:
            TypeError: A column is missing.
        """
        names = {each.name for each in fields(cls)} - {"conditions"}
        columns = {key: value for key, value in stored.items() if key in names}
        others = stored.keys() - names - {"low", "high"}
        return cls(**columns, conditions={key: stored[key] for key in stored if key in others})

    def as_dict(self) -> dict[str, Any]:
        """The columns and conditions that apply, as in evaluation.json."""
        both = {**vars(self), **self.conditions, **vars(self)}  # columns first, and never overwritten
        if self.interval:
            both["low"], both["high"] = self.interval
        return {key: value for key, value in both.items() if key != "conditions" and value is not None}

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % interval of an accuracy over many test sets of this size, after Wilson (1927)."""
        if not self.metric.endswith("_top1") or "test_images" not in self.conditions:
            return None
        z, n = 1.959964, self.conditions["test_images"]
        centre = (self.value + z**2 / (2 * n)) / (1 + z**2 / n)
        half = z / (1 + z**2 / n) * math.sqrt(self.value * (1 - self.value) / n + z**2 / (4 * n**2))
        return centre - half, centre + half

    @property
    def text(self) -> str:
        """The value as a table shows it, with half the width of its interval."""
        if not self.interval:
            return self.description.shown(self.value)
        low, high = self.interval
        return f"{self.description.shown(self.value)} ± {self.description.shown((high - low) / 2)}"

    @property
    def description(self) -> MetricDescription:
        """Description of the metric, from the row itself where the metric's module is not imported."""
        return description_of(self.metric, stored=self.as_dict())


def table(rows: Sequence[Row]) -> list[list[str]]:
    """Return the cells of a table, headings first; empty if no metric belongs in a table.

    It has a line for each (features, layer), a line with the accuracy of chance, and a column for each
    metric. A metric that was measured in several ways has a column for each, and the headings state the
    differences.
    """
    rows = [row for row in rows if "table" in row.description.sections]
    if not rows:
        return []
    about = {row.metric: row.description for row in rows}
    order = sorted(about, key=lambda metric: about[metric].order)
    columns = sorted(dict.fromkeys(map(_column, rows)), key=lambda column: order.index(column[0]))
    cells = {(row.features, row.layer, _column(row)): row.text for row in rows}
    names = list(dict.fromkeys((row.features, row.layer) for row in rows))
    lines = [["", *(_heading(about[column[0]].heading, column, columns) for column in columns)]]
    for features, layer in names:
        values = [cells.get((features, layer, column), "") for column in columns]
        lines.append([_name(features, layer), *values])
    chances = {_column(row): row.description.shown(row.conditions.get("chance", math.nan)) for row in rows}
    if any("chance" in row.conditions for row in rows):
        lines.append(["chance", *(chances[column].replace("nan", "") for column in columns)])
    return lines


def aligned(lines: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """Format rows of cells as text, with ``left`` left-aligned and then right-aligned columns."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if i < left else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _column(row: Row) -> _Column:
    """Return the metric and the variant, which distinguish the columns."""
    texts = {name: value if isinstance(value, str) else f"{value:g}" for name, value in row.as_dict().items()}
    return row.metric, variant_of(texts)


def _heading(name: str, column: _Column, columns: Sequence[_Column]) -> str:
    metric, variant = column
    same = [each for other, each in columns if other == metric]
    return " ".join([name, *stated_differences(variant, same)])


def _name(features: str, layer: str) -> str:
    return "raw pixels" if features == "pixels" else f"{features} {layer}"
