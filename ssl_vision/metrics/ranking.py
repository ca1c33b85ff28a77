"""Ranking: whether cosines order pairs as a hierarchy of classes does."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torchmetrics import Metric

from ssl_vision.descriptions import describe
from ssl_vision.metrics.precision import exact_float32
from ssl_vision.metrics.rows import check_features, joined, unit_rows

_STEPS = 2**20
"""Steps of the cosine from 0 to 1."""

describe(
    "spearman",
    title="Spearman",
    direction="higher",
    sections=("table",),
    needs=("views", "labels", "superclasses"),
    note="rank correlation of cosines with the hierarchy of classes",
    order=180,
)
describe(
    "kendall",
    title="Kendall",
    direction="higher",
    sections=("table",),
    needs=("views", "labels", "superclasses"),
    note="the same by concordant and discordant pairs",
    order=190,
)


class RankCorrelation(NamedTuple):
    """Rank correlations of cosine and grade over pairs; float64, in [-1, 1], NaN where one is constant.

    Example:
        >>> import torch
        >>> features = torch.eye(4)[[0, 0, 1, 1]]
        >>> correlation = rank_correlation(features, torch.tensor([[0], [0], [1], [1]]))
        >>> round(float(correlation.spearman), 3)
        1.0
    """

    spearman: Tensor
    """Pearson's correlation of the ranks, those of ties being their mean."""
    kendall: Tensor
    """τ_b = (concordant − discordant)/√(pairs of pairs untied in cosine · those untied in grade)."""


def rank_correlation(features: Tensor, levels: Tensor, *, tile: int = 1024) -> RankCorrelation:
    """Spearman's ρ and Kendall's τ_b between cosine and grade, over all pairs x ≠ y of rows.

    The grade of a pair is the number of leading levels that it shares. With superclass, class and image as
    levels, two views of one image have grade 3, two images of a class 2, of a superclass 1, others 0.

    Ties are counted exactly. Cosines are rounded to multiples of 2⁻²⁰ first, about the error of a float32
    product, so that rounding ranks nothing: a collapse is one tie, and NaN. All that is kept of the pairs is
    a table of how many have each cosine and grade: O(N² F) time, O(N F + tile² + 2²¹ grades) memory.

    Args:
        features: (N, F), any scale; zero rows have cosine 0 to all.
        levels: (N, L) integers, the coarsest first; a row with a negative one is left out.
        tile: Rows and columns of a tile of cosines.

    Returns:
        Both; NaN also where features are not finite or fewer than two rows are left.

    Raises:
        ValueError: Shapes or types do not fit, or tile < 1.

    Example:
        >>> import torch
        >>> features = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
        >>> levels = torch.tensor([[0], [0], [1], [1]])
        >>> round(float(rank_correlation(features, levels).spearman), 3)
        0.853
    """
    check_features(features)
    _check_levels(levels, len(features))
    if tile < 1:
        raise ValueError(f"tile: expected at least 1, got {tile}")
    known = (levels >= 0).all(dim=1)
    features, levels = features[known], levels[known]
    if not features.isfinite().all():
        nothing = torch.full((), torch.nan, dtype=torch.float64, device=features.device)
        return RankCorrelation(nothing, nothing)
    with exact_float32(features.device):
        return _correlated(_counts(unit_rows(features), levels, tile))


def _check_levels(levels: Tensor, rows: int) -> None:
    integers = not (levels.is_floating_point() or levels.is_complex() or levels.dtype == torch.bool)
    if levels.ndim != 2 or levels.shape[0] != rows or levels.shape[1] == 0 or not integers:
        got = f"{levels.dtype} {tuple(levels.shape)}"
        raise ValueError(f"levels: expected integers ({rows}, L), one row a row of features, got {got}")


def _counts(unit: Tensor, levels: Tensor, tile: int) -> Tensor:
    """(grades, cosines) of int64: how many pairs have each grade and each rounded cosine."""
    cosines = 2 * _STEPS + 1
    counts = torch.zeros((levels.shape[1] + 1) * cosines, dtype=torch.int64, device=unit.device)
    one = counts.new_ones(())
    for top in range(0, len(unit), tile):
        rows = slice(top, top + tile)
        for left in range(top, len(unit), tile):
            columns = slice(left, left + tile)
            place = (unit[rows] @ unit[columns].T).clamp_(-1.0, 1.0).mul_(_STEPS).round_().long()
            shared = torch.ones_like(place, dtype=torch.bool)
            for level in levels.T:
                shared &= level[rows, None] == level[columns]
                place += shared * cosines
            place += _STEPS
            if top == left:
                own = torch.ones_like(shared).triu_(diagonal=1)
                place = place[own]
            place = place.flatten()
            counts.index_add_(0, place, one.expand(len(place)))
    return counts.view(-1, cosines)


def _correlated(counts: Tensor) -> RankCorrelation:
    """Both correlations, from the (grades, cosines) table of counts."""
    of_cosine, of_grade = (counts.sum(dim=dim).double() for dim in (0, 1))
    pairs = of_cosine.sum()
    x, y = (_centred_ranks(number) for number in (of_cosine, of_grade))
    together = y @ (counts.double() @ x)
    spearman = together / (of_cosine @ x.square()).sqrt() / (of_grade @ y.square()).sqrt()
    surplus = pairs.new_zeros(())
    lower = torch.zeros_like(of_cosine)
    for i, row in enumerate(counts.double()):
        if i:
            # pairs of a lower grade: those of a smaller cosine are concordant, of a larger one discordant
            smaller = lower.cumsum(0) - lower
            surplus += row @ (2 * smaller + lower - lower.sum())
        lower += row
    untied = [(pairs.square() - number.square().sum()) / 2 for number in (of_cosine, of_grade)]
    return RankCorrelation(spearman, surplus / untied[0].sqrt() / untied[1].sqrt())


def _centred_ranks(number: Tensor) -> Tensor:
    """Mean rank of each value less the mean of all ranks, from how often each occurs, in order."""
    return number.cumsum(0) - number / 2 - number.sum() / 2


class Ranking(Metric):
    """Rank correlation of cosine and grade over pairs of rows; see `rank_correlation`.

    Keeps all rows; the value is that of all batches and processes together.

    Args:
        kwargs: Options of `torchmetrics.Metric`.

    Example:
        >>> import torch
        >>> metric = Ranking()
        >>> metric.update(torch.eye(4)[[0, 0, 1, 1]], torch.tensor([[0], [0], [1], [1]]))
        >>> round(float(metric.compute()["kendall"]), 3)
        1.0
    """

    is_differentiable = False
    full_state_update = False
    higher_is_better = True

    features: list[Tensor]
    levels: list[Tensor]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("features", default=[], dist_reduce_fx="cat")
        self.add_state("levels", default=[], dist_reduce_fx="cat")

    def update(self, features: Tensor, levels: Tensor) -> None:
        """Add (N, F) features, any scale, and their (N, L) levels, the coarsest first; negative is "unknown".

        Raises:
            ValueError: Shapes or types do not fit.
        """
        check_features(features)
        _check_levels(levels, len(features))
        self.features.append(features.detach())
        self.levels.append(levels)

    def compute(self) -> dict[str, Tensor]:
        """Float64 scalars: spearman, kendall.

        Raises:
            ValueError: There are no rows, or batches differ in width.
        """
        features = joined(self.features, "Ranking: no features to measure")
        return rank_correlation(features, joined(self.levels, "Ranking: no levels"))._asdict()
