"""kNN accuracy at every k and every kernel temperature, from one search."""

import warnings
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ssl_vision.metrics.neighbours import nearest
from ssl_vision.metrics.rows import UNLABELLED, Features, check_features, check_labels, select
from ssl_vision.metrics.vote import check_range, place, votes, warn_of_large_k

TOP = 5


class KNNScore(NamedTuple):
    """Accuracy under one protocol.

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
    """Neighbours that voted: the k asked for, or all of a smaller bank."""
    temperature: float | None
    """T of the weighted vote exp(s/T); None of the majority's vote, which counts each neighbour as 1."""
    top1: float
    """Share of labelled queries whose class has the best score, in [0, 1]."""
    top5: float | None
    """Share whose class is among the best five; None with fewer than five classes."""


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
    """Accuracies of k-nearest-neighbour classification for all pairs of ``ks`` and ``temperatures``.

    One search at the largest k (see `nearest`) serves them all (see `vote`). Rows labelled -1 are left out,
    of the bank and of the queries. Neighbours at equal similarity are taken by lower index, classes of equal
    score by lower number. A bank of fewer than k labelled rows votes as a whole, with one warning. Another
    one says that a class of the bank has fewer than k rows.

    Args:
        queries: (Q, F).
        truth: (Q,) labels of the queries, 0 to num_classes − 1, or -1.
        bank: (N, F), on the same device.
        labels: (N,) labels of the bank, likewise.
        num_classes: Number of classes C.
        ks: Neighbours that vote, each at least 1.
        temperatures: T > 0 of the weighted vote, or None for the majority's.
        metric: Of `nearest`; under "euclidean" a vote weighs exp(−distance/T), so that T has the features'
            unit.
        backend: Of `nearest`.
        dtype: Of `nearest`.

    Returns:
        A score for each temperature and, within it, each k, in the order given.

    Raises:
        ValueError: Shapes, devices or options do not fit, a label is out of range, or the bank or the
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
    given: tuple[tuple[str, Features, Tensor], ...] = (("queries", queries, truth), ("bank", bank, labels))
    for name, rows, known in given:
        check_features(rows, name)
        check_labels(known, len(rows), f"labels of the {name}")
        if not (known != UNLABELLED).any():
            raise ValueError(f"labels of the {name}: none of the {len(known)} rows is labelled")
    if not ks or min(ks) < 1:
        raise ValueError(f"ks: expected numbers of at least 1, got {list(ks)}")
    queries, truth = select(queries, truth != UNLABELLED), truth[truth != UNLABELLED].long()
    bank, labels = select(bank, labels != UNLABELLED), labels[labels != UNLABELLED]
    check_range(truth, num_classes, "labels of the queries")
    used = [min(k, len(bank)) for k in ks]
    if max(ks) > len(bank):
        warnings.warn(f"knn_table: k={max(ks)}, but the bank has {len(bank)} rows", stacklevel=2)
    else:
        warn_of_large_k(max(ks), labels)
    increasing = sorted(set(used))
    found = nearest(queries, bank, increasing[-1], backend=backend, metric=metric, dtype=dtype)
    table = []
    for temperature in temperatures:
        scores = votes(found, labels, num_classes, ks=increasing, temperature=temperature)
        places = {k: place(score, truth) for k, score in zip(increasing, scores, strict=True)}
        for k in used:
            top1, top5 = ((places[k] < top).double().mean().item() for top in (1, TOP))
            table.append(KNNScore(k, temperature, top1, top5 if num_classes >= TOP else None))
    return table
