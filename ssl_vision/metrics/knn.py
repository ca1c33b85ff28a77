"""Classification by nearest neighbours: the vote, and accuracies from one search."""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from ssl_vision.errors import check, check_choice
from ssl_vision.metrics.neighbours import Neighbours, nearest, without_own_row
from ssl_vision.metrics.rows import (
    UNLABELLED,
    Features,
    RepresentationMetric,
    check_features,
    checked_labels,
    joined,
    select,
)


def vote(
    neighbours: Neighbours, labels: Tensor, num_classes: int, *, k: int, temperature: float | None = 0.1
) -> Tensor:
    """Compute class scores of each query, score_c = Σ_{j ≤ k, label_j = c} exp((s_j − s_1)/T).

    This is the vote of Wu et al. 2018 ("NPID"), whose weight is exp(s_j/T). Dividing by the weight of the
    best neighbour does not change the order of classes, and prevents overflow and underflow at any T. Only
    the first k neighbours vote, so that one search can be used for several k and T.

    Args:
        neighbours: Result of `nearest` with at least k neighbours.
        labels: labels of the bank, shape (N,), 0 to num_classes − 1.
        num_classes: Number of classes C.
        k: Number of neighbours that vote.
        temperature: Temperature T > 0 of the weights; None gives every neighbour the weight 1.

    Returns:
        Non-negative scores, (Q, C) float32.

    Raises:
        ValueError: k, temperature or a label is out of range.

    Example:
        >>> import torch
        >>> from ssl_vision.metrics import nearest
        >>> neighbours = nearest(torch.tensor([[0.9, 0.1]]), torch.eye(2), k=2)
        >>> vote(neighbours, torch.tensor([0, 1]), num_classes=2, k=2, temperature=None)
        tensor([[1., 1.]])
    """
    return next(votes(neighbours, labels, num_classes, ks=(k,), temperature=temperature))


def votes(
    neighbours: Neighbours,
    labels: Tensor,
    num_classes: int,
    *,
    ks: Sequence[int],
    temperature: float | None = 0.1,
) -> Iterator[Tensor]:
    """Iterate over the scores of `vote` for increasing k; each yielded tensor is modified for the next k.

    Raises:
        ValueError: as `vote`.
    """
    count = neighbours.index.shape[1]
    for k in ks:
        if not 1 <= k <= count:
            raise ValueError(f"k: expected 1 to {count}, the number of neighbours, got {k}")
    check("temperature", temperature, above=0)
    labels = checked_labels(labels, len(labels))
    check_range(labels, num_classes, "labels")
    similarity, index = neighbours
    scores = similarity.new_zeros(len(similarity), num_classes)
    start = 0
    for k in ks:
        part = similarity[:, start:k]
        if temperature is None:
            weight = torch.ones_like(part)
        else:
            weight = ((part - similarity[:, :1]) / temperature).exp()
        scores.scatter_add_(1, labels[index[:, start:k]], weight)
        start = k
        yield scores


def is_best(scores: Tensor, truth: Tensor) -> Tensor:
    """Return whether the true class has the best score, bool (Q,), given scores (Q, C) and labels (Q,) int64.

    Ties go to the lower class.
    """
    true_score = scores.gather(1, truth[:, None])
    lower = torch.arange(scores.shape[1], device=truth.device) < truth[:, None]
    return ~((scores > true_score) | ((scores == true_score) & lower)).any(dim=1)


def warn_of_large_k(k: int, labels: Tensor, *, leave_one_out: bool) -> None:
    """Warn if more neighbours vote than an image of the smallest class of the bank can have in its class.

    Args:
        k: number of neighbours that vote.
        labels: integer labels of the bank, shape (N,), N ≥ 1.
        leave_one_out: the bank of an image is all others.
    """
    smallest = int(labels.unique(return_counts=True)[1].min()) - leave_one_out
    if k > smallest:
        warnings.warn(
            f"kNN with k = {k}, but the smallest class has {smallest} {'other ' * leave_one_out}images, so "
            "its votes include other classes: choose a smaller k (--metrics.k of fit, --k of evaluate)",
            stacklevel=3,
        )


