"""The vote of neighbours: from their similarities and labels to class scores."""

import warnings
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ssl_vision.metrics.neighbours import Neighbours
from ssl_vision.metrics.rows import check_labels


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
        temperature: T > 0 of the weight; None counts every vote as 1: the majority's vote.

    Returns:
        (Q, C) float32, not negative.

    Raises:
        ValueError: k, temperature or a label is out of range, or there are fewer labels than bank rows.

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
    """The scores of `vote` for one k after another, which must not decrease; each adds to the one before.

    The tensor given out for one k is changed for the next.

    Raises:
        ValueError: As `vote`, or the ks decrease.
    """
    found = neighbours.index.shape[1]
    for k in ks:
        if not 1 <= k <= found:
            raise ValueError(f"k: expected 1 to {found}, the neighbours found, got {k}")
    if list(ks) != sorted(ks):
        raise ValueError(f"ks: expected increasing, got {list(ks)}")
    if temperature is not None and not temperature > 0:
        raise ValueError(f"temperature: expected more than 0, or None, got {temperature}")
    check_labels(labels, len(labels))
    check_range(labels, num_classes, "labels")
    if neighbours.index.numel() and neighbours.index.max() >= len(labels):
        raise ValueError(
            f"labels: {len(labels)}, but the bank has at least {int(neighbours.index.max()) + 1} rows"
        )
    return _votes(neighbours, labels, num_classes, ks, temperature)


def _votes(
    neighbours: Neighbours, labels: Tensor, num_classes: int, ks: Sequence[int], temperature: float | None
) -> Iterator[Tensor]:
    similarity, index = neighbours
    scores = similarity.new_zeros(len(similarity), num_classes)
    start = 0
    for k in ks:
        part = similarity[:, start:k]
        if temperature is None:
            weight = torch.ones_like(part)
        else:
            weight = ((part - similarity[:, :1]) / temperature).exp()
        scores.scatter_add_(1, labels[index[:, start:k]].long(), weight)
        start = k
        yield scores


def place(scores: Tensor, truth: Tensor) -> Tensor:
    """(Q,) classes that come before the true one, given (Q, C) scores and (Q,) int64 labels.

    A query counts for top-n accuracy if its place is below n. Equal scores go to the lower class.
    """
    own = scores.gather(1, truth[:, None])
    lower = torch.arange(scores.shape[1], device=truth.device) < truth[:, None]
    return ((scores > own) | ((scores == own) & lower)).sum(dim=1)


def warn_of_large_k(k: int, labels: Tensor) -> None:
    """Warns where more neighbours vote than the smallest class of the bank has rows.

    Args:
        k: Neighbours that vote.
        labels: (N,) integers, at least one.
    """
    classes, counts = labels.unique(return_counts=True)  # type: ignore[no-untyped-call]
    smallest = int(counts.argmin())
    if k > int(counts[smallest]):
        warnings.warn(
            f"kNN with k = {k}: class {int(classes[smallest])} has only {int(counts[smallest])} rows in the "
            "bank, so neighbours of other classes always take part in its vote; choose a smaller k",
            stacklevel=3,
        )


def check_range(labels: Tensor, num_classes: int, name: str) -> None:
    """Accept labels from 0 to num_classes − 1.

    Raises:
        ValueError: A label is out of range.
    """
    if len(labels) and (labels.min() < 0 or labels.max() >= num_classes):
        raise ValueError(
            f"{name}: expected 0 to {num_classes - 1} for num_classes={num_classes}, "
            f"got {int(labels.min())} to {int(labels.max())}"
        )
