"""Metrics of pairs: alignment of views, and uniformity, tolerance and sensitivity over all pairs of rows."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ssl_vision.descriptions import DescribedMetric
from ssl_vision.errors import check
from ssl_vision.metrics.rows import (
    UNLABELLED,
    FeatureRows,
    LabelledRows,
    RepresentationMetric,
    check_features,
    checked_labels,
    exact_float32,
    unit_rows,
)

SHARPEST = 20
"""Maximum t for which the smallest kernel value exp(−4t) is a normal float32 number."""


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
    check("t", t, above=0, at_most=SHARPEST)
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
        sensitivity = sensitivity_sum / (number * (number - 1))
        return PairStatistics((kernel_sum / pairs).log(), *cosines, sensitivity)


def _weighted_sum(values: Tensor, left: Tensor, right: Tensor, diagonal: bool) -> Tensor:
    """Compute Σ_ij left_i values_ij right_j without the diagonal, in float64 over the rows."""
    if diagonal:
        values.fill_diagonal_(0.0)
    return left.double() @ (values @ right).double()


def class_cosines(unit: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute mean cosines within and between classes in O(N F) time, from Σ_{x≠y} x·y = ‖Σ x‖² − Σ ‖x‖².

    Args:
        unit: rows of unit length or zero, shape (N, F).
        labels: integer labels, shape (N,); rows with -1 are ignored.

    Returns:
        The means of cosine · 1{same class} over all pairs x ≠ y, and of the cosines over pairs of the same
        class and of different classes; float64 scalars, NaN if there is no such pair.

    Raises:
        ValueError: a label is below -1.
    """
    if len(labels) and labels.min() < UNLABELLED:
        raise ValueError(f"labels: expected -1 (unlabelled) or more, got {int(labels.min())}")
    labelled = labels != UNLABELLED
    rows = unit[labelled].double()
    label = labels[labelled]
    classes, member, sizes = label.unique(return_inverse=True, return_counts=True)
    sums = rows.new_zeros(len(classes), rows.shape[1]).index_add_(0, member, rows)
    squares = rows.square().sum()
    same_sum = sums.square().sum() - squares
    all_sum = sums.sum(dim=0).square().sum() - squares
    same_pairs = (sizes * (sizes - 1)).sum()
    all_pairs = len(rows) * (len(rows) - 1)
    same_sum = same_sum.where(same_pairs > 0, 0.0)  # without such pairs, only rounding errors remain
    different_sum = (all_sum - same_sum).where(same_pairs < all_pairs, 0.0)
    return same_sum / all_pairs, same_sum / same_pairs, different_sum / (all_pairs - same_pairs)


