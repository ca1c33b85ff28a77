"""Rows of features and their labels: what the metrics accept, keep and normalise."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

UNLABELLED = -1


def check_features(features: Tensor, name: str = "features") -> None:
    """Accept real (N, F) features, N = 0 included.

    Raises:
        ValueError: Not two-dimensional, without columns, or complex.
    """
    if features.ndim != 2 or features.shape[1] == 0 or features.is_complex():
        raise ValueError(f"{name}: expected real (N, F), got {features.dtype} {tuple(features.shape)}")


def check_labels(labels: Tensor, rows: int, name: str = "labels") -> None:
    """Accept integer labels, shape (rows,).

    Raises:
        ValueError: Another shape, or labels that are not integers.
    """
    if labels.shape != (rows,):
        raise ValueError(f"{name}: expected ({rows},), one a row of features, got {tuple(labels.shape)}")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ValueError(f"{name}: expected integers, got {labels.dtype} {tuple(labels.shape)}")


def joined(state: Tensor | Sequence[Tensor], missing: str) -> Tensor:
    """All rows of a metric's state, which is a list before synchronisation and a tensor after it.

    Raises:
        ValueError: There is no row (the message is ``missing``), or batches differ in width.
    """
    batches = [state] if isinstance(state, Tensor) else list(state)
    widths = sorted({batch.shape[1] for batch in batches if batch.ndim == 2})
    if len(widths) > 1:
        raise ValueError(f"features: expected one width F in all batches, got {widths}")
    if sum(map(len, batches)) == 0:
        raise ValueError(missing)
    return torch.cat(batches)


def unit_rows(features: Tensor) -> Tensor:
    """Rows divided by their Euclidean length, x/‖x‖: (N, F) float32; zero rows stay zero.

    Rows are first divided by their largest entry, so that no length overflows or underflows.
    """
    wide = features if features.dtype == torch.float64 else features.float()
    largest = torch.linalg.vector_norm(wide, torch.inf, dim=1, keepdim=True)
    scaled = wide / largest.where(largest > 0, 1.0)
    length = torch.linalg.vector_norm(scaled, dim=1, keepdim=True)
    unit: Tensor = scaled.div_(length.where(length > 0, 1.0))
    return unit.float()


class FeatureRows(Metric):
    """A metric that keeps all features it is given; `rows` are theirs over all batches and processes.

    Args:
        kwargs: Options of `torchmetrics.Metric`.
    """

    is_differentiable = False
    full_state_update = False

    features: list[Tensor]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("features", default=[], dist_reduce_fx="cat")

    def update(self, features: Tensor) -> None:
        """Add (N, F) features, any scale.

        Raises:
            ValueError: Another shape.
        """
        check_features(features)
        self.features.append(features.detach())

    def rows(self) -> Tensor:
        """(N, F), all features.

        Raises:
            ValueError: There are none.
        """
        return joined(self.features, f"{type(self).__name__}: no features to measure")


class LabelledRows(Metric):
    """A metric that keeps all features it is given, with their labels.

    Args:
        kwargs: Options of `torchmetrics.Metric`.
    """

    is_differentiable = False
    full_state_update = False

    features: list[Tensor]
    labels: list[Tensor]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("features", default=[], dist_reduce_fx="cat")
        self.add_state("labels", default=[], dist_reduce_fx="cat")

    def update(self, features: Tensor, labels: Tensor) -> None:
        """Add (N, F) features, any scale, and their (N,) integer labels; -1 is "unlabelled" and ignored.

        Raises:
            ValueError: Shapes or types do not fit.
        """
        check_features(features)
        check_labels(labels, len(features))
        self.features.append(features.detach())
        self.labels.append(labels)

    def rows(self) -> tuple[Tensor, Tensor]:
        """(N, F), all features, and (N,), their labels.

        Raises:
            ValueError: There are none.
        """
        name = type(self).__name__
        features = joined(self.features, f"{name}: no features to measure")
        return features, joined(self.labels, f"{name}: no labels")
