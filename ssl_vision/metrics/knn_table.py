"""kNN accuracy at several k and temperatures from one search."""

import warnings
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ssl_vision.metrics.neighbours import nearest
from ssl_vision.metrics.rows import UNLABELLED, Features, check_features, checked_labels, select
from ssl_vision.metrics.vote import check_range, place, votes, warn_of_large_k

TOP = 5


class KNNScore(NamedTuple):
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
    top5: float | None
    """Share of labelled queries whose class is among the best five; None with fewer than five classes."""


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
    dtype: torch.dtype = torch.float32,
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
        dtype: As in `nearest`.

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
            raise ValueError(f"labels of the {name}: none of the {len(classes)} rows is labelled")
    if not ks or min(ks) < 1:
        raise ValueError(f"ks: expected numbers of at least 1, got {list(ks)}")
    queries, truth = select(queries, truth != UNLABELLED), truth[truth != UNLABELLED]
    bank, labels = select(bank, labels != UNLABELLED), labels[labels != UNLABELLED]
    check_range(truth, num_classes, "labels of the queries")
    used = [min(k, len(bank)) for k in ks]
    if max(ks) > len(bank):
        warnings.warn(f"knn_table: k={max(ks)}, but the bank has {len(bank)} rows", stacklevel=2)
    else:
        warn_of_large_k(max(ks), labels)
    increasing = sorted(set(used))
    neighbours = nearest(queries, bank, k=increasing[-1], backend=backend, metric=metric, dtype=dtype)
    table = []
    for temperature in temperatures:
        scores = votes(neighbours, labels, num_classes, ks=increasing, temperature=temperature)
        places = {k: place(score, truth) for k, score in zip(increasing, scores, strict=True)}
        for k in used:
            top1, top5 = ((places[k] < top).double().mean().item() for top in (1, TOP))
            table.append(KNNScore(k, temperature, top1, top5 if num_classes >= TOP else None))
    return table
