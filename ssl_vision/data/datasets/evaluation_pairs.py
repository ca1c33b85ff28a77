"""Images and labels of map-style data sets of pairs that are evaluated in Python."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from ssl_vision.data.augment.random_views import Views
from ssl_vision.data.datasets.map_style import as_image, label_number
from ssl_vision.data.images import Images, MapDataset, class_positions, integer_classes
from ssl_vision.data.loading.decoding import to_rgb
from ssl_vision.errors import InputError

_IN_MEMORY = 2**32
"""Maximum size of images kept in memory in bytes; larger data sets are read on demand."""


class PreparedViews(Views):
    """Views of images that are already resized and normalised, which cannot be augmented."""

    def plain(self, images: Tensor) -> Tensor:
        """Return the images as they are."""
        return images

    def _check(self, images: Tensor) -> None:
        raise ValueError(
            "it needs augmented views, but the data set returns normalised tensors; return PIL images or "
            "uint8 tensors, and set views"
        )


class DatasetImages(Images):
    """Images of a map-style data set that are read on demand, or already normalised.

    Args:
        read: function that returns the image of a row of the data set as a tensor (C, H, W).
        shape: (C, H, W) of all images.
        labels: (N,) int64, -1 for images without a label.
        classes: names of the classes.
    """

    rows: Tensor

    def __init__(
        self, read: Callable[[int], Tensor], shape: tuple[int, ...], labels: Tensor, classes: tuple[str, ...]
    ) -> None:
        nothing = torch.empty(0, *shape, dtype=torch.uint8)
        super().__init__(nothing, labels, classes, rows=torch.arange(len(labels)))
        self._read = read

    def at(self, indices: Tensor, *, pin: bool = False) -> Tensor:
        """Read the images at ``indices``, (M,) int64."""
        images = torch.stack([self._read(row) for row in self.rows[indices].tolist()])
        return images.pin_memory() if pin else images


def read_dataset(dataset: MapDataset, *, size: int | None = None) -> Images:
    """Read the labels of a map-style data set, and its images if they take at most 4 GiB.

    Images are PIL images, uint8 tensors (3, H, W) or (1, H, W), uint8 arrays (H, W, 3) or (H, W), or
    floating-point tensors (3, H, W) that are already normalised. Labels are integers; -1 or None marks an
    image without a label.

    Args:
        dataset: the data set; ``dataset[i]`` is a pair (image, label), and further values are ignored.
        size: side in pixels of the squares that PIL images are converted to (shorter side resized, longer
            one centre cropped), unless all of them are squares of one size. None requires images of one size.

    Raises:
        InputError: the data set is empty or has no length, an item is not a pair, or image sizes differ.

    Example:
        >>> pairs = [(torch.zeros(3, 8, 8, dtype=torch.uint8), label) for label in (0, 1, 1)]
        >>> images = read_dataset(pairs)
        >>> images.at(torch.tensor([0, 2])).shape, images.labels
        (torch.Size([2, 3, 8, 8]), tensor([0, 1, 1]))
    """
    name = type(dataset).__name__
    try:
        count = len(dataset)
    except TypeError as error:
        raise InputError(f"{name} has no length; a map-style data set is required") from error
    if not count:
        raise InputError(f"{name} has no images")
    first, _ = _pair(dataset, 0, name)
    if size is not None and isinstance(first, Image.Image) and first.width == first.height:
        with suppress(_SizesDifferError):
            return _read(dataset, count, name, size=None)
    return _read(dataset, count, name, size=size)


class _SizesDifferError(InputError):
    pass


def _read(dataset: MapDataset, count: int, name: str, *, size: int | None) -> Images:
    def read(row: int) -> Tensor:
        return _pixels(_pair(dataset, row, name)[0], size, f"{name}[{row}]")

    first = read(0)
    in_memory = count * first.nbytes <= _IN_MEMORY
    store = torch.empty((count if in_memory else 0, *first.shape), dtype=first.dtype)
    ids = torch.empty(count, dtype=torch.int64)
    for row in range(count):
        image, label = _pair(dataset, row, name)
        ids[row] = label_number(label, f"{name}[{row}]")
        pixels = _pixels(image, size, f"{name}[{row}]")
        if pixels.shape != first.shape or pixels.dtype != first.dtype:
            raise _SizesDifferError(
                f"{name}[{row}] is {pixels.dtype} {tuple(pixels.shape)}, {name}[0] {first.dtype} "
                f"{tuple(first.shape)}: images of one size and type are required"
            )
        if in_memory:
            store[row] = pixels
    classes = integer_classes(ids)
    labels = class_positions(ids, classes)
    if in_memory and store.dtype == torch.uint8:
        return Images(store, labels, classes)
    return DatasetImages(store.__getitem__ if in_memory else read, tuple(first.shape), labels, classes)


def prepared_views(images: Images) -> PreparedViews:
    """Return the views of images that are already normalised."""
    height, width = images.shape[-2:]
    return PreparedViews(size=max(height, width))


def _pair(dataset: MapDataset, row: int, name: str) -> tuple[Any, Any]:
    item = dataset[row]
    if not isinstance(item, (tuple, list)) or len(item) < 2:
        raise InputError(f"{name}[{row}] must be a pair (image, label), got {type(item).__name__}")
    return item[0], item[1]


def _pixels(image: Any, size: int | None, where: str) -> Tensor:
    """Return an image as a tensor (3, H, W), uint8 or floating-point."""
    values = as_image(image, where)
    if isinstance(values, Image.Image):
        rgb = to_rgb(values)
        if size is not None and rgb.size != (size, size):
            rgb = ImageOps.fit(rgb, (size, size), Image.Resampling.BILINEAR)
        return torch.from_numpy(np.array(rgb)).permute(2, 0, 1)
    if len(values) not in (1, 3) or (values.dtype != np.uint8 and values.dtype.kind != "f"):
        raise InputError(
            f"{where} is {values.dtype} {values.shape}; tensors must have one or three channels, and be "
            "uint8 or floating-point"
        )
    return torch.from_numpy(np.ascontiguousarray(values)).expand(3, -1, -1)
