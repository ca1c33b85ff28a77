"""Official data sets: fetched where they are missing, and what is said where they cannot be."""

import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ssl_vision.data.download import download
from ssl_vision.errors import InputError
from ssl_vision.progress import Job


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


def fetch(name: str, reader: Any, root: Path) -> None:
    """Downloads and unpacks the archive of a torchvision data set into `root`.

    Raises:
        InputError: It cannot be had.
    """
    with fetching(name, root / reader.base_folder):
        archive = root / reader.filename
        download(reader.url, archive, md5=reader.tgz_md5)
        with Job(f"unpacking {archive.name}"), tarfile.open(archive) as members:
            members.extractall(root, filter="data")  # nothing outside, no links that lead there
