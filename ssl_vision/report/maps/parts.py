"""Anchors given by angles, as a gate, a weight and a ratio of the unified paradigm ask of them."""

from functools import cached_property

import torch
from torch import Tensor

from ssl_vision.objectives import AnchorBatch
from ssl_vision.objectives.uniformity import Spread
from ssl_vision.report.maps.anchors import on_circle


class Angles(AnchorBatch):
    """B anchors, each typical of its own batch: all anchors and both views there have these angles.

    Args:
        positive: (B,) angles to the positives.
        negatives: (B, K) angles to the negatives, the same whichever view they are sought in.
        pairs: as in ``AnchorBatch``.
    """

    def __init__(self, positive: Tensor, negatives: Tensor, pairs: Spread) -> None:
        super().__init__(on_circle(torch.zeros_like(positive)), on_circle(positive), pairs)
        self.angles = negatives

    @cached_property
    def similarity(self) -> Tensor:
        """(B, K)."""
        return self.angles.cos()

    @property
    def other_similarity(self) -> Tensor:
        """(B, K), the same."""
        return self.similarity

    def negatives(self, pairs: Spread) -> Tensor:
        """(B, K), all."""
        return torch.ones_like(self.angles, dtype=torch.bool)

    def keys(self, index: Tensor) -> Tensor:
        """(B, 2), each on the circle that its anchor begins."""
        return on_circle(self.angles.gather(1, index[:, None])[:, 0])

    def log_mean(self, temperature: float, *, swap: bool = False) -> Tensor:
        """(B, 1), the anchor's own."""
        return ((self.similarity - 1) / temperature).logsumexp(dim=1, keepdim=True)
