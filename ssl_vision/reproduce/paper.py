"""A paper's tables: published numbers, and what each means as a run and a measurement."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ssl_vision.errors import InputError

Options = dict[str, str]
"""Of ``ssl-vision fit``, by their dotted names; ``config`` is a config file."""


@dataclass(frozen=True)
class TableMetric:
    """How a column of the paper is measured here."""

    name: str
    unit: str
    """``percent`` or ``plain``."""
    fields: Options
    """What a row of evaluation.json must hold: ``protocol``, ``metric``, ``layer`` and others."""

    @property
    def scale(self) -> float:
        """From the evaluation's unit to the paper's."""
        return 100.0 if self.unit == "percent" else 1.0

    @property
    def digits(self) -> int:
        """Decimals that are printed."""
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
    """One run of a table, once for each seed, and what the paper says of it."""

    table: str
    row: str
    column: Column
    published: Mapping[str, str]
    """By metric, as printed; metrics that the paper leaves out are absent."""
    options: Options
    name: str = ""
    """Of its run directories, without the seed: what distinguishes it from the paper's other runs."""
    reason: str = ""
    """Why there is nothing to run, if there is not."""

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
    """Row by row."""


@dataclass(frozen=True)
class SmokeVariant:
    """What a scaled-down version runs in place of the paper's runs."""

    says: str
    options: Options
    instead: Mapping[str, Options]
    """By option, other values for the paper's."""

    def of(self, options: Options) -> Options:
        """The options of the scaled-down run."""
        scaled = {key: self.instead.get(key, {}).get(value, value) for key, value in options.items()}
        return scaled | self.options


@dataclass(frozen=True)
class Paper:
    """A paper's tables, or those of a repository."""

    name: str
    title: str
    source: str
    notes: tuple[str, ...]
    metrics: Mapping[str, TableMetric]
    tables: Mapping[str, Table]
    small: SmokeVariant | None

    @property
    def protocols(self) -> tuple[str, ...]:
        """Of ``ssl-vision evaluate``."""
        return tuple(dict.fromkeys(metric.fields["protocol"] for metric in self.metrics.values()))


def published_number(text: str) -> float:
    """The number in ``83.2`` or ``83.2 ± 0.2``."""
    return float(text.split("±")[0])


def extended(cells: Iterable[TableCell], extra: Options) -> list[TableCell]:
    """The cells with more options for every run; their names stay.

    Raises:
        InputError: an option that the paper file sets.
    """
    made = []
    for cell in cells:
        if taken := sorted(set(extra) & set(cell.options)):
            key = taken[0]
            raise InputError(f"--{key} {extra[key]}: the paper file sets it, to {cell.options[key]}")
        made.append(replace(cell, options=ordered(cell.options | extra)) if cell.name else cell)
    return made


def ordered(options: Options) -> Options:
    """A class before its options, as ``fit`` wants them; the config file first."""
    return dict(sorted(options.items(), key=lambda item: (item[0] != "config", item[0])))
