"""Geometry of a representation on the test split: alignment, uniformity, tolerance, rank and others."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ssl_vision.errors import check
from ssl_vision.evaluation.feature_extractor import FeatureExtractor
from ssl_vision.evaluation.measurement import Measurement, Source, Value, measurement
from ssl_vision.evaluation.splits import Splits
from ssl_vision.metrics import Alignment, Representation, lidar, rank_correlation
from ssl_vision.progress import Progress


@measurement("geometry")
@dataclass(frozen=True)
class Geometry(Measurement):
    """Alignment, uniformity, tolerance, cosines, sensitivity and RankMe of the test split; no baselines.

    Raises:
        ValueError: A value is out of range.
    """

    extended: bool = False
    """True adds effective rank, feature standard deviation and LiDAR."""
    lidar_images: int = 1000
    """Number of evenly spaced test images for LiDAR; its paper uses 1,000."""
    lidar_views: int = 50
    """Number of views of each image for LiDAR; its paper uses 50."""

    def __post_init__(self) -> None:
        check("lidar_images", self.lidar_images, at_least=2)
        check("lidar_views", self.lidar_views, at_least=2)

    def __str__(self) -> str:
        return ""

    def measure(self, source: Source, splits: Splits, seed: int) -> Iterator[Value]:
        """All metrics that the labels of the data set allow."""
        network = source.trained_network
        if network is None:
            return
        representation, alignment = Representation(extended=self.extended), Alignment()
        representation.update(network.plain("test", source.layer)[:].cpu(), splits.images["test"].labels)
        alignment.update(*(view.cpu() for view in network.pairs("test", network.layers)[source.layer]))
        with Progress(f"geometry of {source.features} {source.layer}"):
            values = representation.compute()
        for metric, value in values.items():
            yield from _finite(metric, value)
        yield from _finite("alignment", alignment.compute(), {"augmentation": "pretraining"})
        if splits.superclasses is not None:
            yield from _ranking(source, network, splits, splits.superclasses)
        if self.extended:
            images, views = self.lidar_images, self.lidar_views
            scatter = network.view_scatter(source.layers, images=images, views=views)[source.layer]
            augmentation = f"pretraining, {views} views of {len(scatter.means)} images"
            yield from _finite("lidar", lidar(scatter), {"augmentation": augmentation})


def _finite(metric: str, value: Tensor, about: Mapping[str, Any] = {}) -> Iterator[Value]:
    """Yield a value, or nothing if it is not defined: for example, if no class has two images."""
    if value.isfinite():
        yield Value(metric, float(value), about)


def _ranking(
    source: Source, network: FeatureExtractor, splits: Splits, superclasses: Tensor
) -> Iterator[Value]:
    """Measure how well cosines rank pairs of views by image, class and superclass."""
    labels = splits.images["test"].labels
    levels = torch.stack([superclasses[labels], labels, torch.arange(len(labels))], dim=1).repeat(2, 1)
    views = torch.cat([view.cpu() for view in network.pairs("test", network.layers)[source.layer]])
    for metric, value in rank_correlation(views, levels)._asdict().items():
        yield from _finite(metric, value, {"augmentation": "pretraining"})
