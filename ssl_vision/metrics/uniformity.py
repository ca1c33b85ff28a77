"""Uniformity, the spread of representations over the sphere."""

from typing import Any

from torch import Tensor

from ssl_vision.metrics.pairs import check_sharpness, pair_statistics
from ssl_vision.metrics.rows import FeatureRows


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
        check_sharpness(t)
        self.t = t

    def compute(self) -> Tensor:
        """Return U, a float64 scalar.

        Raises:
            ValueError: there are fewer than two rows.
        """
        return pair_statistics(self.rows(), t=self.t).uniformity