class Alignment(RepresentationMetric):
    """Mean distance of positive pairs, A = E_x ‖f(x) − g(x)‖^γ (Wang & Isola 2020; MACL paper, Eq. 5).

    f(x) and g(x) are the L2-normalised embeddings of two views of one image. The value is in [0, 2^γ], and 0
    if all views agree. The state consists of two sums only.

    Args:
        gamma: Exponent γ > 0.
        kwargs: Options of `torchmetrics.Metric`.

    Example:
        >>> import torch
        >>> metric = Alignment()
        >>> metric.update(torch.eye(2), torch.eye(2))
        >>> metric.compute()
        tensor(0., dtype=torch.float64)
    """

    metric_name = "alignment"
    title = "alignment"
    sections = ("table", "curves", "summary")
    needs = ("views",)
    note = "This is the mean squared distance of two views; lower values mean closer views."
    order = 110
    higher_is_better = False

    total: Tensor
    count: Tensor

    def __init__(self, gamma: float = 2.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check("gamma", gamma, above=0)
        self.gamma = gamma
        self.add_state("total", default=torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", default=torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, x: Tensor, y: Tensor) -> None:
        """Add pairs of embeddings.

        Args:
            x: embeddings of one view of N images, shape (N, F).
            y: embeddings of the other view, shape (N, F).

        Raises:
            ValueError: the shapes are invalid.
        """
        check_features(x, "x")
        if x.shape != y.shape:
            raise ValueError(f"x, y: expected one shape, got {tuple(x.shape)} and {tuple(y.shape)}")
        distance = (unit_rows(x.detach()).double() - unit_rows(y.detach()).double()).norm(dim=1)
        self.total += distance.pow(self.gamma).sum()
        self.count += len(x)

    def compute(self) -> Tensor:
        """Return A, a float64 scalar.

        Raises:
            ValueError: there are no pairs.
        """
        if self.count == 0:
            raise ValueError("Alignment: no pairs to measure")
        return self.total / self.count


class Uniformity(FeatureRows):
    """Log-mean Gaussian kernel over pairs, U = log E_{x≠y} exp(−t‖f(x) − f(y)‖²) (MACL paper, Eq. 5).

    Introduced by Wang & Isola 2020. Features are L2-normalised, and the mean is over all pairs of different
    rows. U is in [−4t, 0]: 0 for a collapsed representation, about −2t for an even spread in many dimensions.

    Args:
        t: Sharpness of the kernel, in (0, 20].
        kwargs: Options of `torchmetrics.Metric`.

    Example:
        >>> import torch
        >>> metric = Uniformity()
        >>> metric.update(torch.eye(4))
        >>> round(float(metric.compute()), 3)
        -4.0
    """

    metric_name = "uniformity"
    title = "uniformity"
    sections = ("table", "curves", "summary")
    note = "This is the logarithm of the mean pair potential; lower values mean more spread-out features."
    order = 120
    higher_is_better = False

    def __init__(self, t: float = 2.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check("t", t, above=0, at_most=SHARPEST)
        self.t = t

    def compute(self) -> Tensor:
        """Return U, a float64 scalar.

        Raises:
            ValueError: there are fewer than two rows.
        """
        return pair_statistics(self.rows(), t=self.t).uniformity


class Tolerance(LabelledRows):
    """Mean cosine of same-class pairs, T = E_{x≠y}[f(x)·f(y) 1{same class}] (MACL paper, Eq. 6).

    The mean is over all ordered pairs x ≠ y of labelled rows, so T is at most the share of same-class pairs,
    1/C for C balanced classes. A collapsed representation has the largest T, so read it together with
    accuracy. T is NaN if there is no pair.

    Args:
        kwargs: Options of `torchmetrics.Metric`.

    Example:
        >>> import torch
        >>> metric = Tolerance()
        >>> metric.update(torch.ones(4, 2), torch.tensor([0, 0, 1, 1]))
        >>> round(float(metric.compute()), 4)  # a collapse: the share of same-class pairs
        0.3333
    """

    metric_name = "tolerance"
    title = "tolerance"
    sections = ("table", "curves", "summary")
    needs = ("labels",)
    note = "This is the mean cosine over all pairs, 0 between classes; higher values keep classes together."
    order = 130
    higher_is_better = True

    def compute(self) -> Tensor:
        """Return T, a float64 scalar.

        Raises:
            ValueError: there are no rows, or a label is below -1.
        """
        features, labels = self.labelled_rows()
        return class_cosines(unit_rows(features), labels)[0]


class SameCosine(DescribedMetric):
    """Mean cosine of two images of the same class, of `class_cosines`."""

    metric_name = "same_cosine"
    title = "same cos"
    long_title = "cosine within classes"
    sections = ("table",)
    needs = ("labels",)
    note = "This is the mean cosine of two images of the same class."
    order = 140


class DifferentCosine(DescribedMetric):
    """Mean cosine of two images of different classes, of `class_cosines`."""

    metric_name = "different_cosine"
    title = "diff cos"
    long_title = "cosine between classes"
    sections = ("table",)
    needs = ("labels",)
    note = "This is the mean cosine of two images of different classes."
    order = 150


class SemanticSensitivity(LabelledRows):
    """Mean closeness of cosines to labels, S = E_{x≠y} exp(−(H_xy − f(x)·f(y))²) (MACL paper, Eq. 7).

    H_xy is 1 for two samples of the same class and −1 otherwise. Features are L2-normalised, and the mean is
    over all ordered pairs of labelled rows, with natural class frequencies. S is in [e⁻⁴, 1]; a collapse
    gives p + (1 − p)e⁻⁴ for a share p of same-class pairs, and orthogonal samples give e⁻¹. With three or
    more classes, 1 cannot be reached. S depends on more than quality, so compare it only under one protocol
    and together with accuracy.

    Args:
        kwargs: Options of `torchmetrics.Metric`.

    Example:
        >>> import torch
        >>> metric = SemanticSensitivity()
        >>> metric.update(torch.eye(4), torch.tensor([0, 0, 1, 1]))
        >>> round(float(metric.compute()), 4)  # orthogonal samples
        0.3679
    """

    metric_name = "sensitivity"
    title = "sensitivity"
    needs = ("labels",)
    note = "This measures how well cosines separate classes; read it together with the kNN accuracy."
    order = 160
    higher_is_better = None

    def compute(self) -> Tensor:
        """Return S, a float64 scalar; NaN with fewer than two labelled rows.

        Raises:
            ValueError: there are fewer than two rows, or a label is below -1.
        """
        return pair_statistics(*self.labelled_rows()).sensitivity
