"""Subsets of the labels, which are the same images for everyone with the same data."""

from typing import Literal

from torch import Tensor

from ssl_vision.evaluation.stratified import stratified

Labels = Literal["all", "1%", "5%", "10%", "20%", "30%", "50%"]

SHARES = {"1%": 0.01, "5%": 0.05, "10%": 0.1, "20%": 0.2, "30%": 0.3, "50%": 0.5}

SEED = 0


def label_subset(labels: Tensor, share: Labels) -> Tensor:
    """Return the labels of a training split with -1 outside a subset, which `stratified` draws with seed 0.

    Args:
        labels: labels of the whole training split, int64 of shape (N,).
        share: share of the labels to keep.
    """
    if share == "all":
        return labels
    keep = stratified(labels, SHARES[share], seed=SEED)
    return labels.where(keep.to(labels.device), -1)
