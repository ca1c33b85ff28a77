"""Semantic sensitivity: how far cosines tell classes apart."""

from torch import Tensor

from ssl_vision.descriptions import describe
from ssl_vision.metrics.pairs import pair_statistics
from ssl_vision.metrics.rows import LabelledRows

describe(
    "sensitivity",
    title="sensitivity",
    needs=("labels",),
    note="how well cosines tell classes apart; read it beside kNN",
    order=160,
)


class SemanticSensitivity(LabelledRows):
    """Mean closeness of cosines to labels, S = E_{x≠y} exp(−(H_xy − f(x)·f(y))²) (MACL paper, Eq. 7).

    H_xy is 1 for two samples of one class and −1 otherwise; the mean is over all ordered pairs of labelled
    rows, at their natural class frequencies; features are L2-normalised. In [e⁻⁴, 1]; collapse gives p + (1
    − p)e⁻⁴ for a share p of same-class pairs, orthogonal samples e⁻¹. The bound 1 is out of reach with
    three classes or more, and S does not grow with quality alone: compare it only under one protocol, and
    read it with accuracy.

    Args:
        kwargs: Options of `torchmetrics.Metric`.

    Example:
        >>> import torch
        >>> metric = SemanticSensitivity()
        >>> metric.update(torch.eye(4), torch.tensor([0, 0, 1, 1]))
        >>> round(float(metric.compute()), 4)  # orthogonal samples
        0.3679
    """

    higher_is_better = None

    def compute(self) -> Tensor:
        """S, a float64 scalar; NaN with fewer than two labelled rows.

        Raises:
            ValueError: There are fewer than two rows, or a label is below -1.
        """
        return pair_statistics(*self.rows()).sensitivity
