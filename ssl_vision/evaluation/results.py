"""The results of an evaluation: rows with their conditions, their tables, and their files."""

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from html import escape
from pathlib import Path
from typing import Any, Self

from torch import Tensor

from ssl_vision.descriptions import MetricDescription, description_of
from ssl_vision.errors import InputError
from ssl_vision.evaluation.measurement import KNN, Classifier, labels_text
from ssl_vision.evaluation.protocol import Protocol
from ssl_vision.metrics.accuracy_difference import AccuracyDifference, wilson_interval
from ssl_vision.runs.evaluation_file import Variant, stated_differences, variant_of
from ssl_vision.runs.files import write_text
from ssl_vision.tables import aligned, html_table

START = "start"
"""Name of the rows of the weights from which training started."""

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
    among the former, and evaluation.json has the ends ``low`` and ``high`` of its `interval`. If training
    started from given weights, ``gain``, ``gain_low`` and ``gain_high`` are its `gain`.
    """

    features: str
    """``trained``, ``start`` (given weights from which training started), ``untrained`` (random weights),
    ``pixels`` or a name of ``--other``."""
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
    correct: Tensor | None = field(default=None, compare=False, repr=False)
    """Which labelled test images are classified correctly; None for a row of a file."""

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Self:
        """Return a row of evaluation.json.

        Raises:
            TypeError: A column is missing.
        """
        names = {each.name for each in fields(cls)} - {"conditions", "correct"}
        columns = {key: value for key, value in stored.items() if key in names}
        others = stored.keys() - names - {"low", "high"}
        return cls(**columns, conditions={key: stored[key] for key in stored if key in others})

    def as_dict(self) -> dict[str, Any]:
        """The columns and conditions that apply, as in evaluation.json."""
        columns = {key: value for key, value in vars(self).items() if key not in ("conditions", "correct")}
        both = {**columns, **self.conditions, **columns}  # columns first, and never overwritten
        if self.interval:
            both["low"], both["high"] = self.interval
        return {key: value for key, value in both.items() if value is not None}

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % interval of an accuracy over many test sets of this size; see `wilson_interval`."""
        if not self.metric.endswith("_top1") or "test_images" not in self.conditions:
            return None
        return wilson_interval(self.value, self.conditions["test_images"])

    @property
    def gain(self) -> AccuracyDifference | None:
        """The accuracy minus that of the weights from which training started; None without them."""
        if "gain" not in self.conditions:
            return None
        names = ("gain", "gain_low", "gain_high", "test_images")
        return AccuracyDifference(*(self.conditions[name] for name in names))

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


def with_gains(rows: Sequence[Row]) -> list[Row]:
    """Add to each accuracy of the trained network its `Row.gain`, if the start was measured likewise."""

    def place(row: Row) -> tuple[Any, ...]:
        return row.protocol, row.layer, *_column(row)

    starts = {place(row): row.correct for row in rows if row.features == START}
    result = []
    for row in rows:
        start = starts.get(place(row)) if row.features == "trained" else None
        if start is not None and row.correct is not None:
            gain = AccuracyDifference.of(row.correct, start)
            conditions = {"gain": gain.value, "gain_low": gain.low, "gain_high": gain.high}
            row = dataclasses.replace(row, conditions={**row.conditions, **conditions})
        result.append(row)
    return result


def verdicts(rows: Sequence[Row]) -> list[str]:
    """State for each accuracy of the trained network whether training improved its initial weights."""
    heads, *_ = table(rows) or [[""]]
    titles = dict(zip(_columns(rows), heads[1:], strict=True))
    return [
        f"trained − {START}, {titles[_column(row)]}: {row.gain}: {row.gain.verdict}"
        for row in rows
        if row.gain is not None and _column(row) in titles
    ]


def table(rows: Sequence[Row]) -> list[list[str]]:
    """Return the cells of a table, headings first; empty if no metric belongs in a table.

    It has a line for each (features, layer), a line with the accuracy of chance, and a column for each
    metric. A metric that was measured in several ways has a column for each, and the headings state the
    differences.
    """
    columns = _columns(rows)
    if not columns:
        return []
    rows = [row for row in rows if "table" in row.description.sections]
    about = {row.metric: row.description for row in rows}
    cells = {(row.features, row.layer, _column(row)): row.text for row in rows}
    names = list(dict.fromkeys((row.features, row.layer) for row in rows))
    lines = [[""]]
    for metric, variant in columns:
        differences = stated_differences(variant, [other for name, other in columns if name == metric])
        lines[0].append(" ".join([about[metric].heading, *differences]))
    for features, layer in names:
        values = [cells.get((features, layer, column), "") for column in columns]
        lines.append([_name(features, layer), *values])
    chance_of = {_column(row): row.conditions["chance"] for row in rows if "chance" in row.conditions}
    if chance_of:
        shown = {column: about[column[0]].shown(value) for column, value in chance_of.items()}
        lines.append(["chance", *(shown.get(column, "") for column in columns)])
    return lines


