"""Effective rank: the number of directions that a matrix uses."""

import torch
from torch import Tensor

from ssl_vision.descriptions import describe
from ssl_vision.metrics.rows import check_features

describe(
    "effective_rank",
    title="effective rank",
    direction="higher",
    sections=(),
    note="directions in use, without the constant of RankMe",
    order=200,
)


def effective_rank(features: Tensor, *, centred: bool = False) -> Tensor:
    """exp(−Σ_k p_k log p_k) with p_k = σ_k/‖σ‖₁ and 0 log 0 = 0 (Roy & Vetterli 2007, Definition 1).

    σ are the singular values of the features; `rankme` is the same with 1e-7 added to each p. From 1 (one
    direction) to min(N, F) (all alike). An exact SVD in float64, O(N F min(N, F)) time.

    Args:
        features: (N, F), any scale.
        centred: Take the mean row away first; without, an offset common to all rows is a direction too.

    Returns:
        A float64 scalar; NaN for features that are not finite, none, or all zero.

    Raises:
        ValueError: Another shape.

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
