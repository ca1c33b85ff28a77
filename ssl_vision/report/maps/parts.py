"""Anchors given by angles, for the gate, weight and ratio of a `UnifiedGradient`."""

from functools import cached_property

import torch
from torch import Tensor

from ssl_vision.objectives import AnchorBatch
from ssl_vision.objectives.uniformity import Spread
from ssl_vision.report.maps.anchors import on_circle


class Angles(AnchorBatch):
    """B anchors from different batches; all anchors of a batch and both views have the same angles.

    Args:
        positive: angles to the positives, shape (B,).
        negatives: angles to the negatives in either view, shape (B, K).
        pairs: as in ``AnchorBatch``.
    """

    def __init__(self, positive: Tensor, negatives: Tensor, pairs: Spread) -> None:
        super().__init__(on_circle(torch.zeros_like(positive)), on_circle(positive), pairs)
        self.angles = negatives

    @cached_property
    def similarity(self) -> Tensor:
        """Cosines of the negatives, (B, K)."""
        return self.angles.cos()

    @property
    def other_similarity(self) -> Tensor:
        """The same as `similarity`, (B, K)."""
        return self.similarity

    def negatives(self, pairs: Spread) -> Tensor:
        """Return a mask of the negatives, all True, (B, K)."""
        return torch.ones_like(self.angles, dtype=torch.bool)

    def keys(self, index: Tensor) -> Tensor:
        """Return unit vectors (B, 2) at the angles of the negatives."""
        return on_circle(self.angles.gather(1, index[:, None])[:, 0])

    def log_mean(self, temperature: float, *, swap: bool = False) -> Tensor:
        """Return the value of each anchor, (B, 1)."""
        return ((self.similarity - 1) / temperature).logsumexp(dim=1, keepdim=True)
