"""What a data set and a batch are."""

from typing import NamedTuple

import torch
from torch import Tensor

from ssl_vision.data.loading.memmap import RowFile
from ssl_vision.errors import InputError


class Images:
    """Decoded images with their labels: all of a store, or some rows of it that share its memory.

    Args:
        images: (M, 3, H, W) uint8, the store.
        labels: (N,) int64, the position of the class in `classes`; -1 means that the image has no label.
        classes: Names of the classes.
        rows: (N,) int64, which rows of the store these are; None means all of them, and N = M.
        file: Where the store is a file mapped into memory: that file, for reading some rows of it.

    Attributes:
        store: (M, 3, H, W) uint8.
        labels: (N,) int64.
        classes: Names of the classes.
        rows: (N,) int64 or None.
        file: A file or None.

    Raises:
        InputError: A shape, a dtype or a label does not fit this description.

    Example:
        >>> import torch
        >>> pixels, labels = torch.zeros(4, 3, 8, 8, dtype=torch.uint8), torch.tensor([0, 1, 1, -1])
        >>> images = Images(pixels, labels, ("cat", "dog"))
        >>> len(images), images.shape
        (4, (3, 8, 8))
        >>> len(images.select(images.labelled))
        3
    """

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
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
            raise InputError(f"images must be uint8 (N, 3, H, W), not {images.dtype} {tuple(images.shape)}")
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
        """(N, 3, H, W) uint8: the store itself, or a copy of the rows where they are not all of it."""
        return self.store if self.rows is None else self.store[self.rows]

    @property
    def shape(self) -> tuple[int, ...]:
        """(3, H, W) of an image."""
        return tuple(self.store.shape[1:])

    @property
    def labelled(self) -> Tensor:
        """(N,) bool: True where the image has a label."""
        return self.labels >= 0

    def select(self, indices: Tensor) -> "Images":
        """The rows at `indices` ((M,) int64, or a (N,) bool mask), in that order; no pixel is copied."""
        rows = torch.arange(len(self), device=self.store.device) if self.rows is None else self.rows
        labels = self.labels[indices]
        return Images(self.store, labels, self.classes, rows=rows[indices], file=self.file)

    def relabelled(self, labels: Tensor) -> "Images":
        """Return the same images with other labels (N,) of the same classes."""
        return Images(self.store, labels, self.classes, rows=self.rows, file=self.file)

    def at(self, indices: Tensor, *, pin: bool = False) -> Tensor:
        """A copy of the images at `indices`; no other is read.

        Args:
            indices: (M,) int64 in 0..N-1, on the device of the images.
            pin: Copy into page-locked memory, from where a CUDA device takes it without making anyone wait.

        Returns:
            (M, 3, H, W) uint8.
        """
        rows = indices if self.rows is None else self.rows[indices]
        if self.file is not None:
            return self.file.read(rows, pin=pin)
        if not pin:
            return self.store.index_select(0, rows)
        batch = torch.empty((len(rows), *self.store.shape[1:]), dtype=torch.uint8, pin_memory=True)
        return torch.index_select(self.store, 0, rows, out=batch)


class Batch(NamedTuple):
    """What a loader yields and a training or validation step receives.

    Attributes:
        images: (N, 3, H, W) uint8 from the loader. In validation, once on the device: (N, 3, S, S) float32,
            resized and normalised.
        labels: (N,) int64, -1 for no label.
        indices: (N,) int64, the rows of the loader's images.
        views: (2N, 3, S, S) float32 once on the device, first view in the first N rows, second in the last N;
            None where no views are made.

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
