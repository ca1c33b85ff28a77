"""Base class of data modules whose images are decoded to squares, in memory or in a cache file."""

import fcntl
import hashlib
import json
import math
import os
import shutil
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from pytorch_lightning.utilities import rank_zero_info
from torch import Tensor

from ssl_vision.data.augment.random_views import Views
from ssl_vision.data.augment.view_parameters import LARGEST_SIDE
from ssl_vision.data.images import RowFile
from ssl_vision.data.loading.decoding import Decoded, PixelRange, corrupt
from ssl_vision.data.module import ImageData, Split
from ssl_vision.errors import InputError, check, check_choice

_IN_MEMORY = 2**30
_VERSION = 2

IMAGENET_VIEWS = Views(size=96, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
"""Views of images of any kind, normalised as ImageNet."""


def check_decoding(image_size: int | None, pixel_range: PixelRange | None) -> None:
    """Check the options of decoding.

    Raises:
        InputError: image_size is not in 1..4096, or pixel_range is empty.
    """
    check("image_size", image_size, at_least=1, at_most=LARGEST_SIDE)
    if pixel_range is not None and not -math.inf < pixel_range[0] < pixel_range[1] < math.inf:
        raise InputError(f"pixel_range must be (low, high) with low < high, not {pixel_range}")


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


class DecodedData(ImageData):
    """Base class of data modules whose images are decoded to squares, in memory or in a cache file.

    Args:
        root: Directory of the data set.
        views: Random views of the images.
        image_size: Side of the stored images in pixels; None leaves the choice to the subclass.
        pixel_range: Values of grey images of more than 8 bits that become black and white, such as
            [0, 4095]. By default, the upper 8 of 16 bits are used. Images with other than one or three
            channels, which `Dataset` reads, need it unless they are uint8.
        strict: Raise an error for an image that cannot be decoded, instead of skipping it with a warning.
        cache: When to store the squares in a file: "auto" if they exceed 1 GiB, "always" or "never".
        cache_dir: Directory of that file. Default: root/.ssl_vision_cache, or the user's cache directory if
            root is not writable.
        **options: Options of `ImageData`.

    Raises:
        InputError: image_size is not in 1..4096, cache is not one of its three values, or pixel_range is
            empty.
    """

    def __init__(
        self,
        *,
        root: str | Path,
        views: Views = IMAGENET_VIEWS,
        image_size: int | None = None,
        pixel_range: PixelRange | None = None,
        strict: bool = False,
        cache: Literal["auto", "always", "never"] = "auto",
        cache_dir: str | Path | None = None,
        **options: Any,
    ) -> None:
        super().__init__(root=root, views=views, **options)
        check_decoding(image_size, pixel_range)
        check_choice("cache", cache, ("auto", "always", "never"))
        self.pixel_range = pixel_range
        self.strict = strict
        self.cache = cache
        self.cache_dir = None if cache_dir is None else Path(os.path.expanduser(cache_dir))

    def _cache_place(self) -> Path:
        """Return the directory of the cache files."""
        return cache_place(self.root, self.cache_dir)

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
        size = len(images.names) * images.channels * images.side**2
        return self.cache == "always" or (self.cache == "auto" and size > _IN_MEMORY)

    def _stored(self, images: Undecoded) -> Stored:
        """Decode images, or read them from their file; those that cannot be decoded are skipped."""
        stored = self._cached(images) if self._is_cached(images) else _decoded(images)
        skipped = [name for name in images.names if name not in stored.contents]
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
        stored = cache.read()
        if stored is None:
            cache.write()
            stored = cache.read()
        if stored is None:
            raise InputError(f"{cache.place} was changed while it was being written; start again")
        if self.strict and len(stored.contents) < len(images.names):
            skipped = next(name for name in images.names if name not in stored.contents)
            raise corrupt(images.where / skipped, "according to the cache")
        return stored


def _decoded(images: Undecoded) -> Stored:
    """Decode images into memory."""
    shape = (len(images.names), images.channels, images.side, images.side)
    pixels = np.empty(shape, dtype=np.uint8)
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
        side, channels = self._images.side, self._images.channels
        try:
            index = json.loads(self._index.read_text(encoding="utf-8"))
            skipped = set(index["skipped"])
            decoded = [name for name in self._images.names if name not in skipped]
            contents = dict(zip(decoded, index["contents"], strict=True))
            file = RowFile(self._pixels, (len(decoded), channels, side, side))
            return Stored(file.memory_map(), file, contents) if index["version"] == _VERSION else None
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
                    for suffix in ("json", "uint8"):  # outdated caches
                        for file in self.place.glob(f"{escape(self._label)}-{'?' * 16}.{suffix}"):
                            file.unlink(missing_ok=True)
                    self._write()
        except OSError as error:
            cause = error.strerror or str(error)
            raise InputError(
                f"decoded images cannot be written to {self.place} ({cause}); set cache_dir"
            ) from error

    def _write(self) -> None:
        names = self._images.names
        size = len(names) * self._images.channels * self._images.side**2
        free = shutil.disk_usage(self.place).free
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
            index = {"version": _VERSION, "skipped": skipped, "contents": list(contents.values())}
            partial.write_text(json.dumps(index, indent=1), encoding="utf-8")
            os.replace(partial, self._index)
        finally:
            partial.unlink(missing_ok=True)
        rank_zero_info(f"images: {len(contents)} decoded to {self._pixels}")


def cache_place(root: Path, chosen: Path | None) -> Path:
    """Return the directory of the caches of `root`.

    By default it is inside root, or inside the user's cache directory if root is not writable. Inside the
    user's or a chosen directory, each root has its own subdirectory.
    """
    if chosen is None:
        if os.access(root, os.W_OK):
            return root / ".ssl_vision_cache"
        chosen = user_cache()
    root = root.resolve()
    return chosen / f"{root.name}-{hashlib.sha256(bytes(root)).hexdigest()[:8]}"


def user_cache() -> Path:
    """Return the directory of this package in the user's cache directory."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ssl_vision"