def check_range(labels: Tensor, num_classes: int, name: str) -> None:
    """Check that labels are in 0 to num_classes − 1.

    Raises:
        ValueError: a label is out of range.
    """
    if len(labels) and (labels.min() < 0 or labels.max() >= num_classes):
        raise ValueError(
            f"{name}: expected 0 to {num_classes - 1} for num_classes={num_classes}, "
            f"got {int(labels.min())} to {int(labels.max())}"
        )


@dataclass(frozen=True)
class KNNScore:
    """kNN accuracy at one k and temperature.

    Example:
        >>> import torch
        >>> features, labels = torch.eye(2), torch.tensor([0, 1])
        >>> scores = knn_table(
        ...     features, labels, features, labels, num_classes=2, ks=(1,), temperatures=(0.1, 0.2)
        ... )
        >>> {score.temperature: score.top1 for score in scores}
        {0.1: 1.0, 0.2: 1.0}
    """

    k: int
    """Number of neighbours that voted: the requested k, or the size of a smaller bank."""
    temperature: float | None
    """Temperature T of the weighted vote exp(s/T); None for the majority vote."""
    top1: float
    """Share of labelled queries whose class has the best score, in [0, 1]."""
    correct: Tensor = field(compare=False, repr=False)
    """Which of the n labelled queries have their true class as the best one, bool of shape (n,)."""


def knn_table(
    queries: Features,
    truth: Tensor,
    bank: Features,
    labels: Tensor,
    *,
    num_classes: int,
    ks: Sequence[int] = (200,),
    temperatures: Sequence[float | None] = (0.1, None),
    metric: Literal["cosine", "euclidean"] = "cosine",
    backend: Literal["auto", "faiss", "torch"] = "auto",
    leave_one_out: bool = False,
) -> list[KNNScore]:
    """Compute the accuracies of k-nearest-neighbour classification for all ``ks`` and ``temperatures``.

    A single search at the largest k (see `nearest`) is used for all of them (see `vote`). Rows labelled -1
    are ignored. Ties in similarity go to the lower index, ties in score to the lower class. If the bank has
    fewer than k labelled rows, all of them vote, with a warning. There is also a warning if a class has fewer
    than k rows in the bank.

    Args:
        queries: features of the queries, shape (Q, F).
        truth: labels of the queries, shape (Q,), 0 to num_classes − 1, or -1.
        bank: features of the bank, shape (N, F), on the same device.
        labels: labels of the bank, shape (N,), 0 to num_classes − 1, or -1.
        num_classes: Number of classes C.
        ks: Numbers of neighbours, each at least 1.
        temperatures: Temperatures T > 0 of the weighted vote; None is the majority vote.
        metric: As in `nearest`. With "euclidean" the weight is exp(−distance/T), so that T has the unit of
            the features.
        backend: As in `nearest`.
        leave_one_out: The bank is the queries, and no query is a neighbour of itself. Other rows with the
            same features are neighbours.

    Returns:
        A score for each temperature and each k, in the order given.

    Raises:
        ValueError: shapes, devices or options are invalid, a label is out of range, or the bank or the
            queries have no labelled row.

    Example:
        >>> import torch
        >>> bank, labels = torch.eye(2), torch.tensor([0, 1])
        >>> queries, truth = torch.tensor([[0.9, 0.1]]), torch.tensor([0])
        >>> (score,) = knn_table(
        ...     queries, truth, bank, labels, num_classes=2, ks=(1,), temperatures=(0.1,)
        ... )
        >>> score.k, score.temperature, score.top1
        (1, 0.1, 1.0)
    """
    check_features(queries, "queries")
    check_features(bank, "bank")
    truth = checked_labels(truth, len(queries), "labels of the queries")
    labels = checked_labels(labels, len(bank), "labels of the bank")
    for name, classes in (("queries", truth), ("bank", labels)):
        if not (classes != UNLABELLED).any():
            raise ValueError(f"labels of the {name}: no labelled row among {len(classes)}")
    if not ks or min(ks) < 1:
        raise ValueError(f"ks: expected numbers of at least 1, got {list(ks)}")
    queries, truth = select(queries, truth != UNLABELLED), truth[truth != UNLABELLED]
    bank, labels = select(bank, labels != UNLABELLED), labels[labels != UNLABELLED]
    check_range(truth, num_classes, "labels of the queries")
    others = len(bank) - leave_one_out
    used = [min(k, others) for k in ks]
    if max(ks) > others:
        warnings.warn(f"kNN with k = {max(ks)}, but the bank has {others} rows", stacklevel=2)
    else:
        warn_of_large_k(max(ks), labels, leave_one_out=leave_one_out)
    increasing = sorted(set(used))
    searched = increasing[-1] + leave_one_out
    neighbours = nearest(queries, bank, k=searched, backend=backend, metric=metric)
    if leave_one_out:
        neighbours = without_own_row(neighbours)
    table = []
    for temperature in temperatures:
        scores = votes(neighbours, labels, num_classes, ks=increasing, temperature=temperature)
        correct = {k: is_best(score, truth) for k, score in zip(increasing, scores, strict=True)}
        for k in used:
            table.append(KNNScore(k, temperature, correct[k].double().mean().item(), correct[k]))
    return table


