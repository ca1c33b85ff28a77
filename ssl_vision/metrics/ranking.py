"""Rank correlation of cosines with a hierarchy of classes."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ssl_vision.descriptions import DescribedMetric
from ssl_vision.errors import check
from ssl_vision.metrics.rows import RepresentationMetric, check_features, exact_float32, joined, unit_rows

_STEPS = 2**20
"""Number of quantisation steps of cosines from 0 to 1."""


class RankCorrelation(NamedTuple):
    """Rank correlations of cosine and grade over pairs; float64, in [-1, 1], NaN if one is constant.

    Example:
        >>> import torch
        >>> features = torch.eye(4)[[0, 0, 1, 1]]
        >>> correlation = rank_correlation(features, torch.tensor([[0], [0], [1], [1]]))
        >>> round(float(correlation.spearman), 3)
        1.0
    """

    spearman: Tensor
    """Pearson correlation of the ranks; ties have their mean rank."""
    kendall: Tensor
    """τ_b = (concordant − discordant)/√(pairs of pairs untied in cosine · those untied in grade)."""


def rank_correlation(features: Tensor, levels: Tensor, *, tile: int = 1024) -> RankCorrelation:
    """Compute Spearman's ρ and Kendall's τ_b between cosine and grade, over all pairs x ≠ y of rows.

    The grade of a pair is the number of leading levels that its rows share. With superclass, class and image
    as levels, two views of an image have grade 3, two images of a class 2, two of a superclass 1, others 0.

    Ties are counted exactly. Cosines are first rounded to multiples of 2⁻²⁰, about the error of a float32
    product, so that rounding errors are not ranked; for a collapse, the result is NaN. Only a table of counts
    by cosine and grade is kept, so this takes O(N² F) time and O(N F + tile² + 2²¹ grades) memory.

    Args:
        features: features of any scale, shape (N, F); zero rows have cosine 0 to all others.
        levels: integer levels, shape (N, L), the coarsest first; rows with a negative level are ignored.
        tile: Number of rows and columns of a tile of cosines.

    Returns:
        The correlations; NaN also if features are not finite or fewer than two rows remain.

    Raises:
        ValueError: shapes or types are invalid, or tile < 1.

    Example:
        >>> import torch
        >>> features = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
        >>> levels = torch.tensor([[0], [0], [1], [1]])
        >>> round(float(rank_correlation(features, levels).spearman), 3)
        0.853
    """
    check_features(features)
    _check_levels(levels, len(features))
    check("tile", tile, at_least=1)
    labelled = (levels >= 0).all(dim=1)
    features, levels = features[labelled], levels[labelled]
    if not features.isfinite().all():
        nan = torch.full((), torch.nan, dtype=torch.float64, device=features.device)
        return RankCorrelation(nan, nan)
    with exact_float32(features.device):
        return _correlations(_counts(unit_rows(features), levels, tile))


def _check_levels(levels: Tensor, rows: int) -> None:
    integers = not (levels.is_floating_point() or levels.is_complex() or levels.dtype == torch.bool)
    if levels.ndim != 2 or levels.shape[0] != rows or levels.shape[1] == 0 or not integers:
        actual = f"{levels.dtype} {tuple(levels.shape)}"
        raise ValueError(f"levels: expected integers ({rows}, L), one row a row of features, got {actual}")


def _counts(unit: Tensor, levels: Tensor, tile: int) -> Tensor:
    """Count the pairs of each grade and rounded cosine, int64 (grades, cosines)."""
    cosines = 2 * _STEPS + 1
    counts = torch.zeros((levels.shape[1] + 1) * cosines, dtype=torch.int64, device=unit.device)
    one = counts.new_ones(())
    for top in range(0, len(unit), tile):
        rows = slice(top, top + tile)
        for left in range(top, len(unit), tile):
            columns = slice(left, left + tile)
            cell = (unit[rows] @ unit[columns].T).clamp_(-1.0, 1.0).mul_(_STEPS).round_().long()
            shared = torch.ones_like(cell, dtype=torch.bool)
            for level in levels.T:
                shared &= level[rows, None] == level[columns]
                cell += shared * cosines
            cell += _STEPS
            if top == left:
                upper = torch.ones_like(shared).triu_(diagonal=1)
                cell = cell[upper]
            cell = cell.flatten()
            counts.index_add_(0, cell, one.expand(len(cell)))
    return counts.view(-1, cosines)


def _correlations(counts: Tensor) -> RankCorrelation:
    """Compute both correlations from the table of counts (grades, cosines)."""
    by_cosine, by_grade = (counts.sum(dim=dim).double() for dim in (0, 1))
    pairs = by_cosine.sum()
    x, y = (_centred_ranks(number) for number in (by_cosine, by_grade))
    covariance = y @ (counts.double() @ x)
    spearman = covariance / (by_cosine @ x.square()).sqrt() / (by_grade @ y.square()).sqrt()
    surplus = pairs.new_zeros(())
    lower = torch.zeros_like(by_cosine)
    for i, row in enumerate(counts.double()):
        if i:
            # pairs of lower grade with smaller cosines are concordant, those with larger ones discordant
            smaller = lower.cumsum(0) - lower
            surplus += row @ (2 * smaller + lower - lower.sum())
        lower += row
    untied = [(pairs.square() - number.square().sum()) / 2 for number in (by_cosine, by_grade)]
    return RankCorrelation(spearman, surplus / untied[0].sqrt() / untied[1].sqrt())


def _centred_ranks(number: Tensor) -> Tensor:
    """Compute the mean rank of each value, minus the mean of all ranks, from the counts of sorted values."""
    return number.cumsum(0) - number / 2 - number.sum() / 2


class Ranking(RepresentationMetric):
    """Rank correlation of cosine and grade over pairs of rows; see `rank_correlation`.

    All rows are kept; the value is computed over all batches and processes.

    Args:
        kwargs: Options of `torchmetrics.Metric`.

    Example:
        >>> import torch
        >>> metric = Ranking()
        >>> metric.update(torch.eye(4)[[0, 0, 1, 1]], torch.tensor([[0], [0], [1], [1]]))
        >>> round(float(metric.compute()["kendall"]), 3)
        1.0
    """

    higher_is_better = True

    features: list[Tensor]
    levels: list[Tensor]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("features", default=[], dist_reduce_fx="cat")
        self.add_state("levels", default=[], dist_reduce_fx="cat")

    def update(self, features: Tensor, levels: Tensor) -> None:
        """Add rows.

        Args:
            features: features of any scale, shape (N, F).
            levels: integer levels, shape (N, L), the coarsest first; negative means unknown.

        Raises:
            ValueError: shapes or types are invalid.
        """
        check_features(features)
        _check_levels(levels, len(features))
        self.features.append(features.detach().clone())
        self.levels.append(levels.clone())

    def compute(self) -> dict[str, Tensor]:
        """Return the float64 scalars ``spearman`` and ``kendall``.

        Raises:
            ValueError: there are no rows, or batches differ in width.
        """
        features = joined(self.features, "Ranking: no features to measure")
        return rank_correlation(features, joined(self.levels, "Ranking: no levels"))._asdict()


class Spearman(DescribedMetric):
    """Spearman's correlation, of `rank_correlation`."""

    metric_name = "spearman"
    title = "Spearman"
    higher_is_better = True
    sections = ("table",)
    needs = ("views", "labels", "superclasses")
    note = "This is the rank correlation of the cosines with the hierarchy of classes."
    order = 180


class Kendall(DescribedMetric):
    """Kendall's correlation, of `rank_correlation`."""

    metric_name = "kendall"
    title = "Kendall"
    higher_is_better = True
    sections = ("table",)
    needs = ("views", "labels", "superclasses")
    note = "This is Kendall's correlation of the cosines with the hierarchy of classes."
    order = 190
