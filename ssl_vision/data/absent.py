"""What is said where an official data set is not on disk or cannot be fetched."""

import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ssl_vision.errors import InputError


def absent(name: str, path: Path) -> InputError:
    """The error for a data set, or a file of it, that is not at `path` or is damaged there."""
    return InputError(
        f"{name} is missing or damaged at {path}: fetch it with --data.download true, "
        "or start without a download with --data Digits"
    )


@contextmanager
def fetching(name: str, path: Path) -> Iterator[None]:
    """Turns a failure to download `name` to `path` into an InputError that names both and the cause."""
    try:
        yield
    except (OSError, RuntimeError, EOFError, tarfile.TarError) as error:
        cause = " ".join(str(error).split())
        raise InputError(
            f"{name} could not be fetched to {path} ({cause}): "
            "check the connection, or start without a download with --data Digits"
        ) from error
