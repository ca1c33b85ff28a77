"""Metrics of one layer's representation that are logged during training."""

from typing import Any

import torch
from torch import Tensor

from ssl_vision.errors import check
from ssl_vision.metrics.pairs import SHARPEST, pair_statistics
from ssl_vision.metrics.rank import effective_rank, feature_std, rankme
from ssl_vision.metrics.rows import UNLABELLED, LabelledRows


class Representation(LabelledRows):
    """Uniformity, tolerance, cosines, semantic sensitivity and RankMe of one layer.

    See `pair_statistics`, which normalises features, and `rankme`, which does not.

    Args:
        t: Sharpness of the uniformity kernel.
        extended: Also compute `effective_rank` and `feature_std`.
        kwargs: Options of `torchmetrics.Metric`.

    Example:
        >>> import torch
        >>> metric = Representation()
        >>> metric.update(torch.eye(4), torch.tensor([0, 0, 1, 1]))
        >>> " ".join(metric.compute())
        'uniformity tolerance same_cosine different_cosine sensitivity rankme'
    """

    def __init__(self, t: float = 2.0, *, extended: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check("t", t, above=0, at_most=SHARPEST)
        self.t, self.extended = t, extended

    def update(self, features: Tensor, labels: Tensor | None = None) -> None:
        """Add rows.

        Args:
            features: features of any scale, shape (N, F).
            labels: integer labels, shape (N,); -1, or None for all rows, means unlabelled.

        Raises:
            ValueError: shapes or types are invalid.
        """
        if labels is None:
            labels = torch.full((len(features),), UNLABELLED, device=features.device)
        super().update(features, labels)

    def compute(self) -> dict[str, Tensor]:
        """Return float64 scalars: uniformity, tolerance, same_cosine, different_cosine, sensitivity, rankme.

        With ``extended``, also return effective_rank and feature_std. Scalars that need labels are NaN
        without a labelled pair.

        Raises:
            ValueError: there are fewer than two rows, or a label is below -1.
        """
        features, labels = self.labelled_rows()
        values = {**pair_statistics(features, labels, t=self.t)._asdict(), "rankme": rankme(features)}
        if self.extended:
            values |= {"effective_rank": effective_rank(features), "feature_std": feature_std(features)}
        return values
