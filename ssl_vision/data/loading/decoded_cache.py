"""Cache of decoded images in a file."""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import NamedTuple

from pytorch_lightning.utilities import rank_zero_info

from ssl_vision.data.loading.decoding import Decoded
from ssl_vision.data.loading.memmap import RowFile
from ssl_vision.errors import InputError

_VERSION = 2
FOLDER = ".ssl_vision_cache"


@dataclass(frozen=True)
class Undecoded:
    """Images of a split that are yet to be decoded.

    Args:
        label: Prefix of the file that caches them.
        names: Their names.
        digest: Function that returns 16 hexadecimal digits, which change whenever the images do.
        squares: Function that iterates over the decodable images, in order.
        channels: Number of channels of the squares.
    """

    label: str
    names: Sequence[str]
    digest: Callable[[], str]
    squares: Callable[[], Iterable[Decoded]]
    channels: int = 3


class Cached(NamedTuple):
    """Content of a cache.

    Attributes:
        file: The decodable images, in order.
        skipped: Names of the images that could not be decoded.
        contents: `Decoded.content` of each decoded image, by name.
    """

    file: RowFile
    skipped: list[str]
    contents: dict[str, str]


class Cache:
    """Decoded images, stored in one file.

    ``<label>-<side>-<digest>.uint8`` contains the pixels, and the ``.json`` file next to it the
    `Decoded.content` of each image. If the digest of the images changes, because one was changed, added or
    removed, the cache is written anew and the old one deleted. Files are renamed when they are complete. If
    several processes need the same cache, one writes it and the others wait.

    Args:
        place: Directory of the cache.
        images: The images; their label distinguishes the caches in a directory.
        side: Side of the decoded squares in pixels.
    """

    def __init__(self, place: Path, images: Undecoded, *, side: int) -> None:
        self.place = place
        self.names = images.names
        self.side = side
        self.channels = images.channels
        self._squares = images.squares
        self._label = f"{images.label}-{side}"
        self._digest = images.digest()
        self._pixels = place / f"{self._label}-{self._digest}.uint8"
        self._index = self._pixels.with_suffix(".json")

    def read(self) -> Cached | None:
        """Return the images; None if there is no complete cache of the current files."""
        try:
            index = json.loads(self._index.read_text(encoding="utf-8"))
            undecodable = set(index["skipped"])
            skipped = [name for name in self.names if name in undecodable]
            decoded = [name for name in self.names if name not in undecodable]
            contents = index["contents"]
            if index["version"] != _VERSION or len(contents) != len(decoded):
                return None
            file = RowFile(self._pixels, (len(decoded), self.channels, self.side, self.side))
            return Cached(file, skipped, dict(zip(decoded, contents, strict=True)))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self) -> None:
        """Write the cache image by image, unless another process has just written it.

        Raises:
            InputError: the directory cannot be written to or has too little free space.
        """
        try:
            self.place.mkdir(parents=True, exist_ok=True)
            with (self.place / f"{self._label}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if self.read() is None:
                    self._delete()
                    self._write()
        except OSError as error:
            cause = error.strerror or str(error)
            raise InputError(
                f"decoded images cannot be written to {self.place} ({cause}); set cache_dir"
            ) from error

    def _write(self) -> None:
        size, free = len(self.names) * self.channels * self.side**2, shutil.disk_usage(self.place).free
        if size > free:
            raise InputError(
                f"{self.place} has {free / 1e9:.1f} GB free for {size / 1e9:.1f} GB of decoded images; "
                "set cache_dir, or set cache never to keep them in memory"
            )
        contents: dict[str, str] = {}
        partial = self.place / f"{self._label}.partial"
        try:
            with partial.open("wb") as file:
                for name, pixels, content in self._squares():
                    file.write(pixels.data)
                    contents[name] = content
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, self._pixels)
            skipped = [name for name in self.names if name not in contents]
            index = {"version": _VERSION, "skipped": skipped, "contents": list(contents.values())}
            partial.write_text(json.dumps(index, indent=1), encoding="utf-8")
            os.replace(partial, self._index)
        finally:
            partial.unlink(missing_ok=True)
        rank_zero_info(f"images: {len(contents)} decoded to {self._pixels}")

    def _delete(self) -> None:
        """Delete outdated caches of these files."""
        for suffix in ("json", "uint8"):
            for file in self.place.glob(f"{escape(self._label)}-{'?' * len(self._digest)}.{suffix}"):
                file.unlink(missing_ok=True)


def cache_place(root: Path, chosen: Path | None) -> Path:
    """Return the directory of the caches of `root`.

    By default it is inside root, or inside the user's cache directory if root is not writable. Inside the
    user's or a chosen directory, each root has its own subdirectory.
    """
    if chosen is None:
        if os.access(root, os.W_OK):
            return root / FOLDER
        chosen = user_cache()
    root = root.resolve()
    return chosen / f"{root.name}-{hashlib.sha256(bytes(root)).hexdigest()[:8]}"


def user_cache() -> Path:
    """Return the directory of this package in the user's cache directory."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ssl_vision"
