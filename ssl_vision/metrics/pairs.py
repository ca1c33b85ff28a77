"""Statistics over all pairs of samples."""

from typing import NamedTuple

import torch
from torch import Tensor

from ssl_vision.errors import check
from ssl_vision.metrics.precision import exact_float32
from ssl_vision.metrics.rows import UNLABELLED, check_features, checked_labels, unit_rows
from ssl_vision.metrics.tolerance import class_cosines


class PairStatistics(NamedTuple):
    """Means over ordered pairs x ≠ y of unit rows; float64 scalars, NaN if there are no such pairs.

    Example:
        >>> import torch
        >>> statistics = pair_statistics(torch.eye(4), torch.tensor([0, 0, 1, 1]))
        >>> float(statistics.same_cosine), float(statistics.different_cosine)
        (0.0, 0.0)
    """

    uniformity: Tensor
    """log E exp(−t‖x − y‖²), in [−4t, 0]."""
    tolerance: Tensor
    """E[x·y 1{same class}], at most the share of same-class pairs."""
    same_cosine: Tensor
    """Mean cosine of same-class pairs, the conditional tolerance."""
    different_cosine: Tensor
    """Mean cosine of pairs of different classes."""
    sensitivity: Tensor
    """E exp(−(H − x·y)²), with H = 1 for the same class and −1 for different ones; in [e⁻⁴, 1]."""


_SHARPEST = 20
"""Maximum t for which the smallest kernel value exp(−4t) is a normal float32 number."""


def check_sharpness(t: float) -> None:
    """Check the sharpness of the uniformity kernel.

    Raises:
        ValueError: it is not in (0, 20].
    """
    if not 0 < t <= _SHARPEST:
        raise ValueError(f"t: expected more than 0 and at most {_SHARPEST}, got {t}")


def pair_statistics(
    features: Tensor, labels: Tensor | None = None, *, t: float = 2.0, tile: int = 1024
) -> PairStatistics:
    """Compute uniformity, tolerance and semantic sensitivity (MACL paper, Eq. 5-7), in one tiled pass.

    Means are over all ordered pairs x ≠ y of rows, including pairs of equal rows. Each tile of cosines is
    computed once, in float32, for both orders; sums are in float64. This takes O(N² F) time and
    O(N F + tile²) memory.

    Args:
        features: features of any scale, shape (N, F), N ≥ 2; rows are L2-normalised, and zero rows stay zero.
        labels: integer labels, shape (N,). Rows with -1 are used for uniformity only; None means that all
            rows are unlabelled.
        t: Sharpness of the uniformity kernel, at most 20; Wang & Isola 2020 use 2.
        tile: Number of rows and columns of a tile.

    Returns:
        The statistics; those that need labels are NaN without a labelled pair.

    Raises:
        ValueError: shapes or types are invalid, N < 2, t is not in (0, 20], tile < 1, or a label is below -1.

    Example:
        >>> import torch
        >>> features = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
        >>> statistics = pair_statistics(features, torch.tensor([0, 0, 1, 1]))
        >>> round(float(statistics.tolerance), 4), round(float(statistics.same_cosine), 4)
        (0.3333, 1.0)
    """
    check_features(features)
    if len(features) < 2:
        raise ValueError(f"features: expected at least 2 rows to form a pair, got {tuple(features.shape)}")
    check_sharpness(t)
    check("tile", tile, at_least=1)
    if labels is None:
        labels = torch.full((len(features),), UNLABELLED, device=features.device)
    labels = checked_labels(labels, len(features))

    with exact_float32(features.device):
        unit = unit_rows(features)
        cosines = class_cosines(unit, labels)
        labelled = (labels != UNLABELLED).float()
        number = labelled.double().sum()
        # exp(−t‖x − y‖²) = w(x) w(y) exp(2t(x·y − 1)), and w = exp(t(1 − ‖x‖²)) is 1 except for zero rows
        weight = (t * (1 - unit.square().sum(dim=1).round())).exp()
        measure_classes = bool(number >= 2)
        kernel_sum = torch.zeros((), dtype=torch.float64, device=unit.device)
        sensitivity_sum = kernel_sum.clone() if measure_classes else kernel_sum + torch.nan
        for top in range(0, len(unit), tile):
            rows = slice(top, top + tile)
            for left in range(top, len(unit), tile):
                columns = slice(left, left + tile)
                orders = 1 if top == left else 2
                cosine = (unit[rows] @ unit[columns].T).clamp_(-1.0, 1.0)  # against rounding errors
                kernel_sum = kernel_sum + orders * _weighted_sum(
                    (cosine - 1).mul_(2 * t).exp_(), weight[rows], weight[columns], top == left
                )
                if measure_classes:
                    target = torch.where(labels[rows, None] == labels[columns], 1.0, -1.0)
                    sensitivity_sum = sensitivity_sum + orders * _weighted_sum(
                        target.sub_(cosine).square_().neg_().exp_(),
                        labelled[rows],
                        labelled[columns],
                        top == left,
                    )
        pairs = len(unit) * (len(unit) - 1)
        return PairStatistics(
            uniformity=(kernel_sum / pairs).log(),
            tolerance=cosines.tolerance,
            same_cosine=cosines.same_cosine,
            different_cosine=cosines.different_cosine,
            sensitivity=sensitivity_sum / (number * (number - 1)),
        )


def _weighted_sum(values: Tensor, left: Tensor, right: Tensor, diagonal: bool) -> Tensor:
    """Compute Σ_ij left_i values_ij right_j without the diagonal, in float64 over the rows."""
    if diagonal:
        values.fill_diagonal_(0.0)
    return left.double() @ (values @ right).double()
