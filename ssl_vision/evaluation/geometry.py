"""Geometry of a representation on the test split: alignment, uniformity, tolerance, rank and others."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ssl_vision.evaluation.measurement import Measurement, Source, Value, ranged
from ssl_vision.evaluation.splits import Splits
from ssl_vision.metrics import Alignment, Representation, lidar, rank_correlation
from ssl_vision.progress import Progress


@dataclass(frozen=True)
class Geometry(Measurement):
    """Alignment, uniformity, tolerance, cosines, sensitivity and RankMe of the test split; no baselines.

    Raises:
        ValueError: A value is out of range.
    """

    extended: bool = False
    """True adds effective rank, feature standard deviation and LiDAR."""
    lidar_images: int = ranged(1000, at_least=2)
    """Number of evenly spaced test images for LiDAR; its paper uses 1,000."""
    lidar_views: int = ranged(50, at_least=2)
    """Number of views of each image for LiDAR; its paper uses 50."""

    def __str__(self) -> str:
        return ""

    def measure(self, source: Source, splits: Splits, seed: int) -> Iterator[Value]:
        """All metrics that the labels of the data set allow."""
        network = source.trained_network
        if network is None:
            return
        representation, alignment = Representation(extended=self.extended), Alignment()
        labels = splits.images["test"].labels
        representation.update(network.plain("test", source.layer)[:].cpu(), labels)
        views = network.pairs("test", network.layers)[source.layer].cpu()
        alignment.update(*views)
        with Progress(f"geometry of {source.features} {source.layer}"):
            values = representation.compute()
        for metric, value in values.items():
            yield from _finite(metric, value)
        yield from _finite("alignment", alignment.compute(), augmentation="pretraining")
        if splits.superclasses is not None:
            levels = torch.stack([splits.superclasses[labels], labels, torch.arange(len(labels))], dim=1)
            correlations = rank_correlation(views.flatten(0, 1), levels.repeat(2, 1))
            for metric, value in correlations._asdict().items():
                yield from _finite(metric, value, augmentation="pretraining")
        if self.extended:
            scatter = network.view_scatter(source.layers, images=self.lidar_images, views=self.lidar_views)
            means = scatter[source.layer].means
            augmentation = f"pretraining, {self.lidar_views} views of {len(means)} images"
            yield from _finite("lidar", lidar(scatter[source.layer]), augmentation=augmentation)


def _finite(metric: str, value: Tensor, **about: Any) -> Iterator[Value]:
    """Yield a value, or nothing if it is not defined: for example, if no class has two images."""
    if value.isfinite():
        yield Value(metric, float(value), about)
