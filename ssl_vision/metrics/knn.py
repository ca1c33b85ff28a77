"""Weighted k-nearest-neighbour classification."""

import warnings
from typing import Any, Literal

import torch
from torch import Tensor
from torchmetrics import Metric

from ssl_vision.metrics.neighbours import Neighbours, nearest
from ssl_vision.metrics.rows import UNLABELLED, check_features, check_labels, joined


def vote(
    neighbours: Neighbours, labels: Tensor, num_classes: int, *, k: int, temperature: float | None = 0.1
) -> Tensor:
    """Class scores of each query, score_c = Σ_{j ≤ k, label_j = c} exp((s_j − s_1)/T).

    The vote of Wu et al. 2018 ("NPID"), whose weight is exp(s_j/T); dividing by the weight of the best
    neighbour changes no order and neither overflows nor underflows at any T. The first k of the neighbours
    vote, so that one search serves every k and T.

    Args:
        neighbours: Result of `nearest`, of at least k neighbours.
        labels: (N,) labels of the bank, 0 to num_classes − 1.
        num_classes: Number of classes C.
        k: Neighbours that vote.
        temperature: T > 0 of the weight; None counts every vote as 1.

    Returns:
        (Q, C) float32, not negative.

    Raises:
        ValueError: k, temperature or a label is out of range, or there are fewer labels than bank rows.
    """
    if not 1 <= k <= neighbours.index.shape[1]:
        raise ValueError(f"k: expected 1 to {neighbours.index.shape[1]}, the neighbours found, got {k}")
    if temperature is not None and not temperature > 0:
        raise ValueError(f"temperature: expected more than 0, or None, got {temperature}")
    check_labels(labels, len(labels))
    _check_range(labels, num_classes, "labels")
    if neighbours.index.numel() and neighbours.index.max() >= len(labels):
        raise ValueError(
            f"labels: {len(labels)}, but the bank has at least {int(neighbours.index.max()) + 1} rows"
        )
    similarity = neighbours.similarity[:, :k]
    if temperature is None:
        weight = torch.ones_like(similarity)
    else:
        weight = ((similarity - similarity[:, :1]) / temperature).exp()
    scores = similarity.new_zeros(len(similarity), num_classes)
    return scores.scatter_add_(1, labels[neighbours.index[:, :k]].long(), weight)


class KNNAccuracy(Metric):
    """Share of queries whose label is among the ``top`` classes that their neighbours vote for; in [0, 1].

    Neighbours are exact, by cosine similarity (see `nearest`); the vote is `vote`; equal scores go to the
    lower class. Rows labelled -1 are ignored in the bank and among the queries. The MACL paper has k = 200.

    Call ``update`` with both splits, then ``compute``. Under DDP each process calls ``update`` at least
    once with each split (a batch may be empty).

    Args:
        num_classes: Number of classes.
        k: Neighbours that vote; a smaller bank votes as a whole, with one warning.
        temperature: Of the vote's weights; None counts every vote as 1.
        top: A query counts if its label is among this many best classes.
        kwargs: Options of `torchmetrics.Metric`.
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False

    bank_features: list[Tensor]
    bank_labels: list[Tensor]
    query_features: list[Tensor]
    query_labels: list[Tensor]

    def __init__(
        self, *, num_classes: int, k: int = 200, temperature: float | None = 0.1, top: int = 1, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        for name, value in (("num_classes", num_classes), ("k", k), ("top", top)):
            if value < 1:
                raise ValueError(f"{name}: expected at least 1, got {value}")
        if temperature is not None and not temperature > 0:
            raise ValueError(f"temperature: expected more than 0, or None, got {temperature}")
        self.num_classes, self.k, self.temperature, self.top = num_classes, k, temperature, top
        self._warned = False
        for split in ("bank", "query"):
            self.add_state(f"{split}_features", default=[], dist_reduce_fx="cat")
            self.add_state(f"{split}_labels", default=[], dist_reduce_fx="cat")

    def update(self, features: Tensor, labels: Tensor, split: Literal["bank", "query"]) -> None:
        """Add rows to the bank or to the queries.

        Args:
            features: (N, F), any scale.
            labels: (N,) integers; -1 is "unlabelled".
            split: Where the rows go.

        Raises:
            ValueError: Shapes or types do not fit, or an unknown split.
        """
        check_features(features)
        check_labels(labels, len(features))
        if split not in ("bank", "query"):
            raise ValueError(f"split: expected bank or query, got {split!r}")
        keep = labels != UNLABELLED
        getattr(self, f"{split}_features").append(features[keep].detach())
        getattr(self, f"{split}_labels").append(labels[keep])

    def compute(self) -> Tensor:
        """Accuracy, a float64 scalar.

        Raises:
            ValueError: No labelled row in the bank or among the queries, or a label out of range.
        """
        missing = "KNNAccuracy: no labelled row with split={!r}"
        bank = joined(self.bank_features, missing.format("bank"))
        queries = joined(self.query_features, missing.format("query"))
        truth = joined(self.query_labels, missing.format("query")).long()
        _check_range(truth, self.num_classes, "labels of the queries")
        k = min(self.k, len(bank))
        if k < self.k and not self._warned:
            self._warned = True
            warnings.warn(f"KNNAccuracy: k={self.k}, but the bank has {k} rows; k={k} is used", stacklevel=2)
        labels = joined(self.bank_labels, missing.format("bank"))
        scores = vote(nearest(queries, bank, k), labels, self.num_classes, k=k, temperature=self.temperature)
        own = scores.gather(1, truth[:, None])
        lower = torch.arange(self.num_classes, device=truth.device) < truth[:, None]
        better = (scores > own) | ((scores == own) & lower)
        return (better.sum(dim=1) < self.top).double().mean()


def _check_range(labels: Tensor, num_classes: int, name: str) -> None:
    if len(labels) and (labels.min() < 0 or labels.max() >= num_classes):
        raise ValueError(
            f"{name}: expected 0 to {num_classes - 1} for num_classes={num_classes}, "
            f"got {int(labels.min())} to {int(labels.max())}"
        )
