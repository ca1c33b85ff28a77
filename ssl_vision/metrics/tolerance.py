"""Tolerance, the similarity of samples of the same class."""

from typing import Any, NamedTuple

from torch import Tensor

from ssl_vision.descriptions import DescribedMetric
from ssl_vision.metrics.rows import UNLABELLED, LabelledRows, unit_rows


class ClassCosines(NamedTuple):
    """Mean cosines over ordered pairs x ≠ y of labelled rows; float64 scalars, NaN if there is no pair."""

    tolerance: Tensor
    """Mean over all pairs of cosine · 1{same class}."""
    same_cosine: Tensor
    """Mean over pairs of the same class."""
    different_cosine: Tensor
    """Mean over pairs of different classes."""


def class_cosines(unit: Tensor, labels: Tensor) -> ClassCosines:
    """Compute mean cosines within and between classes in O(N F) time, from Σ_{x≠y} x·y = ‖Σ x‖² − Σ ‖x‖².

    Args:
        unit: rows of unit length or zero, shape (N, F).
        labels: integer labels, shape (N,); rows with -1 are ignored.

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
    return ClassCosines(
        tolerance=same_sum / all_pairs,
        same_cosine=same_sum / same_pairs,
        different_cosine=(all_sum - same_sum).where(same_pairs < all_pairs, 0.0) / (all_pairs - same_pairs),
    )


class Tolerance(LabelledRows):
    """Mean cosine of same-class pairs, T = E_{x≠y}[f(x)·f(y) 1{same class}] (MACL paper, Eq. 6).

    The mean is over all ordered pairs x ≠ y of labelled rows, so T is at most the share of same-class pairs,
    1/C for C balanced classes. With ``conditional``, it is over same-class pairs only, in [-1, 1]. A
    collapsed representation has the largest T, so read it together with accuracy. T is NaN if there is no
    pair.

    Args:
        conditional: Average over same-class pairs only.
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

    def __init__(self, conditional: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.conditional = conditional

    def compute(self) -> Tensor:
        """Return T, a float64 scalar.

        Raises:
            ValueError: there are no rows, or a label is below -1.
        """
        features, labels = self.rows()
        cosines = class_cosines(unit_rows(features), labels)
        return cosines.same_cosine if self.conditional else cosines.tolerance


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
