"""Paper files: published tables, and the options of the runs behind their cells."""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from ssl_vision.cli.parser import ArgumentParser
from ssl_vision.cli.recipes import CONFIGS, find_recipe
from ssl_vision.cli.suggestions import closest_match
from ssl_vision.descriptions import description_of
from ssl_vision.errors import InputError
from ssl_vision.runs.evaluation_file import DEFAULT_PROTOCOL
from ssl_vision.runs.files import read_yaml

Options = dict[str, str]
"""Options of ``ssl-vision fit`` by their dotted names; ``config`` is a config file."""

_PROTOCOLS = CONFIGS.parent / "evaluation" / "protocols"
_NONE = ("", "-", "–")
_LONGEST_NAME = 160


@dataclass
class ColumnGroup:
    """A group of columns in a paper file.

    Args:
        at: options of the columns by their names, or values of the axis.
        axis: option that differs between the columns.
        options: options of all columns.
    """

    at: list[str] | dict[str, Options]
    axis: str | None = None
    options: Options = field(default_factory=dict)


@dataclass
class TableFile:
    """A table in a paper file.

    Args:
        title: what the table shows.
        columns: groups of columns by their names.
        values: published numbers by row and metric, one for each column.
        notes: sentences below the table.
        options: options of all runs of the table.
    """

    title: str
    columns: dict[str, ColumnGroup]
    values: dict[str, dict[str, list[str]]]
    notes: list[str] = field(default_factory=list)
    options: Options = field(default_factory=dict)


@dataclass
class ScaledDown:
    """The scaled-down version of a paper's runs.

    Args:
        says: description for the tables.
        options: options that replace those of the paper.
        instead: replacements of the paper's values, by option.
    """

    says: str
    options: Options
    instead: dict[str, Options] = field(default_factory=dict)


@dataclass
class PaperFile:
    """The content of a paper file, whose values are texts.

    Args:
        title: name of the paper.
        source: where the numbers were published.
        metrics: fields of the rows of an evaluation, by the paper's names of the metrics.
        rows: options of each row, or the reason why it cannot be run.
        tables: tables by their numbers.
        notes: sentences below every table.
        options: options of all runs.
        small: scaled-down version.
    """

    title: str
    source: str
    metrics: dict[str, dict[str, str]]
    rows: dict[str, Options | str]
    tables: dict[str, TableFile]
    notes: list[str] = field(default_factory=list)
    options: Options = field(default_factory=dict)
    small: ScaledDown | None = None


@dataclass(frozen=True)
class TableMetric:
    """A metric of the paper, and how it is measured."""

    name: str
    protocol: str
    """Name or file of the protocol."""
    fields: Options
    """Fields of the row of evaluation.json: ``protocol``, ``metric``, ``layer`` and others."""

    @property
    def percent(self) -> bool:
        """True if the metric is published in percent, as all accuracies."""
        name = self.fields["metric"]
        return name.endswith("_top1") or description_of(name).percent

    @property
    def digits(self) -> int:
        """Number of printed decimals."""
        return 2 if self.percent else 3


@dataclass(frozen=True)
class Column:
    """A column of a table, in a group of columns."""

    group: str
    name: str
    options: Options

    def __str__(self) -> str:
        return f"{self.group} {self.name}"


@dataclass(frozen=True)
class TableCell:
    """A cell of a table: a run for each seed, and the published numbers."""

    table: str
    row: str
    column: Column
    published: Mapping[str, str]
    """Published numbers by metric, as printed, without missing ones."""
    options: Options
    name: str = ""
    """Name of its run directories without the seed, unique among the paper's runs."""
    reason: str = ""
    """Reason why the cell cannot be run, if any."""

    def __str__(self) -> str:
        return f"table {self.table}: {self.row}, {self.column}"


@dataclass(frozen=True)
class Table:
    """A table of a paper."""

    name: str
    title: str
    notes: tuple[str, ...]
    columns: tuple[Column, ...]
    metrics: tuple[str, ...]
    cells: tuple[TableCell, ...]
    """Cells, row by row."""


@dataclass(frozen=True)
class Paper:
    """The tables of a paper or a repository."""

    name: str
    title: str
    source: str
    notes: tuple[str, ...]
    metrics: Mapping[str, TableMetric]
    tables: Mapping[str, Table]
    scaled_down: str = ""
    """Description of the scaled-down runs; empty for those of the paper."""

    @property
    def protocols(self) -> tuple[str, ...]:
        """Protocols of ``ssl-vision evaluate`` for all metrics."""
        return tuple(dict.fromkeys(metric.protocol for metric in self.metrics.values()))


def published_number(text: str) -> float:
    """Parse ``83.2`` or ``83.2 ± 0.2``.

    Raises:
        ValueError: it is another text.
    """
    return float(text.split("±")[0])


def in_order(options: Options) -> Options:
    """Sort options as ``fit`` requires: the config file first, and a class before its options."""
    return dict(sorted(options.items(), key=lambda item: (item[0] != "config", item[0])))


