"""Reads metrics.csv and times.csv: all of it, one column, or the last value of one."""

import csv
import math
import os
from pathlib import Path
from typing import BinaryIO

from ssl_vision.errors import InputError
from ssl_vision.runs.reading import check_file

_BLOCK = 1 << 14
"""Bytes that are read first from a file's end."""

_LARGEST = 2**29
"""Bytes of a file; a million steps with twenty numbers each have less than half of them."""

_LONGEST_HEADER = 2**16
"""Bytes of the first line."""

_PLACE = {"step": math.nan, "epoch": 0.0}
"""What says where in the training a row belongs, and the value where it is not given."""


def rows(path: Path) -> list[dict[str, float]]:
    """A dict for each row, without empty cells; rows that are damaged or have no finite step are left out.

    Without the file there are no rows.

    Raises:
        InputError: the file is too large, is not a regular file, or cannot be read.
    """
    columns, lines = _whole(path)
    found = []
    for line in lines:
        try:
            cells = zip(columns, line.split(b","), strict=True)
            row = {name: float(cell) for name, cell in cells if cell.strip()}
        except ValueError:
            continue
        if all(math.isfinite(row.get(name, default)) for name, default in _PLACE.items()):
            found.append(row)
    return found


def names(path: Path) -> list[str]:
    """The columns' names."""
    file = _opened(path)
    if file is None:
        return []
    with file:
        return _columns(file)


def column(path: Path, *names: str) -> list[float]:
    """The values of one column, or of several, in whole rows; empty cells and absent columns have none."""
    columns, lines = _whole(path)
    places = [columns.index(name) for name in names if name in columns]
    split = (line.split(b",") for line in lines)
    table = [cells for cells in split if len(cells) == len(columns) and cells[0].isdigit()]
    try:
        return [float(cells[place]) for place in places for cells in table if cells[place].strip()]
    except ValueError:
        found = [_number(cells[place]) for place in places for cells in table]
        return [value for value in found if value is not None]


def last_value(path: Path, name: str) -> float | None:
    """The last value of a column; None without the file, the column, or a value in it.

    Read from the file's end, so that a long file costs no more than a short one.
    """
    file = _opened(path)
    if file is None:
        return None
    with file:
        columns = _columns(file)
        if name not in columns:
            return None
        place, first = columns.index(name), file.tell()
        end, size = file.seek(0, os.SEEK_END), _BLOCK
        while True:
            start = max(first, end - size)
            file.seek(start)
            lines = _ended(file.read(end - start))
            for line in reversed(lines if start == first else lines[1:]):
                cells = line.split(b",")
                whole = len(cells) == len(columns) and cells[0].isdigit()
                value = _number(cells[place]) if whole else None
                if value is not None:
                    return value
            if start == first:
                return None
            size *= 4


def _whole(path: Path) -> tuple[list[str], list[bytes]]:
    """The names of the columns and the lines below them; nothing without the file."""
    file = _opened(path)
    if file is None:
        return [], []
    with file:
        return _columns(file), _ended(file.read())


def _opened(path: Path) -> BinaryIO | None:
    """The file; None where there is none.

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


def _ended(content: bytes) -> list[bytes]:
    """The lines that end: a power cut may leave half a line, and a file that grows may end in one."""
    return content.split(b"\n")[:-1]


def _columns(file: BinaryIO) -> list[str]:
    """The names in the first line of a file; none where that line is not whole or no header."""
    header = file.readline(_LONGEST_HEADER)
    if not header.endswith(b"\n"):
        return []
    try:
        return next(csv.reader([header.decode("utf-8")]), [])
    except (UnicodeDecodeError, csv.Error):
        return []


def _number(cell: bytes) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None
