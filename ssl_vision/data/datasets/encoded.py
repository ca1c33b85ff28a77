"""Base class of data modules that decode images, and images that are decoded for each batch."""

import hashlib
import math
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

import torch
from numpy.typing import NDArray
from torch import Tensor

from ssl_vision.data.augment.random_views import Views
from ssl_vision.data.augment.view_parameters import LARGEST_SIDE
from ssl_vision.data.images import Images
from ssl_vision.data.loading.decoding import PixelRange, decode_square, decoding_error
from ssl_vision.data.module import ImageData
from ssl_vision.errors import InputError, check
from ssl_vision.optional import available_cores

_MOST_ATTEMPTS = 1024

_VIEWS = Views(size=96, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
"""Views of images of any kind, normalised as ImageNet."""


class EncodedData(ImageData):
    """Base class of data modules that decode images to squares.

    Args:
        root: Directory of the data set.
        views: Random views of the images.
        image_size: Side of the squares in pixels; None leaves the choice to the subclass.
        pixel_range: Values of grey images of more than 8 bits that become black and white, such as
            [0, 4095]. By default, the upper 8 of 16 bits are used. Images with other than one or three
            channels, which `Dataset` reads, need it unless they are uint8.
        strict: Raise an error for an image that cannot be decoded, instead of skipping it, or replacing it in
            batches, with a warning.
        cache_dir: Directory of cache files. Default: root/.ssl_vision_cache, or the user's cache directory if
            root is not writable.
        **options: Options of `ImageData`.

    Raises:
        InputError: image_size is not in 1..4096, or pixel_range is empty.
    """

    few_labels: ClassVar[int] = 2000

    def __init__(
        self,
        *,
        root: str | Path,
        views: Views = _VIEWS,
        image_size: int | None = None,
        pixel_range: PixelRange | None = None,
        strict: bool = False,
        cache_dir: str | Path | None = None,
        **options: Any,
    ) -> None:
        super().__init__(root=root, views=views, **options)
        check("image_size", image_size, at_least=1, at_most=LARGEST_SIDE)
        if pixel_range is not None and not -math.inf < pixel_range[0] < pixel_range[1] < math.inf:
            raise InputError(f"pixel_range must be (low, high) with low < high, not {pixel_range}")
        self.image_size = image_size
        self.pixel_range = pixel_range
        self.strict = strict
        self.cache_dir = None if cache_dir is None else Path(os.path.expanduser(cache_dir))

    def _cache_place(self) -> Path:
        """Return the directory of cache files.

        Inside the user's or a chosen directory, each root has its own subdirectory.
        """
        if self.cache_dir is None and os.access(self.root, os.W_OK):
            return self.root / ".ssl_vision_cache"
        root = self.root.resolve()
        name = f"{root.name}-{hashlib.sha256(bytes(root)).hexdigest()[:8]}"
        return (self.cache_dir or user_cache()) / name

    def _encoded(
        self, files: "Files", classes: tuple[str, ...], *, side: int, workers: int | None
    ) -> "EncodedImages":
        """Return images that are decoded for each batch.

        Args:
            files: The images.
            classes: Names of the classes of the train split.
            side: Side of the squares in pixels.
            workers: Number of processes; None divides the cores by the devices of this machine.
        """
        check("workers", workers, at_least=0)
        if workers is None:
            devices = self.trainer.num_devices if self.trainer else int(os.environ.get("LOCAL_WORLD_SIZE", 1))
            workers = max(1, available_cores() // devices)
        return EncodedImages(
            files, classes, side=side, pixel_range=self.pixel_range, strict=self.strict, workers=workers
        )


def user_cache() -> Path:
    """Return the directory of this package in the user's cache directory."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ssl_vision"


class Files(Protocol):
    """Compressed images by row: a `Listing` of files, or a `TarIndex`."""

    @property
    def labels(self) -> NDArray[Any]:
        """Class index of each image, (N,); -1 for images without a label."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes."""

    def path(self, row: int) -> str:
        """Return the path of an image."""

    def content(self, row: int) -> bytes:
        """Read a compressed image."""

    def digest(self) -> str:
        """Return a digest of all images."""


class EncodedImages(Images):
    """Images that a loader decodes in worker processes; an image depends only on the files.

    An image that cannot be decoded is replaced, with a warning, by another one of the same label that can,
    among at most 1,024. Images next to each other have different substitutes. If a file exists but cannot be
    read now, that is an error.

    Args:
        files: Compressed images, whose labels are positions in ``files.classes``.
        classes: Names of the classes of the train split; an image of another class has no label.
        side: Side of the squares in pixels.
        pixel_range: Values of grey images of more than 8 bits that become black and white.
        strict: Raise an error for an image that cannot be decoded.
        workers: Number of processes.
    """

    rows: Tensor

    def __init__(
        self,
        files: Files,
        classes: tuple[str, ...],
        *,
        side: int,
        pixel_range: PixelRange | None,
        strict: bool,
        workers: int,
    ) -> None:
        positions = {name: position for position, name in enumerate(classes)}
        label_of_class = torch.tensor([*(positions.get(name, -1) for name in files.classes), -1])
        labels = label_of_class[torch.from_numpy(files.labels).long()]
        nothing = torch.empty(0, 3, side, side, dtype=torch.uint8)
        super().__init__(nothing, labels, classes, rows=torch.arange(len(labels)))
        self.workers, self.digest = workers, f"{files.digest()} {side} {pixel_range}"
        self._files, self._side, self._pixel_range, self._strict = files, side, pixel_range, strict
        self._all_labels = labels
        self._among = torch.ones(len(labels), dtype=torch.bool)
        self._replaced_rows: set[int] = set()

    def separate(self, mask: Tensor) -> Self:
        """Select the images of a mask, (N,) bool, so that none is ever replaced by an image outside it."""
        part = self.select(mask)
        return part.relabelled(part.labels)

    def relabelled(self, labels: Tensor) -> Self:
        """Return the same images with other labels (N,); none is replaced by one of another label."""
        part = super().relabelled(labels)
        part._all_labels = self._all_labels.index_put((self.rows,), labels)
        part._among = torch.zeros_like(self._among)
        part._among[self.rows] = True
        part._replaced_rows = set()
        return part

    def at(self, indices: Tensor, *, pin: bool = False) -> Tensor:
        """Decode the images at ``indices``, (M,) int64, and count those that are replaced.

        Raises:
            InputError: an image and all its substitutes cannot be decoded, `strict` is set and it cannot, or
                a file cannot be read now, for example because of a fault of the disk.
        """
        rows = self.rows[indices].tolist()
        images = torch.stack([self._decoded_or_replaced(row) for row in rows])
        self.replaced += len(self._replaced_rows & set(rows))
        return images.pin_memory() if pin else images

    def _decoded_or_replaced(self, row: int) -> Tensor:
        image = self._attempt(row)
        if isinstance(image, Tensor):
            return image
        failure = decoding_error(self._files.path(row), image, strict=False)
        like = ((self._all_labels == self._all_labels[row]) & self._among).nonzero()
        for substitute in _spread(like, int((like < row).sum()), row):
            image = self._attempt(substitute)
            if isinstance(image, Tensor):
                self._replaced_rows.add(row)
                warnings.warn(
                    f"{self._files.path(row)} cannot be decoded and is replaced by "
                    f"{self._files.path(substitute)}; remove it, or set strict true to stop",
                    stacklevel=2,
                )
                return image
        raise failure

    def _attempt(self, row: int) -> Tensor | Exception:
        """Decode an image, or return why it is damaged."""
        try:
            return decode_square(self._files.content(row), self._side, self._pixel_range)
        except Exception as error:  # Pillow may raise nearly anything for damaged files, without a number
            if self._strict or isinstance(error, MemoryError) or getattr(error, "errno", None) is not None:
                raise decoding_error(self._files.path(row), error, strict=self._strict) from error
            return error


def _spread(rows: Tensor, start: int, row: int) -> Iterator[int]:
    """Yield rows (K, 1) other than `row`: half of them after the start, then a quarter, three quarters, ...

    Each step shifts the start, so images that are damaged in a row have different substitutes.
    """
    bits = len(rows).bit_length()
    for number in range(1, min(2**bits, _MOST_ATTEMPTS)):
        offset = len(rows) * int(f"{number:0{bits}b}"[::-1], 2) >> bits
        if (other := int(rows[(start + offset) % len(rows)])) != row:
            yield other
