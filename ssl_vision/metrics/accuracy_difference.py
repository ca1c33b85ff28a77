"""Intervals of an accuracy, and of the difference of two accuracies on the same images."""

import math
from typing import NamedTuple, Self

from torch import Tensor

_Z = 1.959964
"""Quantile 0.975 of the standard normal distribution."""


def wilson_interval(accuracy: float, images: float) -> tuple[float, float]:
    """Return the 95 % interval of an accuracy over many sets of this number of images (Wilson 1927).

    Example:
        >>> low, high = wilson_interval(0.3, 30)
        >>> round(low, 3), round(high, 3)
        (0.167, 0.479)
    """
    n = images
    centre = (accuracy + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z / (1 + _Z**2 / n) * math.sqrt(accuracy * (1 - accuracy) / n + _Z**2 / (4 * n**2))
    return centre - half, centre + half


class AccuracyDifference(NamedTuple):
    """Accuracy of one network minus that of another on the same n images, as a share of 1.

    Of the images, b are classified correctly by the first network only, and c by the second only. The
    difference is (b − c)/n. Its 95 % interval (Bonett and Price 2012) is

        d ± 1.96 √((p + q − d²) / (n + 2)),   p = (b + 1)/(n + 2),  q = (c + 1)/(n + 2),  d = p − q

    Because both networks classify the same images, it is narrower than the intervals of the accuracies.

    Example:
        >>> import torch
        >>> first, second = torch.tensor([True] * 80 + [False] * 20), torch.tensor([True] * 60 + [False] * 40)
        >>> print(AccuracyDifference.of(first, second))
        +20.0 points (95 % interval +11.4 to +27.8, 100 images)
    """

    value: float
    low: float
    high: float
    images: int

    @classmethod
    def of(cls, first: Tensor, second: Tensor) -> Self:
        """Return the difference of two networks from which images each classifies correctly.

        Args:
            first: bool of shape (n,).
            second: bool of shape (n,), of the same images in the same order.

        Raises:
            ValueError: the shapes differ.
        """
        if first.shape != second.shape:
            raise ValueError(f"expected the same images, got {len(first)} and {len(second)}")
        n = len(first)
        only_first, only_second = int((first & ~second).sum()), int((second & ~first).sum())
        p, q = (only_first + 1) / (n + 2), (only_second + 1) / (n + 2)
        d = p - q
        half = _Z * math.sqrt((p + q - d**2) / (n + 2))
        return cls((only_first - only_second) / n, d - half, d + half, n)

    def __str__(self) -> str:
        points = [f"{100 * value:+.1f}" for value in (self.value, self.low, self.high)]
        return f"{points[0]} points (95 % interval {points[1]} to {points[2]}, {self.images:,} images)"

    @property
    def verdict(self) -> str:
        """Statement whether pretraining helped, for a trained network and the start of its training."""
        if self.low > 0:
            return "pretraining helped"
        if self.high < 0:
            return "pretraining harmed: keep the start"
        smallest = 50 * (self.high - self.low)
        return f"cannot tell with {self.images:,} images, which show differences above {smallest:.1f} points"
