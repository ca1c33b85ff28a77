"""Tables of a paper: published numbers with their runs and measurements."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ssl_vision.errors import InputError

Options = dict[str, str]
"""Options of ``ssl-vision fit`` by their dotted names; ``config`` is a config file."""


@dataclass(frozen=True)
class TableMetric:
    """A metric of the paper, and how it is measured."""

    name: str
    unit: str
    """``percent`` or ``plain``."""
    fields: Options
    """Fields of the row of evaluation.json: ``protocol``, ``metric``, ``layer`` and others."""

    @property
    def scale(self) -> float:
        """Factor from the unit of the evaluation to that of the paper."""
        return 100.0 if self.unit == "percent" else 1.0

    @property
    def digits(self) -> int:
        """Number of printed decimals."""
        return 2 if self.unit == "percent" else 3


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
class SmokeVariant:
    """The scaled-down version of the paper's runs."""

    says: str
    options: Options
    instead: Mapping[str, Options]
    """Replacements of the paper's values, by option."""

    def of(self, options: Options) -> Options:
        """Return the options of the scaled-down run."""
        scaled = {key: self.instead.get(key, {}).get(value, value) for key, value in options.items()}
        return scaled | self.options


@dataclass(frozen=True)
class Paper:
    """The tables of a paper or a repository."""

    name: str
    title: str
    source: str
    notes: tuple[str, ...]
    metrics: Mapping[str, TableMetric]
    tables: Mapping[str, Table]
    small: SmokeVariant | None

    @property
    def protocols(self) -> tuple[str, ...]:
        """Protocols of ``ssl-vision evaluate`` for all metrics."""
        return tuple(dict.fromkeys(metric.fields["protocol"] for metric in self.metrics.values()))


def published_number(text: str) -> float:
    """Parse ``83.2`` or ``83.2 ± 0.2``."""
    return float(text.split("±")[0])


def extended(cells: Iterable[TableCell], extra: Options) -> list[TableCell]:
    """Add options to every run of the cells; their names do not change.

    Raises:
        InputError: the paper file sets one of the options.
    """
    changed = []
    for cell in cells:
        if taken := sorted(set(extra) & set(cell.options)):
            key = taken[0]
            raise InputError(f"--{key} {extra[key]}: the paper file sets this option to {cell.options[key]}")
        changed.append(replace(cell, options=ordered(cell.options | extra)) if cell.name else cell)
    return changed


def ordered(options: Options) -> Options:
    """Sort options as ``fit`` requires: the config file first, and a class before its options."""
    return dict(sorted(options.items(), key=lambda item: (item[0] != "config", item[0])))
