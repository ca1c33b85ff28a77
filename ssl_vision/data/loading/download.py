"""Download of data sets, with a progress bar; a file gets its name only when it is complete."""

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
"""Of silence after which a connection counts as lost."""


def download(url: str, path: Path, *, md5: str) -> None:
    """Makes `path` the file at `url`, unless it is that already.

    Args:
        url: Where the file is.
        path: Where it is to be.
        md5: Its sum, in hexadecimal.

    Raises:
        OSError: There is no connection, or no room.
        RuntimeError: What came is another file, or not all of it.
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
        if (found := _md5(partial)) != md5:
            raise RuntimeError(f"{url} gave a file whose MD5 sum is {found}, not {md5}")
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


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
        with Progress(f"unpacking {archive.name}"), tarfile.open(archive) as members:
            members.extractall(root, filter="data")  # nothing outside, no links that lead there
