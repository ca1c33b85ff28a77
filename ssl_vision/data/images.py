"""Images with labels, the files that they may be read from, and batches."""

import copy
import math
import mmap
import os
import warnings
import weakref
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

import torch
from torch import Tensor

from ssl_vision.errors import InputError


class RowFile:
    """File of N consecutive images. It remains readable after its name has been deleted.

    Args:
        path: Path of the file.
        shape: (N, 3, H, W).

    Raises:
        InputError: the size of the file does not match the shape.
        OSError: the file cannot be opened.
    """

    def __init__(self, path: Path, shape: tuple[int, int, int, int]) -> None:
        self.path, self.shape = path, shape
        self._row = math.prod(shape[1:])
        self._file = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)
        if os.fstat(self._file).st_size != self._row * shape[0]:
            raise self._damaged()

    def memory_map(self) -> Tensor:
        """Return all images as a read-only memory map, (N, 3, H, W) uint8."""
        pages = mmap.mmap(self._file, 0, access=mmap.ACCESS_READ)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given buffer is not writable")
            return torch.frombuffer(pages, dtype=torch.uint8).view(self.shape)

    def read(self, rows: Tensor, *, pin: bool = False) -> Tensor:
        """Copy rows, with read-ahead; unlike a memory map, this does not count as memory of the process.

        Args:
            rows: (M,) int64 in 0..N-1, on the CPU.
            pin: Copy into page-locked memory.

        Returns:
            (M, 3, H, W) uint8.

        Raises:
            InputError: the file is too short.
        """
        batch = torch.empty((len(rows), *self.shape[1:]), dtype=torch.uint8, pin_memory=pin)
        size, numbers = self._row, rows.tolist()
        if hasattr(os, "posix_fadvise"):
            for number in sorted(numbers):
                os.posix_fadvise(self._file, number * size, size, os.POSIX_FADV_WILLNEED)
        target = memoryview(batch.view(-1).numpy())  # type: ignore[arg-type]
        for i, number in enumerate(numbers):
            part = target[i * size : (i + 1) * size]
            if os.preadv(self._file, [part], number * size) != size:
                raise self._damaged()
        return batch

    def _damaged(self) -> InputError:
        return InputError(f"{self.path} is damaged; delete it, so that it is created again")


class Images:
    """Decoded images with labels: a store of images, or selected rows of one without copying them.

    Args:
        images: the store, (M, C, H, W) uint8.
        labels: indices into `classes`, (N,) int64; -1 marks an image without a label.
        classes: names of the classes.
        rows: selected rows of the store, (N,) int64; None selects all of them, so that N = M.
        file: file that the store is mapped from, which is used to read selected rows; None if the store is
            in memory.

    Attributes:
        store: (M, C, H, W) uint8.
        labels: (N,) int64.
        classes: names of the classes.
        rows: (N,) int64 or None.
        file: a `RowFile` or None.
        workers: number of processes in which a loader reads batches, for images that are decoded each time.
        replaced: number of such images that could not be decoded and were replaced by others.
        digest: digest of the store of such images, which is computed without decoding them; "" for others.

    Raises:
        InputError: a shape, dtype or label is invalid.

    Example:
        >>> import torch
        >>> pixels, labels = torch.zeros(4, 3, 8, 8, dtype=torch.uint8), torch.tensor([0, 1, 1, -1])
        >>> images = Images(pixels, labels, ("cat", "dog"))
        >>> len(images), images.shape
        (4, (3, 8, 8))
        >>> len(images.select(images.labelled))
        3
    """

    workers: int = 0
    replaced: int = 0
    digest: str = ""

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        classes: tuple[str, ...],
        *,
        rows: Tensor | None = None,
        file: RowFile | None = None,
    ) -> None:
        count = images.shape[:1] if rows is None else rows.shape
        if images.dtype != torch.uint8 or images.ndim != 4:
            raise InputError(f"images must be uint8 (N, C, H, W), not {images.dtype} {tuple(images.shape)}")
        if labels.dtype != torch.int64 or labels.shape != count:
            raise InputError(f"labels must be int64 {tuple(count)}, not {labels.dtype} {tuple(labels.shape)}")
        if len(labels) and (int(labels.min()) < -1 or int(labels.max()) >= len(classes)):
            raise InputError(f"labels must lie in -1..{len(classes) - 1}, the positions of the classes")
        self.store = images
        self.labels = labels
        self.classes = classes
        self.rows = rows
        self.file = file

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def images(self) -> Tensor:
        """(N, C, H, W) uint8: the store, or a copy of the selected rows."""
        return self.store if self.rows is None else self.at(torch.arange(len(self), device=self.rows.device))

    @property
    def shape(self) -> tuple[int, ...]:
        """(C, H, W) of an image."""
        return tuple(self.store.shape[1:])

    @property
    def labelled(self) -> Tensor:
        """(N,) bool: True where the image has a label."""
        return self.labels >= 0

    @property
    def only_class(self) -> str:
        """Name of the class of all labelled images; empty if there are several or none."""
        classes = self.labels[self.labelled].unique()
        return self.classes[int(classes)] if len(classes) == 1 else ""

    def select(self, indices: Tensor) -> Self:
        """Select the images at `indices`, (M,) int64 or an (N,) bool mask, without copying pixels."""
        part = copy.copy(self)
        rows = torch.arange(len(self), device=self.store.device) if self.rows is None else self.rows
        part.labels, part.rows = self.labels[indices], rows[indices]
        return part

    def separate(self, mask: Tensor) -> Self:
        """Select the images of a mask, (N,) bool, so that none is ever replaced by an image outside it."""
        return self.select(mask)

    def relabelled(self, labels: Tensor) -> Self:
        """Return the same images with other labels (N,) of the same classes."""
        other = copy.copy(self)
        other.labels = labels
        return other

    def at(self, indices: Tensor, *, pin: bool = False) -> Tensor:
        """Copy the images at `indices`; no others are read.

        Args:
            indices: (M,) int64 in 0..N-1, on the device of the images.
            pin: copy into page-locked memory, which allows asynchronous transfers to CUDA devices.

        Returns:
            (M, C, H, W) uint8.
        """
        rows = indices if self.rows is None else self.rows[indices]
        if self.file is not None:
            return self.file.read(rows, pin=pin)
        if not pin:
            return self.store.index_select(0, rows)
        batch = torch.empty((len(rows), *self.store.shape[1:]), dtype=torch.uint8, pin_memory=True)
        return torch.index_select(self.store, 0, rows, out=batch)


