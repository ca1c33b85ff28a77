"""Reading and checking of paper files."""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from ssl_vision.cli.suggestions import check_keys
from ssl_vision.errors import InputError
from ssl_vision.experiments.reproduce.paper import (
    Column,
    Options,
    Paper,
    SmokeVariant,
    Table,
    TableCell,
    TableMetric,
    ordered,
)
from ssl_vision.runs.files import read_yaml

_PROTOCOLS = files("ssl_vision.evaluation") / "protocols"
_NUMBER = re.compile(r"-?\d+(\.\d+)?")
_NONE = ("", "-", "–")
_LONGEST_NAME = 160


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
        return _Reader(path, small=small).paper(content)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


class _Reader:
    """Parser of the content of a paper file."""

    def __init__(self, path: Path, *, small: bool) -> None:
        self.path, self.with_small = path, small

    def paper(self, content: Any) -> Paper:
        keys = ("title", "source", "notes", "metrics", "options", "rows", "tables", "small")
        content = _section(content, "the file", keys, needed=("title", "source", "metrics", "rows", "tables"))
        metrics = {
            name: self._metric(name, entry) for name, entry in _map(content["metrics"], "metrics").items()
        }
        scaled = self._small(content["small"]) if "small" in content else None
        if self.with_small and scaled is None:
            raise InputError("has no small version: use --budget full")
        self.scaled = scaled if self.with_small else None
        self.metrics = metrics
        self.base = self._options(content.get("options", {}), "options")
        self.rows = {
            name: entry if isinstance(entry, str) else self._options(entry, f"rows.{name}")
            for name, entry in _map(content["rows"], "rows").items()
        }
        tables = {name: self._table(name, entry) for name, entry in _map(content["tables"], "tables").items()}
        self._check_names(tables)
        return Paper(
            self.path.stem, _text(content["title"], "title"), _text(content["source"], "source"),
            _texts(content.get("notes", []), "notes"), metrics, tables, self.scaled,
        )  # fmt: skip

    def _metric(self, name: str, entry: Any) -> TableMetric:
        fields = {key: _text(value, f"metrics.{name}.{key}") for key, value in _map(entry, name).items()}
        unit = fields.pop("unit", "percent")
        if unit not in ("percent", "plain"):
            raise InputError(f"metrics.{name}.unit: expected percent or plain, got {unit}")
        protocols = sorted(
            f.name.removesuffix(".yaml") for f in _PROTOCOLS.iterdir() if f.name.endswith(".yaml")
        )
        if fields.get("protocol") not in protocols or "metric" not in fields:
            raise InputError(
                f"metrics.{name}: requires a metric and one of the protocols {', '.join(protocols)}"
            )
        return TableMetric(name, unit, {"features": "trained", "layer": "backbone"} | fields)

    def _small(self, entry: Any) -> SmokeVariant:
        entry = _section(entry, "small", ("says", "options", "instead"), needed=("says", "options"))
        instead = {
            key: self._options(values, f"small.instead.{key}")
            for key, values in _map(entry.get("instead", {}), "small.instead").items()
        }
        return SmokeVariant(
            _text(entry["says"], "small.says"), self._options(entry["options"], "small"), instead
        )

    def _table(self, name: str, entry: Any) -> Table:
        where = f"tables.{name}"
        keys = ("title", "notes", "options", "columns", "values")
        entry = _section(entry, where, keys, needed=("title", "columns", "values"))
        options = self._options(entry.get("options", {}), where)
        columns = tuple(self._columns(_map(entry["columns"], where), where))
        cells, metrics = list[TableCell](), dict[str, None]()
        for row, values in _map(entry["values"], where).items():
            if row not in self.rows:
                raise InputError(f"{where}.values: unknown row {row}; the rows are {', '.join(self.rows)}")
            matrix = {
                metric: self._line(metric, line, len(columns), f"{where}.values.{row}.{metric}")
                for metric, line in _map(values, f"{where}.values.{row}").items()
            }
            metrics |= dict.fromkeys(matrix)
            for number, column in enumerate(columns):
                printed = {m: line[number] for m, line in matrix.items() if line[number] not in _NONE}
                cells.append(self._cell(name, row, column, printed, options))
        title = _text(entry["title"], where)
        return Table(
            name, title, _texts(entry.get("notes", []), where), columns, tuple(metrics), tuple(cells)
        )

    def _columns(self, groups: Mapping[str, Any], where: str) -> Iterator[Column]:
        for group, entry in groups.items():
            place = f"{where}.columns.{group}"
            entry = _section(entry, place, ("options", "axis", "at"), needed=("at",))
            options = self._options(entry.get("options", {}), place)
            members, axis = entry["at"], entry.get("axis")
            if axis is not None and isinstance(members, list):
                members = {_text(value, place): {axis: value} for value in members}
            for name, member_options in _map(members, f"{place}.at").items():
                yield Column(group, name, options | self._options(member_options, f"{place}.at.{name}"))

    def _cell(
        self, table: str, row: str, column: Column, published: Mapping[str, str], options: Options
    ) -> TableCell:
        of_row = self.rows[row]
        if isinstance(of_row, str):
            return TableCell(table, row, column, published, {}, reason=of_row)
        if not published:
            return TableCell(table, row, column, published, {}, reason="not published")
        merged = self.base | options | of_row | column.options
        for key in ("config", "trainer.max_epochs"):
            if key not in merged:
                raise InputError(f"tables.{table}: {row}, {column.name} has no {key}")
        if not merged["trainer.max_epochs"].isdecimal():
            raise InputError(
                f"tables.{table}: {row}, {column.name}: trainer.max_epochs must be a whole number, "
                f"not {merged['trainer.max_epochs']}"
            )
        base = self.base
        if self.scaled:
            merged, base = self.scaled.of(merged), self.scaled.of(base)
        return TableCell(table, row, column, published, ordered(merged), name=_name(merged, base))

    def _line(self, metric: str, line: Any, count: int, where: str) -> tuple[str, ...]:
        if metric not in self.metrics:
            raise InputError(f"{where}: unknown metric {metric}; the metrics are {', '.join(self.metrics)}")
        values = _texts(line, where)
        if len(values) != count:
            raise InputError(f"{where}: {len(values)} values for {count} columns")
        for value in values:
            if value not in _NONE and not _NUMBER.fullmatch(value.split("±")[0].strip()):
                raise InputError(f"{where}: {value!r} is not a number")
        return values

    def _options(self, entry: Any, where: str) -> Options:
        options = {key: _text(value, f"{where}.{key}") for key, value in _map(entry, where).items()}
        if "config" in options:
            file = os.path.normpath(self.path.parent / options["config"])
            if not os.path.isfile(file):
                raise InputError(f"{where}.config: {file} does not exist")
            options["config"] = file
        return options

    def _check_names(self, tables: Mapping[str, Table]) -> None:
        """Check that two different runs do not have the same name."""
        named: dict[str, TableCell] = {}
        for cell in (cell for table in tables.values() for cell in table.cells if cell.name):
            other = named.setdefault(cell.name, cell)
            if other.options != cell.options:
                raise InputError(f"{other} and {cell} differ, but would both be named {cell.name}")


