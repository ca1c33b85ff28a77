"""A file from the internet, with a bar, under its name only when it is whole."""

import hashlib
import os
import urllib.request
from pathlib import Path

from ssl_vision.progress import Job

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
            with Job(path.name, size and size / 1e6, unit="MB") as job:
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
