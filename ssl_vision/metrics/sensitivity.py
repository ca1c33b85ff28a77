"""Semantic sensitivity, the agreement of cosines with class membership."""

from torch import Tensor

from ssl_vision.metrics.pairs import pair_statistics
from ssl_vision.metrics.rows import LabelledRows


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
        return pair_statistics(*self.rows()).sensitivity