def integer_classes(ids: Tensor) -> tuple[str, ...]:
    """Return names of integer labels, 0 to the largest, or those that occur if that is more than images.

    Example:
        >>> integer_classes(torch.tensor([2, 0, 0])), integer_classes(torch.tensor([7, 10**11, -1]))
        (('0', '1', '2'), ('7', '100000000000'))
    """
    largest = int(ids.max())
    names = range(largest + 1) if largest < len(ids) else ids[ids >= 0].unique().tolist()
    return tuple(map(str, names))


def class_positions(ids: Tensor, classes: tuple[str, ...]) -> Tensor:
    """Return positions of integer labels in their names; -1 stays, and an unknown one becomes the number."""
    values, rows = ids.unique(return_inverse=True)
    positions = {name: position for position, name in enumerate(("-1", *classes), start=-1)}
    return torch.tensor([positions.get(str(value), len(classes)) for value in values.tolist()])[rows]


class MapDataset(Protocol):
    """A data set whose items are pairs of an image and an integer label."""

    def __len__(self) -> int:
        """Return the number of images."""
        ...

    def __getitem__(self, index: int, /) -> Any:
        """Return an image and its label."""
        ...


class Batch(NamedTuple):
    """A batch of images, as yielded by a loader and received by training and validation steps.

    Attributes:
        images: (N, C, H, W) uint8 from the loader. In validation, once on the device: (N, C, S, S) float32,
            resized and normalised.
        labels: (N,) int64, -1 for no label.
        indices: (N,) int64, rows of the loader's data set.
        views: (2N, C, S, S) float32, available on the device: the first views of all images, then the second
            ones; None if no views are made.

    Example:
        >>> import torch
        >>> images, labels = torch.zeros(4, 3, 8, 8, dtype=torch.uint8), torch.tensor([0, 1, 1, -1])
        >>> batch = Batch(images, labels, torch.arange(4))
        >>> batch.images.shape, batch.views
        (torch.Size([4, 3, 8, 8]), None)
    """

    images: Tensor
    labels: Tensor
    indices: Tensor
    views: Tensor | None = None

    @classmethod
    def of(cls, batch: Any) -> "Batch":
        """Return a batch of another data loader as a `Batch`, and a `Batch` as it is.

        The images of two views are those of the first view, and the indices are -1.

        Args:
            batch: ``(images, labels)`` or ``((first, second), labels)``, with normalised images or views
                (N, C, H, W) and int64 labels (N,). Further items are ignored.

        Raises:
            InputError: the batch has another form.

        Example:
            >>> first, second = torch.rand(2, 4, 3, 8, 8)
            >>> Batch.of([[first, second], torch.tensor([0, 1, 1, 0])]).views.shape
            torch.Size([8, 3, 8, 8])
        """
        if isinstance(batch, Batch):
            return batch
        images, labels = batch[:2] if isinstance(batch, (list, tuple)) and len(batch) > 1 else (None, None)
        views = list(images) if isinstance(images, (list, tuple)) else [images]
        shapes = {each.shape if isinstance(each, Tensor) else None for each in views}
        alike = len(views) <= 2 and len(shapes) == 1 and isinstance(views[0], Tensor) and views[0].ndim == 4
        if not alike or not isinstance(labels, Tensor) or labels.shape != views[0].shape[:1]:
            raise InputError(
                "a data loader must yield (images, labels), or ((first, second), labels) with two views of "
                "the same images; images and views are (N, C, H, W), and labels are (N,)"
            )
        both = torch.cat(views) if len(views) == 2 else None
        return cls(views[0], labels, torch.full_like(labels, -1), both)
