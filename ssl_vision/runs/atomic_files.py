"""Safe writing: files appear under their names when complete, and symbolic links are never followed."""

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
    """An ``opener`` for `open` that accepts regular files only, and no symbolic links.

    Raises:
        OSError: the path is a symbolic link, a pipe, a device or a folder.
    """
    try:
        # O_NONBLOCK: opening a pipe that nobody reads must not wait
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
    """A log or a lock file, opened to be continued; it is created where it is absent.

    Raises:
        InputError: it is no regular file, or cannot be written.
    """
    try:
        return open(path, "ab", opener=no_follow)
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror})") from error


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """A new, empty file beside ``path``; it replaces ``path`` on success and is deleted on failure.

    A symbolic link at ``path`` is itself replaced; its target is not touched. The name of the new file cannot
    be predicted, so that nothing can be waiting under it.

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
    """`replaced` for a file that the user asked for; it is on the disk when it gets its name.

    Raises:
        InputError: ``path`` is a directory or another kind of file, or nothing can be written there.
    """
    try:
        if path.is_dir():
            raise InputError(f"{path} is a folder: name a file in it")
        if path.exists() and not path.is_file():
            raise InputError(f"{path} is not a regular file")
        with replaced(path) as partial:
            yield partial
            sync(partial)
        sync(path.parent)
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror or error})") from error


def check_inside(folder: Path, *names: str) -> None:
    """Checks that no subfolder or file that will be written to is a symbolic link out of its folder.

    Args:
        folder: the folder; it may itself be reached through a link.
        names: paths within it; they need not exist.

    Raises:
        InputError: one of them leads elsewhere.
    """
    home = Path(os.path.realpath(folder))
    for name in names:
        if not Path(os.path.realpath(folder / name)).is_relative_to(home):
            raise InputError(f"{folder / name} is a symbolic link out of {folder}: remove the link")


def sync(path: Path) -> None:
    """Flushes a file, or the names in a directory, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
