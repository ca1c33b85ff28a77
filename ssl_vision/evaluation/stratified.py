"""A share of the labelled rows, with as much of every class."""

import torch
from torch import Tensor


def stratified(labels: Tensor, share: float, *, seed: int) -> Tensor:
    """(N,) bool, on the CPU: a random ``share`` of the rows of each class, by labels and ``seed`` alone.

    A class of n rows gives round(share · n), but at least one and, where it has two or more, not all of
    them. Rows labelled -1 are never taken.

    Args:
        labels: (N,) integers, -1 for "unlabelled".
        share: in (0, 1).
        seed: of the choice.

    Raises:
        ValueError: share is out of range.
    """
    if not 0 < share < 1:
        raise ValueError(f"share: expected more than 0 and less than 1, got {share}")
    labels = labels.cpu()
    taken = torch.zeros(len(labels), dtype=torch.bool)
    generator = torch.Generator().manual_seed(seed)
    for label in torch.unique(labels[labels >= 0]).tolist():
        rows = (labels == label).nonzero()[:, 0]
        count = min(max(1, round(share * len(rows))), max(1, len(rows) - 1))
        taken[rows[torch.randperm(len(rows), generator=generator)[:count]]] = True
    return taken
