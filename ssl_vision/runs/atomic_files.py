"""Atomic file writes that never follow symbolic links."""

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from ssl_vision.errors import InputError


def no_follow(path: str, flags: int) -> int:
    """Open regular files only, never symbolic links; an ``opener`` for `open`.

    Raises:
        OSError: the path is a symbolic link, a pipe, a device or a directory.
    """
    try:
        # O_NONBLOCK: opening a pipe without a reader must not block
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a symbolic link", path) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    return descriptor


def appended(path: Path) -> BinaryIO:
    """Open a file for appending; create it if it does not exist.

    Raises:
        InputError: the path is not a regular file, or cannot be written.
    """
    try:
        return open(path, "ab", opener=no_follow)
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror})") from error


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Create an empty file next to ``path`` that replaces ``path`` on success and is deleted on failure.

    A symbolic link at ``path`` is itself replaced; its target is not touched. The name of the new file is
    random, so that nobody can create it in advance.

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


def check_inside(folder: Path, *names: str) -> None:
    """Check that no path inside a directory is a symbolic link that leads out of it.

    Args:
        folder: the directory; it may itself be a symbolic link.
        names: paths relative to the directory; they need not exist.

    Raises:
        InputError: a path leads out of the directory.
    """
    real = Path(os.path.realpath(folder))
    for name in names:
        if not Path(os.path.realpath(folder / name)).is_relative_to(real):
            raise InputError(f"{folder / name} is a symbolic link out of {folder}; remove the link")


def sync(path: Path) -> None:
    """Flush a file, or the entries of a directory, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