def read_paper(path: str | Path, *, small: bool = False) -> Paper:
    """Read and check a paper file. Every value is kept as text.

    Args:
        path: path of the file; config files in it are relative to the file.
        small: use the scaled-down runs.

    Raises:
        InputError: the file does not exist, is invalid, or has no scaled-down version.
    """
    path = Path(path)
    content = read_yaml(path, words=True)
    try:
        parser = ArgumentParser(prog=str(path))
        parser.add_class_arguments(PaperFile)
        file = PaperFile(**vars(parser.instantiate(parser.parse_object(content))))
        if small and file.small is None:
            raise InputError("has no small version: use --budget full")
        return _paper(path, file, file.small if small else None)
    except (InputError, ValueError) as error:
        raise InputError(f"{path}: {error}") from error


def _paper(path: Path, file: PaperFile, small: ScaledDown | None) -> Paper:
    metrics = {name: _metric(path, name, fields) for name, fields in file.metrics.items()}
    tables: dict[str, Table] = {}
    for name, table in file.tables.items():
        columns = tuple(_columns(table))
        cells = tuple(_cells(name, table, columns, path, file, small))
        used = dict.fromkeys(chain(*table.values.values()))
        tables[name] = Table(name, table.title, tuple(table.notes), columns, tuple(used), cells)
    named: dict[str, TableCell] = {}
    for cell in (cell for each in tables.values() for cell in each.cells if cell.name):
        other = named.setdefault(cell.name, cell)
        if other.options != cell.options:
            raise InputError(f"{other} and {cell} differ, but would both be named {cell.name}")
    says = small.says if small else ""
    return Paper(path.stem, file.title, file.source, tuple(file.notes), metrics, tables, says)


def _metric(path: Path, name: str, fields: dict[str, str]) -> TableMetric:
    if "metric" not in fields or "unit" in fields:
        raise InputError(f"metrics.{name}: state the metric, and no unit, which follows from the metric")
    protocol = fields.get("protocol", DEFAULT_PROTOCOL)
    if Path(protocol).suffix:
        protocol = os.path.normpath(path.parent / protocol)
    found = find_recipe(protocol, _PROTOCOLS, f"metrics.{name}.protocol")
    fields = {"features": "trained", "layer": "backbone", **fields, "protocol": found.stem}
    return TableMetric(name, protocol, fields)


def _columns(table: TableFile) -> Iterator[Column]:
    for name, group in table.columns.items():
        members = group.at
        if isinstance(members, list):
            members = {value: {group.axis: value} if group.axis else {} for value in members}
        for member, options in members.items():
            yield Column(name, member, group.options | options)


def _cells(
    name: str, table: TableFile, columns: tuple[Column, ...], path: Path, file: PaperFile,
    small: ScaledDown | None,
) -> Iterator[TableCell]:  # fmt: skip
    """Yield the cells of a table, row by row."""
    for row, lines in table.values.items():
        if row not in file.rows:
            raise InputError(f"tables.{name}.values: no row '{row}'{closest_match(row, list(file.rows))}")
        of_row = file.rows[row]
        for metric, line in lines.items():
            if metric not in file.metrics or len(line) != len(columns):
                raise InputError(
                    f"tables.{name}.values.{row}.{metric}: expected a metric with {len(columns)} values"
                )
        for number, column in enumerate(columns):
            published = {m: line[number] for m, line in lines.items() if line[number] not in _NONE}
            for value in published.values():
                published_number(value)  # raises for another text
            if isinstance(of_row, str) or not published:
                reason = of_row if isinstance(of_row, str) else "not published"
                yield TableCell(name, row, column, published, {}, reason=reason)
                continue
            options = file.options | table.options | of_row | column.options
            if "config" not in options or "trainer.max_epochs" not in options:
                raise InputError(f"tables.{name}: {row}, {column} has no config or no trainer.max_epochs")
            options, base = _scaled(options, small), _scaled(file.options, small)
            options["config"] = os.path.normpath(path.parent / options["config"])
            yield TableCell(name, row, column, published, options, name=_name(options, base))


def _scaled(options: Options, small: ScaledDown | None) -> Options:
    """Return the options of the scaled-down run if it is wanted."""
    if small is None:
        return in_order(options)
    scaled = {key: small.instead.get(key, {}).get(value, value) for key, value in options.items()}
    return in_order(scaled | small.options)


def _name(options: Options, base: Options) -> str:
    """Build a name from the config file, the objective and all options that are not common to all runs.

    A long name is cut and ends with 8 digits of its hash, because file names have at most 255 bytes.
    """
    always = ("config", "model.objective")
    parts = [Path(options["config"]).stem, options.get("model.objective", "")]
    parts += [
        f"{key.rpartition('.')[2]}{value}"
        for key, value in options.items()
        if key not in always and base.get(key) != value
    ]
    name = "-".join(re.sub(r"[^a-z0-9_.-]+", "_", part.lower()) for part in parts if part)
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[: _LONGEST_NAME - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
