"""Alignment: how close the two views of an image are."""

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from ssl_vision.descriptions import DescribedMetric
from ssl_vision.errors import check
from ssl_vision.metrics.rows import check_features, unit_rows


class Alignment(Metric, DescribedMetric):
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
    is_differentiable = False
    higher_is_better = False
    full_state_update = False

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
