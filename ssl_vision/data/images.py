"""What a data set and a batch are."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ssl_vision.errors import InputError


@dataclass(frozen=True)
class Images:
    """Decoded images with their labels.

    Attributes:
        images: (N, 3, H, W) uint8.
        labels: (N,) int64, the position of the class in `classes`; -1 means that the image has no label.
        classes: Names of the classes.

    Raises:
        InputError: A shape, a dtype or a label does not fit this description.
    """

    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        images, labels = self.images, self.labels
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
            raise InputError(f"images must be uint8 (N, 3, H, W), not {images.dtype} {tuple(images.shape)}")
        if labels.dtype != torch.int64 or labels.shape != images.shape[:1]:
            raise InputError(
                f"labels must be int64 ({len(images)},), not {labels.dtype} {tuple(labels.shape)}"
            )
        if len(labels) and (int(labels.min()) < -1 or int(labels.max()) >= len(self.classes)):
            raise InputError(f"labels must lie in -1..{len(self.classes) - 1}, the positions of the classes")

    def __len__(self) -> int:
        return len(self.images)

    @property
    def labelled(self) -> Tensor:
        """(N,) bool: True where the image has a label."""
        return self.labels >= 0

    def select(self, indices: Tensor) -> "Images":
        """The rows at `indices` ((M,) int64, or a (N,) bool mask), in that order, as a copy."""
        return Images(self.images[indices], self.labels[indices], self.classes)


class Batch(NamedTuple):
    """What a loader yields and a training or validation step receives.

    Attributes:
        images: (N, 3, H, W) uint8 from the loader. In validation, once on the device: (N, 3, S, S) float32,
            resized and normalised.
        labels: (N,) int64, -1 for no label.
        indices: (N,) int64, the rows of the loader's images.
        views: (2N, 3, S, S) float32 once on the device, first view in the first N rows, second in the last N;
            None where no views are made.
    """

    images: Tensor
    labels: Tensor
    indices: Tensor
    views: Tensor | None = None
