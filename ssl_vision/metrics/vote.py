"""Class scores from the similarities and labels of neighbours."""

import warnings
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ssl_vision.errors import check
from ssl_vision.metrics.neighbours import Neighbours
from ssl_vision.metrics.rows import checked_labels


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
    """Iterate over the scores of `vote` for increasing k; each yielded tensor is modified for the next k.

    Raises:
        ValueError: as `vote`, or the ks decrease.
    """
    count = neighbours.index.shape[1]
    for k in ks:
        if not 1 <= k <= count:
            raise ValueError(f"k: expected 1 to {count}, the number of neighbours, got {k}")
    if list(ks) != sorted(ks):
        raise ValueError(f"ks: expected increasing, got {list(ks)}")
    check("temperature", temperature, above=0)
    labels = checked_labels(labels, len(labels))
    check_range(labels, num_classes, "labels")
    if neighbours.index.numel() and neighbours.index.max() >= len(labels):
        raise ValueError(
            f"labels: {len(labels)}, but the bank has at least {int(neighbours.index.max()) + 1} rows"
        )
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


def place(scores: Tensor, truth: Tensor) -> Tensor:
    """Return the rank of the true class from 0, shape (Q,), given scores (Q, C) and labels (Q,) int64.

    A query counts as correct for top-n accuracy if its rank is below n. Ties go to the lower class.
    """
    true_score = scores.gather(1, truth[:, None])
    lower = torch.arange(scores.shape[1], device=truth.device) < truth[:, None]
    return ((scores > true_score) | ((scores == true_score) & lower)).sum(dim=1)


def warn_of_large_k(k: int, labels: Tensor) -> None:
    """Warn if more neighbours vote than the smallest class of the bank has rows.

    Args:
        k: number of neighbours that vote.
        labels: integer labels of the bank, shape (N,), N ≥ 1.
    """
    smallest = int(labels.unique(return_counts=True)[1].min())
    if k > smallest:
        warnings.warn(
            f"kNN with k = {k}, but the smallest class has {smallest} images, so every vote includes other "
            f"classes: choose k = {smallest} or less (--metrics.k of fit, --k of evaluate)",
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
