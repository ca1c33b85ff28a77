"""Reads metrics.csv and times.csv: all of it, one column, or the last value of one."""

import csv
import os
from pathlib import Path

_BLOCK = 1 << 14
"""Bytes that are read first from a file's end."""


def rows(path: Path) -> list[dict[str, float]]:
    """A dict for each row, empty cells left out; a row that is not whole numbers is left out, too.

    No file has no rows.
    """
    header, lines = _whole(path)
    columns = _columns(header)
    found = []
    for line in lines:
        try:
            cells = zip(columns, line.split(b","), strict=True)
            row = {name: float(cell) for name, cell in cells if cell.strip()}
        except ValueError:
            continue
        if "step" in row:
            found.append(row)
    return found


def names(path: Path) -> list[str]:
    """The columns' names."""
    try:
        with path.open("rb") as file:
            header = file.readline()
    except FileNotFoundError:
        return []
    return _columns(header) if header.endswith(b"\n") else []


def column(path: Path, *names: str) -> list[float]:
    """The values of one column, or of several, in whole rows; empty cells and absent columns have none."""
    header, lines = _whole(path)
    columns = _columns(header)
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
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return None
    with file:
        columns = _columns(file.readline())
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


def _whole(path: Path) -> tuple[bytes, list[bytes]]:
    """The header and the lines below it; nothing without the file."""
    try:
        header, *lines = _ended(path.read_bytes()) or [b""]
    except FileNotFoundError:
        return b"", []
    return header, lines


def _ended(content: bytes) -> list[bytes]:
    """The lines that end: a power cut may leave half a line, and a file that grows may end in one."""
    return content.split(b"\n")[:-1]


def _columns(header: bytes) -> list[str]:
    return next(csv.reader([header.decode("utf-8")]), [])


def _number(cell: bytes) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None
