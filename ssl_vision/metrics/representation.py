"""All that a run shows of one layer's representation."""

from typing import Any

import torch
from torch import Tensor

from ssl_vision.metrics.pairs import pair_statistics
from ssl_vision.metrics.rank import rankme
from ssl_vision.metrics.rows import UNLABELLED, LabelledRows


class Representation(LabelledRows):
    """Uniformity, tolerance, cosines, semantic sensitivity and RankMe of one layer, in one pass over pairs.

    See `pair_statistics` (features are L2-normalised) and `rankme` (features as they are).

    Args:
        t: Sharpness of the uniformity kernel.
        kwargs: Options of `torchmetrics.Metric`.
    """

    def __init__(self, t: float = 2.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not t > 0:
            raise ValueError(f"t: expected more than 0, got {t}")
        self.t = t

    def update(self, features: Tensor, labels: Tensor | None = None) -> None:
        """Add (N, F) features, any scale, and (N,) integer labels; -1, or None for all rows, is "unlabelled".

        Raises:
            ValueError: Shapes or types do not fit.
        """
        if labels is None:
            labels = torch.full((len(features),), UNLABELLED, device=features.device)
        super().update(features, labels)

    def compute(self) -> dict[str, Tensor]:
        """Float64 scalars: uniformity, tolerance, same_cosine, different_cosine, sensitivity, rankme.

        Those that need labels are NaN without a labelled pair.

        Raises:
            ValueError: There are fewer than two rows, or a label is below -1.
        """
        features, labels = self.rows()
        return {**pair_statistics(features, labels, t=self.t)._asdict(), "rankme": rankme(features)}