class KNNAccuracy(RepresentationMetric):
    """Share of queries whose label is the best class by the vote of their neighbours, in [0, 1].

    Neighbours are exact, by cosine similarity (see `nearest`), and classes are scored by `vote`; ties go to
    the lower class. Rows labelled -1 are ignored. The MACL paper uses k = 200.

    Call ``update`` with both splits, then ``compute``. Under DDP each process calls ``update`` at least
    once with each split (a batch may be empty).

    Args:
        num_classes: Number of classes.
        k: Number of neighbours. If the bank is smaller, all of it votes, with a warning. There is also a
            warning if a class has fewer than k rows in the bank.
        temperature: Temperature of the vote; None gives every neighbour the weight 1.
        leave_one_out: The bank of each query is all other queries; ``update`` is called with queries only.
        kwargs: Options of `torchmetrics.Metric`.

    Attributes:
        correct: Which of the n labelled queries of all processes the last ``compute`` classified correctly,
            bool of shape (n,).
        voters: Number of neighbours that voted in the last ``compute``: k, or the size of a smaller bank.

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
    higher_is_better = True

    bank_features: list[Tensor]
    bank_labels: list[Tensor]
    query_features: list[Tensor]
    query_labels: list[Tensor]
    correct: Tensor

    def __init__(
        self, *, num_classes: int, k: int = 200, temperature: float | None = 0.1,
        leave_one_out: bool = False, **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__(**kwargs)
        check("num_classes", num_classes, at_least=1)
        check("k", k, at_least=1)
        check("temperature", temperature, above=0)
        self.num_classes, self.k, self.temperature = num_classes, k, temperature
        self.leave_one_out = leave_one_out
        for name in ("bank_features", "bank_labels", "query_features", "query_labels"):
            self.add_state(name, default=[], dist_reduce_fx="cat")

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
        bank = split == "bank"
        (self.bank_features if bank else self.query_features).append(features.detach().clone())
        (self.bank_labels if bank else self.query_labels).append(labels.clone())

    def compute(self) -> Tensor:
        """Return the accuracy, a float64 scalar, and set ``correct``.

        Raises:
            ValueError: the bank or the queries have no labelled row, or a label is out of range.
        """
        missing = "KNNAccuracy: no labelled row with split="
        queries = joined(self.query_features, f"{missing}'query'")
        truth = joined(self.query_labels, f"{missing}'query'")
        bank, labels = queries, truth
        if not self.leave_one_out:
            bank = joined(self.bank_features, f"{missing}'bank'")
            labels = joined(self.bank_labels, f"{missing}'bank'")
        (score,) = knn_table(
            queries, truth, bank, labels, num_classes=self.num_classes, ks=(self.k,),
            temperatures=(self.temperature,), leave_one_out=self.leave_one_out,
        )  # fmt: skip
        self.correct, self.voters = score.correct, score.k
        return torch.tensor(score.top1, dtype=torch.float64, device=self.device)
