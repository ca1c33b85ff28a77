"""Base class of data modules whose images are decoded to squares, in memory or in a cache file."""

import fcntl
import json
import os
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
        """Return the images in a cache file, which is written first if it does not exist.

        ``<label>-<digest>.uint8`` contains the pixels, and the ``.json`` file next to it the
        `Decoded.content` of each image. If the digest of the images changes, because one was changed, added
        or removed, the cache is written anew and the old one deleted. Files are renamed when they are
        complete. If several processes need the same cache, one writes it and the others wait.

        Raises:
            InputError: the directory cannot be written to.
        """
        scaled = "" if self.pixel_range is None else "-{:g}-{:g}".format(*self.pixel_range)
        place, label = self._cache_place(), f"{images.label}{scaled}-{images.side}"
        file = place / f"{label}-{images.digest()}.uint8"
        stored = _read(images, file)
        if stored is not None:
            return stored
        try:
            place.mkdir(parents=True, exist_ok=True)
            with (place / f"{label}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                stored = _read(images, file)
                if stored is not None:  # another process has written it
                    return stored
                for outdated in place.glob(f"{escape(label)}-{'?' * 16}.*"):
                    outdated.unlink(missing_ok=True)
                return _written(images, file, place / f"{label}.partial")
        except OSError as error:
            message = f"decoded images cannot be written to {place} ({error.strerror or error})"
            raise InputError(f"{message}; set cache_dir") from error


def _decoded(images: Undecoded) -> Stored:
    """Decode images into memory."""
    pixels = np.empty(images.shape, dtype=np.uint8)
    contents: dict[str, str] = {}
    for row, (name, square, content) in enumerate(images.squares()):
        pixels[row] = square
        contents[name] = content
    return Stored(torch.from_numpy(pixels[: len(contents)]), None, contents)


def _read(images: Undecoded, path: Path) -> Stored | None:
    """Return the images in a cache file; None if it does not exist or is not complete."""
    try:
        index = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        skipped = set(index["skipped"])
        decoded = [name for name in images.names if name not in skipped]
        return _mapped(images, path, dict(zip(decoded, index["contents"], strict=True)))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _mapped(images: Undecoded, path: Path, contents: dict[str, str]) -> Stored:
    """Return the images of a file, of which there is one for each content."""
    file = RowFile(path, (len(contents), *images.shape[1:]))
    return Stored(file.memory_map(), file, contents)


def _written(images: Undecoded, path: Path, partial: Path) -> Stored:
    """Write a cache file image by image, and return it."""
    contents: dict[str, str] = {}
    try:
        with partial.open("wb") as file:
            for name, pixels, content in images.squares():
                file.write(pixels.data)
                contents[name] = content
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
        skipped = [name for name in images.names if name not in contents]
        index = {"skipped": skipped, "contents": list(contents.values())}
        partial.write_text(json.dumps(index, indent=1), encoding="utf-8")
        os.replace(partial, path.with_suffix(".json"))
    finally:
        partial.unlink(missing_ok=True)
    rank_zero_info(f"images: {len(contents)} decoded to {path}")
    return _mapped(images, path, contents)
