"""Base class of data modules whose images are decoded to squares."""

import math
import os
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ssl_vision.data.augment.options import LARGEST_SIDE
from ssl_vision.data.augment.views import Views
from ssl_vision.data.loading.decoded_cache import Cache, Cached, Undecoded, cache_place
from ssl_vision.data.loading.decoding import PixelRange, corrupt
from ssl_vision.data.loading.memmap import RowFile
from ssl_vision.data.module import ImageData
from ssl_vision.errors import InputError

_IN_MEMORY = 2**30

IMAGENET_VIEWS = Views(size=96, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
"""Views of images of any kind, normalised as ImageNet."""


def check_decoding(image_size: int | None, pixel_range: PixelRange | None) -> None:
    """Check the options of decoding.

    Raises:
        InputError: image_size is not in 1..4096, or pixel_range is empty.
    """
    if image_size is not None and image_size < 1:
        raise InputError(f"image_size must be 1 or more, not {image_size}")
    if image_size is not None and image_size > LARGEST_SIDE:
        raise InputError(f"image_size must be {LARGEST_SIDE} or less, not {image_size}")
    if pixel_range is not None and not -math.inf < pixel_range[0] < pixel_range[1] < math.inf:
        raise InputError(f"pixel_range must be (low, high) with low < high, not {pixel_range}")


class Stored(NamedTuple):
    """Decoded images of a split.

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
        views: Views,
        image_size: int | None,
        pixel_range: PixelRange | None = None,
        strict: bool = False,
        cache: Literal["auto", "always", "never"] = "auto",
        cache_dir: str | Path | None = None,
        **options: Any,
    ) -> None:
        super().__init__(root=root, views=views, **options)
        check_decoding(image_size, pixel_range)
        if cache not in ("auto", "always", "never"):
            raise InputError(f"cache must be auto, always or never, not {cache}")
        self.pixel_range = pixel_range
        self.strict = strict
        self.cache = cache
        self.cache_dir = None if cache_dir is None else Path(os.path.expanduser(cache_dir))

    def _cache_place(self) -> Path:
        """Return the directory of the cache files."""
        return cache_place(self.root, self.cache_dir)

    def _large(self, images: Undecoded, side: int) -> bool:
        """Return True if the squares are stored in a file."""
        size = len(images.names) * images.channels * side**2
        return self.cache == "always" or (self.cache == "auto" and size > _IN_MEMORY)

    def _stored(self, images: Undecoded, side: int, *, where: Path, prefix: str = "") -> Stored:
        """Decode images, or read them from their file; those that cannot be decoded are skipped.

        Args:
            images: The images.
            side: Side of the squares in pixels.
            where: Their directory, for messages.
            prefix: Prefix of their names in `skipped`.
        """
        if self._large(images, side):
            file, skipped, contents = self._cached(images, side, where=where)
            stored = Stored(file.mapped(), file, contents)
        else:
            stored = _decoded(images, side)
            skipped = [name for name in images.names if name not in stored.contents]
        if skipped:
            _warn(where, skipped, len(images.names))
            self.skipped += tuple(prefix + name for name in skipped)
        return stored

    def _cached(self, images: Undecoded, side: int, *, where: Path) -> Cached:
        """Return the images in a cache file, which is created if it does not exist."""
        if self.pixel_range is not None:
            low, high = self.pixel_range
            images = replace(images, label=f"{images.label}-{low:g}-{high:g}")
        cache = Cache(self._cache_place(), images, side=side)
        cached = cache.read()
        if cached is None:
            cache.write()
            cached = cache.read()
        if cached is None:
            raise InputError(f"{cache.place} was changed while it was being written; start again")
        if cached.skipped and self.strict:
            raise corrupt(where / cached.skipped[0], "according to the cache")
        return cached


def _decoded(images: Undecoded, side: int) -> Stored:
    """Decode images into memory."""
    pixels = np.empty((len(images.names), images.channels, side, side), dtype=np.uint8)
    contents: dict[str, str] = {}
    for row, (name, square, content) in enumerate(images.squares()):
        pixels[row] = square
        contents[name] = content
    return Stored(torch.from_numpy(pixels[: len(contents)]), None, contents)


def _warn(where: Path, skipped: list[str], count: int) -> None:
    first = ", ".join(str(where / name) for name in skipped[:3]) + (", ..." if len(skipped) > 3 else "")
    message = f"skipped {len(skipped)} of {count} images that cannot be decoded: {first}"
    warnings.warn(message, stacklevel=4)
