"""Download of data sets with a progress bar."""

import hashlib
import os
import tarfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ssl_vision.errors import InputError
from ssl_vision.progress import Progress

_BLOCK = 1 << 18
_SECONDS = 60.0
"""Timeout of a connection without data."""


def download(url: str, path: Path, *, md5: str) -> None:
    """Download a file, unless it exists already; it gets its name only when it is complete.

    Args:
        url: Address of the file.
        path: Path of the downloaded file.
        md5: MD5 checksum, in hexadecimal.

    Raises:
        OSError: the connection failed, or the disk is full.
        RuntimeError: the checksum of the downloaded file does not match.
    """
    if path.is_file() and _md5(path) == md5:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{os.getpid()}-{path.name}")
    request = urllib.request.Request(url, headers={"User-Agent": "ssl_vision"})
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS) as answer, partial.open("wb") as file:
            size = answer.length
            with Progress(path.name, size and size / 1e6, unit="MB") as job:
                while block := answer.read(_BLOCK):
                    file.write(block)
                    job.advance(len(block) / 1e6)
        if (actual := _md5(partial)) != md5:
            raise RuntimeError(f"the file from {url} has the MD5 checksum {actual}, not {md5}")
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def absent(name: str, path: Path, *, folder: str | None = None) -> InputError:
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
    """Download the archive of a torchvision data set and unpack it into `root`.

    Raises:
        InputError: the download failed.
    """
    with fetching(name, root / reader.base_folder):
        archive = root / reader.filename
        download(reader.url, archive, md5=reader.tgz_md5)
        with Progress(f"unpacking {archive.name}"), tarfile.open(archive) as members:
            members.extractall(root, filter="data")  # refuses paths and links that lead out of the directory