def _columns(rows: Sequence[Row]) -> list[_Column]:
    """Return the columns of a table in their order."""
    shown = {_column(row): row.description for row in rows if "table" in row.description.sections}
    return sorted(shown, key=lambda column: shown[column].order)


def _column(row: Row) -> _Column:
    """Return the metric and the variant, which distinguish the columns."""
    stored = row.as_dict().items()
    texts = {name: f"{value:g}" if isinstance(value, float) else value for name, value in stored}
    return row.metric, variant_of(texts)


def _name(features: str, layer: str) -> str:
    return "raw pixels" if features == "pixels" else f"{features} {layer}"


@dataclass(frozen=True, repr=False)
class Evaluation:
    """The result of `ssl_vision.evaluate`: a table for each protocol, printed or displayed in a notebook.

    Args:
        rows: all measured numbers, each with its protocol.
        subject: images and network that were evaluated.
        protocols: descriptions of the measurements by the name of the protocol.
        output: file that the rows are written to; None without one.
    """

    rows: tuple[Row, ...]
    subject: str
    protocols: Mapping[str, str]
    output: Path | None = None

    def value(self, metric: str, **fields: object) -> float:
        """Return the value of one metric, accuracies in [0, 1].

        Args:
            metric: name of the metric, such as ``"knn_top1"``.
            fields: other fields of `Row` that the row must have, such as ``k=20``. By default, ``features``
                is ``"trained"`` and ``layer`` is ``"backbone"``; raw pixels have ``features="pixels"`` and
                ``layer="raw"``.

        Raises:
            InputError: no row fits, or several.
        """
        fields = {"features": "trained", "layer": "backbone"} | fields | {"metric": metric}
        matches = [row.value for row in self.rows if fields.items() <= row.as_dict().items()]
        if len(matches) != 1:
            names = ", ".join(dict.fromkeys(row.metric for row in self.rows))
            wanted = ", ".join(f"{name} {value}" for name, value in fields.items())
            raise InputError(f"{len(matches)} rows have {wanted}; the metrics are {names}")
        return matches[0]

    def __str__(self) -> str:
        lines = [self.subject]
        for name, description in self.protocols.items():
            cells = table(rows := self._rows_of(name))
            lines += [f"{name}. {description}", aligned(cells) if cells else "nothing could be measured"]
            lines += verdicts(rows)
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        parts = [f"<p>{escape(self.subject)}</p>"]
        for name, description in self.protocols.items():
            parts.append(f"<p><b>{escape(name)}</b>: {escape(description)}</p>")
            if cells := table(rows := self._rows_of(name)):
                parts.append(html_table(cells))
            parts += [f"<p>{escape(verdict)}</p>" for verdict in verdicts(rows)]
        return "".join(parts)

    def _rows_of(self, protocol: str) -> list[Row]:
        return [row for row in self.rows if row.protocol == protocol]


def described_protocol(protocol: Protocol, count: int) -> str:
    """Describe the measurements in words, with k limited to the number of labelled training images.

    Measurements that differ only in their share of the labels are described together.
    """
    shares: dict[str, list[str]] = {}
    for each in protocol.measurements:
        labels = each.labels if isinstance(each, Classifier) else "all"
        if isinstance(each, KNN):
            each = dataclasses.replace(each, k=min(each.k, count))
        shares.setdefault(str(each), []).append(labels)
    parts = []
    for text, given in shares.items():
        *others, last = dict.fromkeys(given)
        parts.append(text + labels_text(" and ".join(filter(None, (", ".join(others), last)))))
    return ". ".join(filter(None, parts)) + "."


def check_output(output: str) -> None:
    """Check that a file can be written, before anything is computed.

    Raises:
        InputError: the path is empty or a directory, or its directory cannot be made or written to.
    """
    path = Path(output)
    if not output or path.is_dir():
        raise InputError(f"--output {f'{output} is a directory' if output else 'is empty'}: give a file")
    parent = next(parent for parent in path.absolute().parents if parent.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise InputError(f"--output {output}: {parent} cannot be written to")


def write_rows(result: Evaluation, rows: Sequence[Mapping[str, Any]], output: Path) -> Evaluation:
    """Write rows to a file, and return the result with its name.

    Raises:
        InputError: the file cannot be written; the result is printed before.
    """
    try:
        write_text(output, json.dumps(rows, indent=1))
    except InputError:
        print(result)
        raise
    return dataclasses.replace(result, output=output)
