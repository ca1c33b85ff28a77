"""Images of map-style data sets, such as those of torchvision."""

from collections.abc import Callable
from typing import Any, Protocol, Self

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from ssl_vision.data.augment.parameters import ViewParameters
from ssl_vision.data.augment.views import Views
from ssl_vision.data.images import Images, integer_classes, numbered
from ssl_vision.data.loading.decoding import to_rgb
from ssl_vision.errors import InputError

_IN_MEMORY = 2**32
"""Maximum size of images kept in memory in bytes; larger data sets are read on demand."""


class MapDataset(Protocol):
    """A data set whose items are pairs of an image and an integer label."""

    def __len__(self) -> int:
        """Return the number of images."""
        ...

    def __getitem__(self, index: int, /) -> Any:
        """Return an image and its label."""
        ...


class PreparedViews(Views):
    """Views of images that are already resized and normalised, which cannot be augmented."""

    def plain(self, images: Tensor) -> Tensor:
        """Return the images as they are."""
        return images

    def from_states(self, *args: Any, **options: Any) -> Tensor:
        """Refuse to augment.

        Raises:
            ValueError: always.
        """
        raise _not_augmented()

    def parameters(self, *args: Any, **options: Any) -> ViewParameters:
        """Refuse to augment.

        Raises:
            ValueError: always.
        """
        raise _not_augmented()


def _not_augmented() -> ValueError:
    return ValueError(
        "it needs augmented views, but the data set returns normalised tensors; return PIL images or uint8 "
        "tensors, and set views"
    )


class DatasetImages(Images):
    """Images of a map-style data set that are read on demand, or already normalised.

    Args:
        read: function that returns the image of a row of the data set as a tensor (C, H, W).
        shape: (C, H, W) of all images.
        labels: (N,) int64, -1 for images without a label.
        classes: names of the classes.
        rows: rows of the data set, (N,) int64.
        workers: number of processes in which a loader reads batches.
        digest: digest of all images of the data set, if it is known without reading them.
    """

    rows: Tensor

    def __init__(
        self,
        read: Callable[[int], Tensor],
        shape: tuple[int, ...],
        labels: Tensor,
        classes: tuple[str, ...],
        rows: Tensor,
        *,
        workers: int = 0,
        digest: str = "",
    ) -> None:
        super().__init__(torch.empty(0, 3, 1, 1, dtype=torch.uint8), labels, classes, rows=rows)
        self._read, self._shape = read, shape
        self.workers, self.digest = workers, digest

    @property
    def shape(self) -> tuple[int, ...]:
        """(C, H, W) of an image."""
        return self._shape

    @property
    def images(self) -> Tensor:
        """All images, (N, C, H, W)."""
        return self.at(torch.arange(len(self)))

    def select(self, indices: Tensor) -> Self:
        """Return the rows at ``indices``, (M,) int64 or an (N,) bool mask, in that order."""
        return self._with(self.labels[indices], self.rows[indices])

    def relabelled(self, labels: Tensor) -> Self:
        """Return the same images with other labels (N,) of the same classes."""
        return self._with(labels, self.rows)

    def at(self, indices: Tensor, *, pin: bool = False) -> Tensor:
        """Read the images at ``indices``, (M,) int64."""
        images = torch.stack([self._read(row) for row in self.rows[indices].tolist()])
        return images.pin_memory() if pin else images

    def _with(self, labels: Tensor, rows: Tensor) -> Self:
        return type(self)(
            self._read, self._shape, labels, self.classes, rows, workers=self.workers, digest=self.digest
        )


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
    first, _ = _image_and_label(dataset, 0, name)
    if size is not None and isinstance(first, Image.Image) and first.width == first.height:
        try:
            return _read(dataset, count, name, size=None)
        except _SizesDifferError:
            pass
    return _read(dataset, count, name, size=size)


class _SizesDifferError(InputError):
    pass


def _read(dataset: MapDataset, count: int, name: str, *, size: int | None) -> Images:
    def read(row: int) -> Tensor:
        image, _ = _image_and_label(dataset, row, name)
        return _image(image, size=size, where=f"{name}[{row}]")

    first = read(0)
    shape, in_memory = tuple(first.shape), count * first.nbytes <= _IN_MEMORY
    store = torch.empty((count if in_memory else 0, *shape), dtype=first.dtype)
    labels = torch.empty(count, dtype=torch.int64)
    for row in range(count):
        image, label = _image_and_label(dataset, row, name)
        labels[row] = label_number(label, f"{name}[{row}]")
        pixels = _image(image, size=size, where=f"{name}[{row}]")
        if pixels.shape != shape or pixels.dtype != first.dtype:
            raise _SizesDifferError(
                f"{name}[{row}] is {pixels.dtype} {tuple(pixels.shape)}, {name}[0] {first.dtype} {shape}: "
                "images of one size and type are required"
            )
        if in_memory:
            store[row] = pixels
    classes = integer_classes(labels)
    labels = numbered(labels, classes)
    if in_memory and store.dtype == torch.uint8:
        return Images(store, labels, classes)
    getter = store.__getitem__ if in_memory else read
    return DatasetImages(getter, shape, labels, classes, torch.arange(count))


def prepared_views(images: Images) -> PreparedViews:
    """Return the views of images that are already normalised."""
    height, width = images.shape[-2:]
    return PreparedViews(size=max(height, width))


def _image_and_label(dataset: MapDataset, row: int, name: str) -> tuple[Any, Any]:
    item = dataset[row]
    if not isinstance(item, (tuple, list)) or len(item) < 2:
        raise InputError(f"{name}[{row}] must be a pair (image, label), got {type(item).__name__}")
    return item[0], item[1]


def label_number(label: Any, where: str) -> int:
    """Return a label as an integer; None becomes -1.

    Raises:
        InputError: it is not an integer of -1 or more.
    """
    if label is None:
        return -1
    try:
        number = int(label)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{where} has the label {label!r}; labels must be integers") from error
    if not isinstance(label, str) and number != label:
        raise InputError(f"{where} has the label {label!r}; labels must be integers")
    if number < -1:
        raise InputError(f"{where} has the label {number}; labels must be -1 or more")
    return number


def _image(image: Any, *, size: int | None, where: str) -> Tensor:
    """Return an image as a tensor (3, H, W), uint8 or floating-point."""
    if isinstance(image, Image.Image):
        image = to_rgb(image)
        if size is not None and image.size != (size, size):
            image = ImageOps.fit(image, (size, size), Image.Resampling.BILINEAR)
        return torch.from_numpy(np.array(image)).permute(2, 0, 1)
    if isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.ndim in (2, 3):
        image = torch.from_numpy(image if image.ndim == 3 else image[:, :, None]).permute(2, 0, 1)
    if not isinstance(image, Tensor) or image.ndim != 3 or image.shape[0] not in (1, 3):
        description = f"{image.dtype} {tuple(image.shape)}" if isinstance(image, (Tensor, np.ndarray)) else ""
        raise InputError(f"{where} is not an image (3, H, W): {description or type(image).__name__}")
    if image.dtype != torch.uint8 and not image.is_floating_point():
        raise InputError(f"{where} is {image.dtype}; images must be uint8 or floating-point")
    return image.expand(3, -1, -1)
