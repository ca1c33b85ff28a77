"""Decoded images in a file: decoded once, and as many as the disk holds."""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable
from glob import escape
from pathlib import Path
from typing import NamedTuple

from pytorch_lightning.utilities import rank_zero_info

from ssl_vision.data.decoding import Square
from ssl_vision.data.rowfile import RowFile
from ssl_vision.errors import InputError

_VERSION = 1
_DIGITS = 16
_FOLDER = ".ssl_vision_cache"


class Cached(NamedTuple):
    """What a cache holds.

    Attributes:
        file: The images.
        skipped: Names of the files that could not be decoded; the images are those of the others, in order.
    """

    file: RowFile
    skipped: list[str]


class Cache:
    """The decoded images of some files, in one file that is named after them.

    ``<label>-<side>-<digest>.uint8`` holds the pixels and ``….json`` beside it says how many there are. The
    digest is of the image files' names, sizes and times: where one is changed, added or removed, the old
    cache is not found any more, and is deleted when the new one is made. Both files get their names when they
    are complete. Of several processes that would make a cache one does, and the others wait.

    Args:
        place: Folder of the cache.
        label: Tells apart the caches that share a place.
        folder: Where the image files lie.
        names: Their paths within it.
        side: Of the decoded squares, pixels.
    """

    def __init__(self, place: Path, label: str, *, folder: Path, names: list[str], side: int) -> None:
        self.place = place
        self.names = names
        self.side = side
        self._label = f"{label}-{side}"
        self._pixels = place / f"{self._label}-{_digest(folder, names)}.uint8"
        self._index = self._pixels.with_suffix(".json")

    def read(self) -> Cached | None:
        """The images; None where there is no complete cache of the files as they are now."""
        try:
            index = json.loads(self._index.read_text(encoding="utf-8"))
            absent = set(index["skipped"])
            skipped = [name for name in self.names if name in absent]
            count = len(self.names) - len(skipped)
            if index["version"] != _VERSION or index["images"] != count:
                return None
            return Cached(RowFile(self._pixels, (count, 3, self.side, self.side)), skipped)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, decode: Callable[[], Iterable[tuple[str, Square]]]) -> None:
        """Makes the cache, image by image, unless another process has just done so.

        Args:
            decode: Gives the names that can be decoded, in order, with their pixels.

        Raises:
            InputError: The place cannot be written to or has too little room.
        """
        try:
            self.place.mkdir(parents=True, exist_ok=True)
            with (self.place / f"{self._label}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if self.read() is None:
                    self._delete()
                    self._make(decode)
        except OSError as error:
            cause = error.strerror or str(error)
            raise InputError(f"{self.place} cannot hold decoded images ({cause}): set cache_dir") from error

    def _make(self, decode: Callable[[], Iterable[tuple[str, Square]]]) -> None:
        need, room = len(self.names) * 3 * self.side**2, shutil.disk_usage(self.place).free
        if need > room:
            raise InputError(
                f"{self.place} has room for {room / 1e9:.1f} of {need / 1e9:.1f} GB of decoded images: "
                "set cache_dir, or cache never to keep them in memory"
            )
        left = dict.fromkeys(self.names)
        partial = self.place / f"{self._label}.partial"
        try:
            with partial.open("wb") as file:
                for name, pixels in decode():
                    file.write(pixels.data)
                    del left[name]
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, self._pixels)
            count = len(self.names) - len(left)
            index = {"version": _VERSION, "images": count, "skipped": list(left)}
            partial.write_text(json.dumps(index, indent=1), encoding="utf-8")
            os.replace(partial, self._index)
        finally:
            partial.unlink(missing_ok=True)
        rank_zero_info(f"images: {count} decoded to {self._pixels}")

    def _delete(self) -> None:
        """Deletes the caches of these files as they were before."""
        for suffix in ("json", "uint8"):
            for file in self.place.glob(f"{escape(self._label)}-{'?' * _DIGITS}.{suffix}"):
                file.unlink(missing_ok=True)


def cache_place(root: Path, chosen: Path | None) -> Path:
    """Folder of the caches of `root`.

    Below root, or below the user's cache folder where root cannot be written to. Below a chosen one, as below
    the user's, each root has a folder of its own.
    """
    if chosen is None:
        if os.access(root, os.W_OK):
            return root / _FOLDER
        chosen = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ssl_vision"
    root = root.resolve()
    return chosen / f"{root.name}-{hashlib.sha256(bytes(root)).hexdigest()[:8]}"


def _digest(folder: Path, names: list[str]) -> str:
    """Hexadecimal digits of names, sizes and times of change."""
    digest = hashlib.sha256()
    for name in names:
        try:
            status = os.stat(folder / name)
            state = f"{status.st_size} {status.st_mtime_ns}"
        except OSError:
            state = "absent"
        digest.update(f"{name}\0{state}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()[:_DIGITS]
