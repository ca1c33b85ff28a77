"""Reading text, YAML, JSON and CSV files with clear errors, and writing files atomically."""

import csv
import json
import math
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from ssl_vision.errors import InputError

_LARGEST = 4 * 2**20
"""Maximum size of a text file in bytes; the largest of this package is evaluation.json, a few 100 kB."""

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_BaseLoader: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)


def read_text(path: Path) -> str:
    """Read a text file.

    Raises:
        InputError: the file cannot be read, is not a regular file, is too large, or is not UTF-8 text.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        raise InputError(f"{path} is not a regular file")
    try:
        if path.stat().st_size > _LARGEST:
            raise InputError(f"{path} is larger than {_LARGEST // 2**20} MiB")
        return path.read_text(encoding="utf-8")
    except InputError:
        raise
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not a text file") from error
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        raise InputError(f"{path} cannot be read ({getattr(error, 'strerror', None) or error})") from error


def read_yaml(path: Path, *, words: bool = False) -> Any:
    """Read a YAML file; see `parse_yaml`.

    Raises:
        InputError: the file cannot be read, or is not YAML.
    """
    return parse_yaml(read_text(path), where=str(path), words=words)


def parse_yaml(text: str, *, where: str, words: bool = False) -> Any:
    """Parse YAML into plain values.

    Args:
        text: YAML text.
        where: name of its file, for error messages.
        words: keep every scalar as a string.

    Raises:
        InputError: the text is not YAML.
    """
    try:
        return yaml.load(text, Loader=_BaseLoader if words else _Loader)
    except yaml.MarkedYAMLError as error:
        mark, last = error.problem_mark, text.count("\n") + 1
        line = f", line {min(mark.line + 1, last)}" if mark else ""
        raise InputError(f"{where}{line}: {error.problem}") from error
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise InputError(f"{where}: not a YAML file ({type(error).__name__})") from error


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        InputError: the file cannot be read, or is not JSON.
    """
    try:
        return json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not a JSON file") from error


def read_csv(path: Path) -> tuple[list[str], list[dict[str, float]]]:
    """Return the columns of a log, and each row as a dict without its empty cells.

    The last line of a file that a run is writing, or that was cut short, may be incomplete. It is skipped,
    like damaged rows and rows without a finite step. If the file does not exist, both lists are empty.

    Raises:
        InputError: the file cannot be read.
    """
    try:
        header, *lines = path.read_bytes().split(b"\n")[:-1] or [b""]
        columns = next(csv.reader([header.decode("utf-8")]), [])
    except (FileNotFoundError, UnicodeDecodeError, csv.Error):
        return [], []
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})") from error
    rows = []
    for line in lines:
        try:
            cells = zip(columns, line.split(b","), strict=True)
            row = {name: float(cell) for name, cell in cells if cell.strip()}
        except ValueError:
            continue
        if math.isfinite(row.get("step", math.nan)) and math.isfinite(row.get("epoch", 0)):
            rows.append(row)
    return columns, rows


def last_value(rows: Sequence[Mapping[str, float]], name: str) -> float | None:
    """Return the last value of a column; None if the column does not exist or is empty."""
    return next((row[name] for row in reversed(rows) if name in row), None)


@contextmanager
def partial_file(path: Path, end: str = "") -> Iterator[Path]:
    """Create an empty file next to ``path``, and flush it to disk afterwards; delete it on failure.

    Its name ends with that of ``path`` and ``end``.

    Raises:
        OSError: the file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{secrets.token_hex(4)}-{path.name}{end}")
    partial.touch(exist_ok=False)
    try:
        yield partial
        sync(partial)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def rename(partial: Path, path: Path) -> None:
    """Rename a file durably. A symbolic link at ``path`` is itself replaced; its target is not touched."""
    os.replace(partial, path)
    sync(path.parent)


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Create an empty file next to ``path``, which replaces ``path`` on success, as a whole and durably.

    Raises:
        OSError: the file cannot be written.
    """
    with partial_file(path) as partial:
        yield partial
    rename(partial, path)


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Write a file as `replaced` does.

    Raises:
        InputError: ``path`` is not a regular file, or cannot be written.
    """
    try:
        if path.is_dir():
            raise InputError(f"{path} is a directory; give the path of a file")
        if path.exists() and not path.is_file():
            raise InputError(f"{path} is not a regular file")
        with replaced(path) as partial:
            yield partial
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror or error})") from error


def write_text(path: Path, text: str) -> None:
    """Write a text file as UTF-8 with `atomic_write`, and escapes for file names that are not UTF-8."""
    with atomic_write(path) as partial:
        partial.write_text(text, encoding="utf-8", errors="backslashreplace")


def sync(path: Path) -> None:
    """Flush a file, or the entries of a directory, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
