"""Effective rank: the number of directions that a matrix uses."""

import torch
from torch import Tensor

from ssl_vision.descriptions import DescribedMetric
from ssl_vision.metrics.rows import check_features


def effective_rank(features: Tensor, *, centred: bool = False) -> Tensor:
    """Compute exp(−Σ_k p_k log p_k), p_k = σ_k/‖σ‖₁, with 0 log 0 = 0 (Roy & Vetterli 2007, Definition 1).

    σ are the singular values of the features; `rankme` is the same with 1e-7 added to each p. The value
    ranges from 1 (a single direction) to min(N, F) (all directions equal). Computed by an exact SVD in
    float64, in O(N F min(N, F)) time.

    Args:
        features: features of any scale, shape (N, F).
        centred: Subtract the mean row first; otherwise, an offset common to all rows counts as a direction.

    Returns:
        A float64 scalar; NaN for features that are empty, all zero or not finite.

    Raises:
        ValueError: the shape is invalid.

    Example:
        >>> import torch
        >>> round(float(effective_rank(torch.eye(4))), 3)
        4.0
    """
    check_features(features)
    rows = features.double()
    if len(rows) == 0 or not rows.isfinite().all():
        return rows.new_full((), torch.nan)
    values = torch.linalg.svdvals(rows - rows.mean(dim=0) if centred else rows)
    rank: Tensor = torch.special.entr(values / values.sum()).sum().exp()
    return rank


class EffectiveRank(DescribedMetric):
    """The number that `effective_rank` returns."""

    metric_name = "effective_rank"
    title = "effective rank"
    higher_is_better = True
    sections = ()
    note = "This estimates the number of directions in use without the constant that RankMe adds."
    order = 200
