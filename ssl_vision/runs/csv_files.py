"""Readers for metrics.csv and times.csv: all rows, single columns, or the last value of a column."""

import csv
import math
import os
from pathlib import Path
from typing import BinaryIO

from ssl_vision.errors import InputError
from ssl_vision.runs.reading import check_file

_BLOCK = 1 << 14
"""Bytes that are read first from the end of a file."""

_LARGEST = 2**29
"""Maximum size of a file in bytes; a million steps with twenty numbers each take less than half of it."""

_LONGEST_HEADER = 2**20
"""Maximum length of the first line in bytes."""

_POSITION_DEFAULTS = {"step": math.nan, "epoch": 0.0}
"""Columns that must be finite, and their values in rows without them."""


def rows(path: Path) -> list[dict[str, float]]:
    """Return each row as a dict, without its empty cells.

    Damaged rows and rows without a finite step are skipped. If the file does not exist, the list is empty.

    Raises:
        InputError: the file is too large, is not a regular file, or cannot be read.
    """
    columns, lines = _read_table(path)
    table = []
    for line in lines:
        try:
            cells = zip(columns, line.split(b","), strict=True)
            row = {name: float(cell) for name, cell in cells if cell.strip()}
        except ValueError:
            continue
        if all(math.isfinite(row.get(name, default)) for name, default in _POSITION_DEFAULTS.items()):
            table.append(row)
    return table


def names(path: Path) -> list[str]:
    """Return the column names; none if the file does not exist."""
    file = _open_table(path)
    if file is None:
        return []
    with file:
        return _read_header(file)


def column(path: Path, *names: str) -> list[float]:
    """Return the values of one or several columns, one after another.

    Incomplete rows, empty cells and missing columns are skipped.
    """
    columns, lines = _read_table(path)
    places = [columns.index(name) for name in names if name in columns]
    split = (line.split(b",") for line in lines)
    table = [cells for cells in split if len(cells) == len(columns) and cells[0].isdigit()]
    filled = (cells[place] for place in places for cells in table if cells[place].strip())
    return [value for cell in filled if (value := _parse_float(cell)) is not None]


def last_value(path: Path, name: str) -> float | None:
    """Return the last value of a column; None if the file or the column does not exist or is empty.

    The file is read from its end, so that the time does not depend on its length.
    """
    file = _open_table(path)
    if file is None:
        return None
    with file:
        columns = _read_header(file)
        if name not in columns:
            return None
        place, first = columns.index(name), file.tell()
        end, size = file.seek(0, os.SEEK_END), _BLOCK
        while True:
            start = max(first, end - size)
            file.seek(start)
            lines = _complete_lines(file.read(end - start))
            for line in reversed(lines if start == first else lines[1:]):
                cells = line.split(b",")
                complete = len(cells) == len(columns) and cells[0].isdigit()
                value = _parse_float(cells[place]) if complete else None
                if value is not None:
                    return value
            if start == first:
                return None
            size *= 4


def _read_table(path: Path) -> tuple[list[str], list[bytes]]:
    """Return the column names and the lines below them; empty lists if the file does not exist."""
    file = _open_table(path)
    if file is None:
        return [], []
    with file:
        return _read_header(file), _complete_lines(file.read())


def _open_table(path: Path) -> BinaryIO | None:
    """Open a file; return None if it does not exist.

    Raises:
        InputError: the file is too large, is not a regular file, or cannot be opened.
    """
    try:
        check_file(path, largest=_LARGEST)
        return path.open("rb")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})") from error


def _complete_lines(content: bytes) -> list[bytes]:
    """Split into complete lines: a file that is being written, or was cut short, may end within a line."""
    return content.split(b"\n")[:-1]


def _read_header(file: BinaryIO) -> list[str]:
    """Return the names in the first line of a file; none if that line is incomplete or not a header."""
    header = file.readline(_LONGEST_HEADER)
    if not header.endswith(b"\n"):
        return []
    try:
        return next(csv.reader([header.decode("utf-8")]), [])
    except (UnicodeDecodeError, csv.Error):
        return []


def _parse_float(cell: bytes) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None
