"""Files that get their names when they are complete."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ssl_vision.errors import InputError


@contextmanager
def completed(path: Path) -> Iterator[Path]:
    """An empty file beside ``path``, to be filled: it becomes ``path`` at the end, and goes after an error.

    Raises:
        InputError: ``path`` is a folder, or nothing can be written there.
    """
    if path.is_dir():
        raise InputError(f"{path} is a folder: name a file in it")
    partial = path.with_name(f".{os.getpid()}-{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.touch()
        yield partial
        os.replace(partial, path)
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror or error})") from error
    finally:
        if partial.exists():
            partial.unlink()
