"""Backends of the neighbour search, labelled clusters, and the accuracy of k-NN computed with loops."""

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from ssl_vision.metrics import faiss_kind

BACKENDS = [
    "torch",
    pytest.param("faiss", marks=pytest.mark.skipif(faiss_kind() == "none", reason="no FAISS")),
]


def clusters(seed: int, n: int, *, classes: int, spread: float, lowest: int = 0) -> tuple[Tensor, Tensor]:
    """Return overlapping clusters, so that accuracy is neither 0 nor 1."""
    centres = torch.randn(classes, 8, generator=torch.Generator().manual_seed(99))
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(lowest, classes, (n,), generator=g)
    return centres[labels] + spread * torch.randn(n, 8, generator=g), labels


def by_loops(
    queries: Tensor, truth: Tensor, bank: Tensor, labels: Tensor, k: int, temperature: float | None,
    metric: str = "cosine", *, classes: int, tops: Sequence[int] = (1, 5),
) -> tuple[float, ...]:  # fmt: skip
    """Return the top-1 and top-5 accuracy of the labelled queries, one query at a time in float64."""
    hits, number = dict.fromkeys(tops, 0), 0
    rows = [(row.double(), label) for row, label in zip(bank, labels.tolist(), strict=True) if label >= 0]
    for query, target in zip(queries.double(), truth.tolist(), strict=True):
        if target < 0:
            continue
        number += 1
        similarities = []
        for row, label in rows:
            cosine = float(query @ row / (query.norm() * row.norm()))
            similarities.append((cosine if metric == "cosine" else -float((query - row).norm()), label))
        best = sorted(similarities, key=lambda pair: -pair[0])[:k]
        score = [0.0] * classes
        for similarity, label in best:
            score[label] += 1.0 if temperature is None else math.exp((similarity - best[0][0]) / temperature)
        order = sorted(range(classes), key=lambda c: -score[c])
        for top in hits:
            hits[top] += target in order[:top]
    return tuple(count / number for count in hits.values())
