"""Map-style data sets: the base class of data modules that read them, and the one for those of users."""

import hashlib
from collections.abc import Callable, Iterator, Sized
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from PIL import Image, ImageOps
from pytorch_lightning.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor
from torch.utils import data as torch_data

from ssl_vision.data.datasets.decoded import DecodedData, Undecoded
from ssl_vision.data.datasets.encoded import user_cache
from ssl_vision.data.images import Images, MapDataset, class_positions, integer_classes
from ssl_vision.data.loading.decoding import Decoded, PixelRange, Square, decodable, square
from ssl_vision.data.module import Split
from ssl_vision.errors import InputError

Array = np.ndarray[tuple[int, ...], np.dtype[Any]]

_SIDE = 96
"""Smallest side of the squares that images of different or larger sizes become."""
_SAMPLE = 64


class Item(NamedTuple):
    """An image of a map-style data set with its label, -1 for none."""

    image: Image.Image | Array
    """A PIL image, or the channels of another one, (C, H, W) of any real dtype."""
    label: int

    @property
    def size(self) -> tuple[int, ...]:
        """Width and height."""
        return self.image.size if isinstance(self.image, Image.Image) else self.image.shape[:0:-1]


class MapData(DecodedData):
    """Base class of data modules that read a map-style data set for each split.

    Subclasses implement `open`, which returns the data set of a split, and `has`. Items are pairs of an image
    and a label, of which further values are ignored, or images alone. Images are PIL images, or uint8 tensors
    (3, H, W) or (1, H, W) or arrays (H, W, 3) or (H, W). Labels are integers; -1 and None mark images without
    a label.

    Args:
        root: Directory of the data set, or "" for a data set without one, whose cache is in the user's cache
            directory.
        image_size: Side of the stored squares in pixels. By default, squares of one size up to 96 pixels keep
            it, and other images become squares of the size of the views, but of at least 96 pixels.
        **options: Options of `DecodedData` and its base classes.
    """

    workers: int = 1
    """Number of threads that read items."""

    def __init__(self, *, root: str | Path, image_size: int | None = None, **options: Any) -> None:
        super().__init__(root=root, image_size=image_size, **options)
        self._has_root = root != ""
        self._open: dict[Split, MapDataset] = {}
        self._by_id = False

    @property
    def title(self) -> str:
        """Name of the data set in messages."""
        return type(self).__name__

    def open(self, split: Split) -> MapDataset:
        """Return the data set of a split.

        Raises:
            InputError: there is none.
        """
        raise NotImplementedError

    def class_names(self, dataset: MapDataset) -> tuple[str, ...]:
        """Return the names of the classes that a data set states; empty if it states none."""
        names = getattr(dataset, "classes", None)
        if not isinstance(names, (list, tuple)):
            return ()
        return tuple(str(name[0] if isinstance(name, (list, tuple)) else name) for name in names)

    def pair(self, item: Any, where: str) -> tuple[Any, Any]:
        """Return the image and the label of an item of a data set, as they are."""
        return (item[0], item[1]) if isinstance(item, (tuple, list)) and len(item) > 1 else (item, None)

    def _item(self, split: Split, row: int) -> Item:
        """Read an item; the image is a PIL image if it has three channels of 8 bits.

        Raises:
            InputError: the image is of no accepted type, or has another number of channels than the views.
        """
        where = f"{self.title}/{split}/{row}"
        image, label = self.pair(self._dataset(split)[row], where)
        values, number, channels = as_image(image, where), label_number(label, where), self.views.channels
        count = 3 if isinstance(values, Image.Image) else len(values)
        if count != channels and (count, channels) != (1, 3):
            raise InputError(
                f"{where} has {count} channels, but views.mean has {channels} numbers: give {count} numbers "
                "in each of --data.views.mean and --data.views.std"
            )
        if isinstance(values, Image.Image):
            return Item(values, number)
        if values.dtype == np.uint8 and channels == 3:
            pixels = values[0] if count == 1 else values.transpose(1, 2, 0)
            return Item(Image.fromarray(np.ascontiguousarray(pixels)), number)
        if values.dtype != np.uint8 and self.pixel_range is None:
            raise InputError(
                f"{where} is {values.dtype}: return PIL images or uint8 tensors, without ToTensor and "
                "normalisation, which the views apply, or scale with --data.pixel_range [LOW,HIGH]"
            )
        return Item(np.broadcast_to(values, (channels, *values.shape[1:])), number)

    def prepare_data(self) -> None:
        """Write the caches that are used, in one process per machine."""
        self._write_caches(*self._splits_of("validate"))

    def read(self, split: Split) -> Images:
        """Decode a split; "pretrain" is the same as "train".

        Raises:
            InputError: the split does not exist, none of its images can be decoded, or its labels are not
                those of the train split.
        """
        if split == "pretrain":
            return self.split("train")
        self.check(split)
        stored = self._stored(self._undecoded(split))
        labels = torch.tensor([int(label) for label in stored.contents.values()])
        stated, largest = self.class_names(self._dataset(split)), int(labels.max())
        if split == "train":
            self._by_id = len(stated) <= largest
            classes = integer_classes(labels) if self._by_id else stated if largest >= 0 else ()
            if self._by_id and stated:
                rank_zero_warn(
                    f"{self.title} states {len(stated)} class names, but has the label {largest}: labels "
                    "begin at 0. The names are ignored, and each label is a class"
                )
            if (missing := int((labels < 0).sum())) > 0:
                count = "no" if missing == len(labels) else f"{len(labels) - missing:,} of {len(labels):,}"
                rank_zero_info(f"images: {count} train images of {self.title} have a label")
        else:
            classes = self.classes
        if self._by_id:
            labels = class_positions(labels, classes)
        if not classes:
            labels.fill_(-1)
        elif split != "train" and (
            int(labels.max()) >= len(classes)
            or (not self._by_id and stated[: len(classes)] != classes[: len(stated)])
        ):
            raise InputError(f"the classes of {self.title}'s {split} split are not those of train")
        return Images(stored.images, labels, classes, file=stored.file)

    def _dataset(self, split: Split) -> MapDataset:
        if split not in self._open:
            self._open[split] = dataset = self.open(split)
            if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
                raise InputError(f"{self.title} is not a map-style data set: it has no length or no items")
            if not len(dataset):
                raise InputError(f"the {split} split of {self.title} has no images")
        return self._open[split]

    def _cache_place(self) -> Path:
        if self.cache_dir is None and not self._has_root:
            return user_cache() / type(self).__name__
        return super()._cache_place()

    def _undecoded(self, split: Split) -> Undecoded:
        side, where = self._side, Path(self.title, split)

        def decode(name: str) -> Decoded:
            image, label = self._item(split, int(name))
            if isinstance(image, Image.Image):
                return Decoded(name, square(image, side, self.pixel_range), str(label))
            return Decoded(name, channels_square(image, side, self.pixel_range), str(label))

        def squares() -> Iterator[Decoded]:
            return decodable(
                decode, names, where=lambda name: str(where / name), strict=self.strict, workers=self.workers
            )

        names = list(map(str, range(len(self._dataset(split)))))
        label = hashlib.sha256(self.identity.encode()).hexdigest()[:8]
        return Undecoded(
            f"{Path(self.title).name}-{label}-{split}", where, names, lambda: self._digest(split), squares,
            side=side, channels=self.views.channels, prefix=f"{split}/",
        )  # fmt: skip

    @property
    def identity(self) -> str:
        """Text that distinguishes this data set from others in a cache directory."""
        return self.title

    def _digest(self, split: Split) -> str:
        """Digest of the number of images and of the labels and pixels of 64 evenly spaced ones."""
        digest = hashlib.sha256(f"{self.identity} {len(self._dataset(split))}".encode())
        for item, pixels in self._sample(split):
            digest.update(f"{item.label} {pixels.dtype} {pixels.shape}".encode())
            digest.update(pixels.tobytes())
        return digest.hexdigest()[:16]

    def _sample(self, split: Split) -> Iterator[tuple[Item, Array]]:
        """Yield evenly spaced items that can be decoded, with their pixels."""
        count = len(self._dataset(split))
        for row in range(0, count, max(1, count // _SAMPLE)):
            try:
                item = self._item(split, row)
                pixels = np.asarray(item.image)
            except InputError:
                raise
            except Exception:  # damaged images are reported when all are decoded
                continue
            yield item, pixels

    @cached_property
    def _side(self) -> int:
        if self.image_size is not None:
            return self.image_size
        sizes = {item.size for item, _ in self._sample("train")}
        side = min(min(size) for size in sizes) if sizes else _SIDE
        return side if sizes == {(side, side)} and side <= _SIDE else max(_SIDE, self.views.size)


class Dataset(MapData):
    """A map-style data set of your own: any class with ``__len__`` and ``__getitem__``.

    Items are pairs of an image and a label, or images alone. Images are PIL images, uint8 tensors (3, H, W)
    or (1, H, W), or uint8 arrays (H, W, 3) or (H, W); do not normalise or augment them. Labels are integers;
    -1 and None mark images without a label. An attribute `classes` names the classes.

    Images may have any other number C of channels if `views.mean` and `views.std` have C numbers: tensors
    (C, H, W) or arrays (H, W, C) of any real dtype, which `pixel_range` scales to 8 bits.

    Args:
        dataset: Class of the training images, with its arguments, or a function that returns the data set.
        val_dataset: The same for the validation split. Default: there is none.
        test_dataset: The same for the test split. Default: there is none.
        **options: Options of `MapData` and its base classes.

    Example:
        >>> from torchvision.datasets import FakeData
        >>> data = Dataset(dataset=lambda: FakeData(size=20, image_size=(3, 16, 16)))
        >>> data.split("train").shape, data.has("test")
        ((3, 16, 16), False)
    """

    def __init__(
        self,
        *,
        dataset: Callable[[], Sized] | Callable[[], torch_data.Dataset[Any]],
        val_dataset: Callable[[], Sized] | Callable[[], torch_data.Dataset[Any]] | None = None,
        test_dataset: Callable[[], Sized] | Callable[[], torch_data.Dataset[Any]] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(root="", **options)
        self._factories = {"train": dataset, "val": val_dataset, "test": test_dataset}

    @property
    def title(self) -> str:
        """Name of the class of the data set."""
        return type(self._dataset("train")).__name__

    def has(self, split: Split) -> bool:
        """Return True if a data set was given for the split."""
        return split == "pretrain" or self._factories[split] is not None

    def _missing_split(self, split: Split) -> str:
        return f"there is no {split} split; set its data set with --data.{split}_dataset"

    def open(self, split: Split) -> MapDataset:
        """Make the data set of a split."""
        factory = self._factories["train" if split == "pretrain" else split]
        assert factory is not None
        return cast(MapDataset, factory())


def channels_square(values: Array, side: int, pixel_range: PixelRange | None) -> Square:
    """Resize the shorter side (antialiased bilinear), crop the centre and scale to 8 bits.

    Args:
        values: Channels of the image, (C, H, W), of any real dtype.
        side: Side of the square in pixels.
        pixel_range: Values that become 0 and 255, in all channels; None keeps the values of uint8.

    Returns:
        (C, side, side) uint8.

    Example:
        >>> channels_square(np.zeros((13, 8, 12), dtype=np.uint16), 8, (0, 10_000)).shape
        (13, 8, 8)
    """
    low, high = pixel_range or (0, 255)
    planes = [Image.fromarray(plane.astype(np.float32)) for plane in values]
    squares = np.stack(
        [np.asarray(ImageOps.fit(plane, (side, side), Image.Resampling.BILINEAR)) for plane in planes]
    )
    scaled = np.nan_to_num((squares.astype(np.float64) - low) * (255 / (high - low)))
    return scaled.round().clip(0, 255).astype(np.uint8)


def as_image(image: Any, where: str) -> Image.Image | Array:
    """Return a PIL image as it is, and a tensor (C, H, W) or an array (H, W, C) or (H, W) as (C, H, W).

    Raises:
        InputError: it is none of these.
    """
    if isinstance(image, Image.Image):
        return image
    if isinstance(image, Tensor) and image.ndim == 3:
        values: Array = image.detach().cpu().numpy()
        return values
    if isinstance(image, np.ndarray) and image.ndim in (2, 3):
        return image.transpose(2, 0, 1) if image.ndim == 3 else image[None]
    shape = f" {tuple(image.shape)}" if isinstance(image, (Tensor, np.ndarray)) else ""
    kind = f"{type(image).__name__}{shape}"
    raise InputError(f"{where} is {kind}, not a PIL image, a tensor (C, H, W) or an array (H, W, C)")


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
