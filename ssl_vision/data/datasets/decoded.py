"""Base class of data modules whose images are decoded to squares, in memory or in a cache file."""

import fcntl
import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from glob import escape
from math import prod
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from pytorch_lightning.utilities import rank_zero_info
from torch import Tensor

from ssl_vision.data.datasets.encoded import EncodedData
from ssl_vision.data.images import RowFile
from ssl_vision.data.loading.decoding import Decoded, decoding_error
from ssl_vision.data.module import Split
from ssl_vision.errors import InputError, check_choice

_IN_MEMORY = 2**30


@dataclass(frozen=True)
class Undecoded:
    """Images of a split that are yet to be decoded.

    Args:
        label: Prefix of the file that caches them.
        where: Their directory, for messages.
        names: Their names.
        digest: Function that returns 16 hexadecimal digits, which change whenever the images do.
        squares: Function that iterates over the decodable images, in order.
        side: Side of the squares in pixels.
        channels: Number of channels of the squares.
        prefix: Prefix of the names in `ImageData.skipped`.
    """

    label: str
    where: Path
    names: Sequence[str]
    digest: Callable[[], str]
    squares: Callable[[], Iterable[Decoded]]
    side: int
    channels: int = 3
    prefix: str = ""

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(N, C, side, side) of all squares, whose size in bytes is its product."""
        return len(self.names), self.channels, self.side, self.side


class Stored(NamedTuple):
    """The decodable images of a split, in order.

    Attributes:
        images: (N, C, side, side) uint8.
        file: The file that the images are mapped from, or None.
        contents: `Decoded.content` of each image, by name.
    """

    images: Tensor
    file: RowFile | None
    contents: dict[str, str]


class DecodedData(EncodedData):
    """Base class of data modules whose images are decoded to squares, in memory or in a cache file.

    Args:
        cache: When to store the squares in a file: "auto" if they exceed 1 GiB, "always" or "never".
        **options: Options of `EncodedData` and `ImageData`.

    Raises:
        InputError: cache is not one of its three values.
    """

    def __init__(self, *, cache: Literal["auto", "always", "never"] = "auto", **options: Any) -> None:
        super().__init__(**options)
        check_choice("cache", cache, ("auto", "always", "never"))
        self.cache = cache

    def _undecoded(self, split: Split) -> Undecoded:
        """Return the images of a split."""
        raise NotImplementedError

    def _write_caches(self, *splits: Split) -> None:
        """Write the caches that splits use, of those that exist."""
        for split in splits:
            if self.has(split) and self._is_cached(images := self._undecoded(split)):
                self._cached(images)

    def _is_cached(self, images: Undecoded) -> bool:
        """Return True if the squares are stored in a file."""
        return self.cache == "always" or (self.cache == "auto" and prod(images.shape) > _IN_MEMORY)

    def _stored(self, images: Undecoded) -> Stored:
        """Decode images, or read them from their file; those that cannot be decoded are skipped."""
        stored = self._cached(images) if self._is_cached(images) else _decoded(images)
        skipped = [name for name in images.names if name not in stored.contents]
        if skipped and self.strict:
            raise decoding_error(images.where / skipped[0], "according to the cache")
        if skipped:
            first = ", ".join(str(images.where / name) for name in skipped[:3])
            dots = ", ..." if len(skipped) > 3 else ""
            warnings.warn(
                f"skipped {len(skipped)} of {len(images.names)} images that cannot be decoded: {first}{dots}",
                stacklevel=3,
            )
            self.skipped += tuple(images.prefix + name for name in skipped)
        return stored

    def _cached(self, images: Undecoded) -> Stored:
        """Return the images in a cache file, which is created if it does not exist."""
        scaled = "" if self.pixel_range is None else "-{:g}-{:g}".format(*self.pixel_range)
        cache = Cache(self._cache_place(), images, label=f"{images.label}{scaled}-{images.side}")
        return cache.read() or cache.write()


def _decoded(images: Undecoded) -> Stored:
    """Decode images into memory."""
    pixels = np.empty(images.shape, dtype=np.uint8)
    contents: dict[str, str] = {}
    for row, (name, square, content) in enumerate(images.squares()):
        pixels[row] = square
        contents[name] = content
    return Stored(torch.from_numpy(pixels[: len(contents)]), None, contents)


class Cache:
    """Decoded images, stored in one file.

    ``<label>-<digest>.uint8`` contains the pixels, and the ``.json`` file next to it the `Decoded.content` of
    each image. If the digest of the images changes, because one was changed, added or removed, the cache is
    written anew and the old one deleted. Files are renamed when they are complete. If several processes need
    the same cache, one writes it and the others wait.

    Args:
        place: Directory of the cache.
        images: The images.
        label: Name that distinguishes the caches in a directory.
    """

    def __init__(self, place: Path, images: Undecoded, *, label: str) -> None:
        self.place = place
        self._images = images
        self._label = label
        self._pixels = place / f"{label}-{images.digest()}.uint8"
        self._index = self._pixels.with_suffix(".json")

    def read(self) -> Stored | None:
        """Return the images; None if there is no complete cache of the current files."""
        try:
            index = json.loads(self._index.read_text(encoding="utf-8"))
            skipped = set(index["skipped"])
            decoded = [name for name in self._images.names if name not in skipped]
            return self._map(dict(zip(decoded, index["contents"], strict=True)))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _map(self, contents: dict[str, str]) -> Stored:
        """Return the images of the file, of which there is one for each content."""
        file = RowFile(self._pixels, (len(contents), *self._images.shape[1:]))
        return Stored(file.memory_map(), file, contents)

    def write(self) -> Stored:
        """Write the cache image by image, unless another process has just written it, and return it.

        Raises:
            InputError: the directory cannot be written to or has too little free space.
        """
        try:
            self.place.mkdir(parents=True, exist_ok=True)
            with (self.place / f"{self._label}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if written := self.read():
                    return written
                for suffix in ("json", "uint8"):  # outdated caches
                    for file in self.place.glob(f"{escape(self._label)}-{'?' * 16}.{suffix}"):
                        file.unlink(missing_ok=True)
                return self._write()
        except OSError as error:
            cause = error.strerror or str(error)
            raise InputError(
                f"decoded images cannot be written to {self.place} ({cause}); set cache_dir"
            ) from error

    def _write(self) -> Stored:
        names = self._images.names
        size, free = prod(self._images.shape), shutil.disk_usage(self.place).free
        if size > free:
            raise InputError(
                f"{self.place} has {free / 1e9:.1f} GB free for {size / 1e9:.1f} GB of decoded images; "
                "set cache_dir, or set cache never to keep them in memory"
            )
        contents: dict[str, str] = {}
        partial = self.place / f"{self._label}.partial"
        try:
            with partial.open("wb") as file:
                for name, pixels, content in self._images.squares():
                    file.write(pixels.data)
                    contents[name] = content
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, self._pixels)
            skipped = [name for name in names if name not in contents]
            index = {"skipped": skipped, "contents": list(contents.values())}
            partial.write_text(json.dumps(index, indent=1), encoding="utf-8")
            os.replace(partial, self._index)
        finally:
            partial.unlink(missing_ok=True)
        rank_zero_info(f"images: {len(contents)} decoded to {self._pixels}")
        return self._map(contents)
