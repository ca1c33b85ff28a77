"""Atomic file writes."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from ssl_vision.errors import InputError


def appended(path: Path) -> BinaryIO:
    """Open a file for appending; create it if it does not exist.

    Raises:
        InputError: the file cannot be written.
    """
    try:
        return path.open("ab")
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror})") from error


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Create an empty file next to ``path`` that replaces ``path`` on success and is deleted on failure.

    A symbolic link at ``path`` is itself replaced; its target is not touched.

    Raises:
        OSError: the file cannot be written.
    """
    if not path.parent.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{secrets.token_hex(4)}-{path.name}")
    partial.touch(exist_ok=False)
    try:
        yield partial
        os.replace(partial, path)
    finally:
        with suppress(OSError):
            partial.unlink()


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Write a file as `replaced` does, and flush it to disk before it gets its name.

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
            sync(partial)
        sync(path.parent)
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
