"""Handwritten digits from scikit-learn, which require no download."""

from typing import Any

import torch
from torch import Tensor

from ssl_vision.data.augment.random_views import Views
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

    Images are sorted by writer, so the test and held-out images are by other writers. The data set is suited
    to a first run but too easy to rank objectives. Its smallest train class has 141 images, so kNN uses 20
    neighbours by default.

    Args:
        views: Random views of the images.
        **options: Options of `ImageData`.

    Example:
        >>> digits = Digits().split("train")
        >>> len(digits), digits.shape, digits.classes[:3]
        (1437, (3, 8, 8), ('0', '1', '2'))
    """

    knn_k = 20

    def __init__(self, *, views: Views = _VIEWS, **options: Any) -> None:
        super().__init__(root="", views=views, **options)

    def read(self, split: Split) -> Images:
        """Read a split; scan values v in 0..16 become round(255/16 v) in three equal channels."""
        if split == "pretrain":
            return self.split("train")
        from sklearn.datasets import load_digits

        digits = load_digits()
        part = slice(_TRAIN) if split == "train" else slice(_TRAIN, None)
        scans = torch.from_numpy(digits.images[part]).mul(255 / 16).round().to(torch.uint8)
        labels = torch.from_numpy(digits.target[part]).long()
        return Images(scans.unsqueeze(1).repeat(1, 3, 1, 1), labels, tuple(map(str, digits.target_names)))

    def heldout(self, count: int) -> Tensor:
        """Return a mask (count,) of the last ``val_share`` of the rows."""
        return torch.arange(count) >= count - round(self.val_share * count)
