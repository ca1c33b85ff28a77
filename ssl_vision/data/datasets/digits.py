"""Handwritten digits that come with scikit-learn: real images without a download."""

from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor

from ssl_vision.data.augment.views import Views
from ssl_vision.data.images import Images
from ssl_vision.data.module import ImageData, Split

_TRAIN = 1437
_VIEWS = Views(
    size=16,
    scale=(0.5, 1.0),
    degrees=15.0,
    hflip=0.0,
    saturation=0.0,
    hue=0.0,
    grayscale=0.0,
    blur=0.5,
    sigma=(0.1, 1.5),
    mean=(0.3054, 0.3054, 0.3054),
    std=(0.3755, 0.3755, 0.3755),
)


class Digits(ImageData):
    """1,797 scans of 8x8 pixels in 10 classes (Alpaydin & Kaynak, UCI optdigits); the first 1,437 are train.

    Writers follow one another in the file, so test and the held-out rows show other people's digits.
    Good for a first run, too easy to rank objectives. The smallest class of train has 141 images, so 20
    neighbours vote in kNN by default.

    Args:
        views: How views are made.
        **options: Of `ImageData`.

    Example:
        >>> digits = Digits().split("train")
        >>> len(digits), digits.shape, digits.classes[:3]
        (1437, (3, 8, 8), ('0', '1', '2'))
    """

    knn_k = 20

    def __init__(self, *, views: Views = _VIEWS, **options: Any) -> None:
        super().__init__(root="", views=views, **options)

    def read(self, split: Split) -> Images:
        """Scans 0..16 as uint8 round(255/16 v) in three equal channels."""
        if split == "pretrain":
            return self.split("train")
        digits = load_digits()
        part = slice(_TRAIN) if split == "train" else slice(_TRAIN, None)
        scans = torch.from_numpy(digits.images[part]).mul(255 / 16).round().to(torch.uint8)
        labels = torch.from_numpy(digits.target[part]).long()
        return Images(scans.unsqueeze(1).repeat(1, 3, 1, 1), labels, tuple(map(str, digits.target_names)))

    def folder_of(self, split: Split) -> None:
        """None: the images come with scikit-learn."""

    def heldout(self, count: int) -> Tensor:
        """(count,) bool: the last val_share of the rows."""
        return torch.arange(count) >= count - round(self.val_share * count)