def _name(options: Options, base: Options) -> str:
    """Build a name from the config file, the objective and all options that are not common to all runs.

    A long name is cut and ends with 8 digits of its hash, because file names have at most 255 bytes.
    """
    always = ("config", "model.objective")
    parts = [Path(options["config"]).stem, options.get("model.objective", "")]
    parts += [
        f"{key.rpartition('.')[2]}{value}"
        for key, value in ordered(options).items()
        if key not in always and base.get(key) != value
    ]
    name = "-".join(re.sub(r"[^a-z0-9_.-]+", "_", part.lower()) for part in parts if part)
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[: _LONGEST_NAME - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _section(given: Any, where: str, keys: tuple[str, ...], *, needed: tuple[str, ...]) -> dict[str, Any]:
    section = _map(given, where)
    check_keys(where, section, keys)
    for key in needed:
        if key not in section:
            raise InputError(f"{where}: {key} is missing")
    return section


def _map(given: Any, where: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise InputError(f"{where}: expected keys and values, got {given!r}")
    return given


def _texts(given: Any, where: str) -> tuple[str, ...]:
    if not isinstance(given, list):
        raise InputError(f"{where}: expected a list, got {given!r}")
    return tuple(_text(value, where) for value in given)


def _text(given: Any, where: str) -> str:
    if not isinstance(given, str):
        raise InputError(f"{where}: expected one value, got {given!r}")
    return given
