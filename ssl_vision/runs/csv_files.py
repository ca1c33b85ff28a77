"""Readers of metrics.csv, times.csv and weights.csv, also while a run writes them."""

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from ssl_vision.errors import InputError

_POSITION_DEFAULTS = {"step": math.nan, "epoch": 0.0}
"""Columns that must be finite, and their values in rows without them."""


def rows(path: Path) -> list[dict[str, float]]:
    """Return each row as a dict, without its empty cells.

    Damaged rows and rows without a finite step are skipped. If the file does not exist, the list is empty.

    Raises:
        InputError: the file cannot be read.
    """
    columns, lines = _table(path)
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
    """Return the column names; none if the file does not exist or has no header.

    Raises:
        InputError: the file cannot be read.
    """
    return _table(path)[0]


def last_value(rows: Sequence[Mapping[str, float]], name: str) -> float | None:
    """Return the last value of a column; None if the column does not exist or is empty."""
    return next((row[name] for row in reversed(rows) if name in row), None)


def _table(path: Path) -> tuple[list[str], list[bytes]]:
    """Return the column names and the complete lines below them.

    The last line of a file that is being written, or was cut short, may be incomplete.
    """
    try:
        header, *lines = path.read_bytes().split(b"\n")[:-1] or [b""]
        return next(csv.reader([header.decode("utf-8")]), []), lines
    except (FileNotFoundError, UnicodeDecodeError, csv.Error):
        return [], []
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})") from error
