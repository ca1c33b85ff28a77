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

from ssl_vision.data.loading.decoding import Decoded
from ssl_vision.data.loading.fingerprint import Listing
from ssl_vision.data.loading.memmap import RowFile
from ssl_vision.errors import InputError

_VERSION = 2
_FOLDER = ".ssl_vision_cache"


class Cached(NamedTuple):
    """What a cache holds.

    Attributes:
        file: The images.
        skipped: Names of the files that could not be decoded; the images are those of the others, in order.
        contents: Digest of the bytes of each file that was decoded, by its name.
    """

    file: RowFile
    skipped: list[str]
    contents: dict[str, str]


class Cache:
    """The decoded images of some files, in one file that is named after them.

    ``<label>-<side>-<digest>.uint8`` holds the pixels, and ``….json`` beside it digests of the image
    files' contents. The digest in the name is that of the `Listing`: when an image file is changed, added or
    removed, the old cache is no longer found, and it is deleted when the new one is made. Both files get
    their names when they are complete. Of several processes that need the same cache, one makes it and the
    others wait.

    Args:
        place: Folder of the cache.
        label: Tells apart the caches that share a place.
        listing: The image files.
        side: Of the decoded squares, pixels.
    """

    def __init__(self, place: Path, label: str, *, listing: Listing, side: int) -> None:
        self.place = place
        self.names = listing.names
        self.side = side
        self._label = f"{label}-{side}"
        self._digest = listing.digest()
        self._pixels = place / f"{self._label}-{self._digest}.uint8"
        self._index = self._pixels.with_suffix(".json")

    def read(self) -> Cached | None:
        """The images; None where there is no complete cache of the files as they are now."""
        try:
            index = json.loads(self._index.read_text(encoding="utf-8"))
            absent = set(index["skipped"])
            skipped = [name for name in self.names if name in absent]
            done = [name for name in self.names if name not in absent]
            contents = index["contents"]
            if index["version"] != _VERSION or len(contents) != len(done):
                return None
            file = RowFile(self._pixels, (len(done), 3, self.side, self.side))
            return Cached(file, skipped, dict(zip(done, contents, strict=True)))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, decode: Callable[[], Iterable[Decoded]]) -> None:
        """Makes the cache, image by image, unless another process has just done so.

        Args:
            decode: Gives the files that can be decoded, in order.

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

    def _make(self, decode: Callable[[], Iterable[Decoded]]) -> None:
        need, room = len(self.names) * 3 * self.side**2, shutil.disk_usage(self.place).free
        if need > room:
            raise InputError(
                f"{self.place} has room for {room / 1e9:.1f} of {need / 1e9:.1f} GB of decoded images: "
                "set cache_dir, or cache never to keep them in memory"
            )
        contents: dict[str, str] = {}
        partial = self.place / f"{self._label}.partial"
        try:
            with partial.open("wb") as file:
                for name, pixels, content in decode():
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
        """Deletes the caches of these files as they were before."""
        for suffix in ("json", "uint8"):
            for file in self.place.glob(f"{escape(self._label)}-{'?' * len(self._digest)}.{suffix}"):
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
