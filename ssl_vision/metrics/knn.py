"""Weighted k-nearest-neighbour classification."""

import warnings
from collections.abc import Sequence
from typing import Any, Literal

from torch import Tensor
from torchmetrics import Metric

from ssl_vision.descriptions import DescribedMetric
from ssl_vision.errors import check, check_choice
from ssl_vision.metrics.knn_table import KNNScore, knn_table
from ssl_vision.metrics.neighbours import nearest
from ssl_vision.metrics.rows import UNLABELLED, check_features, checked_labels, joined
from ssl_vision.metrics.vote import check_range, place, vote, warn_of_large_k


class KNNAccuracy(Metric, DescribedMetric):
    """Share of queries whose label is among the ``top`` classes by the vote of their neighbours, in [0, 1].

    Neighbours are exact, by cosine similarity (see `nearest`), and classes are scored by `vote`; ties go to
    the lower class. Rows labelled -1 are ignored. The MACL paper uses k = 200.

    Call ``update`` with both splits, then ``compute``. Under DDP each process calls ``update`` at least
    once with each split (a batch may be empty).

    Args:
        num_classes: Number of classes.
        k: Number of neighbours. If the bank is smaller, all of it votes, with a warning. There is also a
            warning if a class has fewer than k rows in the bank.
        temperature: Temperature of the vote; None gives every neighbour the weight 1.
        top: Number of best classes among which the label must be.
        kwargs: Options of `torchmetrics.Metric`.

    Example:
        >>> import torch
        >>> metric = KNNAccuracy(num_classes=2, k=1)
        >>> metric.update(torch.eye(2), torch.tensor([0, 1]), "bank")
        >>> metric.update(torch.tensor([[0.9, 0.1]]), torch.tensor([0]), "query")
        >>> float(metric.compute())
        1.0
    """

    metric_name = "knn_top1"
    title = "kNN"
    long_title = "kNN top-1"
    unit = "%"
    sections = ("table", "curves", "summary", "progress", "headline")
    needs = ("labels",)
    note = "This is the share of images that a vote of their nearest neighbours classifies correctly."
    order = 20
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
            check(name, value, at_least=1)
        check("temperature", temperature, above=0)
        self.num_classes, self.k, self.temperature, self.top = num_classes, k, temperature, top
        self._warned = False
        for split in ("bank", "query"):
            self.add_state(f"{split}_features", default=[], dist_reduce_fx="cat")
            self.add_state(f"{split}_labels", default=[], dist_reduce_fx="cat")

    def update(self, features: Tensor, labels: Tensor, split: Literal["bank", "query"]) -> None:
        """Add rows to the bank or to the queries.

        Args:
            features: features of any scale, shape (N, F).
            labels: integer labels, shape (N,); -1 means unlabelled.
            split: "bank" or "query".

        Raises:
            ValueError: shapes or types are invalid, or the split is unknown.
        """
        check_features(features)
        labels = checked_labels(labels, len(features))
        check_choice("split", split, ("bank", "query"))
        getattr(self, f"{split}_features").append(features.detach().clone())
        getattr(self, f"{split}_labels").append(labels.clone())

    def compute(self) -> Tensor:
        """Return the accuracy, a float64 scalar.

        Raises:
            ValueError: the bank or the queries have no labelled row, or a label is out of range.
        """
        queries, truth, bank, labels = self._rows()
        check_range(truth, self.num_classes, "labels of the queries")
        k = min(self.k, len(bank))
        if k < self.k and not self._warned:
            self._warned = True
            warnings.warn(f"KNNAccuracy: k={self.k}, but the bank has {k} rows; k={k} is used", stacklevel=2)
        elif k == self.k:
            warn_of_large_k(k, labels)
        scores = vote(nearest(queries, bank, k), labels, self.num_classes, k=k, temperature=self.temperature)
        return (place(scores, truth) < self.top).double().mean()

    def table(self, ks: Sequence[int], temperatures: Sequence[float | None]) -> list[KNNScore]:
        """Return the accuracies of all processes at every k and temperature; see `knn_table`.

        Raises:
            ValueError: as ``compute``, or k or temperature is out of range.
        """
        with self.sync_context(dist_sync_fn=self.dist_sync_fn):
            rows = self._rows()
        return knn_table(*rows, num_classes=self.num_classes, ks=ks, temperatures=temperatures)

    def _rows(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the queries, their labels, the bank, and its labels."""
        bank, labels = self._labelled("bank")
        queries, truth = self._labelled("query")
        return queries, truth.long(), bank, labels

    def _labelled(self, split: Literal["bank", "query"]) -> tuple[Tensor, Tensor]:
        """Return the labelled rows and their labels, which the host would have to wait for in `update`."""
        missing = f"KNNAccuracy: no labelled row with split={split!r}"
        features = joined(getattr(self, f"{split}_features"), missing)
        labels = joined(getattr(self, f"{split}_labels"), missing)
        keep = labels != UNLABELLED
        return joined([features[keep]], missing), labels[keep]
