"""Output files that are complete and on the disk before they get their names."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ssl_vision.errors import InputError


@contextmanager
def completed(path: Path) -> Iterator[Path]:
    """Yields an empty file beside ``path`` that becomes ``path`` at the end and is removed after an error.

    Raises:
        InputError: ``path`` is a directory or another kind of file, or nothing can be written there.
    """
    partial = path.with_name(f".{os.getpid()}-{path.name}") if path.name else path
    try:
        if path.is_dir():
            raise InputError(f"{path} is a folder: name a file in it")
        if path.exists() and not path.is_file():
            raise InputError(f"{path} is not a regular file")
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.touch()
        yield partial
        sync(partial)
        os.replace(partial, path)
        sync(path.parent)
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror or error})") from error
    finally:
        with suppress(OSError):
            partial.unlink()


def sync(path: Path) -> None:
    """Flushes a file, or the names in a directory, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
