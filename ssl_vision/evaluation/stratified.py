"""Stratified subsets of labelled rows."""

import torch
from torch import Tensor


def stratified(labels: Tensor, share: float, *, seed: int) -> Tensor:
    """Draw a random ``share`` of the rows of each class, which depends only on labels and ``seed``.

    Of n rows of a class, round(share · n) are drawn, but at least one and, if there are two or more, not all
    of them. Rows labelled -1 are never drawn.

    Args:
        labels: integers of shape (N,), -1 for unlabelled rows.
        share: share of the rows in (0, 1).
        seed: seed of the random numbers.

    Returns:
        A mask on the CPU, bool of shape (N,).

    Raises:
        ValueError: ``share`` is out of range.
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
