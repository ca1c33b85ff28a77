"""Semantic sensitivity: how far cosines tell classes apart."""

from typing import Any

from torch import Tensor
from torchmetrics import Metric

from ssl_vision.metrics.pairs import pair_statistics
from ssl_vision.metrics.rows import check_features, check_labels, joined


class SemanticSensitivity(Metric):
    """Mean closeness of cosines to labels, S = E_{x≠y} exp(−(H_xy − f(x)·f(y))²) (MACL paper, Eq. 7).

    H_xy is 1 for two samples of one class and −1 otherwise; the mean is over all ordered pairs of labelled
    rows, at their natural class frequencies; features are L2-normalised. In [e⁻⁴, 1]; collapse gives p + (1
    − p)e⁻⁴ for a share p of same-class pairs, orthogonal samples e⁻¹. The bound 1 is out of reach with
    three classes or more, and S does not grow with quality alone: compare it only under one protocol, and
    read it with accuracy.

    Args:
        kwargs: Options of `torchmetrics.Metric`.
    """

    is_differentiable = False
    higher_is_better = None
    full_state_update = False

    features: list[Tensor]
    labels: list[Tensor]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("features", default=[], dist_reduce_fx="cat")
        self.add_state("labels", default=[], dist_reduce_fx="cat")

    def update(self, features: Tensor, labels: Tensor) -> None:
        """Add (N, F) features, any scale, and their (N,) integer labels; -1 is "unlabelled" and ignored.

        Raises:
            ValueError: Shapes or types do not fit.
        """
        check_features(features)
        check_labels(labels, len(features))
        self.features.append(features.detach())
        self.labels.append(labels)

    def compute(self) -> Tensor:
        """S, a float64 scalar; NaN with fewer than two labelled rows.

        Raises:
            ValueError: There are fewer than two rows, or a label is below -1.
        """
        features = joined(self.features, "SemanticSensitivity: no features to measure")
        return pair_statistics(features, joined(self.labels, "SemanticSensitivity: no labels")).sensitivity
