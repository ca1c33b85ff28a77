"""Download of data sets by torchvision."""

import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torchvision.datasets.utils import download_and_extract_archive

from ssl_vision.errors import InputError


def missing_data(name: str, path: Path, *, folder: str | None = None) -> InputError:
    """The error for a data set, or a file of it, that is not at `path` or is damaged there.

    Args:
        name: name of the data set.
        path: where it was expected.
        folder: name of its folder below ``--data.root``; None if it has none.
    """
    directory = "its directory" if folder is None else f"the directory that contains {folder}"
    return InputError(
        f"{name} is missing or damaged at {path}; download it with --data.download true, "
        f"give {directory} with --data.root, or start without a download with --data Digits"
    )


@contextmanager
def fetching(name: str, path: Path) -> Iterator[None]:
    """Convert errors while downloading `name` to `path` to an InputError."""
    try:
        yield
    except (OSError, RuntimeError, EOFError, tarfile.TarError) as error:
        cause = " ".join(str(error).split())
        raise InputError(
            f"{name} could not be downloaded to {path} ({cause}); "
            "check the connection, or start without a download with --data Digits"
        ) from error


def fetch(name: str, reader: Any, root: Path) -> None:
    """Download the archive of a torchvision data set, check its MD5 checksum and unpack it into `root`.

    Raises:
        InputError: the download failed.
    """
    with fetching(name, root / reader.base_folder):
        download_and_extract_archive(reader.url, root, filename=reader.filename, md5=reader.tgz_md5)
